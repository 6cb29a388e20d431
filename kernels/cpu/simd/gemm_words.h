/* gemm_words: many rows by coded weights on AMX, included by gemm_bf16.c behind gemm_amx.h.
 *
 * Unpacking is no work for the tiles, and unpacking a block before its products keeps them waiting.
 * So while rows go by one piece of the weight, the next one is unpacked part by part: with 256 rows
 * one part for each step of the tiles, behind which its instructions hide. Of 4 bits a part is a
 * word of each of sixteen columns, straight to pairs of bf16; of all else a whole step is unpacked
 * with its first part. Values are those of codes.c, rounded as tile_unpack() does, and sums the
 * chains of gemm_amx.h. Thread: any. */
#ifndef KERNELS_CPU_SIMD_GEMM_WORDS_H
#define KERNELS_CPU_SIMD_GEMM_WORDS_H

#include "kernels/cpu/simd/codes_step.h"

enum {
    WORDS_PARTS = 8,    /* of a step */
    WORDS_KC = TILE_KC, /* units of a piece; measured: with half of it C is read more, 4 % slower */
    WORDS_A_BYTES = 1 << 20, /* chosen, see words_pay() */
};

/* Units [k0, k0 + kc) of panel p. */
struct words_piece {
    size_t p, k0, kc;
    elem *b;          /* unpacked, with zeros up to a whole step */
    size_t all, done; /* parts */
    /* Of 4 bits: */
    struct words_step {
        const uint8_t *unit, *step, *codes;
        elem *to;
    } at;
    struct scales s; /* of the vector at hand */
    meaning of;
};

static size_t words_steps(const struct words_piece *w)
{
    return (w->kc + AMX_UNITS - 1) / AMX_UNITS;
}

static struct words_piece words_begin(const struct kn_gemm_job *j, size_t p, size_t k0, elem *b)
{
    const size_t left = (j->k + TILE_UNIT - 1) / TILE_UNIT - k0;
    struct words_piece w = {.p = p, .k0 = k0, .kc = left < WORDS_KC ? left : WORDS_KC, .b = b};
    w.all = words_steps(&w) * WORDS_PARTS;
    return w;
}

static void words_unpack(const struct kn_gemm_job *j, const struct words_piece *w,
                         const struct kn_panel *panel, size_t unit, elem *to)
{
    const size_t n = w->kc - unit < AMX_UNITS ? w->kc - unit : AMX_UNITS;
    tile_unpack(&panel->form, j->coded->data + panel->at, w->k0 + unit, n, j->k, to);
    memset(to + n * TILE_NR, 0, (AMX_UNITS - n) * TILE_NR * sizeof *to);
}

/* Where step i of a panel is. */
static struct words_step words_step(const struct kn_gemm_job *j, const struct kn_panel *panel,
                                    size_t i, elem *to)
{
    const struct kn_layout l = kn_layout(&panel->form, NR);
    const uint8_t *unit = j->coded->data + panel->at + i / l.steps * l.unit;
    const uint8_t *step = unit + l.unit_head + i % l.steps * l.step;
    return (struct words_step){unit, step, step + l.step_head, to};
}

/* Word `word` of the columns of vector v: a pair of each quarter of a step. */
VF_INLINE void words_word(const struct words_piece *w, size_t v, size_t word)
{
    const words x = words_load(w->at.codes + (v * 4 + word) * VL * 4);
    elem *to = w->at.to + word * TILE_NR + v * VL;
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        const vf d = w->s.d[j / 2], m = w->s.m[j / 2];
        const vf lo = vf_fma(nibble(0, x, j, w->of), d, m);
        const vf hi = vf_fma(nibble(0, x, j + 4, w->of), d, m);
        _mm512_storeu_si512(to + (size_t)j * 4 * TILE_NR, bf16_pairs(lo, hi));
    }
}

static void words_part(const struct kn_gemm_job *j, struct words_piece *w)
{
    const size_t unit = w->done / WORDS_PARTS * AMX_UNITS, part = w->done % WORDS_PARTS;
    const struct kn_panel *panel = &j->coded->panel[w->p];
    const struct codes_form f = panel->form;
    w->done++;
    if (part == 0) {
        elem *to = w->b + unit * TILE_NR;
        if (f.bits != 4) {
            words_unpack(j, w, panel, unit, to);
            return;
        }
        w->at = words_step(j, panel, (w->k0 + unit) * TILE_UNIT / CODES_STEP, to);
        w->of = meaning_of(f);
    }
    if (f.bits != 4) return;
    if (part % 4 == 0) {
        step_scales(f, w->at.unit, w->at.step, part / 4, &w->s);
        if (!f.min) w->s.m[0] = w->s.m[1] = vf_set1(-0.0f); /* added, it changes no product */
    }
    words_word(w, part / 4, part % 4);
}

/* Two row tiles (or one) by a piece. *due counts what of the next one is to be unpacked meanwhile,
 * in shares of the tiles' steps that there are in all. */
static void words_rows(const struct kn_gemm_job *j, size_t row, const struct words_piece *w,
                       struct words_piece *next, size_t all, size_t *due)
{
    const size_t R = j->m - row < 2 * AMX_ROWS ? j->m - row : 2 * AMX_ROWS;
    const size_t lda = kn_pairs_stride(j->k), line = lda * sizeof(elem);
    const elem *a = (const elem *)j->pairs + row * lda + w->k0, *b = w->b;
    const bool two = R > AMX_ROWS;
    const struct amx_part t[2] = {{row, two ? AMX_ROWS : R, w->p},
                                  {row + AMX_ROWS, R - AMX_ROWS, w->p}};
    for (int h = 0; h <= two; h++)
        amx_begin(j, h, &t[h], w->k0);
    for (size_t i = 0; i < words_steps(w); i++, a += AMX_UNITS, b += AMX_UNITS * TILE_NR) {
        _tile_loadd(6, b, AMX_LDB);
        _tile_loadd(7, b + VL, AMX_LDB);
        _tile_loadd(4, a, line);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (two) {
            _tile_loadd(5, a + AMX_ROWS * lda, line);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        for (*due += next->all; *due >= all; *due -= all)
            words_part(j, next);
    }
    for (int h = 0; h <= two; h++)
        amx_end(j, h, &t[h]);
}

/* Every panel reads all rows again, which pays where they stay in L2; wider blocks read longer rows
 * less often. The bound is half of an L2. */
static bool words_pay(const struct kn_gemm_job *j)
{
    return j->coded && j->m > AMX_ROWS && j->m * j->k * sizeof(elem) / 2 <= WORDS_A_BYTES;
}

static int words_gemm(const struct kn_gemm_job *j, size_t panel0, size_t panel1)
{
    const size_t units = (j->k + TILE_UNIT - 1) / TILE_UNIT;
    const size_t n_pairs = (j->m + 2 * AMX_ROWS - 1) / (2 * AMX_ROWS);
    elem *b[2] = {j->block, (elem *)j->block + WORDS_KC * TILE_NR};
    if (panel0 == panel1) return 0;
    struct words_piece w = words_begin(j, panel0, 0, b[0]), next;
    while (w.done < w.all)
        words_part(j, &w);
    for (size_t i = 1; w.p < panel1; i++, w = next) {
        const bool ends = w.k0 + w.kc == units;
        const size_t p = w.p + ends, all = n_pairs * words_steps(&w);
        size_t due = 0;
        next = (struct words_piece){.p = p};
        if (p < panel1) next = words_begin(j, p, ends ? 0 : w.k0 + w.kc, b[i % 2]);
        for (size_t n = 0; n < n_pairs; n++) {
            if (kn_cancelled(j->cancel)) return -ECANCELED;
            words_rows(j, n * 2 * AMX_ROWS, &w, &next, all, &due);
        }
    }
    return 0;
}

#endif
