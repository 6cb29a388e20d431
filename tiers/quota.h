/* quota: hard caps on the bytes of a namespace within one tier.
 *
 * Counts the bytes of every namespace that has a cap, and those of all others together. Pure
 * arithmetic over a fixed table, nothing is allocated: the owner embeds it, charges what it stores
 * and refunds what it drops, and when a namespace would be over its cap evicts from that namespace
 * or refuses. Zeroed memory is an empty table.
 * Giving a namespace its first cap needs to know what it has by now: the owner counts its records
 * once. Thread: the owner's lock. */
#ifndef TIERS_QUOTA_H
#define TIERS_QUOTA_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { QUOTA_NAMESPACES_MAX = 256 };
struct quota {
    struct quota_cell {
        uint64_t ns_hash, cap_bytes, used_bytes;
    } cell[QUOTA_NAMESPACES_MAX]; /* [n], then zeros */
    size_t n;
    uint64_t rest_bytes; /* of namespaces without a cap */
};
/* cap_bytes 0 takes the cap away. used_bytes: what the namespace has in the tier now; ignored when
 * it had a cap already. 0, -ENOSPC the table is full. */
int quota_set(struct quota *q, uint64_t ns_hash, uint64_t cap_bytes, uint64_t used_bytes);
/* Bytes that must go before `bytes` more fit under the cap; 0 = they fit, or there is no cap.
 * UINT64_MAX: more than the cap as a whole, nothing would help. `bytes` 0: what it is over now. */
uint64_t quota_over(struct quota *q, uint64_t ns_hash, uint64_t bytes);
void quota_charge(struct quota *q, uint64_t ns_hash, uint64_t bytes);
void quota_refund(struct quota *q, uint64_t ns_hash, uint64_t bytes);

#endif
