/* send: a request's way to a target: choice, headers, body in pieces, and what to do when it
 * fails. */
#ifndef GATEWAY_REQUEST_SEND_H
#define GATEWAY_REQUEST_SEND_H

#include "base/buf.h"
#include "base/net/http.h"
#include "gateway/fleet/lease.h"
#include "gateway/request/edit.h"

#include <stdbool.h>
#include <stdint.h>

struct gw_req;
struct gw_sending {
    struct gw_lease lease;
    struct http_call *call;
    uint64_t start_ns;
    struct buf model; /* the name that the target knows, quoted */
    struct gw_edit *edit;
    struct gw_pieces pieces; /* v: &whole where there is no edit */
    struct iovec whole;
};
void gw_send(struct gw_req *q);        /* choose a target and send; or gw_relay_no_target() */
void gw_send_leased(struct gw_req *q); /* to q->send.lease */
/* Of either direction: hop-by-hop, or ours to say. */
bool gw_send_drops(const struct http_header *h);
/* Is the header listed in a Connection header? Such ones belong to this hop alone. */
bool gw_send_hop_only(const struct http_head *h, const char *name);
/* The target's answer is a refusal that another target may not give: true when q is on its way
 * there. */
bool gw_send_elsewhere(struct gw_req *q);
/* Nothing of an answer counts yet; sent: the target may have the request. */
void gw_send_failed(struct gw_req *q, int status, bool sent);
void gw_send_done(struct gw_req *q, enum gw_outcome o); /* the lease goes back; harmless without */
void gw_send_cancel(struct gw_req *q);                  /* the call and the lease */
void gw_send_forget(struct gw_req *q); /* the body: it is sent, and will not be again */
void gw_send_fini(struct gw_req *q);

#endif
