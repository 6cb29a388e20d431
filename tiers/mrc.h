/* mrc: the miss-ratio curve of LRU, kept online: what share of the tokens that are looked up would
 * be found with room for so many bytes.
 *
 * SHARDS with a sample of fixed size (Waldspurger et al., FAST'15): a record is followed if the
 * hash of its key is below a threshold, which falls whenever more than `sample_max` records are
 * followed; what is seen of them stands for 1/rate as much. The distance of a look-up is the bytes
 * of all records that were looked up since the record's last one, and its own. Tokens that the
 * sample has too few or too many of, compared with the count of all, are credited to the shortest
 * distances (SHARDS-adj): hot records alone can make such a difference. Every `half_life` look-ups
 * what was counted is halved and records that were not looked up since then are forgotten, so the
 * curve follows the traffic.
 * Memory: less than 100 bytes per record of the sample, allocated at creation alone. Thread: any;
 * a lock of its own, held for the logarithm of sample_max. */
#ifndef TIERS_MRC_H
#define TIERS_MRC_H

#include "tiers/key.h"

struct mrc;
struct mrc_stats {
    uint64_t look_ups; /* since creation */
    double tokens;     /* that the curve is of: those looked up, older ones counting less */
    double rate;       /* share of all records that is followed */
    uint64_t n_sampled;
    double distinct_bytes; /* of all records that were looked up, estimated */
};
/* half_life 0: nothing is forgotten. -ENOMEM; sample_max of 1 to 2^24. */
int mrc_create(uint32_t sample_max, uint64_t half_life, struct mrc **ret);
void mrc_destroy(struct mrc *m);
/* One look-up of a record that takes `bytes` and stands for n tokens, whether or not it was found.
 * The last one of a request counts as the most recently used. */
void mrc_look_up(struct mrc *m, const struct tier_key *key, uint32_t n_tok, uint64_t bytes);
/* [0, 1]: share of the tokens found with room for so many bytes; never falls with them. 0 before
 * the first look-up. */
double mrc_found(struct mrc *m, uint64_t bytes);
void mrc_get_stats(struct mrc *m, struct mrc_stats *ret);

/* The next of the sizes that RAM comes in: 1, 1.5, 2, 3, 4, 6, … MiB. */
uint64_t mrc_size_next(uint64_t bytes);
/* The largest of them, a power of two, up to which nothing is found. */
uint64_t mrc_size_first(struct mrc *m);

#endif
