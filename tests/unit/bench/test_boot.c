/* Bootstrap intervals: known answers, coverage, pairing. */
#include "tests/test.h"
#include "tools/bench/boot.h"

#include <math.h>

static double normal(uint64_t *state)
{
    double s = 0;
    for (int i = 0; i < 12; i++)
        s += (double)(test_rand(state) >> 11) / 9007199254740992.0;
    return s - 6;
}

TEST(the_value_is_the_ratio_of_the_means)
{
    const double a[] = {1, 2, 3}, b[] = {2, 4, 6};
    struct boot r = boot_ratio(a, b, 3, 1);
    ASSERT_NEAR(r.value, 0.5, 1e-12);
    ASSERT_NEAR(r.lo, 0.5, 1e-12); /* paired: every draw has the same ratio */
    ASSERT_NEAR(r.hi, 0.5, 1e-12);
    r = boot_ratio(a, NULL, 3, 1);
    ASSERT_NEAR(r.value, 2, 1e-12);
    ASSERT_TRUE(r.lo < 2 && r.hi > 2);
    const struct boot again = boot_ratio(a, NULL, 3, 1);
    ASSERT_MEMEQ(&r, &again, sizeof r);
}

TEST(nothing_to_say_is_not_a_number)
{
    const double a[] = {1, 2}, zero[] = {0, 0};
    ASSERT_TRUE(isnan(boot_ratio(a, NULL, 0, 1).value));
    ASSERT_TRUE(isnan(boot_ratio(a, zero, 2, 1).value));
    ASSERT_TRUE(isnan(boot_ratio(a, zero, 2, 1).lo));
}

TEST(nineteen_of_twenty_intervals_hold_the_truth)
{
    uint64_t state = 7;
    int held = 0;
    enum { TRIES = 300, N = 60 };
    for (int t = 0; t < TRIES; t++) {
        double a[N];
        for (int i = 0; i < N; i++)
            a[i] = 5 + normal(&state);
        const struct boot r = boot_ratio(a, NULL, N, (uint64_t)t);
        ASSERT_TRUE(r.lo <= r.value && r.value <= r.hi);
        held += r.lo <= 5 && 5 <= r.hi;
    }
    ASSERT_TRUE(held > TRIES * 0.89 && held < TRIES * 0.99);
}
