/* quant: the tensor element types of GGUF and safetensors files: taken apart, and as f32.
 *
 * A type stores `block` values in `bytes` bytes. quant_to_f32() gives the same f32 values, bit for
 * bit, as the reference dequantisers of the gguf Python package (golden blocks in
 * tests/data/quant/). Source pointers need no alignment.
 * Type ids and block layouts: ggml's public format description (ggml type enumeration).
 * Thread: any (pure functions). */
#ifndef FUSOR_MODEL_QUANT_H
#define FUSOR_MODEL_QUANT_H

#include "kernels/codes.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { /* ggml type ids */
       QUANT_F32 = 0,
       QUANT_F16 = 1,
       QUANT_Q4_0 = 2,
       QUANT_Q4_1 = 3,
       QUANT_Q5_0 = 6,
       QUANT_Q5_1 = 7,
       QUANT_Q8_0 = 8,
       QUANT_Q2_K = 10,
       QUANT_Q3_K = 11,
       QUANT_Q4_K = 12,
       QUANT_Q5_K = 13,
       QUANT_Q6_K = 14,
       QUANT_IQ4_NL = 20,
       QUANT_IQ4_XS = 23,
       QUANT_BF16 = 30,
       QUANT_MXFP4 = 39,
       QUANT_PACKED = 1 << 16 /* of no GGUF file: packed.h */
};

/* Fills *out; arrays that a form has not may be NULL. */
typedef void (*quant_fn)(const uint8_t *src, size_t n_blocks, const struct codes_row *out);
struct quant_type {
    uint32_t id;
    const char *name;
    unsigned block; /* values per block */
    unsigned bytes; /* bytes per block */
    quant_fn fn;    /* takes blocks apart */
    struct codes_form form;
};

const struct quant_type *quant_type(uint32_t id); /* NULL = unknown */
/* n values (a multiple of the block) from src to out. */
void quant_to_f32(const struct quant_type *t, const void *src, size_t n, float *out);
/* The same in the type's form, which is not f32. */
void quant_to_codes(const struct quant_type *t, const void *src, size_t n,
                    const struct codes_row *out);

#endif
