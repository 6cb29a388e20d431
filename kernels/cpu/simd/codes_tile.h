/* codes_tile: coded panels as tiles of A for AMX, rounded to bf16: a row is 32 values of k of one
 * column.
 *
 * Of 4 bits, the 16 values that codes can mean are computed and rounded once for a group, and one
 * permutation of words looks up 32 codes in them; of 8 bits each is computed. Both are the values
 * of codes.c, rounded as gemm_bf16.c does. Included by gemm_codes.c. Thread: any. */
#ifndef KERNELS_CPU_SIMD_CODES_TILE_H
#define KERNELS_CPU_SIMD_CODES_TILE_H

#include "kernels/cpu/simd/codes_step.h"
#include "kernels/cpu/simd/columns.h"

/* The codes of a column, one a word, which alone counts in its low five bits. */
VF_INLINE __m512i codes_spread(const uint32_t *column, __m512i low, __m512i which)
{
    /* Halfword i of quarter g holds value 8 g + i in its nibble g. */
    const __m512i shifts =
        _mm512_setr_epi32(0, 0, 0, 0, 0x40004, 0x40004, 0x40004, 0x40004, 0x80008, 0x80008, 0x80008,
                          0x80008, 0xc000c, 0xc000c, 0xc000c, 0xc000c);
    const __m128i all = _mm_loadu_si128((const void *)column);
    const __m512i x = _mm512_srlv_epi16(_mm512_broadcast_i32x4(all), shifts);
    return _mm512_ternarylogic_epi32(x, low, which, 0xea); /* x and low, or which */
}

/* Codes of 4 bits of a step and 16 columns, by column: where those of column c are then. */
#define NIBBLES_AT(column, c) ((column) + (c) % 4 * VL + (c) / 4 * 4)
VF_INLINE void nibbles_turned(const uint8_t *codes, uint32_t *column)
{
    __m512i x[4], turned[4];
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++)
        x[i] = words_load(codes + i * VL * 4);
    turn(x, turned);
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++)
        _mm512_storeu_si512(column + i * VL, turned[i]);
}

/* The same of 8 bits: 32 bytes a column. */
VF_INLINE void bytes_turned(const uint8_t *codes, uint32_t *column)
{
    const __m512i by_column =
        _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    __m512i row[8], x[8], y[8];
#pragma GCC unroll 8
    for (size_t i = 0; i < 8; i++) { /* quarter b: row 8 b + i */
        const uint8_t *at = codes + i * NR;
        row[i] = _mm512_castsi128_si512(_mm_loadu_si128((const void *)at));
        row[i] = _mm512_inserti32x4(row[i], _mm_loadu_si128((const void *)(at + 8 * NR)), 1);
        row[i] = _mm512_inserti32x4(row[i], _mm_loadu_si128((const void *)(at + 16 * NR)), 2);
        row[i] = _mm512_inserti32x4(row[i], _mm_loadu_si128((const void *)(at + 24 * NR)), 3);
    }
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) { /* columns 0 to 7 of rows i, i + 4; columns 8 to 15 */
        x[i] = _mm512_unpacklo_epi8(row[i], row[i + 4]);
        x[4 + i] = _mm512_unpackhi_epi8(row[i], row[i + 4]);
    }
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) { /* four columns of rows i % 2, + 2, + 4, + 6; the next four */
        const size_t from = i / 2 * 4 + i % 2, to = i / 2 * 4 + i % 2;
        y[to] = _mm512_unpacklo_epi8(x[from], x[from + 2]);
        y[to + 2] = _mm512_unpackhi_epi8(x[from], x[from + 2]);
    }
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) { /* two columns of eight rows, and the next two */
        _mm512_storeu_si512(
            column + 2 * i * VL,
            _mm512_permutexvar_epi32(by_column, _mm512_unpacklo_epi8(y[2 * i], y[2 * i + 1])));
        _mm512_storeu_si512(
            column + (2 * i + 1) * VL,
            _mm512_permutexvar_epi32(by_column, _mm512_unpackhi_epi8(y[2 * i], y[2 * i + 1])));
    }
}

/* Half of a panel's columns, a step of k: their codes in order, and what these stand for. */
struct codes_half {
    float d[HALVES][VL], m[HALVES][VL];
    uint32_t column[8 * VL] __attribute__((aligned(64)));
};

VF_INLINE void codes_half_open(const struct codes_form f, const uint8_t *panel, size_t half,
                               size_t s, struct codes_half *to)
{
    const struct kn_layout l = kn_layout(&f, NR);
    const struct kn_step at = kn_step_at(&l, s);
    struct scales scales;
    step_scales(f, panel, at, half, &scales);
    for (size_t h = 0; h < HALVES; h++) {
        vf_store(to->d[h], scales.d[h]);
        if (f.min) vf_store(to->m[h], scales.m[h]);
    }
    if (f.bits == 4)
        nibbles_turned(panel + at.codes + half * 4 * VL * 4, to->column);
    else
        bytes_turned(panel + at.codes + half * VL, to->column);
    /* Else the compiler keeps them in registers and takes them apart by permutations. */
    __asm__ volatile("" : : "r"(to) : "memory");
}

enum { CODES_COLUMNS = 4 }; /* that are unpacked at a time */

/* Columns from `from` on as rows of 16 pairs. */
VF_INLINE void codes_columns(const struct codes_form f, const struct codes_half *x, size_t from,
                             uint32_t *to)
{
    const bool two_groups = f.group < CODES_STEP;
    const __m512i low = _mm512_set1_epi32(15 << 16 | 15), high = _mm512_set1_epi32(16 << 16 | 16);
    const __m512i none = _mm512_set1_epi32(0);
    const __m512i second = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 16 << 16 | 16, 16 << 16 | 16,
                                             16 << 16 | 16, 16 << 16 | 16, 16 << 16 | 16,
                                             16 << 16 | 16, 16 << 16 | 16, 16 << 16 | 16);
#define VALUES(q, c, h)                                                                            \
    value(f, q, vf_set1(x->d[h][c]), f.min ? vf_set1(x->m[h][c]) : vf_set1(0.0f))
    if (f.bits == 8) {
#pragma GCC unroll 4
        for (size_t c = from; c < from + CODES_COLUMNS; c++) {
            const uint8_t *q = (const uint8_t *)(x->column + c * 8);
            const vf a = VALUES(vf_from_i8(q), c, 0), b = VALUES(vf_from_i8(q + VL), c, 1);
            _mm512_storeu_si512(to + c * VL, (__m512i)_mm512_cvtne2ps_pbh(b, a));
        }
        return;
    }
    const vf of = meaning_of(f);
#pragma GCC unroll 2
    for (size_t c = from; c < from + CODES_COLUMNS; c += 2) {
        /* Tables of 32 words: of two columns or, of groups of 16, of a column's two. */
        const vf a = VALUES(of, c, 0), b = two_groups ? VALUES(of, c, 1) : VALUES(of, c + 1, 0);
        const __m512i table = (__m512i)_mm512_cvtne2ps_pbh(b, a);
        const __m512i other =
            two_groups ? (__m512i)_mm512_cvtne2ps_pbh(VALUES(of, c + 1, 1), VALUES(of, c + 1, 0))
                       : table;
        const __m512i at0 = codes_spread(NIBBLES_AT(x->column, c), low, two_groups ? second : none);
        const __m512i at1 =
            codes_spread(NIBBLES_AT(x->column, c + 1), low, two_groups ? second : high);
        _mm512_storeu_si512(to + c * VL, _mm512_permutexvar_epi16(at0, table));
        _mm512_storeu_si512(to + (c + 1) * VL, _mm512_permutexvar_epi16(at1, other));
    }
#undef VALUES
}

#endif
