/* control: for each chunk reuse or recompute, and for the request strategy and ratio, together.
 *
 * A pure function over a snapshot of numbers: what is held where, how fast the tiers and the
 * compute are right now, and what ratio each strategy needs to keep the quality wanted. It predicts
 * the time to first token of every sensible choice by walking the layers (a layer runs when the
 * layer before it has run and its stored KV has arrived), takes the least, and then raises the
 * ratio as far as that costs nothing. Never slower than a full prefill by its own prediction: full
 * is always among the choices. O(choices x layers), no allocation, about 10 us.
 * Times are seconds, sizes bytes. Sources: shared design blending.md 4, 5. Thread: any. */
#ifndef POLICY_CONTROL_H
#define POLICY_CONTROL_H

#include "policy/plan.h"

#include <stddef.h>

enum { POL_TIERS_MAX = 8, POL_CHUNKS_MAX = 256, POL_REASON_BYTES = 96 };

struct pol_tier_now {   /* a place that KV is loaded from, as moving averages; 0 = RAM */
    double bytes_per_s; /* of one load after the other; <= 0: unknown, counts as not reachable */
    double first_s;     /* request to first byte */
    double queue_s;     /* until what is already asked of it has been served */
};

/* Compute, fitted to what this machine does with this model (policy/cost.h). */
struct pol_cost {
    double fixed_s;    /* per request */
    double layer_s;    /* per layer and pass, however few rows */
    double row_s;      /* a row through one layer: GEMMs */
    double kv_row_s;   /* K,V only of a row in one layer */
    double pair_s;     /* one row attending to one key in one layer */
    double place_s;    /* placing one stored token in one layer */
    double mass_s;     /* scoring one key against one row in one layer */
    double head_s;     /* logits of the last row */
    unsigned row_step; /* rows come in steps of this: the GEMM's natural size; 0 or 1 = any */
};

struct pol_chunk_now {
    uint32_t n;     /* tokens */
    int tier;       /* that holds it; -1: none */
    uint64_t bytes; /* to load: all stored layers */
    bool side;      /* its sidecar is in RAM: `side` need not wait for the record */
    bool scored;    /* its stored scores are known: `static`, `qs` */
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
    struct pol_strat_now strat[POL_STRAT_COUNT];
    double ratio_max;  /* never more; 1 = no limit */
    double max_ttft_s; /* objective: raise the ratio as far as it allows; 0 = none: fastest */
};
struct pol_prediction {
    double ttft_s;
    double load_s;    /* of the slowest tier, alone */
    double compute_s; /* alone */
    double exposed_s; /* ttft - compute: what waiting for loads adds */
};
/* TTFT of one choice. reuse [n_chunk]: ignored where the chunk is not held. `full` and `prefix`
 * reuse no chunk. */
void pol_predict(const struct pol_control_in *in, enum pol_strategy s, double ratio,
                 const bool *reuse, struct pol_prediction *ret);
struct pol_control {
    enum pol_strategy strategy;            /* never POL_STRAT_DEFAULT */
    double ratio;                          /* 0 for full, prefix */
    size_t n_reused;                       /* chunks */
    struct pol_prediction predicted, full; /* of the choice; of an exact prefill (prefix held) */
    char reason[POL_REASON_BYTES];         /* in words, for people */
};
void pol_control(const struct pol_control_in *in, struct pol_control *ret,
                 bool *ret_reuse /* [n_chunk] */);

/* Where to put a record that was just built: the cheapest tier whose load hides behind the
 * recompute at the floor ratio; -1 = none does, RAM. price: per GB, any unit; negative = not there.
 */
struct pol_place_in {
    uint64_t bytes;
    uint32_t n_tokens, n_chunks; /* of it, and of a usual request */
    unsigned L;
    double floor, price[POL_TIERS_MAX];
    struct pol_tier_now tier[POL_TIERS_MAX];
    size_t n_tier;
    struct pol_cost cost;
};
int pol_place(const struct pol_place_in *in);

#endif
