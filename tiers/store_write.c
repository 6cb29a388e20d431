/* Records into the store: claims, writers, new versions. */
#include "tiers/store_write.h"

#include "tiers/store_load.h"

/* chosen: longer than a thousand years is for ever, and fits whatever a tier counts in. */
static const uint64_t TTL_MS_MAX = 1000ull * 366 * 86400000;

/* m held. */
static uint64_t ttl_of(const struct store *s, uint64_t ns_hash)
{
    for (size_t i = 0; i < s->ttl.n; i++)
        if (s->ttl.ns[i].ns_hash == ns_hash) return s->ttl.ns[i].ms;
    return s->ttl.others_ms;
}

/* Memory is recycled: header and padding must not carry another record's bytes to a tier. */
static void blank(struct entry *e)
{
    const struct record_layout *l = &e->layout;
    memset(e->part[0], 0, l->header_bytes);
    for (uint32_t i = 0; i < l->n_groups; i++)
        memset(record_group(e->part, l, i) + l->group_bytes, 0, l->group_stride - l->group_bytes);
}

int store_claim(struct store *s, const struct store_new *what, struct store_writer **ret)
{
    struct record_desc d;
    struct record_layout l;
    int r = entry_desc(s, &what->key, what->n, &d, &l);
    if (r < 0) return r;
    d.ns_hash = record_ns_hash(what->ns);
    d.created_ms = wall_ms();
    d.kind = what->kind;
    struct entry *e = entry_create(s, &d, &l, ENTRY_BUILDING);
    if (!e) return -ENOMEM;
    pthread_mutex_lock(&s->m);
    uint64_t ttl_ms = ttl_of(s, d.ns_hash);
    if (ttl_ms > TTL_MS_MAX) ttl_ms = 0;
    if (ttl_ms) e->desc.expires_ms = d.created_ms + ttl_ms;
    if (ttl_ms && !s->expiring) {
        s->expiring = s->work = true;
        pthread_cond_signal(&s->wake);
    }
    r = entry_enter(s, e, l.n_parts);
    if (r == -ENOSPC) s->stats.put_refused++;
    pthread_mutex_unlock(&s->m);
    if (r != 1) {
        mem_free(e);
        return r;
    }
    blank(e);
    record_init(e->part[0], &e->desc, &l, what->tok);
    *ret = (struct store_writer *)e;
    return 1;
}

void store_writer_layer(struct store_writer *w, unsigned layer, void **ret_k, void **ret_v)
{
    struct entry *e = (struct entry *)w;
    ASSERT(layer >= 1 && layer <= e->layout.n_groups);
    uint8_t *k = record_group(e->part, &e->layout, layer - 1);
    *ret_k = k;
    *ret_v = k + e->layout.group_bytes / 2;
}

const struct record_desc *store_writer_desc(const struct store_writer *w)
{
    return &((const struct entry *)w)->desc;
}

float *store_writer_scores(struct store_writer *w)
{
    struct entry *e = (struct entry *)w;
    return (float *)(void *)(e->part[0] + e->layout.score_off);
}

void store_writer_behind(struct store_writer *w, uint32_t n_contexts, uint32_t context_tokens)
{
    struct entry *e = (struct entry *)w;
    e->desc.n_contexts = n_contexts;
    e->desc.context_tokens = context_tokens;
    record_set_contexts(e->part[0], n_contexts, context_tokens);
}

/* -ERANGE: what was computed are no numbers. */
static int seal(const struct store *s, const struct entry *e)
{
    const struct record_desc *d = &e->desc;
    const size_t n = 2 * (size_t)d->n_tokens * d->G * d->K;
    for (uint32_t g = 0; g < e->layout.n_groups && s->finite; g++)
        if (!s->finite(record_group(e->part, &e->layout, g), d->dtype, n, d->K)) return -ERANGE;
    if (s->finite && !scores_finite(e->part[0], &e->layout, d->n_tokens)) return -ERANGE;
    record_seal(e->part, &e->layout);
    return s->auth ? record_sign(s->auth, e->part, &e->layout) : 0;
}

/* ---- a record that is built ---- */

static int commit_new(struct store *s, struct entry *e)
{
    uint8_t want = 0, have = 0;
    for (unsigned i = 0; i < s->n_tiers; i++) {
        struct store_tier *t = &s->tier[i];
        int found = t->t->shared ? 0 : t->t->ops->find(t->t, &e->desc.key);
        *(found == 1 ? &have : &want) |= (uint8_t)(1u << i);
    }
    pthread_mutex_lock(&s->m);
    ASSERT(e->state == ENTRY_BUILDING);
    e->write.want = want;
    e->write.clean = have;
    entry_ready(s, e);
    s->stats.puts++;
    write_queue(s, e, want & s->behind);
    pthread_mutex_unlock(&s->m);
    return 0;
}

/* ---- a new version of one ---- */

/* Is apart from the index until it is committed. */
static bool is_revision(const struct entry *e)
{
    return e->state == ENTRY_DEAD;
}

void revisions_cancel(struct store *s, const struct tier_key *k, const uint64_t *ns_hash)
{
    for (struct entry_link *l = s->revisions.next; l != &s->revisions; l = l->next) {
        struct entry *e = LINK_ENTRY(l, loads);
        if (k && !tier_key_same(&e->desc.key, k)) continue;
        if (ns_hash && e->desc.ns_hash != *ns_hash) continue;
        e->cancel = 1;
    }
}

int store_revise(struct store *s, const struct tier_key *k, struct store_writer **ret)
{
    struct entry *old = entry_hold(s, k), *e = NULL;
    if (!old) return 0;
    int r = entry_expired(old, wall_ms()) ? -ENOENT : codec_copy(s, old, s->ident.dtype, true, &e);
    if (r == -EBADMSG || r == -EKEYREJECTED) entry_reject(old, r, r == -EKEYREJECTED);
    entry_unref(s, old);
    *ret = (struct store_writer *)e;
    if (r < 0) return r == -ENOENT ? 0 : r == -EKEYREJECTED ? -EBADMSG : r;
    return 1;
}

/* m held. Into the index, in place of the version that is there: a lookup finds one of the two. */
static void take_over(struct store *s, struct entry *e, struct entry *old)
{
    struct shard *sh = shard_of(s, &e->desc.key);
    link_remove(&e->loads);
    pthread_mutex_lock(&sh->m);
    const bool pinned = old && old->admin_pinned;
    const uint64_t hits = old ? old->hits : 0; /* e's own may grow as soon as it is found */
    const double used_s = old ? old->used_s : clock_wall_s();
    e->hits = hits;
    e->admin_pinned = pinned;
    e->refs++;
    e->state = ENTRY_READY;
    if (old) key_map_remove(&sh->index, &old->in_index);
    key_map_insert(&sh->index, &e->in_index);
    pthread_mutex_unlock(&sh->m);
    if (pinned) {
        s->stats.n_pinned++;
        s->stats.pinned_bytes += e->cost.all_bytes;
    }
    if (old) {
        e->probation = old->place == PLACE_PROBATION;
        if (s->direct) old->write.purge |= old->write.under_way & 1;
        (void)entry_drop(s, old, STORE_MISS_NEVER, false);
    }
    entry_ready(s, e);
    if (hits > 1 && e->place == PLACE_ORDER) evict_hit(s->order, &e->node);
    pthread_mutex_lock(&sh->m);
    e->used_s = used_s; /* a new version is no use */
    pthread_mutex_unlock(&sh->m);
}

static int commit_revision(struct store *s, struct entry *e)
{
    pthread_mutex_lock(&s->m);
    struct entry *old = entry_find(s, &e->desc.key);
    int r = e->cancel || entry_expired(e, wall_ms()) ? -ENOENT
            : old && old->state != ENTRY_READY       ? -EBUSY
                                                     : 0;
    if (r == 0) {
        e->write.want = e->write.replace = (uint8_t)((1u << s->n_tiers) - 1);
        take_over(s, e, old);
        write_queue(s, e, e->write.want & s->behind);
    }
    pthread_mutex_unlock(&s->m);
    if (r < 0)
        side_drop(s, &e->desc.key); /* it is of this version */
    else if (s->direct)
        (void)s->direct->ops->remove(s->direct, &e->desc.key, true);
    entry_unref(s, e);
    return r;
}

int store_commit(struct store_writer *w)
{
    struct entry *e = (struct entry *)w;
    struct store *s = e->store;
    int r = seal(s, e);
    if (r < 0) {
        store_abort(w);
        return r;
    }
    for (uint32_t i = 0; i < e->layout.n_parts; i++)
        e->part_ok[i] = 1;
    side_keep(s, e);
    return is_revision(e) ? commit_revision(s, e) : commit_new(s, e);
}

void store_abort(struct store_writer *w)
{
    if (!w) return;
    struct entry *e = (struct entry *)w;
    struct store *s = e->store;
    if (is_revision(e)) {
        entry_unref(s, e);
        return;
    }
    pthread_mutex_lock(&s->m);
    ASSERT(e->state == ENTRY_BUILDING);
    (void)entry_drop(s, e, STORE_MISS_NEVER, false);
    pthread_mutex_unlock(&s->m);
}
