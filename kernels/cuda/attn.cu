/* Attention of rows at exact positions, and what each key gets of it: on plain cores, and the way
 * to the tensor cores (attn_mma.cu) where products are bf16.
 *
 * Plain: a block takes 16 neighbouring entries (see attn.h), four a warp, over one part of the
 * keys, in tiles of 32: lanes are keys for the scores, and dimensions for the sums. Rows ascend, so
 * a block ends at its last row's position and a tile behind a row's position is not looked at for
 * it. Sums are f32 and nothing is rounded: the path that must be right, and for odd sizes. */
#include "kernels/cuda/attn.h"
#include "kernels/cuda/pages.h"
#include "kernels/cuda/split.h"

static_assert(SPLIT_PART == int(CU_KEYS_PART), "what the split is in");

enum { ENTRIES = 16, PER_WARP = 4, TILE = 32, THREADS = 128, DIMS = 8 }; /* K up to 32 * DIMS */

struct sums { /* of one entry; dimension lane + 32 * r of the lane's */
    float top, total, acc[DIMS];
};

static __device__ __forceinline__ void at_put(const struct cu_attn &a, size_t value, float x)
{
    if (a.type == CU_BF16)
        cu_store(static_cast<uint16_t *>(a.out) + value, x);
    else
        cu_store(static_cast<float *>(a.out) + value, x);
}

static __device__ __forceinline__ void write_entry(const struct cu_attn &a, const struct sums &s,
                                                   size_t row, unsigned head, unsigned lane)
{
    const float one = 1 / s.total;
    CU_UNROLL
    for (unsigned r = 0; r < DIMS; r++)
        if (lane + 32 * r < a.kv.K)
            at_put(a, row * a.ldo + size_t(head) * a.kv.K + lane + 32 * r, s.acc[r] * one);
    if (a.lse && lane == 0) a.lse[row * a.H + head] = at_lse(s.top, s.total);
}

/* One tile for one entry: `prob` is the entry's row of shared memory. */
static __device__ __forceinline__ void add_tile(struct sums &s, const float *q, const float *k,
                                                const float *v, float *prob, unsigned K,
                                                bool visible, float cap, unsigned lane)
{
    float score = 0;
    for (unsigned d = 0; d < K; d++)
        score = fmaf(q[d], k[lane * (K + 1) + d], score);
    if (cap > 0) score = at_capped(cap, score);
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
    const T *from = cu_page_key<T>(kv, key0, v, g);
    for (unsigned i = threadIdx.x; i < TILE * kv.K; i += THREADS) {
        const unsigned j = i / kv.K, d = i % kv.K;
        const bool there = key0 + j <= last;
        out[j * stride + d] =
            there ? cu_value(from[i]) * cu_page_step<T>(kv, key0 + j, v, g) : 0.0f;
    }
}

template <class T>
static __global__ void __launch_bounds__(THREADS)
    attend(const __grid_constant__ struct cu_attn args, unsigned group, int *fault)
{
    KN_DYNAMIC_SHARED(float, q);
    const struct cu_attn a = at_sequence(args, blockIdx.y);
    const unsigned K = a.kv.K, g = blockIdx.x % a.kv.G, lane = threadIdx.x % 32,
                   warp = threadIdx.x / 32;
    const size_t e0 = size_t(blockIdx.x / a.kv.G) * ENTRIES, n = a.m * group;
    const size_t part0 = size_t(blockIdx.z) * CU_KEYS_PART;
    if (e0 >= n) return;
    const int32_t last = at_pos(a, ((e0 + ENTRIES < n ? e0 + ENTRIES : n) - 1) / group, fault);
    if (last < 0 || part0 > size_t(last)) return;
    const size_t end = part0 + CU_KEYS_PART < size_t(last) + 1 ? part0 + CU_KEYS_PART : last + 1;
    const int32_t first = at_pos(a, e0 / group, fault);
    if (first < 0 || size_t(at_from(a, first)) >= end) return;
    float *k = q + ENTRIES * K, *v = k + TILE * (K + 1), *prob = v + TILE * K;
    for (unsigned i = threadIdx.x; i < ENTRIES * K; i += THREADS) {
        const size_t e = e0 + i / K, row = e / group;
        const float *from = a.q + row * a.ldq + (g * group + e % group) * K;
        const auto get = [&](size_t d) { return from[d]; };
        const bool there = e < n && rotates(a.to, row);
        const int32_t to = there && a.to.rope.n_rot ? a.to.pos[row] : 0;
        q[i] = there ? rotated(a.to.rope, to, i % K, get) * (a.scale * AT_LOG2E) : 0.0f;
    }
    struct sums s[PER_WARP];
    int32_t pos[PER_WARP];
    CU_UNROLL
    for (unsigned i = 0; i < PER_WARP; i++) {
        const size_t e = e0 + warp * PER_WARP + i;
        pos[i] = e < n ? at_pos(a, e / group, fault) : -1;
        const struct at_start start =
            at_start_of(a, g * group + unsigned(e % group), pos[i], blockIdx.z);
        s[i].top = start.top, s[i].total = start.total;
        CU_UNROLL
        for (unsigned r = 0; r < DIMS; r++)
            s[i].acc[r] = 0;
    }
    const size_t from = size_t(at_from(a, first)) / TILE * TILE;
    for (size_t key0 = from > part0 ? from : part0; key0 < end; key0 += TILE) {
        __syncthreads();
        load_tile<T>(a.kv, key0, size_t(last), g, false, k, K + 1);
        load_tile<T>(a.kv, key0, size_t(last), g, true, v, K);
        __syncthreads();
        CU_UNROLL
        for (unsigned i = 0; i < PER_WARP; i++) {
            const unsigned e = warp * PER_WARP + i;
            const int64_t least = at_from(a, pos[i]), key = int64_t(key0) + lane;
            if (pos[i] < int64_t(key0) || least >= int64_t(key0 + TILE)) continue; /* the warp */
            add_tile(s[i], q + e * K, k, v, prob + e * TILE, K, key <= pos[i] && key >= least,
                     a.cap, lane);
        }
    }
    CU_UNROLL
    for (unsigned i = 0; i < PER_WARP; i++) {
        const size_t e = e0 + warp * PER_WARP + i, row = e / group;
        const unsigned head = g * group + unsigned(e % group);
        if (pos[i] < int64_t(part0) || at_from(a, pos[i]) >= int64_t(end)) continue;
        if (pos[i] < CU_KEYS_PART) {
            write_entry(a, s[i], row, head, lane);
            continue;
        }
        float *const left = at_part(a, row, head, blockIdx.z);
        float *const to = blockIdx.z ? left + 2 : a.sums + row * a.ld_sums + size_t(head) * K;
        if (lane == 0) left[0] = s[i].top, left[1] = s[i].total;
        CU_UNROLL
        for (unsigned r = 0; r < DIMS; r++)
            if (lane + 32 * r < K) to[lane + 32 * r] = s[i].acc[r];
    }
}

/* One warp an entry whose keys go beyond its block's first parts: what these came to, then each
 * part behind, in their order. */
static __global__ void fold_parts(const __grid_constant__ struct cu_attn args)
{
    const struct cu_attn a = at_sequence(args, blockIdx.z);
    const unsigned K = a.kv.K, lane = threadIdx.x, head = blockIdx.y;
    const size_t row = blockIdx.x;
    if (row >= a.m) return;
    const int32_t pos = a.pos[row];
    if (pos < 0 || size_t(pos) / CU_PAGE >= a.kv.n_pages) return;
    const unsigned last = unsigned(pos) / CU_KEYS_PART;
    if (last < a.first) return;
    unsigned p = unsigned(at_from(a, pos)) / CU_KEYS_PART;
    const float *part = at_part(a, row, head, p);
    const float *from = p < a.first ? a.sums + row * a.ld_sums + size_t(head) * K : part + 2;
    struct sums s = {part[0], part[1], {0}};
    CU_UNROLL
    for (unsigned r = 0; r < DIMS; r++)
        if (lane + 32 * r < K) s.acc[r] = from[lane + 32 * r];
    for (p = p < a.first ? a.first : p + 1; p <= last; p++) {
        part = at_part(a, row, head, p);
        const struct at_weights w = at_fold(s.top, s.total, part[0], part[1]);
        CU_UNROLL
        for (unsigned r = 0; r < DIMS; r++)
            if (lane + 32 * r < K) s.acc[r] = at_folded(w, s.acc[r], part[2 + lane + 32 * r]);
    }
    write_entry(a, s, row, head, lane);
}

/* ---- the way to the kernels ---- */

static bool on_tensor_cores(const struct cu *c, const struct cu_attn *a)
{
    return c->type == CU_BF16 && at_mma_fits(c, a);
}

/* Of the second kernel's numbers, for each row and head. */
static size_t left_floats(const struct cu_attn *a)
{
    const size_t behind = at_behind(*a);
    return behind ? 2 + behind * (a->kv.K + 2) : 0;
}

/* Where sums wait, if not where they end up as well. */
static size_t sums_floats(const struct cu_attn *a)
{
    return a->type == CU_BF16 && at_parts(*a) > 1 ? a->kv.K : 0;
}

/* The fewest parts that a block has to fold by itself, so that what the others leave stays within
 * bounds: what fits no cache costs more than it gains. 128 MiB: chosen. */
static unsigned first_for_memory(const struct cu_attn *a)
{
    const size_t part = a->m * a->H * (a->kv.K + 2), behind = (32u << 20) / part;
    const unsigned parts = at_parts(*a);
    return parts > behind + 1 ? parts - unsigned(behind) : 1;
}

/* Blocks of one warp (decodes) are limited by what memory gives them, and a recorded step must not
 * hang on positions: all of their parts in one if there are 1.5 a multiprocessor, else each by
 * itself (chosen). */
unsigned cu_attn_first(const struct cu *c, const struct cu_attn *a, const int32_t *known)
{
    const unsigned parts = at_parts(*a), least = first_for_memory(a);
    if (!on_tensor_cores(c, a) || parts <= 1) return 1;
    const unsigned at_once = at_mma_at_once(c, a);
    if (!at_once) return 2 * at_mma_blocks(a) >= 3 * size_t(c->sms) ? parts : least;
    const struct split s = {known,   a->m,      a->kv.n_pages * CU_PAGE, a->H / a->kv.G, a->kv.G,
                            a->kv.K, a->window, size_t(c->sms) * at_once};
    return split_first(&s, least);
}

size_t cu_attn_floats(const struct cu_attn *a)
{
    return a->m * a->H * (sums_floats(a) + left_floats(a));
}

template <class T> static int launch_attend(struct cu *c, const struct cu_attn *a)
{
    const unsigned K = a->kv.K, group = a->H / a->kv.G;
    const size_t smem = sizeof(float) * (ENTRIES * K + TILE * (K + 1) + TILE * K + ENTRIES * TILE);
    const dim3 grid(cu_blocks(at_each_rows(a) * group, ENTRIES) * a->kv.G,
                    unsigned(at_sequences(a)), 1 + at_behind(*a));
    if (smem > 48 << 10) {
        cudaError_t e =
            cudaFuncSetAttribute(attend<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, int(smem));
        if (e != cudaSuccess) return cu_failed(c, e);
    }
    KN_LAUNCH(attend<T>, grid, dim3(THREADS), smem, c->stream, *a, group, c->fault);
    return cu_launched(c);
}

int cu_attn(struct cu *c, const struct cu_attn *args, float *scratch)
{
    struct cu_attn a = *args;
    const bool mma = on_tensor_cores(c, args);
    const size_t sums = sums_floats(args);
    if (a.kv.K > CU_WARP * DIMS || a.first == 0 || (!mma && a.first > 1)) return -EINVAL;
    a.sums = sums ? scratch : static_cast<float *>(a.out);
    a.ld_sums = sums ? a.H * sums : a.ldo;
    a.parts = scratch + a.m * a.H * sums;
    a.ld_parts = unsigned(left_floats(args));
    int r = mma                   ? at_mma(c, &a)
            : c->pages == CU_Q8   ? launch_attend<struct cu_q8>(c, &a)
            : c->pages == CU_BF16 ? launch_attend<uint16_t>(c, &a)
                                  : launch_attend<float>(c, &a);
    if (r < 0 || !a.ld_parts) return r;
    KN_LAUNCH(fold_parts, dim3(unsigned(at_each_rows(&a)), a.H, unsigned(at_sequences(&a))),
              dim3(CU_WARP), 0, c->stream, a);
    return cu_launched(c);
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
    const int32_t last = at_pos(a, a.m - 1, fault);
    if (last < 0 || first > size_t(last)) return;
    float *part = k + TILE * (K + 1), sum = 0;
    for (unsigned g = 0; g < a.kv.G; g++) {
        __syncthreads();
        load_tile<T>(a.kv, first, size_t(last), g, false, k, K + 1);
        __syncthreads();
        for (size_t e = warp; e < a.m * group; e += THREADS / 32) {
            const size_t row = e / group, head = g * group + e % group;
            const int32_t pos = at_pos(a, row, fault);
            if (pos < int64_t(key) || at_from(a, pos) > int64_t(key)) continue;
            const float *q = a.q + row * a.ldq + head * K;
            float score = 0;
            for (unsigned d = 0; d < K; d++)
                score = fmaf(q[d] * (a.scale * AT_LOG2E), k[lane * (K + 1) + d], score);
            if (a.cap > 0) score = at_capped(a.cap, score);
            sum += exp2f(score - a.lse[row * a.H + head] * AT_LOG2E);
        }
    }
    part[warp * 32 + lane] = sum;
    __syncthreads();
    if (warp == 0 && key < end && key <= size_t(last))
        mass[key] += (part[lane] + part[32 + lane]) + (part[64 + lane] + part[96 + lane]);
}

/* The KV heads' shares of keys, in their order. */
static __global__ void add_mass(struct cu_attn a, const float *part, float *mass, size_t key0,
                                size_t n_keys)
{
    const size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    const int64_t last = a.pos[a.m - 1];
    if (i >= n_keys || int64_t(key0 + i) > last || size_t(last) / CU_PAGE >= a.kv.n_pages) return;
    float sum = 0;
    for (unsigned g = 0; g < a.kv.G; g++)
        sum += part[g * n_keys + i];
    mass[key0 + i] += sum;
}

size_t cu_mass_parts(const struct cu *c, const struct cu_attn *a, size_t n_keys)
{
    return on_tensor_cores(c, a) ? a->kv.G * n_keys : 0;
}

int cu_mass(struct cu *c, const struct cu_attn *a, float *mass, size_t key0, size_t n_keys,
            float *parts)
{
    const unsigned K = a->kv.K, group = a->H / a->kv.G;
    const size_t smem = sizeof(float) * (TILE * (K + 1) + THREADS);
    const size_t room = a->kv.n_pages * CU_PAGE;
    if (K > CU_WARP * DIMS) return -EINVAL;
    if (key0 >= room) return 0;
    if (n_keys > room - key0) n_keys = room - key0;
    if (on_tensor_cores(c, a)) {
        int r = at_mma_mass(c, a, key0, n_keys, parts);
        if (r < 0) return r;
        KN_LAUNCH(add_mass, dim3(cu_blocks(n_keys, THREADS)), dim3(THREADS), 0, c->stream, *a,
                  parts, mass, key0, n_keys);
        return cu_launched(c);
    }
    const auto kernel = c->pages == CU_Q8     ? mass_of_keys<struct cu_q8>
                        : c->pages == CU_BF16 ? mass_of_keys<uint16_t>
                                              : mass_of_keys<float>;
    KN_LAUNCH(kernel, dim3(cu_blocks(n_keys, TILE)), dim3(THREADS), smem, c->stream, *a, group,
              mass, key0, key0 + n_keys, c->fault);
    return cu_launched(c);
}
