/* pairs: rows of a product as pairs of bf16 for AMX tiles, rounded once for all columns:
 * KN_PAIRS_ROWS of them at a time, or few as columns; or as pairs of whole numbers of 16 bits. A
 * row is an odd number of cache lines, so that rows do not share few sets of the cache. Pure. */
#ifndef KERNELS_CPU_PAIRS_H
#define KERNELS_CPU_PAIRS_H

#include <stddef.h>

enum { KN_PAIRS_ROWS = 512 };                  /* chosen: twice a block of rows (kn_rows) */
static inline size_t kn_pairs_stride(size_t k) /* pairs */
{
    return (k + 31) / 32 * 16 | 16;
}
static inline size_t kn_pairs_bytes(size_t m, size_t k)
{
    const size_t rows = m < KN_PAIRS_ROWS ? (m + 15) / 16 * 16 : KN_PAIRS_ROWS;
    return rows * kn_pairs_stride(k) * 4;
}

/* simd/gemm_int16.c: rows as pairs of whole numbers, with a scale for each 512 values at most. */
static inline size_t kn_int16_bytes(size_t m, size_t k)
{
    return m * (kn_pairs_stride(k) + k / 512 + 1) * 4;
}

/* Up to so many rows go by codes as columns of tiles, 16 rows by 16 pairs each: the tiles of one
 * step of k after the other, then those of the next 16 rows. */
enum { KN_COLUMNS = 16, KN_COLUMN_TILES = 4, KN_COLUMN_ROWS = KN_COLUMN_TILES * KN_COLUMNS };
static inline size_t kn_columns_bytes(size_t m, size_t k) /* k: whole steps */
{
    return (m + KN_COLUMNS - 1) / KN_COLUMNS * KN_COLUMNS * k * 2;
}

#if defined(__x86_64__) /* simd/gemm_codes.c: at most 16 rows of those; panels [panel0, panel1) */
struct kn_gemm_job;
/* simd/gemm_bf16.c: m rows as pairs, zeros behind them up to whole tiles. */
void kn_amx_pairs(const float *a, size_t lda, size_t m, size_t k, void *to);
void kn_amx_columns(const float *a, size_t lda, size_t m, size_t k, void *to);
int kn_gemm_codes_amx(const struct kn_gemm_job *j, size_t panel0, size_t panel1);
#endif

#endif
