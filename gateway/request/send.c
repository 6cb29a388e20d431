/* A request's way to a target: choice, headers, body in pieces, and what to do when it fails.
 *
 * Sent again only while no answer has begun (a stream begins with its first token): whatever never
 * left us, and what was lost on its way where doing it twice is harmless; a refusal that another
 * target may not give (429, 502, 503, 504) goes to another target when there is one, else to the
 * client as it came. A target that stays silent for too long is not asked again, another one is. */
#include "gateway/request/send.h"

#include "base/log.h"
#include "base/mem.h"
#include "gateway/fleet/upstream.h"
#include "gateway/fleet/view.h"
#include "gateway/front/trace.h"
#include "gateway/front/reply.h"
#include "gateway/process/config.h"
#include "gateway/process/server.h"
#include "gateway/request/edit.h"
#include "gateway/request/relay.h"
#include "gateway/request/request.h"

#include <errno.h>
#include <string.h>

enum { HEADERS_USUAL_BYTES = 960 }; /* chosen: one small block */

/* ---- headers ---- */

bool gw_send_drops(const struct http_header *h)
{
    static const struct http_name drop[] = {
        HTTP_NAME("connection"),        HTTP_NAME("keep-alive"),  HTTP_NAME("te"),
        HTTP_NAME("trailer"),           HTTP_NAME("upgrade"),     HTTP_NAME("content-length"),
        HTTP_NAME("transfer-encoding"), HTTP_NAME("x-request-id")};
    return http_header_in(h, drop, sizeof drop / sizeof drop[0]) || http_header_begins(h, "proxy-");
}

/* Ours to set, or nothing a target may know. */
static bool dropped(const struct http_header *h)
{
    static const struct http_name drop[] = {
        HTTP_NAME("host"),        HTTP_NAME("expect"),        HTTP_NAME("authorization"),
        HTTP_NAME("x-api-key"),   HTTP_NAME("cookie"),        HTTP_NAME("traceparent"),
        HTTP_NAME(GW_HOP_HEADER), HTTP_NAME("http2-settings")};
    return gw_send_drops(h) || http_header_in(h, drop, sizeof drop / sizeof drop[0]);
}

bool gw_send_hop_only(const struct http_head *h, const char *name)
{
    size_t len = strlen(name);
    for (size_t i = 0; i < h->n_headers; i++) {
        if (!http_header_is(&h->headers[i], "connection")) continue;
        for (const char *p = h->headers[i].value; *p;) {
            p += strspn(p, ", \t");
            size_t n = strcspn(p, ", \t");
            if (n == len && strncasecmp(p, name, n) == 0) return true;
            p += n;
        }
    }
    return false;
}

/* Whose account pays, at OpenAI: the operator's, unless the entry leaves it to the client. */
static bool is_account(const struct http_header *h)
{
    return http_header_is(h, "openai-organization") || http_header_is(h, "openai-project");
}

static bool passes(const struct gw_req *q, const struct gw_lease *l, const struct http_header *h)
{
    if (dropped(h)) return false;
    if (is_account(h) && !(l->up && l->up->client_organization)) return false;
    if (!l->worker && http_header_begins(h, "x-kvblend-")) return false;
    /* A key's namespace is not the client's to choose, and a state belongs to a valid trace only.
     */
    if (q->key && q->key->name_space && http_header_is(h, "x-kvblend-namespace")) return false;
    if (!q->trace.parent[0] && http_header_is(h, "tracestate")) return false;
    /* Answers that are metered must come as plain text. */
    if (q->route->props & (GW_R_ADMIT | GW_R_JSON)) return !http_header_is(h, "accept-encoding");
    return true;
}

static int add_headers(const struct gw_req *q, const struct gw_lease *l, struct buf *out)
{
    const struct http_head *h = &q->http->msg.head;
    bool names = http_header_find(h, "connection") != NULL;
    int r = buf_reserve(out, HEADERS_USUAL_BYTES);
    if (r == 0) r = http_header_add(out, "x-request-id", q->id);
    if (r == 0) r = gw_hop_header(h, q->loop->server->hop, out);
    if (r == 0) r = traceparent_header(&q->trace, out);
    if (r == 0 && l->authorization) r = http_header_add(out, "Authorization", l->authorization);
    if (r == 0 && l->worker && q->key && q->key->name_space)
        r = http_header_add(out, "X-KVBlend-Namespace", q->key->name_space);
    for (size_t i = 0; r == 0 && i < h->n_headers; i++) {
        const struct http_header *x = &h->headers[i];
        if (passes(q, l, x) && !(names && gw_send_hop_only(h, x->name)))
            r = http_header_copy(out, x);
    }
    if (r == 0 && l->worker && q->scan.segments.len > 0)
        r = buf_addf(out, "X-KVBlend-Segments: %.*s\r\n", (int)q->scan.segments.len,
                     q->scan.segments.data);
    return r;
}

/* ---- path ---- */

/* The target's own root in the place of our /v1; *path goes on behind it. */
static int add_base(const struct gw_lease *l, const char **path, struct buf *out)
{
    if (!l->up) return 0;
    const char *base = l->up->base;
    size_t len = strlen(base);
    if (strncmp(*path, "/v1/", 4) == 0)
        *path += 3;
    else if (len >= 3 && strcmp(base + len - 3, "/v1") == 0)
        len -= 3; /* routes beside /v1 */
    return buf_add(out, base, len);
}

/* What the client wrote behind /v1/, as it wrote it: escapes are the target's to read. Where the
 * target is no plain path ("//", "http://…"), the path as it was judged. */
static int add_opened(const struct gw_req *q, struct buf *out)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~:/@!$&'()*+,;=";
    const char *raw = q->http->msg.target, *query = q->http->msg.query;
    int r = 0;
    if (strncmp(raw, "/v1/", 4) == 0 && !memmem(raw, strcspn(raw, "?"), "//", 2))
        return buf_adds(out, raw + 4);
    for (const char *p = q->http->msg.path + strlen("/v1/"); r == 0 && *p; p++)
        r = strchr(plain, *p) ? buf_addc(out, *p) : buf_addf(out, "%%%02X", (unsigned char)*p);
    return r < 0 || !*query ? r : buf_addf(out, "?%s", query);
}

static int add_path(const struct gw_req *q, struct buf *out)
{
    const struct gw_route *t = q->route;
    const char *query = q->http->msg.query, *path = t->target;
    int r = add_base(&q->send.lease, &path, out);
    if (r == 0) r = buf_adds(out, path);
    if (r == 0 && t->props & GW_R_OPENED) return add_opened(q, out);
    if (r == 0 && t->props & GW_R_REST) r = buf_adds(out, q->rest);
    return r < 0 || !*query || q->ans.asked ? r : buf_addf(out, "?%s", query);
}

/* ---- the call ---- */

static void count_try(struct gw_req *q)
{
    q->target_name = q->send.lease.name;
    q->target_index = (int)q->send.lease.index;
    q->noun = q->send.lease.worker ? "worker" : "upstream";
    if (q->n_retries == 0) q->overhead_ns = q->send.start_ns - q->http->start_ns - q->queue_ns;
}

static void pieces_free(struct gw_req *q)
{
    mem_free(q->send.edit);
    if (q->send.pieces.v != &q->send.whole) mem_free(q->send.pieces.v);
    q->send.edit = NULL;
    q->send.pieces.v = NULL;
}

/* Room for one edit more, which goes where it belongs. */
static int insert_edit(struct gw_req *q, size_t *n, struct gw_edit e)
{
    struct gw_edit *v = mem_realloc(q->send.edit, (*n + 1) * sizeof *v);
    if (!v) return -ENOMEM;
    q->send.edit = v;
    size_t i = (*n)++;
    for (; i > 0 && v[i - 1].at > e.at; i--)
        v[i] = v[i - 1];
    v[i] = e;
    return 0;
}

/* The name that the target knows, in the place of the client's; where that names none, as the first
 * member of the body, which has others: for the fallback alone. */
static int edit_model(struct gw_req *q, const char *body, size_t len, size_t *n)
{
    const struct gw_scan_range *old = &q->scan.model_value;
    const char *name = q->send.lease.model ? q->send.lease.model : q->fallback.model;
    const char *brace = memchr(body, '{', len);
    struct buf *to = &q->send.model;
    struct gw_edit e = {old->at, old->len, NULL, 0};
    buf_clear(to);
    if (!name || (!old->len && !(q->fallback.model && brace))) return 0;
    if (!old->len) {
        e.at = (size_t)(brace - body) + 1;
        (void)buf_adds(to, "\"model\":");
    }
    (void)(q->scan_form ? buf_adds(to, name) : buf_add_json_str(to, name, strlen(name)));
    if (!old->len) (void)buf_addc(to, ',');
    e.text = to->data;
    e.len = to->len;
    return buf_status(to) < 0 ? -ENOMEM : insert_edit(q, n, e);
}

/* The client's body, borrowed, with the few places that this target wants changed. */
static int make_pieces(struct gw_req *q)
{
    const struct gw_lease *l = &q->send.lease;
    size_t len, n = 0;
    const char *body = http_req_body(q->http, &len);
    int r = 0;
    pieces_free(q);
    if (l->up && l->up->lmcache)
        r = gw_lmcache_edits(&q->scan, l->up->separator, &q->send.edit, &n);
    if (r == 0) r = edit_model(q, body, len, &n);
    if (r == 0)
        q->send.pieces.v = n > 0 ? mem_alloc((2 * n + 1) * sizeof q->send.whole) : &q->send.whole;
    if (r < 0 || !q->send.pieces.v) return -ENOMEM;
    return gw_splice(body, len, q->send.edit, n, &q->send.pieces);
}

/* Twice does no harm: it never left, or asks only, or is a route without memory. */
static bool may_repeat(const struct gw_req *q, bool sent)
{
    const char *m = q->http->msg.method;
    bool asks = strcmp(m, "GET") == 0 || strcmp(m, "HEAD") == 0 || strcmp(m, "OPTIONS") == 0;
    return !sent || asks || (q->route->props & GW_R_REPEAT);
}

static int start_call(struct gw_req *q, struct http_client *client)
{
    struct buf *headers = &q->loop->headers, *path = &q->loop->path;
    buf_clear(headers);
    buf_clear(path);
    int r = make_pieces(q);
    if (r == 0) r = add_headers(q, &q->send.lease, headers);
    if (r == 0) r = add_path(q, path);
    if (r == 0 && (!buf_cstr(headers) || !buf_cstr(path))) r = -ENOMEM;
    if (r == 0)
        r = http_call_start(client,
                            &(struct http_request){.method = q->http->msg.method,
                                                   .target = path->data,
                                                   .headers = buf_cstr(headers),
                                                   .pieces = q->send.pieces.v,
                                                   .n_pieces = (int)q->send.pieces.n,
                                                   .may_repeat = may_repeat(q, true)},
                            &gw_answer_ops, q, &q->send.call);
    if (r < 0) q->send.call = NULL;
    return r;
}

void gw_send_leased(struct gw_req *q)
{
    struct gw_loop *loop = q->loop;
    struct http_client *client =
        gw_fleet_client(loop->server->fleet, q->send.lease.index, loop->index, loop->http_loop);
    gw_answer_reset(q);
    q->stage = GW_CALLING;
    q->send.start_ns = q->send.lease.at_ns;
    count_try(q);
    int r = client ? start_call(q, client) : -EHOSTUNREACH;
    if (r < 0)
        gw_send_failed(q, r, false);
    else
        q->limit.sent = true;
}

void gw_send(struct gw_req *q)
{
    uint32_t wait_ms = 0;
    enum gw_pick p = gw_fleet_pick(q->loop->server->fleet, &q->want, &q->send.lease, &wait_ms);
    if (p == GW_PICK_OK)
        gw_send_leased(q);
    else
        gw_relay_no_target(q, p, wait_ms);
}

/* ---- ends of a try ---- */

void gw_send_done(struct gw_req *q, enum gw_outcome o)
{
    if (!q->send.lease.target) return;
    uint64_t ttfb = q->first_byte_ns ? q->first_byte_ns - q->send.start_ns : 0;
    q->send.lease.status = q->ans.status;
    gw_fleet_release(q->loop->server->fleet, &q->send.lease, o, ttfb);
}

void gw_send_cancel(struct gw_req *q)
{
    if (q->send.call) http_call_cancel(q->send.call);
    q->send.call = NULL;
    gw_send_done(q, GW_DONE_CANCELLED);
}

/* A prompt may have 100 KiB and its stream last for minutes. */
void gw_send_forget(struct gw_req *q)
{
    pieces_free(q);
    http_req_drop_body(q->http);
}

void gw_send_fini(struct gw_req *q)
{
    pieces_free(q);
    buf_fini(&q->send.model);
}

static void mark_tried(struct gw_req *q)
{
    unsigned i = q->send.lease.index;
    q->want.tried[i / 64] |= 1ull << i % 64;
}

static bool tries_left(const struct gw_req *q)
{
    return q->n_retries < gw_config_of(q)->retry_attempts;
}

/* A target that has not been tried. */
static bool lease_other(struct gw_req *q, struct gw_lease *ret)
{
    struct gw_fleet *f = q->loop->server->fleet;
    struct gw_want want = q->want;
    want.untried = true;
    return gw_fleet_pick(f, &want, ret, NULL) == GW_PICK_OK;
}

static void fail_over(struct gw_req *q, const struct gw_lease *to)
{
    q->send.lease = *to;
    q->n_retries++;
    gw_stats_add(GW_M_RETRIES, 1);
    gw_stats_add(GW_M_FAILOVERS, 1);
    gw_send_leased(q);
}

bool gw_send_elsewhere(struct gw_req *q)
{
    struct gw_lease next = {0};
    if (!tries_left(q)) return false;
    mark_tried(q);
    if (!lease_other(q, &next)) return false;
    http_call_cancel(q->send.call);
    q->send.call = NULL;
    gw_send_done(q, gw_answer_outcome(q));
    fail_over(q, &next);
    return true;
}

void gw_send_failed(struct gw_req *q, int status, bool sent)
{
    bool late = (status == -ETIMEDOUT && sent) || status == -ETIME;
    log_event(LOG_WARN, "relay.lost", "request_id=%s target=%s error=%s retries=%u", q->id,
              q->target_name, err_name(status), q->n_retries);
    mark_tried(q);
    q->send.lease.error = status;
    gw_send_done(q, late ? GW_DONE_TIMEOUT : GW_DONE_FAILED);
    bool again = may_repeat(q, sent) && tries_left(q);
    struct gw_lease next = {0};
    if (again && status == -ETIMEDOUT && late && lease_other(q, &next)) {
        fail_over(q, &next); /* the one that is silent is not asked twice */
        return;
    }
    if (again && !late) {
        unsigned before = (unsigned)q->target_index;
        q->n_retries++;
        gw_stats_add(GW_M_RETRIES, 1);
        gw_send(q);
        if (q->send.lease.target && q->send.lease.index != before) gw_stats_add(GW_M_FAILOVERS, 1);
        return;
    }
    if (gw_fallback_failed(q, late ? "no answer in time" : gw_fleet_error_words(status))) {
        gw_answer_kept(q);
        return;
    }
    q->end = late ? GW_END_TIMEOUT : GW_END_UPSTREAM;
    if (late)
        gw_answer_error(q, GW_E_UPSTREAM_TIMEOUT, NULL, "The %s did not answer in time.", q->noun);
    else
        gw_answer_error(q, GW_E_UPSTREAM, NULL, "The %s was lost before it answered: %s.", q->noun,
                        gw_fleet_error_words(status));
}
