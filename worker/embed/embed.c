/* POST /v1/embeddings: texts to tokens, vectors to the reply. */
#include "worker/api/api_embed.h"
#include "worker/embed/embed.h"
#include "worker/worker.h"

#include <string.h>

struct embed {
    struct wk_encoding x; /* first */
    struct api_embed req;
    struct tok_ids ids; /* of all texts, one behind the other */
    float *vec;         /* [n, D] */
};

static struct embed *of_task(struct wk_task *t)
{
    return (struct embed *)(void *)t;
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
                                  .n_tokens = b->x.n_tokens};

    for (size_t i = 0; i < b->req.n; i++)
        enc_shorten(enc, b->x.text[i].vec, dims);
    api_put_vectors(&t->out, &v);
    return buf_status(&t->out);
}

/* ---- helper: the body becomes tokens ---- */

static int too_long(struct embed *b, size_t i, size_t n)
{
    return api_err_set(&b->x.t.e, API_CONTEXT_EXCEEDED, "input",
                       "Invalid 'input[%zu]': it has %zu tokens, this model takes %u at most. Send "
                       "less, or 'truncate': true.",
                       i, n, b->x.t.w->ctx_max);
}

/* Tokens of input i; a list of ids is taken as it is. Where they stand of a text is known once
 * those of all texts do: until then their offset is in `at`. */
static int tokens_of(struct embed *b, const struct enc *enc, size_t i, size_t *at)
{
    const struct api_input *in = &b->req.input[i];
    const size_t most = b->x.t.w->ctx_max;
    size_t n = in->n_ids;

    *at = b->ids.n;
    if (in->text) {
        int rc = enc_tokens(enc, in->text, in->len, b->req.cut, &b->ids, &n);
        if (rc < 0) return rc;
    }
    if (n > most && !b->req.cut) return too_long(b, i, n);
    if (n > most) n = most;
    if (n == 0)
        return api_err_set(&b->x.t.e, API_INVALID_VALUE, "input",
                           "Invalid 'input[%zu]': the text has no token.", i);
    b->x.text[i] = (struct enc_text){in->id, (uint32_t)n, b->vec + i * enc_info(enc)->D};
    b->x.n_tokens += n;
    if (b->x.n_tokens <= API_INPUT_TOKENS_MAX) return 0;
    return api_err_set(&b->x.t.e, API_ARRAY_TOO_LONG, "input",
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
    b->x.text = arena_alloc(&r->arena, r->n * sizeof *b->x.text);
    b->vec = mem_alloc(r->n * info->D * sizeof *b->vec);
    if (!at || !b->x.text || !b->vec) return -ENOMEM;
    b->x.n = r->n;
    b->x.write = write_reply;
    for (size_t i = 0; rc >= 0 && i < r->n; i++)
        rc = tokens_of(b, enc, i, &at[i]);
    for (size_t i = 0; rc >= 0 && i < r->n; i++)
        if (!b->x.text[i].tok) b->x.text[i].tok = b->ids.id + at[i];
    return rc;
}

static void embed_fini(struct wk_task *t)
{
    struct embed *b = of_task(t);

    wk_encoding_fini(&b->x);
    api_embed_fini(&b->req);
    tok_ids_fini(&b->ids);
    mem_free(b->vec);
}

void wk_embed_post(struct worker *w, struct wk_call *c, const char *rest)
{
    wk_task_start(c, &(struct wk_work){.bytes = sizeof(struct embed),
                                       .run = prepare,
                                       .then = wk_encoding_compute,
                                       .fini = embed_fini});
}
