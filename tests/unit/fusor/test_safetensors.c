/* safetensors: headers that lie are refused with a sentence; seeded damage; shards by index. */
#include "fusor/model/safetensors.h"

#include "base/mem.h"
#include "fusor/model/tensors.h"
#include "tests/unit/fusor/model_files.h"

#include <sys/stat.h>

/* A file of a header text and `data_bytes` of data; header_len < 0: the true length. */
static void make_file(struct buf *b, const char *header, long long header_len, size_t data_bytes)
{
    put_u64(b, header_len < 0 ? strlen(header) : (uint64_t)header_len);
    put(b, header, strlen(header));
    for (size_t i = 0; i < data_bytes; i++)
        ASSERT_OK(buf_addc(b, (char)i));
}

static int open_buf(struct buf *b, struct st_set **ret, struct err *err)
{
    struct mem_file f;
    mem_file_init(&f, b->data, b->len);
    int r = st_open_file(f.path, ret, err);
    mem_file_fini(&f);
    buf_fini(b);
    return r;
}

TEST(shapes_types_and_places)
{
    struct buf b = BUF_INIT;
    struct st_set *s;
    make_file(&b,
              "{\"__metadata__\":{\"format\":\"pt\"},"
              "\"m\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[4,28]},"
              "\"v\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]},"
              "\"i\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[28,36]},"
              "\"new\":{\"dtype\":\"F4_X\",\"shape\":[9],\"data_offsets\":[36,40]}}",
              -1, 40);
    ASSERT_OK(open_buf(&b, &s, NULL));
    struct tensors *ts = st_tensors(s);
    ASSERT_OK(tensors_sort(ts, NULL));
    ASSERT_EQ(ts->n, 4);
    const struct tensor *m = tensors_find(ts, "m"), *v = tensors_find(ts, "v");
    ASSERT_EQ(m->rows, 2);
    ASSERT_EQ(m->cols, 3);
    ASSERT_EQ(m->type->id, QUANT_F32);
    ASSERT_EQ(m->data[0], 4);
    ASSERT_EQ(v->n_dims, 1);
    ASSERT_EQ(v->cols, 2);
    ASSERT_EQ(v->type->id, QUANT_BF16);
    ASSERT_TRUE(tensors_find(ts, "i")->type == NULL);
    ASSERT_TRUE(tensors_find(ts, "new")->type == NULL);
    ASSERT_STREQ(tensors_find(ts, "new")->type_name, "F4_X");
    ASSERT_TRUE(tensors_find(ts, "__metadata__") == NULL);
    st_close(s);
}

#define T(rest) "{\"t\":{" rest "}}"
static const struct {
    const char *header;
    long long header_len;
    size_t data_bytes;
    const char *why;
} lies[] = {
    {"{}", 100, 0, "claims a header of 100 bytes"},
    {"{}", INT64_MAX, 0, "claims a header"},
    {"{\"t\":", -1, 0, "JSON is not valid"},
    {"[1]", -1, 0, "JSON is not an object"},
    {"", -1, 0, "JSON is not valid"},
    {T("\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]"), -1, 15, "outside the file"},
    {T("\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[-16,0]"), -1, 16, "outside the file"},
    {T("\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[16,0]"), -1, 16, "outside the file"},
    {T("\"dtype\":\"F32\",\"shape\":[5],\"data_offsets\":[0,16]"), -1, 16, "does not fit its size"},
    {T("\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]"), -1, 0,
     "absurd shape"},
    {T("\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]"), -1, 0,
     "does not fit its size"},
    {T("\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,16]"), -1, 16, "damaged shape"},
    {T("\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,16]"), -1, 16, "damaged shape"},
    {T("\"dtype\":\"F32\",\"shape\":4,\"data_offsets\":[0,16]"), -1, 16, "damaged shape"},
    {T("\"dtype\":\"F32\",\"data_offsets\":[0,16]"), -1, 16, "damaged shape"},
    {T("\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,4],\"data_offsets\":[0,16]"), -1, 16,
     "damaged shape"},
    {T("\"shape\":[4],\"data_offsets\":[0,16]"), -1, 16, "damaged header entry"},
    {T("\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0]"), -1, 16, "damaged header entry"},
    {T("\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,\"16\"]"), -1, 16,
     "damaged header entry"},
    {"{\"t\":7}", -1, 16, "damaged header entry"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]},"
     "\"b\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[12,28]}}",
     -1, 28, "overlap"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},"
     "\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
     -1, 0, "JSON is not valid"},
};

TEST(lying_headers)
{
    for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        struct buf b = BUF_INIT;
        struct st_set *s = NULL;
        struct err err = {0};
        make_file(&b, lies[i].header, lies[i].header_len, lies[i].data_bytes);
        int r = open_buf(&b, &s, &err);
        if (r != -EBADMSG || s || !strstr(err.msg, lies[i].why))
            test_fail(__FILE__, __LINE__, "case %zu: %d \"%s\"", i, r, err.msg);
    }
}

TEST(deep_json)
{
    struct buf b = BUF_INIT;
    struct err err = {0};
    json_t *j = NULL;
    for (int i = 0; i < 1000000; i++)
        ASSERT_OK(buf_addc(&b, '['));
    ASSERT_ERR(st_json(b.data, b.len, JSON_REJECT_DUPLICATES, &j, &err), -EBADMSG);
    ASSERT_TRUE(strstr(err.msg, "nested too deeply") != NULL);
    buf_fini(&b);
    /* Brackets inside strings are text. */
    ASSERT_OK(buf_adds(&b, "{\"\\\"[[[\":\""));
    for (int i = 0; i < 100; i++)
        ASSERT_OK(buf_addc(&b, '['));
    ASSERT_OK(buf_adds(&b, "\"}"));
    ASSERT_OK(st_json(b.data, b.len, JSON_REJECT_DUPLICATES, &j, &err));
    json_decref(j);
    buf_fini(&b);
}

static void write_file(const char *dir, const char *name, const char *text, size_t len)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    ASSERT_TRUE(f != NULL);
    ASSERT_EQ(fwrite(text, 1, len, f), len);
    ASSERT_EQ(fclose(f), 0);
}

static void write_shard(const char *dir, const char *name, const char *tensor)
{
    char header[128];
    struct buf b = BUF_INIT;
    (void)snprintf(header, sizeof(header),
                   "{\"%s\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}", tensor);
    make_file(&b, header, -1, 16);
    write_file(dir, name, b.data, b.len);
    buf_fini(&b);
}

static const char index_name[] = "model.safetensors.index.json";

static int open_index(const char *dir, const char *index, struct st_set **ret, struct err *err)
{
    *ret = NULL;
    write_file(dir, index_name, index, strlen(index));
    return st_open_dir(dir, ret, err);
}

static void remove_all(const char *dir)
{
    static const char *const names[] = {"a.safetensors", "b.safetensors", index_name};
    char path[256];
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
        (void)unlink(path);
    }
    (void)rmdir(dir);
}

TEST(shards)
{
    char dir[] = "/tmp/test-shards-XXXXXX";
    struct st_set *s;
    struct err err = {0};
    ASSERT_TRUE(mkdtemp(dir) != NULL);
    ASSERT_ERR(st_open_dir(dir, &s, &err), -ENOENT);
    ASSERT_TRUE(strstr(err.msg, "has no model.safetensors") != NULL);
    write_shard(dir, "a.safetensors", "x");
    write_shard(dir, "b.safetensors", "y");
    ASSERT_OK(open_index(dir, "{\"weight_map\":{\"x\":\"a.safetensors\",\"y\":\"b.safetensors\"}}",
                         &s, &err));
    struct tensors *ts = st_tensors(s);
    ASSERT_OK(tensors_sort(ts, &err));
    ASSERT_TRUE(ts->n == 2 && tensors_find(ts, "x") && tensors_find(ts, "y"));
    st_close(s);

    ASSERT_ERR(open_index(dir, "{\"weight_map\":{\"x\":\"../a.safetensors\"}}", &s, &err),
               -EBADMSG);
    ASSERT_TRUE(strstr(err.msg, "no plain file name") != NULL);
    ASSERT_ERR(open_index(dir, "{\"weight_map\":{\"x\":7}}", &s, &err), -EBADMSG);
    ASSERT_ERR(open_index(dir, "{}", &s, &err), -EBADMSG);
    ASSERT_TRUE(strstr(err.msg, "weight_map") != NULL);
    ASSERT_ERR(open_index(dir, "{\"weight_map\":{\"x\":\"c.safetensors\"}}", &s, &err), -ENOENT);
    ASSERT_TRUE(strstr(err.msg, "c.safetensors") != NULL);
    ASSERT_TRUE(s == NULL);

    /* The same tensor in two shards. */
    write_shard(dir, "b.safetensors", "x");
    ASSERT_OK(open_index(dir, "{\"weight_map\":{\"x\":\"a.safetensors\",\"y\":\"b.safetensors\"}}",
                         &s, &err));
    ASSERT_ERR(tensors_sort(st_tensors(s), &err), -EBADMSG);
    ASSERT_TRUE(strstr(err.msg, "\"x\" is there twice") != NULL);
    st_close(s);
    remove_all(dir);
}

static double touch(const struct tensors *ts)
{
    static float out[1 << 16];
    double sum = 0;
    for (size_t i = 0; i < ts->n; i++) {
        const struct tensor *t = &ts->t[i];
        if (!t->type || t->size_bytes > sizeof(out)) continue;
        size_t n = t->size_bytes / t->type->bytes;
        quant_to_f32(t->type, t->data, n, out);
        for (size_t j = 0; j < n; j++)
            sum += isfinite(out[j]) ? (double)out[j] : 0;
    }
    return sum;
}

TEST(seeded_damage_gives_an_error_or_a_sound_file)
{
    size_t len, n_ok = 0;
    uint64_t seed = 2, head;
    uint8_t *p = read_whole(test_data("models/qwen2/model.safetensors"), &len);
    uint8_t *q = mem_alloc(len);
    ASSERT_TRUE(q != NULL);
    memcpy(&head, p, sizeof(head));
    for (int i = 0; i < 2000; i++) {
        struct mem_file f;
        struct st_set *s = NULL;
        struct err err = {0};
        size_t n = mutate(p, len, (size_t)head + 8, q, &seed);
        mem_file_init(&f, q, n);
        int r = st_open_file(f.path, &s, &err);
        if (r == 0) {
            n_ok++;
            ASSERT_TRUE(isfinite(touch(st_tensors(s))));
            st_close(s);
        } else {
            ASSERT_TRUE(r < 0 && !s && err.code == r && err.msg[0]);
        }
        mem_file_fini(&f);
    }
    ASSERT_TRUE(n_ok > 20 && n_ok < 1500); /* neither all harmless nor all fatal */
    mem_free(p);
    mem_free(q);
}
