/* rate: how fast the chosen GEMM is on packed weights: rounds over all of them, all threads by
 * blocks of rows as in a prefill. Thread: that of kn_rows(). */
#ifndef KERNELS_RATE_H
#define KERNELS_RATE_H

#include "kernels/kn.h"

struct kn_rate;
/* The weights, all ready, are borrowed. -EINVAL: there are none. */
int kn_rate_create(struct kn_dev *d, struct kn_mat *const *mats, size_t n, size_t rows,
                   struct kn_rate **ret);
void kn_rate_destroy(struct kn_rate *r); /* accepts NULL */
struct kn_round {
    double wall_s;
    double cpu_s; /* of all threads of the CPU's: blind to other load on the machine */
};
int kn_rate_round(struct kn_rate *r, struct kn_round *ret);
double kn_rate_flops(const struct kn_rate *r); /* of a round */

/* The best of some rounds in GFLOP/s, 0: none. A bench's ceiling. */
double kn_dev_gemm_gflops(struct kn_dev *d, struct kn_mat *const *mats, size_t n, size_t rows);

#endif
