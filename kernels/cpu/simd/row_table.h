/* What is done to one row of f32 at a time; out may be x where nothing else is said. */
#ifndef KERNELS_CPU_SIMD_ROW_TABLE_H
#define KERNELS_CPU_SIMD_ROW_TABLE_H

#include "kernels/types.h"

#include <stddef.h>

/* out = act(gate) * up, n values; out may be gate. */
typedef void kn_glu_fn(const float *gate, const float *up, size_t n, float *out);

struct kn_row_simd {
    void (*rmsnorm)(const float *x, size_t D, const float *w, float eps, float *out);
    /* out += …; out is not x. */
    void (*rmsnorm_add)(const float *x, size_t D, const float *w, float eps, float *out);
    void (*layernorm)(const float *x, size_t D, const float *w, const float *b /* or NULL */,
                      float eps, float *out);
    void (*gelu)(float *x, size_t n); /* in place, by erf */
    kn_glu_fn *glu[KN_ACTS];
    void (*softcap)(float *x, size_t n, float cap); /* in place */
};

#endif
