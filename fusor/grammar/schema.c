/* Schemas to nodes. Each schema is a rule, made once and found again by its place, so that what
 * names itself recurs; a merged one is found by what it says. */
#include "fusor/grammar/schema.h"

#include "base/buf.h"
#include "fusor/grammar/number.h"
#include "fusor/grammar/schema_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- what all JSON has ---- */

/* None, a space, or a new line and its indentation: bounded, or a model might never come out of it.
 */
gram_node schema_space(struct schema *s)
{
    struct gram_builder *b = s->b;

    if (s->space == GRAM_NONE) {
        s->space = gram_rule(b, NULL);
        gram_define(b, s->space,
                    GRAM_ALT(b, gram_str(b, ""), gram_str(b, " "),
                             GRAM_SEQ(b, gram_str(b, "\n"),
                                      GRAM_ALT(b, gram_repeat(b, gram_str(b, " "), 0, 32),
                                               gram_repeat(b, gram_str(b, "\t"), 1, 8)))));
    }
    return s->space;
}

static gram_node number_node(struct schema *s, bool whole_only)
{
    const struct gram_numbers n = {.whole_only = whole_only};
    gram_node out = GRAM_NONE;

    (void)gram_number(s->b, &n, &out); /* cannot fail without bounds */
    return out;
}

static gram_node boolean_node(struct schema *s)
{
    return GRAM_ALT(s->b, gram_str(s->b, "true"), gram_str(s->b, "false"));
}

/* "[" first ("," rest)… "]" of what is given; closing brackets are kept at a distance by space. */
static gram_node enclosed(struct schema *s, const char *open, gram_node inner, const char *close)
{
    struct gram_builder *b = s->b;

    return GRAM_SEQ(b, gram_str(b, open), schema_space(s), inner, schema_space(s),
                    gram_str(b, close));
}

static gram_node comma(struct schema *s)
{
    return GRAM_SEQ(s->b, gram_str(s->b, ","), schema_space(s));
}

/* Any number of it. */
static gram_node listed(struct schema *s, gram_node one)
{
    struct gram_builder *b = s->b;
    const gram_node more = gram_repeat(b, GRAM_SEQ(b, comma(s), one), 0, GRAM_NO_END);

    return gram_repeat(b, GRAM_SEQ(b, one, more), 0, 1);
}

gram_node schema_any_value(struct schema *s)
{
    struct gram_builder *b = s->b;
    gram_node member;

    if (s->value != GRAM_NONE) return s->value;
    s->value = gram_rule(b, NULL);
    s->object = gram_rule(b, NULL);
    member = GRAM_SEQ(b, schema_any_string(s), gram_str(b, ":"),
                      gram_repeat(b, gram_str(b, " "), 0, 1), s->value);
    gram_define(b, s->object, enclosed(s, "{", listed(s, member), "}"));
    gram_define(b, s->value,
                GRAM_ALT(b, s->object, enclosed(s, "[", listed(s, s->value), "]"),
                         schema_any_string(s), number_node(s, false), boolean_node(s),
                         gram_str(b, "null")));
    return s->value;
}

/* ---- values that are given ---- */

static gram_node value_node(struct schema *s, const json_t *v);

static gram_node values_node(struct schema *s, const json_t *array)
{
    gram_node n = gram_str(s->b, "");

    for (size_t i = 0; i < json_array_size(array); i++) {
        const gram_node one = value_node(s, json_array_get(array, i));
        n = i ? GRAM_SEQ(s->b, n, comma(s), one) : one;
    }
    return enclosed(s, "[", n, "]");
}

static gram_node members_node(struct schema *s, const json_t *object)
{
    gram_node n = gram_str(s->b, "");
    const char *name;
    bool first = true;
    json_t *v;

    json_object_foreach((json_t *)object, name, v) {
        json_t *text = json_string(name);
        const gram_node one =
            GRAM_SEQ(s->b, schema_text(s, text), gram_str(s->b, ":"),
                     gram_repeat(s->b, gram_str(s->b, " "), 0, 1), value_node(s, v));
        n = first ? one : GRAM_SEQ(s->b, n, comma(s), one);
        first = false;
        json_decref(text);
    }
    return enclosed(s, "{", n, "}");
}

/* Recursion: as deep as the schema, which is limited where it is read. */
static gram_node value_node(struct schema *s, const json_t *v)
{
    char text[40];

    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return members_node(s, v);
    case JSON_ARRAY:
        return values_node(s, v);
    case JSON_STRING:
        return schema_text(s, v);
    case JSON_TRUE:
        return gram_str(s->b, "true");
    case JSON_FALSE:
        return gram_str(s->b, "false");
    case JSON_NULL:
        return gram_str(s->b, "null");
    case JSON_INTEGER:
    case JSON_REAL:
        schema_number_text(v, text);
        return gram_str(s->b, text);
    }
    return GRAM_NONE;
}

/* Strings share their beginnings: there may be many. */
static gram_node strings_node(struct schema *s, const json_t *strings)
{
    const size_t n = json_array_size(strings);
    struct gram_text *t = mem_alloc((n + 1) * sizeof *t);
    struct buf all = BUF_INIT;
    gram_node out = GRAM_NONE;
    size_t at = 0;

    if (!t) gram_builder_fail(s->b, -ENOMEM);
    for (size_t i = 0; t && i < n; i++, at = all.len) {
        const json_t *v = json_array_get(strings, i);
        if (buf_add_json_str(&all, json_string_value(v), json_string_length(v)) < 0)
            gram_builder_fail(s->b, -ENOMEM);
        t[i].len = all.len - at;
    }
    for (size_t i = 0, from = 0; t && i < n; from += t[i++].len)
        t[i].p = all.data + from;
    if (t) out = gram_texts(s->b, t, n);
    buf_fini(&all);
    mem_free(t);
    return out;
}

static int enum_node(struct schema *s, const json_t *o, const struct where *at, gram_node *ret)
{
    const json_t *all = json_object_get(o, "enum");
    json_t *strings = json_array();
    struct buf part = BUF_INIT;
    gram_node n;
    int rc = 0;

    for (size_t i = 0; rc >= 0 && i < json_array_size(all); i++) {
        json_t *v = json_array_get(all, i);
        rc = schema_words_admit(s, o, v, at);
        if (rc != 1) continue;
        if (json_is_string(v)) {
            json_array_append(strings, v);
            continue;
        }
        n = value_node(s, v);
        if (buf_add(&part, &n, sizeof n) < 0) rc = -ENOMEM;
    }
    if (json_array_size(strings) > 0) {
        n = strings_node(s, strings);
        if (buf_add(&part, &n, sizeof n) < 0) rc = -ENOMEM;
    }
    if (rc >= 0)
        *ret = gram_alt(s->b, (const gram_node *)(const void *)part.data,
                        part.len / sizeof(gram_node));
    buf_fini(&part);
    json_decref(strings);
    return rc < 0 ? rc : 0;
}

/* ---- numbers ---- */

/* What is too large for us to write is no bound, or one that nothing meets. */
static int read_bound(const struct schema *s, const json_t *v, const struct where *at,
                      struct gram_decimal *ret)
{
    const double x = json_number_value(v);
    char text[40];

    schema_number_text(v, text);
    if (!(fabs(x) < 1e16))
        return gram_decimal_read(x < 0 ? "-9999999999999999.999" : "9999999999999999.999", ret);
    if (gram_decimal_read(text, ret) == 0) return 0;
    return schema_fail(s, at, -ERANGE, "the number %s has too many digits", text);
}

/* The tighter of two bounds; sign: 1 lower ones, -1 upper ones. */
static int read_bounds(const struct schema *s, const json_t *o, int sign, const struct where *at,
                       struct gram_numbers *n)
{
    const json_t *with = json_object_get(o, sign > 0 ? "minimum" : "maximum");
    const json_t *without = json_object_get(o, sign > 0 ? "exclusiveMinimum" : "exclusiveMaximum");
    struct gram_decimal *bound = sign > 0 ? &n->min : &n->max, other;
    bool *excluded = sign > 0 ? &n->min_excluded : &n->max_excluded;
    int rc = with ? read_bound(s, with, at, bound) : 0;

    *(sign > 0 ? &n->has_min : &n->has_max) = with || without;
    if (rc == 0 && without) {
        rc = read_bound(s, without, at, &other);
        if (rc == 0 && (!with || gram_decimal_order(&other, bound) * sign >= 0)) {
            *bound = other;
            *excluded = true;
        }
    }
    return rc;
}

static int read_factor(const struct schema *s, const json_t *v, const struct where *at,
                       struct gram_numbers *n)
{
    struct gram_decimal d;
    uint64_t factor = 0;
    char text[40];

    if (!v) return 0;
    schema_number_text(v, text);
    if (!(json_number_value(v) > 0))
        return schema_fail(s, at, -EINVAL, "'multipleOf' must be above 0");
    if (gram_decimal_read(text, &d) < 0) factor = UINT32_MAX;
    for (unsigned i = 0; factor < UINT32_MAX && i < d.n_whole; i++)
        factor = factor * 10 + d.whole[i];
    for (unsigned i = 0; factor < UINT32_MAX && i < d.n_part; i++)
        factor = factor * 10 + d.part[i];
    if (factor > NUMBER_FACTOR_MAX)
        return schema_fail(s, at, -ENOTSUP,
                           "'multipleOf' %s is not supported: it has more than the "
                           "digits of %d",
                           text, NUMBER_FACTOR_MAX);
    n->factor = (uint32_t)factor;
    n->factor_part = d.n_part;
    return 0;
}

static int bounded_number(struct schema *s, const json_t *o, bool whole_only,
                          const struct where *at, gram_node *ret)
{
    struct gram_numbers n = {.whole_only = whole_only};
    int rc = read_bounds(s, o, 1, at, &n);

    if (rc == 0) rc = read_bounds(s, o, -1, at, &n);
    if (rc == 0) rc = read_factor(s, json_object_get(o, "multipleOf"), at, &n);
    if (rc == 0) rc = gram_number(s->b, &n, ret);
    return rc == -ERANGE ? schema_fail(s, at, rc, "its numbers are too large") : rc;
}

/* ---- arrays ---- */

static uint32_t items_bound(const json_t *o, const char *word, uint32_t otherwise)
{
    const json_t *v = json_object_get(o, word);
    const double x = json_number_value(v);

    return !v ? otherwise : x < (double)GRAM_NO_END ? (uint32_t)x : GRAM_NO_END;
}

/* Elements from number `from` on: with a comma each but the first of all. */
static gram_node rest_of_items(struct schema *s, gram_node item, uint32_t from, uint32_t min,
                               uint32_t max)
{
    struct gram_builder *b = s->b;
    const gram_node next = GRAM_SEQ(b, comma(s), item);
    const uint32_t least = min > from ? min - from : 0;
    const uint32_t most = max == GRAM_NO_END ? max : max > from ? max - from : 0;

    if (from > 0) return gram_repeat(b, next, least, most);
    if (most == 0) return gram_str(b, "");
    const gram_node some = GRAM_SEQ(
        b, item,
        gram_repeat(b, next, least > 1 ? least - 1 : 0, most == GRAM_NO_END ? most : most - 1));
    return gram_repeat(b, some, least > 0, 1);
}

static int array_node(struct schema *s, const json_t *o, const struct where *at, gram_node *ret)
{
    const json_t *prefix = json_object_get(o, "prefixItems"), *items = json_object_get(o, "items");
    const size_t n = json_array_size(prefix);
    uint32_t min = items_bound(o, "minItems", 0), max = items_bound(o, "maxItems", GRAM_NO_END);
    const struct where in = {at, "items"};
    gram_node item = GRAM_NONE, rest;
    int rc;

    if (json_is_true(json_object_get(o, "uniqueItems")) && max > 1)
        return schema_fail(s, at, -ENOTSUP, "'uniqueItems' is not supported");
    /* As with members: more than what is named only where it is asked for. */
    if (n > 0 && !items && max > n && min <= n) max = (uint32_t)n;
    if (min > max || n > GRAM_NEST_MAX / 4) {
        *ret = gram_alt(s->b, NULL, 0);
        return min > max ? 0 : schema_fail(s, at, -ERANGE, "'prefixItems' has too many schemas");
    }
    rc = schema_compile(s, items ? items : json_true(), &in, &item);
    if (rc < 0) return rc;
    rest = rest_of_items(s, item, (uint32_t)n, min, max);
    for (size_t i = n; rc == 0 && i-- > 0;) {
        const struct where here = {at, "prefixItems"};
        gram_node one = GRAM_NONE;
        if (i >= max) {
            rest = gram_str(s->b, "");
            continue;
        }
        rc = schema_compile(s, json_array_get(prefix, i), &here, &one);
        one = i > 0 ? GRAM_SEQ(s->b, comma(s), one, rest) : GRAM_SEQ(s->b, one, rest);
        rest = i < min ? one : GRAM_ALT(s->b, one, gram_str(s->b, ""));
    }
    *ret = enclosed(s, "[", rest, "]");
    return rc;
}

/* ---- schemas ---- */

static int variant_node(struct schema *s, const json_t *o, const struct where *at, gram_node *ret)
{
    const unsigned types = schema_implied_types(o);
    gram_node part[8];
    size_t n = 0;
    int rc = 0;

    if (!schema_says(o)) {
        *ret = schema_any_value(s);
        return 0;
    }
    if (json_object_get(o, "enum")) return enum_node(s, o, at, ret);
    if (types & TYPE_OBJECT) rc = schema_object(s, o, at, &part[n++]);
    if (rc == 0 && types & TYPE_ARRAY) rc = array_node(s, o, at, &part[n++]);
    if (rc == 0 && types & TYPE_STRING) {
        gram_node text = GRAM_NONE;
        rc = schema_string(s, o, at, &text);
        if (rc == 0) part[n++] = GRAM_SEQ(s->b, gram_str(s->b, "\""), text, gram_str(s->b, "\""));
    }
    if (rc == 0 && types & (TYPE_NUMBER | TYPE_INTEGER))
        rc = bounded_number(s, o, !(types & TYPE_NUMBER), at, &part[n++]);
    if (types & TYPE_BOOLEAN) part[n++] = boolean_node(s);
    if (types & TYPE_NULL) part[n++] = gram_str(s->b, "null");
    if (rc == 0) *ret = gram_alt(s->b, part, n);
    return rc;
}

/* Nothing but this word, and annotations? */
static const json_t *only_word(const json_t *schema, const char *word)
{
    const json_t *v = json_object_get(schema, word);
    json_t *rest = v ? json_copy((json_t *)schema) : NULL;
    bool only = false;

    if (rest) {
        json_object_del(rest, word);
        only = !schema_says(rest);
        json_decref(rest);
    }
    return only ? v : NULL;
}

static int choice_node(struct schema *s, const json_t *all, bool parts, const struct where *at,
                       gram_node *ret)
{
    struct buf part = BUF_INIT;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < json_array_size(all); i++) {
        const struct where in = {at, "anyOf"};
        gram_node n = GRAM_NONE;
        rc = parts ? schema_compile(s, json_array_get(all, i), &in, &n)
                   : variant_node(s, json_array_get(all, i), at, &n);
        if (rc == 0) rc = buf_add(&part, &n, sizeof n);
    }
    if (rc == 0)
        *ret = gram_alt(s->b, (const gram_node *)(const void *)part.data,
                        part.len / sizeof(gram_node));
    buf_fini(&part);
    return rc;
}

static int schema_node(struct schema *s, const json_t *schema, const struct where *at,
                       gram_node *ret)
{
    const json_t *v;
    int rc = schema_check_words(s, schema, at);

    if (rc < 0) return rc;
    if (only_word(schema, "$ref")) {
        rc = schema_resolve(s, schema, at, &v);
        return rc < 0 ? rc : schema_compile(s, v, at, ret);
    }
    v = only_word(schema, "anyOf");
    if (v) return choice_node(s, v, true, at, ret);
    rc = schema_variants(s, schema, at, &v);
    return rc < 0 ? rc : choice_node(s, v, false, at, ret);
}

static int dump_to_buf(const char *text, size_t len, void *out)
{
    return buf_add(out, text, len);
}

/* The rule under one of two names: where the schema is, and for what merging made, what it says. */
static int find_rule(struct schema *s, const json_t *schema, const struct where *at, gram_node *ret)
{
    struct buf name = BUF_INIT;
    char place[120];
    const json_t *known;

    if (json_object_get(schema, "allOf"))
        (void)json_dump_callback(schema, dump_to_buf, &name, JSON_COMPACT | JSON_SORT_KEYS);
    else
        buf_addf(&name, "%p", (const void *)schema);
    known = json_object_get(s->rules, buf_cstr(&name));
    *ret = (gram_node)json_integer_value(known);
    if (!known && json_object_size(s->rules) < SCHEMA_PARTS_MAX) {
        schema_place(at, place, sizeof place);
        *ret = gram_rule(s->b, place);
        json_object_set_new(s->rules, buf_cstr(&name), json_integer(*ret));
    }
    const int rc = buf_status(&name);
    buf_fini(&name);
    if (rc < 0) return rc;
    if (*ret == GRAM_NONE && gram_builder_status(s->b) == 0)
        return schema_fail(s, at, -ERANGE, "there are more than %d schemas", SCHEMA_PARTS_MAX);
    return known != NULL;
}

int schema_compile(struct schema *s, const json_t *schema, const struct where *at, gram_node *ret)
{
    gram_node what = GRAM_NONE;
    int rc;

    if (json_is_true(schema)) {
        *ret = schema_any_value(s);
        return 0;
    }
    if (json_is_false(schema)) { /* a rule that never is defined: errors name it */
        char place[120];
        schema_place(at, place, sizeof place);
        *ret = gram_rule(s->b, place);
        return 0;
    }
    if (s->depth > SCHEMA_NEST_MAX)
        return schema_fail(s, at, -ERANGE, "schemas are nested too deep");
    rc = schema_spend(s, at, SCHEMA_PART_WORK);
    if (rc == 0) rc = find_rule(s, schema, at, ret);
    if (rc != 0) return rc < 0 ? rc : 0;
    s->depth++;
    rc = schema_node(s, schema, at, &what);
    s->depth--;
    gram_define(s->b, *ret, what);
    return rc < 0 ? rc : gram_builder_status(s->b) == -ENOMEM ? -ENOMEM : 0;
}

static int open_schema(struct schema *s)
{
    s->made = json_array();
    s->rules = json_object();
    s->patterns = json_object();
    return s->made && s->rules && s->patterns ? 0 : -ENOMEM;
}

static int close_schema(struct schema *s, int rc)
{
    for (size_t i = 0; i < json_object_size(s->patterns); i++)
        dfa_free(s->dfa[i]);
    mem_free(s->dfa);
    json_decref(s->patterns);
    json_decref(s->made);
    json_decref(s->rules);
    return rc == -ENOMEM ? err_set(s->err, rc, "out of memory") : rc;
}

int gram_schema(struct gram_builder *b, const json_t *schema, gram_node *ret, struct err *err)
{
    struct schema s = {.b = b, .root = schema, .err = err};
    const struct gram_mark before = gram_mark(b);
    int rc = open_schema(&s);

    if (rc == 0) rc = schema_compile(&s, schema, NULL, ret);
    if (rc == 0) rc = gram_builder_why(b, err);
    (void)gram_spend(b, SCHEMA_NODE_WORK * (b->node.len - before.node) / sizeof(struct node));
    if (rc < 0) {
        gram_rewind(b, &before);
        *ret = GRAM_NONE;
    }
    return close_schema(&s, rc);
}

int gram_json_object(struct gram_builder *b, gram_node *ret, struct err *err)
{
    struct schema s = {.b = b, .err = err};
    int rc = open_schema(&s);

    if (rc == 0) (void)schema_any_value(&s);
    *ret = s.object;
    return close_schema(&s, rc);
}
