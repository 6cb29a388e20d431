/* Grammars: what nodes, rules and expressions let through, and what is refused. */
#include "fusor/grammar/grammar.h"

#include "base/mem.h"
#include "fusor/grammar/gbnf.h"
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

static struct gram *compile(struct gram_builder *b, gram_node start, struct gram_vocab *v)
{
    struct gram *g = NULL;
    struct err err = {0};
    const int rc = gram_compile(b, start, v, &g, &err);

    if (rc < 0) test_fail(__FILE__, __LINE__, "%s", err.msg);
    gram_builder_destroy(b);
    return g;
}

static struct gram *regex(const char *text, enum gram_spelling how, bool anywhere,
                          struct gram_vocab *v)
{
    const struct gram_regex r = {text, strlen(text), how, anywhere};
    struct gram_builder *b = builder();
    gram_node n = GRAM_NONE;
    struct err err = {0};

    if (gram_regex(b, &r, &n, &err) < 0) test_fail(__FILE__, __LINE__, "%s: %s", text, err.msg);
    return compile(b, n, v);
}

struct verdict {
    const char *text;
    int want; /* as kit_judge() */
};
static void judge_all(const struct gram *g, const struct verdict *v, const char *what)
{
    for (; v->text; v++) {
        const int got = kit_judge(g, v->text, strlen(v->text));
        if (got != v->want)
            test_fail(__FILE__, __LINE__, "%s: '%s' gives %d, not %d", what, v->text, got, v->want);
    }
}

TEST(rules_recurse)
{
    struct gram_vocab *v = kit_vocab(NULL);
    struct gram_builder *b = builder();
    const gram_node s = gram_rule(b, "s");
    gram_define(
        b, s, GRAM_ALT(b, GRAM_SEQ(b, gram_str(b, "("), s, gram_str(b, ")"), s), gram_str(b, "")));
    struct gram *g = compile(b, s, v);
    judge_all(g,
              (const struct verdict[]){{"", 1},
                                       {"(", 0},
                                       {"()", 1},
                                       {"(()())()", 1},
                                       {"())", -1},
                                       {"(((", 0},
                                       {")", -1},
                                       {NULL, 0}},
              "brackets");
    gram_destroy(g);
    gram_vocab_destroy(v);
}

/* As many ways to read it as there are numbers of two digits of base two: one state each all the
 * same. */
TEST(ambiguity_takes_no_room)
{
    struct gram_vocab *v = kit_vocab(NULL);
    struct gram_builder *b = builder();
    const gram_node s = gram_rule(b, "s"), a = gram_str(b, "a");
    gram_define(b, s,
                GRAM_ALT(b, GRAM_SEQ(b, a, s, gram_str(b, "x")),
                         GRAM_SEQ(b, a, s, gram_str(b, "y")), GRAM_SEQ(b, a, s), a));
    struct gram *g = compile(b, s, v);
    char text[400];
    memset(text, 'a', 200);
    memset(text + 200, 'x', 100);
    ASSERT_EQ(kit_judge(g, text, 200), 1);
    ASSERT_EQ(kit_judge(g, text, 300), 1);
    text[299] = 'y';
    ASSERT_EQ(kit_judge(g, text, 300), 1);
    memset(text + 200, 'x', 200);
    ASSERT_EQ(kit_judge(g, text, 399), 1); /* 199 rules within each other */
    ASSERT_EQ(kit_judge(g, text, 400), -1);
    gram_destroy(g);
    gram_vocab_destroy(v);
}

/* At the limit of depth only what still has room to end is allowed. */
TEST(depth_is_limited_and_never_a_dead_end)
{
    struct gram_vocab *v = kit_vocab(NULL);
    struct gram_builder *b = builder();
    const gram_node s = gram_rule(b, "s"), t = gram_rule(b, "t");
    gram_define(b, s, GRAM_SEQ(b, gram_str(b, "("), t, gram_str(b, ")")));
    gram_define(b, t, GRAM_ALT(b, GRAM_SEQ(b, s, gram_str(b, ";")), gram_str(b, "x")));
    struct gram *g = compile(b, s, v);
    char text[2 * GRAM_DEPTH_MAX];
    memset(text, '(', sizeof text);
    size_t deep = 0;
    while (kit_judge(g, text, deep + 1) == 0)
        deep++;
    ASSERT_TRUE(deep > GRAM_DEPTH_MAX / 2 - 2 && deep < GRAM_DEPTH_MAX);
    ASSERT_EQ(kit_judge(g, text, deep), 0);
    text[deep] = 'x';
    ASSERT_EQ(kit_judge(g, text, deep + 1), 0);
    gram_destroy(g);
    gram_vocab_destroy(v);
}

TEST(what_cannot_be_is_refused)
{
    struct gram_vocab *v = kit_vocab("q");
    struct gram *g = NULL;
    struct err err;
    struct gram_builder *b = builder();
    gram_node s = gram_rule(b, "left");
    gram_define(b, s, GRAM_ALT(b, GRAM_SEQ(b, s, gram_str(b, "a")), gram_str(b, "b")));
    ASSERT_ERR(gram_compile(b, s, v, &g, &err), -EINVAL);
    ASSERT_TRUE(strstr(err.msg, "'left' begins with itself"));
    gram_builder_destroy(b);

    b = builder(); /* hidden behind what may be empty */
    s = gram_rule(b, "hidden");
    gram_define(
        b, s,
        GRAM_ALT(b,
                 GRAM_SEQ(b, gram_repeat(b, gram_str(b, "z"), 0, GRAM_NO_END), s, gram_str(b, "a")),
                 gram_str(b, "b")));
    ASSERT_ERR(gram_compile(b, s, v, &g, &err), -EINVAL);
    ASSERT_TRUE(strstr(err.msg, "'hidden' begins with itself"));
    gram_builder_destroy(b);

    b = builder();
    s = gram_rule(b, "endless");
    gram_define(b, s, GRAM_SEQ(b, gram_str(b, "a"), s));
    ASSERT_ERR(gram_compile(b, s, v, &g, &err), -EINVAL);
    ASSERT_TRUE(strstr(err.msg, "nothing can meet the part 'endless'"));
    gram_builder_destroy(b);

    b = builder();
    ASSERT_ERR(gram_compile(b, gram_str(b, "quiet"), v, &g, &err), -EINVAL);
    ASSERT_TRUE(strstr(err.msg, "no token"));
    gram_builder_destroy(b);

    b = builder();
    s = gram_chars(b, &(struct gram_range){'a', 'b'}, 1, GRAM_PLAIN);
    ASSERT_ERR(gram_compile(b, gram_repeat(b, s, 1, GRAM_CODE_MAX), v, &g, &err), -ERANGE);
    gram_builder_destroy(b);
    gram_vocab_destroy(v);
}

TEST(texts_share_their_beginnings)
{
    struct gram_vocab *v = kit_vocab(NULL);
    const struct gram_text t[] = {{"yes", 3}, {"no", 2}, {"none", 4},
                                  {"no", 2},  {"", 0},   {"nap", 3}};
    struct gram_builder *b = builder();
    struct gram *g = compile(b, gram_texts(b, t, 6), v);
    judge_all(g,
              (const struct verdict[]){{"", 1},
                                       {"yes", 1},
                                       {"n", 0},
                                       {"no", 1},
                                       {"non", 0},
                                       {"none", 1},
                                       {"nap", 1},
                                       {"na", 0},
                                       {"nope", -1},
                                       {"yess", -1},
                                       {NULL, 0}},
              "texts");
    gram_destroy(g);
    b = builder();
    g = compile(b, gram_texts(b, t, 2), v);
    judge_all(g, (const struct verdict[]){{"", 0}, {"yes", 1}, {"no", 1}, {"none", -1}, {NULL, 0}},
              "two");
    gram_destroy(g);
    gram_vocab_destroy(v);
}

TEST(texts_within_texts_are_limited)
{
    static char a[1000];
    struct gram_text t[1000];
    struct gram_vocab *v = kit_vocab(NULL);
    struct gram_builder *b = builder();
    struct gram *g = NULL;
    struct err err;

    memset(a, 'a', sizeof a);
    for (size_t i = 0; i < 1000; i++)
        t[i] = (struct gram_text){a, i};
    ASSERT_ERR(gram_compile(b, gram_texts(b, t, 1000), v, &g, &err), -ERANGE);
    gram_builder_destroy(b);
    gram_vocab_destroy(v);
}

TEST(expressions)
{
    static const struct {
        const char *re;
        bool anywhere;
        struct verdict v[8];
    } cases[] = {
        {"[a-c]+x?", false, {{"a", 1}, {"abcx", 1}, {"x", -1}, {"", 0}, {"abxx", -1}}},
        {"(ab|cd){2,3}", false, {{"ab", 0}, {"abcd", 1}, {"ababab", 1}, {"abababab", -1}}},
        {"a{2}b{0,1}c{1,}", false, {{"aac", 1}, {"aabccc", 1}, {"ac", -1}, {"aab", 0}}},
        {"\\d{3}-\\d{4}", false, {{"123-4567", 1}, {"12-", -1}, {"123-45678", -1}}},
        {"\\w+\\s\\S", false, {{"ab_1 x", 1}, {"a\tb", 1}, {"a  ", -1}, {"a\xC2\xA0z", 1}}},
        {"[^a-y]", false, {{"z", 1}, {"b", -1}, {"\xE2\x82\xAC", 1}, {"\n", 1}, {"\xE2\x28", -1}}},
        {".", false, {{"\n", -1}, {"x", 1}, {"\xF0\x9F\x98\x80", 1}, {"\xED\xA0", -1}}},
        {"\\x41\\u00e9\\u{1F600}\\.",
         false,
         {{"A\xC3\xA9\xF0\x9F\x98\x80.", 1}, {"A\xC3\xA9x", -1}}},
        {"[\\]\\-a\\d]", false, {{"]", 1}, {"-", 1}, {"7", 1}, {"b", -1}}},
        {"[a-]", false, {{"-", 1}, {"a", 1}, {"b", -1}}},
        {"a{,2}", false, {{"a{,2}", 1}, {"aa", -1}}},
        {"(?:a|)(?<n>b)*?", false, {{"", 1}, {"a", 1}, {"abbb", 1}, {"ba", -1}}},
        {"(a*)*b", false, {{"b", 1}, {"aab", 1}, {"", 0}}},
        {"bc", true, {{"abcd", 1}, {"bc", 1}, {"b", 0}, {"xyz", 0}}},
        {"^bc", true, {{"bcd", 1}, {"abc", -1}, {"bc", 1}}},
        {"^a$|^bb$", true, {{"a", 1}, {"bb", 1}, {"b", 0}, {"ab", -1}}},
        {"^(a|b)$", true, {{"a", 1}, {"ab", -1}}},
        {"", true, {{"", 1}, {"any", 1}}},
    };
    struct gram_vocab *v = kit_vocab(NULL);

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gram *g = regex(cases[i].re, GRAM_PLAIN, cases[i].anywhere, v);
        judge_all(g, cases[i].v, cases[i].re);
        gram_destroy(g);
    }
    gram_vocab_destroy(v);
}

TEST(expressions_within_json_strings)
{
    struct gram_vocab *v = kit_vocab(NULL);
    struct gram *g = regex("[\"\\\\/\\n\\x01a\\u00e9]", GRAM_JSON, false, v);
    judge_all(g,
              (const struct verdict[]){{"\"", -1},
                                       {"\\\"", 1},
                                       {"\\\\", 1},
                                       {"/", 1},
                                       {"\\/", 1},
                                       {"\\n", 1},
                                       {"\n", -1},
                                       {"\\u0001", 1},
                                       {"\\u0000", -1},
                                       {"\\u000", 0},
                                       {"a", 1},
                                       {"\\u0061", -1},
                                       {"\xC3\xA9", 1},
                                       {"\\u00e9", 1},
                                       {"\\u00E9", 1},
                                       {"\\u00e8", -1},
                                       {NULL, 0}},
              "escapes");
    gram_destroy(g);
    g = regex("[^x]{2}", GRAM_JSON, false, v);
    judge_all(g,
              (const struct verdict[]){{"ab", 1},
                                       {"\\ud83d\\ude00b", 1},
                                       {"\\ud83d", 0},
                                       {"\\ud83dx", -1},
                                       {"\\udc00", -1},
                                       {"\\u2028\\t", 1},
                                       {"x", -1},
                                       {"\xF0\x9F\x98\x80\xE2\x82\xAC", 1},
                                       {"a\x1F", -1},
                                       {NULL, 0}},
              "any");
    gram_destroy(g);
    gram_vocab_destroy(v);
}

TEST(expressions_are_refused_by_name)
{
    static const struct {
        const char *re;
        int code;
        const char *why;
    } cases[] = {
        {"a(?=b)", -ENOTSUP, "look-around"},   {"(a)\\1", -ENOTSUP, "back-references"},
        {"\\bword", -ENOTSUP, "\\b"},          {"\\p{L}", -ENOTSUP, "\\p"},
        {"(?i)a", -ENOTSUP, "flags"},          {"a)", -EINVAL, "')'"},
        {"(a", -EINVAL, "')' is missing"},     {"*a", -EINVAL, "nothing to repeat"},
        {"a**", -EINVAL, "nothing to repeat"}, {"a++", -ENOTSUP, "possessive"},
        {"[z-a]", -EINVAL, "no order"},        {"a{3,2}", -EINVAL, "m above n"},
        {"[a", -EINVAL, "too early"},          {"a^b", -ENOTSUP, "at the ends only"},
        {"(^a)", -ENOTSUP, "within a group"},  {"\\x4", -EINVAL, "hexadecimal"},
        {"a\xFF", -EINVAL, "not UTF-8"},       {"\\", -EINVAL, "too early"},
        {"[]", -ENOTSUP, "escaped"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct gram_regex r = {cases[i].re, strlen(cases[i].re), GRAM_PLAIN, false};
        struct gram_builder *b = builder();
        gram_node n = GRAM_NONE;
        struct err err = {0};
        const int rc = gram_regex(b, &r, &n, &err);
        if (rc != cases[i].code || !strstr(err.msg, cases[i].why))
            test_fail(__FILE__, __LINE__, "%s: %d '%s'", cases[i].re, rc, err.msg);
        gram_builder_destroy(b);
    }
    char deep[3 * REGEX_NEST_MAX];
    memset(deep, '(', sizeof deep);
    const struct gram_regex r = {deep, sizeof deep, GRAM_PLAIN, false};
    struct gram_builder *b = builder();
    gram_node n = GRAM_NONE;
    struct err err;
    ASSERT_ERR(gram_regex(b, &r, &n, &err), -ERANGE);
    gram_builder_destroy(b);
}

static struct gram *gbnf(const char *text, struct gram_vocab *v)
{
    struct gram_builder *b = builder();
    gram_node n = GRAM_NONE;
    struct err err = {0};

    if (gram_gbnf(b, text, strlen(text), &n, &err) < 0)
        test_fail(__FILE__, __LINE__, "%s: %s", text, err.msg);
    return compile(b, n, v);
}

TEST(grammars_in_llama_cpps_notation)
{
    static const struct {
        const char *text;
        struct verdict v[8];
    } cases[] = {
        {"root ::= \"a\" | b-2 # one\nb-2 ::= \"b\"* \"c\"\n",
         {{"a", 1}, {"bbc", 1}, {"c", 1}, {"b", 0}, {"ab", -1}}},
        {"# first\n\nroot ::= (\"x\" |\n  \"y\" # within\n  [0-9]{2}\n)+ \n",
         {{"x", 1}, {"y12", 1}, {"y1", 0}, {"xy12x", 1}, {"yx", -1}}},
        {"item ::= [a-c\\]^] [^a-c\\n] .\nroot ::=\n  item",
         {{"ad\n", 1}, {"]zz", 1}, {"^d\xE2\x82\xAC", 1}, {"ab", -1}, {"a\n", -1}}},
        {"root ::= \"\\x41\\u00e9\\U0001F600\\\"\\n\" \"\"",
         {{"A\xC3\xA9\xF0\x9F\x98\x80\"\n", 1}, {"A\n", -1}}},
        {"root ::= (\"a\"{2} \"b\"{1,} \"c\"{,2}){1,2}\r\n",
         {{"aab", 1}, {"aabbcc", 1}, {"aabccc", -1}, {"aabcaab", 1}, {"a", 0}}},
        {"root ::= \"(\" root \")\" | ", {{"", 1}, {"(())", 1}, {"(()", 0}, {")", -1}}},
    };
    struct gram_vocab *v = kit_vocab(NULL);

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gram *g = gbnf(cases[i].text, v);
        judge_all(g, cases[i].v, cases[i].text);
        gram_destroy(g);
    }
    gram_vocab_destroy(v);
}

TEST(grammars_are_refused_with_the_line)
{
    static const struct {
        const char *text;
        int code;
        const char *why;
    } cases[] = {
        {"", -EINVAL, "no rule 'root'"},
        {"root ::= a\n", -EINVAL, "'a' is not defined (line 1)"},
        {"root ::= \"a\"\n\nroot ::= \"b\"", -EINVAL, "there already (line 3)"},
        {"root = \"a\"", -EINVAL, "'::='"},
        {"root ::= \"a\n", -EINVAL, "ends too early (line 1)"},
        {"root ::= [b-a]", -EINVAL, "no order"},
        {"root ::= (\"a\"", -EINVAL, "a ')' is missing"},
        {"root ::= \"a\" )", -EINVAL, "has no '('"},
        {"root ::= \"\\q\"", -EINVAL, "escape"},
        {"root ::= \"\\x4\"", -EINVAL, "hexadecimal"},
        {"root ::= \"\\UFFFFFFFF\"", -EINVAL, "no character"},
        {"root ::= \"a\"{2,1}", -EINVAL, "{m,n}"},
        {"root ::= \"a\"{x}", -EINVAL, "{m,n}"},
        {"root ::= <[12]>", -ENOTSUP, "tokens"},
        {"root ::= *", -EINVAL, "no literal"},
        {"root ::= \"\xFF\"", -EINVAL, "UTF-8"},
        {"?", -EINVAL, "a name is missing"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gram_builder *b = builder();
        gram_node n = GRAM_NONE;
        struct err err = {0};
        const int rc = gram_gbnf(b, cases[i].text, strlen(cases[i].text), &n, &err);
        if (rc != cases[i].code || !strstr(err.msg, cases[i].why))
            test_fail(__FILE__, __LINE__, "%s: %d '%s'", cases[i].text, rc, err.msg);
        gram_builder_destroy(b);
    }
    char deep[200] = "root ::= ";
    memset(deep + 9, '(', 190);
    struct gram_builder *b = builder();
    gram_node n = GRAM_NONE;
    struct err err;
    ASSERT_ERR(gram_gbnf(b, deep, 199, &n, &err), -ERANGE);
    gram_builder_destroy(b);
}

/* Sets of tokens are exact, whatever the walk, and it ends in what the expression matches. */
TEST(wandering_texts)
{
    static const char *const res[] = {
        "[a-z]{3,12}( the| of )*",     ".{0,20}",
        "\"[^\"\\\\]{1,9}\"",          "(-?[0-9]+(\\.[0-9]+)?, ){1,4}end",
        "(hello|hel|el)+\\w?",         "[^a]{5,9}",
        "(\xC3\xA9|\xE2\x82\xAC){1,3}"};
    struct gram_vocab *v = kit_vocab(NULL);
    uint64_t seed = 7;

    for (size_t i = 0; i < sizeof res / sizeof *res; i++) {
        struct gram *g = regex(res[i], GRAM_PLAIN, false, v);
        for (int k = 0; k < 20; k++) {
            char text[512];
            size_t len;
            const int ended = kit_wander(g, &seed, text, sizeof text, &len);
            ASSERT_EQ(kit_judge(g, text, len), ended ? 1 : kit_judge(g, text, len));
        }
        gram_destroy(g);
    }
    gram_vocab_destroy(v);
}

/* More states than the budget holds: they are forgotten on the way, and no text notices. */
TEST(states_are_forgotten_and_made_again)
{
    enum { LEN = 100000 };
    struct gram_vocab *v = kit_vocab(NULL);
    struct gram *g = regex("(\\(([^x]{0,100000})\\)|y)", GRAM_JSON, false, v);
    const size_t words = (kit_vocab_size() + 63) / 64;
    uint64_t before[16];
    const uint64_t *set;
    struct gram_run *r = NULL;

    ASSERT_OK(gram_run_create(g, 2, &r));
    ASSERT_OK(gram_run_take(r, 1, '('));
    ASSERT_OK(gram_run_take(r, 1, 0xC3)); /* within a character */
    ASSERT_OK(gram_run_allowed(r, 1, &set));
    memcpy(before, set, words * sizeof *set);
    ASSERT_OK(gram_run_take(r, 0, '('));
    for (int i = 0; i < LEN; i++)
        ASSERT_EQ(gram_run_take(r, 0, 'a' + i % 23), 0);
    ASSERT_ERR(gram_run_take(r, 0, 'a'), -EINVAL);
    ASSERT_OK(gram_run_allowed(r, 1, &set));
    ASSERT_MEMEQ(before, set, words * sizeof *set);
    ASSERT_EQ(gram_run_take(r, 1, 0xA9), 0);
    ASSERT_EQ(gram_run_take(r, 1, ')'), 0); /* which may as well be a character */
    ASSERT_EQ(gram_run_take(r, 1, KIT_END), 1);
    ASSERT_EQ(gram_run_take(r, 0, ')'), 1);
    ASSERT_EQ(gram_run_take(r, 0, KIT_END), 1);
    ASSERT_ERR(gram_run_take(r, 0, '('), -EINVAL);
    gram_run_again(r, 0);
    ASSERT_EQ(gram_run_take(r, 0, '('), 0);
    gram_run_destroy(r);
    gram_destroy(g);
    gram_vocab_destroy(v);
}

TEST(every_allocation_may_fail)
{
    struct gram_vocab *v = kit_vocab(NULL);

    for (unsigned n = 1;; n++) {
        static const char re[] = "(a|[b-d\xC3\xA9]){2,5}x*";
        const struct gram_regex r = {re, sizeof re - 1, GRAM_JSON, true};
        struct gram_builder *b = NULL;
        struct gram *g = NULL;
        struct gram_run *run = NULL;
        const uint64_t *set;
        gram_node node = GRAM_NONE;
        struct err err;
        mem_fail_nth(n);
        int rc = gram_builder_create(&b);
        if (rc == 0) rc = gram_regex(b, &r, &node, &err);
        if (rc == 0) rc = gram_compile(b, node, v, &g, &err);
        if (rc == 0) rc = gram_run_create(g, 2, &run);
        if (rc == 0) rc = gram_run_allowed(run, 1, &set);
        if (rc == 0) rc = gram_run_take(run, 1, 'a');
        if (rc == 0) rc = gram_run_allowed(run, 1, &set);
        const bool fired = mem_fail_fired();
        mem_fail_nth(0);
        gram_run_destroy(run);
        gram_destroy(g);
        gram_builder_destroy(b);
        if (!fired) {
            ASSERT_OK(rc);
            break;
        }
        ASSERT_ERR(rc, -ENOMEM);
    }
    gram_vocab_destroy(v);
}
