/* turn: rows of a few vectors of 16 bytes become columns, in registers.
 *
 * By the compiler's own vectors, as packing is bound by memory and 16 bytes are what every
 * instruction set there is can interleave: SSE2 and NEON without being asked for. n vectors of n
 * elements: log2(n) rounds of interleaving row i with row i + n / 2. Thread: any. */
#ifndef KERNELS_TURN_H
#define KERNELS_TURN_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef uint8_t turn_8 __attribute__((vector_size(16)));
typedef uint16_t turn_16 __attribute__((vector_size(16)));
typedef uint32_t turn_32 __attribute__((vector_size(16)));
enum { KN_TURN_ROWS = 16 }; /* that are packed together: of one vector's bytes the most columns */
#define TURN_INLINE static inline __attribute__((always_inline))

TURN_INLINE turn_8 turn_load(const void *p)
{
    turn_8 v;
    memcpy(&v, p, sizeof v);
    return v;
}
/* Its first n bytes. */
TURN_INLINE void turn_store(void *p, turn_8 v, size_t n)
{
    if (n == sizeof v)
        memcpy(p, &v, sizeof v);
    else
        memcpy(p, &v, n);
}
/* Elements of the lower halves of a and b by turns, of the upper halves. */
TURN_INLINE turn_8 turn_low_8(turn_8 a, turn_8 b)
{
    return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
TURN_INLINE turn_8 turn_high_8(turn_8 a, turn_8 b)
{
    return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15,
                                   31);
}
TURN_INLINE turn_8 turn_low_16(turn_8 a, turn_8 b)
{
    return (turn_8)__builtin_shufflevector((turn_16)a, (turn_16)b, 0, 8, 1, 9, 2, 10, 3, 11);
}
TURN_INLINE turn_8 turn_high_16(turn_8 a, turn_8 b)
{
    return (turn_8)__builtin_shufflevector((turn_16)a, (turn_16)b, 4, 12, 5, 13, 6, 14, 7, 15);
}
TURN_INLINE turn_8 turn_low_32(turn_8 a, turn_8 b)
{
    return (turn_8)__builtin_shufflevector((turn_32)a, (turn_32)b, 0, 4, 1, 5);
}
TURN_INLINE turn_8 turn_high_32(turn_8 a, turn_8 b)
{
    return (turn_8)__builtin_shufflevector((turn_32)a, (turn_32)b, 2, 6, 3, 7);
}

/* The matrix x, of 16 / size rows of elements of so many bytes: 1, 2, 4. */
TURN_INLINE void turn(size_t size, turn_8 *x)
{
    const size_t n = sizeof *x / size;
    turn_8 y[16];
#pragma GCC unroll 4
    for (size_t round = 1; round < n; round *= 2) {
#pragma GCC unroll 8
        for (size_t i = 0; i < n / 2; i++) {
            const turn_8 a = x[i], b = x[i + n / 2];
            y[2 * i] = size == 1   ? turn_low_8(a, b)
                       : size == 2 ? turn_low_16(a, b)
                                   : turn_low_32(a, b);
            y[2 * i + 1] = size == 1   ? turn_high_8(a, b)
                           : size == 2 ? turn_high_16(a, b)
                                       : turn_high_32(a, b);
        }
#pragma GCC unroll 16
        for (size_t i = 0; i < n; i++)
            x[i] = y[i];
    }
}

/* Element i, of so many bytes (1, 2, 4) and of n, of row j to to + i * stride + j * size: rows
 * become columns beside each other. */
TURN_INLINE void turn_rows(const uint8_t *const *row, size_t n_rows, size_t size, size_t n,
                           uint8_t *to, size_t stride)
{
    const size_t most = sizeof(turn_8) / size;
    for (size_t j = 0, now; j < n_rows; j += now, row += now, to += now * size) {
        size_t i = 0;
        now = n_rows - j < most ? n_rows - j : most;
        for (; i + most <= n; i += most) {
            turn_8 v[16];
#pragma GCC unroll 16
            for (size_t r = 0; r < most; r++)
                v[r] = r < now ? turn_load(row[r] + i * size) : (turn_8){0};
            turn(size, v);
#pragma GCC unroll 16
            for (size_t e = 0; e < most; e++)
                turn_store(to + (i + e) * stride, v[e], now * size);
        }
        for (; i < n; i++)
            for (size_t r = 0; r < now; r++)
                memcpy(to + i * stride + r * size, row[r] + i * size, size);
    }
}

/* Rows [n, k] of f32 to columns of a panel of nr. */
static inline void turn_floats(const float *x, size_t n, size_t k, void *to, size_t nr)
{
    const uint8_t *row[KN_TURN_ROWS];
    for (size_t j = 0; j < n; j++)
        row[j] = (const void *)(x + j * k);
    turn_rows(row, n, sizeof *x, k, to, nr * sizeof *x);
}

#endif
