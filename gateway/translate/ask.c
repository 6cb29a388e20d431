#include "gateway/translate/ask.h"

#include "base/mem.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static int refuse_field(struct gw_asked *a, const char *param, const char *fmt, va_list ap)
{
    a->failed = true;
    a->error = GW_E_BAD_REQUEST;
    (void)snprintf(a->param, sizeof a->param, "%s", param);
    int n = snprintf(a->message, sizeof a->message, "Invalid '%s': ", param);
    if (n > 0 && (size_t)n < sizeof a->message)
        (void)vsnprintf(a->message + n, sizeof a->message - (size_t)n, fmt, ap);
    return -EINVAL;
}

int ask_refuse(struct gw_asked *a, const char *param, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int r = refuse_field(a, param, fmt, ap);
    va_end(ap);
    return r;
}

int ask_refuse_here(const struct ask *k, bool part, const char *tail, const char *fmt, ...)
{
    char param[120];
    va_list ap;
    if (part)
        (void)snprintf(param, sizeof param, "%s[%zu].%s[%zu]%s", k->list, k->i, k->parts, k->j,
                       tail);
    else
        (void)snprintf(param, sizeof param, "%s[%zu]%s", k->list, k->i, tail);
    va_start(ap, fmt);
    int r = refuse_field(k->a, param, fmt, ap);
    va_end(ap);
    return r;
}

struct items {
    struct ask *k;
    int (*on_item)(void *ask, const struct json_val *v);
};

static int on_list_item(void *ctx, const struct json_val *v)
{
    const struct items *x = ctx;
    if (v->type != JSON_T_OBJECT) return ask_refuse_here(x->k, false, "", "expected an object.");
    if (x->k->i >= ASK_ITEMS_MAX)
        return ask_refuse(x->k->a, x->k->list, "at most %d items.", ASK_ITEMS_MAX);
    int r = x->on_item(x->k, v);
    x->k->i++;
    return r < 0 ? r : buf_status(x->k->out);
}

int ask_items(struct ask *k, const struct json_val *list,
              int (*on_item)(void *ask, const struct json_val *v))
{
    struct items x = {k, on_item};
    k->i = 0;
    return json_each(list, on_list_item, &x);
}

bool ask_given(const struct json_val *v)
{
    return v->p && v->type != JSON_T_NULL;
}

void ask_put(struct buf *out, const char *key, const struct json_val *v)
{
    if (!ask_given(v)) return;
    (void)buf_addf(out, ",\"%s\":", key);
    (void)buf_add(out, v->p, v->len);
}

struct top {
    struct ask *k;
    struct gw_field *table;
    const char *const *ours;
};

static int on_top_field(void *ctx, const struct json_field *f)
{
    const struct top *t = ctx;
    struct buf *out = t->k->out;
    for (const struct gw_field *x = t->table; x->key; x++)
        if (json_str_is(&f->key, x->key)) return gw_on_field(t->table, f);
    for (const char *const *name = t->ours; *name; name++)
        if (json_str_is(&f->key, *name)) return 0;
    if (f->val.type == JSON_T_NULL) return 0;
    (void)buf_addc(out, ',');
    (void)buf_add(out, f->key.p, f->key.len);
    (void)buf_addc(out, ':');
    return buf_add(out, f->val.p, f->val.len);
}

int ask_fields(struct ask *k, const char *body, size_t len, struct gw_field *table,
               const char *const *ours)
{
    struct gw_asked *a = k->a;
    struct json_fault fault = {0};
    struct top t = {k, table, ours};
    int r = json_scan_object(body, len, on_top_field, &t, &fault);
    if (r == 0 || r == -ENOMEM) return r;
    const char *why = fault.why ? fault.why : "malformed";
    a->failed = true;
    a->error = strstr(why, "UTF-8") ? GW_E_INVALID_UTF8 : GW_E_INVALID_JSON;
    (void)snprintf(a->message, sizeof a->message,
                   "The request body must be a JSON object: %s at byte %zu.", why, fault.at);
    return -EINVAL;
}

/* ---- messages ---- */

void ask_close(struct ask *k)
{
    static const char *const end[] = {[ASK_CLOSED] = "", [ASK_SAID] = "}", [ASK_CALLS] = "]}"};
    (void)buf_adds(k->out, end[k->open]);
    k->open = ASK_CLOSED;
}

void ask_begin(struct ask *k)
{
    ask_close(k);
    if (k->any) (void)buf_addc(k->out, ',');
    k->any = true;
}

int ask_part(struct ask_parts *p, const struct json_val *text)
{
    if (text->type != JSON_T_STRING)
        return ask_refuse_here(p->k, true, ".text", "expected a string.");
    if (p->n++ > 0) (void)buf_addc(&p->text, ',');
    p->lone = *text;
    (void)buf_adds(&p->text, "{\"type\":\"text\",\"text\":");
    (void)buf_add(&p->text, text->p, text->len);
    return buf_addc(&p->text, '}');
}

static void put_parts(const struct ask_parts *p)
{
    struct buf *out = p->k->out;
    if (p->n == 0) {
        (void)buf_adds(out, "\"\"");
    } else if (p->n == 1) {
        (void)buf_add(out, p->lone.p, p->lone.len);
    } else {
        (void)buf_addc(out, '[');
        (void)buf_add_buf(out, &p->text);
        (void)buf_addc(out, ']');
    }
}

void ask_put_message(const struct ask_parts *p, const struct json_val *role)
{
    struct ask *k = p->k;
    ask_begin(k);
    (void)buf_adds(k->out, "{\"role\":");
    (void)buf_add(k->out, role->p, role->len);
    (void)buf_adds(k->out, ",\"content\":");
    put_parts(p);
    k->open = ASK_SAID;
    if (!json_str_is(role, "assistant")) ask_close(k);
}

static int read_parts(struct ask_parts *p, const struct json_val *content,
                      int (*on_part)(void *parts, const struct json_val *v))
{
    p->k->j = 0;
    if (content->type == JSON_T_ARRAY) return json_each(content, on_part, p);
    if (content->type == JSON_T_STRING) {
        p->n = 1;
        p->lone = *content;
        return 0;
    }
    if (!ask_given(content)) return 0;
    char tail[24];
    (void)snprintf(tail, sizeof tail, ".%s", p->k->parts);
    return ask_refuse_here(p->k, false, tail, "expected a string or a list of parts.");
}

int ask_message(struct ask *k, const struct json_val *role, const struct json_val *content,
                int (*on_part)(void *parts, const struct json_val *v))
{
    struct ask_parts p = {.k = k, .text = BUF_INIT};
    int r = read_parts(&p, content, on_part);
    if (r == 0) ask_put_message(&p, role);
    buf_fini(&p.text);
    return r;
}

int ask_result(struct ask *k, const struct json_val *id, const struct json_val *content,
               int (*on_part)(void *parts, const struct json_val *v))
{
    static const struct json_val role = {"\"tool\"", 6, JSON_T_STRING};
    int r = ask_message(k, &role, content, on_part);
    if (r < 0) return r;
    k->out->len--; /* the message's end: it says which call it answers */
    ask_put(k->out, "tool_call_id", id);
    return buf_addc(k->out, '}');
}

int ask_call(struct ask *k, const struct json_val *id, const struct json_val *name,
             const struct json_val *arguments, const struct json_val *input)
{
    struct buf *out = k->out;
    if (k->open == ASK_CLOSED) {
        ask_begin(k);
        (void)buf_adds(out, "{\"role\":\"assistant\",\"content\":null");
    }
    (void)buf_adds(out, k->open == ASK_CALLS ? "," : ",\"tool_calls\":[");
    k->open = ASK_CALLS;
    (void)buf_adds(out, "{\"type\":\"function\"");
    ask_put(out, "id", id);
    (void)buf_adds(out, ",\"function\":{\"name\":");
    (void)buf_add(out, name->p, name->len);
    (void)buf_adds(out, ",\"arguments\":");
    if (arguments)
        (void)buf_add(out, arguments->p, arguments->len);
    else
        (void)buf_add_json_str(out, input->p, input->len);
    return buf_adds(out, "}}");
}

void ask_tool(struct buf *out, const struct json_val *name, const struct json_val *description,
              const struct json_val *schema, const struct json_val *strict)
{
    (void)buf_adds(out, "{\"type\":\"function\",\"function\":{\"name\":");
    (void)buf_add(out, name->p, name->len);
    ask_put(out, "description", description);
    ask_put(out, "parameters", schema);
    ask_put(out, "strict", strict);
    (void)buf_adds(out, "}}");
}

int ask_tools(struct ask *k, const struct json_val *tools,
              int (*on_tool)(void *ask, const struct json_val *v))
{
    if (!ask_given(tools)) return 0;
    if (tools->type != JSON_T_ARRAY) return ask_refuse(k->a, "tools", "expected a list.");
    k->list = "tools";
    size_t before = k->out->len;
    (void)buf_adds(k->out, ",\"tools\":[");
    int r = ask_items(k, tools, on_tool);
    if (k->i == 0) k->out->len = before; /* what says how to choose of none says nothing */
    if (r < 0 || k->i == 0) return r;
    (void)buf_addc(k->out, ']');
    return 1;
}

void ask_choose(struct buf *out, const struct json_val *name)
{
    (void)buf_adds(out, ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":");
    (void)buf_add(out, name->p, name->len);
    (void)buf_adds(out, "}}");
}

void ask_response_format(struct buf *out, const struct json_val *name,
                         const struct json_val *schema, const struct json_val *strict,
                         const struct json_val *description)
{
    static const struct json_val answer = {"\"answer\"", 8, JSON_T_STRING};
    if (!ask_given(name)) name = &answer;
    (void)buf_adds(out,
                   ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":");
    (void)buf_add(out, name->p, name->len);
    ask_put(out, "schema", schema);
    ask_put(out, "strict", strict);
    ask_put(out, "description", description);
    (void)buf_adds(out, "}}");
}

/* ---- life ---- */

int gw_asked_create(enum gw_dialect d, struct gw_asked **ret)
{
    struct gw_asked *a = mem_zalloc(sizeof *a);
    if (!a) return -ENOMEM;
    a->dialect = d;
    *ret = a;
    return 0;
}

void gw_asked_translate(struct gw_asked *a, const char *body, size_t len)
{
    struct ask k = {.a = a, .out = &a->chat};
    int r = buf_addc(&a->chat, '{');
    if (r == 0)
        r = a->dialect == GW_RESPONSES ? ask_responses(&k, body, len) : ask_messages(&k, body, len);
    if (r == 0) r = buf_addc(&a->chat, '}');
    if (r == 0) a->chat.data[1] = ' '; /* every member begins with a comma */
    const struct buf *made[] = {&a->chat, &a->echo, &a->messages, &a->model};
    for (size_t i = 0; r == 0 && i < sizeof made / sizeof made[0]; i++)
        r = buf_status(made[i]);
    if (r == 0 && buf_cstr(&a->chat)) return;
    if (a->failed) return;
    a->failed = true;
    a->error = GW_E_INTERNAL;
    (void)snprintf(a->message, sizeof a->message, "Out of memory.");
}

size_t gw_asked_bytes(const struct gw_asked *a)
{
    return a->model.len + a->echo.len + a->messages.len;
}

void gw_asked_free(struct gw_asked *a)
{
    if (!a) return;
    buf_fini(&a->chat);
    buf_fini(&a->model);
    buf_fini(&a->echo);
    buf_fini(&a->messages);
    mem_free(a);
}
