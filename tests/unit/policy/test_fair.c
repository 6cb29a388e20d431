/* Weighted shares, priorities with ageing: the tags themselves, and a server with a queue. */
#include "tests/test.h"

#include "base/mem.h"
#include "base/rng.h"
#include "policy/fair.h"

enum { N = 10000, FLOWS_MAX = 8 };

struct job {
    unsigned flow, class;
    double at, work, tag, start;
    bool done;
};
struct sim {
    struct job *job; /* by arrival */
    int n, n_came;
    int *waiting, n_waiting, n_class[POL_FAIR_CLASSES];
    double now, weight[FLOWS_MAX];
    struct pol_fair fair;
    struct pol_flow flow[FLOWS_MAX];
};

static void come_until(struct sim *s, double now)
{
    for (; s->n_came < s->n && s->job[s->n_came].at <= now; s->n_came++) {
        struct job *j = &s->job[s->n_came];
        j->tag = pol_fair_come(&s->fair, &s->flow[j->flow], j->class, j->work, s->weight[j->flow]);
        s->n_class[j->class]++;
        s->waiting[s->n_waiting++] = s->n_came;
    }
}

/* Index into waiting, -1: nobody waits. Equal tags: as they came. */
static int next(const struct sim *s)
{
    unsigned order[POL_FAIR_CLASSES];
    pol_fair_order(&s->fair, order);
    for (unsigned c = 0; c < POL_FAIR_CLASSES; c++) {
        int best = -1;
        if (s->n_class[order[c]] == 0) continue;
        for (int i = 0; i < s->n_waiting; i++) {
            const struct job *j = &s->job[s->waiting[i]];
            const struct job *b = best < 0 ? NULL : &s->job[s->waiting[best]];
            if (j->class != order[c]) continue;
            if (!b || j->tag < b->tag || (j->tag == b->tag && j < b)) best = i;
        }
        return best;
    }
    return -1;
}

/* One after the other; false: all are done, or it is later than `until`. */
static bool serve_one(struct sim *s, double until)
{
    come_until(s, s->now);
    int i = next(s);
    if (i < 0 && s->n_came == s->n) return false;
    if (i < 0) {
        s->now = s->job[s->n_came].at;
        return s->now <= until;
    }
    struct job *j = &s->job[s->waiting[i]];
    s->waiting[i] = s->waiting[--s->n_waiting];
    s->n_class[j->class]--;
    pol_fair_serve(&s->fair, &s->flow[j->flow], j->class, j->tag, j->work);
    j->done = true;
    j->start = s->now;
    s->now += j->work;
    return s->now <= until;
}

static struct sim *make(int n)
{
    struct sim *s = mem_zalloc(sizeof *s);
    s->job = mem_zalloc((size_t)n * sizeof *s->job);
    s->waiting = mem_zalloc((size_t)n * sizeof *s->waiting);
    s->n = n;
    for (unsigned f = 0; f < FLOWS_MAX; f++)
        s->weight[f] = 1;
    return s;
}

static void drop(struct sim *s)
{
    mem_free(s->job);
    mem_free(s->waiting);
    mem_free(s);
}

/* Blends of about 700 ms and one exact prefill of 3.5 s in ten: 980 on average. */
static double some_work(struct rng *r)
{
    return rng_unit(r) < 0.1 ? 3500 : 500 + 400 * rng_unit(r);
}

/* Poisson arrivals; flow and class of each by `pick`. */
static void arrive(struct sim *s, double load, void (*pick)(struct rng *r, struct job *j))
{
    struct rng r = {11};
    double now = 0;
    for (int i = 0; i < s->n; i++) {
        struct job *j = &s->job[i];
        j->at = now += rng_exp(&r, 980 / load);
        j->work = some_work(&r);
        pick(&r, j);
    }
}

TEST(odd_numbers_are_no_work)
{
    static const double odd[] = {-1, 0, NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < 5; k++) {
            struct pol_fair f = {0};
            struct pol_flow w = {0};
            double tag = pol_fair_come(&f, &w, 3, odd[i], odd[k]);
            pol_fair_serve(&f, &w, 3, tag, odd[i]);
            ASSERT_TRUE(isfinite(tag) && isfinite(w.next[3]) && isfinite(f.tag[3]));
            ASSERT_TRUE(f.served >= 0 && f.served < 1e15);
        }
}

TEST(one_flow_is_served_in_its_order)
{
    struct pol_fair f = {0};
    struct pol_flow w = {0};
    double last = -1;
    for (int i = 0; i < 100; i++) {
        double tag = pol_fair_come(&f, &w, 0, 1 + i % 7, 2);
        ASSERT_TRUE(tag > last);
        last = tag;
        if (i % 3 == 0) pol_fair_serve(&f, &w, 0, tag, 1);
    }
}

TEST(who_leaves_unserved_pays_nothing)
{
    struct pol_fair f = {0};
    struct pol_flow a = {0};
    for (int i = 0; i < 50; i++) {
        (void)pol_fair_come(&f, &a, 5, 100, 2);
        pol_fair_go(&f, &a, 5, 100, 2);
    }
    ASSERT_NEAR(pol_fair_peek(&f, &a, 5), 0, 1e-9);
}

/* The large one leaves; whoever comes then does not overtake the two that waited behind it, and
 * when all have left nothing is owed. */
TEST(who_leaves_gives_nobody_of_his_flow_a_better_place)
{
    struct pol_fair f = {0};
    struct pol_flow a = {0};
    (void)pol_fair_come(&f, &a, 5, 100, 1);
    (void)pol_fair_come(&f, &a, 5, 1, 1);
    double third = pol_fair_come(&f, &a, 5, 1, 1);
    pol_fair_go(&f, &a, 5, 100, 1);
    ASSERT_TRUE(pol_fair_peek(&f, &a, 5) >= third);
    ASSERT_TRUE(pol_fair_come(&f, &a, 5, 1, 1) >= third);
    for (int i = 0; i < 3; i++)
        pol_fair_go(&f, &a, 5, 1, 1);
    ASSERT_NEAR(pol_fair_peek(&f, &a, 5), 0, 1e-9);
}

/* What was served while nobody of a class waited is none of its claims. */
TEST(a_class_ages_only_while_it_waits)
{
    struct pol_fair f = {0};
    struct pol_flow a = {0};
    unsigned order[POL_FAIR_CLASSES];
    for (int i = 0; i < 20; i++)
        pol_fair_serve(&f, &a, 2, pol_fair_come(&f, &a, 2, POL_FAIR_AGE, 1), POL_FAIR_AGE);
    (void)pol_fair_come(&f, &a, 2, 1, 1);
    pol_fair_order(&f, order);
    for (unsigned c = 0; c < POL_FAIR_CLASSES; c++)
        ASSERT_EQ(order[c], c);
}

/* All have always something waiting: the work goes by weight, within 5 %. */
TEST(shares_under_saturation_are_the_weights)
{
    static const double weight[] = {1, 2, 0.5, 4, 1};
    struct sim *s = make(N);
    struct rng r = {5};
    double sum = 0, weights = 0, got[5] = {0};
    for (int i = 0; i < N; i++) {
        struct job *j = &s->job[i];
        j->flow = (unsigned)i % 5;
        /* Whoever brings large requests gets no more for it. */
        j->work = j->flow == 2 ? 3500 : j->flow == 4 ? 400 : some_work(&r);
        j->class = 5;
    }
    for (int f = 0; f < 5; f++)
        weights += s->weight[f] = weight[f];
    while (sum < 4e6 && serve_one(s, INFINITY)) {
        sum = 0;
        for (int f = 0; f < 5; f++)
            got[f] = 0;
        for (int i = 0; i < N; i++)
            if (s->job[i].done) got[s->job[i].flow] += s->job[i].work, sum += s->job[i].work;
    }
    for (int f = 0; f < 5; f++)
        ASSERT_NEAR(got[f] / sum / (weight[f] / weights), 1, 0.05);
    drop(s);
}

/* Flow 0 (weight 4) asks for a tenth only; 1 and 2 (weights 1 and 3) would take everything. */
TEST(what_one_does_not_use_goes_to_the_others)
{
    struct sim *s = make(N);
    struct rng r = {6};
    double got[3] = {0}, at = 0, end = 2e6;
    for (int i = 0; i < N; i++) {
        struct job *j = &s->job[i];
        j->flow = i % 3 == 0 ? 0 : i % 3 == 1 ? 1 : 2;
        j->work = 500;
        j->class = 5;
        j->at = j->flow == 0 ? (at += rng_exp(&r, 5000)) : 0;
    }
    for (int i = 1, k; i < N; i++) { /* by arrival */
        struct job j = s->job[i];
        for (k = i; k > 0 && s->job[k - 1].at > j.at; k--)
            s->job[k] = s->job[k - 1];
        s->job[k] = j;
    }
    s->weight[0] = 4;
    s->weight[2] = 3;
    while (serve_one(s, end)) {
    }
    for (int i = 0; i < N; i++)
        if (s->job[i].done) got[s->job[i].flow] += s->job[i].work;
    double asked = 0;
    for (int i = 0; i < N; i++)
        if (s->job[i].flow == 0 && s->job[i].at < end - 2000) asked += s->job[i].work;
    ASSERT_TRUE(got[0] >= asked); /* all it asked for */
    ASSERT_NEAR(got[2] / got[1], 3, 0.15);
    ASSERT_NEAR((got[0] + got[1] + got[2]) / end, 1, 0.01); /* nothing is left idle */
    drop(s);
}

static void one_heavy(struct rng *r, struct job *j)
{
    j->flow = rng_unit(r) < 0.97 ? 0 : 1;
    j->class = 5;
}

/* However much the heavy one has waiting, the light one waits for the request that runs at most,
 * as long as it has only one of its own at a time. */
TEST(a_heavy_key_delays_a_light_one_by_one_service_time)
{
    struct sim *s = make(N);
    double own_until = 0;
    int n = 0;
    arrive(s, 1.5, one_heavy);
    while (serve_one(s, INFINITY)) {
    }
    for (int i = 0; i < N; i++) {
        struct job *j = &s->job[i];
        if (j->flow != 1) continue;
        if (j->at >= own_until + 4000) { /* nothing of its own before it, and that is forgotten */
            ASSERT_TRUE(j->start - j->at <= 3500);
            n++;
        }
        own_until = j->start + j->work;
    }
    ASSERT_TRUE(n > 100);
    drop(s);
}

static void equal_work(struct rng *r, struct job *j)
{
    j->flow = rng_unit(r) < 0.98 ? (unsigned)(rng_next(r) % 3) : 3;
    j->class = 5;
    j->work = 500;
}

/* Heavy ones in step, whose requests all have one tag: a light one waits for none but the one that
 * runs. */
TEST(heavy_keys_in_step_delay_a_light_one_by_one_service_time)
{
    struct sim *s = make(N);
    double own_until = 0;
    int n = 0;
    arrive(s, 3, equal_work); /* of some_work()'s length: half as much again as can be done */
    while (serve_one(s, INFINITY)) {
    }
    for (int i = 0; i < N; i++) {
        struct job *j = &s->job[i];
        if (j->flow != 3) continue;
        if (j->at >= own_until + 4000) {
            ASSERT_TRUE(j->start - j->at <= 500 + 1e-6);
            n++;
        }
        own_until = j->start + j->work;
    }
    ASSERT_TRUE(n > 50);
    drop(s);
}

static void by_class(struct rng *r, struct job *j)
{
    static const unsigned class[] = {0, 2, 5, 9};
    j->flow = (unsigned)(rng_next(r) % 4);
    j->class = class[j->flow];
}

/* At 95 % load everybody finishes, and the better priority waits less. */
TEST(priorities_order_and_starve_nobody_at_95_percent_load)
{
    struct sim *s = make(N);
    double wait[4] = {0};
    int n[4] = {0};
    arrive(s, 0.95, by_class);
    while (serve_one(s, INFINITY)) {
    }
    for (int i = 0; i < N; i++) {
        const struct job *j = &s->job[i];
        ASSERT_TRUE(j->done);
        wait[j->flow] += j->start - j->at;
        n[j->flow]++;
    }
    for (int f = 1; f < 4; f++)
        ASSERT_TRUE(wait[f] / n[f] > wait[f - 1] / n[f - 1]);
    drop(s);
}

/* Saturated by priority 0, priority 9 still gets one request for each nine levels' worth of work.
 */
TEST(the_lowest_priority_is_served_under_saturation)
{
    struct sim *s = make(N);
    double last = 0, longest = 0;
    for (int i = 0; i < N; i++) {
        s->job[i].flow = (unsigned)i % 2;
        s->job[i].class = i % 2 ? 9 : 0;
        s->job[i].work = 700;
    }
    while (s->now < 2e6 && serve_one(s, INFINITY)) {
    }
    for (int i = 1; i < N; i += 2) /* of one flow: in their order */
        if (s->job[i].done) {
            longest = fmax(longest, s->job[i].start - last);
            last = s->job[i].start;
        }
    ASSERT_TRUE(last > 1.8e6);
    ASSERT_TRUE(longest <= 9 * POL_FAIR_AGE + 2 * 700);
    ASSERT_TRUE(longest > 8 * POL_FAIR_AGE); /* and no more than that */
    drop(s);
}
