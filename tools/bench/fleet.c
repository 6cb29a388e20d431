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
 * point (`busy_ms`) for every request, as a plan has it: the machine's speed changes by a tenth
 * within minutes, and a tenth of its capacity is most of a queue, so the difference between the two
 * is what the machine did. A report without requests has the mean alone. */
#include "tools/bench/bench.h"
#include "tools/bench/figures.h"
#include "tools/bench/fleet_sim.h"

#include "base/mem.h"
#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct study {
    struct fleet_opts o;
    struct fleet_load kind; /* of load: no requests yet */
    unsigned per_worker;
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
    json_error_t e;
    json_t *file = json_load_file(path, 0, &e), *in = json_object_get(file, "cost");
    const double *price = &ret->fixed_s;
    int r = file ? json_unpack_ex(in ? in : file, &e, 0, "{s:F, s:F, s:F, s:F, s:F, s:F, s:F, s:F}",
                                  "fixed_s", &ret->fixed_s, "layer_s", &ret->layer_s, "row_s",
                                  &ret->row_s, "kv_row_s", &ret->kv_row_s, "pair_s", &ret->pair_s,
                                  "place_s", &ret->place_s, "mass_s", &ret->mass_s, "head_s",
                                  &ret->head_s)
                 : -1;
    if (r < 0) r = err_set(err, -EINVAL, "%s: %.150s", path, e.text);
    for (size_t i = 0; r == 0 && i < POL_PRICES; i++)
        if (price[i] < 0) r = err_set(err, -EINVAL, "%s: a negative price", path);
    json_decref(file);
    return r;
}

/* ---- fleets ---- */

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
    static const char *const routing[] = {"random", "least", "affinity", "resident"};
    const double chunks = (double)t->n * s->kind.k;
    json_t *row = json_pack(
        "{s:i, s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "workers",
        (int)s->o.n_workers, "routing", routing[s->o.routing], "rate", rate, "from_ram",
        (double)t->from[FLEET_RAM] / chunks, "from_nvme", (double)t->from[FLEET_NVME] / chunks,
        "from_redis", (double)t->from[FLEET_REDIS] / chunks, "computed",
        (double)t->from[FLEET_COMPUTED] / chunks, "busy", t->busy_share, "skew", t->skew, "shed",
        (double)t->n_shed / (double)(t->n + t->n_shed), "redis_bytes_per_s_per_shard",
        t->redis_bytes_per_s, "route_us", t->route_us);
    bench_put_quantiles(row, "ttft_ms", t->ttft_ms, t->n);
    bench_print_row(columns, row);
    json_array_append_new(s->rows, row);
}

static int run_size(struct study *s, unsigned n_workers, struct err *err)
{
    struct fleet_load l = s->kind;
    const double rate = n_workers * s->load / fleet_service_s(&s->o, &l);
    l.n = (size_t)n_workers * s->per_worker;
    s->o.n_workers = n_workers;
    int r = fleet_load_make(&l, rate, s->zipf, BENCH_ARRIVAL_SEED);
    for (int i = 0; r == 0 && i < FLEET_ROUTINGS; i++) {
        struct fleet_result t;
        s->o.routing = (enum fleet_routing)i;
        r = fleet_run(&s->o, &l, &t);
        if (r < 0) break;
        report_fleet(s, &t, rate);
        mem_free(t.ttft_ms);
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
    json_object_set_new(s->meta, "service_ms", json_real(1e3 * fleet_service_s(&s->o, &s->kind)));
    return 0;
}

/* ---- a measured curve, made again ---- */

static const struct bench_column verified[] = {{"", "strategy", -10, 0},
                                               {"rate/s", "rate", 8, 3},
                                               {"busy", "busy", 5, 2},
                                               {"p50 ms", "ttft_ms_p50", 9, 0},
                                               {"simulated", "simulated_ms_p50", 9, 0},
                                               {"off", "off_p50", 7, 3},
                                               {"by mean", "off_mean_p50", 7, 3},
                                               {"p95 ms", "ttft_ms_p95", 9, 0},
                                               {"simulated", "simulated_ms_p95", 9, 0},
                                               {"off", "off_p95", 7, 3},
                                               {"by mean", "off_mean_p95", 7, 3},
                                               {0}};

/* When each came, as a Poisson process where the report does not say, and what it took. */
static int make_load_again(const json_t *row, double prefill_ms, struct fleet_load *l)
{
    const json_t *requests = json_object_get(row, "requests");
    struct rng rng = {BENCH_ARRIVAL_SEED};
    double now = 0;
    l->at_s = mem_alloc(l->n * sizeof *l->at_s);
    l->chunk = mem_zalloc(l->n * sizeof *l->chunk);
    l->prefill_s = mem_alloc(l->n * sizeof *l->prefill_s);
    if (!l->at_s || !l->chunk || !l->prefill_s) return -ENOMEM;
    if (json_array_size(requests) != l->n) requests = NULL;
    for (size_t i = 0; i < l->n; i++) {
        const json_t *q = json_array_get(requests, i);
        const double at_s = number_of(q, "at_s"), engine_ms = number_of(q, "engine_ms");
        l->at_s[i] = now = at_s >= now ? at_s : now + rng_exp(&rng, 1 / number_of(row, "rate"));
        l->prefill_s[i] = (engine_ms > 0 ? engine_ms : prefill_ms) / 1e3;
    }
    return requests != NULL;
}

static void put_figure(json_t *row, const char *what, const char *of, double v)
{
    char key[32];
    (void)snprintf(key, sizeof key, "%s_%s", what, of);
    json_object_set_new(row, key, bench_number(v));
}

/* One worker without tiers; of its TTFT outside_ms are not the engine's. ms, off: names of what it
 * takes and of how far that is from what was measured. */
static int simulate_again(const struct fleet_load *l, double outside_ms, const char *ms,
                          const char *off, json_t *row)
{
    const struct fleet_opts o = {.n_workers = 1, .strategy = POL_FULL, .cold = true};
    struct fleet_result t;
    int r = fleet_run(&o, l, &t);
    if (r < 0) return r;
    for (size_t i = 0; i < t.n; i++)
        t.ttft_ms[i] += outside_ms;
    bench_put_quantiles(row, ms, t.ttft_ms, t.n);
    put_figure(row, off, "p50",
               bench_quantile(t.ttft_ms, t.n, 0.5) / number_of(row, "ttft_ms_p50") - 1);
    put_figure(row, off, "p95",
               bench_quantile(t.ttft_ms, t.n, 0.95) / number_of(row, "ttft_ms_p95") - 1);
    mem_free(t.ttft_ms);
    return 0;
}

static int verify_row(struct study *s, const json_t *measured, const json_t *meta, struct err *err)
{
    const char *strategy = "";
    double rate = 0, p50 = 0, p95 = 0, prefill_ms = 0, answer_ms = 0;
    int n = 0;
    (void)json_unpack((json_t *)measured, "{s:s, s:F, s:F, s:F, s:i, s:{s:F, s:F}}", "strategy",
                      &strategy, "rate", &rate, "ttft_ms_p50", &p50, "ttft_ms_p95", &p95, "n", &n,
                      "busy_ms", "prefill", &prefill_ms, "decode", &answer_ms);
    const double outside_ms = number_of(json_object_get(meta, "outside_ms_unloaded"), strategy);
    if (!(rate > 0 && p50 > 0 && p95 > 0 && prefill_ms > 0 && n > 0) || isnan(outside_ms))
        return err_set(err, -EINVAL, "--verify: a row without rate, TTFT, n or busy_ms");
    struct fleet_load l = {.n = (size_t)n,
                           .k = 1,
                           .n_docs = 1,
                           .chunk_tokens = s->kind.chunk_tokens,
                           .answer_s = answer_ms / 1e3};
    int r = make_load_again(measured, prefill_ms, &l);
    json_t *row =
        json_pack("{s:s, s:f, s:f, s:f, s:b, s:f, s:f}", "strategy", strategy, "rate", rate, "busy",
                  rate * (prefill_ms + answer_ms) / 1e3, "alone_ms", outside_ms + prefill_ms,
                  "each", r > 0, "ttft_ms_p50", p50, "ttft_ms_p95", p95);
    if (r >= 0) r = simulate_again(&l, outside_ms, "simulated_ms", "off", row);
    for (size_t i = 0; r == 0 && i < l.n; i++)
        l.prefill_s[i] = prefill_ms / 1e3;
    if (r == 0) r = simulate_again(&l, outside_ms, "mean_ms", "off_mean", row);
    if (r == 0) bench_print_row(verified, row);
    json_array_append_new(s->rows, row);
    fleet_load_fini(&l);
    return r < 0 ? err_set(err, r, "the simulation failed: %s", err_name(r)) : 0;
}

/* Of all rows, a figure `key` that says how far off each is. */
static void report_errors(struct study *s, const char *key, const char *name, const char *text)
{
    const size_t n = json_array_size(s->rows);
    double *off = mem_alloc(n * sizeof *off);
    for (size_t i = 0; off && i < n; i++)
        off[i] = fabs(number_of(json_array_get(s->rows, i), key));
    const double median = off ? bench_quantile(off, n, 0.5) : NAN,
                 worst = off ? bench_quantile(off, n, 1) : NAN;
    put_figure(s->meta, name, "median", median);
    put_figure(s->meta, name, "worst", worst);
    (void)printf("%s: off by %.1f %% (median), %.1f %% at worst\n", text, 100 * median,
                 100 * worst);
    mem_free(off);
}

static int verify_curve(struct study *s, const char *path, struct err *err)
{
    json_error_t e;
    json_t *file = json_load_file(path, 0, &e);
    const json_t *rows = json_object_get(file, "rows"), *meta = json_object_get(file, "meta");
    int r = 0;
    if (json_array_size(rows) == 0 || !json_object_get(meta, "ttft_ms_unloaded"))
        r = err_set(err, -EINVAL, "%s: not a report of kvblend-bench throughput", path);
    else if (json_integer_value(json_object_get(meta, "streams")) > 0)
        r = err_set(err, -EINVAL, "%s: measured beside streams, which are not simulated", path);
    else
        bench_print_head(verified);
    for (size_t i = 0; r == 0 && i < json_array_size(rows); i++)
        r = verify_row(s, json_array_get(rows, i), meta, err);
    if (r == 0) {
        report_errors(s, "off_p50", "off", "p50, each its own work");
        report_errors(s, "off_p95", "off_p95", "p95, each its own work");
        report_errors(s, "off_mean_p50", "off_mean", "p50, each the mean of its point");
        report_errors(s, "off_mean_p95", "off_mean_p95", "p95, each the mean of its point");
    }
    json_decref(file);
    return r;
}

/* ---- the command ---- */

static int read_study(struct study *s, const struct opts *opts, struct err *err)
{
    const char *name = opt_given(opts, "strategies") ? opt_str(opts, "strategies") : "qs";
    s->kind = (struct fleet_load){.k = (unsigned)opt_int(opts, "chunks"),
                                  .n_docs = (uint32_t)opt_int(opts, "pool"),
                                  .chunk_tokens = (uint32_t)opt_int(opts, "chunk-tokens"),
                                  .suffix_tokens = (uint32_t)opt_int(opts, "query-tokens"),
                                  .answer_tokens = (uint32_t)opt_int(opts, "answer-tokens")};
    s->per_worker = opt_given(opts, "requests") ? (unsigned)opt_int(opts, "requests") : 2000;
    s->zipf = opt_double(opts, "zipf");
    s->load = opt_given(opts, "load") ? strtod(opt_str(opts, "load"), NULL) : 0.7;
    s->o = (struct fleet_opts){
        .ratio = opt_given(opts, "ratios") ? strtod(opt_str(opts, "ratios"), NULL) : 0.15,
        .token_s = opt_double(opts, "token-ms") / 1e3,
        .ram_bytes = opt_size(opts, "ram"),
        .nvme_bytes = opt_size(opts, "nvme-bytes"),
        .redis_bytes = opt_size(opts, "redis-bytes"),
        .n_shards = (unsigned)opt_int(opts, "shards"),
        .max_queue = 64, /* the worker's default */
        .cold = opt_bool(opts, "cold")};
    if (!(s->load > 0 && s->load < 10)) return err_set(err, -EINVAL, "--load: a share above 0");
    if (s->kind.n_docs < s->kind.k)
        return err_set(err, -EINVAL, "--pool must not be smaller than --chunks");
    if (pol_strategy_parse(name, &s->o.strategy) != 1)
        return err_set(err, -EINVAL, "--strategies: one that there is");
    if (!opt_given(opts, "cost") && !opt_given(opts, "verify"))
        return err_set(err, -EINVAL, "--cost FILE is needed: prices as a worker has measured them");
    return opt_given(opts, "cost") ? read_cost(opt_str(opts, "cost"), &s->o.cost, err) : 0;
}

static int simulate_fleet(const struct opts *opts, struct err *err)
{
    struct study s = {.meta = bench_meta(), .rows = json_array()};
    int r = read_study(&s, opts, err);
    if (r == 0 && opt_given(opts, "verify"))
        r = verify_curve(&s, opt_str(opts, "verify"), err);
    else if (r == 0)
        r = run_sizes(&s, opt_str(opts, "workers"), err);
    if (r == 0) r = bench_write_json(opts, s.meta, s.rows, err);
    json_decref(s.meta);
    json_decref(s.rows);
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
