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
#include "kernels/cuda/coded.h"
#include "kernels/cuda/mma.h"

enum : unsigned { CD_WARPS = 8, CD_THREADS = CD_WARPS * CU_WARP, CD_RING = 4 };
enum cd_kind { CD_NIBBLES, CD_TABLE, CD_BYTES };

struct alignas(16) cd_eight { /* bf16, two in a word */
    uint32_t w[4];
};
struct cd_pair { /* of 16 values */
    float d, m;
};

/* ---- a lane's codes of a step ---- */

static __device__ __forceinline__ uint32_t cd_head(const char *at, unsigned bytes)
{
    if (bytes == 2) return *reinterpret_cast<const uint16_t *>(at);
    return *reinterpret_cast<const uint32_t *>(at);
}

/* Whether a lane's two sixteens of a row differ in D and M. */
static __device__ __forceinline__ bool cd_is_split(const struct cu_coded &w)
{
    return w.form.group == 16;
}

/* D and M of the lane's sixteen `nth` of row lane / 4 + 8 half. */
static __device__ __forceinline__ struct cd_pair
cd_pair_of(const struct cu_coded &w, const char *step, unsigned lane, unsigned half, unsigned nth)
{
    const char *heads = step + w.code_bytes, *units = heads + 2 * CU_WARP * w.head_bytes;
    const unsigned row = lane / 4 + half * 8;
    const unsigned at = w.form.group < CU_CODED_STEP ? 2 * lane + half : row;
    uint32_t head = cd_head(heads + at * w.head_bytes, w.head_bytes);
    if (!w.form.super) {
        const uint16_t bits = uint16_t(head);
        const float d = w.form.bf16 ? cu_bf16_f32(bits) : mma_f16(bits);
        const float m = w.form.min ? mma_f16(uint16_t(head >> 16)) : 0.0f;
        return {d, w.form.zero ? -(m * d) : m};
    }
    const uint32_t unit = *reinterpret_cast<const uint32_t *>(units + row * sizeof(uint32_t));
    const unsigned next = cd_is_split(w) ? 8 : 0; /* bits from one sixteen to the other */
    head >>= nth * next;
    const float d = mma_f16(uint16_t(unit)) * float(int8_t(head));
    if (!w.form.min) return {d, 0.0f};
    return {d, -(mma_f16(uint16_t(unit >> 16)) * float(uint8_t(head >> (8 + next))))};
}

template <enum cd_kind kind> struct alignas(kind == CD_BYTES ? 16 : 8) cd_sixteen {
    uint32_t w[kind == CD_BYTES ? 4 : 2];
};

template <enum cd_kind kind>
static __device__ __forceinline__ struct cd_sixteen<kind> cd_load(const char *step, unsigned lane,
                                                                  unsigned half, unsigned nth) {
    const auto *all = reinterpret_cast<const struct cd_sixteen<kind> *>(step);
    return all[(2 * half + nth) * CU_WARP + lane];
}

/* Value 8 i + j of them. The upper nibble of a byte counts 16 and is not moved: D is divided
 * instead. Exact, but for the sum. */
template <enum cd_kind kind>
static __device__ __forceinline__ float cd_value(const struct cu_coded &w, const float *table,
                                                 const struct cd_sixteen<kind> &code,
                                                 const struct cd_pair &by, unsigned i, unsigned j)
{
    if constexpr (kind == CD_BYTES) {
        return fmaf(float(int8_t(code.w[2 * i + j / 4] >> j % 4 * 8)), by.d, by.m);
    } else if constexpr (kind == CD_TABLE) {
        return fmaf(table[code.w[i] >> 4 * j & 15u], by.d, by.m);
    } else {
        const unsigned unit = j % 2 ? 16 : 1;
        const uint32_t four = code.w[i] >> j / 2 * 8 & 15 * unit;
        const float zero = 8388608.0f - float(w.form.low) * float(unit);
        return fmaf(cu_from_bits(0x4b000000u | four) - zero, by.d * (1.0f / float(unit)), by.m);
    }
}

/* Values 8 i … 8 i + 7. */
template <enum cd_kind kind>
static __device__ __forceinline__ struct cd_eight
cd_decode(const struct cu_coded &w, const float *table, const struct cd_sixteen<kind> &code,
          const struct cd_pair &by, unsigned i)
{
    struct cd_eight ret;
    CU_UNROLL
    for (unsigned j = 0; j < 4; j++)
        ret.w[j] = mma_pack(cd_value<kind>(w, table, code, by, i, 2 * j),
                            cd_value<kind>(w, table, code, by, i, 2 * j + 1));
    return ret;
}

static __device__ __forceinline__ void cd_fill_table(const struct cu_coded &w, float *table)
{
    if (threadIdx.x < 16) table[threadIdx.x] = float(w.table[threadIdx.x]);
    __syncthreads();
}

static __device__ __host__ __forceinline__ unsigned cd_steps(const struct cu_coded &w)
{
    return unsigned((w.k + CU_CODED_STEP - 1) / CU_CODED_STEP);
}

static __device__ __host__ __forceinline__ unsigned cd_tiles(const struct cu_coded &w)
{
    return unsigned((w.n + CU_CODED_ROWS - 1) / CU_CODED_ROWS);
}

/* ---- few rows ---- */

/* Eights of activation rows, tiles of the weight: of a block. */
template <enum cd_kind of, unsigned N> struct cd_dims {
    static constexpr enum cd_kind KIND = of;
    enum : unsigned {
        EIGHTS = N,
        TILES = of == CD_BYTES ? 1 : 2, /* so that a ring is 8 to 10 KB either way */
        ROWS = TILES * CU_CODED_ROWS,
        PITCH = ROWS + 4 /* of sums: eight rows of four columns are in different banks */
    };
};

/* The steps of a warp on their way: warp, warp + 8, … */
template <class D> struct cd_feed {
    const struct cu_coded &w;
    char *ring;
    unsigned tile0, warp, lane;

    __device__ __forceinline__ const char *buffer(unsigned nth) const
    {
        return ring + nth % CD_RING * D::TILES * w.step_bytes;
    }

    __device__ __forceinline__ void send(unsigned nth) const
    {
        const unsigned step = warp + nth * CD_WARPS, steps = cd_steps(w);
        const mma_addr to = mma_address(buffer(nth));
        for (unsigned t = 0; step < steps && t < D::TILES; t++) {
            const bool there = tile0 + t < cd_tiles(w);
            const char *from =
                w.data + (there ? (size_t(tile0 + t) * steps + step) * w.step_bytes : 0);
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

/* Activations: columns col … col + 7 of a row. */
static __device__ __forceinline__ struct cd_eight cd_row(const struct cu_gemm &g, size_t row,
                                                         size_t col)
{
    if (row >= g.m || col >= g.k) return {{0, 0, 0, 0}};
    return *reinterpret_cast<const struct cd_eight *>(static_cast<const uint16_t *>(g.a.data) +
                                                      row * g.k + col);
}

/* A step, of which the lane has 32 columns, those from `col` on. One sixteen after the other: both
 * at once take a quarter more registers than two blocks of a multiprocessor have. */
template <class D>
static __device__ __forceinline__ void cd_multiply(const struct cu_coded &w, const char *step,
                                                   const float *table, const struct cu_gemm &g,
                                                   size_t row0, size_t col, struct cd_sums<D> &s)
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
                b[e] = cd_row(g, row0 + e * 8 + lane / 4, col + 16 * nth + 8 * i);
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
    const unsigned warp = threadIdx.x / CU_WARP, lane = threadIdx.x % CU_WARP;
    const unsigned tile0 = unsigned(first / CU_CODED_ROWS) + blockIdx.x * D::TILES;
    const size_t row0 = size_t(blockIdx.y) * D::EIGHTS * 8;
    const struct cd_feed<D> feed = {
        w, room + warp *CD_RING *D::TILES *w.step_bytes, tile0, warp, lane
    };
    struct cd_sums<D> sums;
    CU_UNROLL
    for (unsigned i = 0; i < D::TILES * D::EIGHTS * 4; i++)
        sums.acc[i / 4 / D::EIGHTS][i / 4 % D::EIGHTS][i % 4] = 0;
    cd_fill_table(w, table);
    CU_UNROLL
    for (unsigned nth = 0; nth + 1 < CD_RING; nth++)
        feed.send(nth);
    for (unsigned nth = 0, step = warp; step < cd_steps(w); nth++, step += CD_WARPS) {
        mma_copies_wait<CD_RING - 2>();
        __syncwarp(); /* the step is there for all lanes, and all are done with the one before it */
        feed.send(nth + CD_RING - 1);
        cd_multiply<D>(w, feed.buffer(nth), table, g, row0,
                       size_t(step) * CU_CODED_STEP + lane % 4 * CODES_STEP, sums);
    }
    mma_copies_wait<0>();
    __syncthreads(); /* all rings are free */
    float *part = reinterpret_cast<float *>(room);
    cd_leave<D>(sums, part);
    __syncthreads();
    for (unsigned i = threadIdx.x; i < D::EIGHTS * 8 * D::ROWS; i += CD_THREADS) {
        const unsigned row = i / D::ROWS, col = i % D::ROWS;
        const size_t of = size_t(tile0) * CU_CODED_ROWS + col;
        if (row0 + row >= g.m || of < first || of - first >= g.n) continue;
        float sum = 0;
        for (unsigned from = 0; from < CD_WARPS; from++)
            sum += part[(from * D::EIGHTS * 8 + row) * D::PITCH + col];
        cd_put(g, row0 + row, of - first, sum);
    }
}

template <class D>
static int cd_launch(struct cu *c, const struct cu_coded *w, size_t first, const struct cu_gemm *g)
{
    const size_t ring = size_t(CD_WARPS) * CD_RING * D::TILES * w->step_bytes;
    const size_t sums = size_t(CD_WARPS) * D::EIGHTS * 8 * D::PITCH * sizeof(float);
    const size_t smem = ring > sums ? ring : sums;
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

static enum cd_kind cd_kind_of(const struct cu_coded *w)
{
    return w->form.bits == 8 ? CD_BYTES : w->form.table ? CD_TABLE : CD_NIBBLES;
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
    const unsigned lane = threadIdx.x % CU_WARP, steps = cd_steps(w);
    const size_t nth = size_t(blockIdx.x) * CD_WARPS + threadIdx.x / CU_WARP;
    const size_t tile = first / CU_CODED_ROWS + nth / steps;
    const size_t col = nth % steps * CU_CODED_STEP + lane % 4 * CODES_STEP;
    cd_fill_table(w, table);
    if (tile >= cd_tiles(w) || col >= w.k) return;
    const char *step = w.data + (tile * steps + nth % steps) * w.step_bytes;
    CU_UNROLL
    for (unsigned x = 0; x < 4; x++) { /* two rows, two sixteens of each */
        const size_t row = tile * CU_CODED_ROWS + x / 2 * 8 + lane / 4;
        if (row < first || row - first >= n) continue;
        const struct cd_sixteen<kind> code = cd_load<kind>(step, lane, x / 2, x % 2);
        const struct cd_pair by = cd_pair_of(w, step, lane, x / 2, x % 2);
        uint16_t *to = out + (row - first) * w.k + col + x % 2 * 16;
        reinterpret_cast<struct cd_eight *>(to)[0] = cd_decode<kind>(w, table, code, by, 0);
        reinterpret_cast<struct cd_eight *>(to)[1] = cd_decode<kind>(w, table, code, by, 1);
    }
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
