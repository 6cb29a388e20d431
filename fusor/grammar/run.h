/* run: the texts that are being made under a grammar, and the tokens that each may go on with.
 *
 * A run has one text for each choice of a request. gram_run_allowed() gives the set of tokens,
 * gram_run_take() moves on by one. What is allowed is exact: a token is in the set if and only if
 * the text with it is the beginning of one that meets the grammar, and there always is one, or
 * gram_run_take() has said that the text is complete.
 *
 * States that were met are kept, with their sets of tokens, within a fixed budget for all texts of
 * the run; beyond it they are forgotten and made again. Nothing is shared between runs.
 * Thread: one at a time. */
#ifndef FUSOR_GRAMMAR_RUN_H
#define FUSOR_GRAMMAR_RUN_H

#include <stddef.h>
#include <stdint.h>

struct gram;
struct gram_run;

int gram_run_create(const struct gram *g /* borrowed */, unsigned n_texts, struct gram_run **ret);
void gram_run_destroy(struct gram_run *r);
/* One bit for each token id, in words; valid until the next call for this run. -ENOMEM; -E2BIG: the
 * grammar is so ambiguous that its states are over the limits; -EINVAL: nothing is allowed, which
 * can be at the start of a text alone (a space that the tokenizer drops). */
int gram_run_allowed(struct gram_run *r, unsigned text, const uint64_t **ret);
/* 0: goes on; 1: nothing may follow but the end. -EINVAL: not allowed, nothing changes; else as
 * gram_run_allowed(). A token that ends a text: 1 where it is complete. */
int gram_run_take(struct gram_run *r, unsigned text, int32_t id);
/* The text begins anew, behind other text: a space that it begins with comes out. */
void gram_run_again(struct gram_run *r, unsigned text);

#endif
