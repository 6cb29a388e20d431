/* Order of waiting requests: the rule itself, and a queue at 95 % load. */
#include "tests/test.h"

#include "base/mem.h"
#include "base/rng.h"
#include "policy/order.h"

enum { N = 10000 };

struct job {
    double at, work, due, start;
};

TEST(names)
{
    static const char *const name[POL_ORDER_COUNT] = {"fifo", "sjf", "edf"};
    enum pol_order o;
    for (int i = 0; i < POL_ORDER_COUNT; i++) {
        ASSERT_EQ(pol_order_parse(name[i], &o), 1);
        ASSERT_EQ((int)o, i);
    }
    ASSERT_EQ(pol_order_parse("lifo", &o), 0);
}

TEST(due_is_a_number_that_grows_with_what_it_looks_at)
{
    static const double odd[] = {-1, 0, NAN, -INFINITY};
    for (int o = 0; o < POL_ORDER_COUNT; o++)
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 4; j++) {
                const double d = pol_order_due((enum pol_order)o, odd[i], odd[j]);
                ASSERT_TRUE(isfinite(d) && d >= 0);
            }
    ASSERT_NEAR(pol_order_due(POL_ORDER_FIFO, 5, 7), 0, 0);
    ASSERT_TRUE(pol_order_due(POL_ORDER_SJF, 2, 0) > pol_order_due(POL_ORDER_SJF, 1, 0));
    ASSERT_TRUE(pol_order_due(POL_ORDER_EDF, 1, 2) > pol_order_due(POL_ORDER_EDF, 1, 1));
    ASSERT_NEAR(pol_order_due(POL_ORDER_EDF, 1, 0), POL_ORDER_DEADLINE_S, 0);
}

/* One server, ten thousand jobs: blends of about 0.7 s and one exact prefill of 3.5 s in ten. */
static void make_jobs(struct job *j, enum pol_order o, double load)
{
    struct rng r = {42};
    double now = 0;
    for (int i = 0; i < N; i++) {
        j[i].work = rng_unit(&r) < 0.1 ? 3.5 : 0.5 + 0.4 * rng_unit(&r);
        j[i].at = now += rng_exp(&r, 0.98 / load); /* the mean work is 0.98 */
        j[i].due = j[i].at + pol_order_due(o, j[i].work, j[i].work > 1 ? 10 : 2);
        j[i].start = -1;
    }
}

static void serve(struct job *j)
{
    double now = 0;
    for (int done = 0, came = 0; done < N; done++) {
        int best = -1;
        for (int pass = 0; best < 0; pass++) {
            if (pass > 0) now = j[came].at; /* idle until the next one comes */
            while (came < N && j[came].at <= now)
                came++;
            for (int i = 0; i < came; i++)
                if (j[i].start < 0 && (best < 0 || j[i].due < j[best].due)) best = i;
        }
        j[best].start = now;
        now += j[best].work;
    }
}

static void run(struct job *j, enum pol_order o)
{
    make_jobs(j, o, 0.95);
    serve(j);
}

static double mean_wait(const struct job *j)
{
    double sum = 0;
    for (int i = 0; i < N; i++)
        sum += j[i].start - j[i].at;
    return sum / N;
}

TEST(nobody_is_overtaken_by_one_that_came_after_it_was_due)
{
    struct job *j = mem_alloc(N * sizeof *j);
    for (int o = 0; o < POL_ORDER_COUNT; o++) {
        run(j, (enum pol_order)o);
        for (int i = 0; i < N; i++) {
            ASSERT_TRUE(j[i].start >= j[i].at);
            for (int k = i + 1; k < N && j[k].at < j[i].start; k++)
                if (j[k].at > j[i].due) ASSERT_TRUE(j[k].start > j[i].start);
        }
    }
    mem_free(j);
}

/* Shortest first answers sooner on average, and the longest wait is hardly longer than in line. */
TEST(shortest_first_pays_and_starves_nobody_at_95_percent_load)
{
    struct job *fifo = mem_alloc(N * sizeof *fifo), *sjf = mem_alloc(N * sizeof *sjf);
    double longest_fifo = 0, longest_sjf = 0;
    run(fifo, POL_ORDER_FIFO);
    run(sjf, POL_ORDER_SJF);
    for (int i = 0; i < N; i++) {
        longest_fifo = fmax(longest_fifo, fifo[i].start - fifo[i].at);
        longest_sjf = fmax(longest_sjf, sjf[i].start - sjf[i].at);
    }
    ASSERT_TRUE(mean_wait(sjf) < 0.95 * mean_wait(fifo));
    ASSERT_TRUE(longest_sjf < longest_fifo + POL_ORDER_PATIENCE * 3.5 + 3.5);
    mem_free(fifo);
    mem_free(sjf);
}
