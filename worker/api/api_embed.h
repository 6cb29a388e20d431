/* api_embed: /v1/embeddings in OpenAI's shape: the body in, the vectors out.
 *
 * api_embed_parse() → reads → api_embed_fini(). Texts and ids borrow from the JSON tree. Pure.
 * Thread: any. */
#ifndef WORKER_API_API_EMBED_H
#define WORKER_API_API_EMBED_H

#include "base/buf.h"
#include "base/mem.h"
#include "worker/api/api_error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    API_INPUTS_MAX = 2048,         /* OpenAI's, of one request */
    API_INPUT_TOKENS_MAX = 300000, /* likewise, of all its inputs together */
};
struct api_input {
    const char *text; /* NULL: token ids */
    size_t len;
    const int32_t *id;
    size_t n_ids;
};
struct api_embed {
    struct arena arena;
    json_t *root;
    const char *model; /* NULL = not named */
    struct api_input *input;
    size_t n;
    unsigned dimensions; /* 0 = all */
    bool base64;         /* vectors as text; else lists of numbers */
    bool cut;            /* inputs that are too long lose their ends */
};
/* n_vocab: bound of token ids; D: width of the model's vectors. 0, or -EINVAL with *e filled, or
 * -ENOMEM. out is zeroed first; api_embed_fini() also after a failure. */
int api_embed_parse(const char *body, size_t len, size_t n_vocab, unsigned D, struct api_embed *out,
                    struct api_err *e);
void api_embed_fini(struct api_embed *r);
/* The reply: n vectors, row i at vec + i * stride, of `dimensions` values each. */
struct api_vectors {
    const float *vec;
    size_t n, stride, dimensions;
    bool base64;
    const char *model;
    uint64_t n_tokens;
};
void api_put_vectors(struct buf *out, const struct api_vectors *v);

#endif
