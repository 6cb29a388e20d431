#include "base/buf.h"
#include "base/net/http.h"
#include "gateway/front/trace.h"
#include "tests/test.h"

static struct http_header header(const char *name, const char *value)
{
    return (struct http_header){name, value, (uint32_t)strlen(name), (uint32_t)strlen(value)};
}

TEST(a_loop_is_seen_by_ones_own_name_or_by_its_length)
{
    static const struct {
        const char *first, *second;
        bool loops;
    } t[] = {
        {"", "", false},
        {"aa", "bb", false},
        {"me", "", true},
        {"aa,\tme ", "", true},
        {"aa", "bb, me, cc", true},
        {"mee, m, ME", "xme", false},
        {"1,2,3,4,5,6,7", "", false},
        {"1,2,3,4,5,6,7", "8", true},
        {",,, ,", ",", false},
    };
    for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) {
        struct http_header h[] = {header("x-kvblend-hop", t[i].first), header("Host", "me"),
                                  header("X-KVBLEND-HOP", t[i].second)};
        struct http_head head = {h, 3};
        if (gw_hop_loops(&head, "me") != t[i].loops)
            test_fail(__FILE__, __LINE__, "\"%s\" and \"%s\"", t[i].first, t[i].second);
    }
}

TEST(each_gateway_adds_itself)
{
    struct http_header h[] = {header("x-kvblend-hop", "aa, bb"), header("Host", "x"),
                              header("x-kvblend-hop", "cc")};
    struct http_head head = {h, 3}, none = {h, 0};
    struct buf b = BUF_INIT;
    ASSERT_OK(gw_hop_header(&none, "me", &b));
    ASSERT_STREQ(buf_cstr(&b), "X-KVBlend-Hop: me\r\n");
    buf_clear(&b);
    ASSERT_OK(gw_hop_header(&head, "me", &b));
    ASSERT_STREQ(buf_cstr(&b), "X-KVBlend-Hop: aa, bb, cc, me\r\n");
    buf_fini(&b);
    char one[GW_HOP_BYTES], two[GW_HOP_BYTES];
    gw_hop_new(one);
    gw_hop_new(two);
    ASSERT_TRUE(strlen(one) == 16 && strcmp(one, two) != 0);
}
