/* prefill: one prompt through the model by a plan, a part of a layer or a slice of its rows a step.
 *
 * Stages: LAYER0 embeds all tokens and writes K,V of layer 0 for every one of them (a reused token
 * needs no more at that layer) → SCORE (where the suffix is asked) runs the rows that are no
 * chunk's over the stored KV to find what the suffix attends to, as if chunks that are not held
 * were not in the prompt: their rows would cost as much again as the answer's → MAIN runs the
 * selected rows and everything that is not reused through all layers → HEAD, the logits. Layer by
 * layer stored KV is placed first; then the fresh K,V of the rows overwrite it. Without a step
 * budget all cuts depend on row counts alone, so r = 1 makes the same calls as a full prefill. A
 * source that fails turns its range into a miss and the prefill starts again (each restart loses a
 * range, so there are at most n_range of them). */
#include "fusor/core/reuse_int.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/mem.h"

#include <limits.h>
#include <string.h>

/* ---- begin ---- */

struct carver { /* hands out parts of a block; without a base it only counts */
    char *base;
    size_t at;
};

static void *carve(struct carver *c, size_t n, size_t size)
{
    enum { UNIT = 64 * KN_RANKS_MAX }; /* a rank's part begins so many times earlier */
    void *part = c->base ? c->base + c->at : NULL;
    c->at += (n * size + UNIT - 1) / UNIT * UNIT;
    return part;
}

/* The most rows of one phase B call: a slice and half of one more. */
static size_t slice_max(const struct fus_prefill *f)
{
    const size_t slice = fus_slice_rows(f->core, f->plan.n_tok), most = slice + slice / 2;
    return most < f->plan.n_tok ? most : f->plan.n_tok;
}

struct carvers {
    struct carver device, heads, shared; /* shared: the host's, tok first */
};

static void lay_out(struct fus_prefill *f, struct carvers *c)
{
    struct carver *const device = &c->device, *const shared = &c->shared;
    const struct model_cfg *g = &f->core->cfg;
    const size_t T = f->plan.n_tok, HK = (size_t)g->H * g->K;
    const size_t n_keep = f->how->pass ? f->n_suffix : 0;
    struct pre_buffers *b = &f->b;
    b->emb = carve(device, T * g->D, 4);
    b->x = carve(device, T * g->D, 4);
    b->keep_q = carve(&c->heads, n_keep * HK, 4);
    b->keep_lse = carve(&c->heads, n_keep * g->H, 4);
    b->att = carve(&c->heads, kn_info(f->core->dev)->is_host ? slice_max(f) * HK : 0, 4);
    int32_t **const sent[] = {&b->tok, &b->pos_all, &b->pos, &b->ask, &b->slot, &b->from, &b->row};
    for (size_t i = 0; i < sizeof sent / sizeof *sent; i++)
        *sent[i] = carve(shared, T, 4);
    b->sent_bytes = shared->at;
    b->cand = carve(shared, T, 4);
    b->pick = carve(shared, T, 4);
    b->dev = carve(shared, T, 4);
    b->score = carve(shared, T, 4);
    b->seen = kn_info(f->core->dev)->is_host ? (char *)b->tok : carve(device, shared->at, 1);
    b->sel = carve(shared, T, 4);
    b->cand_score = carve(shared, T, 4);
    b->chosen = carve(shared, T, 1);
    b->bad = carve(shared, f->n_capture, sizeof(*b->bad));
    b->logits = carve(shared, f->n_logits * (f->plan.hidden ? g->D : g->V), 4);
}

static int make_block(struct fus_prefill *f)
{
    struct carvers c = {0};
    f->n_logits = f->plan.n_tok - f->plan.logits_from;
    lay_out(f, &c);
    const struct fus_block want = {
        .device_bytes = c.device.at, .heads_bytes = c.heads.at, .shared_bytes = c.shared.at};
    int r = fus_core_take_block(f->core, &want, &f->block);
    if (r < 0) return r;
    c = (struct carvers){
        {.base = f->block.device}, {.base = f->block.heads}, {.base = f->block.shared}};
    lay_out(f, &c);
    for (uint32_t i = 0; i < f->plan.n_tok; i++)
        f->b.pos_all[i] = (int32_t)i;
    memset(f->b.bad, 0, f->n_capture * sizeof(*f->b.bad));
    return 0;
}

void *fus_seen(const struct fus_prefill *f, const void *part)
{
    return part ? f->b.seen + ((const char *)part - (const char *)f->b.tok) : NULL;
}

int fus_part_copy(const struct fus_prefill *f, struct kn_stream *st, void *part, size_t bytes,
                  bool up)
{
    void *seen = fus_seen(f, part);
    if (seen == part) return 0;
    return up ? kn_copy(st, seen, part, bytes) : kn_copy(st, part, seen, bytes);
}

/* To what operations see, behind all that is queued, for all that will be: the host leaves its own
 * as it is until it has waited. */
static int send_block(struct kn_stream *st, void *arg, size_t row0, size_t m)
{
    const struct fus_prefill *f = arg;
    return fus_part_copy(f, st, f->b.tok, f->b.sent_bytes, true);
}

static int send_rows(struct fus_prefill *f)
{
    if (f->b.seen == (char *)f->b.tok) return 0;
    kn_defer(f->core->dev, true); /* what reads it follows */
    const int r = kn_wide(f->core->dev, 1, NULL, send_block, f);
    kn_defer(f->core->dev, false);
    return r;
}

/* Sources and sinks become ours: from here on each gets its release() or done(). */
static int copy_plan(struct fus_prefill *f)
{
    f->range = mem_zalloc((f->plan.n_range + 1) * sizeof(*f->range));
    f->piece = mem_alloc((2 * f->plan.n_range + 1) * sizeof(*f->piece));
    f->capture = mem_zalloc((f->plan.n_capture + 1) * sizeof(*f->capture));
    f->kind = mem_alloc(f->plan.n_tok);
    if (!f->range || !f->piece || !f->capture || !f->kind) return -ENOMEM;
    f->n_range = f->plan.n_range;
    f->n_capture = f->plan.n_capture;
    for (size_t i = 0; i < f->n_range; i++) {
        f->range[i].r = f->plan.range[i];
        f->range[i].active = f->range[i].r.src.ops != NULL;
    }
    for (size_t i = 0; i < f->n_capture; i++) {
        f->capture[i].c = f->plan.capture[i];
        f->capture[i].open = f->capture[i].c.sink.ops != NULL;
        f->capture[i].next_layer = 1;
    }
    f->plan.range = NULL;
    f->plan.capture = NULL;
    return 0;
}

/* Captures whose rows will not all be exact are told so at once. */
static void refuse_captures(struct fus_prefill *f)
{
    for (size_t i = 0; i < f->n_capture; i++) {
        struct pre_capture *c = &f->capture[i];
        if (!c->open || fus_rows_exact(f, c->c.tok0, c->c.n)) continue;
        c->open = false;
        c->c.sink.ops->done(c->c.sink.ctx, -ENOTSUP);
    }
}

/* In the order of need: with a blind pass the layer that it asks comes first. */
static void prefetch(struct fus_prefill *f)
{
    const unsigned first = f->how->by_deviation ? f->plan.check_layer : 1,
                   side = f->plan.side_layer;
    struct kv_layer got;
    for (size_t i = 0; i < f->n_range; i++) {
        const struct pre_range *g = &f->range[i];
        const struct kv_source *s = &g->r.src;
        if (!g->active || !s->ops->prefetch) continue;
        if (f->how->pass == PASS_SIDE && !g->r.exact &&
            !(s->ops->side && s->ops->side(s->ctx, side, &got)))
            s->ops->prefetch(s->ctx, side, side + 1);
        s->ops->prefetch(s->ctx, g->r.exact ? 1 : first, f->core->cfg.L);
    }
}

/* Of which ranges layer l will be wanted, as far as that is known by now. */
static enum fus_bring wanted_ahead(const struct fus_prefill *f, unsigned l)
{
    const bool scoring = f->stage != STAGE_MAIN && f->how->pass;
    if (scoring) return f->how->pass == PASS_SIDE ? BRING_EXACT : BRING_CHUNKS;
    const bool later = f->how->by_deviation && !f->checked && l < f->plan.check_layer;
    return later ? BRING_EXACT : BRING_CHUNKS;
}

/* While a layer is computed the next ones come. */
static void look_ahead(struct fus_prefill *f)
{
    unsigned l = f->layer + 1 > f->loaded_to ? f->layer + 1 : f->loaded_to;
    for (unsigned n = 1; n < PRE_NEAR; n++, l++)
        fus_reuse_near(f, l, wanted_ahead(f, l));
}

static void restart(struct fus_prefill *f)
{
    (void)kn_fence(f->core->dev); /* its rows are about to change; what failed says so again */
    fus_reuse_far(f, 0, UINT_MAX);
    fus_roles_set(f);
    for (size_t i = 0; i < f->n_range; i++)
        if (!f->range[i].used) fus_range_release(&f->range[i]);
    memcpy(f->b.tok, f->plan.tok, f->plan.n_tok * sizeof(*f->b.tok));
    memset(f->b.score, 0, f->plan.n_tok * sizeof(*f->b.score));
    memset(f->b.dev, 0, f->plan.n_tok * sizeof(*f->b.dev));
    memset(f->b.chosen, CHOICE_OUT, f->plan.n_tok);
    f->stage = STAGE_LAYER0;
    f->layer = 0;
    f->row0 = 0;
    f->part = PART_STORED;
    f->loaded_to = 1;
    f->done_to = 0;
    f->checked = false;
    f->n_sel = f->n_rows_chosen = f->n_front = 0;
    f->report.deviation_left = f->report.score_left = -1;
}

/* A plan that fails to begin leaves its sources and sinks with the caller. */
static void abandon(struct fus_prefill *f)
{
    for (size_t i = 0; i < f->n_range; i++)
        f->range[i].active = false;
    for (size_t i = 0; i < f->n_capture; i++)
        f->capture[i].open = false;
    fus_prefill_end(f);
}

int fus_prefill_begin(struct fus_session *s, const struct fus_plan *p, struct fus_prefill **ret)
{
    struct fus_prefill *f = mem_zalloc(sizeof(*f));
    if (!f) return -ENOMEM;
    f->core = s->core;
    f->s = s;
    f->plan = *p;
    int r = fus_plan_resolve(f);
    if (r == 0) r = copy_plan(f);
    if (r == 0) {
        fus_roles_set(f);
        s->len = 0;
        r = fus_session_own(s, 0);
    }
    if (r == 0) r = make_block(f);
    if (r < 0) {
        abandon(f);
        return r;
    }
    f->kv = fus_session_kv(s);
    f->report.strategy = f->plan.strategy;
    f->report.ratio = f->plan.ratio;
    restart(f);
    refuse_captures(f);
    prefetch(f);
    look_ahead(f);
    *ret = f;
    return 0;
}

int fus_core_warm(struct fus_core *c, uint32_t n_tok)
{
    const uint32_t most = c->n_pages / 4 * KN_PAGE;
    struct fus_plan p = {.n_tok = n_tok < most ? n_tok : most};
    struct fus_session *s = NULL;
    struct fus_prefill *f = NULL;
    if (p.n_tok > c->ctx_max) p.n_tok = c->ctx_max;
    if (p.n_tok == 0 || !kn_info(c->dev)->is_host) return 0;
    int32_t *tok = mem_zalloc(p.n_tok * sizeof(*tok));
    p.tok = tok;
    int r = tok ? fus_session_create(c, p.n_tok, &s) : -ENOMEM;
    if (r == 0) r = fus_prefill_begin(s, &p, &f);
    if (r == 0) {
        mem_touch(f->block.device, f->block.device_bytes);
        mem_touch(f->block.heads, f->block.heads_bytes);
        mem_touch(f->block.shared, f->block.shared_bytes);
    }
    fus_prefill_end(f); /* its block and its pages are the next to be taken */
    fus_session_destroy(s);
    mem_free(tok);
    c->n_touched = c->used_max = 0; /* nothing was written to them yet */
    while (r == 0 && fus_core_warm_page(c))
        ;
    return r;
}

/* ---- rows ---- */

struct gather {
    const float *from;
    float *x;
    const int32_t *idx;
    size_t D;
};

static int gather_block(struct kn_stream *st, void *arg, size_t row0, size_t m)
{
    const struct gather *g = arg;
    return kn_gather(st, g->from, g->idx + row0, m, g->D, g->x + row0 * g->D);
}

/* How many of the rows that ask stand in front of all chunks, held or not. Nothing of these reaches
 * them, so what they have when the pass ends is the answer's, too: they go on there, with the last
 * layer that asked, whose second half they have not seen. Of a capture all or nothing is so. */
static size_t front_rows(const struct fus_prefill *f)
{
    uint32_t end = f->plan.n_tok;
    size_t n = 0;
    for (size_t i = 0; i < f->n_range; i++)
        if (!f->range[i].r.exact && f->range[i].r.tok0 < end) end = f->range[i].r.tok0;
    for (size_t i = 0; i < f->n_capture; i++) {
        const struct fus_capture *c = &f->capture[i].c;
        if (f->capture[i].open && c->tok0 < end && c->tok0 + c->n > end) end = c->tok0;
    }
    while (n < f->n_rows && (uint32_t)f->b.pos[n] < end)
        n++;
    return n;
}

/* Rows that only rank may be rounded, those that go on in the answer may not. So either none goes
 * on, and those in front are computed twice, or none is rounded, which takes up to twice as long:
 * the former where those in front are less than a third (reckoned). */
static void round_or_go_on(struct fus_prefill *f)
{
    const size_t front = front_rows(f);
    f->rough = 3 * front < f->n_rows && kn_mat_rough(f->core->layer[0].o.w);
    f->n_front = f->rough ? 0 : front;
}

/* Rows of this layer: [*ret, n_rows). */
static size_t first_row(const struct fus_prefill *f)
{
    return f->stage == STAGE_MAIN && f->layer + 1 < f->plan.score_hi ? f->n_front : 0;
}

/* Rows = tokens that are no chunk's; for the answer those of missed chunks and the chosen ones too,
 * with all reused ones when `all`; x from the embeddings. */
static int rows_from_embeddings(struct fus_prefill *f, bool all)
{
    const bool answer = f->stage == STAGE_MAIN;
    int32_t missed = 0;
    size_t n = 0;
    for (uint32_t t = 0; t < f->plan.n_tok; t++) {
        const enum fus_kind kind = (enum fus_kind)f->kind[t];
        missed += kind == KIND_MISSED;
        if (kind == KIND_COMPUTED || (kind == KIND_MISSED && answer) ||
            (kind == KIND_REUSED && (all || f->b.chosen[t] == CHOICE_ROW))) {
            f->b.ask[n] = (int32_t)t - missed;
            f->b.pos[n++] = (int32_t)t;
        }
    }
    f->n_rows = n;
    const size_t first = first_row(f), D = f->core->cfg.D;
    const int32_t *idx = fus_seen(f, f->b.pos);
    struct gather g = {f->b.emb, f->b.x + first * D, idx + first, D};
    const int r = send_rows(f);
    return r < 0 ? r : kn_rows(f->core->dev, n - first, f->plan.cancel, gather_block, &g);
}

/* Rows that see nothing of the chunks but anchors stand end to end with these behind the exact
 * prefix, which starts the prompt. Attention in chunks begins where positions say. */
static int close_ranks(struct fus_prefill *f)
{
    const int32_t chunk = f->core->cfg.chunk ? (int32_t)f->core->cfg.chunk : INT32_MAX;
    int32_t at = (int32_t)f->report.n_prefix, missed = 0;
    int32_t border = at - at % chunk, from = border; /* a position, and the first slot behind it */
    size_t i = 0;
    for (uint32_t t = f->report.n_prefix; t < f->plan.n_tok; t++) {
        const int32_t pos = (int32_t)t - (missed += f->kind[t] == KIND_MISSED);
        const bool is_row = i < f->n_rows && f->b.pos[i] == (int32_t)t;
        const bool anchor = f->plan.anchor && f->plan.anchor[t] && f->kind[t] == KIND_REUSED;
        if (!is_row && !anchor) continue;
        if (pos - pos % chunk != border) border = pos - pos % chunk, from = at;
        if (is_row) f->b.from[i] = from;
        *(is_row ? &f->b.slot[i++] : &f->b.row[t]) = at++;
    }
    return send_rows(f);
}

/* After the check layer's K,V: rows of reused tokens that were not chosen end here. The others
 * move up in place, so in order: one block. */
static int drop_rows(struct fus_prefill *f)
{
    size_t n = 0;
    for (size_t i = 0; i < f->n_rows; i++) {
        const int32_t t = f->b.pos[i];
        if (f->kind[t] == KIND_REUSED && f->b.chosen[t] != CHOICE_ROW) continue;
        f->b.row[n] = (int32_t)i;
        f->b.pos[n++] = t;
    }
    f->n_rows = n;
    struct gather g = {f->b.x, f->b.x, fus_seen(f, f->b.row), f->core->cfg.D};
    const int r = send_rows(f);
    return r < 0 ? r : kn_wide(f->core->dev, n, f->plan.cancel, gather_block, &g);
}

/* ---- steps ---- */

/* Layer 0 knows every token's K,V from the embeddings; the asked layer brings the chunks' K. */
static bool is_blind(const struct fus_prefill *f)
{
    return f->stage == STAGE_SCORE && f->how->pass == PASS_SIDE && f->layer > 0 &&
           f->layer < f->plan.side_layer;
}

/* Positions of the current rows. Layer 0 has K,V of the missed chunks as well. */
static const int32_t *positions(const struct fus_prefill *f)
{
    return f->stage == STAGE_SCORE && f->layer > 0 ? f->b.ask : f->b.pos;
}

static struct fus_phase phase(struct fus_prefill *f)
{
    return (struct fus_phase){.core = f->core,
                              .kv = f->kv,
                              .layer = f->layer,
                              .x = f->b.x,
                              .pos = fus_seen(f, positions(f)),
                              .slot = fus_seen(f, is_blind(f) ? f->b.slot : NULL),
                              .known = is_blind(f) ? f->b.slot : positions(f),
                              .from = fus_seen(f, is_blind(f) ? f->b.from : NULL),
                              .n = f->n_rows,
                              .att = f->b.att,
                              .cancel = f->plan.cancel};
}

/* The rows of the answer, with what is known by now about which tokens are among them. */
static int begin_main(struct fus_prefill *f)
{
    f->stage = STAGE_MAIN;
    f->layer = 0;
    f->row0 = first_row(f);
    f->checked = !f->chooses || !f->how->by_deviation;
    if (!f->checked) return rows_from_embeddings(f, true);
    const int r = f->chooses && f->how->pass ? fus_select(f) : 0;
    return r < 0 ? r : rows_from_embeddings(f, false);
}

/* Of the n rows of a part as many as a step may have. */
static size_t rows_now(const struct fus_prefill *f, size_t n)
{
    const size_t left = n - f->row0;
    return f->step_rows && f->step_rows < left ? f->step_rows : left;
}

/* K,V of layer 0 for every token of the prompt, whatever becomes of it. */
static int step_layer0(struct fus_prefill *f)
{
    struct fus_phase p = phase(f);
    p.x = f->b.emb;
    p.pos = fus_seen(f, f->b.pos_all);
    p.n = f->plan.n_tok;
    p.embed_tok = fus_seen(f, f->b.tok);
    const size_t m = rows_now(f, p.n);
    int r = f->row0 == 0 ? send_rows(f) : 0;
    if (r == 0) r = fus_phase_a(&p, f->row0, m);
    if (r < 0) return r;
    f->row0 += m;
    if (f->row0 < p.n) return 0;
    f->row0 = 0;
    f->chooses = fus_select_budget(f) > 0 && f->core->cfg.L > 1;
    if (f->plan.strategy == POL_SINK) fus_select_sink(f);
    if (!f->chooses || !f->how->pass) return begin_main(f);
    f->stage = STAGE_SCORE;
    r = rows_from_embeddings(f, false);
    round_or_go_on(f);
    return r == 0 && f->how->pass == PASS_SIDE ? close_ranks(f) : r;
}

static bool is_choice_layer(const struct fus_prefill *f)
{
    if (f->stage != STAGE_MAIN) return false;
    return f->checked ? fus_select_again(f) : f->layer == f->plan.check_layer;
}

/* What has to be in the pages before this layer runs. Up to the check layer all chunk tokens are
 * rows, and their fresh K,V there are kept: chunks are placed only behind it. */
static enum fus_bring wanted_in_pages(const struct fus_prefill *f)
{
    if (f->stage == STAGE_SCORE && f->how->pass == PASS_SIDE) {
        if (f->layer == f->plan.side_layer) return BRING_SIDE;
        return f->plan.anchor ? BRING_ANCHORS : BRING_EXACT;
    }
    return f->stage == STAGE_SCORE || f->checked ? BRING_CHUNKS : BRING_EXACT;
}

void fus_prefill_step_rows(struct fus_prefill *f, size_t rows)
{
    f->step_rows = rows;
}

bool fus_prefill_ready(const struct fus_prefill *f)
{
    const bool in_layers = f->stage == STAGE_SCORE || f->stage == STAGE_MAIN;
    if (!in_layers || f->part != PART_STORED) return true;
    if (is_choice_layer(f)) return fus_reuse_ready(f, f->layer, BRING_CHUNKS);
    if (f->layer < f->loaded_to) return true;
    return fus_reuse_ready(f, f->layer, wanted_in_pages(f));
}

/* Stored KV of this layer near, and into the pages. */
static int bring_layer(struct fus_prefill *f)
{
    const enum fus_bring what = wanted_in_pages(f);
    const bool placed = f->layer < f->loaded_to;
    if (placed && !f->at_choice) return 0;
    const uint64_t since = clock_ns();
    int r = fus_reuse_fetch(f, f->layer, f->at_choice ? BRING_CHUNKS : what);
    f->report.compute_ms -= clock_ms_since(since); /* waiting is not computing */
    if (r == 0 && !placed) {
        kn_defer(f->core->dev, f->n_rows > 0); /* the layer itself follows */
        r = fus_reuse_place(f, f->layer, what);
        kn_defer(f->core->dev, false);
    }
    if (r == 0 && !placed) f->loaded_to = f->layer + 1;
    return r;
}

static bool is_scoring(const struct fus_prefill *f)
{
    return f->stage == STAGE_SCORE && f->layer >= f->plan.score_lo;
}

/* What happens to fresh K (before RoPE) and V of a block of rows: sinks, and the check. */
static int rows_hook(void *ctx, const struct kv_rows *rows)
{
    struct fus_prefill *f = ctx;
    int r = 0;
    if (f->n_capture) fus_capture_rows(f, rows);
    if (f->at_choice) r = fus_deviation_rows(f, rows);
    return r;
}

/* Stored KV of the layer to its place. */
static int step_stored(struct fus_prefill *f)
{
    f->at_choice = is_choice_layer(f);
    fus_reuse_far(f, 0, f->done_to);
    int r = f->at_choice ? kn_fence(f->core->dev) : 0; /* rows change here */
    if (r == 0) r = bring_layer(f); /* last: what it queues is waited for with the layer */
    if (r < 0) return r;
    look_ahead(f);
    f->part = PART_A;
    return 0;
}

/* Behind the last slice of a layer's first half; at the check layer the choice. */
static int end_a(struct fus_prefill *f)
{
    fus_captures_layer_done(f, f->layer);
    if (f->at_choice) {
        int r = fus_select(f);
        if (r < 0) return r;
        f->checked = true;
        r = drop_rows(f);
        if (r < 0) return r;
    }
    f->token_layers += (double)(f->n_rows - first_row(f));
    f->part = PART_B;
    f->row0 = 0;
    return 0;
}

/* Rows of phase B in this layer: [*ret_row0, n_rows). In the last layer only those that feed
 * logits, in the last scoring layer only the suffix. */
static size_t first_b_row(const struct fus_prefill *f)
{
    if (f->stage == STAGE_SCORE)
        return f->layer + 1 == f->plan.score_hi ? f->n_rows - f->n_suffix : 0;
    if (f->layer + 1 == f->core->cfg.L) return f->n_rows - f->n_logits;
    return first_row(f);
}

/* Rows of the next slice of phase B. */
static size_t b_rows(const struct fus_prefill *f)
{
    const size_t first = first_b_row(f), row0 = f->row0 < first ? first : f->row0;
    const size_t left = f->n_rows - row0, slice = fus_slice_rows(f->core, f->plan.n_tok);
    /* half of one more rather than a small rest */
    const size_t m = left > slice + slice / 2 ? slice : left;
    return f->step_rows && f->step_rows < m ? f->step_rows : m;
}

/* Both halves have the same rows, nobody looks in between, and one step has all of them. */
static bool is_joint(const struct fus_prefill *f)
{
    return f->core->layer[f->layer].qkv.w && f->layer > 0 && f->stage == STAGE_MAIN &&
           !f->at_choice && !f->n_capture && !f->step_rows && first_b_row(f) == first_row(f) &&
           b_rows(f) == f->n_rows - first_row(f);
}

/* A slice of the first half of a layer. Layer 0 has its K,V already. */
static int step_a(struct fus_prefill *f)
{
    const size_t m = f->layer > 0 ? rows_now(f, f->n_rows) : f->n_rows - f->row0;
    f->joint = is_joint(f);
    if (f->layer > 0 && !f->joint) {
        struct fus_phase p = phase(f);
        p.hook = f->n_capture || f->at_choice ? rows_hook : NULL;
        p.hook_ctx = f;
        p.goes_on = true; /* who wants to see something waits: the choice, the end of captures */
        int r = fus_phase_a(&p, f->row0, m);
        if (r < 0) return r;
    }
    f->row0 += m;
    return f->row0 < f->n_rows ? 0 : end_a(f);
}

/* The next layer may be queued before this one is done: its results are not looked at. */
static bool goes_on(const struct fus_prefill *f)
{
    return f->stage == STAGE_MAIN && f->checked && f->layer + 1 < f->core->cfg.L;
}

/* A slice of the second half of a layer; 1 when the layer is done. */
static int step_b(struct fus_prefill *f)
{
    const size_t first = first_b_row(f), m = b_rows(f);
    if (f->row0 < first) f->row0 = first;
    struct fus_phase p = phase(f);
    p.joint = f->joint;
    if (is_scoring(f)) {
        p.keep_q = f->b.keep_q;
        p.keep_lse = f->b.keep_lse;
        p.keep_from = f->n_rows - f->n_suffix;
        p.attn_only = f->layer + 1 == f->plan.score_hi;
    }
    const bool more = goes_on(f);
    kn_pipeline(f->core->dev, more);
    int r = fus_phase_b(&p, f->row0, m);
    kn_pipeline(f->core->dev, false);
    if (r < 0) return r;
    f->done_to = more ? f->layer : f->layer + 1;
    f->row0 += m;
    if (f->row0 < f->n_rows) return 0;
    if (!is_scoring(f)) return 1;
    f->part = PART_SCORE;
    return 0;
}

static void end_prefill(struct fus_prefill *f)
{
    struct fus_report *t = &f->report;
    f->stage = STAGE_DONE;
    f->s->len = f->plan.n_tok;
    /* Where the set shrinks, the mean over the layers. */
    t->n_recomputed =
        (uint32_t)(f->how->by_deviation && f->n_sel > f->budget ? f->budget : f->n_sel);
    t->n_reused = (uint32_t)(f->n_reusable - t->n_recomputed);
    t->n_computed = f->plan.n_tok - t->n_prefix - t->n_reused - t->n_recomputed;
    t->cost = f->token_layers / ((double)f->plan.n_tok * f->core->cfg.L);
    fus_captures_close(f, SIZE_MAX, 0);
}

static int step_head(struct fus_prefill *f)
{
    int r = fus_captures_open(f) > 0 ? kn_fence(f->core->dev) : 0; /* their rows have left */
    if (r < 0) return r;
    if (f->step_rows && fus_captures_open(f) > 0) {
        fus_captures_close(f, f->step_rows, 0);
        if (f->n_logits > 0 || fus_captures_open(f) > 0) return 0;
    }
    const float *x = f->b.x + (f->n_rows - f->n_logits) * f->core->cfg.D;
    r = (f->plan.hidden ? fus_phase_hidden : fus_phase_logits)(f->core, x, f->n_logits,
                                                               f->plan.cancel, f->b.logits);
    if (r == 0) r = fus_prefix_share(f);
    if (r == 0) end_prefill(f);
    return r;
}

static int end_of_score(struct fus_prefill *f)
{
    fus_score_spread(f);
    if (pol_strategy_senses(f->plan.strategy) && !f->plan.anchor) fus_select_weigh(f);
    /* Blind rows stood in the chunks' place, or chunks in that of missed ones: all comes again. */
    if (f->how->pass == PASS_SIDE || f->n_missed > 0) {
        fus_reuse_far(f, 0, UINT_MAX);
        f->loaded_to = 1;
        f->done_to = 0;
    }
    return begin_main(f);
}

static int layer_done(struct fus_prefill *f)
{
    f->layer++;
    f->part = PART_STORED;
    f->row0 = first_row(f);
    if (f->stage == STAGE_SCORE && f->layer == 1) fus_score_squeeze(f);
    if (f->stage == STAGE_SCORE && f->layer == f->plan.score_hi) return end_of_score(f);
    if (f->layer < f->core->cfg.L) return 0;
    f->stage = STAGE_HEAD;
    /* With nothing to wait for it is at its end. */
    return f->n_logits > 0 || (f->step_rows && fus_captures_open(f) > 0) ? 0 : step_head(f);
}

/* What of the stored KV this layer's step brings, in tokens. */
static size_t tokens_to_bring(const struct fus_prefill *f)
{
    const bool placed = f->layer < f->loaded_to;
    return placed ? 0 : fus_reuse_tokens(f, wanted_in_pages(f));
}

/* Without a step budget a layer is one step where its rows are few enough: a device then has one to
 * wait for, and stored KV that lies on it stays where it is until it has been read. */
static int step_first_half(struct fus_prefill *f)
{
    if (f->part == PART_STORED) {
        const bool apart = f->step_rows && tokens_to_bring(f) > 0;
        const int r = step_stored(f);
        if (r == -EAGAIN) restart(f); /* a source failed: again, with its range as a miss */
        if (r == -EAGAIN || apart) return 0;
        if (r < 0) return r;
    }
    return step_a(f);
}

static int step_second_half(struct fus_prefill *f)
{
    if (f->part == PART_SCORE) {
        const int r = fus_mass_add(f, f->layer, positions(f));
        return r < 0 ? r : layer_done(f);
    }
    const int r = step_b(f);
    return r == 1 ? layer_done(f) : r;
}

static int step_layer(struct fus_prefill *f)
{
    if (f->part < PART_B) {
        const int r = step_first_half(f);
        if (r < 0 || f->part < PART_B || f->stage == STAGE_DONE) return r;
        if (f->step_rows && f->layer > 0) return r; /* in layer 0 there was nothing to do */
    }
    return step_second_half(f);
}

static int step(struct fus_prefill *f)
{
    int r = 0;
    if (f->plan.cancel && atomic_load(f->plan.cancel)) return -ECANCELED;
    kn_rough(f->core->dev, f->stage == STAGE_SCORE && f->rough);
    if (f->stage == STAGE_LAYER0)
        r = step_layer0(f);
    else if (f->stage == STAGE_HEAD)
        r = step_head(f);
    else if (f->stage != STAGE_DONE)
        r = step_layer(f);
    kn_rough(f->core->dev, false);
    if (r < 0) return r;
    return f->stage == STAGE_DONE ? 0 : 1;
}

/* Streaming a layer's weights takes about as long as computing that many rows with them (chosen:
 * 13 MB of SmolLM2's at 15 GB/s against 6.6 MFLOP a row at 250 GFLOP/s). */
enum { FLOOR_ROWS = 32 };

/* Of a row in phase B, in operations: the matrices, and the keys that the slice's last row sees.
 * Attention does fewer of them a second: measured (docs/scale.md), two thirds. */
static double b_row_work(const struct fus_prefill *f, size_t m)
{
    const struct model_cfg *g = &f->core->cfg;
    const size_t HK = (size_t)g->H * g->K, first = first_b_row(f);
    const size_t last = (f->row0 < first ? first : f->row0) + m;
    const int32_t *at = is_blind(f) ? f->b.slot : positions(f);
    const double keys = last > 0 ? (double)at[last - 1] + 1 : 0;
    const bool attn_only = is_scoring(f) && f->layer + 1 == f->plan.score_hi;
    const double linear = 2.0 * g->D * ((double)HK + (attn_only ? 0 : (double)HK + 3.0 * g->F));
    return linear + 1.5 * 4.0 * (double)HK * keys;
}

static void next_in_layer(const struct fus_prefill *f, struct fus_step *s)
{
    const size_t tokens = f->part == PART_STORED ? tokens_to_bring(f) : 0;
    if (tokens > 0) {
        *s = (struct fus_step){FUS_STEP_STORED, tokens, .whole = true, .row = 1};
    } else if (f->part < PART_B && f->layer > 0) {
        *s = (struct fus_step){FUS_STEP_KV, f->n_rows - f->row0, .row = 1, .fixed = FLOOR_ROWS};
    } else if (f->part < PART_SCORE) {
        const size_t m = b_rows(f);
        const double row = b_row_work(f, m);
        *s = (struct fus_step){FUS_STEP_ROWS, m, .row = row, .fixed = FLOOR_ROWS * row};
    } else {
        const double pairs = (double)f->n_suffix * (double)fus_mass_keys(f, positions(f));
        *s = (struct fus_step){FUS_STEP_SCORE, 1, .whole = true, .row = pairs};
    }
}

void fus_prefill_next(const struct fus_prefill *f, struct fus_step *ret)
{
    struct fus_step s = {FUS_STEP_HEAD, f->n_logits, .whole = true, .row = 1, .fixed = FLOOR_ROWS};
    const size_t open = fus_captures_open(f);
    if (f->stage == STAGE_HEAD && open > 0) s = (struct fus_step){FUS_STEP_SINK, open, .row = 1};
    if (f->stage == STAGE_LAYER0)
        s = (struct fus_step){FUS_STEP_EMBED, f->plan.n_tok - f->row0, .row = 1,
                              .fixed = FLOOR_ROWS};
    else if (f->stage == STAGE_SCORE || f->stage == STAGE_MAIN)
        next_in_layer(f, &s);
    if (s.rows == 0) s.rows = 1;
    *ret = s;
}

/* A step is of the part that it begins in. */
static enum fus_part next_part(const struct fus_prefill *f)
{
    if (f->stage == STAGE_LAYER0) return FUS_PART_EMBED;
    if (f->stage == STAGE_SCORE) return FUS_PART_SCORE;
    if (f->stage != STAGE_MAIN) return FUS_PART_HEAD;
    return (enum fus_part)(FUS_PART_LAYERS + f->layer * FUS_LAYER_GROUPS / f->core->cfg.L);
}

int fus_prefill_step(struct fus_prefill *f)
{
    struct fus_time *part = &f->report.part[next_part(f)];
    const uint64_t since = clock_ns();
    const double before_ms = f->report.compute_ms;
    const int r = step(f);
    const uint64_t now = clock_ns();
    f->report.compute_ms += (double)(now - since) / 1e6;
    part->compute_ms += f->report.compute_ms - before_ms;
    if (!part->begin_ns) part->begin_ns = since;
    part->end_ns = now;
    return r;
}

int fus_prefill_steps(struct fus_prefill *f)
{
    int r;
    do
        r = fus_prefill_step(f);
    while (r == 1);
    return r;
}

/* ---- results ---- */

/* Reused tokens that are, or will be, computed again. */
static size_t n_again(const struct fus_prefill *f)
{
    const bool chooses = f->how->pass || f->how->by_deviation || f->plan.strategy == POL_SINK;
    return chooses && f->core->cfg.L > 1 ? fus_select_budget(f) : 0;
}

/* Rows that have gone through so many layers of the answer, whose set shrinks where it is chosen by
 * deviation. */
static double answer_rows(const struct fus_prefill *f, unsigned layers)
{
    const size_t all = f->plan.n_tok - f->report.n_prefix;
    const size_t n = all - f->n_reusable + n_again(f);
    const bool shrinks = f->how->by_deviation && n < all;
    const unsigned whole = !shrinks                        ? 0
                           : layers <= f->plan.check_layer ? layers
                                                           : f->plan.check_layer + 1;
    return (double)whole * (double)all + (double)(layers - whole) * (double)n;
}

void fus_prefill_progress(const struct fus_prefill *f, struct fus_progress *ret)
{
    const unsigned L = f->core->cfg.L;
    const size_t again = n_again(f);
    const size_t ask = f->plan.n_tok - f->report.n_prefix - f->n_reusable - f->n_missed;
    const double asked = f->how->pass && again > 0 ? (double)ask * f->plan.score_hi : 0;
    double rows = f->part == PART_B ? (double)f->row0 : f->part == PART_SCORE ? f->n_rows : 0;
    if (f->stage == STAGE_SCORE) rows += (double)ask * f->layer;
    if (f->stage == STAGE_MAIN) rows += asked + answer_rows(f, f->layer);
    if (f->stage >= STAGE_HEAD) rows = asked + answer_rows(f, L);
    if (f->stage == STAGE_LAYER0) rows = 0;
    const double all = asked + answer_rows(f, L);
    *ret = (struct fus_progress){.n_tok = f->plan.n_tok,
                                 .n_held = (uint32_t)(f->report.n_prefix + f->n_reusable - again),
                                 .done = rows < all ? rows / all : 1};
}

const float *fus_prefill_logits(const struct fus_prefill *f, size_t *ret_rows)
{
    *ret_rows = f->stage == STAGE_DONE ? f->n_logits : 0;
    return f->stage == STAGE_DONE && f->n_logits ? f->b.logits : NULL;
}

const struct fus_report *fus_prefill_report(const struct fus_prefill *f)
{
    return &f->report;
}

const int32_t *fus_prefill_selected(const struct fus_prefill *f, size_t *ret_n)
{
    *ret_n = f->n_sel;
    return f->b.sel;
}

void fus_prefill_end(struct fus_prefill *f)
{
    if (!f) return;
    (void)kn_fence(f->core->dev); /* the last layer may have been queued when this was cancelled */
    fus_reuse_far(f, 0, UINT_MAX);
    for (size_t i = 0; i < f->n_range; i++)
        fus_range_release(&f->range[i]);
    fus_captures_close(f, SIZE_MAX, -ECANCELED);
    fus_core_give_block(f->core, &f->block);
    mem_free(f->range);
    mem_free(f->piece);
    mem_free(f->capture);
    mem_free(f->kind);
    mem_free(f);
}
