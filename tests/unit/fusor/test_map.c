/* A mapped file that is cut: a clear end instead of SIGBUS, and of nobody else's SIGBUS. */
#include "fusor/model/map.h"
#include "tests/test.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 64 << 10, STATUS = 4 };

static int make_file(char *path)
{
    static const char zeros[BYTES];
    int fd = mkstemp(path);
    ASSERT_TRUE(fd >= 0);
    ASSERT_EQ(write(fd, zeros, sizeof zeros), sizeof zeros);
    return fd;
}

/* Reads where the file no longer is; what it says goes to `out`. */
static void child(const char *path, int fd, bool mapped_by_map, int out)
{
    struct map m = {0};
    struct err err;
    const volatile uint8_t *p;
    (void)dup2(out, STDERR_FILENO);
    map_guard("program", STATUS);
    if (map_open(path, &m, &err) < 0) _exit(99);
    p = mapped_by_map ? m.data : mmap(NULL, BYTES, PROT_READ, MAP_SHARED, fd, 0);
    if (p[BYTES - 1] != 0 || ftruncate(fd, 4096) < 0) _exit(98);
    _exit(p[BYTES - 1] ? 97 : 96);
}

static int ends(bool mapped_by_map, char *said, size_t room)
{
    char path[] = "/tmp/kvb-map-XXXXXX";
    int fd = make_file(path), out[2], status;
    ASSERT_OK(pipe(out));
    pid_t pid = fork();
    ASSERT_TRUE(pid >= 0);
    if (pid == 0) child(path, fd, mapped_by_map, out[1]);
    (void)close(out[1]);
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    ssize_t n = read(out[0], said, room - 1);
    said[n > 0 ? n : 0] = '\0';
    (void)close(out[0]);
    (void)close(fd);
    (void)unlink(path);
    return status;
}

TEST(a_file_that_is_cut_ends_the_program_with_a_line)
{
    char said[512];
    int status = ends(true, said, sizeof said);
    ASSERT_TRUE(WIFEXITED(status));
    ASSERT_EQ(WEXITSTATUS(status), STATUS);
    ASSERT_TRUE(strncmp(said, "program: /tmp/kvb-map-", 22) == 0);
    ASSERT_TRUE(strstr(said, "became shorter, or unreadable, while it was in use: ending\n"));
}

TEST(another_bus_error_stays_one)
{
    char said[512];
    int status = ends(false, said, sizeof said);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 1) SKIP("a sanitizer takes the signal");
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
}

TEST(closed_maps_are_guarded_no_more)
{
    char path[] = "/tmp/kvb-map-XXXXXX";
    int fd = make_file(path);
    struct map m;
    struct err err;
    for (int i = 0; i < 1000; i++) { /* more than are remembered at once */
        ASSERT_OK(map_open(path, &m, &err));
        ASSERT_EQ(m.size_bytes, BYTES);
        map_close(&m);
        map_close(&m);
    }
    (void)close(fd);
    (void)unlink(path);
}

/* KiB of the mapping at p that are in this process's memory. */
static long resident_kib(const void *p)
{
    char line[512];
    unsigned long from, to;
    long kib = -1;
    bool inside = false;
    FILE *f = fopen("/proc/self/smaps", "r");
    ASSERT_TRUE(f != NULL);
    while (kib < 0 && fgets(line, sizeof line, f)) {
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            inside = from == (uintptr_t)p;
        else if (inside && strncmp(line, "Rss:", 4) == 0)
            kib = strtol(line + 4, NULL, 10);
    }
    (void)fclose(f);
    return kib;
}

TEST(dropped_pages_leave_and_come_back)
{
    char path[] = "/tmp/kvb-map-XXXXXX";
    int fd = make_file(path);
    struct map m = {0};
    ASSERT_EQ(pwrite(fd, "x", 1, BYTES - 1), 1);
    ASSERT_OK(map_open(path, &m, NULL));
    const volatile uint8_t *p = m.data;
    for (size_t i = 0; i < BYTES; i += 4096)
        ASSERT_EQ(p[i], 0);
    ASSERT_EQ(resident_kib(m.data), BYTES >> 10);
    map_drop_pages(&m);
    ASSERT_EQ(resident_kib(m.data), 0);
    ASSERT_EQ(p[BYTES - 1], 'x');
    map_close(&m);
    (void)close(fd);
    (void)unlink(path);
}
