/* Entries, their accounting against the hard budget, making room, and the queues to the tiers.
 *
 * RAM is one arena (pool.h), a record's parts are separate extents in it, so that a record needs no
 * hole of its own size; what fragments remain are met by evicting one more. A claim is refused
 * before anything is evicted if what is held leaves no room: shards count held bytes, since whether
 * an entry is held changes without the store's lock. Everything that a budget of RAM pays for is in
 * used_bytes: tables, entries, parts, and the memory of loads that a device may still write into.
 */
#include "tiers/store_entry.h"

enum { ENTRY_HEAP_OVERHEAD = 32 }; /* chosen: the allocator's own bytes per entry, rounded up */

/* ---- entries ---- */

int entry_desc(const struct store *s, const struct tier_key *k, size_t n, struct record_desc *ret,
               struct record_layout *ret_layout)
{
    if (n > RECORD_TOKENS_MAX) return -ERANGE;
    *ret = (struct record_desc){.key = *k,
                                .ident_hash = s->ident_hash,
                                .dtype = s->ident.dtype,
                                .L = s->ident.L,
                                .G = s->ident.G,
                                .K = s->ident.K,
                                .n_tokens = (uint32_t)n,
                                .sink_token = s->ident.sink_token};
    return record_layout(ret, ret_layout);
}

struct entry *entry_create(struct store *s, const struct record_desc *d,
                           const struct record_layout *l, enum entry_state state)
{
    size_t parts_at = (sizeof(struct entry) + 7) & ~(size_t)7;
    size_t flags_at = parts_at + l->n_parts * sizeof(uint8_t *);
    size_t size_bytes = flags_at + l->n_parts + l->n_groups;
    struct entry *e = mem_zalloc(size_bytes);
    if (!e) return NULL;
    e->store = s;
    e->in_index.key = d->key;
    e->part = (uint8_t **)(void *)((char *)e + parts_at);
    e->part_ok = (_Atomic uint8_t *)((char *)e + flags_at);
    e->group_ok = e->part_ok + l->n_parts;
    e->desc = *d;
    e->layout = *l;
    e->parts_max = l->n_parts;
    e->cost.meta_bytes = size_bytes + ENTRY_HEAP_OVERHEAD;
    e->state = state;
    e->from = -1;
    e->ns_known = state == ENTRY_BUILDING;
    link_init(&e->all);
    link_init(&e->loads);
    link_init(&e->check);
    for (int i = 0; i < STORE_TIERS_MAX; i++)
        link_init(&e->write.queue[i]);
    return e;
}

/* a - was + now; the shard's lock makes it one step, others only read. */
static void shift(_Atomic uint64_t *a, uint64_t was, uint64_t now)
{
    uint64_t v = atomic_load_explicit(a, memory_order_relaxed);
    atomic_store_explicit(a, v - was + now, memory_order_relaxed);
}

static void held_set(struct shard *sh, struct entry *e, uint64_t bytes, uint64_t parts)
{
    shift(&sh->held_bytes, e->cost.held_bytes, bytes);
    shift(&sh->held_parts, e->cost.held_parts, parts);
    e->cost.held_bytes = bytes;
    e->cost.held_parts = parts;
}

void held_update(struct shard *sh, struct entry *e)
{
    bool held = !entry_evictable(e) && e->cost.all_bytes > 0; /* 0: not charged yet */
    held_set(sh, e, held ? e->cost.all_bytes : 0,
             held ? e->cost.all_bytes - e->cost.meta_bytes : 0);
}

/* m held. The memory of an entry without references goes, and out of the budget. */
static void entry_reap(struct store *s, struct entry *e)
{
    struct shard *sh = shard_of(s, &e->desc.key);
    ASSERT(e->state == ENTRY_DEAD && e->refs == 0);
    pthread_mutex_lock(&sh->m);
    held_set(sh, e, 0, 0);
    pthread_mutex_unlock(&sh->m);
    link_remove(&e->all);
    link_remove(&e->loads); /* of a revision */
    for (uint32_t i = 0; i < e->layout.n_parts; i++)
        if (e->part[i]) pool_free(&s->pool, e->part[i], record_part_bytes(&e->layout, i));
    ASSERT(s->stats.used_bytes >= e->cost.all_bytes);
    s->stats.used_bytes -= e->cost.all_bytes;
    if (e->cost.quota_bytes) quota_refund(&s->quota, e->desc.ns_hash, e->cost.quota_bytes);
    mem_free(e);
}

void parts_free(struct store *s, struct entry *e)
{
    struct shard *sh = shard_of(s, &e->desc.key);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < e->layout.n_parts; i++) {
        if (!e->part[i]) continue;
        pool_free(&s->pool, e->part[i], record_part_bytes(&e->layout, i));
        bytes += record_part_bytes(&e->layout, i);
        e->part[i] = NULL;
    }
    if (bytes == 0) return;
    s->stats.used_bytes -= bytes;
    pthread_mutex_lock(&sh->m);
    e->cost.all_bytes -= bytes;
    held_update(sh, e);
    pthread_mutex_unlock(&sh->m);
    if (!e->ns_known) return;
    quota_refund(&s->quota, e->desc.ns_hash, e->cost.quota_bytes - e->cost.all_bytes);
    e->cost.quota_bytes = e->cost.all_bytes;
}

/* True: it was the last; never of an entry in the index, which holds one. */
static bool ref_drop(struct store *s, struct entry *e)
{
    struct shard *sh = shard_of(s, &e->desc.key);
    pthread_mutex_lock(&sh->m);
    ASSERT(e->refs > 0);
    bool last = --e->refs == 0;
    held_update(sh, e);
    pthread_mutex_unlock(&sh->m);
    return last;
}

void entry_unref(struct store *s, struct entry *e)
{
    if (!ref_drop(s, e)) return;
    pthread_mutex_lock(&s->m);
    entry_reap(s, e);
    pthread_mutex_unlock(&s->m);
}

bool entry_unref_held(struct store *s, struct entry *e)
{
    bool last = ref_drop(s, e);
    if (last) entry_reap(s, e);
    return last;
}

/* m held. */
static void policy_remove(struct store *s, struct entry *e, bool evicted)
{
    if (e->place == PLACE_ORDER) evict_remove(s->order, &e->node, evicted);
    if (e->place == PLACE_PROBATION) link_remove(&e->loads);
    e->place = PLACE_NONE;
}

void policy_insert(struct store *s, struct entry *e)
{
    e->node = (struct evict_node){.key = e->desc.key, .size_bytes = e->cost.all_bytes};
    evict_insert(s->order, &e->node);
    e->place = PLACE_ORDER;
}

bool entry_drop(struct store *s, struct entry *e, enum store_miss why, bool evict)
{
    struct shard *sh = shard_of(s, &e->desc.key);
    struct store_stats *st = &s->stats;
    pthread_mutex_lock(&sh->m);
    enum entry_state was = e->state;
    if (was == ENTRY_DEAD || (evict && !entry_evictable(e))) {
        pthread_mutex_unlock(&sh->m);
        return false;
    }
    bool pinned = e->admin_pinned;
    e->admin_pinned = false;
    if (shard_find(sh, &e->desc.key) == e) key_map_remove(&sh->index, &e->in_index);
    e->state = ENTRY_DEAD;
    e->cancel = 1;
    if (was == ENTRY_LOADING && e->status == 0) e->status = -EIO;
    if (was == ENTRY_LOADING && e->head == 0) {
        e->head = -EIO;
        e->why = why;
    }
    bool last = --e->refs == 0;
    held_update(sh, e);
    if (sh->waiters) pthread_cond_broadcast(&sh->arrived);
    pthread_mutex_unlock(&sh->m);

    if (was == ENTRY_READY) {
        st->n_records--;
        policy_remove(s, e, evict);
    }
    if (why != STORE_MISS_NEVER)
        ghost_add(&s->ghosts, &e->desc.key, why, (uint32_t)(clock_ns() / 1000000000u));
    if (pinned) {
        st->n_pinned--;
        st->pinned_bytes -= e->cost.all_bytes;
    }
    if (evict) {
        st->evictions++;
        st->tail_age_s = clock_wall_s() - e->used_s;
    }
    if (evict && entry_wanted(s, e)) st->lost++;
    bool nowhere = was == ENTRY_READY && why == STORE_MISS_EVICTED && !e->write.clean;
    if (nowhere || why == STORE_MISS_CORRUPT || why == STORE_MISS_EXPIRED ||
        why == STORE_MISS_STALE)
        side_drop(s, &e->desc.key);
    if (e->write.leaving) s->leaving_bytes -= e->cost.all_bytes;
    e->write.leaving = false;
    write_unqueue(s, e);
    link_remove(&e->check);
    if (last) entry_reap(s, e);
    return true;
}

void entry_ready(struct store *s, struct entry *e)
{
    struct shard *sh = shard_of(s, &e->desc.key);
    pthread_mutex_lock(&sh->m);
    bool dead = e->state == ENTRY_DEAD;
    if (!dead) {
        e->state = ENTRY_READY;
        e->head = 1;
        e->used_s = clock_wall_s();
        e->checked_ns = clock_ns();
        held_update(sh, e);
        if (sh->waiters) pthread_cond_broadcast(&sh->arrived);
    }
    pthread_mutex_unlock(&sh->m);
    if (dead) return;
    s->stats.n_records++;
    ghost_remove(&s->ghosts, &e->desc.key);
    if (e->probation) {
        link_insert_after(&s->probation, &e->loads);
        e->place = PLACE_PROBATION;
    } else {
        policy_insert(s, e);
    }
}

void entry_touch(struct store *s, struct entry *e)
{
    struct shard *sh = shard_of(s, &e->desc.key);
    uint8_t have = 0;
    pthread_mutex_lock(&s->m);
    if (e->state == ENTRY_READY) {
        pthread_mutex_lock(&sh->m);
        bool again = e->hits > 1;
        pthread_mutex_unlock(&sh->m);
        if (e->place == PLACE_ORDER) {
            evict_hit(s->order, &e->node);
        } else if (again) { /* off probation: used a second time */
            policy_remove(s, e, false);
            policy_insert(s, e);
        }
        if (s->direct &&
            !(e->write.under_way & 1)) { /* that RAM was used says that it is not there */
            e->write.clean &= (uint8_t)~1u;
            e->write.want |= 1;
        }
        if (s->direct && again) write_queue(s, e, e->write.want & 1);
        have = e->write.clean;
    }
    pthread_mutex_unlock(&s->m);
    side_used(s, &e->desc.key);
    for (size_t i = 0; i < s->n_tiers; i++) {
        struct tier *t = s->tier[i].t;
        if (have >> i & 1) t->ops->touch(t, &e->desc.key);
    }
}

bool shard_wait(struct shard *sh, uint64_t until_ns)
{
    if (clock_ns() >= until_ns) return false;
    sh->waiters++;
    int r = wait_until(&sh->arrived, &sh->m, until_ns);
    sh->waiters--;
    return r == 0;
}

/* ---- room ---- */

struct pick_ctx {
    struct store *s;
    const uint64_t *ns;
    enum pick which;
};

static bool may_go(const struct pick_ctx *p, const struct entry *e)
{
    struct shard *sh = shard_of(p->s, &e->desc.key);
    if (p->ns && e->desc.ns_hash != *p->ns) return false;
    if (p->which == PICK_CLEAN && (e->write.leaving || entry_wanted(p->s, e))) return false;
    if (p->which == PICK_STAYING && e->write.leaving) return false;
    pthread_mutex_lock(&sh->m);
    bool ok = entry_evictable(e);
    pthread_mutex_unlock(&sh->m);
    return ok;
}

static bool node_may_go(void *ctx, const struct evict_node *n)
{
    return may_go(
        ctx, (const struct entry *)(const void *)((const char *)n - offsetof(struct entry, node)));
}

struct entry *pick_victim(struct store *s, const struct tier_key *incoming, const uint64_t *ns,
                          enum pick which)
{
    struct pick_ctx p = {s, ns, which};
    int tries = VICTIM_TRIES;
    for (struct entry_link *l = s->probation.prev; l != &s->probation && tries;
         l = l->prev, tries--)
        if (may_go(&p, LINK_ENTRY(l, loads))) return LINK_ENTRY(l, loads);
    struct evict_node *n =
        evict_victim(s->order, incoming, node_may_go, &p, which == PICK_CLEAN ? VICTIM_TRIES : 0);
    return n ? (struct entry *)(void *)((char *)n - offsetof(struct entry, node)) : NULL;
}

/* m held. One (of namespace *ns if given) makes way for e. */
static bool make_way(struct store *s, const struct entry *e, const uint64_t *ns)
{
    struct entry *v;
    if (!e->modest) return evict_one(s, &e->desc.key, ns);
    while ((v = pick_victim(s, &e->desc.key, ns, PICK_CLEAN)) != NULL)
        if (entry_drop(s, v, STORE_MISS_EVICTED, true)) return true;
    return false;
}

bool evict_one(struct store *s, const struct tier_key *incoming, const uint64_t *ns)
{
    for (;;) {
        struct entry *e = s->n_tiers ? pick_victim(s, incoming, ns, PICK_CLEAN) : NULL;
        if (!e) e = pick_victim(s, incoming, ns, PICK_ANY);
        if (!e) return false;
        if (entry_drop(s, e, STORE_MISS_EVICTED, true)) return true;
        /* A lookup took it between the two: another one, then. */
    }
}

/* m held. Could `parts` more bytes fit if all that is not held went? */
static bool room_possible(struct store *s, uint64_t parts, uint64_t meta)
{
    uint64_t held = s->fixed_bytes, held_parts = 0, budget = s->stats.budget_bytes;
    for (int i = 0; i < SHARDS; i++) {
        held += atomic_load_explicit(&s->shard[i].held_bytes, memory_order_relaxed);
        held_parts += atomic_load_explicit(&s->shard[i].held_parts, memory_order_relaxed);
    }
    if (parts > s->pool.size_bytes || parts + meta > budget) return false;
    return held_parts <= s->pool.size_bytes - parts && held <= budget - parts - meta;
}

/* m held. The namespace's cap: its own records make way. */
static int quota_room(struct store *s, const struct entry *e, uint64_t bytes)
{
    if (!e->ns_known) return 0;
    for (uint64_t over; (over = quota_over(&s->quota, e->desc.ns_hash, bytes)) > 0;)
        if (over == UINT64_MAX || !make_way(s, e, &e->desc.ns_hash)) return -ENOSPC;
    return 0;
}

/* m held. */
static void entry_charge(struct store *s, struct entry *e, uint64_t bytes)
{
    struct shard *sh = shard_of(s, &e->desc.key);
    s->stats.used_bytes += bytes;
    ASSERT(s->stats.used_bytes <= s->stats.budget_bytes);
    pthread_mutex_lock(&sh->m);
    e->cost.all_bytes += bytes;
    held_update(sh, e);
    pthread_mutex_unlock(&sh->m);
    if (e->ns_known) {
        quota_charge(&s->quota, e->desc.ns_hash, e->cost.all_bytes - e->cost.quota_bytes);
        e->cost.quota_bytes = e->cost.all_bytes;
    }
}

/* m held. Memory for parts without, larger ones first; all or nothing. */
static int parts_alloc(struct store *s, struct entry *e, uint32_t n_parts, bool *evicted)
{
    uint8_t fresh[RECORD_PARTS_MAX + 1] = {0};
    for (uint32_t i = n_parts; i-- > 0;) {
        if (e->part[i]) continue;
        while (!(e->part[i] = pool_alloc(&s->pool, record_part_bytes(&e->layout, i)))) {
            if (make_way(s, e, NULL)) {
                *evicted = true;
                continue;
            }
            for (uint32_t j = i + 1; j < n_parts; j++) {
                if (!fresh[j]) continue;
                pool_free(&s->pool, e->part[j], record_part_bytes(&e->layout, j));
                e->part[j] = NULL;
            }
            return -ENOSPC;
        }
        fresh[i] = 1;
    }
    return 0;
}

static int take_room(struct store *s, struct entry *e, uint32_t n_parts, uint64_t meta)
{
    struct store_stats *st = &s->stats;
    uint64_t parts = 0;
    bool evicted = false;
    ASSERT(n_parts <= e->layout.n_parts);
    for (uint32_t i = 0; i < n_parts; i++)
        if (!e->part[i]) parts += record_part_bytes(&e->layout, i);
    if (!room_possible(s, parts, meta)) return -ENOSPC;
    int r = quota_room(s, e, e->cost.all_bytes - e->cost.quota_bytes + parts + meta);
    if (r < 0) return r;
    while (st->used_bytes > st->budget_bytes - parts - meta) {
        if (!make_way(s, e, NULL)) return -ENOSPC;
        evicted = true;
    }
    r = parts_alloc(s, e, n_parts, &evicted);
    if (r < 0) return r;
    entry_charge(s, e, parts + meta);
    if (s->n_tiers && !s->evict_now && st->used_bytes > water_bytes(s, WATER_HIGH_PCT)) {
        s->evict_now = s->work = true;
        pthread_cond_signal(&s->wake);
    }
    if (e->state == ENTRY_LOADING && (evicted || st->used_bytes > water_bytes(s, WATER_SHORT_PCT)))
        e->probation = !ghost_recent(&s->ghosts, &e->desc.key, (uint32_t)(clock_ns() / 1000000000u),
                                     PROBATION_S);
    return 0;
}

int entry_reserve(struct store *s, struct entry *e, uint32_t n_parts)
{
    return take_room(s, e, n_parts, 0);
}

int entry_enter(struct store *s, struct entry *e, uint32_t n_parts)
{
    struct shard *sh = shard_of(s, &e->desc.key);
    pthread_mutex_lock(&sh->m);
    bool there = shard_find(sh, &e->desc.key) != NULL;
    pthread_mutex_unlock(&sh->m);
    if (there) return 0; /* entries come under m only: an absent one stays absent */
    int r = take_room(s, e, n_parts, e->cost.meta_bytes);
    if (r < 0) return r;
    pthread_mutex_lock(&sh->m);
    e->refs++;
    key_map_insert(&sh->index, &e->in_index);
    pthread_mutex_unlock(&sh->m);
    link_insert_after(&s->all, &e->all);
    return 1;
}

int entry_enter_apart(struct store *s, struct entry *e)
{
    int r = take_room(s, e, e->layout.n_parts, e->cost.meta_bytes);
    if (r == 0) e->refs++;
    return r;
}

struct entry *entry_find(struct store *s, const struct tier_key *k)
{
    struct shard *sh = shard_of(s, k);
    pthread_mutex_lock(&sh->m);
    struct entry *e = shard_find(sh, k);
    pthread_mutex_unlock(&sh->m);
    return e;
}

struct entry *entry_hold(struct store *s, const struct tier_key *k)
{
    struct shard *sh = shard_of(s, k);
    pthread_mutex_lock(&sh->m);
    struct entry *e = shard_find(sh, k);
    if (e && e->state != ENTRY_READY) e = NULL;
    if (e) {
        e->refs++;
        held_update(sh, e);
    }
    pthread_mutex_unlock(&sh->m);
    return e;
}

/* ---- queues to the tiers ---- */

void write_queue(struct store *s, struct entry *e, uint8_t mask)
{
    for (unsigned i = 0; i < s->n_tiers; i++) {
        bool here = e->write.under_way >> i & 1 || !link_alone(&e->write.queue[i]);
        if (!(mask >> i & 1) || here) continue;
        link_insert_after(s->tier[i].queue.prev, &e->write.queue[i]);
        s->n_queued++;
        s->work = true;
    }
    if (s->work) pthread_cond_signal(&s->wake);
}

void write_unqueue(struct store *s, struct entry *e)
{
    for (unsigned i = 0; i < s->n_tiers; i++) {
        if (link_alone(&e->write.queue[i])) continue;
        link_remove(&e->write.queue[i]);
        s->n_queued--;
    }
    if (s->n_queued + s->n_writes == 0) pthread_cond_broadcast(&s->idle);
}

void entry_reject(struct entry *e, int status, bool there)
{
    struct store *s = e->store;
    const bool forged = status == -EKEYREJECTED;
    const int from = there ? e->from : -1;
    pthread_mutex_lock(&s->m);
    bool first = entry_drop(s, e, forged ? STORE_MISS_FORGED : STORE_MISS_CORRUPT, false);
    *(forged ? &s->stats.forged : &s->stats.corrupt) += first;
    if (forged && e->from >= 0) s->tier[e->from].misses[STORE_MISS_FORGED] += first;
    pthread_mutex_unlock(&s->m);
    if (first && from >= 0) (void)s->tier[from].t->ops->remove(s->tier[from].t, &e->desc.key, true);
}
