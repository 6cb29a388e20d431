/* tok_int: the inside of a tokenizer, and the steps of encoding. Nothing of it changes once
 * tok_load.h has made it. Thread: any. */
#ifndef FUSOR_TEXT_TOK_INT_H
#define FUSOR_TEXT_TOK_INT_H

#include "base/buf.h"
#include "fusor/text/tok.h"

enum tok_kind { TOK_BYTE_LEVEL, TOK_SPM, TOK_WORDPIECE, TOK_UNIGRAM };
enum tok_pre { /* how text is cut before merging; names in tok_scan.c */
               TOK_PRE_GPT2,
               TOK_PRE_DIGITS_GPT2, /* every digit alone, then GPT-2's rule (SmolLM, StarCoder) */
               TOK_PRE_LLAMA3,
               TOK_PRE_QWEN2,
               TOK_PRE_TEKKEN,
               TOK_PRE_SPM, /* before each run of spaces: exact when no token spans such a place */
               TOK_PRE_SPM_EACH, /* before each single space (Metaspace with split) */
               TOK_PRE_WHOLE,
               TOK_PRE_CL100K, /* Llama 3's rule in GGUF files that leave its defaults out */
               TOK_PRE_O200K
};
enum tok_type { /* as in GGUF */
                TOK_T_NORMAL = 1,
                TOK_T_UNKNOWN,
                TOK_T_CONTROL,
                TOK_T_USER,
                TOK_T_UNUSED,
                TOK_T_BYTE,
                TOK_T_CHAR /* ours: a character that only exists as part of longer tokens; id >=
                              n_vocab */
};
enum tok_prefix { /* the dummy space before a fragment of text */
                  TOK_PREFIX_NONE,
                  TOK_PREFIX_FIRST, /* only where the fragment starts the input */
                  TOK_PREFIX_ALWAYS /* every fragment between added tokens */
};
struct tok_entry {
    uint32_t off, len; /* raw bytes in tok.bytes */
    uint8_t type;
    bool whole; /* this text alone merges into exactly this token */
    bool eog;
    bool lstrip, rstrip; /* added token: eats the white space before, after it */
};
struct tok_slot { /* text → id */
    uint32_t tag;
    int32_t id; /* -1 = free */
};
struct tok_pair { /* (left, right) → merged */
    uint64_t key; /* left << 32 | right; UINT64_MAX = free */
    uint32_t rank;
    int32_t id;
};
struct tok_bert { /* TOK_WORDPIECE: how text is made plain, and words are cut */
    bool clean, ideographs, strip, lower; /* BertNormalizer's settings */
    uint32_t word_max;                    /* letters; a longer word is unknown */
    char prefix[16];                      /* of a token that continues a word: "##" */
};
struct tok_charsmap;
struct tok_unigram {      /* TOK_UNIGRAM; its trie is in tok.pair: (node, byte) → node */
    double *score, least; /* [n_vocab]; the least of the pieces */
    int32_t *token;       /* [n_nodes] that ends at a node, -1 = none */
    size_t n_nodes;
    struct tok_charsmap *map; /* or NULL */
    bool strips;              /* white space at the end of a text goes */
    bool joins_spaces;        /* a run of spaces is one */
    bool split;               /* words are split at white space, and each has U+2581 before it */
};
struct tok {
    enum tok_kind kind;
    enum tok_pre pre;
    enum tok_prefix prefix;
    bool prefix_unless_space; /* no dummy space where the text starts with one */
    bool ignore_merges;       /* a whole pre-token that is in the vocabulary wins */
    bool nfc;
    bool add_bos, add_eos;
    int32_t bos, bos_next, eos, unk; /* bos_next: follows bos (GLM: [gMASK] <sop>) */

    size_t n_vocab, n_all; /* n_all: with TOK_T_CHAR entries */
    struct tok_entry *e;   /* [n_all] */
    struct buf bytes;
    uint32_t len_max;      /* longest mergeable token */
    struct tok_slot *slot; /* [slot_mask + 1] */
    uint32_t slot_mask;
    struct tok_pair *pair; /* [pair_mask + 1] */
    uint32_t pair_mask;
    size_t n_pair;
    int32_t byte_id[256]; /* TOK_BYTE_LEVEL: the byte's symbol; TOK_SPM: its fallback token; -1 */

    int32_t ascii_id[128]; /* TOK_SPM: the symbol of an ASCII character; -1 = none */

    int32_t *added;      /* control and user-defined tokens by first byte, longest first */
    uint32_t first[257]; /* added[first[b] .. first[b + 1]) start with byte b */
    bool user_byte[256]; /* some user-defined token starts with this byte */
    bool has_user;
    bool has_frame;
    struct tok_frame frame; /* of a pair */
    struct tok_bert bert;
    struct tok_unigram unigram;
    char *chat_template; /* or NULL */
    uint64_t fingerprint[2];
};

/* tok_bpe.c: the merging of one word. */
int32_t tok_text_id(const struct tok *t, const void *text, size_t len);  /* -1 = none */
int32_t tok_pair_find(const struct tok *t, int32_t left, int32_t right); /* -1 = none */
static inline const uint8_t *tok_raw(const struct tok *t, int32_t id)
{
    return (const uint8_t *)t->bytes.data + t->e[id].off;
}
struct tok_work { /* scratch of one encode call; init with {0} */
    struct tok_sym *sym;
    struct tok_cand *heap;
    size_t cap_sym, cap_heap, n_heap;
    struct tok_memo *memo; /* words merged before in this call; NULL = not worth it, or no memory */
    struct tok_ids *out;
};
void tok_work_memo(struct tok_work *w, size_t n_bytes); /* call before a text of n_bytes */
/* Append the tokens of one pre-token; `at` is its offset. 0 or -ENOMEM. */
int tok_word(const struct tok *t, struct tok_work *w, const uint8_t *s, size_t len, size_t at);
void tok_work_fini(struct tok_work *w);
int tok_push(struct tok_ids *out, int32_t id, size_t begin, size_t end);

/* tok_wordpiece.c: a stretch of text of a TOK_WORDPIECE; `base` is its offset. 0 or -ENOMEM. */
int tok_wordpiece(const struct tok *t, const uint8_t *s, size_t len, size_t base,
                  struct tok_ids *out);
/* tok_unigram.c: the same of a TOK_UNIGRAM. */
int tok_unigram(const struct tok *t, const uint8_t *s, size_t len, size_t base,
                struct tok_ids *out);
/* tok_scan.c: the end of the pre-token that starts at p < n. */
size_t tok_scan(enum tok_pre pre, const uint8_t *s, size_t n, size_t p);
/* tok_norm.c: the text as the model wants it, and the way back to source offsets. */
struct tok_edit { /* [dst, dst + dst_len) of the new text stands for [src, src + src_len) */
    uint32_t dst, dst_len, src, src_len;
};
struct tok_norm { /* init with {0} */
    struct buf text;
    struct tok_edit *edit;
    size_t n_edit, cap_edit;
};
/* 1: n->text holds the changed text; 0: use the input as it is; -ENOMEM. */
int tok_normalise(const struct tok *t, const uint8_t *s, size_t len, bool prefix,
                  struct tok_norm *n);
int tok_norm_edit(struct tok_norm *n, size_t dst, size_t dst_len, size_t src, size_t src_len);
void tok_norm_offsets(const struct tok_norm *n, size_t base, struct tok_ids *ids, size_t from);
void tok_norm_fini(struct tok_norm *n);

#endif
