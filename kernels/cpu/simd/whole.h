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
#endif

/* The largest of a vector of what is not negative. */
VF_INLINE int32_t whole_top(whole x)
{
    int32_t most = 0;
    for (int i = 0; i < VL; i++)
        most = most > x[i] ? most : x[i];
    return most;
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

#endif
