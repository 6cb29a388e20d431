/* watch: GET /admin/watch, a stream of what goes on: once a second an event with the gateway's
 * figures, the requests that have ended since the one before (recent.h), and each worker's
 * /admin/now. Nothing is asked or kept while nobody watches; GW_WATCHERS may at a time.
 * Thread: the request's loop. */
#ifndef GATEWAY_PROCESS_WATCH_H
#define GATEWAY_PROCESS_WATCH_H

#include <stddef.h>

struct gw_page;
struct gw_req;
enum { GW_WATCHERS = 16 }; /* chosen: a team's screens */
/* The answer of gw_gather(): begins the stream or goes on with it, and asks again in a second. */
void gw_watch_gathered(struct gw_req *q, const struct gw_page *pages, size_t n);
void gw_watch_close(struct gw_req *q); /* the request ends; harmless where it does not watch */

#endif
