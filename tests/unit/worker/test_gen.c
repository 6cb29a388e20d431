/* Text of tokens as the engine gives them and as a stream sends it, whenever it looks: stop
 * strings, min_tokens, characters over several tokens, logprobs. On the callbacks themselves; how
 * they are called shows tests/e2e/test_answers.py. */
#include "worker/request/gen_engine.c"
#include "worker/request/gen_out.c"

#include "tests/test.h"

enum { N_MAX = 60, BYTE0 = 3 /* of this tokenizer: a token per byte */ };

struct kit {
    struct worker w;
    struct gen g;
    struct gen_prompt p;
    struct gen_choice c;
    struct api_head h;
    /* what the client has */
    struct buf text, tokens; /* of the frames; of the tokens' strings in them */
    size_t n_tok, n_role;
};

static struct tok *open_tok(void)
{
    struct tok *t;

    ASSERT_OK(tok_open_path("shape:smollm2", &t, NULL));
    return t;
}

static void kit_open(struct kit *k, struct tok *t, bool chat, bool logprobs)
{
    memset(k, 0, sizeof *k);
    k->w.tok = t;
    pthread_mutex_init(&k->g.m, NULL);
    k->g.t.w = &k->w;
    k->g.chat = chat;
    k->g.req = (struct api_req){.chat = chat, .logprobs = logprobs, .n = 1};
    k->g.fresh = true; /* there is no loop to wake */
    k->p.g = &k->g;
    k->p.choice = &k->c;
    k->h = head_of(&k->g);
}

static void kit_close(struct kit *k)
{
    pthread_mutex_destroy(&k->g.m);
    buf_fini(&k->c.text);
    mem_free(k->c.tok);
    buf_fini(&k->text);
    buf_fini(&k->tokens);
}

static void take_frame(struct kit *k, const char *s, size_t len)
{
    json_t *root = json_loadb(s, len, 0, NULL);
    json_t *choice = json_array_get(json_object_get(root, "choices"), 0), *item;
    json_t *lp = json_object_get(choice, "logprobs");
    size_t before = k->text.len, i;

    ASSERT_TRUE(root && choice);
    const char *text =
        json_string_value(k->g.chat ? json_object_get(json_object_get(choice, "delta"), "content")
                                    : json_object_get(choice, "text"));
    ASSERT_OK(buf_adds(&k->text, text));
    if (k->g.chat && json_is_string(json_object_get(json_object_get(choice, "delta"), "role")))
        k->n_role++;
    json_t *list = json_object_get(lp, k->g.chat ? "content" : "tokens");
    json_array_foreach(list, i, item) {
        json_t *at = json_array_get(json_object_get(lp, "text_offset"), i);
        if (at) ASSERT_EQ(json_integer_value(at), api_chars(k->tokens.data, k->tokens.len));
        ASSERT_OK(buf_adds(&k->tokens,
                           json_string_value(k->g.chat ? json_object_get(item, "token") : item)));
        k->n_tok++;
    }
    if (k->g.req.logprobs) { /* a frame's tokens are its text */
        ASSERT_EQ(k->tokens.len, k->text.len);
        if (k->text.len > before)
            ASSERT_MEMEQ(k->tokens.data + before, k->text.data + before, k->text.len - before);
    }
    json_decref(root);
}

/* What the loop does when it looks. */
static void look_at(struct kit *k)
{
    struct buf out = BUF_INIT;

    put_choice(&k->g, &k->p, &k->c, 0, &k->h, &out);
    ASSERT_OK(buf_status(&out));
    const char *at = buf_cstr(&out), *end;
    for (; *at; at = end + 2) {
        end = strstr(at, "\n\n");
        ASSERT_TRUE(end && strncmp(at, "data: ", 6) == 0);
        take_frame(k, at + 6, (size_t)(end - at) - 6);
    }
    buf_fini(&out);
}

static int token(struct kit *k, int byte)
{
    const struct fus_event_token t = {.picked = {.id = BYTE0 + byte, .logprob = -1}};

    return on_token(&k->p, &t);
}

/* What has been sent is what a plain reply shows, to the last token. */
static void check_end(struct kit *k)
{
    look_at(k);
    ASSERT_EQ(k->text.len, k->c.safe);
    if (k->c.safe) ASSERT_MEMEQ(k->text.data, k->c.text.data, k->c.safe);
    if (k->g.req.logprobs) ASSERT_EQ(k->n_tok, k->c.n_tok);
    ASSERT_EQ(k->n_role, k->g.chat);
    for (size_t i = 0; i < k->c.n_tok; i++)
        ASSERT_EQ(k->c.tok[i].begin, i ? k->c.tok[i - 1].end : 0);
    if (k->c.n_tok) ASSERT_EQ(k->c.tok[k->c.n_tok - 1].end, k->c.safe);
    /* A token of which the stop string left nothing is none. */
    if (k->c.stopped && k->c.n_tok) ASSERT_TRUE(k->c.tok[k->c.n_tok - 1].begin < k->c.safe);
}

/* The plain definition. Where the answer ends: the first byte of a stop string that was complete
 * with a token behind the first `least`; -1: nowhere yet. */
static long stops_at(const struct kit *k, const struct buf *text, size_t before, size_t n_tok)
{
    long best = -1;

    for (size_t i = 0; n_tok > k->g.req.min_tokens && i < k->g.req.n_stop; i++)
        for (size_t at = 0; at + k->g.req.stop_len[i] <= text->len; at++)
            if (at + k->g.req.stop_len[i] > before &&
                memcmp(text->data + at, k->g.req.stop[i], k->g.req.stop_len[i]) == 0 &&
                (best < 0 || (long)at < best))
                best = (long)at;
    return best;
}

static void one_answer(struct kit *k, uint64_t *seed)
{
    static const int bytes[] = {'a', 'b', 'c', ' ', 0xE2, 0x82, 0xAC, 0xC3, 0xBC, 0xFF};
    const size_t n = 1 + test_rand(seed) % N_MAX;
    struct tok_stream ts = {0};
    struct buf text = BUF_INIT;
    long end = -1;

    for (size_t i = 1; i <= n && end < 0; i++) {
        size_t before = text.len, safe = k->c.safe;
        int byte = bytes[test_rand(seed) % 10];
        ASSERT_OK(tok_stream_push(k->w.tok, &ts, BYTE0 + byte, &text));
        int stop = token(k, byte);
        end = stops_at(k, &text, before, i);
        ASSERT_EQ(stop, end >= 0);
        ASSERT_EQ(k->c.n_generated, i);
        ASSERT_TRUE(k->c.safe >= safe); /* what was shown stays shown */
        if (test_rand(seed) % 2) look_at(k);
    }
    if (end < 0) ASSERT_OK(tok_stream_end(&ts, &text));
    on_choice(&k->p, 0, end < 0 ? FUS_LENGTH : FUS_STOP);
    ASSERT_EQ(k->c.safe, end < 0 ? text.len : (size_t)end);
    if (k->c.safe) ASSERT_MEMEQ(k->c.text.data, text.data, k->c.safe);
    ASSERT_STREQ(finish_name(&k->c), end < 0 ? "length" : "stop");
    buf_fini(&text);
    check_end(k);
}

TEST(streams_say_what_plain_replies_say)
{
    static const char *stops[] = {"ab", "\xe2\x82\xac", "c a",
                                  "\xc3\xbc"
                                  "a",
                                  "aa"};
    static size_t len[] = {2, 3, 3, 3, 2};
    struct tok *t = open_tok();
    uint64_t seed = 11;

    for (int round = 0; round < 400; round++) {
        struct kit k;
        kit_open(&k, t, round & 1, round & 2);
        k.g.req.n_stop = test_rand(&seed) % 4;
        k.g.req.stop = stops + test_rand(&seed) % 2;
        k.g.req.stop_len = len + (k.g.req.stop - stops);
        k.g.req.min_tokens = (uint32_t)(test_rand(&seed) % 3 * (test_rand(&seed) % 9));
        one_answer(&k, &seed);
        kit_close(&k);
    }
    tok_close(t);
}

/* min_tokens tokens may hold a stop string and begin one; the first that may complete one is the
 * next. A stream that has been looked at after each token must not have shown the beginning. */
TEST(min_tokens_and_stop_strings)
{
    static const char *stop = "xx";
    static size_t len = 2;
    struct tok *t = open_tok();

    for (uint32_t least = 0; least < 5; least++) {
        struct kit k;
        kit_open(&k, t, false, true);
        k.g.req.stop = &stop;
        k.g.req.stop_len = &len;
        k.g.req.n_stop = 1;
        k.g.req.min_tokens = least;
        uint32_t n = 0;
        do
            look_at(&k);
        while (n++ < 9 && !token(&k, 'x'));
        ASSERT_EQ(n, least < 2 ? 2 : least + 1);
        on_choice(&k.p, 0, FUS_STOP);
        ASSERT_EQ(k.c.safe, n - 2);
        check_end(&k);
        kit_close(&k);
    }
    tok_close(t);
}

/* What the plan says is the engine's own until the prompt has begun. */
TEST(a_prompt_that_has_not_begun_has_written_nothing)
{
    struct api_usage u;
    struct tok *t = open_tok();
    struct kit k;

    kit_open(&k, t, true, false);
    k.g.prompt = &k.p;
    k.g.n_prompt = 1;
    k.p.n_captured = 64;
    gen_usage(&k.g, &u);
    ASSERT_EQ(u.written, 0);
    k.p.started = true;
    gen_usage(&k.g, &u);
    ASSERT_EQ(u.written, 64);
    kit_close(&k);
    tok_close(t);
}

TEST(an_end_token_is_counted_and_not_shown)
{
    struct tok *t = open_tok();
    struct kit k;

    kit_open(&k, t, true, true);
    ASSERT_EQ(token(&k, 'a'), 0);
    ASSERT_EQ(token(&k, 0xE2), 0);
    look_at(&k);
    ASSERT_EQ(k.n_tok, 0); /* the character may still be whole, or become a sign for a broken one */
    const struct fus_event_token end = {.picked = {.id = 2}, .end = true};
    ASSERT_EQ(on_token(&k.p, &end), 0);
    on_choice(&k.p, 0, FUS_STOP);
    ASSERT_EQ(k.c.n_generated, 3);
    check_end(&k);
    ASSERT_STREQ(buf_cstr(&k.text), "a\xef\xbf\xbd");
    ASSERT_EQ(k.n_tok, 2);
    kit_close(&k);
    tok_close(t);
}

/* A model that does not stop calling is stopped. */
TEST(an_answer_has_so_many_calls)
{
    static const char call[] = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\n";
    struct tok *t = open_tok();
    size_t n = 0;
    int stop = 0;
    struct kit k;

    kit_open(&k, t, true, false);
    k.w.speech.calls = ans_syntax_named("hermes");
    k.g.req.tools.choice = API_TOOLS_MUST;
    k.g.how = wk_answer_how(&k.w, &k.g.req);
    k.g.parsed = true;
    ans_init(&k.c.said, &k.g.how);
    for (; !stop && n < 2 * API_CALLS_MAX * (sizeof call - 1); n++)
        stop = token(&k, call[n % (sizeof call - 1)]);
    ASSERT_EQ(stop, 1);
    ASSERT_EQ(k.c.said.n_call, API_CALLS_MAX);
    ASSERT_TRUE(k.c.said.call[API_CALLS_MAX - 1].whole);
    k.g.req.tools.one = true;
    ASSERT_EQ(wk_answer_how(&k.w, &k.g.req).max_calls, 1);
    ans_fini(&k.c.said);
    kit_close(&k);
    tok_close(t);
}

/* ---- calls, or a form ---- */

static void form_open(struct kit *k, struct tok *t, const struct ans_syntax *syntax,
                      const char *choice)
{
    struct buf body = BUF_INIT;
    struct api_err e;

    kit_open(k, t, true, false);
    ASSERT_OK(gram_vocab_of(t, tok_n_vocab(t), &k->w.vocab));
    k->w.speech.calls = syntax;
    buf_addf(&body,
             "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tool_choice\":%s,\"tools\":[{"
             "\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{"
             "\"n\":{\"$ref\":\"#/$defs/"
             "n\"},\"t\":{\"type\":\"string\"},\"e\":{\"enum\":[\"a\",\"b\"]}},"
             "\"required\":[\"n\"],\"$defs\":{\"n\":{\"enum\":[7]}}}}}],\"guided_json\":{"
             "\"properties\":{"
             "\"ok\":{\"type\":\"boolean\"}},\"required\":[\"ok\"]}}",
             choice);
    ASSERT_OK(api_parse(buf_cstr(&body), body.len, true,
                        &(struct api_limits){.n_vocab = 300, .n_max = 1}, &k->g.req, &e));
    buf_fini(&body);
    k->g.how = wk_answer_how(&k->w, &k->g.req);
    k->g.how.calling = k->g.req.tools.choice == API_TOOLS_MUST;
    k->g.parsed = wk_answer_is_parsed(&k->g.how);
    ASSERT_OK(wk_format_open(&k->w, &k->g.req, 1, &k->g.format, &e));
    ans_init(&k->c.said, &k->g.how);
    k->c.bound = k->g.format.must ? k->g.format.calls.run : k->g.format.form.run;
}

static void form_close(struct kit *k)
{
    wk_format_close(&k->g.format);
    gram_vocab_destroy(k->w.vocab);
    ans_fini(&k->c.said);
    api_req_fini(&k->g.req);
    kit_close(k);
}

/* -1: the token may not come; else what on_token() says. */
static int write_token(struct kit *k, int32_t id)
{
    const struct fus_event_token t = {.picked = {.id = id, .logprob = -1}};
    const uint64_t *allowed = NULL;

    ASSERT_OK(on_logits(&k->p, 0, NULL, &allowed));
    return allowed && !(allowed[id / 64] >> (id % 64) & 1) ? -1 : on_token(&k->p, &t);
}

/* Of the last byte, or of the one that may not come. */
static int write_text(struct kit *k, const char *text)
{
    int rc = 0;

    for (size_t i = 0; text[i] && rc == 0; i++)
        rc = write_token(k, BYTE0 + (unsigned char)text[i]);
    return rc;
}

TEST(a_free_answer_is_calls_or_has_the_form)
{
    static const struct ans_syntax control = {
        .name = "control", .args = "arguments", .open = "<|im_start|>"};
    static const struct ans_syntax around = {
        .name = "around", .args = "arguments", .open = "!", .around = {"<|im_start|>"}};
    const struct ans_syntax *const syntax[] = {ans_syntax_named("hermes"), &around, &control,
                                               ans_syntax_named("llama3")};
    struct tok *t = open_tok();
    struct kit k;

    for (int i = 0; i < 4; i++) {
        char call[80];
        (void)snprintf(call, sizeof call, "{\"name\": \"f\", \"%s\": {\"n\":7}}", syntax[i]->args);
        const bool opens = i < 3, spelt = i < 2;
        form_open(&k, t, syntax[i], "\"auto\"");
        ASSERT_EQ(write_text(&k, "{\"ok\":true}"), 1);
        ASSERT_STREQ(buf_cstr(&k.c.said.content), "{\"ok\":true}");
        form_close(&k);

        form_open(&k, t, syntax[i], "\"auto\""); /* no other text, nor a call that nothing opens */
        ASSERT_EQ(write_text(&k, "Yes"), -1);
        ASSERT_EQ(write_text(&k, "{\"n"), opens ? -1 : 0);
        form_close(&k);

        form_open(&k, t, syntax[i], "\"auto\"");
        if (i == 1 || i == 2) ASSERT_EQ(write_token(&k, 1), 0);
        if (spelt) ASSERT_EQ(write_text(&k, syntax[i]->open), 0);
        ASSERT_EQ(write_text(&k, call), spelt ? 0 : 1);
        if (spelt) {
            if (syntax[i]->close) ASSERT_EQ(write_text(&k, syntax[i]->close), 0);
            ASSERT_EQ(write_text(&k, "\n"), 0); /* and another one */
            ASSERT_EQ(write_text(&k, syntax[i]->open), 0);
            ASSERT_EQ(write_text(&k, "{\"ok"), -1);
        }
        ASSERT_EQ(k.c.said.n_call, 1);
        ASSERT_STREQ(buf_cstr(&k.c.said.call[0].args), "{\"n\":7}");
        ASSERT_EQ(k.c.said.content.len, 0);
        form_close(&k);

        form_open(&k, t, syntax[i], "\"none\"");
        ASSERT_EQ(write_token(&k, 1), -1);
        ASSERT_EQ(write_text(&k, "{\"name"), -1);
        form_close(&k);

        form_open(&k, t, syntax[i], "\"required\"");
        ASSERT_EQ(write_text(&k, "{\"ok"), -1);
        form_close(&k);
    }
    tok_close(t);
}

TEST(arguments_of_any_syntax_have_their_schemas)
{
    static const struct {
        const char *syntax, *text, *args; /* args NULL: its last byte may not come */
    } sample[] = {
        {"qwen-coder", "\n<function=f>\n<parameter=n>\n7\n</parameter>\n</function>\n</tool_call>",
         "{\"n\": 7}"},
        {"qwen-coder",
         "<function=f>\n<parameter=n>\n7\n</parameter>\n<parameter=t>\n8 </p> "
         "<</parameter</parameter>\n"
         "<parameter=e>b</parameter></function></tool_call>",
         "{\"n\": 7, \"t\": \"8 </p> <</parameter\", \"e\": \"b\"}"},
        {"qwen-coder", "<function=g", NULL},
        {"qwen-coder", "<function=f><parameter=t", NULL}, /* n first: it is required */
        {"qwen-coder", "<function=f><parameter=n>8", NULL},
        {"qwen-coder", "<function=f><parameter=n>7</parameter><parameter=e>c", NULL},
        {"glm", "f\n<arg_key>n</arg_key>\n<arg_value>7</arg_value>\n</tool_call>", "{\"n\": 7}"},
        {"glm", "f\n</", NULL},
        /* and behind a header */
        {"harmony", "f <|constrain|>json<|message|>{\"n\": 7}", "{\"n\": 7}"},
        {"harmony", "f<", NULL},
        {"harmony", "f <|constrain|>json<|message|>{\"n\": 8", NULL},
    };
    struct tok *t = open_tok();
    struct kit k;

    for (size_t i = 0; i < sizeof sample / sizeof *sample; i++) {
        form_open(&k, t, ans_syntax_named(sample[i].syntax), "\"required\"");
        ASSERT_EQ(write_text(&k, sample[i].text), sample[i].args ? 0 : -1);
        if (sample[i].args) {
            ASSERT_EQ(k.c.said.n_call, 1);
            ASSERT_STREQ(buf_cstr(&k.c.said.call[0].args), sample[i].args);
            json_t *args = json_loads(sample[i].args, 0, NULL);
            ASSERT_TRUE(args != NULL);
            json_decref(args);
        }
        form_close(&k);
    }
    tok_close(t);
}
