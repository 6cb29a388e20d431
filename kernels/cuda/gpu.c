/* gpu.h on a GPU: mem.h, as one kind of it. The same device as dev.c's: both use the driver's one
 * context of it, so what is allocated here is what kernels read. */
#include "base/mem.h"
#include "kernels/cuda/mem.h"

static void module_close(struct gpu *g)
{
    mem_free(g);
}

static int module_copy(struct gpu *g, struct gpu_stream *s, void *dst, const void *src,
                       size_t bytes)
{
    return cu_stream_copy(g, s, &(struct gpu_copy){.dst = dst, .src = src, .bytes = bytes}, 1);
}

static const struct gpu_ops module_ops = {
    .close = module_close,
    .alloc = cu_mem_alloc,
    .free = cu_mem_free,
    .host_register = cu_mem_pin,
    .host_unregister = cu_mem_unpin,
    .stream_create = cu_stream_create,
    .stream_destroy = cu_stream_destroy,
    .stream_sync = cu_stream_sync,
    .copy = module_copy,
    .event_create = cu_event_create,
    .event_destroy = cu_event_destroy,
    .event_record = cu_event_record,
    .event_wait = cu_event_sync,
};

int kn_cuda_gpu_open(int index, struct gpu **ret, struct err *err)
{
    char why[160] = "";
    struct gpu *g = mem_zalloc(sizeof *g);
    if (!g) return err_set(err, -ENOMEM, "out of memory");
    g->ops = &module_ops;
    g->index = index;
    int r = cu_mem_open(g, why, sizeof why);
    if (r < 0) {
        mem_free(g);
        return err_set(err, r, "%s", why);
    }
    *ret = g;
    return 0;
}
