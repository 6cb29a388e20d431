/* contexts: records of chunks that are merged with encodings behind other chunks of their
 * collection, as the worker does (worker/reuse/merge.h). Thread: main. */
#ifndef TOOLS_BENCH_CONTEXTS_H
#define TOOLS_BENCH_CONTEXTS_H

#include "tools/bench/bench.h"

/* Merges the chunk's record, which is in RAM, with an encoding behind each of the contexts, none of
 * them empty, unless it has been merged before. */
int contexts_merge(struct bench *b, struct bench_text chunk, const struct bench_text *context,
                   size_t n);

#endif
