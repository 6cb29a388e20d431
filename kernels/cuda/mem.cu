/* Memory, streams, events and copies of a GPU. */
#include "kernels/cuda/mem.h"

#include "kernels/cuda/cuda.h"

#include <atomic>
#include <cstdio>

static int code(cudaError_t e)
{
    if (e == cudaSuccess) return 0;
    (void)cudaGetLastError(); /* it would be reported again by the next call */
    if (e == cudaErrorMemoryAllocation) return -ENOMEM;
    if (e == cudaErrorInvalidValue) return -EINVAL;
    if (e == cudaErrorHostMemoryAlreadyRegistered) return -EEXIST;
    if (e == cudaErrorNotSupported) return -ENOTSUP;
    return -EIO;
}

int cu_mem_use(int index)
{
    static thread_local int current = -1;
    int r = current == index ? 0 : code(cudaSetDevice(index));
    if (r == 0) current = index;
    return r;
}

static void use(const struct gpu *g)
{
    (void)cu_mem_use(g->index);
}

static cudaStream_t stream_of(struct gpu_stream *s)
{
    return reinterpret_cast<cudaStream_t>(s);
}

static cudaEvent_t event_of(struct gpu_event *e)
{
    return reinterpret_cast<cudaEvent_t>(e);
}

int cu_mem_open(struct gpu *g, char *msg, size_t msg_bytes)
{
    int n = 0;
    cudaDeviceProp prop;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e == cudaSuccess && (g->index < 0 || g->index >= n)) {
        snprintf(msg, msg_bytes, "there is no CUDA device %d, this machine has %d", g->index, n);
        return -ENODEV;
    }
    use(g);
    if (e == cudaSuccess) e = cudaGetDeviceProperties(&prop, g->index);
    if (e != cudaSuccess) {
        (void)cudaGetLastError();
        snprintf(msg, msg_bytes, "CUDA device %d cannot be used: %s", g->index,
                 cudaGetErrorString(e));
        return -ENODEV;
    }
    snprintf(g->name, sizeof g->name, "%.63s", prop.name);
    return 0;
}

int cu_mem_info(struct gpu *g, uint64_t *ret_free, uint64_t *ret_total)
{
    size_t free_bytes, total_bytes;
    use(g);
    int r = code(cudaMemGetInfo(&free_bytes, &total_bytes));
    if (r < 0) return r;
    *ret_free = free_bytes;
    *ret_total = total_bytes;
    return 0;
}

int cu_mem_alloc(struct gpu *g, size_t bytes, void **ret)
{
    use(g);
    return code(cudaMalloc(ret, bytes));
}

void cu_mem_free(struct gpu *g, void *p)
{
    use(g);
    (void)code(cudaFree(p));
}

int cu_mem_pin(struct gpu *g, void *p, size_t bytes)
{
    use(g);
    return code(cudaHostRegister(p, bytes, cudaHostRegisterPortable));
}

void cu_mem_unpin(struct gpu *g, void *p)
{
    use(g);
    (void)code(cudaHostUnregister(p));
}

int cu_mem_is_device(struct gpu *g, const void *p)
{
    cudaPointerAttributes a;
    use(g);
    if (cudaPointerGetAttributes(&a, p) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    return a.type == cudaMemoryTypeDevice || a.type == cudaMemoryTypeManaged;
}

/* ---- streams ---- */

int cu_stream_create(struct gpu *g, int priority, struct gpu_stream **ret)
{
    int least = 0, greatest = 0;
    cudaStream_t s;
    use(g);
    (void)code(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    int r = code(
        cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, priority < 0 ? greatest : least));
    if (r == 0) *ret = reinterpret_cast<struct gpu_stream *>(s);
    return r;
}

void cu_stream_destroy(struct gpu *g, struct gpu_stream *s)
{
    use(g);
    (void)code(cudaStreamSynchronize(stream_of(s)));
    (void)code(cudaStreamDestroy(stream_of(s)));
}

int cu_stream_sync(struct gpu *g, struct gpu_stream *s)
{
    use(g);
    return code(cudaStreamSynchronize(stream_of(s)));
}

int cu_stream_wait(struct gpu *g, struct gpu_stream *s, struct gpu_event *e)
{
    use(g);
    return code(cudaStreamWaitEvent(stream_of(s), event_of(e), 0));
}

static int copy_each(cudaStream_t s, const struct gpu_copy *c, size_t n)
{
    int r = 0;
    for (size_t i = 0; i < n && r == 0; i++)
        r = code(c[i].row
                     ? cudaMemcpy2DAsync(c[i].dst, c[i].to, c[i].src, c[i].from, c[i].row,
                                         c[i].bytes / c[i].row, cudaMemcpyDefault, s)
                     : cudaMemcpyAsync(c[i].dst, c[i].src, c[i].bytes, cudaMemcpyDefault, s));
    return r;
}

#if defined(CUDART_VERSION) && CUDART_VERSION >= 12080
enum { BATCH = 64 }; /* chosen: bounds the stack; a record has few parts more */

/* One submission for many copies. The source is read in the order of the stream: it may have been
 * written by what is queued before. */
static int copy_some(cudaStream_t s, const struct gpu_copy *c, size_t n)
{
    void *dst[BATCH];
    const void *src[BATCH];
    size_t bytes[BATCH], first = 0;
    for (size_t i = 0; i < n; i++) {
        dst[i] = c[i].dst;
        src[i] = c[i].src;
        bytes[i] = c[i].bytes;
    }
    struct cudaMemcpyAttributes attr = {};
    attr.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    attr.flags = cudaMemcpyFlagPreferOverlapWithCompute;
#if CUDART_VERSION >= 13000
    return code(cudaMemcpyBatchAsync(dst, src, bytes, n, &attr, &first, 1, s));
#else
    size_t failed;
    return code(cudaMemcpyBatchAsync(dst, const_cast<void **>(src), bytes, n, &attr, &first, 1,
                                     &failed, s));
#endif
}
#endif

int cu_stream_copy(struct gpu *g, struct gpu_stream *stream, const struct gpu_copy *c, size_t n)
{
    cudaStream_t s = stream_of(stream);
    use(g);
#if defined(CUDART_VERSION) && CUDART_VERSION >= 12080
    static std::atomic<bool> refused;
    for (size_t now; n > 1 && !c->row && !refused; c += now, n -= now) {
        now = n < BATCH ? n : BATCH;
        int r = copy_some(s, c, now);
        if (r == -EIO || r == -ENOMEM) return r;
        if (r == 0) continue;
        refused = true; /* a driver that does not know the call, or not for such memory */
        break;
    }
#endif
    return copy_each(s, c, n);
}

/* ---- events ---- */

int cu_event_create(struct gpu *g, struct gpu_event **ret)
{
    cudaEvent_t e;
    use(g);
    int r = code(cudaEventCreateWithFlags(&e, cudaEventDisableTiming | cudaEventBlockingSync));
    if (r == 0) *ret = reinterpret_cast<struct gpu_event *>(e);
    return r;
}

void cu_event_destroy(struct gpu *g, struct gpu_event *e)
{
    use(g);
    (void)code(cudaEventDestroy(event_of(e)));
}

int cu_event_record(struct gpu *g, struct gpu_event *e, struct gpu_stream *s)
{
    use(g);
    return code(cudaEventRecord(event_of(e), stream_of(s)));
}

int cu_event_sync(struct gpu *g, struct gpu_event *e)
{
    use(g);
    return code(cudaEventSynchronize(event_of(e)));
}
