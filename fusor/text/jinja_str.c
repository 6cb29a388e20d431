/* A string is a list of segments that point to where their bytes stand, so slicing, trimming and
 * adding copy no text, and where a byte came from is never lost. What grows by adding at its end (a
 * template that collects text in a loop) grows in place. */
#include "fusor/text/jinja_int.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- the run ---- */
struct jinja_val jj_fail(struct jinja_run *x, int code, const char *fmt, ...)
{
    va_list ap;
    if (x->status) return jj_undefined;
    va_start(ap, fmt);
    (void)vsnprintf(x->err.msg, sizeof x->err.msg, fmt, ap);
    va_end(ap);
    x->status = x->err.code = code;
    return jj_undefined;
}

void *jj_alloc(struct jinja_run *x, size_t n, size_t size)
{
    size_t bytes;
    if (x->status) return NULL;
    if (!size_mul(n, size, &bytes) || bytes > x->memory_left) {
        (void)jj_fail(x, -ERANGE, "it takes more than %zu MiB of memory", x->memory_max >> 20);
        return NULL;
    }
    x->memory_left -= bytes;
    void *p = arena_alloc(&x->arena, bytes);
    if (!p) (void)jj_fail(x, -ENOMEM, "out of memory");
    return p;
}

void jj_cost(struct jinja_run *x, size_t bytes)
{
    x->steps_left -= 1 + (int64_t)(bytes / 64);
    if (x->steps_left < 0) (void)jj_fail(x, -ERANGE, "it takes more than %d steps", JJ_STEPS_MAX);
}

/* ---- strings ---- */
struct jinja_val jj_of_str(const struct jinja_str *s)
{
    return s ? (struct jinja_val){.type = JINJA_STR, .s = s} : jj_undefined;
}

struct jinja_val jinja_text(struct jinja_run *x, const char *p, size_t len, int32_t mark)
{
    struct {
        struct jinja_str str;
        struct jinja_seg seg;
    } *both = len > UINT32_MAX ? NULL : jj_alloc(x, 1, sizeof *both);
    if (len > UINT32_MAX) return jj_fail(x, -ERANGE, "a text has more than 4 GiB");
    if (!both) return jj_undefined;
    both->seg = (struct jinja_seg){p, (uint32_t)len, mark};
    both->str = (struct jinja_str){.seg = &both->seg, .n = len > 0, .len = len};
    return jj_of_str(&both->str);
}

const char *jj_flat(struct jinja_run *x, const struct jinja_str *s)
{
    jj_cost(x, s->len);
    if (s->n == 1) return s->seg->p;
    char *flat = jj_alloc(x, 1, s->len + 1);
    if (!flat) return NULL;
    for (size_t i = 0, at = 0; i < s->n; at += s->seg[i++].len)
        memcpy(flat + at, s->seg[i].p, s->seg[i].len);
    return flat;
}

const struct jinja_str *jj_sub(struct jinja_run *x, const struct jinja_str *s, size_t begin,
                               size_t end)
{
    static const struct jinja_str empty;
    size_t first = 0, at = 0, last;
    if (begin >= end) return &empty;
    if (begin == 0 && end == s->len) return s;
    while (at + s->seg[first].len <= begin)
        at += s->seg[first++].len;
    jj_cost(x, first * sizeof *s->seg);
    const size_t skip = begin - at;
    for (last = first; at + s->seg[last].len < end; last++)
        at += s->seg[last].len;
    const size_t n = last - first + 1;
    struct jinja_str *sub = jj_alloc(x, 1, sizeof *sub + n * sizeof(struct jinja_seg));
    if (!sub) return NULL;
    struct jinja_seg *seg = (struct jinja_seg *)(sub + 1);
    memcpy(seg, s->seg + first, n * sizeof *seg);
    seg[n - 1].len = (uint32_t)(end - at);
    seg[0].p += skip;
    seg[0].len -= (uint32_t)skip;
    *sub = (struct jinja_str){.seg = seg, .n = n, .len = end - begin};
    return sub;
}

static size_t chars_of(const char *p, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)p[i] & 0xC0) != 0x80;
    return n;
}

size_t jj_chars(struct jinja_run *x, const struct jinja_str *s)
{
    size_t n = 0;
    jj_cost(x, s->len);
    for (size_t i = 0; i < s->n; i++)
        n += chars_of(s->seg[i].p, s->seg[i].len);
    return n;
}

size_t jj_char_at(struct jinja_run *x, const struct jinja_str *s, size_t i)
{
    size_t at = 0;
    jj_cost(x, i);
    for (size_t k = 0; k < s->n; k++)
        for (size_t b = 0; b < s->seg[k].len; b++, at++)
            if (((unsigned char)s->seg[k].p[b] & 0xC0) != 0x80 && i-- == 0) return at;
    return at;
}

static struct jj_segs *room_for(struct jinja_run *x, const struct jj_segs *old, size_t n)
{
    const size_t cap = n > 4 ? 2 * n : n;
    if (cap > UINT32_MAX) return NULL;
    struct jj_segs *own = jj_alloc(x, 1, sizeof *own + cap * sizeof *own->seg);
    if (!own) return NULL;
    own->cap = (uint32_t)cap;
    own->n = old ? old->n : 0;
    if (own->n) memcpy(own->seg, old->seg, own->n * sizeof *own->seg);
    return own;
}

const struct jinja_str *jj_join(struct jinja_run *x, const struct jinja_str *a,
                                const struct jinja_str *b)
{
    if (!a || !b) return NULL;
    if (a->n == 0) return b;
    if (b->n == 0) return a;
    struct jj_segs *own = a->own;
    if (!own || a->seg + a->n != own->seg + own->n || own->cap - own->n < b->n) {
        own = room_for(x, NULL, a->n + b->n);
        if (!own) return NULL;
        memcpy(own->seg, a->seg, a->n * sizeof *own->seg);
        own->n = (uint32_t)a->n;
    }
    struct jinja_str *s = jj_alloc(x, 1, sizeof *s);
    if (!s) return NULL;
    jj_cost(x, b->n * sizeof *b->seg);
    memcpy(own->seg + own->n, b->seg, b->n * sizeof *own->seg);
    own->n += (uint32_t)b->n;
    const struct jinja_seg *first = own == a->own ? a->seg : own->seg;
    *s = (struct jinja_str){own, first, a->n + b->n, a->len + b->len};
    return s;
}

int jj_str_compare(struct jinja_run *x, const struct jinja_str *a, const struct jinja_str *b)
{
    const size_t len = a->len < b->len ? a->len : b->len;
    size_t i = 0, k = 0, in_a = 0, in_b = 0;
    for (size_t at = 0; at < len;) {
        size_t n = a->seg[i].len - in_a, m = b->seg[k].len - in_b;
        if (n > m) n = m;
        if (n > len - at) n = len - at;
        int d = memcmp(a->seg[i].p + in_a, b->seg[k].p + in_b, n);
        if (d) return d;
        at += n;
        in_a += n;
        in_b += n;
        if (in_a == a->seg[i].len) i++, in_a = 0;
        if (in_b == b->seg[k].len) k++, in_b = 0;
    }
    jj_cost(x, len);
    return a->len < b->len ? -1 : a->len > b->len;
}

void jj_sb_seg(struct jj_sb *sb, struct jinja_seg s)
{
    struct jinja_run *x = sb->x;
    if (s.len == 0 || x->status) return;
    if (s.len > x->output_left) {
        (void)jj_fail(x, -ERANGE, "it writes too much");
        return;
    }
    x->output_left -= s.len;
    struct jinja_seg *last = sb->own && sb->own->n ? &sb->own->seg[sb->own->n - 1] : NULL;
    sb->len += s.len;
    if (last && last->mark == s.mark && last->p + last->len == s.p &&
        s.len <= UINT32_MAX - last->len) {
        last->len += s.len;
        return;
    }
    if (!sb->own || sb->own->n == sb->own->cap) {
        struct jj_segs *more = room_for(x, sb->own, sb->own ? sb->own->n + 1 : 4);
        if (!more) return;
        sb->own = more;
    }
    sb->own->seg[sb->own->n++] = s;
}

void jj_sb_add(struct jj_sb *sb, const char *p, size_t len, int32_t mark)
{
    enum { ROOM = 120 };
    jj_cost(sb->x, len);
    while (len > 0 && sb->x->status == 0) {
        if (sb->room_left == 0) {
            const size_t n = len > ROOM ? len : ROOM;
            sb->room = jj_alloc(sb->x, 1, n);
            if (!sb->room) return;
            sb->room_left = n;
        }
        const size_t n = len < sb->room_left ? len : sb->room_left;
        memcpy(sb->room, p, n);
        jj_sb_seg(sb, (struct jinja_seg){sb->room, (uint32_t)n, mark});
        sb->room += n;
        sb->room_left -= n;
        p += n;
        len -= n;
    }
}

void jj_sb_str(struct jj_sb *sb, const struct jinja_str *s)
{
    for (size_t i = 0; s && i < s->n; i++)
        jj_sb_seg(sb, s->seg[i]);
    if (s) jj_cost(sb->x, s->n * sizeof *s->seg);
}

const struct jinja_str *jj_sb_done(struct jj_sb *sb)
{
    struct jinja_str *s = jj_alloc(sb->x, 1, sizeof *s);
    if (s && sb->own) *s = (struct jinja_str){NULL, sb->own->seg, sb->own->n, sb->len};
    return s;
}
