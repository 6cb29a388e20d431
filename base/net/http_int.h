/* http_int: what the files of base/net/ share; nobody else includes it.
 *
 * Message parser (http_parse.c), addresses (http_addr.c), the loop's scratch buffer and its
 * deferred calls (http_loop.c). Callbacks into user code are made from event handlers and deferred
 * calls only, never from inside an API call of the user. Thread: the loop's. */
#ifndef BASE_NET_HTTP_INT_H
#define BASE_NET_HTTP_INT_H

#include "base/net/http.h"

#include "base/buf.h"
#include "base/ring.h"

#include <event2/event.h>
#include <event2/event_struct.h>
#include <stdatomic.h>
#include <sys/socket.h>

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
    uint64_t lag_due_ns;
    double lag_ms;
    char *scratch; /* HTTP_SCRATCH_BYTES: every read goes here first, so that idle connections hold
                      no buffer */
};
void http_defer(struct http_loop *l, struct http_defer *d); /* idempotent while queued */
void http_defer_cancel(struct http_loop *l, struct http_defer *d);
void http_timeout_add(struct event *ev, uint64_t delay_ms);

/* ---- addresses ---- */
struct http_addr {
    struct sockaddr_storage ss;
    socklen_t len;
};
enum { HTTP_ADDRS_MAX = 4 };
/* Resolve "HOST:PORT" or "unix:/path" (blocking for names); listening prefers the dual-stack
 * wildcard for an empty host. *ret_n gets 1..HTTP_ADDRS_MAX. */
int http_addr_resolve(const char *address, bool listening, struct http_addr *ret, size_t *ret_n,
                      struct err *err);
void http_addr_format(const struct http_addr *a, char *text, size_t size);

/* ---- messages ---- */
enum http_framing { HTTP_BODY_NONE, HTTP_BODY_LENGTH, HTTP_BODY_CHUNKED, HTTP_BODY_UNTIL_CLOSE };
struct http_msg { /* init {0}; http_msg_fini() */
    char *block;  /* the head's bytes, cut by NULs */
    struct http_header *headers;
    struct http_head head;
    enum http_framing framing;
    uint64_t length; /* for HTTP_BODY_LENGTH */
    int minor;       /* HTTP/1.minor */
    bool keep_alive, expect_100, is_head;
    const char *method, *target, *query; /* requests */
    char *path;
    int status; /* responses */
};
/* Length of the head that starts at p including its empty line, 0 = incomplete, -EBADMSG = a line
 * feed without a carriage return. *scan (0 at first) is where the next search goes on. */
long http_head_end(const char *p, size_t len, size_t *scan);
/* 0, or the HTTP status to refuse with and its reason; -ENOMEM. */
int http_msg_parse_request(struct http_msg *m, const char *p, size_t len,
                           const struct http_limits *lim, const char **ret_why);
/* 0, -EBADMSG or -ENOMEM. */
int http_msg_parse_response(struct http_msg *m, const char *p, size_t len, bool to_head);
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

/* ---- server internals (http_server.c, http_conn.c) ---- */
enum { HTTP_LISTENERS_MAX = 8 };
struct http_listener {
    struct http_server *server;
    struct event ev;
    int fd;
    int port;        /* 0 for unix sockets */
    char *unix_path; /* removed at the end */
};
struct http_conn;
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
    size_t n_conns, n_requests;
};
/* Takes fd; closes it when it cannot. */
int http_conn_create(struct http_server *s, int fd, const struct http_addr *peer);
void http_conn_drain(struct http_conn *c); /* close it when idle */
struct http_conn *http_conn_next(struct http_conn *c);
void http_conn_destroy(struct http_conn *c); /* aborts its request */
void http_server_conn_gone(struct http_server *s);

#endif
