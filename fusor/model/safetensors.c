/* Each file is mapped and its header parsed once; the JSON tree is kept, since tensor names are
 * borrowed from it. Checks run file by file, so that the message can name the file. */
#include "fusor/model/safetensors.h"

#include "base/buf.h"
#include "base/jsonscan.h"
#include "base/mem.h"
#include "fusor/model/map.h"

#include <stdio.h>
#include <string.h>

enum {
    ST_HEADER_MAX = 100 * 1000 * 1000, /* bytes; the reference reader's own limit */
    ST_INDEX_MAX = 64 << 20, /* bytes of the index; chosen: 100 bytes a tensor are usual */
    ST_SHARDS_MAX = 1024,    /* chosen: the largest published models have under 300 */
    ST_DIMS_MAX = 8,         /* chosen */
};

struct st_file {
    struct map map;
    json_t *header;
};
struct st_set {
    struct st_file *file;
    size_t n_files;
    struct tensors tensors; /* of all files */
};

static const struct {
    const char *name;
    unsigned bytes;
    int quant; /* -1: size known, not convertible */
} dtypes[] = {
    {"F32", 4, QUANT_F32}, {"F16", 2, QUANT_F16}, {"BF16", 2, QUANT_BF16}, {"F64", 8, -1},
    {"I64", 8, -1},        {"U64", 8, -1},        {"I32", 4, -1},          {"U32", 4, -1},
    {"I16", 2, -1},        {"U16", 2, -1},        {"I8", 1, -1},           {"U8", 1, -1},
    {"BOOL", 1, -1},       {"F8_E4M3", 1, -1},    {"F8_E5M2", 1, -1},
};

int st_json(const char *text, size_t len, size_t flags, json_t **ret, struct err *err)
{
    json_error_t je;
    /* The parser recurses, so nesting is bounded here. */
    if (json_depth(text, len) > JSON_DEPTH_MAX)
        return err_set(err, -EBADMSG, "JSON is nested too deeply");
    json_t *j = json_loadb(text, len, flags, &je);
    if (!j) return err_set(err, -EBADMSG, "JSON is not valid at line %d: %.80s", je.line, je.text);
    if (!json_is_object(j)) {
        json_decref(j);
        return err_set(err, -EBADMSG, "JSON is not an object");
    }
    *ret = j;
    return 0;
}

int st_json_file(const char *path, size_t max_bytes, size_t flags, json_t **ret, struct err *err)
{
    struct map map;
    struct err inner = {0};
    int r = map_open(path, &map, err);
    if (r < 0) return r;
    if (map.size_bytes > max_bytes)
        r = err_set(&inner, -EBADMSG, "has %zu bytes, more than the limit of %zu", map.size_bytes,
                    max_bytes);
    else
        r = st_json((const char *)map.data, map.size_bytes, flags, ret, &inner);
    map_close(&map);
    return r < 0 ? err_set(err, r, "%s: %s", map_path_tail(path), inner.msg) : 0;
}

static int bad_tensor(const char *name, const char *why, struct err *err)
{
    return err_set(err, -EBADMSG, "tensor \"%.80s\" %s", name, why);
}

/* Shape of a tensor: number of values; planes, rows and columns of what has at most four
 * dimensions, of which the last two count as one then. */
static int read_shape(json_t *shape, struct tensor *t, size_t *ret_n, struct err *err)
{
    size_t n = 1, rank = json_array_size(shape), dim[ST_DIMS_MAX];
    if (!json_is_array(shape) || rank > ST_DIMS_MAX)
        return bad_tensor(t->name, "has a damaged shape", err);
    for (size_t i = 0; i < rank; i++) {
        json_t *d = json_array_get(shape, i);
        if (!json_is_integer(d) || json_integer_value(d) < 0)
            return bad_tensor(t->name, "has a damaged shape", err);
        dim[i] = (size_t)json_integer_value(d);
        if (!size_mul(n, dim[i], &n)) return bad_tensor(t->name, "has an absurd shape", err);
    }
    t->n_dims = (unsigned)rank;
    if (rank == 4 && n > 0) dim[--rank - 1] *= dim[3];
    t->planes = rank == 3 ? dim[0] : 1;
    t->rows = rank == 2 || rank == 3 ? dim[rank - 2] : 1;
    t->cols = rank >= 1 && rank <= 3 ? dim[rank - 1] : 1;
    *ret_n = n;
    return 0;
}

static int read_tensor(const struct st_file *f, json_t *v, size_t data_at, struct tensor *t,
                       struct err *err)
{
    const char *dtype = json_string_value(json_object_get(v, "dtype"));
    json_t *off = json_object_get(v, "data_offsets");
    json_t *lo = json_array_get(off, 0), *hi = json_array_get(off, 1);
    if (!dtype || json_array_size(off) != 2 || !json_is_integer(lo) || !json_is_integer(hi))
        return bad_tensor(t->name, "has a damaged header entry", err);
    json_int_t a = json_integer_value(lo), b = json_integer_value(hi);
    size_t n = 0, bytes = 0, room = f->map.size_bytes - data_at;
    int r = read_shape(json_object_get(v, "shape"), t, &n, err);
    if (r < 0) return r;
    if (a < 0 || b < a || (uint64_t)b > room)
        return bad_tensor(t->name, "lies outside the file (truncated download?)", err);
    t->data = f->map.data + data_at + a;
    t->size_bytes = (size_t)(b - a);
    size_t len = strnlen(dtype, sizeof(t->type_name) - 1);
    memcpy(t->type_name, dtype, len);
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
        if (strcmp(dtypes[i].name, dtype) != 0) continue;
        if (!size_mul(n, dtypes[i].bytes, &bytes) || bytes != t->size_bytes)
            return bad_tensor(t->name, "has a shape that does not fit its size", err);
        if (dtypes[i].quant >= 0) t->type = quant_type((uint32_t)dtypes[i].quant);
    }
    return 0;
}

static int read_header(struct st_file *f, struct tensors *ts, struct err *err)
{
    const size_t from = ts->n;
    uint64_t len;
    if (f->map.size_bytes < sizeof(len))
        return err_set(err, -EBADMSG, "is too short for a safetensors file");
    memcpy(&len, f->map.data, sizeof(len));
    if (len > ST_HEADER_MAX || len > f->map.size_bytes - sizeof(len))
        return err_set(err, -EBADMSG,
                       "claims a header of %llu bytes (not a safetensors file, or truncated)",
                       (unsigned long long)len);
    const char *text = (const char *)f->map.data + sizeof(len);
    int r = st_json(text, (size_t)len, JSON_REJECT_DUPLICATES, &f->header, err);
    if (r < 0) return r;
    if (tensors_reserve(ts, json_object_size(f->header)) < 0)
        return err_set(err, -ENOMEM, "out of memory");
    const char *name;
    json_t *v;
    json_object_foreach(f->header, name, v) {
        if (strcmp(name, "__metadata__") == 0) continue;
        struct tensor *t = &ts->t[ts->n++];
        *t = (struct tensor){.name = name};
        r = read_tensor(f, v, sizeof(len) + (size_t)len, t, err);
        if (r < 0) return r;
    }
    return tensors_check_overlap(ts, from, err);
}

static int file_open(struct st_file *f, const char *path, struct tensors *ts, struct err *err)
{
    struct err inner = {0};
    int r = map_open(path, &f->map, err);
    if (r < 0) return r;
    r = read_header(f, ts, &inner);
    return r < 0 ? err_set(err, r, "%s: %s", map_path_tail(path), inner.msg) : 0;
}

/* All of them, or none. */
static int open_files(const char *const *paths, size_t n, struct st_set **ret, struct err *err)
{
    struct st_set *s = mem_zalloc(sizeof(*s));
    if (s) s->file = mem_zalloc(n * sizeof(*s->file));
    int r = s && s->file ? 0 : err_set(err, -ENOMEM, "%s: out of memory", map_path_tail(paths[0]));
    while (r == 0 && s->n_files < n) {
        const size_t i = s->n_files++;
        r = file_open(&s->file[i], paths[i], &s->tensors, err);
    }
    if (r < 0)
        st_close(s);
    else
        *ret = s;
    return r;
}

int st_open_file(const char *path, struct st_set **ret, struct err *err)
{
    return open_files(&path, 1, ret, err);
}

/* Distinct file names of the index into names; they borrow from `map`. */
static int shard_names(json_t *map, const char *where, const char **names, size_t *ret_n,
                       struct err *err)
{
    const char *key;
    json_t *v;
    size_t n = 0;
    json_object_foreach(map, key, v) {
        const char *name = json_string_value(v);
        /* The index must not lead anywhere but to its own folder. */
        if (!name || !name[0] || name[0] == '.' || strchr(name, '/'))
            return err_set(err, -EBADMSG, "%s: \"%.80s\" has no plain file name", where, key);
        bool seen = false;
        for (size_t i = n; i-- > 0 && !seen;)
            seen = strcmp(names[i], name) == 0;
        if (seen) continue;
        if (n == ST_SHARDS_MAX)
            return err_set(err, -EBADMSG, "%s: names more than %d files", where, ST_SHARDS_MAX);
        names[n++] = name;
    }
    if (n == 0) return err_set(err, -EBADMSG, "%s: has no weight_map", where);
    *ret_n = n;
    return 0;
}

static int open_shards(const char *dir, json_t *index, const char *where, struct st_set **ret,
                       struct err *err)
{
    const char *path[ST_SHARDS_MAX];
    struct arena arena;
    size_t n = 0;
    int r = shard_names(json_object_get(index, "weight_map"), where, path, &n, err);
    if (r < 0) return r;
    arena_init(&arena);
    for (size_t i = 0; i < n && r == 0; i++) {
        const size_t size = strlen(dir) + strlen(path[i]) + 2;
        char *whole = arena_alloc(&arena, size);
        if (!whole) r = err_set(err, -ENOMEM, "%s: out of memory", where);
        if (whole) (void)snprintf(whole, size, "%s/%s", dir, path[i]);
        path[i] = whole;
    }
    if (r == 0) r = open_files(path, n, ret, err);
    arena_fini(&arena);
    return r;
}

int st_open_dir(const char *dir, struct st_set **ret, struct err *err)
{
    struct buf path = BUF_INIT;
    struct err inner = {0};
    json_t *index = NULL;
    int r = buf_addf(&path, "%s/model.safetensors.index.json", dir);
    if (r == 0)
        r = st_json_file(buf_cstr(&path), ST_INDEX_MAX, JSON_REJECT_DUPLICATES, &index, &inner);
    if (r == 0) {
        r = open_shards(dir, index, map_path_tail(buf_cstr(&path)), ret, err);
        json_decref(index);
    } else if (r == -ENOENT) {
        buf_clear(&path);
        r = buf_addf(&path, "%s/model.safetensors", dir);
        if (r == 0) r = st_open_file(buf_cstr(&path), ret, err);
        if (r == -ENOENT)
            (void)err_set(err, -ENOENT, "%s: has no model.safetensors", map_path_tail(dir));
    } else if (err && inner.code) {
        *err = inner;
    }
    if (r == -ENOMEM) (void)err_set(err, r, "%s: out of memory", map_path_tail(dir));
    buf_fini(&path);
    return r;
}

void st_close(struct st_set *s)
{
    if (!s) return;
    for (size_t i = 0; i < s->n_files; i++) {
        json_decref(s->file[i].header);
        map_close(&s->file[i].map);
    }
    tensors_fini(&s->tensors);
    mem_free(s->file);
    mem_free(s);
}

void st_drop_pages(const struct st_set *s)
{
    for (size_t i = 0; i < s->n_files; i++)
        map_drop_pages(&s->file[i].map);
}

struct tensors *st_tensors(struct st_set *s)
{
    return &s->tensors;
}
