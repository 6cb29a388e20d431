/* The GEMM in 8 bits: rows rotated and rounded, products by vpdpbusd, sdot or AMX tiles, all the
 * same bits.
 *
 * A rotation is six rounds of sums and differences of two, whose order is the same in all widths of
 * vectors, so rows are the same bytes everywhere; sums are whole numbers, scaled once at the end.
 * So an output's bits depend on its own row alone. Weights come in pieces of a panel, at most KC
 * values of k, which stay in L1 while tiles take all rows (as a stream, so that these do not push
 * it out); where rows are longer than an L2 takes, some panels share each part of k, so that it is
 * read once for all of them. Registers, which read their few rows value by value, keep those in L1
 * instead and take the pieces of these panels from L2. Sums of a part wait in the job's room.
 * Compiled for AVX-512 with VNNI and AMX, for AVX-VNNI, and for NEON with products of 8 bits
 * (Armv8.2 dotprod). Thread: any. */
#include "base/assert.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd/cases.h"
#include "kernels/cpu/simd/hadamard.h"
#include "kernels/cpu/simd/whole.h"
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
    MR_MOST = 32,      /* two row tiles of AMX */
    KC = 1152,         /* of k in a piece; chosen: 36 of 48 KiB of an L1 */
    MC = 256,          /* rows at a time; chosen: what a thread gets at most (kn_rows) */
    NP = 16,           /* panels that share a part of k; chosen: their pieces are 576 KiB */
    A_BYTES = 1 << 20, /* of rows; chosen: half of an L2 */
};
#define ZERO (KN_SIMD == 128 ? 0 : 128) /* kn_int8.zero of what tile_sums() reads */

#if KN_SIMD == 512
#define NAME(name) kn_avx512_##name
#define whole_dot(c, b, a) ((whole)_mm512_dpbusd_epi32((__m512i)(c), (__m512i)(b), (__m512i)(a)))
#elif KN_SIMD == 128
#define NAME(name) kn_neon_##name
#define whole_dot(c, b, a) ((whole)vdotq_s32((int32x4_t)(c), (int8x16_t)(b), (int8x16_t)(a)))
#else
#define NAME(name) kn_avx2_##name
#define whole_dot(c, b, a)                                                                         \
    ((whole)_mm256_dpbusd_avx_epi32((__m256i)(c), (__m256i)(b), (__m256i)(a)))
#endif

/* ---- rows ---- */

enum { STEP_V = HADAMARD / VL }; /* vectors of a step */

/* All of a row; the bits of its largest magnitude, of what is no number if there is any. */
static int32_t rotate_row(const float *a, size_t k, float *to)
{
    whole top = whole_set1(0);
    for (size_t at = 0; at < k; at += KN_INT8_STEP) {
        vf x[STEP_V];
#pragma GCC unroll 16
        for (size_t i = 0; i < STEP_V; i++) {
            const size_t from = at + i * VL, n = from < k ? k - from : 0;
            x[i] = n >= VL ? vf_load(a + from) : vf_loadn(a + (n ? from : 0), n);
        }
        hadamard(x);
#pragma GCC unroll 16
        for (size_t i = 0; i < STEP_V; i++) {
            top = whole_max(top, (whole)x[i] & 0x7fffffff);
            vf_store(to + at + i * VL, x[i]);
        }
    }
    return whole_top(top);
}

/* Rounds n values, whole steps; their sum. Four vectors become one, each lane a byte of each: an
 * order within a step that weights have, too. */
static int32_t round_row(const float *x, size_t n, float by, int8_t *q)
{
    const whole ones = whole_set1(0x01010101);
    whole sum = whole_set1(0);
    for (size_t at = 0; at < n; at += 4 * VL) {
        whole byte[4];
#pragma GCC unroll 4
        for (size_t i = 0; i < 4; i++)
            byte[i] = whole_rounded(vf_load(x + at + i * VL), vf_set1(by));
        const whole four = whole_bytes(byte);
        memcpy(q + at, &four, sizeof four);
        sum = whole_dot(sum, ones, four);
    }
    int32_t all = 0;
    for (int i = 0; i < VL; i++)
        all += sum[i];
    return all;
}

/* What is not a number, or no finite one, is in the scale. */
void NAME(int8_rows)(const float *a, size_t lda, size_t m, size_t k, float *room,
                     const struct kn_int8_rows *to)
{
    for (size_t r = 0; r < m; r++) {
        const int32_t bits = rotate_row(a + r * lda, k, room);
        float top;
        memcpy(&top, &bits, sizeof top);
        to->sum[r] =
            round_row(room, kn_int8_k(k), top > 0x1p-100f ? 127 / top : 0, to->q + r * to->stride);
        to->scale[r] = top / (127 * 8);
    }
}

/* ---- to C ---- */

/* Rows by a part of a panel's k, from k0 on, which is b. */
struct tile {
    size_t row, p, k0, kc;
    unsigned R;
    const uint8_t *b;
    int32_t *sums; /* [R][NR]: they begin with k0 = 0, and go on behind it */
};

static void tile_end(const struct kn_gemm_job *j, const struct tile *t)
{
    for (size_t v = 0, at = t->p * NR; v < NR; v += VL, at += VL)
        whole_add(j, t->row, t->R, at,
                  (struct whole_sums){t->sums + v, j->rows->scale + t->row, j->int8->scale + at,
                                      j->bias, j->accumulate});
}

/* Sums of a panel of gates and of its panel of the other half: rows [done, R) are still to pass. */
struct gates {
    const int32_t *gate, *up;
    size_t row, p;
    unsigned done, R, due; /* due: on tiles, at either place between a step's products */
};

/* Of R rows, so that all are done within so many steps. */
static unsigned rows_due(unsigned R, size_t steps)
{
    return (unsigned)((R + 2 * steps - 1) / (2 * steps));
}

VF_INLINE void gates_row(const struct kn_gemm_job *j, size_t row, size_t at, const int32_t *sums,
                         float *to)
{
    const vf by = vf_set1(j->rows->scale[row]);
#pragma GCC unroll 2
    for (size_t v = 0; v < NR; v += VL) {
        const vf bias = j->bias ? vf_load(j->bias + at + v) : vf_set1(0);
        const vf scale = vf_mul(by, vf_load(j->int8->scale + at + v));
        vf_store(to + v, vf_fma(whole_vf(whole_load(sums + v)), scale, bias));
    }
}

/* At most n rows more. */
static void gates_pass(const struct kn_gemm_job *j, struct gates *g, unsigned n)
{
    float x[2][NR] __attribute__((aligned(64)));
    for (; n && g->done < g->R; n--, g->done++) {
        const size_t row = g->row + g->done, at = g->p * NR;
        gates_row(j, row, at, g->gate + g->done * NR, x[0]);
        gates_row(j, row, j->n / 2 + at, g->up + g->done * NR, x[1]);
        j->glu(x[0], x[1], NR, (float *)j->gated + row * j->ldg + at);
    }
}

/* ---- sums ---- */

/* R rows by a piece of a panel, units of four k each; they go on from `sums`, or begin. */
VF_INLINE void tile_rows(const int R, const int8_t *a, size_t lda, const uint8_t *b, size_t units,
                         const int32_t *begin, int32_t *sums)
{
    whole acc[MR][NV];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int v = 0; v < NV; v++)
            acc[r][v] = begin ? whole_set1(ZERO ? -ZERO * begin[r] : 0)
                              : whole_load(sums + r * NR + v * VL);
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

typedef void (*sums_fn)(const struct kn_gemm_job *j, const struct tile *t, struct gates *g);

#define TILE_CASE(n)                                                                               \
    case n:                                                                                        \
        tile_rows(n, a, lda, t->b, t->kc / 4, begin, t->sums);                                     \
        break;
static void tile_sums(const struct kn_gemm_job *j, const struct tile *t, struct gates *g)
{
    const size_t lda = j->rows->stride;
    const int8_t *a = j->rows->q + t->row * lda + t->k0;
    const int32_t *begin = t->k0 == 0 ? j->rows->sum + t->row : NULL;
    gates_pass(j, g, g->R);
    switch (t->R) {
        CASES(MR, TILE_CASE)
    }
}

#if KN_SIMD == 512
/* What is done between products of tiles. */
VF_INLINE void between(const struct kn_gemm_job *j, struct amx_claim *x, struct gates *g)
{
    amx_claim(x);
    if (j->glu) gates_pass(j, g, g->due);
}

/* Two row tiles, or one. */
static void amx_sums(const struct kn_gemm_job *j, const struct tile *t, struct gates *g)
{
    enum { LDB = NR * 4 };
    const size_t lda = j->rows->stride, steps = t->kc / KN_INT8_STEP;
    const int8_t *a = j->rows->q + t->row * lda + t->k0;
    const uint8_t *b = t->b;
    float *half[2] = {(float *)(void *)t->sums, (float *)(void *)(t->sums + AMX_ROWS * NR)};
    const bool two = t->R > AMX_ROWS, to_c = !j->glu && t->k0 + t->kc == j->int8->k;
    struct amx_claim claim = {j->c + t->row * j->ldc + t->p * NR, j->ldc, to_c ? t->R : 0,
                              rows_due(t->R, steps)};
    for (int h = 0; h <= two; h++)
        amx_load(h, t->k0 ? half[h] : NULL, NR);
    for (size_t i = 0; i < steps; i++, a += KN_INT8_STEP, b += KN_INT8_STEP * NR) {
        _tile_loadd(6, b, LDB);
        _tile_loadd(7, b + 4 * VL, LDB);
        _tile_stream_loadd(4, a, lda);
        _tile_dpbssd(0, 4, 6);
        between(j, &claim, g);
        _tile_dpbssd(1, 4, 7);
        if (two) {
            _tile_stream_loadd(5, a + AMX_ROWS * lda, lda);
            _tile_dpbssd(2, 5, 6);
        }
        between(j, &claim, g);
        if (two) _tile_dpbssd(3, 5, 7);
    }
    for (int h = 0; h <= two; h++)
        amx_store(h, half[h], NR);
    amx_barrier();
}
#endif

/* ---- blocks ---- */

/* What is multiplied at a time: rows [row0, row1) by a part of k, panels that share it. */
struct part {
    size_t row0, row1, p0, p1, k0, kc;
    size_t high, n; /* rows of a tile; tiles so far */
    int32_t *sums;  /* [panels][tiles][high][NR] */
    struct gates gates;
};

/* How tiles are gone through: their height, equal or as high as may be; how many panels every tile
 * of rows goes by before the next one, 0: all of the part. */
struct way {
    size_t tile_m, side;
    bool even;
    sums_fn sums;
};

/* A tile of rows by panel x->p0 + i, its sums in this room; of the panel before in that one. */
VF_INLINE void one_tile(const struct kn_gemm_job *j, struct part *x, size_t row, size_t i,
                        size_t room, size_t before, const sums_fn sums_of)
{
    const size_t k = j->int8->k, cells = x->high * NR;
    const size_t p = j->glu ? gated_panel(j->n, x->p0 + i) : x->p0 + i;
    const size_t left = x->row1 - row, steps = x->kc / KN_INT8_STEP;
    const struct tile t = {.row = row,
                           .p = p,
                           .k0 = x->k0,
                           .kc = x->kc,
                           .R = (unsigned)(left < x->high ? left : x->high),
                           .b = j->int8->panel + (p * k + x->k0) * NR,
                           .sums = x->sums + room * cells};
    sums_of(j, &t, &x->gates);
    if (x->k0 + x->kc < k) return;
    if (!j->glu)
        tile_end(j, &t);
    else if (i % 2)
        x->gates = (struct gates){.gate = x->sums + before * cells,
                                  .up = t.sums,
                                  .row = row,
                                  .p = p - j->n / 2 / NR,
                                  .R = t.R,
                                  .due = rows_due(t.R, x->kc < k ? steps : 2 * steps)};
}

/* Sums of a part of k wait for the next part; gates for their other half and two tiles more. */
VF_INLINE int one_part(const struct kn_gemm_job *j, struct part *x, const struct way w)
{
    const size_t m = x->row1 - x->row0, n_tiles = (m + w.tile_m - 1) / w.tile_m;
    const size_t n_panels = x->p1 - x->p0, side = w.side ? w.side : n_panels;
    const size_t rooms = j->glu ? 4 : 2;
    const bool parts = x->kc < j->int8->k;
    x->high = w.even ? (m + n_tiles - 1) / n_tiles : w.tile_m;
    for (size_t first = 0; first < n_panels; first += side)
        for (size_t tile = 0; tile < n_tiles; tile++)
            for (size_t i = first; i < first + side; i++, x->n++) {
                const size_t room = parts ? i * n_tiles + tile : x->n % rooms;
                const size_t before = parts ? room - n_tiles : (x->n - 1) % rooms;
                if (kn_cancelled(j->cancel)) return -ECANCELED;
                one_tile(j, x, x->row0 + tile * x->high, i, room, before, w.sums);
            }
    return 0;
}

VF_INLINE int int8_gemm(const struct kn_gemm_job *j, size_t panel0, size_t panel1,
                        const struct way w)
{
    const size_t k = j->int8->k, n_parts = (k + KC - 1) / KC;
    const size_t kc = (k / KN_INT8_STEP + n_parts - 1) / n_parts * KN_INT8_STEP;
    struct part x = {.sums = j->block};
    static_assert((MC + MR_MOST) * NR * NP * sizeof *x.sums <= KN_GEMM_BLOCK, "room for sums");
    for (x.row0 = 0; x.row0 < j->m; x.row0 = x.row1) {
        x.row1 = j->m - x.row0 < MC ? j->m : x.row0 + MC;
        const size_t np = w.side == 0 || (x.row1 - x.row0) * k > A_BYTES ? NP : w.side;
        for (x.p0 = panel0; x.p0 < panel1; x.p0 = x.p1) {
            x.p1 = panel1 - x.p0 < np ? panel1 : x.p0 + np;
            for (x.k0 = 0; x.k0 < k; x.k0 += x.kc) {
                x.kc = k - x.k0 < kc ? k - x.k0 : kc;
                const int r = one_part(j, &x, w);
                if (r < 0) return r;
            }
        }
    }
    gates_pass(j, &x.gates, x.gates.R);
    return 0;
}

int NAME(gemm_int8)(const struct kn_gemm_job *j, size_t panel0, size_t panel1)
{
    return int8_gemm(j, panel0, panel1, (struct way){MR, 0, true, tile_sums});
}

#if KN_SIMD == 512
int kn_gemm_int8_amx(const struct kn_gemm_job *j, size_t panel0, size_t panel1)
{
    amx_open();
    int r =
        int8_gemm(j, panel0, panel1, (struct way){2 * AMX_ROWS, j->glu ? 2 : 1, false, amx_sums});
    _tile_release();
    return r;
}
#endif
