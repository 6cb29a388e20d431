/* vec: one vector of f32 in the widest registers of the instruction set a file is compiled for.
 *
 * The files of this folder are compiled once per instruction set (KN_SIMD = 512, 256, 128 for
 * NEON, or 0), so a kernel is written once. One set always gives the same bits, two need not agree:
 * in the portable build vf_fma() is a product, then a sum. exp2 is a polynomial of degree 6 on
 * [-1/2, 1/2] (coefficients of Cephes exp2f, relative error below 2e-7 = about 2 ulp); arguments
 * below -126 give exactly 0, -inf included, and 0 gives 1. Thread: any. */
#ifndef KERNELS_CPU_SIMD_VEC_H
#define KERNELS_CPU_SIMD_VEC_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define VF_INLINE static inline __attribute__((always_inline))

#if KN_SIMD == 512
#include <immintrin.h>
enum { VL = 16 };
typedef __m512 vf;
#define vf_set1(x) _mm512_set1_ps(x)
#define vf_load(p) _mm512_loadu_ps(p)
#define vf_store(p, v) _mm512_storeu_ps(p, v)
#define vf_add(a, b) _mm512_add_ps(a, b)
#define vf_sub(a, b) _mm512_sub_ps(a, b)
#define vf_mul(a, b) _mm512_mul_ps(a, b)
#define vf_div(a, b) _mm512_div_ps(a, b)
#define vf_max(a, b) _mm512_max_ps(a, b)
#define vf_min(a, b) _mm512_min_ps(a, b)
#define vf_fma(a, b, c) _mm512_fmadd_ps(a, b, c)
#define vf_round(a) _mm512_roundscale_ps(a, 0)
#define vf_loadn(p, n) _mm512_maskz_loadu_ps((__mmask16)((1u << (n)) - 1u), p)
#define vf_storen(p, v, n) _mm512_mask_storeu_ps(p, (__mmask16)((1u << (n)) - 1u), v)
/* a where the lane index is below n, else b; n may be negative or above VL */
VF_INLINE vf vf_below(vf a, vf b, int n)
{
    unsigned bits = n <= 0 ? 0u : n >= VL ? 0xffffu : (1u << n) - 1u;
    return _mm512_mask_blend_ps((__mmask16)bits, b, a);
}
/* p * 2^n where x >= -126, else 0 */
VF_INLINE vf vf_scale2(vf p, vf n, vf x)
{
    __mmask16 live = _mm512_cmp_ps_mask(x, vf_set1(-126.0f), _CMP_NLT_UQ);
    return _mm512_maskz_scalef_ps(live, p, n);
}
VF_INLINE float vf_hmax(vf v)
{
    return _mm512_reduce_max_ps(v);
}
#elif KN_SIMD == 256
#include <immintrin.h>
enum { VL = 8 };
typedef __m256 vf;
#define vf_set1(x) _mm256_set1_ps(x)
#define vf_load(p) _mm256_loadu_ps(p)
#define vf_store(p, v) _mm256_storeu_ps(p, v)
#define vf_add(a, b) _mm256_add_ps(a, b)
#define vf_sub(a, b) _mm256_sub_ps(a, b)
#define vf_mul(a, b) _mm256_mul_ps(a, b)
#define vf_div(a, b) _mm256_div_ps(a, b)
#define vf_max(a, b) _mm256_max_ps(a, b)
#define vf_min(a, b) _mm256_min_ps(a, b)
#define vf_fma(a, b, c) _mm256_fmadd_ps(a, b, c)
#define vf_round(a) _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
VF_INLINE __m256i vf_mask(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
#define vf_loadn(p, n) _mm256_maskload_ps(p, vf_mask((int)(n)))
#define vf_storen(p, v, n) _mm256_maskstore_ps(p, vf_mask((int)(n)), v)
VF_INLINE vf vf_below(vf a, vf b, int n)
{
    return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(vf_mask(n)));
}
VF_INLINE vf vf_scale2(vf p, vf n, vf x)
{
    vf dead = _mm256_cmp_ps(x, vf_set1(-126.0f), _CMP_LT_OQ);
    __m256i e = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    e = _mm256_add_epi32(_mm256_castps_si256(p), e); /* 2^x, x >= -126, is normal */
    return _mm256_andnot_ps(dead, _mm256_castsi256_ps(e));
}
VF_INLINE float vf_hmax(vf v)
{
    __m128 a = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(a, _mm_shuffle_ps(a, a, 1)));
}
#elif KN_SIMD == 128
#include "kernels/cpu/simd/vec_neon.h"
#else
#include "kernels/cpu/simd/vec_portable.h"
#endif
#if KN_SIMD < 256
VF_INLINE vf vf_loadn(const float *p, size_t n)
{
    vf v = {0};
    memcpy(&v, p, n * sizeof(float));
    return v;
}
VF_INLINE void vf_storen(float *p, vf v, size_t n)
{
    memcpy(p, &v, n * sizeof(float));
}
#endif

/* Sum of the lanes in one fixed order: halves are folded onto each other. */
VF_INLINE float vf_hsum(vf v)
{
    float t[4]; /* not all: gcc 12 stores 64 bytes as aligned, which ASan's frames are not */
    for (int i = 0; i < 4; i++)
        t[i] = VL == 16  ? (v[i] + v[(i + 8) % VL]) + (v[(i + 4) % VL] + v[(i + 12) % VL])
               : VL == 8 ? v[i] + v[(i + 4) % VL]
                         : v[i];
    return (t[0] + t[2]) + (t[1] + t[3]);
}

#if KN_SIMD >= 256
/* The largest of each of eight vectors, in the first lanes. */
VF_INLINE vf vf_tops(const vf x[8])
{
#if KN_SIMD == 512
#define LANES_OF(i, j, k, l)                                                                       \
    i, j, k, l, i + 4, j + 4, k + 4, l + 4, i + 8, j + 8, k + 8, l + 8, i + 12, j + 12, k + 12,    \
        l + 12
#define QUADS_OF(i)                                                                                \
    i, i + 1, i + 2, i + 3, i + 8, i + 9, i + 10, i + 11, i + 16, i + 17, i + 18, i + 19, i + 24,  \
        i + 25, i + 26, i + 27
#else
#define LANES_OF(i, j, k, l) i, j, k, l, i + 4, j + 4, k + 4, l + 4
#define QUADS_OF(i) i, i + 1, i + 2, i + 3, i + 8, i + 9, i + 10, i + 11
#endif
#define MAX_OF(a, b, i, j)                                                                         \
    vf_max(__builtin_shufflevector(a, b, i), __builtin_shufflevector(a, b, j))
#define ONES_OF(i) LANES_OF(i, VL + (i), (i) + 1, VL + (i) + 1)
#define TWOS_OF(i) LANES_OF(i, (i) + 1, VL + (i), VL + (i) + 1)
    vf two[4], four[2];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        two[i] = MAX_OF(x[2 * i], x[2 * i + 1], ONES_OF(0), ONES_OF(2));
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        four[i] = MAX_OF(two[2 * i], two[2 * i + 1], TWOS_OF(0), TWOS_OF(2));
    const vf all = MAX_OF(four[0], four[1], QUADS_OF(0), QUADS_OF(4));
    return KN_SIMD == 512 ? MAX_OF(all, all, QUADS_OF(0), QUADS_OF(4)) : all;
#undef LANES_OF
#undef QUADS_OF
#undef MAX_OF
#undef ONES_OF
#undef TWOS_OF
}
#endif

/* by * 2^r for |r| <= 1/2. */
VF_INLINE vf vf_poly2(const float by, vf r)
{
    vf p = vf_set1(by * 1.535336188319500e-4f);
    p = vf_fma(p, r, vf_set1(by * 1.339887440266574e-3f));
    p = vf_fma(p, r, vf_set1(by * 9.618437357674640e-3f));
    p = vf_fma(p, r, vf_set1(by * 5.550332471162809e-2f));
    p = vf_fma(p, r, vf_set1(by * 2.402264791363012e-1f));
    p = vf_fma(p, r, vf_set1(by * 6.931472028550421e-1f));
    return vf_fma(p, r, vf_set1(by));
}
/* by * 2^x, below 2^128, by >= 1; 0 where x is below -126. */
VF_INLINE vf vf_times_exp2(const float by, vf x)
{
    vf n = vf_round(x);
    return vf_scale2(vf_poly2(by, vf_sub(x, n)), n, x);
}
/* 2^x, x <= 127. */
VF_INLINE vf vf_exp2(vf x)
{
    return vf_times_exp2(1, x);
}
/* e^x, clamped to normal f32; the product with log2(e) is split: the error grows not with |x|. */
VF_INLINE vf vf_exp(vf x)
{
    const float l2e = 1.44269504088896341f;
    x = vf_min(vf_max(x, vf_set1(-87.0f)), vf_set1(88.0f));
    vf n = vf_round(vf_mul(x, vf_set1(l2e)));
    vf r = vf_fma(n, vf_set1(-0.693359375f), x);
    r = vf_fma(n, vf_set1(2.12194440e-4f), r);
    return vf_scale2(vf_poly2(1, vf_mul(r, vf_set1(l2e))), n, n);
}

#endif
