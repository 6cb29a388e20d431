/* strategy: what each strategy is called and what it needs; the one table of them. */
#include "fusor/core/prefill_int.h"

#include <string.h>

static const struct fus_method methods[FUS_STRATEGY_COUNT] = {
    [FUS_FULL] = {"full"},
    [FUS_PREFIX] = {"prefix"},
    [FUS_REUSE] = {"reuse"},
    [FUS_HKVD] = {"hkvd", .by_deviation = true},
    [FUS_SINK] = {"sink"},
    [FUS_QUERY] = {"query", .pass = PASS_QUERY},
    [FUS_QS] = {"qs", .pass = PASS_QUERY, .by_sensitivity = true},
    [FUS_SIDE] = {"side", .pass = PASS_SIDE, .by_sensitivity = true},
};

const struct fus_method *fus_method_of(enum fus_strategy s)
{
    return &methods[s];
}

bool fus_strategy_reads_scores(enum fus_strategy s)
{
    return methods[s].by_sensitivity;
}

const char *fus_strategy_name(enum fus_strategy s)
{
    return (unsigned)s < FUS_STRATEGY_COUNT ? methods[s].name : "?";
}

int fus_strategy_parse(const char *name, enum fus_strategy *ret)
{
    for (unsigned i = 0; i < FUS_STRATEGY_COUNT; i++) {
        if (strcmp(methods[i].name, name) != 0) continue;
        *ret = (enum fus_strategy)i;
        return 1;
    }
    return 0;
}
