/* Tools of a request, which of them may be called, and the messages that answer their calls. */
#include "worker/api/api.h"

#include <stdio.h>
#include <string.h>

static bool is_name(const char *s, size_t len)
{
    static const char ok[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";

    return len > 0 && len <= API_TOOL_NAME_MAX && strspn(s, ok) == len;
}

static struct api_tool *find_tool(const struct api_tools *t, const char *name)
{
    for (size_t i = 0; name && i < t->n; i++)
        if (strcmp(t->tool[i].name, name) == 0) return &t->tool[i];
    return NULL;
}

/* ---- definitions ---- */
static int read_name(const struct api_tools *t, const json_t *f, size_t i, struct api_tool *to,
                     struct api_err *e)
{
    const json_t *v = api_field(f, "name");
    char where[64];

    (void)snprintf(where, sizeof where, "tools[%zu].function.name", i);
    if (!v) return api_missing(e, where, "");
    if (!json_is_string(v)) return api_wrong_type(e, where, "a string");
    to->name = json_string_value(v);
    if (!is_name(to->name, json_string_length(v)))
        return api_err_set(e, API_INVALID_VALUE, where,
                           "Invalid '%s': a name has 1 to %d letters, digits, underscores and "
                           "dashes.",
                           where, API_TOOL_NAME_MAX);
    if (find_tool(t, to->name))
        return api_err_set(e, API_INVALID_VALUE, where,
                           "Invalid '%s': there is another tool of the name '%s'.", where,
                           to->name);
    return 0;
}

static int read_function(const json_t *f, size_t i, struct api_tool *to, struct api_err *e)
{
    const json_t *strict = api_field(f, "strict"), *text = api_field(f, "description");
    const char *type;
    char where[64];

    (void)snprintf(where, sizeof where, "tools[%zu].function.description", i);
    if (text && !json_is_string(text)) return api_wrong_type(e, where, "a string");
    (void)snprintf(where, sizeof where, "tools[%zu].function.strict", i);
    if (strict && !json_is_boolean(strict)) return api_wrong_type(e, where, "a boolean");
    (void)snprintf(where, sizeof where, "tools[%zu].function.parameters", i);
    to->strict = json_is_true(strict);
    to->parameters = api_field(f, "parameters");
    if (!to->parameters) return 0;
    if (!json_is_object(to->parameters))
        return api_wrong_type(e, where, "a JSON schema, as an object");
    type = json_string_value(json_object_get(to->parameters, "type"));
    if (type && strcmp(type, "object") != 0)
        return api_err_set(e, API_INVALID_VALUE, where,
                           "Invalid '%s': the schema's type must be 'object', but it is '%.40s'.",
                           where, type);
    return 0;
}

static int read_tool(struct api_tools *t, const json_t *v, size_t i, struct api_err *e)
{
    struct api_tool *to = &t->tool[i];
    const char *type = json_string_value(json_object_get(v, "type"));
    const json_t *f = api_field(v, "function");
    char where[64];
    int rc;

    (void)snprintf(where, sizeof where, "tools[%zu]", i);
    if (!json_is_object(v)) return api_wrong_type(e, where, "an object");
    if (json_dumpb(v, NULL, 0, JSON_COMPACT) > API_TOOL_BYTES_MAX)
        return api_err_set(e, API_STRING_TOO_LONG, where,
                           "Invalid '%s': a tool's definition has at most %d bytes.", where,
                           API_TOOL_BYTES_MAX);
    (void)snprintf(where, sizeof where, "tools[%zu].type", i);
    if (!type) return api_missing(e, where, "");
    if (strcmp(type, "function") != 0)
        return api_err_set(e, API_UNSUPPORTED_PARAMETER, where,
                           "Unsupported '%s': '%.40s'; there are tools of type 'function'.", where,
                           type);
    (void)snprintf(where, sizeof where, "tools[%zu].function", i);
    if (!f) return api_missing(e, where, "");
    if (!json_is_object(f)) return api_wrong_type(e, where, "an object");
    if ((rc = read_name(t, f, i, to, e)) < 0 || (rc = read_function(f, i, to, e)) < 0) return rc;
    t->n++;
    return 0;
}

static int read_tools(struct api_req *r, const json_t *v, struct api_err *e)
{
    const size_t n = json_array_size(v);

    if (!json_is_array(v)) return api_wrong_type(e, "tools", "an array of objects");
    if (n > API_TOOLS_MAX)
        return api_err_set(e, API_ARRAY_TOO_LONG, "tools",
                           "Invalid 'tools': at most %d tools are allowed, but got %zu.",
                           API_TOOLS_MAX, n);
    r->tools.tool = arena_alloc(&r->arena, (n + 1) * sizeof *r->tools.tool);
    if (!r->tools.tool) return api_no_memory(e);
    for (size_t i = 0; i < n; i++) {
        const int rc = read_tool(&r->tools, json_array_get(v, i), i, e);
        if (rc < 0) return rc;
    }
    r->tools.json = n > 0 ? v : NULL;
    return 0;
}

/* ---- which may be called ---- */
static int read_mode(struct api_tools *t, const char *mode, const char *where, struct api_err *e)
{
    static const struct {
        const char *name;
        enum api_tool_choice choice;
    } modes[] = {{"auto", API_TOOLS_AUTO}, {"none", API_TOOLS_NONE}, {"required", API_TOOLS_MUST}};

    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        if (strcmp(mode, modes[i].name) != 0) continue;
        t->choice = modes[i].choice;
        return 0;
    }
    return api_err_set(e, API_INVALID_VALUE, where,
                       "Invalid '%s': '%.40s' is none of 'auto', 'none' and 'required'.", where,
                       mode);
}

/* {"type":"function","function":{"name":…}}; the name may stand beside the type, too. */
static int allow(struct api_tools *t, const json_t *v, const char *where, struct api_err *e)
{
    const json_t *f = api_field(v, "function");
    const char *name = json_string_value(json_object_get(f ? f : v, "name"));
    struct api_tool *tool = find_tool(t, name);

    if (!name)
        return api_err_set(e, API_MISSING_PARAMETER, where,
                           "Invalid '%s': a tool is named as {\"type\": \"function\", "
                           "\"function\": {\"name\": …}}.",
                           where);
    if (!tool)
        return api_err_set(e, API_INVALID_VALUE, where,
                           "Invalid '%s': '%.64s' is none of the request's tools.", where, name);
    tool->callable = true;
    return 0;
}

static int read_allowed(struct api_tools *t, const json_t *v, struct api_err *e)
{
    static const char where[] = "tool_choice.allowed_tools";
    const json_t *o = api_field(v, "allowed_tools") ? api_field(v, "allowed_tools") : v;
    const char *mode = json_string_value(json_object_get(o, "mode"));
    const json_t *list = api_field(o, "tools");
    int rc = mode ? read_mode(t, mode, where, e) : 0;

    if (rc == 0 && json_array_size(list) == 0)
        return api_err_set(e, API_EMPTY_ARRAY, where,
                           "Invalid '%s': 'tools' must name at least one tool.", where);
    for (size_t i = 0; rc == 0 && i < json_array_size(list); i++)
        rc = allow(t, json_array_get(list, i), where, e);
    return rc;
}

static int read_choice(struct api_tools *t, const json_t *v, struct api_err *e)
{
    const char *type = json_string_value(json_object_get(v, "type"));
    bool all = true;
    int rc = 0;

    if (json_is_string(v)) {
        rc = read_mode(t, json_string_value(v), "tool_choice", e);
    } else if (type && strcmp(type, "function") == 0) {
        t->choice = API_TOOLS_MUST;
        t->one = true;
        rc = allow(t, v, "tool_choice", e);
        all = false;
    } else if (type && strcmp(type, "allowed_tools") == 0) {
        rc = read_allowed(t, v, e);
        all = false;
    } else if (v) {
        return api_wrong_type(e, "tool_choice",
                              "'auto', 'none', 'required', or an object of type 'function' or "
                              "'allowed_tools'");
    }
    for (size_t i = 0; all && i < t->n; i++)
        t->tool[i].callable = true;
    if (rc == 0 && t->n == 0 && t->choice == API_TOOLS_MUST)
        return api_err_set(e, API_INVALID_VALUE, "tool_choice",
                           "'tool_choice' asks for a call, but there are no 'tools'.");
    return rc;
}

static int list_names(struct api_req *r, struct api_err *e)
{
    struct api_tools *t = &r->tools;

    t->name = arena_alloc(&r->arena, (t->n + 1) * sizeof *t->name);
    if (!t->name) return api_no_memory(e);
    for (size_t i = 0; i < t->n; i++)
        if (t->tool[i].callable) t->name[t->n_name++] = t->tool[i].name;
    return 0;
}

int api_parse_tools(struct api_req *r, struct api_err *e)
{
    const json_t *v = api_field(r->root, "tools"), *format = api_field(r->root, "reasoning_format");
    const json_t *parallel = api_field(r->root, "parallel_tool_calls");
    const char *name = json_string_value(format);
    struct api_tools *t = &r->tools;
    int rc = v ? read_tools(r, v, e) : 0;

    if (rc == 0) rc = read_choice(t, api_field(r->root, "tool_choice"), e);
    if (rc == 0) rc = list_names(r, e);
    if (rc < 0) return rc;
    if (parallel && !json_is_boolean(parallel))
        return api_wrong_type(e, "parallel_tool_calls", "a boolean");
    t->one = t->one || json_is_false(parallel);
    if (t->n == 0) t->choice = API_TOOLS_NONE;
    r->thoughts_apart = !name || strcmp(name, "none") != 0;
    if (format && (!name || (r->thoughts_apart && strcmp(name, "auto") != 0 &&
                             strcmp(name, "deepseek") != 0)))
        return api_err_set(e, API_INVALID_VALUE, "reasoning_format",
                           "Invalid 'reasoning_format': expected 'auto', 'deepseek' or 'none'.");
    return 0;
}

/* ---- calls and their answers ---- */
static bool has_call(const json_t *message, const char *id)
{
    const json_t *calls = json_object_get(message, "tool_calls");

    for (size_t i = 0; i < json_array_size(calls); i++) {
        const char *s = json_string_value(json_object_get(json_array_get(calls, i), "id"));
        if (s && strcmp(s, id) == 0) return true;
    }
    return false;
}

int api_check_answers(const struct api_req *r, struct api_err *e)
{
    const json_t *asked = NULL; /* the last message with calls */
    char where[64];

    for (size_t i = 0; i < r->n_msg; i++) {
        const json_t *m = r->msg[i].json;
        const char *id = json_string_value(json_object_get(m, "tool_call_id"));
        if (json_object_get(m, "tool_calls")) asked = m;
        if (strcmp(r->msg[i].role, "tool") != 0 || !id || has_call(asked, id)) continue;
        (void)snprintf(where, sizeof where, "messages[%zu].tool_call_id", i);
        return api_err_set(e, API_INVALID_VALUE, where,
                           "Invalid '%s': '%.64s' is not the id of a call in the 'tool_calls' "
                           "before it.",
                           where, id);
    }
    return 0;
}
