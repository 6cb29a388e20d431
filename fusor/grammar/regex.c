/* A recursive descent over the expression; each level of it is a group, and these are limited. */
#include "fusor/grammar/regex.h"

#include "base/buf.h"
#include "fusor/grammar/grammar_int.h"
#include "fusor/text/unicode.h"

#include <string.h>

struct parser {
    struct gram_builder *b;
    const char *start, *p, *end;
    enum gram_spelling how;
    unsigned depth;
    struct err *err;
};
struct branch {
    gram_node what;
    bool from_start, to_end; /* "^", "$" */
};
static const struct gram_range any[] = {{0, GRAM_CHAR_MAX}};
static const struct gram_range digit[] = {{'0', '9'}};
static const struct gram_range word[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
static const struct gram_range space[] = {
    {9, 13},          {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
    {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
static const struct gram_range line_end[] = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
#define N(a) (sizeof(a) / sizeof(*(a)))

static int no(struct parser *x, int code, const char *why)
{
    return err_set(x->err, code, "%s (at byte %zu of the expression)", why,
                   (size_t)(x->p - x->start));
}

static bool peek(const struct parser *x, const char *s)
{
    const size_t n = strlen(s);

    return (size_t)(x->end - x->p) >= n && memcmp(x->p, s, n) == 0;
}

static bool skip(struct parser *x, const char *s)
{
    if (!peek(x, s)) return false;
    x->p += strlen(s);
    return true;
}

static int next_char(struct parser *x, uint32_t *ret)
{
    unsigned len;

    if (x->p >= x->end) return no(x, -EINVAL, "the expression ends too early");
    *ret = uni_decode((const uint8_t *)x->p, (size_t)(x->end - x->p), &len);
    if (*ret == UNI_BAD) return no(x, -EINVAL, "the expression is not UTF-8");
    x->p += len;
    return 0;
}

/* ---- sets: lists of ranges ---- */

static int add_ranges(struct buf *set, const struct gram_range *r, size_t n)
{
    return buf_add(set, r, n * sizeof *r);
}

static gram_node set_node(struct parser *x, const struct buf *set)
{
    return gram_chars(x->b, GRAM_ALL(*set, struct gram_range), GRAM_COUNT(*set, struct gram_range),
                      x->how);
}

static gram_node char_node(struct parser *x, uint32_t c)
{
    const struct gram_range one = {c, c};

    return gram_chars(x->b, &one, 1, x->how);
}

static int read_hex(struct parser *x, unsigned n, uint32_t *ret)
{
    uint32_t v = 0;

    for (unsigned i = 0; i < n; i++, x->p++) {
        const char c = x->p < x->end ? *x->p : 0;
        const char *const digits = "0123456789abcdefABCDEF", *d = c ? strchr(digits, c) : NULL;
        if (!d) return no(x, -EINVAL, "hexadecimal digits are missing");
        v = v * 16 + (uint32_t)(d - digits < 16 ? d - digits : d - digits - 6);
    }
    *ret = v;
    return 0;
}

/* Behind "\u": four digits, two of them for a surrogate pair, or braces. */
static int read_unicode(struct parser *x, uint32_t *ret)
{
    uint32_t low = 0;
    int rc;

    if (skip(x, "{")) {
        unsigned n = 0;
        while (n < 6 && x->p + n < x->end && x->p[n] != '}')
            n++;
        if ((rc = read_hex(x, n, ret)) < 0) return rc;
        return n > 0 && skip(x, "}") && *ret <= GRAM_CHAR_MAX
                   ? 0
                   : no(x, -EINVAL, "\\u{…} is not a character");
    }
    if ((rc = read_hex(x, 4, ret)) < 0) return rc;
    if (*ret >= 0xD800 && *ret <= 0xDBFF && skip(x, "\\u")) {
        if ((rc = read_hex(x, 4, &low)) < 0) return rc;
        *ret = 0x10000 + ((*ret - 0xD800) << 10) + (low & 0x3FF);
    }
    return 0;
}

/* Behind a "\": 1: a set was added, 0: *ret is the character. */
static int read_escape(struct parser *x, bool in_set, struct buf *set, uint32_t *ret)
{
    static const char from[] = "tnrfv0", to[] = "\t\n\r\f\v";
    const struct {
        char name;
        const struct gram_range *r;
        size_t n;
    } classes[] = {{'d', digit, N(digit)}, {'w', word, N(word)}, {'s', space, N(space)}};
    uint32_t c;
    int rc = next_char(x, &c);

    if (rc < 0) return rc;
    for (size_t i = 0; i < N(classes); i++) {
        struct gram_range copy[N(space)];
        memcpy(copy, classes[i].r, classes[i].n * sizeof *copy);
        if (c == (uint32_t)classes[i].name)
            rc = add_ranges(set, copy, classes[i].n);
        else if (c + 32 == (uint32_t)classes[i].name)
            rc = gram_other_ranges(copy, classes[i].n, set);
        else
            continue;
        return rc < 0 ? rc : 1;
    }
    *ret = c;
    if (c == 'x') return read_hex(x, 2, ret);
    if (c == 'u') return read_unicode(x, ret);
    if (c == 'b' && in_set)
        *ret = '\b';
    else if (c < 0x80 && strchr(from, (int)c) && c)
        *ret = (uint8_t)to[strchr(from, (int)c) - from];
    else if (c == 'b' || c == 'B')
        return no(x, -ENOTSUP, "\\b (a boundary) is not supported");
    else if (c == 'p' || c == 'P')
        return no(x, -ENOTSUP, "\\p{…} is not supported");
    else if (c >= '1' && c <= '9')
        return no(x, -ENOTSUP, "back-references are not supported");
    else if (c == 'A' || c == 'Z' || c == 'z' || c == 'k' || c == 'c' || c == 'G')
        return no(x, -ENOTSUP, "this escape is not supported");
    return 0;
}

/* One end of a range within brackets: as read_escape(). */
static int read_member(struct parser *x, struct buf *set, uint32_t *ret)
{
    if (skip(x, "\\")) return read_escape(x, true, set, ret);
    return next_char(x, ret);
}

/* Behind "[". */
static int read_members(struct parser *x, struct buf *set)
{
    bool first = true;

    for (;; first = false) {
        struct gram_range r;
        if (!first && skip(x, "]")) return 0;
        if (first && peek(x, "]")) /* nothing to ECMA-262, a member to Python */
            return no(x, -ENOTSUP, "a ']' that begins a set must be escaped");
        int rc = read_member(x, set, &r.lo);
        if (rc < 0) return rc;
        if (rc == 1) continue;
        r.hi = r.lo;
        if (peek(x, "-") && !peek(x, "-]")) {
            x->p++;
            rc = read_member(x, set, &r.hi);
            if (rc < 0) return rc;
            if (rc == 1 || r.hi < r.lo) return no(x, -EINVAL, "this range has no order");
        }
        if (add_ranges(set, &r, 1) < 0) return -ENOMEM;
    }
}

static int read_set(struct parser *x, gram_node *ret)
{
    const bool others = skip(x, "^");
    struct buf in = BUF_INIT, out = BUF_INIT;
    int rc = read_members(x, &in);

    if (rc == 0 && others)
        rc = gram_other_ranges(GRAM_ALL(in, struct gram_range), GRAM_COUNT(in, struct gram_range),
                               &out);
    if (rc == 0) *ret = set_node(x, others ? &out : &in);
    buf_fini(&in);
    buf_fini(&out);
    return rc;
}

/* ---- expressions ---- */

static int read_alternatives(struct parser *x, struct buf *branches);

static int read_group(struct parser *x, gram_node *ret)
{
    struct buf branches = BUF_INIT, parts = BUF_INIT;
    int rc = 0;

    if (skip(x, "?")) {
        if (peek(x, "=") || peek(x, "!") || peek(x, "<=") || peek(x, "<!"))
            return no(x, -ENOTSUP, "look-around is not supported");
        if (skip(x, "<") || skip(x, "P<"))
            while (x->p < x->end && *x->p++ != '>')
                ;
        else if (!skip(x, ":"))
            return no(x, -ENOTSUP, "flags and other (?…) are not supported");
    }
    if (++x->depth > REGEX_NEST_MAX) return no(x, -ERANGE, "groups are nested too deep");
    rc = read_alternatives(x, &branches);
    x->depth--;
    if (rc == 0 && !skip(x, ")")) rc = no(x, -EINVAL, "a ')' is missing");
    for (size_t i = 0; rc == 0 && i < GRAM_COUNT(branches, struct branch); i++) {
        const struct branch *br = &GRAM_AT(branches, struct branch, i);
        if (br->from_start || br->to_end)
            rc = no(x, -ENOTSUP, "'^' and '$' within a group are not supported");
        else
            rc = buf_add(&parts, &br->what, sizeof br->what);
    }
    if (rc == 0) *ret = gram_alt(x->b, GRAM_ALL(parts, gram_node), GRAM_COUNT(parts, gram_node));
    buf_fini(&branches);
    buf_fini(&parts);
    return rc;
}

static int read_atom(struct parser *x, gram_node *ret)
{
    struct gram_range ends[N(line_end)];
    struct buf set = BUF_INIT;
    uint32_t c = 0;
    int rc = 0;

    if (skip(x, "(")) return read_group(x, ret);
    if (skip(x, "[")) return read_set(x, ret);
    if (peek(x, "*") || peek(x, "+") || peek(x, "?"))
        return no(x, -EINVAL, "there is nothing to repeat");
    if (peek(x, "^") || peek(x, "$"))
        return no(x, -ENOTSUP, "'^' and '$' are supported at the ends only");
    if (skip(x, ".")) {
        memcpy(ends, line_end, sizeof ends);
        rc = gram_other_ranges(ends, N(ends), &set);
        if (rc == 0) rc = 1;
    } else if (skip(x, "\\")) {
        rc = read_escape(x, false, &set, &c);
    } else {
        rc = next_char(x, &c);
    }
    if (rc >= 0) *ret = rc == 1 ? set_node(x, &set) : char_node(x, c);
    buf_fini(&set);
    return rc < 0 ? rc : 0;
}

static bool read_number(struct parser *x, uint32_t *ret)
{
    const char *const from = x->p;
    uint32_t v = 0;

    for (; x->p < x->end && *x->p >= '0' && *x->p <= '9'; x->p++)
        v = v > GRAM_CODE_MAX ? v : v * 10 + (uint32_t)(*x->p - '0');
    *ret = v;
    return x->p > from;
}

/* "{m}", "{m,}", "{m,n}": else the brace is a character. */
static bool read_braces(struct parser *x, uint32_t *min, uint32_t *max)
{
    const char *const from = x->p;
    bool ok = skip(x, "{") && read_number(x, min);

    *max = *min;
    if (ok && skip(x, ",") && !read_number(x, max)) *max = GRAM_NO_END;
    ok = ok && skip(x, "}");
    if (!ok) x->p = from;
    return ok;
}

static int read_repeated(struct parser *x, gram_node *ret)
{
    uint32_t min, max;
    int rc = read_atom(x, ret);

    while (rc == 0) {
        if (skip(x, "*")) {
            min = 0;
            max = GRAM_NO_END;
        } else if (skip(x, "+")) {
            min = 1;
            max = GRAM_NO_END;
        } else if (skip(x, "?")) {
            min = 0;
            max = 1;
        } else if (!read_braces(x, &min, &max)) {
            return 0;
        }
        if (min > max) return no(x, -EINVAL, "{m,n} with m above n");
        *ret = gram_repeat(x->b, *ret, min, max);
        if (skip(x, "+")) return no(x, -ENOTSUP, "possessive repetition is not supported");
        (void)skip(x, "?"); /* lazy */
        if (peek(x, "*") || peek(x, "+") || peek(x, "?"))
            return no(x, -EINVAL, "there is nothing to repeat");
    }
    return rc;
}

static int read_branch(struct parser *x, struct branch *ret)
{
    struct buf parts = BUF_INIT;
    int rc = 0;

    *ret = (struct branch){.from_start = skip(x, "^")};
    while (rc == 0 && x->p < x->end && !peek(x, "|") && !peek(x, ")")) {
        gram_node n = GRAM_NONE;
        if (peek(x, "$") && (x->p + 1 == x->end || x->p[1] == '|' || x->p[1] == ')')) {
            x->p++;
            ret->to_end = true;
            break;
        }
        rc = read_repeated(x, &n);
        if (rc == 0) rc = buf_add(&parts, &n, sizeof n);
    }
    const size_t n = GRAM_COUNT(parts, gram_node);
    if (rc == 0) ret->what = n ? gram_seq(x->b, GRAM_ALL(parts, gram_node), n) : gram_str(x->b, "");
    buf_fini(&parts);
    return rc;
}

static int read_alternatives(struct parser *x, struct buf *branches)
{
    struct branch br;
    int rc;

    do {
        rc = read_branch(x, &br);
        if (rc == 0) rc = buf_add(branches, &br, sizeof br);
    } while (rc == 0 && skip(x, "|"));
    return rc;
}

/* What may stand around a match. */
static gram_node with_rest(struct parser *x, const struct branch *br, bool anywhere)
{
    const gram_node rest = anywhere && !(br->from_start && br->to_end)
                               ? gram_repeat(x->b, gram_chars(x->b, any, 1, x->how), 0, GRAM_NO_END)
                               : GRAM_NONE;
    gram_node part[3];
    size_t n = 0;

    if (anywhere && !br->from_start) part[n++] = rest;
    part[n++] = br->what;
    if (anywhere && !br->to_end) part[n++] = rest;
    return gram_seq(x->b, part, n);
}

int gram_regex(struct gram_builder *b, const struct gram_regex *r, gram_node *ret, struct err *err)
{
    struct parser x = {
        .b = b, .start = r->text, .p = r->text, .end = r->text + r->len, .how = r->how, .err = err};
    struct buf branches = BUF_INIT, parts = BUF_INIT;
    int rc;

    if (r->len > REGEX_BYTES_MAX)
        return err_set(err, -ERANGE, "the expression has more than %d bytes", REGEX_BYTES_MAX);
    rc = read_alternatives(&x, &branches);
    if (rc == 0 && x.p < x.end) rc = no(&x, -EINVAL, "a ')' has no '('");
    for (size_t i = 0; rc == 0 && i < GRAM_COUNT(branches, struct branch); i++) {
        const gram_node n = with_rest(&x, &GRAM_AT(branches, struct branch, i), r->anywhere);
        rc = buf_add(&parts, &n, sizeof n);
    }
    if (rc == 0) *ret = gram_alt(b, GRAM_ALL(parts, gram_node), GRAM_COUNT(parts, gram_node));
    buf_fini(&branches);
    buf_fini(&parts);
    return rc == -ENOMEM ? err_set(err, rc, "out of memory") : rc;
}
