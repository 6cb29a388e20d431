/* Requests: what is accepted, what is refused and how it is said. */
#include "tests/test.h"
#include "worker/api/api.h"

static const struct api_limits lim = {1000, 16};

static int parse(const char *body, bool chat, struct api_req *r, struct api_err *e)
{
    memset(e, 0, sizeof *e);
    return api_parse(body, strlen(body), chat, &lim, r, e);
}

#define MSG "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

TEST(refusals_name_field_and_code)
{
    static const struct {
        bool chat;
        const char *body, *code, *param;
        int status;
    } t[] = {
        {true, "", "invalid_json", "", 400},
        {true, "[]", "invalid_json", "", 400},
        {true, "{\"messages\":", "invalid_json", "", 400},
        {true, "{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}", "invalid_json", "",
         400},
        {true, "{}", "missing_required_parameter", "messages", 400},
        {true, "{\"messages\":[]}", "empty_array", "messages", 400},
        {true, "{\"messages\":3}", "invalid_type", "messages", 400},
        {true, "{\"messages\":[3]}", "invalid_value", "messages[0]", 400},
        {true, "{\"messages\":[{\"content\":\"x\"}]}", "missing_required_parameter",
         "messages[0].role", 400},
        {true, "{" MSG ",\"continue_final_message\":true,\"add_generation_prompt\":true}",
         "invalid_value", "continue_final_message", 400},
        {true, "{" MSG ",\"chat_template_kwargs\":[]}", "invalid_value", "chat_template_kwargs",
         400},
        {true, "{\"messages\":[{\"role\":\"user\"}]}", "missing_required_parameter",
         "messages[0].content", 400},
        {true, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}",
         "unsupported_parameter", "messages[0].content", 400},
        {true, "{\"model\":7," MSG "}", "invalid_type", "model", 400},
        {true, "{\"temperature\":2.5," MSG "}", "decimal_above_max_value", "temperature", 400},
        {true, "{\"temperature\":\"1\"," MSG "}", "invalid_type", "temperature", 400},
        {true, "{\"max_tokens\":0," MSG "}", "integer_below_min_value", "max_tokens", 400},
        {true, "{\"max_completion_tokens\":-4," MSG "}", "integer_below_min_value",
         "max_completion_tokens", 400},
        {true, "{\"n\":17," MSG "}", "integer_above_max_value", "n", 400},
        {true, "{\"n\":1.5," MSG "}", "invalid_type", "n", 400},
        {true, "{\"top_logprobs\":2," MSG "}", "invalid_value", "top_logprobs", 400},
        {true, "{\"logprobs\":3," MSG "}", "invalid_type", "logprobs", 400},
        {true, "{\"stop\":7," MSG "}", "invalid_type", "stop", 400},
        {true, "{\"logit_bias\":{\"1000\":1}," MSG "}", "invalid_value", "logit_bias", 400},
        {true, "{\"logit_bias\":{\"x\":1}," MSG "}", "invalid_value", "logit_bias", 400},
        {true, "{\"logit_bias\":{\"5\":101}," MSG "}", "invalid_value", "logit_bias", 400},
        {true, "{\"stop_token_ids\":[1000]," MSG "}", "invalid_value", "stop_token_ids", 400},
        {true, "{\"stream_options\":{\"include_usage\":true}," MSG "}", "invalid_value",
         "stream_options", 400},
        {true, "{\"function_call\":\"auto\"," MSG "}", "unsupported_parameter", "function_call",
         400},
        {true, "{\"reasoning_format\":\"x\"," MSG "}", "invalid_value", "reasoning_format", 400},
        {true, "{\"tool_choice\":\"required\"," MSG "}", "invalid_value", "tool_choice", 400},
        {true, "{\"parallel_tool_calls\":1," MSG "}", "invalid_type", "parallel_tool_calls", 400},
        {true, "{\"messages\":[{\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":\"x\"}]}",
         "invalid_value", "messages[0].tool_call_id", 400},
        {true, "{\"tools\":[{\"type\":\"function\"}]," MSG "}", "missing_required_parameter",
         "tools[0].function", 400},
        {true, "{\"response_format\":{\"type\":\"grammar\"}," MSG "}", "unsupported_parameter",
         "response_format.type", 400},
        {true, "{\"response_format\":{}," MSG "}", "missing_required_parameter",
         "response_format.type", 400},
        {true, "{\"response_format\":\"json\"," MSG "}", "invalid_type", "response_format", 400},
        {true, "{\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{}}," MSG "}",
         "missing_required_parameter", "response_format.json_schema.schema", 400},
        {true, "{\"guided_json\":7," MSG "}", "invalid_type", "guided_json", 400},
        {true, "{\"guided_json\":\"{\\\"a\\\"\"," MSG "}", "invalid_value", "guided_json", 400},
        {true, "{\"guided_regex\":[\"a\"]," MSG "}", "invalid_type", "guided_regex", 400},
        {true, "{\"guided_choice\":[]," MSG "}", "empty_array", "guided_choice", 400},
        {true, "{\"guided_choice\":[1]," MSG "}", "invalid_type", "guided_choice", 400},
        {true, "{\"grammar\":{}," MSG "}", "invalid_type", "grammar", 400},
        {true, "{\"structured_outputs\":{\"structural_tag\":\"x\"}," MSG "}",
         "unsupported_parameter", "structured_outputs", 400},
        {true, "{\"guided_regex\":\"a\",\"structured_outputs\":{\"json\":{}}," MSG "}",
         "invalid_value", "structured_outputs.json", 400},
        {true, "{\"guided_whitespace_pattern\":\" \"," MSG "}", "unsupported_parameter",
         "guided_whitespace_pattern", 400},
        {true, "{\"kvblend\":3," MSG "}", "invalid_value", "kvblend", 400},
        {true, "{\"kvblend\":{\"mode\":\"magic\"}," MSG "}", "invalid_value", "kvblend.mode", 400},
        {true, "{\"kvblend\":{\"strategy\":\"magic\"}," MSG "}", "invalid_value",
         "kvblend.strategy", 400},
        {true, "{\"kvblend\":{\"strategy\":\"hybrid\"}," MSG "}", "invalid_value",
         "kvblend.strategy", 400},
        {true, "{\"kvblend\":{\"mass\":0.5}," MSG "}", "unknown_parameter", "kvblend.mass", 400},
        {true, "{\"kvblend\":{\"min_ratio\":\"x\"}," MSG "}", "invalid_value", "kvblend.min_ratio",
         400},
        {true, "{\"kvblend\":{\"ratio\":1.1}," MSG "}", "invalid_value", "kvblend.ratio", 400},
        {true, "{\"kvblend\":{\"ratio\":-0.1}," MSG "}", "invalid_value", "kvblend.ratio", 400},
        {true, "{\"kvblend\":{\"ratio\":\"1\"}," MSG "}", "invalid_value", "kvblend.ratio", 400},
        {true, "{\"kvblend\":{\"ratio\":true}," MSG "}", "invalid_value", "kvblend.ratio", 400},
        {true, "{\"kvblend\":{\"mode\":3}," MSG "}", "invalid_value", "kvblend.mode", 400},
        {true, "{\"kvblend\":{\"strategy\":3}," MSG "}", "invalid_value", "kvblend.strategy", 400},
        {true, "{\"kvblend\":{\"explain\":1}," MSG "}", "invalid_value", "kvblend.explain", 400},
        {true, "{\"kvblend\":{\"separator\":5}," MSG "}", "invalid_value", "kvblend.separator",
         400},
        {true, "{\"kvblend\":[]," MSG "}", "invalid_value", "kvblend", 400},
        {true, "{\"kvblend\":{\"rato\":0.1}," MSG "}", "unknown_parameter", "kvblend.rato", 400},
        {false, "{\"kvblend\":{\"x\":null},\"prompt\":\"x\"}", "unknown_parameter", "kvblend.x",
         400},
        {true, "{\"kvblend\":{\"segments\":[{\"message\":0,\"begin\":0,\"end\":3}]}," MSG "}",
         "invalid_value", "kvblend.segments", 400},
        {true, "{\"documents\":[{\"title\":\"x\"}]," MSG "}", "invalid_value", "documents", 400},
        {false, "{}", "missing_required_parameter", "prompt", 400},
        {false, "{\"prompt\":[]}", "empty_array", "prompt", 400},
        {false, "{\"prompt\":[[]]}", "empty_array", "prompt", 400},
        {false, "{\"prompt\":[1,1000]}", "invalid_value", "prompt", 400},
        {false, "{\"prompt\":[1,\"x\"]}", "invalid_type", "prompt", 400},
        {false, "{\"prompt\":{}}", "invalid_type", "prompt", 400},
        {false, "{\"prompt\":\"x\",\"suffix\":\"y\"}", "unsupported_parameter", "suffix", 400},
        {false, "{\"prompt\":\"x\",\"best_of\":3}", "unsupported_parameter", "best_of", 400},
        {false, "{\"prompt\":\"x\",\"echo\":true,\"logprobs\":1}", "unsupported_parameter", "echo",
         400},
    };

    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct api_req r;
        struct api_err e;
        int rc = parse(t[i].body, t[i].chat, &r, &e);
        if (rc != -EINVAL) test_fail(__FILE__, __LINE__, "accepted: %s", t[i].body);
        ASSERT_STREQ(e.code, t[i].code);
        ASSERT_STREQ(e.param, t[i].param);
        ASSERT_EQ(e.status, t[i].status);
        ASSERT_TRUE(strlen(e.msg) > 10);
        api_req_fini(&r);
    }
}

TEST(forms_of_the_answer)
{
    static const struct {
        const char *fields, *field;
        enum api_format_kind kind;
    } t[] = {
        {"\"response_format\":{\"type\":\"text\"}", NULL, API_FORMAT_NONE},
        {"\"response_format\":{\"type\":\"json_object\"}", "response_format", API_FORMAT_OBJECT},
        {"\"response_format\":{\"type\":\"json_object\",\"schema\":{}}", "response_format.schema",
         API_FORMAT_SCHEMA},
        {"\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\",\"schema\":"
         "{}}}",
         "response_format.json_schema.schema", API_FORMAT_SCHEMA},
        {"\"guided_json\":\"{\\\"type\\\":\\\"object\\\"}\"", "guided_json", API_FORMAT_SCHEMA},
        {"\"json_schema\":true", "json_schema", API_FORMAT_SCHEMA},
        {"\"guided_regex\":\"a+\"", "guided_regex", API_FORMAT_REGEX},
        {"\"guided_choice\":[\"a\"]", "guided_choice", API_FORMAT_CHOICE},
        {"\"guided_grammar\":\"root ::= 1\"", "guided_grammar", API_FORMAT_GRAMMAR},
        {"\"grammar\":\"root ::= 1\"", "grammar", API_FORMAT_GRAMMAR},
        {"\"structured_outputs\":{\"regex\":\"a\",\"json\":null,\"disable_fallback\":false}",
         "structured_outputs.regex", API_FORMAT_REGEX},
        {"\"structured_outputs\":{\"json_object\":true}", "structured_outputs.json_object",
         API_FORMAT_OBJECT},
        {"\"structured_outputs\":{\"json_object\":false}", "structured_outputs.json_object",
         API_FORMAT_NONE},
    };

    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        char body[400];
        struct api_req r;
        struct api_err e;
        (void)snprintf(body, sizeof body, "{%s," MSG "}", t[i].fields);
        if (parse(body, true, &r, &e) < 0) test_fail(__FILE__, __LINE__, "%s: %s", body, e.msg);
        ASSERT_EQ(r.format.kind, t[i].kind);
        if (t[i].field) ASSERT_STREQ(r.format.field, t[i].field);
        ASSERT_TRUE(r.format.kind == API_FORMAT_NONE || r.format.kind == API_FORMAT_OBJECT ||
                    r.format.value);
        api_req_fini(&r);
    }
}

TEST(deep_json_is_refused_before_it_is_parsed)
{
    char body[2000];
    struct api_req r;
    struct api_err e;
    size_t n = 0;

    for (int depth = 64; depth <= 65; depth++) {
        n = (size_t)snprintf(body, sizeof body, "{" MSG ",\"x\":");
        for (int i = 1; i < depth; i++)
            body[n++] = '[';
        for (int i = 1; i < depth; i++)
            body[n++] = ']';
        body[n++] = '}';
        int rc = api_parse(body, n, true, &lim, &r, &e);
        ASSERT_EQ(rc, depth == 64 ? 0 : -EINVAL);
        api_req_fini(&r);
    }
}

TEST(brackets_in_strings_are_not_depth)
{
    struct api_req r;
    struct api_err e;
    char body[600] = "{\"messages\":[{\"role\":\"user\",\"content\":\"\\\"";

    memset(body + strlen(body), '[', 300);
    strcat(body, "\"}]}");
    ASSERT_OK(parse(body, true, &r, &e));
    api_req_fini(&r);
}

TEST(defaults_and_unknown_fields)
{
    struct api_req r;
    struct api_err e;

    ASSERT_OK(parse("{" MSG ",\"verbosity\":\"high\",\"metadata\":{\"a\":[1]},\"n\":null,"
                    "\"tools\":[],\"response_format\":{\"type\":\"text\"}}",
                    true, &r, &e));
    ASSERT_EQ(r.n, 1);
    ASSERT_EQ(r.max_tokens, -1);
    ASSERT_NEAR(r.sampling.temperature, 1, 0);
    ASSERT_NEAR(r.sampling.top_p, 1, 0);
    ASSERT_NEAR(r.sampling.repetition, 1, 0);
    ASSERT_EQ(r.sampling.n_logprobs, -1);
    ASSERT_TRUE(r.add_generation_prompt);
    ASSERT_TRUE(r.kv.store);
    ASSERT_EQ(r.kv.mode, POL_AUTO);
    ASSERT_TRUE(!r.stream && !r.has_seed && !r.model);
    api_req_fini(&r);
}

TEST(an_unknown_kvblend_field_is_told_the_nearest)
{
    static const struct {
        const char *field, *nearest;
    } t[] = {{"rato", "ratio"},
             {"Ratio", "ratio"},
             {"max_ttft", "max_ttft_ms"},
             {"name-spaces", "namespace"},
             {"seperator", "separator"},
             {"qqqqqqqq", NULL},
             {"", NULL}};
    struct api_req r;
    struct api_err e;

    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        char body[200], want[80];
        (void)snprintf(body, sizeof body, "{" MSG ",\"kvblend\":{\"mode\":\"full\",\"%s\":1}}",
                       t[i].field);
        ASSERT_ERR(parse(body, true, &r, &e), -EINVAL);
        (void)snprintf(want, sizeof want, "did you mean 'kvblend.%s'?",
                       t[i].nearest ? t[i].nearest : "");
        ASSERT_EQ(strstr(e.msg, want) != NULL, t[i].nearest != NULL);
        ASSERT_TRUE(strstr(e.msg, e.param) != NULL);
        api_req_fini(&r);
    }
    ASSERT_OK(parse("{" MSG ",\"kvblend\":{\"priority\":3,\"mass\":null,\"max_ttft_ms\":5,"
                    "\"min_ratio\":0.1}}",
                    true, &r, &e)); /* priority: the gateway's */
    api_req_fini(&r);
}

TEST(what_was_removed_says_what_to_use)
{
    static const struct {
        const char *field, *says;
    } t[] = {{"\"strategy\":\"static\"", "'kvblend.strategy' of 'static' was removed; use side"},
             {"\"strategy\":\"hybrid\"", "'kvblend.strategy' of 'hybrid' was removed; use qs"},
             {"\"strategy\":\"map_reduce\"", "of 'map_reduce' was removed; kvblend-bench quality"},
             {"\"tensor\":\"K\"", "'kvblend.tensor' was removed; hkvd compares K"},
             {"\"schedule\":\"linear\"", "'kvblend.schedule' was removed; hkvd filters gradually"},
             {"\"mass\":0.5", "'kvblend.mass' was removed; ratio says how many"}};
    struct api_req r;
    struct api_err e;

    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        char body[160];
        (void)snprintf(body, sizeof body, "{\"kvblend\":{%s}," MSG "}", t[i].field);
        ASSERT_ERR(parse(body, true, &r, &e), -EINVAL);
        ASSERT_EQ(e.status, 400);
        if (!strstr(e.msg, t[i].says)) test_fail(__FILE__, __LINE__, "%s", e.msg);
        api_req_fini(&r);
    }
}

TEST(everything_that_is_read)
{
    struct api_req r;
    struct api_err e;

    ASSERT_OK(parse(
        "{\"model\":\"m\"," MSG ",\"stream\":true,\"stream_options\":{\"include_usage\":true},"
        "\"n\":2,\"seed\":-7,\"temperature\":0,\"top_p\":0.5,\"top_k\":40,\"min_p\":0.1,"
        "\"presence_penalty\":-1,\"frequency_penalty\":1.5,\"repetition_penalty\":1.2,"
        "\"max_tokens\":9,\"max_completion_tokens\":5,\"min_tokens\":2,\"ignore_eos\":true,"
        "\"stop\":[\"a\",\"\",\"bc\"],\"stop_token_ids\":[3,4],\"logit_bias\":{\"7\":-100},"
        "\"logprobs\":true,\"top_logprobs\":4,\"add_generation_prompt\":false,"
        "\"kvblend\":{\"mode\":\"blend\",\"strategy\":\"hkvd\",\"ratio\":0.25,\"explain\":true,"
        "\"namespace\":\"t\",\"store\":false,\"separator\":\"##\","
        "\"segments\":[{\"message\":0,\"begin\":0,\"end\":2}]}}",
        true, &r, &e));
    ASSERT_STREQ(r.model, "m");
    ASSERT_TRUE(r.stream && r.include_usage && r.ignore_eos && !r.add_generation_prompt);
    ASSERT_EQ(r.n, 2);
    ASSERT_TRUE(r.has_seed && r.sampling.seed == (uint64_t)-7);
    ASSERT_EQ(r.sampling.top_k, 40);
    ASSERT_NEAR(r.sampling.presence, -1, 0);
    ASSERT_NEAR(r.sampling.frequency, 1.5, 0);
    ASSERT_EQ(r.max_tokens, 5); /* max_completion_tokens wins */
    ASSERT_EQ(r.min_tokens, 2);
    ASSERT_EQ(r.n_stop, 2); /* the empty one is dropped */
    ASSERT_STREQ(r.stop[1], "bc");
    ASSERT_EQ(r.stop_ids.n, 2);
    ASSERT_EQ(r.sampling.n_bias, 1);
    ASSERT_EQ(r.sampling.bias[0].id, 7);
    ASSERT_EQ(r.sampling.n_logprobs, 4);
    ASSERT_EQ(r.kv.mode, POL_BLEND);
    ASSERT_EQ(r.kv.strategy, POL_HKVD);
    ASSERT_NEAR(r.kv.ratio, 0.25, 1e-9);
    ASSERT_TRUE(r.kv.explain && !r.kv.store);
    ASSERT_STREQ(r.kv.ns, "t");
    ASSERT_STREQ(r.kv.separator, "##");
    ASSERT_EQ(r.kv.n_range, 1);
    api_req_fini(&r);
}

TEST(content_parts_are_joined_by_newlines)
{
    struct api_req r;
    struct api_err e;

    ASSERT_OK(parse("{\"messages\":[{\"role\":\"user\",\"content\":["
                    "{\"type\":\"text\",\"text\":\"one\"},"
                    "{\"type\":\"text\",\"text\":\"two\",\"segment\":\"chunk\"},"
                    "{\"type\":\"text\",\"text\":\"three\",\"segment\":\"glue\"}]}]}",
                    true, &r, &e));
    ASSERT_STREQ(r.msg[0].text, "one\ntwo\nthree");
    ASSERT_EQ(r.msg[0].len, 13);
    ASSERT_EQ(r.msg[0].n_part, 3);
    ASSERT_EQ(r.msg[0].part[1].begin, 4);
    ASSERT_EQ(r.msg[0].part[1].end, 7);
    ASSERT_EQ(r.msg[0].part[1].kind, API_PART_CHUNK);
    ASSERT_EQ(r.msg[0].part[2].kind, API_PART_GLUE);
    api_req_fini(&r);
}

/* What a template is given: any role, a call's arguments as what they say, variables. */
TEST(messages_keep_what_a_template_may_want)
{
    struct api_req r;
    struct api_err e;

    ASSERT_OK(parse("{\"messages\":[{\"role\":\"function\",\"content\":\"x\",\"name\":\"f\","
                    "\"tool_calls\":[],\"refusal\":null},"
                    "{\"role\":\"critic\",\"content\":\"y\"},{\"role\":\"assistant\","
                    "\"tool_calls\":[{\"function\":{\"arguments\":\"{\\\"a\\\":1}\"}},7,"
                    "{\"function\":{\"arguments\":\"no JSON\"}},{\"function\":null}]}],"
                    "\"chat_template_kwargs\":{\"enable_thinking\":false}}",
                    true, &r, &e));
    ASSERT_STREQ(r.msg[0].role, "tool");
    ASSERT_STREQ(json_string_value(json_object_get(r.msg[0].json, "name")), "f");
    ASSERT_EQ(json_object_size(r.msg[0].json), 3);
    ASSERT_STREQ(r.msg[1].role, "critic");
    ASSERT_STREQ(r.msg[2].text, "");
    const json_t *calls = json_object_get(r.msg[2].json, "tool_calls");
    const json_t *f = json_object_get(json_array_get(calls, 0), "function");
    ASSERT_EQ(json_integer_value(json_object_get(json_object_get(f, "arguments"), "a")), 1);
    f = json_object_get(json_array_get(calls, 2), "function");
    ASSERT_STREQ(json_string_value(json_object_get(f, "arguments")), "no JSON");
    ASSERT_TRUE(json_is_false(json_object_get(r.template_vars, "enable_thinking")));
    api_req_fini(&r);
}

TEST(prompts_of_all_four_kinds)
{
    static const struct {
        const char *prompt;
        size_t n, ids0;
    } t[] = {{"\"x\"", 1, 0}, {"[\"x\",\"y\"]", 2, 0}, {"[1,2,3]", 1, 3}, {"[[1],[2,3]]", 2, 1}};

    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        char body[100];
        struct api_req r;
        struct api_err e;
        (void)snprintf(body, sizeof body, "{\"prompt\":%s,\"max_tokens\":0}", t[i].prompt);
        ASSERT_OK(parse(body, false, &r, &e));
        ASSERT_EQ(r.n_msg, t[i].n);
        ASSERT_EQ(r.msg[0].ids.n, t[i].ids0);
        ASSERT_EQ(r.msg[0].text != NULL, t[i].ids0 == 0);
        ASSERT_EQ(r.max_tokens, 0);
        api_req_fini(&r);
    }
}

TEST(documents_are_strings_or_objects)
{
    struct api_req r;
    struct api_err e;

    ASSERT_OK(parse("{" MSG ",\"documents\":[\"plain\",{\"id\":\"7\",\"title\":\"T\",\"text\":"
                    "\"body\"},{\"title\":\"\",\"content\":\"c\"}]}",
                    true, &r, &e));
    ASSERT_EQ(r.n_doc, 3);
    ASSERT_STREQ(r.doc[0].text, "plain");
    ASSERT_STREQ(r.doc[1].title, "T");
    ASSERT_TRUE(r.doc[2].title == NULL);
    ASSERT_STREQ(r.doc[2].text, "c");
    api_req_fini(&r);
}

TEST(running_out_of_memory_is_an_error_not_a_crash)
{
    static const char body[] =
        "{" MSG ",\"stop\":[\"a\"],\"logit_bias\":{\"7\":1},\"documents\":[\"d\"],"
        "\"kvblend\":{\"segments\":[{\"message\":0,\"begin\":0,\"end\":1}]}}";

    for (unsigned n = 1; n < 100; n++) {
        struct api_req r;
        struct api_err e = {0};
        mem_fail_nth(n);
        int rc = parse(body, true, &r, &e);
        bool fired = mem_fail_fired();
        mem_fail_nth(0);
        api_req_fini(&r);
        if (!fired) {
            ASSERT_EQ(rc, 0);
            return;
        }
        ASSERT_TRUE(rc < 0);
        ASSERT_EQ(e.status, 500);
    }
    test_fail(__FILE__, __LINE__, "allocations never ended");
}
