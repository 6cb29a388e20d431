/* store_int: what the files of the store share. Internal to tiers/.
 *
 * Locks: `m` guards the accounting, the pool, the policy's order, ghosts, queues and the tiers'
 * averages; a shard's lock guards its table and its entries' state and counts. Order: m, then one
 * shard; a sidecar's lock last. None is held while a tier is called, bytes are hashed or a visitor
 * runs. A hit takes its shard's lock only; `m` at most once a second per entry, to tell the policy.
 * An entry lives while refs > 0; who takes the last one away reaps it (under m). */
#ifndef TIERS_STORE_INT_H
#define TIERS_STORE_INT_H

#include "base/assert.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/breaker.h"
#include "tiers/index.h"
#include "tiers/pool.h"
#include "tiers/quota.h"
#include "tiers/store.h"

#include <pthread.h>
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
    struct index index;
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
    bool head_only, settled; /* settled: without asking the device */
    struct entry *as;        /* its copy in the tier's codec, or NULL */
};
struct store_tier {
    struct tier *t;
    enum store_write write;
    bool q8; /* its codec */
    bool direct;
    struct breaker breaker;
    struct entry_link queue; /* entries to write, oldest first */
    struct write_slot slot[WRITES_MAX];
    unsigned n_writes;
    uint64_t retry_ns; /* its queue was full: not before */
    uint64_t hits, hit_bytes, misses[STORE_MISS_COUNT], inflight_bytes;
    _Atomic uint64_t moved_bytes; /* of parts that have come, of whatever record */
    double bytes_per_s, first_ms, rest_ms_per_byte; /* moving averages of loads, predict_ms() */
    uint64_t measured_ns;
    bool stale; /* what is known is old: the next load replaces it */
};
struct ns_ttl {
    uint64_t ns_hash, ttl_ms;
};
struct side;
struct sides { /* store_side.c; a lock of its own, below all others */
    pthread_mutex_t m;
    unsigned layer; /* constant; 0: none are kept */
    struct side **bucket;
    uint64_t mask, budget_bytes, used_bytes, n, hits, evictions;
    struct entry_link lru; /* newest first */
};
struct store {
    struct tier_ident ident;
    uint64_t ident_hash;
    store_convert_fn convert;
    store_finite_fn finite;
    struct auth *auth; /* constant; NULL: no secret */
    bool codec; /* records may be of 8 bits: there is a converter, and it makes them smaller */
    uint64_t touch_every_ns; /* how often a hit tells the policy; tests say 0 */
    double recheck_every_s;  /* how long RAM is trusted; tests say 0 */
    struct shard shard[SHARDS];
    struct sides sides;
    pthread_mutex_t m;
    pthread_cond_t wake, idle; /* for the maintenance thread; for store_flush() */
    pthread_t thread;
    _Atomic bool closing, interrupted;
    uint8_t mode[STORE_WRITE_NEVER + 1]; /* bits of the tiers written so; constant */
    /* guarded by m */
    bool work, evict_now; /* for maintenance: look at the queues; make room */
    struct pool pool;
    struct evict *order;
    struct ghost_table ghosts;
    struct quota *quota; /* NULL until a namespace has a cap */
    struct ns_ttl ttl[TTL_MAX];
    size_t n_ttl;
    uint64_t ttl_ms, fixed_bytes;
    double pin_share_max;
    struct entry_link all, loads,
        probation; /* newest first (dead ones too), any order, oldest last */
    uint64_t n_queued, n_writes, leaving_bytes;
    unsigned n_others; /* callbacks that call other tiers just now */
    unsigned expire_shard;
    bool registered; /* a device knows the arena: pages must stay where they are */
    struct gpu *reader;
    void *pinned[ARENAS]; /* pieces of the arena that are pinned for the reader */
    unsigned n_pinned;
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
    struct side *side;  /* once it was asked for */
    const int32_t *tok; /* until it has settled */
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
static inline struct shard *shard_of(struct store *s, const struct tier_key *k)
{
    return &s->shard[k->hi % SHARDS];
}
static inline uint64_t wall_ms(void)
{
    return (uint64_t)(clock_wall_s() * 1e3);
}
static inline bool entry_expired(const struct entry *e, uint64_t now_ms)
{
    return e->desc.expires_ms && now_ms >= e->desc.expires_ms;
}

/* ---- store.c: entries, accounting, room ---- */
struct entry *entry_create(struct store *s, const struct record_desc *d,
                           const struct record_layout *l, enum entry_state state);
/* m held. Charge it, take memory for its first n_parts parts (making room) and put it into the
 * index. 1; 0 the key is there already; -ENOSPC, and but for fragments nothing was evicted. */
int entry_enter(struct store *s, struct entry *e, uint32_t n_parts);
/* m held. Memory for the parts [0, n_parts) that have none yet; -ENOSPC changes nothing. */
int entry_reserve(struct store *s, struct entry *e, uint32_t n_parts);
/* m held. Out of the index; later look-ups miss for `why` (NEVER: no ghost). `evict`: only if
 * nobody holds it. False: not dropped. */
bool entry_drop(struct store *s, struct entry *e, enum store_miss why, bool evict);
void entry_ready(struct store *s, struct entry *e);   /* m held. Into the order or on probation. */
void entry_unref(struct store *s, struct entry *e);   /* no lock held */
void held_update(struct shard *sh, struct entry *e);  /* shard's lock held */
bool shard_wait(struct shard *sh, uint64_t until_ns); /* shard's lock held; false: it is time */
static inline bool entry_evictable(const struct entry *e)
{
    return e->state == ENTRY_READY && e->refs == 1 && !e->admin_pinned;
}
/* m held. The next to go (of namespace *ns if given), not dropped yet; NULL: none. CLEAN: among the
 * first that no tier waits for; STAYING: that is not on its way out already. */
enum pick { PICK_ANY, PICK_CLEAN, PICK_STAYING };
struct entry *pick_victim(struct store *s, const struct tier_key *incoming, const uint64_t *ns,
                          enum pick which);
/* Tiers that wait for the record to be written: those on use do not count. */
static inline uint8_t entry_wanted(const struct store *s, const struct entry *e)
{
    return e->want & (s->mode[STORE_WRITE_BEHIND] | s->mode[STORE_WRITE_EVICT]);
}
static inline uint64_t water_bytes(const struct store *s, unsigned pct)
{
    return s->fixed_bytes + (s->stats.budget_bytes - s->fixed_bytes) / 100 * pct;
}
bool evict_one(struct store *s, const struct tier_key *incoming, const uint64_t *ns); /* m held */
/* A use is over: tell the policy and the tiers that have it. No lock held; the caller has a
 * reference. */
void entry_touch(struct store *s, struct entry *e);
void policy_insert(struct store *s, struct entry *e); /* m held */
/* m held. Charged, with all its memory, but not in the index: one reference is the caller's. */
int entry_enter_apart(struct store *s, struct entry *e);
struct entry *entry_find(struct store *s, const struct tier_key *k);    /* m held, while it is */
void store_arena_register(struct store *s, void *base, uint64_t bytes); /* no lock held */
size_t store_n_ghosts(uint64_t budget_bytes);

/* m held. Memory of parts goes back; no tier has the entry. */
void parts_free(struct store *s, struct entry *e);

/* ---- store_codec.c ---- */
bool codec_on(const struct store *s, unsigned tier); /* what sinks there is converted */
/* m held. The load's entry takes the form in which the tier should have the record; `other`: has it
 * if not in that one. */
void codec_shape(struct store *s, struct entry *e, unsigned tier, bool other);
/* Does what a header says fit the memory that was taken, maybe in the other dtype? */
bool codec_adopt(const struct entry *e, const struct record_view *v);
/* No lock held, e held. A copy in 8 bits, apart from the index; the reference is the caller's. 0,
 * -EBADMSG the record is damaged, -ERANGE a value does not fit, -ENOSPC, -ENOMEM. */
int codec_copy(struct store *s, const struct entry *e, struct entry **ret);

/* ---- store_side.c: sidecars ---- */
int side_init(struct store *s, const struct store_opts *o); /* charges its budget */
void side_fini(struct store *s);
/* No lock held; the caller holds e, whose parts are all here. */
void side_keep(struct store *s, const struct entry *e);
void side_used(struct store *s, const struct tier_key *k); /* its record is in use */
void side_drop(struct store *s, const struct tier_key *k);
void side_clear(struct store *s, const uint64_t *ns_hash); /* NULL: all */
void side_unref(struct store *s, struct side *d);          /* takes NULL */
void side_get_stats(struct store *s, struct store_stats *ret);

/* ---- store_direct.c: records that are read where they lie ---- */
/* No lock held. 1: the pin has it, verified; 0 not there. */
int direct_look(struct store *s, const struct store_ask *a, struct store_pin *p);
/* The pin's layer on the device; -ECANCELED: it had to make way, and the pin lets go of it. */
int direct_layer(struct store_pin *p, unsigned layer, const void **ret_k, const void **ret_v);
int direct_scores(struct store_pin *p, enum record_score kind, float *ret);
bool direct_scored(const struct store_pin *p, enum record_score kind);
void direct_end(struct store_pin *p); /* of a pin that is done with */
/* All groups of a record agree with their checksums: a copy on a device is never checked again. */
bool direct_verify(const struct entry *e);

/* ---- store_check.c: what comes from a tier ---- */
/* Its header's and its scores' tags; wrong scores are cleared. FORGED, or NEVER: nothing is wrong.
 */
enum store_miss header_auth(struct store *s, struct entry *e, const struct record_view *v);
/* A group that came from a tier and was not checked yet: by its tag, and for numbers; any other by
 * its checksum. 0, -EBADMSG, -EKEYREJECTED its tag alone is wrong. */
int group_check(const struct store *s, const struct entry *e, uint32_t group);
/* No lock held. Drop it as what the check said; `there`: out of the tier that it came from, too. */
void entry_reject(struct entry *e, int status, bool there);

/* ---- store_load.c ---- */
/* Ask the tiers for a LOADING entry that was entered (one reference is the load's); its worth, its
 * deadline and priority are set. 0; <0 it has ended by now. */
int load_start(struct store *s, struct entry *e);
/* Enter a LOADING entry for a record of n tokens, with a reference for the load and a pin. 1, 0
 * somebody was faster, <0 -ENOMEM, -ENOSPC, -EINVAL. */
int load_enter(struct store *s, const struct tier_key *k, size_t n, struct entry **ret);
void load_abandon(struct store *s, struct entry *e); /* the tier took too long; no lock held */
void load_cancel(struct store *s, struct entry *e);  /* nobody waits for it; no lock held */
double predict_ms(const struct store_tier *t, uint64_t bytes); /* m held; <0 unknown */

/* Read a copy beside the index and wait for it, 30 s at most. 0: the caller has a reference. */
int load_apart(struct store *s, struct store_tier *t, const struct tier_key *k, uint32_t n,
               struct entry **ret);
int pin_wait_whole(struct store_pin *p); /* store_look.c: 0, or <0 it did not come */

/* ---- store_put.c ---- */
/* Shard's lock held: no tier reads the header. */
void scores_write(struct entry *e, enum record_score kind, const float *score,
                  const struct record_score_sum *sum);

/* ---- store_behind.c ---- */
/* m held. Queue the entry for the tiers in `mask`, whole or (where they have it) its header. */
void write_queue(struct store *s, struct entry *e, uint8_t mask, bool head_only);
void write_unqueue(struct store *s, struct entry *e); /* m held */
void *store_maintain(void *store);                    /* the maintenance thread */

#endif
