/* encode_int: what the files of this folder share. */
#ifndef FUSOR_ENCODE_ENCODE_INT_H
#define FUSOR_ENCODE_ENCODE_INT_H

#include "fusor/encode/encode.h"

/* ---- folder.c: what the files beside the weights say ---- */
struct enc_cfg {
    char arch[32]; /* "bert", "roberta", "xlm-roberta"; "" = no encoder's */
    unsigned L, D, H, F, V;
    unsigned n_pos, pos0; /* rows of the position table; that of a text's first token */
    unsigned n_types;
    float eps;
};
struct enc_pooling {
    enum enc_pool pool; /* AUTO: no file says it */
    bool normalize;
    unsigned ctx_max; /* 0: no file says it */
};
/* 1 an encoder, 0 something else (ret untouched), <0. */
int enc_read_config(const char *folder, struct enc_cfg *ret, struct err *err);
/* 1 there are files of sentence-transformers, 0 there are none. D: width of the hidden states. */
int enc_read_pooling(const char *folder, unsigned D, struct enc_pooling *ret, struct err *err);
bool enc_has_modules(const char *folder);

/* ---- bert.c: the encoder; pooled, not normalised ---- */
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
