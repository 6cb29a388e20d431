/* profile: what calibration has found out about one model: layers, sink, and how much each strategy
 * loses at each ratio.
 *
 * A JSON file, written by `kvblend-bench quality calibrate`, read by the worker at its start
 * (--profile, else the one that calibrate has left in the cache folder under the model's
 * fingerprint). A model without one gets fus_profile_default(): layers as shares of its depth and
 * the losses measured on SmolLM2-135M (docs/quality.md). Loss: teacher-forced KL(full || method) as
 * a share of plain reuse's from records built behind the sink alone, on the same prompts: 0 is a
 * full prefill, 1 what blending is meant to repair. From records with contexts plain reuse loses
 * less, which is measured, too, at a ratio of 0.
 * Thread: a filled profile is read by any. */
#ifndef FUSOR_CORE_PROFILE_H
#define FUSOR_CORE_PROFILE_H

#include "fusor/core/prefill.h"

#define FUS_SENSE_POWER_DEFAULT 1
struct json_t;
enum { FUS_PROFILE_RATIOS_MAX = 12, FUS_FINGERPRINT_BYTES = 33, FUS_CONTEXTS_MAX = 8 };
enum { FUS_CONTEXT_TOKENS_MAX = 65536 };

struct fus_profile {
    char fingerprint[FUS_FINGERPRINT_BYTES]; /* of weights and configuration, hex; "" = any model */
    unsigned score_lo, score_hi;             /* query, qs: layers [lo, hi) */
    unsigned side_layer;                     /* whose K is the sidecar, 1…L-1; 0 = none */
    double sense_power;                      /* qs: to which sensitivity counts, above 0 */
    unsigned contexts;       /* that a record is the mean of, beside the encoding behind the sink */
    unsigned context_tokens; /* of other chunks, in each */
    unsigned check_layer;    /* hkvd */
    unsigned sink_tokens;    /* that chunks are built behind: 0 or 1 */
    enum pol_strategy strategy; /* of a request that names none */
    double ratio;               /* of a request that names none: keeps `loss` with `strategy` */
    double loss;                /* what that may lose: the quality floor */
    double isolated; /* times as much is lost where records stand behind the sink alone, >= 1 */
    double reuse_kl; /* nats: what a loss of 1 is, as measured */
    double ratios[FUS_PROFILE_RATIOS_MAX]; /* ascending */
    size_t n_ratios;
    double losses[POL_STRATEGY_COUNT][FUS_PROFILE_RATIOS_MAX]; /* NAN: not measured */
    char measured[160]; /* on what, when, with which command; for people */
    char ignored[120];  /* what the file says that an earlier release knew; "": nothing */
};
void fus_profile_default(const struct model_cfg *cfg, struct fus_profile *ret);
/* As in a profile and in the name of its file, of weights and configuration. */
void fus_profile_fingerprint(const struct model_cfg *cfg, char ret[FUS_FINGERPRINT_BYTES]);
/* 0; -ENOENT; -EINVAL with a sentence: not JSON, a layer the model lacks, a wrong fingerprint, a
 * strategy or tensor that was removed. */
int fus_profile_read(const char *path, const struct model_cfg *cfg, const char *fingerprint,
                     struct fus_profile *ret, struct err *err);
int fus_profile_write(const struct fus_profile *p, const char *path, struct err *err); /* atomic */
struct json_t *fus_profile_json(const struct fus_profile *p); /* as in the file; NULL: no memory */
/* The smallest ratio at which the strategy loses at most `loss`, between measured points linearly
 * and never below the least one measured: 1 found, 0 not reached at any measured ratio. A curve
 * that rises by noise counts as its running minimum. full and prefix lose nothing, at 1; reuse,
 * where it was not measured, loses 1, at 0. */
int fus_profile_ratio_for(const struct fus_profile *p, enum pol_strategy s, double loss,
                          double *ret_ratio);
/* The loss to look up so that a prompt loses `loss`, this share of whose reused tokens comes from
 * records that stand behind the sink alone: losses are of merged records. */
double fus_profile_loss_of(const struct fus_profile *p, double loss, double isolated);
/* Layers into a plan, where it leaves them open (0). */
void fus_profile_apply(const struct fus_profile *p, struct fus_plan *plan);

#endif
