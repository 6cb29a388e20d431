/* step_budget: how much of a prefill may run between two decode steps, from what its steps took.
 *
 * Streams shall not wait for prompts: between two decode steps lies other work of
 * FUS_STEP_BUDGET_SHARE of a decode step's time in the mean, and of a decode step's time at
 * most: steps seldom end where the share does, and what one gap leaves goes to the next. What a
 * step takes is predicted from those of its kind before: one that can be cut is cut so that it
 * fits, one that cannot and would not fit runs by itself right behind a decode step, and so does
 * the smallest slice where the share is less than that takes. So prefills always go on, by one
 * step for each token at the least. Where nobody reads an answer before its end, gaps may take
 * FUS_STEP_BUDGET_AHEAD_STEPS decode steps' time from those to come, FUS_STEP_BUDGET_AHEAD_NS at
 * least: prompts that arrive together then decode together, and the mean stays. Pure: time comes
 * as a parameter. Thread: one. */
#ifndef FUSOR_CORE_STEP_BUDGET_H
#define FUSOR_CORE_STEP_BUDGET_H

#include "fusor/core/prefill.h"

#define FUS_STEP_BUDGET_SHARE 0.6
#define FUS_STEP_BUDGET_MOST 1.0 /* with what earlier gaps left */
#define FUS_STEP_BUDGET_AHEAD_NS 250e6
enum {
    FUS_STEP_BUDGET_AHEAD_STEPS = 64, /* measured: docs/benchmarks.md */
    FUS_STEP_BUDGET_ROWS_MIN = 64,    /* chosen: with fewer rows weights are streamed for little */
    FUS_STEP_BUDGET_ROWS_MAX = 1024,  /* chosen: a wrong guess costs more than the clock does */
};

struct fus_step_budget {                   /* zeros: nothing is known yet */
    double ns_per_work[FUS_STEP_KINDS][2]; /* [1]: fewer than half of FUS_STEP_BUDGET_ROWS_MIN */
    double decode_ns;                      /* of a decode step, smoothed */
    double kept_ns;                        /* left by gaps before this one; < 0: taken from it */
    bool ahead; /* gaps may take from those to come: nobody reads along */
    uint64_t decode_end_ns;
    unsigned n_since; /* steps since then */
};
/* Something decodes from now on, and nothing did before. */
void fus_step_budget_begin(struct fus_step_budget *p, uint64_t now_ns);
void fus_step_budget_decoded(struct fus_step_budget *p, uint64_t now_ns, uint64_t took_ns);
/* Rows of the step that may run now; 0: a decode step goes before it. */
size_t fus_step_budget_rows(const struct fus_step_budget *p, const struct fus_step *s,
                            uint64_t now_ns);
void fus_step_budget_ran(struct fus_step_budget *p, const struct fus_step *s, size_t rows,
                         uint64_t took_ns);
/* What is left of the share; < 0: nothing. And what rows of a step will take; 0: unknown. */
double fus_step_budget_left_ns(const struct fus_step_budget *p, uint64_t now_ns);
double fus_step_budget_predict_ns(const struct fus_step_budget *p, const struct fus_step *s,
                                  size_t rows);

#endif
