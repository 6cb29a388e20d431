/* encode: texts to vectors, by an encoder of the BERT family or by a causal model's hidden states;
 * and pairs of a query and a document to scores, by a cross-encoder of that family.
 *
 * For /v1/embeddings, and for /v1/rerank and /v1/score. A path is an embedder (enc_fits()) when its
 * architecture is an encoder's, when files of sentence-transformers stand beside it, or when the
 * caller says how to pool. Those files decide pooling, normalisation and the longest text; a part
 * of theirs that is not computed here is refused by name at enc_open(). Vectors are f32. A text's
 * vector depends on its own tokens alone, bit for bit: not on the batch it is in, nor on the number
 * of threads. The same holds of the score of a pair, which is what sentence-transformers'
 * CrossEncoder gives.
 *
 * enc_open() → enc_tokens() or enc_pair() any number of times, on any thread → enc_run(), one
 * thread at a time → enc_close(). Encoders run on the CPU; causal models wherever the core does.
 * Not for generating: core/. */
#ifndef FUSOR_ENCODE_ENCODE_H
#define FUSOR_ENCODE_ENCODE_H

#include "base/err.h"
#include "fusor/text/tok.h"
#include "kernels/kn.h"

/* AUTO: as the model's files say. */
enum enc_pool { ENC_POOL_AUTO, ENC_POOL_CLS, ENC_POOL_MEAN, ENC_POOL_LAST };
const char *enc_pool_name(enum enc_pool p);     /* "auto", "cls", "mean", "last" */
int enc_pool_parse(const char *name, int dflt); /* dflt: no such name */

struct enc_opts {
    struct kn_dev_opts dev; /* allow_bf16 and tune are the model's */
    enum enc_pool pool;
    unsigned ctx_max;                          /* tokens of a text; 0 = the model's */
    void (*progress)(void *ctx, double share); /* weight packing, 0…1; may be NULL */
    void *progress_ctx;
};
struct enc_info {
    char arch[32];
    unsigned L, D, V;
    unsigned ctx_max; /* tokens of a text, control tokens included */
    enum enc_pool pool;
    bool normalize;      /* vectors have length 1 */
    bool scores;         /* a cross-encoder: of pairs, one value each */
    bool sigmoid;        /* its scores lie between 0 and 1; else they are the model's logits */
    size_t batch_tokens; /* that one enc_run() had better have; a text alone may be longer */
};
struct enc;
/* Is this path an embedder? What cannot be read is not, unless the caller says how to pool. */
bool enc_fits(const char *path, enum enc_pool pool);
/* -ENOTSUP: something that is not computed, by name; -EBADMSG: a damaged file; -ENOENT. */
int enc_open(const char *path, const struct enc_opts *o, struct enc **ret, struct err *err);
void enc_close(struct enc *e); /* accepts NULL; not while a run is under way */
const struct enc_info *enc_info(const struct enc *e);
struct tok *enc_tok(const struct enc *e);          /* borrowed until enc_close() */
const struct kn_dev *enc_dev(const struct enc *e); /* likewise */
/* The tokens of a text as the model wants them, control tokens around. cut: a text that is too long
 * loses its end, else *ret_n is its length all the same. 0, -ENOMEM, -ERANGE (over 4 GiB). */
int enc_tokens(const struct enc *e, const char *text, size_t len, bool cut, struct tok_ids *out,
               size_t *ret_n);
struct buf;
struct enc_pair {
    const char *query, *doc; /* bytes; names of control tokens are text */
    size_t query_len, doc_len;
    uint32_t doc_max; /* a document of more tokens loses its end; 0: no bound */
    bool cut;         /* likewise where the pair would be longer than ctx_max */
};
struct enc_pair_size {      /* in tokens */
    uint32_t n, second;     /* of the pair; of them, where enc_text.second begins */
    uint32_t n_doc, n_kept; /* the document as it came; what is left of it */
};
/* Appends a pair's tokens (int32_t) as a cross-encoder wants them, control tokens around. The query
 * is never cut: with the document at its shortest a pair may still be longer than ctx_max. 0,
 * -ENOMEM, -ERANGE. */
int enc_pair(const struct enc *e, const struct enc_pair *p, struct buf *out,
             struct enc_pair_size *ret);
struct enc_text {
    const int32_t *tok; /* [n], ids below V, 1 to ctx_max of them */
    uint32_t n;
    float *vec;      /* filled in: [D], of a cross-encoder [1] */
    uint32_t second; /* of a pair: tokens from here on are of the second type; 0: none is */
};
/* Vectors or scores of n texts. 0, -EINVAL (a text of no or too many tokens, an id out of range),
 * -ENOMEM, -ECANCELED, -EIO (the device is lost). */
int enc_run(struct enc *e, const struct enc_text *text, size_t n, const atomic_bool *cancel);
/* Cut to its first n values and, where the model's vectors have length 1, brought to it again. */
void enc_shorten(const struct enc *e, float *vec, unsigned n);

#endif
