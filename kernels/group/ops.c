/* A group's operations: the ranks' own, one after the other, of what each of them has.
 *
 * Sums need no scratch: the first rank adds its part to what is there, the others write theirs over
 * it, and the sum over the ranks is what all of them have then (reduce()). */
#include "base/mem.h"
#include "kernels/group/group.h"

#include <string.h>

#define EACH_RANK(d, i)                                                                            \
    for (unsigned i = 0; r == 0 && i < (d)->n && ((d)->ops->rank->use((d)->rank[i]), true); i++)

static int reduce(struct kn_dev *d, float *x, size_t n)
{
    float *at[KN_RANKS_MAX];
    for (unsigned i = 0; i < d->n; i++)
        at[i] = group_whole(d, i, x);
    return d->ops->rank->team_sum(d->team, at, n);
}

static int clear(const struct kn_stream *st, unsigned i, float *x, size_t n)
{
    return st->dev->ops->rank->clear(st->rank[i], x, n * sizeof *x);
}

/* All but the first rank begin with nothing. */
static int clear_others(const struct kn_stream *st, unsigned i, float *x, size_t n)
{
    return i > 0 ? clear(st, i, x, n) : 0;
}

/* ---- products ---- */

/* Rank i's part of a product: what it reads and writes is whole or shared as the weight is. */
static struct kn_gemm_args product_of(const struct kn_dev *d, unsigned i,
                                      const struct kn_gemm_args *a)
{
    const bool heads = a->w->split == KN_SPLIT_HEADS, sum = a->w->split == KN_SPLIT_SUM;
    struct kn_gemm_args g = *a;
    g.w = a->w->rank[i];
    g.a = (sum ? group_share : group_whole)(d, i, a->a);
    g.lda = sum ? a->lda / d->n : a->lda;
    g.c = (heads ? group_share : group_whole)(d, i, a->c);
    g.ldc = heads ? a->ldc / d->n : a->ldc;
    g.bias = (heads ? group_share : group_whole)(d, i, a->bias);
    if (sum && i > 0) g.bias = NULL, g.accumulate = false;
    if (a->w->split == KN_SPLIT_VOCAB) g.c += i * (a->w->n / d->n);
    return g;
}

static int gemm_each(struct kn_stream *st, const struct kn_gemm_args *a)
{
    struct kn_dev *d = st->dev;
    const bool vocab = a->w->split == KN_SPLIT_VOCAB, adds = vocab || a->w->split == KN_SPLIT_SUM;
    int r = 0;
    if (a->m == 0) return 0;
    if (!a->w->rank[0] || (adds && a->ldc != a->w->n)) return -EINVAL;
    if (vocab && (a->bias || a->accumulate)) return -EINVAL;
    EACH_RANK(d, i)
    {
        const struct kn_gemm_args g = product_of(d, i, a);
        if (vocab) r = clear(st, i, group_whole(d, i, a->c), a->m * a->ldc);
        if (r == 0) r = d->ops->row->gemm(st->rank[i], &g);
    }
    return r == 0 && adds ? reduce(d, a->c, a->m * a->ldc) : r;
}

int group_embed(struct kn_stream *st, const struct kn_mat *w, const int32_t *id, size_t m,
                float *out, size_t ldo)
{
    struct kn_dev *d = st->dev;
    int r = w->split == KN_SPLIT_NONE ? 0 : -EINVAL;
    EACH_RANK(d, i)
    r = d->ops->gpu->embed(st->rank[i], w->rank[i], group_whole(d, i, id), m,
                           group_whole(d, i, out), ldo);
    return r;
}

/* The rank's experts, found by number as the caller's are; kept with the router. */
static int experts_of(const struct kn_moe *e, unsigned i, struct kn_moe *ret)
{
    struct kn_mat ***at = &e->router->experts[i];
    if (!*at && !(*at = mem_zalloc(2 * e->n * sizeof **at))) return -ENOMEM;
    *ret = *e;
    ret->router = e->router->rank[i];
    ret->gate_up = *at;
    ret->down = *at + e->n;
    for (unsigned x = 0; x < e->n; x++) {
        ret->gate_up[x] = e->gate_up[x] ? e->gate_up[x]->rank[i] : NULL;
        ret->down[x] = e->down[x] ? e->down[x]->rank[i] : NULL;
    }
    if (!e->shared_down) return 0;
    ret->shared_gate_up = e->shared_gate_up->rank[i];
    ret->shared_down = e->shared_down->rank[i];
    return 0;
}

/* Every rank routes all rows alike, and has a share of each expert's width. */
static int moe_each(struct kn_stream *st, const struct kn_moe *e, const float *h, size_t m,
                    float *x, bool accumulate)
{
    struct kn_dev *d = st->dev;
    int r = 0;
    EACH_RANK(d, i)
    {
        struct kn_moe own;
        if ((r = experts_of(e, i, &own)) < 0) break;
        own.router_bias = group_whole(d, i, e->router_bias);
        own.gate_up_bias = group_share(d, i, e->gate_up_bias);
        own.down_bias = i == 0 ? group_whole(d, i, e->down_bias) : NULL;
        r = d->ops->row->moe(st->rank[i], &own, group_whole(d, i, h), m, group_whole(d, i, x),
                             accumulate && i == 0);
    }
    return r == 0 ? reduce(d, x, m * e->router->k) : r;
}

/* ---- rows that every rank has ---- */

static int gather_each(struct kn_stream *st, const float *x, const int32_t *idx, size_t m, size_t n,
                       float *out)
{
    struct kn_dev *d = st->dev;
    int r = 0;
    EACH_RANK(d, i)
    r = d->ops->row->gather(st->rank[i], group_whole(d, i, x), group_whole(d, i, idx), m, n,
                            group_whole(d, i, out));
    return r;
}

/* To the host from the first rank. */
static int copy_each(struct kn_stream *st, void *dst, const void *src, size_t bytes)
{
    struct kn_dev *d = st->dev;
    const bool heads = group_is_heads(d, dst) || group_is_heads(d, src);
    int r = heads && !(group_owns(dst) && group_owns(src)) ? -EINVAL : 0;
    EACH_RANK(d, i)
    {
        if (!group_owns(dst) && i > 0) break;
        r = heads ? d->ops->row->copy(st->rank[i], group_share(d, i, dst), group_share(d, i, src),
                                      bytes / d->n)
                  : d->ops->row->copy(st->rank[i], group_whole(d, i, dst), group_whole(d, i, src),
                                      bytes);
    }
    return r;
}

/* Where rows become the operand of a product that reads a share of them, this makes as many of
 * their columns: only benches do (rate.c), which want any values. */
static size_t width_of(const struct kn_stream *st, const float *out, size_t D)
{
    const size_t area = group_owns(out) ? group_area_of(out) : KN_SLOTS;
    return area < KN_SLOTS && st->shared[area] ? D / st->dev->n : D;
}

static int rmsnorm_each(struct kn_stream *st, const float *x, size_t ldx, size_t m, size_t D,
                        const float *weight, float eps, float *out, size_t ldo)
{
    struct kn_dev *d = st->dev;
    const size_t n = width_of(st, out, D);
    int r = 0;
    EACH_RANK(d, i)
    r = d->ops->row->rmsnorm(st->rank[i], group_whole(d, i, x), ldx, m, n,
                             group_whole(d, i, weight), eps, group_whole(d, i, out), ldo / (D / n));
    return r;
}

static int rmsnorm_add_each(struct kn_stream *st, const float *x, size_t ldx, size_t m, size_t D,
                            const float *weight, float eps, float *out, size_t ldo)
{
    struct kn_dev *d = st->dev;
    int r = 0;
    EACH_RANK(d, i)
    r = d->ops->row->rmsnorm_add(st->rank[i], group_whole(d, i, x), ldx, m, D,
                                 group_whole(d, i, weight), eps, group_whole(d, i, out), ldo);
    return r;
}

static int layernorm_each(struct kn_stream *st, const float *x, size_t ldx, size_t m, size_t D,
                          const float *weight, const float *bias, float eps, float *out, size_t ldo)
{
    struct kn_dev *d = st->dev;
    int r = 0;
    EACH_RANK(d, i)
    r = d->ops->row->layernorm(st->rank[i], group_whole(d, i, x), ldx, m, D,
                               group_whole(d, i, weight), group_whole(d, i, bias), eps,
                               group_whole(d, i, out), ldo);
    return r;
}

/* ---- rows of heads, and of the feed-forward part: each rank its own columns ---- */

static int rmsnorm_heads_each(struct kn_stream *st, float *x, size_t ldx, size_t m, size_t heads,
                              size_t K, const float *weight, float eps)
{
    struct kn_dev *d = st->dev;
    int r = heads % d->n ? -EINVAL : 0;
    EACH_RANK(d, i)
    r = d->ops->row->rmsnorm_heads(st->rank[i], group_share(d, i, x), ldx / d->n, m, heads / d->n,
                                   K, group_whole(d, i, weight), eps);
    return r;
}

static int glu_each(struct kn_stream *st, enum kn_act act, const float *gate_up, size_t ldg,
                    size_t m, size_t F, float *out, size_t ldo)
{
    struct kn_dev *d = st->dev;
    int r = F % d->n ? -EINVAL : 0;
    EACH_RANK(d, i)
    r = d->ops->row->glu(st->rank[i], act, group_share(d, i, gate_up), ldg / d->n, m, F / d->n,
                         group_share(d, i, out), ldo / d->n);
    return r;
}

static struct kn_rope rope_of(const struct kn_dev *d, unsigned i, const struct kn_rope *p)
{
    struct kn_rope own = *p;
    own.cos = group_whole(d, i, p->cos);
    own.sin = group_whole(d, i, p->sin);
    return own;
}

/* What the host reaches is not shared out: the first rank has all of it. */
static int rope_each(struct kn_stream *st, const struct kn_rope *p, float *x, size_t ldx, size_t m,
                     size_t heads, const int32_t *pos)
{
    struct kn_dev *d = st->dev;
    const unsigned by = group_owns(x) ? d->n : 1;
    int r = heads % by ? -EINVAL : 0;
    EACH_RANK(d, i)
    {
        if (i >= by) break;
        const struct kn_rope own = rope_of(d, i, p);
        r = d->ops->row->rope(st->rank[i], &own, group_share(d, i, x), ldx / by, m, heads / by,
                              group_whole(d, i, pos));
    }
    return r;
}

/* ---- pages ---- */

static struct kn_kv kv_of(const struct kn_dev *d, unsigned i, const struct kn_kv *kv)
{
    struct kn_kv own = *kv;
    own.base = group_share(d, i, kv->base);
    own.page_stride /= d->n;
    own.layer_stride /= d->n;
    own.pages = group_whole(d, i, kv->pages);
    own.each = group_whole(d, i, kv->each);
    own.G /= d->n;
    own.each_shift = (const int32_t *)(const void *)d->area[GROUP_TABLES].base[i] -
                     (const int32_t *)group_address(GROUP_TABLES, 0);
    return own;
}

static int kv_put_each(struct kn_stream *st, const struct kn_kv *kv, unsigned layer,
                       const int32_t *pos, size_t m, const float *k, size_t ldk, const float *v,
                       size_t ldv)
{
    struct kn_dev *d = st->dev;
    int r = kv->G % d->n ? -EINVAL : 0;
    EACH_RANK(d, i)
    {
        const struct kn_kv own = kv_of(d, i, kv);
        r = d->ops->row->kv_put(st->rank[i], &own, layer, group_whole(d, i, pos), m,
                                group_share(d, i, k), ldk / d->n, group_share(d, i, v), ldv / d->n);
    }
    return r;
}

static int rope_put_each(struct kn_stream *st, const struct kn_kv *kv, unsigned layer,
                         const struct kn_rotation *to, const int32_t *pos, size_t m, float *k,
                         size_t ldk, const float *v, size_t ldv)
{
    struct kn_dev *d = st->dev;
    int r = kv->G % d->n ? -EINVAL : 0;
    EACH_RANK(d, i)
    {
        const struct kn_kv own = kv_of(d, i, kv);
        const struct kn_rope rope = rope_of(d, i, to->rope);
        const struct kn_rotation turned = {&rope, group_whole(d, i, to->pos)};
        r = d->ops->row->rope_put(st->rank[i], &own, layer, &turned, group_whole(d, i, pos), m,
                                  group_share(d, i, k), ldk / d->n, group_share(d, i, v),
                                  ldv / d->n);
    }
    return r;
}

/* A rank's heads of stored rows: what kn_stage() brought is its own, in the host's memory they
 * stand between the others'. */
static const void *stored_at(const struct kn_dev *d, unsigned i, const void *p, size_t share)
{
    if (!p || group_owns(p)) return group_share(d, i, p);
    return (const char *)p + i * share;
}

static struct kn_stored stored_of(const struct kn_dev *d, unsigned i, const struct kn_stored *s,
                                  unsigned G, unsigned K)
{
    const size_t row = kn_row_bytes(s->t, G, K);
    struct kn_stored own = *s;
    own.k = stored_at(d, i, s->k, row / d->n);
    own.v = stored_at(d, i, s->v, row / d->n);
    own.stride = group_owns(s->k) ? 0 : row;
    return own;
}

static int kv_load_each(struct kn_stream *st, const struct kn_kv *kv, unsigned layer,
                        const struct kn_rope *p, const struct kn_stored *piece, size_t n_pieces)
{
    struct kn_dev *d = st->dev;
    struct kn_stored own[KN_PIECES];
    int r = kv->G % d->n ? -EINVAL : 0;
    EACH_RANK(d, i)
    {
        const struct kn_kv to = kv_of(d, i, kv);
        const struct kn_rope turned = p ? rope_of(d, i, p) : (struct kn_rope){0};
        for (size_t j = 0; j < n_pieces; j++)
            own[j] = stored_of(d, i, &piece[j], kv->G, kv->K);
        r = d->ops->row->kv_load(st->rank[i], &to, layer, p ? &turned : NULL, own, n_pieces);
    }
    return r;
}

/* Whoever finds what does not fit says so: in memory that all of them reach. */
static int encode_rows_each(struct kn_stream *st, const float *x, size_t ldx, size_t m, size_t n,
                            size_t K, enum kn_dtype t, void *out, int *bad)
{
    struct kn_dev *d = st->dev;
    const size_t row = kn_row_bytes(t, n / K, K);
    int r = n / K % d->n || group_owns(out) ? -EINVAL : 0;
    EACH_RANK(d, i)
    r = d->ops->rank->encode_rows(st->rank[i], group_share(d, i, x), ldx / d->n, m, n / d->n, K, t,
                                  (char *)out + i * (row / d->n), row, bad);
    return r;
}

/* ---- attention ---- */

static struct kn_attn_args attn_of(const struct kn_dev *d, unsigned i, const struct kn_attn_args *a,
                                   const struct kn_kv *kv)
{
    struct kn_attn_args own = *a;
    own.kv = kv;
    own.q = group_share(d, i, a->q);
    own.ldq = a->ldq / d->n;
    own.pos = group_whole(d, i, a->pos);
    own.H = a->H / d->n;
    own.sink = group_share(d, i, a->sink);
    own.out = group_share(d, i, a->out);
    own.ldo = a->ldo / d->n;
    own.lse = group_share(d, i, a->lse);
    return own;
}

static int attn_each(struct kn_stream *st, const struct kn_attn_args *a)
{
    struct kn_dev *d = st->dev;
    int r = a->kv->G % d->n ? -EINVAL : 0;
    EACH_RANK(d, i)
    {
        const struct kn_kv kv = kv_of(d, i, a->kv);
        struct kn_attn_args own = attn_of(d, i, a, &kv);
        const struct kn_rope rope = a->to.rope ? rope_of(d, i, a->to.rope) : (struct kn_rope){0};
        if (a->to.rope) own.to = (struct kn_rotation){&rope, group_whole(d, i, a->to.pos)};
        r = d->ops->row->attn(st->rank[i], &own);
    }
    return r;
}

static int attn_mass_each(struct kn_stream *st, const struct kn_attn_args *a, float *mass,
                          size_t key0, size_t n_keys)
{
    struct kn_dev *d = st->dev;
    int r = a->kv->G % d->n ? -EINVAL : 0;
    EACH_RANK(d, i)
    {
        const struct kn_kv kv = kv_of(d, i, a->kv);
        const struct kn_attn_args own = attn_of(d, i, a, &kv);
        float *to = group_whole(d, i, mass);
        r = clear_others(st, i, to + key0, n_keys);
        if (r == 0) r = d->ops->row->attn_mass(st->rank[i], &own, to, key0, n_keys);
    }
    return r == 0 ? reduce(d, mass + key0, n_keys) : r;
}

/* Positions of no row keep what they have: the first rank alone has it when they are added up. */
static int deviation_each(struct kn_stream *st, const float *a, size_t lda, const int32_t *pos,
                          size_t m, const struct kn_stored *piece, size_t n_pieces, unsigned G,
                          unsigned K, float *ret)
{
    struct kn_dev *d = st->dev;
    struct kn_stored own[KN_PIECES];
    size_t lo = SIZE_MAX, hi = 0;
    int r = G % d->n ? -EINVAL : 0;
    for (size_t j = 0; j < n_pieces; j++) {
        const size_t at = (size_t)piece[j].pos0, end = at + piece[j].n;
        lo = at < lo ? at : lo;
        hi = end > hi ? end : hi;
    }
    EACH_RANK(d, i)
    {
        float *to = group_whole(d, i, ret);
        for (size_t j = 0; j < n_pieces; j++)
            own[j] = stored_of(d, i, &piece[j], G, K);
        r = clear_others(st, i, to + lo, hi - lo);
        if (r == 0)
            r = d->ops->row->deviation(st->rank[i], group_share(d, i, a), lda / d->n,
                                       group_whole(d, i, pos), m, own, n_pieces, G / d->n, K, to);
    }
    return r == 0 ? reduce(d, ret + lo, hi - lo) : r;
}

/* ---- behind them nobody but the host reads: the first rank's alone ---- */

static int softcap_first(struct kn_stream *st, float *x, size_t ldx, size_t m, size_t n, float cap)
{
    struct kn_dev *d = st->dev;
    d->ops->rank->use(d->rank[0]);
    return d->ops->row->softcap(st->rank[0], group_whole(d, 0, x), ldx, m, n, cap);
}

static int edit_first(struct kn_stream *st, float *x, size_t ldx, size_t m, size_t n,
                      const struct kn_edit *list, size_t stride, const uint32_t *n_edits)
{
    struct kn_dev *d = st->dev;
    d->ops->rank->use(d->rank[0]);
    return d->ops->row->edit(st->rank[0], group_whole(d, 0, x), ldx, m, n, group_whole(d, 0, list),
                             stride, group_whole(d, 0, n_edits));
}

static int draw_first(struct kn_stream *st, const float *x, size_t ldx, size_t m, size_t n,
                      const struct kn_draw *how, int32_t *ret)
{
    struct kn_dev *d = st->dev;
    d->ops->rank->use(d->rank[0]);
    return d->ops->row->draw(st->rank[0], group_whole(d, 0, x), ldx, m, n, group_whole(d, 0, how),
                             group_whole(d, 0, ret));
}

static int top_first(struct kn_stream *st, const float *score, const int32_t *idx, size_t n,
                     size_t k, int32_t *ret)
{
    struct kn_dev *d = st->dev;
    d->ops->rank->use(d->rank[0]);
    return d->ops->row->top(st->rank[0], group_whole(d, 0, score), group_whole(d, 0, idx), n, k,
                            group_whole(d, 0, ret));
}

const struct kn_row_ops group_row_ops = {.gemm = gemm_each,
                                         .gather = gather_each,
                                         .copy = copy_each,
                                         .rmsnorm = rmsnorm_each,
                                         .rmsnorm_add = rmsnorm_add_each,
                                         .rmsnorm_heads = rmsnorm_heads_each,
                                         .layernorm = layernorm_each,
                                         .glu = glu_each,
                                         .softcap = softcap_first,
                                         .rope = rope_each,
                                         .kv_put = kv_put_each,
                                         .rope_put = rope_put_each,
                                         .kv_load = kv_load_each,
                                         .encode_rows = encode_rows_each,
                                         .attn = attn_each,
                                         .attn_mass = attn_mass_each,
                                         .deviation = deviation_each,
                                         .edit = edit_first,
                                         .draw = draw_first,
                                         .top = top_first,
                                         .moe = moe_each};
