/* mem: memory, streams, events and copies of a GPU by its number, as C calls: what gpu.c and dev.c
 * are made of. Streams and events are opaque pointers. Errors: -ENOMEM, -EINVAL, -EEXIST (memory
 * that is pinned already), -ENOTSUP, anything else -EIO: nothing says which errors leave a context
 * usable. Thread: any, one stream or event by one at a time. */
#ifndef KERNELS_CUDA_MEM_H
#define KERNELS_CUDA_MEM_H

#include "kernels/gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

int cu_mem_open(int index, char *name, size_t name_bytes, char *msg, size_t msg_bytes);
/* The runtime keeps a current device per thread, which launches and the library go by. Everything
 * here and cu_use() set it, nothing else does. */
int cu_mem_use(int index);
int cu_mem_info(int index, uint64_t *ret_free, uint64_t *ret_total);
int cu_mem_alloc(int index, size_t bytes, void **ret);
void cu_mem_free(int index, void *p);
int cu_mem_pin(int index, void *p, size_t bytes);
void cu_mem_unpin(int index, void *p);
/* Only operations reach it: it needs no copy to be read by them. */
int cu_mem_is_device(int index, const void *p);

int cu_stream_create(int index, int urgent, void **ret);
void cu_stream_destroy(int index, void *stream); /* waits for what is queued */
int cu_stream_sync(int index, void *stream);
int cu_stream_wait(int index, void *stream, void *event);
/* Many at once, in no order among each other. After an error none or some of them are queued. */
struct gpu_copy {
    void *dst;
    const void *src;
    size_t bytes;
};
int cu_stream_copy(int index, void *stream, const struct gpu_copy *c, size_t n);
int cu_event_create(int index, void **ret);
void cu_event_destroy(int index, void *event);
int cu_event_record(int index, void *event, void *stream);
int cu_event_query(int index, void *event); /* 1 fired, 0 not yet */
int cu_event_sync(int index, void *event);

#ifdef __cplusplus
}
#endif
#endif
