#include "kernels/gpu.h"

#include "base/assert.h"
#include "kernels/gpu_int.h"
#include "kernels/module.h"

int gpu_open(int index, struct gpu **ret, struct err *err)
{
    int (*open)(int, struct gpu **, struct err *);
    if (kn_module_find("cuda", "kn_cuda_gpu_open", (void **)&open, err) == 0)
        return open(index, ret, err);
    return err_set(err, -ENOTSUP, "CUDA is not available");
}

void gpu_close(struct gpu *g)
{
    if (g) g->ops->close(g);
}

const char *gpu_name(const struct gpu *g)
{
    return g->name;
}

/* A lost device stays lost, whatever its driver says next. */
static int checked(struct gpu *g, int r)
{
    if (r == -EIO) atomic_store(&g->lost, true);
    return r;
}

#define ALIVE(g)                                                                                   \
    do {                                                                                           \
        if (atomic_load(&(g)->lost)) return -EIO;                                                  \
    } while (0)

int gpu_alloc(struct gpu *g, size_t bytes, void **ret)
{
    ASSERT(bytes > 0);
    ALIVE(g);
    return checked(g, g->ops->alloc(g, bytes, ret));
}

void gpu_free(struct gpu *g, void *p)
{
    if (p) g->ops->free(g, p);
}

int gpu_host_register(struct gpu *g, void *p, size_t bytes)
{
    ASSERT(p && bytes > 0);
    ALIVE(g);
    return checked(g, g->ops->host_register(g, p, bytes));
}

void gpu_host_unregister(struct gpu *g, void *p)
{
    g->ops->host_unregister(g, p);
}

int gpu_stream_create(struct gpu *g, int priority, struct gpu_stream **ret)
{
    ASSERT(priority == 0 || priority == -1);
    ALIVE(g);
    return checked(g, g->ops->stream_create(g, priority, ret));
}

void gpu_stream_destroy(struct gpu_stream *s)
{
    if (s) s->g->ops->stream_destroy(s);
}

int gpu_stream_sync(struct gpu_stream *s)
{
    ALIVE(s->g);
    return checked(s->g, s->g->ops->stream_sync(s));
}

int gpu_copy_async(struct gpu_stream *s, void *dst, const void *src, size_t bytes)
{
    ALIVE(s->g);
    return checked(s->g, s->g->ops->copy(s, dst, src, bytes));
}

int gpu_event_create(struct gpu *g, struct gpu_event **ret)
{
    ALIVE(g);
    return checked(g, g->ops->event_create(g, ret));
}

void gpu_event_destroy(struct gpu_event *e)
{
    if (e) e->g->ops->event_destroy(e);
}

int gpu_event_record(struct gpu_event *e, struct gpu_stream *s)
{
    ASSERT(s->g == e->g);
    ALIVE(e->g);
    return checked(e->g, e->g->ops->event_record(e, s));
}

int gpu_event_wait(struct gpu_event *e, uint64_t deadline_ns)
{
    ALIVE(e->g);
    return checked(e->g, e->g->ops->event_wait(e, deadline_ns));
}
