/* pairs: rows of a product as pairs of bf16 for AMX tiles, KN_PAIRS_ROWS at a time: rounded once
 * for all columns. A row is an odd number of cache lines, so that rows do not share few sets of the
 * cache. Pure. */
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

#endif
