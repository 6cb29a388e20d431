#include "tests/test.h"
#include "base/redis/redis_url.h"

static int parse1(const char *url, struct redis_url *ret, struct err *err)
{
    return redis_url_parse(&url, 1, ret, err);
}

static int parse2(const char *a, const char *b, struct redis_url *ret, struct err *err)
{
    const char *urls[] = {a, b};
    return redis_url_parse(urls, 2, ret, err);
}

TEST(every_scheme)
{
    static const struct {
        const char *url;
        enum redis_mode mode;
        bool tls;
        const char *host;
        unsigned port, n_hosts;
    } t[] = {
        {"redis://h", REDIS_PLAIN, false, "h", 6379, 1},
        {"redis://h:1", REDIS_PLAIN, false, "h", 1, 1},
        {"redis://h:65535/", REDIS_PLAIN, false, "h", 65535, 1},
        {"rediss://10.0.0.1:6390/3", REDIS_PLAIN, true, "10.0.0.1", 6390, 1},
        {"redis://a:1,b:2", REDIS_PLAIN, false, "a", 1, 2},
        {"redis://[::1]", REDIS_PLAIN, false, "::1", 6379, 1},
        {"redis://[fe80::1%25eth0]:7", REDIS_PLAIN, false, "fe80::1%eth0", 7, 1},
        {"redis-cluster://a,b:7,[2001:db8::1]:8", REDIS_CLUSTER, false, "a", 6379, 3},
        {"rediss-cluster://a:7001/0", REDIS_CLUSTER, true, "a", 7001, 1},
        {"redis-sentinel://a,b:7,c/mymaster", REDIS_SENTINEL, false, "a", 26379, 3},
        {"rediss-sentinel://a/mymaster", REDIS_SENTINEL, true, "a", 26379, 1},
        {"unix:///run/redis.sock", REDIS_PLAIN, false, "/run/redis.sock", 0, 1},
        {"redis+unix:///run/re%20dis.sock?db=2", REDIS_PLAIN, false, "/run/re dis.sock", 0, 1},
    };
    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
        struct redis_url u;
        struct err err = {0};
        if (parse1(t[i].url, &u, &err) < 0)
            test_fail(__FILE__, __LINE__, "%s: %s", t[i].url, err.msg);
        ASSERT_EQ(u.mode, t[i].mode);
        ASSERT_EQ(u.tls, t[i].tls);
        ASSERT_STREQ(u.host[0].host, t[i].host);
        ASSERT_EQ(u.host[0].port, t[i].port);
        ASSERT_EQ(u.n_hosts, t[i].n_hosts);
        ASSERT_EQ(redis_addr_is_unix(&u.host[0]), t[i].port == 0);
        ASSERT_TRUE(!u.user && !u.password && !u.ca && !u.prefix && !u.insecure);
        ASSERT_STREQ(u.group, "default");
        ASSERT_EQ(u.connections, 0);
        redis_url_fini(&u);
    }
}

TEST(credentials_are_decoded)
{
    static const struct {
        const char *url, *user, *password;
    } t[] = {
        {"redis://:secret@h", NULL, "secret"},
        {"redis://joe:secret@h", "joe", "secret"},
        {"redis://j%3Ae:%73%2Fe%40%23%3f%25:x@h", "j:e", "s/e@#?%:x"},
        {"redis://:a@b@h", NULL, "a@b"},
        {"redis://h?user=joe&password=s%26t", "joe", "s&t"},
        {"redis://:p@h?password=p", NULL, "p"},
        {"unix://joe:p@/run/s", "joe", "p"},
        {"redis+unix://:p@/run/a@b", NULL, "p"},
        {"redis-cluster://:p@a,b,c", NULL, "p"},
        {"redis-sentinel://joe:p@a,b/m", "joe", "p"},
    };
    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
        struct redis_url u;
        struct err err = {0};
        if (parse1(t[i].url, &u, &err) < 0)
            test_fail(__FILE__, __LINE__, "%s: %s", t[i].url, err.msg);
        ASSERT_EQ(!u.user, !t[i].user);
        if (u.user) ASSERT_STREQ(u.user, t[i].user);
        ASSERT_STREQ(u.password, t[i].password);
        redis_url_fini(&u);
    }
}

TEST(parameters)
{
    struct redis_url u;
    struct err err = {0};
    ASSERT_OK(parse1(
        "rediss-sentinel://a/m%2Dx?ca=/etc/ca.pem&cert=c&key=k&insecure=true&ttl=36h"
        "&prefix=kv%3A&group=gpu_a-1.x&connections=64&db=7&sentinel_user=su&sentinel_password=sp&",
        &u, &err));
    ASSERT_STREQ(u.master, "m-x");
    ASSERT_STREQ(u.ca, "/etc/ca.pem");
    ASSERT_STREQ(u.cert, "c");
    ASSERT_STREQ(u.key, "k");
    ASSERT_TRUE(u.insecure);
    ASSERT_EQ(u.ttl_ms, 36 * 3600 * 1000);
    ASSERT_STREQ(u.prefix, "kv:");
    ASSERT_STREQ(u.group, "gpu_a-1.x");
    ASSERT_EQ(u.connections, 64);
    ASSERT_EQ(u.db, 7);
    ASSERT_STREQ(u.sentinel_user, "su");
    ASSERT_STREQ(u.sentinel_password, "sp");
    redis_url_fini(&u);
    ASSERT_OK(parse1("redis://h/5?db=5&ttl=90", &u, &err));
    ASSERT_EQ(u.db, 5);
    ASSERT_EQ(u.ttl_ms, 90000);
    redis_url_fini(&u);
}

TEST(several_urls_are_one_installation)
{
    struct redis_url u;
    struct err err = {0};
    ASSERT_OK(parse2("redis://:pw@a:1?prefix=x", "redis://b:2?connections=2", &u, &err));
    ASSERT_EQ(u.n_hosts, 2);
    ASSERT_STREQ(u.host[1].host, "b");
    ASSERT_EQ(u.host[1].port, 2);
    ASSERT_STREQ(u.password, "pw");
    ASSERT_STREQ(u.prefix, "x");
    ASSERT_EQ(u.connections, 2);
    redis_url_fini(&u);
    ASSERT_OK(parse2("redis://a", "redis://a:6379", &u, &err)); /* the same host, once */
    ASSERT_EQ(u.n_hosts, 1);
    redis_url_fini(&u);
    ASSERT_OK(parse2("redis-sentinel://a/m", "redis-sentinel://b/m", &u, &err));
    ASSERT_EQ(u.n_hosts, 2);
    redis_url_fini(&u);
    static const char *const clash[][2] = {
        {"redis://a", "rediss://b"},
        {"redis://a", "redis-cluster://b"},
        {"redis://:p@a", "redis://:q@b"},
        {"redis://x:p@a", "redis://y:p@b"},
        {"redis://a?prefix=x", "redis://b?prefix=y"},
        {"redis://a?ttl=1", "redis://b?ttl=2"},
        {"redis://a?connections=1", "redis://b?connections=2"},
        {"redis://a/1", "redis://a/2"},
        {"redis://a/1", "redis://b/1"}, /* a cluster has database 0 only */
        {"redis://a", "unix:///run/s"},
        {"unix:///run/r", "unix:///run/s"},
        {"redis-sentinel://a/m", "redis-sentinel://a/n"},
        {"rediss://a?insecure=yes", "rediss://b?insecure=no"},
    };
    for (size_t i = 0; i < sizeof(clash) / sizeof(clash[0]); i++)
        if (parse2(clash[i][0], clash[i][1], &u, &err) != -EINVAL)
            test_fail(__FILE__, __LINE__, "%s and %s were taken", clash[i][0], clash[i][1]);
}

static const char *const bad[] = {
    "",
    "h",
    "h:6379",
    "http://h",
    "Redis://h",
    "redis:/h",
    "redis://",
    "redis:///0",
    "redis://:6379",
    "redis://h:",
    "redis://h:0",
    "redis://h:65536",
    "redis://h:x",
    "redis://h:1:2",
    "redis://::1",
    "redis://[::1",
    "redis://[::1]x",
    "redis://[]",
    "redis://a,,b",
    "redis://a,",
    "redis://h/x",
    "redis://h/-1",
    "redis://h/65536",
    "redis://h/1/2",
    "redis://h#x",
    "redis://h%",
    "redis://h%4",
    "redis://h%zz",
    "redis://h%00",
    "redis://h%2fx",
    "redis://h%20x",
    "redis://joe@h",
    "redis://joe:@h",
    "redis://:@h",
    "redis://@h",
    "redis://h?x=1",
    "redis://h?ttl",
    "redis://h?ttl=x",
    "redis://h?ttl=nan",
    "redis://h?ttl=1e999",
    "redis://h?ttl=4000d",
    "redis://h?ca=x",
    "redis://h?insecure=true",
    "rediss://h?insecure=perhaps",
    "rediss://h?cert=x",
    "rediss://h?key=x",
    "rediss://h?ca=",
    "redis://h?connections=0",
    "redis://h?connections=65",
    "redis://h?prefix={a}",
    "redis://h?group=a}b",
    "redis://h?group=a%20b",
    "redis://h?group=",
    "redis://h?prefix=a%20b",
    "redis://h?user=joe",
    "redis://h?sentinel_password=x",
    "redis-cluster://h/1",
    "redis-cluster://h?db=1",
    "redis-sentinel://h",
    "redis-sentinel://h/",
    "redis-sentinel://h/a%20b",
    "redis-sentinel://h/a/0",
    "redis-sentinel://h/m?sentinel_user=x",
    "unix://",
    "unix:///",
    "unix://h/path",
    "unix://h",
    "unix:///"
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
    "aaaaaaaaaaaaaaaaaaaaaaaaaa",
};

TEST(nonsense_is_refused_with_a_sentence)
{
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct redis_url u;
        struct err err = {0};
        if (parse1(bad[i], &u, &err) != -EINVAL)
            test_fail(__FILE__, __LINE__, "%s was taken", bad[i]);
        ASSERT_EQ(err.code, -EINVAL);
        ASSERT_TRUE(strlen(err.msg) > 15);
    }
    struct redis_url u;
    ASSERT_ERR(redis_url_parse(NULL, 0, &u, NULL), -EINVAL);
}

/* However the password is mistyped, no message shows it. */
TEST(messages_never_show_a_password)
{
    static const char *const t[] = {
        "redis://:TOPSECRET@",
        "redis://:TOP/SECRET@h",
        "redis://:TOP?SECRET@h",
        "redis://:TOP#SECRET@h",
        "redis://:TOP%SECRET@h",
        "redis://:SECRET",
        "redis://TOPSECRET@h",
        "redis://h:SECRET",
        "redis://h?password=TOPSECRET&user",
        "redis://h?pasword=TOPSECRET",
        "redis://h?SECRET=1",
        "rediss-cluster://joe:TOPSECRET@h/SECRET",
        "redis-sentinel://:TOPSECRET@h",
        "unix://:TOPSECRET@h/x",
        ":SECRET@h",
        "SECRET://h",
    };
    struct redis_url u;
    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
        struct err err = {0};
        ASSERT_ERR(parse1(t[i], &u, &err), -EINVAL);
        if (strstr(err.msg, "SECRET")) test_fail(__FILE__, __LINE__, "shown: %s", err.msg);
    }
    struct err err = {0};
    ASSERT_ERR(parse2("redis://:SECRET1@a", "redis://:SECRET2@b", &u, &err), -EINVAL);
    ASSERT_TRUE(!strstr(err.msg, "SECRET"));
}

TEST(limits)
{
    char url[16384] = "redis://h0", host[512];
    struct redis_url u;
    for (unsigned i = 1; i < REDIS_HOSTS_MAX; i++)
        (void)snprintf(url + strlen(url), 8, ",h%u", i);
    ASSERT_OK(parse1(url, &u, NULL));
    ASSERT_EQ(u.n_hosts, REDIS_HOSTS_MAX);
    redis_url_fini(&u);
    (void)strcat(url, ",x");
    ASSERT_ERR(parse1(url, &u, NULL), -EINVAL);
    memset(host, 'a', sizeof(host));
    host[REDIS_HOST_MAX - 1] = 0;
    (void)snprintf(url, sizeof(url), "redis://%s", host);
    ASSERT_OK(parse1(url, &u, NULL));
    redis_url_fini(&u);
    (void)strcat(url, "a");
    ASSERT_ERR(parse1(url, &u, NULL), -EINVAL);
    memset(url + strlen(url), 'a', 9000);
    url[9500] = 0;
    ASSERT_ERR(parse1(url, &u, NULL), -EINVAL);
}

TEST(no_memory)
{
    for (unsigned n = 1;; n++) {
        struct redis_url u = {.n_hosts = 99};
        struct err err = {0};
        mem_fail_nth(n);
        int r = parse1("redis://joe:p@a,b/1?prefix=x&db=1", &u, &err);
        bool fired = mem_fail_fired();
        mem_fail_nth(0);
        if (!fired) {
            ASSERT_EQ(r, -EINVAL); /* two hosts and a database */
            break;
        }
        ASSERT_ERR(r, -ENOMEM);
        ASSERT_EQ(u.n_hosts, 99);
    }
}

/* Random damage to good URLs: taken or refused, never anything else (for the sanitizers), and what
 * is taken keeps the promises of the header. */
TEST(random_damage)
{
    static const char *const seeds[] = {
        "rediss-sentinel://joe:p%20w@a:1,[::1]:2/m?ca=x&cert=c&key=k&ttl=3h&prefix=kv",
        "redis-cluster://:p@a,b,c?connections=3",
        "unix://:p@/run/s?db=3",
        "redis://user:pw@host:1234/5",
    };
    static const char alphabet[] = ":/@?&=%,[]#0aF. -\x01\xff";
    uint64_t seed = 4711;
    unsigned n_taken = 0;
    for (int i = 0; i < 50000; i++) {
        char url[128];
        (void)snprintf(url, sizeof(url), "%s", seeds[test_rand(&seed) % 4]);
        for (uint64_t k = test_rand(&seed) % 4; k > 0; k--)
            url[test_rand(&seed) % strlen(url)] =
                alphabet[test_rand(&seed) % (sizeof(alphabet) - 1)];
        struct redis_url u;
        if (parse1(url, &u, NULL) < 0) continue;
        n_taken++;
        ASSERT_TRUE(u.n_hosts >= 1);
        ASSERT_TRUE(!u.user || u.password);
        ASSERT_EQ(!u.cert, !u.key);
        ASSERT_EQ(u.mode == REDIS_SENTINEL, u.master != NULL);
        for (size_t h = 0; h < u.n_hosts; h++)
            ASSERT_TRUE(u.host[h].host[0] && redis_addr_is_unix(&u.host[h]) == !u.host[h].port);
        redis_url_fini(&u);
    }
    ASSERT_TRUE(n_taken > 1000);
}
