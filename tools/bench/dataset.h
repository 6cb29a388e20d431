/* dataset: the test lines of kvblend-bench quality and the prompts made of them.
 *
 * Reads JSONL, one object a line: {"preamble", "chunks": […], "question", "suffix", "answer": "…"
 * or […], "kind", "judge"}; or the MuSiQue sample of the CacheBlend paper, an array of {ctxs:
 * [{title, text}], question, answers}. Thread: any. */
#ifndef TOOLS_BENCH_DATASET_H
#define TOOLS_BENCH_DATASET_H

#include "tools/bench/bench.h"

struct dataset {
    json_t *lines; /* array of objects in the first form */
};
int dataset_open(const char *path, struct dataset *ret, struct err *err);
void dataset_close(struct dataset *d);

/* Placeholders {preamble}, {chunks}, {question}; \\n is a line break. */
struct prompt_style {
    const char *format;
    bool chat; /* the text becomes a user message in the model's chat template */
};
extern const char dataset_default_format[];

/* The prompt of a line. With "suffix": sink token, preamble, chunks and suffix just as they are, no
 * template. -EINVAL with a sentence for a line that lacks what it needs. */
int dataset_prompt(const struct bench *b, const json_t *line, const struct prompt_style *style,
                   struct bench_prompt *ret, struct err *err);
bool dataset_judges_suffix(const json_t *line);

#endif
