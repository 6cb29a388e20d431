#include "gateway/fleet/upstream.h"
#include "gateway/process/entry.h"

#include "base/buf.h"
#include "base/mem.h"
#include "gateway/process/config.h"
#include "tests/test.h"

#include <sys/stat.h>
#include <unistd.h>

/* The list of these entries; ret is NULL with the sentence in `why` when they are refused. */
static struct err why;
static struct gw_upstreams *parse(const char *const *entry, size_t n)
{
    struct gw_config c = {.health_interval_ms = 5000,
                          .connect_timeout_ms = 2000,
                          .first_byte_timeout_ms = 600000,
                          .idle_timeout_ms = 180000};
    struct gw_upstreams *l = NULL;
    c.upstreams = (struct gw_strs){(char **)(uintptr_t)entry, n};
    why = (struct err){0};
    int r = gw_upstreams_parse(&c, false, &l, &why);
    if (r < 0) ASSERT_TRUE(!l);
    return l;
}

static struct gw_upstreams *parse_one(const char *entry)
{
    return parse(&entry, 1);
}

TEST(fields_by_a_table)
{
    struct sample {
        uint32_t n, ms;
        double share;
        char *text;
        bool on;
    } x = {0};
    static const struct gw_entry_field table[] = {
        {"n", GW_ENTRY_UINT, offsetof(struct sample, n), 1, 9, NULL},
        {"ms", GW_ENTRY_MS, offsetof(struct sample, ms), 10, 1000, NULL},
        {"share", GW_ENTRY_DOUBLE, offsetof(struct sample, share), 0, 1, NULL},
        {"text", GW_ENTRY_TEXT, offsetof(struct sample, text), 0, 0, NULL},
        {"on", GW_ENTRY_BOOL, offsetof(struct sample, on), 0, 0, NULL},
        {0}};
    static const char *const good[][2] = {
        {"n", "9"}, {"ms", "0.5s"}, {"share", "0.25"}, {"text", "a b"}, {"on", "yes"}};
    static const char *const bad[][2] = {
        {"n", "0"},   {"n", "10"},  {"n", ""},      {"n", "2x"},      {"ms", "9ms"}, {"ms", "2s"},
        {"ms", "-1"}, {"text", ""}, {"share", "2"}, {"share", "nan"}, {"on", "2"}};
    struct arena a;
    char name[8];
    arena_init(&a);
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        ASSERT_OK(gw_entry_set(table, &x, &a, good[i][0], good[i][1]));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        ASSERT_ERR(gw_entry_set(table, &x, &a, bad[i][0], bad[i][1]), -EINVAL);
    ASSERT_ERR(gw_entry_set(table, &x, &a, "m", "1"), -ENOENT);
    ASSERT_TRUE(x.n == 9 && x.ms == 500 && x.share == 0.25 && x.on);
    ASSERT_STREQ(x.text, "a b");
    arena_fini(&a);
    ASSERT_TRUE(gw_entry_names_variable("${A}", name, sizeof name));
    ASSERT_STREQ(name, "A");
    ASSERT_TRUE(gw_entry_names_variable("os.environ/B", name, sizeof name));
    ASSERT_STREQ(name, "B");
    ASSERT_TRUE(!gw_entry_names_variable("${}", name, sizeof name));
}

TEST(addresses)
{
    static const struct {
        const char *url, *address, *host, *base, *name;
        bool tls;
    } table[] = {
        {"http://h", "h:80", "h", "/v1", "h:80", false},
        {"http://h:80", "h:80", "h", "/v1", "h:80", false},
        {"https://api.example", "api.example:443", "api.example", "/v1", "api.example:443", true},
        {"https://h:8443/openai/v1", "h:8443", "h:8443", "/openai/v1", "h:8443", true},
        {"http://h:81/", "h:81", "h:81", "", "h:81", false},
        {"http://h:81/v1//", "h:81", "h:81", "/v1", "h:81", false},
        {"http://[::1]:81/x", "[::1]:81", "[::1]:81", "/x", "[::1]:81", false},
        {"http://[::1]", "[::1]:80", "[::1]", "/v1", "[::1]:80", false},
        {"unix:/run/x.sock", "unix:/run/x.sock", "localhost", "/v1", "unix:/run/x.sock", false},
        {"url=http://h", "h:80", "h", "/v1", "h:80", false},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct gw_upstreams *l = parse_one(table[i].url);
        if (!l) test_fail(__FILE__, __LINE__, "%s: %s", table[i].url, why.msg);
        ASSERT_EQ(l->n, 1);
        ASSERT_STREQ(l->up[0].address, table[i].address);
        ASSERT_STREQ(l->up[0].host, table[i].host);
        ASSERT_STREQ(l->up[0].base, table[i].base);
        ASSERT_STREQ(l->up[0].name, table[i].name);
        ASSERT_EQ(l->up[0].tls, table[i].tls);
        gw_upstreams_free(l);
    }
}

TEST(fields)
{
    struct gw_upstreams *l = parse_one(
        "http://h:1/v1  name=a models=gpt-*,fast=llama-3:8b api_key=sk-1 weight=2.5 priority=1\t"
        "max_inflight=7 max_connections=9 health=/ping health_interval=100ms connect_timeout=1s "
        "first_byte_timeout=2s idle_timeout=3s total_timeout=4s ca_file=/ca cert_file=/c "
        "key_file=/k insecure=yes lmcache=true lmcache_separator=\" <\\\"|> \"");
    if (!l) test_fail(__FILE__, __LINE__, "%s", why.msg);
    const struct gw_upstream *u = &l->up[0];
    ASSERT_STREQ(u->name, "a");
    ASSERT_EQ(u->n_models, 2);
    ASSERT_STREQ(gw_upstream_rule(u, "gpt-4")->pattern, "gpt-*");
    ASSERT_STREQ(gw_upstream_rule(u, "fast")->sent, "llama-3:8b");
    ASSERT_TRUE(!gw_upstream_rule(u, "llama-3:8b"));
    ASSERT_STREQ(u->authorization, "Bearer sk-1");
    ASSERT_NEAR(u->weight, 2.5, 0);
    ASSERT_EQ(u->priority, 1);
    ASSERT_EQ(u->inflight_max, 7);
    ASSERT_EQ(u->connections_max, 9);
    ASSERT_STREQ(u->health, "/ping");
    ASSERT_EQ(u->health_interval_ms, 100);
    ASSERT_EQ(u->connect_timeout_ms, 1000);
    ASSERT_EQ(u->total_timeout_ms, 4000);
    ASSERT_TRUE(u->insecure && u->lmcache);
    ASSERT_STREQ(u->separator, " <\\\"|> ");
    gw_upstreams_free(l);
    l = parse_one("http://h");
    ASSERT_STREQ(l->up[0].health, "/v1/models");
    ASSERT_STREQ(l->up[0].separator, " # # ");
    ASSERT_EQ(l->up[0].idle_timeout_ms, 180000);
    ASSERT_TRUE(!l->up[0].authorization && !l->up[0].lmcache);
    gw_upstreams_free(l);
    l = parse_one("http://h health=off");
    ASSERT_TRUE(!l->up[0].health);
    gw_upstreams_free(l);
}

TEST(what_is_refused_and_never_with_the_key)
{
    static const char *const bad[] = {
        "",
        "h:80",
        "ftp://h",
        "http://",
        "http:///v1",
        "http://h:99999",
        "http://::1",
        "http://user:sk-secret@h",
        "http://h/?a=b",
        "http://h nonsense",
        "http://h unknown=1",
        "http://h weight=0",
        "http://h weight=-1",
        "http://h weight=nan",
        "http://h priority=x",
        "http://h max_inflight=-1",
        "http://h models=",
        "http://h models=a,,b",
        "http://h models=a=",
        "http://h name=",
        "http://h name=a/b",
        "http://h health=ping",
        "http://h idle_timeout=0",
        "http://h api_key=",
        "http://h api_key=\"sk-secret two\"",
        "http://h api_key=${NO_SUCH_VARIABLE_SECRET}",
        "http://h api_key_file=/nonexistent/sk-secret",
        "http://h api_key=sk-secret lmcache=perhaps",
        "http://h api_key=sk-secret client_organization=mine",
        "http://h paths=",
        "http://h paths=/files",
        "http://h paths=files/",
        "http://h paths=files,",
        "http://h paths=files,,batches",
        "http://h paths=files/*",
        "http://h paths=../files",
        "http://h paths=fi%6ces",
        "http://h api_key=sk-secret name=\"open",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct gw_upstreams *l = parse_one(bad[i]);
        if (l) test_fail(__FILE__, __LINE__, "accepted: %s", bad[i]);
        ASSERT_TRUE(strstr(why.msg, "entry 1"));
        ASSERT_TRUE(!strstr(why.msg, "sk-secret"));
    }
    const char *twins[] = {"http://h", "http://h:80/other"};
    ASSERT_TRUE(!parse(twins, 2));
    ASSERT_TRUE(strstr(why.msg, "entry 2"));
}

TEST(keys_come_from_files_and_variables)
{
    char path[] = "/tmp/kvb-upstream-XXXXXX", entry[128];
    int fd = mkstemp(path);
    ASSERT_EQ(write(fd, "sk-file\n", 8), 8);
    (void)close(fd);
    (void)snprintf(entry, sizeof entry, "http://h api_key_file=%s", path);
    struct gw_upstreams *l = parse_one(entry);
    (void)unlink(path);
    ASSERT_TRUE(l);
    ASSERT_STREQ(l->up[0].authorization, "Bearer sk-file");
    gw_upstreams_free(l);
    ASSERT_EQ(setenv("KVB_TEST_KEY", "sk-env", 1), 0);
    static const char *const forms[] = {"http://h api_key=${KVB_TEST_KEY}",
                                        "http://h api_key=os.environ/KVB_TEST_KEY"};
    for (size_t i = 0; i < 2; i++) {
        l = parse_one(forms[i]);
        ASSERT_TRUE(l);
        ASSERT_STREQ(l->up[0].authorization, "Bearer sk-env");
        gw_upstreams_free(l);
    }
}

TEST(workers)
{
    const char *good[] = {"10.0.0.7:8020", "http://h:1/", "unix:/run/w.sock", "[::1]:9",
                          "https://w:8443 api_key=sk-w ca_file=/ca insecure=false"};
    struct gw_config c = {.workers = {(char **)(uintptr_t)good, 5}};
    struct gw_upstreams *l = NULL;
    ASSERT_OK(gw_upstreams_parse(&c, true, &l, &why));
    ASSERT_STREQ(l->up[0].address, "10.0.0.7:8020");
    ASSERT_STREQ(l->up[1].address, "h:1");
    ASSERT_STREQ(l->up[2].address, "unix:/run/w.sock");
    ASSERT_STREQ(l->up[3].name, "[::1]:9");
    ASSERT_TRUE(!l->up[0].tls && !l->up[0].authorization && l->up[4].tls);
    ASSERT_STREQ(l->up[4].authorization, "Bearer sk-w");
    ASSERT_STREQ(l->up[4].ca_file, "/ca");
    gw_upstreams_free(l);
    static const char *const bad[] = {
        "",          "http://h:1/v2",       "http://h:1 name=x",   "http://h:1 paths=files",
        "ftp://h:1", "http://h:1 models=*", "http://h:1 api_key=", "unix:w.sock"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        c.workers = (struct gw_strs){(char **)(uintptr_t)&bad[i], 1};
        why = (struct err){0};
        if (gw_upstreams_parse(&c, true, &l, &why) == 0)
            test_fail(__FILE__, __LINE__, "accepted: %s", bad[i]);
        ASSERT_TRUE(strstr(why.msg, "workers, entry 1") != NULL);
    }
}

/* A path opens itself and what is below it, by whole segments. */
TEST(paths)
{
    static const struct {
        const char *path;
        bool some, all;
    } cases[] = {
        {"files", true, true},
        {"files/", true, true},
        {"files/f-1/content", true, true},
        {"filesystem", false, true},
        {"Files", false, true},
        {"file", false, true},
        {"fine_tuning", false, true},
        {"fine_tuning/jobs", true, true},
        {"fine_tuning/jobs/a", true, true},
        {"fine_tuning/jobs2", false, true},
        {"a/files", false, true},
        {"", false, true},
        {"files,fine_tuning", false, true},
        {"organization/keys", false, true},
    };
    const char *entries[] = {"http://a paths=files,fine_tuning/jobs", "http://b paths=*",
                             "http://c"};
    struct gw_upstreams *l = parse(entries, 3);
    if (!l) test_fail(__FILE__, __LINE__, "%s", why.msg);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ASSERT_EQ(gw_upstream_opens(&l->up[0], cases[i].path), cases[i].some);
        ASSERT_EQ(gw_upstream_opens(&l->up[1], cases[i].path), cases[i].all);
        ASSERT_EQ(gw_upstream_opens(&l->up[2], cases[i].path), false);
    }
    ASSERT_TRUE(!l->up[0].client_organization);
    gw_upstreams_free(l);
    l = parse_one("http://a client_organization=true");
    ASSERT_TRUE(l && l->up[0].client_organization);
    gw_upstreams_free(l);
}

TEST(files_that_others_may_read)
{
    char path[] = "/tmp/kvb-upstream-XXXXXX", entry[128];
    int fd = mkstemp(path);
    ASSERT_EQ(write(fd, "sk-file\n", 8), 8);
    static const char *const fields[] = {"api_key_file", "key_file", "ca_file"};
    for (size_t i = 0; i < 3; i++)
        for (unsigned mode = 0; mode < 8; mode++) {
            ASSERT_OK(fchmod(fd, 0600 | mode << (i == 0 ? 3 : 0)));
            (void)snprintf(entry, sizeof entry, "https://h %s=%s", fields[i], path);
            struct gw_upstreams *l = parse_one(entry);
            if (!l) test_fail(__FILE__, __LINE__, "%s", why.msg);
            if (mode && i < 2)
                ASSERT_STREQ(l->up[0].exposed, path);
            else
                ASSERT_TRUE(!l->up[0].exposed);
            gw_upstreams_free(l);
        }
    (void)close(fd);
    (void)unlink(path);
}

TEST(out_of_memory_everywhere)
{
    const char *entry[] = {"http://h:1/v1 name=a models=x,y=z api_key=k health=/p weight=2 "
                           "lmcache_separator=\" # \"",
                           "https://h2 api_key=${KVB_TEST_KEY} ca_file=/x"};
    ASSERT_EQ(setenv("KVB_TEST_KEY", "sk-env", 1), 0);
    for (unsigned n = 1;; n++) {
        ASSERT_TRUE(n < 10000);
        mem_fail_nth(n);
        struct gw_upstreams *l = parse(entry, 2);
        bool fired = mem_fail_fired();
        mem_fail_nth(0);
        ASSERT_TRUE(fired || l);
        gw_upstreams_free(l);
        if (!fired) break;
    }
}

TEST(mappings_lists_and_variables)
{
    static const char yaml[] = "upstreams:\n"
                               "  - http://a:1 weight=2\n"
                               "  - url: https://b\n"
                               "    name: bee\n"
                               "    models: [\"gpt-*\", fast=x]\n"
                               "    api_key: ${KVB_TEST_KEY}\n"
                               "    lmcache: true\n"
                               "    lmcache_separator: \" # \\\"# \"\n";
    char path[] = "/tmp/kvb-upstream-XXXXXX", config[64];
    int fd = mkstemp(path);
    ASSERT_EQ(write(fd, yaml, sizeof yaml - 1), sizeof yaml - 1);
    (void)close(fd);
    ASSERT_EQ(setenv("KVB_TEST_KEY", "sk-env", 1), 0);
    (void)snprintf(config, sizeof config, "--config=%s", path);
    char *argv[] = {"kvblend", config, NULL};
    char *none[] = {NULL}, *env[] = {"KVBLEND_UPSTREAM=http://c models=x,y;http://d "
                                     "lmcache_separator=\" ; \"",
                                     NULL};
    struct gw_config *c;
    struct gw_upstreams *l;
    struct buf problems = BUF_INIT;
    ASSERT_OK(gw_config_load(2, argv, none, &c, &problems));
    ASSERT_OK(gw_upstreams_parse(c, false, &l, NULL));
    ASSERT_EQ(l->n, 2);
    ASSERT_NEAR(l->up[0].weight, 2, 0);
    ASSERT_STREQ(l->up[1].name, "bee");
    ASSERT_EQ(l->up[1].n_models, 2);
    ASSERT_STREQ(l->up[1].authorization, "Bearer sk-env");
    ASSERT_STREQ(l->up[1].separator, " # \\\"# ");
    gw_upstreams_free(l);
    gw_config_free(c);
    ASSERT_OK(gw_config_load(1, argv, env, &c, &problems));
    ASSERT_OK(gw_upstreams_parse(c, false, &l, NULL));
    ASSERT_EQ(l->n, 2);
    ASSERT_EQ(l->up[0].n_models, 2);
    ASSERT_STREQ(l->up[1].separator, " ; ");
    gw_upstreams_free(l);
    gw_config_free(c);
    argv[1] = "--upstream=http://h weight=none";
    ASSERT_ERR(gw_config_load(2, argv, none, &c, &problems), -EINVAL);
    ASSERT_TRUE(strstr(buf_cstr(&problems), "weight"));
    buf_fini(&problems);
    (void)unlink(path);
}
