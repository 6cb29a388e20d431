/* usage: the token counts that a worker reports in its answer, read in passing.
 *
 * Works on bytes that are relayed as they are: a whole JSON answer, or whole events of a stream, in
 * which the last usage object counts. Knows OpenAI's names and those of /v1/responses and
 * /v1/messages. Nothing that a worker sends makes it fail: what is no usage is not seen. Counts
 * above GW_USAGE_MAX are cut there. Thread: any. */
#ifndef GATEWAY_REQUEST_USAGE_H
#define GATEWAY_REQUEST_USAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { GW_USAGE_MAX = 100000000 };
struct gw_usage { /* zeroed before */
    bool known, has_cached;
    uint64_t prompt, completion, cached; /* cached: part of prompt */
    uint64_t n_events;                   /* of a stream, without [DONE] */
};
/* The last object that is the value of a "usage", at whatever depth. */
void gw_usage_answer(struct gw_usage *u, const char *json, size_t len);
void gw_usage_events(struct gw_usage *u, const char *data, size_t len);

/* What whole events of a stream bring. An opening holds no token: its chunks have no choices, or
 * choices with a role and nothing else but empty values; progress is one that says how far the
 * prompt is (`prompt_progress`). Whatever is not known to be one counts as a token. */
enum gw_bring { GW_BRING_NOTHING, GW_BRING_OPENING, GW_BRING_PROGRESS, GW_BRING_TOKEN };
enum gw_bring gw_usage_bring(const char *data, size_t len);

/* What the request has cost an account: as reported, else the estimate of the prompt and a token
 * for each event, or for each four bytes of an answer that is no stream. */
uint64_t gw_usage_charge(const struct gw_usage *u, uint64_t prompt_estimate, bool stream,
                         uint64_t answer_bytes);
/* Tokens of a text of so many bytes of JSON. Chosen: four, as OpenAI's own rule of thumb has it;
 * the correction afterwards is what counts. */
uint64_t gw_usage_estimate(uint64_t body_bytes);

#endif
