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

/* A row by a block, whatever its shape; pieces side by side. */
template <class T>
static __global__ void load(struct cu_kv kv, const __grid_constant__ struct cu_pieces all,
                            struct kn_rope p)
{
    const struct kn_stored &s = all.piece[blockIdx.y];
    const enum cu_type t = cu_type(s.t);
    const size_t row = blockIdx.x, bytes = cu_row_bytes(t, kv.G, kv.K);
    const int32_t pos = s.pos0 + int32_t(row);
    if (row >= s.n) return;
    const char *kr = static_cast<const char *>(s.k) + row * bytes;
    const char *vr = static_cast<const char *>(s.v) + row * bytes;
    for (size_t i = threadIdx.x; i < size_t(kv.G) * kv.K; i += blockDim.x) {
        const unsigned g = unsigned(i / kv.K);
        const size_t d = i % kv.K, head = size_t(g) * kv.K;
        const auto get = [&](size_t j) { return cu_stored(kr, t, head + j, kv.K); };
        const float key = s.rot0 >= 0 ? rotated(p, s.rot0 + int32_t(row), d, get) : get(d);
        cu_store(slot<T>(kv, pos, false, g) + d, key);
        cu_store(slot<T>(kv, pos, true, g) + d, cu_stored(vr, t, i, kv.K));
    }
}

/* ---- the same by 16 bytes: 8 values of a head's first half, and those they rotate with ---- */

enum { EIGHT = 8 };
struct eight {
    float v[EIGHT];
};

/* Values d … d+7 of a head stored as S. */
template <enum cu_type S>
static __device__ __forceinline__ struct eight eight_at(const char *head, unsigned d)
{
    struct eight e;
    if (S == CU_F32) {
        const float4 *from = reinterpret_cast<const float4 *>(head) + d / 4;
        const float4 words[] = {from[0], from[1]};
        memcpy(e.v, words, sizeof e.v);
    } else if (S == CU_Q8) { /* a head starts at an even address */
        const uint16_t *words = reinterpret_cast<const uint16_t *>(head);
        const float step = cu_f16_f32(words[0]) / 127.0f;
        CU_UNROLL
        for (unsigned j = 0; j < EIGHT; j += 2) {
            const uint16_t two = words[1 + (d + j) / 2];
            e.v[j] = float(int8_t(two & 0xff)) * step;
            e.v[j + 1] = float(int8_t(two >> 8)) * step;
        }
    } else {
        uint16_t h[EIGHT];
        const float4 words = reinterpret_cast<const float4 *>(head)[d / EIGHT];
        memcpy(h, &words, sizeof h);
        CU_UNROLL
        for (unsigned j = 0; j < EIGHT; j++)
            e.v[j] = S == CU_F16 ? cu_f16_f32(h[j]) : cu_bf16_f32(h[j]);
    }
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

/* As rotated(), of values from d on of the halves. */
static __device__ __forceinline__ void rotate_eight(const struct kn_rope &p, size_t pos, unsigned d,
                                                    struct eight *a, struct eight *b)
{
    const size_t at = pos * (p.n_rot / 2) + d;
    CU_UNROLL
    for (unsigned j = 0; j < EIGHT; j += 4) {
        const cu_four c = cu_four_at(p.cos + at, j, EIGHT, true);
        const cu_four s = cu_four_at(p.sin + at, j, EIGHT, true);
        CU_UNROLL
        for (unsigned i = 0; i < 4; i++) {
            const float x = a->v[j + i], y = b->v[j + i];
            a->v[j + i] = fmaf(-y, s.v[i], x * c.v[i]) * p.mscale;
            b->v[j + i] = fmaf(x, s.v[i], y * c.v[i]) * p.mscale;
        }
    }
}

/* All reads come before the first write, so that they are under way together. */
template <class T, enum cu_type S>
static __global__ void load_wide(struct cu_kv kv, const __grid_constant__ struct cu_pieces all,
                                 struct kn_rope p)
{
    const struct kn_stored &s = all.piece[blockIdx.y];
    const unsigned half = kv.K / 2, parts = half / EIGHT, in_row = kv.G * parts;
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x, row = i / in_row;
    const unsigned g = i % in_row / parts, d = i % parts * EIGHT;
    if (row >= s.n) return;
    const size_t at = (size_t(row) * kv.G + g) * cu_row_bytes(S, 1, kv.K);
    const char *const k = static_cast<const char *>(s.k) + at;
    const char *const v = static_cast<const char *>(s.v) + at;
    struct eight k0 = eight_at<S>(k, d), k1 = eight_at<S>(k, d + half);
    const struct eight v0 = eight_at<S>(v, d), v1 = eight_at<S>(v, d + half);
    if (p.n_rot && s.rot0 >= 0) rotate_eight(p, size_t(s.rot0) + row, d, &k0, &k1);
    const int32_t pos = s.pos0 + int32_t(row);
    T *const to_k = slot<T>(kv, pos, false, g) + d, *const to_v = slot<T>(kv, pos, true, g) + d;
    put_eight(to_k, k0);
    put_eight(to_k + half, k1);
    put_eight(to_v, v0);
    put_eight(to_v + half, v1);
}

static bool by_eight(const struct cu_kv *kv, const struct kn_rope &p, const struct cu_pieces *s)
{
    const auto bits = [](const void *x) { return reinterpret_cast<uintptr_t>(x); };
    const uintptr_t to = bits(kv->base) | kv->page_bytes | bits(p.cos) | bits(p.sin);
    bool fits = to % 16 == 0 && kv->K % (2 * EIGHT) == 0 && (p.n_rot == 0 || p.n_rot == kv->K);
    for (const struct kn_stored *i = s->piece; i < s->piece + s->n; i++)
        fits = fits && i->t == s->piece->t &&
               (bits(i->k) | bits(i->v)) % (i->t == KN_Q8 ? 2 : 16) == 0;
    return fits;
}

template <class T>
static void launch_load(struct cu *c, const struct cu_kv *kv, const struct kn_rope &p,
                        const struct cu_pieces *s)
{
    enum { THREADS = 128 };
    const enum kn_dtype t = s->piece[0].t;
    const size_t items = s->most * kv->G * (kv->K / (2 * EIGHT));
    const bool wide = by_eight(kv, p, s);
    const auto kernel = !wide          ? load<T>
                        : t == KN_F32  ? load_wide<T, CU_F32>
                        : t == KN_F16  ? load_wide<T, CU_F16>
                        : t == KN_BF16 ? load_wide<T, CU_BF16>
                                       : load_wide<T, CU_Q8>;
    KN_LAUNCH(kernel, dim3(wide ? cu_blocks(items, THREADS) : unsigned(s->most), s->n),
              wide ? dim3(THREADS) : row_block(kv), 0, c->stream, *kv, *s, p);
}

int cu_kv_load(struct cu *c, const struct cu_kv *kv, const struct kn_rope *rope,
               const struct cu_pieces *s)
{
    const struct kn_rope none = {}, p = rope ? *rope : none;
    (c->type == CU_BF16 ? launch_load<uint16_t> : launch_load<float>)(c, kv, p, s);
    return cu_launched(c);
}
