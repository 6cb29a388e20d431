/* The parts of a request that carry text: messages, content parts, documents, and the `kvblend`
 * object. Parts of one message are joined by "\n", as vLLM and llama.cpp do, and their places in
 * the joined text are kept, because each is a chunk by its sender's own word. */
#include "base/buf.h"
#include "base/jsonscan.h"
#include "base/opt.h"
#include "base/opt_removed.h"
#include "worker/api/api.h"

#include <stdio.h>
#include <string.h>

const char *api_order_name(enum api_order o)
{
    return o == API_DOCUMENT_FIRST ? "document_first" : "query_first";
}

int api_order_parse(const char *s, enum api_order *ret)
{
    for (enum api_order o = API_DOCUMENT_FIRST; o <= API_QUERY_FIRST; o++)
        if (strcmp(s, api_order_name(o)) == 0) {
            *ret = o;
            return 1;
        }
    return 0;
}

int api_mode_parse(const char *s, enum pol_strategy *ret)
{
    static const enum pol_strategy modes[] = {POL_AUTO, POL_FULL, POL_PREFIX, POL_REUSE, POL_BLEND};

    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        if (strcmp(s, pol_strategy_name(modes[i])) != 0) continue;
        *ret = modes[i];
        return 1;
    }
    return 0;
}

static int bad_value(struct api_err *e, const char *param, const char *why)
{
    return api_err_set(e, API_INVALID_VALUE, param, "Invalid '%s': %s.", param, why);
}

/* ---- content parts ---- */
static int read_part(const json_t *p, const char *where, const char **ret, size_t *ret_len,
                     enum api_part_kind *ret_kind, struct api_err *e)
{
    const char *type, *seg;
    const json_t *text;

    *ret_kind = API_PART_AUTO;
    if (api_string(p, ret, ret_len)) return 0; /* some clients send bare strings in the list */
    if (!json_is_object(p)) return bad_value(e, where, "a content part must be an object");
    type = json_string_value(json_object_get(p, "type"));
    text = json_object_get(p, "text");
    if (type && strcmp(type, "refusal") == 0) text = json_object_get(p, "refusal");
    if (type && strcmp(type, "text") != 0 && strcmp(type, "input_text") != 0 &&
        strcmp(type, "refusal") != 0)
        return api_err_set(e, API_UNSUPPORTED_PARAMETER, where,
                           "Unsupported content part type '%.40s' in '%s': this model reads text "
                           "only.",
                           type, where);
    if (!api_string(text, ret, ret_len))
        return bad_value(e, where, "a text part needs a string 'text'");
    seg = json_string_value(json_object_get(p, "segment"));
    if (seg && strcmp(seg, "glue") == 0) *ret_kind = API_PART_GLUE;
    if (seg && strcmp(seg, "chunk") == 0) *ret_kind = API_PART_CHUNK;
    return 0;
}

static int join_parts(struct api_req *r, const json_t *list, const char *where, struct api_msg *m,
                      struct api_err *e)
{
    struct buf joined = BUF_INIT;
    const char *text = "";
    size_t len = 0;
    int rc = 0;

    m->n_part = json_array_size(list);
    m->part = arena_alloc(&r->arena, (m->n_part + 1) * sizeof *m->part);
    if (!m->part) return api_no_memory(e);
    for (size_t i = 0; rc >= 0 && i < m->n_part; i++) {
        rc = read_part(json_array_get(list, i), where, &text, &len, &m->part[i].kind, e);
        if (rc < 0) break;
        if (i > 0) buf_addc(&joined, '\n');
        m->part[i].begin = joined.len;
        buf_add(&joined, text, len);
        m->part[i].end = joined.len;
    }
    m->len = joined.len;
    if (rc >= 0 && buf_status(&joined) >= 0 && buf_cstr(&joined))
        m->text = arena_strndup(&r->arena, buf_cstr(&joined), m->len);
    buf_fini(&joined);
    return rc < 0 ? rc : m->text ? 0 : api_no_memory(e);
}

/* Clients spell out what a message has not; templates ask whether it is there. */
static void drop_empty_fields(json_t *message)
{
    const char *key;
    json_t *v;
    void *next;

    json_object_foreach_safe(message, next, key, v)
    {
        const bool empty = json_is_null(v) || (json_is_array(v) && json_array_size(v) == 0);
        if (empty && strcmp(key, "content") != 0) (void)json_object_del(message, key);
    }
}

/* A call's arguments are JSON in a string; templates want what it says. What is not JSON stays. */
static int read_arguments(const json_t *message, struct api_err *e)
{
    const json_t *calls = json_object_get(message, "tool_calls");

    for (size_t i = 0; i < json_array_size(calls); i++) {
        json_t *function = json_object_get(json_array_get(calls, i), "function");
        const json_t *v = json_object_get(function, "arguments");
        const char *text = json_string_value(v);
        size_t len = json_string_length(v);
        if (!text || json_depth(text, len) > JSON_DEPTH_MAX / 2) continue;
        json_t *said = json_loadb(text, len, 0, NULL);
        if (said && json_object_set_new(function, "arguments", said) < 0) return api_no_memory(e);
    }
    return 0;
}

static int parse_message(struct api_req *r, json_t *v, size_t i, struct api_msg *m,
                         struct api_err *e)
{
    char where[64];
    const json_t *role, *content;

    (void)snprintf(where, sizeof where, "messages[%zu]", i);
    if (!json_is_object(v)) return bad_value(e, where, "a message must be an object");
    role = json_object_get(v, "role");
    (void)snprintf(where, sizeof where, "messages[%zu].role", i);
    if (!json_is_string(role)) return api_missing(e, where, "");
    m->role = json_string_value(role); /* the model's template says which it takes */
    if (strcmp(m->role, "function") == 0) m->role = "tool";
    m->json = v;
    drop_empty_fields(v);
    if (read_arguments(v, e) < 0) return -ENOMEM;
    (void)snprintf(where, sizeof where, "messages[%zu].content", i);
    content = api_field(v, "content");
    if (json_is_array(content)) return join_parts(r, content, where, m, e);
    if (!content) { /* an assistant message that only called tools */
        if (strcmp(m->role, "assistant") != 0) return api_missing(e, where, "");
        m->text = "";
        return 0;
    }
    if (api_string(content, &m->text, &m->len)) return 0;
    return api_wrong_type(e, where, "a string or an array of parts");
}

int api_parse_messages(struct api_req *r, struct api_err *e)
{
    const json_t *v = api_field(r->root, "messages");
    size_t n = json_array_size(v);

    if (!v) return api_missing(e, "messages", "");
    if (!json_is_array(v)) return api_wrong_type(e, "messages", "an array of objects");
    if (n == 0)
        return api_err_set(e, API_EMPTY_ARRAY, "messages",
                           "Invalid 'messages': empty array. Expected an array with minimum length "
                           "1.");
    if (n > API_MESSAGES_MAX)
        return api_err_set(e, API_ARRAY_TOO_LONG, "messages",
                           "Invalid 'messages': at most %d messages are allowed, but got %zu.",
                           API_MESSAGES_MAX, n);
    r->msg = arena_alloc(&r->arena, n * sizeof *r->msg);
    if (!r->msg) return api_no_memory(e);
    r->n_msg = n;
    for (size_t i = 0; i < n; i++) {
        int rc = parse_message(r, json_array_get(v, i), i, &r->msg[i], e);
        if (rc < 0) return rc;
    }
    r->template_vars = api_field(r->root, "chat_template_kwargs");
    if (r->template_vars && !json_is_object(r->template_vars))
        return bad_value(e, "chat_template_kwargs", "an object is expected");
    return 0;
}

/* ---- documents ---- */
int api_parse_documents(struct api_req *r, struct api_err *e)
{
    const json_t *v = api_field(r->root, "documents");

    if (!v) return 0;
    if (!json_is_array(v)) return api_wrong_type(e, "documents", "an array");
    r->n_doc = json_array_size(v);
    r->doc = arena_alloc(&r->arena, (r->n_doc + 1) * sizeof *r->doc);
    if (!r->doc) return api_no_memory(e);
    for (size_t i = 0; i < r->n_doc; i++) {
        const json_t *d = json_array_get(v, i);
        struct api_doc *o = &r->doc[i];
        (void)api_string(json_object_get(d, "title"), &o->title, &o->title_len);
        if (!api_string(d, &o->text, &o->len) &&
            !api_string(json_object_get(d, "text"), &o->text, &o->len) &&
            !api_string(json_object_get(d, "contents"), &o->text, &o->len) &&
            !api_string(json_object_get(d, "content"), &o->text, &o->len))
            return bad_value(e, "documents", "each one is a string or an object with 'text'");
        if (o->title && o->title_len == 0) o->title = NULL;
    }
    return 0;
}

/* ---- the kvblend object ---- */
static int parse_ranges(struct api_req *r, const json_t *v, struct api_err *e)
{
    size_t n = json_array_size(v);

    if (!json_is_array(v)) return bad_value(e, "kvblend.segments", "an array is expected");
    r->kv.range = arena_alloc(&r->arena, (n + 1) * sizeof *r->kv.range);
    if (!r->kv.range) return api_no_memory(e);
    for (size_t i = 0; i < n; i++) {
        const json_t *s = json_array_get(v, i);
        const json_t *m = json_object_get(s, "message"), *b = json_object_get(s, "begin"),
                     *t = json_object_get(s, "end");
        json_int_t im = m ? json_integer_value(m) : 0, ib = json_integer_value(b),
                   it = json_integer_value(t);
        bool ok = im >= 0 && (size_t)im < r->n_msg;
        size_t len = ok ? r->msg[im].len : 0;
        if (!json_is_object(s) || (m && !json_is_integer(m)) || !json_is_integer(b) ||
            !json_is_integer(t))
            return bad_value(e, "kvblend.segments",
                             "each one is an object with integers 'message', 'begin' and 'end'");
        if (!ok || ib < 0 || it <= ib || (uint64_t)it > len)
            return api_err_set(e, API_INVALID_VALUE, "kvblend.segments",
                               "Invalid 'kvblend.segments[%zu]': bytes %lld to %lld do not lie in "
                               "message %lld, which has %zu bytes.",
                               i, (long long)ib, (long long)it, (long long)im, len);
        r->kv.range[r->kv.n_range++] = (struct api_range){(uint32_t)im, (size_t)ib, (size_t)it};
    }
    return 0;
}

/* value NULL: the whole field is gone. */
static int removed(struct api_err *e, const char *param, const char *value, const char *instead)
{
    return api_err_set(e, value ? API_INVALID_VALUE : API_UNKNOWN_PARAMETER, param,
                       value ? "'%s' of '%s' was removed; %s." : "'%s'%s was removed; %s.", param,
                       value ? value : "", instead);
}

enum kv_kind {
    KV_ELSEWHERE, /* segments have a shape of their own, priority is the gateway's */
    KV_MODE,
    KV_STRATEGY,
    KV_SHARE,
    KV_MS,
    KV_BOOL,
    KV_STRING,
    KV_ORDER
};
static const char *const kv_wanted[] = {
    [KV_MODE] = "expected auto, full, prefix, reuse or blend",
    [KV_STRATEGY] = "expected full, prefix, reuse, hkvd, sink, query, qs or side",
    [KV_SHARE] = "a number from 0 to 1 is expected",
    [KV_MS] = "a number of milliseconds above 0 is expected",
    [KV_BOOL] = "a boolean is expected",
    [KV_STRING] = "a string is expected",
    [KV_ORDER] = "expected document_first or query_first"};
#define K(m) offsetof(struct api_settings, m)
static const struct kv_field {
    const char *name;
    enum kv_kind kind;
    size_t off; /* in api_settings */
} kv_fields[] = {{"mode", KV_MODE, K(mode)},
                 {"strategy", KV_STRATEGY, K(strategy)},
                 {"ratio", KV_SHARE, K(ratio)},
                 {"min_ratio", KV_SHARE, K(min_ratio)},
                 {"max_ttft_ms", KV_MS, K(max_ttft_ms)},
                 {"priority", KV_ELSEWHERE, 0},
                 {"explain", KV_BOOL, K(explain)},
                 {"namespace", KV_STRING, K(ns)},
                 {"segments", KV_ELSEWHERE, 0},
                 {"separator", KV_STRING, K(separator)},
                 {"order", KV_ORDER, K(order)},
                 {"store", KV_BOOL, K(store)}};
#undef K

/* False: it is none of that kind, and the request is refused. */
static bool kv_read(enum kv_kind kind, const json_t *v, void *to)
{
    const char *s = json_string_value(v);
    const double x = json_number_value(v);

    switch (kind) {
    case KV_MODE:
        return s && api_mode_parse(s, to);
    case KV_STRATEGY:
        return s && pol_strategy_parse(s, to);
    case KV_SHARE:
    case KV_MS:
        *(double *)to = x;
        return json_is_number(v) &&
               (kind == KV_SHARE ? x >= 0 && x <= 1 : x > 0 && x <= API_TTFT_MS_MAX);
    case KV_BOOL:
        *(bool *)to = json_is_true(v);
        return json_is_boolean(v);
    case KV_STRING:
        *(const char **)to = s;
        return s != NULL;
    case KV_ORDER:
        return s && api_order_parse(s, to);
    default:
        return true;
    }
}

/* A misspelt field would be ignored: name it, and the field that it may have meant. */
static int unknown_field(struct api_err *e, const char *param, const char *near)
{
    char hint[64] = ".";

    if (near) (void)snprintf(hint, sizeof hint, "; did you mean 'kvblend.%s'?", near);
    return api_err_set(e, API_UNKNOWN_PARAMETER, param, "Unknown parameter: '%s'%s", param, hint);
}

static int parse_kv_field(struct api_settings *k, const char *name, const json_t *v,
                          struct api_err *e)
{
    const struct kv_field *near = NULL;
    size_t best = strlen(name) / 2 + 1;
    char param[64];

    (void)snprintf(param, sizeof param, "kvblend.%.40s", name);
    for (size_t i = 0; i < sizeof kv_fields / sizeof *kv_fields; i++)
        if (opt_is_nearer(name, kv_fields[i].name, &best)) near = &kv_fields[i];
    if (!near || strcmp(name, near->name) != 0) {
        const char *gone = opt_removed(param, NULL);
        if (gone && json_is_null(v)) return 0; /* as good as not said */
        return gone ? removed(e, param, NULL, gone)
                    : unknown_field(e, param, near ? near->name : NULL);
    }
    if (json_is_null(v)) return 0;
    if (near->kind == KV_STRATEGY && json_is_string(v)) {
        const char *gone = opt_removed("strategy", json_string_value(v));
        if (gone) return removed(e, param, json_string_value(v), gone);
    }
    return kv_read(near->kind, v, (char *)k + near->off)
               ? 0
               : bad_value(e, param, kv_wanted[near->kind]);
}

int api_parse_kvblend(struct api_req *r, struct api_err *e)
{
    const json_t *o = api_field(r->root, "kvblend");
    struct api_settings *k = &r->kv;
    const char *name;
    json_t *v;

    *k = (struct api_settings){.mode = POL_AUTO,
                               .strategy = POL_AUTO,
                               .store = true,
                               .ratio = -1,
                               .min_ratio = -1,
                               .max_ttft_ms = -1,
                               /* vLLM's name for a namespace */
                               .ns = json_string_value(json_object_get(r->root, "cache_salt"))};
    if (!o) return 0;
    if (!json_is_object(o)) return bad_value(e, "kvblend", "an object is expected");
    json_object_foreach((json_t *)o, name, v) {
        int rc = parse_kv_field(k, name, v, e);
        if (rc < 0) return rc;
    }
    if (k->separator && !*k->separator) k->separator = NULL;
    o = api_field(o, "segments");
    return o ? parse_ranges(r, o, e) : 0;
}
