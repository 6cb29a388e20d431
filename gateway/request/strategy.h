/* strategy: requests that are answered by several: MapReduce and MapRerank over any backend.
 *
 * The baselines of the CacheBlend paper (arXiv 2405.16444, 7.1): MapReduce summarises every chunk
 * by itself and answers from the summaries; MapRerank answers from every chunk by itself and keeps
 * the answer that its own score calls best. Asked for by `kvblend.strategy` = "map_reduce" |
 * "map_rerank" of the body or by the header X-KVBlend-Strategy. plan.h makes the texts, ask.h the
 * calls. A call that fails is made once more, then left out and said in the report.
 * Thread: the request's lane. */
#ifndef GATEWAY_REQUEST_STRATEGY_H
#define GATEWAY_REQUEST_STRATEGY_H

#include <stdbool.h>
#include <stddef.h>

struct buf;
struct gw_req;
struct gw_usage;
struct gw_strategy_job; /* q->strategy */
/* Called when the request has its turn, after gw_scan_chunks(). True: the strategy has taken it
 * over; it answers, or calls gw_relay_send() with a body of its own. False: nothing of it was asked
 * for, or no chunks found. */
bool gw_strategy_begin(struct gw_req *q);
void gw_strategy_close(struct gw_req *q); /* at any stage; harmless when none runs */
/* The last call's answer, or whole events of its stream, as the client is to see them: with the
 * usage of all calls and the report. False: as they are. */
bool gw_strategy_answer(struct gw_req *q, const char *json, size_t len, struct buf *ret);
bool gw_strategy_events(struct gw_req *q, const char *data, size_t len, struct buf *ret);
/* Tokens of all calls so far but the last one, whose usage is q->usage; what runs is estimated. */
void gw_strategy_spent(const struct gw_req *q, struct gw_usage *ret);

#endif
