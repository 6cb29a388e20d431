/* stage: the ring of kn_stage(): device memory that a stream of copies fills ahead of the kernels.
 *
 * Memory is given out in the order of the calls and comes back in any: what is behind a group that
 * is still held waits for it. Turns count groups, from 1. Thread: one at a time. */
#ifndef KERNELS_CUDA_STAGE_H
#define KERNELS_CUDA_STAGE_H

#include "kernels/gpu.h"
#include "kernels/kn.h"

enum { STAGE_GROUPS = 64, STAGE_COPIES = 64 }; /* chosen: layers on their way; copies at once */
struct stage_group {
    uint64_t end; /* how far it reaches, in bytes ever given out */
    struct gpu_event *event;
    bool held;
};
struct stage {
    struct gpu *g;
    struct gpu_stream *stream;
    char *base; /* the caller's; NULL: there is no ring */
    size_t bytes;
    uint64_t head, tail;  /* bytes ever given out, and of those given back */
    uint64_t first, next; /* turns [first, next) are held, or behind one that is */
    struct stage_group group[STAGE_GROUPS];
};
int stage_init(struct stage *s, struct gpu *g, char *base, size_t bytes);
void stage_fini(struct stage *s); /* accepts zeroed memory */
int stage_begin(struct stage *s, struct kn_piece *p, size_t n, uint64_t *ret_turn);
int stage_wait(struct stage *s, struct gpu_stream *stream, uint64_t turn);
void stage_end(struct stage *s, uint64_t turn);

#endif
