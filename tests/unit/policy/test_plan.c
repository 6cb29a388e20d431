#include "policy/plan.h"
#include "tests/test.h"

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
        {POL_AUTO, 0, -1, 3000, 100, 2800, 32, true, POL_BLEND, POL_STRAT_QUERY, 0.15},
        {POL_AUTO, 0, 0.05, 3000, 0, 2800, 32, true, POL_BLEND, POL_STRAT_QUERY, 0.05},
        {POL_AUTO, POL_STRAT_SINK, -1, 3000, 0, 2800, 32, true, POL_BLEND, POL_STRAT_SINK, 0.15},
        {POL_AUTO, 0, -1, 3000, 0, 2800, 0, true, POL_BLEND, POL_STRAT_HKVD, 0.15},
        {POL_AUTO, 0, -1, 3000, 0, 63, 32, true, POL_FULL, 0, 1},
        {POL_AUTO, 0, -1, 3000, 500, 300, 32, true, POL_PREFIX, 0, 0},
        {POL_AUTO, 0, -1, 3000, 500, 301, 32, true, POL_BLEND, POL_STRAT_QUERY, 0.15},
        {POL_AUTO, 0, -1, 3000, 0, 2800, 32, false, POL_FULL, 0, 1},
        {POL_FULL, 0, 0.1, 3000, 500, 2000, 32, true, POL_FULL, 0, 1},
        {POL_PREFIX, 0, -1, 3000, 500, 2000, 32, true, POL_PREFIX, 0, 0},
        {POL_PREFIX, 0, -1, 3000, 0, 2000, 32, true, POL_FULL, 0, 1},
        {POL_REUSE, 0, 0.5, 3000, 0, 20, 32, true, POL_REUSE, 0, 0},
        {POL_REUSE, 0, -1, 3000, 0, 2000, 32, false, POL_FULL, 0, 1},
        {POL_BLEND, POL_STRAT_HKVD, 2, 3000, 0, 20, 32, true, POL_BLEND, POL_STRAT_HKVD, 1},
        {POL_BLEND, 0, 0, 3000, 0, 20, 32, true, POL_BLEND, POL_STRAT_QUERY, 0},
        {POL_BLEND, 0, -1, 3000, 0, 0, 32, true, POL_FULL, 0, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pol_plan_in in = {.mode = cases[i].mode,
                                 .strategy = cases[i].strategy,
                                 .ratio = cases[i].ratio,
                                 .prompt_tokens = cases[i].prompt,
                                 .prefix_tokens = cases[i].prefix,
                                 .reuse_tokens = cases[i].reuse,
                                 .suffix_tokens = cases[i].suffix,
                                 .blend_allowed = cases[i].allowed};
        struct pol_plan p = pol_plan(&in);
        printf("# case %zu: %s, %s\n", i, pol_mode_name(p.mode), p.reason);
        ASSERT_EQ(p.mode, cases[i].want);
        ASSERT_EQ(p.strategy, cases[i].want_strategy);
        ASSERT_NEAR(p.ratio, cases[i].want_ratio, 1e-12);
    }
}

/* Whatever the numbers: a sound plan, and more to reuse never turns a blend into less. */
TEST(property)
{
    uint64_t rng = 23;
    for (int i = 0; i < 100000; i++) {
        struct pol_plan_in in = {.mode = (enum pol_mode)(test_rand(&rng) % POL_MODE_COUNT),
                                 .strategy = (enum pol_strategy)(test_rand(&rng) % 4),
                                 .ratio = (double)(test_rand(&rng) % 400) / 100 - 2,
                                 .prompt_tokens = (uint32_t)(test_rand(&rng) % 5000),
                                 .suffix_tokens = (uint32_t)(test_rand(&rng) % 3),
                                 .blend_allowed = test_rand(&rng) % 4 != 0};
        in.prefix_tokens = (uint32_t)(test_rand(&rng) % (in.prompt_tokens + 1));
        in.reuse_tokens = (uint32_t)(test_rand(&rng) % (in.prompt_tokens - in.prefix_tokens + 1));
        if (i % 50 == 0) in.ratio = NAN;
        struct pol_plan p = pol_plan(&in);
        ASSERT_TRUE(p.mode > POL_AUTO && p.mode < POL_MODE_COUNT && p.reason);
        ASSERT_TRUE(p.ratio >= 0 && p.ratio <= 1);
        ASSERT_EQ(p.strategy != POL_STRAT_DEFAULT, p.mode == POL_BLEND);
        bool inexact = p.mode == POL_BLEND || p.mode == POL_REUSE;
        if (inexact) ASSERT_TRUE(in.blend_allowed && in.reuse_tokens > 0);
        if (p.mode == POL_PREFIX) ASSERT_TRUE(in.prefix_tokens > 0);
        if (p.mode != POL_BLEND) continue;
        in.reuse_tokens += 100;
        ASSERT_EQ(pol_plan(&in).mode, POL_BLEND);
    }
}
