/* mma_values: the conversions of sm_80 and later that CUDA C++ has no words for, each with its twin
 * for the emulation. Thread: device code. Source: PTX ISA, "cvt", "ex2", "fma". */
#ifndef KERNELS_CUDA_MMA_VALUES_H
#define KERNELS_CUDA_MMA_VALUES_H

#include "kernels/cuda/cuda.h"

struct mma_codes { /* two bf16 in a word, the first below */
    uint32_t even, odd;
};

#if defined(__CUDACC__)

static __device__ __forceinline__ uint32_t mma_pack(float first, float second)
{
    uint32_t two;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(second), "f"(first));
    return two;
}

/* An f16 as f32: exact. */
static __device__ __forceinline__ float mma_f16(uint16_t h)
{
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(h));
    return y;
}

/* 2^x to about two units in the last place; 0 for -INFINITY. */
static __device__ __forceinline__ float mma_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* a + b of two bf16 each, rounded once. */
static __device__ __forceinline__ uint32_t mma_add_bf16(uint32_t a, uint32_t b)
{
    uint32_t two;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(two) : "r"(a), "r"(0x3f803f80u), "r"(b));
    return two;
}

/* Four int8, bytes 0 and 2, 1 and 3: exact. A byte's lower seven bits behind 128's exponent are
 * 128 more than they count, and its sign counts -128: so -128 or, with the sign's bit as the first
 * of the fraction, -256 is what is added. Four operations for two of them, no byte is moved. */
static __device__ __forceinline__ struct mma_codes mma_from_codes(uint32_t four)
{
    const uint32_t odd = four >> 8;
    return {mma_add_bf16((four & 0x007f007fu) | 0x43004300u, (four & 0x00800080u) | 0xc300c300u),
            mma_add_bf16((odd & 0x007f007fu) | 0x43004300u, (odd & 0x00800080u) | 0xc300c300u)};
}

#else

static inline uint32_t mma_pack(float first, float second)
{
    return cu_f32_bf16(first) | uint32_t(cu_f32_bf16(second)) << 16;
}

static inline float mma_f16(uint16_t h)
{
    return cu_f16_f32(h);
}

static inline float mma_exp2(float x)
{
    return exp2f(x);
}

static inline struct mma_codes mma_from_codes(uint32_t four)
{
    const auto at = [&](unsigned i) { return float(int8_t(four >> 8 * i & 0xff)); };
    return {mma_pack(at(0), at(2)), mma_pack(at(1), at(3))};
}

#endif
#endif
