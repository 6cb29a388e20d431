/* Clusters that reshard or lose a node and masters that fail over, under workers that use them.
 * What must hold is what test_redis_faults.c says. */
#include "base/redis/redis_topo.h"
#include "tests/unit/tiers/redis_server.h"
#include "tests/unit/tiers/redis_worker.h"

static struct worker a, b; /* on two hosts, so to speak */

static void start_two(struct shape shape, const char *url)
{
    worker_start(&a, shape, url);
    worker_start(&b, shape, url);
}

static void stop_two(void)
{
    worker_stop(&a);
    worker_stop(&b);
}

/* ---- a cluster ---- */

/* Starting one takes seconds: all tests use the same, empty again each time. */
static struct redis_cluster *empty_cluster(void)
{
    static struct redis_cluster c;
    if (!c.node[0])
        redis_cluster_start(
            &c, &(struct redis_server_opts){.password = "pw",
                                            .args = {"--cluster-require-full-coverage", "no"}});
    for (unsigned i = 0; i < REDIS_NODES; i++)
        freeReplyObject(redis_server_command(c.node[i], "FLUSHALL"));
    return &c;
}

static unsigned n_keys(const struct redis_cluster *c, unsigned node)
{
    return (unsigned)redis_server_int(c->node[node], "DBSIZE");
}

TEST(a_cluster_spreads_records)
{
    char url[512], plain[128];
    struct redis_cluster *c = empty_cluster();
    redis_cluster_url(c, url);
    start_two(SHAPE_SMALL, url);
    worker_build_all(&a, 0, 60);
    for (unsigned i = 0; i < REDIS_NODES; i++)
        ASSERT_TRUE(n_keys(c, i) > 5);
    ASSERT_EQ(n_keys(c, 0) + n_keys(c, 1) + n_keys(c, 2), 60);
    ASSERT_EQ(worker_get_all(&b, 0, 60), 60);
    ASSERT_EQ(worker_tier_stat(&b).endpoints, 3);
    worker_stop(&b);
    /* A plain URL of one node finds the others. */
    (void)snprintf(plain, sizeof(plain), "redis://:pw@127.0.0.1:%u", c->node[2]->port);
    worker_start(&b, SHAPE_SMALL, plain);
    ASSERT_EQ(worker_get_all(&b, 0, 60), 60);
    stop_two();
}

TEST(unrelated_servers_are_refused)
{
    char url[128];
    struct redis_server *s = redis_server_start(NULL), *t = redis_server_start(NULL);
    (void)snprintf(url, sizeof(url), "redis://127.0.0.1:%u,127.0.0.1:%u", s->port, t->port);
    worker_is_refused(&a, url, "no secret");
    worker_stop(&a);
    (void)snprintf(url, sizeof(url), "redis-cluster://127.0.0.1:%u", s->port);
    worker_is_refused(&a, url, "no secret");
    worker_stop(&a);
    ASSERT_EQ(redis_server_int(s, "DBSIZE") + redis_server_int(t, "DBSIZE"), 0);
    redis_server_stop(s);
    redis_server_stop(t);
}

/* Every slot that holds a record moves on, its keys one by one, while two threads read and one
 * builds. */
static void reshard(struct redis_cluster *c, unsigned from, unsigned to, const atomic_uint *pulse)
{
    redisReply *keys = redis_server_command(c->node[from], "KEYS *");
    for (size_t i = 0; i < keys->elements; i++) {
        unsigned slot = redis_slot(keys->element[i]->str, (size_t)keys->element[i]->len), at;
        if (redis_server_int(c->node[from], "CLUSTER COUNTKEYSINSLOT %u", slot) == 0) continue;
        redis_cluster_migrate_begin(c, slot, from, to);
        while (redis_cluster_migrate_keys(c, slot, from, to, 1) > 0) {
            at = *pulse;
            if (i % 4 == 0) WAIT_FOR(*pulse > at + 1); /* looked up in between: ASK */
        }
        redis_cluster_migrate_end(c, slot, from, to);
    }
    freeReplyObject(keys);
}

TEST(a_reshard_under_load_loses_nothing)
{
    char url[512];
    struct redis_cluster *c = empty_cluster();
    redis_cluster_url(c, url);
    start_two(SHAPE_LARGE, url);
    worker_build_all(&a, 0, 18);
    struct worker_load read[2] = {{.w = &b, .n = 18, .seed = 1}, {.w = &b, .n = 18, .seed = 2}};
    struct worker_load build = {.w = &a, .n = 100, .builds = true};
    worker_load_start(&read[0]);
    worker_load_start(&read[1]);
    worker_load_start(&build);
    reshard(c, 0, 1, &read[0].n_done);
    reshard(c, 1, 2, &read[0].n_done);
    worker_load_stop(&build);
    worker_load_stop(&read[0]);
    worker_load_stop(&read[1]);
    ASSERT_TRUE(tally_asked(&b.tally) > 20);
    if (b.tally.hits != tally_asked(&b.tally)) worker_print(&b);
    ASSERT_EQ(b.tally.hits, tally_asked(&b.tally)); /* not one look-up missed */
    ASSERT_TRUE(worker_flush(&a));
    unsigned n = build.n_built;
    ASSERT_TRUE(n > 0);
    ASSERT_EQ(worker_get_all(&b, 100, 100 + n), n);
    ASSERT_TRUE(!worker_is_open(&a) && !worker_is_open(&b));
    stop_two();
}

TEST(a_lost_node_costs_its_records_only)
{
    char url[512];
    struct redis_cluster *c = empty_cluster();
    redis_cluster_url(c, url);
    start_two(SHAPE_SMALL, url);
    worker_build_all(&a, 0, 60);
    ASSERT_EQ(worker_get_all(&b, 0, 60), 60);
    unsigned lost = n_keys(c, 1);
    redis_server_kill(c->node[1]);
    WAIT_FOR((worker_get(&b, (unsigned)b.tally.late % 60, true, 300), true) &&
             worker_get_all(&b, 0, 60) == 60 - lost && worker_tier_stat(&b).endpoints_open == 1);
    redis_server_restart(c->node[1]);
    /* It comes back under its old id from its own configuration, without its records. */
    WAIT_FOR((worker_get_all(&b, 0, 60), worker_tier_stat(&b).endpoints_open == 0));
    worker_build_all(&a, 100, 130);
    WAIT_FOR(worker_get_all(&b, 100, 130) >= 30 - lost);
    stop_two();
}

/* ---- sentinels ---- */

static long long offset(const struct redis_server *s, const char *field)
{
    return redis_server_info(s, field);
}

TEST(a_fail_over_under_load)
{
    char url[512];
    struct redis_sentinels s;
    redis_sentinels_start(&s, &(struct redis_server_opts){.password = "pw"});
    redis_sentinels_url(&s, url);
    start_two(SHAPE_SMALL, url);
    worker_build_all(&a, 0, 20);
    ASSERT_EQ(worker_get_all(&b, 0, 20), 20);
    ASSERT_EQ(redis_server_int(s.master, "DBSIZE"), 20);
    long long at = offset(s.master, "master_repl_offset");
    WAIT_FOR(offset(s.replica, "slave_repl_offset") >= at);
    struct worker_load read = {.w = &b, .n = 20, .seed = 3, .worth_ms = 200};
    worker_load_start(&read);
    redis_server_kill(s.master);
    uint16_t port = redis_sentinels_wait_failover(&s, s.master->port);
    ASSERT_EQ(port, s.replica->port);
    worker_load_stop(&read);
    WAIT_FOR(worker_comes_back(&b, 0));
    ASSERT_EQ(worker_get_all(&b, 0, 20), 20); /* all of them, from the new master */
    WAIT_FOR((worker_get(&a, 500, true, 300), !worker_is_open(&a)));
    worker_build_all(&a, 50, 55);
    ASSERT_EQ(worker_get_all(&b, 50, 55), 5);
    ASSERT_EQ(redis_server_int(s.replica, "DBSIZE"), 25);
    stop_two();
    redis_sentinels_stop(&s);
}
