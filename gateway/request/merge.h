/* merge: one Prometheus page out of the gateway's own metrics and its workers'.
 *
 * Worker samples get a label worker="N", and the one of kvblend_model_info where they stand behind
 * it: a worker has one model, so that is no series more, and nobody has to join. A worker family
 * that the gateway has, too, is renamed from kvblend_x to kvblend_worker_x, so that a name means
 * one thing and every family stands once, with one HELP and TYPE line.
 * Life cycle: {0} → gw_merge_page()… → gw_merge_render() → gw_merge_fini().
 * Thread: any. Format: Prometheus text exposition 0.0.4, or OpenMetrics, without its end: all
 * pages in the same. */
#ifndef GATEWAY_REQUEST_MERGE_H
#define GATEWAY_REQUEST_MERGE_H

#include <stddef.h>

struct buf;
struct gw_merge_family;
struct gw_merge {
    struct gw_merge_family *family;
    size_t n, n_own;
};
/* worker: its index, or -1 for the gateway's own page, which comes first. */
int gw_merge_page(struct gw_merge *m, int worker, const char *text, size_t len);
int gw_merge_render(const struct gw_merge *m, struct buf *out);
void gw_merge_fini(struct gw_merge *m);

#endif
