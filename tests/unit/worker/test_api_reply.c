/* Reply shapes, byte for byte, and stop strings. */
#include "tests/test.h"
#include "worker/api/api_error.h"
#include "worker/api/api_reply.h"

static int bytes_of(void *ctx, int32_t id, const char **ret, size_t *ret_len)
{
    static const char *const t[] = {"Hel", "lo", "\xe2\x82", "\xac"};

    *ret = t[id];
    *ret_len = strlen(t[id]);
    return 0;
}

static struct api_head head(bool chat, bool logprobs)
{
    return (struct api_head){.chat = chat,
                             .logprobs = logprobs,
                             .id = chat ? "chatcmpl-1" : "cmpl-1",
                             .model = "m",
                             .created = 5,
                             .bytes = bytes_of};
}

#define FP ",\"system_fingerprint\":\"fp_kvblend_" KV_VERSION "\""
#define USAGE                                                                                      \
    "{\"prompt_tokens\":8,\"completion_tokens\":3,\"total_tokens\":11,\"prompt_tokens_details\":{" \
    "\"cached_tokens\":6,\"prefix_tokens\":4,\"reused_tokens\":2,\"recomputed_tokens\":1,"         \
    "\"cache_write_tokens\":0},\"completion_tokens_details\":{\"reasoning_tokens\":0}}"
static const struct api_usage usage = {8, 3, 4, 2, 1, 0};
static char report[] = ",\"kvblend\":{}";
static const struct buf extra = {report, sizeof report - 1, sizeof report, 0};

TEST(chat_reply)
{
    struct api_head h = head(true, false);
    struct api_span s = {.text = "a\"\n", .end = 3, .finish = "stop"};
    struct buf b = BUF_INIT;

    api_put_reply(&b, &h, &s, 1, &usage, &extra);
    ASSERT_OK(buf_status(&b));
    ASSERT_STREQ(buf_cstr(&b),
                 "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\",\"created\":5,\"model\":"
                 "\"m\"" FP ",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\","
                 "\"content\":\"a\\\"\\n\",\"refusal\":null},\"logprobs\":null,"
                 "\"finish_reason\":\"stop\"}],\"usage\":" USAGE ",\"kvblend\":{}}");
    buf_fini(&b);
}

TEST(legacy_reply_of_two)
{
    struct api_head h = head(false, false);
    struct api_span s[2] = {{.index = 0, .text = "x", .end = 1, .finish = "length"},
                            {.index = 1, .text = "", .finish = "stop"}};
    struct buf b = BUF_INIT;

    api_put_reply(&b, &h, s, 2, &usage, NULL);
    ASSERT_OK(buf_status(&b));
    ASSERT_STREQ(
        buf_cstr(&b),
        "{\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":5,\"model\":\"m\"" FP
        ",\"choices\":[{\"index\":0,\"text\":\"x\",\"logprobs\":null,\"finish_reason\":"
        "\"length\"},{\"index\":1,\"text\":\"\",\"logprobs\":null,\"finish_reason\":"
        "\"stop\"}],\"usage\":" USAGE "}");
    buf_fini(&b);
}

TEST(stream_frames)
{
    struct api_head h = head(true, false);
    struct api_span s = {.index = 1, .text = "abc", .begin = 1, .end = 3};
    const struct api_span last = {.index = 1, .finish = "length"};
    struct buf b = BUF_INIT;

    api_put_frame_role(&b, &h, 1);
    ASSERT_OK(buf_status(&b));
    ASSERT_STREQ(
        buf_cstr(&b),
        "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":5,"
        "\"model\":\"m\"" FP ",\"choices\":[{\"index\":1,\"delta\":{\"role\":\"assistant\","
        "\"content\":\"\",\"refusal\":null},\"logprobs\":null,\"finish_reason\":null}]}\n\n");
    buf_clear(&b);
    h.usage_null = 1;
    api_put_frame_text(&b, &h, &s);
    ASSERT_OK(buf_status(&b));
    ASSERT_STREQ(buf_cstr(&b),
                 "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":5,"
                 "\"model\":\"m\"" FP ",\"choices\":[{\"index\":1,\"delta\":{\"content\":\"bc\"},"
                 "\"logprobs\":null,\"finish_reason\":null}],\"usage\":null}\n\n");
    buf_clear(&b);
    api_put_frame_finish(&b, &h, &last, NULL);
    ASSERT_OK(buf_status(&b));
    ASSERT_STREQ(buf_cstr(&b),
                 "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":5,"
                 "\"model\":\"m\"" FP ",\"choices\":[{\"index\":1,\"delta\":{},\"logprobs\":null,"
                 "\"finish_reason\":\"length\"}],\"usage\":null}\n\n");
    buf_clear(&b);
    struct api_progress at = {.total = 9, .cache = 4, .processed = 6, .ms = 12.7};
    api_put_frame_progress(&b, &h, 1, &at);
    ASSERT_OK(buf_status(&b));
    ASSERT_STREQ(buf_cstr(&b),
                 "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":5,"
                 "\"model\":\"m\"" FP ",\"choices\":[{\"index\":1,\"delta\":{},\"logprobs\":null,"
                 "\"finish_reason\":null}],\"usage\":null,\"prompt_progress\":{\"total\":9,"
                 "\"cache\":4,\"processed\":6,\"time_ms\":13}}\n\n");
    buf_clear(&b);
    api_put_frame_usage(&b, &h, &usage, &extra);
    ASSERT_OK(buf_status(&b));
    ASSERT_STREQ(buf_cstr(&b),
                 "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":5,"
                 "\"model\":\"m\"" FP ",\"choices\":[],\"usage\":" USAGE ",\"kvblend\":{}}\n\n");
    buf_fini(&b);
}

TEST(progress_of_a_completion_with_what_is_predicted)
{
    const struct api_head h = head(false, false);
    const struct api_progress at = {5, 0, 5, 1, 20.2};
    struct buf b = BUF_INIT;

    api_put_frame_progress(&b, &h, 0, &at);
    ASSERT_STREQ(buf_cstr(&b),
                 "data: {\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":5,"
                 "\"model\":\"m\"" FP ",\"choices\":[{\"index\":0,\"text\":\"\",\"logprobs\":null,"
                 "\"finish_reason\":null}],\"prompt_progress\":{\"total\":5,\"cache\":0,"
                 "\"processed\":5,\"time_ms\":1,\"predicted_ms\":20}}\n\n");
    buf_fini(&b);
}

/* A character over two tokens: the first has no text, the second all of it; bytes are the tokens'.
 */
TEST(chat_logprobs_concatenate_to_the_text)
{
    struct api_token t[2] = {
        {0, 0, {.id = 2, .logprob = -0.5f}},
        {0, 3, {.id = 3, .logprob = -INFINITY, .n_top = 1, .top_id = {1}, .top_logprob = {-1}}}};
    struct api_head h = head(true, true);
    struct api_span s = {.text = "\xe2\x82\xac", .end = 3, .tok = t, .n_tok = 2};
    struct buf b = BUF_INIT;

    api_put_frame_text(&b, &h, &s);
    ASSERT_OK(buf_status(&b));
    ASSERT_TRUE(
        strstr(buf_cstr(&b),
               "\"logprobs\":{\"content\":[{\"token\":\"\",\"logprob\":-0.5,\"bytes\":[226,130],"
               "\"top_logprobs\":[]},{\"token\":\"\xe2\x82\xac\",\"logprob\":-9999,\"bytes\":[172],"
               "\"top_logprobs\":[{\"token\":\"lo\",\"logprob\":-1,\"bytes\":[108,111]}]}],"
               "\"refusal\":null}"));
    buf_fini(&b);
}

TEST(legacy_logprobs)
{
    struct api_token t[2] = {
        {0, 3, {.id = 0, .logprob = -1, .n_top = 1, .top_id = {0}, .top_logprob = {-1}}},
        {3, 5, {.id = 1, .logprob = -2}}};
    struct api_head h = head(false, true);
    struct api_span s = {.text = "Hello", .end = 5, .tok = t, .n_tok = 2, .chars = 10};
    struct buf b = BUF_INIT;

    api_put_frame_text(&b, &h, &s);
    ASSERT_OK(buf_status(&b));
    ASSERT_TRUE(strstr(buf_cstr(&b),
                       "\"logprobs\":{\"tokens\":[\"Hel\",\"lo\"],\"token_logprobs\":[-1,-2],"
                       "\"top_logprobs\":[{\"Hel\":-1},{}],\"text_offset\":[10,13]}"));
    buf_fini(&b);
}

/* Places are counted in characters, as strings of the clients' languages are; a frame goes on where
 * the one before ended. No token is no reason for no lists. */
TEST(legacy_offsets_are_characters)
{
    struct api_token t[3] = {{0, 0, {.id = 2}}, {0, 3, {.id = 3}}, {3, 6, {.id = 0}}};
    struct api_head h = head(false, true);
    struct api_span s = {.text = "\xe2\x82\xacHel", .end = 6, .tok = t, .n_tok = 3};
    struct buf b = BUF_INIT;

    api_put_frame_text(&b, &h, &s);
    ASSERT_OK(buf_status(&b));
    ASSERT_TRUE(strstr(buf_cstr(&b), "\"tokens\":[\"\",\"\xe2\x82\xac\",\"Hel\"]"));
    ASSERT_TRUE(strstr(buf_cstr(&b), "\"text_offset\":[0,0,1]"));
    buf_clear(&b);
    s = (struct api_span){
        .text = s.text, .begin = 3, .end = 6, .tok = t + 2, .n_tok = 1, .chars = 1};
    api_put_frame_text(&b, &h, &s);
    ASSERT_OK(buf_status(&b));
    ASSERT_TRUE(strstr(buf_cstr(&b), "\"text_offset\":[1]"));
    buf_clear(&b);
    s = (struct api_span){.text = "", .finish = "stop"};
    api_put_reply(&b, &h, &s, 1, &usage, NULL);
    ASSERT_OK(buf_status(&b));
    ASSERT_TRUE(strstr(buf_cstr(&b), "\"logprobs\":{\"tokens\":[],\"token_logprobs\":[],"));
    ASSERT_EQ(api_chars("a\xc3\xbc\xe2\x82\xac\xf0\x9f\xa6\x99", 10), 4);
    buf_fini(&b);
}

TEST(error_shape)
{
    struct api_err e;
    struct buf b = BUF_INIT;

    ASSERT_EQ(api_err_set(&e, API_INVALID_VALUE, NULL, "a \"%s\"", "b"), -EINVAL);
    api_put_error(&b, &e);
    ASSERT_OK(buf_status(&b));
    ASSERT_STREQ(buf_cstr(&b),
                 "{\"error\":{\"message\":\"a \\\"b\\\"\",\"type\":"
                 "\"invalid_request_error\",\"param\":null,\"code\":\"invalid_value\"}}");
    buf_fini(&b);
}

/* ---- stop strings ---- */
TEST(stop_scan_table)
{
    static const char *const s[] = {"STOP", "\n\n", "SS"};
    static const size_t len[] = {4, 2, 2};
    const struct api_stops stops = {s, len, 3};
    static const struct {
        const char *text;
        size_t from;
        int hit;
        size_t safe;
    } t[] = {{"", 0, 0, 0},       {"abc", 0, 0, 3},    {"abS", 2, 0, 2}, {"abSTO", 3, 0, 2},
             {"abSTOP", 5, 1, 2}, {"abSTOx", 5, 0, 6}, {"a\n", 1, 0, 1}, {"a\n\nSTOP", 1, 1, 1},
             {"aSSTOP", 1, 1, 1}, {"aSTSTO", 0, 0, 3}, {"STOP", 0, 1, 0}};

    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        size_t safe = 99;
        ASSERT_EQ(api_stop_scan(&stops, t[i].text, strlen(t[i].text), t[i].from, &safe), t[i].hit);
        ASSERT_EQ(safe, t[i].safe);
    }
}

/* Against the plain definition: whatever the pieces, what was shown is the text before the first
 * stop string, and nothing of a stop string is ever shown early. */
TEST(stop_scan_property)
{
    static const char *const s[] = {"ab", "bca", "cc"};
    static const size_t len[] = {2, 3, 2};
    const struct api_stops stops = {s, len, 3};
    uint64_t seed = 7;

    for (int round = 0; round < 5000; round++) {
        char text[41] = {0};
        size_t n = 1 + test_rand(&seed) % 40, at = 0, shown = 0, want = n;
        int hit = 0;
        for (size_t i = 0; i < n; i++)
            text[i] = (char)('a' + test_rand(&seed) % 4);
        for (size_t i = 0; i < 3; i++) {
            const char *p = strstr(text, s[i]);
            if (p && (size_t)(p - text) < want) want = (size_t)(p - text);
        }
        while (at < n && !hit) {
            size_t step = 1 + test_rand(&seed) % 5, safe;
            if (step > n - at) step = n - at;
            hit = api_stop_scan(&stops, text, at + step, at, &safe);
            at += step;
            ASSERT_TRUE(safe >= shown); /* what was shown stays shown */
            ASSERT_TRUE(safe <= want);
            shown = safe;
        }
        ASSERT_EQ(hit, want < n);
        if (hit) ASSERT_EQ(shown, want);
    }
}
