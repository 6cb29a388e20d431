/* The worker's options of the tiers, and its access log. */
#include "base/buf.h"
#include "base/clock.h"
#include "tests/test.h"
#include "worker/opts.h"
#include "worker/opts_table.h"
#include "worker/worker.h"
#include "worker/kvlog.h"

#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ARGS_MAX = 24 };

/* argv from strings that may be written to. */
static int args_of(char **argv, const char *first, va_list ap)
{
    int n = 0;
    argv[n++] = mem_strdup("kvblend-worker");
    argv[n++] = mem_strdup("--model=/m");
    for (const char *s = first; s; s = va_arg(ap, const char *))
        argv[n++] = mem_strdup(s);
    argv[n] = NULL;
    return n;
}

static void args_free(char **argv)
{
    while (*argv)
        mem_free(*argv++);
}

static int read_opts(struct wk_opts *o, struct err *err, const char *first, ...)
{
    char *argv[ARGS_MAX];
    va_list ap;
    va_start(ap, first);
    int n = args_of(argv, first, ap);
    va_end(ap);
    *err = (struct err){0};
    int rc = wk_opts_read(n, argv, o, err);
    args_free(argv);
    return rc;
}

static void no_env(void)
{
    ASSERT_OK(unsetenv("KVBLEND_WORKER_SECRET"));
    ASSERT_OK(unsetenv("KVBLEND_WORKER_REDIS"));
    ASSERT_OK(unsetenv("KVBLEND_TIER_WAIT"));
    ASSERT_OK(unsetenv("KVBLEND_GEMM"));
}

TEST(removed_options_say_what_to_use)
{
    static const struct {
        const char *flag, *value, *says;
    } gone[] = {{"--strategy", "static", "static was removed; use side"},
                {"--policy", "clock", "clock was removed; lru is the default"},
                {"--nvme-policy", "lru", "was removed; policy says it"},
                {"--ttl-ns", "a=1h", "was removed; namespace says it"},
                {"--ttl", "1h", "was removed; namespace says it"},
                {"--quota", "a=ram:1MiB", "was removed; namespace says it"},
                {"--secret-file", "/x", "was removed; secret takes file:PATH"},
                {"--controller", "off", "was removed; off is strategy: always"},
                {"--decision-log", "/x", "was removed; access_log has"},
                {"--nvme-write-budget", "1G", "was removed; nvme says it"},
                {"--tier-wait", "1s", "was removed; which way is faster"},
                {"--gemm", "auto", "was removed; the variable KVBLEND_GEMM"},
                {"--weights", "fp8", "was removed; dtype says it"},
                {"--registry-group", "a", "was removed; the URL says"},
                {"--exit-on-stdin-eof", "on", "was removed; the variable"},
                {"--strategy", "hybrid", "hybrid was removed; use qs"},
                {"--mass", "0.5", "was removed; ratio says how many"},
                {"--min-ratio", "0.1", "was removed; ratio says how many"}};
    struct wk_opts o;
    struct err err;
    no_env();
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++) {
        ASSERT_ERR(read_opts(&o, &err, gone[i].flag, gone[i].value, NULL), -EINVAL);
        if (!strstr(err.msg, gone[i].says)) test_fail(__FILE__, __LINE__, "%s", err.msg);
    }
}

/* Each of the table is an option here, too, with the same default. */
TEST(the_gateways_table)
{
    struct opts *o;
    size_t n = 0;
    ASSERT_OK(opts_create(wk_opts_table, &o));
    for (const struct opt_def *d = wk_opts_table; d->name; d++, n++)
        ASSERT_TRUE(d->help && !d->positional && !d->key && !opt_given(o, d->name));
    ASSERT_TRUE(n > 20);
    opts_destroy(o);
}

TEST(order_of_the_queue)
{
    struct wk_opts o;
    struct err err;
    no_env();
    ASSERT_OK(read_opts(&o, &err, NULL));
    ASSERT_EQ(o.order, POL_ORDER_SJF);
    wk_opts_fini(&o);
    static const char *const order[POL_ORDER_COUNT] = {"fifo", "sjf", "edf"};
    for (int i = 0; i < POL_ORDER_COUNT; i++) {
        ASSERT_OK(read_opts(&o, &err, "--order", order[i], NULL));
        ASSERT_EQ((int)o.order, i);
        wk_opts_fini(&o);
    }
    ASSERT_ERR(read_opts(&o, &err, "--order", "lifo", NULL), -EINVAL);
}

TEST(codecs)
{
    struct wk_opts o;
    struct err err;
    no_env();
    ASSERT_OK(read_opts(&o, &err, "--nvme", "/tmp/x:1GiB", "--codec", "q8", NULL));
    ASSERT_TRUE(o.tiers.nvme_q8 && !o.tiers.redis_q8);
    wk_opts_fini(&o);
    ASSERT_OK(read_opts(&o, &err, "--redis", "redis://h", "--codec=q8", NULL));
    ASSERT_TRUE(!o.tiers.nvme_q8 && o.tiers.redis_q8);
    wk_opts_fini(&o);
    ASSERT_ERR(read_opts(&o, &err, "--codec", "q8", NULL), -EINVAL);
    ASSERT_STREQ(err.msg, "--codec: there is no --nvme and no --redis");
}

TEST(memory_of_a_gpu)
{
    static const char *const device = "--device=cuda";
    struct wk_opts o;
    struct err err;
    no_env();
    ASSERT_OK(read_opts(&o, &err, "--kv-pages=1GiB", NULL));
    ASSERT_EQ(o.tiers.gpu_bytes, 0); /* the CPU has no such tier */
    ASSERT_EQ(o.kv_pages_bytes, 1u << 30);
    wk_opts_fini(&o);
    ASSERT_OK(read_opts(&o, &err, device, NULL));
    ASSERT_EQ(o.tiers.gpu_bytes, FUS_KV_AUTO);
    wk_opts_fini(&o);
    ASSERT_OK(read_opts(&o, &err, device, "--kv-pages=1GiB", NULL));
    ASSERT_EQ(o.tiers.gpu_bytes, 1u << 30);
    wk_opts_fini(&o);
    ASSERT_OK(read_opts(&o, &err, device, "--kv-pages=auto:1MiB", NULL));
    ASSERT_EQ(o.tiers.gpu_bytes, FUS_KV_AUTO);
    ASSERT_EQ(o.tiers.gpu_reserve_bytes, 1 << 20);
    wk_opts_fini(&o);
    ASSERT_OK(read_opts(&o, &err, "--device=cuda:1", "--kv-pages", "3GiB:1GiB", NULL));
    ASSERT_EQ(o.tiers.gpu_bytes, 3ull << 30);
    wk_opts_fini(&o);
    ASSERT_ERR(read_opts(&o, &err, "--kv-pages=2GiB:1GiB", NULL), -EINVAL);
    ASSERT_STREQ(err.msg, "--kv-pages: a reserve needs --device cuda");
    ASSERT_ERR(read_opts(&o, &err, device, "--gpu=1GiB", NULL), -EINVAL);
    ASSERT_TRUE(strstr(err.msg, "--gpu: was removed; kv_pages") != NULL);
    ASSERT_ERR(read_opts(&o, &err, device, "--kv-pages=1GiB:", NULL), -EINVAL);
    ASSERT_ERR(read_opts(&o, &err, device, "--kv-pages=much", NULL), -EINVAL);
    ASSERT_TRUE(strstr(err.msg, "much") != NULL);
    ASSERT_ERR(read_opts(&o, &err, device, "--kv-pages=0", NULL), -EINVAL);
}

TEST(a_worker_computes_on_one_device)
{
    static const char *const several[] = {"--device=auto", "--device=cuda:0,1"};
    struct wk_opts o;
    struct err err;
    no_env();
    for (size_t i = 0; i < 2; i++) {
        ASSERT_ERR(read_opts(&o, &err, several[i], NULL), -EINVAL);
        ASSERT_TRUE(strstr(err.msg, "computes on one device") != NULL);
    }
    ASSERT_ERR(read_opts(&o, &err, "--device=cuda:x", NULL), -EINVAL);
    ASSERT_ERR(read_opts(&o, &err, "--device=cuda:1", "--sandbox", NULL), -EINVAL);
    ASSERT_TRUE(strstr(err.msg, "exclude each other") != NULL);
}

TEST(tiers_by_flags)
{
    struct wk_opts o;
    struct err err;
    no_env();
    ASSERT_OK(read_opts(&o, &err, "--ram=64MiB", "--nvme=/tmp/a:b:2GiB:1GiB/d", "--redis",
                        "redis://:pw@h1:7", "--redis=redis://h2", "--policy=arc",
                        "--namespace=acme=ram:1MiB,nvme:2MiB", "--namespace=o/i=nvme:3MiB,ttl:0",
                        "--namespace=*=ttl:2h", "--namespace=/acme=ttl:5m,contexts:off",
                        "--secret=x", "--access-log=/tmp/log", NULL));
    const struct wk_tier_opts *t = &o.tiers;
    ASSERT_STREQ(t->nvme_path, "/tmp/a:b");
    ASSERT_EQ(t->nvme_bytes, 2ull << 30);
    ASSERT_EQ(t->redis->n_hosts, 2);
    ASSERT_STREQ(t->redis->password, "pw");
    ASSERT_EQ(t->policy, EVICT_ARC);
    ASSERT_EQ(t->n_limits, 3);
    ASSERT_STREQ(t->limits[0].ns, "acme");
    ASSERT_EQ(t->limits[0].ram_bytes, 1 << 20);
    ASSERT_EQ(t->limits[0].nvme_bytes, 2 << 20);
    ASSERT_TRUE(!t->limits[0].has_ttl);
    ASSERT_STREQ(t->limits[1].ns, "o\x1fi");
    ASSERT_EQ(t->limits[1].ram_bytes, 0);
    ASSERT_TRUE(t->limits[1].has_ttl && t->limits[1].ttl_ms == 0); /* for ever */
    ASSERT_EQ(t->ttl_ms, 7200000);
    ASSERT_EQ(t->limits[2].ttl_ms, 300000);
    ASSERT_TRUE(t->limits[2].contexts_off && !t->limits[1].contexts_off && !t->contexts_off);
    ASSERT_STREQ(t->limits[2].ns, "\x1f"
                                  "acme"); /* a body's alone */
    ASSERT_EQ(t->nvme_write_bytes_per_day, 1 << 30);
    ASSERT_STREQ(t->access_log, "/tmp/log");
    ASSERT_TRUE(t->secret[0] && t->secret[1]);
    wk_opts_fini(&o);

    ASSERT_OK(read_opts(&o, &err, NULL)); /* none of it */
    ASSERT_TRUE(!o.tiers.nvme_path && !o.tiers.redis && !o.tiers.access_log);
    ASSERT_EQ(o.tiers.secret[0] | o.tiers.secret[1], 0);
    ASSERT_EQ(o.tiers.policy, EVICT_LRU);
    wk_opts_fini(&o);
}

TEST(places_on_a_drive)
{
    static const struct {
        const char *text;
        size_t path_len;
        uint64_t bytes, per_day;
    } good[] = {{"/a/b:2GiB", 4, 2ull << 30, 0},
                {"/a:b/c:10M", 6, 10 << 20, 0},
                {"/dev/x", 6, 0, 0},
                {"/a:b:1G:2G/d", 4, 1 << 30, 2ull << 30},
                {"/dev/x:3K/d", 6, 0, 3 << 10},
                {"/a/d:1K", 4, 1 << 10, 0},
                {"/d", 2, 0, 0}};
    static const char *const bad[] = {":1G",      "",          "/a:",      "/a:0",
                                      "/a:x",     "/a:-5",     "/a:1Q",    ":1G/d",
                                      "/a:1G:/d", "/a:1G:0/d", "/a:x:1G/d"};
    struct wk_nvme got;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        ASSERT_OK(wk_parse_nvme(good[i].text, &got));
        ASSERT_EQ(got.path_len, good[i].path_len);
        ASSERT_EQ(got.bytes, good[i].bytes);
        ASSERT_EQ(got.write_bytes_per_day, good[i].per_day);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ASSERT_ERR(wk_parse_nvme(bad[i], &got), -EINVAL);
}

TEST(a_bad_value_names_its_flag)
{
    static const struct {
        const char *arg, *said;
    } bad[] = {
        {"--nvme=/tmp/x:big", "--nvme"},
        {"--redis=http://h", "--redis"},
        {"--policy=mru", "--policy"},
        {"--namespace=acme", "--namespace"},
        {"--namespace=acme=", "--namespace"},
        {"--namespace==ram:1MiB", "--namespace"},
        {"--namespace=acme=disk:1MiB", "--namespace"},
        {"--namespace=acme=ram:", "--namespace"},
        {"--namespace=acme=ram:0", "--namespace"},
        {"--namespace=acme=ram:1MiB;nvme:1MiB", "--namespace"},
        {"--namespace=acme=nvme:1MiB", "--nvme"},
        {"--namespace=*=ram:1MiB", "--namespace"},
        {"--namespace=ttl:1h", "--namespace"},
        {"--namespace=acme=ttl:soon", "--namespace"},
        {"--namespace=acme=ttl", "--namespace"},
        {"--guard=2", "--guard"},
        {"--guard=1:x", "--guard"},
        {"--nvme=/x:1GiB:much/d", "--nvme"},
        {"--nvme=/x:1GiB/d", "--nvme"},
        {"--secret=file:/nonexistent/x", "secret: \"/nonexistent/x\" cannot be read"},
        {"--secret=file:/dev/null", "secret: \"/dev/null\" cannot be read: it should hold one"}};
    struct wk_opts o;
    struct err err;
    no_env();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (read_opts(&o, &err, bad[i].arg, NULL) >= 0)
            test_fail(__FILE__, __LINE__, "taken: %s", bad[i].arg);
        if (!strstr(err.msg, bad[i].said))
            test_fail(__FILE__, __LINE__, "%s: \"%s\"", bad[i].arg, err.msg);
    }
}

TEST(secrets_by_environment_and_file_agree)
{
    char path[] = "/tmp/kvb-secret-XXXXXX", given[40];
    uint64_t want[2];
    struct wk_opts o;
    struct err err;
    no_env();
    uint8_t auth[AUTH_KEY_BYTES];
    tier_secret("open sesame", want);
    tier_secret_auth("open sesame", auth);
    int fd = mkstemp(path);
    ASSERT_EQ(write(fd, "open sesame\n", 12), 12);
    (void)close(fd);
    ASSERT_OK(setenv("KVBLEND_WORKER_SECRET", "open sesame", 1));
    ASSERT_OK(setenv("KVBLEND_WORKER_REDIS", "redis://:p%40w@h1,h2:7 redis://h3", 1));
    ASSERT_OK(read_opts(&o, &err, NULL));
    ASSERT_MEMEQ(o.tiers.secret, want, sizeof want);
    ASSERT_TRUE(o.tiers.has_secret && memcmp(o.tiers.auth_key, auth, sizeof auth) == 0);
    ASSERT_EQ(o.tiers.redis->n_hosts, 3);
    wk_opts_fini(&o);
    no_env();
    (void)snprintf(given, sizeof given, "file:%s", path);
    ASSERT_OK(read_opts(&o, &err, "--secret", given, NULL));
    ASSERT_MEMEQ(o.tiers.secret, want, sizeof want);
    ASSERT_TRUE(o.tiers.has_secret && memcmp(o.tiers.auth_key, auth, sizeof auth) == 0);
    ASSERT_STREQ(opts_exposed(o.store), "");
    wk_opts_fini(&o);
    ASSERT_OK(chmod(path, 0640));
    ASSERT_OK(read_opts(&o, &err, "--secret", given, NULL));
    ASSERT_TRUE(strstr(opts_exposed(o.store), "secret: others than its owner") != NULL);
    wk_opts_fini(&o);
    (void)unlink(path);
}

TEST(the_access_log_keeps_whole_lines)
{
    char path[] = "/tmp/kvb-kvlog-XXXXXX", got[64];
    struct wk_kvlog *l;
    struct err err = {0};
    (void)close(mkstemp(path));
    ASSERT_TRUE(wk_kvlog_open("/nonexistent/log", &l, &err) < 0);
    ASSERT_TRUE(strstr(err.msg, "--access-log"));
    for (int i = 0; i < 2; i++) { /* the second time it goes on behind */
        struct buf b = BUF_INIT;
        ASSERT_OK(wk_kvlog_open(path, &l, &err));
        for (int k = 0; k < 3; k++) {
            ASSERT_OK(buf_addf(&b, "%d%d\n", i, k));
            wk_kvlog_put(l, &b);
            ASSERT_EQ(b.len, 0);
        }
        ASSERT_EQ(wk_kvlog_dropped(l), 0);
        wk_kvlog_close(l);
    }
    int fd = open(path, O_RDONLY);
    ssize_t n = read(fd, got, sizeof got - 1);
    ASSERT_EQ(n, 18);
    got[n] = 0;
    ASSERT_STREQ(got, "00\n01\n02\n10\n11\n12\n");
    (void)close(fd);
    (void)unlink(path);
}

TEST(a_log_that_cannot_be_written_counts)
{
    struct wk_kvlog *l;
    struct err err = {0};
    struct buf b = BUF_INIT;
    ASSERT_OK(wk_kvlog_open("/dev/full", &l, &err));
    ASSERT_OK(buf_adds(&b, "x\n"));
    wk_kvlog_put(l, &b);
    for (uint64_t t0 = clock_ns(); wk_kvlog_dropped(l) == 0 && clock_ms_since(t0) < 10000;)
        (void)sched_yield();
    ASSERT_EQ(wk_kvlog_dropped(l), 1);
    struct buf big = BUF_INIT; /* more than the queue takes: dropped at once, still the caller's */
    ASSERT_OK(buf_reserve(&big, 5 << 20));
    memset(big.data, 'x', 5 << 20);
    big.len = 5 << 20;
    wk_kvlog_put(l, &big);
    ASSERT_EQ(wk_kvlog_dropped(l), 2);
    ASSERT_EQ(big.len, 5 << 20);
    buf_fini(&big);
    wk_kvlog_close(l);
}

TEST(registry)
{
    struct wk_opts o;
    struct err err;
    no_env();
    ASSERT_OK(read_opts(&o, &err, "--advertise=http://h1:8012", "--registry=redis://:pw@r", NULL));
    ASSERT_STREQ(o.advertise, "h1:8012");
    ASSERT_STREQ(o.registry->group, "default");
    ASSERT_STREQ(o.registry->password, "pw");
    wk_opts_fini(&o);
    ASSERT_OK(read_opts(&o, &err, "--advertise=h1:8012", "--redis=redis://r?group=a", NULL));
    ASSERT_TRUE(!o.registry && strcmp(o.tiers.redis->group, "a") == 0);
    wk_opts_fini(&o);
    static const char *const bad[][2] = {{"--advertise=h1:8012", "--order=fifo"},
                                         {"--registry=redis://r", "--order=fifo"},
                                         {"--advertise=0.0.0.0:80", "--registry=redis://r"},
                                         {"--advertise=h1:80", "--registry=http://:secret@r"}};
    for (size_t i = 0; i < 4; i++) {
        ASSERT_ERR(read_opts(&o, &err, bad[i][0], bad[i][1], NULL), -EINVAL);
        ASSERT_TRUE(strncmp(err.msg, "--", 2) == 0 && !strstr(err.msg, "secret"));
    }
    ASSERT_ERR(read_opts(&o, &err, "--advertise=h1:80", "--redis=redis://r?group=a{", NULL),
               -EINVAL);
}

TEST(guard)
{
    struct wk_opts o;
    struct err err;
    no_env();
    ASSERT_OK(read_opts(&o, &err, NULL));
    ASSERT_TRUE(o.guard_sample == 0.01 && o.guard_kl == 0);
    wk_opts_fini(&o);
    ASSERT_OK(read_opts(&o, &err, "--guard", "1:0.25", NULL));
    ASSERT_TRUE(o.guard_sample == 1 && o.guard_kl == 0.25);
    wk_opts_fini(&o);
}

TEST(arithmetic_and_weights)
{
    static const struct {
        const char *dtype;
        enum kn_arith arith;
        bool eight;
    } all[] = {{"auto", KN_ARITH_AUTO, false},
               {"f32", KN_ARITH_F32, false},
               {"bf16", KN_ARITH_BF16, false},
               {"fp8", KN_ARITH_BF16, true},
               {"int8", KN_ARITH_BF16, true}};
    struct wk_opts o;
    struct err err;
    no_env();
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        ASSERT_OK(read_opts(&o, &err, "--dtype", all[i].dtype, NULL));
        ASSERT_EQ(o.arith, all[i].arith);
        ASSERT_EQ(o.weights == KN_WEIGHTS_FP8 || o.weights == KN_WEIGHTS_INT8, all[i].eight);
        wk_opts_fini(&o);
    }
    ASSERT_ERR(read_opts(&o, &err, "--dtype", "fp4", NULL), -EINVAL);
    for (int q8 = 0; q8 < 2; q8++) {
        ASSERT_OK(read_opts(&o, &err, "--kv-pages-dtype", q8 ? "q8" : "auto", NULL));
        ASSERT_EQ(o.kv_q8, q8);
        ASSERT_EQ(o.kv_dtype, -1);
        wk_opts_fini(&o);
    }
    ASSERT_ERR(read_opts(&o, &err, "--kv-pages-dtype", "f16", NULL), -EINVAL);
}

TEST(strategy_and_controller)
{
    static const struct {
        const char *text;
        enum pol_strategy strategy;
        bool controller;
    } all[] = {{"auto", POL_AUTO, true},
               {"qs", POL_QS, true},
               {"always", POL_AUTO, false},
               {"always:sink", POL_SINK, false}};
    struct wk_opts o;
    struct err err;
    no_env();
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        ASSERT_OK(read_opts(&o, &err, "--strategy", all[i].text, NULL));
        ASSERT_EQ(o.strategy, all[i].strategy);
        ASSERT_EQ(o.controller, all[i].controller);
        ASSERT_EQ(o.strategy_given, o.strategy != POL_AUTO);
        wk_opts_fini(&o);
    }
    static const char *const bad[] = {"best", "always:", "always:best", "alwaysqs", "always:auto"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ASSERT_ERR(read_opts(&o, &err, "--strategy", bad[i], NULL), -EINVAL);
}

/* What no operator turns. */
TEST(variables_of_tests_and_measurements)
{
    struct wk_opts o;
    struct err err;
    no_env();
    ASSERT_OK(read_opts(&o, &err, NULL));
    ASSERT_TRUE(!o.gemm && o.tiers.wait_ms == 0);
    wk_opts_fini(&o);
    ASSERT_OK(setenv("KVBLEND_GEMM", "own-f32", 1));
    ASSERT_OK(setenv("KVBLEND_TIER_WAIT", "2s", 1));
    ASSERT_OK(read_opts(&o, &err, NULL));
    ASSERT_STREQ(o.gemm, "own-f32");
    ASSERT_EQ(o.tiers.wait_ms, 2000);
    wk_opts_fini(&o);
    ASSERT_OK(setenv("KVBLEND_TIER_WAIT", "long", 1));
    ASSERT_ERR(read_opts(&o, &err, NULL), -EINVAL);
    no_env();
}
