/* The NVMe tier as a tier: what it keeps, what makes way, what a restart finds. */
#include "tests/unit/tiers/nvme_kit.h"

#include "base/clock.h"
#include "base/mem.h"
#include "tests/test.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

static const struct kit_geometry tiny = {.L = 2, .G = 1, .K = 32, .n_tokens = 8};     /* 8 KiB */
static const struct kit_geometry small = {.L = 5, .G = 2, .K = 32, .n_tokens = 100};  /* 108 KiB */
static const struct kit_geometry medium = {.L = 9, .G = 2, .K = 64, .n_tokens = 100}; /* 420 KiB */
static const struct kit_geometry large = {.L = 9, .G = 4, .K = 64, .n_tokens = 100};  /* 836 KiB */
static const struct kit_geometry huge = {.L = 5, .G = 8, .K = 128, .n_tokens = 300};  /* 4.7 MiB */

static uint64_t now_ms(void)
{
    return wall_ms();
}

/* Wait by condition, 60 s at most. */
#define UNTIL(cond)                                                                                \
    do {                                                                                           \
        uint64_t until_ = clock_ns() + 60000000000u;                                               \
        while (!(cond))                                                                            \
            if (clock_ns() > until_) test_fail(__FILE__, __LINE__, "never: %s", #cond);            \
    } while (0)

/* Slots of a size that the tier holds at most. */
static uint64_t slots_of(const struct tier_nvme_opts *o, struct kit_geometry g)
{
    struct kit_rec r;
    unsigned class;
    kit_blank(&r, 1, "", g);
    uint32_t pages = nvme_class_of(r.layout.record_bytes, o->extent_bytes, &class);
    kit_free(&r);
    ASSERT_TRUE(pages > 0);
    uint64_t extents = (o->capacity_bytes - NVME_DATA_OFF) / o->extent_bytes;
    return extents * (o->extent_bytes / ((uint64_t)pages * NVME_PAGE));
}

static void put_expiring(struct tier *t, uint64_t id, uint64_t expires_ms)
{
    struct kit_rec r;
    kit_make(&r, id, "a", small);
    memcpy(r.part[0] + 104, &expires_ms, 8);
    record_seal(r.part, &r.layout);
    ASSERT_OK(kit_write(t, &r));
    kit_free(&r);
}

TEST(round_trip_and_reopen)
{
    static const struct kit_geometry all[] = {tiny,
                                              small,
                                              medium,
                                              large,
                                              huge,
                                              {.L = 1, .G = 1, .K = 1, .n_tokens = 1},
                                              {.L = 20, .G = 3, .K = 64, .n_tokens = 77}};
    struct nvme_file f;
    nvme_file_make(&f);
    struct tier_nvme_opts o = nvme_opts(&f, 200 << 20);
    o.extent_bytes = 8 << 20;
    struct tier *t = nvme_tier(&o);
    ASSERT_TRUE(t->persistent && !t->shared);
    ASSERT_STREQ(t->name, "nvme");
    for (int pass = 0; pass < 3; pass++) {
        for (uint64_t id = 1; id <= 35; id++) {
            if (pass == 0) ASSERT_OK(nvme_put(t, id, "a", all[id % 7]));
            ASSERT_EQ(nvme_find(t, id, "a", all[id % 7]), 1);
            ASSERT_OK(nvme_check(t, id, "a", all[id % 7]));
        }
        ASSERT_EQ(nvme_find(t, 99, "a", small), 0);
        ASSERT_ERR(nvme_check(t, 99, "a", small), -ENOENT);
        struct tier_stat s = nvme_stat(t);
        ASSERT_EQ(s.n_records, 35);
        ASSERT_EQ(s.reads, 35);
        ASSERT_EQ(s.writes, pass == 0 ? 35 : 0);
        ASSERT_EQ(s.inflight_ops + s.inflight_bytes + s.corrupt + s.errors, 0);
        nvme_assert_exact(t, f.path);
        t->ops->destroy(t);
        t = nvme_tier(&o);
    }
    t->ops->destroy(t);
    nvme_file_remove(&f);
}

/* 512 tokens of 31 layers in 16 bits: 62 MiB a record, extents as a worker has them. */
TEST(chunks_of_a_7b_model)
{
    const struct kit_geometry g = {.L = 32, .G = 8, .K = 128, .n_tokens = 512};
    struct nvme_file f;
    struct kit_rec r;
    nvme_file_make(&f);
    kit_blank(&r, 1, "", g);
    struct tier_nvme_opts o = nvme_opts(&f, 300 << 20);
    o.record_bytes_usual = r.layout.record_bytes;
    ASSERT_TRUE(o.record_bytes_usual > 62 << 20);
    kit_free(&r);
    o.extent_bytes = nvme_extent_auto(o.capacity_bytes, o.record_bytes_usual);
    const uint64_t room = slots_of(&o, g);
    ASSERT_TRUE(room >= 2);
    o.extent_bytes = 0;
    struct tier *t = nvme_tier(&o);
    for (uint64_t id = 1; id <= room + 1; id++) /* the first makes way */
        ASSERT_OK(nvme_put(t, id, "a", g));
    t->ops->destroy(t);
    t = nvme_tier(&o);
    ASSERT_EQ(nvme_find(t, 1, "a", g), 0);
    for (uint64_t id = room; id <= room + 1; id++)
        ASSERT_OK(nvme_check(t, id, "a", g));
    ASSERT_EQ(nvme_stat(t).corrupt + nvme_stat(t).errors, 0);
    nvme_assert_exact(t, f.path);
    t->ops->destroy(t);
    nvme_file_remove(&f);
}

TEST(file_never_grows)
{
    struct nvme_file f;
    struct stat st;
    nvme_file_make(&f);
    struct tier_nvme_opts o = nvme_opts(&f, (9 << 20) + 12345);
    struct tier *t = nvme_tier(&o);
    for (uint64_t id = 1; id <= 200; id++)
        ASSERT_OK(nvme_put(t, id, "a", id % 3 ? small : medium));
    ASSERT_OK(stat(f.path, &st));
    ASSERT_TRUE((uint64_t)st.st_size <= o.capacity_bytes);
    ASSERT_TRUE((uint64_t)st.st_blocks * 512 <= o.capacity_bytes + (64 << 10)); /* metadata */
    ASSERT_TRUE((uint64_t)st.st_blocks * 512 + (64 << 10) >= o.capacity_bytes); /* preallocated */
    struct tier_stat s = nvme_stat(t);
    ASSERT_TRUE(s.used_bytes <= s.capacity_bytes);
    ASSERT_TRUE(s.evictions > 0);
    nvme_assert_exact(t, f.path);
    t->ops->destroy(t);
    nvme_file_remove(&f);
}

TEST(evicts_the_coldest)
{
    struct nvme_file f;
    nvme_file_make(&f);
    struct tier_nvme_opts o = nvme_opts(&f, 5 << 20);
    struct tier *t = nvme_tier(&o);
    uint64_t n = slots_of(&o, small);
    for (uint64_t id = 1; id <= n; id++)
        ASSERT_OK(nvme_put(t, id, "a", small));
    ASSERT_EQ(nvme_stat(t).evictions, 0);
    ASSERT_OK(nvme_check(t, 1, "a", small));
    struct tier_key k2 = nvme_key(2, "a", small);
    t->ops->touch(t, &k2);
    for (uint64_t id = n + 1; id <= n + 2; id++)
        ASSERT_OK(nvme_put(t, id, "a", small));
    ASSERT_EQ(nvme_stat(t).evictions, 2);
    for (uint64_t id = 1; id <= n + 2; id++)
        ASSERT_EQ(nvme_find(t, id, "a", small), id != 3 && id != 4);
    nvme_assert_exact(t, f.path);
    t->ops->destroy(t);
    /* The order survives a restart, but for what was only read. */
    t = nvme_tier(&o);
    ASSERT_OK(nvme_put(t, n + 3, "a", small));
    ASSERT_EQ(nvme_find(t, 1, "a", small), 0);
    ASSERT_EQ(nvme_find(t, n + 2, "a", small), 1);
    t->ops->destroy(t);
    nvme_file_remove(&f);
}

/* A new class takes the extent that rested longest; a class with records of its own takes another
 * one's only when that rested much longer. */
TEST(extents_move_between_classes)
{
    struct nvme_file f;
    nvme_file_make(&f);
    struct tier_nvme_opts o = nvme_opts(&f, 5 << 20);
    struct tier *t = nvme_tier(&o);
    uint64_t n = slots_of(&o, small);
    for (uint64_t id = 1; id <= n; id++)
        ASSERT_OK(nvme_put(t, id, "a", small));
    ASSERT_OK(nvme_put(t, 1000, "a", large));
    ASSERT_OK(nvme_check(t, 1000, "a", large));
    ASSERT_EQ(nvme_stat(t).n_records, n - n / 4 + 1);
    ASSERT_OK(nvme_put(t, 1001, "a", large)); /* at once: evicts its own */
    ASSERT_EQ(nvme_stat(t).n_records, n - n / 4 + 1);
    ASSERT_EQ(nvme_find(t, 1000, "a", large), 0);
    UNTIL(nvme_stat(t).tail_age_s > 1.2);
    ASSERT_OK(nvme_put(t, 1002, "a", large));
    ASSERT_OK(nvme_put(t, 1003, "a", large));
    uint64_t left = nvme_stat(t).n_records;
    ASSERT_TRUE(left < n - n / 4 + 1); /* it took another extent from the small ones */
    ASSERT_EQ(nvme_find(t, 1003, "a", large), 1);
    nvme_assert_exact(t, f.path);
    t->ops->destroy(t);
    t = nvme_tier(&o);
    ASSERT_EQ(nvme_stat(t).n_records, left);
    ASSERT_OK(nvme_check(t, 1003, "a", large));
    nvme_assert_exact(t, f.path);
    t->ops->destroy(t);
    nvme_file_remove(&f);
}

TEST(too_large)
{
    struct nvme_file f;
    nvme_file_make(&f);
    struct tier_nvme_opts o = nvme_opts(&f, 8 << 20);
    struct tier *t = nvme_tier(&o);
    ASSERT_ERR(nvme_put(t, 1, "a", huge), -ENOSPC);
    ASSERT_EQ(nvme_stat(t).rejected[TIER_REJECT_SIZE], 1);
    ASSERT_EQ(nvme_stat(t).n_records, 0);
    t->ops->destroy(t);
    nvme_file_remove(&f);
}

TEST(pins_stay)
{
    struct nvme_file f;
    nvme_file_make(&f);
    struct tier_nvme_opts o = nvme_opts(&f, 3 << 20);
    struct tier *t = nvme_tier(&o);
    uint64_t n = slots_of(&o, small);
    struct tier_key k1 = nvme_key(1, "a", small);
    ASSERT_EQ(t->ops->set_pinned(t, &k1, true), 0);
    for (uint64_t id = 1; id <= n; id++) {
        ASSERT_OK(nvme_put(t, id, "a", small));
        if (id == 1) ASSERT_EQ(t->ops->set_pinned(t, &k1, true), 1);
    }
    for (uint64_t id = 1000; id < 1000 + 2 * n; id++)
        ASSERT_OK(nvme_put(t, id, "a", small));
    ASSERT_OK(nvme_check(t, 1, "a", small));
    ASSERT_OK(nvme_put(t, 1, "a", small)); /* replaced: still pinned */
    struct tier_stat s = nvme_stat(t);
    ASSERT_EQ(s.pinned_bytes * s.n_records, s.used_bytes);
    ASSERT_ERR(t->ops->remove(t, &k1, false), -EBUSY);
    ASSERT_OK(nvme_put(t, 1000 + 2 * n, "a", small)); /* where the replaced one was */
    /* Everything pinned: no room, for the same and for another class. */
    for (uint64_t id = 1000; id <= 1000 + 2 * n; id++) {
        struct tier_key k = nvme_key(id, "a", small);
        (void)t->ops->set_pinned(t, &k, true);
    }
    ASSERT_ERR(nvme_put(t, 5000, "a", small), -ENOSPC);
    ASSERT_ERR(nvme_put(t, 5001, "a", large), -ENOSPC);
    ASSERT_EQ(nvme_stat(t).rejected[TIER_REJECT_FULL], 2);
    ASSERT_EQ(nvme_stat(t).n_records, n);
    ASSERT_EQ(t->ops->remove(t, &k1, true), 1);
    ASSERT_EQ(nvme_find(t, 1, "a", small), 0);
    ASSERT_OK(nvme_put(t, 5000, "a", small));
    nvme_assert_exact(t, f.path);
    t->ops->destroy(t);
    t = nvme_tier(&o); /* pins do not survive */
    ASSERT_EQ(nvme_stat(t).pinned_bytes, 0);
    ASSERT_EQ(nvme_stat(t).n_records, n);
    ASSERT_OK(nvme_put(t, 6000, "a", large));
    t->ops->destroy(t);
    nvme_file_remove(&f);
}

TEST(quotas_are_hard)
{
    struct nvme_file f;
    nvme_file_make(&f);
    struct tier_nvme_opts o = nvme_opts(&f, 16 << 20);
    struct tier *t = nvme_tier(&o);
    for (uint64_t id = 1; id <= 30; id++) {
        ASSERT_OK(nvme_put(t, id, "a", small));
        ASSERT_OK(nvme_put(t, id, "b", small));
    }
    uint64_t slot = nvme_stat(t).used_bytes / 60;
    ASSERT_OK(t->ops->set_quota(t, record_ns_hash("a"), 10 * slot)); /* evicts at once */
    ASSERT_EQ(nvme_stat(t).n_records, 40);
    for (uint64_t id = 100; id < 130; id++)
        ASSERT_OK(nvme_put(t, id, "a", id % 2 ? small : tiny));
    uint64_t a = 0, b = 0;
    for (uint64_t id = 1; id < 130; id++) {
        a += nvme_find(t, id, "a", small) * slot + nvme_find(t, id, "a", tiny) * 3 * NVME_PAGE;
        b += nvme_find(t, id, "b", small) * slot;
    }
    ASSERT_TRUE(a <= 10 * slot && a >= 8 * slot);
    ASSERT_EQ(b, 30 * slot);
    ASSERT_OK(t->ops->set_quota(t, record_ns_hash("a"), slot));
    ASSERT_ERR(nvme_put(t, 500, "a", large), -ENOSPC); /* larger than the quota as a whole */
    ASSERT_EQ(nvme_stat(t).rejected[TIER_REJECT_QUOTA], 1);
    ASSERT_OK(t->ops->set_quota(t, record_ns_hash("a"), 0));
    ASSERT_OK(nvme_put(t, 500, "a", large));
    nvme_assert_exact(t, f.path);
    t->ops->destroy(t);
    nvme_file_remove(&f);
}

TEST(expiry)
{
    struct nvme_file f;
    nvme_file_make(&f);
    struct tier_nvme_opts o = nvme_opts(&f, 3 << 20);
    struct tier *t = nvme_tier(&o);
    uint64_t n = slots_of(&o, small), soon = now_ms() + 300;
    for (uint64_t id = 1; id <= n; id++)
        put_expiring(t, id, id % 3 == 0 ? soon + id % 7 : id % 2 ? 0 : soon + 1000000);
    uint64_t before = nvme_stat(t).n_records;
    ASSERT_TRUE(before == n || now_ms() > soon);
    UNTIL(now_ms() > soon + 10);
    ASSERT_EQ(nvme_find(t, 3, "a", small), 0);
    ASSERT_ERR(nvme_check(t, 6, "a", small), -ENOENT);
    struct tier_stat s = nvme_stat(t);
    ASSERT_EQ(s.expired, n / 3);
    ASSERT_EQ(s.n_records, n - n / 3);
    for (uint64_t id = 1000; id < 1000 + n / 3; id++) /* into their places: nobody is evicted */
        ASSERT_OK(nvme_put(t, id, "a", small));
    ASSERT_EQ(nvme_stat(t).evictions, 0);
    put_expiring(t, 2000, now_ms() + 200);
    t->ops->destroy(t);
    UNTIL(now_ms() > soon + 600);
    t = nvme_tier(&o); /* dropped at recovery as well */
    ASSERT_EQ(nvme_find(t, 2000, "a", small), 0);
    nvme_assert_exact(t, f.path);
    t->ops->destroy(t);
    nvme_file_remove(&f);
}

TEST(removed_is_removed)
{
    struct nvme_file f;
    nvme_file_make(&f);
    struct tier_nvme_opts o = nvme_opts(&f, 16 << 20);
    struct tier *t = nvme_tier(&o);
    for (uint64_t id = 1; id <= 60; id++)
        ASSERT_OK(nvme_put(t, id, "a", small));
    for (uint64_t id = 1; id <= 60; id += 2) {
        struct tier_key k = nvme_key(id, "a", small);
        ASSERT_EQ(t->ops->remove(t, &k, false), 1);
        ASSERT_EQ(t->ops->remove(t, &k, false), 0);
        ASSERT_EQ(t->ops->find(t, &k), 0);
    }
    ASSERT_OK(t->ops->drain(t, 0));
    uint64_t used, n;
    nvme_raw_count(f.path, &used, &n); /* on the device too */
    ASSERT_EQ(n, 30);
    struct tier_key k2 = nvme_key(2, "a", small);
    ASSERT_EQ(t->ops->remove(t, &k2, false), 1);
    t->ops->destroy(t);
    t = nvme_tier(&o);
    ASSERT_EQ(nvme_stat(t).n_records, 29);
    t->ops->destroy(t);
    nvme_file_remove(&f);
}

/* A removal also ends a write of that key that is under way: no find says 1 afterwards. */
TEST(remove_dooms_a_write)
{
    struct nvme_file f;
    nvme_file_make(&f);
    struct tier_nvme_opts o = nvme_opts(&f, 16 << 20);
    struct tier *t = nvme_tier(&o);
    unsigned doomed = 0;
    for (uint64_t id = 1; id <= 50; id++) {
        struct kit_rec r;
        struct kit_call c;
        kit_make(&r, id, "a", large);
        kit_call_init(&c, &r);
        ASSERT_OK(t->ops->write(t, &c.op));
        ASSERT_EQ(t->ops->remove(t, &r.desc.key, false), 1);
        int status = kit_wait(&c);
        ASSERT_TRUE(status == 0 || status == -ECANCELED);
        doomed += status == -ECANCELED;
        ASSERT_EQ(t->ops->find(t, &r.desc.key), 0);
        kit_call_fini(&c);
        kit_free(&r);
    }
    ASSERT_TRUE(doomed > 0);
    nvme_assert_exact(t, f.path);
    ASSERT_EQ(nvme_stat(t).used_bytes, 0);
    t->ops->destroy(t);
    nvme_file_remove(&f);
}

TEST(parts_and_late_memory)
{
    struct nvme_file f;
    struct kit_rec r;
    struct kit_call c;
    nvme_file_make(&f);
    struct tier_nvme_opts o = nvme_opts(&f, 64 << 20);
    o.extent_bytes = 8 << 20;
    struct tier *t = nvme_tier(&o);
    ASSERT_OK(nvme_put(t, 1, "a", huge));
    kit_blank(&r, 1, "a", huge);
    ASSERT_TRUE(r.layout.n_parts > 3);
    kit_call_init(&c, &r);
    c.op.part_lo = 2; /* some parts only */
    c.op.part_hi = 4;
    ASSERT_OK(t->ops->read(t, &c.op));
    ASSERT_OK(kit_wait(&c));
    ASSERT_TRUE(!c.got[1] && c.got[2] && c.got[3] && c.n_parts == 2);
    c.op.part_lo = 0;
    c.op.part_hi = r.layout.n_parts;
    c.late_memory = true; /* memory comes in on_part(0) */
    kit_call_again(&c);
    ASSERT_OK(t->ops->read(t, &c.op));
    ASSERT_OK(kit_wait(&c));
    ASSERT_EQ(c.n_parts, r.layout.n_parts);
    for (uint32_t g = 0; g < r.layout.n_groups; g++)
        ASSERT_OK(record_check_group(r.part, &r.layout, g));
    for (uint32_t at = 0; at < 3; at++) { /* the caller stops it */
        c.cancel_at = at;
        kit_call_again(&c);
        ASSERT_OK(t->ops->read(t, &c.op));
        ASSERT_ERR(kit_wait(&c), -ECANCELED);
    }
    c.op.part_lo = 3;
    c.op.part_hi = 3;
    ASSERT_ERR(t->ops->read(t, &c.op), -EINVAL);
    c.op.part_hi = r.layout.n_parts + 1;
    ASSERT_ERR(t->ops->read(t, &c.op), -EINVAL);
    kit_call_fini(&c);
    kit_free(&r);
    ASSERT_OK(nvme_check(t, 1, "a", huge));
    t->ops->destroy(t);
    nvme_file_remove(&f);
}

TEST(refuses_what_is_not_sealed)
{
    struct nvme_file f;
    struct kit_rec r;
    struct kit_call c;
    nvme_file_make(&f);
    struct tier_nvme_opts o = nvme_opts(&f, 16 << 20);
    struct tier *t = nvme_tier(&o);
    kit_make(&r, 1, "a", small);
    kit_call_init(&c, &r);
    c.op.part_hi = 1; /* or not all there */
    ASSERT_ERR(t->ops->write(t, &c.op), -EINVAL);
    kit_call_fini(&c);
    r.part[0][24] ^= 1;
    ASSERT_ERR(kit_write(t, &r), -EINVAL);
    r.part[0][24] ^= 1;
    r.desc.key.lo ^= 1;
    ASSERT_ERR(kit_write(t, &r), -EINVAL);
    kit_free(&r);
    ASSERT_EQ(nvme_stat(t).n_records, 0);
    t->ops->destroy(t);
    nvme_file_remove(&f);
}

/* ---- files ---- */

static int create(const struct tier_nvme_opts *o, struct err *err)
{
    struct tier *t = NULL;
    int r = tier_nvme_create(o, &t, err);
    if (r == 0) t->ops->destroy(t);
    return r;
}

static void file_fill(const char *path, const void *bytes, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ASSERT_TRUE(fd >= 0);
    ASSERT_EQ(write(fd, bytes, n), n);
    close(fd);
}

TEST(foreign_files_are_left_alone)
{
    struct nvme_file f;
    struct err err;
    char back[32] = "";
    nvme_file_make(&f);
    struct tier_nvme_opts o = nvme_opts(&f, 16 << 20);
    file_fill(f.path, "somebody's thesis", 17);
    ASSERT_ERR(create(&o, &err), -EINVAL);
    ASSERT_TRUE(strstr(err.msg, "something else") && strstr(err.msg, f.path));
    int fd = open(f.path, O_RDONLY);
    ASSERT_EQ(read(fd, back, sizeof back), 17);
    close(fd);
    ASSERT_STREQ(back, "somebody's thesis");
    ASSERT_OK(truncate(f.path, 0));
    ASSERT_OK(create(&o, &err)); /* an empty file is fine */
    o.path = f.dir;
    ASSERT_TRUE(create(&o, &err) < 0);
    o.path = "/nonexistent/x";
    ASSERT_ERR(create(&o, &err), -ENOENT);
    o.path = "/dev/null";
    ASSERT_TRUE(create(&o, &err) < 0);
    nvme_file_remove(&f);
    nvme_file_make(&f);
    o = nvme_opts(&f, 0);
    ASSERT_ERR(create(&o, &err), -EINVAL); /* no size */
    o.capacity_bytes = 1 << 20;
    ASSERT_ERR(create(&o, &err), -EINVAL); /* too small */
    o.capacity_bytes = 16 << 20;
    o.extent_bytes = 3 << 20;
    ASSERT_ERR(create(&o, &err), -EINVAL);
    o.extent_bytes = 0;
    o.capacity_bytes = UINT64_C(1) << 55;
    ASSERT_TRUE(create(&o, &err) < 0);
    nvme_file_remove(&f);
}

static void flip(const char *path, uint64_t off, uint8_t mask)
{
    int fd = open(path, O_RDWR);
    uint8_t b;
    ASSERT_TRUE(fd >= 0);
    ASSERT_EQ(pread(fd, &b, 1, (off_t)off), 1);
    b ^= mask;
    ASSERT_EQ(pwrite(fd, &b, 1, (off_t)off), 1);
    close(fd);
}

TEST(other_geometry)
{
    struct nvme_file f;
    struct err err;
    struct stat st;
    nvme_file_make(&f);
    struct tier_nvme_opts o = nvme_opts(&f, 16 << 20);
    struct tier *t = nvme_tier(&o);
    for (uint64_t id = 1; id <= 100; id++)
        ASSERT_OK(nvme_put(t, id, "a", small));
    t->ops->destroy(t);
    o.extent_bytes = 2 << 20;
    ASSERT_ERR(create(&o, &err), -EINVAL);
    ASSERT_TRUE(strstr(err.msg, "extents of") != NULL);
    o.extent_bytes = 0; /* as the file has it; larger */
    o.capacity_bytes = 20 << 20;
    t = nvme_tier(&o);
    ASSERT_EQ(nvme_stat(t).n_records, 100);
    ASSERT_EQ(nvme_stat(t).capacity_bytes, 20 << 20);
    nvme_assert_exact(t, f.path);
    t->ops->destroy(t);
    o.capacity_bytes = 0; /* as the file has it */
    t = nvme_tier(&o);
    ASSERT_EQ(nvme_stat(t).capacity_bytes, 20 << 20);
    t->ops->destroy(t);
    o.capacity_bytes = 8 << 20; /* smaller: what is behind goes */
    t = nvme_tier(&o);
    uint64_t n = nvme_stat(t).n_records;
    ASSERT_TRUE(n > 0 && n < 100);
    ASSERT_OK(stat(f.path, &st));
    ASSERT_EQ(st.st_size, 8 << 20);
    for (uint64_t id = 1; id <= 100; id++)
        if (nvme_find(t, id, "a", small) == 1) ASSERT_OK(nvme_check(t, id, "a", small));
    nvme_assert_exact(t, f.path);
    t->ops->destroy(t);
    ASSERT_OK(truncate(f.path, 6 << 20)); /* cut by somebody: the tail's records are gone */
    t = nvme_tier(&o);
    ASSERT_TRUE(nvme_stat(t).n_records < n);
    nvme_assert_exact(t, f.path);
    t->ops->destroy(t);
    flip(f.path, 20, 1); /* one superblock is enough */
    t = nvme_tier(&o);
    t->ops->destroy(t);
    flip(f.path, NVME_SUPER_BYTES + 20, 1);
    t = nvme_tier(&o);
    t->ops->destroy(t);
    flip(f.path, 20, 1);
    flip(f.path, NVME_SUPER_BYTES + 20, 1);
    ASSERT_ERR(create(&o, &err), -EBADMSG);
    ASSERT_TRUE(strstr(err.msg, "damaged") != NULL);
    nvme_file_remove(&f);
}

/* Somebody changed a number of a page and summed it again. */
static void forge(const char *path, uint64_t off, uint32_t at, uint64_t value, uint32_t sum_at)
{
    uint8_t page[NVME_PAGE], table[NVME_PAGE];
    int fd = open(path, O_RDWR);
    ASSERT_TRUE(fd >= 0);
    ASSERT_EQ(pread(fd, page, sizeof page, (off_t)off), NVME_PAGE);
    ASSERT_EQ(pread(fd, table, sizeof table, (off_t)off + NVME_PAGE), NVME_PAGE);
    memcpy(page + at, &value, sizeof value);
    uint64_t sum = XXH3_64bits(page, sum_at);
    if (off < NVME_DATA_OFF) {
        uint32_t n;
        memcpy(&n, page + 12, sizeof n);
        sum = XXH3_64bits_withSeed(table, 8ull * n, sum);
    }
    memcpy(page + sum_at, &sum, sizeof sum);
    ASSERT_EQ(pwrite(fd, page, sizeof page, (off_t)off), NVME_PAGE);
    close(fd);
}

/* Found by fuzz_nvme: superblocks behind a sequence at its end were not written any more, so what
 * was put was gone after a restart; and a record with the last generation could not be replaced. */
TEST(counters_at_their_end)
{
    struct nvme_file f;
    nvme_file_make(&f);
    struct tier_nvme_opts o = nvme_opts(&f, 16 << 20);
    struct tier *t = nvme_tier(&o);
    struct kit_rec r;
    ASSERT_OK(nvme_put(t, 1, "a", small));
    t->ops->destroy(t);
    forge(f.path, 0, 16, UINT64_MAX, 56);
    forge(f.path, NVME_SUPER_BYTES, 16, UINT64_MAX - 1, 56);
    forge(f.path, NVME_DATA_OFF, 24, UINT64_MAX, 128);
    t = nvme_tier(&o);
    ASSERT_OK(nvme_check(t, 1, "a", small));
    ASSERT_OK(nvme_put(t, 2, "a", medium)); /* of another class: in a superblock to come */
    kit_make(&r, 1, "a", small);
    uint64_t created_ms = 2, back = 0;
    memcpy(r.part[0] + 96, &created_ms, 8);
    record_seal(r.part, &r.layout);
    ASSERT_OK(kit_write(t, &r));
    for (int i = 0; i < 2; i++) {
        ASSERT_OK(kit_read(t, &r));
        memcpy(&back, r.part[0] + 96, 8);
        ASSERT_EQ(back, 2);
        ASSERT_OK(nvme_check(t, 2, "a", medium));
        nvme_assert_exact(t, f.path);
        t->ops->destroy(t);
        t = nvme_tier(&o);
    }
    t->ops->destroy(t);
    kit_free(&r);
    nvme_file_remove(&f);
}

TEST(one_owner)
{
    struct nvme_file f;
    struct err err;
    int ready[2];
    nvme_file_make(&f);
    struct tier_nvme_opts o = nvme_opts(&f, 16 << 20);
    ASSERT_OK(pipe(ready));
    pid_t pid = fork();
    if (pid == 0) {
        struct tier *t;
        char c = tier_nvme_create(&o, &t, NULL) == 0 ? 'r' : 'x';
        if (write(ready[1], &c, 1) != 1) _exit(1);
        for (;;)
            (void)pause();
    }
    close(ready[1]); /* a child that dies is an end, not a wait for ever */
    char c = 0;
    ASSERT_EQ(read(ready[0], &c, 1), 1);
    ASSERT_EQ(c, 'r');
    ASSERT_ERR(create(&o, &err), -EBUSY);
    char want[64];
    (void)snprintf(want, sizeof want, "in use by process %d", (int)pid);
    ASSERT_TRUE(strstr(err.msg, want) != NULL);
    ASSERT_OK(kill(pid, 9));
    ASSERT_EQ(waitpid(pid, NULL, 0), pid);
    ASSERT_OK(create(&o, &err));
    close(ready[0]);
    nvme_file_remove(&f);
}

TEST(live_resize)
{
    struct nvme_file f;
    struct stat st;
    nvme_file_make(&f);
    struct tier_nvme_opts o = nvme_opts(&f, 4 << 20);
    struct tier *t = nvme_tier(&o);
    uint64_t n = slots_of(&o, small);
    for (uint64_t id = 1; id <= 100; id++)
        ASSERT_OK(nvme_put(t, id, "a", small));
    ASSERT_EQ(nvme_stat(t).n_records, n);
    ASSERT_OK(t->ops->resize(t, 20 << 20));
    ASSERT_OK(stat(f.path, &st));
    ASSERT_EQ(st.st_size, 20 << 20);
    for (uint64_t id = 1; id <= 100; id++)
        ASSERT_OK(nvme_put(t, id, "a", small));
    ASSERT_EQ(nvme_stat(t).n_records, 100);
    nvme_assert_exact(t, f.path);
    for (int pin = 1; pin >= 0; pin--) {
        for (uint64_t id = 1; id <= 100; id++) {
            struct tier_key k = nvme_key(id, "a", small);
            ASSERT_EQ(t->ops->set_pinned(t, &k, pin), 1);
        }
        if (pin) ASSERT_ERR(t->ops->resize(t, 5 << 20), -EBUSY);
        ASSERT_EQ(nvme_stat(t).n_records, 100);
    }
    ASSERT_OK(t->ops->resize(t, 5 << 20));
    struct tier_stat s = nvme_stat(t);
    ASSERT_EQ(s.capacity_bytes, 5 << 20);
    ASSERT_TRUE(s.n_records > 0 && s.used_bytes <= 5 << 20);
    ASSERT_OK(stat(f.path, &st));
    ASSERT_EQ(st.st_size, 5 << 20);
    nvme_assert_exact(t, f.path);
    ASSERT_ERR(t->ops->resize(t, 1000), -EINVAL);
    for (uint64_t id = 1; id <= 100; id++)
        if (nvme_find(t, id, "a", small) == 1) ASSERT_OK(nvme_check(t, id, "a", small));
    for (uint64_t id = 200; id <= 260; id++)
        ASSERT_OK(nvme_put(t, id, "a", small));
    nvme_assert_exact(t, f.path);
    t->ops->destroy(t);
    t = nvme_tier(&(struct tier_nvme_opts){.path = f.path,
                                           .write_bytes_per_day = TIER_NVME_NO_BUDGET,
                                           .scrub_bytes_per_s = TIER_NVME_NO_SCRUB});
    ASSERT_EQ(nvme_stat(t).capacity_bytes, 5 << 20);
    nvme_assert_exact(t, f.path);
    t->ops->destroy(t);
    nvme_file_remove(&f);
}

TEST(every_policy)
{
    struct nvme_file f;
    nvme_file_make(&f);
    struct tier_nvme_opts o = nvme_opts(&f, 4 << 20);
    o.policy = EVICT_ARC;
    struct tier *t = nvme_tier(&o);
    uint64_t seed = 4;
    for (int i = 0; i < 400; i++) {
        if (i % 40 == 39)
            ASSERT_OK(t->ops->set_policy(t, (enum evict_policy)(i / 40 % EVICT_POLICY_COUNT)));
        uint64_t id = 1 + test_rand(&seed) % 60;
        struct kit_geometry g = id % 4 ? small : tiny;
        if (nvme_check(t, id, "a", g) == -ENOENT) ASSERT_OK(nvme_put(t, id, "a", g));
    }
    ASSERT_ERR(t->ops->set_policy(t, EVICT_POLICY_COUNT), -EINVAL);
    ASSERT_TRUE(nvme_stat(t).evictions > 0);
    nvme_assert_exact(t, f.path);
    t->ops->destroy(t);
    nvme_file_remove(&f);
}

TEST(write_budget)
{
    struct nvme_file f;
    nvme_file_make(&f);
    struct tier_nvme_opts o = nvme_opts(&f, 16 << 20);
    o.write_bytes_per_day = 4 << 20;
    struct tier *t = nvme_tier(&o);
    uint64_t id = 1;
    while (nvme_put(t, id, "a", small) == 0)
        id++;
    struct tier_stat s = nvme_stat(t);
    ASSERT_EQ(s.rejected[TIER_REJECT_ONCE], 1);
    ASSERT_TRUE(s.write_budget_ratio >= 0.69 && s.write_budget_ratio < 0.8);
    ASSERT_NEAR(s.write_budget_ratio * (4 << 20), (double)s.device_written_bytes, 65536);
    ASSERT_OK(nvme_put(t, id, "a", small)); /* seen before */
    while (nvme_stat(t).write_budget_ratio < 1)
        ASSERT_OK(nvme_put(t, id, "a", small));
    ASSERT_ERR(nvme_put(t, id, "a", small), -EPERM);
    ASSERT_EQ(nvme_stat(t).rejected[TIER_REJECT_BUDGET], 1);
    ASSERT_OK(nvme_check(t, id, "a", small));
    t->ops->destroy(t);
    nvme_file_remove(&f);
}

static int count_visit(void *ctx, const struct tier_info *i)
{
    unsigned *n = ctx;
    ASSERT_EQ(i->n_tokens, 100);
    ASSERT_EQ(i->kind, TIER_CHUNK);
    ASSERT_EQ(i->ns_hash, record_ns_hash("a"));
    ASSERT_TRUE(i->size_bytes > 100 << 10);
    ASSERT_TRUE(i->used_s > 1e9);
    return ++*n == 5 ? 7 : 0;
}

TEST(scan_stops)
{
    struct nvme_file f;
    unsigned n = 0;
    nvme_file_make(&f);
    struct tier_nvme_opts o = nvme_opts(&f, 16 << 20);
    struct tier *t = nvme_tier(&o);
    for (uint64_t id = 1; id <= 9; id++)
        ASSERT_OK(nvme_put(t, id, "a", small));
    ASSERT_EQ(t->ops->scan(t, count_visit, &n), 7);
    ASSERT_EQ(n, 5);
    t->ops->destroy(t);
    nvme_file_remove(&f);
}

TEST(registered_memory)
{
    struct nvme_file f;
    struct kit_rec r;
    nvme_file_make(&f);
    struct tier_nvme_opts o = nvme_opts(&f, 16 << 20);
    struct tier *t = nvme_tier(&o);
    kit_make(&r, 1, "a", large);
    int reg = t->ops->add_memory(t, r.mem, r.layout.record_bytes);
    if (o.force_pool) {
        ASSERT_ERR(reg, -ENOTSUP);
        ASSERT_TRUE(strstr(nvme_stat(t).degraded, "thread pool") != NULL);
    } else if (reg < 0) {
        ASSERT_ERR(reg, -ENOMEM);
        ASSERT_TRUE(strstr(nvme_stat(t).degraded, "ulimit -l") != NULL);
    } else {
        ASSERT_STREQ(nvme_stat(t).degraded, "");
    }
    ASSERT_OK(kit_write(t, &r));
    ASSERT_OK(nvme_check(t, 1, "a", large));
    uint64_t from = r.layout.header_bytes;
    memset(r.mem, 0, r.layout.record_bytes);
    ASSERT_OK(kit_read(t, &r));
    ASSERT_TRUE(r.mem[from] || r.mem[from + 1] || r.mem[from + 2]);
    for (uint32_t g = 0; g < r.layout.n_groups; g++)
        ASSERT_OK(record_check_group(r.part, &r.layout, g));
    t->ops->destroy(t);
    kit_free(&r);
    nvme_file_remove(&f);
}

/* ---- many at once ---- */

struct crowd {
    struct tier *t;
    uint64_t seed;
    atomic_uint *bad, *ok;
};

static void *crowd_main(void *arg)
{
    struct crowd *w = arg;
    for (int i = 0; i < 120; i++) {
        uint64_t dice = test_rand(&w->seed) % 100, id = test_rand(&w->seed) % 40;
        struct kit_geometry g = id % 3 == 0 ? tiny : id % 3 == 1 ? small : medium;
        struct kit_rec want, r;
        kit_make(&want, id, "a", g);
        kit_blank(&r, id, "a", g);
        if (dice < 45) {
            (void)kit_write(w->t, &want);
        } else if (dice < 90) {
            int status = kit_read(w->t, &r);
            uint64_t from = want.layout.header_bytes;
            if (status == 0 &&
                memcmp(r.mem + from, want.mem + from, want.layout.record_bytes - from) != 0)
                atomic_fetch_add(w->bad, 1);
            if (status != 0 && status != -ENOENT) atomic_fetch_add(w->bad, 1);
            if (status == 0) atomic_fetch_add(w->ok, 1);
        } else if (dice < 97) {
            (void)w->t->ops->remove(w->t, &r.desc.key, true);
        } else {
            (void)w->t->ops->set_pinned(w->t, &r.desc.key, dice == 97);
            (void)nvme_stat(w->t);
        }
        kit_free(&want);
        kit_free(&r);
    }
    return NULL;
}

TEST(concurrent)
{
    struct nvme_file f;
    atomic_uint bad = 0, ok = 0;
    nvme_file_make(&f);
    struct tier_nvme_opts o = nvme_opts(&f, 6 << 20);
    o.scrub_bytes_per_s = 100 << 20;
    struct tier *t = nvme_tier(&o);
    pthread_t id[4];
    struct crowd w[4];
    for (unsigned i = 0; i < 4; i++) {
        w[i] = (struct crowd){t, i + 1, &bad, &ok};
        ASSERT_EQ(pthread_create(&id[i], NULL, crowd_main, &w[i]), 0);
    }
    for (unsigned i = 0; i < 4; i++)
        pthread_join(id[i], NULL);
    ASSERT_EQ(bad, 0);
    ASSERT_TRUE(ok > 0);
    ASSERT_EQ(nvme_stat(t).corrupt, 0);
    ASSERT_EQ(nvme_stat(t).inflight_ops, 0);
    nvme_assert_exact(t, f.path);
    t->ops->destroy(t);
    nvme_file_remove(&f);
}
