/* The lanes and what joins them: settings by counted reference, one word of wishes per lane, and
 * errands from lane to lane.
 *
 * Other threads never touch a lane's requests. They set bits in its `told` and post one call; the
 * lane then looks for itself. A post that finds the ring full is no loss: the lane's tick, twice a
 * second, looks at the bits as well. */
#include "gateway/gate.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/mem.h"
#include "gateway/process/config.h"

#include <errno.h>
#include <signal.h>

enum {
    WORKERS_INFLIGHT = 64, /* chosen: a few times what a worker decodes together */
    TICK_MS = 500,
    STOCK_MAX = 64, /* chosen: requests that come and go in one turn of the loop */
};

/* ---- settings ---- */

struct gw_settings *gw_settings_new(struct gw_config *c, struct gw_keys *k, struct gw_keys *admin)
{
    struct gw_settings *s = mem_zalloc(sizeof *s);
    if (!s) {
        gw_config_free(c);
        gw_keys_unref(k);
        gw_keys_unref(admin);
        return NULL;
    }
    s->n_refs = 1;
    s->config = c;
    s->keys = k;
    s->admin_keys = admin;
    return s;
}

struct gw_settings *gw_settings_ref(struct gw_settings *s)
{
    (void)atomic_fetch_add(&s->n_refs, 1);
    return s;
}

void gw_settings_unref(struct gw_settings *s)
{
    if (!s || atomic_fetch_sub(&s->n_refs, 1) > 1) return;
    gw_config_free(s->config);
    gw_keys_unref(s->keys);
    gw_keys_unref(s->admin_keys);
    mem_free(s);
}

struct gw_settings *gw_house_settings(struct gw_house *h)
{
    (void)pthread_mutex_lock(&h->lock);
    struct gw_settings *s = gw_settings_ref(h->settings);
    (void)pthread_mutex_unlock(&h->lock);
    return s;
}

/* Of requests that take a turn: all, when the operator says how many, else the workers'. */
static unsigned admit_max(const struct gw_config *c)
{
    return c->max_inflight ? c->max_inflight : WORKERS_INFLIGHT;
}

void gw_house_apply(struct gw_house *h, struct gw_settings *s)
{
    const struct gw_config *c = s->config;
    (void)pthread_mutex_lock(&h->lock);
    struct gw_settings *old = h->settings;
    h->settings = s;
    (void)pthread_mutex_unlock(&h->lock);
    gw_settings_unref(old);
    gw_admit_set(&h->admit, admit_max(c), c->queue_limit);
    gw_admit_share(&h->admit, gw_fleet_count(h->fleet) > 1);
}

/* ---- wishes ---- */

static void stop_accepting(struct gw_gate *g)
{
    if (!g->accepting) return;
    g->accepting = false;
    http_server_stop_accepting(g->server);
    for (struct gw_req *q = g->reqs; q; q = q->next) /* nobody waits for the rest of a body */
        if (q->stage == GW_READING && q->route && !q->route->answer)
            gw_relay_cut(q, GW_E_DRAINING, "The server is shutting down.");
    (void)atomic_fetch_add(&g->house->n_closed, 1);
}

static void cut_all(struct gw_gate *g)
{
    for (struct gw_req *q = g->reqs, *next; q; q = next) {
        next = q->next; /* closing is deferred by the server: the list stands */
        if (q->active || q->send.call)
            gw_relay_cut(q, GW_E_DRAINING, "The server is shutting down.");
    }
}

static void on_told(void *arg)
{
    struct gw_gate *g = arg;
    unsigned what = atomic_exchange(&g->told, 0);
    if (what & GW_TELL_CLOSE) stop_accepting(g);
    if (what & GW_TELL_CUT) cut_all(g);
    if (what & GW_TELL_FLEET) gw_relay_call_parked(g);
    if (what & GW_TELL_TURN) gw_relay_take_turns(g);
}

void gw_lane_tell(struct gw_gate *g, unsigned what)
{
    if (atomic_fetch_or(&g->told, what) == 0) (void)http_loop_post(g->loop, on_told, g);
}

void gw_lanes_tell(struct gw_house *h, unsigned what)
{
    for (unsigned i = 0; i < h->n_lanes; i++)
        gw_lane_tell(&h->lane[i], what);
}

static void wake_for_turn(void *ctx, unsigned lane)
{
    struct gw_house *h = ctx;
    gw_lane_tell(&h->lane[lane], GW_TELL_TURN);
}

bool gw_lanes_idle(struct gw_house *h)
{
    /* In this order: a lane that has stopped accepting gets no new request. */
    return atomic_load(&h->n_closed) == h->n_lanes && atomic_load(&h->n_reqs) == 0;
}

/* ---- timers ---- */

static void on_queue_timer(void *arg)
{
    gw_relay_arm_queue(arg);
}

static void on_tick(void *arg)
{
    struct gw_gate *g = arg;
    uint64_t now = clock_ns();
    http_timer_set(g->tick, TICK_MS);
    for (struct gw_req *q = g->reqs, *next; q; q = next) {
        next = q->next;
        gw_answer_keepalive(q, now);
    }
    if (g->index == 0) gw_admit_again(&g->house->admit); /* a worker's backlog shrinks unasked */
    if (g->parked) gw_relay_call_parked(g);
    on_told(g);
}

/* ---- life ---- */

int gw_lanes_create(struct gw_house *h, unsigned n)
{
    const struct gw_config *c = h->settings->config;
    (void)pthread_mutex_init(&h->lock, NULL);
    (void)pthread_mutex_init(&h->shed.lock, NULL);
    gw_admit_init(&h->admit, admit_max(c), c->queue_limit, wake_for_turn, gw_shed_room, h);
    h->lane = mem_zalloc(n * sizeof *h->lane);
    if (!h->lane) return -ENOMEM;
    for (h->n_lanes = 0; h->n_lanes < n; h->n_lanes++) {
        struct gw_gate *g = &h->lane[h->n_lanes];
        g->house = h;
        g->stock = (struct mem_stock){sizeof(struct gw_req), STOCK_MAX};
        g->index = h->n_lanes;
        g->accepting = true;
        int r = http_loop_create(&g->loop);
        if (r == 0) r = http_timer_create(g->loop, on_queue_timer, g, &g->queue_timer);
        if (r == 0) r = http_timer_create(g->loop, on_tick, g, &g->tick);
        if (r < 0) {
            if (g->queue_timer) http_timer_destroy(g->queue_timer);
            http_loop_destroy(g->loop);
            return r;
        }
        http_timer_set(g->tick, TICK_MS);
    }
    return 0;
}

void gw_lane_close(struct gw_gate *g)
{
    http_server_destroy(g->server);
    http_server_destroy(g->admin);
    g->server = g->admin = NULL;
    ASSERT(!g->reqs);
    if (g->house->fleet) gw_fleet_leave(g->house->fleet, g->index);
}

static void *lane_main(void *arg)
{
    struct gw_gate *g = arg;
    (void)http_loop_run(g->loop);
    gw_lane_close(g);
    return NULL;
}

int gw_lanes_start(struct gw_house *h)
{
    /* Signals belong to the control loop's thread. */
    sigset_t all, old;
    int e = 0;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    for (unsigned i = 1; i < h->n_lanes && e == 0; i++) {
        e = pthread_create(&h->lane[i].thread, NULL, lane_main, &h->lane[i]);
        h->lane[i].has_thread = e == 0;
    }
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    return -e;
}

void gw_lanes_stop(struct gw_house *h)
{
    for (unsigned i = 1; i < h->n_lanes; i++)
        if (h->lane[i].has_thread) http_loop_stop(h->lane[i].loop);
    for (unsigned i = 1; i < h->n_lanes; i++) {
        if (h->lane[i].has_thread)
            (void)pthread_join(h->lane[i].thread, NULL);
        else
            gw_lane_close(&h->lane[i]);
    }
}

void gw_lanes_destroy(struct gw_house *h)
{
    for (unsigned i = 0; i < h->n_lanes; i++) {
        struct gw_gate *g = &h->lane[i];
        gw_relay_free_jobs(g);
        http_timer_destroy(g->queue_timer);
        http_timer_destroy(g->tick);
        http_loop_destroy(g->loop);
        mem_stock_fini(&g->stock);
        buf_fini(&g->path);
        buf_fini(&g->headers);
    }
    mem_free(h->lane);
    h->lane = NULL;
    h->n_lanes = 0;
    gw_admit_fini(&h->admit);
    (void)pthread_mutex_destroy(&h->shed.lock);
    http_bounds_destroy(h->bounds);
    gw_settings_unref(h->settings);
    gw_settings_unref(h->first);
    (void)pthread_mutex_destroy(&h->lock);
}

/* ---- errands ---- */

static void errand_go(void *arg);

static void errand_home(void *arg)
{
    struct gw_errand *e = arg;
    if (e->q) {
        e->q->errand = NULL;
        e->done(e->q, e);
    }
    buf_fini(&e->out);
    mem_free(e);
}

static void errand_next(struct gw_errand *e)
{
    int r =
        e->at < e->end ? http_loop_post(e->home->house->lane[e->at].loop, errand_go, e) : -ENOENT;
    if (r == -EAGAIN) e->result = r;
    /* A full ring at home as well: the client gets no answer, but nobody waits for another. */
    if (r < 0) (void)http_loop_post(e->home->loop, errand_home, e);
}

static void errand_go(void *arg)
{
    struct gw_errand *e = arg;
    struct gw_gate *g = &e->home->house->lane[e->at++];
    e->visit(g, e);
    errand_next(e);
}

int gw_errand_start(struct gw_req *q, unsigned n_lanes,
                    void (*visit)(struct gw_gate *g, struct gw_errand *e),
                    void (*done)(struct gw_req *q, struct gw_errand *e))
{
    struct gw_errand *e = mem_zalloc(sizeof *e);
    if (!e) return -ENOMEM;
    *e = (struct gw_errand){.q = q, .home = q->gate, .end = n_lanes, .visit = visit, .done = done};
    q->errand = e;
    errand_next(e);
    return 0;
}
