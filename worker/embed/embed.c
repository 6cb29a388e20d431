/* POST /v1/embeddings: a helper parses and tokenises, the embedder computes, a helper writes the
 * reply; the loop hands the request from one to the next. A client may leave at any stage. */
#include "worker/admin/metrics.h"
#include "worker/api/api_embed.h"
#include "worker/call.h"
#include "worker/embed/embed.h"
#include "worker/worker.h"

#include <string.h>

struct embed {
    struct wk_task t; /* first */
    struct api_embed req;
    struct tok_ids ids; /* of all texts, one behind the other */
    struct enc_text *text;
    float *vec; /* [n, D] */
    struct wk_embed_job job;
    struct wk_msg msg; /* the embedder's to the loop */
    uint64_t n_tokens;
};

static struct embed *of_task(struct wk_task *t)
{
    return (struct embed *)(void *)t;
}

/* ---- helper: the body becomes tokens ---- */

static int too_long(struct embed *b, size_t i, size_t n)
{
    return api_err_set(&b->t.e, API_CONTEXT_EXCEEDED, "input",
                       "Invalid 'input[%zu]': it has %zu tokens, this model takes %u at most. Send "
                       "less, or 'truncate': true.",
                       i, n, b->t.w->ctx_max);
}

/* Tokens of input i; a list of ids is taken as it is. Where they stand of a text is known once
 * those of all texts do: until then their offset is in `at`. */
static int tokens_of(struct embed *b, const struct enc *enc, size_t i, size_t *at)
{
    const struct api_input *in = &b->req.input[i];
    const size_t most = b->t.w->ctx_max;
    size_t n = in->n_ids;

    *at = b->ids.n;
    if (in->text) {
        int rc = enc_tokens(enc, in->text, in->len, b->req.cut, &b->ids, &n);
        if (rc < 0) return rc;
    }
    if (n > most && !b->req.cut) return too_long(b, i, n);
    if (n > most) n = most;
    if (n == 0)
        return api_err_set(&b->t.e, API_INVALID_VALUE, "input",
                           "Invalid 'input[%zu]': the text has no token.", i);
    b->text[i] = (struct enc_text){in->id, (uint32_t)n, b->vec + i * enc_info(enc)->D};
    b->n_tokens += n;
    if (b->n_tokens <= API_INPUT_TOKENS_MAX) return 0;
    return api_err_set(&b->t.e, API_ARRAY_TOO_LONG, "input",
                       "Invalid 'input[%zu]': the inputs up to this one have more than %d tokens "
                       "together.",
                       i, API_INPUT_TOKENS_MAX);
}

static int prepare(struct wk_task *t)
{
    struct embed *b = of_task(t);
    struct worker *w = t->w;
    const struct enc *enc = wk_embedder_enc(w->embedder);
    const struct enc_info *info = enc_info(enc);
    struct api_embed *r = &b->req;
    int rc = api_embed_parse(t->body, t->body_len, info->V, info->D, r, &t->e);

    if (rc < 0) return rc;
    if (!wk_serves_model(w, r->model))
        return api_err_set(&t->e, API_MODEL_NOT_FOUND, "model",
                           "The model '%.100s' does not exist.", r->model);
    size_t *at = arena_alloc(&r->arena, r->n * sizeof *at);
    b->text = arena_alloc(&r->arena, r->n * sizeof *b->text);
    b->vec = mem_alloc(r->n * info->D * sizeof *b->vec);
    if (!at || !b->text || !b->vec) return -ENOMEM;
    for (size_t i = 0; rc >= 0 && i < r->n; i++)
        rc = tokens_of(b, enc, i, &at[i]);
    for (size_t i = 0; rc >= 0 && i < r->n; i++)
        if (!b->text[i].tok) b->text[i].tok = b->ids.id + at[i];
    return rc;
}

/* ---- helper: vectors become the reply ---- */

static int write_reply(struct wk_task *t)
{
    struct embed *b = of_task(t);
    const struct enc *enc = wk_embedder_enc(t->w->embedder);
    const unsigned D = enc_info(enc)->D, dims = b->req.dimensions ? b->req.dimensions : D;
    const struct api_vectors v = {.vec = b->vec,
                                  .n = b->req.n,
                                  .stride = D,
                                  .dimensions = dims,
                                  .base64 = b->req.base64,
                                  .model = t->w->model_name,
                                  .n_tokens = b->n_tokens};

    for (size_t i = 0; i < b->req.n; i++)
        enc_shorten(enc, b->text[i].vec, dims);
    api_put_vectors(&t->out, &v);
    return buf_status(&t->out);
}

/* ---- loop ---- */

/* The client's answer, from here: the task is over. */
static void give_up(struct wk_task *t, enum api_fault f, const char *why)
{
    struct wk_call *c = t->call;

    if (c) {
        c->on_close = NULL;
        wk_refuse(c, f, NULL, "%s", why);
    }
    wk_task_free(t);
}

static void answer(struct wk_task *t)
{
    struct wk_call *c = t->call;

    c->usage.prompt = of_task(t)->n_tokens;
    c->queue_ms = of_task(t)->job.queue_ms;
    c->on_close = NULL;
    wk_reply_buf(c, 200, &t->out);
    wk_task_free(t);
}

static void computed(struct wk_msg *m)
{
    struct embed *b = (struct embed *)(void *)((char *)m - offsetof(struct embed, msg));
    struct wk_task *t = &b->t;
    const int status = b->job.status;

    if (!t->call) {
        wk_task_free(t);
    } else if (status == -EIO) {
        give_up(t, API_DEVICE_LOST, "The GPU has failed; this worker ends, to be started anew.");
    } else if (status == -ECANCELED) {
        give_up(t, API_DRAINING, "This worker is shutting down.");
    } else if (status < 0) {
        give_up(t, API_INTERNAL_ERROR,
                status == -ENOMEM ? "Out of memory." : "The vectors could not be computed.");
    } else {
        wk_metric_observe(WK_QUEUE, b->job.queue_ms / 1e3);
        t->work.run = write_reply;
        t->work.then = answer;
        wk_task_submit(t);
    }
}

static void job_done(struct wk_embed_job *j, int status)
{
    struct embed *b = (struct embed *)(void *)((char *)j - offsetof(struct embed, job));

    wk_post(b->t.w, &b->msg);
}

static void compute(struct wk_task *t)
{
    struct embed *b = of_task(t);

    b->msg.fn = computed;
    b->job =
        (struct wk_embed_job){.text = b->text, .n = b->req.n, .gone = &t->gone, .done = job_done};
    if (wk_embedder_submit(t->w->embedder, &b->job) < 0)
        give_up(t, API_QUEUE_FULL, "This worker is busy. Please try again shortly.");
}

static void embed_fini(struct wk_task *t)
{
    struct embed *b = of_task(t);

    wk_unpost(t->w, &b->msg);
    api_embed_fini(&b->req);
    tok_ids_fini(&b->ids);
    mem_free(b->vec);
}

void wk_embed_post(struct worker *w, struct wk_call *c, const char *rest)
{
    wk_task_start(
        c, &(struct wk_work){
               .bytes = sizeof(struct embed), .run = prepare, .then = compute, .fini = embed_fini});
}
