/* cost: what computing takes on this machine with this model, as eight numbers that are fitted.
 *
 * The time of a prefill without waiting for loads is taken as a sum: each kind of work has a count
 * (struct pol_work) and a price (struct pol_cost), name by name and in the same order. The counts
 * come from the plan (policy/control.h), the prices from measured prefills: pol_cost_fit() once,
 * pol_cost_correct() with every request from then on. Prices are never negative or NaN, whatever
 * goes in.
 * A full row is a kv_row and a row. Times are seconds. Pure; thread: any. */
#ifndef POLICY_COST_H
#define POLICY_COST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { POL_PRICES = 8 };
struct pol_cost {
    union {
        struct {
            double fixed_s;  /* per request */
            double layer_s;  /* per layer and pass, however few rows */
            double row_s;    /* a row through one layer, without its K,V */
            double kv_row_s; /* K,V of a row in one layer */
            double pair_s;   /* one row attending to one key in one layer */
            double place_s;  /* placing one stored token in one layer */
            double mass_s;   /* scoring one key against one row in one layer */
            double head_s;   /* logits of one row */
        };
        double price[POL_PRICES]; /* the same */
    };
    unsigned row_step; /* rows come in steps of this: the GEMM's natural size; 0 or 1 = any */
};
/* How often each price is paid, summed over layers and passes. */
struct pol_work {
    union {
        struct {
            double requests, layers, rows, kv_rows, pairs, places, masses, heads;
        };
        double count[POL_PRICES];
    };
};
struct pol_cost_sample {
    struct pol_work work;
    double s; /* measured, without waiting for loads */
};

double pol_cost_time(const struct pol_cost *c, const struct pol_work *w);

/* What the prices are to each other by arithmetic alone: a first guess, right except for a common
 * factor and for what memory and threads add. */
struct pol_dims { /* of the model */
    unsigned D, H, G, K, F, V;
};
void pol_cost_guess(const struct pol_dims *d, struct pol_cost *ret);

/* Non-negative least squares of the relative errors; what fits far worse than the rest counts less.
 * *ret is on entry a guess at how the prices are to each other, or all 0: few or noisy samples
 * cannot tell work apart that always comes together, and then the guess decides. Samples with a
 * time that is not positive or a count that is not finite are left out. row_step is kept. What
 * neither a sample nor the guess knows gets price 0. -EINVAL no sample is left. */
int pol_cost_fit(const struct pol_cost_sample *x, size_t n, struct pol_cost *ret);

/* One more request is known: all times move a little towards it. One measurement, however wrong,
 * moves them by 1 % at most, so that a burst of other load does not look like another machine. */
void pol_cost_correct(struct pol_cost *c, double predicted_s, double measured_s);

#endif
