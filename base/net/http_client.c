/* Design: a call waits in the client's queue until a connection is free or may be opened; then the
 * connection owns the traffic and the call only the callbacks. Everything that the user hears comes
 * from event handlers or from the client's deferred call, never from inside http_call_start(). A
 * connection that is being parsed is only marked dead by http_call_cancel() and freed by the parser
 * itself. */
#include "base/net/http_int.h"

#include "base/assert.h"
#include "base/mem.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    RESPONSE_HEAD_BYTES_MAX = 64 * 1024, /* chosen: twice what the server side takes */
    PIECES_PER_WRITE = 16,               /* chosen: head, body, an edit or two in one call */
};

struct client_conn;
struct http_call {
    struct http_client *client;
    struct http_call *next, *prev; /* in client->waiting or client->failed */
    struct client_conn *conn;
    struct http_call_ops ops;
    void *ctx;
    struct event ev_total;
    struct buf out; /* the head, and the body when it was copied */
    bool to_head, paused, retried;
    bool sent; /* on its latest connection */
    int error; /* in client->failed: what to report */
    uint64_t body_len;
    int n_pieces;
    struct iovec pieces[]; /* the body when it is borrowed */
};

struct client_conn {
    struct http_client *client;
    struct client_conn *next, *prev; /* in client->conns */
    struct http_call *call;          /* NULL = idle */
    struct event ev_read, ev_write, ev_timer;
    struct http_defer defer; /* parse what was left when the call was paused */
    int fd;
    size_t addr_i;
    int piece_i; /* what is written next: 0 = the call's head, i = pieces[i - 1] … */
    size_t piece_pos;
    bool connecting, write_on, read_on, reused, busy, dead, have_head, got_bytes, eof;
    struct buf in;
    size_t scan;
    struct http_msg msg;
    struct http_chunked chunked;
    uint64_t body_left;
};

struct call_list {
    struct http_call *head, *tail;
};
struct http_client {
    struct http_loop *loop;
    struct http_addr addrs[HTTP_ADDRS_MAX];
    size_t n_addrs;
    char *host;
    unsigned conns_max, connect_ms, first_byte_ms, idle_ms, keepalive_ms, total_ms;
    struct client_conn *conns;
    size_t n_conns, n_calls;
    struct call_list waiting, failed;
    struct http_defer defer;
};

/* ---- lists ---- */

static void list_push(struct call_list *l, struct http_call *c, bool front)
{
    c->next = front ? l->head : NULL;
    c->prev = front ? NULL : l->tail;
    if (c->next)
        c->next->prev = c;
    else
        l->tail = c;
    if (c->prev)
        c->prev->next = c;
    else
        l->head = c;
}

static void list_remove(struct call_list *l, struct http_call *c)
{
    if (c->prev)
        c->prev->next = c->next;
    else
        l->head = c->next;
    if (c->next)
        c->next->prev = c->prev;
    else
        l->tail = c->prev;
    c->next = c->prev = NULL;
}

/* ---- connections ---- */

static void set_read(struct client_conn *cc, bool on)
{
    if (on == cc->read_on) return;
    cc->read_on = on;
    if (on)
        (void)event_add(&cc->ev_read, NULL);
    else
        (void)event_del(&cc->ev_read);
}

static void set_write(struct client_conn *cc, bool on)
{
    if (on == cc->write_on) return;
    cc->write_on = on;
    if (on)
        (void)event_add(&cc->ev_write, NULL);
    else
        (void)event_del(&cc->ev_write);
}

static void conn_free(struct client_conn *cc)
{
    struct http_client *c = cc->client;
    http_defer_cancel(c->loop, &cc->defer);
    if (cc->fd >= 0) {
        (void)event_del(&cc->ev_read);
        (void)event_del(&cc->ev_write);
        (void)close(cc->fd);
    }
    (void)event_del(&cc->ev_timer);
    if (cc->prev)
        cc->prev->next = cc->next;
    else
        c->conns = cc->next;
    if (cc->next) cc->next->prev = cc->prev;
    c->n_conns--;
    http_msg_fini(&cc->msg);
    buf_fini(&cc->in);
    mem_free(cc);
    if (c->waiting.head) http_defer(c->loop, &c->defer); /* a place is free */
}

static void call_free(struct http_call *call)
{
    (void)event_del(&call->ev_total);
    buf_fini(&call->out);
    mem_free(call);
}

static void call_end(struct http_call *call, int status)
{
    call->client->n_calls--;
    (void)event_del(&call->ev_total);
    call->conn = NULL;
    if (call->ops.on_end) call->ops.on_end(call->ctx, status); /* may destroy the client */
    call_free(call);
}

static void on_event(evutil_socket_t fd, short what, void *arg);
static void on_timeout(evutil_socket_t fd, short what, void *arg);
static void on_resume(void *arg);

/* Start connecting to the next address; 0, or the last error when none is left. */
static int conn_connect(struct client_conn *cc)
{
    struct http_client *c = cc->client;
    int r = -ECONNREFUSED;
    for (; cc->addr_i < c->n_addrs; cc->addr_i++) {
        const struct http_addr *a = &c->addrs[cc->addr_i];
        int fd = socket(a->ss.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd < 0) return -errno;
        int one = 1;
        if (a->ss.ss_family != AF_UNIX)
            (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (connect(fd, (const struct sockaddr *)&a->ss, a->len) == 0 || errno == EINPROGRESS) {
            cc->fd = fd;
            cc->connecting = true;
            event_assign(&cc->ev_read, c->loop->base, fd, EV_READ | EV_PERSIST, on_event, cc);
            event_assign(&cc->ev_write, c->loop->base, fd, EV_WRITE | EV_PERSIST, on_event, cc);
            set_write(cc, true);
            http_timeout_add(&cc->ev_timer, c->connect_ms);
            return 0;
        }
        r = errno == ENOENT || errno == EAGAIN ? -ECONNREFUSED : -errno;
        (void)close(fd);
    }
    return r;
}

static int conn_open(struct http_client *c, struct client_conn **ret)
{
    struct client_conn *cc = mem_zalloc(sizeof *cc);
    if (!cc) return -ENOMEM;
    cc->client = c;
    cc->fd = -1;
    cc->defer.fn = on_resume;
    cc->defer.arg = cc;
    event_assign(&cc->ev_timer, c->loop->base, -1, 0, on_timeout, cc);
    cc->next = c->conns;
    if (c->conns) c->conns->prev = cc;
    c->conns = cc;
    c->n_conns++;
    int r = conn_connect(cc);
    if (r < 0) {
        conn_free(cc);
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

/* Write what is left of the request; 0 or -EPIPE. */
static int conn_write(struct client_conn *cc)
{
    struct iovec iov[PIECES_PER_WRITE];
    int k;
    while ((k = conn_unwritten(cc, iov, PIECES_PER_WRITE)) > 0) {
        struct msghdr mh = {.msg_iov = iov, .msg_iovlen = (size_t)k};
        ssize_t n = sendmsg(cc->fd, &mh, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            set_write(cc, true);
            return 0;
        }
        if (n < 0) return -EPIPE;
        conn_wrote(cc, (size_t)n);
    }
    set_write(cc, false);
    return 0;
}

static bool conn_wrote_all(const struct client_conn *cc)
{
    return cc->piece_i > cc->call->n_pieces;
}

/* Begin the call's exchange on a connection; errors are found by the read side. */
static void conn_begin(struct client_conn *cc, struct http_call *call)
{
    cc->call = call;
    call->conn = cc;
    call->sent = false;
    cc->piece_i = 0;
    cc->piece_pos = 0;
    cc->have_head = cc->got_bytes = cc->eof = false;
    cc->scan = 0;
    if (cc->connecting) return;
    http_timeout_add(&cc->ev_timer, cc->client->first_byte_ms);
    set_read(cc, true); /* even when paused: nothing has come yet */
    if (conn_write(cc) < 0) {
        /* The peer closed it. What it may have answered is read first, then its end. */
        set_write(cc, false);
    }
}

static struct client_conn *find_idle(struct http_client *c)
{
    for (struct client_conn *cc = c->conns; cc; cc = cc->next)
        if (!cc->call && !cc->busy && !cc->dead && !cc->connecting) return cc;
    return NULL;
}

/* Put waiting calls on connections as far as the limit allows. */
static void dispatch(struct http_client *c)
{
    while (c->waiting.head) {
        struct http_call *call = c->waiting.head;
        struct client_conn *cc = call->retried ? NULL : find_idle(c);
        int r = 0;
        if (cc)
            cc->reused = true;
        else if (c->n_conns >= c->conns_max) {
            cc = find_idle(c); /* a retry at the limit: make room for a fresh connection */
            if (!cc) return;
            conn_free(cc);
            cc = NULL;
        }
        if (!cc) r = conn_open(c, &cc);
        list_remove(&c->waiting, call);
        if (r < 0) {
            call->error = r;
            list_push(&c->failed, call, false);
            http_defer(c->loop, &c->defer);
        } else {
            conn_begin(cc, call);
        }
    }
}

static void on_client_defer(void *arg)
{
    struct http_client *c = arg;
    dispatch(c);
    struct http_call *call = c->failed.head;
    if (!call) return;
    list_remove(&c->failed, call);
    if (c->failed.head) http_defer(c->loop, &c->defer);
    call_end(call, call->error); /* may destroy the client */
}

/* The connection is useless: retry its call, or end it with `status`. */
static void conn_fail(struct client_conn *cc, int status)
{
    struct http_client *c = cc->client;
    struct http_call *call = cc->call;
    bool retry = call && cc->reused && !cc->got_bytes && !call->retried && status != -ETIMEDOUT;
    cc->call = NULL;
    conn_free(cc);
    if (!call) return;
    call->conn = NULL;
    if (retry) {
        call->retried = true;
        list_push(&c->waiting, call, true);
        http_defer(c->loop, &c->defer);
        return;
    }
    call_end(call, status);
}

/* The response is complete. */
static void conn_done(struct client_conn *cc)
{
    struct http_client *c = cc->client;
    struct http_call *call = cc->call;
    bool keep = cc->msg.keep_alive && cc->in.len == 0 && !cc->eof && conn_wrote_all(cc);
    cc->call = NULL;
    call->conn = NULL;
    http_msg_fini(&cc->msg);
    http_defer_cancel(c->loop, &cc->defer);
    if (keep) {
        cc->have_head = false;
        set_read(cc, true);
        http_timeout_add(&cc->ev_timer, c->keepalive_ms);
        if (c->waiting.head) http_defer(c->loop, &c->defer);
    } else {
        conn_free(cc);
    }
    call_end(call, 0);
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
    int r = http_msg_parse_response(&cc->msg, *p, (size_t)n, call->to_head);
    if (r < 0) return r;
    *p += n;
    cc->scan = 0;
    if (cc->msg.status < 200) return cc->msg.status == 101 ? -EBADMSG : 1;
    cc->have_head = true;
    cc->chunked = (struct http_chunked){0};
    cc->body_left = cc->msg.length;
    if (call->ops.on_head) call->ops.on_head(call->ctx, cc->msg.status, &cc->msg.head);
    return 1;
}

static int parse_body(struct client_conn *cc, const char **p, const char *end)
{
    struct http_call *call = cc->call;
    const char *data = *p;
    size_t n = (size_t)(end - *p);
    int r = 1;
    switch (cc->msg.framing) {
    case HTTP_BODY_NONE:
        return 2;
    case HTTP_BODY_LENGTH:
        if (cc->body_left == 0) return 2;
        if (n > cc->body_left) n = (size_t)cc->body_left;
        cc->body_left -= n;
        *p += n;
        break;
    case HTTP_BODY_CHUNKED:
        r = http_chunked_next(&cc->chunked, p, end, &data, &n);
        if (r != 1) return r;
        break;
    case HTTP_BODY_UNTIL_CLOSE:
        *p += n;
        break;
    }
    if (n == 0) return 0;
    if (call->ops.on_body) call->ops.on_body(call->ctx, data, n);
    return 1;
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
        conn_free(cc);
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
        set_read(cc, false);
        (void)event_del(&cc->ev_timer);
    } else {
        http_timeout_add(&cc->ev_timer, cc->client->idle_ms);
    }
}

static void on_resume(void *arg)
{
    struct client_conn *cc = arg;
    conn_parse(cc, NULL, 0);
}

/* ---- events ---- */

static void conn_connected(struct client_conn *cc)
{
    int e = 0;
    socklen_t len = sizeof e;
    if (getsockopt(cc->fd, SOL_SOCKET, SO_ERROR, &e, &len) < 0) e = errno;
    if (e != 0) {
        set_write(cc, false);
        (void)close(cc->fd);
        cc->fd = -1;
        cc->addr_i++;
        int r = cc->addr_i < cc->client->n_addrs ? conn_connect(cc) : -e;
        if (r < 0) conn_fail(cc, r);
        return;
    }
    cc->connecting = false;
    set_write(cc, false);
    conn_begin(cc, cc->call); /* a cancelled call would have taken the connection along */
}

static void on_readable(struct client_conn *cc)
{
    char *scratch = cc->client->loop->scratch;
    ssize_t n;
    do
        n = recv(cc->fd, scratch, HTTP_SCRATCH_BYTES, 0);
    while (n < 0 && errno == EINTR);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (!cc->call) { /* an idle connection has nothing to say */
        conn_free(cc);
        return;
    }
    if (n < 0) {
        conn_fail(cc, -EPIPE);
        return;
    }
    if (n == 0) {
        cc->eof = true;
        set_read(cc, false);
    } else {
        cc->got_bytes = true;
    }
    conn_parse(cc, scratch, (size_t)n);
}

static void on_event(evutil_socket_t fd, short what, void *arg)
{
    struct client_conn *cc = arg;
    if (cc->connecting) {
        conn_connected(cc);
    } else if (what & EV_READ) {
        on_readable(cc);
    } else if (cc->call && conn_write(cc) < 0) {
        set_write(cc, false); /* the read side tells why */
    }
}

static void on_timeout(evutil_socket_t fd, short what, void *arg)
{
    struct client_conn *cc = arg;
    conn_fail(cc, -ETIMEDOUT);
}

/* ---- the interface ---- */

static unsigned or_default(unsigned v, unsigned dflt)
{
    return v ? v : dflt;
}

int http_client_create(struct http_loop *l, const struct http_client_opts *o,
                       struct http_client **ret)
{
    struct http_client *c = mem_zalloc(sizeof *c);
    if (!c) return -ENOMEM;
    c->loop = l;
    c->conns_max = or_default(o->conns_max, 256);
    c->connect_ms = or_default(o->connect_timeout_ms, 2000);
    c->first_byte_ms = or_default(o->first_byte_timeout_ms, 600000);
    c->idle_ms = or_default(o->idle_timeout_ms, 180000);
    c->keepalive_ms = or_default(o->keepalive_ms, 4000);
    c->total_ms = o->total_timeout_ms;
    c->defer.fn = on_client_defer;
    c->defer.arg = c;
    bool is_unix = strncmp(o->address, "unix:", 5) == 0;
    c->host = mem_strdup(o->host ? o->host : is_unix ? "localhost" : o->address);
    int r = c->host ? http_addr_resolve(o->address, false, c->addrs, &c->n_addrs, NULL) : -ENOMEM;
    if (r < 0) {
        mem_free(c->host);
        mem_free(c);
        return r;
    }
    *ret = c;
    return 0;
}

void http_client_destroy(struct http_client *c)
{
    if (!c) return;
    ASSERT(c->n_calls == 0);
    http_defer_cancel(c->loop, &c->defer);
    struct client_conn *next;
    for (struct client_conn *cc = c->conns; cc; cc = next) {
        next = cc->next;
        conn_free(cc);
    }
    mem_free(c->host);
    mem_free(c);
}

static void on_total(evutil_socket_t fd, short what, void *arg)
{
    struct http_call *call = arg;
    struct http_client *c = call->client;
    struct client_conn *cc = call->conn;
    if (cc) {
        cc->call = NULL;
        conn_free(cc);
    } else {
        list_remove(call->error ? &c->failed : &c->waiting, call);
    }
    call_end(call, -ETIME);
}

static int write_head(struct http_call *call, const char *method, const char *target,
                      const char *headers)
{
    bool with_length =
        call->body_len > 0 || strcmp(method, "POST") == 0 || strcmp(method, "PUT") == 0;
    int r = buf_addf(&call->out, "%s %s HTTP/1.1\r\nHost: %s\r\n%s", method, target,
                     call->client->host, headers ? headers : "");
    if (r == 0 && with_length)
        r = buf_addf(&call->out, "Content-Length: %llu\r\n", (unsigned long long)call->body_len);
    return r == 0 ? buf_adds(&call->out, "\r\n") : r;
}

static int call_create(struct http_client *c, const struct iovec *body, int n_pieces,
                       const struct http_call_ops *ops, void *ctx, struct http_call **ret)
{
    struct http_call *call = mem_zalloc(sizeof *call + (size_t)n_pieces * sizeof(struct iovec));
    if (!call) return -ENOMEM;
    call->client = c;
    call->ops = *ops;
    call->ctx = ctx;
    call->n_pieces = n_pieces;
    for (int i = 0; i < n_pieces; i++) {
        call->pieces[i] = body[i];
        call->body_len += body[i].iov_len;
    }
    event_assign(&call->ev_total, c->loop->base, -1, 0, on_total, call);
    *ret = call;
    return 0;
}

static void call_submit(struct http_call *call)
{
    struct http_client *c = call->client;
    c->n_calls++;
    if (c->total_ms) http_timeout_add(&call->ev_total, c->total_ms);
    list_push(&c->waiting, call, false);
    dispatch(c);
}

int http_call_start_v(struct http_client *c, const char *method, const char *target,
                      const char *headers, const struct iovec *body, int n_pieces,
                      const struct http_call_ops *ops, void *ctx, struct http_call **ret)
{
    struct http_call *call;
    int r = call_create(c, body, n_pieces, ops, ctx, &call);
    if (r < 0) return r;
    call->to_head = strcmp(method, "HEAD") == 0;
    r = write_head(call, method, target, headers);
    if (r < 0) {
        call_free(call);
        return r;
    }
    call_submit(call);
    *ret = call;
    return 0;
}

int http_call_start(struct http_client *c, const char *method, const char *target,
                    const char *headers, const void *body, size_t len,
                    const struct http_call_ops *ops, void *ctx, struct http_call **ret)
{
    struct http_call *call;
    int r = call_create(c, NULL, 0, ops, ctx, &call);
    if (r < 0) return r;
    call->to_head = strcmp(method, "HEAD") == 0;
    call->body_len = len;
    r = write_head(call, method, target, headers);
    if (r == 0) r = buf_add(&call->out, body, len);
    if (r < 0) {
        call_free(call);
        return r;
    }
    call_submit(call);
    *ret = call;
    return 0;
}

bool http_call_sent(const struct http_call *call)
{
    return call->sent;
}

void http_call_cancel(struct http_call *call)
{
    struct http_client *c = call->client;
    struct client_conn *cc = call->conn;
    if (cc) {
        cc->call = NULL;
        if (cc->busy)
            cc->dead = true;
        else
            conn_free(cc);
    } else {
        list_remove(call->error ? &c->failed : &c->waiting, call);
    }
    c->n_calls--;
    call_free(call);
}

void http_call_pause(struct http_call *call, bool pause)
{
    struct client_conn *cc = call->conn;
    if (call->paused == pause) return;
    call->paused = pause;
    if (!cc || cc->connecting || cc->busy) return;
    if (pause) {
        set_read(cc, false);
        (void)event_del(&cc->ev_timer);
    } else {
        set_read(cc, !cc->eof);
        http_timeout_add(&cc->ev_timer,
                         cc->got_bytes ? cc->client->idle_ms : cc->client->first_byte_ms);
        if (cc->got_bytes) http_defer(cc->client->loop, &cc->defer); /* what was left, or the end */
    }
}
