/* Mixtures whose experts are codes: what coded.cu does for one weight, for those of a layer.
 *
 * Few rows: a block has 8, 16 or 32 of an expert and 16 or 32 columns of what comes out. Of gate
 * and up it has the tiles that belong together, so the activation needs no launch. Many rows (more
 * than CU_CODED_FEW an expert on average): the codes of as many experts as the panel has room for
 * become bf16 there, those of experts without rows excepted, and moe.cu multiplies them. A row's
 * bits are its own in either way, and the two differ by the order of sums. */
#include "kernels/cuda/coded_tile.h"
#include "kernels/cuda/moe_tile.h"
#include "kernels/cuda/operand.h"

static __device__ __forceinline__ struct cu_coded md_weight(const struct cu_moe &g, unsigned e,
                                                            bool up)
{
    struct cu_coded w = up ? g.gate_up : g.down;
    w.data = static_cast<const char *>(up ? g.expert[e].gate_up.data : g.expert[e].down.data);
    return w;
}

/* ---- few rows ---- */

/* The lane's rows of the activations: 8 e + lane / 4 of the tile. */
template <class D, bool up> struct md_rows {
    const uint16_t *a;
    uint32_t at[D::EIGHTS];
    unsigned n, k; /* rows, values of each */

    __device__ __forceinline__ md_rows(const struct cu_moe &g, const struct mx_tile &tile)
        : a(static_cast<const uint16_t *>(up ? g.in : g.mid)), n(tile.rows),
          k(unsigned(up ? g.D : g.F))
    {
        CU_UNROLL
        for (unsigned e = 0; e < D::EIGHTS; e++) {
            const unsigned row = e * 8 + threadIdx.x % CU_WARP / 4;
            at[e] = row >= n ? 0 : up ? g.row[tile.at + row] : tile.at + row;
        }
    }

    __device__ __forceinline__ struct cd_eight operator()(unsigned e, size_t col) const
    {
        if (e * 8 + threadIdx.x % CU_WARP / 4 >= n || col >= k) return {{0, 0, 0, 0}};
        return *reinterpret_cast<const struct cd_eight *>(a + size_t(at[e]) * k + col);
    }
};

/* Row `row` of the tile, column `col` of what comes out, `mine` of the block. */
template <class D, bool up>
static __device__ __forceinline__ void md_put(const struct cu_moe &g, const struct mx_tile &tile,
                                              const char *room, unsigned row, unsigned mine,
                                              unsigned col)
{
    const size_t pair = tile.at + row;
    float sum = cd_sum_of<D>(room, row, mine);
    if constexpr (up) {
        float other = cd_sum_of<D>(room, row, CU_CODED_ROWS + mine);
        const float *bias = g.gate_up_bias ? g.gate_up_bias + tile.expert * 2 * g.F : nullptr;
        if (bias) sum += bias[col], other += bias[g.F + col];
        static_cast<uint16_t *>(g.mid)[pair * g.F + col] =
            cu_f32_bf16(cu_activated(g.act, sum, other));
    } else {
        if (g.down_bias) sum += g.down_bias[tile.expert * g.D + col];
        g.out[pair * g.D + col] = sum;
    }
}

template <class D, bool up>
static __global__ void __launch_bounds__(CD_THREADS, 2)
    grouped_coded(const __grid_constant__ struct cu_moe g, bool by_pair)
{
    KN_DYNAMIC_SHARED(char, room);
    __shared__ float table[16];
    enum : unsigned { COLS = D::ROWS / (1 + up) };
    const struct mx_tile tile = mx_tile_of<D::EIGHTS * 8>(g, by_pair, blockIdx.x);
    if (tile.rows == 0) return;
    const struct cu_coded w = md_weight(g, tile.expert, up);
    cd_fill_table(up ? g.gate_up : g.down, table); /* a copy's would be in memory */
    const unsigned tile0 = blockIdx.y * (COLS / CU_CODED_ROWS);
    cd_product<D>(w, tile0, up ? unsigned(g.F) / CU_CODED_ROWS : 1, md_rows<D, up>(g, tile), room,
                  table);
    for (unsigned i = threadIdx.x; i < D::EIGHTS * 8 * COLS; i += CD_THREADS) {
        const unsigned row = i / COLS, mine = i % COLS, col = blockIdx.y * COLS + mine;
        if (row < tile.rows && col < (up ? g.F : g.D)) md_put<D, up>(g, tile, room, row, mine, col);
    }
}

template <class D, bool up> static int md_launch(struct cu *c, const struct cu_moe *g)
{
    const struct mx_grid grid = mx_grid_of(g, up, D::EIGHTS * 8, D::ROWS / (1 + up));
    const size_t smem = cd_room<D>(up ? &g->gate_up : &g->down);
    const cudaError_t e = cudaFuncSetAttribute(
        grouped_coded<D, up>, cudaFuncAttributeMaxDynamicSharedMemorySize, int(smem));
    if (e != cudaSuccess) return cu_failed(c, e);
    KN_LAUNCH((grouped_coded<D, up>), grid.grid, dim3(CD_THREADS), smem, c->stream, *g,
              grid.by_pair);
    return cu_launched(c);
}

/* Gate and up are two tiles whatever a code is, and have half of the rows at once: else registers
 * are short. */
template <enum cd_kind kind, bool up> static int md_few(struct cu *c, const struct cu_moe *g)
{
    enum : unsigned { TILES = up || kind != CD_BYTES ? 2 : 1, MOST = up ? 2 : 4 };
    const bool few = g->m <= 8 || mx_pairs(g) <= 8 * size_t(g->n);
    return few ? md_launch<cd_dims<kind, 1, TILES>, up>(c, g)
               : md_launch<cd_dims<kind, MOST, TILES>, up>(c, g);
}

template <bool up> static int md_product(struct cu *c, const struct cu_moe *g)
{
    const enum cd_kind kind = cd_kind_of(up ? &g->gate_up : &g->down);
    return kind == CD_BYTES   ? md_few<CD_BYTES, up>(c, g)
           : kind == CD_TABLE ? md_few<CD_TABLE, up>(c, g)
                              : md_few<CD_NIBBLES, up>(c, g);
}

int cu_moe_coded(struct cu *c, const struct cu_moe *g, int up)
{
    return up ? md_product<true>(c, g) : md_product<false>(c, g);
}

/* ---- many rows ---- */

template <enum cd_kind kind>
static __global__ void __launch_bounds__(CD_THREADS)
    expert_values(const __grid_constant__ struct cu_moe g,
                  const __grid_constant__ struct cu_coded form, bool up)
{
    __shared__ float table[16];
    const unsigned e = g.panel_first + blockIdx.y;
    if (g.first[e] == g.first[e + 1]) return;
    const struct cu_coded w = md_weight(g, e, up);
    cd_fill_table(form, table);
    cd_put_values<kind>(w, table, size_t(blockIdx.x) * CD_WARPS + threadIdx.x / CU_WARP, 0, w.n,
                        g.panel + blockIdx.y * w.n * w.k);
}

int cu_moe_values(struct cu *c, const struct cu_moe *g, int up)
{
    const struct cu_coded *w = up ? &g->gate_up : &g->down;
    const unsigned left = g->n - g->panel_first, n = g->n_panel < left ? g->n_panel : left;
    const dim3 grid(cu_blocks(size_t(cd_tiles(*w)) * cd_steps(*w), CD_WARPS), n), block(CD_THREADS);
    const enum cd_kind kind = cd_kind_of(w);
    if (kind == CD_BYTES)
        KN_LAUNCH(expert_values<CD_BYTES>, grid, block, 0, c->stream, *g, *w, up);
    else if (kind == CD_TABLE)
        KN_LAUNCH(expert_values<CD_TABLE>, grid, block, 0, c->stream, *g, *w, up);
    else
        KN_LAUNCH(expert_values<CD_NIBBLES>, grid, block, 0, c->stream, *g, *w, up);
    return cu_launched(c);
}
