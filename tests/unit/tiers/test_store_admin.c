/* Caps, pins, expiry, live settings, and what is listed, checked and brought back. */
#include "kernels/gpu_int.h"
#include "tests/test.h"
#include "tests/unit/tiers/store_kit.h"

#include <sched.h>

enum { KIB = 1024, MIB = 1 << 20 };

static struct store *two_tiers(uint64_t ram_bytes, struct mock *m[2])
{
    m[0] = mock_create("near", false);
    m[1] = mock_create("far", true);
    struct kit_tiers t = {.mock = {m[0], m[1]}, .n = 2};
    return kit_store(&kit_small, ram_bytes, &t);
}

static int has(struct mock *m, int chunk)
{
    struct tier_key k = kit_key(&kit_small, chunk);
    return mock_has(m, &k);
}

static uint64_t ns_bytes(struct store *s, const char *ns)
{
    pthread_mutex_lock(&s->m);
    uint64_t hash = record_ns_hash(ns), n = s->quota.rest_bytes;
    for (size_t i = 0; i < sizeof s->quota.cell / sizeof *s->quota.cell; i++) {
        const struct quota_cell *c = &s->quota.cell[i];
        if (c->cap_bytes && c->ns_hash == hash) n = c->used_bytes;
    }
    pthread_mutex_unlock(&s->m);
    return n;
}

/* How many of the even chunks below n, of the namespace without a cap, are in RAM. */
static int neighbours(struct store *s, int n)
{
    int here = 0;
    for (int i = 0; i < n; i += 2) {
        struct tier_key k = kit_key(&kit_small, i);
        here += store_probe(s, &k);
    }
    return here;
}

TEST(a_namespace_stays_under_its_cap)
{
    struct store *s = kit_store(&kit_small, 4 * MIB, NULL);
    for (int i = 0; i < 40; i++)
        ASSERT_EQ(kit_put(s, i), 1); /* twenty each */
    ASSERT_OK(store_set_quota(s, "ram", "b", 100 * KIB));
    ASSERT_TRUE(ns_bytes(s, "b") <= 100 * KIB); /* at once */
    int b = 0;
    for (int i = 0; i < 40; i++) {
        struct tier_key k = kit_key(&kit_small, i);
        bool here = store_probe(s, &k);
        if (i % 2 == 0) ASSERT_TRUE(here); /* the other namespace is untouched */
        b += here && i % 2;
    }
    ASSERT_TRUE(b > 0 && b < 10);
    for (int i = 41; i < 81; i += 2) {
        ASSERT_EQ(kit_put(s, i), 1);
        ASSERT_TRUE(ns_bytes(s, "b") <= 100 * KIB);
        ASSERT_EQ(neighbours(s, 40), 20); /* its own make way, though the others' are older */
    }
    struct store_pin *pin[16];
    enum store_miss why;
    int n = 0;
    for (int i = 1; i < 81; i += 2)
        if (n < 16) n += kit_look(s, i, &pin[n], &why);
    struct store_writer *w;
    ASSERT_ERR(kit_claim(s, 99, &w), -ENOSPC); /* its own are all in use */
    ASSERT_EQ(neighbours(s, 40), 20);
    ASSERT_EQ(kit_put(s, 98), 1);
    for (int i = 0; i < n; i++)
        store_pin_release(pin[i]);
    ASSERT_EQ(kit_put(s, 99), 1);
    ASSERT_OK(store_set_quota(s, NULL, "b", 0));
    for (int i = 101; i < 141; i += 2)
        ASSERT_EQ(kit_put(s, i), 1);
    ASSERT_EQ(kit_why(s, 101), -1);
    ASSERT_OK(store_set_quota(s, NULL, "b", 1)); /* less than one record */
    ASSERT_EQ(ns_bytes(s, "b"), 0);
    ASSERT_ERR(kit_claim(s, 1, &w), -ENOSPC);
    store_clear(s, NULL, NULL, true);
    kit_empty(s);
    store_destroy(s);
}

TEST(a_cap_holds_for_what_is_loaded)
{
    struct mock *m[2];
    struct store *s = two_tiers(4 * MIB, m);
    for (int i = 1; i < 21; i += 2)
        ASSERT_EQ(kit_put(s, i), 1);
    kit_flush(s);
    ASSERT_EQ(store_clear(s, "ram", NULL, true), 10);
    for (int i = 0; i < 20; i += 2)
        ASSERT_EQ(kit_put(s, i), 1);
    ASSERT_OK(store_set_quota(s, "ram", "b", 40 * KIB));
    for (int i = 1; i < 21; i += 2) {
        ASSERT_EQ(kit_why(s, i), -1);
        ASSERT_TRUE(ns_bytes(s, "b") <= 40 * KIB);
        ASSERT_EQ(neighbours(s, 20), 10);
    }
    ASSERT_OK(store_set_quota(s, NULL, "b", KIB));
    ASSERT_EQ(kit_why(s, 1), STORE_MISS_ROOM);
    ASSERT_EQ(m[0]->quota_bytes, KIB);
    ASSERT_TRUE(m[1]->quota_ns == record_ns_hash("b"));
    store_destroy(s);
}

TEST(records_expire)
{
    struct mock *m[2];
    struct store *s = two_tiers(4 * MIB, m);
    store_set_ttl(s, "b", 1);
    ASSERT_EQ(kit_put(s, 1), 1); /* "b" */
    ASSERT_EQ(kit_put(s, 2), 1); /* "a" */
    kit_flush(s);
    uint64_t made = wall_ms();
    while (wall_ms() < made + 3)
        sched_yield();
    struct store_info info;
    struct tier_key k = kit_key(&kit_small, 1);
    if (store_get_info(s, &k, &info) == 1) ASSERT_TRUE(info.expires_s > 0);
    ASSERT_TRUE(!store_probe(s, &(struct tier_key){0, 0}));
    ASSERT_EQ(kit_why(s, 1), STORE_MISS_EXPIRED); /* RAM's copy, or the tier's */
    ASSERT_EQ(kit_why(s, 1), STORE_MISS_EXPIRED);
    ASSERT_EQ(has(m[0], 1), 0); /* seen to be old there as well */
    ASSERT_EQ(kit_why(s, 2), -1);
    ASSERT_TRUE(kit_stats(s).expired >= 1);
    store_set_ttl(s, "b", 0);
    ASSERT_EQ(kit_put(s, 1), 1);
    ASSERT_EQ(kit_why(s, 1), -1);
    store_destroy(s);
}

TEST(a_life_beyond_all_clocks_is_for_ever)
{
    static const uint64_t ttl[] = {UINT64_MAX, UINT64_MAX - 1, 1ull << 63, 1ull << 50};
    struct store *s = kit_store(&kit_small, 4 * MIB, NULL);
    for (int i = 0; i < 4; i++) {
        struct tier_key k = kit_key(&kit_small, 2 * i);
        struct store_info info;
        store_set_ttl(s, "a", ttl[i]);
        ASSERT_EQ(kit_put(s, 2 * i), 1);
        ASSERT_EQ(kit_why(s, 2 * i), -1);
        ASSERT_EQ(store_get_info(s, &k, &info), 1);
        ASSERT_TRUE(info.expires_s == 0);
    }
    store_destroy(s);
}

TEST(maintenance_drops_what_nobody_asks_for)
{
    struct store_opts o = {.ram_bytes = MIB, .ident = kit_small, .ttl_ms = 1};
    struct store *s;
    struct err err;
    ASSERT_OK(store_create(&o, &s, &err));
    for (int i = 0; i < 8; i++)
        ASSERT_EQ(kit_put(s, i), 1);
    uint64_t until = clock_ns() + 60000000000ull;
    while (kit_stats(s).n_records > 0 && clock_ns() < until)
        sched_yield();
    ASSERT_EQ(kit_stats(s).expired, 8);
    ASSERT_EQ(kit_why(s, 3), STORE_MISS_EXPIRED);
    store_destroy(s);
}

TEST(pins_are_capped)
{
    struct mock *m[2];
    struct store *s = two_tiers(512 * KIB, m);
    int pinned = 0, i = 0;
    for (; i < 24; i++)
        ASSERT_EQ(kit_put(s, i), 1);
    kit_flush(s);
    int r = 1;
    for (i = 0; i < 24 && r == 1; i++) {
        struct tier_key k = kit_key(&kit_small, i);
        r = store_set_pinned(s, &k, true);
        pinned += r == 1;
    }
    ASSERT_ERR(r, -ENOSPC);
    struct store_stats st = kit_stats(s);
    ASSERT_EQ(st.n_pinned, (uint64_t)pinned);
    ASSERT_TRUE(st.pinned_bytes <= st.budget_bytes / 2);
    ASSERT_TRUE(st.pinned_bytes > st.budget_bytes / 2 - 32 * KIB);
    struct tier_key k = kit_key(&kit_small, 0), none = kit_key(&kit_small, 77);
    ASSERT_EQ(m[0]->record[0].pinned, 1);
    ASSERT_EQ(store_set_pinned(s, &none, true), 0);
    ASSERT_ERR(store_evict(s, &k, NULL), -EBUSY);
    ASSERT_EQ(store_set_pinned(s, &k, false), 1);
    ASSERT_EQ(store_evict(s, &k, NULL), 1);
    ASSERT_EQ(has(m[0], 0), 0);
    ASSERT_EQ(has(m[1], 0), 0);
    ASSERT_EQ(kit_stats(s).n_pinned, (uint64_t)pinned - 1);
    store_destroy(s);
}

TEST(ram_is_resized_live)
{
    struct store *s = kit_store(&kit_small, 256 * KIB, NULL);
    struct store_pin *p;
    enum store_miss why;
    int n = 0;
    while (kit_stats(s).evictions == 0)
        ASSERT_EQ(kit_put(s, n++), 1);
    ASSERT_OK(store_resize(s, "ram", 512 * KIB));
    int more = 0;
    while (kit_stats(s).evictions == 1)
        ASSERT_EQ(kit_put(s, n + more++), 1);
    ASSERT_TRUE(more > n / 2);
    ASSERT_OK(store_resize(s, "ram", 128 * KIB));
    ASSERT_TRUE(kit_stats(s).used_bytes <= 128 * KIB);
    ASSERT_TRUE(kit_stats(s).n_records > 0);
    ASSERT_EQ(kit_why(s, n + more - 1), -1); /* the newest stayed */
    ASSERT_TRUE(s->pool.discard);
    for (int i = 1000; i < 1100; i++) {
        ASSERT_EQ(kit_put(s, i), 1); /* out of pages that went back and came again */
        ASSERT_EQ(kit_why(s, i), -1);
    }
    ASSERT_EQ(kit_look(s, 1099, &p, &why), 1);
    ASSERT_ERR(store_resize(s, "ram", 1), -EINVAL);
    ASSERT_ERR(store_resize(s, "nvme", MIB), -EINVAL);
    ASSERT_ERR(store_resize(s, "ram", 1ull << 40), -ENOTSUP);
    store_pin_release(p);
    ASSERT_EQ(kit_stats(s).budget_bytes, 128 * KIB);
    store_destroy(s);
    struct mock *m[2];
    s = two_tiers(MIB, m);
    ASSERT_OK(store_resize(s, "near", 12345));
    ASSERT_EQ(m[0]->capacity_bytes, 12345);
    size_t known = m[0]->memory_bytes;
    ASSERT_TRUE(known >= s->pool.size_bytes);
    ASSERT_OK(store_resize(s, "ram", 2 * MIB));
    ASSERT_TRUE(m[0]->memory_bytes >= known + MIB / 2); /* the tiers are told of what came */
    store_destroy(s);
}

struct reader { /* a device that notes what is pinned for it */
    struct gpu g;
    char *base[ARENAS];
    size_t bytes[ARENAS], n, n_calls;
};

static int note_pinned(struct gpu *g, void *p, size_t bytes)
{
    struct reader *r = (struct reader *)g;
    if (++r->n_calls == 3) return -ENOMEM; /* not more than the system allows */
    r->base[r->n] = p;
    r->bytes[r->n++] = bytes;
    return 0;
}

static void note_unpinned(struct gpu *g, void *p)
{
    struct reader *r = (struct reader *)g;
    size_t i = 0;
    while (i < r->n && r->base[i] != p)
        i++;
    ASSERT_TRUE(i < r->n);
    memset(p, 0xab, 64); /* it is still there */
    r->n--;
    r->base[i] = r->base[r->n];
    r->bytes[i] = r->bytes[r->n];
}

static bool is_pinned(const struct reader *r, const void *p)
{
    for (size_t i = 0; i < r->n; i++)
        if ((const char *)p >= r->base[i] && (const char *)p < r->base[i] + r->bytes[i])
            return true;
    return false;
}

TEST(records_stand_where_a_reader_has_them_pinned)
{
    static const struct gpu_ops ops = {.host_register = note_pinned,
                                       .host_unregister = note_unpinned};
    struct reader reader = {.g = {.ops = &ops}};
    const struct store_opts o = {.ram_bytes = 256 * KIB, .ident = kit_small, .reader = &reader.g};
    struct store *s = NULL;
    struct err err = {0};
    ASSERT_OK(store_create(&o, &s, &err));
    static const uint64_t grows[] = {384, 640, 900, 0};
    for (size_t g = 0; g < 4; g++) {
        for (int i = 0; i < 20; i++) {
            struct store_pin *p;
            enum store_miss why;
            const void *k, *v;
            ASSERT_EQ(kit_put(s, (int)(100 * g) + i), 1);
            ASSERT_EQ(kit_look(s, (int)(100 * g) + i, &p, &why), 1);
            ASSERT_OK(store_pin_layer(p, 1, &k, &v));
            if (reader.n_calls < 3) ASSERT_TRUE(is_pinned(&reader, k) && is_pinned(&reader, v));
            store_pin_release(p);
        }
        if (grows[g]) ASSERT_OK(store_resize(s, "ram", grows[g] * KIB));
    }
    ASSERT_EQ(reader.n, 3); /* and a piece that could not be pinned */
    ASSERT_OK(store_resize(s, "ram", 128 * KIB));
    ASSERT_TRUE(!s->pool.discard); /* pinned pages stay */
    store_destroy(s);
    ASSERT_EQ(reader.n, 0);
}

TEST(the_policy_is_changed_live)
{
    struct mock *m[2];
    struct store *s = two_tiers(MIB, m);
    for (int i = 0; i < 30; i++)
        ASSERT_EQ(kit_put(s, i), 1);
    for (int p = EVICT_POLICY_COUNT - 1; p >= 0; p--) {
        ASSERT_OK(store_set_policy(s, NULL, (enum evict_policy)p));
        ASSERT_EQ(m[0]->policy, p);
        ASSERT_EQ(kit_stats(s).n_records, 30);
        for (int i = 0; i < 30; i++)
            ASSERT_EQ(kit_why(s, i), -1);
    }
    ASSERT_ERR(store_set_policy(s, "nowhere", EVICT_LRU), -EINVAL);
    /* The order of use is kept: the oldest goes first. */
    struct tier_key k0 = kit_key(&kit_small, 0), k29 = kit_key(&kit_small, 29);
    kit_flush(s);
    for (int i = 100; kit_stats(s).evictions == 0; i++)
        ASSERT_EQ(kit_put(s, i), 1);
    pthread_mutex_lock(&s->m);
    ASSERT_TRUE(!entry_find(s, &k0));
    ASSERT_TRUE(entry_find(s, &k29));
    pthread_mutex_unlock(&s->m);
    store_destroy(s);
}

struct seen {
    int n, both, ram, near, pinned;
};

static int see(void *ctx, const struct store_info *i)
{
    struct seen *c = ctx;
    c->n++;
    c->both += strcmp(i->tiers, "ram,near") == 0 && strcmp(i->tier, "ram") == 0;
    c->ram += strcmp(i->tiers, "ram") == 0;
    c->near += strcmp(i->tiers, "near") == 0 && strcmp(i->tier, "near") == 0;
    c->pinned += i->pinned;
    ASSERT_TRUE(i->size_bytes > 8 * KIB && i->n_tokens == KIT_SMALL_TOKENS);
    return 0;
}

TEST(every_record_is_listed_once)
{
    struct mock *m[2];
    struct store *s = two_tiers(MIB, m);
    struct store_info info;
    for (int i = 0; i < 6; i++)
        ASSERT_EQ(kit_put(s, i), 1);
    kit_flush(s);
    for (int i = 0; i < 2; i++) {
        struct tier_key k = kit_key(&kit_small, i);
        ASSERT_EQ(store_evict(s, &k, "ram"), 1);
    }
    struct tier_key k = kit_key(&kit_small, 5), k0 = kit_key(&kit_small, 0);
    ASSERT_EQ(store_evict(s, &k, "near"), 1);
    ASSERT_EQ(store_set_pinned(s, &k, true), 1);
    struct seen c = {0};
    ASSERT_EQ(store_visit(s, NULL, see, &c), 0);
    ASSERT_EQ(c.n, 6);
    ASSERT_EQ(c.both, 3);
    ASSERT_EQ(c.near, 2);
    ASSERT_EQ(c.ram, 1);
    ASSERT_EQ(c.pinned, 1);
    ASSERT_EQ(store_get_info(s, &k0, &info), 1);
    ASSERT_STREQ(info.tiers, "near");
    ASSERT_TRUE(info.created_s > 1e9 && info.ns_hash == record_ns_hash("a"));
    ASSERT_TRUE(store_probe(s, &k0));
    ASSERT_EQ(store_clear(s, NULL, "b", false), 2); /* 1 and 3; 5 is pinned */
    ASSERT_EQ(store_clear(s, "near", NULL, true), 3);
    ASSERT_EQ(store_clear(s, NULL, NULL, true), 4); /* 2, 4, 5 and what the far tier alone has */
    ASSERT_ERR(store_clear(s, "nowhere", NULL, true), -EINVAL);
    c = (struct seen){0};
    ASSERT_EQ(store_visit(s, NULL, see, &c), 0);
    ASSERT_EQ(c.n, 0);
    for (int i = 0; i < 6; i++) {
        ASSERT_EQ(has(m[0], i), 0);
        ASSERT_EQ(has(m[1], i), 0);
    }
    store_destroy(s);
}

TEST(the_most_used_are_brought_back)
{
    struct mock *m[2];
    struct store *s = two_tiers(MIB, m);
    struct store_stats st;
    for (int i = 0; i < 20; i++)
        ASSERT_EQ(kit_put(s, i), 1);
    kit_flush(s);
    ASSERT_EQ(store_clear(s, "ram", NULL, true), 20);
    pthread_mutex_lock(&m[0]->m);
    for (int i = 0; i < MOCK_RECORDS; i++)
        for (int c = 0; c < 20; c++) {
            struct tier_key k = kit_key(&kit_small, c);
            if (m[0]->record[i].bytes && tier_key_same(&k, &m[0]->record[i].key))
                m[0]->record[i].used_s = c;
        }
    pthread_mutex_unlock(&m[0]->m);
    ASSERT_EQ(store_preload(s, "near", 7), 7);
    ASSERT_EQ(kit_stats(s).n_records, 7);
    for (int i = 13; i < 20; i++) {
        struct store_pin *p;
        enum store_miss why;
        ASSERT_EQ(kit_look(s, i, &p, &why), 1);
        ASSERT_STREQ(store_pin_tier(p), "ram");
        ASSERT_EQ(kit_check(s, p, i), 0);
        store_pin_release(p);
    }
    ASSERT_EQ(store_preload(s, NULL, 1000), 13);
    ASSERT_EQ(store_preload(s, NULL, 1000), 0);
    ASSERT_ERR(store_preload(s, "nowhere", 1), -EINVAL);
    store_destroy(s);
    s = two_tiers(128 * KIB, m); /* RAM that holds a few only: what is here stays */
    for (int i = 0; i < 30; i++) {
        ASSERT_EQ(kit_put(s, i), 1);
        kit_flush(s);
    }
    store_clear(s, "ram", NULL, true);
    uint64_t before = kit_stats(s).evictions;
    long n = store_preload(s, "near", 30);
    st = kit_stats(s);
    ASSERT_TRUE(n > 2 && n < 10);
    ASSERT_EQ(st.evictions, before);
    store_destroy(s);
}

TEST(copies_are_verified)
{
    struct mock *m[2];
    struct store *s = two_tiers(MIB, m);
    struct store_verify v;
    struct tier_key k = kit_key(&kit_small, 1), none = kit_key(&kit_small, 2);
    ASSERT_EQ(kit_put(s, 1), 1);
    kit_flush(s);
    ASSERT_OK(store_verify(s, &k, NULL, &v));
    ASSERT_TRUE(v.n_ok == 3 && v.n_bad == 0 && v.n_gone == 0);
    mock_set(m[0], &m[0]->flip_part, 1);
    mock_set(m[0], &m[0]->flip_at, 100);
    ASSERT_OK(store_verify(s, &k, NULL, &v));
    ASSERT_TRUE(v.n_ok == 2 && v.n_bad == 1);
    ASSERT_EQ(has(m[0], 1), 0);
    ASSERT_OK(store_verify(s, &k, NULL, &v));
    ASSERT_TRUE(v.n_ok == 2 && v.n_gone == 1);
    ASSERT_EQ(store_evict(s, &k, "ram"), 1);
    ASSERT_OK(store_verify(s, &k, "far", &v)); /* how long it is, its listing says */
    ASSERT_TRUE(v.n_ok == 1 && v.n_gone == 0);
    mock_set(m[1], &m[1]->fail_read, -EIO);
    ASSERT_ERR(store_verify(s, &k, "far", &v), -EIO);
    mock_set(m[1], &m[1]->fail_read, 0);
    ASSERT_OK(store_verify(s, &none, NULL, &v));
    ASSERT_EQ(v.n_ok + v.n_bad, 0);
    ASSERT_ERR(store_verify(s, &k, "nowhere", &v), -EINVAL);
    kit_empty(s);
    struct store_pin *p;
    enum store_miss why;
    ASSERT_EQ(kit_look(s, 1, &p, &why), 1);
    uint8_t *part = p->e->part[1];
    mock_wait(m[1], &m[1]->parts, 2);
    kit_flush(s);
    part[5] ^= 1;
    ASSERT_OK(store_verify(s, &k, "ram", &v));
    ASSERT_EQ(v.n_bad, 1);
    store_pin_release(p);
    ASSERT_EQ(kit_stats(s).n_records, 0);
    store_destroy(s);
}

TEST(all_copies_are_verified)
{
    struct mock *m[2];
    struct store *s = two_tiers(MIB, m);
    struct store_verify v;
    ASSERT_OK(store_verify(s, NULL, NULL, &v));
    ASSERT_EQ(v.n_ok + v.n_bad + v.n_gone, 0);
    for (unsigned i = 0; i < 3; i++)
        ASSERT_EQ(kit_put(s, i), 1);
    kit_flush(s);
    ASSERT_OK(store_verify(s, NULL, "ram", &v));
    ASSERT_EQ(v.n_ok, 3);
    ASSERT_OK(store_verify(s, NULL, "far", &v));
    ASSERT_EQ(v.n_ok, 3);
    uint64_t local = m[1]->tier.shared ? 6 : 9; /* a shared tier is read only when it is named */
    ASSERT_OK(store_verify(s, NULL, NULL, &v));
    ASSERT_TRUE(v.n_ok == local && v.n_bad == 0 && v.n_gone == 0);
    ASSERT_ERR(store_verify(s, NULL, "nowhere", &v), -EINVAL);
    mock_set(m[0], &m[0]->flip_part, 1);
    mock_set(m[0], &m[0]->flip_at, 100);
    ASSERT_OK(store_verify(s, NULL, "near", &v));
    ASSERT_TRUE(v.n_ok == 0 && v.n_bad == 3);
    ASSERT_TRUE(!has(m[0], 0) && !has(m[0], 1) && !has(m[0], 2));
    mock_set(m[1], &m[1]->fail_read, -EIO);
    ASSERT_ERR(store_verify(s, NULL, "far", &v), -EIO);
    ASSERT_EQ(v.n_ok, 0);
    store_destroy(s);
}

TEST(what_takes_long_ends_with_the_program)
{
    struct mock *m[2];
    struct store *s = two_tiers(MIB, m);
    struct store_verify v;
    for (int i = 0; i < 8; i++)
        ASSERT_EQ(kit_put(s, i), 1);
    kit_flush(s);
    store_interrupt(s);
    ASSERT_ERR(store_verify(s, NULL, NULL, &v), -ECANCELED);
    ASSERT_EQ(v.n_ok, 0);
    ASSERT_EQ(store_clear(s, "ram", NULL, true), 8);
    ASSERT_EQ(store_preload(s, "near", 8), 0);
    ASSERT_EQ(kit_why(s, 1), -1); /* look-ups go on */
    store_destroy(s);
}

/* What the store needs for itself beside records, to the byte. */
static uint64_t tables_bytes(struct store *s)
{
    uint64_t n = sizeof *s + (s->ghosts.mask + 1) * GHOST_WAYS * sizeof(struct ghost) +
                 evict_memory_bytes(s->order) + s->n_tiers * sizeof *s->tier;
    for (int i = 0; i < SHARDS; i++)
        n += (s->shard[i].index.mask + 1) * sizeof(struct entry *);
    return n;
}

TEST(the_arenas_table_is_within_the_budget)
{
    struct store *s = kit_store(&kit_small, 16 << 20, NULL);
    for (uint64_t bytes = 16 << 20;; bytes = 48 << 20) {
        ASSERT_EQ(s->fixed_bytes, tables_bytes(s) + pool_memory_bytes(s->pool.size_bytes));
        ASSERT_EQ(kit_stats(s).used_bytes, s->fixed_bytes);
        ASSERT_TRUE(s->fixed_bytes + s->pool.size_bytes <= bytes);
        if (bytes > 16 << 20) break;
        ASSERT_OK(store_resize(s, "ram", 48 << 20));
    }
    store_destroy(s);
}

/* Where the chunk is: a bit for RAM, one for each tier. */
static int places(struct store *s, struct mock *m[2], int chunk)
{
    struct tier_key k = kit_key(&kit_small, chunk);
    return store_in_ram(s, &k) | has(m[0], chunk) << 1 | has(m[1], chunk) << 2;
}

static int move_to(struct store *s, int chunk, const char *tier)
{
    struct tier_key k = kit_key(&kit_small, chunk);
    return store_move(s, &k, tier, clock_ns() + 10000000000ull);
}

TEST(a_record_moves_from_tier_to_tier)
{
    struct mock *m[2];
    struct store *s = two_tiers(4 * MIB, m);
    struct tier_key k = kit_key(&kit_small, 1);
    struct store_pin *pin;
    enum store_miss why;
    ASSERT_EQ(kit_put(s, 1), 1);
    kit_flush(s);
    ASSERT_EQ(places(s, m, 1), 7);
    ASSERT_EQ(move_to(s, 1, "near"), 1);
    ASSERT_EQ(places(s, m, 1), 6);
    ASSERT_EQ(move_to(s, 1, "near"), 1); /* it is there */
    ASSERT_EQ(move_to(s, 1, "ram"), 1);
    ASSERT_EQ(places(s, m, 1), 7);
    ASSERT_EQ(move_to(s, 1, "far"), 1);
    ASSERT_EQ(places(s, m, 1), 4);
    ASSERT_EQ(kit_why(s, 1), -1); /* sound, by way of RAM and back to the near one */
    kit_flush(s);
    ASSERT_EQ(places(s, m, 1), 7);
    /* A tier that has lost it gets it again before RAM lets go. */
    ASSERT_EQ(store_evict(s, &k, "near"), 1);
    ASSERT_EQ(places(s, m, 1), 5);
    ASSERT_EQ(move_to(s, 1, "near"), 1);
    ASSERT_EQ(places(s, m, 1), 6);
    /* In use, pinned, unknown: it stays. */
    ASSERT_EQ(move_to(s, 1, "ram"), 1);
    ASSERT_EQ(kit_look(s, 1, &pin, &why), 1);
    ASSERT_EQ(move_to(s, 1, "near"), -EBUSY);
    ASSERT_EQ(places(s, m, 1), 7);
    store_pin_release(pin);
    ASSERT_EQ(store_set_pinned(s, &k, true), 1);
    ASSERT_EQ(move_to(s, 1, "far"), -EBUSY);
    ASSERT_EQ(places(s, m, 1), 7);
    ASSERT_EQ(move_to(s, 1, "gpu"), -EINVAL);
    ASSERT_EQ(move_to(s, 2, "ram"), 0);
    ASSERT_EQ(move_to(s, 2, "near"), 0);
    ASSERT_EQ(store_set_pinned(s, &k, false), 1);
    /* Not taken there: RAM keeps it. */
    mock_set(m[0], &m[0]->refuse_write, -ENOSPC);
    ASSERT_EQ(store_evict(s, &k, "near"), 1);
    ASSERT_EQ(move_to(s, 1, "near"), -ENOSPC);
    ASSERT_EQ(places(s, m, 1), 5);
    store_destroy(s);
}

TEST(what_namespaces_hold_and_may_hold)
{
    struct mock *m[2];
    struct store *s = two_tiers(4 * MIB, m);
    struct store_space *space;
    size_t n;
    for (int i = 0; i < 7; i++) /* four of a, three of b */
        ASSERT_EQ(kit_put(s, i), 1);
    kit_flush(s);
    ASSERT_EQ(move_to(s, 0, "near"), 1);
    ASSERT_OK(store_set_quota(s, "ram", "b", MIB));
    ASSERT_OK(store_set_quota(s, "near", "none", 2 * MIB));
    ASSERT_OK(store_spaces(s, &space, &n));
    ASSERT_EQ(n, 3);
    for (size_t i = 0; i < n; i++) {
        const struct store_space *x = &space[i];
        const bool a = x->ns_hash == record_ns_hash("a"), b = x->ns_hash == record_ns_hash("b");
        ASSERT_TRUE(i == 0 || space[i - 1].ns_hash < x->ns_hash);
        ASSERT_EQ(x->at[0].n_records, 3 * (uint64_t)(a || b));
        ASSERT_EQ(x->at[1].n_records, a ? 4 : b ? 3 : 0);
        ASSERT_EQ(x->at[2].n_records, 0); /* remote ones are not listed */
        ASSERT_EQ(x->at[0].cap_bytes, b ? MIB : 0);
        ASSERT_EQ(x->at[1].cap_bytes, a || b ? 0 : 2 * MIB);
        ASSERT_EQ(x->at[0].bytes > 0, a || b);
        if (b) ASSERT_EQ(x->at[0].bytes, ns_bytes(s, "b"));
    }
    mem_free(space);
    ASSERT_OK(store_set_quota(s, "near", "none", 0));
    ASSERT_OK(store_spaces(s, &space, &n));
    ASSERT_EQ(n, 2);
    mem_free(space);
    store_destroy(s);
}
