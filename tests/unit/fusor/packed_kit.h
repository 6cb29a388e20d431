/* Folders of small models twice from one set of codes: quantised, in any of the forms that packed.h
 * lists, and as the f32 values that these mean. The writer goes bit by bit and knows nothing of the
 * reader. */
#ifndef TESTS_UNIT_FUSOR_PACKED_KIT_H
#define TESTS_UNIT_FUSOR_PACKED_KIT_H

#include "fusor/model/packed.h"
#include "tests/unit/fusor/model_files.h"

#include <jansson.h>

enum pk_arch { PK_LLAMA, PK_PHI3 /* joint layers */, PK_QWEN3_MOE, PK_GLM4 /* rows in turns */ };
enum pk_flags {
    PK_SYMMETRIC = 1,     /* no zeros (compressed-tensors) */
    PK_V2 = 2,            /* gptq_v2 */
    PK_REORDERED = 4,     /* act-order */
    PK_IN_ORDER = 8,      /* g_idx that says what is so without it */
    PK_HEAD = 16,         /* the head, too */
    PK_O_LEFT_OUT = 32,   /* o_proj is not quantised */
    PK_ZERO_BIASES = 64,  /* biases of 0, as AutoGPTQ wrote them */
    PK_NONZERO_BIAS = 128 /* or one that is not */
};
struct pk_kind {
    enum packed_method method;
    unsigned bits;
    int group;         /* -1: a row */
    const char *scale; /* "F16", … */
    unsigned flags;
    enum pk_arch arch;
};
enum { PK_D = 128, PK_F = 256, PK_V = 64, PK_L = 2, PK_EXPERTS = 3 };

struct pk_folder {
    char dir[40], config[64], weights[64];
};
/* What a test changes in a folder that is being written. */
struct pk_change {
    const char *config;  /* a JSON object over the quantization_config, or NULL */
    const char *leave;   /* a tensor that is not written */
    const char *retype;  /* a tensor whose type is said to be F32 or I32, whichever it is not */
    const char *reshape; /* a tensor whose first dimension is twice as long */
    uint32_t g_idx;      /* of the last value, instead of what it is; 0: as it is */
};
void pk_write(const struct pk_kind *k, const struct pk_change *change, bool plain,
              struct pk_folder *f);
void pk_remove(struct pk_folder *f);

#endif
