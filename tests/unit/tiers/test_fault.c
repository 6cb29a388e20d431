/* The module itself, so that its schedule can be run with hand-made times. */
#include "tests/doubles/fault.c"

#include "tests/doubles/gpu_host.h"
#include "tests/test.h"
#include "tests/unit/tiers/redis_server.h"
#include "tests/unit/tiers/tier_kit.h"
#include "tiers/gpu/gpu.h"
#include "tiers/nvme/nvme.h"
#include "tiers/redis/redis.h"
#include "tiers/store.h"
#include "tiers/store_admin.h"
#include "tiers/store_write.h"

#include <unistd.h>

static const struct kit_geometry big = {
    .L = 7, .G = 8, .K = 128, .n_tokens = 256}; /* 1 MiB parts */
static const struct kit_geometry small = {.L = 3, .G = 2, .K = 8, .n_tokens = 40};
static const uint64_t ms = 1000000u;

struct rig {
    struct gpu *g;
    struct tier *t; /* faults over the GPU tier, which the host emulates */
};

static struct rig rig_sized(const struct tier_fault_opts *o, uint64_t bytes)
{
    struct rig r = {0};
    struct err err = {0};
    struct tier *inner = NULL;
    ASSERT_OK(gpu_host_open(0, &r.g, &err));
    ASSERT_OK(tier_gpu_create(&(struct tier_gpu_opts){r.g, bytes, EVICT_LRU}, &inner, &err));
    ASSERT_OK(tier_fault_create(inner, o, &r.t));
    return r;
}

static struct rig rig_open(const struct tier_fault_opts *o)
{
    return rig_sized(o, 16 << 20);
}

static void rig_close(struct rig *r)
{
    r->t->ops->destroy(r->t);
    gpu_close(r->g);
}

static void set(struct rig *r, struct tier_fault_opts o)
{
    ASSERT_OK(tier_fault_set(r->t, &o));
}

static struct tier_fault_stat met(struct rig *r)
{
    struct tier_fault_stat s;
    tier_fault_get_stat(r->t, &s);
    return s;
}

static struct tier_stat stat_of(struct rig *r)
{
    struct tier_stat s;
    r->t->ops->stat(r->t, &s);
    return s;
}

static uint64_t bits_apart(const struct kit_rec *a, const struct kit_rec *b)
{
    uint64_t n = 0;
    for (uint64_t i = 0; i < a->layout.record_bytes; i++)
        n += (uint64_t)__builtin_popcount(a->mem[i] ^ b->mem[i]);
    return n;
}

TEST(no_faults_no_difference)
{
    struct rig r = rig_open(&(struct tier_fault_opts){0});
    struct kit_rec a, b;
    kit_make(&a, 1, "a", big);
    kit_blank(&b, 1, "a", big);
    ASSERT_STREQ(r.t->name, "gpu");
    ASSERT_EQ(r.t->ops->find(r.t, &a.desc.key), 0);
    ASSERT_ERR(kit_read(r.t, &b), -ENOENT);
    ASSERT_OK(kit_write(r.t, &a));
    ASSERT_EQ(r.t->ops->find(r.t, &a.desc.key), 1);
    ASSERT_OK(kit_read(r.t, &b));
    ASSERT_EQ(bits_apart(&a, &b), 0);
    struct kit_call c;
    memset(b.mem, 0, b.layout.record_bytes);
    kit_call_init(&c, &b);
    c.late_memory = true;
    kit_call_again(&c);
    ASSERT_OK(r.t->ops->read(r.t, &c.op));
    ASSERT_OK(kit_wait(&c));
    ASSERT_EQ(bits_apart(&a, &b), 0);
    kit_call_fini(&c);
    struct tier_stat s = stat_of(&r);
    ASSERT_EQ(s.reads, 2);
    ASSERT_EQ(s.writes, 1);
    ASSERT_EQ(s.read_bytes, 2 * a.layout.record_bytes);
    ASSERT_EQ(s.used_bytes, a.layout.record_bytes - a.layout.header_bytes);
    ASSERT_EQ(r.t->ops->set_pinned(r.t, &a.desc.key, true), 1);
    ASSERT_ERR(r.t->ops->remove(r.t, &a.desc.key, false), -EBUSY);
    r.t->ops->touch(r.t, &a.desc.key);
    ASSERT_OK(r.t->ops->set_policy(r.t, EVICT_ARC));
    ASSERT_OK(r.t->ops->resize(r.t, 12 << 20));
    ASSERT_OK(r.t->ops->set_quota(r.t, a.desc.ns_hash, 8 << 20));
    ASSERT_EQ(r.t->ops->remove(r.t, &a.desc.key, true), 1);
    ASSERT_OK(r.t->ops->drain(r.t, 0));
    kit_free(&a);
    kit_free(&b);
    rig_close(&r);
}

TEST(each_fault)
{
    struct rig r = rig_open(&(struct tier_fault_opts){0});
    struct kit_rec a, b;
    kit_make(&a, 1, "a", big);
    kit_blank(&b, 1, "a", big);
    set(&r, (struct tier_fault_opts){.nospc = 1});
    ASSERT_ERR(kit_write(r.t, &a), -ENOSPC);
    ASSERT_EQ(r.t->ops->find(r.t, &a.desc.key), 0);
    set(&r, (struct tier_fault_opts){.eio = 1});
    ASSERT_ERR(kit_write(r.t, &a), -EIO);
    set(&r, (struct tier_fault_opts){.busy = 1});
    ASSERT_ERR(kit_write(r.t, &a), -EAGAIN);
    set(&r, (struct tier_fault_opts){0});
    ASSERT_OK(kit_write(r.t, &a));
    set(&r, (struct tier_fault_opts){.nospc = 1}); /* reads need no room */
    ASSERT_OK(kit_read(r.t, &b));
    set(&r, (struct tier_fault_opts){.eio = 1});
    ASSERT_ERR(kit_read(r.t, &b), -EIO);
    set(&r, (struct tier_fault_opts){.busy = 1});
    ASSERT_ERR(kit_read(r.t, &b), -EAGAIN);
    set(&r, (struct tier_fault_opts){.flip_read = 1, .seed = 4});
    for (int i = 0; i < 20; i++) {
        ASSERT_OK(kit_read(r.t, &b));
        ASSERT_EQ(bits_apart(&a, &b), 1);
    }
    set(&r, (struct tier_fault_opts){.eio = 1, .flip_read = 1, .cut = 1}); /* one end per op */
    ASSERT_ERR(kit_read(r.t, &b), -EIO);
    struct tier_fault_stat s = met(&r);
    ASSERT_EQ(s.ops, 28);
    ASSERT_EQ(s.eio, 3);
    ASSERT_EQ(s.nospc, 1);
    ASSERT_EQ(s.busy, 2);
    ASSERT_EQ(s.flip_read, 20);
    ASSERT_EQ(s.cut + s.drop + s.hang + s.flip_write + s.held, 0);
    ASSERT_EQ(stat_of(&r).rejected[TIER_REJECT_BUSY], 2);
    ASSERT_ERR(tier_fault_set(r.t, &(struct tier_fault_opts){.eio = 1.5}), -EINVAL);
    ASSERT_ERR(tier_fault_set(r.t, &(struct tier_fault_opts){.cut = NAN}), -EINVAL);
    ASSERT_ERR(tier_fault_set(r.t, &(struct tier_fault_opts){.delay_ms = -1}), -EINVAL);
    kit_free(&a);
    kit_free(&b);
    rig_close(&r);
}

/* The caller's bytes are left alone: others read them while they are written. */
TEST(flip_in_what_is_written)
{
    struct rig r = rig_open(&(struct tier_fault_opts){.flip_write = 1, .seed = 9});
    struct kit_rec a, b, same;
    kit_make(&a, 1, "a", big);
    kit_make(&same, 1, "a", big);
    kit_blank(&b, 1, "a", big);
    int stored = 0;
    for (int i = 0; i < 10; i++) {
        int w = kit_write(r.t, &a);
        ASSERT_MEMEQ(a.mem, same.mem, a.layout.record_bytes);
        ASSERT_TRUE(w == 0 || w == -EBADMSG); /* a header that is none is refused */
        if (w < 0) continue;
        stored++;
        ASSERT_OK(kit_read(r.t, &b));
        ASSERT_EQ(bits_apart(&a, &b), 1);
    }
    ASSERT_TRUE(stored > 5);
    ASSERT_EQ(met(&r).flip_write, 10);
    kit_free(&a);
    kit_free(&b);
    kit_free(&same);
    rig_close(&r);
}

TEST(a_part_cut_short_is_not_reported)
{
    struct rig r = rig_open(&(struct tier_fault_opts){0});
    struct kit_rec a, b;
    struct kit_call c;
    kit_make(&a, 1, "a", big);
    kit_blank(&b, 1, "a", big);
    ASSERT_OK(kit_write(r.t, &a));
    set(&r, (struct tier_fault_opts){.cut = 1, .seed = 2});
    kit_call_init(&c, &b);
    unsigned least = 99, most = 0;
    for (int i = 0; i < 40; i++) {
        memset(b.mem, 0, b.layout.record_bytes);
        c.late_memory = i % 2;
        kit_call_again(&c);
        ASSERT_OK(r.t->ops->read(r.t, &c.op));
        ASSERT_ERR(kit_wait(&c), -EIO);
        least = c.n_parts < least ? c.n_parts : least;
        most = c.n_parts > most ? c.n_parts : most;
        bool damaged = false;
        for (uint32_t p = 0; p < a.layout.n_parts; p++) {
            const uint8_t *at = b.mem + record_part_off(&b.layout, p);
            bool whole = memcmp(a.part[p], at, record_part_bytes(&a.layout, p)) == 0;
            ASSERT_TRUE(whole || !c.got[p]);
            damaged |= !whole;
        }
        ASSERT_TRUE(damaged);
    }
    ASSERT_EQ(least, 0);
    ASSERT_EQ(most, a.layout.n_parts - 1);
    kit_call_fini(&c);
    kit_free(&a);
    kit_free(&b);
    rig_close(&r);
}

TEST(dropped_and_hanging_ops_wait_for_healing)
{
    struct rig r = rig_open(&(struct tier_fault_opts){0});
    struct kit_rec a, b[4];
    struct kit_call c[4];
    kit_make(&a, 1, "a", small);
    ASSERT_OK(kit_write(r.t, &a));
    for (int i = 0; i < 4; i++) {
        kit_blank(&b[i], 1, "a", small);
        kit_call_init(&c[i], &b[i]);
        c[i].op.deadline_ns = i == 1 ? clock_ns() + 1 : 0; /* it had begun: not a timeout */
        static const double never = 1e-300;                /* heals nothing */
        set(&r, (struct tier_fault_opts){.hang = i < 2 ? 1 : never, .drop = i == 2 ? 1 : never});
        if (i < 3) ASSERT_OK(r.t->ops->read(r.t, &c[i].op));
        if (i == 3) ASSERT_OK(kit_read(r.t, &b[3])); /* others pass */
    }
    ASSERT_ERR(r.t->ops->drain(r.t, clock_ns() + ms), -ETIMEDOUT);
    for (int i = 0; i < 3; i++)
        ASSERT_EQ(kit_done(&c[i]), 0);
    ASSERT_EQ(met(&r).held, 3);
    ASSERT_EQ(stat_of(&r).inflight_ops, 3);
    set(&r, (struct tier_fault_opts){.hang = 1e-300});
    ASSERT_ERR(kit_wait(&c[2]), -EIO);
    ASSERT_EQ(kit_done(&c[0]) + kit_done(&c[1]), 0);
    set(&r, (struct tier_fault_opts){0});
    ASSERT_OK(kit_wait(&c[0]));
    ASSERT_OK(kit_wait(&c[1]));
    ASSERT_EQ(bits_apart(&a, &b[0]), 0);
    ASSERT_OK(r.t->ops->drain(r.t, 0));
    for (int i = 0; i < 4; i++) {
        kit_call_fini(&c[i]);
        kit_free(&b[i]);
    }
    kit_free(&a);
    rig_close(&r);
}

TEST(delay_and_deadline)
{
    struct rig r = rig_open(&(struct tier_fault_opts){.delay_ms = 20, .delay_random_ms = 10});
    struct kit_rec a;
    struct kit_call c;
    kit_make(&a, 1, "a", small);
    uint64_t t0 = clock_ns();
    ASSERT_OK(kit_write(r.t, &a));
    ASSERT_TRUE(clock_ns() - t0 >= 20 * ms);
    kit_call_init(&c, &a);
    t0 = clock_ns();
    c.op.deadline_ns = t0 + 5 * ms;
    ASSERT_OK(r.t->ops->read(r.t, &c.op));
    ASSERT_ERR(kit_wait(&c), -ETIMEDOUT);
    ASSERT_EQ(stat_of(&r).timeouts, 1);
    kit_call_fini(&c);
    kit_free(&a);
    rig_close(&r);
}

/* ---- rate ---- */

/* Simulated: a caller reads records of 1 MiB parts one after another, the thread is late by up to
 * 300 us a part and the caller takes up to 20 us to ask again. The rate is kept within 2 %. */
TEST(schedule_keeps_the_rate)
{
    static const double gb_per_s[] = {0.2, 1, 3.5, 7, 20};
    uint64_t seed = 5;
    for (size_t i = 0; i < sizeof gb_per_s / sizeof *gb_per_s; i++) {
        struct kit_rec a;
        kit_blank(&a, 1, "a", big);
        struct tier_op op = {.layout = &a.layout, .part_hi = a.layout.n_parts};
        struct fault f = {.o = {.read_bytes_per_s = (uint64_t)(gb_per_s[i] * 1e9)}};
        uint64_t now = 1000 * ms, t0 = now, bytes = 0;
        for (int n = 0; n < 200; n++) {
            struct fault_op p = {.f = &f, .outer = &op, .submit_ns = now, .start_ns = now};
            f.head = &p;
            struct channel *c = &f.channel[CHANNEL_READ];
            for (uint32_t part = 0; part < op.part_hi; part++) {
                mark_ready(&p, part);
                channel_pick(&f, CHANNEL_READ);
                ASSERT_TRUE(c->op == &p && c->part == part);
                if (now < c->due_ns) now = c->due_ns + test_rand(&seed) % (300 * ms / 1000);
                c->op = NULL;
                c->last = &p;
                c->free_ns = c->due_ns;
                c->handed_ns = now;
                bytes += record_part_bytes(&a.layout, part);
            }
            now += test_rand(&seed) % (20 * ms / 1000);
        }
        double rate = (double)bytes / ((double)(now - t0) / 1e9) / 1e9;
        ASSERT_NEAR(rate / gb_per_s[i], 1.0, gb_per_s[i] < 10 ? 0.02 : 0.10);
        kit_free(&a);
    }
}

/* After a pause a record takes its full time again: idle time is not saved up. */
TEST(schedule_saves_nothing_up)
{
    struct kit_rec a;
    kit_blank(&a, 1, "a", big);
    struct tier_op op = {.layout = &a.layout, .part_hi = a.layout.n_parts};
    struct fault f = {.o = {.read_bytes_per_s = 1000000000}};
    struct channel *c = &f.channel[CHANNEL_READ];
    c->free_ns = 10 * ms;
    c->handed_ns = 14 * ms; /* it was 4 ms late */
    struct fault_op p = {.f = &f, .outer = &op, .submit_ns = 50 * ms, .start_ns = 50 * ms};
    f.head = &p;
    mark_ready(&p, 1);
    channel_pick(&f, CHANNEL_READ);
    ASSERT_EQ(c->due_ns, 50 * ms + (1 << 20));
    kit_free(&a);
}

/* Never faster than the rate, whoever else uses the machine. */
TEST(rate_is_a_limit)
{
    struct rig r = rig_open(
        &(struct tier_fault_opts){.read_bytes_per_s = 200000000, .write_bytes_per_s = 400000000});
    struct kit_rec a, b;
    kit_make(&a, 1, "a", big);
    kit_blank(&b, 1, "a", big);
    uint64_t t0 = clock_ns();
    ASSERT_OK(kit_write(r.t, &a));
    ASSERT_TRUE(clock_ns() - t0 >= a.layout.record_bytes * 1000 / 400);
    t0 = clock_ns();
    for (int i = 0; i < 3; i++)
        ASSERT_OK(kit_read(r.t, &b));
    ASSERT_TRUE(clock_ns() - t0 >= 3 * a.layout.record_bytes * 1000 / 200 * 99 / 100);
    ASSERT_EQ(bits_apart(&a, &b), 0);
    kit_free(&a);
    kit_free(&b);
    rig_close(&r);
}

static _Atomic int order;
static void note_order(struct kit_call *c)
{
    c->ctx = (void *)(intptr_t)++order;
}

TEST(demand_overtakes)
{
    struct rig r = rig_open(&(struct tier_fault_opts){0});
    struct kit_rec a, b[4];
    struct kit_call c[4];
    kit_make(&a, 1, "a", big);
    ASSERT_OK(kit_write(r.t, &a));
    order = 0;
    set(&r, (struct tier_fault_opts){.read_bytes_per_s = 10000000, .hang = 1});
    for (int i = 0; i < 4; i++) {
        kit_blank(&b[i], 1, "a", big);
        kit_call_init(&c[i], &b[i]);
        c[i].then = note_order;
        c[i].op.prio = i < 3 ? TIER_BEHIND : TIER_DEMAND;
        ASSERT_OK(r.t->ops->read(r.t, &c[i].op));
    }
    set(&r, (struct tier_fault_opts){.read_bytes_per_s = 10000000});
    ASSERT_OK(kit_wait(&c[3]));
    set(&r, (struct tier_fault_opts){0});
    for (int i = 0; i < 4; i++) {
        ASSERT_OK(kit_wait(&c[i]));
        ASSERT_EQ((intptr_t)c[i].ctx, i < 3 ? i + 2 : 1);
        kit_call_fini(&c[i]);
        kit_free(&b[i]);
    }
    kit_free(&a);
    rig_close(&r);
}

/* ---- contract ---- */

static void ask_again(struct kit_call *c) /* what a store does in on_done */
{
    struct tier *t = c->ctx;
    (void)t->ops->find(t, &c->op.key);
    (void)t->ops->remove(t, &c->op.key, false);
    t->ops->touch(t, &c->op.key);
}

/* Whatever faults, whenever it is destroyed: every accepted op ends exactly once, what ends well is
 * whole, and nothing is called for what was refused. */
TEST(property_one_end_for_every_op)
{
    enum { OPS = 24 };
    uint64_t seed = 20261121;
    for (int round = 0; round < 60; round++) {
        struct tier_fault_opts o = {.seed = test_rand(&seed)};
        double *p[] = {&o.busy, &o.eio, &o.nospc, &o.cut, &o.drop, &o.hang};
        for (size_t i = 0; i < sizeof p / sizeof *p; i++)
            if (test_rand(&seed) % 2) *p[i] = (double)(test_rand(&seed) % 100) / 300;
        if (test_rand(&seed) % 2) o.delay_random_ms = 2;
        if (test_rand(&seed) % 2) o.read_bytes_per_s = 1 + test_rand(&seed) % 100000000;
        if (test_rand(&seed) % 2) o.write_bytes_per_s = 1 + test_rand(&seed) % 100000000;
        struct rig r = rig_sized(&(struct tier_fault_opts){0}, 1 << 20);
        struct kit_rec a[OPS];
        struct kit_call c[OPS];
        int accepted[OPS];
        for (uint64_t i = 0; i < 4; i++) {
            kit_make(&a[0], i, "a", small);
            ASSERT_OK(kit_write(r.t, &a[0]));
            kit_free(&a[0]);
        }
        set(&r, o);
        for (int i = 0; i < OPS; i++) {
            bool write = test_rand(&seed) % 3 == 0;
            uint64_t id = test_rand(&seed) % 6;
            if (write)
                kit_make(&a[i], id, "a", small);
            else
                kit_blank(&a[i], id, "a", small);
            kit_call_init(&c[i], &a[i]);
            c[i].ctx = r.t;
            c[i].then = i % 5 == 0 ? ask_again : NULL;
            c[i].late_memory = !write && i % 2;
            c[i].cancel_at =
                test_rand(&seed) % 8 == 0 ? (uint32_t)(test_rand(&seed) % 3) : UINT32_MAX;
            c[i].op.prio = (enum tier_prio)(test_rand(&seed) % TIER_PRIO_COUNT);
            if (i % 7 == 0) c[i].op.deadline_ns = clock_ns() + test_rand(&seed) % (2 * ms);
            kit_call_again(&c[i]);
            accepted[i] = write ? r.t->ops->write(r.t, &c[i].op) : r.t->ops->read(r.t, &c[i].op);
            if (i == OPS / 2 && round % 3 == 0) set(&r, (struct tier_fault_opts){.cut = 0.5});
        }
        if (round % 4 == 0) {
            o.read_bytes_per_s = o.write_bytes_per_s = 0;
            o.drop = o.hang = 0;
            set(&r, o);
            ASSERT_OK(r.t->ops->drain(r.t, clock_ns() + 60000 * ms));
            ASSERT_EQ(stat_of(&r).inflight_ops, 0);
        }
        rig_close(&r);
        for (int i = 0; i < OPS; i++) {
            ASSERT_EQ(kit_done(&c[i]), accepted[i] == 0);
            if (accepted[i] == 0) (void)kit_wait(&c[i]);
            if (accepted[i] == 0 && c[i].status == 0 && c[i].op.on_part && c[i].n_parts) {
                ASSERT_EQ(c[i].n_parts, c[i].op.part_hi - c[i].op.part_lo);
                for (uint32_t g = 0; g < a[i].layout.n_groups; g++)
                    ASSERT_OK(record_check_group(a[i].part, &a[i].layout, g));
            }
            kit_call_fini(&c[i]);
            kit_free(&a[i]);
        }
    }
}

TEST(same_seed_same_faults)
{
    int first[40];
    for (int round = 0; round < 2; round++) {
        struct rig r = rig_open(&(struct tier_fault_opts){.seed = 77, .eio = 0.3, .busy = 0.2});
        struct kit_rec a;
        kit_make(&a, 1, "a", small);
        for (int i = 0; i < 40; i++) {
            int status = kit_write(r.t, &a);
            if (round == 0) first[i] = status;
            ASSERT_EQ(status, first[i]);
        }
        kit_free(&a);
        rig_close(&r);
    }
}

TEST(every_allocation_may_fail)
{
    struct kit_rec a, b;
    kit_make(&a, 1, "a", small);
    kit_blank(&b, 1, "a", small);
    for (unsigned n = 1;; n++) {
        struct gpu *g = NULL;
        struct tier *inner = NULL, *t = NULL;
        struct err err;
        ASSERT_OK(gpu_host_open(0, &g, &err));
        ASSERT_OK(tier_gpu_create(&(struct tier_gpu_opts){g, 1 << 20, EVICT_LRU}, &inner, &err));
        struct tier_fault_opts o = {.flip_write = 1, .seed = 1};
        mem_fail_nth(n);
        int r = tier_fault_create(inner, &o, &t);
        if (r == 0) r = kit_write(t, &a);
        if (r == 0) r = kit_read(t, &b);
        bool fired = mem_fail_fired();
        mem_fail_nth(0);
        ASSERT_EQ(r, fired ? -ENOMEM : 0);
        if (t)
            t->ops->destroy(t);
        else
            inner->ops->destroy(inner);
        gpu_close(g);
        if (!fired) break;
    }
    kit_free(&a);
    kit_free(&b);
}

/* ---- through the store: a request falls back to computing, in time ---- */

enum { L = 5, G = 2, K = 8, TOKENS = 64, ROW_BYTES = TOKENS * G * K * 4, WORTH_MS = 100 };
static const struct tier_ident ident = {
    .model = {1, 2}, .dtype = KN_F32, .sink_token = UINT32_MAX, .L = L, .G = G, .K = K};

struct site { /* a store over faults over a device */
    struct store *s;
    struct tier *t;
    struct redis_server *server;
    char dir[256], path[300];
};

static void site_nvme(struct site *w)
{
    const char *tmp = getenv("TMPDIR");
    struct err err = {0};
    (void)snprintf(w->dir, sizeof w->dir, "%s/kvblend-fault-XXXXXX", tmp ? tmp : "/tmp");
    ASSERT_TRUE(mkdtemp(w->dir));
    (void)snprintf(w->path, sizeof w->path, "%s/records", w->dir);
    struct tier_nvme_opts o = {.path = w->path,
                               .capacity_bytes = 16 << 20,
                               .write_bytes_per_day = TIER_NVME_NO_BUDGET,
                               .scrub_bytes_per_s = TIER_NVME_NO_SCRUB};
    ASSERT_OK(tier_nvme_create(&o, &w->t, &err));
}

static void site_redis(struct site *w)
{
    char text[512];
    const char *urls[] = {text};
    struct redis_url url;
    struct err err = {0};
    w->server = redis_server_start(NULL);
    redis_server_url(w->server, text);
    ASSERT_OK(redis_url_parse(urls, 1, &url, &err));
    ASSERT_OK(tier_redis_create(&(struct tier_redis_opts){.url = &url}, &w->t, &err));
    redis_url_fini(&url);
    WAIT_FOR(w->t->ops->find(w->t, &(struct tier_key){1, 2}) != 0);
}

static void site_open(struct site *w, void (*device)(struct site *w))
{
    struct err err = {0};
    struct tier *faults = NULL;
    memset(w, 0, sizeof *w);
    device(w);
    ASSERT_OK(tier_fault_create(w->t, &(struct tier_fault_opts){0}, &faults));
    w->t = faults;
    struct store_opts o = {.ram_bytes = 4 << 20, .ident = ident, .tier = {{faults}}, .n_tiers = 1};
    ASSERT_OK(store_create(&o, &w->s, &err));
}

static void site_close(struct site *w)
{
    store_destroy(w->s);
    if (w->server) redis_server_stop(w->server);
    if (!w->path[0]) return;
    (void)unlink(w->path);
    (void)rmdir(w->dir);
}

static struct tier_key chunk(int id, int32_t *tok)
{
    for (int i = 0; i < TOKENS; i++)
        tok[i] = 1000 * id + i;
    return tier_key_chunk(&ident, "t", tok, TOKENS);
}

static void chunk_build(struct site *w, int id)
{
    int32_t tok[TOKENS];
    struct tier_key k = chunk(id, tok);
    struct store_writer *sw = NULL;
    if (store_claim(w->s, &(struct store_new){TIER_CHUNK, k, "t", tok, TOKENS}, &sw) != 1) return;
    for (unsigned l = 1; l < L; l++) {
        void *rows[2];
        store_writer_layer(sw, l, &rows[0], &rows[1]);
        memset(rows[0], 10 * id + (int)l, ROW_BYTES);
        memset(rows[1], 10 * id + (int)l + 100, ROW_BYTES);
    }
    ASSERT_OK(store_commit(sw));
}

static void leave_ram(struct site *w, int id)
{
    int32_t tok[TOKENS];
    struct tier_key k = chunk(id, tok);
    ASSERT_OK(store_flush(w->s, clock_ns() + 60000 * ms));
    WAIT_FOR(store_evict(w->s, &k, "ram") >= 0);
}

/* As a worker does it. 1: every layer came and is right; 0: it computes instead. Either is known
 * within ten times what the store promises. */
static int request_worth(struct site *w, int id, double worth_ms, enum store_miss *why)
{
    int32_t tok[TOKENS];
    struct store_ask a = {.key = chunk(id, tok), .tok = tok, .n = TOKENS, .worth_ms = worth_ms};
    struct store_pin *p = NULL;
    uint64_t t0 = clock_ns();
    int r = store_ask(w->s, &a, &p, why);
    ASSERT_OK(r);
    if (r == STORE_ASKING) r = store_pin_settle(p, 0, why);
    ASSERT_OK(r);
    int whole = r;
    for (unsigned l = 1; r == 1 && l < L; l++) {
        const void *rows[2];
        if (store_pin_layer(p, l, &rows[0], &rows[1]) < 0) {
            whole = 0;
            break;
        }
        for (int i = 0; i < ROW_BYTES; i++) {
            ASSERT_EQ(((const uint8_t *)rows[0])[i], (uint8_t)(10 * id + (int)l));
            ASSERT_EQ(((const uint8_t *)rows[1])[i], (uint8_t)(10 * id + (int)l + 100));
        }
    }
    if (r == 1) store_pin_release(p);
    ASSERT_TRUE(worth_ms == 0 || clock_ns() - t0 < 10 * 2 * WORTH_MS * ms);
    return whole;
}

static int request(struct site *w, int id, enum store_miss *why)
{
    return request_worth(w, id, WORTH_MS, why);
}

static const char *breaker_of(struct site *w)
{
    struct store_tier_stats t;
    store_get_tier_stats(w->s, 0, &t);
    return t.breaker;
}

static void device_is_full(void (*device)(struct site *w))
{
    struct site w;
    enum store_miss why;
    site_open(&w, device);
    ASSERT_OK(tier_fault_set(w.t, &(struct tier_fault_opts){.nospc = 1}));
    for (int id = 0; id < 20; id++) {
        chunk_build(&w, id);
        ASSERT_EQ(request(&w, id, &why), 1);
        ASSERT_OK(store_flush(w.s, clock_ns() + 60000 * ms));
        ASSERT_EQ(request(&w, id, &why), 1);
        leave_ram(&w, id);
        ASSERT_EQ(request(&w, id, &why), 0);
    }
    struct tier_fault_stat s;
    tier_fault_get_stat(w.t, &s);
    ASSERT_TRUE(s.nospc >= 20);
    ASSERT_STREQ(breaker_of(&w), "closed"); /* full is not broken */
    ASSERT_OK(tier_fault_set(w.t, &(struct tier_fault_opts){0}));
    chunk_build(&w, 1);
    leave_ram(&w, 1);
    ASSERT_EQ(request(&w, 1, &why), 1);
    site_close(&w);
}

TEST(nvme_is_full)
{
    device_is_full(site_nvme);
}

TEST(redis_is_full)
{
    device_is_full(site_redis);
}

/* A record would take minutes. Requests give up in time, then are not even sent, and come back on
 * their own once the device is well again; nothing is lost of the budget. */
static void device_is_slow(void (*device)(struct site *w), const struct tier_fault_opts *slow)
{
    struct site w;
    enum store_miss why;
    struct store_stats before, after;
    site_open(&w, device);
    store_get_stats(w.s, &before);
    for (int id = 0; id < 12; id++) {
        chunk_build(&w, id);
        leave_ram(&w, id);
    }
    ASSERT_OK(tier_fault_set(w.t, slow));
    for (int id = 0; id < 12; id++)
        ASSERT_EQ(request(&w, id, &why), 0);
    ASSERT_STREQ(breaker_of(&w), "open");
    ASSERT_EQ(why, STORE_MISS_IO);
    store_get_stats(w.s, &after);
    ASSERT_TRUE(after.used_bytes <= after.budget_bytes);
    ASSERT_OK(tier_fault_set(w.t, &(struct tier_fault_opts){0}));
    /* Patient ones: the gate remembers slow loads for ten seconds. */
    WAIT_FOR(request_worth(&w, 3, 0, &why) == 1);
    WAIT_FOR(strcmp(breaker_of(&w), "closed") == 0); /* when the tier says that it is done */
    for (int id = 0; id < 12; id++)
        WAIT_FOR(request_worth(&w, id, 0, &why) == 1);
    for (int id = 0; id < 12; id++)
        leave_ram(&w, id);
    WAIT_FOR((store_get_stats(w.s, &after), after.inflight == 0));
    WAIT_FOR((store_get_stats(w.s, &after), after.used_bytes == before.used_bytes));
    site_close(&w);
}

TEST(nvme_is_slow)
{
    device_is_slow(site_nvme, &(struct tier_fault_opts){.read_bytes_per_s = 300});
}

TEST(nvme_hangs)
{
    device_is_slow(site_nvme, &(struct tier_fault_opts){.hang = 1});
}

TEST(redis_is_slow)
{
    device_is_slow(site_redis, &(struct tier_fault_opts){.delay_ms = 60000, .drop = 0.5});
}

/* Everything at once, while requests go on: right or not at all, and the end is clean. */
TEST(store_over_random_faults)
{
    struct site w;
    enum store_miss why;
    int hits = 0;
    site_open(&w, site_nvme);
    uint64_t seed = 7;
    for (int i = 0; i < 400; i++) {
        if (i % 40 == 0) {
            struct tier_fault_opts o = {.seed = test_rand(&seed)};
            double *p[] = {&o.busy, &o.eio, &o.nospc, &o.cut, &o.flip_read, &o.flip_write};
            for (size_t j = 0; j < sizeof p / sizeof *p; j++)
                *p[j] = i % 80 ? 0 : (double)(test_rand(&seed) % 100) / 400;
            ASSERT_OK(tier_fault_set(w.t, &o));
        }
        int id = (int)(test_rand(&seed) % 20);
        if (request(&w, id, &why))
            hits++;
        else
            chunk_build(&w, id);
        int32_t tok[TOKENS];
        struct tier_key k = chunk(id, tok);
        if (test_rand(&seed) % 2) (void)store_evict(w.s, &k, "ram");
    }
    ASSERT_TRUE(hits > 100);
    site_close(&w);
}

/* How far the other call of the batch has come. */
static void look_at_other(struct kit_call *c)
{
    struct kit_call *other = c->ctx;
    pthread_mutex_lock(&other->m);
    c->rec->desc.created_ms = other->n_parts;
    pthread_mutex_unlock(&other->m);
}

TEST(the_reads_of_a_batch_take_turns)
{
    struct rig r = rig_open(&(struct tier_fault_opts){0});
    struct kit_rec a, b;
    struct kit_call x, y;
    kit_make(&a, 1, "a", big);
    kit_make(&b, 2, "a", big);
    ASSERT_OK(kit_write(r.t, &a));
    ASSERT_OK(kit_write(r.t, &b));
    set(&r, (struct tier_fault_opts){.read_bytes_per_s = a.layout.record_bytes}); /* a second */
    kit_call_init(&x, &a);
    kit_call_init(&y, &b);
    x.op.batch = y.op.batch = 7;
    x.then = look_at_other;
    x.ctx = &y;
    ASSERT_OK(r.t->ops->read(r.t, &x.op));
    ASSERT_OK(r.t->ops->read(r.t, &y.op));
    ASSERT_OK(kit_wait(&x));
    ASSERT_OK(kit_wait(&y));
    ASSERT_TRUE(a.layout.n_parts > 3);
    ASSERT_TRUE(a.desc.created_ms + 2 >= a.layout.n_parts); /* neither was served first */
    kit_call_fini(&x);
    kit_call_fini(&y);
    kit_free(&a);
    kit_free(&b);
    rig_close(&r);
}
