/* Records of the GPU tier and the room they take: index, eviction, publication.
 *
 * Room is managed by the RAM tier's pool, whose addresses are only names here: its page i stands
 * for frame i of the device, and is never touched. A record takes whole frames, which it fills part
 * by part: neighbours if there are any, else as few runs of them as there are, so that frames that
 * sequences took one by one and gave back are as good as new ones. */
#include "base/assert.h"
#include "base/clock.h"
#include "base/mem.h"
#include "tiers/gpu/gpu_int.h"

/* ---- index ---- */

struct gpu_entry *gpu_find_entry(const struct gpu_tier *t, const struct tier_key *k)
{
    return (struct gpu_entry *)key_map_find(&t->index, k);
}

void gpu_update_evictable(struct gpu_entry *e)
{
    bool now = e->indexed && e->refs == 0 && !e->info.pinned;
    if (now == e->evictable) return;
    e->evictable = now;
    e->t->evictable_bytes += now ? e->node.size_bytes : -e->node.size_bytes;
}

static void frames_free(struct gpu_entry *e)
{
    struct gpu_tier *t = e->t;
    while (e->n_runs > 0) {
        const struct gpu_run *r = &e->run[--e->n_runs];
        pool_free(&t->pool, r->name, (uint64_t)r->n_frames * POOL_PAGE_BYTES);
        t->used_bytes -= r->n_frames * t->frame_bytes;
    }
    quota_refund(&t->quota, e->info.ns_hash, e->node.size_bytes);
    e->node.size_bytes = 0;
}

static void entry_free(struct gpu_entry *e)
{
    struct gpu_tier *t = e->t;
    ASSERT(!e->indexed && e->refs == 0);
    frames_free(e);
    *(e->prev ? &e->prev->next : &t->entries) = e->next;
    if (e->next) e->next->prev = e->prev;
    mem_free(e->part[0]);
    mem_free(e->run);
    mem_free(e);
}

/* Out of the index at once, out of memory with its last reference. */
void gpu_drop(struct gpu_entry *e, bool evicted)
{
    struct gpu_tier *t = e->t;
    key_map_remove(&t->index, &e->node.map);
    evict_remove(t->evict, &e->node, evicted);
    e->indexed = false;
    gpu_update_evictable(e);
    t->stat.n_records--;
    if (e->info.pinned) t->stat.pinned_bytes -= e->node.size_bytes;
    if (e->refs == 0) entry_free(e);
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

/* A pin is no promise: its holder finds out, and has another copy or computes. */
bool gpu_revoke_one(struct gpu_tier *t)
{
    struct gpu_entry *oldest = NULL;
    for (struct gpu_entry *e = t->entries; e; e = e->next)
        if (e->n_runs > 0 && !e->writing && e->refs == e->pins &&
            (!oldest || e->info.used_s < oldest->info.used_s))
            oldest = e;
    if (!oldest) return false;
    oldest->refs++; /* not gone before its frames are */
    if (oldest->indexed) gpu_drop(oldest, true);
    frames_free(oldest);
    oldest->gone = true;
    oldest->refs--;
    if (oldest->refs == 0) entry_free(oldest);
    t->stat.evictions++;
    return true;
}

void gpu_trim(struct gpu_tier *t)
{
    while (t->used_bytes > t->cap_bytes && gpu_evict_one(t, NULL, NULL)) {
    }
}

void gpu_unref(struct gpu_entry *e)
{
    struct gpu_tier *t = e->t;
    ASSERT(e->refs > 0);
    e->refs--;
    if (e->refs == e->pins) pthread_cond_broadcast(&t->released);
    if (e->refs > 0) return;
    if (!e->indexed) {
        entry_free(e);
        return;
    }
    gpu_update_evictable(e);
    gpu_trim(t);
}

static int reject(struct gpu_tier *t, enum tier_reject why)
{
    t->stat.rejected[why]++;
    return -ENOSPC;
}

/* What records may have of what sequences leave. */
static uint64_t limit(const struct gpu_tier *t)
{
    uint64_t left = t->pool.size_bytes / POOL_PAGE_BYTES * t->frame_bytes - t->lent_bytes;
    return left < t->cap_bytes ? left : t->cap_bytes;
}

/* A refusal that can be foreseen evicts nothing. */
static int make_room(struct gpu_tier *t, const struct record_desc *d, uint64_t bytes)
{
    if (bytes > t->cap_bytes) return reject(t, TIER_REJECT_SIZE);
    if (quota_over(&t->quota, d->ns_hash, bytes) == UINT64_MAX) return reject(t, TIER_REJECT_QUOTA);
    uint64_t held = t->used_bytes - t->evictable_bytes;
    if (held > limit(t) || bytes > limit(t) - held) return reject(t, TIER_REJECT_FULL);
    while (quota_over(&t->quota, d->ns_hash, bytes) > 0)
        if (!gpu_evict_one(t, &d->key, &d->ns_hash)) return reject(t, TIER_REJECT_QUOTA);
    while (t->used_bytes > limit(t) - bytes)
        if (!gpu_evict_one(t, &d->key, NULL)) return reject(t, TIER_REJECT_FULL);
    return 0;
}

/* Neighbours: `want` of them, or half as many, …, `least` at the least. */
static int run_take(struct gpu_tier *t, struct gpu_entry *e, uint64_t want, uint64_t least)
{
    for (uint64_t n = want;; n = n / 2 > least ? n / 2 : least) {
        bool fits = t->used_bytes + n * t->frame_bytes <= limit(t);
        uint8_t *name = fits ? pool_alloc(&t->pool, n * POOL_PAGE_BYTES) : NULL;
        if (name) {
            t->used_bytes += n * t->frame_bytes;
            e->run[e->n_runs++] = (struct gpu_run){name, (uint32_t)n};
            return 0;
        }
        if (n == least) return -ENOSPC;
    }
}

/* Frames for every part but the header; evicts on while the free ones are too scattered. */
static int place_parts(struct gpu_tier *t, struct gpu_entry *e)
{
    const struct record_layout *l = &e->layout;
    uint64_t left = l->record_bytes - l->header_bytes, room = 0;
    uint8_t *at = NULL;
    for (uint32_t i = 1; i < l->n_parts; i++) {
        const uint64_t bytes = record_part_bytes(l, i);
        while (bytes > room) {
            if (run_take(t, e, gpu_frames(t, left), gpu_frames(t, bytes)) == 0) {
                const struct gpu_run *r = &e->run[e->n_runs - 1];
                at = gpu_on_device(t, r->name);
                room = r->n_frames * t->frame_bytes;
            } else if (!gpu_evict_one(t, &e->node.key, NULL)) {
                return reject(t, TIER_REJECT_FULL);
            }
        }
        e->part[i] = at;
        at += bytes;
        room -= bytes;
        left -= bytes;
    }
    return 0;
}

/* ---- writes ---- */

int gpu_entry_create(struct gpu_tier *t, const struct record_view *v, struct gpu_entry **ret)
{
    const struct record_desc *d = &v->desc;
    const struct record_layout *l = &v->layout;
    uint64_t bytes = gpu_frames(t, l->record_bytes - l->header_bytes) * t->frame_bytes;
    int r = make_room(t, d, bytes);
    if (r < 0) return r;
    struct gpu_entry *e = mem_zalloc(sizeof *e + l->n_parts * sizeof *e->part);
    if (!e) return -ENOMEM;
    e->t = t;
    e->layout = *l;
    e->info = (struct tier_info){.key = d->key,
                                 .ns_hash = d->ns_hash,
                                 .size_bytes = l->record_bytes,
                                 .created_ms = d->created_ms,
                                 .expires_ms = d->expires_ms,
                                 .n_tokens = d->n_tokens,
                                 .kind = d->kind};
    e->node.key = d->key;
    e->writing = true;
    e->next = t->entries;
    if (e->next) e->next->prev = e;
    t->entries = e;
    e->part[0] = mem_alloc(l->header_bytes);
    e->run = mem_alloc(l->n_parts * sizeof *e->run);
    r = e->part[0] && e->run ? place_parts(t, e) : -ENOMEM;
    if (r < 0) {
        entry_free(e);
        return r;
    }
    for (uint32_t i = 0; i < e->n_runs; i++)
        e->node.size_bytes += e->run[i].n_frames * t->frame_bytes;
    quota_charge(&t->quota, d->ns_hash, e->node.size_bytes);
    *ret = e;
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
    key_map_insert(&t->index, &e->node.map);
    e->indexed = true;
    e->info.used_s = clock_wall_s();
    evict_insert(t->evict, &e->node);
    t->stat.n_records++;
    if (e->info.pinned) t->stat.pinned_bytes += e->node.size_bytes;
}

void gpu_job_done(struct gpu_tier *t, struct gpu_job *j)
{
    struct gpu_entry *e = j->e;
    if (e->writing) { /* no read of it can have begun */
        e->writing = false;
        if (e->failed && j->status == 0) j->status = -ECANCELED; /* removed meanwhile */
        if (j->status == 0)
            publish(t, e);
        else
            e->failed = true;
    }
    gpu_unref(e);
}
