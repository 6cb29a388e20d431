/* Records of a GPU's tier that look-ups hand out where they lie, on the emulation of device memory.
 */
#include "base/mem.h"
#include "tests/doubles/gpu_host.h"
#include "tests/test.h"
#include "tests/unit/tiers/store_kit.h"
#include "tiers/gpu/gpu.h"

enum { MIB = 1 << 20, FRAME = MIB };

struct rig {
    struct gpu *g;
    struct tier *t;
    struct store *s;
    void *pool;
};

static struct rig rig_open(uint32_t n_frames)
{
    struct rig r = {0};
    struct err err = {0};
    ASSERT_OK(gpu_host_open(0, &r.g, &err));
    ASSERT_OK(gpu_alloc(r.g, (size_t)n_frames * FRAME, &r.pool));
    const struct tier_gpu_opts t = {.gpu = r.g,
                                    .capacity_bytes = (uint64_t)n_frames * FRAME,
                                    .pool = r.pool,
                                    .frame_bytes = FRAME};
    ASSERT_OK(tier_gpu_create(&t, &r.t, &err));
    struct store_opts o = {.ram_bytes = 32 * MIB, .ident = kit_large, .n_tiers = 1};
    o.tier[0] = (struct store_tier_opts){.tier = r.t, .direct = true};
    ASSERT_OK(store_create(&o, &r.s, &err));
    r.s->touch_every_ns = 0;
    return r;
}

static void rig_close(struct rig *r)
{
    store_destroy(r->s);
    gpu_free(r->g, r->pool);
    gpu_close(r->g);
}

/* Look, and say from where it came; the pin is the caller's. */
static const char *from(struct rig *r, int chunk, struct store_pin **ret)
{
    enum store_miss why;
    ASSERT_EQ(kit_look(r->s, chunk, ret, &why), 1);
    return store_pin_tier(*ret);
}

static void use(struct rig *r, int chunk, const char *where)
{
    struct store_pin *p;
    ASSERT_STREQ(from(r, chunk, &p), where);
    store_pin_release(p);
    ASSERT_OK(store_flush(r->s, 0));
}

/* What the device has of each layer is what RAM had. */
static void check_device(struct rig *r, int chunk)
{
    const size_t bytes = (size_t)KIT_LARGE_TOKENS * 8 * 64 * sizeof(float);
    struct kit_tiers none = {.n = 0};
    struct store *ram = kit_store(&kit_large, 32 * MIB, &none);
    struct store_pin *p, *want;
    enum store_miss why;
    ASSERT_EQ(kit_put(ram, chunk), 1);
    ASSERT_EQ(kit_look(ram, chunk, &want, &why), 1);
    ASSERT_STREQ(from(r, chunk, &p), "gpu");
    ASSERT_EQ(store_pin_dtype(p), KN_F32);
    ASSERT_EQ(store_pin_missing(p), 0);
    for (unsigned l = 1; l < KIT_LARGE_LAYERS; l++) {
        const void *k, *v, *wk, *wv;
        ASSERT_EQ(store_pin_ready(p, l), 1);
        ASSERT_OK(store_pin_layer(p, l, &k, &v));
        ASSERT_OK(store_pin_layer(want, l, &wk, &wv));
        ASSERT_MEMEQ(gpu_host_view(r->g, k), wk, bytes);
        ASSERT_MEMEQ(gpu_host_view(r->g, v), wv, bytes);
    }
    store_pin_release(p);
    store_pin_release(want);
    store_destroy(ram);
}

TEST(what_is_used_twice_goes_up_and_is_read_there)
{
    struct rig r = rig_open(16);
    struct tier_key k = kit_key(&kit_large, 1);
    ASSERT_EQ(kit_put(r.s, 1), 1);
    use(&r, 1, "ram");
    ASSERT_EQ(r.t->ops->find(r.t, &k), 0); /* once is not often */
    use(&r, 1, "ram");
    ASSERT_EQ(r.t->ops->find(r.t, &k), 1);
    check_device(&r, 1);
    struct store_tier_stats st;
    store_get_tier_stats(r.s, 0, &st);
    ASSERT_TRUE(st.direct);
    ASSERT_EQ(st.hits, 1);
    ASSERT_EQ(kit_stats(r.s).hits, 3);
    /* RAM may let go of it. */
    ASSERT_EQ(store_evict(r.s, &k, "ram"), 1);
    check_device(&r, 1);
    ASSERT_EQ(store_evict(r.s, &k, NULL), 1);
    ASSERT_EQ(kit_why(r.s, 1), STORE_MISS_EVICTED);
    rig_close(&r);
}

TEST(what_had_to_make_way_comes_back_when_it_is_used)
{
    struct rig r = rig_open(4); /* a record has three layers, of a frame each */
    int32_t frame[4];
    ASSERT_EQ(kit_put(r.s, 1), 1);
    for (int i = 0; i < 2; i++)
        use(&r, 1, "ram");
    use(&r, 1, "gpu");
    for (int i = 0; i < 4; i++)
        frame[i] = tier_gpu_lend(r.t);
    use(&r, 1, "ram");
    for (int i = 0; i < 4; i++)
        tier_gpu_take_back(r.t, frame[i]);
    use(&r, 1, "ram");
    use(&r, 1, "gpu");
    check_device(&r, 1);
    rig_close(&r);
}

TEST(a_pin_whose_frames_were_taken_reads_on_in_ram)
{
    for (int in_ram = 0; in_ram < 2; in_ram++) {
        struct rig r = rig_open(4);
        struct tier_key key = kit_key(&kit_large, 1);
        struct store_pin *p;
        const void *k, *v;
        int32_t frame[4];
        ASSERT_EQ(kit_put(r.s, 1), 1);
        for (int i = 0; i < 2; i++)
            use(&r, 1, "ram");
        ASSERT_STREQ(from(&r, 1, &p), "gpu");
        ASSERT_OK(store_pin_layer(p, 1, &k, &v));
        if (!in_ram) ASSERT_EQ(store_evict(r.s, &key, "ram"), 1);
        for (int i = 0; i < 4; i++)
            frame[i] = tier_gpu_lend(r.t);
        if (in_ram) {
            ASSERT_EQ(kit_check(r.s, p, 1), 0);
            ASSERT_STREQ(store_pin_tier(p), "ram");
        } else {
            ASSERT_ERR(store_pin_layer(p, 2, &k, &v), -EIO);
        }
        store_pin_release(p);
        for (int i = 0; i < 4; i++)
            tier_gpu_take_back(r.t, frame[i]);
        rig_close(&r);
    }
}

/* Memory that rots in RAM between two uses does not get where nobody checks any more. */
TEST(nothing_damaged_goes_up)
{
    struct rig r = rig_open(16);
    struct tier_key key = kit_key(&kit_large, 1);
    struct store_pin *p;
    const void *k, *v;
    ASSERT_EQ(kit_put(r.s, 1), 1);
    ASSERT_STREQ(from(&r, 1, &p), "ram");
    ASSERT_OK(store_pin_layer(p, 2, &k, &v));
    *(uint8_t *)(uintptr_t)v ^= 1;
    store_pin_release(p);
    ASSERT_STREQ(from(&r, 1, &p), "ram");
    store_pin_release(p);
    ASSERT_OK(store_flush(r.s, 0));
    ASSERT_EQ(r.t->ops->find(r.t, &key), 0);
    ASSERT_EQ(kit_stats(r.s).corrupt, 1);
    ASSERT_EQ(kit_why(r.s, 1), STORE_MISS_CORRUPT);
    rig_close(&r);
}

/* To read on in RAM is a use of that copy, too. */
TEST(what_was_read_on_in_ram_is_looked_at)
{
    struct rig r = rig_open(4);
    struct tier_key key = kit_key(&kit_large, 1);
    struct store_pin *p, *q;
    const void *k, *v;
    ASSERT_EQ(kit_put(r.s, 1), 1);
    use(&r, 1, "ram");
    ASSERT_STREQ(from(&r, 1, &q), "ram");
    ASSERT_EQ(kit_check(r.s, q, 1), 0);
    store_pin_release(q);
    ASSERT_OK(store_flush(r.s, 0));
    kit_checked(r.s);
    pthread_mutex_lock(&r.s->m);
    struct entry *e = entry_find(r.s, &key);
    pthread_mutex_unlock(&r.s->m);
    ASSERT_STREQ(from(&r, 1, &p), "gpu");
    record_group(e->part, &e->layout, 2)[7] ^= 1;
    r.s->checks.every_ns = 0;
    int32_t frame[4];
    for (int i = 0; i < 4; i++)
        frame[i] = tier_gpu_lend(r.t);
    ASSERT_OK(store_pin_layer(p, 1, &k, &v));
    ASSERT_STREQ(store_pin_tier(p), "ram");
    kit_checked(r.s);
    ASSERT_ERR(store_pin_layer(p, 3, &k, &v), -EBADMSG);
    store_pin_release(p);
    ASSERT_TRUE(!store_in_ram(r.s, &key));
    ASSERT_EQ(kit_stats(r.s).corrupt, 1);
    for (int i = 0; i < 4; i++)
        tier_gpu_take_back(r.t, frame[i]);
    rig_close(&r);
}

static struct store_writer *revise(struct rig *r, int rows, uint32_t n)
{
    struct tier_key k = kit_key(&kit_large, 1);
    struct store_writer *w;
    ASSERT_EQ(store_revise(r->s, &k, &w), 1);
    kit_fill(r->s, w, rows);
    store_writer_scores(w)[9] = (float)n;
    store_writer_behind(w, n, 400 * n);
    return w;
}

/* No lookup gets the old version once the new one is there, and no pin a mix of the two. */
TEST(a_new_version_takes_its_place)
{
    struct rig r = rig_open(8);
    struct store_pin *old, *p;
    const void *k, *v;
    float score[KIT_LARGE_TOKENS];
    int32_t frame[8];
    ASSERT_EQ(kit_put(r.s, 1), 1);
    for (int i = 0; i < 2; i++)
        use(&r, 1, "ram");
    ASSERT_STREQ(from(&r, 1, &old), "gpu");
    ASSERT_EQ(store_pin_contexts(old, NULL), 0);
    ASSERT_EQ(store_pin_scores(old, score), 0);
    ASSERT_OK(store_pin_layer(old, 1, &k, &v));
    ASSERT_OK(store_commit(revise(&r, 3, 2)));
    ASSERT_STREQ(from(&r, 1, &p), "ram");
    ASSERT_EQ(kit_check(r.s, p, 3), 0);
    ASSERT_EQ(store_pin_contexts(p, NULL), 2);
    ASSERT_OK(store_pin_layer(old, 2, &k, &v)); /* where it lies */
    for (int i = 0; i < 8; i++)
        frame[i] = tier_gpu_lend(r.t);
    ASSERT_ERR(store_pin_layer(old, 3, &k, &v), -EIO); /* not the new one's layer */
    store_pin_release(old);
    store_pin_release(p);
    for (int i = 0; i < 8; i++)
        tier_gpu_take_back(r.t, frame[i]);
    use(&r, 1, "ram");
    use(&r, 1, "gpu");
    ASSERT_STREQ(from(&r, 1, &p), "gpu");
    ASSERT_EQ(store_pin_contexts(p, NULL), 2);
    ASSERT_EQ(store_pin_scores(p, score), 1);
    ASSERT_EQ(score[9], 2);
    ASSERT_OK(store_pin_layer(p, 2, &k, &v));
    ASSERT_EQ(((const float *)gpu_host_view(r.g, k))[5], 3 * 8000 + 2 * 2000 + 5);
    store_pin_release(p);
    rig_close(&r);
}

/* The old version is on its way up when the new one comes: it does not stay there. */
TEST(what_is_on_its_way_up_does_not_stay)
{
    for (int i = 0; i < 20; i++) {
        struct rig r = rig_open(8);
        struct store_pin *p;
        ASSERT_EQ(kit_put(r.s, 1), 1);
        use(&r, 1, "ram");
        ASSERT_STREQ(from(&r, 1, &p), "ram");
        struct store_writer *w = revise(&r, 3, 1);
        store_pin_release(p); /* used again: the write begins */
        ASSERT_OK(store_commit(w));
        ASSERT_OK(store_flush(r.s, 0));
        (void)from(&r, 1, &p);
        ASSERT_EQ(store_pin_contexts(p, NULL), 1);
        store_pin_release(p);
        rig_close(&r);
    }
}
