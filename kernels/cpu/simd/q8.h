/* q8: rows of KN_Q8 (types.h) as vectors of f32: codes, and what one of them stands for.
 * Thread: any. */
#ifndef KERNELS_CPU_SIMD_Q8_H
#define KERNELS_CPU_SIMD_Q8_H

#include "kernels/cpu/simd/vec.h"

#include <stddef.h>

VF_INLINE float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, mag = h & 0x7fffu, u;
    if (mag >= 0x7c00u) {
        u = sign | 0x7f800000u | ((mag & 0x3ffu) << 13);
        if (mag > 0x7c00u) u |= 0x400000u;
    } else if (mag >= 0x400u) {
        u = sign | ((mag << 13) + 0x38000000u);
    } else {
        float f = (float)mag * 0x1p-24f;
        memcpy(&u, &f, 4);
        u |= sign;
    }
    float out;
    memcpy(&out, &u, 4);
    return out;
}

/* VL codes. */
VF_INLINE vf q8_load(const int8_t *q)
{
#if KN_SIMD == 512
    const __m128i b = _mm_loadu_si128((const __m128i *)(const void *)q);
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(b));
#elif KN_SIMD == 256
    const __m128i b = _mm_loadl_epi64((const __m128i *)(const void *)q);
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b));
#elif KN_SIMD == 128
    int32_t four;
    memcpy(&four, q, sizeof four);
    const int16x8_t w = vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four)));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(w)));
#else
    return (vf){q[0], q[1], q[2], q[3]};
#endif
}

/* The first n of them, which are all that is read; zeros behind them. */
VF_INLINE vf q8_loadn(const int8_t *q, size_t n)
{
    int8_t part[VL] = {0};
    memcpy(part, q, n);
    return q8_load(part);
}

/* The steps of VL keys: what a code of each is times. */
VF_INLINE vf q8_steps(const uint16_t *top)
{
#if KN_SIMD == 512
    const vf m = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)top));
#elif KN_SIMD == 256
    const vf m = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)top));
#elif KN_SIMD == 128
    const vf m = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(top)));
#else
    const vf m = {f16_to_f32(top[0]), f16_to_f32(top[1]), f16_to_f32(top[2]), f16_to_f32(top[3])};
#endif
    return vf_div(m, vf_set1(127.0f));
}

#endif
