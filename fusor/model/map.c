#include "fusor/model/map.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* What the handler may read at any time: a name is whole before its place counts. */
enum { GUARDED_MAX = 256, NAME_MAX_BYTES = 104 }; /* chosen: more parts than a model comes in */
static struct {
    _Atomic uintptr_t lo, hi;
    char name[NAME_MAX_BYTES];
} guarded[GUARDED_MAX];
static const char *guard_program;
static int guard_status;

static void guard_add(const struct map *m, const char *tail)
{
    for (size_t i = 0; i < GUARDED_MAX; i++) {
        if (guarded[i].hi) continue;
        (void)strncpy(guarded[i].name, tail, NAME_MAX_BYTES - 1);
        guarded[i].lo = (uintptr_t)m->data;
        guarded[i].hi = (uintptr_t)m->data + m->size_bytes;
        return;
    }
}

static void guard_remove(const struct map *m)
{
    for (size_t i = 0; i < GUARDED_MAX; i++)
        if (guarded[i].lo == (uintptr_t)m->data) guarded[i].lo = guarded[i].hi = 0;
}

static void say(const char *text)
{
    (void)!write(STDERR_FILENO, text, strlen(text));
}

static void on_bus_error(int sig, siginfo_t *info, void *context)
{
    const uintptr_t at = (uintptr_t)info->si_addr;
    for (size_t i = 0; i < GUARDED_MAX; i++) {
        if (at < guarded[i].lo || at >= guarded[i].hi) continue;
        say(guard_program);
        say(": ");
        say(guarded[i].name);
        say(": became shorter, or unreadable, while it was in use: ending\n");
        _exit(guard_status);
    }
    (void)signal(sig, SIG_DFL); /* not of a model's file: once more, by default */
}

void map_guard(const char *program, int status)
{
    struct sigaction a = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    guard_program = program;
    guard_status = status;
    (void)sigaction(SIGBUS, &a, NULL);
}

const char *map_path_tail(const char *path)
{
    size_t len = strlen(path);
    return len > 100 ? path + len - 100 : path;
}

static int map_fd(int fd, const char *path, struct map *ret, struct err *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0) {
        int code = -errno;
        return err_set(err, code, "%s: cannot be examined: %s", path, strerror(-code));
    }
    if (!S_ISREG(st.st_mode)) return err_set(err, -EINVAL, "%s: is not a regular file", path);
    if (st.st_size <= 0) return err_set(err, -EBADMSG, "%s: is empty", path);
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) {
        int code = -errno;
        return err_set(err, code, "%s: cannot be mapped: %s", path, strerror(-code));
    }
    ret->data = p;
    ret->size_bytes = (size_t)st.st_size;
    guard_add(ret, path);
    return 0;
}

int map_open(const char *path, struct map *ret, struct err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        int code = -errno;
        return err_set(err, code, "%s: cannot be opened: %s", map_path_tail(path), strerror(-code));
    }
    int r = map_fd(fd, map_path_tail(path), ret, err);
    (void)close(fd);
    return r;
}

void map_drop_pages(const struct map *m)
{
    (void)madvise((void *)(uintptr_t)m->data, m->size_bytes, MADV_DONTNEED); /* advice alone */
}

void map_read_ahead(const void *from, size_t bytes)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)from & ~(page - 1);
    (void)madvise((void *)at, bytes + ((uintptr_t)from - at), MADV_WILLNEED); /* the same */
}

void map_close(struct map *m)
{
    if (!m || !m->data) return;
    guard_remove(m);
    (void)munmap((void *)(uintptr_t)m->data, m->size_bytes);
    m->data = NULL;
    m->size_bytes = 0;
}
