/* guard: the ladder, the moving means, and when to change the level; see guard.h.
 *
 * The alarm is a test on the *excess*, KL minus its limit prompt by prompt: prompts differ by
 * orders of magnitude in what reuse loses, and the difference takes that out where the limit is a
 * share of it. Rejected: a threshold on the mean alone (a single prompt of 5 nats trips it),
 * counting bad prompts (blind to how bad). */
#include "policy/guard.h"

#include "base/rng.h"

#include <math.h>
#include <string.h>

/* ---- the ladder ---- */

static double next_ratio(double r)
{
    double twice = 2 * r < 0.05 ? 0.05 : 2 * r;

    return twice > POL_GUARD_RATIO_MAX ? POL_GUARD_RATIO_MAX : twice;
}

static bool may_raise(double r)
{
    return r <= 0.7 * POL_GUARD_RATIO_MAX; /* else the step would be too small to matter */
}

static bool changes_strategy(const struct pol_guard_cfg *c)
{
    return c->safer != POL_FULL && c->safer != c->strategy;
}

/* The highest level that differs from level 0 in its ratio alone. */
static unsigned last_ratio(const struct pol_guard_cfg *c, double *ret_ratio)
{
    double r = c->strategy == POL_REUSE ? 0 : c->ratio;
    unsigned n = 0;

    for (; may_raise(r); n++)
        r = next_ratio(r);
    *ret_ratio = r;
    return n;
}

unsigned pol_guard_top(const struct pol_guard_cfg *c)
{
    double r;

    return last_ratio(c, &r) + changes_strategy(c) + 1;
}

struct pol_guard_setting pol_guard_setting(const struct pol_guard_cfg *c, unsigned level)
{
    struct pol_guard_setting s = {c->ratio, c->strategy, false};
    double last;
    unsigned n = last_ratio(c, &last);

    if (level == 0) return s;
    if (s.strategy == POL_REUSE) { /* it recomputes nothing, whatever the ratio */
        s.strategy = POL_QS;
        s.ratio = 0;
    }
    for (unsigned i = 0; i < level && i < n; i++)
        s.ratio = next_ratio(s.ratio);
    if (level > n && changes_strategy(c)) s.strategy = c->safer;
    s.exact = level >= pol_guard_top(c);
    return s;
}

/* ---- moving means ---- */

/* What a blend at that ratio may lose, as a share of plain reuse's. */
static double promised(const struct pol_guard_cfg *c, double ratio)
{
    double more = ratio - c->loss_ratio, loss = c->loss;

    if (more > 0) loss *= exp2(-more / POL_GUARD_HALVING);
    return loss > POL_GUARD_LOSS_MIN ? loss : POL_GUARD_LOSS_MIN;
}

static double limit_of(const struct pol_guard_cfg *c, double ratio, double reuse_kl)
{
    double base = reuse_kl > c->reuse_kl ? reuse_kl : c->reuse_kl; /* false for NaN, too */

    return c->kl_max > 0 ? c->kl_max : POL_GUARD_MARGIN * promised(c, ratio) * base;
}

static double bounded(double kl)
{
    if (!(kl < POL_GUARD_KL_MAX)) return POL_GUARD_KL_MAX; /* NaN, too */
    return kl > 0 ? kl : 0;
}

static void add_shadow(struct pol_guard_means *m, const struct pol_guard_cfg *c, unsigned level,
                       const struct pol_guard_shadow *s)
{
    const double ratio = pol_guard_setting(c, level).ratio;
    const double keep = 1 - 1.0 / POL_GUARD_MEMORY, kl = bounded(s->kl);
    double *const sums[] = {&m->n,       &m->kl,      &m->agree,    &m->limit,    &m->excess,
                            &m->excess2, &m->n_reuse, &m->reuse_kl, &m->paired_kl};
    double reuse = s->reuse_kl >= 0 ? bounded(s->reuse_kl) : -1;

    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++)
        *sums[i] *= keep;
    /* A prompt whose own yardstick is unknown is taken as the average one. */
    double limit = limit_of(c, ratio,
                            reuse >= 0       ? reuse
                            : m->n_reuse > 0 ? m->reuse_kl / m->n_reuse
                                             : 0);
    double excess = kl - limit;
    m->count++;
    m->n++;
    m->kl += kl;
    m->agree += s->agree;
    m->limit += limit;
    m->excess += excess;
    m->excess2 += excess * excess;
    if (reuse < 0) return;
    m->n_reuse++;
    m->reuse_kl += reuse;
    m->paired_kl += kl;
}

static double standard_error(const struct pol_guard_means *m)
{
    double mean = m->excess / m->n, var = m->excess2 / m->n - mean * mean;

    return m->n > 1 && var > 0 ? sqrt(var / (m->n - 1)) : 0;
}

static bool is_bad(const struct pol_guard_means *m)
{
    if (m->count < POL_GUARD_SEE_MIN) return false;
    return m->excess / m->n - POL_GUARD_Z * standard_error(m) > 0;
}

static bool is_good(const struct pol_guard_means *m)
{
    double excess = m->excess + (1 - POL_GUARD_BACK) * m->limit;

    return excess / m->n + POL_GUARD_Z * standard_error(m) < 0;
}

/* ---- changes of level ---- */

static void change(struct pol_guard *g, unsigned level)
{
    g->came_down = level < g->level;
    g->left = g->came_down ? g->below : g->now;
    g->level = level;
    memset(&g->now, 0, sizeof g->now);
    memset(&g->below, 0, sizeof g->below);
}

/* Up by one; to the largest ratio at once when the last raise did not take a quarter away. */
static unsigned level_above(const struct pol_guard *g, const struct pol_guard_cfg *c)
{
    double ratio;
    unsigned n = last_ratio(c, &ratio), up = g->level + 1;
    bool first = g->came_down || g->left.count == 0;
    bool helped = first || g->now.kl / g->now.n < 0.75 * g->left.kl / g->left.n;

    return !helped && up < n ? n : up;
}

enum pol_guard_action pol_guard_see(struct pol_guard *g, const struct pol_guard_cfg *c,
                                    const struct pol_guard_shadow *s)
{
    if (g->level >= pol_guard_top(c)) return POL_GUARD_STAY; /* nothing is blended there */
    add_shadow(&g->now, c, g->level, s);
    if (is_bad(&g->now)) {
        if (g->came_down && g->patience < POL_GUARD_PATIENCE_MAX) g->patience++;
        change(g, level_above(g, c));
        return POL_GUARD_UP;
    }
    if (g->now.count % POL_GUARD_CALM == 0) g->patience -= g->patience > 0;
    return POL_GUARD_STAY;
}

enum pol_guard_action pol_guard_trial(struct pol_guard *g, const struct pol_guard_cfg *c,
                                      const struct pol_guard_shadow *s)
{
    if (g->level == 0) return POL_GUARD_STAY;
    add_shadow(&g->below, c, g->level - 1, s);
    if (g->below.count < (unsigned)POL_GUARD_TRIAL_MIN << g->patience) return POL_GUARD_STAY;
    if (!is_good(&g->below)) return POL_GUARD_STAY;
    change(g, g->level - 1);
    return POL_GUARD_DOWN;
}

/* ---- for people ---- */

struct pol_guard_gauge pol_guard_gauge(const struct pol_guard_means *m)
{
    struct pol_guard_gauge v = {.count = m->count,
                                .kl = NAN,
                                .kl_low = NAN,
                                .kl_high = NAN,
                                .limit = NAN,
                                .agree = NAN,
                                .reuse_kl = NAN,
                                .loss = NAN};
    if (m->n <= 0) return v;
    double half = POL_GUARD_Z * standard_error(m);
    v.kl = m->kl / m->n;
    v.kl_low = v.kl > half ? v.kl - half : 0;
    v.kl_high = v.kl + half;
    v.limit = m->limit / m->n;
    v.agree = m->agree / m->n;
    if (m->n_reuse <= 0) return v;
    v.reuse_kl = m->reuse_kl / m->n_reuse;
    if (m->reuse_kl > 0) v.loss = m->paired_kl / m->reuse_kl;
    return v;
}

bool pol_guard_sampled(uint64_t seed, uint64_t i, double share)
{
    struct rng r = {seed + i * RNG_STEP};

    return rng_unit(&r) < share;
}
