/* The parts of a request that carry text: messages, content parts, documents, and the `kvblend`
 * object. Parts of one message are joined by "\n", as vLLM and llama.cpp do, and their places in
 * the joined text are kept, because each is a chunk by its sender's own word. */
#include "base/opt.h"
#include "base/opt_removed.h"
#include "worker/api/api.h"

#include <stdio.h>
#include <string.h>

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
    if (json_is_string(p)) { /* some clients send bare strings in the list */
        *ret = json_string_value(p);
        *ret_len = json_string_length(p);
        return 0;
    }
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
    if (!json_is_string(text)) return bad_value(e, where, "a text part needs a string 'text'");
    *ret = json_string_value(text);
    *ret_len = json_string_length(text);
    seg = json_string_value(json_object_get(p, "segment"));
    if (seg && strcmp(seg, "glue") == 0) *ret_kind = API_PART_GLUE;
    if (seg && strcmp(seg, "chunk") == 0) *ret_kind = API_PART_CHUNK;
    return 0;
}

static int join_parts(struct api_req *r, const json_t *list, const char *where, struct api_msg *m,
                      struct api_err *e)
{
    size_t n = json_array_size(list), total = 0;
    const char *text;
    size_t len;
    char *joined;

    m->part = arena_alloc(&r->arena, (n + 1) * sizeof *m->part);
    if (!m->part) return api_no_memory(e);
    for (size_t i = 0; i < n; i++) {
        int rc = read_part(json_array_get(list, i), where, &text, &len, &m->part[i].kind, e);
        if (rc < 0) return rc;
        m->part[i].begin = total + (i > 0);
        m->part[i].end = m->part[i].begin + len;
        total = m->part[i].end;
    }
    joined = arena_alloc(&r->arena, total + 1);
    if (!joined) return api_no_memory(e);
    for (size_t i = 0; i < n; i++) {
        enum api_part_kind kind;
        if (read_part(json_array_get(list, i), where, &text, &len, &kind, e) < 0) return -EINVAL;
        memcpy(joined + m->part[i].begin, text, len);
        if (i > 0) joined[m->part[i].begin - 1] = '\n';
    }
    m->text = joined;
    m->len = total;
    m->n_part = n;
    return 0;
}

static int parse_message(struct api_req *r, const json_t *v, size_t i, struct api_msg *m,
                         struct api_err *e)
{
    static const char *const roles[] = {"system",    "developer", "user",
                                        "assistant", "tool",      "function"};
    char where[64];
    const json_t *role, *content;
    bool known = false;

    (void)snprintf(where, sizeof where, "messages[%zu]", i);
    if (!json_is_object(v)) return bad_value(e, where, "a message must be an object");
    role = json_object_get(v, "role");
    (void)snprintf(where, sizeof where, "messages[%zu].role", i);
    if (!json_is_string(role))
        return api_err_set(e, API_MISSING_PARAMETER, where, "Missing required parameter: '%s'.",
                           where);
    m->role = json_string_value(role);
    for (size_t k = 0; k < sizeof roles / sizeof *roles; k++)
        known |= strcmp(m->role, roles[k]) == 0;
    if (!known)
        return api_err_set(e, API_INVALID_VALUE, where,
                           "Invalid value '%.40s' for '%s': supported are 'system', 'developer', "
                           "'user', 'assistant' and 'tool'.",
                           m->role, where);
    if (strcmp(m->role, "function") == 0) m->role = "tool";
    (void)snprintf(where, sizeof where, "messages[%zu].content", i);
    content = json_object_get(v, "content");
    if (json_is_array(content)) return join_parts(r, content, where, m, e);
    if (!content || json_is_null(content)) { /* an assistant message that only called tools */
        if (strcmp(m->role, "assistant") != 0)
            return api_err_set(e, API_MISSING_PARAMETER, where, "Missing required parameter: '%s'.",
                               where);
        m->text = "";
        return 0;
    }
    if (!json_is_string(content))
        return api_err_set(e, API_INVALID_TYPE, where,
                           "Invalid type for '%s': expected a string or an array of parts.", where);
    m->text = json_string_value(content);
    m->len = json_string_length(content);
    return 0;
}

int api_parse_messages(struct api_req *r, const json_t *v, struct api_err *e)
{
    size_t n = json_array_size(v);

    if (!json_is_array(v))
        return api_err_set(e, API_INVALID_TYPE, "messages",
                           "Invalid type for 'messages': expected an array of objects.");
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
    return 0;
}

/* ---- documents ---- */
static void string_of(const json_t *o, const char *name, const char **ret, size_t *ret_len)
{
    const json_t *v = json_object_get(o, name);

    if (!json_is_string(v)) return;
    *ret = json_string_value(v);
    *ret_len = json_string_length(v);
}

int api_parse_documents(struct api_req *r, const json_t *v, struct api_err *e)
{
    if (!v || json_is_null(v)) return 0;
    if (!json_is_array(v))
        return api_err_set(e, API_INVALID_TYPE, "documents",
                           "Invalid type for 'documents': expected an array.");
    r->n_doc = json_array_size(v);
    r->doc = arena_alloc(&r->arena, (r->n_doc + 1) * sizeof *r->doc);
    if (!r->doc) return api_no_memory(e);
    for (size_t i = 0; i < r->n_doc; i++) {
        const json_t *d = json_array_get(v, i);
        struct api_doc *o = &r->doc[i];
        if (json_is_string(d)) {
            o->text = json_string_value(d);
            o->len = json_string_length(d);
            continue;
        }
        if (json_is_object(d)) {
            string_of(d, "title", &o->title, &o->title_len);
            string_of(d, "text", &o->text, &o->len);
            if (!o->text) string_of(d, "contents", &o->text, &o->len);
            if (!o->text) string_of(d, "content", &o->text, &o->len);
        }
        if (!o->text)
            return bad_value(e, "documents", "each one is a string or an object with 'text'");
        if (o->title && o->title_len == 0) o->title = NULL;
    }
    return 0;
}

/* ---- the kvblend object ---- */
static size_t text_len(const struct api_req *r, size_t i, bool *ret_ok)
{
    *ret_ok = i < (r->chat ? r->n_msg : r->n_prompt);
    if (!*ret_ok) return 0;
    return r->chat ? r->msg[i].len : r->prompt[i].text ? r->prompt[i].len : 0;
}

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
        bool ok = im >= 0;
        size_t len = ok ? text_len(r, (size_t)im, &ok) : 0;
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

static int parse_kv_scalars(struct api_req *r, const json_t *o, struct api_err *e)
{
    struct api_settings *k = &r->kv;
    const json_t *v;

    if ((v = json_object_get(o, "mode")) && !json_is_null(v) &&
        (!json_is_string(v) || !api_mode_parse(json_string_value(v), &k->mode)))
        return bad_value(e, "kvblend.mode", "expected auto, full, prefix, reuse or blend");
    if ((v = json_object_get(o, "strategy")) && !json_is_null(v)) {
        const char *gone = json_is_string(v) ? opt_removed("strategy", json_string_value(v)) : NULL;
        if (gone) return removed(e, "kvblend.strategy", json_string_value(v), gone);
        if (!json_is_string(v) || !pol_strategy_parse(json_string_value(v), &k->strategy))
            return bad_value(e, "kvblend.strategy",
                             "expected full, prefix, reuse, hkvd, sink, query, qs or side");
    }
    const struct {
        const char *name, *param;
        double *value;
    } share[] = {{"ratio", "kvblend.ratio", &k->ratio},
                 {"min_ratio", "kvblend.min_ratio", &k->min_ratio}};
    for (size_t i = 0; i < sizeof share / sizeof *share; i++) {
        *share[i].value = -1;
        if (!(v = json_object_get(o, share[i].name)) || json_is_null(v)) continue;
        if (!json_is_number(v) || !(json_number_value(v) >= 0) || json_number_value(v) > 1)
            return bad_value(e, share[i].param, "a number from 0 to 1 is expected");
        *share[i].value = json_number_value(v);
    }
    v = json_object_get(o, "max_ttft_ms");
    if (!v || json_is_null(v)) return 0;
    if (!json_is_number(v) || !(json_number_value(v) > 0) || json_number_value(v) > API_TTFT_MS_MAX)
        return bad_value(e, "kvblend.max_ttft_ms", "a number of milliseconds above 0 is expected");
    k->max_ttft_ms = json_number_value(v);
    return 0;
}

/* A misspelt field would be ignored: name it, and the field that it may have meant. `priority` is
 * the gateway's. */
static int only_known(const json_t *o, struct api_err *e)
{
    static const char *const known[] = {"mode",        "strategy",  "ratio",   "min_ratio",
                                        "max_ttft_ms", "priority",  "explain", "namespace",
                                        "segments",    "separator", "store"};
    enum { N = sizeof known / sizeof *known };
    const char *name;
    json_t *v;

    json_object_foreach((json_t *)o, name, v)
    {
        size_t best = strlen(name) / 2 + 1;
        const char *near = NULL;
        for (size_t i = 0; i < N; i++)
            if (opt_is_nearer(name, known[i], &best)) near = known[i];
        if (near && strcmp(name, near) == 0) continue;
        char param[64], hint[64] = "";
        (void)snprintf(param, sizeof param, "kvblend.%.40s", name);
        const char *gone = opt_removed(param, NULL);
        if (gone && json_is_null(v)) continue; /* as good as not said */
        if (gone) return removed(e, param, NULL, gone);
        if (near) (void)snprintf(hint, sizeof hint, "; did you mean 'kvblend.%s'?", near);
        return api_err_set(e, API_UNKNOWN_PARAMETER, param, "Unknown parameter: '%s'%s", param,
                           hint[0] ? hint : ".");
    }
    return 0;
}

int api_parse_kvblend(struct api_req *r, const json_t *o, struct api_err *e)
{
    struct api_settings *k = &r->kv;
    const json_t *v;
    int rc;

    k->store = true;
    k->mode = k->strategy = POL_AUTO;
    k->ratio = k->min_ratio = k->max_ttft_ms = -1;
    v = json_object_get(r->root, "cache_salt"); /* vLLM's name for a namespace */
    if (json_is_string(v)) k->ns = json_string_value(v);
    if (!o || json_is_null(o)) return 0;
    if (!json_is_object(o)) return bad_value(e, "kvblend", "an object is expected");
    if ((rc = only_known(o, e)) < 0) return rc;
    if ((rc = parse_kv_scalars(r, o, e)) < 0) return rc;
    if ((v = json_object_get(o, "explain")) && !json_is_null(v)) {
        if (!json_is_boolean(v)) return bad_value(e, "kvblend.explain", "a boolean is expected");
        k->explain = json_is_true(v);
    }
    if ((v = json_object_get(o, "store")) && !json_is_null(v)) {
        if (!json_is_boolean(v)) return bad_value(e, "kvblend.store", "a boolean is expected");
        k->store = json_is_true(v);
    }
    if ((v = json_object_get(o, "namespace")) && !json_is_null(v)) {
        if (!json_is_string(v)) return bad_value(e, "kvblend.namespace", "a string is expected");
        k->ns = json_string_value(v);
    }
    if ((v = json_object_get(o, "separator")) && !json_is_null(v)) {
        if (!json_is_string(v)) return bad_value(e, "kvblend.separator", "a string is expected");
        if (json_string_length(v) > 0) k->separator = json_string_value(v);
    }
    v = json_object_get(o, "segments");
    return v && !json_is_null(v) ? parse_ranges(r, v, e) : 0;
}
