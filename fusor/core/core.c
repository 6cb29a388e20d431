/* core: loads weights into the device, owns rope tables, the page pool and the sessions.
 *
 * The pool is one block of device memory (on the CPU touched as pages are used); page p holds
 * KN_PAGE tokens of all layers of one sequence. Pages carry a reference count: a fork shares the
 * full pages of its parent (they are never written again) and copies only the last, partly filled
 * one. */
#include "fusor/core/core_int.h"

#include "base/assert.h"
#include "base/mem.h"
#include "base/rng.h"
#include "kernels/codes.h"
#include "kernels/rate.h"

#include <math.h>
#include <string.h>

/* ---- weights ---- */

struct packer {
    struct fus_core *c;
    float *rows; /* slice buffer, 64-byte aligned */
    size_t cap;  /* floats */
    double done, total;
    const struct fus_core_opts *o;
};

static void packed(struct packer *p, double n)
{
    p->done += n;
    if (p->o->progress) p->o->progress(p->o->progress_ctx, p->done / p->total);
}

void fus_scale(float *x, size_t n, float by)
{
    for (size_t i = 0; by != 1 && i < n; i++)
        x[i] *= by;
}

/* Rows of a weight: all of them, or those of one expert. */
struct span {
    enum model_w w;
    unsigned layer;
    size_t row0, n;
};

static struct span all_of(const struct model *m, enum model_w w, unsigned layer)
{
    return (struct span){w, layer, 0, model_w_rows(m, w)};
}

/* A span on its way into rows `at` and following of a matrix. */
struct pack_job {
    struct fus_core *c;
    const struct span *s;
    struct kn_mat *to;
    size_t at;
    bool coded; /* as the file has them */
};

enum { GROUP = 16 }; /* rows of values together */

/* Rows [row0, row0 + n) of the span as the file has them. */
static int pack_codes(const struct pack_job *j, size_t row0, size_t n)
{
    const struct span *s = j->s;
    const size_t k = model_w_cols(j->c->model, s->w);
    const size_t group = model_codes_group(j->c->model, s->w, s->layer);
    struct codes_row codes[MODEL_CODES_GROUP_MAX];
    char *buf = mem_alloc(group * model_codes_room(k));
    int r = buf ? 0 : -ENOMEM;
    if (buf) model_codes_place(k, group, buf, codes);
    for (size_t i = row0, now; r == 0 && i < row0 + n; i += now) {
        now = row0 + n - i < group ? row0 + n - i : group;
        r = model_codes(j->c->model, s->w, s->layer, s->row0 + i, now, codes);
        if (r == 0) r = kn_mat_fill_codes(j->to, j->at + i, now, codes);
    }
    mem_free(buf);
    return r;
}

/* The same as f32, through a buffer of cap floats. */
static int pack_values(const struct pack_job *j, size_t row0, size_t n, float *buf, size_t cap)
{
    const struct model *m = j->c->model;
    const struct span *s = j->s;
    const size_t k = model_w_cols(m, s->w), step = cap / k ? cap / k : 1;
    int r = 0;
    for (size_t i = row0, now; r == 0 && i < row0 + n; i += now) {
        now = row0 + n - i < step ? row0 + n - i : step;
        r = model_rows(m, s->w, s->layer, s->row0 + i, now, buf);
        if (s->w == MODEL_EMBED) fus_scale(buf, now * k, j->c->cfg.embed_scale);
        if (r == 0) r = kn_mat_fill(j->to, j->at + i, now, buf);
    }
    return r;
}

static int pack_block(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    const struct pack_job *j = arg;
    const size_t k = model_w_cols(j->c->model, j->s->w);
    if (j->coded) return pack_codes(j, row0, n);
    const size_t cap = (n < GROUP ? n : GROUP) * k;
    float *buf = mem_aligned(64, cap * sizeof *buf);
    const int r = buf ? pack_values(j, row0, n, buf, cap) : -ENOMEM;
    mem_free(buf);
    return r;
}

/* On the host by all threads: what is to be read, taken apart and written is as much as memory
 * carries. Random rows are made where they are needed. */
static int pack_span(struct packer *p, const struct span *s, struct kn_mat *to, size_t at,
                     bool coded)
{
    struct pack_job j = {p->c, s, to, at, coded};
    struct rng_field field;
    const int r = model_random(p->c->model, s->w, s->layer, &field)
                      ? kn_mat_random(to, at, s->n, &field)
                  : kn_info(p->c->dev)->is_host ? kn_rows(p->c->dev, s->n, NULL, pack_block, &j)
                  : coded                       ? pack_codes(&j, 0, s->n)
                                                : pack_values(&j, 0, s->n, p->rows, p->cap);
    packed(p, (double)(s->n * model_w_cols(p->c->model, s->w)));
    return r;
}

enum { JOINED_MAX = 3 };
typedef int (*create_fn)(struct kn_dev *d, size_t n, size_t k, struct kn_mat **ret);

static bool is_codes(const struct codes_form *f)
{
    return f->bits == 4 || f->bits == 8;
}

/* A GPU's mixtures take all of a layer's experts as codes, gate and up of one form, or none. */
static bool has_coded_experts(const struct model *m, unsigned l)
{
    const struct codes_form gate = model_form(m, MODEL_EXPERT_GATE, l),
                            up = model_form(m, MODEL_EXPERT_UP, l),
                            down = model_form(m, MODEL_EXPERT_DOWN, l);
    return is_codes(&gate) && is_codes(&down) && codes_form_same(&gate, &up);
}

static bool may_be_coded(const struct packer *p, create_fn create, const struct span *s)
{
    const bool expert = s->w >= MODEL_EXPERT_GATE && s->w <= MODEL_EXPERT_DOWN;
    return create != kn_mat_create_f32 &&
           (!expert || kn_info(p->c->dev)->is_host || has_coded_experts(p->c->model, s->layer));
}

struct as { /* what a weight becomes */
    create_fn create;
    enum kn_split split;
};

/* Spans, one below the other, become one matrix: in the file's form where the device keeps such. */
static int pack_spans(struct packer *p, struct as as, const struct span *s, size_t n_s,
                      struct kn_mat **ret)
{
    const struct model *m = p->c->model;
    const size_t k = model_w_cols(m, s[0].w);
    struct kn_part part[JOINED_MAX];
    size_t n = 0, rows[JOINED_MAX];
    ASSERT(n_s <= JOINED_MAX);
    for (size_t i = 0; i < n_s; i++) {
        ASSERT(model_w_cols(m, s[i].w) == k);
        part[i] = (struct kn_part){s[i].n, model_form(m, s[i].w, s[i].layer)};
        n += rows[i] = part[i].n;
    }
    const bool full = as.create == kn_mat_create_full;
    int r = may_be_coded(p, as.create, &s[0])
                ? kn_mat_create_coded(p->c->dev, part, n_s, k, full, ret)
                : -ENOTSUP;
    const bool coded = r == 0;
    if (r == -ENOTSUP) r = as.create(p->c->dev, n, k, ret);
    if (r == 0) r = kn_mat_split(*ret, as.split, rows, n_s);
    for (size_t i = 0, at = 0; r == 0 && i < n_s; at += part[i++].n)
        r = pack_span(p, &s[i], *ret, at, coded && part[i].form.bits);
    return r < 0 ? r : kn_mat_done(*ret);
}

/* The same of whole weights. */
static int pack_as(struct packer *p, struct as as, const enum model_w *w, size_t n_w,
                   unsigned layer, struct fus_linear *ret)
{
    const struct model *m = p->c->model;
    struct span s[JOINED_MAX];
    ret->n = 0;
    ret->k = model_w_cols(m, w[0]);
    for (size_t i = 0; i < n_w && i < JOINED_MAX; ret->n += s[i++].n)
        s[i] = all_of(m, w[i], layer);
    return pack_spans(p, as, s, n_w, &ret->w);
}

static int pack(struct packer *p, enum kn_split split, const enum model_w *w, size_t n_w,
                unsigned layer, struct fus_linear *ret)
{
    return pack_as(p, (struct as){kn_mat_create, split}, w, n_w, layer, ret);
}

/* Vectors joined, each for all of a group's ranks or shared out; absent ones leave *ret NULL. What
 * scales logits goes into the norm in front of the head, which is linear. */
static int vectors_in(struct packer *p, enum kn_mem kind, const enum model_w *w, size_t n_w,
                      unsigned layer, float **ret)
{
    const struct model *m = p->c->model;
    size_t n = 0;
    if (!model_has(m, w[0], layer)) return 0;
    for (size_t i = 0; i < n_w; i++) {
        const size_t cols = model_w_cols(m, w[i]);
        ASSERT(n + cols <= p->cap);
        int r = model_rows(m, w[i], layer, 0, 1, p->rows + n);
        if (r < 0) return r;
        n += cols;
    }
    if (w[0] == MODEL_NORM_OUT || w[0] == MODEL_NORM_OUT_BIAS)
        fus_scale(p->rows, n, p->c->cfg.logit_scale);
    *ret = kn_mem_alloc(p->c->dev, kind, n * sizeof(**ret));
    int r = *ret ? 0 : -ENOMEM;
    for (size_t i = 0, at = 0, cols; r == 0 && i < n_w; i++, at += cols) {
        cols = model_w_cols(m, w[i]);
        r = kn_mem_copy(p->c->dev, *ret + at, p->rows + at, cols * sizeof(**ret));
    }
    return r;
}

static int vectors(struct packer *p, const enum model_w *w, size_t n_w, unsigned layer, float **ret)
{
    return vectors_in(p, KN_MEM_DEVICE, w, n_w, layer, ret);
}

static int heads_vectors(struct packer *p, const enum model_w *w, size_t n_w, unsigned layer,
                         float **ret)
{
    return vectors_in(p, KN_MEM_HEADS, w, n_w, layer, ret);
}

#define W(...)                                                                                     \
    (const enum model_w[])                                                                         \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

static int load_norm(struct packer *p, enum model_w w, enum model_w bias, unsigned layer,
                     struct fus_norm *ret)
{
    int r = vectors(p, W(w), 1, layer, &ret->w);
    return r < 0 ? r : vectors(p, W(bias), 1, layer, &ret->bias);
}

/* What is the layer's own beside its weights. */
static void set_kind(struct fus_core *c, unsigned l)
{
    const struct model_cfg *g = &c->cfg;
    struct fus_layer *w = &c->layer[l];
    const bool local = model_layer_is(g, l, MODEL_LAYER_LOCAL);
    w->rope = model_layer_is(g, l, MODEL_LAYER_NOPE) ? NULL : &c->rope[local];
    w->window = local ? g->window : 0;
    w->chunk = local ? g->chunk : 0;
    w->q.n_norms = g->qk_norm_wide ? 1 : g->H;
    w->kv.n_norms = g->qk_norm_wide ? 1 : g->G;
    w->q.n_norm = (size_t)(g->qk_norm_wide ? g->H : 1) * g->K;
    w->kv.n_norm = (size_t)(g->qk_norm_wide ? g->G : 1) * g->K;
}

/* The biases of w, `per` of each expert, to rows of n. */
static int expert_biases(struct packer *p, enum model_w w, unsigned l, size_t per, float *to,
                         size_t n)
{
    int r = 0;
    ASSERT(per <= p->cap);
    for (size_t e = 0; r == 0 && e < p->c->cfg.experts.n; e++) {
        r = model_rows(p->c->model, w, l, e * per, per, p->rows);
        if (r == 0) r = kn_mem_copy(p->c->dev, to + e * n, p->rows, per * sizeof(*to));
    }
    return r;
}

static int load_biases(struct packer *p, unsigned l, struct kn_moe *w)
{
    const size_t n = p->c->cfg.experts.n, F = p->c->cfg.experts.F, D = p->c->cfg.D;
    int r = vectors(p, W(MODEL_ROUTER_BIAS), 1, l, &w->router_bias);
    w->gate_up_bias = kn_mem_alloc(p->c->dev, KN_MEM_HEADS, n * 2 * F * sizeof(*w->gate_up_bias));
    w->down_bias = kn_mem_alloc(p->c->dev, KN_MEM_DEVICE, n * D * sizeof(*w->down_bias));
    if (r == 0 && (!w->gate_up_bias || !w->down_bias)) r = -ENOMEM;
    if (r == 0) r = expert_biases(p, MODEL_EXPERT_GATE_BIAS, l, F, w->gate_up_bias, 2 * F);
    if (r == 0) r = expert_biases(p, MODEL_EXPERT_UP_BIAS, l, F, w->gate_up_bias + F, 2 * F);
    return r < 0 ? r : expert_biases(p, MODEL_EXPERT_DOWN_BIAS, l, D, w->down_bias, D);
}

static int load_experts(struct packer *p, unsigned l)
{
    const struct model *m = p->c->model;
    const struct model_experts *e = &p->c->cfg.experts;
    struct kn_moe *w = &p->c->layer[l].moe;
    const size_t F = e->F, D = p->c->cfg.D;
    const struct span router[] = {all_of(m, MODEL_ROUTER, l), all_of(m, MODEL_SHARED_ROUTER, l)},
                      gate_up[] = {all_of(m, MODEL_SHARED_GATE, l), all_of(m, MODEL_SHARED_UP, l)},
                      down = all_of(m, MODEL_SHARED_DOWN, l);
    const bool weighed = e->shared_F && !e->scales_input;
    const struct as as_router = {kn_mat_create_f32, KN_SPLIT_NONE},
                    as_up = {kn_mat_create, KN_SPLIT_HEADS},
                    as_down = {kn_mat_create, KN_SPLIT_SUM};
    *w = (struct kn_moe){.n = e->n,
                         .used = e->used,
                         .renorm = e->renorm,
                         .scales_input = e->scales_input,
                         .act = p->c->cfg.act};
    w->gate_up = mem_zalloc(e->n * sizeof(struct kn_mat *));
    w->down = mem_zalloc(e->n * sizeof(struct kn_mat *));
    int r = w->gate_up && w->down ? 0 : -ENOMEM;
    if (r == 0) r = pack_spans(p, as_router, router, weighed ? 2 : 1, &w->router);
    for (unsigned i = 0; r == 0 && i < e->n; i++) {
        const struct span both[] = {{MODEL_EXPERT_GATE, l, i * F, F},
                                    {MODEL_EXPERT_UP, l, i * F, F}},
                          back = {MODEL_EXPERT_DOWN, l, i * D, D};
        r = pack_spans(p, as_up, both, 2, &w->gate_up[i]);
        if (r == 0) r = pack_spans(p, as_down, &back, 1, &w->down[i]);
    }
    if (r == 0 && e->biases) r = load_biases(p, l, w);
    if (r < 0 || e->shared_F == 0) return r;
    r = pack_spans(p, as_up, gate_up, 2, &w->shared_gate_up);
    return r < 0 ? r : pack_spans(p, as_down, &down, 1, &w->shared_down);
}

static int rows_of(struct fus_linear *all, size_t row0, size_t n, struct fus_linear *ret)
{
    ret->n = n;
    ret->k = all->k;
    return kn_mat_rows(all->w, row0, n, &ret->w);
}

/* A GPU takes one product for three where it may: it deals out tiles of all at once. The CPU's
 * product is as fast by itself, and keeps each of them in the file's own form. */
static int load_qkv(struct packer *p, unsigned l, struct fus_layer *w)
{
    const size_t HK = (size_t)p->c->cfg.H * p->c->cfg.K, GK = (size_t)p->c->cfg.G * p->c->cfg.K;
    if (kn_info(p->c->dev)->is_host) {
        int r = pack(p, KN_SPLIT_HEADS, W(MODEL_K, MODEL_V), 2, l, &w->kv);
        return r < 0 ? r : pack(p, KN_SPLIT_HEADS, W(MODEL_Q), 1, l, &w->q);
    }
    int r = pack(p, KN_SPLIT_HEADS, W(MODEL_Q, MODEL_K, MODEL_V), 3, l, &w->qkv);
    if (r == 0) r = rows_of(&w->qkv, 0, HK, &w->q);
    if (r == 0) r = rows_of(&w->qkv, HK, 2 * GK, &w->kv);
    return r < 0
               ? r
               : heads_vectors(p, W(MODEL_Q_BIAS, MODEL_K_BIAS, MODEL_V_BIAS), 3, l, &w->qkv.bias);
}

static bool is_mixed(const struct model_cfg *g, unsigned l)
{
    return g->experts.n > 0 && !model_layer_is(g, l, MODEL_LAYER_DENSE);
}

/* Of K factors of 1, where the layer norms its heads by such. */
static int unit_norm(struct packer *p, unsigned l, float **ret)
{
    const struct model_cfg *g = &p->c->cfg;
    if (!g->qk_unit || model_layer_is(g, l, MODEL_LAYER_NOPE)) return 0;
    ASSERT(g->K <= p->cap);
    for (unsigned i = 0; i < g->K; i++)
        p->rows[i] = 1;
    *ret = kn_mem_alloc(p->c->dev, KN_MEM_DEVICE, g->K * sizeof(**ret));
    return *ret ? kn_mem_copy(p->c->dev, *ret, p->rows, g->K * sizeof(**ret)) : -ENOMEM;
}

static int load_layer(struct packer *p, unsigned l)
{
    const bool mixed = is_mixed(&p->c->cfg, l);
    struct fus_layer *w = &p->c->layer[l];
    int r = load_qkv(p, l, w);
    if (r == 0) r = pack(p, KN_SPLIT_SUM, W(MODEL_O), 1, l, &w->o);
    if (r == 0 && mixed) r = load_experts(p, l);
    if (r == 0 && !mixed) r = pack(p, KN_SPLIT_HEADS, W(MODEL_GATE, MODEL_UP), 2, l, &w->gu);
    if (r == 0 && !mixed) kn_mat_inner(w->gu.w);
    if (r == 0 && !mixed) r = pack(p, KN_SPLIT_SUM, W(MODEL_DOWN), 1, l, &w->down);
    if (r == 0) r = load_norm(p, MODEL_NORM_ATTN, MODEL_NORM_ATTN_BIAS, l, &w->norm_attn);
    if (r == 0) r = load_norm(p, MODEL_NORM_FFN, MODEL_NORM_FFN_BIAS, l, &w->norm_ffn);
    if (r == 0) r = vectors(p, W(MODEL_POST_ATTN), 1, l, &w->post_attn);
    if (r == 0) r = vectors(p, W(MODEL_POST_FFN), 1, l, &w->post_ffn);
    if (r == 0) r = heads_vectors(p, W(MODEL_K_BIAS, MODEL_V_BIAS), 2, l, &w->kv.bias);
    if (r == 0) r = heads_vectors(p, W(MODEL_Q_BIAS), 1, l, &w->q.bias);
    if (r == 0) r = vectors(p, W(MODEL_O_BIAS), 1, l, &w->o.bias);
    if (r == 0) r = heads_vectors(p, W(MODEL_SINKS), 1, l, &w->sinks);
    if (r == 0) r = vectors(p, W(MODEL_Q_NORM), 1, l, &w->q.norm);
    if (r == 0) r = vectors(p, W(MODEL_K_NORM), 1, l, &w->kv.norm);
    if (r == 0) r = unit_norm(p, l, &w->q.norm);
    if (r == 0) r = unit_norm(p, l, &w->kv.norm);
    set_kind(p->c, l);
    return r;
}

static double layer_params(const struct model_cfg *g, double F)
{
    return (double)g->D * (2.0 * g->H * g->K + 2.0 * g->G * g->K + 3.0 * F);
}

/* All that is loaded: experts that a token does not go through, too. */
static double weights_of_layers(const struct model_cfg *g)
{
    const struct model_experts *e = &g->experts;
    double sum = 0;
    for (unsigned l = 0; l < g->L; l++)
        sum += layer_params(g, is_mixed(g, l) ? (double)e->n * e->F + e->shared_F
                               : e->n         ? e->dense_F
                                              : g->F);
    return sum;
}

static int load_weights(struct fus_core *c, const struct fus_core_opts *o)
{
    struct packer p = {.c = c, .o = o};
    const bool cut = c->cfg.V % kn_info(c->dev)->n_ranks == 0; /* else each makes all logits */
    const struct as as_embed = {kn_mat_create_full, KN_SPLIT_NONE},
                    as_head = {kn_mat_create_full, cut ? KN_SPLIT_VOCAB : KN_SPLIT_NONE};
    size_t widest = c->cfg.D > c->cfg.F ? c->cfg.D : c->cfg.F;
    if (widest < (size_t)c->cfg.H * c->cfg.K) widest = (size_t)c->cfg.H * c->cfg.K;
    p.cap = widest > (1u << 20) ? widest : 1u << 20; /* chosen: 4 MiB slices */
    p.total =
        weights_of_layers(&c->cfg) + (kn_info(c->dev)->is_host ? 1.0 : 2.0) * c->cfg.V * c->cfg.D;
    p.rows = mem_aligned(64, p.cap * sizeof(*p.rows));
    c->layer = mem_zalloc(c->cfg.L * sizeof(*c->layer));
    int r = p.rows && c->layer ? 0 : -ENOMEM;
    for (unsigned l = 0; r == 0 && l < c->cfg.L; l++) {
        if (l + 1 < c->cfg.L) model_read_ahead(c->model, l + 1);
        r = load_layer(&p, l);
        model_drop_pages(c->model); /* else the file is in memory twice until the last layer */
    }
    if (r == 0) r = load_norm(&p, MODEL_NORM_OUT, MODEL_NORM_OUT_BIAS, 0, &c->norm_out);
    if (r == 0 && !c->norm_out.w) r = -EBADMSG;
    if (r == 0) r = pack_as(&p, as_head, W(MODEL_LM_HEAD), 1, 0, &c->lm_head);
    if (r == 0 && !kn_info(c->dev)->is_host)
        r = pack_as(&p, as_embed, W(MODEL_EMBED), 1, 0, &c->embed);
    model_drop_pages(c->model);
    mem_free(p.rows);
    return r;
}

/* A GPU makes 16 bits of what the file has in fewer, unless it is told not to. */
static bool is_larger_than_file(const struct fus_core *c, const struct kn_dev_opts *o)
{
    const struct codes_form f = model_form(c->model, MODEL_O, 0);
    return !kn_info(c->dev)->is_host && o->weights != KN_WEIGHTS_FILE && is_codes(&f);
}

static int open_device(struct fus_core *c, const struct kn_dev_opts *opts, struct err *err)
{
    const struct model_cfg *g = &c->cfg;
    const size_t HK = (size_t)g->H * g->K, GK = (size_t)g->G * g->K;
    const struct kn_shape shapes[] = {{HK + 2 * GK, g->D, false, KN_SPLIT_HEADS},
                                      {2 * GK, g->D, false, KN_SPLIT_HEADS},
                                      {HK, g->D, false, KN_SPLIT_HEADS},
                                      {g->D, HK, false, KN_SPLIT_SUM},
                                      {2 * (size_t)g->F, g->D, true, KN_SPLIT_HEADS},
                                      {g->D, g->F, false, KN_SPLIT_SUM}};
    struct kn_dev_opts o = *opts;
    /* 512 rows: chosen, a prompt's block sizes without slowing the start-up much. */
    o.tune = (struct kn_tuning){.shapes = shapes,
                                .n_shapes = sizeof(shapes) / sizeof(shapes[0]),
                                .rows = 512,
                                .rows_max = c->ctx_max,
                                .H = g->H,
                                .G = g->G,
                                .K = g->K,
                                .keys_max = g->sinks || g->attn_cap > 0 ? 0 : c->ctx_max};
    return kn_dev_create(&o, &c->dev, err);
}

/* ---- rope tables ---- */

/* cos, then sin [ctx_max, n_rot/2] of each position, into the tables of kind i. */
static int make_rope(struct fus_core *c, const struct model_rope *settings, size_t i, float *tab,
                     float *freq)
{
    const size_t half = c->cfg.n_rot / 2, n = (size_t)c->ctx_max * half;
    const struct model_rope r = model_rope_for(settings, c->ctx_max);
    float *to = c->rope_tab + i * 2 * n, mscale = 1;
    model_rope_freqs(&c->cfg, &r, freq, &mscale);
    for (size_t p = 0; p < c->ctx_max; p++)
        for (size_t j = 0; j < half; j++) {
            const double angle = (double)p * (double)freq[j];
            tab[p * half + j] = (float)cos(angle);
            tab[n + p * half + j] = (float)sin(angle);
        }
    c->rope[i] = (struct kn_rope){.K = c->cfg.K,
                                  .n_rot = c->cfg.n_rot,
                                  .cos = to,
                                  .sin = to + n,
                                  .pos_cap = c->ctx_max,
                                  .mscale = mscale};
    return kn_mem_copy(c->dev, to, tab, 2 * n * sizeof(*tab));
}

static bool same_rope(const struct model_rope *a, const struct model_rope *b)
{
    return a->type == b->type && a->base == b->base && a->factor == b->factor &&
           a->freq_factors == b->freq_factors;
}

static int make_ropes(struct fus_core *c)
{
    const struct model_cfg *g = &c->cfg;
    const size_t half = g->n_rot / 2, n = (size_t)c->ctx_max * half;
    const size_t kinds = same_rope(&g->rope, &g->rope_local) ? 1 : 2;
    float *freq = mem_alloc(half * sizeof(*freq));
    float *tab = mem_alloc(2 * n * sizeof(*tab));
    c->rope_tab = kn_mem_alloc(c->dev, KN_MEM_DEVICE, kinds * 2 * n * sizeof(*tab));
    int r = freq && tab && c->rope_tab ? 0 : -ENOMEM;
    if (r == 0) r = make_rope(c, &g->rope, 0, tab, freq);
    if (r == 0 && kinds > 1) r = make_rope(c, &g->rope_local, 1, tab, freq);
    if (kinds == 1) c->rope[1] = c->rope[0];
    mem_free(freq);
    mem_free(tab);
    return r;
}

/* ---- page pool ---- */

uint32_t fus_pages_for(uint32_t n_tokens)
{
    return n_tokens / KN_PAGE + (n_tokens % KN_PAGE != 0);
}

/* What a prefill of the longest prompt needs beside pages and weights: rows of a step in all their
 * forms, with a quarter more because scratch grows by so much, and the residual of all rows twice.
 */
static uint64_t work_bytes(const struct fus_core *c)
{
    const struct model_cfg *g = &c->cfg;
    const uint64_t D = g->D, F = g->F, HK = (uint64_t)g->H * g->K, GK = (uint64_t)g->G * g->K;
    const uint64_t ff = 12 * F + 4 * g->experts.used * D; /* what each expert gives comes behind */
    uint64_t rows = fus_slice_rows(c, c->ctx_max) * 3 / 2;
    if (rows > c->ctx_max) rows = c->ctx_max;
    return rows * (ff + 12 * HK + 8 * GK + 8 * D) / 4 * 5 + (uint64_t)c->ctx_max * 8 * D;
}

/* Chosen: 7/8 of what is left, or what prefills leave of it; every rank of a group works with whole
 * rows. */
static uint64_t auto_bytes(const struct fus_core *c)
{
    if (kn_info(c->dev)->is_host) return 0;
    const uint64_t free_bytes = kn_dev_memory(c->dev).free_bytes,
                   work = work_bytes(c) * kn_info(c->dev)->n_ranks;
    const uint64_t most = free_bytes / 8 * 7;
    if (work >= free_bytes) return free_bytes / 8; /* long prompts will be told so */
    return free_bytes - work < most ? free_bytes - work : most;
}

/* Room for three layers of the longest prompt on the device beside their pages (one that is read,
 * one behind it, one that comes), 256 MiB at most (chosen: what does not fit comes later). */
static int make_stage(struct fus_core *c)
{
    const size_t row = 2 * (size_t)c->cfg.G * c->cfg.K * kn_info(c->dev)->kv_value_bytes;
    const size_t want = 3 * row * c->ctx_max, most = 256u << 20;
    return kn_stage_room(c->dev, want < most ? want : most);
}

static int make_pool(struct fus_core *c, uint64_t kv_bytes)
{
    const uint64_t page_bytes = c->page_bytes;
    uint64_t want = kv_bytes == FUS_KV_AUTO ? auto_bytes(c) : kv_bytes;
    if (want == 0) {
        want = 8 * fus_pages_for(c->ctx_max) * page_bytes;
        if (want > (uint64_t)2 << 30) want = (uint64_t)2 << 30;
    }
    const uint64_t n = want / page_bytes;
    if (n == 0 || n > INT32_MAX) return n == 0 ? -ENOMEM : -ERANGE;
    c->pool_bytes = n * page_bytes;
    c->pool = kn_mem_alloc(c->dev, KN_MEM_HEADS, c->pool_bytes);
    if (!c->pool) return -ENOMEM;
    c->free_page = mem_alloc(n * sizeof(*c->free_page));
    c->page_ref = mem_zalloc(n * sizeof(*c->page_ref));
    if (!c->free_page || !c->page_ref) return -ENOMEM;
    int r = fus_prefix_sharing_create((uint32_t)n, &c->sharing);
    if (r < 0) return r;
    c->n_pages = c->n_free = (uint32_t)n;
    for (uint32_t i = 0; i < c->n_pages; i++)
        c->free_page[i] = (int32_t)(c->n_pages - 1 - i);
    return 0;
}

static int32_t page_take(struct fus_core *c)
{
    ASSERT(c->n_free > 0);
    if (c->lender.lend) (void)kn_fence(c->dev); /* a record that is being read may make way */
    c->n_free--;
    const int32_t id = c->lender.lend ? c->lender.lend(c->lender.ctx) : c->free_page[c->n_free];
    ASSERT(c->page_ref[id] == 0);
    c->page_ref[id] = 1;
    if ((uint32_t)id >= c->n_touched) c->n_touched = (uint32_t)id + 1;
    if (c->n_pages - c->n_free > c->used_max) c->used_max = c->n_pages - c->n_free;
    return id;
}

/* Pages are taken from the first one on, and those given back before new ones. */
bool fus_core_warm_page(struct fus_core *c)
{
    const uint64_t want = (uint64_t)c->used_max + c->session_max;
    if (c->n_touched >= c->n_pages || c->n_touched >= want) return false;
    if (!kn_info(c->dev)->is_host || c->lender.lend) return false;
    mem_touch(c->pool + (size_t)c->n_touched++ * c->page_bytes, c->page_bytes);
    return true;
}

void fus_page_share(struct fus_core *c, int32_t page)
{
    ASSERT(c->page_ref[page] > 0 && c->page_ref[page] < UINT16_MAX);
    c->page_ref[page]++;
    c->n_doubled++;
}

/* Debug builds: a read of a free page finds NaNs, not another session's KV. */
static void page_spoil(struct fus_core *c, int32_t page)
{
#ifdef KV_DEBUG
    if (kn_info(c->dev)->is_host) memset(c->pool + page * c->page_bytes, 0xff, c->page_bytes);
#endif
}

void fus_page_give(struct fus_core *c, int32_t page)
{
    ASSERT(c->page_ref[page] > 0);
    if (--c->page_ref[page] > 0) {
        c->n_doubled--;
        return;
    }
    fus_prefix_sharing_forget(c->sharing, page);
    page_spoil(c, page);
    if (c->lender.lend)
        c->lender.take_back(c->lender.ctx, page);
    else
        c->free_page[c->n_free] = page;
    c->n_free++;
}

struct fus_pool fus_core_pool(const struct fus_core *c)
{
    return (struct fus_pool){c->pool, c->page_bytes, c->n_pages};
}

void fus_core_share_pool(struct fus_core *c, const struct fus_lender *l, uint32_t n_kept)
{
    ASSERT(c->n_free == c->n_pages && n_kept < c->n_pages);
    c->lender = *l;
    c->n_pages -= n_kept;
    c->n_free = c->n_pages;
}

static void block_free(struct fus_core *c, struct fus_block *b)
{
    kn_mem_free(c->dev, b->device);
    kn_mem_free(c->dev, b->heads);
    kn_mem_free(c->dev, b->shared);
    *b = (struct fus_block){0};
}

int fus_core_take_block(struct fus_core *c, const struct fus_block *want, struct fus_block *ret)
{
    struct fus_block b = *want;
    const struct fus_block *s = &c->spare;
    if (s->device && s->device_bytes >= want->device_bytes && s->heads_bytes >= want->heads_bytes &&
        s->shared_bytes >= want->shared_bytes) {
        *ret = c->spare;
        c->spare = (struct fus_block){0};
        return 0;
    }
    b.device = kn_mem_alloc(c->dev, KN_MEM_DEVICE, want->device_bytes);
    b.heads = kn_mem_alloc(c->dev, KN_MEM_HEADS, want->heads_bytes);
    b.shared = kn_mem_alloc(c->dev, KN_MEM_HOST, want->shared_bytes);
    if (!b.device || !b.heads || !b.shared) {
        block_free(c, &b);
        return -ENOMEM;
    }
    *ret = b;
    return 0;
}

void fus_core_give_block(struct fus_core *c, struct fus_block *b)
{
    if (b->device && b->device_bytes >= c->spare.device_bytes) {
        block_free(c, &c->spare);
        c->spare = *b;
        *b = (struct fus_block){0};
    }
    block_free(c, b);
}

/* ---- core ---- */

static int check_config(const struct model_cfg *g, struct err *err)
{
    if (g->L == 0 || g->D == 0 || g->H == 0 || g->G == 0 || g->K == 0 || g->F == 0 || g->V == 0)
        return err_set(err, -EINVAL, "model has an empty dimension");
    if (g->H % g->G != 0 || g->K % 2 != 0)
        return err_set(err, -ENOTSUP, "model with %u heads, %u KV heads of %u is not supported",
                       g->H, g->G, g->K);
    return 0;
}

/* Of a weight whose columns n ranks share, whole groups of codes for each. */
static int check_shared_codes(const struct fus_core *c, unsigned n, struct err *err)
{
    static const enum model_w shared[] = {MODEL_O, MODEL_DOWN, MODEL_EXPERT_DOWN,
                                          MODEL_SHARED_DOWN};
    const struct model *m = c->model;
    for (size_t i = 0; i < c->cfg.L * (sizeof(shared) / sizeof(shared[0])); i++) {
        const enum model_w w = shared[i / c->cfg.L];
        const unsigned l = (unsigned)(i % c->cfg.L);
        const bool there = w == MODEL_O || (w != MODEL_DOWN) == is_mixed(&c->cfg, l);
        if (!there || (w == MODEL_EXPERT_DOWN && !has_coded_experts(m, l))) continue;
        const struct codes_form f = model_form(m, w, l);
        const size_t k = model_w_cols(m, w);
        if (k && is_codes(&f) && !codes_form_fits(&f, k / n))
            return err_set(err, -ENOTSUP,
                           "%u GPUs cannot share this model in its file's codes: %zu columns are "
                           "not %u for each, or a multiple (other GPUs, or --dtype bf16)",
                           n, k, f.super ? CODES_SUPER : f.group);
    }
    return 0;
}

/* Whole KV heads, and equal shares of every width, a rank. */
static int check_ranks(const struct fus_core *c, enum kn_weights weights, struct err *err)
{
    const struct model_cfg *g = &c->cfg;
    const unsigned n = kn_info(c->dev)->n_ranks,
                   width[] = {g->G, g->F, g->experts.F, g->experts.shared_F, g->experts.dense_F};
    static const char *const name[] = {"KV heads", "feed-forward width", "width of an expert",
                                       "width of the shared expert", "width of a dense layer"};
    for (size_t i = 0; i < sizeof(width) / sizeof(width[0]); i++)
        if (width[i] % n && !(i == 1 && g->experts.n))
            return err_set(err, -ENOTSUP, "%u GPUs cannot share this model: %s %u (%s)", n, name[i],
                           width[i], kn_info(c->dev)->device);
    if (n > 1 && g->qk_norm_wide)
        return err_set(err, -ENOTSUP,
                       "%u GPUs cannot share this model: it norms all heads as one vector", n);
    const bool codes = weights == KN_WEIGHTS_FILE && kn_info(c->dev)->kv == KN_BF16;
    return n > 1 && codes ? check_shared_codes(c, n, err) : 0;
}

/* What is Llama 4's alone. */
static bool is_llama4(const struct model_cfg *g)
{
    return g->chunk || g->temp_floor > 0 || g->experts.scales_input;
}

int fus_core_create(const struct model *m, const struct fus_core_opts *o, struct fus_core **ret,
                    struct err *err)
{
    struct fus_core *c = mem_zalloc(sizeof(*c));
    if (!c) return err_set(err, -ENOMEM, "out of memory");
    c->model = m;
    c->cfg = *model_config(m);
    c->ctx_max = c->cfg.ctx_max;
    if (o->ctx_max && o->ctx_max < c->ctx_max) c->ctx_max = o->ctx_max;
    int r = check_config(&c->cfg, err);
    if (r < 0) goto fail;
    r = open_device(c, &o->dev, err);
    if (r == 0 && is_llama4(&c->cfg) && !kn_info(c->dev)->is_host)
        r = err_set(
            err, -ENOTSUP,
            "attention in chunks or with a temperature, and experts whose input is scaled, do "
            "not run on %s: use --device cpu",
            kn_info(c->dev)->device);
    if (r == 0) r = check_ranks(c, o->dev.weights, err);
    if (r < 0) goto fail;
    c->layer_stride = kn_kv_layer_values(kn_info(c->dev)->kv, c->cfg.G, c->cfg.K);
    c->page_stride = c->layer_stride * c->cfg.L;
    if (!kn_info(c->dev)->is_host) { /* whole 4 KiB, as records stand in shared pages */
        const size_t unit = 4096 / kn_info(c->dev)->kv_value_bytes;
        c->page_stride = (c->page_stride + unit - 1) / unit * unit;
    }
    c->page_bytes = c->page_stride * kn_info(c->dev)->kv_value_bytes;
    r = make_ropes(c);
    if (r == 0) r = load_weights(c, o);
    if (r < 0) {
        (void)err_set(err, r, "loading the weights failed (%s)%s", err_name(r),
                      r == -ENOMEM && is_larger_than_file(c, &o->dev)
                          ? ": --dtype file keeps the layers' in the file's own 4 to 8 bits"
                          : "");
        goto fail;
    }
    r = make_stage(c);
    if (r == 0) r = make_pool(c, o->kv_bytes); /* last: it may take what is left */
    if (r < 0) {
        (void)err_set(err, r, "no memory for the KV pages of running sequences");
        goto fail;
    }
    *ret = c;
    return 0;
fail:
    fus_core_destroy(c);
    return r;
}

static void experts_fini(struct kn_dev *d, struct kn_moe *w)
{
    for (unsigned i = 0; w->gate_up && w->down && i < w->n; i++) {
        kn_mat_destroy(w->gate_up[i]);
        kn_mat_destroy(w->down[i]);
    }
    kn_mat_destroy(w->router);
    kn_mat_destroy(w->shared_gate_up);
    kn_mat_destroy(w->shared_down);
    kn_mem_free(d, w->router_bias);
    kn_mem_free(d, w->gate_up_bias);
    kn_mem_free(d, w->down_bias);
    mem_free(w->gate_up);
    mem_free(w->down);
}

static void norm_fini(struct kn_dev *d, struct fus_norm *n)
{
    kn_mem_free(d, n->w);
    kn_mem_free(d, n->bias);
}

static void layer_fini(struct kn_dev *d, struct fus_layer *w)
{
    const struct fus_linear *const linear[] = {&w->kv, &w->q, &w->qkv, &w->o, &w->gu, &w->down};
    for (size_t i = 0; i < sizeof(linear) / sizeof(linear[0]); i++) {
        kn_mat_destroy(linear[i]->w);
        kn_mem_free(d, linear[i]->bias);
        kn_mem_free(d, linear[i]->norm);
    }
    norm_fini(d, &w->norm_attn);
    norm_fini(d, &w->norm_ffn);
    kn_mem_free(d, w->post_attn);
    kn_mem_free(d, w->post_ffn);
    kn_mem_free(d, w->sinks);
    experts_fini(d, &w->moe);
}

void fus_core_destroy(struct fus_core *c)
{
    if (!c) return;
    ASSERT(c->n_free == c->n_pages); /* a session outlived its core */
    if (!c->dev) {
        mem_free(c);
        return;
    }
    for (unsigned l = 0; c->layer && l < c->cfg.L; l++)
        layer_fini(c->dev, &c->layer[l]);
    mem_free(c->layer);
    kn_mat_destroy(c->lm_head.w);
    norm_fini(c->dev, &c->norm_out);
    kn_mat_destroy(c->embed.w);
    kn_mem_free(c->dev, c->rope_tab);
    kn_mem_free(c->dev, c->pool);
    mem_free(c->free_page);
    mem_free(c->page_ref);
    fus_prefix_sharing_destroy(c->sharing);
    block_free(c, &c->spare);
    fus_decode_fini(c);
    kn_dev_destroy(c->dev);
    mem_free(c);
}

const struct model_cfg *fus_core_config(const struct fus_core *c)
{
    return &c->cfg;
}

struct kn_dev *fus_core_dev(const struct fus_core *c)
{
    return c->dev;
}

unsigned fus_core_ctx_max(const struct fus_core *c)
{
    return c->ctx_max;
}

/* The weights that a token goes through in a layer, or as many; how many there are. */
static size_t layer_mats(const struct fus_layer *w, struct kn_mat **ret)
{
    struct kn_mat *const every[] = {
        w->qkv.w,  w->qkv.w ? NULL : w->kv.w, w->qkv.w ? NULL : w->q.w, w->o.w, w->gu.w,
        w->down.w, w->moe.shared_gate_up,     w->moe.shared_down};
    size_t n = 0;
    for (size_t i = 0; i < sizeof(every) / sizeof(every[0]); i++)
        if (every[i]) ret[n++] = every[i];
    for (unsigned i = 0; i < w->moe.used; i++) {
        ret[n++] = w->moe.gate_up[i];
        ret[n++] = w->moe.down[i];
    }
    return n;
}

double fus_core_gemm_gflops(struct fus_core *c, size_t rows)
{
    const size_t most = 7 + 2 * (size_t)c->cfg.experts.used;
    struct kn_mat **w = mem_alloc(most * c->cfg.L * sizeof(struct kn_mat *));
    size_t n = 0;
    if (!w) return 0;
    for (unsigned l = 0; l < c->cfg.L; l++)
        n += layer_mats(&c->layer[l], w + n);
    const double rate = kn_dev_gemm_gflops(c->dev, w, n, rows);
    mem_free(w);
    return rate;
}

void fus_core_each_weight(const struct fus_core *c, fus_weight_fn fn, void *ctx)
{
    for (unsigned l = 0; l < c->cfg.L; l++) {
        const struct fus_layer *w = &c->layer[l];
        const struct {
            const char *name;
            const struct kn_mat *w;
        } every[] = {{"qkv", w->qkv.w}, {"kv", w->kv.w},      {"q", w->q.w},
                     {"o", w->o.w},     {"gate_up", w->gu.w}, {"down", w->down.w}};
        for (size_t i = 0; i < sizeof(every) / sizeof(every[0]); i++)
            if (every[i].w) fn(ctx, every[i].name, every[i].w);
    }
    if (c->lm_head.w) fn(ctx, "head", c->lm_head.w);
}

double fus_core_linear_params(const struct fus_core *c)
{
    return layer_params(&c->cfg, c->cfg.F) * c->cfg.L;
}

uint32_t fus_core_kv_tokens_free(const struct fus_core *c)
{
    return c->n_free * KN_PAGE;
}

uint32_t fus_core_kv_tokens_shared(const struct fus_core *c)
{
    return c->n_doubled * KN_PAGE;
}

/* ---- sessions ---- */

static void session_free(struct fus_session *s)
{
    if (s->page_dev != s->page) kn_mem_free(s->core->dev, s->page_dev);
    mem_free(s->page);
    mem_free(s);
}

static int session_alloc(struct fus_core *c, uint32_t cap_tokens, struct fus_session **ret)
{
    if (cap_tokens == 0) return -EINVAL;
    if (cap_tokens > c->ctx_max) return -ERANGE;
    struct fus_session *s = mem_zalloc(sizeof(*s));
    if (!s) return -ENOMEM;
    s->core = c;
    s->cap_tokens = cap_tokens;
    s->n_pages = fus_pages_for(cap_tokens);
    s->page = mem_alloc(s->n_pages * sizeof(*s->page));
    s->page_dev = s->page;
    if (!kn_info(c->dev)->is_host)
        s->page_dev = kn_mem_alloc(c->dev, KN_MEM_TABLE, s->n_pages * sizeof(*s->page));
    if (!s->page || !s->page_dev) {
        session_free(s);
        return -ENOMEM;
    }
    *ret = s;
    return 0;
}

/* The device's copy of the page table follows. */
int fus_session_pages_changed(struct fus_session *s)
{
    if (s->page_dev == s->page) return 0;
    return kn_mem_copy(s->core->dev, s->page_dev, s->page, s->n_pages * sizeof(*s->page));
}

int fus_session_create(struct fus_core *c, uint32_t cap_tokens, struct fus_session **ret)
{
    struct fus_session *s = NULL;
    if (cap_tokens <= c->ctx_max && fus_pages_for(cap_tokens) > c->n_free) return -ENOMEM;
    int r = session_alloc(c, cap_tokens, &s);
    if (r < 0) return r;
    for (uint32_t i = 0; i < s->n_pages; i++)
        s->page[i] = page_take(c);
    if (s->n_pages > c->session_max) c->session_max = s->n_pages;
    r = fus_session_pages_changed(s);
    if (r < 0)
        fus_session_destroy(s);
    else
        *ret = s;
    return r;
}

void fus_session_destroy(struct fus_session *s)
{
    if (!s) return;
    for (uint32_t i = 0; i < s->n_pages; i++)
        fus_page_give(s->core, s->page[i]);
    session_free(s);
}

uint32_t fus_session_len(const struct fus_session *s)
{
    return s->len;
}

void fus_session_drop(struct fus_session *s, uint32_t n)
{
    ASSERT(n <= s->len);
    s->len -= n;
}

struct kn_kv fus_pool_kv(const struct fus_core *c)
{
    return (struct kn_kv){.base = c->pool,
                          .page_stride = c->page_stride,
                          .layer_stride = c->layer_stride,
                          .G = c->cfg.G,
                          .K = c->cfg.K};
}

struct kn_kv fus_session_kv(const struct fus_session *s)
{
    struct kn_kv kv = fus_pool_kv(s->core);
    kv.pages = s->page_dev;
    kv.n_pages = s->n_pages;
    return kv;
}

static int page_copy(struct fus_core *c, int32_t to, int32_t from)
{
    return kn_mem_copy(c->dev, c->pool + (size_t)to * c->page_bytes,
                       c->pool + (size_t)from * c->page_bytes, c->page_bytes);
}

int fus_session_own(struct fus_session *s, uint32_t from)
{
    struct fus_core *c = s->core;
    bool changed = false;
    int r = 0;
    for (uint32_t i = from / KN_PAGE; i < s->n_pages; i++) {
        const int32_t old = s->page[i];
        if (c->page_ref[old] == 1) {
            fus_prefix_sharing_forget(c->sharing, old);
            continue;
        }
        if (c->n_free == 0) return -ENOMEM;
        s->page[i] = page_take(c);
        if (i * KN_PAGE < s->len && r == 0) r = page_copy(c, s->page[i], old);
        fus_page_give(c, old);
        changed = true;
    }
    if (changed && r == 0) r = fus_session_pages_changed(s);
    return r;
}

int fus_session_fork(struct fus_session *s, uint32_t cap_tokens, struct fus_session **ret)
{
    struct fus_core *c = s->core;
    struct fus_session *f = NULL;
    if (cap_tokens < s->len) return -EINVAL;
    const uint32_t shared = s->len / KN_PAGE; /* full pages, never written again */
    if (cap_tokens <= c->ctx_max && fus_pages_for(cap_tokens) - shared > c->n_free) return -ENOMEM;
    int r = session_alloc(c, cap_tokens, &f);
    if (r < 0) return r;
    for (uint32_t i = 0; i < f->n_pages; i++) {
        if (i < shared) {
            f->page[i] = s->page[i];
            fus_page_share(c, f->page[i]);
        } else {
            f->page[i] = page_take(c);
        }
    }
    f->len = s->len;
    if (s->len % KN_PAGE) r = page_copy(c, f->page[shared], s->page[shared]);
    if (r == 0) r = fus_session_pages_changed(f);
    if (r < 0)
        fus_session_destroy(f);
    else
        *ret = f;
    return r;
}
