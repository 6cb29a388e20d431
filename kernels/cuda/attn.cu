/* Attention of rows at exact positions, and what each key gets of it.
 *
 * The queries of a KV head's group are packed: entry e is row e / group, head e % group of it. A
 * block takes 16 neighbouring entries, four a warp, over one part of CU_KEYS_PART keys, in tiles
 * of 32 keys: lanes are keys for the scores, and dimensions for the sums. Rows ascend, so a block
 * ends at its last row's position and a tile behind a row's position is not looked at for it.
 * Parts are cut at fixed keys whatever the number of rows, and a second kernel adds them up in
 * their order: a row's bits depend on that row and its keys alone, and few rows over many keys fill
 * the device all the same. Sums are f32, on plain cores: the path that must be right. */
#include "kernels/cuda/cuda.h"

enum { ENTRIES = 16, PER_WARP = 4, TILE = 32, THREADS = 128, DIMS = 8 }; /* K up to 32 * DIMS */
#define LOG2E 1.44269504088896341f
#define LN2 0.693147180559945309f

template <class T>
static __device__ __forceinline__ const T *keys_of(const struct cu_kv &kv, size_t key, unsigned g,
                                                   bool v)
{
    const T *page =
        reinterpret_cast<const T *>(kv.base + size_t(kv.pages[key / CU_PAGE]) * kv.page_bytes);
    return page + ((size_t(v) * kv.G + g) * CU_PAGE + key % CU_PAGE) * kv.K;
}

/* Position of a row, -1 when it is none of a sorted list of existing ones. */
static __device__ __forceinline__ int32_t checked_pos(const struct cu_attn &a, size_t row,
                                                      int *fault)
{
    const int32_t pos = a.pos[row];
    if (pos >= 0 && size_t(pos) / CU_PAGE < a.kv.n_pages && (row == 0 || a.pos[row - 1] <= pos))
        return pos;
    *fault = 1;
    return -1;
}

struct sums { /* of one entry; dimension lane + 32 * r of the lane's */
    float top, total, acc[DIMS];
};

static __device__ __forceinline__ void write_entry(const struct cu_attn &a, const struct sums &s,
                                                   size_t row, unsigned head, unsigned lane)
{
    CU_UNROLL
    for (unsigned r = 0; r < DIMS; r++)
        if (lane + 32 * r < a.kv.K)
            a.out[row * a.ldo + size_t(head) * a.kv.K + lane + 32 * r] = s.acc[r] / s.total;
    if (a.lse && lane == 0) a.lse[row * a.H + head] = (s.top + log2f(s.total)) * LN2;
}

/* One tile for one entry: `prob` is the entry's row of shared memory. */
static __device__ __forceinline__ void add_tile(struct sums &s, const float *q, const float *k,
                                                const float *v, float *prob, unsigned K,
                                                bool visible, unsigned lane)
{
    float score = 0;
    for (unsigned d = 0; d < K; d++)
        score = fmaf(q[d], k[lane * (K + 1) + d], score);
    const float top = fmaxf(s.top, cu_warp_max(visible ? score : -INFINITY));
    const float p = visible ? exp2f(score - top) : 0.0f, old = exp2f(s.top - top);
    prob[lane] = p;
    s.total = fmaf(s.total, old, cu_warp_sum(p));
    s.top = top;
    __syncwarp();
    CU_UNROLL
    for (unsigned r = 0; r < DIMS; r++) {
        if (lane + 32 * r >= K) break;
        float acc = s.acc[r] * old;
        for (unsigned j = 0; j < TILE; j++)
            acc = fmaf(prob[j], v[j * K + lane + 32 * r], acc);
        s.acc[r] = acc;
    }
}

/* Keys of a tile into shared memory; 0 behind `last`. stride: of a key. */
template <class T>
static __device__ __forceinline__ void load_tile(const struct cu_kv &kv, size_t key0, size_t last,
                                                 unsigned g, bool v, float *out, unsigned stride)
{
    const T *from = keys_of<T>(kv, key0, g, v);
    for (unsigned i = threadIdx.x; i < TILE * kv.K; i += THREADS) {
        const unsigned j = i / kv.K, d = i % kv.K;
        out[j * stride + d] = key0 + j <= last ? cu_value(from[i]) : 0.0f;
    }
}

template <class T>
static __global__ void __launch_bounds__(THREADS)
    attend(struct cu_attn a, unsigned group, int *fault)
{
    KN_DYNAMIC_SHARED(float, q);
    const unsigned K = a.kv.K, g = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const size_t e0 = size_t(blockIdx.x) * ENTRIES, n = a.m * group;
    const size_t part0 = size_t(blockIdx.z) * CU_KEYS_PART;
    const int32_t last = checked_pos(a, ((e0 + ENTRIES < n ? e0 + ENTRIES : n) - 1) / group, fault);
    if (last < 0 || part0 > size_t(last)) return;
    const size_t end = part0 + CU_KEYS_PART < size_t(last) + 1 ? part0 + CU_KEYS_PART : last + 1;
    float *k = q + ENTRIES * K, *v = k + TILE * (K + 1), *prob = v + TILE * K;
    for (unsigned i = threadIdx.x; i < ENTRIES * K; i += THREADS) {
        const size_t e = e0 + i / K;
        const float *from = a.q + e / group * a.ldq + (g * group + e % group) * K;
        q[i] = e < n ? from[i % K] * (a.scale * LOG2E) : 0.0f;
    }
    struct sums s[PER_WARP];
    int32_t pos[PER_WARP];
    CU_UNROLL
    for (unsigned i = 0; i < PER_WARP; i++) {
        const size_t e = e0 + warp * PER_WARP + i;
        s[i].top = -INFINITY, s[i].total = 0;
        CU_UNROLL
        for (unsigned r = 0; r < DIMS; r++)
            s[i].acc[r] = 0;
        pos[i] = e < n ? checked_pos(a, e / group, fault) : -1;
    }
    for (size_t key0 = part0; key0 < end; key0 += TILE) {
        __syncthreads();
        load_tile<T>(a.kv, key0, size_t(last), g, false, k, K + 1);
        load_tile<T>(a.kv, key0, size_t(last), g, true, v, K);
        __syncthreads();
        CU_UNROLL
        for (unsigned i = 0; i < PER_WARP; i++) {
            const unsigned e = warp * PER_WARP + i;
            if (pos[i] < int64_t(key0)) continue; /* the whole warp */
            add_tile(s[i], q + e * K, k, v, prob + e * TILE, K, pos[i] >= int64_t(key0 + lane),
                     lane);
        }
    }
    CU_UNROLL
    for (unsigned i = 0; i < PER_WARP; i++) {
        const size_t e = e0 + warp * PER_WARP + i, row = e / group;
        const unsigned head = g * group + unsigned(e % group);
        if (pos[i] < int64_t(part0)) continue;
        if (gridDim.z == 1) {
            write_entry(a, s[i], row, head, lane);
            continue;
        }
        float *to = a.parts + ((row * a.H + head) * gridDim.z + blockIdx.z) * (K + 2);
        if (lane == 0) to[0] = s[i].top, to[1] = s[i].total;
        CU_UNROLL
        for (unsigned r = 0; r < DIMS; r++)
            if (lane + 32 * r < K) to[2 + lane + 32 * r] = s[i].acc[r];
    }
}

/* One warp an entry: its parts, in their order. */
static __global__ void merge(struct cu_attn a, unsigned n_parts)
{
    const unsigned K = a.kv.K, lane = threadIdx.x, head = blockIdx.y;
    const size_t row = blockIdx.x;
    const int32_t pos = a.pos[row];
    if (pos < 0 || size_t(pos) / CU_PAGE >= a.kv.n_pages) return;
    const unsigned n = unsigned(pos) / CU_KEYS_PART + 1;
    const float *part = a.parts + (row * a.H + head) * n_parts * (K + 2);
    struct sums s = {-INFINITY, 0, {0}};
    for (unsigned p = 0; p < n; p++)
        s.top = fmaxf(s.top, part[p * (K + 2)]);
    for (unsigned p = 0; p < n; p++) {
        const float *from = part + p * (K + 2), w = exp2f(from[0] - s.top);
        s.total = fmaf(from[1], w, s.total);
        CU_UNROLL
        for (unsigned r = 0; r < DIMS; r++)
            if (lane + 32 * r < K) s.acc[r] = fmaf(from[2 + lane + 32 * r], w, s.acc[r]);
    }
    write_entry(a, s, row, head, lane);
}

static unsigned parts_of(const struct cu_attn *a)
{
    return cu_blocks(a->kv.n_pages * CU_PAGE, CU_KEYS_PART);
}

size_t cu_attn_parts(const struct cu_attn *a)
{
    const size_t n = parts_of(a);
    return n > 1 ? a->m * a->H * n * (a->kv.K + 2) : 0;
}

template <class T> static int launch_attend(struct cu *c, const struct cu_attn *a)
{
    const unsigned K = a->kv.K, group = a->H / a->kv.G, parts = parts_of(a);
    const size_t smem = sizeof(float) * (ENTRIES * K + TILE * (K + 1) + TILE * K + ENTRIES * TILE);
    const dim3 grid(cu_blocks(a->m * group, ENTRIES), a->kv.G, parts);
    if (smem > 48 << 10) {
        cudaError_t e =
            cudaFuncSetAttribute(attend<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, int(smem));
        if (e != cudaSuccess) return cu_failed(c, e);
    }
    KN_LAUNCH(attend<T>, grid, dim3(THREADS), smem, c->stream, *a, group, c->fault);
    if (parts > 1)
        KN_LAUNCH(merge, dim3(unsigned(a->m), a->H), dim3(CU_WARP), 0, c->stream, *a, parts);
    return cu_launched(c);
}

int cu_attn(struct cu *c, const struct cu_attn *a)
{
    if (a->kv.K > CU_WARP * DIMS) return -EINVAL;
    return c->type == CU_BF16 ? launch_attend<uint16_t>(c, a) : launch_attend<float>(c, a);
}

/* A block's 32 keys get what all rows and heads give them; every fourth entry a warp, the warps'
 * sums added in one order. */
template <class T>
static __global__ void __launch_bounds__(THREADS)
    mass_of_keys(struct cu_attn a, unsigned group, float *mass, size_t key0, size_t end, int *fault)
{
    KN_DYNAMIC_SHARED(float, k);
    const unsigned K = a.kv.K, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const size_t first = key0 + size_t(blockIdx.x) * TILE, key = first + lane;
    const int32_t last = checked_pos(a, a.m - 1, fault);
    if (last < 0 || first > size_t(last)) return;
    float *part = k + TILE * (K + 1), sum = 0;
    for (unsigned g = 0; g < a.kv.G; g++) {
        __syncthreads();
        load_tile<T>(a.kv, first, size_t(last), g, false, k, K + 1);
        __syncthreads();
        for (size_t e = warp; e < a.m * group; e += THREADS / 32) {
            const size_t row = e / group, head = g * group + e % group;
            if (checked_pos(a, row, fault) < int64_t(key)) continue;
            const float *q = a.q + row * a.ldq + head * K;
            float score = 0;
            for (unsigned d = 0; d < K; d++)
                score = fmaf(q[d] * (a.scale * LOG2E), k[lane * (K + 1) + d], score);
            sum += exp2f(score - a.lse[row * a.H + head] * LOG2E);
        }
    }
    part[warp * 32 + lane] = sum;
    __syncthreads();
    if (warp == 0 && key < end && key <= size_t(last))
        mass[key] += (part[lane] + part[32 + lane]) + (part[64 + lane] + part[96 + lane]);
}

int cu_mass(struct cu *c, const struct cu_attn *a, float *mass, size_t key0, size_t n_keys)
{
    const unsigned K = a->kv.K, group = a->H / a->kv.G;
    const size_t smem = sizeof(float) * (TILE * (K + 1) + THREADS);
    const size_t room = a->kv.n_pages * CU_PAGE;
    if (K > CU_WARP * DIMS) return -EINVAL;
    if (key0 >= room) return 0;
    if (n_keys > room - key0) n_keys = room - key0;
    const dim3 grid(cu_blocks(n_keys, TILE));
    if (c->type == CU_BF16)
        KN_LAUNCH(mass_of_keys<uint16_t>, grid, dim3(THREADS), smem, c->stream, *a, group, mass,
                  key0, key0 + n_keys, c->fault);
    else
        KN_LAUNCH(mass_of_keys<float>, grid, dim3(THREADS), smem, c->stream, *a, group, mass, key0,
                  key0 + n_keys, c->fault);
    return cu_launched(c);
}
