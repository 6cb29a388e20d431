/* moe_tile: what grouped products of a mixture of experts share: which expert and rows a block has.
 * Thread: as launch.h, and device code. */
#ifndef KERNELS_CUDA_MOE_TILE_H
#define KERNELS_CUDA_MOE_TILE_H

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/moe.h"

struct mx_tile { /* rows 0: nothing to do */
    unsigned expert, at, rows;
};

/* The tile of a slot. Either slots are pairs, and those that begin a tile have it; or expert e has
 * the slots from first[e] / ROWS + e on, which are enough for its tiles, and one more at times:
 * with f = a ROWS + r pairs before and f' = a' ROWS + r' behind it that are a' - a + 1. */
template <unsigned ROWS>
static __device__ __forceinline__ struct mx_tile mx_tile_of(const struct cu_moe &g, bool by_pair,
                                                            unsigned slot)
{
    const unsigned lane = threadIdx.x % CU_WARP;
    unsigned e = 0;
    for (unsigned i = lane; !by_pair && i - lane < g.n; i += CU_WARP)
        e += __popc(__ballot_sync(CU_ALL, i < g.n && g.first[i] / ROWS + i <= slot));
    e = by_pair ? g.owner[slot] : e - 1;
    const unsigned from = g.first[e], end = g.first[e + 1];
    const unsigned at = by_pair ? slot : from + (slot - from / ROWS - e) * ROWS;
    const bool other = g.panel && e - g.panel_first >= g.n_panel; /* below it: as well */
    if (at >= end || (at - from) % ROWS != 0 || other) return {e, at, 0};
    return {e, at, end - at < ROWS ? end - at : ROWS};
}

static inline size_t mx_pairs(const struct cu_moe *g)
{
    return g->m * g->used;
}

struct mx_grid {
    dim3 grid;
    bool by_pair;
};

/* cols: of a tile */
static struct mx_grid mx_grid_of(const struct cu_moe *g, bool up, unsigned rows, unsigned cols)
{
    const size_t pairs = mx_pairs(g), slots = pairs / rows + g->n;
    const bool by_pair = pairs <= slots;
    return {dim3(unsigned(by_pair ? pairs : slots), cu_blocks(up ? g->F : g->D, cols)), by_pair};
}

#endif
