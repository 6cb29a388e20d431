#include "base/sha256.h"
#include "tests/test.h"

static void hex(const void *data, size_t len, char *out)
{
    uint8_t h[32];
    sha256(data, len, h);
    for (int i = 0; i < 32; i++)
        (void)snprintf(out + 2 * i, 3, "%02x", h[i]);
}

TEST(vectors_of_the_standard)
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
