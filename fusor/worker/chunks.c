/* Between store and fusor: records as kv_source, writers as kv_sink, and the plan of one request.
 *
 * Look-ups happen on the engine thread just before the prefill starts, so that a chunk that was
 * built while the request waited is still used. Sources and sinks own nothing but their pin or
 * writer: they may outlive the request. A source that fails (-EBADMSG) makes the fusor compute that
 * range; nothing is answered from it. */
#include "fusor/worker/worker.h"

#include "base/assert.h"

#include <string.h>

/* ---- kv_source ---- */
struct source {
    struct store_pin *pin;
    enum kn_dtype dtype;
};

static int source_layer(void *ctx, unsigned layer, struct kv_layer *ret)
{
    struct source *s = ctx;
    const void *k, *v;
    int rc = store_pin_layer(s->pin, layer, &k, &v);

    if (rc < 0) return rc;
    *ret = (struct kv_layer){k, v, s->dtype};
    return 0;
}

static void source_release(void *ctx)
{
    struct source *s = ctx;

    store_pin_release(s->pin);
    mem_free(s);
}

int wk_source_make(struct store_pin *pin, enum kn_dtype dtype, struct kv_source *ret)
{
    static const struct kv_source_ops ops = {NULL, source_layer, source_release};
    struct source *s = mem_alloc(sizeof *s);

    if (!s) {
        store_pin_release(pin);
        return -ENOMEM;
    }
    *s = (struct source){pin, dtype};
    *ret = (struct kv_source){&ops, s};
    return 0;
}

/* ---- kv_sink ---- */
struct sink {
    struct store_writer *writer;
    enum kn_dtype dtype;
    size_t row; /* values of one row: G * K */
    uint32_t n_tok;
    unsigned L;
};

static int sink_rows(void *ctx, struct kn_stream *st, unsigned layer, size_t row0, size_t m,
                     const float *k, size_t ldk, const float *v, size_t ldv)
{
    struct sink *s = ctx;
    size_t size = kn_dtype_size(s->dtype) * s->row;
    void *dk, *dv;
    int rc = 0;

    ASSERT(row0 + m <= s->n_tok);
    ASSERT(layer < s->L);
    if (layer == 0) return 0; /* depends on the token alone: never stored */
    store_writer_layer(s->writer, layer, &dk, &dv);
    dk = (char *)dk + row0 * size;
    dv = (char *)dv + row0 * size;
    if (ldk == s->row && ldv == s->row) {
        rc = kn_encode(st, k, m * s->row, s->dtype, dk);
        return rc < 0 ? rc : kn_encode(st, v, m * s->row, s->dtype, dv);
    }
    for (size_t i = 0; rc >= 0 && i < m; i++) {
        rc = kn_encode(st, k + i * ldk, s->row, s->dtype, (char *)dk + i * size);
        if (rc >= 0) rc = kn_encode(st, v + i * ldv, s->row, s->dtype, (char *)dv + i * size);
    }
    return rc;
}

static void sink_done(void *ctx, int status)
{
    struct sink *s = ctx;

    if (status == 0)
        (void)store_commit(s->writer);
    else
        store_abort(s->writer);
    mem_free(s);
}

int wk_sink_make(struct store_writer *writer, const struct tier_ident *ident, uint32_t n_tok,
                 struct kv_sink *ret)
{
    static const struct kv_sink_ops ops = {sink_rows, sink_done};
    struct sink *s = mem_alloc(sizeof *s);

    if (!s) {
        store_abort(writer);
        return -ENOMEM;
    }
    *s = (struct sink){writer, ident->dtype, (size_t)ident->G * ident->K, n_tok, ident->L};
    *ret = (struct kv_sink){&ops, s};
    return 0;
}

/* ---- the decision ---- */
static enum fus_strategy default_strategy(const struct worker *w)
{
    enum fus_strategy s;

    return fus_strategy_parse(w->o.strategy, &s) == 1 ? s : FUS_QUERY;
}

/* Token-layers, as shares of a token's: whatever is not reused runs in full, and once more through
 * the scoring layers when the suffix scores (query: 5/6 of the depth). When that saves less than a
 * tenth of an exact prefill, exact is the better answer. */
static bool worth_blending(enum fus_strategy s, const struct wk_mode *m, uint32_t n_tok,
                           uint32_t n_prefix, uint32_t n_hit)
{
    double rest = (double)n_tok - n_prefix - n_hit;
    double cost = rest * (s == FUS_QUERY ? 11.0 / 6 : 1) + m->ratio * n_hit;

    return cost < 0.9 * (rest + n_hit);
}

enum fus_strategy wk_decide(const struct worker *w, const struct wk_mode *m, uint32_t n_tok,
                            uint32_t n_prefix, uint32_t n_hit, uint32_t n_suffix, double *ret_ratio)
{
    enum fus_strategy s = m->has_strategy ? m->strategy : default_strategy(w);

    *ret_ratio = 0;
    if (m->mode == API_FULL) return FUS_FULL;
    if (m->mode == API_PREFIX || n_hit == 0) return n_prefix ? FUS_PREFIX : FUS_FULL;
    if (!w->blend_ok) return n_prefix ? FUS_PREFIX : FUS_FULL; /* fail to exact */
    if (m->mode == API_REUSE) return FUS_REUSE;
    if (m->mode == API_AUTO && !m->has_strategy && !worth_blending(s, m, n_tok, n_prefix, n_hit))
        return n_prefix ? FUS_PREFIX : FUS_FULL;
    if (s == FUS_FULL) return FUS_FULL;
    if (s == FUS_PREFIX) return n_prefix ? FUS_PREFIX : FUS_FULL;
    if (s == FUS_REUSE) return FUS_REUSE;
    if (s == FUS_QUERY && n_suffix == 0) s = FUS_HKVD; /* nothing asks: deviation needs no suffix */
    *ret_ratio = m->ratio;
    return s;
}

/* ---- the plan of a request ---- */
struct planner {
    struct worker *w;
    struct wk_prompt *p;
    const struct wk_mode *m;
    struct fus_range *range;
    size_t n_range;
    struct fus_capture *capture;
    size_t n_capture;
    uint32_t n_prefix, n_hit;
};

static void drop_ranges(struct planner *q)
{
    for (size_t i = 0; i < q->n_range; i++)
        if (q->range[i].src.ops) q->range[i].src.ops->release(q->range[i].src.ctx);
    q->n_range = 0;
}

static int find_prefix(struct planner *q)
{
    for (size_t i = 0; i < q->p->n_block; i++) {
        uint32_t tok0 = (uint32_t)i * WK_BLOCK_TOKENS;
        struct fus_range *r = &q->range[q->n_range];
        struct store_pin *pin;
        enum store_miss why;
        int rc = store_lookup(q->w->store, &q->p->block[i], q->p->tok + tok0, WK_BLOCK_TOKENS, &pin,
                              &why);
        if (rc <= 0) return rc == -ENOMEM ? rc : 0;
        *r = (struct fus_range){.tok0 = tok0, .n = WK_BLOCK_TOKENS, .exact = true};
        rc = wk_source_make(pin, q->w->ident.dtype, &r->src);
        if (rc < 0) return rc;
        q->n_range++;
        q->n_prefix += WK_BLOCK_TOKENS;
    }
    return 0;
}

static int find_chunk(struct planner *q, struct wk_cut *c)
{
    struct fus_range *r = &q->range[q->n_range];
    struct store_pin *pin;
    int rc;

    if (c->tok0 < q->n_prefix) { /* within the exact prefix: better than any chunk */
        c->source = c->tok0 + c->n <= q->n_prefix ? WK_PREFIX : WK_COMPUTED;
        return 0;
    }
    rc = store_lookup(q->w->store, &c->key, q->p->tok + c->tok0, c->n, &pin, &c->why);
    if (rc < 0) return rc == -ENOMEM ? rc : 0;
    *r = (struct fus_range){.tok0 = c->tok0, .n = c->n};
    if (rc == 0) {
        c->missed = true;
        if (wk_build_pending(q->w, &c->key)) c->why = STORE_MISS_BUILDING;
        q->n_range++;
        return 0;
    }
    rc = wk_source_make(pin, q->w->ident.dtype, &r->src);
    if (rc < 0) return rc;
    c->source = WK_RAM;
    q->n_hit += c->n;
    q->n_range++;
    return 0;
}

/* The blocks that this request computes exactly go to the store. */
static int claim_blocks(struct planner *q)
{
    for (size_t i = q->n_prefix / WK_BLOCK_TOKENS; i < q->p->n_block; i++) {
        uint32_t tok0 = (uint32_t)i * WK_BLOCK_TOKENS;
        struct fus_capture *c = &q->capture[q->n_capture];
        struct store_writer *writer;
        int rc = store_claim(q->w->store, TIER_PREFIX, &q->p->block[i], q->m->ns, q->p->tok + tok0,
                             WK_BLOCK_TOKENS, &writer);
        if (rc == -ENOSPC || rc == -ENOMEM) return 0; /* a full store costs nobody an answer */
        if (rc <= 0) continue;
        *c = (struct fus_capture){.tok0 = tok0, .n = WK_BLOCK_TOKENS};
        if (wk_sink_make(writer, &q->w->ident, WK_BLOCK_TOKENS, &c->sink) < 0) return 0;
        q->n_capture++;
    }
    return 0;
}

static int look_up(struct planner *q)
{
    int rc = find_prefix(q);

    for (size_t i = 0; rc >= 0 && i < q->p->n_cut; i++) {
        struct wk_cut *c = &q->p->cut[i];
        c->source = WK_COMPUTED;
        c->missed = false;
        if (q->m->mode == API_PREFIX || !q->w->blend_ok)
            c->source = c->tok0 + c->n <= q->n_prefix ? WK_PREFIX : WK_COMPUTED;
        else
            rc = find_chunk(q, c);
    }
    return rc;
}

int wk_plan(struct worker *w, struct wk_prompt *p, const struct wk_mode *m, struct fus_plan *plan,
            void **ret_arrays, uint32_t *ret_captured)
{
    size_t n = p->n_block + p->n_cut + 1;
    size_t bytes = n * sizeof(struct fus_range) + (p->n_block + 1) * sizeof(struct fus_capture);
    struct planner q = {.w = w, .p = p, .m = m};
    char *mem = mem_zalloc(bytes);
    uint32_t last = p->n_cut ? p->cut[p->n_cut - 1].tok0 + p->cut[p->n_cut - 1].n : 0;
    double ratio;
    int rc = 0;

    if (!mem) return -ENOMEM;
    q.range = (struct fus_range *)(void *)mem;
    q.capture = (struct fus_capture *)(void *)(mem + n * sizeof *q.range);
    if (m->mode != API_FULL) rc = look_up(&q);
    if (rc < 0) {
        drop_ranges(&q);
        mem_free(mem);
        return rc;
    }
    plan->strategy = wk_decide(w, m, p->n_tok, q.n_prefix, q.n_hit, p->n_tok - last, &ratio);
    plan->ratio = (float)ratio;
    plan->suffix = p->n_cut ? p->n_tok - last : 0;
    if (plan->strategy == FUS_FULL || plan->strategy == FUS_PREFIX) {
        /* No chunk will be reused: give their pins back, keep the prefix. */
        size_t keep = plan->strategy == FUS_PREFIX ? q.n_prefix / WK_BLOCK_TOKENS : 0;
        for (size_t i = keep; i < q.n_range; i++)
            if (q.range[i].src.ops) q.range[i].src.ops->release(q.range[i].src.ctx);
        q.n_range = keep;
        for (size_t i = 0; i < p->n_cut; i++)
            if (p->cut[i].source == WK_RAM || plan->strategy == FUS_FULL)
                p->cut[i].source = WK_COMPUTED;
    }
    if (m->mode != API_FULL && m->store) (void)claim_blocks(&q);
    plan->range = q.range;
    plan->n_range = q.n_range;
    plan->capture = q.capture;
    plan->n_capture = q.n_capture;
    *ret_arrays = mem;
    *ret_captured = (uint32_t)(q.n_capture * WK_BLOCK_TOKENS);
    return 0;
}
