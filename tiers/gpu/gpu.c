#include "tiers/gpu/gpu.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/mem.h"
#include "tiers/gpu/gpu_int.h"

#include <stdio.h>

static struct gpu_tier *tier_of(struct tier *t)
{
    return (struct gpu_tier *)t;
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
    struct record_view v;
    int r = tier_op_check(op, true);
    if (r == 0) r = tier_op_open(op, &v);
    if (r < 0) return r;
    struct gpu_job *j = job_create(op);
    if (!j) return -ENOMEM;
    pthread_mutex_lock(&t->m);
    r = t->stop ? -ECANCELED : gpu_entry_create(t, &v, &j->e);
    if (r == 0) {
        j->e->refs++;
        gpu_copy_add(&t->copies[true], j);
    }
    pthread_mutex_unlock(&t->m);
    if (r < 0) mem_free(j);
    return r;
}

/* ---- lookups ---- */

static void used(struct gpu_tier *t, struct gpu_entry *e)
{
    e->info.hits++;
    e->info.used_s = clock_wall_s();
    evict_hit(t->evict, &e->node);
}

static struct gpu_entry *find_live(struct gpu_tier *t, const struct tier_key *k)
{
    struct gpu_entry *e = gpu_find_entry(t, k);
    if (!e || e->info.expires_ms == 0 || e->info.expires_ms > wall_ms()) return e;
    t->stat.expired++;
    gpu_drop(e, false);
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
    int r = tier_op_check(op, false);
    if (r < 0) return r;
    struct gpu_job *j = job_create(op);
    if (!j) return -ENOMEM;
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
        gpu_update_evictable(e);
        used(t, e);
        j->e = e;
        gpu_copy_add(&t->copies[false], j);
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
    if (e) {
        used(t, e);
        e->refs++;
        e->pins++;
        gpu_update_evictable(e);
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

const void *tier_gpu_header(const struct tier_gpu_pin *p)
{
    return ((const struct gpu_entry *)p)->part[0];
}

int tier_gpu_group(struct tier_gpu_pin *p, uint32_t group, void **ret)
{
    struct gpu_entry *e = (struct gpu_entry *)p;
    pthread_mutex_lock(&e->t->m);
    int r = e->gone ? -ECANCELED : 0;
    if (r == 0) *ret = record_group(e->part, &e->layout, group);
    pthread_mutex_unlock(&e->t->m);
    return r;
}

void tier_gpu_unpin(struct tier_gpu_pin *p)
{
    struct gpu_entry *e = (struct gpu_entry *)p;
    struct gpu_tier *t = e->t;
    pthread_mutex_lock(&t->m);
    e->pins--;
    gpu_unref(e);
    pthread_mutex_unlock(&t->m);
}

/* ---- frames of a shared pool ---- */

int32_t tier_gpu_lend(struct tier *tier)
{
    struct gpu_tier *t = tier_of(tier);
    uint8_t *name;
    pthread_mutex_lock(&t->m);
    ASSERT(t->shares);
    while (!(name = pool_alloc(&t->pool, POOL_PAGE_BYTES)))
        if (!gpu_evict_one(t, NULL, NULL) && !gpu_revoke_one(t))
            (void)pthread_cond_wait(&t->released, &t->m);
    t->lent_bytes += t->frame_bytes;
    pthread_mutex_unlock(&t->m);
    return (int32_t)((name - t->pool.base) / POOL_PAGE_BYTES);
}

void tier_gpu_take_back(struct tier *tier, int32_t frame)
{
    struct gpu_tier *t = tier_of(tier);
    pthread_mutex_lock(&t->m);
    pool_free(&t->pool, t->pool.base + (uint64_t)frame * POOL_PAGE_BYTES, POOL_PAGE_BYTES);
    t->lent_bytes -= t->frame_bytes;
    pthread_mutex_unlock(&t->m);
}

/* ---- administration ---- */

static int gpu_remove(struct tier *tier, const struct tier_key *k, bool also_pinned)
{
    struct gpu_tier *t = tier_of(tier);
    pthread_mutex_lock(&t->m);
    struct gpu_entry *e = gpu_find_entry(t, k);
    int r = e != NULL;
    if (e && e->info.pinned && !also_pinned)
        r = -EBUSY;
    else if (e)
        gpu_drop(e, false);
    for (e = t->entries; e && r >= 0; e = e->next) {
        if (!e->writing || e->failed || !tier_key_same(&e->node.key, k)) continue;
        e->failed = true; /* what is on its way is gone as well */
        r = 1;
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
        gpu_update_evictable(e);
        gpu_trim(t);
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
    while (r == 0 && quota_over(&t->quota, ns_hash, 0) > 0 && gpu_evict_one(t, NULL, &ns_hash)) {
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
    ret->used_bytes = t->used_bytes;
    ret->inflight_ops = t->n_jobs;
    ret->host_pinned_bytes = t->host_pinned_bytes;
    ret->inflight_bytes = t->inflight_bytes;
    struct evict_node *n = evict_victim(t->evict, NULL, gpu_may_evict, NULL, 0);
    if (n) ret->tail_age_s = clock_wall_s() - ((struct gpu_entry *)n)->info.used_s;
    pthread_mutex_unlock(&t->m);
}

static int gpu_resize(struct tier *tier, uint64_t capacity_bytes)
{
    struct gpu_tier *t = tier_of(tier);
    uint64_t n_frames = capacity_bytes / t->frame_bytes, cap = n_frames * t->frame_bytes;
    if (cap == 0) return -EINVAL;
    if (n_frames > t->pool.size_bytes / POOL_PAGE_BYTES) return -ENOTSUP;
    pthread_mutex_lock(&t->m);
    t->cap_bytes = cap;
    evict_resize(t->evict, cap);
    gpu_trim(t);
    pthread_mutex_unlock(&t->m);
    return 0;
}

/* Registering faults the memory in, which takes long: not under the lock. */
static int gpu_add_memory(struct tier *tier, void *base, size_t size_bytes)
{
    struct gpu_tier *t = tier_of(tier);
    int r = gpu_host_register(t->gpu, base, size_bytes);
    pthread_mutex_lock(&t->m);
    if (r < 0 && t->shares)
        (void)snprintf(t->stat.degraded, sizeof t->stat.degraded,
                       "RAM is not pinned (%s): copies are slower", err_name(r));
    if (r < 0) {
        pthread_mutex_unlock(&t->m);
        return r;
    }
    t->host_pinned_bytes += size_bytes;
    bool fits = t->n_memories < GPU_MEMORIES;
    if (fits) t->memory[t->n_memories++] = base;
    pthread_mutex_unlock(&t->m);
    if (fits) return 0;
    gpu_host_unregister(t->gpu, base); /* slower copies, nothing worse */
    return -ENOSPC;
}

/* About what fits, at the mean size of the records of small models (chosen). */
static size_t ghosts_for(uint64_t capacity_bytes)
{
    size_t n = (size_t)(capacity_bytes >> 20);
    return n < 64 ? 64 : n > 1u << 20 ? 1u << 20 : n;
}

static int gpu_set_policy(struct tier *tier, enum evict_policy policy)
{
    struct gpu_tier *t = tier_of(tier);
    struct evict *fresh;
    pthread_mutex_lock(&t->m);
    int r = evict_create(policy, t->cap_bytes, ghosts_for(t->cap_bytes), &fresh);
    if (r == 0) {
        evict_move(t->evict, fresh);
        evict_destroy(t->evict);
        t->evict = fresh;
    }
    pthread_mutex_unlock(&t->m);
    return r;
}

static int gpu_drain(struct tier *tier, uint64_t deadline_ns)
{
    struct gpu_tier *t = tier_of(tier);
    int r = 0;
    pthread_mutex_lock(&t->m);
    while (t->n_jobs > 0 && r == 0)
        r = wait_until(&t->idle, &t->m, deadline_ns);
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
        gpu_copy_join(t, i == 1);
    while (t->n_memories > 0)
        gpu_host_unregister(t->gpu, t->memory[--t->n_memories]);
    while (t->entries)
        gpu_drop(t->entries, false); /* asserts that no pin is out */
    evict_destroy(t->evict);
    ASSERT(t->lent_bytes == 0);
    pool_fini(&t->pool);
    if (!t->shares) gpu_free(t->gpu, t->device);
    key_map_fini(&t->index);
    (void)pthread_cond_destroy(&t->work);
    (void)pthread_cond_destroy(&t->idle);
    (void)pthread_cond_destroy(&t->released);
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
    .add_memory = gpu_add_memory,
    .set_policy = gpu_set_policy,
    .drain = gpu_drain,
    .destroy = gpu_destroy,
};

static int tier_fill(struct gpu_tier *t, const struct tier_gpu_opts *o)
{
    uint64_t n_frames = o->capacity_bytes / t->frame_bytes, cap = n_frames * t->frame_bytes;
    t->cap_bytes = cap;
    /* chosen: 256 KiB a record */
    if (key_map_init(&t->index, 64 + (cap >> 18 < 1 << 20 ? cap >> 18 : 1 << 20)) < 0)
        return -ENOMEM;
    void *device = o->pool;
    int r = t->shares ? 0 : gpu_alloc(t->gpu, cap, &device);
    t->device = device;
    if (r == 0) r = evict_create(o->policy, cap, ghosts_for(cap), &t->evict);
    if (r == 0) r = pool_init(&t->pool, n_frames * POOL_PAGE_BYTES, n_frames * POOL_PAGE_BYTES);
    for (int i = 0; i < 2 && r == 0; i++)
        r = gpu_copy_start(t, i == 1);
    return r;
}

int tier_gpu_create(const struct tier_gpu_opts *o, struct tier **ret, struct err *err)
{
    const size_t frame_bytes = o->pool ? o->frame_bytes : RECORD_ALIGN;
    ASSERT(frame_bytes > 0 && frame_bytes % RECORD_ALIGN == 0);
    if (o->capacity_bytes < frame_bytes)
        return err_set(err, -EINVAL, "the GPU tier needs at least %zu bytes", frame_bytes);
    struct gpu_tier *t = mem_zalloc(sizeof *t);
    if (!t) return err_set(err, -ENOMEM, "out of memory");
    t->t.ops = &gpu_tier_ops;
    (void)snprintf(t->t.name, sizeof t->t.name, "gpu");
    t->gpu = o->gpu;
    t->frame_bytes = frame_bytes;
    t->shares = o->pool != NULL;
    (void)pthread_mutex_init(&t->m, NULL);
    (void)wait_init(&t->work);
    (void)wait_init(&t->idle);
    (void)wait_init(&t->released);
    int r = tier_fill(t, o);
    if (r < 0) {
        gpu_destroy(&t->t);
        return err_set(err, r, "no room for %llu bytes on %s (%s)",
                       (unsigned long long)o->capacity_bytes, gpu_name(o->gpu), err_name(r));
    }
    *ret = &t->t;
    return 0;
}
