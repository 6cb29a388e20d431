/* columns: rows of dwords that become columns of a tile, four at a time or all, and back. Included
 * behind vec.h by files for AVX-512. Pure. */
#ifndef KERNELS_CPU_SIMD_COLUMNS_H
#define KERNELS_CPU_SIMD_COLUMNS_H

#include "kernels/cpu/simd/vec.h"

/* 4 x 4 dwords turned in each quarter: z[i] is of quarter b y[0 … 3][4 b + i]. */
VF_INLINE void turn(const __m512i *y, __m512i *z)
{
    const __m512i lo = _mm512_unpacklo_epi32(y[0], y[1]), hi = _mm512_unpackhi_epi32(y[0], y[1]);
    const __m512i lo2 = _mm512_unpacklo_epi32(y[2], y[3]), hi2 = _mm512_unpackhi_epi32(y[2], y[3]);
    z[0] = _mm512_unpacklo_epi64(lo, lo2);
    z[1] = _mm512_unpackhi_epi64(lo, lo2);
    z[2] = _mm512_unpacklo_epi64(hi, hi2);
    z[3] = _mm512_unpackhi_epi64(hi, hi2);
}

/* Four columns of a tile: to[16 i + c] = y[c][i]; and back. */
VF_INLINE void columns_put(const __m512i *y, uint32_t *to)
{
    __m512i z[4];
    turn(y, z);
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) {
        _mm_storeu_si128((void *)(to + i * VL), _mm512_extracti32x4_epi32(z[i], 0));
        _mm_storeu_si128((void *)(to + (4 + i) * VL), _mm512_extracti32x4_epi32(z[i], 1));
        _mm_storeu_si128((void *)(to + (8 + i) * VL), _mm512_extracti32x4_epi32(z[i], 2));
        _mm_storeu_si128((void *)(to + (12 + i) * VL), _mm512_extracti32x4_epi32(z[i], 3));
    }
}

/* All sixteen: to[16 i + c] = y[c][i]. */
VF_INLINE void columns_put_all(const __m512i *y, uint32_t *to)
{
    __m512i z[4][4];
#pragma GCC unroll 4
    for (size_t q = 0; q < 4; q++)
        turn(y + 4 * q, z[q]);
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) { /* 4 x 4 quarters turned */
        const __m512i lo = _mm512_shuffle_i32x4(z[0][i], z[1][i], 0x44);
        const __m512i lo2 = _mm512_shuffle_i32x4(z[2][i], z[3][i], 0x44);
        const __m512i hi = _mm512_shuffle_i32x4(z[0][i], z[1][i], 0xee);
        const __m512i hi2 = _mm512_shuffle_i32x4(z[2][i], z[3][i], 0xee);
        _mm512_storeu_si512(to + i * VL, _mm512_shuffle_i32x4(lo, lo2, 0x88));
        _mm512_storeu_si512(to + (4 + i) * VL, _mm512_shuffle_i32x4(lo, lo2, 0xdd));
        _mm512_storeu_si512(to + (8 + i) * VL, _mm512_shuffle_i32x4(hi, hi2, 0x88));
        _mm512_storeu_si512(to + (12 + i) * VL, _mm512_shuffle_i32x4(hi, hi2, 0xdd));
    }
}

VF_INLINE void columns_get(const uint32_t *from, __m512i *y)
{
    __m512i z[4];
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) {
        z[i] = _mm512_castsi128_si512(_mm_loadu_si128((const void *)(from + i * VL)));
        z[i] = _mm512_inserti32x4(z[i], _mm_loadu_si128((const void *)(from + (4 + i) * VL)), 1);
        z[i] = _mm512_inserti32x4(z[i], _mm_loadu_si128((const void *)(from + (8 + i) * VL)), 2);
        z[i] = _mm512_inserti32x4(z[i], _mm_loadu_si128((const void *)(from + (12 + i) * VL)), 3);
    }
    turn(z, y);
}

#endif
