/* A target's answer on its way to the client, byte for byte.
 *
 * An event stream is passed on event by event: bytes behind the last complete event are held back,
 * so that a target's death can always be told in a well-formed frame and a comment never lands
 * inside an event; events come in one piece as a rule, so nothing waits. Headers, comments and
 * reports of the prompt's progress go out at once, events that only open the answer (a role) with
 * its first token: until then a target that dies has said nothing that counts, and the next one
 * goes on in the same response, its progress from the start. Any other answer is collected while it
 * is small, so that a death in its middle becomes a clean 502; a longer one is streamed as it
 * comes, and cut without an end when its target dies: no client takes half an answer for a whole
 * one. */
#include "gateway/request/answer.h"

#include "base/clock.h"
#include "base/log.h"
#include "gateway/front/reply.h"
#include "gateway/process/config.h"
#include "gateway/request/relay.h"
#include "gateway/request/request.h"
#include "gateway/translate/translate.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    COLLECT_BYTES_MAX = 64 << 10,
    EVENT_BYTES_MAX = 1 << 20, /* a longer event is passed on in pieces */
    TAIL_BYTES = 4096,         /* of a streamed answer: where its usage stands */
    GRACE_MS = 2000,           /* quick failures still get their status */
};

/* ---- headers ---- */

static bool response_header_dropped(const struct http_header *h)
{
    static const struct http_name drop[] = {HTTP_NAME("date"), HTTP_NAME("content-type"),
                                            HTTP_NAME("server")};
    return gw_send_drops(h) || http_header_in(h, drop, sizeof drop / sizeof drop[0]);
}

/* What the gateway says itself must not come twice. */
static bool response_header_ours(const struct gw_req *q, const struct http_header *h)
{
    if (q->limit.shown && http_header_begins(h, "x-ratelimit-")) return true;
    if (q->fallback.asked && http_header_is(h, GW_FALLBACK_HEADER)) return true;
    return http_header_begins(h, "access-control-"); /* the gateway says which origins may read */
}

/* The answer's headers as they will leave: ours and the target's. */
static int make_headers(struct gw_req *q, const struct http_head *h, const char *type)
{
    struct buf *out = &q->ans.headers;
    bool names = http_header_find(h, "connection");
    buf_clear(out);
    int r = gw_answer_headers(q, out);
    if (r == 0) r = buf_adds(out, "x-kvblend-overhead-us: ");
    if (r == 0) r = buf_addu(out, q->overhead_ns / 1000);
    if (r == 0) r = buf_adds(out, "\r\n");
    if (r == 0 && q->fallback.asked)
        r = http_header_add(out, GW_FALLBACK_HEADER, q->fallback.field);
    for (size_t i = 0; r == 0 && i < h->n_headers; i++) {
        const struct http_header *x = &h->headers[i];
        if (response_header_dropped(x) || response_header_ours(q, x)) continue;
        if (!(names && gw_send_hop_only(h, x->name))) r = http_header_copy(out, x);
    }
    /* Proxies between us and the client must neither hold events back nor keep them. */
    if (r == 0 && q->ans.sse && !http_header_find(h, "x-accel-buffering"))
        r = buf_adds(out, "X-Accel-Buffering: no\r\n");
    if (r == 0 && q->ans.sse && !http_header_find(h, "cache-control"))
        r = buf_adds(out, "Cache-Control: no-cache\r\n");
    if (r == 0 && type) r = http_header_add(out, "Content-Type", type);
    return r == 0 && !buf_cstr(out) ? -ENOMEM : r;
}

static void begin_relay(struct gw_req *q)
{
    const char *headers = buf_cstr(&q->ans.headers);
    q->stage = GW_RELAYING;
    q->status = q->ans.status;
    q->ans.begun = true;
    q->ans.last_ns = clock_ns();
    (void)http_reply_start(q->http, q->status, NULL, headers, q->ans.sse ? -1 : q->ans.length);
    buf_fini(&q->ans.headers); /* a stream may last for minutes */
}

/* ---- bytes ---- */

static void write_bytes(struct gw_req *q, const char *data, size_t len)
{
    if (len == 0) return;
    q->ans.n_bytes += len;
    q->ans.last_ns = clock_ns();
    gw_stats_add(GW_M_RELAYED, (double)len);
    if (http_reply_write(q->http, data, len) == 1 && q->send.call)
        http_call_pause(q->send.call, true);
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

static bool ends_with_done(const char *p, size_t len)
{
    static const char done[] = "[DONE]";
    while (len > 0 && (p[len - 1] == '\n' || p[len - 1] == '\r'))
        len--;
    if (len < 11 || memcmp(p + len - 6, done, 6) != 0) return false;
    for (len -= 6; len > 0 && p[len - 1] == ' ';)
        len--;
    return len >= 5 && memcmp(p + len - 5, "data:", 5) == 0;
}

/* A stream that cannot be told any further ends with why; q may be gone. */
static void cut_telling(struct gw_req *q, int error)
{
    const char *why = error == -EMSGSIZE ? "The upstream's answer is too long to be translated."
                                         : "The upstream sent what is no chat completion.";
    if (error == -ENOMEM)
        gw_relay_cut(q, GW_E_INTERNAL, "Out of memory.");
    else
        gw_relay_cut(q, GW_E_UPSTREAM, why);
}

/* False: it has ended, and q may be gone. */
static bool write_events(struct gw_req *q, const char *data, size_t len)
{
    if (len == 0) return true;
    q->ans.mid_event = false;
    q->ans.saw_done = ends_with_done(data, len);
    if (q->ans.status == 200) gw_usage_events(&q->usage, data, len);
    if (!q->ans.told) {
        write_bytes(q, data, len);
        return true;
    }
    struct buf out = BUF_INIT;
    int r = gw_told_events(q->ans.told, data, len, &out);
    write_bytes(q, out.data, out.len);
    buf_fini(&out);
    if (r < 0) cut_telling(q, r);
    return r >= 0;
}

/* Those before the first token: an answer's tokens and usage are not among them, and a dialect has
 * no words for them. */
static bool pass_events(struct gw_req *q, const char *data, size_t len)
{
    if (q->ans.taken) return write_events(q, data, len);
    if (!q->ans.told) write_bytes(q, data, len);
    return true;
}

/* The answer counts from here on: this was the last try. */
static void take_part(struct gw_req *q)
{
    q->ans.taken = true;
    q->first_byte_ns = clock_ns();
    gw_scan_fini(&q->scan);
    if (http_call_sent_all(q->send.call)) gw_send_forget(q);
    q->send.lease.status = q->ans.status;
    gw_fleet_computed(q->loop->server->fleet, &q->send.lease);
}

/* Whole events at the start of the bytes, of those that may go out now. */
static size_t ripe_events(struct gw_req *q, const char *data, size_t len)
{
    size_t n = complete_events(data, len);
    if (q->ans.taken || n == 0) return n;
    enum gw_bring brings = gw_usage_bring(data, n);
    if (brings == GW_BRING_TOKEN) take_part(q);
    return brings == GW_BRING_OPENING ? 0 : n;
}

static void on_events(struct gw_req *q, const char *data, size_t len)
{
    struct buf *held = &q->ans.body;
    if (held->len == 0) { /* the usual case: whole events, nothing copied */
        size_t n = ripe_events(q, data, len);
        if (!pass_events(q, data, n)) return;
        data += n;
        len -= n;
    }
    if (len == 0) return;
    if (buf_add(held, data, len) < 0) {
        gw_relay_cut(q, GW_E_INTERNAL, "Out of memory.");
        return;
    }
    size_t n = ripe_events(q, held->data, held->len);
    if (!pass_events(q, held->data, n)) return;
    buf_consume(held, n);
    if (held->len < EVENT_BYTES_MAX) return;
    if (q->ans.told) {
        cut_telling(q, -EMSGSIZE);
        return;
    }
    if (!q->ans.taken) take_part(q);
    q->ans.mid_event = true; /* all except the last three, which may begin its end */
    write_bytes(q, held->data, held->len - 3);
    buf_consume(held, held->len - 3);
}

/* The usage of an answer stands at its end: of what is passed on only that much is looked at. */
static void keep_tail(struct gw_req *q, const char *data, size_t len)
{
    struct buf *tail = &q->ans.body;
    if (q->ans.status != 200 || !(q->route->props & GW_R_ADMIT)) return;
    if (len > TAIL_BYTES) data += len - TAIL_BYTES, len = TAIL_BYTES;
    if (tail->len + len > 2 * TAIL_BYTES) buf_consume(tail, tail->len + len - TAIL_BYTES);
    (void)buf_add(tail, data, len);
}

/* What a chat answer, or a refusal, is to the client; q may be gone. */
static void answer_told(struct gw_req *q, const char *body, size_t len)
{
    struct buf out = BUF_INIT;
    bool uncounted = q->ans.asked->counts &&
                     (q->ans.status == 404 || q->ans.status == 405 || q->ans.status == 501);
    int r = q->ans.status == 200
                ? gw_told_answer(q->ans.told, body, len, &out)
                : gw_dialect_refusal(q->ans.asked->dialect, q->ans.status, body, len, &out);
    if (q->ans.status == 200) gw_usage_answer(&q->usage, body, len);
    if (r < 0) {
        cut_telling(q, r);
    } else if (uncounted) {
        gw_answer_error(q, GW_E_NOT_SUPPORTED, NULL,
                        "The upstream of this model does not count tokens: it has no /tokenize.");
    } else {
        q->stage = GW_ANSWERED;
        q->status = q->ans.status;
        if (q->status == 429) q->end = GW_END_SHED;
        q->ans.n_bytes = out.len;
        gw_stats_add(GW_M_RELAYED, (double)out.len);
        (void)http_reply(q->http, q->status, NULL, buf_cstr(&q->ans.headers), out.data, out.len);
    }
    buf_fini(&out);
}

static void answer_collected(struct gw_req *q, const char *body, size_t len)
{
    if (q->ans.told) {
        answer_told(q, body, len);
        return;
    }
    q->stage = GW_ANSWERED;
    q->status = q->ans.status;
    if (q->status == 429) q->end = GW_END_SHED;
    if (q->status == 200) gw_usage_answer(&q->usage, body, len);
    q->ans.n_bytes = len;
    gw_stats_add(GW_M_RELAYED, (double)len);
    (void)http_reply(q->http, q->status, NULL, buf_cstr(&q->ans.headers), body, len);
}

static void on_plain(struct gw_req *q, const char *data, size_t len)
{
    struct buf *whole = &q->ans.body;
    bool whole_already = (int64_t)len == q->ans.length; /* all in one piece */
    if (whole_already && !q->ans.begun && !q->ans.streams && !q->ans.refused) {
        gw_send_done(q, gw_answer_outcome(q));
        answer_collected(q, data, len);
        return;
    }
    size_t most = q->ans.told ? GW_TOLD_BYTES_MAX : COLLECT_BYTES_MAX;
    if (!q->ans.streams && whole->len + len <= most) {
        if (buf_add(whole, data, len) < 0) gw_relay_cut(q, GW_E_INTERNAL, "Out of memory.");
        return;
    }
    if (q->ans.early) return; /* an error that is too long for a frame */
    if (q->ans.told) {
        cut_telling(q, -EMSGSIZE);
        return;
    }
    if (!q->ans.streams) {
        struct buf first = *whole;
        *whole = (struct buf)BUF_INIT;
        q->ans.streams = true;
        begin_relay(q);
        keep_tail(q, first.data ? first.data : "", first.len);
        write_bytes(q, first.data, first.len);
        buf_fini(&first);
    }
    keep_tail(q, data, len);
    write_bytes(q, data, len);
}

/* ---- the call's events ---- */

static bool is_type(const char *type, const char *wanted)
{
    return type && strncasecmp(type, wanted, strlen(wanted)) == 0;
}

static void on_answer_head(void *ctx, int status, const struct http_head *h)
{
    struct gw_req *q = ctx;
    const char *type = http_header_find(h, "content-type");
    const char *length = http_header_find(h, "content-length");
    bool again = status == 429 || status == 502 || status == 503 || status == 504;
    q->ans.busy = status == 429 || (status == 503 && http_header_find(h, "retry-after"));
    q->ans.got_head = true;
    q->ans.status = status;
    if (again && gw_send_elsewhere(q)) return;
    bool plain_text = !http_header_find(h, "content-encoding");
    q->ans.length = length ? strtoll(length, NULL, 10) : -1;
    q->ans.framed = length || http_header_find(h, "transfer-encoding");
    q->ans.sse = plain_text && is_type(type, "text/event-stream");
    q->ans.refused = status == 400 && q->ans.length >= 0 && q->ans.length <= COLLECT_BYTES_MAX &&
                     gw_fallback_noted(q, h);
    if (q->ans.refused)
        q->first_byte_ns = clock_ns();
    else if (!q->ans.sse || status != 200)
        take_part(q);
    if (q->ans.early) {
        if (q->ans.sse && status == 200) q->stage = GW_RELAYING;
        return;
    }
    if (q->ans.told && !q->ans.sse) type = "application/json";
    if (make_headers(q, h, type) < 0) {
        gw_relay_cut(q, GW_E_INTERNAL, "Out of memory.");
        return;
    }
    /* What is no stream of events and says no length is worth having as it comes, unless it is
     * JSON, of which a part is worth nothing. */
    bool long_answer = q->ans.length > COLLECT_BYTES_MAX ||
                       (q->ans.length < 0 && (!plain_text || !is_type(type, "application/json")));
    bool bare = status == 204 || status == 304;
    bool to_head = strcmp(q->http->msg.method, "HEAD") == 0;
    q->ans.streams =
        !q->ans.told && !q->ans.sse && !bare && (to_head ? q->ans.length > 0 : long_answer);
    if (q->ans.sse || q->ans.streams) begin_relay(q);
}

static void on_answer_body(void *ctx, const char *data, size_t len)
{
    struct gw_req *q = ctx;
    if (q->ans.sse && (!q->ans.early || q->ans.status == 200))
        on_events(q, data, len);
    else
        on_plain(q, data, len);
}

static void tell_refusal(struct gw_req *q, bool json, struct buf *frames)
{
    const struct buf *b = &q->ans.body;
    struct buf event = BUF_INIT;
    int r = json ? buf_addf(&event, "data: %.*s\n\n", (int)b->len, b->data) : -EBADMSG;
    if (r == 0) r = gw_told_events(q->ans.told, event.data, event.len, frames);
    (void)gw_told_fail(q->ans.told, GW_E_UPSTREAM, "The upstream refused the request.", frames);
    buf_fini(&event);
}

/* The client was given a stream's headers while it waited, and no stream came. */
static void answer_early(struct gw_req *q)
{
    if (!(q->route->props & GW_R_DONE)) { /* no frame would be understood */
        gw_answer_break(q, GW_E_UPSTREAM, NULL);
        return;
    }
    struct buf frames = BUF_INIT, *b = &q->ans.body;
    bool json = b->len > 0 && b->data[0] == '{' && !memchr(b->data, '\n', b->len) &&
                memmem(b->data, b->len, "\"error\"", 7);
    q->stage = GW_ANSWERED;
    q->status = q->ans.status;
    q->end = q->status == 429 ? GW_END_SHED : GW_END_UPSTREAM;
    if (q->ans.told)
        tell_refusal(q, json, &frames);
    else if (json)
        (void)buf_addf(&frames, "data: %.*s\n\ndata: [DONE]\n\n", (int)b->len, b->data);
    else
        (void)gw_error_frames(GW_E_UPSTREAM, "The upstream refused the request.", &frames);
    (void)http_reply_write(q->http, frames.data, frames.len);
    buf_fini(&frames);
    (void)http_reply_end(q->http);
}

/* "Not implemented" and a loop are clear answers to this request, and no fault of the target. */
enum gw_outcome gw_answer_outcome(const struct gw_req *q)
{
    if (q->ans.busy) return GW_DONE_BUSY;
    bool clear = q->ans.status < 500 || q->ans.status == 501 || q->ans.status == 508;
    return clear ? GW_DONE_OK : GW_DONE_FAILED;
}

/* Complete, as far as HTTP can tell. A stream of ours without [DONE] is a death all the same where
 * nothing but the connection's end marked its own. */
static bool is_whole(const struct gw_req *q)
{
    if (!q->ans.sse || q->ans.status != 200 || q->ans.saw_done) return true;
    if (!(q->route->props & GW_R_DONE)) return true;
    return q->ans.framed && !q->send.lease.worker;
}

/* False: it has ended in its middle, and q may be gone. */
static bool end_telling(struct gw_req *q)
{
    struct buf out = BUF_INIT;
    int r = gw_told_end(q->ans.told, &out);
    write_bytes(q, out.data, out.len);
    buf_fini(&out);
    if (r < 0) cut_telling(q, r);
    return r >= 0;
}

static void answer_complete(struct gw_req *q)
{
    const struct buf *b = &q->ans.body;
    if (!q->ans.begun) {
        answer_collected(q, b->data ? b->data : "", b->len);
        return;
    }
    if (q->ans.early && !(q->ans.sse && q->ans.status == 200)) {
        answer_early(q);
        return;
    }
    if (q->ans.sse) {
        size_t n = complete_events(b->data, b->len); /* an opening without a token */
        if (!write_events(q, b->data, n)) return;
        if (q->ans.told && !end_telling(q)) return;
        if (!q->ans.told) write_bytes(q, b->data + n, b->len - n);
    } else {
        gw_usage_answer(&q->usage, b->data ? b->data : "", b->len);
    }
    q->stage = GW_ANSWERED;
    (void)http_reply_end(q->http);
}

static void on_answer_end(void *ctx, int status)
{
    struct gw_req *q = ctx;
    bool sent = http_call_sent(q->send.call);
    q->send.call = NULL;
    if (q->stage == GW_ANSWERED) return; /* with its last byte */
    if ((status == 0 && is_whole(q)) || (q->ans.sse && q->ans.saw_done)) {
        gw_send_done(q, gw_answer_outcome(q));
        if (q->ans.refused && gw_fallback_begin(q)) {
            gw_answer_reset(q); /* it waits for a head again */
            gw_send(q);
        } else {
            answer_complete(q);
        }
        return;
    }
    if (!q->ans.taken) {
        gw_send_failed(q, status ? status : -ECONNRESET, sent);
        return;
    }
    bool late = status == -ETIMEDOUT || status == -ETIME;
    log_event(LOG_WARN, "relay.broken", "request_id=%s target=%s error=%s bytes=%llu", q->id,
              q->target_name, status ? err_name(status) : "no_end",
              (unsigned long long)q->ans.n_bytes);
    q->send.lease.error = status ? status : -ECONNRESET;
    gw_send_done(q, late ? GW_DONE_TIMEOUT : GW_DONE_FAILED);
    q->end = late ? GW_END_TIMEOUT : GW_END_UPSTREAM;
    gw_answer_error(q, late ? GW_E_UPSTREAM_TIMEOUT : GW_E_UPSTREAM, NULL,
                    "The %s was lost while it answered.", q->noun);
}

const struct http_call_ops gw_answer_ops = {on_answer_head, on_answer_body, on_answer_end};

/* ---- the client's side ---- */

/* Headers before the target's: the client learns that its request lives. */
static void begin_early(struct gw_req *q)
{
    struct buf headers = BUF_INIT;
    (void)gw_answer_headers(q, &headers);
    q->ans.begun = q->ans.early = true;
    q->status = 200;
    (void)http_sse_start(q->http, buf_cstr(&headers));
    buf_fini(&headers);
}

void gw_answer_keepalive(struct gw_req *q, uint64_t now_ns)
{
    static const char comment[] = ": keep-alive\n\n";
    if (q->stage == GW_ANSWERED || !q->route) return;
    uint64_t every = gw_config_of(q)->sse_keepalive_ms * 1000000ull, since = q->ans.last_ns;
    if (every == 0) return;
    bool waits = q->scan.stream && (q->route->props & GW_R_DONE) && !q->ans.got_head;
    if (!q->ans.begun) {
        since = q->http->start_ns;
        if (!waits || (every < GRACE_MS * 1000000ull && now_ns < since + GRACE_MS * 1000000ull))
            return;
    }
    if (now_ns < since + every || (q->ans.begun && !gw_answer_in_events(&q->ans)) ||
        q->ans.mid_event)
        return;
    if (http_reply_pending(q->http) > 0) return; /* the client has enough to read */
    if (!q->ans.begun) begin_early(q);
    q->ans.last_ns = now_ns;
    (void)http_reply_write(q->http, comment, sizeof comment - 1);
}

void gw_answer_reset(struct gw_req *q)
{
    q->ans.early = q->ans.begun; /* with the headers of the one before */
    q->ans.got_head = q->ans.taken = q->ans.sse = q->ans.mid_event = q->ans.refused = false;
    q->ans.status = 0;
    q->first_byte_ns = 0;
    buf_clear(&q->ans.body);
    buf_clear(&q->ans.headers);
}

void gw_answer_kept(struct gw_req *q)
{
    struct gw_fallback *f = &q->fallback;
    gw_answer_reset(q);
    buf_fini(&q->ans.headers);
    buf_fini(&q->ans.body);
    q->ans.headers = f->headers;
    q->ans.body = f->body;
    f->headers = f->body = (struct buf)BUF_INIT;
    q->ans.got_head = true;
    q->ans.status = f->status;
    answer_complete(q);
}
