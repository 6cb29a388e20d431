/* tier: what the store asks of a place where records live (GPU memory, NVMe, Redis, a fault).
 *
 * A tier keeps whole records by key under a hard byte cap of its own, evicts by its own policy and
 * moves parts (record.h). It verifies what only it can know (its own framing, sizes, generations);
 * the record's checksums are checked by the reader of the parts. A tier never answers with another
 * record's bytes knowingly, but the store trusts none.
 * Submit contract of read() and write(): 0 → on_done runs exactly once, later, on a thread of the
 * tier (never from inside the call); <0 → no callback ever runs. The op and its memory stay the
 * tier's until on_done has been entered; on_done may free the op.
 * Errors of an op: -ENOENT not here (a miss), -EAGAIN queue full, -ENOSPC no room (all pinned, over
 * quota, larger than a slot), -EPERM not admitted (write budget, too small), -EBADMSG torn, stale
 * or foreign bytes (the tier has dropped the record), -ESTALE a record of that key in another
 * geometry (the tier keeps it: the caller may ask for that, or remove it), -EIO device or
 * connection, -ETIMEDOUT, -ECANCELED stopped by on_part or by destroy.
 * Thread: every call from any thread; none of them waits for a device or a peer but drain() and
 * destroy(). The store calls a tier without holding its own lock. */
#ifndef TIERS_TIER_H
#define TIERS_TIER_H

#include "base/err.h"
#include "tiers/evict.h"
#include "tiers/record.h"

/* Order of service within a tier: a demand read overtakes everything that has not started. */
enum tier_prio {
    TIER_DEMAND,  /* a request waits */
    TIER_PROMOTE, /* a request will come */
    TIER_BEHIND,  /* write-behind */
    TIER_SCRUB,
    TIER_PRIO_COUNT
};

struct tier_op {
    /* By the caller; constant until on_done. */
    struct tier_key key;
    const struct record_layout *layout;
    /* [layout->n_parts], each page-aligned and record_part_bytes() long. For reads the pointers of
     * parts above 0 may be NULL until on_part(0) has returned 0, so that memory for a record whose
     * presence is unknown is only taken once its header is here. */
    uint8_t **part;
    uint32_t part_lo, part_hi; /* parts to move; of a write all of them */
    enum tier_prio prio;
    uint64_t deadline_ns; /* clock_ns(); 0 none. Not started by then: -ETIMEDOUT. A tier that can
                           * abandon a transfer does so; a device finishes what it began. */
    uint64_t batch;       /* reads of one request have one number: they are served part by part in
                           * turns, so that all records' first layers come first; 0 = alone */
    /* A part has arrived (read), in any order but part 0 first when it was asked for. Anything but
     * 0 stops the op: on_done then gets -ECANCELED. Never NULL for reads. */
    int (*on_part)(struct tier_op *op, uint32_t part);
    void (*on_done)(struct tier_op *op, int status);
    void *ctx;
    struct tier_op *next; /* the tier's own while it has the op */
};
/* What every tier asks of an op that comes in: -EINVAL not parts of the record, or (write) not all
 * of them. */
int tier_op_check(const struct tier_op *op, bool write);
/* The header that a write brings: sound, of the op's key and layout, else -EBADMSG or as
 * record_open(). */
int tier_op_open(const struct tier_op *op, struct record_view *ret);

enum tier_reject { /* why a write did not become a record: label of kvblend_tier_reject_total */
                   TIER_REJECT_FULL,   /* everything is pinned or in use */
                   TIER_REJECT_QUOTA,  /* the namespace's quota */
                   TIER_REJECT_SIZE,   /* larger than the tier takes */
                   TIER_REJECT_BUDGET, /* write budget spent */
                   TIER_REJECT_ONCE,   /* above 70 % of the write budget, seen once only */
                   TIER_REJECT_BUSY,   /* queue full */
                   TIER_REJECT_COUNT
};
const char *tier_reject_name(enum tier_reject r);

struct tier_stat {
    uint64_t capacity_bytes, used_bytes, pinned_bytes, n_records; /* of a remote tier: as it says */
    uint64_t reads, read_bytes, writes, write_bytes;              /* completed whole */
    uint64_t read_ns, write_ns;    /* summed over completed ops: submit to done */
    uint64_t first_ns;             /* summed over reads: submit to the first part above 0 */
    uint64_t device_written_bytes; /* including headers and superblocks */
    uint64_t evictions, expired, corrupt, errors, timeouts;
    uint64_t rejected[TIER_REJECT_COUNT];
    uint64_t inflight_bytes, inflight_ops;
    uint64_t host_pinned_bytes;         /* of add_memory()'s, pinned for a device */
    double write_budget_ratio;          /* spent share of the write budget; 0 = no budget */
    double tail_age_s;                  /* since the last use of the next victim; 0 = unknown */
    unsigned endpoints, endpoints_open; /* of a remote tier: how many; how many breakers are open */
    char degraded[96];                  /* "" or what it does instead of what was asked for */
};
/* An op has ended: what it moved and how long that took, or an error or a time-out. */
void tier_stat_count(struct tier_stat *s, bool write, int status, uint64_t bytes, uint64_t begun_ns,
                     uint64_t first_ns);

struct tier_info { /* of one record, for administration */
    struct tier_key key;
    uint64_t ns_hash, size_bytes, created_ms, expires_ms, hits;
    double used_s; /* wall clock */
    uint32_t n_tokens;
    enum tier_kind kind;
    bool pinned;
};
typedef int (*tier_visit_fn)(void *ctx, const struct tier_info *i); /* != 0 stops */

struct tier;
struct tier_ops {
    /* 1 here, 0 not, -EAGAIN: only a read can tell (remote). */
    int (*find)(struct tier *t, const struct tier_key *k);
    int (*read)(struct tier *t, struct tier_op *op);
    int (*write)(struct tier *t, struct tier_op *op); /* also replaces */
    /* Gone for every later find; its bytes are as good as gone. 1 was here, 0 was not, -EBUSY
     * pinned. A remote tier sends the removal and answers 1. */
    int (*remove)(struct tier *t, const struct tier_key *k, bool also_pinned);
    void (*touch)(struct tier *t, const struct tier_key *k); /* used, though served elsewhere */
    int (*set_pinned)(struct tier *t, const struct tier_key *k, bool pinned); /* 1, 0, -ENOTSUP */
    /* Hard cap of a namespace's bytes in this tier, 0 = none; over it: evicts at once. -ENOTSUP. */
    int (*set_quota)(struct tier *t, uint64_t ns_hash, uint64_t bytes);
    /* A snapshot; the visitor may call the tier. May wait for a peer (remote). <0, or what the
     * visitor returned. */
    int (*scan)(struct tier *t, tier_visit_fn fn, void *ctx);
    void (*stat)(struct tier *t, struct tier_stat *ret);
    int (*resize)(struct tier *t, uint64_t capacity_bytes); /* live; -ENOTSUP, -EINVAL */
    /* Memory that parts of later ops will lie in (registered buffers); stays until destroy. */
    int (*add_memory)(struct tier *t, void *base, size_t size_bytes); /* -ENOTSUP */
    int (*set_policy)(struct tier *t, enum evict_policy p);           /* live; -ENOTSUP */
    int (*drain)(struct tier *t, uint64_t deadline_ns); /* until no op is queued or under way */
    void (*destroy)(struct tier *t); /* ends every op (-ECANCELED), keeps persistent records */
};
struct tier {
    const struct tier_ops *ops; /* no slot is NULL */
    char name[16];              /* "gpu", "nvme", "redis": label and flag */
    bool persistent, shared;    /* survives the process; seen by other processes */
};

#endif
