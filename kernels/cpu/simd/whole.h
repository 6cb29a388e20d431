/* whole: vectors of int32, and sums of whole numbers on their way to C. Included behind vec.h.
 * Thread: any. */
#ifndef KERNELS_CPU_SIMD_WHOLE_H
#define KERNELS_CPU_SIMD_WHOLE_H

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd/codes_step.h"

typedef int32_t whole __attribute__((vector_size(VL * 4)));
#if KN_SIMD == 512
#define whole_load(p) ((whole)_mm512_loadu_si512(p))
#define whole_store(p, x) _mm512_storeu_si512(p, (__m512i)(x))
#define whole_set1(x) ((whole)_mm512_set1_epi32(x))
#define whole_max(a, b) ((whole)_mm512_max_epi32((__m512i)(a), (__m512i)(b)))
#define whole_vf(x) _mm512_cvtepi32_ps((__m512i)(x))
#define whole_from_i16(p) ((whole)_mm512_cvtepi16_epi32(_mm256_loadu_si256((const void *)(p))))
#elif KN_SIMD == 128
#define whole_load(p) ((whole)vld1q_s8((const int8_t *)(p)))
#define whole_store(p, x) vst1q_s32(p, (int32x4_t)(x))
#define whole_set1(x) ((whole)vdupq_n_s32(x))
#define whole_max(a, b) ((whole)vmaxq_s32((int32x4_t)(a), (int32x4_t)(b)))
#define whole_vf(x) vcvtq_f32_s32((int32x4_t)(x))
#else
#define whole_load(p) ((whole)_mm256_loadu_si256((const void *)(p)))
#define whole_store(p, x) _mm256_storeu_si256((void *)(p), (__m256i)(x))
#define whole_set1(x) ((whole)_mm256_set1_epi32(x))
#define whole_max(a, b) ((whole)_mm256_max_epi32((__m256i)(a), (__m256i)(b)))
#define whole_vf(x) _mm256_cvtepi32_ps((__m256i)(x))
#define whole_from_i16(p) ((whole)_mm256_cvtepi16_epi32(_mm_loadu_si128((const void *)(p))))
#endif

/* The largest of a vector. */
VF_INLINE int32_t whole_top(whole x)
{
#if KN_SIMD == 512
    return _mm512_reduce_max_epi32((__m512i)x);
#elif KN_SIMD == 128
    return vmaxvq_s32((int32x4_t)x);
#else
    __m128i y =
        _mm_max_epi32(_mm256_castsi256_si128((__m256i)x), _mm256_extracti128_si256((__m256i)x, 1));
    y = _mm_max_epi32(y, _mm_shuffle_epi32(y, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(y, _mm_shuffle_epi32(y, 0xb1)));
#endif
}

/* The bits of the largest magnitude of n values; more than infinity's where one is no number. */
VF_INLINE int32_t whole_top_of(const float *x, size_t n)
{
    whole bits = whole_set1(0);
    size_t i = 0;
    for (; i + VL <= n; i += VL)
        bits = whole_max(bits, (whole)vf_load(x + i) & INT32_MAX);
    if (i < n) bits = whole_max(bits, (whole)vf_loadn(x + i, n - i) & INT32_MAX);
    return whole_top(bits);
}

/* The float of these bits, a largest magnitude: at least what a number can be divided by. What is
 * no number stays. */
VF_INLINE float whole_magnitude(int32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x < 0x1p-100f ? 0x1p-100f : x;
}
/* x * by as whole numbers, in the lower halves of words: 1.5 * 2^23 puts them there. */
VF_INLINE whole whole_rounded(vf x, vf by)
{
    return (whole)vf_fma(x, by, vf_set1(0x1.8p23f));
}
/* The lowest bytes of four vectors' words, one of each in a word. */
VF_INLINE whole whole_bytes(const whole x[4])
{
    return (x[0] & 0xff) | (x[1] & 0xff) << 8 | (x[2] & 0xff) << 16 | x[3] << 24;
}
/* The lower halves of all words. */
VF_INLINE void whole_store_halves(uint32_t *to, whole x)
{
#if KN_SIMD == 512
    _mm256_storeu_si256((void *)to, _mm512_cvtepi32_epi16((__m512i)x));
#elif KN_SIMD == 128
    vst1_s16((int16_t *)(void *)to, vmovn_s32((int32x4_t)x));
#else
    const __m256i low = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 0, 1, 4, 5, 8, 9, 12, 13, 0, 1,
                                         4, 5, 8, 9, 12, 13, 0, 1, 4, 5, 8, 9, 12, 13);
    x = (whole)_mm256_permute4x64_epi64(_mm256_shuffle_epi8((__m256i)x, low), 8);
    _mm_storeu_si128((void *)to, _mm256_castsi256_si128((__m256i)x));
#endif
}

/* Sums [R][NR] of columns [at, at + VL), or as many as there are, times what a row's and a column's
 * numbers stand for, to C. */
struct whole_sums {
    const int32_t *sum;
    const float *row_scale; /* [R] */
    const float *scale;     /* [VL] */
    const float *bias;      /* [n], or NULL */
    bool load;              /* go on from C */
};
VF_INLINE void whole_add(const struct kn_gemm_job *j, size_t row, unsigned R, size_t at,
                         const struct whole_sums s)
{
    if (at >= j->n) return;
    const size_t n = j->n - at < VL ? j->n - at : VL;
    const vf scale = vf_load(s.scale), bias = s.bias ? vf_loadn(s.bias + at, n) : vf_set1(0);
    float *c = j->c + row * j->ldc + at;
    for (size_t r = 0; r < R; r++, c += j->ldc) {
        const vf by = vf_mul(vf_set1(s.row_scale[r]), scale);
        vf to = bias;
        if (s.load) to = vf_add(n < VL ? vf_loadn(c, n) : vf_load(c), bias);
        to = vf_fma(whole_vf(whole_load(s.sum + r * NR)), by, to);
        if (n < VL)
            vf_storen(c, to, n);
        else
            vf_store(c, to);
    }
}

/* Columns of vector v of panel p that there are. */
VF_INLINE size_t sums_width(const struct kn_gemm_job *j, size_t p, size_t v)
{
    const size_t at = p * NR + v * VL, left = at < j->n ? j->n - at : 0;
    return left < VL ? left : VL;
}
/* What sums [R][NR] of a panel begin with, C or nothing and the bias; and where they go. */
VF_INLINE void sums_begin(const struct kn_gemm_job *j, size_t row, size_t R, size_t p, bool first,
                          float *sums)
{
    const float *c = j->c + row * j->ldc + p * NR;
    for (size_t r = 0; r < R; r++, c += j->ldc)
#pragma GCC unroll 2
        for (size_t v = 0; v < NV; v++) {
            const size_t n = sums_width(j, p, v), at = n ? v * VL : 0;
            vf x = vf_set1(0);
            if (!first || j->accumulate) x = vf_loadn(c + at, n);
            if (first && j->bias) x = vf_add(x, vf_loadn(j->bias + p * NR + at, n));
            vf_store(sums + r * NR + v * VL, x);
        }
}
VF_INLINE void sums_end(const struct kn_gemm_job *j, size_t row, size_t R, size_t p,
                        const float *sums)
{
    float *c = j->c + row * j->ldc + p * NR;
    for (size_t r = 0; r < R; r++, c += j->ldc)
#pragma GCC unroll 2
        for (size_t v = 0; v < NV; v++) {
            const size_t n = sums_width(j, p, v);
            if (n) vf_storen(c + v * VL, vf_load(sums + r * NR + v * VL), n);
        }
}

#endif
