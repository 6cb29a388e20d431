#include "gateway/keys.h"
#include "tests/test.h"

#include <unistd.h>

static void hex(const void *data, size_t len, char *out)
{
    uint8_t h[32];
    gw_sha256(data, len, h);
    for (int i = 0; i < 32; i++)
        (void)snprintf(out + 2 * i, 3, "%02x", h[i]);
}

TEST(sha256_of_the_standard)
{
    char out[65], *million = calloc(1, 1000000);
    hex("", 0, out);
    ASSERT_STREQ(out, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    hex("abc", 3, out);
    ASSERT_STREQ(out, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56, out);
    ASSERT_STREQ(out, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    memset(million, 'a', 1000000);
    hex(million, 1000000, out);
    ASSERT_STREQ(out, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    free(million);
}

TEST(no_keys_let_everybody_in)
{
    struct gw_keys *k;
    char id[9];
    ASSERT_OK(gw_keys_create(NULL, 0, NULL, &k, NULL));
    ASSERT_EQ(gw_keys_check(k, NULL, NULL, id), 1);
    ASSERT_STREQ(id, "");
    gw_keys_free(k);
}

TEST(only_whole_keys_match)
{
    char *list[] = {"one", "two"};
    struct gw_keys *k;
    char id[9];
    ASSERT_OK(gw_keys_create(list, 2, NULL, &k, NULL));
    ASSERT_EQ(gw_keys_check(k, "Bearer two", NULL, id), 1);
    ASSERT_EQ(strlen(id), 8);
    ASSERT_EQ(gw_keys_check(k, "bearer  one", NULL, id), 1);
    ASSERT_EQ(gw_keys_check(k, NULL, "one", id), 1);
    static const char *const bad[] = {"Bearer tw", "Bearer two ", "two",
                                      "Bearer ",   "Basic two",   ""};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        ASSERT_EQ(gw_keys_check(k, bad[i], NULL, id), 0);
    ASSERT_EQ(gw_keys_check(k, NULL, NULL, id), 0);
    gw_keys_free(k);
}

TEST(key_file)
{
    char path[] = "/tmp/kvb-keys-XXXXXX", id[9];
    struct gw_keys *k;
    struct err err;
    int fd = mkstemp(path);
    ASSERT_EQ(gw_keys_create(NULL, 0, path, &k, &err), -EINVAL); /* empty: nobody could get in */
    static const char text[] = "# comment\n\n  spaced \r\nlast";
    ASSERT_EQ(write(fd, text, sizeof text - 1), sizeof text - 1);
    (void)close(fd);
    ASSERT_OK(gw_keys_create(NULL, 0, path, &k, &err));
    ASSERT_EQ(gw_keys_count(k), 2);
    ASSERT_EQ(gw_keys_check(k, "Bearer spaced", NULL, id), 1);
    ASSERT_EQ(gw_keys_check(k, "Bearer last", NULL, id), 1);
    gw_keys_free(k);
    (void)unlink(path);
    ASSERT_EQ(gw_keys_create(NULL, 0, path, &k, &err), -ENOENT);
}
