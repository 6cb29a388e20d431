/* gbnf: grammars in llama.cpp's notation, which vLLM's guided_grammar takes as well.
 *
 * `name ::= …` a line, `root` is where texts begin; "literals" and [sets] with the escapes \n \r \t
 * \\ \" \[ \] \xHH \uHHHH \UHHHHHHHH, ".", groups, "|", * + ? {m} {m,} {m,n}, # comments. Tokens
 * (<[id]>) are refused. Rules that begin with themselves are refused by gram_compile(), by name.
 * Thread: the builder's. */
#ifndef FUSOR_GRAMMAR_GBNF_H
#define FUSOR_GRAMMAR_GBNF_H

#include "fusor/grammar/grammar.h"

enum { GBNF_BYTES_MAX = 1 << 18, GBNF_RULES_MAX = 1 << 12, GBNF_NEST_MAX = 64 };
/* 0; -EINVAL, -ENOTSUP, -ERANGE with reason and line in *err. */
int gram_gbnf(struct gram_builder *b, const char *text, size_t len, gram_node *ret,
              struct err *err);

#endif
