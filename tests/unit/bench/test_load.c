/* What loads are made of: popularity. */
#include "tests/test.h"
#include "tools/bench/zipf.h"

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
