#include "gateway/fleet/registry.h"

#include "base/clock.h"
#include "base/jobs.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/net/http.h"
#include "base/redis/registry.h"

#include <sched.h>
#include <stdatomic.h>
#include <string.h>

enum { READ_EVERY_MS = 2000, RETRY_EVERY_MS = 1000, TIMEOUT_MS = 2000 };

struct gw_registry {
    struct http_loop *loop;
    void (*on_worker)(void *ctx, const char *address, bool here);
    void *ctx;
    struct http_timer timer; /* the next read; not set while one is under way */
    struct jobs *helper;
    struct registry_view view;
    bool told, connected;
    atomic_bool ending;
    /* the helper's while it reads */
    struct redis_url url;
    struct redis_sync *redis;
    struct registry_list list;
    int result;
    struct err err;
};

static bool tell_worker(void *ctx, const char *address, bool here)
{
    struct gw_registry *r = ctx;
    log_event(LOG_NOTICE, "registry.worker", "address=%s state=%s", address,
              here ? "here" : "gone");
    r->on_worker(r->ctx, address, here);
    return true;
}

static void list_read(void *arg) /* loop */
{
    struct gw_registry *r = arg;
    bool ok = r->result == 0;
    if (ok)
        registry_update(&r->view, &r->list, clock_ns() / 1000000, redis_sync_n_connects(r->redis),
                        tell_worker, r);
    if (!r->told || ok != r->connected)
        log_event(ok ? LOG_NOTICE : LOG_WARN, "registry",
                  "state=%s workers=%zu group=%s error=\"%s\"", ok ? "connected" : "unreachable",
                  r->view.n, r->url.group,
                  ok              ? ""
                  : r->err.msg[0] ? r->err.msg
                                  : err_name(r->result));
    r->told = true;
    r->connected = ok;
    http_timer_set(&r->timer, ok ? READ_EVERY_MS : RETRY_EVERY_MS);
}

static void read_list(void *arg) /* helper thread */
{
    struct gw_registry *r = arg;
    const struct registry g = {r->redis, &r->url};
    r->err = (struct err){0};
    r->result = registry_read(&g, &r->list, &r->err);
    while (http_loop_post(r->loop, list_read, r) == -EAGAIN && !r->ending)
        (void)sched_yield();
}

static void on_read_timer(void *arg)
{
    struct gw_registry *r = arg;
    if (jobs_submit(r->helper, read_list, r) < 0) http_timer_set(&r->timer, RETRY_EVERY_MS);
}

static int open_redis(struct gw_registry *r, const char *url, struct err *err)
{
    struct err e = {0};
    int rc = redis_url_parse(&url, 1, &r->url, &e);
    if (rc == 0) rc = redis_sync_create(&r->url, TIMEOUT_MS, &r->redis, &e);
    return rc < 0 ? err_set(err, rc, "registry.url: %s", e.msg) : 0;
}

int gw_registry_create(struct http_loop *loop, const struct gw_registry_opts *o,
                       struct gw_registry **ret, struct err *err)
{
    struct gw_registry *r = mem_zalloc(sizeof *r);
    if (!r) return -ENOMEM;
    r->loop = loop;
    r->on_worker = o->on_worker;
    r->ctx = o->ctx;
    int rc = open_redis(r, o->url, err);
    if (rc == 0) rc = jobs_create(&(struct jobs_opts){1, 1, NULL}, &r->helper);
    if (rc < 0) {
        gw_registry_destroy(r);
        return rc;
    }
    http_timer_init(&r->timer, loop, on_read_timer, r);
    http_timer_set(&r->timer, 0);
    *ret = r;
    return 0;
}

void gw_registry_destroy(struct gw_registry *r)
{
    if (!r) return;
    r->ending = true;
    jobs_destroy(r->helper);
    http_timer_fini(&r->timer);
    redis_sync_destroy(r->redis);
    redis_url_fini(&r->url);
    mem_free(r);
}
