#include "base/buf.h"
#include "tests/test.h"
#include "worker/admin/past.h"

#include <string.h>

static void keep(struct wk_past *p, double now_s, int n)
{
    struct buf b = BUF_INIT;
    ASSERT_OK(buf_addf(&b, "\"n\":%d", n));
    wk_past_keep(p, now_s, &b);
}

static const char *told(const struct wk_past *p)
{
    static struct buf b;
    buf_clear(&b);
    wk_past_put(p, &b);
    return buf_cstr(&b);
}

TEST(each_minute_of_an_hour)
{
    struct wk_past *p;
    ASSERT_OK(wk_past_create(&p));
    ASSERT_STREQ("[]", told(p));
    ASSERT_TRUE(wk_past_due(p, 1000));
    keep(p, 1000, 0);
    ASSERT_TRUE(!wk_past_due(p, 1059));
    ASSERT_TRUE(wk_past_due(p, 1060));
    ASSERT_TRUE(wk_past_due(p, 999)); /* the clock was set back */
    keep(p, 1060, 1);
    ASSERT_STREQ("[{\"t\":1000.000,\"n\":0},{\"t\":1060.000,\"n\":1}]", told(p));
    for (int i = 2; i <= 61; i++)
        keep(p, 1000 + 60 * i, i);
    ASSERT_TRUE(strstr(told(p), "[{\"t\":1060.000,\"n\":1},") == told(p));
    ASSERT_TRUE(strstr(told(p), ",{\"t\":4660.000,\"n\":61}]") != NULL);
    wk_past_destroy(p);
}

TEST(what_has_failed_is_not_kept)
{
    struct wk_past *p;
    ASSERT_OK(wk_past_create(&p));
    struct buf b = BUF_INIT;
    b.status = -12;
    wk_past_keep(p, 1000, &b);
    ASSERT_STREQ("[]", told(p));
    ASSERT_TRUE(wk_past_due(p, 1001));
    wk_past_destroy(p);
}
