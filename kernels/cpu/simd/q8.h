/* q8: rows of KN_Q8 (types.h) as vectors of f32: codes, and what one of them stands for.
 * Thread: any. */
#ifndef KERNELS_CPU_SIMD_Q8_H
#define KERNELS_CPU_SIMD_Q8_H

#include "kernels/cpu/simd/vec_load.h"

/* The first n of VL codes, which are all that is read; zeros behind them. */
VF_INLINE vf q8_loadn(const int8_t *q, size_t n)
{
    int8_t part[VL] = {0};
    memcpy(part, q, n);
    return vf_from_i8(part);
}

/* The steps of VL keys: what a code of each is times. */
VF_INLINE vf q8_steps(const uint16_t *top)
{
    return vf_div(vf_from_f16(top), vf_set1(127.0f));
}

#endif
