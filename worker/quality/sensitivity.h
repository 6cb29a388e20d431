/* sensitivity: how much a chunk's KV changes behind its neighbours, measured in idle time.
 *
 * wk_sensitivity_create() → wk_sensitivity_want() for records without scores → the scores stand in
 * the record → wk_sensitivity_destroy() after the engine has ended. */
#ifndef WORKER_QUALITY_SENSITIVITY_H
#define WORKER_QUALITY_SENSITIVITY_H

#include "tiers/key.h"

#include <stdint.h>

struct worker;
int wk_sensitivity_create(struct worker *w);
void wk_sensitivity_destroy(struct worker *w);
/* This record has no scores yet. Thread: any, not from inside a callback of the engine's that holds
 * a lock of ours. Beyond what may wait it is dropped: the next request that finds the record asks
 * again. */
void wk_sensitivity_want(struct worker *w, const struct tier_key *key, const char *ns,
                         const int32_t *tok, uint32_t n);
struct wk_sensitivity_stats {
    unsigned n_pending;
    uint64_t n_measured, n_failed;
};
void wk_sensitivity_get_stats(struct worker *w, struct wk_sensitivity_stats *ret);

#endif
