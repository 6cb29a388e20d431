/* kvblend-bench throughput fleet: what a fleet of workers would do, by simulation with the
 * product's own decisions and prices of compute that a worker has measured (--cost).
 *
 * Per number of workers and way of routing: where chunks come from, TTFT, bytes per second of the
 * busiest Redis shard, the router's own time. Load grows with the fleet, so a row differs from the
 * one above it only by what growing does.
 *
 * --verify REPORT makes a measured curve of `throughput` again instead, and says how far off that
 * is. What is compared is the queue: requests come when they came, and each takes of the engine
 * what the worker said that it took (`engine_ms`). Beside it stands the same with the mean of the
 * point for every request, as a plan has it: the machine's speed changes by a tenth within minutes,
 * and a tenth of its capacity is most of a queue, so the difference between the two is what the
 * machine did. A report without requests has the mean alone, one without `busy_ms` a lone request's
 * time. */
#include "tools/bench/bench.h"
#include "tools/bench/figures.h"
#include "tools/bench/fleet_sim.h"

#include "base/mem.h"
#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { P50, P95, QUANTILES };

struct study {
    struct fleet_opts o;
    struct fleet_load kind; /* of load: no requests yet */
    unsigned chunks, per_worker;
    double zipf, load;
    json_t *meta, *rows;
};

static double number_of(const json_t *o, const char *name)
{
    const json_t *v = json_object_get(o, name);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static int read_cost(const char *path, struct pol_cost *ret, struct err *err)
{
    const struct {
        const char *name;
        double *value;
    } field[] = {{"fixed_s", &ret->fixed_s}, {"layer_s", &ret->layer_s},
                 {"row_s", &ret->row_s},     {"kv_row_s", &ret->kv_row_s},
                 {"pair_s", &ret->pair_s},   {"place_s", &ret->place_s},
                 {"mass_s", &ret->mass_s},   {"head_s", &ret->head_s}};
    json_error_t e;
    json_t *o = json_load_file(path, 0, &e);
    if (!o) return err_set(err, -EINVAL, "%s: %.150s", path, e.text);
    const json_t *in = json_is_object(json_object_get(o, "cost")) ? json_object_get(o, "cost") : o;
    int r = 0;
    for (size_t i = 0; r == 0 && i < sizeof field / sizeof *field; i++) {
        *field[i].value = number_of(in, field[i].name);
        if (!(*field[i].value >= 0))
            r = err_set(err, -EINVAL, "%s: \"%s\" is not a number of seconds", path, field[i].name);
    }
    json_decref(o);
    return r;
}

/* ---- fleets ---- */

/* What a request takes with all its chunks in RAM (or none reused, for full). */
static double service_s(const struct study *s)
{
    struct pol_chunk_now chunk[POL_CHUNKS_MAX];
    bool reuse[POL_CHUNKS_MAX];
    struct pol_control_in in;
    struct pol_prediction p;
    fleet_prompt(&s->o, &s->kind, s->chunks, chunk, &in);
    for (unsigned i = 0; i < s->chunks; i++)
        reuse[i] = true;
    pol_predict(&in, s->o.strategy, s->o.ratio, reuse, &p);
    return p.ttft_s + fleet_answer_s(&s->o, s->kind.answer_tokens, p.ttft_s);
}

static const struct bench_column columns[] = {
    {"workers", "workers", 7, 0},    {"routing", "routing", -9, 0},
    {"rate/s", "rate", 9, 2},        {"p50 ms", "ttft_ms_p50", 8, 0},
    {"p95 ms", "ttft_ms_p95", 8, 0}, {"p99 ms", "ttft_ms_p99", 8, 0},
    {"ram", "from_ram", 5, 2},       {"nvme", "from_nvme", 5, 2},
    {"redis", "from_redis", 5, 2},   {"none", "computed", 5, 2},
    {"busy", "busy", 5, 2},          {"skew", "skew", 5, 2},
    {"shed", "shed", 5, 2},          {"B/s a shard", "redis_bytes_per_s_per_shard", 12, 0},
    {"route us", "route_us", 8, 1},  {0}};

static void report_fleet(struct study *s, const struct fleet_result *t, double rate)
{
    const char *routing = fleet_routing_name(s->o.routing);
    const double shed = (double)t->n_shed / (double)(t->n + t->n_shed);
    double of[FLEET_PLACES], all = 0, ms[3];
    for (int i = 0; i < 3; i++)
        ms[i] = 1e3 * fleet_quantile(t, (const double[]){0.5, 0.95, 0.99}[i]);
    for (int i = 0; i < FLEET_PLACES; i++)
        all += (double)t->from[i];
    for (int i = 0; i < FLEET_PLACES; i++)
        of[i] = (double)t->from[i] / all;
    json_t *row = json_pack(
        "{s:i, s:s, s:f, s:o, s:o, s:o, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "workers",
        (int)s->o.n_workers, "routing", routing, "rate", rate, "ttft_ms_p50", bench_number(ms[0]),
        "ttft_ms_p95", bench_number(ms[1]), "ttft_ms_p99", bench_number(ms[2]), "from_ram",
        of[FLEET_RAM], "from_nvme", of[FLEET_NVME], "from_redis", of[FLEET_REDIS], "computed",
        of[FLEET_COMPUTED], "busy", t->busy_share, "skew", t->skew, "shed", shed,
        "redis_bytes_per_s_per_shard", t->redis_bytes_per_s, "route_us", t->route_us);
    bench_print_row(columns, row);
    json_array_append_new(s->rows, row);
}

static int run_size(struct study *s, unsigned n_workers, struct err *err)
{
    struct fleet_load l = s->kind;
    const double rate = n_workers * s->load / service_s(s);
    int r = fleet_load_make(&l, (size_t)n_workers * s->per_worker, rate, s->zipf, s->chunks,
                            BENCH_ARRIVAL_SEED);
    s->o.n_workers = n_workers;
    for (int i = 0; r == 0 && i < FLEET_ROUTINGS; i++) {
        struct fleet_result t;
        s->o.routing = (enum fleet_routing)i;
        r = fleet_run(&s->o, &l, &t);
        if (r < 0) break;
        report_fleet(s, &t, rate);
        fleet_result_fini(&t);
    }
    fleet_load_fini(&l);
    return r < 0 ? err_set(err, r, "%u workers: %s", n_workers, err_name(r)) : 0;
}

static int run_sizes(struct study *s, const char *list, struct err *err)
{
    double size[64];
    const int n = bench_numbers(list, true, 100000, size, 64);
    if (n < 0) return err_set(err, n, "--workers: \"%.40s\" is not a list of numbers", list);
    bench_print_head(columns);
    for (int i = 0; i < n; i++) {
        int r = run_size(s, (unsigned)size[i], err);
        if (r < 0) return r;
    }
    json_object_set_new(s->meta, "service_ms", json_real(1e3 * service_s(s)));
    return 0;
}

/* ---- a measured curve, made again ---- */

struct measured { /* a row of the report */
    const char *strategy;
    double rate, ms[QUANTILES];
    double outside_ms;            /* of the TTFT, what the engine has no part in */
    double prefill_ms, answer_ms; /* of the engine, each request in the mean */
    size_t n;
    const json_t *requests; /* one by one; NULL: not told */
};

static int read_measured(const struct study *s, const json_t *row, const json_t *meta,
                         struct measured *ret, struct err *err)
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
        const double step_ms = number_of(json_object_get(meta, "itl_ms_unloaded"), m.strategy);
        struct fleet_opts a = s->o;
        if (step_ms > 0) a.token_s = step_ms / 1e3;
        m.outside_ms = 0;
        m.prefill_ms = number_of(json_object_get(meta, "ttft_ms_unloaded"), m.strategy);
        m.answer_ms = 1e3 * fleet_answer_s(&a, s->kind.answer_tokens, m.prefill_ms / 1e3);
    }
    *ret = m;
    if (!(m.rate > 0 && m.ms[P50] > 0 && m.ms[P95] > 0 && m.prefill_ms > 0) || m.n == 0)
        return err_set(err, -EINVAL, "--verify: a row without rate, TTFT, n or unloaded time");
    return 0;
}

/* When each came, as a Poisson process where the report does not say, and what it took. */
static void make_arrivals_again(const struct measured *m, struct fleet_request *req,
                                double *prefill_s)
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

/* One worker without tiers. ret_ms[0]: TTFT with the work of each; [1]: with the mean of all. */
static int simulate_again(const struct study *s, const struct measured *m,
                          double ret_ms[2][QUANTILES])
{
    struct fleet_load l = s->kind;
    double *prefill_s = mem_alloc(m->n * sizeof *prefill_s);
    struct fleet_opts o = s->o;
    struct fleet_result t;
    l.n = m->n;
    l.n_docs = 1;
    l.req = mem_alloc(m->n * sizeof *l.req);
    o.n_workers = 1;
    o.n_shards = o.max_queue = 0;
    o.strategy = POL_FULL;
    o.prefill_s = prefill_s;
    o.answer_s = m->answer_ms / 1e3;
    o.warm_share = 0;
    int r = l.req && prefill_s ? 0 : -ENOMEM;
    if (r == 0) make_arrivals_again(m, l.req, prefill_s);
    for (int k = 0; r == 0 && k < 2; k++) {
        for (size_t i = 0; k == 1 && i < m->n; i++)
            prefill_s[i] = m->prefill_ms / 1e3;
        r = fleet_run(&o, &l, &t);
        if (r < 0) break;
        ret_ms[k][P50] = m->outside_ms + 1e3 * fleet_quantile(&t, 0.5);
        ret_ms[k][P95] = m->outside_ms + 1e3 * fleet_quantile(&t, 0.95);
        fleet_result_fini(&t);
    }
    mem_free(l.req);
    mem_free(prefill_s);
    return r;
}

static void report_measured(struct study *s, const struct measured *m,
                            const double ms[2][QUANTILES], double off[2][QUANTILES])
{
    const double busy = m->rate * (m->prefill_ms + m->answer_ms) / 1e3,
                 alone_ms = m->outside_ms + m->prefill_ms;
    for (int i = 0; i < 2; i++)
        for (int q = 0; q < QUANTILES; q++)
            off[i][q] = ms[i][q] / m->ms[q] - 1;
    json_array_append_new(
        s->rows,
        json_pack("{s:s, s:f, s:f, s:f, s:b, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}",
                  "strategy", m->strategy, "rate", m->rate, "busy", busy, "alone_ms", alone_ms,
                  "each", m->requests != NULL, "ttft_ms_p50", m->ms[P50], "simulated_ms_p50",
                  ms[0][P50], "ttft_ms_p95", m->ms[P95], "simulated_ms_p95", ms[0][P95], "off_p50",
                  off[0][P50], "off_p95", off[0][P95], "mean_ms_p50", ms[1][P50], "mean_ms_p95",
                  ms[1][P95], "off_mean_p50", off[1][P50], "off_mean_p95", off[1][P95]));
    (void)printf("%-10s %8.3f %5.2f", m->strategy, m->rate, busy);
    for (int q = 0; q < QUANTILES; q++)
        (void)printf(" %9.0f %9.0f %+6.1f %% %+6.1f %%", m->ms[q], ms[0][q], 100 * off[0][q],
                     100 * off[1][q]);
    (void)printf("\n");
}

/* off: [2 * QUANTILES][n], unsigned. */
static void report_errors(struct study *s, double *off, size_t n)
{
    static const char *const field[2 * QUANTILES] = {"off", "off_p95", "off_mean", "off_mean_p95"};
    char key[32];
    for (size_t k = 0; k < 2 * QUANTILES; k++) {
        const double median = bench_quantile(off + k * n, n, 0.5);
        const double worst = bench_quantile(off + k * n, n, 1);
        (void)snprintf(key, sizeof key, "%s_median", field[k]);
        json_object_set_new(s->meta, key, json_real(median));
        (void)snprintf(key, sizeof key, "%s_worst", field[k]);
        json_object_set_new(s->meta, key, json_real(worst));
        (void)printf("%s, %s: off by %.1f %% (median), %.1f %% at worst\n", k % 2 ? "p95" : "p50",
                     k / 2 ? "each the mean of its point" : "each its own work", 100 * median,
                     100 * worst);
    }
}

static int verify_curve(struct study *s, const char *path, struct err *err)
{
    json_error_t e;
    json_t *file = json_load_file(path, 0, &e);
    const json_t *rows = json_object_get(file, "rows"), *meta = json_object_get(file, "meta");
    const size_t n = json_array_size(rows);
    double *off = mem_alloc((n + 1) * 2 * QUANTILES * sizeof *off);
    int r = 0;
    if (!file || n == 0 || !json_object_get(meta, "ttft_ms_unloaded"))
        r = err_set(err, -EINVAL, "%s: not a report of kvblend-bench throughput", path);
    else if (!off)
        r = err_set(err, -ENOMEM, "out of memory");
    else if (json_integer_value(json_object_get(meta, "streams")) > 0)
        r = err_set(err, -EINVAL, "%s: measured beside streams, which are not simulated", path);
    else
        (void)printf("%-10s %8s %5s %9s %9s %8s %8s %9s %9s %8s %8s\n", "", "rate/s", "busy",
                     "p50 ms", "simulated", "off", "by mean", "p95 ms", "simulated", "off",
                     "by mean");
    for (size_t i = 0; r == 0 && i < n; i++) {
        struct measured m;
        double ms[2][QUANTILES], of[2][QUANTILES];
        r = read_measured(s, json_array_get(rows, i), meta, &m, err);
        if (r < 0) break;
        r = simulate_again(s, &m, ms);
        if (r < 0) r = err_set(err, r, "the simulation failed: %s", err_name(r));
        if (r == 0) report_measured(s, &m, (const double(*)[QUANTILES])ms, of);
        for (size_t k = 0; r == 0 && k < 2 * QUANTILES; k++)
            off[k * n + i] = fabs(of[k / QUANTILES][k % QUANTILES]);
    }
    if (r == 0) report_errors(s, off, n);
    json_decref(file);
    mem_free(off);
    return r;
}

/* ---- the command ---- */

static int read_study(struct study *s, const struct opts *opts, struct err *err)
{
    enum { LAYERS = 30, KV_WIDTH = 3 * 64, F16_BYTES = 2 }; /* records of SmolLM2-135M */
    const char *name = opt_given(opts, "strategies") ? opt_str(opts, "strategies") : "qs";
    s->chunks = (unsigned)opt_int(opts, "chunks");
    s->kind = (struct fleet_load){.n_docs = (uint32_t)opt_int(opts, "pool"),
                                  .chunk_tokens = (uint32_t)opt_int(opts, "chunk-tokens"),
                                  .suffix_tokens = (uint32_t)opt_int(opts, "query-tokens"),
                                  .answer_tokens = (uint32_t)opt_int(opts, "answer-tokens")};
    s->per_worker = opt_given(opts, "requests") ? (unsigned)opt_int(opts, "requests") : 2000;
    s->zipf = opt_double(opts, "zipf");
    s->load = opt_given(opts, "load") ? strtod(opt_str(opts, "load"), NULL) : 0.7;
    s->o = (struct fleet_opts){
        .order = POL_ORDER_SJF,
        .L = LAYERS,
        .ratio = opt_given(opts, "ratios") ? strtod(opt_str(opts, "ratios"), NULL) : 0.15,
        .token_s = opt_double(opts, "token-ms") / 1e3,
        .chunk_bytes = (uint64_t)s->kind.chunk_tokens * F16_BYTES * 2 * (LAYERS - 1) * KV_WIDTH,
        .ram_bytes = opt_size(opts, "ram"),
        .nvme_bytes = opt_size(opts, "nvme-bytes"),
        .redis_bytes = opt_size(opts, "redis-bytes"),
        .nvme_bytes_per_s = 2e9,
        .nvme_first_s = 1e-4,
        .redis_bytes_per_s = 1e9,
        .redis_first_s = 1e-3,
        .n_shards = (unsigned)opt_int(opts, "shards"),
        .max_queue = 64, /* the worker's default */
        .cold = opt_bool(opts, "cold"),
        .warm_share = 0.3,
        .seed = BENCH_ARRIVAL_SEED};
    if (!(s->load > 0 && s->load < 10)) return err_set(err, -EINVAL, "--load: a share above 0");
    if (s->chunks > POL_CHUNKS_MAX || s->kind.n_docs < s->chunks)
        return err_set(err, -EINVAL, "--pool must not be smaller than --chunks");
    if (pol_strategy_parse(name, &s->o.strategy) != 1)
        return err_set(err, -EINVAL, "--strategies: one that there is");
    if (!opt_given(opts, "cost") && !opt_given(opts, "verify"))
        return err_set(err, -EINVAL, "--cost FILE is needed: prices as a worker has measured them");
    return opt_given(opts, "cost") ? read_cost(opt_str(opts, "cost"), &s->o.cost, err) : 0;
}

static int simulate_fleet(const struct opts *opts, struct err *err)
{
    const bool verify = opt_given(opts, "verify");
    struct study *s = mem_zalloc(sizeof *s);
    if (!s) return err_set(err, -ENOMEM, "out of memory");
    s->meta = bench_meta();
    s->rows = json_array();
    int r = read_study(s, opts, err);
    if (r == 0)
        r = verify ? verify_curve(s, opt_str(opts, "verify"), err)
                   : run_sizes(s, opt_str(opts, "workers"), err);
    if (r == 0) r = bench_write_json(opts, s->meta, s->rows, err);
    json_decref(s->meta);
    json_decref(s->rows);
    mem_free(s);
    return r;
}

static const struct opt_def simulate_fleet_options[] = {
    {"workers", OPT_STR, "1,2,5,10,30,100,300,1000", 0, 0, NULL, "how many; load grows with them"},
    {"cost", OPT_STR, NULL, 0, 0, NULL, "prices of compute as JSON, as a worker has measured them"},
    {"verify", OPT_STR, NULL, 0, 0, NULL,
     "report of throughput whose curve is simulated and compared"},
    {"cold", OPT_BOOL, "false", 0, 0, NULL,
     "begin with empty tiers, not with those of a fleet that has run for long"},
    {"nvme-bytes", OPT_SIZE, "64GiB", 0, 1e15, NULL, "NVMe of each worker"},
    {"redis-bytes", OPT_SIZE, "256GiB", 0, 1e15, NULL, "Redis, all shards together"},
    {"shards", OPT_INT, "4", 0, 10000, NULL, "shards of Redis, 0 = none"},
    {"token-ms", OPT_DOUBLE, "15", 0, 10000, NULL, "a decode step"},
    {0}};

const struct bench_sub bench_fleet = {
    .name = "throughput fleet",
    .about = "many workers, simulated with the product's own decisions",
    .shared = BENCH_PROMPT_OPTIONS "ram strategies ratios requests pool zipf load answer-tokens",
    .options = simulate_fleet_options,
    .run = simulate_fleet};
