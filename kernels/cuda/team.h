/* team: the GPUs of a group that add up what each has a part of.
 *
 * team_create() → team_sum() … → team_destroy(), before the devices go. Whatever NCCL refuses is
 * -EIO: nothing says which errors leave the others waiting. Thread: that of the group's runs. */
#ifndef KERNELS_CUDA_TEAM_H
#define KERNELS_CUDA_TEAM_H

#include "kernels/cuda/launch.h"
#include "kernels/kn.h"

struct kn_team;
/* cu[i] is device index[i]. -ENOTSUP: there is no NCCL; -ENODEV: it cannot join these. */
int team_create(struct cu *const *cu, const int *index, unsigned n, struct kn_team **ret,
                struct err *err);
void team_destroy(struct kn_team *t); /* accepts NULL */
/* x[i] [n] on device i becomes the sum of all, queued on every device's stream. */
int team_sum(struct kn_team *t, float *const *x, size_t n);

#endif
