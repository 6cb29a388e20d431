/* index: what the store knows by key: a hash table of entries, lists of them, and the ghosts.
 *
 * Internal to tiers/. The table has a fixed number of buckets with chains through the entries, so
 * neither insert nor remove allocates. Ghosts remember why a key is gone: a fixed table of sets of
 * four, the oldest of a set makes way, so the memory is bounded and a forgotten ghost only turns
 * the reason of a miss into "never". Thread: the caller holds the store's lock. */
#ifndef TIERS_INDEX_H
#define TIERS_INDEX_H

#include "tiers/record.h"
#include "tiers/store.h"

#include <stdatomic.h>

struct store_pin {
    struct entry *e;
};
struct store_writer {
    struct entry *e;
};
struct entry_link { /* a place in a list; alone when it points to itself */
    struct entry_link *prev, *next;
};
enum entry_state { ENTRY_BUILDING, ENTRY_READY, ENTRY_DEAD };
struct entry {
    struct store *store;
    struct store_pin pin;       /* what look-ups hand out: one object for all holders */
    struct store_writer writer; /* what the claim handed out */
    struct record_desc desc;
    struct record_layout layout;
    uint8_t *rec;        /* the record's bytes, page-aligned; NULL until mapped */
    uint8_t **part;      /* [n_parts] where they stand in rec */
    uint64_t cost_bytes; /* what this entry takes of the budget */
    struct entry_link all, lru;
    struct entry *chain;
    /* guarded by the store's lock */
    enum entry_state state;
    uint32_t refs;
    bool admin_pinned, header_ok, scored;
    uint64_t hits;
    double used_s;
    _Atomic uint8_t group_ok[]; /* 1 once the group agreed with its checksum */
};

struct index {
    struct entry **bucket;
    uint64_t mask, n;
};
int index_init(struct index *x, uint64_t n_buckets); /* a power of two */
void index_fini(struct index *x);
struct entry *index_find(const struct index *x, const struct tier_key *k);
void index_insert(struct index *x, struct entry *e);
void index_remove(struct index *x, struct entry *e);

static inline void link_init(struct entry_link *l)
{
    l->prev = l->next = l;
}
static inline bool link_alone(const struct entry_link *l)
{
    return l->next == l;
}
static inline void link_remove(struct entry_link *l)
{
    l->prev->next = l->next;
    l->next->prev = l->prev;
    link_init(l);
}
static inline void link_insert_after(struct entry_link *at, struct entry_link *l)
{
    l->prev = at;
    l->next = at->next;
    at->next->prev = l;
    at->next = l;
}
#define LINK_ENTRY(p, member) ((struct entry *)(void *)((char *)(p)-offsetof(struct entry, member)))

enum { GHOST_WAYS = 4 };
struct ghost {
    struct tier_key key;
    uint64_t stamp; /* 0 = empty */
    enum store_miss why;
};
struct ghost_table {
    struct ghost *cell;
    uint64_t mask, clock; /* sets - 1; insertions so far */
};
int ghost_init(struct ghost_table *g, uint64_t n_sets); /* a power of two */
void ghost_fini(struct ghost_table *g);
void ghost_add(struct ghost_table *g, const struct tier_key *k, enum store_miss why);
void ghost_remove(struct ghost_table *g, const struct tier_key *k);
enum store_miss ghost_why(const struct ghost_table *g, const struct tier_key *k);

#endif
