#include "gateway/fleet/residency.h"
#include "base/clock.h"
#include "gateway/fleet/fleet_int.h"
#include "gateway/process/config.h"
#include "tests/test.h"

#include <event2/event.h>
#include <stdio.h>

TEST(lines)
{
    struct gw_residency_line l;
    ASSERT_OK(gw_residency_parse("@00ff 12 full", &l));
    ASSERT_TRUE(l.kind == GW_RESIDENCY_HEAD && l.epoch == 255 && l.seq == 12 && l.full);
    ASSERT_OK(gw_residency_parse("@1 0 delta", &l));
    ASSERT_TRUE(!l.full);
    ASSERT_OK(gw_residency_parse("+ffffffffffffffff 512 0.25 nvme", &l));
    ASSERT_TRUE(l.kind == GW_RESIDENCY_HELD && l.text_id == UINT64_MAX && l.tokens == 512);
    ASSERT_NEAR(l.cost, 0.25, 1e-9);
    ASSERT_OK(gw_residency_parse("-1", &l));
    ASSERT_TRUE(l.kind == GW_RESIDENCY_GONE && l.text_id == 1);
    ASSERT_OK(gw_residency_parse("=7 1500.5 2 3 16 900 0.25 0.0625 later=1", &l));
    ASSERT_TRUE(l.kind == GW_RESIDENCY_LOAD && l.seq == 7 && l.load.n_waiting == 2);
    ASSERT_TRUE(l.load.n_running == 3 && l.load.slots == 16 && l.load.hold_ms == 900);
    ASSERT_NEAR(l.load.waiting_ms, 1500.5, 1e-9);
    ASSERT_TRUE(l.load.token_ms == 0.25 && l.load.reused_ms == 0.0625);
    static const char *const bad[] = {"",
                                      "=",
                                      "=1 2 3 4 5 6 7",
                                      "=x 1 2 3 16 900 0.25 0.0625",
                                      "=1 nan 2 3 16 900 0.25 0.0625",
                                      "=1 -1 2 3 16 900 0.25 0.0625",
                                      "=1 1 2 3 -16 900 0.25 0.0625",
                                      "=1 1 2 3 16 900 0.25 1e99",
                                      "@",
                                      "@1 2",
                                      "@1 2 half",
                                      "@ 1 full",
                                      "-",
                                      "-x",
                                      "- 1",
                                      "-1 2",
                                      "+1",
                                      "+1 2",
                                      "+1 2 x ram",
                                      "+1 2 2 ram",
                                      "+1 -2 0 ram",
                                      "+1 2 nan ram",
                                      "+1 2 0",
                                      "+1 99999999999 0 ram",
                                      "+11111111111111111 1 0 ram",
                                      "*1"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        ASSERT_ERR(gw_residency_parse(bad[i], &l), -EBADMSG);
}

/* ---- against a scripted worker ---- */

struct world {
    struct http_loop *loop;
    struct http_server *server;
    struct gw_directory *directory;
    struct gw_fleet *fleet;
    unsigned target;
    const char *answer[8]; /* one after the other; NULL: hold the call */
    unsigned n_asked;
    char query[8][128];
    struct http_timer limit;
    bool timed_out;
};

static void on_request(void *ctx, struct http_req *r)
{
    struct world *w = ctx;
    if (strcmp(r->msg.path, "/admin/residents") != 0) { /* it is well, and has a model */
        static const char models[] = "{\"data\":[{\"id\":\"m\"}]}";
        (void)http_reply(r, 200, "application/json", NULL, models, sizeof models - 1);
        return;
    }
    unsigned i = w->n_asked++;
    ASSERT_STREQ(http_header_find(&r->msg.head, "authorization"), "Bearer k");
    if (i >= 8 || !w->answer[i]) return;
    (void)snprintf(w->query[i], sizeof w->query[i], "%s", r->msg.query);
    const char *a = w->answer[i];
    if (a[0] == '!') {
        (void)http_reply(r, 404, "text/plain", NULL, "", 0);
    } else if (a[0] == '~') { /* half of it, then the connection breaks */
        (void)http_reply_start(r, 200, "text/plain", NULL, -1);
        (void)http_reply_write(r, a + 1, strlen(a + 1));
        http_reply_abort(r);
    } else {
        (void)http_reply(r, 200, "text/plain", NULL, a, strlen(a));
    }
}

static void on_close(void *ctx, struct http_req *r, bool aborted)
{
}

static void on_limit(void *arg)
{
    struct world *w = arg;
    w->timed_out = true;
    http_loop_stop(w->loop);
}

static void on_change(void *ctx)
{
}

static void on_silent(void *ctx, unsigned index, uint64_t silent_ms)
{
}

static struct gw_load last_load;
static unsigned n_loads, n_lost;

static void on_load(void *ctx)
{
    const struct world *w = ctx;
    const struct fleet_load *l = &w->fleet->target[w->target]->load;
    if (l->known)
        last_load = l->said, n_loads++;
    else
        n_lost++;
}

static void world_start(struct world *w)
{
    static const struct http_server_ops ops = {.on_request = on_request, .on_close = on_close};
    static const struct gw_fleet_ops fleet_ops = {on_change, on_change, on_change, on_silent,
                                                  on_load};
    const struct gw_config config = {
        .connect_timeout_ms = 2000, .first_byte_timeout_ms = 5000, .idle_timeout_ms = 5000};
    const struct gw_upstream door = {.authorization = "Bearer k"};
    char address[32];
    ASSERT_OK(http_loop_create(&w->loop));
    ASSERT_OK(http_server_create(w->loop, NULL, &ops, w, &w->server));
    ASSERT_OK(http_server_listen(w->server, "127.0.0.1:0", NULL, NULL));
    ASSERT_OK(gw_directory_create(1 << 16, &w->directory));
    ASSERT_OK(gw_fleet_create(w->loop, &config, w->directory, &fleet_ops, w, &w->fleet));
    for (int i = 1; i <= 3; i++) { /* others, which nobody serves */
        (void)snprintf(address, sizeof address, "127.0.0.1:%d", i);
        ASSERT_OK(gw_fleet_add_worker(w->fleet, address, false, &w->target));
    }
    (void)snprintf(address, sizeof address, "127.0.0.1:%d", http_server_port(w->server));
    ASSERT_OK(gw_fleet_add_worker(w->fleet, address, false, &w->target));
    ASSERT_OK(gw_fleet_secure(w->fleet, w->target, &door, NULL));
    ASSERT_EQ(w->target, 3);
    gw_fleet_start(w->fleet);
}

static uint64_t held(struct world *w, uint64_t text)
{
    uint64_t t[4];
    gw_directory_resident(w->directory, &text, 1, t, 4);
    return t[3];
}

/* Run the loop until the worker was asked n times and nothing of it is under way. */
static void run_until_asked(struct world *w, unsigned n)
{
    uint64_t end = clock_ns() + 10000000000u;
    while (w->n_asked < n) {
        ASSERT_TRUE(clock_ns() < end);
        (void)event_base_loop(http_loop_base(w->loop), EVLOOP_ONCE);
    }
}

static void world_stop(struct world *w)
{
    gw_fleet_stop(w->fleet);
    gw_fleet_destroy(w->fleet);
    http_server_destroy(w->server);
    http_loop_destroy(w->loop);
    gw_directory_destroy(w->directory);
}

TEST(a_snapshot_then_news)
{
    struct world w = {.answer = {"@aa 2 full\n+1 100 0 ram\n+2 200 0.5 nvme\n",
                                 "@aa 4 delta\n-1\n+3 300 0 ram\n", "@aa 4 delta\n", NULL}};
    world_start(&w);
    run_until_asked(&w, 2);
    ASSERT_STREQ(w.query[0], "epoch=0000000000000000&since=0&load=0&wait_ms=20000");
    ASSERT_STREQ(w.query[1], "epoch=00000000000000aa&since=2&load=0&wait_ms=20000");
    run_until_asked(&w, 4);
    ASSERT_STREQ(w.query[2], "epoch=00000000000000aa&since=4&load=0&wait_ms=20000");
    ASSERT_EQ(held(&w, 1), 0);
    ASSERT_EQ(held(&w, 2), 100);
    ASSERT_EQ(held(&w, 3), 300);
    gw_feed_start(w.fleet->target[3]); /* known: nothing changes */
    ASSERT_EQ(gw_directory_count(w.directory), 2);
    gw_fleet_lost(w.fleet, 3);
    gw_feed_stop(w.fleet->target[3]);
    ASSERT_EQ(gw_directory_count(w.directory), 0);
    world_stop(&w);
}

TEST(the_load_is_passed_on_until_the_feed_breaks)
{
    struct world w = {.answer = {"@aa 1 full\n=5 100 1 1 4 50 1 0.5\n",
                                 "@aa 1 delta\n=6 90 0 1 4 50 1 0.5\n", "=7\n", NULL}};
    n_loads = n_lost = 0;
    world_start(&w);
    run_until_asked(&w, 3);
    ASSERT_STREQ(w.query[1], "epoch=00000000000000aa&since=1&load=5&wait_ms=20000");
    ASSERT_STREQ(w.query[2], "epoch=00000000000000aa&since=1&load=6&wait_ms=20000");
    ASSERT_EQ(n_loads, 2);
    ASSERT_NEAR(last_load.waiting_ms, 90, 1e-9);
    run_until_asked(&w, 4);
    ASSERT_EQ(n_lost, 1);
    world_stop(&w);
}

TEST(another_life_is_another_memory)
{
    struct world w = {.answer = {"@aa 2 full\n+1 100 0 ram\n", "@bb 1 full\n+2 10 0 ram\n", NULL}};
    world_start(&w);
    run_until_asked(&w, 3);
    ASSERT_EQ(held(&w, 1), 0);
    ASSERT_EQ(held(&w, 2), 10);
    world_stop(&w);
}

/* What came half is used, but all of it is asked for again; what is malformed ends the answer. */
TEST(broken_answers_are_asked_for_anew)
{
    struct world w = {.answer = {"~@aa 9 full\n+1 100 0 ram\n+2 2", "+1 5 0 ram\n",
                                 "@aa 9 full\n+1 100 0 ram\n+7 7 0 ram\n", NULL}};
    world_start(&w);
    run_until_asked(&w, 2);
    ASSERT_EQ(held(&w, 1), 100);
    ASSERT_STREQ(w.query[0], "epoch=0000000000000000&since=0&load=0&wait_ms=20000");
    run_until_asked(&w, 4);
    ASSERT_STREQ(w.query[2], "epoch=0000000000000000&since=0&load=0&wait_ms=20000");
    ASSERT_EQ(held(&w, 7), 7);
    ASSERT_EQ(gw_directory_count(w.directory), 2);
    world_stop(&w);
}

TEST(a_worker_without_a_feed_is_left_alone)
{
    struct world w = {.answer = {"!", NULL}};
    world_start(&w);
    run_until_asked(&w, 1);
    http_timer_init(&w.limit, w.loop, on_limit, &w);
    http_timer_set(&w.limit, 800);
    ASSERT_OK(http_loop_run(w.loop));
    ASSERT_TRUE(w.timed_out);
    ASSERT_EQ(w.n_asked, 1);
    http_timer_fini(&w.limit);
    world_stop(&w);
}
