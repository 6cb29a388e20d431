/* The I/O thread: what is under way on the device, step by step.
 *
 * Callers check, look up and reserve under m and leave an op in the inbox; from there on only this
 * thread touches it, and takes m for the moments when the space changes. Reads: slot header and
 * part 0 in one transfer, then the other parts in pieces of at most 1 MiB; when the caller's memory
 * is already there all of them start at once and what arrives before part 0 is held back. Writes:
 * class of the extent on the device, old header overwritten, payload, header; each step waits for
 * all completions of the one before, so that kill -9 at any moment leaves either the old record,
 * none, or the whole new one. Slots that were freed otherwise are overwritten when nothing else is
 * to be done.
 */
#include "tiers/nvme/nvme_int.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/mem.h"

#include <string.h>
#include <unistd.h>

enum { SUPER_RETRIES = 4, WRITING_OPS = 2 * NVME_WRITE_DEPTH };
static const uint64_t TICK_NS = 100000000, HANG_NS = 30000000000ull, FOREVER_NS = 1000000000;

void nvme_wake(struct nvme *n)
{
    if (!n->asleep) return;
    n->asleep = false;
    nvme_engine_wake(n->engine);
}

void nvme_note_bad(struct nvme *n)
{
    if (++n->n_bad < n->opts.corrupt_max) return;
    n->read_only = true;
    n->degraded |= NVME_DEGRADED_READ_ONLY;
}

int nvme_call(struct nvme *n, int (*fn)(struct nvme *n, void *arg), void *arg)
{
    struct nvme_call call = {.fn = fn, .arg = arg};
    pthread_mutex_lock(&n->m);
    call.next = n->calls;
    n->calls = &call;
    nvme_wake(n);
    while (!call.done)
        pthread_cond_wait(&n->changed, &n->m);
    pthread_mutex_unlock(&n->m);
    return call.result;
}

/* ---- the end of an op ---- */

static void op_unlist(struct nvme_op *x, struct nvme_ops *list)
{
    if (x->listed) TAILQ_REMOVE(list, x, link);
    x->listed = false;
}

static struct nvme_ops *list_of(struct nvme *n, struct nvme_op *x)
{
    if (!x->write) return &n->reading[x->op->prio];
    return x->started ? &n->writing : &n->waiting[x->op->prio];
}

/* Gives the op back. Nothing of it is under way, or this is destroy() and it hangs. */
static void op_end(struct nvme *n, struct nvme_op *x)
{
    struct tier_op *op = x->op;
    int status = x->status;
    op_unlist(x, list_of(n, x));
    if (x->write && x->started) n->n_writing--;
    pthread_mutex_lock(&n->m);
    if (x->slot && !x->write)
        nvme_space_unref(&n->space, x->slot);
    else if (x->slot) /* a write that did not become a record */
        nvme_space_free(&n->space, x->slot);
    x->slot = NULL;
    tier_stat_count(&n->stat, x->write, status, x->bytes, x->begun_ns, x->first_ns);
    n->stat.errors += status == -ENOSPC && x->started;
    n->n_ops--;
    n->n_write_ops -= x->write;
    n->stat.inflight_ops--;
    n->stat.inflight_bytes -= x->bytes;
    x->live = false;
    if (x->n_busy == 0)
        TAILQ_INSERT_HEAD(&n->pool.free_ops, x, link); /* else its memory is in use */
    pthread_cond_broadcast(&n->changed);
    pthread_mutex_unlock(&n->m);
    op->on_done(op, status);
}

static struct nvme_io *io_get(struct nvme *n)
{
    struct nvme_io *io = TAILQ_FIRST(&n->pool.free_ios);
    ASSERT(io);
    TAILQ_REMOVE(&n->pool.free_ios, io, link);
    io->page = NULL;
    io->durable = false;
    return io;
}

static void io_put(struct nvme *n, struct nvme_io *io)
{
    TAILQ_INSERT_HEAD(&n->pool.free_ios, io, link);
}

/* ---- reads ---- */

static void part_deliver(struct nvme_op *x, uint32_t part)
{
    if (x->status < 0) return;
    if (part > 0 && x->first_ns == 0) x->first_ns = clock_ns();
    x->parts_left--;
    if (x->op->on_part(x->op, part) != 0) x->status = -ECANCELED;
}

/* The slot header that came with part 0: is this slot still, and really, this record's? */
static void header_arrived(struct nvme *n, struct nvme_op *x)
{
    struct nvme_head h;
    bool sound = nvme_head_get(x->page, &h) == 0 && h.device_id == n->device_id &&
                 h.generation == x->head.generation && h.off == x->slot_off &&
                 tier_key_same(&h.key, &x->op->key);
    /* And the record behind it: key and checksum of its header stand at 24 and 120 (record.h). */
    const uint8_t *p = x->op->part[0];
    sound = sound && memcmp(p + 24, &h.key, sizeof h.key) == 0 &&
            memcmp(p + 120, &h.header_sum, sizeof h.header_sum) == 0;
    x->header_here = true;
    if (sound) return;
    pthread_mutex_lock(&n->m);
    n->stat.corrupt++;
    nvme_note_bad(n);
    if (x->slot->state == NVME_READY) nvme_space_drop(&n->space, x->slot, false);
    pthread_mutex_unlock(&n->m);
    x->status = -EBADMSG;
}

static void part_arrived(struct nvme *n, struct nvme_op *x, uint32_t part)
{
    bool ordered = x->op->part_lo == 0;
    if (part == 0) {
        header_arrived(n, x);
        part_deliver(x, 0);
        for (uint32_t p = 1; p < x->op->part_hi; p++)
            if (x->pieces[p] == 0) part_deliver(x, p);
    } else if (!ordered || x->header_here) {
        part_deliver(x, part);
    } /* else it is held back until part 0 is here */
}

static void read_settle(struct nvme *n, struct nvme_op *x)
{
    if (x->status < 0) op_unlist(x, list_of(n, x));
    if (x->n_busy == 0 && (x->status < 0 || x->parts_left == 0)) op_end(n, x);
}

static void read_done(struct nvme_io *io, int status)
{
    struct nvme_op *x = io->ctx;
    struct nvme *n = x->n;
    uint32_t part = io->arg;
    io_put(n, io);
    n->n_reads--;
    x->n_busy--;
    if (status < 0 && x->status == 0) x->status = status;
    if (status == 0 && --x->pieces[part] == 0 && x->status == 0) part_arrived(n, x, part);
    read_settle(n, x);
}

/* The next piece of the op's parts, started. */
static void piece_start(struct nvme *n, struct nvme_op *x, void (*done)(struct nvme_io *, int))
{
    const struct tier_op *op = x->op;
    struct nvme_io *io = io_get(n);
    uint64_t bytes = record_part_bytes(op->layout, x->part), left = bytes - x->at;
    io->ctx = x;
    io->arg = x->part;
    io->write = x->write;
    io->buf = op->part[x->part] + x->at;
    io->bytes = left < NVME_PIECE_BYTES ? (uint32_t)left : NVME_PIECE_BYTES;
    io->off = x->slot_off + NVME_PAGE + record_part_off(op->layout, x->part) + x->at;
    io->on_done = done;
    x->at += io->bytes;
    if (!x->write && io->arg == 0 && x->at == io->bytes) { /* the slot header comes along */
        io->page = x->page;
        io->bytes += NVME_PAGE;
        io->off -= NVME_PAGE;
    }
    if (x->at == bytes) {
        x->at = 0;
        x->part++;
    }
    x->n_busy++;
    nvme_engine_start(n->engine, io);
}

/* What is submitted together tends to complete together (a virtual disk raises one interrupt for
 * all of it), so a read that took the whole depth would deliver its first part with its last: each
 * has a window of its own. */
static bool read_waits(const struct nvme_op *x)
{
    const struct tier_op *op = x->op;
    bool for_header = !op->part[x->part] && op->part_lo == 0 && !x->header_here && x->part > 0;
    return for_header || x->n_busy >= NVME_OP_WINDOW;
}

/* Whose turn it is: the oldest that can go on; of its batch the one that is furthest behind. */
static struct nvme_op *read_next(struct nvme *n, unsigned prio)
{
    struct nvme_op *best = NULL, *x;
    TAILQ_FOREACH(x, &n->reading[prio], link)
    {
        if (read_waits(x)) continue;
        if (!best || (best->op->batch && best->op->batch == x->op->batch && x->part < best->part))
            best = x;
        if (!best->op->batch) break;
    }
    return best;
}

/* One more piece of a read. */
static void read_start(struct nvme *n, struct nvme_op *x)
{
    if (!x->op->part[x->part]) {
        x->status = -EINVAL;
        read_settle(n, x);
        return;
    }
    x->started = true;
    n->n_reads++;
    piece_start(n, x, read_done);
    if (x->part == x->op->part_hi) op_unlist(x, list_of(n, x));
}

static bool reads_wait(const struct nvme *n)
{
    for (unsigned p = 0; p < TIER_SCRUB; p++)
        if (!TAILQ_EMPTY(&n->reading[p])) return true;
    return n->n_reads > 0;
}

static void reads_start(struct nvme *n)
{
    struct nvme_op *x;
    for (unsigned p = 0; p < TIER_PRIO_COUNT; p++)
        while (n->n_reads < NVME_READ_DEPTH && (x = read_next(n, p)))
            read_start(n, x);
}

/* ---- superblock ---- */

static void super_done(struct nvme_io *io, int status)
{
    struct nvme *n = io->ctx;
    pthread_mutex_lock(&n->m);
    n->super.busy = false;
    if (status == 0) {
        n->super.written = n->super.block->seq;
        n->super.failed = 0;
        n->stat.device_written_bytes += io->bytes;
        nvme_budget_spend(&n->budget, io->bytes);
    } else {
        n->stat.errors++;
        n->super.failed++;
        nvme_note_bad(n);
    }
    pthread_cond_broadcast(&n->changed);
    pthread_mutex_unlock(&n->m);
    io_put(n, io);
}

static void super_start(struct nvme *n)
{
    if (n->super.busy || n->super.failed >= SUPER_RETRIES) return;
    pthread_mutex_lock(&n->m);
    bool want = nvme_seq_after(n->space.super_seq, n->super.written);
    if (want) nvme_super_fill(n, n->stopping ? 0 : (uint32_t)getpid());
    size_t bytes = nvme_super_bytes(n->space.n_extents);
    pthread_mutex_unlock(&n->m);
    if (!want) return;
    struct nvme_io *io = io_get(n);
    io->ctx = n;
    io->buf = (uint8_t *)n->super.block;
    io->write = io->durable = true;
    io->bytes = (uint32_t)bytes;
    io->off = n->super.block->seq % 2 ? 0 : NVME_SUPER_BYTES;
    io->on_done = super_done;
    n->super.busy = true;
    nvme_engine_start(n->engine, io);
}

/* ---- writes ---- */

static bool write_step(struct nvme *n, struct nvme_op *x);

static void written(struct nvme *n, uint64_t bytes, int status)
{
    n->n_writes--;
    pthread_mutex_lock(&n->m);
    if (status == 0) {
        n->stat.device_written_bytes += bytes;
        nvme_budget_spend(&n->budget, bytes);
    } else {
        nvme_note_bad(n);
    }
    pthread_mutex_unlock(&n->m);
}

static void write_done(struct nvme_io *io, int status)
{
    struct nvme_op *x = io->ctx;
    struct nvme *n = x->n;
    written(n, io->bytes, status);
    io_put(n, io);
    x->n_busy--;
    if (status < 0 && x->status == 0) x->status = status;
    (void)write_step(n, x);
}

static void page_start(struct nvme *n, uint8_t *page, uint64_t off,
                       void (*done)(struct nvme_io *, int), void *ctx, struct nvme_slot *slot)
{
    struct nvme_io *io = io_get(n);
    io->ctx = ctx;
    io->ctx2 = slot;
    io->write = true;
    io->buf = page;
    io->bytes = NVME_PAGE;
    io->off = off;
    io->on_done = done;
    n->n_writes++;
    nvme_engine_start(n->engine, io);
}

static void op_page_start(struct nvme *n, struct nvme_op *x, uint8_t *page)
{
    x->n_busy++;
    page_start(n, page, x->slot_off, write_done, x, NULL);
}

/* The header is on the device: now it is a record. */
static void write_publish(struct nvme *n, struct nvme_op *x)
{
    pthread_mutex_lock(&n->m);
    if (x->doomed) {
        x->status = -ECANCELED; /* op_end() frees the slot, which is cleaned then */
    } else {
        (void)nvme_space_publish(&n->space, x->slot, &x->head, wall_ms());
        x->slot = NULL;
    }
    pthread_mutex_unlock(&n->m);
}

static void header_start(struct nvme *n, struct nvme_op *x)
{
    x->phase = NVME_HEADER;
    pthread_mutex_lock(&n->m);
    x->slot->on_device = true;
    if (x->doomed) x->status = -ECANCELED;
    pthread_mutex_unlock(&n->m);
    if (x->status < 0) return;
    x->head.written_ms = wall_ms();
    nvme_head_put(x->page, &x->head);
    op_page_start(n, x, x->page);
}

/* After every event: what the write does next, if anything. False when it has ended: x may be
 * another op by then. */
static bool write_step(struct nvme *n, struct nvme_op *x)
{
    if (x->n_busy == 0 && x->status == 0) {
        switch (x->phase) {
        case NVME_SUPER:
            if (nvme_seq_after(x->slot->extent->super_seq, n->super.written)) {
                if (n->super.failed >= SUPER_RETRIES) x->status = -EIO;
                break;
            }
            x->phase = x->slot->on_device ? NVME_CLEAN : NVME_DATA;
            if (x->phase == NVME_CLEAN) op_page_start(n, x, n->pool.zeros);
            break;
        case NVME_CLEAN:
            x->slot->on_device = false;
            x->phase = NVME_DATA;
            break;
        case NVME_DATA:
            if (x->part == x->op->part_hi) header_start(n, x);
            break;
        case NVME_HEADER:
            write_publish(n, x);
            op_end(n, x);
            return false;
        }
    }
    if (x->n_busy > 0 || x->status == 0) return true;
    op_end(n, x);
    return false;
}

static unsigned write_depth(const struct nvme *n)
{
    return reads_wait(n) ? 1 : NVME_WRITE_DEPTH;
}

/* More of one write's payload. */
static void data_start(struct nvme *n, struct nvme_op *x)
{
    if (x->phase != NVME_DATA) return;
    while (n->n_writes < write_depth(n) && x->status == 0 && x->part < x->op->part_hi) {
        n->n_writes++;
        piece_start(n, x, write_done);
    }
}

/* A slot for it, now that it is its turn; false when it must wait for one. */
static bool write_begin(struct nvme *n, struct nvme_op *x)
{
    enum tier_reject why = TIER_REJECT_FULL;
    op_unlist(x, list_of(n, x));
    x->phase = NVME_SUPER;
    pthread_mutex_lock(&n->m);
    if (x->doomed)
        x->status = -ECANCELED;
    else if (n->read_only)
        x->status = -EPERM;
    else {
        x->status = nvme_space_alloc(&n->space, &x->head, wall_ms(), &x->slot, &why);
        if (x->status == -ENOSPC) n->stat.rejected[why]++;
    }
    if (x->status == 0) {
        x->slot_off = nvme_slot_off(&n->space, x->slot);
        x->head.slot_pages = x->slot->extent->class->slot_pages;
        x->head.epoch = x->slot->extent->epoch;
        x->head.device_id = n->device_id;
        x->head.off = x->slot_off;
        x->head.generation = n->space.generation++;
    }
    pthread_mutex_unlock(&n->m);
    if (x->status == -EAGAIN) {
        x->status = 0;
        TAILQ_INSERT_HEAD(list_of(n, x), x, link);
        x->listed = true;
        return false;
    }
    if (x->status < 0) {
        op_end(n, x);
        return true;
    }
    x->started = true;
    n->n_writing++;
    TAILQ_INSERT_TAIL(&n->writing, x, link);
    x->listed = true;
    super_start(n);
    if (write_step(n, x)) data_start(n, x);
    return true;
}

static struct nvme_op *next_waiting(struct nvme *n)
{
    struct nvme_op *x = NULL;
    for (unsigned p = 0; !x && p < TIER_PRIO_COUNT; p++)
        x = TAILQ_FIRST(&n->waiting[p]);
    return x;
}

static void writes_start(struct nvme *n)
{
    struct nvme_op *x, *next;
    for (x = TAILQ_FIRST(&n->writing); x; x = next) {
        next = TAILQ_NEXT(x, link);
        /* The superblock may be there now. */
        if (x->phase == NVME_DATA || write_step(n, x)) data_start(n, x);
    }
    while (n->n_writes < write_depth(n) && n->n_writing < WRITING_OPS && (x = next_waiting(n))) {
        if (!write_begin(n, x)) break;
    }
}

/* ---- slots that were freed ---- */

static void clean_done(struct nvme_io *io, int status)
{
    struct nvme *n = io->ctx;
    written(n, io->bytes, status);
    if (status < 0) n->clean_after_ns = clock_ns() + FOREVER_NS; /* not in a tight loop */
    pthread_mutex_lock(&n->m);
    if (status < 0) n->stat.errors++;
    nvme_space_cleaned(&n->space, io->ctx2, status == 0);
    pthread_cond_broadcast(&n->changed);
    pthread_mutex_unlock(&n->m);
    io_put(n, io);
}

static void clean_start(struct nvme *n)
{
    if (n->n_writing > 0 || reads_wait(n) || clock_ns() < n->clean_after_ns) return;
    while (n->n_writes < NVME_WRITE_DEPTH) {
        pthread_mutex_lock(&n->m);
        struct nvme_slot *slot = n->read_only ? NULL : nvme_space_take_dirty(&n->space);
        uint64_t off = slot ? nvme_slot_off(&n->space, slot) : 0;
        pthread_mutex_unlock(&n->m);
        if (!slot) return;
        page_start(n, n->pool.zeros, off, clean_done, n, slot);
    }
}

/* ---- the loop ---- */

static void inbox_take(struct nvme *n)
{
    struct nvme_ops now;
    struct nvme_op *x;
    TAILQ_INIT(&now);
    pthread_mutex_lock(&n->m);
    TAILQ_CONCAT(&now, &n->inbox, link);
    struct nvme_call *call = n->calls;
    n->calls = NULL;
    pthread_mutex_unlock(&n->m);
    while ((x = TAILQ_FIRST(&now))) {
        TAILQ_REMOVE(&now, x, link);
        uint64_t until = x->op->deadline_ns;
        if (until && until < n->next_deadline_ns) n->next_deadline_ns = until;
        TAILQ_INSERT_TAIL(list_of(n, x), x, link);
        x->listed = true;
    }
    while (call) {
        struct nvme_call *next = call->next;
        int r = call->fn(n, call->arg);
        pthread_mutex_lock(&n->m);
        call->result = r;
        call->done = true;
        pthread_cond_broadcast(&n->changed);
        pthread_mutex_unlock(&n->m);
        call = next;
    }
}

/* Ops that did not start in time, or (destroy) that will not any more. */
static void list_expire(struct nvme *n, struct nvme_ops *list, uint64_t now, bool all)
{
    struct nvme_op *x, *next;
    for (x = TAILQ_FIRST(list); x; x = next) {
        next = TAILQ_NEXT(x, link);
        uint64_t until = x->op->deadline_ns;
        bool late = until && until <= now && !x->started;
        if (late || all) {
            if (x->status == 0) x->status = late ? -ETIMEDOUT : -ECANCELED;
            op_unlist(x, list);
            if (x->n_busy == 0) op_end(n, x);
        } else if (until && !x->started && until < n->next_deadline_ns) {
            n->next_deadline_ns = until;
        }
    }
}

static void ops_expire(struct nvme *n, uint64_t now, bool all)
{
    if (now < n->next_deadline_ns && !all) return;
    n->next_deadline_ns = UINT64_MAX;
    for (unsigned p = 0; p < TIER_PRIO_COUNT; p++) {
        list_expire(n, &n->reading[p], now, all);
        list_expire(n, &n->waiting[p], now, all);
    }
}

/* Now and then: expiries, hung transfers, verification. */
static void tick(struct nvme *n, uint64_t now)
{
    if (now < n->tick_ns) return;
    n->tick_ns = now + TICK_NS;
    if (n->super.failed >= SUPER_RETRIES) n->super.failed = SUPER_RETRIES - 1; /* one more try */
    uint64_t oldest = nvme_engine_oldest_ns(n->engine);
    pthread_mutex_lock(&n->m);
    nvme_space_expire(&n->space, wall_ms());
    if (oldest && now - oldest > HANG_NS)
        n->degraded |= NVME_DEGRADED_HANGS;
    else
        n->degraded &= ~(unsigned)NVME_DEGRADED_HANGS;
    pthread_mutex_unlock(&n->m);
}

static uint64_t until_next(const struct nvme *n, uint64_t now, uint64_t scrub_ns)
{
    uint64_t next = n->tick_ns;
    if (n->next_deadline_ns < next) next = n->next_deadline_ns;
    if (scrub_ns < next) next = scrub_ns;
    return next > now ? next - now : 0;
}

static void wait_for_events(struct nvme *n, uint64_t timeout_ns)
{
    pthread_mutex_lock(&n->m);
    bool idle = TAILQ_EMPTY(&n->inbox) && !n->calls && (!n->stop || n->stopping);
    n->asleep = idle;
    pthread_mutex_unlock(&n->m);
    nvme_engine_poll(n->engine, idle ? timeout_ns : 0);
    pthread_mutex_lock(&n->m);
    n->asleep = false;
    pthread_mutex_unlock(&n->m);
}

/* What is left to do before the device may be closed; false when it hangs. */
static void stop_io(struct nvme *n)
{
    uint64_t until = clock_ns() + (uint64_t)n->opts.hang_ms_max * 1000000u;
    n->stopping = true;
    n->clean_after_ns = 0;
    pthread_mutex_lock(&n->m);
    n->space.super_seq++; /* closed cleanly */
    pthread_mutex_unlock(&n->m);
    for (;;) {
        inbox_take(n);
        ops_expire(n, 0, true);
        for (unsigned i = 0; i < TIER_NVME_QUEUE_OPS; i++)
            if (n->pool.op[i].live && n->pool.op[i].status == 0 &&
                n->pool.op[i].phase != NVME_HEADER)
                n->pool.op[i].status = -ECANCELED;
        struct nvme_op *x, *next;
        for (x = TAILQ_FIRST(&n->writing); x; x = next) {
            next = TAILQ_NEXT(x, link);
            (void)write_step(n, x);
        }
        if (clock_ns() < until) {
            clean_start(n);
            if (nvme_engine_busy(n->engine) == 0) super_start(n);
        }
        if (nvme_engine_busy(n->engine) == 0 || clock_ns() >= until) break;
        wait_for_events(n, TICK_NS / 4);
    }
    for (unsigned i = 0; i < TIER_NVME_QUEUE_OPS; i++) {
        if (!n->pool.op[i].live) continue;
        n->pool.op[i].status = -ETIMEDOUT;
        op_end(n, &n->pool.op[i]);
    }
}

static int start_engine(struct nvme *n)
{
    int r =
        nvme_engine_create(n->fd, NVME_RECOVER_DEPTH, n->opts.force_pool, &n->engine, &n->refused);
    if (r < 0) return err_set(&n->start.err, r, "nvme: no I/O engine: %s", err_name(r));
    if (n->opts.force_pool || n->refused < 0) n->degraded |= NVME_DEGRADED_POOL;
    r = nvme_recover(n, &n->start.err);
    if (r == 0 && n->opts.scrub_bytes_per_s != TIER_NVME_NO_SCRUB)
        r = nvme_scrub_create(n, &n->scrub);
    return r;
}

void *nvme_main(void *arg)
{
    struct nvme *n = arg;
    n->next_deadline_ns = UINT64_MAX;
    int r = start_engine(n);
    pthread_mutex_lock(&n->m);
    n->start.result = r;
    n->start.up = true;
    pthread_cond_broadcast(&n->changed);
    pthread_mutex_unlock(&n->m);
    uint64_t scrub_ns = n->scrub ? 0 : UINT64_MAX;
    bool stopped = false;
    while (r == 0 && !stopped) {
        uint64_t now = clock_ns();
        inbox_take(n);
        ops_expire(n, now, false);
        tick(n, now);
        if (n->scrub) scrub_ns = nvme_scrub_step(n->scrub, now);
        reads_start(n);
        super_start(n);
        writes_start(n);
        clean_start(n);
        wait_for_events(n, until_next(n, now, scrub_ns));
        pthread_mutex_lock(&n->m);
        stopped = n->stop;
        pthread_mutex_unlock(&n->m);
    }
    if (r == 0) stop_io(n);
    nvme_scrub_destroy(n->scrub);
    n->scrub = NULL;
    int hung = nvme_engine_destroy(n->engine);
    pthread_mutex_lock(&n->m);
    n->start.result = r < 0 ? r : hung;
    n->start.finished = true;
    pthread_cond_broadcast(&n->changed);
    pthread_mutex_unlock(&n->m);
    return NULL;
}
