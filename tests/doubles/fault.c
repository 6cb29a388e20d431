#include "tests/doubles/fault.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/mem.h"

#include <pthread.h>
#include <string.h>
#include <sys/prctl.h>

/* One thread owns all that happens later. An op waits for its start, goes to the inner tier, and
 * the parts that come back queue for one of two channels, which stand for the two directions of a
 * device. A channel serves one part at a time: it starts when the one before it ended and takes
 * bytes / rate. The times are those of a schedule, not of the thread: a part that was handed over
 * late does not make the next one late, and a caller that asks again at once is served as if the
 * answer had come on time, so that the rate is kept by short ops as well.
 *
 * The inner tier's callbacks never wait: they only mark what has arrived. The caller may provide
 * memory for the parts above 0 as late as in on_part(0), which runs later here, so a read whose
 * memory is incomplete goes to the inner tier in two steps. */
enum channel_id { CHANNEL_READ, CHANNEL_WRITE, CHANNEL_COUNT };
enum op_state {
    OP_WAITS, /* for its start */
    OP_DROPPED,
    OP_HANGS,
    OP_INNER, /* the inner tier has it */
    OP_IDLE,  /* nobody has it: more parts to serve, one more step, or done */
    OP_OVER   /* in the caller's on_done */
};
/* Asking again within this time after an answer counts as at once (chosen: a few wake-ups). */
static const uint64_t at_once_ns = 1000000u;

struct fault_op {
    struct tier_op inner;
    struct fault *f;
    struct tier_op *outer;
    struct fault_op *next;
    enum op_state state;
    enum channel_id channel;
    uint64_t submit_ns, start_ns, first_ns, bytes;
    int status;
    bool stop;        /* the caller wants no more parts */
    bool eio, nospc;  /* how it will end */
    uint32_t flip_at; /* part; UINT32_MAX = none */
    uint64_t flip_bit;
    uint32_t left;    /* parts until the cut; UINT32_MAX = no cut */
    uint32_t next_lo; /* parts below have been asked of the inner tier */
    /* Arrived, not served. A write that is done but for its time stands here as its first part. */
    uint64_t ready[RECORD_PARTS_MAX / 64 + 1];
    uint32_t n_arrived, n_ready;
    uint8_t **copy; /* write with a flipped bit: the caller's pointers but one */
    uint8_t *copied;
};

struct channel {
    struct fault_op *op, *last; /* being served, or NULL; served last, or NULL when it is gone */
    uint32_t part;
    uint64_t due_ns, free_ns, handed_ns;
};

struct fault {
    struct tier t;
    struct tier *inner; /* NULL once destroyed */
    pthread_t thread;
    pthread_mutex_t m;
    pthread_cond_t wake, idle;
    /* guarded by m */
    struct tier_fault_opts o;
    uint64_t seed;
    struct fault_op *head, **tail;
    struct channel channel[CHANNEL_COUNT];
    struct tier_fault_stat stat;
    struct tier_stat moved;
    bool stop;
};

static struct fault *fault_of(struct tier *t)
{
    return (struct fault *)t;
}

static bool is_write(const struct fault_op *p)
{
    return p->channel == CHANNEL_WRITE;
}

/* ---- draws ---- */

static uint64_t draw(struct fault *f) /* splitmix64 */
{
    uint64_t z = (f->seed += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static double draw_unit(struct fault *f)
{
    return (double)(draw(f) >> 11) * 0x1p-53;
}

static bool draw_chance(struct fault *f, double p, bool applies, uint64_t *count)
{
    bool hit = draw_unit(f) < p && applies;
    if (hit) (*count)++;
    return hit;
}

/* Of all bits from part *part on the one numbered `bit`: its part and its place there. */
static uint64_t bit_in_part(const struct record_layout *l, uint64_t bit, uint32_t *part)
{
    while (bit >= 8 * record_part_bytes(l, *part))
        bit -= 8 * record_part_bytes(l, (*part)++);
    return bit;
}

/* Always the same number of draws, so that one changed probability leaves the other faults alone.
 * At most one fault decides how the op ends. */
static int draw_faults(struct fault *f, struct fault_op *p)
{
    const struct tier_fault_opts *o = &f->o;
    struct tier_fault_stat *count = &f->stat;
    uint32_t n = p->outer->part_hi - p->outer->part_lo;
    double delay_ms = o->delay_ms + o->delay_random_ms * draw_unit(f);
    p->start_ns = p->submit_ns + (uint64_t)(delay_ms * 1e6);
    count->ops++;
    bool busy = draw_chance(f, o->busy, true, &count->busy);
    bool drop = draw_chance(f, o->drop, !busy, &count->drop);
    bool hang = draw_chance(f, o->hang, !busy && !drop, &count->hang);
    bool ends = busy || drop;
    p->eio = draw_chance(f, o->eio, !ends, &count->eio);
    p->nospc = draw_chance(f, o->nospc, !ends && !p->eio && is_write(p), &count->nospc);
    ends |= p->eio || p->nospc;
    bool cut = draw_chance(f, o->cut, !ends && !is_write(p), &count->cut);
    bool flip = draw_chance(f, is_write(p) ? o->flip_write : o->flip_read, !ends,
                            is_write(p) ? &count->flip_write : &count->flip_read);
    uint64_t bit = draw(f) % (8 * p->bytes), whole = draw(f) % n;
    p->left = cut ? (uint32_t)whole : UINT32_MAX;
    p->flip_at = flip ? p->outer->part_lo : UINT32_MAX;
    if (flip) p->flip_bit = bit_in_part(p->outer->layout, bit, &p->flip_at);
    p->state = drop ? OP_DROPPED : hang ? OP_HANGS : OP_WAITS;
    if (hang) p->inner.deadline_ns = 0; /* it had begun */
    return busy ? -EAGAIN : 0;
}

static void flip(uint8_t *part, uint64_t bit)
{
    part[bit / 8] ^= (uint8_t)(1u << bit % 8);
}

/* ---- the inner tier's side ---- */

static void mark_ready(struct fault_op *p, uint32_t part)
{
    p->ready[part / 64] |= 1ull << part % 64;
    p->n_ready++;
}

static uint32_t first_ready(const struct fault_op *p)
{
    uint32_t w = 0;
    while (!p->ready[w])
        w++;
    return 64 * w + (uint32_t)__builtin_ctzll(p->ready[w]);
}

static uint32_t take_ready(struct fault_op *p)
{
    uint32_t part = first_ready(p);
    p->ready[part / 64] &= p->ready[part / 64] - 1;
    p->n_ready--;
    return part;
}

static int inner_part(struct tier_op *inner, uint32_t part)
{
    struct fault_op *p = inner->ctx;
    struct fault *f = p->f;
    pthread_mutex_lock(&f->m);
    bool cut = p->n_arrived >= p->left;
    int r = cut || p->stop || f->stop ? -ECANCELED : 0;
    if (r == 0) {
        p->n_arrived++;
        mark_ready(p, part);
        pthread_cond_signal(&f->wake);
    } else if (cut && p->status == 0) {
        uint64_t size = record_part_bytes(inner->layout, part);
        memset(inner->part[part] + size / 2, 0x5A, size - size / 2);
        p->status = -EIO;
    }
    pthread_mutex_unlock(&f->m);
    return r;
}

static void inner_done(struct tier_op *inner, int status)
{
    struct fault_op *p = inner->ctx;
    struct fault *f = p->f;
    pthread_mutex_lock(&f->m);
    p->state = OP_IDLE;
    if (p->status == 0) p->status = status;
    if (is_write(p) && p->status == 0) mark_ready(p, 0);
    pthread_cond_signal(&f->wake);
    pthread_mutex_unlock(&f->m);
}

/* Under m, which it lets go of. 0: the op is the inner tier's and may be over by now. */
static int forward(struct fault *f, struct fault_op *p)
{
    const struct tier_op *outer = p->outer;
    bool later = false; /* memory that will come with on_part(0) */
    for (uint32_t i = p->next_lo; i < outer->part_hi; i++)
        later |= !outer->part[i];
    p->inner.part_lo = p->next_lo;
    p->inner.part_hi = later && p->next_lo == 0 ? 1 : outer->part_hi;
    p->next_lo = p->inner.part_hi;
    p->state = OP_INNER;
    struct tier *in = f->inner;
    bool write = is_write(p);
    pthread_mutex_unlock(&f->m);
    int r = write ? in->ops->write(in, &p->inner) : in->ops->read(in, &p->inner);
    pthread_mutex_lock(&f->m);
    if (r < 0) p->state = OP_IDLE;
    return r;
}

/* ---- the thread ---- */

static void unlink_op(struct fault *f, struct fault_op *p)
{
    struct fault_op **at = &f->head;
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    if (!*at) f->tail = at;
}

static void free_op(struct fault_op *p)
{
    mem_free(p->copied);
    mem_free(p->copy);
    mem_free(p);
}

static void count_done(struct fault *f, const struct fault_op *p, uint64_t now)
{
    struct tier_stat *s = &f->moved;
    s->errors += p->status == -EIO;
    s->timeouts += p->status == -ETIMEDOUT;
    if (p->status < 0) return;
    if (is_write(p)) {
        s->writes++;
        s->write_bytes += p->bytes;
        s->write_ns += now - p->submit_ns;
    } else {
        s->reads++;
        s->read_bytes += p->bytes;
        s->read_ns += now - p->submit_ns;
        if (p->first_ns) s->first_ns += p->first_ns - p->submit_ns;
    }
}

/* Under m, which it lets go of while the caller is told. */
static void finish(struct fault *f, struct fault_op *p)
{
    struct channel *c = &f->channel[p->channel];
    uint64_t now = clock_ns();
    if (c->last == p) {
        c->last = NULL;
        c->handed_ns = now;
    }
    count_done(f, p, now);
    p->state = OP_OVER;
    int status = p->status;
    pthread_mutex_unlock(&f->m);
    p->outer->on_done(p->outer, status);
    pthread_mutex_lock(&f->m);
    unlink_op(f, p);
    if (!f->head) pthread_cond_broadcast(&f->idle);
    free_op(p);
}

static void earlier(uint64_t *next_ns, uint64_t t_ns)
{
    if (t_ns < *next_ns) *next_ns = t_ns;
}

/* By priority, then in order of submission; of a batch the op that is furthest behind. */
static struct fault_op *next_op(const struct fault *f, enum channel_id id)
{
    struct fault_op *best = NULL;
    for (struct fault_op *p = f->head; p; p = p->next) {
        if (p->channel != id || p->n_ready == 0) continue;
        if (!best || p->outer->prio < best->outer->prio ||
            (p->outer->prio == best->outer->prio && p->outer->batch &&
             p->outer->batch == best->outer->batch && first_ready(p) < first_ready(best)))
            best = p;
    }
    return best;
}

static void channel_pick(struct fault *f, enum channel_id id)
{
    struct channel *c = &f->channel[id];
    struct fault_op *best = next_op(f, id);
    if (!best) return;
    c->op = best;
    c->part = take_ready(best);
    uint64_t rate = id == CHANNEL_READ ? f->o.read_bytes_per_s : f->o.write_bytes_per_s;
    uint64_t bytes = is_write(best) ? best->bytes : record_part_bytes(best->outer->layout, c->part);
    uint64_t start = best->start_ns;
    if (best->submit_ns - c->handed_ns < at_once_ns && c->handed_ns > c->free_ns)
        start -= c->handed_ns - c->free_ns;
    if (start < c->free_ns) start = c->free_ns;
    c->due_ns = start + (rate ? (uint64_t)((double)bytes * 1e9 / (double)rate) : 0);
}

/* Under m, which it lets go of while the caller has the part. */
static void deliver(struct fault *f, struct channel *c, uint64_t now)
{
    struct fault_op *p = c->op;
    c->op = NULL;
    c->last = p;
    c->free_ns = c->due_ns;
    c->handed_ns = now;
    if (is_write(p) || p->stop) return;
    uint32_t part = c->part;
    if (part == p->flip_at) flip(p->outer->part[part], p->flip_bit);
    if (part > 0 && !p->first_ns) p->first_ns = now;
    pthread_mutex_unlock(&f->m);
    int r = p->outer->on_part(p->outer, part);
    pthread_mutex_lock(&f->m);
    if (r == 0) return;
    p->stop = true;
    p->n_ready = 0;
    memset(p->ready, 0, sizeof p->ready);
    if (p->status == 0) p->status = -ECANCELED;
}

/* True: something was done and m may have been let go of, look again. */
static bool channel_serve(struct fault *f, enum channel_id id, uint64_t now, uint64_t *next_ns)
{
    struct channel *c = &f->channel[id];
    if (!c->op) channel_pick(f, id);
    if (!c->op) return false;
    if (c->due_ns > now) {
        earlier(next_ns, c->due_ns);
        return false;
    }
    deliver(f, c, now);
    return true;
}

static bool op_start(struct fault *f, struct fault_op *p, uint64_t now, uint64_t *next_ns)
{
    if (p->start_ns > now) {
        earlier(next_ns, p->start_ns);
        return false;
    }
    p->state = OP_IDLE;
    if (p->inner.deadline_ns && now >= p->inner.deadline_ns) {
        p->status = -ETIMEDOUT;
    } else if (p->eio || p->nospc) {
        p->status = p->eio ? -EIO : -ENOSPC;
    } else {
        int r = forward(f, p);
        if (r < 0) p->status = r;
    }
    return true;
}

static bool op_step(struct fault *f, struct fault_op *p, uint64_t now, uint64_t *next_ns)
{
    switch (p->state) {
    case OP_WAITS:
        return op_start(f, p, now, next_ns);
    case OP_DROPPED:
        if (f->o.drop > 0) return false;
        p->state = OP_IDLE;
        p->status = -EIO;
        return true;
    case OP_HANGS:
        if (f->o.hang > 0) return false;
        p->state = OP_WAITS;
        if (p->start_ns < now) p->start_ns = now;
        return true;
    case OP_IDLE:
        if (p->n_ready > 0 || f->channel[p->channel].op == p) return false;
        if (p->status == 0 && p->next_lo < p->outer->part_hi) {
            int r = forward(f, p);
            if (r < 0) p->status = r;
        } else {
            finish(f, p);
        }
        return true;
    case OP_INNER:
    case OP_OVER:
        break;
    }
    return false;
}

static bool look(struct fault *f, uint64_t now, uint64_t *next_ns)
{
    for (int id = 0; id < CHANNEL_COUNT; id++)
        if (channel_serve(f, (enum channel_id)id, now, next_ns)) return true;
    for (struct fault_op *p = f->head; p; p = p->next)
        if (op_step(f, p, now, next_ns)) return true;
    return false;
}

static int wait_until(pthread_cond_t *c, pthread_mutex_t *m, uint64_t t_ns)
{
    if (t_ns == UINT64_MAX) return pthread_cond_wait(c, m);
    struct timespec ts = {(time_t)(t_ns / 1000000000u), (long)(t_ns % 1000000000u)};
    return pthread_cond_timedwait(c, m, &ts);
}

static void *run(void *arg)
{
    struct fault *f = arg;
    (void)prctl(PR_SET_TIMERSLACK, 1); /* 50 us by default, a third of a part at 7 GB/s */
    pthread_mutex_lock(&f->m);
    while (!f->stop) {
        uint64_t next = UINT64_MAX;
        if (!look(f, clock_ns(), &next)) (void)wait_until(&f->wake, &f->m, next);
    }
    pthread_mutex_unlock(&f->m);
    return NULL;
}

/* ---- the caller's side ---- */

/* The caller's part in RAM is read by others meanwhile: the flipped bit goes into a copy. */
static int copy_flipped(struct fault_op *p)
{
    const struct tier_op *op = p->outer;
    uint64_t size = record_part_bytes(op->layout, p->flip_at);
    p->copy = mem_alloc(op->layout->n_parts * sizeof *p->copy);
    p->copied = mem_aligned(RECORD_ALIGN, size);
    if (!p->copy || !p->copied) return -ENOMEM;
    memcpy(p->copy, op->part, op->layout->n_parts * sizeof *p->copy);
    memcpy(p->copied, op->part[p->flip_at], size);
    flip(p->copied, p->flip_bit);
    p->copy[p->flip_at] = p->copied;
    p->inner.part = p->copy;
    return 0;
}

static int accept_op(struct fault *f, struct fault_op *p)
{
    pthread_mutex_lock(&f->m);
    int r = f->stop ? -ECANCELED : draw_faults(f, p);
    pthread_mutex_unlock(&f->m);
    if (r == 0 && is_write(p) && p->flip_at != UINT32_MAX) r = copy_flipped(p);
    if (r < 0) return r;

    pthread_mutex_lock(&f->m);
    if (f->stop) {
        r = -ECANCELED;
    } else {
        *f->tail = p;
        f->tail = &p->next;
        bool now = p->state == OP_WAITS && p->start_ns == p->submit_ns && !p->eio && !p->nospc;
        if (now) r = forward(f, p);
        if (r < 0) unlink_op(f, p);
        if (!now) pthread_cond_signal(&f->wake);
    }
    pthread_mutex_unlock(&f->m);
    return r;
}

static int submit(struct tier *t, struct tier_op *op, enum channel_id channel)
{
    ASSERT(op->on_done && op->part_lo < op->part_hi && op->part_hi <= op->layout->n_parts);
    ASSERT(channel == CHANNEL_WRITE || op->on_part);
    struct fault_op *p = mem_zalloc(sizeof *p);
    if (!p) return -ENOMEM;
    p->f = fault_of(t);
    p->outer = op;
    p->inner = *op;
    p->inner.on_part = inner_part;
    p->inner.on_done = inner_done;
    p->inner.ctx = p;
    p->channel = channel;
    p->submit_ns = clock_ns();
    p->next_lo = op->part_lo;
    for (uint32_t i = op->part_lo; i < op->part_hi; i++)
        p->bytes += record_part_bytes(op->layout, i);
    int r = accept_op(p->f, p);
    if (r < 0) free_op(p);
    return r;
}

static int fault_read(struct tier *t, struct tier_op *op)
{
    return submit(t, op, CHANNEL_READ);
}

static int fault_write(struct tier *t, struct tier_op *op)
{
    return submit(t, op, CHANNEL_WRITE);
}

/* A callback inside destroy() may still ask: the inner tier is gone by then. */
static int fault_find(struct tier *t, const struct tier_key *k)
{
    struct tier *in = fault_of(t)->inner;
    return in ? in->ops->find(in, k) : 0;
}

static int fault_remove(struct tier *t, const struct tier_key *k, bool also_pinned)
{
    struct tier *in = fault_of(t)->inner;
    return in ? in->ops->remove(in, k, also_pinned) : 0;
}

static void fault_touch(struct tier *t, const struct tier_key *k)
{
    struct tier *in = fault_of(t)->inner;
    if (in) in->ops->touch(in, k);
}

static int fault_set_pinned(struct tier *t, const struct tier_key *k, bool pinned)
{
    struct tier *in = fault_of(t)->inner;
    return in ? in->ops->set_pinned(in, k, pinned) : 0;
}

static int fault_set_quota(struct tier *t, uint64_t ns_hash, uint64_t bytes)
{
    struct tier *in = fault_of(t)->inner;
    return in ? in->ops->set_quota(in, ns_hash, bytes) : 0;
}

static int fault_scan(struct tier *t, tier_visit_fn fn, void *ctx)
{
    struct tier *in = fault_of(t)->inner;
    return in ? in->ops->scan(in, fn, ctx) : 0;
}

static int fault_resize(struct tier *t, uint64_t capacity_bytes)
{
    struct tier *in = fault_of(t)->inner;
    return in ? in->ops->resize(in, capacity_bytes) : -ECANCELED;
}

static int fault_add_memory(struct tier *t, void *base, size_t size_bytes)
{
    struct tier *in = fault_of(t)->inner;
    return in ? in->ops->add_memory(in, base, size_bytes) : -ECANCELED;
}

static int fault_set_policy(struct tier *t, enum evict_policy policy)
{
    struct tier *in = fault_of(t)->inner;
    return in ? in->ops->set_policy(in, policy) : -ECANCELED;
}

static void fault_stat(struct tier *t, struct tier_stat *ret)
{
    struct fault *f = fault_of(t);
    *ret = (struct tier_stat){0};
    if (f->inner) f->inner->ops->stat(f->inner, ret);
    pthread_mutex_lock(&f->m);
    ret->reads = f->moved.reads;
    ret->read_bytes = f->moved.read_bytes;
    ret->read_ns = f->moved.read_ns;
    ret->first_ns = f->moved.first_ns;
    ret->writes = f->moved.writes;
    ret->write_bytes = f->moved.write_bytes;
    ret->write_ns = f->moved.write_ns;
    ret->errors = f->moved.errors;
    ret->timeouts = f->moved.timeouts;
    ret->rejected[TIER_REJECT_BUSY] += f->stat.busy;
    ret->inflight_ops = ret->inflight_bytes = 0;
    for (const struct fault_op *p = f->head; p; p = p->next) {
        ret->inflight_ops++;
        ret->inflight_bytes += p->bytes;
    }
    pthread_mutex_unlock(&f->m);
}

static int fault_drain(struct tier *t, uint64_t deadline_ns)
{
    struct fault *f = fault_of(t);
    int r = 0;
    pthread_mutex_lock(&f->m);
    while (f->head && r == 0)
        r = wait_until(&f->idle, &f->m, deadline_ns ? deadline_ns : UINT64_MAX);
    bool idle = !f->head;
    pthread_mutex_unlock(&f->m);
    if (!idle) return -ETIMEDOUT;
    return f->inner ? f->inner->ops->drain(f->inner, deadline_ns) : 0;
}

/* The thread first, so that no callback of ours asks a tier that is being destroyed; then the inner
 * tier, which ends what it has; then the callers are told. */
static void fault_destroy(struct tier *t)
{
    struct fault *f = fault_of(t);
    pthread_mutex_lock(&f->m);
    f->stop = true;
    pthread_cond_signal(&f->wake);
    pthread_mutex_unlock(&f->m);
    (void)pthread_join(f->thread, NULL);
    f->inner->ops->destroy(f->inner);
    f->inner = NULL;
    pthread_mutex_lock(&f->m);
    while (f->head) {
        struct fault_op *p = f->head;
        ASSERT(p->state != OP_INNER);
        bool whole = p->state == OP_IDLE && p->next_lo == p->outer->part_hi &&
                     (is_write(p) || (p->n_ready == 0 && f->channel[CHANNEL_READ].op != p));
        if (!whole && p->status == 0) p->status = -ECANCELED;
        finish(f, p);
    }
    pthread_mutex_unlock(&f->m);
    (void)pthread_cond_destroy(&f->wake);
    (void)pthread_cond_destroy(&f->idle);
    (void)pthread_mutex_destroy(&f->m);
    mem_free(f);
}

static const struct tier_ops fault_ops = {
    .find = fault_find,
    .read = fault_read,
    .write = fault_write,
    .remove = fault_remove,
    .touch = fault_touch,
    .set_pinned = fault_set_pinned,
    .set_quota = fault_set_quota,
    .scan = fault_scan,
    .stat = fault_stat,
    .resize = fault_resize,
    .set_policy = fault_set_policy,
    .add_memory = fault_add_memory,
    .drain = fault_drain,
    .destroy = fault_destroy,
};

static bool opts_valid(const struct tier_fault_opts *o)
{
    const double p[] = {o->busy, o->eio,       o->nospc,      o->cut,
                        o->drop, o->flip_read, o->flip_write, o->hang};
    for (size_t i = 0; i < sizeof p / sizeof *p; i++)
        if (!(p[i] >= 0 && p[i] <= 1)) return false;
    return o->delay_ms >= 0 && o->delay_random_ms >= 0;
}

int tier_fault_create(struct tier *inner, const struct tier_fault_opts *o, struct tier **ret)
{
    if (!opts_valid(o)) return -EINVAL;
    struct fault *f = mem_zalloc(sizeof *f);
    if (!f) return -ENOMEM;
    f->t = *inner; /* its name and what it is */
    f->t.ops = &fault_ops;
    f->inner = inner;
    f->o = *o;
    f->seed = o->seed;
    f->tail = &f->head;
    pthread_condattr_t monotonic;
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&f->m, NULL);
    (void)pthread_cond_init(&f->wake, &monotonic);
    (void)pthread_cond_init(&f->idle, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    if (pthread_create(&f->thread, NULL, run, f) != 0) {
        (void)pthread_cond_destroy(&f->wake);
        (void)pthread_cond_destroy(&f->idle);
        (void)pthread_mutex_destroy(&f->m);
        mem_free(f);
        return -EAGAIN;
    }
    *ret = &f->t;
    return 0;
}

/* What is left of the part in service takes its time at the new rate. */
static void retime(struct channel *c, uint64_t old_rate, uint64_t new_rate, uint64_t now)
{
    if (!c->op || c->due_ns <= now || old_rate == new_rate) return;
    double left = (double)(c->due_ns - now);
    c->due_ns = now + (new_rate ? (uint64_t)(left * (double)old_rate / (double)new_rate) : 0);
}

int tier_fault_set(struct tier *t, const struct tier_fault_opts *o)
{
    ASSERT(t->ops == &fault_ops);
    if (!opts_valid(o)) return -EINVAL;
    struct fault *f = fault_of(t);
    pthread_mutex_lock(&f->m);
    uint64_t now = clock_ns();
    retime(&f->channel[CHANNEL_READ], f->o.read_bytes_per_s, o->read_bytes_per_s, now);
    retime(&f->channel[CHANNEL_WRITE], f->o.write_bytes_per_s, o->write_bytes_per_s, now);
    for (struct fault_op *p = f->head; p && o->delay_ms + o->delay_random_ms == 0; p = p->next)
        if (p->start_ns > now) p->start_ns = now;
    if (o->seed != f->o.seed) f->seed = o->seed;
    f->o = *o;
    pthread_cond_signal(&f->wake);
    pthread_mutex_unlock(&f->m);
    return 0;
}

void tier_fault_get_stat(struct tier *t, struct tier_fault_stat *ret)
{
    ASSERT(t->ops == &fault_ops);
    struct fault *f = fault_of(t);
    pthread_mutex_lock(&f->m);
    *ret = f->stat;
    for (const struct fault_op *p = f->head; p; p = p->next)
        ret->held += p->state == OP_DROPPED || p->state == OP_HANGS;
    pthread_mutex_unlock(&f->m);
}
