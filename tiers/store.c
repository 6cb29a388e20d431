/* The store's life: tables and arena out of the budget, tiers taken, the maintenance thread. */
#include "tiers/store.h"

#include "kernels/gpu.h"
#include "tiers/store_load.h"

enum {
    STORE_BYTES_MIN = 64 << 10, /* chosen: bookkeeping plus a few records of a test model */
    ARENA_SHARE = 64,           /* chosen: 1/64 of the budget stays for entries */
    GROWTH_MAX = 4,             /* chosen: address space kept for store_resize(), times the arena */
};

static uint64_t pow2_clamp(uint64_t v, uint64_t lo, uint64_t hi)
{
    uint64_t p = lo;
    while (p < v && p < hi)
        p *= 2;
    return p;
}

static int locks_init(struct store *s)
{
    bool ok = pthread_mutex_init(&s->m, NULL) == 0 && wait_init(&s->wake) == 0 &&
              wait_init(&s->idle) == 0 && pthread_mutex_init(&s->checks.ahead.m, NULL) == 0 &&
              pthread_cond_init(&s->checks.ahead.more, NULL) == 0;
    for (int i = 0; ok && i < SHARDS; i++)
        ok = pthread_mutex_init(&s->shard[i].m, NULL) == 0 && wait_init(&s->shard[i].arrived) == 0;
    return ok ? 0 : -ENOMEM;
}

static void store_free(struct store *s)
{
    while (s->reader.n_pinned > 0)
        gpu_host_unregister(s->reader.gpu, s->reader.pinned[--s->reader.n_pinned]);
    side_fini(s);
    auth_destroy(s->auth);
    pool_fini(&s->pool);
    evict_destroy(s->order);
    ghost_fini(&s->ghosts);
    mem_free(s->tier);
    for (int i = 0; i < SHARDS; i++)
        key_map_fini(&s->shard[i].index);
    mem_free(s);
}

/* Tables sized by the budget: a record of a real model is megabytes, so a bucket per 256 KiB keeps
 * chains short. What they take comes off the budget before the arena does. */
static int tables_create(struct store *s, const struct store_opts *o)
{
    uint64_t n_buckets = pow2_clamp(o->ram_bytes >> 18, SHARDS, 1 << 20);
    uint64_t n_sets = pow2_clamp(o->ram_bytes >> 20, 16, 1 << 14);
    for (int i = 0; i < SHARDS; i++)
        if (key_map_init(&s->shard[i].index, n_buckets / SHARDS) < 0) return -ENOMEM;
    if (ghost_init(&s->ghosts, n_sets) < 0) return -ENOMEM;
    s->tier = mem_aligned(64, (o->n_tiers + 1) * sizeof *s->tier);
    if (!s->tier) return -ENOMEM;
    memset(s->tier, 0, (o->n_tiers + 1) * sizeof *s->tier);
    int r = evict_create(o->ram_policy, o->ram_bytes, store_n_ghosts(o->ram_bytes), &s->order);
    if (r < 0) return r;
    s->fixed_bytes = sizeof *s + n_buckets * sizeof(struct entry *) +
                     n_sets * GHOST_WAYS * sizeof(struct ghost) + o->n_tiers * sizeof *s->tier +
                     evict_memory_bytes(s->order);
    r = side_init(s, o);
    if (r < 0) return r;
    if (s->fixed_bytes + 4 * POOL_PAGE_BYTES > o->ram_bytes) return -EINVAL;
    uint64_t rest = o->ram_bytes - s->fixed_bytes;
    uint64_t arena = (rest - rest / ARENA_SHARE) / (POOL_PAGE_BYTES + sizeof(struct pool_node));
    arena *= POOL_PAGE_BYTES;
    s->fixed_bytes += pool_memory_bytes(arena);
    return pool_init(&s->pool, arena, GROWTH_MAX * arena);
}

size_t store_n_ghosts(uint64_t budget_bytes)
{
    return pow2_clamp(budget_bytes >> 18, 64, 1 << 16);
}

/* Memory that cannot be pinned, or not any more, is copied more slowly and nothing worse. */
static void pin_for_reader(struct store *s, void *base, uint64_t bytes)
{
    if (!s->reader.gpu || s->reader.n_pinned == ARENAS) return;
    if (gpu_host_register(s->reader.gpu, base, bytes) < 0) return;
    pthread_mutex_lock(&s->m);
    s->reader.pinned[s->reader.n_pinned++] = base;
    s->registered = true;
    pthread_mutex_unlock(&s->m);
}

void store_arena_register(struct store *s, void *base, uint64_t bytes)
{
    pin_for_reader(s, base, bytes);
    for (size_t i = 0; i < s->n_tiers; i++) {
        struct tier *t = s->tier[i].t;
        bool knows = t->ops->add_memory(t, base, bytes) == 0;
        pthread_mutex_lock(&s->m);
        s->registered |= knows;
        pthread_mutex_unlock(&s->m);
    }
}

static void tiers_take(struct store *s, const struct store_opts *o)
{
    s->n_tiers = o->n_tiers;
    for (size_t i = 0; i < o->n_tiers; i++) {
        struct store_tier *t = &s->tier[i];
        t->t = o->tier[i].tier;
        t->q8 = o->tier[i].q8;
        ASSERT(!o->tier[i].direct || (i == 0 && !t->q8));
        if (o->tier[i].direct)
            s->direct = t->t;
        else
            s->behind |= (uint8_t)(1u << i);
        breaker_init(&t->breaker, clock_ns() + i);
        if (t->t->shared) t->breaker.rule.backoff_max_ns = BREAKER_CHEAP_NS;
        link_init(&t->queue);
    }
}

int store_create(const struct store_opts *o, struct store **ret, struct err *err)
{
    if (o->ram_bytes < STORE_BYTES_MIN)
        return err_set(err, -EINVAL, "RAM tier of %llu bytes is below the least, 64KiB",
                       (unsigned long long)o->ram_bytes);
    ASSERT(o->n_tiers <= STORE_TIERS_MAX);
    struct store *s = mem_aligned(64, sizeof *s);
    if (!s) return err_set(err, -ENOMEM, "no memory for the store");
    memset(s, 0, sizeof *s);
    int r = tables_create(s, o);
    if (r == 0 && o->auth_key) r = auth_create(o->auth_key, &s->auth);
    if (r == 0) r = locks_init(s);
    if (r < 0) {
        store_free(s);
        return err_set(err, r,
                       r == -EINVAL
                           ? "RAM tier of %llu bytes does not even hold its own tables"
                           : "no memory for the store's index and a RAM tier of %llu bytes",
                       (unsigned long long)o->ram_bytes);
    }
    s->ident = o->ident;
    s->ident_hash = record_ident_hash(&o->ident);
    s->convert = o->convert;
    s->finite = o->finite;
    s->codec = o->convert && kn_row_bytes(KN_Q8, o->ident.G, o->ident.K) <
                                 kn_row_bytes(o->ident.dtype, o->ident.G, o->ident.K);
    s->touch_every_ns = 1000000000u;
    s->checks.every_ns = 1000000000u;
    s->reader.gpu = o->reader;
    s->pin_share_max = 0.5;
    s->ttl.others_ms = o->ttl_ms;
    s->stats.budget_bytes = o->ram_bytes;
    s->stats.used_bytes = s->fixed_bytes;
    link_init(&s->all);
    link_init(&s->loads);
    link_init(&s->probation);
    link_init(&s->revisions);
    link_init(&s->checks.queue);
    tiers_take(s, o); /* first: without tiers the thread would sleep until it is called */
    if (pthread_create(&s->thread, NULL, store_maintain, s) != 0) {
        store_free(s);
        return err_set(err, -EAGAIN, "no thread for the store's maintenance");
    }
    if (o->check_ahead) ahead_start(s);
    store_arena_register(s, s->pool.base, s->pool.size_bytes);
    *ret = s;
    return 0;
}

/* Tiers end their ops first, each with a callback into the store; then nothing refers to an entry
 * but the index. */
void store_destroy(struct store *s)
{
    if (!s) return;
    pthread_mutex_lock(&s->m);
    s->closing = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->m);
    pthread_join(s->thread, NULL);
    pthread_mutex_lock(&s->m);
    while (s->n_others > 0)
        pthread_cond_wait(&s->idle, &s->m);
    pthread_mutex_unlock(&s->m);
    for (size_t i = 0; i < s->n_tiers; i++)
        s->tier[i].t->ops->destroy(s->tier[i].t);
    ahead_stop(s);
    pthread_mutex_lock(&s->m);
    for (struct entry_link *l = s->all.next, *next; l != &s->all; l = next) {
        next = l->next;
        (void)entry_drop(s, LINK_ENTRY(l, all), STORE_MISS_NEVER, false);
    }
    /* A pin that is out, or an op that a tier forgot, would outlive its record. */
    ASSERT(s->stats.used_bytes == s->fixed_bytes);
    pthread_mutex_unlock(&s->m);
    for (int i = 0; i < SHARDS; i++) {
        pthread_mutex_destroy(&s->shard[i].m);
        pthread_cond_destroy(&s->shard[i].arrived);
    }
    pthread_mutex_destroy(&s->m);
    pthread_cond_destroy(&s->wake);
    pthread_cond_destroy(&s->idle);
    pthread_mutex_destroy(&s->checks.ahead.m);
    pthread_cond_destroy(&s->checks.ahead.more);
    store_free(s);
}
