/* The arena against a model that is a byte per page. */
#include "base/err.h"
#include "base/mem.h"
#include "tests/test.h"
#include "tiers/pool.h"

enum { PAGE = POOL_PAGE_BYTES, PAGES = 3000, HELD_MAX = 600 };

/* Of the free extents. */
static uint64_t largest_bytes(const struct pool *p)
{
    uint64_t best = 0;
    for (unsigned b = 0; b < POOL_BINS; b++)
        for (uint32_t i = p->bin[b]; i != UINT32_MAX; i = p->node[i].next)
            if (p->node[i].len > best) best = p->node[i].len;
    return best * POOL_PAGE_BYTES;
}

struct held {
    uint8_t *at;
    uint32_t pages;
    uint8_t fill;
};
struct model {
    uint8_t owner[4 * PAGES]; /* 0 = free */
    struct held held[HELD_MAX];
    int n;
    uint64_t pages;
};

static void check(const struct pool *p, const struct model *m)
{
    uint64_t used = 0, run = 0, largest = 0;
    for (uint64_t i = 0; i < m->pages; i++) {
        used += m->owner[i];
        run = m->owner[i] ? 0 : run + 1;
        largest = run > largest ? run : largest;
    }
    ASSERT_EQ(p->used_bytes, used * PAGE);
    ASSERT_EQ(largest_bytes(p), largest * PAGE); /* neighbours are joined */
}

static void take(struct pool *p, struct model *m, uint32_t pages, uint64_t *rng)
{
    uint64_t room = largest_bytes(p);
    uint8_t *at = pool_alloc(p, (uint64_t)pages * PAGE);
    ASSERT_EQ(at != NULL, room >= (uint64_t)pages * PAGE); /* refused only if nothing fits */
    if (!at) return;
    uint64_t first = (uint64_t)(at - p->base) / PAGE;
    ASSERT_TRUE(first + pages <= m->pages);
    for (uint32_t i = 0; i < pages; i++) {
        ASSERT_EQ(m->owner[first + i], 0);
        m->owner[first + i] = 1;
    }
    uint8_t fill = (uint8_t)test_rand(rng);
    at[0] = at[(uint64_t)pages * PAGE - 1] = fill;
    m->held[m->n++] = (struct held){at, pages, fill};
}

static void give(struct pool *p, struct model *m, int i)
{
    struct held h = m->held[i];
    uint64_t first = (uint64_t)(h.at - p->base) / PAGE;
    ASSERT_EQ(h.at[0], h.fill);
    ASSERT_EQ(h.at[(uint64_t)h.pages * PAGE - 1], h.fill);
    pool_free(p, h.at, (uint64_t)h.pages * PAGE);
    memset(m->owner + first, 0, h.pages);
    m->held[i] = m->held[--m->n];
}

static void run(uint64_t seed)
{
    static struct model m;
    struct pool p;
    memset(&m, 0, sizeof m);
    m.pages = PAGES;
    ASSERT_OK(pool_init(&p, (uint64_t)PAGES * PAGE, (uint64_t)4 * PAGES * PAGE));
    for (int step = 0; step < 6000; step++) {
        uint64_t r = test_rand(&seed);
        uint32_t pages = r % 3 == 0   ? 1 + (uint32_t)(r >> 20) % 5
                         : r % 3 == 1 ? 1 + (uint32_t)(r >> 20) % 300
                                      : 1 + (uint32_t)(r >> 20) % 1500;
        if ((r >> 8) % 2 && m.n > 0)
            give(&p, &m, (int)((r >> 40) % (uint64_t)m.n));
        else if (m.n < HELD_MAX)
            take(&p, &m, pages, &seed);
        if (step % 50 == 0) check(&p, &m);
        p.discard = step % 1000 > 800;
        if (step == 3000) {
            m.pages = 2 * PAGES;
            ASSERT_OK(pool_grow(&p, m.pages * PAGE));
            check(&p, &m);
        }
    }
    pool_discard_free(&p);
    while (m.n > 0)
        give(&p, &m, m.n - 1);
    check(&p, &m);
    ASSERT_EQ(largest_bytes(&p), m.pages * PAGE); /* one extent again */
    pool_fini(&p);
}

TEST(random_requests)
{
    for (uint64_t seed = 1; seed <= 6; seed++)
        run(seed);
}

TEST(best_fit_leaves_the_large_extent_whole)
{
    struct pool p;
    ASSERT_OK(pool_init(&p, 100 * PAGE, 0));
    uint8_t *a = pool_alloc(&p, 20 * PAGE), *b = pool_alloc(&p, 10 * PAGE);
    uint8_t *c = pool_alloc(&p, 20 * PAGE);
    ASSERT_TRUE(a && b && c);
    pool_free(&p, b, 10 * PAGE);
    ASSERT_TRUE(pool_alloc(&p, 10 * PAGE) == b);
    uint8_t *head = pool_alloc(&p, PAGE); /* small ones from the far end */
    ASSERT_TRUE(head == p.base + 99 * PAGE);
    ASSERT_TRUE(!pool_alloc(&p, 50 * PAGE));
    ASSERT_TRUE(pool_alloc(&p, 49 * PAGE));
    ASSERT_EQ(p.used_bytes, 100 * PAGE);
    ASSERT_TRUE(!pool_alloc(&p, PAGE));
    pool_fini(&p);
}

TEST(limits)
{
    struct pool p;
    ASSERT_OK(pool_init(&p, PAGE, 0));
    ASSERT_ERR(pool_grow(&p, 2 * PAGE), -ENOTSUP);
    ASSERT_TRUE(!pool_alloc(&p, 2 * PAGE));
    ASSERT_TRUE(pool_alloc(&p, PAGE));
    pool_fini(&p);
    mem_fail_nth(1);
    ASSERT_ERR(pool_init(&p, PAGE, 0), -ENOMEM);
    mem_fail_nth(0);
    pool_fini(&(struct pool){0});
}

/* A large arena stands on huge pages, and what is freed to the kernel comes back zeroed. */
TEST(pages_go_back)
{
    struct pool p;
    uint64_t size = 16 << 20;
    ASSERT_OK(pool_init(&p, size, size));
    ASSERT_EQ((uintptr_t)p.base % (2 << 20), 0);
    uint8_t *a = pool_alloc(&p, size);
    memset(a, 7, size);
    pool_free(&p, a, size);
    a = pool_alloc(&p, size);
    ASSERT_EQ(a[size - 1], 7); /* recycled, not zeroed */
    pool_free(&p, a, size);
    pool_discard_free(&p);
    a = pool_alloc(&p, size);
    ASSERT_EQ(a[size - 1], 0);
    p.discard = true;
    a[0] = 1;
    pool_free(&p, a, size);
    a = pool_alloc(&p, size);
    ASSERT_EQ(a[0], 0);
    pool_fini(&p);
}
