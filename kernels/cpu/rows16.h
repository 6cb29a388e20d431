/* rows16: products of few rows by weights that stay what a file has: codes of 4 or 8 bits. For
 * decode steps and kn_rough(), wherever not all has to be f32.
 *
 * A row is rounded to numbers of 16 bits, with one scale for each step of 32 values: a 32 639th of
 * its largest magnitude. Weights are q * D + M, each column with a D and an M of a step, or of
 * either half of it. The products of a number's upper byte, and of its lower one, by all q of a
 * step (a half) are summed exactly, so nothing but the row is rounded:
 *   sum += (row's scale * sum of its numbers) * M, sum += (exact sum * D) * row's scale
 * in f32, one after another, from 0, bias or C on. So an output's bits depend on its own row alone.
 * Rows of what only ranks (kn_rough()) are rounded to 8 bits, a 127th of a step's largest
 * magnitude, and have upper bytes alone.
 * Thread: any (pure functions). */
#ifndef KERNELS_CPU_ROWS16_H
#define KERNELS_CPU_ROWS16_H

#include "kernels/cpu/coded.h"

enum { KN_ROWS16_UNITS = CODES_STEP / 4 };

/* Of a group of G values that share D value k is byte k % (G / 2) * 2 + k / (G / 2) of its upper
 * bytes, and of its lower ones: four of a row meet four of a column, and one mask takes the nibbles
 * of a word apart (coded.h). */
struct kn_rows16_step {
    uint32_t upper[KN_ROWS16_UNITS], lower[KN_ROWS16_UNITS]; /* signed bytes */
};
struct kn_rows16 {
    size_t m, steps; /* m: with room behind the rows */
    bool bytes;      /* numbers have 8 bits: upper bytes alone */
    float *scale;    /* [steps][m] */
    /* G is 32, and 16; NULL where no column wants that. */
    struct kn_rows16_step *by_step, *by_half; /* [steps][m] */
    float *sum, (*sums)[2]; /* [steps][m], of all numbers and of both halves, times the scale */
};

enum { KN_ROWS16_FEW = 4, KN_ROWS16_TILE = 8 /* rows of a tile; few go without */ };

/* Places m rows for a weight's codes from `at` on, aligned to 64; the bytes that they take. */
static inline size_t kn_rows16_place(const struct kn_coded *c, size_t m, char *at,
                                     struct kn_rows16 *ret)
{
    if (m > KN_ROWS16_FEW) m = (m + KN_ROWS16_TILE - 1) / KN_ROWS16_TILE * KN_ROWS16_TILE;
    const size_t n = m * (c->k / CODES_STEP), q = n * sizeof(struct kn_rows16_step);
    char *const half = at + (c->by_step ? q : 0), *const scales = half + (c->by_half ? q : 0);
    *ret = (struct kn_rows16){.m = m,
                              .steps = c->k / CODES_STEP,
                              .scale = (void *)scales,
                              .by_step = c->by_step ? (void *)at : NULL,
                              .by_half = c->by_half ? (void *)half : NULL,
                              .sum = (float *)(void *)scales + n,
                              .sums = (void *)(scales + 2 * n * sizeof(float))};
    return ((c->by_step + c->by_half) * q + 4 * n * sizeof(float) + 63) / 64 * 64;
}

/* Of an instruction set. */
struct kn_gemm_job;
struct kn_rows16_ops {
    bool nibbles_only; /* of all codes those of kn_codes_nibbles() */
    /* Rows [row, row + n) of those at a. */
    void (*round)(const float *a, size_t lda, size_t row, size_t n, const struct kn_rows16 *to);
    int (*gemm)(const struct kn_gemm_job *j, size_t panel0, size_t panel1);
};
const struct kn_rows16_ops *kn_isa_rows16(enum kn_isa isa); /* isa.c; NULL: none */

extern const struct kn_rows16_ops kn_avx2_rows16, kn_avx2_vnni_rows16, kn_avx512_rows16,
    kn_amx_rows16, kn_neon_rows16; /* simd/gemm_rows16.c */

#endif
