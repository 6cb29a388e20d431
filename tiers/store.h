/* store: chunk records across tiers. In this release one tier, RAM; slower ones come later
 * behind this same interface.
 *
 * Identity: tier_key() over model, tokenizer, rope regime, KV dtype, sink mode, namespace and token
 * ids; the ids are also in the record and compared on every look-up. A record is immutable but for
 * its scores (one float per token, filled in later). Budget is hard: a put that cannot make room by
 * evicting unpinned records in LRU order gives -ENOSPC and changes nothing.
 * Life cycle of a record: store_claim() (single-flight) → writer rows → store_commit() or
 * store_abort() → look-ups hand out pins → store_unpin().
 * Thread: any (one lock inside, never held over I/O or hashing of payload). */
#ifndef TIERS_STORE_H
#define TIERS_STORE_H

#include "base/err.h"
#include "kernels/kn.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tier_key {
    uint64_t hi, lo; /* printed as 32 hex digits, hi first */
};
enum tier_kind { TIER_CHUNK = 1, TIER_PREFIX = 2 };
struct tier_ident { /* what all keys of one model share */
    uint64_t model[2], tokenizer[2];
    uint32_t rope_regime; /* hash of the rope settings; K is stored un-rotated all the same */
    enum kn_dtype dtype;
    uint32_t sink_token; /* id the chunk was built behind; UINT32_MAX = none */
    uint32_t L, G, K;    /* layers 1…L-1 are stored */
};
/* Chunk: content only. Prefix: `parent` is the key of the block before it (NULL for the first). */
struct tier_key tier_key_chunk(const struct tier_ident *id, const char *ns, const int32_t *tok,
                               size_t n);
struct tier_key tier_key_prefix(const struct tier_ident *id, const char *ns,
                                const struct tier_key *parent, const int32_t *tok, size_t n);
void tier_key_hex(const struct tier_key *k, char ret[33]);
int tier_key_parse(const char *hex, struct tier_key *ret);

enum store_miss { /* why a look-up missed: metric label and report */
                  STORE_MISS_NEVER,
                  STORE_MISS_EVICTED,
                  STORE_MISS_TOKENS,
                  STORE_MISS_STALE,
                  STORE_MISS_CORRUPT,
                  STORE_MISS_BUILDING,
                  STORE_MISS_COUNT
};
const char *store_miss_name(enum store_miss m);

struct store;
struct store_opts {
    uint64_t ram_bytes; /* hard budget, bookkeeping included */
    struct tier_ident ident;
};
int store_create(const struct store_opts *o, struct store **ret, struct err *err);
void store_destroy(struct store *s);

/* ---- reading ---- */
struct store_pin; /* a look-up's hold on a record: it is not evicted while held */
/* 1 hit (*ret set), 0 miss (*ret_why set), <0 error. Verifies key and token ids. */
int store_lookup(struct store *s, const struct tier_key *k, const int32_t *tok, size_t n,
                 struct store_pin **ret, enum store_miss *ret_why);
bool store_probe(struct store *s, const struct tier_key *k); /* no LRU touch, no statistics */
/* K and V of a layer (1…L-1), [n, G, K] in the store's dtype; checked against its checksum the
 * first time a pin reads it. -EBADMSG: the record is dropped, the caller recomputes. */
int store_pin_layer(struct store_pin *p, unsigned layer, const void **ret_k, const void **ret_v);
const char *store_pin_tier(const struct store_pin *p);           /* "ram" */
int store_pin_scores(struct store_pin *p, float *ret /* [n] */); /* 1 filled, 0 not yet */
int store_set_scores(struct store *s, const struct tier_key *k, const float *score, size_t n);
void store_pin_release(struct store_pin *p);

/* ---- writing ---- */
struct store_writer;
/* 1 claimed (*ret set: the caller builds it), 0 somebody else has or builds it, -ENOSPC no room. */
int store_claim(struct store *s, enum tier_kind kind, const struct tier_key *k, const char *ns,
                const int32_t *tok, size_t n, struct store_writer **ret);
/* Where rows of a layer go: k, v [n, G, K] in the store's dtype; the caller writes them directly.
 */
void store_writer_layer(struct store_writer *w, unsigned layer, void **ret_k, void **ret_v);
int store_commit(struct store_writer *w); /* checksums, publishes; frees w */
void store_abort(struct store_writer *w);

/* ---- administration ---- */
struct store_info {
    struct tier_key key;
    enum tier_kind kind;
    uint32_t n_tokens;
    uint64_t size_bytes, hits;
    double created_s, used_s; /* wall clock */
    bool pinned, building, scored;
    char tier[8];
};
typedef int (*store_visit_fn)(void *ctx, const struct store_info *i); /* !=0 stops */
int store_visit(struct store *s, store_visit_fn fn, void *ctx);
int store_get_info(struct store *s, const struct tier_key *k, struct store_info *ret); /* 1/0 */
int store_set_pinned(struct store *s, const struct tier_key *k, bool pinned);          /* 1/0 */
int store_evict(struct store *s, const struct tier_key *k); /* 1 gone, 0 absent, -EBUSY pinned */
size_t store_clear(struct store *s, bool also_pinned);      /* records dropped */
struct store_stats {
    uint64_t used_bytes, budget_bytes, n_records, n_pinned;
    uint64_t hits, misses[STORE_MISS_COUNT], puts, put_refused, evictions, corrupt;
};
void store_get_stats(struct store *s, struct store_stats *ret);

#endif
