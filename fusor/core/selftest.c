/* selftest: what must hold before a model may blend (run at start-up; a fraction of a second).
 *
 * A prompt with two made-up chunks runs in full and keeps the chunks' KV as it is there: to reuse
 * that must give the same logits, which it does only when every stored key gets to its place and
 * is rotated to it. The chunks are then built in isolation: hkvd and query that recompute
 * everything must equal the full prefill, and moving a key and a query together must not change
 * their product. Catches a wrong rope regime, a re-position that is missing or off by one, a broken
 * kernel, a wrong weight layout of K.
 *
 * The model of these trials ends behind the first layers that show every kind of layer there is:
 * six prompts through all layers of a 7B model took 6 s of a start. */
#include "fusor/core/core_int.h"
#include "fusor/core/prefill.h"

#include "base/assert.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

enum { CHUNK = 24, GLUE = 3, SUFFIX = 8, N_TOK = 1 + 2 * CHUNK + 2 * GLUE + SUFFIX };

/* A chunk's KV in memory: sink of its build, source of the blends. */
struct shelf {
    unsigned L;
    size_t GK, K;
    float *k, *v; /* [L, CHUNK, G*K]; layer 0 unused */
    int status;
};

static int shelf_rows(void *ctx, const struct kv_rows *rows)
{
    struct shelf *s = ctx;
    const size_t at = ((size_t)rows->layer * CHUNK + rows->row0) * s->GK, ld = rows->ld;
    int r =
        kn_encode_rows(rows->st, rows->k, ld, rows->n, s->GK, s->K, KN_F32, s->k + at, rows->bad);
    if (r < 0) return r;
    return kn_encode_rows(rows->st, rows->v, ld, rows->n, s->GK, s->K, KN_F32, s->v + at,
                          rows->bad);
}

static void shelf_done(void *ctx, int status)
{
    ((struct shelf *)ctx)->status = status;
}

static int shelf_layer(void *ctx, unsigned layer, struct kv_layer *ret)
{
    struct shelf *s = ctx;
    const size_t at = (size_t)layer * CHUNK * s->GK;
    *ret = (struct kv_layer){.k = s->k + at, .v = s->v + at, .dtype = KN_F32};
    return 0;
}

static void shelf_release(void *ctx)
{
}

static const struct kv_sink_ops shelf_sink = {.rows = shelf_rows, .done = shelf_done};
static const struct kv_source_ops shelf_source = {.layer = shelf_layer, .release = shelf_release};

struct trial {
    struct fus_core *c;
    struct fus_session *s;
    struct shelf shelf[2];
    int32_t tok[N_TOK];
    float *full, *got; /* [V] */
};

static int build(struct trial *t, struct shelf *sh, const int32_t *tok)
{
    struct fus_prefill *f = NULL;
    int32_t own[1 + CHUNK] = {t->tok[0]};
    memcpy(own + 1, tok, CHUNK * sizeof(*tok));
    const struct fus_capture capture = {1, CHUNK, {&shelf_sink, sh}};
    const struct fus_plan p = {.tok = own,
                               .n_tok = 1 + CHUNK,
                               .capture = &capture,
                               .n_capture = 1,
                               .logits_from = 1 + CHUNK,
                               .strategy = POL_FULL};
    int r = fus_prefill_begin(t->s, &p, &f);
    if (r < 0) return r;
    r = fus_prefill_steps(f);
    fus_prefill_end(f);
    return r < 0 ? r : sh->status;
}

/* keep: the chunks' KV in this context goes to the shelves. */
static int prefill(struct trial *t, enum pol_strategy strategy, bool keep, float *logits)
{
    struct fus_range range[2];
    struct fus_capture capture[2];
    for (size_t i = 0; i < 2; i++) {
        const uint32_t tok0 = (uint32_t)(1 + GLUE + i * (CHUNK + GLUE));
        range[i] = (struct fus_range){tok0, CHUNK, false, {&shelf_source, &t->shelf[i]}};
        capture[i] = (struct fus_capture){tok0, CHUNK, {&shelf_sink, &t->shelf[i]}};
    }
    const struct fus_plan p = {.tok = t->tok,
                               .n_tok = N_TOK,
                               .range = range,
                               .n_range = 2,
                               .capture = capture,
                               .n_capture = keep ? 2 : 0,
                               .strategy = strategy,
                               .ratio = 1};
    struct fus_prefill *f = NULL;
    size_t rows = 0;
    int r = fus_prefill_begin(t->s, &p, &f);
    if (r < 0) return r;
    r = fus_prefill_steps(f);
    if (r == 0) memcpy(logits, fus_prefill_logits(f, &rows), t->c->cfg.V * sizeof(*logits));
    fus_prefill_end(f);
    for (size_t i = 0; r == 0 && keep && i < 2; i++)
        r = t->shelf[i].status;
    return r;
}

/* Where rows depend on how many there are: a sum's last bit can move an operand by a whole step,
 * which is 2^-9 of it in bf16 and 2^-4 in 8 bits. */
static double slack(const struct fus_core *c)
{
    const size_t in_16 = (size_t)c->cfg.H * c->cfg.K * c->cfg.D * 2;
    return kn_mat_bytes(c->layer[0].q.w) < in_16 ? 3e-2 : 1e-2;
}

/* 0 equal, else -EBADMSG. A GEMM that is not row-invariant may differ in the last bits. */
static int compare(const struct trial *t, const char *what, struct err *err)
{
    double worst = 0, scale = 1e-6;
    for (unsigned i = 0; i < t->c->cfg.V; i++) {
        if (!isfinite(t->full[i]) || !isfinite(t->got[i]))
            return err_set(err, -EBADMSG, "self-test: %s: logits that are not numbers", what);
        worst = fmax(worst, fabs((double)t->full[i] - (double)t->got[i]));
        scale = fmax(scale, fabs((double)t->full[i]));
    }
    const double limit = kn_info(t->c->dev)->gemm_invariant ? 0 : slack(t->c) * scale;
    if (worst > limit)
        return err_set(err, -EBADMSG, "self-test: %s: off from a full prefill by %g", what, worst);
    return 0;
}

struct turn {
    struct fus_core *c;
    const struct kn_rope *rope;
    float *a;     /* [4, K]: key, key moved, query, query moved */
    int32_t *pos; /* [4] */
};

static int turn_block(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    struct turn *t = arg;
    const size_t K = t->c->cfg.K;
    return kn_rope(st, t->rope, t->a + row0 * K, K, n, 1, t->pos + row0);
}

/* q(p)·k(j) == q(p+d)·k(j+d). */
static int reposition(struct fus_core *c, const struct kn_rope *rope, struct err *err)
{
    const size_t K = c->cfg.K;
    const int32_t d = (int32_t)(c->ctx_max / 2);
    float *mem = kn_mem_alloc(c->dev, KN_MEM_SHARED, (4 * K + 4) * sizeof(float));
    if (!mem) return -ENOMEM;
    struct turn t = {c, rope, mem, (int32_t *)(void *)(mem + 4 * K)};
    t.pos[0] = 3, t.pos[1] = 3 + d, t.pos[2] = 11, t.pos[3] = 11 + d;
    for (size_t i = 0; i < K; i++) {
        t.a[i] = t.a[K + i] = sinf((float)(i * 7 + 1));
        t.a[2 * K + i] = t.a[3 * K + i] = cosf((float)(i * 5 + 2));
    }
    int r = kn_wide(c->dev, 4, NULL, turn_block, &t);
    double dot[2] = {0, 0}, size = 0;
    for (size_t i = 0; i < K; i++) {
        dot[0] += (double)t.a[i] * (double)t.a[2 * K + i];
        dot[1] += (double)t.a[K + i] * (double)t.a[3 * K + i];
        size += fabs((double)t.a[i] * (double)t.a[2 * K + i]);
    }
    kn_mem_free(c->dev, mem);
    if (r < 0) return r;
    if (c->ctx_max > 64 && fabs(dot[0] - dot[1]) > 1e-5 * (size + 1))
        return err_set(err, -EBADMSG, "self-test: moving key and query changes their product by %g",
                       fabs(dot[0] - dot[1]));
    return 0;
}

static int trial_init(struct trial *t)
{
    const struct model_cfg *g = &t->c->cfg;
    const size_t GK = (size_t)g->G * g->K;
    int r = fus_session_create(t->c, N_TOK, &t->s);
    if (r < 0) return r;
    for (size_t i = 0; i < 2; i++) {
        t->shelf[i] = (struct shelf){.L = g->L, .GK = GK, .K = g->K, .status = -EIO};
        t->shelf[i].k = mem_zalloc(g->L * CHUNK * GK * sizeof(float));
        t->shelf[i].v = mem_zalloc(g->L * CHUNK * GK * sizeof(float));
        if (!t->shelf[i].k || !t->shelf[i].v) return -ENOMEM;
    }
    t->full = mem_alloc(g->V * sizeof(float));
    t->got = mem_alloc(g->V * sizeof(float));
    uint64_t x = 88172645463325252u; /* any seed: xorshift */
    for (size_t i = 0; i < N_TOK; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        t->tok[i] = (int32_t)(x % g->V);
    }
    return t->full && t->got ? 0 : -ENOMEM;
}

/* Whether layers a and b are the same functions of the same shapes, of other numbers. */
static bool same_kind(const struct fus_core *c, unsigned a, unsigned b)
{
    static const enum model_w w[] = {MODEL_Q,    MODEL_K,           MODEL_V,
                                     MODEL_O,    MODEL_GATE,        MODEL_UP,
                                     MODEL_DOWN, MODEL_EXPERT_GATE, MODEL_EXPERT_DOWN};
    const struct fus_layer *x = &c->layer[a], *y = &c->layer[b];
    if (x->rope != y->rope || x->window != y->window || x->chunk != y->chunk) return false;
    for (size_t i = 0; i < sizeof(w) / sizeof(w[0]); i++) {
        if (model_has(c->model, w[i], a) != model_has(c->model, w[i], b)) return false;
        if (!model_has(c->model, w[i], a)) continue;
        const struct codes_form f = model_form(c->model, w[i], a),
                                g = model_form(c->model, w[i], b);
        if (!codes_form_same(&f, &g)) return false;
    }
    return true;
}

/* Layers from the first on in which each kind has come, and three whose KV is moved. */
static unsigned trial_depth(const struct fus_core *c)
{
    enum { LAYERS_MIN = 4 };
    unsigned n = c->cfg.L < LAYERS_MIN ? c->cfg.L : LAYERS_MIN;
    for (unsigned l = n; l < c->cfg.L; l++) {
        unsigned seen = 0;
        while (seen < l && !same_kind(c, seen, l))
            seen++;
        if (seen == l) n = l + 1;
    }
    return n;
}

void fus_core_set_fault(struct fus_core *c, enum fus_fault f)
{
    c->fault = f;
}

static int trials(struct trial *t, struct err *err)
{
    int r = trial_init(t);
    for (size_t i = 0; r == 0 && i < 2; i++)
        r = reposition(t->c, &t->c->rope[i], err);
    if (r == 0) r = prefill(t, POL_FULL, true, t->full);
    if (r == 0) r = prefill(t, POL_REUSE, false, t->got);
    if (r == 0) r = compare(t, "the prompt's own KV put back", err);
    for (size_t i = 0; r == 0 && i < 2; i++)
        r = build(t, &t->shelf[i], t->tok + 1 + GLUE + i * (CHUNK + GLUE));
    if (r == 0) r = prefill(t, POL_HKVD, false, t->got);
    if (r == 0) r = compare(t, "hkvd with everything recomputed", err);
    if (r == 0) r = prefill(t, POL_QUERY, false, t->got);
    return r < 0 ? r : compare(t, "query with everything recomputed", err);
}

int fus_core_self_test(struct fus_core *c, struct err *err)
{
    const unsigned L = c->cfg.L;
    if (c->ctx_max < N_TOK || L < 2)
        return err_set(err, -EBADMSG, "self-test: the model is too small to blend");
    struct trial t = {.c = c};
    c->cfg.L = trial_depth(c); /* nothing else uses the core yet */
    const int r = trials(&t, err);
    c->cfg.L = L;
    for (size_t i = 0; i < 2; i++) {
        mem_free(t.shelf[i].k);
        mem_free(t.shelf[i].v);
    }
    mem_free(t.full);
    mem_free(t.got);
    fus_session_destroy(t.s);
    return r;
}
