#include "gateway/process/own.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/net/http.h"
#include "gateway/fleet/fleet.h"
#include "gateway/fleet/view.h"
#include "gateway/process/config.h"
#include "gateway/process/config_worker.h"
#include "gateway/process/models.h"
#include "gateway/process/places.h"
#include "gateway/process/stats.h"
#include "worker/opts_table.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    ARGS_MAX = 512,
    OWN_MAX = 64,
    MODEL_NAME_BYTES = 256, /* a worker's, too */
    ASK_S = 60,           /* chosen: a driver that nobody keeps loaded takes seconds for each GPU */
    HANG_MS = 60000,      /* chosen: a worker answers health checks beside all that it computes */
    REST_GRACE_MS = 5000, /* chosen: it has no request */
    BACKOFF_MIN_MS = 100,
    BACKOFF_MAX_MS = 10000,
    STEADY_MS = 30000,
};

struct own_one { /* a process, started again whenever it ends, or whenever it is wanted */
    struct gw_own *own;
    const char *const *argv; /* in the arena */
    char address[160];       /* longer than a socket's may be */
    unsigned target;         /* the fleet's index */
    atomic_int pid;          /* 0: none runs */
    atomic_uint n_restarts;
    int lifeline; /* write end of the worker's standard input: closes when the gateway dies */
    unsigned backoff_ms;
    uint64_t started_ns;
    bool stopping, served; /* served: has been ready at least once */
    bool refused;          /* ended with an error before it served */
    bool on_demand;
    bool wanted, due, resting; /* on demand: to be started; its timer is set; ending, as idle */
    unsigned wait_ms;          /* on demand: from when it is wanted to its start */
    unsigned idle_ms;          /* on demand: it is ended after so long; 0: never */
    struct http_timer timer;   /* without a process: the next start; with one: its end */
    struct http_timer idle;
};
struct gw_own {
    struct gw_own_setup setup;
    unsigned n, n_stopped, n_wanted; /* n_wanted: of `model:` */
    const char *device[OWN_MAX];     /* in the arena; NULL: worker.device as it stands */
    struct buf dir, bin, model;
    struct gw_models models; /* further ones, a worker each */
    struct arena args;
    struct own_one one[OWN_MAX];
};

static bool serves(const struct gw_own *o, unsigned target)
{
    struct gw_target_view v;
    return gw_fleet_view(o->setup.fleet, target, &v) && v.served;
}

/* ---- a process ---- */

/* Between fork and exec: only calls that are safe there. */
static void exec_worker(const struct own_one *x, pid_t parent, int input)
{
    sigset_t none;
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)signal(SIGPIPE, SIG_DFL);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1); /* the gateway died before the line above */
    /* A process group of its own: Ctrl-C reaches the gateway alone, which then drains. */
    (void)setpgid(0, 0);
    (void)dup2(input, STDIN_FILENO);
    /* The access log owns stdout. */
    (void)dup2(STDERR_FILENO, STDOUT_FILENO);
    (void)execv(x->argv[0], (char *const *)(uintptr_t)x->argv);
    static const char msg[] = "kvblend: the worker program could not be started\n";
    (void)!write(STDERR_FILENO, msg, sizeof msg - 1);
    _exit(127);
}

static int start_process(struct own_one *x)
{
    pid_t parent = getpid();
    int fd[2];
    if (pipe2(fd, O_CLOEXEC) < 0) return -errno;
    pid_t pid = fork();
    int e = errno;
    if (pid == 0) exec_worker(x, parent, fd[0]);
    (void)close(fd[0]);
    if (pid < 0) {
        (void)close(fd[1]);
        return -e;
    }
    x->lifeline = fd[1];
    x->pid = pid;
    x->started_ns = clock_ns();
    x->wanted = x->due = false;
    if (x->idle_ms) http_timer_set(&x->idle, x->idle_ms);
    log_event(LOG_NOTICE, "worker.started", "worker=%u pid=%d", x->target, (int)pid);
    gw_fleet_expect(x->own->setup.fleet, x->target);
    return 0;
}

/* Workers that died together do not come back together. */
static unsigned next_wait_ms(struct own_one *x)
{
    const unsigned ms = x->backoff_ms + x->backoff_ms / 8 * (x->target % 4);
    x->backoff_ms = x->backoff_ms * 2 > BACKOFF_MAX_MS ? BACKOFF_MAX_MS : x->backoff_ms * 2;
    return ms;
}

/* One on demand is started if somebody wants it. */
static void start_wanted(struct own_one *x)
{
    if (!x->wanted || x->due || x->pid || x->stopping) return;
    x->due = true;
    http_timer_set(&x->timer, x->wait_ms);
}

static void on_timer(void *arg)
{
    struct own_one *x = arg;
    if (x->pid) (void)kill(x->pid, SIGKILL); /* it had its grace */
    if (x->pid || x->stopping) return;
    const bool again = !x->on_demand;
    int r = start_process(x);
    if (r < 0) {
        log_event(LOG_ERROR, "worker.start", "worker=%u error=%s", x->target, err_name(r));
        http_timer_set(&x->timer, next_wait_ms(x));
    } else if (again) {
        x->n_restarts++;
        gw_stats_add(GW_M_RESTARTS, 1);
    }
}

static void on_idle(void *arg)
{
    struct own_one *x = arg;
    if (!x->pid || x->stopping) return;
    const uint64_t left_ms = gw_fleet_rest(x->own->setup.fleet, x->target, x->idle_ms);
    if (left_ms > 0) {
        http_timer_set(&x->idle, left_ms);
        return;
    }
    log_event(LOG_NOTICE, "worker.idle", "worker=%u pid=%d", x->target, (int)x->pid);
    x->resting = true;
    (void)kill(x->pid, SIGTERM);
    http_timer_set(&x->timer, REST_GRACE_MS);
}

/* worker/worker.h has the statuses. */
static const char *reason_of(int code)
{
    return code == 3 ? "device_lost" : code == 4 ? "model_file" : "-";
}

bool gw_own_awaited(const struct gw_own *o)
{
    for (unsigned i = 0; i < o->n && !o->setup.others; i++)
        if (!o->one[i].on_demand) return true;
    return false;
}

/* True: none of them will ever serve, and the owner was told. */
static bool is_hopeless(struct own_one *x, int exit_code)
{
    struct gw_own *o = x->own;
    if (x->on_demand) return false;
    x->refused = true;
    if (o->setup.others) return false;
    for (unsigned i = 0; i < o->n; i++)
        if (!o->one[i].refused || serves(o, o->one[i].target)) return false;
    o->setup.on_refused(o->setup.ctx, exit_code);
    return true;
}

static void has_stopped(struct gw_own *o)
{
    if (++o->n_stopped == o->n) o->setup.on_stopped(o->setup.ctx);
}

static void process_ended(struct own_one *x, int status)
{
    x->pid = 0;
    (void)close(x->lifeline);
    if (serves(x->own, x->target)) x->served = true;
    gw_fleet_lost(x->own->setup.fleet, x->target);
    if (x->stopping) {
        http_timer_clear(&x->timer);
        has_stopped(x->own);
        return;
    }
    http_timer_clear(&x->idle);
    if (x->resting) {
        http_timer_clear(&x->timer);
        x->resting = false;
        x->wait_ms = 0;
        start_wanted(x);
        return;
    }
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    int sig = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    log_event(LOG_ERROR, "worker.ended", "worker=%u exit=%d signal=%d reason=%s", x->target, code,
              sig, reason_of(code));
    if (!x->served && WIFEXITED(status) && code != 0 && is_hopeless(x, code)) return;
    if (clock_ms_since(x->started_ns) > STEADY_MS) x->backoff_ms = BACKOFF_MIN_MS;
    const unsigned wait_ms = next_wait_ms(x);
    if (!x->on_demand) {
        http_timer_set(&x->timer, wait_ms);
        return;
    }
    x->wait_ms = wait_ms;
    start_wanted(x);
}

/* ---- devices ---- */

/* How many can be opened, by the worker's word: no driver is loaded here. Waits. */
static unsigned ask_devices(struct gw_own *o, const char *which)
{
    const char *const argv[] = {buf_cstr(&o->bin), "--device", which, "--list-devices", NULL};
    char line[256];
    unsigned n = 0;
    int fd[2];
    if (pipe2(fd, O_CLOEXEC) < 0) return 0;
    pid_t pid = fork();
    if (pid == 0) {
        (void)dup2(fd[1], STDOUT_FILENO);
        (void)alarm(ASK_S); /* which it keeps */
        (void)execv(argv[0], (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    (void)close(fd[1]);
    FILE *f = fdopen(fd[0], "r");
    while (f && n < OWN_MAX && fgets(line, sizeof line, f)) {
        log_event(LOG_INFO, "device.found", "device=\"%.*s\"", (int)strcspn(line, "\n"), line);
        if ((o->device[n] = arena_strndup(&o->args, line, strcspn(line, " \n")))) n++;
    }
    (void)(f ? fclose(f) : close(fd[0]));
    if (pid > 0) (void)waitpid(pid, NULL, 0);
    return n;
}

static int find_devices(struct gw_own *o, const struct gw_config *c, struct err *err)
{
    const char *which = opt_str(c->opts, "worker.device");
    struct wk_devices asked;
    (void)wk_parse_devices(which, &asked);
    o->n_wanted = asked.several ? ask_devices(o, which) : c->worker_count;
    if (o->n_wanted < asked.n)
        return err_set(err, -ENODEV, "device: not all of %s can be used; the worker says above why",
                       which);
    if (o->n_wanted == 0) log_event(LOG_INFO, "device.none", "device=cpu");
    if (o->n_wanted == 0) o->device[o->n_wanted++] = "cpu";
    return 0;
}

/* ---- life ---- */

/* m NULL: one of `model:`. */
static const char *const *make_args(struct gw_own *o, const struct gw_config *c,
                                    const struct gw_model *m, const char *address)
{
    enum { N_OWN = 5 };
    const char *args[ARGS_MAX] = {buf_cstr(&o->bin), "--model", m ? m->path : buf_cstr(&o->model),
                                  "--listen", address};
    const unsigned n_all = o->n_wanted + (unsigned)o->models.n;
    const struct gw_worker_share own = {.number = o->n, .n = o->n_wanted, .n_all = n_all},
                                 further = {.n = 1, .n_all = n_all, .model = m ? m->opts : NULL};
    struct gw_worker_share share = m ? further : own;
    if (!m) share.device = o->device[o->n];
    int n = gw_config_worker_args(c, &share, &o->args, args + N_OWN, ARGS_MAX - N_OWN - 1);
    const size_t bytes = (size_t)(N_OWN + (n < 0 ? 0 : n) + 1) * sizeof *args;
    const char **copy = n < 0 ? NULL : arena_alloc(&o->args, bytes);
    if (copy) memcpy(copy, args, bytes); /* with the NULL at its end */
    return copy;
}

static int start_one(struct gw_own *o, const struct gw_config *c, const struct gw_model *m,
                     struct err *err)
{
    if (o->n == OWN_MAX) return err_set(err, -ERANGE, "more than %d own workers", OWN_MAX);
    struct own_one *x = &o->one[o->n];
    char number[16] = "";
    if (o->n > 0) (void)snprintf(number, sizeof number, "-%u", o->n);
    (void)snprintf(x->address, sizeof x->address, "unix:%s/worker%s.sock", buf_cstr(&o->dir),
                   number);
    x->own = o;
    x->backoff_ms = BACKOFF_MIN_MS;
    x->argv = make_args(o, c, m, x->address);
    o->n++;
    int r = x->argv ? gw_fleet_add_worker(o->setup.fleet, x->address, true, &x->target) : -ENOMEM;
    http_timer_init(&x->timer, o->setup.loop, on_timer, x);
    http_timer_init(&x->idle, o->setup.loop, on_idle, x);
    x->on_demand = m && m->on_demand;
    x->idle_ms = m ? m->idle_ms : 0;
    char name[MODEL_NAME_BYTES];
    if (r >= 0 && x->on_demand)
        r = gw_fleet_on_demand(o->setup.fleet, x->target, gw_model_name(m, name, sizeof name));
    else if (r >= 0)
        r = start_process(x);
    if (r < 0) return err_set(err, r, "the worker %s could not be started", buf_cstr(&o->bin));
    return 0;
}

int gw_own_create(const struct gw_own_setup *setup, struct gw_own **ret, struct err *err)
{
    const struct gw_config *c = setup->config;
    struct gw_own *o = mem_zalloc(sizeof *o);
    if (!o) return -ENOMEM;
    arena_init(&o->args);
    o->setup = *setup;
    const bool main_model = c->model || c->models.n == 0;
    int r = c->worker_bin ? buf_adds(&o->bin, c->worker_bin) : gw_find_worker(&o->bin, err);
    if (r == 0) r = gw_models_parse(&c->models, &o->models, err);
    if (r == 0 && main_model)
        r = c->model ? buf_adds(&o->model, c->model) : gw_find_model(&o->model, err);
    if (r == 0 && main_model && !c->model)
        log_event(LOG_NOTICE, "model.found", "path=\"%s\"", buf_cstr(&o->model));
    if (r == 0) r = gw_rundir_private(setup->run_dir, &o->dir, err);
    if (r == 0) r = gw_config_worker_env(c);
    if (r == 0 && main_model) r = find_devices(o, c, err);
    if (r == 0 && o->models.n + main_model > 1) gw_fleet_mix(setup->fleet);
    for (unsigned i = 0; r == 0 && i < o->n_wanted; i++)
        r = start_one(o, c, NULL, err);
    for (size_t i = 0; r == 0 && i < o->models.n; i++)
        r = start_one(o, c, &o->models.v[i], err);
    if (r < 0)
        gw_own_destroy(o);
    else
        *ret = o;
    return r;
}

void gw_own_reaped(struct gw_own *o)
{
    for (unsigned i = 0; i < o->n; i++) {
        struct own_one *x = &o->one[i];
        int status;
        if (x->pid && waitpid(x->pid, &status, WNOHANG) == x->pid) process_ended(x, status);
    }
}

static const struct own_one *one_of(const struct gw_own *o, unsigned target)
{
    for (unsigned i = 0; o && i < o->n; i++)
        if (o->one[i].target == target) return &o->one[i];
    return NULL;
}

void gw_own_silent(struct gw_own *o, unsigned target, uint64_t silent_ms)
{
    const struct own_one *x = one_of(o, target);
    /* One that still loads its model is given all the time it needs. */
    if (!x || silent_ms <= HANG_MS || !serves(o, target) || !x->pid || x->stopping) return;
    log_event(LOG_ERROR, "worker.hangs", "worker=%u pid=%d", x->target, (int)x->pid);
    (void)kill(x->pid, SIGKILL);
}

void gw_own_wanted(struct gw_own *o, unsigned target)
{
    for (unsigned i = 0; i < o->n; i++) {
        if (o->one[i].target != target || !o->one[i].on_demand) continue;
        o->one[i].wanted = true; /* one that still ends is started behind its end */
        start_wanted(&o->one[i]);
    }
}

void gw_own_stop(struct gw_own *o, unsigned grace_ms)
{
    for (unsigned i = 0, n = o->n; i < n; i++) {
        struct own_one *x = &o->one[i];
        x->stopping = true;
        http_timer_clear(&x->timer);
        http_timer_clear(&x->idle);
        if (x->pid) (void)kill(x->pid, grace_ms ? SIGTERM : SIGKILL);
        if (x->pid && grace_ms) http_timer_set(&x->timer, grace_ms);
        if (!x->pid) has_stopped(o);
    }
}

bool gw_own_process(const struct gw_own *o, unsigned target, int *ret_pid, unsigned *ret_restarts)
{
    const struct own_one *x = one_of(o, target);
    if (!x) return false;
    *ret_pid = x->pid;
    *ret_restarts = x->n_restarts;
    return true;
}

void gw_own_destroy(struct gw_own *o)
{
    if (!o) return;
    for (unsigned i = 0; i < o->n; i++) {
        struct own_one *x = &o->one[i];
        if (x->pid) {
            (void)kill(x->pid, SIGKILL);
            (void)waitpid(x->pid, NULL, 0);
            (void)close(x->lifeline);
        }
        http_timer_fini(&x->timer);
        http_timer_fini(&x->idle);
        (void)unlink(x->address + strlen("unix:"));
    }
    if (o->dir.len > 0) (void)rmdir(buf_cstr(&o->dir));
    buf_fini(&o->dir);
    buf_fini(&o->bin);
    buf_fini(&o->model);
    gw_models_free(&o->models);
    arena_fini(&o->args);
    mem_free(o);
}
