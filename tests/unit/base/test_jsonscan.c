/* The scanner against jansson on random and on mutated documents, and its readers. */
#include "base/buf.h"
#include "base/jsonscan.h"
#include "base/mem.h"
#include "tests/test.h"

#include <jansson.h>

static int collect(void *ctx, const struct json_field *f)
{
    return buf_addf(ctx, "%.*s=%d:%.*s;", (int)f->key.len, f->key.p, (int)f->val.type,
                    (int)f->val.len, f->val.p);
}

TEST(fields_and_types)
{
    static const char text[] = " {\"a\" : 1, \"b\":[1,{\"x\":[]}] ,\"c\":{\"a\":2}, "
                               "\"d\":\"q\\\"\", \"e\":true,\"f\":null}\n";
    struct buf b = BUF_INIT;
    ASSERT_OK(json_scan_object(text, sizeof text - 1, collect, &b, NULL));
    ASSERT_STREQ(buf_cstr(&b), "\"a\"=2:1;\"b\"=4:[1,{\"x\":[]}];\"c\"=5:{\"a\":2};"
                               "\"d\"=3:\"q\\\"\";\"e\"=1:true;\"f\"=0:null;");
    buf_fini(&b);
}

TEST(find_takes_the_last_and_unescapes_keys)
{
    static const char text[] = "{\"model\":\"a\",\"x\":{\"model\":\"no\"},\"mod\\u0065l\":\"b\"}";
    struct json_val v;
    struct buf b = BUF_INIT;
    ASSERT_EQ(json_find(text, sizeof text - 1, "model", &v), 1);
    ASSERT_OK(json_str_read(&v, &b));
    ASSERT_STREQ(buf_cstr(&b), "b");
    ASSERT_EQ(json_find(text, sizeof text - 1, "mode", &v), 0);
    ASSERT_ERR(json_find("[]", 2, "model", &v), -EBADMSG);
    buf_fini(&b);
}

static int stop_here(void *ctx, const struct json_field *f)
{
    return -ECANCELED;
}

static int count_item(void *ctx, const struct json_val *v)
{
    (*(int *)ctx)++;
    return 0;
}

TEST(callback_ends_the_scan_and_arrays_are_walked)
{
    ASSERT_ERR(json_scan_object("{\"a\":1,", 7, stop_here, NULL, NULL), -ECANCELED);
    struct json_val v;
    int n = 0;
    static const char items[] = "[1, [2,3] ,{\"a\":[]}, \"x\"]";
    ASSERT_OK(json_scan(items, sizeof items - 1, &v, NULL));
    ASSERT_OK(json_each(&v, count_item, &n));
    ASSERT_EQ(n, 4);
    ASSERT_OK(json_scan("[ ]", 3, &v, NULL));
    ASSERT_OK(json_each(&v, count_item, &n));
    ASSERT_EQ(n, 4);
}

TEST(refusals)
{
    static const struct {
        const char *text;
        int code;
    } table[] = {
        {"", -EBADMSG},
        {"{", -EBADMSG},
        {"}", -EBADMSG},
        {"{}x", -EBADMSG},
        {"{\"a\"}", -EBADMSG},
        {"{\"a\":}", -EBADMSG},
        {"{\"a\":1,}", -EBADMSG},
        {"{,\"a\":1}", -EBADMSG},
        {"{a:1}", -EBADMSG},
        {"[1]", -EBADMSG},
        {"{\"a\":01}", -EBADMSG},
        {"{\"a\":1.}", -EBADMSG},
        {"{\"a\":.5}", -EBADMSG},
        {"{\"a\":+1}", -EBADMSG},
        {"{\"a\":1e}", -EBADMSG},
        {"{\"a\":-}", -EBADMSG},
        {"{\"a\":NaN}", -EBADMSG},
        {"{\"a\":tru}", -EBADMSG},
        {"{\"a\":[1,]}", -EBADMSG},
        {"{\"a\":[1}", -EBADMSG},
        {"{\"a\":[}]", -EBADMSG},
        {"{\"a\":\"\n\"}", -EBADMSG},
        {"{\"a\":\"\\x\"}", -EBADMSG},
        {"{\"a\":\"\\u12\"}", -EBADMSG},
        {"{\"a\":\"\\ud800\"}", -EBADMSG},
        {"{\"a\":\"\\udc00\"}", -EBADMSG},
        {"{\"a\":\"\\ud800\\u0041\"}", -EBADMSG},
        {"{\"a\":\"\xFF\"}", -EBADMSG},
        {"{\"a\":\"\xC0\x80\"}", -EBADMSG},
        {"{\"a\":\"\xED\xA0\x80\"}", -EBADMSG},
        {"{\"a\":\"\xF4\x90\x80\x80\"}", -EBADMSG},
        {"{\"a\":\"x", -EBADMSG},
        {"{\"a\":'x'}", -EBADMSG},
        {"{} {}", -EBADMSG},
        {"\xEF\xBB\xBF{}", -EBADMSG},
        {"{\"a\":1 /* */}", -EBADMSG},
        {"{}", 0},
        {" {\"\":-0.5e+10} ", 0},
        {"{\"a\":\"\\ud83d\\ude00\xF0\x9F\x98\x80\\/\"}", 0},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct json_fault fault = {0};
        int r = json_scan_object(table[i].text, strlen(table[i].text), NULL, NULL, &fault);
        if (r != table[i].code) test_fail(__FILE__, __LINE__, "%s gave %d", table[i].text, r);
        if (r < 0) ASSERT_TRUE(fault.why != NULL && fault.at <= strlen(table[i].text));
    }
    ASSERT_ERR(json_scan_object("{\"a\":1\0}", 8, NULL, NULL, NULL), -EBADMSG);
}

/* What other readers take for infinity is refused wherever it stands, skimmed or not. */
TEST(numbers_that_overflow)
{
    static const struct {
        const char *number;
        bool ok;
    } cases[] = {
        {"1e999", false},
        {"-1e999", false},
        {"1E+309", false},
        {"0.00001e314", false},
        {"1.8e308", false},
        {"1.797693134862315808e308", false},
        {"1e99999999999999999999", false},
        {"1.7976931348623157e308", true},
        {"179.76931348623157e306", true},
        {"0e999", true},
        {"-0.0e99999999999", true},
        {"1e-999", true},
        {"1e-99999999999999999999", true},
        {"0.001e310", true},
    };
    char text[2000], zeros[512];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int form = 0; form < 3; form++) {
            static const char *const forms[] = {"{\"a\":%s}", "{\"a\":[{\"b\":%s}],\"c\":1}",
                                                "{\"a\":\"1e999\",\"b\":[1,%s,2]}"};
            int n = snprintf(text, sizeof text, forms[form], cases[i].number), want;
            struct json_fault fault = {0};
            want = cases[i].ok ? 0 : -EDOM;
            ASSERT_EQ(json_scan_object(text, (size_t)n, NULL, NULL, &fault), want);
            if (want) ASSERT_STREQ(fault.why, "a number is too large");
            ASSERT_EQ(json_skim_object(text, (size_t)n, NULL, NULL, NULL), want);
        }
    memset(zeros, '0', sizeof zeros); /* long ones, by their digits */
    for (int n = 300; n < 320; n++) {
        (void)snprintf(text, sizeof text, "{\"a\":1%.*s}", n, zeros);
        ASSERT_EQ(json_scan_object(text, strlen(text), NULL, NULL, NULL), n < 309 ? 0 : -EDOM);
        (void)snprintf(text, sizeof text, "{\"a\":0.%.*s1e%d}", n, zeros, n + 309);
        ASSERT_EQ(json_skim_object(text, strlen(text), NULL, NULL, NULL), 0);
        (void)snprintf(text, sizeof text, "{\"a\":0.%.*s1e%d}", n, zeros, n + 310);
        ASSERT_EQ(json_skim_object(text, strlen(text), NULL, NULL, NULL), -EDOM);
    }
}

TEST(depth_limit)
{
    for (int n = 60; n < 70; n++) {
        struct buf b = BUF_INIT;
        ASSERT_OK(buf_adds(&b, "{\"a\":"));
        for (int i = 1; i < n; i++)
            ASSERT_OK(buf_addc(&b, '['));
        for (int i = 1; i < n; i++)
            ASSERT_OK(buf_addc(&b, ']'));
        ASSERT_OK(buf_addc(&b, '}'));
        ASSERT_EQ(json_scan_object(b.data, b.len, NULL, NULL, NULL),
                  n <= JSON_DEPTH_MAX ? 0 : -ERANGE);
        buf_fini(&b);
    }
    struct buf deep = BUF_INIT;
    for (int i = 0; i < 1000000; i++)
        ASSERT_OK(buf_addc(&deep, '['));
    ASSERT_ERR(json_scan(deep.data, deep.len, NULL, NULL), -ERANGE);
    buf_fini(&deep);
}

TEST(readers)
{
    struct json_val v;
    int64_t i = 0;
    double d = 0;
    bool t = false;
    struct buf b = BUF_INIT;
    ASSERT_OK(json_scan("-9223372036854775808", 20, &v, NULL));
    ASSERT_OK(json_int_read(&v, &i));
    ASSERT_TRUE(i == INT64_MIN);
    ASSERT_OK(json_scan("9223372036854775808", 19, &v, NULL));
    ASSERT_ERR(json_int_read(&v, &i), -ERANGE);
    ASSERT_OK(json_scan("999999999999999999", 18, &v, NULL));
    ASSERT_OK(json_int_read(&v, &i));
    ASSERT_TRUE(i == 999999999999999999);
    ASSERT_OK(json_scan("-7", 2, &v, NULL));
    ASSERT_OK(json_int_read(&v, &i));
    ASSERT_EQ(i, -7);
    ASSERT_OK(json_scan("1.5", 3, &v, NULL));
    ASSERT_ERR(json_int_read(&v, &i), -EINVAL);
    ASSERT_OK(json_double_read(&v, &d));
    ASSERT_NEAR(d, 1.5, 0);
    ASSERT_ERR(json_bool_read(&v, &t), -EINVAL);
    ASSERT_OK(json_scan("2e3", 3, &v, NULL));
    ASSERT_OK(json_int_read(&v, &i));
    ASSERT_EQ(i, 2000);
    v = (struct json_val){"1e999", 5, JSON_T_NUMBER};
    ASSERT_ERR(json_double_read(&v, &d), -ERANGE);
    ASSERT_OK(json_scan("true", 4, &v, NULL));
    ASSERT_OK(json_bool_read(&v, &t));
    ASSERT_TRUE(t);
    static const char s[] = "\"a\\n\\u0000\\u00e9\\u20ac\\ud83d\\ude00\\\\\\/\\t\\b\\f\\r\\\"\"";
    ASSERT_OK(json_scan(s, sizeof s - 1, &v, NULL));
    ASSERT_OK(json_str_read(&v, &b));
    static const char want[] = "a\n\0\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\\/\t\b\f\r\"";
    ASSERT_EQ(b.len, sizeof want - 1);
    ASSERT_MEMEQ(b.data, want, b.len);
    buf_fini(&b);
}

/* A random document as text, with all kinds of escapes and spacing. */
static void gen(struct buf *b, uint64_t *seed, int depth)
{
    static const char *const scalars[] = {"0",
                                          "-1",
                                          "1.25",
                                          "1e5",
                                          "-0.0E-2",
                                          "true",
                                          "false",
                                          "null",
                                          "\"\"",
                                          "\"x y\"",
                                          "123456789012",
                                          "\"\\u00e9\\n\"",
                                          "\"\xE2\x82\xAC\"",
                                          "\"\\ud83d\\ude00\"",
                                          "\"a\\\"b\"",
                                          "\"\\\\\""};
    static const char *const spaces[] = {"", "", "", " ", "\n", "\t\r "};
    uint64_t kind = test_rand(seed) % (depth > 5 ? 3 : 6);
    (void)buf_adds(b, spaces[test_rand(seed) % 6]);
    if (kind < 3) {
        (void)buf_adds(b, scalars[test_rand(seed) % 16]);
    } else {
        bool object = kind < 5;
        uint64_t n = test_rand(seed) % 5;
        (void)buf_addc(b, object ? '{' : '[');
        for (uint64_t i = 0; i < n; i++) {
            if (i) (void)buf_addc(b, ',');
            if (object) (void)buf_addf(b, "%s\"k%d\" :", spaces[test_rand(seed) % 6], (int)i);
            gen(b, seed, depth + 1);
        }
        (void)buf_addc(b, object ? '}' : ']');
    }
    (void)buf_adds(b, spaces[test_rand(seed) % 6]);
}

static int check_field(void *ctx, const struct json_field *f)
{
    json_t *root = ctx;
    struct buf key = BUF_INIT;
    ASSERT_OK(json_str_read(&f->key, &key));
    json_t *want = json_object_get(root, buf_cstr(&key));
    json_t *got = json_loadb(f->val.p, f->val.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    ASSERT_TRUE(want != NULL && got != NULL && json_equal(want, got));
    static const int types[] = {JSON_NULL, -1, -1, JSON_STRING, JSON_ARRAY, JSON_OBJECT};
    if (types[f->val.type] >= 0) ASSERT_EQ((int)json_typeof(want), types[f->val.type]);
    if (f->val.type == JSON_T_STRING) {
        struct buf s = BUF_INIT;
        ASSERT_OK(json_str_read(&f->val, &s));
        ASSERT_EQ(s.len, json_string_length(want));
        ASSERT_TRUE(s.len == 0 || memcmp(s.data, json_string_value(want), s.len) == 0);
        buf_fini(&s);
    }
    json_decref(got);
    buf_fini(&key);
    return 0;
}

TEST(plain_strings)
{
    static const struct {
        const char *text;
        bool plain;
    } t[] = {{"\"\"", true},          {"\"a/b [x]~\x7F\"", true}, {"\"a\\n\"", false},
             {"\"\xC3\xA9\"", false}, {"\"a\tb\"", false},        {"12", false}};
    for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) {
        enum json_type type = t[i].text[0] == '"' ? JSON_T_STRING : JSON_T_NUMBER;
        struct json_val v = {t[i].text, strlen(t[i].text), type};
        if (json_str_plain(&v) != t[i].plain) test_fail(__FILE__, __LINE__, "%s", t[i].text);
    }
}

static int count_field(void *ctx, const struct json_field *f)
{
    ++*(unsigned *)ctx;
    return 0;
}

TEST(an_object_with_text_behind_it)
{
    static const struct {
        const char *text;
        unsigned n; /* fields; 0: no object */
    } t[] = {{"{\"a\":1,\"b\":{\"c\":[2]}}, \"d\": 3}", 2},
             {"{\"a\":1}\xFF", 1},
             {"{\"\\u0061\":\"}\"}}", 1},
             {"{\"a\":1", 0},
             {"{\"a\" 1}", 0},
             {"{\"\xFF\":1}", 0},
             {"[1]", 0}};
    for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) {
        unsigned n = 0;
        int r = json_scan_object_at(t[i].text, strlen(t[i].text), count_field, &n);
        if ((r == 0) != (t[i].n > 0) || (r == 0 && n != t[i].n))
            test_fail(__FILE__, __LINE__, "%s: %d, %u fields", t[i].text, r, n);
    }
}

TEST(random_documents_agree_with_jansson)
{
    uint64_t seed = 1;
    for (int i = 0; i < 2000; i++) {
        struct buf b = BUF_INIT;
        (void)buf_adds(&b, "{\"first\":");
        gen(&b, &seed, 0);
        (void)buf_adds(&b, ",\"second\":");
        gen(&b, &seed, 0);
        (void)buf_adds(&b, "}");
        json_t *root = json_loadb(b.data, b.len, JSON_ALLOW_NUL, NULL);
        ASSERT_TRUE(root != NULL);
        ASSERT_OK(json_scan_object(b.data, b.len, check_field, root, NULL));
        json_decref(root);
        buf_fini(&b);
    }
}

static bool has_big_number(const char *p, size_t len)
{
    size_t run = 0;
    for (size_t i = 0; i < len; i++) {
        run = p[i] >= '0' && p[i] <= '9' ? run + 1 : 0;
        if (run > 17 || ((p[i] | 32) == 'e' && i + 3 < len && p[i + 1] >= '0' && p[i + 2] >= '0'))
            return true; /* jansson refuses what does not fit its number types */
    }
    return false;
}

TEST(mutated_documents_are_judged_like_jansson)
{
    uint64_t seed = 42;
    static const char alphabet[] = "{}[],:\"\\u0129eE.+-truefalsn \n\t\x80\xC3\xA9\xED\xFF";
    for (int i = 0; i < 2000; i++) {
        struct buf b = BUF_INIT;
        (void)buf_adds(&b, "{\"a\":");
        gen(&b, &seed, 2);
        (void)buf_adds(&b, "}");
        for (uint64_t k = test_rand(&seed) % 4; k > 0; k--) {
            size_t at = test_rand(&seed) % b.len;
            uint64_t what = test_rand(&seed) % 3;
            if (what == 0)
                b.len = at + 1;
            else
                b.data[at] = what == 1 ? alphabet[test_rand(&seed) % (sizeof alphabet - 1)]
                                       : (char)test_rand(&seed);
        }
        /* An exact copy, so that a read past the end is seen by the sanitizer. */
        char *copy = mem_alloc(b.len);
        ASSERT_TRUE(copy != NULL);
        memcpy(copy, b.data, b.len);
        json_t *root = json_loadb(copy, b.len, JSON_ALLOW_NUL, NULL);
        struct json_fault fault = {0};
        int r = json_scan_object(copy, b.len, NULL, NULL, &fault);
        bool same = (r == 0) == (root != NULL && json_is_object(root));
        if (!same && !has_big_number(copy, b.len))
            test_fail(__FILE__, __LINE__, "round %d: %d (%s) for %.*s", i, r,
                      fault.why ? fault.why : "", (int)b.len, copy);
        json_decref(root);
        mem_free(copy);
        buf_fini(&b);
    }
}

/* Every byte value at every place of a string: as a plain reader would judge it. */
TEST(strings_are_checked_at_every_offset)
{
    for (size_t at = 0; at < 40; at++)
        for (int c = 0; c < 256; c++) {
            char text[64];
            size_t n = 0;
            text[n++] = '"';
            for (size_t i = 0; i < 40; i++)
                text[n++] = i == at ? (char)c : 'a';
            text[n++] = '"';
            bool good = c >= 0x20 && c < 0x80 && c != '"' && c != '\\';
            ASSERT_EQ(json_scan(text, n, NULL, NULL) == 0, good);
        }
}

TEST(seek_walks_escapes)
{
    static const char *const pieces[] = {"a",
                                         "words, ",
                                         "\\n",
                                         "\\\"",
                                         "/",
                                         "\\u00e4",
                                         "\\ud83d\\ude00",
                                         "\\\\",
                                         "ä",
                                         "\xe2\x82\xac",
                                         "\xf0\x9f\x98\x80",
                                         "\\u0041"};
    uint64_t seed = 9;
    struct buf raw = BUF_INIT, all = BUF_INIT, part = BUF_INIT;
    for (int round = 0; round < 2000; round++) {
        buf_clear(&raw);
        buf_clear(&all);
        ASSERT_OK(buf_addc(&raw, '"'));
        for (size_t n = test_rand(&seed) % 30; n > 0; n--)
            ASSERT_OK(buf_adds(&raw, pieces[test_rand(&seed) % 12]));
        ASSERT_OK(buf_addc(&raw, '"'));
        struct json_val v;
        ASSERT_OK(json_scan(raw.data, raw.len, &v, NULL));
        ASSERT_OK(json_str_read(&v, &all));
        size_t at = 1, done = 0;
        while (at < v.len - 1) {
            size_t from = at, want = 1 + test_rand(&seed) % 9;
            size_t got = json_str_seek(&v, &at, want);
            ASSERT_TRUE(at > from && got > 0);
            ASSERT_TRUE(got < want + 4 && (got >= want || at == v.len - 1));
            struct json_val x = {v.p + from - 1, at - from + 2, JSON_T_STRING};
            buf_clear(&part);
            ASSERT_OK(json_str_read(&x, &part));
            ASSERT_EQ(part.len, got);
            ASSERT_MEMEQ(part.data, all.data + done, got);
            size_t utf8 = 0; /* whole characters only */
            while (utf8 < got) {
                size_t n = json_utf8_len(part.data + utf8, got - utf8);
                ASSERT_TRUE(n > 0);
                utf8 += n;
            }
            done += got;
        }
        ASSERT_EQ(done, all.len);
        ASSERT_EQ(json_str_seek(&v, &at, 5), 0);
    }
    buf_fini(&raw);
    buf_fini(&all);
    buf_fini(&part);
}

static int keep_last(void *ctx, const struct json_field *f)
{
    *(struct json_val *)ctx = f->val;
    return 0;
}

TEST(skimming_looks_at_structure_and_keys_alone)
{
    static const char *const passes[] = {"{\"a\":\"\\x \xff \x01\"}",
                                         "{\"a\":[\"\\ud800\",{\"b\":1}]}"};
    static const char *const fails[] = {
        "{\"a\":\"x}", "{\"a\":\"\\\"}", "{\"\xff\":1}", "{\"a\\x\":1}",
        "[1]",         "{\"a\":1}x",     "{\"a\":01}",   "{\"a\":{\"b\\x\":1}}"};
    for (size_t i = 0; i < sizeof passes / sizeof *passes; i++) {
        struct json_val v;
        ASSERT_OK(json_skim_object(passes[i], strlen(passes[i]), keep_last, &v, NULL));
        ASSERT_TRUE(v.p + v.len == passes[i] + strlen(passes[i]) - 1);
        ASSERT_ERR(json_scan_object(passes[i], strlen(passes[i]), NULL, NULL, NULL), -EBADMSG);
    }
    for (size_t i = 0; i < sizeof fails / sizeof *fails; i++)
        ASSERT_ERR(json_skim_object(fails[i], strlen(fails[i]), NULL, NULL, NULL), -EBADMSG);
}

TEST(depth_counts_brackets_outside_strings)
{
    static const struct {
        const char *text;
        unsigned depth;
    } table[] = {{"", 0},        {"1", 0},     {"[{}]", 2},           {"[[],[[]]]", 3},
                 {"\"[[[\"", 0}, {"]]]][", 1}, {"[\"\\\"[[\", [", 2}, {"{\"a\":[\"[", 2}};
    ASSERT_EQ(json_depth(NULL, 0), 0);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        ASSERT_EQ(json_depth(table[i].text, strlen(table[i].text)), table[i].depth);
}
