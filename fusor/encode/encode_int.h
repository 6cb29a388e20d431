/* encode_int: what the files of this folder share. */
#ifndef FUSOR_ENCODE_ENCODE_INT_H
#define FUSOR_ENCODE_ENCODE_INT_H

#include "fusor/encode/encode.h"

#include <jansson.h>

struct tensor;

enum {
    ENC_L_MAX = 1024, /* limits of what a file may ask for, far above published encoders */
    ENC_D_MAX = 1 << 16,
    ENC_JSON_BYTES_MAX = 4 << 20, /* chosen: real ones have a few KiB */
};

/* ---- config.c: the encoder that config.json asks for ---- */
struct enc_cfg {
    char arch[32]; /* "bert", "roberta", "xlm-roberta", "nomic-bert", "gte", "modernbert" */
    unsigned L, D, H, F, V;
    unsigned n_pos, pos0; /* rows of the position table; that of a text's first token */
    unsigned n_types;     /* 0: there is no table of them */
    float eps;
    bool norms_before; /* what a layer's halves compute on is normed, else what comes out */
    bool gated;        /* act(gate) * up */
    enum kn_act act;   /* KN_GELU where not gated */
    bool bias_attn, bias_up, bias_down, bias_norm;
    double rope_base, rope_base_local; /* 0: a table of positions instead */
    unsigned window;                   /* keys to each side that a row of a local layer sees */
    enum enc_head {                    /* what makes a score; NONE: it gives vectors */
                    ENC_HEAD_NONE,
                    ENC_HEAD_POOLER, /* BERT: the pooler of the first token, a row of weights */
                    ENC_HEAD_CLASS,  /* RoBERTa: the same by other names */
                    ENC_HEAD_NORMED  /* ModernBERT: dense, GELU, norm, a row of weights */
    } head;
    enum enc_pool head_pool; /* of the rows that the head sees */
    bool bias_head, sigmoid;
    bool local[ENC_L_MAX]; /* layers with a window, rotated by rope_base_local */
};
/* 1 an encoder, 0 something else (ret untouched), <0. */
int enc_read_config(const char *folder, struct enc_cfg *ret, struct err *err);

/* ---- folder.c: what the files beside the weights say ---- */
struct enc_pooling {
    enum enc_pool pool; /* AUTO: no file says it */
    bool normalize;
    unsigned ctx_max; /* 0: no file says it */
};
/* 1 there are files of sentence-transformers, 0 there are none. D: width of the hidden states. */
int enc_read_pooling(const char *folder, unsigned D, struct enc_pooling *ret, struct err *err);
/* The same of a cross-encoder, which pools by itself: ctx_max alone. */
int enc_read_scoring(const char *folder, struct enc_pooling *ret, struct err *err);
bool enc_has_modules(const char *folder);
/* 1 read, 0 absent. */
int enc_read_json(const char *folder, const char *name, json_t **ret, struct err *err);
/* A count from 1 to max; absent or null: dflt, 0 = it must be there. */
int enc_json_count(const json_t *o, const char *key, unsigned max, unsigned dflt, unsigned *ret,
                   struct err *err);

/* ---- weights.c ---- */
struct enc_linear {
    struct kn_mat *w; /* [n, k] */
    float *bias;      /* [n] or NULL */
    size_t n, k;
};
struct enc_norm {
    float *weight, *bias; /* [D]; no weight: nothing is normed, no bias: none is added */
};
struct enc_layer {
    struct enc_linear q, kv;       /* kv [2*D, D]: K rows, then V rows */
    struct enc_linear o, up, down; /* up: of a gate [2*F, D], gate first */
    struct enc_norm attn, ffn;
};
struct enc_weights {
    const struct enc_cfg *cfg;
    struct kn_dev *dev;
    struct st_set *st;
    struct tensors *tensors;    /* of it */
    const struct tensor *embed; /* [V, D] words, read where they are */
    float *pos_type; /* [n_pos - pos0, D] positions, and the type of the only part; with rope: [D]
                        that type, or NULL */
    float *second;   /* [D] what rows of a pair's second text have more; NULL: nothing */
    struct enc_norm norm_embed, norm_last;
    struct enc_layer *layer;   /* [L] */
    struct enc_linear head;    /* [D, D] */
    struct enc_norm head_norm; /* of ENC_HEAD_NORMED */
    float *score, *score_bias; /* [D] the row that a score is made with; [1] */
};
/* cfg stays the caller's. On failure, too, enc_weights_fini(). */
int enc_weights_init(struct enc_weights *w, const char *folder, const struct enc_cfg *cfg,
                     const struct enc_opts *o, struct err *err);
void enc_weights_fini(struct enc_weights *w);
/* Row i of a tensor as [cols] f32. */
void enc_weights_row(const struct tensor *t, size_t i, float *out);

/* ---- bert.c: the encoder; vectors pooled, not normalised; or scores ---- */
struct enc_bert;
int enc_bert_open(const char *folder, const struct enc_cfg *cfg, const struct enc_opts *o,
                  struct enc_bert **ret, struct err *err);
void enc_bert_close(struct enc_bert *b); /* accepts NULL */
struct kn_dev *enc_bert_dev(const struct enc_bert *b);
int enc_bert_run(struct enc_bert *b, const struct enc_text *text, size_t n, enum enc_pool pool,
                 const atomic_bool *cancel);

/* One vector of rows [n, D]. */
void enc_pool_rows(const float *rows, size_t n, size_t D, enum enc_pool pool, float *out);

#endif
