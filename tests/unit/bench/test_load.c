/* What loads and their charts are made of: popularity, and curves collected point by point. */
#include "tests/test.h"
#include "tools/bench/curves.h"
#include "tools/bench/zipf.h"

#include <unistd.h>

TEST(a_request_names_a_document_once_and_popular_ones_more_often)
{
    enum { N = 12, K = 6, REQUESTS = 2000 };
    struct zipf z;
    struct rng r = {4};
    size_t n[N] = {0};
    ASSERT_OK(zipf_init(&z, N, 1));
    for (size_t i = 0; i < REQUESTS; i++) {
        uint32_t doc[K];
        zipf_draw_distinct(&z, &r, K, doc);
        for (size_t k = 0; k < K; k++) {
            ASSERT_TRUE(doc[k] < N);
            for (size_t j = 0; j < k; j++)
                ASSERT_TRUE(doc[j] != doc[k]);
            n[doc[k]]++;
        }
    }
    ASSERT_TRUE(n[0] > n[N - 1]);
    zipf_draw_distinct(&z, &r, N, (uint32_t[N]){0}); /* all of them: it ends */
    zipf_fini(&z);
}

TEST(curves_keep_their_points_by_name_and_drop_what_is_too_much)
{
    static const struct svg_chart like = {.title = "t", .x_label = "x", .y_label = "y"};
    struct curves c = {0};
    struct err err = {0};
    char path[] = "/tmp/kvblend-test-XXXXXX", text[8192];
    for (int i = 0; i < CURVE_POINTS_MAX + 3; i++)
        curves_add(&c, "long", i, 1);
    curves_add(&c, "other", 1, 2);
    curves_add(&c, "other", 2, 3);
    ASSERT_EQ(c.n, 2);
    ASSERT_EQ(c.line[0].n, CURVE_POINTS_MAX);
    ASSERT_TRUE(c.line[1].n == 2 && c.line[1].x[1] == 2 && c.line[1].y[1] == 3);
    const int fd = mkstemp(path);
    ASSERT_TRUE(fd >= 0);
    ASSERT_OK(curves_write(&c, &like, path, &err));
    text[pread(fd, text, sizeof text - 1, 0)] = '\0';
    ASSERT_TRUE(strstr(text, ">long<") || strstr(text, "<svg"));
    (void)close(fd);
    (void)unlink(path);
}
