/* opt: options from one table, read from flags, environment, a YAML file and defaults.
 *
 * A program has one static array of struct opt_def, ended by {0}; it is the parser, the bounds, the
 * help text and the list of known keys at once. Precedence: flag > environment > file > default.
 * Life cycle: opts_create() → opts_parse_argv() / opts_parse_env() / opts_parse_file() in any order
 * → opt_str()/opt_int()/… → opts_destroy(). A name is written with dashes
 * ("cache.ram-bytes" is also fine); dashes, underscores and case make no difference in keys:
 *   flag         --listen X, --listen=X, --no-reuse (bool), -h is --help
 *   environment  KVBLEND_LISTEN; dots and dashes become underscores
 *   file         nested mappings are joined by dots: "gateway: {listen: X}" is "gateway.listen";
 *                a sequence gives a repeatable option its values
 * A list given by a stronger source replaces the weaker one's; environment lists are split at
 * commas. Errors name the source and the key ("flag --lisen: unknown option, did you mean
 * --listen?"). Reading a name that is not in the table, or with the wrong type, is a programmer
 * error (ASSERT). Not for: live reload (make a new struct opts and compare). Thread: one while
 * parsing; reading afterwards from any. */
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
struct opt_def {
    const char *name;
    enum opt_type type;
    const char *dflt;   /* text as a user would write it; NULL = none ("" / 0 / false) */
    double min, max;    /* of the value; both 0 = unbounded. For OPT_STR: bytes */
    const char *values; /* OPT_ENUM: "auto|f32|bf16" */
    const char *help;   /* one sentence; NULL hides it from --help */
    bool repeatable;    /* a list: see opt_n() */
    bool positional;    /* also taken from arguments without a dash, in the order of the table */
};
enum opt_source { OPT_UNSET, OPT_DEFAULT, OPT_FILE, OPT_ENV, OPT_FLAG };

struct opts;
/* defs is borrowed for the life of the object. The defaults must parse (ASSERT). */
int opts_create(const struct opt_def *defs, struct opts **ret);
void opts_destroy(struct opts *o);

/* 0; 1 when --help or -h was met (nothing else is reported then); <0 with a sentence.
 * argv[0] is skipped. "--" ends the flags. */
int opts_parse_argv(struct opts *o, int argc, char **argv, struct err *err);
/* After the parsing: overwrites the values of these flags (the list ends with NULL), so that who
 * lists processes does not read them. Of URLs only the user and password, if there are any. Who
 * parses argv again needs a copy. */
void opts_hide_argv(int argc, char **argv, const char *const *names);
/* Reads PREFIX_NAME variables ("KVBLEND" → KVBLEND_LISTEN); variables that match no option are left
 * alone. */
int opts_parse_env(struct opts *o, const char *prefix, struct err *err);
/* Those that look like ours and match no option, mostly typing errors: "NAME", "NAME; expected one
 * like NAME" or "NAME; it was removed; …" (opt_removed.h), a line each, appended. envp:
 * "NAME=value", ended by NULL. */
int opts_unknown_env(const struct opts *o, const char *prefix, char *const *envp, struct buf *out);
/* A YAML file; unknown keys are errors that name file, line and key. */
int opts_parse_file(struct opts *o, const char *path, struct err *err);
int opts_parse_yaml(struct opts *o, const char *text, size_t len, const char *file_name,
                    struct err *err);
/* Set one value as `source` would; what the parsers use, for programs with sources of their own. */
int opts_set(struct opts *o, enum opt_source source, const char *name, const char *value,
             struct err *err);
/* Typing errors between two names, for suggestions; SIZE_MAX: a name is too long to compare. */
size_t opt_distance(const char *a, const char *b);
/* "Usage: PROGRAM …" and the table. */
int opts_help(const struct opts *o, const char *program, const char *about, struct buf *out);
/* The effective values as YAML with their sources as comments. */
int opts_dump(const struct opts *o, struct buf *out);

/* ---- reading; borrowed strings live as long as o ---- */
const char *opt_str(const struct opts *o, const char *name); /* "" when unset; OPT_STR, OPT_ENUM */
bool opt_bool(const struct opts *o, const char *name);
int64_t opt_int(const struct opts *o, const char *name);
double opt_double(const struct opts *o, const char *name); /* also of OPT_INT */
uint64_t opt_size(const struct opts *o, const char *name);
uint64_t opt_duration_ms(const struct opts *o, const char *name);
enum opt_source opt_source(const struct opts *o,
                           const char *name);           /* OPT_UNSET: not given at all */
bool opt_given(const struct opts *o, const char *name); /* by file, environment or flag */
size_t opt_n(const struct opts *o, const char *name);   /* number of values of a list */
const char *opt_str_at(const struct opts *o, const char *name, size_t i); /* raw text of one */

/* ---- parsing of single values ---- */
/* "512MiB", "4GiB", "64K", "1.5G", "123"; K M G T with or without i and B are powers of 1024.
 * 0, -EINVAL, -ERANGE. */
int opt_parse_size(const char *text, uint64_t *ret_bytes);
int opt_parse_duration_ms(const char *text, uint64_t *ret_ms);
int opt_parse_int(const char *text, int64_t *ret);
int opt_parse_double(const char *text, double *ret);
int opt_parse_bool(const char *text, bool *ret);

#endif
