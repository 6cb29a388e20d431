/* The weights of an encoder, by the names that its files give them. Families differ in names, in
 * what is packed into one tensor, and in which biases and norms there are; the names of each are a
 * row of a table, and what it leaves out the model does not have. */
#include "fusor/encode/encode_int.h"

#include "base/mem.h"
#include "fusor/model/safetensors.h"
#include "fusor/model/tensors.h"

#include <stdio.h>
#include <string.h>

enum { NAME_MAX_BYTES = 128, PARTS = 2 /* that a matrix of ours has at most */ };

/* Rows [part * n, (part + 1) * n) of a tensor of `of` times n rows. */
struct part {
    const char *name;
    unsigned part, of;
};
struct names {
    const char *words, *types, *pos, *norm_embed, *layers, *norm_last;
    struct part q, k, v, o, gate, up, down;
    const char *norm_attn, *norm_ffn;
};
static const struct names families[] = {
    {/* BERT, RoBERTa */
     .words = "embeddings.word_embeddings",
     .types = "embeddings.token_type_embeddings",
     .pos = "embeddings.position_embeddings",
     .norm_embed = "embeddings.LayerNorm",
     .layers = "encoder.layer",
     .q = {"attention.self.query", 0, 1},
     .k = {"attention.self.key", 0, 1},
     .v = {"attention.self.value", 0, 1},
     .o = {"attention.output.dense", 0, 1},
     .up = {"intermediate.dense", 0, 1},
     .down = {"output.dense", 0, 1},
     .norm_attn = "attention.output.LayerNorm",
     .norm_ffn = "output.LayerNorm"},
    {/* ModernBERT */
     .words = "embeddings.tok_embeddings",
     .norm_embed = "embeddings.norm",
     .layers = "layers",
     .norm_last = "final_norm",
     .q = {"attn.Wqkv", 0, 3},
     .k = {"attn.Wqkv", 1, 3},
     .v = {"attn.Wqkv", 2, 3},
     .o = {"attn.Wo", 0, 1},
     .gate = {"mlp.Wi", 0, 2},
     .up = {"mlp.Wi", 1, 2},
     .down = {"mlp.Wo", 0, 1},
     .norm_attn = "attn_norm",
     .norm_ffn = "mlp_norm"},
    {/* nomic */
     .words = "embeddings.word_embeddings",
     .types = "embeddings.token_type_embeddings",
     .norm_embed = "emb_ln",
     .layers = "encoder.layers",
     .q = {"attn.Wqkv", 0, 3},
     .k = {"attn.Wqkv", 1, 3},
     .v = {"attn.Wqkv", 2, 3},
     .o = {"attn.out_proj", 0, 1},
     .gate = {"mlp.fc12", 0, 1},
     .up = {"mlp.fc11", 0, 1},
     .down = {"mlp.fc2", 0, 1},
     .norm_attn = "norm1",
     .norm_ffn = "norm2"},
    {/* gte */
     .words = "embeddings.word_embeddings",
     .types = "embeddings.token_type_embeddings",
     .norm_embed = "embeddings.LayerNorm",
     .layers = "encoder.layer",
     .q = {"attention.qkv_proj", 0, 3},
     .k = {"attention.qkv_proj", 1, 3},
     .v = {"attention.qkv_proj", 2, 3},
     .o = {"attention.o_proj", 0, 1},
     .gate = {"mlp.up_gate_proj", 1, 2},
     .up = {"mlp.up_gate_proj", 0, 2},
     .down = {"mlp.down_proj", 0, 1},
     .norm_attn = "attn_ln",
     .norm_ffn = "mlp_ln"},
};
enum { FAMILIES = sizeof families / sizeof *families };
/* What a model's class with a head puts before the names of its encoder. */
static const char *const prefixes[] = {"", "bert.", "roberta.", "model.", "nomic_bert.", "new."};
enum { PREFIXES = sizeof prefixes / sizeof *prefixes };

struct loader {
    struct enc_weights *w;
    const struct enc_opts *o;
    const struct names *names;
    const char *prefix;
    float *rows; /* [D or F] one row */
    size_t n_done, n_all;
    struct err *err;
};

static struct tensor *find_tensor(const struct loader *l, const char *name)
{
    char full[NAME_MAX_BYTES];
    (void)snprintf(full, sizeof full, "%s%s", l->prefix, name);
    return tensors_find(l->w->tensors, full);
}

/* rows 1: a vector. */
static int bind(const struct loader *l, const char *name, size_t rows, size_t cols,
                struct tensor **ret)
{
    struct tensor *t = find_tensor(l, name);
    if (!t) return err_set(l->err, -EBADMSG, "tensor \"%s\" is missing", name);
    if (t->n_dims < 1 || t->n_dims > 2 || t->rows != rows || t->cols != cols)
        return err_set(l->err, -EBADMSG, "tensor \"%s\" has shape [%zu, %zu], expected [%zu, %zu]",
                       name, t->rows, t->cols, rows, cols);
    if (!t->type || t->type->block != 1)
        return err_set(l->err, -ENOTSUP, "tensor \"%s\" has type %s, which is not supported", name,
                       t->type_name);
    t->used = true;
    *ret = t;
    return 0;
}

void enc_weights_row(const struct tensor *t, size_t i, float *out)
{
    quant_to_f32(t->type, t->data + i * t->cols * t->type->bytes, t->cols, out);
}

static float *floats(const struct loader *l, size_t n)
{
    return kn_mem_alloc(l->w->dev, KN_MEM_DEVICE, n * sizeof(float));
}

static int read_vector(const struct loader *l, const char *name, size_t n, float **to)
{
    struct tensor *t = NULL;
    int r = bind(l, name, 1, n, &t);
    if (r < 0) return r;
    *to = floats(l, n);
    if (*to) enc_weights_row(t, 0, *to);
    return *to ? 0 : -ENOMEM;
}

/* Older files call them gamma and beta. */
static int load_norm(const struct loader *l, const char *name, struct enc_norm *to)
{
    const struct enc_cfg *c = l->w->cfg;
    char full[NAME_MAX_BYTES];
    (void)snprintf(full, sizeof full, "%s.gamma", name);
    const bool old = find_tensor(l, full) != NULL;
    (void)snprintf(full, sizeof full, "%s.%s", name, old ? "gamma" : "weight");
    int r = read_vector(l, full, c->D, &to->weight);
    (void)snprintf(full, sizeof full, "%s.%s", name, old ? "beta" : "bias");
    return r == 0 && c->bias_norm ? read_vector(l, full, c->D, &to->bias) : r;
}

/* Rows of one part, and its bias where there is one, to row `at` of the matrix. */
static int load_part(struct loader *l, const struct part *p, const struct tensor *t,
                     const struct tensor *bias, size_t at, struct enc_linear *to)
{
    const size_t n = t->rows / p->of, from = p->part * n;
    int r = 0;
    for (size_t i = 0; r == 0 && i < n; i++) {
        enc_weights_row(t, from + i, l->rows);
        r = kn_mat_fill(to->w, at + i, 1, l->rows);
    }
    if (bias) quant_to_f32(bias->type, bias->data + from * bias->type->bytes, n, to->bias + at);
    l->n_done++;
    if (l->o->progress) l->o->progress(l->o->progress_ctx, (double)l->n_done / (double)l->n_all);
    return r;
}

/* [n, k] rows of each part, one below the other. Before the file is known to have them all, no
 * memory is asked for. */
static int load_linear(struct loader *l, const char *stem, const struct part *parts, size_t n_parts,
                       bool has_bias, struct enc_linear *to)
{
    struct tensor *t[PARTS], *bias[PARTS] = {NULL};
    const size_t n = to->n;
    char full[NAME_MAX_BYTES];
    int r = 0;
    for (size_t i = 0; r == 0 && i < n_parts; i++) {
        (void)snprintf(full, sizeof full, "%s.%s.weight", stem, parts[i].name);
        r = bind(l, full, parts[i].of * n, to->k, &t[i]);
        (void)snprintf(full, sizeof full, "%s.%s.bias", stem, parts[i].name);
        if (r == 0 && has_bias) r = bind(l, full, 1, parts[i].of * n, &bias[i]);
    }
    to->n *= n_parts;
    if (r == 0 && has_bias && !(to->bias = floats(l, to->n))) r = -ENOMEM;
    if (r == 0) r = kn_mat_create(l->w->dev, to->n, to->k, &to->w);
    for (size_t i = 0; r == 0 && i < n_parts; i++)
        r = load_part(l, &parts[i], t[i], bias[i], i * n, to);
    return r == 0 ? kn_mat_done(to->w) : r;
}

static int load_layer(struct loader *l, unsigned i)
{
    const struct enc_cfg *c = l->w->cfg;
    const struct names *s = l->names;
    const struct part kv[PARTS] = {s->k, s->v}, up[PARTS] = {c->gated ? s->gate : s->up, s->up};
    const size_t D = c->D, F = c->F;
    struct enc_layer *w = &l->w->layer[i];
    char stem[NAME_MAX_BYTES / 2], name[NAME_MAX_BYTES];
    *w = (struct enc_layer){.q = {.n = D, .k = D},
                            .kv = {.n = D, .k = D},
                            .o = {.n = D, .k = D},
                            .up = {.n = F, .k = D},
                            .down = {.n = D, .k = F}};
    (void)snprintf(stem, sizeof stem, "%s.%u", s->layers, i);
    int r = load_linear(l, stem, &s->q, 1, c->bias_attn, &w->q);
    if (r == 0) r = load_linear(l, stem, kv, 2, c->bias_attn, &w->kv);
    if (r == 0) r = load_linear(l, stem, &s->o, 1, c->bias_attn, &w->o);
    if (r == 0) r = load_linear(l, stem, up, 1 + c->gated, c->bias_up, &w->up);
    if (r == 0) r = load_linear(l, stem, &s->down, 1, c->bias_down, &w->down);
    (void)snprintf(name, sizeof name, "%s.%s", stem, s->norm_attn);
    /* In front of the first layer the embeddings' own norm stands. */
    if (r == 0 && !(c->norms_before && i == 0)) r = load_norm(l, name, &w->attn);
    (void)snprintf(name, sizeof name, "%s.%s", stem, s->norm_ffn);
    return r == 0 ? load_norm(l, name, &w->ffn) : r;
}

/* The second type less the first, which every row has. */
static int load_second(struct loader *l, const struct tensor *types)
{
    const size_t D = l->w->cfg->D;
    float *to = l->w->second = floats(l, D);
    if (!to) return -ENOMEM;
    enc_weights_row(types, 0, l->rows);
    enc_weights_row(types, 1, to);
    for (size_t d = 0; d < D; d++)
        to[d] -= l->rows[d];
    return 0;
}

/* Every token has the first type, but those of a pair's second text. */
static int load_positions(struct loader *l)
{
    struct enc_weights *w = l->w;
    const struct enc_cfg *c = w->cfg;
    const size_t D = c->D, n_pos = c->rope_base ? 1 : c->n_pos - c->pos0;
    struct tensor *pos = NULL, *types = NULL;
    char name[NAME_MAX_BYTES];
    int r = 0;
    (void)snprintf(name, sizeof name, "%s.weight", l->names->types);
    if (c->n_types) r = bind(l, name, c->n_types, D, &types);
    (void)snprintf(name, sizeof name, "%s.weight", l->names->pos);
    if (r == 0 && !c->rope_base) r = bind(l, name, c->n_pos, D, &pos);
    if (r < 0 || (!pos && !types)) return r;
    w->pos_type = floats(l, n_pos * D);
    if (!w->pos_type) return -ENOMEM;
    if (c->head && c->n_types > 1 && load_second(l, types) < 0) return -ENOMEM;
    if (types) enc_weights_row(types, 0, l->rows);
    for (size_t i = 0; i < n_pos; i++) {
        float *to = w->pos_type + i * D;
        if (pos) enc_weights_row(pos, c->pos0 + i, to);
        for (size_t d = 0; types && d < D; d++)
            to[d] += l->rows[d];
    }
    return 0;
}

/* Of a cross-encoder. The names of most heads stand beside those of the encoder, not below. */
static int load_head(struct loader *l)
{
    static const struct {
        const char *stem, *norm, *score;
        bool below;
    } heads[] = {[ENC_HEAD_POOLER] = {"pooler", NULL, "classifier", true},
                 [ENC_HEAD_CLASS] = {"classifier", NULL, "classifier.out_proj", false},
                 [ENC_HEAD_NORMED] = {"head", "head.norm", "classifier", false}};
    const struct part dense = {"dense", 0, 1};
    const char *prefix = l->prefix;
    struct enc_weights *w = l->w;
    const size_t D = w->cfg->D;
    const enum enc_head head = w->cfg->head;
    char name[NAME_MAX_BYTES];
    w->head = (struct enc_linear){.n = D, .k = D};
    if (!heads[head].below) l->prefix = "";
    int r = load_linear(l, heads[head].stem, &dense, 1, w->cfg->bias_head, &w->head);
    l->prefix = "";
    if (r == 0 && heads[head].norm) r = load_norm(l, heads[head].norm, &w->head_norm);
    (void)snprintf(name, sizeof name, "%s.weight", heads[head].score);
    if (r == 0) r = read_vector(l, name, D, &w->score);
    (void)snprintf(name, sizeof name, "%s.bias", heads[head].score);
    if (r == 0) r = read_vector(l, name, 1, &w->score_bias);
    l->prefix = prefix;
    return r;
}

/* What carries nothing that a vector is made of: heads of other tasks, and saved counters. */
static bool is_harmless(const struct loader *l, const char *name)
{
    static const char *const heads[] = {"pooler.", "cls.", "lm_head.", "head.", "decoder."};
    const size_t n = strlen(l->prefix), len = strlen(name);
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        const size_t m = strlen(heads[i]);
        if (strncmp(name, heads[i], m) == 0) return true;
        if (strncmp(name, l->prefix, n) == 0 && strncmp(name + n, heads[i], m) == 0) return true;
    }
    return len > 4 && strcmp(name + len - 4, "_ids") == 0;
}

/* Has it a name for all that such a model has? */
static bool names_all(const struct names *s, const struct enc_cfg *c)
{
    return !s->pos == (c->rope_base > 0) && !s->norm_last == !c->norms_before &&
           !s->gate.name == !c->gated && (s->types || !c->n_types);
}

/* Those whose first query is there, with the prefix that it has; else some that say what is
 * missing. */
static void find_names(struct loader *l)
{
    const struct names *any = NULL;
    char name[NAME_MAX_BYTES];
    for (size_t i = 0; i < FAMILIES * PREFIXES; i++) {
        l->names = &families[i / PREFIXES];
        l->prefix = prefixes[i % PREFIXES];
        if (!names_all(l->names, l->w->cfg)) continue;
        if (!any) any = l->names;
        (void)snprintf(name, sizeof name, "%s.0.%s.weight", l->names->layers, l->names->q.name);
        if (find_tensor(l, name)) return;
    }
    l->names = any;
    l->prefix = prefixes[0];
}

static int load_all(struct loader *l)
{
    struct enc_weights *w = l->w;
    const struct enc_cfg *c = w->cfg;
    char name[NAME_MAX_BYTES];
    struct tensor *words;
    l->n_all = (size_t)c->L * (6 + c->gated) + (c->head != ENC_HEAD_NONE);
    (void)snprintf(name, sizeof name, "%s.weight", l->names->words);
    int r = bind(l, name, c->V, c->D, &words);
    if (r == 0) w->embed = words;
    if (r == 0) r = load_positions(l);
    if (r == 0) r = load_norm(l, l->names->norm_embed, &w->norm_embed);
    for (unsigned i = 0; r == 0 && i < c->L; i++)
        r = load_layer(l, i);
    if (r == 0 && c->norms_before) r = load_norm(l, l->names->norm_last, &w->norm_last);
    if (r == 0 && c->head) r = load_head(l);
    for (size_t i = 0; r == 0 && i < w->tensors->n; i++) {
        const struct tensor *t = &w->tensors->t[i];
        if (!t->used && !is_harmless(l, t->name))
            r = err_set(l->err, -ENOTSUP, "tensor \"%.80s\" is not known to architecture \"%s\"",
                        t->name, c->arch);
    }
    return r;
}

static int open_device(struct enc_weights *w, const struct enc_opts *o, struct err *err)
{
    const size_t D = w->cfg->D, F = w->cfg->F, up = w->cfg->gated ? 2 * F : F;
    const struct kn_shape shapes[] = {
        {D, D, false}, {2 * D, D, false}, {up, D, false}, {D, F, false}};
    struct kn_dev_opts dev = o->dev;
    if (dev.device && strcmp(dev.device, "cpu") != 0 && strcmp(dev.device, "auto") != 0)
        return err_set(err, -ENOTSUP, "encoders run on the CPU, not on \"%.40s\"", dev.device);
    const struct tensor *any = w->tensors->n ? &w->tensors->t[0] : NULL; /* for its precision */
    dev.device = "cpu";
    dev.allow_bf16 = any && any->type && any->type->bytes <= 2;
    dev.tune = (struct kn_tuning){shapes, sizeof shapes / sizeof *shapes, 512, 0, 0};
    return kn_dev_create(&dev, &w->dev, err);
}

int enc_weights_init(struct enc_weights *w, const char *folder, const struct enc_cfg *cfg,
                     const struct enc_opts *o, struct err *err)
{
    *w = (struct enc_weights){.cfg = cfg};
    struct loader l = {.w = w, .o = o, .err = err};
    int r = st_open_dir(folder, &w->st, err);
    if (r < 0) return r;
    w->tensors = st_tensors(w->st);
    r = tensors_sort(w->tensors, err);
    if (r == 0) r = open_device(w, o, err);
    if (r < 0) return r;
    w->layer = mem_zalloc(cfg->L * sizeof *w->layer);
    l.rows = mem_alloc((cfg->D > cfg->F ? cfg->D : cfg->F) * sizeof *l.rows);
    r = w->layer && l.rows ? 0 : -ENOMEM;
    find_names(&l);
    if (r == 0) r = load_all(&l);
    if (r == -ENOMEM) (void)err_set(err, r, "no memory for the weights");
    mem_free(l.rows);
    return r;
}

static void linear_fini(struct kn_dev *d, struct enc_linear *w)
{
    kn_mat_destroy(w->w);
    kn_mem_free(d, w->bias);
}

static void norm_fini(struct kn_dev *d, struct enc_norm *w)
{
    kn_mem_free(d, w->weight);
    kn_mem_free(d, w->bias);
}

void enc_weights_fini(struct enc_weights *w)
{
    for (unsigned i = 0; w->layer && i < w->cfg->L; i++) {
        struct enc_layer *y = &w->layer[i];
        struct enc_linear *const linears[] = {&y->q, &y->kv, &y->o, &y->up, &y->down};
        for (size_t k = 0; k < sizeof linears / sizeof *linears; k++)
            linear_fini(w->dev, linears[k]);
        norm_fini(w->dev, &y->attn);
        norm_fini(w->dev, &y->ffn);
    }
    if (w->dev) {
        norm_fini(w->dev, &w->norm_embed);
        norm_fini(w->dev, &w->norm_last);
        linear_fini(w->dev, &w->head);
        norm_fini(w->dev, &w->head_norm);
        float *const floats[] = {w->pos_type, w->second, w->score, w->score_bias};
        for (size_t i = 0; i < sizeof floats / sizeof *floats; i++)
            kn_mem_free(w->dev, floats[i]);
    }
    mem_free(w->layer);
    kn_dev_destroy(w->dev);
    st_close(w->st);
}
