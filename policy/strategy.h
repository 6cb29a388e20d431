/* strategy: what becomes of a prompt's stored chunks, and what a request may ask for.
 *
 * The one enum of it: requests, profiles, decisions, the fusor, reports and benchmarks use it.
 * First come the strategies that run, as an engine knows them (what each needs of it:
 * fusor/core/strategy.c); then the two wishes that leave the choice among them to the decider.
 * Names are those of the API, of options and of files. Pure; thread: any. */
#ifndef POLICY_STRATEGY_H
#define POLICY_STRATEGY_H

#include <stdbool.h>

enum pol_strategy {
    POL_FULL,   /* everything computed */
    POL_PREFIX, /* exact ranges that start the prompt are reused, the rest computed */
    POL_REUSE,  /* all chunks reused, nothing recomputed (r = 0) */
    POL_HKVD,   /* the paper's: recomputed is what K deviates most in at the check layer */
    POL_SINK,   /* the first k tokens of every non-first chunk */
    POL_QUERY,  /* the tokens that the suffix attends to (blending.md 7.2) */
    POL_QS,     /* that times the tokens' context sensitivity (7.3) */
    POL_SIDE,   /* the same from the chunks' K of one layer alone */
    POL_STRATEGY_COUNT,
    POL_AUTO = POL_STRATEGY_COUNT, /* none named: what is best, an exact answer among the choices */
    POL_BLEND,                     /* none named, but chunks are to be reused */
};

const char *pol_strategy_name(enum pol_strategy s); /* "full", …, "auto", "blend"; else "unknown" */
/* Of those that run: 1 found, 0 unknown. */
int pol_strategy_parse(const char *name, enum pol_strategy *ret);
static inline bool pol_strategy_runs(enum pol_strategy s) /* it is no wish */
{
    return s < POL_STRATEGY_COUNT;
}
static inline bool pol_strategy_is_exact(enum pol_strategy s) /* no chunk is reused */
{
    return s == POL_FULL || s == POL_PREFIX;
}
static inline bool pol_strategy_asks(enum pol_strategy s) /* of the suffix what it attends to */
{
    return s == POL_QUERY || s == POL_QS || s == POL_SIDE;
}
static inline bool pol_strategy_senses(enum pol_strategy s) /* reads chunks' sensitivity */
{
    return s == POL_QS || s == POL_SIDE;
}

#endif
