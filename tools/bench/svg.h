/* svg: line charts as one self-contained SVG file.
 *
 * No scripts, fonts or other outside resources: any browser or viewer shows it, and it reads well
 * in print. Series differ in colour, dash and marker, so colour-blind readers and grey printers
 * tell them apart. A logarithmic x axis gets ticks at 1-2-5 steps, or at powers of two when x is in
 * bytes. Texts are escaped. Thread: any; pure but for svg_write(). */
#ifndef TOOLS_BENCH_SVG_H
#define TOOLS_BENCH_SVG_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

struct buf;

struct svg_series {
    const char *name;
    const double *x, *y; /* [n]; drawn in this order; points that are not finite leave a gap */
    size_t n;
    bool markers;
};
struct svg_chart {
    const char *title, *note;      /* note: a line in small print below the title; NULL = none */
    const char *x_label, *y_label; /* with their units */
    bool x_log, x_bytes;           /* x_bytes: ticks as KiB, MiB, GiB, … */
    double y_max;                  /* 0 = from the data; the y axis always starts at 0 */
    const struct svg_series *series;
    size_t n_series;
};
/* Append the chart to `out`. 0, -EINVAL nothing to draw (no finite point, or x <= 0 on a
 * logarithmic axis), -ENOMEM. */
int svg_chart(const struct svg_chart *c, struct buf *out);
int svg_write(const struct svg_chart *c, const char *path, struct err *err);

/* "1.5 GiB", "640 MiB": a size for people. */
void svg_size_text(double bytes, char *ret, size_t cap);

#endif
