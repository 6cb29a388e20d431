/* mem: memory, streams, events and copies of a GPU, as C calls that need its number alone: what
 * gpu.c and dev.c are made of. Streams and events are CUDA's own. Errors: -ENOMEM, -EINVAL, -EEXIST
 * (memory that is pinned already), -ENOTSUP, anything else -EIO: nothing says which errors leave a
 * context usable. Thread: any, one stream or event by one at a time. */
#ifndef KERNELS_CUDA_MEM_H
#define KERNELS_CUDA_MEM_H

#include "kernels/gpu_int.h"

#ifdef __cplusplus
extern "C" {
#endif

int cu_mem_open(struct gpu *g, char *msg, size_t msg_bytes); /* fills its name in */
/* The runtime keeps a current device per thread, which launches and the library go by. Everything
 * here and cu_use() set it, nothing else does. */
int cu_mem_use(int index);
int cu_mem_info(struct gpu *g, uint64_t *ret_free, uint64_t *ret_total);
int cu_mem_alloc(struct gpu *g, size_t bytes, void **ret);
void cu_mem_free(struct gpu *g, void *p);
int cu_mem_pin(struct gpu *g, void *p, size_t bytes);
void cu_mem_unpin(struct gpu *g, void *p);
/* Only operations reach it: it needs no copy to be read by them. */
int cu_mem_is_device(struct gpu *g, const void *p);

int cu_stream_create(struct gpu *g, int priority, struct gpu_stream **ret);
void cu_stream_destroy(struct gpu *g, struct gpu_stream *s); /* waits for what is queued */
int cu_stream_sync(struct gpu *g, struct gpu_stream *s);
int cu_stream_wait(struct gpu *g, struct gpu_stream *s, struct gpu_event *e);
/* Many at once, in no order among each other, all with gaps or none. After an error none or some of
 * them are queued. */
struct gpu_copy {
    void *dst;
    const void *src;
    size_t bytes;
    size_t row, from, to; /* rows of so many bytes, so far apart in src and in dst; 0: no gaps */
};
int cu_stream_copy(struct gpu *g, struct gpu_stream *s, const struct gpu_copy *c, size_t n);
int cu_event_create(struct gpu *g, struct gpu_event **ret);
void cu_event_destroy(struct gpu *g, struct gpu_event *e);
int cu_event_record(struct gpu *g, struct gpu_event *e, struct gpu_stream *s);
int cu_event_sync(struct gpu *g, struct gpu_event *e);

int kn_cuda_gpu_open(int index, struct gpu **ret, struct err *err);

#ifdef __cplusplus
}
#endif
#endif
