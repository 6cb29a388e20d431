#include "policy/guard.h"
#include "tests/test.h"

static const struct pol_guard_cfg cfg = {.loss = 0.25,
                                         .loss_ratio = 0.15,
                                         .reuse_kl = 0.04,
                                         .ratio = 0.15,
                                         .strategy = POL_QS,
                                         .safer = POL_HKVD};

static double uniform(uint64_t *seed)
{
    return (double)(test_rand(seed) >> 11) * 0x1p-53;
}

/* Heavy-tailed, as KLs are: exp of a normal, mean about `mean`. */
static double heavy(uint64_t *seed, double mean)
{
    double z = sqrt(-2 * log(uniform(seed) + 1e-12)) * cos(2 * M_PI * uniform(seed));
    return mean * exp(z - 0.5);
}

/* A prompt on which reuse loses `reuse` and the blend a share of it. */
static struct pol_guard_shadow prompt(uint64_t *seed, double reuse, double share)
{
    double r = heavy(seed, reuse);
    return (struct pol_guard_shadow){
        .kl = r * share * 2 * uniform(seed), .reuse_kl = r, .agree = 1};
}

/* The true loss at each level; what the guard sees in force, and as trial of the level below. */
static enum pol_guard_action live(struct pol_guard *g, const struct pol_guard_cfg *c,
                                  const double *share, uint64_t *seed)
{
    struct pol_guard_shadow s = prompt(seed, 0.3, share[g->level]);
    enum pol_guard_action a = pol_guard_see(g, c, &s);
    if (a != POL_GUARD_STAY || g->level == 0) return a;
    s = prompt(seed, 0.3, share[g->level - 1]);
    return pol_guard_trial(g, c, &s);
}

/* What a blend may lose at a level: half for every tenth that its ratio is above the profile's. */
static double promised(unsigned level)
{
    double more = pol_guard_setting(&cfg, level).ratio - cfg.loss_ratio;
    return fmax(cfg.loss * exp2(-fmax(more, 0) / POL_GUARD_HALVING), POL_GUARD_LOSS_MIN);
}

TEST(the_ladder_gets_safer_and_ends_exact)
{
    static const double ratios[] = {0, 0.01, 0.05, 0.15, 0.3, 0.5, 1};
    static const enum pol_strategy strategies[] = {POL_QS, POL_HKVD, POL_REUSE};
    for (size_t i = 0; i < sizeof ratios / sizeof *ratios; i++)
        for (size_t k = 0; k < 3; k++)
            for (int safer = 0; safer < 2; safer++) {
                struct pol_guard_cfg c = cfg;
                c.ratio = ratios[i];
                c.strategy = strategies[k];
                c.safer = safer ? POL_HKVD : POL_FULL;
                unsigned top = pol_guard_top(&c);
                double was = strategies[k] == POL_REUSE ? 0 : c.ratio;
                ASSERT_TRUE(top >= 1 && top <= 8);
                ASSERT_NEAR(pol_guard_setting(&c, 0).ratio, c.ratio, 0);
                for (unsigned l = 0; l <= top; l++) {
                    struct pol_guard_setting s = pol_guard_setting(&c, l);
                    ASSERT_EQ(s.exact, l == top);
                    if (l > 0) ASSERT_TRUE(s.ratio >= was && s.strategy != POL_REUSE);
                    if (l > 0) was = s.ratio;
                    ASSERT_TRUE(s.ratio <= (c.ratio > POL_GUARD_RATIO_MAX ? c.ratio
                                                                          : POL_GUARD_RATIO_MAX) ||
                                l == 0);
                }
            }
}

TEST(a_healthy_model_raises_no_alarm)
{
    static const double share[16] = {0.3, 0.2, 0.1, 0.1};
    for (uint64_t seed = 1; seed <= 200; seed++) {
        uint64_t state = seed;
        struct pol_guard g = {0};
        for (int i = 0; i < 400; i++)
            if (live(&g, &cfg, share, &state) == POL_GUARD_UP)
                test_fail(__FILE__, __LINE__, "seed %d: alarm after %d", (int)seed, i);
    }
}

/* Nothing helps: exact at last, and soon, because a raise that did not help is not repeated. */
TEST(a_broken_model_ends_exact)
{
    static const double share[16] = {1, 1, 1, 1, 1, 1, 1, 1};
    unsigned worst = 0;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        uint64_t state = seed;
        struct pol_guard g = {0};
        unsigned n = 0;
        while (g.level < pol_guard_top(&cfg) && n < 1000) {
            (void)live(&g, &cfg, share, &state);
            n++;
        }
        if (n > worst) worst = n;
    }
    printf("# exact after %u shadows at worst\n", worst);
    ASSERT_TRUE(worst <= 200);
}

TEST(a_ratio_that_is_too_small_is_raised_until_it_does)
{
    struct pol_guard_cfg c = cfg;
    c.ratio = 0.01; /* 0.05, 0.1, 0.2, 0.4 follow */
    static const double share[16] = {0.95, 0.8, 0.6, 0.3, 0.1, 0.1};
    for (uint64_t seed = 1; seed <= 100; seed++) {
        uint64_t state = seed;
        struct pol_guard g = {0};
        unsigned changes = 0;
        for (int i = 0; i < 1000; i++)
            changes += live(&g, &c, share, &state) != POL_GUARD_STAY;
        ASSERT_TRUE(g.level >= 2 && !pol_guard_setting(&c, g.level).exact);
        ASSERT_TRUE(changes <= 12);
    }
}

/* What was broken for a while is trusted again: one level at a time, down to the bottom. */
TEST(comes_back_after_good_evidence)
{
    static const double bad[16] = {1, 1, 1, 1, 1, 1},
                        good[16] = {0.2, 0.07, 0.03, 0.03, 0.03, 0.03};
    for (uint64_t seed = 1; seed <= 50; seed++) {
        uint64_t state = seed;
        struct pol_guard g = {0};
        for (int i = 0; i < 500; i++)
            (void)live(&g, &cfg, bad, &state);
        ASSERT_EQ(g.level, pol_guard_top(&cfg));
        for (int i = 0; i < 1000; i++) {
            unsigned was = g.level;
            if (live(&g, &cfg, good, &state) == POL_GUARD_DOWN) ASSERT_EQ(g.level, was - 1);
        }
        ASSERT_EQ(g.level, 0);
    }
}

/* A fault that recomputing more does not cure as a healthy model's loss is cured: what would do at
 * the configured ratio is an alarm at a larger one, up to exact. */
TEST(a_raise_that_does_not_help_enough_leads_to_exact)
{
    static const double broken[16] = {0.8, 0.35, 0.35, 0.35, 0.35, 0.35};
    for (uint64_t seed = 1; seed <= 100; seed++) {
        uint64_t state = seed;
        struct pol_guard g = {0};
        for (int i = 0; i < 400; i++)
            (void)live(&g, &cfg, broken, &state);
        ASSERT_EQ(g.level, pol_guard_top(&cfg));
    }
}

/* A loss at the very limit, and one that alternates: changes become rarer, never a pendulum. */
TEST(does_not_flap)
{
    static const double edge[16] = {0.5, 0.34, 0.2, 0.2};
    unsigned worst = 0;
    for (uint64_t seed = 1; seed <= 100; seed++) {
        uint64_t state = seed;
        struct pol_guard g = {0};
        unsigned changes = 0;
        for (int i = 0; i < 4000; i++)
            changes += live(&g, &cfg, edge, &state) != POL_GUARD_STAY;
        if (changes > worst) worst = changes;
    }
    printf("# %u changes in 4000 shadows at worst\n", worst);
    ASSERT_TRUE(worst <= 24);
}

/* The worse a prompt, the higher the level, whatever was seen before. */
TEST(is_monotone_in_what_it_sees)
{
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        uint64_t state = seed;
        struct pol_guard g = {.level = (unsigned)(test_rand(&state) % 4)};
        double share = 1.2 * uniform(&state);
        size_t n = test_rand(&state) % 40;
        for (size_t i = 0; i < n; i++) {
            struct pol_guard_shadow s = prompt(&state, 0.3, share);
            (void)pol_guard_see(&g, &cfg, &s);
        }
        struct pol_guard_shadow s = prompt(&state, 0.3, share);
        unsigned was = 0;
        /* Beyond the limit a larger excess widens the interval, too: from there on no claim. */
        const double limit = POL_GUARD_MARGIN * promised(g.level) * s.reuse_kl;
        for (double kl = 0; kl < limit; kl += 0.2 * limit) {
            struct pol_guard h = g;
            struct pol_guard_shadow x = {kl, s.reuse_kl, 1};
            (void)pol_guard_see(&h, &cfg, &x);
            ASSERT_TRUE(h.level >= was || kl == 0);
            was = h.level;
        }
    }
}

TEST(limits_in_nats_and_bad_numbers)
{
    struct pol_guard_cfg c = cfg;
    struct pol_guard g = {0};
    c.kl_max = 0.1;
    for (int i = 0; i < POL_GUARD_SEE_MIN - 1; i++)
        ASSERT_EQ(pol_guard_see(&g, &c, &(struct pol_guard_shadow){0.2, 100, 1}), POL_GUARD_STAY);
    ASSERT_EQ(pol_guard_see(&g, &c, &(struct pol_guard_shadow){0.2, 100, 1}), POL_GUARD_UP);
    ASSERT_EQ(g.level, 1);
    /* What is not a number counts as the worst, and one of them moves nothing. */
    g = (struct pol_guard){0};
    for (int i = 0; i < 50; i++) {
        struct pol_guard_shadow s = {i == 3 ? NAN : 0.001, -1, 1};
        ASSERT_EQ(pol_guard_see(&g, &c, &s), POL_GUARD_STAY);
    }
    struct pol_guard_gauge v = pol_guard_gauge(&g.now);
    ASSERT_TRUE(v.kl > 0.1 && v.kl < 0.5 && v.kl_low < 0.1 && v.kl_high > 0.2);
    ASSERT_NEAR(v.limit, 0.1, 1e-12);
    ASSERT_TRUE(isnan(v.loss) && isnan(v.reuse_kl) && v.count == 50);
    /* Trials at the bottom and shadows at the top mean nothing. */
    g = (struct pol_guard){0};
    struct pol_guard_shadow s = {0, 1, 1};
    for (int i = 0; i < 100; i++)
        ASSERT_EQ(pol_guard_trial(&g, &c, &s), POL_GUARD_STAY);
    g.level = pol_guard_top(&c);
    s.kl = 5;
    for (int i = 0; i < 100; i++)
        ASSERT_EQ(pol_guard_see(&g, &c, &s), POL_GUARD_STAY);
}

TEST(a_prompt_without_a_yardstick_counts_as_the_average_one)
{
    struct pol_guard g = {0};
    struct pol_guard_shadow s = {0.3, 2, 1};
    for (int i = 0; i < 20; i++)
        (void)pol_guard_see(&g, &cfg, &s);
    s.reuse_kl = -1; /* 0.3 is within 2 * 0.25 * 2 nats, far beyond 2 * 0.25 * 0.04 */
    for (int i = 0; i < 100; i++)
        ASSERT_EQ(pol_guard_see(&g, &cfg, &s), POL_GUARD_STAY);
}

TEST(the_sample_depends_on_seed_and_number_alone)
{
    unsigned n = 0, same = 0;
    for (uint64_t i = 0; i < 100000; i++) {
        n += pol_guard_sampled(7, i, 0.01);
        same += pol_guard_sampled(7, i, 0.5) == pol_guard_sampled(8, i, 0.5);
        ASSERT_EQ(pol_guard_sampled(7, i, 0.01), pol_guard_sampled(7, i, 0.01));
        ASSERT_TRUE(!pol_guard_sampled(7, i, 0));
        ASSERT_TRUE(pol_guard_sampled(7, i, 1));
    }
    ASSERT_TRUE(n > 850 && n < 1150);
    ASSERT_TRUE(same > 49000 && same < 51000);
}
