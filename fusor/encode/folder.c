/* What the files of sentence-transformers say of an embedder: modules.json, the pooling's
 * config.json in both of its spellings, the longest text. Whatever would change a vector and is not
 * computed is refused by name. And how this folder reads JSON. */
#include "fusor/encode/encode_int.h"

#include "base/buf.h"
#include "base/jsonscan.h"
#include "fusor/model/map.h"
#include "fusor/model/safetensors.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { LONGEST_MAX = 1 << 20 }; /* above that, a text's length has no limit */

int enc_read_json(const char *folder, const char *name, json_t **ret, struct err *err)
{
    struct buf path = BUF_INIT;
    struct err inner = {0};
    int r = buf_addf(&path, "%s/%s", folder, name);
    if (r == 0) r = st_json_file(buf_cstr(&path), ENC_JSON_BYTES_MAX, 0, ret, &inner);
    buf_fini(&path);
    if (r == 0 || r == -ENOENT) return r == 0;
    return inner.code ? err_set(err, r, "%s", inner.msg) : err_set(err, r, "cannot read %s", name);
}

/* modules.json is a list: 1 read, 0 absent. */
static int read_modules(const char *folder, json_t **ret, struct err *err)
{
    static const char name[] = "modules.json";
    struct buf path = BUF_INIT;
    struct err inner = {0};
    struct map map = {0};
    int r = buf_addf(&path, "%s/%s", folder, name);
    if (r == 0) r = map_open(buf_cstr(&path), &map, &inner);
    buf_fini(&path);
    if (r == -ENOENT) return 0;
    if (r < 0) return err_set(err, r, "%s: %s", name, inner.code ? inner.msg : err_name(r));
    const char *text = (const char *)map.data;
    const bool sane =
        map.size_bytes <= ENC_JSON_BYTES_MAX && json_depth(text, map.size_bytes) <= JSON_DEPTH_MAX;
    *ret = sane ? json_loadb(text, map.size_bytes, 0, NULL) : NULL;
    map_close(&map);
    if (json_is_array(*ret)) return 1;
    json_decref(*ret);
    *ret = NULL;
    return err_set(err, -EBADMSG, "%s: not a list of modules", name);
}

static const char *str(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

int enc_json_count(const json_t *o, const char *key, unsigned max, unsigned dflt, unsigned *ret,
                   struct err *err)
{
    const json_t *v = json_object_get(o, key);
    if ((!v || json_is_null(v)) && dflt) {
        *ret = dflt;
        return 0;
    }
    if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > max)
        return err_set(err, -EBADMSG, "\"%s\" is not a count from 1 to %u", key, max);
    *ret = (unsigned)json_integer_value(v);
    return 0;
}

/* ---- sentence-transformers ---- */

bool enc_has_modules(const char *folder)
{
    struct buf path = BUF_INIT;
    bool yes =
        buf_addf(&path, "%s/modules.json", folder) == 0 && access(buf_cstr(&path), R_OK) == 0;
    buf_fini(&path);
    return yes;
}

static int pool_named(const char *name, enum enc_pool *ret, struct err *err)
{
    *ret = strcmp(name, "cls") == 0         ? ENC_POOL_CLS
           : strcmp(name, "mean") == 0      ? ENC_POOL_MEAN
           : strcmp(name, "lasttoken") == 0 ? ENC_POOL_LAST
                                            : ENC_POOL_AUTO;
    return *ret ? 0 : err_set(err, -ENOTSUP, "pooling \"%.40s\" is not supported", name);
}

/* The older spelling: a flag for each mode. */
static int pool_flags(const json_t *j, enum enc_pool *ret, struct err *err)
{
    static const char lead[] = "pooling_mode_";
    const char *key, *found = NULL;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)j, key, v) {
        if (strncmp(key, lead, sizeof lead - 1) != 0 || !json_is_true(v)) continue;
        if (found)
            return err_set(err, -ENOTSUP, "several poolings (%.40s, %.40s) are not supported",
                           found, key);
        found = key;
    }
    if (!found) return err_set(err, -EBADMSG, "names no pooling");
    const char *name = found + sizeof lead - 1;
    if (strcmp(name, "cls_token") == 0) name = "cls";
    if (strcmp(name, "mean_tokens") == 0) name = "mean";
    return pool_named(name, ret, err);
}

static int read_pool(const char *folder, const char *path, unsigned D, enum enc_pool *ret,
                     struct err *err)
{
    struct buf name = BUF_INIT;
    struct err inner = {0};
    json_t *j = NULL;
    int r = buf_addf(&name, "%s/config.json", path);
    if (r == 0) r = enc_read_json(folder, buf_cstr(&name), &j, err);
    if (r == 0) r = err_set(err, -ENOENT, "%s is missing", buf_cstr(&name));
    if (r < 0) goto out;
    const json_t *mode = json_object_get(j, "pooling_mode");
    r = json_is_string(mode)  ? pool_named(json_string_value(mode), ret, &inner)
        : json_is_array(mode) ? err_set(&inner, -ENOTSUP, "several poolings are not supported")
                              : pool_flags(j, ret, &inner);
    unsigned width = D;
    if (r == 0) r = enc_json_count(j, "word_embedding_dimension", ENC_D_MAX, D, &width, &inner);
    if (r == 0 && width == D)
        r = enc_json_count(j, "embedding_dimension", ENC_D_MAX, D, &width, &inner);
    if (r == 0 && width != D)
        r = err_set(&inner, -EBADMSG, "pools a width of %u, the model has %u", width, D);
    if (r < 0) (void)err_set(err, r, "%s: %s", buf_cstr(&name), inner.msg);
out:
    json_decref(j);
    buf_fini(&name);
    return r;
}

static int read_module(const char *folder, const json_t *m, size_t i, unsigned D,
                       struct enc_pooling *p, struct err *err)
{
    const char *type = str(m, "type"), *path = str(m, "path"), *dot = strrchr(type, '.');
    const char *name = dot ? dot + 1 : type;
    if (strcmp(name, "Transformer") == 0 && i == 0) {
        if (*path)
            return err_set(err, -ENOTSUP, "modules.json: a model in \"%.60s\" is not supported",
                           path);
        return 0;
    }
    if (*path == '/' || strstr(path, ".."))
        return err_set(err, -EBADMSG, "modules.json: \"%.60s\" leads out of the folder", path);
    if (strcmp(name, "Pooling") == 0 && i == 1) return read_pool(folder, path, D, &p->pool, err);
    if (strcmp(name, "Normalize") == 0 && i > 1) {
        p->normalize = true;
        return 0;
    }
    return err_set(err, -ENOTSUP, "modules.json: the module \"%.60s\" is not supported there",
                   name);
}

/* The longest text: the transformer module's own, else the tokenizer's. Small letters are the
 * tokenizer's business; where the module makes them, both must. */
static int read_longest(const char *folder, struct enc_pooling *p, struct err *err)
{
    static const char *const files[] = {
        "sentence_bert_config.json",        "sentence_roberta_config.json",
        "sentence_distilbert_config.json",  "sentence_camembert_config.json",
        "sentence_xlm-roberta_config.json", "tokenizer_config.json"};
    for (size_t i = 0; i < sizeof files / sizeof *files && p->ctx_max == 0; i++) {
        const bool last = i + 1 == sizeof files / sizeof *files;
        json_t *j = NULL;
        int r = enc_read_json(folder, files[i], &j, err);
        if (r < 0) return r;
        const json_t *v = json_object_get(j, last ? "model_max_length" : "max_seq_length");
        const bool lower = !last && json_is_true(json_object_get(j, "do_lower_case"));
        const double n = json_number_value(v);
        if (n >= 1 && n <= LONGEST_MAX) p->ctx_max = (unsigned)n; /* some say 1e30: no limit */
        json_decref(j);
        if (lower)
            return err_set(err, -ENOTSUP, "%s: \"do_lower_case\" is not supported", files[i]);
    }
    return 0;
}

/* What sentence-transformers would put before every text. */
static int read_prompt(const char *folder, struct err *err)
{
    json_t *j = NULL;
    int r = enc_read_json(folder, "config_sentence_transformers.json", &j, err);
    const char *name = str(j, "default_prompt_name");
    const char *prompt = str(json_object_get(j, "prompts"), name);
    if (r >= 0 && *name && *prompt)
        r = err_set(err, -ENOTSUP,
                    "config_sentence_transformers.json: the default prompt \"%.40s\" is not "
                    "supported",
                    name);
    json_decref(j);
    return r;
}

int enc_read_pooling(const char *folder, unsigned D, struct enc_pooling *ret, struct err *err)
{
    struct enc_pooling p = {0};
    json_t *j = NULL;
    const json_t *m;
    size_t i;
    int r = read_longest(folder, &p, err);
    if (r >= 0) r = read_modules(folder, &j, err);
    const int found = r;
    if (r == 1 && json_array_size(j) < 2)
        r = err_set(err, -EBADMSG, "modules.json: not a model and its pooling");
    json_array_foreach(j, i, m) {
        if (r >= 0) r = read_module(folder, m, i, D, &p, err);
    }
    json_decref(j);
    if (r >= 0 && found == 1) r = read_prompt(folder, err);
    if (r < 0) return r;
    *ret = p;
    return found;
}

int enc_read_scoring(const char *folder, struct enc_pooling *ret, struct err *err)
{
    struct enc_pooling p = {0};
    json_t *j = NULL;
    int r = read_longest(folder, &p, err);
    if (r >= 0) r = read_modules(folder, &j, err);
    if (r == 1 && json_array_size(j) != 1)
        r = err_set(err, -ENOTSUP,
                    "modules.json: a cross-encoder with other modules than its "
                    "model is not supported");
    if (r == 1) r = read_module(folder, json_array_get(j, 0), 0, 0, &p, err) < 0 ? -ENOTSUP : 1;
    json_decref(j);
    if (r >= 0) *ret = p;
    return r;
}
