/* hadamard: 64 values rotated by a Hadamard matrix (int8.h), the same bits in all widths of
 * vectors. Thread: any. */
#ifndef KERNELS_CPU_SIMD_HADAMARD_H
#define KERNELS_CPU_SIMD_HADAMARD_H

#include "kernels/cpu/int8.h"
#include "kernels/cpu/simd/vec.h"

enum { HADAMARD = KN_INT8_STEP };

#if KN_SIMD == 512
#define LANES(s)                                                                                   \
    0 ^ s, 1 ^ s, 2 ^ s, 3 ^ s, 4 ^ s, 5 ^ s, 6 ^ s, 7 ^ s, 8 ^ s, 9 ^ s, 10 ^ s, 11 ^ s, 12 ^ s,  \
        13 ^ s, 14 ^ s, 15 ^ s
#elif KN_SIMD == 128
#define LANES(s) 0 ^ s, 1 ^ s, 2 ^ s, 3 ^ s
#else
#define LANES(s) 0 ^ s, 1 ^ s, 2 ^ s, 3 ^ s, 4 ^ s, 5 ^ s, 6 ^ s, 7 ^ s
#endif

/* Values of a vector and those s lanes away: sums in the lower lane, differences in the upper one.
 * A product by 1 or -1 is exact, so this is an addition's bits. */
VF_INLINE vf fold(vf x, vf away, const int s)
{
    vf sign;
    for (int i = 0; i < VL; i++)
        sign[i] = i & s ? -1.0f : 1.0f;
    return vf_fma(x, sign, away);
}

/* HADAMARD values by the Hadamard matrix, times 8. */
VF_INLINE void hadamard(vf x[HADAMARD / VL])
{
#pragma GCC unroll 8
    for (int s = HADAMARD / VL / 2; s > 0; s /= 2)
#pragma GCC unroll 16
        for (int i = 0; i < HADAMARD / VL; i++)
            if (!(i & s)) {
                const vf a = x[i], b = x[i + s];
                x[i] = vf_add(a, b);
                x[i + s] = vf_sub(a, b);
            }
#pragma GCC unroll 16
    for (int i = 0; i < HADAMARD / VL; i++) {
#define FOLD(s) x[i] = fold(x[i], __builtin_shufflevector(x[i], x[i], LANES(s)), s)
#if KN_SIMD == 512
        FOLD(8);
#endif
#if KN_SIMD != 128
        FOLD(4);
#endif
        FOLD(2);
        FOLD(1);
#undef FOLD
    }
}
#undef LANES

#endif
