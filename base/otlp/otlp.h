/* otlp: spans of requests, sent to a collector of OpenTelemetry by OTLP over HTTP, as JSON.
 *
 * otlp_create() → spans of one request are written into a struct otlp_spans and handed over with
 * otlp_put(), which never waits: what finds the queue full is dropped and counted. A thread of its
 * own sends them in batches, a batch at a time; what a collector cannot take now (no connection,
 * 429, 502, 503, 504) is sent again, with growing pauses, what it refuses is not. otlp_destroy()
 * sends what is left, for a bounded time. A span says what was done and for how long, never what
 * was asked or answered. Thread: any; a struct otlp_spans: one at a time. */
#ifndef BASE_OTLP_OTLP_H
#define BASE_OTLP_OTLP_H

#include "base/buf.h"
#include "base/err.h"
#include "base/otlp/traceparent.h"

struct http_head;
struct otlp;
struct otlp_opts {
    const char *endpoint; /* otlp_endpoint_ok() */
    char *const *header;  /* "NAME=VALUE", otlp_header_ok() */
    size_t n_headers;
    const char *service; /* service.name */
    double sample;       /* share of the traces that begin here which are kept, 0 to 1 */
};
/* "http(s)://HOST[:PORT][/PATH]"; "/v1/traces" is added where it does not end so. */
bool otlp_endpoint_ok(const char *text);
bool otlp_header_ok(const char *text);
int otlp_create(const struct otlp_opts *o, struct otlp **ret, struct err *err);
void otlp_destroy(struct otlp *o); /* accepts NULL */

/* The trace of a request: its header's, else a new one. */
void otlp_begin(const struct otlp *o, const struct http_head *h, struct traceparent *ret);

enum otlp_kind { OTLP_INTERNAL = 1, OTLP_SERVER = 2 };
struct otlp_span {
    const struct traceparent *trace; /* OTLP_SERVER: it is its span; else a child of that */
    enum otlp_kind kind;
    const char *name;
    uint64_t start_ns, end_ns;    /* of clock_ns() */
    const char *error;            /* NULL: it did not fail */
    const struct buf *attributes; /* of otlp_attr_…(); NULL: none */
};
struct otlp_spans { /* zeroed before; otlp_spans_fini() */
    struct buf json;
    unsigned n;
};
/* Texts are cut to OTLP_TEXT_BYTES; of text that is not UTF-8 U+FFFD is left. */
enum { OTLP_TEXT_BYTES = 256 };
void otlp_attr_str(struct buf *attributes, const char *key, const char *v); /* v NULL: nothing */
void otlp_attr_int(struct buf *attributes, const char *key, int64_t v);
void otlp_attr_double(struct buf *attributes, const char *key, double v); /* finite */
void otlp_span(struct otlp_spans *s, const struct otlp_span *x);
void otlp_put(struct otlp *o, struct otlp_spans *s); /* all of them or none; s is empty again */
void otlp_spans_fini(struct otlp_spans *s);

#endif
