#include "tools/bench/curves.h"

#include <stdio.h>
#include <string.h>

void curves_add(struct curves *c, const char *name, double x, double y)
{
    size_t i = 0;
    while (i < c->n && strcmp(c->line[i].name, name) != 0)
        i++;
    if (i == CURVES_MAX || (i < c->n && c->line[i].n == CURVE_POINTS_MAX)) return;
    struct curve *line = &c->line[i];
    if (i == c->n) {
        (void)snprintf(line->name, sizeof line->name, "%s", name);
        c->n++;
    }
    line->x[line->n] = x;
    line->y[line->n++] = y;
}

int curves_write(const struct curves *c, const struct svg_chart *like, const char *path,
                 struct err *err)
{
    struct svg_series series[CURVES_MAX];
    struct svg_chart chart = *like;
    for (size_t i = 0; i < c->n; i++)
        series[i] = (struct svg_series){.name = c->line[i].name,
                                        .x = c->line[i].x,
                                        .y = c->line[i].y,
                                        .n = c->line[i].n,
                                        .markers = true};
    chart.series = series;
    chart.n_series = c->n;
    return svg_write(&chart, path, err);
}
