/* route: which of the backends that could serve a request should get it.
 *
 * A pure function: numbers in, an index and its reason out; no I/O, clock or state; the random
 * number is a parameter. Own workers are chosen by what the request would cost there: tokens to
 * recompute (those whose KV it does not hold) plus the tokens queued before it, with a cap on skew
 * so that a popular chunk does not drown one worker. Upstreams: two drawn at random by weight, the
 * less busy one (power of two choices), or the same one for the same beginning of a prompt as long
 * as it is not overloaded (rendezvous hashing with bounded load). Thread: any.
 * Sources: Mitzenmacher 2001 (two choices); Mirrokni et al. 2018 (bounded loads). */
#ifndef POLICY_ROUTE_H
#define POLICY_ROUTE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum pol_balance {
    POL_BALANCE_LEAST,    /* two choices, least outstanding */
    POL_BALANCE_AFFINITY, /* prefix affinity with bounded load */
    POL_BALANCE_RESIDENT, /* by resident tokens, tier and queue: own workers */
};
struct pol_route_target {
    double weight; /* > 0; scaled down during slow start */
    uint32_t n_inflight;
    uint64_t queued_tokens; /* to compute there for requests not yet answered, resident ones not */
    uint64_t resident_tokens; /* of this prompt's chunks, discounted by tier */
    uint64_t id;              /* stable hash of the target's name */
};
struct pol_route_in {
    const struct pol_route_target *target; /* only those that may be chosen */
    size_t n;
    enum pol_balance balance;
    uint64_t affinity;      /* 0: none, falls back to POL_BALANCE_LEAST */
    uint64_t prompt_tokens; /* estimate */
    uint64_t random;
};
struct pol_route {
    size_t chosen; /* index into target */
    /* Static: only, least; affinity, or bound (its first choice is busy); resident, queue (who
     * holds some of it is busier than that is worth), new (none holds any of it), skew (who would
     * be best has too many requests). POL_ROUTE_REASONS lists them. */
    const char *reason;
};
#define POL_ROUTE_REASONS                                                                          \
    {                                                                                              \
        "only", "least", "affinity", "bound", "resident", "queue", "new", "skew"                   \
    }
/* in->n > 0 */
struct pol_route pol_route(const struct pol_route_in *in);

#endif
