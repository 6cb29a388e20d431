/* The experts of a mixture: their settings, and their tensors as files have them. GGUF files have
 * one tensor of all experts' rows for each of gate, up and down; Hugging Face folders one for each
 * expert, one of all with gate above up, or one in which gate and up take turns: there rows are
 * columns, or, in MXFP4, codes and scales are two tensors; or as columns, gates before ups. All
 * become one weight each: rows expert after expert, wherever they stand.
 * Source of that MXFP4: transformers' integration of the format. */
#include "fusor/model/model_int.h"

#include <stdio.h>
#include <string.h>

enum { N_KINDS = 3 }; /* gate, up, down, as in enum model_w */

int model_settle_experts(struct model_cfg *c, struct err *err)
{
    const struct model_experts *e = &c->experts;
    if (e->n == 0) return 0;
    if (e->n > MODEL_EXPERTS_MAX)
        return err_set(err, -EBADMSG, "%u experts are outside 1…%d", e->n, MODEL_EXPERTS_MAX);
    if (e->used < 1 || e->used > e->n)
        return err_set(err, -EBADMSG, "%u experts of a token are outside 1…%u", e->used, e->n);
    if (e->F < 1 || e->F > MODEL_F_MAX)
        return err_set(err, -EBADMSG, "width of an expert of %u is outside 1…%d", e->F,
                       MODEL_F_MAX);
    if (e->shared_F > MODEL_F_MAX)
        return err_set(err, -EBADMSG, "width of the shared expert of %u is outside 0…%d",
                       e->shared_F, MODEL_F_MAX);
    unsigned n_dense = 0;
    for (unsigned l = 0; c->layers && l < c->L; l++)
        n_dense += model_layer_is(c, l, MODEL_LAYER_DENSE);
    if (n_dense > 0 && (e->dense_F < 1 || e->dense_F > MODEL_F_MAX))
        return err_set(err, -EBADMSG, "feed-forward size of %u is outside 1…%d", e->dense_F,
                       MODEL_F_MAX);
    c->F = e->used * e->F + e->shared_F;
    if (n_dense == 0) c->experts.dense_F = 0;
    if (c->F < c->experts.dense_F) c->F = c->experts.dense_F;
    return 0;
}

const char *model_hf_ffn(const struct model *m)
{
    return m->arch->experts.part ? m->arch->experts.part : "mlp";
}

static struct dims shape_of(const struct model_cfg *c, unsigned kind, size_t planes)
{
    const size_t D = c->D, F = c->experts.F;
    return kind < N_KINDS - 1 ? (struct dims){planes, F, D} : (struct dims){planes, D, F};
}

static enum model_w weight_kind(unsigned kind)
{
    return (enum model_w)(MODEL_EXPERT_GATE + kind);
}

/* Where the places of a weight's experts are kept. */
static const uint8_t **places(struct model *m, unsigned layer, unsigned kind)
{
    return m->parts + ((size_t)layer * N_KINDS + kind) * m->cfg.experts.n;
}

static enum model_w bias_kind(unsigned kind)
{
    return (enum model_w)(MODEL_EXPERT_GATE_BIAS + kind);
}

/* A tensor whose rows are the weight's; of biases whose values are. */
static int bind_whole(struct model *m, enum model_w w, unsigned layer, const char *name,
                      struct dims d, struct err *err)
{
    struct tensor *t = NULL;
    int r = model_take(m, name, d, &t, err);
    if (r < 0) return r;
    if (w >= MODEL_EXPERT_GATE_BIAS && t->type->block != 1)
        return err_set(err, -ENOTSUP, "vectors \"%s\" are quantised (%s)", name, t->type_name);
    model_bind(m, w, layer,
               (struct weight){.data = t->data, .type = t->type, .size_bytes = t->size_bytes});
    return 0;
}

static int bind_gguf(struct model *m, unsigned layer, struct err *err)
{
    static const char *const names[N_KINDS] = {"gate", "up", "down"};
    int r = 0;
    for (unsigned k = 0; r == 0 && k < N_KINDS; k++) {
        const struct dims d = shape_of(&m->cfg, k, m->cfg.experts.n);
        char name[64];
        (void)snprintf(name, sizeof(name), "blk.%u.ffn_%s_exps.weight", layer, names[k]);
        r = bind_whole(m, weight_kind(k), layer, name, d, err);
        if (r < 0 || !m->cfg.experts.biases) continue;
        (void)snprintf(name, sizeof(name), "blk.%u.ffn_%s_exps.bias", layer, names[k]);
        r = bind_whole(m, bias_kind(k), layer, name, (struct dims){1, d.planes, d.rows}, err);
    }
    return r;
}

/* Rows of all experts: of each, first those of `kind`, then of the next if there are two. */
static void bind_fused(struct model *m, unsigned layer, unsigned kind, unsigned n_kinds,
                       const struct tensor *t)
{
    const size_t n = m->cfg.experts.n, bytes = t->size_bytes / n / n_kinds;
    for (unsigned k = 0; k < n_kinds; k++) {
        const uint8_t **at = places(m, layer, kind + k);
        for (size_t e = 0; e < n; e++)
            at[e] = t->data + (e * n_kinds + k) * bytes;
        model_bind(
            m, weight_kind(kind + k), layer,
            (struct weight){.data = t->data, .type = t->type, .size_bytes = n * bytes, .part = at});
    }
}

static int bind_separate(struct model *m, unsigned layer, unsigned kind, struct err *err)
{
    static const char *const names[][1 + N_KINDS] = {
        {"mlp.experts", "gate_proj", "up_proj", "down_proj"},
        {"block_sparse_moe.experts", "w1", "w3", "w2"}};
    const size_t family = m->arch->experts.mixtral_names, n = m->cfg.experts.n;
    const struct dims d = shape_of(&m->cfg, kind, 1);
    const uint8_t **at = places(m, layer, kind);
    struct packed *packed = NULL;
    struct weight w = {.part = at};
    for (unsigned e = 0; e < n; e++) {
        char name[96];
        struct tensor *t = NULL;
        (void)snprintf(name, sizeof(name), "model.layers.%u.%s.%u.%s.weight", layer,
                       names[family][0], e, names[family][1 + kind]);
        if (e == 0 && model_is_packed(m, name)) {
            packed = arena_alloc(&m->arena, n * sizeof(*packed));
            if (!packed) return err_set(err, -ENOMEM, "out of memory");
        }
        int r = packed ? model_take_packed(m, &(struct packed_layer){name, d.rows, d.cols, 0},
                                           &packed[e], err)
                       : model_take(m, name, d, &t, err);
        if (r < 0) return r;
        if (packed && packed[e].type != packed[0].type)
            return err_set(err, -ENOTSUP, "\"%s\" has another form than those before it", name);
        if (packed) continue;
        if (w.type && w.type != t->type)
            return err_set(err, -ENOTSUP, "tensor \"%s\" is %s, and those before it %s", name,
                           t->type->name, w.type->name);
        at[e] = t->data;
        w.data = at[0];
        w.type = t->type;
        w.size_bytes += t->size_bytes;
    }
    if (packed)
        model_bind_packed(m, weight_kind(kind), layer, packed, n);
    else
        model_bind(m, weight_kind(kind), layer, w);
    return 0;
}

/* ---- gate and up in one tensor, in turns or as columns ---- */

/* A tensor of bytes of n_dims dimensions. */
static int take_bytes(struct model *m, const char *name, unsigned n_dims, struct dims d,
                      struct tensor **ret, struct err *err)
{
    int r = model_find(m, name, d, ret, err);
    if (r < 0) return r;
    if ((*ret)->n_dims != n_dims || strcmp((*ret)->type_name, "U8") != 0)
        return err_set(err, -EBADMSG, "tensor \"%s\" has %u dimensions of %s, expected %u of U8",
                       name, (*ret)->n_dims, (*ret)->type_name, n_dims);
    (*ret)->used = true;
    return 0;
}

/* Codes [n, rows, cols / 32, 16], two to a byte, and their scales [n, rows, cols / 32]. */
static int take_mxfp4(struct model *m, const char *name, struct dims d, struct weight *ret,
                      struct err *err)
{
    char part[128];
    struct tensor *codes = NULL, *scales = NULL;
    const struct quant_type *type = quant_type(QUANT_MXFP4);
    if (d.cols % type->block != 0)
        return err_set(err, -EBADMSG, "tensor \"%s\" has rows of %zu, no whole blocks of %u", name,
                       d.cols, type->block);
    (void)snprintf(part, sizeof(part), "%s_blocks", name);
    int r = take_bytes(m, part, 4, (struct dims){d.planes, d.rows, d.cols / 2}, &codes, err);
    (void)snprintf(part, sizeof(part), "%s_scales", name);
    if (r == 0)
        r = take_bytes(m, part, 3, (struct dims){d.planes, d.rows, d.cols / type->block}, &scales,
                       err);
    if (r < 0) return r;
    *ret = (struct weight){
        .data = codes->data, .type = type, .size_bytes = codes->size_bytes, .scales = scales->data};
    return 0;
}

/* n_kinds weights from `kind` on, of which one tensor has the rows, and their biases if there are
 * any: in turns, or one kind's behind the other's. */
static int bind_joined(struct model *m, unsigned layer, unsigned kind, unsigned n_kinds,
                       const char *rest, struct err *err)
{
    struct dims d = shape_of(&m->cfg, kind, m->cfg.experts.n);
    struct weight w, bias;
    struct tensor *t = NULL;
    char name[96], codes[112];
    int r;
    const size_t per = d.rows;
    const bool turns = m->arch->experts.in_turns;
    d.rows *= n_kinds;
    (void)snprintf(name, sizeof(name), "model.layers.%u.%s.experts.%s", layer, model_hf_ffn(m),
                   rest);
    (void)snprintf(codes, sizeof(codes), "%s_blocks", name);
    if (turns && tensors_find(m->tensors, codes)) {
        r = take_mxfp4(m, name, d, &w, err);
    } else {
        r = model_take(m, name, (struct dims){d.planes, d.cols, d.rows}, &t, err);
        if (r == 0)
            w = (struct weight){
                .data = t->data, .type = t->type, .size_bytes = t->size_bytes, .columns = d.rows};
    }
    w.step = turns ? n_kinds : 1;
    w.per = turns ? 0 : per;
    for (unsigned k = 0; r == 0 && k < n_kinds; k++) {
        w.first = turns ? k : k * (unsigned)per;
        model_bind(m, weight_kind(kind + k), layer, w);
    }
    if (r < 0 || !m->cfg.experts.biases) return r;
    (void)snprintf(codes, sizeof(codes), "%s_bias", name);
    r = model_take(m, codes, (struct dims){1, d.planes, d.rows}, &t, err);
    if (r < 0) return r;
    bias = (struct weight){
        .data = t->data, .type = t->type, .size_bytes = t->size_bytes, .step = n_kinds};
    for (unsigned k = 0; k < n_kinds; k++) {
        bias.first = k;
        model_bind(m, bias_kind(kind + k), layer, bias);
    }
    return 0;
}

/* A block of such MXFP4 as GGUF has it: its scale, and the codes of which value i and value i + 16
 * share a byte, where here it is values 2 i and 2 i + 1. */
static void join_block(uint8_t scale, const uint8_t *codes, uint8_t *out)
{
    out[0] = scale;
    for (unsigned i = 0; i < 16; i++) {
        const unsigned shift = i % 2 * 4;
        const unsigned low = codes[i / 2] >> shift & 15, high = codes[8 + i / 2] >> shift & 15;
        out[1 + i] = (uint8_t)(low | high << 4);
    }
}

const uint8_t *model_expert_values(const struct weight *x, size_t row, size_t cols, size_t col,
                                   size_t n, uint8_t room[MODEL_PIECE * 4])
{
    const struct quant_type *t = x->type;
    const size_t at =
        x->per ? row / x->per * x->columns + x->first + row % x->per : x->first + row * x->step;
    if (x->scales) {
        const size_t block = (at * cols + col) / t->block;
        for (size_t b = 0; b < n / t->block; b++)
            join_block(x->scales[block + b], x->data + (block + b) * 16, room + b * t->bytes);
        return room;
    }
    if (!x->columns) return x->data + (at * cols + col) * t->bytes;
    const size_t rows = x->columns;
    const uint8_t *from = x->data + (at / rows * cols + col) * rows * t->bytes;
    for (size_t i = 0; i < n; i++)
        memcpy(room + i * t->bytes, from + (i * rows + at % rows) * t->bytes, t->bytes);
    return room;
}

int model_bind_experts(struct model *m, unsigned layer, struct err *err)
{
    char joined[64], down[64];
    struct tensor *t = NULL;
    struct dims both = shape_of(&m->cfg, 0, m->cfg.experts.n);
    int r = 0;
    if (m->gguf) return bind_gguf(m, layer, err);
    if (m->arch->experts.in_turns || m->arch->experts.in_columns) {
        r = bind_joined(m, layer, 0, 2, "gate_up_proj", err);
        return r < 0 ? r : bind_joined(m, layer, 2, 1, "down_proj", err);
    }
    (void)snprintf(joined, sizeof(joined), "model.layers.%u.mlp.experts.gate_up_proj", layer);
    (void)snprintf(down, sizeof(down), "model.layers.%u.mlp.experts.down_proj", layer);
    if (!tensors_find(m->tensors, joined)) {
        for (unsigned k = 0; r == 0 && k < N_KINDS; k++)
            r = bind_separate(m, layer, k, err);
        return r;
    }
    both.rows *= 2;
    r = model_take(m, joined, both, &t, err);
    if (r < 0) return r;
    bind_fused(m, layer, 0, 2, t);
    r = model_take(m, down, shape_of(&m->cfg, 2, m->cfg.experts.n), &t, err);
    if (r == 0) bind_fused(m, layer, 2, 1, t);
    return r;
}
