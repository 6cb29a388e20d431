/* What a refusal says of the fallback; where requests go is e2e/fallback's. */
#include "base/buf.h"
#include "gateway/request/fallback.h"
#include "tests/test.h"

#include <string.h>

static void expect(const char *body, const char *wanted)
{
    struct buf b = BUF_INIT;
    ASSERT_OK(buf_adds(&b, body));
    gw_fallback_explain(&b, "And so on.");
    ASSERT_STREQ(buf_cstr(&b), wanted);
    buf_fini(&b);
}

TEST(a_sentence_more)
{
    expect("{\"error\":{\"message\":\"No.\",\"param\":null}}",
           "{\"error\":{\"message\":\"No. And so on.\",\"param\":null}}");
    expect(
        "{ \"error\" : {\"param\":\"message\", \"message\" : \"a \\\"b\\\\\\\"\"} }\n",
        "{ \"error\" : {\"param\":\"message\", \"message\" : \"a \\\"b\\\\\\\" And so on.\"} }\n");
    expect("{\"error\":{\"message\":\"\"}}", "{\"error\":{\"message\":\" And so on.\"}}");
}

TEST(what_is_no_error_stays)
{
    static const char *const other[] = {"",
                                        "no",
                                        "[]",
                                        "{}",
                                        "{\"error\":\"message\"}",
                                        "{\"error\":{\"message\":7}}",
                                        "{\"message\":\"No.\"}",
                                        "{\"error\":{\"message\":\"No.\"}",
                                        "{\"error\":{\"message\":\"\xff\"}}"};
    for (size_t i = 0; i < sizeof other / sizeof other[0]; i++)
        expect(other[i], other[i]);
}
