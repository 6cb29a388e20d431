#include "base/log.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/fnv.h"

#include <ctype.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static const char *const level_names[] = {"error", "warn", "notice", "info", "debug"};
static atomic_int log_level_max = LOG_NOTICE;
static const char *log_program = "kvblend";
static bool as_json;

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

void log_set_json(bool json)
{
    as_json = json;
}

bool log_is_json(void)
{
    return as_json;
}

enum { LOG_LINE_MAX = 1100 };
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

static void put_time(char *to, size_t size)
{
    const double now = clock_wall_s();
    const time_t secs = (time_t)now;
    struct tm tm;
    gmtime_r(&secs, &tm);
    const size_t n = strftime(to, size, "%Y-%m-%dT%H:%M:%S", &tm);
    (void)snprintf(to + n, size - n, ".%03dZ", (int)((now - (double)secs) * 1000));
}

/* ---- as JSON ---- */

/* What printf made of a %d, %u, %f or %g, unless that is no number in JSON. */
static bool is_number(const char *s, size_t n)
{
    const size_t i = n > 0 && s[0] == '-';
    if (i >= n || !isdigit((unsigned char)s[i])) return false;
    if (s[i] == '0' && i + 1 < n && isdigit((unsigned char)s[i + 1])) return false;
    return strspn(s, "0123456789+-.eE") >= n;
}

/* The format's next field: "key=…" up to a space that stands in no quotes. */
static const char *field_end(const char *fmt)
{
    bool quoted = false;
    for (; *fmt && (quoted || *fmt != ' '); fmt++)
        quoted ^= *fmt == '"';
    return fmt;
}

/* fmt up to `end` is its format, s[n] what came of that. */
static void put_field(struct buf *b, const char *fmt, const char *end, const char *s, size_t n)
{
    const size_t key = strcspn(fmt, "= ") + 1;
    if (fmt + key > end || n < key) return; /* the line is full */
    const bool quoted = fmt[key] == '"';
    const bool number = fmt[key] == '%' && strchr("dufgi", end[-1]) &&
                        !memchr(fmt + key + 1, '%', (size_t)(end - fmt) - key - 1);
    s += key;
    n -= key;
    (void)buf_addf(b, ",\"%.*s\":", (int)key - 1, fmt);
    if (quoted && n > 0) s++, n--;
    if (quoted && n > 0 && s[n - 1] == '"') n--;
    (void)(number && is_number(s, n) ? buf_add(b, s, n) : buf_add_json_str(b, s, n));
}

/* The beginning of a format makes the beginning of its text, so the length of what comes of the
 * format up to a field's end is where the field ends: no value can look like a field. */
static void put_fields(struct buf *b, const char *fmt, va_list ap)
{
    char text[LOG_LINE_MAX], part[LOG_LINE_MAX];
    va_list copy;
    va_copy(copy, ap);
    (void)vsnprintf(text, sizeof text, fmt, copy);
    va_end(copy);
    const size_t len = strlen(text);
    size_t from = 0;
    for (const char *p = fmt, *end; *p && (size_t)(p - fmt) < sizeof part;
         p = end + (*end == ' ')) {
        end = field_end(p);
        (void)snprintf(part, sizeof part, "%.*s", (int)(end - fmt), fmt);
        va_copy(copy, ap);
        const int n = vsnprintf(NULL, 0, part, copy);
        va_end(copy);
        const size_t to = n < 0 || (size_t)n > len ? len : (size_t)n;
        if (from < to) put_field(b, p, end, text + from, to - from);
        from = to + 1;
    }
}

static void write_json(enum log_level l, const char *event, unsigned suppressed, const char *fmt,
                       va_list ap)
{
    char when[40];
    struct buf b = BUF_INIT;
    put_time(when, sizeof when);
    (void)buf_addf(&b, "{\"ts\":\"%s\",\"level\":\"%s\",\"component\":\"%s\",\"msg\":\"%s\"", when,
                   level_names[l], log_program, event);
    put_fields(&b, fmt, ap);
    if (suppressed) (void)buf_addf(&b, ",\"suppressed\":%u", suppressed);
    (void)buf_adds(&b, "}\n");
    if (buf_status(&b) == 0)
        (void)fwrite(b.data, 1, b.len, stderr);
    else
        (void)fprintf(stderr, "{\"level\":\"%s\",\"component\":\"%s\",\"msg\":\"%s\"}\n",
                      level_names[l], log_program, event);
    buf_fini(&b);
}

/* ---- as text ---- */

static void write_text(enum log_level l, const char *event, unsigned suppressed, const char *fmt,
                       va_list ap)
{
    char line[LOG_LINE_MAX], when[40];
    put_time(when, sizeof when);
    int n = snprintf(line, sizeof line, "%s %s %s %s ", when, level_names[l], log_program, event);
    if (n > LOG_PREFIX_MAX) n = LOG_PREFIX_MAX;
    (void)vsnprintf(line + n, sizeof line - (size_t)n - 40, fmt, ap);
    size_t len = strlen(line);
    if (suppressed) (void)snprintf(line + len, sizeof line - len - 1, " suppressed=%u", suppressed);
    for (char *p = line; *p; p++) /* no input can forge a second line */
        if ((unsigned char)*p < 0x20) *p = '?';
    (void)strcat(line, "\n");
    (void)fputs(line, stderr);
}

void log_event(enum log_level l, const char *event, const char *fmt, ...)
{
    if ((int)l > atomic_load_explicit(&log_level_max, memory_order_relaxed)) return;
    unsigned suppressed = 0;
    if (l <= LOG_WARN && !admitted(l, event, &suppressed)) return;
    va_list ap;
    va_start(ap, fmt);
    (as_json ? write_json : write_text)(l, event, suppressed, fmt, ap);
    va_end(ap);
}
