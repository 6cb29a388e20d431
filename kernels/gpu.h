/* gpu: memory of an accelerator, streams, events and asynchronous copies.
 *
 * The contract of CUDA's module, and of tests/doubles/gpu_host.h. Not for kernels (kn.h). What is
 * queued on a stream runs in order and later: the memory of a copy belongs to it until an event
 * recorded behind it has fired. Streams are ordered among each other by the host alone. A device
 * pointer must not be followed by the host.
 * Life cycle: kn_dev_gpu() → gpu_alloc(), gpu_stream_create(), gpu_event_create() → copies, events
 * → destroy them → gpu_close(). Once the device has failed, everything says -EIO for ever; what is
 * released is released all the same.
 * Errors: -ENODEV no such device, -ENOTSUP not built in, -ENOMEM no memory (of either side),
 * -EINVAL a range outside of an allocation, -EIO device lost.
 * Thread: any; one stream or event by one thread at a time, but an event may be recorded by one
 * thread and waited for by another. */
#ifndef KERNELS_GPU_H
#define KERNELS_GPU_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gpu;
struct gpu_stream;
struct gpu_event;
void gpu_close(struct gpu *g);             /* after everything that was made from it */
const char *gpu_name(const struct gpu *g); /* as the vendor calls it */

int gpu_alloc(struct gpu *g, size_t bytes, void **ret); /* aligned to 256, not cleared */
void gpu_free(struct gpu *g, void *p);                  /* accepts NULL */
/* Page-aligned host memory that copies reach by DMA; others work as well, but slower and, in part,
 * inside the call. */
int gpu_host_register(struct gpu *g, void *p, size_t bytes);
void gpu_host_unregister(struct gpu *g, void *p);

/* priority 0, or -1: goes before those of 0. */
int gpu_stream_create(struct gpu *g, int priority, struct gpu_stream **ret);
/* Waits for what is queued; accepts NULL. */
void gpu_stream_destroy(struct gpu *g, struct gpu_stream *s);
/* Waits for it, for paths where all else failed. */
int gpu_stream_sync(struct gpu *g, struct gpu_stream *s);
int gpu_copy_async(struct gpu *g, struct gpu_stream *s, void *dst, const void *src, size_t bytes);

/* An event fires when all that was queued before its last record is done; unrecorded, it has. */
int gpu_event_create(struct gpu *g, struct gpu_event **ret);
void gpu_event_destroy(struct gpu *g, struct gpu_event *e); /* accepts NULL */
int gpu_event_record(struct gpu *g, struct gpu_event *e, struct gpu_stream *s);
int gpu_event_wait(struct gpu *g, struct gpu_event *e);

#endif
