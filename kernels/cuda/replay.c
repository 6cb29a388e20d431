#include "kernels/cuda/replay.h"

#include <errno.h>

static void drop_recording(struct recording *x, struct cu *c)
{
    cu_graph_free(c, x->graph);
    x->graph = NULL;
}

struct recording *replay_find(struct replay *r, struct cu *c, uint64_t key, uint64_t n_moved)
{
    struct recording *x = &r->at[0];
    for (size_t i = 0; i < REPLAY_MAX; i++) {
        struct recording *y = &r->at[i];
        if (y->used && y->key == key) {
            x = y;
            break;
        }
        if (y->used < x->used) x = y;
    }
    if (x->key != key || !x->used) {
        drop_recording(x, c);
        *x = (struct recording){.key = key};
    }
    if (x->n_moved != n_moved) drop_recording(x, c);
    x->n_moved = n_moved;
    x->used = ++r->n_used;
    return x;
}

bool replay_has(const struct replay *r, uint64_t key, uint64_t n_moved)
{
    bool has = false;
    for (size_t i = 0; i < REPLAY_MAX; i++) {
        const struct recording *x = &r->at[i];
        has |= x->used && x->key == key && x->graph && x->n_moved == n_moved;
    }
    return has;
}

bool replay_begin(struct replay *r, struct cu *c)
{
    if (atomic_load(&r->refused)) return false;
    r->recording = cu_record(c) == 0;
    if (!r->recording) atomic_store(&r->refused, true);
    return r->recording;
}

void replay_end(struct replay *r, struct cu *c, struct recording *x, int status)
{
    void *graph = NULL;
    const int e = cu_recorded(c, &graph);
    r->recording = false;
    if (e < 0 || status == -EIO) atomic_store(&r->refused, true); /* not for want of scratch */
    if (e < 0 || status < 0) {
        cu_graph_free(c, graph);
        return;
    }
    atomic_fetch_add(&r->n_recorded, 1);
    x->graph = graph;
}

void replay_forget(struct replay *r, struct cu *c)
{
    for (size_t i = 0; i < REPLAY_MAX; i++) {
        drop_recording(&r->at[i], c);
        r->at[i] = (struct recording){0};
    }
}
