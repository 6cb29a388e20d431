/* Places in rows: of the largest values, and of a token that is drawn, as the host finds them. What
 * is no number comes last, -0 is 0, ties go to the earlier place. One block a row or list, and sums
 * of whole numbers, so that nothing depends on who comes first. */
#include "kernels/cuda/cuda.h"

#include "kernels/draw.h"

enum { PICKERS = 1024, PICK_WARPS = PICKERS / CU_WARP, BINS = 256 };

/* Sorts as the value does. */
static __device__ __forceinline__ uint32_t sort_key(float f)
{
    if (f != f) return 0;
    const uint32_t u = cu_to_bits(f + 0.0f);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* How many threads before this one, in its block, say yes; *ret_all: of all. */
static __device__ __forceinline__ unsigned rank_of(bool yes, unsigned *ret_all)
{
    __shared__ unsigned count[PICK_WARPS];
    const unsigned lane = threadIdx.x % CU_WARP, warp = threadIdx.x / CU_WARP;
    const unsigned votes = __ballot_sync(CU_ALL, yes);
    __syncthreads(); /* the last count's readers are done */
    if (lane == 0) count[warp] = unsigned(__popc(votes));
    __syncthreads();
    unsigned before = 0, all = 0;
    for (unsigned w = 0; w < PICK_WARPS; w++) {
        before += w < warp ? count[w] : 0;
        all += count[w];
    }
    *ret_all = all;
    return before + unsigned(__popc(votes & ((1u << lane) - 1)));
}

struct pivot {
    uint32_t key;
    uint64_t left; /* what those of this key have to hold together */
};

/* The key with which the smallest ones first hold `left`: byte by byte from the top, as sums of
 * amounts by byte. key(i): of place i; amount(key): what a place of that key holds. */
template <class Key, class Amount>
static __device__ __forceinline__ struct pivot pivot_of(size_t n, uint64_t left, Key key,
                                                        Amount amount)
{
    typedef unsigned long long sum; /* what there is an atomic of */
    __shared__ sum held[BINS];
    __shared__ struct pivot found;
    uint32_t mask = 0;
    __syncthreads(); /* the last pivot's readers are done */
    if (threadIdx.x == 0) found.key = 0, found.left = left;
    for (int shift = 24; shift >= 0; shift -= 8) {
        if (threadIdx.x < BINS) held[threadIdx.x] = 0;
        __syncthreads();
        const uint32_t prefix = found.key;
        for (size_t i = threadIdx.x; i < n; i += PICKERS) {
            const uint32_t k = key(i);
            if ((k & mask) == prefix) atomicAdd(&held[k >> shift & 255u], sum(amount(k)));
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            unsigned bin = 0;
            while (held[bin] < found.left)
                found.left -= held[bin++];
            found.key |= bin << shift;
        }
        __syncthreads();
        mask |= 255u << shift;
    }
    return found;
}

static __global__ void __launch_bounds__(PICKERS)
    topk(const float *score, const int32_t *idx, size_t n, size_t k, int32_t *ret)
{
    const auto place = [&](size_t i) { return idx ? size_t(idx[i]) : i; };
    const auto key = [&](size_t i) { return ~sort_key(score[place(i)]); };
    const struct pivot p = pivot_of(n, k, key, [](uint32_t) { return 1u; });
    unsigned n_equal = 0, n_taken = 0;
    for (size_t i0 = 0; i0 < n; i0 += PICKERS) {
        const size_t i = i0 + threadIdx.x;
        const bool equal = i < n && key(i) == p.key;
        unsigned equals, takes;
        const bool first = n_equal + rank_of(equal, &equals) < p.left;
        const bool taken = i < n && (key(i) < p.key || (equal && first));
        const unsigned to = n_taken + rank_of(taken, &takes);
        if (taken) ret[to] = int32_t(place(i));
        n_equal += equals;
        n_taken += takes;
    }
}

int cu_topk(struct cu *c, const float *score, const int32_t *idx, size_t n, size_t k, int32_t *ret)
{
    KN_LAUNCH(topk, dim3(1), dim3(PICKERS), 0, c->stream, score, idx, n, k, ret);
    return cu_launched(c);
}

/* ---- draws: draw.h, of which kernels/draw.c is the twin ---- */

template <class Amount> static __device__ __forceinline__ uint64_t sum_of(size_t n, Amount amount)
{
    uint64_t sum = 0;
    for (size_t i = threadIdx.x; i < n; i += PICKERS)
        sum += amount(i);
    return cu_block_fold(sum, cu_add());
}

/* The sum of what the threads before this one give, in its block. */
static __device__ __forceinline__ uint64_t sum_before(uint64_t mine)
{
    __shared__ uint64_t part[PICK_WARPS];
    const unsigned lane = threadIdx.x % CU_WARP, warp = threadIdx.x / CU_WARP;
    uint64_t sum = mine;
    for (unsigned with = 1; with < CU_WARP; with *= 2) {
        const uint64_t below = __shfl_sync(CU_ALL, sum, int(lane - with) & 31);
        sum += lane >= with ? below : 0;
    }
    __syncthreads(); /* the last one's readers are done */
    if (lane == CU_WARP - 1) part[warp] = sum;
    __syncthreads();
    for (unsigned w = 0; w < warp; w++)
        sum += part[w];
    return sum - mine;
}

/* Where the sum of amounts, place after place, goes beyond `goal`. A warp sums a stretch of places,
 * then all threads look into the one where it happens. */
template <class Amount>
static __device__ __forceinline__ uint32_t place_of(size_t n, uint64_t goal, Amount amount)
{
    __shared__ uint64_t part[PICK_WARPS];
    __shared__ uint32_t found;
    const unsigned lane = threadIdx.x % CU_WARP, warp = threadIdx.x / CU_WARP;
    const size_t stretch = (n + PICK_WARPS - 1) / PICK_WARPS;
    const auto end_of = [&](size_t end) { return end < n ? end : n; };
    uint64_t sum = 0;
    for (size_t i = warp * stretch + lane; i < end_of((warp + 1) * stretch); i += CU_WARP)
        sum += amount(i);
    sum = cu_warp_fold(sum, cu_add());
    __syncthreads(); /* the last one's readers are done */
    if (lane == 0) part[warp] = sum;
    __syncthreads();
    unsigned in = 0;
    while (in + 1 < PICK_WARPS && goal >= part[in])
        goal -= part[in++];
    const size_t few = (stretch + PICKERS - 1) / PICKERS, stop = end_of((in + 1) * stretch);
    const size_t first = in * stretch + threadIdx.x * few, last = first + few;
    uint64_t mine = 0;
    for (size_t i = first; i < last && i < stop; i++)
        mine += amount(i);
    uint64_t at = sum_before(mine);
    for (size_t i = first; i < last && i < stop; i++) {
        const uint64_t more = amount(i);
        if (goal >= at && goal - at < more) found = uint32_t(i);
        at += more;
    }
    __syncthreads();
    return found;
}

template <class Distance, class Amount>
static __device__ __forceinline__ struct draw_edge edge_of(size_t n, uint64_t left,
                                                           Distance distance, Amount amount)
{
    const struct pivot p = pivot_of(n, left, distance, amount);
    const uint64_t each = amount(p.key), equal = (p.left + each - 1) / each;
    const uint32_t id =
        place_of(n, equal - 1, [&](size_t i) { return uint64_t(distance(i) == p.key); });
    return {p.key, id};
}

static __device__ __forceinline__ uint32_t drawn(const float *row, size_t n, float top,
                                                 const struct kn_draw &d)
{
    const auto distance = [&](size_t i) { return draw_distance(row[i], top, d.rate); };
    struct draw_edge e = {UINT32_MAX, UINT32_MAX};
    const auto kept = [&](size_t i, uint64_t least) {
        return draw_kept(e, least, distance(i), uint32_t(i));
    };
    if (d.k > 0 && d.k < n) e = edge_of(n, d.k, distance, [](uint32_t) { return uint64_t(1); });
    if (d.share != DRAW_ALL) {
        const uint64_t sum = sum_of(n, [&](size_t i) { return kept(i, 0); });
        e = draw_nearer(e, edge_of(n, draw_limit(sum, d.share), distance,
                                   [](uint32_t x) { return draw_weight(x); }));
    }
    const auto taken = [&](size_t i) { return kept(i, d.least); };
    return place_of(n, draw_part(sum_of(n, taken), d.random), taken);
}

static __global__ void __launch_bounds__(PICKERS, 1)
    draw(const float *x, size_t ldx, size_t n, const struct kn_draw *how, int32_t *ret)
{
    const float *row = x + blockIdx.x * ldx;
    uint64_t top = 0;
    for (size_t i = threadIdx.x; i < n; i += PICKERS) {
        const uint64_t key = uint64_t(sort_key(row[i])) << 32 | ~uint32_t(i);
        top = key > top ? key : top;
    }
    top = cu_block_fold(top, cu_more());
    uint32_t at = ~uint32_t(top);
    const float most = row[at];
    const bool finite = (cu_to_bits(most) & 0x7f800000u) != 0x7f800000u;
    if (finite && how && how[blockIdx.x].rate != 0) at = drawn(row, n, most, how[blockIdx.x]);
    if (threadIdx.x == 0) ret[blockIdx.x] = finite ? int32_t(at) : -1;
}

int cu_draw(struct cu *c, const float *x, size_t ldx, size_t m, size_t n, const struct kn_draw *how,
            int32_t *ret)
{
    KN_LAUNCH(draw, dim3(unsigned(m)), dim3(PICKERS), 0, c->stream, x, ldx, n, how, ret);
    return cu_launched(c);
}

static __global__ void edit(float *x, size_t ldx, size_t n, const struct kn_edit *list,
                            size_t stride, const uint32_t *n_edits)
{
    float *row = x + blockIdx.x * ldx;
    const struct kn_edit *e = list + blockIdx.x * stride;
    for (uint32_t i = threadIdx.x; i < n_edits[blockIdx.x]; i += blockDim.x)
        if (size_t(e[i].id) < n) row[e[i].id] = draw_edited(row[e[i].id], &e[i]);
}

int cu_edit(struct cu *c, float *x, size_t ldx, size_t m, size_t n, const struct kn_edit *list,
            size_t stride, const uint32_t *n_edits)
{
    KN_LAUNCH(edit, dim3(unsigned(m)), dim3(128), 0, c->stream, x, ldx, n, list, stride, n_edits);
    return cu_launched(c);
}
