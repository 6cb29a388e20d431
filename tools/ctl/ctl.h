/* ctl: what the parts of kvblendctl share.
 *
 * A command asks the gateway's admin API (base/net/http's client, run until the answer is there),
 * and prints either the JSON as it came (--json) or a table for people. It keeps no state and reads
 * nothing but its arguments, the admin API and the files it is given. Exit codes: 0 done, 1 not
 * found or refused, 2 wrong usage, 3 nobody answers at the address. Thread: main. */
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
    bool json, all, no_wait, chunks_only, yes, dry_run;
    const char *operand; /* the first: ID, FILE or TIER */
    const char *second;  /* SIZE, POLICY, COUNT or NULL */
};
struct ctl_reply {
    int status; /* HTTP */
    struct buf body;
    json_t *json; /* NULL when the body is none */
};

/* out.c: say why a command failed, on stderr and for --json as {"error":{"message"}} on stdout,
 * too; returns rc. */
int ctl_fail(const struct ctl_args *a, int rc, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* out.c: before records go: 0 with --yes, or when the terminal's answer is yes; else an exit code
 * with a sentence. what: "evict 3 records (2.1 MiB)". */
int ctl_confirm(const struct ctl_args *a, const char *what);

/* client.c: one request; 0, or CTL_UNREACHABLE with a sentence. */
int ctl_ask(const struct ctl_args *a, const char *method, const char *target, const void *body,
            size_t len, struct ctl_reply *ret);
void ctl_reply_fini(struct ctl_reply *r);
/* Ask; an answer other than 2xx is explained on stderr and gives CTL_REFUSED. */
int ctl_expect(const struct ctl_args *a, const char *method, const char *target, const void *body,
               size_t len, struct ctl_reply *ret);
/* Ask without a body, and print the answer: as it came (--json), else by `print`. An exit code. */
int ctl_print(const struct ctl_args *a, const char *method, const char *target,
              void (*print)(const json_t *answer));

/* client.c: "&name=value", escaped. */
int ctl_parameter(struct buf *out, const char *name, const char *value);

/* out.c */
enum { CTL_COLUMNS_MAX = 12 };
struct ctl_table { /* init {0}, ctl_table_fini() */
    size_t n_columns, n_cells, cap;
    char **cell;
    bool right[CTL_COLUMNS_MAX]; /* aligned to the right */
};
void ctl_table_head(struct ctl_table *t, const char *const *names, size_t n, const char *right);
void ctl_cell(struct ctl_table *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void ctl_table_print(const struct ctl_table *t);
void ctl_table_fini(struct ctl_table *t);
void ctl_print_json(const struct ctl_reply *r);
const char *ctl_bytes(double n, char *buf, size_t cap);   /* "12.3 MiB" */
const char *ctl_seconds(double s, char *buf, size_t cap); /* "3 m 20 s" */
const char *ctl_str(const json_t *o, const char *key);    /* "" when absent */
double ctl_num(const json_t *o, const char *key);         /* 0 when absent */
bool ctl_flag(const json_t *o, const char *key);

/* ---- commands: each is defined in the file that does it, and main.c lists them ---- */

/* Options of single commands; those without a bit go with every one. */
enum {
    CTL_TIER = 1,
    CTL_NAMESPACE = 2,
    CTL_ALL = 4,
    CTL_CHUNKS = 8,
    CTL_NO_WAIT = 16,
    CTL_YES = 32,
    CTL_DRY_RUN = 64,
    CTL_ASKS = CTL_YES | CTL_DRY_RUN, /* of what drops records */
};
struct ctl_command {
    const char *name;
    const char *operands; /* the needed ones, then those in brackets, which may be left out */
    unsigned options;
    const char *help;
    int (*run)(const struct ctl_args *a);
    /* NULL: asks the target (GET unless `method` says otherwise) and prints the answer. */
    const char *method, *target;
    void (*print)(const json_t *answer);
};
extern const struct ctl_command ctl_status, ctl_quality, ctl_targets, ctl_keys, ctl_drain,
    ctl_enable, ctl_reload, ctl_profile, ctl_tiers, ctl_ls, ctl_show, ctl_pin, ctl_unpin, ctl_evict,
    ctl_clear, ctl_warm, ctl_segment, ctl_explain, ctl_verify, ctl_preload, ctl_flush, ctl_resize,
    ctl_policy, ctl_quota;

/* chunks.c: a whole id as it is; a prefix is looked up among the stored records. 0, or an exit
 * code. */
int ctl_resolve(const struct ctl_args *a, char ret_id[33]);
/* tiers.c: POST an order with the given fields and those of --tier and --namespace; the body is
 * taken. */
int ctl_order(const struct ctl_args *a, const char *target, json_t *body, struct ctl_reply *ret);

#endif
