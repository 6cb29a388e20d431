/* index: what the store knows by key: entries, lists of them, and the ghosts.
 *
 * Internal to tiers/. Entries stand in a map (map.h) per shard. Ghosts remember why and when a key
 * went: a fixed table of sets of four, the oldest of a set makes way, so the memory is bounded and
 * a forgotten ghost only turns the reason of a miss into "never". Thread: the caller holds the lock
 * that guards the table (a shard's for its entries, the store's for lists and ghosts). */
#ifndef TIERS_INDEX_H
#define TIERS_INDEX_H

#include "tiers/record.h"
#include "tiers/store.h"

#include <stdatomic.h>

struct entry_link { /* a place in a list; alone when it points to itself */
    struct entry_link *prev, *next;
};
/* BUILDING: claimed. LOADING: a tier reads it; in the index so that others attach. READY: whole.
 * DEAD: out of the index; its memory lives until the last reference goes. A revision, too, is apart
 * from the index until it is committed. */
enum entry_state { ENTRY_BUILDING, ENTRY_LOADING, ENTRY_READY, ENTRY_DEAD };
/* READY entries stand in the policy's order, or on probation: brought in at others' expense and
 * used once, they leave first. */
enum entry_place { PLACE_NONE, PLACE_ORDER, PLACE_PROBATION };
/* ROTTEN: was sound, and is not any more; who reads it is told. */
enum group_state { GROUP_NEW, GROUP_OK, GROUP_ROTTEN };
struct entry_cost { /* what an entry takes of the budget; held_*: what it adds to its shard's */
    uint64_t meta_bytes, all_bytes; /* itself; and its parts */
    uint64_t quota_bytes;           /* of these, charged to the namespace */
    uint64_t held_bytes, held_parts;
};
struct entry_write { /* the tiers' copies; guarded by the store's lock; masks have a bit per tier */
    struct entry_link queue[STORE_TIERS_MAX];
    _Atomic uint8_t want;     /* tiers that should have it and have not */
    uint8_t clean, under_way; /* have it; are being written */
    uint8_t replace;          /* may have an older version */
    uint8_t purge;            /* take it off again when it is written */
    uint8_t tries;
    bool leaving; /* goes when written */
};
struct entry_load { /* the load's own */
    struct tier_op op;
    unsigned tier;                      /* that is being asked */
    bool other;                         /* for the form that it has not told of (codec_shape()) */
    enum store_miss stop_why, last_why; /* why on_part stopped it; why tiers so far had none */
    double worth_ms;
    uint64_t start_ns, first_ns, queued_bytes, moved_before;
    _Atomic uint64_t last_ns; /* when the last part came, so far */
    bool reported;            /* guarded by m: the breaker knows how this load went */
};
struct entry {
    struct key_node in_index; /* first */
    struct store *store;
    struct record_desc desc; /* of a loading one: constant once its header is here */
    struct record_layout layout;
    uint32_t parts_max;        /* that there is room to point to */
    uint8_t **part;            /* [n_parts], NULL = no memory yet */
    _Atomic uint8_t *part_ok;  /* [n_parts] 1 once it is here */
    _Atomic uint8_t *group_ok; /* [n_groups] enum group_state */
    /* guarded by the shard's lock */
    enum entry_state state;
    uint32_t refs, pins; /* refs: index, pins, load, writes; pins: lookups alone */
    int head, status;    /* head: 0 not here, 1 verified, <0 none; status: <0 load failed */
    enum store_miss why; /* if head < 0 */
    int from;            /* tier it was read from, -1 = built here */
    bool admin_pinned, gave_up;
    uint64_t hits;
    double used_s;
    uint64_t checked_ns; /* when it was last asked that RAM be looked at */
    _Atomic uint64_t touched_ns;
    _Atomic uint8_t header_ok;
    _Atomic uint8_t cancel; /* the load, or the revision, is not wanted any more */
    struct entry_cost cost; /* guarded by both locks */
    /* guarded by the store's lock */
    struct evict_node node;
    enum entry_place place;
    struct entry_link all, loads; /* loads: and of revisions */
    struct entry_link check;      /* in the queue of those to be looked at anew */
    bool probation;               /* of a load: RAM was short when it came */
    bool ns_known;                /* desc.ns_hash is */
    bool modest;                  /* only what is clean makes way for it */
    struct entry_write write;
    struct entry_load load;
};

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
    uint32_t at_s;  /* clock_ns() in seconds */
    enum store_miss why;
};
struct ghost_table {
    struct ghost *cell;
    uint64_t mask, clock; /* sets - 1; insertions so far */
};
int ghost_init(struct ghost_table *g, uint64_t n_sets); /* a power of two */
void ghost_fini(struct ghost_table *g);
void ghost_add(struct ghost_table *g, const struct tier_key *k, enum store_miss why,
               uint32_t now_s);
void ghost_remove(struct ghost_table *g, const struct tier_key *k);
enum store_miss ghost_why(const struct ghost_table *g, const struct tier_key *k);
/* Did it go less than `within_s` ago? */
bool ghost_recent(const struct ghost_table *g, const struct tier_key *k, uint32_t now_s,
                  uint32_t within_s);

#endif
