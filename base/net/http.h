/* http: the one HTTP/1.1 + SSE layer, server and client, on libevent's plain events.
 *
 * Not for: HTTP/2, CONNECT, targets of other hosts.
 * Server life cycle: http_loop_create() → http_server_create() → http_server_listen() →
 * http_loop_run(). on_request is called once a request's head *and* whole body are in (body bounded
 * by the limits; 413 otherwise); the handler answers now or later by http_reply() or
 * http_reply_start()/write()/end(). on_head may turn a request away before its body is read: of
 * strangers nothing is kept. A struct http_req is valid until its on_close returned, which
 * comes exactly once: after the response was sent, or as soon as the client is gone (EOF and resets
 * are watched for while a request is pending: `aborted` tells). After an abort all reply calls are
 * harmless no-ops that return -EPIPE.
 * Strict parser: CL+TE, bare CR, obs-fold, NUL, bad chunk sizes, over-long heads are refused with
 * 400 / 431; `Expect: 100-continue` is answered; keep-alive and pipelining work; Content-Encoding
 * of requests gives 415. Timeouts: head, body, idle keep-alive, slow reader. Back-pressure:
 * http_reply_write() always takes the bytes; when more than `out_high_bytes` wait it returns 1, and
 * on_drain comes when they fell below half. Thread: everything on the loop's thread but
 * http_loop_post() and http_loop_stop(). */
#ifndef BASE_NET_HTTP_H
#define BASE_NET_HTTP_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>
#include <sys/uio.h>

struct event_base;
struct buf;

/* ---- loop ---- */
struct http_loop;
int http_loop_create(struct http_loop **ret);
void http_loop_destroy(struct http_loop *l);
struct event_base *http_loop_base(struct http_loop *l);
int http_loop_run(struct http_loop *l); /* until http_loop_stop() */
/* From any thread or a signal handler. Posts that have not run by then wait for the next run; after
 * http_loop_destroy() they are dropped. */
void http_loop_stop(struct http_loop *l);
/* Run fn(arg) on the loop thread soon; the way other threads speak to it (eventfd inside). 0, or
 * -EAGAIN when the ring (fixed size) is full. Order of one poster's messages is kept. */
int http_loop_post(struct http_loop *l, void (*fn)(void *arg), void *arg);
struct http_timer;
int http_timer_create(struct http_loop *l, void (*fn)(void *arg), void *arg,
                      struct http_timer **ret);
void http_timer_set(struct http_timer *t, uint64_t delay_ms); /* one shot; re-arms */
void http_timer_clear(struct http_timer *t);
void http_timer_destroy(struct http_timer *t);
double http_loop_lag_ms(const struct http_loop *l); /* last measured; histogram metric inside */

/* ---- TLS (OpenSSL): at least 1.2, HTTP/1.1 only ---- */
struct http_tls; /* the settings of one side, for any number of servers or clients of any loop */
struct http_tls_opts {
    const char *cert_file, *key_file; /* PEM; a server must have them, a client may */
    const char *ca_file; /* client: NULL = the system's; server: verify clients by it */
    bool insecure;       /* client: do not verify the server */
};
int http_tls_server(const struct http_tls_opts *o, struct http_tls **ret, struct err *err);
int http_tls_client(const struct http_tls_opts *o, struct http_tls **ret, struct err *err);
/* Read the files again: new connections use them; on error the old ones stay. Thread: any. */
int http_tls_reload(struct http_tls *t, struct err *err);
struct http_tls *http_tls_ref(struct http_tls *t);
void http_tls_unref(struct http_tls *t);

/* ---- messages ---- */
struct http_header {
    const char *name, *value; /* NUL-terminated; name as sent */
    uint32_t name_len, value_len;
};
struct http_head {
    const struct http_header *headers;
    size_t n_headers;
};
struct http_name {
    const char *text;
    size_t len;
};
#define HTTP_NAME(text)                                                                            \
    {                                                                                              \
        text, sizeof text - 1                                                                      \
    }
/* Names are told apart regardless of their case, most by their length and first letter. */
static inline bool http_header_named(const struct http_header *h, const struct http_name *n)
{
    return h->name_len == n->len && ((h->name[0] ^ n->text[0]) & 0xDF) == 0 &&
           strcasecmp(h->name, n->text) == 0;
}
static inline bool http_header_is(const struct http_header *h, const char *name)
{
    return http_header_named(h, &(struct http_name){name, strlen(name)});
}
static inline bool http_header_begins(const struct http_header *h, const char *prefix)
{
    return ((h->name[0] ^ prefix[0]) & 0xDF) == 0 &&
           strncasecmp(h->name, prefix, strlen(prefix)) == 0;
}
static inline bool http_header_in(const struct http_header *h, const struct http_name *list,
                                  size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (http_header_named(h, &list[i])) return true;
    return false;
}
/* The first one's value; NULL: there is none. */
static inline const char *http_header_find(const struct http_head *h, const char *name)
{
    for (size_t i = 0; i < h->n_headers; i++)
        if (http_header_is(&h->headers[i], name)) return h->headers[i].value;
    return NULL;
}
/* A line with CRLF. -EINVAL: the value would end it. */
int http_header_add(struct buf *out, const char *name, const char *value);
int http_header_copy(struct buf *out, const struct http_header *h);

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
    struct http_bounds *bounds; /* of several servers together, who outlives them; none */
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

/* ---- server ---- */
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

const char *http_req_method(const struct http_req *r);
const char *http_req_path(const struct http_req *r);   /* decoded, "//" collapsed, no query */
const char *http_req_query(const struct http_req *r);  /* raw, "" when none */
const char *http_req_target(const struct http_req *r); /* as sent */
const struct http_head *http_req_head(const struct http_req *r);
bool http_req_has_body(const struct http_req *r);                     /* the head announces one */
const char *http_req_body(const struct http_req *r, size_t *ret_len); /* NUL-terminated; borrow */
void http_req_drop_body(struct http_req *r);          /* free it early: from now on it is empty */
uint64_t http_req_bytes_in(const struct http_req *r); /* of the body as it came */
const char *http_req_peer(const struct http_req *r);  /* "127.0.0.1:4711" or "unix" */
/* Its connection is one too many, of its address or of all, and nobody idle could go: to be
 * answered from memory or not at all. Only where there is an on_head. The connection ends then. */
bool http_req_crowded(const struct http_req *r);
void http_req_set_user(struct http_req *r, void *user);
void *http_req_user(const struct http_req *r);
uint64_t http_req_start_ns(const struct http_req *r);
uint64_t http_req_bytes_out(const struct http_req *r);

/* Extra headers: "Name: value\r\n…" lines, each ended by CRLF; NULL = none. */
int http_reply(struct http_req *r, int status, const char *content_type, const char *extra_headers,
               const void *body, size_t len);
int http_reply_start(struct http_req *r, int status, const char *content_type,
                     const char *extra_headers); /* chunked body follows */
/* As http_reply_start(), with Content-Length: exactly `length` bytes must follow by
 * http_reply_write(); too many are refused (-EMSGSIZE), too few cut the connection. */
int http_reply_start_sized(struct http_req *r, int status, const char *content_type,
                           const char *extra_headers, uint64_t length);
int http_reply_write(struct http_req *r, const void *data, size_t len); /* 0, 1 = over the mark */
int http_reply_end(struct http_req *r);
void http_reply_abort(struct http_req *r); /* cut the connection: an unclean end on purpose */
size_t http_reply_pending(const struct http_req *r); /* bytes not yet taken by the socket */

/* ---- server-sent events ---- */
/* Start an SSE response (text/event-stream, no-cache, X-Accel-Buffering: no). */
int http_sse_start(struct http_req *r, const char *extra_headers);
int http_sse_comment(struct http_req *r, const char *text); /* ": …\n\n", of one short line */
/* Incremental SSE reader. */
struct sse_parser { /* init {0}; sse_parser_fini() */
    struct {
        char *data;
        size_t len, cap;
    } line, event;
    bool saw_cr, has_data;
};
int sse_parser_push(struct sse_parser *p, const char *data, size_t len,
                    int (*on_event)(void *ctx, const char *data, size_t len), void *ctx);
void sse_parser_fini(struct sse_parser *p);

/* ---- client ---- */
struct http_client; /* connection pool to one target */
struct http_call;
struct http_client_opts {
    /* As for listen: "HOST:PORT" (numeric or resolvable), "unix:/path"; several, separated by
     * commas, are tried in turn. */
    const char *address;
    unsigned conns_max;                                                  /* 0 = 256 */
    unsigned connect_timeout_ms, first_byte_timeout_ms, idle_timeout_ms; /* 2 s, 600 s, 180 s */
    unsigned keepalive_ms;     /* how long an idle connection is kept: 4 s */
    unsigned total_timeout_ms; /* of a whole call, waiting for its turn included; 0: none */
    const char *host;          /* for the Host header and TLS; NULL: from the address */
    struct http_tls *tls;      /* NULL: plain; the client takes a reference */
};
struct http_call_ops {
    void (*on_head)(void *ctx, int status, const struct http_head *h);
    void (*on_body)(void *ctx, const char *data, size_t len); /* de-chunked bytes as they come */
    /* Exactly once unless cancelled; the call is valid until it returns. 0 complete,
     * -ECONNREFUSED, -EHOSTUNREACH … no connection, -ETIMEDOUT (http_call_sent() tells whether
     * while connecting), -ETIME the total time is over, -EPIPE cut off, -EBADMSG not HTTP, -EPROTO
     * TLS failed (a bad certificate, …): http_call_why(). */
    void (*on_end)(void *ctx, int status);
};
int http_client_create(struct http_loop *l, const struct http_client_opts *o,
                       struct http_client **ret);
void http_client_destroy(struct http_client *c); /* its calls must have ended */
/* With those that were cancelled in one of their own callbacks, until it has returned. */
size_t http_client_n_calls(const struct http_client *c);
struct http_request {
    const char *method, *target;
    const char *headers; /* CRLF lines, Host and Content-Length are added; NULL: none */
    const void *body;    /* copied */
    size_t len;
    const struct iovec *pieces; /* or borrowed until on_end returned or http_call_cancel() */
    int n_pieces;
    bool may_repeat; /* twice does no harm */
};
/* Where a reused idle connection dies before the first byte of an answer, the call is sent once
 * more on a fresh one if it only asks (GET, HEAD, OPTIONS), not a byte of it had left, or
 * may_repeat: anything else may have been done already (RFC 9110, 9.2.2). */
int http_call_start(struct http_client *c, const struct http_request *q,
                    const struct http_call_ops *ops, void *ctx, struct http_call **ret);
bool http_call_sent_all(const struct http_call *c); /* the borrowed body is no longer looked at, but
                                                     * by a retry after on_end */
bool http_call_sent(const struct http_call *c); /* has any byte left, on its latest connection */
const char *http_call_why(const struct http_call *c); /* in on_end: a sentence, or "" */
void http_call_cancel(struct http_call *c);           /* closes its connection; no callback after */
void http_call_pause(struct http_call *c, bool pause); /* stop reading: back-pressure */

#endif
