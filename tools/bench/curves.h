/* curves: named lines, collected point by point and drawn as one chart. Thread: one. */
#ifndef TOOLS_BENCH_CURVES_H
#define TOOLS_BENCH_CURVES_H

#include "tools/bench/svg.h"

enum { CURVES_MAX = 32, CURVE_POINTS_MAX = 64 };
struct curves { /* init {0} */
    size_t n;
    struct curve {
        char name[40];
        size_t n;
        double x[CURVE_POINTS_MAX], y[CURVE_POINTS_MAX];
    } line[CURVES_MAX];
};
void curves_add(struct curves *c, const char *name, double x, double y); /* what is too much goes */
/* like: the chart without its series. */
int curves_write(const struct curves *c, const struct svg_chart *like, const char *path,
                 struct err *err);

#endif
