/* sse: server-sent events, in answers and read as they come. Thread: the loop's. */
#ifndef BASE_NET_SSE_H
#define BASE_NET_SSE_H

#include "base/buf.h"
#include "base/net/http_server.h"

/* Start an SSE response (text/event-stream, no-cache, X-Accel-Buffering: no). */
int http_sse_start(struct http_req *r, const char *extra_headers);
int http_sse_comment(struct http_req *r, const char *text); /* ": …\n\n", of one short line */
/* Incremental SSE reader. */
struct sse_parser { /* init {0}; sse_parser_fini() */
    struct buf line, event;
    bool saw_cr, has_data;
};
int sse_parser_push(struct sse_parser *p, const char *data, size_t len,
                    int (*on_event)(void *ctx, const char *data, size_t len), void *ctx);
void sse_parser_fini(struct sse_parser *p);

#endif
