#include "gateway/scan.h"
#include "segment/segment.h"
#include "tests/test.h"

static struct gw_scan run(const char *body, size_t len, const struct seg_presets *p)
{
    struct gw_scan s = {.body = body, .len = len, .presets = p};
    gw_scan_run(&s);
    return s;
}

TEST(model_and_stream)
{
    static const char body[] = "{\"model\":\"a\\u002fb\",\"x\":{\"model\":\"no\"},\"stream\":true}";
    struct gw_scan s = run(body, sizeof body - 1, NULL);
    ASSERT_TRUE(!s.failed && s.stream && s.has_model);
    ASSERT_STREQ(s.model, "a/b");
    gw_scan_fini(&s);
    s = run("{}", 2, NULL);
    ASSERT_TRUE(!s.failed && !s.stream && !s.has_model);
    gw_scan_fini(&s);
}

TEST(refusals)
{
    static const struct {
        const char *body;
        enum gw_error e;
    } cases[] = {
        {"", GW_E_INVALID_JSON},
        {"[]", GW_E_INVALID_JSON},
        {"{\"a\":1", GW_E_INVALID_JSON},
        {"{\"a\":\"\xff\"}", GW_E_INVALID_UTF8},
        {"{} x", GW_E_INVALID_JSON},
        {"{\"a\":\"\\ud800\"}", GW_E_INVALID_JSON},
        {"{\"model\":\"a\\u0000b\"}", GW_E_UNKNOWN_MODEL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct gw_scan s = run(cases[i].body, strlen(cases[i].body), NULL);
        ASSERT_TRUE(s.failed);
        ASSERT_EQ(s.error, cases[i].e);
        ASSERT_TRUE(s.message[0] != '\0');
        gw_scan_fini(&s);
    }
    struct buf deep = BUF_INIT;
    ASSERT_OK(buf_adds(&deep, "{\"a\":"));
    for (int i = 0; i < 100000; i++)
        ASSERT_OK(buf_addc(&deep, '['));
    struct gw_scan s = run(deep.data, deep.len, NULL);
    ASSERT_TRUE(s.failed);
    gw_scan_fini(&s);
    buf_fini(&deep);
}

/* A request with a block of paragraphs that only the fall-back detector knows. */
static void rag_body(struct buf *b, const char *extra)
{
    ASSERT_OK(buf_addf(b,
                       "{\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"},{\"role\":"
                       "\"user\",\"content\":\""));
    for (int i = 0; i < 12; i++) {
        ASSERT_OK(buf_addf(b, "Passage %d. ", i));
        for (int j = 0; j < 30; j++)
            ASSERT_OK(buf_adds(b, "The old mill by the river still turns. "));
        ASSERT_OK(buf_adds(b, "\\n\\n"));
    }
    ASSERT_OK(buf_addf(b, "Does the mill turn?\"}]%s}", extra));
}

TEST(chunks_unless_the_request_marks_its_own)
{
    static const char *const marks[] = {
        ",\"documents\":[{\"text\":\"x\"}]", ",\"kvblend\":{\"separator\":\"##\"}",
        ",\"kvblend\":{\"segments\":[{\"a\":1}]}", ",\"kvblend\":{\"mode\":\"full\"}"};
    struct seg_presets *p;
    struct err err;
    ASSERT_OK(seg_presets_load(NULL, &p, &err));
    struct buf b = BUF_INIT;
    rag_body(&b, ",\"documents\":[],\"kvblend\":{\"mode\":\"auto\"}");
    struct gw_scan s = run(b.data, b.len, p);
    ASSERT_TRUE(!s.failed);
    ASSERT_TRUE(s.n_segments > 0);
    struct seg_list l = {0};
    ASSERT_OK(seg_parse(s.segments.data, s.segments.len, &l));
    ASSERT_EQ(l.n, s.n_segments);
    for (size_t i = 0; i < l.n; i++)
        ASSERT_EQ(l.seg[i].msg, 1);
    seg_list_fini(&l);
    gw_scan_fini(&s);
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
        buf_clear(&b);
        rag_body(&b, marks[i]);
        s = run(b.data, b.len, p);
        ASSERT_TRUE(!s.failed);
        ASSERT_EQ(s.n_segments, 0);
        gw_scan_fini(&s);
    }
    buf_fini(&b);
    seg_presets_free(p);
}

TEST(odd_messages_are_left_to_the_worker)
{
    static const char *const bodies[] = {
        "{\"messages\":[1,2]}",
        "{\"messages\":{}}",
        "{\"messages\":[]}",
        "{\"messages\":[{\"content\":[{\"type\":\"text\",\"text\":\"a\"}]}]}",
        "{\"messages\":[{\"role\":7,\"content\":null}]}",
    };
    struct seg_presets *p;
    struct err err;
    ASSERT_OK(seg_presets_load(NULL, &p, &err));
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        struct gw_scan s = run(bodies[i], strlen(bodies[i]), p);
        ASSERT_TRUE(!s.failed);
        ASSERT_EQ(s.n_segments, 0);
        gw_scan_fini(&s);
    }
    seg_presets_free(p);
}

/* Three documents in a given order and a question; every message a single text part. */
static void parts_body(struct buf *b, const char *order, const char *extra)
{
    buf_clear(b);
    ASSERT_OK(buf_adds(b, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\","
                          "\"text\":\""));
    for (; *order; order++) {
        for (int k = 0; k < 2; k++) { /* two paragraphs that always come together */
            ASSERT_OK(buf_addf(b, "Part %d of document %c tells", k, *order));
            for (int j = 0; j < 12; j++)
                ASSERT_OK(buf_addf(b, " how the %c%d mill turns", *order, 20 * k + j));
            ASSERT_OK(buf_adds(b, ".\\n\\n"));
        }
    }
    ASSERT_OK(buf_addf(b, "Does it turn?\"}]}]%s}", extra));
}

static unsigned scan_parts(struct seg_learner *l, const struct seg_presets *p, const char *space,
                           const char *order, const char *extra, struct buf *why)
{
    struct buf b = BUF_INIT;
    parts_body(&b, order, extra);
    struct gw_scan s = {
        .body = b.data, .len = b.len, .presets = p, .learner = l, .dry = why, .explain = why};
    (void)snprintf(s.space, sizeof s.space, "%s", space);
    gw_scan_run(&s);
    ASSERT_TRUE(!s.failed);
    unsigned n = s.n_segments;
    gw_scan_fini(&s);
    buf_fini(&b);
    return n;
}

TEST(learning_stays_in_its_namespace)
{
    struct seg_learner *l;
    struct seg_presets *p;
    struct err err;
    struct buf why = BUF_INIT;
    ASSERT_OK(seg_presets_load(NULL, &p, &err));
    ASSERT_OK(seg_learner_create(SEG_LEARNER_BYTES, &l));
    unsigned first = scan_parts(l, p, "k1/", "abcd", "", NULL);
    (void)scan_parts(l, p, "k1/", "cadb", "", NULL);
    (void)scan_parts(l, p, "k1/", "bdac", "", NULL);
    ASSERT_TRUE(first != 4);
    ASSERT_EQ(scan_parts(l, p, "k1/", "dcba", "", &why), 4);
    ASSERT_TRUE(strstr(buf_cstr(&why), "both_sides_vary") &&
                strstr(buf_cstr(&why), "moves_together"));
    ASSERT_EQ(scan_parts(l, p, "k2/", "dcba", "", &why), first);
    ASSERT_EQ(scan_parts(l, p, "k1/", "dcba", ",\"cache_salt\":\"x\"", &why), first);
    ASSERT_EQ(scan_parts(l, p, "k1/", "dcba", ",\"kvblend\":{\"namespace\":\"x\"}", &why), first);
    buf_fini(&why);
    seg_learner_free(l);
    seg_presets_free(p);
}
