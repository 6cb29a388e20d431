/* packed: linear layers of Hugging Face folders whose config.json has a quantization_config: AWQ,
 * GPTQ and compressed-tensors (pack-quantized).
 *
 * A value is (q - zero) * scale, q of 2, 3, 4 or 8 bits; zero and scale are shared by a group of a
 * row's values. The three formats differ in where these stand. N rows of k values, G groups of a
 * row, words of 32 bits, little-endian; "along" is the dimension along which numbers follow each
 * other in a stream of bits, the lowest bits first:
 *
 *                       AWQ (gemm)             GPTQ                   compressed-tensors
 *   codes               qweight [k, N / 8]     qweight [k bits/32, N] weight_packed [N, k bits/32]
 *                       along N, 0 2 4 6 1 3 5 7 along k              along k
 *   zeros               qzeros [G, N / 8]      qzeros [G, N bits/32]  weight_zero_point
 *                       as codes               along N, less one      [N bits/32, G] along N;
 *                                              unless "gptq_v2"       none: half of the range
 *   scales              scales [G, N]          scales [G, N]          weight_scale [N, G]
 *   group of value i    i / (k / G)            g_idx [k], or as AWQ   weight_g_idx [k], or as AWQ
 *
 * Of compressed-tensors' numbers all are stored with half of the range added, codes and zeros
 * alike. A group that is not along the row (act-order) or not whole steps of 32, and scales in f32,
 * fit no form of kernels/codes.h: such a weight comes as values alone. Source: the formats'
 * libraries (AutoAWQ, AutoGPTQ and GPTQModel, compressed-tensors). Thread: any (immutable). */
#ifndef FUSOR_MODEL_PACKED_H
#define FUSOR_MODEL_PACKED_H

#include "base/err.h"
#include "fusor/model/tensors.h"

enum packed_method { PACKED_NONE, PACKED_AWQ, PACKED_GPTQ, PACKED_TENSORS };
struct packed_cfg { /* of a whole folder */
    enum packed_method method;
    unsigned bits, group; /* group 0: a row is one */
    bool less_one;        /* GPTQ: zeros are stored less one */
    bool has_zeros;
    bool mixed; /* modules have settings of their own: what tensors say holds */
};

struct packed { /* rows of one layer */
    enum packed_method method;
    unsigned bits;
    size_t n, k;          /* of the whole layer; k whole steps of 32 */
    size_t row0;          /* the weight's first */
    size_t groups, group; /* of a row; values of one, unless g_idx says which */
    const uint8_t *codes, *zeros, *scales, *g_idx; /* zeros, g_idx: or NULL */
    size_t codes_bytes;
    const struct quant_type *scale; /* F16, BF16, F32 */
    bool less_one;
    const struct quant_type *type; /* its form as codes; of no form: bits 0 */
};

struct packed_layer {  /* that is looked for */
    const char *name;  /* "….weight" */
    size_t n, k, row0; /* row0 < n */
};
/* Rows that are read together at most: of AWQ a line of the cache has words of so many. */
enum { PACKED_ROWS = 128 };

/* Whether the folder has the tensor `name`, which ends in ".weight", in this way. */
bool packed_has(const struct packed_cfg *c, const struct tensors *ts, const char *name);
/* The layer, whose tensors are used then. -EBADMSG: they do not fit each other, the shape or the
 * configuration; -ENOTSUP: k is no whole steps of 32. */
int packed_take(const struct packed_cfg *c, const struct tensors *ts,
                const struct packed_layer *layer, struct packed *ret, struct err *err);
/* Rows [row, row + n), n at most PACKED_ROWS: as values, [n, k], or in the form of p->type, which
 * is one. */
void packed_values(const struct packed *p, size_t row, size_t n, float *out);
void packed_codes(const struct packed *p, size_t row, size_t n, const struct codes_row *ret);
/* Each of the tensors' bytes that are there, one after the other; 0: no more. */
size_t packed_part(const struct packed *p, unsigned i, const uint8_t **ret);

#endif
