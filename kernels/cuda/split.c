#include "kernels/cuda/split.h"

#include <stdbool.h>

/* Of one H100, heads of 128 (docs/benchmarks.md, the second time). With these and list scheduling
 * the five attention figures there come out as 56, 83, 122, 122 and 358 us, where 56, 84, 102, 120
 * and 360 were measured: blocks that have a multiprocessor to themselves are faster than this. */
static const double KEY_US = 0.038;     /* of a block, of two on a multiprocessor */
static const double BLOCK_US = 1;       /* what a block takes besides: queries, the first tiles */
static const double FOLD_B_US = 1.26e6; /* bytes a microsecond of the fold: 17.6 MB in 14 us */
static const double LAUNCH_US = 3;
enum {
    CANDIDATES = 16 /* chosen: bounds the host's work where contexts are long */
};

static unsigned parts_of(size_t n_keys)
{
    return (unsigned)((n_keys + SPLIT_PART - 1) / SPLIT_PART);
}

static size_t keys_to(const struct split *s, size_t row) /* up to the row's own */
{
    return s->pos ? (size_t)s->pos[row] + 1 : (row + 1) * s->n_keys / s->m;
}

struct block { /* of a tile of rows: its keys, those that it folds itself, parts behind them */
    size_t from, end, folded;
    unsigned n_apart;
};

static struct block block_of(const struct split *s, size_t tile, unsigned first)
{
    const size_t n = s->m * s->group, e0 = tile * SPLIT_ROWS, stop = (size_t)first * SPLIT_PART;
    const size_t after = e0 + SPLIT_ROWS < n ? e0 + SPLIT_ROWS : n;
    const size_t least = keys_to(s, e0 / s->group);
    struct block b = {.end = keys_to(s, (after - 1) / s->group)};
    if (s->window && least > s->window) b.from = least - s->window;
    if (b.from < stop) b.folded = (b.end < stop ? b.end : stop) - b.from;
    if (b.end > stop)
        b.n_apart = parts_of(b.end) - (b.from > stop ? (unsigned)(b.from / SPLIT_PART) : first);
    return b;
}

/* All blocks' time shared out evenly over the places and, where parts are apart, half of one of
 * those, which come last. But no less than the longest block's; nor, where there are more blocks
 * than places, that of blocks behind each other in the place that is free first. */
struct split_us split_estimate(const struct split *s, unsigned first)
{
    const double key = KEY_US * s->K / 128, part = BLOCK_US + key * SPLIT_PART;
    const size_t tiles = (s->m * s->group + SPLIT_ROWS - 1) / SPLIT_ROWS;
    const size_t round = s->places > s->G ? s->places / s->G : 1;
    double sum = 0, longest = 0, before = 0, slots = 0;
    bool apart = false;
    for (size_t i = 0; i < tiles; i++) {
        const struct block b = block_of(s, tiles - 1 - i, first);
        const double t = BLOCK_US + key * (double)b.folded;
        sum += t + b.n_apart * BLOCK_US + key * (double)(b.end - b.from - b.folded);
        const double chain = i && i % round == 0 ? before + (double)(i / round) * t : t;
        longest = chain > longest ? chain : longest;
        before = t;
        if (b.n_apart == 0) continue;
        apart = true;
        slots += b.n_apart + (b.folded > 0);
    }
    const double even = sum * s->G / (double)s->places + (apart ? part / 2 : 0);
    const double bytes = slots * SPLIT_ROWS * s->G * (s->K + 2) * sizeof(float);
    return (struct split_us){even > longest ? even : longest,
                             apart ? LAUNCH_US + bytes / FOLD_B_US : 0};
}

static double us_of(const struct split *s, unsigned first)
{
    const struct split_us us = split_estimate(s, first);
    return us.blocks + us.fold;
}

unsigned split_first(const struct split *s, unsigned least)
{
    const unsigned all = parts_of(s->n_keys), step = (all + CANDIDATES - 1) / CANDIDATES;
    unsigned best = all;
    double best_us = us_of(s, all);
    for (unsigned first = all; first > step;) {
        first -= step;
        if (first < least) break;
        const double us = us_of(s, first);
        if (us < best_us) best = first, best_us = us;
    }
    return best;
}
