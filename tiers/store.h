/* store: chunk records across tiers: RAM, and behind it GPU memory, NVMe and Redis (tier.h).
 *
 * This header: opening a store and reading from it. Records come in by store_write.h; operators
 * list, check, drop and limit them by store_admin.h.
 * Identity: tier_key() over model, tokenizer, rope regime, KV dtype, sink mode, namespace, secret
 * and token ids; the ids are also in the record and compared on every lookup. A record is
 * immutable; a new version replaces it as a whole, and pins of the old one read on. RAM is where
 * records are built, read and staged: a lookup that finds one in a slower tier hands out a pin at
 * once and the parts arrive behind it, in order of layers. Every cap is hard: room is made by
 * evicting records without a pin, in the order of the tier's policy, else the put or the load is
 * refused. A committed record is written behind to the tiers, a device's (`direct`) when it is used
 * again; a write that fails costs no request its answer.
 * Life cycle of a lookup: store_ask() → store_pin_settle() when it said STORE_ASKING →
 * store_pin_layer()… → store_pin_release(). Thread: any. What waits says so; no lock is held over
 * I/O, callbacks of tiers or hashing. */
#ifndef TIERS_STORE_H
#define TIERS_STORE_H

#include "base/err.h"
#include "tiers/evict.h"
#include "tiers/key.h"
#include "tiers/tier.h"

/* Why a lookup missed: metric label and report. */
enum store_miss {
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
    STORE_MISS_FORGED,   /* sound, but written by a process without the secret */
    STORE_MISS_COUNT
};
const char *store_miss_name(enum store_miss m);

enum { STORE_TIERS_MAX = 4, STORE_ASKING = 2 };
struct store_tier_opts {
    struct tier *tier;
    bool q8; /* what sinks there is converted to 8 bits, and comes back so */
    /* A GPU's tier (gpu.h), the first one: lookups hand out its records where they lie on the
     * device, without a copy in RAM. Only what was used twice is written to it. */
    bool direct;
};
/* kn_convert(): rows from one stored dtype to another. */
typedef int (*store_convert_fn)(const void *x, enum kn_dtype from, size_t n, size_t K,
                                enum kn_dtype to, void *out);
/* kn_finite(): numbers all, no infinity and no NaN. */
typedef bool (*store_finite_fn)(const void *x, enum kn_dtype t, size_t n, size_t K);
struct store;
struct store_writer; /* store_write.h */
struct gpu;          /* kernels/gpu.h */
struct store_opts {
    uint64_t ram_bytes; /* hard budget, bookkeeping included */
    struct tier_ident ident;
    enum evict_policy ram_policy;
    struct store_tier_opts tier[STORE_TIERS_MAX]; /* fastest first */
    size_t n_tiers;
    /* K of this layer stays resident when a chunk's record sinks (its sidecar); 0 = of none. */
    unsigned side_layer;
    store_convert_fn convert; /* NULL: no tier has a codec */
    store_finite_fn finite;   /* NULL: what comes from a tier may be anything */
    /* [AUTH_KEY_BYTES], borrowed for the call: records carry tags, and none without the right ones
     * comes in from a tier. NULL: checksums alone. */
    const uint8_t *auth_key;
    uint64_t ttl_ms;    /* of records of namespaces without one of their own; 0 = for ever */
    struct gpu *reader; /* copies records from RAM, which is pinned for it; NULL: none, or one that
                            a tier is on. Borrowed until destroy() */
    bool check_ahead;   /* threads of the store check what nobody has read yet, as soon as it comes
                         from a tier or is looked up: for readers that queue work for a GPU. Else
                         its reader does, alone */
};
/* The tiers are the store's after success (destroyed with it); after a failure the caller's. */
int store_create(const struct store_opts *o, struct store **ret, struct err *err);
void store_destroy(struct store *s); /* no pin may be out; records of persistent tiers stay */

/* ---- reading ---- */
struct store_pin; /* one lookup's hold on a record: it stays in RAM while held */
struct store_ask {
    struct tier_key key;
    const int32_t *tok; /* borrow until the lookup settles */
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
/* The fastest place: 0 RAM, 1 + i the i-th tier if that is local, -ENOENT. No touch, no statistics;
 * remote tiers are not asked. */
int store_where(struct store *s, const struct tier_key *k);
static inline bool store_probe(struct store *s, const struct tier_key *k)
{
    return store_where(s, k) >= 0;
}
/* What a record of n tokens takes there: 0 RAM, 1 + i the i-th tier; 0 that cannot be. */
uint64_t store_record_bytes(const struct store *s, int where, size_t n);
/* Whole in RAM? Costs an index lookup (store_get_info() may list a tier): for the hot path. */
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
/* From where this lookup got it: "ram" or the tier's name. Valid as long as the store. */
const char *store_pin_tier(const struct store_pin *p);
/* How a record came from the tier that this lookup got it from, clock_ns(): from when the tier was
 * asked, perhaps for another lookup, until the last part that has come. False: none was asked. */
struct store_load {
    uint64_t begin_ns, end_ns, bytes; /* of the whole record */
};
bool store_pin_load(const struct store_pin *p, struct store_load *ret);
/* Encodings behind other chunks that the record is the mean of (record_desc), once it has settled;
 * *ret_tokens (NULL: not wanted): of all these contexts. */
uint32_t store_pin_contexts(const struct store_pin *p, uint32_t *ret_tokens);
/* How sensitive each token is to its context: 1, ret [n] filled; 0 the record has no contexts. */
int store_pin_scores(const struct store_pin *p, float *ret);
/* Bytes that have yet to arrive. */
uint64_t store_pin_missing(const struct store_pin *p);
void store_pin_release(struct store_pin *p);
/* The same, and what is still to be loaded is not wanted: the load stops unless others hold it. */
void store_pin_cancel(struct store_pin *p);

#endif
