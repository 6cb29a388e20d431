/* Attention and pages in 8 bits: beside products of weights in such.
 *
 * K and queries are rotated as rows of a product are (int8.h), 64 dims at a time, before they are
 * rounded to 7 bits and a sign; the score of a key stays what it is. vpdpbusd takes one side
 * without a sign: K, stored as 128 more, and weights of 8 bits. Compiled for AVX-VNNI and AVX-512
 * with VNNI. Thread: any. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd/hadamard.h"
#include "kernels/cpu/simd/whole.h"

#if KN_SIMD == 512
#define OPS kn_avx512_attn8
#define dot(sum, a, b) ((whole)_mm512_dpbusd_epi32((__m512i)(sum), (__m512i)(a), (__m512i)(b)))
#else
#define OPS kn_avx2_attn8
#define dot(sum, a, b) ((whole)_mm256_dpbusd_avx_epi32((__m256i)(sum), (__m256i)(a), (__m256i)(b)))
#endif

enum { UNIT = 4, V_MOST = 127, WEIGHT_MOST = 255 };
#define ZERO 0x80808080u
#define PAGE_TYPE KN_Q8
typedef int8_t number;
#define word_of(x) whole_bytes(x)

/* As vf_times_exp2(), good enough for 8 bits: minimax, relative error below 8e-5. */
VF_INLINE vf times_exp2(const float by, vf x)
{
    const vf n = vf_round(x), f = vf_sub(x, n);
    vf p = vf_set1(by * 5.51716691e-2f);
    p = vf_fma(p, f, vf_set1(by * 2.42611122e-1f));
    p = vf_fma(p, f, vf_set1(by * 6.93260985e-1f));
    p = vf_fma(p, f, vf_set1(by * 9.99928074e-1f));
    return vf_scale2(p, n, x);
}

static int32_t dims_most(size_t K)
{
    return 127;
}

/* The lowest bytes of all words. */
VF_INLINE void store_bytes(uint32_t *to, whole x)
{
#if KN_SIMD == 512
    _mm_storeu_si128((void *)to, _mm512_cvtepi32_epi8((__m512i)x));
#else
    const __m256i four = _mm256_shuffle_epi8((__m256i)x, _mm256_set1_epi32(0x0c080400));
    to[0] = (uint32_t)_mm256_extract_epi32(four, 0);
    to[1] = (uint32_t)_mm256_extract_epi32(four, 4);
#endif
}

static void store_numbers(const float *x, size_t n, float by, uint32_t *to)
{
    for (size_t i = 0; i < n; i += VL, to += VL / UNIT) {
        const vf v = i + VL <= n ? vf_load(x + i) : vf_loadn(x + i, n - i);
        store_bytes(to, whole_rounded(v, vf_set1(by)));
    }
}

static float round_row(const float *x, size_t n, int32_t most, uint32_t *to)
{
    const float step = whole_magnitude(whole_top_of(x, n)) / (float)most;
    store_numbers(x, n, 1 / step, to);
    return step;
}

static const float *turn_head(const float *x, size_t K, float *room)
{
    size_t d = 0;
    for (; d + HADAMARD <= K; d += HADAMARD) {
        vf part[HADAMARD / VL];
#pragma GCC unroll 16
        for (size_t i = 0; i < HADAMARD / VL; i++)
            part[i] = vf_mul(vf_load(x + d + i * VL), vf_set1(0.125f));
        hadamard(part);
#pragma GCC unroll 16
        for (size_t i = 0; i < HADAMARD / VL; i++)
            vf_store(room + d + i * VL, part[i]);
    }
    memcpy(room + d, x + d, (K - d) * sizeof *x);
    return room;
}

static int32_t zero_sum(const uint32_t *q, size_t n)
{
    const int8_t *one = (const int8_t *)q;
    int32_t sum = 0;
    for (size_t i = 0; i < n * UNIT; i++)
        sum += one[i];
    return 128 * sum;
}

#include "kernels/cpu/simd/attn_whole.h"

const struct kn_attn_ops OPS = {KN_Q8, put_rows, attn_scratch, attn, attn_mass};
