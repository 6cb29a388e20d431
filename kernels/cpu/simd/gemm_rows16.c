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
    TOP8 = 127,
    FEW = KN_ROWS16_FEW,             /* rows together */
    SUMS = 48,                       /* rows that go through a panel together: 6 KiB of sums */
    SUMS_TILES = 2 * KN_ROWS16_TILE, /* the same by tiles: as many as there are */
    ZERO = KN_SIMD == 128 ? 0 : 128, /* of numbers of 8 bits: without a sign on x86 */
    BYTES_ZERO = (int)(ZERO * 0x01010101u),
    EVEN = 0x00ff00ff, /* bytes */
};
/* Numbers of 16 bits, of 8, by vectors; of 16 bits by tiles. */
enum way { NUMBERS, BYTES, TILES };
static_assert((int64_t)TOP * 255 * CODES_STEP <= INT32_MAX, "a step's sum is whole");

#if KN_SIMD == 512
#include "kernels/cpu/simd/amx.h"
#define NAME(name) kn_avx512_##name
#define NIBBLES_ONLY false
enum { TOGETHER = 2 }; /* vectors whose codes fit into the registers */
#define byte_dot(c, a, b) ((whole)_mm512_dpbusd_epi32((__m512i)(c), (__m512i)(a), (__m512i)(b)))
#elif KN_SIMD == 128
#define NAME(name) kn_neon_##name
#define NIBBLES_ONLY false
enum { TOGETHER = 2 };
#define byte_dot(c, a, b) ((whole)vdotq_s32((int32x4_t)(c), (int8x16_t)(a), (int8x16_t)(b)))
#elif defined(__AVXVNNI__)
#define NAME(name) kn_avx2_vnni_##name
#define NIBBLES_ONLY false
enum { TOGETHER = 1 };
#define byte_dot(c, a, b) ((whole)_mm256_dpbusd_avx_epi32((__m256i)(c), (__m256i)(a), (__m256i)(b)))
#else
#define NAME(name) kn_avx2_##name
#define NIBBLES_ONLY true /* sums of pairs of products have 16 bits here */
enum { TOGETHER = 1 };
#endif

/* A step's codes of TOGETHER vectors: unit u has values 2u, 16 + 2u, 2u + 1, 17 + 2u; of codes with
 * two scales unit u of a half has 2u, 8 + 2u, 2u + 1, 9 + 2u. */
struct units {
    whole q[UNITS][TOGETHER];
    struct scales s[TOGETHER];
};

/* ---- rows ---- */

/* The value whose byte is the first of a pair; that of the second one is group / 2 behind it. */
VF_INLINE size_t first_of(size_t pair, size_t group)
{
    return pair / (group / 2) * group + pair % (group / 2);
}

/* Of pairs [pair, pair + VL). */
VF_INLINE vf firsts(const float *x, size_t pair, const size_t group)
{
    const float *from = x + first_of(pair, group);
#if KN_SIMD == 512
    if (group < CODES_STEP) return _mm512_mask_loadu_ps(vf_loadn(from, 8), 0xff00, from + 8);
#endif
    return vf_load(from);
}

VF_INLINE void put_numbers(const float *x, vf by, const size_t group, const bool bytes,
                           struct kn_rows16_step *to)
{
#pragma GCC unroll 4
    for (size_t i = 0; i < CODES_STEP / 2; i += VL) {
        const whole a = whole_rounded(firsts(x, i, group), by);
        const whole b = whole_rounded(firsts(x + group / 2, i, group), by);
        const whole lower = (a & 255) | (b & 255) << 8;
        whole_store_halves((bytes ? to->upper : to->lower) + i / 2, lower);
        if (bytes) continue;
        whole_store_halves(to->upper + i / 2, ((a + 128) >> 8 & 255) | ((b + 128) & 0xff00));
    }
}

VF_INLINE float half_sum(const float *x, vf by)
{
    whole all = whole_set1(0);
#pragma GCC unroll 4
    for (int i = 0; i < CODES_STEP / 2; i += VL)
        all += (whole_rounded(vf_load(x + i), by) << 16) >> 16;
    return vf_hsum(whole_vf(all));
}

static void round_step(const float *x, const struct kn_rows16 *to, size_t at)
{
    whole most = whole_set1(0);
#pragma GCC unroll 8
    for (int i = 0; i < CODES_STEP; i += VL)
        most = whole_max(most, (whole)vf_load(x + i) & INT32_MAX);
    const float largest = to->bytes ? TOP8 : TOP;
    const float top = whole_magnitude(whole_top(most)), scale = top / largest;
    const vf by = vf_set1(largest / top);
    const float first = half_sum(x, by), second = half_sum(x + CODES_STEP / 2, by);
    to->scale[at] = scale;
    to->sum[at] = scale * (first + second);
    to->sums[at][0] = scale * first;
    to->sums[at][1] = scale * second;
    if (to->by_step) put_numbers(x, by, CODES_STEP, to->bytes, to->by_step + at);
    if (to->by_half) put_numbers(x, by, CODES_STEP / 2, to->bytes, to->by_half + at);
}

static void round_rows(const float *a, size_t lda, size_t row, size_t n, const struct kn_rows16 *to)
{
    for (size_t r = row; r < row + n; r++)
        for (size_t i = 0, at = r; i < to->steps; i++, at += to->m)
            round_step(a + r * lda + i * CODES_STEP, to, at);
}

/* ---- sums ---- */

/* Of R rows' numbers and codes, units [u0, u0 + n). */
#if !NIBBLES_ONLY
VF_INLINE void add_products(const int R, const bool lower, const struct kn_rows16_step *a,
                            const struct units *b, const int u0, const int n,
                            whole acc[FEW][TOGETHER])
{
#pragma GCC unroll 8
    for (int u = u0; u < u0 + n; u++)
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            const whole av = whole_set1((int32_t)(lower ? a[r].lower : a[r].upper)[u]);
#pragma GCC unroll 2
            for (int v = 0; v < TOGETHER; v++)
                acc[r][v] = byte_dot(acc[r][v], b->q[u][v], av);
        }
}
VF_INLINE void step_sums(const int R, const bool bytes, const struct kn_rows16_step *a,
                         const struct units *b, const int u0, const int n, whole acc[FEW][TOGETHER])
{
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int v = 0; v < TOGETHER; v++)
            acc[r][v] = whole_set1(0);
    add_products(R, false, a, b, u0, n, acc);
    if (bytes) return;
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int v = 0; v < TOGETHER; v++)
            acc[r][v] = acc[r][v] << 8;
    add_products(R, true, a, b, u0, n, acc);
}
#else
static_assert(2 * UNITS * 15 * 128 <= INT16_MAX, "sums of pairs are whole");
/* Holds the compiler to this order: it collects all products first otherwise, which are more than
 * there are registers. */
#define IN_ORDER(x) __asm__("" : "+x"(x))
VF_INLINE __m256i bytes_sum(const uint32_t *a, const struct units *b, const int u0, const int n)
{
    __m256i sum = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int u = u0; u < u0 + n; u++) {
        const __m256i av = _mm256_set1_epi32((int32_t)a[u]);
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16((__m256i)b->q[u][0], av));
        IN_ORDER(sum);
    }
    return sum;
}
VF_INLINE void step_sums(const int R, const bool bytes, const struct kn_rows16_step *a,
                         const struct units *b, const int u0, const int n, whole acc[FEW][TOGETHER])
{
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
        const __m256i upper = bytes_sum(a[r].upper, b, u0, n);
        acc[r][0] = (whole)_mm256_madd_epi16(upper, _mm256_set1_epi16(bytes ? 1 : 256));
        if (bytes) continue;
        const __m256i lower = bytes_sum(a[r].lower, b, u0, n);
        acc[r][0] += (whole)_mm256_madd_epi16(lower, _mm256_set1_epi16(1));
    }
}
#endif

/* The exact sums of row i of a step, or of its halves, to those of columns. */
VF_INLINE void step_add(const int n_scales, const struct kn_rows16 *a, size_t i, const whole *x,
                        const struct scales *of, float *sums)
{
    vf s = vf_load(sums), y = vf_mul(whole_vf(x[0]), of->d[0]);
    if (n_scales == 1) {
        s = vf_fma(vf_set1(a->sum[i]), of->m[0], s);
    } else {
        y = vf_fma(whole_vf(x[1]), of->d[1], y);
        s = vf_fma(vf_set1(a->sums[i][0]), of->m[0], s);
        s = vf_fma(vf_set1(a->sums[i][1]), of->m[1], s);
    }
    vf_store(sums, vf_fma(y, vf_set1(a->scale[i]), s));
}

/* R rows from `row` on by a step, of so many scales; sums [R][NR] go on. */
VF_INLINE void step_rows(const int R, const bool bytes, const int n_scales,
                         const struct kn_rows16 *a, size_t step, size_t row, const struct units *b,
                         float *sums)
{
    const size_t at = step * a->m + row;
    const struct kn_rows16_step *q = (n_scales == 1 ? a->by_step : a->by_half) + at;
    whole x[FEW][TOGETHER][HALVES];
#pragma GCC unroll 2
    for (int h = 0; h < n_scales; h++) {
        whole acc[FEW][TOGETHER];
        step_sums(R, bytes, q, b, h * UNITS / 2, UNITS / n_scales, acc);
#pragma GCC unroll 4
        for (int r = 0; r < R; r++)
#pragma GCC unroll 2
            for (int v = 0; v < TOGETHER; v++)
                x[r][v][h] = acc[r][v];
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int v = 0; v < TOGETHER; v++)
            step_add(n_scales, a, at + (size_t)r, x[r][v], b->s + v, sums + r * NR + v * VL);
}

/* ---- codes ---- */

/* A table's numbers at bytes of nibbles. */
VF_INLINE whole numbers_of(const struct codes_form f, whole nibbles)
{
    const int8_t *table = codes_table[f.table];
#if KN_SIMD == 128
    return (whole)vqtbl1q_s8(vld1q_s8(table), (uint8x16_t)nibbles);
#else
    const __m128i quarter = _mm_loadu_si128((const void *)table);
#if KN_SIMD == 512
    const __m512i all = _mm512_broadcast_i32x4(quarter);
    return (whole)_mm512_shuffle_epi8(all, (__m512i)nibbles) ^ BYTES_ZERO;
#else
    const __m256i all = _mm256_broadcastsi128_si256(quarter);
    return (whole)_mm256_shuffle_epi8(all, (__m256i)nibbles) ^ BYTES_ZERO;
#endif
#endif
}

VF_INLINE void open_nibbles(const struct codes_form f, const uint8_t *codes, size_t v0,
                            struct units *to)
{
#pragma GCC unroll 2
    for (size_t v = 0; v < TOGETHER; v++)
#pragma GCC unroll 4
        for (size_t w = 0; w < 4; w++) {
            const whole x = (whole)words_load(codes + ((v0 + v) * 4 + w) * VL * 4);
            whole a = x & 0x0f0f0f0f, b = x >> 4 & 0x0f0f0f0f;
            if (f.table) {
                a = numbers_of(f, a);
                b = numbers_of(f, b);
            }
            /* Values 2w, 16 + 2w, …, and 8 + 2w, 24 + 2w, … */
            const bool step = !kn_codes_by_half(&f);
            to->q[w][v] = step ? a : (a & EVEN) | (b & EVEN) << 8;
            to->q[UNITS / 2 + w][v] = step ? b : (a >> 8 & EVEN) | (b & ~EVEN);
        }
}

/* Rows of k, two and two that are next to each other, become columns. */
VF_INLINE void open_bytes(const struct codes_form f, const uint8_t *codes, size_t v0,
                          struct units *to)
{
    const size_t group = kn_codes_by_half(&f) ? f.group : CODES_STEP;
#if KN_SIMD == 512
    /* Words of 2u are in the lower half, of 2u + 1 in the upper one. */
    const __m512i order = _mm512_setr_epi32(
        0x100000, 0x110001, 0x120002, 0x130003, 0x140004, 0x150005, 0x160006, 0x170007, 0x300020,
        0x310021, 0x320022, 0x330023, 0x340024, 0x350025, 0x360026, 0x370027);
    const __m512i next = _mm512_add_epi32(order, _mm512_set1_epi32(0x80008));
    (void)v0;
#pragma GCC unroll 8
    for (size_t u = 0; u < UNITS; u++) {
        const uint8_t *at = codes + first_of(2 * u, group) * NR;
        const __m512i x = _mm512_loadu_si512(at), y = _mm512_loadu_si512(at + group / 2 * NR);
        /* Columns 0 to 7 and 16 to 23, and the others. */
        const __m512i low = _mm512_unpacklo_epi8(x, y), high = _mm512_unpackhi_epi8(x, y);
        to->q[u][0] = (whole)_mm512_permutex2var_epi16(low, order, high) ^ BYTES_ZERO;
        to->q[u][TOGETHER - 1] = (whole)_mm512_permutex2var_epi16(low, next, high) ^ BYTES_ZERO;
    }
#elif KN_SIMD == 128
    (void)v0;
#pragma GCC unroll 8
    for (size_t u = 0; u < UNITS; u++) {
        const int8_t *at = (const int8_t *)codes + first_of(2 * u, group) * NR;
        const int8x16_t x = vld1q_s8(at), y = vld1q_s8(at + group / 2 * NR);
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
        const uint8_t *at = codes + first_of(2 * u, group) * NR;
        const __m256i x = _mm256_loadu_si256((const void *)at);
        const __m256i y = _mm256_loadu_si256((const void *)(at + group / 2 * NR));
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
    if (f.bits == 8 || f.table) is.low = -ZERO;
#pragma GCC unroll 2
    for (size_t v = 0; v < TOGETHER; v++)
        step_plain(is, panel, at, v0 + v, to->s + v);
    if (f.bits == 8)
        open_bytes(f, panel + at.codes, v0, to);
    else
        open_nibbles(f, panel + at.codes, v0, to);
}

#define ROWS_CASE(rows)                                                                            \
    case rows:                                                                                     \
        step_rows(rows, bytes, n_scales, a, i, row + r, &b, at + r * NR);                          \
        break;
/* n rows from `row` on by a panel; sums [n][NR] go on. */
VF_INLINE void panel_rows(const struct codes_form f, const bool bytes, const uint8_t *panel,
                          const struct kn_rows16 *a, size_t row, size_t n, float *sums)
{
    const struct kn_layout l = kn_layout(&f, NR);
    const int n_scales = kn_codes_by_half(&f) ? 2 : 1;
    for (size_t i = 0; i < a->steps; i++) {
        step_ahead(&l, panel, i);
#pragma GCC unroll 2
        for (size_t v = 0; v < NV; v += TOGETHER) {
            struct units b;
            open_units(f, panel, kn_step_at(&l, i), v, &b);
            float *at = sums + v * VL;
            size_t r = 0;
            for (; r + FEW <= n; r += FEW)
                step_rows(FEW, bytes, n_scales, a, i, row + r, &b, at + r * NR);
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

enum { N_TILES = SUMS_TILES / KN_ROWS16_TILE, CELLS = AMX_ROWS * AMX_COLS };
static_assert(2 * KN_ROWS16_TILE == AMX_ROWS && UNITS * 4 == CODES_STEP, "whole");

static void tiles_open(void)
{
    amx_open_as((struct amx_shapes){.rows = {16, 16, 16, 16, UNITS, UNITS, 16, 16},
                                    .row_bytes = {64, 64, 64, 64, 64, 64, CODES_STEP, CODES_STEP}});
}

/* What waits for its turn: a step's units and scales, then its sums. */
struct tiles_step {
    uint32_t q[NV][UNITS * VL];
    struct scales s[NV];
};

VF_INLINE void tiles_unpack(const struct codes_form f, const uint8_t *panel, struct kn_step at,
                            struct tiles_step *to)
{
    struct units b;
    open_units(f, panel, at, 0, &b);
#pragma GCC unroll 2
    for (int v = 0; v < NV; v++) {
        to->s[v] = b.s[v];
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

VF_INLINE void tiles_store(const bool two, int32_t cells[NV][N_TILES][CELLS])
{
    _tile_stored(0, cells[0][0], 64);
    _tile_stored(2, cells[1][0], 64);
    if (two) {
        _tile_stored(1, cells[0][1], 64);
        _tile_stored(3, cells[1][1], 64);
    }
    amx_barrier();
}

/* n rows of a tile, of a step from `at` on. */
VF_INLINE void tiles_add(const struct kn_rows16 *a, size_t at, size_t n, const int32_t *cells,
                         const struct scales *of, float *sums)
{
    for (size_t r = 0; r < n; r++, cells += 2 * VL, sums += NR) {
        const whole x = (whole_load(cells) << 8) + whole_load(cells + VL);
        step_add(1, a, at + r, &x, of, sums);
    }
}

/* As panel_rows(), of codes with one scale a step. What a tile reads was written a step before, so
 * that neither waits: at a time one step is unpacked, the one before is multiplied, and the sums of
 * one before go on. */
VF_INLINE void panel_tiles(const struct codes_form f, const uint8_t *panel,
                           const struct kn_rows16 *a, size_t row, size_t n, float *sums)
{
    enum { MULTIPLY = 1, STORE, ADD };
    const struct kn_layout l = kn_layout(&f, NR);
    const bool two = n > KN_ROWS16_TILE;
    const size_t first = two ? KN_ROWS16_TILE : n;
    struct tiles_step b[4];
    int32_t cells[2][NV][N_TILES][CELLS] __attribute__((aligned(64)));
    for (size_t i = 0; i < a->steps + ADD; i++) {
        if (i < a->steps) {
            step_ahead(&l, panel, i);
            tiles_unpack(f, panel, kn_step_at(&l, i), &b[i % 4]);
        }
        if (i >= STORE && i - STORE < a->steps) tiles_store(two, cells[i % 2]);
        if (i >= MULTIPLY && i - MULTIPLY < a->steps)
            tiles_multiply(a->by_step + (i - MULTIPLY) * a->m + row, two, &b[(i - MULTIPLY) % 4]);
        if (i < ADD) continue;
        const struct tiles_step *of = &b[(i - ADD) % 4];
        const size_t at = (i - ADD) * a->m + row;
#pragma GCC unroll 2
        for (int v = 0; v < NV; v++) {
            int32_t(*x)[CELLS] = cells[(i - 1) % 2][v];
            tiles_add(a, at, first, x[0], of->s + v, sums + v * VL);
            if (two)
                tiles_add(a, at + first, n - first, x[1], of->s + v, sums + first * NR + v * VL);
        }
    }
}
#else
#define panel_tiles(f, ...) panel_rows(f, false, __VA_ARGS__) /* there are none */
#endif

/* ---- panels ---- */

VF_INLINE void panel_sums(const struct kn_gemm_job *j, const enum way way, size_t p, size_t row,
                          size_t n, float *sums)
{
    const struct kn_panel *panel = &j->coded->panel[p];
#define TRY(...)                                                                                   \
    {                                                                                              \
        const struct codes_form is = __VA_ARGS__;                                                  \
        if ((kn_codes_nibbles(&is) || !NIBBLES_ONLY) && codes_form_same(&panel->form, &is)) {      \
            const uint8_t *data = j->coded->data + panel->at;                                      \
            if (way == TILES && !kn_codes_by_half(&is))                                            \
                panel_tiles(is, data, j->rows16, row, n, sums);                                    \
            else                                                                                   \
                panel_rows(is, way == BYTES, data, j->rows16, row, n, sums);                       \
            return;                                                                                \
        }                                                                                          \
    }
    CODES_FORMS(TRY)
#undef TRY
}

VF_INLINE int panels(const struct kn_gemm_job *j, const enum way way, size_t panel0, size_t panel1)
{
    const size_t most = way == TILES ? SUMS_TILES : SUMS;
    for (size_t p = panel0; p < panel1; p++) {
        if (kn_cancelled(j->cancel)) return -ECANCELED;
        for (size_t row = 0, n; row < j->m; row += n) {
            float sums[SUMS * NR] __attribute__((aligned(64)));
            n = j->m - row < most ? j->m - row : most;
            sums_begin(j, row, n, p, true, sums);
            panel_sums(j, way, p, row, n, sums);
            sums_end(j, row, n, p, sums);
        }
    }
    return 0;
}

static int gemm(const struct kn_gemm_job *j, size_t panel0, size_t panel1)
{
    return j->rows16->bytes ? panels(j, BYTES, panel0, panel1) : panels(j, NUMBERS, panel0, panel1);
}

const struct kn_rows16_ops NAME(rows16) = {NIBBLES_ONLY, round_rows, gemm};

#if KN_SIMD == 512
static int gemm_tiles(const struct kn_gemm_job *j, size_t panel0, size_t panel1)
{
    if (j->m <= KN_ROWS16_FEW || j->rows16->bytes) return gemm(j, panel0, panel1);
    tiles_open();
    const int r = panels(j, TILES, panel0, panel1);
    _tile_release();
    return r;
}

const struct kn_rows16_ops kn_amx_rows16 = {NIBBLES_ONLY, round_rows, gemm_tiles};
#endif
