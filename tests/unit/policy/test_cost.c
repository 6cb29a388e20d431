#include "policy/cost.h"
#include "tests/test.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct pol_cost TRUE_COST = {.fixed_s = 2e-4,
                                          .layer_s = 3e-5,
                                          .row_s = 2.2e-5,
                                          .kv_row_s = 2e-6,
                                          .pair_s = 2.5e-9,
                                          .place_s = 1.5e-7,
                                          .mass_s = 3e-9,
                                          .head_s = 8e-4};

static double unit(uint64_t *seed)
{
    return (double)(test_rand(seed) >> 11) * 0x1p-53;
}

/* What prefills of some sizes and kinds count. */
static struct pol_work work_of(uint64_t *seed)
{
    const double L = 30, T = 100 + 3000 * unit(seed), rows = 10 + T * unit(seed);
    return (struct pol_work){.requests = 1,
                             .layers = L + floor(25 * unit(seed)),
                             .rows = L * rows,
                             .kv_rows = T + (L + 24 * unit(seed)) * rows,
                             .pairs = L * rows * T / 2,
                             .places = L * (T - rows),
                             .masses = unit(seed) < 0.5 ? 15 * 32 * T : 0,
                             .heads = 1};
}

static size_t samples(uint64_t *seed, double noise, struct pol_cost_sample *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        x[i].work = work_of(seed);
        x[i].s = pol_cost_time(&TRUE_COST, &x[i].work) * (1 + noise * (2 * unit(seed) - 1));
    }
    return n;
}

static void assert_sound(const struct pol_cost *c)
{
    const double *p = &c->fixed_s;
    for (size_t k = 0; k < 8; k++)
        ASSERT_TRUE(isfinite(p[k]) && p[k] >= 0);
}

TEST(time_is_the_sum)
{
    const struct pol_cost c = {.price = {1, 2, 3, 4, 5, 6, 7, 8}};
    const struct pol_work w = {.count = {1, 10, 100, 1000, 1e4, 1e5, 1e6, 1e7}};
    ASSERT_NEAR(pol_cost_time(&c, &w), 87654321.0, 1e-6);
}

TEST(fit_recovers_prices)
{
    uint64_t seed = 1;
    struct pol_cost_sample x[40];
    struct pol_cost c = {.row_step = 16};
    ASSERT_OK(pol_cost_fit(x, samples(&seed, 0, x, 40), &c));
    ASSERT_EQ(c.row_step, 16);
    const double *got = &c.fixed_s, *want = &TRUE_COST.fixed_s;
    for (size_t k = 1; k < 7; k++)
        ASSERT_NEAR(got[k] / want[k], 1, 0.02);
    /* Requests and heads always come together: only their sum can be known. */
    ASSERT_NEAR((c.fixed_s + c.head_s) / (TRUE_COST.fixed_s + TRUE_COST.head_s), 1, 0.05);
}

/* Noise of 5 %, and one sample in ten taken while something else ran. Single small prompts are
 * beyond what such samples tell; what is asked for is a good prediction on the whole. */
TEST(fit_predicts_under_noise)
{
    enum { SEEDS = 20, TRIES = 50 };
    double sum = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        uint64_t s = seed;
        struct pol_cost_sample x[60];
        struct pol_cost c = {0};
        double own = 0;
        const size_t n = samples(&s, 0.05, x, 60);
        for (size_t i = 0; i < n; i += 10)
            x[i].s *= 1.5 + 2 * unit(&s);
        ASSERT_OK(pol_cost_fit(x, n, &c));
        assert_sound(&c);
        for (int i = 0; i < TRIES; i++) {
            const struct pol_work w = work_of(&s);
            own += fabs(pol_cost_time(&c, &w) / pol_cost_time(&TRUE_COST, &w) - 1) / TRIES;
        }
        ASSERT_TRUE(own < 0.05);
        sum += own;
    }
    ASSERT_TRUE(sum / SEEDS < 0.02);
}

/* One kind of work, two, or none that differs: still a sound model of what was seen. */
TEST(fit_with_little)
{
    uint64_t seed = 3;
    struct pol_cost_sample x[3];
    struct pol_cost c = {0};
    const size_t n = samples(&seed, 0, x, 3);
    for (size_t k = 1; k <= n; k++) {
        c = (struct pol_cost){0};
        ASSERT_OK(pol_cost_fit(x, k, &c));
        assert_sound(&c);
        for (size_t i = 0; i < k; i++)
            ASSERT_NEAR(pol_cost_time(&c, &x[i].work) / x[i].s, 1, 0.01);
    }
}

TEST(fit_leaves_out_nonsense)
{
    uint64_t seed = 4;
    struct pol_cost_sample x[24] = {0};
    struct pol_cost c = {0}, clean = {0};
    const double bad[] = {NAN, INFINITY, -1, 0};
    ASSERT_ERR(pol_cost_fit(x, 0, &c), -EINVAL);
    for (size_t i = 0; i < 4; i++) {
        (void)samples(&seed, 0, x, 1);
        x[0].s = bad[i];
        ASSERT_ERR(pol_cost_fit(x, 1, &c), -EINVAL);
        ASSERT_NEAR(c.row_s, 0, 0); /* untouched */
    }
    const size_t n = samples(&seed, 0, x, 20);
    ASSERT_OK(pol_cost_fit(x, n, &clean));
    for (size_t i = 0; i < 4; i++) {
        x[n + i] = x[i];
        if (i == 3)
            x[n + i].work.pairs = -1;
        else
            x[n + i].work.rows = bad[i];
    }
    ASSERT_OK(pol_cost_fit(x, n + 4, &c));
    ASSERT_NEAR(c.pair_s, clean.pair_s, 0);
}

TEST(fit_random_never_unsound)
{
    for (uint64_t seed = 1; seed <= 300; seed++) {
        uint64_t s = seed;
        struct pol_cost_sample x[12];
        struct pol_cost c = {0};
        for (size_t i = 0; i < 12; i++) {
            double *v = &x[i].work.requests;
            for (size_t k = 0; k < 8; k++)
                v[k] = unit(&s) < 0.3 ? 0 : exp(60 * unit(&s) - 30);
            x[i].s = exp(60 * unit(&s) - 30);
        }
        if (pol_cost_fit(x, 12, &c) == 0) assert_sound(&c);
    }
}

/* Ten noisy samples, two of them far off, as a short calibration on a busy machine: with the guess
 * no price is lost, and what was not sampled is predicted as well. */
TEST(guess_holds_what_samples_cannot_tell)
{
    const struct pol_dims dims = {576, 9, 3, 64, 1536, 49152};
    double with = 0, without = 0;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        uint64_t s = seed * 31;
        struct pol_cost_sample x[10];
        struct pol_cost c = {0}, bare = {0}, truth = {0};
        pol_cost_guess(&dims, &truth);
        double *v = &truth.fixed_s;
        for (int k = 0; k < 8; k++) /* a machine that the guess is wrong about */
            v[k] *= 3 * exp(unit(&s) - 0.5);
        for (size_t i = 0; i < 10; i++) {
            x[i].work = work_of(&s);
            x[i].s = pol_cost_time(&truth, &x[i].work) * (0.9 + 0.2 * unit(&s));
            if (i % 5 == 4) x[i].s *= 1.5;
        }
        pol_cost_guess(&dims, &c);
        ASSERT_OK(pol_cost_fit(x, 10, &c));
        ASSERT_OK(pol_cost_fit(x, 10, &bare));
        assert_sound(&c);
        for (int k = 1; k < 7; k++)
            ASSERT_TRUE((&c.fixed_s)[k] > 0);
        for (int i = 0; i < 50; i++) {
            const struct pol_work w = work_of(&s);
            const double t = pol_cost_time(&truth, &w);
            with += fabs(pol_cost_time(&c, &w) / t - 1) / 2000;
            without += fabs(pol_cost_time(&bare, &w) / t - 1) / 2000;
        }
    }
    printf("# mean error with a guess %.3f, without %.3f\n", with, without);
    ASSERT_TRUE(with < 0.10 && with < without);
}

TEST(correction_follows_slowly)
{
    struct pol_cost c = TRUE_COST;
    uint64_t seed = 9;
    const struct pol_work w = work_of(&seed);
    const double was = pol_cost_time(&c, &w);
    pol_cost_correct(&c, was, 1000 * was); /* an outlier */
    ASSERT_TRUE(pol_cost_time(&c, &w) <= 1.0101 * was);
    c = TRUE_COST;
    for (int i = 0; i < 400; i++)
        pol_cost_correct(&c, pol_cost_time(&c, &w), 1.3 * was);
    ASSERT_NEAR(pol_cost_time(&c, &w) / was, 1.3, 0.01);
    const double bad[] = {NAN, INFINITY, -1, 0};
    struct pol_cost d = c;
    for (size_t i = 0; i < 4; i++) {
        pol_cost_correct(&d, bad[i], 1);
        pol_cost_correct(&d, 1, bad[i]);
    }
    ASSERT_MEMEQ(&c, &d, sizeof c);
}
