/* Workers on demand: asleep until a request wants them, and again when none did for long enough.
 * Nothing is probed here: how a target is, the test says. */
#include "base/buf.h"
#include "base/net/http.h"
#include "gateway/fleet/fleet.h"
#include "gateway/fleet/fleet_int.h"
#include "gateway/fleet/lease.h"
#include "gateway/process/config.h"
#include "tests/test.h"

#include <string.h>

struct site {
    struct http_loop *loop;
    struct gw_fleet *fleet;
    unsigned n_wanted, n_lost;
};

static void on_change(void *ctx)
{
}

static void on_lost(void *ctx)
{
    ((struct site *)ctx)->n_lost++;
}

static void on_wanted(void *ctx, unsigned index)
{
    struct site *s = ctx;
    ASSERT_EQ(index, 1);
    s->n_wanted++;
    http_loop_stop(s->loop);
}

static void set(struct site *s, unsigned index, enum gw_target_state state)
{
    fleet_lock(s->fleet);
    fleet_set_health(s->fleet, s->fleet->target[index], state);
    fleet_unlock(s->fleet);
    fleet_pump(s->fleet);
}

/* Worker 0 serves "main" and is ready, worker 1 is asleep and will serve "emb". */
static void site_init(struct site *s)
{
    static const struct gw_fleet_ops ops = {on_change, on_lost, on_change, NULL, NULL, on_wanted};
    const struct gw_config c = {.connect_timeout_ms = 1000};
    unsigned index;
    *s = (struct site){0};
    ASSERT_OK(http_loop_create(&s->loop));
    ASSERT_OK(gw_fleet_create(s->loop, &c, NULL, &ops, s, &s->fleet));
    ASSERT_OK(gw_fleet_add_worker(s->fleet, "unix:/no/where/0", true, &index));
    ASSERT_OK(gw_fleet_add_worker(s->fleet, "unix:/no/where/1", true, &index));
    gw_fleet_mix(s->fleet);
    ASSERT_OK(fleet_models_named(s->fleet->target[0], "main"));
    ASSERT_OK(gw_fleet_on_demand(s->fleet, 1, "emb"));
    set(s, 0, GW_TARGET_READY);
}

static void site_fini(struct site *s)
{
    gw_fleet_stop(s->fleet);
    gw_fleet_destroy(s->fleet);
    http_loop_destroy(s->loop);
}

/* Who gets it: the target's index, else -1 and *ret. Given back at once. */
static int who(struct site *s, const struct gw_want *w, enum gw_pick *ret)
{
    struct gw_lease l = {0};
    *ret = gw_fleet_pick(s->fleet, w, &l, NULL);
    const int index = *ret == GW_PICK_OK ? (int)l.index : -1;
    gw_fleet_release(s->fleet, &l, GW_DONE_OK, 0);
    return index;
}

static enum gw_pick how(struct site *s, const char *model)
{
    enum gw_pick r;
    (void)who(s, &(struct gw_want){.model = model}, &r);
    return r;
}

static enum gw_target_state state(struct site *s)
{
    struct gw_target_view v;
    ASSERT_TRUE(gw_fleet_view(s->fleet, 1, &v));
    return v.state;
}

/* It is listed, counts as ready, and its name alone wakes it. */
static void check_asleep(struct site *s)
{
    struct buf list = BUF_INIT;
    enum gw_pick r;
    ASSERT_EQ(state(s), GW_TARGET_ASLEEP);
    ASSERT_EQ(gw_fleet_n_ready(s->fleet), 2);
    ASSERT_OK(gw_fleet_list_models(s->fleet, NULL, &list));
    ASSERT_TRUE(strstr(buf_cstr(&list), "\"emb\"") != NULL);
    buf_fini(&list);
    s->n_wanted = 0;
    ASSERT_EQ(who(s, &(struct gw_want){0}, &r), 0);
    ASSERT_EQ(who(s, &(struct gw_want){.model = "main"}, &r), 0);
    ASSERT_EQ(who(s, &(struct gw_want){.model = "default"}, &r), 0);
    ASSERT_EQ(how(s, "nobody"), GW_PICK_UNKNOWN_MODEL);
    fleet_pump(s->fleet);
    ASSERT_EQ(s->n_wanted, 0);
    ASSERT_EQ(how(s, "emb"), GW_PICK_RETURNING); /* which waits */
    ASSERT_EQ(how(s, "emb"), GW_PICK_RETURNING);
    ASSERT_OK(http_loop_run(s->loop));
    ASSERT_EQ(s->n_wanted, 1);
}

TEST(a_request_wakes_it)
{
    struct site s;
    site_init(&s);
    check_asleep(&s);
    gw_fleet_expect(s.fleet, 1); /* its process was started */
    ASSERT_EQ(how(&s, "emb"), GW_PICK_RETURNING);
    fleet_pump(s.fleet);
    ASSERT_EQ(s.n_wanted, 1); /* it need not be started twice */
    set(&s, 1, GW_TARGET_READY);
    ASSERT_EQ(how(&s, "emb"), GW_PICK_OK);
    gw_fleet_lost(s.fleet, 1); /* it dies: whoever wants it starts it again */
    check_asleep(&s);
    site_fini(&s);
}

TEST(it_rests_when_it_was_idle_for_long_enough)
{
    struct site s;
    struct gw_lease l = {0};
    site_init(&s);
    gw_fleet_expect(s.fleet, 1);
    ASSERT_EQ(gw_fleet_rest(s.fleet, 1, 7), 7); /* it loads */
    set(&s, 1, GW_TARGET_READY);
    ASSERT_EQ(gw_fleet_pick(s.fleet, &(struct gw_want){.model = "emb"}, &l, NULL), GW_PICK_OK);
    ASSERT_EQ(gw_fleet_rest(s.fleet, 1, 3), 3); /* a request is there */
    ASSERT_EQ(state(&s), GW_TARGET_READY);
    gw_fleet_release(s.fleet, &l, GW_DONE_OK, 0);
    const uint64_t left_ms = gw_fleet_rest(s.fleet, 1, 3600000);
    ASSERT_TRUE(left_ms > 3000000 && left_ms <= 3600000);
    ASSERT_EQ(s.n_lost, 0);
    s.fleet->target[1]->used_ns -= 3600000 * 1000000ull; /* an hour goes by */
    ASSERT_EQ(gw_fleet_rest(s.fleet, 1, 3600000), 0);
    ASSERT_EQ(s.n_lost, 1);
    check_asleep(&s);
    site_fini(&s);
}

/* Once it was loaded it is known what it is for: a request of that kind finds it without a name. */
TEST(its_kind_is_known_once_it_was_loaded)
{
    const struct gw_want vectors = {.task = GW_EMBED};
    struct site s;
    enum gw_pick r;
    site_init(&s);
    s.fleet->target[0]->models.tasks = s.fleet->target[0]->models.meant = GW_GENERATE;
    ASSERT_EQ(who(&s, &vectors, &r), -1);
    ASSERT_EQ(r, GW_PICK_UNKNOWN_MODEL);
    gw_fleet_expect(s.fleet, 1);
    s.fleet->target[1]->models.tasks = s.fleet->target[1]->models.meant = GW_EMBED;
    set(&s, 1, GW_TARGET_READY);
    ASSERT_EQ(who(&s, &vectors, &r), 1);
    s.fleet->target[1]->used_ns = 0;
    ASSERT_EQ(gw_fleet_rest(s.fleet, 1, 1), 0);
    ASSERT_EQ(who(&s, &vectors, &r), -1);
    ASSERT_EQ(r, GW_PICK_RETURNING);
    site_fini(&s);
}

TEST(without_memory_it_is_no_worker_on_demand)
{
    struct site s;
    site_init(&s);
    mem_fail_nth(1);
    ASSERT_ERR(gw_fleet_on_demand(s.fleet, 0, "other"), -ENOMEM);
    mem_fail_nth(0);
    ASSERT_EQ(how(&s, "main"), GW_PICK_OK);
    site_fini(&s);
}
