/* words: a piece of a weight for AMX, unpacked part by part, included by gemm_words.h.
 *
 * Of 4 bits a part is a word of each of sixteen columns, straight to pairs of bf16; of all else a
 * whole step is unpacked with its first part; what is packed already is prefetched. Values are
 * those of codes.c, rounded as tile_unpack() does. Thread: any. */
#ifndef KERNELS_CPU_SIMD_WORDS_H
#define KERNELS_CPU_SIMD_WORDS_H

#include "kernels/cpu/simd/codes_step.h"

enum { WORDS_PARTS = 8 }; /* of a step */

/* Units [k0, k0 + kc) of panel p. */
struct words_piece {
    size_t i, p, k0, kc; /* i: counts the panels in their order, see gated_panel() */
    const elem *b;       /* with zeros up to a whole step */
    elem *to;            /* where they are unpacked to, or copied */
    size_t all, done;    /* parts */
    /* Of 4 bits: */
    const uint8_t *codes; /* the panel's, and the step of it that is unpacked */
    struct kn_step at;
    elem *step;      /* to here */
    struct scales s; /* of the vector at hand */
    meaning of;
};

static size_t words_steps(const struct words_piece *w)
{
    return (w->kc + AMX_UNITS - 1) / AMX_UNITS;
}

static void words_unpack(const struct kn_gemm_job *j, const struct words_piece *w,
                         const struct kn_panel *panel, size_t unit, elem *to)
{
    const size_t n = w->kc - unit < AMX_UNITS ? w->kc - unit : AMX_UNITS;
    tile_unpack(&panel->form, j->coded->data + panel->at, w->k0 + unit, n, j->k, to);
    memset(to + n * TILE_NR, 0, (AMX_UNITS - n) * TILE_NR * sizeof *to);
}

/* Word `word` of the columns of vector v: a pair of each quarter of a step. */
VF_INLINE void words_word(const struct words_piece *w, size_t v, size_t word)
{
    const words x = words_load(w->codes + w->at.codes + (v * 4 + word) * VL * 4);
    elem *to = w->step + word * TILE_NR + v * VL;
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        const vf d = w->s.d[j / 2], m = w->s.m[j / 2];
        const vf lo = vf_fma(nibble(0, x, j, w->of), d, m);
        const vf hi = vf_fma(nibble(0, x, j + 4, w->of), d, m);
        _mm512_storeu_si512(to + (size_t)j * 4 * TILE_NR, bf16_pairs(lo, hi));
    }
}

static void words_fetch(struct words_piece *w)
{
    enum { BYTES = AMX_UNITS * TILE_NR * sizeof(elem) / WORDS_PARTS };
    for (size_t at = 0; at < BYTES; at += 64)
        __builtin_prefetch((const char *)w->b + w->done * BYTES + at, 0, 2);
    w->done++;
}

static void words_part(const struct kn_gemm_job *j, struct words_piece *w)
{
    if (!j->coded) {
        words_fetch(w);
        return;
    }
    const size_t unit = w->done / WORDS_PARTS * AMX_UNITS, part = w->done % WORDS_PARTS;
    const struct kn_panel *panel = &j->coded->panel[w->p];
    const struct codes_form f = panel->form;
    w->done++;
    if (part == 0) {
        elem *to = w->to + unit * TILE_NR;
        if (f.bits != 4) {
            words_unpack(j, w, panel, unit, to);
            return;
        }
        const struct kn_layout l = kn_layout(&f, NR);
        w->codes = j->coded->data + panel->at;
        w->at = kn_step_at(&l, (w->k0 + unit) * TILE_UNIT / CODES_STEP);
        w->step = to;
        w->of = meaning_of(f);
    }
    if (f.bits != 4) return;
    if (part % 4 == 0) {
        step_scales(f, w->codes, w->at, part / 4, &w->s);
        if (!f.min) w->s.m[0] = w->s.m[1] = vf_set1(-0.0f); /* added, it changes no product */
    }
    words_word(w, part / 4, part % 4);
}

#endif
