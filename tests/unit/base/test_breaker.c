#include "base/breaker.h"

#include "tests/test.h"

static const uint64_t ms = 1000000u, s = 1000000000u;

/* c: '.' ok, 'f' failed, 't' timeout. Returns how many reports it took to open, 0 = never. */
static unsigned feed(struct breaker *b, const char *results, uint64_t now)
{
    for (unsigned i = 0; results[i]; i++) {
        breaker_report(b,
                       results[i] == 'f'   ? BREAKER_FAILED
                       : results[i] == 't' ? BREAKER_TIMEOUT
                                           : BREAKER_OK,
                       now, now);
        if (b->state == BREAKER_OPEN) return i + 1;
    }
    return 0;
}

TEST(what_opens_it)
{
    static const struct {
        const char *results;
        unsigned opens_at;
    } table[] = {
        {"", 0},
        {"....................", 0},
        {"ffff", 0}, /* fewer than 5 */
        {"fffff", 5},
        {"tt.tt.tt.", 7},  /* 5 of 7; never three timeouts in a row */
        {"ttt", 3},        /* three in a row */
        {"ttftt", 5},      /* not in a row, but five failures of five */
        {"....fffff", 9},  /* 5 of 9 */
        {".....fffff", 0}, /* 5 of 10 is not more than half */
        {".....ffffff", 11},
        {"f.f.f.f.f.f.f.f.f.f.", 9},           /* 5 of 9 */
        {".f.f.f.f.f.f.f.f.f.f", 0},           /* never more than half */
        {"....................ffffffffff", 0}, /* 10 of the last 20 */
        {"....................fffffffffff", 31},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct breaker b;
        breaker_init(&b, i);
        unsigned at = feed(&b, table[i].results, s);
        ASSERT_EQ(at, table[i].opens_at);
        ASSERT_EQ(b.n_opened, at ? 1 : 0);
    }
}

TEST(half_open_lets_one_probe_through)
{
    struct breaker b;
    breaker_init(&b, 7);
    uint64_t now = 5 * s;
    ASSERT_EQ(feed(&b, "ttt", now), 3);
    ASSERT_STREQ(breaker_state_name(b.state), "open");
    ASSERT_TRUE(!breaker_allow(&b, now + 799 * ms));
    now += 1201 * ms;
    ASSERT_TRUE(breaker_allow(&b, now));
    ASSERT_STREQ(breaker_state_name(b.state), "half-open");
    for (int i = 0; i < 100; i++)
        ASSERT_TRUE(!breaker_allow(&b, now + (uint64_t)i * ms));
    breaker_forget(&b, now); /* the probe told nothing: another one may go, and only one */
    ASSERT_TRUE(breaker_allow(&b, now));
    ASSERT_TRUE(!breaker_allow(&b, now));
    breaker_report(&b, BREAKER_OK, now, now);
    ASSERT_STREQ(breaker_state_name(b.state), "closed");
    ASSERT_EQ(feed(&b, "ffff", now), 0); /* old failures are forgotten */
}

TEST(lost_probe_is_replaced)
{
    struct breaker b;
    breaker_init(&b, 7);
    ASSERT_EQ(feed(&b, "ttt", 0), 3);
    ASSERT_TRUE(breaker_allow(&b, 2 * s));
    ASSERT_TRUE(!breaker_allow(&b, 61 * s));
    ASSERT_TRUE(breaker_allow(&b, 62 * s));
    ASSERT_TRUE(!breaker_allow(&b, 63 * s));
}

TEST(reports_while_open_change_nothing)
{
    struct breaker b;
    breaker_init(&b, 3);
    ASSERT_EQ(feed(&b, "fffff", 0), 5);
    struct breaker before = b;
    breaker_report(&b, BREAKER_TIMEOUT, 0, 1);
    breaker_report(&b, BREAKER_OK, 0, 2);
    ASSERT_MEMEQ(&before, &b, sizeof b);
}

/* Neither a good nor a bad end of what began before the probe says anything about the peer. */
TEST(what_began_before_the_probe_decides_nothing)
{
    struct breaker b;
    breaker_init(&b, 3);
    ASSERT_EQ(feed(&b, "ttt", 10 * s), 3);
    ASSERT_TRUE(breaker_allow(&b, 12 * s));
    breaker_report(&b, BREAKER_OK, 9 * s, 12 * s + ms);
    ASSERT_EQ(b.state, BREAKER_HALF_OPEN);
    breaker_report(&b, BREAKER_TIMEOUT, 9 * s, 12 * s + ms);
    ASSERT_EQ(b.state, BREAKER_HALF_OPEN);
    breaker_forget(&b, 9 * s);
    ASSERT_TRUE(!breaker_allow(&b, 13 * s)); /* the probe is still out */
    ASSERT_TRUE(breaker_allow(&b, 73 * s));  /* lost: another one */
    breaker_report(&b, BREAKER_OK, 12 * s, 74 * s);
    ASSERT_EQ(b.state, BREAKER_HALF_OPEN);
    breaker_report(&b, BREAKER_OK, 73 * s, 75 * s);
    ASSERT_EQ(b.state, BREAKER_CLOSED);
    for (int i = 0; i < 30; i++)
        breaker_report(&b, BREAKER_TIMEOUT, 9 * s, 76 * s);
    ASSERT_EQ(b.state, BREAKER_CLOSED);
    breaker_report(&b, BREAKER_TIMEOUT, 76 * s, 77 * s); /* what began since counts, as ever */
    breaker_report(&b, BREAKER_TIMEOUT, 76 * s, 77 * s);
    breaker_report(&b, BREAKER_TIMEOUT, 76 * s, 77 * s);
    ASSERT_EQ(b.state, BREAKER_OPEN);
}

/* Back-off doubles from 1 s to 60 s, and every wait is within 20 % of it; jitter differs by seed.
 */
TEST(backoff_bounds)
{
    uint64_t low = UINT64_MAX, high = 0;
    for (uint64_t seed = 0; seed < 500; seed++) {
        struct breaker b;
        breaker_init(&b, seed);
        uint64_t now = seed * s, base = s;
        ASSERT_EQ(feed(&b, "ttt", now), 3);
        uint64_t wait = b.open_until_ns - now;
        low = wait < low ? wait : low;
        high = wait > high ? wait : high;
        for (int i = 0; i < 12; i++) {
            wait = b.open_until_ns - now;
            ASSERT_TRUE(wait >= base / 10 * 8 && wait <= base / 10 * 12);
            ASSERT_TRUE(!breaker_allow(&b, b.open_until_ns - 1));
            now = b.open_until_ns;
            ASSERT_TRUE(breaker_allow(&b, now));
            breaker_report(&b, BREAKER_FAILED, now, now);
            base = 2 * base > 60 * s ? 60 * s : 2 * base;
        }
    }
    ASSERT_TRUE(low < 820 * ms && high > 1180 * ms); /* the range is used */
}

TEST(a_cheap_probe_goes_within_ten_seconds)
{
    struct breaker b;
    breaker_init(&b, 5);
    b.rule.backoff_max_ns = BREAKER_CHEAP_NS;
    uint64_t now = s;
    ASSERT_EQ(feed(&b, "ttt", now), 3);
    for (int i = 0; i < 100; i++) {
        ASSERT_TRUE(b.open_until_ns - now <= 10 * s);
        now = b.open_until_ns;
        ASSERT_TRUE(breaker_allow(&b, now));
        breaker_report(&b, BREAKER_FAILED, now, now);
    }
}

/* A peer that answers probes and fails everything else: it is asked less and less. */
TEST(no_flapping)
{
    struct breaker b;
    breaker_init(&b, 11);
    uint64_t now = 0, asked = 0;
    while (now < 3600 * s) {
        if (breaker_allow(&b, now)) {
            breaker_report(&b, b.state == BREAKER_HALF_OPEN ? BREAKER_OK : BREAKER_TIMEOUT, now,
                           now);
            asked++;
        }
        now += 10 * ms;
    }
    ASSERT_TRUE(b.n_opened < 90); /* 3600 without memory of the relapse */
    ASSERT_TRUE(asked == 4 * b.n_opened || asked < 4 * b.n_opened + 4);
    /* Healed: it stays closed, and the next trouble starts from 1 s again. */
    while (!breaker_allow(&b, now))
        now += 10 * ms;
    for (int i = 0; i < 30; i++)
        breaker_report(&b, BREAKER_OK, now, now);
    uint64_t opened = b.n_opened;
    for (int i = 0; i < 1000; i++) {
        ASSERT_TRUE(breaker_allow(&b, now));
        breaker_report(&b, i % 3 ? BREAKER_OK : BREAKER_FAILED, now, now);
    }
    ASSERT_EQ(b.n_opened, opened);
    ASSERT_EQ(b.backoff_ns, 0);
}

/* Random peers against a naive model of the rules. */
TEST(property_model)
{
    uint64_t seed = 20261121;
    for (int run = 0; run < 300; run++) {
        struct breaker b;
        breaker_init(&b, test_rand(&seed));
        unsigned bad = (unsigned)(test_rand(&seed) % 101);
        bool out = false;
        int recent[20], n = 0, row = 0;
        uint64_t now = 0;
        for (int i = 0; i < 400; i++) {
            now += test_rand(&seed) % (500 * ms);
            enum breaker_state was = b.state;
            bool may = breaker_allow(&b, now);
            if (was == BREAKER_CLOSED) ASSERT_TRUE(may);
            if (b.state == BREAKER_OPEN) ASSERT_TRUE(!may);
            if (!may) continue;
            bool probe = b.state == BREAKER_HALF_OPEN;
            ASSERT_TRUE(!probe || !out);
            out = probe;
            int fails = test_rand(&seed) % 100 < bad ? 1 + (int)(test_rand(&seed) % 2) : 0;
            breaker_report(&b, (enum breaker_result)fails, now, now);
            out = false;
            if (probe) {
                ASSERT_EQ(b.state, fails ? BREAKER_OPEN : BREAKER_CLOSED);
                n = row = 0;
                continue;
            }
            memmove(recent + 1, recent, 19 * sizeof *recent);
            recent[0] = fails != 0;
            n = n < 20 ? n + 1 : 20;
            row = fails == BREAKER_TIMEOUT ? row + 1 : 0;
            int sum = 0;
            for (int j = 0; j < n; j++)
                sum += recent[j];
            bool opens = row == 3 || (sum >= 5 && 2 * sum > n);
            ASSERT_EQ(b.state == BREAKER_OPEN, opens);
            if (opens) n = row = 0;
        }
    }
}
