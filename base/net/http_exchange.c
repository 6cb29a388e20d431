/* Design: a connection owns the traffic of one call at a time, the call only its callbacks. A
 * connection that is being parsed is only marked dead by http_call_cancel() and freed by the parser
 * itself. TLS sits below, in struct http_io: here it is one more phase after connecting. */
#include "base/net/http_client_int.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>

enum {
    RESPONSE_HEAD_BYTES_MAX = 64 * 1024, /* chosen: twice what the server side takes */
    INFORMED_MAX = 16,                   /* chosen: 1xx answers before the real one */
    PIECES_PER_WRITE = 16,               /* chosen: head, body, an edit or two in one call */
    PEER_GONE_MS = 20000, /* cited: gRPC's (proposal A18); a first byte may take minutes, its
                           * acknowledgement not */
};

static void on_socket(evutil_socket_t fd, short what, void *arg);
static void on_timeout(void *arg);
static void on_resume(void *arg);

/* ---- connections ---- */

static void close_socket(struct client_conn *cc)
{
    if (cc->io.fd < 0) return;
    http_watch_set(&cc->read, false);
    http_watch_set(&cc->write, false);
    http_io_close(&cc->io);
}

void http_exchange_free(struct client_conn *cc)
{
    struct http_client *c = cc->client;
    http_defer_cancel(c->loop, &cc->defer);
    close_socket(cc);
    http_timer_fini(&cc->clock);
    http_link_remove(&cc->among);
    c->n_conns--;
    http_msg_fini(&cc->msg);
    buf_fini(&cc->in);
    mem_free(cc);
    if (!http_link_empty(&c->waiting)) http_defer(c->loop, &c->defer); /* a place is free */
}

static uint64_t left_ms(const struct client_conn *cc)
{
    uint64_t now = clock_ns();
    return now < cc->open_by_ns ? (cc->open_by_ns - now) / 1000000 + 1 : 1;
}

static int start_connect(struct client_conn *cc, const struct http_addr *a)
{
    struct http_client *c = cc->client;
    int fd = socket(a->ss.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -errno;
    if (a->ss.ss_family != AF_UNIX) http_io_tune(fd, PEER_GONE_MS);
    if (connect(fd, (const struct sockaddr *)&a->ss, a->len) < 0 && errno != EINPROGRESS) {
        int r = errno == ENOENT || errno == EAGAIN ? -ECONNREFUSED : -errno;
        (void)close(fd);
        return r;
    }
    cc->io.fd = fd;
    cc->phase = CC_CONNECTING;
    event_assign(&cc->read.ev, c->loop->base, fd, EV_READ | EV_PERSIST, on_socket, cc);
    event_assign(&cc->write.ev, c->loop->base, fd, EV_WRITE | EV_PERSIST, on_socket, cc);
    http_watch_set(&cc->write, true);
    return 0;
}

/* Start connecting to the next address; 0, or `last` when none is left. The one that worked last
 * comes first, and each gets its share of the time: one that swallows packets does not use it up.
 */
static int conn_connect(struct client_conn *cc, int last)
{
    struct http_client *c = cc->client;
    while (cc->n_tried < c->n_addrs) {
        size_t n_left = c->n_addrs - cc->n_tried;
        cc->addr_i = (c->addr_good + cc->n_tried++) % c->n_addrs;
        last = start_connect(cc, &c->addrs[cc->addr_i]);
        if (last < 0) continue;
        http_timer_set(&cc->clock, left_ms(cc) / n_left + 1);
        return 0;
    }
    return last;
}

int http_exchange_open(struct http_client *c, struct client_conn **ret)
{
    struct client_conn *cc = mem_zalloc(sizeof *cc);
    if (!cc) return -ENOMEM;
    cc->client = c;
    cc->io.fd = -1;
    cc->defer.fn = on_resume;
    cc->defer.arg = cc;
    http_timer_init(&cc->clock, c->loop, on_timeout, cc);
    http_link_add(&c->conns, &cc->among);
    c->n_conns++;
    cc->open_by_ns = clock_ns() + c->connect_ms * 1000000ull;
    int r = conn_connect(cc, -ECONNREFUSED);
    if (r < 0) {
        http_exchange_free(cc);
        return r;
    }
    *ret = cc;
    return 0;
}

/* The unwritten part of the request as iovecs; how many. */
static int conn_unwritten(const struct client_conn *cc, struct iovec *iov, int max)
{
    struct http_call *call = cc->call;
    int n = 0;
    for (int i = cc->piece_i; i <= call->n_pieces && n < max; i++) {
        iov[n] = i ? call->pieces[i - 1] : (struct iovec){call->out.data, call->out.len};
        if (i == cc->piece_i) {
            iov[n].iov_base = (char *)iov[n].iov_base + cc->piece_pos;
            iov[n].iov_len -= cc->piece_pos;
        }
        n += iov[n].iov_len > 0;
    }
    return n;
}

static void conn_wrote(struct client_conn *cc, size_t n)
{
    struct http_call *call = cc->call;
    call->sent |= n > 0;
    for (; cc->piece_i <= call->n_pieces; cc->piece_i++, cc->piece_pos = 0) {
        size_t len = cc->piece_i ? call->pieces[cc->piece_i - 1].iov_len : call->out.len;
        size_t step = len - cc->piece_pos < n ? len - cc->piece_pos : n;
        cc->piece_pos += step;
        n -= step;
        if (cc->piece_pos < len) return;
    }
}

/* Write what is left of the request; 0 or a negative errno. */
static int conn_write(struct client_conn *cc)
{
    struct iovec iov[PIECES_PER_WRITE];
    int k;
    ssize_t n = 0;
    while (n >= 0 && (k = conn_unwritten(cc, iov, PIECES_PER_WRITE)) > 0) {
        n = http_io_send(&cc->io, iov, k);
        if (n > 0) conn_wrote(cc, (size_t)n);
    }
    if (n >= 0 && http_io_pending(&cc->io)) n = http_io_send(&cc->io, iov, 0);
    if (n < 0 && n != -EAGAIN) return (int)n;
    http_watch_set(&cc->write, n < 0 || http_io_pending(&cc->io) > 0);
    return 0;
}

bool http_exchange_silent(const struct client_conn *cc)
{
    char byte;
    ssize_t n = recv(cc->io.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

void http_exchange_begin(struct client_conn *cc, struct http_call *call)
{
    if (cc->idle) {
        cc->idle = false;
        cc->reused = true;
        http_link_remove(&cc->among);
        http_link_add(&cc->client->conns, &cc->among);
    }
    cc->call = call;
    call->conn = cc;
    call->sent = false;
    cc->piece_i = 0;
    cc->piece_pos = 0;
    cc->have_head = cc->got_bytes = cc->eof = false;
    cc->scan = (struct http_scan){0};
    cc->n_informed = 0;
    if (cc->phase != CC_OPEN) return;
    http_timer_set(&cc->clock, cc->client->first_byte_ms);
    http_watch_set(&cc->read, true); /* even when paused: nothing has come yet */
    if (conn_write(cc) < 0) {
        /* The peer closed it. What it may have answered is read first, then its end. */
        http_watch_set(&cc->write, false);
    }
}

static void set_why(struct http_call *call, const char *why)
{
    mem_free(call->why);
    call->why = why ? mem_strdup(why) : NULL;
}

static void explain_connect(struct http_call *call, int status)
{
    char text[200];
    (void)snprintf(text, sizeof text, "no connection to %.100s: %s", call->client->name,
                   strerror(-status));
    set_why(call, text);
}

/* The connection is useless: retry its call, or end it with `status`. */
static void conn_fail(struct client_conn *cc, int status)
{
    struct http_client *c = cc->client;
    struct http_call *call = cc->call;
    bool harmless = call && (call->repeatable || !call->sent);
    bool retry = harmless && cc->reused && !cc->got_bytes && !call->retried && status != -ETIMEDOUT;
    if (call && cc->phase == CC_CONNECTING) explain_connect(call, status);
    if (call && !retry && cc->io.tls) set_why(call, cc->io.tls->why);
    http_exchange_free(cc);
    if (!call) return;
    call->conn = NULL;
    if (retry) {
        call->retried = true;
        http_link_add_first(&c->waiting, &call->queued);
        http_defer(c->loop, &c->defer);
        return;
    }
    http_call_end(call, status);
}

/* The response is complete. */
static void conn_done(struct client_conn *cc)
{
    struct http_client *c = cc->client;
    struct http_call *call = cc->call;
    bool wrote_all = cc->piece_i > call->n_pieces;
    bool keep = cc->msg.keep_alive && cc->in.len == 0 && !cc->eof && wrote_all;
    cc->call = NULL;
    call->conn = NULL;
    http_msg_fini(&cc->msg);
    http_defer_cancel(c->loop, &cc->defer);
    if (keep) {
        cc->have_head = false;
        cc->idle = true;
        http_link_remove(&cc->among);
        http_link_add_first(&c->idle, &cc->among);
        http_watch_set(&cc->read, true);
        http_timer_set(&cc->clock, c->keepalive_ms);
        if (!http_link_empty(&c->waiting)) http_defer(c->loop, &c->defer);
    } else {
        http_exchange_free(cc);
    }
    http_call_end(call, 0);
}

/* ---- parsing: every function returns 1 to go on, 0 to wait, 2 when complete, <0 to fail ---- */

static int parse_head(struct client_conn *cc, const char **p, const char *end)
{
    struct http_call *call = cc->call;
    size_t len = (size_t)(end - *p);
    long n = http_head_end(*p, len, &cc->scan);
    if (n < 0 || (n > 0 ? (size_t)n : len) > RESPONSE_HEAD_BYTES_MAX) return -EBADMSG;
    if (n == 0) return 0;
    http_msg_fini(&cc->msg);
    int r = http_msg_parse_response(&cc->msg, *p, (size_t)n, cc->scan.n_lines, call->to_head);
    if (r < 0) return r;
    *p += n;
    cc->scan = (struct http_scan){0};
    if (cc->msg.status < 200)
        return cc->msg.status == 101 || ++cc->n_informed > INFORMED_MAX ? -EBADMSG : 1;
    cc->have_head = true;
    http_body_begin(&cc->body, &cc->msg);
    if (call->ops.on_head) call->ops.on_head(call->ctx, cc->msg.status, &cc->msg.head);
    http_msg_drop_text(&cc->msg); /* a stream may last for minutes */
    return 1;
}

/* All data that is there as one piece: later chunks move up over the framing between. What comes
 * together leaves together, so that a handler that falls behind catches up. */
static int parse_body(struct client_conn *cc, const char **p, const char *end)
{
    struct http_call *call = cc->call;
    const char *first = NULL, *data;
    size_t n, total = 0;
    int r;
    while ((r = http_body_next(&cc->body, p, end, &data, &n)) == 1) {
        if (total == 0)
            first = data;
        else
            memmove((char *)(uintptr_t)first + total, data, n); /* our own buffer */
        total += n;
    }
    if (total == 0) return r;
    if (call->ops.on_body) call->ops.on_body(call->ctx, first, total);
    return r < 0 ? r : 1; /* the end is told while the call is not paused */
}

/* Take what is there; cc may be gone afterwards. */
static void conn_parse(struct client_conn *cc, const char *data, size_t len)
{
    const char *p = data, *end = data + len;
    bool own = cc->in.len > 0;
    if (own) {
        if (len > 0 && buf_add(&cc->in, data, len) < 0) {
            conn_fail(cc, -ENOMEM);
            return;
        }
        p = cc->in.data;
        end = p + cc->in.len;
    }
    int r = 1;
    cc->busy = true;
    while (r == 1 && !cc->dead && !cc->call->paused)
        r = cc->have_head ? parse_body(cc, &p, end) : p < end ? parse_head(cc, &p, end) : 0;
    cc->busy = false;
    if (cc->dead) { /* cancelled by one of the callbacks */
        cc->client->n_calls--;
        http_exchange_free(cc);
        return;
    }
    size_t left = (size_t)(end - p);
    if (own)
        buf_consume(&cc->in, cc->in.len - left);
    else if (left > 0 && buf_add(&cc->in, p, left) < 0)
        r = -ENOMEM;
    if (cc->in.len == 0) buf_fini(&cc->in);
    if (r < 0)
        conn_fail(cc, r);
    else if (r == 2)
        conn_done(cc);
    else if (cc->eof && !cc->call->paused) {
        bool complete = cc->have_head && cc->msg.framing == HTTP_BODY_UNTIL_CLOSE;
        if (complete)
            conn_done(cc);
        else
            conn_fail(cc, -EPIPE);
    } else if (cc->call->paused) {
        http_watch_set(&cc->read, false);
        http_timer_clear(&cc->clock);
    } else if (cc->have_head) { /* until then the first byte's time runs: a head may not drip */
        http_timer_set(&cc->clock, cc->client->idle_ms);
    }
}

static void on_resume(void *arg)
{
    struct client_conn *cc = arg;
    conn_parse(cc, NULL, 0);
}

/* ---- events ---- */

/* The way is open: bytes of the request may leave. */
static void conn_opened(struct client_conn *cc)
{
    cc->phase = CC_OPEN;
    http_watch_set(&cc->write, false);
    http_exchange_begin(cc, cc->call); /* a cancelled call would have taken the connection along */
}

static void next_address(struct client_conn *cc, int error)
{
    close_socket(cc);
    int r = conn_connect(cc, error);
    if (r < 0) conn_fail(cc, r);
}

static void conn_connected(struct client_conn *cc)
{
    struct http_client *c = cc->client;
    int e = 0;
    socklen_t len = sizeof e;
    if (getsockopt(cc->io.fd, SOL_SOCKET, SO_ERROR, &e, &len) < 0) e = errno;
    if (e != 0) {
        next_address(cc, -e);
        return;
    }
    c->addr_good = cc->addr_i;
    if (!c->tls) {
        conn_opened(cc);
        return;
    }
    cc->phase = CC_HANDSHAKE;
    http_timer_set(&cc->clock, left_ms(cc));
    int r = http_tls_begin(c->tls, c->loop, &cc->io, c->name, &c->slot);
    if (r < 0) {
        conn_fail(cc, r);
        return;
    }
    http_watch_set(&cc->read, true);
    http_watch_set(&cc->write, http_io_pending(&cc->io) > 0);
}

static void on_handshake(struct client_conn *cc)
{
    ssize_t n = http_io_recv(&cc->io, cc->client->loop->scratch, HTTP_SCRATCH_BYTES);
    if (n != -EAGAIN)
        conn_fail(cc, n < 0 ? (int)n : n == 0 ? -EPIPE : -EBADMSG); /* nothing was asked yet */
    else if (cc->io.tls->ready)
        conn_opened(cc);
    else
        http_watch_set(&cc->write, http_io_pending(&cc->io) > 0);
}

static void on_readable(struct client_conn *cc)
{
    char *scratch = cc->client->loop->scratch;
    ssize_t n = http_io_recv(&cc->io, scratch, HTTP_SCRATCH_BYTES);
    if (http_io_pending(&cc->io)) http_watch_set(&cc->write, true);
    if (n == -EAGAIN && !http_io_closed(&cc->io)) return;
    if (!cc->call) { /* an idle connection has nothing to say */
        http_exchange_free(cc);
        return;
    }
    if (n < 0 && n != -EAGAIN) {
        conn_fail(cc, n == -EPROTO ? -EPROTO : -EPIPE);
        return;
    }
    if (n > 0) cc->got_bytes = true;
    if (n <= 0 || http_io_closed(&cc->io)) {
        cc->eof = true;
        http_watch_set(&cc->read, false);
    }
    conn_parse(cc, scratch, n > 0 ? (size_t)n : 0);
}

static void on_socket(evutil_socket_t fd, short what, void *arg)
{
    struct client_conn *cc = arg;
    struct http_loop *l = cc->client->loop; /* cc may be gone afterwards */
    http_handler_begin(l);
    if (cc->phase == CC_CONNECTING) {
        conn_connected(cc);
    } else if (cc->phase == CC_HANDSHAKE && (what & EV_READ)) {
        on_handshake(cc);
    } else if (what & EV_READ) {
        on_readable(cc);
    } else if (!cc->call || cc->phase == CC_HANDSHAKE) {
        ssize_t n = http_io_send(&cc->io, NULL, 0); /* what TLS itself has to say */
        if (n != -EAGAIN) http_watch_set(&cc->write, false);
    } else if (conn_write(cc) < 0) {
        http_watch_set(&cc->write, false); /* the read side tells why */
    }
    http_handler_end(l);
}

static void on_timeout(void *arg)
{
    struct client_conn *cc = arg;
    if (cc->phase == CC_CONNECTING)
        next_address(cc, -ETIMEDOUT);
    else
        conn_fail(cc, -ETIMEDOUT);
}

void http_call_pause(struct http_call *call, bool pause)
{
    struct client_conn *cc = call->conn;
    bool same = call->paused == pause;
    call->paused = pause;
    if (same || !cc || cc->phase != CC_OPEN || cc->busy) return;
    if (pause) {
        http_watch_set(&cc->read, false);
        http_timer_clear(&cc->clock);
    } else {
        http_watch_set(&cc->read, !cc->eof);
        http_timer_set(&cc->clock, cc->have_head ? cc->client->idle_ms : cc->client->first_byte_ms);
        if (cc->got_bytes) http_defer(cc->client->loop, &cc->defer); /* what was left, or the end */
    }
}
