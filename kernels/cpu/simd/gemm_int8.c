/* The GEMM in 8 bits: rows rounded, products by vpdpbusd, sdot or AMX tiles, all the same bits.
 *
 * Sums of a block of k are whole numbers; scaled, they are added to C, block after block, so an
 * output's bits depend on its own row alone. Rows are copied and rounded once for all columns.
 * Columns and k of what is multiplied at a time stay in L2 as elsewhere (gemm_block.h); C of a tile
 * stays in L1. Compiled for AVX-512 with VNNI and AMX, for AVX-VNNI, and for NEON with products of
 * 8 bits (Armv8.2 dotprod). Thread: any. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd/cases.h"
#include "kernels/cpu/simd/vec.h"
#if KN_SIMD == 512
#include "kernels/cpu/simd/amx.h"
#endif

#if KN_SIMD == 512
#define MR 14 /* rows of a tile of registers */
#elif KN_SIMD == 256
#define MR 6
#else
#define MR 12
#endif
enum {
    NV = 2, /* vectors across a panel */
    NR = NV * VL,
    MR_MOST = 32,              /* two row tiles of AMX */
    NC = KN_GEMM_NC / NR,      /* panels of a block */
    KC = 1024 / KN_INT8_BLOCK, /* chosen: blocks of k: 32 rows are 32 KiB of L1 */
};
typedef int32_t whole __attribute__((vector_size(VL * 4)));
#define ZERO (KN_SIMD == 128 ? 0 : 128) /* kn_int8.zero of what tile_sums() reads */

#if KN_SIMD == 512
#define NAME(name) kn_avx512_##name
#define whole_load(p) ((whole)_mm512_loadu_si512(p))
#define whole_store(p, x) _mm512_storeu_si512(p, (__m512i)(x))
#define whole_set1(x) ((whole)_mm512_set1_epi32(x))
#define whole_dot(c, b, a) ((whole)_mm512_dpbusd_epi32((__m512i)(c), (__m512i)(b), (__m512i)(a)))
#define whole_vf(x) _mm512_cvtepi32_ps((__m512i)(x))
#elif KN_SIMD == 128
#define NAME(name) kn_neon_##name
#define whole_load(p) ((whole)vld1q_s8((const int8_t *)(p)))
#define whole_store(p, x) vst1q_s32(p, (int32x4_t)(x))
#define whole_set1(x) ((whole)vdupq_n_s32(x))
#define whole_dot(c, b, a) ((whole)vdotq_s32((int32x4_t)(c), (int8x16_t)(b), (int8x16_t)(a)))
#define whole_vf(x) vcvtq_f32_s32((int32x4_t)(x))
#else
#define NAME(name) kn_avx2_##name
#define whole_load(p) ((whole)_mm256_loadu_si256((const void *)(p)))
#define whole_store(p, x) _mm256_storeu_si256((void *)(p), (__m256i)(x))
#define whole_set1(x) ((whole)_mm256_set1_epi32(x))
#define whole_dot(c, b, a)                                                                         \
    ((whole)_mm256_dpbusd_avx_epi32((__m256i)(c), (__m256i)(b), (__m256i)(a)))
#define whole_vf(x) _mm256_cvtepi32_ps((__m256i)(x))
#endif

/* ---- rows ---- */

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

/* Of n values; the sum. What is not a number, or no finite one, is in the scale. Loops that the
 * compiler makes vectors of: adding 1.5 * 2^23 leaves a whole number in the lower bits. */
static int32_t round_block(const float *x, size_t n, int8_t *q, float *ret_scale)
{
    uint32_t top_bits = 0;
    for (size_t i = 0; i < n; i++) {
        const uint32_t u = bits_of(x[i]) & 0x7fffffff;
        top_bits = top_bits > u ? top_bits : u;
    }
    float top;
    memcpy(&top, &top_bits, sizeof top);
    const float by = top > 0x1p-100f ? 127 / top : 0;
    int32_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        const int8_t v = (int8_t)bits_of(x[i] * by + 12582912.0f);
        q[i] = v;
        sum += v;
    }
    *ret_scale = top / 127;
    return sum;
}

void NAME(int8_rows)(const float *a, size_t lda, size_t m, size_t k, const struct kn_int8_rows *to)
{
    const struct kn_int8_cut cut = kn_int8_cut(k);
    for (size_t r = 0; r < m; r++) {
        int8_t *q = to->q + r * to->stride;
        memset(q + k, 0, cut.k - k);
        for (size_t b = 0, k0 = 0; b < cut.n_blocks; b++, k0 += cut.block) {
            const size_t n = k - k0 < cut.block ? k - k0 : cut.block;
            to->sum[r * cut.n_blocks + b] =
                round_block(a + r * lda + k0, n, q + k0, &to->scale[r * cut.n_blocks + b]);
        }
    }
}

/* ---- sums ---- */

/* Where the sums of R rows by a panel go, and their factors. */
struct to_c {
    float *c;
    size_t ldc, n_blocks, n; /* n: columns */
    const float *by, *scale, *bias;
    bool load;
};

VF_INLINE void add_vector(const struct to_c *t, size_t r, size_t v, vf by, bool full,
                          const int32_t *sums)
{
    const size_t at = v * VL, n = full ? VL : t->n - at;
    float *c = t->c + r * t->ldc + at;
    vf sum = vf_set1(0);
    if (t->load) sum = full ? vf_load(c) : vf_loadn(c, n);
    if (t->bias) sum = vf_add(sum, full ? vf_load(t->bias + at) : vf_loadn(t->bias + at, n));
    sum = vf_fma(whole_vf(whole_load(sums + r * NR + at)), vf_mul(by, vf_load(t->scale + at)), sum);
    if (full)
        vf_store(c, sum);
    else
        vf_storen(c, sum, n);
}

/* Block b of k of the sums of R rows by panel p: scaled, to C. */
static void add_block(const struct kn_gemm_job *j, size_t row, unsigned R, size_t p, size_t b,
                      const int32_t *sums)
{
    const size_t n_blocks = j->int8->cut.n_blocks, at = p * NR;
    const struct to_c t = {.c = j->c + row * j->ldc + at,
                           .ldc = j->ldc,
                           .n_blocks = n_blocks,
                           .n = j->n - at < NR ? j->n - at : NR,
                           .by = j->rows->scale + row * n_blocks + b,
                           .scale = j->int8->scale + b * j->int8->columns + at,
                           .bias = b == 0 && j->bias ? j->bias + at : NULL,
                           .load = b > 0 || j->accumulate};
    for (size_t r = 0; r < R; r++) {
        const vf by = vf_set1(t.by[r * n_blocks]);
        if (t.n == NR) {
            add_vector(&t, r, 0, by, true, sums);
            add_vector(&t, r, 1, by, true, sums);
        } else {
            for (size_t v = 0; v * VL < t.n; v++)
                add_vector(&t, r, v, by, t.n - v * VL >= VL, sums);
        }
    }
}

/* R rows by a panel: units of four k each. */
VF_INLINE void tile_rows(const int R, const int8_t *a, size_t lda, const uint8_t *b, size_t units,
                         const int32_t *row_sum, size_t n_blocks, int32_t *sums)
{
    whole acc[MR][NV];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int v = 0; v < NV; v++)
            acc[r][v] = whole_set1(ZERO ? -ZERO * row_sum[(size_t)r * n_blocks] : 0);
    for (size_t u = 0; u < units; u++, a += 4, b += 4 * NR) {
        const whole b0 = whole_load(b), b1 = whole_load(b + 4 * VL);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            int32_t four;
            memcpy(&four, a + (size_t)r * lda, sizeof four);
            const whole av = whole_set1(four);
            acc[r][0] = whole_dot(acc[r][0], b0, av);
            acc[r][1] = whole_dot(acc[r][1], b1, av);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int v = 0; v < NV; v++)
            whole_store(sums + r * NR + v * VL, acc[r][v]);
}

#define TILE_CASE(n)                                                                               \
    case n:                                                                                        \
        tile_rows(n, a, lda, b, units, row_sum, j->int8->cut.n_blocks, sums);                      \
        break;
static void tile_sums(const struct kn_gemm_job *j, size_t row, unsigned R, const uint8_t *b,
                      size_t block, size_t k0, size_t kc, int32_t *sums)
{
    const size_t lda = j->rows->stride, units = kc / 4;
    const int8_t *a = j->rows->q + row * lda + k0;
    const int32_t *row_sum = j->rows->sum + row * j->int8->cut.n_blocks + block;
    switch (R) {
        CASES(MR, TILE_CASE)
    }
}

#if KN_SIMD == 512
/* Two row tiles, or one, by a panel. */
static void amx_sums(const struct kn_gemm_job *j, size_t row, unsigned R, const uint8_t *b,
                     size_t block, size_t k0, size_t kc, int32_t *sums)
{
    enum { LDB = NR * 4 };
    const size_t lda = j->rows->stride;
    const int8_t *a = j->rows->q + row * lda + k0;
    const bool two = R > AMX_ROWS;
    (void)block;
    amx_load(0, NULL, 0);
    amx_load(1, NULL, 0);
    for (size_t k = 0; k < kc; k += KN_INT8_STEP, a += KN_INT8_STEP, b += KN_INT8_STEP * NR) {
        _tile_loadd(6, b, LDB);
        _tile_loadd(7, b + 4 * VL, LDB);
        _tile_loadd(4, a, lda);
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 4, 7);
        if (!two) continue;
        _tile_loadd(5, a + AMX_ROWS * lda, lda);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
    }
    amx_store(0, (float *)(void *)sums, NR);
    if (two) amx_store(1, (float *)(void *)(sums + AMX_ROWS * NR), NR);
    amx_barrier();
}
#endif

/* ---- blocks ---- */

typedef void (*sums_fn)(const struct kn_gemm_job *j, size_t row, unsigned R, const uint8_t *b,
                        size_t block, size_t k0, size_t kc, int32_t *sums);

/* Rows [row, row + R) by panels [p0, p1) and blocks of k [b0, b1). */
VF_INLINE void int8_tile(const struct kn_gemm_job *j, size_t row, unsigned R, size_t p0, size_t p1,
                         size_t b0, size_t b1, const sums_fn sums_of)
{
    int32_t sums[MR_MOST * NR] __attribute__((aligned(64)));
    const struct kn_int8_cut *cut = &j->int8->cut;
    for (size_t p = p0; p < p1; p++)
        for (size_t b = b0; b < b1; b++) {
            const size_t k0 = b * cut->block, left = cut->k - k0;
            sums_of(j, row, R, j->int8->panel + (p * cut->k + k0) * NR, b, k0,
                    left < cut->block ? left : cut->block, sums);
            add_block(j, row, R, p, b, sums);
        }
}

/* Tiles of tile_m rows, or of about the same height. */
VF_INLINE int int8_gemm(const struct kn_gemm_job *j, size_t panel0, size_t panel1,
                        const size_t tile_m, const bool even, const sums_fn sums_of)
{
    const size_t n_blocks = j->int8->cut.n_blocks, n_tiles = (j->m + tile_m - 1) / tile_m;
    for (size_t p = panel0; p < panel1; p += NC) {
        const size_t pe = p + NC < panel1 ? p + NC : panel1;
        for (size_t b = 0; b < n_blocks; b += KC) {
            const size_t be = b + KC < n_blocks ? b + KC : n_blocks;
            for (size_t i = 0, row = 0, R; i < n_tiles; i++, row += R) {
                const size_t left = j->m - row;
                R = even ? (left + n_tiles - i - 1) / (n_tiles - i) : left < tile_m ? left : tile_m;
                if (kn_cancelled(j->cancel)) return -ECANCELED;
                int8_tile(j, row, (unsigned)R, p, pe, b, be, sums_of);
            }
        }
    }
    return 0;
}

int NAME(gemm_int8)(const struct kn_gemm_job *j, size_t panel0, size_t panel1)
{
    return int8_gemm(j, panel0, panel1, MR, true, tile_sums);
}

#if KN_SIMD == 512
int kn_gemm_int8_amx(const struct kn_gemm_job *j, size_t panel0, size_t panel1)
{
    amx_open();
    int r = int8_gemm(j, panel0, panel1, 2 * AMX_ROWS, false, amx_sums);
    _tile_release();
    return r;
}
#endif
