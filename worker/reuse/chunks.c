/* The plan of one request: what of its prompt the store holds, and what is done about it (decided
 * in control.c).
 *
 * Slower tiers were asked when the prompt was prepared (asks.c); the rest happens on the engine
 * thread just before the prefill starts, so that a chunk that was built while the request waited is
 * still used. Sources and sinks own nothing but their pin or writer: they may outlive the request.
 * A source that fails makes the fusor compute that range; nothing is answered from it. */
#include "worker/quality/guard.h"
#include "worker/reuse/control.h"
#include "worker/reuse/records.h"
#include "tiers/store_write.h"

#include <string.h>

/* ---- the plan of a request ---- */
struct planner {
    struct worker *w;
    struct wk_prompt *p;
    const struct wk_mode *m;
    struct ctl_decision *d;
    uint64_t own_bytes[POL_TIERS_MAX]; /* yet to come, by tier */
    struct store_pin **block, **chunk; /* [n_block], [n_cut] as found; NULL: a miss */
    size_t n_block;
    uint32_t n_prefix; /* that is used */
    struct fus_range *range;
    size_t n_range;
    struct fus_capture *capture;
    size_t n_capture;
    double prompt_ms; /* worth of any record, by the controller; 0: of each by itself */
    uint64_t late_ns, batch;
};

static void drop_ranges(struct planner *q)
{
    for (size_t i = 0; i < q->n_range; i++)
        if (q->range[i].src.ops) q->range[i].src.ops->release(q->range[i].src.ctx);
    q->n_range = 0;
}

static void drop_pins(struct planner *q)
{
    for (size_t i = q->p->n_cut; i-- > 0;) /* the tail first, as in wk_drop_looks() */
        store_pin_release(q->chunk[i]);
    while (q->n_block-- > 0)
        store_pin_release(q->block[q->n_block]);
}

/* From where a record still has to come, and how much of it; what is here is in RAM. */
static int comes_from(struct planner *q, const struct store_pin *pin, uint64_t *ret_bytes)
{
    *ret_bytes = store_pin_missing(pin);
    int tier = *ret_bytes ? wk_tier_index(q->w, store_pin_tier(pin)) : 0;
    if (tier > 0) q->own_bytes[tier] += *ret_bytes;
    return tier;
}

static int find_record(struct planner *q, const struct tier_key *key, uint32_t tok0, uint32_t n,
                       struct wk_look *l, struct store_pin **ret)
{
    double worth_ms = q->prompt_ms > 0 ? q->prompt_ms : wk_worth_ms(q->w, q->m, n);

    if (!l->asked) l->batch = q->batch;
    return wk_find(q->w, worth_ms, key, q->p->tok + tok0, n, l, q->late_ns, ret);
}

static int find_prefix(struct planner *q)
{
    struct ctl_decision *d = q->d;

    for (size_t i = 0; i < q->p->n_block; i++) {
        uint32_t tok0 = (uint32_t)i * WK_BLOCK_TOKENS;
        uint64_t bytes;
        int rc = find_record(q, &q->p->block[i], tok0, WK_BLOCK_TOKENS, &q->p->block_look[i],
                             &q->block[i]);
        if (rc <= 0) return rc;
        q->n_block++;
        int tier = comes_from(q, q->block[i], &bytes);
        if (tier > d->in.prefix_tier) d->in.prefix_tier = tier; /* the slowest decides */
        d->in.prefix_bytes += bytes;
        d->in.n_prefix += WK_BLOCK_TOKENS;
    }
    return 0;
}

/* It is there, but so far away that it was not even asked for: the decision is told so. */
static void gated(struct planner *q, const struct wk_cut *c, struct pol_chunk_now *now)
{
    int tier = store_where(q->w->store, &c->key);

    if (tier <= 0) return;
    now->tier = tier;
    now->bytes = store_record_bytes(q->w->store, tier, c->n);
    now->side = store_has_side(q->w->store, &c->key);
}

static int find_chunk(struct planner *q, size_t i)
{
    struct wk_cut *c = &q->p->cut[i];
    struct pol_chunk_now *now = &q->d->chunk[i];

    if (c->tok0 < q->d->in.n_prefix) return 0; /* within the exact prefix: better than any chunk */
    int rc = find_record(q, &c->key, c->tok0, c->n, &c->look, &q->chunk[i]);
    if (rc < 0) return rc;
    if (rc == 0) {
        c->missed = true;
        if (wk_build_pending(q->w, &c->key, NULL)) c->look.why = STORE_MISS_BUILDING;
        if (c->look.why == STORE_MISS_GATE) gated(q, c, now);
        return 0;
    }
    const struct store_pin *pin = q->chunk[i];
    now->tier = comes_from(q, pin, &now->bytes);
    now->side = now->tier == 0 || store_has_side(q->w->store, &c->key);
    if (!store_pin_scored(pin, RECORD_SCORE_SENSITIVITY))
        wk_sense_want(q->w, &c->key, q->m->ns, q->p->tok + c->tok0, c->n);
    return 0;
}

/* The blocks that this request computes exactly go to the store. */
static int claim_blocks(struct planner *q)
{
    for (size_t i = q->d->in.n_prefix / WK_BLOCK_TOKENS; i < q->p->n_block; i++) {
        uint32_t tok0 = (uint32_t)i * WK_BLOCK_TOKENS;
        struct fus_capture *c = &q->capture[q->n_capture];
        struct store_writer *writer;
        int rc = store_claim(q->w->store,
                             &(struct store_new){TIER_PREFIX, q->p->block[i], q->m->ns,
                                                 q->p->tok + tok0, WK_BLOCK_TOKENS},
                             &writer);
        if (rc == -ENOSPC || rc == -ENOMEM) return 0; /* a full store costs nobody an answer */
        if (rc <= 0) continue;
        *c = (struct fus_capture){.tok0 = tok0, .n = WK_BLOCK_TOKENS};
        if (rec_sink_make(writer, &q->w->ident, WK_BLOCK_TOKENS, NULL, &c->sink) < 0) return 0;
        q->n_capture++;
    }
    return 0;
}

static int look_up(struct planner *q)
{
    int rc = find_prefix(q);

    if (q->m->wish == POL_PREFIX || !q->w->blend_ok) return rc;
    for (size_t i = 0; rc >= 0 && i < q->p->n_cut; i++)
        rc = find_chunk(q, i);
    return rc;
}

static int make_source(struct planner *q, struct store_pin **pin, int *ret_status,
                       struct fus_range *r)
{
    int rc = rec_source_make(*pin, &r->src);

    *pin = NULL; /* the source's, or gone */
    if (rc >= 0) rec_source_tell(&r->src, ret_status);
    return rc;
}

/* The prefix is held, and what was chosen uses it. */
static int prefix_ranges(struct planner *q)
{
    if (q->d->out.strategy != POL_FULL) q->n_prefix = q->d->in.n_prefix;
    for (size_t i = 0; i < q->n_prefix / WK_BLOCK_TOKENS; i++) {
        struct fus_range *r = &q->range[q->n_range];
        *r = (struct fus_range){
            .tok0 = (uint32_t)i * WK_BLOCK_TOKENS, .n = WK_BLOCK_TOKENS, .exact = true};
        int rc = make_source(q, &q->block[i], &q->p->block_look[i].status, r);
        if (rc < 0) return rc;
        q->n_range++;
    }
    return 0;
}

/* What stays behind is not loaded any further, but for one record of each request: it tells how
 * fast its tier is by now, and what is asked for again and again climbs to RAM. */
static void refuse_chunk(struct planner *q, size_t i, bool *probed)
{
    struct wk_cut *c = &q->p->cut[i];
    struct store_pin *pin = q->chunk[i];

    q->chunk[i] = NULL;
    c->look.why = STORE_MISS_GATE;
    c->missed = q->d->by == CTL_BY_CONTROLLER;
    if (q->d->chunk[i].tier > 0 && *probed)
        store_pin_cancel(pin);
    else
        store_pin_release(pin);
    *probed |= q->d->chunk[i].tier > 0;
}

static int chunk_ranges(struct planner *q)
{
    bool exact = pol_strategy_is_exact(q->d->out.strategy);
    bool probed = q->d->out.n_reused > 0; /* a record that is used tells as well */

    for (size_t i = 0; i < q->p->n_cut; i++) {
        struct wk_cut *c = &q->p->cut[i];
        struct fus_range *r = &q->range[q->n_range];
        c->source = c->tok0 + c->n <= q->n_prefix ? WK_PREFIX : WK_COMPUTED;
        if (q->chunk[i] && !q->d->reuse[i]) refuse_chunk(q, i, &probed);
        if (exact || c->tok0 < q->n_prefix) continue;
        *r = (struct fus_range){.tok0 = c->tok0,
                                .n = c->n,
                                .at_built =
                                    fus_at_built_position(q->w->sink_token, q->p->tok, c->tok0)};
        int rc = q->chunk[i] ? make_source(q, &q->chunk[i], &c->look.status, r) : 0;
        if (rc < 0) return rc;
        if (r->src.ops) c->source = WK_STORED;
        if (!r->src.ops && q->d->reuse[i]) q->d->loose = true; /* chosen, but not asked for */
        q->n_range++;
    }
    return 0;
}

/* What was chosen, as the fusor understands it. */
static int fill_plan(struct planner *q, struct fus_plan *plan)
{
    const struct wk_prompt *p = q->p;
    const struct wk_mode *m = q->m;
    const struct wk_cut *last = p->n_cut ? &p->cut[p->n_cut - 1] : NULL;
    int rc = prefix_ranges(q);

    if (rc >= 0) rc = chunk_ranges(q);
    if (rc < 0) return rc;
    plan->strategy = q->d->out.strategy;
    plan->ratio = (float)q->d->out.ratio;
    plan->suffix = last ? p->n_tok - last->tok0 - last->n : 0;
    fus_profile_apply(&q->w->profile, plan);
    if (m->wish != POL_FULL && m->store) (void)claim_blocks(q);
    plan->range = q->range;
    plan->n_range = q->n_range;
    plan->capture = q->capture;
    plan->n_capture = q->n_capture;
    return 0;
}

static void forget(struct wk_prompt *p)
{
    for (size_t i = 0; i < p->n_cut; i++) {
        p->cut[i].source = WK_COMPUTED;
        p->cut[i].missed = false;
    }
    ctl_decision_free(p->decision);
    p->decision = NULL;
}

int wk_plan(struct worker *w, struct wk_prompt *p, const struct wk_mode *m, struct fus_plan *plan,
            void **ret_arrays, uint32_t *ret_captured)
{
    size_t n = p->n_block + p->n_cut + 1;
    size_t bytes = n * sizeof(struct fus_range) + (p->n_block + 1) * sizeof(struct fus_capture) +
                   n * sizeof(struct store_pin *);
    struct planner q = {.w = w, .p = p, .m = m, .late_ns = wk_late_ns()};
    char *mem = mem_zalloc(bytes);
    int rc = 0;

    q.prompt_ms = wk_prompt_worth_ms(w, p);
    q.batch = atomic_fetch_add(&w->n_batches, 1) + 1;
    forget(p);
    q.d = wk_decision_create(w, p);
    if (!mem || !q.d) {
        ctl_decision_free(q.d);
        mem_free(mem);
        return -ENOMEM;
    }
    p->decision = q.d;
    q.range = (struct fus_range *)(void *)mem;
    q.capture = (struct fus_capture *)(void *)(mem + n * sizeof *q.range);
    q.block = (struct store_pin **)(void *)(q.capture + p->n_block + 1);
    q.chunk = q.block + p->n_block;
    if (m->wish != POL_FULL) rc = look_up(&q);
    wk_drop_looks(w, p); /* what was not found */
    if (rc >= 0) {
        struct pol_guard_setting guard;
        p->guard_level = wk_guard_rules(w, m, &guard);
        wk_decide(w, m, q.own_bytes, q.d);
        rc = fill_plan(&q, plan);
    }
    drop_pins(&q); /* what the plan has no use for */
    if (rc < 0) {
        drop_ranges(&q);
        mem_free(mem);
        return rc;
    }
    *ret_arrays = mem;
    *ret_captured = (uint32_t)(q.n_capture * WK_BLOCK_TOKENS);
    return 0;
}
