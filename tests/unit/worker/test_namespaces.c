#include "base/buf.h"
#include "base/mem.h"
#include "tests/test.h"
#include "tiers/record.h"
#include "worker/reuse/namespaces.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const char *name_of(struct wk_namespaces *n, const char *ns)
{
    static struct buf b;
    buf_clear(&b);
    ASSERT_OK(wk_namespaces_put(n, record_ns_hash(ns), &b));
    return buf_cstr(&b);
}

/* As --quota and kvblendctl --namespace are written: what is shown can be typed. */
TEST(names_are_written_as_they_are_typed)
{
    static const char *const typed[][2] = {{"acme", "\"acme\""},
                                           {"acme/team", "\"acme/team\""},
                                           {"/team", "\"/team\""},
                                           {"/", "\"/\""},
                                           {"", "\"/\""}};
    struct wk_namespaces *n;
    ASSERT_OK(wk_namespaces_create(&n));
    for (size_t i = 0; i < sizeof typed / sizeof *typed; i++) {
        char ns[512];
        ASSERT_OK(wk_ns_parse(typed[i][0], ns, sizeof ns));
        if (*ns) ASSERT_STREQ(name_of(n, ns), "null");
        wk_namespaces_note(n, ns);
        wk_namespaces_note(n, ns);
        ASSERT_STREQ(name_of(n, ns), typed[i][1]);
    }
    ASSERT_STREQ(name_of(n, "acme"), "\"acme\"");
    wk_namespaces_note(n, "quote\"d");
    ASSERT_STREQ(name_of(n, "quote\"d"), "\"quote\\\"d\"");
    wk_namespaces_destroy(n);
    wk_namespaces_note(NULL, "acme");
    ASSERT_STREQ(name_of(NULL, "acme"), "null");
}

/* Whoever sends a new name with every request takes no more memory, and never another's name. */
TEST(many_names)
{
    struct wk_namespaces *n;
    char ns[32];
    unsigned known = 0;
    ASSERT_OK(wk_namespaces_create(&n));
    for (unsigned i = 0; i < 20000; i++) {
        (void)snprintf(ns, sizeof ns, "tenant-%u", i);
        wk_namespaces_note(n, ns);
        ASSERT_TRUE(strstr(name_of(n, ns), ns) != NULL);
    }
    for (unsigned i = 0; i < 20000; i++) {
        char want[40];
        (void)snprintf(ns, sizeof ns, "tenant-%u", i);
        (void)snprintf(want, sizeof want, "\"%s\"", ns);
        const char *is = name_of(n, ns);
        ASSERT_TRUE(strcmp(is, "null") == 0 || strcmp(is, want) == 0);
        known += strcmp(is, want) == 0;
    }
    ASSERT_TRUE(known > 500 && known <= 1024);
    wk_namespaces_destroy(n);
}

/* Without memory a name stays unknown, and nothing else happens. */
TEST(out_of_memory)
{
    struct wk_namespaces *n;
    mem_fail_nth(1);
    ASSERT_ERR(wk_namespaces_create(&n), -ENOMEM);
    mem_fail_nth(0);
    ASSERT_OK(wk_namespaces_create(&n));
    mem_fail_nth(1);
    wk_namespaces_note(n, "acme");
    mem_fail_nth(0);
    ASSERT_STREQ(name_of(n, "acme"), "null");
    wk_namespaces_note(n, "acme");
    ASSERT_STREQ(name_of(n, "acme"), "\"acme\"");
    wk_namespaces_destroy(n);
}
