/* attn: what the attention on tensor cores (attn_mma.cu) and the one on plain cores (attn.cu)
 * share.
 *
 * Entry e of a KV head's group is query row e / group, head e % group of it. Keys are cut into
 * parts of CU_KEYS_PART at fixed places; a row's parts are summed up each by itself, then folded in
 * their order by the two functions below. A block folds the first parts as it goes (`first` of
 * them, cu_attn_first()), and finishes rows that end there; each part behind has a block of its
 * own, and a second kernel folds what these left. How many the first are changes no bit.
 *
 * The rows of a launch are of one sequence, or each of its own (`each`, in the device's memory):
 * then block y takes row y as a sequence of one row, and rows that fill a batch up as one of none.
 * Thread: as launch.h. */
#ifndef KERNELS_CUDA_ATTN_H
#define KERNELS_CUDA_ATTN_H

#include "kernels/cuda/mma.h"
#include "kernels/cuda/rotate.h"

#define AT_LOG2E 1.44269504088896341f
#define AT_LN2 0.693147180559945309f

/* attn_mma.cu: -ENOTSUP: this build has no kernels for the current device. */
int at_mma_open();
/* The device is of CU_BF16 and these shapes and addresses suit. */
bool at_mma_fits(const struct cu *c, const struct cu_attn *a);
size_t at_mma_blocks(const struct cu_attn *a);
/* Of a multiprocessor; 0: they are of one warp, and what reads keys from memory is what limits. */
unsigned at_mma_at_once(const struct cu *c, const struct cu_attn *a);
int at_mma(struct cu *c, const struct cu_attn *a);
/* ret[g * n_keys + i]: what key key0 + i gets of KV head g's group; keys behind the last position
 * are left out. */
int at_mma_mass(struct cu *c, const struct cu_attn *a, size_t key0, size_t n_keys, float *ret);

/* Position of a row, -1 when it is none of a sorted list of existing ones. */
static __device__ __forceinline__ int32_t at_pos(const struct cu_attn &a, size_t row, int *fault)
{
    const int32_t pos = a.pos[row];
    if (pos >= 0 && size_t(pos) / CU_PAGE < a.kv.n_pages && (row == 0 || a.pos[row - 1] <= pos) &&
        rotates(a.to, row))
        return pos;
    *fault = CU_BAD_POSITION;
    return -1;
}

/* Values d, d+1 of row `row` of the query at q, rotated. */
static __device__ __forceinline__ struct float2 at_query(const struct cu_attn &a, const float *q,
                                                         size_t row, unsigned d)
{
    const struct kn_rope &p = a.to.rope;
    struct float2 x = *reinterpret_cast<const struct float2 *>(q + d);
    if (d >= p.n_rot) return x;
    if (p.n_rot % 4) { /* halves are no pairs */
        const auto get = [&](size_t i) { return q[i]; };
        return {rotated(p, a.to.pos[row], d, get), rotated(p, a.to.pos[row], d + 1, get)};
    }
    const unsigned half = unsigned(p.n_rot / 2), i = d < half ? d : d - half;
    const size_t at = size_t(a.to.pos[row]) * half + i;
    const struct float2 y = *reinterpret_cast<const struct float2 *>(q + (d < half ? d + half : i));
    const struct float2 c = *reinterpret_cast<const struct float2 *>(p.cos + at);
    const struct float2 s = *reinterpret_cast<const struct float2 *>(p.sin + at);
    x.x = fmaf(d < half ? -y.x : y.x, s.x, x.x * c.x) * p.mscale;
    x.y = fmaf(d < half ? -y.y : y.y, s.y, x.y * c.y) * p.mscale;
    return x;
}

/* The first key that a row at pos sees. */
static __device__ __forceinline__ int32_t at_from(const struct cu_attn &a, int32_t pos)
{
    const unsigned n = unsigned(pos) + 1; /* keys up to it */
    return a.window && n > a.window ? int32_t(n - a.window) : 0;
}

/* Whether a key is at_from() or behind it; with few registers, where these are short. */
static __device__ __forceinline__ bool at_reaches(const struct cu_attn &a, int32_t pos, int32_t key)
{
    return a.window == 0 || pos < key || unsigned(pos - key) < a.window;
}

/* Where the maximum of a row's scores starts, in powers of two, and their sum, in a part of the
 * keys: at a sink in the first that the row sees, so that it counts once. */
struct at_start {
    float top, total;
};
static __device__ __forceinline__ struct at_start
at_start_of(const struct cu_attn &a, unsigned head, int32_t pos, unsigned part)
{
    if (!a.sink || unsigned(at_from(a, pos)) / CU_KEYS_PART != part) return {-INFINITY, 0};
    return {a.sink[head] * AT_LOG2E, 1};
}

/* Of a score in powers of two: cap * tanh(x / cap). */
static __device__ __forceinline__ float at_capped(float cap, float x)
{
    const float all = cap * AT_LOG2E;
    return all - 2 * all / (1 + mma_exp2(fminf(x * (2 / cap), 126.0f)));
}

static __device__ __host__ __forceinline__ unsigned at_parts(const struct cu_attn &a)
{
    return unsigned((a.kv.n_pages * CU_PAGE + CU_KEYS_PART - 1) / CU_KEYS_PART);
}

/* Parts behind the first ones: each has blocks of its own. */
static inline unsigned at_behind(const struct cu_attn &a)
{
    const unsigned parts = at_parts(a);
    return parts > a.first ? parts - a.first : 0;
}

/* What an entry's part leaves for the second kernel: top, total and, of a part behind the first
 * ones, K values; the first ones' values are in a.sums. */
static __device__ __forceinline__ float *at_part(const struct cu_attn &a, size_t row, unsigned head,
                                                 unsigned part)
{
    const unsigned at = part < a.first ? 0 : 2 + (part - a.first) * (a.kv.K + 2);
    return a.parts + (row * a.H + head) * a.ld_parts + at;
}

static inline size_t at_sequences(const struct cu_attn *a)
{
    return a->kv.each ? a->m : 1;
}

static inline size_t at_each_rows(const struct cu_attn *a) /* of a sequence */
{
    return a->kv.each ? 1 : a->m;
}

static __device__ __forceinline__ void *at_out(const struct cu_attn &a, size_t value)
{
    return static_cast<char *>(a.out) + value * (a.type == CU_BF16 ? 2 : 4);
}

/* The rows that block y has to do with. */
static __device__ __forceinline__ struct cu_attn at_sequence(struct cu_attn a, unsigned y)
{
    if (!a.kv.each) return a;
    a.kv.pages = a.kv.each[y].id + a.kv.each_shift;
    a.kv.n_pages = a.kv.each[y].n;
    a.m = a.kv.n_pages > 0;
    a.q += y * a.ldq;
    a.pos += y;
    if (a.to.rope.n_rot) a.to.pos += y;
    a.out = at_out(a, y * a.ldo);
    a.sums += y * a.ld_sums;
    a.parts += size_t(y) * a.H * a.ld_parts;
    if (a.lse) a.lse += size_t(y) * a.H;
    return a;
}

/* Sums so far of top and total meet those of the next part: the weights of both. */
struct at_weights {
    float old, next;
};
static __device__ __forceinline__ struct at_weights at_fold(float &top, float &total,
                                                            float next_top, float next_total)
{
    const float most = fmaxf(top, next_top);
    const struct at_weights w = {mma_exp2(top - most), mma_exp2(next_top - most)};
    total = fmaf(total, w.old, next_total * w.next);
    top = most;
    return w;
}

static __device__ __forceinline__ float at_folded(const struct at_weights &w, float old, float next)
{
    return fmaf(old, w.old, next * w.next);
}

static __device__ __forceinline__ float at_lse(float top, float total)
{
    return (top + log2f(total)) * AT_LN2;
}

#endif
