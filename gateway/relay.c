/* One request's way to a worker and back.
 *
 * The body goes out and the answer comes back byte for byte. An event stream is passed on event by
 * event: bytes after the last complete event are held back, so that a worker's death can always be
 * told in a well-formed error frame; they come in one piece as a rule, so nothing waits. An answer
 * that is no stream is collected first, so that a death in its middle becomes a clean 502. */
#include "gateway/gate.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "gateway/config.h"
#include "gateway/fleet.h"
#include "gateway/pool.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

enum {
    ANSWER_BYTES_MAX = 64 << 20, /* collected answers */
    EVENT_BYTES_MAX = 4 << 20,   /* one event of a stream */
    USAGE_BYTES_MAX = 1 << 20,   /* chosen: longer ones would hold up the loop for a millisecond */
};

const char *gw_stage_name(enum gw_stage s)
{
    static const char *const names[] = {"scanning", "queued",   "waiting",
                                        "calling",  "relaying", "answered"};
    return names[s];
}

static void dispatch(struct gw_req *q);

/* ---- to the worker ---- */

static bool is_one_of(const char *name, const char *const *list)
{
    for (; *list; list++)
        if (strcasecmp(name, *list) == 0) return true;
    return false;
}

/* Hop-by-hop, ours to set, or nothing the worker may know. */
static bool request_header_dropped(const char *name)
{
    static const char *const drop[] = {"connection",
                                       "keep-alive",
                                       "te",
                                       "trailer",
                                       "transfer-encoding",
                                       "upgrade",
                                       "host",
                                       "content-length",
                                       "expect",
                                       "authorization",
                                       "x-api-key",
                                       "cookie",
                                       "accept-encoding",
                                       "x-request-id",
                                       "traceparent",
                                       NULL};
    return is_one_of(name, drop) || strncasecmp(name, "proxy-", 6) == 0;
}

static bool response_header_dropped(const char *name)
{
    static const char *const drop[] = {
        "connection", "keep-alive",     "te",           "trailer", "transfer-encoding", "upgrade",
        "date",       "content-length", "content-type", "server",  "x-request-id",      NULL};
    return is_one_of(name, drop) || strncasecmp(name, "proxy-", 6) == 0;
}

/* Is `name` listed in the Connection header? Such headers belong to this hop alone. */
static bool named_by_connection(const struct http_head *h, const char *name)
{
    const char *p = http_header_find(h, "connection");
    size_t len = strlen(name);
    while (p && *p) {
        p += strspn(p, ", \t");
        size_t n = strcspn(p, ", \t");
        if (n == len && strncasecmp(p, name, n) == 0) return true;
        p += n;
    }
    return false;
}

/* A key's namespace is not the client's to choose, and a state belongs to a valid trace only. */
static bool request_header_ours(const struct gw_req *q, const char *name)
{
    if (q->key && q->key->name_space && strcasecmp(name, "x-kvblend-namespace") == 0) return true;
    return !q->trace.trace[0] && strcasecmp(name, "tracestate") == 0;
}

static int call_headers(const struct gw_req *q, struct buf *out)
{
    const struct http_head *h = http_req_head(q->http);
    int r = buf_addf(out, "x-request-id: %s\r\n", q->id);
    if (r == 0) r = gw_trace_header(&q->trace, out);
    if (r == 0 && q->key && q->key->name_space)
        r = buf_addf(out, "X-KVBlend-Namespace: %s\r\n", q->key->name_space);
    for (size_t i = 0; r == 0 && i < h->n_headers; i++) {
        const struct http_header *x = &h->headers[i];
        if (request_header_dropped(x->name) || named_by_connection(h, x->name)) continue;
        if (request_header_ours(q, x->name)) continue;
        r = buf_addf(out, "%s: %s\r\n", x->name, x->value);
    }
    if (r == 0 && q->scan.segments.len > 0)
        r = buf_addf(out, "X-KVBlend-Segments: %.*s\r\n", (int)q->scan.segments.len,
                     q->scan.segments.data);
    return r;
}

/* ---- from the worker ---- */

static int answer_headers(const struct gw_req *q, struct buf *out)
{
    int r = gw_answer_headers(q, out);
    if (r == 0)
        r = buf_addf(out, "x-kvblend-overhead-us: %llu\r\n",
                     (unsigned long long)(q->overhead_ns / 1000));
    return r < 0 ? r : buf_add(out, q->up_headers.data, q->up_headers.len);
}

static void call_dropped(struct gw_req *q)
{
    if (!q->target) return;
    ASSERT(q->target->n_inflight > 0);
    q->target->n_inflight--;
}

/* What the gateway says itself must not come twice. */
static bool response_header_ours(const struct gw_req *q, const char *name)
{
    if (q->limit.shown && strncasecmp(name, "x-ratelimit-", 12) == 0) return true;
    return q->gate->config->cors_origins.n > 0 && strncasecmp(name, "access-control-", 15) == 0;
}

static void on_head(void *ctx, int status, const struct http_head *h)
{
    struct gw_req *q = ctx;
    const char *type = http_header_find(h, "content-type");
    q->got_head = true;
    q->up_status = status;
    q->first_byte_ns = clock_ns();
    q->sse = type && strncasecmp(type, "text/event-stream", 17) == 0;
    mem_free(q->up_type);
    q->up_type = mem_strdup(type ? type : "application/octet-stream");
    buf_clear(&q->up_headers);
    for (size_t i = 0; i < h->n_headers; i++) {
        const struct http_header *x = &h->headers[i];
        if (response_header_dropped(x->name) || named_by_connection(h, x->name)) continue;
        if (response_header_ours(q, x->name)) continue;
        (void)buf_addf(&q->up_headers, "%s: %s\r\n", x->name, x->value);
    }
    if (!q->sse) return;
    struct buf headers = BUF_INIT;
    (void)answer_headers(q, &headers);
    q->stage = GW_RELAYING;
    q->status = status;
    (void)http_reply_start(q->http, status, q->up_type, buf_cstr(&headers));
    buf_fini(&headers);
}

/* Length of the complete events at the start of the bytes: up to the last blank line. */
static size_t complete_events(const char *p, size_t len)
{
    for (size_t i = len; i >= 2; i--) {
        if (p[i - 1] != '\n') continue;
        if (p[i - 2] == '\n') return i;
        if (i >= 4 && p[i - 2] == '\r' && p[i - 3] == '\n') return i;
    }
    return 0;
}

static void stream_bytes(struct gw_req *q, const char *data, size_t len)
{
    static const char done[] = "data: [DONE]\n\n";
    size_t n = sizeof done - 1;
    if (len == 0) return;
    if (len >= n && memcmp(data + len - n, done, n) == 0) q->saw_done = true;
    if (q->up_status == 200) gw_usage_events(&q->usage, data, len);
    gw_stats_relayed(len);
    if (http_reply_write(q->http, data, len) == 1 && q->call) http_call_pause(q->call, true);
}

static void on_body(void *ctx, const char *data, size_t len)
{
    struct gw_req *q = ctx;
    if (q->sse && q->body.len == 0) { /* the usual case: whole events, nothing copied */
        size_t n = complete_events(data, len);
        stream_bytes(q, data, n);
        data += n;
        len -= n;
    }
    size_t max = q->sse ? EVENT_BYTES_MAX : ANSWER_BYTES_MAX;
    if (len == 0) return;
    if (q->body.len + len > max || buf_add(&q->body, data, len) < 0) {
        gw_relay_cut(q, GW_E_UPSTREAM, "The worker's answer is too large.");
        return;
    }
    if (!q->sse) return;
    size_t n = complete_events(q->body.data, q->body.len);
    stream_bytes(q, q->body.data, n);
    buf_consume(&q->body, n);
}

static void answer_collected(struct gw_req *q)
{
    struct buf headers = BUF_INIT;
    (void)answer_headers(q, &headers);
    q->stage = GW_ANSWERED;
    q->status = q->up_status;
    if (q->status == 429) q->end = GW_END_SHED;
    if (q->status == 200 && q->body.len <= USAGE_BYTES_MAX)
        gw_usage_answer(&q->usage, q->body.data ? q->body.data : "", q->body.len);
    gw_stats_relayed(q->body.len);
    (void)http_reply(q->http, q->up_status, q->up_type, buf_cstr(&headers), q->body.data,
                     q->body.len);
    buf_fini(&headers);
}

/* The connection broke before the answer began. */
static void lost_early(struct gw_req *q, int status)
{
    struct gw_gate *g = q->gate;
    bool safe = status != -ETIMEDOUT && status != -EBADMSG;
    log_event(LOG_WARN, "relay.lost", "request=%s worker=%d error=%s retries=%u", q->id,
              q->target ? (int)q->target->index : -1, err_name(status), q->n_retries);
    if (safe && q->target) gw_fleet_suspect(g->fleet, q->target);
    q->target = NULL;
    if (status == -ETIMEDOUT) {
        q->end = GW_END_TIMEOUT;
        gw_answer_error(q, GW_E_UPSTREAM_TIMEOUT, NULL, "The worker did not answer in time.");
        return;
    }
    if (!safe || q->n_retries > 0) {
        q->end = GW_END_UPSTREAM;
        gw_answer_error(q, GW_E_UPSTREAM, NULL, "The worker was lost before it answered.");
        return;
    }
    q->n_retries++;
    gw_stats_retry();
    dispatch(q);
}

static void on_end(void *ctx, int status)
{
    struct gw_req *q = ctx;
    q->call = NULL;
    call_dropped(q);
    if (status < 0 && !q->got_head) {
        lost_early(q, status);
        return;
    }
    if (status == 0 && !q->sse) {
        answer_collected(q);
        return;
    }
    if (status == 0 && (q->saw_done || q->up_status != 200)) {
        stream_bytes(q, q->body.data, q->body.len);
        q->stage = GW_ANSWERED;
        (void)http_reply_end(q->http);
        return;
    }
    if (status < 0 && status != -ETIMEDOUT) gw_fleet_suspect(q->gate->fleet, q->target);
    gw_relay_cut(q, status == -ETIMEDOUT ? GW_E_UPSTREAM_TIMEOUT : GW_E_UPSTREAM,
                 "The worker was lost while it answered.");
}

static const struct http_call_ops call_ops = {on_head, on_body, on_end};

/* ---- choosing a worker ---- */

static void on_wait_over(void *arg)
{
    struct gw_req *q = arg;
    ASSERT(q->stage == GW_WAITING);
    q->end = GW_END_UPSTREAM;
    gw_answer_error(q, GW_E_UPSTREAM, NULL, "The worker was lost and did not come back in time.");
}

static void wait_for_worker(struct gw_req *q)
{
    q->stage = GW_WAITING;
    if (!q->timer && http_timer_create(q->gate->loop, on_wait_over, q, &q->timer) < 0) {
        gw_answer_error(q, GW_E_INTERNAL, NULL, "Out of memory.");
        return;
    }
    http_timer_set(q->timer, q->gate->config->retry_wait_ms);
}

static void no_worker(struct gw_req *q)
{
    struct gw_fleet *f = q->gate->fleet;
    if (gw_fleet_unsure(f) || (q->n_retries > 0 && gw_fleet_hopeful(f))) {
        wait_for_worker(q);
    } else if (gw_fleet_hopeful(f)) {
        q->end = GW_END_SHED;
        gw_answer_error(q, GW_E_LOADING, NULL, "The model is being loaded. Please try again soon.");
    } else {
        q->end = GW_END_UPSTREAM;
        gw_answer_error(q, GW_E_UPSTREAM, NULL, "No worker can be reached.");
    }
}

static void dispatch(struct gw_req *q)
{
    struct gw_gate *g = q->gate;
    struct buf headers = BUF_INIT;
    size_t len;
    struct gw_target *t = gw_fleet_pick(g->fleet, q->scan.has_model ? q->scan.model : NULL);
    if (!t) {
        no_worker(q);
        return;
    }
    const char *body = http_req_body(q->http, &len);
    int r = call_headers(q, &headers);
    q->stage = GW_CALLING;
    q->target = t;
    q->got_head = false;
    buf_clear(&q->body);
    if (q->n_retries == 0) q->overhead_ns = clock_ns() - http_req_start_ns(q->http) - q->queue_ns;
    if (r == 0)
        r = http_call_start(t->client, http_req_method(q->http), q->target_path, buf_cstr(&headers),
                            body, len, &call_ops, q, &q->call);
    buf_fini(&headers);
    if (r < 0) {
        q->call = NULL;
        lost_early(q, r);
        return;
    }
    t->n_inflight++;
    q->limit.sent = true;
}

/* Waiting requests are found anew after each one, because handling one may end or start others. */
static struct gw_req *find_waiting(struct gw_gate *g, bool (*wanted)(struct gw_req *q))
{
    for (struct gw_req *q = g->reqs; q; q = q->next)
        if (q->stage == GW_WAITING && wanted(q)) return q;
    return NULL;
}

static bool can_go(struct gw_req *q)
{
    return gw_fleet_pick(q->gate->fleet, q->scan.has_model ? q->scan.model : NULL) != NULL;
}

static bool waits_in_vain(struct gw_req *q)
{
    const struct gw_fleet *f = q->gate->fleet;
    return !gw_fleet_unsure(f) && (q->n_retries == 0 || !gw_fleet_hopeful(f));
}

void gw_relay_on_ready(struct gw_gate *g)
{
    for (struct gw_req *q; (q = find_waiting(g, can_go));) {
        http_timer_clear(q->timer);
        dispatch(q);
    }
}

void gw_relay_on_lost(struct gw_gate *g)
{
    for (struct gw_req *q; (q = find_waiting(g, waits_in_vain));) {
        http_timer_clear(q->timer);
        no_worker(q);
    }
}

/* ---- taking turns ---- */

void gw_relay_arm_queue(struct gw_gate *g)
{
    uint64_t now = clock_ns(), next = gw_admit_expire(&g->admit, now);
    gw_stats_waiting(g->admit.n_waiting);
    if (next) http_timer_set(g->admit_timer, (next - now) / 1000000 + 1);
}

static void queue_left(struct gw_req *q)
{
    q->queue_ns = clock_ns() - q->queue_begin_ns;
    gw_stats_waiting(q->gate->admit.n_waiting);
}

void gw_relay_granted(struct gw_ticket *t)
{
    struct gw_req *q = t->user;
    queue_left(q);
    dispatch(q);
}

void gw_relay_expired(struct gw_ticket *t)
{
    struct gw_req *q = t->user;
    queue_left(q);
    q->end = GW_END_SHED;
    gw_answer_error(q, GW_E_OVERLOADED, NULL,
                    "The server is busy; the request waited too long for its turn.");
}

static void take_turn(struct gw_req *q)
{
    struct gw_gate *g = q->gate;
    if (!gw_charge_enter(q)) return;
    if (!(q->route->props & GW_R_ADMIT)) {
        dispatch(q);
        return;
    }
    q->queue_begin_ns = clock_ns();
    q->ticket.user = q;
    q->stage = GW_QUEUED;
    uint64_t deadline = q->queue_begin_ns + g->config->queue_timeout_ms * 1000000ull;
    int r = gw_admit_enter(&g->admit, &q->ticket, deadline);
    if (r < 0) {
        q->end = GW_END_SHED;
        gw_answer_error(q, GW_E_OVERLOADED, NULL, "The server is busy and its queue is full.");
    } else if (r == 1) {
        dispatch(q);
    } else {
        gw_relay_arm_queue(g);
    }
}

/* ---- reading the request ---- */

struct gw_scan_job { /* outlives its request when the client leaves: q is NULL then */
    struct gw_req *q;
    struct http_loop *loop;
    char *copy;
    struct gw_scan scan;
};

static void scanned(struct gw_req *q)
{
    struct gw_scan *s = &q->scan;
    if (s->failed) {
        q->end = GW_END_REFUSED;
        gw_answer_error(q, s->error, NULL, "%s", s->message);
        return;
    }
    if (s->n_segments) gw_stats_detected(s->detector, s->n_segments);
    if (s->has_model && gw_fleet_knows(q->gate->fleet, s->model) == 0) {
        q->end = GW_END_REFUSED;
        gw_answer_error(q, GW_E_UNKNOWN_MODEL, "model", "The model `%s` does not exist.", s->model);
        return;
    }
    take_turn(q);
}

static void job_done(void *arg) /* loop */
{
    struct gw_scan_job *j = arg;
    struct gw_req *q = j->q;
    if (q) {
        q->job = NULL;
        q->scan = j->scan;
        q->scan.body = http_req_body(q->http, &q->scan.len);
        memset(&j->scan, 0, sizeof j->scan);
    }
    gw_scan_fini(&j->scan);
    mem_free(j->copy);
    mem_free(j);
    if (q) scanned(q);
}

static void job_run(void *arg) /* helper thread */
{
    struct gw_scan_job *j = arg;
    gw_scan_run(&j->scan);
    while (http_loop_post(j->loop, job_done, j) == -EAGAIN)
        (void)sched_yield();
}

static int scan_elsewhere(struct gw_req *q, const char *body, size_t len)
{
    struct gw_scan_job *j = mem_zalloc(sizeof *j);
    if (!j) return -ENOMEM;
    *j = (struct gw_scan_job){.q = q, .loop = q->gate->loop, .scan = q->scan};
    j->copy = mem_strndup(body, len);
    j->scan.body = j->copy;
    int r = j->copy ? gw_pool_submit(q->gate->pool, job_run, j) : -ENOMEM;
    if (r < 0) {
        mem_free(j->copy);
        mem_free(j);
        return r;
    }
    q->job = j;
    return 0;
}

void gw_relay_begin(struct gw_req *q)
{
    size_t len;
    const char *body = http_req_body(q->http, &len);
    q->stage = GW_SCANNING;
    q->active = (q->route->props & GW_R_ADMIN) == 0;
    if (q->active) gw_stats_active(1);
    if (!(q->route->props & GW_R_JSON) || strcmp(http_req_method(q->http), "POST") != 0) {
        take_turn(q);
        return;
    }
    const struct http_head *h = http_req_head(q->http);
    bool detect = (q->route->props & GW_R_DETECT) && !http_header_find(h, "x-kvblend-segments") &&
                  !http_header_find(h, "x-kvblend-separator");
    q->scan =
        (struct gw_scan){.body = body, .len = len, .presets = detect ? q->gate->presets : NULL};
    q->scan.dry = (q->route->props & GW_R_ADMIN) != 0;
    q->scan.space_ns = (q->key ? strlen(q->key->id) : 0) + 1;
    if (detect && gw_space_of(q, q->scan.space)) q->scan.learner = q->gate->learner;
    if (len <= GW_SCAN_INLINE_MAX) {
        gw_scan_run(&q->scan);
        scanned(q);
        return;
    }
    if (scan_elsewhere(q, body, len) < 0) {
        q->end = GW_END_SHED;
        gw_answer_error(q, GW_E_OVERLOADED, NULL, "The server is busy.");
    }
}

/* ---- ends ---- */

void gw_relay_drain(struct gw_req *q)
{
    if (q->call) http_call_pause(q->call, false);
}

void gw_relay_cut(struct gw_req *q, enum gw_error e, const char *message)
{
    if (q->stage == GW_ANSWERED) return;
    if (q->call) {
        http_call_cancel(q->call);
        q->call = NULL;
        call_dropped(q);
    }
    q->end = e == GW_E_DRAINING ? GW_END_DRAIN : GW_END_UPSTREAM;
    if (q->stage != GW_RELAYING) {
        gw_answer_error(q, e, NULL, "%s", message);
        return;
    }
    struct buf frames = BUF_INIT;
    (void)gw_error_frames(e, message, &frames);
    q->stage = GW_ANSWERED;
    (void)http_reply_write(q->http, frames.data, frames.len);
    buf_fini(&frames);
    (void)http_reply_end(q->http);
}

void gw_relay_close(struct gw_req *q)
{
    if (q->call) {
        http_call_cancel(q->call);
        call_dropped(q);
    }
    if (q->job) q->job->q = NULL;
    if (q->timer) http_timer_destroy(q->timer);
    if (q->active) gw_stats_active(-1);
    gw_charge_leave(q);
    mem_free(q->up_type);
    buf_fini(&q->up_headers);
    buf_fini(&q->body);
    gw_scan_fini(&q->scan);
    /* Last, because it may hand the turn to another request. */
    q->stage = GW_ANSWERED;
    gw_admit_leave(&q->gate->admit, &q->ticket);
}
