/* tiers_set: a set of sealed records of random data, and the ways to move it somewhere and back.
 *
 * Memory of equal size: `src` holds the records as they are written, `dst` is where they are read
 * to; each record's parts stand end to end, so that a plain loop can move the same bytes as one
 * run. A way is a tier, the store's RAM, or a reference: a loop as one writes it by hand for the
 * same place. What arrived is compared outside the timed part, and nothing counts that differs.
 * Thread: main; callbacks of a tier only note what they are told. */
#ifndef TOOLS_BENCH_TIERS_SET_H
#define TOOLS_BENCH_TIERS_SET_H

#include "base/mem.h"
#include "tiers/tier.h"

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
    struct arena arena;             /* of key, tok and the parts' addresses */
};
enum { BENCH_INFLIGHT = 6 }; /* records that a tier gets at once, as the chunks of a request */
/* As many records as fit into `bytes`, at least BENCH_INFLIGHT; the same ones each time. With a
 * secret they carry tags, which are checked instead of the groups' checksums. */
int bench_set_create(const struct tier_ident *ident, uint32_t n_tokens, uint64_t bytes,
                     const char *secret, struct bench_set *ret);
void bench_set_fini(struct bench_set *s);
/* dst equals src bit for bit, or but for the headers: 0 or -EBADMSG. */
int bench_set_same(const struct bench_set *s, bool headers);

struct bench_cost {       /* of the whole set */
    double wall_s, cpu_s; /* of this process, all its threads */
};
struct bench_load { /* of one record alone, as a request waits for it: clock_ns() when */
    uint64_t begin_ns;
    uint64_t first_ns;    /* its first layers are here */
    uint64_t all_ns;      /* all are */
    uint64_t verified_ns; /* all are checked, too: each group as its part arrives */
};
struct bench_way;
/* What is written was not there before; what is read is compared with what was written. */
int bench_way_run(struct bench_way *w, bool write, struct bench_cost *ret);
int bench_way_load(struct bench_way *w, size_t i, struct bench_load *ret); /* a tier or RAM */
void bench_way_destroy(struct bench_way *w);

int bench_way_tier(const struct bench_set *s, struct tier *t, struct bench_way **ret);
/* The store's RAM. Write: claim, fill, commit. Read: look up, copy every layer out. */
int bench_way_ram(const struct bench_set *s, struct bench_way **ret, struct err *err);
int bench_way_memcpy(const struct bench_set *s, struct bench_way **ret);
enum { BENCH_OP_BYTES = 1 << 20 }; /* of the two below */
/* A file, made at `path`, preallocated and unlinked at once, by O_DIRECT and io_uring (fixed
 * buffers, 16 reads or 4 writes under way: what saturates a drive with the least CPU). -ENOTSUP:
 * the file system or the kernel refuses. */
int bench_way_file(const struct bench_set *s, const char *path, struct bench_way **ret,
                   struct err *err);
/* A plain hiredis client, at a unix socket or (NULL) a port of 127.0.0.1: redisCommand HGET and
 * HSET, one after another. Like a tier it brings the bytes to where they are wanted. */
int bench_way_redis(const struct bench_set *s, const char *socket, uint16_t port,
                    struct bench_way **ret, struct err *err);

#endif
