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
#define LANES(s)                                                                                   \
    0 ^ s, 1 ^ s, 2 ^ s, 3 ^ s, 4 ^ s, 5 ^ s, 6 ^ s, 7 ^ s, 8 ^ s, 9 ^ s, 10 ^ s, 11 ^ s, 12 ^ s,  \
        13 ^ s, 14 ^ s, 15 ^ s
#elif KN_SIMD == 128
#define NAME(name) kn_neon_##name
#define whole_dot(c, b, a) ((whole)vdotq_s32((int32x4_t)(c), (int8x16_t)(b), (int8x16_t)(a)))
#define LANES(s) 0 ^ s, 1 ^ s, 2 ^ s, 3 ^ s
#else
#define NAME(name) kn_avx2_##name
#define whole_dot(c, b, a)                                                                         \
    ((whole)_mm256_dpbusd_avx_epi32((__m256i)(c), (__m256i)(b), (__m256i)(a)))
#define LANES(s) 0 ^ s, 1 ^ s, 2 ^ s, 3 ^ s, 4 ^ s, 5 ^ s, 6 ^ s, 7 ^ s
#endif

/* ---- rows ---- */

enum { STEP_V = KN_INT8_STEP / VL }; /* vectors of a step */

/* Values of a vector and those s lanes away: sums in the lower lane, differences in the upper one.
 * A product by 1 or -1 is exact, so this is an addition's bits. */
VF_INLINE vf fold(vf x, vf away, const int s)
{
    vf sign;
    for (int i = 0; i < VL; i++)
        sign[i] = i & s ? -1.0f : 1.0f;
    return vf_fma(x, sign, away);
}

/* A step by the Hadamard matrix, times 8. */
VF_INLINE void rotate(vf x[STEP_V])
{
#pragma GCC unroll 8
    for (int s = STEP_V / 2; s > 0; s /= 2)
#pragma GCC unroll 16
        for (int i = 0; i < STEP_V; i++)
            if (!(i & s)) {
                const vf a = x[i], b = x[i + s];
                x[i] = vf_add(a, b);
                x[i + s] = vf_sub(a, b);
            }
#pragma GCC unroll 16
    for (int i = 0; i < STEP_V; i++) {
#define FOLD(s) x[i] = fold(x[i], __builtin_shufflevector(x[i], x[i], LANES(s)), s)
#if KN_SIMD == 512
        FOLD(8);
#endif
#if KN_SIMD != 128
        FOLD(4);
#endif
        FOLD(2);
        FOLD(1);
#undef FOLD
    }
}

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
        rotate(x);
#pragma GCC unroll 16
        for (size_t i = 0; i < STEP_V; i++) {
            top = whole_max(top, (whole)x[i] & 0x7fffffff);
            vf_store(to + at + i * VL, x[i]);
        }
    }
    return whole_top(top);
}

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

/* Rounds n values, whole steps; their sum. A loop that the compiler makes vectors of: adding
 * 1.5 * 2^23 leaves a whole number in the lower bits. */
static int32_t round_row(const float *x, size_t n, float by, int8_t *q)
{
    const whole ones = whole_set1(0x01010101);
    whole sum = whole_set1(0);
    for (size_t at = 0; at < n; at += KN_INT8_STEP) {
        for (size_t i = 0; i < KN_INT8_STEP; i++)
            q[at + i] = (int8_t)bits_of(x[at + i] * by + 12582912.0f);
        for (size_t i = 0; i < KN_INT8_STEP; i += 4 * VL)
            sum = whole_dot(sum, ones, whole_load(q + at + i));
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

/* Rows [row, row + R) by values [k0, k0 + kc) of a panel, b. */
typedef void (*sums_fn)(const struct kn_gemm_job *j, size_t row, unsigned R, const uint8_t *b,
                        size_t k0, size_t kc, int32_t *sums);

#define TILE_CASE(n)                                                                               \
    case n:                                                                                        \
        tile_rows(n, a, lda, b, kc / 4, begin, sums);                                              \
        break;
static void tile_sums(const struct kn_gemm_job *j, size_t row, unsigned R, const uint8_t *b,
                      size_t k0, size_t kc, int32_t *sums)
{
    const size_t lda = j->rows->stride;
    const int8_t *a = j->rows->q + row * lda + k0;
    const int32_t *begin = k0 == 0 ? j->rows->sum + row : NULL;
    switch (R) {
        CASES(MR, TILE_CASE)
    }
}

#if KN_SIMD == 512
/* Two row tiles, or one. */
static void amx_sums(const struct kn_gemm_job *j, size_t row, unsigned R, const uint8_t *b,
                     size_t k0, size_t kc, int32_t *sums)
{
    enum { LDB = NR * 4 };
    const size_t lda = j->rows->stride;
    const int8_t *a = j->rows->q + row * lda + k0;
    float *half[2] = {(float *)(void *)sums, (float *)(void *)(sums + AMX_ROWS * NR)};
    const bool two = R > AMX_ROWS;
    for (int h = 0; h <= two; h++)
        amx_load(h, k0 ? half[h] : NULL, NR);
    for (size_t k = 0; k < kc; k += KN_INT8_STEP, a += KN_INT8_STEP, b += KN_INT8_STEP * NR) {
        _tile_loadd(6, b, LDB);
        _tile_loadd(7, b + 4 * VL, LDB);
        _tile_stream_loadd(4, a, lda);
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 4, 7);
        if (!two) continue;
        _tile_stream_loadd(5, a + AMX_ROWS * lda, lda);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
    }
    for (int h = 0; h <= two; h++)
        amx_store(h, half[h], NR);
    amx_barrier();
}
#endif

/* ---- to C ---- */

/* Columns [at, at + VL), or as many as there are, of R rows. */
VF_INLINE void add_columns(const struct kn_gemm_job *j, size_t row, unsigned R, size_t at,
                           const int32_t *sums)
{
    whole_add(j, row, R, at,
              (struct whole_sums){sums, j->rows->scale + row, j->int8->scale + at, j->bias,
                                  j->accumulate});
}

/* ---- blocks ---- */

/* What is multiplied at a time: rows [row0, row1) by a part of k, panels that share it. */
struct part {
    size_t row0, row1, p0, p1, k0, kc;
    int32_t *sums; /* [panels][tiles][rows of one][NR] */
};

/* How tiles are gone through: their height, equal or as high as may be; rows by rows or by
 * panels. */
struct way {
    size_t tile_m;
    bool even, by_rows;
    sums_fn sums;
};

VF_INLINE void one_tile(const struct kn_gemm_job *j, const struct part *x, size_t row, unsigned R,
                        size_t p, int32_t *sums, const sums_fn sums_of)
{
    const size_t k = j->int8->k;
    sums_of(j, row, R, j->int8->panel + (p * k + x->k0) * NR, x->k0, x->kc, sums);
    if (x->k0 + x->kc < k) return;
    for (size_t v = 0; v < NV; v++)
        add_columns(j, row, R, p * NR + v * VL, sums + v * VL);
}

VF_INLINE int one_part(const struct kn_gemm_job *j, const struct part *x, const struct way w)
{
    const size_t m = x->row1 - x->row0, n_tiles = (m + w.tile_m - 1) / w.tile_m;
    const size_t high = w.even ? (m + n_tiles - 1) / n_tiles : w.tile_m;
    const size_t n_panels = x->p1 - x->p0, k = j->int8->k;
    for (size_t i = 0; i < n_tiles * n_panels; i++) {
        const size_t tile = w.by_rows ? i / n_panels : i % n_tiles;
        const size_t panel = w.by_rows ? i % n_panels : i / n_tiles;
        const size_t row = x->row0 + tile * high, left = x->row1 - row;
        if (kn_cancelled(j->cancel)) return -ECANCELED;
        one_tile(j, x, row, (unsigned)(left < high ? left : high), x->p0 + panel,
                 x->sums + (x->kc < k ? panel * n_tiles + tile : i % 2) * high * NR, w.sums);
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
        const size_t np = w.by_rows || (x.row1 - x.row0) * k > A_BYTES ? NP : 1;
        for (x.p0 = panel0; x.p0 < panel1; x.p0 = x.p1) {
            x.p1 = panel1 - x.p0 < np ? panel1 : x.p0 + np;
            for (x.k0 = 0; x.k0 < k; x.k0 += x.kc) {
                x.kc = k - x.k0 < kc ? k - x.k0 : kc;
                const int r = one_part(j, &x, w);
                if (r < 0) return r;
            }
        }
    }
    return 0;
}

int NAME(gemm_int8)(const struct kn_gemm_job *j, size_t panel0, size_t panel1)
{
    return int8_gemm(j, panel0, panel1, (struct way){MR, true, true, tile_sums});
}

#if KN_SIMD == 512
int kn_gemm_int8_amx(const struct kn_gemm_job *j, size_t panel0, size_t panel1)
{
    amx_open();
    int r = int8_gemm(j, panel0, panel1, (struct way){2 * AMX_ROWS, false, false, amx_sums});
    _tile_release();
    return r;
}
#endif
