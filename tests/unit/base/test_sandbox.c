/* In a child, as it cannot be undone: what a worker does goes on, what only an intruder does fails.
 */
#include "base/sandbox.h"
#include "tests/test.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static int in_child(int (*fn)(void))
{
    int status;
    pid_t pid = fork();
    ASSERT_TRUE(pid >= 0);
    if (pid == 0) _exit(fn());
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static int privileges(void)
{
    sandbox_no_new_privs();
    return prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0);
}

TEST(no_new_privileges)
{
    ASSERT_EQ(in_child(privileges), 1);
}

static bool refused(long r)
{
    return r < 0 && errno == EPERM;
}

static int forbidden(void)
{
    struct err err;
    char *const argv[] = {"/bin/true", NULL};
    if (sandbox_enter(&err) < 0) return 77;
    if (!refused(execv(argv[0], argv))) return 2;
    if (!refused(fork())) return 3;
    if (!refused(ptrace(PTRACE_TRACEME, 0, NULL, NULL))) return 4;
    if (!refused(mount("none", "/", "tmpfs", 0, NULL))) return 5;
    if (!refused(kill(getppid(), 0))) return 6;
    if (!refused(setuid(0))) return 7;
    return 0;
}

TEST(other_programs_and_processes_are_refused)
{
    int r = in_child(forbidden);
    if (r == 77) SKIP("no seccomp here");
    ASSERT_EQ(r, 0);
}

static void *threaded(void *arg)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    void *p = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fd >= 0 && p != MAP_FAILED) *(int *)arg = 1;
    return NULL;
}

/* A thread from before, too: the filter is for the whole process. */
static void *waits(void *arg)
{
    int *fd = arg;
    char c, *const argv[] = {"/bin/true", NULL};
    if (read(fd[0], &c, 1) != 1) return arg;
    return refused(execv(argv[0], argv)) ? NULL : arg;
}

static int allowed_calls(void)
{
    char path[] = "/tmp/kvb-sandbox-XXXXXX";
    int fd[2], worked = 0;
    pthread_t before, after;
    struct err err;
    void *ret;
    if (pipe(fd) < 0 || pthread_create(&before, NULL, waits, fd) != 0) return 2;
    if (sandbox_enter(&err) < 0) return 77;
    if (pthread_create(&after, NULL, threaded, &worked) != 0) return 3;
    if (pthread_join(after, NULL) != 0 || !worked) return 4;
    if (write(fd[1], "x", 1) != 1 || pthread_join(before, &ret) != 0 || ret) return 5;
    int f = mkstemp(path);
    if (f < 0 || ftruncate(f, 8192) < 0 || unlink(path) < 0) return 6;
    return 0;
}

TEST(threads_files_and_sockets_go_on)
{
    int r = in_child(allowed_calls);
    if (r == 77) SKIP("no seccomp here");
    ASSERT_EQ(r, 0);
}
