/* gpu: the tier in device memory.
 *
 * One allocation of the device, made at creation, handed out in pages to the parts of records. The
 * caps are hard: records that are being written and those that are gone but still in use count.
 * Copies run on a stream per direction, a thread each waits for their events; nobody waits for the
 * device as a whole. A record becomes visible when its last part has arrived. It does not survive
 * the process.
 * A consumer on the device pins a record and gets device pointers. It may pin one that is still on
 * its way: each part comes with the event that its stream has to wait for.
 * Life cycle: gpu_open() → tier_gpu_create() → pins → unpins → destroy() → gpu_close().
 * Memory given to add_memory() is pinned and copied by DMA. Thread: any, as tier.h. */
#ifndef TIERS_GPU_H
#define TIERS_GPU_H

#include "kernels/gpu.h"
#include "tiers/tier.h"

struct tier_gpu_opts {
    struct gpu *gpu; /* borrowed until destroy() */
    uint64_t capacity_bytes;
    enum evict_policy policy;
};
/* -EINVAL less than a page, -ENOMEM, -EIO. The tier can shrink and grow back, not beyond
 * capacity_bytes; what it does not use then stays its own. */
int tier_gpu_create(const struct tier_gpu_opts *o, struct tier **ret, struct err *err);

struct tier_gpu_pin;
/* Holds a record in place: 1, 0 not here. The tier checks no checksums: what is here is what was
 * written. */
int tier_gpu_pin(struct tier *t, const struct tier_key *k, struct tier_gpu_pin **ret);
const struct record_layout *tier_gpu_layout(const struct tier_gpu_pin *p);
/* Where group i stands on the device. *ret_event: what to wait for before touching it, valid while
 * pinned; NULL when it is there. Waits, if it must, until the copy is queued. -ECANCELED: it will
 * not come, -EIO. */
int tier_gpu_group(struct tier_gpu_pin *p, uint32_t group, void **ret,
                   struct gpu_event **ret_event);
/* Only after all that reads the record on the device is done. */
void tier_gpu_unpin(struct tier_gpu_pin *p);

#endif
