/* draw: which token follows a row of logits, in whole numbers, so that hosts and devices that see
 * the same logits and the same random number choose the same token.
 *
 * A token's distance says how far its logit lies below the row's largest, in 2^-26 of a halving of
 * its chance; its weight is 2^40 * 2^-distance, to 2e-8 of itself. Distances are two operations in
 * f32, which round alike everywhere, and a cut; all else are whole numbers, whose sums have no
 * order. What is 41 halvings behind has no chance (4e-13 of the best one's).
 * Kept are tokens by ascending distance, equal ones by id: the first k, of these as few as hold
 * `share` of their weights, of these all of weight `least` and more; the first one in any case. The
 * one drawn is where the sum of weights, by ascending id, goes beyond a random part of all of it.
 * Before, single logits may be edited (bias, penalties), with one rounding an operation. Not for:
 * what is reported of a choice, and why logits are edited; fusor/core/sample.h.
 * Thread: any. The kernel: cuda/pick.cu. */
#ifndef KERNELS_DRAW_H
#define KERNELS_DRAW_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__ /* kernels call these, too */
#define DRAW_FN static inline __host__ __device__
#else
#define DRAW_FN static inline
#endif

enum { DRAW_ROWS_MAX = 1 << 23 }; /* tokens of a row: their weights are a sum of 64 bits */
#define DRAW_ALL UINT64_MAX       /* as a share */

struct kn_draw {     /* zeroed: the largest logit, the lowest id of equal ones */
    uint64_t random; /* uniform in 64 bits */
    uint64_t share;  /* of 2^64: top-p; DRAW_ALL */
    uint64_t least;  /* min-p, as a weight */
    uint32_t k;      /* top-k; 0: all */
    float rate;      /* halvings a logit: log2(e) / temperature */
};

struct kn_edit { /* of one logit: bias first, then the factor pulls it down, then minus */
    int32_t id;
    float bias, factor, minus; /* 0, 1, 0: nothing */
};

DRAW_FN float draw_edited(float x, const struct kn_edit *e)
{
    x += e->bias;
    if (e->factor == 1.0f) return x - e->minus;
#ifdef __CUDA_ARCH__
    const float scaled = x > 0 ? __fdiv_rn(x, e->factor) : __fmul_rn(x, e->factor);
    return __fsub_rn(scaled, e->minus);
#else
    const volatile float scaled = x > 0 ? x / e->factor : x * e->factor; /* rounded, not fused */
    return scaled - e->minus;
#endif
}

/* NaN and -INFINITY are as far as anything. */
DRAW_FN uint32_t draw_distance(float x, float top, float rate)
{
    const float halvings = (top - x) * rate;
    return halvings < 64.0f ? (uint32_t)(halvings * 67108864.0f) : UINT32_MAX;
}

/* 2^-f for the part f behind the point: interpolated at six places, by powers of f with signs in
 * turns, 32 bits each; what is taken away never exceeds what it is taken from. */
DRAW_FN uint64_t draw_weight(uint32_t distance)
{
    const uint64_t f = (uint32_t)(distance << 6);
    uint64_t r = 0x54a612u - (0x78809u * f >> 32);
    r = 0x274f388u - (r * f >> 32);
    r = 0xe353290u - (r * f >> 32);
    r = 0x3d7f7506u - (r * f >> 32);
    r = 0xb17217dfu - (r * f >> 32);
    r = ((uint64_t)1 << 32) - (r * f >> 32);
    return r << 8 >> (distance >> 26);
}

/* a * part / 2^64 */
DRAW_FN uint64_t draw_part(uint64_t a, uint64_t part)
{
#ifdef __CUDA_ARCH__
    return __umul64hi(a, part);
#else
    __extension__ typedef unsigned __int128 wide;
    return (uint64_t)((wide)a * part >> 64);
#endif
}

/* The weight that kept tokens have to hold, of those that top-k leaves. */
DRAW_FN uint64_t draw_limit(uint64_t sum, uint64_t share)
{
    const uint64_t part = draw_part(sum, share);
    return part ? part : 1;
}

struct draw_edge { /* the last token that is kept, in the order of distance and id */
    uint32_t distance, id;
};

DRAW_FN struct draw_edge draw_nearer(struct draw_edge a, struct draw_edge b)
{
    return b.distance < a.distance || (b.distance == a.distance && b.id < a.id) ? b : a;
}

/* The weight that the token takes part with. */
DRAW_FN uint64_t draw_kept(struct draw_edge e, uint64_t least, uint32_t distance, uint32_t id)
{
    if (distance > e.distance || (distance == e.distance && id > e.id)) return 0;
    const uint64_t weight = draw_weight(distance);
    return weight >= least ? weight : 0;
}

#ifndef __cplusplus
/* top_k 0 or below, top_p 1, min_p 0: off. temperature > 0. */
static inline struct kn_draw kn_draw_of(float temperature, int32_t top_k, float top_p, float min_p,
                                        uint64_t random)
{
    return (struct kn_draw){random, top_p < 1 ? (uint64_t)((double)top_p * 0x1p64) : DRAW_ALL,
                            (uint64_t)ceil((double)min_p * 0x1p40), top_k > 0 ? (uint32_t)top_k : 0,
                            (float)(1.4426950408889634 / (double)temperature)};
}

/* On the host. -1: the largest logit is not finite. room: [n]; n <= DRAW_ROWS_MAX. */
int32_t kn_draw_row(const float *x, size_t n, const struct kn_draw *d, uint32_t *room);
#endif

#endif
