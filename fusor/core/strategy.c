/* strategy: what each strategy needs of the engine; the one table of it. */
#include "fusor/core/prefill_int.h"

static const struct fus_method methods[POL_STRATEGY_COUNT] = {
    [POL_HKVD] = {.by_deviation = true},
    [POL_QUERY] = {.pass = PASS_QUERY},
    [POL_QS] = {.pass = PASS_QUERY},
    [POL_SIDE] = {.pass = PASS_SIDE},
};

const struct fus_method *fus_method_of(enum pol_strategy s)
{
    return &methods[s];
}
