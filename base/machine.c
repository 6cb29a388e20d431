#include "base/machine.h"

#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *root = "";

void machine_root(const char *folder)
{
    root = folder;
}

static bool read_line(const char *path, char *line, size_t size)
{
    char full[1024];
    if (snprintf(full, sizeof full, "%s%s", root, path) >= (int)sizeof full) return false;
    FILE *f = fopen(full, "re");
    if (!f) return false;
    bool ok = fgets(line, (int)size, f) != NULL;
    (void)fclose(f);
    if (ok) line[strcspn(line, "\n")] = '\0';
    return ok;
}

/* A line "MAX" or "MAX PERIOD" of a limit; "max" is none. */
static double limit_of(const char *line)
{
    char *end;
    const double max = strtod(line, &end), period = strtod(end, NULL);
    return max > 0 ? period > 0 ? max / period : max : 0;
}

/* The least that the group itself and those above it may have; least where none is set. */
static double group_limit(const char *name, double least)
{
    char group[512], path[600], line[64];
    if (!read_line("/proc/self/cgroup", group, sizeof group) || strncmp(group, "0::/", 4) != 0)
        return least; /* version 1 or none */
    for (char *end = group + strlen(group); end; end = strrchr(group + 3, '/')) {
        *end = '\0';
        (void)snprintf(path, sizeof path, "/sys/fs/cgroup%s/%s", group + 3, name);
        const double max = read_line(path, line, sizeof line) ? limit_of(line) : 0;
        if (max > 0 && max < least) least = max;
    }
    return least;
}

uint64_t machine_bytes(void)
{
    const double all = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    return (uint64_t)group_limit("memory.max", all);
}

unsigned machine_cpus(void)
{
    cpu_set_t set;
    const int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    const double quota = group_limit("cpu.max", n > 1 ? n : 1);
    return quota < 1 ? 1 : (unsigned)(quota + 0.5);
}
