/* jinja_str: strings of marked segments, and a run's memory, which all that it makes lives in.
 *
 * A string never changes; functions that take a part or put two together copy no bytes. After a
 * failure they give NULL, or nothing. Thread: the run's. */
#ifndef FUSOR_TEXT_JINJA_STR_H
#define FUSOR_TEXT_JINJA_STR_H

#include "fusor/text/jinja.h"

struct jj_segs { /* room that strings share: one that ends where it ends grows in place */
    uint32_t n, cap;
    struct jinja_seg seg[];
};
struct jinja_str {
    struct jj_segs *own; /* NULL: seg is alone */
    const struct jinja_seg *seg;
    size_t n, len; /* segments, bytes */
};
struct jj_sb { /* a string that grows; init {.x = run} */
    struct jinja_run *x;
    struct jj_segs *own;
    size_t len;
    char *room; /* where copied bytes go on */
    size_t room_left;
};
struct jinja_val jj_fail(struct jinja_run *x, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));                  /* undefined */
void *jj_alloc(struct jinja_run *x, size_t n, size_t size); /* zeroed; NULL: failed */
void jj_cost(struct jinja_run *x, size_t bytes);            /* of looking at them */

struct jinja_val jj_of_str(const struct jinja_str *s);               /* NULL: undefined */
const char *jj_flat(struct jinja_run *x, const struct jinja_str *s); /* in one piece */
const struct jinja_str *jj_sub(struct jinja_run *x, const struct jinja_str *s, size_t begin,
                               size_t end); /* bytes */
size_t jj_chars(struct jinja_run *x, const struct jinja_str *s);
size_t jj_char_at(struct jinja_run *x, const struct jinja_str *s, size_t i); /* its byte */
const struct jinja_str *jj_join(struct jinja_run *x, const struct jinja_str *a,
                                const struct jinja_str *b);
int jj_str_compare(struct jinja_run *x, const struct jinja_str *a, const struct jinja_str *b);
void jj_sb_add(struct jj_sb *sb, const char *p, size_t len, int32_t mark); /* copies */
void jj_sb_seg(struct jj_sb *sb, struct jinja_seg s);
void jj_sb_str(struct jj_sb *sb, const struct jinja_str *s);
const struct jinja_str *jj_sb_done(struct jj_sb *sb);

#endif
