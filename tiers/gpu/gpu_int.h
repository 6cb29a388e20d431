/* gpu_int: the parts of the GPU tier: struct tier (gpu.c), records and their room (gpu_record.c),
 * copies (gpu_copy.c).
 *
 * An entry is in the index exactly while find() sees it. It is freed when it is out of the index
 * and nothing refers to it: its write, reads, pins. Thread: everything under the tier's m. */
#ifndef TIERS_GPU_GPU_INT_H
#define TIERS_GPU_GPU_INT_H

#include "tiers/gpu/gpu.h"
#include "tiers/pool.h"
#include "tiers/quota.h"
#include "tiers/wait.h"

enum {
    GPU_WINDOW = 8,   /* parts in flight a direction (chosen: hides a wake-up a part) */
    GPU_MEMORIES = 64 /* chosen: an arena and the steps it grew in */
};

struct gpu_run {   /* of frames */
    uint8_t *name; /* in the pool */
    uint32_t n_frames;
};
struct gpu_entry {
    struct evict_node node;        /* first: the entry of a victim, and in the index */
    struct gpu_entry *prev, *next; /* all entries */
    struct gpu_tier *t;
    struct record_layout layout;
    struct tier_info info;
    unsigned refs, pins; /* pins: of these, those of consumers */
    bool indexed, evictable, writing, failed;
    bool gone;           /* its frames were taken though it is pinned */
    struct gpu_run *run; /* [n_runs] its frames, neighbours together; room for n_parts */
    uint32_t n_runs;
    uint8_t *part[]; /* [n_parts] on the device, but part 0: the header, in host memory */
};

struct gpu_job {
    struct gpu_job *next;
    struct tier_op *op;
    struct gpu_entry *e;
    uint32_t part; /* next to be queued */
    uint32_t n_flight;
    int status;
    uint64_t submit_ns, first_ns, bytes;
};
struct gpu_flight {
    struct gpu_job *job;
    uint32_t part;
};
struct gpu_copies { /* those of one direction */
    struct gpu_tier *t;
    bool write, running;
    pthread_t thread;
    struct gpu_stream *stream;
    struct gpu_event *event[GPU_WINDOW];
    struct gpu_job *head; /* by priority, then by age */
    struct gpu_flight flight[GPU_WINDOW];
    uint32_t first, n_flight;
};

struct gpu_tier {
    struct tier t;
    struct gpu *gpu;
    uint8_t *device;    /* frame 0 */
    size_t frame_bytes; /* the pool's page i is frame i */
    bool shares;        /* the device's memory is not the tier's */
    pthread_mutex_t m;
    pthread_cond_t work, idle, released;
    /* guarded by m */
    struct pool pool;
    uint64_t used_bytes, lent_bytes; /* by records, by sequences: whole frames */
    struct quota quota;
    struct evict *evict;
    uint64_t cap_bytes, evictable_bytes, inflight_bytes;
    size_t n_jobs;
    struct key_map index;
    struct gpu_entry *entries;
    void *memory[GPU_MEMORIES]; /* registered */
    size_t n_memories;
    uint64_t host_pinned_bytes;
    struct tier_stat stat;
    struct gpu_copies copies[2]; /* read, write */
    bool stop;
};

struct gpu_entry *gpu_find_entry(const struct gpu_tier *t, const struct tier_key *k);
/* With room for every part, refused (-ENOSPC, counted) or out of something. */
int gpu_entry_create(struct gpu_tier *t, const struct record_view *v, struct gpu_entry **ret);
/* Out of the index at once, out of memory with its last reference. */
void gpu_drop(struct gpu_entry *e, bool evicted);
void gpu_unref(struct gpu_entry *e);
void gpu_update_evictable(struct gpu_entry *e); /* after a change of refs or of the pin */
bool gpu_may_evict(void *ctx, const struct evict_node *n);
/* ns_hash: of that namespace only; NULL = of any. */
bool gpu_evict_one(struct gpu_tier *t, const struct tier_key *incoming, const uint64_t *ns_hash);
bool gpu_revoke_one(struct gpu_tier *t); /* of those that are pinned */
void gpu_trim(struct gpu_tier *t);       /* down to the cap, as far as records are not held */

int gpu_copy_start(struct gpu_tier *t, bool write);
/* After t->stop; accepts one that never started. */
void gpu_copy_join(struct gpu_tier *t, bool write);
void gpu_copy_add(struct gpu_copies *c, struct gpu_job *j);
/* Gives the job's record what it is due; the job itself stays the queue's. */
void gpu_job_done(struct gpu_tier *t, struct gpu_job *j);
static inline uint64_t gpu_frames(const struct gpu_tier *t, uint64_t bytes)
{
    return (bytes + t->frame_bytes - 1) / t->frame_bytes;
}
static inline uint8_t *gpu_on_device(const struct gpu_tier *t, const uint8_t *name)
{
    return t->device + (uint64_t)(name - t->pool.base) / POOL_PAGE_BYTES * t->frame_bytes;
}

#endif
