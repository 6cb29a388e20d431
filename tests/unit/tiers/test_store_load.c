/* Look-ups that a slower tier answers. */
#include "tests/test.h"
#include "tests/unit/tiers/store_kit.h"

#include <sched.h>

enum { MIB = 1 << 20 };

/* A store over one mock tier that has chunk 1, and RAM has not. */
static struct store *cold(const struct tier_ident *id, struct mock **ret_mock, bool remote)
{
    struct mock *m = mock_create(remote ? "far" : "near", remote);
    struct kit_tiers t = {.mock = {m}, .n = 1};
    struct store *s = kit_store(id, 16 * MIB, &t);
    struct tier_key k = kit_key(id, 1);
    ASSERT_EQ(kit_put(s, 1), 1);
    kit_flush(s);
    ASSERT_EQ(mock_has(m, &k), 1);
    ASSERT_EQ(store_evict(s, &k, "ram"), 1);
    *ret_mock = m;
    return s;
}

static uint64_t base_bytes(struct store *s)
{
    return s->fixed_bytes;
}

static void layer_by_layer(bool remote)
{
    struct mock *m;
    struct store *s = cold(&kit_large, &m, remote);
    struct store_pin *p;
    enum store_miss why;
    mock_set(m, &m->part_limit, 0);
    ASSERT_EQ(kit_ask(s, 1, 0, &p, &why), STORE_ASKING);
    mock_set(m, &m->part_limit, 2); /* the header and the first layer */
    ASSERT_EQ(store_pin_settle(p, 0, &why), 1);
    ASSERT_STREQ(store_pin_tier(p), remote ? "far" : "near");
    ASSERT_EQ(kit_check_layer(s, p, 1, 1), 0);
    ASSERT_EQ(store_pin_ready(p, 1), 1);
    ASSERT_EQ(store_pin_ready(p, 2), 0);
    ASSERT_EQ(kit_stats(s).inflight, 1);
    mock_set(m, &m->part_limit, 4);
    ASSERT_EQ(kit_check(s, p, 1), 0);
    store_pin_release(p);
    mock_wait(m, &m->done, 2);
    ASSERT_EQ(kit_stats(s).inflight, 0);
    ASSERT_EQ(kit_stats(s).n_records, 1);
    ASSERT_EQ(kit_look(s, 1, &p, &why), 1); /* from RAM now */
    ASSERT_STREQ(store_pin_tier(p), "ram");
    store_pin_release(p);
    ASSERT_EQ(mock_get(m, &m->reads), 1);
    struct store_tier_stats st;
    store_get_tier_stats(s, 0, &st);
    ASSERT_EQ(st.hits, 1);
    ASSERT_TRUE(st.hit_bytes > 3 * MIB);
    ASSERT_TRUE(st.read_bytes_per_s > 0 && store_predict_ms(s, 0, MIB) > 0);
    store_destroy(s);
}

TEST(layers_are_readable_while_later_ones_arrive)
{
    layer_by_layer(false);
    layer_by_layer(true);
}

TEST(a_load_that_nobody_wants_any_more_stops)
{
    struct mock *m;
    struct store *s = cold(&kit_large, &m, false);
    struct store_pin *p, *q;
    enum store_miss why;
    mock_set(m, &m->part_limit, 2);
    ASSERT_TRUE(kit_ask(s, 1, 0, &p, &why) > 0);
    ASSERT_EQ(store_pin_settle(p, 0, &why), 1);
    ASSERT_EQ(kit_check_layer(s, p, 1, 1), 0);
    uint64_t missing = store_pin_missing(p);
    ASSERT_TRUE(missing > 0 && missing < 4 * MIB);
    ASSERT_TRUE(kit_ask(s, 1, 0, &q, &why) > 0);
    store_pin_cancel(p); /* the other one still waits for it */
    mock_set(m, &m->part_limit, 4);
    ASSERT_EQ(kit_check(s, q, 1), 0);
    ASSERT_EQ(store_pin_missing(q), 0);
    store_pin_release(q);
    mock_wait(m, &m->done, 2);

    struct tier_key k = kit_key(&kit_large, 1);
    for (int r = -EBUSY; r == -EBUSY; (void)sched_yield())
        r = store_evict(s, &k, "ram");
    mock_set(m, &m->part_limit, 2);
    ASSERT_TRUE(kit_ask(s, 1, 0, &p, &why) > 0);
    ASSERT_EQ(store_pin_settle(p, 0, &why), 1);
    store_pin_cancel(p);
    mock_set(m, &m->part_limit, 64);
    mock_wait(m, &m->done, 3);
    while (kit_stats(s).inflight > 0)
        (void)sched_yield();
    ASSERT_EQ(kit_stats(s).n_records, 0);
    ASSERT_EQ(kit_look(s, 1, &p, &why), 1); /* and it can be had again, from where it was */
    ASSERT_STREQ(store_pin_tier(p), "near");
    ASSERT_EQ(kit_check(s, p, 1), 0);
    store_pin_release(p);
    struct store_tier_stats st;
    store_get_tier_stats(s, 0, &st);
    ASSERT_STREQ(st.breaker, "closed"); /* the tier is not to blame */
    store_destroy(s);
}

struct asker {
    struct store *s;
    pthread_t thread;
    int result;
};

static void *ask_thread(void *arg)
{
    struct asker *a = arg;
    struct store_pin *p;
    enum store_miss why;
    a->result = -1;
    if (kit_look(a->s, 1, &p, &why) != 1) return NULL;
    a->result = kit_check(a->s, p, 1);
    store_pin_release(p);
    return NULL;
}

TEST(one_read_serves_all_who_ask)
{
    struct mock *m;
    struct store *s = cold(&kit_large, &m, false);
    struct asker a[4];
    struct store_writer *w;
    mock_set(m, &m->hold_reads, 1);
    for (int i = 0; i < 4; i++) {
        a[i].s = s;
        ASSERT_EQ(pthread_create(&a[i].thread, NULL, ask_thread, &a[i]), 0);
    }
    mock_wait(m, &m->queued, 2);
    ASSERT_EQ(kit_claim(s, 1, &w), 0); /* it is on its way: nobody builds it meanwhile */
    mock_set(m, &m->hold_reads, 0);
    for (int i = 0; i < 4; i++) {
        ASSERT_EQ(pthread_join(a[i].thread, NULL), 0);
        ASSERT_EQ(a[i].result, 0);
    }
    ASSERT_EQ(mock_get(m, &m->reads), 1);
    ASSERT_EQ(kit_stats(s).hits, 4);
    store_destroy(s);
}

static void set_average(struct store *s, double bytes_per_s, double first_ms, uint64_t at_ns)
{
    pthread_mutex_lock(&s->m);
    s->tier[0].bytes_per_s = bytes_per_s;
    s->tier[0].first_ms = first_ms;
    s->tier[0].rest_ms_per_byte = 1e3 / bytes_per_s;
    s->tier[0].measured_ns = at_ns;
    pthread_mutex_unlock(&s->m);
}

TEST(a_tier_slower_than_computing_is_not_asked)
{
    struct mock *m;
    struct store *s = cold(&kit_small, &m, false);
    struct store_pin *p;
    enum store_miss why;
    set_average(s, 1e6, 20, clock_ns());
    ASSERT_NEAR(store_predict_ms(s, 0, 1000000), 1020, 1);
    ASSERT_EQ(kit_ask(s, 1, 25, &p, &why), 0);
    ASSERT_EQ(why, STORE_MISS_GATE);
    ASSERT_EQ(kit_stats(s).misses[STORE_MISS_GATE], 1);
    ASSERT_EQ(mock_get(m, &m->queued), 1); /* the write alone */
    set_average(s, 1e6, 20, clock_ns() - 2ull * GATE_STALE_MS * 1000000);
    int r = kit_ask(s, 1, 25, &p, &why); /* the figure is old: one is let through to renew it */
    ASSERT_TRUE(r == STORE_ASKING || r == 1);
    mock_wait(m, &m->done, 2);
    ASSERT_EQ(store_pin_settle(p, 0, &why), 1);
    store_pin_release(p);
    struct tier_key k = kit_key(&kit_small, 1);
    ASSERT_EQ(store_evict(s, &k, "ram"), 1);
    set_average(s, 1e6, 20, clock_ns());
    ASSERT_EQ(kit_why(s, 1), -1); /* no worth: whatever it takes */
    store_destroy(s);
}

/* The device hangs: the look-up ends in time, the memory stays charged until the device is done. */
TEST(a_tier_that_hangs_is_given_up)
{
    struct mock *m;
    struct store *s = cold(&kit_large, &m, false);
    struct store_pin *p;
    struct store_writer *w;
    enum store_miss why;
    mock_set(m, &m->hold_reads, 1);
    ASSERT_EQ(kit_ask(s, 1, 1, &p, &why), STORE_ASKING);
    ASSERT_EQ(store_pin_settle(p, 0, &why), 0);
    ASSERT_EQ(why, STORE_MISS_DEADLINE);
    uint64_t used = kit_stats(s).used_bytes;
    ASSERT_TRUE(used > base_bytes(s) + 3 * MIB); /* in quarantine */
    ASSERT_EQ(kit_stats(s).inflight, 1);
    ASSERT_EQ(kit_claim(s, 1, &w), 1); /* who computes it may store it */
    kit_fill(s, w, 1);
    ASSERT_OK(store_commit(w));
    ASSERT_EQ(kit_why(s, 1), -1);
    ASSERT_TRUE(kit_stats(s).used_bytes > used + 3 * MIB);
    mock_set(m, &m->hold_reads, 0);
    mock_wait(m, &m->done, 2);
    ASSERT_EQ(kit_stats(s).inflight, 0);
    ASSERT_EQ(kit_stats(s).n_records, 1);
    ASSERT_TRUE(kit_stats(s).used_bytes <= used + 64 * 1024);
    ASSERT_EQ(kit_why(s, 1), -1);
    struct store_tier_stats st;
    store_get_tier_stats(s, 0, &st);
    ASSERT_EQ(st.misses[STORE_MISS_DEADLINE], 1);
    ASSERT_STREQ(st.breaker, "closed");
    ASSERT_TRUE(store_predict_ms(s, 0, 3 * MIB) >= GIVE_UP_MS_MIN); /* its slowness is remembered */
    store_destroy(s);
}

TEST(a_layer_that_does_not_come_times_out)
{
    struct mock *m;
    struct store *s = cold(&kit_large, &m, false);
    struct store_pin *p;
    enum store_miss why;
    const void *k, *v;
    mock_set(m, &m->part_limit, 2);
    ASSERT_EQ(kit_ask(s, 1, 0, &p, &why) != 0, 1);
    ASSERT_EQ(store_pin_settle(p, 0, &why), 1);
    ASSERT_EQ(kit_check_layer(s, p, 1, 1), 0);
    p->deadline_ns = clock_ns() + 20000000; /* however long the first layer took */
    uint64_t until = clock_ns() + 60000000000ull;
    while (store_pin_ready(p, 2) == 0 && clock_ns() < until)
        sched_yield(); /* as who must not wait does: it is told as well */
    ASSERT_ERR(store_pin_ready(p, 2), -ETIMEDOUT);
    ASSERT_EQ(store_pin_ready(p, 1), 1);
    ASSERT_ERR(store_pin_layer(p, 2, &k, &v), -ETIMEDOUT);
    ASSERT_EQ(kit_check_layer(s, p, 1, 1), 0); /* what has come stays */
    store_pin_release(p);
    ASSERT_EQ(kit_stats(s).n_records, 0);
    mock_set(m, &m->part_limit, 8);
    mock_wait(m, &m->done, 2);
    kit_empty(s);
    ASSERT_EQ(kit_why(s, 1), -1); /* the next one begins anew */
    store_destroy(s);
}

/* The caller's patience ends before the ask's: a miss, but the load goes on. */
TEST(settling_does_not_wait_longer_than_told)
{
    struct mock *m;
    struct store *s = cold(&kit_small, &m, false);
    struct store_pin *p;
    enum store_miss why;
    mock_set(m, &m->hold_reads, 1);
    ASSERT_EQ(kit_ask(s, 1, 0, &p, &why), STORE_ASKING);
    ASSERT_EQ(store_pin_settle(p, 1, &why), 0);
    ASSERT_EQ(why, STORE_MISS_DEADLINE);
    mock_set(m, &m->hold_reads, 0);
    mock_wait(m, &m->done, 2);
    ASSERT_EQ(kit_stats(s).n_records, 1);
    ASSERT_EQ(mock_get(m, &m->reads), 1);
    store_destroy(s);
}

TEST(a_damaged_layer_drops_the_copy_and_the_record)
{
    struct mock *m;
    struct store *s = cold(&kit_large, &m, false);
    struct store_pin *p;
    enum store_miss why;
    struct tier_key k = kit_key(&kit_large, 1);
    mock_set(m, &m->flip_at, 4711);
    mock_set(m, &m->flip_part, 3);
    ASSERT_EQ(kit_look(s, 1, &p, &why), 1);
    ASSERT_EQ(kit_check_layer(s, p, 1, 1), 0);
    ASSERT_EQ(kit_check_layer(s, p, 1, 3), -EBADMSG);
    ASSERT_EQ(kit_check_layer(s, p, 1, 2), 0);
    ASSERT_EQ(mock_has(m, &k), 0);
    store_pin_release(p);
    ASSERT_EQ(kit_why(s, 1), STORE_MISS_CORRUPT);
    ASSERT_EQ(kit_stats(s).corrupt, 1);
    mock_wait(m, &m->done, 2);
    kit_empty(s);
    store_destroy(s);
}

static void damaged_header(bool remote, int at, int want)
{
    struct mock *m;
    struct store *s = cold(&kit_small, &m, remote);
    struct tier_key k = kit_key(&kit_small, 1);
    mock_set(m, &m->flip_at, at);
    mock_set(m, &m->flip_part, 0);
    ASSERT_EQ(kit_why(s, 1), want);
    ASSERT_EQ(mock_has(m, &k), 0);
    mock_wait(m, &m->done, 2);
    kit_empty(s);
    ASSERT_EQ(mock_get(m, &m->parts), 1); /* nothing behind the header was moved */
    store_destroy(s);
}

TEST(a_damaged_header_is_a_miss)
{
    for (int remote = 0; remote < 2; remote++)
        for (int at = 0; at < 192; at += 13)
            damaged_header(remote, at, at >= 8 && at < 12 ? STORE_MISS_STALE : STORE_MISS_CORRUPT);
}

TEST(other_tokens_in_a_tier_are_a_miss)
{
    struct mock *m;
    struct store *s = cold(&kit_small, &m, false);
    struct store_pin *p;
    enum store_miss why;
    int32_t tok[KIT_LARGE_TOKENS];
    size_t n = kit_tokens(&kit_small, 1, tok);
    struct tier_key k = kit_key(&kit_small, 1);
    tok[1] ^= 1;
    ASSERT_EQ(store_lookup(s, &k, tok, n, &p, &why), 0);
    ASSERT_EQ(why, STORE_MISS_TOKENS);
    mock_wait(m, &m->done, 2);
    ASSERT_EQ(store_evict(s, &k, "ram"), 1);
    ASSERT_EQ(store_lookup(s, &k, tok, n - 1, &p, &why), 0);
    ASSERT_TRUE(why == STORE_MISS_TOKENS || why == STORE_MISS_EVICTED);
    ASSERT_EQ(kit_why(s, 1), -1);
    store_destroy(s);
}

/* Two tiers that both have it: the second answers where the first cannot. */
static struct store *cold2(struct mock *m[2], bool remote)
{
    m[0] = mock_create("near", false);
    m[1] = mock_create("far", remote);
    struct kit_tiers t = {.mock = {m[0], m[1]}, .n = 2};
    struct store *s = kit_store(&kit_small, 16 * MIB, &t);
    struct tier_key k = kit_key(&kit_small, 1);
    ASSERT_EQ(kit_put(s, 1), 1);
    kit_flush(s);
    ASSERT_EQ(store_evict(s, &k, "ram"), 1);
    return s;
}

static void second_tier(int mode, bool remote)
{
    struct mock *m[2];
    struct store *s = cold2(m, remote);
    struct tier_key k = kit_key(&kit_small, 1);
    struct store_pin *p;
    enum store_miss why;
    if (mode == 0) mock_set(m[0], &m[0]->fail_read, -EIO);
    if (mode == 1) mock_set(m[0], &m[0]->refuse_read, -EAGAIN);
    if (mode == 2) mock_set(m[0], &m[0]->flip_part, 0);
    if (mode == 3) ASSERT_EQ(store_evict(s, &k, "near"), 1);
    ASSERT_EQ(kit_look(s, 1, &p, &why), 1);
    ASSERT_STREQ(store_pin_tier(p), mode < 4 ? "far" : "near");
    ASSERT_EQ(kit_check(s, p, 1), 0);
    store_pin_release(p);
    kit_flush(s);
    /* What the fast tier lacks, and the slow one delivered, goes there as well. */
    if (mode >= 2) ASSERT_EQ(mock_has(m[0], &k), 1);
    store_destroy(s);
}

TEST(the_next_tier_answers_where_one_cannot)
{
    for (int mode = 0; mode < 5; mode++)
        for (int remote = 0; remote < 2; remote++)
            second_tier(mode, remote);
}

TEST(no_tier_has_it)
{
    struct mock *m[2];
    struct store *s = cold2(m, true);
    ASSERT_EQ(kit_why(s, 2), STORE_MISS_NEVER);
    ASSERT_EQ(kit_why(s, 2), STORE_MISS_NEVER);
    ASSERT_EQ(mock_get(m[1], &m[1]->reads), 2); /* only a read can tell */
    ASSERT_EQ(mock_get(m[0], &m[0]->reads), 0);
    struct tier_key k = kit_key(&kit_small, 1);
    ASSERT_EQ(store_evict(s, &k, NULL), 1);
    ASSERT_EQ(kit_why(s, 1), STORE_MISS_EVICTED);
    mock_wait(m[1], &m[1]->done, 4);
    kit_empty(s);
    store_destroy(s);
}

/* Breaks off behind the header: holders are told, the next look-up begins anew. */
TEST(a_load_that_breaks_off)
{
    struct mock *m;
    struct store *s = cold(&kit_large, &m, false);
    struct store_pin *p;
    enum store_miss why;
    const void *k, *v;
    mock_set(m, &m->fail_read, -EPIPE);
    ASSERT_EQ(kit_look(s, 1, &p, &why), 1);
    ASSERT_ERR(store_pin_layer(p, 1, &k, &v), -EIO);
    ASSERT_ERR(store_pin_ready(p, 2), -EIO);
    store_pin_release(p);
    mock_set(m, &m->fail_read, 0);
    mock_wait(m, &m->done, 2);
    kit_empty(s);
    ASSERT_EQ(kit_why(s, 1), -1);
    store_destroy(s);
}

/* A full queue is no failure of the tier. */
TEST(a_tier_that_is_busy)
{
    struct mock *m;
    struct store *s = cold(&kit_small, &m, false);
    struct store_tier_stats st;
    mock_set(m, &m->refuse_read, -EAGAIN);
    for (int i = 0; i < 40; i++)
        ASSERT_EQ(kit_why(s, 1), STORE_MISS_GATE);
    store_get_tier_stats(s, 0, &st);
    ASSERT_STREQ(st.breaker, "closed");
    mock_set(m, &m->refuse_read, 0);
    ASSERT_EQ(kit_why(s, 1), -1);
    store_destroy(s);
}

static void probe_now(struct store *s)
{
    pthread_mutex_lock(&s->m);
    s->tier[0].breaker.open_until_ns = 0;
    pthread_mutex_unlock(&s->m);
}

TEST(a_failing_tier_is_left_alone_and_found_again)
{
    struct mock *m;
    struct store *s = cold(&kit_small, &m, false);
    struct store_tier_stats st;
    mock_set(m, &m->fail_read, -EIO);
    do {
        ASSERT_EQ(kit_why(s, 1), STORE_MISS_IO);
        store_get_tier_stats(s, 0, &st);
    } while (strcmp(st.breaker, "closed") == 0);
    int reads = mock_get(m, &m->reads);
    ASSERT_EQ(kit_why(s, 1), STORE_MISS_IO);
    ASSERT_EQ(mock_get(m, &m->reads), reads); /* not asked */
    probe_now(s);
    ASSERT_EQ(kit_why(s, 1), STORE_MISS_IO); /* the probe fails */
    ASSERT_EQ(mock_get(m, &m->reads), reads + 1);
    ASSERT_EQ(kit_why(s, 1), STORE_MISS_IO);
    ASSERT_EQ(mock_get(m, &m->reads), reads + 1);
    mock_set(m, &m->fail_read, 0);
    probe_now(s);
    ASSERT_EQ(kit_why(s, 1), -1);
    kit_flush(s);
    store_get_tier_stats(s, 0, &st);
    ASSERT_STREQ(st.breaker, "closed");
    ASSERT_TRUE(st.breaker_opened >= 1);
    ASSERT_TRUE(st.misses[STORE_MISS_IO] >= 5);
    store_destroy(s);
}

/* RAM is full of what is held: there is no room to bring it into, and nothing is lost. */
static void no_room(bool remote)
{
    struct mock *m;
    struct store *s = cold(&kit_large, &m, remote);
    struct store_pin *pin[8];
    struct store_pin *p;
    enum store_miss why;
    int n = 0;
    for (int i = 2; kit_put(s, i) == 1; i++)
        if (kit_look(s, i, &pin[n], &why) == 1) n++;
    kit_flush(s);
    ASSERT_TRUE(n >= 3);
    ASSERT_EQ(kit_look(s, 1, &p, &why), 0);
    ASSERT_EQ(why, STORE_MISS_ROOM);
    for (int i = 0; i < n; i++)
        store_pin_release(pin[i]);
    ASSERT_EQ(kit_why(s, 1), -1);
    store_destroy(s);
}

TEST(no_room_for_a_load)
{
    no_room(false);
    no_room(true);
}

TEST(clear_while_a_record_arrives)
{
    struct mock *m;
    struct store *s = cold(&kit_large, &m, false);
    struct store_pin *p, *q;
    enum store_miss why;
    const void *k, *v;
    mock_set(m, &m->part_limit, 2);
    ASSERT_TRUE(kit_ask(s, 1, 0, &p, &why) != 0);
    ASSERT_EQ(store_pin_settle(p, 0, &why), 1);
    ASSERT_EQ(kit_check_layer(s, p, 1, 1), 0);
    ASSERT_EQ(store_clear(s, "ram", NULL, true), 0);
    ASSERT_EQ(kit_check_layer(s, p, 1, 1), 0);
    ASSERT_ERR(store_pin_layer(p, 3, &k, &v), -EIO);
    mock_set(m, &m->part_limit, 8);
    ASSERT_EQ(kit_look(s, 1, &q, &why), 1);
    ASSERT_EQ(kit_check(s, q, 1), 0);
    store_pin_release(q);
    store_pin_release(p);
    store_destroy(s);
}

/* Nor may a record come back whose namespace is not known yet, its header being on the way. */
TEST(a_namespace_is_cleared_while_a_record_arrives)
{
    struct mock *m;
    struct store *s = cold(&kit_large, &m, false);
    struct store_pin *p;
    enum store_miss why;
    mock_set(m, &m->part_limit, 0);
    ASSERT_EQ(kit_ask(s, 1, 0, &p, &why), STORE_ASKING);
    mock_wait(m, &m->reads, 1);
    ASSERT_TRUE(store_clear(s, "ram", kit_ns(1), true) >= 0);
    mock_set(m, &m->part_limit, 8);
    ASSERT_EQ(store_pin_settle(p, 0, &why), 0);
    ASSERT_EQ(why, STORE_MISS_EVICTED);
    mock_wait(m, &m->done, 2);
    kit_empty(s);
    store_destroy(s);
}

/* The thread that gives up loads ticks from the start, not only once something was written. */
TEST(a_load_that_nobody_waits_for_is_given_up)
{
    struct mock *m = mock_create("far", true);
    struct kit_tiers t = {.mock = {m}, .n = 1};
    struct store *s = kit_store(&kit_large, 16 * MIB, &t);
    uint64_t until = clock_ns() + 60000000000ull;
    struct store_tier_stats st = {0};
    struct store_pin *p;
    enum store_miss why;
    mock_set(m, &m->hold_reads, 1);
    ASSERT_EQ(kit_ask(s, 1, 1, &p, &why), STORE_ASKING);
    ASSERT_EQ(store_pin_settle(p, 1, &why), 0); /* patience has ended, not the ask's time */
    while (st.misses[STORE_MISS_DEADLINE] == 0 && clock_ns() < until) {
        sched_yield();
        store_get_tier_stats(s, 0, &st);
    }
    ASSERT_EQ(st.misses[STORE_MISS_DEADLINE], 1);
    store_destroy(s);
}

TEST(in_ram_means_whole)
{
    struct mock *m;
    struct store *s = cold(&kit_large, &m, false);
    struct tier_key k = kit_key(&kit_large, 1), k2 = kit_key(&kit_large, 2);
    struct store_writer *w;
    struct store_pin *p;
    enum store_miss why;
    ASSERT_TRUE(!store_in_ram(s, &k) && store_probe(s, &k));
    mock_set(m, &m->part_limit, 2);
    ASSERT_TRUE(kit_ask(s, 1, 0, &p, &why) != 0);
    ASSERT_EQ(store_pin_settle(p, 0, &why), 1);
    ASSERT_TRUE(!store_in_ram(s, &k));
    mock_set(m, &m->part_limit, 8);
    mock_wait(m, &m->done, 2);
    ASSERT_TRUE(store_in_ram(s, &k));
    store_pin_release(p);
    ASSERT_EQ(kit_claim(s, 2, &w), 1);
    ASSERT_TRUE(!store_in_ram(s, &k2));
    store_abort(w);
    store_destroy(s);
}

/* A tier that was slow is measured again once its breaker lets somebody: who was refused there has
 * not measured anything. */
TEST(an_open_breaker_does_not_use_up_the_measuring_load)
{
    struct mock *m;
    struct store *s = cold(&kit_small, &m, false);
    struct store_pin *p;
    enum store_miss why;
    set_average(s, 1e6, 1000, clock_ns() - 2ull * GATE_STALE_MS * 1000000);
    pthread_mutex_lock(&s->m);
    for (int i = 0; i < 3; i++)
        breaker_report(&s->tier[0].breaker, BREAKER_TIMEOUT, clock_ns(), clock_ns());
    s->tier[0].breaker.open_until_ns = UINT64_MAX;
    pthread_mutex_unlock(&s->m);
    ASSERT_EQ(kit_ask(s, 1, 25, &p, &why), 0);
    ASSERT_EQ(why, STORE_MISS_IO);
    pthread_mutex_lock(&s->m);
    s->tier[0].breaker.open_until_ns = clock_ns();
    pthread_mutex_unlock(&s->m);
    ASSERT_TRUE(kit_ask(s, 1, 25, &p, &why) != 0);
    mock_wait(m, &m->done, 2);
    ASSERT_EQ(store_pin_settle(p, 0, &why), 1);
    store_pin_release(p);
    ASSERT_TRUE(store_predict_ms(s, 0, MIB) < 1000);
    store_destroy(s);
}

TEST(destroying_ends_what_hangs)
{
    struct mock *m;
    struct store *s = cold(&kit_large, &m, true);
    struct store_pin *p;
    enum store_miss why;
    mock_set(m, &m->hold_reads, 1);
    ASSERT_EQ(kit_ask(s, 1, 0, &p, &why), STORE_ASKING);
    store_pin_release(p);
    store_destroy(s);
}

/* A chain of memory failures while a record is brought in: a miss or -ENOMEM, and no leak. */
TEST(every_failed_allocation_of_a_load)
{
    struct mock *m;
    struct store *s = cold(&kit_small, &m, false);
    for (unsigned n = 1;; n++) {
        struct store_pin *p;
        enum store_miss why;
        mem_fail_nth(n);
        int r = kit_look(s, 1, &p, &why);
        bool fired = mem_fail_fired();
        mem_fail_nth(0);
        if (!fired) {
            ASSERT_EQ(r, 1);
            store_pin_release(p);
            break;
        }
        ASSERT_TRUE(r == -ENOMEM || (r == 0 && why == STORE_MISS_ROOM));
        kit_empty(s);
    }
    store_destroy(s);
}
