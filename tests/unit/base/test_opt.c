/* Options: precedence, bounds, every kind of refusal and its sentence. */
#include "base/buf.h"
#include "base/jsonscan.h"
#include "base/mem.h"
#include "base/opt_int.h"
#include "base/opt_removed.h"
#include "tests/test.h"

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

static bool starts_with_a(const char *text)
{
    return text[0] == 'a';
}

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
    {.name = "entry", .type = OPT_STR, .repeatable = true, .split = ";", .head = "url|at"},
    {.name = "form", .type = OPT_STR, .values = "a|b:N", .help = "Form.", .check = starts_with_a},
    {.name = "live", .type = OPT_INT, .props = OPT_LIVE},
    {.name = "config", .type = OPT_STR, .props = OPT_NO_KEY},
    {.name = "once", .type = OPT_BOOL, .props = OPT_FLAG_ONLY},
    {0}};

static struct opts *fresh(void)
{
    struct opts *o = NULL;
    ASSERT_OK(opts_create(defs, &o));
    return o;
}

static struct buf problems;

/* A "file" is its text: "key=value;key=value". */
static void read_pairs(struct opts *o, const char *text)
{
    struct opt_place at = {OPT_FILE, "t", 1};
    char copy[256], *save = NULL;
    (void)snprintf(copy, sizeof copy, "%s", text);
    for (char *p = strtok_r(copy, ";", &save); p; p = strtok_r(NULL, ";", &save), at.line++) {
        char *eq = strchr(p, '=');
        *eq = '\0';
        struct opt_row *row = opt_of_key(o, p);
        if (row)
            opt_set(o, row, eq + 1, &at);
        else
            opt_unknown(o, &at, p, NULL);
    }
}

/* Flags between spaces; env: "NAME=value", ended by NULL, or NULL. */
static int read_all(struct opts *o, const char *args, char *const *env)
{
    char copy[512], *argv[32] = {(char *)"prog"}, *save = NULL, *none[] = {NULL};
    int argc = 1;
    (void)snprintf(copy, sizeof copy, "%s", args);
    for (char *p = strtok_r(copy, " ", &save); p && argc < 32; p = strtok_r(NULL, " ", &save))
        argv[argc++] = p;
    buf_fini(&problems);
    return opts_read(o, &(struct opt_args){argc, argv, env ? env : none, "T", read_pairs},
                     &problems);
}

static void expect(const char *sentence)
{
    if (strncmp(buf_cstr(&problems), sentence, strlen(sentence)) != 0)
        ASSERT_STREQ(buf_cstr(&problems), sentence);
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
    ASSERT_EQ(n_of(o, "key"), 0);
    ASSERT_STREQ(opt_str(o, "hidden"), "");
    ASSERT_EQ(opt_source(o, "hidden"), OPT_UNSET);
    ASSERT_TRUE(!opt_given(o, "listen"));
    opts_destroy(o);
}

TEST(precedence)
{
    char *env[] = {"T_LISTEN=env",
                   "T_CACHE_RAM=2GiB",
                   "T_KEY=e1,e2,e3",
                   "T_UNKNOWN=x",
                   "T_RATIO=",
                   "T_ONCE=yes",
                   NULL};
    struct opts *o = fresh();
    ASSERT_OK(read_all(o,
                       "--config listen=file;cache.ram=1GiB;threads=3;ratio=0.5;key=f1;key=f2 "
                       "--listen=flag --no-reuse --dtype bf16",
                       env));
    ASSERT_STREQ(opt_str(o, "listen"), "flag");
    ASSERT_EQ(opt_size(o, "cache.ram"), 2ull << 30);
    ASSERT_EQ(opt_int(o, "threads"), 3);
    ASSERT_NEAR(opt_double(o, "ratio"), 0.5, 0);
    ASSERT_TRUE(!opt_bool(o, "reuse") && !opt_bool(o, "once"));
    ASSERT_STREQ(opt_str(o, "dtype"), "bf16");
    ASSERT_EQ(n_of(o, "key"), 3);
    ASSERT_STREQ(text_of(o, "key", 1), "e2");
    ASSERT_EQ(opt_source(o, "threads"), OPT_FILE);
    ASSERT_EQ(opt_source(o, "key"), OPT_ENV);
    opts_destroy(o);
}

TEST(flag_forms)
{
    struct opts *o = fresh();
    ASSERT_OK(read_all(o,
                       "--cache-ram 64K a.gguf --threads=4 --threads 5 --reuse=off --key x --key y "
                       "--once on b -- --c",
                       NULL));
    ASSERT_EQ(opt_size(o, "cache.ram"), 65536);
    ASSERT_EQ(opt_int(o, "threads"), 5);
    ASSERT_TRUE(!opt_bool(o, "reuse") && opt_bool(o, "once"));
    ASSERT_EQ(n_of(o, "key"), 2);
    ASSERT_STREQ(opt_str(o, "file"), "a.gguf");
    ASSERT_EQ(n_of(o, "more"), 2);
    ASSERT_STREQ(text_of(o, "more", 1), "--c");
    ASSERT_EQ(read_all(o, "--nonsense --help", NULL), 1);
    ASSERT_EQ(read_all(o, "-h", NULL), 1);
    opts_destroy(o);
}

TEST(flag_errors)
{
    static const char *const table[][2] = {
        {"--lisen x", "--lisen: unknown flag; expected one like \"--listen\""},
        {"--zzzzzzzz x --threads 0", "--zzzzzzzz: unknown flag; --help lists the known ones\n"
                                     "command line: --threads: expected a value from 1"},
        {"--zzzzzzzz", "--zzzzzzzz: unknown flag; --help lists the known ones"},
        {"--no-listen", "--no-listen: unknown flag"},
        {"-x", "-x: unknown flag; flags begin with two dashes"},
        {"--threads", "--threads: needs a value"},
        {"--threads two", "--threads: expected a whole number, found \"two\""},
        {"--threads 0", "--threads: expected a value from 1 to 64, found \"0\""},
        {"--threads 99999999999999999999",
         "--threads: expected a whole number, found \"99999999999999999999\""},
        {"--ratio 1.5", "--ratio: expected a value from 0 to 1, found \"1.5\""},
        {"--ratio nan", "--ratio: expected a number, found \"nan\""},
        {"--dtype f16", "--dtype: expected auto|f32|bf16, found \"f16\""},
        {"--cache.ram 12x", "--cache.ram: expected a size such as 512MiB, found \"12x\""},
        {"--cache.ram 1", "--cache.ram: expected a value from 1024 to 1000000000000 bytes, found"},
        {"--timeout 5y", "--timeout: expected a duration such as 30s, 500ms or 12h, found \"5y\""},
        {"--form ax --form b", "--form: expected a|b:N, found \"b\""},
        {"--reuse=maybe", "--reuse: expected true or false, found \"maybe\""},
        {"--listen 123456789012345678901", "--listen: expected a value from 1 to 20 bytes, found"},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        char sentence[160];
        struct opts *o = fresh();
        ASSERT_ERR(read_all(o, table[i][0], NULL), -EINVAL);
        (void)snprintf(sentence, sizeof sentence, "command line: %s", table[i][1]);
        expect(sentence);
        opts_destroy(o);
    }
}

TEST(lists_in_variables)
{
    char *env[] = {"T_KEY=,a,,b,", "T_ENTRY=u n=\"a;b\";v", NULL};
    struct opts *o = fresh();
    ASSERT_OK(read_all(o, "", env));
    ASSERT_EQ(n_of(o, "key"), 2);
    ASSERT_EQ(n_of(o, "entry"), 2);
    ASSERT_STREQ(text_of(o, "entry", 0), "u n=\"a;b\"");
    opts_destroy(o);
}

TEST(sections_of_another_program)
{
    static const struct opt_def other[] = {{.name = "threads", .type = OPT_INT, .max = 9},
                                           {.name = "big-pages", .type = OPT_BOOL},
                                           {0}};
    char *env[] = {"T_OTHER_THREADS=7", NULL};
    struct opts *o = fresh();
    ASSERT_OK(opts_add_section(o, "other", other));
    ASSERT_OK(read_all(o, "--config other.big_pages=on;other.threads=2;threads=3", env));
    ASSERT_EQ(opt_int(o, "other.threads"), 7);
    ASSERT_EQ(opt_int(o, "threads"), 3);
    ASSERT_TRUE(opt_bool(o, "big-pages") && opt_bool(o, "other.big-pages"));
    opts_destroy(o);
    o = fresh();
    ASSERT_OK(opts_add_section(o, "other", other));
    ASSERT_ERR(read_all(o, "--config other.threads=10", NULL), -EINVAL);
    expect("t:1: other.threads: expected a value from 0 to 9, found \"10\"");
    opts_destroy(o);
}

TEST(what_a_reload_cannot_change)
{
    struct opts *a = fresh(), *b = fresh();
    struct buf keys = BUF_INIT;
    ASSERT_OK(read_all(a, "--live 1 --threads 2 --once", NULL));
    ASSERT_OK(read_all(b, "--live 2 --threads 3 --cache-ram 1M --key x", NULL));
    ASSERT_EQ(opts_restart_keys(a, b, &keys), 3);
    ASSERT_STREQ(buf_cstr(&keys), "cache.ram,threads,key");
    buf_fini(&keys);
    opts_destroy(a);
    opts_destroy(b);
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
    opts_unknown_env(o, &(struct opt_args){0, NULL, env, "KVBW"}, &b);
    ASSERT_STREQ(buf_cstr(&b),
                 "KVBW_RAMM is unknown; expected one like KVBW_RAM\n"
                 "KVBW_WRITE_BUGDET_DAY is unknown; expected one like KVBW_WRITE_BUDGET_DAY\n"
                 "KVBW_COUNT is unknown\n");
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

TEST(help)
{
    struct opts *o = fresh();
    struct buf b = BUF_INIT;
    ASSERT_OK(opts_help(o, "kvblend", "What it does.", &b));
    const char *text = buf_cstr(&b);
    ASSERT_TRUE(strstr(text, "Usage: kvblend [options] [file] [more") != NULL);
    ASSERT_TRUE(strstr(text, "  --listen TEXT             Address to listen on. [127.0.0.1:8010] "
                             "(listen)\n"));
    ASSERT_TRUE(strstr(text, "--dtype auto|f32|bf16") != NULL);
    ASSERT_TRUE(strstr(text, "--form a|b:N              Form. (form)\n") != NULL);
    ASSERT_TRUE(strstr(text, "hidden") == NULL);
    buf_fini(&b);
    opts_destroy(o);
}

/* What manual pages and completions are made of; tests/unit/bench/test_describe.py reads it. */
TEST(the_table_as_json)
{
    struct opts *o = NULL;
    struct buf b = BUF_INIT, none = BUF_INIT;
    char *argv[] = {"t", "--dump-options", "--nonsense"};
    ASSERT_OK(opts_create(defs, &o));
    ASSERT_EQ(opts_read(o, &(struct opt_args){3, argv, (char *[]){NULL}, "T"}, &none), 1);
    ASSERT_OK(opts_help(o, "t", "What \"it\" does.", &b));
    const char *text = buf_cstr(&b);
    ASSERT_OK(json_scan(text, strcspn(text, "\n"), &(struct json_val){0}, NULL));
    ASSERT_TRUE(strstr(text, "{\"program\":\"t\",\"about\":\"What \\\"it\\\" does.\"") == text);
    ASSERT_TRUE(strstr(text, "\"flag\":\"listen\",\"value\":\"TEXT\",\"words\":null,\"default\":"
                             "\"127.0.0.1:8010\"") != NULL);
    ASSERT_TRUE(strstr(text, "\"words\":\"auto|f32|bf16\"") != NULL);
    ASSERT_TRUE(strstr(text, "\"key\":\"listen\",\"variable\":\"T_LISTEN\"") != NULL);
    ASSERT_TRUE(strstr(text, "hidden") == NULL);
    buf_fini(&b);
    opts_destroy(o);
}

TEST(removed_options_say_so)
{
    char *env[] = {"T_MAP_TOKENS=9", "T_RATOI=1", NULL};
    struct opts *o = fresh();
    struct buf b = BUF_INIT;
    ASSERT_ERR(read_all(o, "--config strategy.map-tokens=9 --map-prompt x", env), -EINVAL);
    expect("command line: --map-prompt: was removed; kvblend-bench");
    ASSERT_TRUE(strstr(problems.data, "t:1: strategy.map-tokens: was removed; kvblend-") != NULL);
    ASSERT_TRUE(strstr(problems.data, "variable T_MAP_TOKENS: was removed; kvblend-") != NULL);
    opts_unknown_env(o, &(struct opt_args){0, NULL, env, "T"}, &b);
    ASSERT_TRUE(strstr(buf_cstr(&b), "T_RATOI is unknown; expected one like T_RATIO\n") != NULL);
    buf_fini(&b);
    opts_destroy(o);
    ASSERT_TRUE(opt_removed("Map_Tokens", NULL) && opt_removed("strategy.map-tokens", NULL));
    ASSERT_TRUE(!opt_removed("map", NULL) && !opt_removed("map-tokens", "9"));
    ASSERT_TRUE(opt_removed("worker.policy", "clock") && opt_removed("policy", "gdsf"));
    ASSERT_TRUE(opt_removed("worker.strategy", "map_rerank") && !opt_removed("strategy", "qs"));
    ASSERT_TRUE(!opt_removed("policy", "arc") && !opt_removed("policy", "clo"));
    ASSERT_TRUE(!opt_removed("policy", NULL) && !opt_removed("policy", ""));
    ASSERT_TRUE(opt_removed_section("strategy") && !opt_removed_section("strat"));
}

TEST(secrets_leave_the_command_line)
{
    static const struct opt_def table[] = {{.name = "api-key", .props = OPT_SECRET},
                                           {.name = "redis", .props = OPT_SECRET},
                                           {.name = "api-keys"},
                                           {.name = "listen"},
                                           {0}};
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
    struct opts *o;
    ASSERT_OK(opts_create(table, &o));
    opts_hide_argv(o, N + 1, argv);
    opts_destroy(o);
    for (size_t i = 0; i < N; i++)
        ASSERT_STREQ(argv[i + 1], cases[i].is);
}

TEST(every_allocation_may_fail)
{
    char *env[] = {"T_MORE=a,b", NULL};
    for (unsigned n = 1;; n++) {
        struct opts *o = NULL;
        mem_fail_nth(n);
        int r = opts_create(defs, &o);
        if (r == 0) r = read_all(o, "--listen x --config cache.ram=1GiB;key=f1;key=f2", env);
        bool fired = mem_fail_fired();
        mem_fail_nth(0);
        opts_destroy(o);
        ASSERT_EQ(r, fired ? -ENOMEM : 0);
        if (!fired) break;
    }
    buf_fini(&problems);
}
