#include "tests/test.h"
#include "tiers/key.h"

static const struct tier_ident ident = {.model = {0x1111, 0x2222},
                                        .tokenizer = {0x3333, 0x4444},
                                        .rope_regime = 5,
                                        .dtype = KN_BF16,
                                        .sink_token = 1,
                                        .L = 4,
                                        .G = 2,
                                        .K = 8};
static const int32_t tokens[5] = {10, 20, 30, 40, 50};

TEST(whatever_belongs_to_the_identity_changes_the_key)
{
    struct tier_key a = tier_key_chunk(&ident, "ns", tokens, 5), b;
    char hex[33];
    tier_key_hex(&a, hex);
    ASSERT_EQ(strlen(hex), 32);
    ASSERT_EQ(tier_key_parse(hex, &b), 0);
    ASSERT_MEMEQ(&a, &b, sizeof a);
    ASSERT_ERR(tier_key_parse("12", &b), -EINVAL);
    ASSERT_ERR(tier_key_parse("0123456789abcdef0123456789abcdef0", &b), -EINVAL);
    ASSERT_ERR(tier_key_parse("0123456789abcdeg0123456789abcdef", &b), -EINVAL);
    /* Whatever belongs to the identity changes the key. */
    struct tier_ident other = ident;
    struct tier_key k[12];
    size_t n = 0;
    k[n++] = a;
    k[n++] = tier_key_chunk(&ident, "ns2", tokens, 5);
    k[n++] = tier_key_chunk(&ident, "ns", tokens, 4);
    k[n++] = tier_key_prefix(&ident, "ns", NULL, tokens, 5);
    k[n++] = tier_key_prefix(&ident, "ns", &a, tokens, 5);
    other.model[1]++;
    k[n++] = tier_key_chunk(&other, "ns", tokens, 5);
    other = ident, other.tokenizer[0]++;
    k[n++] = tier_key_chunk(&other, "ns", tokens, 5);
    other = ident, other.rope_regime++;
    k[n++] = tier_key_chunk(&other, "ns", tokens, 5);
    other = ident, other.dtype = KN_F16;
    k[n++] = tier_key_chunk(&other, "ns", tokens, 5);
    other = ident, other.sink_token = UINT32_MAX;
    k[n++] = tier_key_chunk(&other, "ns", tokens, 5);
    other = ident, other.L++;
    k[n++] = tier_key_chunk(&other, "ns", tokens, 5);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++)
            ASSERT_TRUE(memcmp(&k[i], &k[j], sizeof k[i]) != 0);
}

static void expect(const struct tier_key *k, const char *hex)
{
    char got[33];
    tier_key_hex(k, got);
    ASSERT_STREQ(got, hex);
}

/* Keys name records on disks and in Redis: another build must compute the same. */
TEST(keys_are_stable)
{
    struct tier_ident id = ident;
    struct tier_key a = tier_key_chunk(&id, "ns", tokens, 5);
    expect(&a, "0f4720c29b6d2fe404d2380747c8469d");
    struct tier_key p = tier_key_prefix(&id, "ns", &a, tokens, 5);
    expect(&p, "04e35daacd62c96c2e3526a2a0c420bc");
    tier_secret("correct horse", id.secret);
    a = tier_key_chunk(&id, "ns", tokens, 5);
    expect(&a, "fb1174d0c668c529822e5c8b02a11e7b");
}

TEST(a_secret_separates_installations)
{
    struct tier_ident id = ident, other = ident, none = ident;
    tier_secret("one", id.secret);
    tier_secret("two", other.secret);
    tier_secret("", none.secret);
    ASSERT_TRUE(none.secret[0] == 0 && none.secret[1] == 0);
    struct tier_key k[5] = {
        tier_key_chunk(&id, "ns", tokens, 5), tier_key_chunk(&other, "ns", tokens, 5),
        tier_key_chunk(&none, "ns", tokens, 5), tier_key_chunk(&id, "n", tokens, 5),
        tier_key_chunk(&id, "", tokens, 5)};
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < i; j++)
            ASSERT_TRUE(!tier_key_same(&k[i], &k[j]));
    /* Either half alone counts. */
    other = id;
    other.secret[1] ^= 1;
    k[1] = tier_key_chunk(&other, "ns", tokens, 5);
    ASSERT_TRUE(!tier_key_same(&k[0], &k[1]));
}

/* A few thousand neighbours: no two keys alike, in the halves that tables index by neither. */
TEST(neighbours_do_not_collide)
{
    enum { N = 2000 };
    static struct tier_key k[N];
    int same_hi = 0, same_lo = 0;
    for (int i = 0; i < N; i++) {
        int32_t tok[2] = {i / 50, i % 50};
        k[i] = tier_key_chunk(&ident, "ns", tok, 2);
        for (int j = 0; j < i; j++) {
            same_hi += k[i].hi == k[j].hi;
            same_lo += k[i].lo == k[j].lo;
        }
    }
    ASSERT_EQ(same_hi, 0);
    ASSERT_EQ(same_lo, 0);
}
