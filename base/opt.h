/* opt: options from one table, read from flags, environment, a file and defaults.
 *
 * A program has one static array of struct opt_def, ended by {0}; it is the parser, the bounds, the
 * help text and the list of known keys at once. Options of another program can be added as a
 * section of the file. Precedence: flag > environment > file > default. Life cycle: opts_create()
 * → opts_add_section() → opts_read() → opt_str()/opt_int()/… → opts_destroy(). A reload makes new
 * opts and compares (opts_restart_keys()). Dashes, underscores, dots and case make no difference in
 * names:
 *   flag         --listen X, --listen=X, --no-reuse (bool), --reuse off, -h is --help
 *   environment  PREFIX_LISTEN; dashes and dots are underscores; empty variables count as unset
 *   file         keys of the program's own reader (the gateway has one: gateway/process)
 * A list given by a stronger source replaces the weaker one's. Problems are collected, not only the
 * first one reported; each is a line that names its place ("file:line", flag or variable), the
 * option, what was expected and what was found. Reading a name that is not in the table, or with
 * the wrong type, is a programmer error (ASSERT). Thread: one while it is read; afterwards any. */
#ifndef BASE_OPT_H
#define BASE_OPT_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;

enum opt_type {
    OPT_STR,      /* any text */
    OPT_BOOL,     /* true/false, yes/no, on/off, 1/0 */
    OPT_INT,      /* decimal, int64 */
    OPT_DOUBLE,   /* finite */
    OPT_SIZE,     /* bytes: "512MiB", "4G" (binary), "1000" */
    OPT_DURATION, /* milliseconds: "250ms", "10s", "5m", "1h", "1d", "30" (seconds) */
    OPT_ENUM      /* one of `values` */
};
enum {                                 /* properties */
       OPT_LIVE = 1,                   /* a reload applies it; others need a restart */
       OPT_SECRET = 2,                 /* not in argv nor handed on there; file:PATH: PATH's line */
       OPT_NO_KEY = 4,                 /* not in the file */
       OPT_FLAG_ONLY = 8 | OPT_NO_KEY, /* nor a variable */
};
struct opt_def {
    const char *name; /* of its flag, with dashes */
    enum opt_type type;
    const char *dflt;   /* text as a user would write it; NULL = none ("" / 0 / false) */
    double min, max;    /* of the value; both 0 = unbounded. For OPT_STR: bytes */
    const char *values; /* OPT_ENUM: "auto|f32|bf16"; OPT_STR with a check: the form, PATH:SIZE */
    const char *help;   /* one sentence; NULL hides it from --help */
    bool repeatable;    /* a list: see opt_list() */
    bool positional;    /* also taken from arguments without a dash, in the order of the table */
    unsigned props;     /* OPT_LIVE … */
    const char *key;    /* in the file; NULL: the name */
    /* What separates the items of a list in a variable; NULL: commas. With ';' among them quotes
     * protect it, and fields of an item may be quoted. */
    const char *split;
    /* Items of a list may be mappings: {url: U, name: a b} is the text "U name="a b"". The keys of
     * the item's first word: "key|hash". */
    const char *head;
    bool (*check)(const char *text); /* OPT_STR: the text has the form of `values` */
};
struct opts;
enum opt_source { OPT_UNSET, OPT_DEFAULT, OPT_FILE, OPT_ENV, OPT_FLAG };
struct opt_args { /* where options are read from, again on a reload */
    int argc;
    char *const *argv;
    char *const *envp;  /* "NAME=value", ended by NULL */
    const char *prefix; /* "KVBLEND" of KVBLEND_LISTEN */
    /* Sets what the file holds that the option "config" names (opt_int.h); NULL: no files. */
    void (*read_file)(struct opts *o, const char *path);
};

/* defs is borrowed for the life of the object. The defaults must parse (ASSERT). */
int opts_create(const struct opt_def *defs, struct opts **ret);
/* More options: "x-y" is --x-y, or --SECTION-x-y where there is an --x-y, and SECTION.x_y. */
int opts_add_section(struct opts *o, const char *section, const struct opt_def *defs);
void opts_destroy(struct opts *o);
/* 0; 1 when --help, -h or --dump-options was met (nothing else was read then); -EINVAL with the
 * problems, a line each, appended; -ENOMEM. argv[0] is skipped; "--" ends the flags. */
int opts_read(struct opts *o, const struct opt_args *from, struct buf *problems);
/* Appends the variables that look like ours and match no option, mostly typing errors: "NAME is
 * unknown; expected one like NAME", a line each. One that was removed is a problem. */
void opts_unknown_env(const struct opts *o, const struct opt_args *from, struct buf *out);
/* After the reading: overwrites the values of secret flags, so that a list of processes does not
 * show them. Of URLs only the user and password, if there are any. A reload needs a copy. */
void opts_hide_argv(const struct opts *o, int argc, char **argv);
/* A warning, a line each, of secrets' files that others than their owners may read or write. */
const char *opts_exposed(struct opts *o);
bool opt_file_exposed(const char *path);
/* "Usage: PROGRAM …" and the table; where --dump-options was met, the table as JSON, which manual
 * pages and completions are made of (tools/describe.py). */
int opts_help(const struct opts *o, const char *program, const char *about, struct buf *out);
/* Keys that differ in b and are not live, comma separated, appended; their number. */
int opts_restart_keys(const struct opts *a, const struct opts *b, struct buf *out);
/* For suggestions: fewer typing errors between the two than *best, which is then lowered. */
bool opt_is_nearer(const char *name, const char *known, size_t *best);

/* ---- reading, by the name of the flag or the key; borrowed strings live as long as o ---- */
const char *opt_str(const struct opts *o, const char *name); /* "" when unset; OPT_STR, OPT_ENUM */
bool opt_bool(const struct opts *o, const char *name);
int64_t opt_int(const struct opts *o, const char *name);
double opt_double(const struct opts *o, const char *name); /* also of OPT_INT */
uint64_t opt_size(const struct opts *o, const char *name);
uint64_t opt_duration_ms(const struct opts *o, const char *name);
enum opt_source opt_source(const struct opts *o, const char *name);
bool opt_given(const struct opts *o, const char *name); /* by file, environment or flag */
char **opt_list(const struct opts *o, const char *name, size_t *ret_n); /* raw texts of any type */

/* ---- parsing of single values (opt_value.c) ---- */
/* "512MiB", "4GiB", "64K", "1.5G", "123"; K M G T with or without i and B are powers of 1024.
 * 0, -EINVAL, -ERANGE. */
int opt_parse_size(const char *text, uint64_t *ret_bytes);
int opt_parse_duration_ms(const char *text, uint64_t *ret_ms);
int opt_parse_int(const char *text, int64_t *ret);
int opt_parse_double(const char *text, double *ret);
int opt_parse_bool(const char *text, bool *ret);

#endif
