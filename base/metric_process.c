/* What every process says of itself, under the names of Prometheus' client libraries. */
#include "base/buf.h"
#include "base/metric.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static void put_own(struct buf *out, const char *name, const char *type, const char *help, double v)
{
    (void)buf_addf(out, "# HELP process_%s %s\n# TYPE process_%s %s\nprocess_%s %.15g\n", name,
                   help, name, type, name, v);
}

/* A file of /proc, as far as it fits: text, "" if it cannot be read. */
static void read_proc(const char *path, char *text, size_t cap)
{
    FILE *f = fopen(path, "re");
    const size_t n = f ? fread(text, 1, cap - 1, f) : 0;
    text[n] = '\0';
    if (f) (void)fclose(f);
}

/* Seconds since 1970 at which the machine started; 0: unknown. */
static double boot_time(void)
{
    char text[16384]; /* a line a core comes first: behind those of very many it is not seen */
    read_proc("/proc/stat", text, sizeof text);
    const char *at = strstr(text, "\nbtime ");
    return at ? strtod(at + 7, NULL) : 0;
}

/* Since Linux 6.2 the folder's size says it; entry by entry, 60,000 take tens of milliseconds. */
static double count_fds(void)
{
    struct stat s;
    double n = 0;
    if (stat("/proc/self/fd", &s) == 0 && s.st_size > 0) return (double)s.st_size;
    DIR *d = opendir("/proc/self/fd");
    if (!d) return 0;
    for (const struct dirent *e; (e = readdir(d)) != NULL;)
        n += e->d_name[0] != '.';
    (void)closedir(d);
    return n - 1; /* the folder's own */
}

/* proc(5): behind the name in brackets comes field 3; utime is 14, stime 15, starttime 22, vsize
 * 23, rss 24. */
static void put_stat(struct buf *out)
{
    enum { FIRST = 3, UTIME = 14, STIME, START = 22, VSIZE, RSS, N };
    double v[N] = {0};
    char text[1024];
    read_proc("/proc/self/stat", text, sizeof text);
    char *p = strrchr(text, ')');
    if (!p || p[1] != ' ' || !p[2]) return;
    p += 3; /* the state is a letter */
    for (int i = FIRST + 1; i < N; i++)
        v[i] = strtod(p, &p);
    const double hz = (double)sysconf(_SC_CLK_TCK);
    put_own(out, "cpu_seconds_total", "counter", "User and system time.",
            (v[UTIME] + v[STIME]) / hz);
    put_own(out, "virtual_memory_bytes", "gauge", "Virtual memory.", v[VSIZE]);
    put_own(out, "resident_memory_bytes", "gauge", "Resident memory.",
            v[RSS] * (double)sysconf(_SC_PAGESIZE));
    const double boot = boot_time();
    if (boot > 0)
        put_own(out, "start_time_seconds", "gauge", "Start, in seconds since 1970.",
                boot + v[START] / hz);
}

int metric_process(struct buf *out)
{
    struct rlimit fds;
    (void)buf_adds(out, "# HELP kvblend_build_info 1; which version runs.\n"
                        "# TYPE kvblend_build_info gauge\n"
                        "kvblend_build_info{version=\"" KV_VERSION "\"} 1\n");
    put_stat(out);
    put_own(out, "open_fds", "gauge", "Open file descriptors.", count_fds());
    if (getrlimit(RLIMIT_NOFILE, &fds) == 0 && fds.rlim_cur != RLIM_INFINITY)
        put_own(out, "max_fds", "gauge", "How many may be open.", (double)fds.rlim_cur);
    return buf_status(out);
}
