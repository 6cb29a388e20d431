/* /v1/rerank and /v1/score of a cross-encoder: pairs to tokens, scores to the reply. Nothing is
 * kept of a document: every token of it has seen the query. */
#include "base/clock.h"
#include "base/mem.h"
#include "worker/admin/metrics.h"
#include "worker/api/api_rank.h"
#include "worker/embed/embed.h"
#include "worker/worker.h"

#include <string.h>

struct score {
    struct wk_encoding x; /* first */
    struct api_rank q;
    bool is_score; /* not a rerank */
    char id[WK_REPLY_ID_BYTES];
    int64_t created;
    struct buf ids; /* of all pairs, one behind the other */
    float *value;   /* [n] */
    bool *cut;      /* [n] its document */
};

static struct score *of_task(struct wk_task *t)
{
    return (struct score *)(void *)t;
}

/* ---- helper: scores become the reply ---- */

static void put_report(const struct score *s, struct buf *out)
{
    const struct wk_encoding *x = &s->x;

    buf_addf(out,
             ",\"kvblend\":{\"order\":\"%s\",\"strategy\":\"full\",\"tokens\":{\"prefix\":0,"
             "\"reused\":0,\"recomputed\":0,\"computed\":%llu},\"queue_ms\":%.3f",
             api_order_name(API_QUERY_FIRST), (unsigned long long)x->n_tokens, x->job.queue_ms);
    if (s->q.r.kv.explain) buf_adds(out, ",\"documents\":[");
    for (size_t i = 0; s->q.r.kv.explain && i < x->n; i++)
        buf_addf(out,
                 "%s{\"tokens\":%u,\"prefix\":0,\"reused\":0,\"recomputed\":0,\"computed\":%u,"
                 "\"source\":\"computed\",\"truncated\":%s}",
                 i ? "," : "", x->text[i].n, x->text[i].n, s->cut[i] ? "true" : "false");
    buf_adds(out, s->q.r.kv.explain ? "]}" : "}");
}

static int write_reply(struct wk_task *t)
{
    struct score *s = of_task(t);
    const struct api_rank_head h = {s->id, t->w->model_name, s->created};
    const struct api_usage u = {.prompt = s->x.n_tokens, .computed = s->x.n_tokens};
    struct buf extra = BUF_INIT;
    double *value = mem_alloc(s->x.n * sizeof *value);
    int rc = value ? 0 : -ENOMEM;

    for (size_t i = 0; value && i < s->x.n; i++)
        value[i] = (double)s->value[i];
    put_report(s, &extra);
    if (rc >= 0) rc = api_put_rank(&t->out, &s->q, &h, value, &u, &extra);
    wk_metric_add(WK_SCORED, (int64_t)s->x.n);
    buf_fini(&extra);
    mem_free(value);
    return rc;
}

/* ---- helper: the body becomes tokens ---- */

/* What changes the scores of other rerankers and not of this one. */
static int refuse_fields(struct score *s)
{
    struct api_err *e = &s->x.t.e;

    if (s->q.instruction.text)
        return api_err_set(e, API_UNSUPPORTED_PARAMETER, "instruction",
                           "Unsupported parameter: 'instruction' is not supported with this model, "
                           "a cross-encoder.");
    if (s->q.r.kv.order == API_DOCUMENT_FIRST)
        return api_err_set(e, API_INVALID_VALUE, "kvblend.order",
                           "Invalid 'kvblend.order': this model's prompt is %s.",
                           api_order_name(API_QUERY_FIRST));
    return 0;
}

static int check_length(struct score *s, size_t i, const struct enc_pair_size *z)
{
    const unsigned most = s->x.t.w->ctx_max;
    const uint32_t n_rest = z->n - z->n_kept;

    if (z->n <= most) return 0;
    if (n_rest >= most)
        return api_err_set(&s->x.t.e, API_CONTEXT_EXCEEDED, s->q.query_field,
                           "This model's maximum context length is %u tokens. The query takes %u "
                           "of them, without a document.",
                           most, n_rest);
    return api_err_set(&s->x.t.e, API_CONTEXT_EXCEEDED, s->q.doc_field,
                       "'%s[%zu]' has %u tokens; this model's context of %u leaves %u for it. "
                       "'truncation' or 'max_tokens_per_doc' has it cut.",
                       s->q.doc_field, i, z->n_doc, most, most - n_rest);
}

/* Where the tokens stand is known once those of all pairs do. */
static int tokens_of(struct score *s, size_t i)
{
    const struct enc_pair p = {.query = s->q.query[i].text,
                               .doc = s->q.doc[i].text,
                               .query_len = s->q.query[i].len,
                               .doc_len = s->q.doc[i].len,
                               .doc_max = (uint32_t)s->q.doc_tokens_max,
                               .cut = s->q.truncate};
    struct enc_pair_size z;
    int rc = enc_pair(wk_embedder_enc(s->x.t.w->embedder), &p, &s->ids, &z);

    if (rc >= 0) rc = check_length(s, i, &z);
    if (rc < 0) return rc;
    s->x.text[i] = (struct enc_text){.n = z.n, .vec = &s->value[i], .second = z.second};
    s->cut[i] = z.n_kept < z.n_doc;
    s->x.n_tokens += z.n;
    if (s->x.n_tokens <= API_PAIRS_TOKENS_MAX) return 0;
    return api_err_set(&s->x.t.e, API_ARRAY_TOO_LONG, s->q.doc_field,
                       "Invalid '%s': the pairs up to number %zu have %llu tokens, and all may "
                       "have %d; rank fewer at a time.",
                       s->q.doc_field, i, (unsigned long long)s->x.n_tokens, API_PAIRS_TOKENS_MAX);
}

static int prepare(struct wk_task *t)
{
    struct score *s = of_task(t);
    struct wk_encoding *x = &s->x;
    int rc = api_rank_parse(t->body, t->body_len, s->is_score, &s->q, &t->e);

    if (rc < 0) return rc;
    if (!wk_serves_model(t->w, s->q.r.model))
        return api_err_set(&t->e, API_MODEL_NOT_FOUND, "model",
                           "The model '%.100s' does not exist; this worker serves '%.100s'.",
                           s->q.r.model, t->w->model_name);
    if ((rc = refuse_fields(s)) < 0) return rc;
    x->n = s->q.n;
    x->write = write_reply;
    x->text = arena_alloc(&s->q.r.arena, x->n * sizeof *x->text);
    s->value = arena_alloc(&s->q.r.arena, x->n * sizeof *s->value);
    s->cut = arena_alloc(&s->q.r.arena, x->n * sizeof *s->cut);
    if (!x->text || !s->value || !s->cut) return -ENOMEM;
    for (size_t i = 0; rc >= 0 && i < x->n; i++)
        rc = atomic_load(&t->gone) ? -ECANCELED : tokens_of(s, i);
    const int32_t *at = (const int32_t *)(const void *)s->ids.data;
    for (size_t i = 0; rc >= 0 && i < x->n; at += x->text[i++].n)
        x->text[i].tok = at;
    return rc;
}

/* ---- loop ---- */

static void prepared(struct wk_task *t)
{
    t->call->n_chunks = (unsigned)of_task(t)->x.n;
    wk_encoding_compute(t);
}

static void score_fini(struct wk_task *t)
{
    struct score *s = of_task(t);

    wk_encoding_fini(&s->x);
    api_rank_fini(&s->q);
    buf_fini(&s->ids);
}

void wk_score_post(struct worker *w, struct wk_call *c, const char *rest)
{
    struct score *s = (struct score *)(void *)wk_task_create(
        c, &(struct wk_work){
               .bytes = sizeof *s, .run = prepare, .then = prepared, .fini = score_fini});

    if (!s) return;
    s->is_score = strcmp(c->route, "score") == 0;
    s->created = (int64_t)clock_wall_s();
    wk_reply_id(c->route, s->id);
    arena_init(&s->q.r.arena);
    wk_task_submit(&s->x.t);
}
