/* coded_read: what a lane has of a weight in the form of a file, and as what it is multiplied:
 * q * D + M, rounded once to f32 and once to bf16. Layout: coded.h. Thread: device code. */
#ifndef KERNELS_CUDA_CODED_READ_H
#define KERNELS_CUDA_CODED_READ_H

#include "kernels/cuda/coded.h"
#include "kernels/cuda/mma.h"

enum : unsigned { CD_WARPS = 8, CD_THREADS = CD_WARPS * CU_WARP };
enum cd_kind { CD_NIBBLES, CD_TABLE, CD_BYTES };

struct alignas(16) cd_eight { /* bf16, two in a word */
    uint32_t w[4];
};
struct cd_pair { /* of 16 values */
    float d, m;
};

/* ---- a lane's codes of a step ---- */

static __device__ __forceinline__ uint32_t cd_head(const char *at, unsigned bytes)
{
    if (bytes == 2) return *reinterpret_cast<const uint16_t *>(at);
    return *reinterpret_cast<const uint32_t *>(at);
}

/* Whether a lane's two sixteens of a row differ in D and M. */
static __device__ __forceinline__ bool cd_is_split(const struct cu_coded &w)
{
    return w.form.group == 16;
}

/* D and M of the lane's sixteen `nth` of row lane / 4 + 8 half. */
static __device__ __forceinline__ struct cd_pair
cd_pair_of(const struct cu_coded &w, const char *step, unsigned lane, unsigned half, unsigned nth)
{
    const char *heads = step + w.code_bytes, *units = heads + 2 * CU_WARP * w.head_bytes;
    const unsigned row = lane / 4 + half * 8;
    const unsigned at = w.form.group < CU_CODED_STEP ? 2 * lane + half : row;
    uint32_t head = cd_head(heads + at * w.head_bytes, w.head_bytes);
    if (!w.form.super) {
        const uint16_t bits = uint16_t(head);
        const float d = w.form.bf16 ? cu_bf16_f32(bits) : mma_f16(bits);
        const float m = w.form.min ? mma_f16(uint16_t(head >> 16)) : 0.0f;
        return {d, w.form.zero ? -(m * d) : m};
    }
    const uint32_t unit = *reinterpret_cast<const uint32_t *>(units + row * sizeof(uint32_t));
    const unsigned next = cd_is_split(w) ? 8 : 0; /* bits from one sixteen to the other */
    head >>= nth * next;
    const float d = mma_f16(uint16_t(unit)) * float(int8_t(head));
    if (!w.form.min) return {d, 0.0f};
    return {d, -(mma_f16(uint16_t(unit >> 16)) * float(uint8_t(head >> (8 + next))))};
}

template <enum cd_kind kind> struct alignas(kind == CD_BYTES ? 16 : 8) cd_sixteen {
    uint32_t w[kind == CD_BYTES ? 4 : 2];
};

template <enum cd_kind kind>
static __device__ __forceinline__ struct cd_sixteen<kind> cd_load(const char *step, unsigned lane,
                                                                  unsigned half, unsigned nth) {
    const auto *all = reinterpret_cast<const struct cd_sixteen<kind> *>(step);
    return all[(2 * half + nth) * CU_WARP + lane];
}

/* Value 8 i + j of them. The upper nibble of a byte counts 16 and is not moved: D is divided
 * instead. Exact, but for the sum. */
template <enum cd_kind kind>
static __device__ __forceinline__ float cd_value(const struct cu_coded &w, const float *table,
                                                 const struct cd_sixteen<kind> &code,
                                                 const struct cd_pair &by, unsigned i, unsigned j)
{
    if constexpr (kind == CD_BYTES) {
        return fmaf(float(int8_t(code.w[2 * i + j / 4] >> j % 4 * 8)), by.d, by.m);
    } else if constexpr (kind == CD_TABLE) {
        return fmaf(table[code.w[i] >> 4 * j & 15u], by.d, by.m);
    } else {
        const unsigned unit = j % 2 ? 16 : 1;
        const uint32_t four = code.w[i] >> j / 2 * 8 & 15 * unit;
        const float zero = 8388608.0f - float(w.form.low) * float(unit);
        return fmaf(cu_from_bits(0x4b000000u | four) - zero, by.d * (1.0f / float(unit)), by.m);
    }
}

/* Values 8 i … 8 i + 7. */
template <enum cd_kind kind>
static __device__ __forceinline__ struct cd_eight
cd_decode(const struct cu_coded &w, const float *table, const struct cd_sixteen<kind> &code,
          const struct cd_pair &by, unsigned i)
{
    struct cd_eight ret;
    CU_UNROLL
    for (unsigned j = 0; j < 4; j++)
        ret.w[j] = mma_pack(cd_value<kind>(w, table, code, by, i, 2 * j),
                            cd_value<kind>(w, table, code, by, i, 2 * j + 1));
    return ret;
}

static __device__ __forceinline__ void cd_fill_table(const struct cu_coded &w, float *table)
{
    if (threadIdx.x < 16) table[threadIdx.x] = float(w.table[threadIdx.x]);
    __syncthreads();
}

static __device__ __host__ __forceinline__ unsigned cd_steps(const struct cu_coded &w)
{
    return unsigned((w.k + CU_CODED_STEP - 1) / CU_CODED_STEP);
}

static __device__ __host__ __forceinline__ unsigned cd_tiles(const struct cu_coded &w)
{
    return unsigned((w.n + CU_CODED_ROWS - 1) / CU_CODED_ROWS);
}

/* Rows first … first + n - 1 of w as bf16, [n, k]: the warp's part of them, step `nth` of all. */
template <enum cd_kind kind>
static __device__ __forceinline__ void cd_put_values(const struct cu_coded &w, const float *table,
                                                     size_t nth, size_t first, size_t n,
                                                     uint16_t *out)
{
    const unsigned lane = threadIdx.x % CU_WARP, steps = cd_steps(w);
    const size_t tile = first / CU_CODED_ROWS + nth / steps;
    const size_t col = nth % steps * CU_CODED_STEP + lane % 4 * CODES_STEP;
    if (tile >= cd_tiles(w) || col >= w.k) return;
    const char *step = w.data + (tile * steps + nth % steps) * w.step_bytes;
    CU_UNROLL
    for (unsigned x = 0; x < 4; x++) { /* two rows, two sixteens of each */
        const size_t row = tile * CU_CODED_ROWS + x / 2 * 8 + lane / 4;
        if (row < first || row - first >= n) continue;
        const struct cd_sixteen<kind> code = cd_load<kind>(step, lane, x / 2, x % 2);
        const struct cd_pair by = cd_pair_of(w, step, lane, x / 2, x % 2);
        uint16_t *to = out + (row - first) * w.k + col + x % 2 * 16;
        reinterpret_cast<struct cd_eight *>(to)[0] = cd_decode<kind>(w, table, code, by, 0);
        reinterpret_cast<struct cd_eight *>(to)[1] = cd_decode<kind>(w, table, code, by, 1);
    }
}

static inline enum cd_kind cd_kind_of(const struct cu_coded *w)
{
    return w->form.bits == 8 ? CD_BYTES : w->form.table ? CD_TABLE : CD_NIBBLES;
}

#endif
