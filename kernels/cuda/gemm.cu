/* Products: cuBLASLt, prepared once for every shape of a call.
 *
 * C [m, n] = A [m, k] W [n, k]^T in rows is C^T = W A^T in columns: both sides have k down their
 * columns, the only form that 8-bit types know. Sums are f32, and int32 for int8 (no TF32: a device
 * of f32 is for exactness); bias and the old C are added inside the product where the library can.
 * Where it cannot (int8; e4m3 where there are no scales a row, that is everywhere but on sm_90),
 * sums go to a room of their own, and finish() scales, adds and stores. int8 sums are exact, so
 * such a row's bits depend on nothing but that row.
 *
 * m is part of a plan's key: equal calls take equal algorithms, so what makes the same calls gives
 * the same bits. So is what the addresses are multiples of: an algorithm reads as widely as it was
 * told that it may, and the library neither asks nor checks when it runs. */
#include "kernels/cuda/operand.h"

#include <cstdio>
#include <cstring>
#if defined(__CUDACC__)
#include <cublasLt.h>
#endif

enum {
    PLANS_MAX = 4096, /* slots, a power of two; three quarters are used */
    BEST_MAX = 1600,
    WORKSPACE = 64 << 20, /* chosen: enough for split-k on Hopper */
    ALIGN = 256           /* what the library expects of addresses unless it is told otherwise */
};
static const size_t ROOM_BYTES = size_t(256) << 20; /* chosen: 1024 rows of the widest weight */

struct plan_key {
    size_t m, n, k, lda, ldc;
    enum cu_type type, out;
    int bias;
    uint32_t align; /* of all addresses, ALIGN at most */
};
struct cu_plan {
    struct plan_key key;
    bool used, refused; /* the library has nothing for it */
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t w, a, c;
    cublasLtMatmulAlgo_t algo;
};
struct cu_best {
    size_t bucket, n, k;
    enum cu_type type, out;
    struct cu_algo algo;
};
static_assert(sizeof(struct cu_algo) == sizeof(cublasLtMatmulAlgo_t), "kept as it is");

static cublasLtHandle_t handle(const struct cu *c)
{
    return static_cast<cublasLtHandle_t>(c->lt);
}

static void forget(struct cu_plan *p)
{
    if (p->desc) (void)cublasLtMatmulDescDestroy(p->desc);
    if (p->w) (void)cublasLtMatrixLayoutDestroy(p->w);
    if (p->a) (void)cublasLtMatrixLayoutDestroy(p->a);
    if (p->c) (void)cublasLtMatrixLayoutDestroy(p->c);
    *p = cu_plan();
}

static void forget_all(struct cu *c)
{
    for (size_t i = 0; c->n_plans > 0 && i < PLANS_MAX; i++)
        if (c->plans[i].used) forget(&c->plans[i]);
    c->n_plans = 0;
}

int cu_lt_open(struct cu *c);
void cu_lt_close(struct cu *c);

int cu_lt_open(struct cu *c)
{
    cublasLtHandle_t h;
    if (cublasLtCreate(&h) != CUBLAS_STATUS_SUCCESS) return -EIO;
    c->lt = h;
    c->plans = static_cast<struct cu_plan *>(mem_zalloc(PLANS_MAX * sizeof(struct cu_plan)));
    c->best = static_cast<struct cu_best *>(mem_zalloc(BEST_MAX * sizeof(struct cu_best)));
    c->workspace = cu_alloc(c, KN_MEM_DEVICE, WORKSPACE);
    return c->plans && c->best && c->workspace ? 0 : -ENOMEM;
}

void cu_lt_close(struct cu *c)
{
    if (c->workspace) cu_free(c, c->workspace, KN_MEM_DEVICE);
    if (c->plans) {
        forget_all(c);
        (void)cublasLtDestroy(handle(c));
    }
    mem_free(c->plans);
    mem_free(c->best);
}

void cu_versions(const struct cu *c, char *ret, size_t size)
{
    int driver = 0;
    (void)cudaDriverGetVersion(&driver);
    snprintf(ret, size, "%s sm_%d driver %d cublaslt %zu", c->name, c->arch, driver,
             size_t(cublasLtGetVersion()));
}

/* ---- what the library is told ---- */

/* Sums leave the product as they are; finish() does the rest. */
static bool is_apart(const struct cu *c, enum cu_type t)
{
    return t == CU_INT8 || (t == CU_FP8 && c->fp8_apart);
}

int cu_gemm_rounds(const struct cu *c, enum cu_type type)
{
    return type != CU_F32 && !is_apart(c, type);
}

/* What both sides are must be read 16 bytes at a time; the result need not (a head of an odd number
 * of words). */
static bool is_aligned(const struct plan_key *k)
{
    if (k->type == CU_F32) return k->lda % 4 == 0 && k->k % 4 == 0;
    if (cu_is_eight(k->type)) return k->k % 16 == 0 && k->n % 16 == 0 && k->ldc % 4 == 0;
    return k->k % 8 == 0;
}

template <class T>
static bool attribute(struct cu_plan *p, cublasLtMatmulDescAttributes_t a, const T &value)
{
    return cublasLtMatmulDescSetAttribute(p->desc, a, &value, sizeof value) ==
           CUBLAS_STATUS_SUCCESS;
}

static bool layout(cublasLtMatrixLayout_t *l, cudaDataType_t t, size_t rows, size_t cols, size_t ld)
{
    return cublasLtMatrixLayoutCreate(l, t, rows, cols, int64_t(ld)) == CUBLAS_STATUS_SUCCESS;
}

/* Addresses that differ from call to call. The library wants to see some before it suggests. */
static bool addresses(struct cu_plan *p, const struct cu_gemm *g, bool by_row)
{
    if (by_row && (!attribute(p, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, g->w.scale) ||
                   !attribute(p, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, g->a.scale)))
        return false;
    return !p->key.bias || attribute(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, g->bias);
}

/* cuBLASLt 12.9 is the first with scales a row. */
#if !defined(CUBLAS_VERSION) || CUBLAS_VERSION >= 120900
static bool scale_by_row(struct cu_plan *p)
{
    const int32_t by_row = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    return attribute(p, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, by_row) &&
           attribute(p, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, by_row);
}
#else
static bool scale_by_row(struct cu_plan *)
{
    return false;
}
#endif

static bool describe(const struct cu *c, struct cu_plan *p, const struct cu_gemm *g)
{
    const struct plan_key *k = &p->key;
    const bool whole = k->type == CU_INT8, by_row = k->type == CU_FP8 && !is_apart(c, k->type);
    const cudaDataType_t side = k->type == CU_INT8   ? CUDA_R_8I
                                : k->type == CU_FP8  ? CUDA_R_8F_E4M3
                                : k->type == CU_BF16 ? CUDA_R_16BF
                                                     : CUDA_R_32F,
                         sum = whole ? CUDA_R_32I : CUDA_R_32F;
    bool ok = cublasLtMatmulDescCreate(&p->desc, whole ? CUBLAS_COMPUTE_32I : CUBLAS_COMPUTE_32F,
                                       sum) == CUBLAS_STATUS_SUCCESS &&
              layout(&p->w, side, k->k, k->n, k->k) && layout(&p->a, side, k->k, k->m, k->lda) &&
              layout(&p->c, k->out == CU_BF16 ? CUDA_R_16BF : sum, k->n, k->m, k->ldc) &&
              attribute(p, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T) &&
              attribute(p, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
    if (ok && k->bias) ok = attribute(p, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    if (ok && by_row) ok = scale_by_row(p);
    return ok && addresses(p, g, by_row);
}

static size_t suggestions(const struct cu *c, const struct cu_plan *p,
                          cublasLtMatmulHeuristicResult_t *ret, int cap)
{
    cublasLtMatmulPreference_t pref;
    static const cublasLtMatmulPreferenceAttributes_t sides[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const size_t room = WORKSPACE;
    const uint32_t align = p->key.align;
    int n = 0;
    if (cublasLtMatmulPreferenceCreate(&pref) != CUBLAS_STATUS_SUCCESS) return 0;
    cublasStatus_t s = cublasLtMatmulPreferenceSetAttribute(
        pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, sizeof room);
    for (size_t i = 0; i < 4 && s == CUBLAS_STATUS_SUCCESS; i++)
        s = cublasLtMatmulPreferenceSetAttribute(pref, sides[i], &align, sizeof align);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatmulAlgoGetHeuristic(handle(c), p->desc, p->w, p->a, p->c, p->c, pref, cap,
                                           ret, &n);
    (void)cublasLtMatmulPreferenceDestroy(pref);
    return s == CUBLAS_STATUS_SUCCESS && n > 0 ? size_t(n) : 0;
}

/* What was tuned for these rows. What was for others is further behind than a first suggestion. */
static struct cu_best *best_of(struct cu *c, const struct plan_key *k)
{
    for (size_t i = 0; i < c->n_best; i++) {
        struct cu_best *b = &c->best[i];
        if (b->n == k->n && b->k == k->k && b->type == k->type && b->out == k->out &&
            b->bucket == cu_bucket(k->m))
            return b;
    }
    return nullptr;
}

/* The tuned algorithm where it runs with just these rows, else the library's first suggestion. It
 * was tuned on blocks of memory, whose addresses nothing limits. */
static bool choose(struct cu *c, struct cu_plan *p)
{
    cublasLtMatmulHeuristicResult_t got;
    const struct cu_best *b = p->key.align == ALIGN ? best_of(c, &p->key) : nullptr;
    if (b) {
        memcpy(&p->algo, &b->algo, sizeof p->algo);
        if (cublasLtMatmulAlgoCheck(handle(c), p->desc, p->w, p->a, p->c, p->c, &p->algo, &got) ==
                CUBLAS_STATUS_SUCCESS &&
            got.workspaceSize <= WORKSPACE)
            return true;
    }
    if (suggestions(c, p, &got, 1) == 0) return false;
    p->algo = got.algo;
    return true;
}

static bool same_key(const struct plan_key *a, const struct plan_key *b)
{
    return a->m == b->m && a->n == b->n && a->k == b->k && a->lda == b->lda && a->ldc == b->ldc &&
           a->type == b->type && a->out == b->out && a->bias == b->bias && a->align == b->align;
}

/* A full table forgets everything: what comes again is prepared again. */
static struct cu_plan *plan_of(struct cu *c, const struct plan_key *k, const struct cu_gemm *g)
{
    size_t h = k->m;
    const size_t parts[] = {k->n,   k->k,     k->lda,
                            k->ldc, k->align, (size_t(k->type) * 8 + k->out) * 2 + size_t(k->bias)};
    for (size_t v : parts)
        h = (h ^ v) * 0x9e3779b97f4a7c15u;
    if (c->n_plans >= PLANS_MAX / 4 * 3) forget_all(c);
    size_t i = (h >> 40) % PLANS_MAX;
    while (c->plans[i].used && !same_key(&c->plans[i].key, k))
        i = (i + 1) % PLANS_MAX;
    struct cu_plan *p = &c->plans[i];
    if (p->used) return p;
    c->n_plans++;
    p->used = true;
    p->key = *k;
    p->refused = !is_aligned(k) || !describe(c, p, g) || !choose(c, p);
    return p;
}

/* Of one call of the library: g has cu_gemm_rows_max() rows at most. */
static struct plan_key key_of(const struct cu *c, const struct cu_gemm *g)
{
    const bool apart = is_apart(c, g->type);
    const void *const addresses[] = {g->a.data, g->w.data, apart ? g->room : g->c};
    uintptr_t all = ALIGN;
    for (const void *p : addresses)
        all |= reinterpret_cast<uintptr_t>(p);
    return {cu_rows_room(apart ? g->type : CU_F32, g->m),
            g->n,
            g->k,
            g->type == CU_F32 ? g->lda : g->k,
            apart ? g->n : g->ldc,
            g->type,
            g->out,
            g->bias && !cu_is_eight(g->type),
            uint32_t(all & (~all + 1))};
}

int cu_gemm_suggest(struct cu *c, const struct cu_gemm *g, struct cu_algo *ret, size_t cap,
                    size_t *ret_n)
{
    enum { MOST = 32 };
    cublasLtMatmulHeuristicResult_t got[MOST];
    struct cu_plan p = {};
    struct cu_gemm with = *g; /* scales, which nobody reads: the library looks if there are any */
    with.a.scale = with.w.scale = static_cast<float *>(c->workspace);
    p.key = key_of(c, g);
    *ret_n = is_aligned(&p.key) && describe(c, &p, &with)
                 ? suggestions(c, &p, got, int(cap < MOST ? cap : size_t(MOST)))
                 : 0;
    for (size_t i = 0; i < *ret_n; i++)
        memcpy(&ret[i], &got[i].algo, sizeof ret[i]);
    forget(&p);
    return 0;
}

int cu_gemm_prefer(struct cu *c, const struct cu_gemm *g, const struct cu_algo *algo)
{
    const struct plan_key k = key_of(c, g);
    struct cu_best *b = best_of(c, &k);
    forget_all(c);
    if (!algo) {
        if (b) *b = c->best[--c->n_best];
        return 0;
    }
    if (!b && c->n_best == BEST_MAX) return -ENOSPC;
    if (!b) b = &c->best[c->n_best++];
    *b = {cu_bucket(k.m), k.n, k.k, k.type, k.out, *algo};
    return 0;
}

/* ---- sides and rooms ---- */

static size_t scale_at(enum cu_type t, size_t rows, size_t k)
{
    return (cu_rows_room(t, rows) * k * cu_value_bytes(t) + 255) / 256 * 256;
}

size_t cu_side_bytes(enum cu_type t, size_t rows, size_t k)
{
    return scale_at(t, rows, k) + (cu_is_eight(t) ? rows * sizeof(float) : 0);
}

struct cu_side cu_side_at(enum cu_type t, size_t rows, size_t k, void *at)
{
    char *p = static_cast<char *>(at);
    return {p, cu_is_eight(t) ? reinterpret_cast<float *>(p + scale_at(t, rows, k)) : nullptr};
}

size_t cu_gemm_rows_max(const struct cu *c, enum cu_type type, size_t n)
{
    if (!is_apart(c, type)) return SIZE_MAX;
    size_t rows = 4096;
    while (rows > 128 && rows * n * 4 > ROOM_BYTES)
        rows /= 2;
    return rows;
}

size_t cu_gemm_room(const struct cu *c, const struct cu_gemm *g)
{
    if (!is_apart(c, g->type)) return 0;
    const size_t rows = cu_rows_room(g->type, g->m), most = cu_gemm_rows_max(c, g->type, g->n);
    return (rows < most ? rows : most) * g->n * 4;
}

/* ---- kernels ---- */

/* For shapes that the library refuses (odd sizes): one thread, one output. lda in values. */
template <class T, class Sum> static __global__ void product(struct cu_gemm g, size_t lda)
{
    const size_t j = size_t(blockIdx.x) * blockDim.x + threadIdx.x, i = blockIdx.y;
    if (j >= g.n) return;
    const T *a = static_cast<const T *>(g.a.data) + i * lda;
    const T *w = static_cast<const T *>(g.w.data) + j * g.k;
    Sum sum = 0;
    for (size_t d = 0; d < g.k; d++)
        sum += Sum(cu_value(a[d])) * Sum(cu_value(w[d]));
    float out = float(sum);
    if (g.a.scale) out *= g.a.scale[i] * g.w.scale[j];
    if (g.bias) out += g.bias[j];
    const size_t to = i * g.ldc + j;
    float *c = static_cast<float *>(g.c) + to;
    if (g.out == CU_BF16)
        static_cast<uint16_t *>(g.c)[to] = cu_f32_bf16(out);
    else
        *c = g.accumulate ? *c + out : out;
}

static __device__ __forceinline__ bool is_wide(const void *p)
{
    return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

/* The same from a product's sums in g.room, stride n: four outputs a thread, to which n and ldc are
 * multiples. */
template <class Sum> static __global__ void finish(struct cu_gemm g)
{
    const size_t j = (size_t(blockIdx.x) * blockDim.x + threadIdx.x) * 4, i = blockIdx.y;
    if (j >= g.n) return;
    float *c = static_cast<float *>(g.c) + i * g.ldc + j;
    const cu_four scale = cu_four_at(g.w.scale, j, g.n, true);
    cu_four out = cu_four_at(static_cast<const float *>(g.room), i * g.n + j, SIZE_MAX, true);
    cu_four more = {{0, 0, 0, 0}}, old = more;
    if (g.bias) more = cu_four_at(g.bias, j, g.n, is_wide(g.bias));
    if (g.accumulate) old = cu_four_at(c, 0, 4, is_wide(c));
    Sum sum[4];
    memcpy(sum, out.v, sizeof sum);
    for (unsigned x = 0; x < 4; x++) {
        const float scaled = float(sum[x]) * (g.a.scale[i] * scale.v[x]);
        out.v[x] = old.v[x] + (scaled + more.v[x]);
    }
    cu_put_four<float, float4>(c, 0, 4, is_wide(c), out.v);
}

/* Products of e4m3 take a bias of bf16 only: ours is added behind them. */
static __global__ void add_bias(struct cu_gemm g)
{
    const size_t j = size_t(blockIdx.x) * blockDim.x + threadIdx.x, i = blockIdx.y;
    if (j < g.n) static_cast<float *>(g.c)[i * g.ldc + j] += g.bias[j];
}

/* Rows [row0, row0 + m) of a product. */
static struct cu_gemm rows_of(const struct cu_gemm *g, size_t row0, size_t m)
{
    struct cu_gemm part = *g;
    const size_t stride = g->type == CU_F32 ? g->lda : g->k;
    part.a.data = static_cast<char *>(g->a.data) + row0 * stride * cu_value_bytes(g->type);
    if (g->a.scale) part.a.scale = g->a.scale + row0;
    part.c = static_cast<char *>(g->c) + row0 * g->ldc * cu_value_bytes(g->out);
    part.m = m;
    return part;
}

static const size_t GRID_Y_MAX = 32768;
enum { THREADS_OUT = 128 };

static dim3 grid_of(const struct cu_gemm *g)
{
    return dim3(cu_blocks(g->n, THREADS_OUT), unsigned(g->m));
}

/* What fits one grid. */
static struct cu_gemm slice_of(const struct cu_gemm *g, size_t row0)
{
    return rows_of(g, row0, g->m - row0 < GRID_Y_MAX ? g->m - row0 : GRID_Y_MAX);
}

static void plain(struct cu *c, const struct cu_gemm *g)
{
    for (size_t i = 0; i < g->m; i += GRID_Y_MAX) {
        const struct cu_gemm part = slice_of(g, i);
        const dim3 grid = grid_of(&part), block(THREADS_OUT);
        if (g->type == CU_INT8)
            KN_LAUNCH((product<int8_t, int32_t>), grid, block, 0, c->stream, part, g->k);
        else if (g->type == CU_FP8)
            KN_LAUNCH((product<cu_e4m3, float>), grid, block, 0, c->stream, part, g->k);
        else if (g->type == CU_BF16)
            KN_LAUNCH((product<uint16_t, float>), grid, block, 0, c->stream, part, g->k);
        else
            KN_LAUNCH((product<float, float>), grid, block, 0, c->stream, part, g->lda);
    }
}

/* ---- calls ---- */

static bool call(struct cu *c, const struct cu_plan *p, const struct cu_gemm *g, const void *alpha,
                 const void *beta, void *out)
{
    return cublasLtMatmul(handle(c), p->desc, alpha, g->w.data, p->w, g->a.data, p->a, beta, out,
                          p->c, out, p->c, &p->algo, c->workspace, WORKSPACE,
                          c->stream) == CUBLAS_STATUS_SUCCESS;
}

static bool inside(struct cu *c, struct cu_plan *p, const struct cu_gemm *g)
{
    const float one = 1, keep = g->accumulate ? 1.0f : 0.0f;
    const bool fp8 = g->type == CU_FP8;
    if (!addresses(p, g, fp8) || !call(c, p, g, &one, &keep, g->c)) return false;
    for (size_t i = 0; fp8 && g->bias && i < g->m; i += GRID_Y_MAX) {
        const struct cu_gemm part = slice_of(g, i);
        KN_LAUNCH(add_bias, grid_of(&part), dim3(THREADS_OUT), 0, c->stream, part);
    }
    return true;
}

static bool apart(struct cu *c, const struct cu_plan *p, const struct cu_gemm *g)
{
    const int32_t i_one = 1, i_none = 0;
    const float one = 1, none = 0;
    const bool whole = g->type == CU_INT8;
    if (!call(c, p, g, whole ? static_cast<const void *>(&i_one) : &one,
              whole ? static_cast<const void *>(&i_none) : &none, g->room))
        return false;
    const dim3 grid(cu_blocks(g->n, 4 * THREADS_OUT), unsigned(g->m));
    if (whole)
        KN_LAUNCH(finish<int32_t>, grid, dim3(THREADS_OUT), 0, c->stream, *g);
    else
        KN_LAUNCH(finish<float>, grid, dim3(THREADS_OUT), 0, c->stream, *g);
    return true;
}

/* What was chosen does not run: the library has others. */
static bool by_another(struct cu *c, struct cu_plan *p, const struct cu_gemm *g)
{
    enum { OTHERS = 8 };
    cublasLtMatmulHeuristicResult_t got[OTHERS];
    const size_t n = p->desc ? suggestions(c, p, got, OTHERS) : 0;
    for (size_t i = 0; i < n; i++) {
        p->algo = got[i].algo;
        if (is_apart(c, g->type) ? apart(c, p, g) : inside(c, p, g)) return true;
    }
    return false;
}

/* By our own kernel, and remembered if it was the library's to do. */
static void by_ours(struct cu *c, const struct cu_plan *p, const struct cu_gemm *g)
{
    plain(c, g);
    if (!is_aligned(&p->key)) return;
    c->refused[1] = g->m, c->refused[2] = g->n, c->refused[3] = g->k;
    c->refused[0]++;
}

uint64_t cu_gemm_refusals(const struct cu *c, size_t (*ret)[3])
{
    for (int i = 0; i < 3; i++)
        (*ret)[i] = c->refused[1 + i];
    return c->refused[0];
}

int cu_gemm(struct cu *c, const struct cu_gemm *g)
{
    const size_t most = cu_gemm_rows_max(c, g->type, g->n);
    if (c->lost) return -EIO;
    if (g->out != CU_F32 && (!cu_gemm_rounds(c, g->type) || g->bias || g->accumulate))
        return -EINVAL;
    for (size_t i = 0; i < g->m; i += most) {
        const size_t m = g->m - i < most ? g->m - i : most;
        const struct cu_gemm part = rows_of(g, i, m);
        const struct plan_key k = key_of(c, &part);
        struct cu_plan *p = plan_of(c, &k, &part);
        /* A refusal has written nothing; a device that is lost says so below. One that may come
         * from being recorded says nothing of the shape. */
        bool done =
            !p->refused && (is_apart(c, g->type) ? apart(c, p, &part) : inside(c, p, &part));
        if (!done && !p->refused && c->recording) return -EIO;
        if (!done && !p->refused) done = by_another(c, p, &part);
        p->refused = !done;
        if (p->refused) by_ours(c, p, &part);
        if (m == g->m) break;
    }
    return cu_launched(c);
}

/* Asked of a product of usual size. e4m3 has a scale a row on sm_90 alone. */
int cu_gemm_open(struct cu *c, enum cu_type type, char *msg, size_t msg_size)
{
    struct cu_gemm g = {};
    struct cu_algo algo;
    size_t n = 0;
    g.type = type;
    g.m = g.n = g.k = g.lda = g.ldc = 256;
    if (type == CU_FP8 && c->arch < 89) {
        snprintf(msg, msg_size,
                 "weights in fp8 need a GPU of compute capability 8.9 or later (this one: %d.%d); "
                 "int8 works here",
                 c->arch / 10, c->arch % 10);
        return -ENOTSUP;
    }
    int r = cu_gemm_suggest(c, &g, &algo, 1, &n);
    if (r == 0 && n == 0 && type == CU_FP8) {
        c->fp8_apart = true;
        r = cu_gemm_suggest(c, &g, &algo, 1, &n);
    }
    if (r < 0 || n > 0) return r;
    snprintf(msg, msg_size, "cuBLASLt has no products of %s for this GPU (sm_%d)",
             type == CU_FP8    ? "fp8"
             : type == CU_INT8 ? "int8"
                               : "this type",
             c->arch);
    return -ENOTSUP;
}
