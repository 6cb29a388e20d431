/* calibrate: lines to calibrate on, from whatever text there is.
 *
 * A data set as kvblend-bench quality reads them is taken as it is. Anything else is cut into
 * continuation lines: consecutive chunks of a text, and what follows them as the suffix that is
 * judged. With no file at all the project's own pages serve. Thread: any. */
#ifndef TOOLS_BENCH_CALIBRATE_H
#define TOOLS_BENCH_CALIBRATE_H

#include "base/err.h"

#include <jansson.h>
#include <stddef.h>

enum { CAL_CHUNKS = 4, CAL_CHUNK_BYTES = 700, CAL_SUFFIX_BYTES = 240, CAL_LINES_PER_TEXT = 3 };

/* path "": the project's pages. *ret: array of lines, the caller's. */
int calibrate_lines(const char *path, json_t **ret, struct err *err);
/* Appends at most `max` lines cut from the text, at white space; too short a text gives none. */
int calibrate_cut(const char *text, size_t len, size_t max, json_t *lines);

#endif
