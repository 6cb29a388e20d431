#include "tests/unit/tiers/redis_worker.h"

#include "base/clock.h"
#include "tests/unit/tiers/redis_server.h"
#include "tiers/redis/redis.h"
#include "tiers/store_admin.h"
#include "tiers/store_write.h"

const struct shape SHAPE_SMALL = {3, 16}, SHAPE_LARGE = {9, 256};
enum { HEADS = 2, HEAD_DIM = 64, ROW = HEADS * HEAD_DIM, TOKENS_MAX = 256 };

unsigned tally_missed(const struct tally *t)
{
    unsigned n = 0;
    for (int i = 0; i < STORE_MISS_COUNT; i++)
        n += t->why[i];
    return n;
}

unsigned tally_asked(const struct tally *t)
{
    return t->hits + t->late + t->wrong + t->failed + tally_missed(t);
}

void worker_start(struct worker *w, struct shape shape, const char *url)
{
    struct redis_url u;
    struct tier *tier;
    struct err err = {0};
    ASSERT_TRUE(shape.n_tok <= TOKENS_MAX);
    *w = (struct worker){.shape = shape,
                         .ns = "tenant",
                         .ident = {.model = {1, 2},
                                   .dtype = KN_F32,
                                   .sink_token = UINT32_MAX,
                                   .L = shape.L,
                                   .G = HEADS,
                                   .K = HEAD_DIM,
                                   .secret = {3, 4}}};
    if (redis_url_parse(&url, 1, &u, &err) < 0) test_fail(__FILE__, __LINE__, "%s", err.msg);
    int r = tier_redis_create(&(struct tier_redis_opts){.url = &u}, &tier, &err);
    redis_url_fini(&u);
    if (r < 0) test_fail(__FILE__, __LINE__, "%s", err.msg);
    struct store_opts o = {
        .ram_bytes = 256 << 20, .ident = w->ident, .n_tiers = 1, .tier = {{.tier = tier}}};
    if (store_create(&o, &w->store, &err) < 0) test_fail(__FILE__, __LINE__, "%s", err.msg);
}

void worker_stop(struct worker *w)
{
    store_destroy(w->store);
    w->store = NULL;
    if (w->tally.wrong + w->tally.failed > 0 || w->tally.slowest_ms > 20000) worker_print(w);
    ASSERT_EQ(w->tally.wrong, 0);
    ASSERT_EQ(w->tally.failed, 0);
    ASSERT_TRUE(w->tally.slowest_ms <= 20000);
}

void worker_is_refused(struct worker *w, const char *url, const char *secret)
{
    worker_start(w, SHAPE_SMALL, url);
    ASSERT_EQ(worker_build(w, 1), 1);
    WAIT_FOR((worker_get(w, 2, true, 200), worker_is_open(w)));
    struct tier_stat st = worker_tier_stat(w);
    ASSERT_TRUE(st.degraded[0]);
    ASSERT_TRUE(!strstr(st.degraded, secret));
    ASSERT_EQ(worker_get(w, 1, false, 200), 1);
    ASSERT_EQ(st.writes + st.reads, 0);
}

static struct tier_key key_of(const struct worker *w, unsigned id, int32_t *tok)
{
    for (uint32_t i = 0; i < w->shape.n_tok; i++)
        tok[i] = (int32_t)(id * 2654435761u + i * 40503u) & 0x7fffff;
    return tier_key_chunk(&w->ident, w->ns, tok, w->shape.n_tok);
}

static uint32_t content(unsigned id, unsigned layer, unsigned v)
{
    uint64_t seed = (uint64_t)id << 32 | layer << 1 | v;
    return (uint32_t)test_rand(&seed);
}

int worker_build(struct worker *w, unsigned id)
{
    int32_t tok[TOKENS_MAX];
    struct tier_key k = key_of(w, id, tok);
    struct store_writer *writer;
    int r = store_claim(w->store, &(struct store_new){TIER_CHUNK, k, w->ns, tok, w->shape.n_tok},
                        &writer);
    if (r != 1) return r;
    for (unsigned l = 1; l < w->shape.L; l++) {
        void *kv[2];
        store_writer_layer(writer, l, &kv[0], &kv[1]);
        for (unsigned v = 0; v < 2; v++) {
            uint32_t *p = kv[v], c = content(id, l, v);
            for (uint32_t i = 0; i < w->shape.n_tok * ROW; i++)
                p[i] = c + i;
        }
    }
    r = store_commit(writer);
    return r < 0 ? r : 1;
}

bool worker_flush(struct worker *w)
{
    return store_flush(w->store, clock_ns() + 60ull * 1000000000) == 0;
}

void worker_build_all(struct worker *w, unsigned lo, unsigned hi)
{
    for (unsigned id = lo; id < hi; id++)
        ASSERT_OK(worker_build(w, id));
    ASSERT_TRUE(worker_flush(w));
}

/* 1 right, 0 late, -1 wrong. */
static int check(struct worker *w, struct store_pin *p, unsigned id)
{
    for (unsigned l = 1; l < w->shape.L; l++) {
        const void *kv[2];
        if (store_pin_layer(p, l, &kv[0], &kv[1]) < 0) return 0;
        for (unsigned v = 0; v < 2; v++) {
            const uint32_t *q = kv[v], c = content(id, l, v);
            for (uint32_t i = 0; i < w->shape.n_tok * ROW; i++)
                if (q[i] != c + i) return -1;
        }
    }
    return 1;
}

int worker_get(struct worker *w, unsigned id, bool forget, double worth_ms)
{
    int32_t tok[TOKENS_MAX];
    struct tier_key k = key_of(w, id, tok);
    struct store_pin *p;
    enum store_miss why = STORE_MISS_NEVER;
    uint64_t t0 = clock_ns();
    if (forget) (void)store_evict(w->store, &k, "ram");
    struct store_ask ask = {.key = k, .tok = tok, .n = w->shape.n_tok, .worth_ms = worth_ms};
    int r = store_ask(w->store, &ask, &p, &why), right = 0;
    if (r == STORE_ASKING) r = store_pin_settle(p, 0, &why);
    if (r == 1) {
        if (strcmp(store_pin_tier(p), "ram") == 0) w->tally.from_ram++;
        right = check(w, p, id);
        store_pin_release(p);
        atomic_fetch_add(right == 1   ? &w->tally.hits
                         : right == 0 ? &w->tally.late
                                      : &w->tally.wrong,
                         1);
    } else {
        atomic_fetch_add(r == 0 ? &w->tally.why[why] : &w->tally.failed, 1);
    }
    unsigned long long ms = (clock_ns() - t0) / 1000000, old = w->tally.slowest_ms;
    while (ms > old && !atomic_compare_exchange_weak(&w->tally.slowest_ms, &old, ms))
        ;
    return right == 1;
}

unsigned worker_get_all(struct worker *w, unsigned lo, unsigned hi)
{
    unsigned n = 0;
    for (unsigned id = lo; id < hi; id++)
        n += (unsigned)worker_get(w, id, true, 0);
    return n;
}

void worker_stat(struct worker *w, struct store_tier_stats *ret)
{
    ASSERT_EQ(store_n_tiers(w->store), 1);
    store_get_tier_stats(w->store, 0, ret);
}

bool worker_is_open(struct worker *w)
{
    struct store_tier_stats st;
    worker_stat(w, &st);
    return st.tier.endpoints_open > 0 || strcmp(st.breaker, "closed") != 0;
}

struct tier_stat worker_tier_stat(struct worker *w)
{
    struct store_tier_stats st;
    worker_stat(w, &st);
    return st.tier;
}

bool worker_comes_back(struct worker *w, unsigned id)
{
    return worker_get(w, id, true, 0) && !worker_is_open(w);
}

static void *run(void *arg)
{
    struct worker_load *l = arg;
    for (unsigned i = 0; !l->stop; i++) {
        if (l->builds) {
            if (worker_build(l->w, l->n + i) >= 0) l->n_built++;
            (void)store_flush(l->w->store, clock_ns() + 1000000000);
        } else {
            unsigned id = (unsigned)(test_rand(&l->seed) % l->n);
            if (!worker_get(l->w, id, true, l->worth_ms)) redis_server_tick(); /* computes it */
        }
        l->n_done++;
    }
    return NULL;
}

void worker_load_start(struct worker_load *l)
{
    l->stop = false;
    ASSERT_EQ(pthread_create(&l->thread, NULL, run, l), 0);
}

void worker_load_stop(struct worker_load *l)
{
    l->stop = true;
    (void)pthread_join(l->thread, NULL);
}

void worker_print(const struct worker *w)
{
    (void)printf("hits %u (ram %u) late %u wrong %u failed %u slowest %llu ms;", w->tally.hits,
                 w->tally.from_ram, w->tally.late, w->tally.wrong, w->tally.failed,
                 w->tally.slowest_ms);
    for (int i = 0; i < STORE_MISS_COUNT; i++)
        if (w->tally.why[i]) (void)printf(" %s %u", store_miss_name(i), w->tally.why[i]);
    (void)printf("\n");
}
