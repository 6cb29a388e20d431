/* tok_load: how a tokenizer is made.
 *
 * A loader creates it with tok_new(), sets every token with tok_set(), fills the settings, calls
 * tok_index() (text → id works from then on), adds the merges, and ends with tok_finish(). Thread:
 * one. */
#ifndef FUSOR_TEXT_TOK_LOAD_H
#define FUSOR_TEXT_TOK_LOAD_H

#include "fusor/text/tok_int.h"

int tok_new(size_t n_vocab, struct tok **ret);
int tok_set(struct tok *t, size_t id, const char *text, size_t len, enum tok_type type);
int tok_index(struct tok *t);
int tok_merge_add(struct tok *t, int32_t left, int32_t right, int32_t merged, uint32_t rank);
int tok_merges_from_scores(struct tok *t, const float *score); /* [n_vocab], SentencePiece */
int tok_unigram_index(struct tok *t); /* tok_unigram.c: instead of merges, once scores are set */
int tok_finish(struct tok *t);
/* A GGUF file's name or a Hugging Face Split pattern; 1 known, 0 not. */
int tok_pre_parse(const char *name, enum tok_pre *ret);

/* tok_load.c: what the loaders share. */
void tok_mark_eog(struct tok *t); /* control tokens whose names end a turn; before tok_index() */
/* A token of a byte-level vocabulary, spelt in GPT-2's printable alphabet; one that has other
 * characters is of type `otherwise`, spelt as it is. */
int tok_set_printable(struct tok *t, size_t id, const char *text, size_t len, enum tok_type type,
                      enum tok_type otherwise);
struct tok_merge { /* the texts of a merge, as in a file */
    const char *left, *right;
    size_t left_len, right_len;
};
bool tok_merge_cut(const char *s, size_t len, struct tok_merge *ret); /* "left right" */
/* Add it unless it can never apply. `room` is scratch. */
int tok_merge_texts(struct tok *t, const struct tok_merge *m, uint32_t rank, struct buf *room);
int tok_set_spm(struct tok *t, size_t id, const char *text, size_t len, enum tok_type type);
/* TOK_PRE_SPM where no token has a space behind something else, so that cutting there is exact. */
enum tok_pre tok_spm_pre(const struct tok *t);
bool tok_is_byte_name(const char *s, size_t len, uint8_t *ret); /* "<0xAB>" */

struct gguf;
int tok_open_gguf(const struct gguf *g, struct tok **ret, struct err *err); /* tok_gguf.c */
int tok_open_hf(const char *folder, const char *file, struct tok **ret,
                struct err *err);                                         /* tok_hf.c */
int tok_open_shape(const char *shape, struct tok **ret, struct err *err); /* tok_shape.c */

#endif
