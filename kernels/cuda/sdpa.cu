/* What cuDNN's attention reads: queries rotated and in bf16, keys and values out of their pages. */
#include "kernels/cuda/attn.h"
#include "kernels/cuda/pages.h"

enum { GATHER_THREADS = 256, GATHER_PART = 8 /* of bf16: 16 bytes */ };
struct gather_words {
    uint32_t w[GATHER_PART / 2];
};

/* Keys behind the last one that a tile may read: numbers, whatever they are. 256: more than a tile
 * of the library's has. */
static __device__ __host__ __forceinline__ size_t gathered_keys(size_t n_keys, size_t cap)
{
    const size_t n = (n_keys + 255) / 256 * 256;
    return n < cap ? n : cap;
}

static __device__ __forceinline__ void gather_row(const struct cu_attn &a, size_t row, uint16_t *to)
{
    const unsigned pairs = a.kv.K / 2;
    uint32_t *const out = reinterpret_cast<uint32_t *>(to + row * a.H * a.kv.K);
    for (unsigned i = threadIdx.x; i < a.H * pairs; i += GATHER_THREADS) {
        const float *q = a.q + row * a.ldq + size_t(i / pairs) * a.kv.K;
        const struct float2 x = at_query(a, q, row, i % pairs * 2);
        out[i] = mma_pack(x.x, x.y);
    }
}

static __device__ __forceinline__ struct float4
gather_part(const struct cu_kv &kv, size_t key, bool v, unsigned g, unsigned nth, uint16_t)
{
    return reinterpret_cast<const struct float4 *>(cu_page_key<uint16_t>(kv, key, v, g))[nth];
}

/* Of 8 bits: rounded once more. */
static __device__ __forceinline__ struct float4
gather_part(const struct cu_kv &kv, size_t key, bool v, unsigned g, unsigned nth, struct cu_q8)
{
    const float step = cu_page_step<struct cu_q8>(kv, key, v, g);
    const uint64_t codes =
        reinterpret_cast<const uint64_t *>(cu_page_key<struct cu_q8>(kv, key, v, g))[nth];
    struct gather_words x;
    CU_UNROLL
    for (unsigned i = 0; i < GATHER_PART; i += 2)
        x.w[i / 2] = mma_pack(float(int8_t(codes >> 8 * i)) * step,
                              float(int8_t(codes >> 8 * (i + 1))) * step);
    struct float4 ret;
    memcpy(&ret, &x, sizeof ret);
    return ret;
}

template <class T>
static __device__ __forceinline__ void gather_key(const struct cu_kv &kv, size_t key, bool there,
                                                  bool v, uint16_t *to)
{
    const unsigned parts = kv.K / GATHER_PART;
    struct float4 *const out = reinterpret_cast<struct float4 *>(to + key * kv.G * kv.K);
    for (unsigned i = threadIdx.x; i < kv.G * parts; i += GATHER_THREADS) {
        struct float4 x = {0, 0, 0, 0};
        if (there) x = gather_part(kv, key, v, i / parts, i % parts, T());
        out[i] = x;
    }
}

/* Blocks (i, 0): query row i; (i, 1), (i, 2): K and V of key i. */
template <class T>
static __global__ void __launch_bounds__(GATHER_THREADS)
    gather_heads(const __grid_constant__ struct cu_attn a, size_t n_keys,
                 const __grid_constant__ struct cu_gathered to, int *fault)
{
    const size_t i = blockIdx.x, before = n_keys - a.m;
    if (blockIdx.y > 0) {
        const bool v = blockIdx.y == 2;
        if (i < gathered_keys(n_keys, to.cap))
            gather_key<T>(a.kv, i, i < n_keys, v, v ? to.v : to.k);
        return;
    }
    if (i == 0 && threadIdx.x == 0) {
        to.numbers[CU_GATHERED_ROWS] = int32_t(a.m);
        to.numbers[CU_GATHERED_KEYS] = int32_t(n_keys);
        to.numbers[CU_GATHERED_OFFSETS] = 0;
        to.numbers[CU_GATHERED_OFFSETS + 1] = int32_t(a.m * a.H * a.kv.K);
    }
    if (i >= a.m) return;
    if (at_pos(a, i, fault) != int32_t(before + i)) {
        *fault = CU_BAD_POSITION;
        return;
    }
    gather_row(a, i, to.q);
}

int cu_gather_fits(const struct cu *c, const struct cu_attn *a, size_t n_keys)
{
    return c->type == CU_BF16 && a->type == CU_BF16 && at_mma_fits(c, a) && !a->kv.each &&
           !a->sink && !a->lse && a->cap == 0 && (a->window == 0 || a->window >= n_keys) &&
           a->ldo == size_t(a->H) * a->kv.K && n_keys <= a->kv.n_pages * CU_PAGE &&
           reinterpret_cast<uintptr_t>(a->out) % 16 == 0 && !c->recording;
}

int cu_gather_heads(struct cu *c, const struct cu_attn *a, size_t n_keys,
                    const struct cu_gathered *to)
{
    const dim3 grid(unsigned(gathered_keys(n_keys, to->cap)), 3);
    const auto kernel = c->pages == CU_Q8 ? gather_heads<struct cu_q8> : gather_heads<uint16_t>;
    KN_LAUNCH(kernel, grid, dim3(GATHER_THREADS), 0, c->stream, *a, n_keys, *to, c->fault);
    return cu_launched(c);
}
