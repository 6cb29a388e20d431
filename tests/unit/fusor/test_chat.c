#include "base/buf.h"
#include "base/clock.h"
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
    (void)snprintf(rel, sizeof rel, "chat/%s.jinja", name);
    return slurp(test_data(rel));
}

static struct chat *open_template(const char *name)
{
    char *jinja = template_text(name);
    struct chat *c = NULL;
    struct err err = {0};
    if (chat_open(jinja, NULL, &c, &err) < 0)
        test_fail(__FILE__, __LINE__, "%s: %s", name, err.msg);
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
        msgs[i].role = json_string_value(json_object_get(m, "role"));
        msgs[i].text = json_string_value(text);
        msgs[i].len = json_string_length(text);
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

static void today(char *s, size_t size)
{
    time_t now = (time_t)clock_wall_s();
    struct tm tm;
    ASSERT_TRUE(localtime_r(&now, &tm) != NULL);
    ASSERT_TRUE(strftime(s, size, "%d %b %Y", &tm) > 0);
}

static char *with_date(const char *text)
{
    struct buf b = BUF_INIT;
    char date[32];
    today(date, sizeof date);
    const char *mark = strstr(text, "{{DATE}}");
    if (mark)
        ASSERT_OK(buf_addf(&b, "%.*s%s%s", (int)(mark - text), text, date, mark + 8));
    else
        ASSERT_OK(buf_adds(&b, text));
    ASSERT_TRUE(buf_cstr(&b) != NULL);
    return buf_take(&b, NULL);
}

TEST(golden_renders)
{
    json_error_t why;
    json_t *cases = json_load_file(test_data("chat/golden.json"), 0, &why);
    ASSERT_TRUE(cases != NULL);
    struct tok *t = open_spm();
    size_t n_refused = 0;
    for (size_t i = 0; i < json_array_size(cases); i++) {
        json_t *item = json_array_get(cases, i);
        const char *file = json_string_value(json_object_get(item, "template"));
        const char *text = json_string_value(json_object_get(item, "text"));
        struct chat *c = open_template(file);
        ASSERT_STREQ(chat_name(c), json_string_value(json_object_get(item, "name")));
        struct chat_msg msgs[MSGS_MAX];
        size_t n = get_messages(json_object_get(item, "messages"), msgs);
        struct chat_out out = {0};
        struct err err = {0};
        bool gen = json_is_true(json_object_get(item, "gen"));
        int r = chat_render(c, t, &(struct chat_thread){msgs, n, gen}, &out, &err);
        if (!text) {
            ASSERT_ERR(r, -EINVAL);
            ASSERT_TRUE(strstr(err.msg, "messages[") != NULL);
            n_refused++;
        } else {
            if (r < 0) test_fail(__FILE__, __LINE__, "%s case %zu: %s", file, i, err.msg);
            char *want = with_date(text);
            if (strcmp(buf_cstr(&out.text), want) != 0)
                test_fail(__FILE__, __LINE__, "%s case %zu:\n%s\n--- not\n%s", file, i,
                          out.text.data, want);
            mem_free(want);
            check_out(&out, msgs, n);
        }
        chat_out_fini(&out);
        chat_close(c);
    }
    ASSERT_TRUE(n_refused > 20);
    tok_close(t);
    json_decref(cases);
}

TEST(names_render_as_their_templates)
{
    static const char *const names[] = {
        "smollm2",    "qwen2",          "qwen2.5",  "qwen3",    "chatml",       "yi",
        "llama2",     "llama3",         "llama3.1", "llama3.2", "mistral-v0.1", "mistral-v1",
        "mistral-v3", "mistral-tekken", "zephyr",   "phi3",     "phi3-v1"};
    struct chat_msg msgs[] = {{"user", " a ", 3}, {"assistant", " b ", 3}, {"user", " c ", 3}};
    struct tok *t = open_spm();
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct chat *by_name = NULL, *by_text = open_template(names[i]);
        ASSERT_OK(chat_open(NULL, names[i], &by_name, NULL));
        ASSERT_STREQ(chat_name(by_name), chat_name(by_text));
        struct chat_out a = {0}, b = {0};
        ASSERT_OK(chat_render(by_name, t, &(struct chat_thread){msgs, 3, true}, &a, NULL));
        ASSERT_OK(chat_render(by_text, t, &(struct chat_thread){msgs, 3, true}, &b, NULL));
        ASSERT_STREQ(buf_cstr(&a.text), buf_cstr(&b.text));
        chat_out_fini(&a);
        chat_out_fini(&b);
        chat_close(by_name);
        chat_close(by_text);
    }
    tok_close(t);
}

TEST(unknown_template_is_refused)
{
    struct chat *c = NULL;
    struct err err = {0};
    char *gemma = template_text("unknown-gemma");
    ASSERT_ERR(chat_open(gemma, NULL, &c, &err), -ENOTSUP);
    ASSERT_TRUE(strstr(err.msg, "--chat-template NAME") && strstr(err.msg, "mistral-tekken"));
    mem_free(gemma);
    ASSERT_ERR(chat_open(NULL, "no-such", &c, &err), -ENOTSUP);
    ASSERT_TRUE(strstr(err.msg, "llama3.1") != NULL);
    ASSERT_ERR(chat_open(NULL, NULL, &c, &err), -ENOTSUP);
    /* A known look with one thing more must not pass as the known one. */
    ASSERT_ERR(
        chat_open("{{'<|im_start|>' + message['role'] + '\\n' + message['content'] | upper + "
                  "'<|im_end|>' + '\\n'}}",
                  NULL, &c, &err),
        -ENOTSUP);
    ASSERT_ERR(chat_open("{{ '[INST]", NULL, &c, &err), -ENOTSUP);
    ASSERT_ERR(chat_open("{%", NULL, &c, &err), -ENOTSUP);
    ASSERT_ERR(chat_open("{# x", NULL, &c, &err), -ENOTSUP);
    ASSERT_TRUE(c == NULL);
}

TEST(layout_of_the_source_does_not_matter)
{
    struct chat *c = NULL;
    ASSERT_OK(chat_open(
        "{#- a comment #}\n{%- for m in messages -%}\n {{- \"<|im_start|>\" + message[\"role\"] "
        "+ \"\\n\" + message[\"content\"] + \"<|im_end|>\" + \"\\n\" -}}{% endfor %}"
        "{% if add_generation_prompt %}{{ \"<|im_start|>assistant\\n\" }}{% endif %}",
        NULL, &c, NULL));
    ASSERT_STREQ(chat_name(c), "chatml");
    chat_close(c);
}

TEST(own_default_system_text_is_read_from_the_template)
{
    struct chat *c = NULL;
    ASSERT_OK(chat_open(
        "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
        "{{ '<|im_start|>system\\nYou are Bob.<|im_end|>\\n' }}{% endif %}{{'<|im_start|>' + "
        "message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
        NULL, &c, NULL));
    struct chat_msg m = {"user", "hi", 2};
    struct chat_out out = {0};
    ASSERT_OK(chat_render(c, NULL, &(struct chat_thread){&m, 1, false}, &out, NULL));
    ASSERT_STREQ(buf_cstr(&out.text),
                 "<|im_start|>system\nYou are Bob.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n");
    chat_out_fini(&out);
    chat_close(c);
}

TEST(control_tokens_are_special_pieces)
{
    struct chat *c = open_template("smollm2");
    struct chat_msg m = {"developer", "<|im_start|>", 12};
    struct chat_out out = {0};
    ASSERT_OK(chat_render(c, NULL, &(struct chat_thread){&m, 1, false}, &out, NULL));
    ASSERT_EQ(out.n_pieces, 4);
    ASSERT_TRUE(out.pieces[0].special && out.pieces[0].len == 12);
    ASSERT_TRUE(!out.pieces[1].special &&
                strncmp(out.pieces[1].text, "system\n<|im_start|>", 19) == 0);
    ASSERT_TRUE(out.pieces[2].special && out.pieces[2].len == 10);
    ASSERT_TRUE(!out.pieces[3].special && out.pieces[3].len == 1);
    ASSERT_EQ(out.n_spans, 1);
    ASSERT_EQ(out.spans[0].dst, 19);
    chat_out_fini(&out);
    chat_close(c);
}

TEST(refusals_say_what_and_where)
{
    struct chat *c = open_template("llama3.1");
    struct chat_msg bad_role[] = {{"user", "a", 1}, {"robot", "b", 1}};
    struct chat_msg tool[] = {{"user", "a", 1}, {"tool", "b", 1}};
    struct chat_out out = {0};
    struct err err = {0};
    ASSERT_ERR(chat_render(c, NULL, &(struct chat_thread){bad_role, 2, true}, &out, &err), -EINVAL);
    ASSERT_STREQ(err.msg, "messages[1]: unknown role 'robot'");
    ASSERT_ERR(chat_render(c, NULL, &(struct chat_thread){tool, 2, true}, &out, &err), -EINVAL);
    ASSERT_TRUE(strstr(err.msg, "messages[1]") && strstr(err.msg, "'tool'") &&
                strstr(err.msg, "llama3.1"));
    ASSERT_ERR(chat_render(c, NULL, &(struct chat_thread){tool, 0, true}, &out, &err), -EINVAL);
    ASSERT_TRUE(out.pieces == NULL && out.text.data == NULL);
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
