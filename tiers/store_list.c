/* What is where: listing over RAM and the local tiers, and reading copies back to check or keep
 * them.
 */
#include "tiers/store_admin.h"
#include "tiers/store_load.h"

#include <stdlib.h>

/* ---- listing ---- */

/* m held. */
static struct store_info info_of(struct store *s, const struct entry *e)
{
    struct shard *sh = shard_of(s, &e->desc.key);
    pthread_mutex_lock(&sh->m);
    struct store_info i = {.key = e->desc.key,
                           .kind = e->desc.kind,
                           .n_tokens = e->desc.n_tokens,
                           .n_contexts = e->desc.n_contexts,
                           .context_tokens = e->desc.context_tokens,
                           .dtype = e->desc.dtype,
                           .size_bytes = e->cost.all_bytes,
                           .hits = e->hits,
                           .ns_hash = e->desc.ns_hash,
                           .created_s = (double)e->desc.created_ms / 1e3,
                           .used_s = e->used_s,
                           .expires_s = (double)e->desc.expires_ms / 1e3,
                           .pinned = e->admin_pinned,
                           .building = e->state == ENTRY_BUILDING,
                           .tier = "ram",
                           .tiers = "ram"};
    pthread_mutex_unlock(&sh->m);
    return i;
}

static void add_tier(struct store_info *i, const char *name)
{
    size_t n = strlen(i->tiers);
    if (!i->tier[0]) memcpy(i->tier, name, strnlen(name, sizeof i->tier - 1));
    if (n + strlen(name) + 2 > sizeof i->tiers) return;
    if (n) i->tiers[n++] = ',';
    memcpy(i->tiers + n, name, strlen(name) + 1);
}

struct listing {
    struct store_info *info;
    size_t n, cap;
    const char *tier;
    const char *only;           /* NULL = any */
    const struct tier_key *key; /* the first record of that key alone; NULL = all */
};

static struct store_info *listing_add(struct listing *l)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 64;
        struct store_info *p = mem_realloc(l->info, cap * sizeof *p);
        if (!p) return NULL;
        l->info = p;
        l->cap = cap;
    }
    struct store_info *i = &l->info[l->n++];
    memset(i, 0, sizeof *i);
    return i;
}

static int list_tier(void *ctx, const struct tier_info *t)
{
    struct listing *l = ctx;
    if (l->key && !tier_key_same(&t->key, l->key)) return 0;
    struct store_info *i = listing_add(l);
    if (!i) return -ENOMEM;
    i->key = t->key;
    i->kind = t->kind;
    i->n_tokens = t->n_tokens;
    i->size_bytes = t->size_bytes;
    i->hits = t->hits;
    i->ns_hash = t->ns_hash;
    i->created_s = (double)t->created_ms / 1e3;
    i->used_s = t->used_s;
    i->expires_s = (double)t->expires_ms / 1e3;
    i->pinned = t->pinned;
    add_tier(i, l->tier);
    return l->key != NULL;
}

static int by_key(const void *a, const void *b)
{
    const struct store_info *x = *(const struct store_info *const *)a,
                            *y = *(const struct store_info *const *)b;
    if (x->key.hi != y->key.hi) return x->key.hi < y->key.hi ? -1 : 1;
    if (x->key.lo != y->key.lo) return x->key.lo < y->key.lo ? -1 : 1;
    return x < y ? -1 : x > y; /* as they were listed: the fastest tier first */
}

/* One line a record: later ones of a key are folded into the first and marked by size 0, as is
 * what is not where it is asked for. */
static int listing_merge(struct listing *l)
{
    const struct store_info **at = mem_alloc((l->n + 1) * sizeof *at);
    if (!at) return -ENOMEM;
    for (size_t i = 0; i < l->n; i++)
        at[i] = &l->info[i];
    qsort(at, l->n, sizeof *at, by_key);
    for (size_t i = 0; i < l->n;) {
        struct store_info *first = &l->info[at[i] - l->info];
        size_t j = i + 1;
        if (l->only && strcmp(first->tier, l->only) != 0) first->size_bytes = 0;
        for (; j < l->n && tier_key_same(&at[j]->key, &first->key); j++) {
            struct store_info *dup = &l->info[at[j] - l->info];
            add_tier(first, dup->tier);
            first->pinned |= dup->pinned;
            if (l->only && strcmp(dup->tier, l->only) == 0) first->size_bytes = dup->size_bytes;
            dup->size_bytes = 0;
        }
        i = j;
    }
    mem_free(at);
    return 0;
}

static int list_ram(struct store *s, struct listing *l)
{
    int r = 0;
    pthread_mutex_lock(&s->m);
    for (struct entry_link *at = s->all.next; at != &s->all && r == 0; at = at->next) {
        const struct entry *e = LINK_ENTRY(at, all);
        if (e->state == ENTRY_LOADING || e->state == ENTRY_DEAD) continue; /* its tier lists it */
        struct store_info *i = listing_add(l);
        if (i) *i = info_of(s, e);
        r = i ? 0 : -ENOMEM;
    }
    pthread_mutex_unlock(&s->m);
    return r;
}

static int list_all(struct store *s, struct listing *l)
{
    int r = list_ram(s, l);
    for (size_t i = 0; i < s->n_tiers && r >= 0; i++) {
        struct tier *t = s->tier[i].t;
        l->tier = t->name;
        if (!t->shared) r = t->ops->scan(t, list_tier, l);
    }
    if (r < 0) return r;
    return s->n_tiers || l->only ? listing_merge(l) : 0;
}

/* Works on a snapshot, so that the visitor may call the store and take its time. */
int store_visit(struct store *s, const char *tier, store_visit_fn fn, void *ctx)
{
    struct listing l = {.only = tier};
    int r = list_all(s, &l);
    for (size_t i = 0; i < l.n && r == 0; i++) {
        if (!l.info[i].size_bytes) continue;
        l.info[i].side = store_has_side(s, &l.info[i].key);
        r = fn(ctx, &l.info[i]);
    }
    mem_free(l.info);
    return r;
}

/* Of the first tier that has it, by listing: rare, and an index of sizes is not kept. */
static bool find_listed(struct store *s, const struct tier_key *k, bool also_remote,
                        struct store_info *ret)
{
    struct listing l = {.key = k, .tier = ""};
    for (size_t i = 0; i < s->n_tiers && l.n == 0; i++) {
        struct tier *t = s->tier[i].t;
        if ((also_remote || !t->shared) && t->ops->find(t, k) != 0)
            (void)t->ops->scan(t, list_tier, &l);
    }
    bool found = l.n > 0;
    if (found) *ret = l.info[0];
    mem_free(l.info);
    return found;
}

int store_get_info(struct store *s, const struct tier_key *k, struct store_info *ret)
{
    struct store_info i = {0};
    pthread_mutex_lock(&s->m);
    const struct entry *e = entry_find(s, k);
    bool ram = e && e->state != ENTRY_LOADING;
    if (ram) i = info_of(s, e);
    pthread_mutex_unlock(&s->m);
    if (!ram && !find_listed(s, k, false, &i)) return 0;
    for (size_t n = 0; n < s->n_tiers; n++) {
        struct tier *at = s->tier[n].t;
        if (!at->shared && at->ops->find(at, k) == 1) add_tier(&i, at->name);
    }
    i.side = store_has_side(s, k);
    *ret = i;
    return 1;
}

/* ---- reading back ---- */

static int by_use(const void *a, const void *b)
{
    const struct store_info *x = a, *y = b;
    return x->used_s > y->used_s ? -1 : x->used_s < y->used_s;
}

static bool has_room(struct store *s, uint64_t bytes)
{
    pthread_mutex_lock(&s->m);
    bool room = s->stats.used_bytes + bytes <= water_bytes(s, WATER_LOW_PCT);
    pthread_mutex_unlock(&s->m);
    return room;
}

/* Begin to load a record ahead of requests; false: it is here, on its way, or has no room. */
static bool preload_begin(struct store *s, const struct store_info *i, struct store_pin **ret)
{
    struct entry *e;
    struct store_pin *p = mem_zalloc(sizeof *p);
    if (!p) return false;
    if (load_enter(s, &i->key, i->n_tokens, &e) != 1) {
        mem_free(p);
        return false;
    }
    p->e = e;
    p->deadline_ns = e->load.op.deadline_ns = clock_ns() + ASK_MS_MAX * 1000000ull;
    p->from = -1;
    e->load.op.prio = TIER_PROMOTE;
    (void)load_run(s, e, 0, false);
    *ret = p;
    return true;
}

static long preload_end(struct store_pin *p)
{
    if (!p) return 0;
    long here = pin_wait_whole(p) == 0;
    store_pin_release(p);
    return here;
}

long store_preload_these(struct store *s, const struct store_info *these, size_t n, size_t most)
{
    enum { AHEAD = 4 }; /* chosen: enough to keep a device busy at MiB parts */
    struct store_pin *pin[AHEAD] = {0};
    size_t k = 0;
    long done = 0;
    for (size_t i = 0; i < n && k < most && !s->interrupted; i++) {
        struct store_pin *p;
        if (!has_room(s, these[i].size_bytes) || !preload_begin(s, &these[i], &p)) continue;
        done += preload_end(pin[k % AHEAD]);
        pin[k++ % AHEAD] = p;
    }
    for (size_t i = 0; i < AHEAD; i++)
        done += preload_end(pin[i]);
    return done;
}

long store_preload(struct store *s, const char *tier, size_t n)
{
    struct listing l = {.tier = ""};
    int r = 0;
    if (!tier_known(s, tier) || (tier && ram_meant(tier))) return -EINVAL;
    for (size_t i = 0; i < s->n_tiers && r >= 0; i++) {
        struct tier *t = s->tier[i].t;
        if (!tier_meant(&s->tier[i], tier) || (!tier && t->shared)) continue;
        r = t->ops->scan(t, list_tier, &l);
    }
    if (l.n) qsort(l.info, l.n, sizeof *l.info, by_use);
    const long done = r < 0 ? 0 : store_preload_these(s, l.info, l.n, n);
    mem_free(l.info);
    return r < 0 ? r : done;
}

/* ---- from tier to tier ---- */

/* 1 it is in RAM, 0 nowhere. Others make room for it, as for any that is asked for. */
static int move_up(struct store *s, const struct tier_key *k)
{
    struct store_info i;
    struct store_pin *p = NULL;
    if (store_in_ram(s, k)) return 1;
    if (!find_listed(s, k, true, &i)) return 0;
    if (preload_begin(s, &i, &p) && preload_end(p)) return 1;
    return store_in_ram(s, k) ? 1 : -ENOSPC;
}

/* What RAM has, into tier i: 1 it is there. */
static int move_down(struct store *s, const struct tier_key *k, unsigned i, uint64_t until_ns)
{
    const uint8_t bit = (uint8_t)(1u << i);
    struct tier *t = s->tier[i].t;
    struct entry *e = entry_hold(s, k);
    if (!e) return 0;
    bool gone = t->ops->find(t, k) == 0; /* evicted there since it was written */
    pthread_mutex_lock(&s->m);
    if (gone) e->write.clean &= (uint8_t)~bit;
    if (!(e->write.clean & bit)) e->write.want |= bit;
    const bool waits = e->write.want & bit;
    write_queue(s, e, e->write.want & bit);
    pthread_mutex_unlock(&s->m);
    int r = waits ? store_flush(s, until_ns) : 0;
    pthread_mutex_lock(&s->m);
    const bool there = e->write.clean & bit && !(e->write.want & bit);
    pthread_mutex_unlock(&s->m);
    entry_unref(s, e);
    return there ? 1 : r < 0 ? r : -ENOSPC;
}

int store_move(struct store *s, const struct tier_key *k, const char *tier, uint64_t until_ns)
{
    unsigned i = 0;
    if (ram_meant(tier)) return tier ? move_up(s, k) : -EINVAL;
    while (i < s->n_tiers && strcmp(s->tier[i].t->name, tier) != 0)
        i++;
    if (i == s->n_tiers || s->tier[i].t == s->direct) return -EINVAL;
    struct tier *to = s->tier[i].t;
    bool there = !store_in_ram(s, k) && !to->shared && to->ops->find(to, k) == 1;
    int r = there ? 1 : move_up(s, k);
    if (r == 1 && !there) r = move_down(s, k, i, until_ns);
    if (r == 1 && store_evict(s, k, "ram") == -EBUSY) r = -EBUSY;
    for (unsigned n = 0; r == 1 && n < i; n++) {
        struct tier *t = s->tier[n].t;
        if (t->ops->remove(t, k, false) == -EBUSY) r = -EBUSY;
    }
    return r;
}

/* ---- by namespace ---- */

struct share { /* of a namespace: a record; a cap, when it has no bytes */
    uint64_t ns_hash, bytes;
    size_t at;
};
struct shares {
    struct share *v;
    size_t n, cap, at;
};

static int share_add(struct shares *l, uint64_t ns_hash, uint64_t bytes)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 256;
        struct share *p = mem_realloc(l->v, cap * sizeof *p);
        if (!p) return -ENOMEM;
        l->v = p;
        l->cap = cap;
    }
    l->v[l->n++] = (struct share){ns_hash, bytes, l->at};
    return 0;
}

static int share_of(void *ctx, const struct tier_info *i)
{
    return share_add(ctx, i->ns_hash, i->size_bytes);
}

static int by_hash(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b; /* their first member */
    return x < y ? -1 : x > y;
}

/* m held. */
static int shares_ram(struct store *s, struct shares *l)
{
    int r = 0;
    for (struct entry_link *at = s->all.next; at != &s->all && r == 0; at = at->next) {
        const struct entry *e = LINK_ENTRY(at, all);
        if (e->state == ENTRY_LOADING || e->state == ENTRY_DEAD) continue; /* as list_ram() */
        r = share_add(l, e->desc.ns_hash, e->cost.all_bytes);
    }
    return r;
}

static const struct quota *caps_at(const struct store *s, size_t at)
{
    return at == 0 ? &s->quota : &s->tier[at - 1].caps;
}

static int shares_all(struct store *s, struct shares *l)
{
    int r = 0;
    for (size_t at = 0; at <= s->n_tiers && r == 0; at++) {
        struct tier *t = at ? s->tier[at - 1].t : NULL;
        l->at = at;
        if (t && !t->shared) r = t->ops->scan(t, share_of, l);
        pthread_mutex_lock(&s->m);
        if (!t) r = shares_ram(s, l);
        for (size_t i = 0; i < caps_at(s, at)->n && r == 0; i++)
            r = share_add(l, caps_at(s, at)->cell[i].ns_hash, 0);
        pthread_mutex_unlock(&s->m);
    }
    return r;
}

int store_spaces(struct store *s, struct store_space **ret, size_t *ret_n)
{
    struct shares l = {0};
    struct store_space *space = NULL;
    size_t n = 0;
    int r = shares_all(s, &l);
    if (l.n) qsort(l.v, l.n, sizeof *l.v, by_hash);
    if (r == 0) space = mem_zalloc((l.n + 1) * sizeof *space); /* as many as records, at most */
    for (size_t i = 0; space && i < l.n; i++) {
        if (n == 0 || space[n - 1].ns_hash != l.v[i].ns_hash) space[n++].ns_hash = l.v[i].ns_hash;
        struct store_space_at *at = &space[n - 1].at[l.v[i].at];
        at->bytes += l.v[i].bytes;
        at->n_records += l.v[i].bytes > 0;
    }
    mem_free(l.v);
    if (!space) return r < 0 ? r : -ENOMEM;
    pthread_mutex_lock(&s->m);
    for (size_t at = 0; at <= s->n_tiers; at++) {
        for (size_t i = 0; i < caps_at(s, at)->n; i++) {
            const struct quota_cell *c = &caps_at(s, at)->cell[i];
            struct store_space *x = bsearch(&c->ns_hash, space, n, sizeof *space, by_hash);
            if (x) x->at[at].cap_bytes = c->cap_bytes;
        }
    }
    pthread_mutex_unlock(&s->m);
    *ret = space;
    *ret_n = n;
    return 0;
}

/* ---- checking ---- */

/* Every byte: 0, or as group_check(). */
static int check_all(const struct store *s, const struct entry *e)
{
    struct record_view v;
    if (header_check(s, e, &v) != STORE_MISS_NEVER) return -EBADMSG;
    if (v.layout.record_bytes != e->layout.record_bytes) return -EBADMSG;
    return groups_check(s, e);
}

/* 1 sound, 0 absent, -EBADMSG. */
static int verify_ram(struct store *s, const struct tier_key *k, uint32_t *ret_n)
{
    struct entry *e = entry_hold(s, k);
    if (!e) return 0;
    *ret_n = e->desc.n_tokens;
    int r = check_all(s, e);
    if (r < 0) entry_reject(e, r, r == -EKEYREJECTED);
    entry_unref(s, e);
    return r < 0 ? -EBADMSG : 1;
}

/* 1 sound, 0 absent, <0 as the tier says. */
static int verify_tier(struct store *s, struct store_tier *t, const struct tier_key *k, uint32_t n)
{
    struct tier *at = t->t;
    struct entry *e;
    if (at->ops->find(at, k) == 0) return 0;
    int r = load_apart(s, t, k, n, &e);
    if (r == 0) {
        struct record_view v;
        r = record_open(e->part[0], e->layout.header_bytes, &v);
        if (r == 0 && header_auth(s, e, &v) != STORE_MISS_NEVER) r = -EBADMSG;
        r = r < 0 || check_all(s, e) < 0 ? -EBADMSG : 1;
        entry_unref(s, e);
        if (r < 0) (void)at->ops->remove(at, k, true);
    }
    return r == -ENOENT ? 0 : r;
}

static int verify_count(struct store_verify *v, int r)
{
    if (r == 1)
        v->n_ok++;
    else if (r == 0)
        v->n_gone++;
    else if (r == -EBADMSG || r == -ESTALE)
        v->n_bad++;
    else
        return r;
    return 0;
}

static int verify_one(struct store *s, const struct tier_key *k, const char *tier,
                      struct store_verify *v)
{
    struct store_info i;
    uint32_t n = 0;
    int r = verify_ram(s, k, &n), bad = 0;
    if (ram_meant(tier)) (void)verify_count(v, r);
    if (n == 0 && find_listed(s, k, true, &i)) n = i.n_tokens;
    for (size_t j = 0; j < s->n_tiers; j++) {
        struct store_tier *t = &s->tier[j];
        if (!tier_meant(t, tier)) continue;
        r = verify_count(v, n ? verify_tier(s, t, k, n) : 0);
        if (r < 0) bad = r;
    }
    return bad;
}

/* Of RAM (t NULL) or a tier, by a snapshot, as reading takes its time. A copy that cannot be read
 * does not hide what the others are like; a tier that hangs ends it. */
static int verify_all(struct store *s, struct store_tier *t, struct store_verify *v)
{
    struct listing l = {.tier = ""};
    int bad = t ? t->t->ops->scan(t->t, list_tier, &l) : list_ram(s, &l);
    for (size_t i = 0; i < l.n && bad != -ETIMEDOUT; i++) {
        const struct store_info *at = &l.info[i];
        uint32_t n;
        if (s->interrupted) {
            bad = -ECANCELED;
            break;
        }
        if (at->building) continue;
        int r = t ? verify_tier(s, t, &at->key, at->n_tokens) : verify_ram(s, &at->key, &n);
        r = verify_count(v, r);
        if (r < 0) bad = r;
    }
    mem_free(l.info);
    return bad;
}

void store_interrupt(struct store *s)
{
    s->interrupted = true;
}

int store_verify(struct store *s, const struct tier_key *k, const char *tier,
                 struct store_verify *ret)
{
    int bad = 0;
    if (!tier_known(s, tier)) return -EINVAL;
    *ret = (struct store_verify){0};
    if (k) return verify_one(s, k, tier, ret);
    if (ram_meant(tier)) bad = verify_all(s, NULL, ret);
    for (size_t i = 0; i < s->n_tiers; i++) {
        struct store_tier *t = &s->tier[i];
        if (!tier_meant(t, tier) || (!tier && t->t->shared)) continue;
        int r = verify_all(s, t, ret);
        if (r < 0) bad = r;
    }
    return bad;
}
