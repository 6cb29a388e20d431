/* kvblend-bench proxy: rounds over points and servers. Servers take turns within a point and start
 * with another one in each round; figures are medians over the rounds. */
#include "tools/bench/bench.h"
#include "tools/bench/figures.h"
#include "tools/bench/proxy.h"

#include "base/mem.h"

#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { SERVERS_MAX = 8, ROUNDS_MAX = 101 };

static const struct cell {
    const char *name;
    struct proxy_point at;
} cells[] = {
    {"512:1", {512, 1, 0}},       {"512:32", {512, 32, 0}},       {"512:256", {512, 256, 0}},
    {"16384:1", {16384, 1, 0}},   {"16384:32", {16384, 32, 0}},   {"16384:256", {16384, 256, 0}},
    {"131072:1", {131072, 1, 0}}, {"131072:32", {131072, 32, 0}}, {"131072:256", {131072, 256, 0}},
    {"sse:1", {512, 1, 1000}},    {"sse:400", {512, 400, 10000}},
};
enum { N_CELLS = sizeof cells / sizeof *cells };

/* Does the list name it, or the part before the colon? An empty list names all. */
static bool is_wanted(const char *list, const char *name)
{
    if (!*list) return true;
    for (size_t n; *list; list += n + (list[n] == ',')) {
        n = strcspn(list, ",");
        bool whole = n == strlen(name), size = n == strcspn(name, ":");
        if (n > 0 && (whole || size) && strncmp(name, list, n) == 0) return true;
    }
    return false;
}

struct proxy_run {
    const struct opts *opts;
    struct proxy_setup setup;
    struct proxy_server server[SERVERS_MAX];
    size_t n_servers;
    char names[256];
    size_t n_rounds;
    double of[N_CELLS][SERVERS_MAX][PROXY_FIGURES][ROUNDS_MAX]; /* rate 0: not measured */
    json_t *meta, *rows;
};

/* ---- processes ---- */

/* The proxies get the last CPU, the load the first, the origin one between if there is one. */
static int start_origin(struct proxy_run *r, struct err *err)
{
    struct proxy_setup *s = &r->setup;
    const int n = (int)sysconf(_SC_NPROCESSORS_ONLN);
    cpu_set_t set;
    const bool all = sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) == n;
    const int origin_cpu = n > 2 ? 1 : 0;
    s->load_cpu = s->cpu = -1;
    if (n < 2 || !all) {
        json_object_set_new(r->meta, "pinning", json_string("none: too few CPUs are ours"));
        return proxy_origin_start(-1, &s->origin, err);
    }
    s->load_cpu = 0;
    s->cpu = n - 1;
    json_object_set_new(r->meta, "pinning",
                        json_sprintf("load on CPU %d, origin on CPU %d, proxy on CPU %d",
                                     s->load_cpu, origin_cpu, s->cpu));
    return proxy_origin_start(origin_cpu, &s->origin, err);
}

static int start_servers(struct proxy_run *r, struct err *err)
{
    (void)snprintf(r->names, sizeof r->names, "%s", opt_str(r->opts, "servers"));
    char *rest = NULL;
    for (char *name = strtok_r(r->names, ",", &rest); name; name = strtok_r(NULL, ",", &rest)) {
        if (r->n_servers == SERVERS_MAX) return err_set(err, -ERANGE, "--servers: too many");
        struct proxy_server *s = &r->server[r->n_servers];
        int e = proxy_server_start(&r->setup, name, s, err);
        if (e == 0 && s->missing) {
            (void)fprintf(stderr,
                          "%s is not installed and is left out: tools/bench-setup installs "
                          "nginx-light and haproxy\n",
                          name);
            json_array_append_new(json_object_get(r->meta, "left_out"), json_string(name));
            continue;
        }
        r->n_servers++;
        struct err why = {0};
        if (e == 0 && proxy_check(s->port, &why) < 0)
            e = err_set(err, -EBADMSG, "%s: %.150s", name, why.msg);
        if (e < 0) return e;
        if (!s->pid) continue;
        json_object_set_new(json_object_get(r->meta, "versions"), name, json_string(s->version));
        json_object_set_new(json_object_get(r->meta, "configs"), name,
                            json_string(buf_cstr(&s->config)));
    }
    return r->n_servers ? 0 : err_set(err, -EINVAL, "--servers: none is left");
}

/* ---- measuring ---- */

static int measure_server(struct proxy_run *r, size_t cell, size_t server, size_t round,
                          struct err *err)
{
    struct err why = {0};
    double got[PROXY_FIGURES];
    const struct proxy_server *s = &r->server[server];
    const int e = proxy_load_run(&r->setup, s, &cells[cell].at, got, &why);
    if (e < 0) return err_set(err, e, "%s, %s: %.140s", s->name, cells[cell].name, why.msg);
    for (size_t i = 0; i < PROXY_FIGURES; i++)
        r->of[cell][server][i][round] = got[i];
    return 0;
}

static int measure_servers(struct proxy_run *r, struct err *err)
{
    size_t done = 0, of = r->n_rounds * N_CELLS;
    for (size_t round = 0; round < r->n_rounds; round++)
        for (size_t p = 0; p < N_CELLS; p++) {
            bool wanted = is_wanted(opt_str(r->opts, "only"), cells[p].name);
            for (size_t i = 0; wanted && i < r->n_servers; i++) {
                int e = measure_server(r, p, (i + round) % r->n_servers, round, err);
                if (e < 0) return e;
            }
            bench_progress("proxy", ++done, of);
        }
    return 0;
}

/* ---- report ---- */

static double median_of(const struct proxy_run *r, size_t cell, size_t server, size_t figure)
{
    double v[ROUNDS_MAX];
    memcpy(v, r->of[cell][server][figure], r->n_rounds * sizeof *v);
    return bench_quantile(v, r->n_rounds, 0.5);
}

static void add_row(struct proxy_run *r, size_t cell, size_t server)
{
    static const struct bench_column columns[] = {{"server", "server", -13, 0},
                                                  {"kind", "kind", -8, 0},
                                                  {"bytes", "body_bytes", 7, 0},
                                                  {"conns", "connections", 6, 0},
                                                  {"requests/s", "requests_per_s", 10, 0},
                                                  {"events/s", "events_per_s", 9, 0},
                                                  {"p50 ms", "p50_ms", 9, 3},
                                                  {"p99 ms", "p99_ms", 9, 3},
                                                  {"CPU us", "cpu_us_per_request", 9, 1},
                                                  {"events/CPU-s", "events_per_cpu_s", 12, 0},
                                                  {0}};
    const struct proxy_point *p = &cells[cell].at;
    const bool sse = p->tick_us > 0;
    const double rate = median_of(r, cell, server, PROXY_RATE),
                 cpu = median_of(r, cell, server, PROXY_CPU_US);
    json_t *row = json_pack(
        "{s:s, s:s, s:i, s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:o}", "server", r->server[server].name,
        "kind", sse ? "sse" : "request", "body_bytes", (int)p->body_bytes, "connections",
        (int)p->conns, "rounds", (int)r->n_rounds, "requests_per_s", bench_number(sse ? NAN : rate),
        "events_per_s", bench_number(sse ? rate : NAN), "p50_ms",
        bench_number(median_of(r, cell, server, PROXY_P50_MS)), "p99_ms",
        bench_number(median_of(r, cell, server, PROXY_P99_MS)), "cpu_us_per_request",
        bench_number(sse ? NAN : cpu), "events_per_cpu_s", bench_number(sse ? 1e6 / cpu : NAN));
    if (json_array_size(r->rows) == 0) bench_print_head(columns);
    bench_print_row(columns, row);
    json_array_append_new(r->rows, row);
}

static const double *values_of(const struct proxy_run *r, size_t cell, const char *name,
                               size_t figure)
{
    static const double none[ROUNDS_MAX] = {[0 ... ROUNDS_MAX - 1] = NAN};
    for (size_t i = 0; i < r->n_servers; i++)
        if (strcmp(r->server[i].name, name) == 0) return r->of[cell][i][figure];
    return none;
}

/* kvblend's CPU or rate by the better one's of nginx's two settings in the same round: the median
 * by point, what was not measured left out. */
static json_t *ratios_to_nginx(const struct proxy_run *r, size_t figure)
{
    json_t *all = json_object();
    for (size_t p = 0; p < N_CELLS; p++) {
        const double *own = values_of(r, p, "kvblend", figure),
                     *a = values_of(r, p, "nginx", figure),
                     *b = values_of(r, p, "nginx-stream", figure);
        double v[ROUNDS_MAX];
        for (size_t i = 0; i < r->n_rounds; i++)
            v[i] = own[i] / (figure == PROXY_CPU_US ? fmin(a[i], b[i]) : fmax(a[i], b[i]));
        const double ratio = bench_quantile(v, r->n_rounds, 0.5);
        if (isfinite(ratio)) json_object_set_new(all, cells[p].name, json_real(ratio));
    }
    return all;
}

static void report_servers(struct proxy_run *r)
{
    json_t *cpu = ratios_to_nginx(r, PROXY_CPU_US), *rate = ratios_to_nginx(r, PROXY_RATE);
    for (size_t p = 0; p < N_CELLS; p++)
        for (size_t s = 0; s < r->n_servers; s++)
            if (r->of[p][s][PROXY_RATE][0] > 0) add_row(r, p, s);
    char *text = json_dumps(cpu, JSON_REAL_PRECISION(3) | JSON_COMPACT);
    (void)printf("CPU by that of the better nginx: %s\n", text ? text : "");
    mem_free(text);
    json_object_set_new(r->meta, "cpu_vs_nginx", cpu);
    json_object_set_new(r->meta, "rps_vs_nginx", rate);
}

static int open_run(struct proxy_run *r, struct err *err)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    (void)signal(SIGPIPE, SIG_IGN);
    r->n_rounds = (size_t)opt_int(r->opts, "rounds");
    r->setup.seconds = (unsigned)fmax(opt_double(r->opts, "seconds"), 1);
    r->meta = bench_meta();
    json_object_update_new(r->meta,
                           json_pack("{s:[], s:{}, s:{}}", "left_out", "versions", "configs"));
    r->rows = json_array();
    int e = child_dir("kvblend-bench", r->setup.dir, err);
    return e < 0 ? e : start_origin(r, err);
}

static int measure_proxies(const struct opts *opts, struct err *err)
{
    struct proxy_run *r = mem_zalloc(sizeof *r);
    if (!r) return err_set(err, -ENOMEM, "out of memory");
    r->opts = opts;
    int e = open_run(r, err);
    if (e == 0) e = start_servers(r, err);
    if (e == 0) e = measure_servers(r, err);
    if (e == 0) {
        report_servers(r);
        e = bench_write_json(opts, r->meta, r->rows, err);
    }
    for (size_t i = 0; i < r->n_servers; i++)
        proxy_server_stop(&r->server[i]);
    child_stop(r->setup.origin.pid);
    child_dir_remove(r->setup.dir);
    json_decref(r->meta);
    json_decref(r->rows);
    mem_free(r);
    return e;
}

static const struct opt_def measure_proxies_options[] = {
    {"rounds", OPT_INT, "3", 1, ROUNDS_MAX, NULL, "how often each figure is measured"},
    {"only", OPT_STR, "", 0, 0, NULL,
     "measure these only, such as 512,131072:32,sse (bytes of the body:connections)"},
    {"servers", OPT_STR, "direct,kvblend,nginx,nginx-stream,haproxy", 0, 0, NULL,
     "what to put in front of the origin; nginx-stream: without request buffering; nginx-default: "
     "with its default body buffer"},
    {0}};

const struct bench_sub bench_proxy = {.name = "proxy",
                                      .about = "the gateway against nginx, haproxy and no proxy",
                                      .shared = "seconds",
                                      .options = measure_proxies_options,
                                      .run = measure_proxies};
