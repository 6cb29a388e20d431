/* metrics: what Prometheus reads of the worker.
 *
 * Two kinds: what happens is counted or observed where it happens (metrics.c); what the store, the
 * engine and the guard count themselves is read when the page is rendered (metrics_page.c), so that
 * they need to know nothing of metrics.
 * Thread: any; render: loop. */
#ifndef WORKER_ADMIN_METRICS_H
#define WORKER_ADMIN_METRICS_H

#include <stdbool.h>

struct buf;
struct ctl_decision;
struct fus_engine_unit;
struct fus_report;
struct worker;

enum wk_metric {
    WK_TTFT,
    WK_INTER_TOKEN,
    WK_QUEUE,
    WK_ACTIVE,
    WK_GENERATED,
    WK_SCORED,
    WK_SCORE_LEFT,
    WK_DEVIATION_LEFT,
    WK_GUARD_KL,
    WK_GUARD_REUSE_KL,
    WK_PREDICTION_ERROR,
    WK_EXPOSED_LOAD,
    WK_DECIDE,
    WK_EVENT_READERS_CUT,
    WK_METRICS
};
void wk_metrics_init(void); /* idempotent */
void wk_metric_add(enum wk_metric m, double v);
void wk_metric_observe(enum wk_metric m, double v);      /* of histograms */
void wk_metric_first_token(double s, const char *trace); /* WK_TTFT; trace "": none is kept */
void wk_metrics_request(int status);
void wk_metrics_report(const struct fus_report *r);
void wk_metrics_decision(const struct ctl_decision *d);
void wk_metrics_step(void *ctx, const struct fus_engine_unit *u);    /* engine thread */
int wk_metrics_render(struct worker *w, bool open, struct buf *out); /* open: OpenMetrics */
/* What happened since the start, as members of a JSON object: `"ttft_s":{"le":[…],"n":[…]}`, n of
 * each bucket alone, the last above all bounds; `inter_token_s` and `queue_s` likewise; `tokens`,
 * `busy_s`, `decided` by kind; `generated`. */
void wk_metrics_put(struct buf *out);

#endif
