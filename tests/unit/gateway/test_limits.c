#include "base/buf.h"
#include "gateway/front/limits.h"
#include "tests/test.h"

static const uint64_t second = 1000000000ull;

static enum gw_limit_verdict enter(struct gw_account *a, const struct gw_limit *l, uint64_t tokens,
                                   uint64_t now, uint64_t *ret_wait)
{
    struct gw_limit_view v;
    return gw_account_enter(a, l, tokens, now, &v, ret_wait);
}

TEST(a_minute_at_once_then_evenly)
{
    struct gw_account *a = gw_account_create();
    struct gw_limit l = {.requests_per_min = 6};
    uint64_t now = 1000 * second, wait;
    for (int i = 0; i < 6; i++)
        ASSERT_EQ(enter(a, &l, 0, now, &wait), GW_LIMIT_OK);
    ASSERT_EQ(enter(a, &l, 0, now, &wait), GW_LIMIT_REQUESTS);
    ASSERT_EQ(wait, 10 * second);
    ASSERT_EQ(enter(a, &l, 0, now + wait - 1, &wait), GW_LIMIT_REQUESTS);
    ASSERT_EQ(wait, 1);
    ASSERT_EQ(enter(a, &l, 0, now + 10 * second, &wait), GW_LIMIT_OK);
    ASSERT_EQ(enter(a, &l, 0, now, &wait), GW_LIMIT_REQUESTS); /* the clock went back */
    now += 100000 * second; /* after idling: the minute, and no more */
    for (int i = 0; i < 6; i++)
        ASSERT_EQ(enter(a, &l, 0, now, &wait), GW_LIMIT_OK);
    ASSERT_EQ(enter(a, &l, 0, now, &wait), GW_LIMIT_REQUESTS);
    ASSERT_EQ(a->n_running, 13);
    gw_account_unref(a);
}

TEST(tokens_are_corrected)
{
    struct gw_account *a = gw_account_create();
    struct gw_limit l = {.tokens_per_min = 600};
    struct gw_limit_view v;
    uint64_t now = 5, wait;
    ASSERT_EQ(enter(a, &l, 601, now, &wait), GW_LIMIT_NEVER);
    ASSERT_EQ(enter(a, &l, 500, now, &wait), GW_LIMIT_OK);
    ASSERT_EQ(enter(a, &l, 200, now, &wait), GW_LIMIT_TOKENS);
    ASSERT_EQ(wait, 10 * second);
    gw_account_leave(a, &l, 500, 20, false); /* it was less */
    gw_account_view(a, &l, now, &v);
    ASSERT_EQ(v.tokens_left, 580);
    ASSERT_EQ(v.tokens_reset_ns, 2 * second);
    ASSERT_EQ(enter(a, &l, 10, now, &wait), GW_LIMIT_OK);
    gw_account_leave(a, &l, 10, 1180, false); /* and more than there was: a debt */
    gw_account_view(a, &l, now, &v);
    ASSERT_EQ(v.tokens_left, 0);
    ASSERT_EQ(enter(a, &l, 1, now, &wait), GW_LIMIT_TOKENS);
    ASSERT_EQ(wait, 60 * second + second / 10);
    ASSERT_EQ(enter(a, &l, 1, now + wait, &wait), GW_LIMIT_OK);
    gw_account_leave(a, &l, 1, UINT64_MAX, false); /* nonsense from a worker does not wrap around */
    gw_account_unref(a);
}

TEST(requests_at_once)
{
    struct gw_account *a = gw_account_create();
    struct gw_limit l = {.running_max = 2, .requests_per_min = 10};
    struct gw_limit_view v;
    uint64_t wait;
    ASSERT_EQ(enter(a, &l, 0, 1, &wait), GW_LIMIT_OK);
    ASSERT_EQ(enter(a, &l, 0, 1, &wait), GW_LIMIT_OK);
    ASSERT_EQ(enter(a, &l, 0, 1, &wait), GW_LIMIT_RUNNING);
    gw_account_view(a, &l, 1, &v);
    ASSERT_EQ(v.requests_left, 8); /* what was refused cost nothing */
    gw_account_leave(a, &l, 0, 0, true);
    gw_account_view(a, &l, 1, &v);
    ASSERT_EQ(v.requests_left, 9);
    ASSERT_EQ(enter(a, &l, 0, 1, &wait), GW_LIMIT_OK);
    gw_account_unref(a);
}

/* Grants of random asking in every window against the promise: limit + limit * t / 60 s; and a
 * client that waits as long as it was told gets in: nobody starves, nothing is lost to rounding. */
TEST(never_more_than_promised)
{
    enum { N = 3000 };
    static uint64_t when[N], amount[N];
    for (uint64_t seed = 1; seed <= 20; seed++) {
        uint64_t s = seed, now = 77, wait;
        struct gw_limit l = {.requests_per_min = (uint32_t)(1 + test_rand(&s) % 200),
                             .tokens_per_min = (uint32_t)(100 + test_rand(&s) % 100000)};
        struct gw_account *a = gw_account_create();
        size_t n = 0;
        while (n < N) {
            uint64_t tokens = test_rand(&s) % (l.tokens_per_min / (1 + test_rand(&s) % 50) + 1);
            enum gw_limit_verdict v = enter(a, &l, tokens, now, &wait);
            if (v != GW_LIMIT_OK && test_rand(&s) % 2) {
                now += wait;
                v = enter(a, &l, tokens, now, &wait);
                ASSERT_EQ(v, GW_LIMIT_OK);
            }
            if (v == GW_LIMIT_OK) {
                when[n] = now;
                amount[n++] = tokens;
                gw_account_leave(a, &l, tokens, tokens, false);
            }
            now += test_rand(&s) % (test_rand(&s) % 9 ? second : 90 * second);
        }
        ASSERT_EQ(a->n_running, 0);
        for (size_t i = 0; i < N; i += 7) {
            uint64_t sum = 0;
            for (size_t j = i; j < N && j < i + 400; j++) {
                double minutes = (double)(when[j] - when[i]) / 60e9;
                sum += amount[j];
                ASSERT_TRUE((double)(j - i + 1) <= l.requests_per_min * (1 + minutes) + 1e-6);
                ASSERT_TRUE((double)sum <= l.tokens_per_min * (1 + minutes) + 1e-6);
            }
        }
        gw_account_unref(a);
    }
}

/* Estimates that are wrong either way: what was used stays within the rate, but for what the last
 * request used beyond its estimate. Several run at once. */
TEST(wrong_estimates_even_out)
{
    enum { SLOTS = 5 };
    for (uint64_t seed = 1; seed <= 20; seed++) {
        uint64_t s = seed, now = 1, wait, total = 0, over = 0, n_running = 0;
        struct gw_limit l = {.tokens_per_min = 5000, .running_max = SLOTS - 1};
        struct gw_account *a = gw_account_create();
        uint64_t taken[SLOTS] = {0}, really[SLOTS] = {0};
        bool runs[SLOTS] = {false};
        for (int step = 0; step < 20000; step++) {
            size_t i = test_rand(&s) % SLOTS;
            if (runs[i]) {
                gw_account_leave(a, &l, taken[i], really[i], false);
                runs[i] = false;
                n_running--;
                total += really[i];
                if (really[i] > taken[i]) over += really[i] - taken[i];
                /* what others still hold may have delayed it, never let more through */
                double minutes = (double)(now - 1) / 60e9;
                ASSERT_TRUE((double)total <= 5000 * (1 + minutes) + SLOTS * 3000.0);
            } else {
                taken[i] = 1 + test_rand(&s) % 1000;
                really[i] = test_rand(&s) % 3 ? test_rand(&s) % (taken[i] + 1)
                                              : taken[i] + test_rand(&s) % 3000;
                enum gw_limit_verdict v = enter(a, &l, taken[i], now, &wait);
                runs[i] = v == GW_LIMIT_OK;
                n_running += runs[i];
                if (v == GW_LIMIT_RUNNING) ASSERT_EQ(n_running, SLOTS - 1);
            }
            ASSERT_EQ(a->n_running, n_running);
            now += test_rand(&s) % second;
        }
        ASSERT_TRUE(over > 100000);                                   /* it did happen */
        ASSERT_TRUE((double)total > 0.7 * 5000 * (double)now / 60e9); /* and nothing was lost */
        gw_account_unref(a);
    }
}

/* Asked every few nanoseconds for a long time, a busy bucket gives exactly its rate. */
TEST(no_drift)
{
    struct gw_account *a = gw_account_create();
    struct gw_limit l = {.requests_per_min = 7, .tokens_per_min = 999983};
    uint64_t now = 1, wait, granted = 0, s = 3;
    while (now < 600 * second) {
        while (enter(a, &l, 1000, now, &wait) == GW_LIMIT_OK)
            granted++;
        for (int i = 0; i < 20; i++) { /* looking changes nothing */
            struct gw_limit_view v;
            gw_account_view(a, &l, now + test_rand(&s) % (wait + 1), &v);
        }
        now += wait;
    }
    ASSERT_EQ(granted, 7 + 7 * 10 - 1); /* the last would come a nanosecond late */
    gw_account_unref(a);
}

/* Limits that change while requests run keep what was used. */
TEST(limits_may_change)
{
    struct gw_account *a = gw_account_create();
    struct gw_limit l = {.requests_per_min = 10}, m = {.requests_per_min = 4}, none = {0};
    struct gw_limit_view v;
    uint64_t wait;
    for (int i = 0; i < 5; i++)
        ASSERT_EQ(enter(a, &l, 0, 9, &wait), GW_LIMIT_OK);
    ASSERT_EQ(enter(a, &m, 0, 9, &wait), GW_LIMIT_REQUESTS);
    gw_account_view(a, &m, 9, &v);
    ASSERT_EQ(v.requests_left, 0);
    ASSERT_EQ(wait, 30 * second);
    gw_account_clamp(a, &m);
    ASSERT_EQ(enter(a, &m, 0, 9, &wait), GW_LIMIT_REQUESTS);
    ASSERT_EQ(wait, 15 * second);
    ASSERT_EQ(enter(a, &none, 1000000, 9, &wait), GW_LIMIT_OK);
    gw_account_unref(a);
}

TEST(durations_as_go_prints_them)
{
    static const struct {
        uint64_t ns;
        const char *text;
    } t[] = {{0, "0s"},
             {1, "1ms"},
             {120000000, "120ms"},
             {999999999, "1s"},
             {7660000000, "7.66s"},
             {60000000000, "1m0s"},
             {360000000000, "6m0s"},
             {61005000000, "1m1.005s"}};
    for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) {
        struct buf b = BUF_INIT;
        ASSERT_OK(gw_limit_duration(t[i].ns, &b));
        ASSERT_STREQ(buf_cstr(&b), t[i].text);
        buf_fini(&b);
    }
}

TEST(headers_of_the_limits_there_are)
{
    struct gw_limit_view v = {
        .limit = {.tokens_per_min = 1000}, .tokens_left = 998, .tokens_reset_ns = 120000000};
    struct buf b = BUF_INIT;
    ASSERT_OK(gw_limit_headers(&v, &b));
    ASSERT_STREQ(buf_cstr(&b), "x-ratelimit-limit-tokens: 1000\r\n"
                               "x-ratelimit-remaining-tokens: 998\r\n"
                               "x-ratelimit-reset-tokens: 120ms\r\n");
    buf_fini(&b);
}
