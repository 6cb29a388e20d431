#include "gateway/front/reply.h"

#include "base/buf.h"
#include "base/net/http.h"
#include "gateway/fleet/view.h"
#include "gateway/front/cors.h"
#include "gateway/process/config.h"
#include "gateway/process/server.h"
#include "gateway/request/request.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int gw_answer_headers(const struct gw_req *q, struct buf *out)
{
    int r = buf_reserve(out, 256);
    if (r == 0) r = http_header_add(out, "x-request-id", q->id);
    if (r == 0 && q->limit.shown) r = gw_limit_headers(&q->limit.view, out);
    if (r == 0 && q->route && (q->route->props & GW_R_ADMIN))
        r = buf_adds(out, "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n");
    return r < 0 ? r : gw_cors_headers(&gw_config_of(q)->cors_origins, &q->http->msg.head, out);
}

static void reply(struct gw_req *q, int status, const char *type, const struct buf *extra,
                  const struct buf *body)
{
    struct buf headers = BUF_INIT;
    (void)gw_answer_headers(q, &headers);
    if (extra && extra->len) (void)buf_add(&headers, extra->data, extra->len);
    q->stage = GW_ANSWERED;
    q->status = status;
    (void)http_reply(q->http, status, type, buf_cstr(&headers), body->data, body->len);
    buf_fini(&headers);
}

void gw_answer_no_memory(struct gw_req *q)
{
    gw_answer_error(q, GW_E_INTERNAL, NULL, "Out of memory.");
}

void gw_answer_with(struct gw_req *q, int status, const char *type, struct buf *headers,
                    struct buf *body)
{
    if (buf_status(headers) == 0 && buf_status(body) == 0)
        reply(q, status, type, headers, body);
    else
        gw_answer_no_memory(q);
    buf_fini(headers);
    buf_fini(body);
}

void gw_answer_text(struct gw_req *q, int status, const char *type, struct buf *body)
{
    gw_answer_with(q, status, type, &(struct buf)BUF_INIT, body);
}

void gw_answer_json(struct gw_req *q, int status, struct buf *body)
{
    gw_answer_text(q, status, "application/json", body);
}

void gw_answer_break(struct gw_req *q, enum gw_error e, const char *message)
{
    q->stage = GW_ANSWERED;
    /* A frame only between events, and only where the stream's readers know such frames. */
    if (!gw_answer_in_events(&q->ans) || q->ans.mid_event || !(q->route->props & GW_R_DONE)) {
        http_reply_abort(q->http);
        return;
    }
    struct buf frames = BUF_INIT;
    if (q->ans.told)
        (void)gw_told_fail(q->ans.told, e, message, &frames);
    else
        (void)gw_error_frames(e, message, &frames);
    (void)http_reply_write(q->http, frames.data, frames.len);
    buf_fini(&frames);
    (void)http_reply_end(q->http);
}

/* The answer's headers and body; where a stream has begun, its end. Takes the headers. */
static void reply_error(struct gw_req *q, enum gw_error e, const char *param, struct buf *headers,
                        const char *fmt, va_list ap)
{
    char message[512];
    struct buf body = BUF_INIT;
    (void)vsnprintf(message, sizeof message, fmt, ap);
    if (q->end == GW_END_OK) q->end = GW_END_REFUSED;
    if (q->ans.begun) {
        gw_answer_break(q, e, message);
    } else {
        (void)gw_dialect_error(q->route ? q->route->dialect : GW_CHAT, e, message, param, &body);
        reply(q, gw_error_status(e), "application/json", headers, &body);
    }
    buf_fini(headers);
    buf_fini(&body);
}

void gw_answer_error(struct gw_req *q, enum gw_error e, const char *param, const char *fmt, ...)
{
    struct buf headers = BUF_INIT;
    va_list ap;
    (void)gw_error_headers(e, &headers);
    if (e == GW_E_METHOD)
        (void)buf_addf(&headers, "Allow: %s%s\r\n", q->route->methods,
                       strncmp(q->route->methods, "GET", 3) == 0 ? ", HEAD" : "");
    va_start(ap, fmt);
    reply_error(q, e, param, &headers, fmt, ap);
    va_end(ap);
}

void gw_answer_error_after(struct gw_req *q, enum gw_error e, uint64_t after_ms, const char *fmt,
                           ...)
{
    struct buf headers = BUF_INIT;
    va_list ap;
    (void)gw_error_headers_after(e, after_ms, &headers);
    va_start(ap, fmt);
    reply_error(q, e, NULL, &headers, fmt, ap);
    va_end(ap);
}

void gw_answer_no_backend(struct gw_req *q, enum gw_error e, const char *what)
{
    const struct gw_fleet *f = q->loop->server->fleet;
    struct gw_fleet_count n = gw_fleet_count_kinds(f);
    char why[GW_REASONS_BYTES];
    gw_fleet_reasons(f, gw_req_model(q), why);
    const char *noun = !n.workers == !n.upstreams ? "backend" : n.workers ? "worker" : "upstream";
    gw_answer_error(q, e, NULL, "No %s %s%s.", noun, what, why);
}
