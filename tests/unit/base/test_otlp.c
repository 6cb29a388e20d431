/* Spans as JSON, what the options may be, and that a queue which nobody empties stays bounded. */
#include "base/clock.h"
#include "base/metric.h"
#include "base/net/http.h"
#include "base/otlp/otlp.h"
#include "tests/test.h"

#include <arpa/inet.h>
#include <jansson.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static const char *text(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}

TEST(endpoints)
{
    static const char *const good[] = {"http://localhost:4318", "https://otlp.example/prefix/",
                                       "http://[::1]:4318", "http://h/v1/traces"};
    static const char *const bad[] = {"",          "localhost:4318", "grpc://h:4317", "http://",
                                      "http:///x", "http://u:p@h",   "http://h?a=b",  "http://a b",
                                      "http://a,b"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (!otlp_endpoint_ok(good[i])) test_fail(__FILE__, __LINE__, "%s", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (otlp_endpoint_ok(bad[i])) test_fail(__FILE__, __LINE__, "%s", bad[i]);
}

TEST(headers)
{
    ASSERT_TRUE(otlp_header_ok("authorization=Basic dTpw=="));
    ASSERT_TRUE(otlp_header_ok("x-key="));
    ASSERT_TRUE(!otlp_header_ok("authorization") && !otlp_header_ok("=x") && !otlp_header_ok(""));
    ASSERT_TRUE(!otlp_header_ok("a b=c") && !otlp_header_ok("a=b\r\nevil: 1"));
}

TEST(spans_are_json_whatever_the_texts)
{
    struct traceparent t;
    struct otlp_spans s = {.n = 0};
    struct buf attributes = BUF_INIT, all = BUF_INIT;
    const uint64_t now = clock_ns();
    char longest[2 * OTLP_TEXT_BYTES];
    memset(longest, 'y', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    traceparent_begin(&t, true);
    otlp_attr_str(&attributes, "a", "\"},\xff\n");
    otlp_attr_str(&attributes, "none", NULL);
    otlp_attr_str(&attributes, "long", longest);
    otlp_attr_int(&attributes, "i", INT64_MIN);
    otlp_attr_double(&attributes, "d", 0.25);
    otlp_span(&s, &(struct otlp_span){.trace = &t,
                                      .kind = OTLP_SERVER,
                                      .name = "chat \"m\"",
                                      .start_ns = now,
                                      .end_ns = now + 5,
                                      .error = "500",
                                      .attributes = &attributes});
    otlp_span(&s, &(struct otlp_span){
                      .trace = &t, .kind = OTLP_INTERNAL, .name = "x", .start_ns = 9, .end_ns = 3});
    ASSERT_EQ(s.n, 2);
    ASSERT_OK(buf_addf(&all, "[%.*s]", (int)s.json.len, s.json.data));
    json_t *root = json_loads(buf_cstr(&all), JSON_REJECT_DUPLICATES, NULL);
    const json_t *one = json_array_get(root, 0), *two = json_array_get(root, 1);
    ASSERT_TRUE(one && two);
    ASSERT_STREQ(text(one, "traceId"), t.trace);
    ASSERT_STREQ(text(one, "spanId"), t.span);
    ASSERT_TRUE(json_object_get(one, "parentSpanId") == NULL);
    ASSERT_STREQ(text(two, "parentSpanId"), t.span);
    ASSERT_TRUE(strcmp(text(two, "spanId"), t.span) != 0);
    const uint64_t start = strtoull(text(one, "startTimeUnixNano"), NULL, 10);
    ASSERT_TRUE(start > 1000000000ull * 1000000000 && start < 1ull << 62);
    ASSERT_EQ(strtoull(text(one, "endTimeUnixNano"), NULL, 10) - start, 5);
    ASSERT_STREQ(text(two, "startTimeUnixNano"), text(two, "endTimeUnixNano"));
    const json_t *a = json_object_get(one, "attributes");
    ASSERT_EQ(json_array_size(a), 4);
    ASSERT_STREQ(text(json_object_get(json_array_get(a, 0), "value"), "stringValue"),
                 "\"},\xef\xbf\xbd\n");
    ASSERT_EQ(strlen(text(json_object_get(json_array_get(a, 1), "value"), "stringValue")),
              OTLP_TEXT_BYTES);
    ASSERT_STREQ(text(json_object_get(json_array_get(a, 2), "value"), "intValue"),
                 "-9223372036854775808");
    ASSERT_EQ(json_integer_value(json_object_get(json_object_get(one, "status"), "code")), 2);
    json_decref(root);
    otlp_spans_fini(&s);
    buf_fini(&attributes);
    buf_fini(&all);
}

/* A listener that takes the connection and never answers. */
static int silent_port(int *ret_fd)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    *ret_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT_OK(bind(*ret_fd, (struct sockaddr *)&a, sizeof a));
    ASSERT_OK(listen(*ret_fd, 8));
    ASSERT_OK(getsockname(*ret_fd, (struct sockaddr *)&a, &len));
    return ntohs(a.sin_port);
}

TEST(a_silent_collector_delays_nobody)
{
    char endpoint[64], long_text[OTLP_TEXT_BYTES];
    struct http_head none = {0};
    struct traceparent t;
    struct otlp *o;
    int fd;
    memset(long_text, 'z', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = '\0';
    (void)snprintf(endpoint, sizeof endpoint, "http://127.0.0.1:%d", silent_port(&fd));
    const struct otlp_opts opts = {.endpoint = endpoint, .service = "test", .sample = 1};
    ASSERT_OK(otlp_create(&opts, &o, NULL));
    otlp_begin(o, &none, &t);
    ASSERT_TRUE(traceparent_sampled(&t));
    const uint64_t start_ns = clock_ns();
    for (int i = 0; i < 40000; i++) { /* four times what the queue holds */
        struct otlp_spans s = {.n = 0};
        struct otlp_span x = {.trace = &t, .kind = OTLP_INTERNAL, .name = long_text};
        otlp_span(&s, &x);
        otlp_put(o, &s);
        ASSERT_EQ(s.n, 0);
    }
    ASSERT_TRUE(clock_ms_since(start_ns) < 9000); /* one call alone may take ten seconds */
    struct buf page = BUF_INIT;
    ASSERT_OK(metric_render(&page));
    const char *line = strstr(buf_cstr(&page), "\nkvblend_trace_spans_dropped_total ");
    ASSERT_TRUE(line && strtod(strchr(line, ' '), NULL) > 20000);
    buf_fini(&page);
    const uint64_t t0 = clock_ns();
    otlp_destroy(o);
    ASSERT_TRUE(clock_ms_since(t0) < 60000);
    (void)close(fd);
}

TEST(the_share_that_is_kept)
{
    const struct otlp_opts opts = {
        .endpoint = "http://127.0.0.1:9", .service = "test", .sample = 0.25};
    struct http_head none = {0};
    struct otlp *o;
    int kept = 0;
    ASSERT_OK(otlp_create(&opts, &o, NULL));
    for (int i = 0; i < 10000; i++) {
        struct traceparent t;
        otlp_begin(o, &none, &t);
        kept += traceparent_sampled(&t);
    }
    ASSERT_TRUE(kept > 2200 && kept < 2800); /* seven standard deviations */
    otlp_destroy(o);
}
