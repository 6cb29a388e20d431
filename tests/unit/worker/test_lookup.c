/* Early look-ups of a prompt over RAM and a file: what is held, by whom, and until when. */
#include "worker/reuse/builds.c"

#include "base/clock.h"
#include "tests/doubles/fault.h"
#include "tests/test.h"
#include "tiers/nvme/nvme.h"
#include "tiers/store_admin.h"
#include "tiers/store_write.h"
#include "worker/reuse/builds.h"
#include "worker/reuse/lookup.h"
#include "worker/reuse/records.h"
#include "worker/reuse/reuse.h"
#include "worker/worker.h"

#include <stdlib.h>
#include <unistd.h>

enum { L = 3, G = 2, K = 4, ROW = G * K, N_TOK = 400, N_BLOCK = 3, N_CUT = 3, CUT = 50 };

struct kit {
    struct worker w;
    struct tier *fault;
    char dir[64], path[96];
    int32_t tok[N_TOK];
    struct wk_prompt p;
    struct api_settings m;
    atomic_bool gone;
};

/* 200 tokens of preamble (three whole blocks), three chunks, a question. */
static void prompt_make(struct kit *k)
{
    struct wk_prompt *p = &k->p;

    memset(p, 0, sizeof *p);
    for (size_t i = 0; i < N_TOK; i++)
        k->tok[i] = 1000 + (int32_t)i;
    p->tok = k->tok;
    p->n_tok = N_TOK;
    p->n_cut = N_CUT;
    p->cut = mem_zalloc(N_CUT * sizeof *p->cut);
    p->block = mem_zalloc(N_BLOCK * sizeof *p->block);
    ASSERT_TRUE(p->cut && p->block);
    for (uint32_t i = 0; i < N_CUT; i++) {
        p->cut[i] = (struct wk_cut){.tok0 = 200 + CUT * i, .n = CUT, .detector = "parts"};
        p->cut[i].key = tier_key_chunk(&k->w.ident, "", k->tok + p->cut[i].tok0, CUT);
    }
    for (uint32_t i = 1; i <= N_BLOCK; i++)
        wk_block_add(p, &k->w.ident, "", 64 * i);
}

static void kit_open(struct kit *k)
{
    struct err err = {0};
    struct tier *nvme;
    const struct tier_fault_opts none = {0};
    struct store_opts o = {.ram_bytes = 4 << 20};

    memset(k, 0, sizeof *k);
    (void)snprintf(k->dir, sizeof k->dir, "/tmp/kvb-asks-XXXXXX");
    ASSERT_TRUE(mkdtemp(k->dir) != NULL);
    (void)snprintf(k->path, sizeof k->path, "%s/tier", k->dir);
    const struct tier_nvme_opts n = {.path = k->path, .capacity_bytes = 32 << 20};
    ASSERT_OK(tier_nvme_create(&n, &nvme, &err));
    ASSERT_OK(tier_fault_create(nvme, &none, &k->fault));
    k->w.ident = (struct tier_ident){.model = {1, 2}, .dtype = KN_F16, .L = L, .G = G, .K = K};
    o.ident = k->w.ident;
    o.tier[0] = (struct store_tier_opts){k->fault};
    o.n_tiers = 1;
    ASSERT_OK(store_create(&o, &k->w.store, &err));
    ASSERT_OK(wk_builds_create(&k->w, NULL));
    k->w.blend_ok = true;
    k->w.o = (struct wk_opts){.strategy = POL_QUERY, .ratio = 0.1, .ram_bytes = 4 << 20};
    k->w.o.tiers.wait_ms = 10000; /* a loaded machine is no miss */
    k->m = (struct api_settings){.ns = "", .strategy = POL_REUSE, .ratio = -1};
    prompt_make(k);
}

static void kit_close(struct kit *k)
{
    wk_prompt_fini(&k->p);
    ASSERT_EQ(atomic_load(&k->w.reuse.held_bytes), 0);
    wk_builds_destroy(&k->w);
    store_destroy(k->w.store); /* asserts that no pin is out */
    (void)unlink(k->path);
    ASSERT_OK(rmdir(k->dir));
}

static void put(struct kit *k, enum tier_kind kind, const struct tier_key *key, uint32_t tok0,
                uint32_t n)
{
    struct store_writer *w;

    ASSERT_EQ(store_claim(k->w.store, &(struct store_new){kind, *key, "", k->tok + tok0, n}, &w),
              1);
    for (unsigned l = 1; l < L; l++) {
        void *kk, *v;
        store_writer_layer(w, l, &kk, &v);
        memset(kk, (int)(l + tok0) & 0xff, n * ROW * 2);
        memset(v, (int)(l + tok0 + 1) & 0xff, n * ROW * 2);
    }
    ASSERT_OK(store_commit(w));
}

static void put_all(struct kit *k)
{
    for (uint32_t i = 0; i < N_BLOCK; i++)
        put(k, TIER_PREFIX, &k->p.block[i].key, 64 * i, 64);
    for (uint32_t i = 0; i < N_CUT; i++)
        put(k, TIER_CHUNK, &k->p.cut[i].key, k->p.cut[i].tok0, CUT);
}

/* What was put is in the file and nowhere else. */
static void leave_ram(struct kit *k)
{
    ASSERT_OK(store_flush(k->w.store, clock_ns() + 60000000000ull));
    ASSERT_TRUE(store_clear(k->w.store, "ram", NULL, true) >= 0);
}

/* Plan, read every range, and give everything back. */
static size_t plan(struct kit *k)
{
    struct fus_plan f = {0};
    uint32_t captured;
    size_t n_hit = 0;
    void *arrays;

    ASSERT_OK(wk_plan(&k->w, &k->p, &k->m, &f, &arrays, &captured));
    ASSERT_EQ(atomic_load(&k->w.reuse.held_bytes), 0); /* the plan's now, or nobody's */
    for (size_t i = 0; i < f.n_range; i++) {
        const struct kv_source *s = &f.range[i].src;
        for (unsigned l = 1; s->ops && l < L; l++) {
            struct kv_layer y;
            ASSERT_OK(s->ops->layer(s->ctx, l, &y));
            ASSERT_EQ(s->ops->ready(s->ctx, l), 1);
            ASSERT_EQ(*(const uint8_t *)y.k, (l + f.range[i].tok0) & 0xff);
            ASSERT_EQ(*(const uint8_t *)y.v, (l + f.range[i].tok0 + 1) & 0xff);
        }
        n_hit += s->ops != NULL;
        if (s->ops) s->ops->release(s->ctx);
    }
    mem_free(arrays);
    return n_hit;
}

/* All parts are here; the load as such may take an instant more. */
static void wait_in_ram(struct kit *k, const struct tier_key *key)
{
    struct store_info i = {0};

    for (uint64_t t0 = clock_ns(); clock_ms_since(t0) < 30000;)
        if (store_get_info(k->w.store, key, &i) == 1 && strcmp(i.tier, "ram") == 0) return;
    test_fail(__FILE__, __LINE__, "not in RAM but in \"%s\"", i.tier);
}

TEST(what_a_file_has_is_asked_for_early)
{
    struct kit k;
    kit_open(&k);
    put_all(&k);
    leave_ram(&k);
    wk_lookup_prompt(&k.w, &k.p, &k.m, &k.gone);
    for (size_t i = 0; i < N_BLOCK; i++)
        ASSERT_TRUE(k.p.block[i].lookup.pin);
    for (size_t i = 0; i < N_CUT; i++)
        ASSERT_TRUE(k.p.cut[i].lookup.pin);
    ASSERT_EQ(atomic_load(&k.w.reuse.held_bytes),
              N_BLOCK * rec_bytes(&k.w.ident, 64) + N_CUT * rec_bytes(&k.w.ident, CUT));
    ASSERT_EQ(plan(&k), N_BLOCK + N_CUT);
    for (size_t i = 0; i < N_CUT; i++) {
        ASSERT_EQ(k.p.cut[i].source, WK_STORED);
        ASSERT_STREQ(k.p.cut[i].lookup.tier, "nvme");
    }
    for (uint32_t i = 0; i < N_BLOCK; i++)
        wait_in_ram(&k, &k.p.block[i].key);
    for (uint32_t i = 0; i < N_CUT; i++)
        wait_in_ram(&k, &k.p.cut[i].key);
    ASSERT_EQ(plan(&k), N_BLOCK + N_CUT); /* and again, now from RAM, without asking early */
    ASSERT_STREQ(k.p.cut[0].lookup.tier, "ram");
    kit_close(&k);
}

TEST(a_prompt_that_never_runs_gives_its_pins_back)
{
    struct kit k;
    kit_open(&k);
    put_all(&k);
    leave_ram(&k);
    wk_lookup_prompt(&k.w, &k.p, &k.m, &k.gone);
    ASSERT_ERR(store_evict(k.w.store, &k.p.cut[0].key, "ram"), -EBUSY);
    struct tier_key key = k.p.cut[0].key;
    wk_prompt_fini(&k.p);
    int rc = -EBUSY; /* until its load has ended */
    for (uint64_t t0 = clock_ns(); rc == -EBUSY && clock_ms_since(t0) < 30000;)
        rc = store_evict(k.w.store, &key, "ram");
    ASSERT_TRUE(rc >= 0);
    prompt_make(&k);
    atomic_store(&k.gone, true); /* its client has left meanwhile */
    leave_ram(&k);
    wk_lookup_prompt(&k.w, &k.p, &k.m, &k.gone);
    kit_close(&k);
}

/* Prompts ahead of it hold all that may be held: its records climb to RAM, and are not held there.
 */
TEST(a_prompt_that_may_hold_nothing_finds_it_in_ram_all_the_same)
{
    struct kit k;
    uint64_t held = 2 << 20;
    kit_open(&k);
    put_all(&k);
    leave_ram(&k);
    atomic_store(&k.w.reuse.held_bytes, held);
    wk_lookup_prompt(&k.w, &k.p, &k.m, &k.gone);
    ASSERT_EQ(atomic_load(&k.w.reuse.held_bytes), held);
    ASSERT_TRUE(atomic_load(&k.w.reuse.warm_bytes) > 0);
    ASSERT_EQ(atomic_load(&k.w.reuse.warm_bytes), k.p.warm_bytes);
    for (size_t i = 0; i < N_CUT; i++) {
        ASSERT_TRUE(!k.p.cut[i].lookup.pin);
        wait_in_ram(&k, &k.p.cut[i].key);
    }
    atomic_store(&k.w.reuse.held_bytes, 0);
    ASSERT_TRUE(plan(&k) >= N_CUT);
    for (size_t i = 0; i < N_CUT; i++)
        ASSERT_STREQ(k.p.cut[i].lookup.tier, "ram");
    ASSERT_EQ(atomic_load(&k.w.reuse.warm_bytes), 0);

    leave_ram(&k); /* and what is on its way is bounded, too */
    uint64_t all = 1 << 20;
    atomic_store(&k.w.reuse.held_bytes, held);
    atomic_store(&k.w.reuse.warm_bytes, all);
    wk_lookup_prompt(&k.w, &k.p, &k.m, &k.gone);
    ASSERT_EQ(atomic_load(&k.w.reuse.warm_bytes), all);
    ASSERT_EQ(k.p.warm_bytes, 0);
    atomic_store(&k.w.reuse.held_bytes, 0);
    atomic_store(&k.w.reuse.warm_bytes, 0);
    kit_close(&k);
}

TEST(a_chain_ends_at_its_first_miss)
{
    struct kit k;
    kit_open(&k);
    put(&k, TIER_PREFIX, &k.p.block[0].key, 0, 64);
    put(&k, TIER_PREFIX, &k.p.block[2].key, 128, 64);
    leave_ram(&k);
    wk_lookup_prompt(&k.w, &k.p, &k.m, &k.gone);
    ASSERT_TRUE(k.p.block[0].lookup.pin && !k.p.block[1].lookup.pin && !k.p.block[2].lookup.pin);
    ASSERT_EQ(atomic_load(&k.w.reuse.held_bytes), rec_bytes(&k.w.ident, 64));
    ASSERT_EQ(plan(&k), 1);
    ASSERT_EQ(k.p.cut[0].lookup.why, STORE_MISS_NEVER);
    kit_close(&k);
}

TEST(modes_ask_for_what_they_use)
{
    struct kit k;
    kit_open(&k);
    put_all(&k);
    leave_ram(&k);
    k.m.strategy = POL_FULL;
    wk_lookup_prompt(&k.w, &k.p, &k.m, &k.gone);
    ASSERT_TRUE(!k.p.block[0].lookup.asked && !k.p.cut[0].lookup.asked);
    k.m.strategy = POL_PREFIX;
    wk_lookup_prompt(&k.w, &k.p, &k.m, &k.gone);
    ASSERT_TRUE(k.p.block[N_BLOCK - 1].lookup.pin && !k.p.cut[0].lookup.asked);
    ASSERT_EQ(plan(&k), N_BLOCK);
    kit_close(&k);
}

TEST(waiting_prompts_hold_half_of_ram_at_most)
{
    struct kit k;
    kit_open(&k);
    put_all(&k);
    leave_ram(&k);
    k.w.o.ram_bytes = 2 * (N_BLOCK * rec_bytes(&k.w.ident, 64) + rec_bytes(&k.w.ident, CUT));
    wk_lookup_prompt(&k.w, &k.p, &k.m, &k.gone);
    ASSERT_EQ(2 * atomic_load(&k.w.reuse.held_bytes), k.w.o.ram_bytes);
    ASSERT_TRUE(k.p.cut[0].lookup.pin && !k.p.cut[1].lookup.asked && !k.p.cut[2].lookup.asked);
    (void)plan(&k); /* asks for the rest now; a slow machine may miss it */
    ASSERT_TRUE(k.p.cut[1].lookup.asked && k.p.cut[2].lookup.asked);
    kit_close(&k);
}

TEST(a_tier_that_hangs_is_a_miss_and_what_was_built_since_a_hit)
{
    const struct tier_fault_opts hang = {.hang = 1}, none = {0};
    struct kit k;
    kit_open(&k);
    put_all(&k);
    leave_ram(&k);
    k.w.o.tiers.wait_ms = 40;
    ASSERT_OK(tier_fault_set(k.fault, &hang));
    wk_lookup_prompt(&k.w, &k.p, &k.m, &k.gone);
    ASSERT_EQ(atomic_load(&k.w.reuse.held_bytes), 0);
    for (size_t i = 0; i < N_CUT; i++) {
        const struct wk_lookup *l = &k.p.cut[i].lookup;
        ASSERT_TRUE(l->asked && !l->pin);
        ASSERT_TRUE(l->why == STORE_MISS_DEADLINE || l->why == STORE_MISS_IO);
    }
    struct tier_key again = tier_key_chunk(&k.w.ident, "", k.tok + k.p.cut[1].tok0 + 1, CUT);
    k.p.cut[1].key = again; /* one that the file has not: it can be built */
    k.p.cut[1].tok0++;
    put(&k, TIER_CHUNK, &again, k.p.cut[1].tok0, CUT);
    ASSERT_EQ(plan(&k), 1);
    ASSERT_STREQ(k.p.cut[1].lookup.tier, "ram");
    ASSERT_TRUE(k.p.cut[0].missed && k.p.cut[2].missed && !k.p.cut[1].missed);
    ASSERT_OK(tier_fault_set(k.fault, &none));
    kit_close(&k);
}

TEST(worth_follows_what_prefills_take)
{
    struct kit k;
    kit_open(&k);
    k.w.o.tiers.wait_ms = 0;
    wk_measured(&k.w, 100, 10); /* too short to tell */
    ASSERT_NEAR(wk_worth_ms(&k.w, &k.m, 100), 0, 1e-12);
    wk_measured(&k.w, 1000, 500);
    ASSERT_NEAR(wk_worth_ms(&k.w, NULL, 100), 200, 1e-9);
    k.m.ratio = 0.25;
    ASSERT_NEAR(wk_worth_ms(&k.w, &k.m, 100), 150, 1e-9);
    wk_measured(&k.w, 6000, 500); /* a fifth of the way */
    ASSERT_NEAR(wk_worth_ms(&k.w, NULL, 100), 400, 1e-9);
    k.m.strategy = POL_PREFIX;
    ASSERT_NEAR(wk_worth_ms(&k.w, &k.m, 100), 400, 1e-9);
    k.w.o.tiers.wait_ms = 1000;
    ASSERT_NEAR(wk_worth_ms(&k.w, &k.m, 100), 1000, 1e-9);
    kit_close(&k);
}

/* A request has missed it all the same (too slow, out of time): only RAM counts. A warm-up is
 * content with any local tier. */
TEST(a_chunk_in_a_slower_tier_is_built_for_who_missed_it)
{
    struct kit k;
    const struct wk_cut *c;
    kit_open(&k);
    put_all(&k);
    k.w.builds->n_flight = WK_BUILDS_FLIGHT_MAX; /* nothing goes to an engine */
    wk_queue_init(&k.w.queue);
    c = &k.p.cut[0];
    ASSERT_EQ(wk_build_queue(&k.w, &c->key, "", k.tok + c->tok0, c->n, false), 1);
    leave_ram(&k);
    ASSERT_EQ(wk_build_queue(&k.w, &c->key, "", k.tok + c->tok0, c->n, true), 1);
    ASSERT_EQ(wk_build_queue(&k.w, &c->key, "", k.tok + c->tok0, c->n, false), 0);
    ASSERT_TRUE(wk_build_pending(&k.w, &c->key, NULL));
    ASSERT_TRUE(wk_build_pending(&k.w, &c->key, ""));
    ASSERT_TRUE(!wk_build_pending(&k.w, &c->key, "other"));
    kit_close(&k);
    wk_queue_fini(&k.w.queue);
}
