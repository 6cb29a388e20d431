/* The worker's metrics. Store numbers are gauges and counters copied at render time, so that the
 * store needs to know nothing of metrics. */
#include "worker/reuse/control.h"

#include "base/metric.h"
#include "worker/quality/guard.h"

#include <stdio.h>

static const double ttft_bounds[] = {0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75,
                                     1,     1.5,  2.5,   5,    10,  20,  40,  80};
static const double token_bounds[] = {0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03,
                                      0.05,  0.075,  0.1,   0.2,  0.5,   1,    2.5};
static const double queue_bounds[] = {0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.25,
                                      0.5,    1,     2.5,   5,    10,   30,  60};
#define HIST(n, h, b)                                                                              \
    {                                                                                              \
        .name = (n), .help = (h), .type = METRIC_HISTOGRAM, .bounds = (b),                         \
        .n_bounds = sizeof(b) / sizeof *(b)                                                        \
    }
static struct metric ttft =
    HIST("kvblend_ttft_seconds", "Time from the request's head to its first token.", ttft_bounds);
static struct metric inter_token =
    HIST("kvblend_inter_token_seconds", "Time between two tokens of one choice.", token_bounds);
static struct metric queue_time =
    HIST("kvblend_queue_seconds", "Time a request waited for the engine.", queue_bounds);

enum { TOKENS_PREFIX, TOKENS_REUSED, TOKENS_RECOMPUTED, TOKENS_COMPUTED, TOKENS_COUNT };
#define TOKENS(k)                                                                                  \
    {                                                                                              \
        .name = "kvblend_tokens_total", .labels = "kind=\"" k "\"",                                \
        .help = "Prompt tokens by how their KV came about.", .type = METRIC_COUNTER                \
    }
static struct metric tokens[TOKENS_COUNT] = {TOKENS("prefix"), TOKENS("reused"),
                                             TOKENS("recomputed"), TOKENS("computed")};

static const int codes[] = {200, 202, 400, 401, 404, 405, 408, 409, 413,
                            415, 429, 431, 499, 500, 501, 503, 0};
#define CODE(c)                                                                                    \
    {                                                                                              \
        .name = "kvblend_requests_total", .labels = "code=\"" c "\"",                              \
        .help = "Requests by status; 499 = the client left first.", .type = METRIC_COUNTER         \
    }
static struct metric requests[] = {CODE("200"), CODE("202"),  CODE("400"), CODE("401"), CODE("404"),
                                   CODE("405"), CODE("408"),  CODE("409"), CODE("413"), CODE("415"),
                                   CODE("429"), CODE("431"),  CODE("499"), CODE("500"), CODE("501"),
                                   CODE("503"), CODE("other")};
_Static_assert(sizeof codes / sizeof *codes == sizeof requests / sizeof *requests, "one each");

#define ONE(n, t, h)                                                                               \
    {                                                                                              \
        .name = (n), .type = (t), .help = (h)                                                      \
    }
static struct metric active =
    ONE("kvblend_requests_active", METRIC_GAUGE, "Generation requests in any stage.");
static struct metric generated =
    ONE("kvblend_generated_tokens_total", METRIC_COUNTER, "Tokens generated.");
static struct metric waiting =
    ONE("kvblend_requests_waiting", METRIC_GAUGE, "Requests waiting for the engine.");
static struct metric running =
    ONE("kvblend_choices_running", METRIC_GAUGE, "Choices being decoded.");
static struct metric kv_free =
    ONE("kvblend_kv_tokens_free", METRIC_GAUGE, "Tokens that fit into free KV pages.");
static struct metric kv_shared =
    ONE("kvblend_kv_tokens_shared", METRIC_GAUGE, "Tokens of KV that are held once for several.");
static struct metric ram_used =
    ONE("kvblend_ram_bytes", METRIC_GAUGE, "Bytes of chunk and prefix records in RAM.");
static struct metric ram_budget =
    ONE("kvblend_ram_budget_bytes", METRIC_GAUGE, "Hard budget of the RAM tier.");
static struct metric records = ONE("kvblend_store_records", METRIC_GAUGE, "Records in the store.");
static struct metric hits =
    ONE("kvblend_store_hits_total", METRIC_COUNTER, "Store look-ups that hit.");
static struct metric evictions =
    ONE("kvblend_store_evictions_total", METRIC_COUNTER, "Records evicted for room.");
static struct metric put_total = ONE("kvblend_store_puts_total", METRIC_COUNTER, "Records stored.");
static struct metric refused =
    ONE("kvblend_store_puts_refused_total", METRIC_COUNTER, "Records that found no room.");
static struct metric built =
    ONE("kvblend_builds_total", METRIC_COUNTER, "Chunks built in isolation.");
static struct metric build_failed =
    ONE("kvblend_builds_failed_total", METRIC_COUNTER, "Chunk builds that failed.");
static struct metric pending =
    ONE("kvblend_builds_pending", METRIC_GAUGE, "Chunk builds queued or running.");
static struct metric measured =
    ONE("kvblend_sensitivity_total", METRIC_COUNTER, "Chunks whose context sensitivity is known.");
static struct metric unmeasured =
    ONE("kvblend_sensitivity_pending", METRIC_GAUGE, "Chunks whose sensitivity is to be measured.");
static struct metric misses[STORE_MISS_COUNT];
static char miss_labels[STORE_MISS_COUNT][40];

void wk_metrics_init(void)
{
    struct metric *const ones[] = {
        &ttft,      &inter_token, &queue_time, &active,       &generated, &waiting,  &running,
        &kv_free,   &kv_shared,   &ram_used,   &ram_budget,   &records,   &hits,     &evictions,
        &put_total, &refused,     &built,      &build_failed, &pending,   &measured, &unmeasured};

    for (size_t i = 0; i < sizeof ones / sizeof *ones; i++)
        metric_register(ones[i]);
    wk_metrics_guard_init();
    for (size_t i = 0; i < TOKENS_COUNT; i++)
        metric_register(&tokens[i]);
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++)
        metric_register(&requests[i]);
    for (unsigned i = 0; i < STORE_MISS_COUNT; i++) {
        (void)snprintf(miss_labels[i], sizeof miss_labels[i], "reason=\"%s\"",
                       store_miss_name((enum store_miss)i));
        misses[i].name = "kvblend_store_misses_total";
        misses[i].labels = miss_labels[i];
        misses[i].help = "Store look-ups that missed, by reason.";
        misses[i].type = METRIC_COUNTER;
        metric_register(&misses[i]);
    }
    wk_metrics_control_init();
    wk_metrics_steps_init();
}

void wk_metrics_request(int status, int active_delta)
{
    if (active_delta) metric_add(&active, active_delta);
    if (status == 0) return;
    size_t n = sizeof codes / sizeof *codes, i = 0;
    while (i < n - 1 && codes[i] != status)
        i++;
    metric_add(&requests[i], 1);
}

void wk_metrics_ttft(double seconds)
{
    metric_observe(&ttft, seconds);
}

void wk_metrics_inter_token(double seconds)
{
    metric_observe(&inter_token, seconds);
}

void wk_metrics_queue(double seconds)
{
    metric_observe(&queue_time, seconds);
}

void wk_metrics_report(const struct fus_report *r)
{
    metric_add(&tokens[TOKENS_PREFIX], r->n_prefix);
    metric_add(&tokens[TOKENS_REUSED], r->n_reused);
    metric_add(&tokens[TOKENS_RECOMPUTED], r->n_recomputed);
    metric_add(&tokens[TOKENS_COMPUTED], r->n_computed);
    wk_metrics_guard_report(r);
}

void wk_metrics_generated(uint64_t n)
{
    metric_add(&generated, (double)n);
}

int wk_metrics_render(struct worker *w, struct buf *out)
{
    if (atomic_load(&w->state) == WK_READY || atomic_load(&w->state) == WK_DRAINING) {
        struct store_stats s;
        struct fus_engine_stats e;
        if (w->store) {
            store_get_stats(w->store, &s);
            metric_set(&ram_used, (double)s.used_bytes);
            metric_set(&ram_budget, (double)s.budget_bytes);
            metric_set(&records, (double)s.n_records);
            metric_set(&hits, (double)s.hits);
            metric_set(&evictions, (double)s.evictions);
            metric_set(&put_total, (double)s.puts);
            metric_set(&refused, (double)s.put_refused);
            for (unsigned i = 0; i < STORE_MISS_COUNT; i++)
                metric_set(&misses[i], (double)s.misses[i]);
            wk_metrics_tiers(w, &s);
        }
        if (w->engine) {
            wk_metrics_device(w);
            fus_engine_get_stats(w->engine, &e);
            metric_set(&waiting, e.n_waiting);
            metric_set(&running, e.n_running);
            metric_set(&kv_free, e.kv_tokens_free);
            metric_set(&kv_shared, e.kv_tokens_shared);
        }
        struct wk_build_stats builds;
        wk_builds_get_stats(w, &builds);
        metric_set(&pending, builds.n_pending);
        metric_set(&built, (double)builds.n_built);
        metric_set(&build_failed, (double)builds.n_failed);
        wk_metrics_guard_render(w);
        struct wk_sense_stats sense;
        wk_sense_get_stats(w, &sense);
        metric_set(&measured, (double)sense.n_measured);
        metric_set(&unmeasured, sense.n_pending);
    }
    return metric_render(out);
}
