/* trace: a request's id, and the gateways that it passed.
 *
 * The id is the client's own (X-Request-Id) where that is harmless, else drawn here. Hops end loops
 * of proxies, such as two gateways that name each other as upstream: whatever a process sends on
 * names its id in X-KVBlend-Hop, behind those that sent the request before; a request that names it
 * already, or too many others, goes no further (as RFC 8586 does with CDN-Loop). The trace that it
 * belongs to: base/otlp/traceparent.h. Thread: any. */
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

void gw_hop_new(char id[GW_HOP_BYTES]); /* of this process, drawn at its start */
bool gw_hop_loops(const struct http_head *h, const char *id);
/* The line for the next hop: those before, and `id`. */
int gw_hop_header(const struct http_head *h, const char *id, struct buf *out);

#endif
