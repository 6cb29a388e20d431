/* jsonskip: the inner loops of jsonscan, many bytes at a time where the CPU can (AVX2).
 *
 * Both say yes only to what is certainly right and leave every doubt, and every error message, to
 * the scanner's own loop; callers get the same answers on any CPU. Not for: use outside base.
 * Thread: any. */
#ifndef BASE_JSONSKIP_H
#define BASE_JSONSKIP_H

#include <stdbool.h>
#include <stddef.h>

/* Is the text valid UTF-8? False also means: not known. */
bool json_utf8_valid(const char *text, size_t len);

/* p is inside of a string: the first byte from it on that is not certainly a part of it. That is
 * the closing quote, an error, an escape or a character that needs a closer look, or `end`.
 * utf8: the text is known to be valid. */
const char *json_skip_string(const char *p, const char *end, bool utf8);

/* p is inside of a string: its closing quote, or `end`. Only quotes and backslashes count. */
const char *json_string_end(const char *p, const char *end);

#endif
