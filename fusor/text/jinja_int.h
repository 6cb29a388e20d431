/* jinja_int: a run of a template: its values, and how they are shown.
 *
 * jinja_run.c executes trees, jinja_eval.c their expressions, jinja_val.c has lists and
 * dictionaries, jinja_show.c gives values as text. A run remembers its first failure (jj_fail());
 * from then on every step gives undefined, and loops ask x->status. All memory of a run is its
 * arena's. Thread: one per run. */
#ifndef FUSOR_TEXT_JINJA_INT_H
#define FUSOR_TEXT_JINJA_INT_H

#include "fusor/text/jinja_str.h"
#include "fusor/text/jinja_tree.h"

enum {
    JJ_DEPTH_MAX = 1000,     /* chosen: macros that walk JSON of 64 levels; 300 KiB of stack */
    JJ_STEPS_MAX = 10 << 20, /* chosen: 4 096 messages at 2 500 steps each; a third of a second */
};

/* ---- values ---- */
struct jinja_list {
    struct jinja_val *v;
    size_t n;
    bool tuple; /* shown in round brackets */
};
struct jinja_dict {
    struct jinja_val *key, *val;
    size_t n, cap;
};
struct jinja_loop {
    const struct jinja_list *items;
    size_t i;
    unsigned depth;
};
struct jj_scope;
struct jinja_macro {
    const struct jj_node *def;
    struct jj_scope *scope; /* where it was defined */
};

/* ---- runs ---- */
struct jj_var {
    const struct jj_name *name;
    struct jinja_val val;
};
struct jj_scope {
    struct jj_scope *up;
    struct jj_var *var;
    size_t n, cap;
};
struct jinja_run {
    const struct jinja *t;
    struct arena arena;
    size_t memory_left, output_left, memory_max;
    int64_t steps_left, now_s;
    uint32_t line;
    unsigned depth, loops;
    int status; /* the first failure */
    struct err err;
    struct jj_scope root, *scope;
    struct jj_sb *out;
};

/* ---- jinja_val.c ---- */
extern const struct jinja_val jj_none, jj_undefined;
struct jinja_val jj_int(int64_t i);
const char *jj_type_name(struct jinja_val v); /* as Python says it */
/* One level deeper; false: failed, and there is no jj_leave(). */
bool jj_enter(struct jinja_run *x);
void jj_leave(struct jinja_run *x);
bool jj_number(struct jinja_val v, double *ret);
/* The places of v[n] in ascending order, equal ones as they stand; NULL: failed. */
size_t *jj_order(struct jinja_run *x, const struct jinja_val *v, size_t n);
bool jj_true(struct jinja_val v);
bool jj_equal(struct jinja_run *x, struct jinja_val a, struct jinja_val b);
/* <0, 0, >0; fails where they have no order */
int jj_compare(struct jinja_run *x, struct jinja_val a, struct jinja_val b);
bool jj_contains(struct jinja_run *x, struct jinja_val in, struct jinja_val what);
/* 1 found, 0 not */
int jj_get(struct jinja_run *x, const struct jinja_dict *d, struct jinja_val key,
           struct jinja_val *ret);
void jj_set(struct jinja_run *x, struct jinja_dict *d, struct jinja_val key, struct jinja_val v);
/* What a loop goes over; NULL: failed. */
const struct jinja_list *jj_items(struct jinja_run *x, struct jinja_val v);
struct jinja_list *jj_new_list(struct jinja_run *x, size_t n); /* NULL: failed */
struct jinja_val jj_of_list(const struct jinja_list *l);
struct jinja_val jj_pair(struct jinja_run *x, struct jinja_val a, struct jinja_val b);

/* ---- jinja_show.c ---- */
const struct jinja_str *jj_show(struct jinja_run *x, struct jinja_val v); /* str(v) */
struct jj_json_style {
    const char *item, *key; /* separators */
    size_t item_len, key_len;
    int indent; /* -1 = on one line */
    bool ascii, sort;
};
const struct jinja_str *jj_json(struct jinja_run *x, struct jinja_val v, struct jj_json_style s);

#endif
