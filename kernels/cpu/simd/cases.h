/* cases: row(1) … row(n) of a switch over the rows of a register tile; each count has code of its
 * own. n: 4, 6, 12 or 14, also as a macro. */
#ifndef KERNELS_CPU_SIMD_CASES_H
#define KERNELS_CPU_SIMD_CASES_H

#define CASES_3(row) row(1) row(2) row(3)
#define CASES_4(row) CASES_3(row) row(4)
#define CASES_6(row) CASES_4(row) row(5) row(6)
#define CASES_12(row) CASES_6(row) row(7) row(8) row(9) row(10) row(11) row(12)
#define CASES_14(row) CASES_12(row) row(13) row(14)
#define CASES_OF(n, row) CASES_##n(row)
#define CASES(n, row) CASES_OF(n, row)

#endif
