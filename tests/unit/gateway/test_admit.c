#include "gateway/admit.h"
#include "tests/test.h"

#include <errno.h>

static unsigned n_woken[GW_ADMIT_LANES];

static void wake(void *ctx, unsigned lane)
{
    n_woken[lane]++;
}

static struct gw_admit make(unsigned running, unsigned waiting)
{
    struct gw_admit a;
    gw_admit_init(&a, running, waiting, wake, NULL);
    memset(n_woken, 0, sizeof n_woken);
    return a;
}

static int enter(struct gw_admit *a, struct gw_ticket *t, uint64_t deadline)
{
    return gw_admit_enter(a, t, 0, 0, deadline);
}

TEST(first_come_first_served)
{
    struct gw_admit a = make(1, 2);
    struct gw_ticket t[4] = {0};
    ASSERT_EQ(enter(&a, &t[0], 10), 1);
    ASSERT_EQ(enter(&a, &t[1], 10), 0);
    ASSERT_EQ(enter(&a, &t[2], 10), 0);
    ASSERT_EQ(enter(&a, &t[3], 10), -EAGAIN);
    gw_admit_leave(&a, &t[3]); /* never entered: harmless */
    gw_admit_leave(&a, &t[0]);
    ASSERT_EQ(n_woken[0], 1);
    ASSERT_TRUE(gw_admit_take(&a, 0) == &t[1]);
    ASSERT_TRUE(gw_admit_take(&a, 0) == NULL);
    gw_admit_leave(&a, &t[1]);
    gw_admit_leave(&a, &t[2]); /* granted, and left before its lane looked */
    ASSERT_TRUE(gw_admit_take(&a, 0) == NULL);
    struct gw_admit_view v = gw_admit_view(&a);
    ASSERT_EQ(v.n_running, 0);
    ASSERT_EQ(v.n_waiting, 0);
    gw_admit_fini(&a);
}

TEST(a_waiter_may_leave)
{
    struct gw_admit a = make(1, 9);
    struct gw_ticket t[4] = {0};
    for (int i = 0; i < 4; i++)
        (void)enter(&a, &t[i], 10);
    gw_admit_leave(&a, &t[2]); /* middle */
    gw_admit_leave(&a, &t[1]); /* head */
    gw_admit_leave(&a, &t[0]);
    ASSERT_TRUE(gw_admit_take(&a, 0) == &t[3]);
    gw_admit_fini(&a);
}

TEST(deadlines_by_lane)
{
    struct gw_admit a = make(1, 9);
    struct gw_ticket t[4] = {0};
    uint64_t next;
    (void)enter(&a, &t[0], 5);
    (void)gw_admit_enter(&a, &t[1], 1, 0, 30);
    (void)gw_admit_enter(&a, &t[2], 1, 0, 20);
    (void)gw_admit_enter(&a, &t[3], 2, 0, 15);
    ASSERT_TRUE(gw_admit_expire(&a, 1, 10, &next) == NULL);
    ASSERT_EQ(next, 20);
    ASSERT_TRUE(gw_admit_expire(&a, 1, 20, &next) == &t[2]);
    ASSERT_TRUE(gw_admit_expire(&a, 1, 20, &next) == NULL);
    ASSERT_EQ(next, 30);
    ASSERT_TRUE(gw_admit_expire(&a, 1, 100, &next) == &t[1]);
    ASSERT_TRUE(gw_admit_expire(&a, 1, 100, &next) == NULL);
    ASSERT_EQ(next, 0);
    ASSERT_EQ(gw_admit_view(&a).n_waiting, 1); /* lane 2 looks after its own */
    gw_admit_fini(&a);
}

TEST(new_limits_apply_at_once)
{
    struct gw_admit a = make(1, 9);
    struct gw_ticket t[4] = {0};
    for (unsigned i = 0; i < 4; i++)
        (void)gw_admit_enter(&a, &t[i], i, 0, 10);
    gw_admit_set(&a, 3, 0);
    ASSERT_TRUE(n_woken[1] == 1 && n_woken[2] == 1 && n_woken[3] == 0);
    ASSERT_EQ(gw_admit_view(&a).n_waiting, 1);
    gw_admit_fini(&a);
}

/* Against places that are held by who waits for a full backend, and against losing one's place. */
TEST(parked_tickets)
{
    struct gw_admit a = make(1, 2);
    struct gw_ticket t[4] = {0};
    ASSERT_EQ(enter(&a, &t[0], 10), 1);
    ASSERT_EQ(enter(&a, &t[1], 10), 0);
    ASSERT_EQ(gw_admit_park(&a, &t[0]), 0);
    ASSERT_TRUE(gw_admit_take(&a, 0) == &t[1]);
    ASSERT_EQ(enter(&a, &t[2], 10), 0);
    ASSERT_EQ(enter(&a, &t[3], 10), -EAGAIN); /* the parked one counts */
    ASSERT_EQ(gw_admit_park(&a, &t[1]), -EAGAIN);
    ASSERT_EQ(gw_admit_unpark(&a, &t[0]), 0);
    gw_admit_leave(&a, &t[1]);
    ASSERT_TRUE(gw_admit_take(&a, 0) == &t[0]); /* it came before t[2] */
    gw_admit_leave(&a, &t[0]);
    ASSERT_TRUE(gw_admit_take(&a, 0) == &t[2]);
    ASSERT_EQ(gw_admit_park(&a, &t[2]), 0);
    ASSERT_EQ(gw_admit_unpark(&a, &t[2]), 1);
    gw_admit_leave(&a, &t[2]);
    gw_admit_fini(&a);
}

/* Against a backend that hangs and takes all places: another's requests always get in. */
TEST(nobody_takes_the_last_places)
{
    enum { N = 64 };
    struct gw_admit a = make(N, N);
    static struct gw_ticket t[8][2 * N + 1];
    memset(t, 0, sizeof t);
    gw_admit_share(&a, true);
    for (unsigned group = 0; group < 3; group++) {
        int n = 0;
        for (int i = 0; i <= 2 * N; i++)
            n += gw_admit_enter(&a, &t[group][i], 0, group, 10) == 1;
        ASSERT_TRUE(n > 0);
        if (group == 0) ASSERT_EQ(n, 56);
    }
    gw_admit_share(&a, false); /* one backend alone may use everything */
    ASSERT_EQ(gw_admit_view(&a).n_running, N);
    gw_admit_fini(&a);
}

/* Against counting: whatever happens, no more run than may, and nobody waits beside a free place.
 */
TEST(random_life)
{
    struct gw_admit a = make(3, 5);
    struct gw_ticket t[20] = {0};
    uint64_t seed = 7, next;
    for (int step = 0; step < 20000; step++) {
        struct gw_ticket *x = &t[test_rand(&seed) % 20];
        unsigned lane = (unsigned)test_rand(&seed) % 3, dice = (unsigned)test_rand(&seed) % 4;
        if (x->state == GW_TICKET_NONE)
            (void)gw_admit_enter(&a, x, lane, lane, (uint64_t)step + test_rand(&seed) % 50);
        else if (x->state == GW_TICKET_PARKED && dice < 2)
            (void)gw_admit_unpark(&a, x);
        else if (x->state == GW_TICKET_RUNNING && dice == 0)
            (void)gw_admit_park(&a, x);
        else if (dice == 1)
            (void)gw_admit_expire(&a, lane, (uint64_t)step, &next);
        else if (dice == 2)
            (void)gw_admit_take(&a, lane);
        else
            gw_admit_leave(&a, x);
        unsigned running = 0, waiting = 0, parked = 0;
        for (int i = 0; i < 20; i++) {
            running += t[i].state == GW_TICKET_RUNNING || t[i].state == GW_TICKET_GRANTED;
            waiting += t[i].state == GW_TICKET_WAITING;
            parked += t[i].state == GW_TICKET_PARKED;
        }
        struct gw_admit_view v = gw_admit_view(&a);
        ASSERT_EQ(running, v.n_running);
        ASSERT_EQ(waiting + parked, v.n_waiting);
        ASSERT_TRUE(running <= 3 && waiting + parked <= 5);
        ASSERT_TRUE(waiting == 0 || running == 3);
    }
    gw_admit_fini(&a);
}
