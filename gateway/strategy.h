/* strategy: requests that are answered by several: MapReduce and MapRerank over any backend.
 *
 * The baselines of the CacheBlend paper (arXiv 2405.16444, 7.1): MapReduce summarises every chunk
 * by itself and answers from the summaries; MapRerank answers from every chunk by itself and keeps
 * the answer that its own score calls best. Asked for by `kvblend.strategy` = "map_reduce" |
 * "map_rerank" of the body or by the header X-KVBlend-Strategy. Thread: the gate's loop. */
#ifndef GATEWAY_STRATEGY_H
#define GATEWAY_STRATEGY_H

#include <stdbool.h>

struct gw_req;
struct gw_strategy; /* state of one request: q->strategy */
/* Called when the request has its turn. True: the strategy has taken it over; it answers, or calls
 * gw_relay_send() with a body of its own. False: nothing of it was asked for, or no chunks found.
 */
bool gw_strategy_begin(struct gw_req *q);
void gw_strategy_close(struct gw_req *q); /* at any stage; harmless when none runs */

#endif
