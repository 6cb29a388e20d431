/* Write-behind and the maintenance thread.
 *
 * Every tier has a queue of entries to write and a few ops under way; the tier's own queue does the
 * rest. An entry that is being written has a reference, so its only copy cannot be evicted. What a
 * local tier has by now is not written again: its find() is asked when the write's turn comes, and
 * once more before a clean record leaves RAM. Above the high watermark the coldest records leave
 * ahead of need, those that a tier still wants by way of its queue, so that a claim seldom evicts
 * by itself and seldom loses anything. The thread also looks at what has rotted (store_check.c); it
 * sleeps until it is woken, or a second where time matters (loads past their deadline, expiry). */
#include "tiers/store_load.h"

enum {
    TICK_NS = 1000000000,
    RETRY_NS = 20000000,    /* chosen: a full queue of MiB writes moves on within that */
    BLOCKED_NS = 100000000, /* chosen: how often an open breaker is looked at while records wait */
    EXPIRE_SHARDS = 8,      /* a pass over the index every 8 s; lookups see expiry at once */
    LEAVING_MAX = 16        /* chosen: records on their way out by way of a queue at a time */
};

/* ---- one write ---- */

/* m held. What the end of a write says about the tier, and about the record's need of it. */
static void write_learn(struct store *s, struct write_slot *w, int status)
{
    struct store_tier *t = &s->tier[w->tier];
    struct entry *e = w->e;
    uint64_t now = clock_ns();
    uint8_t bit = (uint8_t)(1u << w->tier);
    bool again = false;
    enum breaker_result result = BREAKER_OK;
    bool silent = w->settled || status == -EAGAIN || status == -ECANCELED;
    switch (status) {
    case 0:
        e->write.clean |= bit;
        e->write.want &= (uint8_t)~bit;
        e->write.replace &= (uint8_t)~bit;
        e->write.tries = 0;
        break;
    case -EAGAIN:
        t->retry_ns = now + RETRY_NS;
        again = true;
        break;
    case -EPERM:
    case -ENOSPC: /* the tier does not want it, and its stat says why */
        e->write.want &= (uint8_t)~bit;
        break;
    default:
        result = status == -ETIMEDOUT ? BREAKER_TIMEOUT : BREAKER_FAILED;
        again = ++e->write.tries < WRITE_TRIES;
        if (again) break;
        e->write.want &= (uint8_t)~bit;
        s->stats.lost += !s->closing;
    }
    if (silent)
        breaker_forget(&t->breaker, w->start_ns);
    else
        breaker_report(&t->breaker, result, w->start_ns, now);
    if (again && e->state == ENTRY_READY && !s->closing) write_queue(s, e, bit);
}

static void write_end(struct write_slot *w, int status)
{
    struct store *s = w->s;
    struct entry *e = w->e, *as = w->as;
    struct store_tier *t = &s->tier[w->tier];
    if (as) entry_unref(s, as); /* before anybody may see that nothing moves any more */
    pthread_mutex_lock(&s->m);
    e->write.under_way &= (uint8_t) ~(1u << w->tier);
    bool purge = e->write.purge >> w->tier & 1 && status == 0;
    pthread_mutex_unlock(&s->m);
    if (purge) (void)t->t->ops->remove(t->t, &e->desc.key, true); /* no newer one is there yet */
    pthread_mutex_lock(&s->m);
    write_learn(s, w, status);
    if (e->write.leaving && !entry_wanted(s, e)) { /* the evictor meets it again, clean */
        e->write.leaving = false;
        s->leaving_bytes -= e->cost.all_bytes;
    }
    w->e = NULL;
    t->n_writes--;
    s->n_writes--;
    s->work = true;
    pthread_cond_signal(&s->wake);
    if (s->n_queued + s->n_writes == 0) pthread_cond_broadcast(&s->idle);
    (void)entry_unref_held(s, e); /* who finds it idle may evict what was written */
    pthread_mutex_unlock(&s->m);
}

static void write_on_done(struct tier_op *op, int status)
{
    write_end(op->ctx, status);
}

/* m held. The slot's op for the entry at the head of the queue; it has a reference now. */
static struct write_slot *write_begin(struct store *s, unsigned i, uint64_t now)
{
    struct store_tier *t = &s->tier[i];
    struct entry *e = LINK_ENTRY(t->queue.next, write.queue[i]);
    struct write_slot *w = t->slot;
    while (w->e)
        w++;
    ASSERT(w < t->slot + WRITES_MAX);
    link_remove(&e->write.queue[i]);
    s->n_queued--;
    e->write.under_way |= (uint8_t)(1u << i);
    entry_ref_held(s, e);
    t->n_writes++;
    s->n_writes++;
    *w = (struct write_slot){.e = e, .s = s, .tier = i, .start_ns = now};
    w->op = (struct tier_op){.key = e->desc.key,
                             .layout = &e->layout,
                             .part = e->part,
                             .part_hi = e->layout.n_parts,
                             .prio = TIER_BEHIND,
                             .on_done = write_on_done,
                             .ctx = w};
    return w;
}

/* No lock held. The op moves a copy of the record in the tier's codec. <0: it is not to be had, by
 * no fault of the tier's. */
static int write_convert(struct write_slot *w)
{
    struct store *s = w->s;
    struct entry *e = w->e;
    int r = e->desc.dtype == KN_Q8 ? 0 : codec_copy(s, e, KN_Q8, false, &w->as);
    if (w->as) {
        record_seal(w->as->part, &w->as->layout);
        if (s->auth) r = record_sign(s->auth, w->as->part, &w->as->layout);
        w->op.layout = &w->as->layout;
        w->op.part = w->as->part;
        w->op.part_hi = w->as->layout.n_parts;
    }
    if (r == 0) return 0;
    pthread_mutex_lock(&s->m);
    s->stats.lost += !s->closing;
    pthread_mutex_unlock(&s->m);
    if (r == -EBADMSG || r == -EKEYREJECTED) entry_reject(e, r, r == -EKEYREJECTED);
    w->settled = true;
    return -ENOSPC;
}

/* No lock held. What is read where it lies is not checked again. */
static int write_verify(struct write_slot *w)
{
    if (groups_check(w->s, w->e) == 0) return 0;
    entry_reject(w->e, -EBADMSG, false);
    w->settled = true;
    return -ENOSPC;
}

/* m held. Is another version of what comes next being written? The later one must end later. */
static bool older_under_way(const struct store *s, unsigned i)
{
    const struct store_tier *t = &s->tier[i];
    const struct entry *next = LINK_ENTRY(t->queue.next, write.queue[i]);
    for (int n = 0; n < WRITES_MAX; n++)
        if (t->slot[n].e && tier_key_same(&t->slot[n].e->desc.key, &next->desc.key)) return true;
    return false;
}

/* m held; let go meanwhile. */
static void pump(struct store *s, unsigned i)
{
    struct store_tier *t = &s->tier[i];
    while (!s->closing && t->n_writes < WRITES_MAX && !link_alone(&t->queue)) {
        uint64_t now = clock_ns();
        if (older_under_way(s, i)) break; /* that write's end wakes the thread */
        if (now < t->retry_ns || !breaker_allow(&t->breaker, now)) break;
        struct write_slot *w = write_begin(s, i, now);
        bool replace = w->e->write.replace >> i & 1;
        pthread_mutex_unlock(&s->m);
        /* There by now: nothing to move. */
        w->settled = !replace && !t->t->shared && t->t->ops->find(t->t, &w->op.key) == 1;
        int r = w->settled || !codec_on(s, i) ? 0 : write_convert(w);
        if (r == 0 && !w->settled && t->t == s->direct) r = write_verify(w);
        if (r == 0 && !w->settled) r = t->t->ops->write(t->t, &w->op);
        if (w->settled || r < 0) write_end(w, r);
        pthread_mutex_lock(&s->m);
    }
}

/* ---- eviction ahead of need ---- */

/* m held; let go meanwhile. Tiers that had the record and have evicted it since are to have it
 * again. False: it was dropped meanwhile. */
static bool want_lost_copies(struct store *s, struct entry *e)
{
    uint8_t lost = 0, had = e->write.clean & s->behind;
    entry_ref_held(s, e);
    pthread_mutex_unlock(&s->m);
    for (unsigned i = 0; i < s->n_tiers; i++) {
        struct tier *t = s->tier[i].t;
        if (had >> i & 1 && !t->shared && t->ops->find(t, &e->desc.key) == 0)
            lost |= (uint8_t)(1u << i);
    }
    pthread_mutex_lock(&s->m);
    e->write.clean &= (uint8_t)~lost;
    e->write.want |= lost;
    return !entry_unref_held(s, e) && e->state == ENTRY_READY;
}

/* m held; let go meanwhile. */
static void evict_ahead(struct store *s)
{
    int n_leaving = 0;
    bool more = true;
    while (!s->closing && n_leaving < LEAVING_MAX &&
           s->stats.used_bytes - s->leaving_bytes > water_bytes(s, WATER_LOW_PCT)) {
        struct entry *e = pick_victim(s, NULL, NULL, PICK_STAYING);
        if (!e) {
            more = false;
            break;
        }
        if (!entry_wanted(s, e) && !want_lost_copies(s, e)) continue;
        if (!entry_wanted(s, e)) {
            (void)entry_drop(s, e, STORE_MISS_EVICTED, true);
            continue;
        }
        e->write.leaving = true;
        s->leaving_bytes += e->cost.all_bytes;
        n_leaving++;
        write_queue(s, e, entry_wanted(s, e));
    }
    s->evict_now =
        (more || s->leaving_bytes > 0) && s->stats.used_bytes > water_bytes(s, WATER_LOW_PCT);
    /* Those on their way out were written while the lock was let go: no write will wake us. */
    if (s->evict_now && s->leaving_bytes == 0) s->work = true;
}

/* ---- time ---- */

/* m held. */
static void expire(struct store *s)
{
    uint64_t now = wall_ms();
    for (int n = 0; n < EXPIRE_SHARDS; n++) {
        struct shard *sh = &s->shard[s->expire_shard++ % SHARDS];
        struct entry *old[16];
        int n_old = 0;
        pthread_mutex_lock(&sh->m);
        for (uint64_t b = 0; b <= sh->index.mask; b++)
            for (struct key_node *k = sh->index.bucket[b]; k && n_old < 16; k = k->chain) {
                struct entry *e = (struct entry *)k;
                if (e->state == ENTRY_READY && entry_expired(e, now)) old[n_old++] = e;
            }
        pthread_mutex_unlock(&sh->m);
        /* m keeps them in the index until they are dropped here. */
        for (int i = 0; i < n_old; i++)
            s->stats.expired += entry_drop(s, old[i], STORE_MISS_EXPIRED, false);
    }
}

/* m held; let go meanwhile. Loads that are not waited for and take too long. */
static void give_up_loads(struct store *s)
{
    for (struct entry_link *l = s->loads.next; l != &s->loads; l = l->next) {
        struct entry *e = LINK_ENTRY(l, loads);
        struct shard *sh = shard_of(s, &e->desc.key);
        pthread_mutex_lock(&sh->m);
        bool overdue =
            e->state == ENTRY_LOADING && e->pins == 0 && clock_ns() > e->load.op.deadline_ns;
        if (overdue) e->refs++;
        pthread_mutex_unlock(&sh->m);
        if (!overdue) continue;
        pthread_mutex_unlock(&s->m);
        load_abandon(s, e);
        entry_unref(s, e);
        pthread_mutex_lock(&s->m);
        l = &s->loads; /* the list has changed: from the start; this one is no longer overdue */
    }
}

/* m held. When to look again without being woken; 0 never. */
static uint64_t next_tick(const struct store *s, uint64_t tick_ns)
{
    uint64_t now = clock_ns(), until = s->n_tiers || s->expiring ? tick_ns : UINT64_MAX;
    if (!link_alone(&s->checks.queue) && s->checks.after_ns < until) until = s->checks.after_ns;
    for (size_t i = 0; i < s->n_tiers; i++) {
        const struct store_tier *t = &s->tier[i];
        if (link_alone(&t->queue) || t->n_writes == WRITES_MAX) continue;
        uint64_t look = t->retry_ns > now ? t->retry_ns : now + BLOCKED_NS;
        if (look < until) until = look;
    }
    return until == UINT64_MAX ? 0 : until;
}

void *store_maintain(void *store)
{
    struct store *s = store;
    uint64_t tick_ns = clock_ns() + TICK_NS;
    pthread_mutex_lock(&s->m);
    while (!s->closing) {
        s->work = false;
        for (unsigned i = 0; i < s->n_tiers; i++)
            pump(s, i);
        if (s->evict_now) evict_ahead(s);
        check_run(s);
        if (clock_ns() >= tick_ns) {
            if (s->expiring) expire(s);
            give_up_loads(s);
            tick_ns = clock_ns() + TICK_NS;
        }
        if (s->work || s->closing) continue;
        (void)wait_until(&s->wake, &s->m, next_tick(s, tick_ns));
    }
    pthread_mutex_unlock(&s->m);
    return NULL;
}

int store_flush(struct store *s, uint64_t deadline_ns)
{
    int r = 0;
    pthread_mutex_lock(&s->m);
    while (s->n_queued + s->n_writes > 0 && r == 0)
        r = wait_until(&s->idle, &s->m, deadline_ns);
    bool done = s->n_queued + s->n_writes == 0;
    pthread_mutex_unlock(&s->m);
    return done ? 0 : -ETIMEDOUT;
}
