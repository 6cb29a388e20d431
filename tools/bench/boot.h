/* boot: intervals of means and of ratios of means, by resampling lines.
 *
 * Percentile bootstrap: lines are drawn anew, with replacement, the same ones for both sides, so
 * that what all methods find hard does not widen their comparison. Same seed, same interval.
 * Thread: any. Source: Efron, Tibshirani 1993, chapter 13. */
#ifndef TOOLS_BENCH_BOOT_H
#define TOOLS_BENCH_BOOT_H

#include <stddef.h>
#include <stdint.h>

enum { BOOT_DRAWS = 2000 };
struct boot {             /* NAN where nothing can be said: no lines, or a denominator of 0 */
    double value, lo, hi; /* lo…hi: 95 % */
};
/* mean(a) / mean(b) over n lines; b NULL: mean(a). */
struct boot boot_ratio(const double *a, const double *b, size_t n, uint64_t seed);

#endif
