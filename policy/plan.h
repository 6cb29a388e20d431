/* plan: how one request is run: full prefill, exact prefix, plain reuse or blend.
 *
 * A pure function: numbers in, a decision and its reason out; no I/O, clock or state.
 * What a client asks for wins where it can be honoured. `auto` blends with the default strategy
 * when enough tokens can be reused beyond the exact prefix, else it runs exact. Thread: any. */
#ifndef POLICY_PLAN_H
#define POLICY_PLAN_H

#include <stdbool.h>
#include <stdint.h>

enum pol_mode { POL_AUTO, POL_FULL, POL_PREFIX, POL_REUSE, POL_BLEND, POL_MODE_COUNT };
enum pol_strategy { POL_STRAT_DEFAULT, POL_STRAT_HKVD, POL_STRAT_SINK, POL_STRAT_QUERY };

struct pol_plan_in {
    enum pol_mode mode;
    enum pol_strategy strategy;
    double ratio;              /* asked for, 0…1; negative or NaN = none */
    uint32_t prompt_tokens;    /* all of them */
    uint32_t prefix_tokens;    /* held by the exact prefix */
    uint32_t reuse_tokens;     /* held by chunk records, behind the prefix */
    uint32_t missing_tokens;   /* in chunks without a record */
    uint32_t suffix_tokens;    /* behind the last chunk: the question */
    bool blend_allowed;        /* the engine's self-test passed */
    uint32_t reuse_min_tokens; /* 0 = POL_REUSE_MIN_TOKENS */
    double reuse_min_share;    /* of the prompt; 0 = POL_REUSE_MIN_SHARE */
    double ratio_default;      /* 0 = POL_RATIO_DEFAULT */
};
struct pol_plan {
    enum pol_mode mode;         /* never POL_AUTO */
    enum pol_strategy strategy; /* POL_STRAT_DEFAULT unless mode is blend */
    double ratio;               /* 1 full, 0 reuse or prefix */
    const char *reason;         /* static, for the report */
};
#define POL_REUSE_MIN_TOKENS 64  /* chosen: below it the bookkeeping costs what it saves */
#define POL_REUSE_MIN_SHARE 0.10 /* chosen: at most a tenth of the prefill could be saved */
#define POL_RATIO_DEFAULT 0.15   /* cited: CacheBlend's range; the project's quality runs */

struct pol_plan pol_plan(const struct pol_plan_in *in);
const char *pol_mode_name(enum pol_mode m);
const char *pol_strategy_name(enum pol_strategy s);

#endif
