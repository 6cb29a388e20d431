/* Tool calls between request and answer: which syntax the model writes them in, the prompt's words
 * on tools where its chat template has none, and what reads the answer. */
#include "worker/request/request.h"
#include "worker/worker.h"

#include <string.h>

void wk_speech_of(struct worker *w)
{
    const char *source =
        w->o.chat_template ? chat_builtin(w->o.chat_template) : tok_chat_template(w->tok);
    struct wk_speech *s = &w->speech;

    if (!source) source = "";
    s->calls = strstr(source, "tools") ? ans_syntax_of(source) : NULL;
    s->explained = !s->calls;
    if (s->explained) s->calls = ans_syntax_generic();
    s->thoughts = s->calls->messages ? &s->calls->messages->thoughts : ans_thoughts_of(source);
}

/* Its name in the tool's schema has no other type. */
static bool parameter_is_text(const void *req, const char *tool, const char *parameter)
{
    const struct api_tools *t = &((const struct api_req *)req)->tools;

    for (size_t i = 0; i < t->n; i++)
        if (strcmp(t->tool[i].name, tool) == 0)
            return wk_takes_text(
                json_object_get(json_object_get(t->tool[i].parameters, "properties"), parameter));
    return false;
}

bool wk_takes_text(const json_t *schema)
{
    const char *type = json_string_value(json_object_get(schema, "type"));
    const json_t *all = json_object_get(schema, "enum");
    bool texts = json_array_size(all) > 0;

    for (size_t i = 0; i < json_array_size(all); i++)
        texts = texts && json_is_string(json_array_get(all, i));
    return texts || (type && strcmp(type, "string") == 0);
}

struct ans_how wk_answer_how(const struct worker *w, const struct api_req *r)
{
    const bool calls = r->chat && r->tools.choice != API_TOOLS_NONE;
    /* What has the form of the answer is no call, where models open theirs. */
    const bool bare = r->format.kind == API_FORMAT_NONE || w->speech.calls->bare;

    return (struct ans_how){.syntax = calls ? w->speech.calls : NULL,
                            .thoughts = r->chat && r->thoughts_apart ? w->speech.thoughts : NULL,
                            .messages = r->chat ? w->speech.calls->messages : NULL,
                            .tool = r->tools.name,
                            .n_tool = bare ? r->tools.n_name : 0,
                            .is_text = parameter_is_text,
                            .of = r,
                            .max_calls = r->tools.one ? 1 : API_CALLS_MAX};
}

bool wk_answer_is_parsed(const struct ans_how *how)
{
    return how->syntax || how->thoughts || how->messages;
}

/* ---- in the prompt's words ---- */
static int add_bytes(const char *bytes, size_t n, void *to)
{
    return buf_add(to, bytes, n);
}

static void put_json(struct buf *out, const json_t *v)
{
    if (!v)
        buf_adds(out, "{}");
    else if (json_dump_callback(v, add_bytes, out, JSON_ENCODE_ANY) < 0 && buf_status(out) == 0)
        out->status = -ENOMEM;
}

static void put_tools(struct buf *out, const struct api_tools *t, const struct ans_syntax *s)
{
    buf_adds(out, "# Tools\n\nYou can call these functions, one JSON object each:\n<tools>\n");
    for (size_t i = 0; i < t->n; i++) {
        put_json(out, json_array_get(t->json, i));
        buf_addc(out, '\n');
    }
    buf_addf(out,
             "</tools>\n\nTo call one, answer with its name and its arguments as a JSON object, "
             "like this:\n%s\n{\"name\": \"NAME\", \"%s\": {}}\n%s",
             s->open, s->args, s->close ? s->close : "");
}

/* What an assistant has called, as it would have written it. */
static void put_calls(struct buf *out, const json_t *calls, const struct ans_syntax *s)
{
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *f = json_object_get(json_array_get(calls, i), "function");
        if (out->len > 0) buf_addc(out, '\n');
        buf_addf(out, "%s\n{\"name\": ", s->open);
        put_json(out, json_object_get(f, "name"));
        buf_addf(out, ", \"%s\": ", s->args);
        put_json(out, json_object_get(f, "arguments"));
        buf_addf(out, "}\n%s", s->close ? s->close : "");
    }
}

static int take_over(struct arena *a, struct buf *text, struct chat_msg *m)
{
    const char *s = buf_status(text) < 0 ? NULL : buf_cstr(text);

    m->text = s ? arena_strndup(a, s, text->len) : NULL;
    m->len = text->len;
    buf_fini(text);
    return m->text ? 0 : -ENOMEM;
}

static int explain_calls(const struct worker *w, struct arena *a, struct chat_msg *m)
{
    const json_t *calls = json_object_get(m->more, "tool_calls");
    struct buf text = BUF_INIT;

    if (strcmp(m->role, "tool") == 0 && !chat_says(w->chat, "tool")) m->role = "user";
    if (strcmp(m->role, "assistant") != 0 || json_array_size(calls) == 0) return 0;
    buf_add(&text, m->text, m->len);
    put_calls(&text, calls, w->speech.calls);
    m->more = NULL;
    return take_over(a, &text, m);
}

int wk_tools_explain(const struct worker *w, const struct api_req *r, struct arena *a,
                     struct chat_msg *msgs, size_t *n, bool *ret_added)
{
    struct buf text = BUF_INIT;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < *n; i++)
        rc = explain_calls(w, a, &msgs[i]);
    *ret_added = strcmp(msgs[0].role, "system") != 0 && strcmp(msgs[0].role, "developer") != 0;
    if (*ret_added) {
        memmove(msgs + 1, msgs, *n * sizeof *msgs);
        msgs[0] = (struct chat_msg){.role = "system"};
        ++*n;
    }
    if (rc < 0) return rc;
    buf_add(&text, msgs[0].text, msgs[0].len);
    if (text.len > 0) buf_adds(&text, "\n\n");
    put_tools(&text, &r->tools, w->speech.calls);
    return take_over(a, &text, &msgs[0]);
}
