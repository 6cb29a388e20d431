/* Attention of rows at exact positions on tensor cores, pages of bf16 or 8 bits.
 *
 * A warp has 16 neighbouring entries (see attn.h) and goes through the keys in tiles: scores S = Q
 * K^T, softmax in f32, O += P V. S comes out of the product in the lanes that P is wanted in as an
 * operand, so it never leaves the registers. K and V tiles come in turns through a ring of three
 * buffers, copied two ahead while one is used, with one barrier a tile. A buffer's rows of 16-byte
 * pieces are swizzled so that eight rows of one column are in eight different groups of banks.
 *
 * Rows ascend: a block ends at its last row's position, a warp skips tiles that none of its rows
 * sees, and compares positions only in tiles that reach beyond its first row's. A tile that a row
 * does not see multiplies its sums by exactly 1 and adds exactly 0, so a row's bits depend on that
 * row and its keys alone: not on who shares its warp or block, nor on how many warps a block has.
 * Blocks of one warp serve decodes, where 16 entries are all there is; at K 256 two warps share
 * these. Blocks on a multiprocessor: as many as fit without a register in memory, which the three
 * buffers leave room for everywhere.
 *
 * Pages of 8 bits (Q8): tiles are codes with f16 tops, and become operands in registers. Codes are
 * whole numbers, which bf16 holds exactly; a key's step multiplies its scores behind the product,
 * and for V its probabilities before they are rounded, but not where these are summed up. A product
 * does not mind in which order it gets the dimensions, so a lane uses the bytes that it is given:
 * of 16 dimensions of K lane / 4's four, and of V's two keys and two dimensions from each matrix of
 * 16-bit units, so that products of even and of odd dimensions take turns. Blocks of several warps,
 * which would do this as often as they have warps, decode a tile to shared memory first, each warp
 * a part of it, of each 16 dimensions the even ones in front of the odd: the same products. */
#include "kernels/cuda/attn.h"
#include "kernels/cuda/pages.h"
#include "kernels/cuda/split.h"

enum { AT_RING = 3, AT_WARP_ROWS = 16, AT_WIDE = 4 /* warps of a block */ };

template <unsigned KP> struct at_dims { /* KP: K rounded up to what is compiled */
    enum : unsigned {
        KEYS = KP > 128 ? 32 : 64, /* of a tile */
        STEPS = KP / 16,
    };
};

template <bool Q8> struct at_value {
    typedef uint16_t type; /* bf16 */
};
template <> struct at_value<true> {
    typedef int8_t type;
};

template <unsigned KP, bool Q8> struct at_tile { /* in shared memory */
    typedef typename at_value<Q8>::type value;
    enum : unsigned {
        KEYS = at_dims<KP>::KEYS,
        VALUE = sizeof(value),
        ROW = KP * VALUE,
        PIECES = ROW / 16,             /* of 16 bytes in a row */
        TOPS = KEYS * ROW,             /* where f16 tops of its keys are */
        BUFFER = TOPS + (Q8 ? 128 : 0) /* room for 64 of them */
    };
    enum : unsigned { POWER = PIECES & -PIECES, SWIZZLE = POWER > 8 ? 8 : POWER };
};

struct alignas(16) at_words { /* a piece */
    uint32_t w[4];
};

/* 16 entries of a warp; a lane has entries lane / 4 and 8 more. */
template <unsigned KP> struct at_rows {
    uint32_t q[at_dims<KP>::STEPS][4];
    int32_t pos[2]; /* -1: there is none */
    int32_t ends;   /* of the warp: even lanes have the first position, odd ones the last */
    __device__ __forceinline__ int32_t first() const
    {
        return __shfl_sync(CU_ALL, ends, 0);
    }
    __device__ __forceinline__ int32_t last() const
    {
        return __shfl_sync(CU_ALL, ends, 1);
    }
};

template <unsigned OF, bool Q8> struct at_sums { /* of a lane's two entries, OF values of V */
    enum : unsigned { N = OF / 8, LANE = Q8 ? 4 : 2 /* values side by side */ };
    float acc[N][4]; /* entry i: [2i], [2i + 1]; of Q8 n even and n + 1: of 16, even and odd */
    float top[2], total[2]; /* total: of this lane's keys */

    /* Entry i's values two_at(n) and the next, counted from the lane's first. */
    __device__ __forceinline__ struct float2 two(unsigned n, unsigned i) const
    {
        if (Q8) return {acc[n & ~1u][2 * i + n % 2], acc[n | 1][2 * i + n % 2]};
        return {acc[n][2 * i], acc[n][2 * i + 1]};
    }
    static __device__ __forceinline__ unsigned two_at(unsigned n)
    {
        return Q8 ? n / 2 * 16 + n % 2 * 2 : n * 8;
    }
};

/* Warps that share 16 entries: each has all of Q and a part of V, since registers have no room for
 * all of both in a block whose sequence each entry looks up, nor where codes become operands.
 * Scores are computed by each. */
template <unsigned KP, bool Q8, unsigned WARPS> struct at_block {
    enum : unsigned {
        SHARES = KP > 128 && (WARPS == 1 || Q8) ? 2 : 1,
        OF = KP / SHARES, /* values of V */
        THREADS = SHARES * WARPS * CU_WARP,
        DECODES = Q8 && WARPS > 1, /* to shared memory */
        ROOM = AT_RING * at_tile<KP, Q8>::BUFFER + DECODES * at_tile<KP, false>::BUFFER,
        BLOCKS = SHARES > 1 || WARPS == 1 ? 1
                 : KP > 64                ? 2
                                          : 3 /* on a multiprocessor, at least */
    };
};

/* threadIdx.x; at K 256 what hangs on it is computed again for each tile: registers are short. */
template <unsigned KP, unsigned WARPS> static __device__ __forceinline__ unsigned at_thread()
{
    unsigned x = threadIdx.x;
    if (KP > 128 && WARPS > 1) asm volatile("" : "+r"(x));
    return x;
}

/* A block's KV head: g, or computed again likewise, where the compiler gains by it (test
 * kernels/ptxas). */
template <unsigned KP, unsigned WARPS>
static __device__ __forceinline__ unsigned at_head(const struct cu_kv &kv, unsigned g)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
    if (KP > 128 && WARPS > 1) {
        unsigned x = blockIdx.x;
        asm volatile("" : "+r"(x));
        return x % kv.G;
    }
#endif
    return g;
}

/* Piece c of a buffer's row is at piece c ^ this. Rows begin at one bank where 8 divides a row's
 * pieces, else, in turns, at two (4) or four (2). */
template <class Tile> static __device__ __forceinline__ unsigned at_swizzled(unsigned row)
{
    return row / (8 / Tile::SWIZZLE) % Tile::SWIZZLE;
}

/* From the address of one of a row's first N pieces to that of piece N d more: one operation, and a
 * constant that an instruction takes along. */
template <class Tile, unsigned N>
static __device__ __forceinline__ mma_addr at_step(mma_addr at, unsigned d)
{
    const unsigned turn = Tile::SWIZZLE / N;
    return (at ^ d % turn * (16 * N)) + d / turn * (turn * 16 * N);
}

/* Where piece c of row first + row0 is, first known at compile time and a multiple of N, row0 below
 * N: in one operation behind what all of them share when N is a power of two. */
template <class Tile, unsigned N>
static __device__ __forceinline__ mma_addr at_piece(mma_addr buffer, unsigned first, unsigned row0,
                                                    unsigned c)
{
    const unsigned ROW = Tile::ROW;
    if (N & (N - 1))
        return buffer + (first + row0) * ROW + (c ^ at_swizzled<Tile>(first + row0)) * 16;
    const mma_addr at = buffer + row0 * ROW + (c ^ at_swizzled<Tile>(row0)) * 16;
    return (at ^ at_swizzled<Tile>(first) * 16) + first * ROW;
}

/* Tops of a tile's keys, eight by a thread; behind the last key 0: nobody has written those. */
template <class Tile>
static __device__ __forceinline__ void at_copy_tops(const uint16_t *tops, unsigned thread,
                                                    unsigned key, unsigned last, mma_addr to)
{
    const unsigned first = thread * 8, there = last + 1 - key;
    if (first >= Tile::KEYS) return;
    const unsigned n = there <= first ? 0 : there - first < 8 ? there - first : 8;
    mma_copy_first(to + Tile::TOPS + first * 2, tops + key % CU_PAGE + first, n * 2);
}

template <unsigned KP, bool Q8, unsigned THREADS>
static __device__ __forceinline__ void at_copy_tile(const struct cu_kv &kv, int32_t page,
                                                    unsigned g, unsigned key, unsigned last, bool v,
                                                    mma_addr to)
{
    typedef at_tile<KP, Q8> D;
    /* Whole rows a turn: the next is a step on in both memories, so that no place is kept. */
    const unsigned ROWS = THREADS / D::PIECES, IN_PIECE = 16 / D::VALUE, K = kv.K;
    const unsigned x = at_thread<KP, THREADS / CU_WARP>(), row0 = x / D::PIECES, c = x % D::PIECES;
    const char *const layer = kv.base + size_t(page) * kv.page_bytes;
    const typename D::value *from;
    if constexpr (Q8) {
        const char *const head =
            layer + (size_t(v) * kv.G + g) * cu_page_head_bytes<struct cu_q8>(K);
        at_copy_tops<D>(reinterpret_cast<const uint16_t *>(head), x, key, last, to);
        from = reinterpret_cast<const typename D::value *>(head + cu_page<struct cu_q8>::TOPS) +
               (key % CU_PAGE + row0) * K + (c * IN_PIECE < K ? c * IN_PIECE : 0);
    } else {
        from = reinterpret_cast<const typename D::value *>(layer) +
               ((size_t(v) * kv.G + g) * CU_PAGE + key % CU_PAGE + row0) * K +
               (c * IN_PIECE < K ? c * IN_PIECE : 0);
    }
    if (THREADS % D::PIECES && row0 >= ROWS) return;
    CU_UNROLL
    for (unsigned i = 0; i < (D::KEYS + ROWS - 1) / ROWS; i++) {
        const unsigned row = i * ROWS + row0;
        if (D::KEYS % ROWS && row >= D::KEYS) break;
        mma_copy16(at_piece<D, ROWS>(to, i * ROWS, row0, c), from,
                   key + row <= last && c * IN_PIECE < K);
        from += ROWS * K;
    }
}

/* turns: a.to is looked at. */
template <bool turns, bool Q8, unsigned KP>
static __device__ __forceinline__ void at_load_rows(const struct cu_attn &a, unsigned group,
                                                    unsigned g, unsigned entry0, int *fault,
                                                    struct at_rows<KP> &w)
{
    const unsigned lane = threadIdx.x % CU_WARP, K = a.kv.K;
    int32_t least = 0x7fffffff, most = -1;
    CU_UNROLL
    for (unsigned i = 0; i < 2; i++) {
        const unsigned e = entry0 + lane / 4 + 8 * i, row = e / group;
        const bool there = row < a.m;
        const float *q = a.q + (there ? row * a.ldq + size_t(g * group + e % group) * K : 0);
        w.pos[i] = there ? at_pos(a, row, fault) : -1;
        least = w.pos[i] < least ? w.pos[i] : least;
        most = w.pos[i] > most ? w.pos[i] : most;
        struct float2 even = {0, 0}; /* of Q8: the first two of a lane's four */
        CU_UNROLL
        for (unsigned s = 0; s < 2 * at_dims<KP>::STEPS; s++) {
            const unsigned d = Q8 ? s / 2 * 16 + lane % 4 * 4 + s % 2 * 2 : 8 * s + lane % 4 * 2;
            struct float2 x = {0, 0};
            if (w.pos[i] >= 0 && d < K)
                x = turns ? at_query(a, q, row, d)
                          : *reinterpret_cast<const struct float2 *>(q + d);
            const float f = a.scale * AT_LOG2E;
            if constexpr (!Q8) {
                w.q[s / 2][i + s % 2 * 2] = mma_pack(x.x * f, x.y * f);
            } else if (s % 2 == 0) {
                even = x;
            } else {
                w.q[s / 2][i] = mma_pack(even.x * f, x.x * f);
                w.q[s / 2][i + 2] = mma_pack(even.y * f, x.y * f);
            }
        }
    }
    for (int with = 16; with > 0; with /= 2) {
        const int32_t l = __shfl_xor_sync(CU_ALL, least, with);
        const int32_t m = __shfl_xor_sync(CU_ALL, most, with);
        least = l < least ? l : least;
        most = m > most ? m : most;
    }
    w.ends = lane % 2 ? most : least;
}

/* s[n] += the rows times keys 8n… of the tile. */
template <unsigned KP>
static __device__ __forceinline__ void at_multiply(const struct at_rows<KP> &w, mma_addr k,
                                                   unsigned lane,
                                                   float (&s)[at_dims<KP>::KEYS / 8][4])
{
    typedef at_tile<KP, false> D;
    const unsigned row = lane % 8 + lane / 16 * 8;
    const mma_addr at = k + row * D::ROW + (lane / 8 % 2 ^ at_swizzled<D>(lane % 8)) * 16;
    CU_UNROLL
    for (unsigned d = 0; d < at_dims<KP>::STEPS; d++) {
        CU_UNROLL
        for (unsigned n = 0; n < D::KEYS / 16; n++) {
            uint32_t b[4];
            mma_load(b, at_step<D, 2>(at, d) + n * 16 * D::ROW);
            mma_bf16(s[2 * n], w.q[d], b[0], b[1]);
            mma_bf16(s[2 * n + 1], w.q[d], b[2], b[3]);
        }
    }
}

/* The same of codes: a matrix has 16 dimensions of eight keys. */
template <unsigned KP>
static __device__ __forceinline__ void at_multiply_q8(const struct at_rows<KP> &w, mma_addr k,
                                                      unsigned lane,
                                                      float (&s)[at_dims<KP>::KEYS / 8][4])
{
    typedef at_tile<KP, true> D;
    const mma_addr at = k + lane * D::ROW + at_swizzled<D>(lane % 8) * 16;
    CU_UNROLL
    for (unsigned d = 0; d < at_dims<KP>::STEPS; d++) {
        CU_UNROLL
        for (unsigned n = 0; n < D::KEYS / 32; n++) {
            uint32_t m[4];
            mma_load(m, at_step<D, 1>(at, d) + n * 32 * D::ROW);
            CU_UNROLL
            for (unsigned i = 0; i < 4; i++) {
                const struct mma_codes b = mma_from_codes(m[i]);
                mma_bf16(s[4 * n + i], w.q[d], b.even, b.odd);
            }
        }
    }
}

/* What the codes of two keys count, the lane's of keys 8n… of the tile. */
template <class Tile>
static __device__ __forceinline__ struct float2 at_steps(mma_addr tile, unsigned n, unsigned lane)
{
    const uint32_t tops = mma_word(tile + Tile::TOPS + n * 16 + lane % 4 * 4);
    const float unit = 1.0f / 127;
    return {mma_f16(uint16_t(tops)) * unit, mma_f16(uint16_t(tops >> 16)) * unit};
}

template <class Tile, unsigned N>
static __device__ __forceinline__ void at_scale(mma_addr tile, unsigned lane, float (&s)[N][4])
{
    CU_UNROLL
    for (unsigned n = 0; n < N; n++) {
        const struct float2 step = at_steps<Tile>(tile, n, lane);
        s[n][0] *= step.x, s[n][1] *= step.y;
        s[n][2] *= step.x, s[n][3] *= step.y;
    }
}

/* A tile of codes to one of bf16, by all threads: it is there when this returns. */
template <unsigned KP, unsigned THREADS>
static __device__ __forceinline__ void at_decode(const char *tile, char *plain)
{
    typedef at_tile<KP, true> From;
    typedef at_tile<KP, false> To;
    static_assert(From::KEYS * From::PIECES % THREADS == 0, "each thread has as many");
    CU_UNROLL
    for (unsigned i = 0; i < From::KEYS * From::PIECES / THREADS; i++) {
        const unsigned nth = i * THREADS + threadIdx.x;
        const unsigned row = nth / From::PIECES, c = nth % From::PIECES;
        const auto *const from = reinterpret_cast<const struct at_words *>(tile + row * From::ROW);
        auto *const to = reinterpret_cast<struct at_words *>(plain + row * To::ROW);
        const struct at_words codes = from[c ^ at_swizzled<From>(row)];
        struct at_words even, odd;
        CU_UNROLL
        for (unsigned j = 0; j < 4; j++) {
            const struct mma_codes x = mma_from_codes(codes.w[j]);
            even.w[j] = x.even, odd.w[j] = x.odd;
        }
        to[(2 * c) ^ at_swizzled<To>(row)] = even;
        to[(2 * c + 1) ^ at_swizzled<To>(row)] = odd;
    }
    __syncthreads();
}

/* s[n]: the rows against keys 8n… of the tile, in powers of two; what a row does not see -inf.
 * values: the tile itself, or what it was DECODED to. */
template <unsigned KP, bool Q8, bool DECODED>
static __device__ __forceinline__ void
at_scores(const struct cu_attn &a, const struct at_rows<KP> &w, mma_addr k, mma_addr values,
          unsigned key0, unsigned lane, float (&s)[at_dims<KP>::KEYS / 8][4])
{
    typedef at_dims<KP> D;
    CU_UNROLL
    for (unsigned n = 0; n < D::KEYS / 8; n++)
        s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
    if constexpr (Q8 && !DECODED)
        at_multiply_q8<KP>(w, values, lane, s);
    else
        at_multiply<KP>(w, values, lane, s);
    if constexpr (Q8) at_scale<at_tile<KP, true>>(k, lane, s);
    if (a.cap > 0) {
        CU_UNROLL
        for (unsigned n = 0; n < D::KEYS / 8; n++) {
            CU_UNROLL
            for (unsigned x = 0; x < 4; x++)
                s[n][x] = at_capped(a.cap, s[n][x]);
        }
    }
    if (int32_t(key0 + D::KEYS - 1) <= w.first() && at_reaches(a, w.last(), int32_t(key0))) return;
    CU_UNROLL
    for (unsigned n = 0; n < D::KEYS / 8; n++) {
        CU_UNROLL
        for (unsigned x = 0; x < 4; x++) {
            const int32_t key = int32_t(key0 + 8 * n + lane % 4 * 2 + x % 2);
            if (key > w.pos[x / 2] || !at_reaches(a, w.pos[x / 2], key)) s[n][x] = -INFINITY;
        }
    }
}

/* Scores -> probabilities against the running maximum, which the sums follow. */
template <unsigned KP, class Sums>
static __device__ __forceinline__ void at_softmax(float (&s)[at_dims<KP>::KEYS / 8][4], Sums &o)
{
    float old[2];
    CU_UNROLL
    for (unsigned i = 0; i < 2; i++) {
        float top = o.top[i], sum = 0;
        CU_UNROLL
        for (unsigned n = 0; n < at_dims<KP>::KEYS / 8; n++)
            top = fmaxf(top, fmaxf(s[n][2 * i], s[n][2 * i + 1]));
        top = fmaxf(top, __shfl_xor_sync(CU_ALL, top, 1));
        top = fmaxf(top, __shfl_xor_sync(CU_ALL, top, 2));
        const float from = top == -INFINITY ? 0.0f : top; /* a row that sees nothing of this part */
        old[i] = mma_exp2(o.top[i] - from);
        CU_UNROLL
        for (unsigned n = 0; n < at_dims<KP>::KEYS / 8; n++) {
            s[n][2 * i] = mma_exp2(s[n][2 * i] - from);
            s[n][2 * i + 1] = mma_exp2(s[n][2 * i + 1] - from);
            sum += s[n][2 * i] + s[n][2 * i + 1];
        }
        o.total[i] = fmaf(o.total[i], old[i], sum);
        o.top[i] = top;
    }
    if (!__ballot_sync(CU_ALL, old[0] != 1 || old[1] != 1)) return; /* times 1, for all rows */
    CU_UNROLL
    for (unsigned n = 0; n < Sums::N; n++) {
        o.acc[n][0] *= old[0], o.acc[n][1] *= old[0];
        o.acc[n][2] *= old[1], o.acc[n][3] *= old[1];
    }
}

/* values: as above, at the first of the warp's part. */
template <unsigned KP, bool Q8, bool DECODED, class Sums>
static __device__ __forceinline__ void at_weigh(float (&p)[at_dims<KP>::KEYS / 8][4], mma_addr v,
                                                mma_addr values, unsigned lane, Sums &o)
{
    typedef at_tile<KP, Q8 && !DECODED> D;
    const unsigned row = lane % 16;
    const mma_addr at = values + row * D::ROW + (lane / 16 ^ at_swizzled<D>(lane % 8)) * 16;
    if constexpr (Q8) at_scale<at_tile<KP, true>>(v, lane, p);
    CU_UNROLL
    for (unsigned n = 0; n < D::KEYS / 16; n++) {
        const uint32_t a[4] = {
            mma_pack(p[2 * n][0], p[2 * n][1]), mma_pack(p[2 * n][2], p[2 * n][3]),
            mma_pack(p[2 * n + 1][0], p[2 * n + 1][1]), mma_pack(p[2 * n + 1][2], p[2 * n + 1][3])};
        CU_UNROLL
        for (unsigned d = 0; d < D::ROW / 32 * Sums::N * 8 / KP; d++) {
            uint32_t b[4];
            mma_load_turned(b, at_step<D, 2>(at, d) + n * 16 * D::ROW);
            if constexpr (D::VALUE == 1) {
                CU_UNROLL
                for (unsigned i = 0; i < 2; i++) { /* 16 dimensions each */
                    const struct mma_codes x = mma_from_codes(b[2 * i]),
                                           y = mma_from_codes(b[2 * i + 1]);
                    mma_bf16(o.acc[4 * d + 2 * i], a, x.even, y.even);
                    mma_bf16(o.acc[4 * d + 2 * i + 1], a, x.odd, y.odd);
                }
            } else {
                mma_bf16(o.acc[2 * d], a, b[0], b[1]);
                mma_bf16(o.acc[2 * d + 1], a, b[2], b[3]);
            }
        }
    }
}

/* The start of a part; of the lanes that have an entry together the first has its sink. */
template <unsigned KP, class Sums>
static __device__ __forceinline__ void at_begin(const struct cu_attn &a,
                                                const struct at_rows<KP> &w, unsigned group,
                                                unsigned g, unsigned entry0, unsigned part, Sums &o)
{
    const unsigned lane = threadIdx.x % CU_WARP;
    CU_UNROLL
    for (unsigned i = 0; i < 2; i++) {
        const unsigned e = entry0 + lane / 4 + 8 * i;
        const struct at_start start = at_start_of(a, g * group + e % group, w.pos[i], part);
        o.top[i] = start.top;
        o.total[i] = lane % 4 == 0 ? start.total : 0.0f;
    }
    CU_UNROLL
    for (unsigned n = 0; n < Sums::N; n++)
        o.acc[n][0] = o.acc[n][1] = o.acc[n][2] = o.acc[n][3] = 0;
}

/* What hangs on x is computed again behind the keys, where blocks of several warps gain by it. */
template <unsigned WARPS> static __device__ __forceinline__ unsigned at_anew(unsigned x)
{
    if (WARPS > 1) asm volatile("" : "+r"(x)); /* another value, for all that the compiler knows */
    return x;
}

/* What the parts before this one came to; the values are in a.sums. The four lanes that have two
 * entries together know the same of them, so between parts each keeps a number. */
struct at_before {
    float top[2], total[2];
    __device__ __forceinline__ void take(float kept)
    {
        const unsigned lane = threadIdx.x % CU_WARP & ~3u;
        top[0] = __shfl_sync(CU_ALL, kept, lane), top[1] = __shfl_sync(CU_ALL, kept, lane + 1);
        total[0] = __shfl_sync(CU_ALL, kept, lane + 2);
        total[1] = __shfl_sync(CU_ALL, kept, lane + 3);
    }
    __device__ __forceinline__ float keep() const
    {
        const unsigned at = threadIdx.x % 4;
        const float x = at % 2 ? top[1] : top[0], y = at % 2 ? total[1] : total[0];
        return at < 2 ? x : y;
    }
};

/* Looked up for each entry again behind the keys: registers are short in front of them. */
template <unsigned WARPS>
static __device__ __forceinline__ struct cu_attn at_mine(const struct cu_attn &args)
{
    if (WARPS > 1) return args;
    unsigned y = blockIdx.y;
    asm volatile("" : "+r"(y)); /* another value, for all that the compiler knows */
    return at_sequence(args, y);
}

/* The end of a part for entry i of the lane: it begins a sum or is folded with what is there, and
 * may be the entry's last (ends), or the block's but not the entry's (leaves). Sums so far wait in
 * memory: these lanes alone write and read them, many at once: one after the other they took a
 * quarter of the time. */
template <unsigned KP, unsigned WARPS, class Sums>
static __device__ __forceinline__ void
at_close_entry(const struct cu_attn &args, size_t row, unsigned head, unsigned part, unsigned i,
               bool begins, bool ends, bool leaves, const Sums &o, struct at_before &b)
{
    const struct cu_attn a = at_mine<WARPS>(args);
    enum : unsigned {
        AHEAD = KP > 128 || WARPS == 1 ? 4 : 16, /* as far as registers go */
        SHARES = KP / (Sums::N * 8)
    };
    const unsigned x = at_anew<WARPS>(threadIdx.x), lane = x % CU_WARP, K = a.kv.K;
    const unsigned share = x / CU_WARP % SHARES;
    const unsigned d0 = share * Sums::N * 8 + lane % 4 * Sums::LANE;
    const bool first = share == 0 && lane % 4 == 0;
    float *to = a.sums + row * a.ld_sums + size_t(head) * K;
    struct at_weights w = {0, 1};
    if (begins)
        b.top[i] = o.top[i], b.total[i] = o.total[i];
    else
        w = at_fold(b.top[i], b.total[i], o.top[i], o.total[i]);
    if (leaves) {
        float *const left = at_part(a, row, head, part);
        if (first) left[0] = b.top[i], left[1] = b.total[i];
        if (part >= a.first) to = left + 2;
    }
    const bool rounds = ends && a.type == CU_BF16;
    uint32_t *const two =
        static_cast<uint32_t *>(a.out) + (row * a.ldo + size_t(head) * K) / 2; /* if it rounds */
    const float one = 1 / b.total[i];
    CU_UNROLL
    for (unsigned n0 = 0; n0 < Sums::N; n0 += AHEAD) {
        struct float2 old[AHEAD];
        CU_UNROLL
        for (unsigned n = 0; n < AHEAD && n0 + n < Sums::N; n++) {
            const unsigned d = Sums::two_at(n0 + n) + d0;
            old[n].x = old[n].y = 0;
            if (!begins && d < K) old[n] = *reinterpret_cast<const struct float2 *>(to + d);
        }
        CU_UNROLL
        for (unsigned n = 0; n < AHEAD && n0 + n < Sums::N; n++) {
            const unsigned d = Sums::two_at(n0 + n) + d0;
            struct float2 y = o.two(n0 + n, i);
            if (!begins) y.x = at_folded(w, old[n].x, y.x), y.y = at_folded(w, old[n].y, y.y);
            if (ends) y.x *= one, y.y *= one;
            if (d >= K) continue;
            if (rounds)
                two[d / 2] = mma_pack(y.x, y.y);
            else
                *reinterpret_cast<struct float2 *>(to + d) = y;
        }
    }
    if (ends && a.lse && first) a.lse[row * a.H + head] = at_lse(b.top[i], b.total[i]);
}

template <unsigned KP, unsigned WARPS, class Sums>
static __device__ __forceinline__ void
at_close(const struct cu_attn &a, const struct at_rows<KP> &w, unsigned group, unsigned g,
         unsigned entry0, unsigned part, Sums &o, float &before)
{
    const unsigned lane = at_anew<WARPS>(threadIdx.x) % CU_WARP;
    struct at_before b;
    b.take(before);
    CU_UNROLL
    for (unsigned i = 0; i < 2; i++) {
        o.total[i] += __shfl_xor_sync(CU_ALL, o.total[i], 1);
        o.total[i] += __shfl_xor_sync(CU_ALL, o.total[i], 2);
    }
    CU_UNROLL
    for (unsigned i = 0; i < 2; i++) {
        const unsigned e = entry0 + lane / 4 + 8 * i;
        const unsigned first = unsigned(at_from(a, w.pos[i])) / CU_KEYS_PART;
        if (w.pos[i] < int32_t(part * CU_KEYS_PART) || first > part) continue;
        const bool apart = part >= a.first;
        const bool ends = !apart && unsigned(w.pos[i]) / CU_KEYS_PART == part;
        at_close_entry<KP, WARPS>(a, e / group, g * group + e % group, part, i,
                                  apart || first == part, ends, !ends && part + 1 >= a.first, o, b);
    }
    before = b.keep();
}

template <unsigned KP, bool Q8, unsigned THREADS>
struct at_feed { /* tiles on their way: K, V, K, V… */
    typedef at_tile<KP, Q8> D;
    mma_addr ring;
    unsigned at; /* offset of the tile that is used next */
    unsigned g, end;
    int32_t page; /* of the tile that is sent next: read before it is wanted */

    __device__ __forceinline__ void send(const struct cu_kv &kv, unsigned key, bool v, unsigned to)
    {
        const unsigned head = at_head<KP, THREADS / CU_WARP>(kv, g);
        if (key < end) at_copy_tile<KP, Q8, THREADS>(kv, page, head, key, end - 1, v, ring + to);
        if (v && key + D::KEYS < end) page = kv.pages[(key + D::KEYS) / CU_PAGE];
        mma_copies_end();
    }

    /* Wait for the next tile, K or V, and send the one of the next keys to where the tile before it
     * was: all warps are done with that. */
    __device__ __forceinline__ mma_addr take(const struct cu_kv &kv, unsigned next_key, bool v)
    {
        const unsigned now = at, last = (AT_RING - 1) * D::BUFFER;
        mma_copies_wait<1>();
        __syncthreads();
        send(kv, next_key, v, now == 0 ? last : now - D::BUFFER);
        at = now == last ? 0 : now + D::BUFFER;
        return ring + now;
    }
};

/* Where a tile's values are as products read them. */
template <unsigned KP, class Block>
static __device__ __forceinline__ mma_addr at_values(char *buffers, mma_addr ring, mma_addr tile)
{
    if constexpr (!Block::DECODES) {
        return tile;
    } else {
        const unsigned plain = AT_RING * at_tile<KP, true>::BUFFER;
        at_decode<KP, Block::THREADS>(buffers + (tile - ring), buffers + plain);
        return ring + plain;
    }
}

template <unsigned KP, bool Q8, unsigned WARPS>
static __global__ void __launch_bounds__(at_block<KP, Q8, WARPS>::THREADS,
                                         at_block<KP, Q8, WARPS>::BLOCKS)
    attend_mma(const __grid_constant__ struct cu_attn args, unsigned group, int *fault)
{
    typedef at_tile<KP, Q8> D;
    typedef at_block<KP, Q8, WARPS> B;
    KN_DYNAMIC_SHARED(char, buffers);
    const struct cu_attn a = at_mine<WARPS>(args);
    const unsigned g = blockIdx.x % a.kv.G, nth = blockIdx.x / a.kv.G;
    const unsigned n = unsigned(a.m) * group, rows = WARPS * AT_WARP_ROWS,
                   tiles = (n + rows - 1) / rows;
    if (nth >= tiles) return;
    const unsigned block0 = (tiles - 1 - nth) * rows; /* the longest start first */
    const unsigned after = block0 + rows < n ? block0 + rows : n;
    const int32_t last = at_pos(a, (after - 1) / group, fault);
    const unsigned stop = (a.first + blockIdx.z) * CU_KEYS_PART;
    const unsigned part0 = blockIdx.z ? stop - CU_KEYS_PART : 0;
    if (last < 0 || part0 > unsigned(last)) return;
    const unsigned all = unsigned(last) + 1, end = all < stop ? all : stop;
    const unsigned from = a.window ? at_from(a, a.pos[block0 / group]) / D::KEYS * D::KEYS : 0;
    const unsigned key0 = from > part0 ? from : part0;
    if (key0 >= end) return;
    struct at_feed<KP, Q8, B::THREADS> feed = {
        mma_address(buffers), 0, g, end, a.kv.pages[key0 / CU_PAGE]
    };
    feed.send(a.kv, key0, false, 0);
    feed.send(a.kv, key0, true, D::BUFFER);

    const unsigned entry0 = block0 + threadIdx.x / (B::SHARES * CU_WARP) * AT_WARP_ROWS;
    struct at_rows<KP> w;
    struct at_sums<B::OF, Q8> o;
    float before = 1; /* of what a first part does not read */
    at_load_rows<true, Q8>(a, group, g, entry0, fault, w);
    for (unsigned key = key0; key < end;) {
        at_begin(args, w, group, g, entry0, key / CU_KEYS_PART, o);
        do {
            const unsigned lane = at_thread<KP, WARPS>() % CU_WARP;
            const bool seen =
                w.last() >= int32_t(key) && at_reaches(a, w.first(), int32_t(key + D::KEYS - 1));
            float s[D::KEYS / 8][4];
            const mma_addr k = feed.take(a.kv, key + D::KEYS, false);
            const mma_addr keys = at_values<KP, B>(buffers, feed.ring, k);
            if (seen) {
                at_scores<KP, Q8, B::DECODES>(a, w, k, keys, key, lane, s);
                at_softmax<KP>(s, o);
            }
            const mma_addr v = feed.take(a.kv, key + D::KEYS, true);
            const mma_addr values = at_values<KP, B>(buffers, feed.ring, v);
            const unsigned part = threadIdx.x / CU_WARP % B::SHARES * B::OF;
            const unsigned bytes = part * (Q8 && !B::DECODES ? 1 : 2);
            if (seen) at_weigh<KP, Q8, B::DECODES>(s, v, values + bytes, lane, o);
            key += D::KEYS;
        } while (key < end && key % CU_KEYS_PART);
        at_close<KP, WARPS>(args, w, group, at_anew<WARPS>(g), at_anew<WARPS>(entry0),
                            (key - 1) / CU_KEYS_PART, o, before);
    }
}

/* All of the first-level cache as shared memory: nothing else here would use it. A preference: what
 * it answers does not matter, and must not be found by the next launch. */
template <unsigned KP, bool Q8> static void prefer_shared()
{
    const auto all = cudaFuncAttributePreferredSharedMemoryCarveout;
    (void)cudaFuncSetAttribute(attend_mma<KP, Q8, 1>, all, cudaSharedmemCarveoutMaxShared);
    (void)cudaFuncSetAttribute(attend_mma<KP, Q8, AT_WIDE>, all, cudaSharedmemCarveoutMaxShared);
}

template <bool Q8> static void prefer_shared_all()
{
    prefer_shared<64, Q8>(), prefer_shared<96, Q8>();
    prefer_shared<128, Q8>(), prefer_shared<256, Q8>();
}

int at_mma_open()
{
    cudaFuncAttributes a;
    const cudaError_t e = cudaFuncGetAttributes(&a, attend_mma<64, false, 1>);
    if (e == cudaSuccess) prefer_shared_all<false>(), prefer_shared_all<true>();
    (void)cudaGetLastError();
    return e == cudaSuccess ? 0 : -ENOTSUP;
}

bool at_mma_fits(const struct cu *c, const struct cu_attn *a)
{
    const unsigned K = a->kv.K, piece = c->pages == CU_Q8 ? 16 : 8; /* values in 16 bytes */
    const auto bits = [](const void *p) { return reinterpret_cast<uintptr_t>(p); };
    const struct kn_rope *r = &a->to.rope;
    const uintptr_t rows = bits(a->q) | bits(a->out) | bits(r->cos) | bits(r->sin) |
                           uintptr_t(a->ldq * sizeof(float)) | uintptr_t(a->ldo * sizeof(float));
    const uintptr_t pages = bits(a->kv.base) | uintptr_t(a->kv.page_bytes);
    return K % piece == 0 && K <= 256 && rows % 8 == 0 && pages % 16 == 0 && a->m * a->H < 1u << 31;
}

/* By blocks of one warp: alone these know of sequences a row each. */
static bool at_few(const struct cu_attn *a)
{
    return a->kv.each || a->m * (a->H / a->kv.G) <= AT_WARP_ROWS;
}

static size_t at_tiles(const struct cu_attn *a) /* of a sequence and KV head */
{
    const size_t rows = (at_few(a) ? 1 : AT_WIDE) * AT_WARP_ROWS;
    return cu_blocks(at_each_rows(a) * (a->H / a->kv.G), rows);
}

size_t at_mma_blocks(const struct cu_attn *a)
{
    return at_sequences(a) * at_tiles(a) * a->kv.G;
}

unsigned at_mma_at_once(const struct cu *c, const struct cu_attn *a)
{
    static_assert(AT_WIDE * AT_WARP_ROWS == SPLIT_ROWS, "what a block's time is estimated of");
    if (at_few(a)) return 0;
    return a->kv.K <= 64 ? 3 : a->kv.K > 128 && c->pages == CU_Q8 ? 1 : 2;
}

template <unsigned KP, bool Q8, unsigned WARPS>
static int launch_mma(struct cu *c, const struct cu_attn *a)
{
    const dim3 grid(unsigned(at_tiles(a)) * a->kv.G, unsigned(at_sequences(a)), 1 + at_behind(*a));
    typedef at_block<KP, Q8, WARPS> B;
    static_assert(B::ROOM <= 48 << 10, "what a block gets unasked");
    KN_LAUNCH((attend_mma<KP, Q8, WARPS>), grid, dim3(B::THREADS), B::ROOM, c->stream, *a,
              a->H / a->kv.G, c->fault);
    return cu_launched(c);
}

template <unsigned KP, bool Q8> static int launch_dims(struct cu *c, const struct cu_attn *a)
{
    return at_few(a) ? launch_mma<KP, Q8, 1>(c, a) : launch_mma<KP, Q8, AT_WIDE>(c, a);
}

template <bool Q8> static int launch_pages(struct cu *c, const struct cu_attn *a)
{
    const unsigned K = a->kv.K;
    return K <= 64    ? launch_dims<64, Q8>(c, a)
           : K <= 96  ? launch_dims<96, Q8>(c, a)
           : K <= 128 ? launch_dims<128, Q8>(c, a)
                      : launch_dims<256, Q8>(c, a);
}

int at_mma(struct cu *c, const struct cu_attn *a)
{
    return c->pages == CU_Q8 ? launch_pages<true>(c, a) : launch_pages<false>(c, a);
}

/* ---- mass: a block has a tile of keys and one KV head, its warps every fourth 16 entries ---- */

template <unsigned KP, bool Q8>
static __device__ __forceinline__ void
at_add_mass(const struct cu_attn &a, unsigned group, unsigned g, unsigned entry0, unsigned key0,
            mma_addr k, int *fault, float (&sum)[at_dims<KP>::KEYS / 8][2])
{
    const unsigned lane = threadIdx.x % CU_WARP;
    struct at_rows<KP> w;
    float s[at_dims<KP>::KEYS / 8][4], lse[2];
    at_load_rows<false, Q8>(a, group, g, entry0, fault, w);
    if (w.last() < int32_t(key0) || at_from(a, w.first()) >= int32_t(key0 + at_dims<KP>::KEYS))
        return;
    CU_UNROLL
    for (unsigned i = 0; i < 2; i++) {
        const unsigned e = entry0 + lane / 4 + 8 * i;
        lse[i] =
            w.pos[i] < 0 ? 0.0f : a.lse[size_t(e / group) * a.H + g * group + e % group] * AT_LOG2E;
    }
    at_scores<KP, Q8, false>(a, w, k, k, key0, threadIdx.x % CU_WARP, s);
    CU_UNROLL
    for (unsigned n = 0; n < at_dims<KP>::KEYS / 8; n++) {
        CU_UNROLL
        for (unsigned x = 0; x < 4; x++)
            sum[n][x % 2] += mma_exp2(s[n][x] - lse[x / 2]);
    }
}

template <unsigned KP, bool Q8>
static __global__ void __launch_bounds__(AT_WIDE *CU_WARP)
    mass_mma(struct cu_attn a, unsigned group, size_t first, size_t n_keys, float *ret, int *fault)
{
    typedef at_tile<KP, Q8> D;
    KN_DYNAMIC_SHARED(char, buffer);
    __shared__ float part[AT_WIDE][D::KEYS];
    const unsigned lane = threadIdx.x % CU_WARP, warp = threadIdx.x / CU_WARP, g = blockIdx.y;
    const size_t key0 = first + size_t(blockIdx.x) * D::KEYS;
    const int32_t last = at_pos(a, a.m - 1, fault);
    if (last < 0 || key0 > size_t(last)) return;
    const mma_addr k = mma_address(buffer);
    at_copy_tile<KP, Q8, AT_WIDE * CU_WARP>(a.kv, a.kv.pages[key0 / CU_PAGE], g, unsigned(key0),
                                            unsigned(last), false, k);
    mma_copies_end();
    mma_copies_wait<0>();
    __syncthreads();
    float sum[D::KEYS / 8][2];
    CU_UNROLL
    for (unsigned n = 0; n < D::KEYS / 8; n++)
        sum[n][0] = sum[n][1] = 0;
    for (unsigned e = warp * AT_WARP_ROWS; e < unsigned(a.m) * group; e += AT_WIDE * AT_WARP_ROWS)
        at_add_mass<KP, Q8>(a, group, g, e, unsigned(key0), k, fault, sum);
    CU_UNROLL
    for (unsigned n = 0; n < D::KEYS / 8; n++) {
        CU_UNROLL
        for (unsigned x = 0; x < 2; x++) {
            for (int with = 4; with < 32; with *= 2)
                sum[n][x] += __shfl_xor_sync(CU_ALL, sum[n][x], with);
            if (lane < 4) part[warp][8 * n + 2 * lane + x] = sum[n][x];
        }
    }
    __syncthreads();
    const size_t j = threadIdx.x, to = size_t(blockIdx.x) * D::KEYS + j;
    if (j < D::KEYS && to < n_keys)
        ret[g * n_keys + to] = (part[0][j] + part[1][j]) + (part[2][j] + part[3][j]);
}

template <unsigned KP, bool Q8>
static int launch_mass(struct cu *c, const struct cu_attn *a, size_t key0, size_t n_keys,
                       float *ret)
{
    typedef at_tile<KP, Q8> D;
    const dim3 grid(cu_blocks(n_keys, D::KEYS), a->kv.G);
    KN_LAUNCH((mass_mma<KP, Q8>), grid, dim3(AT_WIDE * CU_WARP), D::BUFFER, c->stream, *a,
              a->H / a->kv.G, key0, n_keys, ret, c->fault);
    return cu_launched(c);
}

template <bool Q8>
static int mass_of_pages(struct cu *c, const struct cu_attn *a, size_t key0, size_t n_keys,
                         float *ret)
{
    const unsigned K = a->kv.K;
    return K <= 64    ? launch_mass<64, Q8>(c, a, key0, n_keys, ret)
           : K <= 96  ? launch_mass<96, Q8>(c, a, key0, n_keys, ret)
           : K <= 128 ? launch_mass<128, Q8>(c, a, key0, n_keys, ret)
                      : launch_mass<256, Q8>(c, a, key0, n_keys, ret);
}

int at_mma_mass(struct cu *c, const struct cu_attn *a, size_t key0, size_t n_keys, float *ret)
{
    return c->pages == CU_Q8 ? mass_of_pages<true>(c, a, key0, n_keys, ret)
                             : mass_of_pages<false>(c, a, key0, n_keys, ret);
}
