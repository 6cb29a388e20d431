/* kvblend-bench tiers hits: how it reads request traces; test_hits_cli.py has the rest. */
#include "tools/bench/hits.c"

#include "tests/test.h"

#include <unistd.h>

json_t *bench_meta(void)
{
    return json_object();
}

int bench_write_json(const struct opts *opts, json_t *meta, json_t *rows, struct err *err)
{
    (void)opts;
    (void)meta;
    (void)rows;
    (void)err;
    return 0;
}

/* A trace from text, through a file. */
static int open_text(const char *text, size_t len, struct trace *ret, struct err *err)
{
    char path[] = "/tmp/kvblend-test-replay-XXXXXX";
    int fd = mkstemp(path);
    ASSERT_TRUE(fd >= 0);
    ASSERT_EQ(write(fd, text, len), len);
    close(fd);
    int r = open_trace(path, ret, err);
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
    ASSERT_OK(open_trace(test_data("traces/mooncake_300.jsonl"), ret, &err));
}

TEST(block_trace_is_read_whole)
{
    struct trace t;
    open_sample(&t);
    ASSERT_EQ(t.n_requests, 300);
    ASSERT_EQ(t.n_accesses, 13010);
    ASSERT_EQ(t.n_records, 5244);
    ASSERT_TRUE(!t.own_log);
    close_trace(&t);
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
    close_trace(&t);
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
    ASSERT_TRUE(t.own_log);
    ASSERT_EQ(t.n_requests, 7);
    ASSERT_EQ(t.n_records, 4);
    ASSERT_EQ(t.access[4], 0); /* by its id: the same record */
    ASSERT_EQ(t.record[3].size_bytes, 9999);
    ASSERT_EQ(t.record[3].n_tokens, 999);
    close_trace(&t);
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
    ASSERT_ERR(open_trace("/nonexistent/trace", &t, &err), -ENOENT);
    ASSERT_ERR(open_trace("/", &t, &err), -EIO);
}

TEST(out_of_memory_is_reported)
{
    static const char text[] = "{\"hash_ids\":[1,2,3,1]}\n{\"hash_ids\":[3,4]}\n";
    for (unsigned n = 1, done = 0; !done; n++) {
        struct trace t;
        struct err err = {0};
        mem_fail_nth(n);
        int r = open_text(text, sizeof text - 1, &t, &err);
        if (r == 0) close_trace(&t);
        done = !mem_fail_fired();
        mem_fail_nth(0);
        ASSERT_EQ(r, done ? 0 : -ENOMEM);
        ASSERT_TRUE(n < 50);
    }
}
