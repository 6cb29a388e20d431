/* prefill: one prompt through the model by a plan: what is reused, what is recomputed.
 *
 * fus_prefill_begin() → step() until it is done, a part of a layer a step, so that a scheduler can
 * run decode steps in between → logits(), report() → end(). Rows carry exact positions and see keys
 * j <= pos. Blend rules: fusor/README.md. Thread: that of the core. */
#ifndef FUSOR_CORE_PREFILL_H
#define FUSOR_CORE_PREFILL_H

#include "fusor/core/core.h"
#include "fusor/core/kv_io.h"
#include "policy/strategy.h"

/* A reusable part of the prompt. Ranges ascend and do not overlap. exact: KV equals what a full
 * prefill would give (chained prefix; must be contiguous from token 0); else an isolated chunk. */
struct fus_range {
    uint32_t tok0, n;
    bool exact;
    struct kv_source src; /* ops NULL: no KV, the range is computed (a miss) */
    /* The chunk stands right behind the token that it was built behind, so that its KV is exact
     * except for the record's precision: recomputed last of all, at r = 1. */
    bool at_built;
};
/* Does a chunk at tok0 of the prompt stand where it was built: right behind its sink token (-1: it
 * was built without one)? */
bool fus_at_built_position(int32_t sink_token, const int32_t *tok, uint32_t tok0);
/* Hand out the computed KV of [tok0, tok0+n) while it is computed (only where every row of the
 * range is computed exactly; else the sink is aborted with -ENOTSUP). */
struct fus_capture {
    uint32_t tok0, n;
    struct kv_sink sink;
};
#define FUS_SENSE_POWER_MAX 8
struct fus_plan {
    const int32_t *tok; /* the whole prompt, borrowed until prefill_end */
    uint32_t n_tok;
    const struct fus_range *range; /* copied by begin(), sources released by end() at the latest */
    size_t n_range;
    const struct fus_capture *capture;
    size_t n_capture;
    enum pol_strategy strategy;
    float ratio;     /* share of reused chunk tokens to recompute, 0…1 */
    uint32_t suffix; /* tokens after the last chunk that score (query); 0 = all after it */
    /* 0, of the scoring layers hi = 0: as fus_profile_default() has it. */
    unsigned check_layer;        /* hkvd */
    unsigned score_lo, score_hi; /* query: layers [lo, hi) */
    unsigned side_layer;         /* side: the layer whose K is asked, 1…L-1 */
    const uint8_t *anchor;       /* side: [n_tok] chunk tokens that are seen all the same, and
                                    nothing but attention decides; NULL: none. Borrowed */
    float sense_power;           /* of sensitivity, 0…FUS_SENSE_POWER_MAX */
    uint32_t logits_from;        /* for positions >= this; 0 = the last only, n_tok = none */
    bool hidden; /* instead of logits what they are made of, [n_rows, D]; logits_from 0 = all */
    const atomic_bool *cancel; /* looked at often enough to stop within 50 ms; may be NULL */
};
/* Where a prefill's time went: its embeddings with K,V of layer 0, the pass that asks which tokens
 * matter, the layers of the answer in groups of as equal a size as there can be, logits. */
enum { FUS_LAYER_GROUPS = 8 };
enum fus_part {
    FUS_PART_EMBED,
    FUS_PART_SCORE,
    FUS_PART_LAYERS, /* group i of L layers: from i * L / FUS_LAYER_GROUPS on, rounded up */
    FUS_PART_HEAD = FUS_PART_LAYERS + FUS_LAYER_GROUPS,
    FUS_PARTS
};
struct fus_time { /* of clock_ns(); all 0: there was nothing to do */
    uint64_t begin_ns, end_ns;
    double compute_ms; /* within, in steps and without waiting for stored KV. A device that runs
                          behind its queue may take it a layer later */
};
struct fus_report { /* what happened */
    enum pol_strategy strategy;
    float ratio;
    uint32_t n_prefix, n_reused, n_recomputed, n_computed; /* sum = prompt tokens */
    uint32_t n_failed_ranges; /* sources that failed and were computed instead */
    double deviation_left;    /* hkvd: share of deviation mass not recomputed; -1 = not measured */
    double score_left;        /* by score: share of it that is not recomputed; -1 */
    uint32_t n_sensitivity_known; /* reused tokens whose sensitivity was known and asked */
    double compute_ms;            /* inside the steps, without waiting for stored KV */
    struct fus_time part[FUS_PARTS];
    double
        cost; /* token-layers computed / (n_tok * L), both passes of query; rows that only get K,V
                 (layer 0 of reused tokens, unselected ones at the check layer) count nothing */
};

struct fus_prefill;
/* On success the sources and sinks are the prefill's: each gets its release() or done() once, by
 * end() at the latest. On failure they stay with the caller, untouched. The session starts anew.
 * One prefill at a time per session. An isolated chunk is built by a plan of its sink token and the
 * chunk, with a capture of the latter and no logits. */
int fus_prefill_begin(struct fus_session *s, const struct fus_plan *p, struct fus_prefill **ret);
int fus_prefill_step(
    struct fus_prefill *f); /* 1 more to do, 0 done, <0 failed (session unusable) */
int fus_prefill_steps(struct fus_prefill *f); /* all that there are: 0 or <0 */
/* Steps of at most that many rows from now on, 0 = the usual: shorter ones let decode steps in
 * sooner and cost throughput. Changes no bit where gemm_invariant. */
void fus_prefill_step_rows(struct fus_prefill *f, size_t rows);
enum fus_step_kind {
    FUS_STEP_BEGIN,  /* what comes before: fus_prefill_begin(), and whatever its caller does */
    FUS_STEP_EMBED,  /* embeddings, and K,V of layer 0 */
    FUS_STEP_STORED, /* stored KV to its places in a layer */
    FUS_STEP_KV,     /* K,V of rows */
    FUS_STEP_ROWS,   /* their attention and everything behind it */
    FUS_STEP_SCORE,  /* what the suffix attends to; behind the last scoring layer the choice */
    FUS_STEP_SINK,   /* computed KV handed over: sealing a record reads all of it */
    FUS_STEP_HEAD,   /* logits */
    FUS_STEP_KINDS
};
/* The next step, for a planner of its time: that grows with fixed + rows * row, in a unit that
 * steps of one kind have in common. */
struct fus_step {
    enum fus_step_kind kind;
    size_t rows; /* it will go through, if the pace allows; 1 or more */
    bool whole;  /* whatever the pace */
    double row, fixed;
};
void fus_prefill_next(const struct fus_prefill *f, struct fus_step *ret);
/* Whether the next step would not wait for stored KV: a scheduler does something else meanwhile. */
bool fus_prefill_ready(const struct fus_prefill *f);
struct fus_progress {
    uint32_t n_tok;  /* of the prompt */
    uint32_t n_held; /* of them that need no work: prefix, and reused as far as is known */
    double done; /* share of the others' work, by rows and layers, 0…1; a restart begins anew */
    double ms;   /* since the prefill began; the engine's to say */
};
void fus_prefill_progress(const struct fus_prefill *f, struct fus_progress *ret);
/* Logits rows [n_rows, V] for positions logits_from…, or hidden ones [n_rows, D], until end(). */
const float *fus_prefill_logits(const struct fus_prefill *f, size_t *ret_rows);
const struct fus_report *fus_prefill_report(const struct fus_prefill *f);
/* Positions [*ret_n] of the recomputed tokens, ascending, valid until end(). */
const int32_t *fus_prefill_selected(const struct fus_prefill *f, size_t *ret_n);
/* What became of each token, [n_tok], until end(): FUS_HEAT_NONE of no reused chunk; else the root
 * of its share of the highest score (attention × sensitivity, attention, deviation, as the strategy
 * has it; 0 where it has none) times FUS_HEAT_MAX, plus FUS_HEAT_AGAIN where it was recomputed. */
enum { FUS_HEAT_MAX = 126, FUS_HEAT_NONE = 127, FUS_HEAT_AGAIN = 128 };
void fus_prefill_heat(const struct fus_prefill *f, uint8_t *out);
void fus_prefill_end(struct fus_prefill *f);

#endif
