/* opt_int: the rows behind struct opts, for the files of opt and for a reader of files (struct
 * opt_args). Running out of memory and problems are remembered in struct opts, so that readers go
 * on and report all. Thread: one while reading. */
#ifndef BASE_OPT_INT_H
#define BASE_OPT_INT_H

#include "base/buf.h"
#include "base/opt.h"

enum { OPT_NAME_BYTES = 128 };

struct opt_row {
    const struct opt_def *def;
    char *flag;
    char *key; /* NULL: not in the file */
    char **texts;
    size_t n;
    enum opt_source source;
};
struct opts {
    struct opt_row *rows;
    size_t n_rows;
    size_t n_positionals; /* arguments taken so far */
    struct buf *problems;
    unsigned n_problems;
    bool no_memory;
    struct buf named;   /* " NAME " of each variable that the file refers to */
    struct buf exposed; /* opts_exposed() */
    const char *dumped; /* --dump-options was met: the prefix of variables */
};
struct opt_place {
    enum opt_source source;
    const char *name; /* of the file or the variable */
    size_t line;
};

/* Appends "PLACE: …" and a newline. */
void opt_problem(struct opts *o, const struct opt_place *at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The problem of a flag ("--name") or key that is not in the table. text: a key's value, if it is
 * one text. */
void opt_unknown(struct opts *o, const struct opt_place *at, const char *name, const char *text);
/* Checks the text and sets or appends it; ignored where a stronger source has spoken. */
void opt_set(struct opts *o, struct opt_row *row, const char *text, const struct opt_place *at);
/* The first n characters name the same option: case, dashes, underscores and dots are alike. */
bool opt_same_name(const char *a, const char *b, size_t n);
bool opt_in_values(const char *values, const char *word); /* "a|b" has it */
struct opt_row *opt_of_flag(const struct opts *o, const char *name);
struct opt_row *opt_of_key(const struct opts *o, const char *key);
/* "PREFIX_RAM_POLICY"; false: the option has none. */
bool opt_variable(const struct opt_row *row, const char *prefix, char ret[OPT_NAME_BYTES]);

#endif
