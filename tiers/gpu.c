#include "tiers/gpu.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/mem.h"
#include "tiers/gpu_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Room is managed by the RAM tier's pool, whose addresses are only names here: page i of the pool
 * is page i of the device allocation, and neither is ever touched. Parts need not be neighbours, so
 * a hole of a page more or less is all that records of any length leave. */

static struct gpu_tier *tier_of(struct tier *t)
{
    return (struct gpu_tier *)t;
}

/* ---- index ---- */

static struct gpu_entry **bucket_of(struct gpu_tier *t, const struct tier_key *k)
{
    return &t->bucket[k->lo & (t->n_buckets - 1)];
}

static struct gpu_entry *find(struct gpu_tier *t, const struct tier_key *k)
{
    struct gpu_entry *e = *bucket_of(t, k);
    while (e && !tier_key_same(&e->node.key, k))
        e = e->chain;
    return e;
}

/* One that is on its way; the youngest if there are several. */
static struct gpu_entry *find_writing(struct gpu_tier *t, const struct tier_key *k)
{
    struct gpu_entry *e = t->entries;
    while (e && !(e->writing && !e->failed && tier_key_same(&e->node.key, k)))
        e = e->next;
    return e;
}

static void update_evictable(struct gpu_entry *e)
{
    bool now = e->indexed && e->refs == 0 && !e->info.pinned;
    if (now == e->evictable) return;
    e->evictable = now;
    e->t->evictable_bytes += now ? e->node.size_bytes : -e->node.size_bytes;
}

static void events_back(struct gpu_entry *e)
{
    struct gpu_tier *t = e->t;
    if (!e->event) return;
    for (uint32_t i = 0; i < e->layout.n_parts; i++) {
        if (!e->event[i]) continue;
        if (t->n_events < t->n_events_max)
            t->events[t->n_events++] = e->event[i];
        else
            gpu_event_destroy(e->event[i]);
    }
    mem_free(e->event);
    e->event = NULL;
}

static void entry_free(struct gpu_entry *e)
{
    struct gpu_tier *t = e->t;
    ASSERT(!e->indexed && e->refs == 0);
    for (uint32_t i = 0; i < e->layout.n_parts; i++)
        if (e->part[i]) pool_free(&t->pool, e->part[i], record_part_bytes(&e->layout, i));
    quota_refund(&t->quota, e->info.ns_hash, e->node.size_bytes);
    events_back(e);
    *(e->prev ? &e->prev->next : &t->entries) = e->next;
    if (e->next) e->next->prev = e->prev;
    mem_free(e);
}

/* Out of the index at once, out of memory with its last reference. */
static void drop(struct gpu_entry *e, bool evicted)
{
    struct gpu_tier *t = e->t;
    struct gpu_entry **at = bucket_of(t, &e->node.key);
    while (*at != e)
        at = &(*at)->chain;
    *at = e->chain;
    evict_remove(t->evict, &e->node, evicted);
    e->indexed = false;
    update_evictable(e);
    t->stat.n_records--;
    if (e->info.pinned) t->stat.pinned_bytes -= e->node.size_bytes;
    if (e->refs == 0) entry_free(e);
}

static void header_drop_stale(struct gpu_entry *e)
{
    if (e->stale) pool_free(&e->t->pool, e->stale, e->layout.header_bytes);
    e->stale = NULL;
}

/* ---- room ---- */

struct victim_ask {
    bool one_namespace;
    uint64_t ns_hash;
};

static bool may_evict(void *ctx, const struct evict_node *n)
{
    const struct victim_ask *a = ctx;
    const struct gpu_entry *e = (const struct gpu_entry *)n;
    return e->evictable && (!a->one_namespace || e->info.ns_hash == a->ns_hash);
}

static bool evict_one(struct gpu_tier *t, const struct tier_key *incoming, struct victim_ask a)
{
    struct evict_node *n = evict_victim(t->evict, incoming, may_evict, &a, 0);
    if (!n) return false;
    drop((struct gpu_entry *)n, true);
    t->stat.evictions++;
    return true;
}

static void trim(struct gpu_tier *t)
{
    while (t->pool.used_bytes > t->cap_bytes && evict_one(t, NULL, (struct victim_ask){0})) {
    }
}

static void entry_unref(struct gpu_entry *e)
{
    struct gpu_tier *t = e->t;
    ASSERT(e->refs > 0);
    if (--e->refs > 0) return;
    header_drop_stale(e);
    if (!e->indexed) {
        entry_free(e);
        return;
    }
    events_back(e);
    update_evictable(e);
    trim(t);
}

static int refuse(struct gpu_tier *t, enum tier_reject why)
{
    t->stat.rejected[why]++;
    return -ENOSPC;
}

/* A refusal that can be foreseen evicts nothing. */
static int make_room(struct gpu_tier *t, const struct tier_info *info, uint64_t bytes)
{
    if (bytes > t->cap_bytes) return refuse(t, TIER_REJECT_SIZE);
    if (quota_over(&t->quota, info->ns_hash, bytes) == UINT64_MAX)
        return refuse(t, TIER_REJECT_QUOTA);
    uint64_t held = t->pool.used_bytes - t->evictable_bytes;
    if (held > t->cap_bytes || bytes > t->cap_bytes - held) return refuse(t, TIER_REJECT_FULL);
    while (quota_over(&t->quota, info->ns_hash, bytes) > 0)
        if (!evict_one(t, &info->key, (struct victim_ask){true, info->ns_hash}))
            return refuse(t, TIER_REJECT_QUOTA);
    while (t->pool.used_bytes > t->cap_bytes - bytes)
        if (!evict_one(t, &info->key, (struct victim_ask){0})) return refuse(t, TIER_REJECT_FULL);
    return 0;
}

/* Evicts on while the free pages are too scattered. NULL: nothing is left to evict. */
static uint8_t *part_alloc(struct gpu_tier *t, const struct tier_key *incoming, uint64_t bytes)
{
    for (;;) {
        uint8_t *at = pool_alloc(&t->pool, bytes);
        if (at || !evict_one(t, incoming, (struct victim_ask){0})) return at;
    }
}

static int events_take(struct gpu_tier *t, struct gpu_entry *e)
{
    e->event = mem_zalloc(e->layout.n_parts * sizeof(struct gpu_event *));
    if (!e->event) return -ENOMEM;
    for (uint32_t i = 0; i < e->layout.n_parts; i++) {
        int r = 0;
        if (t->n_events > 0)
            e->event[i] = t->events[--t->n_events];
        else
            r = gpu_event_create(t->gpu, &e->event[i]);
        if (r < 0) return r;
    }
    return 0;
}

/* ---- writes ---- */

static int entry_create(struct gpu_tier *t, const struct tier_op *op, const struct tier_info *info,
                        struct gpu_entry **ret)
{
    const struct record_layout *l = op->layout;
    int r = make_room(t, info, l->record_bytes);
    if (r < 0) return r;
    struct gpu_entry *e = mem_zalloc(sizeof *e + l->n_parts * sizeof *e->part);
    if (!e) return -ENOMEM;
    e->t = t;
    e->layout = *l;
    e->info = *info;
    e->node.key = info->key;
    e->node.size_bytes = l->record_bytes;
    e->node.cost_ms = op->cost_ms;
    e->writing = true;
    e->next = t->entries;
    if (e->next) e->next->prev = e;
    t->entries = e;
    quota_charge(&t->quota, info->ns_hash, l->record_bytes);
    r = events_take(t, e);
    for (uint32_t i = 0; i < l->n_parts && r == 0; i++) {
        e->part[i] = part_alloc(t, &info->key, record_part_bytes(l, i));
        if (!e->part[i]) r = refuse(t, TIER_REJECT_FULL);
    }
    if (r < 0) {
        entry_free(e);
        return r;
    }
    *ret = e;
    return 0;
}

/* The new header goes beside the old one, which readers may be copying. */
static int header_update(struct gpu_tier *t, struct gpu_job *j, const struct tier_info *info)
{
    struct gpu_entry *e = find(t, &info->key);
    if (!e) return -ENOENT;
    if (e->layout.record_bytes != j->op->layout->record_bytes) return -EINVAL;
    if (e->stale || e->header_busy) {
        t->stat.rejected[TIER_REJECT_BUSY]++;
        return -EAGAIN;
    }
    e->refs++; /* first: room is not made by evicting the record itself */
    update_evictable(e);
    uint64_t bytes = e->layout.header_bytes, cap = t->cap_bytes;
    bool fits = bytes <= cap;
    while (fits && t->pool.used_bytes > cap - bytes)
        fits = evict_one(t, &info->key, (struct victim_ask){0});
    j->header = fits ? part_alloc(t, &info->key, bytes) : NULL;
    if (!j->header) {
        entry_unref(e);
        return refuse(t, TIER_REJECT_FULL);
    }
    e->header_busy = true;
    j->e = e;
    return 0;
}

static void publish(struct gpu_tier *t, struct gpu_entry *e)
{
    struct gpu_entry *old = find(t, &e->node.key);
    if (old) {
        e->info.hits = old->info.hits;
        e->info.pinned = old->info.pinned;
        drop(old, false);
    }
    struct gpu_entry **at = bucket_of(t, &e->node.key);
    e->chain = *at;
    *at = e;
    e->indexed = true;
    e->info.used_s = clock_wall_s();
    evict_insert(t->evict, &e->node);
    t->stat.n_records++;
    if (e->info.pinned) t->stat.pinned_bytes += e->node.size_bytes;
}

void gpu_job_done(struct gpu_tier *t, struct gpu_job *j)
{
    struct gpu_entry *e = j->e;
    if (j->header) {
        e->header_busy = false;
        if (j->status == 0) {
            e->stale = e->part[0];
            e->part[0] = j->header;
        } else {
            pool_free(&t->pool, j->header, e->layout.header_bytes);
        }
    } else if (e->writing) {
        e->writing = false;
        if (e->failed && j->status == 0) j->status = -ECANCELED; /* removed meanwhile */
        if (j->status == 0)
            publish(t, e);
        else
            e->failed = true;
        pthread_cond_broadcast(&t->issued);
    }
    entry_unref(e);
}

static int describe(const struct tier_op *op, struct tier_info *ret)
{
    struct record_view v;
    int r = record_open(op->part[0], op->layout->header_bytes, &v);
    if (r < 0) return r;
    if (!tier_key_same(&v.desc.key, &op->key) ||
        v.layout.record_bytes != op->layout->record_bytes ||
        v.layout.n_parts != op->layout->n_parts)
        return -EBADMSG;
    *ret = (struct tier_info){.key = op->key,
                              .ns_hash = v.desc.ns_hash,
                              .size_bytes = v.layout.record_bytes,
                              .created_ms = v.desc.created_ms,
                              .expires_ms = v.desc.expires_ms,
                              .n_tokens = v.desc.n_tokens,
                              .kind = v.desc.kind};
    return 0;
}

static struct gpu_job *job_create(struct tier_op *op)
{
    struct gpu_job *j = mem_zalloc(sizeof *j);
    if (!j) return NULL;
    j->op = op;
    j->part = op->part_lo;
    j->submit_ns = clock_ns();
    for (uint32_t i = op->part_lo; i < op->part_hi; i++)
        j->bytes += record_part_bytes(op->layout, i);
    return j;
}

static int gpu_write(struct tier *tier, struct tier_op *op)
{
    struct gpu_tier *t = tier_of(tier);
    struct tier_info info;
    ASSERT(op->part_lo < op->part_hi && op->part_hi <= op->layout->n_parts && op->on_done);
    bool whole = op->part_hi == op->layout->n_parts;
    if (op->part_lo != 0 || (op->part_hi != 1 && !whole)) return -EINVAL;
    int r = describe(op, &info);
    if (r < 0) return r;
    struct gpu_job *j = job_create(op);
    if (!j) return -ENOMEM;
    pthread_mutex_lock(&t->m);
    if (t->stop)
        r = -ECANCELED;
    else if (!whole)
        r = header_update(t, j, &info);
    else
        r = entry_create(t, op, &info, &j->e);
    if (r == 0) {
        if (whole) j->e->refs++;
        gpu_lane_add(&t->lane[true], j);
    }
    pthread_mutex_unlock(&t->m);
    if (r < 0) mem_free(j);
    return r;
}

/* ---- look-ups ---- */

static void used(struct gpu_tier *t, struct gpu_entry *e)
{
    e->info.hits++;
    e->info.used_s = clock_wall_s();
    evict_hit(t->evict, &e->node);
}

static struct gpu_entry *find_live(struct gpu_tier *t, const struct tier_key *k)
{
    struct gpu_entry *e = find(t, k);
    if (!e || e->info.expires_ms == 0 || (double)e->info.expires_ms > clock_wall_s() * 1e3)
        return e;
    t->stat.expired++;
    drop(e, false);
    return NULL;
}

static int gpu_find(struct tier *tier, const struct tier_key *k)
{
    struct gpu_tier *t = tier_of(tier);
    pthread_mutex_lock(&t->m);
    int here = find_live(t, k) != NULL;
    pthread_mutex_unlock(&t->m);
    return here;
}

static int gpu_read(struct tier *tier, struct tier_op *op)
{
    struct gpu_tier *t = tier_of(tier);
    ASSERT(op->part_lo < op->part_hi && op->part_hi <= op->layout->n_parts);
    ASSERT(op->on_part && op->on_done);
    struct gpu_job *j = job_create(op);
    if (!j) return -ENOMEM;
    int r = 0;
    pthread_mutex_lock(&t->m);
    struct gpu_entry *e = find_live(t, &op->key);
    if (t->stop) {
        r = -ECANCELED;
    } else if (!e) {
        r = -ENOENT;
    } else if (e->layout.record_bytes != op->layout->record_bytes ||
               e->layout.n_parts != op->layout->n_parts) {
        r = -ESTALE; /* the caller expects another geometry */
    } else {
        e->refs++;
        update_evictable(e);
        used(t, e);
        j->e = e;
        gpu_lane_add(&t->lane[false], j);
    }
    pthread_mutex_unlock(&t->m);
    if (r < 0) mem_free(j);
    return r;
}

static void gpu_touch(struct tier *tier, const struct tier_key *k)
{
    struct gpu_tier *t = tier_of(tier);
    pthread_mutex_lock(&t->m);
    struct gpu_entry *e = find_live(t, k);
    if (e) used(t, e);
    pthread_mutex_unlock(&t->m);
}

int tier_gpu_pin(struct tier *tier, const struct tier_key *k, struct tier_gpu_pin **ret)
{
    struct gpu_tier *t = tier_of(tier);
    pthread_mutex_lock(&t->m);
    struct gpu_entry *e = find_live(t, k);
    if (e) used(t, e);
    if (!e) e = find_writing(t, k);
    if (e) {
        e->refs++;
        update_evictable(e);
    }
    pthread_mutex_unlock(&t->m);
    if (!e) return 0;
    *ret = (struct tier_gpu_pin *)e;
    return 1;
}

const struct record_layout *tier_gpu_layout(const struct tier_gpu_pin *p)
{
    return &((const struct gpu_entry *)p)->layout;
}

int tier_gpu_group(struct tier_gpu_pin *p, uint32_t group, void **ret, struct gpu_event **ret_event)
{
    struct gpu_entry *e = (struct gpu_entry *)p;
    struct gpu_tier *t = e->t;
    uint32_t part = record_part_of(&e->layout, group);
    pthread_mutex_lock(&t->m);
    while (e->writing && !e->failed && e->n_issued <= part)
        (void)pthread_cond_wait(&t->issued, &t->m);
    int r = e->failed ? -ECANCELED : 0;
    if (r == 0) {
        *ret = gpu_on_device(t, record_group(e->part, &e->layout, group));
        *ret_event = e->writing ? e->event[part] : NULL;
    }
    pthread_mutex_unlock(&t->m);
    return r;
}

void tier_gpu_unpin(struct tier_gpu_pin *p)
{
    struct gpu_entry *e = (struct gpu_entry *)p;
    struct gpu_tier *t = e->t;
    pthread_mutex_lock(&t->m);
    entry_unref(e);
    pthread_mutex_unlock(&t->m);
}

/* ---- administration ---- */

static int gpu_remove(struct tier *tier, const struct tier_key *k, bool also_pinned)
{
    struct gpu_tier *t = tier_of(tier);
    pthread_mutex_lock(&t->m);
    struct gpu_entry *e = find(t, k);
    int r = e != NULL;
    if (e && e->info.pinned && !also_pinned)
        r = -EBUSY;
    else if (e)
        drop(e, false);
    if (r >= 0) { /* what is on its way is gone as well */
        struct gpu_entry *w;
        while ((w = find_writing(t, k))) {
            w->failed = true;
            r = 1;
        }
        pthread_cond_broadcast(&t->issued);
    }
    pthread_mutex_unlock(&t->m);
    return r;
}

static int gpu_set_pinned(struct tier *tier, const struct tier_key *k, bool pinned)
{
    struct gpu_tier *t = tier_of(tier);
    pthread_mutex_lock(&t->m);
    struct gpu_entry *e = find_live(t, k);
    if (e && e->info.pinned != pinned) {
        e->info.pinned = pinned;
        t->stat.pinned_bytes += pinned ? e->node.size_bytes : -e->node.size_bytes;
        update_evictable(e);
        trim(t);
    }
    pthread_mutex_unlock(&t->m);
    return e != NULL;
}

static int gpu_set_quota(struct tier *tier, uint64_t ns_hash, uint64_t bytes)
{
    struct gpu_tier *t = tier_of(tier);
    uint64_t has = 0;
    pthread_mutex_lock(&t->m);
    for (const struct gpu_entry *e = t->entries; e; e = e->next)
        if (e->info.ns_hash == ns_hash) has += e->node.size_bytes;
    int r = quota_set(&t->quota, ns_hash, bytes, has);
    while (r == 0 && quota_over(&t->quota, ns_hash, 0) > 0 &&
           evict_one(t, NULL, (struct victim_ask){true, ns_hash})) {
    }
    pthread_mutex_unlock(&t->m);
    return r;
}

static int gpu_scan(struct tier *tier, tier_visit_fn fn, void *ctx)
{
    struct gpu_tier *t = tier_of(tier);
    size_t n = 0;
    pthread_mutex_lock(&t->m);
    struct tier_info *info = mem_alloc((size_t)t->stat.n_records * sizeof *info);
    for (const struct gpu_entry *e = t->entries; e && info; e = e->next)
        if (e->indexed) info[n++] = e->info;
    pthread_mutex_unlock(&t->m);
    if (!info) return -ENOMEM;
    int r = 0;
    for (size_t i = 0; i < n && r == 0; i++)
        r = fn(ctx, &info[i]);
    mem_free(info);
    return r;
}

static void gpu_stat(struct tier *tier, struct tier_stat *ret)
{
    struct gpu_tier *t = tier_of(tier);
    pthread_mutex_lock(&t->m);
    *ret = t->stat;
    ret->capacity_bytes = t->cap_bytes;
    ret->used_bytes = t->pool.used_bytes;
    ret->inflight_ops = t->n_jobs;
    ret->inflight_bytes = t->inflight_bytes;
    struct victim_ask any = {0};
    struct evict_node *n = /* asking the others moves their hands */
        t->policy == EVICT_LRU ? evict_victim(t->evict, NULL, may_evict, &any, 0) : NULL;
    if (n) ret->tail_age_s = clock_wall_s() - ((struct gpu_entry *)n)->info.used_s;
    pthread_mutex_unlock(&t->m);
}

static uint64_t whole_pages(uint64_t bytes)
{
    return bytes / POOL_PAGE_BYTES * POOL_PAGE_BYTES;
}

static int gpu_resize(struct tier *tier, uint64_t capacity_bytes)
{
    struct gpu_tier *t = tier_of(tier);
    uint64_t cap = whole_pages(capacity_bytes);
    if (cap == 0) return -EINVAL;
    if (cap > t->pool.size_bytes) return -ENOTSUP;
    pthread_mutex_lock(&t->m);
    t->cap_bytes = cap;
    evict_resize(t->evict, cap);
    trim(t);
    pthread_mutex_unlock(&t->m);
    return 0;
}

/* About what fits, at the mean size of the records of small models (chosen). */
static size_t ghosts_for(uint64_t capacity_bytes)
{
    size_t n = (size_t)(capacity_bytes >> 20);
    return n < 64 ? 64 : n > 1u << 20 ? 1u << 20 : n;
}

static int by_use(const void *a, const void *b)
{
    const struct gpu_entry *const *x = a, *const *y = b;
    return ((*x)->info.used_s > (*y)->info.used_s) - ((*x)->info.used_s < (*y)->info.used_s);
}

/* The records enter the new order by their last use. */
static int gpu_set_policy(struct tier *tier, enum evict_policy policy)
{
    struct gpu_tier *t = tier_of(tier);
    struct evict *fresh = NULL;
    size_t n = 0;
    pthread_mutex_lock(&t->m);
    int r = evict_create(policy, t->cap_bytes, ghosts_for(t->cap_bytes), &fresh);
    struct gpu_entry **all = mem_alloc((size_t)t->stat.n_records * sizeof(struct gpu_entry *));
    if (r == 0 && !all) r = -ENOMEM;
    if (r == 0) {
        for (struct gpu_entry *e = t->entries; e; e = e->next)
            if (e->indexed) all[n++] = e;
        qsort(all, n, sizeof(struct gpu_entry *), by_use);
        for (size_t i = 0; i < n; i++) {
            evict_remove(t->evict, &all[i]->node, false);
            evict_insert(fresh, &all[i]->node);
        }
        evict_destroy(t->evict);
        t->evict = fresh;
        t->policy = policy;
    } else {
        evict_destroy(fresh);
    }
    pthread_mutex_unlock(&t->m);
    mem_free(all);
    return r;
}

static int gpu_drain(struct tier *tier, uint64_t deadline_ns)
{
    struct gpu_tier *t = tier_of(tier);
    struct timespec ts = {(time_t)(deadline_ns / 1000000000u), (long)(deadline_ns % 1000000000u)};
    int r = 0;
    pthread_mutex_lock(&t->m);
    while (t->n_jobs > 0 && r == 0)
        r = deadline_ns ? pthread_cond_timedwait(&t->idle, &t->m, &ts)
                        : pthread_cond_wait(&t->idle, &t->m);
    r = t->n_jobs > 0 ? -ETIMEDOUT : 0;
    pthread_mutex_unlock(&t->m);
    return r;
}

static void gpu_destroy(struct tier *tier)
{
    struct gpu_tier *t = tier_of(tier);
    pthread_mutex_lock(&t->m);
    t->stop = true;
    pthread_cond_broadcast(&t->work);
    pthread_mutex_unlock(&t->m);
    for (int i = 0; i < 2; i++)
        gpu_lane_join(&t->lane[i]);
    while (t->entries)
        drop(t->entries, false); /* asserts that no pin is out */
    while (t->n_events > 0)
        gpu_event_destroy(t->events[--t->n_events]);
    evict_destroy(t->evict);
    pool_fini(&t->pool);
    gpu_free(t->gpu, t->device);
    mem_free(t->events);
    mem_free(t->bucket);
    (void)pthread_cond_destroy(&t->work);
    (void)pthread_cond_destroy(&t->idle);
    (void)pthread_cond_destroy(&t->issued);
    (void)pthread_mutex_destroy(&t->m);
    mem_free(t);
}

static const struct tier_ops gpu_tier_ops = {
    .find = gpu_find,
    .read = gpu_read,
    .write = gpu_write,
    .remove = gpu_remove,
    .touch = gpu_touch,
    .set_pinned = gpu_set_pinned,
    .set_quota = gpu_set_quota,
    .scan = gpu_scan,
    .stat = gpu_stat,
    .resize = gpu_resize,
    .set_policy = gpu_set_policy,
    .drain = gpu_drain,
    .destroy = gpu_destroy,
};

static int tier_fill(struct gpu_tier *t, const struct tier_gpu_opts *o)
{
    uint64_t cap = whole_pages(o->capacity_bytes);
    t->cap_bytes = cap;
    t->policy = o->policy;
    t->n_buckets = 64;
    while (t->n_buckets < cap >> 18 && t->n_buckets < 1 << 20) /* chosen: 256 KiB a record */
        t->n_buckets *= 2;
    t->n_events_max = 4 * RECORD_PARTS_MAX;
    t->bucket = mem_zalloc(t->n_buckets * sizeof(struct gpu_entry *));
    t->events = mem_alloc(t->n_events_max * sizeof(struct gpu_event *));
    if (!t->bucket || !t->events) return -ENOMEM;
    void *device = NULL;
    int r = gpu_alloc(t->gpu, cap, &device);
    t->device = device;
    if (r == 0) r = evict_create(o->policy, cap, ghosts_for(cap), &t->evict);
    if (r == 0) r = pool_init(&t->pool, cap, cap);
    for (int i = 0; i < 2 && r == 0; i++)
        r = gpu_lane_start(t, i == 1);
    return r;
}

int tier_gpu_create(const struct tier_gpu_opts *o, struct tier **ret, struct err *err)
{
    if (o->capacity_bytes < POOL_PAGE_BYTES)
        return err_set(err, -EINVAL, "the GPU tier needs at least %d bytes", POOL_PAGE_BYTES);
    struct gpu_tier *t = mem_zalloc(sizeof *t);
    if (!t) return err_set(err, -ENOMEM, "out of memory");
    t->t.ops = &gpu_tier_ops;
    (void)snprintf(t->t.name, sizeof t->t.name, "gpu");
    t->gpu = o->gpu;
    pthread_condattr_t monotonic;
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&t->m, NULL);
    (void)pthread_cond_init(&t->work, &monotonic);
    (void)pthread_cond_init(&t->idle, &monotonic);
    (void)pthread_cond_init(&t->issued, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    int r = tier_fill(t, o);
    if (r < 0) {
        gpu_destroy(&t->t);
        return err_set(err, r, "no room for %llu bytes on %s (%s)",
                       (unsigned long long)o->capacity_bytes, gpu_name(o->gpu), err_name(r));
    }
    *ret = &t->t;
    return 0;
}
