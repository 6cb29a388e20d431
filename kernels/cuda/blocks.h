/* blocks: a device's memory as its users ask for it. What they give back is kept for the next
 * request of about its size, until memory is short: in steady state nothing is allocated.
 *
 * blocks_init() → blocks_alloc(), blocks_free(), and for scratch, which is not kept, blocks_take()
 * and blocks_drop() → blocks_fini(), before the device is closed. Thread: one at a time; the counts
 * any. */
#ifndef KERNELS_CUDA_BLOCKS_H
#define KERNELS_CUDA_BLOCKS_H

#include "kernels/cuda/launch.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct block;
struct blocks {
    struct cu *cu;
    const bool *recording; /* while it is set nothing is given back to the device, which waits */
    struct block *first;
    _Atomic uint64_t n_allocs, held[KN_MEMS]; /* requests to the device; bytes, by enum kn_mem */
};
void blocks_init(struct blocks *b, struct cu *cu, const bool *recording);
void blocks_fini(struct blocks *b); /* nobody uses one any more; accepts zeroed memory */
void *blocks_alloc(struct blocks *b, enum kn_mem kind, size_t bytes); /* cleared; NULL */
void blocks_free(struct blocks *b, void *p);
/* The device's own answer: NULL, after all that is spare was given up. */
void *blocks_take(struct blocks *b, enum kn_mem kind, size_t bytes);
void blocks_drop(struct blocks *b, void *p, enum kn_mem kind, size_t bytes);

#endif
