#include "gateway/process/watch.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/net/sse.h"
#include "gateway/fleet/fleet.h"
#include "gateway/fleet/view.h"
#include "gateway/front/reply.h"
#include "gateway/process/gather.h"
#include "gateway/process/recent.h"
#include "gateway/request/request.h"

#include <string.h>

enum {
    EVERY_MS = 1000,
    REQUESTS_MAX = 200,       /* chosen: of one event; the list has room for no more */
    BACKLOG_BYTES = 256 << 10 /* chosen: who takes no more than this misses an event */
};

struct gw_watch {
    struct gw_req *q;
    struct http_timer timer;
    uint64_t seen; /* number of the last request that it was told of */
};

void gw_watch_close(struct gw_req *q)
{
    struct gw_watch *w = q->asking.watch;
    if (!w) return;
    q->asking.watch = NULL;
    http_timer_fini(&w->timer);
    (void)atomic_fetch_sub(&q->loop->server->n_watchers, 1);
    mem_free(w);
}

static void ask_again(void *arg)
{
    struct gw_watch *w = arg;
    struct gw_req *q = w->q;
    if (q->loop->accepting) {
        gw_gather(q);
    } else { /* a stream without an end would hold the process open */
        q->stage = GW_ANSWERED;
        (void)http_reply_end(q->http);
    }
}

/* False: there are too many, or there is no memory, and the answer says so. */
static bool begin(struct gw_req *q)
{
    struct gw_server *server = q->loop->server;
    struct buf headers = BUF_INIT;
    if (atomic_fetch_add(&server->n_watchers, 1) >= GW_WATCHERS) {
        (void)atomic_fetch_sub(&server->n_watchers, 1);
        gw_answer_error(q, GW_E_CONNECTIONS, NULL, "%d watch already, as many as may.",
                        GW_WATCHERS);
        return false;
    }
    struct gw_watch *w = mem_zalloc(sizeof *w);
    if (!w || gw_answer_headers(q, &headers) < 0 || !buf_cstr(&headers)) {
        (void)atomic_fetch_sub(&server->n_watchers, 1);
        mem_free(w);
        buf_fini(&headers);
        gw_answer_no_memory(q);
        return false;
    }
    w->q = q;
    http_timer_init(&w->timer, q->loop->http_loop, ask_again, w);
    q->asking.watch = w;
    q->ans.begun = true;
    q->status = 200;
    (void)http_sse_start(q->http, headers.data);
    buf_fini(&headers);
    return true;
}

static void put_gateway(struct gw_server *server, const struct gw_loop *loop, struct buf *b)
{
    struct gw_admit_view a = gw_admit_view(&server->admit);
    (void)buf_addf(b,
                   "{\"t\":%.3f,\"gateway\":{\"uptime_s\":%.0f,\"draining\":%s,\"in_flight\":%u,"
                   "\"in_flight_max\":%u,\"waiting\":%u,\"waiting_max\":%u,\"loop_lag_ms\":%.3f}",
                   clock_wall_s(), clock_ms_since(server->start_ns) / 1e3,
                   server->draining ? "true" : "false", a.n_running, a.running_max, a.n_waiting,
                   a.waiting_max, http_loop_lag_ms(loop->http_loop));
}

/* A page is passed on as it is, so it must not end the event that it stands in. */
static void put_worker(struct gw_server *server, const struct gw_page *page, struct buf *b)
{
    struct gw_target_view t;
    const struct buf *now = &page->body;
    (void)gw_fleet_view(server->fleet, page->index, &t);
    (void)buf_addf(b, "{\"index\":%u,\"state\":\"%s\",\"address\":", page->index,
                   gw_target_state_name(t.state));
    (void)buf_add_json_str(b, t.address, strlen(t.address));
    (void)buf_adds(b, ",\"now\":");
    if (page->status == 200 && now->len > 0 && !memchr(now->data, '\n', now->len))
        (void)buf_add_buf(b, now);
    else
        (void)buf_adds(b, "null");
    (void)buf_addc(b, '}');
}

static void put_event(struct gw_watch *w, const struct gw_page *pages, size_t n, struct buf *b)
{
    struct gw_server *server = w->q->loop->server;
    (void)buf_adds(b, "data: ");
    put_gateway(server, w->q->loop, b);
    (void)buf_adds(b, ",\"requests\":[");
    w->seen = gw_recent_list(gw_stats_recent(server->stats), w->seen, REQUESTS_MAX, b);
    (void)buf_adds(b, "],\"workers\":[");
    for (size_t i = 0; i < n; i++) {
        if (i > 0) (void)buf_addc(b, ',');
        put_worker(server, &pages[i], b);
    }
    (void)buf_adds(b, "]}\n\n");
}

void gw_watch_gathered(struct gw_req *q, const struct gw_page *pages, size_t n)
{
    struct buf b = BUF_INIT;
    if (strcmp(q->http->msg.method, "HEAD") ==
        0) { /* which would wait for nothing, and never end */
        gw_answer_text(q, 200, "text/event-stream; charset=utf-8", &b);
        return;
    }
    if (!q->asking.watch && !begin(q)) return;
    struct gw_watch *w = q->asking.watch;
    if (http_reply_pending(q->http) < BACKLOG_BYTES) {
        put_event(w, pages, n, &b);
        if (buf_status(&b) == 0) (void)http_reply_write(q->http, b.data, b.len);
    }
    buf_fini(&b);
    http_timer_set(&w->timer, EVERY_MS);
}
