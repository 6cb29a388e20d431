/* fallback: a request that the workers cannot serve goes on to an upstream that may.
 *
 * A worker alone judges what it cannot serve: its refusal says so in a header that names the field,
 * so there is no second list of it here, and the request costs the worker a parse. With
 * `fallback.upstream`, unless the request's key forbids it, the body then goes to that upstream as
 * any try does. The refusal is kept meanwhile: it is the answer where the upstream gives none.
 * Whoever gets it is told why nobody else was asked, or what failed. Thread: the request's loop. */
#ifndef GATEWAY_REQUEST_FALLBACK_H
#define GATEWAY_REQUEST_FALLBACK_H

#include "base/buf.h"
#include "base/net/http.h"
#include "gateway/fleet/lease.h"

#include <stdbool.h>

#define GW_FALLBACK_HEADER "x-kvblend-fallback" /* of the upstream's answer: the field */

struct gw_req;
struct gw_fallback {   /* init {0} */
    char field[64];    /* that the worker does not serve; "": it refused nothing */
    bool asked;        /* the upstream; the refusal is kept */
    const char *model; /* name to send it instead of the request's; NULL: as it came */
    int status;        /* the refusal's, and what else it is made of */
    struct buf headers, body;
};
/* Is the head a worker's word that it cannot serve the request? Then its answer is collected whole,
 * and gw_fallback_begin() follows. */
bool gw_fallback_noted(struct gw_req *q, const struct http_head *h);
/* The refusal is in q->ans. True: it is kept, and q is to be sent, to the upstream; false: it is
 * the answer, with a sentence more. */
bool gw_fallback_begin(struct gw_req *q);
/* There will be no answer; why, in words. True: the refusal that is kept is the answer, and says
 * so; false: there is none. */
bool gw_fallback_failed(struct gw_req *q, const char *why);
bool gw_fallback_unpicked(struct gw_req *q, enum gw_pick why); /* the same: it cannot be sent to */
void gw_fallback_fini(struct gw_req *q);

/* A sentence more, without what JSON escapes, for the message of an error in OpenAI's shape; what
 * is none, or has no room in memory, stays as it is. */
void gw_fallback_explain(struct buf *body, const char *sentence);

#endif
