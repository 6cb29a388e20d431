/* plan: the requests that a strategy makes of one request, and what it makes of their answers.
 *
 * Texts only: no calls, no state of a request. A plan borrows the scan and its body. Sub-requests
 * are the client's with other messages: whatever it sets for the model's sake (sampling, seeds,
 * extensions of its backend) goes along; what shapes the answer (streaming, choices, tools, logits,
 * formats) does not. The reduce request is the client's own body with summaries where chunks stood,
 * edited in place. Thread: any; pure. */
#ifndef GATEWAY_REQUEST_PLAN_H
#define GATEWAY_REQUEST_PLAN_H

#include "base/buf.h"
#include "gateway/request/scan.h"
#include "gateway/request/usage.h"

#include <stdbool.h>
#include <stddef.h>

enum { GW_PLAN_CHUNKS_MAX = 256 };
struct gw_prompts {     /* "{question}" and "{text}" are filled in; NULL: ours */
    const char *map;    /* asks for the summary of one chunk */
    const char *reduce; /* stands for a chunk in the last request */
    const char *rerank; /* behind the question: how to score */
    unsigned map_tokens;
};
struct gw_plan;
/* -EBADMSG: not a request that can be answered so, with a sentence in ret_why. */
int gw_plan_create(const struct gw_scan *s, enum gw_strategy kind, const struct gw_prompts *p,
                   struct gw_plan **ret, const char **ret_why);
void gw_plan_free(struct gw_plan *p);
size_t gw_plan_count(const struct gw_plan *p); /* chunks: the calls to be made */
/* Bytes of one call beside its chunk's, about; of all chunks. -ENOMEM. */
int gw_plan_bytes(const struct gw_plan *p, size_t *ret_call, size_t *ret_chunks);
bool gw_plan_wants_usage(const struct gw_plan *p); /* stream_options.include_usage */
/* The body of call i: a summary of chunk i, or an answer from it with a score. */
int gw_plan_call(const struct gw_plan *p, size_t i, struct buf *out);
/* The client's body with the summaries in place of the chunks; data NULL: nothing stands there. */
int gw_plan_reduce(const struct gw_plan *p, const struct buf *summary, struct buf *out);
/* The client's body as it came, but for the strategy, which a worker would not know. */
int gw_plan_plain(const struct gw_scan *s, struct buf *out);

struct json_t;
int gw_plan_dump(const struct json_t *o, struct buf *out); /* as compact JSON */
/* The text of an answer's first choice appended. -EBADMSG: there is none. */
int gw_plan_answer(const char *json, size_t len, struct buf *out);
/* "…\nScore: 85" → 85; *len without it. Anything else is 0 and left alone. */
unsigned gw_plan_score(const char *text, size_t *len);
/* An answer or a frame of one, its usage raised by `more` and a report added as "kvblend". */
int gw_plan_add_report(const char *json, size_t len, const struct gw_usage *more,
                       const char *report, struct buf *out);
/* The chosen answer without its score, whole or as a stream's events (with [DONE]). */
int gw_plan_choice(const char *json, size_t len, const struct gw_usage *more, const char *report,
                   bool stream, bool usage, struct buf *out);

#endif
