/* plan: how one request is run: full prefill, exact prefix, plain reuse or blend.
 *
 * A pure function: numbers in, a decision and its reason out; no I/O, clock or state. The one place
 * where mode, strategy and ratio of a request are decided. What a client asks for wins where it can
 * be honoured, however little is cached; `auto` without a strategy blends when that runs clearly
 * fewer token-layers than an exact prefill. Thread: any. */
#ifndef POLICY_PLAN_H
#define POLICY_PLAN_H

#include <stdbool.h>
#include <stdint.h>

enum pol_mode { POL_AUTO, POL_FULL, POL_PREFIX, POL_REUSE, POL_BLEND, POL_MODE_COUNT };
enum pol_strategy {
    POL_STRAT_DEFAULT, /* none asked for */
    POL_STRAT_FULL,
    POL_STRAT_PREFIX,
    POL_STRAT_REUSE,
    POL_STRAT_HKVD,
    POL_STRAT_SINK,
    POL_STRAT_QUERY,
    POL_STRAT_QS,
    POL_STRAT_SIDE,
    POL_STRAT_COUNT
};

struct pol_plan_in {
    enum pol_mode mode;
    enum pol_strategy strategy;         /* asked for */
    enum pol_strategy strategy_default; /* the operator's; POL_STRAT_DEFAULT = qs */
    double ratio;                       /* asked for, 0…1; negative or NaN = none */
    double ratio_default;               /* the operator's; negative or NaN = POL_RATIO_DEFAULT */
    uint32_t prompt_tokens;             /* all of them */
    uint32_t prefix_tokens;             /* held by the exact prefix */
    uint32_t reuse_tokens;              /* held by chunk records, behind the prefix */
    uint32_t missed_tokens;             /* of chunks that are not held */
    uint32_t suffix_tokens;             /* behind the last chunk: the question */
    bool blend_allowed;                 /* the engine's self-test passed */
};
struct pol_plan {
    enum pol_mode mode;         /* never POL_AUTO */
    enum pol_strategy strategy; /* what runs, never POL_STRAT_DEFAULT */
    double ratio;               /* 0 unless mode is POL_BLEND */
    const char *reason;         /* static, for log and tests */
};
#define POL_RATIO_DEFAULT 0.15  /* cited: CacheBlend's range; the project's quality runs */
#define POL_COST_MAX 0.9        /* chosen: less than a tenth saved is not worth an inexact answer */
#define POL_ASK_DEPTH (5.0 / 6) /* of the layers, that scoring runs through */

struct pol_plan pol_plan(const struct pol_plan_in *in);
const char *pol_mode_name(enum pol_mode m);
const char *pol_strategy_name(enum pol_strategy s);

#endif
