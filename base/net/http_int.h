/* http_int: what the files of base/net/ share; nobody else includes it.
 *
 * Message parser (http_parse.c), addresses (http_addr.c), the loop's scratch buffer and its
 * deferred calls (http_loop.c). Callbacks into user code are made from event handlers and deferred
 * calls only, never from inside an API call of the user. Thread: the loop's. */
#ifndef BASE_NET_HTTP_INT_H
#define BASE_NET_HTTP_INT_H

#include "base/net/http.h"

#include "base/buf.h"
#include "base/mem.h"
#include "base/ring.h"

#include <event2/event.h>
#include <event2/event_struct.h>
#include <stdatomic.h>
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- loop ---- */
enum { HTTP_SCRATCH_BYTES = 128 * 1024 }; /* chosen: a 32k-token prompt in one or two reads */

struct http_defer { /* a call to be made from the loop, embedded in its owner */
    void (*fn)(void *arg);
    void *arg;
    struct http_defer *prev, *next;
    bool queued;
};
struct http_loop {
    struct event_base *base;
    struct ring ring;
    int wake_fd;
    atomic_bool woken, stop;
    struct event ev_wake, ev_defer, ev_lag;
    struct http_defer defers; /* list head */
    size_t n_defers;
    bool in_handler;
    uint64_t lag_due_ns;
    double lag_ms;
    char *scratch; /* HTTP_SCRATCH_BYTES: every read goes here first, so that idle connections hold
                      no buffer */
    char *tls_scratch;        /* as large: records before and after the cipher; NULL until used */
    struct buf tls_out, head; /* records on their way out; a reply's head: empty between uses */
    struct mem_stock reqs;    /* struct http_req */
    /* What http_loop_status_line() said last, and until when it is true. */
    uint64_t line_until_ns;
    int line_status;
    size_t line_len;
    char line[128];
};
enum { HTTP_STOCK_MAX = 64 }; /* chosen: more than are under way in one turn, as a rule */
/* "HTTP/1.1 200 OK" and the Date header: written anew when one of them changes. */
const char *http_loop_status_line(struct http_loop *l, int status, size_t *ret_len);

void http_defer(struct http_loop *l, struct http_defer *d); /* idempotent while queued */
void http_defer_cancel(struct http_loop *l, struct http_defer *d);
/* Around the handler of an event: what it defers is done when it ends, while its memory is warm. */
void http_handler_begin(struct http_loop *l);
void http_handler_end(struct http_loop *l);
void http_timeout_add(struct event *ev, uint64_t delay_ms);

/* A timer that is moved at every step of a connection and hardly ever fires: moving it on costs a
 * store; the event is armed anew only when it fires too early. */
struct http_alarm {
    struct event ev;
    struct http_loop *loop;
    uint64_t due_ns, armed_ns; /* 0 = off; when the event will fire */
    void (*fn)(void *arg);
    void *arg;
};
void http_alarm_init(struct http_alarm *a, struct http_loop *l, void (*fn)(void *arg), void *arg);
void http_alarm_set(struct http_alarm *a, uint64_t delay_ms);
void http_alarm_clear(struct http_alarm *a);
void http_alarm_fini(struct http_alarm *a);

/* ---- addresses ---- */
struct http_addr {
    struct sockaddr_storage ss;
    socklen_t len;
};
enum { HTTP_ADDRS_MAX = 8 };
/* Resolve "HOST:PORT" or "unix:/path" (blocking for names); listening prefers the dual-stack
 * wildcard for an empty host. *ret_n gets 1..HTTP_ADDRS_MAX. */
int http_addr_resolve(const char *address, bool listening, struct http_addr *ret, size_t *ret_n,
                      struct err *err);
void http_addr_format(const struct http_addr *a, char *text, size_t size);

/* ---- transport: a socket, with or without TLS ---- */
struct http_tls_conn;
struct http_io {
    int fd;
    struct http_tls_conn *tls; /* NULL: plain */
};
struct http_tls_slot { /* a client's session for resumption; init {0} */
    void *session;
    unsigned generation;
};
/* Take part in a handshake. Client: `name` is verified and sent (SNI) and the first flight leaves;
 * slot and name live as long as io. Server: both NULL. */
int http_tls_begin(struct http_tls *t, struct http_loop *l, struct http_io *io, const char *name,
                   struct http_tls_slot *slot);
bool http_tls_ready(const struct http_tls_conn *tc);      /* the handshake is over */
bool http_tls_closed(const struct http_tls_conn *tc);     /* the peer said so */
const char *http_tls_why(const struct http_tls_conn *tc); /* of the last error; NULL */
size_t http_tls_pending(const struct http_tls_conn *tc);
ssize_t http_tls_recv(struct http_io *io, char *p, size_t size);
ssize_t http_tls_send(struct http_io *io, const struct iovec *iov, int n);
void http_tls_say_goodbye(struct http_io *io);
void http_tls_conn_free(struct http_tls_conn *tc);
void http_tls_slot_fini(struct http_tls_slot *s);

/* Bytes, 0 = a clean end, -EAGAIN or another negative errno. TLS: -EPROTO for what breaks its
 * rules, -EPROTONOSUPPORT for plain HTTP; p has HTTP_SCRATCH_BYTES. */
static inline ssize_t http_io_recv(struct http_io *io, char *p, size_t size)
{
    if (io->tls) return http_tls_recv(io, p, size);
    ssize_t n;
    do
        n = recv(io->fd, p, size, 0);
    while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : n;
}
/* How many bytes of the pieces were taken, or a negative errno. */
static inline ssize_t http_io_send(struct http_io *io, struct iovec *iov, int n)
{
    if (io->tls) return http_tls_send(io, iov, n);
    const int flags = MSG_NOSIGNAL | MSG_DONTWAIT;
    struct msghdr mh = {.msg_iov = iov, .msg_iovlen = (size_t)n};
    ssize_t sent;
    do
        sent =
            n == 1 ? send(io->fd, iov->iov_base, iov->iov_len, flags) : sendmsg(io->fd, &mh, flags);
    while (sent < 0 && errno == EINTR);
    return sent < 0 ? -errno : sent;
}
/* Bytes that were taken but that the socket did not take yet: send nothing to move them on. */
static inline size_t http_io_pending(const struct http_io *io)
{
    return io->tls ? http_tls_pending(io->tls) : 0;
}
static inline bool http_io_ready(const struct http_io *io)
{
    return !io->tls || http_tls_ready(io->tls);
}
static inline bool http_io_closed(const struct http_io *io)
{
    return io->tls && http_tls_closed(io->tls);
}
static inline void http_io_close(struct http_io *io)
{
    http_tls_conn_free(io->tls);
    io->tls = NULL;
    if (io->fd >= 0) (void)close(io->fd);
    io->fd = -1;
}

/* ---- messages ---- */
enum http_framing { HTTP_BODY_NONE, HTTP_BODY_LENGTH, HTTP_BODY_CHUNKED, HTTP_BODY_UNTIL_CLOSE };
struct http_msg {                /* init {0}; http_msg_fini() */
    struct http_header *headers; /* one block with the head's bytes, cut by NULs, and the path */
    char *text;
    struct http_head head;
    enum http_framing framing;
    uint64_t length; /* for HTTP_BODY_LENGTH */
    int minor;       /* HTTP/1.minor */
    bool keep_alive, expect_100, is_head;
    const char *method, *query;      /* requests */
    char *target, *path, *authority; /* authority: of an absolute target, else NULL */
    int status;                      /* responses */
};
struct http_scan { /* init {0} */
    size_t at;     /* where the next search goes on */
    size_t n_lines;
};
/* Length of the head that starts at p including its empty line, 0 = incomplete, -EBADMSG = a line
 * feed without a carriage return. */
long http_head_end(const char *p, size_t len, struct http_scan *scan);
/* Of the head that http_head_end() found, with its n_lines. 0, or the HTTP status to refuse with
 * and its reason; -ENOMEM. */
int http_msg_parse_request(struct http_msg *m, const char *p, size_t len, size_t n_lines,
                           const struct http_limits *lim, const char **ret_why);
/* 0, -EBADMSG or -ENOMEM. */
int http_msg_parse_response(struct http_msg *m, const char *p, size_t len, size_t n_lines,
                            bool to_head);
void http_msg_drop_text(struct http_msg *m); /* headers and texts; the rest stays known */
void http_msg_fini(struct http_msg *m);
const char *http_status_text(int status);

enum http_chunk_state {
    HTTP_CHUNK_SIZE,
    HTTP_CHUNK_EXT,
    HTTP_CHUNK_SIZE_LF,
    HTTP_CHUNK_DATA,
    HTTP_CHUNK_DATA_CR,
    HTTP_CHUNK_DATA_LF,
    HTTP_CHUNK_TRAILER,
    HTTP_CHUNK_TRAILER_LF,
    HTTP_CHUNK_DONE
};
struct http_chunked { /* init {0} */
    enum http_chunk_state state;
    uint64_t left;
    unsigned digits, line_bytes, extra_bytes;
};
/* Take bytes from *p (moved on): 1 = a piece of the body in *ret_data, 0 = more input is needed,
 * 2 = the body is complete, -EBADMSG. */
int http_chunked_next(struct http_chunked *c, const char **p, const char *end,
                      const char **ret_data, size_t *ret_len);

/* ---- lists: a ring with its head in it ---- */
struct http_link {
    struct http_link *prev, *next;
};
static inline void http_link_init(struct http_link *l)
{
    l->prev = l->next = l;
}
static inline void http_link_add(struct http_link *list, struct http_link *l) /* at the end */
{
    l->prev = list->prev;
    l->next = list;
    l->prev->next = list->prev = l;
}
static inline void http_link_remove(struct http_link *l) /* harmless when it is in none */
{
    l->prev->next = l->next;
    l->next->prev = l->prev;
    http_link_init(l);
}

/* ---- server internals (http_server.c, http_conn.c, http_reply.c) ---- */
enum { HTTP_LISTENERS_MAX = 16 };
struct http_listener {
    struct http_server *server;
    struct event ev;
    struct http_tls *tls;
    int fd;
    int port;        /* 0 for unix sockets */
    bool shared;     /* others may open the same port */
    char *unix_path; /* removed at the end */
};
struct http_server {
    struct http_loop *loop;
    struct http_limits lim;
    struct http_server_ops ops;
    void *ctx;
    struct http_listener listeners[HTTP_LISTENERS_MAX];
    size_t n_listeners;
    struct event ev_resume; /* accepting paused: out of descriptors or connections */
    bool draining, paused;
    struct http_conn *conns;
    struct http_link idle; /* who has no request, the oldest first */
    unsigned place;        /* in the bounds */
    size_t n_conns, n_requests;
};
struct http_req {
    struct http_conn *conn;
    struct http_msg msg;
    struct buf body;
    size_t body_charged; /* to the server's bounds */
    void *user;
    uint64_t start_ns, bytes_in, bytes_out;
    uint64_t sized_left;
    bool seen; /* the handler knows it: on_close is due */
    bool started, ended, chunked, sized, no_body, over_mark;
};
enum http_conn_state { CONN_HEAD, CONN_BODY, CONN_PENDING, CONN_LINGER };
enum http_conn_timer { TM_NONE, TM_IDLE, TM_HEAD, TM_BODY, TM_WRITE, TM_WATCH, TM_LINGER };
struct http_conn {
    struct http_server *server;
    struct http_conn *next, *prev;
    struct event ev_read, ev_write;
    struct http_alarm alarm;
    struct http_defer defer;
    struct http_io io;
    enum http_conn_state state;
    enum http_conn_timer timer;
    bool read_on, write_on;
    bool dead, eof, stepping, close_after, refused;
    bool idle, crowded;
    struct http_link among_all, among_peers; /* while it is idle */
    struct http_peer *peer;                  /* NULL: its address is not bounded */
    struct buf in, out;                      /* in: bytes that were read and not yet taken */
    size_t out_pos;
    const char *view; /* the bytes that conn_step() takes from: the loop's scratch or in */
    size_t view_len;
    struct http_scan scan;
    struct http_req *req;
    struct http_chunked chunked;
    uint64_t first_byte_ns;
    size_t body_mark;
    char peer_name[64];
};
static inline size_t http_conn_unsent(const struct http_conn *c)
{
    return c->out.len - c->out_pos + http_io_pending(&c->io);
}
/* Send what waits plus the pieces; what the socket does not take is queued. */
int http_conn_send(struct http_conn *c, const struct iovec *pieces, int n_pieces);
void http_conn_ask_step(struct http_conn *c); /* the machine must look at it */
/* "HTTP/1.1 200 OK", Date and the user's lines. */
int http_reply_status(struct buf *out, struct http_loop *l, int status, const char *extra_headers);
void http_req_free(struct http_loop *l, struct http_req *r);
/* Takes fd; closes it when it cannot. */
int http_conn_create(struct http_server *s, int fd, const struct http_addr *peer,
                     struct http_tls *tls);
void http_conn_drain(struct http_conn *c); /* close it when idle */
/* The oldest of a list of idle ones, but none that has begun to ask. NULL: there is none. */
struct http_conn *http_conn_oldest(const struct http_link *list, size_t link_at);
void http_conn_evict(struct http_conn *c); /* it makes room for others */
struct http_conn *http_conn_next(struct http_conn *c);
void http_conn_destroy(struct http_conn *c); /* aborts its request */
void http_server_conn_gone(struct http_server *s);

/* ---- bounds (http_bounds.c); b may be NULL: none ---- */
struct http_peer { /* an address that has connections */
    uint64_t key;
    unsigned n; /* guarded by the bounds' lock */
    struct http_peer *next;
    struct http_link idle[]; /* of each server, which alone touches it */
};
unsigned http_bounds_join(struct http_bounds *b); /* the server's place in http_peer.idle */
/* One connection more. NULL in *ret_peer: it is not bounded. 0 or -ENOMEM. */
int http_bounds_enter(struct http_bounds *b, const struct http_addr *a,
                      struct http_peer **ret_peer);
bool http_bounds_crowded(struct http_bounds *b, const struct http_peer *p); /* p may be NULL */
void http_bounds_leave(struct http_bounds *b, struct http_peer *p);
void http_bounds_evicted(struct http_bounds *b);
bool http_bounds_has_room(const struct http_bounds *b, uint64_t body_bytes);
bool http_bounds_take(struct http_bounds *b, size_t body_bytes); /* false: there is no room */
void http_bounds_give(struct http_bounds *b, size_t body_bytes);

#endif
