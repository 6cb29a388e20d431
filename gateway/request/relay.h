/* relay: a request's way through its stages: read.c reads its body, relay.c does the rest.
 *
 * READING → SCANNING → (QUEUED) → (PARKED: its targets are full or unsure) → CALLING → RELAYING →
 * ANSWERED; it can be closed at every stage, and gives back then whatever it holds (ticket, lease,
 * call, job). */
#ifndef GATEWAY_REQUEST_RELAY_H
#define GATEWAY_REQUEST_RELAY_H

#include "gateway/fleet/lease.h"
#include "gateway/front/error.h"

#include <stdint.h>

struct gw_loop;
struct gw_req;
void gw_read_begin(struct gw_req *q);         /* the body is complete; q->route->target is set */
void gw_read_free_jobs(struct gw_loop *loop); /* once the helpers have ended */
void gw_read_forget(struct gw_req *q);        /* what was read; a helper's job goes on without q */
/* Wait for news of the fleet before the request is read on. `news` is called at each, and with
 * `over` after a few seconds: it may unpark the request and read on, and must when it is over. */
void gw_relay_park_read(struct gw_req *q, void (*news)(struct gw_req *q, bool over));
void gw_relay_unpark(struct gw_req *q);
void gw_relay_take_turn(struct gw_req *q); /* charge it, then queue or send it */
void gw_relay_close(struct gw_req *q);     /* give back whatever it holds */
void gw_relay_cut(struct gw_req *q, enum gw_error e, const char *message); /* end it now */
void gw_relay_take_turns(struct gw_loop *loop);  /* tickets were granted */
void gw_relay_call_parked(struct gw_loop *loop); /* targets have changed */
void gw_relay_arm_queue(void *loop); /* the timer of the queue's deadlines, which calls it */
/* No target can be had: wait for one in PARKED, or answer why not. */
void gw_relay_no_target(struct gw_req *q, enum gw_pick why, uint32_t wait_ms);

#endif
