/* Registers the worker for gateways of other hosts (base/redis/registry.h): a small record, written
 * every few seconds from when the model is there until the worker drains. The loop's tick says
 * when; a helper thread of its own waits for Redis. A Redis that cannot be reached is told of once
 * and tried again; it costs no request anything. */
#include "base/clock.h"
#include "base/jobs.h"
#include "base/log.h"
#include "base/redis/registry.h"
#include "worker/fleet/fleet.h"
#include "worker/worker.h"

#include <string.h>

enum { RETRY_MS = 1000, TIMEOUT_MS = 1000 };

struct wk_announce {
    struct registry registry;
    const char *address;
    char *record;
    struct jobs *helper;
    bool leaving;             /* loop */
    _Atomic uint64_t next_ns; /* when to write again; UINT64_MAX: it is being written */
    int was;                  /* helper: 0 registered, -1 unreachable, 1 neither yet */
};

static void put_record(void *arg)
{
    struct wk_announce *a = arg;
    struct err err = {0};
    int rc = registry_put(&a->registry, a->address, a->record, &err);

    if (rc < 0 && a->was != -1)
        log_event(LOG_WARN, "registry", "state=unreachable error=\"%s\"",
                  err.msg[0] ? err.msg : err_name(rc));
    if (rc >= 0 && a->was != 0)
        log_event(LOG_NOTICE, "registry", "state=registered address=%s group=%s", a->address,
                  a->registry.url->group);
    a->was = rc < 0 ? -1 : 0;
    atomic_store(&a->next_ns, clock_ns() + (rc < 0 ? RETRY_MS : REGISTRY_REFRESH_MS) * 1000000ull);
}

static void leave_registry(void *arg)
{
    struct wk_announce *a = arg;
    struct err err = {0};
    int rc = registry_leave(&a->registry, a->address, &err);

    log_event(LOG_NOTICE, "registry", "state=left error=\"%s\"", rc < 0 ? err_name(rc) : "");
}

static int make_record(const struct worker *w, const struct redis_url *registry, char **ret)
{
    struct buf b = BUF_INIT;
    buf_adds(&b, "{\"v\":1,\"address\":");

    buf_add_json_str(&b, w->o.advertise, strlen(w->o.advertise));
    buf_adds(&b, ",\"model\":");
    buf_add_json_str(&b, w->model_name, strlen(w->model_name));
    buf_addf(&b, ",\"group\":\"%s\",\"version\":\"%s\",\"capacity\":%u,\"epoch\":\"%llx\"}",
             registry->group, KV_VERSION, w->o.engine.max_running,
             (unsigned long long)w->fleet.epoch);
    *ret = buf_status(&b) < 0 ? NULL : buf_take(&b, NULL);
    buf_fini(&b);
    return *ret ? 0 : -ENOMEM;
}

int wk_announce_start(struct worker *w)
{
    const struct redis_url *url = w->o.registry ? w->o.registry : w->o.tiers.redis;
    struct wk_announce *a;
    struct err err = {0};
    int rc;

    if (!w->o.advertise || w->fleet.announce) return 0;
    a = mem_zalloc(sizeof *a);
    if (!a) return -ENOMEM;
    a->address = w->o.advertise;
    a->registry.url = url;
    a->was = 1;
    w->fleet.announce = a;
    rc = make_record(w, url, &a->record);
    if (rc >= 0) rc = redis_sync_create(url, TIMEOUT_MS, &a->registry.redis, &err);
    if (rc >= 0) rc = jobs_create(&(struct jobs_opts){1, 2}, &a->helper);
    if (rc < 0)
        log_event(LOG_ERROR, "registry", "state=off error=\"%s\"",
                  err.msg[0] ? err.msg : err_name(rc));
    wk_announce_tick(w);
    return rc;
}

void wk_announce_tick(struct worker *w)
{
    struct wk_announce *a = w->fleet.announce;

    if (!a || !a->helper || a->leaving || clock_ns() < atomic_load(&a->next_ns)) return;
    atomic_store(&a->next_ns, UINT64_MAX);
    if (jobs_submit(a->helper, put_record, a) < 0) atomic_store(&a->next_ns, 0);
}

void wk_announce_leave(struct worker *w)
{
    struct wk_announce *a = w->fleet.announce;

    if (!a || !a->helper || a->leaving) return;
    a->leaving = true;
    (void)jobs_submit(a->helper, leave_registry, a);
}

void wk_announce_end(struct worker *w)
{
    struct wk_announce *a = w->fleet.announce;

    if (!a) return;
    wk_announce_leave(w);
    jobs_destroy(a->helper);
    redis_sync_destroy(a->registry.redis);
    mem_free(a->record);
    mem_free(a);
    w->fleet.announce = NULL;
}
