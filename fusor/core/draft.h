/* draft: what a sequence will probably say next, because it has said it before.
 *
 * Answers over documents quote them. The last tokens of prompt and answer are looked up in what
 * stands before them, and what followed there is guessed to follow here (prompt look-up decoding,
 * Saxena 2023). Guesses are checked, so they never change an answer, only how many tokens a decode
 * step brings; how many are worth their rows follows from how good the last ones were, also of
 * those that were not tried. Pure. Thread: one per draft. */
#ifndef FUSOR_CORE_DRAFT_H
#define FUSOR_CORE_DRAFT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FUS_DRAFT_MOST = 7 }; /* chosen: tokens of one guess; more seldom all come true */
struct fus_draft;
/* For a sequence of at most `cap` tokens, of which there is none yet; ids are below 2^31. */
int fus_draft_create(size_t cap, struct fus_draft **ret);
void fus_draft_destroy(struct fus_draft *d); /* accepts NULL */
/* The next token of the sequence, of its prompt or (`said`) said by the model: guesses of said ones
 * are judged. Tokens past `cap` are passed over. */
void fus_draft_see(struct fus_draft *d, int32_t tok, bool said);
/* What follows probably, as far as it is worth trying, `most` at most; 0: nothing is. */
size_t fus_draft_next(const struct fus_draft *d, size_t most, int32_t ret[FUS_DRAFT_MOST]);

#endif
