/* store_int: what the files of the store share. Internal to tiers/.
 *
 * Locks: `m` guards the accounting, the pool, the policy's order, ghosts, queues and the tiers'
 * averages; a shard's lock guards its table and its entries' state and counts. Order: m, then one
 * shard; a sidecar's lock last. None is held while a tier is called, bytes are hashed or a visitor
 * runs. A hit takes its shard's lock only; `m` at most twice a second per entry: policy, checks.
 * An entry lives while refs > 0; the last unref reaps it (under m). */
#ifndef TIERS_STORE_INT_H
#define TIERS_STORE_INT_H

#include "base/assert.h"
#include "base/mem.h"
#include "base/breaker.h"
#include "tiers/index.h"
#include "tiers/pool.h"
#include "tiers/quota.h"
#include "tiers/wait.h"
#include "tiers/store_admin.h"

#include <string.h>

enum {
    SHARDS = 64,
    WRITES_MAX = 4, /* chosen: write-behind ops under way per tier; the device has its own queue */
    VICTIM_TRIES = 64, /* chosen: how far to look for one that no tier still waits for */
    PROBATION_S = 600, /* asked for: a second use within ten minutes is no scan */
    WATER_HIGH_PCT = 95,
    WATER_LOW_PCT = 90,
    WATER_SHORT_PCT = 85, /* from here on loads are on probation: the evictor must find enough */
    WRITE_TRIES = 3,
    ASK_MS_MAX = 30000,
    GIVE_UP_MS_MIN = 50,
    TTL_MAX = 64,          /* chosen: namespaces with a time to live of their own */
    ARENAS = 8,            /* chosen: pieces of RAM that are pinned, which resizing adds to */
    GATE_STALE_MS = 10000, /* chosen: an average that old is measured anew by letting one pass */
};

struct shard {
    pthread_mutex_t m;
    pthread_cond_t arrived;
    struct key_map index;
    uint32_t waiters;
    uint64_t hits;
    /* Of what cannot be evicted, its parts alone and with its entries; read without the lock. */
    _Atomic uint64_t held_parts, held_bytes;
} __attribute__((aligned(64)));
struct write_slot {
    struct tier_op op;
    struct entry *e;
    struct store *s;
    unsigned tier;
    uint64_t start_ns;
    bool settled;     /* without asking the device */
    struct entry *as; /* its copy in the tier's codec, or NULL */
};
struct store_tier {
    struct tier *t;
    bool q8; /* its codec */
    struct breaker breaker;
    struct entry_link queue; /* entries to write, oldest first */
    struct write_slot slot[WRITES_MAX];
    unsigned n_writes;
    uint64_t retry_ns; /* its queue was full: not before */
    uint64_t hits, hit_bytes, misses[STORE_MISS_COUNT], inflight_bytes;
    struct quota caps;            /* as they were set: what is used of them the tier knows */
    _Atomic uint64_t moved_bytes; /* of parts that have come, of whatever record */
    double bytes_per_s, first_ms, rest_ms_per_byte; /* moving averages of loads, predict_ms() */
    uint64_t measured_ns;
    bool stale; /* what is known is old: the next load replaces it */
};
struct ttls { /* times to live, of namespaces and of all others; 0 = for ever */
    struct ns_ttl {
        uint64_t ns_hash, ms;
    } ns[TTL_MAX];
    size_t n;
    uint64_t others_ms;
};
struct side;
struct sides { /* store_side.c; a lock of its own, below all others */
    pthread_mutex_t m;
    unsigned layer; /* constant; 0: none are kept */
    struct key_map table;
    uint64_t budget_bytes, used_bytes, hits, evictions;
    struct entry_link lru; /* newest first */
};
enum { AHEAD_RING = 2048, AHEAD_THREADS_MAX = 4 }; /* chosen: two hundred records of ten parts */
struct ahead_part { /* that has come, with a reference of its entry */
    struct entry *e;
    uint32_t part;
};
struct store_ahead { /* store_ahead.c; a lock of its own, below all others */
    pthread_mutex_t m;
    pthread_cond_t more;
    pthread_t thread[AHEAD_THREADS_MAX];
    unsigned n_threads;      /* constant once the store is open */
    struct ahead_part *ring; /* [AHEAD_RING] */
    unsigned first, n;
    bool closing;
};
struct store_checks {        /* of what RAM is not trusted with any more, store_check.c */
    uint64_t every_ns;       /* constant; tests say 0 */
    struct entry_link queue; /* the one that has waited longest is first */
    struct store_ahead ahead;
    uint64_t after_ns; /* not before: what they may take of a core is used up */
};
struct store_reader { /* a device that copies from RAM, and the arena's pieces pinned for it */
    struct gpu *gpu;
    void *pinned[ARENAS];
    unsigned n_pinned;
};
struct store {
    struct tier_ident ident;
    uint64_t ident_hash;
    store_convert_fn convert;
    store_finite_fn finite;
    struct auth *auth; /* constant; NULL: no secret */
    bool codec; /* records may be of 8 bits: there is a converter, and it makes them smaller */
    uint64_t touch_every_ns; /* how often a hit tells the policy; tests say 0 */
    struct shard shard[SHARDS];
    struct sides sides;
    pthread_mutex_t m;
    pthread_cond_t wake, idle; /* for the maintenance thread; for store_flush() */
    pthread_t thread;
    _Atomic bool closing, interrupted;
    uint8_t behind; /* bits of the tiers that are written behind: all but a direct one; constant */
    /* guarded by m */
    bool work, evict_now; /* for maintenance: look at the queues; make room */
    struct pool pool;
    struct evict *order;
    struct ghost_table ghosts;
    struct quota quota;
    struct ttls ttl;
    uint64_t fixed_bytes;
    double pin_share_max; /* of RAM that administrators may pin; tests say more */
    struct entry_link all, loads,
        probation; /* newest first (dead ones too), any order, oldest last */
    struct entry_link revisions;
    struct store_checks checks;
    uint64_t n_queued, n_writes, leaving_bytes;
    unsigned n_others; /* callbacks that call other tiers just now */
    unsigned expire_shard;
    bool registered; /* a device knows the arena: pages must stay where they are */
    struct store_reader reader;
    bool expiring; /* some record has a time to live */
    struct store_stats stats;
    struct tier *direct;     /* tier 0 when its records are read where they lie, else NULL */
    struct store_tier *tier; /* [n_tiers] */
    size_t n_tiers;
};
struct tier_gpu_pin;
struct store_pin {
    struct entry *e;
    struct tier_gpu_pin *there; /* instead of e: a record on a device */
    struct store *s;
    struct tier_key key;
    enum kn_dtype dtype;
    uint32_t n_contexts, context_tokens; /* of a record on a device */
    struct side *side;                   /* once it was asked for */
    const int32_t *tok;                  /* until it has settled */
    size_t n;
    uint64_t wait_ns, deadline_ns;
    int from; /* tier, -1 RAM */
    bool settled, timed_out;
};

/* RAM, when that is the tier of that name; NULL: all of them. */
static inline bool ram_meant(const char *tier)
{
    return !tier || strcmp(tier, "ram") == 0;
}
static inline bool tier_meant(const struct store_tier *t, const char *tier)
{
    return !tier || strcmp(t->t->name, tier) == 0;
}
bool tier_known(struct store *s, const char *tier); /* store_admin.c: RAM, a tier's name, or NULL */
static inline struct shard *shard_of(struct store *s, const struct tier_key *k)
{
    return &s->shard[k->hi % SHARDS];
}
static inline struct entry *shard_find(const struct shard *sh, const struct tier_key *k)
{
    return (struct entry *)key_map_find(&sh->index, k);
}
static inline bool entry_expired(const struct entry *e, uint64_t now_ms)
{
    return e->desc.expires_ms && now_ms >= e->desc.expires_ms;
}

/* ---- store_side.c: a lock of its own, below all others; any of the store's may be held ---- */
int side_init(struct store *s, const struct store_opts *o); /* charges its budget */
void side_fini(struct store *s);
/* No lock held; the caller holds e, whose parts are all here. */
void side_keep(struct store *s, const struct entry *e);
void side_used(struct store *s, const struct tier_key *k); /* its record is in use */
void side_drop(struct store *s, const struct tier_key *k);
void side_clear(struct store *s, const uint64_t *ns_hash); /* NULL: all */
void side_unref(struct store *s, struct side *d);          /* takes NULL */
void side_get_stats(struct store *s, struct store_stats *ret);

#endif
