#include "tools/bench/figures.h"
#include "tools/bench/boot.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int bench_numbers(const char *list, bool whole, double max, double *ret, size_t cap)
{
    double got[64];
    size_t n = 0;
    const char *p = list;
    for (bool more = true; more; n++) {
        char *end;
        const double v = strtod(p, &end);
        more = *end == ',';
        if (end == p || !(v > 0 && v <= max) || (whole && v != floor(v)) || (*end && !more) ||
            n == cap || n == sizeof got / sizeof *got)
            return -EINVAL;
        got[n] = v;
        p = end + more;
    }
    memcpy(ret, got, n * sizeof *ret);
    return (int)n;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_quantile(double *v, size_t n, double q)
{
    if (n == 0) return NAN;
    qsort(v, n, sizeof *v, by_value);
    double at = q * (double)(n - 1);
    size_t i = (size_t)at;
    if (i + 1 >= n) return v[n - 1];
    return v[i] + (at - (double)i) * (v[i + 1] - v[i]);
}

void bench_put_quantiles(json_t *row, const char *name, double *v, size_t n)
{
    static const struct {
        const char *name;
        double q;
    } at[] = {{"p50", 0.5}, {"p95", 0.95}, {"p99", 0.99}, {"max", 1}};
    char key[64];
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        (void)snprintf(key, sizeof key, "%s_%s", name, at[i].name);
        json_object_set_new(row, key, n ? json_real(bench_quantile(v, n, at[i].q)) : json_null());
    }
}

json_t *bench_number(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

void bench_put_interval(json_t *row, const char *name, const struct boot *b)
{
    char key[64];
    json_object_set_new(row, name, bench_number(b->value));
    (void)snprintf(key, sizeof key, "%s_lo", name);
    json_object_set_new(row, key, bench_number(b->lo));
    (void)snprintf(key, sizeof key, "%s_hi", name);
    json_object_set_new(row, key, bench_number(b->hi));
}

void bench_print_head(const struct bench_column *column)
{
    for (const struct bench_column *c = column; c->title; c++)
        (void)printf("%s%*s", c > column ? " " : "", c->width, c->title);
    (void)putchar('\n');
}

void bench_print_row(const struct bench_column *column, const json_t *row)
{
    for (const struct bench_column *c = column; c->title; c++) {
        const json_t *v = json_object_get(row, c->key);
        if (c > column) (void)putchar(' ');
        if (json_is_number(v))
            (void)printf("%*.*f", c->width, c->digits, json_number_value(v));
        else
            (void)printf("%*s", c->width, json_is_string(v) ? json_string_value(v) : "-");
    }
    (void)putchar('\n');
    (void)fflush(stdout);
}
