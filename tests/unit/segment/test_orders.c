/* Four of eight documents in ever new orders, as a framework with its default metadata sends them
 * (make_prompts.py): what was cut once must be cut the same again, whatever stands before it.
 * A record is there from the request behind the one that cut its text. */
#include "base/buf.h"
#include "segment/segment.h"
#include "tests/test.h"

#include <jansson.h>

enum { DOCS = 8, ORDERS_MAX = 32, PICKED_MAX = 8, RECORDS_MAX = 4096, RECORD_BYTES_MIN = 64 };

struct asked {
    struct buf text;
    struct {
        size_t doc, begin, end;
    } at[PICKED_MAX];
    size_t n;
};

static void build(const json_t *parts, const json_t *documents, struct asked *ret)
{
    size_t i;
    const json_t *p;
    *ret = (struct asked){.text = BUF_INIT};
    json_array_foreach(parts, i, p) {
        size_t begin = ret->text.len;
        bool glue = json_is_string(p);
        size_t doc = glue ? DOCS : (size_t)json_integer_value(p);
        const json_t *s = glue ? p : json_array_get(documents, doc);
        ASSERT_OK(buf_add(&ret->text, json_string_value(s), json_string_length(s)));
        if (glue) continue;
        ASSERT_TRUE(doc < DOCS && ret->n < PICKED_MAX);
        ret->at[ret->n].doc = doc;
        ret->at[ret->n].begin = begin;
        ret->at[ret->n++].end = ret->text.len;
    }
}

struct record {
    const char *text;
    size_t len;
};

static bool stored(const struct record *r, size_t n, const char *text, size_t len)
{
    for (size_t i = 0; i < n; i++)
        if (r[i].len == len && memcmp(r[i].text, text, len) == 0) return true;
    return false;
}

/* Bytes of [begin, end) that lie in stored chunks. */
static size_t reused(const struct seg_list *l, const char *text, size_t begin, size_t end,
                     const struct record *r, size_t n)
{
    size_t sum = 0;
    for (size_t i = 0; i < l->n; i++) {
        const struct seg *s = &l->seg[i];
        size_t b = s->begin > begin ? s->begin : begin, e = s->end < end ? s->end : end;
        if (b < e && stored(r, n, text + s->begin, s->end - s->begin)) sum += e - b;
    }
    return sum;
}

/* Share of the documents that were asked for before which is reused, from request `from` on. */
static double run_case(const struct seg_presets *p, const json_t *one, size_t from)
{
    static struct record record[RECORDS_MAX];
    struct asked asked[ORDERS_MAX];
    bool seen[DOCS] = {0};
    size_t n_record = 0, sum_seen = 0, sum_reused = 0, n;
    const json_t *documents = json_object_get(one, "documents"), *parts;
    struct seg_learner *learner = NULL;
    ASSERT_OK(seg_learner_create(SEG_LEARNER_BYTES, &learner));
    json_array_foreach(json_object_get(one, "prompts"), n, parts) {
        struct seg_list l = {0};
        struct seg_opts o = {.learner = learner};
        ASSERT_TRUE(n < ORDERS_MAX);
        struct asked *a = &asked[n];
        build(parts, documents, a);
        const char *text = a->text.data;
        struct seg_text t = {"user", text, a->text.len};
        ASSERT_OK(seg_find(p, &o, &t, 1, &l));
        for (size_t i = 0; i < a->n; i++) {
            size_t b = a->at[i].begin, e = a->at[i].end;
            if (n >= from && seen[a->at[i].doc]) {
                sum_seen += e - b;
                sum_reused += reused(&l, text, b, e, record, n_record);
            }
            seen[a->at[i].doc] = true;
        }
        for (size_t i = 0; i < l.n; i++) {
            size_t len = l.seg[i].end - l.seg[i].begin;
            const char *s = text + l.seg[i].begin;
            if (len < RECORD_BYTES_MIN || stored(record, n_record, s, len)) continue;
            ASSERT_TRUE(n_record < RECORDS_MAX);
            record[n_record++] = (struct record){s, len};
        }
        seg_list_fini(&l);
    }
    for (size_t i = 0; i < n; i++)
        buf_fini(&asked[i].text);
    seg_learner_free(learner);
    return (double)sum_reused / (double)sum_seen;
}

TEST(seen_documents_are_reused_from_the_fifth_request_on)
{
    struct seg_presets *p = NULL;
    struct err err = {0};
    json_error_t e;
    json_t *f = json_load_file(test_data("segment/orders/llamaindex-file-path.json"), 0, &e);
    if (!f) test_fail(__FILE__, __LINE__, "line %d: %s", e.line, e.text);
    ASSERT_OK(seg_presets_load(NULL, &p, &err));
    size_t i;
    const json_t *one;
    json_array_foreach(json_object_get(f, "cases"), i, one) {
        double share = run_case(p, one, 4), late = run_case(p, one, 15);
        const char *shape = json_string_value(json_object_get(one, "shape"));
        printf("# %-14s %.4f of what was seen is reused, %.4f from the 16th on\n", shape, share,
               late);
        if (share < 0.95 || late < 1)
            test_fail(__FILE__, __LINE__, "%s: too little is reused", shape);
    }
    ASSERT_TRUE(i >= 7);
    json_decref(f);
    seg_presets_free(p);
}
