/* jinja_word: the names that a template may call: filters, tests and functions (jinja_words.c),
 * methods (jinja_method.c), found in tables by the parser and bound to their arguments here.
 *
 * Thread: the run's. */
#ifndef FUSOR_TEXT_JINJA_WORD_H
#define FUSOR_TEXT_JINJA_WORD_H

#include "fusor/text/jinja_int.h"

enum { JJ_PARAMS_MAX = 4 };
typedef struct jinja_val (*jj_fn)(struct jinja_run *x, struct jinja_val self,
                                  const struct jinja_val *arg);
struct
    jj_word { /* a filter, a test, a method or a function; arg[] is as param[], absent undefined */
    const char *name;
    jj_fn fn;
    uint8_t need, places; /* arguments at least; by place at most */
    const char *param[JJ_PARAMS_MAX];
};
const struct jj_word *jj_find_word(const struct jj_word *table, const char *name, size_t len);
const struct jj_word *jj_filter(const char *name, size_t len); /* NULL: not in the subset */
const struct jj_word *jj_test(const char *name, size_t len);
const struct jj_word *jj_method(enum jinja_type type, const char *name, size_t len);
const struct jj_word *jj_function(const char *name, size_t len);
/* Puts arguments by place and by name where the word expects them, and calls. */
struct jinja_val jj_apply(struct jinja_run *x, const struct jj_word *w, struct jinja_val self,
                          const struct jinja_val *args, const struct jj_node *call);
struct jinja_val jj_item(struct jinja_run *x, struct jinja_val v, struct jinja_val at);

/* ---- what filters share with methods: jinja_method.c ---- */
enum { JJ_LEFT = 1, JJ_RIGHT = 2 };
const struct jinja_str *jj_strip(struct jinja_run *x, const struct jinja_str *s,
                                 struct jinja_val chars, unsigned sides); /* not a string: space */
const struct jinja_str *jj_replace(struct jinja_run *x, const struct jinja_str *s,
                                   const struct jinja_str *from, const struct jinja_str *to,
                                   int64_t count); /* <0: all */
/* JJ_TITLE as str.title() has it, JJ_WORDS as the filter of that name. */
enum jj_case { JJ_UPPER, JJ_LOWER, JJ_CAPITALIZE, JJ_TITLE, JJ_WORDS };
const struct jinja_str *jj_case(struct jinja_run *x, const struct jinja_str *s, enum jj_case to);
struct jinja_val jj_pairs(struct jinja_run *x, const struct jinja_dict *d); /* its items() */
struct jinja_val jj_join_list(struct jinja_run *x, struct jinja_val list,
                              const struct jinja_str *between);

#endif
