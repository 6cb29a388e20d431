/* The GEMM of rows in 8 bits by vpmaddubsw: see bytes.h.
 *
 * A piece of a panel, 24 steps, is made bytes in L1, meets all rows and is left: rows are a quarter
 * of its size a step and come from L2. Sixteen products of 15 by 127 at most are no more than 16
 * bits hold, so whole numbers of 4 bits are added over a step without widening; of products of 127
 * by 127 each pair is widened at once, half as fast again as f32 all the same.
 * Compiled for AVX2. Thread: any. */
#include "base/assert.h"
#include "kernels/cpu/bytes.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd/cases.h"
#include "kernels/cpu/simd/table.h"
#include "kernels/cpu/simd/whole.h"

static_assert((int)NR == 16 && (int)CODES_STEP == (int)KN_BYTES_STEP, "lanes of a step");

enum {
    UNITS = KN_BYTES_STEP / 4,
    PIECE = 24, /* steps; chosen: 15 KiB, half of an L1 */
    NARROW_TOP = 15,
    WIDE_TOP = 127,
};

struct columns { /* a step of a panel */
    uint8_t q[UNITS][NR][4];
    float d[NR], m[NR];
};
static_assert(PIECE * (sizeof(struct columns) + KN_BYTES_STEP * NR * sizeof(float)) <=
                  KN_GEMM_BLOCK,
              "room for a piece, and for its values in front");
static_assert(2 * UNITS * NARROW_TOP * 127 <= INT16_MAX && 2 * WIDE_TOP * 127 <= INT16_MAX,
              "sums that vpmaddubsw and vpaddw keep whole");

/* ---- rows ---- */

/* A step of a row. What is not a number, or no finite one, is in the scale. */
VF_INLINE void round_step(const vf x[4], int8_t *q, float *scale, float *sum)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i top = _mm256_and_si256(_mm256_castps_si256(x[0]), magnitude), w[4];
    for (int i = 1; i < 4; i++)
        top = _mm256_max_epi32(top, _mm256_and_si256(_mm256_castps_si256(x[i]), magnitude));
    const int32_t bits = whole_top((whole)top);
    float most;
    memcpy(&most, &bits, sizeof most);
    const vf by = vf_set1(most > 0x1p-100f ? 127 / most : 0);
    for (int i = 0; i < 4; i++)
        w[i] = _mm256_cvtps_epi32(vf_mul(x[i], by));
    /* Bytes of both halves in turns: pairs of words first, as packing works within 128 bits. */
    const __m256i low = _mm256_packs_epi32(w[0], w[1]), high = _mm256_packs_epi32(w[2], w[3]);
    const __m256i both =
        _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi16(255)), _mm256_slli_epi16(high, 8));
    const __m256i all = _mm256_permute4x64_epi64(both, 0xd8);
    _mm256_storeu_si256((void *)q, all);
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i s = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), all), ones);
    __m128i t = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0x4e));
    t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0xb1));
    *scale = most / 127;
    *sum = *scale * (float)_mm_cvtsi128_si32(t);
}

void kn_avx2_bytes_rows(const float *a, size_t lda, size_t m, size_t k, struct kn_bytes_rows *to)
{
    const size_t steps = (k + KN_BYTES_STEP - 1) / KN_BYTES_STEP;
    for (size_t row = 0; row < m; row++) {
        struct kn_bytes_rows *at = to + row / KN_BYTES_ROWS * steps;
        const size_t r = row % KN_BYTES_ROWS;
        if (r == 0 && m - row < KN_BYTES_ROWS) memset(at, 0, steps * sizeof *at);
        for (size_t i = 0; i < steps; i++, at++) {
            vf x[4];
            for (size_t v = 0; v < 4; v++) {
                const size_t from = i * KN_BYTES_STEP + v * VL, n = from < k ? k - from : 0;
                const float *p = a + row * lda + (n ? from : 0);
                x[v] = n >= VL ? vf_load(p) : vf_loadn(p, n);
            }
            round_step(x, at->q[r], &at->scale[r], &at->sum[r]);
        }
    }
}

/* ---- weights ---- */

VF_INLINE void open_narrow(const struct codes_form f, const uint8_t *panel, size_t step0, size_t n,
                           struct columns *to)
{
    const struct kn_layout l = kn_layout(&f, NR);
    const __m256i low = _mm256_set1_epi8(15);
    for (size_t i = step0; i < step0 + n; i++, to++) {
        const struct kn_step at = kn_step_at(&l, i);
        step_ahead(&l, panel, i);
#pragma GCC unroll 2
        for (size_t v = 0; v < NV; v++) {
            struct scales s;
            step_plain(f, panel, at, v, &s);
            vf_store(to->d + v * VL, s.d[0]);
            vf_store(to->m + v * VL, s.m[0]);
#pragma GCC unroll 4
            for (size_t w = 0; w < 4; w++) {
                const words x = words_load(panel + at.codes + (v * 4 + w) * VL * 4);
                _mm256_store_si256((void *)to->q[w][v * VL], _mm256_and_si256(x, low));
                _mm256_store_si256((void *)to->q[4 + w][v * VL],
                                   _mm256_and_si256(_mm256_srli_epi16(x, 4), low));
            }
        }
    }
}

/* n values of k of a vector of columns to 7 bits. Least and most of what is no number are any, so
 * what makes such values NaN is added to D. */
VF_INLINE void round_columns(const float *x, size_t n, size_t v, struct columns *to)
{
    vf least = vf_load(x), most = least, odd = vf_set1(0);
    for (size_t k = 0; k < n; k++) {
        const vf y = vf_load(x + k * NR);
        least = vf_min(least, y);
        most = vf_max(most, y);
        odd = vf_fma(y, vf_set1(0), odd);
    }
    const vf step = vf_div(vf_sub(most, least), vf_set1(WIDE_TOP));
    const vf flat = _mm256_cmp_ps(step, vf_set1(0x1p-100f), _CMP_LT_OQ);
    const vf by = _mm256_andnot_ps(flat, vf_div(vf_set1(1), step));
    vf_store(to->d + v * VL, vf_add(step, odd));
    vf_store(to->m + v * VL, least);
    for (size_t u = 0; u < UNITS; u++) {
        __m256i q = _mm256_setzero_si256();
        for (size_t i = 0; i < 4; i++) {
            const size_t place = u * 4 + i, k = place % 2 * 16 + place / 2;
            if (k >= n) continue;
            const vf y = vf_mul(vf_sub(vf_load(x + k * NR), least), by);
            q = _mm256_or_si256(q, _mm256_slli_epi32(_mm256_cvtps_epi32(y), 8 * (int)i));
        }
        _mm256_store_si256((void *)to->q[u][v * VL], q);
    }
}

static void open_wide(const float *x, size_t kc, struct columns *to)
{
    for (size_t k = 0; k < kc; k += KN_BYTES_STEP, x += KN_BYTES_STEP * NR, to++)
        for (size_t v = 0; v < NV; v++)
            if (kc - k >= KN_BYTES_STEP)
                round_columns(x + v * VL, KN_BYTES_STEP, v, to);
            else
                round_columns(x + v * VL, kc - k, v, to);
}

/* n steps of a panel from step0 on; the largest q there may be. */
static unsigned open_piece(const struct kn_gemm_job *j, size_t p, size_t step0, size_t n,
                           struct columns *to)
{
    const size_t k0 = step0 * KN_BYTES_STEP, most = n * KN_BYTES_STEP;
    const size_t kc = j->k - k0 < most ? j->k - k0 : most;
    if (!j->coded) {
        open_wide((const float *)j->b + (p * j->k + k0) * NR, kc, to);
        return WIDE_TOP;
    }
    const struct kn_panel *panel = &j->coded->panel[p];
    const uint8_t *data = j->coded->data + panel->at;
#define TRY(...)                                                                                   \
    {                                                                                              \
        const struct codes_form is = __VA_ARGS__;                                                  \
        if (kn_codes_nibbles(&is) && !kn_codes_by_half(&is) &&                                     \
            codes_form_same(&panel->form, &is)) {                                                  \
            open_narrow(is, data, step0, n, to);                                                   \
            return NARROW_TOP;                                                                     \
        }                                                                                          \
    }
    CODES_FORMS(TRY)
    float *values = (float *)(void *)(to + PIECE);
    (void)kn_avx2_codes_panel(&panel->form, data, k0, kc, values);
    open_wide(values, kc, to);
    return WIDE_TOP;
}

/* ---- sums ---- */

/* Holds the compiler to the order in which a sum is written: it collects all products of a step
 * otherwise, which are more than there are registers. */
#define IN_ORDER(x) __asm__("" : "+x"(x))

VF_INLINE __m256i add_pairs(__m256i sum, const unsigned top, __m256i b, __m256i a)
{
    const __m256i pairs = _mm256_maddubs_epi16(b, a);
    sum = top == NARROW_TOP ? _mm256_add_epi16(sum, pairs)
                            : _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    IN_ORDER(sum);
    return sum;
}

/* R rows by n steps of a panel; sums [R][NR] go on. */
VF_INLINE void tile_steps(const int R, const unsigned top, const struct kn_bytes_rows *a,
                          const struct columns *b, size_t n, float *sums)
{
    for (size_t i = 0; i < n; i++, a++, b++) {
        __m256i w[KN_BYTES_ROWS][NV];
#pragma GCC unroll 4
        for (int r = 0; r < R; r++)
            w[r][0] = w[r][1] = _mm256_setzero_si256();
#pragma GCC unroll 8
        for (int u = 0; u < UNITS; u++) {
            const __m256i b0 = _mm256_load_si256((const void *)b->q[u]),
                          b1 = _mm256_load_si256((const void *)b->q[u][VL]);
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                int32_t four;
                memcpy(&four, a->q[r] + u * 4, sizeof four);
                const __m256i av = _mm256_set1_epi32(four);
                w[r][0] = add_pairs(w[r][0], top, b0, av);
                w[r][1] = add_pairs(w[r][1], top, b1, av);
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; r++)
#pragma GCC unroll 2
            for (int v = 0; v < NV; v++) {
                float *s = sums + r * NR + v * VL;
                if (top == NARROW_TOP) w[r][v] = _mm256_madd_epi16(w[r][v], _mm256_set1_epi16(1));
                const vf x = vf_mul(_mm256_cvtepi32_ps(w[r][v]), vf_load(b->d + v * VL));
                const vf sum = vf_fma(vf_set1(a->sum[r]), vf_load(b->m + v * VL), vf_load(s));
                vf_store(s, vf_fma(x, vf_set1(a->scale[r]), sum));
            }
    }
}

#define TILE_CASE(rows)                                                                            \
    case rows:                                                                                     \
        if (top == NARROW_TOP)                                                                     \
            tile_steps(rows, NARROW_TOP, a, b, n, sums);                                           \
        else                                                                                       \
            tile_steps(rows, WIDE_TOP, a, b, n, sums);                                             \
        break;
static void tile_run(unsigned R, unsigned top, const struct kn_bytes_rows *a,
                     const struct columns *b, size_t n, float *sums)
{
    static_assert(KN_BYTES_ROWS == 4, "cases");
    switch (R) {
        CASES(4, TILE_CASE)
    }
}

/* ---- blocks ---- */

/* Rows [row, row + R) by n steps of panel p, b. Sums of parts of k wait in C. */
static void one_tile(const struct kn_gemm_job *j, size_t row, unsigned R, size_t p, size_t step0,
                     size_t n, unsigned top, const struct columns *b)
{
    const size_t steps = (j->k + KN_BYTES_STEP - 1) / KN_BYTES_STEP;
    float sums[KN_BYTES_ROWS * NR] __attribute__((aligned(32)));
    sums_begin(j, row, R, p, step0 == 0, sums);
    tile_run(R, top, j->bytes + row / KN_BYTES_ROWS * steps + step0, b, n, sums);
    sums_end(j, row, R, p, sums);
}

int kn_avx2_gemm_bytes(const struct kn_gemm_job *j, size_t panel0, size_t panel1)
{
    const size_t steps = (j->k + KN_BYTES_STEP - 1) / KN_BYTES_STEP;
    const size_t n_pieces = (steps + PIECE - 1) / PIECE, most = (steps + n_pieces - 1) / n_pieces;
    struct columns *b = j->block;
    for (size_t p = panel0; p < panel1; p++)
        for (size_t step0 = 0, n; step0 < steps; step0 += n) {
            n = steps - step0 < most ? steps - step0 : most;
            if (kn_cancelled(j->cancel)) return -ECANCELED;
            const unsigned top = open_piece(j, p, step0, n, b);
            for (size_t row = 0; row < j->m; row += KN_BYTES_ROWS) {
                const size_t left = j->m - row;
                one_tile(j, row, left < KN_BYTES_ROWS ? (unsigned)left : KN_BYTES_ROWS, p, step0, n,
                         top, b);
            }
        }
    return 0;
}
