/* What a Hugging Face folder says of an embedder: config.json of the encoders that bert.c computes,
 * and the files of sentence-transformers: modules.json, the pooling's config.json in both of its
 * spellings, the longest text. Whatever would change a vector and is not computed is refused by
 * name. */
#include "fusor/encode/encode_int.h"

#include "base/buf.h"
#include "base/jsonscan.h"
#include "fusor/model/map.h"
#include "fusor/model/safetensors.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    JSON_BYTES_MAX = 4 << 20, /* chosen: real ones have a few KiB */
    L_MAX = 1024,             /* limits of what a file may ask for, far above published encoders */
    D_MAX = 1 << 16,
    F_MAX = 1 << 20,
    V_MAX = 1 << 22,
    POS_MAX = 1 << 20,
};

/* 1 read, 0 absent. */
static int read_json(const char *folder, const char *name, json_t **ret, struct err *err)
{
    struct buf path = BUF_INIT;
    struct err inner = {0};
    int r = buf_addf(&path, "%s/%s", folder, name);
    if (r == 0) r = st_json_file(buf_cstr(&path), JSON_BYTES_MAX, 0, ret, &inner);
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
        map.size_bytes <= JSON_BYTES_MAX && json_depth(text, map.size_bytes) <= JSON_DEPTH_MAX;
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

/* A count from 1 to max; absent or null: dflt, 0 = it must be there. */
static int limited(const json_t *o, const char *key, unsigned max, unsigned dflt, unsigned *ret,
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

/* ---- config.json ---- */

static const struct {
    const char *hf, *name;
    bool pos_behind_pad; /* positions begin behind the padding token's id */
} archs[] = {
    {"BertModel", "bert", false},
    {"BertForMaskedLM", "bert", false},
    {"RobertaModel", "roberta", true},
    {"RobertaForMaskedLM", "roberta", true},
    {"XLMRobertaModel", "xlm-roberta", true},
    {"XLMRobertaForMaskedLM", "xlm-roberta", true},
};
enum { N_ARCHS = sizeof archs / sizeof *archs };

static size_t arch_of(const json_t *j)
{
    const char *name = json_string_value(json_array_get(json_object_get(j, "architectures"), 0));
    size_t i = 0;
    while (i < N_ARCHS && !(name && strcmp(archs[i].hf, name) == 0))
        i++;
    return i;
}

static int refuse_other(const json_t *j, const char *key, const char *dflt, struct err *err)
{
    const json_t *v = json_object_get(j, key);
    if (!v || json_is_null(v) || (json_is_string(v) && strcmp(str(j, key), dflt) == 0)) return 0;
    return err_set(err, -ENOTSUP, "\"%s\": \"%.40s\" is not supported (%s is)", key, str(j, key),
                   dflt);
}

static int read_cfg(const json_t *j, size_t arch, struct enc_cfg *c, struct err *err)
{
    const json_t *eps = json_object_get(j, "layer_norm_eps");
    const json_t *pad = json_object_get(j, "pad_token_id");
    const json_int_t pad_id = pad && !json_is_null(pad) ? json_integer_value(pad) : 1;
    (void)snprintf(c->arch, sizeof c->arch, "%s", archs[arch].name);
    int r = limited(j, "num_hidden_layers", L_MAX, 0, &c->L, err);
    if (r == 0) r = limited(j, "hidden_size", D_MAX, 0, &c->D, err);
    if (r == 0) r = limited(j, "num_attention_heads", D_MAX, 0, &c->H, err);
    if (r == 0) r = limited(j, "intermediate_size", F_MAX, 0, &c->F, err);
    if (r == 0) r = limited(j, "vocab_size", V_MAX, 0, &c->V, err);
    if (r == 0) r = limited(j, "max_position_embeddings", POS_MAX, 0, &c->n_pos, err);
    if (r == 0) r = limited(j, "type_vocab_size", D_MAX, 2, &c->n_types, err);
    if (r == 0) r = refuse_other(j, "hidden_act", "gelu", err);
    if (r == 0) r = refuse_other(j, "position_embedding_type", "absolute", err);
    if (r < 0) return r;
    if (pad_id < 0 || pad_id >= c->V) return err_set(err, -EBADMSG, "\"pad_token_id\" is no token");
    if (archs[arch].pos_behind_pad) c->pos0 = (unsigned)pad_id + 1;
    if (json_object_get(j, "quantization_config"))
        return err_set(err, -ENOTSUP, "has a quantization_config, which is not supported");
    if (json_is_true(json_object_get(j, "is_decoder")))
        return err_set(err, -ENOTSUP, "\"is_decoder\" is not supported");
    if (c->D % c->H != 0)
        return err_set(err, -EBADMSG, "%u attention heads cannot share a width of %u", c->H, c->D);
    if (c->n_pos <= c->pos0) return err_set(err, -EBADMSG, "has no positions");
    c->eps = json_is_number(eps) ? (float)json_number_value(eps) : 1e-12f;
    if (!(c->eps >= 0) || c->eps > 1) return err_set(err, -EBADMSG, "norm epsilon is damaged");
    return 1;
}

int enc_read_config(const char *folder, struct enc_cfg *ret, struct err *err)
{
    struct err inner = {0};
    struct enc_cfg c = {0};
    json_t *j = NULL;
    int r = read_json(folder, "config.json", &j, err);
    if (r <= 0) return r;
    const size_t arch = arch_of(j);
    r = arch < N_ARCHS ? read_cfg(j, arch, &c, &inner) : 0;
    json_decref(j);
    if (r < 0) return err_set(err, r, "config.json: %s", inner.msg);
    if (r == 1) *ret = c;
    return r;
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
    json_object_foreach((json_t *)(uintptr_t)j, key, v)
    {
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
    if (r == 0) r = read_json(folder, buf_cstr(&name), &j, err);
    if (r == 0) r = err_set(err, -ENOENT, "%s is missing", buf_cstr(&name));
    if (r < 0) goto out;
    const json_t *mode = json_object_get(j, "pooling_mode");
    r = json_is_string(mode)  ? pool_named(json_string_value(mode), ret, &inner)
        : json_is_array(mode) ? err_set(&inner, -ENOTSUP, "several poolings are not supported")
                              : pool_flags(j, ret, &inner);
    unsigned width = D;
    if (r == 0) r = limited(j, "word_embedding_dimension", D_MAX, D, &width, &inner);
    if (r == 0 && width == D) r = limited(j, "embedding_dimension", D_MAX, D, &width, &inner);
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
        int r = read_json(folder, files[i], &j, err);
        if (r < 0) return r;
        const json_t *v = json_object_get(j, last ? "model_max_length" : "max_seq_length");
        const bool lower = !last && json_is_true(json_object_get(j, "do_lower_case"));
        const double n = json_number_value(v);
        if (n >= 1 && n <= POS_MAX) p->ctx_max = (unsigned)n; /* some say 1e30: no limit */
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
    int r = read_json(folder, "config_sentence_transformers.json", &j, err);
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
    json_array_foreach(j, i, m)
    {
        if (r >= 0) r = read_module(folder, m, i, D, &p, err);
    }
    json_decref(j);
    if (r >= 0 && found == 1) r = read_prompt(folder, err);
    if (r < 0) return r;
    *ret = p;
    return found;
}
