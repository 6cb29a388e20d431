/* The fleet simulation against what can be known without it. */
#include "tests/test.h"

#include "tools/bench/figures.h"
#include "tools/bench/fleet_sim.h"

#include "base/mem.h"
#include "base/rng.h"

#include <errno.h>

enum { CHUNK = 512, K = 6 };

static struct fleet_opts plain(void)
{
    return (struct fleet_opts){.n_workers = 1,
                               .cost = {.fixed_s = 0.003,
                                        .layer_s = 2e-4,
                                        .row_s = 2.8e-5,
                                        .kv_row_s = 1.7e-6,
                                        .pair_s = 6e-9,
                                        .place_s = 1e-7,
                                        .mass_s = 5e-9,
                                        .head_s = 0.003},
                               .strategy = POL_QS,
                               .ratio = 0.15,
                               .ram_bytes = 1ull << 30,
                               .nvme_bytes = 8ull << 30,
                               .redis_bytes = 64ull << 30,
                               .n_shards = 4};
}

static void make(struct fleet_load *l, uint32_t n_docs, size_t n, double rate)
{
    *l = (struct fleet_load){.n = n,
                             .k = K,
                             .n_docs = n_docs,
                             .chunk_tokens = CHUNK,
                             .suffix_tokens = 32,
                             .answer_tokens = 4};
    ASSERT_OK(fleet_load_make(l, rate, 0.7, 5));
}

static uint64_t total(const struct fleet_result *t)
{
    uint64_t sum = 0;
    for (int i = 0; i < FLEET_PLACES; i++)
        sum += t->from[i];
    return sum;
}

/* A queue with one server: the mean wait is known, for equal work and for work of any spread
 * (Pollaczek, Khinchine). */
static void check_queue(double load, bool equal)
{
    const double work_s = 0.5;
    struct rng rng = {11};
    struct fleet_load l;
    const struct fleet_opts o = plain();
    struct fleet_result t;
    double sum = 0;
    make(&l, 50, 120000, load / work_s);
    l.prefill_s = mem_alloc(l.n * sizeof *l.prefill_s);
    ASSERT_TRUE(l.prefill_s != NULL);
    for (size_t i = 0; i < l.n; i++) {
        l.prefill_s[i] = equal ? work_s : rng_exp(&rng, work_s);
        sum -= l.prefill_s[i];
    }
    ASSERT_OK(fleet_run(&o, &l, &t));
    ASSERT_EQ(t.n, l.n);
    for (size_t i = 0; i < t.n; i++)
        sum += t.ttft_ms[i] / 1e3;
    const double want = load * work_s / (1 - load) / (equal ? 2 : 1);
    ASSERT_NEAR(sum / (double)t.n / want, 1, 0.1);
    ASSERT_NEAR(t.busy_share, load, 0.02);
    mem_free(t.ttft_ms);
    fleet_load_fini(&l);
}

TEST(one_worker_is_the_queue_of_the_textbook)
{
    for (double load = 0.3; load < 0.95; load += 0.3) {
        check_queue(load, true);
        check_queue(load, false);
    }
}

TEST(the_same_seed_gives_the_same_fleet)
{
    struct fleet_load l;
    struct fleet_result a, b;
    struct fleet_opts o = plain();
    o.n_workers = 5;
    o.routing = FLEET_RESIDENT;
    make(&l, 800, 3000, 5);
    ASSERT_OK(fleet_run(&o, &l, &a));
    ASSERT_OK(fleet_run(&o, &l, &b));
    ASSERT_EQ(a.n, b.n);
    ASSERT_MEMEQ(a.ttft_ms, b.ttft_ms, a.n * sizeof *a.ttft_ms);
    ASSERT_MEMEQ(a.from, b.from, sizeof a.from);
    mem_free(a.ttft_ms);
    mem_free(b.ttft_ms);
    fleet_load_fini(&l);
}

TEST(every_chunk_came_from_somewhere_and_tiers_that_hold_all_are_enough)
{
    struct fleet_load l;
    struct fleet_result t;
    struct fleet_opts o = plain();
    make(&l, 60, 2000, 0.7); /* 60 documents of 11 MiB fit into a GiB */
    ASSERT_OK(fleet_run(&o, &l, &t));
    ASSERT_EQ(total(&t), (uint64_t)K * t.n);
    ASSERT_EQ(t.from[FLEET_RAM], total(&t));
    mem_free(t.ttft_ms);
    o.ram_bytes = 200ull << 20;
    ASSERT_OK(fleet_run(&o, &l, &t));
    ASSERT_TRUE(t.from[FLEET_NVME] > t.from[FLEET_REDIS] && t.from[FLEET_NVME] > 0);
    ASSERT_EQ(t.from[FLEET_COMPUTED], 0);
    mem_free(t.ttft_ms);
    o.strategy = POL_FULL;
    ASSERT_OK(fleet_run(&o, &l, &t));
    ASSERT_EQ(t.from[FLEET_COMPUTED], total(&t));
    mem_free(t.ttft_ms);
    fleet_load_fini(&l);
}

/* Cold, and busier than exact prefills allow: chunks that are missed twice are built all the same,
 * or the fleet would never get fast. */
TEST(a_cold_fleet_under_load_gets_warm)
{
    struct fleet_load l;
    struct fleet_result t;
    struct fleet_opts o = plain();
    o.cold = true;
    o.max_queue = 16;
    make(&l, 60, 4000, 0.6);
    ASSERT_OK(fleet_run(&o, &l, &t));
    ASSERT_TRUE((double)t.from[FLEET_RAM] > 0.95 * (double)total(&t));
    ASSERT_TRUE(t.n_shed < t.n / 20);
    mem_free(t.ttft_ms);
    fleet_load_fini(&l);
}

static double local(const struct fleet_result *t)
{
    return (double)(t->from[FLEET_RAM] + t->from[FLEET_NVME]);
}

/* NVMe too small for all: what is near differs from worker to worker. */
TEST(residence_finds_more_nearby_than_chance_and_none_is_drowned)
{
    struct fleet_load l;
    struct fleet_result by[FLEET_ROUTINGS];
    struct fleet_opts o = plain();
    o.n_workers = 8;
    o.nvme_bytes = 2ull << 30;
    make(&l, 600, 6000, 7);
    for (int i = 0; i < FLEET_ROUTINGS; i++) {
        o.routing = (enum fleet_routing)i;
        ASSERT_OK(fleet_run(&o, &l, &by[i]));
        ASSERT_EQ(by[i].n + by[i].n_shed, (size_t)(0.7 * 6000));
    }
    ASSERT_TRUE(local(&by[FLEET_RESIDENT]) > local(&by[FLEET_RANDOM]) * 1.2);
    ASSERT_TRUE(bench_quantile(by[FLEET_RESIDENT].ttft_ms, by[FLEET_RESIDENT].n, 0.95) <
                bench_quantile(by[FLEET_RANDOM].ttft_ms, by[FLEET_RANDOM].n, 0.95));
    ASSERT_TRUE(by[FLEET_RESIDENT].skew < 1.2);
    ASSERT_TRUE(by[FLEET_RESIDENT].redis_bytes_per_s < by[FLEET_RANDOM].redis_bytes_per_s);
    for (int i = 0; i < FLEET_ROUTINGS; i++)
        mem_free(by[i].ttft_ms);
    fleet_load_fini(&l);
}

TEST(bad_input_is_refused)
{
    struct fleet_load l = {.n = 10, .k = K, .n_docs = 3};
    struct fleet_result t;
    struct fleet_opts o = plain();
    ASSERT_ERR(fleet_load_make(&l, 1, 0, 1), -EINVAL);
    make(&l, 20, 10, 1);
    o.n_workers = 0;
    ASSERT_ERR(fleet_run(&o, &l, &t), -EINVAL);
    fleet_load_fini(&l);
}
