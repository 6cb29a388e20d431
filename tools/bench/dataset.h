/* dataset: the test lines of kvblend-bench quality and the prompts made of them.
 *
 * Reads JSONL, one object a line: {"preamble", "chunks": […], "question", "suffix", "answer": "…"
 * or […], "candidates", "kind", "judge"}. What does not begin with an object, and every {"text"} of
 * a line, is text that is cut into continuation lines: consecutive chunks of it, and what follows
 * them as the suffix that is judged. Thread: any. */
#ifndef TOOLS_BENCH_DATASET_H
#define TOOLS_BENCH_DATASET_H

#include "tools/bench/bench.h"

enum { CUT_CHUNKS = 4, CUT_CHUNK_BYTES = 700, CUT_SUFFIX_BYTES = 240, CUT_LINES_MAX = 3 };

/* Path of a file or folder of ours: installed in share/kvblend beside this program's bin, else that
 * of the source tree, which may be gone. 0 or -ENOMEM. */
int dataset_sample_path(const char *installed, const char *in_tree, struct buf *ret);
/* *ret_lines: array of objects in the first form, the caller's. */
int dataset_open(const char *path, json_t **ret_lines, struct err *err);
/* Appends at most `max` lines cut from the text, at white space; too short a text gives none. */
int dataset_cut(const char *text, size_t len, size_t max, json_t *lines);

/* The prompt of a line: preamble, chunks and question as a user message in the model's chat
 * template. With "suffix": sink token, preamble, chunks and suffix just as they are, no template.
 * `after` follows all of it. -EINVAL with a sentence for a line that lacks what it needs. */
int dataset_prompt(const struct bench *b, const json_t *line, const char *after,
                   struct bench_prompt *ret, struct err *err);

#endif
