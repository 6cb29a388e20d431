/* OpenAI's Responses: items become messages, flat tools nested ones. Fields that say how to keep,
 * bill or show an answer do not reach the backend; `reasoning` items are passed over, as their
 * thoughts belong to the model that had them. */
#include "gateway/translate/ask.h"
#include "gateway/translate/store.h"

#include <errno.h>
#include <string.h>

enum {
    ECHO_BYTES_MAX = 64 << 10
}; /* chosen: of one field that an answer repeats, thrice in a stream */

struct fields {
    struct json_val input, instructions, tools, choice, text, reasoning, limit, stream, store;
    struct json_val previous, background, conversation, prompt, model, logprobs;
    struct json_val temperature, top_p, parallel, metadata, user, truncation;
};

/* ---- input ---- */

static const struct json_val user_role = {"\"user\"", 6, JSON_T_STRING};

static int on_part(void *ctx, const struct json_val *v)
{
    struct ask_parts *p = ctx;
    struct json_val type = {0}, text = {0}, refusal = {0};
    struct gw_field table[] = {{"type", &type}, {"text", &text}, {"refusal", &refusal}, {0}};
    int r = gw_fields(v, table);
    if (r == 0 && (json_str_is(&type, "input_text") || json_str_is(&type, "output_text") ||
                   json_str_is(&type, "text")))
        r = ask_part(p, &text);
    else if (r == 0 && json_str_is(&type, "refusal"))
        r = ask_part(p, &refusal);
    else if (r == 0)
        r = ask_refuse_here(p->k, true, ".type",
                            "only text is supported (input_text, output_text); send images, files "
                            "and audio to an upstream that speaks /v1/responses itself.");
    p->k->j++;
    return r;
}

static int add_output(struct ask *k, const struct json_val *id, const struct json_val *output)
{
    if (id->type != JSON_T_STRING)
        return ask_refuse_here(k, false, ".call_id", "expected a string.");
    k->parts = "output";
    int r = ask_result(k, id, output, on_part);
    k->parts = "content";
    return r;
}

static int on_input(void *ctx, const struct json_val *v)
{
    struct ask *k = ctx;
    struct json_val type = {0}, role = user_role, content = {0}, id = {0}, name = {0};
    struct json_val arguments = {0}, output = {0};
    struct gw_field table[] = {
        {"type", &type}, {"role", &role},           {"content", &content}, {"call_id", &id},
        {"name", &name}, {"arguments", &arguments}, {"output", &output},   {0}};
    int r = gw_fields(v, table);
    if (r < 0) return r;
    if (!ask_given(&type) || json_str_is(&type, "message")) {
        if (role.type != JSON_T_STRING)
            return ask_refuse_here(k, false, ".role", "expected a string.");
        return ask_message(k, &role, &content, on_part);
    }
    if (json_str_is(&type, "reasoning")) return 0;
    if (json_str_is(&type, "function_call_output")) return add_output(k, &id, &output);
    if (!json_str_is(&type, "function_call"))
        return ask_refuse_here(k, false, ".type",
                               "only message, function_call, function_call_output and reasoning "
                               "are supported here.");
    if (name.type != JSON_T_STRING || arguments.type != JSON_T_STRING)
        return ask_refuse_here(k, false, name.type == JSON_T_STRING ? ".arguments" : ".name",
                               "expected a string.");
    return ask_call(k, &id, &name, &arguments, NULL);
}

/* What earlier turns said goes in front. */
static int add_previous(struct ask *k, const struct json_val *previous)
{
    struct gw_asked *a = k->a;
    struct buf id = BUF_INIT;
    int r = previous->type == JSON_T_STRING ? json_str_read(previous, &id) : -EINVAL;
    const char *name = r == 0 ? buf_cstr(&id) : NULL;
    size_t before = k->out->len;
    if (k->any) (void)buf_addc(k->out, ',');
    r = name && a->store ? gw_store_get(a->store, a->owner, name, k->out, NULL) : 0;
    buf_fini(&id);
    if (r < 0) return r;
    if (r == 0) {
        (void)ask_refuse(a, "previous_response_id",
                         "no response of this id is stored for this key; send the whole "
                         "conversation as `input`.");
        a->error = GW_E_NO_RESPONSE;
        return -EINVAL;
    }
    k->any |= k->out->len > before + 1;
    return 0;
}

static int add_messages(struct ask *k, const struct fields *f)
{
    static const struct json_val system_role = {"\"system\"", 8, JSON_T_STRING};
    (void)buf_adds(k->out, ",\"messages\":[");
    if (ask_given(&f->instructions)) {
        if (f->instructions.type != JSON_T_STRING)
            return ask_refuse(k->a, "instructions", "expected a string.");
        int r = ask_message(k, &system_role, &f->instructions, on_part);
        if (r < 0) return r;
    }
    size_t begin = k->out->len;
    int r = ask_given(&f->previous) ? add_previous(k, &f->previous) : 0;
    if (r < 0) return r;
    if (f->input.type == JSON_T_STRING)
        r = ask_message(k, &user_role, &f->input, on_part);
    else if (f->input.type == JSON_T_ARRAY && f->input.p)
        r = ask_items(k, &f->input, on_input);
    else
        r = ask_refuse(k->a, "input", "expected a string or a list of items.");
    if (r < 0) return r;
    ask_close(k);
    if (!k->any) return ask_refuse(k->a, "input", "it holds nothing.");
    if (buf_status(k->out) < 0) return -ENOMEM;
    begin += k->out->data[begin] == ',';
    if (k->a->keeps && k->out->len - begin <= gw_store_entry_max(k->a->store))
        (void)buf_add(&k->a->messages, k->out->data + begin, k->out->len - begin);
    else
        k->a->keeps = false;
    return buf_addc(k->out, ']');
}

/* ---- tools ---- */

static int on_tool(void *ctx, const struct json_val *v)
{
    struct ask *k = ctx;
    struct json_val type = {0}, name = {0}, description = {0}, schema = {0}, strict = {0};
    struct gw_field table[] = {
        {"type", &type},         {"name", &name},     {"description", &description},
        {"parameters", &schema}, {"strict", &strict}, {0}};
    int r = gw_fields(v, table);
    if (r < 0) return r;
    if (!json_str_is(&type, "function"))
        return ask_refuse_here(k, false, ".type",
                               "only tools of type \"function\" are supported; an upstream that "
                               "speaks /v1/responses itself may have others (`paths`).");
    if (name.type != JSON_T_STRING) return ask_refuse_here(k, false, ".name", "expected a string.");
    if (k->i > 0) (void)buf_addc(k->out, ',');
    ask_tool(k->out, &name, &description, &schema, &strict);
    return 0;
}

static int add_choice(struct ask *k, const struct json_val *choice)
{
    struct json_val type = {0}, name = {0};
    if (choice->type == JSON_T_STRING) ask_put(k->out, "tool_choice", choice);
    if (choice->type == JSON_T_STRING || !ask_given(choice)) return 0;
    int r = gw_fields(choice, (struct gw_field[]){{"type", &type}, {"name", &name}, {0}});
    if (r < 0) return r;
    if (!json_str_is(&type, "function") || name.type != JSON_T_STRING)
        return ask_refuse(k->a, "tool_choice",
                          "expected \"none\", \"auto\", \"required\" or "
                          "{\"type\":\"function\",\"name\":…}.");
    ask_choose(k->out, &name);
    return 0;
}

static int add_tools(struct ask *k, const struct fields *f)
{
    int r = ask_tools(k, &f->tools, on_tool);
    if (r != 1) return r;
    ask_put(k->out, "parallel_tool_calls", &f->parallel);
    return add_choice(k, &f->choice);
}

/* ---- form, limits ---- */

static int add_text_form(struct ask *k, const struct json_val *text)
{
    struct json_val format = {0}, verbosity = {0}, type = {0}, name = {0}, schema = {0};
    struct json_val strict = {0}, description = {0};
    int r =
        gw_fields(text, (struct gw_field[]){{"format", &format}, {"verbosity", &verbosity}, {0}});
    if (r == 0)
        r = gw_fields(&format, (struct gw_field[]){{"type", &type},
                                                   {"name", &name},
                                                   {"schema", &schema},
                                                   {"strict", &strict},
                                                   {"description", &description},
                                                   {0}});
    if (r < 0) return r;
    ask_put(k->out, "verbosity", &verbosity);
    if (!ask_given(&format) || json_str_is(&type, "text")) return 0;
    if (json_str_is(&type, "json_object"))
        return buf_adds(k->out, ",\"response_format\":{\"type\":\"json_object\"}");
    if (!json_str_is(&type, "json_schema"))
        return ask_refuse(k->a, "text.format.type",
                          "expected \"text\", \"json_object\" or \"json_schema\".");
    ask_response_format(k->out, &name, &schema, &strict, &description);
    return 0;
}

static int refuse_unserved(struct gw_asked *a, const struct fields *f)
{
    bool background = false;
    int64_t n = 0;
    if (json_bool_read(&f->background, &background) == 0 && background)
        return ask_refuse(a, "background", "answers are not made in the background here.");
    if (ask_given(&f->conversation))
        return ask_refuse(a, "conversation", "use `previous_response_id`, or send it as `input`.");
    if (ask_given(&f->prompt))
        return ask_refuse(a, "prompt", "stored prompts are not known here: send `instructions`.");
    if (ask_given(&f->logprobs) && (json_int_read(&f->logprobs, &n) < 0 || n != 0))
        return ask_refuse(a, "top_logprobs", "/v1/chat/completions has log-probabilities.");
    return 0;
}

static void echo(struct buf *out, const char *key, const struct json_val *v, const char *dflt)
{
    bool fits = ask_given(v) && v->len <= ECHO_BYTES_MAX;
    (void)buf_addf(out, ",\"%s\":", key);
    (void)buf_add(out, fits ? v->p : dflt, fits ? v->len : strlen(dflt));
}

static void add_echo(struct gw_asked *a, const struct fields *f)
{
    struct buf *e = &a->echo;
    echo(e, "instructions", &f->instructions, "null");
    echo(e, "max_output_tokens", &f->limit, "null");
    echo(e, "metadata", &f->metadata, "{}");
    echo(e, "parallel_tool_calls", &f->parallel, "true");
    echo(e, "previous_response_id", &f->previous, "null");
    echo(e, "reasoning", &f->reasoning, "{\"effort\":null,\"summary\":null}");
    echo(e, "temperature", &f->temperature, "1.0");
    echo(e, "text", &f->text, "{\"format\":{\"type\":\"text\"}}");
    echo(e, "tool_choice", &f->choice, "\"auto\"");
    echo(e, "tools", &f->tools, "[]");
    echo(e, "top_p", &f->top_p, "1.0");
    echo(e, "truncation", &f->truncation, "\"disabled\"");
    echo(e, "user", &f->user, "null");
}

/* Chat's own names for what is written here, and what says nothing to a backend. */
static const char *const ours[] = {"messages",
                                   "response_format",
                                   "max_completion_tokens",
                                   "max_tokens",
                                   "n",
                                   "include",
                                   "reasoning_effort",
                                   "stream_options",
                                   "functions",
                                   "function_call",
                                   "service_tier",
                                   "max_tool_calls",
                                   "verbosity",
                                   NULL};

int ask_responses(struct ask *k, const char *body, size_t len)
{
    struct gw_asked *a = k->a;
    struct fields f = {0};
    struct gw_field table[] = {{"input", &f.input},
                               {"instructions", &f.instructions},
                               {"tools", &f.tools},
                               {"tool_choice", &f.choice},
                               {"text", &f.text},
                               {"reasoning", &f.reasoning},
                               {"max_output_tokens", &f.limit},
                               {"stream", &f.stream},
                               {"store", &f.store},
                               {"previous_response_id", &f.previous},
                               {"background", &f.background},
                               {"conversation", &f.conversation},
                               {"prompt", &f.prompt},
                               {"model", &f.model},
                               {"top_logprobs", &f.logprobs},
                               {"temperature", &f.temperature},
                               {"top_p", &f.top_p},
                               {"parallel_tool_calls", &f.parallel},
                               {"metadata", &f.metadata},
                               {"user", &f.user},
                               {"truncation", &f.truncation},
                               {0}};
    struct json_val effort = {0};
    bool store = true;
    int r = ask_fields(k, body, len, table, ours);
    if (r == 0) r = refuse_unserved(a, &f);
    if (r < 0) return r;
    (void)json_bool_read(&f.store, &store);
    (void)json_bool_read(&f.stream, &a->stream);
    a->keeps = store && gw_store_entry_max(a->store) > 0;
    if (f.model.p) (void)buf_add(&a->model, f.model.p, f.model.len);
    k->list = "input";
    k->parts = "content";
    ask_put(k->out, "model", &f.model);
    ask_put(k->out, "temperature", &f.temperature);
    ask_put(k->out, "top_p", &f.top_p);
    ask_put(k->out, "user", &f.user);
    ask_put(k->out, "max_completion_tokens", &f.limit);
    ask_put(k->out, "stream", &f.stream);
    if (a->stream) (void)buf_adds(k->out, ",\"stream_options\":{\"include_usage\":true}");
    if (gw_fields(&f.reasoning, (struct gw_field[]){{"effort", &effort}, {0}}) == 0)
        ask_put(k->out, "reasoning_effort", &effort);
    r = add_messages(k, &f);
    if (r == 0) r = add_tools(k, &f);
    if (r == 0) r = add_text_form(k, &f.text);
    if (r < 0) return r;
    add_echo(a, &f);
    return 0;
}
