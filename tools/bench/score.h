/* score: how close an answer is to the expected ones, as the QA and summary literature does it.
 *
 * Text is normalised as for SQuAD: lower case, ASCII punctuation and the articles a, an, the
 * removed, white space folded; values 0…1.
 * Thread: any. */
#ifndef TOOLS_BENCH_SCORE_H
#define TOOLS_BENCH_SCORE_H

struct score {
    double exact_match, f1, rouge_l;
};
/* -ENOMEM or 0. */
int score_answer(const char *answer, const char *expected, struct score *ret);

#endif
