/* gemm_amx: the bf16 GEMM on AMX tiles, included by gemm_bf16.c behind gemm_block.h.
 *
 * The packed panels are the same ones: sixteen units of sixteen columns are what a tile of B is. A
 * pass sums two halves, each 16 rows by a panel: for many rows two row tiles of one panel, so that
 * a tile of B serves both; for the rows of one tile, where weights are unpacked, two panels.
 * An output is one chain of tile products over k in ascending order, sixteen units each, its start
 * and what lies between blocks of k as in gemm_tile.h: its bits depend on its own row alone.
 * They are not those of vdpbf16ps: the even and the odd k of a unit are summed apart.
 * Thread: any, once the process may use AMX (isa.c). */
#ifndef KERNELS_CPU_SIMD_GEMM_AMX_H
#define KERNELS_CPU_SIMD_GEMM_AMX_H

#include "kernels/cpu/simd/amx.h"

enum {
    AMX_LDB = TILE_NR * 4,
    AMX_FEW_K = 2 * AMX_UNITS, /* chosen: two panels of them are 8 KiB */
};

/* Where a half begins and ends: R <= 16 rows of panel p. */
struct amx_part {
    size_t row, R, p;
};

static size_t amx_width(const struct kn_gemm_job *j, const struct amx_part *t)
{
    return j->n - t->p * TILE_NR < TILE_NR ? j->n - t->p * TILE_NR : TILE_NR;
}

static bool amx_whole(const struct kn_gemm_job *j, const struct amx_part *t)
{
    return t->R == AMX_ROWS && amx_width(j, t) == TILE_NR;
}

static void amx_begin(const struct kn_gemm_job *j, int half, const struct amx_part *t)
{
    const float *c = j->c + t->row * j->ldc + t->p * TILE_NR;
    const float *bias = j->bias ? j->bias + t->p * TILE_NR : NULL;
    const bool load = j->accumulate;
    if (!bias && (!load || amx_whole(j, t))) {
        amx_load(half, load ? c : NULL, j->ldc);
        return;
    }
    float buf[AMX_ROWS * TILE_NR] __attribute__((aligned(64))) = {0};
    for (size_t r = 0; r < t->R; r++)
        for (size_t i = 0; i < amx_width(j, t); i++)
            buf[r * TILE_NR + i] = (load ? c[r * j->ldc + i] : 0.0f) + (bias ? bias[i] : 0.0f);
    amx_load(half, buf, TILE_NR);
}

static void amx_end(const struct kn_gemm_job *j, int half, const struct amx_part *t)
{
    float *c = j->c + t->row * j->ldc + t->p * TILE_NR;
    if (amx_whole(j, t)) {
        amx_store(half, c, j->ldc);
        return;
    }
    float buf[AMX_ROWS * TILE_NR] __attribute__((aligned(64)));
    amx_store(half, buf, TILE_NR);
    for (size_t r = 0; r < t->R; r++)
        memcpy(c + r * j->ldc, buf + r * TILE_NR, amx_width(j, t) * sizeof(float));
}

/* One row tile by one panel, kc units; a is zero up to the next sixteen. */
static void amx_rows(const elem *a, const elem *b, size_t kc)
{
    elem rest[AMX_UNITS * TILE_NR] __attribute__((aligned(64)));
    for (size_t k = 0; k < kc; k += AMX_UNITS) {
        const elem *from = b + k * TILE_NR;
        if (kc - k < AMX_UNITS) { /* what follows is another panel's, or no panel's */
            memset(rest, 0, sizeof rest);
            memcpy(rest, from, (kc - k) * TILE_NR * sizeof *rest);
            from = rest;
        }
        amx_barrier();
        _tile_loadd(6, from, AMX_LDB);
        _tile_loadd(7, from + VL, AMX_LDB);
        _tile_loadd(4, a + k, TILE_LDA * sizeof *a);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
    }
}

/* One row tile by two panels, kc units; the second one is behind `stride` elements. */
static void amx_panels(const elem *a, const elem *b, size_t stride, size_t kc)
{
    elem rest[2 * AMX_FEW_K * TILE_NR] __attribute__((aligned(64)));
    if (kc % AMX_UNITS) {
        memset(rest, 0, sizeof rest);
        for (size_t i = 0; i < 2; i++)
            memcpy(rest + i * AMX_FEW_K * TILE_NR, b + i * stride, kc * TILE_NR * sizeof *rest);
        b = rest;
        stride = AMX_FEW_K * TILE_NR;
    }
    const elem *next = b + stride;
    amx_barrier();
    for (size_t k = 0; k < kc; k += AMX_UNITS) {
        _tile_loadd(4, a + k, TILE_LDA * sizeof *a);
        _tile_loadd(6, b + k * TILE_NR, AMX_LDB);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + k * TILE_NR + VL, AMX_LDB);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(6, next + k * TILE_NR, AMX_LDB);
        _tile_dpbf16ps(2, 4, 6);
        _tile_loadd(7, next + k * TILE_NR + VL, AMX_LDB);
        _tile_dpbf16ps(3, 4, 7);
    }
}

/* All rows as whole row tiles, zeros behind them and behind kc units. */
static void amx_copy_a(const struct kn_gemm_job *j, size_t k0, size_t kc, elem *a, size_t lda)
{
    const size_t end = (kc + AMX_UNITS - 1) / AMX_UNITS * AMX_UNITS;
    const size_t all = (j->m + AMX_ROWS - 1) / AMX_ROWS * AMX_ROWS;
    for (size_t r = 0; r < j->m; r++) {
        tile_copy_a(a + r * lda, j->a + r * j->lda, j->k, k0, kc);
        memset(a + r * lda + kc, 0, (end - kc) * sizeof *a);
    }
    for (size_t r = j->m; r < all; r++)
        memset(a + r * lda, 0, end * sizeof *a);
}

/* As tile_few(): weights are unpacked piece by piece, and the sums stay in the tiles. */
static int amx_few(const struct kn_gemm_job *j, size_t panel0, size_t panel1)
{
    elem a[AMX_ROWS * TILE_LDA] __attribute__((aligned(64)));
    const size_t units = (j->k + TILE_UNIT - 1) / TILE_UNIT;
    for (size_t p = panel0; p < panel1; p += 2) {
        const bool two = p + 1 < panel1;
        const struct amx_part t[2] = {{0, j->m, p}, {0, j->m, p + 1}};
        if (kn_cancelled(j->cancel)) return -ECANCELED;
        for (int h = 0; h <= two; h++)
            amx_begin(j, h, &t[h]);
        for (size_t k0 = 0, kc; k0 < units; k0 += kc) {
            kc = units - k0 < TILE_KC ? units - k0 : TILE_KC;
            amx_copy_a(j, k0, kc, a, TILE_LDA);
            for (size_t k = 0, n; k < kc; k += n) {
                n = kc - k < AMX_FEW_K ? kc - k : AMX_FEW_K;
                const elem *b = tile_open(j, p, p + 1 + two, k0 + k, n);
                if (two)
                    amx_panels(a + k, b, n * TILE_NR, n);
                else
                    amx_rows(a + k, b, n);
            }
        }
        for (int h = 0; h <= two; h++)
            amx_end(j, h, &t[h]);
    }
    return 0;
}

#endif
