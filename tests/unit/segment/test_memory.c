/* The learner's memory outlives its process, and nothing that is in a file can hurt. */
#include "base/buf.h"
#include "base/err.h"
#include "segment/segment.h"
#include "tests/test.h"

#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

static void document(char d, struct buf *out)
{
    uint64_t rng = 1000u * (unsigned char)d;
    for (int p = 0; p < 2; p++) {
        for (int i = 0; i < 40; i++)
            ASSERT_OK(buf_addf(out, "%sword%llu", i ? " " : "",
                               (unsigned long long)(test_rand(&rng) % 1000)));
        ASSERT_OK(buf_adds(out, ".\n\n"));
    }
}

/* The cuts of documents by letter, as text. */
static void cuts(struct seg_learner *l, const char *space, const char *order, bool dry,
                 struct buf *ret)
{
    struct buf b = BUF_INIT;
    struct seg_list found = {0};
    for (; *order; order++)
        document(*order, &b);
    ASSERT_OK(buf_adds(&b, "What is it?"));
    struct seg_text t = {"user", b.data, b.len};
    struct seg_opts o = {.learner = l, .space = space, .dry = dry};
    ASSERT_OK(seg_find(NULL, &o, &t, 1, &found));
    buf_clear(ret);
    ASSERT_OK(seg_format(&found, ret));
    ASSERT_TRUE(buf_cstr(ret) != NULL);
    seg_list_fini(&found);
    buf_fini(&b);
}

static struct seg_learner *learner(size_t bytes)
{
    struct seg_learner *l = NULL;
    ASSERT_OK(seg_learner_create(bytes, &l));
    return l;
}

/* Two tenants, one of whom has seen much. */
static struct seg_learner *taught(void)
{
    static const char *const orders[] = {"abcd", "cadb", "bdac", "dcba"};
    struct seg_learner *l = learner(SEG_LEARNER_BYTES);
    struct buf b = BUF_INIT;
    for (int i = 0; i < 4; i++)
        cuts(l, "k1/", orders[i], false, &b);
    for (int i = 0; i < 60; i++) { /* its tables grow */
        char many[] = {(char)(33 + i), (char)(34 + i), (char)(33 + (i * 7) % 60), 0};
        cuts(l, "k2/x", many, false, &b);
    }
    buf_fini(&b);
    return l;
}

TEST(a_restart_forgets_nothing)
{
    struct seg_learner *old = taught(), *new = learner(SEG_LEARNER_BYTES);
    struct buf b = BUF_INIT, want = BUF_INIT, got = BUF_INIT, first = BUF_INIT;
    ASSERT_OK(seg_learner_format(old, &b));
    ASSERT_OK(seg_learner_parse(new, b.data, b.len));
    cuts(old, "k1/", "bcda", true, &want);
    cuts(new, "k1/", "bcda", true, &got);
    ASSERT_STREQ(buf_cstr(&got), buf_cstr(&want));
    ASSERT_TRUE(strstr(buf_cstr(&want), "learned") || strstr(buf_cstr(&want), "known"));
    cuts(new, "k3/", "bcda", true, &first); /* a stranger sees nothing of it */
    ASSERT_TRUE(strcmp(buf_cstr(&first), buf_cstr(&want)) != 0);
    cuts(old, "k2/x", "!#%'", true, &want);
    cuts(new, "k2/x", "!#%'", true, &got);
    ASSERT_STREQ(buf_cstr(&got), buf_cstr(&want));
    seg_learner_free(old);
    seg_learner_free(new);
    buf_fini(&b);
    buf_fini(&want);
    buf_fini(&got);
    buf_fini(&first);
}

static void seal(struct buf *b)
{
    uint64_t sum = XXH3_64bits(b->data, b->len - 8);
    for (size_t i = 0; i < 8; i++)
        b->data[b->len - 8 + i] = (char)(sum >> 8 * i);
}

TEST(damaged_files_are_ignored)
{
    struct seg_learner *old = taught(), *new = learner(SEG_LEARNER_BYTES);
    struct seg_learner_stats st;
    struct buf b = BUF_INIT, x = BUF_INIT;
    uint64_t seed = 3;
    ASSERT_OK(seg_learner_format(old, &b));
    for (int i = 0; i < 300; i++) {
        buf_clear(&x);
        ASSERT_OK(buf_add(&x, b.data, b.len));
        if (i % 2)
            x.data[test_rand(&seed) % x.len] ^= (char)(1u << test_rand(&seed) % 8);
        else
            x.len = test_rand(&seed) % x.len;
        ASSERT_ERR(seg_learner_parse(new, x.data, x.len), -EBADMSG);
    }
    seg_learner_get_stats(new, &st);
    ASSERT_EQ(st.n_spaces, 0);
    /* A whole file with wrong contents: counts that lie, names without end, another version. */
    for (int i = 0; i < 300; i++) {
        buf_clear(&x);
        ASSERT_OK(buf_add(&x, b.data, b.len));
        x.data[8 + test_rand(&seed) % 60] = (char)test_rand(&seed);
        if (i % 3 == 0) x.len = 24 + test_rand(&seed) % (x.len - 24);
        seal(&x);
        (void)seg_learner_parse(new, x.data, x.len); /* whatever it says, nothing is overrun */
    }
    buf_clear(&x);
    ASSERT_OK(buf_add(&x, b.data, b.len));
    x.data[8]++;
    seal(&x);
    ASSERT_ERR(seg_learner_parse(new, x.data, x.len), -ESTALE);
    x.data[7]++; /* of a format that may have its sum elsewhere */
    ASSERT_ERR(seg_learner_parse(new, x.data, x.len), -ESTALE);
    struct seg_learner *small = learner(SEG_LEARNER_BYTES_MIN); /* takes what it has room for */
    ASSERT_OK(seg_learner_parse(small, b.data, b.len));
    seg_learner_get_stats(small, &st);
    ASSERT_TRUE(st.bytes <= SEG_LEARNER_BYTES_MIN);
    seg_learner_free(old);
    seg_learner_free(new);
    seg_learner_free(small);
    buf_fini(&b);
    buf_fini(&x);
}

TEST(files)
{
    char dir[] = "/tmp/kvb-memory-XXXXXX", path[64], link[64];
    struct seg_learner *l = taught(), *new = learner(SEG_LEARNER_BYTES);
    struct seg_learner_stats st;
    struct stat s;
    ASSERT_TRUE(mkdtemp(dir) != NULL);
    (void)snprintf(path, sizeof path, "%s/memory", dir);
    (void)snprintf(link, sizeof link, "%s/link", dir);
    ASSERT_ERR(seg_learner_load(new, path), -ENOENT);
    ASSERT_OK(seg_learner_save(l, path));
    ASSERT_OK(seg_learner_save(l, path));
    ASSERT_TRUE(stat(path, &s) == 0 && (s.st_mode & 0777) == 0600);
    ASSERT_OK(seg_learner_load(new, path));
    seg_learner_get_stats(new, &st);
    ASSERT_EQ(st.n_spaces, 2);
    ASSERT_EQ(symlink(path, link), 0);
    ASSERT_TRUE(seg_learner_load(new, link) < 0);
    ASSERT_TRUE(seg_learner_load(new, dir) < 0);
    ASSERT_TRUE(seg_learner_save(l, "/nowhere/at/all") < 0);
    ASSERT_TRUE(unlink(path) == 0 && unlink(link) == 0);
    ASSERT_EQ(rmdir(dir), 0); /* nothing else was left there */
    seg_learner_free(l);
    seg_learner_free(new);
}
