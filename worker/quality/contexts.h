/* contexts: chunks are encoded again behind others of their namespace, in idle time, and their
 * records become the mean of all encodings (reuse/merge.h).
 *
 * wk_contexts_create() → wk_contexts_want() for records whose contexts are short or none → their
 * next version takes their place → wk_contexts_destroy() after the engine has ended. */
#ifndef WORKER_QUALITY_CONTEXTS_H
#define WORKER_QUALITY_CONTEXTS_H

#include "tiers/key.h"

#include <stdint.h>

struct worker;
int wk_contexts_create(struct worker *w);
void wk_contexts_destroy(struct worker *w);
struct wk_context_wish { /* borrowed for the call */
    struct tier_key key;
    const char *ns;
    const int32_t *tok;
    uint32_t n, behind; /* behind: tokens of all contexts that the record has by now */
};
/* Unless the record has enough of them. Thread: any, not from inside a callback of the engine's
 * that holds a lock of ours. Beyond what may wait the oldest wish is dropped: the next request
 * that finds the record has it again. */
void wk_contexts_want(struct worker *w, const struct wk_context_wish *x);
struct wk_contexts_stats {
    unsigned n_pending;
    uint64_t n_merged, n_failed; /* records */
};
void wk_contexts_get_stats(struct worker *w, struct wk_contexts_stats *ret);

#endif
