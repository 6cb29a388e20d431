/* Presets on prompts that the frameworks themselves made (make_prompts.py). A marked prompt's
 * documents are found exactly at first sight; where a framework only joins its documents, from the
 * third request on. */
#include "base/buf.h"
#include "segment/segment.h"
#include "tests/test.h"

#include <dirent.h>
#include <jansson.h>

enum { MESSAGES_MAX = 8, FIXTURES_MAX = 64 };

struct score {
    size_t edges, found, cuts, wrong;
};

static struct seg_presets *presets(void)
{
    struct seg_presets *p = NULL;
    struct err err = {0};
    if (seg_presets_load(NULL, &p, &err) < 0) test_fail(__FILE__, __LINE__, "%s", err.msg);
    return p;
}

static size_t texts_of(const json_t *prompt, struct seg_text *ret)
{
    size_t i;
    const json_t *m;
    json_array_foreach(json_object_get(prompt, "messages"), i, m) {
        const json_t *c = json_object_get(m, "content");
        ASSERT_TRUE(i < MESSAGES_MAX);
        ret[i] = (struct seg_text){json_string_value(json_object_get(m, "role")),
                                   json_string_value(c), json_string_length(c)};
    }
    return i;
}

static size_t number(const json_t *list, size_t i)
{
    return (size_t)json_integer_value(json_array_get(list, i));
}

/* White space next to an edge is nobody's. */
static bool same_place(const struct seg_text *t, size_t a, size_t b)
{
    size_t lo = a < b ? a : b, hi = a < b ? b : a;
    for (size_t i = lo; i < hi; i++)
        if (!strchr(" \t\r\n", t->text[i])) return false;
    return hi - lo <= 8;
}

static void count(const json_t *chunks, const struct seg_text *t, const struct seg_list *l,
                  struct score *ret)
{
    size_t n = json_array_size(chunks);
    for (size_t side = 1; side <= 2; side++) {
        for (size_t i = 0; i < n; i++) {
            const json_t *c = json_array_get(chunks, i);
            bool hit = false;
            for (size_t k = 0; k < l->n && !hit; k++)
                hit = l->seg[k].msg == number(c, 0) &&
                      same_place(&t[l->seg[k].msg], side == 1 ? l->seg[k].begin : l->seg[k].end,
                                 number(c, side));
            ret->found += hit;
        }
        for (size_t k = 0; k < l->n; k++) {
            bool right = false;
            for (size_t i = 0; i < n && !right; i++) {
                const json_t *c = json_array_get(chunks, i);
                right = l->seg[k].msg == number(c, 0) &&
                        same_place(&t[l->seg[k].msg], side == 1 ? l->seg[k].begin : l->seg[k].end,
                                   number(c, side));
            }
            ret->wrong += !right;
        }
    }
    ret->edges += 2 * n;
    ret->cuts += 2 * l->n;
}

static bool allowed(const json_t *names, const char *detector)
{
    size_t i;
    const json_t *v;
    json_array_foreach(names, i, v) {
        if (strcmp(json_string_value(v), detector) == 0) return true;
    }
    return false;
}

/* One shape of documents, a conversation of its own. */
static struct score run_case(const struct seg_presets *p, const json_t *fixture, const json_t *one)
{
    struct score sum = {0};
    struct seg_learner *learner = NULL;
    bool marked = json_is_true(json_object_get(fixture, "marked"));
    const json_t *prompt;
    size_t i;
    ASSERT_OK(seg_learner_create(SEG_LEARNER_BYTES, &learner));
    json_array_foreach(json_object_get(one, "prompts"), i, prompt) {
        struct seg_text t[MESSAGES_MAX];
        struct seg_list l = {0};
        struct seg_opts o = {.learner = learner};
        size_t n = texts_of(prompt, t);
        ASSERT_OK(seg_find(p, &o, t, n, &l));
        for (size_t k = 0; k < l.n; k++)
            if (!allowed(json_object_get(fixture, "presets"), l.seg[k].detector))
                test_fail(__FILE__, __LINE__, "%s, %s: cut by %s",
                          json_string_value(json_object_get(fixture, "framework")),
                          json_string_value(json_object_get(one, "shape")), l.seg[k].detector);
        if (marked || i >= 2) count(json_object_get(prompt, "chunks"), t, &l, &sum);
        seg_list_fini(&l);
    }
    seg_learner_free(learner);
    return sum;
}

static void run_fixture(const struct seg_presets *p, const char *file)
{
    struct score all = {0};
    struct buf path = BUF_INIT;
    json_error_t e;
    ASSERT_OK(buf_addf(&path, "segment/%s", file));
    json_t *f = json_load_file(test_data(buf_cstr(&path)), 0, &e);
    if (!f) test_fail(__FILE__, __LINE__, "%s:%d: %s", file, e.line, e.text);
    bool marked = json_is_true(json_object_get(f, "marked"));
    size_t i;
    const json_t *one;
    struct buf weak = BUF_INIT;
    json_array_foreach(json_object_get(f, "cases"), i, one) {
        struct score s = run_case(p, f, one);
        if (s.found < s.edges || s.wrong)
            ASSERT_OK(buf_addf(&weak, " %s %zu/%zu -%zu/%zu",
                               json_string_value(json_object_get(one, "shape")), s.found, s.edges,
                               s.wrong, s.cuts));
        all.edges += s.edges;
        all.found += s.found;
        all.cuts += s.cuts;
        all.wrong += s.wrong;
    }
    printf("# %-26s %s %4zu of %4zu boundaries, %2zu of %4zu cuts false%s\n",
           json_string_value(json_object_get(f, "framework")), marked ? "marked" : "joined",
           all.found, all.edges, all.wrong, all.cuts, buf_cstr(&weak));
    /* A lone "Document 1:" is no list. Text without any separator is known by its sentences only.
     */
    bool one_lost = strcmp(file, "haystack-numbered.json") == 0;
    bool bare = strcmp(file, "haystack-no-separator.json") == 0;
    double least = marked && !one_lost ? 1 : bare ? 0.9 : 0.95;
    if ((double)all.found < least * (double)all.edges || (double)all.wrong > (marked ? 0
                                                                              : bare ? 0.1
                                                                                     : 0.05) *
                                                                                 (double)all.cuts)
        test_fail(__FILE__, __LINE__, "%s: too many boundaries missed or false", file);
    json_decref(f);
    buf_fini(&path);
    buf_fini(&weak);
}

TEST(every_framework)
{
    struct seg_presets *p = presets();
    struct dirent **names = NULL;
    int n = scandir(test_data("segment"), &names, NULL, alphasort), tried = 0;
    ASSERT_TRUE(n > 0);
    for (int i = 0; i < n; i++) {
        const char *f = names[i]->d_name;
        if (strstr(f, ".json") && strcmp(f, "musique.json") != 0) {
            run_fixture(p, f);
            tried++;
        }
        free(names[i]);
    }
    free(names);
    ASSERT_TRUE(tried >= 20);
    seg_presets_free(p);
}
