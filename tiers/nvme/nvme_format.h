/* nvme_format: what stands on the device: superblocks, slot headers, size classes.
 *
 * Superblock A at 0, B at 256 KiB, extents from 512 KiB on. Little endian. Internal to tiers/nvme/.
 * Pure; thread: any. */
#ifndef TIERS_NVME_FORMAT_H
#define TIERS_NVME_FORMAT_H

#include "tiers/tier.h"

enum {
    NVME_PAGE = 4096,
    NVME_SUPER_BYTES = 256 << 10,
    NVME_DATA_OFF = 2 * NVME_SUPER_BYTES,
    NVME_EXTENTS_MAX = (NVME_SUPER_BYTES - NVME_PAGE) / 8,
    NVME_CLASSES = 256,
    NVME_VERSION = 1,
};

/* Superblock. The valid one with the later sequence (modulo 2^64) counts; they are written in turn.
 *   0  u8[8]  magic "KVBNVME\n"          32  u64 capacity, bytes
 *   8  u32    version, 1                 40  u64 extent, bytes
 *  12  u32    number of extents, n       48  u32 process id of the owner, 0 = closed
 *  16  u64    sequence                   52  u32 zero
 *  24  u64    device id                  56  u64 XXH3-64 of [0, 56) and of the table
 * 4096 table: per extent u32 slot size in 4 KiB pages (0 = free), u32 epoch.
 * Slot header, a page in front of each record. Valid only if the checksum holds, device id, epoch,
 * slot pages and offset are those of the place where it stands, and it has the highest generation
 * of its key. A freed slot is zeros in its first page.
 *   0  u8[8]  magic "KVBSLOT\n"          72  u64 identity hash
 *   8  u32    version, 1                 80  u64 created, ms since the epoch
 *  12  u32    slot pages                 88  u64 expires, ms; 0 never
 *  16  u64    device id                  96  u64 the record header's own checksum
 *  24  u64    generation                104  u32 epoch of the extent
 *  32  u64    key, high half            108  4   reserved, 0; older writers: f32, ignored
 *  40  u64    key, low half             112  u64 offset on the device
 *  48  u64    record bytes              120  u64 written, ms
 *  56  u32    n_tokens                  128  u64 XXH3-64 of [0, 128); zeros up to 4096
 *  60  u16    kind; u16 zero
 *  64  u64    namespace hash
 * An extent's epoch is the low half of the superblock sequence that gave it its class, so that
 * slots of an earlier life never count. Version rule: a reader takes only the version it knows. */
struct nvme_super {
    uint64_t seq, device_id, capacity_bytes, extent_bytes;
    uint32_t n_extents, owner_pid;
    uint32_t *slot_pages, *epoch; /* [n_extents], the caller's memory */
};
struct nvme_head {
    uint32_t slot_pages, n_tokens, epoch;
    enum tier_kind kind;
    struct tier_key key;
    uint64_t device_id, generation, record_bytes, ns_hash, ident_hash, created_ms, expires_ms;
    uint64_t header_sum, off, written_ms;
};
size_t nvme_super_bytes(uint32_t n_extents); /* whole pages */
void nvme_super_put(uint8_t *p, const struct nvme_super *s);
/* Fixed fields only, then the table when `s->slot_pages` is set. -ENOENT no magic, -ESTALE another
 * version, -EBADMSG damaged. */
int nvme_super_get(const uint8_t *p, struct nvme_super *s);
/* Of two superblocks. Who forges one may choose its end of the range, and the next ones wrap. */
static inline bool nvme_seq_after(uint64_t a, uint64_t b)
{
    return (int64_t)(a - b) > 0;
}
void nvme_head_put(uint8_t *page, const struct nvme_head *h);
int nvme_head_get(const uint8_t *page, struct nvme_head *ret); /* as nvme_super_get */
/* Pages of the slots that hold `bytes` with their header, and the number of that class; 0 = larger
 * than an extent. Classes grow by 1/8 of a power of two (<= 12.5 %); sizes of which the same number
 * (up to 8) fits into an extent are one class, as the difference would only be lost. */
uint32_t nvme_class_of(uint64_t bytes, uint64_t extent_bytes, unsigned *ret_class);
uint64_t nvme_extent_auto(uint64_t capacity_bytes, uint64_t record_bytes_usual);

#endif
