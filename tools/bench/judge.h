/* judge: how far one run of a prompt is from the full prefill of the same prompt.
 *
 * judge_begin() makes a line's prompt, builds its chunks, measures their context sensitivity where
 * asked to, and runs the full prefill: its greedy answer and its logits are the reference. Then
 * judge_run() any number of methods, judge_end(). KL(full || method) is teacher-forced over the
 * first tokens of full's answer; a line with "judge": "suffix" is judged over its suffix instead,
 * tokens 2…. Thread: main. */
#ifndef TOOLS_BENCH_JUDGE_H
#define TOOLS_BENCH_JUDGE_H

#include "tools/bench/dataset.h"
#include "tools/bench/score.h"

struct buf;

enum { JUDGE_FORCED_TOKENS = 8 };

struct judge {
    struct bench *b;
    struct prompt_style style;
    unsigned max_new;    /* tokens of an answer */
    unsigned neighbours; /* that sensitivity is measured behind; 0: it is not measured */
    unsigned n_contexts, context_tokens; /* that chunks are built behind; 0: the sink alone */
    bool isolated;                       /* the encoding behind the sink counts, too */
};
struct judge_line {
    const json_t *line; /* borrowed */
    struct bench_prompt prompt;
    bool suffix;   /* judged over its suffix; no answer is generated */
    float *logits; /* [n_rows, V]: the rows of full that are judged */
    size_t n_rows;
    int32_t answer[JUDGE_FORCED_TOKENS];
    size_t n_answer;
};
struct verdict { /* NAN: nothing was generated, or the line does not say what is right */
    double kl_forced, kl_first; /* nats */
    double top1;                /* 1: the first token is full's */
    struct score score;
    double ttft_ms, spent_ms;  /* spent: by judge_generate() */
    double n_recomputed, cost; /* token-layers, as a share of full's */
};
extern const struct verdict verdict_none;

/* Line `at` of the data set; the neighbours are chunks of the lines that follow. */
int judge_begin(const struct judge *j, const json_t *lines, size_t at, struct judge_line *ret,
                struct verdict *ret_full, struct err *err);
/* Context sensitivity of its chunks, as judge_begin() has measured it, once more: for another
 * store. */
int judge_sense(const struct judge *j, const json_t *lines, size_t at, const struct judge_line *l,
                struct err *err);
int judge_run(const struct judge *j, const struct judge_line *l, const struct bench_run *run,
              struct verdict *ret);
/* A full prefill of any prompt and the greedy answer, appended to text. Time and tokens (as cost)
 * are added to v; ttft_ms becomes the time of its first token, everything before it included. */
int judge_generate(const struct judge *j, const struct bench_prompt *p, unsigned max_new,
                   struct buf *text, struct verdict *v);
void judge_end(struct judge_line *l);
/* Of a text that some other way of answering gave. */
void judge_text(const json_t *line, const char *answer, struct verdict *v);

#endif
