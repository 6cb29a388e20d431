/* gpu.h on a GPU, over mem.h. The same device as dev.c's: both use the driver's one context of it,
 * so what is allocated here is what kernels read. */
#include "base/clock.h"
#include "base/mem.h"
#include "kernels/cuda/mem.h"
#include "kernels/gpu_int.h"

#include <time.h>

struct module_gpu {
    struct gpu g;
    int index;
};
struct module_stream {
    struct gpu_stream s;
    void *stream;
};
struct module_event {
    struct gpu_event e;
    void *event;
};

int kn_cuda_gpu_open(int index, struct gpu **ret, struct err *err);

static int index_of(const struct gpu *g)
{
    return ((const struct module_gpu *)g)->index;
}

static void *stream_of(struct gpu_stream *s)
{
    return ((struct module_stream *)s)->stream;
}

static void *event_of(struct gpu_event *e)
{
    return ((struct module_event *)e)->event;
}

static void module_close(struct gpu *g)
{
    mem_free(g);
}

static int module_alloc(struct gpu *g, size_t bytes, void **ret)
{
    return cu_mem_alloc(index_of(g), bytes, ret);
}

static void module_free(struct gpu *g, void *p)
{
    cu_mem_free(index_of(g), p);
}

static int module_host_register(struct gpu *g, void *p, size_t bytes)
{
    return cu_mem_pin(index_of(g), p, bytes);
}

static void module_host_unregister(struct gpu *g, void *p)
{
    cu_mem_unpin(index_of(g), p);
}

static int module_stream_create(struct gpu *g, int priority, struct gpu_stream **ret)
{
    struct module_stream *s = mem_zalloc(sizeof *s);
    if (!s) return -ENOMEM;
    s->s.g = g;
    int r = cu_stream_create(index_of(g), priority < 0, &s->stream);
    if (r < 0) {
        mem_free(s);
        return r;
    }
    *ret = &s->s;
    return 0;
}

static void module_stream_destroy(struct gpu_stream *s)
{
    cu_stream_destroy(index_of(s->g), stream_of(s));
    mem_free(s);
}

static int module_stream_sync(struct gpu_stream *s)
{
    return cu_stream_sync(index_of(s->g), stream_of(s));
}

static int module_copy(struct gpu_stream *s, void *dst, const void *src, size_t bytes)
{
    return cu_stream_copy(index_of(s->g), stream_of(s), &(struct gpu_copy){dst, src, bytes}, 1);
}

static int module_event_create(struct gpu *g, struct gpu_event **ret)
{
    struct module_event *e = mem_zalloc(sizeof *e);
    if (!e) return -ENOMEM;
    e->e.g = g;
    int r = cu_event_create(index_of(g), &e->event);
    if (r < 0) {
        mem_free(e);
        return r;
    }
    *ret = &e->e;
    return 0;
}

static void module_event_destroy(struct gpu_event *e)
{
    cu_event_destroy(index_of(e->g), event_of(e));
    mem_free(e);
}

static int module_event_record(struct gpu_event *e, struct gpu_stream *s)
{
    return cu_event_record(index_of(e->g), event_of(e), stream_of(s));
}

/* The runtime waits without a deadline only. With one it is asked again and again, in steps from 20
 * us to 1 ms: a host function on the stream could wake us, but it holds the stream up and is never
 * called once the device has failed. */
static int module_event_wait(struct gpu_event *e, uint64_t deadline_ns)
{
    if (deadline_ns == 0) return cu_event_sync(index_of(e->g), event_of(e));
    for (long step_ns = 20000;; step_ns = step_ns < 500000 ? 2 * step_ns : 1000000) {
        int r = cu_event_query(index_of(e->g), event_of(e));
        if (r != 0) return r < 0 ? r : 0;
        if (clock_ns() >= deadline_ns) return -ETIMEDOUT;
        (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){0, step_ns}, NULL);
    }
}

static const struct gpu_ops module_ops = {
    .close = module_close,
    .alloc = module_alloc,
    .free = module_free,
    .host_register = module_host_register,
    .host_unregister = module_host_unregister,
    .stream_create = module_stream_create,
    .stream_destroy = module_stream_destroy,
    .stream_sync = module_stream_sync,
    .copy = module_copy,
    .event_create = module_event_create,
    .event_destroy = module_event_destroy,
    .event_record = module_event_record,
    .event_wait = module_event_wait,
};

int kn_cuda_gpu_open(int index, struct gpu **ret, struct err *err)
{
    char why[160] = "";
    struct module_gpu *m = mem_zalloc(sizeof *m);
    if (!m) return err_set(err, -ENOMEM, "out of memory");
    int r = cu_mem_open(index, m->g.name, sizeof m->g.name, why, sizeof why);
    if (r < 0) {
        mem_free(m);
        return err_set(err, r, "%s", why);
    }
    m->g.ops = &module_ops;
    m->index = index;
    *ret = &m->g;
    return 0;
}
