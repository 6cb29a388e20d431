/* read: what the gateway must know of a request's body before its turn. Thread: its loop. */
#ifndef GATEWAY_REQUEST_READ_H
#define GATEWAY_REQUEST_READ_H

struct gw_loop;
struct gw_req;
void gw_read_begin(struct gw_req *q);         /* the body is complete; q->route->target is set */
void gw_read_free_jobs(struct gw_loop *loop); /* once the helpers have ended */
void gw_read_forget(struct gw_req *q);        /* what was read; a helper's job goes on without q */

#endif
