/* answer: a target's answer on its way to the client, byte for byte. */
#ifndef GATEWAY_REQUEST_ANSWER_H
#define GATEWAY_REQUEST_ANSWER_H

#include "base/buf.h"
#include "base/net/http.h"
#include "gateway/fleet/lease.h"

#include <stdbool.h>
#include <stdint.h>

struct gw_req;
struct gw_told;
struct gw_answering {
    bool got_head, sse, begun, early; /* begun: the client has headers; early: before this
                                         target answered */
    bool taken; /* a token of a stream, or another answer's head: nothing is sent again */
    bool saw_done, mid_event, streams, framed;
    struct gw_asked *asked; /* a dialect's request, once its body is chat; NULL: it came as chat */
    struct gw_told *told;   /* the way back to a dialect; NULL: the answer goes on as it is */
    bool busy;              /* alive, but not now */
    bool refused;           /* a worker cannot serve it: fallback.h */
    int status;             /* the target's */
    int64_t length;
    struct buf headers, body;  /* body: whole answer, or the unfinished event of a stream */
    uint64_t n_bytes, last_ns; /* last_ns: bytes went to the client */
};
/* What the client has the headers of is a stream of events. */
static inline bool gw_answer_in_events(const struct gw_answering *a)
{
    return a->begun && (a->sse || a->early);
}
extern const struct http_call_ops gw_answer_ops;             /* ctx: struct gw_req */
void gw_answer_reset(struct gw_req *q);                      /* before another try */
void gw_answer_kept(struct gw_req *q);                       /* with what q->fallback keeps */
enum gw_outcome gw_answer_outcome(const struct gw_req *q);   /* of a whole answer */
void gw_answer_keepalive(struct gw_req *q, uint64_t now_ns); /* a comment when one is due */

#endif
