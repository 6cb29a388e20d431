/* gemm_tile: the blocked GEMM, included by gemm.c (f32) and gemm_bf16.c (bf16 pairs).
 *
 * The includer defines TILE_MR, TILE_NV (vectors across), elem (one packed unit of the k axis: an
 * f32, or a pair of bf16), tile_load_a() and tile_fma(). Each output element is one chain of FMAs
 * over k in ascending order, started from 0, the bias or C; a k block ends by storing the exact
 * f32 chain value in C and the next one goes on from there. So its bits depend on its own row
 * alone, whatever m, the tile height or the column range of the call.
 * Blocking: a tile of A rows [TILE_MR, kc] is copied to a buffer of constant stride (L1, no set
 * conflicts whatever lda is), B panels [kc, nr] stream past it from L2, TILE_NC columns at a time
 * so that a block of B is read from L2 by all row tiles. Thread: any. */
#ifndef KERNELS_CPU_SIMD_GEMM_TILE_H
#define KERNELS_CPU_SIMD_GEMM_TILE_H

enum {
    TILE_NR = TILE_NV * VL,
    TILE_KC = 384,           /* chosen: 14 x 384 x 4 bytes = half of a 48 KiB L1 */
    TILE_LDA = TILE_KC + 16, /* odd number of cache lines */
    TILE_NC = 512,           /* chosen: 512 x 384 x 4 bytes = 768 KiB of B in L2 */
    TILE_AHEAD = 24,         /* k steps of software prefetch */
};

struct tile_c {
    float *c;
    size_t ldc;
    const float *bias; /* added at the start, or NULL */
    bool load;         /* go on from C */
};

VF_INLINE void tile_rows(const int R, const elem *a, const elem *b, size_t kc, struct tile_c t)
{
    vf acc[TILE_MR][TILE_NV];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int v = 0; v < TILE_NV; v++) {
            acc[r][v] = t.load ? vf_load(t.c + (size_t)r * t.ldc + v * VL) : vf_set1(0.0f);
            if (t.bias) acc[r][v] = vf_add(acc[r][v], vf_load(t.bias + v * VL));
        }
    for (size_t k = 0; k < kc; k++, a++, b += TILE_NR) {
        tile_b bv[TILE_NV];
#pragma GCC unroll 4
        for (int v = 0; v < TILE_NV; v++) {
            bv[v] = tile_load_b(b + v * VL);
            __builtin_prefetch(b + TILE_AHEAD * TILE_NR + v * VL);
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            tile_b av = tile_load_a(a + r * TILE_LDA);
#pragma GCC unroll 4
            for (int v = 0; v < TILE_NV; v++)
                acc[r][v] = tile_fma(av, bv[v], acc[r][v]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int v = 0; v < TILE_NV; v++)
            vf_store(t.c + (size_t)r * t.ldc + v * VL, acc[r][v]);
}

#define TILE_CASE(n)                                                                               \
    case n:                                                                                        \
        tile_rows(n, a, b, kc, t);                                                                 \
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

/* All row tiles of one block of B: panels [p0, p1), k units [k0, k0 + kc). */
static int tile_block(const struct kn_gemm_job *j, size_t p0, size_t p1, size_t k0, size_t kc)
{
    elem atile[TILE_MR * TILE_LDA] __attribute__((aligned(64)));
    size_t units = (j->k + TILE_UNIT - 1) / TILE_UNIT;
    size_t n_tiles = (j->m + TILE_MR - 1) / TILE_MR;
    for (size_t i = 0, row = 0; i < n_tiles; i++) {
        unsigned R = (unsigned)((j->m - row + n_tiles - i - 1) / (n_tiles - i));
        if (kn_cancelled(j->cancel)) return -ECANCELED;
        for (unsigned r = 0; r < R; r++)
            tile_copy_a(atile + r * TILE_LDA, j->a + (row + r) * j->lda, j->k, k0, kc);
        for (size_t p = p0; p < p1; p++) {
            const elem *b = (const elem *)j->b + (p * units + k0) * TILE_NR;
            struct tile_c t = {j->c + row * j->ldc + p * TILE_NR, j->ldc,
                               k0 == 0 && j->bias ? j->bias + p * TILE_NR : NULL,
                               k0 != 0 || j->accumulate};
            size_t width = j->n - p * TILE_NR;
            if (width >= TILE_NR)
                tile_run(R, atile, b, kc, t);
            else
                tile_edge(R, width, atile, b, kc, t);
        }
        row += R;
    }
    return 0;
}

static int tile_gemm(const struct kn_gemm_job *j, size_t panel0, size_t panel1)
{
    size_t units = (j->k + TILE_UNIT - 1) / TILE_UNIT;
    size_t n_kb = units ? (units + TILE_KC - 1) / TILE_KC : 1;
    const size_t step = TILE_NC / TILE_NR;
    for (size_t p = panel0; p < panel1; p += step) {
        size_t pe = p + step < panel1 ? p + step : panel1;
        for (size_t kb = 0, k0 = 0; kb < n_kb; kb++) {
            size_t kc = (units - k0 + n_kb - kb - 1) / (n_kb - kb);
            int r = tile_block(j, p, pe, k0, kc);
            if (r < 0) return r;
            k0 += kc;
        }
    }
    return 0;
}

#endif
