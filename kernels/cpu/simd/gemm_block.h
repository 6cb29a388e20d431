/* gemm_block: how a product is cut into blocks, included behind gemm_tile.h.
 *
 * A tile of A rows [TILE_MR, kc] is copied to a buffer of constant stride (L1, no set conflicts
 * whatever lda is), B panels [kc, nr] stream past it from L2, TILE_NC columns at a time so that a
 * block of B is read from L2 by all row tiles. Coded weights are unpacked block by block: for many
 * rows a block as above, which all row tiles then read; for the rows of one tile a few KiB that
 * never leave L1, where several panels share a pass (TILE_FEW) so that the FMAs of a single row
 * need not wait for each other. Both are the same chains. Thread: any. */
#ifndef KERNELS_CPU_SIMD_GEMM_BLOCK_H
#define KERNELS_CPU_SIMD_GEMM_BLOCK_H

#include <assert.h>

static_assert(sizeof(elem) * TILE_NC * TILE_KC <= KN_GEMM_BLOCK, "room for a block");

/* Panels [p0, p1), k units [k0, k0 + kc) into the job's block, one after the other. */
static const elem *tile_open(const struct kn_gemm_job *j, size_t p0, size_t p1, size_t k0,
                             size_t kc)
{
    elem *to = j->block;
    for (size_t p = p0; p < p1; p++, to += kc * TILE_NR) {
        const struct kn_panel *panel = &j->coded->panel[p];
        tile_unpack(&panel->form, j->coded->data + panel->at, k0, kc, j->k, to);
    }
    return j->block;
}

static int tile_block(const struct kn_gemm_job *j, size_t p0, size_t p1, size_t k0, size_t kc,
                      const elem *b, size_t stride)
{
    elem atile[TILE_MR * TILE_LDA] __attribute__((aligned(64)));
    size_t n_tiles = (j->m + TILE_MR - 1) / TILE_MR;
    for (size_t i = 0, row = 0; i < n_tiles; i++) {
        unsigned R = (unsigned)((j->m - row + n_tiles - i - 1) / (n_tiles - i));
        if (kn_cancelled(j->cancel)) return -ECANCELED;
        for (unsigned r = 0; r < R; r++)
            tile_copy_a(atile + r * TILE_LDA, j->a + (row + r) * j->lda, j->k, k0, kc);
        for (size_t p = p0; p < p1; p++)
            tile_panel(j, row, R, p, atile, b + (p - p0) * stride, k0, kc);
        row += R;
    }
    return 0;
}

/* The rows of one tile: few panels and few k at a time; the sums go on in C. */
static int tile_few(const struct kn_gemm_job *j, size_t panel0, size_t panel1)
{
    const size_t units = (j->k + TILE_UNIT - 1) / TILE_UNIT;
    elem a[TILE_MR * TILE_LDA] __attribute__((aligned(64)));
    const unsigned R = (unsigned)j->m;
    for (size_t p = panel0, n; p < panel1; p += n) {
        n = panel1 - p < TILE_FEW ? panel1 - p : TILE_FEW;
        if (kn_cancelled(j->cancel)) return -ECANCELED;
        const bool whole = n == TILE_FEW && (p + n) * TILE_NR <= j->n;
        for (size_t k0 = 0, kc; k0 < units; k0 += kc) {
            kc = units - k0 < TILE_FEW_K ? units - k0 : TILE_FEW_K;
            const elem *b = tile_open(j, p, p + n, k0, kc);
            for (unsigned r = 0; r < R; r++)
                tile_copy_a(a + r * TILE_LDA, j->a + r * j->lda, j->k, k0, kc);
            const struct tile_c t = {j->c + p * TILE_NR, j->ldc,
                                     k0 == 0 && j->bias ? j->bias + p * TILE_NR : NULL,
                                     k0 != 0 || j->accumulate};
            if (whole && R == 1)
                tile_rows(1, TILE_FEW, a, b, kc * TILE_NR, kc, t);
            else if (whole && R == 2)
                tile_rows(2, TILE_FEW, a, b, kc * TILE_NR, kc, t);
            else
                for (size_t i = 0; i < n; i++)
                    tile_panel(j, 0, R, p + i, a, b + i * kc * TILE_NR, k0, kc);
        }
    }
    return 0;
}

/* Equal blocks, of coded weights in whole steps. */
static size_t tile_next_k(const struct kn_gemm_job *j, size_t left)
{
    const size_t n_blocks = (left + TILE_KC - 1) / TILE_KC;
    const size_t kc = (left + n_blocks - 1) / n_blocks;
    if (!j->coded) return kc;
    const size_t step = CODES_STEP / TILE_UNIT, whole = (kc + step - 1) / step * step;
    return whole < left ? whole : left;
}

static int tile_gemm(const struct kn_gemm_job *j, size_t panel0, size_t panel1)
{
    const size_t units = (j->k + TILE_UNIT - 1) / TILE_UNIT, step = TILE_NC / TILE_NR;
    if (j->coded && j->m <= TILE_MR) return tile_few(j, panel0, panel1);
    for (size_t p = panel0; p < panel1; p += step) {
        const size_t pe = p + step < panel1 ? p + step : panel1;
        for (size_t k0 = 0, kc; k0 < units; k0 += kc) {
            kc = tile_next_k(j, units - k0);
            const elem *b = (const elem *)j->b + (p * units + k0) * TILE_NR;
            if (j->coded) b = tile_open(j, p, pe, k0, kc);
            int r = tile_block(j, p, pe, k0, kc, b, (j->coded ? kc : units) * TILE_NR);
            if (r < 0) return r;
        }
    }
    return 0;
}

#endif
