/* Minutes of mixed trouble on real servers under workers that read and build all the time. What
 * must hold at every moment is what test_redis_faults.c says; that everything works again at the
 * end is checked as well. KVBLEND_TEST_SEED=n plays another order of events; it is printed on
 * failure. */
#include "base/redis/redis_topo.h"
#include "tests/unit/tiers/redis_server.h"
#include "tests/unit/tiers/redis_worker.h"
#include "tiers/store_admin.h"

enum { SOAK_MS = 60000, RECORDS = 24, BUILDS = 1000 };
static struct worker a, b;
static struct worker_load loads[3];
static uint64_t seed;

static void start(const char *url)
{
    const char *s = getenv("KVBLEND_TEST_SEED");
    seed = s ? strtoull(s, NULL, 10) : 20261121;
    (void)printf("seed %llu\n", (unsigned long long)seed);
    worker_start(&a, SHAPE_LARGE, url);
    worker_start(&b, SHAPE_LARGE, url);
    worker_build_all(&a, 0, RECORDS);
    loads[0] = (struct worker_load){.w = &b, .n = RECORDS, .worth_ms = 100, .seed = 1};
    loads[1] = (struct worker_load){.w = &b, .n = RECORDS, .worth_ms = 1000, .seed = 2};
    loads[2] = (struct worker_load){.w = &a, .n = BUILDS, .builds = true};
    for (int i = 0; i < 3; i++)
        worker_load_start(&loads[i]);
}

/* The loads end; then everything is as if nothing had been. */
static void stop(void)
{
    struct store_tier_stats st;
    for (int i = 2; i >= 0; i--)
        worker_load_stop(&loads[i]);
    WAIT_FOR_S((worker_get(&a, 5000, true, 1000), !worker_is_open(&a)), 120);
    WAIT_FOR_S((worker_get(&b, 5000, true, 1000), !worker_is_open(&b)), 120);
    worker_build_all(&a, 6000, 6004);
    ASSERT_EQ(worker_get_all(&b, 6000, 6004), 4);
    worker_stat(&b, &st);
    worker_print(&b);
    (void)printf("built %u; %llu reads, %llu errors, %llu timeouts, %llu corrupt; breaker opened "
                 "%llu times\n",
                 loads[2].n_built, (unsigned long long)st.tier.reads,
                 (unsigned long long)st.tier.errors, (unsigned long long)st.tier.timeouts,
                 (unsigned long long)st.tier.corrupt, (unsigned long long)st.breaker_opened);
    ASSERT_TRUE(loads[2].n_built > 10 && b.tally.hits > 10);
    worker_stop(&a);
    worker_stop(&b);
}

/* Until the loads have done some more, whatever came of it. */
static void work(unsigned n)
{
    unsigned before = loads[0].n_done;
    WAIT_FOR(loads[0].n_done >= before + n);
}

/* Breakers close, what was lost is built again, and hits come back. */
static void recover(void)
{
    WAIT_FOR_S(!worker_is_open(&a) && !worker_is_open(&b), 120);
    unsigned before = b.tally.hits;
    WAIT_FOR_S(({
                   unsigned id = (unsigned)(test_rand(&seed) % RECORDS);
                   if (!worker_get(&a, id, true, 500)) ASSERT_OK(worker_build(&a, id));
                   b.tally.hits > before + 5;
               }),
               120);
}

static void damage_one(struct redis_server *s)
{
    freeReplyObject(redis_server_command(s, "CONFIG SET maxmemory 400mb"));
    redisReply *k = redis_server_command(s, "RANDOMKEY");
    if (k->type == REDIS_REPLY_STRING) {
        redisReply *f = redis_server_command(s, "HRANDFIELD %b", k->str, (size_t)k->len);
        redisReply *v = f->type == REDIS_REPLY_STRING
                            ? redis_server_command(s, "HGET %b %b", k->str, (size_t)k->len, f->str,
                                                   (size_t)f->len)
                            : NULL;
        if (v && v->type == REDIS_REPLY_STRING && v->len > 0) {
            v->str[test_rand(&seed) % (uint64_t)v->len] ^= 0x10;
            freeReplyObject(redis_server_command(s, "HSET %b %b %b", k->str, (size_t)k->len, f->str,
                                                 (size_t)f->len, v->str, (size_t)v->len));
        }
        if (v) freeReplyObject(v);
        freeReplyObject(f);
    }
    freeReplyObject(k);
}

static void trouble(struct redis_server *s)
{
    switch (test_rand(&seed) % 9) {
    case 0:
        redis_server_pause(s);
        work(2);
        redis_server_resume(s);
        break;
    case 1:
        redis_server_kill(s);
        work(2);
        redis_server_restart(s);
        break;
    case 2:
        freeReplyObject(redis_server_command(s, "FLUSHALL"));
        break;
    case 3:
        freeReplyObject(redis_server_command(s, "CONFIG SET maxmemory %s maxmemory-policy %s",
                                             test_rand(&seed) % 2 ? "20mb" : "400mb",
                                             test_rand(&seed) % 2 ? "allkeys-lru" : "noeviction"));
        break;
    case 4:
        freeReplyObject(
            redis_server_command(s, "CLIENT PAUSE %u ALL", (unsigned)(test_rand(&seed) % 600)));
        break;
    case 5:
        freeReplyObject(redis_server_command(s, "CLIENT KILL TYPE normal"));
        break;
    case 6:
        freeReplyObject(redis_server_command(s, "CONFIG SET requirepass other"));
        work(2);
        redis_server_restart(s); /* the password is the old one again */
        break;
    default:
        damage_one(s);
    }
}

TEST(soak_of_a_server)
{
    char url[512];
    struct redis_server *s = redis_server_start(NULL);
    redis_server_url(s, url);
    start(url);
    for (uint64_t until = redis_server_now_ms() + SOAK_MS; redis_server_now_ms() < until;) {
        trouble(s);
        recover();
    }
    freeReplyObject(redis_server_command(s, "CONFIG SET maxmemory 0"));
    stop();
    redis_server_stop(s);
}

static void move_one(struct redis_cluster *c)
{
    unsigned from = (unsigned)(test_rand(&seed) % REDIS_NODES);
    unsigned to = (from + 1 + (unsigned)(test_rand(&seed) % (REDIS_NODES - 1))) % REDIS_NODES;
    redisReply *k = redis_server_command(c->node[from], "RANDOMKEY");
    if (k->type == REDIS_REPLY_STRING) {
        unsigned slot = redis_slot(k->str, (size_t)k->len);
        redis_cluster_migrate_begin(c, slot, from, to);
        work(2);
        while (redis_cluster_migrate_keys(c, slot, from, to, 1) > 0)
            work(1);
        redis_cluster_migrate_end(c, slot, from, to);
    }
    freeReplyObject(k);
}

TEST(soak_of_a_cluster)
{
    char url[512];
    struct redis_cluster c;
    redis_cluster_start(&c, NULL);
    redis_cluster_url(&c, url);
    start(url);
    for (uint64_t until = redis_server_now_ms() + SOAK_MS; redis_server_now_ms() < until;) {
        struct redis_server *s = c.node[test_rand(&seed) % REDIS_NODES];
        switch (test_rand(&seed) % 8) {
        case 0:
            redis_server_kill(s);
            work(5);
            redis_server_restart(s);
            break;
        case 1:
            redis_server_pause(s);
            work(2);
            redis_server_resume(s);
            break;
        case 2:
            freeReplyObject(redis_server_command(s, "CLIENT KILL TYPE normal"));
            break;
        default:
            redis_cluster_wait_ready(&c);
            move_one(&c);
        }
        recover();
    }
    redis_cluster_wait_ready(&c);
    stop();
    redis_cluster_stop(&c);
}

/* There and back: the old master becomes the replica, then the master again. */
TEST(soak_of_fail_overs)
{
    char url[512];
    struct redis_sentinels s;
    redis_sentinels_start(&s, &(struct redis_server_opts){.password = "pw"});
    redis_sentinels_url(&s, url);
    start(url);
    for (int round = 0; round < 4; round++) {
        struct redis_server *master = round % 2 ? s.replica : s.master;
        struct redis_server *other = round % 2 ? s.master : s.replica;
        redis_server_kill(master);
        ASSERT_EQ(redis_sentinels_wait_failover(&s, master->port), other->port);
        WAIT_FOR_S((worker_get(&a, 5000, true, 500), !worker_is_open(&a)), 120);
        worker_build_all(&a, 2000 + 10 * (unsigned)round, 2005 + 10 * (unsigned)round);
        /* It believes to be the master until the sentinels tell it otherwise. */
        redis_server_restart(master);
        WAIT_FOR_S(redis_server_info(master, "master_sync_in_progress") == 0 &&
                       redis_server_info(other, "connected_slaves") == 1,
                   180);
        ASSERT_EQ(worker_get_all(&b, 2000 + 10 * (unsigned)round, 2005 + 10 * (unsigned)round), 5);
    }
    stop();
    redis_sentinels_stop(&s);
}
