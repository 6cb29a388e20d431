#include "gateway/process/recent.h"

#include "base/buf.h"
#include "tests/test.h"

#include <stdio.h>
#include <string.h>

static void put(struct gw_recent *r, unsigned number)
{
    char line[32];
    int len = snprintf(line, sizeof line, "{\"n\":%u}", number);
    gw_recent_put(r, line, (size_t)len);
}

static uint64_t list(struct gw_recent *r, uint64_t after, size_t max, const char *want)
{
    struct buf b = BUF_INIT;
    uint64_t last = gw_recent_list(r, after, max, &b);
    ASSERT_STREQ(buf_cstr(&b), want);
    buf_fini(&b);
    return last;
}

TEST(what_is_new_and_no_more)
{
    struct gw_recent *r;
    ASSERT_OK(gw_recent_create(&r));
    ASSERT_EQ(list(r, 0, 10, ""), 0);
    for (unsigned i = 1; i <= 3; i++)
        put(r, i);
    ASSERT_EQ(list(r, 0, 10, "{\"n\":1},{\"n\":2},{\"n\":3}"), 3);
    ASSERT_EQ(list(r, 1, 10, "{\"n\":2},{\"n\":3}"), 3);
    ASSERT_EQ(list(r, 1, 1, "{\"n\":3}"), 3); /* the newest */
    ASSERT_EQ(list(r, 3, 10, ""), 3);
    ASSERT_EQ(list(r, 99, 2, "{\"n\":2},{\"n\":3}"), 3); /* the reader knew another process */
    gw_recent_destroy(r);
}

TEST(old_lines_go_and_long_ones_never_come)
{
    struct gw_recent *r;
    char text[GW_RECENT_LINE_BYTES + 1];
    struct buf b = BUF_INIT;
    memset(text, 'x', sizeof text);
    ASSERT_OK(gw_recent_create(&r));
    for (unsigned i = 1; i <= GW_RECENT_LINES + 2; i++)
        put(r, i);
    gw_recent_put(r, text, sizeof text);
    ASSERT_EQ(gw_recent_list(r, 0, SIZE_MAX, &b), GW_RECENT_LINES + 2);
    ASSERT_TRUE(strncmp(buf_cstr(&b), "{\"n\":3},", 8) == 0);
    size_t n = 0;
    for (const char *p = b.data; (p = strchr(p, '{')); p++)
        n++;
    ASSERT_EQ(n, GW_RECENT_LINES);
    buf_fini(&b);
    gw_recent_destroy(r);
}
