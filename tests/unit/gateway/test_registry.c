#include "gateway/fleet/registry.c"
#include "base/net/http.h"
#include "base/redis/registry.h"
#include "tests/test.h"
#include "tests/unit/tiers/redis_server.h"

#include <event2/event.h>

struct world {
    struct http_loop *loop;
    struct gw_registry *r;
    struct redis_url url;
    struct registry worker;
    char text[512], told[256];
};

static void on_worker(void *ctx, const char *address, bool here)
{
    struct world *w = ctx;
    size_t n = strlen(w->told);
    (void)snprintf(w->told + n, sizeof w->told - n, "%s%s ", here ? "+" : "-", address);
}

static void world_start(struct world *w, const struct redis_server *s)
{
    struct err err = {0};
    const char *url = w->text;
    memset(w, 0, sizeof *w);
    struct gw_registry_opts o = {w->text, on_worker, w};
    redis_server_url(s, w->text);
    (void)strcat(w->text, strchr(w->text, '?') ? "&group=g1" : "?group=g1");
    ASSERT_OK(http_loop_create(&w->loop));
    ASSERT_OK(redis_url_parse(&url, 1, &w->url, &err));
    ASSERT_OK(redis_sync_create(&w->url, 1500, &w->worker.redis, &err));
    w->worker.url = &w->url;
    ASSERT_OK(gw_registry_create(w->loop, &o, &w->r, &err));
}

static void world_stop(struct world *w)
{
    gw_registry_destroy(w->r);
    http_loop_destroy(w->loop);
    redis_sync_destroy(w->worker.redis);
    redis_url_fini(&w->url);
}

static bool told(struct world *w, const char *what)
{
    (void)event_base_loop(http_loop_base(w->loop), EVLOOP_NONBLOCK);
    return strcmp(w->told, what) == 0;
}

static bool is_connected(struct world *w, bool wanted)
{
    (void)event_base_loop(http_loop_base(w->loop), EVLOOP_NONBLOCK);
    return w->r->told && w->r->connected == wanted;
}

static bool put(struct world *w, const char *address)
{
    return registry_put(&w->worker, address, "{}", NULL) == 0;
}

TEST(bad_settings)
{
    struct gw_registry *r;
    struct http_loop *l;
    struct err err = {0};
    ASSERT_OK(http_loop_create(&l));
    struct gw_registry_opts bad_url = {"http://x", on_worker, NULL};
    struct gw_registry_opts bad_group = {"redis://127.0.0.1?group=g}", on_worker, NULL};
    ASSERT_ERR(gw_registry_create(l, &bad_url, &r, &err), -EINVAL);
    ASSERT_TRUE(strncmp(err.msg, "registry.url: ", 14) == 0);
    ASSERT_ERR(gw_registry_create(l, &bad_group, &r, &err), -EINVAL);
    http_loop_destroy(l);
}

TEST(workers_come_and_leave)
{
    static struct world w;
    struct redis_server *s = redis_server_start(NULL);
    world_start(&w, s);
    WAIT_FOR(is_connected(&w, true));
    ASSERT_TRUE(put(&w, "h1:80"));
    WAIT_FOR(told(&w, "+h1:80 "));
    ASSERT_TRUE(put(&w, "h2:80"));
    ASSERT_OK(registry_leave(&w.worker, "h1:80", NULL));
    WAIT_FOR(told(&w, "+h1:80 +h2:80 -h1:80 "));
    world_stop(&w);
    redis_server_stop(s);
}

/* Nobody goes because the Redis does, nor because it has lost its memory. */
TEST(a_redis_that_dies_takes_nobody_along)
{
    static struct world w;
    struct redis_server *s = redis_server_start(NULL);
    world_start(&w, s);
    ASSERT_TRUE(put(&w, "h1:80"));
    WAIT_FOR(told(&w, "+h1:80 "));
    redis_server_kill(s);
    WAIT_FOR(is_connected(&w, false));
    redis_server_restart(s);
    WAIT_FOR(is_connected(&w, true));
    WAIT_FOR(put(&w, "h1:80") && put(&w, "h2:80"));
    WAIT_FOR(!told(&w, "+h1:80 "));
    ASSERT_STREQ(w.told, "+h1:80 +h2:80 ");
    world_stop(&w);
    redis_server_stop(s);
}

/* With news under way that nobody will read. */
TEST(the_end_waits_for_nothing)
{
    static struct world w;
    struct redis_server *s = redis_server_start(NULL);
    world_start(&w, s);
    ASSERT_TRUE(put(&w, "h1:80"));
    WAIT_FOR(is_connected(&w, true));
    redis_server_pause(s);
    world_stop(&w);
    redis_server_resume(s);
    redis_server_stop(s);
}
