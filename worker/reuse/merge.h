/* merge: the next version of a chunk's record: the mean of what it holds and of further encodings
 * of the chunk, each behind other text (blending.md 7.4). K of one layer stays as it was built
 * behind the sink: of the side layer, by which questions find tokens; other text moves it to where
 * they find less (docs/decisions/builds.md).
 *
 * rec_merge_begin() → rec_merge_sink() for each encoding, whose capture hands it the rows → the
 * last one's done() commits. Between two encodings rec_merge_abort() may end it. The mean is a
 * running one, so no encoding is kept; the chunk's sensitivity falls out of it: of each token the
 * largest distance of an encoding's K and V from the mean that it has become part of, relative and
 * averaged over layers 1…L/2. Thread: one at a time; rows() comes from pool threads. */
#ifndef WORKER_REUSE_MERGE_H
#define WORKER_REUSE_MERGE_H

#include "fusor/core/kv_io.h"
#include "tiers/store.h"

struct rec_merge;
/* side_layer: as the profile's, 0 = none. 1; 0 the record is not whole in RAM; -ENOSPC, -ENOMEM,
 * -EBADMSG. */
int rec_merge_begin(struct store *s, const struct tier_key *key, unsigned side_layer,
                    struct rec_merge **ret);
/* For one encoding behind context_tokens tokens of other chunks (beside the sink token). With the
 * last one the merge is gone: *ret_status (NULL: not wanted) gets 0 or why it was not kept. */
struct kv_sink rec_merge_sink(struct rec_merge *m, uint32_t context_tokens, bool last,
                              int *ret_status);
void rec_merge_abort(struct rec_merge *m); /* NULL: nothing */

#endif
