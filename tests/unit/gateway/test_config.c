#include "base/buf.h"
#include "base/mem.h"
#include "gateway/fleet/upstream.h"
#include "gateway/process/config.h"
#include "gateway/process/config_worker.h"
#include "tests/test.h"

#include <time.h>
#include <unistd.h>

static size_t n_of(const struct opts *o, const char *name)
{
    size_t n;
    (void)opt_list(o, name, &n);
    return n;
}

static const char *text_of(const struct opts *o, const char *name, size_t i)
{
    size_t n;
    char **texts = opt_list(o, name, &n);
    return i < n ? texts[i] : "";
}

static struct buf problems;

static int load(struct gw_config **c, char *const *envp, const char *flag, const char *value)
{
    char *argv[] = {"kvblend", (char *)flag, (char *)value, NULL};
    int argc = flag ? (value ? 3 : 2) : 1;
    buf_clear(&problems);
    return gw_config_load(argc, argv, envp, c, &problems);
}

/* Write text to a fresh file; its path is borrowed until the next call. */
static const char *file_with(const char *text)
{
    static char path[64];
    (void)snprintf(path, sizeof path, "/tmp/kvb-config-XXXXXX");
    int fd = mkstemp(path);
    ASSERT_TRUE(fd >= 0);
    ASSERT_EQ(write(fd, text, strlen(text)), strlen(text));
    (void)close(fd);
    return path;
}

TEST(defaults)
{
    struct gw_config *c;
    char *env[] = {NULL};
    ASSERT_OK(load(&c, env, NULL, NULL));
    ASSERT_EQ(c->listen.n, 1);
    ASSERT_STREQ(c->listen.v[0], "127.0.0.1:8010");
    ASSERT_EQ(c->max_body_bytes, 32 << 20);
    ASSERT_EQ(c->drain_timeout_ms, 120000);
    ASSERT_TRUE(!c->model && !c->admin_public);
    gw_config_free(c);
}

TEST(precedence)
{
    struct gw_config *c;
    const char *path = file_with("listen: [\"1.1.1.1:1\", \"1.1.1.1:2\"]\n"
                                 "limits: {queue_limit: 7, max_inflight: 9}\n"
                                 "drain:\n  timeout: 5\n");
    char config[128];
    (void)snprintf(config, sizeof config, "KVBLEND_CONFIG=%s", path);
    char *env[] = {config, "KVBLEND_QUEUE_LIMIT=8", "KVBLEND_API_KEY=a,b", NULL};
    ASSERT_OK(load(&c, env, "--max-inflight=11", NULL));
    ASSERT_EQ(c->listen.n, 2);
    ASSERT_STREQ(c->listen.v[1], "1.1.1.1:2");
    ASSERT_EQ(c->queue_limit, 8);
    ASSERT_EQ(c->max_inflight, 11);
    ASSERT_EQ(c->drain_timeout_ms, 5000);
    ASSERT_EQ(c->api_keys.n, 2);
    gw_config_free(c);
    ASSERT_OK(load(&c, env, "--listen", ":9"));
    ASSERT_EQ(c->listen.n, 1);
    ASSERT_STREQ(c->listen.v[0], ":9");
    gw_config_free(c);
    (void)unlink(path);
}

static void expect_problem(const char *yaml, const char *what)
{
    struct gw_config *c;
    const char *path = file_with(yaml);
    char *env[] = {NULL};
    int r = load(&c, env, "--config", path);
    (void)unlink(path);
    ASSERT_ERR(r, -EINVAL);
    if (!strstr(buf_cstr(&problems), what))
        test_fail(__FILE__, __LINE__, "no \"%s\" in: %s", what, buf_cstr(&problems));
}

TEST(problems_name_line_key_and_expectation)
{
    expect_problem("\nlistn: x\n", ":2: listn: unknown key; expected one like \"listen\"");
    expect_problem("worker:\n  ram: lots\n", ":2: worker.ram: expected a size");
    expect_problem("worker:\n  nvme: /x\n",
                   ":2: worker.nvme: expected PATH:SIZE[:SIZE/d], found \"/x\"");
    expect_problem("worker:\n  namespace: [a=ttl:1h, b]\n",
                   ":2: worker.namespace: expected NS=ram");
    expect_problem("worker: {namespace: [a=disk:1]}\n",
                   ":1: worker.namespace: expected NS=ram:SIZE");
    expect_problem("worker: {ttl: 1h}\n", ":1: worker.ttl: was removed; namespace says it");
    expect_problem("worker: {secret: \"file:/nonexistent\"}\n",
                   ":1: worker.secret: \"/nonexistent\" ");
    expect_problem("worker:\n  dtype: f64\n",
                   "expected auto|f32|bf16|fp8|int8|file, found \"f64\"");
    expect_problem("worker:\n  ratio: 1.5\n", "worker.ratio: expected a value from 0 to 1");
    expect_problem("limits: {max_inflight: 65537}\n", "expected a value from 0 to 65536");
    expect_problem("limits: 3\n", "limits: expected a section of keys");
    expect_problem("drain: {timeout: [1, 2]}\n", "drain.timeout: expected one value, found a list");
    expect_problem("model: {a: b}\n", "model: expected a value, found a mapping");
    expect_problem("listen: [{a: b}]\n", "listen: expected plain texts");
    expect_problem("- a\n", "found a list");
    expect_problem("admin: {public: perhaps}\n", "expected true or false");
    expect_problem("a: [\n", "not YAML");
    expect_problem("listen: 8010\n", "expected HOST:PORT");
    expect_problem("model: /does/not/exist\n", "model: expected a readable");
    expect_problem("fallback: {model: m}\n", "fallback.model: expected with fallback.upstream");
    expect_problem("fallback: {upstream: x}\nupstreams: [{url: \"http://h:1\", name: y}]\n",
                   "fallback.upstream: expected the name of an entry of upstreams, found \"x\"");
    expect_problem("keys: {list: [\"${KVB_NOT_SET}\"]}\n", "variable KVB_NOT_SET is not set");
    expect_problem("a: 1\nb: 2\n",
                   ":2: b: unknown key"); /* all are reported, not the first alone */
}

#define MEASURED "was removed; kvblend-bench quality and throughput measure map_reduce"

TEST(an_old_configuration_gets_messages)
{
    struct gw_config *c;
    char *none[] = {NULL};
    expect_problem("strategy:\n  parallel: 4\n", ":2: strategy.parallel: " MEASURED);
    expect_problem("strategy:\n  map_prompt: x\n  map_tokens: 9\n", ":3: strategy.map_tokens: ");
    expect_problem("strategy: {reduce_prompt: [a]}\n", ":1: strategy.reduce_prompt: " MEASURED);
    expect_problem("strategy: {new: 1}\n", ":1: strategy.new: unknown key");
    expect_problem("worker:\n  policy: gdsf\n", ":2: worker.policy: gdsf was removed; lru is");
    expect_problem("worker:\n  ram_policy: arc\n", ":2: worker.ram_policy: was removed; policy ");
    expect_problem("worker: {nvme_policy: arc}\n",
                   "policy says it for RAM and NVMe; the new line: policy: arc\n");
    expect_problem("worker:\n  ttl: 1h\n",
                   "NS * is all; the new line: namespace: [\"*=ttl:1h\"]\n");
    expect_problem("worker:\n  secret_file: /s\n",
                   "secret takes file:PATH; the new line: secret: file:/s\n");
    expect_problem("worker:\n  ttl: [1h]\n", "NS * is all\n");
    expect_problem("timeouts: {client_body: 5s}\n", ":1: timeouts.client_body: was removed; time");
    ASSERT_ERR(load(&c, none, "--rerank-prompt", "x"), -EINVAL);
    ASSERT_TRUE(strstr(buf_cstr(&problems), "--rerank-prompt: " MEASURED) != NULL);
    expect_problem("worker:\n  strategy: hybrid\n",
                   ":2: worker.strategy: hybrid was removed; use qs");
    expect_problem("worker:\n  mass: 0.5\n", ":2: worker.mass: was removed; ratio says");
    char *env[] = {"KVBLEND_MAP_TOKENS=9", "KVBLEND_WORKER_SECRET_FILE=/s", NULL};
    ASSERT_ERR(load(&c, env, "--listen", ":1"), -EINVAL);
    ASSERT_TRUE(strstr(buf_cstr(&problems), "environment variable KVBLEND_MAP_TOKENS: " MEASURED) !=
                NULL);
    ASSERT_TRUE(strstr(buf_cstr(&problems), "KVBLEND_WORKER_SECRET_FILE: was removed; ") != NULL);
}

/* YAML has a key once; of two values one would be dropped in silence. */
TEST(a_key_stands_once_in_the_file)
{
    expect_problem("listen: :1\nlisten: :2\n", ":2: listen: expected once, found again");
    expect_problem("limits: {rpm: 1, rpm: 2}\n", ":1: limits.rpm: expected once");
    expect_problem("limits: {rpm: 1}\nlog: {level: info}\nlimits:\n  tpm: 2\n", ":3: limits: exp");
    expect_problem("a: {b: 1}\na: {b: 1}\n", ":2: a: expected once");
    expect_problem("keys:\n  list:\n    - {key: a, id: x, id: y}\n", ":3: keys.list, id: expected");
    expect_problem("keys:\n  list:\n    - {key: a, key: b}\n", ":3: keys.list, key: expected");
    struct gw_config *c;
    char *env[] = {NULL};
    const char *path = file_with("limits: {rpm: 1}\nlog: {level: info}\ndrain: {delay: 1}\n"
                                 "keys:\n  list:\n    - {key: a, id: x}\n    - {key: b, id: x}\n");
    ASSERT_OK(load(&c, env, "--config", path));
    (void)unlink(path);
    gw_config_free(c);
}

TEST(what_the_worker_would_refuse)
{
    struct gw_config *c;
    char *env[] = {NULL};
    static const char *const bad[][2] = {
        {"--strategy", "best"}, {"--kv-dtype", "f64"},  {"--dtype", "f16"},  {"--guard", "1.1"},
        {"--guard", "0.1:0"},   {"--nvme", "/x"},       {"--nvme", ":1GiB"}, {"--nvme", "/x:lots"},
        {"--nvme", "/x:0"},     {"--nvme", "/dev/null"}};
    static const char *const good[][2] = {{"--strategy", "side"},  {"--strategy", "full"},
                                          {"--kv-dtype", "q8"},    {"--kv-dtype", "f16"},
                                          {"--guard", "0.3:0.01"}, {"--nvme", "/a:b:1GiB"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ASSERT_ERR(load(&c, env, bad[i][0], bad[i][1]), -EINVAL);
        ASSERT_TRUE(strstr(buf_cstr(&problems), "expected") != NULL);
    }
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        ASSERT_OK(load(&c, env, good[i][0], good[i][1]));
        gw_config_free(c);
    }
}

/* A warning, not a problem: variables are others', too. */
TEST(variables_that_nobody_reads)
{
    struct gw_config *c;
    char *env[] = {"KVBLEND_RATOI=0.2",         "KVBLEND_PORT=1",
                   "KVBLEND_WORKER_DEVICE=cpu", "KVBLEND_ADMIN=unix:/x",
                   "KVBLEND_ORDER=fifo",        "KVBLEND_MY_TOKEN=x",
                   "KVBLEND_OTHER_TOKEN=y",     "OTHER_RATOI=1",
                   "KVBLEND_CHECK=1",           NULL};
    (void)setenv("KVBLEND_MY_TOKEN", "x", 1);
    const char *path = file_with("keys:\n  list: [\"${KVBLEND_MY_TOKEN}\"]\n");
    char config[80];
    (void)snprintf(config, sizeof config, "--config=%s", path);
    char *argv[] = {"kvblend", config, "--upstream=http://h:1 api_key=${KVBLEND_OTHER_TOKEN}",
                    NULL};
    (void)setenv("KVBLEND_OTHER_TOKEN", "y", 1);
    buf_clear(&problems);
    ASSERT_OK(gw_config_load(3, argv, env, &c, &problems));
    (void)unlink(path);
    ASSERT_STREQ(buf_cstr(&problems),
                 "warning: environment variable KVBLEND_RATOI is unknown; expected one like "
                 "KVBLEND_RATIO\n"
                 "warning: environment variable KVBLEND_PORT is unknown\n"
                 "warning: environment variable KVBLEND_CHECK is unknown\n");
    gw_config_free(c);
}

TEST(flags_are_checked)
{
    struct gw_config *c;
    char *env[] = {NULL};
    ASSERT_ERR(load(&c, env, "--nonsense", "1"), -EINVAL);
    ASSERT_ERR(load(&c, env, "--model", NULL), -EINVAL);
    ASSERT_ERR(load(&c, env, "stray", NULL), -EINVAL);
    ASSERT_ERR(load(&c, env, "--max-body", "3"), -EINVAL);
    ASSERT_ERR(load(&c, env, "--registry-api-key", "a\r\nX: y"), -EINVAL);
    ASSERT_OK(load(&c, env, "-h", NULL));
    ASSERT_TRUE(c->help);
    gw_config_free(c);
}

TEST(secrets_come_from_variables)
{
    struct gw_config *c;
    char *env[] = {NULL};
    (void)setenv("KVB_TEST_SECRET", "s3", 1);
    const char *path = file_with("keys:\n  list:\n    - ${KVB_TEST_SECRET}\n    - "
                                 "os.environ/KVB_TEST_SECRET\n");
    int r = load(&c, env, "--config", path);
    (void)unlink(path);
    ASSERT_OK(r);
    ASSERT_EQ(c->api_keys.n, 2);
    ASSERT_STREQ(c->api_keys.v[0], "s3");
    ASSERT_STREQ(c->api_keys.v[1], "s3");
    gw_config_free(c);
}

TEST(workers_in_a_variable)
{
    struct gw_config *c;
    char *env[] = {"KVBLEND_WORKER=h:1,http://h:2 api_key=a;unix:/w api_key=\"b\"", NULL};
    ASSERT_OK(load(&c, env, NULL, NULL));
    ASSERT_EQ(c->workers.n, 3);
    ASSERT_STREQ(c->workers.v[1], "http://h:2 api_key=a");
    gw_config_free(c);
    char *none[] = {NULL};
    const char *path =
        file_with("workers:\n  - {url: \"http://h:2\", api_key: \"a;,b\"}\n  - h:1\n");
    int r = load(&c, none, "--config", path);
    (void)unlink(path);
    ASSERT_OK(r);
    ASSERT_STREQ(c->workers.v[0], "http://h:2 api_key=\"a;,b\"");
    ASSERT_STREQ(c->workers.v[1], "h:1");
    gw_config_free(c);
}

/* A hostile file ends at the first brackets too many, whatever their kind and place. */
TEST(brackets_without_end)
{
    static const char *const forms[] = {"[", "{", "{a: ", "keys: {list: [", "- ", "x: [", "? "};
    struct gw_config *c;
    char *env[] = {NULL};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        struct buf b = BUF_INIT;
        size_t n = strlen(forms[i]);
        while (b.len < 100000 * n)
            ASSERT_OK(buf_add(&b, forms[i], n));
        struct timespec from, to;
        (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
        const char *path = file_with(buf_cstr(&b));
        ASSERT_EQ(load(&c, env, "--config", path), -EINVAL);
        (void)unlink(path);
        (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
        ASSERT_TRUE(to.tv_sec - from.tv_sec < 2); /* quadratic time is minutes */
        ASSERT_TRUE(strstr(buf_cstr(&problems), "nested too deeply: more than 16 levels") ||
                    strstr(buf_cstr(&problems), "not YAML: "));
        buf_fini(&b);
    }
}

TEST(nul_bytes_are_refused)
{
    static const char *const bad[] = {"model: \"/m\\0x\"",
                                      "keys: {list: [\"k\\0 id=x\"]}",
                                      "keys: {list: [{key: k, id: \"x\\0y\"}]}",
                                      "\"log\\0x\": {}",
                                      "upstreams: [\"http://h:1\\0 insecure=true\"]",
                                      "listen: \"\\0\""};
    struct gw_config *c;
    char *env[] = {NULL};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const char *path = file_with(bad[i]);
        ASSERT_EQ(load(&c, env, "--config", path), -EINVAL);
        (void)unlink(path);
        ASSERT_TRUE(strstr(buf_cstr(&problems), ":1: a text holds a NUL byte") != NULL);
    }
}

TEST(keys_with_fields)
{
    struct gw_config *c;
    char *env[] = {NULL};
    (void)setenv("KVB_TEST_KEY", "hidden", 1);
    const char *path =
        file_with("keys:\n  list:\n    - plain\n"
                  "    - {id: x, key: \"${KVB_TEST_KEY}\", models: [a*, b], rpm: 6}\n"
                  "    - hash: sha256:aa\n      id: y\n    - last\n"
                  "limits: {rpm: 5, tpm: 1000, key_concurrency: 2}\n"
                  "cors: {origins: [\"https://*.a.example\"]}\n");
    ASSERT_OK(load(&c, env, "--config", path));
    ASSERT_EQ(c->api_keys.n, 4);
    ASSERT_STREQ(c->api_keys.v[0], "plain");
    ASSERT_STREQ(c->api_keys.v[1], "hidden id=x models=a*,b rpm=6");
    ASSERT_STREQ(c->api_keys.v[2], "sha256:aa id=y");
    ASSERT_STREQ(c->api_keys.v[3], "last");
    ASSERT_TRUE(c->key_rpm == 5 && c->key_tpm == 1000 && c->key_concurrency == 2);
    ASSERT_EQ(c->cors_origins.n, 1);
    (void)unlink(path);
    gw_config_free(c);
    static const char *const bad[] = {
        "- {id: x}\n",          "- {key: a b}\n", "- {key: a, id: {b: c}}\n", "- {key: [a, b]}\n",
        "- {key: a, id: ''}\n", "- [a]\n",        "- {key: a, m: [[b]]}\n"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char text[200];
        (void)snprintf(text, sizeof text, "keys:\n  list:\n    %s    - z\n", bad[i]);
        path = file_with(text);
        ASSERT_EQ(load(&c, env, "--config", path), -EINVAL);
        (void)unlink(path);
        ASSERT_TRUE(strstr(buf_cstr(&problems), ":3: keys.list: expected ") != NULL);
    }
    ASSERT_EQ(load(&c, env, "--cors-origin", "app.example"), -EINVAL);
    ASSERT_TRUE(strstr(buf_cstr(&problems), "cors.origins: expected https://HOST") != NULL);
}

TEST(addresses)
{
    static const char *const bad[] = {"8010",   "h",     "h:",    "h:x", "h:70000",
                                      "::1:80", "a/b:1", "unix:", ""};
    static const char *const good[] = {"h:80", "[::1]:80", ":80", "http://h:80/", "unix:/p"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct buf b = BUF_INIT;
        ASSERT_ERR(gw_parse_address(bad[i], &b), -EINVAL);
        buf_fini(&b);
    }
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct buf b = BUF_INIT;
        ASSERT_OK(gw_parse_address(good[i], &b));
        buf_fini(&b);
    }
}

static const struct gw_worker_share alone = {0, 1, NULL}, second = {1, 2, NULL};

/* Secrets stay off the worker's command line. */
TEST(tiers_of_the_worker)
{
    struct gw_config *c;
    char *env[] = {"KVBLEND_SECRET=s3cret", "KVBLEND_ORDER=fifo", NULL};
    const char *args[80];
    struct arena a;
    arena_init(&a);
    ASSERT_OK(unsetenv("KVBLEND_WORKER_SECRET"));
    char *argv[] = {"kvblend",
                    "--nvme=/x:1GiB",
                    "--namespace=a=ram:1MiB,nvme:2MiB",
                    "--namespace=b=ram:1MiB",
                    "--worker-access-log=/log",
                    "--redis=redis://:pw@h1,h2:7",
                    "--redis=redis://h3",
                    "--policy=arc",
                    NULL};
    ASSERT_OK(gw_config_load(8, argv, env, &c, &problems));
    static const char *const want[] = {"--log-level=info",
                                       "--nvme=/x:1GiB",
                                       "--policy=arc",
                                       "--namespace=a=ram:1MiB,nvme:2MiB",
                                       "--namespace=b=ram:1MiB",
                                       "--access-log=/log",
                                       "--order=fifo"};
    const int n = sizeof want / sizeof want[0];
    ASSERT_EQ(gw_config_worker_args(c, &alone, &a, args, 80), n);
    for (int i = 0; i < n; i++)
        ASSERT_STREQ(args[i], want[i]);
    ASSERT_ERR(gw_config_worker_args(c, &alone, &a, args, 5), -ERANGE);
    arena_fini(&a);
    ASSERT_OK(gw_config_worker_env(c));
    ASSERT_STREQ(getenv("KVBLEND_WORKER_SECRET"), "s3cret");
    ASSERT_STREQ(getenv("KVBLEND_WORKER_REDIS"), "redis://:pw@h1,h2:7 redis://h3");
    gw_config_free(c);
    char *lists[] = {"KVBLEND_NAMESPACE=a=ram:1MiB,nvme:2MiB b=ttl:1h", NULL};
    ASSERT_OK(load(&c, lists, NULL, NULL));
    ASSERT_EQ(n_of(c->opts, "worker.namespace"), 2);
    ASSERT_STREQ(text_of(c->opts, "worker.namespace", 0), "a=ram:1MiB,nvme:2MiB");
    gw_config_free(c);
    static const char *const bad[][2] = {
        {"--namespace", "a=ttl:soon"}, {"--policy", "fifo"}, {"--nvme", "/x:1G:lots/d"}};
    for (size_t i = 0; i < 3; i++) {
        char *none[] = {NULL};
        buf_clear(&problems);
        ASSERT_ERR(load(&c, none, bad[i][0], bad[i][1]), -EINVAL);
        ASSERT_TRUE(strstr(buf_cstr(&problems), bad[i][0]));
    }
    buf_fini(&problems);
}

/* Its boolean options take no word of their own: "--sandbox on" would keep it from starting. */
TEST(switches_of_the_worker_are_one_word)
{
    struct gw_config *c;
    char *env[] = {"KVBLEND_STRATEGY=always", NULL};
    const char *args[80];
    struct arena a;
    arena_init(&a);
    ASSERT_OK(load(&c, env, "--sandbox", "on"));
    ASSERT_EQ(gw_config_worker_args(c, &alone, &a, args, 80), 3);
    ASSERT_STREQ(args[1], "--strategy=always");
    ASSERT_STREQ(args[2], "--sandbox=on");
    arena_fini(&a);
    gw_config_free(c);
    ASSERT_ERR(load(&c, env, "--sandbox", "maybe"), -EINVAL);
    buf_fini(&problems);
}

TEST(worker_arguments_and_restart_keys)
{
    struct gw_config *a, *b;
    char *env[] = {"KVBLEND_THREADS=2", NULL}, *none[] = {NULL};
    const char *args[80];
    struct arena memory;
    struct buf keys = BUF_INIT;
    arena_init(&memory);
    ASSERT_OK(load(&a, env, "--ram", "2GiB"));
    ASSERT_EQ(gw_config_worker_args(a, &alone, &memory, args, 80), 3);
    ASSERT_STREQ(args[1], "--ram=2GiB");
    ASSERT_STREQ(args[2], "--threads=2");
    ASSERT_OK(load(&b, none, "--queue-limit", "3"));
    ASSERT_EQ(opts_restart_keys(a->opts, b->opts, &keys), 2);
    ASSERT_STREQ(buf_cstr(&keys), "worker.ram,worker.threads");
    buf_fini(&keys);
    gw_config_free(a);
    gw_config_free(b);
    arena_fini(&memory);
    buf_fini(&problems);
}

TEST(workers_share_cores_but_no_file)
{
    struct gw_config *c;
    char *env[] = {"KVBLEND_WORKER_COUNT=2", NULL};
    const char *args[80];
    struct arena a;
    arena_init(&a);
    ASSERT_OK(load(&c, env, "--nvme", "/a:b:1GiB"));
    ASSERT_EQ(gw_config_worker_args(c, &second, &a, args, 80), 3);
    ASSERT_STREQ(args[1], "--nvme=/a:b.1:1073741824");
    ASSERT_TRUE(strncmp(args[2], "--threads=", 10) == 0);
    gw_config_free(c);
    arena_fini(&a);
    buf_fini(&problems);
}

static void expect_args(const struct gw_config *c, const struct gw_worker_share *share,
                        const char *const *want, int n)
{
    const char *args[80];
    struct arena a;
    arena_init(&a);
    ASSERT_EQ(gw_config_worker_args(c, share, &a, args, 80), n + 1);
    for (int i = 0; i < n; i++)
        ASSERT_STREQ(args[1 + i], want[i]);
    arena_fini(&a);
}

/* What is hard for the machine stays so however many GPUs it has. */
TEST(workers_of_several_gpus_share_budgets)
{
    struct gw_config *c;
    char *env[] = {"KVBLEND_DEVICE=cuda:0,2", "KVBLEND_NVME=/a:4GiB:6GiB/d", "KVBLEND_THREADS=3",
                   NULL};
    const struct gw_worker_share of_gpu = {1, 2, "cuda:2"}, only = {0, 1, "cpu"};
    ASSERT_OK(load(&c, env, "--ram", "2GiB"));
    expect_args(c, &of_gpu,
                (const char *const[]){"--ram=1073741824", "--nvme=/a.1:2147483648:3221225472/d",
                                      "--threads=3", "--device=cuda:2"},
                4);
    expect_args(c, &only,
                (const char *const[]){"--ram=2147483648", "--nvme=/a:4GiB:6GiB/d", "--threads=3",
                                      "--device=cpu"},
                4);
    gw_config_free(c);
    char *none[] = {NULL};
    ASSERT_OK(load(&c, none, "--device", "auto"));
    expect_args(c, &only, (const char *const[]){"--ram=1073741824", "--device=cpu"}, 2);
    gw_config_free(c);
    ASSERT_OK(load(&c, none, "--device", "cuda:1"));
    expect_args(c, &alone, (const char *const[]){"--device=cuda:1"}, 1);
    gw_config_free(c);
    buf_fini(&problems);
}

TEST(devices_have_a_form)
{
    struct gw_config *c;
    static const char *const bad[] = {"cuda:0+", "cuda:0+0",  "cuda:+1",  "cuda:0+1,1", "cuda:0++1",
                                      "cuda:x",  "cuda:",     "cuda:0,0", "cuda:0,",    "cuda:-1",
                                      "cuda:1x", "cuda:0 1",  "gpu",      "cpu:0",      "auto:0",
                                      "cuda0",   "cuda:1000", "",         "cuda,0"};
    static const char *const good[] = {"auto",       "cpu",      "cuda",     "cuda:0",
                                       "cuda:0,1,3", "cuda:999", "cuda:0+1", "cuda:0+1,2+3,7"};
    char *env[] = {NULL}, *two[] = {"KVBLEND_WORKER_COUNT=2", NULL};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ASSERT_ERR(load(&c, env, "--device", bad[i]), -EINVAL);
        ASSERT_TRUE(
            strstr(buf_cstr(&problems), "--device: expected auto|cpu|cuda[:N[+N…],…], found"));
    }
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        ASSERT_OK(load(&c, env, "--device", good[i]));
        gw_config_free(c);
    }
    for (size_t i = 0; i < 2; i++) {
        ASSERT_ERR(load(&c, two, "--device", i ? "auto" : "cuda:0,1"), -EINVAL);
        ASSERT_TRUE(strstr(buf_cstr(&problems), "worker.count: "));
    }
    ASSERT_OK(load(&c, two, "--device", "cuda:1"));
    gw_config_free(c);
    buf_fini(&problems);
}
