/* mapreduce: the two baselines of the CacheBlend paper that ask a model about each chunk by itself,
 * run in this process: map_reduce answers from summaries of the chunks, map_rerank keeps the answer
 * of the chunk that scores itself highest.
 *
 * Calls run one after another, each a full prefill; what they take is summed up. Thread: main. */
#ifndef TOOLS_BENCH_MAPREDUCE_H
#define TOOLS_BENCH_MAPREDUCE_H

#include "tools/bench/judge.h"

enum map_kind { MAP_NONE, MAP_REDUCE, MAP_RERANK, MAP_KINDS };
const char *map_name(enum map_kind k);
/* Cuts the names of these methods out of a list with commas; what was cut, as bits of 1 << kind. */
unsigned map_take_names(char *list);

/* Answer the line. -ENODATA: it has no chunks, or no answer to compare with. */
int map_run(const struct judge *j, enum map_kind k, const struct judge_line *l, unsigned map_tokens,
            struct verdict *ret);
/* The N of a last line "Score: N" in 0…100, which is cut off; 0 without one. */
unsigned map_take_score(char *text);

#endif
