/* pages: where a key's head is in the pages of a device, and how a head becomes one of 8 bits.
 *
 * A layer of a page is K of G heads, then V of G heads, each [P, K]: a key's values are contiguous,
 * as a row of the second operand of q k^T wants them. T is what they are: float, uint16_t (bf16),
 * or struct cu_q8, codes of KN_Q8 (types.h) with f16 top[P] in front of a head's. Thread: device
 * code. */
#ifndef KERNELS_CUDA_PAGES_H
#define KERNELS_CUDA_PAGES_H

#include "kernels/cuda/operand.h"

struct cu_q8 {
    int8_t code;
};

template <class T> struct cu_page {
    enum : unsigned { Q8 = 0, TOPS = 0 /* bytes */ };
};
template <> struct cu_page<struct cu_q8> {
    enum : unsigned { Q8 = 1, TOPS = CU_PAGE * sizeof(uint16_t) };
};

template <class T> static __device__ __host__ __forceinline__ size_t cu_page_head_bytes(unsigned K)
{
    return cu_page<T>::TOPS + size_t(CU_PAGE) * K * sizeof(T);
}

/* A head of K or V of a page. */
template <class T>
static __device__ __forceinline__ char *cu_page_head(const struct cu_kv &kv, int32_t page, bool v,
                                                     unsigned g)
{
    return kv.base + size_t(page) * kv.page_bytes +
           (size_t(v) * kv.G + g) * cu_page_head_bytes<T>(kv.K);
}

/* Value 0 of a key's. */
template <class T>
static __device__ __forceinline__ T *cu_page_key(const struct cu_kv &kv, size_t key, bool v,
                                                 unsigned g)
{
    char *head = cu_page_head<T>(kv, kv.pages[key / CU_PAGE], v, g);
    return reinterpret_cast<T *>(head + cu_page<T>::TOPS) + key % CU_PAGE * kv.K;
}

static __device__ __forceinline__ uint16_t *cu_page_top(const struct cu_kv &kv, size_t key, bool v,
                                                        unsigned g)
{
    char *head = cu_page_head<struct cu_q8>(kv, kv.pages[key / CU_PAGE], v, g);
    return reinterpret_cast<uint16_t *>(head) + key % CU_PAGE;
}

/* What a key's values are times. */
template <class T>
static __device__ __forceinline__ float cu_page_step(const struct cu_kv &kv, size_t key, bool v,
                                                     unsigned g)
{
    if constexpr (cu_page<T>::Q8)
        return cu_f16_f32(*cu_page_top(kv, key, v, g)) / 127.0f;
    else
        return 1;
}

static __device__ __forceinline__ float cu_value(struct cu_q8 x)
{
    return x.code;
}

/* A head of K values as KN_Q8, by one warp: `from` gives values i … i+3, zeros behind the last, and
 * is asked twice; `to` takes the f16 of the largest magnitude, rounded towards zero, and the codes
 * of four values at a time. False: 8 bits do not know one of them, and nothing was given. */
template <class From, class To>
static __device__ __forceinline__ bool cu_encode_q8(size_t K, const From &from, const To &to)
{
    const unsigned lane = threadIdx.x % CU_WARP;
    float top = 0;
    bool odd = false;
    for (size_t i = size_t(lane) * 4; i < K; i += CU_WARP * 4) {
        const cu_four x = from(i);
        CU_UNROLL
        for (unsigned j = 0; j < 4; j++) {
            odd = odd || !(fabsf(x.v[j]) < 65520.0f);
            top = fmaxf(top, fabsf(x.v[j]));
        }
    }
    if (__ballot_sync(CU_ALL, odd)) return false;
    top = cu_warp_max(top);
    uint16_t h = cu_f32_f16(top);
    if (cu_f16_f32(h) > top) h--;
    const float step = cu_f16_f32(h), inv = step > 0 ? 127.0f / step : 0.0f;
    if (lane == 0) to.top(h);
    for (size_t i = size_t(lane) * 4; i < K; i += CU_WARP * 4) {
        const cu_four x = from(i);
        uint8_t code[4];
        CU_UNROLL
        for (unsigned j = 0; j < 4; j++)
            code[j] = uint8_t(int8_t(rintf(fmaxf(fminf(x.v[j] * inv, 127.0f), -127.0f))));
        to.four(i, code);
    }
    return true;
}

#endif
