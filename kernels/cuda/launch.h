/* launch: what the host's side (C) asks of the CUDA sources: a device with one stream. What runs on
 * it: gemm.h, rows.h.
 *
 * All launches are queued on the device's stream and return at once: 0, or -EIO when the device is
 * lost (for ever), -EINVAL for what no kernel can do. Pointers are the device's unless they are
 * said to be the host's. Positions out of range are found by kernels, which write nothing there;
 * cu_sync() then says -EINVAL, once; of values that pages of 8 bits do not know, -ERANGE. Tensors
 * in f32 but for pages, which are of the device's type (CU_F32, CU_BF16) or CU_Q8, and the sides of
 * products, which may be of 8 bits. Thread: one at a time per device. */
#ifndef KERNELS_CUDA_LAUNCH_H
#define KERNELS_CUDA_LAUNCH_H

#include "kernels/types.h"

#ifdef __cplusplus
extern "C" {
#endif

enum cu_type { /* stored KV's, and of sides of products alone */
               CU_F32 = KN_F32,
               CU_F16 = KN_F16,
               CU_BF16 = KN_BF16,
               CU_Q8 = KN_Q8,
               CU_FP8, /* e4m3 */
               CU_INT8
};
enum cu_fault { /* what a kernel met */
                CU_BAD_POSITION = 1,
                CU_BAD_VALUE /* that pages of 8 bits do not know */
};
struct cu;
struct gpu_stream;

/* Of a device that is there (cu_mem_open()). -ENODEV with a sentence. type: of products that are
 * not of 8 bits, and of pages unless these are q8. */
int cu_open(int index, enum cu_type type, bool q8, struct cu **ret, char *msg, size_t msg_size);
void cu_close(struct cu *c);
void cu_use(const struct cu *c);            /* before anything else that a thread asks of it */
struct gpu_stream *cu_stream(struct cu *c); /* for mem.h */
void *cu_alloc(struct cu *c, enum kn_mem kind, size_t bytes); /* cleared; NULL */
void cu_free(struct cu *c, void *p, enum kn_mem kind);
int cu_clear(struct cu *c, void *p, size_t bytes);
/* Any direction. The host's pageable memory is read before the call returns and filled when it
 * does; pinned memory when the stream gets there. */
int cu_copy(struct cu *c, void *dst, const void *src, size_t bytes);
/* Rows of so many bytes, from row to row so far apart. */
int cu_copy_rows(struct cu *c, void *dst, size_t to, const void *src, size_t from, size_t bytes,
                 size_t n);
int cu_sync(struct cu *c);
/* How long the device takes for what is queued in between; the end waits for it. One at a time. */
int cu_span_start(struct cu *c);
int cu_span_end(struct cu *c, double *ret_us);

/* What is queued between cu_record() and cu_recorded() does not run: it becomes a graph, of these
 * addresses and shapes, that cu_play() queues as a whole. -ENOTSUP: it cannot be; then what was
 * queued is forgotten and the device is as it was. No memory is asked for or given back meanwhile.
 */
int cu_record(struct cu *c);
int cu_recorded(struct cu *c, void **ret_graph);
int cu_play(struct cu *c, void *graph);
void cu_graph_free(struct cu *c, void *graph); /* accepts NULL */

#ifdef __cplusplus
}
#endif
#endif
