/* What the engine's time goes to, and, while streams run, step by step: what their pauses are made
 * of. A line a step in the debug log is a trace of them. */
#include "worker/worker.h"

#include "base/log.h"
#include "base/metric.h"

#include <stdio.h>

static const double bounds[] = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03,
                                0.05,   0.075, 0.1,    0.15,  0.2,  0.5,   1};
static const char *const names[FUS_STEP_KINDS + 1] = {"begin", "embed", "stored", "kv",    "rows",
                                                      "score", "sink",  "head",   "decode"};
static struct metric steps[FUS_STEP_KINDS + 1];
static char labels[FUS_STEP_KINDS + 1][24];
#define BUSY(work_)                                                                                \
    {                                                                                              \
        .name = "kvblend_engine_busy_seconds_total", .labels = "work=\"" work_ "\"",               \
        .help = "What the engine's time went to, by kind of work.", .type = METRIC_COUNTER,        \
    }
static struct metric busy[FUS_WORKS] = {BUSY("prefill"), BUSY("decode"), BUSY("build")};

void wk_metrics_steps_init(void)
{
    for (int i = 0; i < FUS_WORKS; i++)
        metric_register(&busy[i]);
    for (int i = 0; i <= FUS_STEP_KINDS; i++) {
        (void)snprintf(labels[i], sizeof labels[i], "kind=\"%s\"", names[i]);
        steps[i] =
            (struct metric){.name = "kvblend_step_seconds",
                            .labels = labels[i],
                            .help = "Steps of the engine while choices are decoded, by kind.",
                            .type = METRIC_HISTOGRAM,
                            .bounds = bounds,
                            .n_bounds = sizeof bounds / sizeof *bounds};
        metric_register(&steps[i]);
    }
}

void wk_metrics_step(void *ctx, const struct fus_engine_unit *u)
{
    const int kind = u->work == FUS_WORK_DECODE ? FUS_STEP_KINDS : (int)u->kind;

    (void)ctx;
    metric_add(&busy[u->work], (double)u->spent_ns / 1e9);
    if (!u->streams) return;
    metric_observe(&steps[kind], (double)u->took_ns / 1e9);
    log_event(LOG_DEBUG, "step", "kind=%s rows=%zu first=%d ms=%.2f predicted_ms=%.2f left_ms=%.2f",
              names[kind], u->rows, u->first, (double)u->took_ns / 1e6, u->predicted_ns / 1e6,
              u->left_ns / 1e6);
}
