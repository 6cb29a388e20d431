/* dfa: sets of texts as automata over characters, for what a grammar alone cannot say: two
 * conditions at once (a pattern and a length), and "none of these" (keys that are not named).
 *
 * Made whole, so bounded (DFA_*_MAX, -ERANGE beyond); single conditions do not need them.
 * Immutable. Thread: the builder's. */
#ifndef FUSOR_GRAMMAR_DFA_H
#define FUSOR_GRAMMAR_DFA_H

#include "fusor/grammar/grammar.h"

enum { DFA_STATES_MAX = 1 << 12, DFA_EDGES_MAX = 1 << 16, DFA_PLACES_MAX = 1 << 14 };
struct dfa;
/* Of a node of characters, sequences, choices, repetitions and rules that do not recur; literals
 * have to be empty. Each 0, -ENOMEM, -ERANGE; -EINVAL a node of another kind. */
int dfa_of(struct gram_builder *b, gram_node n, struct dfa **ret); /* which it charges */
int dfa_of_lengths(uint32_t min, uint32_t max, struct dfa **ret);  /* characters; GRAM_NO_END */
int dfa_both(const struct dfa *x, const struct dfa *y, struct dfa **ret);
int dfa_others(const struct dfa *x, struct dfa **ret); /* the texts that are not of x */
bool dfa_takes(const struct dfa *x, const char *utf8, size_t len);
gram_node dfa_node(struct gram_builder *b, const struct dfa *x, enum gram_spelling how);
void dfa_free(struct dfa *x);

#endif
