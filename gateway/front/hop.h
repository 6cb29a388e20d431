/* hop: ends loops of proxies, such as two gateways that name each other as upstream.
 *
 * Every process has an id, drawn at its start. Whatever it sends on names it in X-KVBlend-Hop,
 * behind those who sent the request before; a request that names it already, or too many others,
 * goes no further. As RFC 8586 does with CDN-Loop. Thread: any. */
#ifndef GATEWAY_FRONT_HOP_H
#define GATEWAY_FRONT_HOP_H

#include <stdbool.h>

struct buf;
struct http_head;

enum { GW_HOP_BYTES = 17, GW_HOPS_MAX = 8 }; /* chosen: more gateways in a row serve nobody */
#define GW_HOP_HEADER "X-KVBlend-Hop"
void gw_hop_new(char id[GW_HOP_BYTES]);
bool gw_hop_loops(const struct http_head *h, const char *id);
/* The line for the next hop: who was there, and `id`. */
int gw_hop_header(const struct http_head *h, const char *id, struct buf *out);

#endif
