/* opt_int: what opt.c lends to opt_hide.c, opt_removed.c and opt_yaml.c, which alone include it.
 * Thread: one while parsing. */
#ifndef BASE_OPT_INT_H
#define BASE_OPT_INT_H

#include "base/opt.h"

/* Set the option `key` from a file; `where` begins the sentence of an error. */
int opts_set_file_value(struct opts *o, const char *key, const char *text, bool in_list,
                        const char *where, struct err *err);
/* The first n characters name the same option: case, dashes, underscores and dots are alike. */
bool opt_same_name(const char *a, const char *b, size_t n);

#endif
