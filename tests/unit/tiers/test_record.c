#include "base/mem.h"
#include "tests/test.h"
#include "tiers/index.h"
#include "tiers/record.h"

#include <xxhash.h>

static const struct tier_ident ident = {.model = {0x1111, 0x2222},
                                        .tokenizer = {0x3333, 0x4444},
                                        .rope_regime = 7,
                                        .dtype = KN_BF16,
                                        .sink_token = 1,
                                        .L = 3,
                                        .G = 2,
                                        .K = 4};
static const int32_t tokens[5] = {10, 20, 30, 40, 50};
static const float scores[5] = {0.5f, 1, 2, 3, 4};

static struct record_desc desc_of(uint32_t n)
{
    return (struct record_desc){.key = tier_key_chunk(&ident, "acme", tokens, n),
                                .ns_hash = 0x44ad98655d8858e1,
                                .ident_hash = record_ident_hash(&ident),
                                .created_ms = 1700000000000ull,
                                .kind = TIER_CHUNK,
                                .dtype = ident.dtype,
                                .L = ident.L,
                                .G = ident.G,
                                .K = ident.K,
                                .n_tokens = n,
                                .sink_token = ident.sink_token,
                                .n_contexts = 3,
                                .context_tokens = 1200};
}

/* Its parts, end to end as on a device. */
static uint8_t *const *parts(uint8_t *rec, const struct record_layout *l)
{
    static uint8_t *part[8];
    ASSERT_TRUE(l->n_parts <= 8);
    for (uint32_t i = 0; i < l->n_parts; i++)
        part[i] = rec + record_part_off(l, i);
    return part;
}

/* A sealed record whose payload bytes are a function of their place. */
static uint8_t *make(struct record_desc *d, struct record_layout *l)
{
    *d = desc_of(5);
    ASSERT_OK(record_layout(d, l));
    uint8_t *p = mem_zalloc(l->record_bytes);
    ASSERT_TRUE(p);
    record_init(p, d, l, tokens);
    memcpy(p + l->score_off, scores, sizeof scores);
    for (uint32_t g = 0; g < l->n_groups; g++)
        for (uint64_t i = 0; i < l->group_bytes; i++)
            record_group(parts(p, l), l, g)[i] = (uint8_t)(37 * g + 11 * i + 3);
    record_seal(parts(p, l), l);
    return p;
}

static uint64_t le(const uint8_t *p, int n)
{
    uint64_t v = 0;
    for (int i = n - 1; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

TEST(golden_bytes)
{
    struct record_desc d;
    struct record_layout l;
    uint8_t *p = make(&d, &l);
    ASSERT_EQ(l.record_bytes, 3 * 4096);
    ASSERT_MEMEQ(p, "KVBREC\r\n", 8);
    ASSERT_EQ(le(p + 8, 4), 4);
    ASSERT_EQ(le(p + 12, 4), 4096);
    ASSERT_EQ(le(p + 16, 8), 12288);
    ASSERT_EQ(le(p + 24, 8), 0x0c33191b09f64059ull);
    ASSERT_EQ(le(p + 32, 8), 0x3c2af4b2edaa291aull);
    ASSERT_EQ(le(p + 40, 8), 0x44ad98655d8858e1ull);
    ASSERT_EQ(le(p + 48, 8), 0xaad50a3b4a8cdb0aull);
    static const uint32_t at56[] = {1 | 3 << 16, 3, 2, 4, 5, 1, 2, 144, 224, 256};
    for (size_t i = 0; i < sizeof at56 / sizeof *at56; i++)
        ASSERT_EQ(le(p + 56 + 4 * i, 4), at56[i]);
    ASSERT_EQ(le(p + 96, 8), 1700000000000ll);
    ASSERT_EQ(le(p + 104, 8), 0);
    ASSERT_EQ(le(p + 112, 4), 3);
    ASSERT_EQ(le(p + 116, 4), 1200);
    ASSERT_EQ(le(p + 120, 8), 0x9e80e15759029f7aull);
    ASSERT_EQ(le(p + 128, 8) | le(p + 136, 8), 0);
    ASSERT_EQ(le(p + 144, 8), 4096);
    ASSERT_EQ(le(p + 152, 8), 160);
    ASSERT_EQ(le(p + 160, 8), 0xfe3cf35150091a3eull);
    ASSERT_EQ(le(p + 168, 8) | le(p + 176, 8), 0);
    ASSERT_EQ(le(p + 184, 8), 8192);
    ASSERT_EQ(le(p + 200, 8), 0x10bab115ba92a4e1ull);
    for (int i = 0; i < 5; i++)
        ASSERT_EQ(le(p + 224 + 4 * i, 4), tokens[i]);
    ASSERT_MEMEQ(p + 256, scores, sizeof scores);
    mem_free(p);
}

/* The same record under a key: its tags, and all else but the header's checksum as before. By
 * another implementation, too: Python's hmac and whole numbers. */
TEST(golden_tags)
{
    static const uint8_t key[AUTH_KEY_BYTES] = {1, 2, 3};
    struct record_desc d;
    struct record_layout l;
    struct record_view v;
    struct auth *a;
    uint8_t *p = make(&d, &l);
    ASSERT_OK(auth_create(key, &a));
    ASSERT_OK(record_sign(a, parts(p, &l), &l));
    ASSERT_OK(record_open(p, l.record_bytes, &v));
    ASSERT_EQ(le(p + 128, 8), 0xa1017f4155ad37e9ull);
    ASSERT_EQ(le(p + 136, 8), 0xc63eab4a0f34ab97ull);
    ASSERT_EQ(le(p + 168, 8), 0x782b3b03587eb27ull);
    ASSERT_EQ(le(p + 208, 8), 0x5ca86d2a14d16edfull);
    ASSERT_EQ(le(p + 160, 8), 0xfe3cf35150091a3eull);
    ASSERT_OK(record_auth_header(a, p, &l));
    ASSERT_OK(record_auth_group(a, parts(p, &l), &l, 1));
    /* A group's tag does not do in another's place. */
    memcpy(p + 208, p + 168, AUTH_TAG_BYTES);
    memcpy(record_group(parts(p, &l), &l, 1), record_group(parts(p, &l), &l, 0), l.group_bytes);
    ASSERT_ERR(record_auth_group(a, parts(p, &l), &l, 1), -EBADMSG);
    ASSERT_ERR(record_auth_header(a, p, &l), -EBADMSG);
    auth_destroy(a);
    mem_free(p);
}

TEST(round_trip)
{
    struct record_desc d;
    struct record_layout l;
    struct record_view v;
    uint8_t *p = make(&d, &l);
    ASSERT_EQ(record_open(p, l.record_bytes, &v), 0);
    ASSERT_MEMEQ(&v.desc.key, &d.key, sizeof d.key);
    ASSERT_EQ(v.desc.n_tokens, 5);
    ASSERT_EQ(v.desc.dtype, KN_BF16);
    ASSERT_EQ(v.desc.ident_hash, d.ident_hash);
    ASSERT_EQ(v.desc.n_contexts, 3);
    ASSERT_EQ(v.desc.context_tokens, 1200);
    ASSERT_MEMEQ(p + v.layout.score_off, scores, sizeof scores);
    ASSERT_MEMEQ(v.tok, tokens, sizeof tokens);
    for (uint32_t g = 0; g < l.n_groups; g++)
        ASSERT_EQ(record_check_group(parts(p, &l), &v.layout, g), 0);
    for (uint64_t cut = 0; cut < l.header_bytes; cut += 64)
        ASSERT_ERR(record_open(p, cut, &v), -EBADMSG);
    mem_free(p);
}

/* Every byte of the header region, every bit: the record is refused. */
TEST(any_flipped_header_bit_is_refused)
{
    struct record_desc d;
    struct record_layout l;
    struct record_view v;
    uint8_t *p = make(&d, &l);
    for (uint32_t i = 0; i < l.header_bytes; i++)
        for (int bit = 0; bit < 8; bit++) {
            p[i] ^= (uint8_t)(1u << bit);
            int r = record_open(p, l.record_bytes, &v);
            ASSERT_TRUE(r == -EBADMSG || r == -ESTALE);
            p[i] ^= (uint8_t)(1u << bit);
        }
    ASSERT_EQ(record_open(p, l.record_bytes, &v), 0);
    for (uint32_t g = 0; g < l.n_groups; g++)
        for (uint64_t i = 0; i < l.group_bytes; i++) {
            record_group(parts(p, &l), &l, g)[i] ^= 1;
            for (uint32_t h = 0; h < l.n_groups; h++)
                ASSERT_EQ(record_check_group(parts(p, &l), &l, h), h == g ? -EBADMSG : 0);
            record_group(parts(p, &l), &l, g)[i] ^= 1;
        }
    mem_free(p);
}

/* Hostile headers that carry a right checksum never lead outside the bytes given. */
TEST(lying_headers_with_a_right_checksum)
{
    struct record_desc d;
    struct record_layout l;
    struct record_view v;
    uint64_t rng = 42;
    uint8_t *p = make(&d, &l), *good = mem_alloc(l.record_bytes);
    memcpy(good, p, l.record_bytes);
    for (int i = 0; i < 20000; i++) {
        memcpy(p, good, l.record_bytes);
        uint32_t at = 56 + (uint32_t)(test_rand(&rng) % 10) * 4;
        uint32_t val = (uint32_t)test_rand(&rng) >> (test_rand(&rng) % 32);
        memcpy(p + at, &val, 4);
        record_seal(parts(p, &l), &l);
        if (record_open(p, l.record_bytes, &v) == 0) {
            ASSERT_TRUE(v.layout.record_bytes <= l.record_bytes);
            ASSERT_TRUE(v.layout.token_off + 4ull * v.desc.n_tokens <= v.layout.header_bytes);
            for (uint32_t g = 0; g < v.layout.n_groups; g++)
                (void)record_check_group(parts(p, &l), &v.layout, g);
        }
    }
    mem_free(good);
    mem_free(p);
}

TEST(layout_limits)
{
    struct record_layout l;
    struct record_desc d = desc_of(5);
    d.n_tokens = 0;
    ASSERT_ERR(record_layout(&d, &l), -EINVAL);
    d = desc_of(5);
    d.n_tokens = RECORD_TOKENS_MAX + 1;
    ASSERT_ERR(record_layout(&d, &l), -ERANGE);
    d = desc_of(5);
    d.G = d.K = RECORD_DIM_MAX;
    ASSERT_ERR(record_layout(&d, &l), -ERANGE);
    d = desc_of(5);
    d.L = 30, d.G = 3, d.K = 64, d.n_tokens = 512;
    ASSERT_EQ(record_layout(&d, &l), 0);
    ASSERT_EQ(l.group_bytes, 2 * 512 * 3 * 64 * 2);
    ASSERT_EQ(l.group_stride % RECORD_ALIGN, 0);
    ASSERT_EQ(l.n_groups, 29);
}

/* 8 bits and a scale per head; the scales are under the group's checksum like all of it. */
TEST(q8_records)
{
    struct record_layout l;
    struct record_view v;
    struct record_desc d = desc_of(5);
    d.dtype = KN_Q8;
    ASSERT_OK(record_layout(&d, &l));
    ASSERT_EQ(l.group_bytes, 2 * 5 * 2 * (4 + 2));
    uint8_t *p = mem_zalloc(l.record_bytes);
    record_init(p, &d, &l, tokens);
    for (uint32_t g = 0; g < l.n_groups; g++)
        memset(record_group(parts(p, &l), &l, g), 7, l.group_bytes);
    record_seal(parts(p, &l), &l);
    ASSERT_EQ(le(p + 58, 2), 4);
    ASSERT_OK(record_open(p, l.record_bytes, &v));
    ASSERT_EQ(v.desc.dtype, KN_Q8);
    for (uint64_t i = 0; i < l.group_bytes; i++) {
        record_group(parts(p, &l), &l, 1)[i] ^= 0x80;
        ASSERT_ERR(record_check_group(parts(p, &l), &v.layout, 1), -EBADMSG);
        record_group(parts(p, &l), &l, 1)[i] ^= 0x80;
        ASSERT_OK(record_check_group(parts(p, &l), &v.layout, 1));
    }
    d.L = 30, d.G = 3, d.K = 64, d.n_tokens = 512;
    ASSERT_OK(record_layout(&d, &l));
    ASSERT_EQ(l.group_bytes, 2 * 512 * 3 * 66);
    mem_free(p);
}

/* A sound record of version 1: another layout behind the same magic. */
TEST(another_version_is_stale)
{
    struct record_desc d;
    struct record_layout l;
    struct record_view v;
    uint8_t *p = make(&d, &l);
    for (uint8_t version = 0; version < 16; version++) {
        p[8] = version;
        record_seal(parts(p, &l), &l);
        ASSERT_ERR(record_open(p, l.record_bytes, &v), version == RECORD_VERSION ? 0 : -ESTALE);
    }
    mem_free(p);
}

TEST(ghosts_are_bounded_and_keep_the_newest)
{
    struct ghost_table g;
    ASSERT_OK(ghost_init(&g, 16));
    for (uint64_t i = 0; i < 1000; i++) {
        struct tier_key k = {i, i};
        ghost_add(&g, &k, i % 2 ? STORE_MISS_EVICTED : STORE_MISS_CORRUPT, 0);
    }
    for (uint64_t i = 0; i < 1000; i++) {
        struct tier_key k = {i, i};
        ASSERT_EQ(ghost_why(&g, &k), i < 1000 - 64 ? STORE_MISS_NEVER
                                     : i % 2       ? STORE_MISS_EVICTED
                                                   : STORE_MISS_CORRUPT);
        ghost_remove(&g, &k);
        ASSERT_EQ(ghost_why(&g, &k), STORE_MISS_NEVER);
    }
    ghost_fini(&g);
}

/* Whoever knows XXH3's secret finds names for any sum of it: eight bytes that cancel a part of the
 * secret hide the eight behind them. What a tenant's name is counted under must not be found so. */
TEST(nobody_chooses_what_his_namespace_is_counted_under)
{
    static const char *const names[] = {"b\x1f"
                                        "a name of mine\xde\xd4\x6d\xe9\x83\x90\x97\xdb"
                                        "11111111",
                                        "b\x1f"
                                        "a name of mine\xde\xd4\x6d\xe9\x83\x90\x97\xdb"
                                        "22222222"};
    ASSERT_TRUE(XXH3_64bits(names[0], 32) == XXH3_64bits(names[1], 32));
    ASSERT_TRUE(record_ns_hash(names[0]) != record_ns_hash(names[1]));
}
