/* A rate per kind of step rather than one for all: a row of K,V, a row of attention behind 3000
 * keys and a token put to its place have nothing in common, nor have one row and a hundred. Rates
 * rise faster than they fall, since a slice that is too short costs a little throughput and one
 * that is too long is a pause. One odd measurement (the thread had lost its core) moves a rate by a
 * quarter at most. */
#include "fusor/core/step_budget.h"

#include <math.h>

/* chosen */
#define RISE 0.25
#define FALL 0.0625
#define DECODE_WEIGHT 0.125
#define ODD 2.0 /* what took that many times as long as predicted counts as that */

static double work(const struct fus_step *s, size_t rows)
{
    return s->fixed + s->row * (double)rows;
}

/* A few rows go another way through the kernels than many do. */
static size_t column(const struct fus_step *s)
{
    return !s->whole && s->rows < FUS_STEP_BUDGET_ROWS_MIN / 2;
}

static double ahead_ns(const struct fus_step_budget *p)
{
    const double steps = FUS_STEP_BUDGET_AHEAD_STEPS * p->decode_ns;
    return p->ahead ? fmax(FUS_STEP_BUDGET_AHEAD_NS, steps) : 0;
}

void fus_step_budget_begin(struct fus_step_budget *p, uint64_t now_ns)
{
    p->kept_ns = 0;
    p->decode_end_ns = now_ns;
}

void fus_step_budget_decoded(struct fus_step_budget *p, uint64_t now_ns, uint64_t took_ns)
{
    const double took = (double)took_ns,
                 most = (FUS_STEP_BUDGET_MOST - FUS_STEP_BUDGET_SHARE) * p->decode_ns;
    const double ahead = ahead_ns(p), kept = fus_step_budget_left_ns(p, now_ns - took_ns) - ahead;
    p->kept_ns = fmin(fmax(kept, -ahead), most);
    p->decode_ns = p->decode_ns > 0 ? p->decode_ns + DECODE_WEIGHT * (took - p->decode_ns) : took;
    p->decode_end_ns = now_ns;
    p->n_since = 0;
}

double fus_step_budget_left_ns(const struct fus_step_budget *p, uint64_t now_ns)
{
    return FUS_STEP_BUDGET_SHARE * p->decode_ns + p->kept_ns + ahead_ns(p) -
           (double)(now_ns - p->decode_end_ns);
}

double fus_step_budget_predict_ns(const struct fus_step_budget *p, const struct fus_step *s,
                                  size_t rows)
{
    return p->ns_per_work[s->kind][column(s)] * work(s, rows);
}

size_t fus_step_budget_rows(const struct fus_step_budget *p, const struct fus_step *s,
                            uint64_t now_ns)
{
    const double left = fus_step_budget_left_ns(p, now_ns), rate = p->ns_per_work[s->kind][0];
    const bool first = p->n_since == 0;
    if (s->whole || s->rows <= FUS_STEP_BUDGET_ROWS_MIN) {
        const double takes = fus_step_budget_predict_ns(p, s, s->rows);
        return first || (takes > 0 && takes <= left) ? s->rows : 0;
    }
    double fit = rate > 0 ? (left / rate - s->fixed) / s->row : 0;
    if (!(fit >= FUS_STEP_BUDGET_ROWS_MIN)) {
        if (!first) return 0;
        fit = FUS_STEP_BUDGET_ROWS_MIN;
    }
    fit = fit < FUS_STEP_BUDGET_ROWS_MAX ? fit : FUS_STEP_BUDGET_ROWS_MAX;
    if (fit >= (double)s->rows) return s->rows;
    /* As many slices as it takes, of one length: a short rest would stream weights for little. */
    const size_t n = (s->rows + (size_t)fit - 1) / (size_t)fit;
    return (s->rows + n - 1) / n;
}

void fus_step_budget_ran(struct fus_step_budget *p, const struct fus_step *s, size_t rows,
                         uint64_t took_ns)
{
    double *rate = &p->ns_per_work[s->kind][column(s)];
    const double done = work(s, rows), seen = done > 0 ? (double)took_ns / done : 0;
    p->n_since++;
    if (seen <= 0) return;
    if (*rate <= 0)
        *rate = seen;
    else if (seen > *rate)
        *rate += RISE * ((seen < ODD * *rate ? seen : ODD * *rate) - *rate);
    else
        *rate += FALL * (seen - *rate);
}
