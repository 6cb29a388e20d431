/* sensitivity: how much a chunk's KV changes when something real stands before it.
 *
 * A prefill of [sink, neighbour, chunk] in which the neighbour's stored KV is reused (right behind
 * the sink it is exact) and the chunk's rows are computed; at every layer their fresh K (before
 * RoPE) and V are compared with the chunk's isolated ones. It ends at the middle layer: half a
 * build per neighbour. */
#include "fusor/core/prefill_int.h"

/* Of the rows those of the chunk: |fresh - stored| / |fresh| of K and of V is added to the tokens'
 * scores. */
int fus_sensitivity_rows(struct fus_prefill *f, const struct kv_rows *rows)
{
    const struct kv_layer *cur = &f->measured;
    const uint32_t tok0 = f->plan.measure.tok0;
    const struct model_cfg *cfg = &f->core->cfg;
    const size_t GK = (size_t)cfg->G * cfg->K, row_bytes = kn_row_bytes(cur->dtype, cfg->G, cfg->K);
    const void *stored[2] = {cur->k, cur->v};
    const float *fresh[2] = {rows->k, rows->v};
    const int32_t *pos = f->b.pos + rows->row0;
    size_t a = 0;
    while (a < rows->n && (uint32_t)pos[a] < tok0)
        a++; /* the sink, and a neighbour that had to be computed */
    if (a == rows->n) return 0;
    const size_t first = (size_t)pos[a] - tok0;
    for (int i = 0; i < 2; i++) {
        int r = kn_change(rows->st, fresh[i] + a * rows->ld, rows->ld,
                          (const char *)stored[i] + first * row_bytes, cur->dtype, rows->n - a, GK,
                          cfg->K, f->b.score + tok0 + first);
        if (r < 0) return r;
    }
    return 0;
}

bool fus_sensitivity_end(struct fus_prefill *f)
{
    const struct fus_measure *p = &f->plan.measure;
    const unsigned hi = f->core->cfg.L / 2;
    if (f->layer < (hi ? hi : 1)) return false;
    for (uint32_t t = p->tok0; t < f->plan.n_tok; t++) {
        const float mean = f->b.score[t] / (float)f->layer;
        if (mean > p->score[t - p->tok0]) p->score[t - p->tok0] = mean;
    }
    return true;
}
