/* core: a loaded model on a device, and sessions (one sequence's KV and logits) run synchronously.
 *
 * fus_core_create() packs the weights → fus_session_create() reserves KV pages for a sequence →
 * fus_prefill_begin()/step()/end() runs a prompt by a plan (by strategy)
 * a part of a layer a step, so that a scheduler can run decode steps in between → fus_decode()
 * appends one token to each of several sessions. The benchmarks call this directly; the server goes
 * through engine.h. Nothing allocates per token or layer. Blend rules: shared design in
 * fusor/README.md. Rows carry exact positions and see keys j <= pos. Thread: one thread at a time
 * per core (the engine thread); fus_core_create() any. */
#ifndef FUSOR_CORE_CORE_H
#define FUSOR_CORE_CORE_H

#include "base/err.h"
#include "fusor/core/kv_io.h"
#include "fusor/model/model.h"
#include "kernels/kn.h"
#include "policy/strategy.h"

#include <stdatomic.h>

#define FUS_KV_AUTO UINT64_MAX
struct fus_core_opts {
    struct kn_dev_opts dev;
    unsigned ctx_max; /* tokens; 0 = the model's */
    /* Page pool for running sequences; 0 = enough for 8 full contexts, <= 2 GiB; FUS_KV_AUTO: most
     * of what the device has left beside the weights, 0 on the CPU. */
    uint64_t kv_bytes;
    void (*progress)(void *ctx, double share); /* weight packing, 0…1; may be NULL */
    void *progress_ctx;
};
struct fus_core;
/* The model must outlive the core (embedding rows are read from it). */
int fus_core_create(const struct model *m, const struct fus_core_opts *o, struct fus_core **ret,
                    struct err *err);
void fus_core_destroy(struct fus_core *c);
const struct model_cfg *fus_core_config(const struct fus_core *c);
struct kn_dev *fus_core_dev(const struct fus_core *c);
unsigned fus_core_ctx_max(const struct fus_core *c);
const struct kn_gemm_rate *fus_core_gemm_rates(const struct fus_core *c, size_t *ret_n);
double fus_core_gemm_gflops(struct fus_core *c, size_t rows); /* over the model's linear shapes */
double fus_core_linear_params(const struct fus_core *c);      /* without embedding and head */
/* Startup self-test (blending.md 6): r = 1 equals full, re-position property. 0 or -EBADMSG: then
 * blending must stay off for this model. */
int fus_core_self_test(struct fus_core *c, struct err *err);
/* Break blending on purpose, to show that the self-test and the guard notice. Before the engine. */
enum fus_fault {
    FUS_FAULT_NONE,
    FUS_FAULT_REPOSITION, /* stored K of chunks is not rotated to its place */
    FUS_FAULT_OFFSET,     /* it is rotated to the next one */
};
void fus_core_set_fault(struct fus_core *c, enum fus_fault f);
/* Have the memory that a prompt of n_tok tokens takes at hand, a quarter of the pool at most: the
 * system gives memory when it is first touched, and that had better not be between two tokens of
 * somebody's stream. While no session exists. 0 or -ENOMEM. */
int fus_core_warm(struct fus_core *c, uint32_t n_tok);
/* The same for one page, in idle time, until there are as many more than ever were in use at once
 * as the largest prompt took. false: there was nothing to do. */
bool fus_core_warm_page(struct fus_core *c);
uint32_t fus_core_kv_tokens_free(const struct fus_core *c); /* tokens that still fit in the pool */
/* Tokens of KV that sharing saves: a stored prefix that several prompts begin with (a system
 * message, say) and what choices of one prompt have in common are held once. */
uint32_t fus_core_kv_tokens_shared(const struct fus_core *c);

/* The page pool, to share with who keeps things in the pages that sequences do not need: from then
 * on each page is asked for when a sequence needs it. `lend` always has one for all but n_kept
 * pages. While no session exists; the lender is there as long as there are any. */
struct fus_pool {
    void *base; /* the device's memory */
    size_t page_bytes;
    uint32_t n_pages;
};
struct fus_lender {
    int32_t (*lend)(void *ctx); /* a page's number */
    void (*take_back)(void *ctx, int32_t page);
    void *ctx;
};
struct fus_pool fus_core_pool(const struct fus_core *c);
void fus_core_share_pool(struct fus_core *c, const struct fus_lender *l, uint32_t n_kept);

/* A reusable part of the prompt. Ranges ascend and do not overlap. exact: KV equals what a full
 * prefill would give (chained prefix; must be contiguous from token 0); else an isolated chunk. */
struct fus_range {
    uint32_t tok0, n;
    bool exact;
    struct kv_source src; /* ops NULL: no KV, the range is computed (a miss) */
    bool home; /* the chunk stands right behind the token that it was built behind, so that its KV
                  is exact but for the record's precision: recomputed last of all, at r = 1 */
};
/* Does a chunk at tok0 of the prompt stand where it was built: right behind its sink token (-1: it
 * was built without one)? */
bool fus_stands_home(int32_t sink_token, const int32_t *tok, uint32_t tok0);
/* Hand out the computed KV of [tok0, tok0+n) while it is computed (only where every row of the
 * range is computed exactly; else the sink is aborted with -ENOTSUP). */
struct fus_capture {
    uint32_t tok0, n;
    struct kv_sink sink;
};
#define FUS_SENSE_POWER_DEFAULT 1
#define FUS_SENSE_POWER_MAX 8
struct fus_plan {
    const int32_t *tok; /* the whole prompt, borrowed until prefill_end */
    uint32_t n_tok;
    const struct fus_range *range; /* copied by begin(), sources released by end() at the latest */
    size_t n_range;
    const struct fus_capture *capture;
    size_t n_capture;
    enum pol_strategy strategy;
    float ratio;          /* share of reused chunk tokens to recompute, 0…1 */
    uint32_t suffix;      /* tokens after the last chunk that score (query); 0 = all after it */
    unsigned check_layer; /* hkvd; 0 = default 1 */
    unsigned score_lo, score_hi; /* query: layers [lo, hi); hi = 0: L/3 … 5L/6 */
    unsigned side_layer;         /* side: the layer whose K is asked, 1…L-1; 0 = 17/30 of L */
    float sense_power;           /* of sensitivity, 0…FUS_SENSE_POWER_MAX; 0 = default */
    unsigned sink_k;             /* sink: tokens per chunk; 0 = from ratio */
    uint32_t
        logits_from; /* logits for positions >= this; n_tok-1 = last only (0 is read so, too) */
    const atomic_bool *cancel; /* looked at often enough to stop within 50 ms; may be NULL */
};
struct fus_report { /* what happened */
    enum pol_strategy strategy;
    float ratio;
    uint32_t n_prefix, n_reused, n_recomputed, n_computed; /* sum = prompt tokens */
    uint32_t n_failed_ranges; /* sources that failed and were computed instead */
    double deviation_left;    /* hkvd: share of deviation mass not recomputed; -1 = not measured */
    double score_left;        /* by score: share of it that is not recomputed; -1 */
    uint32_t n_sensed;        /* reused tokens whose sensitivity was known and asked */
    double compute_ms;        /* inside the steps, without waiting for stored KV */
    double
        cost; /* token-layers computed / (n_tok * L), both passes of query; rows that only get K,V
                 (layer 0 of reused tokens, unselected ones at the check layer) count nothing */
};

struct fus_session;
int fus_session_create(struct fus_core *c, uint32_t cap_tokens,
                       struct fus_session **ret); /* -ENOMEM: pool */
void fus_session_destroy(struct fus_session *s);
uint32_t fus_session_len(const struct fus_session *s);
int fus_session_fork(struct fus_session *s, uint32_t cap_tokens,
                     struct fus_session **ret); /* copies KV */

struct fus_prefill;
/* On success the sources and sinks are the prefill's: each gets its release() or done() once, by
 * end() at the latest. On failure they stay with the caller, untouched. The session starts anew.
 * One prefill at a time per session. */
int fus_prefill_begin(struct fus_session *s, const struct fus_plan *p, struct fus_prefill **ret);
int fus_prefill_step(
    struct fus_prefill *f); /* 1 more to do, 0 done, <0 failed (session unusable) */
/* Steps of at most that many rows from now on, 0 = the usual: shorter ones let decode steps in
 * sooner and cost throughput. Changes no bit where kn_gemm_invariant(). */
void fus_prefill_pace(struct fus_prefill *f, size_t rows);
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
/* The next step, for who plans with its time: that grows with fixed + rows * row, in a unit that
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
/* Logits rows [n_rows, V] for positions logits_from…, valid until end(). */
const float *fus_prefill_logits(const struct fus_prefill *f, size_t *ret_rows);
const int32_t *fus_prefill_selected(const struct fus_prefill *f,
                                    size_t *ret_n); /* recomputed positions */
void fus_prefill_report(const struct fus_prefill *f, struct fus_report *ret);
void fus_prefill_end(struct fus_prefill *f);

/* Append tok[i] to s[i] and return the logits that follow, [n, V] at ret. */
int fus_decode(struct fus_core *c, struct fus_session *const *s, const int32_t *tok, size_t n,
               const atomic_bool *cancel, float *ret_logits);
enum { FUS_EDITS_MAX = 1024 }; /* chosen: of a row; 16 KiB on their way a step */
struct fus_edits {
    const struct kn_edit *at; /* of different ids */
    size_t n;                 /* FUS_EDITS_MAX at most */
};
struct fus_next {
    const struct kn_draw *draw; /* [n] how next tokens are drawn; NULL: those of largest logits */
    const struct fus_edits *edits; /* [n] of logits, before; NULL: none */
    const bool *wants;             /* [n] whose logits, edited, are wanted; NULL: all are */
    float *logits;                 /* [n, V] rows that nobody wants may stay as they were */
    int32_t *tok;                  /* [n] the next tokens, -1: no logit is finite; may be NULL */
};
/* The same for who does not look at all of them. */
int fus_decode_some(struct fus_core *c, struct fus_session *const *s, const int32_t *tok, size_t n,
                    const atomic_bool *cancel, const struct fus_next *next);

/* Build an isolated chunk: sink token (-1: none) at position 0, chunk behind it, rows of the chunk
 * to the sink, layers 1…L-1. Steps as a prefill; logits are not computed. */
int fus_build_begin(struct fus_session *s, int32_t sink_token, const int32_t *tok, uint32_t n,
                    const struct kv_sink *sink, const atomic_bool *cancel,
                    struct fus_prefill **ret);

/* Measure an isolated chunk with another one, the neighbour. Context sensitivity (blending.md 7.3):
 * the chunk runs once more behind the neighbour, up to the middle layer, and is compared with its
 * stored KV; ret_score[i] becomes the larger of itself and token i's change: the mean over layers
 * 1…L/2 of |dK|/|K| + |dV|/|V|. Zero it, then measure with a few real neighbours. Steps as a
 * prefill. */
struct fus_sense {
    int32_t sink_token;    /* as the chunk was built, -1: none */
    const int32_t *before; /* the neighbour; copied */
    uint32_t n_before;
    struct kv_source before_src; /* its isolated KV; ops NULL: it is computed */
    const int32_t *tok;          /* the chunk; copied */
    uint32_t n;
    struct kv_source src; /* its isolated KV */
    float *ret_score;     /* [n], valid until prefill_end; untouched when it fails */
    const atomic_bool *cancel;
};
/* On success the sources are the prefill's, on failure the caller's. -ENOTSUP: one layer only. */
int fus_sense_begin(struct fus_session *s, const struct fus_sense *p, struct fus_prefill **ret);

#endif
