/* Tiers that keep records in 8 bits. */
#include "tests/test.h"
#include "tests/unit/tiers/store_kit.h"

enum { MIB = 1 << 20 };

static struct store *one_tier(const struct tier_ident *id, bool remote, struct mock **ret)
{
    *ret = mock_create("low", remote);
    struct kit_tiers t = {.mock = {*ret}, .q8 = {true}, .n = 1};
    return kit_store(id, 16 * MIB, &t);
}

static void leave_ram(struct store *s, int chunk)
{
    struct tier_key k = kit_key(&s->ident, chunk);
    kit_flush(s);
    ASSERT_EQ(store_evict(s, &k, "ram"), 1);
}

/* What came from below, in the form it was kept in. */
static void look_as(struct store *s, int chunk, enum kn_dtype t)
{
    struct store_pin *p;
    enum store_miss why;
    ASSERT_EQ(kit_look(s, chunk, &p, &why), 1);
    ASSERT_STREQ(store_pin_tier(p), "low");
    ASSERT_EQ(store_pin_dtype(p), t);
    ASSERT_EQ(kit_check(s, p, chunk), 0);
    store_pin_release(p);
    kit_flush(s);
}

static const struct tier_ident *const geometry[] = {&kit_small, &kit_large};

TEST(sinks_in_8_bits_and_comes_back_so)
{
    for (int g = 0; g < 2; g++)
        for (int remote = 0; remote < 2; remote++) {
            struct mock *m;
            struct store *s = one_tier(geometry[g], remote, &m);
            struct tier_key k = kit_key(&s->ident, 1);
            struct store_info info;
            ASSERT_EQ(kit_put(s, 1), 1);
            uint64_t whole = s->ident.L == KIT_LARGE_LAYERS ? 3 * MIB : 0;
            uint64_t n = s->ident.L == KIT_LARGE_LAYERS ? KIT_LARGE_TOKENS : KIT_SMALL_TOKENS;
            ASSERT_TRUE(store_record_bytes(s, 0, n) > whole);
            ASSERT_EQ(store_get_info(s, &k, &info), 1);
            ASSERT_EQ(info.dtype, KN_F32);
            leave_ram(s, 1);
            ASSERT_EQ(m->record[0].size_bytes, store_record_bytes(s, 1, n));
            if (whole) ASSERT_TRUE(m->record[0].size_bytes < 3 * MIB / 3);
            look_as(s, 1, KN_Q8);
            ASSERT_EQ(store_get_info(s, &k, &info), 1);
            ASSERT_EQ(info.dtype, KN_Q8);
            if (whole) ASSERT_TRUE(info.size_bytes < whole / 3);
            ASSERT_EQ(mock_get(m, &m->writes), 1); /* nothing new to write */
            ASSERT_EQ(kit_stats(s).corrupt + kit_stats(s).lost, 0);
            (void)store_clear(s, NULL, NULL, true);
            kit_empty(s);
            store_destroy(s);
        }
}

/* The option was another one when the record was written, in either direction. */
TEST(what_is_there_is_read)
{
    for (int g = 0; g < 2; g++)
        for (int remote = 0; remote < 2; remote++)
            for (int then = 0; then < 2; then++) {
                struct mock *m;
                struct store *s = one_tier(geometry[g], remote, &m);
                struct tier_key k = kit_key(&s->ident, 2);
                struct store_verify v;
                s->tier[0].q8 = then;
                ASSERT_EQ(kit_put(s, 2), 1);
                leave_ram(s, 2);
                s->tier[0].q8 = !then;
                look_as(s, 2, then ? KN_Q8 : KN_F32);
                ASSERT_OK(store_verify(s, &k, "low", &v));
                ASSERT_EQ(v.n_ok, 1);
                ASSERT_EQ(v.n_bad + v.n_gone, 0);
                ASSERT_TRUE(mock_has(m, &k));
                store_destroy(s);
            }
}

/* Neither form fits: it goes, and that is a miss. */
TEST(another_geometry_is_stale)
{
    for (int remote = 0; remote < 2; remote++) {
        struct mock *m;
        struct store *s = one_tier(&kit_large, remote, &m);
        struct tier_key k = kit_key(&s->ident, 2);
        ASSERT_EQ(kit_put(s, 2), 1);
        leave_ram(s, 2);
        m->record[0].size_bytes -= 4096;
        ASSERT_EQ(kit_why(s, 2), STORE_MISS_STALE);
        kit_flush(s);
        ASSERT_TRUE(!mock_has(m, &k));
        store_destroy(s);
    }
}

/* Damage must not be laundered into a sound copy. */
TEST(only_what_verifies_is_converted)
{
    struct mock *m;
    struct store *s = one_tier(&kit_large, false, &m);
    struct tier_key k = kit_key(&s->ident, 4);
    struct entry *copy = NULL;
    ASSERT_EQ(kit_put(s, 4), 1);
    kit_flush(s);
    pthread_mutex_lock(&s->m);
    struct entry *e = entry_find(s, &k);
    pthread_mutex_unlock(&s->m);
    uint64_t used = kit_stats(s).used_bytes;
    for (uint32_t part = 0; part < e->layout.n_parts; part++) {
        e->part[part][part ? 4097 : 60] ^= 1;
        ASSERT_ERR(codec_copy(s, e, KN_Q8, false, &copy), -EBADMSG);
        e->part[part][part ? 4097 : 60] ^= 1;
    }
    ASSERT_EQ(kit_stats(s).used_bytes, used);
    ASSERT_OK(codec_copy(s, e, KN_Q8, false, &copy));
    ASSERT_TRUE(kit_stats(s).used_bytes > used);
    entry_unref(s, copy);
    ASSERT_EQ(kit_stats(s).used_bytes, used);
    e->part[1][1] ^= 1; /* and found out in the store's own write, it goes */
    mock_set(m, &m->writes, 0);
    (void)m->tier.ops->remove(&m->tier, &k, true);
    pthread_mutex_lock(&s->m);
    e->write.want = 1;
    write_queue(s, e, 1);
    pthread_mutex_unlock(&s->m);
    kit_flush(s);
    ASSERT_EQ(kit_stats(s).corrupt, 1);
    ASSERT_TRUE(!store_probe(s, &k));
    ASSERT_EQ(mock_get(m, &m->writes), 0);
    store_destroy(s);
}

/* A value beyond f16 stays in RAM and is not written; the rest is. */
TEST(what_cannot_be_converted_is_not_written)
{
    struct mock *m;
    struct store *s = one_tier(&kit_small, false, &m);
    struct tier_key k = kit_key(&s->ident, 5);
    struct store_writer *w;
    void *row[2];
    ASSERT_EQ(kit_claim(s, 5, &w), 1);
    kit_fill(s, w, 5);
    store_writer_layer(w, 2, &row[0], &row[1]);
    ((float *)row[1])[7] = 1e6f;
    ASSERT_OK(store_commit(w));
    ASSERT_EQ(kit_put(s, 6), 1);
    kit_flush(s);
    ASSERT_TRUE(!mock_has(m, &k));
    ASSERT_EQ(mock_get(m, &m->writes), 1);
    ASSERT_EQ(kit_stats(s).lost, 1);
    ASSERT_TRUE(store_in_ram(s, &k));
    struct store_tier_stats st;
    store_get_tier_stats(s, 0, &st);
    ASSERT_TRUE(st.q8);
    ASSERT_STREQ(st.breaker, "closed");
    store_destroy(s);
}

/* Copies are charged like all else, and only what is clean makes way for them. */
TEST(conversion_keeps_the_budget)
{
    struct mock *m = mock_create("low", false);
    struct kit_tiers t = {.mock = {m}, .q8 = {true}, .n = 1};
    struct store *s = kit_store(&kit_large, 8 * MIB, &t);
    for (int round = 0; round < 4; round++)
        for (int i = 0; i < 7; i++) {
            int r = kit_put(s, i);
            ASSERT_TRUE(r >= 0 || r == -ENOSPC); /* all may be held by writes */
            (void)kit_why(s, (i + 3) % 7);
        }
    kit_flush(s);
    ASSERT_TRUE(mock_get(m, &m->writes) > 0);
    (void)store_clear(s, NULL, NULL, true);
    kit_empty(s);
    store_destroy(s);
}
