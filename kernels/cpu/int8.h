/* int8: weights of the layers in 8 bits, and rows as products with them take those.
 *
 * Both have a scale for each block of k: its largest magnitude by 127. k is cut into as few equal
 * blocks of whole steps as KN_INT8_BLOCK allows. Sums of a block are exact, so all instruction sets
 * give the same; they are scaled and added in f32, block after block. Panels of nr columns are
 * [k / 4][nr][4] bytes, k as whole steps: a unit is what one lane of vpdpbusd or sdot takes,
 * sixteen of them a tile of AMX. vpdpbusd takes weights without a sign: 128 more, which the sums of
 * a row's values take back; elsewhere they have one. Thread: any once they are filled. */
#ifndef KERNELS_CPU_INT8_H
#define KERNELS_CPU_INT8_H

#include "kernels/kn.h"

/* Values of k of a step, and of a block at most: measured (docs/decisions/cpu-kernels.md). */
enum { KN_INT8_STEP = 64, KN_INT8_BLOCK = 128 };

struct kn_int8_cut {
    size_t k, block, n_blocks; /* k as whole steps, as is the block */
};
static inline struct kn_int8_cut kn_int8_cut(size_t k)
{
    struct kn_int8_cut c = {.k = (k + KN_INT8_STEP - 1) / KN_INT8_STEP * KN_INT8_STEP};
    const size_t n = (c.k + KN_INT8_BLOCK - 1) / KN_INT8_BLOCK, step = n * KN_INT8_STEP;
    c.block = (c.k + step - 1) / step * KN_INT8_STEP;
    c.n_blocks = (c.k + c.block - 1) / c.block;
    return c;
}

struct kn_int8 {
    struct kn_int8_cut cut;
    unsigned nr, zero;        /* columns of a panel; what 0 is stored as */
    size_t k, columns, bytes; /* columns: of all panels */
    uint8_t *panel;           /* in the slab, as the scales */
    float *scale;             /* [n_blocks, columns]; 0 past the last */
    struct kn_slab *slab;
};

struct kn_dev;
int kn_int8_create(struct kn_dev *d, size_t n, size_t k, struct kn_int8 **ret);
void kn_int8_destroy(struct kn_int8 *w); /* accepts NULL */
/* Rows [row, row + n) of a panel, KN_TURN_ROWS at most. */
void kn_int8_fill(struct kn_int8 *w, size_t row, size_t n, const float *x);

/* Rows of a product. */
struct kn_int8_rows {
    size_t stride; /* of q, bytes: an odd number of cache lines */
    int8_t *q;     /* [m, k], zeros past the last value; tiles read, and leave out, up to 31 more */
    float *scale;  /* [m, n_blocks] */
    int32_t *sum;  /* the same, of q */
};
/* Places them from `at` on, aligned to 64; the bytes that they take. */
size_t kn_int8_place(size_t m, size_t k, char *at, struct kn_int8_rows *ret);

/* isa.c: whether there are products of 8 bits (VNNI, dotprod); where there are, rows rounded, and
 * panels [panel0, panel1) multiplied. */
struct kn_gemm_job;
typedef void (*kn_int8_rows_fn)(const float *a, size_t lda, size_t m, size_t k,
                                const struct kn_int8_rows *to);
typedef int (*kn_int8_gemm_fn)(const struct kn_gemm_job *j, size_t panel0, size_t panel1);
bool kn_isa_int8(enum kn_isa isa);
kn_int8_rows_fn kn_int8_rows_of(enum kn_isa isa);
kn_int8_gemm_fn kn_int8_gemm_of(enum kn_isa isa);

/* simd/gemm_int8.c, for each instruction set that has them */
#define KN_INT8_OF(set)                                                                            \
    void kn_##set##_int8_rows(const float *a, size_t lda, size_t m, size_t k,                      \
                              const struct kn_int8_rows *to);                                      \
    int kn_##set##_gemm_int8(const struct kn_gemm_job *j, size_t panel0, size_t panel1)
KN_INT8_OF(neon);
KN_INT8_OF(avx2);
KN_INT8_OF(avx512);
int kn_gemm_int8_amx(const struct kn_gemm_job *j, size_t panel0, size_t panel1);

#endif
