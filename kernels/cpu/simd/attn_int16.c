/* Attention and pages in whole numbers of 16 bits: beside products of weights in such.
 *
 * Numbers of K and of queries have 12 bits and a sign, fewer for heads of more than 128 dims, so
 * that a score is an exact sum in 32 bits; weights 13 bits, V 12 and a sign. Compiled for AVX2,
 * AVX-VNNI and AVX-512 with VNNI. Thread: any. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd/int16.h"

enum { UNIT = 2, V_MOST = 4095, WEIGHT_MOST = 8191, ZERO = 0 };
#define PAGE_TYPE KN_Q16
typedef int16_t number;
#define store_numbers int16_store
#define round_row int16_row
#define dot(sum, a, b) pair_dot(sum, a, b)
#define times_exp2 vf_times_exp2
#define word_of(x) pairs_of((x)[0], (x)[1])

static int32_t dims_most(size_t K)
{
    return K <= 128 ? 4095 : K <= 512 ? 2047 : 1447;
}
static const float *turn_head(const float *x, size_t K, float *room)
{
    return x;
}
static int32_t zero_sum(const uint32_t *q, size_t n)
{
    return 0;
}

#include "kernels/cpu/simd/attn_whole.h"

const struct kn_int16_ops KN_INT16(int16) = {KN_INT16(gemm_int16),
                                             {KN_Q16, put_rows, attn_scratch, attn, attn_mass}};
