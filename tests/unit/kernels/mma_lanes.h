/* mma_lanes: every wrapper of kernels/cuda/mma.h, run by one warp of a device (nvcc) or of its
 * emulation (C++), with what each lane gives and gets; test_mma.c says what that has to be.
 *
 * The same source is two modules beside the test's program, one for each kind of device:
 * libmma_lanes_cuda.so, libmma_lanes_hostcuda.so. Thread: any, one at a time. */
#ifndef TESTS_UNIT_KERNELS_MMA_LANES_H
#define TESTS_UNIT_KERNELS_MMA_LANES_H

#include <stdint.h>

enum { MMA_LANES = 32, MMA_COPIES = 4 };

struct mma_given {                /* a multiple of 16 bytes: copies start at such addresses */
    uint32_t from[MMA_COPIES][4]; /* 16 bytes each */
    uint32_t a[4], b[2];          /* words of two bf16 */
    uint32_t row;                 /* of mma_warp.row, whose address the lane gives to ldmatrix */
    uint32_t there;               /* 0: instead of the second 16 there are none */
    float c[4];
    float pair[2], power[2];
    uint32_t codes; /* four int8 */
    uint32_t half;  /* an f16 */
    uint32_t first; /* so many bytes of the third 16 are copied */
    uint32_t word;  /* of `row` a word of shared memory */
};

struct mma_got {
    float c[4];                     /* += a b */
    uint32_t m[4], turned[4];       /* four 8 x 8 matrices */
    uint32_t copied[MMA_COPIES][4]; /* as soon as they may be looked at */
    uint32_t pair;                  /* two bf16 */
    float power[2];                 /* 2^power */
    uint32_t even, odd;             /* of codes, two bf16 each */
    float half;
    uint32_t word;
};

struct mma_warp {
    uint16_t row[MMA_LANES][8]; /* in shared memory, side by side */
    struct mma_given given[MMA_LANES];
    struct mma_got got[MMA_LANES];
};

/* On the first device. 0; -ENODEV there is none; -EIO it failed. */
typedef int mma_lanes_fn(struct mma_warp *w);
#ifdef __cplusplus
extern "C" __attribute__((visibility("default"))) mma_lanes_fn mma_lanes;
#endif

#endif
