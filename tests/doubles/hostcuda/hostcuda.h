/* hostcuda: the subset of CUDA that kernels/cuda uses, on the host, for machines and tests without
 * a GPU. It stands in for cuda_runtime.h and cublasLt.h when the .cu files are compiled as C++.
 *
 * A block's threads are fibers that run in turns; barriers and warp operations switch between them,
 * so they mean what they mean on a device. What is queued (launches, copies, products) runs in the
 * order of its stream when somebody waits for it, never earlier: a host that reads too soon, or a
 * stream that does not wait for another one's event, finds old bytes. Copies from pageable memory
 * read it at once, those from registered or pinned memory when their turn comes.
 * That is as late as may be; KVBLEND_HOSTCUDA=eager is as early: what goes to a stream with a
 * priority, as those for copies are, runs at once as far as events let it, so that a copy which
 * nothing holds back overtakes who still reads. With seed=N a block's threads take turns in an
 * order of chance, another one for each block.
 * A stream that records keeps what is queued, arguments by value; a graph runs them with just
 * those. What may not be in between (waiting, memory, events, pageable copies) spoils the
 * recording. Device memory is out of the host's reach but while the queue runs, where the processor
 * has protection keys. Misuse ends the process with a sentence: a barrier that not all threads
 * reach, a warp operation with absent lanes, a block or shared memory that is too large. Not for
 * speed: one thread does everything. Events have a clock of their own, by which a block of a kernel
 * takes a microsecond, so that what is fastest is so under any load. Thread: any, one at a time
 * inside. */
#ifndef TESTS_DOUBLES_HOSTCUDA_HOSTCUDA_H
#define TESTS_DOUBLES_HOSTCUDA_HOSTCUDA_H

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __restrict__ __restrict
#define __shared__ static
#define __CUDA_ARCH_LIST__ 800, 900
#define KN_LAUNCH(kernel, grid, block, smem, stream, ...)                                          \
    hostcuda::launch(#kernel, grid, block, smem, stream, kernel, __VA_ARGS__)
#define KN_DYNAMIC_SHARED(type, name) type *name = static_cast<type *>(hostcuda::dynamic_shared())

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};
struct float2 {
    float x, y;
};
struct float4 {
    float x, y, z, w;
};
typedef struct hostcuda_stream *cudaStream_t;
typedef struct hostcuda_event *cudaEvent_t;
typedef struct hostcuda_graph *cudaGraph_t;
typedef struct hostcuda_graph *cudaGraphExec_t;
enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorNoDevice = 100,
    cudaErrorNotReady = 600,
    cudaErrorHostMemoryAlreadyRegistered = 712,
    cudaErrorLaunchFailure = 719,
    cudaErrorNotSupported = 801,
    cudaErrorStreamCaptureUnsupported = 900,
    cudaErrorStreamCaptureInvalidated = 901
};
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };
enum cudaMemcpyKind { cudaMemcpyDefault = 4 };
enum { cudaStreamNonBlocking = 1, cudaHostAllocPortable = 1, cudaHostRegisterPortable = 1 };
enum { cudaEventBlockingSync = 1, cudaEventDisableTiming = 2 };
enum cudaMemoryType {
    cudaMemoryTypeUnregistered,
    cudaMemoryTypeHost,
    cudaMemoryTypeDevice,
    cudaMemoryTypeManaged
};
struct cudaPointerAttributes {
    cudaMemoryType type;
};
enum { cudaMemAttachGlobal = 1 };
enum cudaDeviceAttr { cudaDevAttrConcurrentManagedAccess = 89 };
enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
    cudaFuncAttributePreferredSharedMemoryCarveout = 9
};
enum { cudaSharedmemCarveoutMaxShared = 100 };
struct cudaDeviceProp {
    char name[256];
    int major, minor, multiProcessorCount;
    size_t sharedMemPerBlockOptin;
};

cudaError_t cudaGetDeviceCount(int *n);
cudaError_t cudaSetDevice(int index);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int index);
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attr, int index);
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaGetLastError();
const char *cudaGetErrorString(cudaError_t e);
cudaError_t cudaMalloc(void **p, size_t bytes);
cudaError_t cudaMallocManaged(void **p, size_t bytes, unsigned flags);
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags);
cudaError_t cudaFree(void *p);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes);
cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void *p);
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *a, const void *p);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority);
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest);
cudaError_t cudaStreamDestroy(cudaStream_t s);
cudaError_t cudaStreamSynchronize(cudaStream_t s);
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags);
cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *x, cudaGraph_t g, unsigned long long flags);
cudaError_t cudaGraphDestroy(cudaGraph_t g);
cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t s);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t e);
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s);
cudaError_t cudaEventSynchronize(cudaEvent_t e);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to);
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t s);
cudaError_t cudaMemcpy2DAsync(void *dst, size_t to, const void *src, size_t from, size_t bytes,
                              size_t n, cudaMemcpyKind kind, cudaStream_t s);
cudaError_t cudaMemsetAsync(void *dst, int value, size_t bytes, cudaStream_t s);
struct cudaFuncAttributes {
    int binaryVersion;
};
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, const void *); /* none below sm_80 */
template <class F> cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, F f)
{
    return cudaFuncGetAttributes(a, reinterpret_cast<const void *>(f));
}
template <class F> cudaError_t cudaFuncSetAttribute(F, cudaFuncAttribute, int)
{
    return cudaSuccess;
}

namespace hostcuda
{
struct Thread {
    dim3 index;
    unsigned lane, warp;
};
extern const Thread *current;
extern dim3 block_index, block_size, grid_size;
/* Of a kernel or product that runs, and how long events say it takes; a graph's count as one. */
void count_launch(uint64_t us = 1);
extern int arch; /* 90: compute capability 9.0 */
struct Mode {    /* KVBLEND_HOSTCUDA: eager,apart,seed=N,algorithms=N */
    bool eager, apart;
    uint64_t seed;       /* 0: threads take turns by number */
    unsigned algorithms; /* of products, another one for other shapes; 0: one */
    std::mt19937_64 draws;
};
extern Mode mode;

void *dynamic_shared();
void block_barrier();
void warp_barrier(unsigned mask);
/* Every lane of the mask gives a word and gets that of lane `from`. */
uint64_t warp_exchange(unsigned mask, uint64_t word, unsigned from);
unsigned warp_ballot(unsigned mask, bool vote);
/* Every lane gives up to 32 bytes and gets the table of all lanes', good until its next warp
 * operation. */
const void *warp_share(const void *mine, size_t bytes);
/* 16 bytes to shared memory, `bytes` of them from `from`, the others 0, as late as may be: when the
 * thread waits for its group. Nobody may look at the place from now on until then: it is poisoned.
 */
void copy_later(void *to, const void *from, unsigned bytes);
void copies_end();
void copies_wait(unsigned but_last);
[[noreturn]] void misuse(const char *what);
void check_device(cudaStream_t s); /* kernels and products: it is the thread's current one's */
void enqueue(cudaStream_t s, std::function<void()> work);
void check_argument(const char *kernel, const void *p);
void run_grid(const char *name, dim3 grid, dim3 block, size_t smem,
              const std::function<void()> &thread);

/* A kernel gets addresses that a device can reach, and what is recorded those that last. */
template <class T> void check_argument(const char *kernel, T *p)
{
    check_argument(kernel, static_cast<const void *>(p));
}
template <class T> void check_argument(const char *, const T &)
{
}

/* An item on each of the streams; the work is done when all have come to it. */
void meet(const std::vector<cudaStream_t> &streams, std::function<void()> work);
int device_of(const void *p); /* -1: none has it alone */
int device_of(cudaStream_t s);

template <class... P, class... A>
void launch(const char *name, dim3 grid, dim3 block, size_t smem, cudaStream_t s,
            void (*kernel)(P...), A... args)
{
    check_device(s);
    (check_argument(name, args), ...);
    enqueue(s, [=] { run_grid(name, grid, block, smem, [=] { kernel(args...); }); });
}

template <class T> T exchange(unsigned mask, T value, unsigned from)
{
    static_assert(sizeof(T) <= 8, "one word");
    uint64_t word = 0;
    memcpy(&word, &value, sizeof value);
    word = warp_exchange(mask, word, from);
    memcpy(&value, &word, sizeof value);
    return value;
}
} /* namespace hostcuda */

#define threadIdx (hostcuda::current->index)
#define blockIdx hostcuda::block_index
#define blockDim hostcuda::block_size
#define gridDim hostcuda::grid_size
inline void __syncthreads()
{
    hostcuda::block_barrier();
}
inline void __syncwarp(unsigned mask = 0xffffffffu)
{
    hostcuda::warp_barrier(mask);
}
template <class T> T __shfl_xor_sync(unsigned mask, T v, int with)
{
    return hostcuda::exchange(mask, v, hostcuda::current->lane ^ unsigned(with));
}
template <class T> T __shfl_sync(unsigned mask, T v, int from)
{
    return hostcuda::exchange(mask, v, unsigned(from) % 32);
}
inline unsigned __ballot_sync(unsigned mask, int vote)
{
    return hostcuda::warp_ballot(mask, vote != 0);
}
inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
template <class T> T atomicAdd(T *p, T v)
{
    T old = *p;
    *p += v;
    return old;
}
template <class T> T atomicExch(T *p, T v)
{
    T old = *p;
    *p = v;
    return old;
}
inline float exp2f_fast(float x)
{
    return exp2f(x);
}

/* ---- cuBLASLt: D = alpha op(A) op(B) + beta C, columns first; f32 sums, int32 for int8. As the
 * library: e4m3 from sm_89 on, scales a row on sm_90 alone and only to who shows them before, no
 * bias for 8 bits; a suggestion is for addresses that are multiples of what was said, 256 if
 * nothing was, and with others it ends the process. ---- */
typedef enum {
    CUDA_R_32F = 0,
    CUDA_R_8I = 3,
    CUDA_R_32I = 10,
    CUDA_R_16BF = 14,
    CUDA_R_8F_E4M3 = 28
} cudaDataType_t;
typedef enum { CUBLAS_COMPUTE_32F = 68, CUBLAS_COMPUTE_32I = 72 } cublasComputeType_t;
typedef enum { CUBLAS_OP_N, CUBLAS_OP_T } cublasOperation_t;
typedef enum {
    CUBLAS_STATUS_SUCCESS = 0,
    CUBLAS_STATUS_INVALID_VALUE = 7,
    CUBLAS_STATUS_NOT_SUPPORTED = 15
} cublasStatus_t;
typedef enum {
    CUBLASLT_MATMUL_DESC_TRANSA = 3,
    CUBLASLT_MATMUL_DESC_TRANSB = 4,
    CUBLASLT_MATMUL_DESC_EPILOGUE = 7,
    CUBLASLT_MATMUL_DESC_BIAS_POINTER = 8,
    CUBLASLT_MATMUL_DESC_A_SCALE_POINTER = 17,
    CUBLASLT_MATMUL_DESC_B_SCALE_POINTER = 18,
    CUBLASLT_MATMUL_DESC_A_SCALE_MODE = 31,
    CUBLASLT_MATMUL_DESC_B_SCALE_MODE = 32
} cublasLtMatmulDescAttributes_t;
enum { CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F = 3 };
typedef enum { CUBLASLT_EPILOGUE_DEFAULT = 1, CUBLASLT_EPILOGUE_BIAS = 4 } cublasLtEpilogue_t;
typedef enum {
    CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES = 6,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES = 7,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES = 8
} cublasLtMatmulPreferenceAttributes_t;
typedef struct hostcuda_lt *cublasLtHandle_t;
typedef struct hostcuda_matmul *cublasLtMatmulDesc_t;
typedef struct hostcuda_layout *cublasLtMatrixLayout_t;
typedef struct hostcuda_preference *cublasLtMatmulPreference_t;
struct cublasLtMatmulAlgo_t {
    uint64_t data[8];
};
struct cublasLtMatmulHeuristicResult_t {
    cublasLtMatmulAlgo_t algo;
    size_t workspaceSize;
    cublasStatus_t state;
};
size_t cublasLtGetVersion();
cublasStatus_t cublasLtCreate(cublasLtHandle_t *h);
cublasStatus_t cublasLtDestroy(cublasLtHandle_t h);
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t c,
                                        cudaDataType_t scale);
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d);
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
                                              cublasLtMatmulDescAttributes_t a, const void *v,
                                              size_t bytes);
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType_t t,
                                          uint64_t rows, uint64_t cols, int64_t ld);
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l);
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p);
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p);
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t a,
                                                    const void *v, size_t bytes);
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t d,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t o,
                                              cublasLtMatmulPreference_t p, int want,
                                              cublasLtMatmulHeuristicResult_t *r, int *n);
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t h, cublasLtMatmulDesc_t d,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t o,
                                       const cublasLtMatmulAlgo_t *algo,
                                       cublasLtMatmulHeuristicResult_t *r);
cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t d, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t la, const void *b,
                              cublasLtMatrixLayout_t lb, const void *beta, const void *c,
                              cublasLtMatrixLayout_t lc, void *o, cublasLtMatrixLayout_t lo,
                              const cublasLtMatmulAlgo_t *algo, void *workspace, size_t bytes,
                              cudaStream_t s);

#endif
