/* drain: the ring by which computed KV leaves a device: operations of one stream write to it, a
 * stream of copies empties it behind them, and the host waits for neither until it wants the bytes.
 * Where there is no room, the first stream waits for the oldest copies, on the device.
 *
 * drain_init() → drain_room(), what writes there, drain_send(), again and again → drain_wait() →
 * drain_fini(). Room is given out and comes back in the order of the calls. Thread: one at a time.
 */
#ifndef KERNELS_CUDA_DRAIN_H
#define KERNELS_CUDA_DRAIN_H

#include "kernels/gpu.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Chosen: pieces on their way; two thirds of a layer's KV of 3104 tokens on 8 KV heads of 128. */
enum { DRAIN_GROUPS = 64, DRAIN_BYTES = 8 << 20 };
struct drain_group {
    uint64_t end; /* how far it reaches, in bytes ever given out */
    struct gpu_event *written, *gone;
};
struct drain {
    struct gpu *g;
    struct gpu_stream *stream;
    char *base;           /* the caller's, DRAIN_BYTES; NULL: there is no ring */
    uint64_t head, tail;  /* bytes ever given out, and of those given back */
    uint64_t first, next; /* groups [first, next) are on their way */
    uint64_t at;          /* what drain_room() gave last, and how much */
    size_t bytes;
    bool busy; /* something was sent since drain_wait() */
    struct drain_group group[DRAIN_GROUPS];
};
int drain_init(struct drain *d, struct gpu *g, char *base);
void drain_fini(struct drain *d); /* waits; accepts zeroed memory */
/* Room for what `from` is given next to write, half of the ring at most. */
int drain_room(struct drain *d, struct gpu_stream *from, size_t bytes, void **ret);
/* What `from` was given has written it: to the host's memory with it, rows of so many bytes, so far
 * apart there. */
int drain_send(struct drain *d, struct gpu_stream *from, void *to, size_t row, size_t stride);
int drain_wait(struct drain *d); /* all of it has arrived */

#endif
