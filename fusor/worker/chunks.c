/* The plan of one request: what of its prompt the store holds, and what is done about it.
 *
 * Slower tiers were asked when the prompt was prepared (asks.c); the rest happens on the engine
 * thread just before the prefill starts, so that a chunk that was built while the request waited is
 * still used. Sources and sinks own nothing but their pin or writer: they may outlive the request.
 * A source that fails makes the fusor compute that range; nothing is answered from it. */
#include "fusor/worker/guard.h"
#include "fusor/worker/records.h"
#include "fusor/worker/worker.h"
#include "policy/plan.h"

#include <string.h>

/* ---- the decision ---- */
static enum pol_strategy to_policy(enum fus_strategy s)
{
    static const enum pol_strategy map[FUS_STRATEGY_COUNT] = {
        [FUS_FULL] = POL_STRAT_FULL,     [FUS_PREFIX] = POL_STRAT_PREFIX,
        [FUS_REUSE] = POL_STRAT_REUSE,   [FUS_HKVD] = POL_STRAT_HKVD,
        [FUS_SINK] = POL_STRAT_SINK,     [FUS_QUERY] = POL_STRAT_QUERY,
        [FUS_QS] = POL_STRAT_QS,         [FUS_SIDE] = POL_STRAT_SIDE,
        [FUS_STATIC] = POL_STRAT_STATIC, [FUS_HYBRID] = POL_STRAT_HYBRID};

    return (unsigned)s < FUS_STRATEGY_COUNT ? map[s] : POL_STRAT_DEFAULT;
}

static enum fus_strategy from_policy(enum pol_strategy s)
{
    enum fus_strategy r = FUS_FULL;

    while (r < FUS_STRATEGY_COUNT && to_policy(r) != s)
        r++;
    return r < FUS_STRATEGY_COUNT ? r : FUS_FULL; /* fail to exact */
}

static enum pol_mode policy_mode(enum api_mode m)
{
    static const enum pol_mode map[API_MODE_COUNT] = {[API_AUTO] = POL_AUTO,
                                                      [API_FULL] = POL_FULL,
                                                      [API_PREFIX] = POL_PREFIX,
                                                      [API_REUSE] = POL_REUSE,
                                                      [API_BLEND] = POL_BLEND};

    return map[m];
}

enum fus_strategy wk_decide(const struct worker *w, const struct wk_mode *m,
                            const struct wk_held *held, double *ret_ratio)
{
    struct pol_guard_setting guard;
    enum fus_strategy dflt;
    struct pol_plan_in in = {.mode = policy_mode(m->mode),
                             .ratio = m->ratio,
                             .ratio_default = w->o.ratio,
                             .prompt_tokens = held->n_tok,
                             .prefix_tokens = held->n_prefix,
                             .reuse_tokens = held->n_hit,
                             .suffix_tokens = held->n_suffix,
                             .blend_allowed = w->blend_ok};
    struct pol_plan p;

    if (m->has_strategy) in.strategy = to_policy(m->strategy);
    if (w->o.strategy && fus_strategy_parse(w->o.strategy, &dflt) == 1)
        in.strategy_default = to_policy(dflt);
    if (wk_guard_rules(w, m, &guard) > 0) {
        in.blend_allowed &= !guard.exact;
        in.ratio_default = guard.ratio;
        in.strategy_default = guard.strategy;
    }
    p = pol_plan(&in);
    *ret_ratio = p.ratio;
    return from_policy(p.strategy);
}

/* ---- the plan of a request ---- */
struct planner {
    struct worker *w;
    struct wk_prompt *p;
    const struct wk_mode *m;
    struct fus_range *range;
    size_t n_range;
    struct fus_capture *capture;
    size_t n_capture;
    uint32_t n_prefix, n_hit;
    uint64_t late_ns;
};

static void drop_ranges(struct planner *q)
{
    for (size_t i = 0; i < q->n_range; i++)
        if (q->range[i].src.ops) q->range[i].src.ops->release(q->range[i].src.ctx);
    q->n_range = 0;
}

static int find_prefix(struct planner *q)
{
    for (size_t i = 0; i < q->p->n_block; i++) {
        uint32_t tok0 = (uint32_t)i * WK_BLOCK_TOKENS;
        struct fus_range *r = &q->range[q->n_range];
        struct wk_look *l = &q->p->block_look[i];
        struct store_pin *pin;
        int rc = wk_find(q->w, q->m, &q->p->block[i], q->p->tok + tok0, WK_BLOCK_TOKENS, l,
                         q->late_ns, &pin);
        if (rc <= 0) return rc;
        *r = (struct fus_range){.tok0 = tok0, .n = WK_BLOCK_TOKENS, .exact = true};
        rc = rec_source_make(pin, &r->src);
        if (rc < 0) return rc;
        rec_source_tell(&r->src, &l->status);
        q->n_range++;
        q->n_prefix += WK_BLOCK_TOKENS;
    }
    return 0;
}

static int find_chunk(struct planner *q, struct wk_cut *c)
{
    struct fus_range *r = &q->range[q->n_range];
    struct store_pin *pin;
    int rc;

    if (c->tok0 < q->n_prefix) { /* within the exact prefix: better than any chunk */
        c->source = c->tok0 + c->n <= q->n_prefix ? WK_PREFIX : WK_COMPUTED;
        return 0;
    }
    rc = wk_find(q->w, q->m, &c->key, q->p->tok + c->tok0, c->n, &c->look, q->late_ns, &pin);
    if (rc < 0) return rc;
    *r = (struct fus_range){.tok0 = c->tok0, .n = c->n};
    r->home = fus_stands_home(q->w->sink_token, q->p->tok, c->tok0);
    if (rc == 0) {
        c->missed = true;
        if (wk_build_pending(q->w, &c->key, NULL)) c->look.why = STORE_MISS_BUILDING;
        q->n_range++;
        return 0;
    }
    if (!store_pin_scored(pin, RECORD_SCORE_SENSITIVITY))
        wk_sense_want(q->w, &c->key, q->m->ns, q->p->tok + c->tok0, c->n);
    rc = rec_source_make(pin, &r->src);
    if (rc < 0) return rc;
    rec_source_tell(&r->src, &c->look.status);
    c->source = WK_STORED;
    q->n_hit += c->n;
    q->n_range++;
    return 0;
}

/* The blocks that this request computes exactly go to the store. */
static int claim_blocks(struct planner *q)
{
    for (size_t i = q->n_prefix / WK_BLOCK_TOKENS; i < q->p->n_block; i++) {
        uint32_t tok0 = (uint32_t)i * WK_BLOCK_TOKENS;
        struct fus_capture *c = &q->capture[q->n_capture];
        struct store_writer *writer;
        int rc = store_claim(q->w->store, TIER_PREFIX, &q->p->block[i], q->m->ns, q->p->tok + tok0,
                             WK_BLOCK_TOKENS, &writer);
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

    for (size_t i = 0; rc >= 0 && i < q->p->n_cut; i++) {
        struct wk_cut *c = &q->p->cut[i];
        c->source = WK_COMPUTED;
        c->missed = false;
        if (q->m->mode == API_PREFIX || !q->w->blend_ok)
            c->source = c->tok0 + c->n <= q->n_prefix ? WK_PREFIX : WK_COMPUTED;
        else
            rc = find_chunk(q, c);
    }
    return rc;
}

int wk_plan(struct worker *w, struct wk_prompt *p, const struct wk_mode *m, struct fus_plan *plan,
            void **ret_arrays, uint32_t *ret_captured)
{
    size_t n = p->n_block + p->n_cut + 1;
    size_t bytes = n * sizeof(struct fus_range) + (p->n_block + 1) * sizeof(struct fus_capture);
    struct planner q = {.w = w, .p = p, .m = m, .late_ns = wk_late_ns()};
    char *mem = mem_zalloc(bytes);
    uint32_t last = p->n_cut ? p->cut[p->n_cut - 1].tok0 + p->cut[p->n_cut - 1].n : 0;
    double ratio;
    int rc = 0;

    if (!mem) return -ENOMEM;
    q.range = (struct fus_range *)(void *)mem;
    q.capture = (struct fus_capture *)(void *)(mem + n * sizeof *q.range);
    if (m->mode != API_FULL) rc = look_up(&q);
    wk_drop_looks(w, p); /* what the plan has no use for */
    if (rc < 0) {
        drop_ranges(&q);
        mem_free(mem);
        return rc;
    }
    struct wk_held held = {p->n_tok, q.n_prefix, q.n_hit, p->n_tok - last};
    struct pol_guard_setting guard;
    p->guard_level = wk_guard_rules(w, m, &guard);
    plan->strategy = wk_decide(w, m, &held, &ratio);
    plan->ratio = (float)ratio;
    plan->mass = (float)(m->mass >= 0 ? m->mass : p->guard_level ? 0 : w->o.mass);
    plan->ratio_min = (float)(m->min_ratio >= 0 ? m->min_ratio : w->o.min_ratio);
    plan->tensor = m->tensor;
    plan->schedule = m->schedule;
    fus_profile_apply(&w->profile, plan);
    plan->suffix = p->n_cut ? p->n_tok - last : 0;
    if (plan->strategy == FUS_FULL || plan->strategy == FUS_PREFIX) {
        /* No chunk will be reused: give their pins back, keep the prefix. */
        size_t keep = plan->strategy == FUS_PREFIX ? q.n_prefix / WK_BLOCK_TOKENS : 0;
        for (size_t i = keep; i < q.n_range; i++)
            if (q.range[i].src.ops) q.range[i].src.ops->release(q.range[i].src.ctx);
        q.n_range = keep;
        for (size_t i = 0; i < p->n_cut; i++)
            if (p->cut[i].source == WK_STORED || plan->strategy == FUS_FULL)
                p->cut[i].source = WK_COMPUTED;
    }
    if (m->mode != API_FULL && m->store) (void)claim_blocks(&q);
    plan->range = q.range;
    plan->n_range = q.n_range;
    plan->capture = q.capture;
    plan->n_capture = q.n_capture;
    *ret_arrays = mem;
    *ret_captured = (uint32_t)(q.n_capture * WK_BLOCK_TOKENS);
    return 0;
}
