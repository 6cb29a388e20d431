/* The unit-test harness: TEST(name){…} registers itself, assertions print both sides.
 *
 * One program per module, linked with tests/test_main.c. Runs all tests, or those whose name
 * contains a pattern of `-k A,B`; prints one line per failed test and `N passed, N failed` at the
 * end. A failing assertion ends its test (longjmp) and the next one runs. SKIP("why") ends a test
 * as skipped; when every test of a program was skipped it exits with 77 (Meson's skip code).
 * MISSING("what") is for what every full installation has (Redis, the model): one such test is
 * enough for the program to exit with 77, so that a pass means that all of it ran. */
#ifndef TESTS_TEST_H
#define TESTS_TEST_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct test {
    const char *name;
    void (*fn)(void);
    struct test *next;
};
void test_register(struct test *t);
_Noreturn void test_fail(const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
_Noreturn void test_skip(const char *why);
_Noreturn void test_missing(const char *what);
const char *test_data(const char *rel); /* path below tests/data/; borrowed until the next call */
uint64_t test_rand(uint64_t *state);    /* splitmix64: seeded, for property tests */

#define TEST(id)                                                                                   \
    static void test_##id(void);                                                                   \
    __attribute__((constructor)) static void test_reg_##id(void)                                   \
    {                                                                                              \
        static struct test t = {#id, test_##id, NULL};                                             \
        test_register(&t);                                                                         \
    }                                                                                              \
    static void test_##id(void)

#define SKIP(why) test_skip(why)
#define MISSING(what) test_missing(what)
#define ASSERT_TRUE(x)                                                                             \
    do {                                                                                           \
        if (!(x)) test_fail(__FILE__, __LINE__, "%s is false", #x);                                \
    } while (0)
#define ASSERT_EQ(a, b)                                                                            \
    do {                                                                                           \
        long long a_ = (long long)(a), b_ = (long long)(b);                                        \
        if (a_ != b_) test_fail(__FILE__, __LINE__, "%s = %lld, %s = %lld", #a, a_, #b, b_);       \
    } while (0)
#define ASSERT_OK(x)                                                                               \
    do {                                                                                           \
        long long r_ = (long long)(x);                                                             \
        if (r_ < 0) test_fail(__FILE__, __LINE__, "%s failed: %lld", #x, r_);                      \
    } while (0)
#define ASSERT_ERR(x, code)                                                                        \
    do {                                                                                           \
        long long r_ = (long long)(x);                                                             \
        if (r_ != (code)) test_fail(__FILE__, __LINE__, "%s = %lld, not %s", #x, r_, #code);       \
    } while (0)
#define ASSERT_STREQ(a, b)                                                                         \
    do {                                                                                           \
        const char *a_ = (a), *b_ = (b);                                                           \
        if (!a_ || !b_ || strcmp(a_, b_) != 0)                                                     \
            test_fail(__FILE__, __LINE__, "%s = \"%s\", %s = \"%s\"", #a, a_ ? a_ : "(null)", #b,  \
                      b_ ? b_ : "(null)");                                                         \
    } while (0)
#define ASSERT_MEMEQ(a, b, n)                                                                      \
    do {                                                                                           \
        if (memcmp((a), (b), (n)) != 0) test_fail(__FILE__, __LINE__, "%s != %s", #a, #b);         \
    } while (0)
#define ASSERT_NEAR(a, b, tol)                                                                     \
    do {                                                                                           \
        double a_ = (double)(a), b_ = (double)(b), t_ = (double)(tol);                             \
        if (!(fabs(a_ - b_) <= t_))                                                                \
            test_fail(__FILE__, __LINE__, "%s = %g, %s = %g, tolerance %g", #a, a_, #b, b_, t_);   \
    } while (0)

#endif
