#include "fusor/text/jinja.h"
#include "base/buf.h"
#include "base/mem.h"
#include "tests/test.h"

#include <time.h>

enum { NOW_S = 1753500000 }; /* as make_chat_golden.py has it */

/* A template run once with text `u` (source 0), and `j` from JSON. */
struct ran {
    struct jinja *t;
    struct jinja_run *x;
    json_t *json;
    const char *u;
    const struct jinja_seg *seg;
    size_t n;
    struct err err;
    int r;
};

static struct ran run(const char *source, const char *u, const char *j)
{
    struct ran a = {.u = u};
    struct err err = {0};
    if (jinja_open(source, strlen(source), &a.t, &err) < 0)
        test_fail(__FILE__, __LINE__, "%s: %s", source, err.msg);
    a.json = j ? json_loads(j, JSON_DECODE_ANY, NULL) : NULL;
    a.x = jinja_begin(a.t, strlen(u), NOW_S);
    ASSERT_TRUE(a.x != NULL);
    jinja_bind(a.x, "u", jinja_text(a.x, u, strlen(u), 0));
    jinja_bind(a.x, "j", jinja_json(a.x, a.json));
    a.r = jinja_render(a.x, &a.seg, &a.n, &a.err);
    return a;
}

static void end(struct ran *a)
{
    jinja_end(a->x);
    jinja_close(a->t);
    json_decref(a->json);
}

/* The template's words as they are, [a source's own bytes], (a source's, rewritten), {input}. */
static void show(const struct ran *a, struct buf *out)
{
    for (size_t i = 0; i < a->n; i++) {
        const struct jinja_seg s = a->seg[i];
        const char *kind = "[](){}";
        const uintptr_t at = (uintptr_t)s.p, from = (uintptr_t)a->u;
        if (s.mark == JINJA_INPUT)
            kind += 4;
        else if (s.mark == 0 && (at < from || at - from >= strlen(a->u)))
            kind += 2;
        const bool own = s.mark == JINJA_TEMPLATE;
        const bool first = i == 0 || a->seg[i - 1].mark != s.mark;
        const bool last = i + 1 == a->n || a->seg[i + 1].mark != s.mark;
        if (!own && (first || kind[0] != '{')) (void)buf_addc(out, kind[0]);
        (void)buf_add(out, s.p, s.len);
        if (!own && (last || kind[0] != '{')) (void)buf_addc(out, kind[1]);
    }
    ASSERT_TRUE(buf_cstr(out) != NULL);
}

TEST(every_byte_knows_where_it_came_from)
{
    static const struct {
        const char *source, *u, *j, *want;
    } cases[] = {
        {"a{{ u }}b", "x", NULL, "a[x]b"},
        {"{{ '<|' + u + '|>' }}", "end", NULL, "<|[end]|>"},
        {"{{ ('<|' ~ u ~ '|>')[1:-1] }}", "end", NULL, "|[end]|"},
        {"{{ u | trim }}{{ u.strip('x ') }}", " x y ", NULL, "[x y][y]"},
        {"{{ (u ~ '!') | upper }}", "ab", NULL, "(AB)!"},
        {"{{ u | replace('b', '-') }}", "abc", NULL, "[a]-[c]"},
        {"{{ 'abc' | replace('b', u) }}", "U", NULL, "a[U]c"},
        {"{{ u.split('|')[1] }}", "a|b|c", NULL, "[b]"},
        {"{{ u.split() | join('+') }}", " a b", NULL, "[a]+[b]"},
        {"{{ [u, 'x'] | tojson }}", "a\"b", NULL, "{[\"}[a](\\\")[b]{\", \"}x{\"]}"},
        {"{{ [u] | string }}", "q", NULL, "{['}[q]{']}"},
        {"{{ j | tojson }}", "", "{\"k\": [1, true]}", "{{\"k\": [1, true]}}"},
        {"{{ j.k }}{% for k in j %}{{ k }}{% endfor %}", "", "{\"k\": \"v\"}", "{vk}"},
        {"{{ 1 }}{{ true }}", "", NULL, "{1True}"},
        {"{% set x %}<{{ u }}>{% endset %}{{ x }}", "q", NULL, "<[q]>"},
        {"{% macro m(a) %}<{{ a }}>{% endmacro %}{{ m(u) | trim('<') }}", "q", NULL, "[q]>"},
        {"{% for c in u %}{{ c }}.{% endfor %}", "ab", NULL, "[a].[b]."},
        {"{{ u[::-1] }}{{ u | reverse }}", "ab", NULL, "[b][ab][a]"},
        {"{{ u | indent(2) }}", "a\nb", NULL, "[a\n]  [b]"},
        {"{{ strftime_now(u) }}", "<%Y>", NULL, "{<2025>}"},
        {"{{ '<%s>%%' | format(u) }}", "q", NULL, "<[q]>%"},
        {"{{ u * 2 }}{{ u | capitalize }}", "ab", NULL, "[ab][ab](Ab)"},
        {"{{ u | list | last }}{{ u | first }}", "ab", NULL, "[b][a]"},
        {"{{ j | default(u) }}{{ none or u }}{{ u if u }}", "q", "\"z\"", "{z}[q][q]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ran a = run(cases[i].source, cases[i].u, cases[i].j);
        struct buf out = BUF_INIT;
        if (a.r < 0) test_fail(__FILE__, __LINE__, "%s: %s", cases[i].source, a.err.msg);
        show(&a, &out);
        if (strcmp(out.data, cases[i].want) != 0)
            test_fail(__FILE__, __LINE__, "%s: %s, not %s", cases[i].source, out.data,
                      cases[i].want);
        buf_fini(&out);
        end(&a);
    }
}

/* Each a template and what Python's jinja2 makes of it, with the same variables. */
TEST(renders_as_jinja2_does)
{
    json_t *cases = json_load_file(test_data("chat/snippets.json"), 0, NULL), *value;
    json_t *vars = json_object_get(json_array_get(cases, 0), "vars");
    const char *name;
    ASSERT_TRUE(json_array_size(cases) > 200 && vars);
    ASSERT_OK(setenv("TZ", "UTC0", 1));
    tzset();
    for (size_t i = 0; i < json_array_size(cases); i++) {
        json_t *item = json_array_get(cases, i);
        const char *source = json_string_value(json_object_get(item, "source"));
        const char *want = json_string_value(json_object_get(item, "text"));
        const char *words = json_string_value(json_object_get(item, "error"));
        struct jinja *t = NULL;
        struct err err = {0};
        if (jinja_open(source, strlen(source), &t, &err) < 0)
            test_fail(__FILE__, __LINE__, "%s: %s", source, err.msg);
        struct jinja_run *x = jinja_begin(t, 0, NOW_S);
        json_object_foreach(vars, name, value)
            jinja_bind(x, name, jinja_json(x, value));
        const struct jinja_seg *seg;
        struct buf out = BUF_INIT;
        size_t n = 0;
        int r = jinja_render(x, &seg, &n, &err);
        for (size_t k = 0; r == 0 && k < n; k++)
            ASSERT_OK(buf_add(&out, seg[k].p, seg[k].len));
        const char *got = r < 0 ? err.msg : buf_cstr(&out);
        const bool same =
            want ? r == 0 && strcmp(got, want) == 0 : r == -EINVAL && strstr(got, words) != NULL;
        if (!same)
            test_fail(__FILE__, __LINE__, "%s:\n%s\n--- not\n%s", source, got, want ? want : words);
        buf_fini(&out);
        jinja_end(x);
        jinja_close(t);
    }
    json_decref(cases);
}

TEST(more_than_the_subset_is_refused_by_name_and_line)
{
    static const struct {
        const char *source, *why;
    } cases[] = {
        {"a\n{% include 'x' %}", "line 2: not in the subset: tag 'include'"},
        {"{{ x\n | xmlattr }}", "line 2: not in the subset: filter 'xmlattr'"},
        {"{{ x is matching('y') }}", "line 1: not in the subset: test 'matching'"},
        {"{{ l.append(1) }}", "line 1: not in the subset: method 'append'"},
        {"{{ x.__class__() }}", "line 1: not in the subset: method '__class__'"},
        {"{{ cycler(1) }}", "line 1: not in the subset: 'cycler'"},
        {"{% macro m() %}{{ caller() }}{% endmacro %}", "line 1: not in the subset: 'caller'"},
        {"{% for x in y recursive %}{% endfor %}", "line 1: not in the subset: 'recursive'"},
        {"{% raw %}", "line 1: not in the subset: tag 'raw'"},
        {"{% for x in y %}{% set z %}{% break %}{% endset %}{% endfor %}",
         "line 1: outside of a loop: break or continue"},
        {"{% break %}", "line 1: outside of a loop: break or continue"},
        {"{{ '[INST]", "line 1: a string is not closed"},
        {"{{ '\\N{DASH}' }}", "line 1: a string has an escape that is not in the subset"},
        {"{%", "line 1: a tag is not closed"},
        {"{# x", "line 1: a comment is not closed"},
        {"{{ 1 ? 2 }}", "line 1: a character that no expression has"},
        {"{% if x %}\n", "line 1: the template ends too early"},
        {"{% endif %}", "line 1: not in the subset: tag 'endif'"},
        {"{{ f(*x) }}", "line 1: unexpected '*'"},
        {"{{ 99999999999999999999 }}", "line 1: a number is too large '99999999999999999999'"},
        {"\xff", "it is not UTF-8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct jinja *t = NULL;
        struct err err = {0};
        ASSERT_ERR(jinja_open(cases[i].source, strlen(cases[i].source), &t, &err), -ENOTSUP);
        ASSERT_STREQ(err.msg, cases[i].why);
        ASSERT_TRUE(t == NULL);
    }
}

static char *repeat(const char *head, const char *part, size_t n, const char *tail)
{
    struct buf b = BUF_INIT;
    ASSERT_OK(buf_adds(&b, head));
    for (size_t i = 0; i < n; i++)
        ASSERT_OK(buf_adds(&b, part));
    ASSERT_OK(buf_adds(&b, tail));
    ASSERT_TRUE(buf_cstr(&b) != NULL);
    return buf_take(&b, NULL);
}

TEST(depth_of_a_source_is_bounded)
{
    static const struct {
        const char *head, *part, *mid, *close, *tail;
    } cases[] = {{"{{ ", "(", "1", ")", " }}"},    {"{{ ", "not ", "1", "", " }}"},
                 {"{{ ", "-", "1", "", " }}"},     {"{{ 1", " + 1", "", "", " }}"},
                 {"{{ x", ".a", "", "", " }}"},    {"{{ x", "|trim", "", "", " }}"},
                 {"{{ ", "[", "1", "]", " }}"},    {"{{ ", "1 if 2 else ", "3", "", " }}"},
                 {"{{ x", "(1)", "", "", " }}"},   {"{{ ", "{1:", "2", "}", " }}"},
                 {"{{ x", "[1", "", "]", " }}"},   {"", "{% if x %}", "", "{% endif %}", ""},
                 {"{{ 1", " and 1", "", "", " }}"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *open = repeat(cases[i].head, cases[i].part, 20000, cases[i].mid);
        char *s = repeat(open, cases[i].close, 20000, cases[i].tail);
        mem_free(open);
        struct jinja *t = NULL;
        struct err err = {0};
        ASSERT_ERR(jinja_open(s, strlen(s), &t, &err), -ENOTSUP);
        if (!strstr(err.msg, "too deeply") && !strstr(err.msg, "too long"))
            test_fail(__FILE__, __LINE__, "%s: %s", cases[i].part, err.msg);
        mem_free(s);
    }
    char *s = repeat("{% if x %}1", "{% elif y %}2", 5000, "{% else %}3{% endif %}");
    struct ran a = run(s, "", NULL); /* a chain is no depth */
    ASSERT_TRUE(a.r == 0 && a.n == 1 && a.seg[0].p[0] == '3');
    end(&a);
    mem_free(s);
    s = repeat("", "12345678", 70000, "");
    struct jinja *t = NULL;
    ASSERT_ERR(jinja_open(s, strlen(s), &t, NULL), -ERANGE);
    mem_free(s);
}

TEST(a_run_is_bounded)
{
    static const struct {
        const char *source, *why;
    } cases[] = {
        {"{% set r = range(9999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
         "steps"},
        {"{% for i in range(99999) %}{% set n = u | length %}{% endfor %}", "steps"},
        {"{% for i in range(99999) %}{% set n = u < u %}{% endfor %}", "steps"},
        {"{% set r = range(99999) | list %}{% for i in r %}{% set n = r | max %}{% endfor %}",
         "memory"},
        {"{% set r = range(99999) | list %}{% for i in r %}{% set n = r | sum %}{% endfor %}",
         "steps"},
        {"{% set s = 'ab' * 99999 %}{% for i in range(99999) %}{% set n = s[-1] %}{% endfor %}",
         "steps"},
        {"{% set r = range(99999) | list %}{% for i in r %}{% set n = -1 in r %}{% endfor %}",
         "steps"},
        {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nests deeper"},
        {"{% set ns = namespace(s='x') %}{% for a in range(99) %}{% set ns.s = ns.s + ns.s %}"
         "{% endfor %}",
         "memory"},
        {"{% set ns = namespace(s=[1]) %}{% for a in range(99) %}{% set ns.s = ns.s + ns.s %}"
         "{% endfor %}",
         "memory"},
        {"{% set ns = namespace(s=u) %}{% for a in range(99) %}{% set ns.s = ns.s * 9 %}"
         "{% endfor %}",
         "writes too much"},
        {"{% for a in range(9999) %}{{ u }}{% endfor %}", "writes too much"},
        {"{{ 'x' * 999999999999 }}", "memory"},
        {"{{ range(99999999) }}", "too large"},
        {"{% for i in range(99) %}{{ 'x' | indent(1000000, true) }}{% endfor %}", "steps"},
        {"{% set ns = namespace(l=[]) %}{% for i in range(2000) %}{% set ns.l = [ns.l] %}"
         "{% endfor %}{{ ns.l }}",
         "nests deeper"},
        {"{% set d = namespace() %}{% set d.d = d %}{{ d | tojson }}", "cannot be written"},
        {"{{ strftime_now('%9999999d' * 9) }}", "too long"},
        {"{{ 9 ** 99 }}", "too large"},
        {"{{ 9223372036854775807 + 1 }}", "too large"},
    };
    char *u = repeat("", "0123456789", 10000, "");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ran a = run(cases[i].source, u, NULL);
        ASSERT_TRUE(a.r == -ERANGE || a.r == -EINVAL);
        if (!strstr(a.err.msg, cases[i].why))
            test_fail(__FILE__, __LINE__, "%s: %s", cases[i].source, a.err.msg);
        end(&a);
    }
    mem_free(u);
}

TEST(text_that_grows_in_a_loop_is_not_copied)
{
    struct ran a = run("{% set ns = namespace(s='') %}{% for a in range(9999) %}"
                       "{% set ns.s = ns.s + u + '\n' %}{% endfor %}{{ ns.s | length }}",
                       "0123456789", NULL);
    ASSERT_OK(a.r);
    ASSERT_TRUE(a.n == 1 && a.seg[0].len == 6 && memcmp(a.seg[0].p, "109989", 6) == 0);
    end(&a);
}

TEST(errors_have_the_templates_words_or_a_line)
{
    struct ran a = run("{{ raise_exception('Roles must alternate: ' ~ u) }}", "x", NULL);
    ASSERT_ERR(a.r, -EINVAL);
    ASSERT_STREQ(a.err.msg, "Roles must alternate: x");
    end(&a);
    a = run("\n\n{{ j.k.l }}", "", "{}");
    ASSERT_ERR(a.r, -EINVAL);
    ASSERT_STREQ(a.err.msg, "'k' is undefined (line 3)");
    end(&a);
    a = run("{{ u + 1 }}", "", NULL);
    ASSERT_STREQ(a.err.msg, "no str + int (line 1)");
    end(&a);
}

static const char busy[] =
    "{% macro m(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{% set ns = namespace(x='') %}"
    "{% for r in j if r.k %}{% set ns.x = ns.x ~ m(r.k | upper) ~ u.split(' ') | join %}"
    "{{ loop.index }}{{ r | tojson(indent=1) }}{{ r | dictsort }}{{ u | replace(' ', '') }}"
    "{{ j | sort(attribute='k') | map(attribute='k') | unique | list }}{% endfor %}"
    "{% set y %}{{ ns.x[1:3] }}{% endset %}{{ y | indent }}{{ 'a' 'b\\n' + u }}{{ u[::-1] }}";

TEST(fails_cleanly_without_memory)
{
    json_t *json = json_loads("[{\"k\":\"b\",\"v\":[1,2]},{\"k\":\"a\"}]", 0, NULL);
    for (unsigned nth = 1;; nth++) {
        struct jinja *t = NULL;
        const struct jinja_seg *seg;
        size_t n;
        mem_fail_nth(nth);
        int r = jinja_open(busy, sizeof busy - 1, &t, NULL);
        struct jinja_run *x = r == 0 ? jinja_begin(t, 0, NOW_S) : NULL;
        if (x) {
            jinja_bind(x, "u", jinja_text(x, "p q r", 5, 0));
            jinja_bind(x, "j", jinja_json(x, json));
            r = jinja_render(x, &seg, &n, NULL);
        } else if (r == 0) {
            r = -ENOMEM;
        }
        bool fired = mem_fail_fired();
        mem_fail_nth(0);
        jinja_end(x);
        jinja_close(t);
        if (fired) {
            ASSERT_ERR(r, -ENOMEM);
            continue;
        }
        ASSERT_OK(r);
        ASSERT_TRUE(nth > 3);
        break;
    }
    json_decref(json);
}

/* Whatever becomes of a source: it is refused, or its run ends within limits. */
TEST(mutated_templates_end)
{
    static const char alphabet[] = "{}%-#|.()[]'\"=+*~, \n0ab";
    uint64_t seed = 1;
    size_t n_run = 0;
    for (unsigned i = 0; i < 20000; i++) {
        char s[sizeof busy];
        memcpy(s, busy, sizeof s);
        for (unsigned k = 1 + test_rand(&seed) % 3; k > 0; k--) {
            size_t at = test_rand(&seed) % (sizeof busy - 1);
            size_t len = test_rand(&seed) % 8, from = test_rand(&seed) % (sizeof busy - 1);
            if (test_rand(&seed) % 2)
                s[at] = alphabet[test_rand(&seed) % (sizeof alphabet - 1)];
            else if (at + len < sizeof busy - 1 && from + len < sizeof busy - 1)
                memmove(s + at, s + from, len);
        }
        struct jinja *t = NULL;
        struct err err = {0};
        if (jinja_open(s, sizeof s - 1, &t, &err) < 0) {
            ASSERT_TRUE(err.msg[0] && !t);
            continue;
        }
        const struct jinja_seg *seg;
        size_t n;
        struct jinja_run *x = jinja_begin(t, 0, NOW_S);
        jinja_bind(x, "u", jinja_text(x, "p q r", 5, 0));
        if (jinja_render(x, &seg, &n, &err) < 0) ASSERT_TRUE(err.msg[0] != 0);
        n_run++;
        jinja_end(x);
        jinja_close(t);
    }
    ASSERT_TRUE(n_run > 1000);
}
