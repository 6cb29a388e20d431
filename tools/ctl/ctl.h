/* ctl: what the parts of kvblendctl share.
 *
 * A command asks the gateway's admin API (base/net/http's client, run until the answer is there),
 * and prints either the JSON as it came (--json) or a text for people. It keeps no state and reads
 * nothing but its arguments, the admin API and the files it is given. Exit codes: 0 done, 1 not
 * found or refused, 2 wrong usage, 3 no answer at the address. Thread: main. */
#ifndef TOOLS_CTL_CTL_H
#define TOOLS_CTL_CTL_H

#include "base/buf.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

enum { CTL_OK = 0, CTL_REFUSED = 1, CTL_USAGE = 2, CTL_UNREACHABLE = 3 };

struct ctl_args {
    const char *admin;             /* NULL: look in the usual places */
    const char *name_space, *tier; /* NULL: not given */
    const char *rounds;            /* NULL: not given */
    const char *sort, *limit;      /* NULL: not given */
    const char *worker;            /* NULL: not given */
    bool json, all, no_wait, chunks_only, yes, dry_run, watch, help;
    const char *operand; /* the first: ID, FILE or TIER */
    const char *second;  /* SIZE, POLICY, COUNT or NULL */
};

/* ---- commands: an array in the file that does them, ended by {0}; main.c finds them ---- */

/* Options of single commands; those without a bit go with every one. */
enum {
    CTL_TIER = 1,
    CTL_NAMESPACE = 2,
    CTL_ALL = 4,
    CTL_CHUNKS = 8,
    CTL_NO_WAIT = 16,
    CTL_YES = 32,
    CTL_DRY_RUN = 64,
    CTL_ROUNDS = 128,
    CTL_WATCH = 256,
    CTL_SORT = 512,
    CTL_LIMIT = 1024,
    CTL_ORDER = CTL_SORT | CTL_LIMIT, /* of `list` */
    CTL_ASKS = CTL_YES | CTL_DRY_RUN, /* of what drops records */
};
struct ctl_command {
    const char *name;
    const char *operands; /* the needed ones, then those in brackets, which may be left out */
    unsigned options;
    const char *help;
    const char *request;                  /* as for ctl_request() */
    const char *view;                     /* the answer's template */
    void (*prepare)(json_t *answer);      /* NULL; adds what the view needs and the API lacks */
    const char *list, *sorts;             /* CTL_ORDER: the answer's list; fields of its objects */
    int (*run)(const struct ctl_args *a); /* of commands that are more than that */
};
extern const struct ctl_command ctl_views[], ctl_records[], ctl_texts[], ctl_orders[], ctl_doctor[],
    ctl_live[], ctl_demo[];

/* ---- the documents of demo.c: etc/demo, embedded by the build ---- */

struct ctl_document {
    const char *file, *text;
};
extern const struct ctl_document ctl_documents[];
extern const size_t ctl_n_documents;

/* ---- client.c ---- */

struct ctl_reply {
    int status; /* HTTP */
    struct buf body;
    json_t *json;                                             /* NULL when the body is none */
    struct http_loop *loop;                                   /* while it is awaited, as the next */
    void (*on_data)(void *ctx, const char *data, size_t len); /* more of it came; may be NULL */
    void *ctx;
};
/* One request ("GET /admin/x"; after a failure of its buffer: none); 0, or CTL_UNREACHABLE with a
 * sentence. body: NULL is none. */
int ctl_ask(const struct ctl_args *a, struct buf *request, const struct buf *body,
            struct ctl_reply *ret);
/* Refuses all answers but 2xx with a sentence, and frees them: CTL_REFUSED. */
int ctl_check(const struct ctl_args *a, struct ctl_reply *r);
/* Both, without a body; '*' stands for the operand, and --chunks, --tier and --namespace are
 * parameters. */
int ctl_request(const struct ctl_args *a, const char *request, const char *operand,
                struct ctl_reply *ret);
/* Both, with a body, which is taken; NULL: an argument in it is not UTF-8. */
int ctl_order(const struct ctl_args *a, const char *request, json_t *body, struct ctl_reply *ret);
/* The same, of an answer that is read as it comes and need not be JSON. */
int ctl_stream(const struct ctl_args *a, const char *request, json_t *body,
               void (*on_data)(void *ctx, const char *data, size_t len), void *ctx,
               struct ctl_reply *ret);
/* Prints the answer as it came (--json) or by the view, and frees it. */
void ctl_show(const struct ctl_args *a, struct ctl_reply *r, const char *view);
void ctl_reply_fini(struct ctl_reply *r);
/* "?name=value", or with '&' behind another; nothing where the value is NULL. */
void ctl_parameter(struct buf *out, const char *name, const char *value);

/* ---- live.c ---- */

/* --sort and --limit, done to that list of the answer: numbers fall, texts rise, '-' in front turns
 * it round. 0, or CTL_USAGE with a sentence. */
int ctl_arrange(const struct ctl_args *a, const struct ctl_command *c, json_t *answer);
/* Draws it every two seconds until q is pressed; elsewhere than on a terminal once. */
int ctl_watch(const struct ctl_args *a, const struct ctl_command *c,
              int (*draw)(const struct ctl_args *a, const struct ctl_command *c));

/* ---- print.c ---- */

/* On a terminal that has them, unless NO_COLOR is set. */
bool ctl_has_colours(int fd);

/* A template is text with fields and choices, filled in from a JSON object:
 *   {a.b}        the value at that path ({} the object itself, {0} the first of an array): text as
 *                it is, a number without decimals
 *   {a:FORMAT}   .N: a number with N decimals, or a text's first N bytes; g or gN: as %g does;
 *                bytes: "12.3 MiB"; time: of seconds, "3 m 20 s"; of an object of numbers what is
 *                above 0, counts: "never 3, gate 1", or amounts: "3 never, 1 gate"; list or listN:
 *                of an array "a, b and 7 more" (N: the bytes that it may take)
 *   {a+b} {9*a}  numbers; an object of numbers counts as their sum
 *   [A|B|C]      the first whose conditions hold, which stand in front: {?a} is there, and neither
 *                null, false nor ""; {?a=text}; {?a>0}
 *   <a:T>        T for each of an array's elements, or once for an object; {#}: the how manieth
 * Lines with tabs are a table's; its columns are right-aligned where the first line has a '^'.
 * Control characters of values become blanks. */
void ctl_say(json_t *o, const char *view);
const char *ctl_str(const json_t *o, const char *key); /* "" when absent */
double ctl_num(const json_t *o, const char *key);      /* 0 when absent */
/* As one line of JSON (--json), else by the view. */
void ctl_print(const struct ctl_args *a, json_t *answer, const char *view);
/* Says why a command failed, on stderr and for --json as {"error":{"message"}} on stdout, too;
 * returns rc. */
int ctl_fail(const struct ctl_args *a, int rc, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Before records go: 0 with --yes, or when the terminal's answer is yes; else an exit code with a
 * sentence. what: the view of "evict 3 records (2.1 MiB)". */
int ctl_confirm(const struct ctl_args *a, json_t *o, const char *what);

/* records.c: a whole id as it is; a prefix is looked up among the stored records. 0, or an exit
 * code. */
int ctl_resolve(const struct ctl_args *a, char ret_id[33]);

#endif
