/* Products with weights in the form of a file: their codes become bf16 on the way to the tensor
 * cores, or, for many rows, in a panel that the library multiplies.
 *
 * Either way the same numbers are multiplied: q * D + M, rounded once to f32 and once to bf16. Few
 * rows read nothing but the codes: eight warps of a block share 16 or 32 rows of the weight and
 * take its steps of 128 columns in turns, each through a ring of its own in shared memory, so that
 * no warp waits for another before the end, when their sums are added in the order of the warps.
 * The weight is the left operand (16 rows), the activations the right one (eight rows at a time):
 * a decode of up to eight rows wastes no product, and a code is decoded once for up to 32. Which
 * warp has which columns depends on k alone, so a row's bits do not depend on the others.
 *
 * A lane has 32 columns of two rows, in the order of memory, and reads the activations of the same
 * columns: products do not care which column is called which, as long as both sides agree. */
#include "kernels/cuda/coded_tile.h"

/* Activations: columns col … col + 7 of a row. */
static __device__ __forceinline__ struct cd_eight cd_row(const struct cu_gemm &g, size_t row,
                                                         size_t col)
{
    if (row >= g.m || col >= g.k) return {{0, 0, 0, 0}};
    return *reinterpret_cast<const struct cd_eight *>(static_cast<const uint16_t *>(g.a.data) +
                                                      row * g.k + col);
}

static __device__ __forceinline__ void cd_put(const struct cu_gemm &g, size_t row, size_t col,
                                              float sum)
{
    const size_t at = row * g.ldc + col;
    if (g.bias) sum += g.bias[col];
    if (g.out == CU_BF16) {
        static_cast<uint16_t *>(g.c)[at] = cu_f32_bf16(sum);
        return;
    }
    float *c = static_cast<float *>(g.c) + at;
    *c = g.accumulate ? *c + sum : sum;
}

template <class D>
static __global__ void __launch_bounds__(CD_THREADS, 2)
    coded_few(const __grid_constant__ struct cu_coded w, const __grid_constant__ struct cu_gemm g,
              size_t first)
{
    KN_DYNAMIC_SHARED(char, room);
    __shared__ float table[16];
    const unsigned tile0 = unsigned(first / CU_CODED_ROWS) + blockIdx.x * D::TILES;
    const size_t row0 = size_t(blockIdx.y) * D::EIGHTS * 8;
    const auto rows = [&](unsigned e, size_t col) {
        return cd_row(g, row0 + e * 8 + threadIdx.x % CU_WARP / 4, col);
    };
    cd_fill_table(w, table);
    cd_product<D>(w, tile0, 1, rows, room, table);
    for (unsigned i = threadIdx.x; i < D::EIGHTS * 8 * D::ROWS; i += CD_THREADS) {
        const unsigned row = i / D::ROWS, col = i % D::ROWS;
        const size_t of = size_t(tile0) * CU_CODED_ROWS + col;
        if (row0 + row >= g.m || of < first || of - first >= g.n) continue;
        cd_put(g, row0 + row, of - first, cd_sum_of<D>(room, row, col));
    }
}

template <class D>
static int cd_launch(struct cu *c, const struct cu_coded *w, size_t first, const struct cu_gemm *g)
{
    const size_t smem = cd_room<D>(w);
    const cudaError_t e =
        cudaFuncSetAttribute(coded_few<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, int(smem));
    if (e != cudaSuccess) return cu_failed(c, e);
    KN_LAUNCH(
        coded_few<D>,
        dim3(cu_blocks(first % CU_CODED_ROWS + g->n, D::ROWS), cu_blocks(g->m, D::EIGHTS * 8)),
        dim3(CD_THREADS), smem, c->stream, *w, *g, first);
    return cu_launched(c);
}

template <enum cd_kind kind>
static int cd_few(struct cu *c, const struct cu_coded *w, size_t first, const struct cu_gemm *g)
{
    return g->m <= 8    ? cd_launch<cd_dims<kind, 1>>(c, w, first, g)
           : g->m <= 16 ? cd_launch<cd_dims<kind, 2>>(c, w, first, g)
                        : cd_launch<cd_dims<kind, 4>>(c, w, first, g);
}

int cu_coded_gemm(struct cu *c, const struct cu_coded *w, size_t first, const struct cu_gemm *g)
{
    if (c->lost) return -EIO;
    if (g->m > CU_CODED_FEW || first > w->n || g->n > w->n - first) return -EINVAL;
    const enum cd_kind kind = cd_kind_of(w);
    return kind == CD_BYTES   ? cd_few<CD_BYTES>(c, w, first, g)
           : kind == CD_TABLE ? cd_few<CD_TABLE>(c, w, first, g)
                              : cd_few<CD_NIBBLES>(c, w, first, g);
}

/* ---- many rows ---- */

/* A warp a step. */
template <enum cd_kind kind>
static __global__ void __launch_bounds__(CD_THREADS)
    coded_values(const __grid_constant__ struct cu_coded w, size_t first, size_t n, uint16_t *out)
{
    __shared__ float table[16];
    cd_fill_table(w, table);
    cd_put_values<kind>(w, table, size_t(blockIdx.x) * CD_WARPS + threadIdx.x / CU_WARP, first, n,
                        out);
}

int cu_coded_values(struct cu *c, const struct cu_coded *w, size_t first, size_t n, uint16_t *out)
{
    const size_t tiles = (first % CU_CODED_ROWS + n + CU_CODED_ROWS - 1) / CU_CODED_ROWS;
    const dim3 grid(cu_blocks(tiles * cd_steps(*w), CD_WARPS)), block(CD_THREADS);
    const enum cd_kind kind = cd_kind_of(w);
    if (kind == CD_BYTES)
        KN_LAUNCH(coded_values<CD_BYTES>, grid, block, 0, c->stream, *w, first, n, out);
    else if (kind == CD_TABLE)
        KN_LAUNCH(coded_values<CD_TABLE>, grid, block, 0, c->stream, *w, first, n, out);
    else
        KN_LAUNCH(coded_values<CD_NIBBLES>, grid, block, 0, c->stream, *w, first, n, out);
    return cu_launched(c);
}
