/* A growable byte buffer.
 *
 * Life cycle: `struct buf b = BUF_INIT;` → append → buf_fini() or buf_take(). data may be NULL
 * while len is 0; buf_cstr() guarantees a terminating NUL (not counted in len). Append functions
 * return 0 or -ENOMEM and leave the content as it was on failure. The buffer remembers a failure:
 * a writer of many small pieces appends them all and asks buf_status() once.
 * Thread: any; one owner at a time. */
#ifndef BASE_BUF_H
#define BASE_BUF_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct buf {
    char *data;
    size_t len; /* bytes in use */
    size_t cap; /* bytes allocated */
    int status; /* 0, or why an append failed; until buf_clear() or buf_fini() */
};
#define BUF_INIT                                                                                   \
    {                                                                                              \
        NULL, 0, 0, 0                                                                              \
    }

static inline int buf_status(const struct buf *b)
{
    return b->status;
}
int buf_reserve(struct buf *b, size_t extra_bytes);         /* room for extra + NUL */
int buf_add_more(struct buf *b, const void *p, size_t len); /* buf_add() where it must grow */
static inline int buf_add(struct buf *b, const void *p, size_t len)
{
    if (len == 0 || len >= b->cap - b->len) return buf_add_more(b, p, len);
    memcpy(b->data + b->len, p, len);
    b->len += len;
    return 0;
}
static inline int buf_adds(struct buf *b, const char *s)
{
    return buf_add(b, s, strlen(s)); /* which a literal does not count at run time */
}
int buf_addc(struct buf *b, char c);
int buf_addu(struct buf *b, uint64_t v); /* in decimal digits */
int buf_addf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int buf_vaddf(struct buf *b, const char *fmt, va_list ap);
int buf_add_buf(struct buf *b, const struct buf *from); /* and its failure */
/* Quoted and escaped; bytes that are not UTF-8 become U+FFFD. */
int buf_add_json_str(struct buf *b, const char *s, size_t len);
const char *buf_cstr(struct buf *b);            /* "" when empty; NULL only when out of memory */
char *buf_take(struct buf *b, size_t *ret_len); /* caller mem_free()s; b is empty again */
void buf_consume(struct buf *b, size_t n);      /* drop the first n bytes */
void buf_clear(struct buf *b);                  /* keep the memory */
void buf_fini(struct buf *b);

#endif
