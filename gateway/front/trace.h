/* trace: what lets a request be followed: its id, the trace it belongs to, the gateways it passed.
 *
 * The id is the client's own (X-Request-Id) where that is harmless, else drawn here. A valid
 * `traceparent` goes on to the worker under a span of ours; anything else is ignored, and no trace
 * is started where the client has none (W3C Trace Context level 1, section 3.2). Hops end loops of
 * proxies, such as two gateways that name each other as upstream: whatever a process sends on names
 * its id in X-KVBlend-Hop, behind those that sent the request before; a request that names it
 * already, or too many others, goes no further (as RFC 8586 does with CDN-Loop). Thread: any. */
#ifndef GATEWAY_FRONT_TRACE_H
#define GATEWAY_FRONT_TRACE_H

#include <stdbool.h>

struct buf;
struct http_head;

enum {
    GW_ID_BYTES = 132, /* a request id, at most 128 characters */
    GW_HOP_BYTES = 17,
    GW_HOPS_MAX = 8, /* chosen: more gateways in a row serve no purpose */
};
#define GW_HOP_HEADER "X-KVBlend-Hop"
void gw_id_choose(const struct http_head *h, char id[GW_ID_BYTES]);

struct gw_trace { /* lower-case hex; trace "" = none */
    char trace[33], parent[17], span[17], flags[3];
};
/* Read the request's header; the new span is drawn at random. False: there is none to follow. */
bool gw_trace_read(const struct http_head *h, struct gw_trace *ret);
/* One header's value. False: not valid. ret->span is left as it is. */
bool gw_trace_parse(const char *value, struct gw_trace *ret);
/* The header line for the worker; nothing when there is no trace. */
int gw_trace_header(const struct gw_trace *t, struct buf *out);

void gw_hop_new(char id[GW_HOP_BYTES]); /* of this process, drawn at its start */
bool gw_hop_loops(const struct http_head *h, const char *id);
/* The line for the next hop: those before, and `id`. */
int gw_hop_header(const struct http_head *h, const char *id, struct buf *out);

#endif
