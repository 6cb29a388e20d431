/* api_rank: bodies of /v1/rerank (Cohere's and Jina's shape) and /v1/score (vLLM's), and replies.
 *
 * Both come to the same: pairs of a query and a document, each with a score. api_rank_parse() →
 * the scores → api_put_rank() → api_rank_fini(). Texts borrow from the body's JSON tree or the
 * arena. Pure. Thread: any. */
#ifndef WORKER_API_API_RANK_H
#define WORKER_API_API_RANK_H

#include "worker/api/api.h"
#include "worker/api/api_reply.h"

enum {
    API_PAIRS_MAX = 1000,           /* chosen: what Cohere advises; a prefill each */
    API_PAIRS_TOKENS_MAX = 4096000, /* chosen: of all prompts; of so many with documents of 4096 */
};

struct api_text {
    const char *text; /* NULL: not given */
    size_t len;
};
struct api_rank {
    struct api_req r; /* root, arena, model and kv; nothing else of it */
    bool score;       /* /v1/score: data in the order of the pairs, no text comes back */
    struct api_text *query, *doc; /* [n]; of one query all n are the same */
    size_t n, top_n;              /* top_n: 1 … n */
    struct api_text instruction;
    int32_t doc_tokens_max; /* longer documents are cut; 0: not given */
    bool truncate;          /* likewise where a prompt would exceed the context */
    bool return_documents;
    const char *query_field, *doc_field; /* as the client named them: "text_1", "text_2", … */
};
/* 0, -EINVAL with *e filled (it names the field), -ENOMEM (e: 500). api_rank_fini() also after a
 * failure. */
int api_rank_parse(const char *body, size_t len, bool score, struct api_rank *out,
                   struct api_err *e);
void api_rank_fini(struct api_rank *q);

/* The whole reply: of a rerank the top_n best, best first (of equal ones the earlier), of a score
 * all. score [n], 0 … 1. extra: complete `,"key":value` text. */
struct api_rank_head {
    const char *id, *model;
    int64_t created;
};
int api_put_rank(struct buf *out, const struct api_rank *q, const struct api_rank_head *h,
                 const double *score, const struct api_usage *u, const struct buf *extra);

#endif
