/* Filters, tests and global functions. */
#include "fusor/text/jinja_word.h"
#include "fusor/text/unicode.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FILTER(name)                                                                               \
    static struct jinja_val name(struct jinja_run *x, struct jinja_val self,                       \
                                 const struct jinja_val *arg)

static struct jinja_val wrong_type(struct jinja_run *x, const char *filter, struct jinja_val v)
{
    return jj_fail(x, -EINVAL, "%s cannot take %s (line %u)", filter, jj_type_name(v), x->line);
}

/* An option that is a whole number within +-1 000 000; `otherwise` where it is not given. */
static int option(struct jinja_run *x, struct jinja_val v, int otherwise)
{
    if (v.type == JINJA_UNDEFINED || v.type == JINJA_NONE) return otherwise;
    if (v.type == JINJA_BOOL) return v.b;
    if (v.type == JINJA_INT && v.i >= -1000000 && v.i <= 1000000) return (int)v.i;
    (void)jj_fail(x, -EINVAL, "a small whole number is expected (line %u)", x->line);
    return otherwise;
}

/* ---- text ---- */
FILTER(f_trim)
{
    return jj_of_str(jj_strip(x, jj_show(x, self), arg[0], JJ_LEFT | JJ_RIGHT));
}

#define CASE_FILTER(name, to)                                                                      \
    FILTER(name)                                                                                   \
    {                                                                                              \
        const struct jinja_str *s = jj_show(x, self);                                              \
        (void)arg;                                                                                 \
        return s ? jj_of_str(jj_case(x, s, to)) : jj_undefined;                                    \
    }
CASE_FILTER(f_upper, JJ_UPPER)
CASE_FILTER(f_lower, JJ_LOWER)
CASE_FILTER(f_capitalize, JJ_CAPITALIZE)
CASE_FILTER(f_title, JJ_WORDS)

FILTER(f_string)
{
    (void)arg;
    return jj_of_str(jj_show(x, self));
}

FILTER(f_same)
{
    (void)x;
    (void)arg;
    return self;
}

FILTER(f_replace)
{
    const struct jinja_str *s = jj_show(x, self), *from = jj_show(x, arg[0]),
                           *to = jj_show(x, arg[1]);
    if (!s || !from || !to) return jj_undefined;
    return jj_of_str(jj_replace(x, s, from, to, option(x, arg[2], -1)));
}

/* Python's %, with %s, %d and %%. What is undefined is empty, as a missing argument is. */
FILTER(f_format)
{
    const struct jinja_str *s = jj_show(x, self);
    const char *p = s ? jj_flat(x, s) : NULL, *at, *end = p ? p + s->len : NULL;
    struct jj_sb sb = {.x = x};
    unsigned used = 0;
    for (; p && (at = memchr(p, '%', (size_t)(end - p))) && x->status == 0; p = at + 2) {
        const size_t from = s->len - (size_t)(end - p), to = s->len - (size_t)(end - at);
        const char kind = at + 1 < end ? at[1] : 0;
        const bool fits =
            kind == '%' ||
            (used < JJ_PARAMS_MAX && (kind == 's' || (kind == 'd' && arg[used].type == JINJA_INT)));
        if (!fits) return jj_fail(x, -EINVAL, "no such format (line %u)", x->line);
        jj_sb_str(&sb, jj_sub(x, s, from, kind == '%' ? to + 1 : to));
        if (kind != '%') jj_sb_str(&sb, jj_show(x, arg[used++]));
    }
    if (p) jj_sb_str(&sb, jj_sub(x, s, s->len - (size_t)(end - p), s->len));
    if (used < JJ_PARAMS_MAX && arg[used].type != JINJA_UNDEFINED)
        return jj_fail(x, -EINVAL, "more values than the format has (line %u)", x->line);
    return jj_of_str(jj_sb_done(&sb));
}

FILTER(f_indent)
{
    const struct jinja_str *s = jj_show(x, self);
    const int width = option(x, arg[0], 4);
    const bool first = jj_true(arg[1]), blank = jj_true(arg[2]);
    const char *p = s ? jj_flat(x, s) : NULL;
    struct jj_sb sb = {.x = x};
    bool start = first;
    for (size_t i = 0, end; p && i < s->len && x->status == 0; i = end) {
        const char *nl = memchr(p + i, '\n', s->len - i);
        end = nl ? (size_t)(nl - p) + 1 : s->len;
        for (int k = 0; start && (blank || p[i] != '\n') && k < width && x->status == 0; k++)
            jj_sb_add(&sb, " ", 1, JINJA_TEMPLATE);
        jj_sb_str(&sb, jj_sub(x, s, i, end));
        start = true;
    }
    return jj_of_str(jj_sb_done(&sb));
}

FILTER(f_tojson)
{
    struct jj_json_style s = {.item = ", ", .item_len = 2, .key = ": ", .key_len = 2, .indent = -1};
    s.indent = option(x, arg[0], -1);
    if (s.indent > 64) return jj_fail(x, -EINVAL, "indent is too large (line %u)", x->line);
    if (s.indent >= 0) s.item = ",", s.item_len = 1;
    if (arg[1].type == JINJA_LIST && arg[1].list->n == 2) {
        const struct jinja_str *item = jj_show(x, arg[1].list->v[0]),
                               *key = jj_show(x, arg[1].list->v[1]);
        if (!item || !key) return jj_undefined;
        s.item = jj_flat(x, item), s.item_len = item->len;
        s.key = jj_flat(x, key), s.key_len = key->len;
    }
    s.ascii = jj_true(arg[2]);
    s.sort = jj_true(arg[3]);
    return x->status ? jj_undefined : jj_of_str(jj_json(x, self, s));
}

/* ---- numbers ---- */
FILTER(f_length)
{
    (void)arg;
    if (self.type == JINJA_STR) return jj_int((int64_t)jj_chars(x, self.s));
    if (self.type == JINJA_LIST) return jj_int((int64_t)self.list->n);
    if (self.type == JINJA_DICT) return jj_int((int64_t)self.dict->n);
    if (self.type == JINJA_UNDEFINED) return jj_int(0);
    return wrong_type(x, "length", self);
}

/* The number that a string says, undefined if none; of a whole one that 64 bits hold all digits. */
static struct jinja_val read_number(struct jinja_run *x, const struct jinja_str *s)
{
    char text[64], *end;
    const struct jinja_str *bare = jj_strip(x, s, jj_undefined, JJ_LEFT | JJ_RIGHT);
    const char *p = bare ? jj_flat(x, bare) : NULL;
    struct jinja_val v = {.type = JINJA_FLOAT};
    if (!p || bare->len == 0 || bare->len >= sizeof text) return jj_undefined;
    memcpy(text, p, bare->len);
    text[bare->len] = 0;
    if (strspn(text, "0123456789+-.eE") != bare->len) return jj_undefined;
    errno = 0;
    const long long i = strtoll(text, &end, 10);
    if (*end == 0 && errno == 0) return jj_int(i);
    v.f = strtod(text, &end);
    return *end == 0 ? v : jj_undefined;
}

FILTER(f_int)
{
    double d;
    if (self.type == JINJA_STR) self = read_number(x, self.s);
    if (self.type == JINJA_INT) return self;
    if (jj_number(self, &d) && fabs(d) < 9e18) return jj_int((int64_t)d);
    return arg[0].type == JINJA_UNDEFINED ? jj_int(0) : arg[0];
}

FILTER(f_float)
{
    struct jinja_val v = {.type = JINJA_FLOAT};
    if (self.type == JINJA_STR) self = read_number(x, self.s);
    return jj_number(self, &v.f) || arg[0].type == JINJA_UNDEFINED ? v : arg[0];
}

FILTER(f_abs)
{
    (void)arg;
    if (self.type == JINJA_BOOL) return jj_int(self.b);
    if (self.type == JINJA_INT && self.i > INT64_MIN) return jj_int(self.i < 0 ? -self.i : self.i);
    if (self.type != JINJA_FLOAT) return wrong_type(x, "abs", self);
    self.f = fabs(self.f);
    return self;
}

/* Python's round(): a half goes to the even neighbour. */
FILTER(f_round)
{
    struct jinja_val v = {.type = JINJA_FLOAT};
    const int digits = option(x, arg[0], 0);
    if (!jj_number(self, &v.f)) return wrong_type(x, "round", self);
    if (arg[1].type != JINJA_UNDEFINED || digits < 0 || digits > 15)
        return jj_fail(x, -EINVAL, "round: 0 to 15 digits, by the common method (line %u)",
                       x->line);
    if (self.type != JINJA_FLOAT) return self.type == JINJA_INT ? self : jj_int(self.b);
    const double scale = pow(10, digits);
    v.f = nearbyint(v.f * scale) / scale;
    return v;
}

/* ---- what is there ---- */
FILTER(f_default)
{
    (void)x;
    const bool missing = self.type == JINJA_UNDEFINED || (jj_true(arg[1]) && !jj_true(self));
    if (!missing) return self;
    static const struct jinja_str empty;
    return arg[0].type == JINJA_UNDEFINED ? jj_of_str(&empty) : arg[0];
}

FILTER(f_first)
{
    const struct jinja_list *l = jj_items(x, self);
    (void)arg;
    return l && l->n ? l->v[0] : jj_undefined;
}

FILTER(f_last)
{
    const struct jinja_list *l = jj_items(x, self);
    (void)arg;
    return l && l->n ? l->v[l->n - 1] : jj_undefined;
}

FILTER(f_list)
{
    const struct jinja_list *l = jj_items(x, self);
    struct jinja_list *copy = l ? jj_new_list(x, l->n) : NULL;
    (void)arg;
    if (copy && l->n) memcpy(copy->v, l->v, l->n * sizeof *l->v);
    return jj_of_list(copy);
}

FILTER(f_reverse)
{
    const struct jinja_list *l = jj_items(x, self);
    struct jinja_list *copy = l ? jj_new_list(x, l->n) : NULL;
    (void)arg;
    for (size_t i = 0; copy && i < l->n; i++)
        copy->v[i] = l->v[l->n - 1 - i];
    if (self.type != JINJA_STR || !copy) return jj_of_list(copy);
    static const struct jinja_str empty;
    return jj_join_list(x, jj_of_list(copy), &empty);
}

FILTER(f_items)
{
    (void)arg;
    if (self.type == JINJA_UNDEFINED) return jj_of_list(jj_new_list(x, 0));
    return self.type == JINJA_DICT ? jj_pairs(x, self.dict) : wrong_type(x, "items", self);
}

/* v.a.b for "a.b", of each; a number is a place. */
static struct jinja_val path(struct jinja_run *x, struct jinja_val v, const struct jinja_str *name)
{
    const char *p = jj_flat(x, name), *end = p ? p + name->len : NULL;
    while (p && p <= end && x->status == 0) {
        const char *dot = memchr(p, '.', (size_t)(end - p));
        const size_t len = (size_t)((dot ? dot : end) - p);
        char digits[8] = {0};
        const size_t n = len < sizeof digits ? len : 0;
        memcpy(digits, p, n);
        if (n && strspn(digits, "0123456789") == n)
            v = jj_item(x, v, jj_int(strtol(digits, NULL, 10)));
        else
            v = jj_item(x, v, jinja_text(x, p, len, JINJA_TEMPLATE));
        p = dot ? dot + 1 : NULL;
    }
    return v;
}

static struct jinja_val part(struct jinja_run *x, struct jinja_val v, struct jinja_val attribute)
{
    if (attribute.type == JINJA_STR) return path(x, v, attribute.s);
    return attribute.type == JINJA_INT ? jj_item(x, v, attribute) : v;
}

static struct jinja_val parts(struct jinja_run *x, const struct jinja_list *l,
                              struct jinja_val attribute)
{
    struct jinja_list *to = l ? jj_new_list(x, l->n) : NULL;
    for (size_t i = 0; to && i < l->n && x->status == 0; i++)
        to->v[i] = part(x, l->v[i], attribute);
    return jj_of_list(to);
}

FILTER(f_join)
{
    static const struct jinja_str empty;
    const struct jinja_str *between = arg[0].type == JINJA_UNDEFINED ? &empty : jj_show(x, arg[0]);
    if (arg[1].type != JINJA_UNDEFINED) self = parts(x, jj_items(x, self), arg[1]);
    return jj_join_list(x, self, between);
}

FILTER(f_sum)
{
    const struct jinja_list *l = jj_items(x, self);
    double sum = 0, one;
    bool whole = true;
    for (size_t i = 0; l && i < l->n && x->status == 0; i++) {
        struct jinja_val v = part(x, l->v[i], arg[0]);
        jj_cost(x, 0);
        if (!jj_number(v, &one)) return wrong_type(x, "sum", v);
        whole = whole && v.type != JINJA_FLOAT;
        sum += one;
    }
    if (whole && fabs(sum) < 9e15) return jj_int((int64_t)sum);
    return (struct jinja_val){.type = JINJA_FLOAT, .f = sum};
}

/* What strings are sorted and compared by where case does not count. */
static struct jinja_val folded(struct jinja_run *x, struct jinja_val v, bool case_sensitive)
{
    if (v.type != JINJA_STR || case_sensitive) return v;
    return jj_of_str(jj_case(x, v.s, JJ_LOWER));
}

static struct jinja_val sorted(struct jinja_run *x, const struct jinja_list *l,
                               struct jinja_val keys, bool backwards)
{
    struct jinja_list *to = l && x->status == 0 ? jj_new_list(x, l->n) : NULL;
    size_t *order = to ? jj_order(x, keys.list->v, l->n) : NULL;
    for (size_t i = 0; order && i < l->n; i++)
        to->v[i] = l->v[order[backwards ? l->n - 1 - i : i]];
    return order ? jj_of_list(to) : jj_undefined;
}

static struct jinja_val fold_all(struct jinja_run *x, struct jinja_val keys, bool case_sensitive)
{
    for (size_t i = 0; keys.type == JINJA_LIST && i < keys.list->n && x->status == 0; i++)
        keys.list->v[i] = folded(x, keys.list->v[i], case_sensitive);
    return keys;
}

static struct jinja_val extreme(struct jinja_run *x, struct jinja_val self,
                                const struct jinja_val *arg, int sign)
{
    const struct jinja_list *l = jj_items(x, self);
    struct jinja_val keys = fold_all(x, parts(x, l, arg[1]), jj_true(arg[0]));
    size_t best = 0;
    for (size_t i = 1; l && i < l->n && x->status == 0; i++)
        if (sign * jj_compare(x, keys.list->v[i], keys.list->v[best]) > 0) best = i;
    return l && l->n && x->status == 0 ? l->v[best] : jj_undefined;
}

FILTER(f_max)
{
    return extreme(x, self, arg, 1);
}

FILTER(f_min)
{
    return extreme(x, self, arg, -1);
}

FILTER(f_sort) /* reverse, case_sensitive, attribute */
{
    const struct jinja_list *l = jj_items(x, self);
    struct jinja_val keys = fold_all(x, parts(x, l, arg[2]), jj_true(arg[1]));
    return sorted(x, l, keys, jj_true(arg[0]));
}

FILTER(f_dictsort) /* case_sensitive, by, reverse */
{
    if (self.type != JINJA_DICT) return wrong_type(x, "dictsort", self);
    struct jinja_val pairs = jj_pairs(x, self.dict);
    const struct jinja_str *by = arg[1].type == JINJA_STR ? arg[1].s : NULL;
    const char *p = by ? jj_flat(x, by) : NULL;
    const bool value = p && by->len == 5 && memcmp(p, "value", 5) == 0;
    if (x->status) return jj_undefined;
    struct jinja_val keys = fold_all(x, parts(x, pairs.list, jj_int(value)), jj_true(arg[0]));
    return sorted(x, pairs.list, keys, jj_true(arg[2]));
}

FILTER(f_unique) /* case_sensitive, attribute */
{
    const struct jinja_list *l = jj_items(x, self);
    struct jinja_val keys = fold_all(x, parts(x, l, arg[1]), jj_true(arg[0]));
    struct jinja_list *to = l && x->status == 0 ? jj_new_list(x, l->n) : NULL;
    size_t n = 0;
    for (size_t i = 0; to && i < l->n && x->status == 0; i++) {
        size_t k = 0;
        while (k < i && !jj_equal(x, keys.list->v[k], keys.list->v[i]))
            k++;
        if (k == i) to->v[n++] = l->v[i];
    }
    if (to) to->n = n;
    return jj_of_list(to);
}

/* What map() and select() go over: nothing, of what is false. */
static const struct jinja_list *some_items(struct jinja_run *x, struct jinja_val v)
{
    return jj_true(v) ? jj_items(x, v) : jj_new_list(x, 0);
}

/* ---- filters that are given words ---- */
static const struct jj_word *named(struct jinja_run *x, struct jinja_val name, bool test)
{
    const char *p = name.type == JINJA_STR ? jj_flat(x, name.s) : NULL;
    const struct jj_word *w = !p     ? NULL
                              : test ? jj_test(p, name.s->len)
                                     : jj_filter(p, name.s->len);
    if (!w) (void)jj_fail(x, -EINVAL, "no such %s (line %u)", test ? "test" : "filter", x->line);
    return w;
}

FILTER(f_map) /* a filter's name; attribute, default */
{
    const struct jinja_list *l = some_items(x, self);
    const struct jinja_val none[JJ_PARAMS_MAX] = {0};
    if (arg[1].type != JINJA_UNDEFINED) {
        struct jinja_val to = parts(x, l, arg[1]);
        for (size_t i = 0; to.type == JINJA_LIST && i < to.list->n; i++)
            if (to.list->v[i].type == JINJA_UNDEFINED && arg[2].type != JINJA_UNDEFINED)
                to.list->v[i] = arg[2];
        return to;
    }
    const struct jj_word *w = named(x, arg[0], false);
    struct jinja_list *to = l && w ? jj_new_list(x, l->n) : NULL;
    if (w && w->need)
        return jj_fail(x, -EINVAL, "map: %s takes arguments (line %u)", w->name, x->line);
    if (!jj_enter(x)) return jj_undefined; /* map('map') */
    for (size_t i = 0; to && i < l->n && x->status == 0; i++)
        to->v[i] = w->fn(x, l->v[i], none);
    jj_leave(x);
    return jj_of_list(to);
}

/* arg: a test's name, and its argument; without, what is true. */
static struct jinja_val filter_by(struct jinja_run *x, struct jinja_val self, struct jinja_val by,
                                  const struct jinja_val *arg, bool wanted)
{
    const struct jinja_list *l = some_items(x, self);
    const struct jj_word *w = arg[0].type == JINJA_UNDEFINED ? NULL : named(x, arg[0], true);
    const struct jinja_val args[JJ_PARAMS_MAX] = {arg[1]};
    struct jinja_list *to = l && x->status == 0 ? jj_new_list(x, l->n) : NULL;
    size_t n = 0;
    for (size_t i = 0; to && i < l->n && x->status == 0; i++) {
        struct jinja_val v = part(x, l->v[i], by);
        if (jj_true(w ? w->fn(x, v, args) : v) == wanted) to->v[n++] = l->v[i];
        jj_cost(x, 0);
    }
    if (to) to->n = n;
    return jj_of_list(to);
}

FILTER(f_select)
{
    return filter_by(x, self, jj_undefined, arg, true);
}

FILTER(f_reject)
{
    return filter_by(x, self, jj_undefined, arg, false);
}

FILTER(f_selectattr)
{
    return filter_by(x, self, arg[0], arg + 1, true);
}

FILTER(f_rejectattr)
{
    return filter_by(x, self, arg[0], arg + 1, false);
}

static const struct jj_word filters[] = {
    {"abs", f_abs, 0, 0, {0}},
    {"capitalize", f_capitalize, 0, 0, {0}},
    {"count", f_length, 0, 0, {0}},
    {"d", f_default, 0, 2, {"default_value", "boolean"}},
    {"default", f_default, 0, 2, {"default_value", "boolean"}},
    {"dictsort", f_dictsort, 0, 3, {"case_sensitive", "by", "reverse"}},
    {"first", f_first, 0, 0, {0}},
    {"float", f_float, 0, 1, {"default"}},
    {"format", f_format, 0, JJ_PARAMS_MAX, {0}},
    {"indent", f_indent, 0, 3, {"width", "first", "blank"}},
    {"int", f_int, 0, 1, {"default"}},
    {"items", f_items, 0, 0, {0}},
    {"join", f_join, 0, 2, {"d", "attribute"}},
    {"last", f_last, 0, 0, {0}},
    {"length", f_length, 0, 0, {0}},
    {"list", f_list, 0, 0, {0}},
    {"lower", f_lower, 0, 0, {0}},
    {"map", f_map, 0, 1, {"", "attribute", "default"}},
    {"max", f_max, 0, 2, {"case_sensitive", "attribute"}},
    {"min", f_min, 0, 2, {"case_sensitive", "attribute"}},
    {"reject", f_reject, 0, 2, {0}},
    {"rejectattr", f_rejectattr, 1, 3, {0}},
    {"replace", f_replace, 2, 3, {"old", "new", "count"}},
    {"reverse", f_reverse, 0, 0, {0}},
    {"round", f_round, 0, 2, {"precision", "method"}},
    {"safe", f_same, 0, 0, {0}},
    {"select", f_select, 0, 2, {0}},
    {"selectattr", f_selectattr, 1, 3, {0}},
    {"sort", f_sort, 0, 3, {"reverse", "case_sensitive", "attribute"}},
    {"string", f_string, 0, 0, {0}},
    {"sum", f_sum, 0, 1, {"attribute"}},
    {"title", f_title, 0, 0, {0}},
    {"tojson", f_tojson, 0, 0, {"indent", "separators", "ensure_ascii", "sort_keys"}},
    {"trim", f_trim, 0, 1, {"chars"}},
    {"unique", f_unique, 0, 2, {"case_sensitive", "attribute"}},
    {"upper", f_upper, 0, 0, {0}},
    {0}};

const struct jj_word *jj_filter(const char *name, size_t len)
{
    return jj_find_word(filters, name, len);
}
