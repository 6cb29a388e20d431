/* sense: how much a chunk's KV changes when something real stands before it.
 *
 * A prefill of [sink, neighbour, chunk] in which the neighbour's stored KV is reused (right behind
 * the sink it is exact) and the chunk's rows are computed; at every layer their fresh K (before
 * RoPE) and V are compared with the chunk's isolated ones. It ends at the middle layer: half a
 * build per neighbour. */
#include "fusor/core/prefill_int.h"

#include "base/assert.h"
#include "base/mem.h"

#include <string.h>

bool fus_sense_on(const struct fus_prefill *f)
{
    return f->sense.src.ops != NULL;
}

bool fus_sense_last(const struct fus_prefill *f)
{
    const unsigned hi = f->core->cfg.L / 2;
    return f->layer >= (hi ? hi : 1);
}

int fus_sense_fetch(struct fus_prefill *f)
{
    struct pre_sense *p = &f->sense;
    return fus_sense_on(f) ? p->src.ops->layer(p->src.ctx, f->layer, &p->cur) : 0;
}

/* Of the m rows those of the chunk: |fresh - stored| / |fresh| of K and of V is added to the
 * tokens' scores. */
int fus_sense_rows(struct fus_prefill *f, struct kn_stream *st, size_t row0, size_t m,
                   const float *k, const float *v, size_t ld)
{
    const struct pre_sense *p = &f->sense;
    const struct model_cfg *cfg = &f->core->cfg;
    const size_t GK = (size_t)cfg->G * cfg->K;
    const size_t row_bytes = kn_row_bytes(p->cur.dtype, cfg->G, cfg->K);
    const void *stored[2] = {p->cur.k, p->cur.v};
    const float *fresh[2] = {k, v};
    size_t a = 0;
    while (a < m && (uint32_t)f->pos[row0 + a] < p->tok0)
        a++; /* the sink, and a neighbour that had to be computed */
    if (a == m) return 0;
    const size_t first = (size_t)f->pos[row0 + a] - p->tok0;
    for (int i = 0; i < 2; i++) {
        int r = kn_change(st, fresh[i] + a * ld, ld, (const char *)stored[i] + first * row_bytes,
                          p->cur.dtype, m - a, GK, cfg->K, f->score + p->tok0 + first);
        if (r < 0) return r;
    }
    return 0;
}

void fus_sense_done(struct fus_prefill *f)
{
    const struct pre_sense *p = &f->sense;
    for (uint32_t i = 0; i < p->n; i++) {
        const float mean = f->score[p->tok0 + i] / (float)f->layer;
        if (mean > p->ret_score[i]) p->ret_score[i] = mean;
    }
}

void fus_sense_release(struct fus_prefill *f)
{
    if (!fus_sense_on(f)) return;
    f->sense.src.ops->release(f->sense.src.ctx);
    f->sense.src.ops = NULL;
}

int fus_sense_begin(struct fus_session *s, const struct fus_sense *p, struct fus_prefill **ret)
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
    int r = fus_begin(s, &plan, false, &f);
    if (r < 0) {
        mem_free(own);
        return r;
    }
    f->own_tok = own;
    f->sense =
        (struct pre_sense){.src = p->src, .tok0 = tok0, .n = p->n, .ret_score = p->ret_score};
    *ret = f;
    return 0;
}
