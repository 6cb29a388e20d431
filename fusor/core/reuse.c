/* reuse: stored KV in (sources), computed KV out (sinks), and the scores that compare both. */
#include "fusor/core/reuse_int.h"

#include "base/assert.h"

#include <limits.h>
#include <string.h>

void fus_range_release(struct pre_range *g)
{
    if (!g->active) return;
    g->active = false;
    g->r.src.ops->release(g->r.src.ctx);
}

static bool range_wanted(const struct pre_range *g, enum fus_bring what)
{
    return g->active && (g->r.exact || what != BRING_EXACT);
}

static bool from_sidecar(const struct pre_range *g, unsigned layer, enum fus_bring what,
                         struct kv_layer *ret)
{
    const struct kv_source *s = &g->r.src;
    return what == BRING_SIDE && !g->r.exact && s->ops->side && s->ops->side(s->ctx, layer, ret);
}

static int near_slot(const struct fus_prefill *f, unsigned layer)
{
    for (int i = 0; i < PRE_NEAR; i++)
        if (f->near[i].open && f->near[i].layer == layer) return i;
    return -1;
}

void fus_reuse_far(struct fus_prefill *f, unsigned lo, unsigned hi)
{
    for (int i = 0; i < PRE_NEAR; i++) {
        struct pre_near *n = &f->near[i];
        if (!n->open || n->layer < lo || n->layer >= hi) continue;
        n->open = false;
        kn_unstage(f->core->dev, n->turn);
    }
}

/* What the stream is given next sees the layer's copies. */
static int near_wait(const struct fus_prefill *f, struct kn_stream *st, unsigned layer)
{
    const int slot = near_slot(f, layer);
    return slot >= 0 ? kn_staged(st, f->near[slot].turn) : 0;
}

/* K and V of a range's layer, if they are here: two pieces. */
static size_t add_pieces(const struct fus_prefill *f, struct pre_range *g, unsigned layer,
                         struct kv_layer *ret, struct kn_piece *p)
{
    const struct model_cfg *cfg = &f->core->cfg;
    const struct kv_source *s = &g->r.src;
    struct kv_layer got;
    if (s->ops->ready && s->ops->ready(s->ctx, layer) != 1) return 0;
    if (s->ops->layer(s->ctx, layer, &got) < 0) return 0; /* it will say so again */
    const size_t row = kn_row_bytes(got.dtype, cfg->G, cfg->K);
    p[0] = (struct kn_piece){.from = got.k, .bytes = g->r.n * row, .row_bytes = row};
    p[1] = (struct kn_piece){.from = got.v, .bytes = g->r.n * row, .row_bytes = row};
    *ret = got;
    return 2;
}

void fus_reuse_near(struct fus_prefill *f, unsigned layer, enum fus_bring what)
{
    int slot = 0;
    size_t n = 0;
    if (kn_info(f->core->dev)->is_host || layer >= f->core->cfg.L || near_slot(f, layer) >= 0)
        return;
    while (slot < PRE_NEAR && f->near[slot].open)
        slot++;
    if (slot == PRE_NEAR) return;
    for (size_t i = 0; i < f->n_range; i++) {
        struct pre_range *g = &f->range[i];
        g->near[slot].k = NULL;
        if (range_wanted(g, what)) n += add_pieces(f, g, layer, &g->near[slot], f->piece + n);
    }
    struct pre_near *near = &f->near[slot];
    if (n == 0 || kn_stage(f->core->dev, f->piece, n, &near->turn) < 0) return;
    near->layer = layer;
    near->open = true;
    n = 0;
    for (size_t i = 0; i < f->n_range; i++) {
        struct kv_layer *at = &f->range[i].near[slot];
        if (!at->k) continue;
        const struct kn_piece *p = &f->piece[n];
        at->k = p->at == p->from ? NULL : p->at; /* what did not move may go between two steps */
        at->v = p[1].at;
        n += 2;
    }
}

/* Wait for a layer of the active ranges (exact ones always). A source that fails is dropped, its
 * range becomes a miss. */
int fus_reuse_fetch(struct fus_prefill *f, unsigned layer, enum fus_bring what)
{
    const int slot = near_slot(f, layer);
    for (size_t i = 0; i < f->n_range; i++) {
        struct pre_range *g = &f->range[i];
        if (!range_wanted(g, what)) continue;
        struct kv_layer got = {0};
        int r = 0;
        if (slot >= 0 && g->near[slot].k)
            got = g->near[slot];
        else if (!from_sidecar(g, layer, what, &got))
            r = g->r.src.ops->layer(g->r.src.ctx, layer, &got);
        if (f->plan.cancel && atomic_load(f->plan.cancel)) return -ECANCELED;
        if (r < 0) {
            (void)kn_fence(f->core->dev);
            fus_reuse_far(f, 0, UINT_MAX);
            fus_range_release(g);
            f->report.n_failed_ranges++;
            return -EAGAIN;
        }
        ASSERT(got.k);
        /* Where only K is asked V is never read: anything may stand there. */
        if (!got.v && what == BRING_SIDE) got.v = got.k;
        ASSERT(got.v);
        g->cur = got;
    }
    return 0;
}

/* Would fus_reuse_fetch() not wait? A source that failed does not. */
bool fus_reuse_ready(const struct fus_prefill *f, unsigned layer, enum fus_bring what)
{
    for (size_t i = 0; i < f->n_range; i++) {
        const struct pre_range *g = &f->range[i];
        const struct kv_source *s = &g->r.src;
        struct kv_layer side;
        if (!range_wanted(g, what) || !s->ops->ready || from_sidecar(g, layer, what, &side))
            continue;
        if (s->ops->ready(s->ctx, layer) == 0) return false;
    }
    return true;
}

struct place {
    struct fus_prefill *f;
    unsigned layer;
    enum fus_bring what;
};

/* Where a range's stored K of a position is rotated to. Wrong where a fault is injected: a chunk
 * ends before the prompt does, so the table has a row for the next place. */
static int32_t rotation_of(const struct fus_core *c, bool exact, size_t pos)
{
    if (c->fault == FUS_FAULT_NONE || exact) return (int32_t)pos;
    return c->fault == FUS_FAULT_REPOSITION ? -1 : (int32_t)pos + 1;
}

struct batch { /* pieces that are placed together */
    struct kn_stream *st;
    const struct place *p;
    struct kn_stored piece[KN_PIECES];
    size_t n;
};

static int place_batch(struct batch *b)
{
    const struct fus_prefill *f = b->p->f;
    const size_t n = b->n;
    b->n = 0;
    return kn_kv_load(b->st, &f->kv, b->p->layer, f->core->layer[b->p->layer].rope, b->piece, n);
}

/* Rows [lo, hi) of a range to pos0 and on, rotated to rot0 and on where the layer rotates. */
static int add_rows(struct batch *b, const struct pre_range *g, size_t lo, size_t hi, int32_t pos0,
                    int32_t rot0)
{
    const struct fus_core *c = b->p->f->core;
    const struct model_cfg *cfg = &c->cfg;
    const size_t at = lo * kn_row_bytes(g->cur.dtype, cfg->G, cfg->K);
    int r = b->n == KN_PIECES ? place_batch(b) : 0;
    b->piece[b->n++] = (struct kn_stored){.pos0 = pos0,
                                          .rot0 = c->layer[b->p->layer].rope ? rot0 : -1,
                                          .n = hi - lo,
                                          .k = (const char *)g->cur.k + at,
                                          .v = (const char *)g->cur.v + at,
                                          .t = g->cur.dtype};
    return r;
}

/* Of rows [lo, hi) of a chunk the anchors: rotated to their place in the prompt, wherever they are
 * stored. */
static int add_anchors(struct batch *b, const struct pre_range *g, size_t lo, size_t hi)
{
    const struct fus_prefill *f = b->p->f;
    int r = 0;
    for (size_t i = lo; r == 0 && i < hi; i++) {
        const uint32_t t = g->r.tok0 + (uint32_t)i;
        if (f->plan.anchor[t]) r = add_rows(b, g, i, i + 1, f->b.row[t], (int32_t)(g->ask0 + i));
    }
    return r;
}

/* Rows [row0, row0+m) of the active ranges laid end to end. */
static int place_block(struct kn_stream *st, void *arg, size_t row0, size_t m)
{
    const struct place *p = arg;
    const struct fus_prefill *f = p->f;
    struct batch b = {.st = st, .p = p};
    size_t at = 0;
    int r = near_wait(f, st, p->layer);
    for (size_t i = 0; r == 0 && i < f->n_range && at < row0 + m; i++) {
        const struct pre_range *g = &f->range[i];
        if (!range_wanted(g, p->what)) continue;
        const size_t lo = row0 > at ? row0 - at : 0;
        const size_t hi = row0 + m - at < g->r.n ? row0 + m - at : g->r.n;
        at += g->r.n;
        if (lo >= hi) continue;
        const size_t pos0 = (f->stage == STAGE_SCORE ? g->ask0 : g->r.tok0) + lo;
        if (p->what == BRING_ANCHORS && !g->r.exact)
            r = add_anchors(&b, g, lo, hi);
        else
            r = add_rows(&b, g, lo, hi, (int32_t)pos0, rotation_of(f->core, g->r.exact, pos0));
    }
    return r < 0 ? r : place_batch(&b);
}

size_t fus_reuse_tokens(const struct fus_prefill *f, enum fus_bring what)
{
    size_t n = 0;
    for (size_t i = 0; i < f->n_range; i++)
        if (range_wanted(&f->range[i], what)) n += f->range[i].r.n;
    return n;
}

int fus_reuse_place(struct fus_prefill *f, unsigned layer, enum fus_bring what)
{
    const size_t n = fus_reuse_tokens(f, what);
    struct place p = {f, layer, what};
    return n ? kn_rows(f->core->dev, n, f->plan.cancel, place_block, &p) : 0;
}

/* ---- sinks ---- */

/* While the question asks only rows in front of all chunks are what the answer has. */
static bool gives_now(const struct fus_prefill *f, const struct pre_capture *c)
{
    return f->stage == STAGE_MAIN ||
           (f->n_front > 0 && (uint32_t)f->b.pos[f->n_front - 1] >= c->c.tok0);
}

void fus_capture_rows(struct fus_prefill *f, const struct kv_rows *rows)
{
    const int32_t *pos = f->b.pos + rows->row0;
    for (size_t i = 0; i < f->n_capture; i++) {
        struct pre_capture *c = &f->capture[i];
        if (!c->open || rows->layer < c->next_layer || atomic_load(&c->status) < 0) continue;
        if (!gives_now(f, c)) continue;
        size_t a = 0, b = rows->n;
        while (a < b && (uint32_t)pos[a] < c->c.tok0)
            a++;
        while (b > a && (uint32_t)pos[b - 1] >= c->c.tok0 + c->c.n)
            b--;
        if (a == b) continue;
        ASSERT((size_t)(pos[b - 1] - pos[a]) == b - a - 1); /* exact rows have no gaps */
        struct kv_rows own = *rows;
        own.row0 = (size_t)pos[a] - c->c.tok0;
        own.n = b - a;
        own.k += a * own.ld;
        own.v += a * own.ld;
        own.bad = &f->b.bad[i];
        int r = c->c.sink.ops->rows(c->c.sink.ctx, &own);
        int none = 0;
        if (r < 0) (void)atomic_compare_exchange_strong(&c->status, &none, r);
    }
}

void fus_captures_layer_done(struct fus_prefill *f, unsigned layer)
{
    for (size_t i = 0; i < f->n_capture; i++) {
        struct pre_capture *c = &f->capture[i];
        if (layer >= c->next_layer && gives_now(f, c)) c->next_layer = layer + 1;
    }
}

size_t fus_captures_open(const struct fus_prefill *f)
{
    size_t n = 0;
    for (size_t i = 0; i < f->n_capture; i++)
        if (f->capture[i].open) n += f->capture[i].c.n;
    return n;
}

void fus_captures_close(struct fus_prefill *f, size_t most, int status)
{
    size_t n = 0;
    for (size_t i = 0; i < f->n_capture; i++) {
        struct pre_capture *c = &f->capture[i];
        if (!c->open) continue;
        if (n > 0 && n + c->c.n > most) return;
        n += c->c.n;
        c->open = false;
        const int own = f->b.bad[i] ? -ERANGE : atomic_load(&c->status);
        c->c.sink.ops->done(c->c.sink.ctx, own < 0 ? own : status);
    }
}

/* ---- scores ---- */

/* Squared L2 between fresh and stored K, both before RoPE (a rotation keeps the norm), of the rows
 * that are reused tokens'. */
int fus_deviation_rows(struct fus_prefill *f, const struct kv_rows *rows)
{
    const struct model_cfg *cfg = &f->core->cfg;
    struct kn_stored piece[KN_PIECES];
    size_t n = 0;
    int r = near_wait(f, rows->st, f->layer);
    for (size_t i = 0; r == 0 && i < f->n_range; i++) {
        const struct pre_range *g = &f->range[i];
        if (g->active && !g->r.exact)
            piece[n++] = (struct kn_stored){
                .pos0 = (int32_t)g->r.tok0, .n = g->r.n, .k = g->cur.k, .t = g->cur.dtype};
        if (n < KN_PIECES && i + 1 < f->n_range) continue;
        r = kn_deviation(rows->st, rows->k, rows->ld, fus_seen(f, f->b.pos + rows->row0), rows->n,
                         piece, n, cfg->G, cfg->K, fus_seen(f, f->b.dev));
        n = 0;
    }
    return r;
}

struct mass {
    struct fus_prefill *f;
    struct kn_attn_args q;
    size_t n_keys;
};

/* A block of keys, rounded to whole pages: every page's keys are summed by one thread, rows in
 * order, so that the result does not depend on the number of threads. All suffix rows stand behind
 * all these keys. */
static int mass_block(struct kn_stream *st, void *arg, size_t row0, size_t m)
{
    const struct mass *a = arg;
    const size_t key0 = (row0 + KN_PAGE - 1) / KN_PAGE * KN_PAGE;
    const size_t end = (row0 + m + KN_PAGE - 1) / KN_PAGE * KN_PAGE;
    float *score = a->f->b.score + key0;
    const size_t n = (end < a->n_keys ? end : a->n_keys) - key0;
    if (key0 == end) return 0;
    int r = fus_part_copy(a->f, st, score, n * sizeof(*score), true);
    if (r == 0) r = kn_attn_mass(st, &a->q, fus_seen(a->f, a->f->b.score), key0, n);
    return r < 0 ? r : fus_part_copy(a->f, st, score, n * sizeof(*score), false);
}

size_t fus_mass_keys(const struct fus_prefill *f, const int32_t *pos)
{
    return f->n_suffix ? (size_t)pos[f->n_rows - f->n_suffix] : 0;
}

int fus_mass_add(struct fus_prefill *f, unsigned layer, const int32_t *pos)
{
    const struct model_cfg *cfg = &f->core->cfg;
    const size_t n_keys = fus_mass_keys(f, pos);
    struct mass a = {f, fus_attn_args(f->core, &f->kv, layer), n_keys};
    if (n_keys == 0) return 0;
    a.q.q = f->b.keep_q, a.q.ldq = (size_t)cfg->H * cfg->K, a.q.m = f->n_suffix;
    a.q.pos = fus_seen(f, pos + f->n_rows - f->n_suffix);
    a.q.lse = f->b.keep_lse;
    return kn_rows(f->core->dev, n_keys, f->plan.cancel, mass_block, &a);
}

void fus_score_squeeze(struct fus_prefill *f)
{
    size_t n = 0;
    for (size_t t = 0; t < f->plan.n_tok; t++)
        if (f->kind[t] != KIND_MISSED) f->b.score[n++] = f->b.score[t];
}

void fus_score_spread(struct fus_prefill *f)
{
    size_t n = f->plan.n_tok - f->n_missed;
    for (size_t t = f->plan.n_tok; t-- > 0;)
        f->b.score[t] = f->kind[t] != KIND_MISSED ? f->b.score[--n] : 0;
}
