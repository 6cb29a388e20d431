/* reply: what the gateway answers itself.
 *
 * Each of these ends the request, which may be gone when it returns: its caller does not touch it
 * any more. Where the client has a stream's headers already an error ends the stream. Thread: the
 * request's loop. */
#ifndef GATEWAY_FRONT_REPLY_H
#define GATEWAY_FRONT_REPLY_H

#include "gateway/front/error.h"

#include <stdint.h>

struct buf;
struct gw_config;
struct gw_req;
void gw_answer_error(struct gw_req *q, enum gw_error e, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* "No upstream is ready yet: connection refused.": with what and why of those it might go to. */
void gw_answer_no_backend(struct gw_req *q, enum gw_error e, const char *what);
/* Where it is known when to try again. */
void gw_answer_error_after(struct gw_req *q, enum gw_error e, uint64_t after_ms, const char *fmt,
                           ...) __attribute__((format(printf, 4, 5)));
/* Lines that every answer carries: x-request-id, the rate limits', CORS. */
int gw_answer_headers(const struct gw_req *q, struct buf *out);
void gw_answer_no_memory(struct gw_req *q);
/* Take the body, which may have failed while it was written: 500 then. */
void gw_answer_json(struct gw_req *q, int status, struct buf *body);
void gw_answer_text(struct gw_req *q, int status, const char *type, struct buf *body);
void gw_answer_with(struct gw_req *q, int status, const char *type, struct buf *headers,
                    struct buf *body); /* with more header lines, which it takes, too */
/* Ends a stream that has begun: an error frame where its readers know such frames, else a cut. */
void gw_answer_break(struct gw_req *q, enum gw_error e, const char *message);

#endif
