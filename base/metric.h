/* metric: counters, gauges and histograms in Prometheus text form.
 *
 * Metrics are static objects that register themselves at first use of metric_register(); updates
 * are atomic and never block. Labels are fixed at registration (one object per label value).
 * Thread: any. */
#ifndef BASE_METRIC_H
#define BASE_METRIC_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
enum metric_type { METRIC_COUNTER, METRIC_GAUGE, METRIC_HISTOGRAM };
enum { METRIC_BUCKETS_MAX = 24 };
struct metric {
    const char *name, *labels /* `a="b",c="d"` or NULL */, *help;
    enum metric_type type;
    const double *bounds; /* histogram: ascending upper bounds, +Inf implied */
    size_t n_bounds;
    _Atomic double value, sum;
    _Atomic uint64_t bucket[METRIC_BUCKETS_MAX + 1];
    struct metric *next;
};
void metric_register(struct metric *m); /* idempotent */
void metric_add(struct metric *m, double v);
void metric_set(struct metric *m, double v);
void metric_observe(struct metric *m, double v);
int metric_render(struct buf *out); /* all, grouped by name */
/* kvblend_build_info, and process_* as other programs' pages have it. */
int metric_process(struct buf *out);

#endif
