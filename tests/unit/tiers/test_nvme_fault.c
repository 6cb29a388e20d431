/* What the NVMe tier does when transfers are short, fail or never end, when memory runs out, and
 * when bytes on the device are not what was written. */
#include "tests/unit/tiers/nvme_kit.h"

#include "base/clock.h"
#include "base/mem.h"
#include "tests/test.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static const struct kit_geometry tiny = {.L = 2, .G = 1, .K = 32, .n_tokens = 8};
static const struct kit_geometry small = {.L = 5, .G = 2, .K = 32, .n_tokens = 100};
static const struct kit_geometry large = {.L = 9, .G = 4, .K = 64, .n_tokens = 100};
static const struct kit_geometry huge = {.L = 5, .G = 8, .K = 128, .n_tokens = 300};

#define UNTIL(cond)                                                                                \
    do {                                                                                           \
        uint64_t until_ = clock_ns() + 60000000000u;                                               \
        while (!(cond))                                                                            \
            if (clock_ns() > until_) test_fail(__FILE__, __LINE__, "never: %s", #cond);            \
    } while (0)

struct fault { /* called on the tier's thread */
    uint64_t seed;
    atomic_int countdown; /* the nth system call from now is hit; 0 = none */
    atomic_int n_calls, n_hit;
    int result; /* what it gets */
    bool reads_only, writes_only, from_then_on, random_short;
    uint64_t off; /* only calls that touch this byte; 0 = all */
};

static int fault_fn(void *ctx, const struct nvme_io *io, uint32_t left)
{
    struct fault *f = ctx;
    if ((f->reads_only && io->write) || (f->writes_only && !io->write)) return (int)left;
    if (f->off && (f->off < io->off || f->off >= io->off + io->bytes)) return (int)left;
    atomic_fetch_add(&f->n_calls, 1);
    if (f->random_short) {
        uint64_t dice = test_rand(&f->seed);
        if (dice % 4 == 0) return -EAGAIN;
        if (dice % 4 == 1) return (int)(dice / 16 % left); /* any length, also 0 */
        return (int)left;
    }
    int now = atomic_load(&f->countdown);
    if (now == 0) return (int)left;
    if (now > 1) {
        atomic_store(&f->countdown, now - 1);
        return (int)left;
    }
    if (!f->from_then_on) atomic_store(&f->countdown, 0);
    atomic_fetch_add(&f->n_hit, 1);
    return f->result;
}

/* Short transfers of any length and interruptions, of reads and writes: all is resumed. */
TEST(short_transfers)
{
    struct nvme_file f;
    nvme_file_make(&f);
    struct tier_nvme_opts o = nvme_opts(&f, 64 << 20);
    o.extent_bytes = 8 << 20;
    struct tier *t = nvme_tier(&o);
    struct fault fault = {.seed = 77, .random_short = true};
    nvme_set_fault(t, fault_fn, &fault);
    for (uint64_t id = 1; id <= 60; id++) {
        struct kit_geometry g = id % 4 == 0 ? huge : id % 4 == 1 ? tiny : small;
        ASSERT_OK(nvme_put(t, id % 30, "a", g));
        ASSERT_OK(nvme_check(t, id % 30, "a", g));
    }
    ASSERT_TRUE(fault.n_calls > 500);
    nvme_set_fault(t, NULL, NULL);
    nvme_assert_exact(t, f.path);
    t->ops->destroy(t);
    t = nvme_tier(&o);
    nvme_assert_exact(t, f.path);
    t->ops->destroy(t);
    nvme_file_remove(&f);
}

/* The nth system call of a write fails, for every n: no entry, nothing lost, later writes work. */
static void fail_each_write(int result, int want)
{
    struct nvme_file f;
    nvme_file_make(&f);
    struct tier_nvme_opts o = nvme_opts(&f, 8 << 20);
    struct tier *t = nvme_tier(&o);
    struct fault fault = {.result = result, .writes_only = true};
    ASSERT_OK(nvme_put(t, 500, "a", small));
    ASSERT_OK(t->ops->drain(t, 0));
    nvme_set_fault(t, fault_fn, &fault);
    int n = 1;
    for (;; n++) {
        uint64_t used = nvme_stat(t).used_bytes;
        atomic_store(&fault.countdown, n);
        int r = nvme_put(t, 1, "a", n % 2 ? large : small);
        ASSERT_OK(t->ops->drain(t, clock_ns() + 60000000000u));
        if (atomic_load(&fault.countdown) > 0 && r == 0) break;
        if (r == 0) { /* the fault met the superblock or a cleaning, which were tried again */
            ASSERT_EQ(nvme_find(t, 1, "a", n % 2 ? large : small), 1);
        } else {
            ASSERT_ERR(r, want);
            ASSERT_EQ(nvme_find(t, 1, "a", n % 2 ? large : small), 0);
            ASSERT_EQ(nvme_stat(t).used_bytes, used);
        }
        struct tier_key k = nvme_key(1, "a", n % 2 ? large : small);
        atomic_store(&fault.countdown, 0);
        (void)t->ops->remove(t, &k, true);
        ASSERT_OK(t->ops->drain(t, clock_ns() + 60000000000u));
        nvme_assert_exact(t, f.path);
        ASSERT_OK(nvme_check(t, 500, "a", small));
    }
    ASSERT_TRUE(n > 3 && fault.n_hit >= 3);
    ASSERT_TRUE(nvme_stat(t).errors > 0);
    t->ops->destroy(t);
    t = nvme_tier(&o);
    ASSERT_OK(nvme_check(t, 500, "a", small));
    nvme_assert_exact(t, f.path);
    t->ops->destroy(t);
    nvme_file_remove(&f);
}

TEST(write_eio)
{
    fail_each_write(-EIO, -EIO);
}

TEST(write_enospc)
{
    fail_each_write(-ENOSPC, -ENOSPC);
}

TEST(write_moves_nothing) /* 0 bytes, again and again */
{
    struct nvme_file f;
    nvme_file_make(&f);
    struct tier_nvme_opts o = nvme_opts(&f, 8 << 20);
    struct tier *t = nvme_tier(&o);
    struct fault fault = {.result = 0, .writes_only = true, .from_then_on = true};
    ASSERT_OK(nvme_put(t, 500, "a", small));
    nvme_set_fault(t, fault_fn, &fault);
    atomic_store(&fault.countdown, 1);
    ASSERT_ERR(nvme_put(t, 1, "a", small), -EIO);
    ASSERT_EQ(nvme_find(t, 1, "a", small), 0);
    nvme_set_fault(t, NULL, NULL);
    ASSERT_OK(nvme_put(t, 1, "a", small));
    nvme_assert_exact(t, f.path);
    t->ops->destroy(t);
    nvme_file_remove(&f);
}

TEST(read_eio)
{
    struct nvme_file f;
    nvme_file_make(&f);
    struct tier_nvme_opts o = nvme_opts(&f, 64 << 20);
    o.extent_bytes = 8 << 20;
    struct tier *t = nvme_tier(&o);
    struct fault fault = {.result = -EIO, .reads_only = true};
    ASSERT_OK(nvme_put(t, 1, "a", huge));
    nvme_set_fault(t, fault_fn, &fault);
    int n = 1;
    for (;; n++) {
        atomic_store(&fault.countdown, n);
        int r = nvme_check(t, 1, "a", huge);
        if (atomic_load(&fault.countdown) > 0) {
            ASSERT_OK(r);
            break;
        }
        ASSERT_ERR(r, -EIO);
        ASSERT_EQ(nvme_find(t, 1, "a", huge), 1); /* it may be there the next time */
    }
    ASSERT_TRUE(n > 5);
    ASSERT_EQ(nvme_stat(t).errors, n - 1);
    t->ops->destroy(t);
    nvme_file_remove(&f);
}

TEST(read_only_after_errors)
{
    struct nvme_file f;
    nvme_file_make(&f);
    struct tier_nvme_opts o = nvme_opts(&f, 8 << 20);
    o.corrupt_max = 5;
    struct tier *t = nvme_tier(&o);
    struct fault fault = {.result = -EIO, .writes_only = true, .from_then_on = true};
    ASSERT_OK(nvme_put(t, 1, "a", small));
    nvme_set_fault(t, fault_fn, &fault);
    atomic_store(&fault.countdown, 1);
    ASSERT_ERR(nvme_put(t, 2, "a", small), -EIO);
    for (int i = 0; i < 5; i++)
        (void)nvme_put(t, 2, "a", small);
    ASSERT_TRUE(strstr(nvme_stat(t).degraded, "read-only") != NULL);
    nvme_set_fault(t, NULL, NULL);
    ASSERT_ERR(nvme_put(t, 2, "a", small), -EPERM);
    ASSERT_OK(nvme_check(t, 1, "a", small));
    ASSERT_OK(t->ops->drain(t, clock_ns() + 60000000000u));
    t->ops->destroy(t);
    nvme_file_remove(&f);
}

TEST(hung_transfers_do_not_hold_destroy)
{
    for (int write = 0; write < 2; write++) {
        struct nvme_file f;
        struct kit_rec r;
        struct kit_call c;
        nvme_file_make(&f);
        struct tier_nvme_opts o = nvme_opts(&f, 8 << 20);
        o.hang_ms_max = 200;
        struct tier *t = nvme_tier(&o);
        kit_make(&r, 1, "a", small);
        ASSERT_OK(kit_write(t, &r)); /* the class has its extent then */
        ASSERT_OK(t->ops->drain(t, 0));
        struct fault fault = {.result = NVME_HANG, .from_then_on = true};
        nvme_set_fault(t, fault_fn, &fault);
        atomic_store(&fault.countdown, 1);
        kit_call_init(&c, &r);
        ASSERT_OK(write ? t->ops->write(t, &c.op) : t->ops->read(t, &c.op));
        UNTIL(atomic_load(&fault.n_hit) > 0);
        ASSERT_ERR(t->ops->drain(t, clock_ns() + 10000000), -ETIMEDOUT);
        uint64_t t0 = clock_ns();
        t->ops->destroy(t);
        ASSERT_TRUE(clock_ns() - t0 < 30000000000u);
        ASSERT_EQ(kit_done(&c), 1);
        ASSERT_ERR(kit_wait(&c), -ETIMEDOUT);
        kit_call_fini(&c);
        kit_free(&r);
        nvme_file_remove(&f);
    }
}

static uint64_t slot_off(struct tier *t, uint64_t id, struct kit_geometry g)
{
    struct nvme *n = (struct nvme *)t;
    struct tier_key k = nvme_key(id, "a", g);
    pthread_mutex_lock(&n->m);
    struct nvme_slot *slot = nvme_space_find(&n->space, &k);
    uint64_t off = slot ? nvme_slot_off(&n->space, slot) : 0;
    pthread_mutex_unlock(&n->m);
    ASSERT_TRUE(off > 0);
    return off;
}

/* ---- order and limits ---- */

struct gate { /* holds the first transfer back until it is opened */
    struct nvme_file f;
    struct tier *t;
    atomic_bool shut;
    atomic_int n;
    uint64_t off[32]; /* of the first ones; the I/O thread's until it has answered */
};

static int gate_fn(void *ctx, const struct nvme_io *io, uint32_t left)
{
    struct gate *g = ctx;
    if (g->n < 32) g->off[g->n] = io->off;
    atomic_fetch_add(&g->n, 1);
    while (atomic_load(&g->shut)) /* the I/O thread itself waits */
        ;
    return (int)left;
}

TEST(demand_overtakes_and_deadlines)
{
    struct gate g = {.shut = false};
    enum { N = 6 };
    struct kit_rec r[N];
    struct kit_call c[N];
    int place[N] = {0};
    uint64_t from[N];
    nvme_file_make(&g.f);
    struct tier_nvme_opts o = nvme_opts(&g.f, 16 << 20);
    g.t = nvme_tier(&o);
    static const enum tier_prio prio[N] = {TIER_DEMAND,  TIER_SCRUB,  TIER_BEHIND,
                                           TIER_PROMOTE, TIER_DEMAND, TIER_DEMAND};
    for (int i = 0; i < N; i++) {
        ASSERT_OK(nvme_put(g.t, (uint64_t)i + 1, "a", large));
        kit_blank(&r[i], (uint64_t)i + 1, "a", large);
    }
    ASSERT_OK(g.t->ops->drain(g.t, 0));
    for (int i = 0; i < N; i++)
        from[i] = slot_off(g.t, (uint64_t)i + 1, large);
    nvme_set_fault(g.t, gate_fn, &g);
    for (int i = 0; i < N; i++) {
        kit_call_init(&c[i], &r[i]);
        c[i].op.prio = prio[i];
    }
    c[5].op.deadline_ns = 1; /* long ago */
    atomic_store(&g.shut, true);
    ASSERT_OK(g.t->ops->read(g.t, &c[0].op));
    UNTIL(atomic_load(&g.n) > 0); /* the thread is busy with the first one now */
    for (int i = 1; i < N; i++)
        ASSERT_OK(g.t->ops->read(g.t, &c[i].op));
    atomic_store(&g.shut, false);
    for (int i = 0; i < N; i++)
        ASSERT_ERR(kit_wait(&c[i]), i == 5 ? -ETIMEDOUT : 0);
    for (int at = atomic_load(&g.n); at-- > 0;)
        for (int i = 0; i < N; i++)
            if (g.off[at] - from[i] < o.extent_bytes) place[i] = at + 1;
    ASSERT_EQ(place[5], 0); /* it was too late */
    ASSERT_TRUE(place[0] > 0 && place[0] < place[4] && place[4] < place[3]);
    ASSERT_TRUE(place[3] < place[2] && place[2] < place[1]);
    ASSERT_EQ(nvme_stat(g.t).timeouts, 1);
    for (int i = 0; i < N; i++) {
        kit_call_fini(&c[i]);
        kit_free(&r[i]);
    }
    g.t->ops->destroy(g.t);
    nvme_file_remove(&g.f);
}

TEST(queue_is_bounded_and_destroy_cancels)
{
    static struct gate g;
    enum { N = TIER_NVME_QUEUE_OPS + 40 };
    static struct kit_call c[N];
    struct kit_rec r;
    nvme_file_make(&g.f);
    struct tier_nvme_opts o = nvme_opts(&g.f, 16 << 20);
    g.t = nvme_tier(&o);
    kit_make(&r, 1, "a", small);
    ASSERT_OK(kit_write(g.t, &r));
    ASSERT_OK(g.t->ops->drain(g.t, 0));
    atomic_store(&g.shut, true);
    int refused = 0, n = 0, cancelled = 0;
    for (int i = 0; i < N; i++)
        kit_call_init(&c[i], &r);
    struct fault fault = {.result = NVME_HANG, .from_then_on = true};
    nvme_set_fault(g.t, fault_fn, &fault);
    atomic_store(&fault.countdown, 1);
    for (int i = 0; i < N; i++) {
        int s = i % 2 ? g.t->ops->read(g.t, &c[i].op) : g.t->ops->write(g.t, &c[i].op);
        ASSERT_TRUE(s == 0 || s == -EAGAIN);
        refused += s == -EAGAIN;
        if (s == 0) n++;
    }
    ASSERT_EQ(n, TIER_NVME_QUEUE_OPS);
    ASSERT_EQ(refused, 40);
    ASSERT_TRUE(nvme_stat(g.t).rejected[TIER_REJECT_BUSY] > 0);
    ((struct nvme *)g.t)->opts.hang_ms_max = 100;
    g.t->ops->destroy(g.t);
    for (int i = 0; i < N; i++) {
        ASSERT_TRUE(kit_done(&c[i]) <= 1);
        n -= (int)kit_done(&c[i]);
        if (kit_done(&c[i])) cancelled += kit_wait(&c[i]) == -ECANCELED;
        kit_call_fini(&c[i]);
    }
    ASSERT_EQ(n, 0); /* every accepted one was answered exactly once */
    ASSERT_TRUE(cancelled > 100);
    kit_free(&r);
    nvme_file_remove(&g.f);
}

/* ---- what is refused ---- */

/* io_uring is refused (here: no file descriptor is left for it): threads, and it says so. */
TEST(no_ring)
{
    struct nvme_file f;
    struct rlimit lim, tight;
    nvme_file_make(&f);
    struct tier_nvme_opts o = nvme_opts(&f, 8 << 20);
    o.force_pool = false;
    int next = dup(0);
    ASSERT_TRUE(next >= 0);
    close(next);
    ASSERT_OK(getrlimit(RLIMIT_NOFILE, &lim));
    tight = lim;
    tight.rlim_cur = (rlim_t)next + 1; /* the records' file only */
    ASSERT_OK(setrlimit(RLIMIT_NOFILE, &tight));
    struct tier *t = NULL;
    int r = tier_nvme_create(&o, &t, NULL);
    ASSERT_OK(setrlimit(RLIMIT_NOFILE, &lim));
    ASSERT_OK(r);
    ASSERT_STREQ(nvme_stat(t).degraded, "no io_uring (EMFILE): thread pool");
    ASSERT_OK(nvme_put(t, 1, "a", large));
    ASSERT_OK(nvme_check(t, 1, "a", large));
    t->ops->destroy(t);
    nvme_file_remove(&f);
}

TEST(disk_full_at_creation)
{
    struct nvme_file f;
    struct stat st;
    struct statvfs v;
    struct tier *t = NULL;
    struct err err;
    nvme_file_make(&f);
    ASSERT_OK(statvfs(f.dir, &v));
    struct tier_nvme_opts o = nvme_opts(&f, (v.f_blocks + 1000) * v.f_frsize);
    o.extent_bytes = 0;
    int r = tier_nvme_create(&o, &t, &err);
    if (r == 0) t->ops->destroy(t);
    ASSERT_OK(stat(f.path, &st));
    nvme_file_remove(&f);
    ASSERT_ERR(r, -ENOSPC);
    ASSERT_TRUE(strstr(err.msg, "are free") != NULL);
    ASSERT_EQ(st.st_size, 0); /* as it was: the next attempt is not told "something else" */
}

/* ---- memory ---- */

TEST(fail_nth_allocation)
{
    struct nvme_file f;
    struct kit_rec r[3];
    nvme_file_make(&f);
    struct tier_nvme_opts o = nvme_opts(&f, 8 << 20);
    for (uint64_t i = 0; i < 3; i++)
        kit_make(&r[i], i, "a", i == 1 ? large : small);
    for (unsigned n = 1;; n++) {
        struct tier *t = NULL;
        struct err err;
        mem_fail_nth(n);
        int s = tier_nvme_create(&o, &t, &err);
        if (s == 0) {
            for (int i = 0; i < 3; i++) {
                int w = kit_write(t, &r[i]);
                ASSERT_TRUE(w == 0 || w == -ENOMEM);
            }
            (void)t->ops->set_policy(t, EVICT_ARC);
            (void)t->ops->resize(t, 12 << 20);
            bool fired = mem_fail_fired();
            mem_fail_nth(0);
            nvme_assert_exact(t, f.path);
            ASSERT_OK(t->ops->resize(t, 8 << 20));
            ASSERT_OK(kit_write(t, &r[0]));
            ASSERT_OK(nvme_check(t, 0, "a", small));
            t->ops->destroy(t);
            if (!fired) {
                ASSERT_TRUE(n > 10);
                break;
            }
        } else {
            mem_fail_nth(0);
            ASSERT_ERR(s, -ENOMEM);
        }
    }
    for (int i = 0; i < 3; i++)
        kit_free(&r[i]);
    nvme_file_remove(&f);
}

/* ---- bytes that changed ---- */

static void flip(const char *path, uint64_t off, uint8_t mask)
{
    int fd = open(path, O_RDWR);
    uint8_t b;
    ASSERT_TRUE(fd >= 0);
    ASSERT_EQ(pread(fd, &b, 1, (off_t)off), 1);
    b ^= mask;
    ASSERT_EQ(pwrite(fd, &b, 1, (off_t)off), 1);
    ASSERT_OK(fdatasync(fd)); /* past the page cache, where O_DIRECT sees it */
    close(fd);
}

TEST(damaged_under_way)
{
    struct nvme_file f;
    nvme_file_make(&f);
    struct tier_nvme_opts o = nvme_opts(&f, 8 << 20);
    struct tier *t = nvme_tier(&o);
    for (uint64_t id = 1; id <= 4; id++)
        ASSERT_OK(nvme_put(t, id, "a", small));
    ASSERT_OK(t->ops->drain(t, 0));
    flip(f.path, slot_off(t, 1, small) + 30, 1); /* the generation in the slot header */
    ASSERT_ERR(nvme_check(t, 1, "a", small), -EBADMSG);
    ASSERT_EQ(nvme_find(t, 1, "a", small), 0);
    ASSERT_EQ(nvme_stat(t).corrupt, 1);
    flip(f.path, slot_off(t, 2, small) + 4096 + 130, 1); /* the record's own header */
    struct kit_rec r;
    struct record_view v;
    kit_blank(&r, 2, "a", small);
    ASSERT_OK(kit_read(t, &r));
    ASSERT_ERR(record_open(r.mem, r.layout.record_bytes, &v), -EBADMSG);
    kit_free(&r);
    uint64_t off3 = slot_off(t, 3, small), off4 = slot_off(t, 4, small);
    t->ops->destroy(t);
    flip(f.path, off3 + 50, 0x80); /* torn header: not in the index */
    uint8_t page[NVME_PAGE];       /* a header that belongs elsewhere: neither */
    int fd = open(f.path, O_RDWR);
    ASSERT_EQ(pread(fd, page, sizeof page, (off_t)off4), sizeof page);
    ASSERT_EQ(pwrite(fd, page, sizeof page, (off_t)off3), sizeof page);
    close(fd);
    t = nvme_tier(&o);
    ASSERT_EQ(nvme_find(t, 3, "a", small), 0);
    ASSERT_OK(nvme_check(t, 4, "a", small));
    t->ops->destroy(t);
    nvme_file_remove(&f);
}

/* Two slots with one key, as a kill between publishing and cleaning leaves them: the younger. */
TEST(younger_generation_wins)
{
    struct nvme_file f;
    struct nvme_head h;
    uint8_t page[NVME_PAGE];
    nvme_file_make(&f);
    struct tier_nvme_opts o = nvme_opts(&f, 8 << 20);
    struct tier *t = nvme_tier(&o);
    ASSERT_OK(nvme_put(t, 1, "a", small));
    ASSERT_OK(t->ops->drain(t, 0));
    uint64_t first = slot_off(t, 1, small);
    int fd = open(f.path, O_RDWR);
    ASSERT_EQ(pread(fd, page, sizeof page, (off_t)first), sizeof page);
    ASSERT_OK(nvme_put(t, 1, "a", small));
    uint64_t second = slot_off(t, 1, small);
    ASSERT_TRUE(first != second);
    t->ops->destroy(t);
    ASSERT_OK(nvme_head_get(page, &h));
    for (int younger = 0; younger < 2; younger++) {
        if (younger) h.generation += 100;
        nvme_head_put(page, &h);
        ASSERT_EQ(pwrite(fd, page, sizeof page, (off_t)first), sizeof page);
        t = nvme_tier(&o);
        ASSERT_EQ(slot_off(t, 1, small), younger ? first : second);
        ASSERT_EQ(nvme_stat(t).n_records, 1);
        ASSERT_OK(nvme_check(t, 1, "a", small));
        nvme_assert_exact(t, f.path);
        t->ops->destroy(t);
    }
    /* Of another life of the extent, or of another device: not ours. */
    struct nvme_head wrong[3] = {h, h, h};
    wrong[0].epoch--;
    wrong[1].device_id ^= 1;
    wrong[2].slot_pages++;
    for (int i = 0; i < 3; i++) {
        nvme_head_put(page, &wrong[i]);
        ASSERT_EQ(pwrite(fd, page, sizeof page, (off_t)first), sizeof page);
        t = nvme_tier(&o);
        ASSERT_EQ(nvme_find(t, 1, "a", small), 0);
        t->ops->destroy(t);
    }
    close(fd);
    nvme_file_remove(&f);
}

TEST(scrub_finds_damage)
{
    struct nvme_file f;
    nvme_file_make(&f);
    struct tier_nvme_opts o = nvme_opts(&f, 16 << 20);
    struct tier *t = nvme_tier(&o);
    for (uint64_t id = 1; id <= 8; id++)
        ASSERT_OK(nvme_put(t, id, "a", id % 2 ? small : large));
    uint64_t off3 = slot_off(t, 3, small), off4 = slot_off(t, 4, large);
    t->ops->destroy(t);
    flip(f.path, off3 + 4096 * 5 + 17, 1); /* payload of the groups */
    flip(f.path, off4 + 4096 * 100, 0x10);
    o.scrub_bytes_per_s = 1 << 30;
    t = nvme_tier(&o);
    UNTIL(nvme_stat(t).corrupt == 2);
    ASSERT_EQ(nvme_find(t, 3, "a", small), 0);
    ASSERT_EQ(nvme_find(t, 4, "a", large), 0);
    ASSERT_EQ(nvme_stat(t).n_records, 6);
    t->ops->destroy(t);
    o.corrupt_max = 1; /* one is enough for read-only */
    t = nvme_tier(&o);
    for (uint64_t id = 1; id <= 8; id++)
        if (id != 3 && id != 4) ASSERT_OK(nvme_check(t, id, "a", id % 2 ? small : large));
    uint64_t off1 = slot_off(t, 1, small);
    t->ops->destroy(t);
    flip(f.path, off1 + 4096 + 200, 4);
    t = nvme_tier(&o);
    UNTIL(strstr(nvme_stat(t).degraded, "read-only") != NULL);
    t->ops->destroy(t);
    nvme_file_remove(&f);
}

/* Flips anywhere in the file: a read is right or it fails. KVBLEND_TEST_FLIPS: how many (100). */
TEST(flips_anywhere)
{
    const char *env = getenv("KVBLEND_TEST_FLIPS");
    int flips = env ? (int)strtol(env, NULL, 10) : 100, batch = 20;
    struct nvme_file f;
    uint64_t seed = 99, refused = 0, lost = 0, bad = 0, right = 0;
    nvme_file_make(&f);
    struct tier_nvme_opts o = nvme_opts(&f, 4 << 20);
    for (int done = 0; done < flips; done += batch) {
        struct tier *t = NULL;
        (void)unlink(f.path);
        t = nvme_tier(&o);
        for (uint64_t id = 1; id <= 40; id++)
            ASSERT_OK(nvme_put(t, id, "a", id % 8 == 0 ? large : id % 2 ? small : tiny));
        t->ops->destroy(t);
        for (int i = 0; i < batch; i++) {
            uint64_t at = test_rand(&seed) % (4u << 20);
            if (i % 4 == 0) at = at % 256 + NVME_DATA_OFF + at / 4096 % 768 * 4096; /* headers */
            if (i == 19) at %= 64;
            flip(f.path, at, (uint8_t)(1u << test_rand(&seed) % 8));
        }
        struct err err;
        if (tier_nvme_create(&o, &t, &err) < 0) {
            refused++;
            continue;
        }
        for (uint64_t id = 1; id <= 40; id++) {
            struct kit_geometry g = id % 8 == 0 ? large : id % 2 ? small : tiny;
            struct kit_rec want, r;
            struct record_view v;
            kit_make(&want, id, "a", g);
            kit_blank(&r, id, "a", g);
            int s = kit_read(t, &r);
            lost += s < 0;
            if (s == 0 && record_open(r.mem, r.layout.record_bytes, &v) < 0) s = -1;
            if (s == 0) ASSERT_MEMEQ(r.mem, want.mem, want.layout.header_bytes);
            for (uint32_t i = 0; s == 0 && i < r.layout.n_groups; i++) {
                if (record_check_group(r.part, &r.layout, i) < 0) {
                    bad++;
                    continue;
                }
                right++;
                ASSERT_MEMEQ(record_group(r.part, &r.layout, i),
                             record_group(want.part, &want.layout, i), r.layout.group_bytes);
            }
            kit_free(&want);
            kit_free(&r);
        }
        t->ops->destroy(t);
    }
    (void)printf("%d flips: %d files refused, %d records gone, %d groups refused, %d right, 0 "
                 "wrong\n",
                 flips, (int)refused, (int)lost, (int)bad, (int)right);
    ASSERT_TRUE(right > 0 && bad > 0);
    nvme_file_remove(&f);
}
