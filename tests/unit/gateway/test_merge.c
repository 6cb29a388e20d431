#include "base/buf.h"
#include "gateway/request/merge.h"
#include "tests/test.h"

static const char own[] = "# HELP kvblend_a A.\n# TYPE kvblend_a gauge\nkvblend_a 1\n"
                          "# HELP kvblend_h H.\n# TYPE kvblend_h histogram\n"
                          "kvblend_h_bucket{le=\"+Inf\"} 2\nkvblend_h_sum 1\nkvblend_h_count 2\n";
static const char worker[] = "# HELP kvblend_a A.\n# TYPE kvblend_a gauge\nkvblend_a 5\n"
                             "# HELP kvblend_b B.\n# TYPE kvblend_b counter\nkvblend_b{x=\"y\"} 6\n"
                             "kvblend_b{} 8\n# a remark\nother 7\n";

TEST(names_and_labels)
{
    struct gw_merge m = {0};
    struct buf b = BUF_INIT;
    ASSERT_OK(gw_merge_page(&m, -1, own, sizeof own - 1));
    ASSERT_OK(gw_merge_page(&m, 0, worker, sizeof worker - 1));
    ASSERT_OK(gw_merge_page(&m, 1, worker, sizeof worker - 1));
    ASSERT_OK(gw_merge_render(&m, &b));
    ASSERT_STREQ(buf_cstr(&b),
                 "# HELP kvblend_a A.\n# TYPE kvblend_a gauge\nkvblend_a 1\n"
                 "# HELP kvblend_h H.\n# TYPE kvblend_h histogram\n"
                 "kvblend_h_bucket{le=\"+Inf\"} 2\nkvblend_h_sum 1\nkvblend_h_count 2\n"
                 "# HELP kvblend_worker_a A.\n# TYPE kvblend_worker_a gauge\n"
                 "kvblend_worker_a{worker=\"0\"} 5\nkvblend_worker_a{worker=\"1\"} 5\n"
                 "# HELP kvblend_b B.\n# TYPE kvblend_b counter\n"
                 "kvblend_b{worker=\"0\",x=\"y\"} 6\nkvblend_b{worker=\"0\"} 8\n"
                 "kvblend_b{worker=\"1\",x=\"y\"} 6\nkvblend_b{worker=\"1\"} 8\n"
                 "other{worker=\"0\"} 7\nother{worker=\"1\"} 7\n");
    gw_merge_fini(&m);
    buf_fini(&b);
}

TEST(odd_input_is_survived)
{
    static const char *const texts[] = {"",        "\n\n", "x",         "{",        "# TYPE",
                                        "# TYPE ", "a{",   "a{b=\"c\"", "# HELP x", " 1\n"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct gw_merge m = {0};
        struct buf b = BUF_INIT;
        ASSERT_OK(gw_merge_page(&m, -1, own, sizeof own - 1));
        ASSERT_OK(gw_merge_page(&m, 0, texts[i], strlen(texts[i])));
        ASSERT_OK(gw_merge_render(&m, &b));
        ASSERT_TRUE(b.len >= sizeof own - 1);
        gw_merge_fini(&m);
        buf_fini(&b);
    }
}

/* A name that begins with NUL became a family without one: "# HELP  …", which no reader takes. */
TEST(lines_that_are_no_text_are_left_out)
{
    static const char page[] = "# HELP \0x X.\n\0 1\nb\0 2\nc 3\n";
    struct gw_merge m = {0};
    struct buf b = BUF_INIT;
    ASSERT_OK(gw_merge_page(&m, 0, page, sizeof page - 1));
    ASSERT_OK(gw_merge_render(&m, &b));
    ASSERT_STREQ(buf_cstr(&b), "c{worker=\"0\"} 3\n");
    gw_merge_fini(&m);
    buf_fini(&b);
}
