/* vocab: the tokens of a tokenizer as a trie over their bytes, for run.h. Built once per tokenizer,
 * takes some tens of ms at 128 000 tokens and 8 bytes a node.
 *
 * Tokens that are prose (whole characters, none of which a JSON string would have to escape) are in
 * a trie of their own: where any prose may follow, as within a string, they are known without
 * walking it. Control tokens have no text and are in none; those that end a text are kept apart.
 * Immutable. Thread: any. */
#ifndef FUSOR_GRAMMAR_VOCAB_H
#define FUSOR_GRAMMAR_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tok;
struct gram_vocab;

enum { VOCAB_TOKEN_MAX = 255 }; /* bytes; longer ones are never allowed */
struct vocab_token {
    const char *bytes;
    size_t len; /* 0: has no text */
    bool ends;  /* it may stand where the text is complete, and ends it */
};
struct vocab_source {
    size_t n;
    void (*token)(const void *ctx, size_t id, struct vocab_token *ret);
    const void *ctx;
    bool drops_space; /* a space that the first token begins with does not come out */
};
int gram_vocab_create(const struct vocab_source *s, struct gram_vocab **ret);
/* The tokenizer's; n_ids: as many as the model has logits, which may be more than there are tokens.
 */
int gram_vocab_of(const struct tok *t, size_t n_ids, struct gram_vocab **ret);
void gram_vocab_destroy(struct gram_vocab *v);
size_t gram_vocab_size(const struct gram_vocab *v);
void gram_vocab_bytes(const struct gram_vocab *v, bool ret[256]); /* that are tokens themselves */

#endif
