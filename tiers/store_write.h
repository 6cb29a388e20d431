/* store_write: records into the store.
 *
 * Life cycle: store_claim() (one builder per key) → rows where store_writer_layer() says →
 * store_commit() or store_abort(). Scores are measured later and set on a record that is here.
 * Thread: any; one per writer. */
#ifndef TIERS_STORE_WRITE_H
#define TIERS_STORE_WRITE_H

#include "tiers/store.h"

struct store_new { /* borrowed for the call */
    enum tier_kind kind;
    struct tier_key key;
    const char *ns;
    const int32_t *tok;
    size_t n;
};
/* 1 claimed (*ret set: the caller builds it), 0 it is here or another caller builds it, -ENOSPC no
 * room or over the namespace's quota. */
int store_claim(struct store *s, const struct store_new *what, struct store_writer **ret);
/* Where rows of a layer go: k, v [n, G, K] in the store's dtype; the caller writes them directly.
 */
void store_writer_layer(struct store_writer *w, unsigned layer, void **ret_k, void **ret_v);
/* Checksums, publishes, queues write-behind; frees w. -ERANGE: not all are numbers; it is aborted.
 */
int store_commit(struct store_writer *w);
void store_abort(struct store_writer *w);

/* 1 kept (tiers that have the record get its header anew), 0 the record is not in RAM any more. */
int store_set_scores(struct store *s, const struct tier_key *k, enum record_score kind,
                     const float *score, size_t n);

#endif
