/* Rows into sides of products, weights included: see operand.h. */
#include "kernels/cuda/operand.h"

static __global__ void stage(struct cu_rows r, bool wide)
{
    const float *x = r.x + size_t(blockIdx.x) * r.ldx;
    cu_put_row(r, blockIdx.x, wide, [&](size_t i) { return cu_four_at(x, i, r.n, wide); });
}

int cu_stage(struct cu *c, const struct cu_rows *r)
{
    KN_LAUNCH(stage, dim3(unsigned(r->m)), dim3(cu_row_threads(r->n)), 0, c->stream, *r,
              cu_is_wide(r));
    return cu_launched(c);
}

/* Never zeros: products of zeros take less power, hence less time. */
static __global__ void noise(enum cu_type type, void *p, size_t n)
{
    const size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= n) return;
    uint32_t h = uint32_t(i) * 0x9e3779b9u;
    h = (h ^ h >> 15) * 0x85ebca6bu;
    const float x = float((h ^ h >> 13) & 0xffffu) / 32768.0f - 1.0f;
    if (type == CU_F32)
        static_cast<float *>(p)[i] = x;
    else if (type == CU_BF16)
        static_cast<uint16_t *>(p)[i] = cu_f32_bf16(x);
    else if (type == CU_FP8)
        static_cast<uint8_t *>(p)[i] = cu_f32_e4m3(x);
    else
        static_cast<int8_t *>(p)[i] = int8_t(x * 127.0f);
}

int cu_noise(struct cu *c, enum cu_type type, void *p, size_t n)
{
    KN_LAUNCH(noise, dim3(cu_blocks(n, 256)), dim3(256), 0, c->stream, type, p, n);
    return cu_launched(c);
}
