#include "gateway/fleet/registry.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/net/http.h"
#include "base/redis/registry.h"

#include <pthread.h>
#include <string.h>

enum { READ_EVERY_MS = 2000, RETRY_EVERY_MS = 1000, TIMEOUT_MS = 2000, MAIL_MAX = 64 };

struct mail {
    char address[REGISTRY_ADDRESS_BYTES];
    bool here;
};
struct gw_registry {
    struct http_loop *loop;
    gw_registry_fn on_worker;
    void *ctx;
    char *group;
    struct redis_url url;
    struct redis_sync *redis;
    pthread_t thread;
    bool started;
    pthread_mutex_t m;
    pthread_cond_t wake;
    bool stop, connected; /* guarded by m, as is all below */
    struct mail mail[MAIL_MAX];
    size_t n_mail;
    /* the thread's */
    bool told, was_connected;
    struct registry_view view;
    struct registry_list list;
};

static void deliver(void *arg) /* loop */
{
    struct gw_registry *r = arg;
    for (;;) {
        struct mail x = {0};
        (void)pthread_mutex_lock(&r->m);
        bool any = r->n_mail > 0;
        if (any) {
            x = r->mail[0];
            memmove(r->mail, r->mail + 1, --r->n_mail * sizeof x);
        }
        (void)pthread_mutex_unlock(&r->m);
        if (!any) return;
        log_event(LOG_NOTICE, "registry.worker", "address=%s state=%s", x.address,
                  x.here ? "here" : "gone");
        r->on_worker(r->ctx, x.address, x.here);
    }
}

static bool post(void *ctx, const char *address, bool here) /* thread */
{
    struct gw_registry *r = ctx;
    (void)pthread_mutex_lock(&r->m);
    bool room = r->n_mail < MAIL_MAX && http_loop_post(r->loop, deliver, r) == 0;
    if (room) {
        struct mail *x = &r->mail[r->n_mail++];
        memcpy(x->address, address, strlen(address) + 1);
        x->here = here;
    }
    (void)pthread_mutex_unlock(&r->m);
    return room;
}

static bool read_once(struct gw_registry *r)
{
    struct registry g = {r->redis, r->url.prefix, r->group};
    struct err err = {0};
    int rc = registry_read(&g, &r->list, &err);
    if (rc == 0)
        registry_update(&r->view, &r->list, clock_ns() / 1000000, redis_sync_n_connects(r->redis),
                        post, r);
    bool ok = rc == 0;
    if (!r->told || ok != r->was_connected)
        log_event(ok ? LOG_NOTICE : LOG_WARN, "registry",
                  "state=%s workers=%zu group=%s error=\"%s\"", ok ? "connected" : "unreachable",
                  r->view.n, r->group,
                  ok           ? ""
                  : err.msg[0] ? err.msg
                               : err_name(rc));
    r->told = true;
    r->was_connected = ok;
    return ok;
}

static void *registry_main(void *arg)
{
    struct gw_registry *r = arg;
    for (;;) {
        bool ok = read_once(r);
        uint64_t until = clock_ns() + (ok ? READ_EVERY_MS : RETRY_EVERY_MS) * 1000000ull;
        struct timespec t = {.tv_sec = (time_t)(until / 1000000000u),
                             .tv_nsec = (long)(until % 1000000000u)};
        (void)pthread_mutex_lock(&r->m);
        r->connected = ok;
        while (!r->stop && clock_ns() < until)
            (void)pthread_cond_timedwait(&r->wake, &r->m, &t);
        bool stop = r->stop;
        (void)pthread_mutex_unlock(&r->m);
        if (stop) return NULL;
    }
}

static int parse(struct gw_registry *r, const char *url, const char *group, struct err *err)
{
    struct err e = {0};
    if (!registry_group_ok(group))
        return err_set(err, -EINVAL, "registry.group: expected letters, digits, '_', '-' or '.'");
    int rc = redis_url_parse(&url, 1, &r->url, &e);
    if (rc == 0) rc = redis_sync_create(&r->url, TIMEOUT_MS, &r->redis, &e);
    return rc < 0 ? err_set(err, rc, "registry.url: %s", e.msg) : 0;
}

static int locks_init(struct gw_registry *r)
{
    pthread_condattr_t a;
    if (pthread_condattr_init(&a) != 0) return -ENOMEM;
    (void)pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&r->m, NULL);
    int rc = pthread_cond_init(&r->wake, &a);
    (void)pthread_condattr_destroy(&a);
    return -rc;
}

int gw_registry_create(struct http_loop *loop, const char *url, const char *group,
                       gw_registry_fn on_worker, void *ctx, struct gw_registry **ret,
                       struct err *err)
{
    struct gw_registry *r = mem_zalloc(sizeof *r);
    if (!r) return -ENOMEM;
    r->loop = loop;
    r->on_worker = on_worker;
    r->ctx = ctx;
    r->group = mem_strdup(group);
    int rc = locks_init(r);
    if (rc == 0 && !r->group) rc = -ENOMEM;
    if (rc == 0) rc = parse(r, url, group, err);
    if (rc == 0) rc = -pthread_create(&r->thread, NULL, registry_main, r);
    if (rc < 0) {
        gw_registry_destroy(r);
        return rc;
    }
    r->started = true;
    *ret = r;
    return 0;
}

const char *gw_registry_state(struct gw_registry *r)
{
    (void)pthread_mutex_lock(&r->m);
    bool connected = r->connected;
    (void)pthread_mutex_unlock(&r->m);
    return connected ? "connected" : "unreachable";
}

void gw_registry_destroy(struct gw_registry *r)
{
    if (!r) return;
    (void)pthread_mutex_lock(&r->m);
    r->stop = true;
    (void)pthread_cond_signal(&r->wake);
    (void)pthread_mutex_unlock(&r->m);
    if (r->started) (void)pthread_join(r->thread, NULL);
    redis_sync_destroy(r->redis);
    redis_url_fini(&r->url);
    (void)pthread_cond_destroy(&r->wake);
    (void)pthread_mutex_destroy(&r->m);
    mem_free(r->group);
    mem_free(r);
}
