/* tiny_model: see the header. Weights are a hash of (seed, kind, layer, index): nothing is stored.
 */
#include "tests/unit/fusor/tiny_model.h"

#include "base/mem.h"
#include "tests/test.h"

struct model {
    struct model_cfg cfg;
    uint64_t seed;
};

static unsigned or_default(unsigned v, unsigned d)
{
    return v ? v : d;
}

int tiny_model_create(const struct tiny_opts *o, struct model **ret)
{
    struct model *m = mem_zalloc(sizeof(*m));
    if (!m) return -ENOMEM;
    m->seed = o->seed ? o->seed : 1;
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
                                .rms_eps = 1e-5f,
                                .qkv_bias = o->qkv_bias,
                                .o_bias = o->o_bias,
                                .qk_norm = o->qk_norm,
                                .file_f32 = true};
    m->cfg.attn_scale = (float)(1 / sqrt((double)m->cfg.K));
    m->cfg.rope.base = 10000;
    m->cfg.rope.type = o->yarn > 1 ? ROPE_YARN : ROPE_NONE;
    m->cfg.rope.factor = o->yarn;
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
    default:
        return layer < m->cfg.L;
    }
}

static void shape(const struct model_cfg *c, enum model_w w, size_t *rows, size_t *cols)
{
    const size_t HK = (size_t)c->H * c->K, GK = (size_t)c->G * c->K;
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
        *rows = c->F;
        break;
    case MODEL_DOWN:
        *rows = c->D, *cols = c->F;
        break;
    case MODEL_Q_BIAS:
        *cols = HK;
        break;
    case MODEL_K_BIAS:
    case MODEL_V_BIAS:
        *cols = GK;
        break;
    case MODEL_Q_NORM:
    case MODEL_K_NORM:
        *cols = c->K;
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

int model_rows(const struct model *m, enum model_w w, unsigned layer, size_t row0, size_t n,
               float *out)
{
    size_t rows, cols;
    shape(&m->cfg, w, &rows, &cols);
    if (row0 + n > rows) return -EINVAL;
    const bool norm = w == MODEL_NORM_ATTN || w == MODEL_NORM_FFN || w == MODEL_NORM_OUT ||
                      w == MODEL_Q_NORM || w == MODEL_K_NORM;
    /* Large enough that attention is peaked and tokens matter to each other. */
    const float size = w == MODEL_EMBED ? 1 : (float)(3.0 / sqrt((double)cols));
    for (size_t i = 0; i < n * cols; i++) {
        const float x = noise(m, w, layer, row0 * cols + i);
        out[i] = norm ? 1 + 0.3f * x : rows == 1 ? 0.2f * x : size * x;
    }
    return 0;
}

/* Nothing but f32. */
struct codes_form model_form(const struct model *m, enum model_w w, unsigned layer)
{
    return (struct codes_form){0};
}

size_t model_codes_room(size_t cols)
{
    return 0;
}

int model_codes(const struct model *m, enum model_w w, unsigned layer, size_t row, void *room,
                struct codes_row *ret)
{
    return -EINVAL;
}

bool model_random(const struct model *m, enum model_w w, unsigned layer, struct rng_field *ret)
{
    return false;
}

void model_rope_freqs(const struct model_cfg *c, float *ret_inv_freq, float *ret_mscale)
{
    const unsigned half = c->K / 2;
    const bool yarn = c->rope.type == ROPE_YARN;
    for (unsigned i = 0; i < half; i++) {
        const double f = pow(c->rope.base, -2.0 * i / c->K);
        const double ramp = (double)i / half; /* any smooth mix will do for a test */
        ret_inv_freq[i] = (float)(yarn ? f * (1 - ramp) + f / c->rope.factor * ramp : f);
    }
    *ret_mscale = yarn ? (float)(0.1 * log(c->rope.factor) + 1) : 1;
}

/* ---- reference ---- */

struct ref {
    const struct model *m;
    const struct model_cfg *c;
    size_t n;
    double *x;     /* [n, D] */
    double *k, *v; /* [n, G*K] of the layer, K rotated */
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

static void norm(const double *x, size_t n, const float *w, double eps, double *out)
{
    double ss = 0;
    for (size_t i = 0; i < n; i++)
        ss += x[i] * x[i];
    const double s = 1 / sqrt(ss / (double)n + eps);
    for (size_t i = 0; i < n; i++)
        out[i] = x[i] * s * (double)w[i];
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

static void head_norms(const struct ref *r, enum model_w w, unsigned layer, double *x, size_t heads)
{
    if (!model_has(r->m, w, layer)) return;
    float *p = weight(r->m, w, layer);
    for (size_t i = 0; i < r->n * heads; i++)
        norm(x + i * r->c->K, r->c->K, p, (double)r->c->rms_eps, x + i * r->c->K);
    mem_free(p);
}

static void rotate(const struct ref *r, double *x, size_t heads)
{
    const size_t K = r->c->K, half = K / 2;
    for (size_t t = 0; t < r->n; t++)
        for (size_t h = 0; h < heads; h++) {
            const size_t at = t < r->gap0 + r->gap ? t : t - r->gap;
            double *p = x + (t * heads + h) * K;
            for (size_t i = 0; i < half; i++) {
                const double a = (double)at * (double)r->inv[i], c = cos(a), s = sin(a);
                const double u = p[i], w = p[i + half];
                p[i] = (u * c - w * s) * (double)r->mscale;
                p[i + half] = (w * c + u * s) * (double)r->mscale;
            }
        }
}

static void attend(const struct ref *r, const struct ref_opts *o, unsigned l, const double *q,
                   double *out)
{
    const size_t H = r->c->H, G = r->c->G, K = r->c->K;
    double *p = mem_alloc(r->n * sizeof(*p));
    for (size_t t = 0; t < r->n; t++)
        for (size_t h = 0; h < H; h++) {
            const size_t g = h / (H / G);
            double max = -INFINITY, sum = 0;
            for (size_t j = 0; j <= t; j++) {
                p[j] = 0;
                for (size_t i = 0; i < K; i++)
                    p[j] += q[(t * H + h) * K + i] * r->k[(j * G + g) * K + i];
                p[j] *= (double)r->c->attn_scale;
                if (j >= r->gap0 && j < r->gap0 + r->gap) p[j] = -INFINITY;
                if (o->anchor && !o->anchor[j] && l > 0 && l < o->lo) p[j] = -INFINITY;
                max = fmax(max, p[j]);
            }
            for (size_t j = 0; j <= t; j++)
                sum += p[j] = exp(p[j] - max);
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
    mem_free(p);
}

static void keys(struct ref *r, const struct ref_opts *o, unsigned l, const double *h)
{
    const size_t GK = (size_t)r->c->G * r->c->K;
    mul(r, MODEL_K, MODEL_K_BIAS, l, h, r->n, r->k, false);
    mul(r, MODEL_V, MODEL_V_BIAS, l, h, r->n, r->v, false);
    head_norms(r, MODEL_K_NORM, l, r->k, r->c->G);
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

static void layer(struct ref *r, const struct ref_opts *o, unsigned l)
{
    const size_t D = r->c->D, HK = (size_t)r->c->H * r->c->K, F = r->c->F, n = r->n;
    double *h = mem_alloc(n * D * sizeof(*h)), *q = mem_alloc(n * HK * sizeof(*q)),
           *a = mem_alloc(n * HK * sizeof(*a)), *g = mem_alloc(n * F * sizeof(*g)),
           *u = mem_alloc(n * F * sizeof(*u));
    float *na = weight(r->m, MODEL_NORM_ATTN, l), *nf = weight(r->m, MODEL_NORM_FFN, l);
    for (size_t t = 0; t < n; t++)
        norm(r->x + t * D, D, na, (double)r->c->rms_eps, h + t * D);
    keys(r, o, l, h);
    mul(r, MODEL_Q, MODEL_Q_BIAS, l, h, n, q, false);
    head_norms(r, MODEL_Q_NORM, l, q, r->c->H);
    rotate(r, q, r->c->H);
    attend(r, o, l, q, a);
    mul(r, MODEL_O, MODEL_O_BIAS, l, a, n, r->x, true);
    for (size_t t = 0; t < n; t++)
        norm(r->x + t * D, D, nf, (double)r->c->rms_eps, h + t * D);
    mul(r, MODEL_GATE, MODEL_W_COUNT, l, h, n, g, false);
    mul(r, MODEL_UP, MODEL_W_COUNT, l, h, n, u, false);
    for (size_t i = 0; i < n * F; i++)
        g[i] = g[i] / (1 + exp(-g[i])) * u[i];
    mul(r, MODEL_DOWN, MODEL_W_COUNT, l, g, n, r->x, true);
    mem_free(h);
    mem_free(q);
    mem_free(a);
    mem_free(g);
    mem_free(u);
    mem_free(na);
    mem_free(nf);
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
    model_rope_freqs(r.c, r.inv, &r.mscale);
    float *e = weight(m, MODEL_EMBED, 0), *no = weight(m, MODEL_NORM_OUT, 0);
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < D; i++)
            r.x[t * D + i] = (double)e[(size_t)tok[t] * D + i];
    for (unsigned l = 0; l < r.c->L; l++) {
        layer(&r, o, l);
        r.gap0 = o->gap0;
        r.gap = o->gap;
    }
    double *last = r.x + (n - 1) * D;
    norm(last, D, no, (double)r.c->rms_eps, last);
    mul(&r, MODEL_LM_HEAD, MODEL_W_COUNT, 0, last, 1, logits, false);
    mem_free(e);
    mem_free(no);
    mem_free(r.x);
    mem_free(r.k);
    mem_free(r.v);
}
