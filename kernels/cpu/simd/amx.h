/* amx: how a call gets its tiles, 16 rows of 64 bytes each or as it says; the pairs that they hold.
 *
 * A call gives them back with _tile_release(), so that the kernel does not save them for nothing.
 * Thread: any, once the process may use AMX (isa.c). */
#ifndef KERNELS_CPU_SIMD_AMX_H
#define KERNELS_CPU_SIMD_AMX_H

#include "kernels/cpu/simd/vec.h"

enum {
    AMX_ROWS = 16,  /* of a tile of A and C */
    AMX_UNITS = 16, /* pairs of bf16 of a row of A, in 64 bytes; rows of B */
    AMX_COLS = 16,  /* of B and C */
};

/* GCC's tile loads do not say that they read memory: what they will read has to be there. */
#define amx_barrier() __asm__ volatile("" ::: "memory")

/* lo[i], hi[i] as pairs of bf16, lo in the lower half. */
VF_INLINE __m512i bf16_pairs(vf lo, vf hi)
{
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    /* Of the words lo 0 … 15, hi 0 … 15: lo 0, hi 0, lo 1, hi 1 … */
    const __m512i order =
        _mm512_or_si512(lane, _mm512_slli_epi32(_mm512_add_epi32(lane, _mm512_set1_epi32(VL)), 16));
    return _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(hi, lo));
}

/* Values beside each other, two vectors of them, as pairs of bf16. */
VF_INLINE __m512i bf16_row(const float *x)
{
    return (__m512i)_mm512_cvtne2ps_pbh(vf_load(x + VL), vf_load(x));
}

struct amx_shapes {
    uint16_t row_bytes[8];
    uint8_t rows[8];
};
static inline void amx_open_as(const struct amx_shapes s)
{
    struct {
        uint8_t palette, start_row, zero[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } c = {.palette = 1};
    memcpy(c.row_bytes, s.row_bytes, sizeof s.row_bytes);
    memcpy(c.rows, s.rows, sizeof s.rows);
    amx_barrier();
    _tile_loadconfig(&c);
}
static inline void amx_open(void)
{
    struct amx_shapes s;
    for (int i = 0; i < 8; i++) {
        s.row_bytes[i] = 64;
        s.rows[i] = AMX_ROWS;
    }
    amx_open_as(s);
}

/* Lines that sums will go to, not asked for yet. The processor does not see them coming. */
struct amx_claim {
    const float *c;
    size_t ldc, rows, due; /* rows: left; due: at a time */
};
static inline void amx_claim(struct amx_claim *x)
{
    for (size_t n = x->due; n && x->rows; n--, x->rows--, x->c += x->ldc) {
        __builtin_prefetch(x->c, 1);
        __builtin_prefetch(x->c + VL, 1);
    }
}

/* Sums of 16 rows by two vectors: half 0 is tiles 0 and 1, half 1 is 2 and 3. NULL: zeros. */
static inline void amx_load(int half, const float *c, size_t ldc)
{
    const size_t step = ldc * sizeof(float);
    amx_barrier();
    if (half == 0 && c) {
        _tile_loadd(0, c, step);
        _tile_loadd(1, c + VL, step);
    } else if (half == 0) {
        _tile_zero(0);
        _tile_zero(1);
    } else if (c) {
        _tile_loadd(2, c, step);
        _tile_loadd(3, c + VL, step);
    } else {
        _tile_zero(2);
        _tile_zero(3);
    }
}

static inline void amx_store(int half, float *c, size_t ldc)
{
    const size_t step = ldc * sizeof(float);
    if (half == 0) {
        _tile_stored(0, c, step);
        _tile_stored(1, c + VL, step);
    } else {
        _tile_stored(2, c, step);
        _tile_stored(3, c + VL, step);
    }
}

#endif
