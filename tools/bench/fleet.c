/* kvblend-bench fleet: what a fleet of workers would do, by simulation with the product's own
 * decisions and this machine's measured prices.
 *
 * Per number of workers and way of routing: where chunks come from, TTFT, bytes per second of the
 * busiest Redis shard, the router's own time, and cost. Load grows with the fleet, so a row differs
 * from the one above it only by what growing does. --verify: fleet_verify.h. */
#include "tools/bench/bench.h"
#include "tools/bench/fleet_verify.h"
#include "tools/bench/svg.h"
#include "tools/bench/trace.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIZES_MAX = 16, ROUTINGS_MAX = FLEET_ROUTINGS };

struct study {
    struct fleet_opts o;
    struct fleet_load kind; /* of load: no requests yet */
    unsigned chunks, per_worker;
    struct trace trace; /* --trace: what is asked for; no requests: drawn by Zipf */
    double zipf, load, worker_price_h, redis_price_gb_h;
    double x[ROUTINGS_MAX][SIZES_MAX], p95[ROUTINGS_MAX][SIZES_MAX];
    size_t n_sizes;
    json_t *meta, *rows;
};

/* ---- prices ---- */

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
        const json_t *v = json_object_get(in, field[i].name);
        *field[i].value = json_number_value(v);
        if (!json_is_number(v) || !(*field[i].value >= 0))
            r = err_set(err, -EINVAL, "%s: \"%s\" is not a number of seconds", path, field[i].name);
    }
    json_decref(o);
    return r;
}

/* What a request takes with all its chunks in RAM (or none reused, for full). */
static double service_s(const struct study *s, unsigned n_chunks)
{
    struct pol_chunk_now chunk[POL_CHUNKS_MAX];
    bool reuse[POL_CHUNKS_MAX];
    struct pol_control_in in;
    struct pol_prediction p;
    fleet_prompt(&s->o, &s->kind, n_chunks, chunk, &in);
    for (unsigned i = 0; i < n_chunks; i++)
        reuse[i] = true;
    pol_predict(&in, s->o.strategy, s->o.ratio, reuse, &p);
    return p.ttft_s + fleet_answer_s(&s->o, s->kind.answer_tokens, p.ttft_s);
}

/* ---- load ---- */

static unsigned chunks_of(const struct study *s, size_t request)
{
    const uint64_t n = s->trace.request[request + 1] - s->trace.request[request];
    return n < POL_CHUNKS_MAX ? (unsigned)n : POL_CHUNKS_MAX;
}

/* The mean of all requests. */
static double mean_service_s(const struct study *s)
{
    double sum = 0;
    size_t n = 0;
    if (s->trace.n_requests == 0) return service_s(s, s->chunks);
    for (size_t i = 0; i < s->trace.n_requests; i++)
        if (chunks_of(s, i) > 0) {
            sum += service_s(s, chunks_of(s, i));
            n++;
        }
    return sum / (double)n;
}

/* The trace's requests in its own rhythm, so much faster or slower that `rate` come in a second. */
static int load_of_trace(const struct study *s, double rate, struct fleet_load *l)
{
    const struct trace *t = &s->trace;
    l->n_docs = (uint32_t)t->n_records;
    l->req = mem_alloc(t->n_requests * sizeof *l->req);
    l->chunk = mem_alloc(t->n_accesses * sizeof *l->chunk);
    if (!l->req || !l->chunk) return -ENOMEM;
    memcpy(l->chunk, t->access, t->n_accesses * sizeof *l->chunk);
    const double begin_s = t->when[0].t_s, span_s = t->when[t->n_requests - 1].t_s - begin_s;
    const double scale = (double)t->n_requests / (rate * span_s);
    for (size_t i = 0; i < t->n_requests; i++) {
        const double at_s = (t->when[i].t_s - begin_s) * scale;
        if (chunks_of(s, i) > 0)
            l->req[l->n++] =
                (struct fleet_request){at_s, l->chunk + t->request[i], chunks_of(s, i)};
    }
    return 0;
}

static int read_trace(struct study *s, const char *path, struct err *err)
{
    int r = trace_open(path, &s->trace, err);
    if (r < 0) return r;
    const struct trace *t = &s->trace;
    if (t->n_accesses == 0 || !(t->when[t->n_requests - 1].t_s > t->when[0].t_s))
        return err_set(err, -EINVAL, "%s: a trace of one moment or without blocks", path);
    s->o.cold = true; /* nobody holds what has never been asked for */
    json_object_set_new(s->meta, "trace", json_string(path));
    json_object_set_new(s->meta, "trace_requests", json_integer((json_int_t)t->n_requests));
    return 0;
}

/* ---- a row ---- */

static void report(struct study *s, const struct fleet_result *t, double rate, size_t at)
{
    const unsigned n = s->o.n_workers;
    double of[FLEET_PLACES], all = 0;
    for (int i = 0; i < FLEET_PLACES; i++)
        all += (double)t->from[i];
    for (int i = 0; i < FLEET_PLACES; i++)
        of[i] = (double)t->from[i] / all;
    const double hour = n * s->worker_price_h +
                        s->redis_price_gb_h * (double)s->o.redis_bytes / 1e9 * (s->o.n_shards > 0);
    const double million = rate > 0 ? hour / (rate * 3600) * 1e6 : NAN;
    const double shed = (double)t->n_shed / (double)(t->n + t->n_shed);
    const char *routing = fleet_routing_name(s->o.routing);
    s->x[s->o.routing][at] = n;
    s->p95[s->o.routing][at] = 1e3 * fleet_quantile(t, 0.95);
    json_array_append_new(
        s->rows,
        json_pack(
            "{s:i, s:s, s:f, s:o, s:o, s:o, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:o}",
            "workers", (int)n, "routing", routing, "rate", rate, "ttft_ms_p50",
            bench_number(1e3 * fleet_quantile(t, 0.5)), "ttft_ms_p95",
            bench_number(1e3 * fleet_quantile(t, 0.95)), "ttft_ms_p99",
            bench_number(1e3 * fleet_quantile(t, 0.99)), "from_ram", of[FLEET_RAM], "from_nvme",
            of[FLEET_NVME], "from_redis", of[FLEET_REDIS], "computed", of[FLEET_COMPUTED], "busy",
            t->busy_share, "busiest", t->busiest_share, "skew", t->skew, "shed", shed,
            "redis_bytes_per_s_per_shard", t->redis_bytes_per_s, "route_us", t->route_us,
            "cost_per_million", bench_number(million)));
    (void)printf(
        "%7u %-9s %9.2f %8.0f %8.0f %8.0f %5.2f %5.2f %5.2f %5.2f %5.2f %5.2f %5.2f %9.1f %8.1f "
        "%9.1f\n",
        n, routing, rate, 1e3 * fleet_quantile(t, 0.5), 1e3 * fleet_quantile(t, 0.95),
        1e3 * fleet_quantile(t, 0.99), of[FLEET_RAM], of[FLEET_NVME], of[FLEET_REDIS],
        of[FLEET_COMPUTED], t->busy_share, t->skew, shed, t->redis_bytes_per_s / 1e6, t->route_us,
        million);
    (void)fflush(stdout);
}

static int run_size(struct study *s, unsigned n_workers, size_t at, struct err *err)
{
    struct fleet_load l = s->kind;
    const double rate = n_workers * s->load / mean_service_s(s);
    int r = s->trace.n_requests ? load_of_trace(s, rate, &l)
                                : fleet_load_make(&l, (size_t)n_workers * s->per_worker, rate,
                                                  s->zipf, s->chunks, 1);
    s->o.n_workers = n_workers;
    for (int i = 0; r == 0 && i < FLEET_ROUTINGS; i++) {
        struct fleet_result t;
        s->o.routing = (enum fleet_routing)i;
        r = fleet_run(&s->o, &l, &t);
        if (r < 0) break;
        report(s, &t, rate, at);
        fleet_result_fini(&t);
    }
    fleet_load_fini(&l);
    return r < 0 ? err_set(err, r, "%u workers: %s", n_workers, err_name(r)) : 0;
}

static int run_sizes(struct study *s, const char *list, struct err *err)
{
    (void)printf("%7s %-9s %9s %8s %8s %8s %5s %5s %5s %5s %5s %5s %5s %9s %8s %9s\n", "workers",
                 "routing", "rate/s", "p50 ms", "p95 ms", "p99 ms", "ram", "nvme", "redis", "none",
                 "busy", "skew", "shed", "MB/s/shd", "route us", "per mio.");
    for (const char *p = list; *p && s->n_sizes < SIZES_MAX; s->n_sizes++) {
        char *end;
        const long v = strtol(p, &end, 10);
        if (end == p || v < 1 || v > 100000 || (*end && *end != ','))
            return err_set(err, -EINVAL, "--workers: \"%.40s\" is not a list of numbers", p);
        p = end + (*end == ',');
        int r = run_size(s, (unsigned)v, s->n_sizes, err);
        if (r < 0) return r;
    }
    return 0;
}

static int plot(const struct study *s, const char *path, struct err *err)
{
    struct svg_series line[FLEET_ROUTINGS];
    for (int i = 0; i < FLEET_ROUTINGS; i++)
        line[i] = (struct svg_series){.name = fleet_routing_name((enum fleet_routing)i),
                                      .x = s->x[i],
                                      .y = s->p95[i],
                                      .n = s->n_sizes,
                                      .markers = true};
    const struct svg_chart c = {.title = "Simulated time to first token, p95",
                                .x_label = "workers",
                                .y_label = "ms",
                                .x_log = true,
                                .series = line,
                                .n_series = FLEET_ROUTINGS};
    return svg_write(&c, path, err);
}

/* ---- the command ---- */

static int read_opts(struct study *s, const struct opts *opts, struct err *err)
{
    const bool big = strcmp(opt_str(opts, "geometry"), "7b") == 0;
    const unsigned L = big ? 32 : 30, GK = big ? 8 * 128 : 3 * 64;
    const char *name = opt_given(opts, "strategies") ? opt_str(opts, "strategies") : "qs";
    s->chunks = (unsigned)opt_int(opts, "chunks");
    s->kind = (struct fleet_load){.n_docs = (uint32_t)opt_int(opts, "pool"),
                                  .chunk_tokens = (uint32_t)opt_int(opts, "chunk-tokens"),
                                  .suffix_tokens = (uint32_t)opt_int(opts, "query-tokens"),
                                  .answer_tokens = (uint32_t)opt_int(opts, "answer-tokens")};
    s->per_worker = opt_given(opts, "requests") ? (unsigned)opt_int(opts, "requests") : 2000;
    s->zipf = opt_double(opts, "zipf");
    s->load = opt_given(opts, "load") ? strtod(opt_str(opts, "load"), NULL) : 0.7;
    s->worker_price_h = opt_double(opts, "worker-price");
    s->redis_price_gb_h = opt_double(opts, "redis-price");
    s->o = (struct fleet_opts){.order = POL_ORDER_SJF,
                               .L = L,
                               .ratio = 0.15,
                               .token_s = opt_double(opts, "token-ms") / 1e3,
                               .chunk_bytes = (uint64_t)s->kind.chunk_tokens * 2 * 2 * (L - 1) * GK,
                               .ram_bytes = opt_size(opts, "ram"),
                               .nvme_bytes = opt_size(opts, "nvme-bytes"),
                               .redis_bytes = opt_size(opts, "redis-bytes"),
                               .nvme_bytes_per_s = opt_double(opts, "nvme-gbps") * 1e9,
                               .nvme_first_s = 1e-4,
                               .redis_bytes_per_s = opt_double(opts, "redis-gbps") * 1e9,
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
    if (opt_given(opts, "ratios")) s->o.ratio = strtod(opt_str(opts, "ratios"), NULL);
    return 0;
}

static int simulate_fleet(const struct opts *opts, struct err *err)
{
    struct study s = {.meta = bench_meta(), .rows = json_array()};
    int r = read_opts(&s, opts, err);
    if (r == 0 && opt_given(opts, "cost")) r = read_cost(opt_str(opts, "cost"), &s.o.cost, err);
    if (r == 0 && opt_given(opts, "verify")) {
        r = fleet_verify(&s.o, &s.kind, opt_str(opts, "verify"), s.meta, s.rows, err);
        if (r == 0 && opt_given(opts, "plot"))
            r = fleet_verify_plot(s.rows, opt_str(opts, "plot"), err);
    } else if (r == 0) {
        if (!opt_given(opts, "cost"))
            r = err_set(err, -EINVAL,
                        "--cost FILE is needed: prices as a worker has measured them");
        if (r == 0 && opt_given(opts, "trace")) r = read_trace(&s, opt_str(opts, "trace"), err);
        if (r == 0) r = run_sizes(&s, opt_str(opts, "workers"), err);
        if (r == 0) json_object_set_new(s.meta, "service_ms", json_real(1e3 * mean_service_s(&s)));
        if (r == 0 && opt_given(opts, "plot")) r = plot(&s, opt_str(opts, "plot"), err);
    }
    if (r == 0) r = bench_write_json(opts, s.meta, s.rows, err);
    trace_close(&s.trace);
    json_decref(s.meta);
    json_decref(s.rows);
    return r;
}

static const struct opt_def simulate_fleet_options[] = {
    {.name = "workers",
     .type = OPT_STR,
     .dflt = "1,2,5,10,30,100,300,1000",
     .help = "how many; load grows with them"},
    {.name = "cost",
     .type = OPT_STR,
     .help = "prices of compute as JSON, as a worker has measured them"},
    {.name = "verify",
     .type = OPT_STR,
     .help = "report of throughput whose curve is simulated and compared"},
    {.name = "cold",
     .type = OPT_BOOL,
     .dflt = "false",
     .help = "begin with empty tiers, not with those of a fleet that has run for long"},
    {.name = "nvme-bytes",
     .type = OPT_SIZE,
     .dflt = "64GiB",
     .min = 0,
     .max = 1e15,
     .help = "NVMe of each worker"},
    {.name = "nvme-gbps",
     .type = OPT_DOUBLE,
     .dflt = "2",
     .min = 0.001,
     .max = 1000,
     .help = "its bandwidth, GB/s"},
    {.name = "redis-bytes",
     .type = OPT_SIZE,
     .dflt = "256GiB",
     .min = 0,
     .max = 1e15,
     .help = "Redis, all shards together"},
    {.name = "redis-gbps",
     .type = OPT_DOUBLE,
     .dflt = "1",
     .min = 0.001,
     .max = 1000,
     .help = "bandwidth of a shard, GB/s"},
    {.name = "shards",
     .type = OPT_INT,
     .dflt = "4",
     .min = 0,
     .max = 10000,
     .help = "shards of Redis, 0 = none"},
    {.name = "token-ms",
     .type = OPT_DOUBLE,
     .dflt = "15",
     .min = 0,
     .max = 10000,
     .help = "a decode step"},
    {.name = "worker-price",
     .type = OPT_DOUBLE,
     .dflt = "1",
     .min = 0,
     .max = 1e6,
     .help = "of a worker, per hour, in any unit"},
    {.name = "redis-price",
     .type = OPT_DOUBLE,
     .dflt = "0.005",
     .min = 0,
     .max = 1e6,
     .help = "of a GB in Redis, per hour"},
    {0}};

const struct bench_sub bench_fleet = {
    .name = "throughput fleet",
    .about = "many workers, simulated with the product's own decisions",
    .shared = BENCH_PROMPT_OPTIONS
    "geometry ram strategies ratios requests pool zipf load answer-tokens trace plot",
    .options = simulate_fleet_options,
    .run = simulate_fleet};
