/* reuse_int: stored KV into a prefill, computed KV out of it, and the scores that compare both.
 *
 * What returns -EAGAIN has dropped a range that failed: the prefill starts again. Internal to
 * fusor/core. */
#ifndef FUSOR_CORE_REUSE_INT_H
#define FUSOR_CORE_REUSE_INT_H

#include "fusor/core/prefill_int.h"

enum fus_bring { /* of which ranges stored KV is wanted */
                 BRING_EXACT,
                 BRING_CHUNKS,  /* and of chunks */
                 BRING_SIDE,    /* and K alone of chunks: from their sidecars if they have it */
                 BRING_ANCHORS, /* and the plan's anchors of chunks, to their slots (b.row) */
};
int fus_reuse_fetch(struct fus_prefill *f, unsigned layer, enum fus_bring what);
bool fus_reuse_ready(const struct fus_prefill *f, unsigned layer, enum fus_bring what);
int fus_reuse_place(struct fus_prefill *f, unsigned layer, enum fus_bring what);
/* Where the device has memory of its own: start to bring a layer near, of the ranges whose stored
 * KV is here; a hint. And the end of that for layers in [lo, hi): their copies are not read any
 * more. */
void fus_reuse_near(struct fus_prefill *f, unsigned layer, enum fus_bring what);
void fus_reuse_far(struct fus_prefill *f, unsigned lo, unsigned hi);
void fus_capture_rows(struct fus_prefill *f, const struct kv_rows *rows);
int fus_deviation_rows(struct fus_prefill *f, const struct kv_rows *rows);
/* What the suffix, the last of the rows at these positions, attends to in a layer, among the keys
 * before it: how many those are. */
size_t fus_mass_keys(const struct fus_prefill *f, const int32_t *pos);
int fus_mass_add(struct fus_prefill *f, unsigned layer, const int32_t *pos);
/* Scores by token to those of a prompt without the missed chunks, and back. */
void fus_score_squeeze(struct fus_prefill *f);
void fus_score_spread(struct fus_prefill *f);
size_t fus_reuse_tokens(const struct fus_prefill *f, enum fus_bring what); /* to be placed */
void fus_captures_layer_done(struct fus_prefill *f, unsigned layer);
size_t fus_captures_open(const struct fus_prefill *f); /* tokens of those that are */
/* Those of `most` tokens together, one at least. Behind kn_fence(): all rows have left. */
void fus_captures_close(struct fus_prefill *f, size_t most, int status);
void fus_range_release(struct pre_range *g);

#endif
