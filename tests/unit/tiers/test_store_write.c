/* What the store writes to its tiers, when, and what it evicts meanwhile. */
#include "tests/test.h"
#include "tests/unit/tiers/store_kit.h"

#include <sched.h>

enum { KIB = 1024, MIB = 1 << 20 };

static struct store *one_tier(uint64_t ram_bytes, bool remote, struct mock **ret_mock)
{
    struct mock *m = mock_create("low", remote);
    struct kit_tiers t = {.mock = {m}, .n = 1};
    *ret_mock = m;
    return kit_store(&kit_small, ram_bytes, &t);
}

static bool in_ram(struct store *s, int chunk)
{
    struct tier_key k = kit_key(&s->ident, chunk);
    pthread_mutex_lock(&s->m);
    const struct entry *e = entry_find(s, &k);
    bool yes = e && e->state == ENTRY_READY;
    pthread_mutex_unlock(&s->m);
    return yes;
}

static int has(struct mock *m, int chunk)
{
    struct tier_key k = kit_key(&kit_small, chunk);
    return mock_has(m, &k);
}

/* The maintenance thread has made room. */
static void water_settles(struct store *s)
{
    while (kit_stats(s).used_bytes > water_bytes(s, WATER_HIGH_PCT))
        sched_yield();
}

TEST(write_behind_follows_the_commit)
{
    struct mock *m;
    struct store *s = one_tier(16 * MIB, false, &m);
    mock_set(m, &m->hold_writes, 1);
    for (int i = 0; i < 20; i++)
        ASSERT_EQ(kit_put(s, i), 1);
    mock_wait(m, &m->queued, WRITES_MAX);
    ASSERT_EQ(kit_stats(s).dirty, 20);
    ASSERT_EQ(mock_get(m, &m->queued), WRITES_MAX); /* few under way */
    ASSERT_ERR(store_flush(s, clock_ns() + 1000), -ETIMEDOUT);
    mock_set(m, &m->hold_writes, 0);
    kit_flush(s);
    ASSERT_EQ(kit_stats(s).dirty, 0);
    for (int i = 0; i < 20; i++)
        ASSERT_EQ(has(m, i), 1);
    ASSERT_EQ(mock_get(m, &m->writes), 20);
    store_destroy(s);
}

/* What was just loaded may be in its last transfers still, though nobody holds it. */
static int evict_when_loaded(struct store *s, const struct tier_key *k)
{
    uint64_t begin = clock_ns();
    int r;
    while ((r = store_evict(s, k, "ram")) == -EBUSY && clock_ms_since(begin) < 10000)
        (void)sched_yield();
    return r;
}

TEST(what_a_tier_has_is_not_written_again)
{
    struct mock *m;
    struct store *s = one_tier(16 * MIB, false, &m);
    struct tier_key k = kit_key(&kit_small, 1);
    ASSERT_EQ(kit_put(s, 1), 1);
    kit_flush(s);
    for (int i = 0; i < 5; i++) {
        ASSERT_EQ(evict_when_loaded(s, &k), 1);
        ASSERT_EQ(kit_why(s, 1), -1);
    }
    ASSERT_EQ(evict_when_loaded(s, &k), 1);
    ASSERT_EQ(kit_put(s, 1), 1); /* computed again: the tier has it still */
    kit_flush(s);
    ASSERT_EQ(mock_get(m, &m->writes), 1);
    store_destroy(s);
}

/* Past the high watermark the coldest leave, by way of the tier. */
TEST(eviction_comes_ahead_of_need)
{
    struct mock *m;
    struct store *s = one_tier(512 * KIB, false, &m);
    int n = 0;
    while (kit_stats(s).evictions == 0) {
        if (kit_stats(s).used_bytes <= water_bytes(s, WATER_HIGH_PCT))
            ASSERT_EQ(kit_put(s, n++), 1);
        else
            sched_yield(); /* the maintenance thread makes room */
    }
    kit_flush(s);
    /* The last put may have come when it had just done its work. */
    uint64_t one = kit_stats(s).used_bytes / (uint64_t)n;
    while (kit_stats(s).used_bytes > water_bytes(s, WATER_LOW_PCT) + one)
        sched_yield();
    struct store_stats st;
    int gone;
    do { /* until nothing left while they were counted */
        st = kit_stats(s);
        gone = 0;
        for (int i = 0; i < n; i++) {
            bool here = in_ram(s, i);
            ASSERT_TRUE(here || has(m, i) == 1);
            gone += !here;
        }
    } while (kit_stats(s).evictions != st.evictions);
    ASSERT_EQ(st.lost, 0);
    ASSERT_TRUE(n > 20 && st.evictions < (uint64_t)n / 2);
    ASSERT_EQ((uint64_t)gone, st.evictions);
    ASSERT_TRUE(!in_ram(s, 0) && in_ram(s, n - 1));
    for (int i = 0; i < n; i++)
        ASSERT_EQ(kit_why(s, i), -1);
    store_destroy(s);
}

/* A tier that evicted its copy meanwhile gets it again before RAM lets go. */
TEST(a_copy_that_was_evicted_below_is_written_again)
{
    struct mock *m;
    struct store *s = one_tier(512 * KIB, false, &m);
    struct tier_key k = kit_key(&kit_small, 0);
    ASSERT_EQ(kit_put(s, 0), 1);
    kit_flush(s);
    ASSERT_EQ(has(m, 0), 1);
    ASSERT_EQ(m->tier.ops->remove(&m->tier, &k, true), 1);
    for (int n = 1; in_ram(s, 0); n++) {
        ASSERT_EQ(kit_put(s, n), 1);
        water_settles(s);
    }
    ASSERT_EQ(kit_why(s, 0), -1);
    ASSERT_EQ(kit_stats(s).lost, 0);
    store_destroy(s);
}

/* Last, but for one: while the evictor asks a tier about a clean record, a claim cannot take it. */
TEST(what_no_tier_has_yet_is_lost_last_and_counted)
{
    enum { HELD = 1 };
    struct mock *m;
    struct store *s = one_tier(512 * KIB, false, &m);
    for (int i = 0; i < 8; i++)
        ASSERT_EQ(kit_put(s, i), 1);
    kit_flush(s);
    mock_set(m, &m->hold_writes, 1);
    int n = 8;
    while (n < 8 + WRITES_MAX)
        ASSERT_EQ(kit_put(s, n++), 1);
    mock_wait(m, &m->queued, n);
    struct store_stats st = kit_stats(s);
    for (; st.evictions < 8; st = kit_stats(s)) {
        ASSERT_TRUE(st.lost <= HELD); /* the clean ones first */
        ASSERT_EQ(kit_put(s, n++), 1);
    }
    ASSERT_TRUE(st.lost <= st.evictions - 8 + HELD);
    for (int i = 0; i < 8; i++)
        while (in_ram(s, i)) /* the one held, and another went in its place */
            ASSERT_EQ(kit_put(s, n++), 1);
    while (kit_stats(s).lost == 0)
        ASSERT_EQ(kit_put(s, n++), 1);
    /* What is being written cannot go: it is the only copy. */
    for (int i = 0; i < 200; i++)
        (void)kit_put(s, n++);
    for (int i = 8; i < 8 + WRITES_MAX; i++)
        ASSERT_TRUE(in_ram(s, i));
    mock_set(m, &m->hold_writes, 0);
    kit_flush(s);
    for (int i = 0; i < 8 + WRITES_MAX; i++)
        ASSERT_EQ(kit_why(s, i), -1);
    store_destroy(s);
}

/* Busy is no failure: it is tried again. What the tier does not want is not its loss. */
TEST(refused_writes)
{
    struct mock *m;
    struct store *s = one_tier(16 * MIB, false, &m);
    struct store_tier_stats st;
    mock_set(m, &m->refuse_write, -EAGAIN);
    ASSERT_EQ(kit_put(s, 1), 1);
    ASSERT_ERR(store_flush(s, clock_ns() + 100000000), -ETIMEDOUT);
    mock_set(m, &m->refuse_write, 0);
    kit_flush(s);
    ASSERT_EQ(has(m, 1), 1);
    mock_set(m, &m->refuse_write, -EPERM);
    ASSERT_EQ(kit_put(s, 2), 1);
    kit_flush(s);
    mock_set(m, &m->refuse_write, 0);
    mock_set(m, &m->fail_write, -ENOSPC);
    ASSERT_EQ(kit_put(s, 3), 1);
    kit_flush(s);
    store_get_tier_stats(s, 0, &st);
    ASSERT_STREQ(st.breaker, "closed");
    ASSERT_EQ(st.breaker_opened, 0);
    ASSERT_EQ(kit_stats(s).lost, 0);
    mock_set(m, &m->fail_write, -EIO);
    ASSERT_EQ(kit_put(s, 4), 1);
    kit_flush(s); /* given up after a few tries */
    ASSERT_EQ(kit_stats(s).lost, 1);
    ASSERT_EQ(kit_why(s, 4), -1);
    store_destroy(s);
}

TEST(a_tier_that_fails_is_written_again_when_it_is_back)
{
    struct mock *m;
    struct store *s = one_tier(16 * MIB, false, &m);
    struct store_tier_stats st;
    mock_set(m, &m->fail_write, -ETIMEDOUT);
    for (int i = 0; i < 40; i++)
        ASSERT_EQ(kit_put(s, i), 1);
    do {
        store_get_tier_stats(s, 0, &st);
        sched_yield();
    } while (strcmp(st.breaker, "open") != 0);
    ASSERT_TRUE(kit_stats(s).dirty > 0); /* the rest waits */
    mock_set(m, &m->fail_write, 0);
    uint64_t lost = kit_stats(s).lost;
    pthread_mutex_lock(&s->m);
    s->tier[0].breaker.open_until_ns = 0;
    pthread_mutex_unlock(&s->m);
    kit_flush(s);
    int n = 0;
    for (int i = 0; i < 40; i++)
        n += has(m, i);
    ASSERT_TRUE(n >= 40 - (int)lost - 2 * WRITES_MAX && n > 20);
    store_get_tier_stats(s, 0, &st);
    ASSERT_STREQ(st.breaker, "closed");
    store_destroy(s);
}

/* What could not be written is neither listed nor counted as there, and is lost when RAM lets go.
 */
TEST(a_failed_write_is_not_stored)
{
    struct mock *m = mock_create("near", false);
    struct kit_tiers t = {.mock = {m}, .n = 1};
    struct store *s = kit_store(&kit_small, MIB, &t);
    struct tier_key k = kit_key(&kit_small, 1);
    struct store_info i;
    mock_set(m, &m->fail_write, -EIO);
    ASSERT_EQ(kit_put(s, 1), 1);
    mock_wait(m, &m->done, 1);
    ASSERT_EQ(store_get_info(s, &k, &i), 1);
    ASSERT_STREQ(i.tiers, "ram");
    ASSERT_EQ(mock_has(m, &k), 0);
    struct store_tier_stats st;
    store_get_tier_stats(s, 0, &st);
    ASSERT_EQ(st.tier.n_records, 0);
    pthread_mutex_lock(&s->m);
    struct entry *e = entry_find(s, &k);
    ASSERT_TRUE(e && e->write.clean == 0);
    pthread_mutex_unlock(&s->m);
    ASSERT_EQ(store_evict(s, &k, "ram"), 1);
    ASSERT_EQ(kit_why(s, 1), STORE_MISS_EVICTED);
    store_destroy(s);
}

TEST(uses_are_passed_on)
{
    struct mock *m;
    struct store *s = one_tier(16 * MIB, false, &m);
    ASSERT_EQ(kit_put(s, 1), 1);
    kit_flush(s);
    int before = mock_get(m, &m->touches);
    s->touch_every_ns = 3600000000000ull;
    for (int i = 0; i < 10; i++)
        ASSERT_EQ(kit_why(s, 1), -1);
    ASSERT_TRUE(mock_get(m, &m->touches) <= before + 1);
    s->touch_every_ns = 0;
    for (int i = 0; i < 10; i++)
        ASSERT_EQ(kit_why(s, 1), -1);
    ASSERT_TRUE(mock_get(m, &m->touches) >= before + 10);
    store_destroy(s);
}

/* What is read once, at others' expense, leaves before what is used again and again. */
TEST(a_scan_does_not_empty_ram)
{
    struct mock *m;
    struct store *s = one_tier(2 * MIB, false, &m);
    int room = 0;
    while (kit_stats(s).used_bytes < water_bytes(s, 80))
        ASSERT_EQ(kit_put(s, room++), 1);
    kit_flush(s);
    for (int i = room; i < 4 * room && i < MOCK_RECORDS; i++) {
        ASSERT_EQ(kit_put(s, i), 1);
        kit_flush(s);
    }
    store_clear(s, "ram", NULL, true);
    memset(s->ghosts.cell, 0, (s->ghosts.mask + 1) * GHOST_WAYS * sizeof(struct ghost));
    int hot = room / 2;
    for (int i = 0; i < hot; i++)
        ASSERT_EQ(kit_why(s, i), -1);
    for (int i = 0; i < hot; i++)
        ASSERT_EQ(kit_why(s, i), -1);
    for (int i = room; i < 4 * room && i < MOCK_RECORDS; i++)
        ASSERT_EQ(kit_why(s, i), -1); /* the scan */
    for (int i = 0; i < hot; i++)
        ASSERT_TRUE(in_ram(s, i));
    /* One of the scan that is asked for again within ten minutes is no scan. */
    int again = room + 1;
    ASSERT_EQ(kit_why(s, again), -1);
    for (int i = 2 * room; i < 4 * room && i < MOCK_RECORDS; i++)
        ASSERT_EQ(kit_why(s, i), -1);
    store_destroy(s);
}

TEST(a_cleared_record_does_not_come_back_from_a_write)
{
    struct mock *m;
    struct store *s = one_tier(16 * MIB, false, &m);
    mock_set(m, &m->hold_writes, 1);
    ASSERT_EQ(kit_put(s, 1), 1);
    mock_wait(m, &m->queued, 1);
    ASSERT_EQ(store_clear(s, NULL, NULL, true), 1);
    mock_set(m, &m->hold_writes, 0);
    mock_wait(m, &m->removes, 1);
    ASSERT_EQ(has(m, 1), 0);
    kit_flush(s);
    ASSERT_EQ(kit_why(s, 1), STORE_MISS_EVICTED);
    store_destroy(s);
}
