#include "gateway/process/child.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/net/http.h"
#include "gateway/fleet/fleet.h"
#include "gateway/fleet/view.h"
#include "gateway/process/stats.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BACKOFF_MIN_MS = 100, BACKOFF_MAX_MS = 10000, STEADY_MS = 30000 };

struct gw_child {
    struct gw_fleet *fleet;
    unsigned target; /* the fleet's index */
    struct gw_child_ops ops;
    const char *const *argv;
    atomic_int pid; /* 0: none runs */
    int lifeline;   /* write end of the worker's standard input: closes when the gateway dies */
    unsigned backoff_ms;
    atomic_uint n_starts;
    uint64_t started_ns;
    bool stopping, served; /* served: has been ready at least once */
    struct http_timer *restart, *grace;
};

/* Between fork and exec: only calls that are safe there. */
static void child_exec(const struct gw_child *c, pid_t parent, int input)
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
    (void)execv(c->argv[0], (char *const *)(uintptr_t)c->argv);
    static const char msg[] = "kvblend: the worker program could not be started\n";
    (void)!write(STDERR_FILENO, msg, sizeof msg - 1);
    _exit(127);
}

static int child_start(struct gw_child *c)
{
    pid_t parent = getpid();
    int fd[2];
    if (pipe2(fd, O_CLOEXEC) < 0) return -errno;
    pid_t pid = fork();
    int e = errno;
    if (pid == 0) child_exec(c, parent, fd[0]);
    (void)close(fd[0]);
    if (pid < 0) {
        (void)close(fd[1]);
        return -e;
    }
    c->lifeline = fd[1];
    c->pid = pid;
    c->started_ns = clock_ns();
    if (c->n_starts++ > 0) gw_stats_worker_restart();
    log_event(LOG_NOTICE, "worker.started", "worker=%u pid=%d", c->target, (int)pid);
    gw_fleet_expect(c->fleet, c->target);
    return 0;
}

static void schedule_restart(struct gw_child *c)
{
    /* Workers that died together do not come back together. */
    http_timer_set(c->restart, c->backoff_ms + c->backoff_ms / 8 * (c->target % 4));
    c->backoff_ms = c->backoff_ms * 2 > BACKOFF_MAX_MS ? BACKOFF_MAX_MS : c->backoff_ms * 2;
}

static void on_restart(void *arg)
{
    struct gw_child *c = arg;
    if (c->stopping || c->pid) return;
    int r = child_start(c);
    if (r < 0) {
        log_event(LOG_ERROR, "worker.start", "worker=%u error=%s", c->target, err_name(r));
        schedule_restart(c);
    }
}

static void on_grace(void *arg)
{
    struct gw_child *c = arg;
    if (c->pid) (void)kill(c->pid, SIGKILL);
}

/* worker/worker.h has the statuses. */
static const char *reason_of(int code)
{
    return code == 3 ? "device_lost" : code == 4 ? "model_file" : "-";
}

static void child_ended(struct gw_child *c, int status)
{
    c->pid = 0;
    (void)close(c->lifeline);
    struct gw_target_view v;
    c->served |= gw_fleet_view(c->fleet, c->target, &v) && v.n_models > 0;
    gw_fleet_lost(c->fleet, c->target);
    if (c->stopping) {
        http_timer_clear(c->grace);
        c->ops.on_stopped(c->ops.ctx);
        return;
    }
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    int sig = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    log_event(LOG_ERROR, "worker.ended", "worker=%u exit=%d signal=%d reason=%s", c->target, code,
              sig, reason_of(code));
    bool refused = !c->served && WIFEXITED(status) && code != 0;
    if (refused && c->ops.on_refused(c->ops.ctx, code)) return;
    if (clock_ms_since(c->started_ns) > STEADY_MS) c->backoff_ms = BACKOFF_MIN_MS;
    schedule_restart(c);
}

void gw_child_reaped(struct gw_child *c)
{
    int status;
    if (!c->pid) return;
    pid_t r = waitpid(c->pid, &status, WNOHANG);
    if (r == c->pid) child_ended(c, status);
}

void gw_child_kill(struct gw_child *c)
{
    if (!c->pid || c->stopping) return;
    log_event(LOG_ERROR, "worker.hangs", "worker=%u pid=%d", c->target, (int)c->pid);
    (void)kill(c->pid, SIGKILL);
}

void gw_child_stop(struct gw_child *c, unsigned grace_ms)
{
    c->stopping = true;
    http_timer_clear(c->restart);
    if (!c->pid) {
        c->ops.on_stopped(c->ops.ctx);
        return;
    }
    (void)kill(c->pid, grace_ms ? SIGTERM : SIGKILL);
    if (grace_ms) http_timer_set(c->grace, grace_ms);
}

pid_t gw_child_pid(const struct gw_child *c)
{
    return c->pid;
}

unsigned gw_child_n_restarts(const struct gw_child *c)
{
    return c->n_starts > 0 ? c->n_starts - 1 : 0;
}

int gw_child_create(struct http_loop *loop, struct gw_fleet *fleet, unsigned target,
                    const char *const *argv, const struct gw_child_ops *ops, struct gw_child **ret)
{
    struct gw_child *c = mem_zalloc(sizeof *c);
    if (!c) return -ENOMEM;
    c->fleet = fleet;
    c->target = target;
    c->ops = *ops;
    c->argv = argv;
    c->backoff_ms = BACKOFF_MIN_MS;
    int r = http_timer_create(loop, on_restart, c, &c->restart);
    if (r == 0) r = http_timer_create(loop, on_grace, c, &c->grace);
    if (r == 0) r = child_start(c);
    if (r < 0) {
        gw_child_destroy(c);
        return r;
    }
    *ret = c;
    return 0;
}

void gw_child_destroy(struct gw_child *c)
{
    if (!c) return;
    if (c->pid) {
        (void)kill(c->pid, SIGKILL);
        (void)waitpid(c->pid, NULL, 0);
        (void)close(c->lifeline);
    }
    if (c->restart) http_timer_destroy(c->restart);
    if (c->grace) http_timer_destroy(c->grace);
    mem_free(c);
}
