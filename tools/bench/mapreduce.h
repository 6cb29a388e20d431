/* mapreduce: the two baselines of the CacheBlend paper that ask a model about each chunk by itself,
 * run in this process: map_reduce answers from summaries of the chunks, map_rerank keeps the answer
 * of the chunk that scores itself highest. `throughput` makes the same calls over HTTP.
 *
 * Calls run one after another, each a full prefill; what they take is summed up. Thread: main. */
#ifndef TOOLS_BENCH_MAPREDUCE_H
#define TOOLS_BENCH_MAPREDUCE_H

#include "tools/bench/judge.h"

/* The prompts, for both. */
#define MAP_PROMPT /* question, chunk */                                                           \
    "Below are a question and one text of several that may help to answer it.\n\nQuestion:\n"      \
    "%s\n\nText:\n%s\n\nSummarise what the text says that helps to answer the question. "          \
    "Use only what the text says, and keep names, numbers and dates. If nothing in it helps, "     \
    "write: Nothing relevant."
#define MAP_SUMMARY "Summary of a text:\n%s" /* what stands for a chunk in map_reduce's last call */
#define MAP_SCORE                            /* behind the question of map_rerank */               \
    "\n\nUse only the text given above. After your answer add one more line, \"Score: N\", where " \
    "N "                                                                                           \
    "is a whole number from 0 to 100: how completely and certainly the text above answers this. "  \
    "If it does not answer it, N is 0."
enum { MAP_SCORE_TOKENS = 16 }; /* chosen: room for the score behind an answer */

enum map_kind map_kind_of(const char *name); /* MAP_NONE: it is none of them */

/* Answer the line. -ENODATA: it has no chunks, or no answer to compare with. */
int map_run(const struct judge *j, enum map_kind k, const struct judge_line *l, unsigned map_tokens,
            struct verdict *ret);
/* The N of a last line "Score: N" in 0…100, which is cut off; 0 without one. */
unsigned map_take_score(char *text);

#endif
