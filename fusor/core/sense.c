/* sense: what is worth knowing of a chunk before anybody asks.
 *
 * First half, how much its KV changes when something real stands before it: a prefill of [sink,
 * neighbour, chunk] in which the neighbour's stored KV is reused (right behind the sink it is
 * exact) and the chunk's rows are computed; at every layer their fresh K (before RoPE) and V are
 * compared with the chunk's isolated ones. It ends at the middle layer: half a build per neighbour.
 * Second half, how much of the attention it draws: the scoring pass of [sink, chunk, head of the
 * neighbour] over the chunk's stored KV. The neighbour stands for a question; what a question
 * attends to hardly depends on what it asks. It costs as many rows as the head has. */
#include "fusor/core/prefill_int.h"

#include "base/assert.h"
#include "base/mem.h"

#include <limits.h>
#include <string.h>

enum { ASKING = 64 }; /* chosen: tokens of the neighbour's head, about a question's */

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

/* [sink, neighbour, chunk] becomes [sink, chunk, head of the neighbour]. */
static void turn(struct fus_prefill *f)
{
    struct pre_sense *p = &f->sense;
    const uint32_t n_before = p->tok0 - p->head, least = n_before < p->n ? n_before : p->n;
    const uint32_t asking = least < ASKING ? least : ASKING;
    int32_t head[ASKING];
    memcpy(head, f->own_tok + p->head, asking * sizeof(*head));
    memmove(f->own_tok + p->head, f->own_tok + p->tok0, p->n * sizeof(*head));
    memcpy(f->own_tok + p->head + p->n, head, asking * sizeof(*head));
    fus_reuse_far(f, 0, UINT_MAX);
    fus_range_release(&f->range[0]);
    f->range[0] =
        (struct pre_range){.r = {.tok0 = p->head, .n = p->n, .src = p->src}, .active = true};
    p->src.ops = NULL;
    p->asks = true;
    f->plan.n_tok = p->head + p->n + asking;
    f->plan.ratio = 1; /* so that there is something to score for */
    fus_restart(f);
}

bool fus_sense_done(struct fus_prefill *f)
{
    const struct pre_sense *p = &f->sense;
    for (uint32_t i = 0; i < p->n; i++) {
        const float mean = f->score[p->tok0 + i] / (float)f->layer;
        if (mean > p->ret_score[i]) p->ret_score[i] = mean;
    }
    if (!p->ret_static) return false;
    turn(f);
    return true;
}

void fus_sense_asked(struct fus_prefill *f)
{
    const struct pre_sense *p = &f->sense;
    const size_t layers = f->plan.score_hi - f->plan.score_lo;
    const float n = (float)(f->n_suffix * f->core->cfg.H * layers);
    for (uint32_t i = 0; i < p->n; i++)
        p->ret_static[i] += f->score[p->head + i] / n;
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
                                  .strategy = p->ret_static ? FUS_QUERY : FUS_REUSE,
                                  .cancel = p->cancel};
    struct fus_prefill *f = NULL;
    int r = fus_begin(s, &plan, false, &f);
    if (r < 0) {
        mem_free(own);
        return r;
    }
    f->own_tok = own;
    f->sense = (struct pre_sense){.src = p->src,
                                  .head = head,
                                  .tok0 = tok0,
                                  .n = p->n,
                                  .ret_score = p->ret_score,
                                  .ret_static = p->ret_static};
    *ret = f;
    return 0;
}
