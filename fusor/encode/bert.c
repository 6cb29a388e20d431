/* The encoder: BERT and RoBERTa's layers over the tokens of several texts that stand end to end.
 *
 * Attention is kn_attn() over pages that hold one layer's K and V: a row sees the keys up to a
 * position that it is given, so a row that is given its text's last position sees all of the text.
 * A layer is two parallel sections, as in core/layer.c: K, V and Q of every row, then attention and
 * all that follows it, block by block in the cache of one thread. Rows never meet but in the
 * attention within their text, and every operation of kn.h keeps rows apart, so a vector does not
 * depend on the batch. */
#include "fusor/encode/encode_int.h"

#include "base/assert.h"
#include "base/mem.h"
#include "fusor/model/safetensors.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { P = KN_PAGE, SLOT_KV = 0, SLOT_UP = 0, NAME_MAX_BYTES = 128 };

struct linear {
    struct kn_mat *w; /* [n, k] */
    float *bias;      /* [n] */
    size_t n, k;
};
struct norm {
    float *weight, *bias; /* [D] */
};
struct layer {
    struct linear q, kv; /* kv [2*D, D]: K rows, then V rows */
    struct linear o, up, down;
    struct norm after_attn, after_ffn;
};
struct seq { /* a text of the batch */
    size_t row0, n;
    struct kn_kv kv;
};
struct room { /* for the largest batch so far */
    size_t rows, n_pages, n_seqs;
    float *x, *q, *att;  /* [rows, D] */
    int32_t *tok, *last; /* [rows] the token; its text's last position */
    int32_t *pos;        /* [rows] */
    uint32_t *seq_of;    /* [rows] */
    int32_t *page;       /* [n_pages] */
    void *pages;
    struct seq *seq; /* [n_seqs] */
};
struct enc_bert {
    struct enc_cfg cfg;
    struct st_set *st;
    struct tensors *tensors;    /* of it */
    const struct tensor *embed; /* [V, D] words, read where they are */
    float *pos_type;            /* [n_pos - pos0, D] positions, and the type of the only part */
    struct norm norm_embed;
    struct layer *layer; /* [L] */
    struct kn_dev *dev;
    struct room room;
};

/* ---- weights ---- */

struct loader {
    struct enc_bert *b;
    const struct enc_opts *o;
    const char *prefix; /* of all names: "", "bert.", "roberta." */
    float *rows;        /* [D or F] one row */
    size_t n_done, n_all;
    struct err *err;
};

static struct tensor *find_tensor(const struct loader *l, const char *name)
{
    char full[NAME_MAX_BYTES];
    (void)snprintf(full, sizeof full, "%s%s", l->prefix, name);
    return tensors_find(l->b->tensors, full);
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

static void row_of(const struct tensor *t, size_t i, float *out)
{
    quant_to_f32(t->type, t->data + i * t->cols * t->type->bytes, t->cols, out);
}

static int read_vector(const struct loader *l, const char *name, size_t n, float *to)
{
    struct tensor *t;
    int r = bind(l, name, 1, n, &t);
    if (r == 0) row_of(t, 0, to);
    return r;
}

static float *floats(struct loader *l, size_t n)
{
    return kn_mem_alloc(l->b->dev, KN_MEM_DEVICE, n * sizeof(float));
}

/* Older files call them gamma and beta. */
static int load_norm(struct loader *l, const char *name, struct norm *to)
{
    static const char *const names[][2] = {{"weight", "bias"}, {"gamma", "beta"}};
    const size_t D = l->b->cfg.D;
    char full[NAME_MAX_BYTES];
    (void)snprintf(full, sizeof full, "%s.gamma", name);
    const size_t old = find_tensor(l, full) != NULL;
    to->weight = floats(l, D);
    to->bias = floats(l, D);
    int r = to->weight && to->bias ? 0 : -ENOMEM;
    for (size_t i = 0; r == 0 && i < 2; i++) {
        (void)snprintf(full, sizeof full, "%s.%s", name, names[old][i]);
        r = read_vector(l, full, D, i ? to->bias : to->weight);
    }
    return r;
}

static int fill(struct loader *l, const struct tensor *t, struct kn_mat *to, size_t at)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < t->rows; i++) {
        row_of(t, i, l->rows);
        r = kn_mat_fill(to, at + i, 1, l->rows);
    }
    l->n_done++;
    if (l->o->progress) l->o->progress(l->o->progress_ctx, (double)l->n_done / (double)l->n_all);
    return r;
}

/* The rows of n_names layers, one below the other, to the n rows of k that `to` shall have. */
static int load_linear(struct loader *l, unsigned layer, const char *const *name, size_t n_names,
                       struct linear *to)
{
    const size_t n = to->n / n_names;
    char full[NAME_MAX_BYTES];
    struct tensor *t;
    to->bias = floats(l, to->n);
    int r = to->bias ? kn_mat_create(l->b->dev, to->n, to->k, &to->w) : -ENOMEM;
    for (size_t i = 0; r == 0 && i < n_names; i++) {
        (void)snprintf(full, sizeof full, "encoder.layer.%u.%s.weight", layer, name[i]);
        r = bind(l, full, n, to->k, &t);
        if (r == 0) r = fill(l, t, to->w, i * n);
        (void)snprintf(full, sizeof full, "encoder.layer.%u.%s.bias", layer, name[i]);
        if (r == 0) r = read_vector(l, full, n, to->bias + i * n);
    }
    return r == 0 ? kn_mat_done(to->w) : r;
}

static int load_layer(struct loader *l, unsigned i)
{
    static const char *const q[] = {"attention.self.query"},
                             *const o[] = {"attention.output.dense"},
                             *const kv[] = {"attention.self.key", "attention.self.value"},
                             *const up[] = {"intermediate.dense"}, *const down[] = {"output.dense"};
    const size_t D = l->b->cfg.D, F = l->b->cfg.F;
    struct layer *w = &l->b->layer[i];
    char name[NAME_MAX_BYTES];
    *w = (struct layer){.q = {.n = D, .k = D},
                        .kv = {.n = 2 * D, .k = D},
                        .o = {.n = D, .k = D},
                        .up = {.n = F, .k = D},
                        .down = {.n = D, .k = F}};
    int r = load_linear(l, i, q, 1, &w->q);
    if (r == 0) r = load_linear(l, i, kv, 2, &w->kv);
    if (r == 0) r = load_linear(l, i, o, 1, &w->o);
    if (r == 0) r = load_linear(l, i, up, 1, &w->up);
    if (r == 0) r = load_linear(l, i, down, 1, &w->down);
    (void)snprintf(name, sizeof name, "encoder.layer.%u.attention.output.LayerNorm", i);
    if (r == 0) r = load_norm(l, name, &w->after_attn);
    (void)snprintf(name, sizeof name, "encoder.layer.%u.output.LayerNorm", i);
    return r == 0 ? load_norm(l, name, &w->after_ffn) : r;
}

/* A text has one part, so every token has the first type. */
static int load_embeddings(struct loader *l)
{
    struct enc_bert *b = l->b;
    const size_t D = b->cfg.D, n_pos = b->cfg.n_pos - b->cfg.pos0;
    struct tensor *words, *pos, *types;
    int r = bind(l, "embeddings.word_embeddings.weight", b->cfg.V, D, &words);
    if (r == 0) r = bind(l, "embeddings.position_embeddings.weight", b->cfg.n_pos, D, &pos);
    if (r == 0) r = bind(l, "embeddings.token_type_embeddings.weight", b->cfg.n_types, D, &types);
    if (r < 0) return r;
    b->embed = words;
    b->pos_type = floats(l, n_pos * D);
    if (!b->pos_type) return -ENOMEM;
    row_of(types, 0, l->rows);
    for (size_t i = 0; i < n_pos; i++) {
        float *to = b->pos_type + i * D;
        row_of(pos, b->cfg.pos0 + i, to);
        for (size_t d = 0; d < D; d++)
            to[d] += l->rows[d];
    }
    return load_norm(l, "embeddings.LayerNorm", &b->norm_embed);
}

/* What carries nothing that a vector is made of: heads of other tasks, and saved counters. */
static bool is_harmless(const struct loader *l, const char *name)
{
    static const char *const heads[] = {"pooler.", "cls.", "lm_head."};
    const size_t n = strlen(l->prefix), len = strlen(name);
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        const size_t m = strlen(heads[i]);
        if (strncmp(name, heads[i], m) == 0) return true;
        if (strncmp(name, l->prefix, n) == 0 && strncmp(name + n, heads[i], m) == 0) return true;
    }
    return len > 4 && strcmp(name + len - 4, "_ids") == 0;
}

static int load_weights(struct loader *l)
{
    static const char *const prefixes[] = {"", "bert.", "roberta."};
    struct enc_bert *b = l->b;
    int r = 0;
    l->n_all = (size_t)b->cfg.L * 6;
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        l->prefix = prefixes[i];
        if (find_tensor(l, "embeddings.word_embeddings.weight")) break;
    }
    b->layer = mem_zalloc(b->cfg.L * sizeof *b->layer);
    l->rows = mem_alloc((b->cfg.D > b->cfg.F ? b->cfg.D : b->cfg.F) * sizeof *l->rows);
    if (!b->layer || !l->rows) r = -ENOMEM;
    if (r == 0) r = load_embeddings(l);
    for (unsigned i = 0; r == 0 && i < b->cfg.L; i++)
        r = load_layer(l, i);
    for (size_t i = 0; r == 0 && i < b->tensors->n; i++) {
        const struct tensor *t = &b->tensors->t[i];
        if (!t->used && !is_harmless(l, t->name))
            r = err_set(l->err, -ENOTSUP, "tensor \"%.80s\" is not known to architecture \"%s\"",
                        t->name, b->cfg.arch);
    }
    mem_free(l->rows);
    return r;
}

static int open_device(struct enc_bert *b, const struct enc_opts *o, struct err *err)
{
    const size_t D = b->cfg.D, F = b->cfg.F;
    const struct kn_shape shapes[] = {{D, D}, {2 * D, D}, {F, D}, {D, F}};
    struct kn_dev_opts dev = o->dev;
    if (dev.device && strcmp(dev.device, "cpu") != 0 && strcmp(dev.device, "auto") != 0)
        return err_set(err, -ENOTSUP, "encoders run on the CPU, not on \"%.40s\"", dev.device);
    dev.device = "cpu";
    dev.allow_bf16 = b->embed->type->bytes <= 2;
    dev.tune = (struct kn_tuning){shapes, sizeof shapes / sizeof *shapes, 512, 0};
    return kn_dev_create(&dev, &b->dev, err);
}

int enc_bert_open(const char *folder, const struct enc_cfg *cfg, const struct enc_opts *o,
                  struct enc_bert **ret, struct err *err)
{
    struct enc_bert *b = mem_zalloc(sizeof *b);
    if (!b) return err_set(err, -ENOMEM, "out of memory");
    b->cfg = *cfg;
    struct loader l = {.b = b, .o = o, .prefix = "", .err = err};
    int r = st_open_dir(folder, &b->st, err);
    if (r == 0) b->tensors = st_tensors(b->st);
    if (r == 0) b->embed = &b->tensors->t[0]; /* for the precision of the file */
    if (r == 0) r = open_device(b, o, err);
    if (r == 0) r = load_weights(&l);
    if (r == -ENOMEM) (void)err_set(err, r, "no memory for the weights");
    if (r < 0)
        enc_bert_close(b);
    else
        *ret = b;
    return r;
}

/* ---- room ---- */

static void room_free(struct enc_bert *b)
{
    struct room *m = &b->room;
    void *const device[] = {m->x, m->q, m->att, m->tok, m->last, m->pos, m->page, m->pages};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++)
        kn_mem_free(b->dev, device[i]);
    mem_free(m->seq_of);
    mem_free(m->seq);
    *m = (struct room){0};
}

static size_t pages_for(size_t n)
{
    return (n + P - 1) / P;
}

static int room_make(struct enc_bert *b, size_t rows, size_t n_pages, size_t n_seqs)
{
    struct room *m = &b->room;
    if (rows <= m->rows && n_pages <= m->n_pages && n_seqs <= m->n_seqs) return 0;
    const size_t act = rows * b->cfg.D * sizeof(float), ids = rows * sizeof(int32_t);
    const size_t page =
        kn_kv_layer_values(b->cfg.H, b->cfg.D / b->cfg.H) * kn_info(b->dev)->kv_value_bytes;
    room_free(b);
    m->x = kn_mem_alloc(b->dev, KN_MEM_SHARED, act);
    m->q = kn_mem_alloc(b->dev, KN_MEM_DEVICE, act);
    m->att = kn_mem_alloc(b->dev, KN_MEM_DEVICE, act);
    m->tok = kn_mem_alloc(b->dev, KN_MEM_SHARED, ids);
    m->last = kn_mem_alloc(b->dev, KN_MEM_SHARED, ids);
    m->pos = kn_mem_alloc(b->dev, KN_MEM_SHARED, ids);
    m->page = kn_mem_alloc(b->dev, KN_MEM_SHARED, n_pages * sizeof *m->page);
    m->pages = kn_mem_alloc(b->dev, KN_MEM_DEVICE, n_pages * page);
    m->seq_of = mem_alloc(rows * sizeof *m->seq_of);
    m->seq = mem_alloc(n_seqs * sizeof *m->seq);
    if (!m->x || !m->q || !m->att || !m->tok || !m->last || !m->pos || !m->page || !m->pages ||
        !m->seq_of || !m->seq) {
        room_free(b);
        return -ENOMEM;
    }
    m->rows = rows;
    m->n_pages = n_pages;
    m->n_seqs = n_seqs;
    return 0;
}

static int lay_out(struct enc_bert *b, const struct enc_text *text, size_t n)
{
    const unsigned K = b->cfg.D / b->cfg.H;
    size_t rows = 0, n_pages = 0;
    for (size_t i = 0; i < n; i++) {
        rows += text[i].n;
        n_pages += pages_for(text[i].n);
    }
    int r = room_make(b, rows, n_pages, n);
    if (r < 0) return r;
    struct room *m = &b->room;
    const size_t values = kn_kv_layer_values(b->cfg.H, K);
    size_t row = 0, page = 0;
    for (size_t i = 0; i < n; i++) {
        struct seq *s = &m->seq[i];
        s->row0 = row;
        s->n = text[i].n;
        s->kv = (struct kn_kv){.base = m->pages,
                               .page_stride = values,
                               .pages = m->page + page,
                               .n_pages = pages_for(s->n),
                               .G = b->cfg.H,
                               .K = K};
        for (size_t k = 0; k < s->kv.n_pages; k++, page++)
            m->page[page] = (int32_t)page;
        for (size_t k = 0; k < s->n; k++, row++) {
            m->tok[row] = text[i].tok[k];
            m->pos[row] = (int32_t)k;
            m->last[row] = (int32_t)s->n - 1;
            m->seq_of[row] = (uint32_t)i;
        }
    }
    return 0;
}

/* ---- layers ---- */

struct step {
    const struct enc_bert *b;
    const struct layer *w;
};

static int run_batch(const struct enc_bert *b, size_t n, const atomic_bool *cancel, kn_rows_fn fn,
                     void *arg)
{
    const bool few = n <= kn_info(b->dev)->wide_rows_max;
    return (few ? kn_wide : kn_rows)(b->dev, n, cancel, fn, arg);
}

static int product(struct kn_stream *st, const struct linear *w, const float *a, size_t m, float *c,
                   bool accumulate)
{
    const struct kn_gemm_args g = {.a = a,
                                   .lda = w->k,
                                   .m = m,
                                   .w = w->w,
                                   .bias = w->bias,
                                   .c = c,
                                   .ldc = w->n,
                                   .accumulate = accumulate};
    return kn_gemm(st, &g);
}

static int normed(struct kn_stream *st, const struct enc_bert *b, const struct norm *w, float *x,
                  size_t m)
{
    return kn_layernorm(st, x, b->cfg.D, m, b->cfg.D, w->weight, w->bias, b->cfg.eps, x, b->cfg.D);
}

static int block_embed(struct kn_stream *st, void *arg, size_t row0, size_t m)
{
    const struct enc_bert *b = arg;
    const size_t D = b->cfg.D;
    float *x = b->room.x + row0 * D;
    for (size_t i = 0; i < m; i++) {
        const float *at = b->pos_type + (size_t)b->room.pos[row0 + i] * D;
        row_of(b->embed, (size_t)b->room.tok[row0 + i], x + i * D);
        for (size_t d = 0; d < D; d++)
            x[i * D + d] += at[d];
    }
    return normed(st, b, &b->norm_embed, x, m);
}

/* The rows of [row0, row0 + m) that are of row0's text. */
static size_t part_of(const struct room *m, size_t row0, size_t n, const struct seq **ret)
{
    const struct seq *s = &m->seq[m->seq_of[row0]];
    const size_t left = s->row0 + s->n - row0;
    *ret = s;
    return left < n ? left : n;
}

static int block_project(struct kn_stream *st, void *arg, size_t row0, size_t m)
{
    const struct step *s = arg;
    const struct room *o = &s->b->room;
    const size_t D = s->b->cfg.D;
    const struct seq *q;
    float *k = kn_scratch(st, SLOT_KV, m * 2 * D * sizeof *k);
    if (!k) return -ENOMEM;
    int r = product(st, &s->w->kv, o->x + row0 * D, m, k, false);
    if (r == 0) r = product(st, &s->w->q, o->x + row0 * D, m, o->q + row0 * D, false);
    for (size_t at = 0, n; r == 0 && at < m; at += n) {
        n = part_of(o, row0 + at, m - at, &q);
        const float *from = k + at * 2 * D;
        r = kn_kv_put(st, &q->kv, 0, o->pos + row0 + at, n, from, 2 * D, from + D, 2 * D);
    }
    return r;
}

static int attend(struct kn_stream *st, const struct enc_bert *b, size_t row0, size_t m)
{
    const struct room *o = &b->room;
    const size_t D = b->cfg.D;
    const struct seq *q;
    int r = 0;
    for (size_t at = 0, n; r == 0 && at < m; at += n) {
        const size_t row = row0 + at;
        n = part_of(o, row, m - at, &q);
        const struct kn_attn_args a = {.q = o->q + row * D,
                                       .ldq = D,
                                       .m = n,
                                       .pos = o->last + row,
                                       .H = b->cfg.H,
                                       .kv = &q->kv,
                                       .scale = 1.0f / sqrtf((float)q->kv.K),
                                       .out = o->att + row * D,
                                       .ldo = D};
        r = kn_attn(st, &a);
    }
    return r;
}

static int block_rest(struct kn_stream *st, void *arg, size_t row0, size_t m)
{
    const struct step *s = arg;
    const struct enc_bert *b = s->b;
    const size_t D = b->cfg.D, F = b->cfg.F;
    float *x = b->room.x + row0 * D, *h = kn_scratch(st, SLOT_UP, m * F * sizeof *h);
    if (!h) return -ENOMEM;
    int r = attend(st, b, row0, m);
    if (r == 0) r = product(st, &s->w->o, b->room.att + row0 * D, m, x, true);
    if (r == 0) r = normed(st, b, &s->w->after_attn, x, m);
    if (r == 0) r = product(st, &s->w->up, x, m, h, false);
    if (r == 0) r = kn_gelu(st, h, F, m, F);
    if (r == 0) r = product(st, &s->w->down, h, m, x, true);
    return r == 0 ? normed(st, b, &s->w->after_ffn, x, m) : r;
}

int enc_bert_run(struct enc_bert *b, const struct enc_text *text, size_t n, enum enc_pool pool,
                 const atomic_bool *cancel)
{
    int r = lay_out(b, text, n);
    if (r < 0) return r;
    const struct room *m = &b->room;
    const size_t rows = m->seq[n - 1].row0 + m->seq[n - 1].n;
    r = run_batch(b, rows, cancel, block_embed, b);
    for (unsigned i = 0; r == 0 && i < b->cfg.L; i++) {
        struct step s = {b, &b->layer[i]};
        r = run_batch(b, rows, cancel, block_project, &s);
        if (r == 0) r = run_batch(b, rows, cancel, block_rest, &s);
    }
    for (size_t i = 0; r == 0 && i < n; i++)
        enc_pool_rows(m->x + m->seq[i].row0 * b->cfg.D, m->seq[i].n, b->cfg.D, pool, text[i].vec);
    return r;
}

struct kn_dev *enc_bert_dev(const struct enc_bert *b)
{
    return b->dev;
}

static void linear_fini(struct kn_dev *d, struct linear *w)
{
    kn_mat_destroy(w->w);
    kn_mem_free(d, w->bias);
}

static void norm_fini(struct kn_dev *d, struct norm *w)
{
    kn_mem_free(d, w->weight);
    kn_mem_free(d, w->bias);
}

void enc_bert_close(struct enc_bert *b)
{
    if (!b) return;
    for (unsigned i = 0; b->layer && i < b->cfg.L; i++) {
        struct layer *w = &b->layer[i];
        struct linear *const linears[] = {&w->q, &w->kv, &w->o, &w->up, &w->down};
        for (size_t k = 0; k < sizeof linears / sizeof *linears; k++)
            linear_fini(b->dev, linears[k]);
        norm_fini(b->dev, &w->after_attn);
        norm_fini(b->dev, &w->after_ffn);
    }
    if (b->dev) {
        room_free(b);
        norm_fini(b->dev, &b->norm_embed);
        kn_mem_free(b->dev, b->pos_type);
    }
    mem_free(b->layer);
    kn_dev_destroy(b->dev);
    st_close(b->st);
    mem_free(b);
}
