/* Request traces, and the chart. */
#include "base/buf.h"
#include "base/mem.h"
#include "tests/test.h"
#include "tools/bench/svg.h"
#include "tools/bench/trace.h"

#include <unistd.h>

/* A trace from text, through a file. */
static int open_text(const char *text, size_t len, struct trace *ret, struct err *err)
{
    char path[] = "/tmp/kvblend-test-replay-XXXXXX";
    int fd = mkstemp(path);
    ASSERT_TRUE(fd >= 0);
    ASSERT_EQ(write(fd, text, len), len);
    close(fd);
    int r = trace_open(path, ret, err);
    /* The name differs from run to run; messages are compared from the line number on. */
    const char *line = strstr(err->msg, path);
    if (line) memmove(err->msg, line + strlen(path), strlen(line + strlen(path)) + 1);
    unlink(path);
    return r;
}

/* ---- block traces ---- */

static void open_sample(struct trace *ret)
{
    struct err err = {0};
    ASSERT_OK(trace_open(test_data("traces/mooncake_300.jsonl"), ret, &err));
}

TEST(block_trace_is_read_whole)
{
    struct trace t;
    open_sample(&t);
    ASSERT_EQ(t.n_requests, 300);
    ASSERT_EQ(t.n_accesses, 13010);
    ASSERT_EQ(t.n_records, 5244);
    ASSERT_TRUE(t.same_size && !t.own_log);
    trace_close(&t);
}

TEST(lines_may_be_long)
{
    struct buf text = BUF_INIT;
    struct trace t;
    struct err err = {0};
    for (int q = 0; q < 2; q++) {
        ASSERT_OK(buf_adds(&text, "{\"timestamp\": 1, \"hash_ids\": [0"));
        for (int i = 1; i < 20000; i++)
            ASSERT_OK(buf_addf(&text, ", %d", i * 100003));
        ASSERT_OK(buf_adds(&text, q ? "]}" : "]}\n\n")); /* the last line without its end */
    }
    ASSERT_OK(open_text(text.data, text.len, &t, &err));
    ASSERT_EQ(t.n_records, 20000);
    ASSERT_EQ(t.n_accesses, 40000);
    trace_close(&t);
    buf_fini(&text);
}

/* ---- the worker's own log ---- */

#define ID(c) "\"id\":\"000000000000000000000000000000" c "\""
#define RECORD(c, tokens, bytes)                                                                   \
    "{" ID(c) ",\"kind\":\"chunk\",\"tokens\":" tokens ",\"bytes\":" bytes ",\"tier\":\"none\"}"
#define LINE(records) "{\"t\":1700000000.5,\"ns\":\"acme\",\"records\":[" records "]}\n"

TEST(access_log_has_bytes_and_tokens)
{
    static const char text[] = LINE(RECORD("0a", "100", "1000") "," RECORD("0b", "20", "200"))
        LINE(RECORD("0c", "30", "300")) LINE("") LINE(RECORD("0b", "20", "200"))
            LINE(RECORD("0a", "100", "1000")) LINE(RECORD("0d", "999", "9999"))
                LINE(RECORD("0a", "100", "1000"));
    struct trace t;
    struct err err = {0};
    ASSERT_OK(open_text(text, sizeof text - 1, &t, &err));
    ASSERT_TRUE(t.own_log && !t.same_size);
    ASSERT_EQ(t.n_requests, 7);
    ASSERT_EQ(t.n_records, 4);
    ASSERT_EQ(t.record[0].key.lo, 0x0a);
    ASSERT_EQ(t.record[3].size_bytes, 9999);
    ASSERT_EQ(t.record[3].n_tokens, 999);
    trace_close(&t);
}

TEST(bad_input_is_named_by_line)
{
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"{\"hash_ids\":[1]}\n{\"hash_ids\":[1,\"x\"]}\n", ":2: an item of hash_ids is no integer"},
        {"{\"hash_ids\":[1]}\n\n{\"records\":[]}\n", ":3: no array \"hash_ids\""},
        {"{\"hash_ids\":7}\n", ":1: no array \"hash_ids\""},
        {"{\"hash_ids\":[1]}\n{\"hash_ids\":[1", ":2: "},
        {"[1]\n", ":1: not a JSON object"},
        {"{\"a\":1}\n", ":1: neither \"hash_ids\""},
        {"hello\n", ":1: "},
        {"", ": no records in it"},
        {"{\"hash_ids\":[]}\n", ": no records in it"},
        {LINE("{\"id\":\"12\"}"), ":1: a record's \"id\" is not 32 hex digits"},
        {LINE(RECORD("0a", "1", "0")), ":1: a record's \"bytes\" is no integer in 1"},
        {LINE(RECORD("0a", "1", "5")) LINE(RECORD("0a", "-1", "5")), ":2: a record's \"tokens\""},
        {LINE(RECORD("0a", "1", "9e9")), ":1: a record's \"bytes\""},
        {LINE("7"), ":1: a record's \"id\""},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct trace t;
        struct err err = {0};
        int r = open_text(bad[i].text, strlen(bad[i].text), &t, &err);
        ASSERT_TRUE(r == -EBADMSG || r == -EINVAL);
        if (strncmp(err.msg, bad[i].says, strlen(bad[i].says)) != 0)
            test_fail(__FILE__, __LINE__, "\"%s\", not \"%s…\"", err.msg, bad[i].says);
    }
    struct trace t;
    struct err err = {0};
    ASSERT_ERR(trace_open("/nonexistent/trace", &t, &err), -ENOENT);
    ASSERT_ERR(trace_open("/", &t, &err), -EIO);
}

TEST(arrivals_keep_the_rhythm_at_another_rate)
{
    static const char text[] =
        "{\"timestamp\":500,\"hash_ids\":[1]}\n{\"timestamp\":600,\"hash_ids\":[1]}\n"
        "{\"timestamp\":2500,\"hash_ids\":[1]}\n{\"timestamp\":4500,\"hash_ids\":[1]}\n"
        "{\"timestamp\":100,\"hash_ids\":[1]}\n";
    struct trace t;
    struct err err = {0};
    double at_s[5] = {-1, -1, -1, -1, -1};
    ASSERT_OK(open_text(text, sizeof text - 1, &t, &err));
    ASSERT_OK(trace_arrivals(&t, 4, 0.5, at_s)); /* three intervals in six seconds, not in four */
    ASSERT_NEAR(at_s[0], 0, 1e-12);
    ASSERT_NEAR(at_s[1], 0.15, 1e-12);
    ASSERT_NEAR(at_s[2], 3, 1e-12);
    ASSERT_NEAR(at_s[3], 6, 1e-12);
    ASSERT_NEAR(at_s[4], -1, 1e-12);
    ASSERT_ERR(trace_arrivals(&t, 5, 1, at_s), -EINVAL); /* not in order */
    ASSERT_ERR(trace_arrivals(&t, 6, 1, at_s), -EINVAL);
    ASSERT_ERR(trace_arrivals(&t, 1, 1, at_s), -EINVAL);
    t.when[1].t_s = t.when[0].t_s;
    ASSERT_ERR(trace_arrivals(&t, 2, 1, at_s), -EINVAL); /* of one moment */
    trace_close(&t);
}

TEST(out_of_memory_is_reported)
{
    static const char text[] = "{\"hash_ids\":[1,2,3,1]}\n{\"hash_ids\":[3,4]}\n";
    for (unsigned n = 1, done = 0; !done; n++) {
        struct trace t;
        struct err err = {0};
        mem_fail_nth(n);
        int r = open_text(text, sizeof text - 1, &t, &err);
        if (r == 0) trace_close(&t);
        done = !mem_fail_fired();
        mem_fail_nth(0);
        ASSERT_EQ(r, done ? 0 : -ENOMEM);
        ASSERT_TRUE(n < 50);
    }
}

/* ---- chart ---- */

static size_t count(const char *text, const char *what)
{
    size_t n = 0;
    for (const char *p = text; (p = strstr(p, what)); p += strlen(what))
        n++;
    return n;
}

TEST(chart_stands_alone)
{
    static const double x[] = {100, 1000, 10000, 20000}, y[] = {1, 20, NAN, 37};
    static const struct svg_series series[] = {{"a<b", x, y, 4, true}, {"c&d", x, y, 4, false}};
    struct svg_chart c = {"Title", "note", "x (records)", "y (%)", true, false, 0, series, 2};
    struct buf out = BUF_INIT;
    ASSERT_OK(svg_chart(&c, &out));
    const char *text = buf_cstr(&out);
    ASSERT_EQ(count(text, "http"), 1); /* the name of the name space, which nobody fetches */
    ASSERT_EQ(count(text, "href") + count(text, "url("), 0);
    ASSERT_EQ(count(text, ">a&lt;b<") + count(text, ">c&amp;d<"), 2);
    ASSERT_EQ(count(text, ">x (records)<") + count(text, ">y (%)<") + count(text, ">Title<"), 3);
    ASSERT_EQ(count(text, ">100<") + count(text, ">5k<") + count(text, ">20k<"), 3); /* ticks */
    ASSERT_EQ(count(text, ">0<") + count(text, ">40<"), 2);
    ASSERT_EQ(count(text, "nan") + count(text, "inf"), 0);
    ASSERT_EQ(count(text, "<svg"), 1);
    ASSERT_EQ(count(text, "</svg>\n"), 1);
    /* Both lines are cut where a value is missing: two pen-downs each. */
    const char *line = strstr(text, "stroke-dasharray=\"none\" d=\"M");
    ASSERT_TRUE(line);
    size_t len = strcspn(line + 28, "\"");
    char d[200];
    ASSERT_TRUE(len < sizeof d);
    memcpy(d, line + 28, len);
    d[len] = '\0';
    ASSERT_EQ(count(d, "L"), 1);
    ASSERT_EQ(count(d, "M"), 1); /* and the first, before d */
    buf_fini(&out);
}

TEST(chart_of_bytes_and_of_nothing)
{
    static const double x[] = {1 << 20, 1 << 30, 3e12}, y[] = {0, 50, 100}, none[] = {-1, 0, NAN};
    struct svg_series s = {"lru", x, y, 3, false};
    struct svg_chart c = {"t", NULL, "x", "y", true, true, 100, &s, 1};
    struct buf out = BUF_INIT;
    ASSERT_OK(svg_chart(&c, &out));
    ASSERT_EQ(count(buf_cstr(&out), ">1 MiB<") + count(buf_cstr(&out), ">1 TiB<"), 2);
    buf_clear(&out);
    s.x = none;
    ASSERT_ERR(svg_chart(&c, &out), -EINVAL);
    s.n = 0;
    ASSERT_ERR(svg_chart(&c, &out), -EINVAL);
    s = (struct svg_series){"one", x, y, 1, true}; /* a single point has no range */
    ASSERT_OK(svg_chart(&c, &out));
    ASSERT_EQ(count(buf_cstr(&out), "nan"), 0);
    c.x_log = c.x_bytes = false;
    ASSERT_OK(svg_chart(&c, &out));
    struct err err = {0};
    ASSERT_ERR(svg_write(&c, "/nonexistent/a.svg", &err), -EIO);
    for (unsigned n = 1;; n++) {
        struct buf little = BUF_INIT;
        mem_fail_nth(n);
        int r = svg_chart(&c, &little);
        bool fired = mem_fail_fired();
        mem_fail_nth(0);
        buf_fini(&little);
        ASSERT_EQ(r, fired ? -ENOMEM : 0);
        if (!fired) break;
    }
    buf_fini(&out);
    char text[24];
    svg_size_text(1.5 * (1 << 30), text, sizeof text);
    ASSERT_STREQ(text, "1.5 GiB");
    svg_size_text(640.0 * (1 << 20), text, sizeof text);
    ASSERT_STREQ(text, "640 MiB");
}
