/* store_side: sidecars, the table of them beside the store's index.
 *
 * Internal to tiers/. A lock of its own, below all others: any of the store's may be held. */
#ifndef TIERS_STORE_SIDE_H
#define TIERS_STORE_SIDE_H

#include "tiers/store_entry.h"

int side_init(struct store *s, const struct store_opts *o); /* charges its budget */
void side_fini(struct store *s);
/* No lock held; the caller holds e, whose parts are all here. */
void side_keep(struct store *s, const struct entry *e);
void side_used(struct store *s, const struct tier_key *k); /* its record is in use */
void side_drop(struct store *s, const struct tier_key *k);
void side_clear(struct store *s, const uint64_t *ns_hash); /* NULL: all */
void side_unref(struct store *s, struct side *d);          /* takes NULL */
void side_get_stats(struct store *s, struct store_stats *ret);

#endif
