/* The products of hostcuda.h: cuBLASLt on plain loops.
 *
 * Every output is one sum in one order whatever the other rows and columns, an order for each
 * algorithm. There is number 0 alone until tests ask for more: by hostcuda_algorithms(), of which
 * the tuning may choose, or for whole programs by KVBLEND_HOSTCUDA=algorithms=N, of which a shape
 * has one, by the seed: as on a device other rows take other algorithms, but whichever was timed
 * fastest would be another one in each run. Thread: as hostcuda.h. */
#include "tests/doubles/hostcuda/hostcuda.h"

#include <vector>

using namespace hostcuda;

struct hostcuda_matmul {
    cublasComputeType_t compute;
    cublasOperation_t op_a, op_b;
    cublasLtEpilogue_t epilogue;
    const float *bias, *a_scale, *b_scale;
    int32_t a_mode, b_mode;
};
struct hostcuda_layout {
    cudaDataType_t type;
    uint64_t rows, cols;
    int64_t ld;
};
struct hostcuda_preference {
    size_t workspace;
    uint32_t align[4]; /* of both sides, and of the result as it was and will be */
};

enum { ALGORITHMS_MAX = 8, SLOWER = 6 };
static unsigned n_algorithms = 1, best_algorithm;
static unsigned long n_ran[ALGORITHMS_MAX];

/* The library suggests n algorithms from now on; all but one take six times as long. */
extern "C" __attribute__((visibility("default"))) void hostcuda_algorithms(unsigned n,
                                                                           unsigned best)
{
    n_algorithms = n < ALGORITHMS_MAX ? n : unsigned(ALGORITHMS_MAX);
    best_algorithm = best;
}

static uint64_t first_of(const hostcuda_layout *a, const hostcuda_layout *b)
{
    const unsigned most = ALGORITHMS_MAX, n = mode.algorithms < most ? mode.algorithms : most;
    const uint64_t shape = a->cols << 42 ^ a->rows << 21 ^ b->cols;
    return n ? std::mt19937_64(mode.seed ^ shape)() % n : 0;
}

/* Those whose bit is set are suggested and do not run. */
static unsigned refusing;
extern "C" __attribute__((visibility("default"))) void hostcuda_refuse(unsigned algorithms)
{
    refusing = algorithms;
}

extern "C" __attribute__((visibility("default"))) unsigned long hostcuda_ran(unsigned algorithm)
{
    return n_ran[algorithm];
}

size_t cublasLtGetVersion()
{
    return 130000;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *h)
{
    *h = nullptr;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t)
{
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t c,
                                        cudaDataType_t)
{
    *d = new hostcuda_matmul();
    (*d)->compute = c;
    (*d)->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
    delete d;
    return CUBLAS_STATUS_SUCCESS;
}

static void *place_of(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t a)
{
    const struct {
        cublasLtMatmulDescAttributes_t name;
        void *at;
    } places[] = {{CUBLASLT_MATMUL_DESC_TRANSA, &d->op_a},
                  {CUBLASLT_MATMUL_DESC_TRANSB, &d->op_b},
                  {CUBLASLT_MATMUL_DESC_EPILOGUE, &d->epilogue},
                  {CUBLASLT_MATMUL_DESC_BIAS_POINTER, &d->bias},
                  {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &d->a_scale},
                  {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &d->b_scale},
                  {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &d->a_mode},
                  {CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &d->b_mode}};
    for (const auto &p : places)
        if (p.name == a) return p.at;
    return nullptr;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
                                              cublasLtMatmulDescAttributes_t a, const void *v,
                                              size_t bytes)
{
    void *to = place_of(d, a);
    if (!to) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, v, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType_t t,
                                          uint64_t rows, uint64_t cols, int64_t ld)
{
    if (ld < int64_t(rows)) return CUBLAS_STATUS_INVALID_VALUE;
    *l = new hostcuda_layout{t, rows, cols, ld};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    delete l;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p)
{
    *p = new hostcuda_preference{0, {256, 256, 256, 256}};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    delete p;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t a,
                                                    const void *v, size_t bytes)
{
    if (a == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        memcpy(&p->workspace, v, bytes);
    else
        memcpy(&p->align[a - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], v, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

static bool fits(const hostcuda_matmul *d, const hostcuda_layout *a, const hostcuda_layout *b,
                 const hostcuda_layout *o)
{
    if (d->op_a != CUBLAS_OP_T || d->op_b != CUBLAS_OP_N || a->rows != b->rows ||
        o->rows != a->cols || o->cols != b->cols || a->type != b->type)
        return false;
    if (a->type == CUDA_R_8I)
        return d->compute == CUBLAS_COMPUTE_32I && o->type == CUDA_R_32I && a->ld % 4 == 0 &&
               b->cols >= 32 && d->epilogue == CUBLASLT_EPILOGUE_DEFAULT;
    const bool rounds =
        o->type == CUDA_R_16BF && a->type != CUDA_R_32F && d->epilogue == CUBLASLT_EPILOGUE_DEFAULT;
    if (d->compute != CUBLAS_COMPUTE_32F || (o->type != CUDA_R_32F && !rounds)) return false;
    if (a->type != CUDA_R_8F_E4M3) return true;
    const bool by_row = d->a_mode == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    return arch >= 89 && (arch == 90 || !by_row) && d->a_mode == d->b_mode && a->ld % 16 == 0 &&
           a->cols % 16 == 0 && d->epilogue == CUBLASLT_EPILOGUE_DEFAULT;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t d,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t o,
                                              cublasLtMatmulPreference_t p, int want,
                                              cublasLtMatmulHeuristicResult_t *r, int *n)
{
    const bool by_row = d->a_mode == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    if (!fits(d, a, b, o) || (by_row && (!d->a_scale || !d->b_scale)))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    const uint64_t first = first_of(a, b);
    const unsigned all = mode.algorithms ? 1 : n_algorithms;
    for (*n = 0; *n < want && unsigned(*n) < all; ++*n) {
        r[*n] = cublasLtMatmulHeuristicResult_t();
        r[*n].algo.data[0] = first + uint64_t(*n);
        for (int i = 0; i < 4; i++)
            r[*n].algo.data[1 + i] = p->align[i];
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t d,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t o,
                                       const cublasLtMatmulAlgo_t *algo,
                                       cublasLtMatmulHeuristicResult_t *r)
{
    *r = cublasLtMatmulHeuristicResult_t();
    return fits(d, a, b, o) && algo->data[0] < ALGORITHMS_MAX && algo->data[1] > 0
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_NOT_SUPPORTED;
}

/* From the definition of e4m3: nobody else's code. */
static float e4m3(uint8_t b)
{
    const int exponent = b >> 3 & 15, fraction = b & 7;
    const float mag = (b & 127) == 127 ? NAN
                      : exponent == 0  ? ldexpf(float(fraction), -9)
                                       : ldexpf(float(8 + fraction), exponent - 10);
    return b & 128 ? -mag : mag;
}

static void widen(const void *p, cudaDataType_t t, size_t at0, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) {
        if (t == CUDA_R_32F) {
            out[i] = static_cast<const float *>(p)[at0 + i];
        } else if (t == CUDA_R_8F_E4M3) {
            out[i] = e4m3(static_cast<const uint8_t *>(p)[at0 + i]);
        } else {
            const uint32_t bits = uint32_t(static_cast<const uint16_t *>(p)[at0 + i]) << 16;
            memcpy(&out[i], &bits, 4);
        }
    }
}

/* To nearest, ties to even. */
static uint16_t bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return std::isnan(f) ? 0x7fc0 : uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* In blocks of eight, of which another algorithm begins with another one. */
static float dot(const float *x, const float *y, size_t n, size_t algorithm)
{
    float part[8] = {0};
    const size_t blocks = n / 8;
    for (size_t b = 0; b < blocks; b++) {
        const size_t i = (b + algorithm) % blocks * 8;
        for (size_t j = 0; j < 8; j++)
            part[j] += x[i + j] * y[i + j];
    }
    float sum =
        ((part[0] + part[4]) + (part[1] + part[5])) + ((part[2] + part[6]) + (part[3] + part[7]));
    for (size_t i = blocks * 8; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

struct Sides { /* op(A) = A^T: both have k down their columns */
    const void *a, *b;
    hostcuda_layout A, B, O;
    void *o;
    size_t algorithm;
};

static void multiply(const Sides &s, const hostcuda_matmul &m, float scale, float keep)
{
    const size_t k = s.A.rows;
    const bool by_row = m.a_mode == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    std::vector<float> x(s.B.cols * k), y(k);
    for (size_t j = 0; j < s.B.cols; j++)
        widen(s.b, s.B.type, j * size_t(s.B.ld), k, x.data() + j * k);
    for (size_t i = 0; i < s.A.cols; i++) {
        widen(s.a, s.A.type, i * size_t(s.A.ld), k, y.data());
        for (size_t j = 0; j < s.B.cols; j++) {
            const size_t at = j * size_t(s.O.ld) + i;
            float *out = static_cast<float *>(s.o) + at;
            float sum = scale * dot(y.data(), x.data() + j * k, k, s.algorithm);
            if (by_row) sum *= m.a_scale[i] * m.b_scale[j];
            if (keep != 0) sum += keep * *out;
            if (m.epilogue == CUBLASLT_EPILOGUE_BIAS) sum += m.bias[i];
            if (s.O.type == CUDA_R_16BF)
                static_cast<uint16_t *>(s.o)[at] = bf16(sum);
            else
                *out = sum;
        }
    }
}

static void multiply_whole(const Sides &s)
{
    for (size_t i = 0; i < s.A.cols; i++)
        for (size_t j = 0; j < s.B.cols; j++) {
            const int8_t *x = static_cast<const int8_t *>(s.a) + i * size_t(s.A.ld);
            const int8_t *y = static_cast<const int8_t *>(s.b) + j * size_t(s.B.ld);
            int32_t sum = 0;
            for (size_t d = 0; d < s.A.rows; d++)
                sum += int32_t(x[d]) * y[d];
            static_cast<int32_t *>(s.o)[j * size_t(s.O.ld) + i] = sum;
        }
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t d, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t la, const void *b,
                              cublasLtMatrixLayout_t lb, const void *beta, const void *c,
                              cublasLtMatrixLayout_t, void *o, cublasLtMatrixLayout_t lo,
                              const cublasLtMatmulAlgo_t *algo, void *, size_t, cudaStream_t stream)
{
    const void *const at[] = {a, b, c, o};
    check_device(stream);
    if (!fits(d, la, lb, lo)) return CUBLAS_STATUS_NOT_SUPPORTED;
    for (int i = 0; i < 4; i++)
        if (reinterpret_cast<uintptr_t>(at[i]) % algo->data[1 + i])
            hostcuda::misuse("a product at addresses that its algorithm was not asked for");
    const hostcuda_matmul m = *d;
    const size_t number = size_t(algo->data[0]);
    const Sides s = {a, b, *la, *lb, *lo, o, number};
    const bool whole = la->type == CUDA_R_8I;
    const float scale = whole ? 1.0f : *static_cast<const float *>(alpha),
                keep = whole ? 0.0f : *static_cast<const float *>(beta);
    if (refusing >> number & 1) return CUBLAS_STATUS_NOT_SUPPORTED;
    enqueue(stream, [=] {
        count_launch(n_algorithms > 1 && number != best_algorithm ? SLOWER : 1);
        n_ran[number]++;
        if (whole)
            multiply_whole(s);
        else
            multiply(s, m, scale, keep);
    });
    return CUBLAS_STATUS_SUCCESS;
}
