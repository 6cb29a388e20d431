/* Opening is: pick the loader by the path, let it fill configuration and tensor table, check the
 * configuration against what the engine can do, bind every tensor to its weight kind with its
 * exact shape, refuse tensors that no kind asks for (they would mean arithmetic that is not
 * done), and take the fingerprint. Rows are converted on demand straight from the mapping. A
 * shape (shape.c) has a configuration alone. */
#include "fusor/model/model_int.h"

#include "base/assert.h"
#include "base/buf.h"
#include "base/mem.h"
#include "fusor/model/map.h"
#include "fusor/model/shape.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

enum dim {
    DIM_1,
    DIM_D,
    DIM_V,
    DIM_F,
    DIM_HK,
    DIM_GK,
    DIM_Q_NORM,
    DIM_K_NORM,
    DIM_N,        /* experts */
    DIM_EXPERT_F, /* of one */
    DIM_NF,
    DIM_ND,
    DIM_SHARED_F,
    DIM_H
};
enum when {
    ALWAYS_THERE,
    UNLESS_TIED,
    NORMS_BEFORE,
    NORMS_BEHIND,
    WITH_QKV_BIAS,
    WITH_O_BIAS,
    WITH_QK_NORM,
    IF_DENSE,
    IF_MIXED,
    WITH_SHARED,
    WITH_SHARED_ROUTER,
    WITH_SINKS,
    WITH_EXPERT_BIAS,
    WITH_LAYERNORM
};
#define N_GLOBAL MODEL_NORM_ATTN /* kinds before it are not per layer, */
/* and this one, which came later: the numbers of kinds are part of fingerprints. */
#define GLOBAL_TOO MODEL_NORM_OUT_BIAS

static const struct weight_kind {
    /* After "blk.N." and "model.layers.N." for layers; gguf NULL: of experts, hf: hf_name(). */
    const char *gguf, *hf;
    enum dim rows, cols;
    enum when when;
} kinds[MODEL_W_COUNT] = {
    [MODEL_EMBED] = {"token_embd.weight", "model.embed_tokens.weight", DIM_V, DIM_D, ALWAYS_THERE},
    [MODEL_NORM_OUT] = {"output_norm.weight", "model.norm.weight", DIM_1, DIM_D, ALWAYS_THERE},
    [MODEL_LM_HEAD] = {"output.weight", "lm_head.weight", DIM_V, DIM_D, UNLESS_TIED},
    [MODEL_NORM_ATTN] = {"attn_norm.weight", NULL, DIM_1, DIM_D, NORMS_BEFORE},
    [MODEL_NORM_FFN] = {"ffn_norm.weight", NULL, DIM_1, DIM_D, NORMS_BEFORE},
    [MODEL_Q] = {"attn_q.weight", "self_attn.q_proj.weight", DIM_HK, DIM_D, ALWAYS_THERE},
    [MODEL_K] = {"attn_k.weight", "self_attn.k_proj.weight", DIM_GK, DIM_D, ALWAYS_THERE},
    [MODEL_V] = {"attn_v.weight", "self_attn.v_proj.weight", DIM_GK, DIM_D, ALWAYS_THERE},
    [MODEL_O] = {"attn_output.weight", "self_attn.o_proj.weight", DIM_D, DIM_HK, ALWAYS_THERE},
    [MODEL_GATE] = {"ffn_gate.weight", "mlp.gate_proj.weight", DIM_F, DIM_D, IF_DENSE},
    [MODEL_UP] = {"ffn_up.weight", "mlp.up_proj.weight", DIM_F, DIM_D, IF_DENSE},
    [MODEL_DOWN] = {"ffn_down.weight", "mlp.down_proj.weight", DIM_D, DIM_F, IF_DENSE},
    [MODEL_Q_BIAS] = {"attn_q.bias", "self_attn.q_proj.bias", DIM_1, DIM_HK, WITH_QKV_BIAS},
    [MODEL_K_BIAS] = {"attn_k.bias", "self_attn.k_proj.bias", DIM_1, DIM_GK, WITH_QKV_BIAS},
    [MODEL_V_BIAS] = {"attn_v.bias", "self_attn.v_proj.bias", DIM_1, DIM_GK, WITH_QKV_BIAS},
    [MODEL_O_BIAS] = {"attn_output.bias", "self_attn.o_proj.bias", DIM_1, DIM_D, WITH_O_BIAS},
    [MODEL_Q_NORM] = {"attn_q_norm.weight", "self_attn.q_norm.weight", DIM_1, DIM_Q_NORM,
                      WITH_QK_NORM},
    [MODEL_K_NORM] = {"attn_k_norm.weight", "self_attn.k_norm.weight", DIM_1, DIM_K_NORM,
                      WITH_QK_NORM},
    [MODEL_POST_ATTN] = {"post_attention_norm.weight", NULL, DIM_1, DIM_D, NORMS_BEHIND},
    [MODEL_POST_FFN] = {"post_ffw_norm.weight", NULL, DIM_1, DIM_D, NORMS_BEHIND},
    [MODEL_ROUTER] = {"ffn_gate_inp.weight", NULL, DIM_N, DIM_D, IF_MIXED},
    [MODEL_EXPERT_GATE] = {NULL, NULL, DIM_NF, DIM_D, IF_MIXED},
    [MODEL_EXPERT_UP] = {NULL, NULL, DIM_NF, DIM_D, IF_MIXED},
    [MODEL_EXPERT_DOWN] = {NULL, NULL, DIM_ND, DIM_EXPERT_F, IF_MIXED},
    [MODEL_SHARED_GATE] = {"ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight",
                           DIM_SHARED_F, DIM_D, WITH_SHARED},
    [MODEL_SHARED_UP] = {"ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight", DIM_SHARED_F,
                         DIM_D, WITH_SHARED},
    [MODEL_SHARED_DOWN] = {"ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight", DIM_D,
                           DIM_SHARED_F, WITH_SHARED},
    [MODEL_SHARED_ROUTER] = {"ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight", DIM_1,
                             DIM_D, WITH_SHARED_ROUTER},
    [MODEL_SINKS] = {"attn_sinks.weight", "self_attn.sinks", DIM_1, DIM_H, WITH_SINKS},
    [MODEL_ROUTER_BIAS] = {"ffn_gate_inp.bias", "mlp.router.bias", DIM_1, DIM_N, WITH_EXPERT_BIAS},
    [MODEL_EXPERT_GATE_BIAS] = {NULL, NULL, DIM_NF, DIM_1, WITH_EXPERT_BIAS},
    [MODEL_EXPERT_UP_BIAS] = {NULL, NULL, DIM_NF, DIM_1, WITH_EXPERT_BIAS},
    [MODEL_EXPERT_DOWN_BIAS] = {NULL, NULL, DIM_ND, DIM_1, WITH_EXPERT_BIAS},
    [MODEL_NORM_OUT_BIAS] = {"output_norm.bias", "model.norm.bias", DIM_1, DIM_D, WITH_LAYERNORM},
    [MODEL_NORM_ATTN_BIAS] = {"attn_norm.bias", "input_layernorm.bias", DIM_1, DIM_D,
                              WITH_LAYERNORM},
    [MODEL_NORM_FFN_BIAS] = {"ffn_norm.bias", "post_attention_layernorm.bias", DIM_1, DIM_D,
                             WITH_LAYERNORM},
};

static size_t dim_size(const struct model_cfg *c, enum dim d)
{
    const size_t size[] = {[DIM_1] = 1,
                           [DIM_D] = c->D,
                           [DIM_V] = c->V,
                           [DIM_F] = c->experts.n ? c->experts.dense_F : c->F,
                           [DIM_HK] = (size_t)c->H * c->K,
                           [DIM_GK] = (size_t)c->G * c->K,
                           [DIM_Q_NORM] = (size_t)(c->qk_norm_wide ? c->H : 1) * c->K,
                           [DIM_K_NORM] = (size_t)(c->qk_norm_wide ? c->G : 1) * c->K,
                           [DIM_N] = c->experts.n,
                           [DIM_EXPERT_F] = c->experts.F,
                           [DIM_NF] = (size_t)c->experts.n * c->experts.F,
                           [DIM_ND] = (size_t)c->experts.n * c->D,
                           [DIM_SHARED_F] = c->experts.shared_F,
                           [DIM_H] = c->H};
    return size[d];
}

static bool model_wants(const struct model_cfg *c, enum when w, unsigned layer)
{
    const bool mixed = c->experts.n > 0 && !model_layer_is(c, layer, MODEL_LAYER_DENSE);
    const bool shared = mixed && c->experts.shared_F > 0;
    const bool wanted[] = {[ALWAYS_THERE] = true,
                           [UNLESS_TIED] = !c->tied,
                           [NORMS_BEFORE] = c->norms != MODEL_NORMS_BEHIND,
                           [NORMS_BEHIND] = c->norms != MODEL_NORMS_BEFORE,
                           [WITH_QKV_BIAS] = c->qkv_bias,
                           [WITH_O_BIAS] = c->o_bias,
                           [WITH_QK_NORM] = c->qk_norm,
                           [IF_DENSE] = !mixed,
                           [IF_MIXED] = mixed,
                           [WITH_SHARED] = shared,
                           [WITH_SHARED_ROUTER] = shared && !c->experts.scales_input,
                           [WITH_SINKS] = c->sinks,
                           [WITH_EXPERT_BIAS] = mixed && c->experts.biases,
                           [WITH_LAYERNORM] = c->layernorm};
    return wanted[w];
}

static bool is_global(enum model_w w)
{
    return w < N_GLOBAL || w == GLOBAL_TOO;
}

static size_t slot(enum model_w w, unsigned layer)
{
    if (w < N_GLOBAL) return w;
    return N_GLOBAL + (size_t)layer * (MODEL_W_COUNT - N_GLOBAL) + (w - N_GLOBAL);
}

static int check_rope(const struct model_rope *r, struct err *err)
{
    if (!(r->base > 0) || !isfinite(r->base)) return err_set(err, -EBADMSG, "rope base is damaged");
    if (r->type != ROPE_NONE && (!(r->factor > 0) || !isfinite(r->factor)))
        return err_set(err, -EBADMSG, "rope scaling factor is damaged");
    bool has_ctx = r->orig_ctx >= 1 && r->orig_ctx <= MODEL_CTX_MAX;
    if (r->type >= ROPE_LLAMA3 && !has_ctx)
        return err_set(err, -EBADMSG, "rope scaling has no valid original context length");
    if (r->type == ROPE_LLAMA3 &&
        !(r->low_freq_factor > 0 && r->high_freq_factor >= r->low_freq_factor))
        return err_set(err, -EBADMSG, "llama3 rope scaling has damaged frequency factors");
    if (r->type == ROPE_YARN && !(r->beta_slow > 0 && r->beta_fast >= r->beta_slow &&
                                  r->attn_factor >= 0 && r->attn_factor < 1e3))
        return err_set(err, -EBADMSG, "yarn rope scaling has damaged parameters");
    if (r->type == ROPE_YARN && !(r->base > 1))
        return err_set(err, -EBADMSG, "rope base is damaged");
    if (r->type == ROPE_LONG && !(r->attn_factor > 0 && r->attn_factor < 1e3))
        return err_set(err, -EBADMSG, "longrope has a damaged attention factor");
    return 0;
}

static bool is_scale(float x)
{
    return x > 0 && isfinite(x);
}

static int check_numbers(const struct model_cfg *c, struct err *err)
{
    if (!(c->rms_eps >= 0) || c->rms_eps > 1)
        return err_set(err, -EBADMSG, "norm epsilon is damaged");
    if (!is_scale(c->attn_scale)) return err_set(err, -EBADMSG, "attention scale is damaged");
    if (!is_scale(c->embed_scale) || !is_scale(c->logit_scale))
        return err_set(err, -EBADMSG, "a scale of embeddings or logits is damaged");
    if (!(c->temp_floor >= 0 && isfinite(c->temp_floor) && c->temp_scale >= 0 &&
          isfinite(c->temp_scale)))
        return err_set(err, -EBADMSG, "the attention temperature is damaged");
    if (!(c->attn_cap >= 0 && isfinite(c->attn_cap) && c->logit_cap >= 0 && isfinite(c->logit_cap)))
        return err_set(err, -EBADMSG, "a bound of scores or logits is damaged");
    return 0;
}

static int check_config(struct model *m, struct err *err)
{
    const struct model_cfg *c = &m->cfg;
    const struct {
        const char *name;
        unsigned v, max;
    } dims[] = {
        {"layers", c->L, MODEL_L_MAX},          {"hidden size", c->D, MODEL_D_MAX},
        {"attention heads", c->H, MODEL_H_MAX}, {"key-value heads", c->G, MODEL_H_MAX},
        {"head size", c->K, MODEL_K_MAX},       {"feed-forward size", c->F, MODEL_F_MAX},
        {"vocabulary", c->V, MODEL_V_MAX},      {"context length", c->ctx_max, MODEL_CTX_MAX},
    };
    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++)
        if (dims[i].v < 1 || dims[i].v > dims[i].max)
            return err_set(err, -EBADMSG, "%s of %u is outside 1…%u", dims[i].name, dims[i].v,
                           dims[i].max);
    if (c->H % c->G != 0)
        return err_set(err, -EBADMSG, "%u attention heads cannot share %u key-value heads", c->H,
                       c->G);
    if (c->K % 2 != 0) return err_set(err, -EBADMSG, "head size of %u is odd", c->K);
    if (c->n_rot == 0 || c->n_rot > c->K || c->n_rot % 2 != 0)
        return err_set(err, -EBADMSG, "%u rotated dimensions of %u", c->n_rot, c->K);
    if (c->n_rot != c->K && !m->arch->partial)
        return err_set(err, -ENOTSUP, "rotates %u of %u dimensions of a head", c->n_rot, c->K);
    if (c->qk_unit && (c->rope.type == ROPE_YARN || c->rope.type == ROPE_LONG))
        return err_set(err, -ENOTSUP, "scales what its rotation gives, of which it takes the norm");
    int r = check_numbers(c, err);
    if (r == 0) r = check_rope(&c->rope, err);
    return r < 0 ? r : check_rope(&c->rope_local, err);
}

/* "blk.3." + rest and the like. */
static void tensor_name(const struct model *m, enum model_w w, unsigned layer, const char *rest,
                        char *ret, size_t size)
{
    static const char ffn[] = "mlp.";
    const size_t n = sizeof(ffn) - 1;
    if (is_global(w))
        (void)snprintf(ret, size, "%s", rest);
    else if (m->gguf)
        (void)snprintf(ret, size, "blk.%u.%s", layer, rest);
    else if (strncmp(rest, ffn, n) == 0)
        (void)snprintf(ret, size, "model.layers.%u.%s.%s", layer, model_hf_ffn(m), rest + n);
    else
        (void)snprintf(ret, size, "model.layers.%u.%s", layer, rest);
}

/* What families call differently in folders: norms and routers. */
static const char *hf_name(const struct model_arch *a, enum model_w w)
{
    static const char *const before[] = {"input_layernorm.weight",
                                         "post_attention_layernorm.weight", NULL, NULL};
    if (w == MODEL_ROUTER) return a->experts.router ? a->experts.router : "mlp.gate.weight";
    const size_t i = w >= MODEL_POST_ATTN ? w - MODEL_POST_ATTN + 2 : w - MODEL_NORM_ATTN;
    return (a->hf_norms ? a->hf_norms : before)[i];
}

/* Where a weight's rows stand: in a tensor of its own, or from row `at` of one of `rows` rows. */
struct place {
    const char *rest;
    size_t at, rows;
};

static struct place place_of(const struct model *m, enum model_w w)
{
    const struct weight_kind *k = &kinds[w];
    const struct model_cfg *c = &m->cfg;
    const size_t HK = dim_size(c, DIM_HK), GK = dim_size(c, DIM_GK), F = c->F;
    if (m->arch->packed_qkv && w >= MODEL_Q && w <= MODEL_V)
        return (struct place){m->gguf ? "attn_qkv.weight" : "self_attn.qkv_proj.weight",
                              w == MODEL_Q   ? 0
                              : w == MODEL_K ? HK
                                             : HK + GK,
                              HK + 2 * GK};
    if (m->arch->packed_ffn && (w == MODEL_GATE || w == MODEL_UP))
        return (struct place){m->gguf ? "ffn_up.weight" : "mlp.gate_up_proj.weight",
                              w == MODEL_UP ? F : 0, 2 * F};
    if (m->gguf && w == MODEL_NORM_FFN && m->arch->gguf_norm_ffn)
        return (struct place){m->arch->gguf_norm_ffn, 0, 1};
    return (struct place){m->gguf ? k->gguf
                          : k->hf ? k->hf
                                  : hf_name(m->arch, w),
                          0, dim_size(c, k->rows)};
}

/* "[rows, cols]", with planes before them where there are any. */
static const char *shape_text(struct dims d, char buf[80])
{
    const int at = d.planes == 1 ? 0 : snprintf(buf, 40, "[%zu, ", d.planes);
    (void)snprintf(buf + at, 80 - (size_t)at, "%s%zu, %zu]", at ? "" : "[", d.rows, d.cols);
    return buf;
}

int model_find(const struct model *m, const char *name, struct dims d, struct tensor **ret,
               struct err *err)
{
    struct tensor *t = tensors_find(m->tensors, name);
    char is[80], wanted[80];
    if (!t) return err_set(err, -EBADMSG, "tensor \"%s\" is missing", name);
    const struct dims has = {t->planes, t->rows, t->cols};
    /* What is 1 may have lost its dimension, so only sizes are compared. */
    if (t->n_dims < 1 || has.planes != d.planes || has.rows != d.rows || has.cols != d.cols)
        return err_set(err, -EBADMSG, "tensor \"%s\" has shape %s, expected %s", name,
                       shape_text(has, is), shape_text(d, wanted));
    *ret = t;
    return 0;
}

int model_take(struct model *m, const char *name, struct dims d, struct tensor **ret,
               struct err *err)
{
    struct tensor *t = NULL;
    int r = model_find(m, name, d, &t, err);
    if (r < 0) return r;
    if (t->n_dims > 3)
        return err_set(err, -EBADMSG, "tensor \"%s\" has %u dimensions", name, t->n_dims);
    if (!t->type)
        return err_set(err, -ENOTSUP, "tensor \"%s\" has type %s, which is not supported", name,
                       t->type_name);
    if (d.cols % t->type->block != 0 ||
        t->size_bytes != d.planes * d.rows * (d.cols / t->type->block) * t->type->bytes)
        return err_set(err, -EBADMSG, "tensor \"%s\" has the wrong size", name);
    t->used = true;
    *ret = t;
    return 0;
}

/* Vectors are as short as routers are small: neither says what the file's precision is. */
void model_bind(struct model *m, enum model_w w, unsigned layer, struct weight x)
{
    if (kinds[w].rows != DIM_1 && kinds[w].cols != DIM_1 && w != MODEL_ROUTER) {
        if (x.type->id == QUANT_F32) m->cfg.file_f32 = true;
        if ((size_t)x.type->bytes * 8 > (size_t)x.type->block * 16)
            m->cfg.file_bf16_or_less = false;
    }
    m->w[slot(w, layer)] = x;
}

int model_take_packed(struct model *m, const struct packed_layer *layer, struct packed *ret,
                      struct err *err)
{
    int r = packed_take(&m->packed, m->tensors, layer, ret, err);
    if (r < 0) return r;
    m->cfg.n_packed++;
    m->cfg.n_packed_apart += ret->type->form.bits == 0;
    return 0;
}

void model_bind_packed(struct model *m, enum model_w w, unsigned layer, const struct packed *p,
                       size_t n)
{
    model_bind(m, w, layer,
               (struct weight){.data = p->codes,
                               .type = p->type,
                               .size_bytes = n * p->codes_bytes,
                               .packed = p,
                               .n_packed = n});
}

static int bind_packed(struct model *m, enum model_w w, unsigned layer,
                       const struct packed_layer *of, struct err *err)
{
    struct packed *p = arena_alloc(&m->arena, sizeof(*p));
    int r = p ? model_take_packed(m, of, p, err) : err_set(err, -ENOMEM, "out of memory");
    if (r == 0) model_bind_packed(m, w, layer, p, 1);
    return r;
}

static int bind_one(struct model *m, enum model_w w, unsigned layer, struct err *err)
{
    const struct weight_kind *k = &kinds[w];
    const struct place place = place_of(m, w);
    char name[96];
    const struct dims d = {1, place.rows, dim_size(&m->cfg, k->cols)};
    struct tensor *t = NULL;
    tensor_name(m, w, layer, place.rest, name, sizeof(name));
    if (k->rows != DIM_1 && w != MODEL_EMBED && model_is_packed(m, name))
        return bind_packed(m, w, layer, &(struct packed_layer){name, d.rows, d.cols, place.at},
                           err);
    int r = model_take(m, name, d, &t, err);
    if (r < 0) return r;
    if (k->rows == DIM_1 && t->type->block != 1)
        return err_set(err, -ENOTSUP, "vector \"%s\" is quantised (%s)", name, t->type_name);
    const size_t row_bytes = t->size_bytes / place.rows;
    model_bind(m, w, layer,
               (struct weight){.data = t->data + place.at * row_bytes,
                               .type = t->type,
                               .size_bytes = dim_size(&m->cfg, k->rows) * row_bytes});
    return 0;
}

/* What AutoGPTQ gave layers that have no bias. */
static bool zero_bias(const struct model *m, const struct tensor *t)
{
    static const char bias[] = ".bias";
    const size_t len = strlen(t->name), n = sizeof(bias) - 1;
    char layer[96];
    if (m->packed.method != PACKED_GPTQ || !t->type || t->type->block != 1 || len < n ||
        len - n + sizeof(".weight") > sizeof(layer) || strcmp(t->name + len - n, bias) != 0)
        return false;
    (void)snprintf(layer, sizeof(layer), "%.*s.weight", (int)(len - n), t->name);
    bool zero = model_is_packed(m, layer);
    for (size_t i = 0; zero && i < t->size_bytes / t->type->bytes; i++) {
        float x;
        quant_to_f32(t->type, t->data + i * t->type->bytes, 1, &x);
        zero = x == 0;
    }
    return zero;
}

/* Tensors that carry nothing the engine would have to compute. */
static bool harmless(const struct model *m, const struct tensor *t)
{
    static const char inv_freq[] = "rotary_emb.inv_freq"; /* old checkpoints saved the buffer */
    size_t len = strlen(t->name), n = sizeof(inv_freq) - 1;
    if (len >= n && strcmp(t->name + len - n, inv_freq) == 0) return true;
    if (m->gguf) return false;
    return (m->cfg.tied && strcmp(t->name, "lm_head.weight") == 0) || zero_bias(m, t);
}

static int bind_layer(struct model *m, unsigned l, struct err *err)
{
    int r = 0;
    for (int w = l == 0 ? 0 : N_GLOBAL; r == 0 && w < MODEL_W_COUNT; w++)
        if (kinds[w].gguf && model_wants(&m->cfg, kinds[w].when, l) && (l == 0 || !is_global(w)))
            r = bind_one(m, (enum model_w)w, l, err);
    return r == 0 && model_wants(&m->cfg, IF_MIXED, l) ? model_bind_experts(m, l, err) : r;
}

static int bind_all(struct model *m, struct err *err)
{
    const size_t n = slot(MODEL_NORM_ATTN, m->cfg.L);
    m->w = mem_zalloc(n * sizeof(*m->w));
    m->parts = mem_zalloc((size_t)3 * m->cfg.L * m->cfg.experts.n * sizeof(*m->parts) + 1);
    if (!m->w || !m->parts) return err_set(err, -ENOMEM, "out of memory");
    m->cfg.file_bf16_or_less = true;
    for (unsigned l = 0; l < m->cfg.L; l++) {
        int r = bind_layer(m, l, err);
        if (r < 0) return r;
    }
    if (m->cfg.tied) m->w[MODEL_LM_HEAD] = m->w[MODEL_EMBED];
    for (size_t i = 0; i < m->tensors->n; i++) {
        const struct tensor *t = &m->tensors->t[i];
        if (!t->used && !harmless(m, t))
            return err_set(err, -ENOTSUP, "tensor \"%.80s\" is not known to architecture \"%s\"",
                           t->name, m->cfg.arch);
    }
    return 0;
}

enum { SAMPLE = 64 << 10 }; /* chosen: 300 tensors of a big file stay under 40 MB of reading */

static void hash_bytes(XXH3_state_t *st, const void *p, size_t n, size_t sample)
{
    const uint8_t *b = p;
    if (n <= 2 * sample) {
        (void)XXH3_128bits_update(st, b, n);
        return;
    }
    (void)XXH3_128bits_update(st, b, sample);
    (void)XXH3_128bits_update(st, b + n - sample, sample);
}

/* Of the experts a share each: the same bytes wherever they stand. */
static void hash_weight(XXH3_state_t *st, const struct model *m, size_t at)
{
    const struct weight *x = &m->w[at];
    const uint8_t *part;
    for (size_t i = 0, bytes; i < x->n_packed; i++)
        for (unsigned p = 0; (bytes = packed_part(&x->packed[i], p, &part)) > 0; p++)
            hash_bytes(st, part, bytes, SAMPLE / x->n_packed);
    if (x->n_packed) return;
    const bool experts =
        at >= N_GLOBAL &&
        kinds[N_GLOBAL + (at - N_GLOBAL) % (MODEL_W_COUNT - N_GLOBAL)].gguf == NULL;
    const size_t n = experts ? m->cfg.experts.n : 1, bytes = x->size_bytes / n;
    for (size_t i = 0; i < n; i++)
        hash_bytes(st, x->part ? x->part[i] : x->data + i * bytes, bytes, SAMPLE / n);
    const size_t scales = x->scales ? bytes / 16 : 0; /* a byte each of 32 codes */
    for (size_t i = 0; scales && i < n; i++)
        hash_bytes(st, x->scales + i * scales, scales, SAMPLE / n);
}

/* What a model differs by from those that came first goes in where it does, so that theirs stay. */
static int print_more(const struct model_cfg *c, struct buf *b)
{
    const struct {
        const char *name;
        double v, neutral;
    } more[] = {
        {"qk_norm_wide", c->qk_norm_wide, 0},
        {"norms", c->norms, MODEL_NORMS_BEFORE},
        {"layernorm", c->layernorm, 0},
        {"act", c->act, KN_SILU},
        {"window", c->window, 0},
        {"chunk", c->chunk, 0},
        {"temp_floor", (double)c->temp_floor, 0},
        {"temp_scale", (double)c->temp_scale, 0},
        {"qk_unit", c->qk_unit, 0},
        {"scales_input", c->experts.scales_input, 0},
        {"dense_F", c->experts.dense_F, 0},
        {"n_rot", c->n_rot, c->K},
        {"attn_cap", (double)c->attn_cap, 0},
        {"logit_cap", (double)c->logit_cap, 0},
        {"embed_scale", (double)c->embed_scale, 1},
        {"logit_scale", (double)c->logit_scale, 1},
        {"local_base", c->rope_local.base, c->rope.base},
        {"local_type", c->rope_local.type, c->rope.type},
        {"local_factor", c->rope_local.factor, c->rope.factor},
    };
    int e = 0;
    for (size_t i = 0; e == 0 && i < sizeof(more) / sizeof(more[0]); i++)
        if (more[i].v != more[i].neutral) e = buf_addf(b, " %s %a", more[i].name, more[i].v);
    if (c->layers && e == 0) e = buf_add(b, c->layers, c->L);
    return e;
}

static int print_weight(const struct weight *x, unsigned layer, int w, struct buf *b)
{
    int e = buf_addf(b, " %u.%d.%s.%zu", layer, w, x->type->name, x->size_bytes);
    for (size_t i = 0; e == 0 && i < x->n_packed; i++) {
        const struct packed *p = &x->packed[i];
        e = buf_addf(b, ".%d.%u.%zu.%zu.%d.%s", p->method, p->bits, p->groups, p->row0, p->less_one,
                     p->scale->name);
    }
    return e;
}

/* Everything that changes the numbers goes in; the model's name and its context length do not. */
static int fingerprint(struct model *m, struct err *err)
{
    struct model_cfg *c = &m->cfg;
    const struct model_rope *r = &c->rope;
    struct buf b = BUF_INIT;
    XXH3_state_t st;
    (void)XXH3_128bits_reset(&st);
    int e =
        buf_addf(&b, "kvblend-model-1 %s %d %u %u %u %u %u %u %u %a %d%d%d%d %a %a %a %a", c->arch,
                 m->permuted, c->L, c->D, c->H, c->G, c->K, c->F, c->V, (double)c->rms_eps,
                 c->qkv_bias, c->o_bias, c->qk_norm, c->tied, (double)c->attn_scale, 1.0, 1.0,
                 1.0 /* scales that other models have, which are refused */);
    if (e == 0)
        e = buf_addf(&b, " %d %a %a %a %a %a %a %a %a %d", r->type, r->base, r->factor,
                     r->low_freq_factor, r->high_freq_factor, r->orig_ctx, r->beta_fast,
                     r->beta_slow, r->attn_factor, r->no_truncate);
    if (e == 0 && c->experts.n)
        e = buf_addf(&b, " experts %u %u %u %u %d", c->experts.n, c->experts.used, c->experts.F,
                     c->experts.shared_F, c->experts.renorm);
    if (e == 0) e = print_more(c, &b);
    for (unsigned l = 0; l < c->L && e == 0; l++)
        for (int w = l == 0 ? 0 : N_GLOBAL; w < MODEL_W_COUNT && e == 0; w++)
            if (m->w[slot((enum model_w)w, l)].data)
                e = print_weight(&m->w[slot((enum model_w)w, l)], l, w, &b);
    if (e == 0) (void)XXH3_128bits_update(&st, b.data, b.len);
    buf_fini(&b);
    if (e < 0) return err_set(err, -ENOMEM, "out of memory");
    const size_t n_freqs = c->n_rot / 2 * sizeof(float);
    if (r->freq_factors) hash_bytes(&st, r->freq_factors, n_freqs, SAMPLE);
    if (r->long_factors) hash_bytes(&st, r->long_factors, n_freqs, SAMPLE);
    for (size_t i = 0; i < slot(MODEL_NORM_ATTN, c->L); i++)
        if (m->w[i].data) hash_weight(&st, m, i);
    XXH128_hash_t h = XXH3_128bits_digest(&st);
    c->fingerprint[0] = h.high64;
    c->fingerprint[1] = h.low64;
    return 0;
}

static void name_from_path(struct model *m)
{
    size_t len = strlen(m->path);
    while (len > 1 && m->path[len - 1] == '/')
        len--;
    const char *slash = memrchr(m->path, '/', len), *from = slash ? slash + 1 : m->path;
    (void)snprintf(m->cfg.name, sizeof(m->cfg.name), "%.*s", (int)(m->path + len - from), from);
}

/* Slots without data: which weights there are follows from the configuration alone. */
static int from_shape(struct model *m, struct err *err)
{
    int r = shape_parse(m->path + sizeof(SHAPE_PREFIX) - 1, &m->cfg, err);
    if (r < 0) return r;
    m->random = true;
    m->w = mem_zalloc(slot(MODEL_NORM_ATTN, m->cfg.L) * sizeof(*m->w));
    return m->w ? fingerprint(m, err) : err_set(err, -ENOMEM, "out of memory");
}

static int open_files(struct model *m, struct err *err)
{
    struct stat st;
    if (stat(m->path, &st) != 0) {
        int code = -errno;
        return err_set(err, code, "%s: cannot be opened: %s", m->where, strerror(-code));
    }
    return S_ISDIR(st.st_mode) ? model_from_hf(m, err) : gguf_open(m->path, &m->gguf, err);
}

/* sqrt(D) in as many bits as a folder's embeddings have; their reference rounds it so. */
static float width_scale(const struct model *m)
{
    const uint32_t type = m->gguf ? QUANT_F32 : m->w[MODEL_EMBED].type->id;
    const int bits = type == QUANT_BF16 ? 8 : type == QUANT_F16 ? 11 : 24;
    int e;
    const double x = frexp(sqrt((double)m->cfg.D), &e);
    return (float)ldexp(rint(ldexp(x, bits)), e - bits);
}

/* What was read becomes weights. */
static int check_and_bind(struct model *m, struct err *err)
{
    int r = tensors_sort(m->tensors, err);
    if (r < 0) return r;
    if (!m->cfg.name[0]) name_from_path(m);
    if (m->cfg.K > 0 && m->cfg.attn_scale == 0) m->cfg.attn_scale = 1 / sqrtf((float)m->cfg.K);
    r = model_settle_experts(&m->cfg, err);
    if (r == 0) r = check_config(m, err);
    if (r == 0) r = bind_all(m, err);
    if (r == 0 && m->arch->scales_embed) m->cfg.embed_scale = width_scale(m);
    return r < 0 ? r : fingerprint(m, err);
}

static int load_model(struct model *m, struct err *err)
{
    struct err inner = {0};
    if (strncmp(m->path, SHAPE_PREFIX, sizeof(SHAPE_PREFIX) - 1) == 0) return from_shape(m, err);
    int r = open_files(m, err);
    if (r < 0) return r;
    if (m->gguf) r = model_from_gguf(m, &inner);
    if (r == 0) r = check_and_bind(m, &inner);
    return r < 0 ? err_set(err, r, "%s: %s", m->where, inner.msg) : 0;
}

int model_open(const char *path, struct model **ret, struct err *err)
{
    struct model *m = mem_zalloc(sizeof(*m));
    if (m) m->path = mem_strdup(path);
    int r = -ENOMEM;
    if (!m || !m->path) {
        (void)err_set(err, r, "%s: out of memory", map_path_tail(path));
    } else {
        m->where = map_path_tail(m->path);
        arena_init(&m->arena);
        r = load_model(m, err);
    }
    if (r < 0)
        model_close(m);
    else
        *ret = m;
    return r;
}

void model_close(struct model *m)
{
    if (!m) return;
    st_close(m->st);
    gguf_close(m->gguf);
    mem_free(m->layers);
    mem_free(m->freq_factors);
    mem_free(m->long_factors);
    mem_free(m->w);
    mem_free(m->parts);
    arena_fini(&m->arena);
    mem_free(m->path);
    mem_free(m);
}

const struct model_cfg *model_config(const struct model *m)
{
    return &m->cfg;
}

static const struct weight *weight_of(const struct model *m, enum model_w w, unsigned layer)
{
    if ((unsigned)w >= MODEL_W_COUNT || (w >= N_GLOBAL && layer >= m->cfg.L)) return NULL;
    const struct weight *x = &m->w[slot(w, layer)];
    return x->data ? x : NULL;
}

bool model_has(const struct model *m, enum model_w w, unsigned layer)
{
    if (!m->random) return weight_of(m, w, layer) != NULL;
    if ((unsigned)w >= MODEL_W_COUNT || (w >= N_GLOBAL && layer >= m->cfg.L)) return false;
    return w == MODEL_LM_HEAD || model_wants(&m->cfg, kinds[w].when, layer);
}

bool model_random(const struct model *m, enum model_w w, unsigned layer, struct rng_field *ret)
{
    /* What several matrices are filled from comes by rows, each with its own. */
    if (!m->random || !model_has(m, w, layer) || model_w_rows(m, w) == 1 || !kinds[w].gguf)
        return false;
    *ret = shape_field(m, w, layer);
    return true;
}

size_t model_w_rows(const struct model *m, enum model_w w)
{
    ASSERT((unsigned)w < MODEL_W_COUNT);
    return dim_size(&m->cfg, kinds[w].rows);
}

size_t model_w_cols(const struct model *m, enum model_w w)
{
    ASSERT((unsigned)w < MODEL_W_COUNT);
    return dim_size(&m->cfg, kinds[w].cols);
}

struct codes_form model_form(const struct model *m, enum model_w w, unsigned layer)
{
    const struct weight *x = weight_of(m, w, layer);
    return x ? x->type->form : (struct codes_form){0};
}

/* Where row (or bias element) r of rotate-half order lies in a file with interleaved pairs: element
 * j * n_rot/2 + i of a head is stored at 2 i + j. */
static size_t interleaved(size_t r, const struct model_cfg *c)
{
    const size_t head = r / c->K, e = r % c->K, half = c->n_rot / 2;
    return e < c->n_rot ? head * c->K + 2 * (e % half) + e / half : r;
}

static bool is_norm(enum model_w w)
{
    return w == MODEL_NORM_OUT || w == MODEL_NORM_ATTN || w == MODEL_NORM_FFN ||
           (w >= MODEL_Q_NORM && w <= MODEL_POST_FFN);
}

/* Where row `row` is, and how many from there on follow each other. */
static const uint8_t *rows_at(const struct model *m, const struct weight *x, enum model_w w,
                              size_t row, size_t row_bytes, size_t *ret_n)
{
    const size_t rows = model_w_rows(m, w), per = x->part ? rows / m->cfg.experts.n : rows;
    const uint8_t *from = x->part ? x->part[row / per] : x->data;
    *ret_n = per - row % per;
    return from + row % per * row_bytes;
}

/* Rows of a weight with a step. */
static void expert_rows(const struct weight *x, size_t cols, size_t row0, size_t n, float *out)
{
    uint8_t room[MODEL_PIECE * 4];
    for (size_t i = 0; i < n; i++)
        for (size_t c = 0, now; c < cols; c += now) {
            now = cols - c < MODEL_PIECE ? cols - c : MODEL_PIECE;
            quant_to_f32(x->type, model_expert_values(x, row0 + i, cols, c, now, room), now,
                         out + i * cols + c);
        }
}

/* Row `row` and those behind it that are read together with it: of one layer, n at most. */
static const struct packed *packed_rows(const struct model *m, const struct weight *x,
                                        enum model_w w, size_t n, size_t *row, size_t *ret_n)
{
    const size_t per = model_w_rows(m, w) / x->n_packed;
    const struct packed *p = &x->packed[*row / per];
    *row %= per;
    if (n > per - *row) n = per - *row;
    /* Where rows share words, whole ones. */
    const size_t most = PACKED_ROWS - (p->row0 + *row) % PACKED_ROWS;
    *ret_n = n < most ? n : most;
    if (m->permuted && (w == MODEL_Q || w == MODEL_K)) {
        *row = interleaved(*row, &m->cfg);
        *ret_n = 1;
    }
    return p;
}

int model_rows(const struct model *m, enum model_w w, unsigned layer, size_t row0, size_t n,
               float *out)
{
    if (!model_has(m, w, layer)) return -ENOENT;
    const struct weight *x = weight_of(m, w, layer);
    size_t rows = model_w_rows(m, w), cols = model_w_cols(m, w);
    if (row0 > rows || n > rows - row0) return -EINVAL;
    if (m->random) {
        shape_rows(m, w, layer, row0, n, out);
        return 0;
    }
    size_t row_bytes = cols / x->type->block * x->type->bytes;
    if (x->n_packed) {
        for (size_t i = 0, now; i < n; i += now) {
            size_t row = row0 + i;
            const struct packed *p = packed_rows(m, x, w, n - i, &row, &now);
            packed_values(p, row, now, out + i * cols);
        }
    } else if (x->step) {
        expert_rows(x, cols, row0, n, out);
    } else if (m->permuted && (w == MODEL_Q || w == MODEL_K)) {
        for (size_t i = 0; i < n; i++)
            quant_to_f32(x->type, x->data + interleaved(row0 + i, &m->cfg) * row_bytes, cols,
                         out + i * cols);
    } else if (m->permuted && n > 0 && (w == MODEL_Q_BIAS || w == MODEL_K_BIAS)) {
        for (size_t i = 0; i < cols; i++)
            quant_to_f32(x->type, x->data + interleaved(i, &m->cfg) * x->type->bytes, 1, out + i);
    } else {
        for (size_t i = 0, now; i < n; i += now) {
            const uint8_t *from = rows_at(m, x, w, row0 + i, row_bytes, &now);
            if (now > n - i) now = n - i;
            quant_to_f32(x->type, from, now * cols, out + i * cols);
        }
    }
    if (m->norm_less_one && is_norm(w))
        for (size_t i = 0; i < n * cols; i++)
            out[i] += 1;
    return 0;
}

size_t model_codes_group(const struct model *m, enum model_w w, unsigned layer)
{
    enum { LEAST = MODEL_CODES_GROUP_MAX / 8, CODES_MAX = 1 << 20 /* bytes: half of an L2 */ };
    static_assert((int)MODEL_CODES_GROUP_MAX == (int)PACKED_ROWS, "what is read together");
    const struct weight *x = weight_of(m, w, layer);
    size_t n = MODEL_CODES_GROUP_MAX;
    if (!x || !x->n_packed) return LEAST;
    while (n > LEAST && n * model_w_cols(m, w) > CODES_MAX)
        n /= 2;
    return n;
}

size_t model_codes_room(size_t cols)
{
    return cols * 2 + cols / 32 * (2 + 2) + cols / 16 * (1 + 1); /* even */
}

/* A row of a weight with a step, into ret's arrays. */
static void expert_codes(const struct weight *x, size_t cols, size_t row,
                         const struct codes_row *ret)
{
    uint8_t room[MODEL_PIECE * 4];
    const size_t bytes = x->type->form.bits == 16 ? 2 : 1;
    for (size_t c = 0, now; c < cols; c += now) {
        now = cols - c < MODEL_PIECE ? cols - c : MODEL_PIECE;
        const struct codes_row piece = {.q = ret->q + c * bytes, .d = ret->d + c / CODES_STEP};
        quant_to_codes(x->type, model_expert_values(x, row, cols, c, now, room), now, &piece);
    }
}

void model_codes_place(size_t cols, size_t n, void *room, struct codes_row *ret)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t *d = (uint16_t *)((char *)room + i * model_codes_room(cols)), *m = d + cols / 32;
        int8_t *q = (int8_t *)(m + cols / 32), *s = q + 2 * cols;
        ret[i] = (struct codes_row){q, d, m, s, (uint8_t *)s + cols / 16};
    }
}

int model_codes(const struct model *m, enum model_w w, unsigned layer, size_t row0, size_t n,
                const struct codes_row *rows)
{
    const struct weight *x = weight_of(m, w, layer);
    if (!x) return -ENOENT;
    const size_t n_rows = model_w_rows(m, w), cols = model_w_cols(m, w);
    const size_t row_bytes = cols / x->type->block * x->type->bytes;
    if (row0 > n_rows || n > n_rows - row0 || x->type->form.bits == 0) return -EINVAL;
    for (size_t i = 0, now; i < n; i += now) {
        size_t row = row0 + i, follow;
        now = 1;
        if (x->n_packed) {
            const struct packed *p = packed_rows(m, x, w, n - i, &row, &now);
            packed_codes(p, row, now, rows + i);
            continue;
        }
        if (m->permuted && (w == MODEL_Q || w == MODEL_K)) row = interleaved(row, &m->cfg);
        if (x->step)
            expert_codes(x, cols, row, &rows[i]);
        else
            quant_to_codes(x->type, rows_at(m, x, w, row, row_bytes, &follow), cols, &rows[i]);
    }
    return 0;
}

void model_drop_pages(const struct model *m)
{
    if (m->gguf) gguf_drop_pages(m->gguf);
    if (m->st) st_drop_pages(m->st);
}

void model_read_ahead(const struct model *m, unsigned layer)
{
    for (int w = N_GLOBAL; !m->random && w < GLOBAL_TOO; w++) {
        const struct weight *x = weight_of(m, (enum model_w)w, layer);
        const size_t parts = !x ? 0 : x->n_packed ? x->n_packed : x->part ? m->cfg.experts.n : 1;
        for (size_t i = 0; i < parts; i++)
            map_read_ahead(x->n_packed ? x->packed[i].codes
                           : x->part   ? x->part[i]
                                       : x->data,
                           x->size_bytes / parts);
    }
}

const struct gguf *model_gguf(const struct model *m)
{
    return m->gguf;
}

const char *model_path(const struct model *m)
{
    return m->path;
}
