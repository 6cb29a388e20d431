/* worker/load.c: the line that gateways predict from. */
#include "base/buf.h"
#include "base/mem.h"
#include "tests/test.h"
#include "worker/fleet/fleet.h"

struct said {
    unsigned long long seq;
    double waiting_ms, hold_ms, token_ms, reused_ms;
    unsigned n_waiting, n_running, slots;
};

static struct said say(struct wk_load *l)
{
    struct buf b = BUF_INIT;
    struct said s;
    int end = 0;
    ASSERT_OK(wk_load_put(l, 2, 8, &b));
    ASSERT_EQ(sscanf(buf_cstr(&b), "=%llu %lf %u %u %u %lf %lf %lf\n%n", &s.seq, &s.waiting_ms,
                     &s.n_waiting, &s.n_running, &s.slots, &s.hold_ms, &s.token_ms, &s.reused_ms,
                     &end),
              8);
    ASSERT_EQ((size_t)end, b.len);
    ASSERT_EQ(s.seq, wk_load_seq(l));
    buf_fini(&b);
    return s;
}

TEST(life_of_a_request)
{
    struct wk_load *l;
    struct wk_load_item a = {0}, b = {0};
    ASSERT_OK(wk_load_create(&l));
    struct said s = say(l);
    ASSERT_TRUE(s.seq > 0 && s.waiting_ms == 0 && s.n_waiting + s.n_running == 0 && s.slots == 8);
    ASSERT_NEAR(s.reused_ms, 0.5, 1e-9); /* not measured yet */
    wk_load_queued(l, &a, 1e6);
    wk_load_queued(l, &b, 5000);
    s = say(l);
    ASSERT_TRUE(s.n_waiting == 2 && s.n_running == 0 && s.waiting_ms == 1005000);
    wk_load_begin(l, &a);
    s = say(l);
    ASSERT_TRUE(s.n_waiting == 1 && s.n_running == 1 && s.slots == 8);
    ASSERT_TRUE(s.waiting_ms > 5000 && s.waiting_ms <= 1005000); /* what is left of it */
    wk_load_first(l, &a, 300, 1000);
    s = say(l);
    ASSERT_TRUE(s.n_waiting == 1 && s.n_running == 1 && s.waiting_ms == 5000);
    ASSERT_NEAR(s.reused_ms, 0.3, 1e-9);
    ASSERT_EQ(s.slots, 1); /* it waits, and nothing is prefilled: there is no room for more */
    wk_load_end(l, &a);
    unsigned long long before = s.seq;
    s = say(l);
    ASSERT_TRUE(s.n_running == 0 && s.seq > before && s.hold_ms >= 0);
    wk_load_end(l, &b); /* cancelled in the queue */
    s = say(l);
    ASSERT_TRUE(s.n_waiting == 0 && s.waiting_ms == 0 && s.slots == 8);
    wk_load_destroy(l);
}

TEST(odd_measurements)
{
    struct wk_load *l;
    ASSERT_OK(wk_load_create(&l));
    for (int i = 0; i < 3; i++) {
        struct wk_load_item a = {0};
        wk_load_queued(l, &a, i == 0 ? -5 : NAN);
        wk_load_begin(l, &a);
        wk_load_first(l, &a, i == 0 ? -100 : 1e9, i == 1 ? 3 : 1000);
        wk_load_end(l, &a);
        struct said s = say(l);
        ASSERT_TRUE(s.waiting_ms == 0 && s.reused_ms >= 0 && s.reused_ms <= s.token_ms);
    }
    struct wk_load_item failed = {0}; /* in its prefill */
    wk_load_queued(l, &failed, 10);
    wk_load_begin(l, &failed);
    wk_load_end(l, &failed);
    ASSERT_EQ(say(l).n_running, 0);
    wk_load_end(l, &failed); /* never submitted: harmless */
    wk_load_destroy(l);
}
