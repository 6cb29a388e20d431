#include "policy/route.h"

#include "base/assert.h"
#include "base/rng.h"

#include <math.h>

#define WEIGHT_MIN 1e-6
/* Chosen. A worker decodes some requests together at hardly any cost, so a difference of a few is
 * no skew; beyond that it may have half as many again as the least busy one (SGLang's router uses
 * the same pair of thresholds, an absolute and a relative one). */
#define SKEW_INFLIGHT_MIN 8.0
#define SKEW_RATIO_MAX 1.5
/* Mirrokni et al.: at most 1 + 1/4 of the average. Chosen: the least that always fits, because with
 * two or three requests in all an average says nothing. */
#define BOUND_RATIO 1.25
#define BOUND_INFLIGHT_MIN 4.0

static uint64_t mix(uint64_t x)
{
    struct rng r = {x};
    return rng_next(&r);
}

static double unit(uint64_t x) /* within (0, 1) */
{
    return ((double)(x >> 11) + 0.5) * 0x1p-53;
}

static double weight_of(const struct pol_route_target *t)
{
    return t->weight >= WEIGHT_MIN ? t->weight : WEIGHT_MIN; /* false for NaN, too */
}

static double load_of(const struct pol_route_target *t)
{
    return t->n_inflight / weight_of(t);
}

/* Weighted rendezvous: the greatest wins; each target wins in proportion to its weight. */
static double score_of(const struct pol_route_target *t, uint64_t seed)
{
    return weight_of(t) / -log(unit(mix(seed ^ mix(t->id))));
}

/* ---- least ---- */

static size_t draw(const struct pol_route_in *in, size_t without, double at)
{
    double sum = 0;
    size_t last = 0;
    for (size_t i = 0; i < in->n; i++)
        if (i != without) sum += weight_of(&in->target[i]);
    at *= sum;
    for (size_t i = 0; i < in->n; i++) {
        if (i == without) continue;
        last = i;
        at -= weight_of(&in->target[i]);
        if (at < 0) break;
    }
    return last;
}

static struct pol_route least(const struct pol_route_in *in)
{
    size_t a = draw(in, SIZE_MAX, unit(mix(in->random)));
    size_t b = draw(in, a, unit(mix(~in->random)));
    bool second = load_of(&in->target[b]) < load_of(&in->target[a]);
    return (struct pol_route){second ? b : a, "least"};
}

/* ---- affinity ---- */

static struct pol_route affinity(const struct pol_route_in *in)
{
    double n = 1, weight = 0, best = -1, best_free = -1;
    size_t first = 0, chosen = 0;
    for (size_t i = 0; i < in->n; i++) {
        n += in->target[i].n_inflight;
        weight += weight_of(&in->target[i]);
    }
    for (size_t i = 0; i < in->n; i++) {
        const struct pol_route_target *t = &in->target[i];
        double bound = ceil(BOUND_RATIO * n * weight_of(t) / weight);
        double s = score_of(t, in->affinity);
        if (s > best) {
            best = s;
            first = i;
        }
        if (bound < BOUND_INFLIGHT_MIN) bound = BOUND_INFLIGHT_MIN;
        if (t->n_inflight + 1.0 > bound || s <= best_free) continue;
        best_free = s;
        chosen = i;
    }
    ASSERT(best_free >= 0); /* not all of them can be above the average */
    return (struct pol_route){chosen, chosen == first ? "affinity" : "bound"};
}

/* ---- resident ---- */

/* One token for the request itself: among idle workers that hold all of it weights still count. */
static double cost_of(uint64_t prompt_tokens, const struct pol_route_target *t)
{
    double tokens = (double)(prompt_tokens - t->resident_tokens) + (double)t->queued_tokens + 1;
    return tokens / weight_of(t);
}

struct candidate {
    size_t i;
    double cost, score;
};

static void consider(struct candidate *best, struct candidate c)
{
    if (best->i == SIZE_MAX || c.cost < best->cost ||
        (c.cost == best->cost && c.score > best->score))
        *best = c;
}

static struct pol_route resident(const struct pol_route_in *in)
{
    struct candidate any = {.i = SIZE_MAX}, fair = any;
    uint64_t seed = in->affinity ? in->affinity : in->random;
    uint64_t prompt_tokens = in->prompt_tokens; /* an estimate: who holds more of it knows better */
    double low = INFINITY, even = 0;
    for (size_t i = 0; i < in->n; i++) {
        const struct pol_route_target *t = &in->target[i];
        low = fmin(low, load_of(t));
        if (t->resident_tokens > prompt_tokens) prompt_tokens = t->resident_tokens;
    }
    for (size_t i = 0; i < in->n; i++) {
        const struct pol_route_target *t = &in->target[i];
        struct candidate c = {i, cost_of(prompt_tokens, t), score_of(t, seed)};
        double load = load_of(t);
        consider(&any, c);
        if (load <= low + SKEW_INFLIGHT_MIN || load <= low * SKEW_RATIO_MAX) consider(&fair, c);
        even += t->resident_tokens > 0;
    }
    ASSERT(fair.i != SIZE_MAX); /* the least busy one is */
    if (fair.i != any.i) return (struct pol_route){fair.i, "skew"};
    if (in->target[any.i].resident_tokens > 0) return (struct pol_route){any.i, "resident"};
    return (struct pol_route){any.i, even > 0 ? "queue" : "new"};
}

struct pol_route pol_route(const struct pol_route_in *in)
{
    ASSERT(in->n > 0);
    if (in->n == 1) return (struct pol_route){0, "only"};
    switch (in->balance) {
    case POL_BALANCE_RESIDENT:
        return resident(in);
    case POL_BALANCE_AFFINITY:
        return in->affinity ? affinity(in) : least(in);
    case POL_BALANCE_LEAST:
        break;
    }
    return least(in);
}
