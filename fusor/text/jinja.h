/* jinja: the subset of Jinja that published chat templates are written in, over marked text.
 *
 * A template comes with a model file and is not trusted: it is parsed once (jinja_open(), which
 * refuses by name and line what is not in the subset) and run within limits on steps, depth, memory
 * and output. Its own words may name control tokens, a user's may not, so every string is a list of
 * segments that point to where their bytes stand, each with a mark: the template's, input, or a
 * source that the caller numbers. A segment that still points into its source is a copy of it byte
 * for byte; one that a filter has rewritten keeps the mark and points elsewhere.
 *
 * Semantics: jinja2 3.1 as transformers sets it up (trim_blocks, lstrip_blocks, no autoescape, a
 * sandbox in which nothing given can be changed, loop controls, `generation` blocks that mean
 * nothing); README.md lists what is left out. Life cycle: jinja_open() → for each rendering
 * jinja_begin() → values, jinja_bind() → jinja_render() → jinja_end(). Values live until then.
 * Thread: any; a template never changes, a run belongs to one thread. */
#ifndef FUSOR_TEXT_JINJA_H
#define FUSOR_TEXT_JINJA_H

#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { JINJA_TEMPLATE = -1, JINJA_INPUT = -2 };
struct jinja_seg {
    const char *p;
    uint32_t len;
    int32_t mark; /* one of the above, or the caller's, from 0 */
};
/* A failed open says "line N: …". 0, -ENOTSUP not in the subset, or malformed, -ERANGE, -ENOMEM. */
struct jinja;
int jinja_open(const char *src, size_t len, struct jinja **ret, struct err *err);
void jinja_close(struct jinja *t);
/* Whether some string of the template's is these words. */
bool jinja_says(const struct jinja *t, const char *words);

struct jinja_run;
enum jinja_type {
    JINJA_UNDEFINED,
    JINJA_NONE,
    JINJA_BOOL,
    JINJA_INT,
    JINJA_FLOAT,
    JINJA_STR,
    JINJA_LIST,
    JINJA_DICT,
    JINJA_NAMESPACE,
    JINJA_LOOP,
    JINJA_MACRO,
    JINJA_FUNCTION,
    JINJA_METHOD /* named, not called: true, and nothing else */
};
struct jinja_val {
    enum jinja_type type;
    union {
        const char *name; /* of what is undefined, or the function's; NULL = a missing argument */
        bool b;
        int64_t i;
        double f;
        const struct jinja_str *s;
        const struct jinja_list *list;
        struct jinja_dict *dict;
        const struct jinja_loop *loop;
        const struct jinja_macro *macro;
    };
};
/* input_bytes: how much will be bound, which memory and output are limited by. now_s: seconds since
 * the epoch, the local time of strftime_now. NULL: no memory. */
struct jinja_run *jinja_begin(const struct jinja *t, size_t input_bytes, int64_t now_s);
void jinja_end(struct jinja_run *x); /* accepts NULL */
/* Values are made in the run; a failure is remembered and returned by jinja_render(). Texts are
 * borrowed. Whatever JSON holds is marked as input. */
struct jinja_val jinja_bool(bool b);
struct jinja_val jinja_text(struct jinja_run *x, const char *p, size_t len, int32_t mark);
struct jinja_val jinja_json(struct jinja_run *x, const json_t *json); /* NULL: none */
struct jinja_val jinja_list(struct jinja_run *x, size_t n, struct jinja_val **ret_items);
struct jinja_val jinja_dict(struct jinja_run *x);
void jinja_put(struct jinja_run *x, struct jinja_val dict, const char *key, struct jinja_val v);
/* A variable of the template; of two that have one name the later wins. */
void jinja_bind(struct jinja_run *x, const char *name, struct jinja_val v);
/* The segments live until jinja_end(). 0; -EINVAL the template refuses or cannot do it, in its own
 * words where it has some; -ERANGE a limit; -ENOMEM. */
int jinja_render(struct jinja_run *x, const struct jinja_seg **ret, size_t *ret_n, struct err *err);

#endif
