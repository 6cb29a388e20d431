/* Rotation, and rows on their way into pages.
 *
 * A page of a layer holds K [G, P, K], then V [G, P, K] in the device's type: a key's values are
 * contiguous, as a row of the second operand of q k^T wants them. */
#include "kernels/cuda/operand.h"

/* Value d of a rotated head; x(i) is its value i before. */
template <class F>
static __device__ __forceinline__ float rotated(const struct kn_rope &p, int32_t pos, size_t d, F x)
{
    const size_t half = p.n_rot / 2;
    if (d >= p.n_rot) return x(d);
    const size_t i = d < half ? d : d - half, at = size_t(pos) * half + i;
    const float a = x(i), b = x(i + half), c = p.cos[at], s = p.sin[at];
    return (d < half ? fmaf(-b, s, a * c) : fmaf(a, s, b * c)) * p.mscale;
}

static __global__ void rope(struct kn_rope p, float *x, size_t ldx, size_t heads,
                            const int32_t *pos, int *fault)
{
    const size_t half = p.n_rot / 2;
    const int32_t at = pos[blockIdx.x];
    if (at < 0 || size_t(at) >= p.pos_cap) {
        *fault = 1;
        return;
    }
    for (size_t i = threadIdx.x; i < heads * half; i += blockDim.x) {
        float *h = x + size_t(blockIdx.x) * ldx + i / half * p.K;
        const size_t d = i % half;
        const float a = h[d], b = h[d + half];
        const auto get = [&](size_t j) { return j < half ? a : b; };
        h[d] = rotated(p, at, d, get);
        h[d + half] = rotated(p, at, d + half, get);
    }
}

int cu_rope(struct cu *c, const struct kn_rope *p, float *x, size_t ldx, size_t m, size_t heads,
            const int32_t *pos)
{
    KN_LAUNCH(rope, dim3(unsigned(m)), dim3(heads * p->K >= 1024 ? 256 : 64), 0, c->stream, *p, x,
              ldx, heads, pos, c->fault);
    return cu_launched(c);
}

/* Where value 0 of KV head g of the token is; NULL when it has no page. */
template <class T>
static __device__ __forceinline__ T *slot(const struct cu_kv &kv, int64_t pos, bool v, unsigned g)
{
    if (pos < 0 || size_t(pos) / CU_PAGE >= kv.n_pages) return nullptr;
    T *page = reinterpret_cast<T *>(kv.base + size_t(kv.pages[pos / CU_PAGE]) * kv.page_bytes);
    return page + ((size_t(v) * kv.G + g) * CU_PAGE + size_t(pos) % CU_PAGE) * kv.K;
}

/* A row by a block. */
template <class T>
static __global__ void put(struct cu_kv kv, const int32_t *pos, const float *k, size_t ldk,
                           const float *v, size_t ldv, int *fault)
{
    const size_t row = blockIdx.x;
    if (kv.each) {
        kv.pages = kv.each[row].id;
        kv.n_pages = kv.each[row].n;
        if (kv.n_pages == 0) return;
    }
    if (!slot<T>(kv, pos[row], false, 0)) {
        *fault = 1;
        return;
    }
    k += row * ldk;
    v += row * ldv;
    for (size_t i = threadIdx.x; i < size_t(kv.G) * kv.K; i += blockDim.x) {
        const unsigned g = unsigned(i / kv.K);
        cu_store(slot<T>(kv, pos[row], false, g) + i % kv.K, k[i]);
        cu_store(slot<T>(kv, pos[row], true, g) + i % kv.K, v[i]);
    }
}

static dim3 row_block(const struct cu_kv *kv)
{
    return dim3(size_t(kv->G) * kv->K >= 512 ? 256 : 64);
}

int cu_kv_put(struct cu *c, const struct cu_kv *kv, const int32_t *pos, size_t m, const float *k,
              size_t ldk, const float *v, size_t ldv)
{
    const dim3 grid(static_cast<unsigned>(m)), block = row_block(kv);
    if (c->type == CU_BF16)
        KN_LAUNCH(put<uint16_t>, grid, block, 0, c->stream, *kv, pos, k, ldk, v, ldv, c->fault);
    else
        KN_LAUNCH(put<float>, grid, block, 0, c->stream, *kv, pos, k, ldk, v, ldv, c->fault);
    return cu_launched(c);
}

template <class T>
static __global__ void load(struct cu_kv kv, int32_t pos0, const char *k, const char *v,
                            enum cu_type t, struct kn_rope p)
{
    const size_t bytes = cu_row_bytes(t, kv.G, kv.K), n_rot = p.n_rot;
    const int32_t pos = pos0 + int32_t(blockIdx.x);
    const char *kr = k + blockIdx.x * bytes, *vr = v + blockIdx.x * bytes;
    for (size_t i = threadIdx.x; i < size_t(kv.G) * kv.K; i += blockDim.x) {
        const unsigned g = unsigned(i / kv.K);
        const size_t d = i % kv.K, head = size_t(g) * kv.K;
        const auto get = [&](size_t j) { return cu_stored(kr, t, head + j, kv.K); };
        const float key = n_rot ? rotated(p, pos, d, get) : get(d);
        cu_store(slot<T>(kv, pos, false, g) + d, key);
        cu_store(slot<T>(kv, pos, true, g) + d, cu_stored(vr, t, i, kv.K));
    }
}

/* ---- the same by 16 bytes: 8 values of a head's first half, and those they rotate with ---- */

enum { EIGHT = 8 };
struct eight {
    float v[EIGHT];
};

static __device__ __forceinline__ struct eight eight_at(const uint16_t *x, enum cu_type t)
{
    uint16_t h[EIGHT];
    struct eight e;
    const float4 words = *reinterpret_cast<const float4 *>(x);
    memcpy(h, &words, sizeof h);
    CU_UNROLL
    for (unsigned j = 0; j < EIGHT; j++)
        e.v[j] = t == CU_F16 ? cu_f16_f32(h[j]) : cu_bf16_f32(h[j]);
    return e;
}

template <class T> static __device__ __forceinline__ void put_eight(T *to, const struct eight &e)
{
    T x[EIGHT];
    CU_UNROLL
    for (unsigned j = 0; j < EIGHT; j++)
        cu_store(&x[j], e.v[j]);
    float4 words[EIGHT * sizeof(T) / 16];
    memcpy(words, x, sizeof words);
    CU_UNROLL
    for (unsigned j = 0; j < EIGHT * sizeof(T) / 16; j++)
        reinterpret_cast<float4 *>(to)[j] = words[j];
}

template <class T>
static __global__ void load_wide(struct cu_kv kv, int32_t pos0, unsigned n, const uint16_t *k,
                                 const uint16_t *v, enum cu_type t, struct kn_rope p)
{
    const unsigned half = kv.K / 2, parts = half / EIGHT, in_row = kv.G * parts;
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x, row = i / in_row;
    const unsigned g = i % in_row / parts, d = i % parts * EIGHT;
    if (row >= n) return;
    const int32_t pos = pos0 + int32_t(row);
    const size_t at = (size_t(row) * kv.G + g) * kv.K + d;
    T *const to_k = slot<T>(kv, pos, false, g) + d, *const to_v = slot<T>(kv, pos, true, g) + d;
    struct eight a = eight_at(k + at, t), b = eight_at(k + at + half, t);
    if (p.n_rot) {
        const float *cs = p.cos + size_t(pos) * half + d, *sn = p.sin + size_t(pos) * half + d;
        CU_UNROLL
        for (unsigned j = 0; j < EIGHT; j += 4) { /* as rotated() */
            const cu_four c = cu_four_at(cs, j, EIGHT, true), s = cu_four_at(sn, j, EIGHT, true);
            CU_UNROLL
            for (unsigned i4 = 0; i4 < 4; i4++) {
                const float x = a.v[j + i4], y = b.v[j + i4];
                a.v[j + i4] = fmaf(-y, s.v[i4], x * c.v[i4]) * p.mscale;
                b.v[j + i4] = fmaf(x, s.v[i4], y * c.v[i4]) * p.mscale;
            }
        }
    }
    put_eight(to_k, a);
    put_eight(to_k + half, b);
    put_eight(to_v, eight_at(v + at, t));
    put_eight(to_v + half, eight_at(v + at + half, t));
}

static bool by_eight(const struct cu_kv *kv, const void *k, const void *v, enum cu_type t,
                     const struct kn_rope &p)
{
    const uintptr_t all = reinterpret_cast<uintptr_t>(k) | reinterpret_cast<uintptr_t>(v) |
                          reinterpret_cast<uintptr_t>(kv->base) | kv->page_bytes |
                          reinterpret_cast<uintptr_t>(p.cos) | reinterpret_cast<uintptr_t>(p.sin);
    return (t == CU_F16 || t == CU_BF16) && all % 16 == 0 && kv->K % (2 * EIGHT) == 0 &&
           (p.n_rot == 0 || p.n_rot == kv->K);
}

template <class T>
static void launch_wide(struct cu *c, const struct cu_kv *kv, int32_t pos0, size_t n, const void *k,
                        const void *v, enum cu_type t, const struct kn_rope &p)
{
    enum { THREADS = 128 };
    const size_t items = n * kv->G * (kv->K / (2 * EIGHT));
    KN_LAUNCH(load_wide<T>, dim3(cu_blocks(items, THREADS)), dim3(THREADS), 0, c->stream, *kv, pos0,
              unsigned(n), static_cast<const uint16_t *>(k), static_cast<const uint16_t *>(v), t,
              p);
}

int cu_kv_load(struct cu *c, const struct cu_kv *kv, int32_t pos0, size_t n, const void *k,
               const void *v, enum cu_type t, const struct kn_rope *rope)
{
    const struct kn_rope none = {}, p = rope ? *rope : none;
    if (by_eight(kv, k, v, t, p)) {
        if (c->type == CU_BF16)
            launch_wide<uint16_t>(c, kv, pos0, n, k, v, t, p);
        else
            launch_wide<float>(c, kv, pos0, n, k, v, t, p);
        return cu_launched(c);
    }
    const dim3 grid(static_cast<unsigned>(n)), block = row_block(kv);
    const char *kc = static_cast<const char *>(k), *vc = static_cast<const char *>(v);
    if (c->type == CU_BF16)
        KN_LAUNCH(load<uint16_t>, grid, block, 0, c->stream, *kv, pos0, kc, vc, t, p);
    else
        KN_LAUNCH(load<float>, grid, block, 0, c->stream, *kv, pos0, kc, vc, t, p);
    return cu_launched(c);
}
