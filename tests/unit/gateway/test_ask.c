#include "gateway/translate/ask.h"
#include "gateway/translate/store.h"

#include "base/mem.h"
#include "tests/test.h"

static struct gw_asked *ask_in(enum gw_dialect d, const char *body, struct gw_store *store)
{
    struct gw_asked *a;
    ASSERT_OK(gw_asked_create(d, &a));
    a->store = store;
    memcpy(a->owner, "key/space", sizeof "key/space");
    gw_asked_translate(a, body, strlen(body));
    if (!a->failed) ASSERT_TRUE(json_scan(a->chat.data, a->chat.len, NULL, NULL) == 0);
    return a;
}

static void becomes(enum gw_dialect d, const char *body, const char *chat)
{
    struct gw_asked *a = ask_in(d, body, NULL);
    ASSERT_STREQ(a->failed ? a->message : a->chat.data, chat);
    gw_asked_free(a);
}

static void refused(enum gw_dialect d, const char *body, const char *param)
{
    struct gw_asked *a = ask_in(d, body, NULL);
    ASSERT_TRUE(a->failed);
    ASSERT_EQ(gw_error_status(a->error), 400);
    ASSERT_STREQ(a->param, param);
    ASSERT_TRUE(!*param || strstr(a->message, param));
    gw_asked_free(a);
}

TEST(responses_of_text)
{
    becomes(GW_RESPONSES, "{\"model\":\"m\",\"input\":\"Hi \\u00e4\\n\"}",
            "{ \"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"Hi \\u00e4\\n\"}]}");
    becomes(GW_RESPONSES,
            "{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"a\"},"
            "{\"type\":\"input_text\",\"text\":\"b\"}]},{\"type\":\"reasoning\",\"id\":\"rs\","
            "\"summary\":[]},{\"type\":\"message\",\"role\":\"assistant\",\"id\":\"msg_1\","
            "\"content\":[{\"type\":\"output_text\",\"text\":\"c\",\"annotations\":[]}]},"
            "{\"role\":\"developer\",\"content\":\"d\"}],\"instructions\":\"Be brief.\","
            "\"max_output_tokens\":9,\"stream\":true,\"temperature\":0,\"store\":false,"
            "\"metadata\":{\"a\":\"b\"},\"include\":[],\"top_k\":3,"
            "\"kvblend\":{\"explain\":true},\"reasoning\":{\"effort\":\"low\"}}",
            "{ \"top_k\":3,\"kvblend\":{\"explain\":true},\"temperature\":0,"
            "\"max_completion_tokens\":9,\"stream\":true,\"stream_options\":{\"include_usage\":"
            "true},\"reasoning_effort\":\"low\",\"messages\":[{\"role\":\"system\",\"content\":"
            "\"Be brief.\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
            "{\"type\":\"text\",\"text\":\"b\"}]},{\"role\":\"assistant\",\"content\":\"c\"},"
            "{\"role\":\"developer\",\"content\":\"d\"}]}");
}

TEST(responses_with_tools)
{
    becomes(GW_RESPONSES,
            "{\"input\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":"
            "\"wait\"},{\"type\":\"function_call\",\"call_id\":\"c1\",\"name\":\"f\",\"arguments\":"
            "\"{}\"},{\"type\":\"function_call\",\"call_id\":\"c2\",\"name\":\"g\",\"arguments\":"
            "\"{\\\"a\\\":1}\"},{\"type\":\"function_call_output\",\"call_id\":\"c1\",\"output\":"
            "\"1\"},{\"type\":\"function_call_output\",\"call_id\":\"c2\",\"output\":[{\"type\":"
            "\"input_text\",\"text\":\"2\"}]}],\"tools\":[{\"type\":\"function\",\"name\":\"f\","
            "\"parameters\":{\"type\":\"object\"},\"strict\":true,\"description\":null}],"
            "\"tool_choice\":{\"type\":\"function\",\"name\":\"f\"},\"parallel_tool_calls\":false,"
            "\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"n\",\"schema\":{},"
            "\"strict\":true}}}",
            "{ \"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\","
            "\"content\":\"wait\",\"tool_calls\":[{\"type\":\"function\",\"id\":\"c1\","
            "\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}},{\"type\":\"function\",\"id\":"
            "\"c2\",\"function\":{\"name\":\"g\",\"arguments\":\"{\\\"a\\\":1}\"}}]},{\"role\":"
            "\"tool\",\"content\":\"1\",\"tool_call_id\":\"c1\"},{\"role\":\"tool\",\"content\":"
            "\"2\",\"tool_call_id\":\"c2\"}],\"tools\":[{\"type\":\"function\",\"function\":{"
            "\"name\":\"f\",\"parameters\":{\"type\":\"object\"},\"strict\":true}}],"
            "\"parallel_tool_calls\":false,\"tool_choice\":{\"type\":\"function\",\"function\":{"
            "\"name\":\"f\"}},\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{"
            "\"name\":\"n\",\"schema\":{},\"strict\":true}}}");
    becomes(GW_RESPONSES, /* nothing to choose from */
            "{\"input\":[{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\","
            "\"arguments\":\"{}\"}],\"tools\":[],\"tool_choice\":\"auto\"}",
            "{ \"messages\":[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"type\":"
            "\"function\",\"id\":\"c\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}]}");
}

TEST(responses_refused)
{
    static const struct {
        const char *body, *param;
    } all[] = {
        {"{}", "input"},
        {"{\"input\":[]}", "input"},
        {"{\"input\":3}", "input"},
        {"{\"input\":[3]}", "input[0]"},
        {"{\"input\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"user\",\"content\":"
         "[{\"type\":\"input_text\",\"text\":\"x\"},{\"type\":\"input_image\"}]}]}",
         "input[1].content[1].type"},
        {"{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":1}]}]}",
         "input[0].content[0].text"},
        {"{\"input\":[{\"role\":\"user\",\"content\":{}}]}", "input[0].content"},
        {"{\"input\":[{\"type\":\"item_reference\",\"id\":\"x\"}]}", "input[0].type"},
        {"{\"input\":[{\"type\":\"function_call\",\"name\":\"f\"}]}", "input[0].arguments"},
        {"{\"input\":[{\"type\":\"function_call_output\",\"output\":\"f\"}]}", "input[0].call_id"},
        {"{\"input\":\"x\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"},{\"type\":"
         "\"web_search\"}]}",
         "tools[1].type"},
        {"{\"input\":\"x\",\"tools\":{}}", "tools"},
        {"{\"input\":\"x\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"}],\"tool_choice\":"
         "{\"type\":\"file_search\"}}",
         "tool_choice"},
        {"{\"input\":\"x\",\"background\":true}", "background"},
        {"{\"input\":\"x\",\"conversation\":\"c\"}", "conversation"},
        {"{\"input\":\"x\",\"prompt\":{\"id\":\"p\"}}", "prompt"},
        {"{\"input\":\"x\",\"top_logprobs\":2}", "top_logprobs"},
        {"{\"input\":\"x\",\"instructions\":[]}", "instructions"},
        {"{\"input\":\"x\",\"text\":{\"format\":{\"type\":\"xml\"}}}", "text.format.type"},
        {"{\"input\":\"x\"", ""},
        {"[]", ""},
        {"{\"input\":\"\xff\"}", ""},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        refused(GW_RESPONSES, all[i].body, all[i].param);
}

TEST(messages_of_text)
{
    becomes(
        GW_MESSAGES,
        "{\"model\":\"m\",\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],"
        "\"metadata\":{\"user_id\":\"u\"},\"stop_sequences\":[\"x\"],\"top_k\":2}",
        "{ \"top_k\":2,\"model\":\"m\",\"max_completion_tokens\":5,\"stop\":[\"x\"],"
        "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}");
    becomes(GW_MESSAGES, /* system blocks are one text, a user's are parts */
            "{\"system\":[{\"type\":\"text\",\"text\":\"day 1\"},{\"type\":\"text\",\"text\":"
            "\"\\\"rest\\\"\",\"cache_control\":{\"type\":\"ephemeral\"}}],\"stream\":true,"
            "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"document\",\"source\":{"
            "\"type\":\"text\",\"media_type\":\"text/plain\",\"data\":\"D\"},\"title\":\"T\"},"
            "{\"type\":\"search_result\",\"title\":\"S\",\"content\":[{\"type\":\"text\",\"text\":"
            "\"R\"}]},{\"type\":\"text\",\"text\":\"Q\"}]}]}",
            "{ \"stream\":true,\"stream_options\":{\"include_usage\":true},\"messages\":[{"
            "\"role\":\"system\",\"content\":\"day 1\\n\\\"rest\\\"\"},{\"role\":\"user\","
            "\"content\":[{\"type\":\"text\",\"text\":\"T\"},{\"type\":\"text\",\"text\":\"D\"},"
            "{\"type\":\"text\",\"text\":\"S\"},{\"type\":\"text\",\"text\":\"R\"},{\"type\":"
            "\"text\",\"text\":\"Q\"}]}]}");
    becomes(GW_MESSAGES, /* an answer that is begun goes on */
            "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
            "\"content\":\"b\"}]}",
            "{ \"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
            "\"content\":\"b\"}],\"add_generation_prompt\":false,\"continue_final_message\":true}");
}

TEST(messages_with_tools)
{
    becomes(GW_MESSAGES,
            "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\","
            "\"content\":[{\"type\":\"thinking\",\"thinking\":\"t\",\"signature\":\"s\"},{\"type\":"
            "\"text\",\"text\":\"w\"},{\"type\":\"tool_use\",\"id\":\"u1\",\"name\":\"f\","
            "\"input\":{\"a\":\"\\n\"}}]},{\"role\":\"user\",\"content\":[{\"type\":\"text\","
            "\"text\":\"so?\"},{\"type\":\"tool_result\",\"tool_use_id\":\"u1\",\"content\":"
            "\"r\"}]}],\"tools\":[{\"name\":\"f\",\"description\":\"d\",\"input_schema\":{"
            "\"type\":\"object\"}}],\"tool_choice\":{\"type\":\"any\","
            "\"disable_parallel_tool_use\":true},\"output_config\":{\"format\":{\"type\":"
            "\"json_schema\",\"schema\":{}}}}",
            "{ \"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\","
            "\"content\":\"w\",\"tool_calls\":[{\"type\":\"function\",\"id\":\"u1\",\"function\":{"
            "\"name\":\"f\",\"arguments\":\"{\\\"a\\\":\\\"\\\\n\\\"}\"}}]},{\"role\":\"tool\","
            "\"content\":\"r\",\"tool_call_id\":\"u1\"},{\"role\":\"user\",\"content\":\"so?\"}],"
            "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\","
            "\"parameters\":{\"type\":\"object\"}}}],\"tool_choice\":\"required\","
            "\"parallel_tool_calls\":false,\"response_format\":{\"type\":\"json_schema\","
            "\"json_schema\":{\"name\":\"answer\",\"schema\":{}}}}");
}

TEST(messages_refused)
{
    static const struct {
        const char *body, *param;
    } all[] = {
        {"{}", "messages"},
        {"{\"messages\":[]}", "messages"},
        {"{\"messages\":[{\"role\":\"tool\",\"content\":\"x\"}]}", "messages[0].role"},
        {"{\"messages\":[{\"role\":\"user\"}]}", "messages[0].content"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\"},"
         "{\"type\":\"image\"}]}]}",
         "messages[0].content[1].type"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"document\",\"source\":{"
         "\"type\":\"base64\"}}]}]}",
         "messages[0].content[0].source.type"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\"}]}]}",
         "messages[0].content[0].tool_use_id"},
        {"{\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"name\":"
         "\"f\",\"input\":\"x\"}]}]}",
         "messages[0].content[0].input"},
        {"{\"system\":[{\"type\":\"image\"}],\"messages\":[]}", "system[0].type"},
        {"{\"system\":1,\"messages\":[]}", "system"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"type\":"
         "\"web_search_20250305\",\"name\":\"w\"}]}",
         "tools[0].type"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"name\":\"w\"}]}",
         "tools[0].input_schema"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"name\":\"w\","
         "\"input_schema\":{}}],\"tool_choice\":\"any\"}",
         "tool_choice"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"mcp_servers\":[{}]}",
         "mcp_servers"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"output_format\":{\"type\":"
         "\"xml\"}}",
         "output_format"},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        refused(GW_MESSAGES, all[i].body, all[i].param);
}

TEST(conversations_go_on)
{
    struct gw_store *store;
    struct buf said = BUF_INIT, response = BUF_INIT;
    ASSERT_OK(gw_store_create(4, 64 << 10, &store));
    ASSERT_OK(buf_adds(&said, "{\"role\":\"user\",\"content\":\"a\"}"));
    ASSERT_OK(gw_store_put(store, "key/space", "resp_kvb1", &said, &response));
    const char *body = "{\"input\":\"b\",\"instructions\":\"i\",\"previous_response_id\":"
                       "\"resp_kvb1\"}";
    struct gw_asked *a = ask_in(GW_RESPONSES, body, store);
    ASSERT_STREQ(a->failed ? a->message : a->chat.data,
                 "{ \"messages\":[{\"role\":\"system\",\"content\":\"i\"},{\"role\":\"user\","
                 "\"content\":\"a\"},{\"role\":\"user\",\"content\":\"b\"}]}");
    ASSERT_TRUE(a->keeps);
    ASSERT_STREQ(buf_cstr(&a->messages),
                 "{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":\"b\"}");
    gw_asked_free(a);
    ASSERT_EQ(gw_store_drop(store, "key/space", "resp_kvb1"), 1);
    a = ask_in(GW_RESPONSES, body, store);
    ASSERT_TRUE(a->failed && gw_error_status(a->error) == 404);
    ASSERT_STREQ(a->param, "previous_response_id");
    gw_asked_free(a);
    a = ask_in(GW_RESPONSES, "{\"input\":\"b\",\"store\":false}", store);
    ASSERT_TRUE(!a->failed && !a->keeps && a->messages.len == 0);
    gw_asked_free(a);
    gw_store_destroy(store);
    buf_fini(&said);
}

TEST(lists_are_bounded)
{
    struct buf b = BUF_INIT;
    ASSERT_OK(buf_adds(&b, "{\"input\":[{\"content\":\"x\"}"));
    for (int i = 0; i < ASK_ITEMS_MAX; i++)
        ASSERT_OK(buf_adds(&b, ",{\"content\":\"x\"}"));
    ASSERT_OK(buf_adds(&b, "]}"));
    refused(GW_RESPONSES, buf_cstr(&b), "input");
    buf_fini(&b);
}

/* Whatever allocation fails, the request is refused, and nothing leaks. */
TEST(out_of_memory)
{
    static const char *const bodies[] = {
        [GW_RESPONSES] = "{\"model\":\"m\",\"instructions\":\"i\",\"input\":[{\"role\":\"user\","
                         "\"content\":[{\"type\":\"input_text\",\"text\":\"a\"},{\"type\":"
                         "\"input_text\",\"text\":\"b\"}]}],\"tools\":[{\"type\":\"function\","
                         "\"name\":\"f\"}]}",
        [GW_MESSAGES] = "{\"system\":[{\"type\":\"text\",\"text\":\"s\"}],\"messages\":[{\"role\":"
                        "\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":"
                        "\"text\",\"text\":\"b\"}]}]}"};
    for (enum gw_dialect d = GW_RESPONSES; d <= GW_MESSAGES; d++)
        for (unsigned n = 1;; n++) {
            struct gw_asked *a;
            ASSERT_OK(gw_asked_create(d, &a));
            mem_fail_nth(n);
            gw_asked_translate(a, bodies[d], strlen(bodies[d]));
            bool fired = mem_fail_fired();
            mem_fail_nth(0);
            ASSERT_EQ(a->failed, fired);
            if (fired) ASSERT_EQ(gw_error_status(a->error), 500);
            gw_asked_free(a);
            if (!fired) break;
        }
}
