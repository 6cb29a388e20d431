/* http_server: listens and calls handlers.
 *
 * Life cycle: http_server_create() → http_server_listen() → http_loop_run(). on_request is called
 * once a request's head *and* whole body are in (body bounded by the limits; 413 otherwise).
 * on_head may turn a request away before its body is read: of strangers nothing is kept.
 * Strict parser: CL+TE, bare CR, obs-fold, NUL, bad chunk sizes, over-long heads are refused with
 * 400 / 431; `Expect: 100-continue` is answered; keep-alive and pipelining work; Content-Encoding
 * of requests gives 415. Timeouts: head, body, idle keep-alive, slow reader. Thread: the loop's. */
#ifndef BASE_NET_HTTP_SERVER_H
#define BASE_NET_HTTP_SERVER_H

#include "base/err.h"
#include "base/net/http_loop.h"
#include "base/net/http_message.h"
#include "base/net/http_tls.h"

struct http_limits {       /* 0 = default */
    size_t head_bytes_max; /* 32 KiB */
    size_t line_bytes_max; /* one line of the head, with its end; none */
    size_t body_bytes_max; /* 32 MiB */
    size_t body_rate_min;  /* bytes a second that a body comes with, by the body timeout; 4 KiB */
    size_t out_high_bytes; /* 256 KiB */
    unsigned headers_max;  /* 100 */
    unsigned conns_max;    /* 10000; then the one that has been idle for longest goes */
    unsigned head_timeout_ms, body_timeout_ms, idle_timeout_ms,
        write_timeout_ms;       /* 10 s, 60 s, 75 s, 60 s */
    struct http_bounds *bounds; /* of several servers together; they outlive the servers; none */
};
struct http_bounds_opts {
    uint64_t body_memory_bytes; /* of request bodies; above it 503 */
    unsigned conns_per_address; /* of IPv6: of a /64; 0: no bound */
    unsigned n_servers;         /* that will name it */
};
struct http_bounds_view {
    uint64_t body_bytes; /* in memory now */
    uint64_t n_evicted;  /* idle connections that made room for others */
};
/* Thread: any. */
int http_bounds_create(const struct http_bounds_opts *o, struct http_bounds **ret);
void http_bounds_destroy(struct http_bounds *b);
struct http_bounds_view http_bounds_view(const struct http_bounds *b);

struct http_server;
struct http_req;
struct http_server_ops {
    /* The head is in; of a body nothing was kept or asked for ("100 Continue"). May answer by
     * http_reply(), and before on_request came at any later time: then the body is not read, and
     * a connection that has one to come ends with the answer. May be NULL. */
    void (*on_head)(void *ctx, struct http_req *r);
    /* Beside on_head: the body does not come as it should (400, 408, 413, 503 out of memory), and
     * on_request will not. The handler answers at once; the connection ends. */
    void (*on_fault)(void *ctx, struct http_req *r, int status, const char *why);
    void (*on_request)(void *ctx, struct http_req *r);
    void (*on_close)(void *ctx, struct http_req *r, bool aborted); /* only for requests seen */
    void (*on_drain)(void *ctx, struct http_req *r);               /* may be NULL */
    /* The layer refused what no handler saw (400, 408, 413, 415, 431, 501…): fill the body of the
     * answer (JSON) and extra header lines, each ended by CRLF; NULL = plain text. head: what was
     * understood of the request's headers, perhaps nothing, never NULL. */
    void (*on_refuse)(void *ctx, int status, const char *why, const struct http_head *head,
                      struct buf *ret_headers, struct buf *ret_body);
};
int http_server_create(struct http_loop *l, const struct http_limits *lim,
                       const struct http_server_ops *ops, void *ctx, struct http_server **ret);
struct http_listen_opts {
    struct http_tls *tls; /* NULL: plain; the server takes a reference */
    bool reuse_port;      /* servers of other loops will accept on it: http_server_listen_same() */
    int fd;               /* > 0: a listening socket, taken on success, instead of the address */
    unsigned unix_mode;   /* of a unix socket's file, from its first moment on; 0: by the umask */
};
/* "HOST:PORT" ("127.0.0.1:0" picks a port, "[::1]:80", ":8010" = all), or "unix:/path"; o may be
 * NULL. The port, 0 for unix sockets, or an error. */
int http_server_listen(struct http_server *s, const char *address, const struct http_listen_opts *o,
                       struct err *err);
/* Accept where `from`, a server of another loop, does: on a socket of its own when `from` reuses
 * the port (the kernel spreads the connections), else on the same socket. Call before from's loop
 * runs. */
int http_server_listen_same(struct http_server *s, const struct http_server *from, struct err *err);
int http_server_port(const struct http_server *s); /* of the first TCP listener */
void http_server_stop_accepting(
    struct http_server *s); /* drain: keep-alives end after their response */
size_t http_server_n_requests(const struct http_server *s); /* in flight */
void http_server_destroy(struct http_server *s);            /* aborts what is left */

#endif
