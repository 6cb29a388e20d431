/* Attention of rows at exact positions on tensor cores, bf16 pages.
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
 * buffers leave room for everywhere. */
#include "kernels/cuda/attn.h"

enum { AT_RING = 3, AT_WARP_ROWS = 16, AT_WIDE = 4 /* warps of a block */ };

template <unsigned KP> struct at_dims { /* KP: K rounded up to what is compiled */
    enum : unsigned {
        KEYS = KP > 128 ? 32 : 64, /* of a tile */
        STEPS = KP / 16,
        PIECES = KP / 8, /* of 16 bytes in a row */
        ROW = KP * 2,    /* bytes */
        BUFFER = KEYS * ROW,
        SWIZZLE = KP % 64 == 0 ? 8 : 4,
    };
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

template <unsigned OF> struct at_sums { /* of a lane's two entries, OF values of V */
    enum : unsigned { N = OF / 8 };
    float acc[N][4];        /* entry i: [2i], [2i + 1] */
    float top[2], total[2]; /* total: of this lane's keys */
};

/* Warps that share 16 entries: each has all of Q and a part of V, since registers have no room for
 * all of both in a block whose sequence each entry looks up. Scores are computed by each. */
template <unsigned KP, unsigned WARPS> struct at_block {
    enum : unsigned {
        SHARES = KP > 128 && WARPS == 1 ? 2 : 1,
        OF = KP / SHARES, /* values of V */
        THREADS = SHARES * WARPS * CU_WARP
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
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (KP > 128 && WARPS > 1) {
        unsigned x = blockIdx.x;
        asm volatile("" : "+r"(x));
        return x % kv.G;
    }
#endif
    return g;
}

/* Piece c of a buffer's row is at piece c ^ this. Rows of 64 values more begin at the same bank,
 * rows of 32 more half a round on. */
template <unsigned KP> static __device__ __forceinline__ unsigned at_swizzled(unsigned row)
{
    return at_dims<KP>::SWIZZLE == 8 ? row % 8 : row / 2 % 4;
}

/* From the address of a row's piece 0 or 1 to that of piece 2 d more: one operation, and a constant
 * that an instruction takes along. */
template <unsigned KP> static __device__ __forceinline__ mma_addr at_step(mma_addr at, unsigned d)
{
    const unsigned half = at_dims<KP>::SWIZZLE / 2;
    return (at ^ d % half * 32) + d / half * (half * 32);
}

/* Where piece c of row first + row0 is, first known at compile time and a multiple of N, row0 below
 * N: in one operation behind what all of them share when N is a power of two. */
template <unsigned KP, unsigned N>
static __device__ __forceinline__ mma_addr at_piece(mma_addr buffer, unsigned first, unsigned row0,
                                                    unsigned c)
{
    const unsigned ROW = at_dims<KP>::ROW;
    if (N & (N - 1))
        return buffer + (first + row0) * ROW + (c ^ at_swizzled<KP>(first + row0)) * 16;
    const mma_addr at = buffer + row0 * ROW + (c ^ at_swizzled<KP>(row0)) * 16;
    return (at ^ at_swizzled<KP>(first) * 16) + first * ROW;
}

template <unsigned KP, unsigned THREADS>
static __device__ __forceinline__ void at_copy_tile(const struct cu_kv &kv, int32_t page,
                                                    unsigned g, unsigned key, unsigned last, bool v,
                                                    mma_addr to)
{
    typedef at_dims<KP> D;
    /* Whole rows a turn: the next is a step on in both memories, so that no place is kept. */
    const unsigned ROWS = THREADS / D::PIECES, K = kv.K;
    const unsigned x = at_thread<KP, THREADS / CU_WARP>(), row0 = x / D::PIECES, c = x % D::PIECES;
    if (THREADS % D::PIECES && row0 >= ROWS) return;
    const uint16_t *from =
        reinterpret_cast<const uint16_t *>(kv.base + size_t(page) * kv.page_bytes) +
        ((size_t(v) * kv.G + g) * CU_PAGE + key % CU_PAGE + row0) * K + (c * 8 < K ? c * 8 : 0);
    CU_UNROLL
    for (unsigned i = 0; i < (D::KEYS + ROWS - 1) / ROWS; i++) {
        const unsigned row = i * ROWS + row0;
        if (D::KEYS % ROWS && row >= D::KEYS) break;
        mma_copy16(at_piece<KP, ROWS>(to, i * ROWS, row0, c), from, key + row <= last && c * 8 < K);
        from += ROWS * K;
    }
}

/* turns: a.to is looked at. */
template <bool turns, unsigned KP>
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
        CU_UNROLL
        for (unsigned s = 0; s < 2 * at_dims<KP>::STEPS; s++) {
            const unsigned d = 8 * s + lane % 4 * 2;
            struct float2 x = {0, 0};
            if (w.pos[i] >= 0 && d < K)
                x = turns ? at_query(a, q, row, d)
                          : *reinterpret_cast<const struct float2 *>(q + d);
            const float f = a.scale * AT_LOG2E;
            w.q[s / 2][i + s % 2 * 2] = mma_pack(x.x * f, x.y * f);
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

/* s[n]: the rows against keys 8n… of the tile, in powers of two; what a row does not see -inf. */
template <unsigned KP>
static __device__ __forceinline__ void
at_scores(const struct cu_attn &a, const struct at_rows<KP> &w, mma_addr k, unsigned key0,
          unsigned lane, float (&s)[at_dims<KP>::KEYS / 8][4])
{
    typedef at_dims<KP> D;
    const unsigned row = lane % 8 + lane / 16 * 8;
    const mma_addr at = k + row * D::ROW + (lane / 8 % 2 ^ at_swizzled<KP>(lane % 8)) * 16;
    CU_UNROLL
    for (unsigned n = 0; n < D::KEYS / 8; n++)
        s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
    CU_UNROLL
    for (unsigned d = 0; d < D::STEPS; d++) {
        CU_UNROLL
        for (unsigned n = 0; n < D::KEYS / 16; n++) {
            uint32_t b[4];
            mma_load(b, at_step<KP>(at, d) + n * 16 * D::ROW);
            mma_bf16(s[2 * n], w.q[d], b[0], b[1]);
            mma_bf16(s[2 * n + 1], w.q[d], b[2], b[3]);
        }
    }
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

/* v: at the first value of the warp's part. */
template <unsigned KP, class Sums>
static __device__ __forceinline__ void at_weigh(const float (&p)[at_dims<KP>::KEYS / 8][4],
                                                mma_addr v, unsigned lane, Sums &o)
{
    typedef at_dims<KP> D;
    const unsigned row = lane % 16;
    const mma_addr at = v + row * D::ROW + (lane / 16 ^ at_swizzled<KP>(lane % 8)) * 16;
    CU_UNROLL
    for (unsigned n = 0; n < D::KEYS / 16; n++) {
        const uint32_t a[4] = {
            mma_pack(p[2 * n][0], p[2 * n][1]), mma_pack(p[2 * n][2], p[2 * n][3]),
            mma_pack(p[2 * n + 1][0], p[2 * n + 1][1]), mma_pack(p[2 * n + 1][2], p[2 * n + 1][3])};
        CU_UNROLL
        for (unsigned d = 0; d < Sums::N / 2; d++) {
            uint32_t b[4];
            mma_load_turned(b, at_step<KP>(at, d) + n * 16 * D::ROW);
            mma_bf16(o.acc[2 * d], a, b[0], b[1]);
            mma_bf16(o.acc[2 * d + 1], a, b[2], b[3]);
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

/* A whole block: what the parts before this one came to; the values are in a.sums. The four lanes
 * that have two entries together know the same of them, so between parts each keeps a number. */
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

/* The end of a part for entry i of the lane. Folded here, sums so far wait in memory: these lanes
 * alone write and read them, many at once: one after the other they took a quarter of the time. */
template <unsigned KP, unsigned WARPS, class Sums>
static __device__ __forceinline__ void
at_close_entry(const struct cu_attn &args, size_t row, unsigned head, unsigned part, bool apart,
               unsigned i, bool begins, bool ends, const Sums &o, struct at_before &b)
{
    const struct cu_attn a = at_mine<WARPS>(args);
    enum : unsigned {
        AHEAD = KP > 128 || WARPS == 1 ? 4 : 16, /* as far as registers go */
        SHARES = at_block<KP, WARPS>::SHARES
    };
    const unsigned x = at_anew<WARPS>(threadIdx.x), lane = x % CU_WARP, K = a.kv.K;
    const unsigned share = SHARES > 1 ? x / CU_WARP : 0, d0 = share * Sums::N * 8 + lane % 4 * 2;
    const bool first = share == 0 && lane % 4 == 0;
    float *to = a.sums + row * a.ld_sums + size_t(head) * K;
    struct at_weights w = {0, 1};
    if (apart) {
        to = at_part(a, row, head, part);
        if (first) to[0] = o.top[i], to[1] = o.total[i];
        to += 2;
    } else if (begins) {
        b.top[i] = o.top[i], b.total[i] = o.total[i];
    } else {
        w = at_fold(b.top[i], b.total[i], o.top[i], o.total[i]);
    }
    const bool folds = !apart && !begins, divides = !apart && ends;
    const bool rounds = divides && a.type == CU_BF16;
    uint32_t *const two =
        static_cast<uint32_t *>(a.out) + (row * a.ldo + size_t(head) * K) / 2; /* if it rounds */
    const float one = 1 / b.total[i];
    CU_UNROLL
    for (unsigned n0 = 0; n0 < Sums::N; n0 += AHEAD) {
        struct float2 old[AHEAD];
        CU_UNROLL
        for (unsigned n = 0; n < AHEAD && n0 + n < Sums::N; n++) {
            const unsigned d = 8 * (n0 + n) + d0;
            old[n].x = old[n].y = 0;
            if (folds && d < K) old[n] = *reinterpret_cast<const struct float2 *>(to + d);
        }
        CU_UNROLL
        for (unsigned n = 0; n < AHEAD && n0 + n < Sums::N; n++) {
            const unsigned d = 8 * (n0 + n) + d0;
            struct float2 y = {o.acc[n0 + n][2 * i], o.acc[n0 + n][2 * i + 1]};
            if (folds) y.x = at_folded(w, old[n].x, y.x), y.y = at_folded(w, old[n].y, y.y);
            if (divides) y.x *= one, y.y *= one;
            if (d >= K) continue;
            if (rounds)
                two[d / 2] = mma_pack(y.x, y.y);
            else
                *reinterpret_cast<struct float2 *>(to + d) = y;
        }
    }
    if (!apart && ends && a.lse && first) a.lse[row * a.H + head] = at_lse(b.top[i], b.total[i]);
}

template <unsigned KP, unsigned WARPS, class Sums>
static __device__ __forceinline__ void
at_close(const struct cu_attn &a, const struct at_rows<KP> &w, unsigned group, unsigned g,
         unsigned entry0, unsigned part, bool apart, Sums &o, float &before)
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
        at_close_entry<KP, WARPS>(a, e / group, g * group + e % group, part, apart, i,
                                  first == part, unsigned(w.pos[i]) / CU_KEYS_PART == part, o, b);
    }
    before = b.keep();
}

template <unsigned KP, unsigned THREADS> struct at_feed { /* tiles on their way: K, V, K, V… */
    typedef at_dims<KP> D;
    mma_addr ring;
    unsigned at; /* offset of the tile that is used next */
    unsigned g, end;
    int32_t page; /* of the tile that is sent next: read before it is wanted */

    __device__ __forceinline__ void send(const struct cu_kv &kv, unsigned key, bool v, unsigned to)
    {
        const unsigned head = at_head<KP, THREADS / CU_WARP>(kv, g);
        if (key < end) at_copy_tile<KP, THREADS>(kv, page, head, key, end - 1, v, ring + to);
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

template <unsigned KP, unsigned WARPS>
static __global__ void __launch_bounds__(at_block<KP, WARPS>::THREADS, WARPS == 1 ? 1
                                                                       : KP > 64  ? 2
                                                                                  : 3)
    attend_mma(const __grid_constant__ struct cu_attn args, unsigned group, bool whole, int *fault)
{
    typedef at_dims<KP> D;
    typedef at_block<KP, WARPS> B;
    KN_DYNAMIC_SHARED(char, buffers);
    const struct cu_attn a = at_mine<WARPS>(args);
    const unsigned g = blockIdx.x % a.kv.G, nth = blockIdx.x / a.kv.G;
    const unsigned n = unsigned(a.m) * group, rows = WARPS * AT_WARP_ROWS,
                   tiles = (n + rows - 1) / rows;
    if (nth >= tiles) return;
    const unsigned block0 = (tiles - 1 - nth) * rows; /* the longest start first */
    const unsigned after = block0 + rows < n ? block0 + rows : n;
    const int32_t last = at_pos(a, (after - 1) / group, fault);
    const unsigned part0 = whole ? 0 : blockIdx.z * CU_KEYS_PART;
    if (last < 0 || part0 > unsigned(last)) return;
    const unsigned all = unsigned(last) + 1;
    const unsigned end = whole || all < part0 + CU_KEYS_PART ? all : part0 + CU_KEYS_PART;
    const unsigned from = a.window ? at_from(a, a.pos[block0 / group]) / D::KEYS * D::KEYS : 0;
    const unsigned key0 = from > part0 ? from : part0;
    if (key0 >= end) return;
    struct at_feed<KP, B::THREADS> feed = {
        mma_address(buffers), 0, g, end, a.kv.pages[key0 / CU_PAGE]
    };
    feed.send(a.kv, key0, false, 0);
    feed.send(a.kv, key0, true, D::BUFFER);

    const unsigned entry0 = block0 + threadIdx.x / (B::SHARES * CU_WARP) * AT_WARP_ROWS;
    const bool apart = !whole && at_parts(a) > 1;
    struct at_rows<KP> w;
    struct at_sums<B::OF> o;
    float before = 1; /* of what a first part does not read */
    at_load_rows<true>(a, group, g, entry0, fault, w);
    for (unsigned key = key0; key < end;) {
        at_begin(args, w, group, g, entry0, key / CU_KEYS_PART, o);
        do {
            const unsigned lane = at_thread<KP, WARPS>() % CU_WARP;
            const bool seen =
                w.last() >= int32_t(key) && at_reaches(a, w.first(), int32_t(key + D::KEYS - 1));
            float s[D::KEYS / 8][4];
            const mma_addr k = feed.take(a.kv, key + D::KEYS, false);
            if (seen) {
                at_scores<KP>(a, w, k, key, lane, s);
                at_softmax<KP>(s, o);
            }
            const mma_addr v = feed.take(a.kv, key + D::KEYS, true);
            const unsigned part =
                B::SHARES > 1 ? threadIdx.x / CU_WARP * (B::OF * 2) : 0; /* bytes */
            if (seen) at_weigh<KP>(s, v + part, lane, o);
            key += D::KEYS;
        } while (key < end && key % CU_KEYS_PART);
        at_close<KP, WARPS>(args, w, group, at_anew<WARPS>(g), at_anew<WARPS>(entry0),
                            (key - 1) / CU_KEYS_PART, apart, o, before);
    }
}

/* All of the first-level cache as shared memory: nothing else here would use it. A preference: what
 * it answers does not matter, and must not be found by the next launch. */
template <unsigned KP> static void prefer_shared()
{
    const auto all = cudaFuncAttributePreferredSharedMemoryCarveout;
    (void)cudaFuncSetAttribute(attend_mma<KP, 1>, all, cudaSharedmemCarveoutMaxShared);
    (void)cudaFuncSetAttribute(attend_mma<KP, AT_WIDE>, all, cudaSharedmemCarveoutMaxShared);
}

int at_mma_open()
{
    cudaFuncAttributes a;
    const cudaError_t e = cudaFuncGetAttributes(&a, attend_mma<64, 1>);
    if (e == cudaSuccess)
        prefer_shared<64>(), prefer_shared<96>(), prefer_shared<128>(), prefer_shared<256>();
    (void)cudaGetLastError();
    return e == cudaSuccess ? 0 : -ENOTSUP;
}

bool at_mma_fits(const struct cu_attn *a)
{
    const unsigned K = a->kv.K;
    const auto bits = [](const void *p) { return reinterpret_cast<uintptr_t>(p); };
    const struct kn_rope *r = &a->to.rope;
    const uintptr_t rows = bits(a->q) | bits(a->out) | bits(r->cos) | bits(r->sin) |
                           uintptr_t(a->ldq * sizeof(float)) | uintptr_t(a->ldo * sizeof(float));
    const uintptr_t pages = bits(a->kv.base) | uintptr_t(a->kv.page_bytes);
    return K % 8 == 0 && K <= 256 && rows % 8 == 0 && pages % 16 == 0 && a->m * a->H < 1u << 31;
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

template <unsigned KP, unsigned WARPS>
static int launch_mma(struct cu *c, const struct cu_attn *a, bool whole)
{
    const dim3 grid(unsigned(at_tiles(a)) * a->kv.G, unsigned(at_sequences(a)),
                    whole ? 1 : a->n_parts);
    KN_LAUNCH((attend_mma<KP, WARPS>), grid, dim3(at_block<KP, WARPS>::THREADS),
              AT_RING * at_dims<KP>::BUFFER, c->stream, *a, a->H / a->kv.G, whole, c->fault);
    return cu_launched(c);
}

template <unsigned KP> static int launch_dims(struct cu *c, const struct cu_attn *a, bool whole)
{
    static_assert(AT_RING * at_dims<KP>::BUFFER <= 48 << 10, "what a block gets without asking");
    return at_few(a) ? launch_mma<KP, 1>(c, a, whole) : launch_mma<KP, AT_WIDE>(c, a, whole);
}

int at_mma(struct cu *c, const struct cu_attn *a, bool whole)
{
    const unsigned K = a->kv.K;
    return K <= 64    ? launch_dims<64>(c, a, whole)
           : K <= 96  ? launch_dims<96>(c, a, whole)
           : K <= 128 ? launch_dims<128>(c, a, whole)
                      : launch_dims<256>(c, a, whole);
}

/* ---- mass: a block has a tile of keys and one KV head, its warps every fourth 16 entries ---- */

template <unsigned KP>
static __device__ __forceinline__ void
at_add_mass(const struct cu_attn &a, unsigned group, unsigned g, unsigned entry0, unsigned key0,
            mma_addr k, int *fault, float (&sum)[at_dims<KP>::KEYS / 8][2])
{
    const unsigned lane = threadIdx.x % CU_WARP;
    struct at_rows<KP> w;
    float s[at_dims<KP>::KEYS / 8][4], lse[2];
    at_load_rows<false>(a, group, g, entry0, fault, w);
    if (w.last() < int32_t(key0) || at_from(a, w.first()) >= int32_t(key0 + at_dims<KP>::KEYS))
        return;
    CU_UNROLL
    for (unsigned i = 0; i < 2; i++) {
        const unsigned e = entry0 + lane / 4 + 8 * i;
        lse[i] =
            w.pos[i] < 0 ? 0.0f : a.lse[size_t(e / group) * a.H + g * group + e % group] * AT_LOG2E;
    }
    at_scores<KP>(a, w, k, key0, threadIdx.x % CU_WARP, s);
    CU_UNROLL
    for (unsigned n = 0; n < at_dims<KP>::KEYS / 8; n++) {
        CU_UNROLL
        for (unsigned x = 0; x < 4; x++)
            sum[n][x % 2] += mma_exp2(s[n][x] - lse[x / 2]);
    }
}

template <unsigned KP>
static __global__ void __launch_bounds__(AT_WIDE *CU_WARP)
    mass_mma(struct cu_attn a, unsigned group, size_t first, size_t n_keys, float *ret, int *fault)
{
    typedef at_dims<KP> D;
    KN_DYNAMIC_SHARED(char, buffer);
    __shared__ float part[AT_WIDE][D::KEYS];
    const unsigned lane = threadIdx.x % CU_WARP, warp = threadIdx.x / CU_WARP, g = blockIdx.y;
    const size_t key0 = first + size_t(blockIdx.x) * D::KEYS;
    const int32_t last = at_pos(a, a.m - 1, fault);
    if (last < 0 || key0 > size_t(last)) return;
    const mma_addr k = mma_address(buffer);
    at_copy_tile<KP, AT_WIDE * CU_WARP>(a.kv, a.kv.pages[key0 / CU_PAGE], g, unsigned(key0),
                                        unsigned(last), false, k);
    mma_copies_end();
    mma_copies_wait<0>();
    __syncthreads();
    float sum[D::KEYS / 8][2];
    CU_UNROLL
    for (unsigned n = 0; n < D::KEYS / 8; n++)
        sum[n][0] = sum[n][1] = 0;
    for (unsigned e = warp * AT_WARP_ROWS; e < unsigned(a.m) * group; e += AT_WIDE * AT_WARP_ROWS)
        at_add_mass<KP>(a, group, g, e, unsigned(key0), k, fault, sum);
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

template <unsigned KP>
static int launch_mass(struct cu *c, const struct cu_attn *a, size_t key0, size_t n_keys,
                       float *ret)
{
    const dim3 grid(cu_blocks(n_keys, at_dims<KP>::KEYS), a->kv.G);
    KN_LAUNCH(mass_mma<KP>, grid, dim3(AT_WIDE * CU_WARP), at_dims<KP>::BUFFER, c->stream, *a,
              a->H / a->kv.G, key0, n_keys, ret, c->fault);
    return cu_launched(c);
}

int at_mma_mass(struct cu *c, const struct cu_attn *a, size_t key0, size_t n_keys, float *ret)
{
    const unsigned K = a->kv.K;
    return K <= 64    ? launch_mass<64>(c, a, key0, n_keys, ret)
           : K <= 96  ? launch_mass<96>(c, a, key0, n_keys, ret)
           : K <= 128 ? launch_mass<128>(c, a, key0, n_keys, ret)
                      : launch_mass<256>(c, a, key0, n_keys, ret);
}
