/* trace: W3C Trace Context, as far as a proxy has a part in it.
 *
 * A valid `traceparent` goes on to the worker under a span of ours; anything else is ignored, and
 * no trace is started where the client has none. Source: W3C Trace Context level 1, section 3.2.
 * Thread: any. */
#ifndef GATEWAY_REQUEST_TRACE_H
#define GATEWAY_REQUEST_TRACE_H

#include <stdbool.h>

struct buf;
struct http_head;

struct gw_trace { /* lower-case hex; trace "" = none */
    char trace[33], parent[17], span[17], flags[3];
};
/* Read the request's header; the new span is drawn at random. False: there is none to follow. */
bool gw_trace_read(const struct http_head *h, struct gw_trace *ret);
/* One header's value. False: not valid. ret->span is left as it is. */
bool gw_trace_parse(const char *value, struct gw_trace *ret);
/* The header line for the worker; nothing when there is no trace. */
int gw_trace_header(const struct gw_trace *t, struct buf *out);

#endif
