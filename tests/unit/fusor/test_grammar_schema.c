/* Schemas, numbers between bounds, automata over characters. That what is made meets its schema is
 * tests/e2e/test_grammar.py's, against another validator; here: what is refused, and how. */
#include "fusor/grammar/schema.h"

#include "base/buf.h"
#include "base/mem.h"
#include "fusor/grammar/dfa.h"
#include "fusor/grammar/number.h"
#include "fusor/grammar/regex.h"
#include "tests/test.h"
#include "tests/unit/fusor/grammar_kit.h"

#include <errno.h>

static struct gram_builder *builder(void)
{
    struct gram_builder *b = NULL;

    ASSERT_OK(gram_builder_create(&b));
    return b;
}

static int compile(const char *schema, struct gram_vocab *v, struct gram **ret, struct err *err)
{
    struct gram_builder *b = builder();
    json_t *j = json_loads(schema, JSON_DECODE_ANY, NULL);
    gram_node n = GRAM_NONE;

    if (!j) test_fail(__FILE__, __LINE__, "no JSON: %s", schema);
    *err = (struct err){0};
    int rc = gram_schema(b, j, &n, err);
    json_decref(j); /* nothing of it is needed any more */
    if (rc == 0) rc = gram_compile(b, n, v, ret, err);
    gram_builder_destroy(b);
    return rc;
}

TEST(refusals_name_the_place_and_the_keyword)
{
    static const struct {
        const char *schema;
        int code;
        const char *why;
    } t[] = {
        {"{\"not\":{}}", -ENOTSUP, "at '#': the keyword 'not'"},
        {"{\"properties\":{\"a\":{\"items\":{\"if\":{}}}}}", -ENOTSUP,
         "at '#/properties/a/items': the keyword 'if'"},
        {"{\"type\":\"text\"}", -EINVAL, "'type' must be"},
        {"{\"type\":[]}", -EINVAL, "can meet"},
        {"{\"minLength\":-1}", -EINVAL, "'minLength' must be"},
        {"{\"properties\":[]}", -EINVAL, "'properties' must be an object of schemas"},
        {"{\"anyOf\":[]}", -EINVAL, "'anyOf' must be"},
        {"{\"required\":[1]}", -EINVAL, "'required' must be an array of strings"},
        {"{\"pattern\":\"(?=a)\"}", -ENOTSUP, "'pattern': look-around"},
        {"{\"format\":\"idn-email\"}", -ENOTSUP, "the format 'idn-email'"},
        {"{\"$ref\":\"http://x.org/y\"}", -ENOTSUP, "'$ref' may name places of this schema"},
        {"{\"$ref\":\"#/$defs/a\"}", -EINVAL, "which is not there"},
        {"{\"$ref\":\"#/title\",\"title\":\"x\"}", -EINVAL, "which is no schema"},
        {"{\"$ref\":\"#\"}", -EINVAL, "can meet the part '#'"},
        {"{\"allOf\":[{\"$ref\":\"#\"},{\"$ref\":\"#\"}]}", -ERANGE, "in a circle"},
        {"{\"uniqueItems\":true}", -ENOTSUP, "'uniqueItems'"},
        {"{\"oneOf\":[{\"type\":\"string\"},{\"minLength\":2}]}", -ENOTSUP,
         "'oneOf': nothing tells"},
        {"{\"multipleOf\":1001}", -ENOTSUP, "'multipleOf' 1001"},
        {"{\"multipleOf\":0}", -EINVAL, "above 0"},
        {"{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}", -EINVAL, "can meet the part '#'"},
        {"{\"type\":\"integer\",\"minimum\":1e17}", -EINVAL, "can meet the part '#'"},
        {"{\"required\":[\"a\"],\"properties\":{\"a\":false}}", -EINVAL,
         "can meet the part '#/properties/a'"},
        {"{\"properties\":{\"a\":{\"enum\":[1,\"x\"],\"type\":\"null\"}},\"required\":[\"a\"]}",
         -EINVAL, "can meet the part '#/properties/a'"},
        {"{\"type\":\"string\",\"minLength\":3,\"maxLength\":2}", -EINVAL, "can meet"},
        {"{\"type\":\"string\",\"maxLength\":5000,\"pattern\":\"a\"}", -ERANGE, "too large"},
        {"{\"type\":\"array\",\"minItems\":400000}", -ERANGE, "limit of size"},
        {"{\"type\":\"object\",\"minProperties\":3}", -ENOTSUP, "'minProperties' of names"},
        {"{\"type\":\"object\",\"maxProperties\":100000,\"properties\":{}}", -ERANGE, "too many"},
        {"false", -EINVAL, "can meet the part '#'"},
    };
    struct gram_vocab *v = kit_vocab(NULL);

    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct gram *g = NULL;
        struct err err;
        const int rc = compile(t[i].schema, v, &g, &err);
        if (rc != t[i].code || !strstr(err.msg, t[i].why))
            test_fail(__FILE__, __LINE__, "%s: %d '%s'", t[i].schema, rc, err.msg);
    }
    gram_vocab_destroy(v);
}

TEST(schemas_within_schemas_are_limited)
{
    struct gram_vocab *v = kit_vocab(NULL);
    struct gram *g = NULL;
    struct err err;
    char deep[4000] = "";

    for (int i = 0; i < 200; i++)
        strcat(deep, "{\"items\":");
    strcat(deep, "{}");
    for (int i = 0; i < 200; i++)
        strcat(deep, "}");
    ASSERT_ERR(compile(deep, v, &g, &err), -ERANGE);
    ASSERT_TRUE(strstr(err.msg, "nested too deep"));

    char many[9000] = "{\"allOf\":["; /* 2^9 ways */
    for (int i = 0; i < 9; i++)
        strcat(many, "{\"anyOf\":[{\"minLength\":1},{\"maxLength\":3}]},");
    strcat(many, "{}]}");
    ASSERT_ERR(compile(many, v, &g, &err), -ERANGE);
    ASSERT_TRUE(strstr(err.msg, "ways to choose"));
    gram_vocab_destroy(v);
}

/* What would take quadratic time is counted, and ends with a reason. */
TEST(work_is_limited)
{
    struct gram_vocab *v = kit_vocab(NULL);
    struct gram *g = NULL;
    struct err err;
    struct buf s = BUF_INIT;

    buf_adds(&s, "{\"enum\":[0");
    for (int i = 1; i < 20000; i++)
        buf_addf(&s, ",%d", i);
    buf_adds(&s, "]}");
    ASSERT_OK(compile(buf_cstr(&s), v, &g, &err)); /* many, but one after the other */
    gram_destroy(g);
    char *all = mem_strdup(buf_cstr(&s));
    buf_clear(&s);
    buf_addf(&s, "{\"oneOf\":[%s,%s]}", all, all);
    ASSERT_ERR(compile(buf_cstr(&s), v, &g, &err), -ENOTSUP); /* the first is in both */
    buf_clear(&s);
    buf_addf(&s, "{\"allOf\":[%s,%s]}", all, all);
    ASSERT_ERR(compile(buf_cstr(&s), v, &g, &err), -ERANGE);
    ASSERT_TRUE(strstr(err.msg, "takes too long"));
    mem_free(all);
    buf_fini(&s);
    gram_vocab_destroy(v);
}

/* {"allOf":[{"enum":[0, 1, …]}, the same]}: n * n comparisons. */
static json_t *costly_schema(int n)
{
    json_t *one = json_object(), *values = json_array(), *all = json_array(), *s = json_object();

    for (int i = 0; i < n; i++)
        json_array_append_new(values, json_integer(i));
    json_object_set_new(one, "enum", values);
    json_array_append(all, one);
    json_array_append_new(all, one);
    json_object_set_new(s, "allOf", all);
    return s;
}

/* Schemas of one builder share the work, and the room: those of one that fails is given back. */
TEST(schemas_of_a_builder_share_a_limit)
{
    struct gram_vocab *v = kit_vocab(NULL);
    struct gram_builder *b = builder();
    json_t *costly = costly_schema(1000),
           *large = json_pack("{s:i,s:s}", "minItems", 200000, "type", "array");
    gram_node first = GRAM_NONE, next = GRAM_NONE;
    struct gram *g = NULL;
    struct err err;

    ASSERT_OK(gram_schema(b, costly, &first, &err));
    for (int i = 0; i < 3; i++) { /* each of them fills a builder */
        ASSERT_ERR(gram_schema(b, large, &next, &err), -ERANGE);
        ASSERT_TRUE(strstr(err.msg, "limit of size") && next == GRAM_NONE);
        ASSERT_OK(gram_builder_status(b));
    }
    int rc = 0;
    for (int i = 0; rc == 0 && i < 10; i++)
        rc = gram_schema(b, costly, &next, &err);
    ASSERT_ERR(rc, -ERANGE);
    ASSERT_TRUE(strstr(err.msg, "takes too long"));
    ASSERT_OK(gram_compile(b, GRAM_SEQ(b, first, gram_str(b, ";")), v, &g, &err));
    ASSERT_EQ(kit_judge(g, "999;", 4), 1);
    ASSERT_EQ(kit_judge(g, "1000", 4), -1);
    gram_destroy(g);
    gram_builder_destroy(b);
    json_decref(costly);
    json_decref(large);
    gram_vocab_destroy(v);
}

/* Sets of characters that a schema brought go with it, the ones before it stay shared. */
TEST(a_schema_that_fails_leaves_nothing_behind)
{
    static const char no[] =
        "{\"prefixItems\":[{\"type\":\"string\",\"pattern\":\"^[a-f]+[0-7]*$\"},"
        "{\"not\":{}}]}",
                      yes[] = "{\"type\":\"string\",\"pattern\":\"^[a-f]+[0-7]*$\"}";
    struct gram_vocab *v = kit_vocab(NULL);
    json_t *bad = json_loads(no, 0, NULL), *good = json_loads(yes, 0, NULL);
    struct gram_builder *b = builder();
    gram_node first = GRAM_NONE, next = GRAM_NONE;
    struct gram *g = NULL;
    struct err err;

    ASSERT_ERR(gram_schema(b, bad, &next, &err), -ENOTSUP);
    ASSERT_OK(gram_schema(b, good, &first, &err));
    ASSERT_ERR(gram_schema(b, bad, &next, &err), -ENOTSUP);
    ASSERT_OK(gram_schema(b, good, &next, &err));
    ASSERT_OK(gram_compile(b, GRAM_SEQ(b, first, next), v, &g, &err));
    ASSERT_EQ(kit_judge(g, "\"abc07\"\"f\"", 10), 1);
    ASSERT_EQ(kit_judge(g, "\"abc8", 5), -1);
    gram_destroy(g);
    gram_builder_destroy(b);
    json_decref(bad);
    json_decref(good);
    gram_vocab_destroy(v);
}

/* Members in their order, white space within bounds. */
TEST(texts_of_a_schema)
{
    static const struct {
        const char *text;
        int want;
    } t[] = {
        {"{\"a\":1,\"b\":\"x\"}", 1},
        {"{\n  \"a\": 1,\n  \"b\": \"\\u00e9\\n\\\"\"\n}", 1},
        {"{ \"b\": \"\" }", 1},
        {"{}", 1},
        {"{\"b\":\"x\",\"a\":1}", -1},
        {"{\"a\":1,}", -1},
        {"{\"c\":1}", -1},
        {"{\"a\":1.5", -1},
        {"{\"a\":  1", -1},
        {"{\n\n", -1},
        {"{\"a\":12345678901234567", -1},
        {"{\"b\":\"\x01", -1},
        {"{\"b\":\"\\u0000", -1},
        {"{\"b\":\"abcd", -1},
        {" {", -1},
    };
    struct gram_vocab *v = kit_vocab(NULL);
    struct gram *g = NULL;
    struct err err;

    ASSERT_OK(compile("{\"properties\":{\"a\":{\"type\":\"integer\"},"
                      "\"b\":{\"type\":\"string\",\"maxLength\":3}},\"title\":\"T\",\"x-own\":1}",
                      v, &g, &err));
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        const int got = kit_judge(g, t[i].text, strlen(t[i].text));
        if (got != t[i].want) test_fail(__FILE__, __LINE__, "%s: %d", t[i].text, got);
    }
    gram_destroy(g);
    gram_vocab_destroy(v);
}

TEST(any_object)
{
    struct gram_vocab *v = kit_vocab(NULL);
    struct gram_builder *b = builder();
    struct gram *g = NULL;
    struct err err;
    gram_node n;

    ASSERT_OK(gram_json_object(b, &n, &err));
    ASSERT_OK(gram_compile(b, n, v, &g, &err));
    gram_builder_destroy(b);
    const char *yes = "{\"a\": [1, -2.5e+3, null, {\"b\":{}}], \"\\ud83d\\ude00\": false}";
    ASSERT_EQ(kit_judge(g, yes, strlen(yes)), 1);
    ASSERT_EQ(kit_judge(g, "[", 1), -1);
    ASSERT_EQ(kit_judge(g, "{\"a\":01", 7), -1);
    ASSERT_EQ(kit_judge(g, "{\"a\":1e999", 10), -1);
    gram_destroy(g);
    gram_vocab_destroy(v);
}

/* ---- numbers ---- */

static bool meets(double x, const struct gram_numbers *n, double min, double max)
{
    if (n->has_min && (x < min || (n->min_excluded && !(x > min)))) return false;
    if (n->has_max && (x > max || (n->max_excluded && !(x < max)))) return false;
    if (n->factor == 0) return true;
    const double times = round(x * 1000 * (n->factor_part ? 100 : 1)) / (n->factor * 1000.0);
    return fabs(times - round(times)) < 1e-9;
}

/* Beside a bound, in hundredths or whole, or one of those between. */
static bool is_tried(int i)
{
    static const int at[] = {-1337, -1200, 100, 999, 2500};

    for (size_t k = 0; k < sizeof at / sizeof *at; k++)
        if (abs(i - at[k]) <= 2) return true;
    return abs(i) <= 30 || abs(i + 50) <= 2 || i % 53 == 0;
}

static void check_numbers(const struct gram_numbers *n, double min, double max,
                          struct gram_vocab *v)
{
    struct gram_builder *b = builder();
    struct gram *g = NULL;
    struct err err;
    gram_node node;

    ASSERT_OK(gram_number(b, n, &node));
    const int rc = gram_compile(b, node, v, &g, &err);
    gram_builder_destroy(b);
    for (int i = -2600; i <= 2600; i++) {
        if (!is_tried(i)) continue;
        const double x = n->whole_only ? i : i / 100.0;
        char text[40];
        (void)snprintf(text, sizeof text, n->whole_only ? "%.0f" : i % 2 ? "%.2f" : "%g", x);
        if (i == 0) (void)snprintf(text, sizeof text, "0");
        const bool want = meets(x, n, min, max),
                   got = rc == 0 && kit_judge(g, text, strlen(text)) == 1;
        if (got != want)
            test_fail(__FILE__, __LINE__, "%s from %g to %g, factor %u/%u: %d, not %d", text, min,
                      max, n->factor, n->factor_part, got, want);
    }
    gram_destroy(g);
}

TEST(numbers_between_bounds)
{
    static const char *const bounds[] = {NULL,   "-13.37", "-12",  "-0.5", "0",
                                         "0.07", "1",      "9.99", "10",   "25"};
    enum { N = sizeof bounds / sizeof *bounds };
    struct gram_vocab *v = kit_vocab(NULL);

    for (unsigned lo = 0; lo < N; lo++)
        for (unsigned hi = 0; hi < N; hi += 1 + lo % 2)
            for (unsigned how = 0; how < 8; how += 1 + (lo + hi) % 3) {
                struct gram_numbers n = {.whole_only = how & 1,
                                         .has_min = bounds[lo],
                                         .has_max = bounds[hi],
                                         .min_excluded = how & 2,
                                         .max_excluded = how & 4};
                if (bounds[lo]) ASSERT_OK(gram_decimal_read(bounds[lo], &n.min));
                if (bounds[hi]) ASSERT_OK(gram_decimal_read(bounds[hi], &n.max));
                if ((lo + hi + how) % 5 == 0) n.factor = 1 + (lo * 3 + hi) % 9;
                if ((lo + hi + how) % 10 == 0 && !n.whole_only) n.factor_part = 2;
                check_numbers(&n, bounds[lo] ? strtod(bounds[lo], NULL) : 0,
                              bounds[hi] ? strtod(bounds[hi], NULL) : 0, v);
            }
    gram_vocab_destroy(v);
}

TEST(decimals)
{
    static const struct {
        const char *text;
        unsigned n_whole, n_part;
    } t[] = {{"0", 0, 0},       {"-12", 2, 0},   {"1.5e3", 4, 0},    {"1500e-3", 1, 1},
             {"0.00120", 0, 4}, {"1e-05", 0, 5}, {"-7.25E+1", 2, 1}, {"100", 3, 0}};
    struct gram_decimal d, e;

    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        ASSERT_OK(gram_decimal_read(t[i].text, &d));
        ASSERT_EQ(d.n_whole, t[i].n_whole);
        ASSERT_EQ(d.n_part, t[i].n_part);
    }
    ASSERT_ERR(gram_decimal_read("1e16", &d), -ERANGE);
    ASSERT_ERR(gram_decimal_read("1e-40", &d), -ERANGE);
    ASSERT_OK(gram_decimal_read("-2.5", &d));
    ASSERT_OK(gram_decimal_read("-2.49", &e));
    ASSERT_TRUE(gram_decimal_order(&d, &e) < 0 && gram_decimal_order(&e, &d) > 0);
    ASSERT_OK(gram_decimal_read("-0", &e));
    ASSERT_OK(gram_decimal_read("0.0", &d));
    ASSERT_EQ(gram_decimal_order(&d, &e), 0);
}

/* ---- automata ---- */

static struct dfa *dfa(const char *re)
{
    const struct gram_regex r = {re, strlen(re), GRAM_JSON, false};
    struct gram_builder *b = builder();
    struct dfa *x = NULL;
    gram_node n;

    ASSERT_OK(gram_regex(b, &r, &n, NULL));
    ASSERT_OK(dfa_of(b, n, &x));
    gram_builder_destroy(b);
    return x;
}

TEST(automata_of_two_conditions)
{
    static const char *const res[] = {"[a-c]*", "(ab|b)+", "[^b]{2,3}",    ".*c",
                                      "",       "a?b?c?",  "([^\\s\\S]|a)"};
    enum { N = sizeof res / sizeof *res };
    struct dfa *of[N], *lengths, *p, *q;

    for (int i = 0; i < N; i++)
        of[i] = dfa(res[i]);
    ASSERT_OK(dfa_of_lengths(1, 3, &lengths));
    for (int i = 0; i < N; i++)
        for (int k = 0; k < N; k++) {
            ASSERT_OK(dfa_others(of[k], &q));
            ASSERT_OK(dfa_both(of[i], q, &p));
            for (int c = 0; c < 256; c++) { /* all texts of four letters of a, b, c, nothing */
                char text[5] = "";
                for (int at = 0; at < 4; at++)
                    if (c >> (2 * at) & 3) text[strlen(text)] = "?abc"[c >> (2 * at) & 3];
                const size_t n = strlen(text);
                ASSERT_EQ(dfa_takes(p, text, n),
                          dfa_takes(of[i], text, n) && !dfa_takes(of[k], text, n));
                ASSERT_EQ(dfa_takes(lengths, text, n), n >= 1 && n <= 3);
            }
            dfa_free(p);
            dfa_free(q);
        }
    ASSERT_TRUE(dfa_takes(of[2], "\xC3\xA9\xE2\x82\xAC", 5));
    ASSERT_TRUE(!dfa_takes(of[2], "\xC3", 1));
    for (int i = 0; i < N; i++)
        dfa_free(of[i]);
    dfa_free(lengths);
}

TEST(automata_are_limited)
{
    const char *re = ".*a.{16}"; /* 2^17 states */
    const struct gram_regex r = {re, strlen(re), GRAM_JSON, false};
    struct gram_builder *b = builder();
    struct dfa *x = NULL;
    gram_node n;

    ASSERT_OK(gram_regex(b, &r, &n, NULL));
    ASSERT_ERR(dfa_of(b, n, &x), -ERANGE);
    gram_builder_destroy(b);
}

TEST(every_allocation_of_a_schema_may_fail)
{
    static const char text[] =
        "{\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"^a+\",\"maxLength\":4},"
        "\"n\":{\"type\":\"integer\",\"minimum\":3}},\"additionalProperties\":{\"enum\":[\"x\","
        "\"xy\",1]}}";
    struct gram_vocab *v = kit_vocab(NULL);
    json_t *j = json_loads(text, 0, NULL);

    for (unsigned i = 1;; i++) {
        struct gram_builder *b = NULL;
        struct gram *g = NULL;
        struct err err;
        gram_node n = GRAM_NONE;
        mem_fail_nth(i);
        int rc = gram_builder_create(&b);
        if (rc == 0) rc = gram_schema(b, j, &n, &err);
        if (rc == 0) rc = gram_compile(b, n, v, &g, &err);
        const bool fired = mem_fail_fired();
        mem_fail_nth(0);
        gram_destroy(g);
        gram_builder_destroy(b);
        if (!fired) {
            ASSERT_OK(rc);
            break;
        }
        ASSERT_ERR(rc, -ENOMEM);
    }
    json_decref(j);
    gram_vocab_destroy(v);
}
