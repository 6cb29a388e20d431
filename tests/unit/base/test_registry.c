/* redis_sync and registry, against real servers, and what a reader makes of lists. */
#include "base/redis/registry.h"
#include "base/clock.h"
#include "tests/test.h"
#include "tests/unit/tiers/redis_server.h"

#include <hiredis/hiredis.h>

TEST(addresses)
{
    char a[REGISTRY_ADDRESS_BYTES];
    static const char *const good[][2] = {{"http://10.0.0.5:8012", "10.0.0.5:8012"},
                                          {"gpu-1.lan:80/", "gpu-1.lan:80"},
                                          {"http://[::1]:8012", "[::1]:8012"}};
    static const char *const bad[] = {
        "",         "http://",     "host",    "host:",           "host:0",   "host:65536",
        "host:80x", "https://h:1", "ho st:1", "http://h:1/path", "user@h:1", "0.0.0.0:80",
        "[::]:80",  ":80",         "::1:80",  "h:99999999999"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        ASSERT_OK(registry_address(good[i][0], a));
        ASSERT_STREQ(a, good[i][1]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (registry_address(bad[i], a) != -EINVAL)
            test_fail(__FILE__, __LINE__, "\"%s\" was taken for an address", bad[i]);
}

/* ---- the reader's view ---- */

static char told[512];
static bool refuse;

static bool on_worker(void *ctx, const char *address, bool here)
{
    size_t n = strlen(told);
    if (refuse) return false;
    (void)snprintf(told + n, sizeof told - n, "%s%s ", here ? "+" : "-", address);
    return true;
}

/* "a" is here, "a!" has left, "a?" has expired. */
static const char *update(struct registry_view *v, const char *list, uint64_t now_ms, uint64_t conn)
{
    static struct registry_list l;
    char copy[128], *save = NULL;
    l.n = 0;
    (void)snprintf(copy, sizeof copy, "%s", list);
    for (char *p = strtok_r(copy, " ", &save); p; p = strtok_r(NULL, " ", &save)) {
        struct registry_item *x = &l.item[l.n++];
        size_t n = strcspn(p, "!?");
        (void)snprintf(x->address, sizeof x->address, "%.*s", (int)n, p);
        x->state = p[n] == '!' ? REGISTRY_LEFT : p[n] == '?' ? REGISTRY_EXPIRED : REGISTRY_HERE;
    }
    told[0] = '\0';
    registry_update(v, &l, now_ms, conn, on_worker, NULL);
    return told;
}

TEST(who_comes_and_goes)
{
    static struct registry_view v;
    memset(&v, 0, sizeof v);
    ASSERT_STREQ(update(&v, "a b! c?", 1000, 1), "+a ");
    ASSERT_STREQ(update(&v, "a b c", 3000, 1), "+b +c ");
    ASSERT_STREQ(update(&v, "a! b c", 5000, 1), "-a "); /* in order: at once */
    ASSERT_STREQ(update(&v, "a! b c", 7000, 1), "");
    ASSERT_STREQ(update(&v, "a b? c", 9000, 1), "+a "); /* killed: not for one missing record */
    ASSERT_STREQ(update(&v, "a b? c", 12999, 1), "");
    ASSERT_STREQ(update(&v, "a b? c", 13000, 1), "-b ");
    /* A server that was away for a minute and is empty: they get time to come back. */
    ASSERT_STREQ(update(&v, "", 80000, 2), "");
    ASSERT_STREQ(update(&v, "a", 84000, 2), "");
    ASSERT_STREQ(update(&v, "a", 86000, 2), "-c ");
    refuse = true; /* nobody takes the news now */
    ASSERT_STREQ(update(&v, "a! d", 87000, 2), "");
    refuse = false;
    ASSERT_STREQ(update(&v, "a! d", 88000, 2), "+d -a ");
    ASSERT_EQ(v.n, 1);
}

/* ---- servers ---- */

struct side {
    struct redis_url url;
    struct registry g;
};

static void open_side(struct side *s, const char *url)
{
    struct err err = {0};
    *s = (struct side){.g = {.url = &s->url}};
    if (redis_url_parse(&url, 1, &s->url, &err) < 0) test_fail(__FILE__, __LINE__, "%s", err.msg);
    if (redis_sync_create(&s->url, 1500, &s->g.redis, &err) < 0)
        test_fail(__FILE__, __LINE__, "%s", err.msg);
}

static void close_side(struct side *s)
{
    redis_sync_destroy(s->g.redis);
    redis_url_fini(&s->url);
}

static enum registry_state state_of(struct side *s, const char *address)
{
    static struct registry_list l;
    struct err err = {0};
    if (registry_read(&s->g, &l, &err) < 0) test_fail(__FILE__, __LINE__, "%s", err.msg);
    for (size_t i = 0; i < l.n; i++)
        if (strcmp(l.item[i].address, address) == 0) return l.item[i].state;
    return REGISTRY_EXPIRED;
}

static void put(struct side *s, const char *address)
{
    struct err err = {0};
    if (registry_put(&s->g, address, "{\"v\":1}", &err) < 0)
        test_fail(__FILE__, __LINE__, "%s", err.msg);
}

static void come_and_go(const char *url)
{
    struct side worker, gateway;
    open_side(&worker, url);
    open_side(&gateway, url);
    ASSERT_EQ(state_of(&gateway, "h1:80"), REGISTRY_EXPIRED);
    put(&worker, "h1:80");
    put(&worker, "h2:80");
    ASSERT_EQ(state_of(&gateway, "h1:80"), REGISTRY_HERE);
    ASSERT_EQ(state_of(&gateway, "h2:80"), REGISTRY_HERE);
    ASSERT_OK(registry_leave(&worker.g, "h1:80", NULL));
    ASSERT_EQ(state_of(&gateway, "h1:80"), REGISTRY_LEFT);
    ASSERT_EQ(state_of(&gateway, "h2:80"), REGISTRY_HERE);
    put(&worker, "h1:80");
    ASSERT_EQ(state_of(&gateway, "h1:80"), REGISTRY_HERE);
    gateway.url.group = "other";
    ASSERT_EQ(state_of(&gateway, "h1:80"), REGISTRY_EXPIRED);
    close_side(&worker);
    close_side(&gateway);
}

TEST(one_server)
{
    char url[512];
    struct redis_server *s = redis_server_start(&(struct redis_server_opts){.password = "se cret"});
    redis_server_url(s, url);
    come_and_go(url);
    long long ttl = redis_server_int(s, "PTTL %s", "kvblend:{registry:default}:worker:h1:80");
    ASSERT_TRUE(ttl > 0 && ttl <= REGISTRY_TTL_MS);
    redis_server_stop(s);
}

TEST(a_wrong_password_is_told_without_it)
{
    char url[512], wrong[600];
    struct err err = {0};
    struct side x;
    static struct registry_list l;
    struct redis_server *s = redis_server_start(&(struct redis_server_opts){.password = "right"});
    redis_server_url(s, url);
    (void)snprintf(wrong, sizeof wrong, "redis://:sesame@127.0.0.1:%u", s->port);
    open_side(&x, wrong);
    ASSERT_ERR(registry_read(&x.g, &l, &err), -EACCES);
    ASSERT_TRUE(err.msg[0] && !strstr(err.msg, "sesame"));
    close_side(&x);
    redis_server_stop(s);
}

TEST(tls)
{
    char url[512];
    struct redis_server *s =
        redis_server_start(&(struct redis_server_opts){.tls = true, .password = "x"});
    redis_server_url(s, url);
    come_and_go(url);
    char wrong[700];
    struct err err = {0};
    struct side x;
    static struct registry_list l;
    (void)snprintf(wrong, sizeof wrong, "rediss://:x@127.0.0.1:%u?ca=%s", s->port,
                   redis_server_tls_file("other.crt"));
    open_side(&x, wrong);
    ASSERT_ERR(registry_read(&x.g, &l, &err), -EACCES);
    ASSERT_TRUE(strncmp(err.msg, "certificate", 11) == 0);
    close_side(&x);
    redis_server_stop(s);
}

TEST(cluster)
{
    struct redis_cluster c;
    char url[512];
    redis_cluster_start(&c, NULL);
    redis_cluster_url(&c, url);
    come_and_go(url);
    /* Each node as the only one named: two of them answer MOVED. */
    for (int i = 0; i < REDIS_NODES; i++) {
        (void)snprintf(url, sizeof url, "redis-cluster://127.0.0.1:%u", c.node[i]->port);
        struct side x;
        open_side(&x, url);
        ASSERT_EQ(state_of(&x, "h2:80"), REGISTRY_HERE);
        close_side(&x);
    }
    redis_cluster_stop(&c);
}

TEST(sentinels_and_a_failover)
{
    struct redis_sentinels s;
    struct side x;
    char url[512];
    struct err err;
    redis_sentinels_start(&s, NULL);
    redis_sentinels_url(&s, url);
    come_and_go(url);
    open_side(&x, url);
    put(&x, "h3:80");
    uint16_t old = s.master->port;
    redis_server_kill(s.master);
    (void)redis_sentinels_wait_failover(&s, old);
    WAIT_FOR(registry_put(&x.g, "h3:80", "{}", &err) == 0);
    ASSERT_EQ(state_of(&x, "h3:80"), REGISTRY_HERE);
    close_side(&x);
    redis_sentinels_stop(&s);
}

TEST(servers_that_die_hang_and_come_back)
{
    struct side x;
    char url[512];
    struct err err;
    struct redis_server *s = redis_server_start(NULL);
    redis_server_url(s, url);
    open_side(&x, url);
    put(&x, "h1:80");
    uint64_t n = redis_sync_n_connects(x.g.redis);
    redis_server_kill(s);
    ASSERT_ERR(registry_put(&x.g, "h1:80", "{}", &err), -ECONNREFUSED);
    ASSERT_TRUE(err.msg[0]);
    redis_server_restart(s);
    WAIT_FOR(registry_put(&x.g, "h1:80", "{}", &err) == 0);
    ASSERT_TRUE(redis_sync_n_connects(x.g.redis) > n);
    redis_server_pause(s);
    uint64_t t0 = clock_ns();
    ASSERT_ERR(registry_put(&x.g, "h1:80", "{}", &err), -ETIMEDOUT);
    ASSERT_TRUE(clock_ms_since(t0) < 20000);
    redis_server_resume(s);
    WAIT_FOR(registry_put(&x.g, "h1:80", "{}", &err) == 0);
    close_side(&x);
    redis_server_stop(s);
}
