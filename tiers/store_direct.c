/* Records that are read where they lie: on a device, by kernels, without a copy in RAM.
 *
 * A lookup asks the direct tier first. Its header is in host memory, so identity and token ids are
 * verified as in RAM; the groups were when they went there. The copy in RAM, if there is one, is
 * told of the use: what is hot stays there as well, and serves on when running sequences want the
 * device's memory. */
#include "tiers/gpu/gpu.h"
#include "tiers/store_direct.h"

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

int direct_lookup(struct store *s, const struct store_ask *a, struct store_pin *p)
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

int direct_layer(struct store_pin *p, unsigned layer, const void **ret_k, const void **ret_v)
{
    const struct record_layout *l = tier_gpu_layout(p->there);
    void *group;
    if (layer < 1 || layer > l->n_groups) return -EINVAL;
    int r = tier_gpu_group(p->there, layer - 1, &group);
    if (r < 0) return r;
    *ret_k = group;
    *ret_v = (uint8_t *)group + l->group_bytes / 2;
    return 0;
}

int direct_scores(struct store_pin *p, enum record_score kind, float *ret)
{
    struct record_view v;
    uint64_t want = 0;
    if (record_open(tier_gpu_header(p->there), tier_gpu_layout(p->there)->header_bytes, &v) < 0)
        return 0;
    int r = tier_gpu_scores(p->there, kind, v.desc.n_tokens, ret, &want);
    return r == 1 && record_score_hash(kind, ret, v.desc.n_tokens) == want;
}

bool direct_scored(const struct store_pin *p, enum record_score kind)
{
    return tier_gpu_scored(p->there, kind);
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

void direct_end(struct store_pin *p)
{
    tier_gpu_unpin(p->there);
    keep_warm(p->s, &p->key);
}
