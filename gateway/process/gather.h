/* gather: the same page of every worker. */
#ifndef GATEWAY_PROCESS_GATHER_H
#define GATEWAY_PROCESS_GATHER_H

#include "base/buf.h"

#include <stddef.h>

struct gw_gather;
struct gw_req;
struct gw_page {
    unsigned index;
    int status; /* HTTP status, 0 = no answer */
    struct buf body;
};
typedef void (*gw_gather_fn)(struct gw_req *q, const struct gw_page *pages, size_t n);
/* Ask every ready worker; done comes later, at the latest after timeout_ms, unless q closes. */
int gw_gather_start(struct gw_req *q, const char *path, unsigned timeout_ms, gw_gather_fn done);
void gw_gather_cancel(struct gw_gather *g);

#endif
