/* Design: a connection is a state machine with one driver, conn_step(), which alone calls user code
 * and frees things; it runs from event handlers and deferred calls. The reply functions only queue
 * and write, and ask for a step when something was finished or broke, so that no callback ever
 * comes out of a call of the user and the stack stays flat however many requests are pipelined. */
#include "base/net/http_int.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/mem.h"

#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum {
    PIPELINE_BYTES_MAX = 64 * 1024, /* chosen: read ahead behind a pending request */
    REQUESTS_PER_STEP = 64,         /* chosen: bounded work per wake-up */
    WATCH_MS = 50,                  /* cancel within 100 ms even when the read-ahead is full */
    LINGER_MS = 3000,               /* chosen: time for the client to read a refusal */
    BODY_STEP_BYTES = 64 * 1024,    /* the body timeout starts anew after this much: 1 KiB/s */
    BODY_RESERVE_MAX = 1024 * 1024, /* a claimed length reserves no more than this */
    OUT_KEEP_BYTES = 4096,          /* what an idle connection may hold */
};

enum conn_state { CONN_HEAD, CONN_BODY, CONN_PENDING, CONN_LINGER };
enum conn_timer { TM_NONE, TM_IDLE, TM_HEAD, TM_BODY, TM_WRITE, TM_WATCH, TM_LINGER };

struct http_req {
    struct http_conn *conn;
    struct http_msg msg;
    struct buf body;
    void *user;
    uint64_t start_ns, bytes_out;
    uint64_t sized_left;
    bool started, ended, chunked, sized, no_body, over_mark;
};

struct http_conn {
    struct http_server *server;
    struct http_conn *next, *prev;
    struct event ev_read, ev_write, ev_timer;
    struct http_defer defer;
    int fd;
    enum conn_state state;
    enum conn_timer timer;
    bool read_on, write_on;
    bool dead, eof, stepping, close_after, refused;
    struct buf in, out; /* in: bytes that were read and not yet taken */
    size_t out_pos;
    const char *view; /* the bytes that conn_step() takes from: the loop's scratch or in */
    size_t view_len;
    size_t scan; /* for http_head_end() */
    struct http_req *req, *partial;
    struct http_chunked chunked;
    uint64_t first_byte_ns;
    size_t body_mark;
    char peer[64];
};

static size_t out_len(const struct http_conn *c)
{
    return c->out.len - c->out_pos;
}

/* ---- writing ---- */

/* Send what waits plus the pieces; what the socket does not take is queued. */
static int conn_send(struct http_conn *c, const struct iovec *pieces, int n_pieces)
{
    struct iovec iov[4];
    int n = 0;
    size_t waiting = out_len(c);
    if (waiting) iov[n++] = (struct iovec){c->out.data + c->out_pos, waiting};
    for (int i = 0; i < n_pieces; i++)
        if (pieces[i].iov_len) iov[n++] = pieces[i];
    struct msghdr mh = {.msg_iov = iov, .msg_iovlen = (size_t)n};
    ssize_t sent = 0;
    if (n > 0 && !c->write_on) {
        do
            sent = sendmsg(c->fd, &mh, MSG_NOSIGNAL | MSG_DONTWAIT);
        while (sent < 0 && errno == EINTR);
        if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return -EPIPE;
        if (sent < 0) sent = 0;
    }
    size_t done = (size_t)sent, from_out = done < waiting ? done : waiting;
    c->out_pos += from_out;
    done -= from_out;
    if (c->out_pos == c->out.len || c->out_pos > c->out.len / 2) {
        buf_consume(&c->out, c->out_pos);
        c->out_pos = 0;
    }
    for (int i = 0; i < n_pieces; i++) {
        size_t skip = done < pieces[i].iov_len ? done : pieces[i].iov_len;
        done -= skip;
        int r = buf_add(&c->out, (const char *)pieces[i].iov_base + skip, pieces[i].iov_len - skip);
        if (r < 0) return r;
    }
    if (out_len(c) > 0 && !c->write_on) {
        c->write_on = true;
        (void)event_add(&c->ev_write, NULL);
    }
    return 0;
}

static void set_read(struct http_conn *c, bool on)
{
    if (on == c->read_on) return;
    c->read_on = on;
    if (on)
        (void)event_add(&c->ev_read, NULL);
    else
        (void)event_del(&c->ev_read);
}

static void set_timer(struct http_conn *c, enum conn_timer kind, uint64_t ms)
{
    if (kind == c->timer) return;
    c->timer = kind;
    if (kind == TM_NONE)
        (void)event_del(&c->ev_timer);
    else
        http_timeout_add(&c->ev_timer, ms);
}

static void ask_step(struct http_conn *c)
{
    if (!c->stepping) http_defer(c->server->loop, &c->defer);
}

/* ---- the life of a request ---- */

static void req_free(struct http_req *r)
{
    if (!r) return;
    http_msg_fini(&r->msg);
    buf_fini(&r->body);
    mem_free(r);
}

static void finish_req(struct http_conn *c, bool aborted)
{
    struct http_req *r = c->req;
    struct http_server *s = c->server;
    r->ended = true;
    if (s->ops.on_close) s->ops.on_close(s->ctx, r, aborted);
    c->req = NULL;
    s->n_requests--;
    req_free(r);
}

static int add_status(struct buf *out, int status)
{
    char date[40];
    struct tm tm;
    time_t now = (time_t)clock_wall_s();
    gmtime_r(&now, &tm);
    (void)strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", &tm);
    return buf_addf(out, "HTTP/1.1 %d %s\r\nDate: %s\r\n", status, http_status_text(status), date);
}

/* Answer in the layer's own name and give the connection up. */
static void conn_refuse(struct http_conn *c, int status, const char *why)
{
    struct http_server *s = c->server;
    struct buf body = BUF_INIT, head = BUF_INIT;
    static const struct http_head none;
    bool json = s->ops.on_refuse != NULL;
    int r = add_status(&head, status);
    if (json)
        s->ops.on_refuse(s->ctx, status, why, c->partial ? &c->partial->msg.head : &none, &head,
                         &body);
    else
        (void)buf_addf(&body, "%s\n", why);
    if (r == 0)
        r = buf_addf(&head, "Content-Type: %s\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
                     json ? "application/json" : "text/plain", body.len);
    bool with_body = body.len > 0 && !(c->partial && c->partial->msg.is_head);
    struct iovec iov[2] = {{head.data, head.len}, {body.data, body.len}};
    if (r == 0) r = conn_send(c, iov, with_body ? 2 : 1);
    if (r < 0) c->dead = true;
    buf_fini(&head);
    buf_fini(&body);
    req_free(c->partial);
    c->partial = NULL;
    c->view_len = 0;
    c->refused = c->close_after = true;
    c->state = CONN_LINGER;
}

static void take(struct http_conn *c, size_t n)
{
    c->view += n;
    c->view_len -= n;
}

/* 1 = a head was taken (or refused), 0 = more bytes needed. */
static int step_head(struct http_conn *c)
{
    struct http_server *s = c->server;
    while (c->scan == 0 && c->view_len >= 2 && c->view[0] == '\r' && c->view[1] == '\n')
        take(c, 2); /* RFC 9112 2.2: empty lines before a request */
    if (c->view_len == 0) return 0;
    if (c->first_byte_ns == 0) c->first_byte_ns = clock_ns();
    long n = http_head_end(c->view, c->view_len, &c->scan);
    size_t have = n > 0 ? (size_t)n : c->view_len;
    if (n < 0 || have > s->lim.head_bytes_max) {
        conn_refuse(c, n < 0 ? 400 : 431,
                    n < 0 ? "a line ends without CR" : "the head is too large");
        return 1;
    }
    if (n == 0) return 0;
    struct http_req *r = mem_zalloc(sizeof *r);
    if (!r) {
        c->dead = true;
        return 1;
    }
    const char *why = "bad request";
    int status = http_msg_parse_request(&r->msg, c->view, (size_t)n, &s->lim, &why);
    r->conn = c;
    r->start_ns = c->first_byte_ns;
    c->partial = r;
    c->scan = 0;
    take(c, (size_t)n);
    if (status != 0) {
        conn_refuse(c, status < 0 ? 503 : status, status < 0 ? "out of memory" : why);
        return 1;
    }
    c->state = CONN_BODY;
    c->chunked = (struct http_chunked){0};
    c->body_mark = 0;
    if (r->msg.framing == HTTP_BODY_LENGTH) {
        size_t first = (size_t)r->msg.length;
        (void)buf_reserve(&r->body, first < BODY_RESERVE_MAX ? first : BODY_RESERVE_MAX);
    }
    if (r->msg.expect_100 && r->msg.framing != HTTP_BODY_NONE && c->view_len == 0) {
        struct iovec iov = {(void *)(uintptr_t) "HTTP/1.1 100 Continue\r\n\r\n", 25};
        if (conn_send(c, &iov, 1) < 0) c->dead = true;
    }
    return 1;
}

/* Take body bytes: 1 = complete, 0 = more needed, a status = refuse. */
static int step_body_bytes(struct http_conn *c, struct http_req *r)
{
    size_t max = c->server->lim.body_bytes_max;
    if (r->msg.framing == HTTP_BODY_NONE) return 1;
    if (r->msg.framing == HTTP_BODY_LENGTH) {
        size_t n = (size_t)r->msg.length - r->body.len;
        if (n > c->view_len) n = c->view_len;
        if (buf_add(&r->body, c->view, n) < 0) return 503;
        take(c, n);
        return r->body.len == r->msg.length;
    }
    const char *p = c->view, *end = c->view + c->view_len, *data;
    size_t n;
    int e;
    while ((e = http_chunked_next(&c->chunked, &p, end, &data, &n)) == 1) {
        if (n > max - r->body.len) return 413;
        if (buf_add(&r->body, data, n) < 0) return 503;
    }
    if (c->chunked.left > max - r->body.len && c->chunked.state == HTTP_CHUNK_DATA) return 413;
    take(c, (size_t)(p - c->view));
    return e < 0 ? 400 : e == 2;
}

static int step_body(struct http_conn *c)
{
    struct http_req *r = c->partial;
    int e = step_body_bytes(c, r);
    if (e == 0) return 0;
    if (e == 1 && !buf_cstr(&r->body)) e = 503;
    if (e > 1) {
        conn_refuse(c, e,
                    e == 413   ? "the request body is too large"
                    : e == 503 ? "out of memory"
                               : "malformed chunked body");
        return 1;
    }
    c->partial = NULL;
    c->req = r;
    c->state = CONN_PENDING;
    c->first_byte_ns = 0;
    set_timer(c, TM_NONE, 0); /* whatever comes next is timed anew */
    c->server->n_requests++;
    c->server->ops.on_request(c->server->ctx, r);
    return 1;
}

/* 1 = the request is done and the connection goes on, 0 = wait. */
static int step_pending(struct http_conn *c)
{
    struct http_req *r = c->req;
    struct http_server *s = c->server;
    if (out_len(c) > 0 && !c->write_on && conn_send(c, NULL, 0) < 0) c->dead = true;
    if (c->dead) return 0;
    if (r->over_mark && out_len(c) < s->lim.out_high_bytes / 2) {
        r->over_mark = false;
        if (s->ops.on_drain && !r->ended) {
            s->ops.on_drain(s->ctx, r);
            return 1;
        }
    }
    if (!r->ended || out_len(c) > 0) {
        if (c->eof) c->dead = true;
        return 0;
    }
    bool close_now = c->close_after || s->draining;
    finish_req(c, false);
    c->state = close_now ? CONN_LINGER : CONN_HEAD;
    if (c->eof) c->dead = true;
    return 1;
}

/* The last bytes are on their way. A plain end closes at once; a refusal, or a client that sent
 * more than we read, gets time to read the answer before a reset could wipe it out. */
static void step_linger(struct http_conn *c)
{
    c->view_len = 0;
    if (out_len(c) > 0) return;
    if (!c->refused) {
        c->dead = true;
    } else if (c->close_after) {
        c->close_after = false;
        (void)shutdown(c->fd, SHUT_WR);
    }
}

/* ---- events ---- */

static void conn_update(struct http_conn *c)
{
    const struct http_limits *lim = &c->server->lim;
    bool full = c->state == CONN_PENDING && c->in.len >= PIPELINE_BYTES_MAX;
    set_read(c, !full);
    if (c->write_on && out_len(c) == 0) {
        c->write_on = false;
        (void)event_del(&c->ev_write);
    }
    if (out_len(c) > 0) {
        set_timer(c, TM_WRITE, lim->write_timeout_ms);
    } else if (c->state == CONN_PENDING) {
        set_timer(c, full ? TM_WATCH : TM_NONE, WATCH_MS);
    } else if (c->state == CONN_LINGER) {
        set_timer(c, TM_LINGER, LINGER_MS);
    } else if (c->state == CONN_BODY) {
        if (c->partial->body.len - c->body_mark >= BODY_STEP_BYTES) {
            c->body_mark = c->partial->body.len;
            c->timer = TM_NONE;
        }
        set_timer(c, TM_BODY, lim->body_timeout_ms);
    } else if (c->in.len > 0) {
        set_timer(c, TM_HEAD, lim->head_timeout_ms);
    } else {
        set_timer(c, TM_IDLE, lim->idle_timeout_ms);
    }
    if (c->state == CONN_HEAD && c->in.len == 0) buf_fini(&c->in);
    if (out_len(c) == 0 && c->out.cap > OUT_KEEP_BYTES) buf_fini(&c->out);
}

/* Drive the machine as far as the bytes at view allow; c may be gone afterwards. */
static void conn_step(struct http_conn *c)
{
    bool from_in = c->view == NULL;
    if (from_in) {
        c->view = c->in.data;
        c->view_len = c->in.len;
    }
    c->stepping = true;
    int budget = REQUESTS_PER_STEP;
    for (bool more = true; more && !c->dead;) {
        switch (c->state) {
        case CONN_HEAD:
            more = step_head(c) && --budget > 0;
            break;
        case CONN_BODY:
            more = step_body(c);
            break;
        case CONN_PENDING:
            more = step_pending(c);
            break;
        case CONN_LINGER:
            step_linger(c);
            more = false;
            break;
        }
    }
    if (c->eof && c->state != CONN_PENDING && budget > 0) c->dead = true;
    c->stepping = false;
    if (from_in) {
        buf_consume(&c->in, c->in.len - c->view_len);
    } else if (c->view_len > 0 && !c->dead) {
        if (buf_add(&c->in, c->view, c->view_len) < 0) c->dead = true;
    }
    c->view = NULL;
    c->view_len = 0;
    if (c->dead) {
        http_conn_destroy(c);
        return;
    }
    if (budget == 0) http_defer(c->server->loop, &c->defer);
    conn_update(c);
}

static void on_defer(void *arg)
{
    conn_step(arg);
}

static void on_read(evutil_socket_t fd, short what, void *arg)
{
    struct http_conn *c = arg;
    char *scratch = c->server->loop->scratch;
    ssize_t n;
    do
        n = recv(c->fd, scratch, HTTP_SCRATCH_BYTES, 0);
    while (n < 0 && errno == EINTR);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (n < 0) {
        c->dead = true;
    } else if (n == 0) {
        c->eof = true;
    } else if (c->in.len > 0) {
        if (buf_add(&c->in, scratch, (size_t)n) < 0) c->dead = true;
    } else {
        c->view = scratch;
        c->view_len = (size_t)n;
    }
    conn_step(c);
}

static void on_write(evutil_socket_t fd, short what, void *arg)
{
    struct http_conn *c = arg;
    size_t before = out_len(c);
    c->write_on = false; /* conn_send() writes only while nobody waits for the socket */
    (void)event_del(&c->ev_write);
    if (conn_send(c, NULL, 0) < 0)
        c->dead = true;
    else if (out_len(c) < before && c->timer == TM_WRITE)
        c->timer = TM_NONE; /* progress: anew */
    conn_step(c);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    struct http_conn *c = arg;
    enum conn_timer kind = c->timer;
    c->timer = TM_NONE;
    if (kind == TM_WATCH) {
        struct pollfd p = {.fd = c->fd, .events = POLLRDHUP};
        if (poll(&p, 1, 0) > 0) c->dead = true;
    } else if ((kind == TM_HEAD || kind == TM_BODY) && !c->refused) {
        c->view_len = 0;
        buf_clear(&c->in);
        conn_refuse(c, 408, "the request did not arrive in time");
    } else if (kind != TM_NONE) {
        c->dead = true;
    }
    conn_step(c);
}

int http_conn_create(struct http_server *s, int fd, const struct http_addr *peer)
{
    struct http_conn *c = mem_zalloc(sizeof *c);
    if (!c) {
        (void)close(fd);
        return -ENOMEM;
    }
    c->server = s;
    c->fd = fd;
    c->defer.fn = on_defer;
    c->defer.arg = c;
    http_addr_format(peer, c->peer, sizeof c->peer);
    event_assign(&c->ev_read, s->loop->base, fd, EV_READ | EV_PERSIST, on_read, c);
    event_assign(&c->ev_write, s->loop->base, fd, EV_WRITE | EV_PERSIST, on_write, c);
    event_assign(&c->ev_timer, s->loop->base, -1, 0, on_timer, c);
    c->next = s->conns;
    if (s->conns) s->conns->prev = c;
    s->conns = c;
    s->n_conns++;
    conn_update(c);
    return 0;
}

struct http_conn *http_conn_next(struct http_conn *c)
{
    return c->next;
}

void http_conn_drain(struct http_conn *c)
{
    bool idle = c->state == CONN_HEAD && c->in.len == 0 && c->view_len == 0 && out_len(c) == 0;
    if (!idle || c->stepping) return;
    c->dead = true;
    ask_step(c);
}

void http_conn_destroy(struct http_conn *c)
{
    struct http_server *s = c->server;
    c->dead = c->stepping = true; /* no reply, no further step */
    http_defer_cancel(s->loop, &c->defer);
    (void)event_del(&c->ev_read);
    (void)event_del(&c->ev_write);
    (void)event_del(&c->ev_timer);
    if (c->req) finish_req(c, true);
    if (c->prev)
        c->prev->next = c->next;
    else
        s->conns = c->next;
    if (c->next) c->next->prev = c->prev;
    s->n_conns--;
    (void)close(c->fd);
    req_free(c->partial);
    buf_fini(&c->in);
    buf_fini(&c->out);
    mem_free(c);
    http_server_conn_gone(s);
}

/* ---- what a handler reads ---- */

const char *http_req_method(const struct http_req *r)
{
    return r->msg.method;
}

const char *http_req_path(const struct http_req *r)
{
    return r->msg.path;
}

const char *http_req_query(const struct http_req *r)
{
    return r->msg.query;
}

const char *http_req_target(const struct http_req *r)
{
    return r->msg.target;
}

const struct http_head *http_req_head(const struct http_req *r)
{
    return &r->msg.head;
}

const char *http_req_body(const struct http_req *r, size_t *ret_len)
{
    if (ret_len) *ret_len = r->body.len;
    return r->body.data ? r->body.data : "";
}

const char *http_req_peer(const struct http_req *r)
{
    return r->conn->peer;
}

void http_req_set_user(struct http_req *r, void *user)
{
    r->user = user;
}

void *http_req_user(const struct http_req *r)
{
    return r->user;
}

uint64_t http_req_start_ns(const struct http_req *r)
{
    return r->start_ns;
}

uint64_t http_req_bytes_out(const struct http_req *r)
{
    return r->bytes_out;
}

/* ---- replies ---- */

static int reply_head(struct http_req *r, struct buf *out, int status, const char *content_type,
                      const char *extra_headers)
{
    struct http_conn *c = r->conn;
    if (c->dead || r->started) return -EPIPE;
    if (!r->msg.keep_alive || c->server->draining) c->close_after = true;
    int e = add_status(out, status);
    if (e == 0 && extra_headers) e = buf_adds(out, extra_headers);
    if (e == 0 && content_type) e = buf_addf(out, "Content-Type: %s\r\n", content_type);
    if (e == 0 && c->close_after) e = buf_adds(out, "Connection: close\r\n");
    if (e == 0 && !c->close_after && r->msg.minor == 0)
        e = buf_adds(out, "Connection: keep-alive\r\n");
    return e;
}

static int broke(struct http_conn *c)
{
    c->dead = true;
    ask_step(c);
    return -EPIPE;
}

int http_reply(struct http_req *r, int status, const char *content_type, const char *extra_headers,
               const void *body, size_t len)
{
    struct http_conn *c = r->conn;
    struct buf head = BUF_INIT;
    int e = reply_head(r, &head, status, content_type, extra_headers);
    if (e == -EPIPE) return e;
    bool bare = status == 204 || status == 304;
    if (e == 0)
        e = bare ? buf_adds(&head, "\r\n") : buf_addf(&head, "Content-Length: %zu\r\n\r\n", len);
    bool with_body = len > 0 && !bare && !r->msg.is_head;
    struct iovec iov[2] = {{head.data, head.len}, {(void *)(uintptr_t)body, len}};
    if (e == 0) e = conn_send(c, iov, with_body ? 2 : 1);
    r->bytes_out += head.len + (with_body ? len : 0);
    buf_fini(&head);
    if (e < 0) return broke(c);
    r->started = r->ended = true;
    ask_step(c);
    return 0;
}

/* The head waits for the first body bytes or the end of this turn, to leave in one segment. */
static int start_reply(struct http_req *r, int status, const char *content_type,
                       const char *extra_headers, const char *framing)
{
    struct http_conn *c = r->conn;
    size_t before = c->out.len;
    int e = reply_head(r, &c->out, status, content_type, extra_headers);
    if (e == 0) e = buf_adds(&c->out, framing);
    if (e < 0) return broke(c);
    r->bytes_out += c->out.len - before;
    r->started = true;
    ask_step(c);
    return 0;
}

int http_reply_start(struct http_req *r, int status, const char *content_type,
                     const char *extra_headers)
{
    if (r->conn->dead || r->started) return -EPIPE;
    bool bare = status == 204 || status == 304;
    r->no_body = r->msg.is_head || bare;
    r->chunked = r->msg.minor >= 1 && !bare;
    if (r->msg.minor == 0) r->msg.keep_alive = false; /* the end of the connection ends the body */
    return start_reply(r, status, content_type, extra_headers,
                       r->chunked ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n");
}

int http_reply_start_sized(struct http_req *r, int status, const char *content_type,
                           const char *extra_headers, uint64_t length)
{
    if (r->conn->dead || r->started) return -EPIPE;
    char framing[64];
    bool bare = status == 204 || status == 304;
    r->no_body = r->msg.is_head || bare;
    r->sized = !r->no_body;
    r->sized_left = length;
    (void)snprintf(framing, sizeof framing, bare ? "\r\n" : "Content-Length: %llu\r\n\r\n",
                   (unsigned long long)length);
    return start_reply(r, status, content_type, extra_headers, framing);
}

int http_reply_write(struct http_req *r, const void *data, size_t len)
{
    struct http_conn *c = r->conn;
    if (c->dead || !r->started || r->ended) return -EPIPE;
    if (len == 0 || r->no_body) return 0;
    if (r->sized && len > r->sized_left) return -EMSGSIZE;
    r->sized_left -= r->sized ? len : 0;
    char size[24];
    int n = snprintf(size, sizeof size, "%zx\r\n", len);
    struct iovec iov[3] = {
        {size, (size_t)n}, {(void *)(uintptr_t)data, len}, {(void *)(uintptr_t) "\r\n", 2}};
    int e = r->chunked ? conn_send(c, iov, 3) : conn_send(c, iov + 1, 1);
    r->bytes_out += len + (r->chunked ? (size_t)n + 2 : 0);
    if (e < 0) return broke(c);
    if (out_len(c) > 0) ask_step(c); /* for the write timeout */
    if (out_len(c) > c->server->lim.out_high_bytes) r->over_mark = true;
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
    if (conn_send(c, &iov, last ? 1 : 0) < 0) return broke(c);
    ask_step(c);
    return 0;
}

void http_reply_abort(struct http_req *r)
{
    if (!r->conn->dead) (void)broke(r->conn);
}

size_t http_reply_pending(const struct http_req *r)
{
    return out_len(r->conn);
}
