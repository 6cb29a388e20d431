/* amx: how a call gets its tiles. All eight are 16 rows of 64 bytes.
 *
 * A call gives them back with _tile_release(), so that nobody saves them for nothing.
 * Thread: any, once the process may use AMX (isa.c). */
#ifndef KERNELS_CPU_SIMD_AMX_H
#define KERNELS_CPU_SIMD_AMX_H

#include <immintrin.h>
#include <stdint.h>

enum {
    AMX_ROWS = 16,  /* of a tile of A and C */
    AMX_UNITS = 16, /* pairs of bf16 of a row of A, in 64 bytes; rows of B */
    AMX_COLS = 16,  /* of B and C */
};

/* GCC's tile loads do not say that they read memory: what they will read has to be there. */
#define amx_barrier() __asm__ volatile("" ::: "memory")

static inline void amx_open(void)
{
    struct {
        uint8_t palette, start_row, zero[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.row_bytes[i] = 64;
        c.rows[i] = AMX_ROWS;
    }
    amx_barrier();
    _tile_loadconfig(&c);
}

#endif
