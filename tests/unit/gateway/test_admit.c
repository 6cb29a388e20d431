#include "gateway/admit.h"
#include "tests/test.h"

#include <errno.h>

static struct gw_ticket *last_granted, *last_expired;
static unsigned n_granted, n_expired;

static void granted(struct gw_ticket *t)
{
    last_granted = t;
    n_granted++;
}

static void expired(struct gw_ticket *t)
{
    last_expired = t;
    n_expired++;
}

static struct gw_admit make(unsigned running, unsigned waiting)
{
    struct gw_admit a;
    gw_admit_init(&a, running, waiting, granted, expired);
    last_granted = last_expired = NULL;
    n_granted = n_expired = 0;
    return a;
}

TEST(first_come_first_served)
{
    struct gw_admit a = make(1, 2);
    struct gw_ticket t[4] = {0};
    ASSERT_EQ(gw_admit_enter(&a, &t[0], 10), 1);
    ASSERT_EQ(gw_admit_enter(&a, &t[1], 10), 0);
    ASSERT_EQ(gw_admit_enter(&a, &t[2], 10), 0);
    ASSERT_EQ(gw_admit_enter(&a, &t[3], 10), -EAGAIN);
    gw_admit_leave(&a, &t[3]); /* never entered: harmless */
    gw_admit_leave(&a, &t[0]);
    ASSERT_TRUE(last_granted == &t[1]);
    gw_admit_leave(&a, &t[1]);
    ASSERT_TRUE(last_granted == &t[2]);
    gw_admit_leave(&a, &t[2]);
    ASSERT_EQ(a.n_running, 0);
    ASSERT_EQ(a.n_waiting, 0);
}

TEST(a_waiter_may_leave)
{
    struct gw_admit a = make(1, 9);
    struct gw_ticket t[4] = {0};
    for (int i = 0; i < 4; i++)
        (void)gw_admit_enter(&a, &t[i], 10);
    gw_admit_leave(&a, &t[2]); /* middle */
    gw_admit_leave(&a, &t[1]); /* head */
    gw_admit_leave(&a, &t[0]);
    ASSERT_TRUE(last_granted == &t[3]);
    ASSERT_EQ(n_granted, 1);
}

TEST(deadlines)
{
    struct gw_admit a = make(1, 9);
    struct gw_ticket t[4] = {0};
    (void)gw_admit_enter(&a, &t[0], 5);
    (void)gw_admit_enter(&a, &t[1], 30);
    (void)gw_admit_enter(&a, &t[2], 20);
    (void)gw_admit_enter(&a, &t[3], 40);
    ASSERT_EQ(gw_admit_expire(&a, 10), 20);
    ASSERT_EQ(gw_admit_expire(&a, 20), 30);
    ASSERT_TRUE(last_expired == &t[2]);
    ASSERT_EQ(gw_admit_expire(&a, 100), 0);
    ASSERT_EQ(n_expired, 3);
    ASSERT_EQ(a.n_running, 1);
}

TEST(new_limits_apply_at_once)
{
    struct gw_admit a = make(1, 9);
    struct gw_ticket t[4] = {0};
    for (int i = 0; i < 4; i++)
        (void)gw_admit_enter(&a, &t[i], 10);
    gw_admit_set(&a, 3, 0);
    ASSERT_EQ(n_granted, 2);
    ASSERT_EQ(a.n_waiting, 1);
}

/* Against counting: whatever happens, no more run than may, and nobody waits beside a free place.
 */
TEST(random_life)
{
    struct gw_admit a = make(3, 5);
    struct gw_ticket t[20] = {0};
    uint64_t seed = 7;
    for (int step = 0; step < 20000; step++) {
        struct gw_ticket *x = &t[test_rand(&seed) % 20];
        if (x->state == GW_TICKET_NONE)
            (void)gw_admit_enter(&a, x, (uint64_t)step + test_rand(&seed) % 50);
        else if (test_rand(&seed) % 4 == 0)
            (void)gw_admit_expire(&a, (uint64_t)step);
        else
            gw_admit_leave(&a, x);
        unsigned running = 0, waiting = 0;
        for (int i = 0; i < 20; i++) {
            running += t[i].state == GW_TICKET_RUNNING;
            waiting += t[i].state == GW_TICKET_WAITING;
        }
        ASSERT_EQ(running, a.n_running);
        ASSERT_EQ(waiting, a.n_waiting);
        ASSERT_TRUE(running <= 3 && waiting <= 5);
        ASSERT_TRUE(waiting == 0 || running == 3);
    }
}
