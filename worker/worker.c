/* The process: loop, server, signals, drain. */
#include "worker/worker.h"

#include "base/clock.h"
#include "base/jobs.h"
#include "base/log.h"
#include "base/machine.h"
#include "kernels/gpu.h"
#include "tiers/mrc.h"
#include "tiers/store_admin.h"
#include "worker/admin/metrics.h"
#include "worker/admin/past.h"
#include "worker/embed/embed.h"
#include "worker/fleet/residency.h"
#include "worker/kvlog.h"
#include "worker/quality/guard.h"
#include "worker/quality/contexts.h"
#include "worker/request/request.h"
#include "worker/request/rerank.h"
#include "worker/reuse/builds.h"
#include "worker/reuse/heat.h"
#include "worker/reuse/namespaces.h"
#include "worker/reuse/recuts.h"
#include "worker/reuse/reuse.h"

#include <event2/event.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    TICK_MS = 250,
    BODY_MEMORY_SHARE = 8, /* chosen: as the gateway's default */
    FLUSH_MS = 3000,       /* chosen: below the grace between a supervisor's SIGTERM and SIGKILL */
};

/* ---- HTTP ---- */
static void on_call_head(void *ctx, struct http_req *r)
{
    struct wk_call *c;

    if (wk_call_create(ctx, r, &c) < 0)
        http_reply_abort(r);
    else
        wk_route_head(ctx, c);
}

static void on_request(void *ctx, struct http_req *r)
{
    wk_route(ctx, r->user);
}

static void on_close(void *ctx, struct http_req *r, bool aborted)
{
    struct wk_call *c = r->user;

    if (c) wk_call_closed(c, aborted);
}

static void on_fault(void *ctx, struct http_req *r, int status, const char *why)
{
    wk_refuse(r->user, api_fault_of(status), NULL, "The request was refused: %s.",
              why ? why : "malformed");
}

static void on_refuse(void *ctx, int status, const char *why, const struct http_head *head,
                      struct buf *ret_headers, struct buf *ret_body)
{
    char id[WK_ID_BYTES];
    struct api_err e;

    (void)api_err_set(&e, api_fault_of(status), NULL, "The request was refused: %s.",
                      why ? why : "malformed");
    wk_call_id(http_header_find(head, "x-request-id"), id);
    (void)buf_addf(ret_headers, "x-request-id: %s\r\nx-should-retry: %s\r\n", id,
                   status == 408 ? "true" : "false");
    (void)api_put_error(ret_body, &e);
    wk_metrics_request(status);
}

/* ---- drain ---- */
static void end_now(struct worker *w)
{
    wk_gens_abort(w);
    wk_ranks_abort(w);
    http_loop_stop(w->loop);
}

static void drain(struct worker *w)
{
    if (w->process.drain_deadline_ns) { /* asked twice: now */
        end_now(w);
        return;
    }
    log_event(LOG_NOTICE, "draining", "requests=%u timeout_ms=%llu", w->requests.n_gens,
              (unsigned long long)w->o.drain_timeout_ms);
    w->process.drain_deadline_ns = clock_ns() + w->o.drain_timeout_ms * 1000000 + 1;
    atomic_store(&w->state, WK_DRAINING);
    wk_announce_leave(w);
    http_server_stop_accepting(w->process.server);
    http_timer_set(&w->process.tick, 0);
}

/* A lost device never comes back in this process: the supervisor starts another. */
static void watch_device(struct worker *w)
{
    const struct kn_dev *d = wk_device(w);

    if (!w->process.replays_refused && kn_replays(d).refused) {
        w->process.replays_refused = true;
        log_event(LOG_WARN, "replay_refused",
                  "device=\"%s\" note=\"decode steps are queued kernel by kernel\"",
                  kn_info(d)->device);
    }
    const struct kn_refusals r = kn_gemm_refusals(d), last = w->process.refused;
    if (r.count && (r.m != last.m || r.n != last.n || r.k != last.k)) {
        w->process.refused = r;
        log_event(LOG_WARN, "gemm_refused",
                  "m=%zu n=%zu k=%zu count=%" PRIu64
                  " note=\"the library has no product of this shape, a slow kernel makes it\"",
                  r.m, r.n, r.k, r.count);
    }
    if (w->process.drain_deadline_ns || !kn_dev_lost(d)) return;
    log_event(LOG_ERROR, "device_lost", "device=\"%s\"", kn_info(d)->device);
    w->process.exit_code = WK_EXIT_DEVICE_LOST;
    w->process.device_lost = true;
    drain(w);
}

static void on_tick(void *arg)
{
    struct worker *w = arg;

    if (atomic_load(&w->state) == WK_READY) watch_device(w);
    wk_queue_kick(w);
    wk_announce_tick(w);
    wk_gens_tick(w);
    if (atomic_load(&w->state) == WK_READY && w->store) {
        wk_tiers_watch(w);
        wk_past_tick(w);
    }
    if (w->fleet.readers || w->fleet.subscribers || atomic_load(&w->state) == WK_READY)
        wk_feed_tick(w);
    if (w->process.drain_deadline_ns) {
        if (w->requests.n_gens == 0 && http_server_n_requests(w->process.server) == 0) {
            log_event(LOG_NOTICE, "drained", "requests=0");
            end_now(w);
            return;
        }
        if (clock_ns() > w->process.drain_deadline_ns) {
            log_event(LOG_WARN, "drain_timeout", "requests=%u", w->requests.n_gens);
            end_now(w);
            return;
        }
    }
    http_timer_set(&w->process.tick, w->process.drain_deadline_ns ? 20 : TICK_MS);
}

static void on_signal(int fd, short what, void *arg)
{
    drain(arg);
}

/* The supervisor holds the other end of our standard input and never writes. */
static void on_stdin(int fd, short what, void *arg)
{
    struct worker *w = arg;
    char sink[256];
    ssize_t n = read(fd, sink, sizeof sink);

    if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR))) return;
    log_event(LOG_NOTICE, "parent_gone", "action=exit");
    event_del(w->process.stdin_event);
    w->process.drain_deadline_ns = 1; /* no grace: the reader of our answers is gone */
    end_now(w);
}

static int watch_process(struct worker *w)
{
    static const int signals[2] = {SIGTERM, SIGINT};
    struct event_base *base = http_loop_base(w->loop);

    for (int i = 0; i < 2; i++) {
        w->process.signals[i] = evsignal_new(base, signals[i], on_signal, w);
        if (!w->process.signals[i] || event_add(w->process.signals[i], NULL) < 0) return -ENOMEM;
    }
    (void)signal(SIGPIPE, SIG_IGN);
    if (!getenv("KVBLEND_EXIT_ON_STDIN_EOF")) return 0; /* the gateway says it to its own */
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    struct stat st;
    bool pipe_like =
        fstat(STDIN_FILENO, &st) == 0 && (S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode));
    if (!pipe_like && !isatty(STDIN_FILENO)) return 0; /* a file never ends later: nothing to see */
    w->process.stdin_event = event_new(base, STDIN_FILENO, EV_READ | EV_PERSIST, on_stdin, w);
    return w->process.stdin_event && event_add(w->process.stdin_event, NULL) == 0 ? 0 : -ENOMEM;
}

/* A unix socket has admin routes: it is the user's own. */
static int open_door(struct worker *w, struct err *err)
{
    struct http_listen_opts o = {.unix_mode = S_IRUSR | S_IWUSR};
    struct http_tls_opts files = {
        .cert_file = w->o.tls.cert, .key_file = w->o.tls.key, .server = true};
    int rc = w->o.tls.cert ? http_tls_create(&files, &o.tls, err) : 0;

    if (rc >= 0) rc = http_server_listen(w->process.server, w->o.listen, &o, err);
    if (o.tls) http_tls_unref(o.tls); /* the listener has its own */
    return rc;
}

/* ---- life ---- */
int wk_create(const struct wk_opts *o, struct worker **ret, struct err *err)
{
    static const struct http_server_ops ops = {.on_head = on_call_head,
                                               .on_fault = on_fault,
                                               .on_request = on_request,
                                               .on_close = on_close,
                                               .on_refuse = on_refuse};
    const struct http_bounds_opts bounds = {
        .body_memory_bytes = machine_bytes() / BODY_MEMORY_SHARE, .n_servers = 1};
    struct http_limits lim = {0};
    struct worker *w = mem_zalloc(sizeof *w);
    int rc = -ENOMEM;

    if (!w) return err_set(err, -ENOMEM, "out of memory");
    w->o = *o;
    w->started_s = clock_wall_s();
    w->fleet.epoch = (uint64_t)(w->started_s * 1e6) ^ (uint64_t)getpid() << 52;
    wk_queue_init(&w->queue);
    wk_metrics_init();
    json_object_seed(0); /* before threads use jansson */
    if ((rc = residency_create(RESIDENCY_MAX, w->fleet.epoch, &w->fleet.residency)) < 0) goto fail;
    if ((rc = wk_load_create(&w->fleet.load)) < 0) goto fail;
    if ((rc = wk_namespaces_create(&w->namespaces)) < 0) goto fail;
    if ((rc = wk_past_create(&w->process.past)) < 0) goto fail;
    if ((rc = wk_heat_create(o->tiers.show_text, o->tiers.n_show_text, &w->reuse.heat)) < 0)
        goto fail;
    if ((rc = http_loop_create(&w->loop)) < 0) goto fail;
    http_timer_init(&w->process.tick, w->loop, on_tick, w);
    if ((rc = http_bounds_create(&bounds, &w->process.bounds)) < 0) goto fail;
    lim.bounds = w->process.bounds;
    if ((rc = http_server_create(w->loop, &lim, &ops, w, &w->process.server)) < 0) goto fail;
    /* Helpers wait for slower tiers' answers; then more of them keep the others going. */
    unsigned n_helpers = o->tiers.nvme_path || o->tiers.redis ? 4 : 2;
    if ((rc = wk_helpers_create(n_helpers, &w->helpers)) < 0) goto fail;
    if ((rc = watch_process(w)) < 0) goto fail;
    if ((rc = wk_builds_create(w, wk_warmups_built)) < 0) goto fail;
    if ((rc = wk_contexts_create(w)) < 0) goto fail;
    if ((rc = wk_guard_create(w)) < 0) goto fail;
    if (o->traces.endpoint && (rc = otlp_create(&o->traces, &w->process.traces, err)) < 0)
        goto fail;
    if ((rc = open_door(w, err)) < 0) goto fail;
    if ((rc = wk_loader_start(w)) < 0) goto fail;
    http_timer_set(&w->process.tick, TICK_MS);
    log_event(LOG_NOTICE, "listening", "address=%s port=%d", o->listen,
              http_server_port(w->process.server));
    *ret = w;
    return 0;
fail:
    if (err && err->code == 0) (void)err_set(err, rc, "start-up failed (%s)", err_name(rc));
    wk_destroy(w);
    return rc;
}

int wk_run(struct worker *w)
{
    int rc = http_loop_run(w->loop);

    return rc < 0 ? 1 : w->process.exit_code;
}

/* Order: no more engine callbacks, no more requests, then what both of them used. */
void wk_destroy(struct worker *w)
{
    if (!w) return;
    if (w->loader.started) pthread_join(w->loader.thread, NULL);
    wk_announce_end(w);
    if (w->store) store_interrupt(w->store); /* a helper may be verifying a whole disk */
    jobs_destroy(w->helpers);
    fus_engine_destroy(w->engine);
    wk_embedder_stop(w);
    if (w->process.server) http_server_destroy(w->process.server);
    otlp_destroy(w->process.traces); /* the last requests are closed */
    http_bounds_destroy(w->process.bounds);
    while (!LIST_EMPTY(&w->requests.tasks))
        wk_task_free(LIST_FIRST(&w->requests.tasks));
    wk_builds_destroy(w);
    wk_contexts_destroy(w);
    wk_guard_destroy(w);
    for (int i = 0; i < 2; i++)
        if (w->process.signals[i]) event_free(w->process.signals[i]);
    if (w->process.stdin_event) event_free(w->process.stdin_event);
    http_timer_fini(&w->process.tick);
    http_loop_destroy(w->loop);
    wk_kvlog_close(w->kvlog);
    wk_decider_close(w);
    wk_heat_destroy(w->reuse.heat);
    wk_past_destroy(w->process.past);
    if (w->store) {
        int rc = store_flush(w->store, clock_ns() + (uint64_t)FLUSH_MS * 1000000);
        if (rc < 0) log_event(LOG_WARN, "flush", "error=%s", err_name(rc));
    }
    store_destroy(w->store);
    mrc_destroy(w->reuse.mrc);
    wk_recuts_destroy(w->reuse.recuts);
    gpu_close(w->tiers.gpu);
    fus_core_destroy(w->core);
    wk_reranker_close(w);
    chat_close(w->chat);
    gram_vocab_destroy(w->vocab);
    wk_embedder_close(w); /* the tokenizer may be its own */
    tok_close(w->tok);
    model_close(w->model);
    seg_learner_free(w->segmenter.learner);
    seg_presets_free(w->segmenter.presets);
    residency_destroy(w->fleet.residency);
    wk_load_destroy(w->fleet.load);
    wk_namespaces_destroy(w->namespaces);
    wk_queue_fini(&w->queue);
    mem_free(w);
}
