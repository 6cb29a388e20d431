/* A list of what is allowed, by number, in classic BPF that is put together here: libseccomp would
 * be a dependency for one loop. clone() is allowed for threads alone; clone3() hides its flags
 * behind a pointer and so does not exist (ENOSYS), which makes glibc fall back to clone(). */
#include "base/sandbox.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined __x86_64__
#define ARCH AUDIT_ARCH_X86_64
#elif defined __aarch64__
#define ARCH AUDIT_ARCH_AARCH64
#else
#define ARCH 0
#endif

static const uint16_t allowed[] = {
#ifdef __x86_64__ /* older forms of the same, which libraries still use there */
    SYS_open, SYS_stat, SYS_lstat, SYS_access, SYS_readlink, SYS_mkdir, SYS_unlink, SYS_rename,
    SYS_renameat, SYS_dup2, SYS_pipe, SYS_poll, SYS_select, SYS_epoll_create, SYS_epoll_wait,
    SYS_eventfd, SYS_getrlimit, SYS_time, SYS_arch_prctl, SYS_getdents,
#endif
    /* bytes */
    SYS_read, SYS_write, SYS_readv, SYS_writev, SYS_pread64, SYS_pwrite64, SYS_preadv, SYS_pwritev,
    SYS_preadv2, SYS_pwritev2, SYS_lseek, SYS_close, SYS_close_range, SYS_dup, SYS_dup3, SYS_fcntl,
    SYS_ioctl, SYS_pipe2, SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register,
    /* files */
    SYS_openat, SYS_fstat, SYS_newfstatat, SYS_statx, SYS_statfs, SYS_fstatfs, SYS_faccessat,
    SYS_faccessat2, SYS_readlinkat, SYS_getdents64, SYS_getcwd, SYS_flock, SYS_ftruncate,
    SYS_fallocate, SYS_fadvise64, SYS_fsync, SYS_fdatasync, SYS_mkdirat, SYS_unlinkat,
    SYS_renameat2, SYS_fchmod, SYS_umask,
    /* memory */
    SYS_brk, SYS_mmap, SYS_munmap, SYS_mremap, SYS_mprotect, SYS_madvise, SYS_mincore, SYS_mlock,
    SYS_mlock2, SYS_munlock, SYS_membarrier, SYS_get_mempolicy, SYS_mbind,
    /* threads and signals */
    SYS_futex, SYS_set_robust_list, SYS_get_robust_list, SYS_rseq, SYS_set_tid_address, SYS_gettid,
    SYS_getpid, SYS_getppid, SYS_tgkill, SYS_exit, SYS_exit_group, SYS_sched_yield,
    SYS_sched_getaffinity, SYS_sched_setaffinity, SYS_sched_getparam, SYS_sched_getscheduler,
    SYS_sched_setscheduler, SYS_sched_getattr, SYS_sched_setattr, SYS_getpriority, SYS_setpriority,
    SYS_getcpu, SYS_prctl, SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn,
    SYS_rt_sigpending, SYS_rt_sigtimedwait, SYS_sigaltstack, SYS_restart_syscall,
    /* time and waiting */
    SYS_nanosleep, SYS_clock_nanosleep, SYS_clock_gettime, SYS_clock_getres, SYS_gettimeofday,
    SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_pwait, SYS_epoll_pwait2, SYS_eventfd2,
    SYS_timerfd_create, SYS_timerfd_settime, SYS_timerfd_gettime, SYS_signalfd4, SYS_ppoll,
    SYS_pselect6,
    /* sockets */
    SYS_socket, SYS_socketpair, SYS_bind, SYS_listen, SYS_accept, SYS_accept4, SYS_connect,
    SYS_getsockname, SYS_getpeername, SYS_getsockopt, SYS_setsockopt, SYS_sendto, SYS_recvfrom,
    SYS_sendmsg, SYS_recvmsg, SYS_sendmmsg, SYS_recvmmsg, SYS_shutdown,
    /* what it is and where */
    SYS_getrandom, SYS_uname, SYS_sysinfo, SYS_getrusage, SYS_prlimit64, SYS_getuid, SYS_geteuid,
    SYS_getgid, SYS_getegid};
enum { ALLOWED = sizeof allowed / sizeof *allowed, FIXED = 14 };

#define NR offsetof(struct seccomp_data, nr)
#define STMT(op, value) ((struct sock_filter)BPF_STMT(op, value))
#define JUMP(op, value, yes, no) ((struct sock_filter)BPF_JUMP(op, value, yes, no))

/* Returns its length. Each test is followed by its answer: jumps reach 255 at most. */
static unsigned short program(struct sock_filter *f)
{
    const uint32_t refuse = SECCOMP_RET_ERRNO | EPERM;
    struct sock_filter *p = f;
    *p++ = STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch));
    *p++ = JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0);
    *p++ = STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS); /* numbers of another table */
    *p++ = STMT(BPF_LD | BPF_W | BPF_ABS, NR);
    for (unsigned i = 0; i < ALLOWED; i++) {
        *p++ = JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[i], 0, 1);
        *p++ = STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    }
    *p++ = JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1);
    *p++ = STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS);
    *p++ = JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 1, 0);
    *p++ = STMT(BPF_RET | BPF_K, refuse);
    *p++ = STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0]));
    *p++ = JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 0, 1);
    *p++ = STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    *p++ = STMT(BPF_RET | BPF_K, refuse);
    return (unsigned short)(p - f);
}

void sandbox_no_new_privs(void)
{
    (void)prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}

int sandbox_enter(struct err *err)
{
    struct sock_filter f[2 * ALLOWED + FIXED];
    struct sock_fprog whole = {.filter = f};
    if (ARCH == 0) return err_set(err, -ENOTSUP, "no sandbox on this processor");
    whole.len = program(f);
    sandbox_no_new_privs();
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &whole) == 0)
        return 0;
    int e = errno ? errno : EAGAIN; /* > 0: a thread with another filter */
    return err_set(err, -ENOTSUP, "the kernel refuses the sandbox: %s", strerror(e));
}
