#include "base/redis/redis_topo.h"
#include "tests/test.h"
#include "tests/unit/tiers/redis_server.h"

static struct redis_topo topo, before;

static redisReply *parse_reply(const char *bytes, size_t len)
{
    redisReader *reader = redisReaderCreate();
    void *r = NULL;
    ASSERT_EQ(redisReaderFeed(reader, bytes, len), REDIS_OK);
    ASSERT_EQ(redisReaderGetReply(reader, &r), REDIS_OK);
    redisReaderFree(reader);
    return r;
}

static redisReply *reply(const char *bytes)
{
    return parse_reply(bytes, strlen(bytes));
}

static struct redis_addr addr(const char *host, unsigned port)
{
    struct redis_addr a = {.port = (uint16_t)port};
    (void)snprintf(a.host, sizeof(a.host), "%s", host);
    return a;
}

static void init(const char *url)
{
    struct redis_url u;
    ASSERT_OK(redis_url_parse(&url, 1, &u, NULL));
    redis_topo_init(&topo, &u);
    redis_url_fini(&u);
}

static int set_slots(const char *bytes, const char *from)
{
    redisReply *r = reply(bytes);
    struct redis_addr a = addr(from, 7000);
    int res = redis_topo_set_slots(&topo, r, &a);
    if (r) freeReplyObject(r);
    return res;
}

/* The map's own invariants, whatever was done to it. */
static void check_topo(void)
{
    unsigned n[REDIS_ENDPOINTS_MAX] = {0};
    for (unsigned s = 0; s < REDIS_SLOTS; s++) {
        int e = redis_topo_endpoint(&topo, s);
        ASSERT_TRUE(e >= -1 && e < (int)topo.n);
        if (e >= 0) n[e]++;
    }
    for (unsigned i = 0; i < topo.n; i++) {
        ASSERT_EQ(topo.ep[i].n_slots, n[i]);
        ASSERT_TRUE(topo.ep[i].generation > 0 && topo.ep[i].addr.host[0]);
        for (unsigned k = 0; k < i; k++)
            ASSERT_TRUE(!redis_addr_same(&topo.ep[i].addr, &topo.ep[k].addr));
    }
}

/* The check value is CRC16/XMODEM's own, the slots are what redis-server 7.0.15 answers to CLUSTER
 * KEYSLOT. */
TEST(slots_of_known_keys)
{
    static const struct {
        const char *key;
        unsigned slot;
    } t[] = {
        {"123456789", 0x31c3 % REDIS_SLOTS},
        {"", 0},
        {"foo", 12182},
        {"bar", 5061},
        {"hello", 866},
        {"{user1000}.following", 3443},
        {"{user1000}.followers", 3443},
        {"user1000", 3443},
        {"foo{bar}{zap}", 5061},
        {"foo{}{bar}", 8363},
        {"foo{{bar}}zap", 4015},
        {"{", 4092},
    };
    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++)
        if (redis_slot(t[i].key, strlen(t[i].key)) != t[i].slot)
            test_fail(__FILE__, __LINE__, "%s: slot %u, not %u", t[i].key,
                      redis_slot(t[i].key, strlen(t[i].key)), t[i].slot);
}

TEST(slots_are_those_of_a_server)
{
    struct redis_server *s = redis_server_start(&(struct redis_server_opts){.cluster = true});
    uint64_t seed = 7;
    for (int i = 0; i < 500; i++) {
        char key[64];
        size_t len = test_rand(&seed) % sizeof(key);
        for (size_t k = 0; k < len; k++)
            key[k] = i % 2 ? "{}ab"[test_rand(&seed) % 4] : (char)test_rand(&seed);
        ASSERT_EQ(redis_slot(key, len), redis_server_int(s, "CLUSTER KEYSLOT %b", key, len));
    }
    redis_server_stop(s);
}

/* What redis-server 7.0.15 sent, ids shortened in no way. */
#define ID_A "$40\r\n2951c948499cd6f400fb1e17e8949a26c2977482\r\n*0\r\n"
#define ID_B "$40\r\n1fda616c9d03e7ff82b4d9c4fc1cebf015540049\r\n*0\r\n"
#define ID_C "$40\r\n326cb846a3ccadd0eb67c351b22372e42722df8b\r\n*0\r\n"
#define RANGE(lo, hi, port, id) /* all on one host */                                              \
    "*3\r\n:" lo "\r\n:" hi "\r\n*4\r\n$9\r\n127.0.0.1\r\n:" port "\r\n" id
#define RANGE_1 RANGE("0", "99", "19905", ID_A)
#define RANGE_2 RANGE("100", "100", "12579", ID_B)
#define RANGE_3 RANGE("101", "5460", "19905", ID_A)
#define RANGE_4 RANGE("5461", "10921", "12579", ID_B)
#define RANGE_5 RANGE("10922", "16383", "11243", ID_C)
static const char resharded[] = "*5\r\n" RANGE_1 RANGE_2 RANGE_3 RANGE_4 RANGE_5;

TEST(a_clusters_map)
{
    init("redis-cluster://127.0.0.1:12579,seed:1");
    ASSERT_EQ(topo.n, 2);
    ASSERT_EQ(redis_topo_endpoint(&topo, 0), -1);
    ASSERT_EQ(set_slots(resharded, "x"), 1);
    check_topo();
    ASSERT_TRUE(topo.cluster);
    ASSERT_EQ(topo.n, 4); /* two seeds, of which one is a node, and two more nodes */
    ASSERT_EQ(topo.ep[redis_topo_endpoint(&topo, 99)].addr.port, 19905);
    ASSERT_EQ(topo.ep[redis_topo_endpoint(&topo, 101)].addr.port, 19905);
    ASSERT_EQ(redis_topo_endpoint(&topo, 100), 0); /* the seed kept its index */
    ASSERT_EQ(redis_topo_endpoint(&topo, 5461), 0);
    ASSERT_EQ(topo.ep[redis_topo_endpoint(&topo, 16383)].addr.port, 11243);
    ASSERT_EQ(topo.ep[0].n_slots, 5462);
    ASSERT_EQ(topo.ep[1].n_slots, 0);
    ASSERT_EQ(set_slots(resharded, "x"), 0);
}

TEST(replicas_metadata_and_unnamed_nodes)
{
    init("redis://127.0.0.1:7000");
    /* A node alone does not know its address (real bytes), nor does one that says nothing. */
    ASSERT_EQ(set_slots("*1\r\n*3\r\n:0\r\n:2\r\n*4\r\n$0\r\n\r\n:11593\r\n$40\r\n"
                        "ddb7d3f801d42613177d68610fed526ef0e12335\r\n*0\r\n",
                        "10.1.2.3"),
              1);
    ASSERT_STREQ(topo.ep[redis_topo_endpoint(&topo, 2)].addr.host, "10.1.2.3");
    ASSERT_EQ(topo.ep[redis_topo_endpoint(&topo, 2)].addr.port, 11593);
    ASSERT_EQ(redis_topo_endpoint(&topo, 3), -1);
    ASSERT_EQ(set_slots("*1\r\n*3\r\n:0\r\n:2\r\n*2\r\n$-1\r\n:5\r\n", "/run/s"), 1);
    ASSERT_STREQ(topo.ep[redis_topo_endpoint(&topo, 0)].addr.host, "127.0.0.1");
    /* Host names, a replica behind the master, old servers without ids. */
    ASSERT_EQ(
        set_slots("*2\r\n*4\r\n:0\r\n:8191\r\n*2\r\n$6\r\nnode-a\r\n:1\r\n*2\r\n$6\r\nnode-r\r\n"
                  ":2\r\n*3\r\n:8192\r\n:16383\r\n*4\r\n$1\r\n?\r\n:3\r\n$1\r\nx\r\n*2\r\n$2"
                  "\r\nip\r\n$3\r\n::1\r\n",
                  "x"),
        1);
    ASSERT_STREQ(topo.ep[redis_topo_endpoint(&topo, 0)].addr.host, "node-a");
    ASSERT_STREQ(topo.ep[redis_topo_endpoint(&topo, 8192)].addr.host, "::1");
    for (unsigned i = 0; i < topo.n; i++)
        ASSERT_TRUE(strcmp(topo.ep[i].addr.host, "node-r") != 0);
    /* Nowhere to be reached: nobody serves those slots. */
    ASSERT_EQ(set_slots("*1\r\n*3\r\n:0\r\n:1\r\n*3\r\n$1\r\n?\r\n:3\r\n$1\r\nx\r\n", "x"), 1);
    ASSERT_EQ(redis_topo_endpoint(&topo, 0), -1);
    ASSERT_EQ(set_slots("*1\r\n*3\r\n:0\r\n:1\r\n*3\r\n$1\r\na\r\n:0\r\n$1\r\nx\r\n", "x"), 0);
    ASSERT_EQ(set_slots("*0\r\n", "x"), 0);
    check_topo();
}

TEST(damaged_maps_change_nothing)
{
    static const char *const t[] = {
        "+OK\r\n",
        "$-1\r\n",
        "-ERR This instance has cluster support disabled\r\n",
        "*1\r\n:1\r\n",
        "*1\r\n*2\r\n:0\r\n:1\r\n",
        "*1\r\n*3\r\n:0\r\n:16384\r\n*2\r\n$1\r\na\r\n:1\r\n",
        "*1\r\n*3\r\n:-1\r\n:1\r\n*2\r\n$1\r\na\r\n:1\r\n",
        "*1\r\n*3\r\n:2\r\n:1\r\n*2\r\n$1\r\na\r\n:1\r\n",
        "*1\r\n*3\r\n$1\r\n0\r\n:1\r\n*2\r\n$1\r\na\r\n:1\r\n",
        "*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n$1\r\na\r\n:65536\r\n",
        "*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n$1\r\na\r\n:-1\r\n",
        "*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n$1\r\na\r\n$1\r\n1\r\n",
        "*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n$3\r\na b\r\n:1\r\n",
        "*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n$2\r\n/a\r\n:1\r\n",
        "*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n:1\r\n:1\r\n",
        "*1\r\n*3\r\n:0\r\n:1\r\n*1\r\n$1\r\na\r\n",
        "*1\r\n*3\r\n:0\r\n:1\r\n$1\r\na\r\n",
        "*2\r\n*3\r\n:0\r\n:1\r\n*2\r\n$1\r\na\r\n:1\r\n*3\r\n:9\r\n:1\r\n*2\r\n$1\r\nb\r\n:1\r\n",
    };
    init("redis-cluster://seed");
    ASSERT_EQ(set_slots(resharded, "x"), 1);
    before = topo;
    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
        ASSERT_ERR(set_slots(t[i], "x"), -EBADMSG);
        ASSERT_MEMEQ(&before, &topo, sizeof(topo));
    }
    ASSERT_ERR(redis_topo_set_slots(&topo, NULL, &topo.ep[0].addr), -EBADMSG);
    redisReply *r = reply(resharded);
    mem_fail_nth(1);
    int res = redis_topo_set_slots(&topo, r, &topo.ep[0].addr);
    mem_fail_nth(0);
    freeReplyObject(r);
    ASSERT_ERR(res, -ENOMEM);
    ASSERT_MEMEQ(&before, &topo, sizeof(topo));
}

/* A node per slot, `first` on: more nodes over time than the table has places. */
static int set_many(unsigned first, unsigned n)
{
    static char text[REDIS_ENDPOINTS_MAX * 64];
    size_t len = (size_t)snprintf(text, sizeof(text), "*%u\r\n", n);
    for (unsigned i = 0; i < n; i++)
        len += (size_t)snprintf(text + len, sizeof(text) - len,
                                "*3\r\n:%u\r\n:%u\r\n*2\r\n$1\r\nn\r\n:%u\r\n", i, i, first + i);
    return set_slots(text, "x");
}

TEST(indices_are_stable_and_reused)
{
    init("redis-cluster://seed");
    ASSERT_EQ(set_many(1000, 100), 1);
    struct redis_addr a = addr("n", 1050);
    int index = redis_topo_add(&topo, &a);
    ASSERT_EQ(index, redis_topo_endpoint(&topo, 50));
    uint32_t generation = topo.ep[index].generation;
    ASSERT_EQ(set_many(1050, 200), 1); /* half stay; 251 in the table */
    ASSERT_EQ(redis_topo_endpoint(&topo, 0), index);
    ASSERT_EQ(set_many(1000, 255), 1);
    check_topo();
    ASSERT_EQ(redis_topo_endpoint(&topo, 50), index);
    ASSERT_EQ(set_many(1050, REDIS_ENDPOINTS_MAX), 1); /* full: places are taken over */
    check_topo();
    ASSERT_EQ(redis_topo_endpoint(&topo, 0), index);
    ASSERT_EQ(topo.ep[index].generation, generation);
    before = topo;
    a = addr("one-more", 1);
    ASSERT_ERR(redis_topo_add(&topo, &a), -ENOSPC);
    ASSERT_ERR(redis_topo_set_slot(&topo, 0, &a), -ENOSPC);
    ASSERT_ERR(set_many(5000, REDIS_ENDPOINTS_MAX + 1), -ENOSPC);
    ASSERT_MEMEQ(&before, &topo, sizeof(topo));
    ASSERT_EQ(set_many(9000, 1), 1); /* a place that was taken over says so */
    ASSERT_TRUE(topo.ep[redis_topo_endpoint(&topo, 0)].generation > 1);
    check_topo();
}

TEST(one_master_for_everything)
{
    init("redis-sentinel://s1,s2/mymaster");
    ASSERT_EQ(topo.n, 0);
    struct redis_addr a = addr("m1", 1), b = addr("m2", 2);
    ASSERT_EQ(redis_topo_set_master(&topo, &a), 1);
    ASSERT_EQ(redis_topo_set_master(&topo, &a), 0);
    ASSERT_EQ(redis_topo_endpoint(&topo, 0), 0);
    ASSERT_EQ(redis_topo_endpoint(&topo, 16383), 0);
    ASSERT_EQ(redis_topo_set_master(&topo, &b), 1);
    ASSERT_EQ(redis_topo_endpoint(&topo, 16383), 1);
    ASSERT_EQ(redis_topo_set_master(&topo, &a), 1); /* back, at its old index */
    ASSERT_EQ(redis_topo_endpoint(&topo, 77), 0);
    check_topo();
    ASSERT_EQ(redis_topo_set_slot(&topo, 77, &b), 1);
    ASSERT_EQ(redis_topo_set_slot(&topo, 77, &b), 0);
    ASSERT_EQ(redis_topo_endpoint(&topo, 77), 1);
    ASSERT_EQ(topo.ep[0].n_slots, REDIS_SLOTS - 1);
    check_topo();
}

TEST(redirects)
{
    static const struct {
        const char *text;
        int res;
        bool ask;
        unsigned slot;
        const char *host;
        unsigned port;
    } t[] = {
        {"MOVED 12182 127.0.0.1:11243", 1, false, 12182, "127.0.0.1", 11243}, /* real */
        {"ASK 12182 127.0.0.1:19905", 1, true, 12182, "127.0.0.1", 19905},    /* real */
        {"MOVED 0 ::1:6379", 1, false, 0, "::1", 6379},
        {"MOVED 16383 node.example:1", 1, false, 16383, "node.example", 1},
        {"ASK 1 :6380", 1, true, 1, "from", 6380},
        {"ERR no such thing", 0, false, 0, "", 0},
        {"MOVED", 0, false, 0, "", 0},
        {"", 0, false, 0, "", 0},
        {"ASKING 1 a:1", 0, false, 0, "", 0},
        {"MOVED 16384 a:1", -EBADMSG, false, 0, "", 0},
        {"MOVED 99999999999999999999 a:1", -EBADMSG, false, 0, "", 0},
        {"MOVED -1 a:1", -EBADMSG, false, 0, "", 0},
        {"MOVED  a:1", -EBADMSG, false, 0, "", 0},
        {"MOVED 1", -EBADMSG, false, 0, "", 0},
        {"MOVED 1 ", -EBADMSG, false, 0, "", 0},
        {"MOVED 1 a", -EBADMSG, false, 0, "", 0},
        {"MOVED 1 a:", -EBADMSG, false, 0, "", 0},
        {"MOVED 1 a:0", -EBADMSG, false, 0, "", 0},
        {"MOVED 1 a:65536", -EBADMSG, false, 0, "", 0},
        {"MOVED 1 a:1x", -EBADMSG, false, 0, "", 0},
        {"MOVED 1 a:1 ", -EBADMSG, false, 0, "", 0},
        {"MOVED 1 a b:1", -EBADMSG, false, 0, "", 0},
        {"MOVED 1 /a:1", -EBADMSG, false, 0, "", 0},
    };
    struct redis_addr from = addr("from", 9);
    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
        struct redis_redirect d = {.slot = 99999};
        int r = redis_redirect_parse(t[i].text, &from, &d);
        if (r != t[i].res) test_fail(__FILE__, __LINE__, "%s: %d", t[i].text, r);
        if (r != 1) {
            ASSERT_EQ(d.slot, 99999);
            continue;
        }
        ASSERT_EQ(d.ask, t[i].ask);
        ASSERT_EQ(d.slot, t[i].slot);
        ASSERT_STREQ(d.addr.host, t[i].host);
        ASSERT_EQ(d.addr.port, t[i].port);
    }
}

TEST(sentinel_replies)
{
    static const struct {
        const char *bytes;
        int res;
    } t[] = {
        {"*2\r\n$9\r\n127.0.0.1\r\n$5\r\n13699\r\n", 1}, /* real */
        {"*-1\r\n", 0},                                  /* real: not known */
        {"$-1\r\n", 0},
        {"-IDONTKNOW I have not enough information\r\n", -EBADMSG},
        {"*1\r\n$9\r\n127.0.0.1\r\n", -EBADMSG},
        {"*2\r\n$1\r\na\r\n:1\r\n", -EBADMSG},
        {"*2\r\n$0\r\n\r\n$1\r\n1\r\n", -EBADMSG},
        {"*2\r\n$1\r\na\r\n$1\r\n0\r\n", -EBADMSG},
        {"*2\r\n$1\r\na\r\n$0\r\n\r\n", -EBADMSG},
        {"*2\r\n$1\r\na\r\n$2\r\n1x\r\n", -EBADMSG},
        {"*2\r\n$1\r\na\r\n$5\r\n65536\r\n", -EBADMSG},
    };
    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
        struct redis_addr a = {.port = 1};
        redisReply *r = reply(t[i].bytes);
        ASSERT_ERR(redis_sentinel_parse_master(r, &a), t[i].res);
        ASSERT_EQ(a.port, t[i].res == 1 ? 13699 : 1);
        freeReplyObject(r);
    }
    static const struct {
        const char *bytes;
        int res;
    } s[] = {
        {"*3\r\n$7\r\nmessage\r\n$14\r\n+switch-master\r\n$36\r\nmymaster 10.0.0.1 6379 10.0.0.2 "
         "6380\r\n",
         1},
        {"*3\r\n$7\r\nmessage\r\n$14\r\n+switch-master\r\n$36\r\nanother1 10.0.0.1 6379 10.0.0.2 "
         "6380\r\n",
         0},
        {"*3\r\n$9\r\nsubscribe\r\n$14\r\n+switch-master\r\n:1\r\n", 0},
        {"*3\r\n$7\r\nmessage\r\n$5\r\n+down\r\n$1\r\nx\r\n", 0},
        {"+OK\r\n", 0},
        {"*3\r\n$7\r\nmessage\r\n$14\r\n+switch-master\r\n:1\r\n", -EBADMSG},
        {"*3\r\n$7\r\nmessage\r\n$14\r\n+switch-master\r\n$14\r\nmymaster a 1 b\r\n", -EBADMSG},
        {"*3\r\n$7\r\nmessage\r\n$14\r\n+switch-master\r\n$18\r\nmymaster a 1 b 2 3\r\n", -EBADMSG},
        {"*3\r\n$7\r\nmessage\r\n$14\r\n+switch-master\r\n$16\r\nmymaster a 1 b x\r\n", -EBADMSG},
    };
    for (size_t i = 0; i < sizeof(s) / sizeof(s[0]); i++) {
        struct redis_addr a = {.port = 1};
        redisReply *r = reply(s[i].bytes);
        int res = r ? redis_sentinel_parse_switch(r, "mymaster", &a) : -1000;
        if (res != s[i].res) test_fail(__FILE__, __LINE__, "message %zu: %d", i, res);
        if (res == 1) {
            ASSERT_STREQ(a.host, "10.0.0.2");
            ASSERT_EQ(a.port, 6380);
        }
        freeReplyObject(r);
    }
}

TEST(info_fields)
{
    static const char text[] = "# Server\r\nredis_version:7.0.15\r\nredis_mode:cluster\r\n\r\n"
                               "# Memory\r\nused_memory:1823312\r\nused_memory_human:1.74M\r\n"
                               "used_memory_rss:12800000\r\nmaxmemory:67108864\r\n"
                               "maxmemory_human:64.00M\r\nmaxmemory_policy:allkeys-lru\r\n"
                               "# Stats\r\nexpired_keys:3\r\nevicted_keys:18446744073709551615\r\n"
                               "# Replication\r\nrole:slave\r\nloading:0\r\n# Keyspace\r\n"
                               "db0:keys=41,expires=2,avg_ttl=9\r\ndb7:keys=1,expires=0";
    struct redis_info i;
    redis_info_parse(text, &i);
    ASSERT_TRUE(i.is_cluster && i.is_replica && !i.is_sentinel);
    ASSERT_EQ(i.used_memory_bytes, 1823312);
    ASSERT_EQ(i.maxmemory_bytes, 67108864);
    ASSERT_STREQ(i.maxmemory_policy, "allkeys-lru");
    ASSERT_EQ(i.expired_keys, 3);
    ASSERT_TRUE(i.evicted_keys > 1ull << 60);
    ASSERT_EQ(i.keys, 42);
    redis_info_parse("", &i);
    ASSERT_TRUE(!i.is_cluster && i.maxmemory_policy[0] == 0);
    static const char odd[] =
        "cluster_enabled:1\nrole:master\r\nmaxmemory_policy:\r\n:\r\n\r\nrole";
    redis_info_parse(odd, &i);
    ASSERT_TRUE(i.is_cluster && !i.is_replica);
}

static int check(const char *url, const char *url2, const struct redis_info *i, struct err *err)
{
    const char *urls[] = {url, url2};
    struct redis_url u;
    ASSERT_OK(redis_url_parse(urls, url2 ? 2 : 1, &u, NULL));
    *err = (struct err){0};
    int r = redis_topo_check(&u, i, err);
    redis_url_fini(&u);
    ASSERT_EQ(err->code, r < 0 ? r : 0);
    ASSERT_TRUE(r >= 0 || strlen(err->msg) > 20);
    return r;
}

TEST(what_the_urls_promised)
{
    const struct redis_info alone = {0}, node = {.is_cluster = true},
                            replica = {.is_replica = true}, sentinel = {.is_sentinel = true},
                            node_replica = {.is_cluster = true, .is_replica = true};
    struct err e;
    ASSERT_EQ(check("redis://a", NULL, &alone, &e), 0);
    ASSERT_EQ(check("redis://a", NULL, &node, &e), 1);
    ASSERT_EQ(check("redis://a", "redis://b", &node, &e), 1);
    ASSERT_EQ(check("redis://a", "redis://b", &node_replica, &e), 1);
    ASSERT_ERR(check("redis://a", "redis://b", &alone, &e), -EINVAL);
    ASSERT_TRUE(strstr(e.msg, "2 servers that are no cluster"));
    ASSERT_ERR(check("redis://a", NULL, &replica, &e), -EAGAIN);
    ASSERT_ERR(check("redis://a", NULL, &sentinel, &e), -EINVAL);
    ASSERT_ERR(check("redis://a/1", NULL, &node, &e), -EINVAL);
    ASSERT_EQ(check("redis://a/1", NULL, &alone, &e), 0);
    ASSERT_EQ(check("redis-cluster://a,b", NULL, &node, &e), 1);
    ASSERT_ERR(check("redis-cluster://a", NULL, &alone, &e), -EINVAL);
    ASSERT_EQ(check("redis-sentinel://a,b,c/m", NULL, &alone, &e), 0);
    ASSERT_ERR(check("redis-sentinel://a/m", NULL, &replica, &e), -EAGAIN);
    ASSERT_ERR(check("redis-sentinel://a/m", NULL, &node, &e), -EINVAL);
}

/* Random damage to a real reply: refused without a change, or a sound map. */
TEST(random_damage)
{
    uint64_t seed = 99;
    struct redis_addr from = addr("from", 1);
    unsigned n_taken = 0, n_refused = 0;
    init("redis-cluster://seed");
    for (int i = 0; i < 1500; i++) {
        char bytes[sizeof(resharded)];
        memcpy(bytes, resharded, sizeof(bytes));
        for (uint64_t k = 1 + test_rand(&seed) % 3; k > 0; k--)
            bytes[test_rand(&seed) % (sizeof(bytes) - 1)] =
                "0123456789*$:-\r\n"[test_rand(&seed) % 16];
        redisReader *reader = redisReaderCreate();
        void *r = NULL;
        (void)redisReaderFeed(reader, bytes, sizeof(bytes) - 1);
        if (redisReaderGetReply(reader, &r) == REDIS_OK && r) {
            before = topo;
            int res = redis_topo_set_slots(&topo, r, &from);
            if (res < 0) {
                ASSERT_MEMEQ(&before, &topo, sizeof(topo));
                n_refused++;
            } else {
                n_taken++;
            }
            freeReplyObject(r);
            check_topo();
        }
        redisReaderFree(reader);
    }
    ASSERT_TRUE(n_taken > 100 && n_refused > 10);
}
