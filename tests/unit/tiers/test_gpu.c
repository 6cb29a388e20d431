#include "tiers/gpu/gpu.h"

#include "base/clock.h"
#include "base/mem.h"
#include "tests/doubles/gpu_host.h"
#include "tests/test.h"
#include "tests/unit/tiers/tier_kit.h"

/* One group a part: a group of 256 tokens is 1 MiB. */
static const struct kit_geometry big = {.L = 7, .G = 8, .K = 128, .n_tokens = 256};
static const struct kit_geometry small = {.L = 3, .G = 2, .K = 8, .n_tokens = 40};

struct rig {
    struct gpu *g;
    struct tier *t;
};

static struct rig rig_open(uint64_t bytes, enum evict_policy policy)
{
    struct rig r = {0};
    struct err err = {0};
    ASSERT_OK(gpu_host_open(0, &r.g, &err));
    struct tier_gpu_opts o = {r.g, bytes, policy};
    ASSERT_OK(tier_gpu_create(&o, &r.t, &err));
    return r;
}

static void rig_close(struct rig *r)
{
    r->t->ops->destroy(r->t);
    gpu_close(r->g);
}

/* The header stays in host memory. */
static uint64_t on_device(const struct record_layout *l)
{
    return l->record_bytes - l->header_bytes;
}

static struct tier_stat stat_of(struct tier *t)
{
    struct tier_stat s;
    t->ops->stat(t, &s);
    return s;
}

static void put(struct tier *t, uint64_t id, const char *ns, struct kit_geometry g, int want)
{
    struct kit_rec r;
    kit_make(&r, id, ns, g);
    int got = kit_write(t, &r);
    kit_free(&r);
    ASSERT_EQ(got, want);
}

/* 1 the very bytes, 0 not here, <0 another failure. */
static int get(struct tier *t, uint64_t id, const char *ns, struct kit_geometry g)
{
    struct kit_rec want, got;
    kit_make(&want, id, ns, g);
    kit_blank(&got, id, ns, g);
    int found = t->ops->find(t, &want.desc.key);
    int r = kit_read(t, &got);
    bool same = memcmp(want.mem, got.mem, want.layout.record_bytes) == 0;
    kit_free(&want);
    kit_free(&got);
    ASSERT_EQ(r, found ? 0 : -ENOENT);
    if (r == 0) ASSERT_TRUE(same);
    return r == 0 ? 1 : r == -ENOENT ? 0 : r;
}

TEST(writes_and_reads)
{
    struct rig r = rig_open(32 << 20, EVICT_LRU);
    ASSERT_STREQ(r.t->name, "gpu");
    ASSERT_TRUE(!r.t->persistent && !r.t->shared);
    ASSERT_EQ(get(r.t, 1, "a", big), 0);
    uint8_t *memory = mem_aligned(4096, 8192);
    ASSERT_OK(r.t->ops->add_memory(r.t, memory, 8192));
    ASSERT_ERR(r.t->ops->add_memory(r.t, memory + 1, 4096), -EINVAL);
    put(r.t, 1, "a", big, 0);
    put(r.t, 2, "a", small, 0);
    put(r.t, 1, "a", big, 0); /* replaces */
    ASSERT_EQ(get(r.t, 1, "a", big), 1);
    ASSERT_EQ(get(r.t, 2, "a", small), 1);
    ASSERT_EQ(get(r.t, 1, "b", big), 0);
    struct tier_stat s = stat_of(r.t);
    struct kit_rec a, b;
    kit_blank(&a, 1, "a", big);
    kit_blank(&b, 2, "a", small);
    ASSERT_EQ(s.n_records, 2);
    ASSERT_EQ(s.used_bytes, on_device(&a.layout) + on_device(&b.layout));
    ASSERT_EQ(s.writes, 3);
    ASSERT_EQ(s.reads, 2);
    ASSERT_EQ(s.read_bytes, a.layout.record_bytes + b.layout.record_bytes);
    ASSERT_TRUE(s.read_ns >= s.first_ns && s.first_ns > 0);
    ASSERT_EQ(r.t->ops->remove(r.t, &a.desc.key, false), 1);
    ASSERT_EQ(r.t->ops->remove(r.t, &a.desc.key, false), 0);
    ASSERT_EQ(stat_of(r.t).used_bytes, on_device(&b.layout));
    kit_free(&a);
    kit_free(&b);
    rig_close(&r);
    mem_free(memory);
}

/* Memory that is given in on_part(0), ranges of parts, a reader that has enough. */
TEST(parts)
{
    struct rig r = rig_open(32 << 20, EVICT_LRU);
    struct kit_rec want, got;
    struct kit_call c;
    put(r.t, 1, "a", big, 0);
    kit_make(&want, 1, "a", big);
    kit_blank(&got, 1, "a", big);
    ASSERT_EQ(want.layout.n_parts, 7);
    kit_call_init(&c, &got);
    c.late_memory = true;
    kit_call_again(&c);
    ASSERT_OK(r.t->ops->read(r.t, &c.op));
    ASSERT_OK(kit_wait(&c));
    ASSERT_EQ(c.n_parts, 7);
    ASSERT_MEMEQ(want.mem, got.mem, want.layout.record_bytes);

    c.late_memory = false;
    for (uint32_t lo = 0; lo < 7; lo += 3) {
        kit_call_again(&c);
        memset(got.mem, 0, got.layout.record_bytes);
        c.op.part_lo = lo;
        c.op.part_hi = lo + 1;
        ASSERT_OK(r.t->ops->read(r.t, &c.op));
        ASSERT_OK(kit_wait(&c));
        ASSERT_EQ(c.n_parts, 1);
        ASSERT_MEMEQ(want.part[lo], got.part[lo], record_part_bytes(&want.layout, lo));
    }
    kit_call_again(&c);
    c.op.part_lo = 0;
    c.op.part_hi = 7;
    c.cancel_at = 0;
    ASSERT_OK(r.t->ops->read(r.t, &c.op));
    ASSERT_ERR(kit_wait(&c), -ECANCELED);
    ASSERT_EQ(c.n_parts, 1);
    kit_call_again(&c);
    c.cancel_at = UINT32_MAX;
    c.op.deadline_ns = 1;
    ASSERT_OK(r.t->ops->read(r.t, &c.op));
    ASSERT_ERR(kit_wait(&c), -ETIMEDOUT);
    ASSERT_EQ(stat_of(r.t).timeouts, 1);
    kit_call_fini(&c);
    kit_free(&want);
    kit_free(&got);
    rig_close(&r);
}

/* Nothing is visible before its last byte is there; a removal meanwhile is final. */
TEST(published_when_it_has_arrived)
{
    struct rig r = rig_open(32 << 20, EVICT_LRU);
    struct kit_rec a;
    struct kit_call c;
    kit_make(&a, 1, "a", big);
    kit_call_init(&c, &a);
    for (int removed = 0; removed < 2; removed++) {
        gpu_host_pause(r.g, true);
        ASSERT_OK(r.t->ops->write(r.t, &c.op));
        ASSERT_EQ(r.t->ops->find(r.t, &a.desc.key), 0);
        ASSERT_EQ(stat_of(r.t).used_bytes, on_device(&a.layout)); /* counts all the same */
        ASSERT_EQ(stat_of(r.t).inflight_ops, 1);
        ASSERT_ERR(r.t->ops->drain(r.t, clock_ns() + 1000000), -ETIMEDOUT);
        if (removed) ASSERT_EQ(r.t->ops->remove(r.t, &a.desc.key, false), 1);
        ASSERT_EQ(kit_done(&c), 0);
        gpu_host_pause(r.g, false);
        ASSERT_EQ(kit_wait(&c), removed ? -ECANCELED : 0);
        ASSERT_OK(r.t->ops->drain(r.t, 0));
        ASSERT_EQ(r.t->ops->find(r.t, &a.desc.key), !removed);
        ASSERT_EQ(r.t->ops->remove(r.t, &a.desc.key, false), !removed);
        ASSERT_EQ(stat_of(r.t).used_bytes, 0);
        kit_call_again(&c);
    }
    kit_call_fini(&c);
    kit_free(&a);
    rig_close(&r);
}

/* A record on its way cannot be pinned; one that is pinned can be neither evicted nor overwritten,
 * but removed from sight. */
TEST(pinned_records_stay)
{
    struct rig r = rig_open(32 << 20, EVICT_LRU);
    struct kit_rec a;
    struct kit_call c;
    struct tier_gpu_pin *p = NULL;
    void *dev;
    kit_make(&a, 1, "a", big);
    kit_call_init(&c, &a);
    ASSERT_EQ(tier_gpu_pin(r.t, &a.desc.key, &p), 0);
    gpu_host_pause(r.g, true);
    ASSERT_OK(r.t->ops->write(r.t, &c.op));
    ASSERT_EQ(tier_gpu_pin(r.t, &a.desc.key, &p), 0);
    gpu_host_pause(r.g, false);
    ASSERT_OK(kit_wait(&c));
    ASSERT_EQ(tier_gpu_pin(r.t, &a.desc.key, &p), 1);
    ASSERT_EQ(tier_gpu_layout(p)->n_groups, a.layout.n_groups);
    for (uint64_t id = 100; id < 110; id++)
        put(r.t, id, "a", big, 0);
    ASSERT_EQ(r.t->ops->find(r.t, &a.desc.key), 1);
    ASSERT_EQ(r.t->ops->remove(r.t, &a.desc.key, false), 1);
    ASSERT_EQ(r.t->ops->find(r.t, &a.desc.key), 0);
    for (uint32_t i = 0; i < a.layout.n_groups; i++) {
        ASSERT_OK(tier_gpu_group(p, i, &dev));
        ASSERT_MEMEQ(gpu_host_view(r.g, dev), record_group(a.part, &a.layout, i),
                     a.layout.group_bytes);
    }
    uint64_t before = stat_of(r.t).used_bytes;
    tier_gpu_unpin(p);
    ASSERT_EQ(stat_of(r.t).used_bytes, before - on_device(&a.layout));
    kit_call_fini(&c);
    kit_free(&a);
    rig_close(&r);
}

TEST(refuses_what_is_no_record)
{
    struct rig r = rig_open(32 << 20, EVICT_LRU);
    struct kit_rec a, b;
    kit_make(&a, 1, "a", small);
    kit_make(&b, 2, "a", small);
    a.part[0][20] ^= 1;
    ASSERT_ERR(kit_write(r.t, &a), -EBADMSG);
    b.desc.key.lo++;
    ASSERT_ERR(kit_write(r.t, &b), -EBADMSG);
    ASSERT_EQ(stat_of(r.t).used_bytes, 0);
    kit_free(&a);
    kit_free(&b);
    struct err err = {0};
    struct tier *t = NULL;
    struct tier_gpu_opts o = {r.g, 100, EVICT_LRU};
    ASSERT_ERR(tier_gpu_create(&o, &t, &err), -EINVAL);
    o.capacity_bytes = 1ull << 50;
    ASSERT_ERR(tier_gpu_create(&o, &t, &err), -ENOMEM);
    rig_close(&r);
}

TEST(pins_quotas_and_caps)
{
    struct kit_rec a;
    kit_make(&a, 1, "a", big);
    uint64_t size = on_device(&a.layout);
    struct rig r = rig_open(3 * size, EVICT_LRU);
    const struct tier_ops *ops = r.t->ops;
    put(r.t, 1, "a", big, 0);
    put(r.t, 2, "a", big, 0);
    put(r.t, 3, "b", big, 0);
    ASSERT_EQ(ops->set_pinned(r.t, &a.desc.key, true), 1);
    ASSERT_EQ(stat_of(r.t).pinned_bytes, size);
    ASSERT_ERR(ops->remove(r.t, &a.desc.key, false), -EBUSY);
    put(r.t, 4, "a", big, 0); /* 2 makes way, as 1 is pinned */
    ASSERT_EQ(get(r.t, 1, "a", big), 1);
    ASSERT_EQ(get(r.t, 2, "a", big), 0);
    ASSERT_OK(ops->set_quota(r.t, record_ns_hash("a"), size)); /* over it: evicts at once */
    ASSERT_EQ(get(r.t, 4, "a", big), 0);
    ASSERT_EQ(get(r.t, 3, "b", big), 1); /* the other namespace's is the older one, and stays */
    put(r.t, 5, "a", big, -ENOSPC);
    ASSERT_EQ(stat_of(r.t).rejected[TIER_REJECT_QUOTA], 1);
    ASSERT_EQ(get(r.t, 3, "b", big), 1);
    put(r.t, 6, "b", big, 0);
    ASSERT_OK(ops->set_quota(r.t, record_ns_hash("a"), size - 1)); /* smaller than a record */
    ASSERT_EQ(get(r.t, 1, "a", big), 1);                           /* pinned */
    ASSERT_ERR(ops->resize(r.t, 4 * size), -ENOTSUP);
    ASSERT_ERR(ops->resize(r.t, 0), -EINVAL);
    ASSERT_OK(ops->resize(r.t, 2 * size));
    ASSERT_TRUE(stat_of(r.t).used_bytes <= 2 * size);
    ASSERT_OK(ops->resize(r.t, size));
    ASSERT_EQ(get(r.t, 1, "a", big), 1);
    put(r.t, 7, "b", big, -ENOSPC); /* everything is pinned */
    ASSERT_EQ(stat_of(r.t).rejected[TIER_REJECT_FULL], 1);
    ASSERT_OK(ops->resize(r.t, size - 4096)); /* goes with the pin */
    ASSERT_EQ(ops->set_pinned(r.t, &a.desc.key, false), 1);
    ASSERT_EQ(stat_of(r.t).used_bytes, 0);
    put(r.t, 7, "b", big, -ENOSPC);
    ASSERT_EQ(stat_of(r.t).rejected[TIER_REJECT_SIZE], 1);
    ASSERT_OK(ops->resize(r.t, 3 * size));
    put(r.t, 7, "b", big, 0);
    ASSERT_EQ(get(r.t, 7, "b", big), 1);
    kit_free(&a);
    rig_close(&r);
}

/* ---- a pool shared with sequences ---- */

enum { FRAME = 1 << 20, N_FRAMES = 16 }; /* of a `big` record each group is a frame */

static struct rig rig_share(size_t frame_bytes, void **ret_pool)
{
    struct rig r = {0};
    struct err err = {0};
    ASSERT_OK(gpu_host_open(0, &r.g, &err));
    ASSERT_OK(gpu_alloc(r.g, N_FRAMES * frame_bytes, ret_pool));
    const struct tier_gpu_opts o = {.gpu = r.g,
                                    .capacity_bytes = N_FRAMES * frame_bytes,
                                    .pool = *ret_pool,
                                    .frame_bytes = frame_bytes};
    ASSERT_OK(tier_gpu_create(&o, &r.t, &err));
    return r;
}

TEST(sequences_come_first)
{
    void *pool = NULL;
    struct rig r = rig_share(FRAME, &pool);
    struct tier_gpu_pin *p = NULL;
    struct kit_rec a;
    int32_t frame[N_FRAMES];
    bool seen[N_FRAMES] = {0};
    kit_make(&a, 2, "a", big);
    put(r.t, 1, "a", big, 0);
    put(r.t, 2, "a", big, 0);
    ASSERT_EQ(stat_of(r.t).used_bytes, 12 * FRAME);
    ASSERT_EQ(tier_gpu_pin(r.t, &a.desc.key, &p), 1);
    for (int i = 0; i < N_FRAMES; i++) {
        frame[i] = tier_gpu_lend(r.t);
        ASSERT_TRUE(frame[i] >= 0 && frame[i] < N_FRAMES && !seen[frame[i]]);
        seen[frame[i]] = true;
        /* 4 were free, 6 are of what nobody holds, the others of what is pinned. */
        ASSERT_EQ(stat_of(r.t).n_records, i < 4 ? 2 : i < 10 ? 1 : 0);
        ASSERT_EQ(get(r.t, 2, "a", big), i < 10);
        void *dev;
        ASSERT_EQ(tier_gpu_group(p, 0, &dev), i < 10 ? 0 : -ECANCELED);
    }
    put(r.t, 3, "a", big, -ENOSPC);
    tier_gpu_unpin(p);
    put(r.t, 3, "a", big, -ENOSPC);
    ASSERT_EQ(stat_of(r.t).used_bytes, 0);
    for (int i = 0; i < N_FRAMES; i += 2) /* no two neighbours, or nearly */
        tier_gpu_take_back(r.t, frame[i]);
    put(r.t, 3, "a", big, 0);
    ASSERT_EQ(get(r.t, 3, "a", big), 1);
    for (int i = 1; i < N_FRAMES; i += 2)
        tier_gpu_take_back(r.t, frame[i]);
    kit_free(&a);
    r.t->ops->destroy(r.t);
    gpu_free(r.g, pool);
    gpu_close(r.g);
}

/* A frame is asked for while the only record is still on its way: the copy ends first. */
static void *lend_one(void *arg)
{
    const struct rig *r = arg;
    tier_gpu_take_back(r->t, tier_gpu_lend(r->t));
    return NULL;
}

TEST(copies_under_way_are_waited_for)
{
    void *pool = NULL;
    struct rig r = rig_share(FRAME, &pool);
    struct kit_rec a;
    struct kit_call c;
    int32_t frame[10];
    pthread_t th;
    kit_make(&a, 1, "a", big);
    kit_call_init(&c, &a);
    for (int i = 0; i < 10; i++)
        frame[i] = tier_gpu_lend(r.t);
    gpu_host_pause(r.g, true);
    ASSERT_OK(r.t->ops->write(r.t, &c.op));
    ASSERT_EQ(pthread_create(&th, NULL, lend_one, &r), 0);
    gpu_host_pause(r.g, false);
    ASSERT_OK(kit_wait(&c));
    ASSERT_EQ(pthread_join(th, NULL), 0);
    ASSERT_EQ(get(r.t, 1, "a", big), 0);
    for (int i = 0; i < 10; i++)
        tier_gpu_take_back(r.t, frame[i]);
    kit_call_fini(&c);
    kit_free(&a);
    r.t->ops->destroy(r.t);
    gpu_free(r.g, pool);
    gpu_close(r.g);
}

/* Sequences that come and go while records do: no frame has two owners, and what is read is whole.
 * Most seeds have a sixteenth of the bytes, so that sanitizers have time for all. */
TEST(property_shared_pool)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        const unsigned less = seed % 5 ? 16 : 1;
        const size_t frame_bytes = FRAME / less;
        void *pool = NULL;
        struct rig r = rig_share(frame_bytes, &pool);
        uint64_t rand = seed;
        int32_t frame[N_FRAMES];
        uint32_t n = 0;
        for (int i = 0; i < 60; i++) {
            struct kit_geometry g = big;
            uint64_t id = test_rand(&rand) % 6;
            g.n_tokens = 64 + 100 * (uint32_t)id; /* up to three frames a group */
            g.K /= less;
            unsigned what = (unsigned)(test_rand(&rand) % 4);
            struct kit_rec a;
            if (what == 0 && n < N_FRAMES) {
                frame[n++] = tier_gpu_lend(r.t);
                memset(gpu_host_view(r.g, (char *)pool + (size_t)frame[n - 1] * frame_bytes), 0xEE,
                       frame_bytes);
            } else if (what == 1 && n > 0) {
                uint32_t one = (uint32_t)(test_rand(&rand) % n);
                tier_gpu_take_back(r.t, frame[one]);
                frame[one] = frame[--n];
            } else if (what == 2) {
                kit_make(&a, id, "a", g);
                int w = kit_write(r.t, &a);
                ASSERT_TRUE(w == 0 || w == -ENOSPC);
                kit_free(&a);
            } else {
                (void)get(r.t, id, "a", g);
            }
            ASSERT_TRUE(stat_of(r.t).used_bytes + n * frame_bytes <= N_FRAMES * frame_bytes);
        }
        while (n > 0)
            tier_gpu_take_back(r.t, frame[--n]);
        r.t->ops->destroy(r.t);
        gpu_free(r.g, pool);
        gpu_close(r.g);
    }
}

static int count_visit(void *ctx, const struct tier_info *i)
{
    ASSERT_TRUE(i->size_bytes > 0 && i->n_tokens == small.n_tokens);
    return ++*(int *)ctx == 5 ? 7 : 0;
}

TEST(scan_policy_expiry)
{
    struct rig r = rig_open(32 << 20, EVICT_LRU);
    const struct tier_ops *ops = r.t->ops;
    for (uint64_t id = 0; id < 8; id++)
        put(r.t, id, "a", small, 0);
    int n = 0;
    ASSERT_EQ(ops->scan(r.t, count_visit, &n), 7);
    for (int p = 0; p < EVICT_POLICY_COUNT; p++) {
        ASSERT_OK(ops->set_policy(r.t, (enum evict_policy)p));
        for (uint64_t id = 0; id < 8; id++)
            ASSERT_EQ(get(r.t, id, "a", small), 1);
    }
    ASSERT_ERR(ops->set_policy(r.t, EVICT_POLICY_COUNT), -EINVAL);
    struct kit_rec a;
    kit_make(&a, 50, "a", small);
    a.desc.expires_ms = 2;
    int32_t tok[40];
    uint64_t seed = 50;
    for (int i = 0; i < 40; i++)
        tok[i] = (int32_t)(test_rand(&seed) % 30000);
    record_init(a.part[0], &a.desc, &a.layout, tok);
    record_seal(a.part, &a.layout);
    ASSERT_OK(kit_write(r.t, &a));
    ASSERT_EQ(ops->find(r.t, &a.desc.key), 0);
    ASSERT_EQ(stat_of(r.t).expired, 1);
    kit_free(&a);
    rig_close(&r);
}

/* A lost device fails every op and costs no memory. */
TEST(device_is_lost)
{
    struct rig r = rig_open(32 << 20, EVICT_LRU);
    struct kit_rec a;
    struct kit_call c;
    put(r.t, 1, "a", big, 0);
    kit_make(&a, 2, "a", big);
    kit_call_init(&c, &a);
    gpu_host_pause(r.g, true);
    ASSERT_OK(r.t->ops->write(r.t, &c.op));
    gpu_host_lose(r.g);
    ASSERT_ERR(kit_wait(&c), -EIO);
    ASSERT_EQ(r.t->ops->find(r.t, &a.desc.key), 0);
    kit_call_again(&c);
    c.op.key = tier_key_chunk(&(struct tier_ident){0}, "", NULL, 0);
    ASSERT_ERR(r.t->ops->read(r.t, &c.op), -ENOENT);
    struct kit_rec b;
    kit_blank(&b, 1, "a", big);
    ASSERT_ERR(kit_read(r.t, &b), -EIO);
    ASSERT_TRUE(stat_of(r.t).errors >= 2);
    kit_free(&b);
    kit_call_fini(&c);
    kit_free(&a);
    rig_close(&r);
}

TEST(destroy_ends_what_is_queued)
{
    for (int round = 0; round < 20; round++) {
        struct rig r = rig_open(32 << 20, EVICT_LRU);
        struct kit_rec a[4];
        struct kit_call c[4];
        if (round % 2) gpu_host_pause(r.g, true);
        for (int i = 0; i < 4; i++) {
            kit_make(&a[i], (uint64_t)i, "a", small);
            kit_call_init(&c[i], &a[i]);
            ASSERT_OK(r.t->ops->write(r.t, &c[i].op));
        }
        gpu_host_pause(r.g, false);
        rig_close(&r);
        for (int i = 0; i < 4; i++) {
            ASSERT_EQ(kit_done(&c[i]), 1);
            int status = kit_wait(&c[i]);
            ASSERT_TRUE(status == 0 || status == -ECANCELED);
            kit_call_fini(&c[i]);
            kit_free(&a[i]);
        }
    }
}

TEST(every_allocation_may_fail)
{
    struct kit_rec a, b;
    kit_make(&a, 1, "a", small);
    kit_blank(&b, 1, "a", small);
    for (unsigned n = 1;; n++) {
        struct gpu *g = NULL;
        struct tier *t = NULL;
        struct err err;
        ASSERT_OK(gpu_host_open(0, &g, &err));
        struct tier_gpu_opts o = {g, 1 << 20, EVICT_ARC};
        mem_fail_nth(n);
        int r = tier_gpu_create(&o, &t, &err);
        if (r == 0) r = kit_write(t, &a);
        if (r == 0) r = kit_read(t, &b);
        if (r == 0) r = t->ops->set_policy(t, EVICT_ARC);
        bool fired = mem_fail_fired();
        mem_fail_nth(0);
        ASSERT_EQ(r, fired ? -ENOMEM : 0);
        if (t) t->ops->destroy(t);
        gpu_close(g);
        if (!fired) break;
    }
    kit_free(&a);
    kit_free(&b);
}

/* Threads that write, read, pin and remove records of a tier that holds half of them: what is read
 * is whole, the cap holds at every look, and afterwards the accounting is exact. */
struct stress {
    struct rig r;
    uint64_t seed, cap;
    int bad, over, hits;
};

static int read_whole(struct tier *t, uint64_t id, struct kit_geometry g)
{
    struct kit_rec want, got;
    kit_make(&want, id, "a", g);
    kit_blank(&got, id, "a", g);
    struct kit_call c;
    kit_call_init(&c, &got);
    c.late_memory = id % 2;
    kit_call_again(&c);
    int r = t->ops->read(t, &c.op);
    if (r == 0) r = kit_wait(&c);
    bool same = r < 0 || memcmp(want.mem, got.mem, want.layout.record_bytes) == 0;
    kit_call_fini(&c);
    kit_free(&want);
    kit_free(&got);
    return same ? r == 0 : -1;
}

static bool pinned_is_whole(struct stress *s, uint64_t id, struct kit_geometry g)
{
    struct kit_rec want;
    struct tier_gpu_pin *p = NULL;
    bool same = true;
    kit_make(&want, id, "a", g);
    if (tier_gpu_pin(s->r.t, &want.desc.key, &p) == 1) {
        for (uint32_t i = 0; i < want.layout.n_groups && same; i++) {
            void *dev;
            if (tier_gpu_group(p, i, &dev) < 0) break;
            same = memcmp(gpu_host_view(s->r.g, dev), record_group(want.part, &want.layout, i),
                          want.layout.group_bytes) == 0;
        }
        tier_gpu_unpin(p);
    }
    kit_free(&want);
    return same;
}

static void *stress_run(void *arg)
{
    struct stress *s = arg;
    struct tier *t = s->r.t;
    for (int i = 0; i < 150; i++) {
        uint64_t id = test_rand(&s->seed) % 24;
        struct kit_geometry g = small;
        g.n_tokens = 16 + 40 * (uint32_t)(id % 5);
        struct kit_rec a;
        kit_make(&a, id, "a", g);
        int what = (int)(test_rand(&s->seed) % 10);
        if (what < 4) {
            int r = kit_write(t, &a);
            s->bad += r != 0 && r != -ENOSPC && r != -ECANCELED;
        } else if (what < 7) {
            int r = read_whole(t, id, g);
            s->bad += r < 0;
            s->hits += r > 0;
        } else if (what == 7) {
            s->bad += !pinned_is_whole(s, id, g);
        } else if (what == 8) {
            (void)t->ops->remove(t, &a.desc.key, true);
        } else {
            (void)t->ops->set_pinned(t, &a.desc.key, test_rand(&s->seed) % 4 == 0);
        }
        s->over += stat_of(t).used_bytes > s->cap;
        kit_free(&a);
    }
    return NULL;
}

TEST(property_threads)
{
    for (int p = 0; p < EVICT_POLICY_COUNT; p++) {
        struct stress s[3];
        pthread_t th[3];
        uint64_t cap = 12 * 5 * 4096;
        struct rig r = rig_open(cap, (enum evict_policy)p);
        int hits = 0;
        for (int i = 0; i < 3; i++) {
            s[i] = (struct stress){.r = r, .seed = (uint64_t)(10 * p + i), .cap = cap};
            ASSERT_EQ(pthread_create(&th[i], NULL, stress_run, &s[i]), 0);
        }
        for (int i = 0; i < 3; i++) {
            ASSERT_EQ(pthread_join(th[i], NULL), 0);
            ASSERT_EQ(s[i].bad, 0);
            ASSERT_EQ(s[i].over, 0);
            hits += s[i].hits;
        }
        ASSERT_TRUE(hits > 0);
        ASSERT_TRUE(stat_of(r.t).evictions > 0);
        for (uint64_t id = 0; id < 24; id++) {
            struct kit_geometry g = small;
            g.n_tokens = 16 + 40 * (uint32_t)(id % 5);
            struct kit_rec a;
            kit_blank(&a, id, "a", g);
            (void)r.t->ops->remove(r.t, &a.desc.key, true);
            kit_free(&a);
        }
        struct tier_stat st = stat_of(r.t);
        ASSERT_EQ(st.used_bytes, 0);
        ASSERT_EQ(st.pinned_bytes, 0);
        ASSERT_EQ(st.n_records, 0);
        rig_close(&r);
    }
}
