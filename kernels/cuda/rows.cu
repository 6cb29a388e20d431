/* Row operations: one block a row (of 32 threads where rows are short), fixed order of sums. */
#include "kernels/cuda/cuda.h"

static unsigned row_threads(size_t n)
{
    return n >= 1024 ? 256 : n >= 256 ? 64 : CU_WARP;
}

/* In place as well: a row is read whole before it is written. */
static __global__ void rmsnorm(struct cu_rows r, size_t heads, const float *weight, float eps)
{
    const size_t row = blockIdx.x / heads, head = blockIdx.x % heads;
    const float *x = r.x + row * r.ldx + head * r.n;
    float *out = r.out + row * r.ldo + head * r.n;
    float sum = 0;
    for (size_t i = threadIdx.x; i < r.n; i += blockDim.x)
        sum = fmaf(x[i], x[i], sum);
    const float inv = 1.0f / sqrtf(cu_block_sum(sum) / float(r.n) + eps);
    for (size_t i = threadIdx.x; i < r.n; i += blockDim.x)
        out[i] = x[i] * inv * weight[i];
}

int cu_rmsnorm(struct cu *c, const struct cu_rows *r, size_t heads, const float *weight, float eps)
{
    KN_LAUNCH(rmsnorm, dim3(unsigned(r->m * heads)), dim3(row_threads(r->n)), 0, c->stream, *r,
              heads, weight, eps);
    return cu_launched(c);
}

static __global__ void swiglu(struct cu_rows r)
{
    const float *x = r.x + size_t(blockIdx.x) * r.ldx;
    float *out = r.out + size_t(blockIdx.x) * r.ldo;
    for (size_t i = threadIdx.x; i < r.n; i += blockDim.x)
        out[i] = x[i] / (1.0f + expf(-x[i])) * x[r.n + i];
}

int cu_swiglu(struct cu *c, const struct cu_rows *r)
{
    KN_LAUNCH(swiglu, dim3(unsigned(r->m)), dim3(row_threads(r->n)), 0, c->stream, *r);
    return cu_launched(c);
}

static __global__ void gather(struct cu_rows r, const int32_t *idx)
{
    const float *x = r.x + size_t(idx[blockIdx.x]) * r.ldx;
    float *out = r.out + size_t(blockIdx.x) * r.ldo;
    for (size_t i = threadIdx.x; i < r.n; i += blockDim.x)
        out[i] = x[i];
}

int cu_gather(struct cu *c, const struct cu_rows *r, const int32_t *idx)
{
    KN_LAUNCH(gather, dim3(unsigned(r->m)), dim3(row_threads(r->n)), 0, c->stream, *r, idx);
    return cu_launched(c);
}

template <class T>
static __global__ void embed(const T *w, size_t n_rows, const int32_t *id, struct cu_rows r,
                             int *fault)
{
    const int32_t at = id[blockIdx.x];
    if (at < 0 || size_t(at) >= n_rows) {
        *fault = 1;
        return;
    }
    for (size_t i = threadIdx.x; i < r.n; i += blockDim.x)
        r.out[size_t(blockIdx.x) * r.ldo + i] = cu_value(w[size_t(at) * r.n + i]);
}

int cu_embed(struct cu *c, const void *w, size_t n_rows, const int32_t *id, const struct cu_rows *r)
{
    const dim3 grid(unsigned(r->m)), block(row_threads(r->n));
    if (c->type == CU_BF16)
        KN_LAUNCH(embed<uint16_t>, grid, block, 0, c->stream, static_cast<const uint16_t *>(w),
                  n_rows, id, *r, c->fault);
    else
        KN_LAUNCH(embed<float>, grid, block, 0, c->stream, static_cast<const float *>(w), n_rows,
                  id, *r, c->fault);
    return cu_launched(c);
}

/* ---- number formats ---- */

static __global__ void encode(struct cu_rows r, enum cu_type t, void *out, int *bad)
{
    const float *x = r.x + size_t(blockIdx.x) * r.ldx;
    const size_t to = size_t(blockIdx.x) * r.n;
    for (size_t i = threadIdx.x; i < r.n; i += blockDim.x) {
        if (t == CU_F32) {
            static_cast<float *>(out)[to + i] = x[i];
        } else if (t == CU_BF16) {
            static_cast<uint16_t *>(out)[to + i] = cu_f32_bf16(x[i]);
        } else {
            if (!(fabsf(x[i]) < 65520.0f)) *bad = 1;
            static_cast<uint16_t *>(out)[to + i] = cu_f32_f16(x[i]);
        }
    }
}

/* One warp a head: f16 of the largest magnitude, rounded towards zero, then the steps. */
static __global__ void encode_q8(struct cu_rows r, size_t K, uint8_t *out, int *bad)
{
    const size_t heads = r.n / K, row = blockIdx.x / heads, head = blockIdx.x % heads;
    const float *x = r.x + row * r.ldx + head * K;
    uint8_t *to = out + size_t(blockIdx.x) * (K + 2);
    float top = 0;
    bool odd = false;
    for (size_t i = threadIdx.x; i < K; i += CU_WARP) {
        odd = odd || !(fabsf(x[i]) < 65520.0f);
        top = fmaxf(top, fabsf(x[i]));
    }
    if (__ballot_sync(CU_ALL, odd)) {
        *bad = 1;
        return;
    }
    top = cu_warp_max(top);
    uint16_t h = cu_f32_f16(top);
    if (cu_f16_f32(h) > top) h--;
    const float step = cu_f16_f32(h), inv = step > 0 ? 127.0f / step : 0.0f;
    if (threadIdx.x == 0) to[0] = uint8_t(h & 0xff), to[1] = uint8_t(h >> 8);
    for (size_t i = threadIdx.x; i < K; i += CU_WARP)
        to[2 + i] = uint8_t(int8_t(rintf(fmaxf(fminf(x[i] * inv, 127.0f), -127.0f))));
}

int cu_encode(struct cu *c, const struct cu_rows *r, size_t K, enum cu_type t, void *out, int *bad)
{
    if (t == CU_Q8)
        KN_LAUNCH(encode_q8, dim3(unsigned(r->m * (r->n / K))), dim3(CU_WARP), 0, c->stream, *r, K,
                  static_cast<uint8_t *>(out), bad);
    else
        KN_LAUNCH(encode, dim3(unsigned(r->m)), dim3(row_threads(r->n)), 0, c->stream, *r, t, out,
                  bad);
    return cu_launched(c);
}

static __global__ void decode(const void *x, size_t n, size_t K, enum cu_type t, float *out)
{
    const size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n) out[i] = cu_stored(x, t, i, K);
}

int cu_decode(struct cu *c, const void *x, size_t n, size_t K, enum cu_type t, float *out)
{
    KN_LAUNCH(decode, dim3(cu_blocks(n, 256)), dim3(256), 0, c->stream, x, n, K, t, out);
    return cu_launched(c);
}

static __global__ void pack_bf16(const float *x, size_t n, uint16_t *out)
{
    const size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n) out[i] = cu_f32_bf16(x[i]);
}

int cu_pack(struct cu *c, const float *rows, size_t n, float *stage, void *out)
{
    if (c->type != CU_BF16) return cu_copy(c, out, rows, n * sizeof(float));
    int r = cu_copy(c, stage, rows, n * sizeof(float));
    if (r < 0) return r;
    KN_LAUNCH(pack_bf16, dim3(cu_blocks(n, 256)), dim3(256), 0, c->stream, stage, n,
              static_cast<uint16_t *>(out));
    return cu_launched(c);
}

/* ---- what changed ---- */

static __global__ void distance(struct cu_rows r, const char *b, enum cu_type t, size_t K,
                                int relative, float *ret)
{
    const float *x = r.x + size_t(blockIdx.x) * r.ldx;
    const char *row = b ? b + size_t(blockIdx.x) * cu_row_bytes(t, r.n / K, K) : nullptr;
    float apart = 0, own = 0;
    for (size_t i = threadIdx.x; i < r.n; i += blockDim.x) {
        const float d = x[i] - (row ? cu_stored(row, t, i, K) : 0.0f);
        apart = fmaf(d, d, apart);
        own = fmaf(x[i], x[i], own);
    }
    apart = cu_block_sum(apart);
    if (relative) own = cu_block_sum(own);
    if (threadIdx.x != 0) return;
    if (!relative)
        ret[blockIdx.x] = apart;
    else if (own > 0)
        ret[blockIdx.x] += sqrtf(apart) / sqrtf(own);
}

int cu_distance(struct cu *c, const struct cu_rows *r, const void *b, enum cu_type t, size_t K,
                int relative, float *ret)
{
    KN_LAUNCH(distance, dim3(unsigned(r->m)), dim3(row_threads(r->n)), 0, c->stream, *r,
              static_cast<const char *>(b), t, K, relative, ret);
    return cu_launched(c);
}
