/* The GEMM in whole numbers of 16 bits: a block of k of a row, and of a column, is rounded to
 * numbers of 12 bits of its largest magnitude, pairs are multiplied and added in 32 bits without
 * rounding, and a block's sum is scaled into C. So an output is one chain of FMAs over blocks of k,
 * which depend on k alone: its bits depend on its own row alone.
 *
 * For CPUs without tiles: a rounding error is less than bf16's of all but the smallest values of a
 * block, and a step takes two k where an FMA takes one. Weights stay as they are kept (codes, or
 * f32) and are rounded block by block, some panels at a time, for all rows of a call. Compiled for
 * AVX2 (vpmaddwd and an addition), AVX-VNNI and AVX-512 with VNNI (vpdpwssd). Thread: any. */
#include "base/assert.h"
#include "kernels/cpu/pairs.h"
#include "kernels/cpu/simd/cases.h"
#include "kernels/cpu/simd/table.h"
#include "kernels/cpu/simd/int16.h"

#if KN_SIMD == 512
#define MR 14 /* rows of a tile of registers */
#else
#define MR 6
#endif

enum {
    TOP = 2047, /* the largest number */
    KC = 512,   /* of k in a block: sums are int32 */
    PAIRS = KC / 2,
    STRIDE = (PAIRS + 1) * NR, /* words of a panel: its pairs, and its columns' scales */
    NP = 256 / NR,             /* panels of a block; chosen: 260 KiB, half of an L2 */
};
static_assert((int64_t)TOP * TOP * KC <= INT32_MAX, "a block's sums are whole");
static_assert(NP * STRIDE * 4 <= KN_GEMM_BLOCK, "room for weights");

/* ---- a block's numbers ---- */

/* Magnitudes whose products would not be normal numbers count as this; what is no number stays. */
VF_INLINE vf top_of(whole bits)
{
    return vf_max(vf_set1(0x1p-100f), (vf)bits);
}

/* Values [kc][NR] of a panel; x has a row of zeros behind an odd one. */
static void round_panel(const float *x, size_t kc, uint32_t *to)
{
    whole most[NV];
    vf by[NV];
#pragma GCC unroll 2
    for (int v = 0; v < NV; v++) {
        most[v] = whole_set1(0);
        for (size_t k = 0; k < kc; k++)
            most[v] = whole_max(most[v], (whole)vf_load(x + k * NR + v * VL) & INT32_MAX);
        const vf top = top_of(most[v]);
        by[v] = vf_div(vf_set1(TOP), top);
        vf_store((float *)to + (kc + 1) / 2 * NR + v * VL, vf_div(top, vf_set1(TOP)));
    }
    for (size_t k = 0; k < kc; k += 2, x += 2 * NR, to += NR)
#pragma GCC unroll 2
        for (int v = 0; v < NV; v++)
            whole_store(to + v * VL, pairs_of(whole_rounded(vf_load(x + v * VL), by[v]),
                                              whole_rounded(vf_load(x + NR + v * VL), by[v])));
}

/* ---- products ---- */

/* What is multiplied at a time: panels [p0, p1) by a part of k. */
struct block {
    size_t p0, p1, k0, kc, part;
    uint32_t *b; /* [p1 - p0][STRIDE] */
};

static void open_block(const struct kn_gemm_job *j, const struct block *x)
{
    float values[(KC + 1) * NR] __attribute__((aligned(64)));
    uint32_t *to = x->b;
    for (size_t p = x->p0; p < x->p1; p++, to += STRIDE) {
        if (j->coded) {
            const struct kn_panel *panel = &j->coded->panel[p];
            (void)KN_NAME(codes_panel)(&panel->form, j->coded->data + panel->at, x->k0, x->kc,
                                       values);
        } else {
            memcpy(values, (const float *)j->b + (p * j->k + x->k0) * NR,
                   x->kc * NR * sizeof *values);
        }
        memset(values + x->kc * NR, 0, NR * sizeof *values);
        round_panel(values, x->kc, to);
    }
}

struct rows {
    uint32_t *q; /* [m][lda] pairs */
    size_t lda;
    float *scale; /* [parts of k][m] */
};

/* R rows by a panel. */
VF_INLINE void tile_rows(const int R, const uint32_t *a, size_t lda, const uint32_t *b,
                         size_t pairs, int32_t *sums)
{
    whole acc[MR][NV];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int v = 0; v < NV; v++)
            acc[r][v] = whole_set1(0);
    for (size_t i = 0; i < pairs; i++, a++, b += NR) {
        const whole b0 = whole_load(b), b1 = whole_load(b + VL);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            const whole av = whole_set1((int32_t)a[(size_t)r * lda]);
            acc[r][0] = pair_dot(acc[r][0], av, b0);
            acc[r][1] = pair_dot(acc[r][1], av, b1);
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
        tile_rows(n, a, lda, b, pairs, sums);                                                      \
        break;
static void tile(unsigned R, const uint32_t *a, size_t lda, const uint32_t *b, size_t pairs,
                 int32_t *sums)
{
    switch (R) {
        CASES(MR, TILE_CASE)
    }
}

/* All rows by a block. */
static int rows_by(const struct kn_gemm_job *j, const struct block *x, const struct rows *a)
{
    int32_t sums[MR * NR] __attribute__((aligned(64)));
    const size_t pairs = (x->kc + 1) / 2, n_tiles = (j->m + MR - 1) / MR;
    for (size_t i = 0, row = 0, R; i < n_tiles; i++, row += R) {
        R = (j->m - row + n_tiles - i - 1) / (n_tiles - i);
        if (kn_cancelled(j->cancel)) return -ECANCELED;
        for (size_t p = x->p0; p < x->p1; p++) {
            const uint32_t *b = x->b + (p - x->p0) * STRIDE;
            tile((unsigned)R, a->q + row * a->lda + x->k0 / 2, a->lda, b, pairs, sums);
            for (size_t v = 0; v < NV; v++)
                whole_add(j, row, (unsigned)R, p * NR + v * VL,
                          (struct whole_sums){sums + v * VL, a->scale + x->part * j->m + row,
                                              (const float *)b + pairs * NR + v * VL,
                                              x->k0 ? NULL : j->bias, x->k0 || j->accumulate});
        }
    }
    return 0;
}

int KN_INT16(gemm_int16)(const struct kn_gemm_job *j, size_t panel0, size_t panel1)
{
    const size_t n_parts = (j->k + KC - 1) / KC;
    const size_t kc = ((j->k + n_parts - 1) / n_parts + CODES_STEP - 1) / CODES_STEP * CODES_STEP;
    const struct rows a = {j->pairs, kn_pairs_stride(j->k),
                           (float *)j->pairs + j->m * kn_pairs_stride(j->k)};
    for (size_t k0 = 0, part = 0; k0 < j->k; k0 += kc, part++)
        for (size_t r = 0; r < j->m; r++)
            a.scale[part * j->m + r] =
                int16_row(j->a + r * j->lda + k0, j->k - k0 < kc ? j->k - k0 : kc, TOP,
                          a.q + r * a.lda + k0 / 2);
    struct block x = {.b = j->block};
    for (x.p0 = panel0; x.p0 < panel1; x.p0 = x.p1) {
        x.p1 = panel1 - x.p0 < NP ? panel1 : x.p0 + NP;
        for (x.k0 = x.part = 0; x.k0 < j->k; x.k0 += x.kc, x.part++) {
            x.kc = j->k - x.k0 < kc ? j->k - x.k0 : kc;
            open_block(j, &x);
            const int r = rows_by(j, &x, &a);
            if (r < 0) return r;
        }
    }
    return 0;
}
