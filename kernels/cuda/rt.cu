/* The device: opening, memory, copies, errors. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/mem.h"

#include <cstdio>
#include <cstring>

int cu_lt_open(struct cu *c); /* gemm.cu */
void cu_lt_close(struct cu *c);
int at_mma_open(); /* attn_mma.cu */

/* Nothing says which errors leave a context usable, so all but a lack of memory lose the device. */
int cu_failed(struct cu *c, cudaError_t e)
{
    if (e == cudaSuccess) return c->lost ? -EIO : 0;
    (void)cudaGetLastError();
    if (e == cudaErrorMemoryAllocation) return -ENOMEM;
    if (!c->recording) c->lost = true; /* else nothing has run, and who records will judge */
    return -EIO;
}

int cu_launched(struct cu *c)
{
    return cu_failed(c, cudaGetLastError());
}

void cu_use(const struct cu *c)
{
    (void)cu_mem_use(c->index);
}

/* What this build was compiled for, as nvcc says it: "80, 86, 90". */
static const char *built_for(char *ret, size_t size)
{
    static const int list[] = {__CUDA_ARCH_LIST__};
    size_t n = 0;
    for (int arch : list)
        if (n < size)
            n += size_t(snprintf(ret + n, size - n, "%s%d", n > 0 ? ", " : "", arch / 10));
    return ret;
}

int cu_open(int index, enum cu_type type, bool q8, struct cu **ret, char *msg, size_t msg_size)
{
    char archs[64];
    cudaDeviceProp p;
    struct cu *c = static_cast<struct cu *>(mem_zalloc(sizeof *c));
    if (!c) return -ENOMEM;
    c->index = index;
    c->type = type;
    c->pages = q8 ? CU_Q8 : type;
    cu_use(c);
    cudaError_t e = cudaGetDeviceProperties(&p, index);
    if (e == cudaSuccess) e = cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking);
    for (int i = 0; i < 2; i++)
        if (e == cudaSuccess) e = cudaEventCreateWithFlags(&c->span[i], 0);
    if (e != cudaSuccess) {
        snprintf(msg, msg_size, "GPU %d: %s", index, cudaGetErrorString(e));
        mem_free(c);
        return -ENODEV;
    }
    snprintf(c->name, sizeof c->name, "%.120s", p.name);
    c->sms = unsigned(p.multiProcessorCount);
    c->arch = p.major * 10 + p.minor;
    if (at_mma_open() < 0) {
        snprintf(msg, msg_size, "GPU %d: sm_%d, this build has sm_%s (meson option gpu_arch)",
                 index, c->arch, built_for(archs, sizeof archs));
        cu_close(c);
        return -ENODEV;
    }
    c->fault = static_cast<int *>(cu_alloc(c, KN_MEM_SHARED, sizeof *c->fault));
    if (!c->fault || cu_lt_open(c) < 0) {
        snprintf(msg, msg_size, "GPU %d: cuBLASLt could not be set up", index);
        cu_close(c);
        return -ENODEV;
    }
    *ret = c;
    return 0;
}

void cu_close(struct cu *c)
{
    if (!c) return;
    cu_use(c);
    (void)cudaStreamSynchronize(c->stream);
    cu_lt_close(c);
    if (c->fault) cu_free(c, c->fault, KN_MEM_SHARED);
    for (int i = 0; i < 2; i++)
        (void)cudaEventDestroy(c->span[i]);
    (void)cudaStreamDestroy(c->stream);
    mem_free(c);
}

struct gpu_stream *cu_stream(struct cu *c)
{
    return reinterpret_cast<struct gpu_stream *>(c->stream);
}

/* Shared: managed memory where both sides may touch it at any time, else pinned host memory that
 * the device reads over the bus. */
static bool is_managed(const struct cu *c, enum kn_mem kind)
{
    int yes = 0;
    return kind == KN_MEM_SHARED &&
           cudaDeviceGetAttribute(&yes, cudaDevAttrConcurrentManagedAccess, c->index) ==
               cudaSuccess &&
           yes;
}

void *cu_alloc(struct cu *c, enum kn_mem kind, size_t bytes)
{
    void *p = nullptr;
    if (c->lost) return nullptr;
    cu_use(c);
    cudaError_t e = kind == KN_MEM_DEVICE ? cudaMalloc(&p, bytes)
                    : is_managed(c, kind) ? cudaMallocManaged(&p, bytes, cudaMemAttachGlobal)
                                          : cudaHostAlloc(&p, bytes, cudaHostAllocPortable);
    if (cu_failed(c, e) < 0) return nullptr;
    if (kind != KN_MEM_DEVICE) {
        memset(p, 0, bytes);
    } else if (cu_clear(c, p, bytes) < 0) {
        cu_free(c, p, kind);
        return nullptr;
    }
    return p;
}

void cu_free(struct cu *c, void *p, enum kn_mem kind)
{
    cu_use(c);
    (void)(kind == KN_MEM_DEVICE || is_managed(c, kind) ? cudaFree(p) : cudaFreeHost(p));
}

int cu_clear(struct cu *c, void *p, size_t bytes)
{
    if (c->lost) return -EIO;
    return cu_failed(c, cudaMemsetAsync(p, 0, bytes, c->stream));
}

int cu_copy(struct cu *c, void *dst, const void *src, size_t bytes)
{
    if (c->lost) return -EIO;
    return cu_failed(c, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, c->stream));
}

int cu_copy_rows(struct cu *c, void *dst, size_t to, const void *src, size_t from, size_t bytes,
                 size_t n)
{
    if (c->lost) return -EIO;
    return cu_failed(
        c, cudaMemcpy2DAsync(dst, to, src, from, bytes, n, cudaMemcpyDefault, c->stream));
}

int cu_sync(struct cu *c)
{
    if (c->lost) return -EIO;
    int r = cu_failed(c, cudaStreamSynchronize(c->stream));
    if (r == 0 && *c->fault) {
        const bool value = *c->fault == CU_BAD_VALUE;
        *c->fault = 0;
        return value ? -ERANGE : -EINVAL;
    }
    return r;
}

int cu_span_start(struct cu *c)
{
    return c->lost ? -EIO : cu_failed(c, cudaEventRecord(c->span[0], c->stream));
}

int cu_span_end(struct cu *c, double *ret_us)
{
    float ms = 0;
    if (c->lost) return -EIO;
    int r = cu_failed(c, cudaEventRecord(c->span[1], c->stream));
    if (r == 0) r = cu_sync(c);
    if (r == 0) r = cu_failed(c, cudaEventElapsedTime(&ms, c->span[0], c->span[1]));
    *ret_us = ms * 1e3;
    return r;
}

/* ---- graphs ---- */

/* The calls of this thread only: others may open files of records and pin memory meanwhile. */
int cu_record(struct cu *c)
{
    if (c->lost) return -EIO;
    if (cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess) {
        (void)cudaGetLastError();
        return -ENOTSUP;
    }
    c->recording = true;
    return 0;
}

int cu_recorded(struct cu *c, void **ret_graph)
{
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    cudaError_t e = cudaStreamEndCapture(c->stream, &graph);
    if (e == cudaSuccess) e = cudaGraphInstantiate(&exec, graph, 0);
    if (graph) (void)cudaGraphDestroy(graph);
    c->recording = false;
    if (e != cudaSuccess) {
        (void)cudaGetLastError();
        return -ENOTSUP;
    }
    *ret_graph = exec;
    return 0;
}

int cu_play(struct cu *c, void *graph)
{
    if (c->lost) return -EIO;
    return cu_failed(c, cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), c->stream));
}

void cu_graph_free(struct cu *c, void *graph)
{
    cu_use(c);
    if (graph) (void)cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph));
}
