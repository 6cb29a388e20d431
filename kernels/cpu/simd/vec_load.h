/* vec_load: small whole numbers and halves of memory as vectors of f32, exactly; at any address.
 * Thread: any. */
#ifndef KERNELS_CPU_SIMD_VEC_LOAD_H
#define KERNELS_CPU_SIMD_VEC_LOAD_H

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

/* VL int8. */
VF_INLINE vf vf_from_i8(const void *p)
{
#if KN_SIMD == 512
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p)));
#elif KN_SIMD == 256
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p)));
#elif KN_SIMD == 128
    int32_t four;
    memcpy(&four, p, sizeof four);
    const int16x8_t w = vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four)));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(w)));
#else
    const int8_t *q = p;
    return (vf){q[0], q[1], q[2], q[3]};
#endif
}

/* VL f16. */
VF_INLINE vf vf_from_f16(const void *p)
{
#if KN_SIMD == 512
    return _mm512_cvtph_ps(_mm256_loadu_si256(p));
#elif KN_SIMD == 256
    return _mm256_cvtph_ps(_mm_loadu_si128(p));
#elif KN_SIMD == 128
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
#else
    uint16_t h[VL];
    memcpy(h, p, sizeof h);
    return (vf){f16_to_f32(h[0]), f16_to_f32(h[1]), f16_to_f32(h[2]), f16_to_f32(h[3])};
#endif
}

/* VL bf16. */
VF_INLINE vf vf_from_bf16(const void *p)
{
    float x[VL];
    for (size_t i = 0; i < VL; i++) {
        uint32_t bits = 0;
        memcpy((uint8_t *)&bits + 2, (const uint8_t *)p + 2 * i, 2);
        memcpy(&x[i], &bits, sizeof bits);
    }
    return vf_load(x);
}

#endif
