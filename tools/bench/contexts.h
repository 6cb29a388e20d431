/* contexts: records of chunks that are built behind other chunks of their collection.
 *
 * Such a record is the mean over several encodings of the chunk, each behind another context: K
 * before RoPE and V, layer by layer (blending.md 7.4). It has the key of the chunk's record behind
 * the sink and is stored in its place. Thread: main. */
#ifndef TOOLS_BENCH_CONTEXTS_H
#define TOOLS_BENCH_CONTEXTS_H

#include "tools/bench/bench.h"

/* Builds the chunk behind the sink and each of the contexts and stores the mean, unless it is
 * there. An empty context is the encoding behind the sink alone. */
int contexts_build(struct bench *b, struct bench_text chunk, const struct bench_text *context,
                   size_t n);

#endif
