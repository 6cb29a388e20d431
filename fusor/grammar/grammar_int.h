/* grammar_int: the inside of builders and of compiled grammars. Thread: as grammar.h. */
#ifndef FUSOR_GRAMMAR_GRAMMAR_INT_H
#define FUSOR_GRAMMAR_GRAMMAR_INT_H

#include "base/buf.h"
#include "base/mem.h"
#include "fusor/grammar/grammar.h"

enum node_kind {
    NODE_LIT,    /* a: offset in text, b: bytes */
    NODE_SET,    /* a: index of the set */
    NODE_SEQ,    /* a: first of kids, b: how many */
    NODE_ALT,    /* likewise */
    NODE_REPEAT, /* a: of what, b: min, c: max */
    NODE_RULE    /* a: index of the rule */
};
struct node {
    uint8_t kind;
    uint16_t nest;
    uint32_t a, b, c;
    uint32_t code; /* instructions that it takes, at most */
};
struct set { /* of characters: ascending ranges with gaps between them */
    uint32_t first, n;
    enum gram_spelling how;
};
struct rule {
    gram_node what; /* GRAM_NONE: not defined */
    const char *label;
};
struct gram_builder {
    struct buf node; /* of struct node; [0] is GRAM_NONE */
    struct buf kid;  /* of gram_node */
    struct buf text; /* of literals */
    struct buf set;  /* of struct set */
    struct buf range;
    struct buf rule; /* of struct rule */
    struct arena labels;
    uint32_t *set_slot; /* [2 * GRAM_SETS_MAX] index plus 1, by hash */
    size_t spent;       /* gram_spend() */
    int status;
};
/* Arrays in buffers. */
#define GRAM_ALL(buf, type) ((type *)(void *)(buf).data)
#define GRAM_AT(buf, type, i) (GRAM_ALL(buf, type)[i])
#define GRAM_COUNT(buf, type) ((buf).len / sizeof(type))

/* build.c: counts work that grows faster than what it makes. -ERANGE: all of it is more than
 * GRAM_WORK_MAX. */
int gram_spend(struct gram_builder *b, size_t work);

/* build.c: what was made since the mark is forgotten, and a failure with it, but for -ENOMEM; no
 * older rule may have been defined meanwhile. What was spent stays so. */
struct gram_mark {
    size_t node, kid, text, set, range, rule; /* bytes */
    int status;
};
struct gram_mark gram_mark(const struct gram_builder *b);
void gram_rewind(struct gram_builder *b, const struct gram_mark *to);
int gram_builder_why(const struct gram_builder *b, struct err *err); /* its status, in words */

/* build.c: appends all characters that are in none of the ranges; these are put in order. */
int gram_other_ranges(struct gram_range *r, size_t n, struct buf *out);

/* charset.c: a set as an automaton over bytes. Acyclic: each text of it is one character. Edges of
 * state s are edge[first[s] .. first[s + 1]), ascending. */
struct byte_edge {
    uint8_t lo, hi;
    uint16_t to; /* CHARSET_END: a character is complete */
};
enum { CHARSET_END = UINT16_MAX, CHARSET_STATES_MAX = 4095 };
struct charset {
    struct byte_edge *edge;
    uint32_t *first; /* [n + 1] */
    uint32_t n;      /* states; 0: no character can be written */
};
/* `byte`: which bytes there are. 0, -ENOMEM, -ERANGE: too many states. */
int charset_create(const struct gram_range *r, size_t n, enum gram_spelling how,
                   const bool byte[256], struct charset *ret);
void charset_fini(struct charset *c);

/* A compiled grammar is a program whose threads of control each have a stack of return addresses.
 */
enum op { OP_END, OP_BYTE, OP_CHAR, OP_SPLIT, OP_JUMP, OP_CALL, OP_RETURN };
struct instr {
    uint8_t op;
    bool chain; /* CHAR: two instructions on the same stands, with room for one less */
    uint32_t a; /* byte; index of the set; a target */
    uint32_t b; /* SPLIT: the other target. CHAR: room: as many characters of its set may follow
                   each other from here on (GRAM_NO_END: any number) */
};
struct gram_set {   /* its automaton over classes of bytes */
    uint16_t *next; /* [n_states, n_classes]: state, SET_DEAD, CHARSET_END */
    bool prose;     /* has every character of prose (vocab.h), spelt as itself */
    bool controls;  /* some character of it has a byte below 0x20 */
};
enum { SET_DEAD = CHARSET_END - 1 };
enum { NEVER = UINT16_MAX };
struct gram {
    struct instr *code;
    uint32_t n_code, start;
    uint16_t *need; /* [n_code] rules that must be entered within each other to get to the end of
                       this one, at least; NEVER: it has none */
    struct gram_set *set;
    uint32_t n_sets;
    uint8_t class_of[256];
    uint8_t byte_of[256]; /* [n_classes] one of each */
    unsigned n_classes;
    const struct gram_vocab *vocab;
};

/* check.c: fills g->need; -EINVAL, -ENOMEM with the reason. label_of [n_code] names what begins
 * there (NULL: nothing). */
int gram_check(struct gram *g, const char *const *label_of, struct err *err);

#endif
