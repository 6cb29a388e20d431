#include "policy/strategy.h"

#include <string.h>

static const char *const names[] = {
    [POL_FULL] = "full", [POL_PREFIX] = "prefix", [POL_REUSE] = "reuse", [POL_HKVD] = "hkvd",
    [POL_SINK] = "sink", [POL_QUERY] = "query",   [POL_QS] = "qs",       [POL_SIDE] = "side",
    [POL_AUTO] = "auto", [POL_BLEND] = "blend"};

const char *pol_strategy_name(enum pol_strategy s)
{
    return (unsigned)s < sizeof names / sizeof *names ? names[s] : "unknown";
}

int pol_strategy_parse(const char *name, enum pol_strategy *ret)
{
    for (unsigned i = 0; i < POL_STRATEGY_COUNT; i++) {
        if (strcmp(names[i], name) != 0) continue;
        *ret = (enum pol_strategy)i;
        return 1;
    }
    return 0;
}
