/* The loops and what joins them: settings by counted reference, one word per loop of what others
 * want of it, and calls from loop to loop.
 *
 * Other threads never touch a loop's requests. They set bits in its `told` and post one call; the
 * loop then looks for itself. A post that finds the ring full is no loss: the loop's tick, twice a
 * second, looks at the bits as well. */
#include "base/assert.h"
#include "base/clock.h"
#include "base/mem.h"
#include "gateway/fleet/lease.h"
#include "gateway/fleet/view.h"
#include "gateway/front/admission.h"
#include "gateway/front/reply.h"
#include "gateway/process/config.h"
#include "gateway/process/server.h"
#include "gateway/request/relay.h"
#include "gateway/request/request.h"

#include <errno.h>
#include <signal.h>

enum {
    WORKERS_INFLIGHT = 64, /* chosen: a few times what a worker decodes together */
    TICK_MS = 500,
    STOCK_MAX = 64, /* chosen: requests that come and go in one turn of the loop */
};

/* ---- settings ---- */

int gw_settings_create(struct gw_config *c, const struct gw_keys *old, struct gw_settings **ret,
                       struct err *err)
{
    const struct gw_key_source keys = {.list = c->api_keys.v,
                                       .n = c->api_keys.n,
                                       .file = c->api_key_file,
                                       .defaults = {c->key_rpm, c->key_tpm, c->key_concurrency}};
    const struct gw_key_source admins = {.list = c->admin_keys.v, .n = c->admin_keys.n};
    struct gw_settings *s = mem_zalloc(sizeof *s);
    if (!s) {
        gw_config_free(c);
        return -ENOMEM;
    }
    s->n_refs = 1;
    s->config = c;
    int r = gw_keys_create(&keys, old, &s->keys, err);
    if (r == 0) r = gw_keys_create(&admins, NULL, &s->admin_keys, err);
    if (r < 0)
        gw_settings_unref(s);
    else
        *ret = s;
    return r;
}

void gw_settings_unref(struct gw_settings *s)
{
    if (!s || atomic_fetch_sub(&s->n_refs, 1) > 1) return;
    gw_config_free(s->config);
    gw_keys_destroy(s->keys);
    gw_keys_destroy(s->admin_keys);
    mem_free(s);
}

struct gw_settings *gw_server_settings(struct gw_server *server)
{
    (void)pthread_mutex_lock(&server->lock);
    struct gw_settings *s = server->settings;
    (void)atomic_fetch_add(&s->n_refs, 1);
    (void)pthread_mutex_unlock(&server->lock);
    return s;
}

/* Of requests that take a turn: all, when the operator says how many, else the workers'. */
static unsigned admit_max(const struct gw_config *c)
{
    return c->max_inflight ? c->max_inflight : WORKERS_INFLIGHT;
}

void gw_server_apply(struct gw_server *server, struct gw_settings *s)
{
    const struct gw_config *c = s->config;
    (void)pthread_mutex_lock(&server->lock);
    struct gw_settings *old = server->settings;
    server->settings = s;
    (void)pthread_mutex_unlock(&server->lock);
    gw_settings_unref(old);
    gw_admit_set(&server->admit, admit_max(c), c->queue_limit);
    gw_admit_share(&server->admit, gw_fleet_count(server->fleet) > 1);
}

/* ---- wishes ---- */

static void stop_accepting(struct gw_loop *loop)
{
    if (!loop->accepting) return;
    loop->accepting = false;
    http_server_stop_accepting(loop->public);
    for (struct gw_req *q = loop->reqs; q; q = q->next) /* nobody waits for the rest of a body */
        if (q->route &&
            ((q->stage == GW_READING && !q->route->answer) || q->route->props & GW_R_ENDLESS))
            gw_relay_cut(q, GW_E_DRAINING, "The server is shutting down.");
    (void)atomic_fetch_add(&loop->server->n_closed, 1);
}

static void cut_all(struct gw_loop *loop)
{
    for (struct gw_req *q = loop->reqs, *next; q; q = next) {
        next = q->next; /* closing is deferred by the server: the list stands */
        if (q->active || q->send.call)
            gw_relay_cut(q, GW_E_DRAINING, "The server is shutting down.");
    }
}

static void on_told(void *arg)
{
    struct gw_loop *loop = arg;
    unsigned what = atomic_exchange(&loop->told, 0);
    if (what & GW_TELL_CLOSE) stop_accepting(loop);
    if (what & GW_TELL_CUT) cut_all(loop);
    if (what & GW_TELL_FLEET) gw_relay_call_parked(loop);
    if (what & GW_TELL_TURN) gw_relay_take_turns(loop);
}

void gw_loops_tell(struct gw_server *server, unsigned what)
{
    for (unsigned i = 0; i < server->n_loops; i++)
        gw_loop_tell(&server->loops[i], what);
}

static void wake_for_turn(void *ctx, unsigned loop)
{
    struct gw_server *server = ctx;
    gw_loop_tell(&server->loops[loop], GW_TELL_TURN);
}

bool gw_loops_idle(struct gw_server *server)
{
    /* In this order: a loop that has stopped accepting gets no new request. */
    return atomic_load(&server->n_closed) == server->n_loops && atomic_load(&server->n_reqs) == 0;
}

/* ---- timers ---- */

static void on_tick(void *arg)
{
    struct gw_loop *loop = arg;
    uint64_t now = clock_ns();
    http_timer_set(&loop->tick, TICK_MS);
    for (struct gw_req *q = loop->reqs, *next; q; q = next) {
        next = q->next;
        gw_answer_keepalive(q, now);
    }
    if (loop->index == 0)
        gw_admit_again(&loop->server->admit); /* a worker's backlog shrinks unasked */
    if (loop->parked) gw_relay_call_parked(loop);
    on_told(loop);
}

/* ---- life ---- */

int gw_loops_create(struct gw_server *server, unsigned n)
{
    const struct gw_config *c = server->settings->config;
    (void)pthread_mutex_init(&server->lock, NULL);
    (void)pthread_mutex_init(&server->shed.lock, NULL);
    gw_admit_init(&server->admit, admit_max(c), c->queue_limit, wake_for_turn, gw_admission_room,
                  server);
    server->on_told = on_told;
    server->loops = mem_zalloc(n * sizeof *server->loops);
    if (!server->loops) return -ENOMEM;
    while (server->n_loops < n) {
        struct gw_loop *loop = &server->loops[server->n_loops];
        loop->server = server;
        loop->stock = (struct mem_stock){sizeof(struct gw_req), STOCK_MAX};
        loop->index = server->n_loops++;
        loop->accepting = true;
        int r = http_loop_create(&loop->http_loop);
        if (r < 0) return r;
        http_timer_init(&loop->queue_timer, loop->http_loop, gw_relay_arm_queue, loop);
        http_timer_init(&loop->tick, loop->http_loop, on_tick, loop);
        http_timer_set(&loop->tick, TICK_MS);
    }
    return 0;
}

void gw_loop_close(struct gw_loop *loop)
{
    http_server_destroy(loop->public);
    http_server_destroy(loop->admin);
    loop->public = loop->admin = NULL;
    ASSERT(!loop->reqs);
    if (loop->server->fleet) gw_fleet_leave(loop->server->fleet, loop->index);
}

static void *loop_main(void *arg)
{
    struct gw_loop *loop = arg;
    (void)http_loop_run(loop->http_loop);
    gw_loop_close(loop);
    return NULL;
}

int gw_loops_start(struct gw_server *server)
{
    /* Signals belong to the control loop's thread. */
    sigset_t all, old;
    int e = 0;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    for (unsigned i = 1; i < server->n_loops && e == 0; i++) {
        e = pthread_create(&server->loops[i].thread, NULL, loop_main, &server->loops[i]);
        server->loops[i].has_thread = e == 0;
    }
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    return -e;
}

void gw_loops_stop(struct gw_server *server)
{
    for (unsigned i = 1; i < server->n_loops; i++)
        if (server->loops[i].has_thread) http_loop_stop(server->loops[i].http_loop);
    for (unsigned i = 1; i < server->n_loops; i++) {
        if (server->loops[i].has_thread)
            (void)pthread_join(server->loops[i].thread, NULL);
        else
            gw_loop_close(&server->loops[i]);
    }
}

void gw_loops_destroy(struct gw_server *server)
{
    for (unsigned i = 0; i < server->n_loops; i++) {
        struct gw_loop *loop = &server->loops[i];
        gw_read_free_jobs(loop);
        http_timer_fini(&loop->queue_timer);
        http_timer_fini(&loop->tick);
        http_loop_destroy(loop->http_loop);
        mem_stock_fini(&loop->stock);
        buf_fini(&loop->path);
        buf_fini(&loop->headers);
    }
    mem_free(server->loops);
    server->loops = NULL;
    server->n_loops = 0;
    gw_admit_fini(&server->admit);
    (void)pthread_mutex_destroy(&server->shed.lock);
    http_bounds_destroy(server->bounds);
    gw_settings_unref(server->settings);
    gw_settings_unref(server->first);
    (void)pthread_mutex_destroy(&server->lock);
}

/* ---- calls from loop to loop ---- */

static void call_go(void *arg);

static void call_home(void *arg)
{
    struct gw_loop_call *e = arg;
    if (e->q) {
        e->q->asking.loop_call = NULL;
        e->done(e->q, e);
    }
    buf_fini(&e->out);
    mem_free(e);
}

static void call_next(struct gw_loop_call *e)
{
    int r = e->at < e->end ? http_loop_post(e->home->server->loops[e->at].http_loop, call_go, e)
                           : -ENOENT;
    if (r == -EAGAIN) e->result = r;
    /* A full ring at home as well: the client gets no answer, but nobody waits for another. */
    if (r < 0) (void)http_loop_post(e->home->http_loop, call_home, e);
}

static void call_go(void *arg)
{
    struct gw_loop_call *e = arg;
    struct gw_loop *loop = &e->home->server->loops[e->at++];
    e->visit(loop, e);
    call_next(e);
}

void gw_loop_call_start(struct gw_req *q, unsigned n_loops,
                        void (*visit)(struct gw_loop *loop, struct gw_loop_call *e),
                        void (*done)(struct gw_req *q, struct gw_loop_call *e))
{
    struct gw_loop_call *e = mem_zalloc(sizeof *e);
    if (!e) {
        gw_answer_no_memory(q);
        return;
    }
    *e = (struct gw_loop_call){
        .q = q, .home = q->loop, .end = n_loops, .visit = visit, .done = done};
    q->asking.loop_call = e;
    call_next(e);
}
