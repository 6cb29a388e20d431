/* Reads config.json of a Hugging Face folder into a model_cfg and opens its weights. Defaults are
 * those of transformers. Both spellings of the rope settings are read: rope_theta + rope_scaling,
 * and the rope_parameters of newer versions. Whatever the engine does not do is refused by name. */
#include "fusor/model/model_int.h"

#include "base/buf.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { CONFIG_BYTES_MAX = 4 << 20 }; /* chosen: real ones have a few KiB */

static const struct {
    const char *hf, *name;
    bool qkv_bias, qk_norm, bias_key; /* bias_key: attention_bias adds q, k, v and o biases */
    unsigned window;                  /* when the key is absent */
} archs[] = {
    {"LlamaForCausalLM", "llama", false, false, true, 0},
    {"MistralForCausalLM", "mistral", false, false, false, 4096},
    {"Qwen2ForCausalLM", "qwen2", true, false, false, 0},
    {"Qwen3ForCausalLM", "qwen3", false, true, true, 0},
};

/* Multipliers of the residual stream and the like: 1 is the only value the engine computes. */
static const char *const multipliers[] = {
    "embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling",
    "logit_scale",          "embedding_scale",     "mup_enabled",
};
static const char *const experts[] = {"num_experts", "num_local_experts", "n_routed_experts"};

static bool given(json_t *o, const char *key)
{
    json_t *v = json_object_get(o, key);
    return v && !json_is_null(v);
}

/* dflt < 0: required. */
static int get_count(json_t *o, const char *key, long long dflt, unsigned *ret, struct err *err)
{
    json_t *v = json_object_get(o, key);
    if (!v || json_is_null(v)) {
        if (dflt < 0) return err_set(err, -EBADMSG, "\"%s\" is missing", key);
        *ret = (unsigned)dflt;
        return 0;
    }
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > UINT32_MAX)
        return err_set(err, -EBADMSG, "\"%s\" is not a count", key);
    *ret = (unsigned)json_integer_value(v);
    return 0;
}

static int get_num(json_t *o, const char *key, double dflt, double *ret, struct err *err)
{
    json_t *v = json_object_get(o, key);
    if (v && !json_is_null(v) && !json_is_number(v))
        return err_set(err, -EBADMSG, "\"%s\" is not a number", key);
    *ret = v && !json_is_null(v) ? json_number_value(v) : dflt;
    return 0;
}

static int get_bool(json_t *o, const char *key, bool dflt, bool *ret, struct err *err)
{
    json_t *v = json_object_get(o, key);
    if (v && !json_is_null(v) && !json_is_boolean(v))
        return err_set(err, -EBADMSG, "\"%s\" is not true or false", key);
    *ret = v && !json_is_null(v) ? json_is_true(v) : dflt;
    return 0;
}

static int find_arch(json_t *j, size_t *ret, struct err *err)
{
    const char *name = json_string_value(json_array_get(json_object_get(j, "architectures"), 0));
    if (!name) return err_set(err, -EBADMSG, "\"architectures\" is missing");
    for (size_t i = 0; i < sizeof(archs) / sizeof(archs[0]); i++) {
        if (strcmp(archs[i].hf, name) != 0) continue;
        *ret = i;
        return 0;
    }
    return err_set(err, -ENOTSUP, "architecture \"%.60s\" is not supported", name);
}

static int read_dims(struct model_cfg *c, json_t *j, struct err *err)
{
    double eps = 0;
    int r = get_count(j, "num_hidden_layers", -1, &c->L, err);
    if (r == 0) r = get_count(j, "hidden_size", -1, &c->D, err);
    if (r == 0) r = get_count(j, "intermediate_size", -1, &c->F, err);
    if (r == 0) r = get_count(j, "vocab_size", -1, &c->V, err);
    if (r == 0) r = get_count(j, "max_position_embeddings", -1, &c->ctx_max, err);
    if (r == 0) r = get_count(j, "num_attention_heads", -1, &c->H, err);
    if (r == 0) r = get_count(j, "num_key_value_heads", c->H, &c->G, err);
    if (r < 0) return r;
    if (c->H == 0 || c->D < c->H) return err_set(err, -EBADMSG, "has %u attention heads", c->H);
    r = get_count(j, "head_dim", c->D / c->H, &c->K, err);
    if (r == 0) r = get_num(j, "rms_norm_eps", 1e-6, &eps, err);
    if (r == 0) c->rms_eps = (float)eps;
    return r;
}

/* mscale and mscale_all_dim set the attention factor together, unless it is given itself. */
static int read_yarn(struct model_rope *r, json_t *s, struct err *err)
{
    double a = 0, b = 0;
    bool truncate = true;
    int e = get_num(s, "attention_factor", 0, &r->attn_factor, err);
    if (e == 0) e = get_num(s, "mscale", 0, &a, err);
    if (e == 0) e = get_num(s, "mscale_all_dim", 0, &b, err);
    if (e == 0) e = get_num(s, "beta_fast", 32, &r->beta_fast, err);
    if (e == 0) e = get_num(s, "beta_slow", 1, &r->beta_slow, err);
    if (e == 0) e = get_bool(s, "truncate", true, &truncate, err);
    if (e < 0) return e;
    r->no_truncate = !truncate;
    if (!given(s, "attention_factor") && a != 0 && b != 0 && r->factor > 1) {
        double ln = log(r->factor);
        r->attn_factor = (0.1 * a * ln + 1) / (0.1 * b * ln + 1);
    }
    return 0;
}

static int read_scaling(struct model_cfg *c, json_t *j, json_t *s, struct err *err)
{
    struct model_rope *r = &c->rope;
    json_t *t = json_object_get(s, given(s, "rope_type") ? "rope_type" : "type");
    const char *type = t ? json_string_value(t) : "default";
    if (!type) return err_set(err, -EBADMSG, "the rope type is not a string");
    if (strcmp(type, "default") == 0) {
        if (given(s, "mrope_section"))
            return err_set(err, -ENOTSUP, "rope type \"mrope\" is not supported");
        r->type = ROPE_NONE;
        return 0;
    }
    if (strcmp(type, "linear") == 0)
        r->type = ROPE_LINEAR;
    else if (strcmp(type, "llama3") == 0)
        r->type = ROPE_LLAMA3;
    else if (strcmp(type, "yarn") == 0)
        r->type = ROPE_YARN;
    else
        return err_set(err, -ENOTSUP, "rope type \"%.40s\" is not supported", type);
    double orig = 0;
    int e = get_num(j, "original_max_position_embeddings", c->ctx_max, &orig, err);
    if (e == 0) e = get_num(s, "original_max_position_embeddings", orig, &r->orig_ctx, err);
    double factor = r->type == ROPE_YARN && r->orig_ctx > 0 ? c->ctx_max / r->orig_ctx : 0;
    if (e == 0) e = get_num(s, "factor", factor, &r->factor, err);
    if (e == 0 && r->type == ROPE_LLAMA3) {
        e = get_num(s, "low_freq_factor", 0, &r->low_freq_factor, err);
        if (e == 0) e = get_num(s, "high_freq_factor", 0, &r->high_freq_factor, err);
    }
    if (e == 0 && r->type == ROPE_YARN) e = read_yarn(r, s, err);
    /* Files written for yarn may still give the length before it. */
    if (e == 0 && r->type == ROPE_YARN && r->orig_ctx * r->factor <= MODEL_CTX_MAX &&
        r->orig_ctx * r->factor > c->ctx_max)
        c->ctx_max = (unsigned)(r->orig_ctx * r->factor);
    return e;
}

static int read_rope(struct model_cfg *c, json_t *j, struct err *err)
{
    double theta = 0, part = 1;
    int r = get_num(j, "rope_theta", 10000, &theta, err);
    if (r == 0) r = get_num(j, "partial_rotary_factor", 1, &part, err);
    if (r < 0) return r;
    json_t *s =
        json_object_get(j, given(j, "rope_parameters") ? "rope_parameters" : "rope_scaling");
    if (s && !json_is_null(s)) {
        if (!json_is_object(s)) return err_set(err, -EBADMSG, "the rope settings are no object");
        const char *key;
        json_t *v;
        json_object_foreach(s, key, v)
        {
            if (json_is_object(v))
                return err_set(err, -ENOTSUP, "has rope settings per kind of layer");
        }
        r = get_num(s, "rope_theta", theta, &theta, err);
        if (r == 0) r = get_num(s, "partial_rotary_factor", part, &part, err);
        if (r == 0) r = read_scaling(c, j, s, err);
        if (r < 0) return r;
    }
    c->rope.base = theta;
    if (part != 1) return err_set(err, -ENOTSUP, "rotates only %g of each head", part);
    return 0;
}

static int check_window(const struct model_cfg *c, json_t *j, unsigned dflt, struct err *err)
{
    unsigned window = 0;
    bool use = strcmp(c->arch, "mistral") == 0, named = false;
    bool absent = !json_object_get(j, "sliding_window");
    int r = get_count(j, "sliding_window", absent ? dflt : 0, &window, err);
    if (r == 0) r = get_bool(j, "use_sliding_window", use, &use, err);
    if (r < 0) return r;
    size_t i;
    json_t *v;
    json_array_foreach(json_object_get(j, "layer_types"), i, v)
    {
        const char *t = json_string_value(v);
        if (t && strcmp(t, "sliding_attention") == 0)
            named = true;
        else if (!t || strcmp(t, "full_attention") != 0)
            return err_set(err, -ENOTSUP, "layer type \"%.40s\" is not supported", t ? t : "?");
    }
    if ((use || named) && window < c->ctx_max && (window > 0 || named))
        return err_set(err, -ENOTSUP,
                       "uses a sliding window of %u tokens, shorter than its context of %u", window,
                       c->ctx_max);
    return 0;
}

static int refuse_hf_features(json_t *j, struct err *err)
{
    bool mlp_bias = false;
    json_t *act = json_object_get(j, "hidden_act");
    const char *name = act ? json_string_value(act) : "silu";
    if (!name || strcmp(name, "silu") != 0)
        return err_set(err, -ENOTSUP, "activation \"%.40s\" is not supported", name ? name : "?");
    if (given(j, "quantization_config"))
        return err_set(err, -ENOTSUP, "has a quantization_config, which is not supported");
    int r = get_bool(j, "mlp_bias", false, &mlp_bias, err);
    if (r < 0) return r;
    if (mlp_bias) return err_set(err, -ENOTSUP, "has biases in its feed-forward part (mlp_bias)");
    for (size_t i = 0; i < sizeof(multipliers) / sizeof(multipliers[0]); i++) {
        json_t *v = json_object_get(j, multipliers[i]);
        if (!v || json_is_null(v) || json_is_false(v)) continue;
        if (!json_is_number(v) || json_number_value(v) != 1)
            return err_set(err, -ENOTSUP, "\"%s\" is not supported", multipliers[i]);
    }
    for (size_t i = 0; i < sizeof(experts) / sizeof(experts[0]); i++) {
        json_t *v = json_object_get(j, experts[i]);
        if (json_is_integer(v) && json_integer_value(v) > 0)
            return err_set(err, -ENOTSUP, "is a mixture of experts (\"%s\")", experts[i]);
    }
    return 0;
}

static int read_config(struct model *m, json_t *j, struct err *err)
{
    struct model_cfg *c = &m->cfg;
    size_t a = 0;
    int r = find_arch(j, &a, err);
    if (r < 0) return r;
    (void)snprintf(c->arch, sizeof(c->arch), "%s", archs[a].name);
    r = refuse_hf_features(j, err);
    if (r == 0) r = read_dims(c, j, err);
    if (r == 0) r = read_rope(c, j, err);
    if (r == 0) r = check_window(c, j, archs[a].window, err);
    if (r == 0) r = get_bool(j, "tie_word_embeddings", false, &c->tied, err);
    bool bias = false;
    if (r == 0 && archs[a].bias_key) r = get_bool(j, "attention_bias", false, &bias, err);
    if (r < 0) return r;
    c->qkv_bias = archs[a].qkv_bias || bias;
    c->o_bias = bias;
    c->qk_norm = archs[a].qk_norm;
    return 0;
}

int model_from_hf(struct model *m, struct err *err)
{
    struct buf path = BUF_INIT;
    struct err inner = {0};
    json_t *j = NULL;
    int r = buf_addf(&path, "%s/config.json", m->path);
    if (r < 0)
        r = err_set(err, r, "%s: out of memory", m->where);
    else
        r = st_json_file(buf_cstr(&path), CONFIG_BYTES_MAX, JSON_REJECT_DUPLICATES, &j, err);
    buf_fini(&path);
    if (r < 0) return r;
    r = read_config(m, j, &inner);
    json_decref(j);
    if (r < 0) return err_set(err, r, "%s/config.json: %s", m->where, inner.msg);
    r = st_open_dir(m->path, &m->st, err);
    if (r == 0) m->tensors = st_tensors(m->st);
    return r;
}
