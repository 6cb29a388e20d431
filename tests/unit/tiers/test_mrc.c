/* The curve beside a plain LRU list of every size; tools/bench/mrc.c measures it on traces. */
#include "tests/test.h"

#include "base/mem.h"
#include "base/rng.h"
#include "tiers/mrc.h"

#include <pthread.h>

enum { KEYS = 600, LOOK_UPS = 40000 };

static struct tier_key key_of(uint64_t i)
{
    return (struct tier_key){i, 0};
}

static struct mrc *make(uint32_t sample_max, uint64_t half_life)
{
    struct mrc *m = NULL;
    ASSERT_OK(mrc_create(sample_max, half_life, &m));
    return m;
}

static struct mrc_stats stats_of(struct mrc *m)
{
    struct mrc_stats s;
    mrc_get_stats(m, &s);
    return s;
}

/* Look-ups whose popularity falls with the key; sizes are of 1 to 8 units of 100 bytes. */
static uint64_t draw(struct rng *r)
{
    const double u = rng_unit(r);
    return (uint64_t)(KEYS * u * u);
}

static uint32_t size_of(uint64_t key)
{
    return (uint32_t)(key * 7 % 8 + 1) * 100;
}

/* The share of tokens found by a list that has the most recently used in front. */
static double found_by_list(uint64_t room, uint64_t seed)
{
    static uint64_t list[KEYS];
    struct rng r = {seed};
    double all = 0, found = 0;
    size_t n = 0;
    for (unsigned k = 0; k < LOOK_UPS; k++) {
        const uint64_t key = draw(&r);
        uint64_t above = 0;
        size_t i = 0;
        while (i < n && list[i] != key)
            above += size_of(list[i++]);
        all += size_of(key);
        if (i < n && above + size_of(key) <= room) found += size_of(key);
        if (i == n) n++;
        memmove(list + 1, list, i * sizeof *list);
        list[0] = key;
    }
    return found / all;
}

static void look_up_all(struct mrc *m, uint64_t seed, uint64_t first_key)
{
    struct rng r = {seed};
    for (unsigned k = 0; k < LOOK_UPS; k++) {
        const uint64_t key = draw(&r);
        const struct tier_key id = key_of(first_key + key);
        mrc_look_up(m, &id, size_of(key), size_of(key));
    }
}

TEST(nothing_is_found_before_the_first_look_up_nor_by_it)
{
    struct mrc *m = make(8, 0);
    const struct tier_key k = key_of(1);
    ASSERT_NEAR(mrc_found(m, UINT64_MAX), 0, 0);
    mrc_look_up(m, &k, 10, 100);
    ASSERT_NEAR(mrc_found(m, UINT64_MAX), 0, 0);
    mrc_look_up(m, &k, 10, 100);
    ASSERT_NEAR(mrc_found(m, 200), 0.5, 1e-9);
    ASSERT_NEAR(mrc_found(m, 90), 0, 0); /* it would not fit */
    ASSERT_EQ(stats_of(m).look_ups, 2);
    ASSERT_NEAR(stats_of(m).distinct_bytes, 100, 0);
    mrc_destroy(m);
}

TEST(all_records_followed_is_the_list_itself)
{
    struct mrc *m = make(KEYS, 0);
    look_up_all(m, 7, 0);
    ASSERT_NEAR(stats_of(m).rate, 1, 0);
    for (uint64_t room = 1000; room < 400000; room = room * 3 / 2)
        ASSERT_NEAR(mrc_found(m, room), found_by_list(room, 7), 0.005); /* of a bucket's line */
    mrc_destroy(m);
}

/* 300 records of 600, of which few hot ones are looked up half of the time: one sample is off by
 * some points, the mean of many is not. */
TEST(samples_are_right_in_the_mean_and_never_fall)
{
    enum { ROOMS = 8, SEEDS = 20 };
    double error[ROOMS] = {0};
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct mrc *m = make(KEYS / 2, 0);
        double last = 0;
        look_up_all(m, seed, seed << 32);
        ASSERT_TRUE(stats_of(m).rate < 0.6 && stats_of(m).n_sampled <= KEYS / 2);
        ASSERT_NEAR(stats_of(m).distinct_bytes / 270000, 1, 0.15);
        for (unsigned i = 0; i < ROOMS; i++) {
            const uint64_t room = 30000u * (i + 1);
            const double share = mrc_found(m, room), off = share - found_by_list(room, seed);
            ASSERT_NEAR(off, 0, 0.25);
            ASSERT_TRUE(share >= last && share <= 1);
            error[i] += off / SEEDS;
            last = share;
        }
        mrc_destroy(m);
    }
    for (unsigned i = 0; i < ROOMS; i++)
        ASSERT_NEAR(error[i], 0, 0.03);
}

TEST(old_traffic_is_forgotten_and_the_sample_recovers)
{
    struct mrc *m = make(64, 1000);
    for (uint64_t k = 0; k < 20000; k++) { /* never twice the same: the rate falls */
        const struct tier_key id = key_of(k);
        mrc_look_up(m, &id, 10, 10);
    }
    ASSERT_TRUE(stats_of(m).rate < 0.2);
    ASSERT_NEAR(mrc_found(m, UINT64_MAX), 0, 0.01);
    for (unsigned k = 0; k < 20000; k++) { /* twenty records again and again */
        const struct tier_key id = key_of(1000000 + k % 20);
        mrc_look_up(m, &id, 10, 10);
    }
    ASSERT_NEAR(stats_of(m).rate, 1, 0);
    ASSERT_EQ(stats_of(m).n_sampled, 20);
    ASSERT_NEAR(stats_of(m).distinct_bytes, 200, 0);
    ASSERT_TRUE(mrc_found(m, 220) > 0.99);
    ASSERT_NEAR(mrc_found(m, 150), 0, 0.01);
    ASSERT_EQ(stats_of(m).look_ups, 40000);
    mrc_destroy(m);
}

TEST(a_record_may_change_its_size)
{
    struct mrc *m = make(8, 0);
    const struct tier_key a = key_of(1), b = key_of(2);
    mrc_look_up(m, &a, 10, 100);
    mrc_look_up(m, &b, 10, 1000);
    mrc_look_up(m, &b, 10, 50);
    mrc_look_up(m, &a, 10, 100);
    ASSERT_NEAR(stats_of(m).distinct_bytes, 150, 0);
    ASSERT_NEAR(mrc_found(m, 170), 0.5, 1e-9);
    mrc_destroy(m);
}

static void *look_up_mine(void *arg)
{
    look_up_all(arg, 3, 0);
    return NULL;
}

TEST(threads_look_up_at_once)
{
    struct mrc *m = make(100, 500);
    pthread_t t[4];
    for (size_t i = 0; i < 4; i++)
        ASSERT_EQ(pthread_create(&t[i], NULL, look_up_mine, m), 0);
    for (size_t i = 0; i < 4; i++)
        (void)pthread_join(t[i], NULL);
    ASSERT_EQ(stats_of(m).look_ups, 4 * LOOK_UPS);
    mrc_destroy(m);
}

TEST(without_memory_there_is_none)
{
    for (int n = 1; n <= 6; n++) {
        struct mrc *m = NULL;
        mem_fail_nth(n);
        const int r = mrc_create(8, 0, &m);
        mem_fail_nth(0);
        ASSERT_EQ(r, -ENOMEM);
        ASSERT_TRUE(m == NULL);
    }
    mrc_destroy(make(8, 0));
    mrc_destroy(NULL);
}
