#include "tools/bench/zipf.h"

#include "base/mem.h"

#include <errno.h>
#include <math.h>

int zipf_init(struct zipf *z, uint32_t n, double skew)
{
    double sum = 0;
    *z = (struct zipf){mem_alloc(n * sizeof *z->sum), n};
    if (!z->sum) return -ENOMEM;
    for (uint32_t i = 0; i < n; i++)
        z->sum[i] = sum += pow(i + 1, -skew);
    return 0;
}

void zipf_fini(struct zipf *z)
{
    mem_free(z->sum);
    *z = (struct zipf){0};
}

uint32_t zipf_draw(const struct zipf *z, struct rng *r)
{
    const double u = rng_unit(r) * z->sum[z->n - 1];
    uint32_t lo = 0, hi = z->n - 1;
    while (lo < hi) {
        const uint32_t mid = (lo + hi) / 2;
        if (z->sum[mid] > u)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

void zipf_draw_distinct(const struct zipf *z, struct rng *r, unsigned k, uint32_t *ret)
{
    for (unsigned i = 0; i < k; i++) {
        ret[i] = zipf_draw(z, r);
        for (unsigned j = 0; j < i; j++) {
            if (ret[j] != ret[i]) continue;
            ret[i] = (ret[i] + 1) % z->n;
            j = -1u; /* from the start again */
        }
    }
}
