#include "gateway/translate/store.h"

#include "tests/test.h"

#include <errno.h>
#include <stdio.h>

static int put(struct gw_store *s, const char *owner, const char *id, size_t bytes)
{
    struct buf said = BUF_INIT, response = BUF_INIT;
    for (size_t i = 0; i < bytes; i++)
        ASSERT_OK(buf_addc(&said, 'x'));
    ASSERT_OK(buf_adds(&response, id));
    int r = gw_store_put(s, owner, id, &said, &response);
    buf_fini(&said);
    buf_fini(&response);
    return r;
}

static int has(struct gw_store *s, const char *owner, const char *id)
{
    struct buf response = BUF_INIT;
    int r = gw_store_get(s, owner, id, NULL, &response);
    if (r == 1) ASSERT_STREQ(buf_cstr(&response), id);
    buf_fini(&response);
    return r;
}

TEST(belong_to_who_made_them)
{
    struct gw_store *s;
    ASSERT_OK(gw_store_create(8, 1 << 20, &s));
    ASSERT_OK(put(s, "a/", "one", 10));
    ASSERT_EQ(has(s, "a/", "one"), 1);
    ASSERT_EQ(has(s, "b/", "one"), 0);
    ASSERT_EQ(gw_store_drop(s, "b/", "one"), 0);
    ASSERT_EQ(gw_store_drop(s, "a/", "one"), 1);
    ASSERT_EQ(has(s, "a/", "one"), 0);
    gw_store_destroy(s);
}

TEST(bounds)
{
    struct gw_store *s;
    ASSERT_OK(gw_store_create(3, 80 << 10, &s));
    ASSERT_EQ(gw_store_entry_max(s), 10 << 10);
    ASSERT_EQ(put(s, "a/", "big", 10 << 10), -EMSGSIZE);
    ASSERT_OK(put(s, "a/", "1", 10));
    ASSERT_OK(put(s, "a/", "2", 10));
    ASSERT_OK(put(s, "a/", "3", 10));
    ASSERT_OK(put(s, "a/", "4", 10));
    ASSERT_EQ(has(s, "a/", "1"), 0); /* the oldest went */
    ASSERT_EQ(has(s, "a/", "2") + has(s, "a/", "3") + has(s, "a/", "4"), 3);
    gw_store_destroy(s);
}

TEST(a_flood_takes_its_own)
{
    struct gw_store *s;
    char id[16];
    ASSERT_OK(gw_store_create(100, 80 << 10, &s));
    ASSERT_OK(put(s, "quiet/", "q", 100));
    for (int i = 0; i < 50; i++) {
        (void)snprintf(id, sizeof id, "%d", i);
        ASSERT_OK(put(s, "loud/", id, 8 << 10));
    }
    ASSERT_EQ(has(s, "quiet/", "q"), 1);
    ASSERT_EQ(has(s, "loud/", "49"), 1);
    ASSERT_EQ(has(s, "loud/", "0"), 0);
    gw_store_destroy(s);
}

TEST(none_is_kept)
{
    struct gw_store *s;
    ASSERT_OK(gw_store_create(0, 1 << 20, &s));
    ASSERT_EQ(gw_store_entry_max(s), 0);
    ASSERT_EQ(put(s, "a/", "1", 1), -EMSGSIZE);
    gw_store_destroy(s);
    ASSERT_EQ(gw_store_entry_max(NULL), 0);
    gw_store_destroy(NULL);
}
