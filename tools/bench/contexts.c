#include "tools/bench/contexts.h"

#include "base/mem.h"
#include "tiers/store_write.h"

struct encoding { /* K and V of a chunk in f32, and their sum over contexts */
    const struct model_cfg *cfg;
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
    const size_t GK = (size_t)e->cfg->G * e->cfg->K;
    int rc = 0;
    for (int v = 0; rc == 0 && v < 2 && r->layer > 0; v++) /* layer 0 is never stored */
        rc = kn_encode_rows(r->st, v ? r->v : r->k, r->ld, r->n, GK, e->cfg->K, KN_F32,
                            plane_of(e, e->one, r->layer, v) + r->row0 * GK);
    return rc;
}

static void note_status(void *ctx, int status)
{
    ((struct encoding *)ctx)->status = status;
}

static int add_encoding(struct bench *b, struct encoding *e, struct bench_text chunk,
                        const struct bench_text *context)
{
    static const struct kv_sink_ops ops = {keep_rows, note_status};
    int r = bench_encode(b, context, chunk, &(struct kv_sink){&ops, e});
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
    return r;
}

int contexts_build(struct bench *b, struct bench_text chunk, const struct bench_text *context,
                   size_t n)
{
    const struct store_new new = {TIER_CHUNK, bench_key(b, TIER_CHUNK, chunk), "", chunk.tok,
                                  chunk.n};
    struct encoding e = {.cfg = b->cfg, .plane = (size_t)chunk.n * b->cfg->G * b->cfg->K};
    struct store_writer *writer;
    int r = store_claim(b->store, &new, &writer);
    if (r <= 0) return r;
    e.all = (size_t)(e.cfg->L - 1) * 2 * e.plane;
    e.one = mem_alloc(e.all * sizeof *e.one);
    e.sum = mem_zalloc(e.all * sizeof *e.sum);
    r = e.one && e.sum ? 0 : -ENOMEM;
    for (size_t i = 0; r == 0 && i < n; i++)
        r = add_encoding(b, &e, chunk, &context[i]);
    if (r == 0) r = write_mean(b, &e, n, writer);
    if (r == 0)
        r = store_commit(writer);
    else
        store_abort(writer);
    mem_free(e.one);
    mem_free(e.sum);
    return r;
}
