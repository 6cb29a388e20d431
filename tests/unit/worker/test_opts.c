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
}

TEST(removed_options_say_what_to_use)
{
    static const struct {
        const char *flag, *value, *says;
    } gone[] = {{"--strategy", "static", "static was removed; use side"},
                {"--policy", "clock", "clock was removed; lru is the default"},
                {"--nvme-policy", "lru", "was removed; policy says it"},
                {"--ttl-ns", "a=1h", "was removed; ttl takes NS=DURATION"},
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

TEST(tiers_by_flags)
{
    struct wk_opts o;
    struct err err;
    no_env();
    ASSERT_OK(read_opts(&o, &err, "--ram=64MiB", "--nvme=/tmp/a:b:2GiB", "--redis",
                        "redis://:pw@h1:7", "--redis=redis://h2", "--policy=arc",
                        "--quota=acme=ram:1MiB,nvme:2MiB", "--quota=o/i=nvme:3MiB", "--ttl=2h",
                        "--ttl=/acme=5m", "--nvme-write-budget=1GiB", "--tier-wait=2s",
                        "--secret=x", "--access-log=/tmp/log", NULL));
    const struct wk_tier_opts *t = &o.tiers;
    ASSERT_STREQ(t->nvme_path, "/tmp/a:b");
    ASSERT_EQ(t->nvme_bytes, 2ull << 30);
    ASSERT_EQ(t->redis->n_hosts, 2);
    ASSERT_STREQ(t->redis->password, "pw");
    ASSERT_EQ(t->policy, EVICT_ARC);
    ASSERT_EQ(t->n_quota, 2);
    ASSERT_STREQ(t->quota[0].ns, "acme");
    ASSERT_EQ(t->quota[0].ram_bytes, 1 << 20);
    ASSERT_EQ(t->quota[0].nvme_bytes, 2 << 20);
    ASSERT_STREQ(t->quota[1].ns, "o\x1fi");
    ASSERT_EQ(t->quota[1].ram_bytes, 0);
    ASSERT_EQ(t->ttl_ms, 7200000);
    ASSERT_EQ(t->wait_ms, 2000);
    ASSERT_EQ(t->n_ttl, 1);
    ASSERT_EQ(t->ttl[0].ms, 300000);
    ASSERT_STREQ(t->ttl[0].ns, "\x1f"
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

TEST(a_bad_value_names_its_flag)
{
    static const struct {
        const char *arg, *said;
    } bad[] = {{"--nvme=/tmp/x:big", "--nvme"},
               {"--redis=http://h", "--redis"},
               {"--policy=mru", "--policy"},
               {"--quota=acme", "--quota"},
               {"--quota=acme=", "--quota"},
               {"--quota==ram:1MiB", "--quota"},
               {"--quota=acme=disk:1MiB", "--quota"},
               {"--quota=acme=ram:", "--quota"},
               {"--quota=acme=ram:0", "--quota"},
               {"--quota=acme=ram:1MiB;nvme:1MiB", "--quota"},
               {"--quota=acme=nvme:1MiB", "--nvme"},
               {"--ttl=later", "--ttl"},
               {"--ttl=acme", "--ttl"},
               {"--ttl=acme=soon", "--ttl"},
               {"--ttl==1h", "--ttl"},
               {"--guard=2", "--guard"},
               {"--guard=1:x", "--guard"},
               {"--nvme-write-budget=much", "nvme-write-budget"},
               {"--nvme-write-budget=1GiB", "--nvme"},
               {"--secret-file=/nonexistent/x", "--secret-file"}};
    struct wk_opts o;
    struct err err;
    no_env();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (read_opts(&o, &err, bad[i].arg, NULL) >= 0)
            test_fail(__FILE__, __LINE__, "taken: %s", bad[i].arg);
        if (!strstr(err.msg, bad[i].said))
            test_fail(__FILE__, __LINE__, "%s: \"%s\"", bad[i].arg, err.msg);
    }
    ASSERT_TRUE(read_opts(&o, &err, "--secret=a", "--secret-file=/dev/null", NULL) < 0);
}

TEST(secrets_by_environment_and_file_agree)
{
    char path[] = "/tmp/kvb-secret-XXXXXX";
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
    ASSERT_OK(read_opts(&o, &err, "--secret-file", path, NULL));
    ASSERT_MEMEQ(o.tiers.secret, want, sizeof want);
    ASSERT_TRUE(o.tiers.has_secret && memcmp(o.tiers.auth_key, auth, sizeof auth) == 0);
    wk_opts_fini(&o);
    (void)unlink(path);
    ASSERT_TRUE(read_opts(&o, &err, "--secret-file=/dev/null", NULL) < 0);
}

TEST(the_access_log_keeps_whole_lines)
{
    char path[] = "/tmp/kvb-kvlog-XXXXXX", got[64];
    struct wk_kvlog *l;
    struct err err = {0};
    (void)close(mkstemp(path));
    ASSERT_TRUE(wk_kvlog_open("/nonexistent/log", "--access-log", &l, &err) < 0);
    ASSERT_TRUE(strstr(err.msg, "--access-log"));
    for (int i = 0; i < 2; i++) { /* the second time it goes on behind */
        struct buf b = BUF_INIT;
        ASSERT_OK(wk_kvlog_open(path, "--access-log", &l, &err));
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
    ASSERT_OK(wk_kvlog_open("/dev/full", "--access-log", &l, &err));
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
    ASSERT_STREQ(o.registry_group, "default");
    ASSERT_STREQ(o.registry->password, "pw");
    wk_opts_fini(&o);
    ASSERT_OK(read_opts(&o, &err, "--advertise=h1:8012", "--redis=redis://r", "--registry-group=a",
                        NULL));
    ASSERT_TRUE(!o.registry && strcmp(o.registry_group, "a") == 0);
    wk_opts_fini(&o);
    static const char *const bad[][2] = {{"--advertise=h1:8012", "--ttl=1h"},
                                         {"--registry=redis://r", "--ttl=1h"},
                                         {"--advertise=0.0.0.0:80", "--registry=redis://r"},
                                         {"--advertise=h1:80", "--registry=http://:secret@r"}};
    for (size_t i = 0; i < 4; i++) {
        ASSERT_ERR(read_opts(&o, &err, bad[i][0], bad[i][1], NULL), -EINVAL);
        ASSERT_TRUE(strncmp(err.msg, "--", 2) == 0 && !strstr(err.msg, "secret"));
    }
    ASSERT_ERR(
        read_opts(&o, &err, "--advertise=h1:80", "--redis=redis://r", "--registry-group=a{", NULL),
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

TEST(weights)
{
    struct wk_opts o;
    struct err err;
    no_env();
    ASSERT_OK(read_opts(&o, &err, NULL));
    ASSERT_EQ(o.weights, KN_WEIGHTS_AUTO);
    wk_opts_fini(&o);
    ASSERT_OK(read_opts(&o, &err, "--weights", "int8", NULL));
    ASSERT_EQ(o.weights, KN_WEIGHTS_INT8);
    wk_opts_fini(&o);
    ASSERT_ERR(read_opts(&o, &err, "--weights", "fp4", NULL), -EINVAL);
}
