/* judge: how far one run of a prompt is from the full prefill of the same prompt.
 *
 * judge_begin() makes a line's prompt and runs the full prefill: its greedy answer and its logits
 * are the reference. It builds the chunks behind the sink and runs plain reuse of these records,
 * the baseline of every share; then the records are merged with encodings behind chunks of other
 * lines. judge_run() any number of methods, judge_end(). KL(full || method) is teacher-forced over
 * the first tokens of full's answer; a line with "judge": "suffix" is judged over its suffix
 * instead, tokens 2…. Of a line's "candidates" a run chooses the one whose tokens are likeliest
 * behind the prompt, by their mean log-probability. Thread: main. */
#ifndef TOOLS_BENCH_JUDGE_H
#define TOOLS_BENCH_JUDGE_H

#include "tools/bench/dataset.h"
#include "tools/bench/score.h"

struct buf;

enum { JUDGE_FORCED_TOKENS = 8 };

struct judge {
    struct bench *b;
    unsigned max_new;                    /* tokens of an answer */
    unsigned n_contexts, context_tokens; /* that records are merged with; 0: none */
};
struct judge_line {
    const json_t *line; /* borrowed */
    struct bench_prompt prompt;
    bool suffix;   /* judged over its suffix; no answer is generated */
    float *logits; /* [n_rows, V]: the rows of full that are judged; NULL: full has not run yet */
    size_t n_rows;
    int32_t answer[JUDGE_FORCED_TOKENS];
    size_t n_answer;
    int choice; /* of its candidates, full's; -1: it has none */
};
struct verdict { /* NAN: nothing ran or was generated, or the line does not say what is right */
    double kl_forced;   /* nats */
    double top1;        /* 1: the first token is full's */
    double agreement;   /* share of the judged tokens whose likeliest is full's */
    double same_choice; /* 1: of the line's candidates the likeliest is full's */
    struct score score;
    double ttft_ms;
    double n_recomputed, cost; /* token-layers, as a share of full's */
};
extern const struct verdict verdict_none;

/* What the options say of contexts, else the profile; none for a set of one line. */
#define JUDGE_OPTIONS "contexts context-tokens isolated "
void judge_contexts(struct judge *j, const struct opts *opts, size_t n_lines);
/* Line `at` of the data set; contexts are chunks of the nearest lines. ret_first: of full, and
 * of reuse from records built behind the sink alone. */
int judge_begin(const struct judge *j, const json_t *lines, size_t at, struct judge_line *ret,
                struct verdict ret_first[2], struct err *err);
int judge_run(const struct judge *j, struct judge_line *l, const struct bench_run *run,
              struct verdict *ret);
void judge_end(struct judge_line *l);

/* For other ways of answering: a greedy answer's text behind a prefill (its first tokens become l's
 * unless l is NULL), and the score of a text. */
int judge_greedy(const struct judge *j, struct bench_result *res, unsigned max_new,
                 struct buf *text, struct judge_line *l);
void judge_text(const json_t *line, const char *answer, struct verdict *v);

#endif
