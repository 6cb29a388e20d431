/* Inside of model: the object, and what its two loaders share. Not for other folders. */
#ifndef FUSOR_MODEL_MODEL_INT_H
#define FUSOR_MODEL_MODEL_INT_H

#include "base/mem.h"
#include "base/rng.h"
#include "fusor/model/arch.h"
#include "fusor/model/gguf.h"
#include "fusor/model/model.h"
#include "fusor/model/packed.h"
#include "fusor/model/quant.h"
#include "fusor/model/safetensors.h"
#include "fusor/model/tensors.h"

struct weight {          /* one bound tensor, or as many as there are experts */
    const uint8_t *data; /* NULL: the model has none */
    const struct quant_type *type;
    size_t size_bytes;          /* of all of it */
    const uint8_t *const *part; /* [experts.n] where each one's rows are; NULL: all from data on */
    /* How folders have the experts of a family that takes turns (model_experts.c). */
    unsigned step, first;  /* row r is their row first + r * step; 0: rows are as they are */
    size_t columns;        /* those are columns, so many of each expert; 0: rows */
    size_t per;            /* of each expert the weight has so many, from first on; 0: by steps */
    const uint8_t *scales; /* of MXFP4 codes that stand apart from them, or NULL */
    const struct packed *packed; /* [n_packed] as many rows of each; data is the first's codes */
    size_t n_packed;             /* 1, or experts.n; 0: rows are in data */
};

struct model {
    struct model_cfg cfg;
    char *path;
    const char *where; /* end of the path, for messages */
    struct gguf *gguf; /* one of these two */
    struct st_set *st;
    struct tensors *tensors;       /* of the other */
    bool random;                   /* no file: weights are shape.c's */
    const struct model_arch *arch; /* NULL: random */
    bool permuted;                 /* Q and K rows come in interleaved order */
    bool nested;                   /* the folder has another model around it */
    bool norm_less_one;            /* norms come less 1 */
    uint8_t *layers;               /* owned, as the next two: what cfg has of that name, or NULL */
    float *freq_factors, *long_factors;
    struct weight *w;      /* [3 + L * (MODEL_W_COUNT - 3)] */
    const uint8_t **parts; /* [3 * L * experts.n] what weights' `part` points into, or NULL */
    struct packed_cfg packed;
    struct arena arena; /* what weights' `packed` points into */
};

/* Limits of what a file may ask for; chosen well above any published model. */
enum {
    MODEL_L_MAX = 1024,
    MODEL_D_MAX = 1 << 16,
    MODEL_H_MAX = 1 << 12,
    MODEL_K_MAX = 1 << 10,
    MODEL_F_MAX = 1 << 20,
    MODEL_V_MAX = 1 << 22,
    MODEL_CTX_MAX = 1 << 28,
    MODEL_EXPERTS_MAX = 1024 /* KN_EXPERTS_MAX */
};

/* Fill cfg, tensors and permuted from m->gguf (what it says is to be told of the file) / from the
 * folder m->path. */
int model_from_gguf(struct model *m, struct err *err);
int model_from_hf(struct model *m, struct err *err);
/* ---- settings.c ---- */
/* Set cfg.layers, once window and rope are known: from the file's bits [L], or, NULL, by the
 * architecture's pattern. */
int model_set_layers(struct model *m, const uint8_t *bits, struct err *err);
/* Embeddings times `embed`, and all that layers add to the residual stream times `residual`. What
 * the stream is multiplied by as a whole does not matter to norms, so it is the embeddings that are
 * divided, and the epsilon of norms follows. */
void model_scale_residual(struct model_cfg *c, double embed, double residual);
/* A copy of n divisors of frequencies, the caller's in any case. -EBADMSG: no numbers above 0. */
int model_own_factors(const void *f, size_t n, const char *name, float **ret, struct err *err);
/* ---- model.c ---- */
struct dims {
    size_t planes, rows, cols;
};
/* The tensor of this name, which has this shape. -EBADMSG. */
int model_find(const struct model *m, const char *name, struct dims d, struct tensor **ret,
               struct err *err);
/* The same of a known type and at most three dimensions is used. -EBADMSG, -ENOTSUP. */
int model_take(struct model *m, const char *name, struct dims d, struct tensor **ret,
               struct err *err);
void model_bind(struct model *m, enum model_w w, unsigned layer, struct weight x);
/* The same of layers of a quantization_config, if the model has such of this name: */
static inline bool model_is_packed(const struct model *m, const char *name)
{
    return packed_has(&m->packed, m->tensors, name);
}
int model_take_packed(struct model *m, const struct packed_layer *layer, struct packed *ret,
                      struct err *err);
/* n of them, of one form, one below the other. */
void model_bind_packed(struct model *m, enum model_w w, unsigned layer, const struct packed *p,
                       size_t n);
/* ---- model_experts.c ---- */
/* -EBADMSG where cfg has what cannot be a mixture; else cfg's F follows. Binds its
 * weights of a layer. */
int model_settle_experts(struct model_cfg *c, struct err *err);
/* "mlp", or what the architecture's folders call it. */
const char *model_hf_ffn(const struct model *m);
int model_bind_experts(struct model *m, unsigned layer, struct err *err);
/* Values [col, col + n) of row `row` of a weight with a step, as quant.h reads them: where they
 * stand, or put together in room. n at most MODEL_PIECE, col and n whole blocks. */
enum { MODEL_PIECE = 256 };
const uint8_t *model_expert_values(const struct weight *x, size_t row, size_t cols, size_t col,
                                   size_t n, uint8_t room[MODEL_PIECE * 4]);
/* shape.c: what a matrix of a random model is drawn from, and rows of any weight of it. */
struct rng_field shape_field(const struct model *m, enum model_w w, unsigned layer);
void shape_rows(const struct model *m, enum model_w w, unsigned layer, size_t row0, size_t n,
                float *out);

#endif
