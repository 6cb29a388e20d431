/* front: the public side: request in, route, key; then an answer from memory, or on to relay.h. */
#ifndef GATEWAY_FRONT_FRONT_H
#define GATEWAY_FRONT_FRONT_H

#include "base/net/http.h"

#include "gateway/translate/translate.h"

#include <stddef.h>

struct gw_page;
struct gw_req;
/* Properties of a route. */
enum {
    GW_R_JSON = 1,         /* the body must be a JSON object */
    GW_R_ADMIT = 2,        /* takes a turn: counts against max_inflight */
    GW_R_DETECT = 4,       /* look for chunks in its messages */
    GW_R_ADMIN = 8,        /* admin API */
    GW_R_OPEN = 16,        /* no API key, no access log */
    GW_R_REST = 32,        /* matches longer paths, too */
    GW_R_DONE = 64,        /* its streams end with data: [DONE] */
    GW_R_REPEAT = 128,     /* harmless when it is done twice: may be sent again once it was sent */
    GW_R_UPSTREAM = 256,   /* no worker serves it */
    GW_R_WORKER = 512,     /* workers alone serve it */
    GW_R_OPAQUE = 1024,    /* the body is whatever the target takes */
    GW_R_OPENED = 2048,    /* for upstreams whose `paths` hold it; the path goes on as it is */
    GW_R_SPOKEN = 8192,    /* for upstreams whose `paths` hold its target */
    GW_R_COUNT = 16384,    /* counts tokens */
    GW_R_VECTORS = 32768,  /* for models that give embeddings */
    GW_R_RANKS = 65536,    /* documents for a query: their records are not those of chats */
    GW_R_ENDLESS = 131072, /* a stream that ends with the gateway's accepting */
    GW_R_METRICS = 4096, /* tells of all tenants: on the public address with metrics.public only */
};
struct gw_route {
    const char *path;    /* without /v1 */
    const char *methods; /* "GET, POST" as in Allow; "*": any */
    const char *target;  /* path at the worker; NULL: answered here */
    void (*answer)(struct gw_req *q);
    unsigned props;
    void (*gathered)(struct gw_req *q, const struct gw_page *pages, size_t n); /* of gw_gather() */
    enum gw_dialect dialect;       /* what its clients speak */
    const struct gw_route *spoken; /* where an upstream speaks it, too; else it becomes chat */
};

extern const struct gw_route gw_admin_routes[]; /* admin.c */
extern const size_t gw_admin_n_routes;
extern const struct http_server_ops gw_front_ops, gw_admin_ops; /* ctx: struct gw_loop */

#endif
