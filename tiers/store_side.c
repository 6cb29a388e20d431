/* Sidecars: K of one layer of a record, resident when the record itself has sunk.
 *
 * A strategy that asks a single layer (`side`) can then choose its tokens before the first part of
 * a record has come back from a slow tier. The copy is made when a record is committed or has been
 * loaded, so that nothing has to be copied on eviction, when room is short; it lives on heap memory
 * under a budget of its own, which the store's budget holds in reserve. Least recently used ones
 * make way, those in use do not. It goes when the record does: damaged, expired, stale, removed,
 * evicted with no copy below, or found to have left the last tier by the next lookup. It carries
 * the hash of the token ids and contexts that it belongs to, so that no pin of another version
 * takes it, and a checksum of its own; every first use by a pin verifies both. One lock, below all
 * others. */

#include "tiers/store_load.h"

enum {
    SIDE_SHARE = 20,           /* chosen: 1/20 of RAM for all sidecars */
    SIDE_HEAP_OVERHEAD = 32,   /* chosen: the allocator's own bytes, rounded up */
    SIDE_BUCKET_BYTES = 65536, /* chosen: of budget per bucket; a model's sidecar is larger */
};

struct side {
    struct key_node in_table; /* first */
    struct entry_link lru;    /* alone: out of the table, lives while refs > 0 */
    uint64_t ns_hash, of, sum, bytes, cost_bytes; /* of: side_of() its record */
    enum kn_dtype dtype;
    uint32_t refs; /* pins; the table's own is not counted */
    uint8_t data[];
};
#define SIDE_OF(l) ((struct side *)(void *)((char *)(l)-offsetof(struct side, lru)))

/* ---- the table; sides.m held ---- */

static struct side *side_find(const struct sides *t, const struct tier_key *k)
{
    return (struct side *)key_map_find(&t->table, k);
}

static void release(struct sides *t, struct side *d)
{
    ASSERT(t->used_bytes >= d->cost_bytes);
    t->used_bytes -= d->cost_bytes;
    mem_free(d);
}

static void take_out(struct sides *t, struct side *d)
{
    key_map_remove(&t->table, &d->in_table);
    link_remove(&d->lru);
    if (d->refs == 0) release(t, d);
}

/* Others make way, oldest first; false: too many are in use. */
static bool room(struct sides *t, uint64_t bytes)
{
    if (bytes > t->budget_bytes) return false;
    for (struct entry_link *l = t->lru.prev, *prev; t->used_bytes > t->budget_bytes - bytes;
         l = prev) {
        if (l == &t->lru) return false;
        prev = l->prev;
        if (SIDE_OF(l)->refs > 0) continue;
        take_out(t, SIDE_OF(l));
        t->evictions++;
    }
    return true;
}

/* ---- life ---- */

int side_init(struct store *s, const struct store_opts *o)
{
    struct sides *t = &s->sides;
    if (pthread_mutex_init(&t->m, NULL) != 0) return -ENOMEM;
    link_init(&t->lru);
    if (o->side_layer == 0 || o->side_layer >= o->ident.L || o->n_tiers == 0) return 0;
    t->budget_bytes = o->ram_bytes / SIDE_SHARE;
    if (key_map_init(&t->table, 16 + t->budget_bytes / SIDE_BUCKET_BYTES) < 0) return -ENOMEM;
    t->layer = o->side_layer;
    s->fixed_bytes += t->budget_bytes + (t->table.mask + 1) * sizeof *t->table.bucket;
    return 0;
}

void side_fini(struct store *s)
{
    struct sides *t = &s->sides;
    if (t->layer) side_clear(s, NULL);
    ASSERT(t->used_bytes == 0); /* no pin is out */
    key_map_fini(&t->table);
    pthread_mutex_destroy(&t->m);
}

/* ---- keeping and dropping ---- */

/* In use, if it is there; `hold`: with a reference. */
static struct side *side_use(struct sides *t, const struct tier_key *k, bool hold)
{
    pthread_mutex_lock(&t->m);
    struct side *d = side_find(t, k);
    if (d) {
        d->refs += hold;
        t->hits += hold;
        link_remove(&d->lru);
        link_insert_after(&t->lru, &d->lru);
    }
    pthread_mutex_unlock(&t->m);
    return d;
}

void side_used(struct store *s, const struct tier_key *k)
{
    if (s->sides.layer) (void)side_use(&s->sides, k, false);
}

/* What is the same of a record in whatever form, and another number for another version of it. */
static uint64_t side_of(const struct entry *e)
{
    const struct record_desc *d = &e->desc;
    return record_bytes_hash(e->part[0] + e->layout.token_off, 4ull * d->n_tokens) +
           ((uint64_t)d->n_contexts << 32 | d->context_tokens);
}

/* Is it kept by now? One of another version goes. */
static bool is_kept(struct sides *t, const struct entry *e, uint64_t of)
{
    pthread_mutex_lock(&t->m);
    struct side *d = side_find(t, &e->desc.key);
    bool kept = d && d->of == of;
    if (d && !kept) take_out(t, d);
    pthread_mutex_unlock(&t->m);
    if (kept) side_used(e->store, &e->desc.key);
    return kept;
}

void side_keep(struct store *s, const struct entry *e)
{
    struct sides *t = &s->sides;
    const struct record_layout *l = &e->layout;
    if (!t->layer || e->desc.kind != TIER_CHUNK) return;
    const uint64_t of = side_of(e);
    if (is_kept(t, e, of)) return;
    uint64_t bytes = l->group_bytes / 2, cost = sizeof(struct side) + bytes + SIDE_HEAP_OVERHEAD;
    if (group_check(s, e, t->layer - 1) < 0) return; /* a reader will find it out */
    struct side *d = NULL;
    pthread_mutex_lock(&t->m);
    bool may = !side_find(t, &e->desc.key) && room(t, cost);
    if (may) t->used_bytes += cost; /* before it is there, so that the cap is hard */
    pthread_mutex_unlock(&t->m);
    if (may) d = mem_alloc(sizeof *d + bytes);
    if (d) {
        *d = (struct side){.in_table.key = e->desc.key,
                           .ns_hash = e->desc.ns_hash,
                           .of = of,
                           .bytes = bytes,
                           .cost_bytes = cost,
                           .dtype = e->desc.dtype};
        link_init(&d->lru);
        memcpy(d->data, record_group(e->part, l, t->layer - 1), bytes);
        d->sum = record_bytes_hash(d->data, bytes);
    }
    pthread_mutex_lock(&t->m);
    if (d && !side_find(t, &e->desc.key)) {
        key_map_insert(&t->table, &d->in_table);
        link_insert_after(&t->lru, &d->lru);
    } else if (d) { /* another thread was faster */
        release(t, d);
    } else if (may) {
        t->used_bytes -= cost;
    }
    pthread_mutex_unlock(&t->m);
}

void side_drop(struct store *s, const struct tier_key *k)
{
    struct sides *t = &s->sides;
    if (!t->layer) return;
    pthread_mutex_lock(&t->m);
    struct side *d = side_find(t, k);
    if (d) take_out(t, d);
    pthread_mutex_unlock(&t->m);
}

void side_clear(struct store *s, const uint64_t *ns_hash)
{
    struct sides *t = &s->sides;
    if (!t->layer) return;
    pthread_mutex_lock(&t->m);
    for (struct entry_link *l = t->lru.next, *next; l != &t->lru; l = next) {
        next = l->next;
        if (!ns_hash || SIDE_OF(l)->ns_hash == *ns_hash) take_out(t, SIDE_OF(l));
    }
    pthread_mutex_unlock(&t->m);
}

/* ---- use ---- */

void side_unref(struct store *s, struct side *d)
{
    struct sides *t = &s->sides;
    if (!d) return;
    pthread_mutex_lock(&t->m);
    ASSERT(d->refs > 0);
    if (--d->refs == 0 && link_alone(&d->lru)) release(t, d);
    pthread_mutex_unlock(&t->m);
}

int store_pin_side(struct store_pin *p, unsigned layer, const void **ret_k,
                   enum kn_dtype *ret_dtype)
{
    if (p->there) return 0; /* the layer itself is on the device already */
    const struct entry *e = p->e;
    struct store *s = e->store;
    if (!s->sides.layer || layer != s->sides.layer || !p->settled) return 0;
    if (!p->side) {
        struct side *d = side_use(&s->sides, &e->desc.key, true);
        if (!d) return 0;
        bool ours = d->of == side_of(e), sound = d->sum == record_bytes_hash(d->data, d->bytes);
        if (!ours || !sound) {
            if (!sound) side_drop(s, &e->desc.key);
            side_unref(s, d);
            pthread_mutex_lock(&s->m);
            s->stats.corrupt += !sound;
            pthread_mutex_unlock(&s->m);
            return 0;
        }
        p->side = d;
    }
    *ret_k = p->side->data;
    *ret_dtype = p->side->dtype;
    return 1;
}

bool store_has_side(struct store *s, const struct tier_key *k)
{
    struct sides *t = &s->sides;
    if (!t->layer) return false;
    pthread_mutex_lock(&t->m);
    bool has = side_find(t, k) != NULL;
    pthread_mutex_unlock(&t->m);
    return has;
}

void side_get_stats(struct store *s, struct store_stats *ret)
{
    struct sides *t = &s->sides;
    pthread_mutex_lock(&t->m);
    ret->sides = t->table.n;
    ret->side_bytes = t->used_bytes;
    ret->side_budget_bytes = t->budget_bytes;
    ret->side_hits = t->hits;
    ret->side_evictions = t->evictions;
    pthread_mutex_unlock(&t->m);
}
