/* operand: rows on their way into a product: bf16, or 8 bits with one scale a row.
 *
 * A row's largest magnitude becomes 448 (e4m3) or 127 (int8); the rest is rounded to nearest even.
 * Depends on that row alone. A row with an infinity or a NaN gets that as its scale, so that the
 * product says so. Thread: a block a row. */
#ifndef KERNELS_CUDA_OPERAND_H
#define KERNELS_CUDA_OPERAND_H

#include "kernels/cuda/cuda.h"

struct cu_e4m3 {
    uint8_t bits;
};

/* What is beyond 448 becomes 448; NaN stays. */
static __device__ __host__ __forceinline__ uint8_t cu_f32_e4m3(float f)
{
    const uint32_t u = cu_to_bits(f), mag = u & 0x7fffffffu;
    const uint8_t sign = uint8_t(u >> 24 & 0x80u);
    if (mag > 0x7f800000u) return uint8_t(sign | 0x7fu);
    if (mag >= 0x43e00000u) return uint8_t(sign | 0x7eu);
    if (mag < 0x3c800000u) { /* subnormal: 2^14 counts in 2^-9, the last bit's worth */
        const float shifted = cu_from_bits(mag) + 16384.0f;
        return uint8_t(sign | (cu_to_bits(shifted) - 0x46800000u));
    }
    return uint8_t(sign | ((mag - 0x3c000000u + 0x7ffffu + (mag >> 20 & 1u)) >> 20));
}

static __device__ __host__ __forceinline__ float cu_e4m3_f32(uint8_t b)
{
    const uint32_t sign = uint32_t(b & 0x80u) << 24, mag = b & 0x7fu;
    if (mag == 0x7fu) return cu_from_bits(sign | 0x7fc00000u);
    if (mag >= 8) return cu_from_bits(sign | ((mag << 20) + 0x3c000000u));
    const float small = float(mag) * 0.001953125f; /* 2^-9 */
    return sign ? -small : small;
}

static __device__ __forceinline__ float cu_value(cu_e4m3 x)
{
    return cu_e4m3_f32(x.bits);
}

static __device__ __forceinline__ int32_t cu_value(int8_t x)
{
    return x;
}

/* ---- four values at a time: one access of 16 bytes where rows are aligned to that (wide), else
 * four of the same values, so that sums have one order ---- */
struct cu_four {
    float v[4];
};

static __device__ __forceinline__ cu_four cu_four_at(const float *x, size_t i, size_t n, bool wide)
{
    cu_four f = {{0, 0, 0, 0}};
    if (wide) {
        const float4 q = *reinterpret_cast<const float4 *>(x + i);
        f.v[0] = q.x, f.v[1] = q.y, f.v[2] = q.z, f.v[3] = q.w;
        return f;
    }
    for (unsigned j = 0; j < 4 && i + j < n; j++)
        f.v[j] = x[i + j];
    return f;
}

/* The same of stored values of type t; wide: 8 bytes of 16-bit ones. */
static __device__ __forceinline__ cu_four cu_stored_four(const void *row, enum cu_type t, size_t i,
                                                         size_t n, size_t K, bool wide)
{
    cu_four f = {{0, 0, 0, 0}};
    if (t == CU_F32) return cu_four_at(static_cast<const float *>(row), i, n, wide);
    if (t != CU_Q8 && wide) {
        uint16_t h[4];
        const uint64_t q =
            *reinterpret_cast<const uint64_t *>(static_cast<const uint16_t *>(row) + i);
        memcpy(h, &q, sizeof h);
        for (unsigned j = 0; j < 4; j++)
            f.v[j] = t == CU_F16 ? cu_f16_f32(h[j]) : cu_bf16_f32(h[j]);
        return f;
    }
    for (unsigned j = 0; j < 4 && i + j < n; j++)
        f.v[j] = cu_stored(row, t, i + j, K);
    return f;
}

/* T: of 8, 16 or 32 bits; word: the four of them. */
template <class T, class Word>
static __device__ __forceinline__ void cu_put_four(T *out, size_t i, size_t n, bool wide,
                                                   const T (&v)[4])
{
    static_assert(sizeof(Word) == 4 * sizeof(T), "four values");
    if (wide) {
        Word w;
        memcpy(&w, v, sizeof w);
        *reinterpret_cast<Word *>(out + i) = w;
        return;
    }
    for (unsigned j = 0; j < 4 && i + j < n; j++)
        out[i + j] = v[j];
}

/* act(gate) times up: see enum kn_act. All but GELU by erf are x / (1 + e^-z); of GELU by tanh z is
 * 2 sqrt(2 / pi) (x + 0.044715 x^3). Bounds let NaN through. */
static __device__ __forceinline__ float cu_activated(enum kn_act act, float x, float up)
{
    if (act == KN_GELU) return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)) * up;
    if (act == KN_SILU_CLAMPED) {
        x = x > 7.0f ? 7.0f : x;
        up = 1.0f + (up > 7.0f ? 7.0f : up < -7.0f ? -7.0f : up);
    }
    const float cubic = fmaf(x * x, 0.044715f, 1.0f);
    const float z = act == KN_SILU           ? x
                    : act == KN_SILU_CLAMPED ? x * 1.702f
                                             : x * cubic * 1.5957691216057308f;
    return x / (1.0f + expf(-z)) * up;
}

static inline bool cu_is_wide(const struct cu_rows *r)
{
    return r->n % 4 == 0 && r->ldx % 4 == 0 && r->ldo % 4 == 0 &&
           reinterpret_cast<uintptr_t>(r->x) % 16 == 0 &&
           reinterpret_cast<uintptr_t>(r->out) % 16 == 0;
}

static inline unsigned cu_row_threads(size_t n)
{
    return n >= 1024 ? 256 : n >= 256 ? 64 : unsigned(CU_WARP);
}

/* Row `row` of r.out, where four(i) gives values i … i+3 and is asked twice for 8 bits. Magnitudes
 * are compared as bits, where NaN is the largest. */
template <class F>
static __device__ __forceinline__ void cu_put_row(const struct cu_rows &r, size_t row, bool wide,
                                                  F four)
{
    const size_t n = r.n, step = size_t(blockDim.x) * 4, first = size_t(threadIdx.x) * 4;
    if (r.to == CU_F32) {
        for (size_t i = first; i < n; i += step)
            cu_put_four<float, float4>(r.out + row * r.ldo, i, n, wide, four(i).v);
        return;
    }
    if (r.to == CU_BF16) {
        for (size_t i = first; i < n; i += step) {
            const cu_four x = four(i);
            const uint16_t h[4] = {cu_f32_bf16(x.v[0]), cu_f32_bf16(x.v[1]), cu_f32_bf16(x.v[2]),
                                   cu_f32_bf16(x.v[3])};
            cu_put_four<uint16_t, uint64_t>(reinterpret_cast<uint16_t *>(r.out) + row * n, i, n,
                                            wide, h);
        }
        return;
    }
    uint32_t top = 0;
    for (size_t i = first; i < n; i += step) {
        const cu_four x = four(i);
        for (unsigned j = 0; j < 4; j++) {
            const uint32_t mag = cu_to_bits(x.v[j]) & 0x7fffffffu;
            top = mag > top && i + j < n ? mag : top;
        }
    }
    top = cu_block_fold(top, cu_more());
    float scale = cu_from_bits(top) / (r.to == CU_FP8 ? 448.0f : 127.0f);
    if (scale < 1e-37f) scale = 0; /* 1 / scale must be a number */
    const float inv = scale > 0 && top < 0x7f800000u ? 1.0f / scale : 0.0f;
    if (threadIdx.x == 0) r.scale[row] = scale;
    for (size_t i = first; i < n; i += step) {
        const cu_four x = four(i);
        uint8_t q[4];
        for (unsigned j = 0; j < 4; j++) {
            const float y = inv > 0 ? x.v[j] * inv : 1.0f;
            q[j] = r.to == CU_FP8 ? cu_f32_e4m3(y)
                                  : uint8_t(int8_t(rintf(fmaxf(fminf(y, 127.0f), -127.0f))));
        }
        cu_put_four<uint8_t, uint32_t>(reinterpret_cast<uint8_t *>(r.out) + row * n, i, n, wide, q);
    }
}

#endif
