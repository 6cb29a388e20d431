/* strategy: what each strategy is called and what it needs; the one table of them. */
#include "fusor/core/prefill_int.h"

#include "base/assert.h"

#include <math.h>
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
    [FUS_STATIC] = {"static", .by_stored = true},
    [FUS_HYBRID] = {"hybrid", .pass = PASS_QUERY, .by_deviation = true, .by_sensitivity = true},
};

const struct fus_method *fus_method_of(enum fus_strategy s)
{
    return &methods[s];
}

bool fus_strategy_reads_scores(enum fus_strategy s)
{
    return methods[s].by_sensitivity || methods[s].by_stored;
}

const char *fus_strategy_name(enum fus_strategy s)
{
    return (unsigned)s < FUS_STRATEGY_COUNT ? methods[s].name : "?";
}

/* Index of the name in the table, from `first` on; n when it is none of them. */
static unsigned find(const char *const *table, unsigned first, unsigned n, const char *name)
{
    while (first < n && strcmp(table[first], name) != 0)
        first++;
    return first;
}

int fus_strategy_parse(const char *name, enum fus_strategy *ret)
{
    const char *table[FUS_STRATEGY_COUNT];
    for (unsigned i = 0; i < FUS_STRATEGY_COUNT; i++)
        table[i] = methods[i].name;
    const unsigned i = find(table, 0, FUS_STRATEGY_COUNT, name);
    if (i == FUS_STRATEGY_COUNT) return 0;
    *ret = (enum fus_strategy)i;
    return 1;
}

static const char *const tensors[FUS_TENSOR_COUNT] = {"default", "K", "V", "KV"};

const char *fus_tensor_name(enum fus_tensor t)
{
    return (unsigned)t < FUS_TENSOR_COUNT ? tensors[t] : "?";
}

int fus_tensor_parse(const char *name, enum fus_tensor *ret)
{
    const unsigned i = find(tensors, FUS_TENSOR_K, FUS_TENSOR_COUNT, name);
    if (i == FUS_TENSOR_COUNT) return 0;
    *ret = (enum fus_tensor)i;
    return 1;
}

static const char *const schedules[FUS_SCHEDULE_COUNT] = {"default",   "single", "early",
                                                          "two-stage", "linear", "geometric"};

const char *fus_schedule_name(enum fus_schedule s)
{
    return (unsigned)s < FUS_SCHEDULE_COUNT ? schedules[s] : "?";
}

int fus_schedule_parse(const char *name, enum fus_schedule *ret)
{
    const unsigned i = find(schedules, FUS_SINGLE, FUS_SCHEDULE_COUNT, name);
    if (i == FUS_SCHEDULE_COUNT) return 0;
    *ret = (enum fus_schedule)i;
    return 1;
}

/* Weights of the layers before they are brought to a mean of 1. */
static double weight(enum fus_schedule s, unsigned i, unsigned n, unsigned L)
{
    const unsigned stage = L / 8 > 1 ? L / 8 : 1; /* layers of the wide first stage */
    switch (s) {
    case FUS_EARLY:
        return 6 * i < 5 * n ? 1 : 0.1;
    case FUS_TWO_STAGE:
        return i < stage ? 2 : (n - 2.0 * stage) / (n - stage);
    case FUS_LINEAR:
        return 1.3 - 0.6 * i / (n - 1);
    case FUS_GEOMETRIC:
        return fmax(pow(0.8, i), 0.3);
    default:
        return 1;
    }
}

double fus_schedule_share(enum fus_schedule s, unsigned first, unsigned layer, unsigned L)
{
    const unsigned n = L - first;
    double sum = 0;
    ASSERT(layer >= first && layer < L);
    if (s <= FUS_SINGLE || n < 4) return 1; /* nothing to spread over */
    for (unsigned i = 0; i < n; i++)
        sum += weight(s, i, n, L);
    return weight(s, layer - first, n, L) * n / sum;
}
