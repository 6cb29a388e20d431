/* gpu: the tier in device memory.
 *
 * One stretch of the device, handed out in frames of one size: the tier's own, or a pool that it
 * shares with the pages of running sequences. Then one number of bytes is for both, and sequences
 * go first: tier_gpu_lend() takes frames from records, least recently used first; in those that
 * come back records grow again as they are used. The caps are hard: records that are being written
 * and those that are gone but still in use count. A record's header is in host memory, as it is
 * what lookups read. Copies run on a stream per direction, a thread each waits for their events;
 * no call waits for the device as a whole. A record becomes visible when its last part has arrived.
 * It does not survive the process. A consumer on the device pins a record and gets device pointers.
 * Life cycle: kn_dev_gpu() → tier_gpu_create() → pins → unpins → destroy() → gpu_close().
 * Memory given to add_memory() is pinned and copied by DMA. Thread: any, as tier.h. */
#ifndef TIERS_GPU_GPU_H
#define TIERS_GPU_GPU_H

#include "kernels/gpu.h"
#include "tiers/tier.h"

struct tier_gpu_opts {
    struct gpu *gpu; /* borrowed until destroy() */
    uint64_t capacity_bytes;
    enum evict_policy policy;
    /* A pool to share, not yet in use: capacity_bytes of memory on the device in frames; NULL: own
     * memory, in frames of 4 KiB. */
    void *pool;
    size_t frame_bytes; /* whole 4 KiB */
};
/* -EINVAL less than a frame, -ENOMEM, -EIO. The tier can shrink and grow back, not beyond
 * capacity_bytes; what it does not use then stays its own. */
int tier_gpu_create(const struct tier_gpu_opts *o, struct tier **ret, struct err *err);

/* A frame of the shared pool for a sequence, by number. Records make way: those without a pin
 * first, then the others, whose holders find out by -ECANCELED; copies under way are
 * waited for. Not more than there are. */
int32_t tier_gpu_lend(struct tier *t);
void tier_gpu_take_back(struct tier *t, int32_t frame);

struct tier_gpu_pin;
/* Holds a record in place: 1, 0 not here, or not yet. The tier checks no checksums: what is here is
 * what was written. */
int tier_gpu_pin(struct tier *t, const struct tier_key *k, struct tier_gpu_pin **ret);
const struct record_layout *tier_gpu_layout(const struct tier_gpu_pin *p);
const void *tier_gpu_header(const struct tier_gpu_pin *p); /* its header region, in host memory */
/* Where group i stands on the device, until unpin() or the next tier_gpu_lend(), which the thread
 * that reads it calls. -ECANCELED: it had to make way. */
int tier_gpu_group(struct tier_gpu_pin *p, uint32_t group, void **ret);
/* Only after all that reads the record on the device is done. */
void tier_gpu_unpin(struct tier_gpu_pin *p);

#endif
