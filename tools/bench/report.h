/* report: docs/quality.md and its charts, from the JSON of measured runs and nothing else.
 *
 * Each run of kvblend-bench quality becomes a section: a table by kind of line, a chart of loss by
 * ratio, its settings ("hkvd:check=2") against the strategy without them, line by line, and the
 * fastest method within a loss. A run with --no-sink is compared with the run of the same data that
 * has one. A run of calibrate becomes a section of what was looked at and chosen. Same input, same
 * bytes. Thread: main. */
#ifndef TOOLS_BENCH_REPORT_H
#define TOOLS_BENCH_REPORT_H

#include "base/err.h"

#include <jansson.h>
#include <stddef.h>

enum { REPORT_RUNS_MAX = 32 };

/* Writes path and, beside it, a chart for each run: its name without ".md", "-", the run's name and
 * ".svg". name: of each run, [n]; notes: Markdown that is put at the end, NULL = none. */
int report_write(const json_t *const *run, const char *const *name, size_t n, const char *notes,
                 const char *path, struct err *err);

#endif
