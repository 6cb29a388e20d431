/* Products of up to KN_COLUMN_ROWS rows with codes on AMX tiles.
 *
 * With few rows the time is that of unpacking, which is cheapest with k along a row (codes_tile.h):
 * so a column of the weight is a row of a tile of A, rows are tiles of B, and C comes out with
 * columns as rows and is turned on its way. An output is the same chain of the same products as in
 * gemm_amx.h, bit for bit, each with its factors exchanged. Compiled for AVX-512 with BF16 only. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/pairs.h"
#include "kernels/cpu/simd/amx.h"
#include "kernels/cpu/simd/codes_tile.h"

enum {
    CELLS = 256,    /* dwords of a tile */
    HALVES_MAX = 4, /* of panels, multiplied together */
};

/* Of n tiles of rows: half h of a step by tile r is added to sum h * n + r. Then which tiles hold
 * the two, and which of them are loaded first (w, x), as few as may be. */
#define EACH_PRODUCT(X)                                                                            \
    X(1, 0, 0, 0, 4, 7, w, x)                                                                      \
    X(1, 1, 0, 1, 5, 7, w, )                                                                       \
    X(1, 2, 0, 2, 4, 7, w, )                                                                       \
    X(1, 3, 0, 3, 5, 7, w, )                                                                       \
    X(2, 0, 0, 0, 4, 6, w, x)                                                                      \
    X(2, 0, 1, 1, 4, 7, , x)                                                                       \
    X(2, 1, 0, 2, 5, 6, w, )                                                                       \
    X(2, 1, 1, 3, 5, 7, , )                                                                        \
    X(3, 0, 0, 0, 6, 7, w, x)                                                                      \
    X(3, 0, 1, 1, 6, 7, , x)                                                                       \
    X(3, 0, 2, 2, 6, 7, , x)                                                                       \
    X(3, 1, 0, 3, 6, 7, w, x)                                                                      \
    X(3, 1, 1, 4, 6, 7, , x)                                                                       \
    X(3, 1, 2, 5, 6, 7, , x)                                                                       \
    X(4, 0, 0, 0, 4, 5, w, x)                                                                      \
    X(4, 0, 1, 1, 4, 6, , x)                                                                       \
    X(4, 0, 2, 2, 4, 7, , x)                                                                       \
    X(4, 0, 3, 3, 4, 5, , x)
#define LOAD_w(tile, other) _tile_loadd(tile, w, 64);
#define LOAD_x(tile, other) _tile_loadd(other, x, 64);
#define LOAD_(tile, other)
VF_INLINE void codes_product(size_t n_rows, const size_t h, const size_t r, const uint32_t *w,
                             const uint32_t *x)
{
    amx_barrier();
#define PRODUCT(n, half, row, sum, at_w, at_x, load_w, load_x)                                     \
    if (n_rows == n && h == half && r == row) {                                                    \
        LOAD_##load_w(at_w, at_x) LOAD_##load_x(at_w, at_x);                                       \
        _tile_dpbf16ps(sum, at_w, at_x);                                                           \
    }
    EACH_PRODUCT(PRODUCT)
#undef PRODUCT
}

/* Half h of a step: of the step before (w) its products by all tiles of rows; x is the first of
 * them, the next is behind `stride` dwords. */
struct half_step {
    const uint8_t *panel;
    size_t half, step, n_rows, stride;
    const uint32_t *w, *x;
    uint32_t *to;
};

/* It is unpacked between these products. */
VF_INLINE void codes_half_step(const struct codes_form f, const size_t h, const struct half_step a)
{
    struct codes_half codes;
    codes_half_open(f, a.panel, a.half, a.step, &codes);
#pragma GCC unroll 4
    for (size_t i = 0; i < VL / CODES_COLUMNS; i++) {
        if (a.step && i < a.n_rows) codes_product(a.n_rows, h, i, a.w, a.x + i * a.stride);
        codes_columns(f, &codes, i * CODES_COLUMNS, a.to);
    }
}

/* All of k for the halves from `half` on, which are of one form. */
VF_INLINE void codes_sum(const struct codes_form f, const struct kn_gemm_job *j, size_t half,
                         size_t n_halves)
{
    const struct kn_layout l = kn_layout(&f, NR);
    uint32_t w[2][HALVES_MAX * CELLS] __attribute__((aligned(64)));
    const size_t steps = j->k / CODES_STEP, n_rows = (j->m + AMX_ROWS - 1) / AMX_ROWS;
    const size_t panel_bytes = steps / l.steps * l.unit, stride = steps * CELLS;
    const uint32_t *x = j->columns;
    for (size_t s = 0; s < steps; s++, x += CELLS)
#pragma GCC unroll 4
        for (size_t h = 0; h < HALVES_MAX; h++) {
            if (h == n_halves) break;
            const uint8_t *panel = j->coded->data + j->coded->panel[(half + h) / 2].at;
            /* Of the panels that come next, where these end. */
            const size_t skip =
                s + STEPS_AHEAD >= steps && n_halves == HALVES_MAX ? panel_bytes : 0;
            if ((half + h) % 2 == 0) step_ahead(&l, panel + skip, s);
            codes_half_step(f, h,
                            (struct half_step){panel, (half + h) % 2, s, n_rows, stride,
                                               w[(s + 1) % 2] + h * CELLS, x - CELLS,
                                               w[s % 2] + h * CELLS});
        }
#pragma GCC unroll 4
    for (size_t h = 0; h < HALVES_MAX && h < n_halves; h++)
#pragma GCC unroll 4
        for (size_t r = 0; r < 4; r++)
            if (r < n_rows)
                codes_product(n_rows, h, r, w[(steps - 1) % 2] + h * CELLS, x - CELLS + r * stride);
}

static void codes_sums_of(const struct codes_form *f, const struct kn_gemm_job *j, size_t half,
                          size_t n_halves)
{
#define TRY(...)                                                                                   \
    {                                                                                              \
        const struct codes_form is = __VA_ARGS__;                                                  \
        if (codes_form_same(f, &is)) {                                                             \
            codes_sum(is, j, half, n_halves);                                                      \
            return;                                                                                \
        }                                                                                          \
    }
    CODES_FORMS(TRY)
#undef TRY
}

/* Tile t of the sums: columns from `col` on by rows from `row` on, 16 of each at most. */
struct codes_sums {
    size_t t, col, n_cols, row, n_rows;
};

static struct codes_sums codes_sums(const struct kn_gemm_job *j, size_t t, size_t half, size_t row)
{
    const size_t col = half * VL, left = col < j->n ? j->n - col : 0;
    return (struct codes_sums){t, col, left < VL ? left : VL, row * AMX_ROWS,
                               j->m - row * AMX_ROWS < AMX_ROWS ? j->m - row * AMX_ROWS : AMX_ROWS};
}

#define EACH_SUM(X) X(0) X(1) X(2) X(3) X(4) X(5)
static void codes_begin(const struct kn_gemm_job *j, const struct codes_sums *s)
{
    uint32_t buf[CELLS] __attribute__((aligned(64)));
    const float *c = j->c + s->row * j->ldc + s->col, *bias = j->bias ? j->bias + s->col : NULL;
    const __mmask16 cols = (__mmask16)((1u << s->n_cols) - 1u);
    const bool zero = !bias && !j->accumulate;
    for (size_t r = 0; !zero && r < AMX_ROWS; r += 4) {
        __m512i y[4];
#pragma GCC unroll 4
        for (size_t i = 0; i < 4; i++) {
            const bool is = r + i < s->n_rows;
            vf v = is && j->accumulate ? _mm512_maskz_loadu_ps(cols, c + (r + i) * j->ldc)
                                       : vf_set1(0.0f);
            if (is && bias) v = vf_add(v, _mm512_maskz_loadu_ps(cols, bias));
            y[i] = (__m512i)v;
        }
        columns_put(y, buf + r);
    }
    amx_barrier();
    switch (s->t) {
#define BEGIN(i)                                                                                   \
    case i:                                                                                        \
        if (zero)                                                                                  \
            _tile_zero(i);                                                                         \
        else                                                                                       \
            _tile_loadd(i, buf, 64);                                                               \
        break;
        EACH_SUM(BEGIN)
#undef BEGIN
    }
}

static void codes_end(const struct kn_gemm_job *j, const struct codes_sums *s)
{
    uint32_t buf[CELLS] __attribute__((aligned(64)));
    float *c = j->c + s->row * j->ldc + s->col;
    const __mmask16 cols = (__mmask16)((1u << s->n_cols) - 1u);
    switch (s->t) {
#define END(i)                                                                                     \
    case i:                                                                                        \
        _tile_stored(i, buf, 64);                                                                  \
        break;
        EACH_SUM(END)
#undef END
    }
    for (size_t r = 0; r < s->n_rows; r += 4) {
        __m512i y[4];
        columns_get(buf + r, y);
        for (size_t i = 0; i < 4 && r + i < s->n_rows; i++)
            _mm512_mask_storeu_ps(c + (r + i) * j->ldc, cols, (vf)y[i]);
    }
}

/* Rows [0, m), m <= 16, as a tile for each step. */
void kn_amx_columns(const float *a, size_t lda, size_t m, size_t k, void *columns)
{
    uint32_t *to = columns;
    for (size_t k0 = 0; k0 < k; k0 += CODES_STEP, to += CELLS)
        for (size_t r = 0; r < AMX_ROWS; r += 4) {
            __m512i y[4];
#pragma GCC unroll 4
            for (size_t i = 0; i < 4; i++)
                y[i] = r + i < m ? bf16_row(a + (r + i) * lda + k0) : _mm512_set1_epi32(0);
            columns_put(y, to + r);
        }
}

int kn_gemm_codes_amx(const struct kn_gemm_job *j, size_t panel0, size_t panel1)
{
    const struct kn_panel *panel = j->coded->panel;
    const size_t n_rows = (j->m + AMX_ROWS - 1) / AMX_ROWS;
    amx_open();
    for (size_t half = 2 * panel0, n; half < 2 * panel1; half += n) {
        const struct codes_form *f = &panel[half / 2].form;
        n = n_rows > 3 ? 1 : 2;
        if (n_rows == 1 && half / 2 + 1 < panel1 && codes_form_same(f, &panel[half / 2 + 1].form))
            n = HALVES_MAX;
        if (kn_cancelled(j->cancel)) break;
        for (size_t t = 0; t < n * n_rows; t++) {
            const struct codes_sums s = codes_sums(j, t, half + t / n_rows, t % n_rows);
            codes_begin(j, &s);
        }
        codes_sums_of(f, j, half, n);
        for (size_t t = 0; t < n * n_rows; t++) {
            const struct codes_sums s = codes_sums(j, t, half + t / n_rows, t % n_rows);
            codes_end(j, &s);
        }
    }
    _tile_release();
    return kn_cancelled(j->cancel) ? -ECANCELED : 0;
}
