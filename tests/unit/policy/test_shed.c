/* Admission by predicted wait: the rule by table and property, and a server with clients that come
 * back when they were told to. */
#include "tests/test.h"

#include "base/mem.h"
#include "base/rng.h"
#include "policy/shed.h"

static struct pol_shed ask(struct pol_shed_worker w, double ahead, double objective)
{
    return pol_shed(&(struct pol_shed_in){.worker = &w,
                                          .n = 1,
                                          .ahead_ms = ahead,
                                          .n_ahead = ahead > 0,
                                          .objective_ms = objective,
                                          .random = 1});
}

TEST(verdicts)
{
    struct pol_shed_worker idle = {.cost_ms = 500, .slots = 16, .hold_ms = 1000}, w = idle;
    ASSERT_EQ(ask(idle, 0, 2000).verdict, POL_SHED_ADMIT);
    ASSERT_EQ(ask(idle, 0, 100).verdict, POL_SHED_ADMIT); /* late anyhow, and nobody to wait for */
    w.backlog_ms = 1400;
    w.n_running = w.n_waiting = 1;
    ASSERT_EQ(ask(w, 0, 2000).verdict, POL_SHED_QUEUE);
    w.backlog_ms = 1600;
    struct pol_shed d = ask(w, 0, 2000);
    ASSERT_EQ(d.verdict, POL_SHED_SHED);
    ASSERT_NEAR(d.wait_ms, 1600, 1e-9);
    ASSERT_NEAR(d.allowed_ms, 1500, 1e-9);
    ASSERT_TRUE(d.retry_ms >= 1600 - 0.75 * 1500 && d.retry_ms <= 1.1 * (1600 - 0.75 * 1500));
    ASSERT_EQ(ask(w, 0, 0).verdict, POL_SHED_QUEUE); /* no objective: as long as it takes */
    ASSERT_EQ(ask(idle, 1700, 2000).verdict, POL_SHED_SHED);
    w = idle; /* all slots are taken: one comes free every 1000/16 ms */
    w.n_running = 16;
    ASSERT_NEAR(ask(w, 0, 0).wait_ms, 1000.0 / 16, 1e-9);
    w.slots = 0;
    ASSERT_NEAR(ask(w, 0, 0).wait_ms, 0, 1e-9);
}

/* Against sending away from the one that would be soonest, but too late, beside an idle one. */
TEST(an_idle_worker_is_used_even_where_another_would_be_sooner)
{
    struct pol_shed_worker w[2] = {{.backlog_ms = 5000, .cost_ms = 100}, {.cost_ms = 5200}};
    struct pol_shed d = pol_shed(&(struct pol_shed_in){.worker = w, .n = 2, .objective_ms = 5000});
    ASSERT_EQ(d.verdict, POL_SHED_ADMIT);
    ASSERT_EQ(d.worker, 1);
}

TEST(the_worker_that_answers_soonest_is_meant)
{
    struct pol_shed_worker w[3] = {{.backlog_ms = 100, .cost_ms = 3000},
                                   {.backlog_ms = 2000, .cost_ms = 500},
                                   {.backlog_ms = 9000, .cost_ms = 400}};
    struct pol_shed_in in = {.worker = w, .n = 3, .ahead_ms = 300, .n_ahead = 1};
    struct pol_shed d = pol_shed(&in);
    ASSERT_EQ(d.worker, 1);
    ASSERT_NEAR(d.wait_ms, 2000 + 300 / 3.0, 1e-9); /* three workers take what waits here */
    ASSERT_EQ(d.verdict, POL_SHED_QUEUE);
    in.ahead_ms = in.n_ahead = 0;
    ASSERT_EQ(pol_shed(&in).verdict, POL_SHED_ADMIT);
}

TEST(room)
{
    struct pol_shed_worker w = {.backlog_ms = 5000, .n_running = 1, .slots = 4};
    ASSERT_TRUE(pol_shed_room(&w)); /* one waits beside the one that runs */
    w.n_waiting = 1;
    ASSERT_TRUE(!pol_shed_room(&w));
    w.backlog_ms = 50;
    ASSERT_TRUE(pol_shed_room(&w)); /* short ones: more of them */
    w.n_waiting = 4;
    ASSERT_TRUE(!pol_shed_room(&w)); /* but no more than one without a slot */
}

static struct pol_shed_in random_in(struct rng *r, struct pol_shed_worker w[4])
{
    static const double odd[] = {NAN, INFINITY, -INFINITY, -1, 0, 1e300};
    double v[4];
    size_t n = 1 + rng_next(r) % 4;
    for (size_t i = 0; i < n; i++) {
        for (int k = 0; k < 3; k++)
            v[k] = rng_unit(r) < 0.1 ? odd[rng_next(r) % 6] : 5000 * rng_unit(r);
        w[i] = (struct pol_shed_worker){v[0],
                                        (unsigned)(rng_next(r) % 20),
                                        (unsigned)(rng_next(r) % 5),
                                        (unsigned)(rng_next(r) % 17),
                                        v[1],
                                        v[2]};
    }
    for (int k = 0; k < 4; k++)
        v[k] = rng_unit(r) < 0.1 ? odd[rng_next(r) % 6] : 5000 * rng_unit(r);
    if (rng_unit(r) < 0.5) v[1] = 0;
    return (struct pol_shed_in){w,    n,    v[0], (unsigned)(rng_next(r) % 5),
                                v[1], v[2], v[3], rng_next(r)};
}

TEST(always_a_decision_made_of_numbers)
{
    struct rng r = {1};
    struct pol_shed_worker w[4];
    for (int i = 0; i < 100000; i++) {
        struct pol_shed_in in = random_in(&r, w);
        struct pol_shed d = pol_shed(&in);
        ASSERT_TRUE(d.worker < in.n);
        ASSERT_TRUE(isfinite(d.wait_ms) && d.wait_ms >= 0 && isfinite(d.cost_ms));
        ASSERT_TRUE(isfinite(d.allowed_ms) && isfinite(d.retry_ms) && d.retry_ms >= 0);
        ASSERT_TRUE((d.verdict == POL_SHED_SHED) == (d.retry_ms > 0));
        for (size_t k = 0; k < in.n && d.verdict == POL_SHED_SHED; k++) { /* nobody is idle */
            struct pol_shed_in one = in;
            one.worker = &w[k];
            one.n = 1;
            ASSERT_TRUE(pol_shed(&one).wait_ms > 0);
        }
    }
}

/* More load never lets in who was sent away, a wider objective never sends away who was let in. */
TEST(monotone_in_load_and_objective)
{
    struct rng r = {2};
    struct pol_shed_worker w[4], more[4];
    int n_shed = 0;
    for (int i = 0; i < 100000; i++) {
        struct pol_shed_in in = random_in(&r, w), x = in;
        struct pol_shed d = pol_shed(&in);
        n_shed += d.verdict == POL_SHED_SHED;
        x.objective_ms = d.verdict == POL_SHED_SHED ? in.objective_ms * rng_unit(&r)
                                                    : in.objective_ms * (1 + rng_unit(&r));
        if (x.objective_ms > 0)
            ASSERT_EQ(pol_shed(&x).verdict == POL_SHED_SHED, d.verdict == POL_SHED_SHED);
        if (d.verdict != POL_SHED_SHED) continue;
        memcpy(more, w, sizeof more);
        x = in;
        x.worker = more;
        for (size_t k = 0; k < in.n; k++) {
            more[k].backlog_ms = fmax(0, w[k].backlog_ms) + 1000 * rng_unit(&r);
            more[k].n_running += (unsigned)(rng_next(&r) % 3);
        }
        x.ahead_ms = fmax(0, in.ahead_ms) + 1000 * rng_unit(&r);
        ASSERT_EQ(pol_shed(&x).verdict, POL_SHED_SHED);
    }
    ASSERT_TRUE(n_shed > 10000);
}

/* ---- a server and its clients ---- */

enum { N = 10000, TRIES = 3 };
struct client {
    uint64_t id;
    double first_ms, at_ms, work_ms, objective_ms;
    int tries;
    bool comes_back, told;
};
struct world {
    struct client *client;
    struct pol_promises promises;
    struct rng r;
    double now, work_done;
    size_t n_workers;
    double *worker_until;
    int n_in, n_told, n_kept, n_late, n_idle_sheds, n_long, n_long_in;
};

/* What the workers report is not exact: their prefills take more or less than was predicted. */
static void come(struct world *x, struct client *c)
{
    struct pol_shed_worker w[8];
    for (size_t i = 0; i < x->n_workers; i++)
        w[i] = (struct pol_shed_worker){.backlog_ms = fmax(0, x->worker_until[i] - x->now),
                                        .cost_ms = c->work_ms};
    struct pol_line line = pol_promises_line(&x->promises, 0, c->id, x->now, x->n_workers);
    struct pol_shed_in in = {.worker = w,
                             .n = x->n_workers,
                             .line_ms = line.before_ms,
                             .promised_ms = line.all_ms,
                             .objective_ms = c->objective_ms,
                             .random = rng_next(&x->r)};
    struct pol_shed d = pol_shed(&in);
    bool away = d.verdict == POL_SHED_SHED;
    x->n_told += c->told;
    x->n_kept += c->told && !away;
    c->tries++;
    if (!away) {
        double *until = &x->worker_until[d.worker];
        double took = c->work_ms * (0.85 + 0.3 * rng_unit(&x->r));
        *until = fmax(*until, x->now) + took;
        x->n_late += *until - x->now > 1.2 * c->objective_ms;
        x->work_done += took;
        pol_promises_keep(&x->promises, 0, c->id);
        x->n_in++;
        x->n_long_in += c->work_ms > 3000;
        c->at_ms = INFINITY;
        return;
    }
    bool told = pol_promises_make(&x->promises, 0, c->id, x->now, d.retry_ms, d.cost_ms);
    x->n_idle_sheds += d.wait_ms == 0;
    c->told = told && c->comes_back && c->tries < TRIES;
    /* Retry-After in whole seconds, or retry-after-ms; and the way here. */
    double wait = rng_unit(&x->r) < 0.5 ? ceil(d.retry_ms / 1000) * 1000 : d.retry_ms;
    c->at_ms = c->told ? x->now + wait + 20 * rng_unit(&x->r) : INFINITY;
}

/* load: of fresh requests; back: share of clients that come again. */
static void simulate(struct world *x, size_t n_workers, double load, double back, double long_share,
                     uint64_t seed)
{
    double at = 0;
    *x = (struct world){.r = {seed}, .n_workers = n_workers};
    x->client = mem_zalloc(N * sizeof *x->client);
    x->worker_until = mem_zalloc(n_workers * sizeof *x->worker_until);
    for (int i = 0; i < N; i++) {
        struct client *c = &x->client[i];
        c->work_ms = rng_unit(&x->r) < long_share ? 3500 : 400 + 400 * rng_unit(&x->r);
        double mean = long_share * 3500 + (1 - long_share) * 600;
        at += rng_exp(&x->r, mean / load / (double)n_workers);
        *c = (struct client){.id = (uint64_t)i + 1,
                             .first_ms = at,
                             .at_ms = at,
                             .work_ms = c->work_ms,
                             .objective_ms = 5000,
                             .comes_back = rng_unit(&x->r) < back};
        x->n_long += c->work_ms > 3000;
    }
    for (int from = 0;;) {
        struct client *next = NULL; /* those who came long ago and are gone are not looked at */
        while (from < N && x->client[from].at_ms == INFINITY)
            from++;
        for (int i = from; i < N; i++) {
            struct client *c = &x->client[i];
            if (next && c->first_ms > next->at_ms) break; /* fresh ones come by their order */
            if (c->at_ms < INFINITY && (!next || c->at_ms < next->at_ms)) next = c;
        }
        if (!next) break;
        x->now = next->at_ms;
        come(x, next);
    }
}

static void end(struct world *x)
{
    mem_free(x->client);
    mem_free(x->worker_until);
}

static double kept(const struct world *x)
{
    return x->n_told > 0 ? (double)x->n_kept / x->n_told : 1;
}

/* Whoever waits as long as he was told is let in: 95 % of them, from light to heavy overload. */
TEST(retry_after_is_true)
{
    static const double loads[] = {0.8, 0.95, 1.1, 1.5, 2, 3};
    for (int i = 0; i < 6; i++)
        for (size_t workers = 1; workers <= 4; workers += 3) {
            struct world x;
            simulate(&x, workers, loads[i], 1, 0, 7 + (uint64_t)i);
            if (kept(&x) < 0.95)
                test_fail(__FILE__, __LINE__, "load %g, %zu workers: %d of %d", loads[i], workers,
                          x.n_kept, x.n_told);
            ASSERT_TRUE(loads[i] < 1 || x.n_told > 100);
            ASSERT_EQ(x.n_idle_sheds, 0);
            ASSERT_TRUE(x.n_late <= x.n_in / 50);
            end(&x);
        }
}

/* Clients that do not come back leave no worker idle, and those who do still find their room,
 * whatever their share. */
TEST(broken_promises_cost_little)
{
    for (int i = 0; i <= 8; i++)
        for (size_t workers = 1; workers <= 4; workers += 3) {
            struct world x;
            double last = 0;
            simulate(&x, workers, 1.5, i / 8.0, 0, 20 + (uint64_t)i);
            for (size_t k = 0; k < workers; k++)
                last = fmax(last, x.worker_until[k]);
            ASSERT_TRUE(x.work_done / ((double)workers * last) > 0.93);
            ASSERT_TRUE(kept(&x) >= 0.95);
            end(&x);
        }
}

/* Prefills that take most of their objective are not kept out by short ones for ever. */
TEST(long_requests_do_not_starve)
{
    struct world x;
    simulate(&x, 1, 1.3, 1, 0.1, 40);
    double all = (double)x.n_in / N, longs = (double)x.n_long_in / x.n_long;
    ASSERT_TRUE(x.n_long > 500);
    ASSERT_TRUE(longs > 0.5 * all);
    end(&x);
}

/* Room that is promised for later may be used until then. */
TEST(who_is_done_before_the_promised_time_is_in_nobodys_way)
{
    struct pol_promises p = {0};
    pol_promises_make(&p, 0, 3, 0, 9000, 500);
    pol_promises_make(&p, 0, 1, 0, 2000, 500);
    pol_promises_make(&p, 0, 2, 0, 3000, 2000);
    struct pol_line l = pol_promises_line(&p, 0, 9, 0, 1);
    ASSERT_NEAR(l.before_ms, 0, 1e-9);
    ASSERT_NEAR(l.all_ms, 3000, 1e-9);
    l = pol_promises_line(&p, 0, 9, 1500, 1); /* 2500 are to come within 1500 */
    ASSERT_NEAR(l.before_ms, 1000, 1e-9);
    struct pol_shed_worker w = {.backlog_ms = 800, .cost_ms = 500};
    struct pol_shed_in in = {.worker = &w, .n = 1, .objective_ms = 2500, .promised_ms = l.all_ms};
    ASSERT_TRUE(pol_shed(&in).verdict != POL_SHED_SHED);
    in.line_ms = l.before_ms;
    ASSERT_EQ(pol_shed(&in).verdict, POL_SHED_SHED);
    w.backlog_ms = 600;
    ASSERT_TRUE(pol_shed(&in).verdict != POL_SHED_SHED);
}

TEST(promises_are_bounded_and_forgotten)
{
    struct pol_promises p = {0};
    for (uint64_t i = 1; i <= 2 * POL_PROMISES_MAX; i++)
        ASSERT_EQ(pol_promises_make(&p, 7, i, 0, 1000, 10), i <= POL_PROMISES_MAX);
    ASSERT_EQ(p.n, POL_PROMISES_MAX);
    struct pol_line l = pol_promises_line(&p, 7, 0, 0, 2);
    ASSERT_NEAR(l.all_ms, POL_PROMISES_MAX * 10 / 2.0, 1e-9);
    ASSERT_NEAR(l.before_ms, POL_PROMISES_MAX * 10 / 2.0 - 1000, 1e-9); /* work until they come */
    l = pol_promises_line(&p, 8, 1, 1000, 2);
    ASSERT_TRUE(l.all_ms == 0 && l.before_ms == 0); /* another key's */
    pol_promises_keep(&p, 8, 1);
    ASSERT_EQ(p.n, POL_PROMISES_MAX);
    ASSERT_NEAR(pol_promises_line(&p, 7, 1, 999, 1).before_ms, (POL_PROMISES_MAX - 1) * 10 - 1,
                1e-9); /* too early */
    ASSERT_NEAR(pol_promises_line(&p, 7, 1, 1000, 1).before_ms, 0, 1e-9);
    pol_promises_keep(&p, 7, 1);
    ASSERT_EQ(p.n, POL_PROMISES_MAX - 1);
    ASSERT_NEAR(pol_promises_line(&p, 7, 0, 1e6, 1).all_ms, 0, 1e-9);
    ASSERT_EQ(p.n, 0);
    ASSERT_TRUE(p.lost > 0.9 && p.lost <= 1);
    ASSERT_TRUE(!pol_promises_make(&p, 7, 5, 0, 61000, 10)); /* nobody waits that long */
    ASSERT_EQ(p.n, 0);
}
