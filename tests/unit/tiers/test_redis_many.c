/* The Redis tier on a cluster and behind sentinels: ops follow the slots and the master. */
#include "base/redis/redis_topo.h"
#include "tests/unit/tiers/redis_kit.h"

static unsigned slot_of(const struct rec *r)
{
    char key[64];
    key_text(r, key);
    return redis_slot(key, strlen(key));
}

static unsigned owner_of(const struct redis_cluster *c, unsigned slot)
{
    (void)c;
    return slot * REDIS_NODES / REDIS_SLOTS;
}

static int count_visit(void *ctx, const struct tier_info *i)
{
    unsigned *n = ctx;
    (*n)++;
    return 0;
}

TEST(a_cluster_is_one_tier)
{
    struct redis_cluster c;
    char url[512];
    redis_cluster_start(&c, NULL);
    redis_cluster_url(&c, url);
    struct tier *t = tier_at(url, (struct tier_redis_opts){.connections = 2});
    enum { N = 24 };
    struct rec r[N];
    for (uint64_t i = 0; i < N; i++) {
        r[i] = rec_make(600 + i, 5, 8, 64, 64);
        ASSERT_OK(do_write(t, &r[i]));
    }
    unsigned seen = 0, held = 0;
    for (int i = 0; i < REDIS_NODES; i++) {
        long long n = redis_server_int(c.node[i], "DBSIZE");
        ASSERT_TRUE(n > 0);
        held += (unsigned)n;
    }
    ASSERT_EQ(held, N);
    ASSERT_OK(t->ops->scan(t, count_visit, &seen));
    ASSERT_EQ(seen, N);
    ASSERT_EQ(stat_of(t).endpoints, REDIS_NODES);
    for (int i = 0; i < N; i++) {
        struct rec b = rec_empty(&r[i].desc);
        ASSERT_OK(do_read(t, &b));
        rec_same(&r[i], &b);
        rec_free(&b);
    }
    ASSERT_EQ(t->ops->remove(t, &r[0].desc.key, false), 1);
    ASSERT_OK(do_drain(t));
    struct rec b = rec_empty(&r[0].desc);
    ASSERT_ERR(do_read(t, &b), -ENOENT);
    rec_free(&b);
    for (int i = 0; i < N; i++)
        rec_free(&r[i]);
    t->ops->destroy(t);
    redis_cluster_stop(&c);
}

/* A slot on the move: before, while (its key here, then there) and after, reads and writes go on.
 */
TEST(a_slot_moves)
{
    struct redis_cluster c;
    char url[512];
    redis_cluster_start(&c, NULL);
    redis_cluster_url(&c, url);
    struct tier *t = tier_at(url, (struct tier_redis_opts){.connections = 2});
    struct rec a = rec_make(700, 9, 8, 64, 64), b = rec_empty(&a.desc);
    unsigned slot = slot_of(&a), from = owner_of(&c, slot), to = (from + 1) % REDIS_NODES;
    ASSERT_OK(do_write(t, &a));
    redis_cluster_migrate_begin(&c, slot, from, to);
    ASSERT_OK(do_read(t, &b)); /* still there */
    rec_same(&a, &b);
    ASSERT_OK(do_write(t, &a));
    ASSERT_EQ(redis_cluster_migrate_keys(&c, slot, from, to, 100), 1);
    memset(b.mem, 0, b.l.record_bytes);
    ASSERT_OK(do_read(t, &b)); /* asked for elsewhere */
    rec_same(&a, &b);
    ASSERT_OK(do_write(t, &a));
    ASSERT_EQ(t->ops->remove(t, &a.desc.key, false), 1);
    ASSERT_OK(do_drain(t));
    ASSERT_ERR(do_read(t, &b), -ENOENT);
    ASSERT_OK(do_write(t, &a)); /* new there */
    ASSERT_EQ(redis_server_int(c.node[from], "DBSIZE"), 0);
    redis_cluster_migrate_end(&c, slot, from, to);
    memset(b.mem, 0, b.l.record_bytes);
    ASSERT_OK(do_read(t, &b));
    rec_same(&a, &b);
    ASSERT_OK(do_write(t, &a));
    ASSERT_OK(do_drain(t));
    ASSERT_EQ(redis_server_int(c.node[to], "DBSIZE"), 1);
    rec_free(&a);
    rec_free(&b);
    t->ops->destroy(t);
    redis_cluster_stop(&c);
}

/* One node of three stops: its keys are misses, the others' are served, and it comes back. */
TEST(a_node_stops)
{
    struct redis_cluster c;
    char url[512];
    redis_cluster_start(&c, NULL);
    redis_cluster_url(&c, url);
    struct tier *t =
        tier_at(url, (struct tier_redis_opts){
                         .connections = 2, .connect_timeout_ms = 300, .stall_timeout_ms = 500});
    struct rec r[REDIS_NODES];
    bool have[REDIS_NODES] = {false};
    for (uint64_t i = 0, n = 0; n < REDIS_NODES; i++) {
        struct rec x = rec_make(800 + i, 5, 8, 64, 64);
        unsigned at = owner_of(&c, slot_of(&x));
        if (have[at]) {
            rec_free(&x);
            continue;
        }
        have[at] = true;
        r[at] = x;
        n++;
        ASSERT_OK(do_write(t, &r[at]));
    }
    redis_server_pause(c.node[1]);
    struct rec b = rec_empty(&r[1].desc);
    WAIT_FOR(do_read(t, &b) < 0 && stat_of(t).endpoints_open == 1);
    ASSERT_EQ(t->ops->find(t, &r[1].desc.key), -EAGAIN); /* others can be asked */
    rec_free(&b);
    for (int i = 0; i < REDIS_NODES; i += 2) {
        b = rec_empty(&r[i].desc);
        ASSERT_OK(do_read(t, &b));
        rec_same(&r[i], &b);
        rec_free(&b);
    }
    redis_server_resume(c.node[1]);
    b = rec_empty(&r[1].desc);
    WAIT_FOR(do_read(t, &b) == 0);
    rec_same(&r[1], &b);
    WAIT_FOR(stat_of(t).endpoints_open == 0); /* published after the read that closed it */
    rec_free(&b);
    for (int i = 0; i < REDIS_NODES; i++)
        rec_free(&r[i]);
    t->ops->destroy(t);
    redis_cluster_stop(&c);
}

TEST(sentinels_name_the_next_master)
{
    struct redis_sentinels s;
    char url[512];
    redis_sentinels_start(&s, NULL);
    redis_sentinels_url(&s, url);
    struct tier *t =
        tier_at(url, (struct tier_redis_opts){.connect_timeout_ms = 300, .stall_timeout_ms = 500});
    struct rec a = rec_make(900, 5, 8, 64, 64), b = rec_empty(&a.desc);
    uint16_t old = s.master->port;
    ASSERT_OK(do_write(t, &a));
    ASSERT_OK(do_read(t, &b));
    rec_same(&a, &b);
    redis_server_kill(s.master);
    (void)redis_sentinels_wait_failover(&s, old);
    WAIT_FOR(do_write(t, &a) == 0);
    memset(b.mem, 0, b.l.record_bytes);
    ASSERT_OK(do_read(t, &b));
    rec_same(&a, &b);
    ASSERT_TRUE(redis_server_int(s.replica, "DBSIZE") == 1);
    rec_free(&a);
    rec_free(&b);
    t->ops->destroy(t);
    redis_sentinels_stop(&s);
}
