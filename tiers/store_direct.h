/* store_direct: pins of records that are read where they lie, on a device.
 *
 * Internal to tiers/. No lock held. */
#ifndef TIERS_STORE_DIRECT_H
#define TIERS_STORE_DIRECT_H

#include "tiers/gpu/gpu.h"
#include "tiers/store_entry.h"

/* No lock held. 1: the pin has it, verified; 0 not there. */
int direct_lookup(struct store *s, const struct store_ask *a, struct store_pin *p);
/* The pin's layer on the device; -ECANCELED: it had to make way, and the pin lets go of it. */
int direct_layer(struct store_pin *p, unsigned layer, const void **ret_k, const void **ret_v);
int direct_scores(struct store_pin *p, enum record_score kind, float *ret);
bool direct_scored(const struct store_pin *p, enum record_score kind);
void direct_end(struct store_pin *p); /* of a pin that is done with */

#endif
