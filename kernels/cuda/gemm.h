/* gemm: products on a device, the library's algorithms, and their tuning. Errors and threads as
 * launch.h. */
#ifndef KERNELS_CUDA_GEMM_H
#define KERNELS_CUDA_GEMM_H

#include "kernels/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- products: c [m, n] = a [m, k] w [n, k]^T, both sides of one type ---- */
struct cu_side {  /* rows of one side */
    void *data;   /* contiguous */
    float *scale; /* a row's, 8 bits only: a value is data * scale */
};
enum { CU_ROWS_UNIT = 32 }; /* 8-bit sides have room for a multiple: the library wants no fewer */
static inline size_t cu_value_bytes(enum cu_type t)
{
    return t == CU_F32 ? 4 : t == CU_FP8 || t == CU_INT8 ? 1 : 2;
}
static inline int cu_is_eight(enum cu_type t)
{
    return t == CU_FP8 || t == CU_INT8;
}
static inline size_t cu_rows_room(enum cu_type t, size_t rows)
{
    return cu_is_eight(t) ? (rows + CU_ROWS_UNIT - 1) / CU_ROWS_UNIT * CU_ROWS_UNIT : rows;
}
/* Bytes of a side; its rows lie first, its scales behind them. */
size_t cu_side_bytes(enum cu_type t, size_t rows, size_t k);
struct cu_side cu_side_at(enum cu_type t, size_t rows, size_t k, void *at);

struct cu_gemm {
    enum cu_type type;
    struct cu_side a, w;
    size_t lda; /* of a in f32; other types are contiguous */
    size_t m, n, k;
    enum cu_type out; /* CU_F32; cu_gemm_rounds(): CU_BF16, without bias and old values */
    const float *bias;
    void *c; /* [m, n], stride ldc */
    size_t ldc;
    int accumulate;
    void *room; /* cu_gemm_room() bytes; NULL when 0 */
};
/* -ENOTSUP with a sentence where the GPU or the library lacks products of this type. */
int cu_gemm_open(struct cu *c, enum cu_type type, char *msg, size_t msg_size);
size_t cu_gemm_room(const struct cu *c, const struct cu_gemm *g);
int cu_gemm_rounds(const struct cu *c, enum cu_type type); /* results can be bf16 */
int cu_gemm(struct cu *c, const struct cu_gemm *g);
/* Products that no algorithm of the library's would make, so that a kernel of ours did: how many,
 * and m, n, k of the latest. Shapes that the library never takes are none. Thread: any. */
uint64_t cu_gemm_refusals(const struct cu *c, size_t (*ret)[3]);

/* The library's algorithms: what it suggests, best guess first, and which to take from now on for
 * this type and weight at row counts of the same bucket (NULL: its first suggestion, which is
 * also that of all others). */
struct cu_algo {
    uint64_t word[8];
};
int cu_gemm_suggest(struct cu *c, const struct cu_gemm *g, struct cu_algo *ret, size_t cap,
                    size_t *ret_n);
int cu_gemm_prefer(struct cu *c, const struct cu_gemm *g, const struct cu_algo *algo);
/* Rows that one call of the library takes; more are cut. */
size_t cu_gemm_rows_max(const struct cu *c, enum cu_type type, size_t n);
void cu_versions(const struct cu *c, char *ret, size_t size);     /* GPU, driver, library */
int cu_noise(struct cu *c, enum cu_type type, void *p, size_t n); /* n random values in (-1, 1) */

/* tune.c: the smallest of the row counts that are tuned that is not below m, else the largest. */
size_t cu_bucket(size_t m);
struct cu_tune {
    enum cu_type type;
    const struct kn_shape *shape;
    size_t n_shapes, rows;
    size_t rows_max; /* of a product; 0: any number */
    unsigned budget_ms;
    const char *cache_dir; /* NULL: nothing is remembered */
};
/* Time the suggestions for each shape and bucket that no earlier start has timed, within the
 * budget; what it does not reach is left to the next start. ret_gflops: at `rows` rows, 0 where
 * nothing was timed. Thread: before anything else runs. */
int cu_tune(struct cu *c, const struct cu_tune *t, double *ret_gflops);

#ifdef __cplusplus
}
#endif
#endif
