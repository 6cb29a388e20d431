/* Design: a value is skipped by one loop with a bit stack of open brackets (64 levels fit a word),
 * so that hostile nesting costs nothing and nothing recurses. */
#include "base/jsonscan.h"

#include "base/buf.h"
#include "base/jsonskip.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct scan {
    const char *start, *p, *end;
    const char *why;
    int code;
    bool utf8; /* the whole text is known to be valid UTF-8 */
    bool skim; /* what strings hold does not matter */
    bool more; /* other text may follow */
};

static int fail_scan(struct scan *s, const char *why)
{
    if (!s->why) s->why = why;
    if (!s->code) s->code = -EBADMSG;
    return s->code;
}

static void skip_space(struct scan *s)
{
    for (; s->p < s->end && (unsigned char)*s->p <= ' '; s->p++)
        if (*s->p != ' ' && *s->p != '\n' && *s->p != '\r' && *s->p != '\t') return;
}

/* Characters that stand for themselves in a string: ASCII but controls, quote and backslash. */
static const bool plain[256] = {
    [' '] = true, ['!'] = true, ['#' ... '['] = true, [']' ... 0x7F] = true};

bool json_str_plain(const struct json_val *v)
{
    bool all = v->type == JSON_T_STRING;
    for (size_t i = 1; all && i + 1 < v->len; i++)
        all = plain[(unsigned char)v->p[i]];
    return all;
}

size_t json_utf8_len(const char *text, size_t len)
{
    const unsigned char *s = (const unsigned char *)text;
    if (s[0] < 0x80) return 1;
    if (s[0] < 0xC2 || s[0] > 0xF4) return 0;
    size_t n = s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : 4;
    if (len < n) return 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xC0) != 0x80) return 0;
    bool overlong = (s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xF0 && s[1] < 0x90);
    bool outside = (s[0] == 0xED && s[1] > 0x9F) || (s[0] == 0xF4 && s[1] > 0x8F);
    return overlong || outside ? 0 : n;
}

unsigned json_depth(const char *text, size_t len)
{
    unsigned depth = 0, max = 0;
    if (len == 0) return 0; /* of no text at all, which has no end either */
    for (const char *p = text, *end = text + len; p < end; p++) {
        if (*p == '"') {
            p = json_string_end(p + 1, end);
            if (p == end) break;
        } else if (*p == '{' || *p == '[') {
            if (++depth > max) max = depth;
        } else if ((*p == '}' || *p == ']') && depth > 0) {
            depth--;
        }
    }
    return max;
}

/* Four hexadecimal digits at p, or -1. */
static int hex4(const char *p, const char *end)
{
    int v = 0;
    if (end - p < 4) return -1;
    for (int i = 0; i < 4; i++) {
        char c = p[i];
        int d = c >= '0' && c <= '9'                 ? c - '0'
                : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                     : -1;
        if (d < 0) return -1;
        v = v * 16 + d;
    }
    return v;
}

/* The code point of the escape whose 'u' is at *p; moves past it. -1 when malformed. */
static long unicode_escape(const char **p, const char *end)
{
    int hi = hex4(*p + 1, end);
    if (hi < 0 || (hi >= 0xDC00 && hi <= 0xDFFF)) return -1;
    *p += 5;
    if (hi < 0xD800 || hi > 0xDBFF) return hi;
    if (end - *p < 6 || (*p)[0] != '\\' || (*p)[1] != 'u') return -1;
    int lo = hex4(*p + 2, end);
    if (lo < 0xDC00 || lo > 0xDFFF) return -1;
    *p += 6;
    return 0x10000 + ((long)(hi - 0xD800) << 10) + (lo - 0xDC00);
}

static const bool simple_escape[256] = {
    ['"'] = 1, ['\\'] = 1, ['/'] = 1, ['b'] = 1, ['f'] = 1, ['n'] = 1, ['r'] = 1, ['t'] = 1};

static int scan_string(struct scan *s)
{
    s->p++;
    if (s->skim) {
        s->p = json_string_end(s->p, s->end);
        if (s->p == s->end) return fail_scan(s, "unterminated string");
        s->p++;
        return 0;
    }
    while ((s->p = json_skip_string(s->p, s->end, s->utf8)) < s->end) {
        unsigned char c = (unsigned char)*s->p;
        if (c == '"') {
            s->p++;
            return 0;
        }
        if (c == '\\') {
            if (++s->p == s->end) break;
            if (*s->p == 'u') {
                if (unicode_escape(&s->p, s->end) < 0) return fail_scan(s, "malformed \\u escape");
            } else if (simple_escape[(unsigned char)*s->p]) {
                s->p++;
            } else {
                return fail_scan(s, "unknown escape");
            }
        } else if (c < 0x20) {
            return fail_scan(s, "control character in a string");
        } else {
            while (s->p < s->end && (unsigned char)*s->p >= 0x80) {
                size_t n = json_utf8_len(s->p, (size_t)(s->end - s->p));
                if (n == 0) return fail_scan(s, "invalid UTF-8");
                s->p += n;
            }
        }
    }
    return fail_scan(s, "unterminated string");
}

static bool digits(struct scan *s)
{
    const char *from = s->p;
    while (s->p < s->end && *s->p >= '0' && *s->p <= '9')
        s->p++;
    return s->p > from;
}

enum { DOUBLE_DIGITS_MAX = 309, DIGITS_READ = 40 }; /* chosen: more digits change nothing */

/* A number of any length, known to be well-formed: is it too large for a double? Its first digits
 * and its exponent tell. */
static bool overflows(const char *p, const char *end)
{
    char text[DIGITS_READ + 32];
    size_t n = 0;
    long exponent = 0, given = 0;
    bool fraction = false;
    for (; p < end && *p != 'e' && *p != 'E'; p++) {
        if (*p == '.') fraction = true;
        if (*p < '0' || *p > '9') continue;
        if ((n > 0 || *p != '0') && n < DIGITS_READ)
            text[n++] = *p;
        else if (n > 0)
            exponent++; /* a digit that is not read */
        exponent -= fraction;
    }
    bool negative = end - p > 1 && p[1] == '-';
    for (; p < end; p++) /* bodies have fewer digits than that */
        if (*p >= '0' && *p <= '9' && given < INT32_MAX / 16) given = given * 10 + (*p - '0');
    if (n == 0) return false; /* zero */
    (void)snprintf(text + n, sizeof text - n, "e%ld", exponent + (negative ? -given : given));
    return isinf(strtod(text, NULL));
}

static int scan_number(struct scan *s)
{
    const char *from = s->p;
    bool exponent = false;
    if (*s->p == '-') s->p++;
    if (s->p < s->end && *s->p == '0')
        s->p++;
    else if (!digits(s))
        return fail_scan(s, "malformed number");
    if (s->p < s->end && *s->p == '.') {
        s->p++;
        if (!digits(s)) return fail_scan(s, "malformed number");
    }
    if (s->p < s->end && (*s->p == 'e' || *s->p == 'E')) {
        exponent = true;
        s->p++;
        if (s->p < s->end && (*s->p == '+' || *s->p == '-')) s->p++;
        if (!digits(s)) return fail_scan(s, "malformed number");
    }
    bool large = (exponent || s->p - from >= DOUBLE_DIGITS_MAX) && overflows(from, s->p);
    if (large) s->code = -EDOM;
    return large ? fail_scan(s, "a number is too large") : 0;
}

static int scan_word(struct scan *s, const char *word)
{
    size_t n = strlen(word);
    if ((size_t)(s->end - s->p) < n || memcmp(s->p, word, n) != 0)
        return fail_scan(s, "unknown word");
    s->p += n;
    return 0;
}

/* A scalar at p; brackets are the caller's. */
static int scan_scalar(struct scan *s, enum json_type *ret)
{
    switch (*s->p) {
    case '"':
        *ret = JSON_T_STRING;
        return scan_string(s);
    case 't':
        *ret = JSON_T_BOOL;
        return scan_word(s, "true");
    case 'f':
        *ret = JSON_T_BOOL;
        return scan_word(s, "false");
    case 'n':
        *ret = JSON_T_NULL;
        return scan_word(s, "null");
    default:
        *ret = JSON_T_NUMBER;
        if (*s->p != '-' && (*s->p < '0' || *s->p > '9'))
            return fail_scan(s, "a value is expected");
        return scan_number(s);
    }
}

/* `"key" :` */
static int scan_key(struct scan *s, struct json_val *ret)
{
    skip_space(s);
    if (s->p == s->end || *s->p != '"') return fail_scan(s, "a key is expected");
    const char *from = s->p, *end = from + 1;
    while (end < s->end && plain[(unsigned char)*end]) /* keys are short */
        end++;
    if (end < s->end && *end == '"') {
        s->p = end + 1;
    } else {
        const bool skim = s->skim;
        s->skim = false; /* they are read */
        if (scan_string(s) < 0) return s->code;
        s->skim = skim;
    }
    if (ret) *ret = (struct json_val){from, (size_t)(s->p - from), JSON_T_STRING};
    skip_space(s);
    if (s->p == s->end || *s->p != ':') return fail_scan(s, "':' is expected");
    s->p++;
    return 0;
}

/* A whole value, inside `depth` open brackets. */
static int scan_value(struct scan *s, int depth, struct json_val *ret)
{
    uint64_t objects = 0; /* bit i: bracket i of this value is an object */
    int open = 0;
    bool fresh = true; /* a value (or a close right after an open) comes next */
    skip_space(s);
    const char *from = s->p;
    enum json_type type = JSON_T_NULL, first = JSON_T_NULL;
    for (;;) {
        skip_space(s);
        if (s->p == s->end) return fail_scan(s, "the text ends too early");
        char c = *s->p;
        if (fresh && (c == '{' || c == '[')) {
            if (depth + open >= JSON_DEPTH_MAX) {
                s->code = -ERANGE;
                return fail_scan(s, "nested too deeply");
            }
            bool object = c == '{';
            if (open == 0) first = object ? JSON_T_OBJECT : JSON_T_ARRAY;
            objects = object ? objects | 1ull << open : objects & ~(1ull << open);
            open++;
            s->p++;
            skip_space(s);
            if (s->p == s->end || *s->p != (object ? '}' : ']')) {
                if (object && scan_key(s, NULL) < 0) return s->code;
                continue;
            }
            s->p++;
            open--;
        } else if (fresh) {
            if (scan_scalar(s, &type) < 0) return s->code;
            if (open == 0) first = type;
        } else {
            bool object = objects >> (open - 1) & 1;
            s->p++;
            if (c == ',') {
                fresh = true;
                if (object && scan_key(s, NULL) < 0) return s->code;
                continue;
            }
            if (c != (object ? '}' : ']')) {
                s->p--;
                return fail_scan(s, "',' or a closing bracket is expected");
            }
            open--;
        }
        fresh = false;
        if (open == 0) break;
    }
    if (ret) *ret = (struct json_val){from, (size_t)(s->p - from), first};
    return 0;
}

static int end_scan(struct scan *s, struct json_fault *fault)
{
    if (!s->code && !s->more) {
        skip_space(s);
        if (s->p < s->end) (void)fail_scan(s, "text after the end");
    }
    if (s->code && fault) *fault = (struct json_fault){(size_t)(s->p - s->start), s->why};
    return s->code;
}

static struct scan scan_of(const char *text, size_t len)
{
    return (struct scan){
        .start = text, .p = text, .end = text + len, .utf8 = json_utf8_valid(text, len)};
}

int json_scan(const char *text, size_t len, struct json_val *ret, struct json_fault *fault)
{
    struct scan s = scan_of(text, len);
    struct json_val v;
    (void)scan_value(&s, 0, &v);
    int r = end_scan(&s, fault);
    if (r == 0 && ret) *ret = v;
    return r;
}

static int scan_fields(struct scan *s, int (*on_field)(void *ctx, const struct json_field *f),
                       void *ctx, struct json_fault *fault)
{
    skip_space(s);
    if (s->p == s->end || *s->p != '{')
        (void)fail_scan(s, "an object is expected");
    else
        s->p++;
    skip_space(s);
    bool empty = !s->code && s->p < s->end && *s->p == '}';
    if (empty) s->p++;
    while (!s->code && !empty) {
        struct json_field f;
        if (scan_key(s, &f.key) < 0 || scan_value(s, 1, &f.val) < 0) break;
        int r = on_field ? on_field(ctx, &f) : 0;
        if (r < 0) return r;
        skip_space(s);
        char c = s->p < s->end ? *s->p : '\0';
        if (c != ',' && c != '}') {
            (void)fail_scan(s, "',' or a closing bracket is expected");
            break;
        }
        s->p++;
        if (c == '}') break;
    }
    return end_scan(s, fault);
}

int json_scan_object(const char *text, size_t len,
                     int (*on_field)(void *ctx, const struct json_field *f), void *ctx,
                     struct json_fault *fault)
{
    struct scan s = scan_of(text, len);
    return scan_fields(&s, on_field, ctx, fault);
}

int json_skim_object(const char *text, size_t len,
                     int (*on_field)(void *ctx, const struct json_field *f), void *ctx,
                     struct json_fault *fault)
{
    struct scan s = {.start = text, .p = text, .end = text + len, .skim = true};
    return scan_fields(&s, on_field, ctx, fault);
}

int json_scan_object_at(const char *text, size_t len,
                        int (*on_field)(void *ctx, const struct json_field *f), void *ctx)
{
    struct scan s = {.start = text, .p = text, .end = text + len, .more = true};
    return scan_fields(&s, on_field, ctx, NULL);
}

int json_each(const struct json_val *array, int (*on_item)(void *ctx, const struct json_val *v),
              void *ctx)
{
    if (array->type != JSON_T_ARRAY) return -EINVAL;
    struct scan s = scan_of(array->p, array->len);
    s.p++;
    skip_space(&s);
    if (s.p < s.end && *s.p == ']') return 0;
    for (;;) {
        struct json_val v;
        if (scan_value(&s, 1, &v) < 0) return s.code;
        int r = on_item(ctx, &v);
        if (r < 0) return r;
        skip_space(&s);
        if (s.p == s.end || (*s.p != ',' && *s.p != ']')) return -EBADMSG;
        if (*s.p++ == ']') return 0;
    }
}

struct find {
    const char *key;
    struct json_val *ret;
    int found;
};

static int on_find(void *ctx, const struct json_field *f)
{
    struct find *w = ctx;
    if (!json_str_is(&f->key, w->key)) return 0;
    *w->ret = f->val;
    w->found = 1;
    return 0;
}

int json_find(const char *text, size_t len, const char *key, struct json_val *ret)
{
    struct json_val v;
    struct find w = {key, &v, 0};
    int r = json_scan_object(text, len, on_find, &w, NULL);
    if (r < 0) return r;
    if (w.found) *ret = v;
    return w.found;
}

/* ---- reading values ---- */

static size_t put_utf8(long cp, char out[4])
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    size_t n = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, cp >>= 6)
        out[i] = (char)(0x80 | (cp & 0x3F));
    static const unsigned char lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    out[0] = (char)(lead[n] | cp);
    return n;
}

/* One character or escape at *p of a scanned string: its bytes in out, its length. */
static size_t next_char(const char **p, const char *end, char out[4])
{
    if (**p != '\\') {
        out[0] = *(*p)++;
        return 1;
    }
    (*p)++;
    if (**p == 'u') return put_utf8(unicode_escape(p, end), out);
    static const char from[] = "bfnrt", to[] = "\b\f\n\r\t";
    const char *at = strchr(from, **p);
    out[0] = at ? to[at - from] : **p;
    (*p)++;
    return 1;
}

bool json_str_equals(const struct json_val *v, const char *text)
{
    if (v->type != JSON_T_STRING) return false;
    const char *p = v->p + 1, *end = v->p + v->len - 1;
    size_t left = strlen(text), raw = v->len - 2;
    if (raw < left) return false; /* an escape never makes a text shorter */
    if (raw == left && !memchr(text, '\\', left)) return memcmp(p, text, left) == 0;
    if (!memchr(p, '\\', raw)) return false; /* no escape makes it as short as that */
    while (p < end) {
        char c[4];
        size_t n = next_char(&p, end, c);
        if (n > left || memcmp(text, c, n) != 0) return false;
        text += n;
        left -= n;
    }
    return left == 0;
}

int json_str_read(const struct json_val *v, struct buf *out)
{
    if (v->type != JSON_T_STRING) return -EINVAL;
    int r = buf_reserve(out, v->len); /* unescaping never makes a string longer */
    if (r < 0) return r;
    const char *p = v->p + 1, *end = v->p + v->len - 1;
    while (r == 0 && p < end) {
        const char *esc = memchr(p, '\\', (size_t)(end - p));
        size_t run = (size_t)((esc ? esc : end) - p);
        char c[4];
        r = buf_add(out, p, run);
        p += run;
        if (r == 0 && p < end) r = buf_add(out, c, next_char(&p, end, c));
    }
    return r;
}

size_t json_str_seek(const struct json_val *v, size_t *at, size_t n)
{
    const char *p = v->p + *at, *end = v->p + v->len - 1;
    size_t done = 0;
    while (done < n && p < end) {
        size_t most = n - done < (size_t)(end - p) ? n - done : (size_t)(end - p);
        const char *esc = memchr(p, '\\', most);
        size_t run = esc ? (size_t)(esc - p) : most;
        char c[4];
        p += run;
        done += run;
        if (esc) done += next_char(&p, end, c);
    }
    for (; p < end && ((unsigned char)*p & 0xC0) == 0x80; p++)
        done++;
    *at = (size_t)(p - v->p);
    return done;
}

int json_bool_read(const struct json_val *v, bool *ret)
{
    if (v->type != JSON_T_BOOL) return -EINVAL;
    *ret = v->p[0] == 't';
    return 0;
}

int json_double_read(const struct json_val *v, double *ret)
{
    char text[64], *end;
    if (v->type != JSON_T_NUMBER) return -EINVAL;
    if (v->len >= sizeof text) return -ERANGE;
    memcpy(text, v->p, v->len);
    text[v->len] = '\0';
    double d = strtod(text, &end);
    if (*end) return -EINVAL;
    if (!isfinite(d)) return -ERANGE;
    *ret = d;
    return 0;
}

enum { DIGITS_FIT = 18 }; /* in an int64_t */

/* Nothing but digits, as nearly always. */
static bool small_int(const struct json_val *v, int64_t *ret)
{
    int64_t n = 0;
    for (size_t i = 0; i < v->len; i++) {
        if (v->p[i] < '0' || v->p[i] > '9') return false;
        n = n * 10 + (v->p[i] - '0');
    }
    *ret = n;
    return v->len > 0;
}

int json_int_read(const struct json_val *v, int64_t *ret)
{
    char text[32], *end;
    if (v->type != JSON_T_NUMBER) return -EINVAL;
    if (v->len <= DIGITS_FIT && small_int(v, ret)) return 0;
    if (memchr(v->p, '.', v->len) || memchr(v->p, 'e', v->len) || memchr(v->p, 'E', v->len)) {
        double d; /* 4.0 and 1e3 are whole numbers too */
        int r = json_double_read(v, &d);
        if (r < 0) return r;
        if (d != floor(d)) return -EINVAL;
        if (fabs(d) > 9007199254740992.0) return -ERANGE;
        *ret = (int64_t)d;
        return 0;
    }
    if (v->len >= sizeof text) return -ERANGE;
    memcpy(text, v->p, v->len);
    text[v->len] = '\0';
    errno = 0;
    long long n = strtoll(text, &end, 10);
    if (*end) return -EINVAL;
    if (errno == ERANGE) return -ERANGE;
    *ret = n;
    return 0;
}
