/* The configuration file: forms and refusals of YAML, with the place of each. */
#include "base/buf.h"
#include "base/mem.h"
#include "gateway/process/config.h"
#include "tests/test.h"

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

static const struct opt_def defs[] = {
    {.name = "listen", .type = OPT_STR},
    {.name = "cache.ram", .type = OPT_SIZE},
    {.name = "threads", .type = OPT_INT, .min = 1, .max = 64},
    {.name = "ratio", .type = OPT_DOUBLE, .max = 1},
    {.name = "reuse", .type = OPT_BOOL},
    {.name = "dtype", .type = OPT_ENUM, .values = "auto|f32|bf16"},
    {.name = "timeout", .type = OPT_DURATION},
    {.name = "key", .type = OPT_STR, .repeatable = true},
    {.name = "entry", .type = OPT_STR, .repeatable = true, .split = ";", .head = "url|at"},
    {.name = "config", .type = OPT_STR, .props = OPT_NO_KEY},
    {0}};

static struct buf problems;

static struct opts *fresh(void)
{
    struct opts *o = NULL;
    ASSERT_OK(opts_create(defs, &o));
    return o;
}

static int read_file(struct opts *o, const char *path, const char *flag, char *const *env)
{
    char *argv[] = {"kvblend", "--config", (char *)(uintptr_t)path, (char *)(uintptr_t)flag, NULL};
    char *none[] = {NULL};
    buf_fini(&problems);
    return opts_read(
        o, &(struct opt_args){flag ? 4 : 3, argv, env ? env : none, "T", gw_config_read_yaml},
        &problems);
}

/* A file of this text, which is named "t" in the problems. */
static int read_yaml(struct opts *o, const char *yaml, const char *flag, char *const *env)
{
    char dir[] = "/tmp/kvb-opt-XXXXXX", old[256];
    ASSERT_TRUE(getcwd(old, sizeof old) && mkdtemp(dir) && chdir(dir) == 0);
    FILE *f = fopen("t", "w");
    ASSERT_TRUE(f && fputs(yaml, f) >= 0 && fclose(f) == 0);
    int r = read_file(o, "t", flag, env);
    ASSERT_TRUE(unlink("t") == 0 && chdir(old) == 0 && rmdir(dir) == 0);
    return r;
}

static void expect(const char *sentence)
{
    if (strncmp(buf_cstr(&problems), sentence, strlen(sentence)) != 0)
        ASSERT_STREQ(buf_cstr(&problems), sentence);
}

TEST(all_problems_are_reported)
{
    char *env[] = {"T_THREADS=many", NULL};
    struct opts *o = fresh();
    ASSERT_ERR(read_yaml(o, "ratio: 2\nreuse: 3\n", "--dtype=f16", env), -EINVAL);
    expect("command line: --dtype: expected auto|f32|bf16, found \"f16\"\n"
           "environment variable T_THREADS: --threads: expected a whole number, found \"many\"\n"
           "t:1: ratio: expected a value from 0 to 1, found \"2\"\n"
           "t:2: reuse: expected true or false, found \"3\"\n");
    opts_destroy(o);
}

TEST(yaml_errors)
{
    static const char *const table[][2] = {
        {"threads: 2\nlisten:\n  x: 1\n", "t:3: listen: expected a value, found a mapping"},
        {"thread: 2\n", "t:1: thread: unknown key; expected one like \"threads\""},
        {"config: x\n", "t:1: config: unknown key"},
        {"threads: [1]\n", "t:1: threads: expected one value, found a list"},
        {"threads: 1\nTHREADS: 2\n", "t:2: THREADS: expected once, found again"},
        {"threads: x\n", "t:1: threads: expected a whole number, found \"x\""},
        {"- a\n", "t:1: expected \"key: value\" lines, found a list"},
        {"just text\n", "t:1: expected \"key: value\" lines, found \"just text\""},
        {"key:\n - {a: b}\n", "t:2: key: expected plain texts, found a mapping"},
        {"key: [[a]]\n", "t:1: key: expected one value, found a list"},
        {"entry: [{name: b}]\n", "t:1: entry: expected one of url|at"},
        {"a: &x 1\nb: *x\n", "t:1: a: unknown key"},
        {"listen: *x\n", "t:1: aliases are not supported"},
        {"listen: a\n---\nlisten: b\n", "t:2: expected one document, found more"},
        {"listen: \"unclosed\n", "t:2: not YAML: "},
        {"listen: a\n\tthreads: 1\n", "t:2: not YAML: "},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct opts *o = fresh();
        ASSERT_ERR(read_yaml(o, table[i][0], NULL, NULL), -EINVAL);
        expect(table[i][1]);
        opts_destroy(o);
    }
}

TEST(yaml_forms)
{
    static const char yaml[] = "# comment\ncache: {ram: 1MiB}\nLISTEN: ~\nkey:\n  - a b\n  - 'c'\n"
                               "reuse: no\ndtype: \"f32\"\ntimeout: 1.5s\n"
                               "entry: [u n=1, {n: 'x y', url: v, of: [a, b]}]\n";
    struct opts *o = fresh();
    ASSERT_OK(read_yaml(o, yaml, NULL, NULL));
    ASSERT_EQ(opt_size(o, "cache.ram"), 1 << 20);
    ASSERT_TRUE(!opt_given(o, "listen"));
    ASSERT_EQ(n_of(o, "key"), 2);
    ASSERT_STREQ(text_of(o, "key", 0), "a b");
    ASSERT_TRUE(!opt_bool(o, "reuse"));
    ASSERT_EQ(opt_duration_ms(o, "timeout"), 1500);
    ASSERT_STREQ(text_of(o, "entry", 0), "u n=1");
    ASSERT_STREQ(text_of(o, "entry", 1), "v n=\"x y\" of=a,b");
    opts_destroy(o);
    o = fresh();
    ASSERT_OK(read_yaml(o, "", NULL, NULL));
    opts_destroy(o);
}

TEST(file_errors)
{
    struct opts *o = fresh();
    ASSERT_ERR(read_file(o, "/nonexistent.yaml", NULL, NULL), -EINVAL);
    expect("/nonexistent.yaml:1: cannot be read: No such file");
    opts_destroy(o);
    o = fresh();
    ASSERT_ERR(read_file(o, "/", NULL, NULL), -EINVAL);
    expect("/:1: not YAML: ");
    opts_destroy(o);
}

TEST(every_allocation_of_a_file_may_fail)
{
    static const char yaml[] = "cache:\n  ram: 1GiB\nkey: [f1, f2]\nentry: [{url: a, b: c}]\n";
    for (unsigned n = 1;; n++) {
        struct opts *o = fresh();
        mem_fail_nth(n);
        int r = read_yaml(o, yaml, NULL, NULL);
        bool fired = mem_fail_fired();
        mem_fail_nth(0);
        opts_destroy(o);
        ASSERT_EQ(r, fired ? -ENOMEM : 0);
        if (!fired) break;
    }
    buf_fini(&problems);
}
