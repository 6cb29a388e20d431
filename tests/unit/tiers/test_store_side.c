/* Sidecars: K of one layer that stays when the record sinks. */
#include "tests/test.h"
#include "tests/unit/tiers/store_kit.h"

enum { MIB = 1 << 20, LAYER = 2 };

static struct store *one_tier(uint64_t ram_bytes, bool remote, struct mock **ret)
{
    *ret = mock_create("low", remote);
    struct kit_tiers t = {.mock = {*ret}, .side_layer = LAYER, .n = 1};
    return kit_store(&kit_large, ram_bytes, &t);
}

static void sink(struct store *s, int chunk)
{
    struct tier_key k = kit_key(&s->ident, chunk);
    ASSERT_EQ(kit_put(s, chunk), 1);
    kit_flush(s);
    ASSERT_EQ(store_evict(s, &k, "ram"), 1);
}

static bool has(struct store *s, int chunk)
{
    struct tier_key k = kit_key(&s->ident, chunk);
    return store_has_side(s, &k);
}

/* Before anything but the header has come back. */
TEST(is_there_before_the_record)
{
    for (int remote = 0; remote < 2; remote++) {
        struct mock *m;
        struct store *s = one_tier(64 * MIB, remote, &m);
        struct store_pin *p;
        enum store_miss why;
        struct store_info info;
        struct tier_key k = kit_key(&s->ident, 1);
        const void *row;
        enum kn_dtype t;
        sink(s, 1);
        ASSERT_TRUE(has(s, 1) && !has(s, 2));
        if (!remote) ASSERT_EQ(store_get_info(s, &k, &info), 1);
        if (!remote) ASSERT_TRUE(info.side);
        mock_set(m, &m->part_limit, 1);
        ASSERT_EQ(kit_look(s, 1, &p, &why), 1);
        ASSERT_EQ(store_pin_ready(p, LAYER), 0);
        ASSERT_EQ(kit_check_side(s, p, 1, LAYER), 0);
        ASSERT_EQ(store_pin_side(p, LAYER - 1, &row, &t), 0);
        ASSERT_EQ(kit_stats(s).side_hits, 1);
        side_drop(s, &k); /* what a pin has been given stays */
        ASSERT_EQ(kit_check_side(s, p, 1, LAYER), 0);
        ASSERT_TRUE(kit_stats(s).side_bytes > 0);
        mock_set(m, &m->part_limit, 1000);
        ASSERT_EQ(kit_check(s, p, 1), 0);
        store_pin_release(p);
        kit_flush(s);
        ASSERT_TRUE(has(s, 1)); /* and the load has made it anew */
        ASSERT_EQ(kit_stats(s).sides, 1);
        store_destroy(s);
    }
}

/* Prefixes are exact: nobody chooses among their tokens. */
TEST(only_where_it_serves)
{
    struct mock *m;
    struct store *s = one_tier(64 * MIB, false, &m);
    struct tier_key k = {1, 2};
    struct store_writer *w;
    int32_t tok[KIT_LARGE_TOKENS] = {0};
    ASSERT_EQ(store_claim(s, &(struct store_new){TIER_PREFIX, k, "a", tok, KIT_LARGE_TOKENS}, &w),
              1);
    kit_fill(s, w, 0);
    ASSERT_OK(store_commit(w));
    ASSERT_EQ(kit_stats(s).sides, 0);
    store_destroy(s);
    s = kit_store(&kit_large, 64 * MIB, NULL); /* nothing sinks */
    ASSERT_EQ(kit_put(s, 1), 1);
    ASSERT_EQ(kit_stats(s).sides + kit_stats(s).side_budget_bytes, 0);
    store_destroy(s);
}

TEST(goes_with_its_record)
{
    struct mock *m;
    struct store *s = one_tier(192 * MIB, false, &m);
    enum store_miss why;
    struct store_pin *p;
    struct tier_key k[8];
    for (int i = 0; i < 8; i++) {
        k[i] = kit_key(&s->ident, i);
        sink(s, i);
    }
    ASSERT_EQ(kit_stats(s).sides, 8);
    ASSERT_EQ(store_evict(s, &k[0], NULL), 1);
    ASSERT_TRUE(!has(s, 0));
    ASSERT_EQ(store_evict(s, &k[1], "low"), 1); /* its last place */
    ASSERT_TRUE(!has(s, 1));
    ASSERT_EQ(m->tier.ops->remove(&m->tier, &k[2], true), 1); /* evicted by the tier itself */
    ASSERT_EQ(kit_look(s, 2, &p, &why), 0);
    ASSERT_TRUE(!has(s, 2));
    mock_set(m, &m->flip_part, 0); /* a damaged header */
    ASSERT_EQ(kit_why(s, 3), STORE_MISS_CORRUPT);
    mock_set(m, &m->flip_part, -1);
    kit_flush(s);
    ASSERT_TRUE(!has(s, 3));
    (void)store_clear(s, NULL, "a", true); /* even numbers */
    for (int i = 4; i < 8; i++)
        ASSERT_EQ(has(s, i), i % 2);
    (void)store_clear(s, NULL, NULL, true);
    ASSERT_EQ(kit_stats(s).sides + kit_stats(s).side_bytes, 0);
    kit_empty(s);
    store_destroy(s);
}

/* Evicted from RAM before any tier had it: nothing is left to speed up. */
TEST(goes_with_the_only_copy)
{
    struct mock *m;
    struct store *s = one_tier(64 * MIB, false, &m);
    struct tier_key k = kit_key(&s->ident, 1);
    mock_set(m, &m->refuse_write, -EPERM);
    ASSERT_EQ(kit_put(s, 1), 1);
    kit_flush(s);
    ASSERT_TRUE(has(s, 1));
    ASSERT_EQ(store_evict(s, &k, "ram"), 1);
    ASSERT_TRUE(!has(s, 1));
    store_destroy(s);
}

/* Its cap is hard; the least recently used go first, never one in use. */
TEST(keeps_its_budget)
{
    struct mock *m;
    struct store *s = one_tier(32 * MIB, false, &m); /* 1.6 MiB of sidecars: three of half a MiB */
    struct store_pin *p;
    enum store_miss why;
    for (int i = 0; i < 3; i++)
        sink(s, i);
    ASSERT_EQ(kit_stats(s).sides, 3);
    ASSERT_EQ(kit_look(s, 0, &p, &why), 1);
    ASSERT_EQ(kit_check_side(s, p, 0, LAYER), 0);
    for (int i = 3; i < 7; i++) {
        sink(s, i);
        struct store_stats st = kit_stats(s);
        ASSERT_TRUE(st.side_bytes <= st.side_budget_bytes);
        ASSERT_EQ(st.sides, 3);
    }
    ASSERT_EQ(kit_stats(s).side_evictions, 4);
    ASSERT_EQ(kit_check_side(s, p, 0, LAYER), 0);
    ASSERT_TRUE(has(s, 0) && has(s, 6) && !has(s, 3));
    store_pin_release(p);
    kit_flush(s);
    store_destroy(s);
}

/* Rotten bytes are no sidecar; the next load makes it anew. */
TEST(damage_is_found)
{
    struct mock *m;
    struct store *s = one_tier(64 * MIB, false, &m);
    struct store_pin *p;
    enum store_miss why;
    const void *row;
    enum kn_dtype t;
    sink(s, 1);
    ASSERT_EQ(kit_look(s, 1, &p, &why), 1);
    ASSERT_EQ(store_pin_side(p, LAYER, &row, &t), 1);
    ((uint8_t *)(uintptr_t)row)[12345] ^= 1;
    store_pin_release(p);
    kit_flush(s);
    ASSERT_EQ(kit_look(s, 1, &p, &why), 1);
    ASSERT_EQ(store_pin_side(p, LAYER, &row, &t), 0);
    ASSERT_EQ(kit_stats(s).corrupt, 1);
    ASSERT_TRUE(!has(s, 1));
    ASSERT_EQ(kit_check(s, p, 1), 0); /* the record is another matter */
    store_pin_release(p);
    store_destroy(s);
}
