/* Lookups: pins, what they wait for, and what they verify.
 *
 * A hit in RAM takes its shard's lock twice (pin, release) and nothing else. Token ids are compared
 * under it: a few KiB, against a reference more to give back. What a layer's checksum said is kept
 * in an atomic flag of the entry: two holders may both check it, with the same result. A waiter
 * sleeps on its shard's condition, which a part's arrival signals. What was checked is trusted for
 * a second: the first use after that looks at the header anew, is served, and has the layers looked
 * at behind it (store_check.c), so that memory that rots is found out at no request's cost. */
#include "tiers/gpu/gpu.h"
#include "tiers/store_load.h"

/* Shard's lock held. */
static void attach(struct shard *sh, struct entry *e, struct store_pin *p)
{
    p->e = e;
    e->refs++;
    e->pins++;
    held_update(sh, e);
}

/* Shard's lock held. */
static void used_now(struct shard *sh, struct entry *e, double now_s)
{
    e->hits++;
    e->used_s = now_s;
    sh->hits++;
}

static bool tokens_same(const struct entry *e, const int32_t *tok, size_t n)
{
    return n == e->desc.n_tokens && memcmp(e->part[0] + e->layout.token_off, tok, 4 * n) == 0;
}

/* The record's own header against what the index believes. No lock held; the caller has a
 * reference. */
static enum store_miss recheck(const struct store *s, struct entry *e)
{
    struct record_view v;
    enum store_miss why = header_check(s, e, &v);
    if (why != STORE_MISS_NEVER) return why;
    if (v.layout.record_bytes != e->layout.record_bytes) return STORE_MISS_CORRUPT;
    e->header_ok = 1;
    return STORE_MISS_NEVER;
}

static void drop_bad(struct store *s, struct entry *e, enum store_miss why)
{
    pthread_mutex_lock(&s->m);
    if (entry_drop(s, e, why, false)) {
        s->stats.corrupt += why == STORE_MISS_CORRUPT;
        s->stats.expired += why == STORE_MISS_EXPIRED;
    }
    pthread_mutex_unlock(&s->m);
}

enum lookup { LOOKUP_MISS, LOOKUP_HIT, LOOKUP_PENDING, LOOKUP_ABSENT, LOOKUP_AGAIN };

static enum lookup lookup_ram(struct store *s, const struct store_ask *a, struct store_pin *p,
                              bool again, enum store_miss *why)
{
    struct shard *sh = shard_of(s, &a->key);
    double now_s = clock_wall_s();
    enum lookup r = LOOKUP_MISS;
    pthread_mutex_lock(&sh->m);
    struct entry *e = shard_find(sh, &a->key);
    const bool ready = e && e->state == ENTRY_READY;
    bool over = ready && !again && trust_over(s, e);
    bool unchecked = ready && !e->header_ok;
    bool expired = ready && entry_expired(e, (uint64_t)(now_s * 1e3));
    if (!e) {
        r = LOOKUP_ABSENT;
    } else if (e->state == ENTRY_BUILDING) {
        *why = STORE_MISS_BUILDING;
    } else if (e->state == ENTRY_LOADING) {
        attach(sh, e, p);
        r = LOOKUP_PENDING;
    } else if (unchecked || expired) {
        e->refs++;
        r = LOOKUP_AGAIN;
    } else if (!tokens_same(e, a->tok, a->n)) {
        *why = STORE_MISS_TOKENS;
    } else {
        attach(sh, e, p);
        used_now(sh, e, now_s);
        ahead_unread(s, e);
        r = LOOKUP_HIT;
    }
    pthread_mutex_unlock(&sh->m);
    if (r != LOOKUP_AGAIN) return r;
    *why = expired ? STORE_MISS_EXPIRED : recheck(s, e);
    if (*why != STORE_MISS_NEVER) drop_bad(s, e, *why);
    if (over) check_queue(s, e);
    entry_unref(s, e);
    return *why == STORE_MISS_NEVER ? LOOKUP_AGAIN : LOOKUP_MISS;
}

static enum lookup lookup_tiers(struct store *s, const struct store_ask *a, struct store_pin *p,
                                enum store_miss *why)
{
    bool maybe = false;
    for (size_t i = 0; i < s->n_tiers && !maybe; i++)
        maybe = s->tier[i].t->ops->find(s->tier[i].t, &a->key) != 0;
    if (!maybe) {
        side_drop(s, &a->key);
        return LOOKUP_MISS;
    }
    struct entry *e;
    int r = load_enter(s, &a->key, a->n, &e);
    if (r == 0) return LOOKUP_AGAIN;
    if (r < 0) {
        if (r == -ENOSPC || r == -ENOMEM) *why = STORE_MISS_ROOM;
        return LOOKUP_MISS;
    }
    p->e = e;
    e->load.worth_ms = a->worth_ms;
    e->load.op.deadline_ns = p->deadline_ns;
    e->load.op.prio = TIER_DEMAND;
    e->load.op.batch = a->batch;
    (void)load_run(s, e, 0, false); /* if it has ended by now, settling says so */
    return LOOKUP_PENDING;
}

/* ---- records that are read where they lie ---- */

/* On a device, by kernels, without a copy in RAM. The direct tier is asked first. Its header is in
 * host memory, so identity and token ids are verified as in RAM; the groups were when they went
 * there. The copy in RAM, if there is one, is told of the use: what is hot stays there as well, and
 * serves on when running sequences want the device's memory. */
static bool is_asked(struct store *s, const struct store_ask *a, struct tier_gpu_pin *g,
                     struct record_view *v)
{
    if (record_open(tier_gpu_header(g), tier_gpu_layout(g)->header_bytes, v) < 0) {
        (void)s->direct->ops->remove(s->direct, &a->key, true);
        return false;
    }
    return v->desc.ident_hash == s->ident_hash && v->desc.n_tokens == a->n &&
           memcmp(v->tok, a->tok, 4 * a->n) == 0;
}

/* No lock held. 1: the pin has it, verified; 0 not there. */
static int direct_lookup(struct store *s, const struct store_ask *a, struct store_pin *p)
{
    struct tier_gpu_pin *g = NULL;
    struct record_view v;
    if (!s->direct || tier_gpu_pin(s->direct, &a->key, &g) != 1) return 0;
    if (!is_asked(s, a, g, &v)) {
        tier_gpu_unpin(g);
        return 0;
    }
    p->there = g;
    p->s = s;
    p->key = a->key;
    p->dtype = v.desc.dtype;
    p->n_contexts = v.desc.n_contexts;
    p->context_tokens = v.desc.context_tokens;
    p->from = 0;
    pthread_mutex_lock(&s->m);
    s->tier[0].hits++;
    s->tier[0].hit_bytes += v.layout.record_bytes;
    pthread_mutex_unlock(&s->m);
    struct shard *sh = shard_of(s, &a->key);
    pthread_mutex_lock(&sh->m);
    sh->hits++;
    pthread_mutex_unlock(&sh->m);
    return 1;
}

/* The copy in RAM counts as used, once a second at most, as if it had been. */
static void keep_warm(struct store *s, const struct tier_key *k)
{
    struct shard *sh = shard_of(s, k);
    const uint64_t now = clock_ns();
    pthread_mutex_lock(&sh->m);
    struct entry *e = shard_find(sh, k);
    if (!e || e->state != ENTRY_READY || now - e->touched_ns < s->touch_every_ns) {
        pthread_mutex_unlock(&sh->m);
        return;
    }
    e->touched_ns = now;
    e->used_s = clock_wall_s();
    e->refs++;
    held_update(sh, e);
    pthread_mutex_unlock(&sh->m);
    pthread_mutex_lock(&s->m);
    if (e->place == PLACE_ORDER) evict_hit(s->order, &e->node);
    pthread_mutex_unlock(&s->m);
    entry_unref(s, e);
}

/* ---- asking and settling ---- */

static int count_miss(struct store *s, const struct tier_key *k, enum store_miss why,
                      enum store_miss *ret_why)
{
    pthread_mutex_lock(&s->m);
    if (why == STORE_MISS_NEVER) why = ghost_why(&s->ghosts, k);
    s->stats.misses[why]++;
    pthread_mutex_unlock(&s->m);
    *ret_why = why;
    return 0;
}

int store_ask(struct store *s, const struct store_ask *a, struct store_pin **ret,
              enum store_miss *ret_why)
{
    struct store_pin *p = mem_zalloc(sizeof *p);
    if (!p) return -ENOMEM;
    double ms = a->worth_ms > 0 ? 2 * a->worth_ms : ASK_MS_MAX;
    if (ms < GIVE_UP_MS_MIN) ms = GIVE_UP_MS_MIN;
    p->tok = a->tok;
    p->n = a->n;
    p->from = -1;
    if (ms > ASK_MS_MAX) ms = ASK_MS_MAX;
    p->wait_ns = (uint64_t)(ms * 1e6);
    enum store_miss why = STORE_MISS_NEVER;
    if (direct_lookup(s, a, p)) {
        *ret = p;
        p->settled = true;
        return 1;
    }
    enum lookup r = LOOKUP_MISS;
    do {
        r = lookup_ram(s, a, p, r == LOOKUP_AGAIN, &why);
        if (r == LOOKUP_PENDING || r == LOOKUP_ABSENT) p->deadline_ns = clock_ns() + p->wait_ns;
        if (r == LOOKUP_ABSENT) r = lookup_tiers(s, a, p, &why);
    } while (r == LOOKUP_AGAIN);
    if (r == LOOKUP_MISS) {
        mem_free(p);
        return count_miss(s, &a->key, why, ret_why);
    }
    *ret = p;
    if (r == LOOKUP_HIT) {
        p->settled = true;
        return 1;
    }
    struct shard *sh = shard_of(s, &a->key);
    pthread_mutex_lock(&sh->m);
    bool open = p->e->head == 0;
    pthread_mutex_unlock(&sh->m);
    return open ? STORE_ASKING : store_pin_settle(p, 0, ret_why);
}

int store_pin_settle(struct store_pin *p, uint64_t until_ns, enum store_miss *ret_why)
{
    if (p->settled) return 1;
    struct entry *e = p->e;
    struct store *s = e->store;
    struct shard *sh = shard_of(s, &e->desc.key);
    struct tier_key key = e->desc.key;
    bool ours = until_ns == 0 || until_ns >= p->deadline_ns; /* else the caller's patience ended */
    uint64_t until = ours ? p->deadline_ns : until_ns;
    enum store_miss why = STORE_MISS_NEVER;
    pthread_mutex_lock(&sh->m);
    while (e->head == 0 && shard_wait(sh, until)) {
    }
    if (e->head == 0) {
        why = STORE_MISS_DEADLINE;
        p->timed_out = ours;
    } else if (e->head < 0) {
        why = e->why;
    } else if (!tokens_same(e, p->tok, p->n)) {
        why = STORE_MISS_TOKENS;
    } else {
        used_now(sh, e, clock_wall_s());
        p->from = e->from;
        p->settled = true;
    }
    pthread_mutex_unlock(&sh->m);
    if (!p->settled) {
        store_pin_release(p);
        return count_miss(s, &key, why, ret_why);
    }
    pthread_mutex_lock(&s->m);
    s->tier[p->from].hits++;
    s->tier[p->from].hit_bytes += e->layout.record_bytes;
    pthread_mutex_unlock(&s->m);
    return 1;
}

int store_lookup(struct store *s, const struct tier_key *k, const int32_t *tok, size_t n,
                 struct store_pin **ret, enum store_miss *ret_why)
{
    struct store_ask a = {.key = *k, .tok = tok, .n = n};
    struct store_pin *p = NULL;
    int r = store_ask(s, &a, &p, ret_why);
    if (r == STORE_ASKING) r = store_pin_settle(p, 0, ret_why);
    if (r == 1) *ret = p;
    return r;
}

int store_where(struct store *s, const struct tier_key *k)
{
    struct shard *sh = shard_of(s, k);
    pthread_mutex_lock(&sh->m);
    const struct entry *e = shard_find(sh, k);
    bool found = e && (e->state == ENTRY_READY || (e->state == ENTRY_LOADING && e->head == 1)) &&
                 !entry_expired(e, wall_ms());
    bool taken = e != NULL;
    pthread_mutex_unlock(&sh->m);
    if (found) return 0;
    for (size_t i = 0; i < s->n_tiers && !taken; i++) {
        struct tier *t = s->tier[i].t;
        if (!t->shared && t->ops->find(t, k) == 1) return 1 + (int)i;
    }
    return -ENOENT;
}

bool store_in_ram(struct store *s, const struct tier_key *k)
{
    struct shard *sh = shard_of(s, k);
    pthread_mutex_lock(&sh->m);
    const struct entry *e = shard_find(sh, k);
    bool here = e && e->state == ENTRY_READY && !entry_expired(e, wall_ms());
    pthread_mutex_unlock(&sh->m);
    return here;
}

/* ---- pins ---- */

/* Until the part is here, or can no longer come. */
static int part_wait(struct store_pin *p, uint32_t part)
{
    struct entry *e = p->e;
    if (e->part_ok[part]) return 0;
    struct shard *sh = shard_of(e->store, &e->desc.key);
    int r = 0;
    pthread_mutex_lock(&sh->m);
    while (!e->part_ok[part] && e->status == 0 && shard_wait(sh, p->deadline_ns)) {
    }
    if (!e->part_ok[part]) {
        r = e->status;
        if (r == 0) {
            p->timed_out = true;
            r = -ETIMEDOUT;
        }
    }
    pthread_mutex_unlock(&sh->m);
    return r;
}

int pin_wait_whole(struct store_pin *p)
{
    struct entry *e = p->e;
    struct shard *sh = shard_of(e->store, &e->desc.key);
    pthread_mutex_lock(&sh->m);
    while (e->state == ENTRY_LOADING && shard_wait(sh, p->deadline_ns)) {
    }
    p->timed_out = e->state == ENTRY_LOADING;
    int r = e->state == ENTRY_READY ? 0 : -EIO;
    pthread_mutex_unlock(&sh->m);
    return r;
}

/* The device's memory went to a sequence: on with the copy in RAM, if there is one. */
static bool fall_back(struct store_pin *p)
{
    struct store *s = p->s;
    struct shard *sh = shard_of(s, &p->key);
    pthread_mutex_lock(&sh->m);
    struct entry *e = shard_find(sh, &p->key);
    bool here =
        e && e->state == ENTRY_READY &&
        record_same(e->part[0], tier_gpu_header(p->there)); /* never a mix of two versions */
    if (here) attach(sh, e, p);
    bool over = here && trust_over(s, e);
    pthread_mutex_unlock(&sh->m);
    if (!here) return false;
    if (over) check_queue(s, e);
    tier_gpu_unpin(p->there);
    p->there = NULL;
    p->from = -1;
    p->deadline_ns = clock_ns() + p->wait_ns;
    return true;
}

int store_pin_layer(struct store_pin *p, unsigned layer, const void **ret_k, const void **ret_v)
{
    if (p->there) {
        const struct record_layout *l = tier_gpu_layout(p->there);
        void *group;
        if (layer < 1 || layer > l->n_groups) return -EINVAL;
        int r = tier_gpu_group(p->there, layer - 1, &group);
        if (r == 0) {
            *ret_k = group;
            *ret_v = (uint8_t *)group + l->group_bytes / 2;
        }
        if (r != -ECANCELED) return r;
        if (!fall_back(p)) return -EIO; /* it had to make way */
    }
    struct entry *e = p->e;
    if (layer < 1 || layer > e->layout.n_groups) return -EINVAL;
    int r = part_wait(p, record_part_of(&e->layout, layer - 1));
    if (r < 0) return r;
    _Atomic uint8_t *ok = &e->group_ok[layer - 1];
    if (atomic_load_explicit(ok, memory_order_acquire) != GROUP_OK) {
        r = group_check(e->store, e, layer - 1);
        if (r < 0) {
            entry_reject(e, r, true);
            return -EBADMSG;
        }
        atomic_store_explicit(ok, GROUP_OK, memory_order_release);
    }
    const uint8_t *k = record_group(e->part, &e->layout, layer - 1);
    *ret_k = k;
    *ret_v = k + e->layout.group_bytes / 2;
    return 0;
}

int store_pin_ready(struct store_pin *p, unsigned layer)
{
    if (p->there) return 1;
    struct entry *e = p->e;
    if (layer < 1 || layer > e->layout.n_groups) return -EINVAL;
    if (e->part_ok[record_part_of(&e->layout, layer - 1)]) return 1;
    struct shard *sh = shard_of(e->store, &e->desc.key);
    pthread_mutex_lock(&sh->m);
    int r = e->status;
    pthread_mutex_unlock(&sh->m);
    return r == 0 && clock_ns() >= p->deadline_ns ? -ETIMEDOUT : r;
}

enum kn_dtype store_pin_dtype(const struct store_pin *p)
{
    return p->there ? p->dtype : p->e->desc.dtype;
}

const char *store_pin_tier(const struct store_pin *p)
{
    const struct store *s = p->there ? p->s : p->e->store;
    return p->from < 0 ? "ram" : s->tier[p->from].t->name;
}

bool store_pin_load(const struct store_pin *p, struct store_load *ret)
{
    const struct entry *e = p->e;
    const uint64_t end_ns = p->there || p->from < 0 ? 0 : e->load.last_ns;
    if (!end_ns) return false;
    *ret = (struct store_load){e->load.start_ns, end_ns, e->layout.record_bytes};
    return true;
}

uint32_t store_pin_contexts(const struct store_pin *p, uint32_t *ret_tokens)
{
    if (ret_tokens) *ret_tokens = p->there ? p->context_tokens : p->e->desc.context_tokens;
    return p->there ? p->n_contexts : p->e->desc.n_contexts;
}

int store_pin_scores(const struct store_pin *p, float *ret)
{
    const struct record_layout *l = p->there ? tier_gpu_layout(p->there) : &p->e->layout;
    const uint8_t *header = p->there ? tier_gpu_header(p->there) : p->e->part[0];
    if (store_pin_contexts(p, NULL) == 0) return 0;
    memcpy(ret, header + l->score_off, sizeof *ret * p->n);
    return 1;
}

uint64_t store_pin_missing(const struct store_pin *p)
{
    if (p->there) return 0;
    const struct entry *e = p->e;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < e->layout.n_parts; i++)
        if (!e->part_ok[i]) bytes += record_part_bytes(&e->layout, i);
    return bytes;
}

static void pin_end(struct store_pin *p, bool unwanted)
{
    if (p->there) {
        tier_gpu_unpin(p->there);
        keep_warm(p->s, &p->key);
        mem_free(p);
        return;
    }
    struct entry *e = p->e;
    struct store *s = e->store;
    struct shard *sh = shard_of(s, &e->desc.key);
    bool touch = false, last = false;
    side_unref(s, p->side);
    pthread_mutex_lock(&sh->m);
    ASSERT(e->pins > 0);
    e->pins--;
    if (p->timed_out) e->gave_up = true;
    bool abandon = e->pins == 0 && e->state == ENTRY_LOADING && e->gave_up;
    if (e->pins == 0 && e->state == ENTRY_READY && p->settled) {
        uint64_t now = clock_ns();
        /* A direct tier is asked first: a use here says that the record is not there. */
        touch = now - e->touched_ns >= s->touch_every_ns || s->direct;
        if (touch) e->touched_ns = now;
    }
    bool cancel = unwanted && !abandon && e->pins == 0 && e->state == ENTRY_LOADING;
    if (!touch && !abandon && !cancel) {
        last = --e->refs == 0;
        held_update(sh, e);
        ASSERT(!last || e->state == ENTRY_DEAD);
    }
    if (last) e->refs++; /* given back below, under the store's lock */
    pthread_mutex_unlock(&sh->m);
    if (abandon) load_abandon(s, e);
    if (cancel) load_cancel(s, e);
    if (touch) entry_touch(s, e);
    if (touch || abandon || cancel || last) entry_unref(s, e);
    mem_free(p);
}

void store_pin_release(struct store_pin *p)
{
    if (p) pin_end(p, false);
}

void store_pin_cancel(struct store_pin *p)
{
    if (p) pin_end(p, true);
}
