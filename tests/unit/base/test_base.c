/* The small modules: buffers, memory, metrics, log, errors, ring, SSE reader. */
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/mem.h"
#include "base/metric.h"
#include "base/net/http_loop.h"
#include "base/net/sse.h"
#include "base/ring.h"
#include "tests/test.h"

#include <ftw.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

TEST(buf_grows_and_consumes)
{
    struct buf b = BUF_INIT;
    ASSERT_STREQ(buf_cstr(&b), "");
    for (int i = 0; i < 1000; i++)
        ASSERT_OK(buf_addf(&b, "%03d,", i));
    ASSERT_EQ(b.len, 4000);
    buf_consume(&b, 3996);
    ASSERT_STREQ(buf_cstr(&b), "999,");
    size_t len;
    char *p = buf_take(&b, &len);
    ASSERT_STREQ(p, "999,");
    ASSERT_EQ(len, 4);
    ASSERT_TRUE(b.data == NULL);
    mem_free(p);
}

TEST(buf_json_strings)
{
    static const struct {
        const char *in;
        size_t len;
        const char *out;
    } table[] = {
        {"", 0, "\"\""},
        {"a\"b\\c", 5, "\"a\\\"b\\\\c\""},
        {"\n\r\t\001", 4, "\"\\n\\r\\t\\u0001\""},
        {"a\0b", 3, "\"a\\u0000b\""},
        {"\xC3\xA9\xF0\x9F\x98\x80", 6, "\"\xC3\xA9\xF0\x9F\x98\x80\""},
        {"x\xFFy\xC3", 4, "\"x\xEF\xBF\xBDy\xEF\xBF\xBD\""},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct buf b = BUF_INIT;
        ASSERT_OK(buf_add_json_str(&b, table[i].in, table[i].len));
        ASSERT_STREQ(buf_cstr(&b), table[i].out);
        buf_fini(&b);
    }
}

/* A piece that still fits does not hide one that did not. */
TEST(buf_remembers_a_failure)
{
    char big[200] = {0};
    struct buf b = BUF_INIT, all = BUF_INIT;
    buf_adds(&b, "a");
    ASSERT_OK(buf_status(&b));
    mem_fail_nth(1);
    buf_add(&b, big, sizeof big);
    mem_fail_nth(0);
    ASSERT_OK(buf_adds(&b, "c"));
    ASSERT_ERR(buf_status(&b), -ENOMEM);
    ASSERT_ERR(buf_add_buf(&all, &b), -ENOMEM);
    ASSERT_ERR(buf_status(&all), -ENOMEM);
    ASSERT_EQ(all.len, 0);
    buf_clear(&b);
    buf_clear(&all);
    buf_adds(&b, "d");
    ASSERT_OK(buf_add_buf(&all, &b));
    ASSERT_STREQ(buf_cstr(&all), "d");
    buf_fini(&b);
    buf_fini(&all);
}

TEST(buf_is_unchanged_when_memory_is_out)
{
    struct buf b = BUF_INIT;
    ASSERT_OK(buf_adds(&b, "keep"));
    char big[200] = "big";
    mem_fail_nth(1);
    ASSERT_ERR(buf_add(&b, big, sizeof big), -ENOMEM);
    ASSERT_TRUE(mem_fail_fired());
    mem_fail_nth(0);
    ASSERT_STREQ(buf_cstr(&b), "keep");
    ASSERT_ERR(buf_reserve(&b, SIZE_MAX / 2), -ENOMEM);
    buf_fini(&b);
}

/* What it says cannot be known here, but it is a machine's. */
TEST(what_the_machine_has)
{
    const uint64_t all = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    ASSERT_TRUE(machine_bytes() >= 1 << 20 && machine_bytes() <= all);
    ASSERT_TRUE(machine_cpus() >= 1);
    ASSERT_TRUE(machine_cpus() <= (unsigned)sysconf(_SC_NPROCESSORS_ONLN));
}

static void write_below(const char *folder, const char *path, const char *text)
{
    char full[512];
    (void)snprintf(full, sizeof full, "%s/%s", folder, path);
    for (char *at = full + strlen(folder) + 1; (at = strchr(at, '/')) != NULL; *at++ = '/') {
        *at = '\0';
        (void)mkdir(full, 0700);
    }
    FILE *f = fopen(full, "w");
    ASSERT_TRUE(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

static int remove_one(const char *path, const struct stat *s, int kind, struct FTW *at)
{
    (void)s, (void)kind, (void)at;
    return remove(path);
}

TEST(limits_of_control_groups)
{
    char folder[] = "/tmp/kvb-machine-XXXXXX";
    ASSERT_TRUE(mkdtemp(folder) != NULL);
    machine_root(folder);
    /* a version 1 machine; then a group without a limit of its own */
    write_below(folder, "proc/self/cgroup", "12:cpu:/a\n");
    const unsigned cpus = machine_cpus();
    const uint64_t bytes = machine_bytes();
    write_below(folder, "proc/self/cgroup", "0::/pods/one\n");
    write_below(folder, "sys/fs/cgroup/pods/one/cpu.max", "max 100000\n");
    write_below(folder, "sys/fs/cgroup/pods/one/memory.max", "max\n");
    ASSERT_TRUE(machine_cpus() == cpus && machine_bytes() == bytes);
    /* half a core, and less than none is not possible; the group above says less */
    write_below(folder, "sys/fs/cgroup/pods/one/cpu.max", "20000 100000\n");
    write_below(folder, "sys/fs/cgroup/pods/one/memory.max", "67108864\n");
    ASSERT_TRUE(machine_cpus() == 1 && machine_bytes() == 64 << 20);
    write_below(folder, "sys/fs/cgroup/pods/one/cpu.max",
                "6400000 100000\n"); /* more than there are */
    write_below(folder, "sys/fs/cgroup/pods/memory.max", "33554432\n");
    ASSERT_TRUE(machine_cpus() == cpus && machine_bytes() == 32 << 20);
    if (cpus > 1) { /* to the nearest */
        write_below(folder, "sys/fs/cgroup/pods/cpu.max", "140000 100000\n");
        ASSERT_TRUE(machine_cpus() == 1);
        write_below(folder, "sys/fs/cgroup/pods/cpu.max", "160000 100000\n");
        ASSERT_TRUE(machine_cpus() == 2);
    }
    /* in a container the group is the root that it sees */
    write_below(folder, "proc/self/cgroup", "0::/\n");
    write_below(folder, "sys/fs/cgroup/cpu.max", "100000 100000\n");
    ASSERT_TRUE(machine_cpus() == 1);
    machine_root("");
    ASSERT_TRUE(nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS) == 0);
}

TEST(mem_and_arena)
{
    size_t v = 7;
    ASSERT_TRUE(!size_mul(SIZE_MAX / 2, 3, &v) && v == 7);
    ASSERT_TRUE(size_mul(6, 7, &v) && v == 42);
    unsigned char *a = mem_aligned(4096, 100);
    ASSERT_TRUE(a && (uintptr_t)a % 4096 == 0);
    mem_free(a);
    struct arena ar;
    arena_init(&ar);
    for (size_t i = 1; i < 200; i++) {
        unsigned char *p = arena_alloc(&ar, i * 50);
        ASSERT_TRUE(p && (uintptr_t)p % 16 == 0 && p[0] == 0 && p[i * 50 - 1] == 0);
        memset(p, 0xAB, i * 50);
    }
    ASSERT_STREQ(arena_strndup(&ar, "hello", 4), "hell");
    ASSERT_TRUE(arena_alloc(&ar, SIZE_MAX - 8) == NULL);
    arena_fini(&ar);
}

TEST(a_stock_hands_out_what_it_got)
{
    struct mem_stock s = {100, 2};
    void *p[4];
    for (int i = 0; i < 4; i++) {
        ASSERT_TRUE((p[i] = mem_stock_take(&s)) != NULL);
        memset(p[i], i, 100);
    }
    for (int i = 0; i < 4; i++)
        mem_stock_give(&s, p[i]);
    ASSERT_TRUE(s.n <= s.n_max); /* the others went back to the system */
    mem_fail_nth(1);
    ASSERT_TRUE(!mem_stock_take(&s) && mem_fail_fired()); /* tests can fail it, stocked or not */
    mem_fail_nth(0);
    ASSERT_TRUE((p[0] = mem_stock_take(&s)) != NULL);
    mem_stock_give(&s, p[0]);
    mem_stock_fini(&s);
    ASSERT_TRUE(s.n == 0 && !s.head);
}

TEST(errors)
{
    struct err e = {0};
    ASSERT_EQ(err_set(&e, -EINVAL, "%d things", 3), -EINVAL);
    ASSERT_STREQ(e.msg, "3 things");
    ASSERT_EQ(err_set(NULL, -EIO, "x"), -EIO);
    ASSERT_STREQ(err_name(-EINVAL), "EINVAL");
    ASSERT_STREQ(err_name(-99999), "?");
    uint64_t t = clock_ns();
    ASSERT_TRUE(clock_ns() >= t && clock_ms_since(t) >= 0 && clock_wall_s() > 1.6e9);
}

static const double bounds[] = {0.1, 1, 10};
static struct metric m_counter = {.name = "t_requests_total",
                                  .labels = "code=\"200\"",
                                  .help = "Requests.",
                                  .type = METRIC_COUNTER};
static struct metric m_other = {.name = "t_gauge", .help = "Gauge.", .type = METRIC_GAUGE};
static struct metric m_counter2 = {.name = "t_requests_total",
                                   .labels = "code=\"404\"",
                                   .help = "Requests.",
                                   .type = METRIC_COUNTER};
static struct metric m_hist = {.name = "t_seconds",
                               .labels = "k=\"v\"",
                               .help = "Time.",
                               .type = METRIC_HISTOGRAM,
                               .bounds = bounds,
                               .n_bounds = 3};

static void *add_many(void *arg)
{
    for (int i = 0; i < 10000; i++) {
        metric_add(&m_counter, 1);
        metric_observe(&m_hist, 0.5);
    }
    return NULL;
}

TEST(metrics_text)
{
    metric_register(&m_counter);
    metric_register(&m_other);
    metric_register(&m_counter2);
    metric_register(&m_hist);
    metric_register(&m_counter);
    pthread_t t[2];
    for (int i = 0; i < 2; i++)
        ASSERT_EQ(pthread_create(&t[i], NULL, add_many, NULL), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(t[i], NULL);
    metric_set(&m_other, -2.5);
    metric_add(&m_counter2, 0.1);
    metric_observe(&m_hist, 0.1); /* a bound belongs to its bucket */
    metric_observe(&m_hist, 99);
    metric_observe(&m_hist, NAN);
    struct buf b = BUF_INIT;
    ASSERT_OK(metric_render(&b));
    ASSERT_STREQ(buf_cstr(&b), "# HELP t_requests_total Requests.\n"
                               "# TYPE t_requests_total counter\n"
                               "t_requests_total{code=\"200\"} 20000\n"
                               "t_requests_total{code=\"404\"} 0.1\n"
                               "# HELP t_gauge Gauge.\n# TYPE t_gauge gauge\nt_gauge -2.5\n"
                               "# HELP t_seconds Time.\n# TYPE t_seconds histogram\n"
                               "t_seconds_bucket{k=\"v\",le=\"0.1\"} 1\n"
                               "t_seconds_bucket{k=\"v\",le=\"1\"} 20001\n"
                               "t_seconds_bucket{k=\"v\",le=\"10\"} 20001\n"
                               "t_seconds_bucket{k=\"v\",le=\"+Inf\"} 20002\n"
                               "t_seconds_sum{k=\"v\"} 10099.1\n"
                               "t_seconds_count{k=\"v\"} 20002\n");
    buf_fini(&b);
}

/* Run fn with stderr in a file; its text. */
static const char *captured(void (*fn)(void))
{
    static char text[65536];
    FILE *f = tmpfile();
    ASSERT_TRUE(f != NULL);
    (void)fflush(stderr);
    int saved = dup(2);
    ASSERT_TRUE(dup2(fileno(f), 2) >= 0);
    fn();
    (void)fflush(stderr);
    ASSERT_TRUE(dup2(saved, 2) >= 0);
    close(saved);
    rewind(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    (void)fclose(f);
    return text;
}

static void log_some(void)
{
    enum log_level l = LOG_DEBUG;
    ASSERT_TRUE(log_parse_level("info", &l) && l == LOG_INFO && !log_parse_level("loud", &l));
    log_set_name("prog");
    log_set_level(LOG_NOTICE);
    log_event(LOG_INFO, "quiet", "never=1");
    log_event(LOG_NOTICE, "start", "value=\"%s\"", "a\nforged error line");
}

static void log_storm(void)
{
    for (int i = 0; i < 1000; i++)
        log_event(LOG_WARN, "storm", "i=%d", i);
    log_event(LOG_WARN, "other", "still=heard");
}

TEST(log_lines)
{
    const char *text = captured(log_some);
    ASSERT_TRUE(strstr(text, " notice prog start value=\"a?forged error line\"\n") != NULL);
    ASSERT_TRUE(strstr(text, "never") == NULL);
    text = captured(log_storm);
    size_t n = 0;
    for (const char *p = text; (p = strchr(p, '\n')); p++)
        n++;
    ASSERT_TRUE(n >= 21 && n < 200); /* the burst, the other event, and what a slow run earns */
    ASSERT_TRUE(strstr(text, "warn prog other still=heard\n") != NULL);
}

static void nothing(void *arg)
{
    (void)arg;
}

TEST(ring_is_bounded_and_ordered)
{
    struct ring r;
    int marks[8];
    void (*fn)(void *);
    void *arg;
    ASSERT_OK(ring_init(&r, 8));
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 8; i++)
            ASSERT_OK(ring_push(&r, nothing, &marks[i]));
        ASSERT_ERR(ring_push(&r, nothing, NULL), -EAGAIN);
        for (int i = 0; i < 8; i++) {
            ASSERT_EQ(ring_pop(&r, &fn, &arg), 1);
            ASSERT_TRUE(arg == &marks[i] && fn == nothing);
        }
        ASSERT_EQ(ring_pop(&r, &fn, &arg), 0);
    }
    ring_fini(&r);
}

static int add_event(void *ctx, const char *data, size_t len)
{
    ASSERT_EQ(data[len], '\0');
    return buf_addf(ctx, "<%.*s>", (int)len, data);
}

TEST(sse_reader_at_every_split)
{
    static const struct {
        const char *text, *events;
    } table[] = {
        {"data: a\n\ndata: b\n\n", "<a><b>"},
        {"data: a\r\n\r\ndata:b\r\rdata:  c\n\n", "<a><b>< c>"},
        {": comment\n\nevent: x\nid: 1\ndata: {\"a\":1}\ndata\ndata: z\n\n", "<{\"a\":1}\n\nz>"},
        {"data:\n\n\n\ndatax: no\n\ndata: [DONE]\n\n", "<><[DONE]>"},
        {"data: cut off", ""},
        {"data: no empty line\n", ""},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        size_t len = strlen(table[i].text);
        for (size_t a = 0; a <= len; a++)
            for (size_t c = a; c <= len; c++) {
                struct sse_parser p = {0};
                struct buf b = BUF_INIT;
                ASSERT_OK(sse_parser_push(&p, table[i].text, a, add_event, &b));
                ASSERT_OK(sse_parser_push(&p, table[i].text + a, c - a, add_event, &b));
                ASSERT_OK(sse_parser_push(&p, table[i].text + c, len - c, add_event, &b));
                ASSERT_STREQ(buf_cstr(&b), table[i].events);
                sse_parser_fini(&p);
                buf_fini(&b);
            }
    }
}

static int refuse_event(void *ctx, const char *data, size_t len)
{
    return -ECANCELED;
}

TEST(sse_reader_hands_errors_on)
{
    struct sse_parser p = {0};
    ASSERT_ERR(sse_parser_push(&p, "data: a\n\n", 9, refuse_event, NULL), -ECANCELED);
    sse_parser_fini(&p);
}

/* The value of a sample of the page; NAN: there is none. */
static double sample(const char *page, const char *name)
{
    const char *at = strstr(page, name);
    return at ? strtod(at + strlen(name), NULL) : (double)NAN;
}

TEST(a_process_says_what_it_takes)
{
    struct buf b = BUF_INIT;
    struct rlimit lim;
    int fd[64];
    ASSERT_OK(metric_process(&b));
    const double had = sample(buf_cstr(&b), "\nprocess_open_fds ");
    ASSERT_TRUE(strstr(buf_cstr(&b), "\nkvblend_build_info{version=\"" KV_VERSION "\"} 1\n"));
    ASSERT_TRUE(sample(buf_cstr(&b), "\nprocess_resident_memory_bytes ") > 100e3);
    ASSERT_TRUE(sample(buf_cstr(&b), "\nprocess_virtual_memory_bytes ") >
                sample(buf_cstr(&b), "\nprocess_resident_memory_bytes "));
    ASSERT_NEAR(sample(buf_cstr(&b), "\nprocess_start_time_seconds "), clock_wall_s(), 3600);
    const double cpu = sample(buf_cstr(&b), "\nprocess_cpu_seconds_total ");
    ASSERT_TRUE(cpu >= 0 && cpu < 3600);
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &lim), 0);
    if (lim.rlim_cur != RLIM_INFINITY)
        ASSERT_EQ((rlim_t)sample(buf_cstr(&b), "\nprocess_max_fds "), lim.rlim_cur);
    for (int i = 0; i < 64; i++)
        ASSERT_TRUE((fd[i] = dup(2)) >= 0);
    buf_clear(&b);
    ASSERT_OK(metric_process(&b));
    ASSERT_EQ(sample(buf_cstr(&b), "\nprocess_open_fds "), had + 64);
    for (int i = 0; i < 64; i++)
        close(fd[i]);
    buf_fini(&b);
}

static void on_lag_timer(void *arg)
{
    http_loop_stop(arg);
}

TEST(loop_lag_is_measured)
{
    struct http_loop *l = NULL;
    struct http_timer t = {0};
    ASSERT_OK(http_loop_create(&l));
    http_timer_init(&t, l, on_lag_timer, l);
    http_timer_set(&t, 250); /* two probes fit */
    ASSERT_OK(http_loop_run(l));
    ASSERT_TRUE(http_loop_lag_ms(l) >= 0);
    struct buf b = BUF_INIT;
    ASSERT_OK(metric_render(&b));
    const char *at = strstr(buf_cstr(&b), "\nkvblend_loop_lag_seconds_count ");
    ASSERT_TRUE(at != NULL && at[32] >= '1');
    buf_fini(&b);
    http_timer_fini(&t);
    http_loop_stop(l); /* stopping before a run ends that run at once */
    ASSERT_OK(http_loop_run(l));
    http_loop_destroy(l);
}

TEST(every_allocation_of_the_loop_may_fail)
{
    for (unsigned n = 1;; n++) {
        struct http_loop *l = NULL;
        mem_fail_nth(n);
        int r = http_loop_create(&l);
        bool fired = mem_fail_fired();
        mem_fail_nth(0);
        ASSERT_EQ(r, fired ? -ENOMEM : 0);
        if (r == 0) http_loop_destroy(l);
        if (!fired) break;
    }
}
