#include "base/log.h"

#include "base/clock.h"
#include "base/fnv.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
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

enum { LOG_PREFIX_MAX = 200 }; /* time, level, program and event */

/* A token bucket per (event, level): one storm of warnings neither fills the disk nor hides the
 * other events. Events are string constants of the call sites, so that their hash tells sites
 * apart; two that share a slot share its tokens, which loses lines but never correctness. */
enum {
    LIMIT_SLOTS = 64,
    LIMIT_BURST = 20,     /* chosen: a start-up's worth of different complaints */
    LIMIT_PER_SECOND = 2, /* chosen: readable */
};
static struct {
    uint64_t last_ns;
    double tokens;
    unsigned suppressed;
    bool used;
} limits[LIMIT_SLOTS];
static pthread_mutex_t limit_lock = PTHREAD_MUTEX_INITIALIZER;

static bool admitted(enum log_level l, const char *event, unsigned *ret_suppressed)
{
    const uint64_t hash = fnv_add(FNV_START + l, event, strlen(event));
    uint64_t now = clock_ns();
    pthread_mutex_lock(&limit_lock);
    __typeof__(&limits[0]) s = &limits[(hash ^ hash >> 40) % LIMIT_SLOTS];
    double earned = s->used ? (double)(now - s->last_ns) / 1e9 * LIMIT_PER_SECOND : LIMIT_BURST;
    s->tokens = s->tokens + earned < LIMIT_BURST ? s->tokens + earned : LIMIT_BURST;
    s->used = true;
    s->last_ns = now;
    bool ok = s->tokens >= 1;
    if (ok) {
        s->tokens -= 1;
        *ret_suppressed = s->suppressed;
        s->suppressed = 0;
    } else {
        s->suppressed++;
    }
    pthread_mutex_unlock(&limit_lock);
    return ok;
}

void log_event(enum log_level l, const char *event, const char *fmt, ...)
{
    if ((int)l > atomic_load_explicit(&log_level_max, memory_order_relaxed)) return;
    unsigned suppressed = 0;
    if (l <= LOG_WARN && !admitted(l, event, &suppressed)) return;
    char line[1100], when[40];
    double now = clock_wall_s();
    time_t secs = (time_t)now;
    struct tm tm;
    gmtime_r(&secs, &tm);
    (void)strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &tm);
    int n = snprintf(line, sizeof line, "%s.%03dZ %s %s %s ", when,
                     (int)((now - (double)secs) * 1000), level_names[l], log_program, event);
    if (n > LOG_PREFIX_MAX) n = LOG_PREFIX_MAX;
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(line + n, sizeof line - (size_t)n - 40, fmt, ap);
    va_end(ap);
    size_t len = strlen(line);
    if (suppressed) (void)snprintf(line + len, sizeof line - len - 1, " suppressed=%u", suppressed);
    for (char *p = line; *p; p++) /* no input can forge a second line */
        if ((unsigned char)*p < 0x20) *p = '?';
    (void)strcat(line, "\n");
    (void)fputs(line, stderr);
}
