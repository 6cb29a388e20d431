/* Tests (`is …`) and global functions. */
#include "fusor/text/jinja_word.h"

#include <math.h>
#include <string.h>
#include <time.h>

#define TEST(name)                                                                                 \
    static struct jinja_val name(struct jinja_run *x, struct jinja_val self,                       \
                                 const struct jinja_val *arg)
#define PLAIN_TEST(name, true_when)                                                                \
    TEST(name)                                                                                     \
    {                                                                                              \
        (void)x;                                                                                   \
        (void)arg;                                                                                 \
        return jinja_bool(true_when);                                                              \
    }

PLAIN_TEST(t_defined, self.type != JINJA_UNDEFINED)
PLAIN_TEST(t_undefined, self.type == JINJA_UNDEFINED)
PLAIN_TEST(t_none, self.type == JINJA_NONE)
PLAIN_TEST(t_boolean, self.type == JINJA_BOOL)
PLAIN_TEST(t_true, self.type == JINJA_BOOL && self.b)
PLAIN_TEST(t_false, self.type == JINJA_BOOL && !self.b)
PLAIN_TEST(t_integer, self.type == JINJA_INT)
PLAIN_TEST(t_float, self.type == JINJA_FLOAT)
PLAIN_TEST(t_number, self.type >= JINJA_BOOL && self.type <= JINJA_FLOAT)
PLAIN_TEST(t_string, self.type == JINJA_STR)
PLAIN_TEST(t_mapping, self.type == JINJA_DICT)
PLAIN_TEST(t_sequence, self.type == JINJA_STR || self.type == JINJA_LIST ||
                           self.type == JINJA_DICT || self.type == JINJA_UNDEFINED)
PLAIN_TEST(t_iterable, self.type == JINJA_STR || self.type == JINJA_LIST ||
                           self.type == JINJA_DICT || self.type == JINJA_UNDEFINED)
PLAIN_TEST(t_callable,
           self.type == JINJA_MACRO || self.type == JINJA_FUNCTION || self.type == JINJA_METHOD)

/* What is left of a number by another. */
static double rest(struct jinja_run *x, struct jinja_val v, double by)
{
    double d = 0;
    if (!jj_number(v, &d) || by == 0)
        (void)jj_fail(x, -EINVAL, "%s cannot be divided (line %u)", jj_type_name(v), x->line);
    if (v.type == JINJA_INT && fabs(by) < 9e15) return (double)(v.i % (by ? (int64_t)by : 1));
    return fmod(d, by);
}

TEST(t_odd)
{
    (void)arg;
    return jinja_bool(fabs(rest(x, self, 2)) == 1);
}

TEST(t_even)
{
    (void)arg;
    return jinja_bool(rest(x, self, 2) == 0);
}

TEST(t_divisibleby)
{
    double by = 0;
    (void)jj_number(arg[0], &by);
    return jinja_bool(rest(x, self, by) == 0);
}

TEST(t_eq)
{
    return jinja_bool(jj_equal(x, self, arg[0]));
}

TEST(t_ne)
{
    return jinja_bool(!jj_equal(x, self, arg[0]));
}

TEST(t_lt)
{
    return jinja_bool(jj_compare(x, self, arg[0]) < 0);
}

TEST(t_le)
{
    return jinja_bool(jj_compare(x, self, arg[0]) <= 0);
}

TEST(t_gt)
{
    return jinja_bool(jj_compare(x, self, arg[0]) > 0);
}

TEST(t_ge)
{
    return jinja_bool(jj_compare(x, self, arg[0]) >= 0);
}

TEST(t_in)
{
    return jinja_bool(jj_contains(x, arg[0], self));
}

/* The same object, which for scalars is the same value of the same type. */
TEST(t_sameas)
{
    if (self.type != arg[0].type) return jinja_bool(false);
    if (self.type == JINJA_LIST || self.type == JINJA_DICT)
        return jinja_bool(self.dict == arg[0].dict);
    return jinja_bool(jj_equal(x, self, arg[0]));
}

static struct jinja_val is_case(struct jinja_run *x, struct jinja_val self, enum jj_case to)
{
    const struct jinja_str *s = jj_show(x, self), *same = s ? jj_case(x, s, to) : NULL,
                           *other = s ? jj_case(x, s, to == JJ_UPPER ? JJ_LOWER : JJ_UPPER) : NULL;
    if (!same || !other) return jj_undefined;
    return jinja_bool(jj_str_compare(x, s, same) == 0 && jj_str_compare(x, s, other) != 0);
}

TEST(t_lower)
{
    (void)arg;
    return is_case(x, self, JJ_LOWER);
}

TEST(t_upper)
{
    (void)arg;
    return is_case(x, self, JJ_UPPER);
}

static const struct jj_word tests[] = {{"boolean", t_boolean, 0, 0, {0}},
                                       {"callable", t_callable, 0, 0, {0}},
                                       {"defined", t_defined, 0, 0, {0}},
                                       {"divisibleby", t_divisibleby, 1, 1, {0}},
                                       {"eq", t_eq, 1, 1, {0}},
                                       {"equalto", t_eq, 1, 1, {0}},
                                       {"==", t_eq, 1, 1, {0}},
                                       {"even", t_even, 0, 0, {0}},
                                       {"false", t_false, 0, 0, {0}},
                                       {"float", t_float, 0, 0, {0}},
                                       {"ge", t_ge, 1, 1, {0}},
                                       {"gt", t_gt, 1, 1, {0}},
                                       {"greaterthan", t_gt, 1, 1, {0}},
                                       {"in", t_in, 1, 1, {0}},
                                       {"integer", t_integer, 0, 0, {0}},
                                       {"iterable", t_iterable, 0, 0, {0}},
                                       {"le", t_le, 1, 1, {0}},
                                       {"lower", t_lower, 0, 0, {0}},
                                       {"lt", t_lt, 1, 1, {0}},
                                       {"lessthan", t_lt, 1, 1, {0}},
                                       {"mapping", t_mapping, 0, 0, {0}},
                                       {"ne", t_ne, 1, 1, {0}},
                                       {"!=", t_ne, 1, 1, {0}},
                                       {"none", t_none, 0, 0, {0}},
                                       {"number", t_number, 0, 0, {0}},
                                       {"odd", t_odd, 0, 0, {0}},
                                       {"sameas", t_sameas, 1, 1, {0}},
                                       {"sequence", t_sequence, 0, 0, {0}},
                                       {"string", t_string, 0, 0, {0}},
                                       {"true", t_true, 0, 0, {0}},
                                       {"undefined", t_undefined, 0, 0, {0}},
                                       {"upper", t_upper, 0, 0, {0}},
                                       {0}};

const struct jj_word *jj_test(const char *name, size_t len)
{
    return jj_find_word(tests, name, len);
}

/* ---- functions ---- */
TEST(raise_exception)
{
    const struct jinja_str *s = jj_show(x, arg[0]);
    const char *p = s ? jj_flat(x, s) : NULL;
    (void)self;
    if (!p) return jj_undefined;
    size_t len = s->len < sizeof x->err.msg - 1 ? s->len : sizeof x->err.msg - 1;
    while (len < s->len && len > 0 && ((unsigned char)p[len] & 0xC0) == 0x80)
        len--; /* a whole character */
    return jj_fail(x, -EINVAL, "%.*s", (int)len, p);
}

/* The local time. What it says is marked as input: the format may be anybody's. */
TEST(strftime_now)
{
    const time_t now = (time_t)x->now_s;
    const struct jinja_str *s = jj_show(x, arg[0]);
    const char *p = s ? jj_flat(x, s) : NULL;
    char format[128], text[256];
    struct tm tm;
    (void)self;
    if (!p) return jj_undefined;
    if (s->len >= sizeof format || memchr(p, 0, s->len) || !localtime_r(&now, &tm))
        return jj_fail(x, -EINVAL, "no such format of a time (line %u)", x->line);
    memcpy(format, p, s->len);
    format[s->len] = 0;
    const size_t len = strftime(text, sizeof text, format, &tm);
    if (len == 0 && s->len > 0) return jj_fail(x, -EINVAL, "a time is too long (line %u)", x->line);
    struct jj_sb sb = {.x = x};
    jj_sb_add(&sb, text, len, JINJA_INPUT);
    return jj_of_str(jj_sb_done(&sb));
}

TEST(range)
{
    const bool two = arg[1].type != JINJA_UNDEFINED;
    const int64_t from = two ? arg[0].i : 0, to = two ? arg[1].i : arg[0].i;
    const int64_t step = arg[2].type == JINJA_UNDEFINED ? 1 : arg[2].i;
    enum { RANGE_MAX = 100000 }; /* jinja2's sandbox has the same */
    (void)self;
    for (unsigned i = 0; i < 3; i++)
        if (arg[i].type != JINJA_INT && (i == 0 || arg[i].type != JINJA_UNDEFINED))
            return jj_fail(x, -EINVAL, "range takes whole numbers (line %u)", x->line);
    const double span = ((double)to - (double)from) / (step ? (double)step : 1);
    if (step == 0 || span > RANGE_MAX)
        return jj_fail(x, -EINVAL, "range is too large (line %u)", x->line);
    struct jinja_list *l = jj_new_list(x, span > 0 ? (size_t)ceil(span) : 0);
    for (size_t i = 0; l && i < l->n; i++)
        l->v[i] = jj_int(from + (int64_t)i * step);
    return jj_of_list(l);
}

static const struct jj_word functions[] = {{"raise_exception", raise_exception, 1, 1, {"message"}},
                                           {"range", range, 1, 3, {0}},
                                           {"strftime_now", strftime_now, 1, 1, {"format"}},
                                           {0}};

const struct jj_word *jj_function(const char *name, size_t len)
{
    return jj_find_word(functions, name, len);
}
