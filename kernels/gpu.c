#include "kernels/gpu.h"

#include "base/assert.h"
#include "kernels/gpu_int.h"

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
    if (r == -EIO) __atomic_store_n(&g->lost, true, __ATOMIC_SEQ_CST);
    return r;
}

#define ALIVE(g)                                                                                   \
    do {                                                                                           \
        if (__atomic_load_n(&(g)->lost, __ATOMIC_SEQ_CST)) return -EIO;                            \
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

void gpu_stream_destroy(struct gpu *g, struct gpu_stream *s)
{
    if (s) g->ops->stream_destroy(g, s);
}

int gpu_stream_sync(struct gpu *g, struct gpu_stream *s)
{
    ALIVE(g);
    return checked(g, g->ops->stream_sync(g, s));
}

int gpu_copy_async(struct gpu *g, struct gpu_stream *s, void *dst, const void *src, size_t bytes)
{
    ALIVE(g);
    return checked(g, g->ops->copy(g, s, dst, src, bytes));
}

int gpu_event_create(struct gpu *g, struct gpu_event **ret)
{
    ALIVE(g);
    return checked(g, g->ops->event_create(g, ret));
}

void gpu_event_destroy(struct gpu *g, struct gpu_event *e)
{
    if (e) g->ops->event_destroy(g, e);
}

int gpu_event_record(struct gpu *g, struct gpu_event *e, struct gpu_stream *s)
{
    ALIVE(g);
    return checked(g, g->ops->event_record(g, e, s));
}

int gpu_event_wait(struct gpu *g, struct gpu_event *e)
{
    ALIVE(g);
    return checked(g, g->ops->event_wait(g, e));
}
