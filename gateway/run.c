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
#include "gateway/listen.h"
#include "gateway/pool.h"
#include "gateway/rundir.h"
#include "gateway/sysd.h"
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
    IDLE_POLL_MS = 10,
};
static const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGCHLD};
enum { N_SIGNALS = sizeof signals / sizeof signals[0] };

struct gw_run {
    struct gw_house house;
    int argc, exit_status;
    char **argv, **envp;
    struct event *signal_ev[N_SIGNALS];
    struct http_timer *delay, *drain, *last, *idle;
    struct buf dir, private_dir, admin_path;
    unsigned n_stopped; /* children that have ended */
    bool finishing;
};

static struct gw_gate *control(struct gw_run *u)
{
    return &u->house.lane[0];
}

static const struct gw_config *first_config(const struct gw_run *u)
{
    return u->house.first->config;
}

/* ---- ends ---- */

static void stop_now(struct gw_run *u)
{
    http_loop_stop(control(u)->loop);
}

static void finish(struct gw_run *u)
{
    struct gw_house *h = &u->house;
    if (u->finishing) return;
    u->finishing = true;
    gw_fleet_stop(h->fleet);
    log_event(LOG_NOTICE, "gateway.drained", "requests=%u", (unsigned)h->n_reqs);
    for (unsigned i = 0; i < h->n_children; i++)
        gw_child_stop(h->child[i], WORKER_GRACE_MS);
    if (u->n_stopped == h->n_children) stop_now(u);
}

static void on_delay_over(void *arg)
{
    struct gw_run *u = arg;
    gw_lanes_tell(&u->house, GW_TELL_CLOSE);
    http_timer_set(u->idle, 1);
}

/* Lanes do not tell when their last request ends: the control loop looks, while it drains. */
static void on_idle_poll(void *arg)
{
    struct gw_run *u = arg;
    if (gw_lanes_idle(&u->house))
        finish(u);
    else
        http_timer_set(u->idle, IDLE_POLL_MS);
}

static void on_drain_over(void *arg)
{
    struct gw_run *u = arg;
    log_event(LOG_WARN, "gateway.cut", "requests=%u", (unsigned)u->house.n_reqs);
    gw_lanes_tell(&u->house, GW_TELL_CLOSE | GW_TELL_CUT);
    http_timer_set(u->idle, 1);
    http_timer_set(u->last, CUT_GRACE_MS);
}

static void on_last(void *arg)
{
    finish(arg);
}

static void begin_drain(struct gw_run *u)
{
    struct gw_house *h = &u->house;
    if (h->draining) {
        log_event(LOG_NOTICE, "gateway.stop", "requests=%u", (unsigned)h->n_reqs);
        stop_now(u);
        return;
    }
    struct gw_settings *s = gw_house_settings(h);
    uint32_t timeout_ms = s->config->drain_timeout_ms, delay_ms = s->config->drain_delay_ms;
    gw_settings_unref(s);
    h->draining = true;
    gw_sysd_tell(h->sysd, "STOPPING=1");
    log_event(LOG_NOTICE, "gateway.draining", "requests=%u timeout_ms=%u", (unsigned)h->n_reqs,
              timeout_ms);
    http_timer_set(u->drain, timeout_ms + delay_ms);
    if (delay_ms)
        http_timer_set(u->delay, delay_ms);
    else
        on_delay_over(u);
}

/* ---- workers ---- */

static void on_fleet_changed(void *ctx, unsigned index)
{
    struct gw_run *u = ctx;
    gw_lanes_tell(&u->house, GW_TELL_FLEET);
}

static void on_room(void *ctx)
{
    on_fleet_changed(ctx, 0);
}

static void on_worker_silent(void *ctx, unsigned index, uint64_t silent_ms)
{
    struct gw_run *u = ctx;
    struct gw_target_view v;
    if (silent_ms <= first_config(u)->hang_timeout_ms) return;
    if (!gw_fleet_view(u->house.fleet, index, &v) || v.n_models == 0) return;
    for (unsigned i = 0; i < u->house.n_children; i++)
        if (gw_child_target(u->house.child[i]) == index) gw_child_kill(u->house.child[i]);
}

static bool on_worker_refused(void *ctx, int exit_code)
{
    struct gw_run *u = ctx;
    if (gw_fleet_count(u->house.fleet) > 1) return false; /* the others go on serving */
    log_event(LOG_ERROR, "gateway.end",
              "reason=\"the worker could not start; its own message stands above\" exit=%d",
              exit_code);
    u->exit_status = 1;
    stop_now(u);
    return true;
}

static void on_worker_stopped(void *ctx)
{
    struct gw_run *u = ctx;
    if (++u->n_stopped == u->house.n_children) stop_now(u);
}

static const struct gw_fleet_ops fleet_ops = {on_fleet_changed, on_fleet_changed, on_room,
                                              on_worker_silent};
static const struct gw_child_ops child_ops = {on_worker_refused, on_worker_stopped};

/* ---- reload ---- */

static int read_keys(const struct gw_config *c, const struct gw_keys *old, struct gw_keys **ret,
                     struct err *err)
{
    struct gw_limit defaults = {c->key_rpm, c->key_tpm, c->key_concurrency};
    return gw_keys_create(c->api_keys.v, c->api_keys.n, c->api_key_file, &defaults, old, ret, err);
}

/* Read everything first, then change everything: an error leaves all as it was. */
static int reload(void *ctx, struct err *err)
{
    struct gw_run *u = ctx;
    struct gw_house *h = &u->house;
    struct gw_settings *old = gw_house_settings(h), *s = NULL;
    struct gw_upstreams *ups = NULL;
    struct gw_config *c = NULL;
    struct gw_keys *k = NULL;
    struct buf text = BUF_INIT;
    int r = gw_config_load(u->argc, u->argv, u->envp, &c, &text);
    if (r < 0)
        (void)err_set(err, r, "configuration unchanged: %.*s", (int)strcspn(buf_cstr(&text), "\n"),
                      buf_cstr(&text));
    if (r == 0) r = read_keys(c, old->keys, &k, err);
    if (r == 0) r = gw_upstreams_parse(c, &ups, err);
    if (r == 0) r = (s = gw_settings_new(c, k)) ? 0 : -ENOMEM; /* takes both */
    if (s || r == -ENOMEM) c = NULL, k = NULL;
    if (r == 0 && h->tls) r = http_tls_reload(h->tls, err);
    if (r == 0) {
        r = gw_fleet_set_upstreams(h->fleet, ups, err);
        ups = NULL;
    }
    if (r < 0) goto out;
    buf_clear(&text);
    if (gw_config_restart_keys(u->house.first->config, s->config, &text) > 0)
        log_event(LOG_WARN, "config.restart_needed", "keys=%s", buf_cstr(&text));
    log_event(LOG_NOTICE, "config.reloaded", "keys=%zu", gw_keys_count(s->keys));
    enum log_level level;
    if (log_parse_level(s->config->log_level, &level)) log_set_level(level);
    gw_fleet_configure(h->fleet, s->config);
    gw_house_apply(h, s);
    s = NULL;
    gw_lanes_tell(h, GW_TELL_FLEET);
out:
    gw_settings_unref(s);
    gw_settings_unref(old);
    gw_upstreams_free(ups);
    gw_config_free(c);
    gw_keys_unref(k);
    buf_fini(&text);
    return r;
}

/* ---- signals ---- */

static void reopen_log(struct gw_run *u)
{
    int r = gw_stats_reopen(u->house.stats);
    if (r < 0) log_event(LOG_ERROR, "access_log.reopen", "error=%s kept=old", err_name(r));
}

static void on_signal(evutil_socket_t sig, short what, void *arg)
{
    struct gw_run *u = arg;
    struct err err = {0};
    switch (sig) {
    case SIGCHLD:
        for (unsigned i = 0; i < u->house.n_children; i++)
            gw_child_reaped(u->house.child[i]);
        break;
    case SIGHUP:
        gw_sysd_tell(u->house.sysd, "RELOADING=1");
        if (reload(u, &err) < 0) log_event(LOG_ERROR, "config.reload", "error=\"%s\"", err.msg);
        reopen_log(u);
        gw_sysd_tell(u->house.sysd, "READY=1");
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
        u->signal_ev[i] = evsignal_new(http_loop_base(control(u)->loop), signals[i], on_signal, u);
        if (!u->signal_ev[i] || event_add(u->signal_ev[i], NULL) < 0) return -ENOMEM;
    }
    (void)signal(SIGPIPE, SIG_IGN);
    return 0;
}

/* ---- start ---- */

static int worker_address(struct gw_run *u, unsigned number, struct buf *out)
{
    const char *dir = buf_cstr(&u->private_dir);
    if (number == 0) return buf_addf(out, "unix:%s/worker.sock", dir);
    return buf_addf(out, "unix:%s/worker-%u.sock", dir, number);
}

static int start_worker(struct gw_run *u, unsigned number, struct err *err)
{
    struct gw_house *h = &u->house;
    const struct gw_config *c = first_config(u);
    struct buf bin = BUF_INIT, model = BUF_INIT, address = BUF_INIT;
    unsigned target;
    const char *argv[512];
    size_t n = 0, n_pass = 0;
    int r = c->worker_bin ? buf_adds(&bin, c->worker_bin) : gw_find_worker(&bin, err);
    if (r == 0) r = c->model ? buf_adds(&model, c->model) : gw_find_model(&model, err);
    if (r == 0 && !c->model) log_event(LOG_NOTICE, "model.found", "path=\"%s\"", buf_cstr(&model));
    if (r == 0 && !u->private_dir.len)
        r = gw_rundir_private(buf_cstr(&u->dir), &u->private_dir, err);
    if (r == 0) r = worker_address(u, number, &address);
    if (r == 0) r = gw_fleet_add_worker(h->fleet, buf_cstr(&address), true, &target);
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
    if (r == 0)
        r = gw_child_create(control(u)->loop, h->fleet, target, argv, &child_ops, u,
                            &h->child[h->n_children]);
    if (r == 0) h->n_children++;
    if (r < 0) (void)err_set(err, r, "the worker %s could not be started", buf_cstr(&bin));
out:
    buf_fini(&bin);
    buf_fini(&model);
    buf_fini(&address);
    return r;
}

static int start_fleet(struct gw_run *u, struct err *err)
{
    struct gw_house *h = &u->house;
    const struct gw_config *c = first_config(u);
    struct gw_upstreams *ups = NULL;
    int r = gw_upstreams_parse(c, &ups, err);
    if (r == 0) r = gw_fleet_create(control(u)->loop, c, h->directory, &fleet_ops, u, &h->fleet);
    for (size_t i = 0; r == 0 && i < c->workers.n; i++) {
        unsigned index;
        r = gw_fleet_add_worker(h->fleet, c->workers.v[i], false, &index);
        if (r < 0) (void)err_set(err, r, "worker %s cannot be used", c->workers.v[i]);
    }
    bool others = c->workers.n > 0 || ups->n > 0;
    if (r == 0) {
        r = gw_fleet_set_upstreams(h->fleet, ups, err);
        ups = NULL;
    }
    gw_upstreams_free(ups);
    if (r == 0 && (c->model || !others)) r = start_worker(u, 0, err);
    if (r == 0) gw_admit_share(&h->admit, gw_fleet_count(h->fleet) > 1);
    return r;
}

static int start_admin(struct gw_run *u, struct err *err)
{
    struct gw_gate *g = control(u);
    const struct gw_config *c = first_config(u);
    int r = http_server_create(g->loop, NULL, &gw_admin_ops, g, &g->admin);
    if (r == 0) r = gw_listen_admin(&u->house, c, err);
    if (r < 0 || c->admin.n > 0) return r;
    r = gw_rundir_admin(buf_cstr(&u->dir), &u->admin_path);
    if (r == 1)
        log_event(LOG_NOTICE, "admin.taken", "reason=\"another gateway runs; use --admin\" path=%s",
                  buf_cstr(&u->admin_path));
    return r < 0 ? r : http_server_listen(g->admin, buf_cstr(&u->admin_path), err);
}

static int start_timers(struct gw_run *u)
{
    struct http_loop *l = control(u)->loop;
    int r = http_timer_create(l, on_delay_over, u, &u->delay);
    if (r == 0) r = http_timer_create(l, on_drain_over, u, &u->drain);
    if (r == 0) r = http_timer_create(l, on_last, u, &u->last);
    return r < 0 ? r : http_timer_create(l, on_idle_poll, u, &u->idle);
}

static int start(struct gw_run *u, struct gw_config *c, struct err *err)
{
    struct gw_house *h = &u->house;
    struct gw_keys *k = NULL;
    h->start_ns = clock_ns();
    h->reload = reload;
    h->run_ctx = u;
    int r = read_keys(c, NULL, &k, err);
    if (r < 0) {
        gw_config_free(c);
        return r;
    }
    h->first = gw_settings_new(c, k);
    if (!h->first) return -ENOMEM;
    h->settings = gw_settings_ref(h->first);
    r = gw_lanes_create(h, c->loops);
    if (r == 0) r = seg_presets_load(c->presets, &h->presets, err);
    if (r == 0) r = seg_learner_create(SEG_LEARNER_BYTES, &h->learner);
    if (r == 0) r = gw_rundir_make(&u->dir, err);
    if (r == 0) r = gw_stats_create(c->access_log, &h->stats);
    if (r == 0) r = gw_pool_create(HELPERS, HELPER_QUEUE, &h->pool);
    if (r == 0) r = gw_sysd_create(control(u)->loop, &h->sysd, err);
    if (r == 0) r = start_timers(u);
    if (r == 0) r = watch_signals(u);
    if (r == 0) r = gw_listen(h, c, err); /* before the worker: a taken port costs no model load */
    if (r == 0) r = start_admin(u, err);
    if (r == 0) r = start_fleet(u, err);
    if (r == 0) r = gw_lanes_start(h);
    if (r == 0) gw_fleet_start(h->fleet);
    if (r == 0) gw_sysd_tell(h->sysd, "READY=1");
    return r;
}

/* First the lanes with their requests, then what these used, then what everybody used. */
static void stop(struct gw_run *u)
{
    struct gw_house *h = &u->house;
    struct http_timer *timers[] = {u->delay, u->drain, u->last, u->idle};
    if (h->n_lanes > 0) {
        gw_lanes_stop(h);
        gw_lane_close(control(u));
    }
    for (unsigned i = 0; i < h->n_children; i++)
        gw_child_destroy(h->child[i]);
    if (h->fleet) gw_fleet_stop(h->fleet);
    gw_pool_destroy(h->pool);
    gw_fleet_destroy(h->fleet);
    gw_stats_destroy(h->stats);
    for (size_t i = 0; i < sizeof timers / sizeof timers[0]; i++)
        if (timers[i]) http_timer_destroy(timers[i]);
    for (int i = 0; i < N_SIGNALS; i++)
        if (u->signal_ev[i]) event_free(u->signal_ev[i]);
    gw_sysd_destroy(h->sysd);
    gw_lanes_destroy(h);
    http_tls_unref(h->tls);
    seg_learner_free(h->learner);
    seg_presets_free(h->presets);
    for (unsigned i = 0; i < h->n_children; i++) {
        struct buf address = BUF_INIT;
        if (worker_address(u, i, &address) == 0) (void)unlink(buf_cstr(&address) + 5);
        buf_fini(&address);
    }
    if (u->private_dir.len > 0) (void)rmdir(buf_cstr(&u->private_dir));
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
    if (log_parse_level(c->log_level, &level)) log_set_level(level);
    int r = start(&u, c, &err);
    if (r < 0) {
        (void)fprintf(stderr, "kvblend: %s\n", err.msg[0] ? err.msg : err_name(r));
        u.exit_status = 1;
    } else {
        r = http_loop_run(control(&u)->loop);
        if (r < 0) u.exit_status = 1;
    }
    stop(&u);
    return u.exit_status;
}
