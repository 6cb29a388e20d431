/* Design: a call waits in the client's queue until a connection is free or may be opened; then the
 * connection (http_exchange.c) owns the traffic. Everything that the user hears comes from event
 * handlers or from the client's deferred call, never from inside http_call_start(). */
#include "base/net/http_client_int.h"

#include "base/assert.h"
#include "base/mem.h"

#include <string.h>

static struct http_call *first_call(const struct http_link *list)
{
    return http_link_empty(list) ? NULL : HTTP_LINK_OWNER(list->next, struct http_call, queued);
}

static struct client_conn *first_conn(const struct http_link *list)
{
    return http_link_empty(list) ? NULL : HTTP_LINK_OWNER(list->next, struct client_conn, among);
}

static void call_free(struct http_call *call)
{
    http_timer_fini(&call->total);
    buf_fini(&call->out);
    mem_free(call->why);
    mem_free(call);
}

void http_call_end(struct http_call *call, int status)
{
    call->client->n_calls--;
    http_timer_fini(&call->total);
    call->conn = NULL;
    if (call->ops.on_end) call->ops.on_end(call->ctx, status); /* may destroy the client */
    call_free(call);
}

const char *http_call_why(const struct http_call *call)
{
    return call->why ? call->why : "";
}

/* Put waiting calls on connections as far as the limit allows. */
static void dispatch(struct http_client *c)
{
    for (struct http_call *call; (call = first_call(&c->waiting));) {
        struct client_conn *idle;
        while ((idle = first_conn(&c->idle)) && !http_exchange_silent(idle))
            http_exchange_free(idle);
        struct client_conn *cc = call->retried ? NULL : idle;
        int r = 0;
        if (!cc && c->n_conns >= c->conns_max) {
            if (!idle) return;
            http_exchange_free(idle); /* a retry at the limit: room for a fresh connection */
        }
        if (!cc) r = http_exchange_open(c, &cc);
        http_link_remove(&call->queued);
        if (r < 0) {
            call->error = r;
            http_link_add(&c->failed, &call->queued);
            http_defer(c->loop, &c->defer);
        } else {
            http_exchange_begin(cc, call);
        }
    }
}

static void on_client_defer(void *arg)
{
    struct http_client *c = arg;
    dispatch(c);
    struct http_call *call = first_call(&c->failed);
    if (!call) return;
    http_link_remove(&call->queued);
    if (!http_link_empty(&c->failed)) http_defer(c->loop, &c->defer);
    http_call_end(call, call->error); /* may destroy the client */
}

/* ---- the interface ---- */

static const char *default_host(const struct http_client_opts *o)
{
    return strncmp(o->address, "unix:", 5) == 0 ? "localhost" : o->address;
}

/* "HOST:PORT" without its port and brackets. */
static char *name_of(const char *host)
{
    const char *colon = strrchr(host, ':');
    size_t len = strlen(host);
    if (*host == '[') {
        const char *end = strchr(host, ']');
        return mem_strndup(host + 1, end ? (size_t)(end - host) - 1 : len - 1);
    }
    if (colon && strchr(host, ':') == colon) len = (size_t)(colon - host);
    return mem_strndup(host, len);
}

/* One address, or several separated by commas. */
static int add_addresses(struct http_client *c, const char *list)
{
    bool is_unix = strncmp(list, "unix:", 5) == 0;
    int r = is_unix ? http_addr_resolve(list, false, c->addrs, &c->n_addrs, NULL) : 0;
    while (!is_unix && r == 0 && *list && c->n_addrs < HTTP_ADDRS_MAX) {
        struct http_addr some[HTTP_ADDRS_MAX];
        size_t len = strcspn(list, ","), n = 0;
        char *one = mem_strndup(list, len);
        r = one ? http_addr_resolve(one, false, some, &n, NULL) : -ENOMEM;
        mem_free(one);
        for (size_t i = 0; i < n && c->n_addrs < HTTP_ADDRS_MAX; i++)
            c->addrs[c->n_addrs++] = some[i];
        list += len + (list[len] == ',');
    }
    return r == 0 && c->n_addrs == 0 ? -EINVAL : r;
}

size_t http_client_n_calls(const struct http_client *c)
{
    return c->n_calls;
}

int http_client_create(struct http_loop *l, const struct http_client_opts *o,
                       struct http_client **ret)
{
    struct http_client *c = mem_zalloc(sizeof *c);
    if (!c) return -ENOMEM;
    c->loop = l;
    http_link_init(&c->conns);
    http_link_init(&c->idle);
    http_link_init(&c->waiting);
    http_link_init(&c->failed);
    c->conns_max = o->conns_max ?: 256;
    c->connect_ms = o->connect_timeout_ms ?: 2000;
    c->first_byte_ms = o->first_byte_timeout_ms ?: 600000;
    c->idle_ms = o->idle_timeout_ms ?: 180000;
    c->keepalive_ms = o->keepalive_ms ?: 4000;
    c->total_ms = o->total_timeout_ms;
    c->defer.fn = on_client_defer;
    c->defer.arg = c;
    c->tls = o->tls ? http_tls_ref(o->tls) : NULL;
    c->host = mem_strdup(o->host ? o->host : default_host(o));
    c->name = c->host ? name_of(c->host) : NULL;
    int r = c->name ? add_addresses(c, o->address) : -ENOMEM;
    if (r < 0) {
        http_client_destroy(c);
        return r;
    }
    *ret = c;
    return 0;
}

void http_client_destroy(struct http_client *c)
{
    if (!c) return;
    ASSERT(c->n_calls == 0);
    while (!http_link_empty(&c->conns))
        http_exchange_free(first_conn(&c->conns));
    while (!http_link_empty(&c->idle))
        http_exchange_free(first_conn(&c->idle));
    http_defer_cancel(c->loop, &c->defer);
    http_tls_slot_fini(&c->slot);
    http_tls_unref(c->tls);
    mem_free(c->host);
    mem_free(c->name);
    mem_free(c);
}

/* Off its connection, or out of the queue. */
static void detach(struct http_call *call)
{
    if (call->conn)
        http_exchange_free(call->conn);
    else
        http_link_remove(&call->queued);
}

static void on_total(void *arg)
{
    struct http_call *call = arg;
    detach(call);
    http_call_end(call, -ETIME);
}

static int write_head(struct http_call *call, const struct http_request *q)
{
    const char *method = q->method;
    bool with_length =
        call->body_len > 0 || strcmp(method, "POST") == 0 || strcmp(method, "PUT") == 0;
    struct buf *out = &call->out;
    size_t len = q->headers ? strlen(q->headers) : 0;
    int r = buf_reserve(out, len + strlen(q->target) + 128);
    if (r == 0) r = buf_adds(out, method);
    if (r == 0) r = buf_addc(out, ' ');
    if (r == 0) r = buf_adds(out, q->target);
    if (r == 0) r = buf_adds(out, " HTTP/1.1\r\n");
    if (r == 0) r = http_header_add(out, "Host", call->client->host);
    if (r == 0) r = buf_add(out, q->headers, len);
    if (r == 0 && with_length) {
        r = buf_adds(out, "Content-Length: ");
        if (r == 0) r = buf_addu(out, call->body_len);
        if (r == 0) r = buf_adds(out, "\r\n");
    }
    return r == 0 ? buf_adds(out, "\r\n") : r;
}

static void call_submit(struct http_call *call)
{
    struct http_client *c = call->client;
    c->n_calls++;
    if (c->total_ms) {
        http_timer_init(&call->total, c->loop, on_total, call);
        http_timer_set(&call->total, c->total_ms);
    }
    http_link_add(&c->waiting, &call->queued);
    dispatch(c);
}

int http_call_start(struct http_client *c, const struct http_request *q,
                    const struct http_call_ops *ops, void *ctx, struct http_call **ret)
{
    struct http_call *call = mem_zalloc(sizeof *call + (size_t)q->n_pieces * sizeof(struct iovec));
    if (!call) return -ENOMEM;
    call->client = c;
    call->ops = *ops;
    call->ctx = ctx;
    call->n_pieces = q->n_pieces;
    call->body_len = q->len;
    for (int i = 0; i < q->n_pieces; i++) {
        call->pieces[i] = q->pieces[i];
        call->body_len += q->pieces[i].iov_len;
    }
    call->to_head = strcmp(q->method, "HEAD") == 0;
    call->repeatable = q->may_repeat || call->to_head || strcmp(q->method, "GET") == 0 ||
                       strcmp(q->method, "OPTIONS") == 0;
    int r = write_head(call, q);
    if (r == 0) r = buf_add(&call->out, q->body, q->len);
    if (r < 0) {
        call_free(call);
        return r;
    }
    call_submit(call);
    *ret = call;
    return 0;
}

bool http_call_sent_all(const struct http_call *call)
{
    const struct client_conn *cc = call->conn;
    return cc && cc->have_head && cc->piece_i > call->n_pieces;
}

bool http_call_sent(const struct http_call *call)
{
    return call->sent;
}

void http_call_cancel(struct http_call *call)
{
    struct http_client *c = call->client;
    struct client_conn *cc = call->conn;
    bool busy = cc && cc->busy; /* then it counts until its connection is gone */
    if (busy) {
        cc->call = NULL;
        cc->dead = true;
    } else {
        detach(call);
    }
    c->n_calls -= !busy;
    call_free(call);
}
