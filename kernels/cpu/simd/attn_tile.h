/* attn_tile: a chunk's packed rows, ATTN_R at a time, against one page after the other. attn.c and
 * attn_whole.h include it behind what differs: open_k() and open_v() give K and V of a page to a
 * chunk, scores() those of R rows [R, P] in log2 units, attend_tile() what these weigh to the rows'
 * sums; attend_page() does both for the first rows, as many as it says. Thread: any. */
#ifndef KERNELS_CPU_SIMD_ATTN_TILE_H
#define KERNELS_CPU_SIMD_ATTN_TILE_H

#include "kernels/cpu/simd/cases.h"

VF_INLINE void tile_page(const int R, struct chunk *c, size_t t0, const void *k, const void *v,
                         int32_t key0)
{
    float s[ATTN_R * P] __attribute__((aligned(64)));
    const int64_t last = (int64_t)c->a->pos[c->row0 + (t0 + (size_t)R - 1) / c->group] - key0 + 1;
    scores(R, c, t0, k, s);
    chunk_cap(c, s, (size_t)R);
    attend_tile(R, c, t0, v, key0, last < P ? (size_t)last : P, s);
}

static void chunk_run(struct chunk *c)
{
    size_t rows = c->n * c->group;
    const int32_t *pos = c->a->pos + c->row0;
    size_t n_pages = (size_t)pos[c->n - 1] / P + 1;
    chunk_clear(c, rows);
    for (size_t page = chunk_first_page(c); page < n_pages; page++) {
        const void *k = open_k(c, page), *v = open_v(c, page);
        int32_t key0 = (int32_t)(page * P);
        if (c->value == 1) chunk_prefetch(c, page + 1, n_pages); /* 8 bits: read once */
        for (size_t t = attend_page(c, k, v, key0); t < rows; t += ATTN_R) {
            size_t R = rows - t < ATTN_R ? rows - t : ATTN_R;
            if (pos[(t + R - 1) / c->group] < key0 || chunk_skips(c, t, key0) == P) continue;
            switch (R) {
#define CASE(n)                                                                                    \
    case n:                                                                                        \
        tile_page(n, c, t, k, v, key0);                                                            \
        break;
                CASES_6(CASE)
#undef CASE
            default:
                break;
            }
        }
    }
}

/* Probabilities of R packed rows for one page, added to sum[P]. */
VF_INLINE void mass_tile(const int R, const struct chunk *c, size_t t0, const void *k, int32_t key0,
                         float *sum)
{
    float s[ATTN_R * P] __attribute__((aligned(64)));
    scores(R, c, t0, k, s);
    chunk_cap(c, s, (size_t)R);
    for (int r = 0; r < R; r++)
        chunk_add_mass(c, t0 + (size_t)r, key0, s + r * P, sum);
}

static void mass_page(struct chunk *c, size_t page, float *sum)
{
    size_t rows = c->n * c->group;
    const void *k = open_k(c, page);
    for (size_t t = 0; t < rows; t += ATTN_R) {
        size_t R = rows - t < ATTN_R ? rows - t : ATTN_R;
        if (chunk_skips(c, t, (int32_t)(page * P)) == P) continue;
        switch (R) {
#define CASE(n)                                                                                    \
    case n:                                                                                        \
        mass_tile(n, c, t, k, (int32_t)(page * P), sum);                                           \
        break;
            CASES_6(CASE)
#undef CASE
        default:
            break;
        }
    }
}

#endif
