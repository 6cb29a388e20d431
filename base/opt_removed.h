/* opt_removed: options and values that are gone, with what there is in their place.
 *
 * One table for all programs: an old command line, environment or file gets a sentence, never
 * silence and never "did you mean". Whoever removes an option or one of its values adds a line.
 * Asked only about names and values that are not known, so that a program may still have an option
 * that another one has lost. Thread: any; pure. */
#ifndef BASE_OPT_REMOVED_H
#define BASE_OPT_REMOVED_H

#include <stdbool.h>
#include <stddef.h>

/* A clause for behind "was removed; ": what to use instead. NULL: it never was an option. name: a
 * flag, a file's key or a variable less its prefix ("map-tokens", "strategy.map_tokens",
 * "MAP_TOKENS"). value NULL: the whole option was removed; else this value of it was. */
const char *opt_removed(const char *name, const char *value);
/* The line of a file that takes the place of "key: text", in the same section; false: the value
 * alone does not say it, or it is longer than `size`. */
bool opt_removed_line(const char *key, const char *text, char *ret, size_t size);
/* A file's section that held removed keys: "strategy". */
bool opt_removed_section(const char *name);

#endif
