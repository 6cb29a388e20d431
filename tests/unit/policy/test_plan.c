#include "policy/plan.h"
#include "tests/test.h"

#define Q POL_STRAT_QS
#define H POL_STRAT_HKVD
#define S POL_STRAT_SINK

TEST(table)
{
    static const struct {
        enum pol_mode mode;
        enum pol_strategy strategy;
        double ratio;
        uint32_t prompt, prefix, reuse, suffix;
        bool allowed;
        enum pol_mode want;
        enum pol_strategy want_strategy;
        double want_ratio;
    } cases[] = {
        {POL_AUTO, 0, -1, 3000, 100, 2800, 32, true, POL_BLEND, Q, 0.15},
        {POL_AUTO, 0, 0.05, 3000, 0, 2800, 32, true, POL_BLEND, Q, 0.05},
        {POL_AUTO, S, -1, 3000, 0, 2800, 32, true, POL_BLEND, S, 0.15},
        {POL_AUTO, 0, -1, 3000, 0, 3000, 0, true, POL_BLEND, H, 0.15},
        {POL_AUTO, 0, -1, 3000, 0, 2800, 32, false, POL_FULL, POL_STRAT_FULL, 0},
        /* Scoring with half of a prompt makes it as dear as an exact one; hkvd has no such pass. */
        {POL_AUTO, 0, -1, 1000, 0, 450, 10, true, POL_FULL, POL_STRAT_FULL, 0},
        {POL_AUTO, 0, -1, 1000, 0, 450, 0, true, POL_BLEND, H, 0.15},
        {POL_AUTO, 0, -1, 1000, 0, 100, 10, true, POL_FULL, POL_STRAT_FULL, 0},
        {POL_AUTO, 0, -1, 1000, 64, 100, 10, true, POL_PREFIX, POL_STRAT_PREFIX, 0},
        {POL_AUTO, 0, 1, 1000, 0, 980, 20, true, POL_FULL, POL_STRAT_FULL, 0},
        {POL_AUTO, H, -1, 1000, 0, 20, 10, true, POL_BLEND, H, 0.15},
        {POL_AUTO, POL_STRAT_REUSE, -1, 1000, 0, 20, 10, true, POL_REUSE, POL_STRAT_REUSE, 0},
        {POL_AUTO, POL_STRAT_PREFIX, -1, 1000, 9, 20, 10, true, POL_PREFIX, POL_STRAT_PREFIX, 0},
        {POL_AUTO, POL_STRAT_FULL, -1, 1000, 9, 20, 10, true, POL_FULL, POL_STRAT_FULL, 0},
        {POL_FULL, H, 0.1, 3000, 500, 2000, 32, true, POL_FULL, POL_STRAT_FULL, 0},
        {POL_PREFIX, 0, -1, 3000, 500, 2000, 32, true, POL_PREFIX, POL_STRAT_PREFIX, 0},
        {POL_PREFIX, Q, -1, 3000, 0, 2000, 32, true, POL_FULL, POL_STRAT_FULL, 0},
        {POL_REUSE, Q, 0.5, 3000, 0, 20, 32, true, POL_REUSE, POL_STRAT_REUSE, 0},
        {POL_REUSE, 0, -1, 3000, 0, 2000, 32, false, POL_FULL, POL_STRAT_FULL, 0},
        {POL_REUSE, 0, -1, 3000, 64, 0, 32, true, POL_PREFIX, POL_STRAT_PREFIX, 0},
        /* What is asked for is honoured, however little is cached. */
        {POL_BLEND, H, 2, 3000, 0, 20, 32, true, POL_BLEND, H, 1},
        {POL_BLEND, 0, 0, 3000, 0, 20, 32, true, POL_BLEND, Q, 0},
        {POL_BLEND, 0, 1, 3000, 0, 20, 32, true, POL_BLEND, Q, 1},
        {POL_BLEND, 0, -1, 3000, 0, 0, 32, true, POL_FULL, POL_STRAT_FULL, 0},
        {POL_BLEND, 0, -1, 3000, 0, 20, 32, false, POL_FULL, POL_STRAT_FULL, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pol_plan_in in = {.mode = cases[i].mode,
                                 .strategy = cases[i].strategy,
                                 .ratio = cases[i].ratio,
                                 .ratio_default = -1,
                                 .prompt_tokens = cases[i].prompt,
                                 .prefix_tokens = cases[i].prefix,
                                 .reuse_tokens = cases[i].reuse,
                                 .suffix_tokens = cases[i].suffix,
                                 .blend_allowed = cases[i].allowed};
        struct pol_plan p = pol_plan(&in);
        printf("# case %zu: %s, %s: %s\n", i, pol_mode_name(p.mode), pol_strategy_name(p.strategy),
               p.reason);
        ASSERT_EQ(p.mode, cases[i].want);
        ASSERT_EQ(p.strategy, cases[i].want_strategy);
        ASSERT_NEAR(p.ratio, cases[i].want_ratio, 1e-12);
    }
}

TEST(what_is_missed_is_not_asked_with)
{
    struct pol_plan_in in = {.mode = POL_AUTO,
                             .ratio = -1,
                             .ratio_default = -1,
                             .prompt_tokens = 1000,
                             .reuse_tokens = 450,
                             .suffix_tokens = 10,
                             .blend_allowed = true};
    ASSERT_EQ(pol_plan(&in).mode, POL_FULL);
    in.missed_tokens = 450;
    ASSERT_EQ(pol_plan(&in).strategy, Q);
    in.reuse_tokens = 100; /* less than a tenth to save */
    in.missed_tokens = 800;
    ASSERT_EQ(pol_plan(&in).mode, POL_FULL);
}

TEST(defaults_of_the_operator)
{
    struct pol_plan_in in = {.mode = POL_BLEND,
                             .ratio = -1,
                             .ratio_default = 0,
                             .strategy_default = S,
                             .prompt_tokens = 100,
                             .reuse_tokens = 50,
                             .suffix_tokens = 5,
                             .blend_allowed = true};
    struct pol_plan p = pol_plan(&in);

    ASSERT_EQ(p.strategy, S);
    ASSERT_EQ(p.ratio, 0);
    in.strategy = H;
    in.ratio = 0.25;
    p = pol_plan(&in);
    ASSERT_EQ(p.strategy, H);
    ASSERT_NEAR(p.ratio, 0.25, 1e-12);
    in.strategy = POL_STRAT_DEFAULT;
    in.strategy_default = POL_STRAT_FULL;
    ASSERT_EQ(pol_plan(&in).mode, POL_FULL);
}

/* Whatever the numbers: a sound plan, and more to reuse never turns a blend into less. */
TEST(property)
{
    uint64_t rng = 23;
    for (int i = 0; i < 100000; i++) {
        struct pol_plan_in in = {.mode = (enum pol_mode)(test_rand(&rng) % POL_MODE_COUNT),
                                 .strategy = (enum pol_strategy)(test_rand(&rng) % POL_STRAT_COUNT),
                                 .strategy_default =
                                     (enum pol_strategy)(test_rand(&rng) % POL_STRAT_COUNT),
                                 .ratio = (double)(test_rand(&rng) % 400) / 100 - 2,
                                 .ratio_default = (double)(test_rand(&rng) % 400) / 100 - 2,
                                 .prompt_tokens = 200 + (uint32_t)(test_rand(&rng) % 5000),
                                 .suffix_tokens = (uint32_t)(test_rand(&rng) % 3),
                                 .blend_allowed = test_rand(&rng) % 4 != 0};
        uint32_t room = in.prompt_tokens - 100;
        in.prefix_tokens = (uint32_t)(test_rand(&rng) % room);
        in.reuse_tokens = (uint32_t)(test_rand(&rng) % (room - in.prefix_tokens));
        if (i % 50 == 0) in.ratio = NAN;
        if (i % 70 == 0) in.ratio_default = NAN;
        struct pol_plan p = pol_plan(&in);
        ASSERT_TRUE(p.mode > POL_AUTO && p.mode < POL_MODE_COUNT && p.reason);
        ASSERT_TRUE(p.ratio >= 0 && p.ratio <= 1);
        ASSERT_EQ(p.strategy >= POL_STRAT_HKVD, p.mode == POL_BLEND);
        ASSERT_EQ(p.strategy == POL_STRAT_FULL, p.mode == POL_FULL);
        ASSERT_EQ(p.strategy == POL_STRAT_REUSE, p.mode == POL_REUSE);
        bool inexact = p.mode == POL_BLEND || p.mode == POL_REUSE;
        if (inexact) ASSERT_TRUE(in.blend_allowed && in.reuse_tokens > 0);
        if (p.mode == POL_PREFIX) ASSERT_TRUE(in.prefix_tokens > 0);
        if (in.mode == POL_BLEND && in.strategy >= POL_STRAT_HKVD && in.reuse_tokens > 0 &&
            in.blend_allowed)
            ASSERT_EQ(p.mode, POL_BLEND);
        if (p.mode != POL_BLEND) continue;
        in.reuse_tokens += 100;
        ASSERT_EQ(pol_plan(&in).mode, POL_BLEND);
    }
}
