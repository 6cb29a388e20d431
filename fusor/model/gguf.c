/* One pass with a bounds-checked cursor over the header, then one over the tensor table. Nothing is
 * copied but names, strings and the index of string arrays. Counts are checked against the bytes
 * that are left before anything is allocated for them, so a lying count cannot ask for more memory
 * than a small multiple of the file. */
#include "fusor/model/gguf.h"

#include "base/assert.h"
#include "base/buf.h"
#include "base/mem.h"
#include "fusor/model/map.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    NAME_BYTES_MAX = 65535, /* keys: the format's own limit; tensor names are shorter */
    ALIGN_DEFAULT = 32,     /* the format's own default */
    ALIGN_MAX = 1 << 20,    /* chosen: far above any page size in use */
    KV_BYTES_MIN = 13,      /* an entry: key length, type, one byte */
    TENSOR_BYTES_MIN = 32   /* an entry: name length, n_dims, one dimension, type, offset */
};

struct gguf {
    struct map map;
    struct arena arena; /* names and strings */
    struct gguf_kv *kv;
    size_t n_kv;
    struct tensors tensors;
    uint64_t *offset;   /* per tensor, from the start of the data part; while the file is read */
    struct gguf **part; /* the other files of a split one, whose tensors are in the table, too */
    size_t n_parts, n_parts_all; /* that are open; with this one */
};

struct cursor {
    const uint8_t *p;
    size_t left;
    struct err *err;
};

static const uint8_t size_of_type[] = {
    [GGUF_U8] = 1,  [GGUF_I8] = 1,  [GGUF_U16] = 2,  [GGUF_I16] = 2, [GGUF_U32] = 4,
    [GGUF_I32] = 4, [GGUF_F32] = 4, [GGUF_BOOL] = 1, [GGUF_STR] = 0, [GGUF_ARR] = 0,
    [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8,
};
static_assert(sizeof(size_of_type) == GGUF_F64 + 1, "one size per metadata type");

static int truncated(struct cursor *c, const char *what)
{
    (void)err_set(c->err, -EBADMSG, "file ends inside %s", what);
    return -EBADMSG;
}

static int take_bytes(struct cursor *c, size_t n, const uint8_t **ret, const char *what)
{
    if (n > c->left) return truncated(c, what);
    *ret = c->p;
    c->p += n;
    c->left -= n;
    return 0;
}

/* A number as the machine has it: both are little-endian. */
static int take_number(struct cursor *c, void *ret, size_t size, const char *what)
{
    const uint8_t *p;
    int r = take_bytes(c, size, &p, what);
    if (r == 0) memcpy(ret, p, size);
    return r;
}

static int take_str(struct cursor *c, const uint8_t **ret, size_t *ret_len, const char *what)
{
    uint64_t len = 0;
    int r = take_number(c, &len, sizeof(len), what);
    if (r < 0) return r;
    if (len > c->left) return truncated(c, what);
    *ret_len = (size_t)len;
    return take_bytes(c, (size_t)len, ret, what);
}

static int copy_str(struct gguf *g, struct cursor *c, const uint8_t *p, size_t len,
                    const char **ret)
{
    *ret = arena_strndup(&g->arena, (const char *)p, len);
    return *ret ? 0 : err_set(c->err, -ENOMEM, "out of memory");
}

/* A name: bounded, not empty, without NUL or control bytes; copied. */
static int take_name(struct gguf *g, struct cursor *c, const char **ret, const char *what)
{
    const uint8_t *p;
    size_t len;
    int r = take_str(c, &p, &len, what);
    if (r < 0) return r;
    if (len == 0 || len > NAME_BYTES_MAX)
        return err_set(c->err, -EBADMSG, "%s has a length of %zu", what, len);
    for (size_t i = 0; i < len; i++)
        if (p[i] < 0x20) return err_set(c->err, -EBADMSG, "%s is damaged", what);
    return copy_str(g, c, p, len, ret);
}

static int read_array(struct cursor *c, struct gguf_kv *kv)
{
    uint32_t type = 0;
    uint64_t n = 0;
    int r = take_number(c, &type, sizeof(type), "an array");
    if (r == 0) r = take_number(c, &n, sizeof(n), "an array");
    if (r < 0) return r;
    if (type == GGUF_ARR)
        return err_set(c->err, -ENOTSUP, "\"%.80s\" is an array of arrays", kv->key);
    if (type > GGUF_F64)
        return err_set(c->err, -EBADMSG, "\"%.80s\" has the unknown element type %u", kv->key,
                       type);
    size_t each = type == GGUF_STR ? sizeof(uint64_t) : size_of_type[type];
    if (n > c->left / each)
        return err_set(c->err, -EBADMSG, "\"%.80s\" claims %llu elements, more than the file",
                       kv->key, (unsigned long long)n);
    kv->type = (enum gguf_type)type;
    kv->is_array = true;
    kv->n = (size_t)n;
    if (type != GGUF_STR) return take_bytes(c, kv->n * each, &kv->data, "an array");
    kv->str = mem_alloc(kv->n * sizeof(*kv->str));
    if (!kv->str) return err_set(c->err, -ENOMEM, "out of memory");
    for (size_t i = 0; i < kv->n; i++) {
        const uint8_t *s;
        size_t len;
        kv->str[i] = c->p;
        r = take_str(c, &s, &len, "an array of strings");
        if (r < 0) return r;
    }
    return 0;
}

static int read_kv(struct gguf *g, struct cursor *c, struct gguf_kv *kv)
{
    uint32_t type = 0;
    int r = take_name(g, c, &kv->key, "a metadata key");
    if (r == 0) r = take_number(c, &type, sizeof(type), "the metadata");
    if (r < 0) return r;
    if (type > GGUF_F64)
        return err_set(c->err, -EBADMSG, "\"%.80s\" has the unknown type %u", kv->key, type);
    kv->type = (enum gguf_type)type;
    if (type == GGUF_ARR) return read_array(c, kv);
    if (type == GGUF_STR) {
        const uint8_t *p;
        size_t len;
        r = take_str(c, &p, &len, "a metadata string");
        return r < 0 ? r : copy_str(g, c, p, len, &kv->text);
    }
    return take_bytes(c, size_of_type[type], &kv->data, "the metadata");
}

/* Shape, type and size. An unknown type gives 0 bytes: the file as such is fine, and the reader of
 * the tensor refuses it by name. */
static int describe_tensor(struct cursor *c, struct tensor *t, const uint64_t dims[4], uint32_t id)
{
    size_t n = 1;
    for (unsigned d = 0; d < 4; d++)
        if (dims[d] == 0 || dims[d] > INT64_MAX || !size_mul(n, (size_t)dims[d], &n))
            return err_set(c->err, -EBADMSG, "tensor \"%.80s\" has an absurd shape", t->name);
    while (t->n_dims > 1 && dims[t->n_dims - 1] == 1)
        t->n_dims--;
    t->cols = (size_t)dims[0];
    t->rows = (size_t)dims[1];
    t->planes = (size_t)dims[2];
    t->type = quant_type(id);
    if (!t->type) {
        (void)snprintf(t->type_name, sizeof(t->type_name), "ggml %u", id);
        return 0;
    }
    (void)snprintf(t->type_name, sizeof(t->type_name), "%s", t->type->name);
    if (t->cols % t->type->block != 0)
        return err_set(c->err, -EBADMSG, "tensor \"%.80s\" has rows of %zu, not a multiple of %u",
                       t->name, t->cols, t->type->block);
    if (!size_mul(n / t->type->block, t->type->bytes, &t->size_bytes))
        return err_set(c->err, -EBADMSG, "tensor \"%.80s\" has an absurd shape", t->name);
    return 0;
}

static int read_tensor(struct gguf *g, struct cursor *c, size_t i)
{
    struct tensor *t = &g->tensors.t[i];
    uint64_t dims[4] = {1, 1, 1, 1};
    uint32_t type = 0;
    *t = (struct tensor){0};
    int r = take_name(g, c, &t->name, "a tensor name");
    if (r == 0) r = take_number(c, &t->n_dims, sizeof(t->n_dims), "the tensor table");
    if (r < 0) return r;
    if (t->n_dims < 1 || t->n_dims > 4)
        return err_set(c->err, -EBADMSG, "tensor \"%.80s\" has %u dimensions", t->name, t->n_dims);
    for (unsigned d = 0; d < t->n_dims && r == 0; d++)
        r = take_number(c, &dims[d], sizeof(dims[d]), "the tensor table");
    if (r == 0) r = take_number(c, &type, sizeof(type), "the tensor table");
    if (r == 0) r = take_number(c, &g->offset[i], sizeof(g->offset[i]), "the tensor table");
    return r < 0 ? r : describe_tensor(c, t, dims, type);
}

static int place_tensors(struct gguf *g, size_t data_at, size_t align, struct err *err)
{
    if (g->tensors.n == 0) return 0;
    if (data_at > g->map.size_bytes) return err_set(err, -EBADMSG, "file ends before its tensors");
    size_t room = g->map.size_bytes - data_at;
    for (size_t i = 0; i < g->tensors.n; i++) {
        struct tensor *t = &g->tensors.t[i];
        if (g->offset[i] % align != 0)
            return err_set(err, -EBADMSG, "tensor \"%.80s\" is not aligned", t->name);
        if (g->offset[i] > room || t->size_bytes > room - g->offset[i])
            return err_set(err, -EBADMSG,
                           "tensor \"%.80s\" lies outside the file (truncated download?)", t->name);
        t->data = g->map.data + data_at + g->offset[i];
    }
    int r = tensors_check_overlap(&g->tensors, 0, err);
    return r < 0 ? r : tensors_sort(&g->tensors, err);
}

static int by_key(const void *a, const void *b)
{
    const struct gguf_kv *x = a, *y = b;
    return strcmp(x->key, y->key);
}

static int read_metadata(struct gguf *g, struct cursor *c, uint64_t n)
{
    if (n > c->left / KV_BYTES_MIN)
        return err_set(c->err, -EBADMSG, "claims %llu metadata entries, more than the file",
                       (unsigned long long)n);
    g->kv = mem_zalloc((size_t)n * sizeof(*g->kv));
    if (!g->kv) return err_set(c->err, -ENOMEM, "out of memory");
    g->n_kv = (size_t)n;
    for (size_t i = 0; i < g->n_kv; i++) {
        int r = read_kv(g, c, &g->kv[i]);
        if (r < 0) return r;
    }
    if (g->n_kv > 0) qsort(g->kv, g->n_kv, sizeof(*g->kv), by_key);
    for (size_t i = 1; i < g->n_kv; i++)
        if (by_key(&g->kv[i - 1], &g->kv[i]) == 0)
            return err_set(c->err, -EBADMSG, "\"%.80s\" is there twice", g->kv[i].key);
    return 0;
}

static int read_tensors(struct gguf *g, struct cursor *c, uint64_t n)
{
    if (n > c->left / TENSOR_BYTES_MIN)
        return err_set(c->err, -EBADMSG, "claims %llu tensors, more than the file",
                       (unsigned long long)n);
    g->offset = mem_zalloc((size_t)n * sizeof(*g->offset));
    if (!g->offset || tensors_reserve(&g->tensors, (size_t)n) < 0)
        return err_set(c->err, -ENOMEM, "out of memory");
    g->tensors.n = (size_t)n;
    for (size_t i = 0; i < g->tensors.n; i++) {
        int r = read_tensor(g, c, i);
        if (r < 0) return r;
    }
    return 0;
}

static int read_all(struct gguf *g, struct err *err)
{
    struct cursor c = {g->map.data, g->map.size_bytes, err};
    const uint8_t *magic;
    uint32_t version = 0;
    uint64_t n_tensors = 0, n_kv = 0;
    int r = take_bytes(&c, 4, &magic, "its first bytes");
    if (r < 0) return r;
    if (memcmp(magic, "GGUF", 4) != 0) return err_set(err, -EBADMSG, "is not a GGUF file");
    r = take_number(&c, &version, sizeof(version), "the header");
    if (r < 0) return r;
    if (version == __builtin_bswap32(2) || version == __builtin_bswap32(3))
        return err_set(err, -ENOTSUP, "is a big-endian GGUF file");
    if (version != 2 && version != 3)
        return err_set(err, -ENOTSUP, "has GGUF version %u, known are 2 and 3", version);
    r = take_number(&c, &n_tensors, sizeof(n_tensors), "the header");
    if (r == 0) r = take_number(&c, &n_kv, sizeof(n_kv), "the header");
    if (r == 0) r = read_metadata(g, &c, n_kv);
    if (r == 0) r = read_tensors(g, &c, n_tensors);
    if (r < 0) return r;

    uint64_t align = ALIGN_DEFAULT;
    (void)gguf_u64(g, "general.alignment", &align);
    if (align < 8 || align > ALIGN_MAX || (align & (align - 1)) != 0)
        return err_set(err, -EBADMSG, "has an alignment of %llu", (unsigned long long)align);
    size_t at = (size_t)(c.p - g->map.data);
    at = (at + (size_t)align - 1) & ~((size_t)align - 1);
    return place_tensors(g, at, (size_t)align, err);
}

static int open_one(const char *path, struct gguf **ret, struct err *err)
{
    struct gguf *g = mem_zalloc(sizeof(*g));
    if (!g) return err_set(err, -ENOMEM, "%s: out of memory", map_path_tail(path));
    arena_init(&g->arena);
    struct err inner = {0};
    int r = map_open(path, &g->map, err);
    if (r == 0 && (r = read_all(g, &inner)) < 0)
        r = err_set(err, r, "%s: %s", map_path_tail(path), inner.msg);
    if (r < 0)
        gguf_close(g);
    else
        *ret = g;
    return r;
}

/* ---- split files: NAME-00001-of-00003.gguf and so on, the first with the metadata ---- */

/* One more file's tensors, if it says that it is part `no` of as many. */
static int add_part(struct gguf *g, const char *path, uint64_t no, struct err *err)
{
    struct gguf *p = NULL;
    uint64_t is = 0, of = 0;
    int r = open_one(path, &p, err);
    if (r < 0) return r;
    g->part[g->n_parts++] = p;
    (void)gguf_u64(p, "split.no", &is);
    (void)gguf_u64(p, "split.count", &of);
    if (is != no || of != g->n_parts_all)
        return err_set(err, -EBADMSG, "%s: is not part %llu of %llu", map_path_tail(path),
                       (unsigned long long)no + 1, (unsigned long long)g->n_parts_all);
    if (tensors_reserve(&g->tensors, p->tensors.n) < 0)
        return err_set(err, -ENOMEM, "%s: out of memory", map_path_tail(path));
    if (p->tensors.n)
        memcpy(g->tensors.t + g->tensors.n, p->tensors.t, p->tensors.n * sizeof(*p->tensors.t));
    g->tensors.n += p->tensors.n;
    return 0;
}

static int add_parts(struct gguf *g, const char *path, uint64_t count, struct err *err)
{
    char first[32];
    const int tail =
        snprintf(first, sizeof(first), "-00001-of-%05llu.gguf", (unsigned long long)count);
    const size_t len = strlen(path), stem = len - (size_t)tail;
    struct buf other = BUF_INIT;
    uint64_t no = 0, all = 0;
    (void)gguf_u64(g, "split.no", &no);
    if (no != 0 || len <= (size_t)tail || strcmp(path + stem, first) != 0)
        return err_set(err, -ENOTSUP, "%s: is one of %llu parts: name the first, …%s",
                       map_path_tail(path), (unsigned long long)count, first);
    g->part = mem_zalloc((size_t)count * sizeof(*g->part));
    int r = g->part ? 0 : err_set(err, -ENOMEM, "%s: out of memory", map_path_tail(path));
    g->n_parts_all = count;
    for (no = 1; r == 0 && no < count; no++) {
        buf_clear(&other);
        r = buf_addf(&other, "%.*s-%05llu-of-%05llu.gguf", (int)stem, path,
                     (unsigned long long)no + 1, (unsigned long long)count);
        if (r == 0) r = add_part(g, buf_cstr(&other), no, err);
    }
    buf_fini(&other);
    struct err inner = {0};
    if (r == 0 && (r = tensors_sort(&g->tensors, &inner)) < 0)
        r = err_set(err, r, "%s: %s", map_path_tail(path), inner.msg);
    if (r == 0 && gguf_u64(g, "split.tensors.count", &all) && all != g->tensors.n)
        r = err_set(err, -EBADMSG, "%s: its parts have %zu of %llu tensors", map_path_tail(path),
                    g->tensors.n, (unsigned long long)all);
    return r;
}

int gguf_open(const char *path, struct gguf **ret, struct err *err)
{
    enum { PARTS_MAX = 1024 }; /* chosen: of a file each */
    struct gguf *g = NULL;
    uint64_t count = 0;
    int r = open_one(path, &g, err);
    if (r < 0) return r;
    (void)gguf_u64(g, "split.count", &count);
    if (count > PARTS_MAX)
        r = err_set(err, -EBADMSG, "%s: claims %llu parts", map_path_tail(path),
                    (unsigned long long)count);
    else if (count > 1)
        r = add_parts(g, path, count, err);
    if (r < 0)
        gguf_close(g);
    else
        *ret = g;
    return r;
}

void gguf_close(struct gguf *g)
{
    if (!g) return;
    for (size_t i = 0; i < g->n_parts; i++)
        gguf_close(g->part[i]);
    mem_free(g->part);
    for (size_t i = 0; i < g->n_kv; i++)
        mem_free(g->kv[i].str);
    mem_free(g->kv);
    tensors_fini(&g->tensors);
    mem_free(g->offset);
    arena_fini(&g->arena);
    map_close(&g->map);
    mem_free(g);
}

void gguf_drop_pages(const struct gguf *g)
{
    map_drop_pages(&g->map);
    for (size_t i = 0; i < g->n_parts; i++)
        gguf_drop_pages(g->part[i]);
}

const struct gguf_kv *gguf_find(const struct gguf *g, const char *key)
{
    struct gguf_kv want = {.key = key};
    if (g->n_kv == 0) return NULL;
    return bsearch(&want, g->kv, g->n_kv, sizeof(*g->kv), by_key);
}

/* One number of any integer type; u64 values above INT64_MAX do not fit and count as other type. */
static int number_i64(enum gguf_type t, const uint8_t *p, int64_t *ret)
{
    const bool has_sign = t == GGUF_I8 || t == GGUF_I16 || t == GGUF_I32 || t == GGUF_I64;
    const unsigned bits = 8u * size_of_type[t];
    uint64_t v = 0;
    if (bits == 0 || t == GGUF_F32 || t == GGUF_F64) return 0;
    memcpy(&v, p, size_of_type[t]); /* both are little-endian */
    if (has_sign && bits < 64 && v >> (bits - 1)) v |= UINT64_MAX << bits;
    if (!has_sign && v > INT64_MAX) return 0;
    *ret = (int64_t)v;
    return 1;
}

static int number_f64(enum gguf_type t, const uint8_t *p, double *ret)
{
    float f;
    int64_t i;
    if (t == GGUF_F32) {
        memcpy(&f, p, sizeof(f));
        *ret = (double)f;
        return 1;
    }
    if (t == GGUF_F64) {
        memcpy(ret, p, sizeof(*ret));
        return 1;
    }
    if (t == GGUF_BOOL || !number_i64(t, p, &i)) return 0;
    *ret = (double)i;
    return 1;
}

static const struct gguf_kv *scalar(const struct gguf *g, const char *key)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    return kv && !kv->is_array ? kv : NULL;
}

int gguf_u64(const struct gguf *g, const char *key, uint64_t *ret)
{
    const struct gguf_kv *kv = scalar(g, key);
    int64_t v;
    if (!kv || kv->type == GGUF_BOOL || !number_i64(kv->type, kv->data, &v) || v < 0) return 0;
    *ret = (uint64_t)v;
    return 1;
}

int gguf_f64(const struct gguf *g, const char *key, double *ret)
{
    const struct gguf_kv *kv = scalar(g, key);
    return kv ? number_f64(kv->type, kv->data, ret) : 0;
}

int gguf_bool(const struct gguf *g, const char *key, bool *ret)
{
    const struct gguf_kv *kv = scalar(g, key);
    if (!kv || kv->type != GGUF_BOOL) return 0;
    *ret = *kv->data != 0;
    return 1;
}

const char *gguf_str(const struct gguf *g, const char *key)
{
    const struct gguf_kv *kv = scalar(g, key);
    return kv ? kv->text : NULL;
}

int gguf_arr_str(const struct gguf_kv *kv, size_t i, const char **ret, size_t *ret_len)
{
    if (kv->type != GGUF_STR || i >= kv->n) return 0;
    uint64_t len = 0;
    memcpy(&len, kv->str[i], sizeof(len));
    *ret = (const char *)kv->str[i] + sizeof(len);
    *ret_len = (size_t)len;
    return 1;
}

int gguf_arr_i64(const struct gguf_kv *kv, size_t i, int64_t *ret)
{
    return i < kv->n && number_i64(kv->type, kv->data + i * size_of_type[kv->type], ret);
}

int gguf_arr_f64(const struct gguf_kv *kv, size_t i, double *ret)
{
    return i < kv->n && number_f64(kv->type, kv->data + i * size_of_type[kv->type], ret);
}

struct tensors *gguf_tensors(struct gguf *g)
{
    return &g->tensors;
}
