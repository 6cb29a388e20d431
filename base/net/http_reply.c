/* What a handler reads of its request, and the replies. They only queue and write, and ask for a
 * step of the machine in http_conn.c when something was finished or broke. */
#include "base/net/http_server_int.h"

#include <stdio.h>
#include <string.h>

static int add_line(struct buf *out, const char *name, size_t n, const char *value, size_t v)
{
    int r = buf_reserve(out, n + v + 4);
    if (r < 0) return r;
    char *p = out->data + out->len;
    memcpy(p, name, n);
    memcpy(p + n, ": ", 2);
    memcpy(p + n + 2, value, v);
    memcpy(p + n + 2 + v, "\r\n", 2);
    out->len += n + v + 4;
    return 0;
}

int http_header_add(struct buf *out, const char *name, const char *value)
{
    if (value[strcspn(value, "\r\n")]) return -EINVAL;
    return add_line(out, name, strlen(name), value, strlen(value));
}

int http_header_copy(struct buf *out, const struct http_header *h)
{
    return add_line(out, h->name, h->name_len, h->value, h->value_len);
}

const char *http_req_body(const struct http_req *r, size_t *ret_len)
{
    if (ret_len) *ret_len = r->body.len;
    return r->body.data ? r->body.data : "";
}

void http_req_drop_body(struct http_req *r)
{
    http_bounds_give(r->conn->server->lim.bounds, r->body_charged);
    r->body_charged = 0;
    buf_fini(&r->body);
}

int http_req_charge(struct http_req *r, size_t beside_bytes)
{
    struct http_bounds *b = r->conn->server->lim.bounds;
    const size_t before = r->beside_charged;
    if (beside_bytes > before && !http_bounds_take(b, beside_bytes - before)) return -ENOSPC;
    if (beside_bytes < before) http_bounds_give(b, before - beside_bytes);
    r->beside_charged = beside_bytes;
    return 0;
}

int http_req_replace_body(struct http_req *r, struct buf *body)
{
    if (!http_bounds_take(r->conn->server->lim.bounds, body->len)) return -ENOSPC;
    http_req_drop_body(r);
    r->body = *body;
    r->body_charged = body->len;
    *body = (struct buf)BUF_INIT;
    return 0;
}

/* ---- replies ---- */

static int reply_head(struct http_req *r, struct buf *out, int status, const char *content_type,
                      const char *extra_headers)
{
    struct http_conn *c = r->conn;
    if (c->dead || r->started) return -EPIPE;
    if (c->crowded) c->close_after = true;
    bool unread = c->state == CONN_BODY && r->msg.framing != HTTP_BODY_NONE;
    if (!r->msg.keep_alive || c->server->draining || unread) c->close_after = true;
    c->refused |= unread;
    size_t len;
    const char *line = http_loop_status_line(c->server->loop, status, &len);
    int e = buf_reserve(out, 512); /* chosen: nearly every head */
    if (e == 0) e = buf_add(out, line, len);
    if (e == 0 && extra_headers) e = buf_adds(out, extra_headers);
    if (e == 0 && content_type) e = http_header_add(out, "Content-Type", content_type);
    if (e == 0 && c->close_after) e = buf_adds(out, "Connection: close\r\n");
    if (e == 0 && !c->close_after && r->msg.minor == 0)
        e = buf_adds(out, "Connection: keep-alive\r\n");
    return e;
}

static int broke(struct http_conn *c)
{
    c->dead = true;
    http_conn_ask_step(c);
    return -EPIPE;
}

int http_reply(struct http_req *r, int status, const char *content_type, const char *extra_headers,
               const void *body, size_t len)
{
    struct http_conn *c = r->conn;
    struct buf *head = &c->server->loop->head;
    buf_clear(head);
    int e = reply_head(r, head, status, content_type, extra_headers);
    if (e == -EPIPE) return e;
    bool bare = status == 204 || status == 304;
    if (e == 0 && !bare) e = buf_adds(head, "Content-Length: ");
    if (e == 0 && !bare) e = buf_addu(head, len);
    if (e == 0) e = buf_adds(head, bare ? "\r\n" : "\r\n\r\n");
    bool with_body = len > 0 && !bare && !r->msg.is_head;
    struct iovec iov[2] = {{head->data, head->len}, {(void *)(uintptr_t)body, len}};
    if (e == 0) e = http_conn_send(c, iov, with_body ? 2 : 1);
    r->bytes_out += head->len + (with_body ? len : 0);
    if (e < 0) return broke(c);
    r->started = r->ended = true;
    http_conn_ask_step(c);
    return 0;
}

/* The head waits for the first body bytes or the end of this turn, to leave in one segment. */
int http_reply_start(struct http_req *r, int status, const char *content_type,
                     const char *extra_headers, int64_t length)
{
    struct http_conn *c = r->conn;
    if (c->dead || r->started) return -EPIPE;
    size_t before = c->out.len;
    bool bare = status == 204 || status == 304, counted = length >= 0;
    r->no_body = r->msg.is_head || bare;
    r->chunked = !counted && r->msg.minor >= 1 && !bare;
    r->sized = counted && !r->no_body;
    r->sized_left = r->sized ? (uint64_t)length : 0;
    /* Neither counted nor chunked: the end of the connection ends the body. */
    if (!counted && r->msg.minor == 0) r->msg.keep_alive = false;
    int e = reply_head(r, &c->out, status, content_type, extra_headers);
    if (e == 0 && r->chunked) e = buf_adds(&c->out, "Transfer-Encoding: chunked\r\n");
    if (e == 0 && counted && !bare)
        e = buf_addf(&c->out, "Content-Length: %llu\r\n", (unsigned long long)length);
    if (e == 0) e = buf_adds(&c->out, "\r\n");
    if (e < 0) return broke(c);
    r->bytes_out += c->out.len - before;
    r->started = true;
    http_conn_ask_step(c);
    return 0;
}

enum { CHUNK_SIZE_BYTES = 18 };

/* "LENGTH\r\n" at the end of text; where it starts. */
static char *chunk_size(char text[CHUNK_SIZE_BYTES], size_t len, size_t *ret_len)
{
    char *p = text + CHUNK_SIZE_BYTES;
    *--p = '\n';
    *--p = '\r';
    for (; len > 0; len >>= 4)
        *--p = "0123456789abcdef"[len & 15];
    *ret_len = (size_t)(text + CHUNK_SIZE_BYTES - p);
    return p;
}

int http_reply_write(struct http_req *r, const void *data, size_t len)
{
    struct http_conn *c = r->conn;
    if (c->dead || !r->started || r->ended) return -EPIPE;
    if (len == 0 || r->no_body) return 0;
    if (r->sized && len > r->sized_left) return -EMSGSIZE;
    r->sized_left -= r->sized ? len : 0;
    char size[CHUNK_SIZE_BYTES];
    size_t n;
    char *from = chunk_size(size, len, &n);
    struct iovec iov[3] = {
        {from, n}, {(void *)(uintptr_t)data, len}, {(void *)(uintptr_t) "\r\n", 2}};
    int e = r->chunked ? http_conn_send(c, iov, 3) : http_conn_send(c, iov + 1, 1);
    r->bytes_out += len + (r->chunked ? n + 2 : 0);
    if (e < 0) return broke(c);
    if (http_conn_unsent(c) > 0) http_conn_ask_step(c); /* for the write timeout */
    if (http_conn_unsent(c) > c->server->lim.out_high_bytes) r->over_mark = true;
    return r->over_mark;
}

int http_reply_end(struct http_req *r)
{
    struct http_conn *c = r->conn;
    if (c->dead || !r->started || r->ended) return -EPIPE;
    if (r->sized && r->sized_left > 0) return broke(c);
    struct iovec iov = {(void *)(uintptr_t) "0\r\n\r\n", 5};
    bool last = r->chunked && !r->no_body;
    r->bytes_out += last ? 5 : 0;
    r->ended = true;
    if (http_conn_send(c, &iov, last ? 1 : 0) < 0) return broke(c);
    http_conn_ask_step(c);
    return 0;
}

void http_reply_abort(struct http_req *r)
{
    if (!r->conn->dead) (void)broke(r->conn);
}

size_t http_reply_pending(const struct http_req *r)
{
    return http_conn_unsent(r->conn);
}
