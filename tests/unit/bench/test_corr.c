#include "tests/test.h"
#include "tools/bench/corr.h"

TEST(known_answers)
{
    const double x[] = {1, 2, 3, 4, 5}, line[] = {3, 5, 7, 9, 11}, down[] = {5, 4, 3, 2, 1};
    const double cube[] = {1, 8, 27, 64, 125}, ties[] = {1, 2, 2, 3, 3}, flat[] = {2, 2, 2, 2, 2};
    ASSERT_NEAR(corr(x, line, 5, false, 1).value, 1, 1e-12);
    ASSERT_NEAR(corr(x, line, 5, true, 1).value, 1, 1e-12);
    ASSERT_NEAR(corr(x, down, 5, false, 1).value, -1, 1e-12);
    ASSERT_NEAR(corr(x, cube, 5, true, 1).value, 1, 1e-12); /* ranks see no curve */
    ASSERT_NEAR(corr(x, cube, 5, false, 1).value, 0.943118, 1e-5);
    ASSERT_NEAR(corr(x, ties, 5, true, 1).value, 0.948683, 1e-5); /* 9 / sqrt(10 * 9) */
    ASSERT_TRUE(isnan(corr(x, flat, 5, false, 1).value));
    ASSERT_TRUE(isnan(corr(x, flat, 5, true, 1).lo));
    ASSERT_TRUE(isnan(corr(x, line, 2, false, 1).value));
}

TEST(intervals_hold_the_value_and_narrow)
{
    enum { N = 400 };
    double x[N], y[N];
    uint64_t state = 5;
    for (size_t i = 0; i < N; i++) {
        x[i] = (double)(test_rand(&state) % 1000);
        y[i] = x[i] + (double)(test_rand(&state) % 1000);
    }
    for (int by_rank = 0; by_rank < 2; by_rank++) {
        struct boot few = corr(x, y, 40, by_rank, 1), many = corr(x, y, N, by_rank, 1);
        ASSERT_TRUE(few.lo < few.value && few.value < few.hi);
        ASSERT_TRUE(many.lo < sqrt(0.5) && sqrt(0.5) < many.hi);
        ASSERT_TRUE(many.hi - many.lo < (few.hi - few.lo) / 2);
        struct boot again = corr(x, y, 40, by_rank, 1);
        ASSERT_MEMEQ(&few, &again, sizeof few);
    }
}
