/* The rules: what was asked for, and what goes without a search. */
#include "policy/control.h"
#include "policy/strategy.h"
#include "tests/test.h"

#include <math.h>

#define Q POL_QS
#define H POL_HKVD
#define S POL_SINK

struct prompt { /* tokens; the chunks that are held and missed are one each, behind `front` */
    uint32_t all, prefix, held, missed, suffix, front;
};

static struct pol_control decide(const struct prompt *p, const struct pol_request *q)
{
    const uint32_t at = p->prefix + p->front;
    const struct pol_chunk_now chunk[] = {{.tok0 = at, .n = p->held, .tier = 0},
                                          {.tok0 = at + p->held, .n = p->missed, .tier = -1}};
    const struct pol_control_in in = {.n_tok = p->all,
                                      .n_prefix = p->prefix,
                                      .n_suffix = p->suffix,
                                      .chunk = chunk,
                                      .n_chunk = 2};
    struct pol_control ret;
    bool reuse[2];
    ASSERT_TRUE(!pol_decide(&in, q, &ret, reuse));
    ASSERT_EQ(reuse[0], !pol_strategy_is_exact(ret.strategy));
    ASSERT_TRUE(!reuse[1]);
    ASSERT_EQ(ret.n_reused, reuse[0]);
    ASSERT_TRUE(*ret.reason);
    return ret;
}

static struct pol_request asks(enum pol_strategy wish, double ratio)
{
    return (struct pol_request){.wish = wish,
                                .ratio = ratio,
                                .strategy_default = POL_AUTO,
                                .ratio_default = -1,
                                .blend_allowed = true};
}

TEST(table)
{
    static const struct {
        enum pol_strategy wish;
        double ratio;
        uint32_t prompt, prefix, reuse, suffix;
        bool allowed;
        enum pol_strategy want;
        double want_ratio;
    } cases[] = {
        {POL_AUTO, -1, 3000, 100, 2800, 32, true, Q, 0.15},
        {POL_AUTO, 0.05, 3000, 0, 2800, 32, true, Q, 0.05},
        {S, -1, 3000, 0, 2800, 32, true, S, 0.15},
        {POL_AUTO, -1, 3000, 0, 3000, 0, true, H, 0.15},
        {POL_AUTO, -1, 3000, 0, 2800, 32, false, POL_FULL, 0},
        /* Scoring with half of a prompt makes it as dear as an exact one; hkvd has no such pass. */
        {POL_AUTO, -1, 1000, 0, 450, 10, true, POL_FULL, 0},
        {POL_AUTO, -1, 1000, 0, 450, 0, true, H, 0.15},
        {POL_AUTO, -1, 1000, 0, 100, 10, true, POL_FULL, 0},
        {POL_AUTO, -1, 1000, 64, 100, 10, true, POL_PREFIX, 0},
        {POL_AUTO, 1, 1000, 0, 980, 20, true, POL_FULL, 0},
        {H, -1, 1000, 0, 20, 10, true, H, 0.15},
        {POL_REUSE, -1, 1000, 0, 20, 10, true, POL_REUSE, 0},
        {POL_PREFIX, -1, 1000, 9, 20, 10, true, POL_PREFIX, 0},
        {POL_FULL, -1, 1000, 9, 20, 10, true, POL_FULL, 0},
        {POL_FULL, 0.1, 3000, 500, 2000, 32, true, POL_FULL, 0},
        {POL_PREFIX, -1, 3000, 500, 2000, 32, true, POL_PREFIX, 0},
        {POL_PREFIX, -1, 3000, 0, 2000, 32, true, POL_FULL, 0},
        {POL_REUSE, 0.5, 3000, 0, 20, 32, true, POL_REUSE, 0},
        {POL_REUSE, -1, 3000, 0, 2000, 32, false, POL_FULL, 0},
        {POL_REUSE, -1, 3000, 64, 0, 32, true, POL_PREFIX, 0},
        /* What is asked for is honoured, however little is cached. */
        {H, 2, 3000, 0, 20, 32, true, H, 1},
        {POL_BLEND, 0, 3000, 0, 20, 32, true, Q, 0},
        {POL_BLEND, 1, 3000, 0, 20, 32, true, Q, 1},
        {POL_BLEND, -1, 3000, 0, 0, 32, true, POL_FULL, 0},
        {POL_BLEND, -1, 3000, 0, 20, 32, false, POL_FULL, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pol_request q = asks(cases[i].wish, cases[i].ratio);
        q.blend_allowed = cases[i].allowed;
        const struct prompt p = {.all = cases[i].prompt,
                                 .prefix = cases[i].prefix,
                                 .held = cases[i].reuse,
                                 .suffix = cases[i].suffix};
        const struct pol_control c = decide(&p, &q);
        printf("# case %zu: %s: %s\n", i, pol_strategy_name(c.strategy), c.reason);
        ASSERT_EQ(c.strategy, cases[i].want);
        ASSERT_NEAR(c.ratio, cases[i].want_ratio, 1e-12);
    }
}

TEST(what_is_missed_is_not_asked_with)
{
    const struct pol_request q = asks(POL_AUTO, -1);
    struct prompt p = {.all = 1000, .held = 450, .suffix = 10};
    ASSERT_EQ(decide(&p, &q).strategy, POL_FULL);
    p.missed = 450;
    ASSERT_EQ(decide(&p, &q).strategy, Q);
    p.held = 100; /* less than a tenth to save */
    p.missed = 800;
    ASSERT_EQ(decide(&p, &q).strategy, POL_FULL);
}

TEST(what_stands_in_front_runs_once)
{
    const struct pol_request q = asks(POL_AUTO, -1);
    struct prompt p = {.all = 1000, .prefix = 100, .held = 450, .suffix = 10};
    ASSERT_EQ(decide(&p, &q).strategy, POL_PREFIX);
    p.front = 300;
    ASSERT_EQ(decide(&p, &q).strategy, Q);
}

TEST(defaults_of_the_operator)
{
    const struct prompt p = {.all = 100, .held = 50, .suffix = 5};
    struct pol_request q = asks(POL_BLEND, -1);
    q.ratio_default = 0;
    q.strategy_default = S;
    struct pol_control c = decide(&p, &q);
    ASSERT_EQ(c.strategy, S);
    ASSERT_EQ(c.ratio, 0);
    q.wish = H;
    q.ratio = 0.25;
    c = decide(&p, &q);
    ASSERT_EQ(c.strategy, H);
    ASSERT_NEAR(c.ratio, 0.25, 1e-12);
    q.wish = POL_BLEND;
    q.strategy_default = POL_FULL;
    ASSERT_EQ(decide(&p, &q).strategy, POL_FULL);
}

/* Whatever the numbers: a sound choice, and more to reuse never turns a blend into less. */
TEST(property)
{
    uint64_t rng = 23;
    for (int i = 0; i < 100000; i++) {
        struct pol_request q = {.wish = (enum pol_strategy)(test_rand(&rng) % (POL_BLEND + 1)),
                                .strategy_default =
                                    (enum pol_strategy)(test_rand(&rng) % (POL_BLEND + 1)),
                                .ratio = (double)(test_rand(&rng) % 400) / 100 - 2,
                                .ratio_default = (double)(test_rand(&rng) % 400) / 100 - 2,
                                .blend_allowed = test_rand(&rng) % 4 != 0};
        struct prompt p = {.all = 200 + (uint32_t)(test_rand(&rng) % 5000),
                           .suffix = (uint32_t)(test_rand(&rng) % 3)};
        uint32_t room = p.all - 100;
        p.prefix = (uint32_t)(test_rand(&rng) % room);
        p.held = (uint32_t)(test_rand(&rng) % (room - p.prefix));
        if (i % 50 == 0) q.ratio = NAN;
        if (i % 70 == 0) q.ratio_default = NAN;
        struct pol_control c = decide(&p, &q);
        ASSERT_TRUE(pol_strategy_runs(c.strategy));
        ASSERT_TRUE(c.ratio >= 0 && c.ratio <= 1);
        if (!pol_strategy_is_exact(c.strategy)) ASSERT_TRUE(q.blend_allowed && p.held > 0);
        if (c.strategy <= POL_REUSE) ASSERT_EQ(c.ratio, 0);
        if (c.strategy == POL_PREFIX) ASSERT_TRUE(p.prefix > 0);
        if (pol_strategy_runs(q.wish) && q.wish >= POL_HKVD && p.held > 0 && q.blend_allowed)
            ASSERT_TRUE(c.strategy >= POL_HKVD);
        if (c.strategy < POL_HKVD) continue;
        p.held += 100;
        ASSERT_TRUE(decide(&p, &q).strategy >= POL_HKVD);
    }
}

/* ---- with a search ---- */

static const struct pol_cost COST = {.row_s = 1e-5, .kv_row_s = 1e-6, .pair_s = 1e-10};

static bool searched(enum pol_strategy wish, double ratio, int tier, struct pol_control *ret)
{
    const struct pol_chunk_now chunk = {.n = 900, .tier = tier, .bytes = 900 * 1000};
    struct pol_control_in in = {.L = 6,
                                .check_layer = 1,
                                .n_tok = 1000,
                                .n_suffix = 100,
                                .chunk = &chunk,
                                .n_chunk = 1,
                                .n_tier = 2,
                                .cost = COST,
                                .ratio_max = 1};
    struct pol_request q = asks(wish, ratio);
    bool reuse;
    in.tier[1].bytes_per_s = 1; /* of no use */
    in.strat[POL_SINK] = (struct pol_strat_now){true, 0.1};
    q.search = true;
    const bool by_search = pol_decide(&in, &q, ret, &reuse);
    ASSERT_TRUE(ret->full.ttft_s > 0 && ret->predicted.ttft_s > 0); /* the rules predict, too */
    return by_search;
}

TEST(the_search_has_what_was_left_open)
{
    struct pol_control c;
    ASSERT_TRUE(searched(POL_AUTO, -1, 0, &c));
    ASSERT_EQ(c.strategy, POL_SINK);
    ASSERT_TRUE(searched(POL_BLEND, -1, 0, &c));
    ASSERT_EQ(c.strategy, POL_SINK);
    ASSERT_TRUE(searched(POL_AUTO, -1, 1, &c)); /* too far away */
    ASSERT_EQ(c.strategy, POL_FULL);
    ASSERT_TRUE(!searched(POL_BLEND, -1, 1, &c)); /* but it was asked for */
    ASSERT_EQ(c.strategy, POL_QS);
    ASSERT_TRUE(!searched(POL_QUERY, -1, 0, &c));
    ASSERT_EQ(c.strategy, POL_QUERY);
    ASSERT_TRUE(!searched(POL_AUTO, 0.3, 0, &c));
    ASSERT_NEAR(c.ratio, 0.3, 1e-12);
    ASSERT_TRUE(!searched(POL_AUTO, -1, -1, &c)); /* nothing held */
    ASSERT_EQ(c.strategy, POL_FULL);
}

/* ---- names ---- */

TEST(names_come_back)
{
    enum pol_strategy s;
    for (int i = 0; i < POL_STRATEGY_COUNT; i++) {
        ASSERT_EQ(pol_strategy_parse(pol_strategy_name((enum pol_strategy)i), &s), 1);
        ASSERT_EQ(s, (enum pol_strategy)i);
    }
    ASSERT_STREQ(pol_strategy_name(POL_AUTO), "auto");
    ASSERT_STREQ(pol_strategy_name(POL_BLEND), "blend");
    ASSERT_STREQ(pol_strategy_name((enum pol_strategy)99), "unknown");
    ASSERT_EQ(pol_strategy_parse("auto", &s), 0);
    ASSERT_EQ(pol_strategy_parse("static", &s), 0);
}
