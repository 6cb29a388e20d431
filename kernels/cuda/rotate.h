/* rotate: rotary embedding of values on their way, by all kernels with the same operations in the
 * same order: a row has the same bits wherever it was rotated. Thread: any. */
#ifndef KERNELS_CUDA_ROTATE_H
#define KERNELS_CUDA_ROTATE_H

#include "kernels/cuda/operand.h"

/* Value d of a rotated head; x(i) is its value i before. */
template <class F>
static __device__ __forceinline__ float rotated(const struct kn_rope &p, int32_t pos, size_t d, F x)
{
    const size_t half = p.n_rot / 2;
    if (d >= p.n_rot) return x(d);
    const bool lower = d < half;
    const size_t i = lower ? d : d - half, at = size_t(pos) * half + i;
    const float other = x(lower ? d + half : i);
    return fmaf(lower ? -other : other, p.sin[at], x(d) * p.cos[at]) * p.mscale;
}

/* Is row `row` rotated to a place that the tables have, if it is rotated? */
static __device__ __forceinline__ bool rotates(const struct cu_rotation &to, size_t row)
{
    if (to.rope.n_rot == 0) return true;
    const int32_t pos = to.pos[row];
    return pos >= 0 && size_t(pos) < to.rope.pos_cap;
}

/* Values i … i+3 of both halves, d and half values apart, of a head that is rotated as a whole. */
static __device__ __forceinline__ void rotate_four(const struct kn_rope &p, size_t at, size_t n,
                                                   bool wide, cu_four *a, cu_four *b)
{
    const cu_four c = cu_four_at(p.cos, at, n, wide), s = cu_four_at(p.sin, at, n, wide);
    CU_UNROLL
    for (unsigned i = 0; i < 4; i++) {
        const float x = a->v[i], y = b->v[i];
        a->v[i] = fmaf(-y, s.v[i], x * c.v[i]) * p.mscale;
        b->v[i] = fmaf(x, s.v[i], y * c.v[i]) * p.mscale;
    }
}

#endif
