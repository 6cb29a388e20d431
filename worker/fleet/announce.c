/* Registers the worker for gateways of other hosts (base/redis/registry.h): a thread that writes a
 * small record every few seconds from when the model is there until the worker drains. A Redis that
 * cannot be reached is told of once and tried again; it costs no request anything. */
#include "base/clock.h"
#include "base/log.h"
#include "base/redis/registry.h"
#include "worker/worker.h"

#include <string.h>

enum { RETRY_MS = 1000, TIMEOUT_MS = 1000 };

struct wk_announce {
    struct registry registry;
    const char *address;
    char *record;
    pthread_t thread;
    pthread_mutex_t m;
    pthread_cond_t wake;
    bool started, stop; /* stop: guarded by m */
};

static bool wait_until(struct wk_announce *a, uint64_t until_ns)
{
    struct timespec t = {.tv_sec = (time_t)(until_ns / 1000000000u),
                         .tv_nsec = (long)(until_ns % 1000000000u)};

    pthread_mutex_lock(&a->m);
    while (!a->stop && clock_ns() < until_ns)
        (void)pthread_cond_timedwait(&a->wake, &a->m, &t);
    bool stop = a->stop;
    pthread_mutex_unlock(&a->m);
    return !stop;
}

static void *announce_main(void *arg)
{
    struct wk_announce *a = arg;
    struct err err = {0};
    int rc, was = 1;

    do {
        rc = registry_put(&a->registry, a->address, a->record, &err);
        if (rc < 0 && was != -1)
            log_event(LOG_WARN, "registry", "state=unreachable error=\"%s\"",
                      err.msg[0] ? err.msg : err_name(rc));
        if (rc >= 0 && was != 0)
            log_event(LOG_NOTICE, "registry", "state=registered address=%s group=%s", a->address,
                      a->registry.group);
        was = rc < 0 ? -1 : 0;
    } while (wait_until(a, clock_ns() + (rc < 0 ? RETRY_MS : REGISTRY_REFRESH_MS) * 1000000ull));
    rc = registry_leave(&a->registry, a->address, &err);
    log_event(LOG_NOTICE, "registry", "state=left error=\"%s\"", rc < 0 ? err_name(rc) : "");
    return NULL;
}

static int make_record(const struct worker *w, char **ret)
{
    struct buf b = BUF_INIT;
    buf_adds(&b, "{\"v\":1,\"address\":");

    buf_add_json_str(&b, w->o.advertise, strlen(w->o.advertise));
    buf_adds(&b, ",\"model\":");
    buf_add_json_str(&b, w->model_name, strlen(w->model_name));
    buf_addf(&b, ",\"group\":\"%s\",\"version\":\"%s\",\"capacity\":%u,\"epoch\":\"%llx\"}",
             w->o.registry_group, KV_VERSION, w->o.max_running, (unsigned long long)w->fleet.epoch);
    *ret = buf_status(&b) < 0 ? NULL : buf_take(&b, NULL);
    buf_fini(&b);
    return *ret ? 0 : -ENOMEM;
}

int wk_announce_start(struct worker *w)
{
    const struct redis_url *url = w->o.registry ? w->o.registry : w->o.tiers.redis;
    struct wk_announce *a;
    struct err err = {0};
    pthread_condattr_t attr;
    int rc;

    if (!w->o.advertise || w->fleet.announce) return 0;
    a = mem_zalloc(sizeof *a);
    if (!a) return -ENOMEM;
    a->address = w->o.advertise;
    a->registry = (struct registry){.prefix = url->prefix, .group = w->o.registry_group};
    pthread_mutex_init(&a->m, NULL);
    pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&a->wake, &attr);
    pthread_condattr_destroy(&attr);
    w->fleet.announce = a;
    rc = make_record(w, &a->record);
    if (rc >= 0) rc = redis_sync_create(url, TIMEOUT_MS, &a->registry.redis, &err);
    if (rc >= 0) rc = -pthread_create(&a->thread, NULL, announce_main, a);
    a->started = rc >= 0;
    if (rc < 0)
        log_event(LOG_ERROR, "registry", "state=off error=\"%s\"",
                  err.msg[0] ? err.msg : err_name(rc));
    return rc;
}

void wk_announce_leave(struct worker *w)
{
    struct wk_announce *a = w->fleet.announce;

    if (!a) return;
    pthread_mutex_lock(&a->m);
    a->stop = true;
    pthread_cond_signal(&a->wake);
    pthread_mutex_unlock(&a->m);
}

void wk_announce_end(struct worker *w)
{
    struct wk_announce *a = w->fleet.announce;

    if (!a) return;
    wk_announce_leave(w);
    if (a->started) pthread_join(a->thread, NULL);
    redis_sync_destroy(a->registry.redis);
    pthread_cond_destroy(&a->wake);
    pthread_mutex_destroy(&a->m);
    mem_free(a->record);
    mem_free(a);
    w->fleet.announce = NULL;
}
