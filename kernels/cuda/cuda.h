/* cuda: what the .cu files share: the device's inside, number formats, reductions.
 *
 * nvcc compiles these sources, and C++ for the emulation (hostcuda): what one of them does not know
 * has a twin beside it. Kernels are static, launchers check the launch. Thread: as launch.h. */
#ifndef KERNELS_CUDA_CUDA_H
#define KERNELS_CUDA_CUDA_H

#include "kernels/cuda/gemm.h"
#include "kernels/cuda/rows.h"

#if defined(__CUDACC__)
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#define KN_LAUNCH(kernel, grid, block, smem, stream, ...)                                          \
    kernel<<<grid, block, smem, stream>>>(__VA_ARGS__)
#define CU_UNROLL _Pragma("unroll")
#define CU_ROLLED _Pragma("unroll 1")
#define KN_DYNAMIC_SHARED(type, name)                                                              \
    extern __shared__ __align__(128) char kn_dynamic_shared[];                                     \
    type *name = reinterpret_cast<type *>(kn_dynamic_shared)
#else
#include "hostcuda.h"
#define CU_UNROLL
#define CU_ROLLED
#endif

extern "C" {
#include "base/mem.h"
}

#include <atomic>
#include <cerrno>

enum { CU_PAGE = 64, CU_WARP = 32, CU_KEYS_PART = 512 };
#define CU_ALL 0xffffffffu

struct cu_plan; /* a product's call, by shape */
struct cu_best; /* a tuned algorithm */
struct cu {
    int index;
    enum cu_type type, pages; /* pages: CU_Q8, or as type */
    unsigned sms;             /* multiprocessors */
    cudaStream_t stream;
    cudaEvent_t span[2];  /* of cu_span_start() and cu_span_end() */
    bool lost, recording; /* recording: between cu_record() and cu_recorded() */
    int *fault;           /* shared: what a kernel met: 0 or an enum cu_fault */
    char name[160];
    int arch;             /* 90: compute capability 9.0 */
    void *lt, *workspace; /* lt: cublasLtHandle_t */
    struct cu_plan *plans;
    struct cu_best *best;
    size_t n_plans, n_best;
    std::atomic<uint64_t> refused[4]; /* products: how many, and m, n, k of the latest */
    bool fp8_apart; /* the library scales by whole tensors only: rows are scaled behind it */
};
int cu_launched(struct cu *c); /* after a launch: 0, -EIO */
int cu_failed(struct cu *c, cudaError_t e);

static inline unsigned cu_blocks(size_t n, size_t per_block)
{
    return unsigned((n + per_block - 1) / per_block);
}

/* ---- number formats: the conversions of kernels/cpu, bit for bit ---- */
static __device__ __host__ __forceinline__ float cu_from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static __device__ __host__ __forceinline__ uint32_t cu_to_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static __device__ __forceinline__ float cu_bf16_f32(uint16_t h)
{
    return cu_from_bits(uint32_t(h) << 16);
}

static __device__ __forceinline__ uint16_t cu_f32_bf16(float f)
{
    const uint32_t u = cu_to_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return uint16_t(u >> 16 | 0x40u);
    return uint16_t((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

static __device__ __forceinline__ float cu_f16_f32(uint16_t h)
{
    const uint32_t sign = uint32_t(h & 0x8000u) << 16, mag = h & 0x7fffu;
    if (mag >= 0x7c00u) return cu_from_bits(sign | 0x7f800000u | (mag & 0x3ffu) << 13);
    return cu_from_bits(sign | cu_to_bits(cu_from_bits(mag << 13) * 0x1p112f)); /* exact */
}

/* Round to nearest even; 65520 and more become infinite, which callers refuse. */
static __device__ __forceinline__ uint16_t cu_f32_f16(float f)
{
    const uint32_t u = cu_to_bits(f), mag = u & 0x7fffffffu;
    const uint16_t sign = uint16_t(u >> 16 & 0x8000u);
    if (mag > 0x7f800000u) return uint16_t(sign | 0x7e00u);
    if (mag >= 0x477ff000u) return uint16_t(sign | 0x7c00u);
    if (mag < 0x38800000u) { /* subnormal: adding 0.5 leaves its bits, rounded, at the end */
        const float shifted = cu_from_bits(mag) + 0.5f;
        return uint16_t(sign | (cu_to_bits(shifted) - 0x3f000000u));
    }
    return uint16_t(sign | ((mag - 0x38000000u + 0xfffu + (mag >> 13 & 1u)) >> 13));
}

static __device__ __forceinline__ float cu_value(float x)
{
    return x;
}
static __device__ __forceinline__ float cu_value(uint16_t x) /* bf16 */
{
    return cu_bf16_f32(x);
}
static __device__ __forceinline__ void cu_store(float *p, float x)
{
    *p = x;
}
static __device__ __forceinline__ void cu_store(uint16_t *p, float x)
{
    *p = cu_f32_bf16(x);
}

/* Value i of a row of heads of K stored as type t. */
static __device__ __forceinline__ float cu_stored(const void *row, enum cu_type t, size_t i,
                                                  size_t K)
{
    if (t == CU_F32) return static_cast<const float *>(row)[i];
    if (t == CU_F16) return cu_f16_f32(static_cast<const uint16_t *>(row)[i]);
    if (t == CU_BF16) return cu_bf16_f32(static_cast<const uint16_t *>(row)[i]);
    const uint8_t *head = static_cast<const uint8_t *>(row) + i / K * (K + 2);
    const uint16_t h = uint16_t(head[0] | head[1] << 8);
    return float(reinterpret_cast<const int8_t *>(head)[2 + i % K]) * (cu_f16_f32(h) / 127.0f);
}

static __device__ __host__ __forceinline__ size_t cu_row_bytes(enum cu_type t, size_t heads,
                                                               size_t K)
{
    return t == CU_Q8 ? heads * (K + 2) : heads * K * (t == CU_F32 ? 4 : 2);
}

/* ---- reductions: one fixed order for a given number of threads ---- */
template <class T, class F> static __device__ __forceinline__ T cu_warp_fold(T v, F two)
{
    for (int with = 16; with > 0; with /= 2)
        v = two(v, __shfl_xor_sync(CU_ALL, v, with));
    return v;
}

/* Of all threads of a block of whole warps, 1024 at most; everyone gets it. */
template <class T, class F> static __device__ __forceinline__ T cu_block_fold(T v, F two)
{
    __shared__ T part[CU_WARP];
    const unsigned lane = threadIdx.x % CU_WARP, warp = threadIdx.x / CU_WARP;
    const unsigned n_warps = blockDim.x / CU_WARP;
    v = cu_warp_fold(v, two);
    if (n_warps == 1) return v;
    __syncthreads(); /* the last one's readers are done */
    if (lane == 0) part[warp] = v;
    __syncthreads();
    v = part[0];
    for (unsigned w = 1; w < n_warps; w++)
        v = two(v, part[w]);
    return v;
}

struct cu_add {
    template <class T> __device__ __forceinline__ T operator()(T a, T b) const
    {
        return a + b;
    }
};
struct cu_more {
    template <class T> __device__ __forceinline__ T operator()(T a, T b) const
    {
        return b > a ? b : a;
    }
};

static __device__ __forceinline__ float cu_warp_sum(float v)
{
    return cu_warp_fold(v, cu_add());
}

static __device__ __forceinline__ float cu_warp_max(float v)
{
    return cu_warp_fold(v, [](float a, float b) { return fmaxf(a, b); });
}

static __device__ __forceinline__ float cu_block_sum(float v)
{
    return cu_block_fold(v, cu_add());
}

#endif
