/* guard: what follows from the quality that shadows of requests show: a ladder of safer settings.
 *
 * A shadow is a full prefill of a prompt that was blended, with the answer's first tokens given; it
 * shows KL(full || blend), what plain reuse would have lost there, and how often the best token was
 * the same. Level 0 is what the operator configured; each level above recomputes more, the last but
 * one may use another strategy, the last blends no more (exact). pol_guard_see() takes a shadow of
 * the level in force and goes up when the mean loss is beyond the limit with confidence; after a
 * raise that did not help the next is the largest ratio, then comes the strategy, then exact.
 * pol_guard_trial() takes what the level below *would* have lost on the same prompt, and goes down
 * when that is well within the limit with confidence. Hence no flapping: no level is entered on
 * the evidence of another, and each way back that proved wrong doubles the evidence for the next.
 * Pure: state and numbers in, state and action out. Thread: any, one at a time per state. */
#ifndef POLICY_GUARD_H
#define POLICY_GUARD_H

#include "policy/strategy.h"

#include <stdint.h>

enum {
    POL_GUARD_SEE_MIN = 8, /* shadows before an alarm: chosen, a variance of fewer means little */
    POL_GUARD_TRIAL_MIN = 24,   /* trials before a step down: a wrong one costs quality */
    POL_GUARD_MEMORY = 128,     /* shadows that the moving means look back, about */
    POL_GUARD_PATIENCE_MAX = 5, /* doublings of POL_GUARD_TRIAL_MIN after relapses */
    POL_GUARD_CALM = 512,       /* shadows without an alarm that take one doubling back */
};
#define POL_GUARD_MARGIN 2.0 /* chosen: alarm at twice the loss that the profile promises */
/* measured: qs and query lose 0.49 to 0.54 times as much at a ratio that is 0.1 larger
 * (docs/quality.md); a raise that does not help is a fault's mark, so larger ratios promise more */
#define POL_GUARD_HALVING 0.1
#define POL_GUARD_LOSS_MIN 0.05 /* chosen: a promise of nothing at all must not alarm at noise */
#define POL_GUARD_BACK 0.7   /* chosen: the level below must stay under this share of the limit */
#define POL_GUARD_Z 2.3      /* one-sided 99 % */
#define POL_GUARD_KL_MAX 8.0 /* nats; more says no more, and one prompt must not rule the mean */
#define POL_GUARD_RATIO_MAX 0.5 /* chosen: beyond it little is saved (POL_COST_MAX) */

struct pol_guard_cfg {
    double kl_max; /* nats: the limit, if > 0; else it is POL_GUARD_MARGIN * loss of reuse's KL */
    double loss;   /* that the profile promises, as a share of plain reuse's KL … */
    double
        loss_ratio; /* … at this ratio; a larger one must do better: half per POL_GUARD_HALVING */
    double reuse_kl; /* nats: plain reuse's by the profile; where a prompt's own is less, this */
    double ratio;    /* configured */
    enum pol_strategy strategy; /* configured */
    enum pol_strategy safer;    /* tried once ratios do not help; POL_FULL: none */
};
struct pol_guard_setting { /* what a level means for requests that leave it to the worker */
    double ratio;
    enum pol_strategy strategy;
    bool exact; /* no blending for anybody */
};
struct pol_guard_shadow { /* of one prompt */
    double kl;            /* KL(full || blend), nats; not finite counts as the worst */
    double reuse_kl;      /* of plain reuse on the same rows; negative: not known */
    double agree;         /* share of rows with the same best token */
};
struct pol_guard_means { /* moving sums, weights fall by 1 - 1/POL_GUARD_MEMORY a shadow */
    unsigned count;      /* of shadows, at full weight each */
    double n, kl, agree, limit, excess, excess2;
    double n_reuse, reuse_kl, paired_kl; /* where reuse was known */
};
struct pol_guard { /* {0} to start with */
    unsigned level, patience;
    bool came_down;                          /* the last change of level */
    struct pol_guard_means now, below, left; /* left: what the last change was made on */
};
enum pol_guard_action { POL_GUARD_STAY, POL_GUARD_UP, POL_GUARD_DOWN };

unsigned pol_guard_top(const struct pol_guard_cfg *c); /* the exact level */
struct pol_guard_setting pol_guard_setting(const struct pol_guard_cfg *c, unsigned level);
enum pol_guard_action pol_guard_see(struct pol_guard *g, const struct pol_guard_cfg *c,
                                    const struct pol_guard_shadow *s);
/* Of the level below the one in force; ignored at level 0. */
enum pol_guard_action pol_guard_trial(struct pol_guard *g, const struct pol_guard_cfg *c,
                                      const struct pol_guard_shadow *s);

struct pol_guard_gauge { /* for people and metrics; NAN where nothing was seen */
    unsigned count;
    double kl, kl_low, kl_high; /* mean and its confidence interval (POL_GUARD_Z) */
    double limit, agree, reuse_kl;
    double loss; /* KL as a share of plain reuse's on the same prompts */
};
struct pol_guard_gauge pol_guard_gauge(const struct pol_guard_means *m);
/* Is request number i of a worker in the sample? Depends on seed and i alone. */
bool pol_guard_sampled(uint64_t seed, uint64_t i, double share);

#endif
