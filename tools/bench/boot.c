#include "tools/bench/boot.h"

#include "base/rng.h"

#include <math.h>
#include <stdlib.h>

static int by_value(const void *x, const void *y)
{
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

struct boot boot_ratio(const double *a, const double *b, size_t n, uint64_t seed)
{
    struct rng rng = {seed};
    struct boot r = {NAN, NAN, NAN};
    double draw[BOOT_DRAWS];
    size_t n_draws = 0;
    for (size_t d = 0; d <= BOOT_DRAWS; d++) { /* the first one: the lines themselves */
        double sa = 0, sb = 0;
        for (size_t i = 0; i < n; i++) {
            const size_t at = d > 0 ? rng_next(&rng) % n : i;
            sa += a[at];
            sb += b ? b[at] : 1;
        }
        const double v = sb != 0 ? sa / sb : NAN;
        if (d == 0)
            r.value = v;
        else if (isfinite(v))
            draw[n_draws++] = v;
    }
    if (n_draws == 0) return r;
    qsort(draw, n_draws, sizeof *draw, by_value);
    r.lo = draw[(size_t)(0.025 * (double)(n_draws - 1))];
    r.hi = draw[(size_t)(0.975 * (double)(n_draws - 1) + 0.5)];
    return r;
}
