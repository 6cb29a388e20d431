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

struct reader {
    struct err *err;
    int r; /* the first failure; what is read after it means nothing */
};

static json_t *take(struct reader *d, json_t *o, const char *key)
{
    return d->r == 0 && given(o, key) ? json_object_get(o, key) : NULL;
}

/* dflt < 0: required. */
static unsigned count(struct reader *d, json_t *o, const char *key, long long dflt)
{
    json_t *v = take(d, o, key);
    if (v &&
        (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > UINT32_MAX))
        d->r = err_set(d->err, -EBADMSG, "\"%s\" is not a count", key);
    if (!v && dflt < 0 && d->r == 0) d->r = err_set(d->err, -EBADMSG, "\"%s\" is missing", key);
    return (unsigned)(v ? json_integer_value(v) : dflt);
}

static double real(struct reader *d, json_t *o, const char *key, double dflt)
{
    json_t *v = take(d, o, key);
    if (v && !json_is_number(v)) d->r = err_set(d->err, -EBADMSG, "\"%s\" is not a number", key);
    return v ? json_number_value(v) : dflt;
}

static bool flag(struct reader *d, json_t *o, const char *key, bool dflt)
{
    json_t *v = take(d, o, key);
    if (v && !json_is_boolean(v))
        d->r = err_set(d->err, -EBADMSG, "\"%s\" is not true or false", key);
    return v ? json_is_true(v) : dflt;
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

static int read_dims(struct reader *d, struct model_cfg *c, json_t *j)
{
    c->L = count(d, j, "num_hidden_layers", -1);
    c->D = count(d, j, "hidden_size", -1);
    c->F = count(d, j, "intermediate_size", -1);
    c->V = count(d, j, "vocab_size", -1);
    c->ctx_max = count(d, j, "max_position_embeddings", -1);
    c->H = count(d, j, "num_attention_heads", -1);
    c->G = count(d, j, "num_key_value_heads", c->H);
    if (d->r < 0) return d->r;
    if (c->H == 0 || c->D < c->H) return err_set(d->err, -EBADMSG, "has %u attention heads", c->H);
    c->K = count(d, j, "head_dim", c->D / c->H);
    c->rms_eps = (float)real(d, j, "rms_norm_eps", 1e-6);
    return d->r;
}

/* mscale and mscale_all_dim set the attention factor together, unless it is given itself. */
static void read_yarn(struct reader *d, struct model_rope *r, json_t *s)
{
    const double a = real(d, s, "mscale", 0), b = real(d, s, "mscale_all_dim", 0);
    r->attn_factor = real(d, s, "attention_factor", 0);
    r->beta_fast = real(d, s, "beta_fast", 32);
    r->beta_slow = real(d, s, "beta_slow", 1);
    r->no_truncate = !flag(d, s, "truncate", true);
    if (!given(s, "attention_factor") && a != 0 && b != 0 && r->factor > 1) {
        double ln = log(r->factor);
        r->attn_factor = (0.1 * a * ln + 1) / (0.1 * b * ln + 1);
    }
}

static int read_scaling(struct reader *d, struct model_cfg *c, json_t *j, json_t *s)
{
    static const char *const types[] = {
        [ROPE_NONE] = "default", [ROPE_LINEAR] = "linear", [ROPE_LLAMA3] = "llama3", "yarn"};
    struct model_rope *r = &c->rope;
    json_t *t = json_object_get(s, given(s, "rope_type") ? "rope_type" : "type");
    const char *type = t ? json_string_value(t) : "default";
    if (!type) return err_set(d->err, -EBADMSG, "the rope type is not a string");
    unsigned i = 0;
    while (i <= ROPE_YARN && strcmp(type, types[i]) != 0)
        i++;
    if (i > ROPE_YARN)
        return err_set(d->err, -ENOTSUP, "rope type \"%.40s\" is not supported", type);
    r->type = (enum model_rope_type)i;
    if (r->type == ROPE_NONE)
        return given(s, "mrope_section")
                   ? err_set(d->err, -ENOTSUP, "rope type \"mrope\" is not supported")
                   : 0;
    const double orig = real(d, j, "original_max_position_embeddings", c->ctx_max);
    r->orig_ctx = real(d, s, "original_max_position_embeddings", orig);
    const double factor = r->type == ROPE_YARN && r->orig_ctx > 0 ? c->ctx_max / r->orig_ctx : 0;
    r->factor = real(d, s, "factor", factor);
    if (r->type == ROPE_LLAMA3) {
        r->low_freq_factor = real(d, s, "low_freq_factor", 0);
        r->high_freq_factor = real(d, s, "high_freq_factor", 0);
    }
    if (r->type == ROPE_YARN) read_yarn(d, r, s);
    /* Files written for yarn may still give the length before it. */
    if (r->type == ROPE_YARN && r->orig_ctx * r->factor <= MODEL_CTX_MAX &&
        r->orig_ctx * r->factor > c->ctx_max)
        c->ctx_max = (unsigned)(r->orig_ctx * r->factor);
    return d->r;
}

static int read_rope(struct reader *d, struct model_cfg *c, json_t *j)
{
    double theta = real(d, j, "rope_theta", 10000), part = real(d, j, "partial_rotary_factor", 1);
    json_t *s = take(d, j, given(j, "rope_parameters") ? "rope_parameters" : "rope_scaling");
    if (s) {
        if (!json_is_object(s)) return err_set(d->err, -EBADMSG, "the rope settings are no object");
        const char *key;
        json_t *v;
        json_object_foreach(s, key, v)
        {
            if (json_is_object(v))
                return err_set(d->err, -ENOTSUP, "has rope settings per kind of layer");
        }
        theta = real(d, s, "rope_theta", theta);
        part = real(d, s, "partial_rotary_factor", part);
        if (d->r == 0) d->r = read_scaling(d, c, j, s);
    }
    c->rope.base = theta;
    if (d->r == 0 && part != 1)
        return err_set(d->err, -ENOTSUP, "rotates only %g of each head", part);
    return d->r;
}

static int check_window(struct reader *d, const struct model_cfg *c, json_t *j, unsigned dflt)
{
    const bool absent = !json_object_get(j, "sliding_window");
    const unsigned window = count(d, j, "sliding_window", absent ? dflt : 0);
    const bool use = flag(d, j, "use_sliding_window", strcmp(c->arch, "mistral") == 0);
    bool named = false;
    if (d->r < 0) return d->r;
    size_t i;
    json_t *v;
    json_array_foreach(json_object_get(j, "layer_types"), i, v)
    {
        const char *t = json_string_value(v);
        if (t && strcmp(t, "sliding_attention") == 0)
            named = true;
        else if (!t || strcmp(t, "full_attention") != 0)
            return err_set(d->err, -ENOTSUP, "layer type \"%.40s\" is not supported", t ? t : "?");
    }
    if ((use || named) && window < c->ctx_max && (window > 0 || named))
        return err_set(d->err, -ENOTSUP,
                       "uses a sliding window of %u tokens, shorter than its context of %u", window,
                       c->ctx_max);
    return 0;
}

static int refuse_hf_features(struct reader *d, json_t *j)
{
    json_t *act = json_object_get(j, "hidden_act");
    const char *name = act ? json_string_value(act) : "silu";
    if (!name || strcmp(name, "silu") != 0)
        return err_set(d->err, -ENOTSUP, "activation \"%.40s\" is not supported",
                       name ? name : "?");
    if (given(j, "quantization_config"))
        return err_set(d->err, -ENOTSUP, "has a quantization_config, which is not supported");
    if (flag(d, j, "mlp_bias", false))
        return err_set(d->err, -ENOTSUP, "has biases in its feed-forward part (mlp_bias)");
    for (size_t i = 0; i < sizeof(multipliers) / sizeof(multipliers[0]); i++) {
        json_t *v = json_object_get(j, multipliers[i]);
        if (!v || json_is_null(v) || json_is_false(v)) continue;
        if (!json_is_number(v) || json_number_value(v) != 1)
            return err_set(d->err, -ENOTSUP, "\"%s\" is not supported", multipliers[i]);
    }
    for (size_t i = 0; i < sizeof(experts) / sizeof(experts[0]); i++) {
        json_t *v = json_object_get(j, experts[i]);
        if (json_is_integer(v) && json_integer_value(v) > 0)
            return err_set(d->err, -ENOTSUP, "is a mixture of experts (\"%s\")", experts[i]);
    }
    return d->r;
}

static int read_config(struct model *m, json_t *j, struct err *err)
{
    struct model_cfg *c = &m->cfg;
    struct reader d = {.err = err};
    size_t a = 0;
    int r = find_arch(j, &a, err);
    if (r < 0) return r;
    (void)snprintf(c->arch, sizeof(c->arch), "%s", archs[a].name);
    r = refuse_hf_features(&d, j);
    if (r == 0) r = read_dims(&d, c, j);
    if (r == 0) r = read_rope(&d, c, j);
    if (r == 0) r = check_window(&d, c, j, archs[a].window);
    if (r < 0) return r;
    c->tied = flag(&d, j, "tie_word_embeddings", false);
    c->o_bias = archs[a].bias_key && flag(&d, j, "attention_bias", false);
    c->qkv_bias = archs[a].qkv_bias || c->o_bias;
    c->qk_norm = archs[a].qk_norm;
    return d.r;
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
