#include "tests/test.h"
#include "tiers/quota.h"

static const struct quota_cell *cell_of(const struct quota *q, uint64_t ns_hash)
{
    for (size_t i = 0; i < sizeof q->cell / sizeof *q->cell; i++)
        if (q->cell[i].cap_bytes && q->cell[i].ns_hash == ns_hash) return &q->cell[i];
    return NULL;
}

static uint64_t cap_of(const struct quota *q, uint64_t ns_hash)
{
    const struct quota_cell *c = cell_of(q, ns_hash);
    return c ? c->cap_bytes : 0;
}

/* Of the namespace if it has a cap, else of all that have none. */
static uint64_t used_of(const struct quota *q, uint64_t ns_hash)
{
    const struct quota_cell *c = cell_of(q, ns_hash);
    return c ? c->used_bytes : q->rest_bytes;
}

TEST(a_cap_is_told_in_bytes_that_must_go)
{
    static struct quota q;
    memset(&q, 0, sizeof q);
    ASSERT_EQ(quota_over(&q, 1, 1000), 0);
    quota_charge(&q, 1, 70);
    quota_charge(&q, 2, 30);
    ASSERT_EQ(used_of(&q, 1), 100); /* nobody has a cap: one sum */
    ASSERT_OK(quota_set(&q, 1, 100, 70));
    ASSERT_EQ(cap_of(&q, 1), 100);
    ASSERT_EQ(used_of(&q, 1), 70);
    ASSERT_EQ(used_of(&q, 2), 30);
    ASSERT_EQ(quota_over(&q, 1, 30), 0);
    ASSERT_EQ(quota_over(&q, 1, 31), 1);
    ASSERT_EQ(quota_over(&q, 1, 100), 70);
    ASSERT_TRUE(quota_over(&q, 1, 101) == UINT64_MAX);
    ASSERT_EQ(quota_over(&q, 2, 1 << 30), 0);
    ASSERT_OK(quota_set(&q, 1, 50, 12345)); /* lowered: its count stays */
    ASSERT_EQ(quota_over(&q, 1, 0), 20);
    quota_refund(&q, 1, 40);
    ASSERT_EQ(quota_over(&q, 1, 20), 0);
    ASSERT_OK(quota_set(&q, 1, 0, 0));
    ASSERT_EQ(cap_of(&q, 1), 0);
    ASSERT_EQ(used_of(&q, 1), 60);
    ASSERT_OK(quota_set(&q, 1, 0, 0));
}

TEST(the_table_is_full_at_its_limit)
{
    static struct quota q;
    memset(&q, 0, sizeof q);
    for (uint64_t i = 0; i < QUOTA_NAMESPACES_MAX; i++)
        ASSERT_OK(quota_set(&q, i << 40, 10, 0));
    ASSERT_ERR(quota_set(&q, 7, 10, 0), -ENOSPC);
    ASSERT_OK(quota_set(&q, 1ull << 40, 20, 0));
    ASSERT_OK(quota_set(&q, 5ull << 40, 0, 0));
    ASSERT_OK(quota_set(&q, 7, 10, 0));
}

/* Against plain arrays, with so many namespaces that cells come and go. */
TEST(accounts_agree_with_arrays)
{
    enum { NAMESPACES = 300 };
    static struct quota q;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        uint64_t rand = seed, ns[NAMESPACES], used[NAMESPACES] = {0}, cap[NAMESPACES] = {0};
        size_t n = 0;
        memset(&q, 0, sizeof q);
        for (int i = 0; i < NAMESPACES; i++)
            ns[i] = i ? test_rand(&rand) : 0;
        for (int step = 0; step < 20000; step++) {
            uint64_t r = test_rand(&rand), bytes = 1 + (r >> 32) % 1000;
            int i = (int)((r >> 8) % NAMESPACES);
            switch (r % 8) {
            case 0:
                if (!cap[i] && n == QUOTA_NAMESPACES_MAX) {
                    ASSERT_ERR(quota_set(&q, ns[i], bytes, used[i]), -ENOSPC);
                    break;
                }
                n += !cap[i];
                cap[i] = bytes;
                ASSERT_OK(quota_set(&q, ns[i], bytes, used[i]));
                break;
            case 1:
                n -= cap[i] != 0;
                cap[i] = 0;
                ASSERT_OK(quota_set(&q, ns[i], 0, 0));
                break;
            case 2:
            case 3:
            case 4:
                used[i] += bytes;
                quota_charge(&q, ns[i], bytes);
                break;
            default:
                if (bytes > used[i]) bytes = used[i];
                used[i] -= bytes;
                quota_refund(&q, ns[i], bytes);
            }
            uint64_t rest = 0;
            for (int k = 0; step % 256 == 0 && k < NAMESPACES; k++) {
                rest += cap[k] ? 0 : used[k];
                ASSERT_EQ(cap_of(&q, ns[k]), cap[k]);
                if (cap[k]) ASSERT_EQ(used_of(&q, ns[k]), used[k]);
            }
            if (step % 256 == 0) ASSERT_EQ(q.rest_bytes, rest);
            ASSERT_EQ(q.n, n);
        }
    }
}
