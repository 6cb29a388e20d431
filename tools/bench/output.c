/* What every subcommand writes: the report with its meta object, and progress; and how hours of
 * measuring are cut short. */
#include "tools/bench/bench.h"

#include "base/clock.h"
#include "version.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { DIGITS = 8 }; /* of a number in a report: more than any measurement has */

/* coreutils' timeout signals the process, then its group: the same wish twice, within a moment. */
enum { SAME_WISH_MS = 1000 };
static volatile sig_atomic_t stopped;
static uint64_t stopped_ns; /* the handler's */

static void note_stop(int sig)
{
    if (!stopped) {
        stopped_ns = clock_ns();
        stopped = 1;
    } else if (clock_ms_since(stopped_ns) > SAME_WISH_MS) {
        (void)signal(sig, SIG_DFL);
        (void)raise(sig); /* delivered when this returns */
    }
}

void bench_stop_watch(void)
{
    struct sigaction watch = {.sa_handler = note_stop};
    (void)sigaddset(&watch.sa_mask, SIGINT);
    (void)sigaddset(&watch.sa_mask, SIGTERM);
    (void)sigaction(SIGINT, &watch, NULL);
    (void)sigaction(SIGTERM, &watch, NULL);
}

bool bench_stopped(void)
{
    return stopped;
}

static void machine_name(char *ret, size_t cap)
{
    (void)snprintf(ret, cap, "unknown");
    FILE *f = fopen("/proc/cpuinfo", "re");
    char line[256];
    while (f && fgets(line, sizeof line, f)) {
        const char *value = strchr(line, ':');
        if (value && strncmp(line, "model name", 10) == 0) {
            (void)snprintf(ret, cap, "%.*s", (int)strcspn(value + 2, "\n"), value + 2);
            break;
        }
    }
    if (f) (void)fclose(f);
}

/* As it was typed, less the folders of paths: they are this machine's. */
static char command[1024];

void bench_note_command(int argc, char **argv)
{
    size_t at = (size_t)snprintf(command, sizeof command, "kvblend-bench");
    for (int i = 1; i < argc && at < sizeof command; i++) {
        const char *base = strrchr(argv[i], '/'), *eq = strchr(argv[i], '=');
        const int key = base && eq && eq < base ? (int)(eq - argv[i]) + 1 : 0;
        const int n = snprintf(command + at, sizeof command - at, " %.*s%s", key, argv[i],
                               base && base[1] ? base + 1 : argv[i] + key);
        at += n > 0 ? (size_t)n : 0;
    }
}

json_t *bench_meta(void)
{
    char machine[160], date[32];
    time_t now = (time_t)clock_wall_s();
    struct tm tm;
    gmtime_r(&now, &tm);
    (void)strftime(date, sizeof date, "%Y-%m-%d", &tm);
    machine_name(machine, sizeof machine);
    return json_pack("{s:s, s:s, s:s, s:s, s:s}", "machine", machine, "commit", BENCH_COMMIT,
                     "version", KV_VERSION, "date", date, "command", command);
}

int bench_write_json(const struct opts *opts, json_t *meta, json_t *rows, struct err *err)
{
    if (!opt_given(opts, "json")) return 0;
    const char *path = opt_str(opts, "json");
    if (bench_stopped()) json_object_set_new(meta, "interrupted", json_true());
    FILE *f = fopen(path, "w");
    bool good = f && fputs("{\n\"meta\": ", f) >= 0 &&
                json_dumpf(meta, f, JSON_INDENT(1) | JSON_REAL_PRECISION(DIGITS)) == 0 &&
                fputs(",\n\"rows\": [", f) >= 0;
    size_t i;
    const json_t *row;
    json_array_foreach(rows, i, row) /* a line each: runs that are kept can be compared */
        good = good && fputs(i > 0 ? ",\n" : "\n", f) >= 0 &&
               json_dumpf(row, f, JSON_COMPACT | JSON_REAL_PRECISION(DIGITS)) == 0;
    good = good && fputs("\n]\n}\n", f) >= 0;
    if (f) good = fclose(f) == 0 && good;
    return good ? 0 : err_set(err, -EIO, "%s: cannot be written", path);
}

void bench_progress(const char *what, size_t done, size_t of)
{
    if (isatty(STDERR_FILENO))
        (void)fprintf(stderr, "\r%s %zu of %zu%s", what, done, of, done >= of ? "\n" : "");
}
