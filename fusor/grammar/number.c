/* Numbers between bounds. The digits are gone through from the left with what is known so far:
 * whether they are still those of the lower bound, of the upper one, and the remainder by the
 * factor. Each such place is a rule, made once. */
#include "fusor/grammar/number.h"

#include "base/mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PART_USUAL = 10 /* chosen: digits behind the point of a number with bounds */ };

int gram_decimal_read(const char *text, struct gram_decimal *ret)
{
    struct gram_decimal d = {.negative = *text == '-'};
    const char *p = text + d.negative, *const e = strpbrk(p, "eE");
    const size_t len = e ? (size_t)(e - p) : strlen(p);
    const long exponent = e ? strtol(e + 1, NULL, 10) : 0;
    const char *const point = memchr(p, '.', len);
    long at = (point ? point - p : (long)len) + exponent; /* digits before the point */

    if (exponent > 400 || exponent < -400) return -ERANGE;
    for (size_t i = 0; i < len; i++) {
        const uint8_t x = (uint8_t)(p[i] - '0');
        if (p[i] == '.') continue;
        if (at > 0 && (x > 0 || d.n_whole > 0)) {
            if (d.n_whole == NUMBER_WHOLE_MAX) return -ERANGE;
            d.whole[d.n_whole++] = x;
        } else if (at <= 0 && x > 0) {
            const long place = -at;
            if (place >= NUMBER_PART_MAX) return -ERANGE;
            d.part[place] = x;
            d.n_part = (unsigned)place + 1;
        }
        at--;
    }
    for (; at > 0 && d.n_whole > 0; at--) {
        if (d.n_whole == NUMBER_WHOLE_MAX) return -ERANGE;
        d.whole[d.n_whole++] = 0;
    }
    *ret = d;
    return 0;
}

static bool is_zero(const struct gram_decimal *d)
{
    return d->n_whole == 0 && d->n_part == 0;
}

static int magnitude_order(const struct gram_decimal *a, const struct gram_decimal *b)
{
    if (a->n_whole != b->n_whole) return a->n_whole < b->n_whole ? -1 : 1;
    const int c = memcmp(a->whole, b->whole, a->n_whole);
    return c ? c : memcmp(a->part, b->part, sizeof a->part); /* zeros behind the last digit */
}

int gram_decimal_order(const struct gram_decimal *a, const struct gram_decimal *b)
{
    const bool na = a->negative && !is_zero(a), nb = b->negative && !is_zero(b);

    if (na != nb) return na ? -1 : 1;
    return na ? magnitude_order(b, a) : magnitude_order(a, b);
}

/* ---- digits ---- */

struct digits { /* of magnitudes from lo to hi */
    struct gram_builder *b;
    struct gram_decimal lo, hi;
    bool lo_excluded, hi_excluded;
    bool whole_only;
    unsigned n_part; /* digits behind the point, at most */
    uint32_t factor;
    unsigned factor_part;
    gram_node *rule; /* by place: see rule_at() */
};
struct place {
    unsigned left;     /* digits before the point that are still to come */
    unsigned part;     /* digits behind it that are there, plus 1 once it is written */
    bool at_lo, at_hi; /* so far the digits are the bound's */
    uint32_t rest;     /* by the factor */
};

static size_t n_rules(const struct digits *d)
{
    return (size_t)4 * (NUMBER_WHOLE_MAX + 1 + d->n_part + 2) * (d->factor ? d->factor : 1);
}

static gram_node *rule_at(const struct digits *d, const struct place *p)
{
    const size_t i = p->left > 0 || p->part == 0 ? p->left : NUMBER_WHOLE_MAX + p->part;

    return &d->rule[((i * 2 + p->at_lo) * 2 + p->at_hi) * (d->factor ? d->factor : 1) + p->rest];
}

/* The digit of a bound at this place. */
static uint8_t bound_digit(const struct gram_decimal *bound, const struct place *p)
{
    if (p->left > 0) return bound->whole[bound->n_whole - p->left];
    return p->part > 0 && p->part <= NUMBER_PART_MAX ? bound->part[p->part - 1] : 0;
}

static bool rest_is_zero(const struct gram_decimal *bound, unsigned from)
{
    return from >= bound->n_part; /* its last digit is none */
}

/* May the number end here, with all whole digits there? */
static bool may_end(const struct digits *d, const struct place *p)
{
    const unsigned there = p->part > 0 ? p->part - 1 : 0;
    uint64_t rest = p->rest;

    if (p->at_lo && (!rest_is_zero(&d->lo, there) || d->lo_excluded)) return false;
    if (p->at_hi && rest_is_zero(&d->hi, there) && d->hi_excluded) return false;
    for (unsigned i = there; d->factor && i < d->factor_part; i++)
        rest = rest * 10 % d->factor;
    return rest == 0;
}

static struct place behind(const struct digits *d, struct place p, uint8_t digit)
{
    p.at_lo = p.at_lo && digit == bound_digit(&d->lo, &p);
    p.at_hi = p.at_hi && digit == bound_digit(&d->hi, &p);
    if (d->factor) p.rest = (p.rest * 10 + digit) % d->factor;
    if (p.left > 0)
        p.left--;
    else
        p.part++;
    return p;
}

static gram_node digit_node(struct gram_builder *b, unsigned lo, unsigned hi)
{
    const struct gram_range r = {'0' + lo, '0' + hi};

    return gram_chars(b, &r, 1, GRAM_PLAIN);
}

static gram_node place_rule(struct digits *d, const struct place *p);

/* Digits from `from` on, grouped by where they lead. Appends at most ten parts. */
static size_t digit_parts(struct digits *d, const struct place *p, unsigned from, gram_node *part)
{
    const unsigned lo = p->at_lo && bound_digit(&d->lo, p) > from ? bound_digit(&d->lo, p) : from;
    const unsigned hi = p->at_hi ? bound_digit(&d->hi, p) : 9;
    size_t n = 0;

    for (unsigned x = lo, y; x <= hi; x = y) {
        const struct place to = behind(d, *p, (uint8_t)x);
        for (y = x + 1; y <= hi; y++) {
            const struct place other = behind(d, *p, (uint8_t)y);
            if (other.at_lo != to.at_lo || other.at_hi != to.at_hi || other.rest != to.rest) break;
        }
        part[n++] = GRAM_SEQ(d->b, digit_node(d->b, x, y - 1), place_rule(d, &to));
    }
    return n;
}

/* What may stand from this place on. Recursion: once for each digit. */
static gram_node place_rule(struct digits *d, const struct place *p)
{
    gram_node *const rule = rule_at(d, p), part[12];
    size_t n = 0;

    if (*rule != GRAM_NONE || gram_builder_status(d->b) < 0) return *rule;
    *rule = gram_rule(d->b, NULL);
    if (p->left == 0 && may_end(d, p)) part[n++] = gram_str(d->b, "");
    if (p->left > 0) {
        n += digit_parts(d, p, 0, part + n);
    } else if (p->part == 0 && !d->whole_only && d->n_part > 0) {
        struct place point = *p;
        point.part = 1;
        const size_t digits = digit_parts(d, &point, 0, part + n);
        part[n] = GRAM_SEQ(d->b, gram_str(d->b, "."), gram_alt(d->b, part + n, digits));
        n++;
    } else if (p->part > 0 && p->part <= d->n_part) {
        n += digit_parts(d, p, 0, part + n);
    }
    gram_define(d->b, *rule, gram_alt(d->b, part, n));
    return *rule;
}

/* Magnitudes of each number of digits before the point. */
static gram_node magnitudes(struct digits *d)
{
    const unsigned from = d->lo.n_whole ? d->lo.n_whole : 1, to = d->hi.n_whole ? d->hi.n_whole : 1;
    gram_node part[NUMBER_WHOLE_MAX * 10 + 1];
    size_t n = 0;

    if (magnitude_order(&d->lo, &d->hi) > 0) return gram_alt(d->b, NULL, 0);
    for (unsigned len = from; len <= to; len++) {
        struct place p = {.left = len,
                          .at_lo = len == d->lo.n_whole || (len == 1 && d->lo.n_whole == 0),
                          .at_hi = len == d->hi.n_whole || (len == 1 && d->hi.n_whole == 0)};
        /* 0 stands alone; a bound of no digits is that 0. */
        const bool zero = len == 1 && d->lo.n_whole == 0;
        if (zero) {
            const struct place at = {.at_lo = true, .at_hi = d->hi.n_whole == 0};
            part[n++] = GRAM_SEQ(d->b, gram_str(d->b, "0"), place_rule(d, &at));
            p.at_lo = false;
            if (d->hi.n_whole == 0) continue;
        }
        n += digit_parts(d, &p, 1, part + n);
    }
    return gram_alt(d->b, part, n);
}

static const struct gram_decimal largest = {
    .n_whole = NUMBER_WHOLE_MAX,
    .n_part = NUMBER_PART_MAX,
    .whole = {9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9},
    .part = {9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9}};

/* One sign's magnitudes: rules of its own. */
static int sign_node(struct digits d, gram_node *ret)
{
    d.rule = mem_zalloc(n_rules(&d) * sizeof *d.rule);
    if (!d.rule) return -ENOMEM;
    *ret = magnitudes(&d);
    mem_free(d.rule);
    return 0;
}

static gram_node plain_number(struct gram_builder *b, bool whole_only)
{
    const gram_node digit = digit_node(b, 0, 9);
    const gram_node minus = gram_repeat(b, gram_str(b, "-"), 0, 1);
    const gram_node whole =
        GRAM_ALT(b, gram_str(b, "0"),
                 GRAM_SEQ(b, digit_node(b, 1, 9), gram_repeat(b, digit, 0, NUMBER_WHOLE_MAX - 1)));
    const struct gram_range e[] = {{'E', 'E'}, {'e', 'e'}}, sign[] = {{'+', '+'}, {'-', '-'}};

    if (whole_only) return GRAM_SEQ(b, minus, whole);
    const gram_node part =
        GRAM_SEQ(b, gram_str(b, "."), gram_repeat(b, digit, 1, NUMBER_WHOLE_MAX));
    const gram_node power = GRAM_SEQ(b, gram_chars(b, e, 2, GRAM_PLAIN),
                                     gram_repeat(b, gram_chars(b, sign, 2, GRAM_PLAIN), 0, 1),
                                     gram_repeat(b, digit, 1, 2)); /* within a double's range */
    return GRAM_SEQ(b, minus, whole, gram_repeat(b, part, 0, 1), gram_repeat(b, power, 0, 1));
}

int gram_number(struct gram_builder *b, const struct gram_numbers *n, gram_node *ret)
{
    const struct gram_decimal zero = {0};
    const bool below = !n->has_min || (n->min.negative && !is_zero(&n->min));
    const bool above = !n->has_max || !n->max.negative || is_zero(&n->max);
    struct digits d = {.b = b,
                       .whole_only = n->whole_only,
                       .factor = n->factor == 1 && n->factor_part == 0 ? 0 : n->factor,
                       .factor_part = n->factor_part};
    gram_node plus = GRAM_NONE, minus = GRAM_NONE;
    int rc = 0;

    if (!n->has_min && !n->has_max && n->factor == 0) {
        *ret = plain_number(b, n->whole_only);
        return 0;
    }
    if (n->factor > NUMBER_FACTOR_MAX || n->factor_part > PART_USUAL) return -ERANGE;
    d.whole_only |= n->factor > 0 && n->factor_part == 0;
    d.n_part = PART_USUAL;
    if (n->has_min && n->min.n_part > d.n_part) d.n_part = n->min.n_part;
    if (n->has_max && n->max.n_part > d.n_part) d.n_part = n->max.n_part;
    if (n->factor) d.n_part = n->factor_part;
    plus = minus = gram_alt(b, NULL, 0);
    if (above) {
        d.lo = below ? zero : n->min;
        d.lo_excluded = !below && n->min_excluded;
        d.hi = n->has_max ? n->max : largest;
        d.hi_excluded = n->has_max && n->max_excluded;
        rc = sign_node(d, &plus);
    }
    if (rc == 0 && below) { /* magnitudes of what is below zero: the bounds change places */
        d.lo = above ? zero : n->max;
        d.lo_excluded = above || n->max_excluded;
        d.hi = n->has_min ? n->min : largest;
        d.hi_excluded = n->has_min && n->min_excluded;
        rc = sign_node(d, &minus);
    }
    *ret = GRAM_ALT(b, plus, GRAM_SEQ(b, gram_str(b, "-"), minus));
    return rc;
}
