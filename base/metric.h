/* metric: counters, gauges and histograms in Prometheus text form, and in OpenMetrics'.
 *
 * Metrics are static objects that register themselves at first use of metric_register(); updates
 * are atomic and never block. Labels are fixed at registration (one object per label value).
 * Thread: any. */
#ifndef BASE_METRIC_H
#define BASE_METRIC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
enum metric_type { METRIC_COUNTER, METRIC_GAUGE, METRIC_HISTOGRAM };
enum { METRIC_BUCKETS_MAX = 24 };
struct metric_exemplar { /* an observation that a trace tells more of */
    char trace[33];      /* "": none yet */
    double value, when_s;
};
struct metric {
    const char *name, *labels /* `a="b",c="d"` or NULL */, *help;
    enum metric_type type;
    const double *bounds; /* histogram: ascending upper bounds, +Inf implied */
    size_t n_bounds;
    struct metric_exemplar *exemplar; /* histogram: [n_bounds + 1]; NULL: none are kept */
    _Atomic double value, sum;
    _Atomic uint64_t bucket[METRIC_BUCKETS_MAX + 1];
    struct metric *next;
};
void metric_register(struct metric *m); /* idempotent */
void metric_add(struct metric *m, double v);
void metric_set(struct metric *m, double v);
void metric_observe(struct metric *m, double v);
/* The same, of a trace that is kept: its id in hex, "": none. */
void metric_observe_traced(struct metric *m, double v, const char *trace);
int metric_render(struct buf *out); /* all, grouped by name */
/* The same with exemplars, for metric_open(): in the text format they are an error. */
int metric_render_traced(struct buf *out);
/* A page in the text format becomes OpenMetrics, but for the end. */
int metric_open(const char *text, size_t len, struct buf *out);
#define METRIC_OPEN_END "# EOF\n"
#define METRIC_OPEN_TYPE "application/openmetrics-text; version=1.0.0; charset=utf-8"
#define METRIC_TEXT_TYPE "text/plain; version=0.0.4; charset=utf-8"
/* By an Accept header; NULL: there is none. */
bool metric_wants_open(const char *accept);
/* kvblend_build_info, and process_* as other programs' pages have it. */
int metric_process(struct buf *out);

#endif
