/* store_admin: what operators and metrics ask of a store: listing, pins, removal, limits, figures.
 *
 * `tier` is "ram", a tier's name, or NULL for all of them. Thread: any; what waits says so. */
#ifndef TIERS_STORE_ADMIN_H
#define TIERS_STORE_ADMIN_H

#include "tiers/store.h"

struct store_info {
    struct tier_key key;
    enum tier_kind kind;
    uint32_t n_tokens;
    uint64_t size_bytes, hits, ns_hash;
    double created_s, used_s, expires_s; /* wall clock; expires 0 = never */
    bool pinned, building, side;         /* side: it has a sidecar */
    /* Of the copy in RAM; else as the store's, and 0: */
    enum kn_dtype dtype;
    uint32_t n_contexts, context_tokens; /* as record_desc */
    char tier[16];                       /* the fastest that has it */
    char tiers[48];                      /* all local ones, "ram,nvme" */
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
/* The same of these, in their order, from wherever they are, remote tiers as well: key, n_tokens
 * and size_bytes of each count. At most `most` are asked for. */
long store_preload_these(struct store *s, const struct store_info *these, size_t n, size_t most);
/* To that tier, and out of those that are faster: into RAM from where it is, or from RAM once the
 * tier has it. Waits, until_ns at the longest (clock_ns()). 1; 0 no tier has it; -EINVAL not such a
 * tier, or a direct one; -EBUSY pinned or in use: a faster one keeps it; -ENOSPC no room, or the
 * tier does not take it; -EIO, -ETIMEDOUT. */
int store_move(struct store *s, const struct tier_key *k, const char *tier, uint64_t until_ns);
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
/* What namespaces have in RAM and the local tiers, and may have there. Those with neither a record
 * nor a cap are not known. */
struct store_space {
    uint64_t ns_hash;
    struct store_space_at {
        uint64_t n_records, bytes, cap_bytes; /* cap 0: none */
    } at[1 + STORE_TIERS_MAX];                /* RAM, then the tiers, of which remote ones list
                                                 nothing */
};
/* [*ret_n] by hash, the caller's to mem_free(); 0, -ENOMEM or as a tier says. */
int store_spaces(struct store *s, struct store_space **ret, size_t *ret_n);
void store_set_ttl(struct store *s, const char *ns, uint64_t ttl_ms); /* of records to come */
/* Wait for write-behind to be done; 0 = however long it takes. -ETIMEDOUT. */
int store_flush(struct store *s, uint64_t deadline_ns);

struct store_stats { /* of RAM and of lookups */
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
    uint64_t hits, hit_bytes; /* lookups served from here */
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
