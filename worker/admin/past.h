/* past: the worker's counters of each minute of the last hour, so that whoever opens the operator's
 * page sees the hour before it.
 *
 * Whenever wk_past_due(): wk_past_keep() → wk_past_put(). Memory: PAST_KEPT texts of some 3 KB; a
 * request costs nothing, since its counters are there anyway. Thread: loop. */
#ifndef WORKER_ADMIN_PAST_H
#define WORKER_ADMIN_PAST_H

#include <stdbool.h>

struct buf;
struct worker;
struct wk_past;
int wk_past_create(struct wk_past **ret);
void wk_past_destroy(struct wk_past *p);
bool wk_past_due(const struct wk_past *p,
                 double now_s); /* wall clock; also where it was set back */
/* counts: members of a JSON object, taken over. What has failed is not kept. */
void wk_past_keep(struct wk_past *p, double now_s, struct buf *counts);
void wk_past_put(const struct wk_past *p, struct buf *out); /* `[{"t":…,…},…]`, the oldest first */
void wk_past_tick(struct worker *w); /* admin.c: of one that is ready, where it is due */

#endif
