/* The fit minimises sum w_i ((a_i · p - s_i) / s_i)^2 over p >= 0 by descent along one coordinate
 * at a time on the 8 x 8 normal equations: with so few unknowns that is exact to rounding in well
 * under a millisecond, and needs no case analysis when two kinds of work always come together.
 * Rejected: Lawson-Hanson (the same answer, five times the code). Weights are those of Huber's
 * estimator, from the median residual of the round before: a sample taken while the machine did
 * something else must not bend all prices. */
#include "policy/cost.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HUBER_ROUNDS = 6, SWEEPS_MAX = 20000, SAMPLES_MAX = 256 };
static const double CORRECT_WEIGHT = 0.05, CORRECT_STEP_MAX = 0.01; /* chosen: some 20 requests */
/* Chosen: a price at twice its guess must explain 14 % of one sample. */
static const double GUESS_WEIGHT = 0.02;
/* Chosen: nor is any work five times as cheap as arithmetic says, whatever noise says. */
static const double GUESS_SHARE_MIN = 0.2;
static const double HUBER_RESIDUALS = 2.5; /* chosen: medians beyond which a sample is an outlier */

static double dot(const double a[POL_PRICES], const double b[POL_PRICES])
{
    double sum = 0;
    for (int k = 0; k < POL_PRICES; k++)
        sum += a[k] * b[k];
    return sum;
}

double pol_cost_time(const struct pol_cost *c, const struct pol_work *w)
{
    return dot(c->price, w->count);
}

/* Operations, in the time of one of a GEMM. Attention reaches about a third of a GEMM's rate, and
 * placing a token is a few passes over its K,V (measured on the CPU backend; hence a guess). */
void pol_cost_guess(const struct pol_dims *d, struct pol_cost *ret)
{
    const double D = d->D, HK = (double)d->H * d->K, GK = (double)d->G * d->K, op = 1e-11;
    const double row = 2 * D * (2 * HK + 3.0 * d->F) * op, kv = 4 * D * GK * op;
    *ret = (struct pol_cost){.fixed_s = 10 * row,
                             .layer_s = 5 * (row + kv),
                             .row_s = row,
                             .kv_row_s = kv,
                             .pair_s = 3 * 4 * HK * op,
                             .place_s = 40 * GK * op,
                             .mass_s = 3 * 2 * HK * op,
                             .head_s = 2 * D * d->V * op,
                             .row_step = ret->row_step};
}

/* ---- fitting ---- */

struct fit {
    double a[SAMPLES_MAX][POL_PRICES]; /* counts over the measured time: a · p should be 1 */
    double weight[SAMPLES_MAX];
    size_t n;
    double scale[POL_PRICES]; /* of the columns, so that all prices are of one size */
    double p[POL_PRICES];     /* scaled prices */
    double guess[POL_PRICES]; /* the same, or 0: none */
};

static void add_sample(struct fit *f, const struct pol_cost_sample *x)
{
    const double *count = x->work.count;
    if (!(isfinite(x->s) && x->s > 0)) return;
    for (int k = 0; k < POL_PRICES; k++) {
        if (!(isfinite(count[k]) && count[k] >= 0)) return;
        f->a[f->n][k] = count[k] / x->s;
    }
    f->weight[f->n++] = 1;
}

static void scale_columns(struct fit *f)
{
    for (int k = 0; k < POL_PRICES; k++) {
        double sum = 0;
        for (size_t i = 0; i < f->n; i++)
            sum += f->a[i][k] * f->a[i][k];
        f->scale[k] = sum > 0 && isfinite(sum) ? 1 / sqrt(sum) : 0;
        for (size_t i = 0; i < f->n; i++)
            f->a[i][k] *= f->scale[k];
    }
}

/* Least squares with the weights of now, p >= 0. */
static void descend(struct fit *f)
{
    double g[POL_PRICES][POL_PRICES] = {0}, rhs[POL_PRICES] = {0};
    for (size_t i = 0; i < f->n; i++)
        for (int k = 0; k < POL_PRICES; k++) {
            rhs[k] += f->weight[i] * f->a[i][k];
            for (int j = 0; j < POL_PRICES; j++)
                g[k][j] += f->weight[i] * f->a[i][k] * f->a[i][j];
        }
    for (int k = 0; k < POL_PRICES; k++) {
        if (!(f->guess[k] > 0)) continue;
        g[k][k] += GUESS_WEIGHT / (f->guess[k] * f->guess[k]);
        rhs[k] += GUESS_WEIGHT / f->guess[k];
    }
    for (int sweep = 0; sweep < SWEEPS_MAX; sweep++) {
        double moved = 0, size = 0;
        for (int k = 0; k < POL_PRICES; k++) {
            if (!(g[k][k] > 0)) continue;
            double p = f->p[k] + (rhs[k] - dot(g[k], f->p)) / g[k][k];
            if (!(p > GUESS_SHARE_MIN * f->guess[k])) p = GUESS_SHARE_MIN * f->guess[k];
            moved = fmax(moved, fabs(p - f->p[k]));
            size = fmax(size, p);
            f->p[k] = p;
        }
        if (moved <= 1e-10 * size) return;
    }
}

/* The guess, as fast as the samples are on the whole, by that factor; none where it is no number.
 */
static double scale_guess(struct fit *f, const struct pol_cost *c)
{
    const double *guess = c->price;
    double sum = 0, square = 0;
    for (int k = 0; k < POL_PRICES; k++)
        f->guess[k] = f->scale[k] > 0 && isfinite(guess[k]) ? guess[k] / f->scale[k] : 0;
    for (size_t i = 0; i < f->n; i++) {
        const double b = dot(f->a[i], f->guess);
        sum += b;
        square += b * b;
    }
    const double factor = square > 0 && isfinite(square) ? sum / square : 0;
    for (int k = 0; k < POL_PRICES; k++) {
        f->guess[k] *= factor;
        const double weight = GUESS_WEIGHT / (f->guess[k] * f->guess[k]);
        if (!(f->guess[k] > 0 && isfinite(weight))) f->guess[k] = 0;
    }
    return factor;
}

static int by_residual(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void weigh(struct fit *f)
{
    double off[SAMPLES_MAX], sorted[SAMPLES_MAX];
    for (size_t i = 0; i < f->n; i++)
        off[i] = fabs(dot(f->a[i], f->p) - 1);
    memcpy(sorted, off, f->n * sizeof *off);
    qsort(sorted, f->n, sizeof *sorted, by_residual);
    const double most = HUBER_RESIDUALS * sorted[f->n / 2] + 1e-9;
    for (size_t i = 0; i < f->n; i++)
        f->weight[i] = off[i] <= most ? 1 : most * most / (off[i] * off[i]);
}

int pol_cost_fit(const struct pol_cost_sample *x, size_t n, struct pol_cost *ret)
{
    struct fit f;
    double *price = ret->price;
    f.n = 0;
    for (size_t i = 0; i < n && f.n < SAMPLES_MAX; i++)
        add_sample(&f, &x[i]);
    if (f.n == 0) return -EINVAL;
    scale_columns(&f);
    const double factor = scale_guess(&f, ret);
    memset(f.p, 0, sizeof f.p);
    for (int round = 0; round < HUBER_ROUNDS; round++) {
        if (round > 0) weigh(&f);
        descend(&f);
    }
    for (int k = 0; k < POL_PRICES; k++)
        price[k] = f.scale[k] > 0 ? f.p[k] * f.scale[k] : price[k] * factor;
    for (int k = 0; k < POL_PRICES; k++)
        if (!(price[k] >= 0 && isfinite(price[k]))) price[k] = 0;
    return 0;
}

void pol_cost_correct(struct pol_cost *c, double predicted_s, double measured_s)
{
    if (!(isfinite(predicted_s) && isfinite(measured_s) && predicted_s > 0 && measured_s > 0))
        return;
    double step = CORRECT_WEIGHT * log(measured_s / predicted_s);
    step = fmin(fmax(step, -CORRECT_STEP_MAX), CORRECT_STEP_MAX);
    for (int k = 0; k < POL_PRICES; k++)
        c->price[k] *= exp(step);
}
