#include "worker/reuse/merge.h"

#include "base/assert.h"
#include "base/mem.h"
#include "tiers/store_write.h"

#include <errno.h>
#include <math.h>
#include <string.h>

struct rec_merge {
    struct store_writer *writer;
    const struct record_desc *desc;
    uint32_t n_contexts, context_tokens; /* with the encoding under way */
    size_t GK;
    unsigned scored_layers, side_layer;
    float *fresh, *kept; /* [2, n_tokens, G*K] of one layer: K, V */
    float *distance;     /* [n_tokens] of the encoding under way, summed over layers */
    int status;          /* of the encodings so far */
    bool last;
    int *ret_status;
};

static void merge_free(struct rec_merge *m)
{
    mem_free(m->fresh);
    mem_free(m->kept);
    mem_free(m->distance);
    mem_free(m);
}

/* x becomes part of the mean of what has been n encodings; returns |x - mean| / |x|. */
static float add_to_mean(const float *x, float *mean, size_t n_values, uint32_t n)
{
    const float share = 1 / (float)(n + 1);
    float apart = 0, length = 0;
    for (size_t i = 0; i < n_values; i++) {
        mean[i] += (x[i] - mean[i]) * share;
        apart += (x[i] - mean[i]) * (x[i] - mean[i]);
        length += x[i] * x[i];
    }
    return length > 0 ? sqrtf(apart / length) : 0;
}

/* Rows of K or V of a layer, in the record and of the encoding under way. */
static int merge_rows(const struct rec_merge *m, const struct kv_rows *r, int v, void *stored)
{
    const struct record_desc *d = m->desc;
    const size_t at = ((size_t)v * d->n_tokens + r->row0) * m->GK,
                 row = kn_row_bytes(d->dtype, d->G, d->K);
    float *fresh = m->fresh + at, *kept = m->kept + at;
    void *rows = (char *)stored + r->row0 * row;
    int rc =
        kn_encode_rows(r->st, v ? r->v : r->k, r->ld, r->n, m->GK, d->K, KN_F32, fresh, r->bad);
    if (rc == 0) rc = kn_sync(r->st); /* the mean is made here and now */
    if (rc == 0) rc = kn_convert(rows, d->dtype, r->n * m->GK, d->K, KN_F32, kept);
    if (rc < 0) return rc;
    for (size_t i = 0; i < r->n; i++) {
        const float apart = add_to_mean(fresh + i * m->GK, kept + i * m->GK, m->GK, m->n_contexts);
        if (r->layer <= m->scored_layers) m->distance[r->row0 + i] += apart;
    }
    if (v == 0 && r->layer == m->side_layer) return 0; /* stays, but its distance counts */
    return kn_convert(kept, KN_F32, r->n * m->GK, d->K, d->dtype, rows);
}

static int merge_chunk_rows(void *ctx, const struct kv_rows *r)
{
    const struct rec_merge *m = ctx;
    void *stored[2];
    int rc = 0;
    ASSERT(r->row0 + r->n <= m->desc->n_tokens);
    if (r->layer == 0 || m->status < 0) return m->status; /* layer 0 is never stored */
    store_writer_layer(m->writer, r->layer, &stored[0], &stored[1]);
    for (int v = 0; rc == 0 && v < 2; v++)
        rc = merge_rows(m, r, v, stored[v]);
    return rc;
}

static void end(struct rec_merge *m)
{
    int status = m->status;
    if (status == 0)
        status = store_commit(m->writer);
    else
        store_abort(m->writer);
    if (m->ret_status) *m->ret_status = status;
    merge_free(m);
}

static void encoding_ended(void *ctx, int status)
{
    struct rec_merge *m = ctx;
    if (m->status == 0) m->status = status;
    if (m->status == 0) {
        float *score = store_writer_scores(m->writer);
        for (uint32_t t = 0; t < m->desc->n_tokens; t++)
            score[t] = fmaxf(score[t], m->distance[t] / (float)m->scored_layers);
        store_writer_behind(m->writer, m->n_contexts, m->context_tokens);
    }
    if (m->last) end(m);
}

int rec_merge_begin(struct store *s, const struct tier_key *key, unsigned side_layer,
                    struct rec_merge **ret)
{
    struct store_writer *writer;
    int rc = store_revise(s, key, &writer);
    if (rc <= 0) return rc;
    struct rec_merge *m = mem_zalloc(sizeof *m);
    if (!m) {
        store_abort(writer);
        return -ENOMEM;
    }
    const struct record_desc *d = store_writer_desc(writer);
    const size_t GK = (size_t)d->G * d->K;
    *m = (struct rec_merge){.writer = writer,
                            .desc = d,
                            .n_contexts = d->n_contexts,
                            .context_tokens = d->context_tokens,
                            .GK = GK,
                            .side_layer = side_layer,
                            .scored_layers = d->L > 3 ? d->L / 2 : 1};
    m->fresh = mem_alloc(2 * d->n_tokens * GK * sizeof *m->fresh);
    m->kept = mem_alloc(2 * d->n_tokens * GK * sizeof *m->kept);
    m->distance = mem_alloc(d->n_tokens * sizeof *m->distance);
    if (!m->fresh || !m->kept || !m->distance) {
        rec_merge_abort(m);
        return -ENOMEM;
    }
    *ret = m;
    return 1;
}

struct kv_sink rec_merge_sink(struct rec_merge *m, uint32_t context_tokens, bool last,
                              int *ret_status)
{
    static const struct kv_sink_ops ops = {merge_chunk_rows, encoding_ended};
    m->n_contexts++;
    m->context_tokens += context_tokens;
    m->last = last;
    m->ret_status = ret_status;
    memset(m->distance, 0, m->desc->n_tokens * sizeof *m->distance);
    return (struct kv_sink){&ops, m};
}

void rec_merge_abort(struct rec_merge *m)
{
    if (!m) return;
    store_abort(m->writer);
    merge_free(m);
}
