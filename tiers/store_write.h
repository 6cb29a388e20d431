/* store_write: records into the store.
 *
 * Life cycle: store_claim() (one builder per key), or store_revise() for a new version of a record
 * that is here → rows where store_writer_layer() says → store_commit() or store_abort().
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
/* A new version of a record that is whole in RAM: a copy to be changed, whose times are the old
 * one's. Until the commit the old version serves on. 1 claimed; 0 there is no such record in RAM;
 * -ENOSPC no room: only what is clean makes way; -EBADMSG the old one is damaged, and rejected. */
int store_revise(struct store *s, const struct tier_key *k, struct store_writer **ret);
const struct record_desc *store_writer_desc(const struct store_writer *w);
/* Where rows of a layer go, or of a revision are: k, v [n, G, K] in the store's dtype; the caller
 * writes them directly. */
void store_writer_layer(struct store_writer *w, unsigned layer, void **ret_k, void **ret_v);
float *store_writer_scores(struct store_writer *w); /* [n]; zeros while there are no contexts */
/* What the rows are the mean of by now (record_desc), and so that there are scores. */
void store_writer_behind(struct store_writer *w, uint32_t n_contexts, uint32_t context_tokens);
/* Checksums, publishes, queues write-behind; frees w. -ERANGE: not all are numbers. A revision
 * replaces the version that is in the index; if there is none any more, as RAM was short, it is the
 * record. -ENOENT: an operator removed the record meanwhile, or it has expired; -EBUSY: it was
 * evicted and is being loaded or built again. After an error it is aborted. */
int store_commit(struct store_writer *w);
void store_abort(struct store_writer *w);

#endif
