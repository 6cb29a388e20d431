/* sensitivity: how much a chunk's KV changes when something real stands before it.
 *
 * A prefill of [sink, neighbour, chunk] in which the neighbour's stored KV is reused (right behind
 * the sink it is exact) and the chunk's rows are computed; at every layer their fresh K (before
 * RoPE) and V are compared with the chunk's isolated ones. It ends at the middle layer: half a
 * build per neighbour. */
#include "fusor/core/prefill_int.h"

#include "base/assert.h"
#include "base/mem.h"

#include <string.h>

bool fus_sensitivity_last(const struct fus_prefill *f)
{
    const unsigned hi = f->core->cfg.L / 2;
    return f->layer >= (hi ? hi : 1);
}

int fus_sensitivity_fetch(struct fus_prefill *f)
{
    struct pre_sensitivity *p = &f->sensitivity;
    return fus_sensitivity_on(f) ? p->src.ops->layer(p->src.ctx, f->layer, &p->cur) : 0;
}

/* Of the rows those of the chunk: |fresh - stored| / |fresh| of K and of V is added to the tokens'
 * scores. */
int fus_sensitivity_rows(struct fus_prefill *f, const struct kv_rows *rows)
{
    const struct pre_sensitivity *p = &f->sensitivity;
    const struct model_cfg *cfg = &f->core->cfg;
    const size_t GK = (size_t)cfg->G * cfg->K;
    const size_t row_bytes = kn_row_bytes(p->cur.dtype, cfg->G, cfg->K);
    const void *stored[2] = {p->cur.k, p->cur.v};
    const float *fresh[2] = {rows->k, rows->v};
    const int32_t *pos = f->b.pos + rows->row0;
    size_t a = 0;
    while (a < rows->n && (uint32_t)pos[a] < p->tok0)
        a++; /* the sink, and a neighbour that had to be computed */
    if (a == rows->n) return 0;
    const size_t first = (size_t)pos[a] - p->tok0;
    for (int i = 0; i < 2; i++) {
        int r = kn_change(rows->st, fresh[i] + a * rows->ld, rows->ld,
                          (const char *)stored[i] + first * row_bytes, p->cur.dtype, rows->n - a,
                          GK, cfg->K, f->b.score + p->tok0 + first);
        if (r < 0) return r;
    }
    return 0;
}

void fus_sensitivity_done(struct fus_prefill *f)
{
    const struct pre_sensitivity *p = &f->sensitivity;
    for (uint32_t i = 0; i < p->n; i++) {
        const float mean = f->b.score[p->tok0 + i] / (float)f->layer;
        if (mean > p->ret_score[i]) p->ret_score[i] = mean;
    }
}

void fus_sensitivity_release(struct fus_prefill *f)
{
    if (!fus_sensitivity_on(f)) return;
    f->sensitivity.src.ops->release(f->sensitivity.src.ctx);
    f->sensitivity.src.ops = NULL;
}

int fus_sensitivity_begin(struct fus_session *s, const struct fus_sensitivity *p,
                          struct fus_prefill **ret)
{
    const uint32_t head = p->sink_token >= 0, tok0 = head + p->n_before;
    if (s->core->cfg.L < 2) return -ENOTSUP;
    if (p->n == 0 || p->n_before == 0 || p->n_before > INT32_MAX - 1 || p->n > INT32_MAX - tok0)
        return -EINVAL;
    int32_t *own = mem_alloc(((size_t)tok0 + p->n) * sizeof(*own));
    if (!own) return -ENOMEM;
    if (head) own[0] = p->sink_token;
    memcpy(own + head, p->before, p->n_before * sizeof(*own));
    memcpy(own + tok0, p->tok, p->n * sizeof(*own));
    const struct fus_range range = {.tok0 = head, .n = p->n_before, .src = p->before_src};
    const struct fus_plan plan = {.tok = own,
                                  .n_tok = tok0 + p->n,
                                  .range = &range,
                                  .n_range = 1,
                                  .strategy = POL_REUSE,
                                  .cancel = p->cancel};
    struct fus_prefill *f = NULL;
    int r = fus_begin_owned(s, &plan, own, &f);
    if (r < 0) return r;
    f->sensitivity =
        (struct pre_sensitivity){.src = p->src, .tok0 = tok0, .n = p->n, .ret_score = p->ret_score};
    *ret = f;
    return 0;
}
