/* replay: the recordings of kn_replay(): one graph a key, the least recently played one makes room.
 *
 * A graph holds the addresses that it was recorded with: it is of use while scratch has not moved.
 * What cannot be recorded is run as ever; a device that refuses is not asked again, but a run that
 * needed more scratch, or failed by itself, is recorded another time. Thread: that of kn_rows(). */
#ifndef KERNELS_CUDA_REPLAY_H
#define KERNELS_CUDA_REPLAY_H

#include "kernels/cuda/launch.h"
#include "kernels/kn.h"

#include <stdatomic.h>

enum { REPLAY_MAX = 16 }; /* chosen: six batch sizes by the few context lengths that are in use */
struct recording {
    uint64_t key, n_moved, used; /* used: 0 is an empty place */
    bool prepared;               /* a run of this key has been */
    void *graph;
};
struct replay {
    struct recording at[REPLAY_MAX];
    uint64_t n_used;
    bool recording;
    atomic_bool refused; /* from here: any thread may look */
    _Atomic uint64_t n_recorded, n_played;
};
/* The place of that key. Its graph is of use, or NULL; n_moved: times that scratch has moved. */
struct recording *replay_find(struct replay *r, struct cu *c, uint64_t key, uint64_t n_moved);
/* It can be played as things are. */
bool replay_has(const struct replay *r, uint64_t key, uint64_t n_moved);
bool replay_begin(struct replay *r, struct cu *c);
/* status: of what was queued in between. Sets x->graph if there is one. */
void replay_end(struct replay *r, struct cu *c, struct recording *x, int status);
void replay_forget(struct replay *r, struct cu *c);

#endif
