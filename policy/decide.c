/* The decider: what a request asks for in so many words goes by rules, and so does all where the
 * search has nothing to go by; the rest is the search's. */
#include "policy/control.h"

#include <stdio.h>

#define RATIO_DEFAULT 0.15  /* cited: CacheBlend's range; the project's quality runs */
#define ASK_DEPTH (5.0 / 6) /* of the layers, that scoring runs through */

struct rule {
    enum pol_strategy strategy;
    double ratio;
    const char *reason;
};
struct found { /* tokens of chunks that are held, of those that are not, and in front of all */
    double held, missed, front;
};

static struct rule exact(const struct pol_control_in *in, const char *reason)
{
    return (struct rule){in->n_prefix ? POL_PREFIX : POL_FULL, 0, reason};
}

static double ratio_of(const struct pol_request *q)
{
    double r = q->ratio >= 0 ? q->ratio : q->ratio_default; /* false for NaN, too */

    if (!(r >= 0)) r = RATIO_DEFAULT;
    return r > 1 ? 1 : r;
}

/* Token-layers, as shares of a token's: whatever is not reused runs in full, and where the suffix
 * scores what stands behind a chunk and is none once more through the scoring layers. */
static bool worth_blending(const struct pol_control_in *in, const struct found *f,
                           enum pol_strategy s, double ratio)
{
    double rest = (double)in->n_tok - in->n_prefix - f->held;
    double ask = pol_strategy_asks(s) ? ASK_DEPTH * (rest - f->missed - f->front) : 0;
    double cost = rest + ask + ratio * f->held;

    return cost < POL_COST_MAX * (rest + f->held);
}

static struct rule blend(const struct pol_control_in *in, const struct pol_request *q,
                         const struct found *f, enum pol_strategy s)
{
    bool asked = q->wish != POL_AUTO;
    struct rule r = {s, ratio_of(q), asked ? "asked for" : "reuse saves enough"};

    if (pol_strategy_asks(s) && in->n_suffix == 0) {
        r.strategy = POL_HKVD; /* nothing behind the chunks whose attention could be asked */
        r.reason = "no suffix to score with: hkvd instead";
    }
    if (!asked && !worth_blending(in, f, r.strategy, r.ratio))
        return exact(in, "too little to save");
    return r;
}

static struct found found_of(const struct pol_control_in *in)
{
    struct found f = {0};
    bool any = false;

    for (size_t i = 0; i < in->n_chunk; i++) {
        const struct pol_chunk_now *c = &in->chunk[i];
        *(c->tier >= 0 ? &f.held : &f.missed) += c->n;
        if (any || c->tok0 < in->n_prefix) continue;
        f.front = c->tok0 - in->n_prefix;
        any = true;
    }
    return f;
}

static struct rule rule_of(const struct pol_control_in *in, const struct pol_request *q)
{
    struct found f = found_of(in);
    enum pol_strategy s = pol_strategy_runs(q->wish) ? q->wish : q->strategy_default;

    if (!pol_strategy_runs(s)) s = POL_QS;
    if (s == POL_FULL) return (struct rule){s, 0, "asked for"};
    if (s == POL_PREFIX) return exact(in, in->n_prefix ? "asked for" : "no prefix held");
    if (!q->blend_allowed) return exact(in, "self-test forbids reuse");
    if (f.held == 0) return exact(in, "nothing to reuse");
    if (s == POL_REUSE) return (struct rule){s, 0, "asked for"};
    return blend(in, q, &f, s);
}

/* All that is held is reused by a strategy that reuses at all. */
static void by_rules(const struct pol_control_in *in, const struct pol_request *q,
                     struct pol_control *ret, bool *ret_reuse)
{
    const struct rule r = rule_of(in, q);

    *ret = (struct pol_control){.strategy = r.strategy, .ratio = r.ratio};
    (void)snprintf(ret->reason, sizeof ret->reason, "%s", r.reason);
    for (size_t i = 0; i < in->n_chunk; i++) {
        ret_reuse[i] = !pol_strategy_is_exact(r.strategy) && in->chunk[i].tier >= 0;
        ret->n_reused += ret_reuse[i];
    }
    if (!q->search || in->n_chunk > POL_CHUNKS_MAX) return;
    pol_predict(in, r.strategy, r.ratio, ret_reuse, &ret->predicted);
    pol_predict(in, in->n_prefix ? POL_PREFIX : POL_FULL, 0, ret_reuse, &ret->full);
}

/* Nothing was asked for that would leave nothing to choose, and there is something to choose. */
static bool is_open(const struct pol_control_in *in, const struct pol_request *q)
{
    bool any = in->n_prefix > 0;

    for (size_t i = 0; i < in->n_chunk && !any; i++)
        any = in->chunk[i].tier >= 0;
    return q->search && any && in->n_chunk <= POL_CHUNKS_MAX && !pol_strategy_runs(q->wish) &&
           !(q->ratio >= 0);
}

bool pol_decide(const struct pol_control_in *in, const struct pol_request *q,
                struct pol_control *ret, bool *ret_reuse)
{
    if (is_open(in, q)) {
        pol_control(in, ret, ret_reuse);
        /* Blending was asked for, however slow. */
        if (q->wish != POL_BLEND || !pol_strategy_is_exact(ret->strategy)) return true;
    }
    by_rules(in, q, ret, ret_reuse);
    return false;
}
