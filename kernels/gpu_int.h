/* gpu_int: what the kinds of gpu.h share, and what each of them provides.
 *
 * A kind embeds struct gpu as the first member of its own; streams and events are its own alone.
 * gpu.c checks arguments and asks no kind once the device is lost; a kind says -EIO to tell that it
 * is. C++ reads this, too. Thread: as gpu.h. */
#ifndef KERNELS_GPU_INT_H
#define KERNELS_GPU_INT_H

#include "kernels/gpu.h"

struct gpu {
    const struct gpu_ops *ops;
    int index;
    bool lost; /* atomic builtins */
    char name[64];
};
struct gpu_ops { /* as gpu.h's */
    void (*close)(struct gpu *g);
    int (*alloc)(struct gpu *g, size_t bytes, void **ret);
    void (*free)(struct gpu *g, void *p);
    int (*host_register)(struct gpu *g, void *p, size_t bytes);
    void (*host_unregister)(struct gpu *g, void *p);
    int (*stream_create)(struct gpu *g, int priority, struct gpu_stream **ret);
    void (*stream_destroy)(struct gpu *g, struct gpu_stream *s);
    int (*stream_sync)(struct gpu *g, struct gpu_stream *s);
    int (*copy)(struct gpu *g, struct gpu_stream *s, void *dst, const void *src, size_t bytes);
    int (*event_create)(struct gpu *g, struct gpu_event **ret);
    void (*event_destroy)(struct gpu *g, struct gpu_event *e);
    int (*event_record)(struct gpu *g, struct gpu_event *e, struct gpu_stream *s);
    int (*event_wait)(struct gpu *g, struct gpu_event *e);
};

#endif
