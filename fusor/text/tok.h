/* tok: tokenizer with byte offsets, from a GGUF file or a Hugging Face folder's tokenizer.json.
 *
 * Families: byte-level BPE with the GPT-2, SmolLM, Llama-3, Qwen2 (and starcoder-type) pre-token
 * rules; SentencePiece-style BPE with byte fallback (Llama-2, Mistral, phi-3); WordPiece as BERT
 * has it, Unigram as XLM-R. Anything else is refused by name at tok_open(). Input is a list of
 * pieces: user text, which can never become a control token, and special pieces, each the exact
 * text of one. Output ids carry byte ranges into the concatenation of the pieces. Immutable after
 * open. Thread: any. */
#ifndef FUSOR_TEXT_TOK_H
#define FUSOR_TEXT_TOK_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tok;
struct model;

struct tok_piece {
    const char *text;
    size_t len;
    bool special; /* text is the name of a control token (or several): added-token matching is on */
};
struct tok_ids { /* init with {0}; tok_ids_fini() */
    int32_t *id;
    uint32_t *begin, *end; /* byte range of token i in the concatenated pieces; BOS: begin == end */
    size_t n, cap;
};
enum { TOK_BOS = 1 /* add BOS (and EOS) where the tokenizer says so */ };

int tok_open(const struct model *m, struct tok **ret, struct err *err);
int tok_open_path(const char *path, struct tok **ret,
                  struct err *err); /* GGUF, folder, tokenizer.json, shape:NAME */
void tok_close(struct tok *t);
int tok_encode(const struct tok *t, const struct tok_piece *pieces, size_t n, unsigned flags,
               struct tok_ids *out); /* appends; 0, -ENOMEM, -ERANGE (over 4 GiB) */
void tok_ids_fini(struct tok_ids *ids);

/* The control tokens around the two texts of a pair, as the file's post-processor has them. Each
 * text is encoded by itself, without TOK_BOS. */
enum { TOK_FRAME_MAX = 4 };
struct tok_frame {
    struct {
        int32_t id[TOK_FRAME_MAX];
        unsigned n;
    } part[3];  /* before the first text, between both, behind the second */
    bool typed; /* the second text and what stands behind it are of type 1 */
};
const struct tok_frame *tok_pair_frame(const struct tok *t); /* NULL: the file says none */

size_t tok_n_vocab(const struct tok *t);
int32_t tok_bos(const struct tok *t); /* -1 = none */
int32_t tok_eos(const struct tok *t);
bool tok_is_eog(const struct tok *t, int32_t id); /* ends a turn or text: eos, eot, im_end … */
bool tok_is_special(const struct tok *t, int32_t id);
/* A space that the first token of a text begins with stands for none (tok_stream_push()). */
bool tok_drops_space(const struct tok *t);
/* The raw bytes a token stands for (not always whole characters); specials give their name only
 * when show_special. Borrowed; *ret_len 0 possible. -EINVAL for an id out of range. */
int tok_bytes(const struct tok *t, int32_t id, bool show_special, const char **ret,
              size_t *ret_len);
const char *tok_chat_template(const struct tok *t); /* Jinja source, NULL = none */
void tok_fingerprint(const struct tok *t, uint64_t ret[2]);

/* Streaming detokeniser: holds back incomplete UTF-8. Bytes that can never become UTF-8 turn into
 * U+FFFD. */
struct tok_stream {
    unsigned char hold[4];
    unsigned n_hold;
    bool started;
};
struct buf;
int tok_stream_push(const struct tok *t, struct tok_stream *s, int32_t id, struct buf *out);
int tok_stream_end(struct tok_stream *s, struct buf *out);

#endif
