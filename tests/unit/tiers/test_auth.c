/* Tags: what they are, byte for byte, and that every byte, the length and the head count. */
#include "tests/test.h"
#include "tiers/auth.c" /* NOLINT: the two ways to the same hash */

enum { N = 200000 };
static uint8_t bytes[N];

static struct auth *make(uint8_t first)
{
    uint8_t key[AUTH_KEY_BYTES];
    struct auth *a;
    for (size_t i = 0; i < sizeof key; i++)
        key[i] = (uint8_t)(first + i);
    for (size_t i = 0; i < N; i++)
        bytes[i] = (uint8_t)(7 * i + i / 256);
    ASSERT_OK(auth_create(key, &a));
    return a;
}

static void expect(const uint8_t *got, size_t n, const char *hex)
{
    char text[2 * DIGEST_BYTES + 1];
    for (size_t i = 0; i < n; i++)
        (void)snprintf(text + 2 * i, 3, "%02x", got[i]);
    ASSERT_STREQ(text, hex);
}

/* By another implementation: Python's hmac, hashlib and whole numbers. */
TEST(golden_tags)
{
    static const struct {
        size_t n;
        const char *tag;
    } want[] = {{0, "f2b1c9ed92d690c23f693985bfdf9ece"},
                {1, "7a879cf1c66476cefb58b435f90def50"},
                {4096, "ef5ed7b473d7f281194df828241cd2b6"},
                {4100, "464826dfdc30cdfe2795551409917f12"},
                {N, "5caa7c725104bbe3ae2fca9bf15c85b8"}};
    struct auth *a = make(0);
    uint8_t tag[AUTH_TAG_BYTES], key[AUTH_KEY_BYTES];
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        ASSERT_OK(auth_tag(a, "head", 4, bytes, want[i].n, tag));
        expect(tag, sizeof tag, want[i].tag);
    }
    a->block = block_plain;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        ASSERT_OK(auth_tag(a, "head", 4, bytes, want[i].n, tag));
        expect(tag, sizeof tag, want[i].tag);
    }
    auth_derive("correct horse", "kvblend records 1", key);
    expect(key, sizeof key, "641a9ca7b26a1053569b7b9c50162107940fb088a700c55d120f7f0689a6b214");
    auth_destroy(a);
    auth_destroy(NULL);
}

static bool differs(const struct auth *a, const char *head, size_t n, const uint8_t *from)
{
    uint8_t tag[AUTH_TAG_BYTES];
    ASSERT_OK(auth_tag(a, head, 4, bytes, n, tag));
    return memcmp(tag, from, sizeof tag) != 0;
}

TEST(everything_counts)
{
    enum { M = 3 * BLOCK_BYTES - 100 };
    struct auth *a = make(0), *b = make(1);
    uint8_t tag[AUTH_TAG_BYTES];
    uint64_t seed = 5;
    ASSERT_OK(auth_tag(a, "head", 4, bytes, M, tag));
    ASSERT_TRUE(!differs(a, "head", M, tag));
    ASSERT_TRUE(differs(b, "head", M, tag));
    ASSERT_TRUE(differs(a, "Head", M, tag));
    ASSERT_TRUE(differs(a, "head", M - 1, tag));
    bytes[M] = 0; /* as what fills the last block up */
    ASSERT_TRUE(differs(a, "head", M + 1, tag));
    for (int i = 0; i < 4000; i++) {
        size_t at = i < 8 ? (size_t)i : i < 16 ? M - 1 - (size_t)(i - 8) : test_rand(&seed) % M;
        uint8_t bit = (uint8_t)(1u << test_rand(&seed) % 8);
        bytes[at] ^= bit;
        ASSERT_TRUE(differs(a, "head", M, tag));
        bytes[at] ^= bit;
    }
    /* Blocks in another order, as whoever moves them about would have them. */
    uint8_t block[BLOCK_BYTES];
    memcpy(block, bytes, sizeof block);
    memcpy(bytes, bytes + BLOCK_BYTES, sizeof block);
    memcpy(bytes + BLOCK_BYTES, block, sizeof block);
    ASSERT_TRUE(differs(a, "head", M, tag));
    auth_destroy(a);
    auth_destroy(b);
}
