/* The page as OpenMetrics, and who gets it. */
#include "base/buf.h"
#include "base/metric.h"
#include "tests/test.h"

#include <string.h>

static void expect(const char *text, const char *want)
{
    struct buf out = BUF_INIT;
    ASSERT_OK(metric_open(text, strlen(text), &out));
    ASSERT_STREQ(buf_cstr(&out), want);
    buf_fini(&out);
}

TEST(families_and_samples)
{
    expect("# HELP a_bytes_total Of \"b\" and \\\\.\n# TYPE a_bytes_total counter\n"
           "a_bytes_total{x=\"1 2\"} 3\na_bytes_total 4\n",
           "# TYPE a_bytes counter\n# UNIT a_bytes bytes\n# HELP a_bytes Of \\\"b\\\" and \\\\.\n"
           "a_bytes_total{x=\"1 2\"} 3\na_bytes_total 4\n");
    expect(
        "# HELP old Not as it should be.\n# TYPE old counter\nold{a=\"b\"} 1\nold 2\n",
        "# TYPE old counter\n# HELP old Not as it should be.\nold_total{a=\"b\"} 1\nold_total 2\n");
    expect("# HELP t_seconds T.\n# TYPE t_seconds histogram\nt_seconds_bucket{le=\"1\"} 1\n"
           "t_seconds_count 1\n# TYPE g gauge\ng 1\n",
           "# TYPE t_seconds histogram\n# UNIT t_seconds seconds\n# HELP t_seconds T.\n"
           "t_seconds_bucket{le=\"1\"} 1\nt_seconds_count 1\n# TYPE g gauge\ng 1\n");
    expect("", "");
    expect("# EOF\n", "");
    expect("g 1", "g 1\n"); /* without its last line's end */
    expect("# TYPE \n# HELP x\n# TYPE x\nx 1\n", "# TYPE x \n# HELP x \nx 1\n");
}

TEST(exemplars)
{
    static const double bounds[] = {1, 2};
    static struct metric_exemplar kept[3];
    static struct metric m = {.name = "e_seconds",
                              .help = "E.",
                              .type = METRIC_HISTOGRAM,
                              .bounds = bounds,
                              .n_bounds = 2,
                              .exemplar = kept};
    struct buf text = BUF_INIT, traced = BUF_INIT;
    metric_register(&m);
    metric_observe_traced(&m, 1.5, "0af7651916cd43dd8448eb211c80319c");
    metric_observe_traced(&m, 9, "");
    metric_observe(&m, 0.5);
    ASSERT_OK(metric_render(&text));
    ASSERT_TRUE(strstr(buf_cstr(&text), "e_seconds_bucket{le=\"2\"} 2\n") != NULL);
    ASSERT_OK(metric_render_traced(&traced));
    const char *at = strstr(buf_cstr(&traced), "e_seconds_bucket{le=\"2\"} 2 # {trace_id=\"");
    ASSERT_TRUE(at != NULL);
    ASSERT_TRUE(strstr(at, "\"0af7651916cd43dd8448eb211c80319c\"} 1.5 1") != NULL);
    ASSERT_TRUE(strstr(buf_cstr(&traced), "e_seconds_bucket{le=\"1\"} 1\n") != NULL);
    ASSERT_TRUE(strstr(buf_cstr(&traced), "e_seconds_bucket{le=\"+Inf\"} 3\n") != NULL);
    buf_fini(&text);
    buf_fini(&traced);
}

TEST(who_wants_it)
{
    ASSERT_TRUE(metric_wants_open("application/openmetrics-text"));
    ASSERT_TRUE(metric_wants_open("text/plain;q=0.2, Application/OpenMetrics-Text; version=1.0.0"));
    ASSERT_TRUE(
        metric_wants_open(/* Prometheus 3 */
                          "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
                          "application/openmetrics-text;version=0.0.1;q=0.5,"
                          "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
                          "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"));
    ASSERT_TRUE(!metric_wants_open(NULL) && !metric_wants_open("") && !metric_wants_open("*/*"));
    ASSERT_TRUE(!metric_wants_open("text/plain, application/openmetrics-text;q=0.9"));
    ASSERT_TRUE(!metric_wants_open("application/openmetrics-text;q=0"));
    ASSERT_TRUE(!metric_wants_open("application/openmetrics-textual,;q=,q"));
}
