/* http_request: a request at its handler, and the answer.
 *
 * The handler answers now or later by http_reply() or http_reply_start()/write()/end(). A struct
 * http_req is valid until its on_close returned, which comes exactly once: after the response was
 * sent, or as soon as the client is gone (EOF and resets are watched for while a request is
 * pending: `aborted` tells). After an abort all reply calls are harmless no-ops that return -EPIPE.
 * Back-pressure: http_reply_write() always takes the bytes; when more than `out_high_bytes` wait it
 * returns 1, and on_drain comes when they fell below half. Thread: the loop's. */
#ifndef BASE_NET_HTTP_REQUEST_H
#define BASE_NET_HTTP_REQUEST_H

#include "base/net/http_message.h"

struct http_req;
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
/* Its connection is one too many, of its address or of all, and no idle one could go: to be
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

#endif
