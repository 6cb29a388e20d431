/* gguf: typed reads, refusal of lying files with a sentence, and seeded damage. */
#include "fusor/model/gguf.h"

#include "base/mem.h"
#include "fusor/model/map.h"
#include "fusor/model/model.h"
#include "tests/unit/fusor/model_files.h"

static int open_buf(struct buf *b, struct gguf **ret, struct err *err)
{
    struct mem_file f;
    mem_file_init(&f, b->data, b->len);
    int r = gguf_open(f.path, ret, err);
    mem_file_fini(&f);
    buf_fini(b);
    return r;
}

/* The file is refused with `code` and a sentence that contains `why`. */
static void refused(struct buf *b, int code, const char *why)
{
    struct gguf *g = NULL;
    struct err err = {0};
    int r = open_buf(b, &g, &err);
    ASSERT_TRUE(g == NULL);
    if (r != code || !strstr(err.msg, why))
        test_fail(__FILE__, __LINE__, "%d \"%s\", wanted %d \"%s\"", r, err.msg, code, why);
}

TEST(typed_reads)
{
    struct gguf_build gb = {0};
    struct buf b = BUF_INIT;
    struct gguf *g;
    gb_kv_u32(&gb, "a.count", 7);
    gb_kv_f32(&gb, "a.eps", 0.5f);
    gb_kv_str(&gb, "a.name", "tiny");
    put_str(&gb.kv, "a.list");
    put_u32(&gb.kv, GGUF_ARR);
    put_u32(&gb.kv, GGUF_I16);
    put_u64(&gb.kv, 2);
    put(&gb.kv, "\xfe\xff\x05\x00", 4);
    put_str(&gb.kv, "a.words");
    put_u32(&gb.kv, GGUF_ARR);
    put_u32(&gb.kv, GGUF_STR);
    put_u64(&gb.kv, 3);
    put_str(&gb.kv, "x");
    put_str(&gb.kv, "");
    put_str(&gb.kv, "yz");
    put_str(&gb.kv, "a.yes");
    put_u32(&gb.kv, GGUF_BOOL);
    put(&gb.kv, "\1", 1);
    gb.n_kv += 3;
    gb_tensor(&gb, "t", 0, 2, 8, 64);
    gb_finish(&gb, &b);
    ASSERT_OK(open_buf(&b, &g, NULL));

    uint64_t u;
    double d;
    bool yes = false;
    const char *s;
    size_t len;
    int64_t i;
    ASSERT_EQ(gguf_u64(g, "a.count", &u), 1);
    ASSERT_EQ(u, 7);
    ASSERT_EQ(gguf_u64(g, "a.eps", &u), 0);
    ASSERT_EQ(gguf_u64(g, "absent", &u), 0);
    ASSERT_EQ(gguf_f64(g, "a.eps", &d), 1);
    ASSERT_NEAR(d, 0.5, 0);
    ASSERT_EQ(gguf_f64(g, "a.count", &d), 1);
    ASSERT_NEAR(d, 7, 0);
    ASSERT_EQ(gguf_bool(g, "a.yes", &yes), 1);
    ASSERT_TRUE(yes);
    ASSERT_STREQ(gguf_str(g, "a.name"), "tiny");
    ASSERT_TRUE(gguf_str(g, "a.count") == NULL);
    const struct gguf_kv *list = gguf_find(g, "a.list"), *words = gguf_find(g, "a.words");
    ASSERT_EQ(list->type, GGUF_I16);
    ASSERT_EQ(list->n, 2);
    ASSERT_EQ(gguf_arr_i64(list, 0, &i), 1);
    ASSERT_EQ(i, -2);
    ASSERT_EQ(gguf_arr_f64(list, 1, &d), 1);
    ASSERT_NEAR(d, 5, 0);
    ASSERT_EQ(gguf_arr_i64(list, 2, &i), 0);
    ASSERT_EQ(gguf_arr_str(words, 2, &s, &len), 1);
    ASSERT_MEMEQ(s, "yz", 2);
    ASSERT_EQ(gguf_arr_str(words, 1, &s, &len), 1);
    ASSERT_EQ(len, 0);
    ASSERT_EQ(gguf_arr_str(list, 0, &s, &len), 0);
    const struct tensor *t = tensors_find(gguf_tensors(g), "t");
    ASSERT_TRUE(t && t == gguf_tensors(g)->t);
    ASSERT_EQ(gguf_tensors(g)->n, 1);
    ASSERT_EQ(t->cols, 8);
    ASSERT_EQ(t->rows, 2);
    ASSERT_EQ(t->size_bytes, 64);
    ASSERT_TRUE(tensors_find(gguf_tensors(g), "u") == NULL);
    gguf_close(g);
}

TEST(not_a_gguf_file)
{
    struct buf b = BUF_INIT;
    put(&b, "GG", 2);
    refused(&b, -EBADMSG, "file ends");
    put(&b, "not a model at all, but long enough", 35);
    refused(&b, -EBADMSG, "is not a GGUF file");
    put(&b, "GGUF\1\0\0\0", 8);
    refused(&b, -ENOTSUP, "version 1");
    put(&b, "GGUF\0\0\0\3", 8);
    refused(&b, -ENOTSUP, "big-endian");
    struct err err = {0};
    struct gguf *g = NULL;
    ASSERT_ERR(gguf_open("/nonexistent/model.gguf", &g, &err), -ENOENT);
    ASSERT_TRUE(strstr(err.msg, "cannot be opened") != NULL);
    ASSERT_ERR(gguf_open("/dev/null", &g, &err), -EINVAL);
}

/* Counts that would make a trusting reader allocate or read wild. */
TEST(lying_counts)
{
    struct buf b = BUF_INIT;
    put(&b, "GGUF\3\0\0\0", 8);
    put_u64(&b, 0);
    put_u64(&b, UINT64_MAX);
    refused(&b, -EBADMSG, "metadata entries, more than the file");
    put(&b, "GGUF\3\0\0\0", 8);
    put_u64(&b, 1ull << 60);
    put_u64(&b, 0);
    refused(&b, -EBADMSG, "tensors, more than the file");

    struct gguf_build gb = {0};
    put_str(&gb.kv, "list");
    put_u32(&gb.kv, GGUF_ARR);
    put_u32(&gb.kv, GGUF_U64);
    put_u64(&gb.kv, 1ull << 61);
    gb.n_kv = 1;
    gb_finish(&gb, &b);
    refused(&b, -EBADMSG, "claims 2305843009213693952 elements");

    gb = (struct gguf_build){0};
    put_str(&gb.kv, "name");
    put_u32(&gb.kv, GGUF_STR);
    put_u64(&gb.kv, UINT64_MAX);
    gb.n_kv = 1;
    gb_finish(&gb, &b);
    refused(&b, -EBADMSG, "ends inside a metadata string");
}

TEST(bad_metadata)
{
    struct buf b = BUF_INIT;
    struct gguf_build gb = {0};
    gb_kv_u32(&gb, "twice", 1);
    gb_kv_u32(&gb, "twice", 2);
    gb_finish(&gb, &b);
    refused(&b, -EBADMSG, "\"twice\" is there twice");

    gb = (struct gguf_build){0};
    gb_kv_u32(&gb, "general.alignment", 24);
    gb_finish(&gb, &b);
    refused(&b, -EBADMSG, "alignment of 24");

    gb = (struct gguf_build){0};
    put_str(&gb.kv, "odd");
    put_u32(&gb.kv, 13);
    put_u64(&gb.kv, 0);
    gb.n_kv = 1;
    gb_finish(&gb, &b);
    refused(&b, -EBADMSG, "unknown type 13");

    gb = (struct gguf_build){0};
    put_str(&gb.kv, "nested");
    put_u32(&gb.kv, GGUF_ARR);
    put_u32(&gb.kv, GGUF_ARR);
    put_u64(&gb.kv, 1);
    gb.n_kv = 1;
    gb_finish(&gb, &b);
    refused(&b, -ENOTSUP, "array of arrays");
}

TEST(bad_tensors)
{
    static const struct {
        uint32_t type;
        uint64_t rows, cols, size;
        const char *why;
    } cases[] = {
        {0, 2, 0, 0, "absurd shape"},
        {0, 1ull << 40, 1ull << 40, 64, "absurd shape"},
        {0, 1ull << 31, 1ull << 31, 64, "absurd shape"},
        {0, 1ull << 20, 1ull << 20, 64, "outside the file"},
        {8, 2, 33, 128, "not a multiple of 32"},
        {0, 4, 16, 128, "outside the file"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct buf b = BUF_INIT;
        struct gguf_build gb = {0};
        gb_tensor(&gb, "t", cases[i].type, cases[i].rows, cases[i].cols, cases[i].size);
        gb_finish(&gb, &b);
        refused(&b, -EBADMSG, cases[i].why);
    }
    struct buf b = BUF_INIT;
    struct gguf_build gb = {0};
    gb_tensor(&gb, "same", 0, 0, 8, 32);
    gb_tensor(&gb, "same", 0, 0, 8, 32);
    gb_finish(&gb, &b);
    refused(&b, -EBADMSG, "\"same\" is there twice");
    gb = (struct gguf_build){0};
    gb_tensor(&gb, "a", 0, 0, 16, 32);
    gb_tensor(&gb, "b", 0, 0, 16, 96);
    gb_finish(&gb, &b);
    refused(&b, -EBADMSG, "overlap");
}

/* A type from the future is no reason to refuse a file whose header is sound. */
TEST(unknown_tensor_type_opens)
{
    struct buf b = BUF_INIT;
    struct gguf_build gb = {0};
    struct gguf *g;
    gb_tensor(&gb, "t", 99, 0, 8, 32);
    gb_tensor(&gb, "u", 0, 0, 8, 32);
    gb_finish(&gb, &b);
    ASSERT_OK(open_buf(&b, &g, NULL));
    ASSERT_EQ(tensors_find(gguf_tensors(g), "t")->size_bytes, 0);
    gguf_close(g);
}

TEST(every_truncation_is_refused)
{
    size_t len;
    uint8_t *p = read_whole(test_data("models/llama3.Q8_0.gguf"), &len);
    for (size_t n = 1; n < len; n += n < 3000 ? 7 : 4099) {
        struct mem_file f;
        struct gguf *g = NULL;
        struct err err = {0};
        mem_file_init(&f, p, n);
        ASSERT_ERR(gguf_open(f.path, &g, &err), -EBADMSG);
        ASSERT_TRUE(err.msg[0] && !g);
        mem_file_fini(&f);
    }
    mem_free(p);
}

static void read_everything(const struct model *m)
{
    static float out[1 << 16];
    for (unsigned l = 0; l < model_config(m)->L; l++) {
        for (int w = 0; w < MODEL_W_COUNT; w++) {
            if (!model_has(m, (enum model_w)w, l)) continue;
            size_t rows = model_w_rows(m, (enum model_w)w), cols = model_w_cols(m, (enum model_w)w);
            ASSERT_TRUE(rows * cols <= sizeof(out) / sizeof(out[0]));
            ASSERT_OK(model_rows(m, (enum model_w)w, l, 0, rows, out));
        }
    }
    float freqs[MODEL_W_COUNT + 512], mscale;
    model_rope_freqs(model_config(m), &model_config(m)->rope, freqs, &mscale);
}

static void damage(const char *rel)
{
    size_t len, n_ok = 0;
    uint64_t seed = 1;
    uint8_t *p = read_whole(test_data(rel), &len), *q = mem_alloc(len);
    ASSERT_TRUE(q != NULL);
    for (int i = 0; i < 2000; i++) {
        struct mem_file f;
        struct model *m = NULL;
        struct err err = {0};
        size_t n = mutate(p, len, 3000, q, &seed);
        mem_file_init(&f, q, n);
        int r = model_open(f.path, &m, &err);
        if (r == 0) {
            n_ok++;
            read_everything(m);
            model_close(m);
        } else {
            ASSERT_TRUE(r < 0 && m == NULL && err.code == r && err.msg[0]);
        }
        mem_file_fini(&f);
    }
    ASSERT_TRUE(n_ok > 20 && n_ok < 1500); /* neither all harmless nor all fatal */
    mem_free(p);
    mem_free(q);
}

TEST(seeded_damage_gives_an_error_or_a_sound_model)
{
    damage("models/qwen2.F32.gguf");
    damage("models/qwen2moe.F32.gguf");
    damage("models/mixtral.MXFP4.gguf");
}

/* Else fuzzing starts from nothing. */
TEST(the_seed_of_the_fuzz_target_is_a_mixture)
{
    struct model *m = NULL;
    struct err err = {0};
    if (model_open(test_data("../fuzz/corpus/gguf/mixture"), &m, &err) < 0)
        test_fail(__FILE__, __LINE__, "%s", err.msg);
    ASSERT_EQ(model_config(m)->experts.n, 2);
    ASSERT_EQ(model_config(m)->experts.shared_F, 2);
    read_everything(m);
    model_close(m);
}

TEST(every_failed_allocation_is_reported)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "%s", test_data("models/smollm2.F32.gguf"));
    for (unsigned n = 1;; n++) {
        struct gguf *g = NULL;
        struct err err = {0};
        mem_fail_nth(n);
        int r = gguf_open(path, &g, &err);
        bool fired = mem_fail_fired();
        mem_fail_nth(0);
        if (!fired) {
            ASSERT_OK(r);
            gguf_close(g);
            break;
        }
        ASSERT_ERR(r, -ENOMEM);
        ASSERT_TRUE(err.msg[0] && !g);
    }
}

TEST(mapping_a_file)
{
    struct map m = {0};
    struct err err = {0};
    struct mem_file f;
    mem_file_init(&f, "abc", 3);
    ASSERT_OK(map_open(f.path, &m, &err));
    ASSERT_EQ(m.size_bytes, 3);
    ASSERT_MEMEQ(m.data, "abc", 3);
    map_close(&m);
    map_close(&m);
    ASSERT_TRUE(m.data == NULL);
    ASSERT_EQ(ftruncate(f.fd, 0), 0);
    ASSERT_ERR(map_open(f.path, &m, &err), -EBADMSG);
    ASSERT_TRUE(strstr(err.msg, "is empty") != NULL);
    ASSERT_ERR(map_open("/tmp", &m, &err), -EINVAL);
    mem_file_fini(&f);
    char name[300];
    memset(name, 'x', sizeof(name));
    memcpy(name + 296, "end", 4);
    ASSERT_EQ(strlen(map_path_tail(name)), 100);
    ASSERT_STREQ(map_path_tail("/a/b"), "/a/b");
}
