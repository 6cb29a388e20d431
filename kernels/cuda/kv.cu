/* Rotation, and rows on their way into pages.
 *
 * A page of a layer holds K [G, P, K], then V [G, P, K] in the device's type: a key's values are
 * contiguous, as a row of the second operand of q k^T wants them. */
#include "kernels/cuda/cuda.h"

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

int cu_kv_load(struct cu *c, const struct cu_kv *kv, int32_t pos0, size_t n, const void *k,
               const void *v, enum cu_type t, const struct kn_rope *rope)
{
    const struct kn_rope none = {}, p = rope ? *rope : none;
    const dim3 grid(static_cast<unsigned>(n)), block = row_block(kv);
    const char *kc = static_cast<const char *>(k), *vc = static_cast<const char *>(v);
    if (c->type == CU_BF16)
        KN_LAUNCH(load<uint16_t>, grid, block, 0, c->stream, *kv, pos0, kc, vc, t, p);
    else
        KN_LAUNCH(load<float>, grid, block, 0, c->stream, *kv, pos0, kc, vc, t, p);
    return cu_launched(c);
}
