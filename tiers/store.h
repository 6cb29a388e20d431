/* store: chunk records across tiers: RAM, and behind it GPU memory, NVMe and Redis (tier.h).
 *
 * Identity: tier_key() over model, tokenizer, rope regime, KV dtype, sink mode, namespace, secret
 * and token ids; the ids are also in the record and compared on every look-up. A record is
 * immutable but for its scores (by kind, one per token, set later). RAM is where records are
 * built, read from and staged: a look-up that finds one in a slower tier hands out a pin at once
 * and the parts arrive behind it, in order of layers. Every cap is hard: room is made by evicting
 * what nobody holds, in the order of the tier's policy, else the put or the load is refused. Write
 * policy per tier: behind (soon after commit, when the tier has nothing better to do), evict (when
 * RAM lets go of it), hit (when it is used), never. A failed write costs nobody an answer. Life
 * cycle of a record: store_claim() (single-flight) → writer rows → store_commit() or store_abort()
 * → look-ups hand out pins → store_pin_release(). Life cycle of a look-up: store_ask() →
 * store_pin_settle() when it said STORE_ASKING → store_pin_layer()… → store_pin_release(). Thread:
 * any. What waits says so; no lock is held over I/O, callbacks of tiers or hashing. */
#ifndef TIERS_STORE_H
#define TIERS_STORE_H

#include "base/err.h"
#include "tiers/evict.h"
#include "tiers/key.h"
#include "tiers/tier.h"

enum store_miss {                   /* why a look-up missed: metric label and report */
                  STORE_MISS_NEVER, /* no tier has it */
                  STORE_MISS_EVICTED,
                  STORE_MISS_TOKENS, /* the key's record holds other tokens */
                  STORE_MISS_STALE,  /* other model or layout */
                  STORE_MISS_CORRUPT,
                  STORE_MISS_BUILDING,
                  STORE_MISS_EXPIRED,
                  STORE_MISS_GATE,     /* there, but computing it is predicted to be faster */
                  STORE_MISS_DEADLINE, /* a tier did not answer in time */
                  STORE_MISS_IO,       /* a tier failed, or its breaker is open */
                  STORE_MISS_ROOM,     /* no RAM to bring it into */
                  STORE_MISS_FORGED,   /* sound, but not by somebody who has the secret */
                  STORE_MISS_COUNT
};
const char *store_miss_name(enum store_miss m);

enum { STORE_TIERS_MAX = 4, STORE_ASKING = 2 };
enum store_write { STORE_WRITE_BEHIND, STORE_WRITE_EVICT, STORE_WRITE_HIT, STORE_WRITE_NEVER };
struct store_tier_opts {
    struct tier *tier;
    enum store_write write;
    bool q8; /* what sinks there is converted to 8 bits, and comes back so */
    /* A GPU's tier (gpu.h), the first one: look-ups hand out its records where they lie on the
     * device, without a copy in RAM. Only what was used twice is written to it. */
    bool direct;
};
/* kn_convert(): rows from one stored dtype to another. */
typedef int (*store_convert_fn)(const void *x, enum kn_dtype from, size_t n, size_t K,
                                enum kn_dtype to, void *out);
/* kn_finite(): numbers all, no infinity and no NaN. */
typedef bool (*store_finite_fn)(const void *x, enum kn_dtype t, size_t n, size_t K);
struct store;
struct gpu; /* kernels/gpu.h */
struct store_opts {
    uint64_t ram_bytes; /* hard budget, bookkeeping included */
    struct tier_ident ident;
    enum evict_policy ram_policy;
    struct store_tier_opts tier[STORE_TIERS_MAX]; /* fastest first */
    size_t n_tiers;
    /* K of this layer stays resident when a chunk's record sinks (its sidecar); 0 = of none. */
    unsigned side_layer;
    double side_share;        /* of RAM, for all sidecars; 0 = 0.05, 0.5 at most */
    store_convert_fn convert; /* NULL: no tier has a codec */
    store_finite_fn finite;   /* NULL: what comes from a tier may be anything */
    /* [AUTH_KEY_BYTES], borrowed for the call: records carry tags, and none without the right ones
     * comes in from a tier. NULL: checksums alone. */
    const uint8_t *auth_key;
    double pin_share_max; /* of RAM that administrators may pin; 0 = 0.5 */
    uint64_t ttl_ms;      /* of records of namespaces without one of their own; 0 = for ever */
    struct gpu *reader; /* copies records from RAM, which is pinned for it; NULL: none, or one that
                            a tier is on. Borrowed until destroy() */
};
/* The tiers are the store's after success (destroyed with it); after a failure the caller's. */
int store_create(const struct store_opts *o, struct store **ret, struct err *err);
void store_destroy(struct store *s); /* no pin may be out; records of persistent tiers stay */

/* ---- reading ---- */
struct store_pin; /* one look-up's hold on a record: it stays in RAM while held */
struct store_ask {
    struct tier_key key;
    const int32_t *tok; /* borrow until the look-up settles */
    size_t n;
    /* What loading may cost: the predicted time to compute the record instead. A slower tier whose
     * predicted load takes longer is not asked (STORE_MISS_GATE), and one that takes twice as long
     * (at least 50 ms) is given up (STORE_MISS_DEADLINE). 0: load whatever it takes, 30 s at most.
     */
    double worth_ms;
    uint64_t batch; /* the same for all records of a request: they arrive together, layer by layer;
                       0 = alone */
};
/* Never waits. 1 hit: header and token ids are verified, layers may still be arriving;
 * STORE_ASKING: a tier is being asked, settle the pin; 0 miss (*ret_why); <0 error. */
int store_ask(struct store *s, const struct store_ask *a, struct store_pin **ret,
              enum store_miss *ret_why);
/* Wait for the answer, until_ns at the longest (clock_ns(); 0 = as long as the ask allows; in the
 * past = do not wait). 1 hit; 0 miss, and the pin is gone. */
int store_pin_settle(struct store_pin *p, uint64_t until_ns, enum store_miss *ret_why);
/* store_ask() without a worth and store_pin_settle() in one. Waits. */
int store_lookup(struct store *s, const struct tier_key *k, const int32_t *tok, size_t n,
                 struct store_pin **ret, enum store_miss *ret_why);
/* In RAM or in a local tier? No touch, no statistics; remote tiers are not asked. */
bool store_probe(struct store *s, const struct tier_key *k);
/* The fastest place: 0 RAM, 1 + i the i-th tier if that is local, -ENOENT. Else as store_probe().
 */
int store_where(struct store *s, const struct tier_key *k);
/* What a record of n tokens takes there: 0 RAM, 1 + i the i-th tier; 0 that cannot be. */
uint64_t store_record_bytes(const struct store *s, int where, size_t n);
/* Whole in RAM? Costs an index look-up (store_get_info() may list a tier): for the hot path. */
bool store_in_ram(struct store *s, const struct tier_key *k);
/* K and V of a layer (1…L-1), [n, G, K] in store_pin_dtype(); waits for them to arrive (not beyond
 * what the ask allows) and checks them against their checksum the first time a record's layer is
 * read. -EBADMSG damaged (the copy is dropped), -EIO, -ETIMEDOUT: the caller recomputes. Of a
 * direct tier: pointers into the device, good until its frames are lent to a sequence; then the
 * copy in RAM serves, if there is one. */
int store_pin_layer(struct store_pin *p, unsigned layer, const void **ret_k, const void **ret_v);
enum kn_dtype store_pin_dtype(const struct store_pin *p); /* of its rows, once it has settled */
int store_pin_ready(struct store_pin *p, unsigned layer); /* 1 would not wait, 0 would, <0 failed */
/* The record's sidecar: K of that layer [n, G, K], whether or not the layer has arrived: 1, valid
 * until the pin's release; 0 there is none. Never waits; not before the pin has settled. */
int store_pin_side(struct store_pin *p, unsigned layer, const void **ret_k,
                   enum kn_dtype *ret_dtype);
bool store_has_side(struct store *s, const struct tier_key *k);
/* From where this look-up got it: "ram" or the tier's name. Valid as long as the store. */
const char *store_pin_tier(const struct store_pin *p);
/* 1 filled, 0 not yet; ret [n]. */
int store_pin_scores(struct store_pin *p, enum record_score kind, float *ret);
bool store_pin_scored(const struct store_pin *p, enum record_score kind);
/* 1 kept (tiers that have the record get its header anew), 0 the record is not in RAM any more. */
int store_set_scores(struct store *s, const struct tier_key *k, enum record_score kind,
                     const float *score, size_t n);
/* Bytes that have yet to arrive. */
uint64_t store_pin_missing(const struct store_pin *p);
void store_pin_release(struct store_pin *p);
/* The same, and what is still to be loaded is not wanted: the load stops unless others hold it. */
void store_pin_cancel(struct store_pin *p);

/* ---- writing ---- */
struct store_writer;
/* 1 claimed (*ret set: the caller builds it), 0 somebody else has or builds it, -ENOSPC no room or
 * over the namespace's quota. */
int store_claim(struct store *s, enum tier_kind kind, const struct tier_key *k, const char *ns,
                const int32_t *tok, size_t n, struct store_writer **ret);
/* Where rows of a layer go: k, v [n, G, K] in the store's dtype; the caller writes them directly.
 */
void store_writer_layer(struct store_writer *w, unsigned layer, void **ret_k, void **ret_v);
/* Write-behind begins with this tier; the others follow when it has the record, or has refused it.
 */
void store_writer_first(struct store_writer *w, unsigned tier);
/* Checksums, publishes, queues write-behind; frees w. -ERANGE: not all are numbers; it is aborted.
 */
int store_commit(struct store_writer *w);
void store_abort(struct store_writer *w);

/* ---- administration. `tier`: "ram", a tier's name, or NULL for all of them ---- */
struct store_info {
    struct tier_key key;
    enum tier_kind kind;
    uint32_t n_tokens;
    uint64_t size_bytes, hits, ns_hash;
    double created_s, used_s, expires_s;                     /* wall clock; expires 0 = never */
    bool pinned, building, scored[RECORD_SCORE_COUNT], side; /* side: it has a sidecar */
    enum kn_dtype dtype; /* of the copy in RAM; else as the store's */
    char tier[16];       /* the fastest that has it */
    char tiers[48];      /* all local ones, "ram,nvme" */
};
typedef int (*store_visit_fn)(void *ctx, const struct store_info *i); /* !=0 stops */
/* RAM and the local tiers; or what is in that tier, with its size there. */
int store_visit(struct store *s, const char *tier, store_visit_fn fn, void *ctx);
int store_get_info(struct store *s, const struct tier_key *k, struct store_info *ret); /* 1/0 */
/* 1, 0 absent, -ENOSPC the share that may be pinned is used up. */
int store_set_pinned(struct store *s, const struct tier_key *k, bool pinned);
/* 1 gone, 0 absent, -EBUSY pinned or in use. */
int store_evict(struct store *s, const struct tier_key *k, const char *tier);
/* Records dropped. ns NULL = all of them. Records in use leave the index at once. <0 no such tier.
 */
long store_clear(struct store *s, const char *tier, const char *ns, bool also_pinned);
/* Bring into RAM what a slower tier has (warm-up after a restart): the n most recently used
 * records. Waits. Returns how many. */
long store_preload(struct store *s, const char *tier, size_t n);
/* Read a record back from every tier that has it (or from one) and check every byte; `k` NULL: all
 * records of RAM and the local tiers (or of one tier). Waits. What is unreadable: the error, behind
 * the others' count. */
struct store_verify {
    uint64_t n_ok, n_bad, n_gone; /* copies; bad ones have been dropped */
};
int store_verify(struct store *s, const struct tier_key *k, const char *tier,
                 struct store_verify *ret);
/* The program ends: verifying (then -ECANCELED) and preloading, hours of a full tier, stop soon. */
void store_interrupt(struct store *s);
/* Smaller: evicts, -EBUSY what is held does not fit. RAM: up to four times what it was at first,
 * beyond -ENOTSUP; memory that a device knows stays with the process when RAM shrinks. */
int store_resize(struct store *s, const char *tier, uint64_t bytes);
int store_set_policy(struct store *s, const char *tier, enum evict_policy p);
int store_set_quota(struct store *s, const char *tier, const char *ns, uint64_t bytes); /* 0 none */
void store_set_ttl(struct store *s, const char *ns, uint64_t ttl_ms); /* of records to come */
/* Wait for write-behind to be done; 0 = however long it takes. -ETIMEDOUT. */
int store_flush(struct store *s, uint64_t deadline_ns);

struct store_stats { /* of RAM and of look-ups */
    uint64_t used_bytes, budget_bytes, n_records, n_pinned, pinned_bytes;
    uint64_t hits, misses[STORE_MISS_COUNT], puts, put_refused, evictions, expired, corrupt;
    uint64_t forged;          /* records, or scores, whose tag is not of our secret */
    uint64_t lost;            /* evicted before a tier that wanted it had it */
    uint64_t dirty, inflight; /* records waiting for write-behind; loads under way */
    double tail_age_s;
    uint64_t sides, side_bytes, side_budget_bytes, side_hits, side_evictions; /* sidecars */
};
void store_get_stats(struct store *s, struct store_stats *ret);
struct store_tier_stats {
    char name[16];
    bool persistent, shared, q8, direct;
    struct tier_stat tier;
    uint64_t hits, hit_bytes; /* look-ups served from here */
    uint64_t misses[STORE_MISS_COUNT];
    const char *breaker; /* "closed", "open", "half-open" */
    uint64_t breaker_opened;
    double read_bytes_per_s, first_ms; /* moving averages of loads; 0 = none yet */
    uint64_t queued_bytes;             /* of loads under way */
};
size_t store_n_tiers(const struct store *s);
void store_get_tier_stats(struct store *s, size_t i, struct store_tier_stats *ret);
/* Predicted time until a record of that size is in RAM, ms; <0 unknown. */
double store_predict_ms(struct store *s, size_t tier, uint64_t bytes);

#endif
