/* Products: cuBLASLt, its first suggestion remembered by shape.
 *
 * C [m, n] = A [m, k] W [n, k]^T in rows is C^T = W A^T in columns: both operands have k down their
 * columns. A device of bf16 rounds A on the way into `stage`; sums are f32 (no TF32: a device of
 * f32 is for exactness). m is part of the key: equal calls take equal algorithms, so what makes the
 * same calls gives the same bits. */
#include "kernels/cuda/cuda.h"

#include <cstring>
#if defined(__CUDACC__)
#include <cublasLt.h>
#endif

struct cu_pick {
    size_t m, n, k, lda, ldc;
    int bias;
    cublasLtMatmulAlgo_t algo;
};
enum { PICKS_MAX = 4096, WORKSPACE = 32 << 20 }; /* chosen: enough for split-k on Hopper */

int cu_lt_open(struct cu *c);
void cu_lt_close(struct cu *c);

int cu_lt_open(struct cu *c)
{
    cublasLtHandle_t h;
    if (cublasLtCreate(&h) != CUBLAS_STATUS_SUCCESS) return -EIO;
    c->lt = h;
    c->picks = static_cast<struct cu_pick *>(mem_zalloc(PICKS_MAX * sizeof(struct cu_pick)));
    c->workspace = cu_alloc(c, CU_DEVICE, WORKSPACE);
    return c->picks && c->workspace ? 0 : -ENOMEM;
}

void cu_lt_close(struct cu *c)
{
    if (c->workspace) cu_free(c, c->workspace, CU_DEVICE);
    if (c->picks) (void)cublasLtDestroy(static_cast<cublasLtHandle_t>(c->lt));
    mem_free(c->picks);
}

static __global__ void round_rows(const float *a, size_t lda, size_t k, uint16_t *out)
{
    const float *x = a + size_t(blockIdx.x) * lda;
    for (size_t i = threadIdx.x; i < k; i += blockDim.x)
        out[size_t(blockIdx.x) * k + i] = cu_f32_bf16(x[i]);
}

/* For shapes that the library refuses (odd sizes in bf16): one thread, one output. */
template <class T> static __global__ void product(struct cu_gemm g)
{
    const size_t j = size_t(blockIdx.x) * blockDim.x + threadIdx.x, i = blockIdx.y;
    if (j >= g.n) return;
    const float *a = g.a + i * g.lda;
    const T *w = static_cast<const T *>(g.w) + j * g.k;
    float sum = g.bias ? g.bias[j] : 0.0f;
    if (g.accumulate) sum += g.c[i * g.ldc + j];
    for (size_t d = 0; d < g.k; d++)
        sum += (sizeof(T) == 4 ? a[d] : cu_bf16_f32(cu_f32_bf16(a[d]))) * cu_value(w[d]);
    g.c[i * g.ldc + j] = sum;
}

static int plain(struct cu *c, const struct cu_gemm *g)
{
    for (size_t i = 0; i < g->m; i += 32768) {
        struct cu_gemm part = *g;
        part.a += i * g->lda;
        part.c += i * g->ldc;
        part.m = g->m - i < 32768 ? g->m - i : 32768;
        const dim3 grid(cu_blocks(g->n, 128), unsigned(part.m));
        if (c->type == CU_BF16)
            KN_LAUNCH(product<uint16_t>, grid, dim3(128), 0, c->stream, part);
        else
            KN_LAUNCH(product<float>, grid, dim3(128), 0, c->stream, part);
    }
    return cu_launched(c);
}

struct lt_call {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t w, a, c;
};

static bool describe(struct lt_call *t, const struct cu *c, const struct cu_gemm *g)
{
    const cublasOperation_t yes = CUBLAS_OP_T, no = CUBLAS_OP_N;
    const cublasLtEpilogue_t add = CUBLASLT_EPILOGUE_BIAS;
    const cudaDataType_t type = c->type == CU_BF16 ? CUDA_R_16BF : CUDA_R_32F;
    const size_t lda = c->type == CU_BF16 ? g->k : g->lda;
    bool ok = cublasLtMatmulDescCreate(&t->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) == 0 &&
              cublasLtMatrixLayoutCreate(&t->w, type, g->k, g->n, int64_t(g->k)) == 0 &&
              cublasLtMatrixLayoutCreate(&t->a, type, g->k, g->m, int64_t(lda)) == 0 &&
              cublasLtMatrixLayoutCreate(&t->c, CUDA_R_32F, g->n, g->m, int64_t(g->ldc)) == 0;
    if (!ok) return false;
    ok = cublasLtMatmulDescSetAttribute(t->desc, CUBLASLT_MATMUL_DESC_TRANSA, &yes, sizeof yes) ==
             0 &&
         cublasLtMatmulDescSetAttribute(t->desc, CUBLASLT_MATMUL_DESC_TRANSB, &no, sizeof no) == 0;
    if (ok && g->bias)
        ok = cublasLtMatmulDescSetAttribute(t->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &add,
                                            sizeof add) == 0 &&
             cublasLtMatmulDescSetAttribute(t->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &g->bias,
                                            sizeof g->bias) == 0;
    return ok;
}

static void forget(struct lt_call *t)
{
    if (t->desc) (void)cublasLtMatmulDescDestroy(t->desc);
    if (t->w) (void)cublasLtMatrixLayoutDestroy(t->w);
    if (t->a) (void)cublasLtMatrixLayoutDestroy(t->a);
    if (t->c) (void)cublasLtMatrixLayoutDestroy(t->c);
}

/* The remembered algorithm, or the library's first suggestion; NULL when it has none. A full table
 * forgets everything: what comes again is asked again. */
static const cublasLtMatmulAlgo_t *pick(struct cu *c, const struct cu_gemm *g,
                                        const struct lt_call *t)
{
    for (size_t i = 0; i < c->n_picks; i++) {
        const struct cu_pick *p = &c->picks[i];
        if (p->m == g->m && p->n == g->n && p->k == g->k && p->lda == g->lda && p->ldc == g->ldc &&
            p->bias == (g->bias != nullptr))
            return &p->algo;
    }
    cublasLtMatmulPreference_t pref;
    cublasLtMatmulHeuristicResult_t got;
    const size_t room = WORKSPACE;
    int n = 0;
    if (cublasLtMatmulPreferenceCreate(&pref) != CUBLAS_STATUS_SUCCESS) return nullptr;
    (void)cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                               &room, sizeof room);
    cublasStatus_t s = cublasLtMatmulAlgoGetHeuristic(static_cast<cublasLtHandle_t>(c->lt), t->desc,
                                                      t->w, t->a, t->c, t->c, pref, 1, &got, &n);
    (void)cublasLtMatmulPreferenceDestroy(pref);
    if (s != CUBLAS_STATUS_SUCCESS || n == 0) return nullptr;
    if (c->n_picks == PICKS_MAX) c->n_picks = 0;
    struct cu_pick *p = &c->picks[c->n_picks++];
    *p = {g->m, g->n, g->k, g->lda, g->ldc, g->bias != nullptr, got.algo};
    return &p->algo;
}

int cu_gemm(struct cu *c, const struct cu_gemm *g)
{
    const float one = 1, keep = g->accumulate ? 1.0f : 0.0f;
    struct lt_call t = {};
    if (c->lost) return -EIO;
    const bool aligned = g->k % 8 == 0 && g->lda % 4 == 0 && g->ldc % 4 == 0;
    const cublasLtMatmulAlgo_t *algo = aligned && describe(&t, c, g) ? pick(c, g, &t) : nullptr;
    if (!algo) {
        forget(&t);
        return plain(c, g);
    }
    const void *a = g->a;
    if (c->type == CU_BF16) {
        KN_LAUNCH(round_rows, dim3(unsigned(g->m)), dim3(g->k >= 1024 ? 256 : 64), 0, c->stream,
                  g->a, g->lda, g->k, static_cast<uint16_t *>(g->stage));
        a = g->stage;
    }
    cublasStatus_t s =
        cublasLtMatmul(static_cast<cublasLtHandle_t>(c->lt), t.desc, &one, g->w, t.w, a, t.a, &keep,
                       g->c, t.c, g->c, t.c, algo, c->workspace, WORKSPACE, c->stream);
    forget(&t);
    if (s != CUBLAS_STATUS_SUCCESS) {
        c->lost = true;
        return -EIO;
    }
    return cu_launched(c);
}
