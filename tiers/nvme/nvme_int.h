/* Internals of the NVMe tier, shared by nvme*.c and its tests.
 *
 * nvme_format.c: what stands on the device. nvme_engine.c: transfers (io_uring or threads).
 * nvme_space.c: extents, classes, slots, index, eviction; no I/O. nvme_budget.c: write budget.
 * nvme_recover.c: open, superblocks, recovery, resize. nvme_queue.c: the I/O thread, reads and
 * writes step by step. nvme_scrub.c: background verification. nvme.c: struct tier.
 *
 * Device: superblock A at 0, B at 256 KiB, extents from 512 KiB on. Little endian. */
#ifndef TIERS_NVME_NVME_INT_H
#define TIERS_NVME_NVME_INT_H

#include "tiers/nvme/nvme.h"
#include "tiers/quota.h"

#include <pthread.h>
#include <stddef.h>
#include <sys/queue.h>
#include <sys/uio.h>

enum {
    NVME_PAGE = 4096,
    NVME_SUPER_BYTES = 256 << 10,
    NVME_DATA_OFF = 2 * NVME_SUPER_BYTES,
    NVME_EXTENTS_MAX = (NVME_SUPER_BYTES - NVME_PAGE) / 8,
    NVME_CLASSES = 256,
    NVME_VERSION = 1,
    NVME_PIECE_BYTES = 1 << 20, /* measured: QD 4-16 of 1-2 MiB saturate a device */
    NVME_READ_DEPTH = 16,
    /* measured (2-core virtual machine, 11.4 MB records): the first layers after 0.08 of a record's
     * time with 2, 0.22 with 4, all of it with 16; the record as fast with each. A request's
     * records together fill the depth. */
    NVME_OP_WINDOW = 2,
    NVME_WRITE_DEPTH = 4, /* and 1 while reads wait: large writes hurt their tails */
    NVME_RECOVER_DEPTH = 64,
    NVME_IOS = NVME_READ_DEPTH + 4 * NVME_WRITE_DEPTH + 8,
};

/* ---- format ----
 * Superblock. The valid one with the later sequence (modulo 2^64) counts; they are written in turn.
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

/* ---- engine ---- */
struct nvme_io {   /* one transfer: whole or failed */
    uint8_t *page; /* NULL, or 4 KiB that come before `buf` on the device */
    uint8_t *buf;
    uint64_t off;
    uint32_t bytes; /* with the page */
    bool write, durable;
    void (*on_done)(struct nvme_io *io, int status); /* from nvme_engine_poll() */
    void *ctx, *ctx2;
    uint32_t arg;
    /* The engine's. */
    uint32_t done, limit, retries, at;
    uint64_t id, begun_ns;
    struct iovec iov[2];
    int res;
    TAILQ_ENTRY(nvme_io) link;
};
TAILQ_HEAD(nvme_ios, nvme_io);
/* Tests: asked before each system call. >= left: as it should be; less: so many bytes are moved;
 * <0 fails without moving any; NVME_HANG: never comes back. */
enum { NVME_HANG = INT32_MIN };
typedef int (*nvme_fault_fn)(void *ctx, const struct nvme_io *io, uint32_t left);
struct nvme_engine;
struct nvme_engine_opts {
    int fd;
    unsigned depth; /* transfers at a time, at most */
    bool force_pool, sqpoll;
};
/* All but wake by one thread. The pool is used when io_uring is refused: *ret_refused its errno. */
int nvme_engine_create(const struct nvme_engine_opts *o, struct nvme_engine **ret,
                       int *ret_refused);
void nvme_engine_set_fault(struct nvme_engine *e, nvme_fault_fn fn, void *ctx);
void nvme_engine_start(struct nvme_engine *e, struct nvme_io *io);
/* Runs on_done of what has ended; waits for that or a wake, at most timeout_ns. */
void nvme_engine_poll(struct nvme_engine *e, uint64_t timeout_ns);
void nvme_engine_wake(struct nvme_engine *e); /* any thread */
unsigned nvme_engine_busy(const struct nvme_engine *e);
uint64_t nvme_engine_oldest_ns(const struct nvme_engine *e); /* begin of the oldest; 0 = none */
int nvme_engine_add_memory(struct nvme_engine *e, uint8_t *base, size_t bytes);
/* -EBUSY: transfers never came back; the engine stays as it is, for ever. */
int nvme_engine_destroy(struct nvme_engine *e);

/* ---- budget ---- */
struct nvme_budget {
    double size_bytes, spent_bytes; /* size 0 = none */
    uint64_t last_ns;
    uint32_t n_added;
    uint8_t sketch[4][2048]; /* two 4-bit counters a byte */
};
void nvme_budget_init(struct nvme_budget *b, uint64_t bytes_per_day, uint64_t now_ns);
void nvme_budget_spend(struct nvme_budget *b, uint64_t bytes);
double nvme_budget_ratio(struct nvme_budget *b, uint64_t now_ns);
/* 0, or 1 + the reason. Remembers the key. */
int nvme_budget_admit(struct nvme_budget *b, const struct tier_key *k, uint64_t now_ns);

/* ---- space ---- */
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
    struct nvme_slot *hash_next;
    TAILQ_ENTRY(nvme_slot) link; /* extent->free or ->dirty */
    uint64_t generation, ns_hash, created_ms, expires_ms, used_ms, record_bytes, header_sum;
    uint32_t heap_at; /* 1 + place in the heap of expiries, 0 = not there */
    uint32_t n_tokens, refs, hits;
    uint8_t state, kind;
    bool pinned, on_device; /* a header of this slot may be valid on the device */
    bool restored;          /* found at start: older than all that is written since */
};
TAILQ_HEAD(nvme_slots, nvme_slot);
struct nvme_class {
    uint32_t slot_pages, n_extents, n_slots, n_cleaning;
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
struct nvme_space { /* guarded by struct nvme's m */
    uint64_t extent_bytes, capacity_bytes, used_bytes, pinned_bytes, n_records, super_seq;
    uint64_t generation; /* of the next record */
    uint64_t evictions, expired;
    enum evict_policy policy;
    struct nvme_extent **extent; /* [n_extents], each its own allocation */
    uint32_t n_extents, n_free_extents, n_empty_extents, n_cleaning; /* empty: with a class */
    struct nvme_class *class[NVME_CLASSES];
    struct nvme_slot **hash, **heap;
    size_t hash_mask, n_heap, heap_cap;
    TAILQ_HEAD(, nvme_extent) dirty;
    struct quota quota;
};
int nvme_space_init(struct nvme_space *s, uint64_t capacity_bytes, uint64_t extent_bytes,
                    uint32_t n_extents, enum evict_policy policy);
void nvme_space_fini(struct nvme_space *s);
int nvme_space_grow(struct nvme_space *s, uint32_t n_extents);
int nvme_space_assign(struct nvme_space *s, uint32_t extent, uint32_t slot_pages, uint32_t epoch);
struct nvme_slot *nvme_space_find(struct nvme_space *s, const struct tier_key *k);
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
void nvme_space_hit(struct nvme_space *s, struct nvme_slot *slot, uint64_t now_ms);
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

/* ---- the tier ---- */
enum nvme_phase {             /* of a write; a read has NVME_DATA only */
                  NVME_SUPER, /* its extent's class is not on the device yet */
                  NVME_CLEAN, /* the slot's old header is being overwritten */
                  NVME_DATA,
                  NVME_HEADER
};
struct nvme_op { /* a tier_op while it is here */
    struct nvme *n;
    struct tier_op *op;
    struct nvme_slot *slot; /* read, update: referenced; write: in state WRITING once started */
    struct nvme_head head;  /* of a write; of a read the generation that it must meet */
    uint8_t *page;          /* 4 KiB: the slot header */
    uint64_t begun_ns, first_ns, bytes;
    uint64_t slot_off, at; /* next piece: offset in `part` */
    uint32_t part, n_busy, parts_left;
    int status;
    enum nvme_phase phase;
    bool live, write, update, started, listed, header_here;
    bool doomed;                       /* guarded by m: removed while being written */
    uint32_t pieces[RECORD_PARTS_MAX]; /* still to come of each part */
    TAILQ_ENTRY(nvme_op) link;
};
TAILQ_HEAD(nvme_ops, nvme_op);
struct nvme_call { /* something to be done by the I/O thread, for a caller who waits */
    int (*fn)(struct nvme *n, void *arg);
    void *arg;
    int result;
    bool done;
    struct nvme_call *next;
};
enum { /* what it does instead of what was asked for */
       NVME_DEGRADED_READ_ONLY = 1,
       NVME_DEGRADED_HANGS = 2,
       NVME_DEGRADED_POOL = 4,
       NVME_DEGRADED_BUFFERED = 8,
       NVME_DEGRADED_SPARSE = 16,
       NVME_DEGRADED_MEMLOCK = 32
};
struct nvme_scrub;
struct nvme {
    struct tier base;
    struct tier_nvme_opts opts; /* path: own copy */
    char *path;
    int fd;
    bool is_block;
    uint64_t device_id;
    pthread_t thread;
    pthread_mutex_t m;
    pthread_cond_t changed;
    /* guarded by m */
    struct nvme_space space;
    struct nvme_budget budget;
    struct tier_stat stat;
    struct nvme_ops inbox, free_ops;
    struct nvme_call *calls;
    unsigned n_ops, n_write_ops, degraded, n_bad;
    uint64_t memlock_needed, super_written;
    bool asleep, stop, up, finished, read_only, resizing;
    int refused; /* errno of io_uring */
    /* the I/O thread's */
    struct nvme_engine *engine;
    struct nvme_ops reading[TIER_PRIO_COUNT], waiting[TIER_PRIO_COUNT], writing;
    struct nvme_ios free_ios;
    unsigned n_reads, n_writes, n_writing, super_failed;
    uint64_t clean_after_ns, next_deadline_ns, tick_ns;
    bool super_busy, stopping;
    struct nvme_scrub *scrub;
    /* memory */
    struct nvme_op *op;    /* [TIER_NVME_QUEUE_OPS] */
    struct nvme_io *io;    /* [NVME_IOS] */
    uint8_t *pages;        /* TIER_NVME_QUEUE_OPS slot headers, then one page of zeros */
    uint8_t *super;        /* NVME_SUPER_BYTES */
    uint32_t *super_table; /* its table in memory: slot pages, then epochs */
    struct err start_err;
    int start_result;
    struct nvme *hung_next;
};

/* nvme_recover.c */
int nvme_open(struct nvme *n, struct err *err);           /* file, lock, geometry; no thread yet */
int nvme_recover(struct nvme *n, struct err *err);        /* on the I/O thread */
void nvme_super_fill(struct nvme *n, uint32_t owner_pid); /* holding m: n->super from the space */
int nvme_resize(struct nvme *n, uint64_t capacity_bytes);
uint64_t nvme_wall_ms(void);
/* nvme_queue.c */
void *nvme_main(void *arg);
int nvme_call(struct nvme *n, int (*fn)(struct nvme *n, void *arg), void *arg);
void nvme_note_bad(struct nvme *n); /* holding m: one more reason to go read-only */
void nvme_wake(struct nvme *n);     /* holding m */
/* nvme_scrub.c: all on the I/O thread */
int nvme_scrub_create(struct nvme *n, struct nvme_scrub **ret);
uint64_t nvme_scrub_step(struct nvme_scrub *s, uint64_t now_ns); /* when to call again */
void nvme_scrub_destroy(struct nvme_scrub *s);                   /* its op has ended */
/* Tests. */
void tier_nvme_set_fault(struct tier *t, nvme_fault_fn fn, void *ctx);

#endif
