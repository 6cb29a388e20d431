/* A recursive descent; groups nest as deep as they may. A rule is known from its first mention on.
 */
#include "fusor/grammar/gbnf.h"

#include "fusor/grammar/grammar_int.h"
#include "fusor/text/unicode.h"

#include <string.h>

enum { NAME_MAX = 64 };
struct named {
    const char *name; /* in the text */
    size_t len;
    gram_node rule;
    unsigned line; /* of its first mention */
    bool defined;
};
struct gbnf {
    struct gram_builder *b;
    const char *start, *p, *end;
    struct buf named; /* of struct named */
    unsigned depth;
    struct err *err;
};

static unsigned line_of(const struct gbnf *g)
{
    unsigned line = 1;

    for (const char *p = g->start; p < g->p; p++)
        line += *p == '\n';
    return line;
}

static int gbnf_no(struct gbnf *g, int code, const char *why)
{
    return err_set(g->err, code, "%s (line %u)", why, line_of(g));
}

static bool next_is(const struct gbnf *g, char c)
{
    return g->p < g->end && *g->p == c;
}

static bool accept_char(struct gbnf *g, char c)
{
    if (!next_is(g, c)) return false;
    g->p++;
    return true;
}

/* Spaces and comments; lines: and the ends of lines. */
static void skip_space(struct gbnf *g, bool lines)
{
    while (g->p < g->end) {
        const char c = *g->p;
        if (c == '#') {
            while (g->p < g->end && *g->p != '\n' && *g->p != '\r')
                g->p++;
        } else if (c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r'))) {
            g->p++;
        } else {
            return;
        }
    }
}

/* ---- names ---- */

static size_t name_len(const struct gbnf *g)
{
    size_t n = 0;

    for (const char *p = g->p; p < g->end; p++, n++) {
        const char c = *p, low = (char)(c | 32);
        if (!((low >= 'a' && low <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_')) break;
    }
    return n;
}

/* The rule of the name at p, which is passed. */
static int read_name(struct gbnf *g, struct named **ret)
{
    const size_t len = name_len(g), n = GRAM_COUNT(g->named, struct named);
    struct named x = {.name = g->p, .len = len, .line = line_of(g)};
    char label[NAME_MAX + 1];

    if (len == 0) return gbnf_no(g, -EINVAL, "a name is missing");
    if (len > NAME_MAX) return gbnf_no(g, -ERANGE, "this name is too long");
    g->p += len;
    for (size_t i = 0; i < n; i++) {
        *ret = &GRAM_AT(g->named, struct named, i);
        if ((*ret)->len == len && memcmp((*ret)->name, x.name, len) == 0) return 0;
    }
    if (n >= GBNF_RULES_MAX) return gbnf_no(g, -ERANGE, "there are too many rules");
    memcpy(label, x.name, len);
    label[len] = 0;
    x.rule = gram_rule(g->b, label);
    if (buf_add(&g->named, &x, sizeof x) < 0) return -ENOMEM;
    *ret = &GRAM_AT(g->named, struct named, n);
    return 0;
}

/* ---- characters ---- */

static int read_hex_digits(struct gbnf *g, unsigned n, uint32_t *ret)
{
    uint32_t v = 0;

    for (unsigned i = 0; i < n; i++, g->p++) {
        static const char digits[] = "0123456789abcdef";
        const char *d = g->p < g->end && *g->p ? strchr(digits, *g->p | 32) : NULL;
        if (!d) return gbnf_no(g, -EINVAL, "hexadecimal digits are missing");
        v = v * 16 + (uint32_t)(d - digits);
    }
    if (v > GRAM_CHAR_MAX) return gbnf_no(g, -EINVAL, "this is no character");
    *ret = v;
    return 0;
}

static int read_char(struct gbnf *g, uint32_t *ret)
{
    static const char from[] = "nrt\\\"[]-^/'", to[] = "\n\r\t\\\"[]-^/'";
    unsigned len;

    if (g->p >= g->end || *g->p == '\n') return gbnf_no(g, -EINVAL, "the line ends too early");
    if (!accept_char(g, '\\')) {
        *ret = uni_decode((const uint8_t *)g->p, (size_t)(g->end - g->p), &len);
        if (*ret == UNI_BAD) return gbnf_no(g, -EINVAL, "this is not UTF-8");
        g->p += len;
        return 0;
    }
    if (accept_char(g, 'x')) return read_hex_digits(g, 2, ret);
    if (accept_char(g, 'u')) return read_hex_digits(g, 4, ret);
    if (accept_char(g, 'U')) return read_hex_digits(g, 8, ret);
    const char *const e = g->p < g->end && *g->p ? strchr(from, *g->p) : NULL;
    if (!e) return gbnf_no(g, -EINVAL, "this escape is not known");
    *ret = (uint8_t)to[e - from];
    g->p++;
    return 0;
}

static int read_literal(struct gbnf *g, gram_node *ret)
{
    struct buf part = BUF_INIT;
    int rc = 0;

    while (rc == 0 && !accept_char(g, '"')) {
        struct gram_range one;
        rc = read_char(g, &one.lo);
        one.hi = one.lo;
        const gram_node n = rc == 0 ? gram_chars(g->b, &one, 1, GRAM_PLAIN) : GRAM_NONE;
        if (rc == 0) rc = buf_add(&part, &n, sizeof n);
    }
    const size_t n = GRAM_COUNT(part, gram_node);
    if (rc == 0) *ret = n ? gram_seq(g->b, GRAM_ALL(part, gram_node), n) : gram_str(g->b, "");
    buf_fini(&part);
    return rc;
}

static int read_ranges(struct gbnf *g, struct buf *set)
{
    while (!accept_char(g, ']')) {
        struct gram_range r;
        int rc = read_char(g, &r.lo);
        r.hi = r.lo;
        if (rc == 0 && next_is(g, '-') && g->p + 1 < g->end && g->p[1] != ']') {
            g->p++;
            rc = read_char(g, &r.hi);
            if (rc == 0 && r.hi < r.lo) rc = gbnf_no(g, -EINVAL, "this range has no order");
        }
        if (rc == 0) rc = buf_add(set, &r, sizeof r);
        if (rc < 0) return rc;
    }
    return 0;
}

static int read_char_set(struct gbnf *g, gram_node *ret)
{
    const bool others = accept_char(g, '^');
    struct buf set = BUF_INIT, rest = BUF_INIT;
    int rc = read_ranges(g, &set);
    size_t n = GRAM_COUNT(set, struct gram_range);

    if (rc == 0 && others) rc = gram_other_ranges(GRAM_ALL(set, struct gram_range), n, &rest);
    if (others) n = GRAM_COUNT(rest, struct gram_range);
    if (rc == 0)
        *ret = gram_chars(g->b, GRAM_ALL(others ? rest : set, struct gram_range), n, GRAM_PLAIN);
    buf_fini(&set);
    buf_fini(&rest);
    return rc;
}

/* ---- sequences ---- */

static int read_choice(struct gbnf *g, bool nested, gram_node *ret);

static int read_item(struct gbnf *g, gram_node *ret)
{
    static const struct gram_range all = {0, GRAM_CHAR_MAX};
    struct named *x;
    int rc;

    if (accept_char(g, '"')) return read_literal(g, ret);
    if (accept_char(g, '[')) return read_char_set(g, ret);
    if (accept_char(g, '.')) {
        *ret = gram_chars(g->b, &all, 1, GRAM_PLAIN);
        return 0;
    }
    if (accept_char(g, '(')) {
        if (++g->depth > GBNF_NEST_MAX) return gbnf_no(g, -ERANGE, "groups are nested too deep");
        skip_space(g, true);
        rc = read_choice(g, true, ret);
        g->depth--;
        if (rc == 0 && !accept_char(g, ')')) rc = gbnf_no(g, -EINVAL, "a ')' is missing");
        return rc;
    }
    if (next_is(g, '<') || next_is(g, '!'))
        return gbnf_no(g, -ENOTSUP, "tokens (<…>) are not supported");
    if (name_len(g) == 0) return gbnf_no(g, -EINVAL, "this is no literal, set, group or name");
    rc = read_name(g, &x);
    if (rc == 0) *ret = x->rule;
    return rc;
}

static bool read_count(struct gbnf *g, uint32_t *ret)
{
    const char *const from = g->p;
    uint32_t v = 0;

    for (; g->p < g->end && *g->p >= '0' && *g->p <= '9'; g->p++)
        v = v > GRAM_CODE_MAX ? v : v * 10 + (uint32_t)(*g->p - '0');
    if (g->p > from) *ret = v;
    return g->p > from;
}

/* 1: there was a repetition; 0: none. */
static int read_times(struct gbnf *g, uint32_t *min, uint32_t *max)
{
    *min = 0;
    *max = GRAM_NO_END;
    if (accept_char(g, '*')) return 1;
    if (accept_char(g, '+')) {
        *min = 1;
        return 1;
    }
    if (accept_char(g, '?')) {
        *max = 1;
        return 1;
    }
    if (!accept_char(g, '{')) return 0;
    skip_space(g, false);
    const bool from = read_count(g, min);
    skip_space(g, false);
    bool comma = accept_char(g, ',');
    skip_space(g, false);
    const bool to = comma && read_count(g, max);
    if (!comma) *max = *min;
    skip_space(g, false);
    if ((!from && !to) || !accept_char(g, '}') || *min > *max)
        return gbnf_no(g, -EINVAL, "this is no {m}, {m,} or {m,n}");
    return 1;
}

static int read_sequence(struct gbnf *g, bool nested, gram_node *ret)
{
    struct buf part = BUF_INIT;
    uint32_t min, max;
    int rc = 0;

    while (rc == 0 && g->p < g->end && !strchr("|)\n\r", *g->p)) {
        gram_node n = GRAM_NONE;
        rc = read_item(g, &n);
        skip_space(g, nested);
        while (rc == 0 && (rc = read_times(g, &min, &max)) == 1) {
            n = gram_repeat(g->b, n, min, max);
            skip_space(g, nested);
            rc = 0;
        }
        if (rc == 0) rc = buf_add(&part, &n, sizeof n);
    }
    const size_t n = GRAM_COUNT(part, gram_node);
    if (rc == 0) *ret = n ? gram_seq(g->b, GRAM_ALL(part, gram_node), n) : gram_str(g->b, "");
    buf_fini(&part);
    return rc;
}

static int read_choice(struct gbnf *g, bool nested, gram_node *ret)
{
    struct buf part = BUF_INIT;
    gram_node n;
    int rc;

    do {
        skip_space(g, true);
        rc = read_sequence(g, nested, &n);
        if (rc == 0) rc = buf_add(&part, &n, sizeof n);
    } while (rc == 0 && accept_char(g, '|'));
    if (rc == 0) *ret = gram_alt(g->b, GRAM_ALL(part, gram_node), GRAM_COUNT(part, gram_node));
    buf_fini(&part);
    return rc;
}

static int read_rule(struct gbnf *g)
{
    struct named *x;
    gram_node what = GRAM_NONE;
    int rc = read_name(g, &x);

    if (rc < 0) return rc;
    const size_t at = (size_t)(x - GRAM_ALL(g->named, struct named));
    if (x->defined) return gbnf_no(g, -EINVAL, "this rule is there already");
    x->defined = true;
    skip_space(g, false);
    if (!(accept_char(g, ':') && accept_char(g, ':') && accept_char(g, '=')))
        return gbnf_no(g, -EINVAL, "'::=' is missing behind the name of a rule");
    rc = read_choice(g, false, &what);
    if (rc < 0) return rc;
    if (g->p < g->end && *g->p != '\n' && *g->p != '\r')
        return gbnf_no(g, -EINVAL, "a ')' has no '('");
    gram_define(g->b, GRAM_AT(g->named, struct named, at).rule, what);
    skip_space(g, true);
    return 0;
}

static int find_root(struct gbnf *g, gram_node *ret)
{
    *ret = GRAM_NONE;
    for (size_t i = 0; i < GRAM_COUNT(g->named, struct named); i++) {
        const struct named *x = &GRAM_AT(g->named, struct named, i);
        if (!x->defined)
            return err_set(g->err, -EINVAL, "the rule '%.*s' is not defined (line %u)", (int)x->len,
                           x->name, x->line);
        if (x->len == 4 && memcmp(x->name, "root", 4) == 0) *ret = x->rule;
    }
    if (*ret == GRAM_NONE && gram_builder_status(g->b) == 0)
        return err_set(g->err, -EINVAL, "there is no rule 'root'");
    return 0;
}

int gram_gbnf(struct gram_builder *b, const char *text, size_t len, gram_node *ret, struct err *err)
{
    struct gbnf g = {.b = b, .start = text, .p = text, .end = text + len, .err = err};
    int rc = 0;

    if (len > GBNF_BYTES_MAX)
        return err_set(err, -ERANGE, "the grammar has more than %d bytes", GBNF_BYTES_MAX);
    skip_space(&g, true);
    while (rc == 0 && g.p < g.end)
        rc = read_rule(&g);
    if (rc == 0) rc = find_root(&g, ret);
    buf_fini(&g.named);
    return rc == -ENOMEM ? err_set(err, rc, "out of memory") : rc;
}
