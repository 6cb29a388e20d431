#include "base/buf.h"
#include "gateway/front/error.h"
#include "tests/test.h"

TEST(shape)
{
    struct buf b = BUF_INIT;
    ASSERT_OK(gw_error_body(GW_E_UNKNOWN_MODEL, "no \"x\"\n", "model", &b));
    ASSERT_STREQ(buf_cstr(&b),
                 "{\"error\":{\"message\":\"no \\\"x\\\"\\n\",\"type\":\"invalid_request_error\","
                 "\"param\":\"model\",\"code\":\"model_not_found\"}}");
    buf_clear(&b);
    ASSERT_OK(gw_error_frames(GW_E_DRAINING, "bye", &b));
    ASSERT_STREQ(buf_cstr(&b), "data: {\"error\":{\"message\":\"bye\",\"type\":\"server_error\","
                               "\"param\":null,\"code\":\"draining\"}}\n\ndata: [DONE]\n\n");
    buf_fini(&b);
}

/* The official clients obey x-should-retry above their own rules: every refusal carries it. */
TEST(every_refusal_says_whether_to_retry)
{
    for (int e = 0; e < GW_E_COUNT; e++) {
        struct buf b = BUF_INIT;
        int s = gw_error_status((enum gw_error)e);
        ASSERT_OK(gw_error_headers((enum gw_error)e, &b));
        bool says = strstr(buf_cstr(&b), "x-should-retry: ") != NULL;
        ASSERT_TRUE(says);
        if (s < 500 && s != 408 && s != 429)
            ASSERT_TRUE(strstr(buf_cstr(&b), "x-should-retry: false") != NULL);
        ASSERT_EQ(strstr(buf_cstr(&b), "Retry-After") != NULL,
                  strstr(buf_cstr(&b), "x-should-retry: true") != NULL);
        buf_fini(&b);
    }
}

TEST(when_to_come_again)
{
    struct buf b = BUF_INIT;
    ASSERT_OK(gw_error_headers_after(GW_E_RATE_TOKENS, 1200, &b));
    ASSERT_STREQ(buf_cstr(&b),
                 "Retry-After: 2\r\nretry-after-ms: 1200\r\nx-should-retry: true\r\n");
    buf_clear(&b);
    ASSERT_OK(gw_error_headers_after(GW_E_RATE_TOKENS, 60001, &b));
    ASSERT_TRUE(strstr(buf_cstr(&b), "Retry-After: 61\r\n") != NULL);
    ASSERT_TRUE(strstr(buf_cstr(&b), "x-should-retry: false\r\n") != NULL);
    buf_fini(&b);
}

TEST(refusals_of_the_http_layer)
{
    static const int statuses[] = {400, 408, 413, 415, 429, 431, 500, 501, 503};
    for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++)
        ASSERT_EQ(gw_error_status(gw_error_of_status(statuses[i])), statuses[i]);
    ASSERT_EQ(gw_error_status(gw_error_of_status(505)), 500);
    ASSERT_EQ(gw_error_of_status(503), GW_E_SHED); /* it is no upstream's fault */
}
