/* regex: regular expressions as grammars: the common ground of ECMA-262 (JSON Schema's `pattern`)
 * and Python's re.
 *
 * Literals, ".", sets, \d \w \s and their opposites (ASCII, \s with Unicode's spaces), groups,
 * alternatives, * + ? {m,n} (lazy ones match the same texts), "^" and "$" at the ends of the whole
 * or of its alternatives. Look-around, back-references, \b, \p{…} and flags are refused by name.
 * Thread: the builder's. */
#ifndef FUSOR_GRAMMAR_REGEX_H
#define FUSOR_GRAMMAR_REGEX_H

#include "fusor/grammar/grammar.h"

enum { REGEX_NEST_MAX = 64, REGEX_BYTES_MAX = 1 << 16 };
struct gram_regex {
    const char *text; /* UTF-8 */
    size_t len;
    enum gram_spelling how;
    bool anywhere; /* a match within the text is enough, as in `pattern`; else it is the text */
};
/* 0; -EINVAL, -ENOTSUP, -ERANGE with the reason and the place in *err. */
int gram_regex(struct gram_builder *b, const struct gram_regex *r, gram_node *ret, struct err *err);

#endif
