/* int16: whole numbers of 16 bits, pairs of which are multiplied and added in 32 bits without
 * rounding. Included behind vec.h. Thread: any. */
#ifndef KERNELS_CPU_SIMD_INT16_H
#define KERNELS_CPU_SIMD_INT16_H

#include "kernels/cpu/simd/whole.h"

#if KN_SIMD == 512
#define KN_INT16(name) kn_avx512_##name
#define pair_dot(c, a, b) ((whole)_mm512_dpwssd_epi32((__m512i)(c), (__m512i)(a), (__m512i)(b)))
#elif defined(__AVXVNNI__)
#define KN_INT16(name) kn_avx2_vnni_##name
#define pair_dot(c, a, b) ((whole)_mm256_dpwssd_avx_epi32((__m256i)(c), (__m256i)(a), (__m256i)(b)))
#else
#define KN_INT16(name) kn_avx2_##name
/* One after the other: gcc 12 collects products of several sums first, which do not fit into the
 * registers then. */
VF_INLINE whole pair_dot(whole c, whole a, whole b)
{
    whole products;
    __asm__("vpmaddwd %2, %3, %1\n\tvpaddd %1, %0, %0" : "+x"(c), "=&x"(products) : "x"(a), "x"(b));
    return c;
}
#endif

int KN_INT16(gemm_int16)(const struct kn_gemm_job *j, size_t panel0, size_t panel1);

/* Numbers of an even k, and of the next one. */
VF_INLINE whole pairs_of(whole even, whole odd)
{
    return (even & 0xffff) | odd << 16;
}

/* n values times by as numbers, in whole vectors with zeros behind them. */
static void int16_store(const float *x, size_t n, float by, uint32_t *to)
{
    for (size_t i = 0; i < n; i += VL, to += VL / 2) {
        const vf v = i + VL <= n ? vf_load(x + i) : vf_loadn(x + i, n - i);
        whole_store_halves(to, whole_rounded(v, vf_set1(by)));
    }
}

/* n values as numbers of at most `most`; what 1 stands for, no number where one of them is none. */
static float int16_row(const float *x, size_t n, int32_t most, uint32_t *to)
{
    const float top = whole_magnitude(whole_top_of(x, n));
    int16_store(x, n, (float)most / top, to);
    return top / (float)most;
}

#endif
