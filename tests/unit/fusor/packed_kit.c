#include "tests/unit/fusor/packed_kit.h"

#include "kernels/kn.h"

enum { K_MAX = 256, N_MAX = 512 };

/* ---- a safetensors file ---- */

struct out {
    struct buf header, data;
    const struct pk_change *change;
};

static void put_tensor(struct out *o, const char *name, const char *type, size_t rows, size_t cols,
                       const void *data, size_t bytes)
{
    const struct pk_change *c = o->change;
    const size_t at = o->data.len;
    char shape[64];
    if (c && c->leave && strstr(name, c->leave)) return;
    if (c && c->retype && strstr(name, c->retype)) type = strcmp(type, "F32") ? "F32" : "I32";
    if (c && c->reshape && strstr(name, c->reshape)) {
        put(&o->data, data, bytes);
        rows ? (rows *= 2) : (cols *= 2);
    }
    put(&o->data, data, bytes);
    if (rows)
        (void)snprintf(shape, sizeof shape, "%zu,%zu", rows, cols);
    else
        (void)snprintf(shape, sizeof shape, "%zu", cols);
    ASSERT_OK(buf_addf(&o->header,
                       "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                       o->header.len ? "," : "{", name, type, shape, at, o->data.len));
}

static void finish(struct out *o, const char *path)
{
    ASSERT_OK(buf_addf(&o->header, "}"));
    FILE *f = fopen(path, "wb");
    const uint64_t len = o->header.len;
    ASSERT_TRUE(f != NULL);
    ASSERT_EQ(fwrite(&len, 1, sizeof len, f), sizeof len);
    ASSERT_EQ(fwrite(o->header.data, 1, o->header.len, f), o->header.len);
    ASSERT_EQ(fwrite(o->data.data, 1, o->data.len, f), o->data.len);
    ASSERT_EQ(fclose(f), 0);
    buf_fini(&o->header);
    buf_fini(&o->data);
}

/* ---- codes ---- */

struct layer {
    size_t n, k, groups;
    unsigned q[N_MAX][K_MAX], zero[N_MAX][K_MAX];
    float scale[N_MAX][K_MAX]; /* that the type of scales can have */
    uint32_t g_idx[K_MAX];
};

static enum kn_dtype dtype_of(const char *name)
{
    return name[0] == 'B' ? KN_BF16 : name[1] == '1' ? KN_F16 : KN_F32;
}

/* Zeros that each format can have: of GPTQ's first one there is no 0. */
static void draw_layer(const struct pk_kind *k, size_t n, size_t cols, uint64_t *seed,
                       struct layer *x)
{
    const unsigned range = 1u << k->bits, less = k->method == PACKED_GPTQ && !(k->flags & PK_V2);
    const enum kn_dtype type = dtype_of(k->scale);
    const size_t group = k->group < 0 ? cols : (size_t)k->group;
    ASSERT_TRUE(n <= N_MAX && cols <= K_MAX);
    x->n = n, x->k = cols, x->groups = cols / group;
    for (size_t i = 0; i < cols; i++)
        x->g_idx[i] = (uint32_t)(i / group);
    for (size_t i = cols - 1; i > 0 && k->flags & PK_REORDERED; i--) {
        const size_t with = test_rand(seed) % (i + 1);
        const uint32_t was = x->g_idx[i];
        x->g_idx[i] = x->g_idx[with];
        x->g_idx[with] = was;
    }
    for (size_t r = 0; r < n; r++) {
        for (size_t i = 0; i < cols; i++)
            x->q[r][i] = (unsigned)(test_rand(seed) % range);
        for (size_t g = 0; g < x->groups; g++) {
            const float s =
                (float)(0.2 + (double)(test_rand(seed) >> 11) * 0x1p-53) * 8 / (float)range / 16;
            char stored[4];
            ASSERT_OK(kn_convert(&s, KN_F32, 1, 1, type, stored));
            ASSERT_OK(kn_convert(stored, type, 1, 1, KN_F32, &x->scale[r][g]));
            x->zero[r][g] =
                k->flags & PK_SYMMETRIC ? range / 2 : (unsigned)(test_rand(seed) % range) + less;
        }
    }
}

/* `bits` bits of a stream whose words stand `step` apart. */
static void set_bits(uint32_t *words, size_t step, size_t nth, unsigned bits, unsigned value)
{
    for (size_t b = 0; b < bits; b++) {
        const size_t at = nth * bits + b;
        words[at / 32 * step] |= (uint32_t)(value >> b & 1) << at % 32;
    }
}

static void put_words(struct out *o, const char *layer, const char *part, size_t rows, size_t cols,
                      const uint32_t *words)
{
    char name[128];
    (void)snprintf(name, sizeof name, "%s.%s", layer, part);
    put_tensor(o, name, "I32", rows, cols, words, (rows ? rows : 1) * cols * 4);
}

static void put_scales(struct out *o, const struct pk_kind *k, const char *layer,
                       const struct layer *x)
{
    const bool by_rows = k->method == PACKED_TENSORS;
    const enum kn_dtype type = dtype_of(k->scale);
    const size_t bytes = type == KN_F32 ? 4 : 2;
    char name[128], *data = mem_zalloc(x->n * x->groups * bytes);
    ASSERT_TRUE(data != NULL);
    for (size_t r = 0; r < x->n; r++)
        for (size_t g = 0; g < x->groups; g++)
            ASSERT_OK(kn_convert(&x->scale[r][g], KN_F32, 1, 1, type,
                                 data + (by_rows ? r * x->groups + g : g * x->n + r) * bytes));
    (void)snprintf(name, sizeof name, "%s.%s", layer, by_rows ? "weight_scale" : "scales");
    put_tensor(o, name, k->scale, by_rows ? x->n : x->groups, by_rows ? x->groups : x->n, data,
               x->n * x->groups * bytes);
    mem_free(data);
}

/* As AutoAWQ packs: nibble i of a word is column order[i] of eight. */
static void put_awq(struct out *o, const char *layer, const struct layer *x)
{
    static const unsigned order[8] = {0, 2, 4, 6, 1, 3, 5, 7};
    uint32_t *q = mem_zalloc(x->k * x->n / 2), *z = mem_zalloc(x->groups * x->n / 2);
    ASSERT_TRUE(q && z);
    for (size_t c = 0; c < x->n / 8; c++)
        for (unsigned i = 0; i < 8; i++) {
            for (size_t r = 0; r < x->k; r++)
                q[r * (x->n / 8) + c] |= (uint32_t)x->q[c * 8 + order[i]][r] << 4 * i;
            for (size_t g = 0; g < x->groups; g++)
                z[g * (x->n / 8) + c] |= (uint32_t)x->zero[c * 8 + order[i]][g] << 4 * i;
        }
    put_words(o, layer, "qweight", x->k, x->n / 8, q);
    put_words(o, layer, "qzeros", x->groups, x->n / 8, z);
    mem_free(q), mem_free(z);
}

static void put_gptq(struct out *o, const struct pk_kind *k, const char *layer,
                     const struct layer *x)
{
    const size_t rows = x->k * k->bits / 32, cols = (x->n * k->bits + 31) / 32;
    uint32_t *q = mem_zalloc(rows * x->n * 4), *z = mem_zalloc(x->groups * cols * 4);
    ASSERT_TRUE(q && z);
    for (size_t r = 0; r < x->n; r++) {
        for (size_t i = 0; i < x->k; i++)
            set_bits(q + r, x->n, i, k->bits, x->q[r][i]);
        for (size_t g = 0; g < x->groups; g++)
            set_bits(z + g * cols, 1, r, k->bits, x->zero[r][g] - !(k->flags & PK_V2));
    }
    put_words(o, layer, "qweight", rows, x->n, q);
    put_words(o, layer, "qzeros", x->groups, cols, z);
    mem_free(q), mem_free(z);
}

static void put_compressed(struct out *o, const struct pk_kind *k, const char *layer,
                           const struct layer *x)
{
    const size_t cols = x->k * k->bits / 32, rows = (x->n * k->bits + 31) / 32;
    uint32_t *q = mem_zalloc(x->n * cols * 4), *z = mem_zalloc(rows * x->groups * 4);
    const int64_t shape[2] = {(int64_t)x->n, (int64_t)x->k};
    char name[128];
    ASSERT_TRUE(q && z);
    for (size_t r = 0; r < x->n; r++) {
        for (size_t i = 0; i < x->k; i++)
            set_bits(q + r * cols, 1, i, k->bits, x->q[r][i]);
        for (size_t g = 0; g < x->groups; g++)
            set_bits(z + g, x->groups, r, k->bits, x->zero[r][g]);
    }
    put_words(o, layer, "weight_packed", x->n, cols, q);
    if (!(k->flags & PK_SYMMETRIC)) put_words(o, layer, "weight_zero_point", rows, x->groups, z);
    (void)snprintf(name, sizeof name, "%s.weight_shape", layer);
    put_tensor(o, name, "I64", 0, 2, shape, sizeof shape);
    mem_free(q), mem_free(z);
}

/* ---- weights ---- */

static void put_f32(struct out *o, const char *name, size_t rows, size_t cols, float middle,
                    float size, uint64_t *seed)
{
    const size_t n = (rows ? rows : 1) * cols;
    float *x = mem_alloc(n * sizeof *x);
    ASSERT_TRUE(x != NULL);
    for (size_t i = 0; i < n; i++)
        x[i] = middle + size * (float)((double)(test_rand(seed) >> 11) * 0x1p-52 - 1);
    put_tensor(o, name, "F32", rows, cols, x, n * sizeof *x);
    mem_free(x);
}

static void put_bias(struct out *o, const struct pk_kind *k, const char *layer, size_t n)
{
    char name[128];
    const bool one = k->flags & PK_NONZERO_BIAS && strstr(layer, "1.mlp.up");
    uint16_t *x = mem_zalloc(n * sizeof *x);
    ASSERT_TRUE(x != NULL);
    x[n / 2] = one ? 1 : 0x8000; /* -0 is 0, too */
    (void)snprintf(name, sizeof name, "%s.bias", layer);
    put_tensor(o, name, "F16", 0, n, x, n * sizeof *x);
    mem_free(x);
}

/* A linear layer, quantised or as what it means. */
static void put_layer(struct out *o, const struct pk_kind *k, bool plain, const char *layer,
                      size_t n, size_t cols, uint64_t *seed)
{
    char name[128];
    struct layer *x = mem_zalloc(sizeof *x);
    ASSERT_TRUE(x != NULL);
    draw_layer(k, n, cols, seed, x);
    if (o->change && o->change->g_idx) x->g_idx[cols - 1] = o->change->g_idx;
    if (plain || (k->flags & PK_O_LEFT_OUT && strstr(layer, "o_proj"))) {
        float *w = mem_alloc(n * cols * sizeof *w);
        ASSERT_TRUE(w != NULL);
        for (size_t i = 0; i < n * cols; i++) {
            const size_t g = x->g_idx[i % cols], r = i / cols;
            w[i] = (float)((int)x->q[r][i % cols] - (int)x->zero[r][g]) * x->scale[r][g];
        }
        (void)snprintf(name, sizeof name, "%s.weight", layer);
        put_tensor(o, name, "F32", n, cols, w, n * cols * sizeof *w);
        mem_free(w);
    } else {
        if (k->method == PACKED_AWQ)
            put_awq(o, layer, x);
        else if (k->method == PACKED_GPTQ)
            put_gptq(o, k, layer, x);
        else
            put_compressed(o, k, layer, x);
        put_scales(o, k, layer, x);
        if (k->flags & (PK_REORDERED | PK_IN_ORDER))
            put_words(o, layer, k->method == PACKED_TENSORS ? "weight_g_idx" : "g_idx", 0, cols,
                      x->g_idx);
        if (k->flags & (PK_ZERO_BIASES | PK_NONZERO_BIAS)) put_bias(o, k, layer, n);
    }
    mem_free(x);
}

static void put_model_layer(struct out *o, const struct pk_kind *k, bool plain, unsigned l,
                            uint64_t *seed)
{
    struct part {
        const char *name;
        size_t n, k;
    };
    static const struct part apart[] = {{"self_attn.q_proj", 128, PK_D},
                                        {"self_attn.k_proj", 64, PK_D},
                                        {"self_attn.v_proj", 64, PK_D},
                                        {"self_attn.o_proj", PK_D, 128}},
                             joint[] = {{"self_attn.qkv_proj", 256, PK_D},
                                        {"self_attn.o_proj", PK_D, 128}},
                             ffn[] = {{"gate_proj", PK_F, PK_D},
                                      {"up_proj", PK_F, PK_D},
                                      {"down_proj", PK_D, PK_F}},
                             joint_ffn[] = {{"gate_up_proj", 2 * PK_F, PK_D},
                                            {"down_proj", PK_D, PK_F}};
    const bool j = k->arch == PK_PHI3 || k->arch == PK_GLM4, moe = k->arch == PK_QWEN3_MOE;
    const struct part *attn = k->arch == PK_PHI3 ? joint : apart, *mlp = j ? joint_ffn : ffn;
    static const char *const norms[] = {"input_layernorm", "post_attention_layernorm",
                                        "post_self_attn_layernorm", "post_mlp_layernorm"};
    char name[128];
    for (size_t i = 0; i < (k->arch == PK_GLM4 ? 4 : 2); i++) {
        (void)snprintf(name, sizeof name, "model.layers.%u.%s.weight", l, norms[i]);
        put_f32(o, name, 0, PK_D, 1, 0.2f, seed);
    }
    for (size_t i = 0; i < (k->arch == PK_PHI3 ? 2 : 4); i++) {
        (void)snprintf(name, sizeof name, "model.layers.%u.%s", l, attn[i].name);
        put_layer(o, k, plain, name, attn[i].n, attn[i].k, seed);
    }
    for (size_t e = 0; e < (moe ? PK_EXPERTS : 1); e++)
        for (size_t i = 0; i < (j ? 2 : 3); i++) {
            char expert[24] = "mlp";
            if (moe) (void)snprintf(expert, sizeof expert, "mlp.experts.%zu", e);
            (void)snprintf(name, sizeof name, "model.layers.%u.%s.%s", l, expert, mlp[i].name);
            put_layer(o, k, plain, name, mlp[i].n, mlp[i].k, seed);
        }
    if (!moe) return;
    (void)snprintf(name, sizeof name, "model.layers.%u.mlp.gate.weight", l);
    put_f32(o, name, PK_EXPERTS, PK_D, 0, 0.1f, seed);
    for (size_t i = 0; i < 2; i++) {
        (void)snprintf(name, sizeof name, "model.layers.%u.self_attn.%c_norm.weight", l,
                       i ? 'k' : 'q');
        put_f32(o, name, 0, 64, 1, 0.2f, seed);
    }
}

/* ---- config.json ---- */

static json_t *quantization(const struct pk_kind *k)
{
    if (k->method == PACKED_AWQ)
        return json_pack("{ss,si,si,sb,ss,sn}", "quant_method", "awq", "bits", k->bits,
                         "group_size", k->group, "zero_point", 1, "version", "gemm",
                         "modules_to_not_convert");
    if (k->method == PACKED_GPTQ)
        return json_pack("{ss,si,si,sb,sb,ss}", "quant_method", "gptq", "bits", k->bits,
                         "group_size", k->group, "desc_act", (k->flags & PK_REORDERED) != 0, "sym",
                         0, "checkpoint_format", k->flags & PK_V2 ? "gptq_v2" : "gptq");
    json_t *w =
        json_pack("{si,ss,sb,ss}", "num_bits", k->bits, "type", "int", "symmetric",
                  (k->flags & PK_SYMMETRIC) != 0, "strategy", k->group < 0 ? "channel" : "group");
    if (k->group > 0) ASSERT_EQ(json_object_set_new(w, "group_size", json_integer(k->group)), 0);
    return json_pack("{ss,ss,s[s],s{s{s[s],sn,so}}}", "quant_method", "compressed-tensors",
                     "format", "pack-quantized", "ignore", "lm_head", "config_groups", "group_0",
                     "targets", "Linear", "input_activations", "weights", w);
}

static void write_config(const struct pk_kind *k, const struct pk_change *change, bool plain,
                         const char *path)
{
    static const char *const names[] = {"LlamaForCausalLM", "Phi3ForCausalLM",
                                        "Qwen3MoeForCausalLM", "Glm4ForCausalLM"};
    json_error_t je;
    json_t *j = json_pack(
        "{s[s],si,si,si,si,si,si,si,si,sf,sb,sb}", "architectures", names[k->arch], "hidden_size",
        PK_D, "intermediate_size", PK_F, "num_hidden_layers", PK_L, "num_attention_heads", 2,
        "num_key_value_heads", 1, "head_dim", 64, "vocab_size", PK_V, "max_position_embeddings",
        512, "rms_norm_eps", 1e-5, "tie_word_embeddings", 0, "attention_bias", 0);
    ASSERT_TRUE(j != NULL);
    if (k->arch == PK_QWEN3_MOE) {
        json_t *moe = json_pack("{si,si,si,sb}", "num_experts", PK_EXPERTS, "num_experts_per_tok",
                                2, "moe_intermediate_size", PK_F, "norm_topk_prob", 1);
        ASSERT_TRUE(moe && json_object_update(j, moe) == 0);
        json_decref(moe);
    }
    if (!plain) {
        json_t *q = quantization(k);
        json_t *over = change && change->config ? json_loads(change->config, 0, &je) : NULL;
        ASSERT_TRUE(q && (!change || !change->config || over));
        if (over) ASSERT_EQ(json_object_update(q, over), 0);
        ASSERT_EQ(json_object_set_new(j, "quantization_config", q), 0);
        json_decref(over);
    }
    ASSERT_EQ(json_dump_file(j, path, 0), 0);
    json_decref(j);
}

void pk_write(const struct pk_kind *k, const struct pk_change *change, bool plain,
              struct pk_folder *f)
{
    struct out o = {.header = BUF_INIT, .data = BUF_INIT, .change = change};
    uint64_t seed = 17;
    *f = (struct pk_folder){.dir = "/tmp/test-packed-XXXXXX"};
    ASSERT_TRUE(mkdtemp(f->dir) != NULL);
    (void)snprintf(f->config, sizeof f->config, "%s/config.json", f->dir);
    (void)snprintf(f->weights, sizeof f->weights, "%s/model.safetensors", f->dir);
    write_config(k, change, plain, f->config);
    put_f32(&o, "model.embed_tokens.weight", PK_V, PK_D, 0, 1, &seed);
    put_f32(&o, "model.norm.weight", 0, PK_D, 1, 0.2f, &seed);
    if (k->flags & PK_HEAD)
        put_layer(&o, k, plain, "lm_head", PK_V, PK_D, &seed);
    else
        put_f32(&o, "lm_head.weight", PK_V, PK_D, 0, 0.2f, &seed);
    for (unsigned l = 0; l < PK_L; l++)
        put_model_layer(&o, k, plain, l, &seed);
    finish(&o, f->weights);
}

void pk_remove(struct pk_folder *f)
{
    (void)unlink(f->config);
    (void)unlink(f->weights);
    (void)rmdir(f->dir);
}
