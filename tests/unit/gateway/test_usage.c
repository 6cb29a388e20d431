#include "gateway/request/usage.h"
#include "tests/test.h"

static struct gw_usage events(const char *text)
{
    struct gw_usage u = {0};
    gw_usage_events(&u, text, strlen(text));
    return u;
}

static struct gw_usage answer(const char *text)
{
    struct gw_usage u = {0};
    gw_usage_answer(&u, text, strlen(text));
    return u;
}

TEST(answers)
{
    struct gw_usage u = answer("{\"x\":1,\"usage\":{\"prompt_tokens\":8,\"completion_tokens\":3,"
                               "\"prompt_tokens_details\":{\"cached_tokens\":5}}}");
    ASSERT_TRUE(u.known && u.has_cached);
    ASSERT_EQ(u.prompt, 8);
    ASSERT_EQ(u.completion, 3);
    ASSERT_EQ(u.cached, 5);
    ASSERT_EQ(gw_usage_charge(&u, 100, false, 1000), 11);
    u = answer(
        "{\"usage\":{\"input_tokens\":4,\"output_tokens\":2,\"cache_read_input_tokens\":1}}");
    ASSERT_TRUE(u.known && u.prompt == 4 && u.completion == 2 && u.cached == 1);
    u = answer("{\"usage\":{\"prompt_tokens\":7}}"); /* embeddings */
    ASSERT_TRUE(u.known && u.prompt == 7 && u.completion == 0 && !u.has_cached);
    u = answer("{\"response\":{\"usage\":{\"input_tokens\":6,\"output_tokens\":2,"
               "\"input_tokens_details\":{\"cached_tokens\":3}}}}"); /* /v1/responses */
    ASSERT_TRUE(u.known && u.prompt == 6 && u.completion == 2 && u.cached == 3);
    u = answer("{\"usage\":{\"prompt_tokens\":99999999999999}}");
    ASSERT_EQ(u.prompt, GW_USAGE_MAX);
    static const char *const none[] = {"",
                                       "{",
                                       "[]",
                                       "{}",
                                       "{\"usage\":null}",
                                       "{\"usage\":[1]}",
                                       "{\"usage\":{}}",
                                       "{\"usage\":{\"prompt_tokens\":-1}}",
                                       "{\"usage\":{\"prompt_tokens\":\"1\"}}",
                                       "{\"usage\":{\"prompt_tokens\":1",
                                       "{\"usage\":{\"prompt_tokens\":1]}",
                                       "{\"a\":\"\\\"usage\\\":{\\\"prompt_tokens\\\":1}\"}"};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
        ASSERT_TRUE(!answer(none[i]).known);
}

TEST(the_last_object_counts)
{
    static const struct {
        const char *text;
        uint64_t prompt; /* 0: not known */
    } t[] = {
        {"{\"usage\":{\"prompt_tokens\":1},\"usage\":{\"prompt_tokens\":2}}", 2},
        {"{\"usage\":{\"prompt_tokens\":1},\"usage\":null}", 1},
        {"{\"usage\":{\"prompt_tokens\":1},\"g\":\"going, going, gone: usage\"}", 1},
        {"{\"big\":\"ggggggg\",\"usage\" :\t\r\n {\"prompt_tokens\":3},\"gg\":\"g\"}", 3},
        {"{\"usage\":{\"prompt_tokens\":4}}\"usag", 4},
        {"{\"usage\":{\"prompt_tokens\":5}}\"usage", 5},
        {"{\"usage\":{\"prompt_tokens\":6}}\"usage\"", 6},
        {"usage\":{\"prompt_tokens\":7}}", 0},
        {"{\"usagE\":{\"prompt_tokens\":8}}", 0},
        {"g", 0},
        {"\"usag", 0},
    };
    for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) {
        struct gw_usage u = answer(t[i].text);
        if (u.known != (t[i].prompt > 0) || (u.known && u.prompt != t[i].prompt))
            test_fail(__FILE__, __LINE__, "%s: %llu", t[i].text, (unsigned long long)u.prompt);
    }
}

TEST(streams)
{
    struct gw_usage u = events(": ping\n\n"
                               "data: {\"choices\":[{}],\"usage\":null}\n\n"
                               "data: {\"choices\":[{\"text\":\"\\\"usage\\\":{\"}]}\n\n"
                               "data: {\"choices\":[],\"usage\": {\"prompt_tokens\": 3, "
                               "\"completion_tokens\": 2}}\r\n\r\n"
                               "data: [DONE]\n\n");
    ASSERT_EQ(u.n_events, 3);
    ASSERT_TRUE(u.known && u.prompt == 3 && u.completion == 2);
    u = events("data: {\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}\n\n"
               "data:{\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2}}\n\n");
    ASSERT_EQ(u.completion, 2); /* the last one */
    u = events("data: {\"a\":1}\n\ndata: {\"a\":2}\n\n");
    ASSERT_TRUE(!u.known);
    ASSERT_EQ(gw_usage_charge(&u, 100, true, 1000), 102);
    ASSERT_EQ(gw_usage_charge(&u, 100, false, 1000), 350);
    u = events("data:");
    u = events("data: \n\ndata: {\"usage\":{\n");
    ASSERT_TRUE(!u.known);
}

/* An event is a line of data with an object; what stands around it is none. */
TEST(events_are_counted_exactly)
{
    static const struct {
        const char *text;
        uint64_t n;
    } t[] = {
        {"", 0},
        {": {}\n\n", 0},
        {"event: x\nid: 1\n\n", 0},
        {"data: [DONE]\n\n", 0},
        {"data: \"x\"\n\n", 0},
        {"xdata: {}\n\n", 0},
        {"data: {}\n\n", 1},
        {"data:{}\n\n", 1},
        {"event: x\ndata: {}\nid: 1\n\n", 1},
        {"data: {}\r\n\r\ndata: {}\r\n\r\n", 2},
        {": a\n\ndata: {}\n\n: b\n\ndata: {}\n\ndata: {}\n\ndata: [DONE]\n\n", 3},
        {"data: {}", 1},
    };
    for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) {
        ASSERT_EQ(events(t[i].text).n_events, t[i].n);
        struct gw_usage u = events(t[i].text);
        ASSERT_EQ(gw_usage_charge(&u, 10, true, 1000), 10 + t[i].n);
    }
    struct gw_usage u = {0}; /* over several pieces, and what is reported replaces the count */
    gw_usage_events(&u, "data: {}\n\n", 10);
    gw_usage_events(&u, "data: {}\n\n", 10);
    ASSERT_EQ(gw_usage_charge(&u, 10, true, 0), 12);
    static const char last[] =
        "data: {\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":1}}\n\n";
    gw_usage_events(&u, last, sizeof last - 1);
    ASSERT_EQ(u.n_events, 3);
    ASSERT_EQ(gw_usage_charge(&u, 10, true, 0), 6);
}

TEST(what_events_bring)
{
    static const struct {
        const char *text;
        enum gw_bring brings;
    } t[] = {
        {"", GW_BRING_NOTHING},
        {": working\n\n: working\n\n", GW_BRING_NOTHING},
        {"event: ping\n\n", GW_BRING_NOTHING},
        {"data: {\"choices\":[]}\n\n", GW_BRING_OPENING},
        {"data: {\"choices\":[],\"prompt_filter_results\":[{}]}\n\n", GW_BRING_OPENING},
        {"data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\","
         "\"refusal\":null},\"logprobs\":null,\"finish_reason\":null}]}\r\n\r\n",
         GW_BRING_OPENING},
        {"data: {\"choices\":[{\"index\":1,\"delta\":{}},{\"index\":0,\"text\":\"\"}]}\n\n: x\n\n",
         GW_BRING_OPENING},
        {"data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"a\"}}]}\n\n",
         GW_BRING_TOKEN},
        {"data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"a\"}}]}\n\n", GW_BRING_TOKEN},
        {"data: {\"choices\":[{\"delta\":{\"tool_calls\":[{}]}}]}\n\n", GW_BRING_TOKEN},
        {"data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n", GW_BRING_TOKEN},
        {"data: {\"choices\":[{\"text\":\"\"},{\"text\":\"a\"}]}\n\n", GW_BRING_TOKEN},
        {"data: {\"choices\":[{\"text\":\"\",\"x\":12}]}\n\n", GW_BRING_TOKEN},
        {"data: {\"choices\":[]}\n\ndata: {\"choices\":[1]}\n\n", GW_BRING_TOKEN},
        {"data: {\"choices\":{}}\n\n", GW_BRING_TOKEN},
        {"data: {\"error\":{\"message\":\"x\"}}\n\n", GW_BRING_TOKEN},
        {"data: {\"choices\":[{\"index\":0,\"delta\":{}}],\"prompt_progress\":{\"total\":9}}\n\n",
         GW_BRING_PROGRESS},
        {"data: {\"choices\":[],\"prompt_progress\":{}}\n\ndata: {\"choices\":[]}\n\n",
         GW_BRING_PROGRESS},
        {"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"prompt_progress\":{}}\n\n",
         GW_BRING_TOKEN},
        {"data: {\"prompt_progress\":{}}\n\n", GW_BRING_TOKEN},
        {"data: [DONE]\n\n", GW_BRING_TOKEN},
        {"data: {\"choices\":[{\"text\":\"\"\n\n", GW_BRING_TOKEN},
        {"data: hello\n\n", GW_BRING_TOKEN},
    };
    for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) {
        if (gw_usage_bring(t[i].text, strlen(t[i].text)) != t[i].brings)
            test_fail(__FILE__, __LINE__, "%s brings another thing", t[i].text);
    }
}
