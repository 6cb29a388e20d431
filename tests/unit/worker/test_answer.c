/* answer: every syntax, cut at every place; what is no call is content, and nothing is lost. */
#include "worker/answer/answer.h"

#include "base/mem.h"
#include "tests/test.h"

static const char *const tools[] = {"add", "get_weather"};

struct sample {
    const char *syntax; /* NULL: no calls */
    const char *text;
    const char *want; /* thought|content|name(args) …, an unfinished call's with ~ */
    bool thinking, calling;
    size_t max_calls;
};

#define DS(what) "<\uff5ctool\u2581" what "\uff5c>" /* DeepSeek's */

static bool text_of_add(const void *of, const char *tool, const char *parameter)
{
    return of == tools && strcmp(tool, "add") == 0 && strcmp(parameter, "text") == 0;
}

static void start(struct ans *a, const struct sample *s)
{
    static const struct ans_marks think = {"<think>", "</think>"};
    const struct ans_syntax *syntax = s->syntax ? ans_syntax_named(s->syntax) : NULL;
    const struct ans_messages *messages = syntax ? syntax->messages : NULL;
    const struct ans_how how = {.syntax = syntax,
                                .thoughts = messages ? &messages->thoughts : &think,
                                .messages = messages,
                                .tool = tools,
                                .n_tool = 2,
                                .is_text = text_of_add,
                                .of = tools,
                                .thinking = s->thinking,
                                .calling = s->calling,
                                .max_calls = s->max_calls};
    ans_init(a, &how);
}

/* What came out, as a string; the caller frees. */
static char *show(struct ans *a)
{
    struct buf b = BUF_INIT;

    (void)buf_add_buf(&b, &a->reasoning);
    (void)buf_addc(&b, '|');
    (void)buf_add_buf(&b, &a->content);
    (void)buf_addc(&b, '|');
    for (size_t i = 0; i < a->n_call; i++) {
        (void)buf_add_buf(&b, &a->call[i].name);
        (void)buf_addc(&b, '(');
        (void)buf_add_buf(&b, &a->call[i].args);
        (void)buf_adds(&b, a->call[i].whole ? ")" : ")~");
    }
    (void)buf_cstr(&b);
    return buf_take(&b, NULL);
}

static const struct sample samples[] = {
    /* JSON between marks */
    {"hermes", "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>",
     "||add({\"a\": 1})"},
    {"hermes",
     "Two.\n<tool_call>{\"name\":\"add\",\"arguments\":{}}</tool_call>\n"
     "<tool_call>{\"arguments\":{\"x\":\"}\\\"\"},\"name\":\"f\"}</tool_call>\nDone.\n",
     "|Two.Done.\n|add({})f({\"x\":\"}\\\"\"})"},
    {"hermes", "<tool_call>{\"name\":\"add\"}</tool_call>", "||add({})"},
    {"hermes", "<tool_call>{\"name\":\"add\",\"arguments\":null}</tool_call>", "||add({})"},
    {"hermes", "<tool_call>{\"name\":\"add\",\"arguments\":\"{\\\"a\\\":\\u0031}\"}</tool_call>",
     "||add({\"a\":1})"},
    {"hermes",
     "<tool_call>{\"type\":\"function\",\"id\":\"7\",\"function\":{\"name\":\"add\","
     "\"parameters\":{\"a\":[1,{}]}}}</tool_call>",
     "||add({\"a\":[1,{}]})"},
    {"hermes", "<tool_call>{\"function\":\"add\",\"arguments\":{}}</tool_call>", "||add({})"},
    {"hermes", "<tool_call>[{\"name\":\"add\",\"arguments\":{}}, {\"name\":\"f\"}]</tool_call>",
     "||add({})f({})"},
    /* what is none */
    {"hermes", "a < b <tool <tool_call", "|a < b <tool <tool_call|"},
    {"hermes", "Write <tool_call> first", "|Write <tool_call> first|"},
    {"hermes", "<tool_call>{\"name\" \"add\"} x", "|<tool_call>{\"name\" \"add\"} x|"},
    {"hermes", " <tool_call>{\"name\": 3} x", "| <tool_call>{\"name\": 3} x|"},
    {"hermes", "<tool_call>{\"name\": \"a b\"}", "|<tool_call>{\"name\": \"a b\"}|"},
    {"hermes", "<tool_call>{\"x\": 1} \n", "|<tool_call>{\"x\": 1} \n|"},
    {"hermes", "<tool_call><tool_call>{\"name\":\"add\"}", "|<tool_call>|add({})"},
    {"hermes", "<tool_call>{bad<tool_call>{\"name\":\"add\"}", "|<tool_call>{bad|add({})"},
    {NULL, "<tool_call>{\"name\":\"add\"}", "|<tool_call>{\"name\":\"add\"}|"},
    {NULL, " \n plain \n", "| \n plain \n|"},
    /* cut */
    {"hermes", "<tool_call>{\"name\":\"add\",\"arguments\":{\"a\": \"x", "||add({\"a\": \"x)~"},
    {"hermes", "<tool_call>{\"name\":\"add\",\"argu", "||add()~"},
    {"hermes", "<tool_call>{\"na", "|<tool_call>{\"na|"},
    /* nothing opens it */
    {"llama3", "{\"name\": \"add\", \"parameters\": {\"a\": 1}}", "||add({\"a\": 1})"},
    {"llama3", "{\"name\":\"add\",\"parameters\":{}}; {\"name\":\"add\",\"parameters\":{\"a\":2}}",
     "||add({})add({\"a\":2})"},
    {"llama3", "<|python_tag|>{\"type\":\"function\",\"name\":\"add\",\"parameters\":{}}",
     "||add({})"},
    {"llama3", "<|python_tag|>print(1)", "|<|python_tag|>print(1)|"},
    {"llama4", "{\"name\": \"add\", \"parameters\": {}}{\"name\": \"add\", \"parameters\": {}}",
     "||add({})add({})"},
    {"llama4", "<|python_start|>{\"name\":\"add\",\"parameters\":{\"a\":1}}", "||add({\"a\":1})"},
    {"llama4", "<|python_start|>[add(a=1)]", "|<|python_start|>[add(a=1)]|"},
    {"hermes", "\n[{\"name\": \"add\", \"arguments\": {}}]", "||add({})"},
    {"hermes", "{\"name\": \"Ada\", \"arguments\": {}}",
     "|{\"name\": \"Ada\", \"arguments\": {}}|"},
    {"hermes", "{\"name\": \"add\"}", "|{\"name\": \"add\"}|"},
    {"hermes", "{\"age\": 3, \"name\": \"add\"}", "|{\"age\": 3, \"name\": \"add\"}|"},
    {"hermes", "So: {\"name\": \"add\", \"arguments\": {}}",
     "|So: {\"name\": \"add\", \"arguments\": {}}|"},
    {"hermes", "[[1]]", "|[[1]]|"},
    /* lists */
    {"mistral", "[TOOL_CALLS][{\"name\": \"add\", \"arguments\": {}}, {\"name\": \"f\"}]",
     "||add({})f({})"},
    {"mistral", "[TOOL_CALLS] [1]", "|[TOOL_CALLS] [1]|"},
    {"mistral", "[TOOL_CALLS][{\"name\":\"add\",\"arguments\":{}} and", "|and|add({})"},
    {"granite", "<|tool_call|>[{\"arguments\": {\"a\": 1}, \"name\": \"add\"}]",
     "||add({\"a\": 1})"},
    {"granite", "<|tool_call|> {\"name\": \"add\", \"arguments\": {}}", "||add({})"},
    {"phi4", "<|tool_call|>[{\"name\":\"add\",\"arguments\":{}}]<|/tool_call|>\nOK", "|OK|add({})"},
    {"functools", "functools[{\"name\":\"add\",\"arguments\":{}}]", "||add({})"},
    {"functools", "functools are fine", "|functools are fine|"},
    /* names before arguments */
    {"mistral-args", "[TOOL_CALLS]add[ARGS]{\"a\": 1}[TOOL_CALLS]f{}", "||add({\"a\": 1})f({})"},
    {"mistral-args", "[TOOL_CALLS]add[CALL_ID]a1[ARGS]{\"a\": 1}", "||add({\"a\": 1})"},
    {"mistral-args", "[TOOL_CALLS]add[CALL_ID]a1{\"a\": 1}",
     "|[TOOL_CALLS]add[CALL_ID]a1{\"a\": 1}|"},
    {"mistral-args", "[TOOL_CALLS]add(1)", "|[TOOL_CALLS]add(1)|"},
    {"mistral-args", "[TOOL_CALLS]add[ARX]", "|[TOOL_CALLS]add[ARX]|"},
    {"mistral-args", "[TOOL_CALLS]add[ARGS]", "||add()~"},
    {"function-tag", "<function=add>{\"a\": {}}</function>", "||add({\"a\": {}})"},
    {"functionary", ">>>all\nSure.\n>>>add\n{\"a\": 1}", "|Sure.|add({\"a\": 1})"},
    {"functionary", "add\n{\"a\": 1}", "||add({\"a\": 1})", .calling = true},
    {"functionary", "all\nHello.", "|Hello.|", .calling = true},
    /* messages */
    {"harmony",
     "<|channel|>analysis<|message|>Two and\ntwo. <|end|><|start|>assistant<|channel|>final"
     "<|message|>Four.<|return|>",
     "Two and\ntwo.|Four.|"},
    {"harmony",
     "<|channel|>analysis<|message|>Look.<|end|><|start|>assistant<|channel|>commentary"
     "<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.add "
     "<|constrain|>json<|message|>{\"a\": {}}<|call|>",
     "Look.|I look.|add({\"a\": {}})"},
    {"harmony", " to=functions.get_weather<|channel|>commentary json<|message|>{\"a\":\"<|end|>\"}",
     "||get_weather({\"a\":\"<|end|>\"})"},
    {"harmony",
     "<|channel|>commentary to=functions.f<|message|> {}<|call|><|start|>assistant"
     "<|channel|>analysis to=functions.g code<|message|>{\"x\":1}",
     "||f({})g({\"x\":1})"},
    {"harmony",
     "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|> b"
     "<|end|><|start|>assistant<|channel|>commentary<|message|>c<|end|><|start|>assistant"
     "<|channel|>final<|message|>d\n\ne",
     "a\n\nb|c\n\nd\n\ne|"},
    {"harmony", "<|channel|>analysis<|message|>cut", "cut||"},
    {"harmony", "<|channel|>analysis<|message|>cut <|end|><|start|>assis", "cut||"},
    {"harmony", "<|channel|>fin", "||"},
    {"harmony", "<|channel|>commentary to=functions.add <|constrain|>json<|message|>{\"a",
     "||add({\"a)~"},
    {"harmony", "<|channel|>commentary to=functions.add <|constrain|>json<|message|>", "||add()~"},
    {"harmony", "<|channel|>commentary to=functions.add <|constrain|>json<|message|>no",
     "|<|channel|>commentary to=functions.add <|constrain|>json<|message|>no|"},
    {"harmony", "<|channel|>commentary to=functions.<|message|>none", "|none|"},
    {"harmony", "<|channel|>commentary to=python code<|message|>1 + 1", "|1 + 1|"},
    {"harmony", "Plain <| text <|chan<|", "|Plain <| text <|chan<||"},
    {"harmony", "{\"a\": 1}", "|{\"a\": 1}|"},
    {"harmony", " to be", "| to be|"},
    {"harmony", "<", "|<|"},
    {"harmony", "<|start|>assistant<|channel|>final<|message|>x", "|x|"},
    {"harmony", "thought<|end|><|start|>assistant<|channel|>final<|message|>x", "thought|x|",
     .thinking = true},
    {"harmony", "add <|constrain|>json<|message|>{\"a\": 1}", "||add({\"a\": 1})", .calling = true},
    {"harmony",
     "<|channel|>commentary to=functions.f<|message|>{}<|end|><|start|>assistant<|channel|>"
     "commentary to=functions.g<|message|>{}",
     "||f({})", .max_calls = 1},
    /* marks around all calls */
    {"deepseek",
     "Hm.\n\n" DS("calls▁begin") DS("call▁begin") "function" DS(
         "sep") "add\n```json\n{\"a\": 1}\n"
                "```" DS("call▁end") "\n" DS("call▁begin") "function" DS(
                    "sep") "f\n```json\n{}\n```" DS("call▁end") DS("calls▁end"),
     "|Hm.|add({\"a\": 1})f({})"},
    {"deepseek", DS("call▁begin") "function" DS("sep") "add\n```json\n{\"a\": 1",
     "||add({\"a\": 1)~"},
    {"deepseek", DS("call▁begin") "tool" DS("sep"), "|" DS("call▁begin") "tool" DS("sep") "|"},
    {"deepseek-3.1",
     DS("calls▁begin") DS("call▁begin") "add" DS("sep") "{\"a\": 1}" DS("call▁end")
         DS("call▁begin") "f" DS("sep") "{}" DS("call▁end") DS("calls▁end"),
     "||add({\"a\": 1})f({})"},
    {"deepseek-3.1", "add" DS("sep") "{}" DS("call▁end"), "||add({})", .calling = true},
    /* arguments between tags */
    {"qwen-coder",
     "So:\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
     "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=add>\n"
     "</function>\n</tool_call>",
     "|So:|get_weather({\"city\": \"Paris\", \"days\": 3})add({})"},
    {"qwen-coder", /* a text is one whatever it looks like, to its last line break */
     "<tool_call><function=add><parameter=text>\n\n7 \"</a>\" \\ <\x01\t</parameter </parameter>"
     "</function></tool_call>",
     "||add({\"text\": \"\\n7 \\\"</a>\\\" \\\\ <\\u0001\\u0009</parameter \"})"},
    {"qwen-coder", "<tool_call><function=add><parameter=text>7</parameter></function></tool_call>",
     "||add({\"text\": \"7\"})"},
    {"qwen-coder",
     "<tool_call><function=add><parameter=a>{\"x\": [1]}</parameter><parameter=b>true</parameter>"
     "<parameter=c>1 2</parameter><parameter=\"d>\n</parameter></function></tool_call>",
     "||add({\"a\": {\"x\": [1]}, \"b\": true, \"c\": \"1 2\", \"\\\"d\": \"\"})"},
    {"qwen-coder", "<tool_call><function=add></tool_call>", "||add({})"},
    {"qwen-coder", "<tool_call><function=add><parameter=a>1</parameter></tool_call> on",
     "|on|add({\"a\": 1})"},
    {"qwen-coder", "<tool_call><function=add><parameter=text>Par", "||add({\"text\": \"Par)~"},
    {"qwen-coder", "<tool_call><function=ad", "|<tool_call><function=ad|"},
    {"qwen-coder", "<tool_call><function=a b>", "|<tool_call><function=a b>|"},
    {"qwen-coder", "<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>", "||add({})"},
    {"qwen-coder", "<function=add><parameter=a>1</parameter></function>", "||add({\"a\": 1})",
     .calling = true},
    {"glm",
     "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
     "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>add</tool_call>",
     "||get_weather({\"city\": \"Paris\", \"days\": 3})add({})"},
    {"glm", "Write <tool_call> first, then", "|Write <tool_call> first, then|"},
    {"glm", "<tool_call>add\n<arg_key>a</arg_key> 1", "|a</arg_key> 1|add({})"},
    /* the prompt opened it */
    {"hermes", "{\"name\": \"add\", \"arguments\": {}}\n</tool_call>", "||add({})",
     .calling = true},
    {"mistral", "[{\"name\": \"add\", \"arguments\": {}}]", "||add({})", .calling = true},
    {"hermes", "no", "|no|", .calling = true},
    /* thoughts */
    {"hermes", "<think>\nHm, <tool_call>.\n</think>\n\n<tool_call>{\"name\":\"add\"}</tool_call>",
     "Hm, <tool_call>.||add({})"},
    {"hermes", "\n<think></think>\n Yes. <think>", "|Yes. <think>|"},
    {NULL, "It is</thin k></think>\n4 ", "It is</thin k>|4 |", .thinking = true},
    {NULL, "on and on ", "on and on||", .thinking = true},
    /* no more than */
    {"hermes",
     "<tool_call>{\"name\":\"add\",\"arguments\":{}}</tool_call><tool_call>{\"name\":\"f\"}"
     "</tool_call>",
     "||add({})", .max_calls = 1},
};
enum { N_SAMPLES = sizeof samples / sizeof *samples };

TEST(every_syntax_cut_anywhere)
{
    for (size_t i = 0; i < N_SAMPLES; i++) {
        const struct sample *s = &samples[i];
        const size_t len = strlen(s->text);
        for (size_t cut = 0; cut <= len + 1; cut++) { /* the last: byte by byte */
            struct ans a;
            start(&a, s);
            for (size_t k = 0; cut > len && k < len; k++)
                ASSERT_EQ(ans_push(&a, s->text + k, 1), 0);
            if (cut <= len) ASSERT_EQ(ans_push(&a, s->text, cut), 0);
            if (cut <= len) ASSERT_EQ(ans_push(&a, s->text + cut, len - cut), 0);
            ASSERT_EQ(ans_end(&a, false), 0);
            char *got = show(&a);
            ASSERT_STREQ(got, s->want);
            mem_free(got);
            ans_fini(&a);
        }
    }
}

/* Pieces of syntax in any order: what comes out only grows, and not by the cuts. */
TEST(any_mixture_grows_and_does_not_depend_on_cuts)
{
    static const char *const piece[] = {"<tool_call>",
                                        "</tool_call>",
                                        "{",
                                        "}",
                                        "[",
                                        "]",
                                        "\"name\"",
                                        ":",
                                        ",",
                                        "\"add\"",
                                        "\"f\"",
                                        "\"arguments\"",
                                        "\"function\"",
                                        "{}",
                                        "\\",
                                        "\"",
                                        " ",
                                        "\n",
                                        "x",
                                        "null",
                                        "<think>",
                                        "</think>",
                                        "[TOOL_CALLS]",
                                        "[ARGS]",
                                        "add",
                                        ">>>",
                                        "all",
                                        ";",
                                        "{\"name\":\"add\",",
                                        "\"arguments\":{",
                                        "<function=add>",
                                        "<parameter=text>",
                                        "<parameter=a>",
                                        "</parameter>",
                                        "</function>",
                                        "<|start|>",
                                        "<|channel|>",
                                        "analysis",
                                        " to=functions.",
                                        "<|message|>",
                                        "<|end|>"};
    static const char *const syntax[] = {"hermes", "mistral-args", "functionary",
                                         "llama3", "qwen-coder",   "harmony"};
    uint64_t seed = 11;

    for (unsigned round = 0; round < 20000; round++) {
        const struct sample s = {.syntax = syntax[round % 6],
                                 .thinking = test_rand(&seed) % 8 == 0,
                                 .max_calls = test_rand(&seed) % 3};
        struct buf text = BUF_INIT;
        struct ans whole, cut;
        size_t content = 0, calls = 0;
        for (size_t n = test_rand(&seed) % 24; n > 0; n--)
            (void)buf_adds(&text, piece[test_rand(&seed) % (sizeof piece / sizeof *piece)]);
        start(&whole, &s);
        start(&cut, &s);
        ASSERT_EQ(ans_push(&whole, text.data, text.len), 0);
        for (size_t at = 0; at < text.len;) {
            size_t n = 1 + test_rand(&seed) % 9;
            if (n > text.len - at) n = text.len - at;
            ASSERT_EQ(ans_push(&cut, text.data + at, n), 0);
            ASSERT_TRUE(cut.content.len >= content && cut.n_call >= calls);
            content = cut.content.len;
            calls = cut.n_call;
            at += n;
        }
        ASSERT_EQ(ans_end(&whole, false), 0);
        ASSERT_EQ(ans_end(&cut, false), 0);
        char *a = show(&whole), *b = show(&cut);
        ASSERT_STREQ(a, b);
        ASSERT_TRUE(!s.max_calls || whole.n_call <= s.max_calls);
        mem_free(a);
        mem_free(b);
        ans_fini(&whole);
        ans_fini(&cut);
        buf_fini(&text);
    }
}

TEST(arguments_come_as_they_are_written)
{
    struct ans a;

    start(&a, &samples[0]);
    ASSERT_EQ(ans_push(&a, "<tool_call>", 11), 0);
    ASSERT_TRUE(ans_is_opened(&a));
    ASSERT_EQ(ans_push(&a, "{\"name\": \"add\", \"arguments\": {\"a\"", 34), 0);
    ASSERT_TRUE(!ans_is_opened(&a));
    ASSERT_EQ(a.n_call, 1);
    ASSERT_STREQ(buf_cstr(&a.call[0].name), "add");
    ASSERT_STREQ(buf_cstr(&a.call[0].args), "{\"a\"");
    ans_fini(&a);
}

TEST(a_full_answer_says_so)
{
    const struct sample one = {.syntax = "hermes", .max_calls = 1};
    const char text[] = "<tool_call>{\"name\":\"add\",\"arguments\":{";
    struct ans a;

    start(&a, &one);
    ASSERT_EQ(ans_push(&a, text, sizeof text - 1), 0);
    ASSERT_TRUE(!ans_is_full(&a));
    ASSERT_EQ(ans_push(&a, "}", 1), 0);
    ASSERT_TRUE(ans_is_full(&a));
    ans_fini(&a);
}

TEST(templates_show_their_syntax)
{
    static const struct {
        const char *file, *syntax;
        bool thinks;
    } want[] = {{"tool-hermes", "hermes", false},
                {"tool-qwen3", "hermes", true},
                {"tool-granite", "granite", true},
                {"tool-llama3.1", "llama3", false},
                {"tool-llama4", "llama4", false},
                {"tool-mistral-v3", "mistral", false},
                {"tool-mistral-v7", "mistral-args", false},
                {"tool-command-r", NULL, false},
                {"smollm2", NULL, false},
                {"tool-phi4", "phi4", false},
                {"tool-deepseek-r1", "deepseek", true},
                {"tool-glm4", NULL, false},
                {"tool-typescript", "harmony", false},
                {"tool-qwen3-coder", "qwen-coder", false}};

    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        char rel[64], source[1 << 16];
        (void)snprintf(rel, sizeof rel, "chat/%s.jinja", want[i].file);
        FILE *f = fopen(test_data(rel), "rb");
        ASSERT_TRUE(f);
        source[fread(source, 1, sizeof source - 1, f)] = '\0';
        (void)fclose(f);
        const struct ans_syntax *s = ans_syntax_of(source);
        ASSERT_STREQ(s ? s->name : "none", want[i].syntax ? want[i].syntax : "none");
        ASSERT_EQ(ans_thoughts_of(source) != NULL, want[i].thinks);
    }
    static const char *const says[][2] = {
        {"deepseek", "'" DS("calls▁begin") DS("call▁begin") "function" DS("sep") "' + '```json'"},
        {"deepseek-3.1", "'" DS("calls▁begin") DS("call▁begin") "' + name + '" DS("sep") "'"},
        {"qwen-coder", "<tool_call>\n<function=example>\n<parameter=example>"},
        {"glm", "<tool_call>{name}\n<arg_key>{key}</arg_key>\n<arg_value>"}};
    for (size_t i = 0; i < sizeof says / sizeof *says; i++)
        ASSERT_STREQ(ans_syntax_of(says[i][1])->name, says[i][0]);
    ASSERT_TRUE(ans_syntax_named("none") == NULL);
    ASSERT_STREQ(ans_syntax_generic()->open, "<tool_call>");
}

TEST(control_tokens_of_a_syntax_are_known)
{
    const struct ans_how how = {.syntax = ans_syntax_named("mistral-args")};

    ASSERT_TRUE(ans_is_mark(&how, "[TOOL_CALLS]", 12));
    ASSERT_TRUE(ans_is_mark(&how, "[ARGS]", 6));
    ASSERT_TRUE(!ans_is_mark(&how, "[INST]", 6));
    ASSERT_TRUE(!ans_is_mark(&how, "<think>", 7));
}

/* Without calls and without thoughts apart, all messages are content. */
TEST(messages_without_calls_and_thoughts)
{
    static const char text[] =
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>"
        "commentary to=functions.add<|message|>{}<|end|><|start|>assistant"
        "<|channel|>final<|message|>4<|return|>";
    const struct ans_messages *m = ans_syntax_named("harmony")->messages;
    struct ans_how how = {.messages = m, .thoughts = &m->thoughts};

    for (unsigned i = 0; i < 2; i++) {
        struct ans a;
        ans_init(&a, &how);
        ASSERT_EQ(ans_push(&a, text, sizeof text - 1), 0);
        ASSERT_EQ(ans_end(&a, false), 0);
        char *got = show(&a);
        ASSERT_STREQ(got, i ? "|Hm.\n\n{}\n\n4|" : "Hm.|{}\n\n4|");
        mem_free(got);
        ans_fini(&a);
        how.thoughts = NULL;
    }
    ASSERT_TRUE(ans_is_mark(&how, "<|start|>", 9) && ans_is_mark(&how, "<|message|>", 11));
    ASSERT_TRUE(ans_is_mark(&how, "<|channel|>", 11) && ans_is_mark(&how, "<|end|>", 7));
}

/* What begins like a header and never ends is content, in bounded memory. */
TEST(a_header_without_end_is_content)
{
    const struct sample s = {.syntax = "harmony"};
    struct ans a;
    struct buf want = BUF_INIT;

    start(&a, &s);
    ASSERT_EQ(buf_adds(&want, "<|channel|>"), 0);
    for (unsigned i = 0; i < 4096; i++) {
        ASSERT_EQ(buf_addc(&want, 'x'), 0);
        ASSERT_TRUE(a.held.len <= 256);
        ASSERT_EQ(ans_push(&a, i ? "x" : "<|channel|>x", i ? 1 : 12), 0);
    }
    ASSERT_EQ(ans_end(&a, false), 0);
    ASSERT_EQ(a.content.len, want.len);
    ASSERT_MEMEQ(a.content.data, want.data, want.len);
    buf_fini(&want);
    ans_fini(&a);
}

/* Where a grammar lets nothing but calls be written, what is cut before a name is no text. */
TEST(a_call_that_is_cut_is_no_content)
{
    static const char *const text[][2] = {
        {"hermes", "\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>\n<tool_call>\n"
                   "{\"name\": \"add\", \"arguments\": {}}\n</tool_call>"},
        {"mistral",
         "[{\"name\": \"add\", \"arguments\": {}}, {\"name\": \"add\", \"arguments\": {}}]"},
        {"mistral-args", "add[ARGS]{\"a\": 1}[TOOL_CALLS]add[ARGS]{}"},
        {"qwen-coder", "<function=add><parameter=b>1</parameter></function></tool_call>"}};

    for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
        size_t n_text = 0;
        for (size_t n = 0; n <= strlen(text[i][1]); n++) {
            const struct sample s = {.syntax = text[i][0], .calling = true};
            struct ans held, loose;
            start(&held, &s);
            start(&loose, &s);
            ASSERT_EQ(ans_push(&held, text[i][1], n), 0);
            ASSERT_EQ(ans_push(&loose, text[i][1], n), 0);
            ASSERT_EQ(ans_end(&held, true), 0);
            ASSERT_EQ(ans_end(&loose, false), 0);
            ASSERT_EQ(held.content.len, 0);
            ASSERT_EQ(held.n_call, loose.n_call);
            n_text += loose.content.len > 0;
            ans_fini(&held);
            ans_fini(&loose);
        }
        ASSERT_TRUE(n_text > 0);
    }
}

TEST(memory_that_ends_is_told)
{
    for (unsigned n = 0; n < 80; n++) {
        const struct sample s = {.syntax = n % 2 ? "hermes" : "qwen-coder"};
        static const char *const text[] = {
            "<think>a</think>b <tool_call>{\"name\":\"add\",\"arguments\":{}}",
            "<tool_call><function=add><parameter=text>a\"</parameter><parameter=b>[1]</parameter>"};
        struct ans a;
        start(&a, &s);
        mem_fail_nth(1 + n / 2);
        (void)ans_push(&a, text[n % 2 == 0], strlen(text[n % 2 == 0]));
        const int rc = ans_end(&a, false);
        ASSERT_EQ(rc < 0, mem_fail_fired());
        mem_fail_nth(0);
        ans_fini(&a);
    }
}
