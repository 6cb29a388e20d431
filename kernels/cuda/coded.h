/* coded: weights in the form of a model file on a device: their layout and products with them.
 *
 * Rows of one form are cut into tiles of 16 rows, a tile into steps of 128 columns, one behind the
 * other, each of step_bytes:
 *
 *   codes    [2][2][32 lanes] sixteens: 16 nibbles, the lower one first, or 16 bytes
 *   heads    [32 lanes][2][head_bytes]: f16 (or bf16) D, f16 M (or a zero); super: bytes of D, as
 *            many of M; of groups of 128: [16 rows]
 *   units    super alone: [16 rows] of f16 D, f16 M (0 where there is none)
 *
 * Lane 4 r + c has columns 32 c to 32 c + 31 of the step, two sixteens, of row r first, then of row
 * r + 8: what it puts into a tensor core's operand, so that 32 lanes read 256 or 512 bytes in a
 * row. What is beyond the last row or column is zeros, D included. All little-endian. Thread: as
 * launch.h. */
#ifndef KERNELS_CUDA_CODED_H
#define KERNELS_CUDA_CODED_H

#include "kernels/cuda/gemm.h"

#ifdef __cplusplus
extern "C" {
#endif
#include "kernels/codes.h"

enum {
    CU_CODED_ROWS = 16,
    CU_CODED_STEP = 128,
    /* Rows that are multiplied in the tile. Chosen: modelled on an H100 up to 180 are faster so
     * than by way of a panel (docs/decisions/gpu.md, 21), a third of it as nothing is measured. */
    CU_CODED_FEW = 64,
    CU_CODED_PARTS = 4
};

struct cu_coded { /* rows of one form */
    struct codes_form form;
    int8_t table[16]; /* what a code stands for, where the form has a table */
    unsigned code_bytes, head_bytes, step_bytes;
    size_t n, k;
    const char *data; /* on the device */
};
struct cu_codes { /* a weight: forms one below the other; neighbours of one form are one */
    struct cu_coded part[CU_CODED_PARTS];
    size_t n_parts, bytes;
    char *filling; /* the host's, until all rows are there */
};
struct kn_part;
/* -ENOTSUP: a part that is not codes, or too many of them. */
int cu_codes_create(const struct kn_part *parts, size_t n_parts, size_t k, struct cu_codes **ret);
void cu_codes_destroy(struct cu_codes *w);         /* accepts NULL */
void cu_codes_place(struct cu_codes *w, char *at); /* where the device has them: `bytes` */
void cu_codes_filled(struct cu_codes *w);          /* `filling` is not needed any more */
/* -EINVAL: no such row, or they are filled. */
int cu_codes_put(struct cu_codes *w, size_t row, const struct codes_row *codes);

/* g->c = rows first … first + g->n - 1 of w times g->a (bf16); CU_CODED_FEW rows of it at most. The
 * weight of g is not read. A row's bits are its own. */
int cu_coded_gemm(struct cu *c, const struct cu_coded *w, size_t first, const struct cu_gemm *g);
/* The same rows' values rounded to bf16, [n, k]: what a product of many rows reads. */
int cu_coded_values(struct cu *c, const struct cu_coded *w, size_t first, size_t n, uint16_t *out);
/* Of all its forms, rows row0 … row0 + g->n - 1: a product of few rows, or (values not NULL) their
 * values, [g->n, k]. */
int cu_codes_gemm(struct cu *c, const struct cu_codes *w, size_t row0, const struct cu_gemm *g,
                  uint16_t *values);

#ifdef __cplusplus
}
#endif
#endif
