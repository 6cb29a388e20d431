/* Entries of `listen` and `admin.listen`. What they open is met by tests/e2e. */
#include "gateway/front/listen.h"
#include "tests/test.h"

TEST(entries)
{
    static const struct {
        const char *entry;
        bool ok, needs_tls;
    } table[] = {
        {"127.0.0.1:8010", true, false},
        {":8010", true, false},
        {"http://0.0.0.0:80", true, false},
        {"[::1]:8010", true, false},
        {"unix:/run/kvblend.sock", true, false},
        {"systemd", true, false},
        {"https://0.0.0.0:8443", true, true},
        {"https://[::]:8443/", true, true},
        {"https://", false, false},
        {"https://localhost", false, false},
        {"https://localhost:70000", false, false},
        {"ftp://localhost:21", false, false},
        {"unix:", false, false},
        {"8010", false, false},
        {"", false, false},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        ASSERT_EQ(gw_listen_valid(table[i].entry, true), table[i].ok);
        ASSERT_EQ(gw_listen_valid(table[i].entry, false), table[i].ok && !table[i].needs_tls);
    }
}
