/* places: the slower tiers that a benchmark measures, made for one run and gone after it.
 *
 * NVMe: a file in the working directory (or what --nvme names). Redis: a private server on a unix
 * socket and a port of 127.0.0.1, without persistence (or the server that --redis names). GPU:
 * emulated in host memory where there is none. What is not there is left out and said so.
 * Thread: main. */
#ifndef TOOLS_BENCH_PLACES_H
#define TOOLS_BENCH_PLACES_H

#include "base/err.h"
#include "base/opt.h"
#include "tools/bench/child.h"
#include "tools/bench/tiers_set.h"

struct places {
    const struct opts *opts;
    char note[256]; /* what place_open() opened, or why it did not */
    pid_t server;
    char dir[CHILD_PATH_MAX], socket[CHILD_PATH_MAX + 16]; /* the server's */
    uint16_t port;
    struct kn_dev *dev; /* a GPU; NULL: gpu is emulated */
    struct gpu *gpu;
};
void places_init(struct places *p, const struct opts *opts);
void places_fini(struct places *p); /* after the tiers */

/* gpu, nvme, redis (over TCP) or redis-unix: 1 a new tier of that size, if no option says another;
 * 0 there is none; <0. `record_bytes`: of one, as far as known (else 0). */
int place_open(struct places *p, const char *name, uint64_t capacity_bytes, uint64_t record_bytes,
               struct tier **ret, struct err *err);
/* What the tier opened by that name is compared with, in the same place. Beside what an option
 * names there is nothing: *ret stays as it is. */
int place_reference(struct places *p, const char *name, const struct bench_set *s,
                    struct bench_way **ret, struct err *err);

#endif
