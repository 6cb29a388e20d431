#include "gateway/front/admit.h"
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
    gw_admit_init(&a, running, waiting, wake, NULL, NULL);
    memset(n_woken, 0, sizeof n_woken);
    return a;
}

/* Of one flow that all share, where nothing else is said. */
static int enter_at(struct gw_admit *a, struct gw_ticket *t, unsigned lane, unsigned group,
                    uint64_t deadline)
{
    static struct gw_flow all;
    const struct gw_claim c = {.flow = &all, .work = 1, .weight = 1};
    return gw_admit_enter(a, t, lane, group, deadline, &c);
}

static int enter(struct gw_admit *a, struct gw_ticket *t, uint64_t deadline)
{
    return enter_at(a, t, 0, 0, deadline);
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
    (void)enter_at(&a, &t[1], 1, 0, 30);
    (void)enter_at(&a, &t[2], 1, 0, 20);
    (void)enter_at(&a, &t[3], 2, 0, 15);
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
        (void)enter_at(&a, &t[i], i, 0, 10);
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
            n += enter_at(&a, &t[group][i], 0, group, 10) == 1;
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
            (void)enter_at(&a, x, lane, lane, (uint64_t)step + test_rand(&seed) % 50);
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

/* ---- whose turn it is ---- */

static int enter_as(struct gw_admit *a, struct gw_ticket *t, struct gw_claim c)
{
    return gw_admit_enter(a, t, 0, 0, 10, &c);
}

/* The next that gets a turn when the one that runs leaves. */
static struct gw_ticket *after(struct gw_admit *a, struct gw_ticket *t)
{
    gw_admit_leave(a, t);
    return gw_admit_take(a, 0);
}

TEST(a_light_key_goes_before_what_a_heavy_one_has_waiting)
{
    struct gw_admit a = make(1, 99);
    struct gw_flow heavy = {0}, light = {0};
    struct gw_ticket h[9] = {0}, l = {0};
    const struct gw_claim from_heavy = {.flow = &heavy, .class = 5, .work = 100, .weight = 1};
    const struct gw_claim from_light = {.flow = &light, .class = 5, .work = 100, .weight = 1};
    for (int i = 0; i < 9; i++)
        (void)enter_as(&a, &h[i], from_heavy);
    struct gw_ahead f = gw_admit_ahead(&a, 0, &from_light);
    ASSERT_EQ(f.n, 0);
    f = gw_admit_ahead(&a, 0, &from_heavy);
    ASSERT_TRUE(f.n == 8 && f.work == 800 && f.own_work == 800);
    ASSERT_EQ(gw_admit_ahead(&a, 1, &from_heavy).n, 0); /* another model's */
    ASSERT_EQ(enter_as(&a, &l, from_light), 0);
    ASSERT_EQ(gw_admit_flow(&a, &heavy).n_waiting, 8);
    ASSERT_EQ(gw_admit_flow(&a, &light).n_waiting, 1);
    ASSERT_TRUE(after(&a, &h[0]) == &l);
    ASSERT_TRUE(after(&a, &l) == &h[1]);
    for (int i = 1; i < 8; i++)
        ASSERT_TRUE(after(&a, &h[i]) == &h[i + 1]);
    gw_admit_leave(&a, &h[8]);
    ASSERT_NEAR(gw_admit_flow(&a, &heavy).work, 900, 1e-9);
    ASSERT_NEAR(gw_admit_view(&a).work, 1000, 1e-9);
    ASSERT_EQ(gw_admit_flow(&a, &heavy).n_waiting, 0);
    gw_admit_fini(&a);
}

TEST(better_priorities_go_first_and_leaving_costs_nothing)
{
    struct gw_admit a = make(1, 99);
    struct gw_flow f = {0};
    struct gw_ticket t[4] = {0};
    struct gw_claim c = {.flow = &f, .class = 9, .work = 100, .weight = 1};
    (void)enter_as(&a, &t[0], c);
    (void)enter_as(&a, &t[1], c);
    c.class = 2;
    (void)enter_as(&a, &t[2], c);
    (void)enter_as(&a, &t[3], c);
    gw_admit_leave(&a, &t[2]); /* unserved: what came behind it keeps its place */
    ASSERT_TRUE(after(&a, &t[0]) == &t[3]);
    ASSERT_TRUE(after(&a, &t[3]) == &t[1]);
    gw_admit_leave(&a, &t[1]);
    ASSERT_NEAR(f.work, 300, 1e-9);
    gw_admit_fini(&a);
}

/* What waits for a class that nobody of is there yet: all that is better, however much was served
 * since its last request. */
TEST(a_low_priority_sees_what_is_ahead_of_it)
{
    struct gw_admit a = make(1, 99);
    struct gw_flow f = {0};
    struct gw_ticket t[40] = {0};
    struct gw_claim c = {.flow = &f, .class = 2, .work = POL_FAIR_AGE, .weight = 1};
    (void)enter_as(&a, &t[0], c);
    for (int i = 1; i < 40; i++) {
        (void)enter_as(&a, &t[i], c);
        if (i < 37) ASSERT_TRUE(after(&a, &t[i - 1]) == &t[i]);
    }
    c.class = 9;
    struct gw_ahead x = gw_admit_ahead(&a, 0, &c);
    ASSERT_TRUE(x.n == 3 && x.work == 3 * POL_FAIR_AGE && x.own_work == x.work);
    c.class = 0;
    ASSERT_EQ(gw_admit_ahead(&a, 0, &c).n, 0);
    gw_admit_fini(&a);
}

static bool has_room;
static unsigned n_asked;

static bool room(void *ctx, void *user)
{
    n_asked++;
    return has_room;
}

/* Against filling the workers' own queues, where nobody can be overtaken. */
TEST(paced_tickets_wait_for_room_one_at_a_time)
{
    struct gw_admit a = make(9, 9);
    struct gw_flow f = {0};
    struct gw_ticket t[4] = {0}, free = {0};
    struct gw_claim c = {.flow = &f, .work = 1, .weight = 1, .paced = true};
    a.room = room;
    has_room = true;
    ASSERT_EQ(enter_as(&a, &t[0], c), 1);
    has_room = false;
    for (int i = 1; i < 4; i++)
        ASSERT_EQ(enter_as(&a, &t[i], c), 0);
    c.paced = false;
    ASSERT_EQ(gw_admit_enter(&a, &free, 0, 1, 10, &c), 1); /* another model's, not paced */
    gw_admit_leave(&a, &free);
    n_asked = 0;
    gw_admit_again(&a);
    ASSERT_EQ(n_asked, 1); /* once for all that wait for the same */
    ASSERT_TRUE(gw_admit_take(&a, 0) == NULL);
    has_room = true;
    gw_admit_again(&a);
    gw_admit_again(&a);
    ASSERT_EQ(gw_admit_view(&a).n_running, 2); /* its work is not known there before it is sent */
    ASSERT_TRUE(gw_admit_take(&a, 0) == &t[1]);
    gw_admit_again(&a);
    ASSERT_EQ(gw_admit_view(&a).n_running, 3);
    gw_admit_leave(&a, &t[2]); /* granted, and left before its lane looked: the next one's turn */
    ASSERT_TRUE(gw_admit_take(&a, 0) == &t[3]);
    for (int i = 0; i < 4; i++)
        gw_admit_leave(&a, &t[i]);
    ASSERT_EQ(gw_admit_view(&a).n_running, 0);
    gw_admit_fini(&a);
}

static bool room_for(void *ctx, void *user)
{
    return user != NULL; /* the second model's */
}

/* Two models whose names share a group: the one without room holds up nobody of the other. */
TEST(a_full_place_is_no_other_s_of_its_group)
{
    struct gw_admit a = make(9, 9);
    struct gw_flow f = {0};
    struct gw_ticket t[4] = {0};
    struct gw_claim c = {.flow = &f, .work = 1, .weight = 1, .place = 1, .paced = true};
    a.room = room_for;
    ASSERT_EQ(enter_as(&a, &t[0], c), 0);
    ASSERT_EQ(enter_as(&a, &t[1], c), 0);
    c.place = 2;
    t[2].user = t[3].user = &a;
    ASSERT_EQ(enter_as(&a, &t[2], c), 0);
    ASSERT_TRUE(gw_admit_take(&a, 0) == &t[2]);
    ASSERT_EQ(enter_as(&a, &t[3], c), 0);
    ASSERT_TRUE(gw_admit_take(&a, 0) == &t[3]);
    ASSERT_EQ(gw_admit_view(&a).n_waiting, 2);
    gw_admit_fini(&a);
}

/* Ten thousand requests of four keys through the queue itself: their shares are the weights. */
TEST(shares_of_the_queue)
{
    enum { FLOWS = 4, DEPTH = 8, TURNS = 10000 };
    static const double weight[FLOWS] = {1, 2, 3, 4};
    struct gw_admit a = make(1, 99);
    struct gw_flow flow[FLOWS] = {0};
    struct gw_ticket t[FLOWS][DEPTH] = {0}, *now = &t[0][0];
    uint64_t seed = 3;
    for (int f = 0; f < FLOWS; f++)
        for (int i = 0; i < DEPTH; i++)
            (void)enter_as(&a, &t[f][i],
                           (struct gw_claim){.flow = &flow[f], .work = 100, .weight = weight[f]});
    for (int i = 0; i < TURNS; i++) {
        struct gw_ticket *next = after(&a, now);
        struct gw_claim c = now->claim; /* it comes again */
        c.work = 50 + (double)(test_rand(&seed) % 1000);
        ASSERT_EQ(enter_as(&a, now, c), 0);
        now = next;
    }
    for (int f = 0; f < FLOWS; f++)
        ASSERT_NEAR(flow[f].work / gw_admit_view(&a).work * 10 / weight[f], 1, 0.05);
    gw_admit_fini(&a);
}
