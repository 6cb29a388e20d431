/* Design: a connection is a state machine with one driver, conn_step(), which alone calls user code
 * and frees things; it runs from event handlers and deferred calls. The reply functions only queue
 * and write, and ask for a step when something was finished or broke, so that no callback ever
 * comes out of a call of the user and the stack stays flat however many requests are pipelined. */
#include "base/net/http_server_int.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/mem.h"

#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    PIPELINE_BYTES_MAX = 64 * 1024, /* chosen: read ahead behind a pending request */
    REQUESTS_PER_STEP = 64,         /* chosen: bounded work per wake-up */
    WATCH_MS = 50,                  /* cancel within 100 ms even when the read-ahead is full */
    LINGER_MS = 3000,               /* chosen: time for the client to read a refusal */
    BODY_RESERVE_MAX = 1024 * 1024, /* a claimed length reserves no more than this */
    BODY_DIRECT_BYTES = 16 * 1024,  /* chosen: from here on a copy costs more than an empty turn */
    HEAD_READ_BYTES = 20 * 1024,    /* a head and a body below the line above come in one read */
    OUT_KEEP_BYTES = 4096,          /* what an idle connection may hold */
    LOOKS_MAX = 16,                 /* chosen: bounded work for one that comes */
};

/* ---- writing ---- */

int http_conn_send(struct http_conn *c, const struct iovec *pieces, int n_pieces)
{
    struct iovec iov[4];
    int n = 0;
    size_t waiting = c->out.len - c->out_pos;
    if (waiting) iov[n++] = (struct iovec){c->out.data + c->out_pos, waiting};
    for (int i = 0; i < n_pieces; i++)
        if (pieces[i].iov_len) iov[n++] = pieces[i];
    ssize_t sent = 0;
    if ((n > 0 || http_io_pending(&c->io)) && !c->write.on) {
        sent = http_io_send(&c->io, iov, n);
        if (sent < 0 && sent != -EAGAIN) return -EPIPE;
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
    if (http_conn_unsent(c) > 0) http_watch_set(&c->write, true);
    return 0;
}

static void set_timer(struct http_conn *c, enum http_conn_timer kind, uint64_t ms)
{
    if (kind == c->timer) return;
    c->timer = kind;
    if (kind == TM_NONE)
        http_timer_clear(&c->clock);
    else
        http_timer_set(&c->clock, ms);
}

void http_conn_ask_step(struct http_conn *c)
{
    if (!c->stepping) http_defer(c->server->loop, &c->defer);
}

/* ---- the life of a request ---- */

static void free_request(struct http_loop *l, struct http_req *r)
{
    if (!r) return;
    http_msg_fini(&r->msg);
    http_req_drop_body(r);
    (void)http_req_charge(r, 0);
    mem_stock_give(&l->reqs, r);
}

static void leave_idle(struct http_conn *c)
{
    if (!c->idle) return;
    c->idle = false;
    http_link_remove(&c->among_all);
    if (c->peer) http_link_remove(&c->among_peers);
}

static void enter_idle(struct http_conn *c)
{
    if (c->idle) return;
    c->idle = true;
    http_link_add(&c->server->idle, &c->among_all);
    if (c->peer) http_link_add(&c->peer->idle[c->server->place], &c->among_peers);
}

/* The handler learns of it, and of its end. */
static void see_req(struct http_conn *c)
{
    c->req->seen = true;
    c->server->n_requests++;
}

static void finish_req(struct http_conn *c, bool aborted)
{
    struct http_req *r = c->req;
    struct http_server *s = c->server;
    r->ended = true;
    if (r->seen && s->ops.on_close) s->ops.on_close(s->ctx, r, aborted);
    c->req = NULL;
    s->n_requests -= r->seen;
    free_request(s->loop, r);
}

static struct http_req *new_request(struct http_conn *c)
{
    struct http_req *r = mem_stock_take(&c->server->loop->reqs);
    if (!r) return NULL;
    memset(r, 0, sizeof *r);
    r->conn = c;
    r->peer = c->peer_name;
    r->crowded = c->crowded;
    return r;
}

/* Answer in the layer's own name and give the connection up. */
static void conn_refuse(struct http_conn *c, int status, const char *why)
{
    struct http_server *s = c->server;
    struct buf body = BUF_INIT, headers = BUF_INIT;
    struct http_req *r = c->req ? c->req : new_request(c);
    bool json = s->ops.on_refuse != NULL;
    c->close_after = true;
    if (r && json)
        s->ops.on_refuse(s->ctx, status, why, &r->msg.head, &headers, &body);
    else
        (void)buf_addf(&body, "%s\n", why);
    if (!r || http_reply(r, status, json ? "application/json" : "text/plain", buf_cstr(&headers),
                         body.data, body.len) < 0)
        c->dead = true;
    buf_fini(&headers);
    buf_fini(&body);
    free_request(s->loop, r);
    c->req = NULL;
    c->view_len = 0;
    c->refused = true;
    c->state = CONN_LINGER;
}

/* No more of this request is taken. The handler answers if it has seen it. */
static void conn_fault(struct http_conn *c, int status, const char *why)
{
    struct http_req *r = c->req;
    if (!r || !r->seen) {
        conn_refuse(c, status, why);
        return;
    }
    c->view_len = 0;
    if (!r->ended) c->server->ops.on_fault(c->server->ctx, r, status, why);
    if (!r->ended) c->dead = true;
}

static void take_input(struct http_conn *c, size_t n)
{
    c->view += n;
    c->view_len -= n;
}

static const char no_room[] = "request bodies take all the memory that is set aside for them";

/* What a length claims holds no memory yet, but what cannot have any need not come. */
static void begin_body(struct http_conn *c)
{
    struct http_req *r = c->req;
    if (r->msg.framing == HTTP_BODY_LENGTH) {
        size_t first = (size_t)r->msg.length;
        if (!http_bounds_has_room(c->server->lim.bounds, first)) {
            conn_fault(c, 503, no_room);
            return;
        }
        (void)buf_reserve(&r->body, first < BODY_RESERVE_MAX ? first : BODY_RESERVE_MAX);
    }
    if (r->msg.expect_100 && r->msg.framing != HTTP_BODY_NONE && c->view_len == 0) {
        struct iovec iov = {(void *)(uintptr_t) "HTTP/1.1 100 Continue\r\n\r\n", 25};
        if (http_conn_send(c, &iov, 1) < 0) c->dead = true;
    }
}

/* 1 = a head was taken (or refused), 0 = more bytes needed. */
static int step_head(struct http_conn *c)
{
    struct http_server *s = c->server;
    while (c->scan.at == 0 && c->view_len >= 2 && c->view[0] == '\r' && c->view[1] == '\n')
        take_input(c, 2); /* RFC 9112 2.2: empty lines before a request */
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
    struct http_req *r = new_request(c);
    if (!r) {
        c->dead = true;
        return 1;
    }
    const char *why = "bad request";
    int status =
        http_msg_parse_request(&r->msg, c->view, (size_t)n, c->scan.n_lines, &s->lim, &why);
    r->start_ns = c->first_byte_ns;
    c->req = r;
    leave_idle(c);
    c->scan = (struct http_scan){0};
    take_input(c, (size_t)n);
    if (status != 0) {
        conn_refuse(c, status < 0 ? 503 : status, status < 0 ? "out of memory" : why);
        return 1;
    }
    c->state = CONN_BODY;
    http_body_begin(&c->body, &r->msg);
    c->body_mark = 0;
    if (s->ops.on_head) {
        see_req(c);
        s->ops.on_head(s->ctx, r);
    }
    if (!r->ended && !c->dead) begin_body(c);
    return 1;
}

/* Is there room for n more bytes of the body below the limit? */
static bool body_fits(const struct http_conn *c, uint64_t n)
{
    size_t max = c->server->lim.body_bytes_max, len = c->req->body.len;
    return len <= max && n <= max - len;
}

/* Take body bytes: 1 = complete, 0 = more needed, a status = refuse. */
static int step_body_bytes(struct http_conn *c, struct http_req *r)
{
    const char *p = c->view, *end = c->view + c->view_len, *data;
    size_t n;
    int e;
    while ((e = http_body_next(&c->body, &p, end, &data, &n)) == 1) {
        if (!body_fits(c, n)) return 413;
        if (buf_add(&r->body, data, n) < 0) return 503;
    }
    if (c->body.state == HTTP_CHUNK_DATA && !body_fits(c, c->body.left)) return 413;
    take_input(c, (size_t)(p - c->view));
    return e < 0 ? 400 : e == 2;
}

/* What has come is charged to the bounds: 0, or a status. */
static int charge_body(struct http_conn *c, struct http_req *r)
{
    size_t more = r->body.len - r->body_charged;
    if (!http_bounds_take(c->server->lim.bounds, more)) return 503;
    r->body_charged += more;
    return 0;
}

static int step_body(struct http_conn *c)
{
    struct http_req *r = c->req;
    int e = r->ended ? 1 : step_body_bytes(c, r), full = 0;
    if (e == 0 || e == 1) full = charge_body(c, r);
    if (full) e = full;
    if (e == 0) return 0;
    if (e == 1 && !buf_cstr(&r->body)) e = 503;
    if (e > 1)
        conn_fault(c, e,
                   e == 413   ? "the request body is too large"
                   : full     ? no_room
                   : e == 503 ? "out of memory"
                              : "malformed chunked body");
    if (!c->req) return 1;
    c->state = CONN_PENDING;
    c->first_byte_ns = 0;
    r->bytes_in = r->body.len;
    set_timer(c, TM_NONE, 0); /* whatever comes next is timed anew */
    if (r->ended || c->dead) return 1;
    if (!r->seen) see_req(c);
    c->server->ops.on_request(c->server->ctx, r);
    return 1;
}

/* 1 = the request is done and the connection goes on, 0 = wait. */
static int step_pending(struct http_conn *c)
{
    struct http_req *r = c->req;
    struct http_server *s = c->server;
    if (http_conn_unsent(c) > 0 && !c->write.on && http_conn_send(c, NULL, 0) < 0) c->dead = true;
    if (c->dead) return 0;
    if (r->over_mark && http_conn_unsent(c) < s->lim.out_high_bytes / 2) {
        r->over_mark = false;
        if (s->ops.on_drain && !r->ended) {
            s->ops.on_drain(s->ctx, r);
            return 1;
        }
    }
    if (!r->ended || http_conn_unsent(c) > 0) {
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
    if (http_conn_unsent(c) > 0) return;
    if (c->io.tls) http_tls_say_goodbye(&c->io);
    if (!c->refused) {
        c->dead = true;
    } else if (c->close_after) {
        c->close_after = false;
        (void)shutdown(c->io.fd, SHUT_WR);
    }
}

/* ---- events ---- */

/* After this much of a body its timeout starts anew. */
static uint64_t body_step_bytes(const struct http_limits *lim)
{
    return (uint64_t)lim->body_rate_min * lim->body_timeout_ms / 1000 + 1;
}

static void conn_update(struct http_conn *c)
{
    const struct http_limits *lim = &c->server->lim;
    bool full = c->state == CONN_PENDING && c->in.len >= PIPELINE_BYTES_MAX;
    http_watch_set(&c->read, !full);
    if (!c->req) enter_idle(c);
    if (http_conn_unsent(c) == 0) http_watch_set(&c->write, false);
    if (http_conn_unsent(c) > 0) {
        set_timer(c, TM_WRITE, lim->write_timeout_ms);
    } else if (c->state == CONN_PENDING) {
        set_timer(c, full ? TM_WATCH : TM_NONE, WATCH_MS);
    } else if (c->state == CONN_LINGER) {
        set_timer(c, TM_LINGER, LINGER_MS);
    } else if (c->state == CONN_BODY) {
        if (c->req->body.len - c->body_mark >= body_step_bytes(lim)) {
            c->body_mark = c->req->body.len;
            c->timer = TM_NONE;
        }
        set_timer(c, TM_BODY, lim->body_timeout_ms);
    } else if (c->in.len > 0 || !http_io_ready(&c->io)) {
        set_timer(c, TM_HEAD, lim->head_timeout_ms);
    } else {
        set_timer(c, TM_IDLE, lim->idle_timeout_ms);
    }
    if (c->state == CONN_HEAD && c->in.len == 0) buf_fini(&c->in);
    if (http_conn_unsent(c) == 0 && c->out.cap > OUT_KEEP_BYTES) buf_fini(&c->out);
}

/* Drive the machine as far as the bytes at view allow. False: c is gone. */
static bool conn_step(struct http_conn *c)
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
        return false;
    }
    if (budget == 0) http_defer(c->server->loop, &c->defer);
    conn_update(c);
    return true;
}

static void on_defer(void *arg)
{
    (void)conn_step(arg);
}

static bool wants_long_body(const struct http_conn *c)
{
    const struct http_req *r = c->req;
    return c->state == CONN_BODY && !r->ended && r->msg.framing == HTTP_BODY_LENGTH &&
           c->in.len == 0 && !c->io.tls && c->body.left >= BODY_DIRECT_BYTES;
}

/* A body that is still long is received where it will stay. */
static bool recv_body(struct http_conn *c, ssize_t *ret_n)
{
    struct http_req *r = c->req;
    if (!wants_long_body(c)) return false;
    size_t left = c->body.left < BODY_RESERVE_MAX ? (size_t)c->body.left : BODY_RESERVE_MAX;
    if (buf_reserve(&r->body, left) < 0) return false;
    *ret_n = http_io_recv(&c->io, r->body.data + r->body.len, left);
    if (*ret_n > 0) {
        r->body.len += (size_t)*ret_n;
        http_body_took(&c->body, (size_t)*ret_n);
    }
    return true;
}

/* What a failed or fruitless reception means. */
static bool recv_failed(struct http_conn *c, ssize_t e)
{
    if (e == -EPROTONOSUPPORT) {
        http_tls_conn_free(c->io.tls);
        c->io.tls = NULL;
        conn_refuse(c, 400, "this port speaks HTTPS, and the request was plain HTTP");
    } else {
        c->dead = true;
    }
    return conn_step(c);
}

/* False: c is gone. */
static bool receive(struct http_conn *c)
{
    char *scratch = c->server->loop->scratch;
    ssize_t n;
    bool direct = recv_body(c, &n);
    if (!direct)
        n = http_io_recv(&c->io, scratch, c->io.tls ? HTTP_SCRATCH_BYTES : HEAD_READ_BYTES);
    if (c->io.tls) {
        if (http_io_pending(&c->io) && http_conn_send(c, NULL, 0) < 0) c->dead = true;
        if (http_io_closed(&c->io)) c->eof = true;
        if (n == -EAGAIN && (c->dead || c->eof)) n = 0;
        if (n == -EAGAIN && c->io.tls->ready) conn_update(c);
    }
    if (n == -EAGAIN) return true;
    if (n < 0) return recv_failed(c, n);
    if (n == 0) {
        c->eof = true;
    } else if (direct) {
        /* in its place */
    } else if (c->in.len > 0) {
        if (buf_add(&c->in, scratch, (size_t)n) < 0) c->dead = true;
    } else {
        c->view = scratch;
        c->view_len = (size_t)n;
    }
    return conn_step(c);
}

static void on_read(evutil_socket_t fd, short what, void *arg)
{
    struct http_conn *c = arg;
    struct http_loop *l = c->server->loop;
    http_handler_begin(l);
    bool new_head = c->state == CONN_HEAD;
    /* Behind a head that came with the beginning of a long body the rest waits, as a rule. */
    if (receive(c) && new_head && wants_long_body(c)) (void)receive(c);
    http_handler_end(l);
}

static void on_write(evutil_socket_t fd, short what, void *arg)
{
    struct http_conn *c = arg;
    struct http_loop *l = c->server->loop;
    http_handler_begin(l);
    size_t before = http_conn_unsent(c);
    http_watch_set(&c->write, false); /* http_conn_send() writes only while it is off */
    if (http_conn_send(c, NULL, 0) < 0)
        c->dead = true;
    else if (http_conn_unsent(c) < before && c->timer == TM_WRITE)
        c->timer = TM_NONE; /* progress: anew */
    (void)conn_step(c);
    http_handler_end(l);
}

static void on_timeout(void *arg)
{
    struct http_conn *c = arg;
    enum http_conn_timer kind = c->timer;
    c->timer = TM_NONE;
    if (kind == TM_WATCH) {
        struct pollfd p = {.fd = c->io.fd, .events = POLLRDHUP};
        if (poll(&p, 1, 0) > 0) c->dead = true;
    } else if ((kind == TM_HEAD || kind == TM_BODY) && !c->refused && http_io_ready(&c->io)) {
        c->view_len = 0;
        buf_clear(&c->in);
        conn_fault(c, 408, "the request did not arrive in time");
    } else if (kind != TM_NONE) {
        c->dead = true;
    }
    (void)conn_step(c);
}

/* Has the client begun to ask, with bytes that were not looked at yet? */
static bool has_more(const struct http_conn *c)
{
    char byte;
    return c->state == CONN_HEAD && recv(c->io.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

struct http_conn *http_conn_oldest(const struct http_link *list, size_t link_at)
{
    struct http_link *l = list->next;
    for (int i = 0; l != list && i < LOOKS_MAX; i++, l = l->next) {
        struct http_conn *c = (struct http_conn *)((char *)l - link_at);
        if (!has_more(c)) return c;
    }
    return NULL;
}

void http_conn_evict(struct http_conn *c)
{
    http_bounds_evicted(c->server->lim.bounds);
    http_conn_destroy(c);
}

/* An idle one of its own address goes first. */
static bool is_crowded(struct http_conn *c)
{
    struct http_server *s = c->server;
    struct http_conn *goes = NULL;
    if (http_bounds_crowded(s->lim.bounds, c->peer))
        goes = http_conn_oldest(&c->peer->idle[s->place], offsetof(struct http_conn, among_peers));
    if (goes) http_conn_evict(goes);
    if (!s->ops.on_head) return false;
    return s->n_conns >= s->lim.conns_max || http_bounds_crowded(s->lim.bounds, c->peer);
}

int http_conn_create(struct http_server *s, int fd, const struct http_addr *peer,
                     struct http_tls *tls)
{
    struct http_conn *c = mem_zalloc(sizeof *c);
    if (!c) {
        (void)close(fd);
        return -ENOMEM;
    }
    c->server = s;
    c->io.fd = fd;
    int r = http_bounds_enter(s->lim.bounds, peer, &c->peer);
    if (r == 0 && tls) r = http_tls_begin(tls, s->loop, &c->io, NULL, NULL);
    if (r < 0) {
        http_bounds_leave(s->lim.bounds, c->peer);
        (void)close(fd);
        mem_free(c);
        return r;
    }
    c->defer.fn = on_defer;
    c->defer.arg = c;
    c->crowded = is_crowded(c);
    http_addr_format(peer, c->peer_name, sizeof c->peer_name);
    event_assign(&c->read.ev, s->loop->base, fd, EV_READ | EV_PERSIST, on_read, c);
    event_assign(&c->write.ev, s->loop->base, fd, EV_WRITE | EV_PERSIST, on_write, c);
    http_timer_init(&c->clock, s->loop, on_timeout, c);
    http_link_add_first(&s->conns, &c->among_conns);
    s->n_conns++;
    conn_update(c);
    return 0;
}

void http_conn_drain(struct http_conn *c)
{
    bool idle =
        c->state == CONN_HEAD && c->in.len == 0 && c->view_len == 0 && http_conn_unsent(c) == 0;
    if (!idle || c->stepping || has_more(c)) return;
    c->dead = true;
    http_conn_ask_step(c);
}

void http_conn_destroy(struct http_conn *c)
{
    struct http_server *s = c->server;
    c->dead = c->stepping = true; /* no reply, no further step */
    http_defer_cancel(s->loop, &c->defer);
    http_watch_set(&c->read, false);
    http_watch_set(&c->write, false);
    http_timer_fini(&c->clock);
    leave_idle(c);
    if (c->req) finish_req(c, true);
    http_link_remove(&c->among_conns);
    s->n_conns--;
    http_io_close(&c->io);
    buf_fini(&c->in);
    buf_fini(&c->out);
    http_bounds_leave(s->lim.bounds, c->peer);
    mem_free(c);
    http_server_conn_gone(s);
}
