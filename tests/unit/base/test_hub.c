/* Names of models on the hub: their form, what they mean among files, and the folder of the hub's
 * library. Downloads: tests/e2e/test_pull.py. */
#include "base/hub/hub_int.h"
#include "tests/test.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

TEST(names_have_a_form)
{
    static const struct {
        const char *text, *repo, *revision, *which;
    } names[] = {
        {"acme/tiny", "acme/tiny", "main", ""},
        {"hf:acme/tiny", "acme/tiny", "main", ""},
        {"A.b_c-1/2", "A.b_c-1/2", "main", ""},
        {"acme/tiny:Q4_K_M", "acme/tiny", "main", "Q4_K_M"},
        {"acme/tiny@v1.0:a/b.gguf", "acme/tiny", "v1.0", "a/b.gguf"},
        {"acme/tiny@refs/pr/1", "acme/tiny", "refs/pr/1", ""},
        {"hf:acme/tiny:Q8_0 (old).gguf", "acme/tiny", "main", "Q8_0 (old).gguf"},
        {"acme/tiny:a:b", "acme/tiny", "main", "a:b"},
    };
    static const char *const none[] = {
        "",           "tiny",        "/acme/tiny",   "acme/",           "acme/tiny/",
        "./tiny",     "../tiny",     "acme/..",      "acme/.tiny",      "acme/tiny-",
        "acme/ti--n", "acme/ti..n",  "-acme/tiny",   "acme/ti ny",      "acme//tiny",
        "a/b/c",      "acme/tiny:",  "acme/tiny@",   "acme/tiny@:Q4_0", "acme/tiny@a/../b",
        "a:b/c",      "acme/tiny:/", "acme/tiny:..", "acme/tiny:a\\b",  "acme/tiny@a b",
        "shape:x",    "ac\xc3\xa4/b"};
    struct hub_name n;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        ASSERT_EQ(hub_name_parse(names[i].text, &n), 1);
        ASSERT_STREQ(n.repo, names[i].repo);
        ASSERT_STREQ(n.revision, names[i].revision);
        ASSERT_STREQ(n.which, names[i].which);
    }
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        char meant[64];
        (void)snprintf(meant, sizeof meant, "hf:%s", none[i]);
        ASSERT_EQ(hub_name_parse(none[i], &n), 0);
        ASSERT_EQ(hub_name_parse(meant, &n), -EINVAL);
    }
    char longest[400] = "acme/";
    memset(longest + 5, 'x', 91);
    ASSERT_EQ(hub_name_parse(longest, &n), 1);
    longest[96] = 'x';
    ASSERT_EQ(hub_name_parse(longest, &n), 0);
}

static void pick(const char *const *paths, const char *name, int want, const char *file)
{
    struct hub_files f = {0};
    struct hub_name n;
    struct err err = {0};
    const char *got = "";
    for (; *paths; paths++)
        ASSERT_OK(hub_files_add(&f, *paths));
    ASSERT_EQ(hub_name_parse(name, &n), 1);
    ASSERT_EQ(hub_pick(&n, &f, &got, &err), want);
    if (want == 0 && file)
        ASSERT_STREQ(got, file);
    else if (want == 0)
        ASSERT_TRUE(got == NULL);
    else
        ASSERT_TRUE(strstr(err.msg, file) != NULL);
    hub_files_fini(&f);
}

TEST(a_name_means_one_model_or_nothing)
{
    static const char *const folder[] = {"config.json", "model.safetensors", "x-Q8_0.gguf", NULL};
    static const char *const sharded[] = {"config.json", "model-00001-of-00002.safetensors", NULL};
    static const char *const weightless[] = {"config.json", "onnx/model.safetensors", NULL};
    static const char *const one[] = {"config.json", "x.F16.gguf", "mmproj-x-F16.gguf", NULL};
    static const char *const several[] = {
        "x-Q4_0.gguf",  "x-Q4_K.gguf",     "x-Q4_K_M.gguf", "x-UD-Q4_K_M.gguf",
        "x-IQ4_0.gguf", "x-Q4_0_4_4.gguf", "X.q5_k_m.GGUF", NULL};
    static const char *const parts[] = {"x-Q8_0-00001-of-00002.gguf", "x-Q8_0-00002-of-00002.gguf",
                                        "BF16/x-00001-of-00001.gguf", NULL};
    pick(folder, "a/b", 0, NULL);
    pick(folder, "a/b:Q8_0", 0, "x-Q8_0.gguf");
    pick(folder, "a/b:model.safetensors", -ENOENT, "x-Q8_0.gguf");
    pick(sharded, "a/b", 0, NULL);
    pick(weightless, "a/b", -ENOENT, "neither");
    pick(one, "a/b", 0, "x.F16.gguf");
    pick(one, "a/b:f16", 0, "x.F16.gguf");
    pick(one, "a/b:mmproj-x-F16.gguf", 0, "mmproj-x-F16.gguf");
    pick(several, "a/b", -EINVAL, "x-Q4_K.gguf");
    pick(several, "a/b:Q4_0", 0, "x-Q4_0.gguf");
    pick(several, "a/b:q4_k", 0, "x-Q4_K.gguf");
    pick(several, "a/b:Q4_K_M", -EINVAL, "x-Q4_K_M.gguf, x-UD-Q4_K_M.gguf");
    pick(several, "a/b:UD-Q4_K_M", 0, "x-UD-Q4_K_M.gguf");
    pick(several, "a/b:x-Q4_K_M.gguf", 0, "x-Q4_K_M.gguf");
    pick(several, "a/b:Q5_K_M", 0, "X.q5_k_m.GGUF");
    pick(several, "a/b:Q6_K", -ENOENT, "no GGUF file Q6_K");
    pick(parts, "a/b:Q8_0", 0, "x-Q8_0-00001-of-00002.gguf");
    pick(parts, "a/b:BF16", 0, "BF16/x-00001-of-00001.gguf");
    ASSERT_EQ(hub_parts("x-Q8_0-00001-of-00002.gguf"), 2);
    ASSERT_EQ(hub_parts("x-Q8_0.gguf"), 1);
}

TEST(a_list_of_many_files_is_cut)
{
    struct hub_files f = {0};
    struct hub_name n;
    struct err err = {0};
    const char *got;
    char path[64];
    for (int i = 0; i < HUB_FILES_MAX; i++) {
        (void)snprintf(path, sizeof path, "a-file-with-a-long-name-%d.gguf", i);
        ASSERT_OK(hub_files_add(&f, path));
    }
    ASSERT_ERR(hub_files_add(&f, "one-more"), -ERANGE);
    ASSERT_EQ(hub_name_parse("a/b", &n), 1);
    ASSERT_ERR(hub_pick(&n, &f, &got, &err), -EINVAL);
    ASSERT_TRUE(strstr(err.msg, "-0.gguf, ") && strstr(err.msg, " more"));
    hub_files_fini(&f);
}

TEST(what_a_loader_reads_is_needed)
{
    static const char *const of_folder[] = {"config.json",
                                            "tokenizer.json",
                                            "chat_template.jinja",
                                            "model.safetensors",
                                            "model-00001-of-00002.safetensors",
                                            "1_Pooling/config.json"};
    static const char *const other[] = {
        "README.md", "pytorch_model.bin",  "consolidated.safetensors", "onnx/config.json",
        "x.gguf",    "1_Pooling/README.md"};
    for (size_t i = 0; i < sizeof of_folder / sizeof *of_folder; i++)
        ASSERT_TRUE(hub_needs(NULL, of_folder[i]));
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        ASSERT_TRUE(!hub_needs(NULL, other[i]));
    ASSERT_TRUE(hub_needs("x.gguf", "x.gguf"));
    ASSERT_TRUE(!hub_needs("x.gguf", "y.gguf"));
    ASSERT_TRUE(hub_needs("x-00001-of-00012.gguf", "x-00012-of-00012.gguf"));
    ASSERT_TRUE(!hub_needs("x-00001-of-00012.gguf", "x-00002-of-00013.gguf"));
    ASSERT_TRUE(!hub_needs("x-00001-of-00012.gguf", "y-00002-of-00012.gguf"));
}

/* ---- the folder ---- */

static const char *const variables[] = {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME",
                                        "XDG_CACHE_HOME", "HOME"};

static void check_dir(const char *want)
{
    struct buf b = BUF_INIT;
    ASSERT_OK(hub_cache_dir(&b, NULL));
    ASSERT_STREQ(buf_cstr(&b), want);
    buf_fini(&b);
}

TEST(the_folder_is_the_hubs_librarys)
{
    struct buf b = BUF_INIT;
    struct err err = {0};
    for (size_t i = 0; i < 5; i++)
        ASSERT_EQ(unsetenv(variables[i]), 0);
    ASSERT_ERR(hub_cache_dir(&b, &err), -ENOENT);
    (void)setenv("HOME", "/h", 1);
    check_dir("/h/.cache/huggingface/hub");
    (void)setenv("XDG_CACHE_HOME", "/x", 1);
    check_dir("/x/huggingface/hub");
    (void)setenv("HF_HOME", "~/hf", 1);
    check_dir("/h/hf/hub");
    (void)setenv("HUGGINGFACE_HUB_CACHE", "/old", 1);
    check_dir("/old");
    (void)setenv("HF_HUB_CACHE", "/new", 1);
    check_dir("/new");
    (void)setenv("HF_HUB_CACHE", "", 1);
    check_dir("/old");
}

static const char commit[] = "0123456789abcdef0123456789abcdef01234567";

static void put(const char *root, const char *path, const char *text)
{
    char at[600];
    (void)snprintf(at, sizeof at, "%s/%s", root, path);
    for (char *p = at + strlen(root); (p = strchr(p + 1, '/'));) {
        *p = '\0';
        (void)mkdir(at, 0700);
        *p = '/';
    }
    const int fd = open(at, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ASSERT_TRUE(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    (void)close(fd);
}

static int drop(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    return remove(path);
}

static void check_find(const char *model, int want, const char *ending)
{
    struct buf b = BUF_INIT;
    struct err err = {0};
    ASSERT_EQ(hub_find(model, &b, &err), want);
    const char *text = want == 0 ? buf_cstr(&b) : err.msg;
    const size_t n = strlen(text), e = strlen(ending);
    if (want == 0)
        ASSERT_TRUE(n >= e && strcmp(text + n - e, ending) == 0);
    else
        ASSERT_TRUE(strstr(text, ending) != NULL);
    buf_fini(&b);
}

TEST(a_model_is_found_by_its_name)
{
    char root[] = "/tmp/kvb-hub-XXXXXX", text[120];
    ASSERT_TRUE(mkdtemp(root) != NULL);
    (void)setenv("HF_HUB_CACHE", root, 1);
    put(root, "models--a--b/refs/main", commit);
    put(root, "models--a--b/refs/odd", "../../../etc");
    put(root, "models--a--b/snapshots/0123456789abcdef0123456789abcdef01234567/d/x-Q8_0.gguf", "x");
    check_find("a/b", 0, "/snapshots/0123456789abcdef0123456789abcdef01234567/d/x-Q8_0.gguf");
    (void)snprintf(text, sizeof text, "hf:a/b@%s:Q8_0", commit);
    check_find(text, 0, "/d/x-Q8_0.gguf");
    check_find("a/b:Q4_0", -ENOENT, "kvblend pull a/b:Q4_0");
    check_find("a/b@odd", -ENOENT, root);
    check_find("a/c", -ENOENT, root);
    check_find("hf:c", -EINVAL, "hf:ORG/NAME");
    check_find("c.gguf", 0, "c.gguf");
    check_find(root, 0, root);
    for (unsigned i = 1;; i++) { /* out of memory leaves nothing behind */
        struct buf b = BUF_INIT;
        mem_fail_nth(i);
        const int r = hub_find("a/b", &b, NULL);
        const bool fired = mem_fail_fired();
        mem_fail_nth(0);
        ASSERT_EQ(r, fired ? -ENOMEM : 0);
        buf_fini(&b);
        if (!fired) break;
    }
    ASSERT_EQ(nftw(root, drop, 8, FTW_DEPTH | FTW_PHYS), 0);
}
