/* Metrics of the controller: how well it foresaw, and what waiting for loads has cost. */
#include "worker/reuse/control.h"

#include "base/metric.h"

#include <math.h>
#include <stdio.h>

static const double error_bounds[] = {0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 5};
static const double wait_bounds[] = {0.0001, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1,
                                     0.25,   0.5,   1,     2.5,  5,     10};
static const double decide_bounds[] = {2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 1e-3, 1e-2};
#define HIST(n, h, b)                                                                              \
    {                                                                                              \
        .name = (n), .help = (h), .type = METRIC_HISTOGRAM, .bounds = (b),                         \
        .n_bounds = sizeof(b) / sizeof *(b)                                                        \
    }
static struct metric error =
    HIST("kvblend_prediction_error_ratio",
         "Predicted prefill time against the measured one: |p - m| / m.", error_bounds);
static struct metric exposed =
    HIST("kvblend_exposed_load_seconds",
         "Prefill time beyond computing: waiting for stored KV, and others' turns.", wait_bounds);
static struct metric decide =
    HIST("kvblend_decide_seconds", "Time to decide on one prompt.", decide_bounds);
static struct metric decisions[POL_STRATEGY_COUNT][2];
static char labels[POL_STRATEGY_COUNT][2][56];

void wk_metrics_control_init(void)
{
    metric_register(&error);
    metric_register(&exposed);
    metric_register(&decide);
    for (int s = POL_FULL; s < POL_STRATEGY_COUNT; s++)
        for (int by = 0; by < 2; by++) {
            (void)snprintf(labels[s][by], sizeof labels[s][by], "strategy=\"%s\",by=\"%s\"",
                           pol_strategy_name((enum pol_strategy)s), by ? "controller" : "rules");
            decisions[s][by] = (struct metric){.name = "kvblend_decisions_total",
                                               .labels = labels[s][by],
                                               .help = "Prompts by what was decided, and by whom.",
                                               .type = METRIC_COUNTER};
            metric_register(&decisions[s][by]);
        }
}

void wk_metrics_decision(const struct ctl_decision *d)
{
    double measured = d->measured.prefill_s, predicted = d->out.predicted.ttft_s;

    metric_add(&decisions[d->out.strategy][d->by == CTL_BY_CONTROLLER], 1);
    metric_observe(&decide, d->decide_s);
    if (measured <= 0) return;
    double wait = measured - d->measured.compute_s;
    metric_observe(&exposed, wait > 0 ? wait : 0);
    if (predicted > 0 && d->measured.whole)
        metric_observe(&error, fabs(predicted - measured) / measured);
}
