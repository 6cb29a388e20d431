/* vocab_int: the tries, for run.c. Thread: any. */
#ifndef FUSOR_GRAMMAR_VOCAB_INT_H
#define FUSOR_GRAMMAR_VOCAB_INT_H

#include "fusor/grammar/vocab.h"

/* A node of a trie in preorder: what its text ends with, how long it is, what lies behind it. */
struct trie_node {
    uint32_t end : 24; /* the first node that does not begin with this text */
    uint32_t byte : 8;
    uint32_t token : 24; /* VOCAB_NO_TOKEN: only longer ones have this text */
    uint32_t depth : 8;
};
enum { VOCAB_NO_TOKEN = 0xFFFFFF, VOCAB_NODES_MAX = 0xFFFFFF };
struct vocab_trie {
    struct trie_node *node;
    uint32_t n;
};
enum { VOCAB_SHORT = 16 }; /* chosen: nearly all tokens of prose are shorter */
struct gram_vocab {
    size_t n_words; /* of a set of tokens, of 64 bits */
    size_t n_tokens;
    struct vocab_trie prose, other;
    struct vocab_trie
        first;             /* tokens that begin with a space, without it: at the start of a text */
    uint32_t chars_max[2]; /* of tokens that are not prose: without bytes below 0x20; of all */
    int32_t *same;         /* [n_tokens] another token of the same text, or -1 */
    uint64_t *prose_upto; /* [VOCAB_SHORT, n_words] tokens of prose of at most so many characters */
    struct {
        uint32_t token, chars;
    } * prose_long; /* those of more, ascending */
    size_t n_prose_long;
    uint64_t *ends; /* [n_words] */
    char *bytes;    /* of all tokens */
    uint32_t *at;   /* [n_tokens + 1] */
    bool byte[256]; /* is a token of its own */
};

#endif
