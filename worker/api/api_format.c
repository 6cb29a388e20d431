/* What form a request wants its answer in: OpenAI's response_format, vLLM's guided_* and
 * structured_outputs, llama.cpp's grammar and json_schema. All come to one kind and one value. */
#include "base/jsonscan.h"
#include "worker/api/api.h"

#include <string.h>

struct source {
    const char *name; /* of a field; dotted: within structured_outputs */
    enum api_format_kind kind;
};
static const struct source fields[] = {
    {"guided_json", API_FORMAT_SCHEMA},     {"json_schema", API_FORMAT_SCHEMA},
    {"guided_regex", API_FORMAT_REGEX},     {"guided_choice", API_FORMAT_CHOICE},
    {"guided_grammar", API_FORMAT_GRAMMAR}, {"grammar", API_FORMAT_GRAMMAR},
};
static const struct source outputs[] = {
    {"structured_outputs.json", API_FORMAT_SCHEMA},
    {"structured_outputs.regex", API_FORMAT_REGEX},
    {"structured_outputs.choice", API_FORMAT_CHOICE},
    {"structured_outputs.grammar", API_FORMAT_GRAMMAR},
    {"structured_outputs.json_object", API_FORMAT_OBJECT},
};

/* A schema may come as its text. */
static int read_schema(struct api_req *r, const json_t *v, struct api_err *e)
{
    struct api_format *f = &r->format;
    json_error_t je;

    f->value = v;
    if (json_is_object(v) || json_is_boolean(v)) return 0;
    if (!json_is_string(v))
        return api_wrong_type(e, f->field, "a JSON schema, as an object or a string");
    if (json_depth(json_string_value(v), json_string_length(v)) > JSON_DEPTH_MAX)
        return api_err_set(e, API_INVALID_VALUE, f->field,
                           "Invalid '%s': it is nested deeper than %d levels.", f->field,
                           JSON_DEPTH_MAX);
    f->own = json_loadb(json_string_value(v), json_string_length(v), JSON_DECODE_ANY, &je);
    f->value = f->own;
    if (!f->own)
        return api_err_set(e, API_INVALID_VALUE, f->field,
                           "Invalid '%s': the string is not JSON: %s (line %d).", f->field, je.text,
                           je.line);
    if (json_is_object(f->own) || json_is_boolean(f->own)) return 0;
    return api_wrong_type(e, f->field, "a JSON schema");
}

static int read_choices(struct api_req *r, const json_t *v, struct api_err *e)
{
    struct api_format *f = &r->format;

    f->value = v;
    if (!json_is_array(v)) return api_wrong_type(e, f->field, "an array of strings");
    if (json_array_size(v) == 0)
        return api_err_set(e, API_EMPTY_ARRAY, f->field,
                           "Invalid '%s': at least one choice is needed.", f->field);
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!json_is_string(json_array_get(v, i)))
            return api_wrong_type(e, f->field, "an array of strings");
    return 0;
}

static int read_value(struct api_req *r, const struct source *s, const json_t *v, struct api_err *e)
{
    struct api_format *f = &r->format;

    if (f->kind != API_FORMAT_NONE)
        return api_err_set(e, API_INVALID_VALUE, s->name,
                           "'%s' and '%s' both say what the answer must be: only one can.",
                           f->field, s->name);
    f->kind = s->kind;
    f->field = s->name;
    switch (s->kind) {
    case API_FORMAT_SCHEMA:
        return read_schema(r, v, e);
    case API_FORMAT_CHOICE:
        return read_choices(r, v, e);
    case API_FORMAT_REGEX:
    case API_FORMAT_GRAMMAR:
        f->value = v;
        return json_is_string(v) ? 0 : api_wrong_type(e, s->name, "a string");
    case API_FORMAT_OBJECT:
        if (json_is_boolean(v)) f->kind = json_is_true(v) ? s->kind : API_FORMAT_NONE;
        return json_is_boolean(v) ? 0 : api_wrong_type(e, s->name, "a boolean");
    case API_FORMAT_NONE:
        break;
    }
    return 0;
}

static int read_response_format(struct api_req *r, const json_t *v, struct api_err *e)
{
    static const struct source object = {"response_format", API_FORMAT_OBJECT},
                               within = {"response_format.schema", API_FORMAT_SCHEMA},
                               schema = {"response_format.json_schema.schema", API_FORMAT_SCHEMA};
    const char *type = json_string_value(json_object_get(v, "type"));
    const json_t *inner = api_field(v, "json_schema");

    if (!json_is_object(v)) return api_wrong_type(e, "response_format", "an object");
    if (!type) return api_missing(e, "response_format.type", "");
    if (strcmp(type, "text") == 0) return 0;
    if (strcmp(type, "json_object") == 0) {
        const json_t *s = api_field(v, "schema"); /* llama.cpp's way */
        return s ? read_value(r, &within, s, e) : read_value(r, &object, json_true(), e);
    }
    if (strcmp(type, "json_schema") != 0)
        return api_err_set(e, API_UNSUPPORTED_PARAMETER, "response_format.type",
                           "Unsupported 'response_format.type': '%.60s'; there are 'text', "
                           "'json_object' and 'json_schema'.",
                           type);
    if (!json_is_object(inner))
        return api_wrong_type(e, "response_format.json_schema", "an object");
    if (!api_field(inner, "schema"))
        return api_missing(e, "response_format.json_schema.schema", "");
    return read_value(r, &schema, api_field(inner, "schema"), e);
}

static int read_outputs(struct api_req *r, const json_t *v, struct api_err *e)
{
    const char *key;
    json_t *x;

    if (!json_is_object(v)) return api_wrong_type(e, "structured_outputs", "an object");
    json_object_foreach((json_t *)v, key, x) {
        const struct source *s = NULL;
        for (size_t i = 0; !s && i < sizeof outputs / sizeof *outputs; i++)
            if (strcmp(strchr(outputs[i].name, '.') + 1, key) == 0) s = &outputs[i];
        if (json_is_null(x) || (!s && json_is_false(x))) continue; /* an option that is off */
        if (!s)
            return api_err_set(e, API_UNSUPPORTED_PARAMETER, "structured_outputs",
                               "Unsupported parameter: 'structured_outputs.%.60s'.", key);
        const int rc = read_value(r, s, x, e);
        if (rc < 0) return rc;
    }
    return 0;
}

int api_parse_format(struct api_req *r, struct api_err *e)
{
    const json_t *v = api_field(r->root, "response_format");
    int rc = v ? read_response_format(r, v, e) : 0;

    for (size_t i = 0; rc == 0 && i < sizeof fields / sizeof *fields; i++) {
        v = api_field(r->root, fields[i].name);
        if (v) rc = read_value(r, &fields[i], v, e);
    }
    v = api_field(r->root, "structured_outputs");
    return rc == 0 && v ? read_outputs(r, v, e) : rc;
}
