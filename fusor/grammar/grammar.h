/* grammar: what a text may be, as a context-free grammar over bytes, compiled for run.h.
 *
 * A builder makes nodes (a literal, a character of a set, a sequence, a choice, a repetition, a
 * rule), and nodes make grammars: front ends (schema.h, regex.h, gbnf.h, or a caller with texts to
 * put around theirs) share one builder, so that what each returns can stand in the other's. The
 * result is compiled once, for one vocabulary, and never changes.
 *
 * Life: gram_builder_create() → nodes → gram_compile() → gram_builder_destroy() → gram_run_create()
 * … → gram_destroy(). A builder remembers its first failure, and all nodes after it are
 * GRAM_NONE: front ends build on and gram_compile() reports it. All sizes are bounded
 * (GRAM_*_MAX), time by them. Not for: matching texts that are there already.
 * Thread: a builder belongs to one; a compiled grammar is immutable, any. */
#ifndef FUSOR_GRAMMAR_GRAMMAR_H
#define FUSOR_GRAMMAR_GRAMMAR_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Chosen: far above what people write, and a compile at the limits takes some tens of ms. */
enum {
    GRAM_CODE_MAX = 1 << 18, /* instructions of a compiled grammar */
    GRAM_NODES_MAX = 1 << 18,
    GRAM_NEST_MAX = 400,     /* nodes within nodes, rules not counted */
    GRAM_DEPTH_MAX = 400,    /* rules within rules while a text is made: nesting of what it says */
    GRAM_SETS_MAX = 1 << 12, /* different sets of characters */
    GRAM_SET_RANGES_MAX = 1 << 16, /* of all sets together */
    GRAM_WORK_MAX = 1 << 23, /* comparisons of words and values, states of automata: what schemas
                                take to read, all of a builder together; chosen: 0.2 s */
};
enum { GRAM_CHAR_MAX = 0x10FFFF, GRAM_NO_END = UINT32_MAX };

struct gram_builder;
struct gram;
struct gram_vocab;
typedef uint32_t gram_node; /* of its builder */
enum { GRAM_NONE = 0 };     /* what a failed builder returns */

/* How a character comes out: as UTF-8, or as it is spelt within a JSON string: itself, or escaped
 * where it must be, or may be by custom (non-ASCII characters, "/"). */
enum gram_spelling { GRAM_PLAIN, GRAM_JSON };
struct gram_range {
    uint32_t lo, hi; /* code points, both included */
};

int gram_builder_create(struct gram_builder **ret);
void gram_builder_destroy(struct gram_builder *b);
int gram_builder_status(const struct gram_builder *b); /* 0, -ENOMEM, -ERANGE: a limit */
/* A caller's reason to stop; the first one counts. */
void gram_builder_fail(struct gram_builder *b, int code);

gram_node gram_lit(struct gram_builder *b, const void *bytes, size_t len); /* len 0: nothing */
gram_node gram_str(struct gram_builder *b, const char *s);
/* One character of the union of the ranges; surrogates are none. No range: what cannot be met. */
gram_node gram_chars(struct gram_builder *b, const struct gram_range *r, size_t n,
                     enum gram_spelling how);
gram_node gram_seq(struct gram_builder *b, const gram_node *part, size_t n);
gram_node gram_alt(struct gram_builder *b, const gram_node *part, size_t n); /* n 0: as above */
gram_node gram_repeat(struct gram_builder *b, gram_node what, uint32_t min, uint32_t max);
struct gram_text {
    const char *p;
    size_t len;
};
/* One of several texts, their common beginnings shared. */
gram_node gram_texts(struct gram_builder *b, const struct gram_text *text, size_t n);
#define GRAM_SEQ(b, ...)                                                                           \
    gram_seq(b, (const gram_node[]){__VA_ARGS__},                                                  \
             sizeof((const gram_node[]){__VA_ARGS__}) / sizeof(gram_node))
#define GRAM_ALT(b, ...)                                                                           \
    gram_alt(b, (const gram_node[]){__VA_ARGS__},                                                  \
             sizeof((const gram_node[]){__VA_ARGS__}) / sizeof(gram_node))

/* A rule may stand in nodes before it is defined, its own included; one that never is, cannot be
 * met. `label` (copied; NULL: none) names it in errors. */
gram_node gram_rule(struct gram_builder *b, const char *label);
void gram_define(struct gram_builder *b, gram_node rule, gram_node what);

/* The grammar whose texts are those of `start`. The vocabulary must outlive it; bytes for which it
 * has no token of their own are left out of every choice, so that what is allowed can always be
 * ended. -EINVAL: no text meets it, or a rule begins with itself; -ERANGE: over a limit; -ENOMEM.
 */
int gram_compile(struct gram_builder *b, gram_node start, const struct gram_vocab *v,
                 struct gram **ret, struct err *err);
void gram_destroy(struct gram *g);
size_t gram_size(const struct gram *g); /* instructions */

#endif
