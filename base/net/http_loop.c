#include "base/net/http_server_int.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/metric.h"

#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum {
    RING_CELLS = 8192,    /* chosen: 256 requests with 32 tokens in flight each */
    POSTS_PER_WAKE = 256, /* chosen: bounded work per wake-up */
    LAG_PERIOD_MS = 100,  /* chosen: ten probes a second cost nothing */
};

static const double lag_bounds[] = {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2};
static struct metric lag_metric = {.name = "kvblend_loop_lag_seconds",
                                   .help = "Delay of the event loop's timers.",
                                   .type = METRIC_HISTOGRAM,
                                   .bounds = lag_bounds,
                                   .n_bounds = sizeof lag_bounds / sizeof lag_bounds[0]};

/* ---- timers ---- */

static void arm(struct http_timer *t, uint64_t delay_ms)
{
    struct timeval tv = {.tv_sec = (time_t)(delay_ms / 1000),
                         .tv_usec = (suseconds_t)(delay_ms % 1000) * 1000};
    t->armed_ns = t->due_ns;
    (void)event_add(&t->ev, &tv);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    struct http_timer *t = arg;
    struct http_loop *l = t->loop; /* t may be gone afterwards */
    uint64_t now = clock_coarse_ns();
    bool moved_on = t->due_ns > t->armed_ns && t->due_ns > now;
    t->armed_ns = 0;
    if (t->due_ns == 0) return;
    if (moved_on) {
        arm(t, (t->due_ns - now + 999999) / 1000000);
        return;
    }
    t->due_ns = 0;
    http_handler_begin(l);
    t->fn(t->arg);
    http_handler_end(l);
}

void http_timer_init(struct http_timer *t, struct http_loop *l, void (*fn)(void *arg), void *arg)
{
    t->loop = l;
    t->fn = fn;
    t->arg = arg;
    event_assign(&t->ev, l->base, -1, 0, on_timer, t);
}

void http_timer_set(struct http_timer *t, uint64_t delay_ms)
{
    t->due_ns = clock_coarse_ns() + delay_ms * 1000000ull;
    if (t->armed_ns == 0 || t->armed_ns > t->due_ns) arm(t, delay_ms);
}

void http_timer_clear(struct http_timer *t)
{
    t->due_ns = 0;
}

void http_timer_fini(struct http_timer *t)
{
    if (t->armed_ns) (void)event_del(&t->ev);
    t->due_ns = t->armed_ns = 0;
}

/* ---- the loop ---- */

const char *http_loop_status_line(struct http_loop *l, int status, size_t *ret_len)
{
    uint64_t now_ns = clock_coarse_ns();
    if (now_ns >= l->line_until_ns || status != l->line_status) {
        double wall = clock_wall_s();
        time_t now = (time_t)wall;
        struct tm tm;
        int n = snprintf(l->line, sizeof l->line, "HTTP/1.1 %d %s\r\nDate: ", status,
                         http_status_text(status));
        gmtime_r(&now, &tm);
        l->line_len = (size_t)n + strftime(l->line + n, sizeof l->line - (size_t)n,
                                           "%a, %d %b %Y %H:%M:%S GMT\r\n", &tm);
        l->line_until_ns = now_ns + (uint64_t)(((double)(now + 1) - wall) * 1e9);
        l->line_status = status;
    }
    *ret_len = l->line_len;
    return l->line;
}

static void wake(struct http_loop *l)
{
    if (atomic_exchange(&l->woken, true)) return;
    uint64_t one = 1;
    ssize_t n = write(l->wake_fd, &one, sizeof one);
    (void)n; /* the counter cannot overflow: it is written once per wake-up */
}

static void on_wake(evutil_socket_t fd, short what, void *arg)
{
    struct http_loop *l = arg;
    uint64_t count;
    ssize_t n = read(l->wake_fd, &count, sizeof count);
    (void)n;
    /* Cleared before the ring is read: a message pushed from here on wakes us again. */
    (void)atomic_exchange(&l->woken, false); /* an exchange: it must see what was pushed before */
    if (atomic_load(&l->stop)) {
        (void)event_base_loopbreak(l->base);
        return;
    }
    void (*fn)(void *);
    void *fn_arg;
    for (int i = 0; i < POSTS_PER_WAKE; i++) {
        if (!ring_pop(&l->ring, &fn, &fn_arg)) return;
        http_handler_begin(l);
        fn(fn_arg);
        http_handler_end(l);
    }
    wake(l);
}

void http_handler_begin(struct http_loop *l)
{
    l->in_handler = true;
}

/* Each at most once: a call that defers itself again leaves the loop a turn. */
void http_handler_end(struct http_loop *l)
{
    for (size_t n = l->n_defers; n > 0 && l->n_defers > 0; n--) {
        struct http_defer *d = HTTP_LINK_OWNER(l->defers.next, struct http_defer, among);
        http_defer_cancel(l, d);
        d->fn(d->arg);
    }
    l->in_handler = false;
    if (l->n_defers > 0) event_active(&l->ev_defer, EV_TIMEOUT, 0);
}

static void on_defer(evutil_socket_t fd, short what, void *arg)
{
    struct http_loop *l = arg;
    http_handler_begin(l);
    http_handler_end(l);
}

void http_defer(struct http_loop *l, struct http_defer *d)
{
    if (d->queued) return;
    d->queued = true;
    http_link_add(&l->defers, &d->among);
    if (l->n_defers++ == 0 && !l->in_handler) event_active(&l->ev_defer, EV_TIMEOUT, 0);
}

void http_defer_cancel(struct http_loop *l, struct http_defer *d)
{
    if (!d->queued) return;
    d->queued = false;
    http_link_remove(&d->among);
    l->n_defers--;
}

static void on_lag(void *arg)
{
    struct http_loop *l = arg;
    uint64_t now = clock_ns();
    l->lag_ms = now > l->lag_due_ns ? (double)(now - l->lag_due_ns) / 1e6 : 0;
    metric_observe(&lag_metric, l->lag_ms / 1e3);
    l->lag_due_ns = now + LAG_PERIOD_MS * 1000000ull;
    http_timer_set(&l->lag, LAG_PERIOD_MS);
}

/* libevent's cached time would make a timer that is set after a long callback fire early. */
static struct event_base *new_base(void)
{
    struct event_config *cfg = event_config_new();
    if (!cfg) return NULL;
    struct event_base *base = NULL;
    if (event_config_set_flag(cfg, EVENT_BASE_FLAG_NO_CACHE_TIME) == 0 &&
        event_config_set_flag(cfg, EVENT_BASE_FLAG_NOLOCK) == 0)
        base = event_base_new_with_config(cfg);
    event_config_free(cfg);
    return base;
}

int http_loop_create(struct http_loop **ret)
{
    struct http_loop *l = mem_aligned(64, sizeof *l);
    if (!l) return -ENOMEM;
    memset(l, 0, sizeof *l);
    http_link_init(&l->defers);
    l->reqs = (struct mem_stock){sizeof(struct http_req), HTTP_STOCK_MAX};
    l->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int r = l->wake_fd < 0 ? -errno : ring_init(&l->ring, RING_CELLS);
    l->scratch = mem_alloc(HTTP_SCRATCH_BYTES);
    l->base = new_base();
    if (r == 0 && (!l->scratch || !l->base)) r = -ENOMEM;
    if (r < 0) {
        http_loop_destroy(l);
        return r;
    }
    event_assign(&l->ev_wake, l->base, l->wake_fd, EV_READ | EV_PERSIST, on_wake, l);
    event_assign(&l->ev_defer, l->base, -1, 0, on_defer, l);
    http_timer_init(&l->lag, l, on_lag, l);
    if (event_add(&l->ev_wake, NULL) < 0) {
        http_loop_destroy(l);
        return -ENOMEM;
    }
    metric_register(&lag_metric);
    *ret = l;
    return 0;
}

void http_loop_destroy(struct http_loop *l)
{
    if (!l) return;
    if (l->base) event_base_free(l->base); /* with the loop's own events */
    if (l->wake_fd >= 0) (void)close(l->wake_fd);
    ring_fini(&l->ring);
    mem_free(l->scratch);
    mem_free(l->tls_scratch);
    buf_fini(&l->tls_out);
    buf_fini(&l->head);
    mem_stock_fini(&l->reqs);
    mem_free(l);
}

struct event_base *http_loop_base(struct http_loop *l)
{
    return l->base;
}

int http_loop_run(struct http_loop *l)
{
    l->lag_due_ns = clock_ns() + LAG_PERIOD_MS * 1000000ull;
    http_timer_set(&l->lag, LAG_PERIOD_MS);
    int r = 0;
    while (r >= 0 && !atomic_load(&l->stop))
        r = event_base_loop(l->base, EVLOOP_NO_EXIT_ON_EMPTY);
    atomic_store(&l->stop, false); /* the loop may run again */
    http_timer_fini(&l->lag);
    return r < 0 ? -EIO : 0;
}

void http_loop_stop(struct http_loop *l)
{
    atomic_store(&l->stop, true);
    wake(l);
}

int http_loop_post(struct http_loop *l, void (*fn)(void *arg), void *arg)
{
    int r = ring_push(&l->ring, fn, arg);
    if (r == 0) wake(l);
    return r;
}

double http_loop_lag_ms(const struct http_loop *l)
{
    return l->lag_ms;
}
