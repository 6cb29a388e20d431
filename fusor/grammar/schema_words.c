/* The words of schemas: which there are, what they may be, what they say of types. */
#include "fusor/grammar/schema_int.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum word {         /* what its value has to be */
            W_NOTE, /* says nothing of values */
            W_TYPE,
            W_SCHEMA,
            W_SCHEMAS,    /* an array of them, not empty */
            W_SCHEMA_MAP, /* by name */
            W_NUMBER,
            W_COUNT,
            W_TEXT,
            W_TEXTS,
            W_ARRAY,
            W_BOOL,
            W_ANY,
};
static const struct {
    const char *name;
    enum word is;
    unsigned of; /* types of values that it says something of */
} words[] = {
    {"$comment", W_NOTE, 0},
    {"$defs", W_NOTE, 0},
    {"$id", W_NOTE, 0},
    {"$schema", W_NOTE, 0},
    {"contentEncoding", W_NOTE, 0},
    {"contentMediaType", W_NOTE, 0},
    {"contentSchema", W_NOTE, 0},
    {"default", W_NOTE, 0},
    {"definitions", W_NOTE, 0},
    {"deprecated", W_NOTE, 0},
    {"description", W_NOTE, 0},
    {"discriminator", W_NOTE, 0},
    {"example", W_NOTE, 0},
    {"examples", W_NOTE, 0},
    {"readOnly", W_NOTE, 0},
    {"title", W_NOTE, 0},
    {"writeOnly", W_NOTE, 0},
    {"$ref", W_TEXT, 0},
    {"additionalProperties", W_SCHEMA, TYPE_OBJECT},
    {"allOf", W_SCHEMAS, 0},
    {"anyOf", W_SCHEMAS, 0},
    {"const", W_ANY, 0},
    {"enum", W_ARRAY, 0},
    {"exclusiveMaximum", W_NUMBER, TYPE_NUMBER},
    {"exclusiveMinimum", W_NUMBER, TYPE_NUMBER},
    {"format", W_ANY, TYPE_STRING}, /* a text; of merged schemas several */
    {"items", W_SCHEMA, TYPE_ARRAY},
    {"maxItems", W_COUNT, TYPE_ARRAY},
    {"maxLength", W_COUNT, TYPE_STRING},
    {"maxProperties", W_COUNT, TYPE_OBJECT},
    {"maximum", W_NUMBER, TYPE_NUMBER},
    {"minItems", W_COUNT, TYPE_ARRAY},
    {"minLength", W_COUNT, TYPE_STRING},
    {"minProperties", W_COUNT, TYPE_OBJECT},
    {"minimum", W_NUMBER, TYPE_NUMBER},
    {"multipleOf", W_NUMBER, TYPE_NUMBER},
    {"oneOf", W_SCHEMAS, 0},
    {"pattern", W_ANY, TYPE_STRING}, /* likewise */
    {"patternProperties", W_SCHEMA_MAP, TYPE_OBJECT},
    {"prefixItems", W_SCHEMAS, TYPE_ARRAY},
    {"properties", W_SCHEMA_MAP, TYPE_OBJECT},
    {"propertyNames", W_SCHEMA, TYPE_OBJECT},
    {"required", W_TEXTS, TYPE_OBJECT},
    {"type", W_TYPE, 0},
    {"uniqueItems", W_BOOL, TYPE_ARRAY},
};
static const struct {
    const char *name;
    unsigned type;
} types[] = {{"null", TYPE_NULL},       {"boolean", TYPE_BOOLEAN},
             {"integer", TYPE_INTEGER}, {"number", TYPE_NUMBER | TYPE_INTEGER},
             {"string", TYPE_STRING},   {"array", TYPE_ARRAY},
             {"object", TYPE_OBJECT}};
#define N(a) (sizeof(a) / sizeof(*(a)))

void schema_place(const struct where *at, char *out, size_t cap)
{
    const struct where *path[SCHEMA_NEST_MAX * 4];
    size_t n = 0, len = 0;

    for (; at && n < N(path); at = at->up)
        if (at->key) path[n++] = at;
    len += (size_t)snprintf(out, cap, "#");
    while (n-- > 0 && len < cap)
        len += (size_t)snprintf(out + len, cap - len, "/%.40s", path[n]->key);
}

int schema_fail(const struct schema *s, const struct where *at, int code, const char *fmt, ...)
{
    char place[120], why[140];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    schema_place(at, place, sizeof place);
    return err_set(s->err, code, "at '%s': %s", place, why);
}

int schema_spend(struct schema *s, const struct where *at, size_t work)
{
    return gram_spend(s->b, work) < 0
               ? schema_fail(s, at, -ERANGE, "it takes too long to see what can meet it")
               : 0;
}

int schema_too_large(struct schema *s, const struct where *at, int rc, const char *what)
{
    if (rc != -ERANGE || schema_spend(s, at, 0) < 0) return rc;
    return schema_fail(s, at, rc, "%s too large (%d states)", what, DFA_STATES_MAX);
}

static bool is_type(const json_t *v)
{
    for (size_t i = 0; i < N(types); i++)
        if (json_is_string(v) && strcmp(json_string_value(v), types[i].name) == 0) return true;
    return false;
}

static bool is_schema(const json_t *v)
{
    return json_is_object(v) || json_is_boolean(v);
}

static bool all_of(const json_t *v, bool (*is)(const json_t *))
{
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!is(json_array_get(v, i))) return false;
    return json_is_array(v);
}

static bool is_text(const json_t *v)
{
    return json_is_string(v);
}

static bool is_schema_map(const json_t *v)
{
    const char *key;
    json_t *x;

    json_object_foreach((json_t *)v, key, x)
        if (!is_schema(x)) return false;
    return json_is_object(v);
}

/* What the value should be and is not; NULL: it is. */
static const char *wrong_value(enum word is, const json_t *v)
{
    switch (is) {
    case W_NOTE:
    case W_ANY:
        return NULL;
    case W_TYPE:
        return is_type(v) || all_of(v, is_type) ? NULL : "the name of a type, or several";
    case W_SCHEMA:
        return is_schema(v) ? NULL : "a schema";
    case W_SCHEMAS:
        return all_of(v, is_schema) && json_array_size(v) > 0 ? NULL : "an array of schemas";
    case W_SCHEMA_MAP:
        return is_schema_map(v) ? NULL : "an object of schemas";
    case W_NUMBER:
        return json_is_number(v) ? NULL : "a number";
    case W_COUNT:
        return json_is_number(v) && json_number_value(v) >= 0 &&
                       json_number_value(v) == floor(json_number_value(v))
                   ? NULL
                   : "a whole number that is not negative";
    case W_TEXT:
        return json_is_string(v) ? NULL : "a string";
    case W_TEXTS:
        return all_of(v, is_text) ? NULL : "an array of strings";
    case W_ARRAY:
        return json_is_array(v) ? NULL : "an array";
    case W_BOOL:
        return json_is_boolean(v) ? NULL : "a boolean";
    }
    return NULL;
}

int schema_check_words(const struct schema *s, const json_t *schema, const struct where *at)
{
    const char *key;
    json_t *v;

    json_object_foreach((json_t *)schema, key, v) {
        size_t i = 0;
        while (i < N(words) && strcmp(words[i].name, key) != 0)
            i++;
        if (i == N(words) && strncmp(key, "x-", 2) == 0) continue;
        if (i == N(words))
            return schema_fail(s, at, -ENOTSUP, "the keyword '%.60s' is not supported", key);
        const char *want = wrong_value(words[i].is, v);
        if (want) return schema_fail(s, at, -EINVAL, "'%s' must be %s", key, want);
    }
    return 0;
}

bool schema_says(const json_t *schema)
{
    for (size_t i = 0; i < N(words); i++)
        if (words[i].is != W_NOTE && json_object_get(schema, words[i].name)) return true;
    return false;
}

static unsigned type_of(const json_t *name)
{
    for (size_t i = 0; i < N(types); i++)
        if (strcmp(json_string_value(name), types[i].name) == 0) return types[i].type;
    return 0;
}

unsigned schema_types(const json_t *schema)
{
    const json_t *v = json_object_get(schema, "type");
    unsigned all = 0;

    if (!v) return TYPE_ALL;
    if (json_is_string(v)) return type_of(v);
    for (size_t i = 0; i < json_array_size(v); i++)
        all |= type_of(json_array_get(v, i));
    return all;
}

unsigned schema_implied_types(const json_t *schema)
{
    unsigned all = 0;

    if (json_object_get(schema, "type")) return schema_types(schema);
    for (size_t i = 0; i < N(words); i++)
        if (json_object_get(schema, words[i].name)) all |= words[i].of;
    if (all & TYPE_NUMBER) all |= TYPE_INTEGER;
    return all ? all : TYPE_ALL;
}

void schema_number_text(const json_t *v, char out[40])
{
    const double x = json_number_value(v);

    if (json_is_integer(v)) {
        (void)snprintf(out, 40, "%lld", (long long)json_integer_value(v));
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {
        (void)snprintf(out, 40, "%.*g", digits, x);
        if (!(strtod(out, NULL) < x) && !(strtod(out, NULL) > x)) return;
    }
}
