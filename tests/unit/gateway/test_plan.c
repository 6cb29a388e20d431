#include "gateway/request/plan.h"
#include "base/err.h"
#include "tests/test.h"

#include <jansson.h>

#define ALPHA "Alpha has stood there since the flood of eighteen twenty, and longer than that."
#define BRAVO "Bravo burned \\\"down\\\" in the war, and nobody has ever thought of rebuilding it."
#define BRAVO_PLAIN                                                                                \
    "Bravo burned \"down\" in the war, and nobody has ever thought of rebuilding it."

struct made {
    struct gw_scan scan;
    struct gw_plan *plan;
};

static int make(struct made *m, const char *body, const char *given, enum gw_strategy kind,
                const struct gw_prompts *prompts)
{
    const char *why;
    m->scan =
        (struct gw_scan){.body = body, .len = strlen(body), .given = given, .even_full = true};
    gw_scan_head(&m->scan);
    ASSERT_TRUE(!m->scan.failed);
    gw_scan_chunks(&m->scan);
    m->plan = NULL;
    int r = gw_plan_create(&m->scan, kind, prompts, &m->plan, &why);
    if (r < 0) ASSERT_TRUE(why != NULL);
    return r;
}

static void unmake(struct made *m)
{
    gw_plan_free(m->plan);
    gw_scan_fini(&m->scan);
}

static const char *call(const struct made *m, size_t i, struct buf *b)
{
    buf_clear(b);
    ASSERT_OK(gw_plan_call(m->plan, i, b));
    return buf_cstr(b);
}

static const struct gw_prompts short_prompts = {"Q={question} T={text} {x}", "<{text}>", " SCORE",
                                                77};

/* "Context: ALPHA -- BRAVO -- Why?" with ranges; bytes of the texts are known. */
#define CHAT                                                                                       \
    "{\"model\":\"m\",\"stream\":true,\"stream_options\":{\"include_usage\":true},\"top_p\":0.5,"  \
    "\"messages\":[{\"role\":\"system\",\"content\":\"Be "                                         \
    "brief.\"},{\"role\":\"user\",\"content\":"                                                    \
    "\"See " ALPHA " -- " BRAVO " -- Why?\"}],\"max_tokens\":9,\"kvblend\":{\"strategy\":"         \
    "\"map_reduce\",\"ratio\":0.1,\"segments\":[{\"message\":1,\"begin\":4,\"end\":83},"           \
    "{\"message\":1,\"begin\":87,\"end\":164}]}}"

TEST(map_calls)
{
    struct made m;
    struct buf b = BUF_INIT;
    ASSERT_EQ(strlen(ALPHA), 79);
    ASSERT_EQ(strlen(BRAVO_PLAIN), 77);
    ASSERT_OK(make(&m, CHAT, NULL, GW_STRATEGY_MAP_REDUCE, &short_prompts));
    ASSERT_EQ(gw_plan_count(m.plan), 2);
    ASSERT_TRUE(gw_plan_wants_usage(m.plan));
    ASSERT_STREQ(call(&m, 1, &b),
                 "{\"model\":\"m\",\"top_p\":0.5,\"messages\":[{\"role\":\"user\",\"content\":"
                 "\"Q=See  -- Why? T=" BRAVO " {x}\"}],\"max_tokens\":77,\"kvblend\":{\"ratio\":"
                 "0.1},\"temperature\":0}");
    unmake(&m);
    buf_fini(&b);
}

TEST(reduce_edits_the_body)
{
    struct made m;
    struct buf b = BUF_INIT, s[2] = {{"one \"1\"\n", 8, 0}, {NULL, 0, 0}};
    ASSERT_OK(make(&m, CHAT, NULL, GW_STRATEGY_MAP_REDUCE, &short_prompts));
    ASSERT_OK(gw_plan_reduce(m.plan, s, &b));
    ASSERT_STREQ(buf_cstr(&b),
                 "{\"model\":\"m\",\"stream\":true,\"stream_options\":{\"include_usage\":true},"
                 "\"top_p\":0.5,\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"},"
                 "{\"role\":\"user\",\"content\":\"See <one \\\"1\\\"\\n> --  -- Why?\"}],"
                 "\"max_tokens\":9,\"kvblend\":{\"strategy\":null,\"ratio\":0.1,\"segments\":null}"
                 "}");
    unmake(&m);
    buf_fini(&b);
}

TEST(rerank_calls_keep_one_chunk)
{
    struct made m;
    struct buf b = BUF_INIT;
    ASSERT_OK(make(&m, CHAT, NULL, GW_STRATEGY_MAP_RERANK, &short_prompts));
    ASSERT_STREQ(call(&m, 0, &b),
                 "{\"model\":\"m\",\"top_p\":0.5,\"messages\":[{\"role\":\"system\",\"content\":"
                 "\"Be brief.\"},{\"role\":\"user\",\"content\":\"See " ALPHA " -- Why? SCORE\"}],"
                 "\"max_tokens\":25,\"kvblend\":{\"ratio\":0.1},\"temperature\":0}");
    unmake(&m);
    buf_fini(&b);
}

TEST(parts_documents_prompts)
{
    static const char parts[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"" ALPHA ALPHA
        "\"},{\"type\":\"text\",\"text\":\"" BRAVO BRAVO
        "\"},{\"type\":\"text\",\"text\":\"Why? " ALPHA ALPHA
        "\"}]}],\"temperature\":0.7,\"max_completion_tokens\":3}";
    static const char docs[] =
        "{\"prompt\":\"Why?\",\"documents\":[{\"id\":7,\"title\":\"T\",\"text\":\"" ALPHA
        "\"},\"" BRAVO "\"]}";
    struct made m;
    struct buf b = BUF_INIT, s[2] = {{"a", 1, 0}, {"b", 1, 0}};
    ASSERT_OK(make(&m, parts, NULL, GW_STRATEGY_MAP_RERANK, &short_prompts));
    ASSERT_EQ(gw_plan_count(m.plan), 2); /* the last part is the question, however long */
    ASSERT_STREQ(call(&m, 1, &b),
                 "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"\"},"
                 "{\"type\":\"text\",\"text\":\"" BRAVO BRAVO "\"},{\"type\":\"text\",\"text\":"
                 "\"Why? " ALPHA ALPHA " SCORE\"}]}],\"temperature\":0.7,"
                 "\"max_completion_tokens\":19}");
    unmake(&m);
    ASSERT_OK(make(&m, docs, NULL, GW_STRATEGY_MAP_RERANK, &short_prompts));
    ASSERT_STREQ(call(&m, 0, &b),
                 "{\"prompt\":\"Why? SCORE\",\"temperature\":0,\"documents\":[{\"id\":7,\"title\":"
                 "\"T\",\"text\":\"" ALPHA "\"}]}");
    unmake(&m);
    ASSERT_OK(make(&m, docs, NULL, GW_STRATEGY_MAP_REDUCE, &short_prompts));
    ASSERT_STREQ(call(&m, 0, &b), "{\"prompt\":\"Q=Why? T=T\\n" ALPHA " {x}\",\"temperature\":0,"
                                  "\"max_tokens\":77}");
    buf_clear(&b);
    ASSERT_OK(gw_plan_reduce(m.plan, s, &b));
    ASSERT_STREQ(buf_cstr(&b), "{\"prompt\":\"Why?\",\"documents\":[{\"id\":7,\"title\":\"T\","
                               "\"text\":\"<a>\"},\"<b>\"]}");
    unmake(&m);
    buf_fini(&b);
}

TEST(what_cannot_be_done_is_refused)
{
    static const struct {
        const char *more;
        bool reduce, rerank;
    } cases[] = {
        {"\"n\":1", true, true},
        {"\"n\":2", false, false},
        {"\"best_of\":3", false, false},
        {"\"tools\":[]", true, true},
        {"\"tools\":[{\"type\":\"function\"}]", true, false},
        {"\"response_format\":{\"type\":\"text\"}", true, true},
        {"\"response_format\":{\"type\":\"json_object\"}", true, false},
        {"\"logprobs\":true", true, false},
        {"\"logprobs\":false", true, true},
        {"\"seed\":99999999999999999999", false, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct buf b = BUF_INIT;
        struct made m;
        ASSERT_OK(buf_addf(&b, "{\"prompt\":\"x\",%s}", cases[i].more));
        int r = make(&m, buf_cstr(&b), NULL, GW_STRATEGY_MAP_REDUCE, &short_prompts);
        ASSERT_EQ(r, cases[i].reduce ? 0 : -EBADMSG);
        unmake(&m);
        r = make(&m, buf_cstr(&b), NULL, GW_STRATEGY_MAP_RERANK, &short_prompts);
        ASSERT_EQ(r, cases[i].rerank ? 0 : -EBADMSG);
        unmake(&m);
        buf_fini(&b);
    }
}

TEST(scores_are_read_strictly)
{
    static const struct {
        const char *text;
        unsigned score;
        const char *left;
    } cases[] = {
        {"Yes.\nScore: 85", 85, "Yes."},
        {"Yes.\n\nScore: 100 \n", 100, "Yes."},
        {"Yes. Score:7", 7, "Yes."},
        {"Score: 0", 0, ""},
        {"Yes.\nScore: 0\n", 0, "Yes."},
        {"Yes.\nScore: 101", 0, NULL},
        {"Yes.\nScore: -5", 0, NULL},
        {"Yes.\nScore: 8.5", 0, NULL},
        {"Yes.\nScore: high", 0, NULL},
        {"Yes.\nScore: 85/100", 0, NULL},
        {"Yes.\nscore: 85", 0, NULL},
        {"MyScore: 85", 0, NULL},
        {"Score: 85. Yes.", 0, NULL},
        {"Score: 1085", 0, NULL},
        {"85", 0, NULL},
        {"", 0, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t n = strlen(cases[i].text);
        ASSERT_EQ(gw_plan_score(cases[i].text, &n), cases[i].score);
        const char *left = cases[i].left ? cases[i].left : cases[i].text;
        ASSERT_EQ(n, strlen(left));
        ASSERT_MEMEQ(cases[i].text, left, n);
    }
}

TEST(reports_and_usage)
{
    static const struct gw_usage more = {.prompt = 100, .completion = 20, .cached = 7};
    static const char *const cases[][2] = {
        {"{\"id\":\"a\", \"usage\":{\"total_tokens\":5,\"prompt_tokens\": "
         "3,\"completion_tokens\":2,"
         "\"prompt_tokens_details\":{\"cached_tokens\":1}},\"x\":1.50}\n",
         "{\"id\":\"a\", \"usage\":{\"total_tokens\":125,\"prompt_tokens\": 103,"
         "\"completion_tokens\":22,\"prompt_tokens_details\":{\"cached_tokens\":8}},\"x\":1.50,"
         "\"kvblend\":{\"calls\":3}}\n"},
        {"{\"usage\":null,\"kvblend\":{\"mode\":\"full\"},\"x\":1}",
         "{\"usage\":null,\"kvblend\":{\"calls\":3,\"last_call\":{\"mode\":\"full\"}},\"x\":1}"},
    };
    struct buf b = BUF_INIT;
    for (size_t i = 0; i < 2; i++) {
        buf_clear(&b);
        ASSERT_OK(gw_plan_add_report(cases[i][0], strlen(cases[i][0]), &more, "{\"calls\":3}", &b));
        ASSERT_STREQ(buf_cstr(&b), cases[i][1]);
    }
    ASSERT_TRUE(gw_plan_add_report("not json", 8, &more, "{}", &b) < 0);
    buf_fini(&b);
}

TEST(the_choice_is_given_without_its_score)
{
    static const char chat[] =
        "{\"id\":\"i\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"m\",\"choices\":[{"
        "\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"Yes.\\nScore: 9\"},"
        "\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,"
        "\"total_tokens\":5}}";
    static const struct gw_usage more = {.prompt = 10, .completion = 20};
    struct buf b = BUF_INIT;
    ASSERT_OK(gw_plan_choice(chat, sizeof chat - 1, &more, "{\"calls\":2}", false, false, &b));
    ASSERT_STREQ(buf_cstr(&b),
                 "{\"id\":\"i\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"m\","
                 "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"Yes."
                 "\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":13,"
                 "\"completion_tokens\":22,\"total_tokens\":35},\"kvblend\":{\"calls\":2}}");
    buf_clear(&b);
    ASSERT_OK(gw_plan_choice(chat, sizeof chat - 1, &more, "{\"calls\":2}", true, true, &b));
#define HEAD                                                                                       \
    "data: {\"id\":\"i\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\","
    ASSERT_STREQ(buf_cstr(&b), HEAD
                 "\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}"
                 ",\"finish_reason\":null}],\"usage\":null}\n\n" HEAD
                 "\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Yes.\"},"
                 "\"finish_reason\":null}],\"usage\":null}\n\n" HEAD
                 "\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}],"
                 "\"usage\":null}\n\n" HEAD
                 "\"choices\":[],\"usage\":{\"prompt_tokens\":13,\"completion_tokens\":22,"
                 "\"total_tokens\":35},\"kvblend\":{\"calls\":2}}\n\ndata: [DONE]\n\n");
    buf_clear(&b);
    static const char text[] = "{\"choices\":[{\"text\":\"No\",\"index\":0,\"finish_reason\":"
                               "\"length\"}]}";
    ASSERT_OK(gw_plan_choice(text, sizeof text - 1, &more, "{}", true, false, &b));
    ASSERT_STREQ(buf_cstr(&b),
                 "data: {\"choices\":[{\"index\":0,\"text\":\"No\",\"logprobs\":null,"
                 "\"finish_reason\":null}]}\n\ndata: {\"choices\":[{\"index\":0,\"text\":\"\","
                 "\"logprobs\":null,\"finish_reason\":\"length\"}],\"kvblend\":{}}\n\n"
                 "data: [DONE]\n\n");
    buf_clear(&b);
    ASSERT_ERR(gw_plan_choice("{\"choices\":[]}", 14, &more, "{}", false, false, &b), -EBADMSG);
    ASSERT_ERR(gw_plan_answer("[]", 2, &b), -EBADMSG);
    buf_fini(&b);
}
