/* config.json of an encoder: which family it is, and what of that family it asks for. A setting
 * that would change a vector and is not computed is refused by name. */
#include "fusor/encode/encode_int.h"

#include <stdio.h>
#include <string.h>

enum { F_MAX = 1 << 20, V_MAX = 1 << 22, POS_MAX = 1 << 20, WINDOW_MAX = 1 << 20 };
static const double base_max = 1e12; /* chosen: published ones end at 1e6 */

struct arch {
    const char *hf, *name;
    int (*read)(const json_t *j, struct enc_cfg *c, struct err *err);
    bool pos_behind_pad; /* positions begin behind the padding token's id */
    enum enc_head head;
};

/* Where it is there it must be one of these; null counts as absent. */
struct fixed {
    const char *key;
    const char *value; /* as JSON has it, strings without quotes */
};

static int refuse_others(const json_t *j, const struct fixed *f, size_t n, struct err *err)
{
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_object_get(j, f[i].key);
        char text[64] = "";
        if (!v || json_is_null(v)) continue;
        if (json_is_string(v))
            (void)snprintf(text, sizeof text, "%s", json_string_value(v));
        else if (json_is_boolean(v))
            (void)snprintf(text, sizeof text, "%s", json_is_true(v) ? "true" : "false");
        else if (json_is_number(v))
            (void)snprintf(text, sizeof text, "%g", json_number_value(v));
        else
            (void)snprintf(text, sizeof text, "%s", json_is_array(v) ? "a list" : "an object");
        if (strcmp(text, f[i].value) != 0)
            return err_set(err, -ENOTSUP, "\"%s\": %s is not supported (%s is)", f[i].key, text,
                           f[i].value);
    }
    return 0;
}

/* ---- what rotates ---- */

static int read_base(const json_t *j, const char *key, double dflt, double *ret, struct err *err)
{
    const json_t *v = json_object_get(j, key);
    const double x = v ? json_number_value(v) : dflt;
    if (!(x > 1 && x <= base_max))
        return err_set(err, -EBADMSG, "\"%s\" is not a base from 1 to %g", key, base_max);
    *ret = x;
    return 0;
}

/* "rope_parameters", or of these the entry of a kind of layers; else the older key. */
static int read_rope(const json_t *j, const char *kind, const char *old_key, double dflt,
                     double *ret, struct err *err)
{
    static const struct fixed plain[] = {
        {"rope_type", "default"}, {"type", "default"}, {"partial_rotary_factor", "1"}};
    const json_t *p = json_object_get(j, "rope_parameters");
    if (kind && p) p = json_object_get(p, kind);
    if (!json_is_object(p)) return read_base(j, old_key, dflt, ret, err);
    int r = refuse_others(p, plain, sizeof plain / sizeof *plain, err);
    return r == 0 ? read_base(p, "rope_theta", dflt, ret, err) : r;
}

static int check_heads(const struct enc_cfg *c, struct err *err)
{
    /* Chosen: a table of 32 MiB, 131 072 positions of heads of 64. */
    enum { HEAD_MAX = 512, VALUES_MAX = 1 << 23 };
    const unsigned K = c->D / c->H;
    if (K % 2 == 0 && K <= HEAD_MAX && c->n_pos <= VALUES_MAX / K) return 0;
    return err_set(err, -ENOTSUP, "%u rotary positions of heads of %u dimensions are not supported",
                   c->n_pos, K);
}

/* ---- families ---- */

static int read_bert(const json_t *j, struct enc_cfg *c, struct err *err)
{
    static const struct fixed fixed[] = {{"hidden_act", "gelu"},
                                         {"position_embedding_type", "absolute"}};
    c->act = KN_GELU;
    c->bias_attn = c->bias_up = c->bias_down = c->bias_norm = true;
    int r = refuse_others(j, fixed, sizeof fixed / sizeof *fixed, err);
    return r == 0 ? enc_json_count(j, "type_vocab_size", ENC_D_MAX, 2, &c->n_types, err) : r;
}

static bool says(const json_t *j, const char *key, bool dflt)
{
    const json_t *v = json_object_get(j, key);
    return json_is_boolean(v) ? json_is_true(v) : dflt;
}

/* In both spellings of its settings: as published and as transformers has it. */
static int read_nomic(const json_t *j, struct enc_cfg *c, struct err *err)
{
    static const struct fixed fixed[] = {{"hidden_act", "silu"},
                                         {"activation_function", "swiglu"},
                                         {"rotary_emb_fraction", "1"},
                                         {"rotary_emb_interleaved", "false"},
                                         {"rotary_emb_scale_base", "none"},
                                         {"rotary_scaling_factor", "none"},
                                         {"rope_scaling", "none"},
                                         {"prenorm", "false"},
                                         {"parallel_block", "false"},
                                         {"use_rms_norm", "false"},
                                         {"causal", "false"},
                                         {"scale_attn_weights", "true"},
                                         {"scale_attn_by_inverse_layer_idx", "false"},
                                         {"num_experts", "0"},
                                         {"add_pooling_layer", "false"}};
    c->gated = true;
    c->act = KN_SILU;
    c->bias_norm = true;
    c->bias_attn = says(j, "qkv_proj_bias", false);
    c->bias_up = says(j, "mlp_fc1_bias", false);
    c->bias_down = says(j, "mlp_fc2_bias", false);
    int r = refuse_others(j, fixed, sizeof fixed / sizeof *fixed, err);
    if (r == 0) r = enc_json_count(j, "type_vocab_size", ENC_D_MAX, 2, &c->n_types, err);
    if (r == 0) r = read_rope(j, NULL, "rotary_emb_base", 1000, &c->rope_base, err);
    return r == 0 ? check_heads(c, err) : r;
}

static int read_gte(const json_t *j, struct enc_cfg *c, struct err *err)
{
    static const struct fixed fixed[] = {{"hidden_act", "gelu"},
                                         {"position_embedding_type", "rope"},
                                         {"rope_scaling", "none"},
                                         {"layer_norm_type", "layer_norm"},
                                         {"logn_attention_scale", "false"}};
    const json_t *types = json_object_get(j, "type_vocab_size");
    const bool none = json_is_integer(types) && json_integer_value(types) == 0;
    c->gated = true;
    c->act = KN_GELU;
    c->bias_attn = c->bias_down = c->bias_norm = true;
    int r = refuse_others(j, fixed, sizeof fixed / sizeof *fixed, err);
    if (r == 0 && !none) r = enc_json_count(j, "type_vocab_size", ENC_D_MAX, 1, &c->n_types, err);
    if (r == 0) r = read_rope(j, NULL, "rope_theta", 160000, &c->rope_base, err);
    return r == 0 ? check_heads(c, err) : r;
}

/* Which layers have a window: a list, or each but every so manieth. */
static int read_local(const json_t *j, struct enc_cfg *c, struct err *err)
{
    const json_t *list = json_object_get(j, "layer_types"), *v;
    unsigned period;
    size_t i;
    int r = enc_json_count(j, "global_attn_every_n_layers", ENC_L_MAX, 3, &period, err);
    if (r < 0) return r;
    for (i = 0; i < c->L; i++)
        c->local[i] = i % period != 0;
    if (!list || json_is_null(list)) return 0;
    if (json_array_size(list) != c->L)
        return err_set(err, -EBADMSG, "\"layer_types\" is not a list of %u", c->L);
    json_array_foreach(list, i, v) {
        const char *type = json_is_string(v) ? json_string_value(v) : "";
        c->local[i] = strcmp(type, "sliding_attention") == 0;
        if (!c->local[i] && strcmp(type, "full_attention") != 0)
            return err_set(err, -ENOTSUP, "\"layer_types\": \"%.40s\" is not supported", type);
    }
    return 0;
}

static int read_modern(const json_t *j, struct enc_cfg *c, struct err *err)
{
    static const struct fixed fixed[] = {{"hidden_activation", "gelu"}, {"rope_scaling", "none"}};
    static const char full[] = "full_attention", local[] = "sliding_attention";
    unsigned across;
    c->gated = c->norms_before = true;
    c->act = KN_GELU;
    c->bias_attn = says(j, "attention_bias", false);
    c->bias_up = c->bias_down = says(j, "mlp_bias", false);
    c->bias_norm = says(j, "norm_bias", false);
    int r = refuse_others(j, fixed, sizeof fixed / sizeof *fixed, err);
    if (r == 0) r = read_local(j, c, err);
    if (r == 0) r = enc_json_count(j, "local_attention", WINDOW_MAX, 128, &across, err);
    if (r == 0) r = read_rope(j, full, "global_rope_theta", 160000, &c->rope_base, err);
    if (r == 0) r = read_rope(j, local, "local_rope_theta", 10000, &c->rope_base_local, err);
    if (r < 0) return r;
    c->window = across / 2;
    return check_heads(c, err);
}

/* ---- what makes a score ---- */

/* Two where no file says it, as transformers has it. */
static size_t n_labels(const json_t *j)
{
    const json_t *names = json_object_get(j, "id2label"), *n = json_object_get(j, "num_labels");
    if (json_is_object(names)) return json_object_size(names);
    return json_is_integer(n) && json_integer_value(n) >= 0 ? (size_t)json_integer_value(n) : 2;
}

/* What CrossEncoder applies to the logit, by the name of PyTorch's module: its default is a
 * sigmoid. */
static int read_activation(const json_t *j, bool *ret_sigmoid, struct err *err)
{
    const json_t *v = json_object_get(json_object_get(j, "sentence_transformers"), "activation_fn");
    if (!v) v = json_object_get(j, "sbert_ce_default_activation_function");
    *ret_sigmoid = true;
    if (!v || json_is_null(v)) return 0;
    const char *name = json_is_string(v) ? json_string_value(v) : "", *dot = strrchr(name, '.');
    if (dot) name = dot + 1;
    *ret_sigmoid = strcmp(name, "Sigmoid") == 0;
    if (*ret_sigmoid || strcmp(name, "Identity") == 0) return 0;
    return err_set(err, -ENOTSUP, "the activation \"%.60s\" of scores is not supported", name);
}

static int read_head(const json_t *j, enum enc_head head, struct enc_cfg *c, struct err *err)
{
    static const struct fixed fixed[] = {{"classifier_activation", "gelu"}};
    const char *pool = json_string_value(json_object_get(j, "classifier_pooling"));
    const size_t n = n_labels(j);
    c->head = head;
    c->head_pool = ENC_POOL_CLS;
    c->bias_head = true;
    if (n != 1)
        return err_set(err, -ENOTSUP, "a classifier of %zu labels is not supported (of one is)", n);
    if (head == ENC_HEAD_NORMED) {
        c->bias_head = says(j, "classifier_bias", false);
        if (refuse_others(j, fixed, sizeof fixed / sizeof *fixed, err) < 0) return -ENOTSUP;
        if (pool && strcmp(pool, "mean") == 0)
            c->head_pool = ENC_POOL_MEAN;
        else if (pool && strcmp(pool, "cls") != 0)
            return err_set(err, -ENOTSUP, "\"classifier_pooling\": \"%.40s\" is not supported",
                           pool);
    }
    return read_activation(j, &c->sigmoid, err);
}

static const struct arch archs[] = {
    {"BertModel", "bert", read_bert, false, ENC_HEAD_NONE},
    {"BertForMaskedLM", "bert", read_bert, false, ENC_HEAD_NONE},
    {"BertForSequenceClassification", "bert", read_bert, false, ENC_HEAD_POOLER},
    {"RobertaModel", "roberta", read_bert, true, ENC_HEAD_NONE},
    {"RobertaForMaskedLM", "roberta", read_bert, true, ENC_HEAD_NONE},
    {"RobertaForSequenceClassification", "roberta", read_bert, true, ENC_HEAD_CLASS},
    {"XLMRobertaModel", "xlm-roberta", read_bert, true, ENC_HEAD_NONE},
    {"XLMRobertaForMaskedLM", "xlm-roberta", read_bert, true, ENC_HEAD_NONE},
    {"XLMRobertaForSequenceClassification", "xlm-roberta", read_bert, true, ENC_HEAD_CLASS},
    {"NomicBertModel", "nomic-bert", read_nomic, false, ENC_HEAD_NONE},
    {"NewModel", "gte", read_gte, false, ENC_HEAD_NONE},
    {"GteModel", "gte", read_gte, false, ENC_HEAD_NONE},
    {"ModernBertModel", "modernbert", read_modern, false, ENC_HEAD_NONE},
    {"ModernBertForMaskedLM", "modernbert", read_modern, false, ENC_HEAD_NONE},
    {"ModernBertForSequenceClassification", "modernbert", read_modern, false, ENC_HEAD_NORMED},
};
enum { N_ARCHS = sizeof archs / sizeof *archs };

static const struct arch *arch_of(const json_t *j)
{
    const char *name = json_string_value(json_array_get(json_object_get(j, "architectures"), 0));
    for (size_t i = 0; name && i < N_ARCHS; i++)
        if (strcmp(archs[i].hf, name) == 0) return &archs[i];
    return NULL;
}

/* By its name, or by the one that GPT-2's settings have for it. */
static int dimension(const json_t *j, const char *key, const char *old_key, unsigned max,
                     unsigned *ret, struct err *err)
{
    const bool old = !json_object_get(j, key) && json_object_get(j, old_key);
    return enc_json_count(j, old ? old_key : key, max, 0, ret, err);
}

static int read_cfg(const json_t *j, const struct arch *a, struct enc_cfg *c, struct err *err)
{
    static const struct fixed fixed[] = {{"quantization_config", "none"}, {"is_decoder", "false"}};
    const json_t *pad = json_object_get(j, "pad_token_id");
    const json_int_t pad_id = pad && !json_is_null(pad) ? json_integer_value(pad) : 1;
    static const char *const eps_keys[] = {"norm_eps", "layer_norm_eps", "layer_norm_epsilon"};
    const json_t *eps = NULL;
    for (size_t i = 0; !eps && i < sizeof eps_keys / sizeof *eps_keys; i++)
        eps = json_object_get(j, eps_keys[i]);
    (void)snprintf(c->arch, sizeof c->arch, "%s", a->name);
    int r = dimension(j, "num_hidden_layers", "n_layer", ENC_L_MAX, &c->L, err);
    if (r == 0) r = dimension(j, "hidden_size", "n_embd", ENC_D_MAX, &c->D, err);
    if (r == 0) r = dimension(j, "num_attention_heads", "n_head", ENC_D_MAX, &c->H, err);
    if (r == 0) r = dimension(j, "intermediate_size", "n_inner", F_MAX, &c->F, err);
    if (r == 0) r = dimension(j, "vocab_size", "vocab_size", V_MAX, &c->V, err);
    if (r == 0) r = dimension(j, "max_position_embeddings", "n_positions", POS_MAX, &c->n_pos, err);
    if (r == 0) r = refuse_others(j, fixed, sizeof fixed / sizeof *fixed, err);
    if (r < 0) return r;
    if (pad_id < 0 || pad_id >= c->V) return err_set(err, -EBADMSG, "\"pad_token_id\" is no token");
    if (a->pos_behind_pad) c->pos0 = (unsigned)pad_id + 1;
    if (c->D % c->H != 0)
        return err_set(err, -EBADMSG, "%u attention heads cannot share a width of %u", c->H, c->D);
    if (c->n_pos <= c->pos0) return err_set(err, -EBADMSG, "has no positions");
    c->eps = json_is_number(eps) ? (float)json_number_value(eps) : c->eps;
    if (!(c->eps >= 0) || c->eps > 1) return err_set(err, -EBADMSG, "norm epsilon is damaged");
    r = a->read(j, c, err);
    return r == 0 && a->head ? read_head(j, a->head, c, err) : r;
}

int enc_read_config(const char *folder, struct enc_cfg *ret, struct err *err)
{
    struct err inner = {0};
    struct enc_cfg c = {0};
    json_t *j = NULL;
    int r = enc_read_json(folder, "config.json", &j, err);
    if (r <= 0) return r;
    const struct arch *a = arch_of(j);
    if (a) c.eps = a->read == read_modern ? 1e-5f : 1e-12f;
    r = a ? read_cfg(j, a, &c, &inner) : 0;
    json_decref(j);
    if (r < 0) return err_set(err, r, "config.json: %s", inner.msg);
    if (!a) return 0;
    *ret = c;
    return 1;
}
