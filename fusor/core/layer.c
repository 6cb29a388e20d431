/* layer: the two halves of a transformer layer over a set of rows.
 *
 * Phase A projects K and V of every row and writes them to the pages; phase B does everything else.
 * They are two parallel sections because a row of B sees keys of all rows of A; inside a section
 * each block of rows runs through all operations on one thread, so activations stay in its cache.
 * On a GPU one run has all rows: where both halves have the same ones they are a section (`joint`),
 * and Q, K and V one product. */
#include "fusor/core/core_int.h"

#include "base/assert.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

enum { SLOT_H, SLOT_KV, SLOT_Q, SLOT_ATT /* of one run */, SLOT_GU, SLOT_ACT, SLOT_LSE, SLOT_POST };

typedef int (*section_fn)(struct kn_dev *d, size_t n, const atomic_bool *cancel, kn_rows_fn fn,
                          void *arg);

/* Chosen: two threads gain a sixth at 4096 * 14336 and lose up to a tenth at 576 * 1536. */
enum { LARGE_WEIGHT = 1 << 23 };

/* Few rows run as one block, whatever the section. */
static int run_rows(const struct fus_phase *p, size_t n, section_fn section, kn_rows_fn fn,
                    void *arg)
{
    struct kn_dev *d = p->core->dev;
    const struct model_cfg *g = &p->core->cfg;
    const bool large = (size_t)g->D * g->F >= LARGE_WEIGHT;
    const size_t wide = large ? kn_info(d)->wide_rows_large : kn_info(d)->wide_rows_max;
    if (n == 0) return 0;
    return (n <= wide ? kn_wide : section)(d, n, p->cancel, fn, arg);
}

/* [m, k] to [m, n]. */
static struct kn_gemm_args linear_args(const struct fus_linear *w, const float *a, size_t m,
                                       float *c, bool accumulate)
{
    return (struct kn_gemm_args){.a = a,
                                 .lda = w->k,
                                 .m = m,
                                 .w = w->w,
                                 .bias = w->bias,
                                 .c = c,
                                 .ldc = w->n,
                                 .accumulate = accumulate};
}

static int linear(struct kn_stream *st, const struct fus_linear *w, const float *a, size_t m,
                  float *c, bool accumulate)
{
    const struct kn_gemm_args g = linear_args(w, a, m, c, accumulate);
    return kn_gemm(st, &g);
}

/* What some models do to Q and to K of m rows, which are ldx apart. */
static int norm_heads(struct kn_stream *st, const struct fus_core *c, const struct fus_linear *w,
                      float *x, size_t ldx, size_t m)
{
    if (!w->norm) return 0;
    return kn_rmsnorm_heads(st, x, ldx, m, w->n_norms, w->n_norm, w->norm, c->cfg.rms_eps);
}

/* The same for K (and V) or Q. */
static int project(struct kn_stream *st, const struct fus_core *c, const struct fus_linear *w,
                   const float *a, size_t m, float *to)
{
    int r = linear(st, w, a, m, to, false);
    return r < 0 ? r : norm_heads(st, c, w, to, w->n, m);
}

/* Rows of a sequence, or one of each of several. */
struct places {
    const struct kn_kv *kv;
    unsigned layer;
    const int32_t *pos, *slot; /* [m] what they are rotated to, and where they are stored */
    bool late;                 /* their queries are rotated as the attention reads them */
};

/* A GPU reads and writes less that way; but queries that are kept are looked at again. */
static bool rotates_late(const struct fus_core *c, bool keeps)
{
    return !kn_info(c->dev)->is_host && !keeps;
}

static int rotate(struct kn_stream *st, const struct fus_core *c, const struct places *at, float *q,
                  size_t ldq, size_t m)
{
    const struct kn_rope *rope = at->late ? NULL : c->layer[at->layer].rope;
    return rope ? kn_rope(st, rope, q, ldq, m, c->cfg.H, at->pos) : 0;
}

/* K and V of m rows to their pages, V behind K in each; K is rotated on the way. */
static int put_kv(struct kn_stream *st, const struct fus_core *c, const struct places *at, size_t m,
                  float *k, size_t ld)
{
    const struct kn_rotation to = {c->layer[at->layer].rope, at->pos};
    const float *v = k + (size_t)c->cfg.G * c->cfg.K;
    return kn_rope_put(st, at->kv, at->layer, &to, at->slot, m, k, ld, v, ld);
}

/* Q of rows h [m, D], K and V to their pages, by one product. *ret: rows of Q, w->qkv.n apart. */
static int project_all(struct kn_stream *st, const struct fus_core *c, const struct places *at,
                       const float *h, size_t m, float **ret)
{
    const struct model_cfg *g = &c->cfg;
    const struct fus_layer *w = &c->layer[at->layer];
    const size_t HK = (size_t)g->H * g->K, ld = w->qkv.n;
    float *q = *ret = kn_scratch(st, SLOT_Q, m * ld * sizeof(*q));
    if (!q) return -ENOMEM;
    float *k = q + HK;
    int r = linear(st, &w->qkv, h, m, q, false);
    if (r == 0) r = norm_heads(st, c, &w->q, q, ld, m);
    if (r == 0) r = norm_heads(st, c, &w->kv, k, ld, m);
    if (r == 0) r = rotate(st, c, at, q, ld, m);
    return r < 0 ? r : put_kv(st, c, at, m, k, ld);
}

/* Rows x [m, D] normed, to out. */
static int normed(struct kn_stream *st, const struct fus_core *c, const struct fus_norm *n,
                  const float *x, size_t m, float *out)
{
    const size_t D = c->cfg.D;
    const float eps = c->cfg.rms_eps;
    return n->bias ? kn_layernorm(st, x, D, m, D, n->w, n->bias, eps, out, D)
                   : kn_rmsnorm(st, x, D, m, D, n->w, eps, out, D);
}

struct span { /* m rows of the residual [m, D] */
    struct kn_stream *st;
    const struct fus_core *c;
    float *x;
    size_t m;
};

/* *ret: what a half of a layer reads of its rows, for products with w (NULL: for all): normed, if
 * a norm stands in front of it. */
static int half_in(const struct span *s, const struct fus_norm *norm, const struct kn_mat *w,
                   const float **ret)
{
    *ret = s->x;
    if (!norm->w) return 0;
    float *h = w ? kn_operand(s->st, SLOT_H, s->m, w)
                 : kn_scratch(s->st, SLOT_H, s->m * s->c->cfg.D * sizeof(*h)); /* [m, D] */
    *ret = h;
    return h ? normed(s->st, s->c, norm, s->x, s->m, h) : -ENOMEM;
}

/* Where what it gives goes: to its rows, or to a place of its own if a norm stands behind. NULL: no
 * memory. */
static float *half_to(const struct span *s, const float *norm)
{
    return norm ? kn_scratch(s->st, SLOT_POST, s->m * s->c->cfg.D * sizeof(float)) : s->x;
}

/* It is there, and is added to the rows if that did not happen yet. */
static int half_out(const struct span *s, const float *norm, const float *y)
{
    const size_t D = s->c->cfg.D;
    return norm ? kn_rmsnorm_add(s->st, y, D, s->m, D, norm, s->c->cfg.rms_eps, s->x, D) : 0;
}

/* Both, where it is a [m, k] times w. */
static int half_project(const struct span *s, const float *norm, const struct fus_linear *w,
                        const float *a)
{
    float *y = half_to(s, norm);
    if (!y) return -ENOMEM;
    int r = linear(s->st, w, a, s->m, y, !norm);
    return r < 0 ? r : half_out(s, norm, y);
}

/* Queries q [m, H*K] of rows at these positions get the attention temperature, if their layer has
 * one: from what the position is in the prompt, wherever the row is stored. */
static void temper(const struct fus_core *c, unsigned layer, float *q, size_t m, const int32_t *pos)
{
    const float every = c->cfg.temp_floor, by = c->cfg.temp_scale;
    const size_t HK = (size_t)c->cfg.H * c->cfg.K;
    if (!(every > 0) || c->layer[layer].rope) return;
    for (size_t i = 0; i < m; i++)
        fus_scale(q + i * HK, HK, log1pf(floorf((float)(pos[i] + 1) / every)) * by + 1);
}

/* Q alone, rows without gaps. */
static int project_q(struct kn_stream *st, const struct fus_core *c, const struct places *at,
                     const float *h, size_t m, float **ret)
{
    const struct model_cfg *g = &c->cfg;
    const struct fus_layer *w = &c->layer[at->layer];
    const size_t HK = (size_t)g->H * g->K;
    float *q = *ret = kn_scratch(st, SLOT_Q, m * HK * sizeof(*q));
    int r = q ? project(st, c, &w->q, h, m, q) : -ENOMEM;
    if (r == 0) r = rotate(st, c, at, q, HK, m);
    if (r == 0) temper(c, at->layer, q, m, at->pos);
    return r;
}

/* Both by themselves. */
static int project_each(struct kn_stream *st, const struct fus_core *c, const struct places *at,
                        const float *h, size_t m, float **ret)
{
    const struct model_cfg *g = &c->cfg;
    const struct fus_layer *w = &c->layer[at->layer];
    const size_t GK = (size_t)g->G * g->K;
    float *k = kn_scratch(st, SLOT_KV, m * 2 * GK * sizeof(*k));
    int r = k ? project(st, c, &w->kv, h, m, k) : -ENOMEM;
    if (r == 0) r = put_kv(st, c, at, m, k, 2 * GK);
    return r < 0 ? r : project_q(st, c, at, h, m, ret);
}

struct kn_attn_args fus_attn_args(const struct fus_core *c, const struct kn_kv *kv, unsigned layer)
{
    return (struct kn_attn_args){.H = c->cfg.H,
                                 .kv = kv,
                                 .layer = layer,
                                 .scale = c->cfg.attn_scale,
                                 .cap = c->cfg.attn_cap,
                                 .window = c->layer[layer].window,
                                 .chunk = c->layer[layer].chunk,
                                 .sink = c->layer[layer].sinks};
}

/* Embeddings of m tokens: from the device's table, or straight from the model's file. */
static int embed_rows(struct kn_stream *st, const struct fus_core *c, const int32_t *tok, size_t m,
                      float *x)
{
    if (c->embed.w) return kn_embed(st, c->embed.w, tok, m, x, c->cfg.D);
    for (size_t i = 0; i < m; i++) {
        int r = model_rows(c->model, MODEL_EMBED, 0, (size_t)tok[i], 1, x + i * c->cfg.D);
        if (r < 0) return r;
    }
    fus_scale(x, m * c->cfg.D, c->cfg.embed_scale);
    return 0;
}

/* Rows are rotated to their positions wherever they are stored. */
static const int32_t *slots(const struct fus_phase *p)
{
    return p->slot ? p->slot : p->pos;
}

struct slice {
    struct fus_phase *p;
    size_t row0;
};

static int block_a(struct kn_stream *st, void *arg, size_t row, size_t m)
{
    const struct slice *s = arg;
    const struct fus_phase *p = s->p;
    const size_t row0 = s->row0 + row;
    const struct model_cfg *cfg = &p->core->cfg;
    const struct fus_layer *w = &p->core->layer[p->layer];
    const size_t GK = (size_t)cfg->G * cfg->K;
    float *k = kn_scratch(st, SLOT_KV, m * 2 * GK * sizeof(*k)); /* [m, 2*G*K] */
    const struct span span = {st, p->core, p->x + row0 * cfg->D, m};
    const struct places at = {&p->kv, p->layer, p->pos + row0, slots(p) + row0, false};
    const float *h;
    if (!k) return -ENOMEM;
    int r = 0;
    const struct kv_rows rows = {st, p->layer, row0, m, k, k + GK, 2 * GK};
    if (p->embed_tok) r = embed_rows(st, p->core, p->embed_tok + row0, m, span.x);
    if (r == 0) r = half_in(&span, &w->norm_attn, w->kv.w, &h);
    if (r == 0) r = project(st, p->core, &w->kv, h, m, k);
    if (r == 0 && p->hook) r = p->hook(p->hook_ctx, &rows);
    return r < 0 ? r : put_kv(st, p->core, &at, m, k, 2 * GK);
}

int fus_phase_a(struct fus_phase *p, size_t row0, size_t m)
{
    ASSERT(row0 + m <= p->n);
    struct slice s = {p, row0};
    kn_defer(p->core->dev, p->goes_on);
    const int r = run_rows(p, m, kn_rows, block_a, &s);
    kn_defer(p->core->dev, false);
    return r;
}

/* Rows of the block from keep_from on leave their queries and log-sum-exps for the mass. */
static int keep_scores(struct kn_stream *st, const struct fus_phase *p, size_t row0, size_t m,
                       const float *q, const float *lse)
{
    const size_t HK = (size_t)p->core->cfg.H * p->core->cfg.K, H = p->core->cfg.H;
    const size_t first = p->keep_from > row0 ? p->keep_from - row0 : 0;
    if (first >= m) return 0;
    const size_t to = row0 + first - p->keep_from;
    int r = kn_copy(st, p->keep_q + to * HK, q + first * HK, (m - first) * HK * sizeof(*q));
    if (r < 0) return r;
    return kn_copy(st, p->keep_lse + to * H, lse + first * H, (m - first) * H * sizeof(*lse));
}

/* How many keys the last of these rows sees, if they follow one another; else 0. */
static size_t keys_of_row_range(const struct fus_phase *p, size_t row0, size_t m)
{
    const int32_t first = p->known[row0], last = p->known[row0 + m - 1];
    return (size_t)(last - first) == m - 1 ? (size_t)last + 1 : 0;
}

static int attend(struct kn_stream *st, const struct fus_phase *p, size_t row0, size_t m,
                  float *att)
{
    const struct model_cfg *cfg = &p->core->cfg;
    const struct fus_layer *w = &p->core->layer[p->layer];
    const size_t HK = (size_t)cfg->H * cfg->K;
    const struct places at = {&p->kv, p->layer, p->pos + row0, slots(p) + row0,
                              rotates_late(p->core, p->keep_q)};
    const float *h;
    float *q, *lse = p->keep_q ? kn_scratch(st, SLOT_LSE, m * cfg->H * sizeof(*lse)) : NULL;
    if (p->keep_q && !lse) return -ENOMEM;
    const struct span span = {st, p->core, p->x + row0 * cfg->D, m};
    int r = half_in(&span, &w->norm_attn, w->q.w, &h);
    if (r == 0) r = (p->joint ? project_all : project_q)(st, p->core, &at, h, m, &q);
    if (r < 0) return r;
    struct kn_attn_args a = fus_attn_args(p->core, &p->kv, p->layer);
    a.q = q, a.ldq = p->joint ? w->qkv.n : HK, a.m = m, a.pos = at.slot;
    if (at.late) a.to = (struct kn_rotation){w->rope, at.pos};
    a.out = att, a.ldo = HK, a.lse = lse;
    a.known = p->known + row0, a.n_keys = keys_of_row_range(p, row0, m);
    if (p->from && a.chunk) a.from = p->from + row0, a.chunk = 0;
    r = kn_attn(st, &a);
    if (r == 0 && p->keep_q) r = keep_scores(st, p, row0, m, q, lse);
    return r;
}

/* A mixture's, in a run that is wide: an expert's weights are read once for all of its rows. */
static int mixture(struct kn_stream *st, const struct fus_core *c, unsigned layer, float *x,
                   size_t m)
{
    const struct fus_layer *w = &c->layer[layer];
    const struct span span = {st, c, x, m};
    float *y = half_to(&span, w->post_ffn);
    const float *h;
    if (!y) return -ENOMEM;
    int r = half_in(&span, &w->norm_ffn, NULL, &h);
    if (r == 0) r = kn_moe(st, &w->moe, h, m, y, !w->post_ffn);
    return r < 0 ? r : half_out(&span, w->post_ffn, y);
}

static int feed_forward(struct kn_stream *st, const struct fus_core *c, unsigned layer, float *x,
                        size_t m)
{
    const struct fus_layer *w = &c->layer[layer];
    const float *h;
    float *gu = kn_product(st, SLOT_GU, m, w->gu.w);     /* [m, 2*F] */
    float *act = kn_operand(st, SLOT_ACT, m, w->down.w); /* [m, F] */
    const struct span span = {st, c, x, m};
    float *y = half_to(&span, w->post_ffn);
    if (!gu || !act || !y) return -ENOMEM;
    int r = half_in(&span, &w->norm_ffn, w->gu.w, &h);
    if (r < 0) return r;
    const struct kn_gemm_args up = linear_args(&w->gu, h, m, gu, false);
    const struct kn_gemm_args down = linear_args(&w->down, act, m, y, !w->post_ffn);
    r = kn_gated(st, &up, c->cfg.act, &down);
    return r < 0 ? r : half_out(&span, w->post_ffn, y);
}

/* What follows the attention, whose output is att. */
static int rest(struct kn_stream *st, const struct fus_phase *p, size_t row0, size_t m,
                const float *att)
{
    const struct fus_layer *w = &p->core->layer[p->layer];
    const struct span span = {st, p->core, p->x + row0 * p->core->cfg.D, m};
    int r = half_project(&span, w->post_attn, &w->o, att);
    return r < 0 || w->moe.router ? r : feed_forward(st, p->core, p->layer, span.x, m);
}

static int block_attend(struct kn_stream *st, void *arg, size_t row, size_t m)
{
    const struct slice *s = arg;
    const struct model_cfg *cfg = &s->p->core->cfg;
    return attend(st, s->p, s->row0 + row, m, s->p->att + row * cfg->H * cfg->K);
}

static int block_rest(struct kn_stream *st, void *arg, size_t row, size_t m)
{
    const struct slice *s = arg;
    const struct model_cfg *cfg = &s->p->core->cfg;
    return rest(st, s->p, s->row0 + row, m, s->p->att + row * cfg->H * cfg->K);
}

/* Both, where there is nothing to cut: what the attention gives is an operand, and stays in this
 * stream. */
static int block_b(struct kn_stream *st, void *arg, size_t row, size_t m)
{
    const struct slice *s = arg;
    const struct fus_phase *p = s->p;
    float *att = kn_operand(st, SLOT_ATT, m, p->core->layer[p->layer].o.w);
    int r = att ? attend(st, p, s->row0 + row, m, att) : -ENOMEM;
    return r < 0 || p->attn_only ? r : rest(st, p, s->row0 + row, m, att);
}

static int block_mixture(struct kn_stream *st, void *arg, size_t row, size_t m)
{
    const struct slice *s = arg;
    const struct fus_phase *p = s->p;
    return mixture(st, p->core, p->layer, p->x + (s->row0 + row) * p->core->cfg.D, m);
}

/* Sections: rows differ in attention and are equal behind it, so each gets the cut that suits it
 * (see kn_rows); a mixture is a section of its own. Only the last is waited for. */
int fus_phase_b(struct fus_phase *p, size_t row0, size_t m)
{
    ASSERT(row0 + m <= p->n);
    struct slice s = {p, row0};
    struct kn_dev *const d = p->core->dev;
    const bool mixes = p->core->layer[p->layer].moe.router && !p->attn_only;
    const bool host = kn_info(d)->is_host;
    kn_defer(d, mixes);
    int r = host ? run_rows(p, m, kn_rows_uneven, block_attend, &s)
                 : kn_wide(d, m, p->cancel, block_b, &s);
    if (r == 0 && host && !p->attn_only) r = run_rows(p, m, kn_rows, block_rest, &s);
    kn_defer(d, false);
    return r < 0 || !mixes ? r : kn_wide(d, m, p->cancel, block_mixture, &s);
}

/* A step of 10 to 40 ms (chosen: 8 GFLOP for two threads by f32, four times that by AMX) lets
 * queued work be cancelled and decodes go on within 50 ms; shorter ones lose more, as threads wait
 * for each other at the end of each section, and under 256 rows products do worse. A GPU has 500
 * times the rate: 4 TFLOP, as long as what the rows' widest product gives stays below 512 MiB, and
 * under 1024 rows products would read weights for longer than they compute. So a layer of 3000
 * tokens is one step there; cut like on a CPU it would be twelve, each of them waited for. */
size_t fus_slice_rows(const struct fus_core *c, size_t n_keys)
{
    const struct model_cfg *g = &c->cfg;
    const bool host = kn_info(c->dev)->is_host;
    const double linear = 2.0 * g->D * (2.0 * g->H * g->K + 3.0 * g->F);
    const double row =
        linear + 2.0 * g->H * g->K * (double)n_keys; /* half of the keys on average */
    const double flops = kn_info(c->dev)->step_flops, least = host ? 256 : 1024;
    const double widest = fmax(8.0 * g->F, 4.0 * g->experts.used * g->D); /* gate and up; experts */
    const double room = host ? INFINITY : (double)(512u << 20) / widest;
    const size_t rows = (size_t)fmin(flops / row, room) / 64 * 64;
    return rows < (size_t)least ? (size_t)least : rows;
}

struct head {
    struct fus_core *c;
    const float *x;
    float *logits;
    bool far; /* logits are out of the device's reach: by way of scratch */
};

static int block_logits(struct kn_stream *st, void *arg, size_t row0, size_t m)
{
    const struct head *a = arg;
    const struct model_cfg *cfg = &a->c->cfg;
    float *h = kn_operand(st, SLOT_H, m, a->c->lm_head.w);
    if (!h) return -ENOMEM;
    int r = normed(st, a->c, &a->c->norm_out, a->x + row0 * cfg->D, m, h);
    if (r < 0) return r;
    float *out = a->logits + row0 * cfg->V;
    float *near = a->far ? kn_scratch(st, SLOT_GU, m * cfg->V * sizeof(*near)) : out;
    if (!near) return -ENOMEM;
    r = linear(st, &a->c->lm_head, h, m, near, false);
    if (r == 0 && cfg->logit_cap > 0) r = kn_softcap(st, near, cfg->V, m, cfg->V, cfg->logit_cap);
    return r < 0 || near == out ? r : kn_copy(st, out, near, m * cfg->V * sizeof(*near));
}

int fus_phase_logits(struct fus_core *c, const float *x, size_t n, const atomic_bool *cancel,
                     float *logits)
{
    enum { ROOM = 64 << 20 }; /* chosen: bounds that scratch; prompts are answered from one row */
    const struct fus_phase p = {.core = c, .cancel = cancel};
    const bool far = !kn_info(c->dev)->is_host;
    const size_t V = c->cfg.V, most = far ? ROOM / (V * sizeof(*logits)) + 1 : n;
    int r = 0;
    for (size_t at = 0, m; r == 0 && at < n; at += m) {
        m = n - at < most ? n - at : most;
        struct head a = {c, x + at * c->cfg.D, logits + at * V, far};
        r = run_rows(&p, m, kn_rows, block_logits, &a);
    }
    return r;
}

static int block_hidden(struct kn_stream *st, void *arg, size_t row0, size_t m)
{
    const struct head *a = arg;
    const size_t D = a->c->cfg.D;
    float *out = a->logits + row0 * D;
    float *near = a->far ? kn_scratch(st, SLOT_GU, m * D * sizeof(*near)) : out;
    if (!near) return -ENOMEM;
    int r = normed(st, a->c, &a->c->norm_out, a->x + row0 * D, m, near);
    return r < 0 || near == out ? r : kn_copy(st, out, near, m * D * sizeof(*near));
}

int fus_phase_hidden(struct fus_core *c, const float *x, size_t n, const atomic_bool *cancel,
                     float *hidden)
{
    const struct fus_phase p = {.core = c, .cancel = cancel};
    struct head a = {c, x, hidden, !kn_info(c->dev)->is_host};
    return run_rows(&p, n, kn_rows, block_hidden, &a);
}

/* ---- decode: one new token of each of several sessions ---- */

/* The rows of a step, [cap] each; rows behind the sessions' are not used. */
struct rows {
    struct kn_pages *pages;
    struct kn_draw *draw;
    int32_t *pos, *tok;
    uint32_t *n_edits;
};

static struct rows rows_at(char *p, size_t cap)
{
    char *draw = p + cap * sizeof(struct kn_pages), *pos = draw + cap * sizeof(struct kn_draw);
    return (struct rows){(void *)p, (void *)draw, (void *)pos, (void *)(pos + cap * 4),
                         (void *)(pos + cap * 8)};
}

static size_t rows_bytes(size_t cap)
{
    return cap * (sizeof(struct kn_pages) + sizeof(struct kn_draw) + 3 * sizeof(int32_t));
}

struct decode {
    struct fus_core *c;
    struct rows rows; /* as operations read them */
    struct kn_kv kv;
    float *logits;                    /* [n, V] */
    const struct fus_decode_row *row; /* [sessions] */
    bool edits;                       /* some logits are edited */
};

static int decode_attention(struct kn_stream *st, const struct decode *d, unsigned layer, size_t n,
                            const float *h, float *att)
{
    const struct model_cfg *cfg = &d->c->cfg;
    const struct fus_layer *w = &d->c->layer[layer];
    const size_t HK = (size_t)cfg->H * cfg->K;
    const int32_t *pos = d->rows.pos;
    const struct places at = {&d->kv, layer, pos, pos, rotates_late(d->c, false)};
    float *q;
    int r = (w->qkv.w ? project_all : project_each)(st, d->c, &at, h, n, &q);
    if (r < 0) return r;
    struct kn_attn_args a = fus_attn_args(d->c, &d->kv, layer);
    a.q = q, a.ldq = w->qkv.w ? w->qkv.n : HK, a.m = n, a.pos = pos;
    if (at.late) a.to = (struct kn_rotation){w->rope, pos};
    a.out = att, a.ldo = HK;
    return kn_attn(st, &a);
}

static int decode_layers(struct kn_stream *st, const struct decode *d, size_t n)
{
    const struct model_cfg *cfg = &d->c->cfg;
    float *x = d->c->dec.x;
    const struct span span = {st, d->c, x, n};
    int r = embed_rows(st, d->c, d->rows.tok, n, x);
    for (unsigned l = 0; r == 0 && l < cfg->L; l++) {
        const struct fus_layer *w = &d->c->layer[l];
        const float *h; /* q's as well */
        float *att = kn_operand(st, SLOT_ATT, n, w->o.w);
        if (!att) return -ENOMEM;
        r = half_in(&span, &w->norm_attn, w->kv.w, &h);
        if (r == 0) r = decode_attention(st, d, l, n, h, att);
        if (r == 0) r = half_project(&span, w->post_attn, &w->o, att);
        if (r == 0) r = (w->moe.router ? mixture : feed_forward)(st, d->c, l, x, n);
    }
    return r;
}

/* The whole step, without a look at anything that the next one may have otherwise. */
static int decode_block(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    const struct decode *d = arg;
    const struct fus_decoder *dec = &d->c->dec;
    const size_t V = d->c->cfg.V;
    struct head a = {d->c, dec->x, d->logits, false};
    int r = 0;
    ASSERT(row0 == 0);
    if (dec->near != dec->rows) r = kn_copy(st, dec->near, dec->rows, rows_bytes(dec->cap));
    if (r == 0 && d->edits && dec->edits_near != dec->edits)
        r = kn_copy(st, dec->edits_near, dec->edits, n * FUS_EDITS_MAX * sizeof(*dec->edits));
    if (r == 0) r = decode_layers(st, d, n);
    if (r == 0) r = block_logits(st, &a, 0, n);
    if (r == 0 && d->edits)
        r = kn_edit(st, d->logits, V, n, V, dec->edits_near, FUS_EDITS_MAX, d->rows.n_edits);
    if (r == 0) r = kn_draw(st, d->logits, V, n, V, d->rows.draw, dec->next_near);
    if (r == 0 && dec->next_near != dec->next)
        r = kn_copy(st, dec->next, dec->next_near, n * sizeof(*dec->next));
    return r;
}

/* Rows of logits on their way to the host, those that stand together at once. */
static int fetch_block(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    const struct decode *d = arg;
    const size_t V = d->c->cfg.V;
    int r = 0;
    for (size_t i = 0, m; r == 0 && i < n; i += m) {
        for (m = 1; i + m < n && d->row[i].wants == d->row[i + m].wants; m++)
            ;
        if (d->row[i].wants)
            r = kn_copy(st, d->c->dec.seen + i * V, d->logits + i * V, m * V * sizeof(float));
    }
    return r;
}

void fus_decode_fini(struct fus_core *c)
{
    struct fus_decoder *d = &c->dec;
    kn_forget(c->dev);
    if (d->near != d->rows) kn_mem_free(c->dev, d->near);
    if (d->next_near != d->next) kn_mem_free(c->dev, d->next_near);
    if (d->edits_near != d->edits) kn_mem_free(c->dev, d->edits_near);
    kn_mem_free(c->dev, d->edits);
    kn_mem_free(c->dev, d->rows);
    kn_mem_free(c->dev, d->next);
    kn_mem_free(c->dev, d->x);
    kn_mem_free(c->dev, d->logits);
    kn_mem_free(c->dev, d->seen);
    *d = (struct fus_decoder){0};
}

static int decode_room(struct fus_core *c, size_t n)
{
    struct fus_decoder *d = &c->dec;
    struct kn_dev *dev = c->dev;
    if (n <= d->cap) return 0;
    fus_decode_fini(c);
    const size_t cap = n < 16 ? 16 : n, D = c->cfg.D, V = c->cfg.V;
    d->cap = cap;
    d->rows = d->near = kn_mem_alloc(dev, KN_MEM_HOST, rows_bytes(cap));
    d->next = d->next_near = kn_mem_alloc(dev, KN_MEM_HOST, cap * sizeof(*d->next));
    const size_t edits_bytes = cap * FUS_EDITS_MAX * sizeof(*d->edits);
    d->edits = d->edits_near = kn_mem_alloc(dev, KN_MEM_HOST, edits_bytes);
    d->x = kn_mem_alloc(dev, KN_MEM_DEVICE, cap * D * sizeof(*d->x));
    bool ok = d->rows && d->next && d->edits && d->x;
    if (ok && !kn_info(dev)->is_host) {
        d->near = kn_mem_alloc(dev, KN_MEM_DEVICE, rows_bytes(cap));
        d->next_near = kn_mem_alloc(dev, KN_MEM_DEVICE, cap * sizeof(*d->next));
        d->edits_near = kn_mem_alloc(dev, KN_MEM_DEVICE, edits_bytes);
        d->logits = kn_mem_alloc(dev, KN_MEM_DEVICE, cap * V * sizeof(*d->logits));
        d->seen = kn_mem_alloc(dev, KN_MEM_HOST, cap * V * sizeof(*d->seen));
        ok = d->near && d->next_near && d->edits_near && d->logits && d->seen;
    }
    if (!ok) fus_decode_fini(c);
    return ok ? 0 : -ENOMEM;
}

/* Fills the rows of a step; *ret_pages: what the longest of them has. */
static int fill_rows(struct fus_core *c, const struct fus_decode_row *row, size_t n,
                     size_t *ret_pages)
{
    const struct rows rows = rows_at(c->dec.rows, c->dec.cap);
    size_t most = 0;
    memset(c->dec.rows, 0, rows_bytes(c->dec.cap));
    for (size_t i = 0; i < n; i++) {
        const struct fus_decode_row *d = &row[i];
        struct fus_session *s = d->s;
        const bool follows = i > 0 && row[i - 1].s == s;
        const uint32_t at = follows ? (uint32_t)rows.pos[i - 1] + 1 : s->len;
        if (d->tok < 0 || (unsigned)d->tok >= c->cfg.V || d->n_edit > FUS_EDITS_MAX) return -EINVAL;
        if (at >= s->cap_tokens) return -ENOSPC;
        int r = follows ? 0 : fus_session_own(s, at);
        if (r < 0) return r;
        rows.pages[i] = (struct kn_pages){s->page_dev, s->n_pages};
        rows.pos[i] = (int32_t)at;
        rows.tok[i] = d->tok;
        rows.draw[i] = d->draw;
        rows.n_edits[i] = (uint32_t)d->n_edit;
        if (d->n_edit)
            memcpy(c->dec.edits + i * FUS_EDITS_MAX, d->edit, d->n_edit * sizeof(*d->edit));
        if (s->n_pages > most) most = s->n_pages;
    }
    *ret_pages = most;
    return 0;
}

/* Steps of as many rows, whose longest sequence is of about the same length, are the same
 * operations: the pages are said to be a power of two, which costs blocks that find nothing to do.
 */
static size_t pages_like(size_t n)
{
    size_t like = 8; /* chosen: too few keys to be parted */
    while (like < n)
        like *= 2;
    return like;
}

int fus_decode_rows(struct fus_core *c, struct fus_decode_row *row, size_t n,
                    const atomic_bool *cancel, float *logits)
{
    const size_t V = c->cfg.V, m = kn_replay_rows(c->dev, n);
    size_t n_pages = 0;
    if (n == 0) return 0;
    int r = decode_room(c, m);
    if (r == 0) r = fill_rows(c, row, n, &n_pages);
    if (r < 0) return r;
    struct decode d = {.c = c,
                       .rows = rows_at(c->dec.near, c->dec.cap),
                       .kv = fus_pool_kv(c),
                       .logits = c->dec.logits ? c->dec.logits : logits,
                       .row = row};
    bool fetches = false;
    for (size_t i = 0; i < n; i++) {
        d.edits |= row[i].n_edit > 0;
        fetches |= c->dec.logits && row[i].wants;
    }
    const uint64_t kind = (uint64_t)d.edits << 63;
    d.kv.n_pages = pages_like(n_pages);
    d.kv.each = d.rows.pages;
    kn_defer(c->dev, fetches);
    r = kn_replay(c->dev, kind | (uint64_t)d.kv.n_pages << 32 | m, m, cancel, decode_block, &d);
    kn_defer(c->dev, false);
    if (r == 0 && fetches) r = kn_wide(c->dev, n, NULL, fetch_block, &d);
    if (r < 0) return r;
    for (size_t i = 0; i < n; i++) {
        if (fetches && row[i].wants)
            memcpy(logits + i * V, c->dec.seen + i * V, V * sizeof(*logits));
        row[i].next = c->dec.next[i];
        row[i].s->len++;
    }
    return 0;
}

int fus_decode(struct fus_core *c, struct fus_session *const *s, const int32_t *tok, size_t n,
               const atomic_bool *cancel, float *ret_logits)
{
    struct fus_decode_row *row = mem_alloc(n * sizeof(*row) + 1);
    if (!row) return -ENOMEM;
    for (size_t i = 0; i < n; i++)
        row[i] = (struct fus_decode_row){.s = s[i], .tok = tok[i], .wants = true};
    const int r = fus_decode_rows(c, row, n, cancel, ret_logits);
    mem_free(row);
    return r;
}
