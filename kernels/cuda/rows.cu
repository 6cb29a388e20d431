/* Row operations: one block a row (of 32 threads where rows are short), fixed order of sums. */
#include "kernels/cuda/pages.h"

#include "base/rng.h"

/* In place as well: a thread writes what it has read. `add`: to what is there. */
template <bool add>
static __global__ void rmsnorm(struct cu_rows r, size_t heads, const float *weight, float eps,
                               bool wide)
{
    const size_t row = blockIdx.x / heads, head = blockIdx.x % heads;
    const float *x = r.x + row * r.ldx + head * r.n;
    float sum = 0;
    for (size_t i = size_t(threadIdx.x) * 4; i < r.n; i += size_t(blockDim.x) * 4) {
        const cu_four q = cu_four_at(x, i, r.n, wide);
        for (unsigned j = 0; j < 4; j++)
            sum = fmaf(q.v[j], q.v[j], sum);
    }
    const float inv = 1.0f / sqrtf(cu_block_sum(sum) / float(r.n) + eps);
    r.out += head * r.n; /* there is one where this is an operand */
    cu_put_row(r, row, wide, [&](size_t i) {
        cu_four q = cu_four_at(x, i, r.n, wide);
        const cu_four w = cu_four_at(weight, i, r.n, wide);
        for (unsigned j = 0; j < 4; j++)
            q.v[j] = q.v[j] * inv * w.v[j];
        if (!add) return q;
        const cu_four old = cu_four_at(r.out + row * r.ldo, i, r.n, wide);
        for (unsigned j = 0; j < 4; j++)
            q.v[j] += old.v[j];
        return q;
    });
}

/* The row is read three times: a mean that is far from the spread must not cancel it. */
static __global__ void layernorm(struct cu_rows r, const float *weight, const float *bias,
                                 float eps, bool wide)
{
    const size_t row = blockIdx.x;
    const float *x = r.x + row * r.ldx;
    float sum = 0, square = 0;
    for (size_t i = size_t(threadIdx.x) * 4; i < r.n; i += size_t(blockDim.x) * 4) {
        const cu_four q = cu_four_at(x, i, r.n, wide);
        for (unsigned j = 0; j < 4; j++)
            sum += q.v[j];
    }
    const float mean = cu_block_sum(sum) / float(r.n);
    for (size_t i = size_t(threadIdx.x) * 4; i < r.n; i += size_t(blockDim.x) * 4) {
        const cu_four q = cu_four_at(x, i, r.n, wide);
        for (unsigned j = 0; j < 4 && i + j < r.n; j++)
            square = fmaf(q.v[j] - mean, q.v[j] - mean, square);
    }
    const float inv = 1.0f / sqrtf(cu_block_sum(square) / float(r.n) + eps);
    cu_put_row(r, row, wide, [&](size_t i) {
        cu_four q = cu_four_at(x, i, r.n, wide);
        const cu_four w = cu_four_at(weight, i, r.n, wide);
        const cu_four b = bias ? cu_four_at(bias, i, r.n, wide) : cu_four{{0, 0, 0, 0}};
        for (unsigned j = 0; j < 4; j++)
            q.v[j] = (q.v[j] - mean) * inv * w.v[j] + b.v[j];
        return q;
    });
}

int cu_layernorm(struct cu *c, const struct cu_rows *r, const float *weight, const float *bias,
                 float eps)
{
    const bool wide = cu_is_wide(r) && reinterpret_cast<uintptr_t>(weight) % 16 == 0 &&
                      reinterpret_cast<uintptr_t>(bias) % 16 == 0;
    KN_LAUNCH(layernorm, dim3(unsigned(r->m)), dim3(cu_row_threads(r->n)), 0, c->stream, *r, weight,
              bias, eps, wide);
    return cu_launched(c);
}

int cu_rmsnorm(struct cu *c, const struct cu_rows *r, size_t heads, const float *weight, float eps)
{
    const bool wide = cu_is_wide(r) && reinterpret_cast<uintptr_t>(weight) % 16 == 0;
    KN_LAUNCH(rmsnorm<false>, dim3(unsigned(r->m * heads)), dim3(cu_row_threads(r->n)), 0,
              c->stream, *r, heads, weight, eps, wide);
    return cu_launched(c);
}

int cu_rmsnorm_add(struct cu *c, const struct cu_rows *r, const float *weight, float eps)
{
    const bool wide = cu_is_wide(r) && reinterpret_cast<uintptr_t>(weight) % 16 == 0;
    KN_LAUNCH(rmsnorm<true>, dim3(unsigned(r->m)), dim3(cu_row_threads(r->n)), 0, c->stream, *r,
              size_t(1), weight, eps, wide);
    return cu_launched(c);
}

template <enum kn_act act, enum cu_type from>
static __global__ void glu(struct cu_rows r, bool wide)
{
    const size_t value = from == CU_BF16 ? 2 : 4;
    const char *gate = reinterpret_cast<const char *>(r.x) + size_t(blockIdx.x) * r.ldx * value;
    const char *up = gate + r.n * value;
    cu_put_row(r, blockIdx.x, wide, [&](size_t i) {
        cu_four q = cu_stored_four(gate, from, i, r.n, r.n, wide);
        const cu_four u = cu_stored_four(up, from, i, r.n, r.n, wide);
        for (unsigned j = 0; j < 4; j++)
            q.v[j] = cu_activated(act, q.v[j], u.v[j]);
        return q;
    });
}

template <enum kn_act act>
static int launch_glu(struct cu *c, const struct cu_rows *r, enum cu_type from)
{
    const dim3 blocks(unsigned(r->m)), threads(cu_row_threads(r->n));
    if (from == CU_BF16)
        KN_LAUNCH((glu<act, CU_BF16>), blocks, threads, 0, c->stream, *r, cu_is_wide(r));
    else
        KN_LAUNCH((glu<act, CU_F32>), blocks, threads, 0, c->stream, *r, cu_is_wide(r));
    return cu_launched(c);
}

int cu_glu(struct cu *c, enum kn_act act, const struct cu_rows *r, enum cu_type from)
{
    return act == KN_SILU        ? launch_glu<KN_SILU>(c, r, from)
           : act == KN_GELU_TANH ? launch_glu<KN_GELU_TANH>(c, r, from)
           : act == KN_GELU      ? launch_glu<KN_GELU>(c, r, from)
                                 : launch_glu<KN_SILU_CLAMPED>(c, r, from);
}

static __global__ void softcap(struct cu_rows r, float cap, bool wide)
{
    const float *x = r.x + size_t(blockIdx.x) * r.ldx;
    cu_put_row(r, blockIdx.x, wide, [&](size_t i) {
        cu_four q = cu_four_at(x, i, r.n, wide);
        for (unsigned j = 0; j < 4; j++)
            q.v[j] = cap * tanhf(q.v[j] / cap);
        return q;
    });
}

int cu_softcap(struct cu *c, const struct cu_rows *r, float cap)
{
    KN_LAUNCH(softcap, dim3(unsigned(r->m)), dim3(cu_row_threads(r->n)), 0, c->stream, *r, cap,
              cu_is_wide(r));
    return cu_launched(c);
}

static __global__ void gather(struct cu_rows r, const int32_t *idx, bool wide)
{
    const float *x = r.x + size_t(idx[blockIdx.x]) * r.ldx;
    cu_put_row(r, blockIdx.x, wide, [&](size_t i) { return cu_four_at(x, i, r.n, wide); });
}

int cu_gather(struct cu *c, const struct cu_rows *r, const int32_t *idx)
{
    KN_LAUNCH(gather, dim3(unsigned(r->m)), dim3(cu_row_threads(r->n)), 0, c->stream, *r, idx,
              cu_is_wide(r));
    return cu_launched(c);
}

static __global__ void embed(const void *w, enum cu_type t, size_t n_rows, const int32_t *id,
                             struct cu_rows r, bool wide, int *fault)
{
    const int32_t at = id[blockIdx.x];
    if (at < 0 || size_t(at) >= n_rows) {
        *fault = CU_BAD_POSITION;
        return;
    }
    const char *row = static_cast<const char *>(w) + size_t(at) * r.n * (t == CU_F32 ? 4 : 2);
    cu_put_row(r, blockIdx.x, wide,
               [&](size_t i) { return cu_stored_four(row, t, i, r.n, r.n, wide); });
}

int cu_embed(struct cu *c, const void *w, size_t n_rows, const int32_t *id, const struct cu_rows *r)
{
    const bool wide = cu_is_wide(r) && reinterpret_cast<uintptr_t>(w) % 16 == 0;
    KN_LAUNCH(embed, dim3(unsigned(r->m)), dim3(cu_row_threads(r->n)), 0, c->stream, w, c->type,
              n_rows, id, *r, wide, c->fault);
    return cu_launched(c);
}

/* ---- number formats ---- */

static __global__ void encode(struct cu_rows r, enum cu_type t, void *out, bool wide, int *bad)
{
    const float *x = r.x + size_t(blockIdx.x) * r.ldx;
    const size_t to = size_t(blockIdx.x) * r.n;
    for (size_t i = size_t(threadIdx.x) * 4; i < r.n; i += size_t(blockDim.x) * 4) {
        const cu_four q = cu_four_at(x, i, r.n, wide);
        if (t == CU_F32) {
            cu_put_four<float, float4>(static_cast<float *>(out) + to, i, r.n, wide, q.v);
            continue;
        }
        uint16_t h[4];
        for (unsigned j = 0; j < 4; j++) {
            if (t == CU_F16 && !(fabsf(q.v[j]) < 65520.0f)) *bad = 1;
            h[j] = t == CU_F16 ? cu_f32_f16(q.v[j]) : cu_f32_bf16(q.v[j]);
        }
        cu_put_four<uint16_t, uint64_t>(static_cast<uint16_t *>(out) + to, i, r.n, wide, h);
    }
}

struct record_head { /* of stored rows of KN_Q8 */
    uint8_t *at;
    size_t K;
    bool wide; /* it begins at an even address, and has whole fours */

    __device__ __forceinline__ void top(uint16_t h) const
    {
        at[0] = uint8_t(h & 0xff), at[1] = uint8_t(h >> 8);
    }
    __device__ __forceinline__ void four(size_t i, const uint8_t (&code)[4]) const
    {
        if (wide) {
            uint16_t *two = reinterpret_cast<uint16_t *>(at + 2 + i);
            two[0] = uint16_t(code[0] | code[1] << 8), two[1] = uint16_t(code[2] | code[3] << 8);
            return;
        }
        for (unsigned j = 0; j < 4 && i + j < K; j++)
            at[2 + i + j] = code[j];
    }
};

/* One warp a head. */
static __global__ void encode_q8(struct cu_rows r, size_t K, uint8_t *out, bool wide, int *bad)
{
    const size_t heads = r.n / K, row = blockIdx.x / heads, head = blockIdx.x % heads;
    const float *x = r.x + row * r.ldx + head * K;
    const struct record_head to = {out + size_t(blockIdx.x) * (K + 2), K, wide};
    const auto four = [&](size_t i) { return cu_four_at(x, i, K, wide); };
    if (!cu_encode_q8(K, four, to)) *bad = 1;
}

int cu_encode(struct cu *c, const struct cu_rows *r, size_t K, enum cu_type t, void *out, int *bad)
{
    const bool wide =
        (r->ldx | r->n | K) % 4 == 0 &&
        (reinterpret_cast<uintptr_t>(r->x) | reinterpret_cast<uintptr_t>(out)) % 16 == 0;
    if (t == CU_Q8)
        KN_LAUNCH(encode_q8, dim3(unsigned(r->m * (r->n / K))), dim3(CU_WARP), 0, c->stream, *r, K,
                  static_cast<uint8_t *>(out), wide, bad);
    else
        KN_LAUNCH(encode, dim3(unsigned(r->m)), dim3(cu_row_threads(r->n)), 0, c->stream, *r, t,
                  out, wide, bad);
    return cu_launched(c);
}

static __global__ void random_values(struct rng_field f, size_t first, size_t n, float *out)
{
    const size_t step = size_t(gridDim.x) * blockDim.x;
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step)
        out[i] = rng_field_at(&f, first + i);
}

int cu_random(struct cu *c, const struct rng_field *f, size_t first, size_t n, float *out)
{
    KN_LAUNCH(random_values, dim3(cu_blocks(n, 256 * 16)), dim3(256), 0, c->stream, *f, first, n,
              out);
    return cu_launched(c);
}

/* A row finds the piece that has its position, if one has. */
static __global__ void deviation(struct cu_rows r, const int32_t *pos,
                                 const __grid_constant__ struct cu_pieces all, size_t K, bool wide,
                                 float *ret)
{
    const float *x = r.x + size_t(blockIdx.x) * r.ldx;
    const int32_t at = pos[blockIdx.x];
    unsigned p = 0;
    while (p < all.n && uint32_t(at - all.piece[p].pos0) >= all.piece[p].n)
        p++;
    if (p == all.n) return;
    const struct kn_stored &s = all.piece[p];
    wide = wide && reinterpret_cast<uintptr_t>(s.k) % 16 == 0;
    const enum cu_type t = cu_type(s.t);
    const char *row =
        static_cast<const char *>(s.k) + size_t(at - s.pos0) * cu_row_bytes(t, r.n / K, K);
    float apart = 0;
    for (size_t i = size_t(threadIdx.x) * 4; i < r.n; i += size_t(blockDim.x) * 4) {
        const cu_four q = cu_four_at(x, i, r.n, wide),
                      old = cu_stored_four(row, t, i, r.n, K, wide);
        for (unsigned j = 0; j < 4; j++) {
            const float d = q.v[j] - old.v[j];
            apart = fmaf(d, d, apart);
        }
    }
    apart = cu_block_sum(apart);
    if (threadIdx.x == 0) ret[at] = apart;
}

int cu_deviation(struct cu *c, const struct cu_rows *r, const int32_t *pos,
                 const struct cu_pieces *s, size_t K, float *ret)
{
    KN_LAUNCH(deviation, dim3(unsigned(r->m)), dim3(cu_row_threads(r->n)), 0, c->stream, *r, pos,
              *s, K, cu_is_wide(r), ret);
    return cu_launched(c);
}
