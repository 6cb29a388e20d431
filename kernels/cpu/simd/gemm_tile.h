/* gemm_tile: the blocked GEMM, included by gemm.c (f32) and gemm_bf16.c (bf16 pairs).
 *
 * The includer defines TILE_MR, TILE_NV (vectors across), elem (one packed unit of the k axis: an
 * f32, or a pair of bf16), tile_load_a(), tile_fma() and tile_unpack(), which makes a piece of a
 * coded panel what a packed one has there. Each output element is one chain of FMAs
 * over k in ascending order, started from 0, the bias or C; a k block ends by storing the exact
 * f32 chain value in C and the next one goes on from there. So its bits depend on its own row
 * alone, whatever m, the tile height or the column range of the call.
 * Blocking: a tile of A rows [TILE_MR, kc] is copied to a buffer of constant stride (L1, no set
 * conflicts whatever lda is), B panels [kc, nr] stream past it from L2, TILE_NC columns at a time
 * so that a block of B is read from L2 by all row tiles. Coded weights are unpacked block by block:
 * for many rows a block as above, which all row tiles then read; for the rows of one tile a few KiB
 * that never leave L1, where several panels share a pass (TILE_FEW) so that the FMAs of a single
 * row need not wait for each other. Both are the same chains. Thread: any. */
#ifndef KERNELS_CPU_SIMD_GEMM_TILE_H
#define KERNELS_CPU_SIMD_GEMM_TILE_H

enum {
    TILE_NR = TILE_NV * VL,
    TILE_KC = KN_GEMM_KC,    /* chosen: 14 x 384 x 4 bytes = half of a 48 KiB L1 */
    TILE_LDA = TILE_KC + 16, /* odd number of cache lines */
    TILE_NC = KN_GEMM_NC,    /* chosen: 512 x 384 x 4 bytes = 768 KiB of B in L2 */
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
        TILE_CASE(1)
        TILE_CASE(2)
        TILE_CASE(3)
        TILE_CASE(4)
#if TILE_MR > 4
        TILE_CASE(5)
        TILE_CASE(6)
#endif
#if TILE_MR > 6
        TILE_CASE(7)
        TILE_CASE(8)
        TILE_CASE(9)
        TILE_CASE(10)
        TILE_CASE(11)
        TILE_CASE(12)
        TILE_CASE(13)
        TILE_CASE(14)
#endif
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

/* All row tiles of one block of B: panels [p0, p1), k units [k0, k0 + kc); b is that of panel p0.
 */
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

/* ---- coded weights ---- */

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

/* What blocks of k are cut in: coded weights in whole steps. */
static size_t tile_k_left(const struct kn_gemm_job *j, size_t left, size_t n_blocks)
{
    const size_t kc = (left + n_blocks - 1) / n_blocks;
    if (!j->coded) return kc;
    const size_t step = CODES_STEP / TILE_UNIT, whole = (kc + step - 1) / step * step;
    return whole < left ? whole : left;
}

static int tile_gemm(const struct kn_gemm_job *j, size_t panel0, size_t panel1)
{
    size_t units = (j->k + TILE_UNIT - 1) / TILE_UNIT;
    size_t n_kb = units ? (units + TILE_KC - 1) / TILE_KC : 1;
    const size_t step = TILE_NC / TILE_NR;
    if (j->coded && j->m <= TILE_MR) return tile_few(j, panel0, panel1);
    for (size_t p = panel0; p < panel1; p += step) {
        size_t pe = p + step < panel1 ? p + step : panel1;
        for (size_t kb = 0, k0 = 0; kb < n_kb; kb++) {
            const size_t kc = tile_k_left(j, units - k0, n_kb - kb);
            const elem *b = (const elem *)j->b + (p * units + k0) * TILE_NR;
            if (j->coded) b = tile_open(j, p, pe, k0, kc);
            int r = tile_block(j, p, pe, k0, kc, b, (j->coded ? kc : units) * TILE_NR);
            if (r < 0) return r;
            k0 += kc;
        }
    }
    return 0;
}

#endif
