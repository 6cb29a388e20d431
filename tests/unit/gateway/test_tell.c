#include "gateway/translate/tell.h"

#include "base/mem.h"
#include "gateway/translate/store.h"
#include "tests/test.h"

#include <errno.h>
#include <stdio.h>

/* ---- driving it ---- */

static struct gw_asked *asked(enum gw_dialect d)
{
    struct gw_asked *a;
    ASSERT_OK(gw_asked_create(d, &a));
    ASSERT_OK(buf_adds(&a->model, "\"asked\""));
    return a;
}

static struct gw_told *told(const struct gw_asked *a)
{
    struct gw_told *t;
    ASSERT_OK(gw_told_create(a, &t));
    memcpy(t->key, "K", 2);
    t->created_s = 7;
    return t;
}

static const char role[] = "data: {\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"role\":"
                           "\"assistant\",\"content\":\"\"}}]}\n\n";
static const char usage[] = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,"
                            "\"completion_tokens\":4,\"prompt_tokens_details\":{\"cached_tokens\":"
                            "6}},\"kvblend\":{\"mode\":\"blend\"}}\n\ndata: [DONE]\n\n";

static void add_delta(struct buf *b, const char *members, const char *finish)
{
    ASSERT_OK(buf_addf(b,
                       "data: {\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{%s},"
                       "\"finish_reason\":%s}]}\n\n",
                       members, finish));
}

/* The stream's events, a line each: the type, then all else. */
static void events_are(enum gw_dialect d, const char *chat, const char *expected)
{
    struct gw_asked *a = asked(d);
    struct gw_told *t = told(a);
    struct buf out = BUF_INIT, lines = BUF_INIT;
    ASSERT_OK(gw_told_events(t, chat, strlen(chat), &out));
    ASSERT_OK(gw_told_end(t, &out));
    for (const char *p = buf_cstr(&out), *end; *p; p = end + 2) {
        end = strstr(p, "\n\n");
        ASSERT_TRUE(end);
        const char *data = strstr(p, "\ndata: ") + 7;
        char type[64];
        ASSERT_EQ(sscanf(p, "event: %63s", type), 1);
        struct json_val v;
        ASSERT_EQ(json_find(data, (size_t)(end - data), "type", &v), 1);
        ASSERT_TRUE(json_str_equals(&v, type));
        ASSERT_OK(buf_addf(&lines, "%.*s\n", (int)(end - data), data));
    }
    ASSERT_STREQ(buf_cstr(&lines), expected);
    buf_fini(&out);
    buf_fini(&lines);
    gw_told_free(t);
    gw_asked_free(a);
}

/* What is echoed of a request, and told of an answer, may come in lines: events stay one line. */
TEST(values_in_lines_do_not_end_an_event)
{
    static const char chat[] = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},"
                               "\"finish_reason\":\"stop\"}],\"kvblend\":\ndata: {\"a\":\ndata: 1}}"
                               "\n\ndata: [DONE]\n\n";
    for (int i = 0; i < 2; i++) {
        struct gw_asked *a = asked(i ? GW_MESSAGES : GW_RESPONSES);
        ASSERT_OK(buf_adds(&a->echo, ",\"tools\":[\n\r\n{\"a\":\r1}]"));
        struct gw_told *t = told(a);
        struct buf out = BUF_INIT;
        ASSERT_OK(gw_told_events(t, chat, strlen(chat), &out));
        ASSERT_OK(gw_told_end(t, &out));
        size_t n = 0;
        for (const char *p = buf_cstr(&out), *end; *p; p = end + 2, n++) {
            ASSERT_TRUE((end = strstr(p, "\n\n")) != NULL);
            const char *d = strchr(p, '\n');
            ASSERT_TRUE(strncmp(p, "event: ", 7) == 0 && strncmp(d, "\ndata: {", 8) == 0);
            ASSERT_TRUE(strchr(d + 1, '\n') == end && end[-1] == '}');
            ASSERT_TRUE(!memchr(p, '\r', (size_t)(end - p)));
        }
        ASSERT_TRUE(n > 4);
        buf_fini(&out);
        gw_told_free(t);
        gw_asked_free(a);
    }
}

static void whole_is(enum gw_dialect d, const char *chat, const char *expected)
{
    struct gw_asked *a = asked(d);
    struct gw_told *t = told(a);
    struct buf out = BUF_INIT;
    ASSERT_OK(gw_told_answer(t, chat, strlen(chat), &out));
    ASSERT_STREQ(buf_cstr(&out), expected);
    buf_fini(&out);
    gw_told_free(t);
    gw_asked_free(a);
}

/* ---- Messages ---- */

TEST(messages_stream)
{
    struct buf chat = BUF_INIT;
    ASSERT_OK(buf_adds(&chat, role));
    add_delta(&chat, "\"reasoning_content\":\"hm\"", "null");
    add_delta(&chat, "\"content\":\"a\\u00e4\"", "null");
    add_delta(&chat, "\"content\":\"\\\"b\"", "null");
    add_delta(&chat,
              "\"tool_calls\":[{\"index\":0,\"id\":\"c0\",\"type\":\"function\",\"function\":{"
              "\"name\":\"f\",\"arguments\":\"\"}}]",
              "null");
    add_delta(&chat, "\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"{\\\"x\\\":\"}}]",
              "null");
    add_delta(&chat, "\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"1}\"}}]", "null");
    add_delta(&chat,
              "\"tool_calls\":[{\"index\":1,\"function\":{\"name\":\"g\",\"arguments\":\"{}\"}}]",
              "null");
    add_delta(&chat, "", "\"tool_calls\"");
    ASSERT_OK(buf_adds(&chat, usage));
    events_are(
        GW_MESSAGES, buf_cstr(&chat),
        "{\"type\":\"message_start\",\"message\":{\"id\":\"msg_K\",\"type\":\"message\",\"role\":"
        "\"assistant\",\"model\":\"m\",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,"
        "\"usage\":{\"input_tokens\":0,\"output_tokens\":0}}}\n"
        "{\"type\":\"ping\"}\n"
        "{\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"thinking\","
        "\"thinking\":\"\",\"signature\":\"\"}}\n"
        "{\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"thinking_delta\","
        "\"thinking\":\"hm\"}}\n"
        "{\"type\":\"content_block_stop\",\"index\":0}\n"
        "{\"type\":\"content_block_start\",\"index\":1,\"content_block\":{\"type\":\"text\","
        "\"text\":\"\"}}\n"
        "{\"type\":\"content_block_delta\",\"index\":1,\"delta\":{\"type\":\"text_delta\",\"text\":"
        "\"a\\u00e4\"}}\n"
        "{\"type\":\"content_block_delta\",\"index\":1,\"delta\":{\"type\":\"text_delta\",\"text\":"
        "\"\\\"b\"}}\n"
        "{\"type\":\"content_block_stop\",\"index\":1}\n"
        "{\"type\":\"content_block_start\",\"index\":2,\"content_block\":{\"type\":\"tool_use\","
        "\"id\":\"c0\",\"name\":\"f\",\"input\":{}}}\n"
        "{\"type\":\"content_block_delta\",\"index\":2,\"delta\":{\"type\":\"input_json_delta\","
        "\"partial_json\":\"{\\\"x\\\":\"}}\n"
        "{\"type\":\"content_block_delta\",\"index\":2,\"delta\":{\"type\":\"input_json_delta\","
        "\"partial_json\":\"1}\"}}\n"
        "{\"type\":\"content_block_stop\",\"index\":2}\n"
        "{\"type\":\"content_block_start\",\"index\":3,\"content_block\":{\"type\":\"tool_use\","
        "\"id\":\"call_K_3\",\"name\":\"g\",\"input\":{}}}\n"
        "{\"type\":\"content_block_delta\",\"index\":3,\"delta\":{\"type\":\"input_json_delta\","
        "\"partial_json\":\"{}\"}}\n"
        "{\"type\":\"content_block_stop\",\"index\":3}\n"
        "{\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"tool_use\",\"stop_sequence\":"
        "null},\"usage\":{\"input_tokens\":3,\"cache_creation_input_tokens\":0,"
        "\"cache_read_input_tokens\":6,\"output_tokens\":4},\"kvblend\":{\"mode\":\"blend\"}}\n"
        "{\"type\":\"message_stop\"}\n");
    buf_fini(&chat);
}

TEST(messages_whole)
{
    whole_is(GW_MESSAGES,
             "{\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"reasoning_content\":"
             "\"r\",\"content\":\"t\",\"tool_calls\":[{\"id\":\"c\",\"type\":\"function\","
             "\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": \\\"\\\\n\\\"}\"}},{\"id\":"
             "\"d\",\"function\":{\"name\":\"g\",\"arguments\":\"\"}}]},\"finish_reason\":"
             "\"tool_calls\"}],\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":3}}",
             "{\"id\":\"msg_K\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"asked\","
             "\"content\":[{\"type\":\"thinking\",\"signature\":\"\",\"thinking\":\"r\"},{"
             "\"type\":\"text\",\"text\":\"t\"},{\"type\":\"tool_use\",\"id\":\"c\",\"name\":\"f\","
             "\"input\":{\"a\": \"\\n\"}},{\"type\":\"tool_use\",\"id\":\"d\",\"name\":\"g\","
             "\"input\":{}}],\"stop_reason\":\"tool_use\",\"stop_sequence\":null,\"usage\":{"
             "\"input_tokens\":2,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":0,"
             "\"output_tokens\":3}}");
    whole_is(
        GW_MESSAGES,
        "{\"model\":\"m\",\"choices\":[{\"index\":0,\"message\":{\"content\":\"t\"},"
        "\"finish_reason\":\"stop\",\"stop_reason\":\"X\"}]}",
        "{\"id\":\"msg_K\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"m\","
        "\"content\":[{\"type\":\"text\",\"text\":\"t\"}],\"stop_reason\":\"stop_sequence\","
        "\"stop_sequence\":\"X\",\"usage\":{\"input_tokens\":0,"
        "\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":0,\"output_tokens\":0}}");
}

/* ---- Responses ---- */

#define RESPONSE(status, details, output, usage)                                                   \
    "{\"id\":\"resp_kvbK\",\"object\":\"response\",\"created_at\":7,\"status\":\"" status          \
    "\",\"background\":false,\"error\":null,\"incomplete_details\":" details                       \
    ",\"model\":\"m\",\"output\":[" output "],\"store\":false,\"usage\":" usage "}"
#define PART "{\"type\":\"output_text\",\"text\":\"ab\",\"annotations\":[],\"logprobs\":[]}"
#define PLACE ",\"item_id\":\"msg_K_0\",\"output_index\":0,\"content_index\":0"
#define ITEM                                                                                       \
    "{\"type\":\"message\",\"id\":\"msg_K_0\",\"status\":\"completed\",\"role\":\"assistant\","    \
    "\"content\":[" PART "]}"
#define CALL(status, arguments)                                                                    \
    "{\"type\":\"function_call\",\"id\":\"fc_K_1\",\"status\":\"" status                           \
    "\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"" arguments "\"}"
#define USAGE                                                                                      \
    "{\"input_tokens\":5,\"input_tokens_details\":{\"cached_tokens\":0},\"output_tokens\":4,"      \
    "\"output_tokens_details\":{\"reasoning_tokens\":0},\"total_tokens\":9}"

TEST(responses_stream)
{
    struct buf chat = BUF_INIT;
    ASSERT_OK(buf_adds(&chat, role));
    add_delta(&chat, "\"content\":\"a\"", "null");
    add_delta(&chat, "\"content\":\"b\"", "null");
    add_delta(&chat,
              "\"tool_calls\":[{\"index\":0,\"id\":\"c\",\"function\":{\"name\":\"f\","
              "\"arguments\":\"{}\"}}]",
              "\"length\"");
    ASSERT_OK(buf_adds(&chat, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,"
                              "\"completion_tokens\":4}}\n\ndata: [DONE]\n\n"));
    events_are(
        GW_RESPONSES, buf_cstr(&chat),
        "{\"type\":\"response.created\",\"sequence_number\":0,\"response\":" RESPONSE(
            "in_progress", "null", "",
            "null") "}\n"
                    "{\"type\":\"response.in_progress\",\"sequence_number\":1,"
                    "\"response\":" RESPONSE(
                        "in_progress", "null", "",
                        "null") "}\n"
                                "{\"type\":\"response.output_item.added\",\"sequence_number\":2,"
                                "\"output_index\":0,"
                                "\"item\":{\"type\":\"message\",\"id\":\"msg_K_0\",\"status\":\"in_"
                                "progress\",\"role\":"
                                "\"assistant\",\"content\":[]}}\n"
                                "{\"type\":\"response.content_part.added\",\"sequence_number\":"
                                "3" PLACE ",\"part\":{\"type\":\"output_text\",\"text\":\"\","
                                "\"annotations\":[],\"logprobs\":[]}}\n"
                                "{\"type\":\"response.output_text.delta\",\"sequence_number\":"
                                "4" PLACE ",\"delta\":\"a\",\"logprobs\":[]}\n"
                                "{\"type\":\"response.output_text.delta\",\"sequence_number\":"
                                "5" PLACE ",\"delta\":\"b\",\"logprobs\":[]}\n"
                                "{\"type\":\"response.output_text.done\",\"sequence_number\":"
                                "6" PLACE ",\"text\":\"ab\",\"logprobs\":[]}\n"
                                "{\"type\":\"response.content_part.done\",\"sequence_number\":"
                                "7" PLACE ",\"part\":" PART "}\n"
                                "{\"type\":\"response.output_item.done\",\"sequence_number\":8,"
                                "\"output_index\":0,"
                                "\"item\":" ITEM "}\n"
                                "{\"type\":\"response.output_item.added\",\"sequence_number\":9,"
                                "\"output_index\":1,"
                                "\"item\":" CALL(
                                    "in_progress",
                                    "") "}\n"
                                        "{\"type\":\"response.function_call_arguments.delta\","
                                        "\"sequence_number\":10,"
                                        "\"item_id\":\"fc_K_1\",\"output_index\":1,\"delta\":\"{}"
                                        "\"}\n"
                                        "{\"type\":\"response.function_call_arguments.done\","
                                        "\"sequence_number\":11,"
                                        "\"item_id\":\"fc_K_1\",\"output_index\":1,\"name\":\"f\","
                                        "\"arguments\":\"{}\"}\n"
                                        "{\"type\":\"response.output_item.done\",\"sequence_"
                                        "number\":12,\"output_index\":1,"
                                        "\"item\":" CALL(
                                            "incomplete",
                                            "{}") "}\n"
                                                  "{\"type\":\"response.incomplete\",\"sequence_"
                                                  "number\":13,\"response\":" RESPONSE(
                                                      "incomplete",
                                                      "{\"reason\":\"max_output_tokens\"}",
                                                      ITEM "," CALL("incomplete", "{}"),
                                                      USAGE) "}\n");
    buf_fini(&chat);
}

TEST(responses_whole)
{
    whole_is(
        GW_RESPONSES,
        "{\"model\":\"m\",\"choices\":[{\"index\":0,\"message\":{\"content\":\"ab\"},"
        "\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":4}}",
        RESPONSE("completed", "null", ITEM, USAGE));
}

TEST(what_was_said_is_kept)
{
    struct gw_store *store;
    struct buf out = BUF_INIT, kept = BUF_INIT, response = BUF_INIT;
    static const char chat[] =
        "{\"choices\":[{\"index\":0,\"message\":{\"content\":\"s\",\"tool_calls\":[{\"id\":\"c\","
        "\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},\"finish_reason\":\"tool_calls\"}]}";
    ASSERT_OK(gw_store_create(4, 1 << 20, &store));
    struct gw_asked *a = asked(GW_RESPONSES);
    a->store = store;
    a->keeps = true;
    memcpy(a->owner, "me/", 4);
    ASSERT_OK(buf_adds(&a->messages, "{\"role\":\"user\",\"content\":\"q\"}"));
    struct gw_told *t = told(a);
    ASSERT_OK(gw_told_answer(t, chat, strlen(chat), &out));
    ASSERT_EQ(gw_store_get(store, "me/", "resp_kvbK", &kept, &response), 1);
    ASSERT_STREQ(buf_cstr(&kept),
                 "{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"s\","
                 "\"tool_calls\":[{\"type\":\"function\",\"id\":\"c\",\"function\":{\"name\":\"f\","
                 "\"arguments\":\"{}\"}}]}");
    ASSERT_STREQ(buf_cstr(&response), buf_cstr(&out));
    ASSERT_TRUE(strstr(buf_cstr(&out), "\"store\":true"));
    gw_told_free(t);
    gw_asked_free(a);
    gw_store_destroy(store);
    buf_fini(&out);
    buf_fini(&kept);
    buf_fini(&response);
}

/* ---- what is no answer ---- */

TEST(garbage)
{
    static const char *const streams[] = {
        "data: {\n\n",
        "data: 3\n\n",
        "data: {}\n\n",
        "data: <html>\n\n",
        "data: {\"choices\":{}}\n\n",
        "data: {\"choices\":[3]}\n\n",
        "data: {\"choices\":[{\"index\":-1.5,\"delta\":{}}]}\n\n",
        "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0}]}}]}\n\n",
        "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":-1,\"function\":{\"name\":"
        "\"f\"}}]}}]}\n\n",
        "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":1,\"function\":{\"name\":"
        "\"f\"}},{\"index\":0,\"function\":{\"name\":\"f\"}}]}}]}\n\n",
    };
    for (enum gw_dialect d = GW_RESPONSES; d <= GW_MESSAGES; d++)
        for (size_t i = 0; i < sizeof streams / sizeof streams[0]; i++) {
            struct gw_asked *a = asked(d);
            struct gw_told *t = told(a);
            struct buf out = BUF_INIT;
            ASSERT_EQ(gw_told_events(t, streams[i], strlen(streams[i]), &out), -EBADMSG);
            ASSERT_OK(gw_told_fail(t, GW_E_UPSTREAM, "Why \"not\"", &out));
            ASSERT_TRUE(strstr(buf_cstr(&out), "Why \\\"not\\\""));
            ASSERT_TRUE(strstr(buf_cstr(&out),
                               d == GW_MESSAGES ? "event: error\n" : "event: response.failed\n"));
            size_t len = out.len;
            ASSERT_OK(gw_told_fail(t, GW_E_UPSTREAM, "again", &out));
            ASSERT_EQ(out.len, len); /* once */
            buf_fini(&out);
            gw_told_free(t);
            gw_asked_free(a);
        }
}

TEST(ends_in_the_middle)
{
    struct gw_asked *a = asked(GW_MESSAGES);
    struct gw_told *t = told(a);
    struct buf out = BUF_INIT;
    ASSERT_OK(gw_told_events(t, role, strlen(role), &out));
    ASSERT_EQ(gw_told_end(t, &out), -EBADMSG);
    gw_told_free(t);
    t = told(a);
    static const char error[] = "data: {\"error\":{\"message\":\"lost\"}}\n\ndata: [DONE]\n\n";
    buf_clear(&out);
    ASSERT_OK(gw_told_events(t, error, strlen(error), &out));
    ASSERT_OK(gw_told_end(t, &out));
    ASSERT_TRUE(strstr(buf_cstr(&out), "{\"type\":\"api_error\",\"message\":\"lost\"}"));
    ASSERT_TRUE(!strstr(buf_cstr(&out), "message_stop"));
    buf_fini(&out);
    gw_told_free(t);
    gw_asked_free(a);
}

TEST(bounded)
{
    struct gw_asked *a = asked(GW_MESSAGES);
    struct gw_told *t = told(a);
    struct buf chat = BUF_INIT, out = BUF_INIT;
    ASSERT_OK(buf_adds(&chat, "data: {\"choices\":[{\"delta\":{\"content\":\""));
    for (int i = 0; i < 1 << 20; i++)
        ASSERT_OK(buf_addc(&chat, 'x'));
    ASSERT_OK(buf_adds(&chat, "\"}}]}\n\n"));
    int r = 0;
    for (int i = 0; i < 8 && r == 0; i++, buf_clear(&out))
        r = gw_told_events(t, chat.data, chat.len, &out);
    ASSERT_EQ(r, -EMSGSIZE);
    buf_fini(&chat);
    buf_fini(&out);
    gw_told_free(t);
    gw_asked_free(a);
}

TEST(broken_arguments)
{
    static const char cut[] = "{\"choices\":[{\"message\":{\"tool_calls\":[{\"id\":\"c\","
                              "\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\"}}]},"
                              "\"finish_reason\":\"%s\"}]}";
    for (int length = 0; length < 2; length++) {
        struct gw_asked *a = asked(GW_MESSAGES);
        struct gw_told *t = told(a);
        struct buf out = BUF_INIT;
        char chat[256];
        int n = snprintf(chat, sizeof chat, cut, length ? "length" : "tool_calls");
        int r = gw_told_answer(t, chat, (size_t)n, &out);
        ASSERT_EQ(r, length ? 0 : -EBADMSG);
        if (length) ASSERT_TRUE(strstr(buf_cstr(&out), "\"input\":{}"));
        buf_fini(&out);
        gw_told_free(t);
        gw_asked_free(a);
    }
}

TEST(counts_and_refusals)
{
    struct gw_asked *a = asked(GW_MESSAGES);
    struct buf out = BUF_INIT;
    a->counts = true;
    struct gw_told *t = told(a);
    ASSERT_OK(gw_told_answer(t, "{\"tokens\":[1,2],\"count\":2}", 26, &out));
    ASSERT_STREQ(buf_cstr(&out), "{\"input_tokens\":2}");
    ASSERT_EQ(gw_told_answer(t, "{\"count\":-2}", 12, &out), -EBADMSG);
    buf_clear(&out);
    ASSERT_OK(gw_dialect_refusal(GW_MESSAGES, 429, "{\"error\":{\"message\":\"slow\"}}", 28, &out));
    ASSERT_STREQ(buf_cstr(&out), "{\"type\":\"error\",\"error\":{\"type\":\"rate_limit_error\","
                                 "\"message\":\"slow\"}}");
    buf_clear(&out);
    ASSERT_OK(gw_dialect_refusal(GW_MESSAGES, 500, "<html>", 6, &out));
    ASSERT_TRUE(strstr(buf_cstr(&out), "\"api_error\""));
    buf_clear(&out);
    ASSERT_OK(gw_dialect_refusal(GW_RESPONSES, 400, "{\"error\":{}}", 12, &out));
    ASSERT_STREQ(buf_cstr(&out), "{\"error\":{}}");
    buf_fini(&out);
    gw_told_free(t);
    gw_asked_free(a);
}
