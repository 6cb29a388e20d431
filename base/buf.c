#include "base/buf.h"

#include "base/assert.h"
#include "base/err.h"
#include "base/jsonscan.h"
#include "base/mem.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

int buf_reserve(struct buf *b, size_t extra_bytes)
{
    if (extra_bytes >= SIZE_MAX / 4 || b->len >= SIZE_MAX / 4) return b->status = -ENOMEM;
    size_t need = b->len + extra_bytes + 1;
    if (need <= b->cap) return 0;
    size_t cap = b->cap ? b->cap : 64;
    while (cap < need)
        cap *= 2;
    char *p = mem_realloc(b->data, cap);
    if (!p) return b->status = -ENOMEM;
    b->data = p;
    b->cap = cap;
    return 0;
}

int buf_add_more(struct buf *b, const void *p, size_t len)
{
    if (len == 0) return 0;
    int r = buf_reserve(b, len);
    if (r < 0) return r;
    memcpy(b->data + b->len, p, len);
    b->len += len;
    return 0;
}

int buf_add_buf(struct buf *b, const struct buf *from)
{
    if (from->status < 0) return b->status = from->status;
    return buf_add(b, from->data, from->len);
}

int buf_addc(struct buf *b, char c)
{
    return buf_add(b, &c, 1);
}

int buf_addu(struct buf *b, uint64_t v)
{
    char digits[20];
    size_t at = sizeof digits;
    do
        digits[--at] = (char)('0' + v % 10);
    while (v /= 10);
    return buf_add(b, digits + at, sizeof digits - at);
}

int buf_vaddf(struct buf *b, const char *fmt, va_list ap)
{
    va_list again;
    va_copy(again, ap);
    size_t room = b->cap - b->len; /* usually enough: then the text is formatted once */
    int n = vsnprintf(room ? b->data + b->len : NULL, room, fmt, ap);
    int r = n < 0 ? -EINVAL : 0;
    if (r < 0) b->status = r;
    if (r == 0 && (size_t)n >= room) {
        r = buf_reserve(b, (size_t)n);
        if (r == 0) (void)vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
    }
    if (r == 0) b->len += (size_t)n;
    va_end(again);
    return r;
}

int buf_addf(struct buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int r = buf_vaddf(b, fmt, ap);
    va_end(ap);
    return r;
}

int buf_add_json_str(struct buf *b, const char *s, size_t len)
{
    static const char from[5] = "\"\\\n\r\t", to[5] = "\"\\nrt";
    size_t start = b->len;
    int r = buf_addc(b, '"');
    const unsigned char *p = (const unsigned char *)s;
    for (size_t i = 0, run = 0; r == 0 && i <= len; i++) {
        size_t n = i < len ? json_utf8_len(s + i, len - i) : 0;
        bool plain = n > 0 && p[i] >= 0x20 && p[i] != '"' && p[i] != '\\';
        if (plain) {
            i += n - 1;
            continue;
        }
        r = buf_add(b, s + run, i - run);
        run = i + 1;
        if (r < 0 || i == len) break;
        const char *at = memchr(from, p[i], sizeof from);
        if (at)
            r = buf_add(b, (char[2]){'\\', to[at - from]}, 2);
        else
            r = p[i] < 0x20 ? buf_addf(b, "\\u%04x", p[i]) : buf_adds(b, "\xEF\xBF\xBD");
    }
    if (r == 0) r = buf_addc(b, '"');
    if (r < 0) b->len = start;
    return r;
}

const char *buf_cstr(struct buf *b)
{
    if (b->len == 0 && !b->data) return "";
    if (b->len >= b->cap && buf_reserve(b, 0) < 0) return NULL;
    b->data[b->len] = '\0';
    return b->data;
}

char *buf_take(struct buf *b, size_t *ret_len)
{
    if (buf_reserve(b, 0) < 0) return NULL;
    b->data[b->len] = '\0';
    char *p = b->data;
    if (ret_len) *ret_len = b->len;
    *b = (struct buf)BUF_INIT;
    return p;
}

void buf_consume(struct buf *b, size_t n)
{
    ASSERT(n <= b->len);
    if (n == 0) return;
    memmove(b->data, b->data + n, b->len - n);
    b->len -= n;
}

void buf_clear(struct buf *b)
{
    b->len = 0;
    b->status = 0;
}

void buf_fini(struct buf *b)
{
    mem_free(b->data);
    *b = (struct buf)BUF_INIT;
}
