/* control: for each chunk reuse or recompute, and for the request strategy and ratio, together.
 *
 * A pure function over a snapshot of numbers: what is held where, how fast the tiers and the
 * compute are right now, and what ratio each strategy needs to keep the quality wanted. It predicts
 * the time to first token of every sensible choice by walking the layers as fusor/core/prefill.c
 * does (a layer runs when the layer before it has run and its stored KV has arrived), takes the
 * least, and then raises the ratio as far as that costs next to nothing. Never slower
 * than an exact prefill by its own prediction: that is always among the choices, and taken where it
 * is as fast.
 * Inputs may be anything: what is not a number, negative or out of range counts as unknown, and
 * what is unknown is not relied on. No allocation, some 10 us at 256 chunks.
 * Times are seconds, sizes bytes. Sources: design blending.md 4, 5; CacheBlend, arXiv 2405.16444.
 * Thread: any. */
#ifndef POLICY_CONTROL_H
#define POLICY_CONTROL_H

#include "policy/cost.h"
#include "policy/strategy.h"

enum { POL_TIERS_MAX = 8, POL_CHUNKS_MAX = 256, POL_REASON_BYTES = 96 };

struct pol_tier_now {   /* a place that KV is loaded from, as moving averages; the first is RAM */
    double bytes_per_s; /* <= 0: unknown, counts as not reachable; of RAM it is not asked */
    double first_s;     /* request to first byte */
    double queue_s;     /* until what is already asked of it has been served */
    bool by_record;     /* the records of a request come one after the other, else layer by layer */
};

struct pol_chunk_now {
    uint32_t tok0;  /* in the prompt, ascending */
    uint32_t n;     /* tokens */
    int tier;       /* that holds it; -1: none */
    uint64_t bytes; /* to load: all stored layers */
    bool side;      /* its sidecar is in RAM: `side` need not wait for the record */
    bool merged;    /* its record has been encoded behind other chunks: what floors go by */
};
struct pol_strat_now {
    bool allowed;
    double floor; /* least ratio that keeps the quality wanted, 0…1 */
};

struct pol_control_in {
    unsigned L, check_layer, score_lo, score_hi, side_layer;
    uint32_t n_tok;    /* of the prompt */
    uint32_t n_prefix; /* exact prefix held, loaded from prefix_tier */
    int prefix_tier;
    uint64_t prefix_bytes;
    uint32_t n_suffix; /* behind the last chunk */
    const struct pol_chunk_now *chunk;
    size_t n_chunk; /* <= POL_CHUNKS_MAX */
    struct pol_tier_now tier[POL_TIERS_MAX];
    size_t n_tier;
    struct pol_cost cost;
    struct pol_strat_now strat[POL_STRATEGY_COUNT];
    double ratio_max;  /* never more; 1 = no limit */
    double max_ttft_s; /* as good an answer as it allows, exact if possible; 0 = none: fastest */
};
struct pol_prediction {
    double ttft_s;
    double load_s;    /* of the slowest tier, alone */
    double compute_s; /* alone */
    double exposed_s; /* ttft - compute: what waiting for loads adds */
};
/* What a choice computes: the very counts behind its predicted compute_s. */
void pol_work_of(const struct pol_control_in *in, enum pol_strategy s, double ratio,
                 const bool *reuse, struct pol_work *ret);
/* TTFT of one choice. reuse [n_chunk]: ignored where the chunk is not held. `full` and `prefix`
 * reuse no chunk, `full` no prefix either. */
void pol_predict(const struct pol_control_in *in, enum pol_strategy s, double ratio,
                 const bool *reuse, struct pol_prediction *ret);
struct pol_control {
    enum pol_strategy strategy;            /* that runs */
    double ratio;                          /* 0 for full, prefix */
    size_t n_reused;                       /* chunks */
    struct pol_prediction predicted, full; /* of the choice; of an exact prefill (prefix held) */
    char reason[POL_REASON_BYTES];         /* in words, for people */
};
void pol_control(const struct pol_control_in *in, struct pol_control *ret,
                 bool *ret_reuse /* [n_chunk] */);

/* The one decider of a request. What is asked for in so many words is done where it can be
 * honoured, however little is held, and so it is where there is nothing to search for; the rest is
 * pol_control()'s. Without its prices (search false) `auto` blends what is held when that runs
 * clearly fewer token-layers than an exact prefill. true: the search decided, false: the rules. */
#define POL_COST_MAX 0.9 /* chosen: less than a tenth saved is not worth an inexact answer */
struct pol_request {
    enum pol_strategy wish;             /* POL_AUTO, POL_BLEND, or what is to run */
    double ratio;                       /* asked for, 0…1; negative or NaN: none */
    enum pol_strategy strategy_default; /* the operator's or the guard's; a wish: qs */
    double ratio_default;               /* the same; negative or NaN: 0.15 */
    bool blend_allowed;                 /* the engine's self-test passed */
    bool search;                        /* in->cost and in->strat hold */
};
bool pol_decide(const struct pol_control_in *in, const struct pol_request *q,
                struct pol_control *ret, bool *ret_reuse /* [n_chunk] */);

#endif
