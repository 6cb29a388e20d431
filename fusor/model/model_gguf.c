/* Reads the metadata of a GGUF file into a model_cfg. Keys are "<architecture>.<name>"; defaults
 * are llama.cpp's. Whatever changes the arithmetic in a way the engine does not do is refused here
 * by name. */
#include "fusor/model/model_int.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* What the engine does for architectures of some kind or for none, and the one value at which it
 * makes no difference. */
enum kind { NEVER, MULTIPLIERS, CAPS, EXPERTS, SIGMOID };
static const struct {
    const char *key;
    double neutral;
    enum kind unless;
    const char *what;
} refused[] = {
    {"expert_count", 0, EXPERTS, "is a mixture of experts"},
    {"expert_gating_func", 1, SIGMOID, "chooses experts by another function than its architecture"},
    {"expert_weights_scale", 1, NEVER, "scales what its experts give"},
    {"leading_dense_block_count", 0, NEVER, "has layers without experts"},
    {"embedding_scale", 1, MULTIPLIERS, "scales its embeddings"},
    {"residual_scale", 1, MULTIPLIERS, "scales its residual stream"},
    {"logit_scale", 1, MULTIPLIERS, "scales its logits"},
    {"attn_logit_softcapping", 0, CAPS, "caps its attention scores"},
    {"final_logit_softcapping", 0, CAPS, "caps its logits"},
    {"attention.max_alibi_bias", 0, NEVER, "uses ALiBi"},
    {"attention.clamp_kqv", 0, NEVER, "clamps Q, K and V"},
};

struct keys { /* the architecture's prefix */
    const struct gguf *g;
    const char *arch;
    char buf[96];
};

static const char *key(struct keys *k, const char *name)
{
    (void)snprintf(k->buf, sizeof(k->buf), "%s.%s", k->arch, name);
    return k->buf;
}

static double get(struct keys *k, const char *name, double dflt)
{
    (void)gguf_f64(k->g, key(k, name), &dflt);
    return dflt;
}

/* A count; some files store one value per layer, which is fine while all are equal. */
static int get_count(struct keys *k, const char *name, unsigned dflt, unsigned *ret,
                     struct err *err)
{
    const struct gguf_kv *kv = gguf_find(k->g, key(k, name));
    uint64_t v = dflt;
    size_t n = kv ? kv->n : 0;
    if (n > 0) {
        int64_t first = -1, x;
        for (size_t i = 0; i < n; i++) {
            if (!gguf_arr_i64(kv, i, &x) || x < 0)
                return err_set(err, -EBADMSG, "metadata \"%s\" is damaged", k->buf);
            if (i == 0) first = x;
            if (x != first)
                return err_set(err, -ENOTSUP, "metadata \"%s\" differs between layers", k->buf);
        }
        v = (uint64_t)first;
    } else if (kv && !gguf_u64(k->g, k->buf, &v)) {
        return err_set(err, -EBADMSG, "metadata \"%s\" is damaged", k->buf);
    }
    if (!kv && dflt == 0) return err_set(err, -EBADMSG, "metadata \"%s\" is missing", k->buf);
    if (v > UINT32_MAX) return err_set(err, -EBADMSG, "metadata \"%s\" is absurd", k->buf);
    *ret = (unsigned)v;
    return 0;
}

static const struct tensor *find_tensor(const struct model *m, const char *name)
{
    return tensors_find(gguf_tensors(m->gguf), name);
}

static int read_dims(struct model *m, struct keys *k, struct err *err)
{
    struct model_cfg *c = &m->cfg;
    const struct tensor *emb = find_tensor(m, "token_embd.weight");
    if (!emb) return err_set(err, -EBADMSG, "tensor \"token_embd.weight\" is missing");
    if (emb->rows > MODEL_V_MAX)
        return err_set(err, -EBADMSG, "vocabulary of %zu is absurd", emb->rows);
    c->V = (unsigned)emb->rows;
    int r = get_count(k, "block_count", 0, &c->L, err);
    if (r == 0) r = get_count(k, "embedding_length", 0, &c->D, err);
    if (r == 0) r = get_count(k, "feed_forward_length", 0, &c->F, err);
    if (r == 0) r = get_count(k, "attention.head_count", 0, &c->H, err);
    if (r == 0) r = get_count(k, "attention.head_count_kv", c->H, &c->G, err);
    if (r == 0) r = get_count(k, "context_length", 0, &c->ctx_max, err);
    if (r < 0) return r;
    if (c->H == 0 || c->D < c->H) return err_set(err, -EBADMSG, "has %u attention heads", c->H);
    unsigned v_len = 0;
    r = get_count(k, "attention.key_length", c->D / c->H, &c->K, err);
    if (r == 0) r = get_count(k, "attention.value_length", c->K, &v_len, err);
    if (r == 0) r = get_count(k, "rope.dimension_count", c->K, &c->n_rot, err);
    if (r < 0) return r;
    if (v_len != c->K) return err_set(err, -ENOTSUP, "values have another head size than keys");
    return 0;
}

static int read_rope(struct model *m, struct keys *k, struct err *err)
{
    struct model_rope *r = &m->cfg.rope;
    r->base = get(k, "rope.freq_base", m->arch->base > 0 ? m->arch->base : 10000);
    const char *type = gguf_str(m->gguf, key(k, "rope.scaling.type"));
    r->factor = get(k, "rope.scaling.factor", get(k, "rope.scale_linear", 1));
    if (r->factor == 0) r->factor = 1; /* how converters write "none" */
    r->orig_ctx = get(k, "rope.scaling.original_context_length", m->cfg.ctx_max);
    if (type && strcmp(type, "none") == 0) return 0;
    if (!type || !*type || strcmp(type, "linear") == 0) {
        r->type = r->factor == 1 ? ROPE_NONE : ROPE_LINEAR;
        return 0;
    }
    if (strcmp(type, "longrope") == 0) return 0; /* its tensors say so */
    if (strcmp(type, "yarn") != 0)
        return err_set(err, -ENOTSUP, "rope type \"%.40s\" is not supported", type);
    r->type = ROPE_YARN;
    r->no_truncate = m->arch->own_yarn;
    r->beta_fast = get(k, "rope.scaling.yarn_beta_fast", 32);
    r->beta_slow = get(k, "rope.scaling.yarn_beta_slow", 1);
    double ext = get(k, "rope.scaling.yarn_ext_factor", 1);
    double attn = get(k, "rope.scaling.yarn_attn_factor", get(k, "rope.scaling.attn_factor", 1));
    double mul = get(k, "rope.scaling.yarn_log_multiplier", 0);
    if ((ext >= 0 && ext != 1) || mul != 0)
        return err_set(err, -ENOTSUP, "uses yarn with its own extension factors");
    /* The file gives a multiplier of the default, the contract wants the whole. */
    if (attn != 1) r->attn_factor = attn * (r->factor > 1 ? 0.1 * log(r->factor) + 1 : 1);
    return 0;
}

/* A tensor of one divisor per frequency. *ret NULL: the file has none. */
static int read_factors(struct model *m, const char *name, float **ret, struct err *err)
{
    struct tensor *t = tensors_find(gguf_tensors(m->gguf), name);
    const size_t n = m->cfg.n_rot / 2;
    if (!t) return 0;
    if (t->type != quant_type(QUANT_F32) || t->n_dims != 1 || t->cols != n || n == 0)
        return err_set(err, -EBADMSG, "tensor \"%s\" has the wrong shape or type", name);
    t->used = true;
    return model_own_factors(t->data, n, name, ret, err);
}

/* Llama 3's scaling comes baked into such divisors; longrope has two sets. */
static int read_freq_factors(struct model *m, struct keys *k, struct err *err)
{
    struct model_rope *rope = &m->cfg.rope;
    const char *type = gguf_str(m->gguf, key(k, "rope.scaling.type"));
    int r = read_factors(m, "rope_freqs.weight", &m->freq_factors, err);
    if (r == 0) r = read_factors(m, "rope_factors_long.weight", &m->long_factors, err);
    if (r == 0 && !m->freq_factors)
        r = read_factors(m, "rope_factors_short.weight", &m->freq_factors, err);
    else if (r == 0 && m->long_factors)
        r = err_set(err, -EBADMSG, "has factors for its frequencies of two kinds");
    if (r < 0) return r;
    rope->freq_factors = m->freq_factors;
    const bool is_long = type && strcmp(type, "longrope") == 0;
    if (!m->long_factors && !is_long) return 0;
    if (!m->long_factors || !m->freq_factors)
        return err_set(err, -EBADMSG, "longrope has not both sets of factors");
    rope->long_factors = m->long_factors;
    rope->type = ROPE_LONG;
    rope->factor = 1;
    rope->attn_factor = get(k, "rope.scaling.attn_factor", 1);
    return 0;
}

static int read_experts(struct model *m, struct keys *k, struct err *err)
{
    const struct model_arch_experts *a = &m->arch->experts;
    const bool there = gguf_find(m->gguf, key(k, "expert_count"));
    struct model_cfg *c = &m->cfg;
    struct model_experts *e = &c->experts;
    if (!a->width && !(a->optional && there)) return 0;
    const struct tensor *shared = a->shared ? find_tensor(m, "blk.0.ffn_up_shexp.weight") : NULL;
    int r = get_count(k, "expert_count", 0, &e->n, err);
    if (r == 0 && e->n == 0 && a->scales_input)
        r = err_set(err, -ENOTSUP, "has no experts (\"%s\"), which is not supported", k->buf);
    if (r < 0 || e->n == 0) return r;
    r = get_count(k, "expert_used_count", 0, &e->used, err);
    if (r == 0) r = get_count(k, "expert_feed_forward_length", c->F, &e->F, err);
    if (shared) e->shared_F = shared->rows < MODEL_F_MAX ? (unsigned)shared->rows : UINT32_MAX;
    e->renorm = a->renorm;
    e->biases = a->biases;
    e->scales_input = a->scales_input;
    if (a->scales_input) e->shared_F = e->F;
    if (a->dense_width) e->dense_F = c->F;
    if (r == 0 && a->dense_width) {
        r = get_count(k, "interleave_moe_layer_step", 0, &e->every, err);
        if (r == 0 && e->every == 0) r = err_set(err, -EBADMSG, "metadata \"%s\" is 0", k->buf);
    }
    (void)gguf_bool(m->gguf, key(k, "expert_weights_norm"), &e->renorm);
    return r;
}

static int refuse_gguf_features(struct model *m, struct keys *k, struct err *err)
{
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        if (refused[i].unless == MULTIPLIERS && m->arch->multipliers) continue;
        if (refused[i].unless == CAPS && m->arch->caps) continue;
        if (refused[i].unless == EXPERTS && m->cfg.experts.n) continue;
        const bool sigmoid = refused[i].unless == SIGMOID && m->arch->experts.scales_input;
        const double neutral = sigmoid ? 2 : refused[i].neutral;
        if (get(k, refused[i].key, neutral) != neutral)
            return err_set(err, -ENOTSUP, "%s (\"%s\"), which is not supported", refused[i].what,
                           k->buf);
    }
    /* Converters write the key of parallel parts also where there are none. */
    if (m->arch->layernorm && !find_tensor(m, "blk.0.ffn_norm.weight"))
        return err_set(err, -ENOTSUP,
                       "computes attention and feed-forward part beside each other (no "
                       "\"ffn_norm\")");
    bool causal = true;
    (void)gguf_bool(m->gguf, key(k, "attention.causal"), &causal);
    if (!causal) return err_set(err, -ENOTSUP, "attends in both directions");
    return 0;
}

/* Which layers have a window: every n-th has none, a number or a list says. */
static int read_layers(struct model *m, struct keys *k, struct err *err)
{
    const unsigned L = m->cfg.L;
    const unsigned chunk = m->arch->window.chunk;
    uint64_t window = chunk, every = 0;
    (void)gguf_u64(m->gguf, key(k, "attention.sliding_window"), &window);
    if (chunk && window == 0)
        return err_set(err, -ENOTSUP, "attends without chunks (\"%s\"), which is not supported",
                       k->buf);
    *(chunk ? &m->cfg.chunk : &m->cfg.window) = window < m->cfg.ctx_max ? (unsigned)window : 0;
    if (chunk) return model_set_layers(m, NULL, err);
    const struct gguf_kv *kv = gguf_find(m->gguf, key(k, "attention.sliding_window_pattern"));
    if (!kv || L > MODEL_L_MAX) return model_set_layers(m, NULL, err);
    if (kv->is_array ? kv->n != L : !gguf_u64(m->gguf, k->buf, &every))
        return err_set(err, -EBADMSG, "metadata \"%s\" is damaged", k->buf);
    uint8_t *bits = mem_zalloc(L + 1);
    int r = bits ? 0 : err_set(err, -ENOMEM, "out of memory");
    for (unsigned l = 0; r == 0 && l < L; l++) {
        int64_t local = every == 0 || (l + 1) % every != 0;
        if (kv->is_array && !gguf_arr_i64(kv, l, &local))
            r = err_set(err, -EBADMSG, "metadata \"%s\" is damaged", k->buf);
        bits[l] = local ? MODEL_LAYER_LOCAL : 0;
    }
    if (r == 0) r = model_set_layers(m, bits, err);
    mem_free(bits);
    return r;
}

static void read_scales(struct model *m, struct keys *k)
{
    const struct model_arch *a = m->arch;
    struct model_cfg *c = &m->cfg;
    const double dims = a->wide_layers == c->L ? (double)c->D / c->H : 0;
    c->rms_eps = (float)get(
        k, a->layernorm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon", -1);
    c->attn_scale = (float)get(k, "attention.scale", dims > 0 ? 1 / sqrt(dims) : 0);
    c->embed_scale = c->logit_scale = 1;
    if (a->multipliers) {
        c->logit_scale = (float)(1 / get(k, "logit_scale", 1));
        model_scale_residual(c, get(k, "embedding_scale", 1), get(k, "residual_scale", 1));
    }
    if (a->window.tempered) {
        c->temp_floor = (float)get(k, "attention.temperature_length", 8192);
        c->temp_scale = (float)get(k, "attention.temperature_scale", 0.1);
    }
    if (!a->caps) return;
    c->attn_cap = (float)get(k, "attn_logit_softcapping", a->attn_cap);
    c->logit_cap = (float)get(k, "final_logit_softcapping", a->logit_cap);
}

int model_from_gguf(struct model *m, struct err *err)
{
    struct model_cfg *c = &m->cfg;
    const char *arch = gguf_str(m->gguf, "general.architecture"),
               *name = gguf_str(m->gguf, "general.name");
    if (!arch) return err_set(err, -EBADMSG, "metadata \"general.architecture\" is missing");
    const struct model_arch *a = m->arch = model_arch_by_gguf(arch);
    if (!a) return err_set(err, -ENOTSUP, "architecture \"%.40s\" is not supported", arch);
    (void)snprintf(c->arch, sizeof(c->arch), "%s", a->name);
    m->permuted = a->interleaved;
    c->qk_norm = a->qk_norm;
    c->qk_norm_wide = a->qk_norm_wide;
    c->sinks = a->sinks;
    c->norms = a->norms;
    c->layernorm = a->layernorm;
    c->act = a->act;
    struct keys k = {.g = m->gguf, .arch = c->arch};
    int r = read_dims(m, &k, err);
    if (r == 0) r = read_experts(m, &k, err);
    if (r == 0) r = refuse_gguf_features(m, &k, err);
    if (r == 0) r = read_rope(m, &k, err);
    if (r == 0) r = read_freq_factors(m, &k, err);
    if (r < 0) return r;
    c->rope_local = c->rope;
    if (a->local_base > 0)
        c->rope_local = (struct model_rope){
            .type = ROPE_NONE, .base = get(&k, "rope.freq_base_swa", a->local_base), .factor = 1};
    r = read_layers(m, &k, err);
    if (r < 0) return r;
    c->qk_unit = a->qk_unit && c->experts.n != a->experts.no_unit;
    read_scales(m, &k);
    c->tied = !find_tensor(m, "output.weight");
    c->qkv_bias = find_tensor(m, "blk.0.attn_q.bias") != NULL;
    c->o_bias = find_tensor(m, "blk.0.attn_output.bias") != NULL;
    if (name) (void)snprintf(c->name, sizeof(c->name), "%s", name);
    m->tensors = gguf_tensors(m->gguf);
    return 0;
}
