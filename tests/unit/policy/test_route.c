#include "policy/route.h"
#include "tests/test.h"

enum { N_MAX = 16 };

static void fill(struct pol_route_target *t, size_t n, uint64_t *seed)
{
    for (size_t i = 0; i < n; i++)
        t[i] = (struct pol_route_target){.weight = 0.1 + (double)(test_rand(seed) % 50) / 10,
                                         .n_inflight = (uint32_t)(test_rand(seed) % 40),
                                         .queued_tokens = test_rand(seed) % 20000,
                                         .resident_tokens = test_rand(seed) % 5000,
                                         .id = test_rand(seed)};
}

static bool reason_known(const char *reason)
{
    static const char *const all[] = POL_ROUTE_REASONS;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (strcmp(all[i], reason) == 0) return true;
    return false;
}

TEST(anything_goes_in)
{
    uint64_t seed = 1;
    for (int i = 0; i < 50000; i++) {
        struct pol_route_target t[N_MAX];
        struct pol_route_in in = {.target = t,
                                  .n = 1 + test_rand(&seed) % N_MAX,
                                  .balance = (enum pol_balance)(test_rand(&seed) % 3),
                                  .affinity = test_rand(&seed) % 3 ? test_rand(&seed) : 0,
                                  .prompt_tokens = test_rand(&seed) % 8000,
                                  .random = test_rand(&seed)};
        fill(t, in.n, &seed);
        if (i % 7 == 0) t[0].weight = 0;
        if (i % 11 == 0) t[0].weight = NAN;
        if (i % 13 == 0) t[0].n_inflight = UINT32_MAX;
        struct pol_route r = pol_route(&in), again = pol_route(&in);
        ASSERT_TRUE(r.chosen < in.n);
        ASSERT_TRUE(reason_known(r.reason));
        ASSERT_EQ(r.chosen, again.chosen);
        ASSERT_STREQ(r.reason, again.reason);
        if (in.n == 1) ASSERT_STREQ(r.reason, "only");
    }
}

/* Who is chosen stays so with more of the prompt or less to do; who is not never wins by having
 * more to do. */
TEST(more_of_the_good_never_hurts)
{
    uint64_t seed = 2;
    for (int i = 0; i < 50000; i++) {
        struct pol_route_target t[N_MAX];
        struct pol_route_in in = {.target = t,
                                  .n = 2 + test_rand(&seed) % (N_MAX - 1),
                                  .balance = (enum pol_balance)(test_rand(&seed) % 3),
                                  .affinity = test_rand(&seed) % 3 ? test_rand(&seed) : 0,
                                  .prompt_tokens = test_rand(&seed) % 8000,
                                  .random = test_rand(&seed)};
        fill(t, in.n, &seed);
        size_t c = pol_route(&in).chosen, o = test_rand(&seed) % in.n;
        t[c].resident_tokens += test_rand(&seed) % 3000;
        t[c].queued_tokens -= test_rand(&seed) % (t[c].queued_tokens + 1);
        ASSERT_EQ(pol_route(&in).chosen, c);
        if (in.balance == POL_BALANCE_AFFINITY) continue; /* there the bound is the others' sum */
        t[c].n_inflight -= (uint32_t)(test_rand(&seed) % (t[c].n_inflight + 1));
        if (in.balance == POL_BALANCE_LEAST) ASSERT_EQ(pol_route(&in).chosen, c);
        c = pol_route(&in).chosen;
        if (o == c) continue;
        t[o].queued_tokens += test_rand(&seed) % 20000;
        ASSERT_EQ(pol_route(&in).chosen, c);
    }
}

TEST(resident_wins_when_queues_are_equal)
{
    uint64_t seed = 3;
    for (int i = 0; i < 10000; i++) {
        struct pol_route_target t[8];
        struct pol_route_in in = {.target = t,
                                  .n = 8,
                                  .balance = POL_BALANCE_RESIDENT,
                                  .affinity = test_rand(&seed),
                                  .prompt_tokens = 4000,
                                  .random = test_rand(&seed)};
        size_t holder = test_rand(&seed) % 8;
        uint64_t queued = test_rand(&seed) % 9000;
        for (size_t k = 0; k < 8; k++)
            t[k] = (struct pol_route_target){.weight = 1,
                                             .n_inflight = 3,
                                             .queued_tokens = queued,
                                             .resident_tokens = k == holder ? 600 : k * 50,
                                             .id = k * 77};
        struct pol_route r = pol_route(&in);
        ASSERT_EQ(r.chosen, holder);
        ASSERT_STREQ(r.reason, "resident");
        t[holder].queued_tokens += 4000; /* more than all the prompt can save */
        r = pol_route(&in);
        ASSERT_TRUE(r.chosen != holder);
        t[holder].queued_tokens = 0;
        t[holder].n_inflight = 3 + 9;
        r = pol_route(&in);
        ASSERT_TRUE(r.chosen != holder);
        ASSERT_STREQ(r.reason, "skew");
    }
}

TEST(ties_go_by_affinity_then_at_random)
{
    struct pol_route_target t[4];
    uint64_t seed = 4, n_random[4] = {0};
    for (size_t k = 0; k < 4; k++)
        t[k] = (struct pol_route_target){.weight = 1, .id = 1000 + k};
    for (int i = 0; i < 2000; i++) {
        struct pol_route_in in = {t, 4, POL_BALANCE_RESIDENT, test_rand(&seed), 500, 0};
        in.random = test_rand(&seed);
        struct pol_route r = pol_route(&in);
        ASSERT_STREQ(r.reason, "new");
        in.random = test_rand(&seed);
        ASSERT_EQ(pol_route(&in).chosen, r.chosen);
        in.affinity = 0;
        n_random[pol_route(&in).chosen]++;
    }
    for (size_t k = 0; k < 4; k++)
        ASSERT_TRUE(n_random[k] > 400 && n_random[k] < 600);
}

/* A target that comes or goes moves only its own share. */
TEST(affinity_is_stable_and_bounded)
{
    struct pol_route_target t[5];
    uint64_t seed = 5;
    unsigned n_moved = 0;
    for (size_t k = 0; k < 5; k++)
        t[k] = (struct pol_route_target){.weight = 1, .id = test_rand(&seed)};
    for (int i = 0; i < 10000; i++) {
        struct pol_route_in in = {t, 5, POL_BALANCE_AFFINITY, test_rand(&seed) | 1, 100, 0};
        size_t with = pol_route(&in).chosen;
        in.random = test_rand(&seed);
        ASSERT_EQ(pol_route(&in).chosen, with);
        in.n = 4;
        size_t without = pol_route(&in).chosen;
        if (with < 4) ASSERT_EQ(without, with);
        n_moved += with == 4;
        in.n = 5;
        t[with].n_inflight = 30;
        struct pol_route r = pol_route(&in);
        ASSERT_TRUE(r.chosen != with);
        ASSERT_STREQ(r.reason, "bound");
        t[with].n_inflight = 0;
    }
    ASSERT_TRUE(n_moved > 1800 && n_moved < 2200);
}

TEST(affinity_never_exceeds_its_bound)
{
    struct pol_route_target t[8] = {0};
    uint64_t seed = 6;
    for (size_t k = 0; k < 8; k++)
        t[k] = (struct pol_route_target){.weight = 1, .id = test_rand(&seed)};
    for (unsigned n = 1; n <= 4000; n++) { /* nobody ever ends: all ask for the same beginning */
        struct pol_route_in in = {t, 8, POL_BALANCE_AFFINITY, 42, 100, 0};
        size_t c = pol_route(&in).chosen;
        t[c].n_inflight++;
        double bound = ceil(1.25 * n / 8);
        ASSERT_TRUE(t[c].n_inflight <= (bound < 4 ? 4 : bound));
    }
}

TEST(weights_are_honoured)
{
    static const double weight[4] = {1, 2, 3, 6};
    static const enum pol_balance balance[2] = {POL_BALANCE_LEAST, POL_BALANCE_AFFINITY};
    uint64_t seed = 7;
    for (int b = 0; b < 2; b++) {
        struct pol_route_target t[4];
        unsigned n[4] = {0};
        for (size_t k = 0; k < 4; k++)
            t[k] = (struct pol_route_target){.weight = weight[k], .id = test_rand(&seed)};
        for (int i = 0; i < 60000; i++) { /* idle targets: one request after the other */
            struct pol_route_in in = {t, 4, balance[b], test_rand(&seed) | 1, 100, 0};
            in.random = test_rand(&seed);
            n[pol_route(&in).chosen]++;
        }
        for (size_t k = 0; k < 4; k++) /* five standard deviations of a binomial are below 600 */
            ASSERT_NEAR(n[k], 60000 * weight[k] / 12, 600);
    }
}

/* ---- a small world: workers with a queue and a bounded memory of chunks ---- */

enum { WORKERS = 8, CHUNKS = 4000, HELD_MAX = 900, PER_PROMPT = 6, FLIGHT_MAX = 4096 };
enum { CHUNK_TOKENS = 400, QUESTION_TOKENS = 60 };
struct flight {
    double ends;
    uint64_t tokens;
};
struct sim_worker {
    double speed, free_at;
    struct flight flight[FLIGHT_MAX]; /* a ring, first come first served */
    unsigned head, n;
    uint64_t queued, n_requests, n_held;
    uint64_t used[CHUNKS]; /* 0: not held */
    unsigned held[HELD_MAX];
};
struct sim {
    struct sim_worker w[WORKERS];
    uint64_t clock, resident, prompt;
    double now, worst_wait, wait;
};

static void settle(struct sim_worker *w, double now)
{
    while (w->n > 0 && w->flight[w->head].ends <= now) {
        w->queued -= w->flight[w->head].tokens;
        w->head = (w->head + 1) % FLIGHT_MAX;
        w->n--;
    }
}

/* The one used longest ago of a sample makes way: as good as LRU here, and fast. */
static void hold(struct sim *s, struct sim_worker *w, unsigned chunk, uint64_t *seed)
{
    if (!w->used[chunk]) {
        size_t at = w->n_held;
        if (w->n_held == HELD_MAX) {
            at = test_rand(seed) % HELD_MAX;
            for (int i = 0; i < 8; i++) {
                size_t other = test_rand(seed) % HELD_MAX;
                if (w->used[w->held[other]] < w->used[w->held[at]]) at = other;
            }
            w->used[w->held[at]] = 0;
        } else {
            w->n_held++;
        }
        w->held[at] = chunk;
    }
    w->used[chunk] = ++s->clock;
}

static void ask(struct sim *s, const unsigned *chunk, int balance, uint64_t *seed)
{
    struct pol_route_target t[WORKERS];
    uint64_t prompt = PER_PROMPT * CHUNK_TOKENS + QUESTION_TOKENS;
    for (size_t k = 0; k < WORKERS; k++) {
        settle(&s->w[k], s->now);
        t[k] = (struct pol_route_target){s->w[k].speed, s->w[k].n, s->w[k].queued, 0, k + 1};
        for (int i = 0; i < PER_PROMPT; i++)
            if (s->w[k].used[chunk[i]]) t[k].resident_tokens += CHUNK_TOKENS;
    }
    struct pol_route_in in = {t, WORKERS, POL_BALANCE_LEAST, 0, prompt, test_rand(seed)};
    if (balance >= 0) in.balance = (enum pol_balance)balance;
    size_t c = balance < 0 ? test_rand(seed) % WORKERS : pol_route(&in).chosen;
    struct sim_worker *w = &s->w[c];
    uint64_t left = prompt - t[c].resident_tokens;
    double begin = w->free_at > s->now ? w->free_at : s->now;
    w->free_at = begin + (double)left / w->speed;
    ASSERT_TRUE(w->n < FLIGHT_MAX);
    w->flight[(w->head + w->n++) % FLIGHT_MAX] = (struct flight){w->free_at, left};
    w->queued += left;
    w->n_requests++;
    for (int i = 0; i < PER_PROMPT; i++)
        hold(s, w, chunk[i], seed);
    s->resident += t[c].resident_tokens;
    s->prompt += prompt;
    s->wait += begin - s->now;
    if (begin - s->now > s->worst_wait) s->worst_wait = begin - s->now;
}

/* Chunks by a skewed popularity; chunk 0 is in `popular` per mille of all prompts. */
static void play(struct sim *s, int balance, unsigned n_requests, unsigned popular, double gap)
{
    uint64_t seed = 99;
    memset(s, 0, sizeof *s);
    for (size_t k = 0; k < WORKERS; k++)
        s->w[k].speed = 1;
    for (unsigned i = 0; i < n_requests; i++) {
        unsigned chunk[PER_PROMPT];
        for (int k = 0; k < PER_PROMPT; k++) {
            double u = (double)(test_rand(&seed) >> 11) * 0x1p-53;
            chunk[k] = 1 + (unsigned)((CHUNKS - 1) * u * u * u);
        }
        if (test_rand(&seed) % 1000 < popular) chunk[0] = 0;
        s->now += -log(((double)(test_rand(&seed) >> 11) + 0.5) * 0x1p-53) * gap;
        ask(s, chunk, balance, &seed);
    }
}

static double max_over_mean(const struct sim *s)
{
    uint64_t max = 0, sum = 0;
    for (size_t k = 0; k < WORKERS; k++) {
        sum += s->w[k].n_requests;
        if (s->w[k].n_requests > max) max = s->w[k].n_requests;
    }
    return (double)max * WORKERS / (double)sum;
}

static struct sim by_random, by_least, by_resident;

static void report(const char *name, const struct sim *s, unsigned n)
{
    (void)printf("  %-9s max/mean %.3f  resident %.3f  mean wait %.0f  worst %.0f tokens\n", name,
                 max_over_mean(s), (double)s->resident / (double)s->prompt, s->wait / n,
                 s->worst_wait);
}

TEST(a_hundred_thousand_requests)
{
    enum { N = 100000 };
    double gap = 2000.0 / WORKERS; /* what random can just about serve */
    play(&by_random, -1, N, 700, gap);
    play(&by_least, POL_BALANCE_LEAST, N, 700, gap);
    play(&by_resident, POL_BALANCE_RESIDENT, N, 700, gap);
    report("random", &by_random, N);
    report("least", &by_least, N);
    report("resident", &by_resident, N);
    double share = (double)by_resident.resident / (double)by_resident.prompt;
    ASSERT_TRUE(share > 1.1 * (double)by_random.resident / (double)by_random.prompt);
    ASSERT_TRUE(share > 1.1 * (double)by_least.resident / (double)by_least.prompt);
    ASSERT_TRUE(max_over_mean(&by_resident) < 1.5);
    ASSERT_TRUE(by_resident.wait < by_least.wait);
    for (size_t k = 0; k < WORKERS; k++)
        ASSERT_TRUE(by_resident.w[k].n_requests > N / WORKERS / 4);
}

/* Everybody asks for the same document, faster than one worker can answer. */
TEST(a_popular_chunk_drowns_nobody)
{
    enum { N = 20000 };
    play(&by_resident, POL_BALANCE_RESIDENT, N, 1000, 900.0 / WORKERS);
    ASSERT_TRUE(max_over_mean(&by_resident) < 1.5);
    for (size_t k = 0; k < WORKERS; k++)
        ASSERT_TRUE(by_resident.w[k].n_requests > N / WORKERS / 4);
}
