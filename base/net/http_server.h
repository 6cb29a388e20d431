/* http_server: listens and calls handlers.
 *
 * Life cycle: http_server_create() → http_server_listen() → http_loop_run(). on_request is called
 * once a request's head *and* whole body are in (body bounded by the limits; 413 otherwise).
 * on_head may turn a request away before its body is read: of strangers nothing is kept.
 * Strict parser: CL+TE, bare CR, obs-fold, NUL, bad chunk sizes, over-long heads are refused with
 * 400 / 431; `Expect: 100-continue` is answered; keep-alive and pipelining work; Content-Encoding
 * of requests gives 415. Timeouts: head, body, idle keep-alive, slow reader.
 *
 * The handler answers now or later by http_reply() or http_reply_start()/write()/end(). A struct
 * http_req is valid until its on_close returned, which comes exactly once: after the response was
 * sent, or as soon as the client is gone (EOF and resets are watched for while a request is
 * pending: `aborted` tells). After an abort all reply calls are harmless no-ops that return -EPIPE.
 * Back-pressure: http_reply_write() always takes the bytes; when more than `out_high_bytes` wait it
 * returns 1, and on_drain comes when they fell below half. Thread: the loop's. */
#ifndef BASE_NET_HTTP_SERVER_H
#define BASE_NET_HTTP_SERVER_H

#include "base/buf.h"
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

/* A request at its handler, which reads the first part, and writes only `user`. */
struct http_req {
    struct http_msg msg;
    const char *peer; /* "127.0.0.1:4711" or "unix" */
    /* Its connection is one too many, of its address or of all, and no idle one could go: to be
     * answered from memory or not at all. Only where there is an on_head. The connection ends. */
    bool crowded;
    uint64_t start_ns, bytes_in, bytes_out; /* bytes_in: of the body as it came */
    void *user;
    /* The server's own. */
    struct http_conn *conn;
    struct buf body;
    size_t body_charged, beside_charged; /* to the server's bounds */
    uint64_t sized_left;
    bool seen; /* the handler knows it: on_close is due */
    bool started, ended, chunked, sized, no_body, over_mark;
};
const char *http_req_body(const struct http_req *r, size_t *ret_len); /* NUL-terminated; borrow */
void http_req_drop_body(struct http_req *r); /* free it early: from now on it is empty */
/* Another body in its place: takes it, and charges the server's bounds with it. -ENOSPC: they have
 * no room, and nothing changed. */
int http_req_replace_body(struct http_req *r, struct buf *body);
/* Charges the server's bounds with what the request holds beside its body, until it ends: so many
 * bytes now, in place of those before. -ENOSPC: they have no room, and nothing changed. */
int http_req_charge(struct http_req *r, size_t beside_bytes);

/* Extra headers: "Name: value\r\n…" lines, each ended by CRLF; NULL = none. */
int http_reply(struct http_req *r, int status, const char *content_type, const char *extra_headers,
               const void *body, size_t len);
/* A body follows by http_reply_write(): chunked with a length of -1, else exactly so many bytes:
 * too many are refused (-EMSGSIZE), too few cut the connection. */
int http_reply_start(struct http_req *r, int status, const char *content_type,
                     const char *extra_headers, int64_t length);
int http_reply_write(struct http_req *r, const void *data, size_t len); /* 0, 1 = over the mark */
int http_reply_end(struct http_req *r);
void http_reply_abort(struct http_req *r); /* cut the connection: an unclean end on purpose */
size_t http_reply_pending(const struct http_req *r); /* bytes not yet taken by the socket */

struct http_server;
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
