/* The entries of `models:`: a path and options of its worker; what each worker is then given. */
#include "gateway/process/models.h"

#include "base/buf.h"
#include "base/mem.h"
#include "gateway/process/config.h"
#include "gateway/process/config_worker.h"
#include "tests/test.h"

#include <string.h>

static int parse(const char *const *entry, size_t n, struct gw_models *m, struct err *err)
{
    const struct gw_strs s = {(char **)(uintptr_t)entry, n};
    *err = (struct err){0};
    return gw_models_parse(&s, m, err);
}

TEST(entries_are_paths_and_options)
{
    static const char *const entry[] = {"/a/b", "path=\"/with space\" threads=3 max_running=2",
                                        "/c served_model_name=\"x y\" embed=last"};
    struct gw_models m = {0};
    struct err err;
    ASSERT_OK(parse(entry, 3, &m, &err));
    ASSERT_EQ(m.n, 3);
    ASSERT_STREQ(m.v[0].path, "/a/b");
    ASSERT_TRUE(!opt_given(m.v[0].opts, "threads"));
    ASSERT_STREQ(m.v[1].path, "/with space");
    ASSERT_EQ(opt_int(m.v[1].opts, "threads"), 3);
    ASSERT_EQ(opt_int(m.v[1].opts, "max-running"), 2);
    ASSERT_STREQ(opt_str(m.v[2].opts, "served-model-name"), "x y");
    gw_models_free(&m);
    ASSERT_OK(parse(NULL, 0, &m, &err));
    gw_models_free(&m);
}

TEST(when_a_worker_runs)
{
    static const struct {
        const char *entry;
        bool on_demand;
        uint32_t idle_ms;
        const char *name;
    } want[] = {{"/models/bge/", false, 0, "bge"},
                {"/models/a.b.gguf load=start", false, 0, "a.b"},
                {"x load=on_demand served_model_name=y,z", true, 0, "y"},
                {"/ idle=90s load=on_demand threads=1", true, 90000, "/"},
                {".gguf load=on_demand idle=10m", true, 600000, ".gguf"}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        struct gw_models m = {0};
        struct err err;
        char name[16];
        ASSERT_OK(parse(&want[i].entry, 1, &m, &err));
        ASSERT_EQ(m.v[0].on_demand, want[i].on_demand);
        ASSERT_EQ(m.v[0].idle_ms, want[i].idle_ms);
        ASSERT_STREQ(gw_model_name(&m.v[0], name, sizeof name), want[i].name);
        gw_models_free(&m);
    }
}

TEST(bad_entries_are_named)
{
    static const struct {
        const char *entry, *says;
    } bad[] = {{"", "path"},
               {"   ", "path"},
               {"path=", "path"},
               {"\"/a", "quote"},
               {"/a word", "word"},
               {"/a threads=x", "threads"},
               {"/a threads=-1", "threads"},
               {"/a listen=:1", "listen"},
               {"/a help=1", "/a"},
               {"/a =1", "/a"},
               {"/a load=never", "on_demand"},
               {"/a load=", "on_demand"},
               {"/a load=on_demand idle=1ms", "10m"},
               {"/a load=on_demand idle=soon", "10m"},
               {"/a load=start idle=10m", "load=on_demand"},
               {"/a idle=10m", "load=on_demand"},
               {"/a embed=most", "embed"},
               {"/a secret=x", "secret is said in the section worker"}, /* else: in its arguments */
               {"/a redis=redis://:pw@host", "redis is said in the section worker"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct gw_models m = {0};
        struct err err;
        ASSERT_ERR(parse(&bad[i].entry, 1, &m, &err), -EINVAL);
        if (!strstr(err.msg, bad[i].says) || strncmp(err.msg, "models: ", 8) != 0)
            test_fail(__FILE__, __LINE__, "%s: %s", bad[i].entry, err.msg);
    }
}

TEST(too_many_fields_end)
{
    char text[2048] = "/a";
    while (strlen(text) + 12 < sizeof text)
        (void)strcat(text, " threads=1");
    const char *entry = text;
    struct gw_models m = {0};
    struct err err;
    ASSERT_ERR(parse(&entry, 1, &m, &err), -EINVAL);
    ASSERT_TRUE(strstr(err.msg, "too many") != NULL);
}

static bool has(const char *const *args, int n, const char *arg)
{
    for (int i = 0; i < n; i++)
        if (strcmp(args[i], arg) == 0) return true;
    return false;
}

/* `worker:` is `model:`'s; a further model has what its entry says, and its share of the cores. */
TEST(a_worker_gets_what_its_entry_says)
{
    char *const argv[] = {"kvblend", "--ram=2GiB", "--served-model-name=main", "--also-model",
                          "/dev/null ctx=128 served_model_name=emb"};
    char *const envp[] = {NULL};
    struct gw_config *c = NULL;
    struct buf problems = BUF_INIT;
    struct gw_models m = {0};
    struct err err = {0};
    struct arena a;
    const char *args[80];
    arena_init(&a);
    if (gw_config_load(5, argv, envp, &c, &problems) < 0)
        test_fail(__FILE__, __LINE__, "%s", buf_cstr(&problems));
    ASSERT_OK(gw_models_parse(&c->models, &m, &err));
    const struct gw_worker_share main_one = {.n = 1, .n_all = 2},
                                 further = {.n = 1, .n_all = 2, .model = m.v[0].opts};
    int n = gw_config_worker_args(c, &main_one, &a, args, 80);
    ASSERT_TRUE(has(args, n, "--ram=2GiB") && has(args, n, "--served-model-name=main"));
    ASSERT_TRUE(!has(args, n, "--ctx=128"));
    n = gw_config_worker_args(c, &further, &a, args, 80);
    ASSERT_TRUE(has(args, n, "--ctx=128") && has(args, n, "--served-model-name=emb"));
    ASSERT_TRUE(!has(args, n, "--ram=2GiB"));
    unsigned n_threads = 0;
    for (int i = 0; i < n; i++)
        n_threads += strncmp(args[i], "--threads=", 10) == 0;
    ASSERT_EQ(n_threads, 1);
    gw_models_free(&m);
    gw_config_free(c);
    buf_fini(&problems);
    arena_fini(&a);
}

TEST(no_memory_is_said)
{
    static const char *const entry[] = {"/a threads=1", "/b"};
    unsigned n_failed = 0;
    bool fired = true;
    for (unsigned nth = 1; fired; nth++) {
        struct gw_models m = {0};
        struct err err;
        mem_fail_nth(nth);
        const int r = parse(entry, 2, &m, &err);
        fired = mem_fail_fired();
        mem_fail_nth(0);
        n_failed += r < 0;
        if (r == 0) gw_models_free(&m);
    }
    ASSERT_TRUE(n_failed > 5);
}
