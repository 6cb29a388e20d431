/* gemm_tile: the register tile, included by gemm.c (f32) and gemm_bf16.c (bf16 pairs).
 *
 * The includer defines TILE_MR, TILE_NV (vectors across), elem (one packed unit of the k axis: an
 * f32, or a pair of bf16), tile_load_a(), tile_fma() and tile_unpack(), which makes a piece of a
 * coded panel what a packed one has there. Each output element is one chain of FMAs
 * over k in ascending order, started from 0, the bias or C; a k block ends by storing the exact
 * f32 chain value in C and the next one goes on from there. So its bits depend on its own row
 * alone, whatever m, the tile height or the column range of the call.
 * Thread: any. */
#ifndef KERNELS_CPU_SIMD_GEMM_TILE_H
#define KERNELS_CPU_SIMD_GEMM_TILE_H

#include "kernels/cpu/simd/cases.h"

enum {
    TILE_NR = TILE_NV * VL,
    TILE_KC = 384,           /* chosen: 14 x 384 x 4 bytes = half of a 48 KiB L1 */
    TILE_LDA = TILE_KC + 16, /* odd number of cache lines */
    TILE_NC = 512,           /* chosen: 512 x 384 x 4 bytes = 768 KiB of B in L2 */
    TILE_AHEAD = 24,         /* k steps of software prefetch */
    TILE_FEW = KN_GEMM_FEW,  /* measured: panels of a pass over one tile's rows; 4 are no faster */
    TILE_FEW_K = 64 / TILE_UNIT, /* chosen: 2 x 32 x 64 x 4 bytes = 16 KiB */
};

struct tile_c {
    float *c;
    size_t ldc;
    const float *bias; /* added at the start, or NULL */
    bool load;         /* go on from C */
};

/* R rows by P panels that stand `stride` apart. */
VF_INLINE void tile_rows(const int R, const int P, const elem *a, const elem *b, size_t stride,
                         size_t kc, struct tile_c t)
{
    vf acc[TILE_MR][TILE_NV * TILE_FEW];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < TILE_NV * P; v++) {
            acc[r][v] = t.load ? vf_load(t.c + (size_t)r * t.ldc + v * VL) : vf_set1(0.0f);
            if (t.bias) acc[r][v] = vf_add(acc[r][v], vf_load(t.bias + v * VL));
        }
    for (size_t k = 0; k < kc; k++, a++, b += TILE_NR) {
        tile_b bv[TILE_NV * TILE_FEW];
#pragma GCC unroll 8
        for (int v = 0; v < TILE_NV * P; v++) {
            bv[v] = tile_load_b(b + (size_t)(v / TILE_NV) * stride + v % TILE_NV * VL);
            if (P == 1) __builtin_prefetch(b + TILE_AHEAD * TILE_NR + v * VL);
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            tile_b av = tile_load_a(a + r * TILE_LDA);
#pragma GCC unroll 8
            for (int v = 0; v < TILE_NV * P; v++)
                acc[r][v] = tile_fma(av, bv[v], acc[r][v]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < TILE_NV * P; v++)
            vf_store(t.c + (size_t)r * t.ldc + v * VL, acc[r][v]);
}

#define TILE_CASE(n)                                                                               \
    case n:                                                                                        \
        tile_rows(n, 1, a, b, 0, kc, t);                                                           \
        break;
static void tile_run(unsigned R, const elem *a, const elem *b, size_t kc, struct tile_c t)
{
    switch (R) {
        CASES(TILE_MR, TILE_CASE)
    }
}

/* A panel that sticks out of C: the same tile on a buffer of full width. */
static void tile_edge(unsigned R, size_t width, const elem *a, const elem *b, size_t kc,
                      struct tile_c t)
{
    float buf[TILE_MR * TILE_NR] __attribute__((aligned(64)));
    float bias[TILE_NR] __attribute__((aligned(64)));
    memset(buf, 0, sizeof buf);
    if (t.load)
        for (unsigned r = 0; r < R; r++)
            memcpy(buf + r * TILE_NR, t.c + r * t.ldc, width * sizeof(float));
    if (t.bias) {
        memset(bias, 0, sizeof bias);
        memcpy(bias, t.bias, width * sizeof(float));
    }
    tile_run(R, a, b, kc, (struct tile_c){buf, TILE_NR, t.bias ? bias : NULL, t.load});
    for (unsigned r = 0; r < R; r++)
        memcpy(t.c + r * t.ldc, buf + r * TILE_NR, width * sizeof(float));
}

/* One tile of rows of one panel. */
static void tile_panel(const struct kn_gemm_job *j, size_t row, unsigned R, size_t p,
                       const elem *atile, const elem *b, size_t k0, size_t kc)
{
    const struct tile_c t = {j->c + row * j->ldc + p * TILE_NR, j->ldc,
                             k0 == 0 && j->bias ? j->bias + p * TILE_NR : NULL,
                             k0 != 0 || j->accumulate};
    const size_t width = j->n - p * TILE_NR;
    if (width >= TILE_NR)
        tile_run(R, atile, b, kc, t);
    else
        tile_edge(R, width, atile, b, kc, t);
}

#endif
