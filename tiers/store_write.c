/* Records into the store: claims, writers, scores. */
#include "tiers/store_write.h"

#include "tiers/store_entry.h"

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

/* -ERANGE: what was computed are no numbers. */
static int seal(const struct store *s, const struct entry *e)
{
    const struct record_desc *d = &e->desc;
    const size_t n = 2 * (size_t)d->n_tokens * d->G * d->K;
    for (uint32_t g = 0; g < e->layout.n_groups && s->finite; g++)
        if (!s->finite(record_group(e->part, &e->layout, g), d->dtype, n, d->K)) return -ERANGE;
    record_seal(e->part, &e->layout);
    return s->auth ? record_sign(s->auth, e->part, &e->layout) : 0;
}

int store_commit(struct store_writer *w)
{
    struct entry *e = (struct entry *)w;
    struct store *s = e->store;
    uint8_t want = 0, have = 0;
    int r = seal(s, e);
    if (r < 0) {
        store_abort(w);
        return r;
    }
    for (uint32_t i = 0; i < e->layout.n_parts; i++)
        e->part_ok[i] = 1;
    side_keep(s, e);
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
    write_queue(s, e, want & s->behind, false);
    pthread_mutex_unlock(&s->m);
    return 0;
}

void store_abort(struct store_writer *w)
{
    if (!w) return;
    struct entry *e = (struct entry *)w;
    struct store *s = e->store;
    pthread_mutex_lock(&s->m);
    ASSERT(e->state == ENTRY_BUILDING);
    (void)entry_drop(s, e, STORE_MISS_NEVER, false);
    pthread_mutex_unlock(&s->m);
}

void scores_write(struct entry *e, enum record_score kind, const float *score,
                  const struct record_score_sum *sum)
{
    record_set_scores(e->part[0], &e->layout, kind, score, e->desc.n_tokens, sum->hash);
    record_set_score_tag(e->part[0], &e->layout, kind, sum->tag);
    e->scored[kind] = true;
}

/* m and the shard's lock held. While a tier reads the header its bytes stay as they are. */
static int scores_put(struct entry *e, enum record_score kind, const float *score, uint32_t n,
                      const struct record_score_sum *sum)
{
    if (n != e->desc.n_tokens) return -EINVAL;
    if (e->write.under_way) {
        float *later = mem_alloc(4ull * n);
        if (!later) return -ENOMEM;
        memcpy(later, score, 4ull * n);
        mem_free(e->scores_later[kind].score);
        e->scores_later[kind] = (struct entry_scores){later, *sum};
        return 1;
    }
    scores_write(e, kind, score, sum);
    return 1;
}

int store_set_scores(struct store *s, const struct tier_key *k, enum record_score kind,
                     const float *score, size_t n)
{
    if (n == 0 || n > RECORD_TOKENS_MAX) return -EINVAL;
    struct shard *sh = shard_of(s, k);
    struct record_score_sum sum;
    int r = record_score_sum(s->auth, k, kind, score, (uint32_t)n, &sum);
    if (r < 0) return r;
    pthread_mutex_lock(&s->m);
    pthread_mutex_lock(&sh->m);
    struct entry *e = shard_find(sh, k);
    if (e && e->state == ENTRY_READY) r = scores_put(e, kind, score, (uint32_t)n, &sum);
    pthread_mutex_unlock(&sh->m);
    if (r == 1 && !e->write.under_way) write_queue(s, e, e->write.clean, true);
    pthread_mutex_unlock(&s->m);
    return r;
}
