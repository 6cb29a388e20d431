/* The encoder: layers over the tokens of several texts that stand end to end.
 *
 * Attention is kn_attn() over pages that hold one layer's K and V: a row sees the keys up to a
 * position that it is given, so a row that is given its text's last position sees all of the text,
 * and one of a local layer the last key of its window, with the first one beside it.
 * A layer is two parallel sections, as in core/layer.c: K, V and Q of every row, then attention and
 * all that follows it, block by block in the cache of one thread. Rows never meet but in the
 * attention within their text, and every operation of kn.h keeps rows apart, so a vector does not
 * depend on the batch. */
#include "fusor/encode/encode_int.h"

#include "base/mem.h"
#include "fusor/model/model.h"
#include "fusor/model/tensors.h"

#include <math.h>
#include <string.h>

enum { P = KN_PAGE, SLOT_KV = 0, SLOT_UP = 0, SLOT_ACT = 1, SLOT_NORMED = 2, ROPES = 2 };

struct seq {                /* a text of the batch */
    size_t row0, n, second; /* second: its first row of the second type; n: none */
    struct kn_kv kv;
};
struct room { /* for the largest batch so far */
    size_t rows, n_pages, n_seqs;
    float *x, *q, *att;         /* [rows, D] */
    float *pooled;              /* [n_seqs, D] what a head makes a score of */
    int32_t *tok, *pos;         /* [rows] the token; its place in the text */
    int32_t *last;              /* [rows] its text's last position */
    int32_t *win_from, *win_to; /* [rows] the window of local layers */
    uint32_t *seq_of;           /* [rows] */
    int32_t *page;              /* [n_pages] */
    void *pages;
    struct seq *seq; /* [n_seqs] */
};
struct enc_bert {
    struct enc_cfg cfg;
    struct enc_weights w;
    struct kn_rope rope[ROPES]; /* of all layers but the local ones, of these; K 0: none */
    float *rope_tab;
    struct room room;
};

/* ---- opening ---- */

/* cos, then sin [n_pos, K/2] of every position. */
static int make_rope(struct enc_bert *b, double base, float *tab, struct kn_rope *ret)
{
    const unsigned K = b->cfg.D / b->cfg.H, half = K / 2;
    const struct model_cfg shape = {.n_rot = K};
    const struct model_rope plain = {.type = ROPE_NONE, .base = base};
    float *freq = mem_alloc(half * sizeof *freq), mscale = 1;
    const size_t n = (size_t)b->cfg.n_pos * half;
    if (!freq) return -ENOMEM;
    model_rope_freqs(&shape, &plain, freq, &mscale);
    for (size_t p = 0; p < b->cfg.n_pos; p++)
        for (size_t i = 0; i < half; i++) {
            const double angle = (double)p * (double)freq[i];
            tab[p * half + i] = (float)cos(angle);
            tab[n + p * half + i] = (float)sin(angle);
        }
    mem_free(freq);
    *ret = (struct kn_rope){
        .K = K, .n_rot = K, .cos = tab, .sin = tab + n, .pos_cap = b->cfg.n_pos, .mscale = mscale};
    return 0;
}

static int make_ropes(struct enc_bert *b, const struct enc_opts *o)
{
    struct enc_cfg *c = &b->cfg;
    const double base[ROPES] = {c->rope_base, c->rope_base_local};
    if (!c->rope_base) return 0;
    if (o->ctx_max && o->ctx_max < c->n_pos) c->n_pos = o->ctx_max; /* no text is longer */
    const size_t n = (size_t)c->n_pos * (c->D / c->H);
    b->rope_tab = kn_mem_alloc(b->w.dev, KN_MEM_SHARED, ROPES * n * sizeof(float));
    int r = b->rope_tab ? 0 : -ENOMEM;
    for (size_t i = 0; r == 0 && i < ROPES && base[i] > 0; i++)
        r = make_rope(b, base[i], b->rope_tab + i * n, &b->rope[i]);
    return r;
}

int enc_bert_open(const char *folder, const struct enc_cfg *cfg, const struct enc_opts *o,
                  struct enc_bert **ret, struct err *err)
{
    struct enc_bert *b = mem_zalloc(sizeof *b);
    if (!b) return err_set(err, -ENOMEM, "out of memory");
    b->cfg = *cfg;
    int r = enc_weights_init(&b->w, folder, &b->cfg, o, err);
    if (r == 0 && (r = make_ropes(b, o)) < 0) (void)err_set(err, r, "no memory for positions");
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
    void *const device[] = {m->x,   m->q,        m->att,    m->tok,  m->last, m->pooled,
                            m->pos, m->win_from, m->win_to, m->page, m->pages};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++)
        kn_mem_free(b->w.dev, device[i]);
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
    const size_t page = kn_kv_layer_values(kn_info(b->w.dev)->kv, b->cfg.H, b->cfg.D / b->cfg.H) *
                        kn_info(b->w.dev)->kv_value_bytes;
    room_free(b);
    m->x = kn_mem_alloc(b->w.dev, KN_MEM_SHARED, act);
    m->q = kn_mem_alloc(b->w.dev, KN_MEM_DEVICE, act);
    m->att = kn_mem_alloc(b->w.dev, KN_MEM_DEVICE, act);
    m->pooled = kn_mem_alloc(b->w.dev, KN_MEM_SHARED, n_seqs * b->cfg.D * sizeof(float));
    m->tok = kn_mem_alloc(b->w.dev, KN_MEM_SHARED, ids);
    m->last = kn_mem_alloc(b->w.dev, KN_MEM_SHARED, ids);
    m->pos = kn_mem_alloc(b->w.dev, KN_MEM_SHARED, ids);
    m->win_from = kn_mem_alloc(b->w.dev, KN_MEM_SHARED, ids);
    m->win_to = kn_mem_alloc(b->w.dev, KN_MEM_SHARED, ids);
    m->page = kn_mem_alloc(b->w.dev, KN_MEM_SHARED, n_pages * sizeof *m->page);
    m->pages = kn_mem_alloc(b->w.dev, KN_MEM_DEVICE, n_pages * page);
    m->seq_of = mem_alloc(rows * sizeof *m->seq_of);
    m->seq = mem_alloc(n_seqs * sizeof *m->seq);
    if (!m->x || !m->q || !m->att || !m->pooled || !m->tok || !m->last || !m->pos || !m->win_from ||
        !m->win_to || !m->page || !m->pages || !m->seq_of || !m->seq) {
        room_free(b);
        return -ENOMEM;
    }
    m->rows = rows;
    m->n_pages = n_pages;
    m->n_seqs = n_seqs;
    return 0;
}

/* A text's rows from `row` on: who they are, and what they see of it. */
static void lay_out_rows(struct room *m, const struct enc_text *text, size_t i, size_t row,
                         unsigned window)
{
    for (size_t k = 0; k < text->n; k++, row++) {
        m->tok[row] = text->tok[k];
        m->pos[row] = (int32_t)k;
        m->last[row] = (int32_t)text->n - 1;
        m->win_from[row] = k > window ? (int32_t)(k - window) : 0;
        m->win_to[row] = k + window < text->n ? (int32_t)(k + window) : (int32_t)text->n - 1;
        m->seq_of[row] = (uint32_t)i;
    }
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
    const size_t values = kn_kv_layer_values(kn_info(b->w.dev)->kv, b->cfg.H, K);
    size_t row = 0, page = 0;
    for (size_t i = 0; i < n; i++) {
        struct seq *s = &m->seq[i];
        s->row0 = row;
        s->n = text[i].n;
        s->second = text[i].second ? text[i].second : s->n;
        s->kv = (struct kn_kv){.base = m->pages,
                               .page_stride = values,
                               .pages = m->page + page,
                               .n_pages = pages_for(s->n),
                               .G = b->cfg.H,
                               .K = K};
        for (size_t k = 0; k < s->kv.n_pages; k++, page++)
            m->page[page] = (int32_t)page;
        lay_out_rows(m, &text[i], i, row, b->cfg.window);
        row += s->n;
    }
    return 0;
}

/* ---- layers ---- */

struct step {
    const struct enc_bert *b;
    const struct enc_layer *w;
    bool local;
};

static int run_batch(const struct enc_bert *b, size_t n, const atomic_bool *cancel, kn_rows_fn fn,
                     void *arg)
{
    const bool few = n <= kn_info(b->w.dev)->wide_rows_max;
    return (few ? kn_wide : kn_rows)(b->w.dev, n, cancel, fn, arg);
}

static int product(struct kn_stream *st, const struct enc_linear *w, const float *a, size_t m,
                   float *c, bool accumulate)
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

static int normed(struct kn_stream *st, const struct enc_bert *b, const struct enc_norm *w,
                  const float *x, size_t m, float *out)
{
    const size_t D = b->cfg.D;
    return kn_layernorm(st, x, D, m, D, w->weight, w->bias, b->cfg.eps, out, D);
}

/* What a layer's half computes on: rows x, or these normed in scratch. NULL: no memory, or *ret. */
static const float *operand(struct kn_stream *st, const struct enc_bert *b,
                            const struct enc_norm *w, const float *x, size_t m, int *ret)
{
    float *out;
    *ret = 0;
    if (!b->cfg.norms_before || !w->weight) return x;
    out = kn_scratch(st, SLOT_NORMED, m * b->cfg.D * sizeof *out);
    *ret = out ? normed(st, b, w, x, m, out) : -ENOMEM;
    return out;
}

static int block_embed(struct kn_stream *st, void *arg, size_t row0, size_t m)
{
    const struct enc_bert *b = arg;
    const size_t D = b->cfg.D, stride = b->cfg.rope_base ? 0 : D;
    float *x = b->room.x + row0 * D;
    for (size_t i = 0; i < m; i++) {
        const float *at =
            b->w.pos_type ? b->w.pos_type + (size_t)b->room.pos[row0 + i] * stride : NULL;
        enc_weights_row(b->w.embed, (size_t)b->room.tok[row0 + i], x + i * D);
        for (size_t d = 0; at && d < D; d++)
            x[i * D + d] += at[d];
        const struct seq *s = &b->room.seq[b->room.seq_of[row0 + i]];
        for (size_t d = 0; b->w.second && row0 + i >= s->row0 + s->second && d < D; d++)
            x[i * D + d] += b->w.second[d];
    }
    return normed(st, b, &b->w.norm_embed, x, m, x);
}

/* The rows of [row0, row0 + m) that are of row0's text. */
static size_t part_of(const struct room *m, size_t row0, size_t n, const struct seq **ret)
{
    const struct seq *s = &m->seq[m->seq_of[row0]];
    const size_t left = s->row0 + s->n - row0;
    *ret = s;
    return left < n ? left : n;
}

static int rotate(struct kn_stream *st, const struct step *s, float *x, size_t ldx, size_t row0,
                  size_t m)
{
    const struct kn_rope *rope = &s->b->rope[s->local];
    if (!rope->K) return 0;
    return kn_rope(st, rope, x, ldx, m, s->b->cfg.H, s->b->room.pos + row0);
}

static int block_project(struct kn_stream *st, void *arg, size_t row0, size_t m)
{
    const struct step *s = arg;
    const struct room *o = &s->b->room;
    const size_t D = s->b->cfg.D;
    const struct seq *of;
    int r;
    const float *x = operand(st, s->b, &s->w->attn, o->x + row0 * D, m, &r);
    float *k = kn_scratch(st, SLOT_KV, m * 2 * D * sizeof *k), *q = o->q + row0 * D;
    if (!k) return -ENOMEM;
    if (r == 0) r = product(st, &s->w->kv, x, m, k, false);
    if (r == 0) r = product(st, &s->w->q, x, m, q, false);
    if (r == 0) r = rotate(st, s, k, 2 * D, row0, m);
    if (r == 0) r = rotate(st, s, q, D, row0, m);
    for (size_t at = 0, n; r == 0 && at < m; at += n) {
        n = part_of(o, row0 + at, m - at, &of);
        const float *from = k + at * 2 * D;
        r = kn_kv_put(st, &of->kv, 0, o->pos + row0 + at, n, from, 2 * D, from + D, 2 * D);
    }
    return r;
}

static int attend(struct kn_stream *st, const struct step *s, size_t row0, size_t m)
{
    const struct room *o = &s->b->room;
    const size_t D = s->b->cfg.D;
    const struct seq *q;
    int r = 0;
    for (size_t at = 0, n; r == 0 && at < m; at += n) {
        const size_t row = row0 + at;
        n = part_of(o, row, m - at, &q);
        const struct kn_attn_args a = {.q = o->q + row * D,
                                       .ldq = D,
                                       .m = n,
                                       .pos = (s->local ? o->win_to : o->last) + row,
                                       .from = s->local ? o->win_from + row : NULL,
                                       .H = s->b->cfg.H,
                                       .kv = &q->kv,
                                       .scale = 1.0f / sqrtf((float)q->kv.K),
                                       .out = o->att + row * D,
                                       .ldo = D};
        r = kn_attn(st, &a);
    }
    return r;
}

/* x += the feed-forward of in. */
static int feed_forward(struct kn_stream *st, const struct step *s, const float *in, size_t m,
                        float *x)
{
    const struct enc_cfg *c = &s->b->cfg;
    const size_t F = c->F, up = s->w->up.n;
    float *h = kn_scratch(st, SLOT_UP, m * up * sizeof *h), *act = h;
    if (c->gated) act = kn_scratch(st, SLOT_ACT, m * F * sizeof *act);
    if (!h || !act) return -ENOMEM;
    int r = product(st, &s->w->up, in, m, h, false);
    if (r == 0) r = c->gated ? kn_glu(st, c->act, h, up, m, F, act, F) : kn_gelu(st, h, F, m, F);
    return r == 0 ? product(st, &s->w->down, act, m, x, true) : r;
}

static int block_rest(struct kn_stream *st, void *arg, size_t row0, size_t m)
{
    const struct step *s = arg;
    const struct enc_bert *b = s->b;
    const bool behind = !b->cfg.norms_before;
    const size_t D = b->cfg.D;
    float *x = b->room.x + row0 * D;
    int r = attend(st, s, row0, m);
    if (r == 0) r = product(st, &s->w->o, b->room.att + row0 * D, m, x, true);
    if (r == 0 && behind) r = normed(st, b, &s->w->attn, x, m, x);
    if (r < 0) return r;
    const float *in = operand(st, b, &s->w->ffn, x, m, &r);
    if (r == 0) r = feed_forward(st, s, in, m, x);
    return r == 0 && behind ? normed(st, b, &s->w->ffn, x, m, x) : r;
}

static int block_last(struct kn_stream *st, void *arg, size_t row0, size_t m)
{
    const struct enc_bert *b = arg;
    float *x = b->room.x + row0 * b->cfg.D;
    return normed(st, b, &b->w.norm_last, x, m, x);
}

/* ---- scores ---- */

struct scoring {
    const struct enc_bert *b;
    const struct enc_text *text;
};

static float score_of(const struct enc_bert *b, const float *x)
{
    double sum = b->w.score_bias[0];
    for (size_t d = 0; d < b->cfg.D; d++)
        sum += (double)x[d] * (double)b->w.score[d];
    return (float)(b->cfg.sigmoid ? 1 / (1 + exp(-sum)) : sum);
}

static int block_score(struct kn_stream *st, void *arg, size_t row0, size_t m)
{
    const struct scoring *s = arg;
    const struct enc_bert *b = s->b;
    const size_t D = b->cfg.D;
    float *h = kn_scratch(st, SLOT_UP, m * D * sizeof *h);
    if (!h) return -ENOMEM;
    int r = product(st, &b->w.head, b->room.pooled + row0 * D, m, h, false);
    if (b->cfg.head == ENC_HEAD_NORMED) {
        if (r == 0) r = kn_gelu(st, h, D, m, D);
        if (r == 0) r = normed(st, b, &b->w.head_norm, h, m, h);
    } else {
        for (size_t i = 0; r == 0 && i < m * D; i++)
            h[i] = tanhf(h[i]);
    }
    for (size_t i = 0; r == 0 && i < m; i++)
        *s->text[row0 + i].vec = score_of(b, h + i * D);
    return r;
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
        struct step s = {b, &b->w.layer[i], b->cfg.local[i]};
        r = run_batch(b, rows, cancel, block_project, &s);
        if (r == 0) r = run_batch(b, rows, cancel, block_rest, &s);
    }
    if (r == 0 && b->w.norm_last.weight) r = run_batch(b, rows, cancel, block_last, b);
    for (size_t i = 0; r == 0 && i < n; i++)
        enc_pool_rows(m->x + m->seq[i].row0 * b->cfg.D, m->seq[i].n, b->cfg.D, pool,
                      b->cfg.head ? m->pooled + i * b->cfg.D : text[i].vec);
    struct scoring s = {b, text};
    return r == 0 && b->cfg.head ? run_batch(b, n, cancel, block_score, &s) : r;
}

struct kn_dev *enc_bert_dev(const struct enc_bert *b)
{
    return b->w.dev;
}

void enc_bert_close(struct enc_bert *b)
{
    if (!b) return;
    if (b->w.dev) {
        room_free(b);
        kn_mem_free(b->w.dev, b->rope_tab);
    }
    enc_weights_fini(&b->w);
    mem_free(b);
}
