/* traceparent: the trace that a request belongs to (W3C Trace Context level 1), and ids.
 *
 * A valid header goes on under a span of ours; anything else is ignored. Where traces are kept, a
 * request without one begins a trace (traceparent_begin()). Whether a trace is kept was decided
 * where it began: its first flag says so. Thread: any. */
#ifndef BASE_OTLP_TRACEPARENT_H
#define BASE_OTLP_TRACEPARENT_H

#include <stdbool.h>
#include <stddef.h>

struct buf;
struct http_head;

enum { TRACE_ID_BYTES = 33, SPAN_ID_BYTES = 17 };
struct traceparent { /* lower-case hex; trace "": none; parent "": it begins here */
    char trace[TRACE_ID_BYTES], parent[SPAN_ID_BYTES], span[SPAN_ID_BYTES], flags[3];
};
/* Read the request's header; the new span is drawn at random. False: there is none to follow. */
bool traceparent_read(const struct http_head *h, struct traceparent *ret);
/* One header's value. False: not valid. ret->span is left as it is. */
bool traceparent_parse(const char *value, struct traceparent *ret);
/* A new trace; sampled: it is kept. */
void traceparent_begin(struct traceparent *ret, bool sampled);
bool traceparent_sampled(const struct traceparent *t);
/* The header line for the next hop; nothing when there is no trace. */
int traceparent_header(const struct traceparent *t, struct buf *out);

/* n random bytes as 2 n digits and a NUL; not for secrets. */
void trace_random_hex(char *hex, size_t n);

#endif
