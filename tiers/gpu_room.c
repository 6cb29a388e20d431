/* Records of the GPU tier and the room they take: index, eviction, publication.
 *
 * Room is managed by the RAM tier's pool, whose addresses are only names here: page i of the pool
 * is page i of the device allocation, and neither is ever touched. Parts need not be neighbours, so
 * a hole of a page more or less is all that records of any length leave. */
#include "base/assert.h"
#include "base/clock.h"
#include "base/mem.h"
#include "tiers/gpu_int.h"

/* ---- index ---- */

static struct gpu_entry **bucket_of(struct gpu_tier *t, const struct tier_key *k)
{
    return &t->bucket[k->lo & (t->n_buckets - 1)];
}

struct gpu_entry *gpu_find_entry(struct gpu_tier *t, const struct tier_key *k)
{
    struct gpu_entry *e = *bucket_of(t, k);
    while (e && !tier_key_same(&e->node.key, k))
        e = e->chain;
    return e;
}

/* One that is on its way; the youngest if there are several. */
struct gpu_entry *gpu_find_writing(struct gpu_tier *t, const struct tier_key *k)
{
    struct gpu_entry *e = t->entries;
    while (e && !(e->writing && !e->failed && tier_key_same(&e->node.key, k)))
        e = e->next;
    return e;
}

void gpu_update_evictable(struct gpu_entry *e)
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
void gpu_drop(struct gpu_entry *e, bool evicted)
{
    struct gpu_tier *t = e->t;
    struct gpu_entry **at = bucket_of(t, &e->node.key);
    while (*at != e)
        at = &(*at)->chain;
    *at = e->chain;
    evict_remove(t->evict, &e->node, evicted);
    e->indexed = false;
    gpu_update_evictable(e);
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

bool gpu_may_evict(void *ctx, const struct evict_node *n)
{
    const uint64_t *ns_hash = ctx;
    const struct gpu_entry *e = (const struct gpu_entry *)n;
    return e->evictable && (!ns_hash || e->info.ns_hash == *ns_hash);
}

bool gpu_evict_one(struct gpu_tier *t, const struct tier_key *incoming, const uint64_t *ns_hash)
{
    struct evict_node *n = evict_victim(t->evict, incoming, gpu_may_evict, (void *)ns_hash, 0);
    if (!n) return false;
    gpu_drop((struct gpu_entry *)n, true);
    t->stat.evictions++;
    return true;
}

void gpu_trim(struct gpu_tier *t)
{
    while (t->pool.used_bytes > t->cap_bytes && gpu_evict_one(t, NULL, NULL)) {
    }
}

void gpu_unref(struct gpu_entry *e)
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
    gpu_update_evictable(e);
    gpu_trim(t);
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
        if (!gpu_evict_one(t, &info->key, &info->ns_hash)) return refuse(t, TIER_REJECT_QUOTA);
    while (t->pool.used_bytes > t->cap_bytes - bytes)
        if (!gpu_evict_one(t, &info->key, NULL)) return refuse(t, TIER_REJECT_FULL);
    return 0;
}

/* Evicts on while the free pages are too scattered. NULL: nothing is left to evict. */
static uint8_t *part_alloc(struct gpu_tier *t, const struct tier_key *incoming, uint64_t bytes)
{
    for (;;) {
        uint8_t *at = pool_alloc(&t->pool, bytes);
        if (at || !gpu_evict_one(t, incoming, NULL)) return at;
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

int gpu_entry_create(struct gpu_tier *t, const struct tier_op *op, const struct tier_info *info,
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
int gpu_header_update(struct gpu_tier *t, struct gpu_job *j, const struct tier_info *info)
{
    struct gpu_entry *e = gpu_find_entry(t, &info->key);
    if (!e) return -ENOENT;
    if (e->layout.record_bytes != j->op->layout->record_bytes) return -EINVAL;
    if (e->stale || e->header_busy) {
        t->stat.rejected[TIER_REJECT_BUSY]++;
        return -EAGAIN;
    }
    e->refs++; /* first: room is not made by evicting the record itself */
    gpu_update_evictable(e);
    uint64_t bytes = e->layout.header_bytes, cap = t->cap_bytes;
    bool fits = bytes <= cap;
    while (fits && t->pool.used_bytes > cap - bytes)
        fits = gpu_evict_one(t, &info->key, NULL);
    j->header = fits ? part_alloc(t, &info->key, bytes) : NULL;
    if (!j->header) {
        gpu_unref(e);
        return refuse(t, TIER_REJECT_FULL);
    }
    e->header_busy = true;
    j->e = e;
    return 0;
}

static void publish(struct gpu_tier *t, struct gpu_entry *e)
{
    struct gpu_entry *old = gpu_find_entry(t, &e->node.key);
    if (old) {
        e->info.hits = old->info.hits;
        e->info.pinned = old->info.pinned;
        gpu_drop(old, false);
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
    gpu_unref(e);
}
