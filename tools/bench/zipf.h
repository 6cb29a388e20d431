/* zipf: which of n things a request names: the i-th is asked for i^-skew times as often as the
 * first. The same for the same generator. Thread: one. */
#ifndef TOOLS_BENCH_ZIPF_H
#define TOOLS_BENCH_ZIPF_H

#include "base/rng.h"

#include <stdint.h>

struct zipf {
    double *sum; /* [n] of the weights up to each */
    uint32_t n;
};
int zipf_init(struct zipf *z, uint32_t n, double skew); /* 0 or -ENOMEM */
void zipf_fini(struct zipf *z);
uint32_t zipf_draw(const struct zipf *z, struct rng *r);
/* k different ones, k <= n: one that was drawn before gives way to the next in number. */
void zipf_draw_distinct(const struct zipf *z, struct rng *r, unsigned k, uint32_t *ret);

#endif
