/* The GEMM of few rows by codes as they are: see rows16.h.
 *
 * A step's codes of a vector of columns are eight registers of bytes, which meet all rows, four at
 * a time; nothing is unpacked to memory. Codes to come are asked for meanwhile, as most of the time
 * of few rows is that of reading them. Compiled for AVX2, AVX-VNNI and AVX-512 with VNNI, with AMX
 * as well, where tiles take more than four rows, and for NEON with products of 8 bits.
 * Thread: any. */
#include "kernels/cpu/rows16.h"
#include "base/assert.h"
#include "kernels/cpu/simd/cases.h"
#include "kernels/cpu/simd/table.h"
#include "kernels/cpu/simd/whole.h"

enum {
    UNITS = KN_ROWS16_UNITS,
    TOP = 127 * 256 + 127, /* the largest number: both of its bytes are signed */
    FEW = KN_ROWS16_FEW,   /* rows together */
    SUMS = 16,             /* rows that go through a panel together; chosen: 2 KiB of sums */
    STEPS_AHEAD = 8,       /* chosen */
    ZERO = KN_SIMD == 128 ? 0 : 128, /* of numbers of 8 bits: without a sign on x86 */
    BYTES_ZERO = (int)(ZERO * 0x01010101u),
};
static_assert((int64_t)TOP * 255 * CODES_STEP <= INT32_MAX, "a step's sum is whole");

#if KN_SIMD == 512
#include "kernels/cpu/simd/amx.h"
#define NAME(name) kn_avx512_##name
#define CODES8 true
enum { TOGETHER = 2 }; /* vectors whose codes fit into the registers */
#define byte_dot(c, a, b) ((whole)_mm512_dpbusd_epi32((__m512i)(c), (__m512i)(a), (__m512i)(b)))
#elif KN_SIMD == 128
#define NAME(name) kn_neon_##name
#define CODES8 true
enum { TOGETHER = 2 };
#define byte_dot(c, a, b) ((whole)vdotq_s32((int32x4_t)(c), (int8x16_t)(a), (int8x16_t)(b)))
#elif defined(__AVXVNNI__)
#define NAME(name) kn_avx2_vnni_##name
#define CODES8 true
enum { TOGETHER = 1 };
#define byte_dot(c, a, b) ((whole)_mm256_dpbusd_avx_epi32((__m256i)(c), (__m256i)(a), (__m256i)(b)))
#else
#define NAME(name) kn_avx2_##name
#define CODES8 false /* sums of pairs of products have 16 bits here */
enum { TOGETHER = 1 };
#endif

/* A step's codes of TOGETHER vectors: unit u has values 2u, 16 + 2u, 2u + 1, 17 + 2u. */
struct units {
    whole q[UNITS][TOGETHER];
    vf d[TOGETHER], m[TOGETHER];
};

/* ---- rows ---- */

static void round_step(const float *x, struct kn_rows16_step *to, float *scale, float *sum)
{
    enum { PARTS = CODES_STEP / VL };
    whole most = whole_set1(0), all = whole_set1(0);
#pragma GCC unroll 4
    for (int i = 0; i < PARTS; i++)
        most = whole_max(most, (whole)vf_load(x + i * VL) & INT32_MAX);
    const float top = whole_magnitude(whole_top(most));
    const vf by = vf_set1(TOP / top);
#pragma GCC unroll 2
    for (int i = 0; i < PARTS / 2; i++) {
        const whole a = whole_rounded(vf_load(x + i * VL), by);
        const whole b = whole_rounded(vf_load(x + (PARTS / 2 + i) * VL), by);
        all += ((a << 16) >> 16) + ((b << 16) >> 16);
        whole_store_halves(to->upper + i * VL / 2, ((a + 128) >> 8 & 255) | ((b + 128) & 0xff00));
        whole_store_halves(to->lower + i * VL / 2, (a & 255) | (b & 255) << 8);
    }
    *scale = top / TOP;
    *sum = *scale * vf_hsum(whole_vf(all));
}

static void round_rows(const float *a, size_t lda, size_t row, size_t n, const struct kn_rows16 *to)
{
    for (size_t r = row; r < row + n; r++)
        for (size_t i = 0, at = r; i < to->steps; i++, at += to->m)
            round_step(a + r * lda + i * CODES_STEP, to->q + at, to->scale + at, to->sum + at);
}

/* ---- sums ---- */

#if CODES8
VF_INLINE void step_sums(const int R, const struct kn_rows16_step *a, const struct units *b,
                         whole acc[FEW][TOGETHER])
{
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int v = 0; v < TOGETHER; v++)
            acc[r][v] = whole_set1(0);
#pragma GCC unroll 2
    for (int lower = 0; lower < 2; lower++) {
#pragma GCC unroll 4
        for (int r = 0; lower && r < R; r++)
#pragma GCC unroll 2
            for (int v = 0; v < TOGETHER; v++)
                acc[r][v] = acc[r][v] << 8;
#pragma GCC unroll 8
        for (int u = 0; u < UNITS; u++)
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                const whole av = whole_set1((int32_t)(lower ? a[r].lower : a[r].upper)[u]);
#pragma GCC unroll 2
                for (int v = 0; v < TOGETHER; v++)
                    acc[r][v] = byte_dot(acc[r][v], b->q[u][v], av);
            }
    }
}
#else
static_assert(2 * UNITS * 15 * 128 <= INT16_MAX, "sums of pairs are whole");
/* Holds the compiler to this order: it collects all products first otherwise, which are more than
 * there are registers. */
#define IN_ORDER(x) __asm__("" : "+x"(x))
VF_INLINE __m256i bytes_sum(const uint32_t *a, const struct units *b)
{
    __m256i sum = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int u = 0; u < UNITS; u++) {
        const __m256i av = _mm256_set1_epi32((int32_t)a[u]);
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16((__m256i)b->q[u][0], av));
        IN_ORDER(sum);
    }
    return sum;
}
VF_INLINE void step_sums(const int R, const struct kn_rows16_step *a, const struct units *b,
                         whole acc[FEW][TOGETHER])
{
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
        const __m256i upper = bytes_sum(a[r].upper, b), lower = bytes_sum(a[r].lower, b);
        acc[r][0] = (whole)_mm256_add_epi32(_mm256_madd_epi16(upper, _mm256_set1_epi16(256)),
                                            _mm256_madd_epi16(lower, _mm256_set1_epi16(1)));
    }
}
#endif

/* Of a row and a step to its sums. */
VF_INLINE vf step_add(whole x, vf d, vf m, float scale, float sum, vf to)
{
    to = vf_fma(vf_set1(sum), m, to);
    return vf_fma(vf_mul(whole_vf(x), d), vf_set1(scale), to);
}

/* R rows from `row` on by a step; sums [R][NR] go on. */
VF_INLINE void step_rows(const int R, const struct kn_rows16 *a, size_t step, size_t row,
                         const struct units *b, float *sums)
{
    const size_t at = step * a->m + row;
    whole acc[FEW][TOGETHER];
    step_sums(R, a->q + at, b, acc);
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int v = 0; v < TOGETHER; v++) {
            float *s = sums + r * NR + v * VL;
            vf_store(s, step_add(acc[r][v], b->d[v], b->m[v], a->scale[at + (size_t)r],
                                 a->sum[at + (size_t)r], vf_load(s)));
        }
}

/* ---- codes ---- */

VF_INLINE void open_nibbles(const uint8_t *codes, size_t v0, struct units *to)
{
#pragma GCC unroll 2
    for (size_t v = 0; v < TOGETHER; v++)
#pragma GCC unroll 4
        for (size_t w = 0; w < 4; w++) {
            const whole x = (whole)words_load(codes + ((v0 + v) * 4 + w) * VL * 4);
            to->q[w][v] = x & 0x0f0f0f0f;
            to->q[UNITS / 2 + w][v] = x >> 4 & 0x0f0f0f0f;
        }
}

/* Rows of k, two and two that are next to each other, become columns. */
VF_INLINE void open_bytes(const uint8_t *codes, size_t v0, struct units *to)
{
#if KN_SIMD == 512
    /* Words of 2u are in the lower half, of 2u + 1 in the upper one. */
    const __m512i order = _mm512_setr_epi32(
        0x100000, 0x110001, 0x120002, 0x130003, 0x140004, 0x150005, 0x160006, 0x170007, 0x300020,
        0x310021, 0x320022, 0x330023, 0x340024, 0x350025, 0x360026, 0x370027);
    const __m512i next = _mm512_add_epi32(order, _mm512_set1_epi32(0x80008));
    (void)v0;
#pragma GCC unroll 8
    for (size_t u = 0; u < UNITS; u++) {
        const __m512i x = _mm512_loadu_si512(codes + 2 * u * NR);
        const __m512i y = _mm512_loadu_si512(codes + (16 + 2 * u) * NR);
        /* Columns 0 to 7 and 16 to 23, and the others. */
        const __m512i low = _mm512_unpacklo_epi8(x, y), high = _mm512_unpackhi_epi8(x, y);
        to->q[u][0] = (whole)_mm512_permutex2var_epi16(low, order, high) ^ BYTES_ZERO;
        to->q[u][TOGETHER - 1] = (whole)_mm512_permutex2var_epi16(low, next, high) ^ BYTES_ZERO;
    }
#elif KN_SIMD == 128
    (void)v0;
#pragma GCC unroll 8
    for (size_t u = 0; u < UNITS; u++) {
        const int8x16_t x = vld1q_s8((const int8_t *)codes + 2 * u * NR);
        const int8x16_t y = vld1q_s8((const int8_t *)codes + (16 + 2 * u) * NR);
        const int16x8_t low = vreinterpretq_s16_s8(vzip1q_s8(x, y));
        const int16x8_t high = vreinterpretq_s16_s8(vzip2q_s8(x, y));
        to->q[u][0] = (whole)vzip1q_s16(low, high);
        to->q[u][1] = (whole)vzip2q_s16(low, high);
    }
#else
    const __m256i order = _mm256_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15, 0,
                                           1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
#pragma GCC unroll 8
    for (size_t u = 0; u < UNITS; u++) {
        const __m256i x = _mm256_loadu_si256((const void *)(codes + 2 * u * NR));
        const __m256i y = _mm256_loadu_si256((const void *)(codes + (16 + 2 * u) * NR));
        const __m256i pairs = v0 ? _mm256_unpackhi_epi8(x, y) : _mm256_unpacklo_epi8(x, y);
        const __m256i halves = _mm256_permute4x64_epi64(pairs, 0xd8);
        to->q[u][0] = (whole)_mm256_shuffle_epi8(halves, order) ^ BYTES_ZERO;
    }
#endif
}

VF_INLINE void open_units(const struct codes_form f, const uint8_t *panel, struct kn_step at,
                          size_t v0, struct units *to)
{
    struct codes_form is = f;
    if (f.bits == 8) is.low = -ZERO;
#pragma GCC unroll 2
    for (size_t v = 0; v < TOGETHER; v++)
        step_plain(is, panel, at, v0 + v, to->d + v, to->m + v);
    if (f.bits == 8)
        open_bytes(panel + at.codes, v0, to);
    else
        open_nibbles(panel + at.codes, v0, to);
}

/* For a step to come, of this panel or the one behind it. */
VF_INLINE void ask_ahead(const struct kn_layout *l, const uint8_t *panel, size_t step)
{
    const uint8_t *next = panel + (step + STEPS_AHEAD) * l->unit / l->steps;
    for (size_t line = 0; line < l->step; line += 64)
        __builtin_prefetch(next + line);
}

#define ROWS_CASE(rows)                                                                            \
    case rows:                                                                                     \
        step_rows(rows, a, i, row + r, &b, at + r * NR);                                           \
        break;
/* n rows from `row` on by a panel; sums [n][NR] go on. */
VF_INLINE void panel_rows(const struct codes_form f, const uint8_t *panel,
                          const struct kn_rows16 *a, size_t row, size_t n, float *sums)
{
    const struct kn_layout l = kn_layout(&f, NR);
    for (size_t i = 0; i < a->steps; i++) {
        ask_ahead(&l, panel, i);
#pragma GCC unroll 2
        for (size_t v = 0; v < NV; v += TOGETHER) {
            struct units b;
            open_units(f, panel, kn_step_at(&l, i), v, &b);
            float *at = sums + v * VL;
            size_t r = 0;
            for (; r + FEW <= n; r += FEW)
                step_rows(FEW, a, i, row + r, &b, at + r * NR);
            switch (n - r) {
                CASES(3, ROWS_CASE)
            }
        }
    }
}

#if KN_SIMD == 512
/* ---- tiles ----
 * A step's units are rows of a tile of B, eight rows' bytes, upper and lower in turns, those of A.
 * The sums are the same whole numbers, so the bits are, too. */

enum { TILES = SUMS / KN_ROWS16_TILE, CELLS = AMX_ROWS * AMX_COLS };
static_assert(2 * KN_ROWS16_TILE == AMX_ROWS && TILES == 2 && UNITS * 4 == CODES_STEP, "whole");

static void tiles_open(void)
{
    amx_open_as((struct amx_shapes){.rows = {16, 16, 16, 16, UNITS, UNITS, 16, 16},
                                    .row_bytes = {64, 64, 64, 64, 64, 64, CODES_STEP, CODES_STEP}});
}

/* What waits for its turn: a step's units and scales, then its sums. */
struct tiles_step {
    uint32_t q[NV][UNITS * VL];
    vf d[NV], m[NV];
};

VF_INLINE void tiles_unpack(const struct codes_form f, const uint8_t *panel, struct kn_step at,
                            struct tiles_step *to)
{
    struct units b;
    open_units(f, panel, at, 0, &b);
#pragma GCC unroll 2
    for (int v = 0; v < NV; v++) {
        to->d[v] = b.d[v];
        to->m[v] = b.m[v];
#pragma GCC unroll 8
        for (int u = 0; u < UNITS; u++)
            whole_store(to->q[v] + u * VL, b.q[u][v]);
    }
}

VF_INLINE void tiles_multiply(const struct kn_rows16_step *q, const bool two,
                              const struct tiles_step *b)
{
    amx_barrier();
    _tile_zero(0);
    _tile_zero(2);
    _tile_loadd(6, q, CODES_STEP);
    _tile_loadd(4, b->q[0], 64);
    _tile_dpbsud(0, 6, 4);
    _tile_loadd(5, b->q[1], 64);
    _tile_dpbsud(2, 6, 5);
    if (!two) return;
    _tile_zero(1);
    _tile_zero(3);
    _tile_loadd(7, q + KN_ROWS16_TILE, CODES_STEP);
    _tile_dpbsud(1, 7, 4);
    _tile_dpbsud(3, 7, 5);
}

VF_INLINE void tiles_store(const bool two, int32_t cells[NV][TILES][CELLS])
{
    _tile_stored(0, cells[0][0], 64);
    _tile_stored(2, cells[1][0], 64);
    if (two) {
        _tile_stored(1, cells[0][1], 64);
        _tile_stored(3, cells[1][1], 64);
    }
    amx_barrier();
}

/* n rows of a tile. */
VF_INLINE void tiles_add(const float *scale, const float *sum, size_t n, const int32_t *cells, vf d,
                         vf m, float *sums)
{
    for (size_t r = 0; r < n; r++, cells += 2 * VL, sums += NR) {
        const whole x = (whole_load(cells) << 8) + whole_load(cells + VL);
        vf_store(sums, step_add(x, d, m, scale[r], sum[r], vf_load(sums)));
    }
}

/* As panel_rows(). What a tile reads was written a step before, so that neither waits: at a time
 * one step is unpacked, the one before is multiplied, and the sums of one before go on. */
VF_INLINE void panel_tiles(const struct codes_form f, const uint8_t *panel,
                           const struct kn_rows16 *a, size_t row, size_t n, float *sums)
{
    enum { MULTIPLY = 1, STORE, ADD };
    const struct kn_layout l = kn_layout(&f, NR);
    const bool two = n > KN_ROWS16_TILE;
    const size_t first = two ? KN_ROWS16_TILE : n;
    struct tiles_step b[4];
    int32_t cells[2][NV][TILES][CELLS] __attribute__((aligned(64)));
    for (size_t i = 0; i < a->steps + ADD; i++) {
        if (i < a->steps) {
            ask_ahead(&l, panel, i);
            tiles_unpack(f, panel, kn_step_at(&l, i), &b[i % 4]);
        }
        if (i >= STORE && i - STORE < a->steps) tiles_store(two, cells[i % 2]);
        if (i >= MULTIPLY && i - MULTIPLY < a->steps)
            tiles_multiply(a->q + (i - MULTIPLY) * a->m + row, two, &b[(i - MULTIPLY) % 4]);
        if (i < ADD) continue;
        const struct tiles_step *of = &b[(i - ADD) % 4];
        const size_t at = (i - ADD) * a->m + row;
#pragma GCC unroll 2
        for (int v = 0; v < NV; v++) {
            int32_t(*x)[CELLS] = cells[(i - 1) % 2][v];
            tiles_add(a->scale + at, a->sum + at, first, x[0], of->d[v], of->m[v], sums + v * VL);
            if (two)
                tiles_add(a->scale + at + first, a->sum + at + first, n - first, x[1], of->d[v],
                          of->m[v], sums + first * NR + v * VL);
        }
    }
}
#else
#define panel_tiles panel_rows
#endif

/* ---- panels ---- */

VF_INLINE void panel_sums(const struct kn_gemm_job *j, const bool tiles, size_t p, size_t row,
                          size_t n, float *sums)
{
    const struct kn_panel *panel = &j->coded->panel[p];
#define TRY(...)                                                                                   \
    {                                                                                              \
        const struct codes_form is = __VA_ARGS__;                                                  \
        if (kn_codes_whole(&is, CODES8) && codes_form_same(&panel->form, &is)) {                   \
            const uint8_t *data = j->coded->data + panel->at;                                      \
            (tiles ? panel_tiles : panel_rows)(is, data, j->rows16, row, n, sums);                 \
            return;                                                                                \
        }                                                                                          \
    }
    CODES_FORMS(TRY)
#undef TRY
}

VF_INLINE int panels(const struct kn_gemm_job *j, const bool tiles, size_t panel0, size_t panel1)
{
    for (size_t p = panel0; p < panel1; p++) {
        if (kn_cancelled(j->cancel)) return -ECANCELED;
        for (size_t row = 0, n; row < j->m; row += n) {
            float sums[SUMS * NR] __attribute__((aligned(64)));
            n = j->m - row < SUMS ? j->m - row : SUMS;
            sums_begin(j, row, n, p, true, sums);
            panel_sums(j, tiles, p, row, n, sums);
            sums_end(j, row, n, p, sums);
        }
    }
    return 0;
}

static int gemm(const struct kn_gemm_job *j, size_t panel0, size_t panel1)
{
    return panels(j, false, panel0, panel1);
}

const struct kn_rows16_ops NAME(rows16) = {CODES8, round_rows, gemm};

#if KN_SIMD == 512
static int gemm_tiles(const struct kn_gemm_job *j, size_t panel0, size_t panel1)
{
    if (j->m <= KN_ROWS16_FEW) return gemm(j, panel0, panel1);
    tiles_open();
    const int r = panels(j, true, panel0, panel1);
    _tile_release();
    return r;
}

const struct kn_rows16_ops kn_amx_rows16 = {CODES8, round_rows, gemm_tiles};
#endif
