/* kill -9 at random instants: a child writes, reads and removes records, and replaces them by other
 * versions of them, as fast as it can; after each kill every record that is in the index must be
 * there and one of its versions, never a mix, and the accounting must equal a count from the file
 * alone. KVBLEND_TEST_KILLS in the environment says how many kills (5). */
#include "tests/unit/tiers/nvme_kit.h"

#include "base/mem.h"
#include "tests/test.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { IDS = 300, THREADS = 4, CAPACITY = 24 << 20 };

/* A geometry per id: some dozen size classes from 12 KiB to 900 KiB. */
static struct kit_geometry geometry_of(uint64_t id)
{
    uint64_t seed = id;
    uint32_t L = 2 + (uint32_t)(test_rand(&seed) % 7);
    static const uint32_t n[] = {8, 8, 16, 16, 32, 60, 100, 200};
    return (struct kit_geometry){.L = L, .G = 2, .K = 128, .n_tokens = n[test_rand(&seed) % 8]};
}

static const char *ns_of(uint64_t id)
{
    return id % 5 == 0 ? "capped" : "free";
}

/* ---- the child ---- */

struct worker {
    struct tier *t;
    uint64_t seed;
};

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    for (;;) {
        uint64_t dice = test_rand(&w->seed) % 100, id = test_rand(&w->seed) % IDS;
        struct kit_rec r;
        kit_make(&r, id, ns_of(id), geometry_of(id));
        kit_revise(&r, dice % 3);
        if (dice < 75)
            (void)kit_write(w->t, &r);
        else if (dice < 90)
            (void)w->t->ops->remove(w->t, &r.desc.key, true);
        else if (dice < 93)
            (void)w->t->ops->set_pinned(w->t, &r.desc.key, dice == 90);
        else
            (void)kit_read(w->t, &r);
        kit_free(&r);
    }
    return NULL;
}

static _Noreturn void child(const struct tier_nvme_opts *o, uint64_t seed, int ready)
{
    struct tier *t = NULL;
    struct err err;
    if (tier_nvme_create(o, &t, &err) < 0) {
        (void)fprintf(stderr, "child: %s\n", err.msg);
        _exit(1);
    }
    (void)t->ops->set_quota(t, record_ns_hash("capped"), 3 << 20);
    struct worker w[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_t id;
        w[i] = (struct worker){t, seed * THREADS + i};
        if (pthread_create(&id, NULL, worker_main, &w[i]) != 0) _exit(1);
    }
    if (write(ready, "r", 1) != 1) _exit(1);
    for (;;)
        (void)poll(NULL, 0, -1);
}

/* ---- the parent ---- */

static struct tier_key keys[IDS];

struct census {
    struct tier *t;
    uint64_t n, n_revised, bad_key;
    uint64_t id[IDS];
};

static int take(void *ctx, const struct tier_info *i)
{
    struct census *c = ctx;
    uint64_t id = 0;
    while (id < IDS && !tier_key_same(&keys[id], &i->key))
        id++;
    if (id == IDS || c->n == IDS) c->bad_key++;
    if (id < IDS && c->n < IDS) c->id[c->n++] = id;
    return 0;
}

/* One version of the record as a whole (nvme_check() has looked), and which. */
static bool revised(struct tier *t, uint64_t id)
{
    struct record_view v;
    struct kit_rec r;
    kit_blank(&r, id, ns_of(id), geometry_of(id));
    ASSERT_OK(kit_read(t, &r));
    ASSERT_OK(record_open(r.mem, r.layout.record_bytes, &v));
    kit_free(&r);
    return v.desc.n_contexts > 0;
}

static void inspect(const struct tier_nvme_opts *o, struct census *c)
{
    *c = (struct census){.t = nvme_tier(o)};
    nvme_assert_exact(c->t, o->path);
    ASSERT_OK(c->t->ops->scan(c->t, take, c));
    ASSERT_EQ(c->bad_key, 0);
    ASSERT_EQ(c->n, nvme_stat(c->t).n_records);
    for (uint64_t i = 0; i < c->n; i++) {
        int r = nvme_check(c->t, c->id[i], ns_of(c->id[i]), geometry_of(c->id[i]));
        if (r < 0) test_fail(__FILE__, __LINE__, "record %d: %d", (int)c->id[i], r);
        c->n_revised += revised(c->t, c->id[i]);
    }
    ASSERT_EQ(nvme_stat(c->t).corrupt, 0);
    nvme_assert_exact(c->t, o->path);
    c->t->ops->destroy(c->t);
}

TEST(kill_loop)
{
    const char *env = getenv("KVBLEND_TEST_KILLS");
    int kills = env ? (int)strtol(env, NULL, 10) : 5;
    uint64_t seed = 20260, verified = 0, n_revised = 0, fresh = 0;
    struct nvme_file f;
    nvme_file_make(&f);
    for (uint64_t id = 0; id < IDS; id++)
        keys[id] = nvme_key(id, ns_of(id), geometry_of(id));
    for (int k = 0; k < kills; k++) {
        int ready[2];
        struct census c;
        struct tier_nvme_opts o = nvme_opts(&f, CAPACITY);
        o.force_pool = k % 4 == 3;
        if (test_rand(&seed) % 16 == 0) {
            (void)unlink(f.path);
            fresh++;
        }
        ASSERT_OK(pipe(ready));
        pid_t pid = fork();
        ASSERT_TRUE(pid >= 0);
        if (pid == 0) child(&o, seed, ready[1]);
        close(ready[1]);
        struct pollfd p = {.fd = ready[0], .events = POLLIN};
        bool early = test_rand(&seed) % 8 == 0; /* while it still opens the file */
        if (!early) ASSERT_EQ(poll(&p, 1, 60000), 1);
        p.fd = -1;
        (void)poll(&p, 1, (int)(test_rand(&seed) % (early ? 20 : 300)));
        ASSERT_OK(kill(pid, SIGKILL));
        int status;
        ASSERT_EQ(waitpid(pid, &status, 0), pid);
        ASSERT_TRUE(WIFSIGNALED(status));
        close(ready[0]);
        inspect(&o, &c);
        verified += c.n;
        n_revised += c.n_revised;
    }
    (void)printf("%d kills (%d on a new file), %llu records verified, %llu revised\n", kills,
                 (int)fresh, (unsigned long long)verified, (unsigned long long)n_revised);
    ASSERT_TRUE(verified > 0 && n_revised > 0 && n_revised < verified);
    nvme_file_remove(&f);
}
