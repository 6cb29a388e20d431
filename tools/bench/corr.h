/* corr: how well one number per line predicts another, with intervals by resampling lines.
 *
 * Pearson's r on the values, Spearman's rho on their ranks (ties share the mean rank), ranked anew
 * in every draw. Same seed, same interval. Thread: any. */
#ifndef TOOLS_BENCH_CORR_H
#define TOOLS_BENCH_CORR_H

#include "tools/bench/boot.h"

#include <stdbool.h>

/* NAN where nothing can be said: fewer than three lines, a value that never changes, no memory. */
struct boot corr(const double *x, const double *y, size_t n, bool by_rank, uint64_t seed);

#endif
