/* bytes: products of rows in 8 bits by weights that stay what they are, for CPUs that multiply
 * bytes in pairs only (AVX2's vpmaddubsw, whose sums have 16 bits).
 *
 * A step is 32 values of k. Rows are rounded to int8 with one scale a step: a 127th of its largest
 * magnitude. Weights are unsigned whole numbers q of a step, each column with a D and an M of its
 * own: q * D + M. What a file has as whole numbers of 4 bits with one scale for all of a step is
 * taken as it is, so of a step's sum only the row was rounded; all else is made f32 and rounded to
 * 7 bits between its least and its largest value of the step. Of a step the products of bytes are
 * summed exactly:
 *   sum += (row's scale * sum of its q) * M, sum += (exact sum * D) * row's scale
 * in f32, step after step, from 0, bias or C on. So an output's bits depend on its own row alone.
 * Thread: any (pure functions). */
#ifndef KERNELS_CPU_BYTES_H
#define KERNELS_CPU_BYTES_H

#include "kernels/kn.h"

enum { KN_BYTES_STEP = 32, KN_BYTES_ROWS = 4 /* of the register tile */ };

/* A step of the rows of a tile: value k of it is byte k % 16 * 2 + k / 16. Four bytes of a row meet
 * four of each column, a lane; so one mask takes the nibbles of a coded panel's word apart
 * (coded.h). */
struct kn_bytes_rows {
    int8_t q[KN_BYTES_ROWS][KN_BYTES_STEP];
    float scale[KN_BYTES_ROWS], sum[KN_BYTES_ROWS]; /* sum: of q, times scale */
};

/* Of m rows of k values: all steps of the first tile, then those of the next. */
static inline size_t kn_bytes_size(size_t m, size_t k)
{
    return (m + KN_BYTES_ROWS - 1) / KN_BYTES_ROWS * ((k + KN_BYTES_STEP - 1) / KN_BYTES_STEP) *
           sizeof(struct kn_bytes_rows);
}

bool kn_isa_bytes(enum kn_isa isa); /* isa.c: whether there are such products */
/* simd/gemm_bytes.c, on x86: m rows rounded, zeros behind them up to a whole tile; and panels
 * [panel0, panel1) multiplied. */
struct kn_gemm_job;
void kn_avx2_bytes_rows(const float *a, size_t lda, size_t m, size_t k, struct kn_bytes_rows *to);
int kn_avx2_gemm_bytes(const struct kn_gemm_job *j, size_t panel0, size_t panel1);

#endif
