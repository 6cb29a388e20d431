#include "policy/plan.h"

const char *pol_mode_name(enum pol_mode m)
{
    static const char *const name[] = {"auto", "full", "prefix", "reuse", "blend"};
    return (unsigned)m < POL_MODE_COUNT ? name[m] : "unknown";
}

const char *pol_strategy_name(enum pol_strategy s)
{
    static const char *const name[] = {"default", "hkvd", "sink", "query"};
    return (unsigned)s <= POL_STRAT_QUERY ? name[s] : "unknown";
}

static struct pol_plan exact(const struct pol_plan_in *in, const char *reason)
{
    bool prefix = in->prefix_tokens > 0;
    return (struct pol_plan){prefix ? POL_PREFIX : POL_FULL, POL_STRAT_DEFAULT, prefix ? 0 : 1,
                             reason};
}

static struct pol_plan blend(const struct pol_plan_in *in, const char *reason)
{
    double ratio = in->ratio >= 0 ? in->ratio : in->ratio_default; /* NaN is none too */
    if (!(in->ratio >= 0) && !(ratio > 0)) ratio = POL_RATIO_DEFAULT;
    if (ratio > 1) ratio = 1;
    enum pol_strategy s = in->strategy ? in->strategy : POL_STRAT_QUERY;
    if (s == POL_STRAT_QUERY && in->suffix_tokens == 0) {
        s = POL_STRAT_HKVD; /* nothing behind the chunks whose attention could be asked */
        reason = "no suffix to score with: hkvd instead of query";
    }
    return (struct pol_plan){POL_BLEND, s, ratio, reason};
}

static bool worth_reusing(const struct pol_plan_in *in)
{
    uint32_t least = in->reuse_min_tokens ? in->reuse_min_tokens : POL_REUSE_MIN_TOKENS;
    double share = in->reuse_min_share > 0 ? in->reuse_min_share : POL_REUSE_MIN_SHARE;
    return in->reuse_tokens >= least && in->reuse_tokens > share * in->prompt_tokens;
}

struct pol_plan pol_plan(const struct pol_plan_in *in)
{
    bool any = in->reuse_tokens > 0;
    switch (in->mode) {
    case POL_FULL:
        return (struct pol_plan){POL_FULL, POL_STRAT_DEFAULT, 1, "asked for"};
    case POL_PREFIX:
        return exact(in, in->prefix_tokens ? "asked for" : "no prefix held");
    case POL_REUSE:
        if (!in->blend_allowed) return exact(in, "self-test forbids reuse");
        if (!any) return exact(in, "nothing to reuse");
        return (struct pol_plan){POL_REUSE, POL_STRAT_DEFAULT, 0, "asked for"};
    case POL_BLEND:
        if (!in->blend_allowed) return exact(in, "self-test forbids blending");
        return any ? blend(in, "asked for") : exact(in, "nothing to reuse");
    default:
        if (!in->blend_allowed) return exact(in, "self-test forbids blending");
        if (!any) return exact(in, "nothing to reuse");
        if (!worth_reusing(in)) return exact(in, "too little to reuse");
        return blend(in, "reuse saves enough");
    }
}
