/* evict_int: what the eviction policies share: lists of nodes and a table of ghosts.
 *
 * Internal to tiers/evict*.c. A policy is a table of functions over one struct evict; every policy
 * has its few fields there, so that an instance is one allocation (and a second for the ghosts of
 * those that keep some). A list's head is where nodes enter, its tail where victims are taken.
 * A ghost is the key and size of a node that was evicted: a fixed pool of cells, chained by hash
 * and linked in two lists, the oldest of the longer list making way when the pool is used up.
 * Thread: the owner's lock. */
#ifndef TIERS_EVICT_INT_H
#define TIERS_EVICT_INT_H

#include "tiers/evict.h"

typedef bool (*evict_may_fn)(void *ctx, const struct evict_node *n);

struct evict_list {
    struct evict_node *head, *tail;
    uint64_t bytes;
};

struct evict_ghost {
    struct tier_key key;
    uint64_t size_bytes;
    uint32_t prev, next, chain; /* cells; EVICT_NO_CELL ends */
    uint8_t list;
    bool learnt; /* ARC has moved its target for this one */
};
enum { EVICT_NO_CELL = UINT32_MAX };
struct evict_ghosts {
    struct evict_ghost *cell;
    uint32_t *bucket;
    uint32_t n_cells, mask, free;
    struct {
        uint32_t head, tail, n;
        uint64_t bytes;
    } list[2];
};

struct evict_ask { /* one search for a victim */
    const struct tier_key *incoming;
    evict_may_fn may;
    void *ctx;
    size_t tries; /* left; SIZE_MAX = no bound */
};

struct evict_ops {
    void (*insert)(struct evict *e, struct evict_node *n);
    void (*hit)(struct evict *e, struct evict_node *n);
    void (*remove)(struct evict *e, struct evict_node *n, bool evicted);
    struct evict_node *(*victim)(struct evict *e, struct evict_ask *a);
    void (*resized)(struct evict *e); /* may be NULL */
    bool ghosts;
};
extern const struct evict_ops evict_arc_ops;

struct evict {
    const struct evict_ops *ops;
    uint64_t capacity_bytes;
    struct evict_list list[2]; /* LRU: [0]; ARC: T1, T2 */
    struct evict_ghosts ghosts;
    uint64_t target_bytes; /* ARC: the share of the capacity that T1 should have */
};

/* Lists: `i` is the index into e->list; a node knows its list. */
void evict_list_push(struct evict *e, unsigned i, struct evict_node *n);
void evict_list_remove(struct evict *e, struct evict_node *n);
static inline unsigned evict_list_of(const struct evict_node *n)
{
    return n->list - 1u;
}
/* Ask the owner about one node. 1 take it, 0 not this one, -1 no tries left. */
int evict_ask_may(struct evict_ask *a, const struct evict_node *n);
/* The first allowed node from the tail of list i. */
struct evict_node *evict_list_victim(struct evict *e, unsigned i, struct evict_ask *a);

int evict_ghosts_init(struct evict_ghosts *g, size_t n_cells);
void evict_ghosts_fini(struct evict_ghosts *g);
struct evict_ghost *evict_ghosts_find(struct evict_ghosts *g, const struct tier_key *k);
void evict_ghosts_push(struct evict_ghosts *g, unsigned i, const struct evict_node *n);
void evict_ghosts_remove(struct evict_ghosts *g, struct evict_ghost *gone);
void evict_ghosts_drop_oldest(struct evict_ghosts *g, unsigned i); /* nothing when empty */
uint64_t evict_ghosts_memory_bytes(const struct evict_ghosts *g);

#endif
