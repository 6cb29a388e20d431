/* kvblend-bench proxy: rounds over points and servers. Servers take turns within a point and start
 * with another one in each round; figures are medians over the rounds. */
#include "tools/bench/bench.h"
#include "tools/bench/proxy.h"

#include "base/mem.h"

#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
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

struct figures { /* of one server at one point, a value per round */
    double rate[ROUNDS_MAX], p50_ms[ROUNDS_MAX], p99_ms[ROUNDS_MAX], cpu_us[ROUNDS_MAX];
    double per_read[ROUNDS_MAX];
    size_t n;
};
struct run {
    const struct opts *opts;
    struct proxy_setup setup;
    pid_t origin;
    struct proxy_server server[SERVERS_MAX];
    size_t n_servers;
    char names[256];
    size_t n_rounds;
    double seconds;
    int load_cpu, origin_cpu;
    struct proxy_result *shared; /* with the forked load generator */
    struct figures *figures;     /* [N_POINTS][SERVERS_MAX] */
    json_t *meta, *rows;
};

static struct figures *figures_of(const struct run *r, size_t point, size_t server)
{
    return &r->figures[point * SERVERS_MAX + server];
}

/* ---- processes ---- */

/* The proxies get the last CPUs, the load the first, the origin one between if there is one. */
static void choose_cpus(struct run *r)
{
    int n = (int)sysconf(_SC_NPROCESSORS_ONLN), wanted = (int)r->setup.loops;
    cpu_set_t set;
    bool all = sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) == n;
    r->load_cpu = r->origin_cpu = r->setup.cpu0 = -1;
    if (n < wanted + 1 || !all) return;
    r->load_cpu = 0;
    r->origin_cpu = n > wanted + 1 ? 1 : 0;
    r->setup.cpu0 = n - wanted;
    r->setup.n_cpus = wanted;
}

static int start_origin(struct run *r, struct err *err)
{
    int fd, e = proxy_listen(&fd, &r->setup.origin_port, err);
    if (e < 0) return e;
    pid_t parent = getpid();
    r->origin = fork();
    if (r->origin == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
        proxy_pin(r->origin_cpu, 1);
        proxy_origin_run(fd);
    }
    (void)close(fd);
    return r->origin < 0 ? err_set(err, -EAGAIN, "cannot fork") : 0;
}

static int run_load(struct run *r, const struct proxy_load *load, struct err *err)
{
    *r->shared = (struct proxy_result){.why = "the load generator died"};
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
        proxy_pin(r->load_cpu, 1);
        proxy_load_run(load, r->shared);
        _exit(0);
    }
    if (pid < 0 || waitpid(pid, NULL, 0) != pid) return err_set(err, -EAGAIN, "cannot fork");
    return 0;
}

static int start_servers(struct run *r, struct err *err)
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
        if (e < 0) return e;
    }
    return r->n_servers ? 0 : err_set(err, -EINVAL, "--servers: none is left");
}

static int check_servers(const struct run *r, struct err *err)
{
    static const size_t size[] = {512, 16 << 10, 128 << 10};
    for (size_t s = 0; s < r->n_servers; s++)
        for (size_t i = 0; i < sizeof size / sizeof *size; i++) {
            struct err why = {0};
            int e = proxy_check(r->server[s].port, size[i], &why);
            if (e < 0) return err_set(err, e, "%s: %.150s", r->server[s].name, why.msg);
        }
    return 0;
}

/* ---- measuring ---- */

static int measure(struct run *r, size_t point, size_t server, struct err *err)
{
    const struct proxy_server *s = &r->server[server];
    struct proxy_load load = {.point = points[point],
                              .port = s->port,
                              .server = s->pid,
                              .warm_s = fmin(0.3, r->seconds / 4),
                              .seconds = r->seconds};
    int e = run_load(r, &load, err);
    const struct proxy_result *x = r->shared;
    if (e < 0) return e;
    if (!x->ok)
        return err_set(err, -EIO, "%s, %s of %zu bytes, %u connections: %.120s", s->name,
                       load.point.sse ? "streams" : "requests", load.point.body_bytes,
                       load.point.conns, x->why);
    struct figures *f = figures_of(r, point, server);
    f->rate[f->n] = (double)x->done / x->wall_s;
    f->cpu_us[f->n] = s->pid ? x->cpu_s / (double)x->done * 1e6 : NAN;
    f->p50_ms[f->n] = x->p50_ms;
    f->p99_ms[f->n] = x->p99_ms;
    f->per_read[f->n] = (double)x->done / (double)x->reads;
    f->n++;
    return 0;
}

static int measure_all(struct run *r, struct err *err)
{
    size_t done = 0, of = r->n_rounds * N_POINTS;
    for (size_t round = 0; round < r->n_rounds; round++)
        for (size_t p = 0; p < N_POINTS; p++) {
            bool wanted = is_wanted(opt_str(r->opts, "only"), &points[p]);
            for (size_t i = 0; wanted && i < r->n_servers; i++) {
                int e = measure(r, p, (i + round) % r->n_servers, err);
                if (e < 0) return e;
            }
            bench_progress("proxy", ++done, of);
        }
    return 0;
}

/* ---- report ---- */

static double median(const double *v, size_t n)
{
    double copy[ROUNDS_MAX];
    memcpy(copy, v, n * sizeof *v);
    return bench_quantile(copy, n, 0.5);
}

static void add_row(struct run *r, size_t point, size_t server)
{
    const struct proxy_point *p = &points[point];
    const struct figures *f = figures_of(r, point, server);
    double rate = median(f->rate, f->n), cpu = median(f->cpu_us, f->n);
    double p50 = median(f->p50_ms, f->n), p99 = median(f->p99_ms, f->n);
    json_t *row =
        json_pack("{s:s, s:s, s:i, s:i, s:i, s:i}", "server", r->server[server].name, "kind",
                  p->sse ? "sse" : "request", "body_bytes", (int)p->body_bytes, "connections",
                  (int)p->conns, "streams", p->sse ? (int)p->conns : 0, "rounds", (int)f->n);
    json_object_set_new(row, "requests_per_s", p->sse ? json_null() : bench_number(rate));
    json_object_set_new(row, "events_per_s", p->sse ? bench_number(rate) : json_null());
    json_object_set_new(row, "p50_ms", bench_number(p50));
    json_object_set_new(row, "p99_ms", bench_number(p99));
    json_object_set_new(row, "cpu_us_per_request", p->sse ? json_null() : bench_number(cpu));
    json_object_set_new(row, "events_per_cpu_s", p->sse ? bench_number(1e6 / cpu) : json_null());
    json_object_set_new(row, "events_per_read",
                        p->sse ? bench_number(median(f->per_read, f->n)) : json_null());
    json_array_append_new(r->rows, row);
    char note[64] = "";
    if (p->sse && isfinite(cpu)) (void)snprintf(note, sizeof note, "%.0f events/CPU-s", 1e6 / cpu);
    (void)printf("%-13s %-8s %7zu %6u %10.0f %9.3f %9.3f %9.1f  %s\n", r->server[server].name,
                 p->sse ? "sse" : "request", p->body_bytes, p->conns, rate, p50, p99, cpu, note);
}

static int server_index(const struct run *r, const char *name)
{
    for (size_t i = 0; i < r->n_servers; i++)
        if (strcmp(r->server[i].name, name) == 0) return (int)i;
    return -1;
}

enum ratio { RATIO_CPU, RATIO_RATE, RATIO_ADDED };

/* kvblend against the better of nginx's two settings in the same round; NAN when one is missing. */
static double ratio_of_round(const struct run *r, size_t point, size_t round, enum ratio what)
{
    static const char *const name[] = {"kvblend", "nginx", "nginx-stream"};
    double v[3], base = 0;
    if (figures_of(r, point, 0)->n == 0) return NAN;
    int direct = server_index(r, "direct");
    if (what == RATIO_ADDED && direct < 0) return NAN;
    if (what == RATIO_ADDED) base = figures_of(r, point, (size_t)direct)->p50_ms[round];
    for (int i = 0; i < 3; i++) {
        int s = server_index(r, name[i]);
        const struct figures *f = s < 0 ? NULL : figures_of(r, point, (size_t)s);
        v[i] = !f                   ? NAN
               : what == RATIO_CPU  ? f->cpu_us[round]
               : what == RATIO_RATE ? f->rate[round]
                                    : f->p50_ms[round] - base;
    }
    return v[0] / (what == RATIO_RATE ? fmax(v[1], v[2]) : fmin(v[1], v[2]));
}

static double ratio_at(const struct run *r, size_t point, enum ratio what)
{
    double v[ROUNDS_MAX];
    for (size_t i = 0; i < r->n_rounds; i++)
        v[i] = ratio_of_round(r, point, i, what);
    return bench_quantile(v, r->n_rounds, 0.5);
}

/* {"512": {"median": x, "1": x, "32": x, "256": x}, …}: by body size and connections. */
static json_t *ratios(const struct run *r, enum ratio what)
{
    json_t *all = json_object();
    for (size_t p = 0; p < N_POINTS; p++) {
        char size[32], conns[32];
        (void)snprintf(size, sizeof size, points[p].sse ? "sse" : "%zu", points[p].body_bytes);
        (void)snprintf(conns, sizeof conns, "%u", points[p].conns);
        json_t *of_size = json_object_get(all, size);
        if (!of_size) {
            of_size = json_object();
            json_object_set_new(all, size, of_size);
        }
        json_object_set_new(of_size, conns, bench_number(ratio_at(r, p, what)));
    }
    const char *key;
    json_t *of_size, *one;
    json_object_foreach(all, key, of_size)
    {
        double v[N_POINTS];
        size_t n = 0;
        const char *conns;
        json_object_foreach(of_size, conns, one) v[n++] =
            json_is_number(one) ? json_number_value(one) : NAN;
        json_object_set_new(of_size, "median", bench_number(bench_quantile(v, n, 0.5)));
    }
    return all;
}

static void report(struct run *r)
{
    json_t *per_cpu = json_object(), *versions = json_object(), *configs = json_object();
    (void)printf("%-13s %-8s %7s %6s %10s %9s %9s %9s\n", "server", "kind", "bytes", "conns",
                 "per s", "p50 ms", "p99 ms", "CPU us");
    for (size_t p = 0; p < N_POINTS; p++)
        for (size_t s = 0; s < r->n_servers; s++)
            if (figures_of(r, p, s)->n) add_row(r, p, s);
    for (size_t s = 0; s < r->n_servers; s++) {
        struct proxy_server *x = &r->server[s];
        if (!x->pid) continue;
        const struct figures *f = figures_of(r, N_POINTS - 1, s);
        json_object_set_new(per_cpu, x->name, bench_number(1e6 / median(f->cpu_us, f->n)));
        json_object_set_new(versions, x->name, json_string(x->version));
        json_object_set_new(configs, x->name, json_string(buf_cstr(&x->config)));
    }
    json_object_set_new(r->meta, "sse_events_per_cpu_s", per_cpu);
    json_object_set_new(r->meta, "versions", versions);
    json_object_set_new(r->meta, "configs", configs);
    json_object_set_new(r->meta, "cpu_vs_nginx", ratios(r, RATIO_CPU));
    json_object_set_new(r->meta, "rps_vs_nginx", ratios(r, RATIO_RATE));
    json_object_set_new(r->meta, "added_p50_vs_nginx", ratios(r, RATIO_ADDED));
    char cpus[160] = "not pinned: too few CPUs, or not all of them are ours";
    if (r->load_cpu >= 0)
        (void)snprintf(cpus, sizeof cpus, "load on CPU %d, origin on CPU %d, proxy on CPU %d-%d",
                       r->load_cpu, r->origin_cpu, r->setup.cpu0,
                       r->setup.cpu0 + r->setup.n_cpus - 1);
    json_object_set_new(r->meta, "pinning", json_string(cpus));
    json_object_set_new(r->meta, "loops", json_integer(r->setup.loops));
    json_object_set_new(r->meta, "seconds", json_real(r->seconds));
    for (int i = 0; i < 3; i++) {
        static const char *const name[] = {"cpu_vs_nginx", "rps_vs_nginx", "added_p50_vs_nginx"};
        char *text =
            json_dumps(json_object_get(r->meta, name[i]), JSON_REAL_PRECISION(3) | JSON_COMPACT);
        (void)printf("%s %s\n", name[i], text ? text : "");
        mem_free(text);
    }
}

static int run_open(struct run *r, const struct opts *opts, struct err *err)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    (void)signal(SIGPIPE, SIG_IGN);
    r->opts = opts;
    r->seconds = opt_double(opts, "seconds");
    r->n_rounds = (size_t)opt_int(opts, "rounds");
    r->setup.loops = (unsigned)opt_int(opts, "loops");
    if (!(r->seconds > 0)) return err_set(err, -EINVAL, "--seconds must be above 0");
    (void)snprintf(r->setup.dir, sizeof r->setup.dir, "/tmp/kvblend-bench-XXXXXX");
    if (!mkdtemp(r->setup.dir)) {
        r->setup.dir[0] = '\0';
        return err_set(err, -errno, "no folder for temporary files: %s", strerror(errno));
    }
    r->meta = bench_meta();
    json_object_set_new(r->meta, "left_out", json_array());
    r->rows = json_array();
    r->figures = mem_zalloc(N_POINTS * SERVERS_MAX * sizeof *r->figures);
    r->shared =
        mmap(NULL, sizeof *r->shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (r->shared == MAP_FAILED) r->shared = NULL;
    if (!r->shared || !r->figures) return err_set(err, -ENOMEM, "out of memory");
    choose_cpus(r);
    return start_origin(r, err);
}

static int measure_proxies(const struct opts *opts, struct err *err)
{
    struct run r = {0};
    int e = run_open(&r, opts, err);
    if (e == 0) e = start_servers(&r, err);
    if (e == 0) e = check_servers(&r, err);
    if (e == 0) e = measure_all(&r, err);
    if (e == 0) {
        report(&r);
        e = bench_write_json(opts, r.meta, r.rows, err);
    }
    for (size_t i = 0; i < r.n_servers; i++)
        proxy_server_stop(&r.server[i]);
    if (r.origin > 0) {
        (void)kill(r.origin, SIGKILL); /* it keeps nothing */
        (void)waitpid(r.origin, NULL, 0);
    }
    proxy_setup_fini(&r.setup);
    if (r.shared) (void)munmap(r.shared, sizeof *r.shared);
    mem_free(r.figures);
    json_decref(r.meta);
    json_decref(r.rows);
    return e;
}

static const struct opt_def measure_proxies_options[] = {
    {.name = "rounds",
     .type = OPT_INT,
     .dflt = "3",
     .min = 1,
     .max = 101,
     .help = "how often each figure is measured"},
    {.name = "loops",
     .type = OPT_INT,
     .dflt = "1",
     .min = 1,
     .max = 64,
     .help = "event loops of kvblend"},
    {.name = "only",
     .type = OPT_STR,
     .dflt = "",
     .help = "measure these only, such as 512,131072:32,sse (bytes of the body:connections)"},
    {.name = "servers",
     .type = OPT_STR,
     .dflt = "direct,kvblend,nginx,nginx-stream,haproxy",
     .help = "what to put in front of the origin; nginx-stream: without request buffering; "
             "nginx-default: with its default body buffer"},
    {0}};

const struct bench_sub bench_proxy = {.name = "proxy",
                                      .about = "the gateway against nginx, haproxy and no proxy",
                                      .shared = "seconds",
                                      .options = measure_proxies_options,
                                      .run = measure_proxies};
