/* Design: a template is text with three names in braces. A model's own one is known
 * (Qwen3-Reranker: the query first; its scores are defined by that prompt), or an operator gives
 * it; any other model is asked through its chat template, rendered once at the start with the names
 * still in it.
 *
 * Texts of clients are pieces in which no control token is looked for, so that a document cannot
 * end its own turn. */
#include "worker/request/rerank.h"

#include "segment/segment.h"
#include "worker/fleet/residency.h"
#include "worker/opts_table.h"
#include "worker/request/request.h"
#include "worker/worker.h"

#include <math.h>
#include <string.h>

enum { N_ORDERS = 2 };
struct form {   /* of one order */
    char *text; /* NULL: this worker has none */
    struct wk_template parts;
    int32_t yes, no;
};
struct wk_reranker {
    struct form form[N_ORDERS];
    enum api_order order; /* where a request leaves it open */
    const char *instruction;
    char why[240]; /* it cannot rerank; "" */
};

static const struct form *form_of(const struct wk_reranker *k, enum api_order order)
{
    return &k->form[order - API_DOCUMENT_FIRST];
}

/* ---- templates ---- */
#define QWEN3_TASK                                                                                 \
    "Judge whether the Document meets the requirements based on the Query and the Instruct "       \
    "provided. Note that the answer can only be \"yes\" or \"no\"."
#define QWEN3(fields)                                                                              \
    "<|im_start|>system\n" QWEN3_TASK "<|im_end|>\n<|im_start|>user\n" fields                      \
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"

struct family {
    const char *text[N_ORDERS], *instruction;
    enum api_order order; /* auto */
};
static const struct family qwen3 = {
    {QWEN3("<Document>: {document}\n<Instruct>: {instruction}\n<Query>: {query}"),
     QWEN3("<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}")},
    "Given a web search query, retrieve relevant passages that answer the query",
    API_QUERY_FIRST};
/* What a user says. The document stands between line breaks, as chunks of chats do. */
static const struct family generic = {
    {"Document:\n{document}\n\nQuery: {query}\n\n{instruction} Answer yes or no.",
     "{instruction} Answer yes or no.\n\nQuery: {query}\n\nDocument:\n{document}\n"},
    "Does the document answer the query?",
    API_DOCUMENT_FIRST};

static bool says_qwen3(const char *name)
{
    return strcasestr(name, "qwen3-reranker") || strcasestr(name, "qwen3 reranker");
}

static bool is_qwen3(const struct worker *w)
{
    return says_qwen3(w->model_base) || says_qwen3(model_config(w->model)->name) ||
           (w->chat && chat_says(w->chat, QWEN3_TASK));
}

/* NULL: the template refuses, and says why; or there is no memory. */
static char *through_chat(const struct worker *w, const char *user, struct err *err)
{
    json_t *vars = json_pack("{s:b}", "enable_thinking", 0);
    const struct chat_msg m = {.role = "user", .text = user, .len = strlen(user)};
    const struct chat_thread thread = {
        .msgs = &m, .n = 1, .add_generation_prompt = true, .vars = vars};
    struct chat_out out = {0};
    char *text = NULL;

    if (vars && chat_render(w->chat, w->tok, &thread, &out, err) == 0)
        text = mem_strndup(out.text.data, out.text.len);
    chat_out_fini(&out);
    json_decref(vars);
    return text;
}

/* ---- answers ---- */
/* The token that a word begins with behind the template's last text, if it is the whole word. */
static int find_token(const struct worker *w, const struct form *f, const char *word, size_t len,
                      int32_t *ret)
{
    const struct wk_template_part *last = &f->parts.part[f->parts.n - 1];
    const struct tok_piece pieces[] = {{last->text ? last->text : "", last->len, true},
                                       {word, len, false}};
    struct tok_ids before = {0}, all = {0};
    int rc = tok_encode(w->tok, pieces, 1, 0, &before);

    if (rc == 0) rc = tok_encode(w->tok, pieces, 2, 0, &all);
    if (rc == 0 && all.n != before.n + 1) rc = -EINVAL;
    if (rc == 0 && before.n && memcmp(all.id, before.id, before.n * sizeof *all.id) != 0)
        rc = -EINVAL;
    if (rc == 0) *ret = all.id[before.n];
    tok_ids_fini(&before);
    tok_ids_fini(&all);
    return rc;
}

static int find_answers(const struct worker *w, struct form *f, struct err *err)
{
    const char *yes = w->o.rerank_answers;
    const size_t n = strcspn(yes, " ");
    const char *no = yes + n + 1;
    int rc = find_token(w, f, yes, n, &f->yes);

    if (rc >= 0) rc = find_token(w, f, no, strlen(no), &f->no);
    if (rc == -EINVAL || (rc == 0 && f->yes == f->no))
        return err_set(err, -EINVAL, "'%.40s' are no two single tokens behind its prompt",
                       w->o.rerank_answers);
    return rc;
}

/* ---- life ---- */
/* Takes the text. */
static int set_form(struct worker *w, char *text, struct err *err)
{
    struct wk_template parts;

    if (!text) return err->code < 0 ? err->code : -ENOMEM;
    if (wk_parse_template(text, &parts) < 0) {
        mem_free(text);
        return err_set(err, -EINVAL, "its chat template changes what is asked");
    }
    struct form *f = &w->reranker->form[!parts.document_first];
    *f = (struct form){.text = text, .parts = parts};
    return find_answers(w, f, err);
}

static int set_forms(struct worker *w, struct err *err)
{
    struct wk_reranker *k = w->reranker;
    const struct family *family = is_qwen3(w) ? &qwen3 : &generic;
    int rc = 0;

    k->instruction = family->instruction;
    k->order = family->order;
    if (w->o.rerank_template) {
        rc = set_form(w, mem_strdup(w->o.rerank_template), err);
        k->order = k->form[0].text ? API_DOCUMENT_FIRST : API_QUERY_FIRST;
        return rc;
    }
    if (family == &generic && !w->chat)
        return err_set(err, -EINVAL, "it cannot chat (%.120s)", w->chat_error);
    for (int i = 0; rc >= 0 && i < N_ORDERS; i++) {
        const char *text = family->text[i];
        rc = set_form(w, family == &qwen3 ? mem_strdup(text) : through_chat(w, text, err), err);
    }
    return rc;
}

static int choose_order(struct worker *w, struct err *err)
{
    const char *asked = w->o.rerank_order;

    if (!api_order_parse(asked, &w->reranker->order)) return 0; /* auto */
    return form_of(w->reranker, w->reranker->order)->text
               ? 0
               : err_set(err, -EINVAL, "--rerank-order %s: --rerank-template is the other", asked);
}

int wk_reranker_open(struct worker *w, struct err *err)
{
    struct err why = {0};
    int rc;

    w->reranker = mem_zalloc(sizeof *w->reranker);
    if (!w->reranker) return err_set(err, -ENOMEM, "out of memory");
    rc = set_forms(w, &why);
    if (rc >= 0) rc = choose_order(w, &why);
    if (rc == -ENOMEM) return err_set(err, rc, "out of memory");
    if (rc < 0 && (w->o.rerank_template || strcmp(w->o.rerank_answers, "yes no") != 0))
        return err_set(err, rc, "this model cannot rerank: %.140s", why.msg);
    if (rc < 0) (void)snprintf(w->reranker->why, sizeof w->reranker->why, "%s", why.msg);
    return 0;
}

void wk_reranker_close(struct worker *w)
{
    for (int i = 0; w->reranker && i < N_ORDERS; i++)
        mem_free(w->reranker->form[i].text);
    mem_free(w->reranker);
    w->reranker = NULL;
}

bool wk_reranker_can(const struct worker *w)
{
    return !w->reranker->why[0];
}

bool wk_reranker_is_meant(const struct worker *w)
{
    return is_qwen3(w) && wk_reranker_can(w);
}

/* ---- a request ---- */
/* With the document first nothing of it needs a blend: its KV is exact wherever it is held. With
 * the query first a document's chunk may be blended, where that is asked for. */
int wk_reranker_settle(const struct worker *w, struct api_rank *q, struct api_err *e)
{
    const struct wk_reranker *k = w->reranker;
    struct api_settings *m = &q->r.kv;

    if (k->why[0])
        return api_err_set(e, API_UNSUPPORTED_PARAMETER, "model", "This model cannot rerank: %s.",
                           k->why);
    if (m->order == API_ORDER_OPEN) m->order = k->order;
    if (!form_of(k, m->order)->text)
        return api_err_set(e, API_INVALID_VALUE, "kvblend.order",
                           "Invalid 'kvblend.order': this worker's prompt is %s.",
                           api_order_name(k->order));
    if (m->strategy == POL_AUTO || (m->order == API_DOCUMENT_FIRST && m->strategy != POL_FULL))
        m->strategy = POL_PREFIX;
    if (!q->instruction.text)
        q->instruction = (struct api_text){k->instruction, strlen(k->instruction)};
    return 0;
}

struct making { /* the prompt of a pair */
    const struct worker *w;
    const struct api_rank *q;
    size_t i;
    struct api_text by[WK_PART_INSTRUCTION + 1]; /* texts of the parts, by what they are */
    struct buf text;
    size_t doc_begin, doc_end, query_begin; /* bytes of it */
    struct wk_prompt *p;
    struct api_err *e;
};

static int render(struct making *x)
{
    const struct wk_template *t = &form_of(x->w->reranker, x->q->r.kv.order)->parts;
    struct tok_piece piece[WK_TEMPLATE_PARTS_MAX];

    buf_clear(&x->text);
    for (size_t i = 0; i < t->n; i++) {
        const struct wk_template_part *p = &t->part[i];
        const bool own = p->what == WK_PART_TEXT;
        const struct api_text text = own ? (struct api_text){p->text, p->len} : x->by[p->what];
        if (p->what == WK_PART_QUERY) x->query_begin = x->text.len;
        if (p->what == WK_PART_DOCUMENT) x->doc_begin = x->text.len;
        buf_add(&x->text, text.text, text.len);
        if (p->what == WK_PART_DOCUMENT) x->doc_end = x->text.len;
        piece[i] = (struct tok_piece){NULL, text.len, own};
    }
    if (buf_status(&x->text) < 0) return -ENOMEM;
    const char *at = x->text.data;
    for (size_t i = 0; i < t->n; at += piece[i++].len)
        piece[i].text = at;
    tok_ids_fini(&x->p->ids);
    return tok_encode(x->w->tok, piece, t->n, 0, &x->p->ids);
}

/* Tokens of the document that the prompt may have; <0 with e. */
static int64_t room_of(const struct making *x, uint32_t n_doc)
{
    const struct api_rank *q = x->q;
    const unsigned ctx = x->w->ctx_max;
    const size_t n_rest = x->p->ids.n - n_doc;
    const int64_t room = (int64_t)ctx - 1 - (int64_t)n_rest; /* a token is drawn */
    const bool bounded = q->doc_tokens_max > 0 && q->doc_tokens_max <= room;

    if (room <= 0)
        return api_err_set(x->e, API_CONTEXT_EXCEEDED, q->query_field,
                           "This model's maximum context length is %u tokens. The query and what "
                           "is asked of it take %zu of them, without a document.",
                           ctx, n_rest);
    if (n_doc > room && !q->truncate && !bounded)
        return api_err_set(x->e, API_CONTEXT_EXCEEDED, q->doc_field,
                           "'%s[%zu]' has %u tokens; this model's context of %u leaves %lld for "
                           "it. 'truncation' or 'max_tokens_per_doc' has it cut.",
                           q->doc_field, x->i, n_doc, ctx, (long long)room);
    return bounded ? q->doc_tokens_max : room;
}

/* A shorter beginning, of whole characters: what the first n of the tokens from tok0 stand for. */
static void cut_document(struct making *x, uint32_t tok0, int64_t n)
{
    const char *text = x->by[WK_PART_DOCUMENT].text;
    size_t len = n > 0 ? x->p->ids.end[tok0 + (uint32_t)n - 1] - x->doc_begin : 0;

    while (len > 0 && ((unsigned char)text[len] & 0xC0) == 0x80)
        len--;
    x->by[WK_PART_DOCUMENT].len = len;
}

/* The beginning of a text may be other tokens than the text's first: cut until they are few. */
static int fit(struct making *x, bool *ret_cut)
{
    int64_t want = -1;

    for (;;) {
        uint32_t tok0;
        if (render(x) < 0) return api_no_memory(x->e);
        const uint32_t n = wk_map_range(&x->p->ids, x->doc_begin, x->doc_end, &tok0);
        const int64_t room = room_of(x, n);
        if (room < 0) return -EINVAL;
        if (n <= room) return 0;
        want = want < 0 ? room : want - (n - room);
        cut_document(x, tok0, want);
        *ret_cut = true;
    }
}

static uint32_t tokens_until(const struct tok_ids *ids, size_t end)
{
    uint32_t n = 0;

    while (n < ids->n && ids->end[n] <= end)
        n++;
    return n;
}

/* What stands in front of the document, or of the query, is the same for all pairs: a block of its
 * own, unless it or what follows is too short for a record. */
static int make_blocks(struct making *x)
{
    const char *ns = x->q->r.kv.ns;
    const bool doc_first = x->q->r.kv.order == API_DOCUMENT_FIRST;
    struct wk_prompt *p = x->p;
    const uint32_t head = tokens_until(&p->ids, doc_first ? x->doc_begin : x->query_begin);
    uint32_t until = tokens_until(&p->ids, doc_first ? x->doc_end : x->doc_begin);

    if (until >= p->n_tok) until = p->n_tok - 1; /* the last one is computed */
    p->block = mem_zalloc(2 * sizeof *p->block);
    if (!p->block) return -ENOMEM;
    if (head >= WK_CHUNK_TOKENS_MIN && until >= head + WK_CHUNK_TOKENS_MIN)
        wk_block_add(p, &x->w->ident, ns, head);
    if (until >= WK_CHUNK_TOKENS_MIN) wk_block_add(p, &x->w->ident, ns, until);
    return 0;
}

/* The document as a chunk, to be blended. */
static int make_cut(struct making *x)
{
    struct wk_prompt *p = x->p;
    uint32_t tok0;
    const uint32_t n = wk_map_range(&p->ids, x->doc_begin, x->doc_end, &tok0);

    if (pol_strategy_is_exact(x->q->r.kv.strategy) || n < WK_CHUNK_TOKENS_MIN) return 0;
    p->cut = mem_zalloc(sizeof *p->cut);
    if (!p->cut) return -ENOMEM;
    p->cut[p->n_cut++] =
        (struct wk_cut){.tok0 = tok0,
                        .n = n,
                        .detector = "documents",
                        .key = tier_key_chunk(&x->w->ident, x->q->r.kv.ns, p->tok + tok0, n)};
    return 0;
}

/* Gateways learn where the record of this document is. */
static void note(const struct making *x)
{
    const struct wk_prompt *p = x->p;
    const struct api_text *d = &x->q->doc[x->i];
    const struct wk_block *b = p->n_block ? &p->block[p->n_block - 1] : NULL;
    const char *ns = x->q->r.kv.ns;
    struct residency_chunk c = {.text_id = seg_ranked_id(ns, d->text, d->len)};

    if (!p->n_cut && !(b && x->q->r.kv.order == API_DOCUMENT_FIRST)) return;
    c.ns = record_ns_hash(ns);
    c.key = p->n_cut ? p->cut[0].key : b->key;
    c.n_tok = p->n_cut ? p->cut[0].n : b->n;
    residency_note(x->w->fleet.residency, &c);
}

/* A small body may have a thousand long prompts: once they are cut, only their tokens are read. */
static void forget_places(struct tok_ids *ids)
{
    mem_free(ids->begin);
    mem_free(ids->end);
    ids->begin = ids->end = NULL;
}

int wk_reranker_prompt(const struct worker *w, const struct api_rank *q, size_t i,
                       struct wk_prompt *out, bool *ret_cut, struct api_err *e)
{
    struct making x = {.w = w, .q = q, .i = i, .text = BUF_INIT, .p = out, .e = e};
    int rc;

    x.by[WK_PART_DOCUMENT] = q->doc[i];
    x.by[WK_PART_QUERY] = q->query[i];
    x.by[WK_PART_INSTRUCTION] = q->instruction;
    memset(out, 0, sizeof *out);
    arena_init(&out->names);
    *ret_cut = false;
    rc = fit(&x, ret_cut);
    out->tok = out->ids.id;
    out->n_tok = (uint32_t)out->ids.n;
    if (rc >= 0 && (make_blocks(&x) < 0 || make_cut(&x) < 0)) rc = api_no_memory(e);
    if (rc >= 0) note(&x);
    forget_places(&out->ids);
    buf_fini(&x.text);
    return rc;
}

double wk_reranker_score(const struct worker *w, enum api_order order, const float *logits)
{
    const struct form *f = form_of(w->reranker, order);

    return 1 / (1 + exp((double)logits[f->no] - (double)logits[f->yes]));
}
