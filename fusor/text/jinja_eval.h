/* jinja_eval: expressions of a run, for jinja_run.c's statements. Thread: the run's. */
#ifndef FUSOR_TEXT_JINJA_EVAL_H
#define FUSOR_TEXT_JINJA_EVAL_H

#include "fusor/text/jinja_word.h"

/* Undefined after a failure, too: x->status says which. */
struct jinja_val jj_eval(struct jinja_run *x, const struct jj_node *n);
struct jj_var *jj_find_var(const struct jj_scope *s, const struct jj_name *name); /* NULL: not */
void jj_assign(struct jinja_run *x, struct jj_scope *s, const struct jj_name *name,
               struct jinja_val v);
/* jinja_run.c: what the macro writes, as a string. */
struct jinja_val jj_call_macro(struct jinja_run *x, const struct jinja_macro *m,
                               const struct jinja_val *args, const struct jj_node *call);

#endif
