/* The store over RAM: index, LRU, pins, single-flight and the hard budget.
 *
 * One mutex guards index, lists, counters and score blocks. Checksums of payload and the mapping
 * and unmapping of records happen outside it. An entry stands in the LRU list exactly while it may
 * be evicted (ready, no holder, not pinned by an administrator), so a victim is the list's tail and
 * the evictable bytes are one counter: a claim knows before it evicts anything whether it can
 * succeed. Rejected: one arena cut into extents. Records vary freely in length, so an arena either
 * rounds up to size classes or evicts good records for a contiguous hole; a mapping per record lets
 * the page table do the compaction and makes the accounting exact to the page. */
#include "tiers/store.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/mem.h"
#include "tiers/index.h"
#include "tiers/record.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

struct store {
    struct tier_ident ident;
    uint64_t ident_hash;
    pthread_mutex_t m;
    /* guarded by m */
    struct index index;
    struct ghost_table ghosts;
    struct entry_link all;         /* newest claim first */
    struct entry_link lru;         /* most recently used first */
    uint64_t lru_bytes, n_readers; /* evictable bytes; pins out */
    struct store_stats stats;
    double ms_per_token;
    struct store_tier_opts tier[STORE_TIERS_MAX];
    size_t n_tiers;
};

enum {
    STORE_BYTES_MIN = 64 << 10,    /* chosen: bookkeeping plus a few records of a test model */
    ENTRY_HEAP_OVERHEAD = 32,      /* chosen: the allocator's own bytes per entry, rounded up */
    HUGE_PAGE_FROM_BYTES = 4 << 20 /* chosen: at least one whole 2 MiB page inside */
};

static uint64_t pow2_clamp(uint64_t v, uint64_t lo, uint64_t hi)
{
    uint64_t p = lo;
    while (p < v && p < hi)
        p *= 2;
    return p;
}

int store_create(const struct store_opts *o, struct store **ret, struct err *err)
{
    if (o->ram_bytes < STORE_BYTES_MIN)
        return err_set(err, -EINVAL, "RAM tier of %llu bytes is below the least, 64KiB",
                       (unsigned long long)o->ram_bytes);
    struct store *s = mem_zalloc(sizeof *s);
    if (!s) return err_set(err, -ENOMEM, "no memory for the store");
    /* A record of a real model is megabytes; one bucket per 256 KiB keeps the chains short. */
    uint64_t n_buckets = pow2_clamp(o->ram_bytes >> 18, 64, 1 << 20);
    uint64_t n_sets = pow2_clamp(o->ram_bytes >> 20, 16, 1 << 14);
    if (index_init(&s->index, n_buckets) < 0) goto fail_store;
    if (ghost_init(&s->ghosts, n_sets) < 0) goto fail_index;
    if (pthread_mutex_init(&s->m, NULL) != 0) goto fail_ghosts;
    s->ident = o->ident;
    s->ident_hash = record_ident_hash(&o->ident);
    s->n_tiers = o->n_tiers;
    memcpy(s->tier, o->tier, sizeof s->tier);
    s->ms_per_token = o->ms_per_token;
    link_init(&s->all);
    link_init(&s->lru);
    s->stats.budget_bytes = o->ram_bytes;
    s->stats.used_bytes =
        sizeof *s + n_buckets * sizeof(struct entry *) + n_sets * GHOST_WAYS * sizeof(struct ghost);
    ASSERT(s->stats.used_bytes < o->ram_bytes);
    *ret = s;
    return 0;
fail_ghosts:
    ghost_fini(&s->ghosts);
fail_index:
    index_fini(&s->index);
fail_store:
    mem_free(s);
    return err_set(err, -ENOMEM, "no memory for the store's index");
}

/* ---- entries ---- */

static struct entry *entry_create(struct store *s, const struct record_desc *d,
                                  const struct record_layout *l)
{
    size_t parts_at = (sizeof(struct entry) + l->n_groups + 7) & ~(size_t)7;
    size_t size_bytes = parts_at + l->n_parts * sizeof(uint8_t *);
    struct entry *e = mem_zalloc(size_bytes);
    if (!e) return NULL;
    e->store = s;
    e->pin.e = e->writer.e = e;
    e->part = (uint8_t **)(void *)((char *)e + parts_at);
    e->desc = *d;
    e->layout = *l;
    e->cost_bytes = l->record_bytes + size_bytes + ENTRY_HEAP_OVERHEAD;
    e->state = ENTRY_BUILDING;
    link_init(&e->all);
    link_init(&e->lru);
    return e;
}

/* Fresh zero pages. The layout's size is whole pages, so the accounting is exact. */
static int entry_map(struct entry *e)
{
    size_t size_bytes = e->layout.record_bytes;
    void *p = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return -ENOMEM;
    if (size_bytes >= HUGE_PAGE_FROM_BYTES) (void)madvise(p, size_bytes, MADV_HUGEPAGE);
    e->rec = p;
    for (uint32_t i = 0; i < e->layout.n_parts; i++)
        e->part[i] = e->rec + record_part_off(&e->layout, i);
    return 0;
}

/* A list through `chain` of entries that nobody can reach any more. Called without the lock. */
static void entries_destroy(struct entry *trash)
{
    while (trash) {
        struct entry *e = trash;
        trash = e->chain;
        if (e->rec) munmap(e->rec, e->layout.record_bytes);
        mem_free(e);
    }
}

void store_destroy(struct store *s)
{
    if (!s) return;
    ASSERT(s->n_readers == 0); /* a pin would outlive its record */
    struct entry *trash = NULL;
    for (struct entry_link *l = s->all.next, *next; l != &s->all; l = next) {
        struct entry *e = LINK_ENTRY(l, all);
        next = l->next;
        e->chain = trash;
        trash = e;
    }
    for (size_t i = 0; i < s->n_tiers; i++)
        s->tier[i].tier->ops->destroy(s->tier[i].tier);
    entries_destroy(trash);
    pthread_mutex_destroy(&s->m);
    ghost_fini(&s->ghosts);
    index_fini(&s->index);
    mem_free(s);
}

/* Lock held. Take a place in the LRU list, or leave it, as the entry's state asks. */
static void lru_update(struct store *s, struct entry *e)
{
    bool in = !link_alone(&e->lru);
    bool want = e->state == ENTRY_READY && e->refs == 0 && !e->admin_pinned;
    if (in == want) return;
    if (want) {
        link_insert_after(&s->lru, &e->lru);
        s->lru_bytes += e->cost_bytes;
    } else {
        link_remove(&e->lru);
        s->lru_bytes -= e->cost_bytes;
    }
}

/* Lock held. The memory of a dead entry without holders goes to the trash and out of the budget. */
static void entry_reap(struct store *s, struct entry *e, struct entry **trash)
{
    ASSERT(e->state == ENTRY_DEAD);
    if (e->refs > 0) return;
    s->stats.used_bytes -= e->cost_bytes;
    e->chain = *trash;
    *trash = e;
}

/* Lock held. Out of the index; later look-ups miss for reason `why`. Holders keep the bytes. */
static void entry_drop(struct store *s, struct entry *e, enum store_miss why, struct entry **trash)
{
    ASSERT(e->state != ENTRY_DEAD);
    if (e->state == ENTRY_READY) {
        s->stats.n_records--;
        ghost_add(&s->ghosts, &e->desc.key, why);
    }
    if (e->admin_pinned) s->stats.n_pinned--;
    index_remove(&s->index, e);
    link_remove(&e->all);
    e->state = ENTRY_DEAD;
    lru_update(s, e);
    entry_reap(s, e, trash);
}

/* ---- reading ---- */

/* Lock held. The record's own header against what the index believes: 0, or why it is no hit. */
static int header_check(const struct store *s, const struct entry *e, enum store_miss *ret_why)
{
    struct record_view v;
    int r = record_open(e->rec, e->layout.record_bytes, &v);
    *ret_why = r == -ESTALE ? STORE_MISS_STALE : STORE_MISS_CORRUPT;
    if (r < 0) return r;
    if (v.desc.key.hi != e->desc.key.hi || v.desc.key.lo != e->desc.key.lo) return -EBADMSG;
    if (v.layout.record_bytes != e->layout.record_bytes) return -EBADMSG;
    *ret_why = STORE_MISS_STALE;
    return v.desc.ident_hash == s->ident_hash ? 0 : -ESTALE;
}

/* Lock held. The entry if it is a hit, else NULL with the reason. */
static struct entry *find_hit(struct store *s, const struct tier_key *k, const int32_t *tok,
                              size_t n, enum store_miss *ret_why, struct entry **trash)
{
    struct entry *e = index_find(&s->index, k);
    if (!e) {
        *ret_why = ghost_why(&s->ghosts, k);
        return NULL;
    }
    if (e->state == ENTRY_BUILDING) {
        *ret_why = STORE_MISS_BUILDING;
        return NULL;
    }
    if (!e->header_ok && header_check(s, e, ret_why) < 0) {
        s->stats.corrupt += *ret_why == STORE_MISS_CORRUPT;
        entry_drop(s, e, *ret_why, trash);
        return NULL;
    }
    e->header_ok = true;
    *ret_why = STORE_MISS_TOKENS;
    if (n != e->desc.n_tokens) return NULL;
    return memcmp(e->rec + e->layout.token_off, tok, n * sizeof *tok) == 0 ? e : NULL;
}

int store_lookup(struct store *s, const struct tier_key *k, const int32_t *tok, size_t n,
                 struct store_pin **ret, enum store_miss *ret_why)
{
    enum store_miss why = STORE_MISS_NEVER;
    struct entry *trash = NULL;
    pthread_mutex_lock(&s->m);
    struct entry *e = find_hit(s, k, tok, n, &why, &trash);
    if (e) {
        e->refs++;
        e->hits++;
        e->used_s = clock_wall_s();
        s->n_readers++;
        s->stats.hits++;
        lru_update(s, e);
    } else {
        s->stats.misses[why]++;
    }
    pthread_mutex_unlock(&s->m);
    entries_destroy(trash);
    if (!e) {
        *ret_why = why;
        return 0;
    }
    *ret = &e->pin;
    return 1;
}

int store_ask(struct store *s, const struct store_ask *a, struct store_pin **ret,
              enum store_miss *ret_why)
{
    return store_lookup(s, &a->key, a->tok, a->n, ret, ret_why);
}

int store_pin_settle(struct store_pin *p, uint64_t until_ns, enum store_miss *ret_why)
{
    return 1;
}

int store_pin_ready(struct store_pin *p, unsigned layer)
{
    return 1;
}

bool store_probe(struct store *s, const struct tier_key *k)
{
    pthread_mutex_lock(&s->m);
    const struct entry *e = index_find(&s->index, k);
    bool found = e && e->state == ENTRY_READY;
    pthread_mutex_unlock(&s->m);
    return found;
}

static void entry_corrupt(struct entry *e)
{
    struct store *s = e->store;
    struct entry *trash = NULL;
    pthread_mutex_lock(&s->m);
    ASSERT(e->refs > 0); /* the caller's pin: the entry outlives this call */
    if (e->state == ENTRY_READY) {
        s->stats.corrupt++;
        entry_drop(s, e, STORE_MISS_CORRUPT, &trash);
    }
    pthread_mutex_unlock(&s->m);
    ASSERT(!trash);
}

int store_pin_layer(struct store_pin *p, unsigned layer, const void **ret_k, const void **ret_v)
{
    struct entry *e = p->e;
    if (layer < 1 || layer > e->layout.n_groups) return -EINVAL;
    _Atomic uint8_t *ok = &e->group_ok[layer - 1];
    if (!atomic_load_explicit(ok, memory_order_acquire)) {
        /* Two holders may both check: the same answer twice, and no lock over the hashing. */
        if (record_check_group(e->part, &e->layout, layer - 1) < 0) {
            entry_corrupt(e);
            return -EBADMSG;
        }
        atomic_store_explicit(ok, 1, memory_order_release);
    }
    const uint8_t *k = record_group(e->part, &e->layout, layer - 1);
    *ret_k = k;
    *ret_v = k + e->layout.group_bytes / 2;
    return 0;
}

const char *store_pin_tier(const struct store_pin *p)
{
    return "ram";
}

int store_pin_scores(struct store_pin *p, float *ret)
{
    struct entry *e = p->e;
    struct store *s = e->store;
    uint64_t want = 0;
    pthread_mutex_lock(&s->m);
    int r = record_get_scores(e->rec, &e->layout, e->desc.n_tokens, ret, &want);
    pthread_mutex_unlock(&s->m);
    if (r == 0 || record_score_hash(ret, e->desc.n_tokens) == want) return r;
    /* Damaged scores are scores not yet filled in: the KV groups are unharmed. */
    pthread_mutex_lock(&s->m);
    s->stats.corrupt++;
    e->scored = false;
    record_clear_scores(e->rec, &e->layout);
    pthread_mutex_unlock(&s->m);
    return 0;
}

int store_set_scores(struct store *s, const struct tier_key *k, const float *score, size_t n)
{
    if (n == 0 || n > RECORD_TOKENS_MAX) return -EINVAL;
    uint64_t hash = record_score_hash(score, (uint32_t)n);
    int r = 0;
    pthread_mutex_lock(&s->m);
    struct entry *e = index_find(&s->index, k);
    if (e && e->state == ENTRY_READY) {
        r = n == e->desc.n_tokens ? 1 : -EINVAL;
        if (r == 1) {
            record_set_scores(e->rec, &e->layout, score, (uint32_t)n, hash);
            e->scored = true;
        }
    }
    pthread_mutex_unlock(&s->m);
    return r;
}

void store_pin_release(struct store_pin *p)
{
    if (!p) return;
    struct entry *e = p->e, *trash = NULL;
    struct store *s = e->store;
    pthread_mutex_lock(&s->m);
    ASSERT(e->refs > 0);
    ASSERT(s->n_readers > 0);
    e->refs--;
    s->n_readers--;
    if (e->state == ENTRY_DEAD)
        entry_reap(s, e, &trash);
    else
        lru_update(s, e);
    pthread_mutex_unlock(&s->m);
    entries_destroy(trash);
}

/* ---- writing ---- */

/* Lock held. Evict from the tail until `need` fits; -ENOSPC, having evicted nothing, if it cannot.
 */
static int make_room(struct store *s, uint64_t need_bytes, struct entry **trash)
{
    struct store_stats *st = &s->stats;
    DEBUG_ASSERT(st->used_bytes <= st->budget_bytes);
    DEBUG_ASSERT(s->lru_bytes <= st->used_bytes);
    if (need_bytes > st->budget_bytes) return -ENOSPC;
    if (st->used_bytes - s->lru_bytes > st->budget_bytes - need_bytes) return -ENOSPC;
    while (st->used_bytes > st->budget_bytes - need_bytes) {
        ASSERT(!link_alone(&s->lru));
        entry_drop(s, LINK_ENTRY(s->lru.prev, lru), STORE_MISS_EVICTED, trash);
        st->evictions++;
    }
    return 0;
}

/* 1 entered into the index as building, 0 there already, -ENOSPC. */
static int claim_enter(struct store *s, struct entry *e, struct entry **trash)
{
    pthread_mutex_lock(&s->m);
    int r = 0;
    if (!index_find(&s->index, &e->desc.key)) {
        r = make_room(s, e->cost_bytes, trash);
        if (r == 0) {
            s->stats.used_bytes += e->cost_bytes;
            index_insert(&s->index, e);
            link_insert_after(&s->all, &e->all);
            r = 1;
        } else {
            s->stats.put_refused++;
        }
    }
    pthread_mutex_unlock(&s->m);
    return r;
}

int store_claim(struct store *s, enum tier_kind kind, const struct tier_key *k, const char *ns,
                const int32_t *tok, size_t n, struct store_writer **ret)
{
    if (n > RECORD_TOKENS_MAX) return -ERANGE;
    struct record_desc d = {.key = *k,
                            .ns_hash = record_ns_hash(ns),
                            .ident_hash = s->ident_hash,
                            .created_ms = (uint64_t)(clock_wall_s() * 1e3),
                            .kind = kind,
                            .dtype = s->ident.dtype,
                            .L = s->ident.L,
                            .G = s->ident.G,
                            .K = s->ident.K,
                            .n_tokens = (uint32_t)n,
                            .sink_token = s->ident.sink_token};
    struct record_layout l;
    int r = record_layout(&d, &l);
    if (r < 0) return r;
    struct entry *e = entry_create(s, &d, &l), *trash = NULL;
    if (!e) return -ENOMEM;
    r = claim_enter(s, e, &trash);
    entries_destroy(trash); /* before the new record's pages: RAM never holds both */
    if (r <= 0) {
        mem_free(e);
        return r;
    }
    r = entry_map(e);
    if (r < 0) {
        store_abort(&e->writer);
        return r;
    }
    record_init(e->rec, &d, &l, tok);
    *ret = &e->writer;
    return 1;
}

void store_writer_layer(struct store_writer *w, unsigned layer, void **ret_k, void **ret_v)
{
    struct entry *e = w->e;
    ASSERT(layer >= 1 && layer <= e->layout.n_groups);
    uint8_t *k = record_group(e->part, &e->layout, layer - 1);
    *ret_k = k;
    *ret_v = k + e->layout.group_bytes / 2;
}

int store_commit(struct store_writer *w)
{
    struct entry *e = w->e;
    struct store *s = e->store;
    record_seal(e->part, &e->layout);
    pthread_mutex_lock(&s->m);
    ASSERT(e->state == ENTRY_BUILDING);
    e->state = ENTRY_READY;
    e->used_s = clock_wall_s();
    s->stats.n_records++;
    s->stats.puts++;
    ghost_remove(&s->ghosts, &e->desc.key);
    lru_update(s, e);
    pthread_mutex_unlock(&s->m);
    return 0;
}

void store_abort(struct store_writer *w)
{
    if (!w) return;
    struct entry *e = w->e, *trash = NULL;
    struct store *s = e->store;
    pthread_mutex_lock(&s->m);
    ASSERT(e->state == ENTRY_BUILDING);
    entry_drop(s, e, STORE_MISS_NEVER, &trash);
    pthread_mutex_unlock(&s->m);
    entries_destroy(trash);
}

/* ---- administration ---- */

/* Lock held. */
static struct store_info info_of(const struct entry *e)
{
    return (struct store_info){.key = e->desc.key,
                               .kind = e->desc.kind,
                               .n_tokens = e->desc.n_tokens,
                               .size_bytes = e->cost_bytes,
                               .hits = e->hits,
                               .created_s = (double)e->desc.created_ms / 1e3,
                               .used_s = e->used_s,
                               .pinned = e->admin_pinned,
                               .building = e->state == ENTRY_BUILDING,
                               .scored = e->scored,
                               .tier = "ram"};
}

/* Works on a snapshot, so that the visitor may call the store and take its time. */
int store_visit(struct store *s, store_visit_fn fn, void *ctx)
{
    pthread_mutex_lock(&s->m);
    uint64_t cap = s->index.n;
    pthread_mutex_unlock(&s->m);
    struct store_info *info = mem_alloc((cap + 1) * sizeof *info);
    if (!info) return -ENOMEM;
    uint64_t n = 0;
    pthread_mutex_lock(&s->m);
    for (struct entry_link *l = s->all.next; l != &s->all && n < cap; l = l->next)
        info[n++] = info_of(LINK_ENTRY(l, all));
    pthread_mutex_unlock(&s->m);
    int r = 0;
    for (uint64_t i = 0; i < n && r == 0; i++)
        r = fn(ctx, &info[i]);
    mem_free(info);
    return r;
}

int store_get_info(struct store *s, const struct tier_key *k, struct store_info *ret)
{
    pthread_mutex_lock(&s->m);
    const struct entry *e = index_find(&s->index, k);
    if (e) *ret = info_of(e);
    pthread_mutex_unlock(&s->m);
    return e != NULL;
}

int store_set_pinned(struct store *s, const struct tier_key *k, bool pinned)
{
    pthread_mutex_lock(&s->m);
    struct entry *e = index_find(&s->index, k);
    if (e && e->admin_pinned != pinned) {
        e->admin_pinned = pinned;
        if (pinned)
            s->stats.n_pinned++;
        else
            s->stats.n_pinned--;
        lru_update(s, e);
    }
    pthread_mutex_unlock(&s->m);
    return e != NULL;
}

int store_evict(struct store *s, const struct tier_key *k, const char *tier)
{
    struct entry *trash = NULL;
    int r = 0;
    pthread_mutex_lock(&s->m);
    struct entry *e = index_find(&s->index, k);
    if (e && (e->state == ENTRY_BUILDING || e->admin_pinned || e->refs > 0)) {
        r = -EBUSY;
    } else if (e) {
        entry_drop(s, e, STORE_MISS_EVICTED, &trash);
        s->stats.evictions++;
        r = 1;
    }
    pthread_mutex_unlock(&s->m);
    entries_destroy(trash);
    return r;
}

long store_clear(struct store *s, const char *tier, const char *ns, bool also_pinned)
{
    struct entry *trash = NULL;
    long n = 0;
    pthread_mutex_lock(&s->m);
    for (struct entry_link *l = s->all.next, *next; l != &s->all; l = next) {
        struct entry *e = LINK_ENTRY(l, all);
        next = l->next;
        if (e->state == ENTRY_BUILDING || (e->admin_pinned && !also_pinned)) continue;
        entry_drop(s, e, STORE_MISS_EVICTED, &trash);
        n++;
    }
    s->stats.evictions += (uint64_t)n;
    pthread_mutex_unlock(&s->m);
    entries_destroy(trash);
    return n;
}

void store_set_ms_per_token(struct store *s, double ms)
{
    pthread_mutex_lock(&s->m);
    s->ms_per_token = ms;
    pthread_mutex_unlock(&s->m);
}

long store_preload(struct store *s, const char *tier, size_t n)
{
    return 0;
}

int store_verify(struct store *s, const struct tier_key *k, const char *tier,
                 struct store_verify *ret)
{
    return -ENOTSUP;
}

int store_resize(struct store *s, const char *tier, uint64_t bytes)
{
    return -ENOTSUP;
}

int store_set_policy(struct store *s, const char *tier, enum evict_policy p)
{
    return -ENOTSUP;
}

int store_set_quota(struct store *s, const char *tier, const char *ns, uint64_t bytes)
{
    return -ENOTSUP;
}

void store_set_ttl(struct store *s, const char *ns, uint64_t ttl_ms)
{
}

int store_flush(struct store *s, uint64_t deadline_ns)
{
    return 0;
}

size_t store_n_tiers(const struct store *s)
{
    return s->n_tiers;
}

void store_get_tier_stats(struct store *s, size_t i, struct store_tier_stats *ret)
{
    struct tier *t = s->tier[i].tier;
    *ret = (struct store_tier_stats){
        .persistent = t->persistent, .shared = t->shared, .breaker = "closed"};
    memcpy(ret->name, t->name, sizeof ret->name);
    t->ops->stat(t, &ret->tier);
}

double store_predict_ms(struct store *s, size_t tier, uint64_t bytes)
{
    return -1;
}

void store_get_stats(struct store *s, struct store_stats *ret)
{
    pthread_mutex_lock(&s->m);
    *ret = s->stats;
    pthread_mutex_unlock(&s->m);
}

const char *store_miss_name(enum store_miss m)
{
    static const char *const name[] = {"never",    "evicted",  "tokens",  "stale",
                                       "corrupt",  "building", "expired", "gate",
                                       "deadline", "io",       "room"};
    static_assert(sizeof name / sizeof *name == STORE_MISS_COUNT, "a name per reason");
    return (unsigned)m < STORE_MISS_COUNT ? name[m] : "unknown";
}
