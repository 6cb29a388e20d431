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

static int merged(const char *page, struct buf *out)
{
    struct gw_merge m = {0};
    int r = gw_merge_page(&m, 3, page, strlen(page));
    if (r == 0) r = gw_merge_render(&m, out);
    gw_merge_fini(&m);
    return r;
}

TEST(figures_of_a_model_say_so)
{
    struct buf b = BUF_INIT, page = BUF_INIT;
    ASSERT_OK(merged("process_a 1\nkvblend_model_info{model=\"a}\\\"b\"} 1\nkvblend_b 2\n"
                     "kvblend_h_bucket{le=\"1\"} 3 # {trace_id=\"t\"} 0.5 1\nkvblend_c{} 4\n",
                     &b));
    ASSERT_STREQ(buf_cstr(&b),
                 "process_a{worker=\"3\"} 1\n"
                 "kvblend_model_info{worker=\"3\",model=\"a}\\\"b\"} 1\n"
                 "kvblend_b{worker=\"3\",model=\"a}\\\"b\"} 2\n"
                 "kvblend_h_bucket{worker=\"3\",model=\"a}\\\"b\",le=\"1\"} 3 # {trace_id=\"t\"} "
                 "0.5 1\n"
                 "kvblend_c{worker=\"3\",model=\"a}\\\"b\"} 4\n");
    buf_clear(&b);
    ASSERT_OK(buf_adds(&page, "kvblend_model_info{model=\""));
    for (int i = 0; i < 600; i++)
        ASSERT_OK(buf_addc(&page, 'm'));
    ASSERT_OK(buf_adds(&page, "\"} 1\nkvblend_b 2\n"));
    ASSERT_OK(merged(buf_cstr(&page), &b)); /* not that, line for line */
    ASSERT_TRUE(strstr(buf_cstr(&b), "\nkvblend_b{worker=\"3\"} 2\n"));
    buf_fini(&page);
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
