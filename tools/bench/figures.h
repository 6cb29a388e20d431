/* figures: lists of numbers that options give, quantiles, intervals, and rows of a report as a
 * table. */
#ifndef TOOLS_BENCH_FIGURES_H
#define TOOLS_BENCH_FIGURES_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* The numbers of a list such as "1,32,512", all above 0 and at most `max`. How many there are, or
 * -EINVAL, also for none and for more than `cap`; ret [cap] is untouched then. */
int bench_numbers(const char *list, bool whole, double max, double *ret, size_t cap);

/* Linear interpolation between the values, which are sorted by this. NAN when there are none. */
double bench_quantile(double *v, size_t n, double q);

/* Sets NAME_p50, NAME_p95, NAME_p99 and NAME_max of the same values; null where there are none. */
void bench_put_quantiles(json_t *row, const char *name, double *v, size_t n);

json_t *bench_number(double v); /* null when it is not finite */
struct boot;
/* name, NAME_lo, NAME_hi: 95 % */
void bench_put_interval(json_t *row, const char *name, const struct boot *b);

struct bench_column {
    const char *title, *key; /* key: of a row */
    int width, digits;       /* width < 0: aligned to the left */
};
/* A list of columns ends with {0}. What is absent or no number is a "-". */
void bench_print_head(const struct bench_column *column);
void bench_print_row(const struct bench_column *column, const json_t *row);

#endif
