#include "tools/bench/fleet_verify.h"
#include "tools/bench/bench.h"
#include "tools/bench/svg.h"

#include "base/mem.h"
#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { P50, P95, QUANTILES };
enum { STRATEGIES_MAX = 16 };

struct measured { /* a row of the report */
    const char *strategy;
    double rate, ms[QUANTILES];
    double outside_ms;            /* of the TTFT, what the engine has no part in */
    double prefill_ms, answer_ms; /* of the engine, each request in the mean */
    size_t n;
    const json_t *requests; /* one by one; NULL: not told */
};

static double number_of(const json_t *o, const char *name)
{
    const json_t *v = json_object_get(o, name);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static int read_row(const struct fleet_opts *o, const struct fleet_load *kind, const json_t *row,
                    const json_t *meta, struct measured *ret, struct err *err)
{
    const char *name = json_string_value(json_object_get(row, "strategy"));
    struct measured m = {.strategy = name ? name : "",
                         .rate = number_of(row, "rate"),
                         .ms = {number_of(row, "ttft_ms_p50"), number_of(row, "ttft_ms_p95")},
                         .n = (size_t)json_integer_value(json_object_get(row, "n"))};
    const json_t *busy = json_object_get(row, "busy_ms"), *list = json_object_get(row, "requests");
    if (json_array_size(list) == m.n) m.requests = list;
    m.outside_ms = number_of(json_object_get(meta, "outside_ms_unloaded"), m.strategy);
    m.prefill_ms = number_of(busy, "prefill");
    m.answer_ms = number_of(busy, "decode");
    if (!(m.prefill_ms > 0 && m.answer_ms >= 0 && isfinite(m.outside_ms))) {
        const double alone_ms = number_of(json_object_get(meta, "ttft_ms_unloaded"), m.strategy);
        const double step_ms = number_of(json_object_get(meta, "itl_ms_unloaded"), m.strategy);
        struct fleet_opts a = *o;
        if (step_ms > 0) a.token_s = step_ms / 1e3;
        m.outside_ms = 0;
        m.prefill_ms = alone_ms;
        m.answer_ms = 1e3 * fleet_answer_s(&a, kind->answer_tokens, alone_ms / 1e3);
    }
    *ret = m;
    if (!(m.rate > 0 && m.ms[P50] > 0 && m.ms[P95] > 0 && m.prefill_ms > 0) || m.n == 0)
        return err_set(err, -EINVAL, "--verify: a row without rate, TTFT, n or unloaded time");
    return 0;
}

/* One worker without tiers. ret_ms: TTFT. */
static int simulate(const struct fleet_opts *opts, const struct fleet_load *l,
                    const struct measured *m, const double *prefill_s, double ret_ms[QUANTILES])
{
    struct fleet_opts o = *opts;
    struct fleet_result t;
    o.n_workers = 1;
    o.n_shards = 0;
    o.strategy = POL_FULL;
    o.prefill_s = prefill_s;
    o.answer_s = m->answer_ms / 1e3;
    o.warm_share = 0;
    o.max_queue = 0;
    int r = fleet_run(&o, l, &t);
    if (r < 0) return r;
    ret_ms[P50] = m->outside_ms + 1e3 * fleet_quantile(&t, 0.5);
    ret_ms[P95] = m->outside_ms + 1e3 * fleet_quantile(&t, 0.95);
    fleet_result_fini(&t);
    return 0;
}

/* When each came, as a Poisson process where the report does not say, and what it took. */
static void arrivals(const struct measured *m, struct fleet_request *req, double *prefill_s)
{
    static const uint32_t one = 0;
    struct rng rng = {BENCH_ARRIVAL_SEED};
    double now = 0;
    for (size_t i = 0; i < m->n; i++) {
        const json_t *q = json_array_get(m->requests, i);
        const double at_s = number_of(q, "at_s"), engine_ms = number_of(q, "engine_ms");
        now = at_s >= now ? at_s : now + rng_exp(&rng, 1 / m->rate);
        req[i] = (struct fleet_request){now, &one, 1};
        prefill_s[i] = (engine_ms > 0 ? engine_ms : m->prefill_ms) / 1e3;
    }
}

/* ret_off: with the work of each, with the mean of all. */
static int verify_row(const struct fleet_opts *o, const struct fleet_load *kind,
                      const struct measured *m, double ret_off[2][QUANTILES], json_t *rows)
{
    struct fleet_load l = *kind;
    double ms[2][QUANTILES], *prefill_s = mem_alloc(m->n * sizeof *prefill_s);
    l.n = m->n;
    l.n_docs = 1;
    l.req = mem_alloc(m->n * sizeof *l.req);
    int r = l.req && prefill_s ? 0 : -ENOMEM;
    if (r == 0) {
        arrivals(m, l.req, prefill_s);
        r = simulate(o, &l, m, prefill_s, ms[0]);
    }
    for (size_t i = 0; r == 0 && i < m->n; i++)
        prefill_s[i] = m->prefill_ms / 1e3;
    if (r == 0) r = simulate(o, &l, m, prefill_s, ms[1]);
    mem_free(l.req);
    mem_free(prefill_s);
    if (r < 0) return r;
    for (int i = 0; i < 2; i++)
        for (int q = 0; q < QUANTILES; q++)
            ret_off[i][q] = ms[i][q] / m->ms[q] - 1;
    const double busy = m->rate * (m->prefill_ms + m->answer_ms) / 1e3;
    json_array_append_new(
        rows,
        json_pack("{s:s, s:f, s:f, s:f, s:b, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}",
                  "strategy", m->strategy, "rate", m->rate, "busy", busy, "alone_ms",
                  m->outside_ms + m->prefill_ms, "each", m->requests != NULL, "ttft_ms_p50",
                  m->ms[P50], "simulated_ms_p50", ms[0][P50], "ttft_ms_p95", m->ms[P95],
                  "simulated_ms_p95", ms[0][P95], "off_p50", ret_off[0][P50], "off_p95",
                  ret_off[0][P95], "mean_ms_p50", ms[1][P50], "mean_ms_p95", ms[1][P95],
                  "off_mean_p50", ret_off[1][P50], "off_mean_p95", ret_off[1][P95]));
    (void)printf("%-10s %8.3f %5.2f", m->strategy, m->rate, busy);
    for (int q = 0; q < QUANTILES; q++)
        (void)printf(" %9.0f %9.0f %+6.1f %% %+6.1f %%", m->ms[q], ms[0][q], 100 * ret_off[0][q],
                     100 * ret_off[1][q]);
    (void)printf("\n");
    return 0;
}

/* off: [2, QUANTILES, n] as verify_row(), unsigned. */
static void sum_up(double *off, size_t n, json_t *meta)
{
    static const char *const field[2][QUANTILES][2] = {
        {{"off_median", "off_worst"}, {"off_p95_median", "off_p95_worst"}},
        {{"off_mean_median", "off_mean_worst"}, {"off_mean_p95_median", "off_mean_p95_worst"}}};
    for (int i = 0; i < 2; i++)
        for (int q = 0; q < QUANTILES; q++) {
            double *of = off + (size_t)(i * QUANTILES + q) * n;
            const double median = bench_quantile(of, n, 0.5), worst = bench_quantile(of, n, 1);
            json_object_set_new(meta, field[i][q][0], json_real(median));
            json_object_set_new(meta, field[i][q][1], json_real(worst));
            (void)printf("%s, %s: off by %.1f %% (median), %.1f %% at worst\n", q ? "p95" : "p50",
                         i ? "each the mean of its point" : "each its own work", 100 * median,
                         100 * worst);
        }
}

int fleet_verify(const struct fleet_opts *o, const struct fleet_load *kind, const char *path,
                 json_t *meta, json_t *rows, struct err *err)
{
    json_error_t e;
    json_t *file = json_load_file(path, 0, &e);
    const json_t *measured = json_object_get(file, "rows");
    const json_t *about = json_object_get(file, "meta");
    const size_t n = json_array_size(measured);
    double *off = mem_alloc((n + 1) * 2 * QUANTILES * sizeof *off);
    int r = 0;
    if (!file || n == 0 || !json_object_get(about, "ttft_ms_unloaded"))
        r = err_set(err, -EINVAL, "%s: not a report of kvblend-bench throughput", path);
    else if (!off)
        r = err_set(err, -ENOMEM, "out of memory");
    else if (json_integer_value(json_object_get(about, "streams")) > 0)
        r = err_set(err, -EINVAL, "%s: measured beside streams, which are not simulated", path);
    else
        (void)printf("%-10s %8s %5s %9s %9s %8s %8s %9s %9s %8s %8s\n", "", "rate/s", "busy",
                     "p50 ms", "simulated", "off", "by mean", "p95 ms", "simulated", "off",
                     "by mean");
    for (size_t i = 0; r == 0 && i < n; i++) {
        struct measured m;
        double of[2][QUANTILES] = {{0}};
        r = read_row(o, kind, json_array_get(measured, i), about, &m, err);
        if (r < 0) break;
        r = verify_row(o, kind, &m, of, rows);
        if (r < 0) r = err_set(err, r, "the simulation failed: %s", err_name(r));
        for (size_t k = 0; r == 0 && k < 2 * QUANTILES; k++)
            off[k * n + i] = fabs(of[k / QUANTILES][k % QUANTILES]);
    }
    if (r == 0) sum_up(off, n, meta);
    json_decref(file);
    mem_free(off);
    return r;
}

/* Points of one strategy from row `at` on; returns where the next one begins. */
static size_t curve(const json_t *rows, size_t at, double *x, double *measured, double *simulated)
{
    const char *name = json_string_value(json_object_get(json_array_get(rows, at), "strategy"));
    size_t i = at;
    for (; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        if (strcmp(json_string_value(json_object_get(row, "strategy")), name) != 0) break;
        x[i] = number_of(row, "busy");
        measured[i] = number_of(row, "ttft_ms_p95") / number_of(row, "alone_ms");
        simulated[i] = number_of(row, "simulated_ms_p95") / number_of(row, "alone_ms");
    }
    return i;
}

int fleet_verify_plot(const json_t *rows, const char *path, struct err *err)
{
    const size_t n = json_array_size(rows);
    double *x = mem_alloc((n + 1) * 3 * sizeof *x);
    char name[2 * STRATEGIES_MAX][40];
    struct svg_series line[2 * STRATEGIES_MAX];
    size_t n_line = 0;
    if (!x) return err_set(err, -ENOMEM, "out of memory");
    double *measured = x + n, *simulated = x + 2 * n;
    for (size_t at = 0, end; at < n && n_line < 2 * STRATEGIES_MAX; at = end) {
        const json_t *row = json_array_get(rows, at);
        const char *strategy = json_string_value(json_object_get(row, "strategy"));
        end = curve(rows, at, x, measured, simulated);
        for (int k = 0; k < 2; k++) {
            (void)snprintf(name[n_line], sizeof *name, "%.20s, %s", strategy,
                           k ? "simulated" : "measured");
            line[n_line] = (struct svg_series){.name = name[n_line],
                                               .x = x + at,
                                               .y = (k ? simulated : measured) + at,
                                               .n = end - at,
                                               .markers = true};
            n_line++;
        }
    }
    const struct svg_chart c = {.title = "One worker: p95 of the time to first token",
                                .x_label = "share of the engine's time",
                                .y_label = "times a lone request",
                                .series = line,
                                .n_series = n_line};
    int r = svg_write(&c, path, err);
    mem_free(x);
    return r;
}
