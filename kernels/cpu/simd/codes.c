/* Coded panels back to f32: exactly the values that filling the weight with f32 rows would give.
 *
 * A product of a code and D has at most 24 bits in every form, so it is exact and a fused sum with
 * M is rounded as the separate one is. On AVX-512 a nibble becomes a float by one permutation,
 * which looks at the low four bits of a lane alone, whether the numbers are in a row or a table's;
 * AVX2 has eight floats in a register, so a table's are in two. */
#include "kernels/cpu/coded.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd/table.h"
#include "kernels/cpu/simd/vec.h"

enum { NV = 2, NR = NV * VL, HALVES = 2 };

struct scales { /* of a step: its first and its second 16 values */
    vf d[HALVES][NV], m[HALVES][NV];
};

/* ---- integers to f32, in lanes ---- */

#if KN_SIMD == 512
VF_INLINE vf from_i8(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p)));
}
VF_INLINE vf from_f16(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
}
typedef __m512i words;
#define words_load(p) _mm512_loadu_si512(p)
/* The values of nibbles 0 … 15. */
typedef vf meaning;
VF_INLINE meaning meaning_of(const struct codes_form f)
{
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    if (f.table) return from_i8((const uint8_t *)codes_table[f.table]);
    return _mm512_cvtepi32_ps(_mm512_add_epi32(lane, _mm512_set1_epi32(f.low)));
}
#define nibble(f, x, j, values) _mm512_permutexvar_ps(_mm512_srli_epi32(x, 4 * (j)), values)
#elif KN_SIMD == 256
VF_INLINE vf from_i8(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p)));
}
VF_INLINE vf from_f16(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const void *)p));
}
typedef __m256i words;
#define words_load(p) _mm256_loadu_si256((const void *)(p))
typedef struct { /* of a table: its halves; else what is added */
    vf low, high;
} meaning;
VF_INLINE meaning meaning_of(const struct codes_form f)
{
    const uint8_t *t = (const uint8_t *)codes_table[f.table];
    return f.table ? (meaning){from_i8(t), from_i8(t + VL)} : (meaning){.low = vf_set1(f.low)};
}
VF_INLINE vf nibble(const struct codes_form f, words x, int j, meaning of)
{
    x = _mm256_srli_epi32(x, 4 * j);
    if (f.table) { /* by three bits in either half, by the fourth in which */
        const vf low = _mm256_permutevar8x32_ps(of.low, x);
        const vf high = _mm256_permutevar8x32_ps(of.high, x);
        return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(x, 28)));
    }
    x = _mm256_and_si256(x, _mm256_set1_epi32(15));
    return f.low ? vf_add(_mm256_cvtepi32_ps(x), of.low) : _mm256_cvtepi32_ps(x);
}
#else
VF_INLINE vf from_i8(const uint8_t *p)
{
    int8_t q[VL];
    memcpy(q, p, sizeof q);
    return (vf){q[0], q[1], q[2], q[3]};
}
VF_INLINE vf from_f16(const uint8_t *p)
{
    uint16_t h[VL];
    memcpy(h, p, sizeof h);
    return (vf){codes_f16(h[0]), codes_f16(h[1]), codes_f16(h[2]), codes_f16(h[3])};
}
typedef uint32_t words __attribute__((vector_size(16)));
VF_INLINE words words_load(const uint8_t *p)
{
    words x;
    memcpy(&x, p, sizeof x);
    return x;
}
typedef vf meaning; /* what is added */
#define meaning_of(f) vf_set1((f).low)
VF_INLINE vf nibble(const struct codes_form f, words x, int j, meaning add)
{
    const words place = (x >> (4 * j)) & 15;
    const int8_t *t = codes_table[f.table];
    if (f.table) return (vf){t[place[0]], t[place[1]], t[place[2]], t[place[3]]};
    const vf q = __builtin_convertvector((vi)place, vf);
    return f.low ? vf_add(q, add) : q;
}
#endif

VF_INLINE vf from_bf16(const uint8_t *p)
{
    float x[VL];
    for (size_t i = 0; i < VL; i++) {
        uint32_t bits = 0;
        memcpy((uint8_t *)&bits + 2, p + 2 * i, 2);
        memcpy(&x[i], &bits, sizeof bits);
    }
    return vf_load(x);
}

/* ---- a step ---- */

VF_INLINE vf value(const struct codes_form f, vf q, vf d, vf m)
{
    return f.min ? vf_fma(q, d, m) : vf_mul(q, d);
}

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
                vf_store(out + (8 * w + j) * NR + v * VL,
                         value(f, nibble(f, x, j, of), s->d[w / 2][v], s->m[w / 2][v]));
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
                         value(f, from_i8(codes + i * NR + v * VL), s->d[half][v], s->m[half][v]));
}

VF_INLINE void step_scales(const struct codes_form f, const uint8_t *unit, const uint8_t *step,
                           struct scales *s)
{
    const int n_groups = CODES_STEP / f.group;
#pragma GCC unroll 2
    for (int v = 0; v < NV; v++)
#pragma GCC unroll 2
        for (int h = 0; h < HALVES; h++) {
            const uint8_t *head = f.super ? unit : step;
            vf d = (f.bf16 ? from_bf16 : from_f16)(head + 2 * v * VL), m = vf_set1(0);
            if (f.min) m = from_f16(head + 2 * (NR + v * VL));
            if (f.super) {
                const uint8_t *of = step + (n_groups == 2 ? h : 0) * NR + v * VL;
                d = vf_mul(d, from_i8(of));
                /* Minus by a product: so is minus zero. */
                if (f.min) m = vf_mul(vf_mul(m, from_i8(of + n_groups * NR)), vf_set1(-1));
            }
            s->d[h][v] = d;
            s->m[h][v] = m;
        }
}

VF_INLINE void steps(const struct codes_form f, const uint8_t *panel, size_t k0, size_t kc,
                     float *out)
{
    const struct kn_layout l = kn_layout(&f, NR);
    for (size_t i = k0 / CODES_STEP; i < (k0 + kc) / CODES_STEP; i++, out += CODES_STEP * NR) {
        const uint8_t *unit = panel + i / l.steps * l.unit;
        const uint8_t *step = unit + l.unit_head + i % l.steps * l.step;
        struct scales s;
        step_scales(f, unit, step, &s);
        if (f.bits == 4)
            step_nibbles(f, step + l.step_head, &s, out);
        else
            step_bytes(f, step + l.step_head, &s, out);
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
