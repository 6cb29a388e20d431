/* map: a hash table of things that have a tier_key, chained through them; allocates at init alone.
 *
 * Internal to tiers/. The owner's struct begins with a key_node (or with an evict_node, which
 * begins with one) and is cast back. Thread: the owner's lock. */
#ifndef TIERS_MAP_H
#define TIERS_MAP_H

#include "tiers/key.h"

struct key_node {
    struct tier_key key; /* constant while it is in a map */
    struct key_node *chain;
};
struct key_map { /* zeroed: empty, to be looked into alone */
    struct key_node **bucket;
    uint64_t mask, n;
};
int key_map_init(struct key_map *m, uint64_t n_buckets); /* rounded up to a power of two; -ENOMEM */
void key_map_fini(struct key_map *m);
struct key_node *key_map_find(const struct key_map *m, const struct tier_key *k); /* or NULL */
void key_map_insert(struct key_map *m, struct key_node *n); /* its key is not there */
void key_map_remove(struct key_map *m, struct key_node *n); /* it is there */

#endif
