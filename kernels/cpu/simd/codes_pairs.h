/* codes_pairs: codes of 4 bits straight to pairs of bf16, [units][NR], as columns of a product take
 * them: the values of codes.c, rounded. Included behind amx.h. Pure. */
#ifndef KERNELS_CPU_SIMD_CODES_PAIRS_H
#define KERNELS_CPU_SIMD_CODES_PAIRS_H

#include "kernels/cpu/simd/codes_step.h"

/* A word of each of sixteen columns of a step that begins at `to`: a pair of each quarter. */
VF_INLINE void pairs_word(const struct codes_form f, const uint8_t *codes, const struct scales *s,
                          uint32_t *to)
{
    const meaning of = meaning_of(f);
    const words x = words_load(codes);
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        const vf lo = value(f, nibble(0, x, j, of), s->d[j / 2], s->m[j / 2]);
        const vf hi = value(f, nibble(0, x, j + 4, of), s->d[j / 2], s->m[j / 2]);
        _mm512_storeu_si512(to + (size_t)j * 4 * NR, bf16_pairs(lo, hi));
    }
}

VF_INLINE void pairs_steps(const struct codes_form f, const uint8_t *panel, size_t k0, size_t kc,
                           uint32_t *to)
{
    const struct kn_layout l = kn_layout(&f, NR);
    for (size_t k = k0; k < k0 + kc; k += CODES_STEP, to += CODES_STEP / 2 * NR) {
        const struct kn_step at = kn_step_at(&l, k / CODES_STEP);
        step_ahead(&l, panel, k / CODES_STEP);
#pragma GCC unroll 1
        for (size_t v = 0; v < NV; v++) {
            struct scales s;
            step_scales(f, panel, at, v, &s);
#pragma GCC unroll 1
            for (size_t word = 0; word < 4; word++)
                pairs_word(f, panel + at.codes + (v * 4 + word) * VL * 4, &s,
                           to + word * NR + v * VL);
        }
    }
}

/* Values [k0, k0 + kc) of a panel's columns, whole steps. False: these are not of 4 bits. */
static bool codes_pairs(const struct codes_form *f, const uint8_t *panel, size_t k0, size_t kc,
                        uint32_t *to)
{
    if (f->bits != 4) return false;
#define TRY(...)                                                                                   \
    {                                                                                              \
        const struct codes_form is = __VA_ARGS__;                                                  \
        if (is.bits == 4 && codes_form_same(f, &is)) {                                             \
            pairs_steps(is, panel, k0, kc, to);                                                    \
            return true;                                                                           \
        }                                                                                          \
    }
    CODES_FORMS(TRY)
#undef TRY
    return false;
}

#endif
