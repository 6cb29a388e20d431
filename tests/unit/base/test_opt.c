/* Options: precedence, bounds, every kind of refusal and its sentence. */
#include "base/buf.h"
#include "base/mem.h"
#include "base/opt.h"
#include "base/opt_removed.h"
#include "tests/test.h"

static const struct opt_def defs[] = {
    {.name = "listen",
     .type = OPT_STR,
     .dflt = "127.0.0.1:8010",
     .min = 1,
     .max = 20,
     .help = "Address to listen on."},
    {.name = "cache.ram",
     .type = OPT_SIZE,
     .dflt = "512MiB",
     .min = 1024,
     .max = 1e12,
     .help = "RAM tier budget."},
    {.name = "threads", .type = OPT_INT, .dflt = "2", .min = 1, .max = 64, .help = "Threads."},
    {.name = "ratio", .type = OPT_DOUBLE, .dflt = "0.15", .min = 0, .max = 1, .help = "Ratio."},
    {.name = "reuse", .type = OPT_BOOL, .dflt = "true", .help = "Reuse chunks."},
    {.name = "dtype",
     .type = OPT_ENUM,
     .dflt = "auto",
     .values = "auto|f32|bf16",
     .help = "Arithmetic."},
    {.name = "timeout", .type = OPT_DURATION, .dflt = "10s", .help = "Timeout."},
    {.name = "key", .type = OPT_STR, .repeatable = true, .help = "Key."},
    {.name = "hidden", .type = OPT_STR},
    {.name = "file", .type = OPT_STR, .positional = true, .help = "File."},
    {.name = "more", .type = OPT_STR, .positional = true, .repeatable = true, .help = "More."},
    {0}};

static struct opts *fresh(void)
{
    struct opts *o = NULL;
    ASSERT_OK(opts_create(defs, &o));
    return o;
}

static int parse(struct opts *o, const char *args, struct err *err)
{
    char copy[512], *argv[32] = {(char *)"prog"}, *save = NULL;
    int argc = 1;
    (void)snprintf(copy, sizeof copy, "%s", args);
    for (char *p = strtok_r(copy, " ", &save); p && argc < 32; p = strtok_r(NULL, " ", &save))
        argv[argc++] = p;
    return opts_parse_argv(o, argc, argv, err);
}

TEST(defaults)
{
    struct opts *o = fresh();
    ASSERT_STREQ(opt_str(o, "listen"), "127.0.0.1:8010");
    ASSERT_EQ(opt_size(o, "cache.ram"), 512ull << 20);
    ASSERT_EQ(opt_int(o, "threads"), 2);
    ASSERT_NEAR(opt_double(o, "ratio"), 0.15, 0);
    ASSERT_TRUE(opt_bool(o, "reuse"));
    ASSERT_STREQ(opt_str(o, "dtype"), "auto");
    ASSERT_EQ(opt_duration_ms(o, "timeout"), 10000);
    ASSERT_EQ(opt_n(o, "key"), 0);
    ASSERT_STREQ(opt_str(o, "hidden"), "");
    ASSERT_EQ(opt_source(o, "hidden"), OPT_UNSET);
    ASSERT_TRUE(!opt_given(o, "listen"));
    opts_destroy(o);
}

TEST(precedence_in_any_order)
{
    static const char yaml[] = "listen: file\ncache:\n  ram: 1GiB\nthreads: 3\nratio: 0.5\n"
                               "key: [f1, f2]\n";
    setenv("KVBT_LISTEN", "env", 1);
    setenv("KVBT_CACHE_RAM", "2GiB", 1);
    setenv("KVBT_KEY", "e1,e2,e3", 1);
    setenv("KVBT_UNKNOWN_THING", "x", 1);
    for (int order = 0; order < 6; order++) {
        struct opts *o = fresh();
        struct err err = {0};
        for (int step = 0; step < 3; step++) {
            int which = (order % 3 + (order < 3 ? step : 3 - step)) % 3, r = 0;
            if (which == 0) r = parse(o, "--listen=flag --no-reuse --dtype bf16", &err);
            if (which == 1) r = opts_parse_env(o, "KVBT", &err);
            if (which == 2) r = opts_parse_yaml(o, yaml, sizeof yaml - 1, "t.yaml", &err);
            ASSERT_EQ(r, 0);
        }
        ASSERT_STREQ(opt_str(o, "listen"), "flag");
        ASSERT_EQ(opt_size(o, "cache.ram"), 2ull << 30);
        ASSERT_EQ(opt_int(o, "threads"), 3);
        ASSERT_NEAR(opt_double(o, "ratio"), 0.5, 0);
        ASSERT_TRUE(!opt_bool(o, "reuse"));
        ASSERT_STREQ(opt_str(o, "dtype"), "bf16");
        ASSERT_EQ(opt_n(o, "key"), 3);
        ASSERT_STREQ(opt_str_at(o, "key", 1), "e2");
        ASSERT_EQ(opt_source(o, "threads"), OPT_FILE);
        ASSERT_EQ(opt_source(o, "key"), OPT_ENV);
        opts_destroy(o);
    }
}

TEST(flag_forms)
{
    struct opts *o = fresh();
    struct err err = {0};
    ASSERT_EQ(parse(o,
                    "--cache-ram 64K a.gguf --threads=4 --threads 5 --reuse=off --key x --key y "
                    "b -- --c",
                    &err),
              0);
    ASSERT_EQ(opt_size(o, "cache.ram"), 65536);
    ASSERT_EQ(opt_int(o, "threads"), 5);
    ASSERT_TRUE(!opt_bool(o, "reuse"));
    ASSERT_EQ(opt_n(o, "key"), 2);
    ASSERT_STREQ(opt_str(o, "file"), "a.gguf");
    ASSERT_EQ(opt_n(o, "more"), 2);
    ASSERT_STREQ(opt_str_at(o, "more", 1), "--c");
    ASSERT_EQ(parse(o, "--nonsense --help", &err), 1);
    ASSERT_EQ(parse(o, "-h", &err), 1);
    opts_destroy(o);
}

TEST(flag_errors)
{
    static const struct {
        const char *args, *sentence;
        int code;
    } table[] = {
        {"--lisen x", "flag --lisen: unknown option, did you mean --listen?", -EINVAL},
        {"--zzzzzzzz", "flag --zzzzzzzz: unknown option", -EINVAL},
        {"--no-listen", "flag --no-listen: unknown option", -EINVAL},
        {"-x", "flag -x: unknown option, flags begin with two dashes", -EINVAL},
        {"--threads", "flag --threads: needs a value", -EINVAL},
        {"--threads two", "flag --threads: \"two\" is not a whole number", -EINVAL},
        {"--threads 0", "flag --threads: must be between 1 and 64", -ERANGE},
        {"--threads 99999999999999999999",
         "flag --threads: \"99999999999999999999\" is not a "
         "whole number",
         -ERANGE},
        {"--ratio 1.5", "flag --ratio: must be between 0 and 1", -ERANGE},
        {"--ratio nan", "flag --ratio: \"nan\" is not a number", -EINVAL},
        {"--dtype f16", "flag --dtype: \"f16\" is none of auto|f32|bf16", -EINVAL},
        {"--cache.ram 12x", "flag --cache.ram: \"12x\" is not a size such as 512MiB", -EINVAL},
        {"--cache.ram 1", "flag --cache.ram: must be between 1024 and 1000000000000 bytes",
         -ERANGE},
        {"--timeout 5y", "flag --timeout: \"5y\" is not a duration such as 250ms or 10s", -EINVAL},
        {"--reuse=maybe", "flag --reuse: \"maybe\" is not true or false", -EINVAL},
        {"--listen 123456789012345678901", "flag --listen: must be between 1 and 20 bytes long",
         -ERANGE},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct opts *o = fresh();
        struct err err = {0};
        ASSERT_EQ(parse(o, table[i].args, &err), table[i].code);
        if (strncmp(err.msg, table[i].sentence, strlen(table[i].sentence)) != 0)
            ASSERT_STREQ(err.msg, table[i].sentence);
        opts_destroy(o);
    }
}

TEST(yaml_errors)
{
    static const struct {
        const char *yaml, *sentence;
    } table[] = {
        {"threads: 2\nlisten:\n  x: 1\n", "file t line 3, key listen.x: unknown option"},
        {"thread: 2\n", "file t line 1, key thread: unknown option, did you mean threads?"},
        {"threads: [1]\n", "file t line 1, key threads: takes one value"},
        {"threads: 1\nthreads: 2\n", "file t line 2, key threads: this key is given twice"},
        {"threads: x\n", "file t line 1, key threads: \"x\" is not a whole number"},
        {"- a\n", "file t line 1: a list is not expected here"},
        {"just text\n", "file t line 1: the file must hold a mapping"},
        {"key:\n - {a: b}\n", "file t line 2, key key: a mapping is not expected here"},
        {"key: [[a]]\n", "file t line 1, key key: a list is not expected here"},
        {"a: &x 1\nb: *x\n", "file t line 1, key a: unknown option"},
        {"listen: *x\n", "file t line 1, key listen: aliases are not supported"},
        {"listen: a\n---\nlisten: b\n", "file t line 2: more than one document"},
        {"listen: \"unclosed\n", "file t line"},
        {"listen: a\n\tthreads: 1\n", "file t line"},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct opts *o = fresh();
        struct err err = {0};
        ASSERT_TRUE(opts_parse_yaml(o, table[i].yaml, strlen(table[i].yaml), "t", &err) < 0);
        if (strncmp(err.msg, table[i].sentence, strlen(table[i].sentence)) != 0)
            ASSERT_STREQ(err.msg, table[i].sentence);
        opts_destroy(o);
    }
}

TEST(yaml_forms)
{
    static const char yaml[] = "# comment\ncache: {ram: 1MiB}\nLISTEN: ~\nkey:\n  - a b\n  - 'c'\n"
                               "reuse: no\ndtype: \"f32\"\ntimeout: 1.5s\n";
    struct opts *o = fresh();
    struct err err = {0};
    ASSERT_EQ(opts_parse_yaml(o, yaml, sizeof yaml - 1, "t", &err), 0);
    ASSERT_EQ(opt_size(o, "cache.ram"), 1 << 20);
    ASSERT_TRUE(!opt_given(o, "listen"));
    ASSERT_EQ(opt_n(o, "key"), 2);
    ASSERT_STREQ(opt_str_at(o, "key", 0), "a b");
    ASSERT_TRUE(!opt_bool(o, "reuse"));
    ASSERT_EQ(opt_duration_ms(o, "timeout"), 1500);
    ASSERT_EQ(opts_parse_yaml(o, "", 0, "t", &err), 0);
    opts_destroy(o);
}

TEST(file_errors)
{
    struct opts *o = fresh();
    struct err err = {0};
    ASSERT_ERR(opts_parse_file(o, "/nonexistent.yaml", &err), -ENOENT);
    ASSERT_TRUE(strstr(err.msg, "/nonexistent.yaml") != NULL);
    ASSERT_ERR(opts_parse_file(o, "/", &err), -EINVAL);
    opts_destroy(o);
}

TEST(environment_error_names_the_variable)
{
    struct opts *o = fresh();
    struct err err = {0};
    setenv("KVBU_THREADS", "many", 1);
    ASSERT_ERR(opts_parse_env(o, "KVBU", &err), -EINVAL);
    ASSERT_STREQ(err.msg, "environment KVBU_THREADS: \"many\" is not a whole number");
    opts_destroy(o);
}

TEST(variables_that_no_option_has)
{
    static const struct opt_def two[] = {
        {.name = "ram", .type = OPT_SIZE}, {.name = "write.budget-day", .type = OPT_SIZE}, {0}};
    char *env[] = {"KVBW_RAM=1",  "KVBW_WRITE_BUDGET_DAY=1",
                   "KVBW_RAMM=1", "KVBW_WRITE_BUGDET_DAY=",
                   "KVBW_COUNT=", "KVBWX_RAN=1",
                   "RAM=1",       "KVBW=1",
                   NULL};
    struct buf b = BUF_INIT;
    struct opts *o;
    ASSERT_OK(opts_create(two, &o));
    ASSERT_OK(opts_unknown_env(o, "KVBW", env, &b));
    ASSERT_STREQ(buf_cstr(&b), "KVBW_RAMM; expected one like KVBW_RAM\n"
                               "KVBW_WRITE_BUGDET_DAY; expected one like KVBW_WRITE_BUDGET_DAY\n"
                               "KVBW_COUNT\n");
    buf_fini(&b);
    opts_destroy(o);
}

TEST(sizes)
{
    static const struct {
        const char *text;
        int code;
        uint64_t bytes;
    } table[] = {
        {"0", 0, 0},
        {"123", 0, 123},
        {"4KiB", 0, 4096},
        {"4kb", 0, 4096},
        {"1.5G", 0, 3ull << 29},
        {"512 MiB", 0, 512ull << 20},
        {"2TiB", 0, 2ull << 40},
        {"7B", 0, 7},
        {"", -EINVAL, 0},
        {"-1", -EINVAL, 0},
        {"1.5", -EINVAL, 0},
        {"4KiBx", -EINVAL, 0},
        {"0x10", -EINVAL, 0},
        {"inf", -EINVAL, 0},
        {" 1", -EINVAL, 0},
        {"1e400", -ERANGE, 0},
        {"99999999T", -ERANGE, 0},
        {"++1", -EINVAL, 0},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        uint64_t v = 0;
        int r = opt_parse_size(table[i].text, &v);
        if (r != table[i].code || v != table[i].bytes)
            test_fail(__FILE__, __LINE__, "\"%s\": %d, %llu", table[i].text, r,
                      (unsigned long long)v);
    }
}

TEST(help_and_dump)
{
    struct opts *o = fresh();
    struct err err = {0};
    struct buf b = BUF_INIT;
    ASSERT_OK(opts_help(o, "kvblend", "What it does.", &b));
    const char *text = buf_cstr(&b);
    ASSERT_TRUE(strstr(text, "Usage: kvblend [options] [file] [more") != NULL);
    ASSERT_TRUE(
        strstr(text, "  --listen TEXT             Address to listen on. [127.0.0.1:8010]\n"));
    ASSERT_TRUE(strstr(text, "--dtype auto|f32|bf16") != NULL);
    ASSERT_TRUE(strstr(text, "hidden") == NULL);
    buf_clear(&b);
    ASSERT_EQ(parse(o, "--key a --key b", &err), 0);
    ASSERT_OK(opts_dump(o, &b));
    text = buf_cstr(&b);
    ASSERT_TRUE(strstr(text, "key: [\"a\", \"b\"] # flag\n") != NULL);
    ASSERT_TRUE(strstr(text, "threads: 2 # default\n") != NULL);
    /* What is dumped can be read again. */
    struct opts *again = fresh();
    ASSERT_EQ(opts_parse_yaml(again, b.data, b.len, "dump", &err), 0);
    ASSERT_STREQ(opt_str_at(again, "key", 1), "b");
    opts_destroy(again);
    buf_fini(&b);
    opts_destroy(o);
}

TEST(removed_options_say_so)
{
    static const char yaml[] = "strategy:\n  map-tokens: 9\n", instead[] = "was removed; kvblend-";
    char *env[] = {"T_MAP_TOKENS=9", "T_RATOI=1", NULL};
    struct opts *o = fresh();
    struct err err = {0};
    struct buf b = BUF_INIT;
    ASSERT_ERR(parse(o, "--map-prompt x", &err), -EINVAL);
    ASSERT_TRUE(strstr(err.msg, "flag --map-prompt: was removed; kvblend-bench") != NULL);
    ASSERT_ERR(opts_parse_yaml(o, yaml, sizeof yaml - 1, "t", &err), -EINVAL);
    ASSERT_TRUE(strstr(err.msg, instead) != NULL);
    ASSERT_OK(opts_unknown_env(o, "T", env, &b));
    ASSERT_TRUE(strstr(buf_cstr(&b), "T_MAP_TOKENS; it was removed; kvblend-bench") != NULL);
    ASSERT_TRUE(strstr(buf_cstr(&b), "T_RATOI; expected one like T_RATIO\n") != NULL);
    buf_fini(&b);
    opts_destroy(o);
    ASSERT_TRUE(opt_removed("Map_Tokens", NULL) && opt_removed("strategy.map-tokens", NULL));
    ASSERT_TRUE(!opt_removed("map", NULL) && !opt_removed("map-tokens", "9"));
    ASSERT_TRUE(opt_removed("ram_policy", "clock") && opt_removed("ram-policy", "gdsf"));
    ASSERT_TRUE(opt_removed("worker.strategy", "map_rerank") && !opt_removed("strategy", "qs"));
    ASSERT_TRUE(!opt_removed("ram-policy", "arc") && !opt_removed("ram-policy", "clo"));
    ASSERT_TRUE(!opt_removed("ram-policy", NULL) && !opt_removed("ram-policy", ""));
    ASSERT_TRUE(opt_removed_section("strategy") && !opt_removed_section("strat"));
}

TEST(secrets_leave_the_command_line)
{
    static const char *const names[] = {"api-key", "redis", NULL};
    static const struct {
        const char *was, *is;
    } cases[] = {
        {"--api-key=abc", "--api-key=***"},
        {"--API_KEY=abc", "--API_KEY=***"},
        {"--api-key", "--api-key"},
        {"abc", "***"},
        {"--api-keys=abc", "--api-keys=abc"},
        {"--listen=abc", "--listen=abc"},
        {"--redis=redis://h:1", "--redis=redis://h:1"},
        {"--redis=redis://u:p@h:1 redis://u:p@i", "--redis=redis://*******************@i"},
        {"--redis=unix:///s?password=p", "--redis=********************"},
        {"--redis=u:p@h", "--redis=*****"},
        {"--redis=http://h:1/v1 api_key=abc x=@", "--redis=http://h:1/v1****************"},
        {"--redis= http://h\t\"api_key=a b\"", "--redis= http://h**************"},
        {"--redis=unix:/s api_key=abc", "--redis=unix:/s************"},
        {"--redis=http://u:p@h api_key=abc", "--redis=http://***@h************"},
        {"--api-key=", "--api-key="},
        {"--", "--"},
        {"--api-key=abc", "--api-key=abc"},
        {"--api-key", "--api-key"},
    };
    enum { N = sizeof cases / sizeof cases[0] };
    char text[N + 1][64] = {"program"}, *argv[N + 1] = {text[0]};
    for (size_t i = 0; i < N; i++)
        argv[i + 1] = memcpy(text[i + 1], cases[i].was, strlen(cases[i].was) + 1);
    opts_hide_argv(N + 1, argv, names);
    for (size_t i = 0; i < N; i++)
        ASSERT_STREQ(argv[i + 1], cases[i].is);
}

TEST(every_allocation_may_fail)
{
    static const char yaml[] = "cache:\n  ram: 1GiB\nkey: [f1, f2]\n";
    for (unsigned n = 1;; n++) {
        struct opts *o = NULL;
        struct err err = {0};
        mem_fail_nth(n);
        int r = opts_create(defs, &o);
        if (r == 0) r = opts_parse_yaml(o, yaml, sizeof yaml - 1, "t", &err);
        bool fired = mem_fail_fired();
        mem_fail_nth(0);
        opts_destroy(o);
        ASSERT_EQ(r, fired ? -ENOMEM : 0);
        if (!fired) break;
    }
}
