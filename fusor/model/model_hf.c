/* Reads config.json of a Hugging Face folder into a model_cfg and opens its weights. Defaults are
 * those of transformers. Both spellings of the rope settings are read: rope_theta + rope_scaling,
 * and the rope_parameters of newer versions. Whatever the engine does not do is refused by name. */
#include "fusor/model/model_int.h"

#include "base/buf.h"
#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { CONFIG_BYTES_MAX = 4 << 20 }; /* chosen: real ones have a few KiB */

/* Multipliers of the residual stream and the like, which few architectures have. */
static const char *const multipliers[] = {
    "embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling",
    "logit_scale",          "embedding_scale",     "mup_enabled",
};
static const char *const expert_counts[] = {"num_experts", "num_local_experts", "n_routed_experts"};

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

/* And where its settings are: in *j, or nested in it. */
static int find_arch(struct model *m, json_t **j, struct err *err)
{
    json_t *quantization = json_object_get(*j, "quantization_config");
    const char *name = json_string_value(json_array_get(json_object_get(*j, "architectures"), 0));
    if (!name) return err_set(err, -EBADMSG, "\"architectures\" is missing");
    const struct model_arch *a = m->arch = model_arch_by_hf(name);
    if (!a) return err_set(err, -ENOTSUP, "architecture \"%.60s\" is not supported", name);
    m->nested = a->hf_outer && strcmp(a->hf_outer, name) == 0;
    if (!m->nested) return 0;
    *j = json_object_get(*j, "text_config");
    if (!json_is_object(*j)) return err_set(err, -EBADMSG, "\"text_config\" is no object");
    if (quantization && !json_is_null(quantization))
        return err_set(err, -ENOTSUP, "has a quantization_config, which is not supported");
    return 0;
}

static int read_dims(struct reader *d, struct model *m, json_t *j)
{
    struct model_cfg *c = &m->cfg;
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
    const char *eps = m->arch->layernorm ? "layer_norm_eps" : "rms_norm_eps";
    c->rms_eps = (float)real(d, j, eps, m->arch->eps > 0 ? m->arch->eps : 1e-6);
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

/* List of [n_rot/2] numbers under key. */
static void read_factors(struct reader *d, struct model *m, json_t *s, const char *key, float **ret)
{
    const size_t n = m->cfg.n_rot / 2;
    json_t *a = take(d, s, key);
    if (d->r < 0) return;
    if (json_array_size(a) != n || n == 0) {
        d->r = err_set(d->err, -EBADMSG, "\"%s\" is no list of %zu numbers", key, n);
        return;
    }
    float *f = mem_alloc(n * sizeof(*f));
    if (!f) {
        d->r = err_set(d->err, -ENOMEM, "out of memory");
        return;
    }
    for (size_t i = 0; i < n; i++)
        f[i] = (float)json_number_value(json_array_get(a, i)); /* 0: refused with the others */
    d->r = model_own_factors(f, n, key, ret, d->err);
    mem_free(f);
}

/* Two sets of factors, and a bound of what they do to the spread of scores. */
static void read_long(struct reader *d, struct model *m, struct model_rope *r, json_t *s)
{
    const double ratio = r->orig_ctx > 0 ? m->cfg.ctx_max / r->orig_ctx : 1;
    const double factor = real(d, s, "factor", ratio);
    const double by_length =
        factor > 1 && r->orig_ctx > 1 ? sqrt(1 + log(factor) / log(r->orig_ctx)) : 1;
    r->factor = 1;
    r->attn_factor = real(d, s, "attention_factor", by_length);
    read_factors(d, m, s, "short_factor", &m->freq_factors);
    read_factors(d, m, s, "long_factor", &m->long_factors);
    r->freq_factors = m->freq_factors;
    r->long_factors = m->long_factors;
}

static int read_scaling(struct reader *d, struct model *m, struct model_rope *r, json_t *j,
                        json_t *s)
{
    static const char *const types[] = {[ROPE_NONE] = "default",
                                        [ROPE_LINEAR] = "linear",
                                        [ROPE_LLAMA3] = "llama3",
                                        [ROPE_YARN] = "yarn",
                                        [ROPE_LONG] = "longrope"};
    struct model_cfg *c = &m->cfg;
    json_t *t = json_object_get(s, given(s, "rope_type") ? "rope_type" : "type");
    const char *type = t ? json_string_value(t) : "default";
    if (!type) return err_set(d->err, -EBADMSG, "the rope type is not a string");
    if (m->arch->old_longrope && (strcmp(type, "su") == 0 || strcmp(type, "yarn") == 0))
        type = types[ROPE_LONG];
    unsigned i = 0;
    while (i <= ROPE_LONG && strcmp(type, types[i]) != 0)
        i++;
    if (i > ROPE_LONG)
        return err_set(d->err, -ENOTSUP, "rope type \"%.40s\" is not supported", type);
    r->type = (enum model_rope_type)i;
    if (r->type == ROPE_NONE)
        return given(s, "mrope_section")
                   ? err_set(d->err, -ENOTSUP, "rope type \"mrope\" is not supported")
                   : 0;
    const double orig = real(d, j, "original_max_position_embeddings", c->ctx_max);
    r->orig_ctx = real(d, s, "original_max_position_embeddings", orig);
    if (r->type == ROPE_LONG) {
        read_long(d, m, r, s);
        return d->r;
    }
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

/* One set of rope settings: those of the object s, or of the file itself. */
static int read_rope_set(struct reader *d, struct model *m, json_t *j, json_t *s, double base,
                         struct model_rope *r)
{
    struct model_cfg *c = &m->cfg;
    r->base = s ? real(d, s, "rope_theta", base) : base;
    double part = real(d, j, "partial_rotary_factor", m->arch->part > 0 ? m->arch->part : 1);
    if (s) part = real(d, s, "partial_rotary_factor", part);
    if (d->r < 0) return d->r;
    if (!(part > 0 && part <= 1) || (part != 1 && !m->arch->partial))
        return err_set(d->err, -ENOTSUP, "rotates only %g of each head", part);
    c->n_rot = (unsigned)(c->K * part);
    return s ? read_scaling(d, m, r, j, s) : 0;
}

static int read_rope(struct reader *d, struct model *m, json_t *j)
{
    struct model_cfg *c = &m->cfg;
    const struct model_arch *a = m->arch;
    const double base = real(d, j, "rope_theta", a->base > 0 ? a->base : 10000);
    const double local = real(d, j, "rope_local_base_freq", a->local_base);
    json_t *s = take(d, j, given(j, "rope_parameters") ? "rope_parameters" : "rope_scaling");
    json_t *local_s = NULL, *nested;
    const char *key;
    if (s ? !json_is_object(s) : a->own_yarn && d->r == 0)
        return err_set(d->err, -EBADMSG, "the rope settings are no object");
    json_object_foreach(s, key, nested) {
        if (json_is_object(nested) && !(a->local_base > 0))
            return err_set(d->err, -ENOTSUP, "has rope settings per kind of layer");
    }
    if (s && (given(s, "full_attention") || given(s, "sliding_attention"))) {
        local_s = take(d, s, "sliding_attention");
        s = take(d, s, "full_attention");
        if ((s && !json_is_object(s)) || (local_s && !json_is_object(local_s)))
            return err_set(d->err, -EBADMSG, "the rope settings are no object");
    }
    int r = read_rope_set(d, m, j, s, base, &c->rope);
    c->rope_local = c->rope;
    if (r < 0 || !(a->local_base > 0)) return r;
    c->rope_local = (struct model_rope){.type = ROPE_NONE};
    return read_rope_set(d, m, j, local_s, local, &c->rope_local);
}

/* A list of L entries under key, or NULL. */
static json_t *per_layer(struct reader *d, json_t *j, const char *key, unsigned L)
{
    json_t *a = take(d, j, key);
    if (a && (!json_is_array(a) || json_array_size(a) != L))
        d->r = err_set(d->err, -EBADMSG, "\"%s\" is no list of %u entries", key, L);
    return a;
}

/* 1 local, 0 not, or a refusal. */
static int is_local(struct reader *d, const struct model_arch *a, json_t *type)
{
    const char *t = json_string_value(type);
    const char *local = a->window.chunk ? "chunked_attention" : "sliding_attention";
    if (t && strcmp(t, local) == 0) return 1;
    if (t && strcmp(t, "full_attention") == 0) return 0;
    return err_set(d->err, -ENOTSUP, "layer type \"%.40s\" is not supported", t ? t : "?");
}

/* Which layers have no experts: all but every n-th, or but those that are listed. */
static int read_dense_bits(struct reader *d, struct model *m, json_t *j, uint8_t *bits)
{
    const unsigned L = m->cfg.L, every = m->cfg.experts.every;
    json_t *listed = take(d, j, "moe_layers"), *v;
    size_t i;
    if (d->r < 0 || !m->arch->experts.dense_width) return d->r;
    if (listed && !json_is_array(listed))
        return err_set(d->err, -EBADMSG, "\"moe_layers\" is no list");
    for (unsigned l = 0; l < L; l++)
        if (listed || (l + 1) % every != 0) bits[l] |= MODEL_LAYER_DENSE;
    json_array_foreach(listed, i, v) {
        const json_int_t l = json_is_integer(v) ? json_integer_value(v) : -1;
        if (l < 0 || l >= L)
            return err_set(d->err, -EBADMSG, "\"moe_layers\" names no layer of %u", L);
        bits[l] &= (uint8_t)~MODEL_LAYER_DENSE;
    }
    return 0;
}

/* Bits of each layer. Local are those whose types say so, or all from one on, or all but each n-th;
 * of an architecture with chunks those that rotate. */
static int read_layer_bits(struct reader *d, struct model *m, json_t *j, uint8_t *bits)
{
    const struct model_arch *a = m->arch;
    const unsigned L = m->cfg.L;
    json_t *types = per_layer(d, j, "layer_types", L);
    const bool none = a->window.chunk && json_is_array(json_object_get(j, "no_rope_layers")) &&
                      json_array_size(json_object_get(j, "no_rope_layers")) == 0;
    json_t *rotate = a->nope_every && !none ? per_layer(d, j, "no_rope_layers", L) : NULL;
    const unsigned begin = a->window.begin ? count(d, j, "max_window_layers", a->window.begin) : 0;
    const unsigned every =
        a->local_every ? count(d, j, "sliding_window_pattern", a->local_every) : L + 1;
    const unsigned still =
        a->nope_every ? count(d, j, "no_rope_layer_interval", a->nope_every) : L + 1;
    if (d->r < 0) return d->r;
    if (a->window.by_types && m->cfg.window && !types)
        return err_set(d->err, -ENOTSUP, "has a sliding window without types of layers");
    if (every == 0 || still == 0)
        return err_set(d->err, -EBADMSG, "the pattern of its layers is damaged");
    for (unsigned l = 0; l < L; l++) {
        json_t *r = json_array_get(rotate, l);
        const bool nope = rotate ? json_integer_value(r) == 0 : (l + 1) % still == 0;
        const int local = types             ? is_local(d, a, json_array_get(types, l))
                          : a->window.chunk ? !nope
                                            : l >= begin && (l + 1) % every != 0;
        if (local < 0) return local;
        bits[l] = (uint8_t)((local ? MODEL_LAYER_LOCAL : 0) | (nope ? MODEL_LAYER_NOPE : 0));
    }
    return read_dense_bits(d, m, j, bits);
}

/* Instead of a window; null: none. */
static int read_chunk(struct reader *d, struct model *m, json_t *j)
{
    static const char key[] = "attention_chunk_size";
    const unsigned dflt = m->arch->window.chunk;
    const unsigned chunk = count(d, j, key, json_object_get(j, key) ? 0 : dflt);
    if (d->r == 0 && given(j, key) && chunk == 0)
        return err_set(d->err, -EBADMSG, "\"%s\" is 0", key);
    m->cfg.chunk = chunk < m->cfg.ctx_max ? chunk : 0;
    return d->r;
}

static int read_layers(struct reader *d, struct model *m, json_t *j)
{
    const struct model_arch *a = m->arch;
    const bool absent = !json_object_get(j, "sliding_window");
    const unsigned window = count(d, j, "sliding_window", absent ? a->window.size : 0);
    const bool use = flag(d, j, "use_sliding_window", !a->window.has_switch);
    const unsigned L = m->cfg.L;
    m->cfg.window = use && window < m->cfg.ctx_max ? window : 0;
    if (a->window.chunk && m->cfg.window)
        return err_set(d->err, -ENOTSUP, "has a sliding window, where it has chunks");
    int r = a->window.chunk ? read_chunk(d, m, j) : d->r;
    if (r < 0 || L > MODEL_L_MAX) return r;
    uint8_t *bits = mem_zalloc(L + 1);
    if (!bits) return err_set(d->err, -ENOMEM, "out of memory");
    r = read_layer_bits(d, m, j, bits);
    if (r == 0) r = model_set_layers(m, bits, d->err);
    mem_free(bits);
    return r;
}

/* What some architectures multiply and bound. */
static int read_scales(struct reader *d, struct model *m, json_t *j)
{
    const struct model_arch *a = m->arch;
    struct model_cfg *c = &m->cfg;
    c->embed_scale = c->logit_scale = 1;
    if (a->score_dims > 0)
        c->attn_scale = (float)(1 / sqrt(real(d, j, "query_pre_attn_scalar", a->score_dims)));
    if (a->multipliers) {
        const double residual = real(d, j, "residual_multiplier", 1);
        c->attn_scale = (float)real(d, j, "attention_multiplier", 1);
        c->logit_scale = (float)(1 / real(d, j, "logits_scaling", 1));
        model_scale_residual(c, real(d, j, "embedding_multiplier", 1), residual);
    }
    json_t *tuned = json_object_get(j, "attn_temperature_tuning"); /* older files: a number */
    if (a->window.tempered &&
        !(json_is_integer(tuned) ? json_integer_value(tuned) == 0
                                 : !flag(d, j, "attn_temperature_tuning", true))) {
        c->temp_floor = (float)real(d, j, "floor_scale", 8192);
        c->temp_scale = (float)real(d, j, "attn_scale", 0.1);
        if (d->r == 0 && !(c->temp_floor > 0))
            return err_set(d->err, -EBADMSG, "\"floor_scale\" is not above 0");
    }
    const bool attn = json_object_get(j, "attn_logit_softcapping"),
               logit = json_object_get(j, "final_logit_softcapping"); /* null: none */
    if (!a->caps) return d->r;
    c->attn_cap = (float)real(d, j, "attn_logit_softcapping", attn ? 0 : a->attn_cap);
    c->logit_cap = (float)real(d, j, "final_logit_softcapping", logit ? 0 : a->logit_cap);
    return d->r;
}

static int refuse_activation(struct reader *d, const struct model_arch *a, json_t *j)
{
    const bool gelu = a->act == KN_GELU_TANH;
    const char *own = gelu ? "gelu_pytorch_tanh" : "silu";
    json_t *act = json_object_get(j, gelu ? "hidden_activation" : "hidden_act");
    const char *name = act ? json_string_value(act) : own;
    if (!name || strcmp(name, own) != 0)
        return err_set(d->err, -ENOTSUP, "activation \"%.40s\" is not supported",
                       name ? name : "?");
    if (a->act != KN_SILU_CLAMPED) return 0;
    const double limit = real(d, j, "swiglu_limit", 7), alpha = real(d, j, "swiglu_alpha", 1.702);
    if (d->r == 0 && (limit != 7 || alpha != 1.702))
        return err_set(d->err, -ENOTSUP, "swiglu_limit %g with swiglu_alpha %g is not supported",
                       limit, alpha);
    return d->r;
}

/* ---- quantization_config ---- */

/* The string under the first of keys that is given; NULL: none is. */
static const char *word(struct reader *d, json_t *o, const char *const *keys, const char *dflt)
{
    json_t *v = NULL;
    for (; *keys && !v; keys++)
        v = take(d, o, *keys);
    if (v && !json_is_string(v))
        d->r = err_set(d->err, -EBADMSG, "quantization_config: a name is not a string");
    return d->r < 0 ? dflt : v ? json_string_value(v) : dflt;
}

static int not_read(struct reader *d, const char *what, const char *value, const char *read)
{
    if (d->r < 0) return d->r;
    return err_set(d->err, -ENOTSUP, "quantization_config: %s \"%.40s\" is not supported, only %s",
                   what, value, read);
}

/* A group size; -1 or null: a row is one. */
static unsigned group_size(struct reader *d, json_t *o, const char *key, long long dflt)
{
    json_t *v = take(d, o, key);
    if (json_is_integer(v) && json_integer_value(v) == -1) return 0;
    const unsigned n = count(d, o, key, dflt);
    if (d->r == 0 && v && n == 0) d->r = err_set(d->err, -EBADMSG, "\"%s\" is 0", key);
    return n;
}

static int read_awq(struct reader *d, json_t *q, struct packed_cfg *c)
{
    static const char *const versions[] = {"version", "format", "checkpoint_format", NULL};
    const char *version = word(d, q, versions, "gemm");
    c->bits = count(d, q, given(q, "w_bit") ? "w_bit" : "bits", 4);
    c->group = group_size(d, q, given(q, "q_group_size") ? "q_group_size" : "group_size", 128);
    c->has_zeros = true;
    if (d->r == 0 && strcasecmp(version, "gemm") != 0)
        return not_read(d, "AWQ version", version, "\"gemm\"");
    if (!flag(d, q, "zero_point", true))
        return not_read(d, "zero_point", "false", "AWQ with zeros");
    if (d->r == 0 && c->bits != 4)
        return err_set(d->err, -ENOTSUP, "quantization_config: AWQ has 4 bits, not %u", c->bits);
    return d->r;
}

static int read_gptq(struct reader *d, json_t *q, struct packed_cfg *c)
{
    static const char *const formats[] = {"checkpoint_format", "format", NULL};
    const char *format = word(d, q, formats, "gptq");
    json_t *dynamic = take(d, q, "dynamic");
    c->bits = count(d, q, "bits", -1);
    c->group = group_size(d, q, "group_size", -1);
    c->has_zeros = true;
    c->mixed = json_object_size(dynamic) > 0;
    c->less_one = strcmp(format, "gptq_v2") != 0;
    if (c->less_one && strcmp(format, "gptq") != 0)
        return not_read(d, "GPTQ format", format, "\"gptq\" and \"gptq_v2\"");
    if (flag(d, q, "is_marlin_format", false))
        return not_read(d, "GPTQ format", "marlin", "\"gptq\" and \"gptq_v2\"");
    if (d->r == 0 && c->bits != 2 && c->bits != 3 && c->bits != 4 && c->bits != 8)
        return err_set(d->err, -ENOTSUP, "quantization_config: GPTQ has 2, 3, 4 or 8 bits, not %u",
                       c->bits);
    return d->r;
}

/* How a group of modules' weights are quantised. */
static int read_scheme(struct reader *d, json_t *scheme, struct packed_cfg *c)
{
    static const char *const types[] = {"type", NULL}, *const strategies[] = {"strategy", NULL};
    static const char *const formats[] = {"format", NULL};
    static const char only[] = "integer weights by \"group\" or \"channel\"";
    json_t *w = take(d, scheme, "weights");
    if (!json_is_object(w))
        return err_set(d->err, -EBADMSG, "quantization_config: a group has no \"weights\"");
    const char *type = word(d, w, types, "int");
    const char *strategy = word(d, w, strategies, given(w, "group_size") ? "group" : "channel");
    const char *format = word(d, scheme, formats, "pack-quantized");
    const bool by_group = strcmp(strategy, "group") == 0;
    c->bits = count(d, w, "num_bits", 8);
    c->group = by_group ? group_size(d, w, "group_size", -1) : 0;
    c->has_zeros = !flag(d, w, "symmetric", true);
    if (given(scheme, "input_activations") || given(scheme, "output_activations"))
        return not_read(d, "compressed-tensors of", "activations", only);
    if (strcmp(format, "pack-quantized") != 0)
        return not_read(d, "format", format, "pack-quantized");
    if (strcmp(type, "int") != 0) return not_read(d, "type", type, only);
    if (!by_group && strcmp(strategy, "channel") != 0)
        return not_read(d, "strategy", strategy, only);
    if (d->r == 0 && c->bits != 4 && c->bits != 8)
        return err_set(d->err, -ENOTSUP,
                       "quantization_config: pack-quantized weights of %u bits, not 4 or 8",
                       c->bits);
    return d->r;
}

static bool same_scheme(const struct packed_cfg *a, const struct packed_cfg *b)
{
    return a->bits == b->bits && a->group == b->group && a->has_zeros == b->has_zeros;
}

static int read_tensors(struct reader *d, json_t *q, struct packed_cfg *c)
{
    static const char *const formats[] = {"format", NULL};
    static const char *const refused[] = {"kv_cache_scheme", "transform_config"};
    const char *format = word(d, q, formats, "?"), *key;
    json_t *groups = take(d, q, "config_groups"), *sparse = take(d, q, "sparsity_config"), *scheme;
    struct packed_cfg first = *c;
    size_t n = 0;
    if (d->r == 0 && strcmp(format, "pack-quantized") != 0)
        return not_read(d, "compressed-tensors format", format, "\"pack-quantized\"");
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
        if (json_object_size(take(d, q, refused[i])) > 0)
            return not_read(d, "compressed-tensors with", refused[i], "weights");
    const char *sparsity = word(d, sparse, formats, "dense");
    if (strcmp(sparsity, "dense") != 0) return not_read(d, "sparsity", sparsity, "\"dense\"");
    if (d->r == 0 && json_object_size(groups) == 0)
        return err_set(d->err, -EBADMSG, "quantization_config: \"config_groups\" is missing");
    json_object_foreach(groups, key, scheme) {
        struct packed_cfg next = *c;
        int r = read_scheme(d, scheme, &next);
        if (r < 0) return r;
        if (n++ == 0) first = next;
        first.mixed = first.mixed || !same_scheme(&first, &next);
    }
    *c = first;
    return d->r;
}

/* Which layers it holds for, their tensors say: those that it names as left out have "weight". */
static int read_quantization(struct reader *d, struct model *m, json_t *j)
{
    static const char *const methods[] = {
        [PACKED_AWQ] = "awq", [PACKED_GPTQ] = "gptq", [PACKED_TENSORS] = "compressed-tensors"};
    static const char *const keys[] = {"quant_method", NULL};
    static const char read[] = "awq, gptq and compressed-tensors (pack-quantized)";
    const struct model_arch_experts *e = &m->arch->experts;
    json_t *q = take(d, j, "quantization_config");
    if (!q) return d->r;
    const char *method = word(d, q, keys, "?");
    if (d->r < 0) return d->r;
    if (e->in_turns && strcmp(method, "mxfp4") == 0) return 0;
    if (e->in_turns || e->in_columns)
        return not_read(d, "method", method, e->in_turns ? "mxfp4 with this architecture" : "none");
    enum packed_method is = PACKED_AWQ;
    while (is <= PACKED_TENSORS && strcmp(method, methods[is]) != 0)
        is++;
    if (is > PACKED_TENSORS) return not_read(d, "method", method, read);
    struct packed_cfg c = {.method = is};
    int r = is == PACKED_AWQ    ? read_awq(d, q, &c)
            : is == PACKED_GPTQ ? read_gptq(d, q, &c)
                                : read_tensors(d, q, &c);
    if (r == 0) m->packed = c;
    return r;
}

static int refuse_hf_features(struct reader *d, const struct model_arch *a, json_t *j)
{
    int r = refuse_activation(d, a, j);
    if (r < 0) return r;
    if (flag(d, j, "use_bidirectional_attention", false))
        return err_set(d->err, -ENOTSUP, "attends in both directions");
    if (given(j, "clip_qkv")) return err_set(d->err, -ENOTSUP, "clamps Q, K and V (clip_qkv)");
    if (flag(d, j, "use_parallel_residual", false))
        return err_set(d->err, -ENOTSUP,
                       "computes attention and feed-forward part beside each other "
                       "(use_parallel_residual)");
    if (flag(d, j, "qk_layernorm", false))
        return err_set(d->err, -ENOTSUP, "norms each head of Q and K by its own (qk_layernorm)");
    if (flag(d, j, "mlp_bias", false))
        return err_set(d->err, -ENOTSUP, "has biases in its feed-forward part (mlp_bias)");
    for (size_t i = 0; !a->multipliers && i < sizeof(multipliers) / sizeof(multipliers[0]); i++) {
        json_t *v = json_object_get(j, multipliers[i]);
        if (!v || json_is_null(v) || json_is_false(v)) continue;
        if (!json_is_number(v) || json_number_value(v) != 1)
            return err_set(d->err, -ENOTSUP, "\"%s\" is not supported", multipliers[i]);
    }
    return d->r;
}

static int read_experts(struct reader *d, struct model *m, json_t *j)
{
    const struct model_arch_experts *a = &m->arch->experts;
    struct model_experts *e = &m->cfg.experts;
    const char *key = NULL;
    for (size_t i = 0; e->n == 0 && i < sizeof(expert_counts) / sizeof(expert_counts[0]); i++)
        e->n = count(d, j, key = expert_counts[i], 0);
    json_t *dense = take(d, j, "mlp_only_layers");
    if (d->r < 0) return d->r;
    if (!a->width)
        return e->n ? err_set(d->err, -ENOTSUP, "is a mixture of experts (\"%s\")", key) : 0;
    if (e->n == 0 && a->dense_width && given(j, "num_local_experts"))
        return err_set(d->err, -ENOTSUP, "has no experts (\"num_local_experts\")");
    if (e->n == 0) return err_set(d->err, -EBADMSG, "\"num_experts\" is missing");
    e->used = count(d, j, "num_experts_per_tok", -1);
    e->F = count(d, j, a->width, -1);
    e->renorm = a->renorm_key ? flag(d, j, "norm_topk_prob", false) : a->renorm;
    e->biases = a->biases;
    e->scales_input = a->scales_input;
    if (a->shared) e->shared_F = count(d, j, "shared_expert_intermediate_size", -1);
    if (a->scales_input) e->shared_F = e->F;
    if (a->dense_width) {
        e->dense_F = count(d, j, a->dense_width, -1);
        e->every = count(d, j, "interleave_moe_layer_step", 1);
        if (d->r == 0 && e->every == 0)
            return err_set(d->err, -EBADMSG, "\"interleave_moe_layer_step\" is 0");
    }
    if (count(d, j, "decoder_sparse_step", 1) != 1 || json_array_size(dense) > 0)
        return err_set(d->err, -ENOTSUP, "has layers without experts");
    return d->r;
}

static int read_config(struct model *m, json_t *j, struct err *err)
{
    struct model_cfg *c = &m->cfg;
    struct reader d = {.err = err};
    int r = find_arch(m, &j, err);
    if (r < 0) return r;
    const struct model_arch *a = m->arch;
    (void)snprintf(c->arch, sizeof(c->arch), "%s", a->name);
    r = refuse_hf_features(&d, a, j);
    if (r == 0) r = read_quantization(&d, m, j);
    if (r == 0) r = read_dims(&d, m, j);
    if (r == 0) r = read_experts(&d, m, j);
    if (r == 0) r = read_rope(&d, m, j);
    if (r == 0) r = read_layers(&d, m, j);
    if (r == 0) r = read_scales(&d, m, j);
    if (r < 0) return r;
    c->tied = flag(&d, j, "tie_word_embeddings", a->tied);
    c->o_bias = a->bias_key && flag(&d, j, "attention_bias", a->qkv_bias);
    c->qkv_bias = a->bias_key ? c->o_bias : a->qkv_bias;
    c->qkv_bias = flag(&d, j, "qkv_bias", c->qkv_bias);
    if (a->qkv_bias_key) c->qkv_bias = flag(&d, j, a->qkv_bias_key, a->qkv_bias);
    c->qk_norm = a->qk_norm;
    c->qk_norm_wide = a->qk_norm_wide;
    c->qk_unit = a->qk_unit && flag(&d, j, "use_qk_norm", true);
    c->sinks = a->sinks;
    c->norms = a->norms;
    c->layernorm = a->layernorm;
    c->act = a->act;
    m->norm_less_one = a->norm_less_one;
    m->permuted = a->hf_interleaved;
    return d.r;
}

/* Only the text's tensors are there, by the names that they have without a model around it. */
static void unwrap_tensors(struct tensors *ts)
{
    static const char inner[] = "language_model.";
    static const char *const others[] = {"vision_model.", "multi_modal_projector."};
    for (size_t i = 0; i < ts->n; i++) {
        struct tensor *t = &ts->t[i];
        if (strncmp(t->name, inner, sizeof(inner) - 1) == 0) t->name += sizeof(inner) - 1;
        for (size_t o = 0; o < sizeof(others) / sizeof(others[0]); o++)
            if (strncmp(t->name, others[o], strlen(others[o])) == 0) t->used = true;
    }
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
    if (r == 0 && m->nested) unwrap_tensors(m->tensors);
    return r;
}
