/* Values as text: what Python's str(), repr() and json.dumps() write. What is written around a
 * string's own bytes is marked as input: no control token is spelt with it. */
#include "fusor/text/jinja_int.h"
#include "fusor/text/unicode.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct show {
    struct jj_sb sb;
    struct jj_json_style json;
    bool is_json;
};

static void put(struct show *w, const char *s)
{
    jj_sb_add(&w->sb, s, strlen(s), JINJA_INPUT);
}

/* The shortest digits that read back as the same number, in Python's layout. */
static void put_float(struct show *w, double f)
{
    char s[64], digits[24];
    if (isnan(f) || isinf(f)) {
        static const char *const json[] = {"NaN", "Infinity", "-Infinity"}, *const python[] = {
                                                                                "nan", "inf",
                                                                                "-inf"};
        return put(w, (w->is_json ? json : python)[isnan(f) ? 0 : f > 0 ? 1 : 2]);
    }
    for (int n = 0; n < 17; n++) {
        (void)snprintf(s, sizeof s, "%.*e", n, f);
        if (strtod(s, NULL) == f) break;
    }
    const char *e = strchr(s, 'e');
    const int exp = (int)strtol(e + 1, NULL, 10), negative = s[0] == '-';
    int n = 0;
    for (const char *p = s + negative; p < e; p++)
        if (*p != '.') digits[n++] = *p;
    digits[n] = 0;
    if (negative) put(w, "-");
    if (exp < -4 || exp >= 16) {
        (void)snprintf(s, sizeof s, "%c%s%se%c%02d", digits[0], n > 1 ? "." : "", digits + 1,
                       exp < 0 ? '-' : '+', abs(exp));
    } else if (exp < 0) {
        (void)snprintf(s, sizeof s, "0.%.*s%s", -exp - 1, "0000", digits);
    } else if (n <= exp + 1) {
        (void)snprintf(s, sizeof s, "%s%.*s.0", digits, exp + 1 - n, "0000000000000000");
    } else {
        (void)snprintf(s, sizeof s, "%.*s.%s", exp + 1, digits, digits + exp + 1);
    }
    put(w, s);
}

/* How a character of a quoted string is written, or "" for as it is. */
static void escape(const struct show *w, uint32_t cp, char quote, char ret[16])
{
    static const char from[] = "\n\r\t\b\f", to[] = "nrtbf";
    const char *k = cp < 0x80 && cp ? strchr(from, (int)cp) : NULL;
    ret[0] = 0;
    if (cp == '\\' || cp == (uint32_t)quote)
        (void)snprintf(ret, 16, "\\%c", (char)cp);
    else if (k && (w->is_json || k < from + 3))
        (void)snprintf(ret, 16, "\\%c", to[k - from]);
    else if (w->is_json && (cp < 0x20 || (w->json.ascii && cp >= 0x7F && cp < 0x10000)))
        (void)snprintf(ret, 16, "\\u%04x", cp);
    else if (w->is_json && w->json.ascii && cp >= 0x10000)
        (void)snprintf(ret, 16, "\\u%04x\\u%04x", 0xD800 + ((cp - 0x10000) >> 10),
                       0xDC00 + (cp & 0x3FF));
    else if (!w->is_json && !uni_printable(cp))
        (void)snprintf(ret, 16, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
}

static void put_quoted(struct show *w, const struct jinja_str *s)
{
    struct jinja_run *x = w->sb.x;
    char quote = '"', esc[16];
    if (!w->is_json) {
        const char *p = jj_flat(x, s);
        bool single = p && memchr(p, '\'', s->len), both = single && memchr(p, '"', s->len);
        quote = single && !both ? '"' : '\'';
    }
    const char q[] = {quote, 0};
    put(w, q);
    jj_cost(x, s->len);
    for (size_t k = 0; k < s->n && x->status == 0; k++) {
        const struct jinja_seg *g = &s->seg[k];
        size_t from = 0;
        unsigned len;
        for (size_t i = 0; i < g->len; i += len) {
            const uint32_t cp = uni_decode((const uint8_t *)g->p + i, g->len - i, &len);
            escape(w, cp, quote, esc);
            if (!*esc) continue;
            jj_sb_seg(&w->sb, (struct jinja_seg){g->p + from, (uint32_t)(i - from), g->mark});
            jj_sb_add(&w->sb, esc, strlen(esc), g->mark < 0 ? JINJA_INPUT : g->mark);
            from = i + len;
        }
        jj_sb_seg(&w->sb, (struct jinja_seg){g->p + from, (uint32_t)(g->len - from), g->mark});
    }
    put(w, q);
}

static void put_scalar(struct show *w, struct jinja_val v)
{
    char s[32];
    switch (v.type) {
    case JINJA_NONE:
        return put(w, w->is_json ? "null" : "None");
    case JINJA_BOOL:
        return put(w, w->is_json ? (v.b ? "true" : "false") : v.b ? "True" : "False");
    case JINJA_INT:
        (void)snprintf(s, sizeof s, "%" PRId64, v.i);
        return put(w, s);
    case JINJA_FLOAT:
        return put_float(w, v.f);
    case JINJA_UNDEFINED:
        if (!w->is_json) return put(w, "Undefined");
        /* fall through */
    default:
        (void)jj_fail(w->sb.x, -EINVAL, "%s cannot be written as %s (line %u)", jj_type_name(v),
                      w->is_json ? "JSON" : "text", w->sb.x->line);
    }
}

static void put_break(struct show *w, unsigned level)
{
    if (!w->is_json || w->json.indent < 0) return;
    put(w, "\n");
    for (unsigned i = 0; i < level * (unsigned)w->json.indent && w->sb.x->status == 0; i++)
        put(w, " ");
}

static void put_value(struct show *w, struct jinja_val v, unsigned level);

static void put_list(struct show *w, const struct jinja_list *l, unsigned level)
{
    const bool round = l->tuple && !w->is_json;
    put(w, round ? "(" : "[");
    for (size_t i = 0; i < l->n && w->sb.x->status == 0; i++) {
        if (i) jj_sb_add(&w->sb, w->json.item, w->json.item_len, JINJA_INPUT);
        put_break(w, level + 1);
        put_value(w, l->v[i], level + 1);
    }
    if (l->n) put_break(w, level);
    put(w, round ? l->n == 1 ? ",)" : ")" : "]");
}

/* JSON's keys are strings, whatever they were. */
static void put_key(struct show *w, struct jinja_val k)
{
    if (!w->is_json || k.type == JINJA_STR) return put_value(w, k, 0);
    put(w, "\"");
    put_scalar(w, k);
    put(w, "\"");
}

static void put_dict(struct show *w, const struct jinja_dict *d, unsigned level)
{
    struct jinja_run *x = w->sb.x;
    size_t *order = w->json.sort ? jj_order(x, d->key, d->n) : NULL;
    put(w, "{");
    for (size_t k = 0; k < d->n && x->status == 0; k++) {
        const size_t i = order ? order[k] : k;
        if (k) jj_sb_add(&w->sb, w->json.item, w->json.item_len, JINJA_INPUT);
        put_break(w, level + 1);
        put_key(w, d->key[i]);
        jj_sb_add(&w->sb, w->json.key, w->json.key_len, JINJA_INPUT);
        put_value(w, d->val[i], level + 1);
    }
    if (d->n) put_break(w, level);
    put(w, "}");
}

static void put_value(struct show *w, struct jinja_val v, unsigned level)
{
    struct jinja_run *x = w->sb.x;
    if (!jj_enter(x)) return;
    if (v.type == JINJA_STR)
        put_quoted(w, v.s);
    else if (v.type == JINJA_LIST)
        put_list(w, v.list, level);
    else if (v.type == JINJA_DICT)
        put_dict(w, v.dict, level);
    else
        put_scalar(w, v);
    jj_leave(x);
}

const struct jinja_str *jj_json(struct jinja_run *x, struct jinja_val v, struct jj_json_style s)
{
    struct show w = {.sb = {.x = x}, .json = s, .is_json = true};
    put_value(&w, v, 0);
    return jj_sb_done(&w.sb);
}

const struct jinja_str *jj_show(struct jinja_run *x, struct jinja_val v)
{
    static const struct jinja_str empty;
    struct show w = {.sb = {.x = x},
                     .json = {.item = ", ", .item_len = 2, .key = ": ", .key_len = 2}};
    if (v.type == JINJA_STR) return v.s;
    if (v.type == JINJA_UNDEFINED) return &empty;
    put_value(&w, v, 0);
    return jj_sb_done(&w.sb);
}
