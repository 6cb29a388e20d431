/* Opening an embedder, its tokens, and what is the same for encoders and causal models: pooling,
 * length 1. A causal model runs text by text through core/, an encoder as many at once as fill the
 * threads. */
#include "fusor/encode/encode_int.h"

#include "base/buf.h"
#include "base/mem.h"
#include "fusor/core/prefill.h"
#include "fusor/model/shape.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { BATCH_TOKENS = 1024 }; /* chosen: rows enough for all threads, half a second of a MiniLM */

struct enc {
    struct enc_info info;
    bool typed; /* the second text of a pair is of a type of its own, where the tokenizer says so */
    struct tok *tok;
    struct enc_bert *bert; /* or: */
    struct model *model;
    struct fus_core *core;
};

static const char *const pool_names[] = {"auto", "cls", "mean", "last"};
enum { POOLS = sizeof pool_names / sizeof *pool_names };

const char *enc_pool_name(enum enc_pool p)
{
    return (unsigned)p < POOLS ? pool_names[p] : "unknown";
}

int enc_pool_parse(const char *name, int dflt)
{
    for (int i = 0; i < POOLS; i++)
        if (strcmp(name, pool_names[i]) == 0) return i;
    return dflt;
}

/* ---- opening ---- */

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

bool enc_fits(const char *path, enum enc_pool pool)
{
    struct enc_cfg cfg;
    if (pool != ENC_POOL_AUTO) return true;
    if (!is_folder(path)) return false;
    return enc_has_modules(path) || enc_read_config(path, &cfg, NULL) != 0;
}

static int open_bert(struct enc *e, const char *path, const struct enc_cfg *c,
                     const struct enc_opts *o, struct err *err)
{
    memcpy(e->info.arch, c->arch, sizeof e->info.arch);
    e->info.L = c->L;
    e->info.D = c->D;
    e->info.V = c->V;
    e->info.ctx_max = c->n_pos - c->pos0;
    e->info.scores = c->head != ENC_HEAD_NONE;
    e->info.sigmoid = c->sigmoid;
    e->typed = c->n_types > 1;
    return enc_bert_open(path, c, o, &e->bert, err);
}

static int open_causal(struct enc *e, const char *path, const struct enc_opts *o, struct err *err)
{
    int r = model_open(path, &e->model, err);
    if (r < 0) return r;
    const struct model_cfg *c = model_config(e->model);
    struct fus_core_opts core = {.dev = o->dev,
                                 .ctx_max = o->ctx_max,
                                 .progress = o->progress,
                                 .progress_ctx = o->progress_ctx};
    core.dev.allow_bf16 = c->file_bf16_or_less;
    r = fus_core_create(e->model, &core, &e->core, err);
    if (r < 0) return r;
    (void)snprintf(e->info.arch, sizeof e->info.arch, "%s", c->arch);
    e->info.L = c->L;
    e->info.D = c->D;
    e->info.V = c->V;
    e->info.ctx_max = fus_core_ctx_max(e->core);
    const uint32_t room = fus_core_kv_tokens_free(e->core);
    if (room < e->info.ctx_max) e->info.ctx_max = room;
    return 0;
}

/* By the caller, else the files, else as sentence-transformers has it for a bare encoder. */
static int settle(struct enc *e, const struct enc_pooling *p, const struct enc_opts *o,
                  struct err *err)
{
    struct enc_info *i = &e->info;
    i->pool = o->pool ? o->pool : p->pool ? p->pool : ENC_POOL_MEAN;
    i->normalize = p->normalize;
    i->batch_tokens = BATCH_TOKENS;
    if (p->ctx_max && p->ctx_max < i->ctx_max) i->ctx_max = p->ctx_max;
    if (o->ctx_max && o->ctx_max < i->ctx_max) i->ctx_max = o->ctx_max;
    if (!e->bert && i->pool == ENC_POOL_CLS)
        return err_set(err, -ENOTSUP,
                       "a causal model's first token knows nothing of the text: "
                       "pooling \"cls\" is not supported");
    if (i->scores && o->pool)
        return err_set(err, -ENOTSUP, "a cross-encoder gives scores: its pooling is its own");
    if (i->scores && !tok_pair_frame(e->tok))
        return err_set(err, -ENOTSUP,
                       "tokenizer.json: how two texts become a pair is not supported, or not said");
    if (tok_n_vocab(e->tok) > i->V)
        return err_set(err, -EBADMSG, "the tokenizer has %zu tokens, the model %u",
                       tok_n_vocab(e->tok), i->V);
    return 0;
}

int enc_open(const char *path, const struct enc_opts *o, struct enc **ret, struct err *err)
{
    struct enc_pooling p = {0};
    struct enc_cfg cfg;
    struct enc *e = mem_zalloc(sizeof *e);
    if (!e) return err_set(err, -ENOMEM, "out of memory");
    const bool folder = is_folder(path);
    int r = folder ? enc_read_config(path, &cfg, err) : 0;
    if (r >= 0) r = r ? open_bert(e, path, &cfg, o, err) : open_causal(e, path, o, err);
    if (r >= 0 && e->info.scores)
        r = enc_read_scoring(path, &p, err);
    else if (r >= 0 && folder)
        r = enc_read_pooling(path, e->info.D, &p, err);
    if (r >= 0 && e->info.scores) p.pool = cfg.head_pool;
    if (r >= 0) r = e->model ? tok_open(e->model, &e->tok, err) : tok_open_path(path, &e->tok, err);
    if (r >= 0) r = settle(e, &p, o, err);
    if (r < 0) {
        enc_close(e);
        return r;
    }
    *ret = e;
    return 0;
}

void enc_close(struct enc *e)
{
    if (!e) return;
    tok_close(e->tok);
    enc_bert_close(e->bert);
    fus_core_destroy(e->core);
    model_close(e->model);
    mem_free(e);
}

const struct enc_info *enc_info(const struct enc *e)
{
    return &e->info;
}

struct tok *enc_tok(const struct enc *e)
{
    return e->tok;
}

const struct kn_dev *enc_dev(const struct enc *e)
{
    return e->bert ? enc_bert_dev(e->bert) : fus_core_dev(e->core);
}

/* ---- tokens ---- */

int enc_tokens(const struct enc *e, const char *text, size_t len, bool cut, struct tok_ids *out,
               size_t *ret_n)
{
    const struct tok_piece p = {text, len, false};
    const size_t from = out->n, most = e->info.ctx_max;
    int r = tok_encode(e->tok, &p, 1, TOK_BOS, out);
    if (r < 0) return r;
    size_t n = out->n - from;
    if (cut && n > most) { /* what stands behind the text stays */
        const size_t last = out->n - 1, tail = out->begin[last] == len && out->end[last] == len;
        if (tail) out->id[from + most - 1] = out->id[last];
        out->n = from + most;
        n = most;
    }
    *ret_n = n;
    return 0;
}

static int push_ids(struct buf *out, const int32_t *id, size_t n)
{
    return buf_add(out, id, n * sizeof *id);
}

int enc_pair(const struct enc *e, const struct enc_pair *p, struct buf *out,
             struct enc_pair_size *ret)
{
    const struct tok_frame *f = tok_pair_frame(e->tok);
    const struct tok_piece query = {p->query, p->query_len, false},
                           doc = {p->doc, p->doc_len, false};
    struct tok_ids q = {0}, d = {0};
    int r = tok_encode(e->tok, &query, 1, 0, &q);
    if (r == 0) r = tok_encode(e->tok, &doc, 1, 0, &d);
    const size_t before = f->part[0].n + q.n + f->part[1].n, rest = before + f->part[2].n;
    size_t keep = p->doc_max && p->doc_max < d.n ? p->doc_max : d.n;
    if (p->cut && rest + keep > e->info.ctx_max)
        keep = rest < e->info.ctx_max ? e->info.ctx_max - rest : 0;
    if (r == 0 && rest + keep > UINT32_MAX) r = -ERANGE;
    if (r == 0) {
        *ret = (struct enc_pair_size){.n = (uint32_t)(rest + keep),
                                      .second = e->typed && f->typed ? (uint32_t)before : 0,
                                      .n_doc = (uint32_t)d.n,
                                      .n_kept = (uint32_t)keep};
        (void)push_ids(out, f->part[0].id, f->part[0].n);
        (void)push_ids(out, q.id, q.n);
        (void)push_ids(out, f->part[1].id, f->part[1].n);
        (void)push_ids(out, d.id, keep);
        (void)push_ids(out, f->part[2].id, f->part[2].n);
        r = buf_status(out);
    }
    tok_ids_fini(&q);
    tok_ids_fini(&d);
    return r;
}

/* ---- running ---- */

void enc_pool_rows(const float *rows, size_t n, size_t D, enum enc_pool pool, float *out)
{
    const size_t from = pool == ENC_POOL_LAST ? n - 1 : 0, to = pool == ENC_POOL_CLS ? 1 : n;
    memcpy(out, rows + from * D, D * sizeof *out);
    for (size_t i = from + 1; i < to; i++)
        for (size_t d = 0; d < D; d++)
            out[d] += rows[i * D + d];
    for (size_t d = 0; d < D && to - from > 1; d++)
        out[d] /= (float)(to - from);
}

static void normalise(float *v, size_t n)
{
    double square = 0;
    for (size_t i = 0; i < n; i++)
        square += (double)v[i] * (double)v[i];
    const double length = fmax(sqrt(square), 1e-12);
    for (size_t i = 0; i < n; i++)
        v[i] = (float)((double)v[i] / length);
}

void enc_shorten(const struct enc *e, float *vec, unsigned n)
{
    if (e->info.normalize && n < e->info.D) normalise(vec, n);
}

static int run_causal(struct enc *e, const struct enc_text *t, const atomic_bool *cancel)
{
    const struct fus_plan p = {.tok = t->tok,
                               .n_tok = t->n,
                               .strategy = POL_FULL,
                               .hidden = true,
                               .logits_from = e->info.pool == ENC_POOL_LAST ? t->n - 1 : 0,
                               .cancel = cancel};
    struct fus_session *s = NULL;
    struct fus_prefill *f = NULL;
    size_t rows;
    int r = fus_session_create(e->core, t->n, &s);
    if (r == 0) r = fus_prefill_begin(s, &p, &f);
    if (r == 0) r = fus_prefill_steps(f);
    if (r == 0) {
        const float *h = fus_prefill_logits(f, &rows);
        enc_pool_rows(h, rows, e->info.D, e->info.pool, t->vec);
    }
    if (f) fus_prefill_end(f);
    fus_session_destroy(s);
    return r;
}

int enc_run(struct enc *e, const struct enc_text *text, size_t n, const atomic_bool *cancel)
{
    int r = 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i].n == 0 || text[i].n > e->info.ctx_max) return -EINVAL;
        for (uint32_t k = 0; k < text[i].n; k++)
            if (text[i].tok[k] < 0 || (unsigned)text[i].tok[k] >= e->info.V) return -EINVAL;
    }
    if (n && e->bert) r = enc_bert_run(e->bert, text, n, e->info.pool, cancel);
    for (size_t i = 0; r == 0 && !e->bert && i < n; i++)
        r = run_causal(e, &text[i], cancel);
    for (size_t i = 0; r == 0 && e->info.normalize && i < n; i++)
        normalise(text[i].vec, e->info.D);
    return r;
}
