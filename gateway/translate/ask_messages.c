/* Anthropic's Messages: blocks become parts, `tool_use` a call, `tool_result` a message of its own.
 *
 * System blocks become one text: what changes from request to request there (a date, a client's
 * header) is then found as it is in any system text, and does not mark the rest as chunks by their
 * sender's word, which would end the search in the texts behind it. Blocks of a user's message stay
 * parts, so that documents sent one a block are chunks. Thoughts are passed over. */
#include "gateway/translate/ask.h"

#include <errno.h>
#include <string.h>

struct fields {
    struct json_val messages, system, tools, choice, stop, limit, stream, model, format, config;
};
struct block {
    struct json_val type, text, id, name, input, use_id, content, source, title;
};

static int read_block(const struct json_val *v, struct block *b)
{
    struct gw_field table[] = {{"type", &b->type},       {"text", &b->text},
                               {"id", &b->id},           {"name", &b->name},
                               {"input", &b->input},     {"tool_use_id", &b->use_id},
                               {"content", &b->content}, {"source", &b->source},
                               {"title", &b->title},     {0}};
    return gw_fields(v, table);
}

/* ---- texts ---- */

static int on_text_block(void *ctx, const struct json_val *v);

/* {"type":"text","data":…} or {"type":"content","content":[…]}; both with the title in front. */
static int add_document(struct ask_parts *p, const struct block *b)
{
    struct json_val type = {0}, data = {0}, content = {0};
    int r = gw_fields(
        &b->source,
        (struct gw_field[]){{"type", &type}, {"data", &data}, {"content", &content}, {0}});
    if (r == 0 && b->title.type == JSON_T_STRING && b->title.len > 2) r = ask_part(p, &b->title);
    if (r < 0) return r;
    if (json_str_is(&type, "text")) return ask_part(p, &data);
    if (json_str_is(&type, "content") && content.type == JSON_T_STRING)
        return ask_part(p, &content);
    if (json_str_is(&type, "content") && content.type == JSON_T_ARRAY) {
        size_t j = p->k->j;
        r = json_each(&content, on_text_block, p);
        p->k->j = j;
        return r;
    }
    return ask_refuse_here(p->k, true, ".source.type",
                           "only documents of plain text are supported (\"text\", \"content\").");
}

/* A block that is a text or made of texts; -ENOENT: another. */
static int add_texts(struct ask_parts *p, const struct block *b)
{
    if (json_str_is(&b->type, "text")) return ask_part(p, &b->text);
    if (json_str_is(&b->type, "document")) return add_document(p, b);
    if (!json_str_is(&b->type, "search_result")) return -ENOENT;
    int r = b->title.type == JSON_T_STRING && b->title.len > 2 ? ask_part(p, &b->title) : 0;
    if (r < 0 || b->content.type != JSON_T_ARRAY) return r;
    size_t j = p->k->j;
    r = json_each(&b->content, on_text_block, p);
    p->k->j = j;
    return r;
}

/* Within a document or a result: texts alone, and no document in a document. */
static int on_text_block(void *ctx, const struct json_val *v)
{
    struct ask_parts *p = ctx;
    struct block b = {0};
    int r = read_block(v, &b);
    if (r == 0)
        r = json_str_is(&b.type, "text")
                ? ask_part(p, &b.text)
                : ask_refuse_here(p->k, true, ".type", "only text is supported within it.");
    p->k->j++;
    return r;
}

static int refuse_block(struct ask *k)
{
    return ask_refuse_here(k, true, ".type",
                           "only text, tool_use, tool_result, thinking, search_result and "
                           "documents of plain text are supported; send others to an upstream "
                           "that speaks /v1/messages itself.");
}

/* ---- system ---- */

struct joined {
    struct ask *k;
    struct buf text; /* the inside of a JSON string */
};

static int on_system_block(void *ctx, const struct json_val *v)
{
    struct joined *s = ctx;
    struct block b = {0};
    int r = read_block(v, &b);
    if (r < 0) return r;
    if (!json_str_is(&b.type, "text") || b.text.type != JSON_T_STRING)
        return ask_refuse_here(s->k, false, ".type", "expected blocks of text.");
    if (s->text.len > 0) (void)buf_adds(&s->text, "\\n");
    s->k->i++;
    return buf_add(&s->text, b.text.p + 1, b.text.len - 2);
}

static int add_system(struct ask *k, const struct json_val *system)
{
    struct joined s = {k, BUF_INIT};
    k->list = "system";
    k->i = 0;
    int r = 0;
    if (system->type == JSON_T_STRING)
        r = buf_add(&s.text, system->p + 1, system->len - 2);
    else if (system->type == JSON_T_ARRAY)
        r = json_each(system, on_system_block, &s);
    else
        r = ask_refuse(k->a, "system", "expected a string or a list of blocks.");
    if (r == 0 && s.text.len > 0) {
        ask_begin(k);
        (void)buf_adds(k->out, "{\"role\":\"system\",\"content\":\"");
        (void)buf_add_buf(k->out, &s.text);
        r = buf_adds(k->out, "\"}");
    }
    buf_fini(&s.text);
    return r;
}

/* ---- messages ---- */

static int add_result(struct ask *k, const struct block *b)
{
    size_t j = k->j;
    if (b->use_id.type != JSON_T_STRING)
        return ask_refuse_here(k, true, ".tool_use_id", "expected a string.");
    int r = ask_result(k, &b->use_id, &b->content, on_text_block);
    k->j = j;
    return r;
}

/* The results come first: chat has them right behind the calls. */
static int on_result(void *ctx, const struct json_val *v)
{
    struct ask *k = ctx;
    struct block b = {0};
    int r = read_block(v, &b);
    if (r == 0 && json_str_is(&b.type, "tool_result")) r = add_result(k, &b);
    k->j++;
    return r;
}

static int on_user_block(void *ctx, const struct json_val *v)
{
    struct ask_parts *p = ctx;
    struct block b = {0};
    int r = read_block(v, &b);
    if (r == 0 && !json_str_is(&b.type, "tool_result")) r = add_texts(p, &b);
    if (r == -ENOENT) r = refuse_block(p->k);
    p->k->j++;
    return r;
}

static int on_said(void *ctx, const struct json_val *v)
{
    struct ask_parts *p = ctx;
    struct block b = {0};
    int r = read_block(v, &b);
    bool silent = json_str_is(&b.type, "thinking") || json_str_is(&b.type, "redacted_thinking") ||
                  json_str_is(&b.type, "tool_use");
    if (r == 0 && !silent) r = add_texts(p, &b);
    if (r == -ENOENT) r = refuse_block(p->k);
    p->k->j++;
    return r;
}

static int on_call(void *ctx, const struct json_val *v)
{
    struct ask *k = ctx;
    struct block b = {0};
    int r = read_block(v, &b);
    if (r == 0 && json_str_is(&b.type, "tool_use")) {
        bool named = b.name.type == JSON_T_STRING;
        if (!named || b.input.type != JSON_T_OBJECT)
            return ask_refuse_here(k, true, named ? ".input" : ".name", "expected %s.",
                                   named ? "an object" : "a string");
        r = ask_call(k, &b.id, &b.name, NULL, &b.input);
    }
    k->j++;
    return r;
}

static int on_message(void *ctx, const struct json_val *v)
{
    struct ask *k = ctx;
    struct json_val role = {0}, content = {0};
    struct ask_parts p = {.k = k, .text = BUF_INIT};
    int r = gw_fields(v, (struct gw_field[]){{"role", &role}, {"content", &content}, {0}});
    bool said = json_str_is(&role, "assistant");
    if (r < 0) return r;
    if (!said && !json_str_is(&role, "user") && !json_str_is(&role, "system"))
        return ask_refuse_here(k, false, ".role", "expected \"user\" or \"assistant\".");
    if (content.type != JSON_T_STRING && !(content.type == JSON_T_ARRAY && content.p))
        return ask_refuse_here(k, false, ".content", "expected a string or a list of blocks.");
    if (content.type == JSON_T_STRING) return ask_message(k, &role, &content, NULL);
    k->j = 0;
    if (!said) r = json_each(&content, on_result, k);
    k->j = 0;
    if (r == 0) r = json_each(&content, said ? on_said : on_user_block, &p);
    if (r == 0 && p.n > 0) ask_put_message(&p, &role); /* beside results or calls */
    buf_fini(&p.text);
    k->j = 0;
    if (r == 0 && said) r = json_each(&content, on_call, k);
    return r;
}

static int add_messages(struct ask *k, const struct fields *f)
{
    (void)buf_adds(k->out, ",\"messages\":[");
    int r = ask_given(&f->system) ? add_system(k, &f->system) : 0;
    if (r < 0) return r;
    k->list = "messages";
    k->parts = "content";
    if (f->messages.type != JSON_T_ARRAY || f->messages.len <= 2)
        return ask_refuse(k->a, "messages", "expected a list of messages.");
    r = ask_items(k, &f->messages, on_message);
    if (r < 0) return r;
    bool prefilled = k->open == ASK_SAID; /* the answer goes on with what it has begun */
    ask_close(k);
    (void)buf_addc(k->out, ']');
    if (prefilled)
        (void)buf_adds(k->out, ",\"add_generation_prompt\":false,\"continue_final_message\":true");
    return 0;
}

/* ---- tools, form ---- */

static int on_tool(void *ctx, const struct json_val *v)
{
    static const struct json_val none = {0};
    struct ask *k = ctx;
    struct json_val type = {0}, name = {0}, description = {0}, schema = {0};
    struct gw_field table[] = {{"type", &type},
                               {"name", &name},
                               {"description", &description},
                               {"input_schema", &schema},
                               {0}};
    int r = gw_fields(v, table);
    if (r < 0) return r;
    if (ask_given(&type) && !json_str_is(&type, "custom"))
        return ask_refuse_here(k, false, ".type",
                               "only tools of the client's own are supported; an upstream that "
                               "speaks /v1/messages itself may have others (`paths`).");
    if (name.type != JSON_T_STRING || schema.type != JSON_T_OBJECT)
        return ask_refuse_here(k, false, name.type == JSON_T_STRING ? ".input_schema" : ".name",
                               "expected %s.",
                               name.type == JSON_T_STRING ? "an object" : "a string");
    if (k->i > 0) (void)buf_addc(k->out, ',');
    ask_tool(k->out, &name, &description, &schema, &none);
    return 0;
}

static int add_choice(struct ask *k, const struct json_val *choice)
{
    struct json_val type = {0}, name = {0}, serial = {0};
    bool one = false;
    if (!ask_given(choice)) return 0;
    int r = gw_fields(
        choice, (struct gw_field[]){
                    {"type", &type}, {"name", &name}, {"disable_parallel_tool_use", &serial}, {0}});
    if (r < 0) return r;
    if (json_str_is(&type, "auto")) {
        (void)buf_adds(k->out, ",\"tool_choice\":\"auto\"");
    } else if (json_str_is(&type, "any")) {
        (void)buf_adds(k->out, ",\"tool_choice\":\"required\"");
    } else if (json_str_is(&type, "none")) {
        (void)buf_adds(k->out, ",\"tool_choice\":\"none\"");
    } else if (json_str_is(&type, "tool") && name.type == JSON_T_STRING) {
        ask_choose(k->out, &name);
    } else {
        return ask_refuse(k->a, "tool_choice",
                          "expected {\"type\":\"auto\"}, \"any\", \"none\", or \"tool\" with a "
                          "name.");
    }
    if (json_bool_read(&serial, &one) == 0 && one)
        (void)buf_adds(k->out, ",\"parallel_tool_calls\":false");
    return 0;
}

static int add_tools(struct ask *k, const struct fields *f)
{
    int r = ask_tools(k, &f->tools, on_tool);
    return r == 1 ? add_choice(k, &f->choice) : r;
}

static int add_form(struct ask *k, const struct fields *f)
{
    struct json_val format = f->format, type = {0}, schema = {0};
    const struct json_val none = {0};
    const char *name = "output_format";
    if (!ask_given(&format)) {
        name = "output_config.format";
        int r = gw_fields(&f->config, (struct gw_field[]){{"format", &format}, {0}});
        if (r < 0 || !ask_given(&format)) return r;
    }
    int r = gw_fields(&format, (struct gw_field[]){{"type", &type}, {"schema", &schema}, {0}});
    if (r < 0) return r;
    if (!json_str_is(&type, "json_schema"))
        return ask_refuse(k->a, name, "expected {\"type\":\"json_schema\",\"schema\":{…}}.");
    ask_response_format(k->out, &none, &schema, &none, &none);
    return 0;
}

/* Chat's own names for what is written here, and what says nothing to a backend. */
static const char *const ours[] = {"response_format",
                                   "max_completion_tokens",
                                   "n",
                                   "stop",
                                   "stream_options",
                                   "functions",
                                   "function_call",
                                   "parallel_tool_calls",
                                   "metadata",
                                   "service_tier",
                                   "thinking",
                                   "container",
                                   "context_management",
                                   "inference_geo",
                                   "cache_control",
                                   "betas",
                                   "add_generation_prompt",
                                   "continue_final_message",
                                   NULL};

int ask_messages(struct ask *k, const char *body, size_t len)
{
    struct gw_asked *a = k->a;
    struct fields f = {0};
    struct json_val servers = {0};
    struct gw_field table[] = {
        {"messages", &f.messages},    {"system", &f.system},       {"tools", &f.tools},
        {"tool_choice", &f.choice},   {"stop_sequences", &f.stop}, {"max_tokens", &f.limit},
        {"stream", &f.stream},        {"model", &f.model},         {"output_format", &f.format},
        {"output_config", &f.config}, {"mcp_servers", &servers},   {0}};
    int r = ask_fields(k, body, len, table, ours);
    if (r < 0) return r;
    if (servers.type == JSON_T_ARRAY && servers.len > 2)
        return ask_refuse(a, "mcp_servers", "the gateway calls no tools by itself.");
    (void)json_bool_read(&f.stream, &a->stream);
    if (a->counts) a->stream = false;
    if (f.model.p) (void)buf_add(&a->model, f.model.p, f.model.len);
    ask_put(k->out, "model", &f.model);
    ask_put(k->out, "max_completion_tokens", &f.limit);
    if (f.stop.len > 2) ask_put(k->out, "stop", &f.stop);
    if (a->stream)
        (void)buf_adds(k->out, ",\"stream\":true,\"stream_options\":{\"include_usage\":true}");
    r = add_messages(k, &f);
    if (r == 0) r = add_tools(k, &f);
    return r < 0 ? r : add_form(k, &f);
}
