/* admin routes: what operators see and change. Thread: loop; tasks: helper. */
#ifndef WORKER_ADMIN_ROUTES_H
#define WORKER_ADMIN_ROUTES_H

#include "worker/call.h"

/* 0: not its path, and nothing was answered. */
int wk_admin(struct worker *w, struct wk_call *c, const char *path);
int wk_admin_tiers(struct worker *w, struct wk_call *c, const char *path);

void wk_put_tiers(struct worker *w, struct buf *b);        /* objects, RAM first */
void wk_put_misses(struct buf *b, const uint64_t *misses); /* `,"misses":{…}` by reason */

#endif
