/* rerank: /v1/rerank and /v1/score (rerank.c), and how a model is asked whether a document answers
 * a query (reranker.c).
 *
 * A prompt by a template, and two tokens ("yes", "no") whose logits behind it are the score:
 * softmax of the two. wk_reranker_open() finds template and tokens for both orders of document and
 * query → wk_reranker_settle() says of a request which of them is meant → wk_reranker_prompt() for
 * each of its pairs. What stands in front of the second of the two is cut into blocks of an exact
 * prefix: with the document first that is all but the question. Thread: open: loader; what routes
 * start: loop; the rest any. */
#ifndef WORKER_REQUEST_RERANK_H
#define WORKER_REQUEST_RERANK_H

#include "base/err.h"
#include "worker/api/api_rank.h"
#include "worker/reuse/prompt.h"

struct wk_call;
struct worker;
struct wk_reranker;
void wk_rank_post(struct worker *w, struct wk_call *c, const char *rest);
void wk_ranks_abort(struct worker *w); /* the end of the drain's patience */

/* After the tokenizer and the chat template. A model that cannot rerank is no failure (requests are
 * told why), what an operator has asked for and cannot be had is: -EINVAL. */
int wk_reranker_open(struct worker *w, struct err *err);
void wk_reranker_close(struct worker *w);
bool wk_reranker_can(const struct worker *w);
bool wk_reranker_is_meant(const struct worker *w); /* the model was made for nothing else */

/* The order that is meant, into q->r.kv.order; and strategies that make no difference to it become
 * prefix. -EINVAL with e: this model cannot rerank, or not in that order. */
int wk_reranker_settle(const struct worker *w, struct api_rank *q, struct api_err *e);
/* Pair i as a prompt, its tokens without their places; wk_prompt_fini() also after a failure.
 * *ret_cut: its document was too long, and the request has it cut then. -EINVAL with e: it does not
 * fit; -ENOMEM. */
int wk_reranker_prompt(const struct worker *w, const struct api_rank *q, size_t i,
                       struct wk_prompt *out, bool *ret_cut, struct api_err *e);
/* The chance of "yes" of the two, by the logits [V] behind the prompt; NAN: they are no numbers. */
double wk_reranker_score(const struct worker *w, enum api_order order, const float *logits);

#endif
