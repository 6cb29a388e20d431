/* nvme_space: extents, size classes, slots, their index, eviction and quotas, in memory alone.
 *
 * Internal to tiers/nvme/. Guarded by struct nvme's m; no I/O. */
#ifndef TIERS_NVME_SPACE_H
#define TIERS_NVME_SPACE_H

#include "tiers/nvme/nvme_format.h"
#include "tiers/quota.h"

#include <stddef.h>
#include <sys/queue.h>

enum nvme_slot_state {
    NVME_FREE,
    NVME_DIRTY,    /* free, but its header on the device may still be valid */
    NVME_CLEANING, /* that header is being overwritten */
    NVME_WRITING,
    NVME_READY,
    NVME_ZOMBIE /* gone from the index, an op still uses it */
};
struct nvme_slot {
    struct evict_node node;
    struct nvme_extent *extent;
    TAILQ_ENTRY(nvme_slot) link; /* extent->free or ->dirty */
    uint64_t generation, ns_hash, created_ms, expires_ms, used_ms, record_bytes;
    uint32_t heap_at; /* 1 + place in the heap of expiries, 0 = not there */
    uint32_t n_tokens, refs, hits;
    uint8_t state, kind;
    bool pinned, on_device; /* a header of this slot may be valid on the device */
    bool restored;          /* found at start: older than all that is written since */
};
TAILQ_HEAD(nvme_slots, nvme_slot);
struct nvme_class {
    uint32_t slot_pages, n_slots, n_cleaning;
    struct evict *evict;
    TAILQ_HEAD(, nvme_extent) avail; /* extents with free or dirty slots */
};
struct nvme_extent {
    struct nvme_class *class; /* NULL = free */
    struct nvme_slot *slot;   /* [n_slots] */
    struct nvme_slots free, dirty;
    TAILQ_ENTRY(nvme_extent) avail_link, dirty_link;
    uint32_t index, n_slots, n_used, n_ready, n_pinned, epoch;
    uint64_t super_seq; /* usable once this superblock is on the device */
    bool in_avail, in_dirty, retired;
};
struct nvme_space {
    uint64_t extent_bytes, capacity_bytes, used_bytes, pinned_bytes, n_records, super_seq;
    uint64_t generation; /* of the next record */
    uint64_t evictions, expired;
    enum evict_policy policy;
    struct nvme_extent **extent; /* [n_extents], each its own allocation */
    uint32_t n_extents, n_free_extents, n_empty_extents, n_cleaning; /* empty: with a class */
    struct nvme_class *class[NVME_CLASSES];
    struct key_map index;
    struct nvme_slot **heap;
    size_t n_heap, heap_cap;
    TAILQ_HEAD(, nvme_extent) dirty;
    struct quota quota;
};
int nvme_space_init(struct nvme_space *s, uint64_t capacity_bytes, uint64_t extent_bytes,
                    uint32_t n_extents, enum evict_policy policy);
void nvme_space_fini(struct nvme_space *s);
int nvme_space_grow(struct nvme_space *s, uint32_t n_extents);
int nvme_space_assign(struct nvme_space *s, uint32_t extent, uint32_t slot_pages, uint32_t epoch);
struct nvme_slot *nvme_space_find(const struct nvme_space *s, const struct tier_key *k);
/* A slot in state WRITING, charged to the namespace. Evicts. 0; -ENOSPC with the reason; -ENOMEM.
 */
int nvme_space_alloc(struct nvme_space *s, const struct nvme_head *h, uint64_t now_ms,
                     struct nvme_slot **ret, enum tier_reject *ret_why);
/* Into the index; an older one of the same key goes. False: a younger one is there; it is gone. */
bool nvme_space_publish(struct nvme_space *s, struct nvme_slot *slot, const struct nvme_head *h,
                        uint64_t used_ms);
/* At start: a record that was found in a free slot. */
void nvme_space_restore(struct nvme_space *s, struct nvme_slot *slot, const struct nvme_head *h);
void nvme_space_drop(struct nvme_space *s, struct nvme_slot *slot, bool evicted); /* a ready one */
void nvme_space_free(struct nvme_space *s, struct nvme_slot *slot); /* a writing one, a zombie */
void nvme_space_unref(struct nvme_space *s, struct nvme_slot *slot);
void nvme_space_hit(struct nvme_slot *slot, uint64_t now_ms);
void nvme_space_pin(struct nvme_space *s, struct nvme_slot *slot, bool pinned);
void nvme_space_expire(struct nvme_space *s, uint64_t now_ms);
struct nvme_slot *nvme_space_take_dirty(struct nvme_space *s); /* → CLEANING, or NULL */
void nvme_space_cleaned(struct nvme_space *s, struct nvme_slot *slot, bool ok);
int nvme_space_set_policy(struct nvme_space *s, enum evict_policy p);
int nvme_space_set_quota(struct nvme_space *s, uint64_t ns_hash, uint64_t bytes);
uint64_t nvme_space_tail_ms(struct nvme_space *s); /* last use of the next victim, 0 = none */
/* No records left in extents from n on, nor new ones. -EBUSY: pinned ones, nothing was done. */
int nvme_space_retire(struct nvme_space *s, uint32_t n);
void nvme_space_unretire(struct nvme_space *s, uint32_t n);
bool nvme_space_retired(const struct nvme_space *s, uint32_t n); /* nothing uses them any more */
void nvme_space_cut(struct nvme_space *s, uint32_t n);
uint64_t nvme_slot_off(const struct nvme_space *s, const struct nvme_slot *slot);
static inline uint64_t nvme_slot_bytes(const struct nvme_slot *slot)
{
    return (uint64_t)slot->extent->class->slot_pages * NVME_PAGE;
}

#endif
