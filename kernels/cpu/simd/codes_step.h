/* codes_step: the numbers and the scales of a step of a coded panel, in lanes: what
 * readers of codes share.
 *
 * A product of a code and D has at most 24 bits in every form, so it is exact and a fused sum with
 * M is rounded as the separate one is. On AVX-512 a nibble becomes a float by one permutation,
 * which looks at the low four bits of a lane alone, whether the numbers are in a row or a table's;
 * AVX2 has eight floats in a register, so a table's are in two; NEON finds a table's as bytes.
 * Pure. */
#ifndef KERNELS_CPU_SIMD_CODES_STEP_H
#define KERNELS_CPU_SIMD_CODES_STEP_H

#include "kernels/cpu/coded.h"
#include "kernels/cpu/simd/vec_load.h"

enum {
    NV = 2,
    NR = NV * VL,
    HALVES = 2,
    STEPS_AHEAD = 8 /* measured: of 3 to 24 the best by a few percent */
};

/* Of n columns, half of which are gates: the panel that is counted i where both take turns. */
VF_INLINE size_t gated_panel(size_t n, size_t i)
{
    return i / 2 + i % 2 * (n / 2 / NR);
}

struct scales { /* of a vector of columns: of a step's first and second 16 values */
    vf d[HALVES], m[HALVES];
};

/* ---- nibbles to f32, in lanes ---- */

#if KN_SIMD == 512
typedef __m512i words;
#define words_load(p) _mm512_loadu_si512(p)
/* The values of nibbles 0 … 15. */
typedef vf meaning;
VF_INLINE meaning meaning_of(const struct codes_form f)
{
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    if (f.table) return vf_from_i8(codes_table[f.table]);
    return _mm512_cvtepi32_ps(_mm512_add_epi32(lane, _mm512_set1_epi32(f.low)));
}
#define nibble(f, x, j, values) _mm512_permutexvar_ps(_mm512_srli_epi32(x, 4 * (j)), values)
#elif KN_SIMD == 256
typedef __m256i words;
#define words_load(p) _mm256_loadu_si256((const void *)(p))
typedef struct { /* of a table: its halves; else what is added */
    vf low, high;
} meaning;
VF_INLINE meaning meaning_of(const struct codes_form f)
{
    const uint8_t *t = (const uint8_t *)codes_table[f.table];
    return f.table ? (meaning){vf_from_i8(t), vf_from_i8(t + VL)}
                   : (meaning){.low = vf_set1(f.low)};
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
#elif KN_SIMD == 128
typedef uint32x4_t words;
#define words_load(p) vreinterpretq_u32_u8(vld1q_u8(p))
typedef struct { /* a table's numbers, what is added to others */
    int8x16_t table;
    vf add;
} meaning;
VF_INLINE meaning meaning_of(const struct codes_form f)
{
    return (meaning){vld1q_s8(codes_table[f.table]), vf_set1(f.low)};
}
VF_INLINE vf nibble(const struct codes_form f, words x, int j, meaning of)
{
    const words place = vandq_u32(vshlq_u32(x, vdupq_n_s32(-4 * j)), vdupq_n_u32(15));
    if (f.table) { /* the lanes' upper bytes find number 0, and are shifted away */
        const int8x16_t q = vqtbl1q_s8(of.table, vreinterpretq_u8_u32(place));
        return vcvtq_f32_s32(vshrq_n_s32(vshlq_n_s32(vreinterpretq_s32_s8(q), 24), 24));
    }
    const vf q = vcvtq_f32_u32(place);
    return f.low ? vf_add(q, of.add) : q;
}
#else
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

VF_INLINE vf value(const struct codes_form f, vf q, vf d, vf m)
{
    return f.min ? vf_fma(q, d, m) : vf_mul(q, d);
}

/* Of vector v of a panel's columns. */
VF_INLINE void step_scales(const struct codes_form f, const uint8_t *panel, struct kn_step at,
                           size_t v, struct scales *s)
{
    const int n_groups = CODES_STEP / f.group;
    const uint8_t *step = panel + at.head, *head = kn_by_units(&f) ? panel + at.unit : step;
#pragma GCC unroll 2
    for (int h = 0; h < HALVES; h++) {
        const uint8_t *first = head + 2 * v * VL;
        vf d = f.bf16 ? vf_from_bf16(first) : vf_from_f16(first), m = vf_set1(0);
        if (f.min) m = vf_from_f16(head + 2 * (NR + v * VL));
        if (f.super) {
            const uint8_t *of = step + (size_t)(n_groups == 2 ? h : 0) * NR + v * VL;
            d = vf_mul(d, vf_from_i8(of));
            /* Minus by a product: so is minus zero. */
            if (f.min) m = vf_mul(vf_mul(m, vf_from_i8(of + n_groups * NR)), vf_set1(-1));
        }
        if (f.zero) m = vf_mul(vf_mul(m, d), vf_set1(-1));
        s->d[h] = d;
        s->m[h] = m;
    }
}

/* Asks for the codes of a step to come, of this panel or the one behind it: products between two
 * pieces of a panel are long enough for the processor's own prefetcher to lose its place. */
VF_INLINE void step_ahead(const struct kn_layout *l, const uint8_t *panel, size_t step)
{
    const uint8_t *next = panel + (step + STEPS_AHEAD) * l->unit / l->steps;
    for (size_t line = 0; line < l->step; line += 64)
        __builtin_prefetch(next + line);
}

/* Of numbers from 0 on: the least of them is a part of M. */
VF_INLINE void step_plain(const struct codes_form f, const uint8_t *panel, struct kn_step at,
                          size_t v, struct scales *s)
{
    step_scales(f, panel, at, v, s);
#pragma GCC unroll 2
    for (int h = 0; h < HALVES; h++)
        s->m[h] = vf_fma(vf_set1(f.low), s->d[h], s->m[h]);
}

#endif
