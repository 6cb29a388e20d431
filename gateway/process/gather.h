/* gather: the same page of every worker. */
#ifndef GATEWAY_PROCESS_GATHER_H
#define GATEWAY_PROCESS_GATHER_H

#include "base/buf.h"

#include <jansson.h>
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
/* Send every ready worker, or the one that "worker" names, the request as it is: to the route's
 * path at a worker, with q's query and body. The route's `gathered` comes later, at the latest when
 * the time is over, unless q closes. */
void gw_gather(struct gw_req *q);
void gw_gather_path(struct gw_req *q, struct buf *path); /* to this path, whose content it takes */
void gw_gather_cancel(struct gw_gather *g);
bool gw_gather_open(const struct gw_req *q);   /* metrics: it wants OpenMetrics */
json_t *gw_page_read(const struct gw_page *p); /* NULL: it is no JSON */
void gw_answer_value(struct gw_req *q, int status, json_t *answer); /* takes it; NULL: no memory */
/* admin.c: "workers":[{"index","address",NAME: the page, null where there is none}, …]. */
void gw_put_pages(struct gw_server *server, const struct gw_page *pages, size_t n, const char *name,
                  struct buf *b);
/* Of what not every worker knows, such as a record: one answer, what says most. */
void gw_first_gathered(struct gw_req *q, const struct gw_page *pages, size_t n);
/* chunks.c: of /admin/chunks. Of an admin request, whose "worker" it notes: false, there is none of
 * that index, which it has answered. */
void gw_admin_chunks(struct gw_req *q);
void gw_chunks_gathered(struct gw_req *q, const struct gw_page *pages, size_t n);
bool gw_worker_named(struct gw_req *q);
/* orders.c: what several workers are told together, and answer as one; of one it is relayed. */
bool gw_orders_one(const struct gw_req *q); /* one is meant, or there is no other */
void gw_order(struct gw_req *q);
void gw_orders_gathered(struct gw_req *q, const struct gw_page *pages, size_t n);
void gw_tiers_gathered(struct gw_req *q, const struct gw_page *pages, size_t n); /* lists */
/* doctor.c: of /admin/doctor */
void gw_doctor_gathered(struct gw_req *q, const struct gw_page *pages, size_t n);

#endif
