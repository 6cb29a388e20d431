/* Values against schemas: which members of an enum are left by the words beside it, and whether the
 * schemas of a oneOf exclude each other. */
#include "fusor/grammar/schema_int.h"

#include <math.h>
#include <string.h>

static unsigned type_of_value(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_NULL:
        return TYPE_NULL;
    case JSON_TRUE:
    case JSON_FALSE:
        return TYPE_BOOLEAN;
    case JSON_STRING:
        return TYPE_STRING;
    case JSON_ARRAY:
        return TYPE_ARRAY;
    case JSON_OBJECT:
        return TYPE_OBJECT;
    case JSON_INTEGER:
        return TYPE_INTEGER;
    case JSON_REAL:
        break;
    }
    return json_real_value(v) == floor(json_real_value(v)) ? TYPE_INTEGER : TYPE_NUMBER;
}

static bool number_admits(const json_t *o, const json_t *value)
{
    const json_t *min = json_object_get(o, "minimum"), *max = json_object_get(o, "maximum"),
                 *above = json_object_get(o, "exclusiveMinimum"),
                 *below = json_object_get(o, "exclusiveMaximum"),
                 *factor = json_object_get(o, "multipleOf");
    const double x = json_number_value(value);

    if ((min && x < json_number_value(min)) || (max && x > json_number_value(max))) return false;
    if (above && x <= json_number_value(above)) return false;
    if (below && x >= json_number_value(below)) return false;
    if (!factor) return true;
    const double times = x / json_number_value(factor);
    return !(times < floor(times)) && !(times > floor(times));
}

static bool within(const json_t *o, const char *least, const char *most, size_t n)
{
    const json_t *min = json_object_get(o, least), *max = json_object_get(o, most);

    return (!min || (double)n >= json_number_value(min)) &&
           (!max || (double)n <= json_number_value(max));
}

static int array_admits(struct schema *s, const json_t *o, const json_t *value,
                        const struct where *at)
{
    const json_t *prefix = json_object_get(o, "prefixItems"), *items = json_object_get(o, "items");
    const size_t n = json_array_size(value);
    int rc = within(o, "minItems", "maxItems", n);

    for (size_t i = 0; rc == 1 && i < n; i++) {
        const json_t *of = i < json_array_size(prefix) ? json_array_get(prefix, i) : items;
        if (of) rc = schema_admits(s, of, json_array_get(value, i), at);
    }
    if (rc == 1 && schema_spend(s, at, n * n) < 0) return -ERANGE;
    for (size_t i = 0; rc == 1 && i < n && json_is_true(json_object_get(o, "uniqueItems")); i++)
        for (size_t k = 0; k < i; k++)
            if (json_equal(json_array_get(value, i), json_array_get(value, k))) return 0;
    return rc;
}

static int member_admits(struct schema *s, const json_t *o, const char *key, const json_t *v,
                         const struct where *at)
{
    const json_t *own = json_object_get(json_object_get(o, "properties"), key), *of;
    const json_t *rest = json_object_get(o, "additionalProperties");
    const char *pattern;
    bool named = own;
    int rc = own ? schema_admits(s, own, v, at) : 1;

    json_object_foreach(json_object_get(o, "patternProperties"), pattern, of) {
        const struct dfa *d = NULL;
        if (rc != 1) return rc;
        rc = schema_pattern_dfa(s, pattern, at, &d);
        if (rc < 0) return rc;
        const bool takes = dfa_takes(d, key, strlen(key));
        named |= takes;
        rc = takes ? schema_admits(s, of, v, at) : 1;
    }
    return rc == 1 && !named && rest ? schema_admits(s, rest, v, at) : rc;
}

static int object_admits(struct schema *s, const json_t *o, const json_t *value,
                         const struct where *at)
{
    const json_t *required = json_object_get(o, "required");
    const json_t *names = json_object_get(o, "propertyNames");
    int rc = within(o, "minProperties", "maxProperties", json_object_size(value));
    const char *key;
    json_t *v;

    for (size_t i = 0; i < json_array_size(required); i++)
        if (!json_object_get(value, json_string_value(json_array_get(required, i)))) return 0;
    json_object_foreach((json_t *)value, key, v) {
        if (rc == 1 && names) {
            json_t *name = json_string(key);
            rc = schema_admits(s, names, name, at);
            json_decref(name);
        }
        if (rc == 1) rc = member_admits(s, o, key, v, at);
        if (rc != 1) return rc;
    }
    return rc;
}

static int string_admits(struct schema *s, const json_t *o, const json_t *value,
                         const struct where *at)
{
    struct dfa *d = NULL;
    int rc = schema_string_dfa(s, o, at, &d);

    if (rc < 0 || !d) return rc < 0 ? rc : 1;
    rc = dfa_takes(d, json_string_value(value), json_string_length(value));
    dfa_free(d);
    return rc;
}

int schema_words_admit(struct schema *s, const json_t *o, const json_t *value,
                       const struct where *at)
{
    const unsigned type = type_of_value(value);

    if (!(schema_types(o) & type)) return 0;
    switch (type) {
    case TYPE_INTEGER:
    case TYPE_NUMBER:
        return number_admits(o, value);
    case TYPE_STRING:
        return string_admits(s, o, value, at);
    case TYPE_ARRAY:
        return array_admits(s, o, value, at);
    case TYPE_OBJECT:
        return object_admits(s, o, value, at);
    default:
        return 1;
    }
}

static bool same_value(const json_t *x, const json_t *y)
{
    if (!json_is_number(x) || !json_is_number(y)) return json_equal(x, y);
    return !(json_number_value(x) < json_number_value(y)) &&
           !(json_number_value(x) > json_number_value(y));
}

static int variant_admits(struct schema *s, const json_t *o, const json_t *value,
                          const struct where *at)
{
    const json_t *all = json_object_get(o, "enum");
    bool is_one = !all;
    int rc = schema_spend(s, at, 1 + json_array_size(all));

    for (size_t i = 0; !is_one && i < json_array_size(all); i++)
        is_one = same_value(json_array_get(all, i), value);
    if (rc < 0 || !is_one) return rc;
    return schema_words_admit(s, o, value, at);
}

/* Recursion: into the value, whose depth is limited. */
int schema_admits(struct schema *s, const json_t *schema, const json_t *value,
                  const struct where *at)
{
    const json_t *all;
    int rc = schema_variants(s, schema, at, &all);

    for (size_t i = 0; rc == 0 && i < json_array_size(all); i++)
        rc = variant_admits(s, json_array_get(all, i), value, at);
    return rc;
}

/* ---- schemas that exclude each other ---- */

static bool requires(const json_t *o, const char *name)
{
    const json_t *required = json_object_get(o, "required");

    for (size_t i = 0; i < json_array_size(required); i++)
        if (strcmp(json_string_value(json_array_get(required, i)), name) == 0) return true;
    return false;
}

/* No object that is made from a has a member of that name. */
static bool cannot_make(const json_t *a, const char *name)
{
    const json_t *members = json_object_get(a, "properties");
    const json_t *rest = json_object_get(a, "additionalProperties");

    if (json_object_get(members, name) || requires(a, name)) return false;
    if (json_object_get(a, "patternProperties")) return false;
    return rest ? json_is_false(rest) : members != NULL;
}

/* Each variant of x apart from each of y. */
static int parts_apart(struct schema *s, const json_t *x, const json_t *y, const struct where *at)
{
    const json_t *vx, *vy;
    int rc = schema_variants(s, x, at, &vx);

    if (rc == 0) rc = schema_variants(s, y, at, &vy);
    if (rc < 0) return rc;
    for (size_t i = 0; i < json_array_size(vx); i++)
        for (size_t k = 0; k < json_array_size(vy); k++) {
            rc = schema_apart(s, json_array_get(vx, i), json_array_get(vy, k), at);
            if (rc <= 0) return rc;
        }
    return 1;
}

/* No object that is made from a meets b. */
static int objects_apart(struct schema *s, const json_t *a, const json_t *b, const struct where *at)
{
    const json_t *required = json_object_get(b, "required");
    const size_t names = 1 + json_object_size(json_object_get(a, "properties"));
    const char *name;
    json_t *v;

    if (schema_spend(
            s, at,
            (names + json_array_size(required)) *
                (json_array_size(required) + json_array_size(json_object_get(a, "required")))) < 0)
        return -ERANGE;
    for (size_t i = 0; i < json_array_size(required); i++)
        if (cannot_make(a, json_string_value(json_array_get(required, i)))) return 1;
    json_object_foreach(json_object_get(a, "properties"), name, v) {
        const json_t *other = json_object_get(json_object_get(b, "properties"), name);
        if (requires(a, name) && !other &&
            json_is_false(json_object_get(b, "additionalProperties")) &&
            !json_object_get(b, "patternProperties"))
            return 1;
        if (!other || (!requires(a, name) && !requires(b, name))) continue;
        const int rc = parts_apart(s, v, other, at);
        if (rc != 0) return rc;
    }
    return 0;
}

/* All values of a's enum that meet a are none of b's. */
static int values_apart(struct schema *s, const json_t *a, const json_t *b, const struct where *at)
{
    const json_t *all = json_object_get(a, "enum");

    for (size_t i = 0; i < json_array_size(all); i++) {
        int rc = variant_admits(s, a, json_array_get(all, i), at);
        if (rc == 1) rc = variant_admits(s, b, json_array_get(all, i), at);
        if (rc != 0) return rc < 0 ? rc : 0;
    }
    return all != NULL;
}

int schema_apart(struct schema *s, const json_t *a, const json_t *b, const struct where *at)
{
    const unsigned made_a = schema_implied_types(a), made_b = schema_implied_types(b);
    const unsigned common = (made_a & schema_types(b)) | (made_b & schema_types(a));
    int rc;

    if (common == 0) return 1;
    if (s->depth > SCHEMA_NEST_MAX) return 0;
    rc = values_apart(s, a, b, at);
    if (rc == 0) rc = values_apart(s, b, a, at);
    if (rc != 0 || common != TYPE_OBJECT) return rc;
    s->depth++;
    rc = objects_apart(s, a, b, at);
    if (rc == 1) rc = objects_apart(s, b, a, at);
    s->depth--;
    return rc;
}
