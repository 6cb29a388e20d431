#include "tests/test.h"

#include "base/buf.h"
#include "base/mem.h"
#include "gateway/process/slow.h"

#include <errno.h>

static const uint64_t second_ns = 1000000000;

static struct gw_slow *make(void)
{
    struct gw_slow *s = NULL;
    ASSERT_OK(gw_slow_create(&s));
    return s;
}

static void note(struct gw_slow *s, double took_ms, uint64_t at_s)
{
    char line[32];
    const int n = snprintf(line, sizeof line, "{\"ms\":%.0f}\n", took_ms);
    gw_slow_note(s, took_ms, at_s * second_ns, line, (size_t)n);
}

static struct buf shown;

static const char *show(struct gw_slow *s, uint64_t at_s)
{
    buf_clear(&shown);
    ASSERT_OK(buf_adds(&shown, "")); /* also of none a text */
    gw_slow_put(s, at_s * second_ns, &shown);
    return buf_cstr(&shown);
}

TEST(the_slowest_come_first)
{
    struct gw_slow *s = make();
    ASSERT_STREQ(show(s, 1), "");
    note(s, 5, 1);
    note(s, 9, 2);
    note(s, 7, 3);
    ASSERT_STREQ(show(s, 4), "{\"ms\":9},{\"ms\":7},{\"ms\":5}");
    gw_slow_destroy(s);
}

TEST(a_full_list_keeps_the_slower_ones)
{
    struct gw_slow *s = make();
    for (unsigned i = 0; i < GW_SLOW_KEPT; i++) {
        ASSERT_TRUE(gw_slow_wants(s, 100 + i, second_ns));
        note(s, 100 + i, 1);
    }
    ASSERT_TRUE(!gw_slow_wants(s, 100, second_ns));
    ASSERT_TRUE(gw_slow_wants(s, 101, second_ns));
    note(s, 99, 1); /* who did not ask */
    ASSERT_TRUE(!strstr(show(s, 1), ":99}"));
    ASSERT_TRUE(strstr(shown.data, ":100}"));
    note(s, 1000, 1);
    ASSERT_TRUE(strncmp(show(s, 1), "{\"ms\":1000},{\"ms\":355}", 22) == 0);
    ASSERT_TRUE(!strstr(shown.data, ":100}"));
    ASSERT_TRUE(strstr(shown.data, ":101}"));
    gw_slow_destroy(s);
}

TEST(an_hour_later_they_are_gone)
{
    struct gw_slow *s = make();
    note(s, 5, 10);
    note(s, 4, 20);
    ASSERT_STREQ(show(s, 10 + GW_SLOW_S), "{\"ms\":5},{\"ms\":4}");
    ASSERT_STREQ(show(s, 11 + GW_SLOW_S), "{\"ms\":4}");
    ASSERT_STREQ(show(s, 21 + GW_SLOW_S), "");
    gw_slow_destroy(s);
}

TEST(long_lines_and_missing_memory_leave_the_rest)
{
    static char text[GW_SLOW_LINE_MAX + 2];
    struct gw_slow *s = make(), *none = NULL;
    memset(text, 'x', GW_SLOW_LINE_MAX + 1);
    gw_slow_note(s, 9, second_ns, text, GW_SLOW_LINE_MAX + 1);
    ASSERT_STREQ(show(s, 1), "");
    mem_fail_nth(1);
    note(s, 9, 1);
    mem_fail_nth(1);
    ASSERT_ERR(gw_slow_create(&none), -ENOMEM);
    mem_fail_nth(0);
    ASSERT_STREQ(show(s, 1), "");
    gw_slow_note(s, 9, second_ns, text, GW_SLOW_LINE_MAX);
    ASSERT_EQ(strlen(show(s, 1)), GW_SLOW_LINE_MAX);
    gw_slow_destroy(s);
    gw_slow_destroy(NULL);
    buf_fini(&shown);
}
