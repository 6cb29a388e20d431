/* What happens in the worker, counted and observed where it happens. A line a step in the debug log
 * is a trace of what the pauses of running streams are made of. */
#include "worker/admin/metrics.h"

#include "base/buf.h"
#include "base/log.h"
#include "base/metric.h"
#include "fusor/core/engine.h"
#include "worker/reuse/reuse.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const double ttft_bounds[] = {0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75,
                                     1,     1.5,  2.5,   5,    10,  20,  40,  80};
static const double token_bounds[] = {0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03,
                                      0.05,  0.075,  0.1,   0.2,  0.5,   1,    2.5};
static const double queue_bounds[] = {0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.25,
                                      0.5,    1,     2.5,   5,    10,   30,  60};
static const double share_bounds[] = {0.01, 0.02, 0.05, 0.1, 0.2, 0.3,
                                      0.4,  0.5,  0.6,  0.7, 0.8, 0.9};
static const double kl_bounds[] = {0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10};
static const double error_bounds[] = {0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 5};
static const double wait_bounds[] = {0.0001, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1,
                                     0.25,   0.5,   1,     2.5,  5,     10};
static const double decide_bounds[] = {2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 1e-3, 1e-2};
static const double step_bounds[] = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03,
                                     0.05,   0.075, 0.1,    0.15,  0.2,  0.5,   1};

static struct metric_exemplar ttft_exemplars[sizeof ttft_bounds / sizeof *ttft_bounds + 1];

#define HIST(n, b, h)                                                                              \
    {                                                                                              \
        .name = (n), .help = (h), .type = METRIC_HISTOGRAM, .bounds = (b),                         \
        .n_bounds = sizeof(b) / sizeof *(b)                                                        \
    }
#define COUNTER(n, h)                                                                              \
    {                                                                                              \
        .name = (n), .help = (h), .type = METRIC_COUNTER                                           \
    }
static struct metric events[WK_METRICS] = {
    [WK_TTFT] = HIST("kvblend_ttft_seconds", ttft_bounds,
                     "Time from the request's head to its first token."),
    [WK_INTER_TOKEN] =
        HIST("kvblend_inter_token_seconds", token_bounds, "Time between two tokens of one choice."),
    [WK_QUEUE] =
        HIST("kvblend_queue_seconds", queue_bounds, "Time a request waited for the engine."),
    [WK_ACTIVE] = {.name = "kvblend_requests_active",
                   .type = METRIC_GAUGE,
                   .help = "Generation requests in any stage."},
    [WK_GENERATED] = COUNTER("kvblend_generated_tokens_total", "Tokens generated."),
    [WK_EVENT_READERS_CUT] = COUNTER("kvblend_event_readers_cut_total",
                                     "Readers of KV events that were cut off: they took too few."),
    [WK_SCORED] = COUNTER("kvblend_scored_documents_total", "Documents scored for a query."),
    [WK_SCORE_LEFT] = HIST("kvblend_score_left", share_bounds,
                           "Share of a blended request's selection score that was not recomputed."),
    [WK_DEVIATION_LEFT] = HIST("kvblend_deviation_left", share_bounds,
                               "Share of its K deviation that was not recomputed."),
    [WK_GUARD_KL] = HIST("kvblend_guard_kl_nats", kl_bounds,
                         "KL(full || blend) of shadows, mean of the first tokens."),
    [WK_GUARD_REUSE_KL] = HIST("kvblend_guard_reuse_kl_nats", kl_bounds,
                               "KL(full || plain reuse) on the same prompts."),
    [WK_PREDICTION_ERROR] = HIST("kvblend_prediction_error_ratio", error_bounds,
                                 "Predicted prefill time against the measured one: |p - m| / m."),
    [WK_EXPOSED_LOAD] =
        HIST("kvblend_exposed_load_seconds", wait_bounds,
             "Prefill time beyond computing: waiting for stored KV, and others' turns."),
    [WK_DECIDE] = HIST("kvblend_decide_seconds", decide_bounds, "Time to decide on one prompt."),
};

/* ---- one metric for each value of a label ---- */
enum { TOKEN_KINDS = 4, CODES = 17, LABELS_MAX = 64 };
static const char *const token_kinds[TOKEN_KINDS] = {"prefix", "reused", "recomputed", "computed"};
static const char *const codes[CODES] = {"200", "202", "400", "401", "404",  "405",
                                         "408", "409", "413", "415", "429",  "431",
                                         "499", "500", "501", "503", "other"};
static const char *const works[FUS_WORKS] = {"prefill", "decode", "build"};
static const char *const step_names[FUS_STEP_KINDS + 1] = {
    "begin", "embed", "stored", "kv", "rows", "score", "sink", "head", "decode"};
static struct metric tokens[TOKEN_KINDS], requests[CODES], busy[FUS_WORKS],
    steps[FUS_STEP_KINDS + 1], decisions[POL_STRATEGY_COUNT][2];
static char labels[LABELS_MAX][56];
static size_t n_labels;

__attribute__((format(printf, 3, 4))) static void
add_labelled(struct metric *m, const struct metric *like, const char *fmt, ...)
{
    char *label = labels[n_labels++];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(label, sizeof labels[0], fmt, ap);
    va_end(ap);
    *m = (struct metric){.name = like->name,
                         .labels = label,
                         .help = like->help,
                         .type = like->type,
                         .bounds = like->bounds,
                         .n_bounds = like->n_bounds};
    metric_register(m);
}

static void add_families(void)
{
    static const struct metric token = COUNTER("kvblend_tokens_total",
                                               "Prompt tokens by how their KV came about."),
                               request =
                                   COUNTER("kvblend_requests_total",
                                           "Requests by status; 499 = the client left first."),
                               decision = COUNTER("kvblend_decisions_total",
                                                  "Prompts by what was decided, and by whom."),
                               work = COUNTER("kvblend_engine_busy_seconds_total",
                                              "What the engine's time went to, by kind of work."),
                               step =
                                   HIST("kvblend_step_seconds", step_bounds,
                                        "Steps of the engine while choices are decoded, by kind.");

    for (int i = 0; i < TOKEN_KINDS; i++)
        add_labelled(&tokens[i], &token, "kind=\"%s\"", token_kinds[i]);
    for (int i = 0; i < CODES; i++)
        add_labelled(&requests[i], &request, "code=\"%s\"", codes[i]);
    for (int s = POL_FULL; s < POL_STRATEGY_COUNT; s++)
        for (int by = 0; by < 2; by++)
            add_labelled(&decisions[s][by], &decision, "strategy=\"%s\",by=\"%s\"",
                         pol_strategy_name((enum pol_strategy)s), by ? "controller" : "rules");
    for (int i = 0; i < FUS_WORKS; i++)
        add_labelled(&busy[i], &work, "work=\"%s\"", works[i]);
    for (int i = 0; i <= FUS_STEP_KINDS; i++)
        add_labelled(&steps[i], &step, "kind=\"%s\"", step_names[i]);
}

_Static_assert(TOKEN_KINDS + CODES + FUS_WORKS + FUS_STEP_KINDS + 1 + 2 * POL_STRATEGY_COUNT <=
                   LABELS_MAX,
               "a label for each");

void wk_metrics_init(void)
{
    if (n_labels > 0) return;
    events[WK_TTFT].exemplar = ttft_exemplars;
    for (size_t i = 0; i < WK_METRICS; i++)
        metric_register(&events[i]);
    add_families();
}

/* ---- what happens ---- */
void wk_metric_add(enum wk_metric m, double v)
{
    metric_add(&events[m], v);
}

void wk_metric_first_token(double s, const char *trace)
{
    metric_observe_traced(&events[WK_TTFT], s, trace);
}

void wk_metric_observe(enum wk_metric m, double v)
{
    metric_observe(&events[m], v);
}

void wk_metrics_request(int status)
{
    char code[12];
    size_t i = 0;

    (void)snprintf(code, sizeof code, "%d", status);
    while (i < CODES - 1 && strcmp(codes[i], code) != 0)
        i++;
    metric_add(&requests[i], 1);
}

void wk_metrics_report(const struct fus_report *r)
{
    const uint64_t n[TOKEN_KINDS] = {r->n_prefix, r->n_reused, r->n_recomputed, r->n_computed};

    for (int i = 0; i < TOKEN_KINDS; i++)
        metric_add(&tokens[i], (double)n[i]);
    if (r->score_left >= 0) wk_metric_observe(WK_SCORE_LEFT, r->score_left);
    if (r->deviation_left >= 0) wk_metric_observe(WK_DEVIATION_LEFT, r->deviation_left);
}

void wk_metrics_decision(const struct ctl_decision *d)
{
    double measured = d->measured.prefill_s, predicted = d->out.predicted.ttft_s;

    metric_add(&decisions[d->out.strategy][d->by == CTL_BY_CONTROLLER], 1);
    wk_metric_observe(WK_DECIDE, d->decide_s);
    if (measured <= 0) return;
    double wait = measured - d->measured.compute_s;
    wk_metric_observe(WK_EXPOSED_LOAD, wait > 0 ? wait : 0);
    if (predicted > 0 && d->measured.whole)
        wk_metric_observe(WK_PREDICTION_ERROR, fabs(predicted - measured) / measured);
}

void wk_metrics_step(void *ctx, const struct fus_engine_unit *u)
{
    const int kind = u->work == FUS_WORK_DECODE ? FUS_STEP_KINDS : (int)u->kind;

    (void)ctx;
    metric_add(&busy[u->work], (double)u->spent_ns / 1e9);
    if (!u->streams) return;
    metric_observe(&steps[kind], (double)u->took_ns / 1e9);
    log_event(LOG_DEBUG, "step", "kind=%s rows=%zu first=%d ms=%.2f predicted_ms=%.2f left_ms=%.2f",
              step_names[kind], u->rows, u->first, (double)u->took_ns / 1e6, u->predicted_ns / 1e6,
              u->left_ns / 1e6);
}

/* ---- as JSON ---- */
static void put_histogram(struct buf *out, const char *name, const struct metric *m)
{
    buf_addf(out, "\"%s\":{\"le\":[", name);
    for (size_t i = 0; i < m->n_bounds; i++)
        buf_addf(out, "%s%g", i ? "," : "", m->bounds[i]);
    buf_adds(out, "],\"n\":[");
    for (size_t i = 0; i <= m->n_bounds; i++)
        buf_addf(out, "%s%llu", i ? "," : "", (unsigned long long)atomic_load(&m->bucket[i]));
    buf_adds(out, "]}");
}

static void put_kinds(struct buf *out, const char *name, const char *const *kinds,
                      const struct metric *m, size_t n)
{
    buf_addf(out, ",\"%s\":{", name);
    for (size_t i = 0; i < n; i++)
        buf_addf(out, "%s\"%s\":%.15g", i ? "," : "", kinds[i], atomic_load(&m[i].value));
    buf_addc(out, '}');
}

void wk_metrics_put(struct buf *out)
{
    put_histogram(out, "ttft_s", &events[WK_TTFT]);
    buf_addc(out, ',');
    put_histogram(out, "inter_token_s", &events[WK_INTER_TOKEN]);
    buf_addc(out, ',');
    put_histogram(out, "queue_s", &events[WK_QUEUE]);
    put_kinds(out, "tokens", token_kinds, tokens, TOKEN_KINDS);
    put_kinds(out, "busy_s", works, busy, FUS_WORKS);
    buf_addf(out, ",\"generated\":%.15g,\"decided\":{", atomic_load(&events[WK_GENERATED].value));
    for (int s = POL_FULL; s < POL_STRATEGY_COUNT; s++)
        buf_addf(out, "%s\"%s\":%.15g", s > POL_FULL ? "," : "",
                 pol_strategy_name((enum pol_strategy)s),
                 atomic_load(&decisions[s][0].value) + atomic_load(&decisions[s][1].value));
    buf_addc(out, '}');
}
