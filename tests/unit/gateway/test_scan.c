#include "gateway/request/scan.h"
#include "segment/segment.h"
#include "tests/test.h"
#include "tests/unit/gateway/scan_text.h"

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
    ASSERT_EQ(s.model_value.at, 9);
    ASSERT_MEMEQ(body + s.model_value.at, "\"a\\u002fb\"", s.model_value.len);
    gw_scan_fini(&s);
    s = run("{}", 2, NULL);
    ASSERT_TRUE(!s.failed && !s.stream && !s.has_model && s.model_value.len == 0);
    gw_scan_fini(&s);
    s = run("{\"model\" : null}", 16, NULL); /* a place for a name */
    ASSERT_TRUE(!s.failed && !s.has_model && s.model_value.at == 11 && s.model_value.len == 4);
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
        {"{\"model\":\"allowed\",\"x\":1,\"model\":\"other\"}", GW_E_INVALID_JSON},
        {"{\"model\":\"other\",\"mod\\u0065l\":null}", GW_E_INVALID_JSON},
        {"{\"model\":\"m\",\"temperature\":1e999}", GW_E_INVALID_JSON},
        {"{\"model\":\"m\",\"kvblend\":{\"max_ttft_ms\":-1e999}}", GW_E_INVALID_JSON},
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
        ASSERT_EQ(s.segments.len, 0); /* the worker reads these marks itself */
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

static uint64_t affinity(const char *body)
{
    struct gw_scan s = run(body, strlen(body), NULL);
    ASSERT_TRUE(!s.failed);
    gw_scan_fini(&s);
    return s.affinity;
}

TEST(affinity_is_that_of_the_conversation)
{
#define SYSTEM "{\"role\":\"system\",\"content\":\"Be \\\"brief\\\" {\"}"
#define TURN "{\"role\":\"user\",\"content\":\"Hello?\"}"
    uint64_t first = affinity("{\"messages\":[" SYSTEM "," TURN "]}");
    ASSERT_TRUE(first != 0);
    ASSERT_TRUE(first == affinity("{\"model\":\"a\",\"messages\":[" SYSTEM "," TURN
                                  ",{\"role\":\"assistant\",\"content\":\"Hi\"}," TURN "]}"));
    ASSERT_TRUE(first != affinity("{\"messages\":[" TURN "]}"));
    uint64_t key = affinity("{\"prompt_cache_key\":\"k\",\"messages\":[" TURN "]}");
    ASSERT_TRUE(key == affinity("{\"messages\":[" SYSTEM "," TURN "],\"prompt_cache_key\":\"k\"}"));
    ASSERT_TRUE(key != affinity("{\"prompt_cache_key\":\"l\",\"messages\":[" TURN "]}"));
    ASSERT_TRUE(affinity("{\"prompt\":\"abc\"}") != affinity("{\"prompt\":\"abd\"}"));
    ASSERT_TRUE(affinity("{}") == 0 && affinity("{\"messages\":[]}") == 0);
}

TEST(removed_strategies_are_seen)
{
    static const struct {
        const char *body;
        bool asks;
    } t[] = {{"{\"kvblend\":{\"ratio\":1, \"strategy\" : \"map_reduce\"}}", true},
             {"{\"kvblend\":{\"strategy\":\"map_rerank\"}}", true},
             {"{\"kvblend\":{\"strategy\":\"query\"}}", false},
             {"{\"strategy\":\"map_reduce\"}", false}};
    for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) {
        struct gw_scan s = run(t[i].body, strlen(t[i].body), NULL);
        ASSERT_EQ(s.asks_map, t[i].asks);
        gw_scan_fini(&s);
    }
}

static struct gw_scan scan_text(const char *text)
{
    return run(text, strlen(text), NULL);
}

TEST(priority_and_objective)
{
    struct gw_scan s = scan_text("{\"kvblend\":{\"priority\":7,\"max_ttft_ms\":1500.5}}");
    ASSERT_TRUE(!s.failed && s.priority == 7 && s.max_ttft_ms == 1500.5);
    s = scan_text("{\"kvblend\":{\"priority\":null,\"max_ttft_ms\":-1},\"priority\":3}");
    ASSERT_TRUE(!s.failed && s.priority == 0 && s.max_ttft_ms == 0); /* vLLM's is another one */
    static const char *const bad[] = {"10", "-1", "1.5", "\"2\"", "true", "99999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char text[80];
        (void)snprintf(text, sizeof text, "{\"kvblend\":{\"priority\":%s}}", bad[i]);
        s = scan_text(text);
        ASSERT_TRUE(s.failed && s.error == GW_E_BAD_REQUEST);
        ASSERT_TRUE(strstr(s.message, "kvblend.priority") != NULL);
    }
}

/* ---- chunks by the sender's word ---- */

#define LONG                                                                                       \
    "It has stood there since the flood of eighteen twenty, when the old one was carried off by "  \
    "the river, and nobody has lived in it since the miller left."

/* Each chunk of the body as "msg:text|". */
static void chunks_of(const char *body, const char *given, struct buf *ret, struct gw_scan *s)
{
    *s = (struct gw_scan){.body = body, .len = strlen(body), .given = given};
    gw_scan_head(s);
    ASSERT_TRUE(!s->failed);
    gw_scan_chunks(s);
    ASSERT_EQ(s->n_chunks, s->n_segments);
    buf_clear(ret);
    for (size_t i = 0; i < s->n_chunks; i++) {
        struct buf text = BUF_INIT;
        const struct gw_scan_chunk *c = &s->chunk[i];
        ASSERT_OK(chunk_text(s, c, &text));
        ASSERT_EQ(c->end - c->begin, text.len);
        ASSERT_TRUE(c->text_id == seg_text_id("", text.data, text.len));
        ASSERT_OK(buf_addf(ret, "%d:%.*s|", (int)c->msg, (int)text.len, text.data));
        buf_fini(&text);
    }
    ASSERT_TRUE(buf_cstr(ret) != NULL);
}

/* What is ranked has no texts beside; its ids are not those of a chat's documents. */
TEST(documents_that_are_ranked)
{
    static const char *const bodies[] = {"{\"query\":\"q\",\"documents\":[\"" LONG
                                         "\",\"short\",{\"title\":\"t\",\"text\":\"" LONG "\"}]}",
                                         "{\"text_1\":\"q\",\"text_2\":[\"" LONG
                                         "\",\"short\",\"t\\n" LONG "\"]}"};
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        struct gw_scan s = {.body = bodies[i], .len = strlen(bodies[i]), .ranks = true};
        gw_scan_head(&s);
        gw_scan_chunks(&s);
        ASSERT_TRUE(!s.failed && s.n_chunks == 2 && s.n_segments == 2);
        ASSERT_TRUE(s.chunk[0].text_id == seg_ranked_id("", LONG, strlen(LONG)));
        ASSERT_TRUE(s.chunk[1].text_id == seg_ranked_id("", "t\n" LONG, strlen(LONG) + 2));
        ASSERT_STREQ(s.detector, "documents");
        gw_scan_fini(&s);
    }
    struct gw_scan s = {.body = bodies[1], .len = strlen(bodies[1])};
    gw_scan_head(&s);
    gw_scan_chunks(&s); /* of a chat that is no field */
    ASSERT_EQ(s.n_chunks, 0);
    gw_scan_fini(&s);
}

/* A ranking costs its query once a document, whatever the two are called. */
TEST(what_is_read_of_a_ranking)
{
    static const struct {
        const char *body;
        size_t more; /* than the body's bytes */
    } cases[] = {
        {"{\"query\":\"12345678\",\"documents\":[\"a\",{\"text\":\"b\"},\"c\"]}", 20},
        {"{\"documents\":[\"a\",\"b\"],\"query\":\"12345678\"}", 10},
        {"{\"text_1\":\"12345678\",\"text_2\":[\"a\",\"b\",\"c\"]}", 20},
        {"{\"queries\":\"12345678\",\"documents\":[\"a\",\"b\"]}", 10},
        {"{\"text_1\":[\"1\",\"2\"],\"text_2\":[\"a\",\"b\"]}", 0}, /* pairs */
        {"{\"text_1\":\"12345678\",\"text_2\":\"a\"}", 0},
        {"{\"query\":\"12345678\",\"documents\":[]}", 0},
        {"{\"query\":\"12345678\"}", 0},
        {"{\"query\":7,\"documents\":[\"a\",\"b\"]}", 0},
        {"{\"query\":\"1\",\"queries\":\"12345678\",\"documents\":[\"a\",\"b\"],\"text_1\":\"\"}",
         10},
        {"{\"messages\":[],\"documents\":[\"a\",\"b\"]}", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct gw_scan s;
        gw_scan_init(&s, cases[i].body, strlen(cases[i].body), i % 2);
        ASSERT_EQ(s.prompt_bytes, s.len); /* what no JSON is counts, too */
        s.ranks = true;
        gw_scan_head(&s);
        ASSERT_TRUE(!s.failed);
        ASSERT_EQ(s.prompt_bytes, s.len + cases[i].more);
        gw_scan_fini(&s);
    }
}

TEST(parts_documents_ranges)
{
    static const struct {
        const char *body, *given, *chunks, *detector;
    } cases[] = {
        {"{\"messages\":[{\"role\":\"tool\",\"content\":[{\"type\":\"text\",\"text\":\"A " LONG
         "\"},{\"type\":\"text\",\"text\":\"B\\u00e4\\n" LONG
         "\"},\"C\",{\"type\":\"image_url\"}]}]}",
         NULL, "0:A " LONG "|0:B\xc3\xa4\n" LONG "|", "parts"},
        {"{\"messages\":[{\"content\":[{\"text\":\"" LONG
         "\",\"segment\":\"glue\"},{\"text\":\"The mill by the river turns when the wind blows "
         "from "
         "the west, not else.\",\"segment\":\"chunk\"},{\"text\":\"Why?\"}]}]}",
         NULL, "0:The mill by the river turns when the wind blows from the west, not else.|",
         "parts"},
        {"{\"documents\":[{\"title\":\"T\",\"text\":\"" LONG "\"},\"" LONG "\",\"short\",7],"
         "\"prompt\":\"Why?\"}",
         NULL, "-1:T\n" LONG "|-1:" LONG "|", "documents"},
        {"{\"messages\":[{\"content\":\"\\ud83d\\ude00\\\"" LONG
         "\"}],\"kvblend\":{\"segments\":[{\"begin\":4,\"end\":9},{\"begin\":1,\"end\":3},"
         "{\"message\":0,\"begin\":9,\"end\":12}]}}",
         NULL, "0:\"It h|0:as |", "api"},
        {"{\"prompt\":[\"" LONG "\"]}", "0:3-6:mine,0:10-20:mine,3:1-2:x", "0:has|0:od there s|",
         "mine"},
        {"{\"prompt\":[\"" LONG "\",\"" LONG "\"]}", "0:3-6:mine", "", ""},
        {"{\"prompt\":\"" LONG "\"}", "0:3-6:mine,0:5-7:mine", "", ""},
    };
    struct buf b = BUF_INIT;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct gw_scan s;
        chunks_of(cases[i].body, cases[i].given, &b, &s);
        ASSERT_STREQ(buf_cstr(&b), cases[i].chunks);
        ASSERT_STREQ(s.detector, cases[i].detector);
        ASSERT_EQ(s.segments.len, 0);
        gw_scan_fini(&s);
    }
    buf_fini(&b);
}

TEST(text_ids_are_those_of_the_worker)
{
    static const char body[] = "{\"prompt\":\"" LONG "\",\"cache_salt\":\"salt\"}";
    struct gw_scan s = {.body = body, .len = sizeof body - 1, .given = "0:0-8:x"};
    memcpy(s.space, "team", 5);
    gw_scan_run(&s);
    gw_scan_chunks(&s);
    ASSERT_EQ(s.n_chunks, 1);
    ASSERT_TRUE(s.chunk[0].text_id == seg_text_id("team\x1fsalt", LONG, 8));
    gw_scan_fini(&s);
}

static uint64_t id_in(const char *space, const char *body_space)
{
    struct buf b = BUF_INIT;
    ASSERT_OK(buf_adds(&b, "{\"prompt\":\"" LONG "\",\"kvblend\":{\"namespace\":"));
    ASSERT_OK(buf_add_json_str(&b, body_space, strlen(body_space)));
    ASSERT_OK(buf_adds(&b, "}}"));
    struct gw_scan s = {.body = b.data, .len = b.len, .given = "0:0-8:x"};
    (void)snprintf(s.space, sizeof s.space, "%s", space);
    gw_scan_run(&s);
    gw_scan_chunks(&s);
    ASSERT_EQ(s.n_chunks, 1);
    uint64_t id = s.chunk[0].text_id;
    gw_scan_fini(&s);
    buf_fini(&b);
    return id;
}

/* Whatever a body says, and however its words and the key's run together. */
TEST(no_body_leaves_its_keys_namespace)
{
    static const char *const spaces[] = {"", "a", "b", "a/b", "ab"};
    static const char *const bodies[] = {"",   "a",  "b",      "a/b",   "/b",   "/",
                                         "ab", "a/", "\x1f_b", "a\x1f", "../b", "b\x1f_a"};
    enum { N = sizeof spaces / sizeof spaces[0], M = sizeof bodies / sizeof bodies[0] };
    uint64_t id[N * M];
    for (size_t i = 0; i < N * M; i++) {
        id[i] = id_in(spaces[i / M], bodies[i % M]);
        for (size_t j = 0; j < i; j++)
            ASSERT_TRUE(id[i] != id[j]);
    }
}

TEST(prompts_are_cut_like_messages)
{
    struct seg_presets *p;
    struct err err;
    struct buf b = BUF_INIT;
    ASSERT_OK(seg_presets_load(NULL, &p, &err));
    for (int list = 0; list < 2; list++) {
        buf_clear(&b);
        ASSERT_OK(buf_addf(&b, "{\"prompt\":%s\"", list ? "[" : ""));
        for (int i = 1; i <= 3; i++)
            ASSERT_OK(buf_addf(&b, "[Document %d]\\n%d " LONG "\\n\\n", i, i));
        ASSERT_OK(buf_addf(&b, "Question: why?\"%s}", list ? "]" : ""));
        struct gw_scan s = run(b.data, b.len, p);
        ASSERT_EQ(s.n_chunks, 3);
        ASSERT_TRUE(s.segments.len > 0);
        for (size_t i = 0; i < 3; i++) {
            struct buf text = BUF_INIT;
            ASSERT_OK(chunk_text(&s, &s.chunk[i], &text));
            ASSERT_TRUE(text.data[0] == (char)('1' + i) && text.len == 2 + strlen(LONG));
            buf_fini(&text);
        }
        gw_scan_fini(&s);
    }
    buf_fini(&b);
    seg_presets_free(p);
}

/* A key's tokens are reserved by it, and the worker's /v1/completions knows max_tokens only. */
TEST(the_larger_token_limit_counts)
{
    static const struct {
        const char *body;
        uint32_t n;
    } t[] = {{"{}", 0},
             {"{\"max_tokens\":7}", 7},
             {"{\"max_completion_tokens\":7}", 7},
             {"{\"max_tokens\":900,\"max_completion_tokens\":1}", 900},
             {"{\"max_tokens\":1,\"max_completion_tokens\":900}", 900},
             {"{\"max_tokens\":4.0,\"max_completion_tokens\":null}", 4},
             {"{\"max_tokens\":-1}", 0}};
    for (size_t i = 0; i < sizeof t / sizeof t[0]; i++)
        ASSERT_EQ(scan_text(t[i].body).max_tokens, t[i].n);
}
