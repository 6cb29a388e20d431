/* Coded panels back to f32: exactly the values that filling the weight with f32 rows would give. */
#include "kernels/cpu/simd/codes_step.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd/table.h"

VF_INLINE void step_nibbles(const struct codes_form f, const uint8_t *codes, const struct scales *s,
                            float *out)
{
    const meaning of = meaning_of(f);
    (void)of;
#pragma GCC unroll 2
    for (int v = 0; v < NV; v++)
#pragma GCC unroll 4
        for (int w = 0; w < 4; w++) {
            const words x = words_load(codes + (size_t)(v * 4 + w) * VL * 4);
#pragma GCC unroll 8
            for (int j = 0; j < 8; j++)
                vf_store(out + kn_nibble(w, j) * NR + v * VL,
                         value(f, nibble(f, x, j, of), s[v].d[j % 4 / 2], s[v].m[j % 4 / 2]));
        }
}

VF_INLINE void step_bytes(const struct codes_form f, const uint8_t *codes, const struct scales *s,
                          float *out)
{
#pragma GCC unroll 2
    for (int half = 0; half < HALVES; half++)
#pragma GCC unroll 4
        for (int i = 16 * half; i < 16 * half + 16; i++)
#pragma GCC unroll 2
            for (int v = 0; v < NV; v++)
                vf_store(out + i * NR + v * VL,
                         value(f, vf_from_i8(codes + i * NR + v * VL), s[v].d[half], s[v].m[half]));
}

VF_INLINE void steps(const struct codes_form f, const uint8_t *panel, size_t k0, size_t kc,
                     float *out)
{
    const struct kn_layout l = kn_layout(&f, NR);
    for (size_t i = k0 / CODES_STEP; i < (k0 + kc) / CODES_STEP; i++, out += CODES_STEP * NR) {
        const struct kn_step at = kn_step_at(&l, i);
        step_ahead(&l, panel, i);
        struct scales s[NV];
#pragma GCC unroll 2
        for (size_t v = 0; v < NV; v++)
            step_scales(f, panel, at, v, &s[v]);
        if (f.bits == 4)
            step_nibbles(f, panel + at.codes, s, out);
        else
            step_bytes(f, panel + at.codes, s, out);
    }
}

/* Values [k0, k0 + kc) of a panel's columns, [kc][NR]; whole steps, but of 16 bits and f32. Every
 * form is a loop of its own, with the form as a constant. False: not a form that there is. */
bool KN_NAME(codes_panel)(const struct codes_form *f, const uint8_t *panel, size_t k0, size_t kc,
                          float *out)
{
    if (f->bits == 0) {
        memcpy(out, panel + k0 * NR * sizeof *out, kc * NR * sizeof *out);
        return true;
    }
    if (f->bits == 16) {
        const uint16_t *x = (const uint16_t *)(const void *)panel + k0 * NR;
        (f->bf16 ? KN_TABLE.stored.decode_bf16 : KN_TABLE.stored.decode_f16)(x, kc * NR, out);
        return true;
    }
#define TRY(...)                                                                                   \
    {                                                                                              \
        const struct codes_form is = __VA_ARGS__;                                                  \
        if (codes_form_same(f, &is)) {                                                             \
            steps(is, panel, k0, kc, out);                                                         \
            return true;                                                                           \
        }                                                                                          \
    }
    CODES_FORMS(TRY)
    return false;
}
