/* Rotation, and rows on their way into pages. */
#include "kernels/cuda/pages.h"
#include "kernels/cuda/rotate.h"

/* By four values of a head's first half, and those that they rotate with. */
static __global__ void rope(struct kn_rope p, float *x, size_t ldx, size_t heads,
                            const int32_t *pos, bool wide, int *fault)
{
    const size_t half = p.n_rot / 2, quads = (half + 3) / 4;
    const int32_t at = pos[blockIdx.x];
    if (at < 0 || size_t(at) >= p.pos_cap) {
        *fault = CU_BAD_POSITION;
        return;
    }
    const size_t row = size_t(at) * half;
    for (size_t i = threadIdx.x; i < heads * quads; i += blockDim.x) {
        float *h = x + size_t(blockIdx.x) * ldx + i / quads * p.K;
        const size_t d = i % quads * 4;
        cu_four a = cu_four_at(h, d, half, wide), b = cu_four_at(h + half, d, half, wide);
        rotate_four(p, row + d, row + half, wide, &a, &b);
        cu_put_four<float, float4>(h, d, half, wide, a.v);
        cu_put_four<float, float4>(h + half, d, half, wide, b.v);
    }
}

static uintptr_t bits(const void *p)
{
    return reinterpret_cast<uintptr_t>(p);
}

int cu_rope(struct cu *c, const struct kn_rope *p, float *x, size_t ldx, size_t m, size_t heads,
            const int32_t *pos)
{
    const bool wide =
        (bits(x) | bits(p->cos) | bits(p->sin)) % 16 == 0 && (ldx | p->K | p->n_rot / 2) % 4 == 0;
    KN_LAUNCH(rope, dim3(unsigned(m)), dim3(heads * p->K >= 1024 ? 256 : 64), 0, c->stream, *p, x,
              ldx, heads, pos, wide, c->fault);
    return cu_launched(c);
}

/* The pages that a row goes to; false: none, as it is nobody's, or with a fault. */
static __device__ __forceinline__ bool has_place(struct cu_kv &kv, const struct cu_put &p,
                                                 size_t row, int *fault)
{
    if (kv.each) {
        kv.pages = kv.each[row].id + kv.each_shift;
        kv.n_pages = kv.each[row].n;
        if (kv.n_pages == 0) return false;
    }
    const int32_t pos = p.pos[row];
    if (pos >= 0 && size_t(pos) / CU_PAGE < kv.n_pages && rotates(p.to, row)) return true;
    *fault = CU_BAD_POSITION;
    return false;
}

/* A row by a block. */
template <class T>
static __global__ void put(struct cu_kv kv, const __grid_constant__ struct cu_put p, int *fault)
{
    const size_t row = blockIdx.x;
    if (!has_place(kv, p, row, fault)) return;
    const int32_t pos = p.pos[row], at = p.to.rope.n_rot ? p.to.pos[row] : 0;
    const float *k = p.k + row * p.ldk, *v = p.v + row * p.ldv;
    for (size_t i = threadIdx.x; i < size_t(kv.G) * kv.K; i += blockDim.x) {
        const unsigned g = unsigned(i / kv.K);
        const size_t d = i % kv.K;
        const auto get = [&](size_t j) { return k[i - d + j]; };
        cu_store(cu_page_key<T>(kv, pos, false, g) + d, rotated(p.to.rope, at, d, get));
        cu_store(cu_page_key<T>(kv, pos, true, g) + d, v[i]);
    }
}

static dim3 row_block(const struct cu_kv *kv)
{
    return dim3(size_t(kv->G) * kv->K >= 512 ? 256 : 64);
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
        cu_store(cu_page_key<T>(kv, pos, false, g) + d, key);
        cu_store(cu_page_key<T>(kv, pos, true, g) + d, cu_stored(vr, t, i, kv.K));
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

/* Values d … d+7 of a head's halves, K rotated to the table's row `at`. */
struct halves {
    struct eight k[2], v[2];
};

template <class T>
static __device__ __forceinline__ void put_halves(const struct cu_kv &kv, int32_t pos, unsigned g,
                                                  unsigned d, const struct kn_rope &p, size_t at,
                                                  struct halves &x)
{
    const unsigned half = kv.K / 2;
    T *const to_k = cu_page_key<T>(kv, size_t(pos), false, g) + d;
    T *const to_v = cu_page_key<T>(kv, size_t(pos), true, g) + d;
    CU_UNROLL
    for (unsigned j = 0; p.n_rot && j < EIGHT; j += 4) {
        cu_four a, b;
        memcpy(a.v, x.k[0].v + j, sizeof a.v), memcpy(b.v, x.k[1].v + j, sizeof b.v);
        rotate_four(p, at * half + d + j, 0, true, &a, &b);
        memcpy(x.k[0].v + j, a.v, sizeof a.v), memcpy(x.k[1].v + j, b.v, sizeof b.v);
    }
    CU_UNROLL
    for (unsigned j = 0; j < 2; j++) {
        put_eight(to_k + j * half, x.k[j]);
        put_eight(to_v + j * half, x.v[j]);
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
    struct halves x = {{eight_at<S>(k, d), eight_at<S>(k, d + half)},
                       {eight_at<S>(v, d), eight_at<S>(v, d + half)}};
    if (s.rot0 < 0) p.n_rot = 0;
    put_halves<T>(kv, s.pos0 + int32_t(row), g, d, p, size_t(s.rot0) + row, x);
}

template <class T>
static __global__ void put_wide(struct cu_kv kv, const __grid_constant__ struct cu_put p,
                                int *fault)
{
    const unsigned half = kv.K / 2, parts = half / EIGHT, in_row = kv.G * parts;
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x, row = i / in_row;
    const unsigned g = i % in_row / parts, d = i % parts * EIGHT;
    if (row >= p.m || !has_place(kv, p, row, fault)) return;
    const char *const k = reinterpret_cast<const char *>(p.k + row * p.ldk + g * kv.K);
    const char *const v = reinterpret_cast<const char *>(p.v + row * p.ldv + g * kv.K);
    struct halves x = {{eight_at<CU_F32>(k, d), eight_at<CU_F32>(k, d + half)},
                       {eight_at<CU_F32>(v, d), eight_at<CU_F32>(v, d + half)}};
    put_halves<T>(kv, p.pos[row], g, d, p.to.rope, p.to.rope.n_rot ? p.to.pos[row] : 0, x);
}

/* Pages and tables suit eights, and heads that are rotated as a whole or not at all. */
static bool suits_eights(const struct cu_kv *kv, const struct kn_rope &p)
{
    const uintptr_t to = bits(kv->base) | kv->page_bytes | bits(p.cos) | bits(p.sin);
    return to % 16 == 0 && kv->K % (2 * EIGHT) == 0 && (p.n_rot == 0 || p.n_rot == kv->K);
}

enum { WIDE_THREADS = 128 };
static dim3 wide_blocks(const struct cu_kv *kv, size_t rows, unsigned pieces)
{
    return dim3(cu_blocks(rows * kv->G * (kv->K / (2 * EIGHT)), WIDE_THREADS), pieces);
}

/* ---- into pages of 8 bits: a head by a warp ---- */

enum { Q8_WARPS = 4 };

struct one_head { /* of K or V of a row */
    size_t row;
    unsigned g;
    bool v;
};
static __device__ __forceinline__ struct one_head warps_head(unsigned G)
{
    const size_t nth = size_t(blockIdx.x) * Q8_WARPS + threadIdx.x / CU_WARP;
    const unsigned in_row = unsigned(nth % (2 * G));
    return {nth / (2 * G), in_row % G, in_row >= G};
}

struct values_from { /* a row of stored heads, or of f32 */
    const void *row;
    enum cu_type t;
};

struct codes_to { /* a key's place in a head of a page */
    uint16_t *at;
    uint8_t *code;
    size_t K;
    bool wide;

    __device__ __forceinline__ void top(uint16_t h) const
    {
        *at = h;
    }
    __device__ __forceinline__ void four(size_t i, const uint8_t (&x)[4]) const
    {
        cu_put_four<uint8_t, uint32_t>(code, i, K, wide, x);
    }
};

static __device__ __forceinline__ struct codes_to place_of(const struct cu_kv &kv, int32_t pos,
                                                           const struct one_head &h, bool wide)
{
    return {cu_page_top(kv, size_t(pos), h.v, h.g),
            reinterpret_cast<uint8_t *>(cu_page_key<struct cu_q8>(kv, size_t(pos), h.v, h.g)), kv.K,
            wide};
}

/* Its values, K rotated to the table's row `at`, wait in shared memory, as they are read twice. */
static __device__ __forceinline__ void encode_head(const struct values_from &x,
                                                   const struct one_head &h,
                                                   const struct codes_to &to,
                                                   const struct kn_rope &p, int32_t at, int *fault)
{
    KN_DYNAMIC_SHARED(float, all);
    float *const mine = all + threadIdx.x / CU_WARP * to.K;
    const size_t first = size_t(h.g) * to.K;
    const auto get = [&](size_t d) { return cu_stored(x.row, x.t, first + d, to.K); };
    for (size_t d = threadIdx.x % CU_WARP; d < to.K; d += CU_WARP)
        mine[d] = h.v ? get(d) : rotated(p, at, d, get);
    __syncwarp();
    const bool whole = to.K % 4 == 0;
    const auto four = [&](size_t i) { return cu_four_at(mine, i, to.K, whole); };
    if (!cu_encode_q8(to.K, four, to)) *fault = CU_BAD_VALUE;
}

/* wide: pages suit fours. */
static __global__ void __launch_bounds__(Q8_WARPS *CU_WARP)
    put_q8(struct cu_kv kv, const __grid_constant__ struct cu_put p, bool wide, int *fault)
{
    const struct one_head h = warps_head(kv.G);
    if (h.row >= p.m || !has_place(kv, p, h.row, fault)) return;
    const struct values_from x = {h.v ? p.v + h.row * p.ldv : p.k + h.row * p.ldk, CU_F32};
    encode_head(x, h, place_of(kv, p.pos[h.row], h, wide), p.to.rope,
                p.to.rope.n_rot ? p.to.pos[h.row] : 0, fault);
}

/* A stored head as it is. */
static __device__ __forceinline__ void copy_codes(const uint8_t *head, const struct codes_to &to)
{
    const unsigned lane = threadIdx.x % CU_WARP;
    if (lane == 0) to.top(uint16_t(head[0] | head[1] << 8));
    for (size_t i = size_t(lane) * 4; i < to.K; i += CU_WARP * 4) {
        uint8_t code[4] = {0, 0, 0, 0};
        for (unsigned j = 0; j < 4 && i + j < to.K; j++)
            code[j] = head[2 + i + j];
        to.four(i, code);
    }
}

/* What is stored in 8 bits and not rotated stays what it is. */
static __global__ void __launch_bounds__(Q8_WARPS *CU_WARP)
    load_q8(struct cu_kv kv, const __grid_constant__ struct cu_pieces all, struct kn_rope p,
            bool wide, int *fault)
{
    const struct kn_stored &s = all.piece[blockIdx.y];
    const struct one_head h = warps_head(kv.G);
    if (h.row >= s.n) return;
    const enum cu_type t = cu_type(s.t);
    const char *row = static_cast<const char *>(h.v ? s.v : s.k);
    row += h.row * cu_row_bytes(t, kv.G, kv.K);
    const struct codes_to to = place_of(kv, s.pos0 + int32_t(h.row), h, wide);
    if (s.rot0 < 0) p.n_rot = 0;
    if (t == CU_Q8 && (h.v || p.n_rot == 0)) {
        copy_codes(reinterpret_cast<const uint8_t *>(row) + cu_row_bytes(t, h.g, kv.K), to);
        return;
    }
    encode_head({row, t}, h, to, p, s.rot0 + int32_t(h.row), fault);
}

static bool pages_suit_fours(const struct cu_kv *kv)
{
    return (bits(kv->base) | kv->page_bytes | kv->K) % 4 == 0;
}

static dim3 q8_blocks(const struct cu_kv *kv, size_t rows, unsigned pieces)
{
    return dim3(cu_blocks(rows * 2 * kv->G, Q8_WARPS), pieces);
}

static size_t q8_room(const struct cu_kv *kv)
{
    return Q8_WARPS * kv->K * sizeof(float);
}

size_t cu_page_bytes(const struct cu *c, unsigned G, unsigned K)
{
    return 2 * G *
           (c->pages == CU_Q8     ? cu_page_head_bytes<struct cu_q8>(K)
            : c->pages == CU_BF16 ? cu_page_head_bytes<uint16_t>(K)
                                  : cu_page_head_bytes<float>(K));
}

static int put_into_q8(struct cu *c, const struct cu_kv *kv, const struct cu_put *p)
{
    if (q8_room(kv) > 48 << 10) return -EINVAL;
    KN_LAUNCH(put_q8, q8_blocks(kv, p->m, 1), dim3(Q8_WARPS * CU_WARP), q8_room(kv), c->stream, *kv,
              *p, pages_suit_fours(kv), c->fault);
    return cu_launched(c);
}

static int load_into_q8(struct cu *c, const struct cu_kv *kv, const struct kn_rope &p,
                        const struct cu_pieces *s)
{
    if (q8_room(kv) > 48 << 10) return -EINVAL;
    KN_LAUNCH(load_q8, q8_blocks(kv, s->most, s->n), dim3(Q8_WARPS * CU_WARP), q8_room(kv),
              c->stream, *kv, *s, p, pages_suit_fours(kv), c->fault);
    return cu_launched(c);
}

int cu_kv_put(struct cu *c, const struct cu_kv *kv, const struct cu_put *p)
{
    if (c->pages == CU_Q8) return put_into_q8(c, kv, p);
    const bool wide = suits_eights(kv, p->to.rope) && (p->ldk | p->ldv) % 4 == 0 &&
                      (bits(p->k) | bits(p->v)) % 16 == 0;
    const auto kernel = c->type == CU_BF16 ? (wide ? put_wide<uint16_t> : put<uint16_t>)
                                           : (wide ? put_wide<float> : put<float>);
    KN_LAUNCH(kernel, wide ? wide_blocks(kv, p->m, 1) : dim3(unsigned(p->m)),
              wide ? dim3(WIDE_THREADS) : row_block(kv), 0, c->stream, *kv, *p, c->fault);
    return cu_launched(c);
}

static bool by_eight(const struct cu_kv *kv, const struct kn_rope &p, const struct cu_pieces *s)
{
    bool fits = suits_eights(kv, p);
    for (const struct kn_stored *i = s->piece; i < s->piece + s->n; i++)
        fits = fits && i->t == s->piece->t &&
               (bits(i->k) | bits(i->v)) % (i->t == KN_Q8 ? 2 : 16) == 0;
    return fits;
}

template <class T>
static void launch_load(struct cu *c, const struct cu_kv *kv, const struct kn_rope &p,
                        const struct cu_pieces *s)
{
    const enum kn_dtype t = s->piece[0].t;
    const bool wide = by_eight(kv, p, s);
    const auto kernel = !wide          ? load<T>
                        : t == KN_F32  ? load_wide<T, CU_F32>
                        : t == KN_F16  ? load_wide<T, CU_F16>
                        : t == KN_BF16 ? load_wide<T, CU_BF16>
                                       : load_wide<T, CU_Q8>;
    KN_LAUNCH(kernel, wide ? wide_blocks(kv, s->most, s->n) : dim3(unsigned(s->most), s->n),
              wide ? dim3(WIDE_THREADS) : row_block(kv), 0, c->stream, *kv, *s, p);
}

int cu_kv_load(struct cu *c, const struct cu_kv *kv, const struct kn_rope *rope,
               const struct cu_pieces *s)
{
    const struct kn_rope none = {}, p = rope ? *rope : none;
    if (c->pages == CU_Q8) return load_into_q8(c, kv, p, s);
    (c->type == CU_BF16 ? launch_load<uint16_t> : launch_load<float>)(c, kv, p, s);
    return cu_launched(c);
}
