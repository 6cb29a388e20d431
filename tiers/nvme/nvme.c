/* The NVMe tier as a struct tier: lookups and administration under the one lock; transfers are
 * left to the I/O thread (nvme_queue.c). */
#include "tiers/nvme/nvme.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/mem.h"
#include "tiers/nvme/nvme_int.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static_assert(offsetof(struct nvme, base) == 0, "a tier is its nvme");

static struct nvme *of(struct tier *t)
{
    return (struct nvme *)t;
}

/* ---- submission, on the caller's thread ---- */

static void pieces_init(struct nvme_op *x)
{
    const struct tier_op *op = x->op;
    x->bytes = 0;
    for (uint32_t p = op->part_lo; p < op->part_hi; p++) {
        uint64_t bytes = record_part_bytes(op->layout, p);
        x->pieces[p] = (uint32_t)((bytes + NVME_PIECE_BYTES - 1) / NVME_PIECE_BYTES);
        x->bytes += bytes;
    }
    x->parts_left = op->part_hi - op->part_lo;
}

/* Holding m: the record that a read is about, referenced. */
static int slot_hold(struct nvme *n, struct nvme_op *x)
{
    const struct tier_op *op = x->op;
    nvme_space_expire(&n->space, wall_ms());
    struct nvme_slot *slot = nvme_space_find(&n->space, &op->key);
    if (!slot) return -ENOENT;
    if (slot->record_bytes != op->layout->record_bytes)
        return -ESTALE; /* the caller may know it in another form */
    x->slot = slot;
    x->slot_off = nvme_slot_off(&n->space, slot);
    x->head.generation = slot->generation;
    slot->refs++;
    if (op->prio < TIER_BEHIND) nvme_space_hit(slot, wall_ms());
    return 0;
}

/* Holding m: may the write come in at all? */
static int admit(struct nvme *n, struct nvme_op *x)
{
    unsigned class;
    if (n->read_only) return -EPERM; /* not -EIO: reads are well, no breaker is to open */
    if (nvme_class_of(x->op->layout->record_bytes, n->space.extent_bytes, &class) == 0) {
        n->stat.rejected[TIER_REJECT_SIZE]++;
        return -ENOSPC;
    }
    int why = nvme_budget_admit(&n->budget, &x->op->key, clock_ns());
    if (why > 0) n->stat.rejected[why - 1]++;
    return why > 0 ? -EPERM : 0;
}

static int head_of(const struct tier_op *op, struct nvme_head *h)
{
    struct record_view v;
    if (tier_op_open(op, &v) < 0) return -EINVAL;
    *h = (struct nvme_head){.n_tokens = v.desc.n_tokens,
                            .kind = v.desc.kind,
                            .key = op->key,
                            .record_bytes = v.layout.record_bytes,
                            .ns_hash = v.desc.ns_hash,
                            .ident_hash = v.desc.ident_hash,
                            .created_ms = v.desc.created_ms,
                            .expires_ms = v.desc.expires_ms};
    memcpy(&h->header_sum, op->part[0] + 120, sizeof h->header_sum);
    return 0;
}

static int submit(struct nvme *n, struct tier_op *op, bool write)
{
    struct nvme_head head = {0};
    int r = tier_op_check(op, write);
    if (r == 0 && write) r = head_of(op, &head);
    if (r < 0) return r;
    pthread_mutex_lock(&n->m);
    struct nvme_op *x = TAILQ_FIRST(&n->pool.free_ops);
    /* Writes leave a quarter of the queue to reads. */
    if (!x || n->stop || (write && n->n_write_ops >= TIER_NVME_QUEUE_OPS / 4 * 3)) {
        if (write) n->stat.rejected[TIER_REJECT_BUSY]++;
        r = -EAGAIN;
        goto out;
    }
    x->op = op;
    x->head = head;
    x->slot = NULL;
    x->write = write;
    r = write ? admit(n, x) : slot_hold(n, x);
    if (r < 0) goto out;
    TAILQ_REMOVE(&n->pool.free_ops, x, link);
    x->live = true;
    x->started = x->listed = x->header_here = x->doomed = false;
    x->status = 0;
    x->phase = NVME_DATA;
    x->n_busy = 0;
    x->at = 0;
    x->part = op->part_lo;
    x->begun_ns = clock_ns();
    x->first_ns = 0;
    pieces_init(x);
    n->n_ops++;
    n->n_write_ops += write;
    n->stat.inflight_ops++;
    n->stat.inflight_bytes += x->bytes;
    TAILQ_INSERT_TAIL(&n->inbox, x, link);
    nvme_wake(n);
out:
    pthread_mutex_unlock(&n->m);
    return r;
}

/* ---- struct tier ---- */

static int op_find(struct tier *t, const struct tier_key *k)
{
    struct nvme *n = of(t);
    pthread_mutex_lock(&n->m);
    nvme_space_expire(&n->space, wall_ms());
    int r = nvme_space_find(&n->space, k) != NULL;
    pthread_mutex_unlock(&n->m);
    return r;
}

static int op_read(struct tier *t, struct tier_op *op)
{
    return submit(of(t), op, false);
}

static int op_write(struct tier *t, struct tier_op *op)
{
    return submit(of(t), op, true);
}

static int op_remove(struct tier *t, const struct tier_key *k, bool also_pinned)
{
    struct nvme *n = of(t);
    int r = 0;
    pthread_mutex_lock(&n->m);
    struct nvme_slot *slot = nvme_space_find(&n->space, k);
    if (slot && slot->pinned && !also_pinned) {
        r = -EBUSY;
    } else {
        for (unsigned i = 0; n->n_write_ops > 0 && i < TIER_NVME_QUEUE_OPS; i++) {
            struct nvme_op *x = &n->pool.op[i];
            if (!x->live || !x->write || !tier_key_same(&x->head.key, k)) continue;
            x->doomed = true;
            r = 1;
        }
        if (slot) nvme_space_drop(&n->space, slot, false);
        r = r || slot;
        nvme_wake(n);
    }
    pthread_mutex_unlock(&n->m);
    return r;
}

static void op_touch(struct tier *t, const struct tier_key *k)
{
    struct nvme *n = of(t);
    pthread_mutex_lock(&n->m);
    struct nvme_slot *slot = nvme_space_find(&n->space, k);
    if (slot) nvme_space_hit(slot, wall_ms());
    pthread_mutex_unlock(&n->m);
}

static int op_set_pinned(struct tier *t, const struct tier_key *k, bool pinned)
{
    struct nvme *n = of(t);
    pthread_mutex_lock(&n->m);
    nvme_space_expire(&n->space, wall_ms());
    struct nvme_slot *slot = nvme_space_find(&n->space, k);
    if (slot) nvme_space_pin(&n->space, slot, pinned);
    pthread_mutex_unlock(&n->m);
    return slot != NULL;
}

static int op_set_quota(struct tier *t, uint64_t ns_hash, uint64_t bytes)
{
    struct nvme *n = of(t);
    pthread_mutex_lock(&n->m);
    int r = nvme_space_set_quota(&n->space, ns_hash, bytes);
    nvme_wake(n);
    pthread_mutex_unlock(&n->m);
    return r;
}

static void info_of(const struct nvme_slot *slot, struct tier_info *ret)
{
    *ret = (struct tier_info){.key = slot->node.key,
                              .ns_hash = slot->ns_hash,
                              .size_bytes = nvme_slot_bytes(slot),
                              .created_ms = slot->created_ms,
                              .expires_ms = slot->expires_ms,
                              .hits = slot->hits,
                              .used_s = (double)slot->used_ms / 1e3,
                              .n_tokens = slot->n_tokens,
                              .kind = (enum tier_kind)slot->kind,
                              .pinned = slot->pinned};
}

static int op_scan(struct tier *t, tier_visit_fn fn, void *ctx)
{
    struct nvme *n = of(t);
    struct nvme_space *s = &n->space;
    size_t count = 0;
    pthread_mutex_lock(&n->m);
    nvme_space_expire(s, wall_ms());
    struct tier_info *all = mem_alloc((s->n_records + 1) * sizeof *all);
    for (uint32_t i = 0; all && i < s->n_extents; i++)
        for (uint32_t k = 0; s->extent[i]->class && k < s->extent[i]->n_slots; k++)
            if (s->extent[i]->slot[k].state == NVME_READY)
                info_of(&s->extent[i]->slot[k], &all[count++]);
    ASSERT(!all || count == s->n_records);
    pthread_mutex_unlock(&n->m);
    if (!all) return -ENOMEM;
    int r = 0;
    for (size_t i = 0; r == 0 && i < count; i++)
        r = fn(ctx, &all[i]);
    mem_free(all);
    return r;
}

/* Holding m. */
static void say_degraded(const struct nvme *n, char *ret, size_t size)
{
    static const struct {
        unsigned bit;
        const char *text;
    } words[] = {
        {NVME_DEGRADED_READ_ONLY, "read-only after errors"},
        {NVME_DEGRADED_HANGS, "a transfer hangs"},
        {NVME_DEGRADED_BUFFERED, "no O_DIRECT: buffered"},
        {NVME_DEGRADED_SPARSE, "not preallocated: sparse"},
    };
    size_t at = 0;
    ret[0] = '\0';
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (n->degraded & words[i].bit && at < size)
            at += (size_t)snprintf(ret + at, size - at, "%s%s", at ? "; " : "", words[i].text);
    if (n->degraded & NVME_DEGRADED_POOL && at < size)
        at += (size_t)snprintf(ret + at, size - at, "%sno io_uring (%s): thread pool",
                               at ? "; " : "", n->refused ? err_name(n->refused) : "off");
    if (n->degraded & NVME_DEGRADED_MEMLOCK && at < size)
        (void)snprintf(ret + at, size - at, "%sbuffers not registered: needs ulimit -l %llu",
                       at ? "; " : "", (unsigned long long)(n->memlock_needed >> 10));
}

static void op_stat(struct tier *t, struct tier_stat *ret)
{
    struct nvme *n = of(t);
    pthread_mutex_lock(&n->m);
    uint64_t now_ms = wall_ms();
    nvme_space_expire(&n->space, now_ms);
    struct tier_stat s = n->stat;
    s.capacity_bytes = n->space.capacity_bytes;
    s.used_bytes = n->space.used_bytes;
    s.pinned_bytes = n->space.pinned_bytes;
    s.n_records = n->space.n_records;
    s.evictions = n->space.evictions;
    s.expired = n->space.expired;
    s.write_budget_ratio = nvme_budget_ratio(&n->budget, clock_ns());
    uint64_t tail = nvme_space_tail_ms(&n->space);
    if (tail && now_ms > tail) s.tail_age_s = (double)(now_ms - tail) / 1e3;
    say_degraded(n, s.degraded, sizeof s.degraded);
    pthread_mutex_unlock(&n->m);
    *ret = s;
}

static int op_resize(struct tier *t, uint64_t capacity_bytes)
{
    return nvme_resize(of(t), capacity_bytes);
}

struct memory_arg {
    uint8_t *base;
    size_t bytes;
};

static int memory_call(struct nvme *n, void *arg)
{
    const struct memory_arg *a = arg;
    return nvme_engine_add_memory(n->engine, a->base, a->bytes);
}

static int op_add_memory(struct tier *t, void *base, size_t bytes)
{
    struct nvme *n = of(t);
    struct memory_arg a = {base, bytes};
    struct rlimit lim;
    int r = nvme_call(n, memory_call, &a);
    if (r != -ENOMEM && r != -EPERM) return r;
    pthread_mutex_lock(&n->m);
    n->memlock_needed += bytes;
    if (getrlimit(RLIMIT_MEMLOCK, &lim) == 0 && n->memlock_needed == bytes &&
        lim.rlim_cur != RLIM_INFINITY)
        n->memlock_needed += lim.rlim_cur; /* what others have locked by now counts as well */
    n->degraded |= NVME_DEGRADED_MEMLOCK;
    pthread_mutex_unlock(&n->m);
    return -ENOMEM;
}

static int op_set_policy(struct tier *t, enum evict_policy p)
{
    struct nvme *n = of(t);
    pthread_mutex_lock(&n->m);
    int r = nvme_space_set_policy(&n->space, p);
    pthread_mutex_unlock(&n->m);
    return r;
}

/* Holding m: the superblock of now is on the device. */
static bool has_super(const struct nvme *n)
{
    return !nvme_seq_after(n->space.super_seq, n->super.written);
}

/* Holding m: nothing queued or under way, and what was removed is gone from the device. */
static bool drained(const struct nvme *n)
{
    if (n->n_ops > 0 || n->space.n_cleaning > 0) return false;
    if (n->read_only) return true;
    return TAILQ_EMPTY(&n->space.dirty) && has_super(n);
}

/* Until `done`, or deadline_ns (0 = for ever). Holding m. */
static int wait_state(struct nvme *n, bool (*done)(const struct nvme *n), uint64_t deadline_ns)
{
    while (!done(n))
        if (wait_until(&n->changed, &n->m, deadline_ns) != 0 && !done(n)) return -ETIMEDOUT;
    return 0;
}

static int op_drain(struct tier *t, uint64_t deadline_ns)
{
    struct nvme *n = of(t);
    pthread_mutex_lock(&n->m);
    nvme_wake(n);
    int r = wait_state(n, drained, deadline_ns);
    pthread_mutex_unlock(&n->m);
    return r;
}

static void nvme_free(struct nvme *n)
{
    nvme_space_fini(&n->space);
    if (n->fd >= 0) close(n->fd); /* ends the lock as well */
    pthread_cond_destroy(&n->changed);
    pthread_mutex_destroy(&n->m);
    mem_free(n->pool.op);
    mem_free(n->pool.io);
    mem_free(n->pool.pages);
    mem_free(n->super.block);
    mem_free(n->path);
    mem_free(n);
}

/* Tiers whose device still holds memory of theirs; never freed, and to be found by a debugger. */
static _Atomic(struct nvme *) hung_tiers;

static void keep_hung(struct nvme *n)
{
    n->hung_next = atomic_load(&hung_tiers);
    while (!atomic_compare_exchange_weak(&hung_tiers, &n->hung_next, n))
        ;
}

static bool is_finished(const struct nvme *n)
{
    return n->start.finished;
}

static void op_destroy(struct tier *t)
{
    if (!t) return;
    struct nvme *n = of(t);
    pthread_mutex_lock(&n->m);
    n->stop = true;
    nvme_wake(n);
    /* The thread gives up after hang_ms_max; if it is stuck inside the kernel itself, so do we. */
    uint64_t patience_ns = 2 * (uint64_t)n->opts.hang_ms_max * 1000000u + 5000000000u;
    int r = wait_state(n, is_finished, clock_ns() + patience_ns);
    int hung = n->start.result;
    pthread_mutex_unlock(&n->m);
    if (r < 0)
        pthread_detach(n->thread);
    else
        pthread_join(n->thread, NULL);
    if (r == 0 && hung == 0)
        nvme_free(n);
    else
        keep_hung(n);
}

static const struct tier_ops nvme_ops = {
    .find = op_find,
    .read = op_read,
    .write = op_write,
    .remove = op_remove,
    .touch = op_touch,
    .set_pinned = op_set_pinned,
    .set_quota = op_set_quota,
    .scan = op_scan,
    .stat = op_stat,
    .resize = op_resize,
    .add_memory = op_add_memory,
    .set_policy = op_set_policy,
    .drain = op_drain,
    .destroy = op_destroy,
};

/* ---- creation ---- */

static int nvme_alloc(const struct tier_nvme_opts *o, struct nvme **ret)
{
    struct nvme *n = mem_zalloc(sizeof *n);
    if (!n) return -ENOMEM;
    n->fd = -1;
    pthread_mutex_init(&n->m, NULL);
    (void)wait_init(&n->changed);
    n->opts = *o;
    if (o->scrub_bytes_per_s == 0) n->opts.scrub_bytes_per_s = 4u << 20;
    if (o->hang_ms_max == 0) n->opts.hang_ms_max = 10000;
    if (o->corrupt_max == 0) n->opts.corrupt_max = 32;
    n->path = mem_strdup(o->path);
    n->opts.path = n->path;
    n->pool.op = mem_zalloc(TIER_NVME_QUEUE_OPS * sizeof *n->pool.op);
    n->pool.io = mem_zalloc(NVME_IOS * sizeof *n->pool.io);
    size_t pages = (size_t)(TIER_NVME_QUEUE_OPS + 1) * NVME_PAGE;
    n->pool.pages = mem_aligned(NVME_PAGE, pages);
    n->super.block = mem_aligned(NVME_PAGE, sizeof *n->super.block);
    if (!n->path || !n->pool.op || !n->pool.io || !n->pool.pages || !n->super.block) {
        nvme_free(n);
        return -ENOMEM;
    }
    memset(n->pool.pages, 0, pages);
    n->pool.zeros = n->pool.pages + pages - NVME_PAGE;
    TAILQ_INIT(&n->inbox);
    TAILQ_INIT(&n->pool.free_ops);
    TAILQ_INIT(&n->writing);
    TAILQ_INIT(&n->pool.free_ios);
    for (unsigned p = 0; p < TIER_PRIO_COUNT; p++) {
        TAILQ_INIT(&n->reading[p]);
        TAILQ_INIT(&n->waiting[p]);
    }
    for (unsigned i = 0; i < TIER_NVME_QUEUE_OPS; i++) {
        n->pool.op[i].n = n;
        n->pool.op[i].page = n->pool.pages + (size_t)i * NVME_PAGE;
        TAILQ_INSERT_TAIL(&n->pool.free_ops, &n->pool.op[i], link);
    }
    for (unsigned i = 0; i < NVME_IOS; i++)
        TAILQ_INSERT_TAIL(&n->pool.free_ios, &n->pool.io[i], link);
    n->base = (struct tier){.ops = &nvme_ops, .name = "nvme", .persistent = true};
    *ret = n;
    return 0;
}

static bool is_up(const struct nvme *n)
{
    return n->start.up;
}

/* Starts the thread, which recovers; then cuts off what the file has too much. */
static int begin(struct nvme *n, struct err *err)
{
    if (pthread_create(&n->thread, NULL, nvme_main, n) != 0)
        return err_set(err, -EAGAIN, "nvme: no thread");
    pthread_mutex_lock(&n->m);
    (void)wait_state(n, is_up, 0);
    int r = n->start.result;
    if (r == 0) r = wait_state(n, has_super, clock_ns() + 10000000000u);
    pthread_mutex_unlock(&n->m);
    if (n->start.err.code < 0) {
        pthread_join(n->thread, NULL);
        return err_set(err, n->start.err.code, "%s", n->start.err.msg);
    }
    if (r == 0 && !n->is_block && ftruncate(n->fd, (off_t)n->space.capacity_bytes) < 0) r = -errno;
    if (r < 0) {
        pthread_mutex_lock(&n->m);
        n->stop = true;
        nvme_wake(n);
        pthread_mutex_unlock(&n->m);
        pthread_join(n->thread, NULL);
        return err_set(err, r, "nvme: cannot write to %s: %s", n->path, err_name(r));
    }
    return 0;
}

int tier_nvme_create(const struct tier_nvme_opts *o, struct tier **ret, struct err *err)
{
    struct nvme *n;
    if (!o->path || !o->path[0]) return err_set(err, -EINVAL, "nvme: no path");
    if ((unsigned)o->policy >= EVICT_POLICY_COUNT) return err_set(err, -EINVAL, "nvme: no policy");
    int r = nvme_alloc(o, &n);
    if (r < 0) return err_set(err, r, "nvme: no memory");
    r = nvme_open(n, err);
    if (r == 0) r = begin(n, err);
    if (r < 0) {
        nvme_free(n);
        return r;
    }
    *ret = &n->base;
    return 0;
}
