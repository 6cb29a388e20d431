#include "policy/plan.h"

const char *pol_mode_name(enum pol_mode m)
{
    static const char *const name[] = {"auto", "full", "prefix", "reuse", "blend"};
    return (unsigned)m < POL_MODE_COUNT ? name[m] : "unknown";
}

const char *pol_strategy_name(enum pol_strategy s)
{
    static const char *const name[] = {"default", "full",  "prefix", "reuse", "hkvd",
                                       "sink",    "query", "qs",     "side"};
    return (unsigned)s < POL_STRAT_COUNT ? name[s] : "unknown";
}

static struct pol_plan full(const char *reason)
{
    return (struct pol_plan){POL_FULL, POL_STRAT_FULL, 0, reason};
}

static struct pol_plan exact(const struct pol_plan_in *in, const char *reason)
{
    if (in->prefix_tokens == 0) return full(reason);
    return (struct pol_plan){POL_PREFIX, POL_STRAT_PREFIX, 0, reason};
}

static double ratio_of(const struct pol_plan_in *in)
{
    double r = in->ratio >= 0 ? in->ratio : in->ratio_default; /* false for NaN, too */

    if (!(r >= 0)) r = POL_RATIO_DEFAULT;
    return r > 1 ? 1 : r;
}

static bool scores_by_suffix(enum pol_strategy s)
{
    return s == POL_STRAT_QUERY || s == POL_STRAT_QS || s == POL_STRAT_SIDE;
}

/* Token-layers, as shares of a token's: whatever is not reused runs in full, and where the suffix
 * scores what is no chunk's once more through the scoring layers. */
static bool worth_blending(const struct pol_plan_in *in, enum pol_strategy s, double ratio)
{
    double held = in->reuse_tokens;
    double rest = (double)in->prompt_tokens - in->prefix_tokens - held;
    double ask = scores_by_suffix(s) ? POL_ASK_DEPTH * (rest - in->missed_tokens) : 0;
    double cost = rest + ask + ratio * held;

    return cost < POL_COST_MAX * (rest + held);
}

static struct pol_plan blend(const struct pol_plan_in *in, enum pol_strategy s, bool asked)
{
    struct pol_plan p = {POL_BLEND, s, ratio_of(in), asked ? "asked for" : "reuse saves enough"};

    if (scores_by_suffix(s) && in->suffix_tokens == 0) {
        p.strategy = POL_STRAT_HKVD; /* nothing behind the chunks whose attention could be asked */
        p.reason = "no suffix to score with: hkvd instead";
    }
    if (!asked && !worth_blending(in, p.strategy, p.ratio)) return exact(in, "too little to save");
    return p;
}

struct pol_plan pol_plan(const struct pol_plan_in *in)
{
    enum pol_strategy s = in->strategy ? in->strategy : in->strategy_default;

    if (s == POL_STRAT_DEFAULT) s = POL_STRAT_QS;
    if (in->mode == POL_FULL) return full("asked for");
    if (in->mode == POL_PREFIX)
        return exact(in, in->prefix_tokens ? "asked for" : "no prefix held");
    if (in->mode == POL_REUSE) s = POL_STRAT_REUSE;
    if (s == POL_STRAT_FULL) return full("asked for");
    if (s == POL_STRAT_PREFIX) return exact(in, in->prefix_tokens ? "asked for" : "no prefix held");
    if (!in->blend_allowed) return exact(in, "self-test forbids reuse");
    if (in->reuse_tokens == 0) return exact(in, "nothing to reuse");
    if (s == POL_STRAT_REUSE) return (struct pol_plan){POL_REUSE, s, 0, "asked for"};
    return blend(in, s, in->mode == POL_BLEND || in->strategy != POL_STRAT_DEFAULT);
}
