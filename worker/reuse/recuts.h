/* recuts: do texts that come again come cut as they were?
 *
 * A chunk is known again by the least hash of its runs of 24 tokens (min-hash, Broder 1997): two
 * chunks share it with the probability of their overlap, wherever they begin and end. One that is
 * known again under another key has been cut elsewhere: its KV is held and not found. Chunks that
 * merely quote the same text count as that, too, by how much they share.
 * Memory: 128 KiB. Thread: any; a lock of its own. */
#ifndef WORKER_REUSE_RECUTS_H
#define WORKER_REUSE_RECUTS_H

#include "tiers/key.h"

struct wk_recuts;
struct wk_recuts_view {
    uint64_t n_known,
        n_recut; /* chunks that share text with an earlier one; those with a new key */
};
int wk_recuts_create(struct wk_recuts **ret);
void wk_recuts_destroy(struct wk_recuts *r);
void wk_recuts_note(struct wk_recuts *r, const int32_t *tok, size_t n, const struct tier_key *key);
/* Older ones count less: half after some thousands. */
struct wk_recuts_view wk_recuts_get(struct wk_recuts *r);

#endif
