/* evict: in which order the records of one tier make way.
 *
 * One instance orders the records of one tier; the owner keeps the records, the accounting and the
 * lock. Nodes are embedded in the owner's entries, so nothing is allocated after evict_create():
 * ghost entries of ARC live in a table of fixed size. Policies: lru; arc (adaptive between recency
 * and frequency, with two ghost lists). Sizes are bytes throughout, so records may differ in size.
 * Life cycle of a node: zeroed → evict_insert() → evict_hit()* → evict_remove(). A miss that makes
 * room calls evict_victim() with the incoming key until enough is free, evict_remove() on each
 * victim, then evict_insert().
 * Thread: the owner's lock. */
#ifndef TIERS_EVICT_H
#define TIERS_EVICT_H

#include "base/err.h"
#include "tiers/map.h"

enum evict_policy { EVICT_LRU, EVICT_ARC, EVICT_POLICY_COUNT };
const char *evict_policy_name(enum evict_policy p);
bool evict_policy_parse(const char *name, enum evict_policy *ret);

struct evict_node { /* evict_insert() overwrites the policy's part, evict_remove() clears `list` */
    /* The owner's, constant while inserted. */
    union {
        struct tier_key key;
        struct key_node map; /* for a map of the owner's */
    };
    uint64_t size_bytes;
    /* The policy's. */
    uint8_t list; /* 0 = not inserted */
    struct evict_node *prev, *next;
};
struct evict;
/* n_ghosts: how many keys that are gone are remembered; about what fits into the capacity. */
int evict_create(enum evict_policy p, uint64_t capacity_bytes, size_t n_ghosts, struct evict **ret);
void evict_destroy(struct evict *e); /* nodes are the owner's and need not be removed first */
void evict_resize(struct evict *e, uint64_t capacity_bytes);
void evict_insert(struct evict *e, struct evict_node *n);
void evict_hit(struct evict *e, struct evict_node *n);
/* Out of the order. `evicted`: by evict_victim()'s word (it becomes a ghost), else for any other
 * reason (it does not). */
void evict_remove(struct evict *e, struct evict_node *n, bool evicted);
/* The first node in the policy's order that `may` (NULL = any) agrees to, or NULL when there is
 * none among the first `tries` (0 = all). It stays in the order, and asking again gives the same
 * node; `may` must not call back; nodes that were passed over keep their place. incoming: the key
 * that room is made for; NULL when the tier shrinks. */
struct evict_node *evict_victim(struct evict *e, const struct tier_key *incoming,
                                bool (*may)(void *ctx, const struct evict_node *n), void *ctx,
                                size_t tries);
/* All nodes into another order, the coldest first, so that their order is kept. */
void evict_move(struct evict *from, struct evict *to);
uint64_t evict_memory_bytes(const struct evict *e);

#endif
