#include "base/buf.h"
#include "base/mem.h"
#include "fusor/text/chat.h"
#include "tests/test.h"

#include <jansson.h>
#include <time.h>

static char *slurp(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f) test_fail(__FILE__, __LINE__, "cannot open %s", path);
    struct buf b = BUF_INIT;
    char chunk[4096];
    size_t n;
    while ((n = fread(chunk, 1, sizeof chunk, f)) > 0)
        ASSERT_OK(buf_add(&b, chunk, n));
    (void)fclose(f);
    ASSERT_TRUE(buf_cstr(&b) != NULL);
    return buf_take(&b, NULL);
}

static char *template_text(const char *name)
{
    char rel[128];
    if (name[0] == '/') return slurp(name);
    (void)snprintf(rel, sizeof rel, "chat/%s.jinja", name);
    return slurp(test_data(rel));
}

static struct chat *open_source(const char *name, const char *jinja)
{
    struct chat *c = NULL;
    struct err err = {0};
    if (chat_open(jinja, NULL, &c, &err) < 0)
        test_fail(__FILE__, __LINE__, "%s: %s", name, err.msg);
    return c;
}

static struct chat *open_template(const char *name)
{
    char *jinja = template_text(name);
    struct chat *c = open_source(name, jinja);
    mem_free(jinja);
    return c;
}

static struct tok *open_spm(void)
{
    struct tok *t = NULL;
    ASSERT_OK(tok_open_path(test_data("tokenizers/ggml-vocab-llama-spm.gguf"), &t, NULL));
    return t;
}

enum { MSGS_MAX = 16 };
static size_t get_messages(json_t *list, struct chat_msg *msgs)
{
    size_t n = json_array_size(list);
    ASSERT_TRUE(n <= MSGS_MAX);
    for (size_t i = 0; i < n; i++) {
        json_t *m = json_array_get(list, i), *text = json_object_get(m, "content");
        msgs[i] = (struct chat_msg){json_string_value(json_object_get(m, "role")),
                                    json_string_value(text), json_string_length(text), m};
    }
    return n;
}

/* Pieces cover the text in order; spans ascend and show the messages' own bytes, in text pieces. */
static void check_out(const struct chat_out *o, const struct chat_msg *msgs, size_t n)
{
    size_t at = 0;
    for (size_t i = 0; i < o->n_pieces; i++) {
        ASSERT_TRUE(o->pieces[i].text == o->text.data + at);
        ASSERT_TRUE(o->pieces[i].len > 0);
        at += o->pieces[i].len;
    }
    ASSERT_EQ(at, o->text.len);
    size_t last = 0;
    for (size_t i = 0; i < o->n_spans; i++) {
        const struct chat_span *s = &o->spans[i];
        ASSERT_TRUE(s->msg < n && s->src + s->len <= msgs[s->msg].len);
        ASSERT_TRUE(s->dst >= last && s->dst + s->len <= o->text.len);
        ASSERT_MEMEQ(o->text.data + s->dst, msgs[s->msg].text + s->src, s->len);
        last = s->dst + s->len;
        at = 0;
        for (size_t k = 0; k < o->n_pieces; at += o->pieces[k++].len)
            if (s->dst < at + o->pieces[k].len && at < s->dst + s->len)
                ASSERT_TRUE(!o->pieces[k].special);
    }
}

enum { NOW_S = 1753500000 }; /* as make_chat_golden.py has it */

/* What transformers gives, or a refusal where it gives none: in the template's words where it
 * raises. A message that the template drops is refused, too. */
static bool is_as_golden(const struct chat *c, const struct tok *t, const json_t *cases, size_t i,
                         struct buf *why)
{
    const json_t *item = json_array_get(cases, i);
    const char *want = json_string_value(json_object_get(item, "text"));
    const char *words = json_string_value(json_object_get(item, "error"));
    struct chat_msg msgs[MSGS_MAX];
    struct chat_out out = {0};
    struct err err = {0};
    const struct chat_thread thread = {
        .msgs = msgs,
        .n = get_messages(json_object_get(item, "messages"), msgs),
        .add_generation_prompt = json_is_true(json_object_get(item, "gen")),
        .tools = json_object_get(item, "tools")
                     ? json_object_get(json_array_get(cases, 0), "all_tools")
                     : NULL,
        .vars = json_object_get(item, "vars"),
        .now_s = NOW_S};
    int r = chat_render(c, t, &thread, &out, &err);
    bool same;
    if (r == 0 && want) {
        same = out.text.len == strlen(want) && memcmp(out.text.data, want, out.text.len) == 0;
        check_out(&out, msgs, thread.n);
    } else {
        same = (r == -EINVAL || r == -ERANGE) && strstr(err.msg, want ? "leaves" : words);
    }
    if (!same)
        ASSERT_OK(buf_addf(why, "case %zu: %d %s\n--- not\n%s", i, r,
                           r ? err.msg : buf_cstr(&out.text), want ? want : words));
    chat_out_fini(&out);
    return same;
}

static json_t *load_golden(const char *path)
{
    json_error_t why;
    json_t *cases = json_load_file(path, 0, &why);
    if (!cases) test_fail(__FILE__, __LINE__, "%s: %s", path, why.text);
    ASSERT_OK(setenv("TZ", "UTC0", 1));
    tzset();
    return cases;
}

static const char *template_of(const json_t *cases, size_t i)
{
    return json_string_value(json_object_get(json_array_get(cases, i), "template"));
}

static void check_golden(const char *path, size_t n_min)
{
    json_t *cases = load_golden(path);
    struct tok *t = open_spm();
    struct buf why = BUF_INIT;
    ASSERT_TRUE(json_array_size(cases) >= n_min);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        struct chat *c = open_template(template_of(cases, i));
        if (!is_as_golden(c, t, cases, i, &why))
            test_fail(__FILE__, __LINE__, "%s %s", template_of(cases, i), buf_cstr(&why));
        chat_close(c);
    }
    buf_fini(&why);
    tok_close(t);
    json_decref(cases);
}

TEST(golden_renders)
{
    check_golden(test_data("chat/golden.json"), 500);
    check_golden(test_data("chat/tools.json"), 100);
}

/* Of make_chat_golden.py --tools FILE …: a line for each template, those that are not opened with
 * the reason. Fails where one renders otherwise. */
TEST(golden_renders_of_others)
{
    const char *mine = getenv("KVBLEND_CHAT_GOLDEN");
    if (!mine) return;
    json_t *cases = load_golden(mine);
    struct tok *t = open_spm();
    size_t n = 0, n_refused = 0, n_other = 0;
    for (size_t i = 0; i < json_array_size(cases); n++) {
        const char *name = template_of(cases, i);
        char *jinja = template_text(name);
        struct chat *c = NULL;
        struct err err = {0};
        struct buf why = BUF_INIT;
        size_t n_case = 0, n_same = 0;
        int r = chat_open(jinja, NULL, &c, &err);
        for (; i < json_array_size(cases) && strcmp(template_of(cases, i), name) == 0;
             i++, n_case++)
            n_same += c && is_as_golden(c, t, cases, i, &why);
        n_refused += r < 0;
        n_other += r == 0 && n_same < n_case;
        printf("%s: %zu of %zu %s\n", name, n_same, n_case, r ? err.msg : buf_cstr(&why));
        buf_fini(&why);
        chat_close(c);
        mem_free(jinja);
    }
    printf("%zu templates, %zu refused, %zu otherwise\n", n, n_refused, n_other);
    tok_close(t);
    json_decref(cases);
    ASSERT_EQ(n_other, 0);
}

static void check_same(const char *name, const struct tok *t, const struct chat_msg *msgs, size_t n)
{
    struct chat *by_name = NULL, *by_text = open_template(name);
    struct chat_out a = {0}, b = {0};
    const struct chat_thread thread = {msgs, n, true};
    ASSERT_OK(chat_open(NULL, name, &by_name, NULL));
    ASSERT_STREQ(chat_name(by_name), name);
    ASSERT_OK(chat_render(by_name, t, &thread, &a, NULL));
    ASSERT_OK(chat_render(by_text, t, &thread, &b, NULL));
    ASSERT_STREQ(buf_cstr(&a.text), buf_cstr(&b.text));
    chat_out_fini(&a);
    chat_out_fini(&b);
    chat_close(by_name);
    chat_close(by_text);
}

TEST(names_render_as_their_templates)
{
    static const char thought[] = "<think>\nold\n</think>\n\n b ";
    const struct chat_msg turns[] = {
        {"system", " s ", 3}, {"user", " a ", 3}, {"assistant", " b ", 3}, {"user", " c ", 3}};
    const struct chat_msg tools[] = {
        {"tool", "r", 1},           {"system", "s", 1},  {"user", " a ", 3},
        {"assistant", thought, 25}, {"user", "c", 1},    {"assistant", thought, 25},
        {"tool", "one\n", 4},       {"tool", " two", 4}, {"assistant", "<think>", 7},
        {"tool", "three", 5}};
    struct tok *t = open_spm();
    const char *name;
    for (size_t i = 0; (name = chat_builtin_name(i)); i++) {
        const bool system = strcmp(name, "mistral-v0.1") != 0 && strcmp(name, "phi3-v1") != 0;
        if (system) check_same(name, t, turns, 4);
        check_same(name, t, turns + 1, 3);
        if (strcmp(name, "qwen2.5") == 0 || strcmp(name, "qwen3") == 0) {
            check_same(name, t, tools, 10);
            check_same(name, t, tools + 2, 4);
        }
    }
    tok_close(t);
}

TEST(more_than_the_subset_is_refused)
{
    struct chat *c = NULL;
    struct err err = {0};
    ASSERT_ERR(chat_open("a\n{% include 'x' %}", NULL, &c, &err), -ENOTSUP);
    ASSERT_TRUE(strstr(err.msg, "line 2: not in the subset: tag 'include'") != NULL);
    ASSERT_TRUE(strstr(err.msg, "--chat-template NAME") && strstr(err.msg, "mistral-tekken"));
    ASSERT_ERR(chat_open(NULL, "no-such", &c, &err), -ENOTSUP);
    ASSERT_TRUE(strstr(err.msg, "llama3.1") != NULL);
    ASSERT_ERR(chat_open(NULL, NULL, &c, &err), -ENOTSUP);
    ASSERT_TRUE(strstr(err.msg, "brings no chat template") != NULL);
    ASSERT_TRUE(c == NULL);
    ASSERT_OK(chat_open("{% include 'x' %}", "chatml", &c, &err)); /* a name overrides */
    chat_close(c);
}

/* What the template writes is looked through for control tokens, what a user writes is not. */
TEST(pieces_are_the_templates_or_a_users)
{
    struct chat *c = open_template("smollm2");
    struct chat_msg m = {"developer", "<|im_start|>", 12};
    struct chat_out out = {0};
    ASSERT_OK(chat_render(c, NULL, &(struct chat_thread){&m, 1, false}, &out, NULL));
    ASSERT_EQ(out.n_pieces, 3);
    ASSERT_TRUE(out.pieces[0].special && out.pieces[0].len == 19); /* known roles are its words */
    ASSERT_TRUE(strncmp(out.pieces[0].text, "<|im_start|>system\n", 19) == 0);
    ASSERT_TRUE(!out.pieces[1].special && out.pieces[1].len == 12);
    ASSERT_TRUE(out.pieces[2].special && out.pieces[2].len == 11);
    ASSERT_EQ(out.n_spans, 1);
    ASSERT_EQ(out.spans[0].dst, 19);
    chat_out_fini(&out);
    chat_close(c);
}

/* Every control token's name, in every place that a request can fill. */
TEST(no_text_of_a_request_becomes_a_control_token)
{
    struct tok *t = open_spm();
    static const char names[] = "<s></s><unk>[INST]";
    static const char source[] =
        "{{ bos_token }}{% for m in messages %}{{ '<' ~ m.name ~ '>' ~ m.content }}"
        "{{ m | tojson }}{{ m.content | upper | lower }}{{ m.content[:2] ~ m.content[2:] }}"
        "{{ m.content.split('>') | join('>') }}{{ m.content | replace('[', '') }}{% endfor %}"
        "{{ tools }}{{ tools | tojson }}{{ x }}{% for k in x %}{{ k ~ '' }}{% endfor %}"
        "{% set y %}{{ messages[0].content }}{% endset %}{{ y | trim }}{{ eos_token }}";
    json_t *j = json_pack("{s:s, s:[s], s:{s:s}}", "name", "s", "t", names, names, names);
    struct chat_msg m = {"user", names, sizeof names - 1, j};
    json_t *vars = json_pack("{s:{s:s}}", "x", names, names);
    struct chat *c = open_source("names", source);
    struct chat_out out = {0};
    struct tok_ids ids = {0};
    size_t n = 0;
    ASSERT_OK(chat_render(c, t, &(struct chat_thread){&m, 1, true, false, j, vars}, &out, NULL));
    check_out(&out, &m, 1);
    ASSERT_TRUE(out.n_spans >= 4);
    ASSERT_OK(tok_encode(t, out.pieces, out.n_pieces, 0, &ids));
    for (size_t i = 0; i < ids.n; i++)
        n += tok_is_special(t, ids.id[i]);
    ASSERT_EQ(n, 2); /* the template's own first and last */
    ASSERT_TRUE(ids.id[0] == tok_bos(t) && ids.id[ids.n - 1] == tok_eos(t));
    tok_ids_fini(&ids);
    chat_out_fini(&out);
    chat_close(c);
    json_decref(vars);
    json_decref(j);
    tok_close(t);
}

TEST(messages_have_what_the_request_gave_them)
{
    json_t *more = json_pack("{s:s, s:s, s:[{s:s}]}", "content", "not this", "name", "n",
                             "tool_calls", "id", "c1");
    json_t *tools = json_pack("[{s:s}]", "type", "function");
    json_t *vars = json_pack("{s:b, s:s, s:[i]}", "enable_thinking", 0, "messages", "not these",
                             "documents", 7);
    struct chat_msg msgs[] = {{"assistant", NULL, 0, more}, {"tool", "r", 1}};
    struct chat *c =
        open_source("fields", "{% for m in messages %}{{ m.role }},{{ m.content }},{{ m.name }},"
                              "{{ m.tool_calls[0].id }};{% endfor %}{{ tools[0].type }}"
                              "{{ enable_thinking }}{{ documents }}{{ add_generation_prompt }}"
                              "{{ bos_token is defined }}");
    struct chat_out out = {0};
    struct chat_thread thread = {msgs, 2, true, false, tools, vars};
    struct err err = {0};
    ASSERT_ERR(chat_render(c, NULL, &thread, &out, &err), -EINVAL);
    ASSERT_TRUE(strstr(err.msg, "'tool_calls' is undefined (line 1)") != NULL);
    thread.n = 1;
    ASSERT_OK(chat_render(c, NULL, &thread, &out, NULL));
    ASSERT_STREQ(buf_cstr(&out.text), "assistant,None,n,c1;functionFalse[7]TrueTrue");
    thread.tools = NULL;
    ASSERT_ERR(chat_render(c, NULL, &thread, &out, &err), -EINVAL); /* tools is None */
    chat_out_fini(&out);
    chat_close(c);
    json_decref(more);
    json_decref(tools);
    json_decref(vars);
}

TEST(refusals_say_what_and_where)
{
    struct chat *c = open_template("llama3.1"), *m = open_template("mistral-v1");
    struct chat_msg bad_role[] = {{"user", "a", 1}, {"robot", "b", 1}};
    struct chat_msg twice[] = {{"user", "a", 1}, {"user", "b", 1}};
    struct chat_out out = {0};
    struct err err = {0};
    ASSERT_ERR(chat_render(c, NULL, &(struct chat_thread){bad_role, 2, true}, &out, &err), -EINVAL);
    ASSERT_STREQ(err.msg, "messages[1]: unknown role 'robot'");
    ASSERT_ERR(chat_render(c, NULL, &(struct chat_thread){twice, 0, true}, &out, &err), -EINVAL);
    ASSERT_ERR(chat_render(m, NULL, &(struct chat_thread){twice, 2, true}, &out, &err), -EINVAL);
    ASSERT_TRUE(strstr(err.msg, "the model's chat template: ") && strstr(err.msg, "alternate"));
    ASSERT_TRUE(out.pieces == NULL && out.text.data == NULL);
    chat_close(m);
    chat_close(c);
}

TEST(a_prompt_may_end_within_the_last_message)
{
    struct chat *c = open_template("llama3.1"),
                *t = open_source("drops", "{{ messages[0].content }}");
    struct chat_msg msgs[] = {{"user", "a", 1}, {"assistant", " so \n", 5}};
    struct chat_thread thread = {msgs, 2, false, true};
    struct chat_out out = {0};
    struct err err = {0};
    ASSERT_OK(chat_render(c, NULL, &thread, &out, NULL));
    ASSERT_TRUE(out.text.len > 20);
    ASSERT_STREQ(buf_cstr(&out.text) + out.text.len - 21, "<|end_header_id|>\n\nso");
    check_out(&out, msgs, 2);
    ASSERT_ERR(chat_render(t, NULL, &thread, &out, &err), -EINVAL);
    ASSERT_TRUE(strstr(err.msg, "messages[1]") && strstr(err.msg, "go on with"));
    chat_out_fini(&out);
    chat_close(t);
    chat_close(c);
}

/* A role that a template does not know is left out by it, silently. */
TEST(messages_that_are_left_out_are_refused)
{
    struct chat *c = open_template("phi3-v1");
    struct chat_msg msgs[] = {{"system", "be brief", 8}, {"user", "a", 1}};
    struct chat_out out = {0};
    struct err err = {0};
    ASSERT_ERR(chat_render(c, NULL, &(struct chat_thread){msgs, 2, true}, &out, &err), -EINVAL);
    ASSERT_TRUE(strstr(err.msg, "messages[0]") && strstr(err.msg, "'system'"));
    msgs[0].text = " \n";
    msgs[0].len = 2;
    ASSERT_OK(chat_render(c, NULL, &(struct chat_thread){msgs, 2, true}, &out, &err));
    chat_out_fini(&out);
    chat_close(c);
}

TEST(fails_cleanly_without_memory)
{
    char *jinja = template_text("qwen2.5");
    struct chat_msg msgs[] = {{"user", "a", 1}, {"assistant", "b", 1}, {"tool", "c", 1}};
    for (unsigned nth = 1;; nth++) {
        struct chat *c = NULL;
        struct chat_out out = {0};
        mem_fail_nth(nth);
        int r = chat_open(jinja, NULL, &c, NULL);
        if (r == 0) r = chat_render(c, NULL, &(struct chat_thread){msgs, 3, true}, &out, NULL);
        bool fired = mem_fail_fired();
        mem_fail_nth(0);
        if (fired) ASSERT_ERR(r, -ENOMEM);
        if (r < 0) ASSERT_TRUE(out.pieces == NULL);
        chat_out_fini(&out);
        chat_close(c);
        if (!fired) {
            ASSERT_OK(r);
            ASSERT_TRUE(nth > 5);
            break;
        }
    }
    mem_free(jinja);
}
