/* control_int: what predict.c (the time of one choice) and control.c (the choice) share. Internal
 * to policy/.
 *
 * A prompt is the input made sound, once per decision. A reused set is summed up in `struct set`,
 * which is all that the time depends on, so that the search moves between sets by adding and
 * subtracting; the time of one is then a few dozen operations whatever the number of chunks and
 * layers. */
#ifndef POLICY_CONTROL_INT_H
#define POLICY_CONTROL_INT_H

#include "policy/control.h"

/* Not fmax() and fmin(): those call a function for the sake of NaN, of which there is none here. */
static inline double larger(double a, double b)
{
    return a > b ? a : b;
}

static inline double smaller(double a, double b)
{
    return a < b ? a : b;
}

struct prompt {
    unsigned L, check, score_lo, score_hi, side; /* layers in range */
    double tokens, prefix, suffix;
    double chunk_tokens, chunk_pairs; /* of all chunks behind the prefix, held or not */
    double front, front_pairs;        /* what stands between the prefix and these */
    struct pol_cost cost;
    struct pol_tier_now tier[POL_TIERS_MAX];
    bool reachable[POL_TIERS_MAX];
    double begin_s[POL_TIERS_MAX], s_per_byte[POL_TIERS_MAX], per_layer; /* 1 / (L - 1) */
    size_t n_tier;
    double prefix_bytes[POL_TIERS_MAX]; /* where the prefix is, else 0 */
};
struct set { /* of reused chunks */
    size_t n;
    double tokens, pairs; /* pairs: a row of each of them, with all keys that it sees */
    double bytes[POL_TIERS_MAX];
    double last_bytes[POL_TIERS_MAX]; /* of the last one in the prompt */
    size_t n_blind[POL_TIERS_MAX];    /* without a sidecar in RAM */
};

static inline size_t chunks_of(const struct pol_control_in *in)
{
    return in->n_chunk < POL_CHUNKS_MAX ? in->n_chunk : POL_CHUNKS_MAX;
}
void prompt_make(const struct pol_control_in *in, struct prompt *ret);
/* As if no prefix were held. */
void prompt_drop_prefix(struct prompt *p);
bool chunk_usable(const struct prompt *p, const struct pol_chunk_now *c);
static inline double chunk_pairs(const struct pol_chunk_now *c) /* every row of it as a query */
{
    return (double)c->n * ((double)c->tok0 + ((double)c->n + 1) / 2);
}
void predict_set(const struct prompt *p, enum pol_strategy s, double ratio, const struct set *set,
                 struct pol_prediction *ret);

#endif
