/* Places of the largest values, as the host finds them: what is no number comes last, -0 is 0, ties
 * go to the earlier place. One block a row or list, so that nothing depends on who comes first. */
#include "kernels/cuda/cuda.h"

enum { PICKERS = 1024, PICK_WARPS = PICKERS / CU_WARP, BINS = 256 };

/* Sorts as the value does. */
static __device__ __forceinline__ uint32_t sort_key(float f)
{
    if (f != f) return 0;
    const uint32_t u = cu_to_bits(f + 0.0f);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

static __global__ void best(const float *x, size_t ldx, size_t n, int32_t *ret)
{
    const float *row = x + blockIdx.x * ldx;
    uint64_t top = 0;
    for (size_t i = threadIdx.x; i < n; i += PICKERS) {
        const uint64_t key = uint64_t(sort_key(row[i])) << 32 | ~uint32_t(i);
        top = key > top ? key : top;
    }
    top = cu_block_fold(top, cu_more());
    if (threadIdx.x != 0) return;
    const uint32_t at = ~uint32_t(top);
    const bool finite = (cu_to_bits(row[at]) & 0x7f800000u) != 0x7f800000u;
    ret[blockIdx.x] = finite ? int32_t(at) : -1;
}

int cu_best_of(struct cu *c, const float *x, size_t ldx, size_t m, size_t n, int32_t *ret)
{
    KN_LAUNCH(best, dim3(unsigned(m)), dim3(PICKERS), 0, c->stream, x, ldx, n, ret);
    return cu_launched(c);
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
    uint32_t key; /* of the k-th largest value */
    size_t equal; /* so many of that key are taken */
};

/* Radix selection, byte by byte from the top; counts are whole numbers, whose sum has no order. */
static __device__ __forceinline__ struct pivot pivot_of(const float *score, const int32_t *idx,
                                                        size_t n, size_t k)
{
    __shared__ unsigned count[BINS];
    __shared__ struct pivot found;
    uint32_t mask = 0;
    if (threadIdx.x == 0) found.key = 0, found.equal = k;
    for (int shift = 24; shift >= 0; shift -= 8) {
        if (threadIdx.x < BINS) count[threadIdx.x] = 0;
        __syncthreads();
        const uint32_t prefix = found.key;
        for (size_t i = threadIdx.x; i < n; i += PICKERS) {
            const uint32_t key = sort_key(score[idx ? size_t(idx[i]) : i]);
            if ((key & mask) == prefix) atomicAdd(&count[key >> shift & 255u], 1u);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            unsigned bin = BINS - 1;
            while (count[bin] < found.equal)
                found.equal -= count[bin--];
            found.key |= bin << shift;
        }
        __syncthreads();
        mask |= 255u << shift;
    }
    return found;
}

static __global__ void topk(const float *score, const int32_t *idx, size_t n, size_t k,
                            int32_t *ret)
{
    const struct pivot p = pivot_of(score, idx, n, k);
    size_t n_equal = 0, n_taken = 0;
    for (size_t i0 = 0; i0 < n; i0 += PICKERS) {
        const size_t i = i0 + threadIdx.x, at = idx && i < n ? size_t(idx[i]) : i;
        const uint32_t key = i < n ? sort_key(score[at]) : 0;
        const bool equal = i < n && key == p.key;
        unsigned equals, takes;
        const bool first = n_equal + rank_of(equal, &equals) < p.equal;
        const bool taken = i < n && (key > p.key || (equal && first));
        const size_t to = n_taken + rank_of(taken, &takes);
        if (taken) ret[to] = int32_t(at);
        n_equal += equals;
        n_taken += takes;
    }
}

int cu_topk(struct cu *c, const float *score, const int32_t *idx, size_t n, size_t k, int32_t *ret)
{
    KN_LAUNCH(topk, dim3(1), dim3(PICKERS), 0, c->stream, score, idx, n, k, ret);
    return cu_launched(c);
}
