#include "base/buf.h"
#include "base/net/http.h"
#include "base/otlp/traceparent.h"
#include "tests/test.h"

#define TRACE "0af7651916cd43dd8448eb211c80319c"
#define SPAN "b7ad6b7169203331"
#define H(name, value)                                                                             \
    {                                                                                              \
        name, value, sizeof name - 1, sizeof value - 1                                             \
    }

TEST(only_what_the_standard_allows)
{
    static const struct {
        const char *value;
        bool ok;
    } t[] = {
        {"00-" TRACE "-" SPAN "-01", true},
        {"00-" TRACE "-" SPAN "-00", true},
        {"cc-" TRACE "-" SPAN "-01", true},
        {"cc-" TRACE "-" SPAN "-01-what-comes", true},
        {"cc-" TRACE "-" SPAN "-01.x", false},
        {"00-" TRACE "-" SPAN "-01-more", false},
        {"ff-" TRACE "-" SPAN "-01", false},
        {"00-" TRACE "-" SPAN "-0", false},
        {"00-" TRACE "-" SPAN "-0g", false},
        {"00-0AF7651916CD43DD8448EB211C80319C-" SPAN "-01", false},
        {"00-00000000000000000000000000000000-" SPAN "-01", false},
        {"00-" TRACE "-0000000000000000-01", false},
        {"00_" TRACE "-" SPAN "-01", false},
        {"0-" TRACE "-" SPAN "-01-----", false},
        {"", false},
    };
    for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) {
        struct traceparent x = {0};
        if (traceparent_parse(t[i].value, &x) != t[i].ok)
            test_fail(__FILE__, __LINE__, "%s", t[i].value);
        if (t[i].ok) ASSERT_STREQ(x.trace, TRACE);
    }
}

TEST(a_new_span_for_the_worker)
{
    struct http_header given[] = {H("TraceParent", "00-" TRACE "-" SPAN "-03"),
                                  H("traceparent", "x")};
    struct http_head one = {given, 1}, two = {given, 2}, none = {given, 0};
    struct traceparent a, b;
    struct buf out = BUF_INIT, want = BUF_INIT;
    ASSERT_TRUE(traceparent_read(&one, &a) && traceparent_read(&one, &b));
    ASSERT_TRUE(strlen(a.span) == 16 && strcmp(a.span, b.span) != 0 && strcmp(a.span, SPAN) != 0);
    ASSERT_STREQ(a.parent, SPAN);
    ASSERT_OK(traceparent_header(&a, &out));
    ASSERT_OK(buf_addf(&want, "traceparent: 00-" TRACE "-%s-01\r\n", a.span));
    ASSERT_STREQ(buf_cstr(&out), buf_cstr(&want));
    buf_clear(&out);
    ASSERT_TRUE(!traceparent_read(&two, &a) && !traceparent_read(&none, &b));
    ASSERT_OK(traceparent_header(&a, &out));
    ASSERT_EQ(out.len, 0);
    buf_fini(&out);
    buf_fini(&want);
}

TEST(a_trace_of_our_own)
{
    struct traceparent a, b;
    struct buf out = BUF_INIT, want = BUF_INIT;
    traceparent_begin(&a, true);
    traceparent_begin(&b, false);
    ASSERT_TRUE(strlen(a.trace) == 32 && strlen(a.span) == 16 && a.parent[0] == '\0');
    ASSERT_TRUE(strcmp(a.trace, b.trace) != 0 && strcmp(a.span, b.span) != 0);
    ASSERT_TRUE(traceparent_sampled(&a) && !traceparent_sampled(&b));
    ASSERT_OK(traceparent_header(&b, &out));
    ASSERT_OK(buf_addf(&want, "traceparent: 00-%s-%s-00\r\n", b.trace, b.span));
    ASSERT_STREQ(buf_cstr(&out), buf_cstr(&want));
    buf_fini(&out);
    buf_fini(&want);
}
