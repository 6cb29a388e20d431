/* How much of a prefill runs between two decode steps: the rule alone, and against machines whose
 * steps take what a seed says, on a clock that only they move. */
#include "tests/test.h"

#include "base/rng.h"
#include "fusor/core/step_budget.h"

#define MS UINT64_C(1000000)

static const struct fus_step rows_3000 = {FUS_STEP_ROWS, 3000, .row = 1, .fixed = 32};
static const struct fus_step stored = {FUS_STEP_STORED, 500, .whole = true, .row = 1};

TEST(nothing_is_known_at_first)
{
    struct fus_step_budget p = {0};
    ASSERT_EQ(fus_step_budget_rows(&p, &stored, 5 * MS), 500); /* it goes on, whatever it takes */
    ASSERT_EQ(fus_step_budget_rows(&p, &rows_3000, 5 * MS), 64);
    fus_step_budget_ran(&p, &stored, 500, MS);
    ASSERT_EQ(fus_step_budget_rows(&p, &stored, 6 * MS), 0);
    ASSERT_EQ(fus_step_budget_rows(&p, &rows_3000, 6 * MS), 0);
    fus_step_budget_decoded(&p, 46 * MS, 40 * MS);
    ASSERT_EQ(fus_step_budget_rows(&p, &rows_3000, 46 * MS), 64);
}

TEST(slices_fill_the_share_and_are_of_one_length)
{
    struct fus_step_budget p = {0};
    fus_step_budget_ran(&p, &rows_3000, 968, 50 * MS); /* 1000 units: 50 us each */
    fus_step_budget_decoded(&p, 100 * MS, 40 * MS);
    const size_t n = fus_step_budget_rows(&p, &rows_3000, 100 * MS); /* 24 ms are 480 units */
    ASSERT_EQ(n, 429); /* seven slices, not six and a bit */
    ASSERT_NEAR(fus_step_budget_predict_ns(&p, &rows_3000, n), 461 * 50e3, 1);
    ASSERT_NEAR(fus_step_budget_left_ns(&p, 110 * MS), 14 * MS, 1);
    fus_step_budget_ran(&p, &rows_3000, n, 23 * MS);
    ASSERT_EQ(fus_step_budget_rows(&p, &rows_3000, 123 * MS), 0); /* a millisecond is left */
    /* A few rows are another matter: nothing is known of them, and then that they are cheap. */
    const struct fus_step rest = {FUS_STEP_ROWS, 10, .row = 1, .fixed = 32};
    ASSERT_EQ(fus_step_budget_rows(&p, &rest, 123 * MS), 0);
    fus_step_budget_ran(&p, &rest, 10, MS / 2);
    ASSERT_EQ(fus_step_budget_rows(&p, &rest, 123 * MS), 10);
    ASSERT_NEAR(fus_step_budget_predict_ns(&p, &rows_3000, 968), 50 * MS, MS / 10);
}

TEST(what_does_not_fit_runs_by_itself)
{
    struct fus_step_budget p = {0};
    fus_step_budget_ran(&p, &stored, 500, 100 * MS);
    fus_step_budget_ran(&p, &rows_3000, 968, 1000 * MS); /* 64 rows take 96 ms */
    fus_step_budget_decoded(&p, 200 * MS, 10 * MS);
    ASSERT_EQ(fus_step_budget_rows(&p, &stored, 200 * MS), 500);
    ASSERT_EQ(fus_step_budget_rows(&p, &rows_3000, 200 * MS), 64);
    const struct fus_step small = {FUS_STEP_HEAD, 1, .whole = true, .row = 1};
    fus_step_budget_ran(&p, &small, 1, MS);
    ASSERT_EQ(fus_step_budget_rows(&p, &stored, 201 * MS), 0);
    ASSERT_EQ(fus_step_budget_rows(&p, &rows_3000, 201 * MS), 0);
    ASSERT_EQ(fus_step_budget_rows(&p, &small, 201 * MS), 1);
}

TEST(one_odd_measurement_moves_little)
{
    struct fus_step_budget p = {0};
    fus_step_budget_ran(&p, &stored, 500, MS);
    fus_step_budget_ran(&p, &stored, 500, 1000 * MS);
    ASSERT_NEAR(fus_step_budget_predict_ns(&p, &stored, 500), 1.25 * MS, 1);
    fus_step_budget_ran(&p, &stored, 500, 0);
    ASSERT_NEAR(fus_step_budget_predict_ns(&p, &stored, 500), 1.25 * MS, 1);
    fus_step_budget_decoded(&p, 2000 * MS, 8 * MS);
    fus_step_budget_decoded(&p, 3000 * MS, 800 * MS);
    ASSERT_NEAR(p.decode_ns, 107 * MS, 1);
}

/* A prompt's steps on a machine: layers of stored KV, K,V and rows; times are off by up to `noise`.
 */
struct machine {
    struct rng rng;
    double decode_ns, row_ns, kv_row_ns, place_ns, noise;
    size_t n_rows, n_left;
    int part;
};

static struct fus_step next_step(const struct machine *m)
{
    if (m->part == 0) return (struct fus_step){FUS_STEP_STORED, 3000, .whole = true, .row = 1};
    if (m->part == 1) return (struct fus_step){FUS_STEP_KV, m->n_left, .row = 1, .fixed = 32};
    return (struct fus_step){FUS_STEP_ROWS, m->n_left, .row = 7, .fixed = 32 * 7};
}

static double true_ns(struct machine *m, size_t rows)
{
    const double off = 1 + m->noise * (2 * rng_unit(&m->rng) - 1);
    const double of[] = {3000 * m->place_ns, (32 + (double)rows) * m->kv_row_ns,
                         (32 + (double)rows) * m->row_ns};
    return of[m->part] * off;
}

static void step_done(struct machine *m, size_t rows)
{
    m->n_left -= m->part == 0 ? 0 : rows;
    if (m->part > 0 && m->n_left > 0) return;
    m->part = (m->part + 1) % 3;
    m->n_left = m->n_rows;
}

/* A gap that was not filled leaves its rest to those behind it, up to the most that one may have.
 */
TEST(what_a_gap_leaves_is_the_next_ones)
{
    struct fus_step_budget p = {0};
    fus_step_budget_decoded(&p, 100 * MS, 10 * MS);
    ASSERT_NEAR(fus_step_budget_left_ns(&p, 100 * MS), 6 * MS, 1);
    fus_step_budget_decoded(&p, 113 * MS, 10 * MS); /* 3 ms of the 6 were used */
    ASSERT_NEAR(fus_step_budget_left_ns(&p, 113 * MS), 9 * MS, 1);
    fus_step_budget_decoded(&p, 124 * MS, 10 * MS); /* 1 of 9 */
    ASSERT_NEAR(fus_step_budget_left_ns(&p, 124 * MS), 10 * MS, 1);
    fus_step_budget_decoded(&p, 154 * MS, 10 * MS); /* 20 of 10: not taken from the next */
    ASSERT_NEAR(fus_step_budget_left_ns(&p, 154 * MS), 6 * MS, 1);
}

/* Where nobody reads along, a gap takes from those to come, which give it back. */
TEST(what_is_taken_ahead_is_given_back)
{
    const double ahead = FUS_STEP_BUDGET_AHEAD_STEPS * 10.0 * MS;
    struct fus_step_budget p = {.ahead = true};
    ASSERT_NEAR(fus_step_budget_left_ns(&p, 0), FUS_STEP_BUDGET_AHEAD_NS, 1); /* nothing is known */
    fus_step_budget_decoded(&p, 1000 * MS, 10 * MS);
    fus_step_budget_begin(&p, 5000 * MS); /* what has passed while nothing decoded is nobody's */
    ASSERT_NEAR(fus_step_budget_left_ns(&p, 5000 * MS), ahead + 6 * MS, 1);
    fus_step_budget_ran(&p, &rows_3000, 968, 50 * MS);
    ASSERT_TRUE(fus_step_budget_rows(&p, &rows_3000, 5000 * MS) > 968);
    fus_step_budget_decoded(&p, 5110 * MS, 10 * MS); /* 100 ms of other work: 94 too many */
    ASSERT_NEAR(fus_step_budget_left_ns(&p, 5110 * MS), ahead - 88 * MS, 1);
    fus_step_budget_decoded(&p, 5120 * MS, 10 * MS);
    ASSERT_NEAR(fus_step_budget_left_ns(&p, 5120 * MS), ahead - 82 * MS, 1);
    fus_step_budget_decoded(&p, 7120 * MS, 10 * MS); /* no debt is larger */
    ASSERT_NEAR(fus_step_budget_left_ns(&p, 7120 * MS), 6 * MS, 1);
    fus_step_budget_ran(&p, &rows_3000, 968, 50 * MS);
    ASSERT_EQ(fus_step_budget_rows(&p, &rows_3000, 7126 * MS), 0);
    for (uint64_t i = 1; i <= 200; i++)
        fus_step_budget_decoded(&p, (7120 + 10 * i) * MS, 10 * MS);
    ASSERT_NEAR(fus_step_budget_left_ns(&p, 9120 * MS), ahead + 10 * MS, 1); /* nor what is kept */
    fus_step_budget_decoded(&p, 9230 * MS, 10 * MS);
    p.ahead = false; /* a stream begins: it pays for nobody, from the next gap on */
    ASSERT_TRUE(fus_step_budget_left_ns(&p, 9230 * MS) < 0);
    fus_step_budget_decoded(&p, 9240 * MS, 10 * MS);
    ASSERT_NEAR(fus_step_budget_left_ns(&p, 9240 * MS), 6 * MS, 1);
}

/* Whatever the machine: what lies between two tokens is at most what it may be and the share in the
 * mean, as far as prediction goes (noise, twice where a rate has just changed its mind), or a
 * single step that could not be smaller; and prefills get most of what they may have. */
TEST(no_gap_holds_more_than_its_share)
{
    struct rng seed = {7};
    for (int run = 0; run < 300; run++) {
        struct fus_step_budget p = {0};
        struct machine m = {.rng = {seed.state + 1},
                            .decode_ns = (2 + 200 * rng_unit(&seed)) * MS,
                            .row_ns = (5 + 400 * rng_unit(&seed)) * 1e3,
                            .noise = 0.15,
                            .n_rows = 100 + rng_next(&seed) % 4000};
        m.kv_row_ns = m.row_ns * (0.02 + 0.2 * rng_unit(&seed));
        m.place_ns = m.row_ns * 0.05 * rng_unit(&seed);
        m.n_left = m.n_rows;
        const double share = FUS_STEP_BUDGET_SHARE * m.decode_ns,
                     most = FUS_STEP_BUDGET_MOST * m.decode_ns;
        double now = 0, used = 0, could = 0;
        bool alone = false; /* a step that could not be smaller was more than the share */
        for (int token = 0; token < 400; token++) {
            const double decode = m.decode_ns * (0.95 + 0.1 * rng_unit(&m.rng));
            now += decode;
            fus_step_budget_decoded(&p, (uint64_t)now, (uint64_t)decode);
            double gap = 0;
            int n = 0;
            bool least = false;
            for (size_t rows;; n++) {
                const struct fus_step s = next_step(&m);
                rows = fus_step_budget_rows(&p, &s, (uint64_t)now);
                if (rows == 0) break;
                ASSERT_TRUE(rows <= s.rows && (!s.whole || rows == s.rows));
                const double took = true_ns(&m, rows);
                least = s.whole || rows <= FUS_STEP_BUDGET_ROWS_MIN;
                now += took;
                gap += took;
                fus_step_budget_ran(&p, &s, rows, (uint64_t)took);
                step_done(&m, rows);
            }
            ASSERT_TRUE(n >= 1);      /* a prefill always goes on */
            if (token < 20) continue; /* it is learning */
            ASSERT_TRUE(gap <= most * 1.35 || (n == 1 && least));
            alone |= gap > share && n == 1 && least;
            if (gap <= most * 1.35) {
                used += gap;
                could += share;
            }
        }
        /* 64 rows that nearly fill it, or do not fit behind a step that does, leave the most. */
        if (96 * m.row_ns < share / 4 && 3000 * m.place_ns < share / 4)
            ASSERT_TRUE(used > 0.8 * could);
        if (!alone) ASSERT_TRUE(used < 1.1 * could);
    }
}
