#include "tools/bench/corr.h"

#include "base/mem.h"
#include "base/rng.h"

#include <math.h>
#include <stdlib.h>

struct place {
    double v;
    size_t at;
};

static int by_value(const void *a, const void *b)
{
    const double x = ((const struct place *)a)->v, y = ((const struct place *)b)->v;
    return (x > y) - (x < y);
}

static int by_number(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Values to ranks, in place; `p` [n] is scratch. */
static void rank(double *v, size_t n, struct place *p)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (struct place){v[i], i};
    qsort(p, n, sizeof *p, by_value);
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && !(p[end].v > p[i].v);)
            end++;
        for (size_t k = i; k < end; k++)
            v[p[k].at] = (double)(i + end - 1) / 2;
    }
}

static double pearson(const double *x, const double *y, size_t n)
{
    double mx = 0, my = 0, xx = 0, yy = 0, xy = 0;
    for (size_t i = 0; i < n; i++) {
        mx += x[i] / (double)n;
        my += y[i] / (double)n;
    }
    for (size_t i = 0; i < n; i++) {
        xx += (x[i] - mx) * (x[i] - mx);
        yy += (y[i] - my) * (y[i] - my);
        xy += (x[i] - mx) * (y[i] - my);
    }
    return xx > 0 && yy > 0 ? xy / sqrt(xx * yy) : NAN;
}

struct boot corr(const double *x, const double *y, size_t n, bool by_rank, uint64_t seed)
{
    struct rng rng = {seed};
    struct boot r = {NAN, NAN, NAN};
    double draw[BOOT_DRAWS], *a = mem_alloc((2 * n + 1) * sizeof *a), *b = a + n;
    struct place *p = mem_alloc((n + 1) * sizeof *p);
    size_t n_draws = 0;
    for (size_t d = 0; a && p && n >= 3 && d <= BOOT_DRAWS; d++) {
        for (size_t i = 0; i < n; i++) {
            const size_t at = d == 0 ? i : rng_next(&rng) % n;
            a[i] = x[at];
            b[i] = y[at];
        }
        if (by_rank) rank(a, n, p);
        if (by_rank) rank(b, n, p);
        const double v = pearson(a, b, n);
        if (d == 0)
            r.value = v; /* the lines as they are */
        else if (isfinite(v))
            draw[n_draws++] = v;
    }
    mem_free(a);
    mem_free(p);
    if (n_draws == 0 || !isfinite(r.value)) return r;
    qsort(draw, n_draws, sizeof *draw, by_number);
    r.lo = draw[(size_t)(0.025 * (double)(n_draws - 1))];
    r.hi = draw[(size_t)(0.975 * (double)(n_draws - 1) + 0.5)];
    return r;
}
