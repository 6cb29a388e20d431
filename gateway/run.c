#include "gateway/run.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "gateway/child.h"
#include "gateway/config.h"
#include "gateway/findmodel.h"
#include "gateway/fleet.h"
#include "gateway/gate.h"
#include "gateway/keys.h"
#include "gateway/pool.h"
#include "gateway/rundir.h"
#include "segment/segment.h"

#include <event2/event.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    HELPERS = 2,
    HELPER_QUEUE = 256,
    WORKER_GRACE_MS = 5000, /* a worker's SIGTERM to SIGKILL, once nobody waits for it */
    CUT_GRACE_MS = 2000,    /* to deliver the last frames */
};
static const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGCHLD};
enum { N_SIGNALS = sizeof signals / sizeof signals[0] };

struct gw_run {
    struct gw_gate gate;
    int argc, exit_status;
    char **argv, **envp;
    struct event *signal_ev[N_SIGNALS];
    struct http_timer *delay, *drain, *last;
    struct buf dir, private_dir, admin_path;
    bool finishing, cut;
};

/* ---- ends ---- */

static void stop_now(void *arg)
{
    struct gw_run *u = arg;
    http_loop_stop(u->gate.loop);
}

static void finish(void *ctx)
{
    struct gw_run *u = ctx;
    if (u->finishing) return;
    u->finishing = true;
    gw_fleet_stop(u->gate.fleet);
    log_event(LOG_NOTICE, "gateway.drained", "requests=%u", u->gate.n_reqs);
    if (u->gate.child)
        gw_child_stop(u->gate.child, WORKER_GRACE_MS);
    else
        http_loop_stop(u->gate.loop);
}

static void on_delay_over(void *arg)
{
    struct gw_run *u = arg;
    http_server_stop_accepting(u->gate.server);
    if (u->gate.n_reqs == 0) finish(u);
}

static void on_idle(void *ctx)
{
    struct gw_run *u = ctx;
    if (u->gate.config->drain_delay_ms == 0 || u->cut) finish(u);
}

static void on_drain_over(void *arg)
{
    struct gw_run *u = arg;
    unsigned n = 0;
    u->cut = true;
    for (struct gw_req *q = u->gate.reqs, *next; q; q = next) {
        next = q->next; /* closing is deferred by the server: the list stands */
        if (!q->active && !q->call) continue;
        gw_relay_cut(q, GW_E_DRAINING, "The server is shutting down.");
        n++;
    }
    log_event(LOG_WARN, "gateway.cut", "requests=%u", n);
    http_timer_set(u->last, CUT_GRACE_MS);
}

static void on_last(void *arg)
{
    finish(arg);
}

static void begin_drain(struct gw_run *u)
{
    struct gw_gate *g = &u->gate;
    if (g->draining) {
        log_event(LOG_NOTICE, "gateway.stop", "requests=%u", g->n_reqs);
        stop_now(u);
        return;
    }
    g->draining = true;
    log_event(LOG_NOTICE, "gateway.draining", "requests=%u timeout_ms=%u", g->n_reqs,
              g->config->drain_timeout_ms);
    http_timer_set(u->drain, g->config->drain_timeout_ms + g->config->drain_delay_ms);
    if (g->config->drain_delay_ms)
        http_timer_set(u->delay, g->config->drain_delay_ms);
    else
        on_delay_over(u);
}

/* ---- workers ---- */

static void on_worker_ready(void *ctx, struct gw_target *t)
{
    struct gw_run *u = ctx;
    gw_relay_on_ready(&u->gate);
}

static void on_worker_lost(void *ctx, struct gw_target *t)
{
    struct gw_run *u = ctx;
    gw_relay_on_lost(&u->gate);
}

static void on_worker_silent(void *ctx, struct gw_target *t, uint64_t silent_ms)
{
    struct gw_run *u = ctx;
    struct gw_child *c = u->gate.child;
    bool hangs = silent_ms > u->gate.config->hang_timeout_ms && t->n_models > 0;
    if (c && gw_child_target(c) == t && hangs) gw_child_kill(c);
}

static bool on_worker_refused(void *ctx, int exit_code)
{
    struct gw_run *u = ctx;
    if (gw_fleet_count(u->gate.fleet) > 1) return false; /* the others go on serving */
    log_event(LOG_ERROR, "gateway.end",
              "reason=\"the worker could not start; its own message stands above\" exit=%d",
              exit_code);
    u->exit_status = 1;
    http_loop_stop(u->gate.loop);
    return true;
}

static void on_worker_stopped(void *ctx)
{
    struct gw_run *u = ctx;
    http_loop_stop(u->gate.loop);
}

static const struct gw_fleet_ops fleet_ops = {on_worker_ready, on_worker_lost, on_worker_silent};
static const struct gw_child_ops child_ops = {on_worker_refused, on_worker_stopped};

/* ---- reload ---- */

static void apply(struct gw_gate *g)
{
    enum log_level level;
    if (log_parse_level(g->config->log_level, &level)) log_set_level(level);
    gw_admit_set(&g->admit, g->config->max_inflight, g->config->queue_limit);
    gw_relay_arm_queue(g);
}

static int read_keys(const struct gw_config *c, const struct gw_keys *old, struct gw_keys **ret,
                     struct err *err)
{
    struct gw_limit defaults = {c->key_rpm, c->key_tpm, c->key_concurrency};
    return gw_keys_create(c->api_keys.v, c->api_keys.n, c->api_key_file, &defaults, old, ret, err);
}

static int reload(void *ctx, struct err *err)
{
    struct gw_run *u = ctx;
    struct gw_gate *g = &u->gate;
    struct gw_config *c = NULL;
    struct gw_keys *k = NULL;
    struct buf text = BUF_INIT;
    int r = gw_config_load(u->argc, u->argv, u->envp, &c, &text);
    if (r < 0) {
        (void)err_set(err, r, "configuration unchanged: %.*s", (int)strcspn(buf_cstr(&text), "\n"),
                      buf_cstr(&text));
        goto out;
    }
    r = read_keys(c, g->keys, &k, err);
    if (r < 0) {
        gw_config_free(c);
        goto out;
    }
    buf_clear(&text);
    if (gw_config_restart_keys(g->config, c, &text) > 0)
        log_event(LOG_WARN, "config.restart_needed", "keys=%s", buf_cstr(&text));
    gw_config_free(g->config);
    gw_keys_unref(g->keys);
    g->config = c;
    g->keys = k;
    apply(g);
    log_event(LOG_NOTICE, "config.reloaded", "keys=%zu", gw_keys_count(k));
out:
    buf_fini(&text);
    return r;
}

/* ---- signals ---- */

static void reopen_log(struct gw_run *u)
{
    int r = gw_stats_reopen(u->gate.stats);
    if (r < 0) log_event(LOG_ERROR, "access_log.reopen", "error=%s kept=old", err_name(r));
}

static void on_signal(evutil_socket_t sig, short what, void *arg)
{
    struct gw_run *u = arg;
    struct err err = {0};
    switch (sig) {
    case SIGCHLD:
        if (u->gate.child) gw_child_reaped(u->gate.child);
        break;
    case SIGHUP:
        if (reload(u, &err) < 0) log_event(LOG_ERROR, "config.reload", "error=\"%s\"", err.msg);
        reopen_log(u);
        break;
    case SIGUSR1:
        reopen_log(u);
        break;
    default:
        begin_drain(u);
    }
}

static int watch_signals(struct gw_run *u)
{
    for (int i = 0; i < N_SIGNALS; i++) {
        u->signal_ev[i] = evsignal_new(http_loop_base(u->gate.loop), signals[i], on_signal, u);
        if (!u->signal_ev[i] || event_add(u->signal_ev[i], NULL) < 0) return -ENOMEM;
    }
    (void)signal(SIGPIPE, SIG_IGN);
    return 0;
}

/* ---- start ---- */

static int start_worker(struct gw_run *u, struct err *err)
{
    struct gw_gate *g = &u->gate;
    const struct gw_config *c = g->config;
    struct buf bin = BUF_INIT, model = BUF_INIT, address = BUF_INIT;
    struct gw_target *t;
    const char *argv[512];
    size_t n = 0, n_pass = 0;
    int r = c->worker_bin ? buf_adds(&bin, c->worker_bin) : gw_find_worker(&bin, err);
    if (r == 0) r = c->model ? buf_adds(&model, c->model) : gw_find_model(&model, err);
    if (r == 0 && !c->model) log_event(LOG_NOTICE, "model.found", "path=\"%s\"", buf_cstr(&model));
    if (r == 0) r = gw_rundir_private(buf_cstr(&u->dir), &u->private_dir, err);
    if (r == 0) r = buf_addf(&address, "unix:%s/worker.sock", buf_cstr(&u->private_dir));
    if (r == 0) r = gw_fleet_add(g->fleet, buf_cstr(&address), true, &t);
    if (r < 0) goto out;
    argv[n++] = buf_cstr(&bin);
    argv[n++] = "--model";
    argv[n++] = buf_cstr(&model);
    argv[n++] = "--listen";
    argv[n++] = buf_cstr(&address);
    argv[n++] = "--exit-on-stdin-eof";
    r = gw_config_worker_args(c, argv + n, sizeof argv / sizeof argv[0] - n - 1, &n_pass);
    argv[n + n_pass] = NULL;
    if (r == 0) r = gw_config_worker_env(c);
    if (r == 0) r = gw_child_create(g->loop, g->fleet, t, argv, &child_ops, u, &g->child);
    if (r < 0) (void)err_set(err, r, "the worker %s could not be started", buf_cstr(&bin));
out:
    buf_fini(&bin);
    buf_fini(&model);
    buf_fini(&address);
    return r;
}

static int start_fleet(struct gw_run *u, struct err *err)
{
    struct gw_gate *g = &u->gate;
    const struct gw_config *c = g->config;
    int r = gw_fleet_create(g->loop, c, &fleet_ops, u, &g->fleet);
    for (size_t i = 0; r == 0 && i < c->workers.n; i++) {
        struct gw_target *t;
        r = gw_fleet_add(g->fleet, c->workers.v[i], false, &t);
        if (r < 0) (void)err_set(err, r, "worker %s cannot be used", c->workers.v[i]);
    }
    if (r == 0 && (c->model || c->workers.n == 0)) r = start_worker(u, err);
    if (r == 0) gw_fleet_start(g->fleet);
    return r;
}

static int start_admin(struct gw_run *u, struct err *err)
{
    struct gw_gate *g = &u->gate;
    const struct gw_config *c = g->config;
    int r = http_server_create(g->loop, NULL, &gw_admin_ops, g, &g->admin);
    for (size_t i = 0; r == 0 && i < c->admin.n; i++) {
        struct buf a = BUF_INIT;
        r = gw_parse_address(c->admin.v[i], &a);
        if (r == 0) r = http_server_listen(g->admin, buf_cstr(&a), err);
        buf_fini(&a);
    }
    if (r < 0 || c->admin.n > 0) return r;
    r = gw_rundir_admin(buf_cstr(&u->dir), &u->admin_path);
    if (r == 1)
        log_event(LOG_NOTICE, "admin.taken", "reason=\"another gateway runs; use --admin\" path=%s",
                  buf_cstr(&u->admin_path));
    return r < 0 ? r : http_server_listen(g->admin, buf_cstr(&u->admin_path), err);
}

static int start_server(struct gw_run *u, struct err *err)
{
    struct gw_gate *g = &u->gate;
    const struct gw_config *c = g->config;
    struct http_limits lim = {.body_bytes_max = c->max_body_bytes,
                              .head_timeout_ms = c->head_timeout_ms,
                              .body_timeout_ms = c->body_timeout_ms,
                              .write_timeout_ms = c->write_timeout_ms};
    int r = http_server_create(g->loop, &lim, &gw_front_ops, g, &g->server);
    for (size_t i = 0; r == 0 && i < c->listen.n; i++) {
        struct buf a = BUF_INIT;
        r = gw_parse_address(c->listen.v[i], &a);
        if (r == 0) r = http_server_listen(g->server, buf_cstr(&a), err);
        if (r == 0)
            log_event(LOG_NOTICE, "gateway.listening", "address=%s port=%d", buf_cstr(&a),
                      http_server_port(g->server));
        buf_fini(&a);
    }
    return r;
}

static void on_queue_timer(void *arg)
{
    gw_relay_arm_queue(arg);
}

static int start(struct gw_run *u, struct err *err)
{
    struct gw_gate *g = &u->gate;
    const struct gw_config *c = g->config;
    g->start_ns = clock_ns();
    g->reload = reload;
    g->on_idle = on_idle;
    g->run_ctx = u;
    gw_admit_init(&g->admit, c->max_inflight, c->queue_limit, gw_relay_granted, gw_relay_expired);
    int r = http_loop_create(&g->loop);
    if (r == 0) r = read_keys(c, NULL, &g->keys, err);
    if (r == 0) r = seg_presets_load(c->presets, &g->presets, err);
    if (r == 0) r = seg_learner_create(SEG_LEARNER_BYTES, &g->learner);
    if (r == 0) r = gw_rundir_make(&u->dir, err);
    if (r == 0) r = gw_stats_create(c->access_log, &g->stats);
    if (r == 0) r = gw_pool_create(HELPERS, HELPER_QUEUE, &g->pool);
    if (r == 0) r = http_timer_create(g->loop, on_queue_timer, g, &g->admit_timer);
    if (r == 0) r = http_timer_create(g->loop, on_delay_over, u, &u->delay);
    if (r == 0) r = http_timer_create(g->loop, on_drain_over, u, &u->drain);
    if (r == 0) r = http_timer_create(g->loop, on_last, u, &u->last);
    if (r == 0) r = watch_signals(u);
    if (r == 0) r = start_server(u, err); /* before the worker: a taken port costs no model load */
    if (r == 0) r = start_admin(u, err);
    if (r == 0) r = start_fleet(u, err);
    return r;
}

static void stop(struct gw_run *u)
{
    struct gw_gate *g = &u->gate;
    struct http_timer *timers[] = {g->admit_timer, u->delay, u->drain, u->last};
    g->draining = false; /* closing the last request no longer means anything */
    http_server_destroy(g->server);
    http_server_destroy(g->admin);
    gw_child_destroy(g->child);
    if (g->fleet) gw_fleet_stop(g->fleet);
    gw_pool_destroy(g->pool);
    gw_fleet_destroy(g->fleet);
    gw_stats_destroy(g->stats);
    for (size_t i = 0; i < sizeof timers / sizeof timers[0]; i++)
        if (timers[i]) http_timer_destroy(timers[i]);
    for (int i = 0; i < N_SIGNALS; i++)
        if (u->signal_ev[i]) event_free(u->signal_ev[i]);
    http_loop_destroy(g->loop);
    seg_learner_free(g->learner);
    seg_presets_free(g->presets);
    gw_keys_unref(g->keys);
    gw_config_free(g->config);
    if (u->private_dir.len > 0) {
        struct buf sock = BUF_INIT;
        if (buf_addf(&sock, "%s/worker.sock", buf_cstr(&u->private_dir)) == 0)
            (void)unlink(buf_cstr(&sock));
        buf_fini(&sock);
        (void)rmdir(buf_cstr(&u->private_dir));
    }
    if (u->admin_path.len > 5) (void)unlink(buf_cstr(&u->admin_path) + 5); /* after "unix:" */
    buf_fini(&u->dir);
    buf_fini(&u->private_dir);
    buf_fini(&u->admin_path);
}

int gw_run(struct gw_config *c, int argc, char **argv, char **envp)
{
    struct gw_run u = {.argc = argc, .argv = argv, .envp = envp};
    struct err err = {0};
    enum log_level level;
    u.gate.config = c;
    if (log_parse_level(c->log_level, &level)) log_set_level(level);
    int r = start(&u, &err);
    if (r < 0) {
        (void)fprintf(stderr, "kvblend: %s\n", err.msg[0] ? err.msg : err_name(r));
        u.exit_status = 1;
    } else {
        r = http_loop_run(u.gate.loop);
        if (r < 0) u.exit_status = 1;
    }
    stop(&u);
    return u.exit_status;
}
