/* Loads: one record on its way from a tier into RAM, and which tier is asked at all.
 *
 * A local tier says at once whether it has the record, so all memory is taken before the one read
 * is submitted. A remote one is sent the read with memory for the header alone; the rest is taken
 * when the header is here and sound. Tiers are tried in order until one delivers a sound header;
 * who waits has been told nothing before that. A load that fails later fails for its holders, who
 * recompute; the copy is dropped, and the next lookup begins anew. The entry carries the op, so
 * memory that a device may still write into lives, and is charged, until on_done. */
#include "tiers/store_load.h"

static const double AVERAGE_WEIGHT = 0.2; /* chosen: the last ten loads or so decide */

/* Latency up to the first layer, the rest by its size, and what is queued before it at the rate at
 * which loads went by as a whole. Two terms for the record itself, because parts that a device
 * serves at once arrive almost together: their rate alone would promise anything to a queue. */
double predict_ms(const struct store_tier *t, uint64_t bytes)
{
    if (t->bytes_per_s <= 0) return -1;
    return t->first_ms + (double)bytes * t->rest_ms_per_byte +
           (double)t->inflight_bytes / t->bytes_per_s * 1e3;
}

/* m held. May the tier be asked? NEVER: yes, and its breaker wants a report. */
static enum store_miss gate(struct store_tier *t, uint64_t bytes, double worth_ms, uint64_t now)
{
    bool slow = worth_ms > 0 && predict_ms(t, bytes) > worth_ms;
    if (slow && now - t->measured_ns < GATE_STALE_MS * 1000000ull) return STORE_MISS_GATE;
    if (!breaker_allow(&t->breaker, now)) return STORE_MISS_IO;
    if (slow) {
        t->measured_ns = now; /* this one measures: a tier that has recovered is found out */
        t->stale = true;
    }
    return STORE_MISS_NEVER;
}

/* The first tier from `from` on that may have the record and may be asked (its breaker then wants a
 * report); -1 none, and e->load.last_why says why if there is a reason. `other`: that one is asked
 * for the record's other form. */
static int next_tier(struct store *s, struct entry *e, unsigned from, bool other)
{
    for (unsigned i = from; i < s->n_tiers; i++) {
        struct store_tier *t = &s->tier[i];
        int found = t->t->ops->find(t->t, &e->desc.key);
        if (found == 0) continue;
        uint64_t now = clock_ns();
        pthread_mutex_lock(&s->m);
        if (e->state == ENTRY_LOADING) codec_shape(s, e, i, e->load.other = other && i == from);
        enum store_miss no = gate(t, e->layout.record_bytes, e->load.worth_ms, now);
        if (no != STORE_MISS_NEVER) {
            t->misses[no]++;
            e->load.last_why = no;
        }
        pthread_mutex_unlock(&s->m);
        if (no == STORE_MISS_NEVER) return (int)i;
    }
    return -1;
}

/* ---- a part has come ---- */

/* Is it the record that was asked for, from a tier that may say so? */
static enum store_miss header_accept(struct store *s, struct entry *e, struct record_view *ret)
{
    enum store_miss why = header_check(s, e, ret);
    if (why != STORE_MISS_NEVER) return why;
    if (ret->desc.n_tokens != e->desc.n_tokens) return STORE_MISS_TOKENS;
    if (!codec_adopt(e, ret)) return STORE_MISS_STALE;
    if (entry_expired(&(struct entry){.desc = ret->desc}, wall_ms())) return STORE_MISS_EXPIRED;
    return header_auth(s, e, ret);
}

/* The header is sound: the record may have its memory, and who waits may be told. */
static enum store_miss header_take(struct store *s, struct entry *e)
{
    struct record_view v;
    enum store_miss why = header_accept(s, e, &v);
    if (why != STORE_MISS_NEVER) return why;
    struct shard *sh = shard_of(s, &e->desc.key);
    pthread_mutex_lock(&s->m);
    pthread_mutex_lock(&sh->m);
    e->desc.ns_hash = v.desc.ns_hash; /* key and geometry are what was asked for */
    e->desc.created_ms = v.desc.created_ms;
    e->desc.expires_ms = v.desc.expires_ms;
    e->desc.kind = v.desc.kind;
    e->desc.n_contexts = v.desc.n_contexts;
    e->desc.context_tokens = v.desc.context_tokens;
    if (v.desc.dtype != e->desc.dtype) {
        e->desc.dtype = v.desc.dtype;
        e->layout = v.layout;
    }
    pthread_mutex_unlock(&sh->m);
    e->ns_known = true;
    if (v.desc.expires_ms) s->expiring = true; /* with tiers, maintenance ticks anyway */
    int r = e->state == ENTRY_LOADING ? entry_reserve(s, e, e->layout.n_parts) : -ECANCELED;
    if (r == 0) {
        pthread_mutex_lock(&sh->m);
        e->header_ok = 1;
        e->head = 1;
        e->from = (int)e->load.tier;
        e->part_ok[0] = 1;
        if (sh->waiters) pthread_cond_broadcast(&sh->arrived);
        pthread_mutex_unlock(&sh->m);
    }
    pthread_mutex_unlock(&s->m);
    return r == 0 ? STORE_MISS_NEVER : r == -ENOSPC ? STORE_MISS_ROOM : STORE_MISS_DEADLINE;
}

/* On a thread of the tier. */
static int load_on_part(struct tier_op *op, uint32_t part)
{
    struct entry *e = op->ctx;
    struct store *s = e->store;
    struct shard *sh = shard_of(s, &e->desc.key);
    if (s->closing) return -ECANCELED;
    if (e->cancel) {
        e->load.stop_why = STORE_MISS_DEADLINE;
        return -ECANCELED;
    }
    atomic_fetch_add(&s->tier[e->load.tier].moved_bytes,
                     part < e->layout.n_parts ? record_part_bytes(&e->layout, part) : 0);
    if (part == 0) {
        e->load.stop_why = header_take(s, e);
        return e->load.stop_why == STORE_MISS_NEVER ? 0 : -ECANCELED;
    }
    if (part >= e->layout.n_parts || !e->part_ok[0]) { /* a tier that does not keep its contract */
        e->load.stop_why = STORE_MISS_IO;
        return -ECANCELED;
    }
    const uint64_t now = clock_ns();
    if (!e->load.first_ns) e->load.first_ns = now;
    e->load.last_ns = now;
    pthread_mutex_lock(&sh->m);
    e->part_ok[part] = 1;
    ahead_queue(s, e, part);
    if (sh->waiters) pthread_cond_broadcast(&sh->arrived);
    pthread_mutex_unlock(&sh->m);
    return 0;
}

/* ---- the end of a load, or of one tier's part in it ---- */

/* No lock held. No tier has it, or it broke off: holders are told, the copy goes. */
static void load_end(struct store *s, struct entry *e, enum store_miss why, int status)
{
    struct shard *sh = shard_of(s, &e->desc.key);
    pthread_mutex_lock(&s->m);
    link_remove(&e->loads);
    pthread_mutex_lock(&sh->m);
    const bool gone = e->head == 0 && why != STORE_MISS_GATE && why != STORE_MISS_DEADLINE &&
                      why != STORE_MISS_IO && why != STORE_MISS_ROOM;
    if (e->state == ENTRY_LOADING) {
        e->status = status == -ETIMEDOUT || status == -EBADMSG ? status : -EIO;
        if (e->head == 0) {
            e->head = -ENOENT;
            e->why = why;
        }
    }
    pthread_mutex_unlock(&sh->m);
    bool wrong = why == STORE_MISS_CORRUPT || why == STORE_MISS_FORGED;
    (void)entry_drop(s, e, wrong ? why : STORE_MISS_NEVER, false);
    pthread_mutex_unlock(&s->m);
    if (gone) side_drop(s, &e->desc.key); /* no tier has the record any more */
    entry_unref(s, e);
}

/* m held. What the end of an op says about the tier. */
static void tier_learn(struct store_tier *t, struct entry *e, int status, uint64_t now)
{
    t->inflight_bytes -= e->layout.record_bytes;
    bool stopped = status == -ECANCELED && e->load.stop_why != STORE_MISS_NEVER;
    bool answered =
        status == 0 || status == -ENOENT || status == -EBADMSG || status == -ESTALE || stopped;
    bool late =
        e->load.reported; /* as a timeout: slow, then, and not dead, if it answers after all */
    e->load.reported = true;
    if (late && !answered) return;
    if (answered)
        breaker_report(&t->breaker, BREAKER_OK, e->load.start_ns, now);
    else if (status == -EAGAIN || status == -ECANCELED)
        breaker_forget(&t->breaker, e->load.start_ns);
    else
        breaker_report(&t->breaker, status == -ETIMEDOUT ? BREAKER_TIMEOUT : BREAKER_FAILED,
                       e->load.start_ns, now);
    if (status != 0 && !(late && stopped)) return;
    uint64_t bytes = e->layout.record_bytes;
    double total = (double)(now - e->load.start_ns) / 1e6 + 1e-3;
    double first = e->load.first_ns ? (double)(e->load.first_ns - e->load.start_ns) / 1e6 : total;
    double w = t->bytes_per_s > 0 && (late || !t->stale) ? AVERAGE_WEIGHT : 1;
    if (!late) t->stale = false;
    /* Meanwhile it served others, too: those before it, and in turns those of its batch. */
    uint64_t moved = atomic_load(&t->moved_bytes) - e->load.moved_before;
    if (moved < bytes) moved = bytes;
    double rate = (double)moved / total * 1e3;
    t->rest_ms_per_byte += ((total - first) / (double)moved - t->rest_ms_per_byte) * w;
    t->bytes_per_s += (rate - t->bytes_per_s) * w;
    first -=
        (double)e->load.queued_bytes / rate * 1e3; /* the queue's share, which comes on top again */
    t->first_ms += ((first > 0 ? first : 0) - t->first_ms) * w;
    t->measured_ns = now;
}

/* No lock held. Who else should have the record: local tiers that lack it. A remote one is not
 * asked, nor written what another tier just delivered. */
static uint8_t tiers_without(struct store *s, const struct entry *e, unsigned but, uint8_t *clean)
{
    uint8_t want = 0;
    *clean = (uint8_t)(1u << but);
    for (unsigned i = 0; i < s->n_tiers; i++) {
        struct store_tier *t = &s->tier[i];
        if (i == but || t->t->shared) continue;
        int found = t->t->ops->find(t->t, &e->desc.key);
        *(found == 1 ? clean : &want) |= (uint8_t)(1u << i);
    }
    return want;
}

static enum store_miss why_of(const struct entry *e, int status)
{
    if (status == -ECANCELED && e->load.stop_why != STORE_MISS_NEVER) return e->load.stop_why;
    if (status == -ENOENT) return STORE_MISS_NEVER;
    if (status == -EBADMSG) return STORE_MISS_CORRUPT;
    if (status == -ESTALE) return STORE_MISS_STALE;
    if (status == -EAGAIN) return STORE_MISS_GATE; /* its queue is full: computing is faster */
    return status == -ETIMEDOUT ? STORE_MISS_DEADLINE : STORE_MISS_IO;
}

static bool parts_all_here(const struct entry *e)
{
    for (uint32_t i = 0; i < e->layout.n_parts; i++)
        if (!e->part_ok[i]) return false;
    return true;
}

/* Callbacks that call other tiers: none begins once the store is closing, and store_destroy() waits
 * for the rest before the first tier goes. */
static bool others_begin(struct store *s)
{
    pthread_mutex_lock(&s->m);
    bool may = !s->closing;
    s->n_others += may;
    pthread_mutex_unlock(&s->m);
    return may;
}

static void others_end(struct store *s)
{
    pthread_mutex_lock(&s->m);
    if (--s->n_others == 0) pthread_cond_broadcast(&s->idle);
    pthread_mutex_unlock(&s->m);
}

static void load_done(struct store *s, struct entry *e)
{
    uint8_t clean = (uint8_t)(1u << e->load.tier), want = 0;
    side_keep(s, e);
    if (others_begin(s)) {
        want = tiers_without(s, e, e->load.tier, &clean);
        others_end(s);
    }
    pthread_mutex_lock(&s->m);
    tier_learn(&s->tier[e->load.tier], e, 0, clock_ns());
    link_remove(&e->loads);
    if (e->state == ENTRY_LOADING) {
        e->write.clean = clean;
        e->write.want = want;
        entry_ready(s, e);
        write_queue(s, e, want & s->behind);
    }
    pthread_mutex_unlock(&s->m);
    entry_unref(s, e);
}

/* m held. */
static int load_room(struct store *s, struct entry *e, unsigned i)
{
    struct store_tier *t = &s->tier[i];
    if (e->state != ENTRY_LOADING) return -ECANCELED;
    int r = entry_reserve(s, e, t->t->shared ? 1 : e->layout.n_parts);
    if (r < 0) return r;
    e->load.tier = i;
    e->load.reported = false;
    e->load.queued_bytes = t->inflight_bytes;
    e->load.moved_before = atomic_load(&t->moved_bytes);
    t->inflight_bytes += e->layout.record_bytes;
    return 0;
}

/* The tier has the record, but not in the form that it was asked for: is there another one? */
static bool other_form(const struct store *s, const struct entry *e, int status)
{
    return status == -ESTALE && s->codec && !e->load.other;
}

int load_run(struct store *s, struct entry *e, unsigned from, bool other)
{
    for (;;) {
        int i = -1, r = 0;
        if (clock_ns() < e->load.op.deadline_ns)
            i = next_tier(s, e, from, other);
        else
            e->load.last_why = STORE_MISS_DEADLINE;
        if (i < 0) break;
        struct store_tier *t = &s->tier[i];
        pthread_mutex_lock(&s->m);
        r = load_room(s, e, (unsigned)i);
        if (r < 0) breaker_forget(&t->breaker, clock_ns());
        pthread_mutex_unlock(&s->m);
        if (r < 0) {
            if (r == -ENOSPC) e->load.last_why = STORE_MISS_ROOM;
            break;
        }
        e->load.stop_why = STORE_MISS_NEVER;
        e->load.start_ns = clock_ns();
        e->load.first_ns = 0;
        r = t->t->ops->read(t->t, &e->load.op);
        if (r == 0) return 0; /* the entry is the tier's now */
        other = other_form(s, e, r);
        if (r == -ESTALE && !other) (void)t->t->ops->remove(t->t, &e->desc.key, true);
        pthread_mutex_lock(&s->m);
        enum store_miss no = other ? STORE_MISS_NEVER : why_of(e, r);
        if (no != STORE_MISS_NEVER) {
            e->load.last_why = no;
            t->misses[no]++;
        }
        tier_learn(t, e, r, clock_ns());
        pthread_mutex_unlock(&s->m);
        from = (unsigned)i + !other;
    }
    load_end(s, e, e->load.last_why, -EIO);
    return -ENOENT;
}

static void load_on_done(struct tier_op *op, int status)
{
    struct entry *e = op->ctx;
    struct store *s = e->store;
    struct store_tier *t = &s->tier[e->load.tier];
    if (status == 0 && !parts_all_here(e)) status = -EIO;
    if (status == 0) {
        load_done(s, e);
        return;
    }
    bool other = other_form(s, e, status);
    enum store_miss why = other ? STORE_MISS_NEVER : why_of(e, status);
    if (why == STORE_MISS_STALE || why == STORE_MISS_EXPIRED || why == STORE_MISS_FORGED ||
        (why == STORE_MISS_CORRUPT && status != -EBADMSG)) /* of that the tier rid itself */
        (void)t->t->ops->remove(t->t, &e->desc.key, true);
    pthread_mutex_lock(&s->m);
    if (why != STORE_MISS_NEVER && !e->load.reported && !e->cancel) t->misses[why]++;
    s->stats.corrupt += why == STORE_MISS_CORRUPT;
    s->stats.forged += why == STORE_MISS_FORGED;
    s->stats.expired += why == STORE_MISS_EXPIRED;
    tier_learn(t, e, status, clock_ns());
    bool next = e->head == 0 && !e->cancel && why != STORE_MISS_ROOM;
    pthread_mutex_unlock(&s->m);
    if (why != STORE_MISS_NEVER) e->load.last_why = why;
    if (next && others_begin(s)) {
        (void)load_run(s, e, e->load.tier + !other, other);
        others_end(s);
    } else {
        load_end(s, e, e->load.last_why, status);
    }
}

void load_abandon(struct store *s, struct entry *e)
{
    struct shard *sh = shard_of(s, &e->desc.key);
    pthread_mutex_lock(&s->m);
    if (e->state == ENTRY_LOADING) {
        struct store_tier *t = &s->tier[e->load.tier];
        if (!e->load.reported) {
            e->load.reported = true; /* it may never say more */
            breaker_report(&t->breaker, BREAKER_TIMEOUT, e->load.start_ns, clock_ns());
            t->misses[STORE_MISS_DEADLINE]++;
        }
        pthread_mutex_lock(&sh->m);
        e->status = -ETIMEDOUT;
        pthread_mutex_unlock(&sh->m);
        (void)entry_drop(s, e, STORE_MISS_NEVER, false);
    }
    pthread_mutex_unlock(&s->m);
}

void load_cancel(struct store *s, struct entry *e)
{
    struct shard *sh = shard_of(s, &e->desc.key);
    pthread_mutex_lock(&s->m);
    pthread_mutex_lock(&sh->m);
    bool alone = e->pins == 0 && e->state == ENTRY_LOADING; /* else another lookup came since */
    pthread_mutex_unlock(&sh->m);
    if (alone) (void)entry_drop(s, e, STORE_MISS_NEVER, false);
    pthread_mutex_unlock(&s->m);
}

static int load_create(struct store *s, const struct tier_key *k, size_t n, struct entry **ret)
{
    struct record_desc d;
    struct record_layout l;
    int r = entry_desc(s, k, n, &d, &l);
    if (r < 0) return r;
    struct entry *e = entry_create(s, &d, &l, ENTRY_LOADING);
    if (!e) return -ENOMEM;
    e->refs = 2; /* the load's and the caller's: no lookup finds it yet */
    e->load.op = (struct tier_op){.key = *k,
                                  .layout = &e->layout,
                                  .part = e->part,
                                  .part_hi = e->layout.n_parts,
                                  .on_part = load_on_part,
                                  .on_done = load_on_done,
                                  .ctx = e};
    *ret = e;
    return 0;
}

int load_enter(struct store *s, const struct tier_key *k, size_t n, struct entry **ret)
{
    struct entry *e;
    int r = load_create(s, k, n, &e);
    if (r < 0) return r;
    e->pins = 1;
    pthread_mutex_lock(&s->m);
    r = entry_enter(s, e, 0);
    if (r == 1) link_insert_after(&s->loads, &e->loads);
    pthread_mutex_unlock(&s->m);
    if (r != 1) {
        mem_free(e);
        return r;
    }
    *ret = e;
    return 1;
}

/* ---- a copy read apart ---- */

static int apart_on_part(struct tier_op *op, uint32_t part)
{
    struct entry *e = op->ctx;
    if (part < e->layout.n_parts) e->part_ok[part] = 1;
    return 0;
}

static void apart_on_done(struct tier_op *op, int status)
{
    struct entry *e = op->ctx;
    struct shard *sh = shard_of(e->store, &e->desc.key);
    if (status == 0 && !parts_all_here(e)) status = -EIO;
    pthread_mutex_lock(&sh->m);
    e->status = status;
    e->head = 1;
    if (sh->waiters) pthread_cond_broadcast(&sh->arrived);
    pthread_mutex_unlock(&sh->m);
    entry_unref(e->store, e);
}

/* In one of the forms in which the tier may have it. */
static int apart_as(struct store *s, struct store_tier *t, const struct tier_key *k, uint32_t n,
                    bool other, struct entry **ret)
{
    struct entry *e;
    int r = load_create(s, k, n, &e);
    if (r < 0) return r;
    pthread_mutex_lock(&s->m);
    codec_shape(s, e, (unsigned)(t - s->tier), other);
    e->refs = 1;
    r = entry_enter_apart(s, e);
    pthread_mutex_unlock(&s->m);
    if (r < 0) {
        mem_free(e);
        return r;
    }
    e->state = ENTRY_DEAD; /* no lookup ever sees it; its references keep it */
    e->from = (int)(t - s->tier);
    e->load.op.prio = TIER_SCRUB;
    e->load.op.deadline_ns = clock_ns() + ASK_MS_MAX * 1000000ull;
    e->load.op.on_part = apart_on_part;
    e->load.op.on_done = apart_on_done;
    r = t->t->ops->read(t->t, &e->load.op);
    if (r < 0) {
        entry_unref(s, e);
    } else {
        struct shard *sh = shard_of(s, k);
        pthread_mutex_lock(&sh->m);
        while (e->head == 0 && shard_wait(sh, e->load.op.deadline_ns)) {
        }
        r = e->head ? e->status : -ETIMEDOUT;
        pthread_mutex_unlock(&sh->m);
    }
    struct record_view v;
    if (r == 0 && record_open(e->part[0], e->layout.header_bytes, &v) == 0 && codec_adopt(e, &v)) {
        e->desc.dtype = v.desc.dtype;
        e->layout = v.layout;
    }
    if (r == 0)
        *ret = e;
    else
        entry_unref(s, e);
    return r;
}

int load_apart(struct store *s, struct store_tier *t, const struct tier_key *k, uint32_t n,
               struct entry **ret)
{
    int r = apart_as(s, t, k, n, false, ret);
    return r == -ESTALE && s->codec ? apart_as(s, t, k, n, true, ret) : r;
}
