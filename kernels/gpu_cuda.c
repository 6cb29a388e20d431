#include "base/clock.h"
#include "base/mem.h"
#include "kernels/gpu_int.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <time.h>

struct cuda {
    struct gpu g;
    int index;
};
struct cuda_stream {
    struct gpu_stream s;
    cudaStream_t st;
};
struct cuda_event {
    struct gpu_event e;
    cudaEvent_t ev;
};

/* What the caller can mend has a code of its own; anything else has lost us the device, since the
 * runtime cannot say which of its errors leave the context usable. */
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

static void use(struct gpu *g) /* the runtime keeps the current device per thread */
{
    static _Thread_local int current = -1;
    int index = ((struct cuda *)g)->index;
    if (current != index && cudaSetDevice(index) == cudaSuccess) current = index;
}

static void cuda_close(struct gpu *g)
{
    mem_free(g);
}

static int cuda_memory(struct gpu *g, uint64_t *ret_free, uint64_t *ret_total)
{
    size_t free_bytes, total_bytes;
    use(g);
    int r = code(cudaMemGetInfo(&free_bytes, &total_bytes));
    if (r < 0) return r;
    *ret_free = free_bytes;
    *ret_total = total_bytes;
    return 0;
}

static int cuda_alloc(struct gpu *g, size_t bytes, void **ret)
{
    void *p;
    use(g);
    int r = code(cudaMalloc(&p, bytes));
    if (r == 0) *ret = p;
    return r;
}

static void cuda_free(struct gpu *g, void *p)
{
    use(g);
    (void)code(cudaFree(p));
}

static int cuda_host_register(struct gpu *g, void *p, size_t bytes)
{
    use(g);
    return code(cudaHostRegister(p, bytes, cudaHostRegisterPortable));
}

static void cuda_host_unregister(struct gpu *g, void *p)
{
    use(g);
    (void)code(cudaHostUnregister(p));
}

static int cuda_stream_create(struct gpu *g, int priority, struct gpu_stream **ret)
{
    struct cuda_stream *s = mem_zalloc(sizeof *s);
    if (!s) return -ENOMEM;
    s->s.g = g;
    use(g);
    int least = 0, greatest = 0;
    (void)code(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    int r = code(cudaStreamCreateWithPriority(&s->st, cudaStreamNonBlocking,
                                              priority < 0 ? greatest : least));
    if (r < 0) {
        mem_free(s);
        return r;
    }
    *ret = &s->s;
    return 0;
}

static void cuda_stream_destroy(struct gpu_stream *gs)
{
    struct cuda_stream *s = (struct cuda_stream *)gs;
    use(gs->g);
    (void)code(cudaStreamSynchronize(s->st));
    (void)code(cudaStreamDestroy(s->st));
    mem_free(s);
}

static int cuda_stream_sync(struct gpu_stream *s)
{
    use(s->g);
    return code(cudaStreamSynchronize(((struct cuda_stream *)s)->st));
}

static int copy_each(cudaStream_t st, const struct gpu_copy *c, size_t n)
{
    int r = 0;
    for (size_t i = 0; i < n && r == 0; i++)
        r = code(cudaMemcpyAsync(c[i].dst, c[i].src, c[i].bytes, cudaMemcpyDefault, st));
    return r;
}

#if CUDART_VERSION >= 12080
enum { BATCH = 64 }; /* chosen: bounds the stack; a record has few parts more */

/* One submission for many copies. The source is read in the order of the stream: it may have been
 * written by what is queued before. */
static int copy_some(cudaStream_t st, const struct gpu_copy *c, size_t n)
{
    void *dst[BATCH];
    const void *src[BATCH];
    size_t bytes[BATCH], first = 0;
    for (size_t i = 0; i < n; i++) {
        dst[i] = c[i].dst;
        src[i] = c[i].src;
        bytes[i] = c[i].bytes;
    }
    struct cudaMemcpyAttributes attr = {.srcAccessOrder = cudaMemcpySrcAccessOrderStream,
                                        .flags = cudaMemcpyFlagPreferOverlapWithCompute};
#if CUDART_VERSION >= 13000
    return code(cudaMemcpyBatchAsync(dst, src, bytes, n, &attr, &first, 1, st));
#else
    size_t failed;
    return code(cudaMemcpyBatchAsync(dst, (void **)src, bytes, n, &attr, &first, 1, &failed, st));
#endif
}
#endif

static int cuda_copy(struct gpu_stream *gs, const struct gpu_copy *c, size_t n)
{
    cudaStream_t st = ((struct cuda_stream *)gs)->st;
    use(gs->g);
#if CUDART_VERSION >= 12080
    for (; n > 1; c += n < BATCH ? n : BATCH, n -= n < BATCH ? n : BATCH) {
        int r = copy_some(st, c, n < BATCH ? n : BATCH);
        if (r == -ENOTSUP) break; /* a driver older than the call */
        if (r < 0) return r;
    }
#endif
    return copy_each(st, c, n);
}

static int cuda_event_create(struct gpu *g, struct gpu_event **ret)
{
    struct cuda_event *e = mem_zalloc(sizeof *e);
    if (!e) return -ENOMEM;
    e->e.g = g;
    use(g);
    int r = code(cudaEventCreateWithFlags(&e->ev, cudaEventDisableTiming | cudaEventBlockingSync));
    if (r < 0) {
        mem_free(e);
        return r;
    }
    *ret = &e->e;
    return 0;
}

static void cuda_event_destroy(struct gpu_event *ge)
{
    use(ge->g);
    (void)code(cudaEventDestroy(((struct cuda_event *)ge)->ev));
    mem_free(ge);
}

static int cuda_event_record(struct gpu_event *e, struct gpu_stream *s)
{
    use(e->g);
    return code(cudaEventRecord(((struct cuda_event *)e)->ev, ((struct cuda_stream *)s)->st));
}

static int cuda_stream_wait(struct gpu_stream *s, struct gpu_event *e)
{
    use(e->g);
    return code(
        cudaStreamWaitEvent(((struct cuda_stream *)s)->st, ((struct cuda_event *)e)->ev, 0));
}

static int cuda_event_query(struct gpu_event *e)
{
    use(e->g);
    cudaError_t r = cudaEventQuery(((struct cuda_event *)e)->ev);
    return r == cudaErrorNotReady ? 0 : r == cudaSuccess ? 1 : code(r);
}

/* The runtime waits without a deadline only. With one it is asked again and again, in steps from 20
 * us to 1 ms: a host function on the stream could wake us, but it holds the stream up and is never
 * called once the device has failed. */
static int cuda_event_wait(struct gpu_event *e, uint64_t deadline_ns)
{
    if (deadline_ns == 0) {
        use(e->g);
        return code(cudaEventSynchronize(((struct cuda_event *)e)->ev));
    }
    for (long step_ns = 20000;; step_ns = step_ns < 500000 ? 2 * step_ns : 1000000) {
        int r = cuda_event_query(e);
        if (r != 0) return r < 0 ? r : 0;
        if (clock_ns() >= deadline_ns) return -ETIMEDOUT;
        (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){0, step_ns}, NULL);
    }
}

static const struct gpu_ops cuda_ops = {
    .close = cuda_close,
    .memory = cuda_memory,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .host_register = cuda_host_register,
    .host_unregister = cuda_host_unregister,
    .stream_create = cuda_stream_create,
    .stream_destroy = cuda_stream_destroy,
    .stream_sync = cuda_stream_sync,
    .copy = cuda_copy,
    .stream_wait = cuda_stream_wait,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .event_query = cuda_event_query,
    .event_wait = cuda_event_wait,
};

int gpu_cuda_open(int index, struct gpu **ret, struct err *err)
{
    int n = 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess) {
        (void)cudaGetLastError();
        return err_set(err, -ENODEV, "no CUDA device can be used: %s", cudaGetErrorString(e));
    }
    if (index < 0 || index >= n)
        return err_set(err, -ENODEV, "there is no CUDA device %d, this machine has %d", index, n);
    struct cudaDeviceProp prop;
    if ((e = cudaSetDevice(index)) != cudaSuccess ||
        (e = cudaGetDeviceProperties(&prop, index)) != cudaSuccess) {
        (void)cudaGetLastError();
        return err_set(err, -ENODEV, "CUDA device %d cannot be used: %s", index,
                       cudaGetErrorString(e));
    }
    struct cuda *c = mem_zalloc(sizeof *c);
    if (!c) return err_set(err, -ENOMEM, "out of memory");
    c->g.ops = &cuda_ops;
    c->index = index;
    (void)snprintf(c->g.name, sizeof c->g.name, "%.63s", prop.name);
    *ret = &c->g;
    return 0;
}
