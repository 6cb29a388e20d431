/* tensors: the weight tensors of a model, whatever file they come from.
 *
 * The GGUF and safetensors loaders fill a `struct tensors`; model.c binds the entries to weight
 * kinds. Names and data are borrowed from the reader that filled the table. tensors_sort() comes
 * before tensors_find() and refuses duplicates.
 * Thread: one while it is filled, any afterwards. */
#ifndef FUSOR_MODEL_TENSORS_H
#define FUSOR_MODEL_TENSORS_H

#include "base/err.h"
#include "fusor/model/quant.h"

struct tensor {
    const char *name;
    const uint8_t *data;           /* rows one after the other, unaligned */
    size_t size_bytes;             /* checked to be inside the file */
    const struct quant_type *type; /* NULL: unknown, see type_name */
    char type_name[16];            /* as the file calls it */
    unsigned n_dims;               /* after dropping outer dimensions of 1; vectors 1 */
    size_t planes, rows, cols; /* of n_dims 1 to 3, safetensors: 4 (the last two as one), else 1 */
    bool used;                 /* bound to a weight */
};
struct tensors {
    struct tensor *t;
    size_t n, cap;
};

int tensors_reserve(struct tensors *ts, size_t extra); /* -ENOMEM */
/* Order by name; -EBADMSG when a name is there twice. */
int tensors_sort(struct tensors *ts, struct err *err);
/* -EBADMSG when the bytes of two from place `from` on, those of one file, overlap; leaves them in
 * the order of their places. */
int tensors_check_overlap(struct tensors *ts, size_t from, struct err *err);
struct tensor *tensors_find(const struct tensors *ts, const char *name); /* NULL = absent */
void tensors_fini(struct tensors *ts);

#endif
