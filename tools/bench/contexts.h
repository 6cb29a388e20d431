/* contexts: records of chunks that are built behind other chunks of their collection.
 *
 * Such a record is the mean over several encodings of the chunk, each behind another context: K
 * before RoPE and V, layer by layer (blending.md 7.4). It has the key of the chunk's record behind
 * the sink and is stored in its place. Thread: main. */
#ifndef TOOLS_BENCH_CONTEXTS_H
#define TOOLS_BENCH_CONTEXTS_H

#include "tools/bench/bench.h"

enum { CONTEXTS_MAX = 8 };
struct contexts {
    struct bench_text text[CONTEXTS_MAX]; /* what stands before the chunk, behind the sink */
    size_t n;
    bool isolated; /* the encoding behind the sink alone is one more */
};
/* Builds tok[0, n) behind them and stores it, unless it is there. */
int contexts_build(struct bench *b, const struct bench_text *chunk, const struct contexts *c);

#endif
