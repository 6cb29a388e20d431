/* spans: a request that ends as spans of a trace: the request itself, its wait for a turn, and its
 * last try at a target. Nothing of what was asked or answered. Thread: that of its loop. */
#ifndef GATEWAY_REQUEST_SPANS_H
#define GATEWAY_REQUEST_SPANS_H

#include <stdbool.h>

struct gw_req;
/* Nothing where traces are off, or its trace is not kept. aborted: the client left. */
void gw_spans_put(const struct gw_req *q, bool aborted);

#endif
