/* The experts of a mixture: their settings, and their tensors as files have them. GGUF files have
 * one tensor of all experts' rows for each of gate, up and down; Hugging Face folders one for each
 * expert, or one of all with gate above up. All become one weight each: rows expert after expert,
 * wherever they stand. */
#include "fusor/model/model_int.h"

#include <stdio.h>

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
    c->F = e->used * e->F + e->shared_F;
    return 0;
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

static int bind_gguf(struct model *m, unsigned layer, struct err *err)
{
    static const char *const names[N_KINDS] = {"gate", "up", "down"};
    int r = 0;
    for (unsigned k = 0; r == 0 && k < N_KINDS; k++) {
        char name[64];
        struct tensor *t = NULL;
        (void)snprintf(name, sizeof(name), "blk.%u.ffn_%s_exps.weight", layer, names[k]);
        r = model_take(m, name, shape_of(&m->cfg, k, m->cfg.experts.n), &t, err);
        if (r == 0)
            model_bind(m, weight_kind(k), layer,
                       (struct weight){t->data, t->type, t->size_bytes, NULL});
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
        model_bind(m, weight_kind(kind + k), layer,
                   (struct weight){t->data, t->type, n * bytes, at});
    }
}

static int bind_separate(struct model *m, unsigned layer, unsigned kind, struct err *err)
{
    static const char *const names[][1 + N_KINDS] = {
        {"mlp.experts", "gate_proj", "up_proj", "down_proj"},
        {"block_sparse_moe.experts", "w1", "w3", "w2"}};
    const size_t family = m->arch->experts.mixtral_names;
    const uint8_t **at = places(m, layer, kind);
    struct weight w = {.part = at};
    for (unsigned e = 0; e < m->cfg.experts.n; e++) {
        char name[96];
        struct tensor *t = NULL;
        (void)snprintf(name, sizeof(name), "model.layers.%u.%s.%u.%s.weight", layer,
                       names[family][0], e, names[family][1 + kind]);
        int r = model_take(m, name, shape_of(&m->cfg, kind, 1), &t, err);
        if (r < 0) return r;
        if (w.type && w.type != t->type)
            return err_set(err, -ENOTSUP, "tensor \"%s\" is %s, and those before it %s", name,
                           t->type->name, w.type->name);
        at[e] = t->data;
        w.data = at[0];
        w.type = t->type;
        w.size_bytes += t->size_bytes;
    }
    model_bind(m, weight_kind(kind), layer, w);
    return 0;
}

int model_bind_experts(struct model *m, unsigned layer, struct err *err)
{
    char joined[64], down[64];
    struct tensor *t = NULL;
    struct dims both = shape_of(&m->cfg, 0, m->cfg.experts.n);
    int r = 0;
    if (m->gguf) return bind_gguf(m, layer, err);
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
