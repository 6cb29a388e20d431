/* Real servers that stop, vanish, fill up, move and lie under workers that use them: no answer is
 * wrong, no look-up fails or hangs, breakers open and close, and the figures say so. */
#include "tests/unit/tiers/redis_server.h"
#include "tests/unit/tiers/redis_worker.h"
#include "tiers/store_admin.h"

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

/* ---- two workers, one server ---- */

static void share(const struct redis_server_opts *o, const char *more)
{
    char url[512];
    struct redis_server *s = redis_server_start(o);
    redis_server_url(s, url);
    (void)snprintf(url + strlen(url), sizeof(url) - strlen(url), "%s", more);
    start_two(SHAPE_LARGE, url);
    worker_build_all(&a, 0, 8);
    ASSERT_EQ(worker_get_all(&b, 0, 8), 8);
    ASSERT_EQ(b.tally.from_ram, 0);
    worker_build_all(&b, 8, 10);
    ASSERT_EQ(worker_get_all(&a, 8, 10), 2);
    ASSERT_EQ(worker_get(&b, 99, true, 0), 0);
    ASSERT_EQ(tally_missed(&b.tally), 1);
    struct store_tier_stats st;
    worker_stat(&b, &st);
    ASSERT_STREQ(st.name, "redis");
    ASSERT_TRUE(st.shared && st.persistent);
    ASSERT_EQ(st.hits, 8);
    ASSERT_EQ(st.tier.reads, 8);
    ASSERT_EQ(st.tier.writes, 2);
    ASSERT_TRUE(st.tier.read_bytes >= 8ull * 8 * 256 * 1024);
    ASSERT_EQ(st.tier.endpoints, 1);
    ASSERT_EQ(st.tier.endpoints_open, 0);
    ASSERT_EQ(st.tier.errors + st.tier.timeouts + st.tier.corrupt, 0);
    ASSERT_STREQ(st.breaker, "closed");
    stop_two();
    redis_server_stop(s);
}

TEST(two_workers_share_a_server)
{
    share(NULL, "");
}

TEST(two_workers_share_a_server_with_a_password)
{
    share(&(struct redis_server_opts){.password = "s3cret"}, "?prefix=x:&connections=1");
}

TEST(two_workers_share_over_tls)
{
    share(&(struct redis_server_opts){.tls = true, .password = "s3cret"}, "");
}

TEST(two_workers_share_a_unix_socket)
{
    char url[160];
    struct redis_server *s = redis_server_start(NULL);
    (void)snprintf(url, sizeof(url), "unix://%s?db=3", s->socket);
    start_two(SHAPE_LARGE, url);
    worker_build_all(&a, 0, 4);
    ASSERT_EQ(worker_get_all(&b, 0, 4), 4);
    redisReply *r = redis_server_command(s, "INFO keyspace");
    ASSERT_TRUE(strstr(r->str, "db3:keys=4"));
    freeReplyObject(r);
    stop_two();
    redis_server_stop(s);
}

TEST(a_restarted_worker_finds_its_records)
{
    char url[512];
    struct redis_server *s = redis_server_start(NULL);
    redis_server_url(s, url);
    start_two(SHAPE_SMALL, url);
    worker_build_all(&a, 0, 20);
    worker_stop(&a);
    worker_start(&a, SHAPE_SMALL, url);
    ASSERT_EQ(worker_get_all(&a, 0, 20), 20);
    stop_two();
    redis_server_stop(s);
}

/* An old copy is cleared away behind the new one; that must not hold up who reads it meanwhile. */
TEST(a_record_built_twice_is_read_at_once)
{
    char url[512];
    struct redis_server *s = redis_server_start(NULL);
    redis_server_url(s, url);
    start_two(SHAPE_SMALL, url);
    worker_build_all(&a, 0, 40);
    for (unsigned id = 0; id < 40; id++) {
        worker_build_all(&b, id, id + 1);
        ASSERT_EQ(worker_get(&b, id, true, 0), 1);
        ASSERT_EQ(worker_get(&a, id, true, 0), 1);
    }
    ASSERT_TRUE(b.tally.slowest_ms < 4000);
    stop_two();
    redis_server_stop(s);
}

TEST(prefixes_models_and_namespaces_do_not_meet)
{
    char url[512], other[600];
    struct redis_server *s = redis_server_start(NULL);
    redis_server_url(s, url);
    (void)snprintf(other, sizeof(other), "%s?prefix=other:", url);
    start_two(SHAPE_SMALL, url);
    worker_build_all(&a, 0, 4);
    b.ns = "another tenant";
    ASSERT_EQ(worker_get_all(&b, 0, 4), 0);
    worker_stop(&b);
    worker_start(&b, SHAPE_SMALL, other);
    ASSERT_EQ(worker_get_all(&b, 0, 4), 0);
    worker_stop(&b);
    worker_start(&b, (struct shape){4, 16}, url); /* other layers: another identity */
    ASSERT_EQ(worker_get_all(&b, 0, 4), 0);
    ASSERT_EQ(b.tally.why[STORE_MISS_NEVER], 4);
    stop_two();
    redis_server_stop(s);
}

TEST(records_expire_by_ttl)
{
    char url[512];
    struct redis_server *s = redis_server_start(NULL);
    redis_server_url(s, url);
    (void)snprintf(url + strlen(url), sizeof(url) - strlen(url), "?ttl=1h");
    start_two(SHAPE_SMALL, url);
    worker_build_all(&a, 0, 2);
    redisReply *keys = redis_server_command(s, "KEYS *");
    ASSERT_EQ(keys->elements, 2);
    for (size_t i = 0; i < 2; i++) {
        long long ms = redis_server_int(s, "PTTL %s", keys->element[i]->str);
        ASSERT_TRUE(ms > 3500 * 1000 && ms <= 3600 * 1000);
    }
    ASSERT_EQ(redis_server_int(s, "PEXPIRE %s 1", keys->element[0]->str), 1);
    WAIT_FOR(redis_server_int(s, "DBSIZE") == 1);
    ASSERT_EQ(worker_get_all(&b, 0, 2), 1);
    freeReplyObject(keys);
    stop_two();
    redis_server_stop(s);
}

/* ---- a full server ---- */

TEST(a_full_server_evicts_whole_records)
{
    char url[512];
    struct redis_server *s = redis_server_start(
        &(struct redis_server_opts){.maxmemory = "40mb", .maxmemory_policy = "allkeys-lru"});
    redis_server_url(s, url);
    start_two(SHAPE_LARGE, url);
    worker_build_all(&a, 0, 40); /* 80 MiB */
    ASSERT_TRUE(redis_server_info(s, "evicted_keys") > 10);
    unsigned n = worker_get_all(&b, 0, 40);
    ASSERT_TRUE(n > 2 && n < 20);
    /* Replies count as memory, so that a record may go between its header and its parts. */
    ASSERT_EQ(n + b.tally.late + b.tally.why[STORE_MISS_NEVER] + b.tally.why[STORE_MISS_EVICTED],
              40);
    ASSERT_TRUE(!worker_is_open(&b));
    worker_stop(&b);
    worker_start(&b, SHAPE_LARGE, url); /* asks when it connects, then every few seconds */
    WAIT_FOR(worker_tier_stat(&b).capacity_bytes == 40ull << 20);
    ASSERT_TRUE(worker_tier_stat(&b).used_bytes > 4 << 20);
    ASSERT_TRUE(worker_tier_stat(&b).used_bytes <= 48ull << 20);
    stop_two();
    redis_server_stop(s);
}

TEST(a_full_server_that_evicts_nothing_is_full_not_broken)
{
    char url[512];
    struct redis_server *s = redis_server_start(
        &(struct redis_server_opts){.maxmemory = "24mb", .maxmemory_policy = "noeviction"});
    redis_server_url(s, url);
    start_two(SHAPE_LARGE, url);
    for (unsigned id = 0; id < 20; id++)
        ASSERT_OK(worker_build(&a, id));
    (void)worker_flush(&a);
    WAIT_FOR(worker_tier_stat(&a).rejected[TIER_REJECT_FULL] > 0);
    unsigned n = worker_get_all(&b, 0, 20);
    ASSERT_TRUE(n >= 2 && n < 20);
    ASSERT_TRUE(!worker_is_open(&a) && !worker_is_open(&b));
    ASSERT_EQ(worker_tier_stat(&a).errors, 0);
    for (unsigned id = 0; id < 20; id++) /* and nothing is lost that RAM has */
        ASSERT_EQ(worker_get(&a, id, false, 0), 1);
    stop_two();
    redis_server_stop(s);
}

/* ---- a server that does not answer ---- */

TEST(a_stopped_server_costs_misses_until_it_goes_on)
{
    char url[512];
    struct redis_server *s = redis_server_start(NULL);
    redis_server_url(s, url);
    start_two(SHAPE_SMALL, url);
    worker_build_all(&a, 0, 10);
    ASSERT_EQ(worker_get_all(&b, 0, 10), 10);
    redis_server_pause(s);
    for (unsigned i = 0; i < 10; i++)
        ASSERT_EQ(worker_get(&b, i, true, 100), 0);
    ASSERT_TRUE(b.tally.why[STORE_MISS_DEADLINE] > 0);
    ASSERT_TRUE(b.tally.slowest_ms < 5000);
    WAIT_FOR(!worker_get(&b, 0, true, 100) && worker_is_open(&b));
    struct store_tier_stats st;
    worker_stat(&b, &st);
    ASSERT_TRUE(st.tier.timeouts > 0);
    /* Building goes on without the tier. */
    ASSERT_EQ(worker_build(&b, 20), 1);
    ASSERT_EQ(worker_get(&b, 20, false, 100), 1);
    redis_server_resume(s);
    WAIT_FOR(worker_comes_back(&b, 3));
    ASSERT_EQ(worker_get_all(&b, 0, 10), 10);
    stop_two();
    redis_server_stop(s);
}

TEST(a_slow_server_costs_no_more_than_the_deadline)
{
    char url[512];
    struct redis_server *s = redis_server_start(NULL);
    redis_server_url(s, url);
    start_two(SHAPE_LARGE, url);
    worker_build_all(&a, 0, 4);
    ASSERT_EQ(worker_get_all(&b, 0, 4), 4);
    freeReplyObject(redis_server_command(s, "CLIENT PAUSE 1500 ALL"));
    ASSERT_EQ(worker_get(&b, 1, true, 100), 0);
    ASSERT_TRUE(b.tally.slowest_ms < 1400);
    WAIT_FOR(worker_comes_back(&b, 1));
    stop_two();
    redis_server_stop(s);
}

TEST(a_server_that_dies_and_comes_back_empty)
{
    char url[512];
    struct redis_server *s = redis_server_start(NULL);
    redis_server_url(s, url);
    start_two(SHAPE_SMALL, url);
    worker_build_all(&a, 0, 10);
    ASSERT_EQ(worker_get_all(&b, 0, 10), 10);
    redis_server_kill(s);
    for (unsigned i = 0; i < 10; i++)
        ASSERT_EQ(worker_get(&b, i, true, 500), 0);
    WAIT_FOR(!worker_get(&b, 0, true, 500) && worker_is_open(&b));
    ASSERT_EQ(worker_build(&a, 30), 1); /* its write is lost, the record is not */
    redis_server_restart(s);
    WAIT_FOR((worker_get(&b, 0, true, 500), !worker_is_open(&b)));
    ASSERT_EQ(worker_get_all(&b, 0, 10), 0); /* it has nothing of it any more */
    ASSERT_EQ(worker_get(&a, 30, false, 0), 1);
    WAIT_FOR((worker_get(&a, 500, true, 500), !worker_is_open(&a)));
    worker_build_all(&a, 40, 45);
    ASSERT_EQ(worker_get_all(&b, 40, 45), 5);
    stop_two();
    redis_server_stop(s);
}

TEST(a_server_that_starts_after_the_worker)
{
    char url[512];
    struct redis_server *s = redis_server_start(NULL);
    redis_server_url(s, url);
    redis_server_kill(s);
    start_two(SHAPE_SMALL, url);
    ASSERT_EQ(worker_get(&a, 0, true, 500), 0);
    ASSERT_EQ(worker_build(&a, 0), 1);
    redis_server_restart(s);
    WAIT_FOR((worker_get(&a, 1, true, 500), !worker_is_open(&a)));
    WAIT_FOR((worker_get(&b, 1, true, 500), !worker_is_open(&b)));
    worker_build_all(&a, 10, 14);
    ASSERT_EQ(worker_get_all(&b, 10, 14), 4);
    stop_two();
    redis_server_stop(s);
}

TEST(connections_cut_in_the_middle)
{
    char url[512];
    struct redis_server *s = redis_server_start(NULL);
    redis_server_url(s, url);
    start_two(SHAPE_LARGE, url);
    worker_build_all(&a, 0, 6);
    struct worker_load read[2] = {{.w = &b, .n = 6, .seed = 1}, {.w = &b, .n = 6, .seed = 2}};
    struct worker_load build = {.w = &a, .n = 100, .builds = true};
    worker_load_start(&read[0]);
    worker_load_start(&read[1]);
    worker_load_start(&build);
    for (int i = 0; i < 20; i++) {
        unsigned before = read[0].n_done;
        WAIT_FOR(read[0].n_done > before + 2);
        redisReply *r = redis_server_command(s, "CLIENT KILL TYPE normal");
        freeReplyObject(r);
    }
    worker_load_stop(&build);
    worker_load_stop(&read[0]);
    worker_load_stop(&read[1]);
    ASSERT_TRUE(build.n_built > 0);
    ASSERT_TRUE(b.tally.hits > 0);
    WAIT_FOR(worker_comes_back(&b, 0));
    stop_two();
    redis_server_stop(s);
}

/* ---- who may connect ---- */

TEST(a_wrong_password_is_no_tier_until_it_is_right)
{
    char url[512];
    struct redis_server *s =
        redis_server_start(&(struct redis_server_opts){.password = "the right one"});
    (void)snprintf(url, sizeof(url), "redis://127.0.0.1:%u", s->port);
    worker_is_refused(&a, url, "right");
    worker_stop(&a);
    (void)snprintf(url, sizeof(url), "redis://:mistaken@127.0.0.1:%u", s->port);
    worker_is_refused(&a, url, "mistaken");
    freeReplyObject(redis_server_command(s, "CONFIG SET requirepass mistaken"));
    WAIT_FOR((worker_get(&a, 2, true, 200), !worker_is_open(&a)));
    worker_build_all(&a, 10, 12);
    ASSERT_EQ(worker_get_all(&a, 10, 12), 2);
    worker_stop(&a);
    redis_server_stop(s);
}

TEST(tls_trusts_only_its_ca)
{
    char url[1024];
    struct redis_server *s = redis_server_start(&(struct redis_server_opts){.tls = true});
    (void)snprintf(url, sizeof(url), "rediss://127.0.0.1:%u?ca=%s", s->port,
                   redis_server_tls_file("other.crt"));
    worker_is_refused(&a, url, "no secret");
    worker_stop(&a);
    (void)snprintf(url, sizeof(url), "redis://127.0.0.1:%u", s->port); /* plain text to TLS */
    worker_is_refused(&a, url, "no secret");
    worker_stop(&a);
    const char *fine[] = {"rediss://localhost:%u?ca=%s", "rediss://127.0.0.1:%u?insecure=yes"};
    for (int i = 0; i < 2; i++) {
        (void)snprintf(url, sizeof(url), fine[i], s->port, redis_server_tls_file("ca.crt"));
        worker_start(&a, SHAPE_SMALL, url);
        worker_build_all(&a, 0, 3);
        ASSERT_EQ(worker_get_all(&a, 0, 3), 3);
        worker_stop(&a);
    }
    redis_server_stop(s);
}

TEST(tls_shows_its_certificate)
{
    char url[1024];
    struct redis_server *s =
        redis_server_start(&(struct redis_server_opts){.tls = true, .tls_clients = true});
    (void)snprintf(url, sizeof(url), "rediss://127.0.0.1:%u?ca=%s", s->port,
                   redis_server_tls_file("ca.crt"));
    worker_is_refused(&a, url, "no secret");
    worker_stop(&a);
    size_t n = strlen(url);
    (void)snprintf(url + n, sizeof(url) - n, "&cert=%s&key=%s", redis_server_tls_file("client.crt"),
                   redis_server_tls_file("client.key"));
    start_two(SHAPE_LARGE, url);
    worker_build_all(&a, 0, 3);
    ASSERT_EQ(worker_get_all(&b, 0, 3), 3);
    /* A server that dies under TLS is no different (and no SIGPIPE ends us). */
    redis_server_kill(s);
    for (unsigned i = 0; i < 6; i++)
        ASSERT_EQ(worker_get(&b, i, true, 200), 0);
    ASSERT_EQ(worker_build(&a, 7), 1);
    redis_server_restart(s);
    WAIT_FOR((worker_get(&a, 50, true, 500), !worker_is_open(&a)));
    WAIT_FOR((worker_get(&b, 50, true, 500), !worker_is_open(&b)));
    worker_build_all(&a, 10, 12);
    ASSERT_EQ(worker_get_all(&b, 10, 12), 2);
    stop_two();
    redis_server_stop(s);
}

/* The settings that etc/redis.conf documents, and the user it defines, are enough. */
TEST(the_documented_settings_serve_a_worker)
{
    char url[512], line[1024], conf[512], acl[1100] = "";
    (void)snprintf(conf, sizeof(conf), "%s/etc/redis.conf", KV_SOURCE_DIR);
    FILE *f = fopen(conf, "r");
    ASSERT_TRUE(f);
    while (fgets(line, sizeof(line), f))
        if (strncmp(line, "#user ", 6) == 0)
            (void)snprintf(acl, sizeof(acl), "ACL SETUSER %.*s", (int)strcspn(line + 6, "\n"),
                           line + 6);
    (void)fclose(f);
    ASSERT_TRUE(acl[0]);
    struct redis_server *s =
        redis_server_start(&(struct redis_server_opts){.config = conf, .maxmemory = "64mb"});
    ASSERT_EQ(redis_server_info(s, "maxmemory"), 64 << 20);
    freeReplyObject(redis_server_command(s, acl));
    (void)snprintf(url, sizeof(url), "redis://kvblend:CHANGE-ME@127.0.0.1:%u?ttl=1h", s->port);
    start_two(SHAPE_LARGE, url);
    worker_build_all(&a, 0, 6);
    ASSERT_EQ(worker_get_all(&b, 0, 6), 6);
    ASSERT_OK(store_clear(a.store, "redis", NULL, true));
    WAIT_FOR(redis_server_int(s, "DBSIZE") == 0);
    redisReply *r = redis_server_command(s, "ACL LOG");
    if (r->elements > 0)
        test_fail(__FILE__, __LINE__, "refused: %s", r->element[0]->element[7]->str);
    freeReplyObject(r);
    stop_two();
    redis_server_stop(s);
}

/* ---- bytes that are not what was written ---- */

/* One bit of one field of one key; which one, `seed` decides. */
static void flip_bit(struct redis_server *s, uint64_t *seed)
{
    redisReply *keys = redis_server_command(s, "KEYS *");
    ASSERT_TRUE(keys->elements > 0);
    const redisReply *k = keys->element[test_rand(seed) % keys->elements];
    redisReply *all = redis_server_command(s, "HGETALL %b", k->str, (size_t)k->len);
    ASSERT_TRUE(all->elements >= 4);
    size_t i = test_rand(seed) % (all->elements / 2) * 2;
    redisReply *field = all->element[i], *value = all->element[i + 1];
    size_t bit = test_rand(seed) % ((size_t)value->len * 8);
    value->str[bit / 8] ^= (char)(1 << bit % 8);
    freeReplyObject(redis_server_command(s, "HSET %b %b %b", k->str, (size_t)k->len, field->str,
                                         (size_t)field->len, value->str, (size_t)value->len));
    freeReplyObject(all);
    freeReplyObject(keys);
}

TEST(a_flipped_bit_is_never_an_answer)
{
    char url[160];
    uint64_t seed = 12345;
    struct redis_server *s = redis_server_start(NULL);
    (void)snprintf(url, sizeof(url), "unix://%s", s->socket);
    start_two((struct shape){3, 4}, url);
    for (unsigned i = 0; i < 400; i++) {
        worker_build_all(&a, i, i + 1);
        flip_bit(s, &seed);
        (void)worker_get(&b, i, true, 0); /* a flip where nobody looks leaves a hit */
        freeReplyObject(redis_server_command(s, "FLUSHALL"));
    }
    ASSERT_EQ(tally_asked(&b.tally), 400);
    /* A third of the fields is for administration, and most of a small header is padding. */
    ASSERT_TRUE(b.tally.hits < 300);
    stop_two();
    redis_server_stop(s);
}

/* Fields that are gone, short, long, of another record or no hash at all. */
TEST(damaged_records_are_misses)
{
    static const char *const damage[] = {
        "local f, big = redis.call('HKEYS', KEYS[1]), nil for i = 1, #f do if not big or "
        "redis.call('HSTRLEN', KEYS[1], f[i]) > redis.call('HSTRLEN', KEYS[1], big) then big = "
        "f[i] "
        "end end return redis.call('HDEL', KEYS[1], big)",
        "local f = redis.call('HKEYS', KEYS[1]) for i = 2, #f do redis.call('HDEL', KEYS[1], f[i]) "
        "end return 0",
        "local f = redis.call('HKEYS', KEYS[1]) for i = 1, #f do redis.call('HSET', KEYS[1], f[i], "
        "'') end return 0",
        "local f = redis.call('HKEYS', KEYS[1]) for i = 1, #f do local v = redis.call('HGET', "
        "KEYS[1], f[i]) redis.call('HSET', KEYS[1], f[i], v .. 'x') end return 0",
        "local f = redis.call('HKEYS', KEYS[1]) for i = 1, #f do local v = redis.call('HGET', "
        "KEYS[1], f[i]) redis.call('HSET', KEYS[1], f[i], string.sub(v, 2)) end return 0",
        "local f = redis.call('HKEYS', KEYS[1]) for i = 1, #f do local v = redis.call('HGET', "
        "KEYS[1], f[i]) redis.call('HSET', KEYS[1], f[i], string.rep('z', #v)) end return 0",
        "redis.call('DEL', KEYS[1]) redis.call('SET', KEYS[1], 'x') return 0",
        "redis.call('DEL', KEYS[1]) redis.call('RENAME', KEYS[2], KEYS[1]) return 0",
    };
    char url[512];
    struct redis_server *s = redis_server_start(NULL);
    redis_server_url(s, url);
    start_two(SHAPE_LARGE, url);
    for (unsigned i = 0; i < sizeof(damage) / sizeof(damage[0]); i++) {
        worker_build_all(&a, 2 * i, 2 * i + 1);
        redisReply *first = redis_server_command(s, "KEYS *");
        ASSERT_EQ(first->elements, 1);
        worker_build_all(&a, 2 * i + 1, 2 * i + 2);
        redisReply *both = redis_server_command(s, "KEYS *");
        const char *k = first->element[0]->str;
        const char *other = both->element[0]->str[0] && strcmp(both->element[0]->str, k) != 0
                                ? both->element[0]->str
                                : both->element[1]->str;
        freeReplyObject(redis_server_command(s, "EVAL %s 2 %s %s", damage[i], k, other));
        freeReplyObject(first);
        freeReplyObject(both);
        ASSERT_EQ(worker_get(&b, 2 * i, true, 0), 0);
        ASSERT_EQ(worker_get(&b, 1000, true, 0), 0); /* and the connection is of use again */
        (void)worker_get(&b, 2 * i + 1, true, 0);
        freeReplyObject(redis_server_command(s, "FLUSHALL"));
    }
    WAIT_FOR((worker_get(&b, 1000, true, 0), !worker_is_open(&b)));
    worker_build_all(&a, 500, 503);
    ASSERT_EQ(worker_get_all(&b, 500, 503), 3);
    stop_two();
    redis_server_stop(s);
}
