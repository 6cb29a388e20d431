#include "gateway/fleet/residency.h"
#include "base/err.h"
#include "base/mem.h"
#include "tests/test.h"

#include <pthread.h>

static uint64_t tokens_of(struct gw_directory *d, uint64_t text, unsigned target)
{
    uint64_t t[8];
    gw_directory_resident(d, &text, 1, t, 8);
    return t[target];
}

TEST(put_sum_drop_forget)
{
    struct gw_directory *d;
    uint64_t ids[] = {11, 22, 33, 11 << 20}, t[4];
    ASSERT_OK(gw_directory_create(1 << 20, &d));
    ASSERT_OK(gw_directory_put(d, 0, 11, 500, 0));
    ASSERT_OK(gw_directory_put(d, 0, 22, 300, 0.5));
    ASSERT_OK(gw_directory_put(d, 2, 22, 300, 0));
    ASSERT_OK(gw_directory_put(d, 3, 33, 400, 1));
    ASSERT_ERR(gw_directory_put(d, 256, 33, 400, 1), -ERANGE);
    ASSERT_EQ(gw_directory_count(d), 4);
    gw_directory_resident(d, ids, 4, t, 4);
    ASSERT_EQ(t[0], 650);
    ASSERT_EQ(t[1], 0);
    ASSERT_EQ(t[2], 300);
    ASSERT_EQ(t[3], 0);                            /* there, but no better than computing */
    ASSERT_OK(gw_directory_put(d, 0, 22, 310, 0)); /* it moved up, and counts once */
    ASSERT_EQ(gw_directory_count(d), 4);
    gw_directory_drop(d, 0, 11);
    gw_directory_drop(d, 0, 11);
    gw_directory_drop(d, 7, 99);
    gw_directory_resident(d, ids, 4, t, 4);
    ASSERT_EQ(t[0], 310);
    gw_directory_forget(d, 0);
    ASSERT_EQ(gw_directory_count(d), 2);
    gw_directory_resident(d, ids, 4, t, 4);
    ASSERT_EQ(t[0], 0);
    ASSERT_EQ(t[2], 300);
    ASSERT_OK(gw_directory_put(d, 0, 22, 320, 0)); /* it came back */
    ASSERT_EQ(tokens_of(d, 22, 0), 320);
    gw_directory_resident(d, ids, 4, t, 1); /* fewer targets than are known */
    ASSERT_EQ(t[0], 320);
    gw_directory_destroy(d);
    gw_directory_destroy(NULL);
}

TEST(what_was_seen_longest_ago_goes)
{
    struct gw_directory *d;
    ASSERT_OK(gw_directory_create(1, &d)); /* the least there is: 64 */
    for (uint64_t i = 1; i <= 64; i++)
        ASSERT_OK(gw_directory_put(d, i % 3, i, 10, 0));
    ASSERT_EQ(gw_directory_count(d), 64);
    ASSERT_EQ(tokens_of(d, 1, 1), 10); /* a request asked for it */
    ASSERT_OK(gw_directory_put(d, 0, 1000, 10, 0));
    ASSERT_EQ(gw_directory_count(d), 64);
    ASSERT_EQ(tokens_of(d, 1, 1), 10);
    ASSERT_EQ(tokens_of(d, 2, 2), 0);
    gw_directory_destroy(d);
}

/* Against a table without a bound: never more than that has, and the same as long as it fits. */
TEST(as_a_plain_table)
{
    enum { IDS = 200, TARGETS = 6 };
    static uint32_t plain[TARGETS][IDS];
    struct gw_directory *d;
    uint64_t seed = 3, t[TARGETS];
    memset(plain, 0, sizeof plain);
    ASSERT_OK(gw_directory_create(256 << 10, &d));
    for (int i = 0; i < 200000; i++) {
        unsigned target = test_rand(&seed) % TARGETS;
        uint64_t id = test_rand(&seed) % IDS, what = test_rand(&seed) % 1000;
        uint64_t text = id << 32 | id;
        if (what < 600) {
            plain[target][id] = 1 + (uint32_t)(what % 500);
            ASSERT_OK(gw_directory_put(d, target, text, plain[target][id], 0));
        } else if (what < 998) {
            plain[target][id] = 0;
            gw_directory_drop(d, target, text);
        } else {
            memset(plain[target], 0, sizeof plain[target]);
            gw_directory_forget(d, target);
        }
        if (i % 50) continue;
        size_t n = 0;
        for (unsigned k = 0; k < TARGETS; k++)
            for (int m = 0; m < IDS; m++)
                n += plain[k][m] > 0;
        ASSERT_EQ(gw_directory_count(d), n);
        gw_directory_resident(d, &text, 1, t, TARGETS);
        for (unsigned k = 0; k < TARGETS; k++)
            ASSERT_EQ(t[k], plain[k][id]);
    }
    gw_directory_destroy(d);
}

static void *churn(void *arg)
{
    struct gw_directory *d = arg;
    uint64_t seed = (uint64_t)(uintptr_t)&seed, t[8];
    for (int i = 0; i < 20000; i++) {
        uint64_t id = test_rand(&seed) % 300;
        unsigned target = test_rand(&seed) % 8;
        (void)gw_directory_put(d, target, id, 5, 0);
        gw_directory_resident(d, &id, 1, t, 8);
        if (i % 3 == 0) gw_directory_drop(d, target, id);
        if (i % 1000 == 0) gw_directory_forget(d, target);
    }
    return NULL;
}

TEST(many_threads)
{
    struct gw_directory *d;
    pthread_t t[4];
    ASSERT_OK(gw_directory_create(8 << 10, &d));
    for (int i = 0; i < 4; i++)
        ASSERT_EQ(pthread_create(&t[i], NULL, churn, d), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    ASSERT_TRUE(gw_directory_count(d) <= 300 * 8);
    gw_directory_destroy(d);
}

TEST(out_of_memory)
{
    struct gw_directory *d;
    for (unsigned n = 1; n <= 3; n++) {
        mem_fail_nth(n);
        ASSERT_ERR(gw_directory_create(1 << 20, &d), -ENOMEM);
    }
    mem_fail_nth(0);
}
