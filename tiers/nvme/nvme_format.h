/* nvme_format: what stands on the device: superblocks, slot headers, size classes.
 *
 * Superblock A at 0, B at 256 KiB, extents from 512 KiB on. Internal to tiers/nvme/.
 * Pure; thread: any. */
#ifndef TIERS_NVME_FORMAT_H
#define TIERS_NVME_FORMAT_H

#include "tiers/bytes.h" /* asserts the byte order */
#include "tiers/tier.h"

enum {
    NVME_PAGE = 4096,
    NVME_SUPER_BYTES = 256 << 10,
    NVME_DATA_OFF = 2 * NVME_SUPER_BYTES,
    NVME_EXTENTS_MAX = (NVME_SUPER_BYTES - NVME_PAGE) / 8,
    NVME_CLASSES = 256,
    NVME_VERSION = 1,
};

/* Both structs are what stands on the device: no padding, little endian, offsets beside the fields.
 * Version rule: a reader takes only the version it knows.
 * Superblock: the valid one with the later sequence (modulo 2^64) counts; they are written in turn,
 * with as many pages of the table as the extents need. */
struct nvme_super {
    char magic[8]; /* "KVBNVME\n" */
    uint32_t version, n_extents;
    uint64_t seq, device_id, capacity_bytes, extent_bytes; /* 16, 24, 32, 40 */
    uint32_t owner_pid, zero;                              /* 48; pid 0 = closed */
    uint64_t sum; /* 56: XXH3-64 of [0, 56) and of the table */
    uint8_t unused[NVME_PAGE - 64];
    struct {
        uint32_t slot_pages, epoch; /* size in 4 KiB pages, 0 = free */
    } extent[NVME_EXTENTS_MAX];     /* 4096 */
};
/* Slot header, a page in front of each record. Valid only if the checksum holds, device id, epoch,
 * slot pages and offset are those of the place where it stands, and it has the highest generation
 * of its key. A freed slot is zeros in its first page. An extent's epoch is the low half of the
 * superblock sequence that gave it its class, so that slots of an earlier life never count. */
struct nvme_head {
    char magic[8]; /* "KVBSLOT\n" */
    uint32_t version, slot_pages;
    uint64_t device_id, generation; /* 16, 24 */
    struct tier_key key;            /* 32: high half, low half */
    uint64_t record_bytes;
    uint32_t n_tokens; /* 56 */
    uint16_t kind, zero;
    uint64_t ns_hash, ident_hash;    /* 64, 72 */
    uint64_t created_ms, expires_ms; /* 80, 88: since the epoch; 0 never */
    uint64_t header_sum;             /* 96: the record header's own checksum */
    uint32_t epoch;                  /* of the extent */
    uint32_t reserved;               /* 108: 0; older writers: f32, ignored */
    uint64_t off, written_ms;        /* 112: offset on the device */
    uint64_t sum;                    /* 128: XXH3-64 of [0, 128); zeros up to 4096 */
};
size_t nvme_super_bytes(uint32_t n_extents); /* whole pages */
void nvme_super_seal(struct nvme_super *s);  /* magic, version and sum */
/* -ENOENT no magic, -ESTALE another version, -EBADMSG damaged. */
int nvme_super_check(const struct nvme_super *s);
/* Of two superblocks. Who forges one may choose its end of the range, and the next ones wrap. */
static inline bool nvme_seq_after(uint64_t a, uint64_t b)
{
    return (int64_t)(a - b) > 0;
}
void nvme_head_put(uint8_t *page, const struct nvme_head *h);
int nvme_head_get(const uint8_t *page, struct nvme_head *ret); /* as nvme_super_check() */
/* Pages of the slots that hold `bytes` with their header, and the number of that class; 0 = larger
 * than an extent. Classes grow by 1/8 of a power of two (<= 12.5 %); sizes of which the same number
 * (up to 8) fits into an extent are one class, as the difference would only be lost. */
uint32_t nvme_class_of(uint64_t bytes, uint64_t extent_bytes, unsigned *ret_class);
uint64_t nvme_extent_auto(uint64_t capacity_bytes, uint64_t record_bytes_usual);

#endif
