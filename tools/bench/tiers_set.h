/* tiers_set: a set of sealed records of random data, and moving them through a tier's ops.
 *
 * Two mappings of equal size: `src` holds the records as they are written, `dst` is where they are
 * read to; each record's parts stand end to end, so that a reference can move the same bytes as one
 * run. What arrived is verified outside the timed parts. Nothing here knows which tier it is.
 * Thread: main; callbacks of the tier only count. */
#ifndef TOOLS_BENCH_TIERS_SET_H
#define TOOLS_BENCH_TIERS_SET_H

#include "tiers/tier.h"

#include <stddef.h>

struct bench_set {
    struct tier_ident ident;
    struct record_layout layout;
    size_t n; /* records */
    uint32_t n_tokens;
    uint64_t bytes; /* of all records */
    struct tier_key *key;
    int32_t *tok;                   /* [n, n_tokens] */
    uint8_t *src, *dst;             /* [n * layout.record_bytes] */
    uint8_t **src_part, **dst_part; /* [n, layout.n_parts] */
    struct auth *auth;              /* NULL: checksums alone */
};
/* As many records as fit into `bytes`, at least `n_min`. Random, the same for the same seed. */
int bench_set_create(const struct tier_ident *ident, uint32_t n_tokens, uint64_t bytes,
                     size_t n_min, uint64_t seed, struct bench_set *ret);
/* From now on with tags, as under that secret: checked instead of the groups' checksums. */
int bench_set_sign(struct bench_set *s, const char *secret);
void bench_set_fini(struct bench_set *s);
void bench_set_poison(struct bench_set *s); /* dst, so that only what arrives verifies */
/* Every byte of dst as of a record that arrived: header, token ids, every group. 0 or -EBADMSG;
 * *ret_s: what the checksums alone took. */
int bench_set_verify(const struct bench_set *s, double *ret_s);
int bench_set_same(const struct bench_set *s); /* dst equals src bit for bit: 0 or -EBADMSG */

struct bench_cost {
    double wall_s, cpu_s; /* of this process, all its threads */
};
struct bench_watch {
    double wall_s, cpu_s;
};
void bench_watch_start(struct bench_watch *w);
struct bench_cost bench_watch_stop(const struct bench_watch *w);

/* All records once, `inflight` at a time, in order. */
int bench_set_move(const struct bench_set *s, struct tier *t, bool write, size_t inflight,
                   struct bench_cost *ret);
/* Load record i alone while a reader checks every group as its part arrives, as a request does. */
struct bench_load {
    double first_s;    /* until its first layers are here */
    double all_s;      /* until all are */
    double verified_s; /* until all are checked, too */
};
int bench_set_load(const struct bench_set *s, struct tier *t, size_t i, struct bench_load *ret);

#endif
