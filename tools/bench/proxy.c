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
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { SERVERS_MAX = 8, ROUNDS_MAX = 101, STREAMS = 400 };

static const struct proxy_point points[] = {
    {false, 512, 1, 0},       {false, 512, 32, 0},         {false, 512, 256, 0},
    {false, 16 << 10, 1, 0},  {false, 16 << 10, 32, 0},    {false, 16 << 10, 256, 0},
    {false, 128 << 10, 1, 0}, {false, 128 << 10, 32, 0},   {false, 128 << 10, 256, 0},
    {true, 512, 1, 1000},     {true, 512, STREAMS, 10000},
};
enum { N_POINTS = sizeof points / sizeof *points };

/* "131072:32" or "sse:400". */
static void point_name(const struct proxy_point *p, char ret[32])
{
    if (p->sse)
        (void)snprintf(ret, 32, "sse:%u", p->conns);
    else
        (void)snprintf(ret, 32, "%zu:%u", p->body_bytes, p->conns);
}

/* Does the list name it, or the part before the colon? An empty list names all. */
static bool is_wanted(const char *list, const struct proxy_point *p)
{
    char name[32];
    point_name(p, name);
    if (!*list) return true;
    for (size_t n; *list; list += n + (list[n] == ',')) {
        n = strcspn(list, ",");
        bool whole = n == strlen(name), size = n == strcspn(name, ":");
        if (n > 0 && (whole || size) && strncmp(name, list, n) == 0) return true;
    }
    return false;
}

struct proxy_figures { /* of one server at one point, a value per round */
    double rate[ROUNDS_MAX], p50_ms[ROUNDS_MAX], p99_ms[ROUNDS_MAX], cpu_us[ROUNDS_MAX];
    size_t n;
};
struct proxy_run {
    const struct opts *opts;
    struct proxy_setup setup;
    pid_t origin;
    struct proxy_server server[SERVERS_MAX];
    size_t n_servers;
    char names[256];
    size_t n_rounds;
    int load_cpu, origin_cpu;
    volatile uint64_t *n_events; /* shared with the origin */
    struct proxy_figures of[N_POINTS][SERVERS_MAX];
    json_t *meta, *rows;
};

/* ---- processes ---- */

/* The proxies get the last CPUs, the load the first, the origin one between if there is one. */
static void choose_cpus(struct proxy_run *r)
{
    int n = (int)sysconf(_SC_NPROCESSORS_ONLN), wanted = (int)r->setup.loops;
    cpu_set_t set;
    bool all = sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) == n;
    r->load_cpu = r->origin_cpu = -1;
    if (n < wanted + 1 || !all) return;
    r->load_cpu = 0;
    r->origin_cpu = n > wanted + 1 ? 1 : 0;
    r->setup.cpu0 = n - wanted;
    r->setup.n_cpus = wanted;
}

static int start_origin(struct proxy_run *r, struct err *err)
{
    int fd, e = proxy_listen(&fd, &r->setup.origin_port, err);
    if (e < 0) return e;
    r->origin = child_fork(r->origin_cpu, r->origin_cpu >= 0 ? 1 : 0);
    if (r->origin == 0) proxy_origin_run(fd, r->n_events);
    (void)close(fd);
    return r->origin < 0 ? err_set(err, -EAGAIN, "cannot fork") : 0;
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
    }
    return r->n_servers ? 0 : err_set(err, -EINVAL, "--servers: none is left");
}

/* ---- measuring ---- */

static int measure_server(struct proxy_run *r, size_t point, size_t server, struct err *err)
{
    const struct proxy_server *s = &r->server[server];
    const struct proxy_load load = {.point = points[point],
                                    .port = s->port,
                                    .server = s->pid,
                                    .seconds = (unsigned)fmax(opt_double(r->opts, "seconds"), 1),
                                    .dir = r->setup.dir,
                                    .cpu = r->load_cpu,
                                    .n_events = r->n_events};
    struct proxy_result x;
    struct err why = {0};
    char name[32];
    int e = proxy_load_run(&load, &x, &why);
    point_name(&points[point], name);
    if (e < 0) return err_set(err, e, "%s, %s: %.140s", s->name, name, why.msg);
    struct proxy_figures *f = &r->of[point][server];
    f->rate[f->n] = x.done / x.wall_s;
    f->cpu_us[f->n] = x.cpu_s / x.done * 1e6;
    f->p50_ms[f->n] = x.p50_ms;
    f->p99_ms[f->n] = x.p99_ms;
    f->n++;
    return 0;
}

static int measure_servers(struct proxy_run *r, struct err *err)
{
    size_t done = 0, of = r->n_rounds * N_POINTS;
    for (size_t round = 0; round < r->n_rounds; round++)
        for (size_t p = 0; p < N_POINTS; p++) {
            bool wanted = is_wanted(opt_str(r->opts, "only"), &points[p]);
            for (size_t i = 0; wanted && i < r->n_servers; i++) {
                int e = measure_server(r, p, (i + round) % r->n_servers, err);
                if (e < 0) return e;
            }
            bench_progress("proxy", ++done, of);
        }
    return 0;
}

/* ---- report ---- */

static double median_of(const double *v, size_t n)
{
    double copy[ROUNDS_MAX];
    memcpy(copy, v, n * sizeof *v);
    return bench_quantile(copy, n, 0.5);
}

static void add_row(struct proxy_run *r, size_t point, size_t server)
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
    const struct proxy_point *p = &points[point];
    const struct proxy_figures *f = &r->of[point][server];
    const double rate = median_of(f->rate, f->n), cpu = median_of(f->cpu_us, f->n);
    json_t *row = json_pack(
        "{s:s, s:s, s:i, s:i, s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:o}", "server",
        r->server[server].name, "kind", p->sse ? "sse" : "request", "body_bytes",
        (int)p->body_bytes, "connections", (int)p->conns, "streams", p->sse ? (int)p->conns : 0,
        "rounds", (int)f->n, "requests_per_s", bench_number(p->sse ? NAN : rate), "events_per_s",
        bench_number(p->sse ? rate : NAN), "p50_ms", bench_number(median_of(f->p50_ms, f->n)),
        "p99_ms", bench_number(median_of(f->p99_ms, f->n)), "cpu_us_per_request",
        bench_number(p->sse ? NAN : cpu), "events_per_cpu_s",
        bench_number(p->sse ? 1e6 / cpu : NAN));
    if (json_array_size(r->rows) == 0) bench_print_head(columns);
    bench_print_row(columns, row);
    json_array_append_new(r->rows, row);
}

static const double *values_of(const struct proxy_run *r, size_t point, const char *name, bool cpu)
{
    static const double none[ROUNDS_MAX] = {[0 ... ROUNDS_MAX - 1] = NAN};
    for (size_t i = 0; i < r->n_servers; i++)
        if (strcmp(r->server[i].name, name) == 0)
            return cpu ? r->of[point][i].cpu_us : r->of[point][i].rate;
    return none;
}

/* kvblend's CPU or rate by the better one's of nginx's two settings in the same round: the median
 * by point, what was not measured left out. */
static json_t *ratios_to_nginx(const struct proxy_run *r, bool cpu)
{
    json_t *all = json_object();
    for (size_t p = 0; p < N_POINTS; p++) {
        const double *own = values_of(r, p, "kvblend", cpu), *a = values_of(r, p, "nginx", cpu),
                     *b = values_of(r, p, "nginx-stream", cpu);
        double v[ROUNDS_MAX];
        char name[32];
        point_name(&points[p], name);
        for (size_t i = 0; i < r->n_rounds; i++)
            v[i] = own[i] / (cpu ? fmin(a[i], b[i]) : fmax(a[i], b[i]));
        const double ratio = bench_quantile(v, r->n_rounds, 0.5);
        if (isfinite(ratio)) json_object_set_new(all, name, json_real(ratio));
    }
    return all;
}

static void report_servers(struct proxy_run *r)
{
    json_t *per_cpu = json_object(), *versions = json_object(), *configs = json_object();
    json_t *cpu = ratios_to_nginx(r, true), *rate = ratios_to_nginx(r, false);
    char cpus[160] = "not pinned: too few CPUs, or not all of them are ours";
    for (size_t p = 0; p < N_POINTS; p++)
        for (size_t s = 0; s < r->n_servers; s++)
            if (r->of[p][s].n) add_row(r, p, s);
    for (size_t s = 0; s < r->n_servers; s++) {
        struct proxy_server *x = &r->server[s];
        if (!x->pid) continue;
        const struct proxy_figures *f = &r->of[N_POINTS - 1][s];
        json_object_set_new(per_cpu, x->name, bench_number(1e6 / median_of(f->cpu_us, f->n)));
        json_object_set_new(versions, x->name, json_string(x->version));
        json_object_set_new(configs, x->name, json_string(buf_cstr(&x->config)));
    }
    if (r->load_cpu >= 0)
        (void)snprintf(cpus, sizeof cpus, "load on CPU %d, origin on CPU %d, proxy on CPU %d-%d",
                       r->load_cpu, r->origin_cpu, r->setup.cpu0,
                       r->setup.cpu0 + r->setup.n_cpus - 1);
    char *text = json_dumps(cpu, JSON_REAL_PRECISION(3) | JSON_COMPACT);
    (void)printf("CPU by that of the better nginx: %s\n", text ? text : "");
    mem_free(text);
    json_object_update_new(
        r->meta, json_pack("{s:o, s:o, s:o, s:o, s:o, s:s, s:i}", "sse_events_per_cpu_s", per_cpu,
                           "versions", versions, "configs", configs, "cpu_vs_nginx", cpu,
                           "rps_vs_nginx", rate, "pinning", cpus, "loops", (int)r->setup.loops));
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
    r->setup.loops = (unsigned)opt_int(r->opts, "loops");
    r->meta = bench_meta();
    json_object_set_new(r->meta, "left_out", json_array());
    r->rows = json_array();
    void *shared =
        mmap(NULL, sizeof *r->n_events, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return err_set(err, -ENOMEM, "out of memory");
    r->n_events = shared;
    int e = child_dir("kvblend-bench", r->setup.dir, err);
    if (e < 0) return e;
    choose_cpus(r);
    return start_origin(r, err);
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
    child_stop(r->origin);
    child_dir_remove(r->setup.dir);
    if (r->n_events) (void)munmap((void *)(uintptr_t)r->n_events, sizeof *r->n_events);
    json_decref(r->meta);
    json_decref(r->rows);
    mem_free(r);
    return e;
}

static const struct opt_def measure_proxies_options[] = {
    {"rounds", OPT_INT, "3", 1, ROUNDS_MAX, NULL, "how often each figure is measured"},
    {"loops", OPT_INT, "1", 1, 64, NULL, "event loops of kvblend"},
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
