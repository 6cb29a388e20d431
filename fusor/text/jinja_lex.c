/* Tokens of a template. What decides about white space (trim_blocks, lstrip_blocks, the signs - and
 * + beside a tag) is all here, so that a data token is what will be written. */
#include "base/buf.h"
#include "fusor/text/jinja_tree.h"
#include "fusor/text/unicode.h"

#include <string.h>

struct lex {
    struct arena *arena;
    const char *src, *p, *end;
    uint32_t line, nesting; /* brackets that are open in a tag */
    bool line_starting;     /* what was read last ended a line */
    struct jj_tok *tok;
    size_t n, cap;
    struct err *err;
};

static int fail(struct lex *l, const char *why)
{
    return err_set(l->err, -ENOTSUP, "line %u: %s", l->line, why);
}

static int push(struct lex *l, enum jj_tok_type type, const char *p, size_t len)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 256;
        struct jj_tok *more = arena_alloc(l->arena, cap * sizeof *more);
        if (!more) return err_set(l->err, -ENOMEM, "out of memory");
        if (l->n) memcpy(more, l->tok, l->n * sizeof *more);
        l->tok = more;
        l->cap = cap;
    }
    l->tok[l->n++] = (struct jj_tok){type, l->line, p, len};
    return 0;
}

static void advance(struct lex *l, const char *to)
{
    for (const char *p = l->p; p < to; p++)
        l->line += *p == '\n';
    if (to > l->p) l->line_starting = to[-1] == '\n';
    l->p = to;
}

static bool at(const struct lex *l, const char *s)
{
    size_t n = strlen(s);
    return (size_t)(l->end - l->p) >= n && memcmp(l->p, s, n) == 0;
}

/* Past what ends a tag, and the white space that goes with it: all after -, the line's end after a
 * block or a comment without +. */
static void close_tag(struct lex *l, size_t len, char sign, bool block)
{
    const char *to = l->p + len;
    if (sign == '-')
        to += uni_space_head(to, (size_t)(l->end - to), true);
    else if (block && sign != '+' && to < l->end && *to == '\n')
        to++;
    advance(l, to);
}

/* ---- literals ---- */
static int add_char(struct buf *b, uint32_t cp)
{
    char s[4];
    if (cp < 0x80) return buf_addc(b, (char)cp);
    if (cp < 0x800) {
        s[0] = (char)(0xC0 | cp >> 6), s[1] = (char)(0x80 | (cp & 63));
        return buf_add(b, s, 2);
    }
    if (cp < 0x10000) {
        s[0] = (char)(0xE0 | cp >> 12), s[1] = (char)(0x80 | (cp >> 6 & 63));
        s[2] = (char)(0x80 | (cp & 63));
        return buf_add(b, s, 3);
    }
    s[0] = (char)(0xF0 | cp >> 18), s[1] = (char)(0x80 | (cp >> 12 & 63));
    s[2] = (char)(0x80 | (cp >> 6 & 63)), s[3] = (char)(0x80 | (cp & 63));
    return buf_add(b, s, 4);
}

/* \x41, \u0041, \U00000041: `digits` of them at p. NULL: malformed. */
static const char *add_hex(struct buf *b, const char *p, const char *end, int digits)
{
    uint32_t cp = 0;
    for (int i = 0; i < digits; i++, p++) {
        char c = p < end ? *p : 0;
        if (c >= '0' && c <= '9')
            cp = cp << 4 | (uint32_t)(c - '0');
        else if ((c | 32) >= 'a' && (c | 32) <= 'f')
            cp = cp << 4 | (uint32_t)((c | 32) - 'a' + 10);
        else
            return NULL;
    }
    if (cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000)) return NULL;
    (void)add_char(b, cp);
    return p;
}

/* One escape of Python's, p behind the backslash; unknown ones stand for themselves. */
static const char *add_escape(struct buf *b, const char *p, const char *end)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    const char *k = strchr(from, *p);
    if (*p == '\n') return p + 1;
    if (*p && k) {
        (void)buf_addc(b, to[k - from]);
        return p + 1;
    }
    if (*p >= '0' && *p <= '7') {
        uint32_t cp = 0;
        for (int i = 0; i < 3 && p < end && *p >= '0' && *p <= '7'; i++)
            cp = cp << 3 | (uint32_t)(*p++ - '0');
        (void)add_char(b, cp);
        return p;
    }
    if (*p == 'x') return add_hex(b, p + 1, end, 2);
    if (*p == 'u') return add_hex(b, p + 1, end, 4);
    if (*p == 'U') return add_hex(b, p + 1, end, 8);
    if (*p == 'N') return NULL;
    (void)buf_addc(b, '\\');
    return p;
}

static int lex_string(struct lex *l)
{
    const char quote = *l->p, *p = l->p + 1, *start = p;
    struct buf b = BUF_INIT;
    bool escaped = false;
    while (p < l->end && *p != quote) {
        if (*p == '\\' && p + 1 < l->end) {
            if (!escaped) (void)buf_add(&b, start, (size_t)(p - start));
            escaped = true;
            p = add_escape(&b, p + 1, l->end);
            if (!p) {
                buf_fini(&b);
                return fail(l, "a string has an escape that is not in the subset");
            }
        } else {
            if (escaped) (void)buf_addc(&b, *p);
            p++;
        }
    }
    const char *text = start;
    size_t len = (size_t)(p - start);
    int r = p < l->end ? 0 : fail(l, "a string is not closed");
    if (r == 0 && escaped) {
        len = b.len;
        text = buf_status(&b) < 0 ? NULL : arena_strndup(l->arena, b.data ? b.data : "", len);
        if (!text) r = err_set(l->err, -ENOMEM, "out of memory");
    }
    buf_fini(&b);
    if (r == 0) r = push(l, JJ_T_STR, text, len);
    if (r == 0) advance(l, p + 1);
    return r;
}

static bool digit(char c)
{
    return c >= '0' && c <= '9';
}

static int lex_number(struct lex *l)
{
    const char *p = l->p;
    enum jj_tok_type type = JJ_T_INT;
    while (p < l->end && (digit(*p) || (*p == '_' && digit(p[1]))))
        p++;
    if (p + 1 < l->end && *p == '.' && digit(p[1])) {
        type = JJ_T_FLOAT;
        for (p++; p < l->end && digit(*p);)
            p++;
    }
    if (p < l->end && (*p | 32) == 'e') {
        const char *q = p + 1;
        if (q < l->end && (*q == '+' || *q == '-')) q++;
        if (q < l->end && digit(*q)) {
            type = JJ_T_FLOAT;
            for (p = q; p < l->end && digit(*p);)
                p++;
        }
    }
    int r = push(l, type, l->p, (size_t)(p - l->p));
    advance(l, p);
    return r;
}

static bool word_char(char c)
{
    return digit(c) || c == '_' || ((c | 32) >= 'a' && (c | 32) <= 'z');
}

static int lex_word(struct lex *l)
{
    const char *p = l->p;
    while (p < l->end && word_char(*p))
        p++;
    int r = push(l, JJ_T_NAME, l->p, (size_t)(p - l->p));
    advance(l, p);
    return r;
}

static int lex_op(struct lex *l)
{
    static const char *const two[] = {"**", "//", "==", "!=", "<=", ">="};
    static const char one[] = "+-*/%~<>=.,:|()[]{}";
    size_t len = 0;
    for (size_t i = 0; i < sizeof two / sizeof *two; i++)
        if (at(l, two[i])) len = 2;
    if (len == 0 && *l->p && strchr(one, *l->p)) len = 1;
    if (len == 0) return fail(l, "a character that no expression has");
    if (strchr("([{", *l->p)) l->nesting++;
    if (strchr(")]}", *l->p) && l->nesting) l->nesting--;
    int r = push(l, JJ_T_OP, l->p, len);
    advance(l, l->p + len);
    return r;
}

/* ---- tags ---- */
static int lex_tag(struct lex *l, bool block)
{
    const char *end = block ? "%}" : "}}";
    char sign = l->p < l->end && (*l->p == '-' || *l->p == '+') ? *l->p : 0;
    if (sign) advance(l, l->p + 1);
    l->nesting = 0;
    while (l->p < l->end) {
        char c = *l->p;
        sign =
            l->p + 2 < l->end && (c == '-' || (block && c == '+')) && memcmp(l->p + 1, end, 2) == 0
                ? c
                : 0;
        if (l->nesting == 0 && (sign || at(l, end))) {
            int r = push(l, block ? JJ_T_BLOCK_END : JJ_T_VAR_END, l->p, 2);
            close_tag(l, sign ? 3 : 2, sign, block);
            return r;
        }
        int r = 0;
        if (strchr(" \t\n\v\f", c) && c)
            advance(l, l->p + 1);
        else if (c == '\'' || c == '"')
            r = lex_string(l);
        else if (digit(c))
            r = lex_number(l);
        else if (word_char(c))
            r = lex_word(l);
        else
            r = lex_op(l);
        if (r < 0) return r;
    }
    return fail(l, "a tag is not closed");
}

static int lex_comment(struct lex *l)
{
    const char *p = l->p;
    if (p < l->end && (*p == '-' || *p == '+')) p++;
    const char *start = p, *end = memmem(p, (size_t)(l->end - p), "#}", 2);
    if (!end) return fail(l, "a comment is not closed");
    char sign = end > start && (end[-1] == '-' || end[-1] == '+') ? end[-1] : 0;
    advance(l, end);
    close_tag(l, 2, sign, true);
    return 0;
}

/* The white space that a tag at `tag` takes from the text before it. */
static const char *strip_end(const struct lex *l, const char *tag)
{
    char sign = tag + 2 < l->end ? tag[2] : 0;
    if (sign == '-') return tag - uni_space_tail(l->p, (size_t)(tag - l->p), true);
    if (sign == '+' || tag[1] == '{') return tag;
    const char *line = tag;
    while (line > l->p && line[-1] != '\n')
        line--;
    if (line == l->p && !l->line_starting) return tag;
    return uni_space_tail(line, (size_t)(tag - line), true) == (size_t)(tag - line) ? line : tag;
}

static const char *find_tag(const struct lex *l)
{
    for (const char *p = l->p; p + 1 < l->end; p++)
        if (p[0] == '{' && (p[1] == '%' || p[1] == '{' || p[1] == '#')) return p;
    return NULL;
}

int jj_lex(struct arena *arena, const char *src, size_t len, struct jj_tok **ret, struct err *err)
{
    struct lex l = {.arena = arena,
                    .src = src,
                    .p = src,
                    .end = src + len,
                    .line = 1,
                    .line_starting = true,
                    .err = err};
    int r = 0;
    while (r == 0 && l.p < l.end) {
        const char *tag = find_tag(&l), *stop = tag ? strip_end(&l, tag) : l.end;
        if (stop > l.p) r = push(&l, JJ_T_DATA, l.p, (size_t)(stop - l.p));
        advance(&l, tag ? tag : l.end);
        if (r < 0 || !tag) break;
        const char kind = tag[1];
        if (kind != '#') r = push(&l, kind == '%' ? JJ_T_BLOCK : JJ_T_VAR, tag, 2);
        advance(&l, tag + 2);
        if (r == 0) r = kind == '#' ? lex_comment(&l) : lex_tag(&l, kind == '%');
    }
    if (r == 0) r = push(&l, JJ_T_END, l.end, 0);
    if (r == 0) *ret = l.tok;
    return r;
}
