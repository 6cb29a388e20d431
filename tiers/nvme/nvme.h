/* nvme: records on a local disk, a preallocated file or a raw block device (struct tier).
 *
 * The capacity is cut into extents (1 GiB on large devices) of one size class each, and an extent
 * into uniform slots: allocation is O(1), eviction is per record, nothing is ever moved or
 * compacted, and the file cannot grow past its capacity. A slot is a 4 KiB slot header and the
 * record's parts end to end; formats by offset in nvme_int.h. A record is visible from the moment
 * its slot header is on the device, which is written after its payload; records survive kill -9 and
 * a restart, pins do not. Nothing is fsynced per record: after a loss of power a record is there
 * and whole, or its checksums make it a miss. A removal is on the device once drain() or destroy()
 * returned; killed before that, the removed record may be back.
 * add_memory() registers memory with io_uring (-ENOTSUP without it); beyond the limit of locked
 * memory -ENOMEM, which `degraded` explains, and the memory is used unregistered.
 * One I/O thread per tier: io_uring, or a pool of threads with pread and pwrite where it is
 * refused; tier_stat.degraded says so. Records of several models may share a device.
 * destroy() waits hang_ms_max for transfers under way; ops whose transfer never ended then get
 * -ETIMEDOUT: the device may still write to their memory, so unmap it and do not reuse it. What
 * the tier itself still holds for such a transfer is leaked on purpose. Thread: as tier.h. */
#ifndef TIERS_NVME_NVME_H
#define TIERS_NVME_NVME_H

#include "tiers/tier.h"

#define TIER_NVME_NO_BUDGET UINT64_MAX
#define TIER_NVME_NO_SCRUB UINT64_MAX
enum { TIER_NVME_QUEUE_OPS = 256 }; /* ops at a time; more are refused with -EAGAIN */

struct tier_nvme_opts {
    const char *path;
    uint64_t capacity_bytes; /* of the whole file; 0 = all of a block device */
    /* Power of two; 0 = what the file has, and for a new one the capacity / 64 rounded down to a
     * power of two, at least 16 MiB (but 8 extents) and at most 1 GiB. */
    uint64_t extent_bytes;
    /* An automatic extent holds four of these, or one if it takes half of the file; 0 = unknown. */
    uint64_t record_bytes_usual;
    enum evict_policy policy;
    /* 0 = the size of the drive (of the file system that holds the file) a day. */
    uint64_t write_bytes_per_day;
    uint64_t scrub_bytes_per_s; /* 0 = 4 MiB/s */
    uint32_t hang_ms_max;       /* 0 = 10 s; see above */
    uint32_t corrupt_max;       /* bad checksums or failed writes until read-only; 0 = 32 */
    bool force_pool;            /* no io_uring */
};
int tier_nvme_create(const struct tier_nvme_opts *o, struct tier **ret, struct err *err);

#endif
