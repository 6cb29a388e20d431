/* turn: rows of a few vectors of 16 bytes become columns, in registers.
 *
 * By the compiler's own vectors, as packing is bound by memory and 16 bytes are what every
 * instruction set there is can interleave: SSE2 and NEON without being asked for. n vectors of n
 * elements: log2(n) rounds of interleaving row i with row i + n / 2. Thread: any. */
#ifndef KERNELS_CPU_TURN_H
#define KERNELS_CPU_TURN_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef uint8_t turn_8 __attribute__((vector_size(16)));
typedef uint16_t turn_16 __attribute__((vector_size(16)));
typedef uint32_t turn_32 __attribute__((vector_size(16)));
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

#endif
