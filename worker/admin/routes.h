/* admin routes: what operators see and change; the table of all routes names them (routes.c).
 * Thread: loop; tasks and orders: helper. */
#ifndef WORKER_ADMIN_ROUTES_H
#define WORKER_ADMIN_ROUTES_H

#include "worker/call.h"

struct wk_order; /* what a POST about tiers asks for */
struct wk_route {
    const char *path, *method, *name;
    unsigned flags;
    void (*fn)(struct worker *w, struct wk_call *c, const char *rest);
    int (*task)(struct wk_task *t);                            /* in place of fn: on a helper */
    int (*order)(struct wk_task *t, const struct wk_order *a); /* likewise, the body read */
};

/* admin.c */
void wk_admin_now(struct worker *w, struct wk_call *c, const char *rest);
void wk_admin_past(struct worker *w, struct wk_call *c, const char *rest);
void wk_admin_status(struct worker *w, struct wk_call *c, const char *rest);
void wk_admin_quality(struct worker *w, struct wk_call *c, const char *rest);
void wk_admin_profile(struct worker *w, struct wk_call *c, const char *rest);
void wk_admin_decisions(struct worker *w, struct wk_call *c,
                        const char *id); /* "": all, a line each */
void wk_admin_heat(struct worker *w, struct wk_call *c, const char *id);
int wk_admin_segment(struct wk_task *t);
/* chunks.c */
void wk_admin_chunks(struct worker *w, struct wk_call *c, const char *rest);
void wk_admin_chunk(struct worker *w, struct wk_call *c, const char *id); /* GET, DELETE */
void wk_admin_chunk_order(struct worker *w, struct wk_call *c, const char *rest);
int wk_admin_namespaces(struct wk_task *t);
/* admin_mrc.c */
void wk_admin_mrc(struct worker *w, struct wk_call *c, const char *rest);
/* doctor.c */
int wk_admin_doctor(struct wk_task *t);
/* admin_tiers.c */
int wk_admin_tiers(struct wk_task *t);
int wk_order_run(struct wk_task *t); /* data: the route */
int wk_order_clear(struct wk_task *t, const struct wk_order *a);
int wk_order_resize(struct wk_task *t, const struct wk_order *a);
int wk_order_policy(struct wk_task *t, const struct wk_order *a);
int wk_order_quota(struct wk_task *t, const struct wk_order *a);
int wk_order_verify(struct wk_task *t, const struct wk_order *a);
int wk_order_preload(struct wk_task *t, const struct wk_order *a);
int wk_order_flush(struct wk_task *t, const struct wk_order *a);

void wk_put_tiers(struct worker *w, struct buf *b);        /* metrics_page.c: objects, RAM first */
void wk_put_misses(struct buf *b, const uint64_t *misses); /* `,"misses":{…}` by reason */

#endif
