#include "base/log.h"

#include "base/clock.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static const char *const level_names[] = {"error", "warn", "notice", "info", "debug"};
static atomic_int log_level_max = LOG_NOTICE;
static const char *log_program = "kvblend";

void log_set_level(enum log_level l)
{
    atomic_store(&log_level_max, (int)l);
}

int log_parse_level(const char *s, enum log_level *ret)
{
    for (int i = 0; i <= LOG_DEBUG; i++)
        if (strcmp(s, level_names[i]) == 0) {
            *ret = (enum log_level)i;
            return 1;
        }
    return 0;
}

void log_set_name(const char *program)
{
    log_program = program;
}

void log_event(enum log_level l, const char *event, const char *fmt, ...)
{
    if ((int)l > atomic_load_explicit(&log_level_max, memory_order_relaxed)) return;
    char line[1024], when[40];
    double now = clock_wall_s();
    time_t secs = (time_t)now;
    struct tm tm;
    gmtime_r(&secs, &tm);
    (void)strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &tm);
    int n = snprintf(line, sizeof line, "%s.%03dZ %s %s %s ", when,
                     (int)((now - (double)secs) * 1000), level_names[l], log_program, event);
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, ap);
    va_end(ap);
    for (char *p = line; *p; p++) /* no input can forge a second line */
        if ((unsigned char)*p < 0x20) *p = '?';
    (void)strcat(line, "\n");
    (void)fputs(line, stderr);
}
