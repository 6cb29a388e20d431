#include "gateway/process/run.h"

#include "base/clock.h"
#include "base/jobs.h"
#include "base/log.h"
#include "base/otlp/otlp.h"
#include "gateway/fleet/residency.h"
#include "gateway/fleet/fleet.h"
#include "gateway/fleet/view.h"
#include "gateway/fleet/registry.h"
#include "gateway/fleet/upstream.h"
#include "gateway/front/front.h"
#include "gateway/front/keys.h"
#include "gateway/front/listen.h"
#include "gateway/process/config.h"
#include "gateway/process/memory.h"
#include "gateway/process/own.h"
#include "gateway/process/places.h"
#include "gateway/process/server.h"
#include "gateway/process/sysd.h"
#include "gateway/translate/store.h"
#include "segment/segment.h"

#include <event2/event.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    HELPERS = 2,
    HELPER_QUEUE = 256,
    WORKER_GRACE_MS = 5000, /* a worker's SIGTERM to SIGKILL, once nobody waits for it */
    CUT_GRACE_MS = 2000,    /* to deliver the last frames */
    IDLE_POLL_MS = 10,
    DIRECTORY_BYTES = 32 << 20, /* chosen: half a million texts */
};
static const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGCHLD};
enum { N_SIGNALS = sizeof signals / sizeof signals[0] };

struct gw_run {
    struct gw_server server;
    int argc, exit_status;
    char **argv, **envp;
    struct event *signal_ev[N_SIGNALS];
    struct http_timer drain;
    uint64_t close_ns, cut_ns; /* while it drains: when no more is accepted; what is left is cut */
    struct gw_registry *registry; /* NULL: none */
    struct gw_memory *memory;     /* NULL: off */
    struct gw_upstreams *workers; /* of the configuration */
    struct buf dir, admin_path;
    bool cut, serving; /* systemd was told so */
};

static struct gw_loop *control(struct gw_run *u)
{
    return &u->server.loops[0];
}

static const struct gw_config *first_config(const struct gw_run *u)
{
    return u->server.first->config;
}

/* ---- ends ---- */

static void stop_now(void *ctx)
{
    struct gw_run *u = ctx;
    http_loop_stop(control(u)->http_loop);
}

static void end_workers(struct gw_run *u)
{
    struct gw_server *server = &u->server;
    gw_fleet_stop(server->fleet);
    log_event(LOG_NOTICE, "gateway.drained", "requests=%u", (unsigned)server->n_reqs);
    if (server->own)
        gw_own_stop(server->own, WORKER_GRACE_MS);
    else
        stop_now(u);
}

/* Loops do not tell when their last request ends: the control loop looks, while it drains. */
static void on_drain_timer(void *arg)
{
    struct gw_run *u = arg;
    struct gw_server *server = &u->server;
    uint64_t now = clock_ns();
    if (now >= u->close_ns) gw_loops_tell(server, GW_TELL_CLOSE);
    if (now >= u->cut_ns && !u->cut) {
        log_event(LOG_WARN, "gateway.cut", "requests=%u", (unsigned)server->n_reqs);
        gw_loops_tell(server, GW_TELL_CLOSE | GW_TELL_CUT);
        u->cut = true;
    }
    if (gw_loops_idle(server) || now >= u->cut_ns + CUT_GRACE_MS * 1000000ull)
        end_workers(u);
    else
        http_timer_set(&u->drain, IDLE_POLL_MS);
}

static void begin_drain(struct gw_run *u)
{
    struct gw_server *server = &u->server;
    if (server->draining) {
        log_event(LOG_NOTICE, "gateway.stop", "requests=%u", (unsigned)server->n_reqs);
        stop_now(u);
        return;
    }
    struct gw_settings *s = gw_server_settings(server);
    uint32_t timeout_ms = s->config->drain_timeout_ms, delay_ms = s->config->drain_delay_ms;
    gw_settings_unref(s);
    server->draining = true;
    gw_sysd_tell(server->sysd, "STOPPING=1");
    log_event(LOG_NOTICE, "gateway.draining", "requests=%u timeout_ms=%u", (unsigned)server->n_reqs,
              timeout_ms);
    u->close_ns = clock_ns() + delay_ms * 1000000ull;
    u->cut_ns = u->close_ns + timeout_ms * 1000000ull;
    on_drain_timer(u);
}

/* ---- workers ---- */

/* Targets became ready, were lost, or have room. */
static void on_change(void *ctx)
{
    struct gw_run *u = ctx;
    gw_loops_tell(&u->server, GW_TELL_FLEET);
}

/* Before it a unit is "activating": who starts it and asks gets an answer, and a model that cannot
 * be loaded is a start that failed. */
static void tell_serving(struct gw_run *u)
{
    if (!u->serving) gw_sysd_tell(u->server.sysd, "READY=1");
    u->serving = true;
}

static void on_ready(void *ctx)
{
    tell_serving(ctx);
    on_change(ctx);
}

static void on_load(void *ctx)
{
    struct gw_run *u = ctx;
    gw_admit_again(&u->server.admit);
}

static void on_silent(void *ctx, unsigned index, uint64_t silent_ms)
{
    struct gw_run *u = ctx;
    if (u->server.own) gw_own_silent(u->server.own, index, silent_ms);
}

static void on_wanted(void *ctx, unsigned index)
{
    struct gw_run *u = ctx;
    if (u->server.own) gw_own_wanted(u->server.own, index);
}

static void on_own_refused(void *ctx, int exit_code)
{
    struct gw_run *u = ctx;
    log_event(LOG_ERROR, "gateway.end",
              "reason=\"the worker could not start; its own message stands above\" exit=%d",
              exit_code);
    u->exit_status = 1;
    stop_now(u);
}

static void remove_worker(struct gw_fleet *f, const char *address)
{
    struct gw_target_view v;
    for (size_t i = 0; i < gw_fleet_count(f); i++)
        if (gw_fleet_view(f, (unsigned)i, &v) && v.worker && strcmp(v.address, address) == 0)
            gw_fleet_remove(f, v.index);
}

/* A worker that is configured stays, whether it registers or not. */
static void on_registered(void *ctx, const char *address, bool here)
{
    struct gw_run *u = ctx;
    struct gw_server *server = &u->server;
    unsigned index;
    for (size_t i = 0; i < u->workers->n; i++)
        if (strcmp(u->workers->up[i].address, address) == 0) return;
    if (!here) {
        remove_worker(server->fleet, address);
        return;
    }
    struct buf key = BUF_INIT;
    const char *text = first_config(u)->registry_api_key;
    struct gw_upstream door = {0};
    if (text && buf_addf(&key, "Bearer %s", text) == 0) door.authorization = (char *)buf_cstr(&key);
    int r = text && !door.authorization ? -ENOMEM : 0;
    if (r == 0) r = gw_fleet_add_worker(server->fleet, address, false, &index);
    if (r == 0) r = gw_fleet_secure(server->fleet, index, &door, NULL);
    if (key.data) explicit_bzero(key.data, key.cap);
    buf_fini(&key);
    if (r < 0) log_event(LOG_ERROR, "registry.worker", "address=%s error=%s", address, err_name(r));
    gw_admit_share(&server->admit, gw_fleet_count(server->fleet) > 1);
}

static const struct gw_fleet_ops fleet_ops = {on_ready,  on_change, on_change,
                                              on_silent, on_load,   on_wanted};

/* ---- reload ---- */

/* Read everything first, then change everything: an error leaves all as it was. */
static int reload(void *ctx, struct buf *ret_restart, struct err *err)
{
    struct gw_run *u = ctx;
    struct gw_server *server = &u->server;
    struct gw_settings *old = gw_server_settings(server), *s = NULL;
    struct gw_upstreams *ups = NULL;
    struct gw_config *c = NULL;
    struct buf text = BUF_INIT;
    int r = gw_config_load(u->argc, u->argv, u->envp, &c, &text);
    if (r < 0)
        (void)err_set(err, r, "configuration unchanged: %.*s", (int)strcspn(buf_cstr(&text), "\n"),
                      buf_cstr(&text));
    if (r == 0) r = gw_settings_create(c, old->keys, &s, err);
    if (r == 0) r = gw_upstreams_parse(s->config, false, &ups, err);
    if (r == 0 && server->tls) r = http_tls_reload(server->tls, err);
    if (r == 0) {
        r = gw_fleet_set_upstreams(server->fleet, ups, err);
        ups = NULL;
    }
    if (r < 0) goto out;
    if (opts_restart_keys(server->first->config->opts, s->config->opts, ret_restart) > 0)
        log_event(LOG_WARN, "config.restart_needed", "keys=%s", buf_cstr(ret_restart));
    log_event(LOG_NOTICE, "config.reloaded", "keys=%zu", gw_keys_count(s->keys));
    enum log_level level;
    if (log_parse_level(s->config->log_level, &level)) log_set_level(level);
    gw_fleet_configure(server->fleet, s->config);
    gw_server_apply(server, s);
    s = NULL;
    gw_loops_tell(server, GW_TELL_FLEET);
out:
    gw_settings_unref(s);
    gw_settings_unref(old);
    gw_upstreams_free(ups);
    buf_fini(&text);
    return r;
}

/* ---- signals ---- */

static void reopen_log(struct gw_run *u)
{
    int r = gw_stats_reopen(u->server.stats);
    if (r < 0) log_event(LOG_ERROR, "access_log.reopen", "error=%s kept=old", err_name(r));
}

static void on_signal(evutil_socket_t sig, short what, void *arg)
{
    struct gw_run *u = arg;
    struct err err = {0};
    struct buf restart = BUF_INIT;
    switch (sig) {
    case SIGCHLD:
        if (u->server.own) gw_own_reaped(u->server.own);
        break;
    case SIGHUP:
        if (u->serving) gw_sysd_tell(u->server.sysd, "RELOADING=1");
        if (reload(u, &restart, &err) < 0)
            log_event(LOG_ERROR, "config.reload", "error=\"%s\"", err.msg);
        reopen_log(u);
        if (u->serving) gw_sysd_tell(u->server.sysd, "READY=1");
        break;
    case SIGUSR1:
        reopen_log(u);
        break;
    default:
        begin_drain(u);
    }
    buf_fini(&restart);
}

static int watch_signals(struct gw_run *u)
{
    for (int i = 0; i < N_SIGNALS; i++) {
        u->signal_ev[i] =
            evsignal_new(http_loop_base(control(u)->http_loop), signals[i], on_signal, u);
        if (!u->signal_ev[i] || event_add(u->signal_ev[i], NULL) < 0) return -ENOMEM;
    }
    (void)signal(SIGPIPE, SIG_IGN);
    return 0;
}

/* ---- start ---- */

static int start_fleet(struct gw_run *u, struct err *err)
{
    struct gw_server *server = &u->server;
    const struct gw_config *c = first_config(u);
    struct gw_upstreams *ups = NULL;
    struct http_loop *loop = control(u)->http_loop;
    int r = gw_upstreams_parse(c, false, &ups, err);
    if (r == 0) r = gw_directory_create(DIRECTORY_BYTES, &server->directory);
    if (r == 0) r = gw_fleet_create(loop, c, server->directory, &fleet_ops, u, &server->fleet);
    if (r == 0) r = gw_upstreams_parse(c, true, &u->workers, err);
    for (size_t i = 0; r == 0 && i < c->workers.n; i++) {
        const struct gw_upstream *w = &u->workers->up[i];
        unsigned index;
        r = gw_fleet_add_worker(server->fleet, w->address, false, &index);
        if (r < 0) (void)err_set(err, r, "worker %s cannot be used", w->address);
        if (r == 0) r = gw_fleet_secure(server->fleet, index, w, err);
    }
    bool others = c->workers.n > 0 || (ups && ups->n > 0) || c->registry;
    if (r == 0) {
        r = gw_fleet_set_upstreams(server->fleet, ups, err);
        ups = NULL;
    }
    gw_upstreams_free(ups);
    const struct gw_own_setup own = {.loop = loop,
                                     .fleet = server->fleet,
                                     .config = c,
                                     .run_dir = buf_cstr(&u->dir),
                                     .others = others,
                                     .on_refused = on_own_refused,
                                     .on_stopped = stop_now,
                                     .ctx = u};
    if (r == 0 && (c->model || c->models.n > 0 || !others))
        r = gw_own_create(&own, &server->own, err);
    struct gw_registry_opts registry = {c->registry, on_registered, u};
    if (r == 0 && c->registry) r = gw_registry_create(loop, &registry, &u->registry, err);
    if (r == 0) gw_admit_share(&server->admit, gw_fleet_count(server->fleet) > 1);
    return r;
}

static int start_admin(struct gw_run *u, struct err *err)
{
    struct gw_loop *loop = control(u);
    const struct gw_config *c = first_config(u);
    int r = http_server_create(loop->http_loop, NULL, &gw_admin_ops, loop, &loop->admin);
    for (size_t i = 0; r == 0 && i < c->admin.n; i++)
        r = gw_listen_on(&u->server, c, c->admin.v[i], true, err);
    if (r < 0 || c->admin.n > 0) return r;
    r = gw_rundir_admin(buf_cstr(&u->dir), &u->admin_path);
    if (r == 1)
        log_event(LOG_NOTICE, "admin.taken", "reason=\"another gateway runs; use --admin\" path=%s",
                  buf_cstr(&u->admin_path));
    return r < 0 ? r : gw_listen_on(&u->server, c, buf_cstr(&u->admin_path), true, err);
}

static int start_gateway(struct gw_run *u, struct gw_config *c, struct err *err)
{
    struct gw_server *server = &u->server;
    server->start_ns = clock_ns();
    gw_hop_new(server->hop);
    server->reload = reload;
    server->run_ctx = u;
    int r = gw_settings_create(c, NULL, &server->first, err);
    if (r < 0) return r;
    server->settings = server->first;
    (void)atomic_fetch_add(&server->first->n_refs, 1);
    const char *presets =
        opt_given(c->opts, "worker.presets") ? opt_str(c->opts, "worker.presets") : NULL;
    r = gw_loops_create(server, c->loops);
    if (r == 0) r = seg_presets_load(presets, &server->presets, err);
    if (r == 0) r = seg_learner_create(SEG_LEARNER_BYTES, &server->learner);
    if (r == 0) r = gw_store_create(c->responses_max, c->responses_bytes, &server->store);
    if (r == 0) r = gw_rundir_make(&u->dir, err);
    if (r == 0) r = gw_stats_create(c->access_log, &server->stats);
    const struct otlp_opts traces = {.endpoint = c->traces_endpoint,
                                     .header = c->traces_headers.v,
                                     .n_headers = c->traces_headers.n,
                                     .service = "kvblend",
                                     .sample = c->traces_sample};
    if (r == 0 && c->traces_endpoint) r = otlp_create(&traces, &server->traces, err);
    if (r == 0) r = jobs_create(&(struct jobs_opts){HELPERS, HELPER_QUEUE, NULL}, &server->pool);
    if (r == 0)
        r = gw_memory_create(control(u)->http_loop, server->pool, server->learner,
                             c->segment_memory, buf_cstr(&u->dir), &u->memory);
    if (r == 0) r = gw_sysd_create(control(u)->http_loop, &server->sysd, err);
    if (r == 0) http_timer_init(&u->drain, control(u)->http_loop, on_drain_timer, u);
    if (r == 0) r = watch_signals(u);
    if (r == 0) r = start_admin(u, err);
    if (r == 0)
        r = gw_listen(server, c, err); /* before the worker: a taken port costs no model load */
    if (r == 0) r = start_fleet(u, err);
    if (r == 0) r = gw_loops_start(server);
    if (r == 0) gw_fleet_start(server->fleet);
    if (r == 0 && !(server->own && gw_own_awaited(server->own))) tell_serving(u);
    return r;
}

/* First the loops with their requests, then what these used, then what everybody used. */
static void stop_gateway(struct gw_run *u)
{
    struct gw_server *server = &u->server;
    if (server->n_loops > 0) {
        gw_loops_stop(server);
        gw_loop_close(control(u));
    }
    gw_registry_destroy(u->registry);
    gw_own_destroy(server->own);
    if (server->fleet) gw_fleet_stop(server->fleet);
    jobs_destroy(server->pool);
    gw_memory_destroy(u->memory);
    gw_fleet_destroy(server->fleet);
    gw_upstreams_free(u->workers);
    gw_directory_destroy(server->directory);
    gw_stats_destroy(server->stats);
    otlp_destroy(server->traces);
    http_timer_fini(&u->drain);
    for (int i = 0; i < N_SIGNALS; i++)
        if (u->signal_ev[i]) event_free(u->signal_ev[i]);
    gw_sysd_destroy(server->sysd);
    gw_loops_destroy(server);
    http_tls_unref(server->tls);
    seg_learner_free(server->learner);
    gw_store_destroy(server->store);
    seg_presets_free(server->presets);
    if (u->admin_path.len > 5) (void)unlink(buf_cstr(&u->admin_path) + 5); /* after "unix:" */
    buf_fini(&u->dir);
    buf_fini(&u->admin_path);
}

int gw_run(struct gw_config *c, int argc, char **argv, char **envp)
{
    struct gw_run u = {.argc = argc, .argv = argv, .envp = envp};
    struct err err = {0};
    enum log_level level;
    if (log_parse_level(c->log_level, &level)) log_set_level(level);
    int r = start_gateway(&u, c, &err);
    if (r < 0) {
        const char *why = err.msg[0] ? err.msg : err_name(r);
        if (log_is_json())
            log_event(LOG_ERROR, "start", "error=\"%s\"", why);
        else
            (void)fprintf(stderr, "kvblend: %s\n", why);
        u.exit_status = 1;
    } else {
        r = http_loop_run(control(&u)->http_loop);
        if (r < 0) u.exit_status = 1;
    }
    stop_gateway(&u);
    return u.exit_status;
}
