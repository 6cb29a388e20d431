/* The choice of draw.h on the host: passes over all distances, and no sort. The k-th of them, or
 * the one where a sum of weights is reached, is found byte by byte from the top. */
#include "kernels/draw.h"

#include <stdbool.h>

static const struct draw_edge NO_EDGE = {UINT32_MAX, UINT32_MAX};

/* The first of the largest; n: nothing is a number above -INFINITY. */
static size_t best_of(const float *x, size_t n)
{
    float top = -INFINITY;
    size_t best = n;
    for (size_t i = 0; i < n; i++)
        if (x[i] > top) top = x[best = i];
    return best;
}

static uint64_t amount(bool by_weight, uint32_t distance)
{
    return by_weight ? draw_weight(distance) : 1;
}

/* The token with which the nearest ones first hold `left`, which all together do. */
static struct draw_edge edge_of(const uint32_t *far, size_t n, bool by_weight, uint64_t left)
{
    uint32_t at = 0, mask = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        uint64_t sum[256] = {0};
        uint32_t bin = 0;
        for (size_t i = 0; i < n; i++)
            if ((far[i] & mask) == at) sum[far[i] >> shift & 255u] += amount(by_weight, far[i]);
        while (sum[bin] < left)
            left -= sum[bin++];
        at |= bin << shift;
        mask |= 255u << shift;
    }
    const uint64_t each = amount(by_weight, at);
    uint64_t equal = (left + each - 1) / each;
    size_t i = 0;
    while (far[i] != at || --equal > 0)
        i++;
    return (struct draw_edge){at, (uint32_t)i};
}

static uint64_t sum_of(const uint32_t *far, size_t n, struct draw_edge e, uint64_t least)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += draw_kept(e, least, far[i], (uint32_t)i);
    return sum;
}

int32_t kn_draw_row(const float *x, size_t n, const struct kn_draw *d, uint32_t *room)
{
    const size_t best = best_of(x, n);
    struct draw_edge e = NO_EDGE;
    if (best == n || isinf(x[best])) return -1;
    if (d->rate == 0) return (int32_t)best;
    for (size_t i = 0; i < n; i++)
        room[i] = draw_distance(x[i], x[best], d->rate);
    if (d->k > 0 && d->k < n) e = edge_of(room, n, false, d->k);
    if (d->share != DRAW_ALL) {
        const uint64_t limit = draw_limit(sum_of(room, n, e, 0), d->share);
        e = draw_nearer(e, edge_of(room, n, true, limit));
    }
    uint64_t goal = draw_part(sum_of(room, n, e, d->least), d->random);
    for (size_t i = 0;; i++) {
        const uint64_t weight = draw_kept(e, d->least, room[i], (uint32_t)i);
        if (goal < weight) return (int32_t)i;
        goal -= weight;
    }
}
