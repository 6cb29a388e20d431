#include "tools/bench/contexts.h"

#include "base/mem.h"
#include "tiers/store_write.h"

#include <string.h>

struct encoding { /* K and V of a chunk in f32, and their sum over contexts */
    const struct model_cfg *cfg;
    uint32_t n;
    size_t plane, all;
    float *one, *sum; /* [L-1, 2, n, G*K] */
    int status;
};

static float *plane_of(const struct encoding *e, float *base, unsigned layer, int v)
{
    return base + ((size_t)(layer - 1) * 2 + (size_t)v) * e->plane;
}

static int keep_rows(void *ctx, const struct kv_rows *r)
{
    struct encoding *e = ctx;
    const size_t GK = (size_t)e->cfg->G * e->cfg->K, at = r->row0 * GK;
    if (r->layer == 0) return 0; /* depends on the token alone: never stored */
    int rc = kn_encode_rows(r->st, r->k, r->ld, r->n, GK, e->cfg->K, KN_F32,
                            plane_of(e, e->one, r->layer, 0) + at);
    return rc < 0 ? rc
                  : kn_encode_rows(r->st, r->v, r->ld, r->n, GK, e->cfg->K, KN_F32,
                                   plane_of(e, e->one, r->layer, 1) + at);
}

static void note_status(void *ctx, int status)
{
    ((struct encoding *)ctx)->status = status;
}

static int run_whole(struct bench *b, const struct fus_plan *plan)
{
    struct fus_session *s = NULL;
    struct fus_prefill *f = NULL;
    int r = fus_session_create(b->core, plan->n_tok + 1, &s);
    if (r == 0) r = fus_prefill_begin(s, plan, &f);
    if (r == 0) {
        do {
            r = fus_prefill_step(f);
        } while (r > 0);
        fus_prefill_end(f);
    }
    fus_session_destroy(s);
    return r;
}

/* One encoding behind [sink, before], added to the sum. */
static int encode_behind(struct bench *b, struct encoding *e, const struct bench_text *chunk,
                         const struct bench_text *before)
{
    static const struct kv_sink_ops ops = {keep_rows, note_status};
    const uint32_t head = b->build_sink >= 0, tok0 = head + before->n;
    int32_t *tok = mem_alloc((tok0 + (size_t)chunk->n) * sizeof *tok);
    if (!tok) return -ENOMEM;
    if (head) tok[0] = b->build_sink;
    if (before->n) memcpy(tok + head, before->tok, before->n * sizeof *tok);
    memcpy(tok + tok0, chunk->tok, chunk->n * sizeof *tok);
    const struct fus_capture capture = {.tok0 = tok0, .n = chunk->n, .sink = {&ops, e}};
    const struct fus_plan plan = {.tok = tok,
                                  .n_tok = tok0 + chunk->n,
                                  .capture = &capture,
                                  .n_capture = 1,
                                  .strategy = POL_FULL};
    int r = run_whole(b, &plan);
    mem_free(tok);
    if (r == 0) r = e->status;
    for (size_t i = 0; r == 0 && i < e->all; i++)
        e->sum[i] += e->one[i];
    return r;
}

static int write_mean(const struct bench *b, const struct encoding *e, size_t n_encodings,
                      struct store_writer *writer)
{
    int r = 0;
    for (size_t i = 0; i < e->all; i++)
        e->sum[i] /= (float)n_encodings;
    for (unsigned layer = 1; r == 0 && layer < e->cfg->L; layer++) {
        void *to[2];
        store_writer_layer(writer, layer, &to[0], &to[1]);
        for (int v = 0; r == 0 && v < 2; v++)
            r = kn_convert(plane_of(e, e->sum, layer, v), KN_F32, e->plane, e->cfg->K, b->kv_dtype,
                           to[v]);
    }
    if (r == 0) return store_commit(writer);
    store_abort(writer);
    return r;
}

int contexts_build(struct bench *b, const struct bench_text *chunk, const struct contexts *c)
{
    const struct bench_text alone = {0};
    const struct tier_key key = bench_chunk_key(b, chunk->tok, chunk->n);
    struct encoding e = {.cfg = b->cfg, .n = chunk->n};
    struct store_writer *writer;
    int r = store_claim(b->store, &(struct store_new){TIER_CHUNK, key, "", chunk->tok, chunk->n},
                        &writer);
    if (r <= 0) return r;
    e.plane = (size_t)chunk->n * e.cfg->G * e.cfg->K;
    e.all = (size_t)(e.cfg->L - 1) * 2 * e.plane;
    e.one = mem_alloc(e.all * sizeof *e.one);
    e.sum = mem_zalloc(e.all * sizeof *e.sum);
    r = e.one && e.sum ? 0 : -ENOMEM;
    if (r == 0 && c->isolated) r = encode_behind(b, &e, chunk, &alone);
    for (size_t i = 0; r == 0 && i < c->n; i++)
        r = encode_behind(b, &e, chunk, &c->text[i]);
    if (r == 0)
        r = write_mean(b, &e, c->n + c->isolated, writer);
    else
        store_abort(writer);
    mem_free(e.one);
    mem_free(e.sum);
    return r;
}
