/* tiny_model: see the header. Weights are a hash of (seed, kind, layer, index): nothing is stored.
 */
#include "tests/unit/fusor/tiny_model.h"

#include "base/mem.h"
#include "tests/test.h"

struct model {
    struct model_cfg cfg;
    uint64_t seed;
    bool q4;
    uint8_t layers[64];
};

static void set_layers(struct model *m, const struct tiny_opts *o)
{
    for (unsigned l = 0; l < m->cfg.L; l++) {
        const bool still = o->nope_every && (l + 1) % o->nope_every == 0;
        const bool local =
            (o->window || o->chunk) && (!o->local_every || (l + 1) % o->local_every != 0);
        const bool dense = o->experts.every && (l + 1) % o->experts.every != 0;
        m->layers[l] = (uint8_t)((local ? MODEL_LAYER_LOCAL : 0) | (still ? MODEL_LAYER_NOPE : 0) |
                                 (dense ? MODEL_LAYER_DENSE : 0));
    }
    m->cfg.layers = m->layers;
    m->cfg.window = o->window;
    m->cfg.chunk = o->chunk;
}

static unsigned or_default(unsigned v, unsigned d)
{
    return v ? v : d;
}

int tiny_model_create(const struct tiny_opts *o, struct model **ret)
{
    struct model *m = mem_zalloc(sizeof(*m));
    if (!m) return -ENOMEM;
    m->seed = o->seed ? o->seed : 1;
    m->q4 = o->q4;
    m->cfg = (struct model_cfg){.arch = "llama",
                                .name = "tiny",
                                .L = or_default(o->L, 4),
                                .D = or_default(o->D, 32),
                                .H = or_default(o->H, 4),
                                .G = or_default(o->G, 2),
                                .K = or_default(o->K, 16),
                                .F = or_default(o->F, 48),
                                .V = or_default(o->V, 96),
                                .ctx_max = or_default(o->ctx_max, 512),
                                .experts = o->experts,
                                .rms_eps = 1e-5f,
                                .qkv_bias = o->qkv_bias,
                                .o_bias = o->o_bias,
                                .qk_norm = o->qk_norm || o->qk_norm_wide,
                                .qk_norm_wide = o->qk_norm_wide,
                                .qk_unit = o->qk_unit,
                                .temp_floor = o->temp_floor,
                                .temp_scale = o->temp_scale,
                                .norms = o->norms,
                                .sinks = o->sinks,
                                .layernorm = o->layernorm,
                                .act = o->clamped ? KN_SILU_CLAMPED
                                       : o->gelu  ? KN_GELU_TANH
                                                  : KN_SILU,
                                .attn_cap = o->attn_cap,
                                .logit_cap = o->logit_cap,
                                .embed_scale = o->embed_scale > 0 ? o->embed_scale : 1,
                                .logit_scale = o->logit_scale > 0 ? o->logit_scale : 1,
                                .file_f32 = true};
    if (o->experts.n) m->cfg.F = o->experts.used * o->experts.F + o->experts.shared_F;
    if (m->cfg.F < o->experts.dense_F) m->cfg.F = o->experts.dense_F;
    m->cfg.attn_scale = (float)(1 / sqrt((double)m->cfg.K));
    m->cfg.rope.base = 10000;
    m->cfg.rope.type = o->yarn > 1 ? ROPE_YARN : ROPE_NONE;
    m->cfg.rope.factor = o->yarn;
    m->cfg.rope_local = m->cfg.rope;
    if (o->local_base > 0) m->cfg.rope_local = (struct model_rope){.base = o->local_base};
    m->cfg.n_rot = or_default(o->n_rot, m->cfg.K);
    ASSERT_TRUE(m->cfg.L <= sizeof m->layers);
    set_layers(m, o);
    *ret = m;
    return 0;
}

void model_close(struct model *m)
{
    mem_free(m);
}

const struct model_cfg *model_config(const struct model *m)
{
    return &m->cfg;
}

bool model_has(const struct model *m, enum model_w w, unsigned layer)
{
    switch (w) {
    case MODEL_Q_BIAS:
    case MODEL_K_BIAS:
    case MODEL_V_BIAS:
        return m->cfg.qkv_bias;
    case MODEL_O_BIAS:
        return m->cfg.o_bias;
    case MODEL_Q_NORM:
    case MODEL_K_NORM:
        return m->cfg.qk_norm;
    case MODEL_NORM_ATTN:
    case MODEL_NORM_FFN:
        return m->cfg.norms != MODEL_NORMS_BEHIND;
    case MODEL_POST_ATTN:
    case MODEL_POST_FFN:
        return m->cfg.norms != MODEL_NORMS_BEFORE;
    case MODEL_NORM_OUT_BIAS:
    case MODEL_NORM_ATTN_BIAS:
    case MODEL_NORM_FFN_BIAS:
        return m->cfg.layernorm;
    case MODEL_SHARED_GATE:
    case MODEL_SHARED_UP:
    case MODEL_SHARED_DOWN:
        return m->cfg.experts.shared_F > 0;
    case MODEL_SHARED_ROUTER:
        return m->cfg.experts.shared_F > 0 && !m->cfg.experts.scales_input;
    case MODEL_SINKS:
        return m->cfg.sinks;
    case MODEL_ROUTER_BIAS:
    case MODEL_EXPERT_GATE_BIAS:
    case MODEL_EXPERT_UP_BIAS:
    case MODEL_EXPERT_DOWN_BIAS:
        return m->cfg.experts.biases;
    default:
        return layer < m->cfg.L;
    }
}

static void shape(const struct model_cfg *c, enum model_w w, size_t *rows, size_t *cols)
{
    const size_t HK = (size_t)c->H * c->K, GK = (size_t)c->G * c->K;
    const size_t F = c->experts.n ? c->experts.dense_F : c->F;
    *rows = 1;
    *cols = c->D;
    switch (w) {
    case MODEL_EMBED:
    case MODEL_LM_HEAD:
        *rows = c->V;
        break;
    case MODEL_Q:
        *rows = HK;
        break;
    case MODEL_K:
    case MODEL_V:
        *rows = GK;
        break;
    case MODEL_O:
        *rows = c->D, *cols = HK;
        break;
    case MODEL_GATE:
    case MODEL_UP:
        *rows = F;
        break;
    case MODEL_DOWN:
        *rows = c->D, *cols = F;
        break;
    case MODEL_ROUTER:
        *rows = c->experts.n;
        break;
    case MODEL_EXPERT_GATE:
    case MODEL_EXPERT_UP:
        *rows = (size_t)c->experts.n * c->experts.F;
        break;
    case MODEL_EXPERT_DOWN:
        *rows = (size_t)c->experts.n * c->D, *cols = c->experts.F;
        break;
    case MODEL_SHARED_GATE:
    case MODEL_SHARED_UP:
        *rows = c->experts.shared_F;
        break;
    case MODEL_SHARED_DOWN:
        *rows = c->D, *cols = c->experts.shared_F;
        break;
    case MODEL_SINKS:
        *cols = c->H;
        break;
    case MODEL_ROUTER_BIAS:
        *cols = c->experts.n;
        break;
    case MODEL_EXPERT_GATE_BIAS:
    case MODEL_EXPERT_UP_BIAS:
        *rows = (size_t)c->experts.n * c->experts.F, *cols = 1;
        break;
    case MODEL_EXPERT_DOWN_BIAS:
        *rows = (size_t)c->experts.n * c->D, *cols = 1;
        break;
    case MODEL_Q_BIAS:
        *cols = HK;
        break;
    case MODEL_K_BIAS:
    case MODEL_V_BIAS:
        *cols = GK;
        break;
    case MODEL_Q_NORM:
        *cols = c->qk_norm_wide ? HK : c->K;
        break;
    case MODEL_K_NORM:
        *cols = c->qk_norm_wide ? GK : c->K;
        break;
    default:
        break;
    }
}

size_t model_w_rows(const struct model *m, enum model_w w)
{
    size_t r, c;
    shape(&m->cfg, w, &r, &c);
    return r;
}

size_t model_w_cols(const struct model *m, enum model_w w)
{
    size_t r, c;
    shape(&m->cfg, w, &r, &c);
    return c;
}

/* Uniform in (-1, 1). */
static float noise(const struct model *m, enum model_w w, unsigned layer, size_t i)
{
    uint64_t s = m->seed * 1000003 + (uint64_t)w * 8191 + layer * 131071u + i * 0x9e3779b97f4a7c15u;
    (void)test_rand(&s);
    return (float)((double)(test_rand(&s) >> 11) * 0x1p-52 - 1);
}

enum { Q4_GROUP = 32, Q4_D = 0x2c00 }; /* 2^-4 as f16 */

struct codes_form model_form(const struct model *m, enum model_w w, unsigned layer)
{
    const bool router = w == MODEL_ROUTER || w == MODEL_SHARED_ROUTER;
    const bool whole = model_w_rows(m, w) > 1 && model_w_cols(m, w) % Q4_GROUP == 0;
    if (!m->q4 || !whole || router || w == MODEL_EMBED || w == MODEL_LM_HEAD)
        return (struct codes_form){0};
    return (struct codes_form)CODES_PLAIN(4, -8, false);
}

/* Of 2^-4 each. */
static int8_t code(float x)
{
    const float q = roundf(x * 16);
    return (int8_t)(q < -8 ? -8 : q > 7 ? 7 : q);
}

int model_rows(const struct model *m, enum model_w w, unsigned layer, size_t row0, size_t n,
               float *out)
{
    size_t rows, cols;
    shape(&m->cfg, w, &rows, &cols);
    if (row0 + n > rows) return -EINVAL;
    const bool norm = w == MODEL_NORM_ATTN || w == MODEL_NORM_FFN || w == MODEL_NORM_OUT ||
                      (w >= MODEL_Q_NORM && w <= MODEL_POST_FFN);
    /* Large enough that attention is peaked and tokens matter to each other. */
    const float size = w == MODEL_EMBED ? 1 : (float)(3.0 / sqrt((double)cols));
    const bool coded = model_form(m, w, layer).bits > 0;
    for (size_t i = 0; i < n * cols; i++) {
        const float x = noise(m, w, layer, row0 * cols + i);
        out[i] = norm ? 1 + 0.3f * x : w == MODEL_SINKS ? 2 * x : rows == 1 ? 0.2f * x : size * x;
        if (coded) out[i] = (float)code(out[i]) * 0x1p-4f;
    }
    return 0;
}

size_t model_codes_group(const struct model *m, enum model_w w, unsigned layer)
{
    return 16;
}

size_t model_codes_room(size_t cols)
{
    return cols + cols / Q4_GROUP * sizeof(uint16_t);
}

void model_codes_place(size_t cols, size_t n, void *room, struct codes_row *ret)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t *d = (uint16_t *)((char *)room + i * model_codes_room(cols));
        ret[i] = (struct codes_row){.q = (int8_t *)(d + cols / Q4_GROUP), .d = d};
    }
}

int model_codes(const struct model *m, enum model_w w, unsigned layer, size_t row0, size_t n,
                const struct codes_row *rows)
{
    const size_t cols = model_w_cols(m, w);
    float *x = mem_alloc(n * cols * sizeof *x);
    int r = x ? model_rows(m, w, layer, row0, n, x) : -ENOMEM;
    for (size_t i = 0; r == 0 && i < n * cols; i++)
        rows[i / cols].q[i % cols] = code(x[i]);
    for (size_t i = 0; i < n * (cols / Q4_GROUP); i++)
        rows[i / (cols / Q4_GROUP)].d[i % (cols / Q4_GROUP)] = Q4_D;
    mem_free(x);
    return r;
}

bool model_random(const struct model *m, enum model_w w, unsigned layer, struct rng_field *ret)
{
    return false;
}

void model_drop_pages(const struct model *m)
{
}

void model_read_ahead(const struct model *m, unsigned layer)
{
}

struct model_rope model_rope_for(const struct model_rope *r, unsigned ctx)
{
    return *r;
}

void model_rope_freqs(const struct model_cfg *c, const struct model_rope *r, float *ret_inv_freq,
                      float *ret_mscale)
{
    const unsigned half = c->n_rot / 2;
    const bool yarn = r->type == ROPE_YARN;
    for (unsigned i = 0; i < half; i++) {
        const double f = pow(r->base, -2.0 * i / c->n_rot);
        const double ramp = (double)i / half; /* any smooth mix will do for a test */
        ret_inv_freq[i] = (float)(yarn ? f * (1 - ramp) + f / r->factor * ramp : f);
    }
    *ret_mscale = yarn ? (float)(0.1 * log(r->factor) + 1) : 1;
}

/* ---- reference ---- */

struct ref {
    const struct model *m;
    const struct model_cfg *c;
    size_t n;
    double *x;     /* [n, D] */
    double *k, *v; /* [n, G*K] of the layer, K rotated */
    unsigned layer;
    float inv[256];
    float mscale;
    size_t gap0, gap; /* of this layer */
};

static float *weight(const struct model *m, enum model_w w, unsigned layer)
{
    const size_t rows = model_w_rows(m, w), cols = model_w_cols(m, w);
    float *p = mem_alloc(rows * cols * sizeof(*p));
    if (!p || model_rows(m, w, layer, 0, rows, p) < 0) test_fail(__FILE__, __LINE__, "no weight");
    return p;
}

/* bias NULL: about 0, not about the mean. */
static void norm(const double *x, size_t n, const float *w, const float *bias, double eps,
                 double *out)
{
    double mean = 0, ss = 0;
    for (size_t i = 0; bias && i < n; i++)
        mean += x[i] / (double)n;
    for (size_t i = 0; i < n; i++)
        ss += (x[i] - mean) * (x[i] - mean);
    const double s = 1 / sqrt(ss / (double)n + eps);
    for (size_t i = 0; i < n; i++)
        out[i] = (x[i] - mean) * s * (double)w[i] + (bias ? (double)bias[i] : 0);
}

/* out[rows] (+)= W x (+ bias) */
static void mul(const struct ref *r, enum model_w w, enum model_w bias, unsigned layer,
                const double *x, size_t n_x, double *out, bool add)
{
    const size_t rows = model_w_rows(r->m, w), cols = model_w_cols(r->m, w);
    float *p = weight(r->m, w, layer), *b = NULL;
    if (bias != MODEL_W_COUNT && model_has(r->m, bias, layer)) b = weight(r->m, bias, layer);
    for (size_t t = 0; t < n_x; t++)
        for (size_t i = 0; i < rows; i++) {
            double s = b ? (double)b[i] : 0;
            for (size_t j = 0; j < cols; j++)
                s += (double)p[i * cols + j] * x[t * cols + j];
            out[t * rows + i] = add ? out[t * rows + i] + s : s;
        }
    mem_free(p);
    mem_free(b);
}

static bool rotates(const struct ref *r)
{
    return !model_layer_is(r->c, r->layer, MODEL_LAYER_NOPE);
}

/* Where the model says so, each head of x [n, heads, K], which is rotated, over its root mean
 * square. */
static void unit_heads(const struct ref *r, double *x, size_t heads)
{
    if (!r->c->qk_unit || !rotates(r)) return;
    for (size_t i = 0; i < r->n * heads; i++) {
        double *p = x + i * r->c->K, ss = 0;
        for (size_t j = 0; j < r->c->K; j++)
            ss += p[j] * p[j];
        for (size_t j = 0; j < r->c->K; j++)
            p[j] /= sqrt(ss / r->c->K + (double)r->c->rms_eps);
    }
}

static void head_norms(const struct ref *r, enum model_w w, unsigned layer, double *x, size_t heads)
{
    if (!model_has(r->m, w, layer)) return;
    float *p = weight(r->m, w, layer);
    const size_t n = model_w_cols(r->m, w);
    for (size_t i = 0; i < r->n * heads * r->c->K; i += n)
        norm(x + i, n, p, NULL, (double)r->c->rms_eps, x + i);
    mem_free(p);
}

/* n rows [D] of x to out, normed where the model has that norm; bias: MODEL_W_COUNT, if it never
 * has one. */
static void maybe_norm(const struct ref *r, enum model_w w, enum model_w bias, unsigned layer,
                       const double *x, double *out)
{
    const size_t D = r->c->D;
    const bool has = bias != MODEL_W_COUNT && model_has(r->m, bias, layer);
    float *p = model_has(r->m, w, layer) ? weight(r->m, w, layer) : NULL;
    float *b = has ? weight(r->m, bias, layer) : NULL;
    for (size_t t = 0; t < r->n; t++) {
        if (p)
            norm(x + t * D, D, p, b, (double)r->c->rms_eps, out + t * D);
        else if (out != x)
            memcpy(out + t * D, x + t * D, D * sizeof(*out));
    }
    mem_free(p);
    mem_free(b);
}

/* Where token t stands once the gap is closed. */
static size_t place_of(const struct ref *r, size_t t)
{
    return t < r->gap0 + r->gap ? t : t - r->gap;
}

static void rotate(const struct ref *r, double *x, size_t heads)
{
    const size_t K = r->c->K, half = r->c->n_rot / 2;
    if (!rotates(r)) return;
    for (size_t t = 0; t < r->n; t++)
        for (size_t h = 0; h < heads; h++) {
            const size_t at = place_of(r, t);
            double *p = x + (t * heads + h) * K;
            for (size_t i = 0; i < half; i++) {
                const double a = (double)at * (double)r->inv[i], c = cos(a), s = sin(a);
                const double u = p[i], w = p[i + half];
                p[i] = (u * c - w * s) * (double)r->mscale;
                p[i + half] = (w * c + u * s) * (double)r->mscale;
            }
        }
}

/* Whether token t sees token j in a layer that is local. */
static bool is_near(const struct ref *r, size_t t, size_t j)
{
    const size_t at = place_of(r, t), key = place_of(r, j);
    if (r->c->chunk) return at / r->c->chunk == key / r->c->chunk;
    return !r->c->window || at - key < r->c->window;
}

/* What the query of token t is multiplied by. */
static double temperature(const struct ref *r, size_t t)
{
    const double every = (double)r->c->temp_floor;
    if (!(every > 0) || rotates(r)) return 1;
    return 1 + (double)r->c->temp_scale * log(1 + floor((double)(place_of(r, t) + 1) / every));
}

static void attend(const struct ref *r, const struct ref_opts *o, unsigned l, const double *q,
                   double *out)
{
    const size_t H = r->c->H, G = r->c->G, K = r->c->K;
    const bool local = model_layer_is(r->c, l, MODEL_LAYER_LOCAL);
    const double cap = (double)r->c->attn_cap;
    double *p = mem_alloc(r->n * sizeof(*p));
    float *sinks = model_has(r->m, MODEL_SINKS, l) ? weight(r->m, MODEL_SINKS, l) : NULL;
    for (size_t t = 0; t < r->n; t++)
        for (size_t h = 0; h < H; h++) {
            const size_t g = h / (H / G);
            const double sink = sinks ? (double)sinks[h] : -INFINITY;
            double max = sink, sum = 0;
            for (size_t j = 0; j <= t; j++) {
                p[j] = 0;
                for (size_t i = 0; i < K; i++)
                    p[j] += q[(t * H + h) * K + i] * r->k[(j * G + g) * K + i];
                p[j] *= (double)r->c->attn_scale * temperature(r, t);
                if (cap > 0) p[j] = cap * tanh(p[j] / cap);
                if (local && !is_near(r, t, j)) p[j] = -INFINITY;
                if (j >= r->gap0 && j < r->gap0 + r->gap) p[j] = -INFINITY;
                if (o->anchor && !o->anchor[j] && l > 0 && l < o->lo) p[j] = -INFINITY;
                max = fmax(max, p[j]);
            }
            for (size_t j = 0; j <= t; j++)
                sum += p[j] = exp(p[j] - max);
            sum += exp(sink - max);
            double *y = out + (t * H + h) * K;
            for (size_t i = 0; i < K; i++)
                y[i] = 0;
            for (size_t j = 0; j <= t; j++) {
                for (size_t i = 0; i < K; i++)
                    y[i] += p[j] / sum * r->v[(j * G + g) * K + i];
                if (o->mass && t >= o->mass_from && l >= o->lo && l < o->hi)
                    o->mass[j] += p[j] / sum;
            }
        }
    mem_free(sinks);
    mem_free(p);
}

static void keys(struct ref *r, const struct ref_opts *o, unsigned l, const double *h)
{
    const size_t GK = (size_t)r->c->G * r->c->K;
    mul(r, MODEL_K, MODEL_K_BIAS, l, h, r->n, r->k, false);
    mul(r, MODEL_V, MODEL_V_BIAS, l, h, r->n, r->v, false);
    head_norms(r, MODEL_K_NORM, l, r->k, r->c->G);
    unit_heads(r, r->k, r->c->G); /* before the rotation, which changes no length: as it is kept */
    if (o->k_out) memcpy(o->k_out + l * r->n * GK, r->k, r->n * GK * sizeof(double));
    if (o->v_out) memcpy(o->v_out + l * r->n * GK, r->v, r->n * GK * sizeof(double));
    for (size_t t = 0; o->stored && t < r->n; t++) {
        struct ref_kv kv;
        if (!o->stored(o->ctx, l, t, &kv)) continue;
        for (size_t i = 0; i < GK; i++) {
            r->k[t * GK + i] = (double)kv.k[i];
            r->v[t * GK + i] = (double)kv.v[i];
        }
    }
    rotate(r, r->k, r->c->G);
}

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

static double glu(const struct ref *r, double gate, double up)
{
    const double g = fmin(gate, 7);
    if (r->c->act == KN_SILU_CLAMPED)
        return g / (1 + exp(-1.702 * g)) * (fmax(-7, fmin(up, 7)) + 1);
    return (r->c->act == KN_SILU ? gate / (1 + exp(-gate)) : gelu(gate)) * up;
}

/* The n biases of expert i, or zeros. */
static float *biases(const struct ref *r, enum model_w w, unsigned l, size_t i, size_t n)
{
    float *b = mem_zalloc(n * sizeof(*b));
    if (model_has(r->m, w, l)) ASSERT_OK(model_rows(r->m, w, l, i * n, n, b));
    return b;
}

/* x += by * down(act(gate h) * up h), each a part of a weight's rows, from row 0 on. */
static void expert(const struct ref *r, unsigned l, const enum model_w w[3], size_t i, size_t F,
                   const double *h, double by, double *x)
{
    const size_t D = r->c->D;
    float *g = mem_alloc(F * D * sizeof(*g)), *u = mem_alloc(F * D * sizeof(*u)),
          *d = mem_alloc(F * D * sizeof(*d));
    float *gb = biases(r, MODEL_EXPERT_GATE_BIAS, l, i, F),
          *ub = biases(r, MODEL_EXPERT_UP_BIAS, l, i, F),
          *db = biases(r, MODEL_EXPERT_DOWN_BIAS, l, i, D);
    double *g_u = mem_alloc(F * sizeof(*g_u));
    ASSERT_OK(model_rows(r->m, w[0], l, i * F, F, g));
    ASSERT_OK(model_rows(r->m, w[1], l, i * F, F, u));
    ASSERT_OK(model_rows(r->m, w[2], l, i * D, D, d));
    for (size_t f = 0; f < F; f++) {
        double a = (double)gb[f], b = (double)ub[f];
        for (size_t j = 0; j < D; j++) {
            a += (double)g[f * D + j] * h[j];
            b += (double)u[f * D + j] * h[j];
        }
        g_u[f] = glu(r, a, b);
    }
    for (size_t j = 0; j < D; j++) {
        x[j] += by * (double)db[j];
        for (size_t f = 0; f < F; f++)
            x[j] += by * (double)d[j * F + f] * g_u[f];
    }
    mem_free(gb), mem_free(ub), mem_free(db);
    mem_free(g), mem_free(u), mem_free(d), mem_free(g_u);
}

/* Of one row, by the definition: softmax over all, the largest, each of them. */
static void mixture(const struct ref *r, unsigned l, const double *h, double *x)
{
    static const enum model_w one[] = {MODEL_EXPERT_GATE, MODEL_EXPERT_UP, MODEL_EXPERT_DOWN},
                              shared[] = {MODEL_SHARED_GATE, MODEL_SHARED_UP, MODEL_SHARED_DOWN};
    const struct model_experts *e = &r->c->experts;
    double p[16], sum = 0, chosen = 0, open = 0;
    ASSERT_TRUE(e->n <= 16);
    mul(r, MODEL_ROUTER, MODEL_ROUTER_BIAS, l, h, 1, p, false);
    for (unsigned i = 0; i < e->n; i++)
        sum += p[i] = exp(p[i]); /* of scales_input: the odds, whose share of 1 is the sigmoid */
    bool taken[16] = {false};
    for (unsigned j = 0; j < e->used; j++) {
        unsigned best = e->n;
        for (unsigned i = 0; i < e->n; i++)
            if (!taken[i] && (best == e->n || p[i] > p[best])) best = i;
        taken[best] = true;
        chosen += p[best];
    }
    for (unsigned i = 0; i < e->n && !e->scales_input; i++)
        if (taken[i]) expert(r, l, one, i, e->F, h, p[i] / (e->renorm ? chosen : sum), x);
    for (unsigned i = 0; i < e->n && e->scales_input; i++) {
        double in[64];
        ASSERT_TRUE(r->c->D <= 64);
        for (size_t d = 0; d < r->c->D; d++)
            in[d] = h[d] * p[i] / (1 + p[i]);
        if (taken[i]) expert(r, l, one, i, e->F, in, 1, x);
    }
    if (e->shared_F == 0) return;
    if (e->scales_input) {
        expert(r, l, shared, 0, e->shared_F, h, 1, x);
        return;
    }
    mul(r, MODEL_SHARED_ROUTER, MODEL_W_COUNT, l, h, 1, &open, false);
    expert(r, l, shared, 0, e->shared_F, h, 1 / (1 + exp(-open)), x);
}

/* h [n, D] to y. */
static void feed_forward(const struct ref *r, unsigned l, const double *h, double *y)
{
    const struct model_experts *e = &r->c->experts;
    const size_t F = e->n ? e->dense_F : r->c->F, D = r->c->D, n = r->n;
    if (e->n && !model_layer_is(r->c, l, MODEL_LAYER_DENSE)) {
        memset(y, 0, n * D * sizeof(*y));
        for (size_t t = 0; t < n; t++)
            mixture(r, l, h + t * D, y + t * D);
        return;
    }
    double *g = mem_alloc(n * F * sizeof(*g)), *u = mem_alloc(n * F * sizeof(*u));
    mul(r, MODEL_GATE, MODEL_W_COUNT, l, h, n, g, false);
    mul(r, MODEL_UP, MODEL_W_COUNT, l, h, n, u, false);
    for (size_t i = 0; i < n * F; i++)
        g[i] = glu(r, g[i], u[i]);
    mul(r, MODEL_DOWN, MODEL_W_COUNT, l, g, n, y, false);
    mem_free(g);
    mem_free(u);
}

static void layer(struct ref *r, const struct ref_opts *o, unsigned l)
{
    const size_t D = r->c->D, HK = (size_t)r->c->H * r->c->K, n = r->n;
    double *h = mem_alloc(n * D * sizeof(*h)), *q = mem_alloc(n * HK * sizeof(*q)),
           *a = mem_alloc(n * HK * sizeof(*a));
    const bool local = model_layer_is(r->c, l, MODEL_LAYER_LOCAL);
    double *y = mem_alloc(n * D * sizeof(*y));
    r->layer = l;
    model_rope_freqs(r->c, local ? &r->c->rope_local : &r->c->rope, r->inv, &r->mscale);
    maybe_norm(r, MODEL_NORM_ATTN, MODEL_NORM_ATTN_BIAS, l, r->x, h);
    keys(r, o, l, h);
    mul(r, MODEL_Q, MODEL_Q_BIAS, l, h, n, q, false);
    head_norms(r, MODEL_Q_NORM, l, q, r->c->H);
    rotate(r, q, r->c->H);
    unit_heads(r, q, r->c->H);
    attend(r, o, l, q, a);
    mul(r, MODEL_O, MODEL_O_BIAS, l, a, n, y, false);
    maybe_norm(r, MODEL_POST_ATTN, MODEL_W_COUNT, l, y, y);
    for (size_t i = 0; i < n * D; i++)
        r->x[i] += y[i];
    maybe_norm(r, MODEL_NORM_FFN, MODEL_NORM_FFN_BIAS, l, r->x, h);
    feed_forward(r, l, h, y);
    maybe_norm(r, MODEL_POST_FFN, MODEL_W_COUNT, l, y, y);
    for (size_t i = 0; i < n * D; i++)
        r->x[i] += y[i];
    mem_free(y);
    mem_free(h);
    mem_free(q);
    mem_free(a);
}

void ref_forward(const struct model *m, const int32_t *tok, size_t n, const struct ref_opts *o,
                 double *logits)
{
    const struct ref_opts none = {0};
    if (!o) o = &none;
    struct ref r = {.m = m, .c = &m->cfg, .n = n};
    const size_t D = r.c->D, GK = (size_t)r.c->G * r.c->K;
    r.x = mem_alloc(n * D * sizeof(*r.x));
    r.k = mem_alloc(n * GK * sizeof(*r.k));
    r.v = mem_alloc(n * GK * sizeof(*r.v));
    float *e = weight(m, MODEL_EMBED, 0), *no = weight(m, MODEL_NORM_OUT, 0),
          *bias = m->cfg.layernorm ? weight(m, MODEL_NORM_OUT_BIAS, 0) : NULL;
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < D; i++)
            r.x[t * D + i] = (double)e[(size_t)tok[t] * D + i] * (double)r.c->embed_scale;
    for (unsigned l = 0; l < r.c->L; l++) {
        layer(&r, o, l);
        r.gap0 = o->gap0;
        r.gap = o->gap;
    }
    double *last = r.x + (n - 1) * D;
    norm(last, D, no, bias, (double)r.c->rms_eps, last);
    mul(&r, MODEL_LM_HEAD, MODEL_W_COUNT, 0, last, 1, logits, false);
    const double cap = (double)r.c->logit_cap;
    for (size_t i = 0; i < r.c->V; i++) {
        logits[i] *= (double)r.c->logit_scale;
        if (cap > 0) logits[i] = cap * tanh(logits[i] / cap);
    }
    mem_free(e);
    mem_free(no);
    mem_free(bias);
    mem_free(r.x);
    mem_free(r.k);
    mem_free(r.v);
}
