/* The store's administration: pins, eviction by hand, live settings, figures. What concerns every
 * tier is passed on to each; what a tier cannot do (-ENOTSUP) is left out when all were meant. */
#include "tiers/store_admin.h"

#include "tiers/store_load.h"

/* The tier of that name; NULL: RAM, if *ret_ram, or none such. */
static struct store_tier *tier_named(struct store *s, const char *name, bool *ret_ram)
{
    *ret_ram = strcmp(name, "ram") == 0;
    for (size_t i = 0; i < s->n_tiers; i++)
        if (strcmp(s->tier[i].t->name, name) == 0) return &s->tier[i];
    return NULL;
}

bool tier_known(struct store *s, const char *name)
{
    bool ram;
    return !name || tier_named(s, name, &ram) || ram;
}

/* ---- by key ---- */

/* m held. 1, -ENOSPC. */
static int pin_ram(struct store *s, struct entry *e, bool pinned)
{
    struct store_stats *st = &s->stats;
    struct shard *sh = shard_of(s, &e->desc.key);
    if (e->admin_pinned == pinned) return 1;
    if (pinned && (double)(st->pinned_bytes + e->cost.all_bytes) >
                      s->pin_share_max * (double)st->budget_bytes)
        return -ENOSPC;
    pthread_mutex_lock(&sh->m);
    e->admin_pinned = pinned;
    held_update(sh, e);
    pthread_mutex_unlock(&sh->m);
    st->n_pinned = pinned ? st->n_pinned + 1 : st->n_pinned - 1;
    st->pinned_bytes =
        pinned ? st->pinned_bytes + e->cost.all_bytes : st->pinned_bytes - e->cost.all_bytes;
    if (!pinned && e->place == PLACE_ORDER) evict_hit(s->order, &e->node);
    return 1;
}

int store_set_pinned(struct store *s, const struct tier_key *k, bool pinned)
{
    pthread_mutex_lock(&s->m);
    struct entry *e = entry_find(s, k);
    int r =
        e && (e->state == ENTRY_READY || e->state == ENTRY_BUILDING) ? pin_ram(s, e, pinned) : 0;
    pthread_mutex_unlock(&s->m);
    for (size_t i = 0; i < s->n_tiers && r >= 0; i++) {
        struct tier *t = s->tier[i].t;
        if (t->shared) continue; /* it is not ours alone */
        int q = t->ops->set_pinned(t, k, pinned);
        if (q == 1) r = 1;
        if (q == -ENOSPC) r = q;
    }
    return r;
}

/* m held. 1 gone, 0 absent, -EBUSY. */
static int evict_ram(struct store *s, const struct tier_key *k, bool purge)
{
    struct entry *e = entry_find(s, k);
    if (!e) return 0;
    bool writing = e->write.under_way != 0, busy = false;
    struct shard *sh = shard_of(s, k);
    pthread_mutex_lock(&sh->m);
    busy = e->state != ENTRY_READY || e->admin_pinned || e->pins > 0;
    pthread_mutex_unlock(&sh->m);
    if (busy) return -EBUSY;
    if (purge && writing) e->write.purge = UINT8_MAX;
    if (!entry_drop(s, e, STORE_MISS_EVICTED, false)) return 0;
    s->stats.evictions++;
    return 1;
}

/* A remote tier may have it as long as it was not told to remove it. */
static bool anywhere(struct store *s, const struct tier_key *k, const char *removed)
{
    pthread_mutex_lock(&s->m);
    bool here = entry_find(s, k) != NULL;
    pthread_mutex_unlock(&s->m);
    for (size_t i = 0; i < s->n_tiers && !here; i++) {
        struct tier *t = s->tier[i].t;
        here = t->shared ? !tier_meant(&s->tier[i], removed) : t->ops->find(t, k) == 1;
    }
    return here;
}

int store_evict(struct store *s, const struct tier_key *k, const char *tier)
{
    int r = 0;
    pthread_mutex_lock(&s->m);
    revisions_cancel(s, k, NULL);
    if (ram_meant(tier)) r = evict_ram(s, k, !tier);
    pthread_mutex_unlock(&s->m);
    for (size_t i = 0; i < s->n_tiers && r >= 0; i++) {
        struct tier *t = s->tier[i].t;
        if (!tier_meant(&s->tier[i], tier)) continue;
        int q = t->ops->remove(t, k, false);
        /* A remote tier always says 1: that counts only if it was the one that was meant. */
        if (q < 0 || (q == 1 && (tier || !t->shared))) r = q;
    }
    if (r >= 0 && !anywhere(s, k, tier)) side_drop(s, k);
    return r;
}

struct clearing {
    struct store *s;
    size_t tier;
    uint64_t ns_hash;
    bool by_ns, also_pinned;
    bool all; /* RAM's copy and those of faster tiers go as well, and are counted there */
    long n;
};

static int clear_one(void *ctx, const struct tier_info *i)
{
    struct clearing *c = ctx;
    struct store *s = c->s;
    if (c->by_ns && i->ns_hash != c->ns_hash) return 0;
    struct tier_key k = i->key;
    bool counted = false;
    if (c->all) {
        pthread_mutex_lock(&s->m);
        const struct entry *e = entry_find(s, &k);
        counted = e && e->state == ENTRY_READY;
        pthread_mutex_unlock(&s->m);
    }
    for (size_t n = 0; c->all && n < c->tier && !counted; n++)
        counted = !s->tier[n].t->shared && s->tier[n].t->ops->find(s->tier[n].t, &k) == 1;
    struct tier *t = s->tier[c->tier].t;
    if (t->ops->remove(t, &k, c->also_pinned) == 1 && !counted) c->n++;
    return 0;
}

static long clear_ram(struct store *s, const struct clearing *c, bool purge)
{
    long n = 0;
    pthread_mutex_lock(&s->m);
    revisions_cancel(s, NULL, c->by_ns ? &c->ns_hash : NULL);
    for (struct entry_link *l = s->all.next, *next; l != &s->all; l = next) {
        struct entry *e = LINK_ENTRY(l, all);
        next = l->next;
        if (e->state == ENTRY_BUILDING || (e->admin_pinned && !c->also_pinned)) continue;
        /* One that is being loaded may turn out to be the namespace's: its header is on the way. */
        bool others = e->ns_known && e->desc.ns_hash != c->ns_hash;
        if (c->by_ns && others) continue;
        bool ready = e->state == ENTRY_READY;
        if (purge && e->write.under_way) e->write.purge = UINT8_MAX; /* else it would come back */
        if (entry_drop(s, e, STORE_MISS_EVICTED, false)) n += ready;
    }
    s->stats.evictions += (uint64_t)n;
    pthread_mutex_unlock(&s->m);
    return n;
}

/* Slowest tier first: a record is counted where its fastest copy is. */
long store_clear(struct store *s, const char *tier, const char *ns, bool also_pinned)
{
    if (!tier_known(s, tier)) return -EINVAL;
    struct clearing c = {.s = s,
                         .ns_hash = ns ? record_ns_hash(ns) : 0,
                         .by_ns = ns != NULL,
                         .also_pinned = also_pinned,
                         .all = !tier};
    pthread_mutex_lock(&s->m);
    revisions_cancel(s, NULL, ns ? &c.ns_hash : NULL);
    pthread_mutex_unlock(&s->m);
    for (size_t i = s->n_tiers; i-- > 0;) {
        struct tier *t = s->tier[i].t;
        c.tier = i;
        if (!tier_meant(&s->tier[i], tier)) continue;
        int r = t->ops->scan(t, clear_one, &c);
        if (r < 0 && tier) return r;
    }
    if (ram_meant(tier)) c.n += clear_ram(s, &c, !tier);
    if (!tier) side_clear(s, ns ? &c.ns_hash : NULL);
    return c.n;
}

/* ---- live settings ---- */

/* m held. Down: evict until it fits, or nothing changes but what was evicted. Up: the arena grows
 * in place, as far as address space was kept for it. */
static int resize_ram(struct store *s, uint64_t bytes)
{
    struct store_stats *st = &s->stats;
    uint64_t rest = bytes > s->fixed_bytes ? bytes - s->fixed_bytes : 0;
    uint64_t arena = rest / 64 * 63 / POOL_PAGE_BYTES * POOL_PAGE_BYTES, old = s->pool.size_bytes;
    if (arena < 4 * POOL_PAGE_BYTES) return -EINVAL;
    if (arena > old) {
        uint64_t more = pool_memory_bytes(arena) - pool_memory_bytes(old);
        int r = pool_grow(&s->pool, arena);
        if (r < 0) return r;
        s->fixed_bytes += more;
        st->used_bytes += more;
    }
    while (st->used_bytes > bytes)
        if (!evict_one(s, NULL, NULL)) return -EBUSY;
    st->budget_bytes = bytes;
    evict_resize(s->order, bytes);
    /* Registered pages must stay where the device knows them; the limit holds all the same. */
    s->pool.discard = !s->registered && bytes < s->pool.size_bytes;
    if (s->pool.discard) pool_discard_free(&s->pool);
    return 0;
}

int store_resize(struct store *s, const char *tier, uint64_t bytes)
{
    bool ram;
    if (!tier) return -EINVAL;
    struct store_tier *t = tier_named(s, tier, &ram);
    if (t) return t->t->ops->resize(t->t, bytes);
    if (!ram) return -EINVAL;
    pthread_mutex_lock(&s->m);
    uint64_t old = s->pool.size_bytes;
    int r = resize_ram(s, bytes);
    uint8_t *base = s->pool.base + old;
    uint64_t more = s->pool.size_bytes - old;
    pthread_mutex_unlock(&s->m);
    if (more) store_arena_register(s, base, more);
    return r;
}

/* m held. The order of use is kept: the new policy meets the records oldest first. */
static int policy_ram(struct store *s, enum evict_policy p)
{
    struct evict *order;
    uint64_t was = evict_memory_bytes(s->order);
    int r = evict_create(p, s->stats.budget_bytes, store_n_ghosts(s->stats.budget_bytes), &order);
    if (r < 0) return r;
    uint64_t now = evict_memory_bytes(order);
    while (s->stats.used_bytes - was + now > s->stats.budget_bytes)
        if (!evict_one(s, NULL, NULL)) {
            evict_destroy(order);
            return -ENOSPC;
        }
    evict_move(s->order, order);
    evict_destroy(s->order);
    s->order = order;
    s->fixed_bytes += now - was;
    s->stats.used_bytes += now - was;
    return 0;
}

int store_set_policy(struct store *s, const char *tier, enum evict_policy p)
{
    int r = 0;
    if ((unsigned)p >= EVICT_POLICY_COUNT || !tier_known(s, tier)) return -EINVAL;
    if (ram_meant(tier)) {
        pthread_mutex_lock(&s->m);
        r = policy_ram(s, p);
        pthread_mutex_unlock(&s->m);
    }
    for (size_t i = 0; i < s->n_tiers && r >= 0; i++) {
        struct tier *t = s->tier[i].t;
        if (!tier_meant(&s->tier[i], tier)) continue;
        int q = t->ops->set_policy(t, p);
        if (q < 0 && (tier || q != -ENOTSUP)) r = q;
    }
    return r;
}

/* m held. */
static int quota_ram(struct store *s, uint64_t ns_hash, uint64_t cap_bytes)
{
    uint64_t used = 0;
    for (struct entry_link *l = s->all.next; l != &s->all; l = l->next) {
        const struct entry *e = LINK_ENTRY(l, all);
        if (e->ns_known && e->desc.ns_hash == ns_hash) used += e->cost.quota_bytes;
    }
    int r = quota_set(&s->quota, ns_hash, cap_bytes, used);
    if (r < 0) return r;
    while (quota_over(&s->quota, ns_hash, 0) > 0 && evict_one(s, NULL, &ns_hash)) {
    }
    return 0; /* what is held goes over the cap no further: it counts, and lets nothing in */
}

int store_set_quota(struct store *s, const char *tier, const char *ns, uint64_t bytes)
{
    int r = 0;
    uint64_t ns_hash = record_ns_hash(ns);
    if (!tier_known(s, tier)) return -EINVAL;
    if (ram_meant(tier)) {
        pthread_mutex_lock(&s->m);
        r = quota_ram(s, ns_hash, bytes);
        pthread_mutex_unlock(&s->m);
    }
    for (size_t i = 0; i < s->n_tiers && r >= 0; i++) {
        struct tier *t = s->tier[i].t;
        if (!tier_meant(&s->tier[i], tier)) continue;
        int q = t->ops->set_quota(t, ns_hash, bytes);
        if (q < 0 && (tier || q != -ENOTSUP)) r = q;
        pthread_mutex_lock(&s->m);
        if (q >= 0) (void)quota_set(&s->tier[i].caps, ns_hash, bytes, 0);
        pthread_mutex_unlock(&s->m);
    }
    return r;
}

void store_set_ttl(struct store *s, const char *ns, uint64_t ttl_ms)
{
    uint64_t ns_hash = record_ns_hash(ns);
    size_t i = 0;
    pthread_mutex_lock(&s->m);
    while (i < s->ttl.n && s->ttl.ns[i].ns_hash != ns_hash)
        i++;
    if (i == TTL_MAX) i--; /* more than are kept: the last one makes way */
    if (i == s->ttl.n) s->ttl.n++;
    s->ttl.ns[i] = (struct ns_ttl){ns_hash, ttl_ms};
    pthread_mutex_unlock(&s->m);
}

/* ---- figures ---- */

void store_get_stats(struct store *s, struct store_stats *ret)
{
    uint64_t hits = 0;
    for (int i = 0; i < SHARDS; i++) {
        pthread_mutex_lock(&s->shard[i].m);
        hits += s->shard[i].hits;
        pthread_mutex_unlock(&s->shard[i].m);
    }
    pthread_mutex_lock(&s->m);
    struct store_stats st = s->stats;
    st.hits = hits;
    st.dirty = s->n_queued + s->n_writes;
    for (const struct entry_link *l = s->loads.next; l != &s->loads; l = l->next)
        st.inflight++;
    pthread_mutex_unlock(&s->m);
    side_get_stats(s, &st);
    *ret = st;
}

size_t store_n_tiers(const struct store *s)
{
    return s->n_tiers;
}

void store_get_tier_stats(struct store *s, size_t i, struct store_tier_stats *ret)
{
    ASSERT(i < s->n_tiers);
    struct store_tier *t = &s->tier[i];
    struct store_tier_stats st = {.persistent = t->t->persistent,
                                  .shared = t->t->shared,
                                  .q8 = codec_on(s, (unsigned)i),
                                  .direct = t->t == s->direct};
    memcpy(st.name, t->t->name, sizeof st.name);
    t->t->ops->stat(t->t, &st.tier);
    pthread_mutex_lock(&s->m);
    st.hits = t->hits;
    st.hit_bytes = t->hit_bytes;
    memcpy(st.misses, t->misses, sizeof st.misses);
    st.breaker = breaker_state_name(t->breaker.state);
    st.breaker_opened = t->breaker.n_opened;
    st.read_bytes_per_s = t->bytes_per_s;
    st.queued_bytes = t->inflight_bytes;
    st.first_ms = t->first_ms;
    pthread_mutex_unlock(&s->m);
    *ret = st;
}

double store_predict_ms(struct store *s, size_t tier, uint64_t bytes)
{
    ASSERT(tier < s->n_tiers);
    pthread_mutex_lock(&s->m);
    double ms = predict_ms(&s->tier[tier], bytes);
    pthread_mutex_unlock(&s->m);
    return ms;
}

const char *store_miss_name(enum store_miss m)
{
    static const char *const name[] = {"never",    "evicted",  "tokens",  "stale",
                                       "corrupt",  "building", "expired", "gate",
                                       "deadline", "io",       "room",    "forged"};
    static_assert(sizeof name / sizeof *name == STORE_MISS_COUNT, "a name per reason");
    return (unsigned)m < STORE_MISS_COUNT ? name[m] : "unknown";
}
