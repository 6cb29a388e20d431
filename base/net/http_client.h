/* http_client: a pool of connections to one target, and calls on it. Thread: the loop's. */
#ifndef BASE_NET_HTTP_CLIENT_H
#define BASE_NET_HTTP_CLIENT_H

#include "base/net/http_loop.h"
#include "base/net/http_message.h"
#include "base/net/http_tls.h"

#include <sys/uio.h>

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
