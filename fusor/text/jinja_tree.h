/* jinja_tree: a template as tokens (jinja_lex.c) and as a tree (jinja_parse.c).
 *
 * A tree belongs to its template's arena and never changes; running it is jinja_run.c's.
 * Thread: any. */
#ifndef FUSOR_TEXT_JINJA_TREE_H
#define FUSOR_TEXT_JINJA_TREE_H

#include "base/mem.h"
#include "fusor/text/jinja.h"

enum {
    JJ_SOURCE_MAX = 512 << 10, /* chosen: the longest published templates have 20 KiB */
    JJ_TREE_DEPTH_MAX = 200,   /* chosen: four times the deepest published template */
};

/* ---- trees ---- */
struct jj_word;
struct jj_name {
    struct jj_name *next; /* of the same hash */
    size_t len;
    char s[];
};
enum jj_kind {
    JJ_CONST,
    JJ_NAME,
    JJ_LIST,   /* args; op: a tuple */
    JJ_DICT,   /* args: key, value, key, value … */
    JJ_ATTR,   /* a.name */
    JJ_ITEM,   /* a[b] */
    JJ_SLICE,  /* a[args[0]:args[1]:args[2]], NULL = not given */
    JJ_CALL,   /* a(args) */
    JJ_METHOD, /* a.name(args) */
    JJ_FILTER, /* a|word(args) */
    JJ_TEST,   /* a is word(args); op: not */
    JJ_UNARY,  /* op a */
    JJ_BINARY, /* a op b */
    JJ_CHAIN,  /* a op b op c: args, ops in their names' place */
    JJ_COND,   /* b if a else c; c NULL = undefined */
    /* statements, lists by `next` */
    JJ_DATA,
    JJ_PRINT,
    JJ_IF,    /* a: body, else other; other alone may be an elif */
    JJ_FOR,   /* target in a if b: body, else other */
    JJ_SET,   /* target = a; without a its body's text, through b, which names it "" */
    JJ_MACRO, /* name(args): body */
    JJ_WRAP,  /* body's text through a, which names it ""; without a the body as it is */
    JJ_BREAK,
    JJ_CONTINUE
};
enum jj_op {
    JJ_ADD,
    JJ_SUB,
    JJ_MUL,
    JJ_DIV,
    JJ_FLOORDIV,
    JJ_MOD,
    JJ_POW,
    JJ_CONCAT,
    JJ_AND,
    JJ_OR,
    JJ_EQ,
    JJ_NE,
    JJ_LT,
    JJ_LE,
    JJ_GT,
    JJ_GE,
    JJ_IN,
    JJ_NOT_IN,
    JJ_NOT,
    JJ_NEG,
    JJ_POS
};
struct jj_arg {
    const struct jj_name *name; /* NULL: by its place */
    struct jj_node *node;       /* NULL: not given */
    enum jj_op op;              /* of a chain */
};
struct jj_node {
    enum jj_kind kind;
    enum jj_op op;
    uint32_t line, depth, n_args;
    struct jj_node *a, *b, *c, *body, *other, *next, *target;
    struct jj_arg *args;
    const struct jj_name *name;
    const struct jj_word *word;
    struct jinja_val val;
};
struct jinja {
    struct arena arena;
    struct jj_name *names[256];
    struct jj_node *body;
    struct jj_node *strings; /* constants, by next */
};
const struct jj_name *jj_intern(struct jinja *t, const char *s, size_t len); /* NULL: no memory */
const struct jj_name *jj_known(const struct jinja *t, const char *s, size_t len); /* NULL: not */

/* ---- tokens ---- */
enum jj_tok_type {
    JJ_T_DATA,
    JJ_T_BLOCK,     /* {% */
    JJ_T_BLOCK_END, /* %} */
    JJ_T_VAR,       /* {{ */
    JJ_T_VAR_END,
    JJ_T_NAME,
    JJ_T_STR, /* unescaped */
    JJ_T_INT,
    JJ_T_FLOAT,
    JJ_T_OP, /* one or two characters */
    JJ_T_END
};
struct jj_tok {
    enum jj_tok_type type;
    uint32_t line;
    const char *p;
    size_t len;
};
/* All of a source, which has no carriage returns; the last is JJ_T_END. The texts are the source's
 * or the arena's. 0, or as jinja_open(). */
int jj_lex(struct arena *arena, const char *src, size_t len, struct jj_tok **ret, struct err *err);

#endif
