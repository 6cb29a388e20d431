/* gather: the same page of every worker. */
#ifndef GATEWAY_PROCESS_GATHER_H
#define GATEWAY_PROCESS_GATHER_H

#include "base/buf.h"

#include <stdbool.h>

struct gw_gather;
struct gw_req;
struct gw_server;
struct gw_page {
    unsigned index;
    int status; /* HTTP status, 0 = no answer */
    struct buf body;
    struct gw_gather *gather;
    struct http_call *call; /* while it is under way */
};
/* Ask every ready worker for the route's page; its `gathered` comes later, at the latest when the
 * time is over, unless q closes. */
void gw_gather(struct gw_req *q);
void gw_gather_cancel(struct gw_gather *g);
bool gw_gather_open(const struct gw_req *q); /* metrics: it wants OpenMetrics */
/* admin.c: "workers":[{"index","address",NAME: the page, null where there is none}, …]. */
void gw_put_pages(struct gw_server *server, const struct gw_page *pages, size_t n, const char *name,
                  struct buf *b);
/* doctor.c: of /admin/doctor */
void gw_doctor_gathered(struct gw_req *q, const struct gw_page *pages, size_t n);

#endif
