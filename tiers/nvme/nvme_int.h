/* nvme_int: the NVMe tier itself: its ops, its I/O thread, its parts.
 *
 * nvme.c: struct tier. nvme_queue.c: the I/O thread, reads and writes step by step. nvme_recover.c:
 * open, superblocks, recovery, resize. nvme_scrub.c: background verification. nvme_budget.c: write
 * budget. Below them: nvme_space.h, nvme_engine.h, nvme_format.h. Internal to tiers/nvme/. */
#ifndef TIERS_NVME_NVME_INT_H
#define TIERS_NVME_NVME_INT_H

#include "tiers/nvme/nvme.h"
#include "tiers/nvme/nvme_engine.h"
#include "tiers/nvme/nvme_space.h"
#include "tiers/wait.h"

enum {
    NVME_PIECE_BYTES = 1 << 20, /* measured: QD 4-16 of 1-2 MiB saturate a device */
    /* measured (2-core virtual machine, 11.4 MB records): the first layers after 0.08 of a record's
     * time with 2, 0.22 with 4, all of it with 16; the record as fast with each. A request's
     * records together fill the depth. */
    NVME_OP_WINDOW = 2,
    NVME_RECOVER_DEPTH = 64,
    NVME_IOS = NVME_READ_DEPTH + 4 * NVME_WRITE_DEPTH + 8,
};

/* ---- nvme_budget.c ---- */
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

enum nvme_phase {             /* of a write; a read has NVME_DATA only */
                  NVME_SUPER, /* its extent's class is not on the device yet */
                  NVME_CLEAN, /* the slot's old header is being overwritten */
                  NVME_DATA,
                  NVME_HEADER
};
struct nvme_op { /* a tier_op while it is here */
    struct nvme *n;
    struct tier_op *op;
    struct nvme_slot *slot; /* read: referenced; write: in state WRITING once started */
    struct nvme_head head;  /* of a write; of a read the generation that it must meet */
    uint8_t *page;          /* 4 KiB: the slot header */
    uint64_t begun_ns, first_ns, bytes;
    uint64_t slot_off, at; /* next piece: offset in `part` */
    uint32_t part, n_busy, parts_left;
    int status;
    enum nvme_phase phase;
    bool live, write, started, listed, header_here;
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
enum nvme_degraded { /* what it does instead of what was asked for */
                     NVME_DEGRADED_READ_ONLY = 1,
                     NVME_DEGRADED_HANGS = 2,
                     NVME_DEGRADED_POOL = 4,
                     NVME_DEGRADED_BUFFERED = 8,
                     NVME_DEGRADED_SPARSE = 16,
                     NVME_DEGRADED_MEMLOCK = 32
};
struct nvme_scrub;
struct nvme_super_state {     /* the I/O thread's view of the superblocks */
    struct nvme_super *block; /* the latest to be written */
    uint64_t written;         /* guarded by m: the latest sequence on the device */
    unsigned failed;
    bool busy;
};
struct nvme_start { /* of the I/O thread; guarded by m */
    struct err err;
    int result;
    bool up, finished;
};
struct nvme_pool {            /* memory of ops and transfers */
    struct nvme_op *op;       /* [TIER_NVME_QUEUE_OPS] */
    struct nvme_io *io;       /* [NVME_IOS] */
    uint8_t *pages, *zeros;   /* TIER_NVME_QUEUE_OPS slot headers, then one page of zeros */
    struct nvme_ops free_ops; /* guarded by m */
    struct nvme_ios free_ios; /* the I/O thread's */
};
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
    struct nvme_ops inbox;
    struct nvme_call *calls;
    unsigned n_ops, n_write_ops, degraded, n_bad;
    uint64_t memlock_needed;
    bool asleep, stop, read_only, resizing;
    struct nvme_start start;
    int refused; /* errno of io_uring */
    /* the I/O thread's */
    struct nvme_engine *engine;
    struct nvme_ops reading[TIER_PRIO_COUNT], waiting[TIER_PRIO_COUNT], writing;
    unsigned n_reads, n_writes, n_writing;
    uint64_t clean_after_ns, next_deadline_ns, tick_ns;
    bool stopping;
    struct nvme_scrub *scrub;
    struct nvme_super_state super;
    struct nvme_pool pool;
    struct nvme *hung_next;
};

/* nvme_recover.c */
int nvme_open(struct nvme *n, struct err *err);           /* file, lock, geometry; no thread yet */
int nvme_recover(struct nvme *n, struct err *err);        /* on the I/O thread */
void nvme_super_fill(struct nvme *n, uint32_t owner_pid); /* holding m: the block from the space */
int nvme_resize(struct nvme *n, uint64_t capacity_bytes);
/* nvme_queue.c */
void *nvme_main(void *arg);
int nvme_call(struct nvme *n, int (*fn)(struct nvme *n, void *arg), void *arg);
void nvme_note_bad(struct nvme *n); /* holding m: one more reason to go read-only */
void nvme_wake(struct nvme *n);     /* holding m */
/* nvme_scrub.c: all on the I/O thread */
int nvme_scrub_create(struct nvme *n, struct nvme_scrub **ret);
uint64_t nvme_scrub_step(struct nvme_scrub *s, uint64_t now_ns); /* when to call again */
void nvme_scrub_destroy(struct nvme_scrub *s);                   /* its op has ended */

#endif
