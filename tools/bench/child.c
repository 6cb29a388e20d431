#include "tools/bench/child.h"

#include "base/clock.h"

#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STOP_S = 10, POLL_MS = 20, NOT_FOUND = 127, TMP_BYTES_MAX = 64, DIRS_OPEN = 8 };

void child_program(const char *name, const char *built, char ret[CHILD_PATH_MAX])
{
    const char *const place[] = {name, built};
    char self[CHILD_PATH_MAX / 2];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    char *slash = n > 0 ? (self[n] = '\0', strrchr(self, '/')) : NULL;
    for (size_t i = 0; slash && i < sizeof place / sizeof *place; i++) {
        (void)snprintf(ret, CHILD_PATH_MAX, "%.*s/%.100s", (int)(slash - self), self, place[i]);
        if (access(ret, X_OK) == 0) return;
    }
    (void)snprintf(ret, CHILD_PATH_MAX, "%.100s", name);
}

pid_t child_fork(int cpu)
{
    const pid_t parent = getpid(), pid = fork();
    cpu_set_t set;
    if (pid != 0) return pid;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(NOT_FOUND);
    if (cpu < 0) return 0;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    (void)sched_setaffinity(0, sizeof set, &set);
    return 0;
}

pid_t child_start(char *const argv[], const struct child_opts *o)
{
    const pid_t pid = child_fork(o->pinned ? o->cpu : -1);
    if (pid != 0) return pid;
    if (o->out_fd > 0) (void)dup2(o->out_fd, STDOUT_FILENO);
    if (o->out_fd > 0) (void)dup2(o->out_fd, STDERR_FILENO);
    if (o->runtime_dir) (void)setenv("XDG_RUNTIME_DIR", o->runtime_dir, 1);
    (void)execvp(argv[0], argv);
    _exit(NOT_FOUND);
}

bool child_ended(pid_t pid)
{
    return waitpid(pid, NULL, WNOHANG) == pid;
}

void child_stop(pid_t pid)
{
    const uint64_t begin = clock_ns();
    if (pid <= 0) return;
    (void)kill(pid, SIGTERM);
    while (waitpid(pid, NULL, WNOHANG) == 0) {
        if (clock_ms_since(begin) > STOP_S * 1e3) (void)kill(pid, SIGKILL);
        (void)poll(NULL, 0, POLL_MS);
    }
}

int child_output(char *const argv[], const struct child_opts *o, char *ret, size_t cap)
{
    struct child_opts with = *o;
    int p[2], status = 0;
    size_t len = 0;
    if (pipe2(p, O_CLOEXEC) < 0) return -errno;
    with.out_fd = p[1];
    const pid_t pid = child_start(argv, &with);
    (void)close(p[1]);
    for (ssize_t n; pid > 0 && len < cap - 1; len += (size_t)n)
        if ((n = read(p[0], ret + len, cap - 1 - len)) <= 0) break;
    (void)close(p[0]);
    ret[len] = '\0';
    if (pid < 0 || waitpid(pid, &status, 0) < 0) return -errno;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -EIO;
}

int child_dir(const char *prefix, char ret[CHILD_PATH_MAX], struct err *err)
{
    const char *tmp = getenv("TMPDIR");
    if (!tmp || !*tmp || strlen(tmp) > TMP_BYTES_MAX) tmp = "/tmp";
    (void)snprintf(ret, CHILD_PATH_MAX, "%s/%.40s-XXXXXX", tmp, prefix);
    if (mkdtemp(ret)) return 0;
    ret[0] = '\0';
    return err_set(err, -errno, "no folder for temporary files: %s", strerror(errno));
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)type, (void)at;
    return remove(path);
}

void child_dir_remove(const char *dir)
{
    if (dir[0]) (void)nftw(dir, remove_one, DIRS_OPEN, FTW_DEPTH | FTW_PHYS);
}
