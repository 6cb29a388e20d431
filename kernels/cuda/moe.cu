/* Mixtures of experts: routing, pairs in the order of their experts, grouped products, sums by row.
 *
 * Nothing is read back: launches and grids depend on m alone, so they can be recorded. Where an
 * expert's pairs begin is known on the device; a block of a grouped product finds from that which
 * expert and rows are its own, and ends at once where there are none. Only experts that rows go to
 * are read.
 *
 * Products in bf16 run on tensor cores: tiles of A and W come through a ring of buffers, copied
 * ahead while one is used, with one barrier a tile. Rows of gate and up that belong together are in
 * one tile, eight and eight in turns, so that a lane has both and the activation needs no launch.
 * Weights of 8 bits stay such in shared memory; they become bf16, exactly, on their way into the
 * operand, and their rows' scales multiply the sums. There the four values of a word are neighbours
 * in k, so A is read in that order, too. Few rows have small tiles of columns, for many blocks and
 * bytes on their way. Everything else (f32, odd sizes) runs on plain cores.
 *
 * Each output is one chain of sums over k, ascending, in either size of tile; a row's experts are
 * summed by their numbers. So a row's bits do not depend on what else goes to its experts. */
#include "kernels/cuda/mma.h"
#include "kernels/cuda/moe_tile.h"
#include "kernels/cuda/operand.h"

enum {
    MX_EXPERTS_MAX = 1024, /* KN_EXPERTS_MAX */
    MX_DEPTH = 64,         /* values of k in a tile */
    MX_ROUTERS = 4,        /* rows of a block that routes */
    MX_GROUPERS = 8,       /* warps of a block that groups */
    MX_PANEL = 32 << 20    /* bytes of values at once: chosen, half of an H100's L2 cache */
};
static const uint32_t MX_NONE = 0xffffffffu;

size_t cu_moe_place(struct cu_moe *g, void *at)
{
    const size_t pairs = g->m * g->used, value = g->type == CU_F32 ? 4 : 2, shared = g->shared_F;
    char *to = static_cast<char *>(at);
    size_t all = 0;
    const auto piece = [&](size_t bytes) {
        char *p = at && bytes > 0 ? to + all : nullptr;
        all += (bytes + 255) / 256 * 256;
        return static_cast<void *>(p);
    };
    g->logits = static_cast<float *>(piece(g->m * (g->n + (shared > 0)) * 4));
    g->shared = static_cast<float *>(piece(shared ? g->m * g->D * 4 : 0));
    g->shared_gu = static_cast<float *>(piece(g->m * 2 * shared * 4));
    g->shared_act = static_cast<float *>(piece(g->m * shared * 4));
    uint32_t **const lists[] = {&g->choice, &g->place, &g->row, &g->owner};
    for (uint32_t **list : lists)
        *list = static_cast<uint32_t *>(piece(pairs * 4));
    g->weight = static_cast<float *>(piece(pairs * 4));
    g->first = static_cast<uint32_t *>(piece((g->n + 1) * 4));
    g->in = piece(g->type == CU_F32 ? 0 : g->m * g->D * value);
    g->mid = piece(pairs * g->F * value);
    g->out = static_cast<float *>(piece(pairs * g->D * 4));
    const size_t values = 2 * g->F * g->D * sizeof(uint16_t), most = MX_PANEL / values;
    const bool many = g->down.k && pairs > CU_CODED_FEW * size_t(g->n);
    g->n_panel = unsigned(!many ? 0 : most < 1 ? 1 : most < g->n ? most : g->n);
    g->panel = static_cast<uint16_t *>(piece(g->n_panel * values));
    return all;
}

/* ---- routing and grouping ---- */

/* Larger for the larger probability, then for the lower number; 0 for what is taken. NaN, which
 * then all of a row are, counts as 0. */
static __device__ __forceinline__ uint64_t mx_rank(float p, unsigned i)
{
    const uint32_t bits = cu_to_bits(p);
    if (bits >> 31) return 0;
    return uint64_t(bits > 0x7f800000u ? 0 : bits) << 32 | ~i;
}

/* A warp a row; what is taken gets a sign. Lane i has experts i, i + 32, … to itself. */
static __global__ void __launch_bounds__(MX_ROUTERS *CU_WARP)
    route(const __grid_constant__ struct cu_moe g)
{
    __shared__ float rows[MX_ROUTERS][MX_EXPERTS_MAX];
    const unsigned lane = threadIdx.x % CU_WARP, n = g.n, logits = n + (g.shared_F > 0);
    const size_t row = size_t(blockIdx.x) * MX_ROUTERS + threadIdx.x / CU_WARP;
    float *p = rows[threadIdx.x / CU_WARP];
    if (row >= g.m) return;
    float top = -INFINITY, sum = 0, chosen = 0;
    for (unsigned i = lane; i < n; i += CU_WARP) {
        p[i] = g.logits[row * logits + i];
        top = fmaxf(top, p[i]);
    }
    top = cu_warp_max(top);
    for (unsigned i = lane; i < n; i += CU_WARP)
        sum += p[i] = expf(p[i] - top);
    sum = cu_warp_sum(sum);
    for (unsigned i = lane; i < n; i += CU_WARP)
        p[i] = fabsf(p[i] / sum);
    for (unsigned j = 0; j < g.used; j++) {
        uint64_t best = 0;
        for (unsigned i = lane; i < n; i += CU_WARP) {
            const uint64_t rank = mx_rank(p[i], i);
            best = rank > best ? rank : best;
        }
        best = cu_warp_fold(best, cu_more());
        const unsigned e = ~uint32_t(best);
        chosen += cu_from_bits(uint32_t(best >> 32));
        if (e % CU_WARP == lane) p[e] = cu_from_bits(cu_to_bits(p[e]) | 0x80000000u);
    }
    size_t to = row * g.used;
    for (unsigned i0 = 0; i0 < n; i0 += CU_WARP) {
        const unsigned i = i0 + lane;
        const bool taken = i < n && cu_to_bits(p[i]) >> 31;
        const unsigned all = __ballot_sync(CU_ALL, taken);
        if (taken) {
            const size_t at = to + __popc(all & ((1u << lane) - 1));
            const float weight = cu_from_bits(cu_to_bits(p[i]) & 0x7fffffffu);
            g.choice[at] = i;
            g.weight[at] = g.renorm ? weight / chosen : weight;
        }
        to += __popc(all);
    }
}

/* Expert blockIdx.x: how many pairs stand before its own, and its own in their order. A warp looks
 * at a stretch of all pairs twice: to count, and to write. */
static __global__ void __launch_bounds__(MX_GROUPERS *CU_WARP)
    group(const __grid_constant__ struct cu_moe g)
{
    __shared__ unsigned own[MX_GROUPERS];
    const unsigned lane = threadIdx.x % CU_WARP, warp = threadIdx.x / CU_WARP, e = blockIdx.x;
    const unsigned pairs = unsigned(g.m) * g.used, share = pairs / MX_GROUPERS + 1;
    const unsigned stretch = (share + CU_WARP - 1) / CU_WARP * CU_WARP;
    const unsigned from = warp * stretch, end = from + stretch < pairs ? from + stretch : pairs;
    unsigned before = 0, mine = 0;
    for (unsigned i = from + lane; i < end; i += CU_WARP) {
        before += g.choice[i] < e;
        mine += g.choice[i] == e;
    }
    mine = cu_warp_fold(mine, cu_add());
    if (lane == 0) own[warp] = mine;
    before = cu_block_fold(before, cu_add()); /* with a barrier: `own` is there behind it */
    if (threadIdx.x == 0) {
        g.first[e] = before;
        if (e == 0) g.first[g.n] = pairs;
    }
    unsigned to = before;
    for (unsigned w = 0; w < warp; w++)
        to += own[w];
    for (unsigned i0 = from; i0 < end; i0 += CU_WARP) {
        const unsigned i = i0 + lane;
        const bool is = i < end && g.choice[i] == e;
        const unsigned votes = __ballot_sync(CU_ALL, is);
        if (is) {
            const unsigned at = to + __popc(votes & ((1u << lane) - 1));
            g.row[at] = i / g.used;
            g.owner[at] = e;
            g.place[i] = at;
        }
        to += __popc(votes);
    }
}

/* ---- what grouped products share ---- */

/* up: [pairs, D] to act(gate) * up [pairs, F]; else [pairs, F] to [pairs, D]. */
template <bool up, bool eight> struct mx_side {
    const char *a;      /* [m, k] or [pairs, k] */
    const char *w;      /* [cols, k]; up: 2 cols */
    const float *scale; /* of w's rows, in 8 bits */
    unsigned k, cols, expert;
    __device__ __forceinline__ mx_side(const struct cu_moe &g, unsigned e)
    {
        const struct cu_side &from = up ? g.expert[e].gate_up : g.expert[e].down;
        a = static_cast<const char *>(!up ? g.mid : g.in ? g.in : g.h);
        scale = from.scale;
        k = unsigned(up ? g.D : g.F), cols = unsigned(up ? g.F : g.D), expert = e;
        w = static_cast<const char *>(from.data);
        if (g.panel)
            w = reinterpret_cast<const char *>(g.panel +
                                               (e - g.panel_first) * g.D * g.F * (1 + up));
    }
    /* One rounding, whatever the compiler makes of it in one kernel or the other. */
    __device__ __forceinline__ float finished(const struct cu_moe &g, float sum, unsigned row) const
    {
        const float *const bias = up ? g.gate_up_bias : g.down_bias;
        const float by = eight ? scale[row] : 1.0f;
        if (bias) return fmaf(sum, by, bias[size_t(expert) * cols * (1 + up) + row]);
        return sum * by;
    }
};

/* ---- on tensor cores ---- */

/* RW x CW warps, of which each has MI x 16 rows and NJ x 8 columns. */
template <class W, unsigned RW, unsigned CW, unsigned MI, unsigned NJ, unsigned BUFFERS>
struct mx_dims {
    typedef W weight;
    enum : unsigned {
        ROWS = RW * MI * 16,
        COLS = CW * NJ * 8,
        THREADS = RW * CW * CU_WARP,
        WARPS_ROWS = RW,
        MINE_ROWS = MI,
        MINE_COLS = NJ,
        RING = BUFFERS,
        A_ROW = MX_DEPTH * 2, /* bytes */
        W_ROW = MX_DEPTH * sizeof(W),
        A_BYTES = ROWS * A_ROW,
        BUFFER = A_BYTES + COLS * W_ROW,
        A_COPIES = ROWS * A_ROW / 16 / THREADS, /* of a thread */
        W_COPIES = COLS * W_ROW / 16 / THREADS,
        EIGHT = sizeof(W) == 1,
        AT_ONCE = ROWS > 16 && sizeof(W) == 2 ? 2 : 1 /* blocks of a multiprocessor, at least */
    };
    static_assert(NJ % 2 == 0 && (W_ROW == 64 || W_ROW == 128), "gate and up; swizzles below");
    static_assert(A_COPIES * THREADS * 16 == A_BYTES, "copies divide evenly");
    static_assert(W_COPIES * THREADS * 16 == COLS * W_ROW, "copies divide evenly");
};
template <class W> using mx_few = mx_dims<W, 1, 2, 1, 2, 4>;
template <class W> using mx_many = mx_dims<W, 4, 2, 2, 8, 3>;

/* Offset of a 16-byte piece in a buffer: eight rows of one piece are in eight groups of banks. */
template <unsigned ROW>
static __device__ __forceinline__ unsigned mx_at(unsigned row, unsigned piece)
{
    return row * ROW + (piece ^ (ROW == 128 ? row % 8 : row / 2 % 4)) * 16;
}

template <class D, bool up> struct mx_feed { /* tiles on their way */
    const struct mx_side<up, D::EIGHT> &side;
    mma_addr ring;
    const struct mx_tile &tile;
    unsigned col0;
    uint32_t row[D::A_COPIES]; /* up: of A that this thread copies of, or MX_NONE */

    __device__ __forceinline__ mx_feed(const struct cu_moe &g,
                                       const struct mx_side<up, D::EIGHT> &s,
                                       const struct mx_tile &t, unsigned col, mma_addr at)
        : side(s), ring(at), tile(t), col0(col)
    {
        CU_UNROLL
        for (unsigned i = 0; up && i < D::A_COPIES; i++) {
            const unsigned r = (i * D::THREADS + threadIdx.x) / (D::A_ROW / 16);
            row[i] = r < t.rows ? g.row[t.at + r] : MX_NONE;
        }
    }

    __device__ __forceinline__ uint32_t a_row(unsigned i, unsigned thread) const
    {
        const unsigned r = (i * D::THREADS + thread) / (D::A_ROW / 16);
        return up ? row[i] : r < tile.rows ? tile.at + r : MX_NONE;
    }

    /* The row of W that is row j of a tile. */
    __device__ __forceinline__ uint32_t w_row(unsigned j) const
    {
        const unsigned col = up ? col0 + j / 16 * 8 + j % 8 : col0 + j;
        return col >= side.cols ? MX_NONE : up && j / 8 % 2 ? side.cols + col : col;
    }

    /* Piece `at` of a tile, of row `from`. */
    template <unsigned ROW>
    __device__ __forceinline__ void copy(const char *side0, uint32_t from, unsigned at,
                                         unsigned nth, mma_addr to) const
    {
        const unsigned piece = at % (ROW / 16), value = ROW / MX_DEPTH;
        const unsigned k = nth * MX_DEPTH + piece * (16 / value);
        const bool there = from != MX_NONE && k < side.k;
        mma_copy16(to + mx_at<ROW>(at / (ROW / 16), piece),
                   side0 + (there ? (size_t(from) * side.k + k) * value : 0), there);
    }

    __device__ __forceinline__ void send(unsigned nth) const
    {
        unsigned x = threadIdx.x;
        if (D::AT_ONCE > 1 && !up) asm volatile("" : "+r"(x)); /* kept places would not fit */
        if (nth * MX_DEPTH < side.k) {
            const mma_addr to = ring + nth % D::RING * D::BUFFER;
            CU_UNROLL
            for (unsigned i = 0; i < D::A_COPIES; i++)
                copy<D::A_ROW>(side.a, a_row(i, x), i * D::THREADS + x, nth, to);
            CU_UNROLL
            for (unsigned i = 0; i < D::W_COPIES; i++) {
                const unsigned at = i * D::THREADS + x;
                copy<D::W_ROW>(side.w, w_row(at / (D::W_ROW / 16)), at, nth, to + D::A_BYTES);
            }
        }
        mma_copies_end();
    }
};

/* The four values of a word, as two words of bf16: exact. A weight's e4m3 is no NaN (operand.h). */
static __device__ __forceinline__ void mx_widen(uint32_t four, int8_t, uint32_t &low,
                                                uint32_t &high)
{
    low = mma_pack(float(int8_t(four)), float(int8_t(four >> 8)));
    high = mma_pack(float(int8_t(four >> 16)), float(int8_t(four >> 24)));
}

static __device__ __forceinline__ float mx_e4m3(uint32_t byte)
{
    return cu_from_bits((byte & 0x80u) << 24 | (byte & 0x7fu) << 20) * 0x1p120f;
}

static __device__ __forceinline__ void mx_widen(uint32_t four, cu_e4m3, uint32_t &low,
                                                uint32_t &high)
{
    low = mma_pack(mx_e4m3(four), mx_e4m3(four >> 8));
    high = mma_pack(mx_e4m3(four >> 16), mx_e4m3(four >> 24));
}

/* Where a lane reads of a buffer: of A rows row0 …, of W columns col0 …, both multiples of 16, the
 * first pieces. Two pieces further is ^ 32, as a row begins at a multiple of its length
 * and piece ^ swizzle is where a piece is in it. */
struct mx_places {
    unsigned a, w;
};
template <class D>
static __device__ __forceinline__ struct mx_places mx_places_of(unsigned row0, unsigned col0)
{
    const unsigned lane = threadIdx.x % CU_WARP;
    const unsigned a = D::EIGHT ? mx_at<128>(row0 + lane / 4, lane % 4 / 2) + lane % 2 * 8
                                : mx_at<128>(row0 + lane % 16, lane / 16);
    return {a, D::A_BYTES + mx_at<D::W_ROW>(col0 + lane / 16 * 8 + lane % 8, lane / 8 % 2)};
}

/* 16 rows of A. */
static __device__ __forceinline__ void mx_load_a(uint32_t (&a)[4], const char *at, uint16_t)
{
    mma_load(a, mma_address(at));
}

template <class W>
static __device__ __forceinline__ void mx_load_a(uint32_t (&a)[4], const char *at, W)
{
    CU_UNROLL
    for (unsigned i = 0; i < 2; i++) {
        const uint64_t q = *reinterpret_cast<const uint64_t *>(at + i * 8 * 128);
        a[i] = uint32_t(q), a[2 + i] = uint32_t(q >> 32);
    }
}

/* 16 columns of W are two matrices of 8 each: the halves of one step in bf16, two steps in 8 bits.
 * The operand of columns 8 j … and step s. */
static __device__ __forceinline__ void mx_operand(const uint32_t (&m)[4], unsigned j, unsigned,
                                                  uint32_t &low, uint32_t &high, uint16_t)
{
    low = m[2 * j], high = m[2 * j + 1];
}

template <class W>
static __device__ __forceinline__ void mx_operand(const uint32_t (&m)[4], unsigned j, unsigned s,
                                                  uint32_t &low, uint32_t &high, W kind)
{
    mx_widen(m[2 * j + s], kind, low, high);
}

/* Sums of a warp, of entries [row / 16][column / 8]; a lane's as mma_bf16() has them. */
template <class D> struct mx_sums {
    float acc[D::MINE_ROWS][D::MINE_COLS][4];
};

template <class D>
static __device__ __forceinline__ void mx_multiply(const char *buffer, const struct mx_places &at,
                                                   struct mx_sums<D> &s)
{
    const typename D::weight kind = {};
    enum : unsigned { STEPS = 1 + D::EIGHT }; /* that one read of W is for */
    CU_UNROLL
    for (unsigned part = 0; part < MX_DEPTH / 16 / STEPS; part++) {
        uint32_t a[D::MINE_ROWS][STEPS][4];
        CU_UNROLL
        for (unsigned i = 0; i < D::MINE_ROWS * STEPS; i++) {
            const unsigned step = part * STEPS + i % STEPS;
            mx_load_a(a[i / STEPS][i % STEPS],
                      buffer + (at.a ^ step * 32) + i / STEPS * 16 * D::A_ROW, kind);
        }
        CU_UNROLL
        for (unsigned j = 0; j < D::MINE_COLS; j += 2) {
            uint32_t w[4];
            mma_load(w, mma_address(buffer + (at.w ^ part * 32) + j * 8 * D::W_ROW));
            CU_UNROLL
            for (unsigned x = 0; x < 2 * STEPS; x++) {
                uint32_t low, high;
                mx_operand(w, x % 2, x / 2, low, high, kind);
                CU_UNROLL
                for (unsigned i = 0; i < D::MINE_ROWS; i++)
                    mma_bf16(s.acc[i][j + x % 2], a[i][x / 2], low, high);
            }
        }
    }
}

/* Of row `pair` two neighbouring columns. */
template <bool eight>
static __device__ __forceinline__ void mx_put(const struct cu_moe &g,
                                              const struct mx_side<true, eight> &s, unsigned pair,
                                              unsigned col, const float *gate, const float *up)
{
    float v[2];
    CU_UNROLL
    for (unsigned x = 0; x < 2; x++)
        v[x] = cu_activated(g.act, s.finished(g, gate[x], col + x),
                            s.finished(g, up[x], s.cols + col + x));
    uint16_t *to = static_cast<uint16_t *>(g.mid) + size_t(pair) * s.cols + col;
    *reinterpret_cast<uint32_t *>(to) = mma_pack(v[0], v[1]);
}

template <bool eight>
static __device__ __forceinline__ void mx_put(const struct cu_moe &g,
                                              const struct mx_side<false, eight> &s, unsigned pair,
                                              unsigned col, const float *sum)
{
    const struct float2 v = {s.finished(g, sum[0], col), s.finished(g, sum[1], col + 1)};
    *reinterpret_cast<struct float2 *>(g.out + size_t(pair) * s.cols + col) = v;
}

template <class D, bool up>
static __device__ __forceinline__ void
mx_close(const struct cu_moe &g, const struct mx_side<up, D::EIGHT> &s, const struct mx_tile &t,
         unsigned row0, unsigned col0, const struct mx_sums<D> &o)
{
    const unsigned lane = threadIdx.x % CU_WARP;
    CU_UNROLL
    for (unsigned i = 0; i < 2 * D::MINE_ROWS; i++) {
        const unsigned row = row0 + i * 8 + lane / 4, pair = t.at + row, x = i % 2 * 2;
        if (row >= t.rows) continue;
        CU_UNROLL
        for (unsigned j = 0; j < D::MINE_COLS; j += 1 + up) {
            const unsigned col = col0 + j / (1 + up) * 8 + lane % 4 * 2;
            if (col >= s.cols) continue;
            if constexpr (up)
                mx_put(g, s, pair, col, o.acc[i / 2][j] + x, o.acc[i / 2][j + 1] + x);
            else
                mx_put(g, s, pair, col, o.acc[i / 2][j] + x);
        }
    }
}

template <class D, bool up>
static __global__ void __launch_bounds__(D::THREADS, D::AT_ONCE)
    grouped_mma(const __grid_constant__ struct cu_moe g, bool by_pair)
{
    KN_DYNAMIC_SHARED(char, buffers);
    const unsigned warp = threadIdx.x / CU_WARP, across = warp / D::WARPS_ROWS;
    const struct mx_tile tile = mx_tile_of<D::ROWS>(g, by_pair, blockIdx.x);
    if (tile.rows == 0) return;
    const struct mx_side<up, D::EIGHT> side(g, tile.expert);
    const unsigned col0 = blockIdx.y * (D::COLS / (1 + up));
    const unsigned row = warp % D::WARPS_ROWS * D::MINE_ROWS * 16, col = across * D::MINE_COLS * 8;
    const struct mx_feed<D, up> feed(g, side, tile, col0, mma_address(buffers));
    const struct mx_places places = mx_places_of<D>(row, col);
    struct mx_sums<D> sums;
    CU_UNROLL
    for (unsigned i = 0; i < D::MINE_ROWS * D::MINE_COLS * 4; i++)
        sums.acc[i / 4 / D::MINE_COLS][i / 4 % D::MINE_COLS][i % 4] = 0;
    CU_UNROLL
    for (unsigned t = 0; t + 1 < D::RING; t++)
        feed.send(t);
    for (unsigned t = 0; t * MX_DEPTH < side.k; t++) {
        mma_copies_wait<D::RING - 2>();
        __syncthreads(); /* the tile is there for all, and all are done with the one before it */
        feed.send(t + D::RING - 1);
        if (row < tile.rows) /* else this warp only copies */
            mx_multiply<D>(buffers + t % D::RING * D::BUFFER, places, sums);
    }
    mx_close<D, up>(g, side, tile, row, col0 + col / (1 + up), sums);
}

template <class D, bool up> static int mx_launch(struct cu *c, const struct cu_moe *g)
{
    const struct mx_grid grid = mx_grid_of(g, up, D::ROWS, D::COLS / (1 + up));
    const int smem = int(D::RING * D::BUFFER);
    const auto all = cudaFuncAttributePreferredSharedMemoryCarveout;
    (void)cudaFuncSetAttribute(grouped_mma<D, up>, all, cudaSharedmemCarveoutMaxShared);
    (void)cudaGetLastError(); /* as in attn_mma.cu: a preference */
    const cudaError_t e =
        cudaFuncSetAttribute(grouped_mma<D, up>, cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
    if (e != cudaSuccess) return cu_failed(c, e);
    KN_LAUNCH((grouped_mma<D, up>), grid.grid, dim3(D::THREADS), size_t(smem), c->stream, *g,
              grid.by_pair);
    return cu_launched(c);
}

/* Rows of both sides are whole pieces of 16 bytes. */
static bool mx_fits(const struct cu_moe *g)
{
    const size_t unit = cu_is_eight(g->type) ? 16 : 8;
    return g->type != CU_F32 && g->D % unit == 0 && g->F % unit == 0;
}

/* An expert has about so few rows that a tile of many would be empty for the most part: chosen. */
static bool mx_is_few(const struct cu_moe *g)
{
    return g->m <= mx_few<uint16_t>::ROWS || mx_pairs(g) <= 8 * size_t(g->n);
}

template <class W, bool up> static int mx_product(struct cu *c, const struct cu_moe *g)
{
    return mx_is_few(g) ? mx_launch<mx_few<W>, up>(c, g) : mx_launch<mx_many<W>, up>(c, g);
}

/* ---- on plain cores ---- */

enum { PLAIN_ROWS = 16, PLAIN_COLS = 32, PLAIN_DEPTH = 32, PLAIN_THREADS = 128 };

/* A lane has a column, a warp four rows. */
template <class A, class W, bool up>
static __global__ void __launch_bounds__(PLAIN_THREADS, 6)
    grouped_plain(const __grid_constant__ struct cu_moe g, bool by_pair)
{
    enum { MINE = PLAIN_ROWS / (PLAIN_THREADS / CU_WARP) };
    __shared__ float a[PLAIN_ROWS][PLAIN_DEPTH], w[1 + up][PLAIN_COLS][PLAIN_DEPTH + 1];
    const unsigned lane = threadIdx.x % CU_WARP, row0 = threadIdx.x / CU_WARP * MINE;
    const struct mx_tile tile = mx_tile_of<PLAIN_ROWS>(g, by_pair, blockIdx.x);
    if (tile.rows == 0) return;
    const struct mx_side<up, sizeof(W) == 1> s(g, tile.expert);
    const unsigned col0 = blockIdx.y * PLAIN_COLS, col = col0 + lane;
    float sum[1 + up][MINE];
    CU_UNROLL
    for (unsigned i = 0; i < (1 + up) * MINE; i++)
        sum[i / MINE][i % MINE] = 0;
    for (unsigned d0 = 0; d0 < s.k; d0 += PLAIN_DEPTH) {
        const unsigned d = d0 + lane;
        __syncthreads();
        for (unsigned r = threadIdx.x / CU_WARP; r < PLAIN_ROWS; r += PLAIN_THREADS / CU_WARP) {
            const bool there = r < tile.rows && d < s.k;
            const size_t row = !there ? 0 : up ? g.row[tile.at + r] : tile.at + r;
            a[r][lane] = there ? cu_value(reinterpret_cast<const A *>(s.a)[row * s.k + d]) : 0.0f;
        }
        for (unsigned j = threadIdx.x / CU_WARP; j < (1 + up) * PLAIN_COLS;
             j += PLAIN_THREADS / CU_WARP) {
            const unsigned at = j % PLAIN_COLS, side = j / PLAIN_COLS;
            const bool there = col0 + at < s.cols && d < s.k;
            const size_t row = there ? size_t(side) * s.cols + col0 + at : 0;
            w[side][at][lane] =
                there ? float(cu_value(reinterpret_cast<const W *>(s.w)[row * s.k + d])) : 0.0f;
        }
        __syncthreads();
        for (unsigned k = 0; k < PLAIN_DEPTH; k++) {
            CU_UNROLL
            for (unsigned i = 0; i < (1 + up) * MINE; i++)
                sum[i / MINE][i % MINE] =
                    fmaf(a[row0 + i % MINE][k], w[i / MINE][lane][k], sum[i / MINE][i % MINE]);
        }
    }
    CU_UNROLL
    for (unsigned i = 0; i < MINE; i++) {
        const size_t at = size_t(tile.at + row0 + i) * s.cols + col;
        if (row0 + i >= tile.rows || col >= s.cols) continue;
        const float v = s.finished(g, sum[0][i], col);
        if constexpr (up)
            cu_store(static_cast<A *>(g.mid) + at,
                     cu_activated(g.act, v, s.finished(g, sum[1][i], s.cols + col)));
        else
            g.out[at] = v;
    }
}

template <class A, class W, bool up> static int mx_plain(struct cu *c, const struct cu_moe *g)
{
    const struct mx_grid grid = mx_grid_of(g, up, PLAIN_ROWS, PLAIN_COLS);
    KN_LAUNCH((grouped_plain<A, W, up>), grid.grid, dim3(PLAIN_THREADS), 0, c->stream, *g,
              grid.by_pair);
    return cu_launched(c);
}

/* ---- all of it ---- */

/* Sums of a row's experts in the order of their numbers, then the shared one's part. */
static __global__ void combine(const __grid_constant__ struct cu_moe g, bool wide)
{
    const size_t row = blockIdx.x, D = g.D;
    const float logit = g.shared ? g.logits[row * (g.n + 1) + g.n] : 0.0f;
    float *x = g.x + row * D;
    for (size_t d = size_t(threadIdx.x) * 4; d < D; d += size_t(blockDim.x) * 4) {
        cu_four sum = {{0, 0, 0, 0}};
        const auto add = [&](const float *from, float by) {
            const cu_four v = cu_four_at(from, d, D, wide);
            for (unsigned j = 0; j < 4; j++)
                sum.v[j] = fmaf(by, v.v[j], sum.v[j]);
        };
        for (unsigned j = 0; j < g.used; j++)
            add(g.out + size_t(g.place[row * g.used + j]) * D, g.weight[row * g.used + j]);
        if (g.shared) add(g.shared + row * D, 1 / (1 + expf(-logit)));
        if (g.accumulate) add(x, 1);
        cu_put_four<float, float4>(x, d, D, wide, sum.v);
    }
}

/* As many experts at a time as the panel has room for. */
template <bool up> static int mx_panels(struct cu *c, const struct cu_moe *g)
{
    struct cu_moe some = *g;
    int r = 0;
    for (unsigned e = 0; r == 0 && e < g->n; e += g->n_panel) {
        some.panel_first = e;
        r = cu_moe_values(c, &some, up);
        if (r == 0) r = mx_product<uint16_t, up>(c, &some);
    }
    return r;
}

template <bool up> static int mx_grouped(struct cu *c, const struct cu_moe *g)
{
    if (g->down.k) return g->panel ? mx_panels<up>(c, g) : cu_moe_coded(c, g, up);
    const bool fits = mx_fits(g);
    if (g->type == CU_F32) return mx_plain<float, float, up>(c, g);
    if (g->type == CU_BF16)
        return fits ? mx_product<uint16_t, up>(c, g) : mx_plain<uint16_t, uint16_t, up>(c, g);
    if (g->type == CU_FP8)
        return fits ? mx_product<cu_e4m3, up>(c, g) : mx_plain<uint16_t, cu_e4m3, up>(c, g);
    return fits ? mx_product<int8_t, up>(c, g) : mx_plain<uint16_t, int8_t, up>(c, g);
}

int cu_moe(struct cu *c, const struct cu_moe *g)
{
    if (mx_pairs(g) > 1u << 31 || g->n > MX_EXPERTS_MAX) return -EINVAL;
    KN_LAUNCH(route, dim3(cu_blocks(g->m, MX_ROUTERS)), dim3(MX_ROUTERS * CU_WARP), 0, c->stream,
              *g);
    KN_LAUNCH(group, dim3(g->n), dim3(MX_GROUPERS * CU_WARP), 0, c->stream, *g);
    int r = cu_launched(c);
    if (r == 0 && g->in) {
        struct cu_rows rows = {};
        rows.x = g->h, rows.ldx = g->D, rows.m = g->m, rows.n = g->D;
        rows.out = static_cast<float *>(g->in), rows.to = CU_BF16;
        r = cu_stage(c, &rows);
    }
    if (r == 0) r = mx_grouped<true>(c, g);
    if (r == 0) r = mx_grouped<false>(c, g);
    if (r < 0) return r;
    const bool wide = g->D % 4 == 0 && reinterpret_cast<uintptr_t>(g->x) % 16 == 0;
    KN_LAUNCH(combine, dim3(unsigned(g->m)), dim3(cu_row_threads(g->D)), 0, c->stream, *g, wide);
    return cu_launched(c);
}
