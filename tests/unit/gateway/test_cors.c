#include "base/buf.h"
#include "base/net/http.h"
#include "gateway/front/cors.h"
#include "gateway/process/config.h"
#include "tests/test.h"

#define H(name, value)                                                                             \
    {                                                                                              \
        name, value, sizeof name - 1, sizeof value - 1                                             \
    }

static char *some[] = {"https://app.example", "https://*.corp.example:8443"};
static char *all[] = {"*"};

TEST(origins)
{
    struct gw_strs c = {some, 2};
    ASSERT_TRUE(gw_cors_allows(&c, "https://app.example"));
    ASSERT_TRUE(gw_cors_allows(&c, "https://a.b.corp.example:8443"));
    static const char *const bad[] = {"http://app.example",
                                      "https://app.example.evil",
                                      "https://app.example:444",
                                      "null",
                                      "",
                                      "https://corp.example:8443",
                                      "https://.corp.example:8443",
                                      "https://evil/.corp.example:8443",
                                      "https://evil:1.corp.example:8443",
                                      "https://a.corp.example",
                                      "https://app.example\x7f"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        ASSERT_TRUE(!gw_cors_allows(&c, bad[i]));
}

TEST(patterns)
{
    static const char *const bad[] = {
        "",           "app.example", "https://",      "https://a/b",
        "https://*.", "https://*",   "https://a.*.b", "https://a, https://b"};
    ASSERT_TRUE(gw_cors_pattern_ok("*") && gw_cors_pattern_ok(some[0]) &&
                gw_cors_pattern_ok(some[1]) && gw_cors_pattern_ok("http://localhost:3000"));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        ASSERT_TRUE(!gw_cors_pattern_ok(bad[i]));
}

static const char *lines(const struct gw_strs *c, const struct http_head *h, bool preflight)
{
    static struct buf b;
    buf_fini(&b);
    ASSERT_OK(preflight ? gw_cors_preflight(c, h, "POST", &b) : gw_cors_headers(c, h, &b));
    return buf_cstr(&b);
}

TEST(answers)
{
    struct http_header good[] = {H("Origin", "https://app.example")},
                       evil[] = {H("Origin", "https://e")};
    struct http_head h = {good, 1}, e = {evil, 1}, none = {good, 0};
    struct gw_strs off = {NULL, 0}, c = {some, 2}, any = {all, 1};
    ASSERT_STREQ(lines(&off, &h, false), "");
    ASSERT_TRUE(strstr(lines(&c, &h, false), "Vary: Origin\r\nAccess-Control-Allow-Origin: "
                                             "https://app.example\r\n") != NULL);
    ASSERT_TRUE(strstr(lines(&c, &h, false), "Expose-Headers: x-request-id") != NULL);
    ASSERT_STREQ(lines(&c, &e, false), "Vary: Origin\r\n");
    ASSERT_STREQ(lines(&c, &none, false), "Vary: Origin\r\n");
    ASSERT_TRUE(strstr(lines(&any, &e, false), "Allow-Origin: *\r\n") != NULL);
    ASSERT_STREQ(lines(&any, &none, false), "");
}

TEST(preflights)
{
    struct http_header p[] = {H("Origin", "https://app.example"),
                              H("Access-Control-Request-Method", "POST"),
                              H("Access-Control-Request-Headers", "authorization,x-stainless-os")};
    struct http_head h = {p, 3}, plain = {p, 1};
    struct gw_strs off = {NULL, 0}, c = {some, 2};
    ASSERT_TRUE(gw_cors_is_preflight(&c, "OPTIONS", &h));
    ASSERT_TRUE(!gw_cors_is_preflight(&c, "POST", &h) &&
                !gw_cors_is_preflight(&off, "OPTIONS", &h));
    ASSERT_TRUE(!gw_cors_is_preflight(&c, "OPTIONS", &plain));
    const char *a = lines(&c, &h, true);
    ASSERT_TRUE(strstr(a, "Access-Control-Allow-Methods: POST\r\n") != NULL);
    ASSERT_TRUE(strstr(a, "Access-Control-Allow-Headers: authorization,x-stainless-os\r\n") !=
                NULL);
    ASSERT_TRUE(strstr(a, "Access-Control-Max-Age: 600\r\n") != NULL);
    p[2].value = "a\tb: c";
    ASSERT_TRUE(strstr(lines(&c, &h, true), "Allow-Headers") == NULL);
    p[0].value = "https://evil.example";
    ASSERT_TRUE(strstr(lines(&c, &h, true), "Allow-Methods") == NULL);
}

TEST(own_origins_and_hosts)
{
    ASSERT_TRUE(gw_cors_is_own("http://127.0.0.1:8011", "127.0.0.1:8011"));
    ASSERT_TRUE(gw_cors_is_own("https://KV.example", "kv.example"));
    static const char *const foreign[] = {"null",
                                          "",
                                          "127.0.0.1:8011",
                                          "http://127.0.0.1",
                                          "http://127.0.0.1:8012",
                                          "http://evil/127.0.0.1:8011",
                                          "http://127.0.0.1:8011.evil"};
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++)
        ASSERT_TRUE(!gw_cors_is_own(foreign[i], "127.0.0.1:8011"));
    ASSERT_TRUE(!gw_cors_is_own("http://a", NULL));
    char *const names[] = {"kv.internal"};
    static const char *const ours[] = {"127.0.0.1",        "10.1.2.3:80", "[::1]",
                                       "[fe80::1]:8011",   "localhost:1", "LOCALHOST",
                                       "kv.internal:8011", "KV.Internal", "127.0.0.1:"};
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++)
        ASSERT_TRUE(gw_cors_host_is_ours(ours[i], names, 1));
    static const char *const others[] = {"evil.example",
                                         "127.0.0.1.evil.example",
                                         "localhost.evil",
                                         "::1",
                                         "[::1",
                                         "[::1]x",
                                         "[localhost]",
                                         "[kv.internal]",
                                         "127.1",
                                         "0x7f000001",
                                         "kv.internal.",
                                         "",
                                         "kv.internal:80@e",
                                         "127.0.0.1:8011.evil",
                                         ":80",
                                         "kv.internal.evil:80"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        ASSERT_TRUE(!gw_cors_host_is_ours(others[i], names, 1));
    ASSERT_TRUE(!gw_cors_host_is_ours(NULL, names, 1) &&
                !gw_cors_host_is_ours("kv.internal", names, 0));
}
