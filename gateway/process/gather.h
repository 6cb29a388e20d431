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
/* Ask every ready worker, or the one that "worker" names, for the route's page; its `gathered`
 * comes later, at the latest when the time is over, unless q closes. */
void gw_gather(struct gw_req *q);
void gw_gather_path(struct gw_req *q, struct buf *path); /* by q's method; takes path's content */
void gw_gather_cancel(struct gw_gather *g);
bool gw_gather_open(const struct gw_req *q); /* metrics: it wants OpenMetrics */
/* admin.c: "workers":[{"index","address",NAME: the page, null where there is none}, …]. */
void gw_put_pages(struct gw_server *server, const struct gw_page *pages, size_t n, const char *name,
                  struct buf *b);
/* admin.c: of what not every worker knows, such as a record: one answer, what says most. */
void gw_first_gathered(struct gw_req *q, const struct gw_page *pages, size_t n);
/* chunks.c: of /admin/chunks and what is below. Of an admin request, whose "worker" it notes: false
 * there is none of that index, which it has answered. */
void gw_admin_chunks(struct gw_req *q);
void gw_admin_chunk(struct gw_req *q);
void gw_chunks_gathered(struct gw_req *q, const struct gw_page *pages, size_t n);
bool gw_worker_named(struct gw_req *q);
/* doctor.c: of /admin/doctor */
void gw_doctor_gathered(struct gw_req *q, const struct gw_page *pages, size_t n);

#endif
