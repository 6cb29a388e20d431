/* What stands on the device, size classes, the extents' size, the write budget: all pure. */
#include "tests/unit/tiers/nvme_kit.h"

#include "base/mem.h"
#include "tests/test.h"

#include <xxhash.h>

static uint64_t le(const uint8_t *p, int n)
{
    uint64_t v = 0;
    for (int i = n - 1; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

static struct nvme_head some_head(void)
{
    return (struct nvme_head){.slot_pages = 0x0102,
                              .n_tokens = 0x11121314,
                              .epoch = 0x21222324,
                              .kind = TIER_PREFIX,
                              .key = {0x3132333435363738, 0x4142434445464748},
                              .device_id = 0x5152535455565758,
                              .generation = 0x6162636465666768,
                              .record_bytes = 0x0101000,
                              .ns_hash = 0x7172737475767778,
                              .ident_hash = 0x0182838485868788,
                              .created_ms = 0x0192939495969798,
                              .expires_ms = 0x01a2a3a4a5a6a7a8,
                              .header_sum = 0x01b2b3b4b5b6b7b8,
                              .off = 0x01c2c3c4c5c6c000,
                              .written_ms = 0x01d2d3d4d5d6d7d8};
}

TEST(golden_slot_header)
{
    uint8_t p[NVME_PAGE];
    struct nvme_head h = some_head(), back;
    memset(p, 0xee, sizeof p);
    nvme_head_put(p, &h);
    ASSERT_MEMEQ(p, "KVBSLOT\n", 8);
    ASSERT_EQ(le(p + 8, 4), 1);
    ASSERT_EQ(le(p + 12, 4), 0x0102);
    ASSERT_EQ(le(p + 16, 8), 0x5152535455565758);
    ASSERT_EQ(le(p + 24, 8), 0x6162636465666768);
    ASSERT_EQ(le(p + 32, 8), 0x3132333435363738);
    ASSERT_EQ(le(p + 40, 8), 0x4142434445464748);
    ASSERT_EQ(le(p + 48, 8), 0x0101000);
    ASSERT_EQ(le(p + 56, 4), 0x11121314);
    ASSERT_EQ(le(p + 60, 4), 2);
    ASSERT_EQ(le(p + 64, 8), 0x7172737475767778);
    ASSERT_EQ(le(p + 72, 8), 0x0182838485868788);
    ASSERT_EQ(le(p + 80, 8), 0x0192939495969798);
    ASSERT_EQ(le(p + 88, 8), 0x01a2a3a4a5a6a7a8);
    ASSERT_EQ(le(p + 96, 8), 0x01b2b3b4b5b6b7b8);
    ASSERT_EQ(le(p + 104, 4), 0x21222324);
    ASSERT_EQ(le(p + 108, 4), 0);
    ASSERT_EQ(le(p + 112, 8), 0x01c2c3c4c5c6c000);
    ASSERT_EQ(le(p + 120, 8), 0x01d2d3d4d5d6d7d8);
    ASSERT_EQ(le(p + 128, 8), XXH3_64bits(p, 128));
    ASSERT_EQ(le(p + 128, 8), 0xecd756433e9eba4d);
    for (size_t i = 136; i < sizeof p; i++)
        ASSERT_EQ(p[i], 0);
    ASSERT_OK(nvme_head_get(p, &back));
    ASSERT_EQ(back.generation, h.generation);
    ASSERT_EQ(back.kind, TIER_PREFIX);
    /* Older writers had a predicted cost there. */
    memcpy(p + 108, (const float[]){1.5f}, 4);
    memcpy(p + 128, (const uint64_t[]){XXH3_64bits(p, 128)}, 8);
    ASSERT_OK(nvme_head_get(p, &back));
    ASSERT_EQ(back.generation, h.generation);
}

TEST(slot_header_flips)
{
    uint8_t p[NVME_PAGE];
    struct nvme_head h = some_head(), back;
    for (unsigned bit = 0; bit < 136 * 8; bit++) {
        nvme_head_put(p, &h);
        p[bit / 8] ^= (uint8_t)(1u << bit % 8);
        ASSERT_TRUE(nvme_head_get(p, &back) < 0);
    }
    memset(p, 0, sizeof p);
    ASSERT_ERR(nvme_head_get(p, &back), -ENOENT);
    nvme_head_put(p, &h);
    p[8] = 2;
    ASSERT_ERR(nvme_head_get(p, &back), -ESTALE);
    h.record_bytes = 0x0102 * 4096; /* more than the slot holds */
    nvme_head_put(p, &h);
    ASSERT_ERR(nvme_head_get(p, &back), -EBADMSG);
}

TEST(golden_superblock)
{
    static struct nvme_super s = {.seq = 5,
                                  .device_id = 0x5152535455565758,
                                  .capacity_bytes = NVME_DATA_OFF + (3u << 20) + 4096,
                                  .extent_bytes = 1 << 20,
                                  .n_extents = 3,
                                  .owner_pid = 77,
                                  .extent = {{0x11, 7}, {0, 0}, {0x80, 9}}};
    uint8_t *p = (uint8_t *)&s;
    ASSERT_EQ(nvme_super_bytes(3), 8192);
    nvme_super_seal(&s);
    ASSERT_MEMEQ(p, "KVBNVME\n", 8);
    ASSERT_EQ(le(p + 8, 4), 1);
    ASSERT_EQ(le(p + 12, 4), 3);
    ASSERT_EQ(le(p + 16, 8), 5);
    ASSERT_EQ(le(p + 24, 8), 0x5152535455565758);
    ASSERT_EQ(le(p + 32, 8), s.capacity_bytes);
    ASSERT_EQ(le(p + 40, 8), 1 << 20);
    ASSERT_EQ(le(p + 48, 8), 77);
    ASSERT_EQ(le(p + 56, 8), 0xd751affb1a8cc8a3);
    ASSERT_EQ(le(p + 4096, 8), 0x11 | 7ull << 32);
    ASSERT_EQ(le(p + 4104, 8), 0);
    ASSERT_EQ(le(p + 4112, 8), 0x80 | 9ull << 32);
    for (unsigned byte = 0; byte < 4096 + 24; byte += byte == 63 ? 4096 - 63 : 1) {
        p[byte] ^= 4;
        ASSERT_TRUE(nvme_super_check(&s) < 0);
        p[byte] ^= 4;
    }
    ASSERT_OK(nvme_super_check(&s));
}

/* A slot holds its record; where more than eight fit into an extent at most 12.5 % (or a page) is
 * lost, else no more than an equal share of the extent. */
TEST(classes)
{
    uint64_t seed = 3;
    for (int i = 0; i < 200000; i++) {
        uint64_t extent = UINT64_C(1) << (12 + test_rand(&seed) % 23);
        uint64_t bytes = (1 + test_rand(&seed) % (extent / 4096)) * 4096;
        if (i % 2) bytes = (1 + test_rand(&seed) % (bytes / 4096)) * 4096;
        unsigned class, again;
        uint32_t pages = nvme_class_of(bytes, extent, &class);
        if (bytes > extent - 4096) {
            ASSERT_EQ(pages, 0);
            continue;
        }
        uint64_t need = bytes / 4096 + 1, n = extent / 4096 / pages;
        ASSERT_TRUE(pages >= need && n >= 1);
        if (n > 8)
            ASSERT_TRUE((pages - need) * 8 <= need || pages <= 16);
        else
            ASSERT_EQ(pages, extent / 4096 / n);
        if (extent / 4096 / need <= 8) ASSERT_EQ(n, extent / 4096 / need); /* none is lost */
        /* What the superblock stores leads back to the same class. */
        ASSERT_EQ(nvme_class_of(((uint64_t)pages - 1) * 4096, extent, &again), pages);
        ASSERT_EQ(again, class);
    }
}

TEST(extent_size)
{
    const uint64_t M = 1 << 20, G = 1 << 30;
    ASSERT_EQ(nvme_extent_auto(100 * G, 0), 1 * G);
    ASSERT_EQ(nvme_extent_auto(64 * G, 0), 1 * G);
    ASSERT_EQ(nvme_extent_auto(10 * G, 0), 128 * M);
    ASSERT_EQ(nvme_extent_auto(1 * G, 0), 16 * M);
    ASSERT_EQ(nvme_extent_auto(1 * G, 12 * M), 64 * M);
    ASSERT_EQ(nvme_extent_auto(100 * M, 0), 8 * M);       /* at least eight */
    ASSERT_EQ(nvme_extent_auto(1 * G, 900 * M), 64 * M);  /* the same */
    ASSERT_EQ(nvme_extent_auto(64 * 1024 * G, 0), 4 * G); /* the table is full */
    ASSERT_EQ(nvme_extent_auto(1 * G, 65 * M), 128 * M);  /* but one has to fit */
    for (uint64_t c = M; c < 1024 * G; c = c * 5 / 4) {
        const uint64_t e = nvme_extent_auto(c, 40 * M), n = (c - NVME_DATA_OFF) / e;
        ASSERT_TRUE(n >= 8 || (n >= 2 && e == 64 * M));
        ASSERT_TRUE(e >= 40 * M || c < 2 * 64 * M + NVME_DATA_OFF);
    }
}

static struct tier_key key(uint64_t i)
{
    struct tier_key k = {XXH3_64bits_withSeed(&i, 8, 1), XXH3_64bits_withSeed(&i, 8, 2)};
    return k;
}

TEST(budget)
{
    static struct nvme_budget b;
    const uint64_t day = 86400ull * 1000000000u;
    struct tier_key k1 = key(1), k2 = key(2), k3 = key(3);
    nvme_budget_init(&b, 1000, 5);
    ASSERT_EQ(nvme_budget_admit(&b, &k1, 5), 0);
    nvme_budget_spend(&b, 690);
    ASSERT_EQ(nvme_budget_admit(&b, &k2, 5), 0);
    nvme_budget_spend(&b, 20); /* 71 %: only what was seen */
    ASSERT_EQ(nvme_budget_admit(&b, &k3, 5), 1 + TIER_REJECT_ONCE);
    ASSERT_EQ(nvme_budget_admit(&b, &k3, 5), 0);
    ASSERT_EQ(nvme_budget_admit(&b, &k1, 5), 0);
    nvme_budget_spend(&b, 400);
    ASSERT_EQ(nvme_budget_admit(&b, &k1, 5), 1 + TIER_REJECT_BUDGET);
    ASSERT_NEAR(nvme_budget_ratio(&b, 5), 1.11, 1e-9);
    ASSERT_NEAR(nvme_budget_ratio(&b, 5 + day / 2), 0.61, 1e-6);
    ASSERT_NEAR(nvme_budget_ratio(&b, 5 + 3 * day), 0, 1e-9);
    nvme_budget_init(&b, TIER_NVME_NO_BUDGET, 5);
    nvme_budget_spend(&b, UINT64_MAX / 2);
    ASSERT_EQ(nvme_budget_admit(&b, &k1, 5), 0);
    ASSERT_NEAR(nvme_budget_ratio(&b, 5), 0, 0);
}

/* The sketch forgets by halving: a key that was seen once is new again two halvings later. */
TEST(budget_forgets)
{
    static struct nvme_budget b;
    nvme_budget_init(&b, 1000, 5);
    nvme_budget_spend(&b, 800);
    unsigned again = 0, fresh = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        struct tier_key k = key(i);
        fresh += nvme_budget_admit(&b, &k, 5) != 0;
        again += nvme_budget_admit(&b, &k, 5) == 0;
    }
    ASSERT_EQ(again, 1000);
    ASSERT_TRUE(fresh > 950); /* the others collide in all four rows */
    unsigned forgotten = 0;
    nvme_budget_init(&b, 1000, 5);
    nvme_budget_spend(&b, 800);
    struct tier_key k = key(1);
    ASSERT_TRUE(nvme_budget_admit(&b, &k, 5) != 0);
    for (uint64_t i = 0; i < 2; i++) {
        b.n_added = 8191;
        struct tier_key other = key(5000 + i);
        (void)nvme_budget_admit(&b, &other, 5);
    }
    forgotten = nvme_budget_admit(&b, &k, 5) != 0;
    ASSERT_EQ(forgotten, 1);
}
