/* coded_tile: a block's part of a product of few rows with codes: its steps of the weight through
 * rings in shared memory, decoded on the way to the tensor cores, and the sums of its warps. Why
 * so: coded.cu. Thread: device code. */
#ifndef KERNELS_CUDA_CODED_TILE_H
#define KERNELS_CUDA_CODED_TILE_H

#include "kernels/cuda/coded_read.h"

/* Eights of activation rows, tiles of the weight: of a block. */
template <enum cd_kind of, unsigned N, unsigned T = of == CD_BYTES ? 1 : 2> struct cd_dims {
    static constexpr enum cd_kind KIND = of;
    enum : unsigned {
        EIGHTS = N,
        TILES = T,
        RING = (of == CD_BYTES ? 4 : 8) / T, /* steps: 8 to 10 KB of a warp either way */
        ROWS = TILES * CU_CODED_ROWS,
        PITCH = ROWS + 4 /* of sums: eight rows of four columns are in different banks */
    };
};

/* The steps of a warp on their way: warp, warp + 8, … */
template <class D> struct cd_feed {
    const struct cu_coded &w;
    char *ring;
    unsigned tile0, apart, warp, lane; /* tile0, tile0 + apart, … */

    __device__ __forceinline__ const char *buffer(unsigned nth) const
    {
        return ring + nth % D::RING * D::TILES * w.step_bytes;
    }

    __device__ __forceinline__ void send(unsigned nth) const
    {
        const unsigned step = warp + nth * CD_WARPS, steps = cd_steps(w);
        const mma_addr to = mma_address(buffer(nth));
        for (unsigned t = 0; step < steps && t < D::TILES; t++) {
            const unsigned tile = tile0 + t * apart;
            const bool there = tile < cd_tiles(w);
            const char *from = w.data + (there ? (size_t(tile) * steps + step) * w.step_bytes : 0);
            for (unsigned at = lane * 16; at < w.step_bytes; at += CU_WARP * 16)
                mma_copy16(to + t * w.step_bytes + at, from + at, there);
        }
        mma_copies_end();
    }
};

/* Sums of a warp; a lane's as mma_bf16() has them: rows of the weight, columns of activations. */
template <class D> struct cd_sums {
    float acc[D::TILES][D::EIGHTS][4];
};

/* A step, of which the lane has 32 columns, those from `col` on. One sixteen after the other: both
 * at once take a quarter more registers than two blocks of a multiprocessor have. rows(e, col): of
 * row 8 e + lane / 4 of the activations eight values, zeros where there are none. */
template <class D, class Rows>
static __device__ __forceinline__ void cd_multiply(const struct cu_coded &w, const char *step,
                                                   const float *table, const Rows &rows, size_t col,
                                                   struct cd_sums<D> &s)
{
    const unsigned lane = threadIdx.x % CU_WARP;
    struct cd_pair by[D::TILES][2];
    CU_ROLLED
    for (unsigned nth = 0; nth < 2; nth++) {
        struct cd_sixteen<D::KIND> code[D::TILES][2]; /* of rows lane / 4 and 8 below */
        CU_UNROLL
        for (unsigned x = 0; x < D::TILES * 2; x++) {
            const char *tile = step + x / 2 * w.step_bytes;
            code[x / 2][x % 2] = cd_load<D::KIND>(tile, lane, x % 2, nth);
            if (nth == 0 || cd_is_split(w))
                by[x / 2][x % 2] = cd_pair_of(w, tile, lane, x % 2, nth);
        }
        CU_UNROLL
        for (unsigned i = 0; i < 2; i++) {
            struct cd_eight b[D::EIGHTS];
            CU_UNROLL
            for (unsigned e = 0; e < D::EIGHTS; e++)
                b[e] = rows(e, col + 16 * nth + 8 * i);
            CU_UNROLL
            for (unsigned t = 0; t < D::TILES; t++) {
                const auto up = cd_decode<D::KIND>(w, table, code[t][0], by[t][0], i);
                const auto low = cd_decode<D::KIND>(w, table, code[t][1], by[t][1], i);
                const uint32_t a0[4] = {up.w[0], low.w[0], up.w[1], low.w[1]};
                const uint32_t a1[4] = {up.w[2], low.w[2], up.w[3], low.w[3]};
                CU_UNROLL
                for (unsigned e = 0; e < D::EIGHTS; e++) {
                    mma_bf16(s.acc[t][e], a0, b[e].w[0], b[e].w[1]);
                    mma_bf16(s.acc[t][e], a1, b[e].w[2], b[e].w[3]);
                }
            }
        }
    }
}

/* All warps' sums to shared memory, [warp][row of activations][PITCH]. */
template <class D>
static __device__ __forceinline__ void cd_leave(const struct cd_sums<D> &s, float *part)
{
    const unsigned warp = threadIdx.x / CU_WARP, lane = threadIdx.x % CU_WARP;
    CU_UNROLL
    for (unsigned i = 0; i < D::TILES * D::EIGHTS * 4; i++) {
        const unsigned t = i / 4 / D::EIGHTS, e = i / 4 % D::EIGHTS, x = i % 4;
        const unsigned row = e * 8 + lane % 4 * 2 + x % 2;
        const unsigned col = t * CU_CODED_ROWS + x / 2 * 8 + lane / 4;
        part[(warp * D::EIGHTS * 8 + row) * D::PITCH + col] = s.acc[t][e][x];
    }
}

/* The whole of it: sums of the tiles tile0, tile0 + apart, … times the rows are in `room` behind
 * it, as cd_sum_of() finds them. */
template <class D, class Rows>
static __device__ __forceinline__ void cd_product(const struct cu_coded &w, unsigned tile0,
                                                  unsigned apart, const Rows &rows, char *room,
                                                  const float *table)
{
    const unsigned warp = threadIdx.x / CU_WARP, lane = threadIdx.x % CU_WARP;
    const struct cd_feed<D> feed = {
        w, room + warp *D::RING *D::TILES *w.step_bytes, tile0, apart, warp, lane
    };
    struct cd_sums<D> sums;
    CU_UNROLL
    for (unsigned i = 0; i < D::TILES * D::EIGHTS * 4; i++)
        sums.acc[i / 4 / D::EIGHTS][i / 4 % D::EIGHTS][i % 4] = 0;
    CU_UNROLL
    for (unsigned nth = 0; nth + 1 < D::RING; nth++)
        feed.send(nth);
    for (unsigned nth = 0, step = warp; step < cd_steps(w); nth++, step += CD_WARPS) {
        mma_copies_wait<D::RING - 2>();
        __syncwarp(); /* the step is there for all lanes, and all are done with the one before it */
        feed.send(nth + D::RING - 1);
        cd_multiply<D>(w, feed.buffer(nth), table, rows,
                       size_t(step) * CU_CODED_STEP + lane % 4 * CODES_STEP, sums);
    }
    mma_copies_wait<0>();
    __syncthreads(); /* all rings are free */
    cd_leave<D>(sums, reinterpret_cast<float *>(room));
    __syncthreads();
}

/* Of row `row` of the activations and row `col` of the block's rows of the weight. */
template <class D>
static __device__ __forceinline__ float cd_sum_of(const char *room, unsigned row, unsigned col)
{
    const float *part = reinterpret_cast<const float *>(room);
    float sum = 0;
    for (unsigned from = 0; from < CD_WARPS; from++)
        sum += part[(from * D::EIGHTS * 8 + row) * D::PITCH + col];
    return sum;
}

/* Bytes of `room`. */
template <class D> static size_t cd_room(const struct cu_coded *w)
{
    const size_t ring = size_t(CD_WARPS) * D::RING * D::TILES * w->step_bytes;
    const size_t sums = size_t(CD_WARPS) * D::EIGHTS * 8 * D::PITCH * sizeof(float);
    return ring > sums ? ring : sums;
}

#endif
