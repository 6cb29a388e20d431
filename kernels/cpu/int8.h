/* int8: weights of the layers in 8 bits, and rows as products with them take those.
 *
 * Both are rotated along k before they are rounded, by a Hadamard matrix for every KN_INT8_STEP
 * values: (x H)(H' w) is x w, and a value far beyond its neighbours is spread over all of them. So
 * one scale serves a whole row, and one a whole column: a 127th of the largest magnitude. A product
 * is whole numbers throughout, then scaled; all instruction sets give the same bits. Panels of nr
 * columns are [k / 4][nr][4] bytes, k as whole steps (zeros behind the last, before the rotation):
 * a unit is what one lane of vpdpbusd or sdot takes, sixteen of them a tile of AMX. vpdpbusd takes
 * weights without a sign: 128 more, which the sums of a row's values take back; elsewhere they have
 * one. Thread: any once they are filled. */
#ifndef KERNELS_CPU_INT8_H
#define KERNELS_CPU_INT8_H

#include "kernels/kn.h"

/* Values of k of a step; of k in all, so that 127 * 128 * k is an int32. */
enum { KN_INT8_STEP = 64, KN_INT8_K_MAX = 1 << 17 };
static inline size_t kn_int8_k(size_t k)
{
    return (k + KN_INT8_STEP - 1) / KN_INT8_STEP * KN_INT8_STEP;
}

struct kn_int8 {
    unsigned nr, zero;        /* columns of a panel; what 0 is stored as */
    size_t k, columns, bytes; /* k: whole steps; columns: of all panels */
    uint8_t *panel;           /* in the slab, as the scales */
    float *scale;             /* [columns]; 0 past the last */
    struct kn_slab *slab;
};

struct kn_dev;
/* -ENOTSUP: k is beyond KN_INT8_K_MAX. */
int kn_int8_create(struct kn_dev *d, size_t n, size_t k, struct kn_int8 **ret);
void kn_int8_destroy(struct kn_int8 *w); /* accepts NULL */
/* Rows [row, row + n) of a panel, KN_TURN_ROWS at most, of k values: as many as it has. */
int kn_int8_fill(const struct kn_dev *d, struct kn_int8 *w, size_t row, size_t n, const float *x,
                 size_t k);

/* Rows of a product. */
struct kn_int8_rows {
    size_t stride; /* of q, bytes: an odd number of cache lines */
    int8_t *q;     /* [m, k as whole steps]; tiles read, and leave out, up to 31 more */
    float *scale;  /* [m] */
    int32_t *sum;  /* [m], of q */
};
/* Places them from `at` on, aligned to 64; the bytes that they take. */
size_t kn_int8_place(size_t m, size_t k, char *at, struct kn_int8_rows *ret);

/* isa.c: whether there are products of 8 bits (VNNI, dotprod); where there are, rows rotated and
 * rounded, with room for one of them, and panels [panel0, panel1) multiplied. */
struct kn_gemm_job;
typedef void (*kn_int8_rows_fn)(const float *a, size_t lda, size_t m, size_t k, float *room,
                                const struct kn_int8_rows *to);
typedef int (*kn_int8_gemm_fn)(const struct kn_gemm_job *j, size_t panel0, size_t panel1);
bool kn_isa_int8(enum kn_isa isa);
kn_int8_rows_fn kn_int8_rows_of(enum kn_isa isa);
kn_int8_gemm_fn kn_int8_gemm_of(enum kn_isa isa);

/* simd/gemm_int8.c, for each instruction set that has them */
#define KN_INT8_OF(set)                                                                            \
    void kn_##set##_int8_rows(const float *a, size_t lda, size_t m, size_t k, float *room,         \
                              const struct kn_int8_rows *to);                                      \
    int kn_##set##_gemm_int8(const struct kn_gemm_job *j, size_t panel0, size_t panel1)
KN_INT8_OF(neon);
KN_INT8_OF(avx2);
KN_INT8_OF(avx512);
int kn_gemm_int8_amx(const struct kn_gemm_job *j, size_t panel0, size_t panel1);

#endif
