/* tiers_ref: the plain loops that tiers are compared with, over the same bytes and in the same run.
 *
 * memcpy; a file read and written with O_DIRECT by io_uring (fixed buffers, 1 MiB operations, 16
 * reads or 4 writes under way: what saturates a drive with the least CPU); a plain hiredis client
 * (redisCommand HGET and HSET of 1 MiB values, one after another on a connection: the server is to
 * do the same for both). Like the tier it has to bring the bytes to where they are wanted, so what
 * HGET answers is copied to `dst`. Short I/O is an error.
 * Thread: main; a hiredis run with several connections makes threads of its own. */
#ifndef TOOLS_BENCH_TIERS_REF_H
#define TOOLS_BENCH_TIERS_REF_H

#include "base/err.h"
#include "tools/bench/tiers_set.h"

enum { REF_OP_BYTES = 1 << 20, REF_READ_DEPTH = 16, REF_WRITE_DEPTH = 4 };

struct bench_cost ref_memcpy(const struct bench_set *s);

/* The file at `path` is created, preallocated and unlinked at once. -ENOTSUP where the file system
 * has no O_DIRECT or the kernel refuses io_uring. */
struct ref_file;
int ref_file_create(const char *path, const struct bench_set *s, struct ref_file **ret,
                    struct err *err);
void ref_file_destroy(struct ref_file *f);
int ref_file_move(struct ref_file *f, bool write, struct bench_cost *ret);

/* At a unix socket (path starts with '/') or at a port of 127.0.0.1. */
struct ref_redis;
int ref_redis_create(const char *path, uint16_t port, unsigned n_connections,
                     const struct bench_set *s, struct ref_redis **ret, struct err *err);
void ref_redis_destroy(struct ref_redis *r);
int ref_redis_clear(
    struct ref_redis *r); /* the keys are gone, so that the next values are new ones */
int ref_redis_move(struct ref_redis *r, bool write, struct bench_cost *ret);

#endif
