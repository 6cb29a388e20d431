/* Combined schemas as variants: allOf and $ref are merged into what stands beside them, anyOf and
 * oneOf multiply. A variant is a JSON object again, without these four words; where two schemas
 * meet in a part, the part becomes an allOf of both and is merged when it is its turn. */
#include "fusor/grammar/schema_int.h"

#include <stdlib.h>
#include <string.h>

/* ---- $ref ---- */

static int hex_of(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* One part of a pointer, unescaped; returns where it ends. */
static const char *pointer_part(const char *p, char *out, size_t cap)
{
    size_t n = 0;

    for (; *p && *p != '/' && n + 1 < cap; p++) {
        char c = *p;
        if (c == '%' && hex_of(p[1]) >= 0 && hex_of(p[2]) >= 0) {
            c = (char)(hex_of(p[1]) * 16 + hex_of(p[2]));
            p += 2;
        } else if (c == '~' && (p[1] == '0' || p[1] == '1')) {
            c = *++p == '0' ? '~' : '/';
        }
        out[n++] = c;
    }
    out[n] = 0;
    return p;
}

int schema_resolve(const struct schema *s, const json_t *schema, const struct where *at,
                   const json_t **ret)
{
    const char *ref = json_string_value(json_object_get(schema, "$ref")), *p = ref + 1;
    const json_t *v = s->root;
    char part[256];

    if (*ref != '#' || (ref[1] && ref[1] != '/'))
        return schema_fail(s, at, -ENOTSUP,
                           "'$ref' may name places of this schema ('#/…') alone, not '%.60s'", ref);
    while (v && *p == '/') {
        char *end;
        p = pointer_part(p + 1, part, sizeof part);
        const unsigned long i = strtoul(part, &end, 10);
        v = json_is_array(v) ? (*part && !*end ? json_array_get(v, i) : NULL)
                             : json_object_get(v, part);
    }
    if (!v || *p)
        return schema_fail(s, at, -EINVAL, "'$ref' names '%.60s', which is not there", ref);
    if (!json_is_object(v) && !json_is_boolean(v))
        return schema_fail(s, at, -EINVAL, "'$ref' names '%.60s', which is no schema", ref);
    *ret = v;
    return 0;
}

/* ---- merging two variants ---- */

static json_t *keep(struct schema *s, json_t *v) /* takes it over; NULL: no memory */
{
    return v && json_array_append_new(s->made, v) == 0 ? v : NULL;
}

/* An allOf of both; of what says nothing, or the same, the other one. New reference. */
static json_t *both_of(const json_t *a, const json_t *b)
{
    if (json_is_true(a) || json_equal(a, b)) return json_incref((json_t *)b);
    if (json_is_true(b)) return json_incref((json_t *)a);
    if (json_is_false(a) || json_is_false(b)) return json_false();
    return json_pack("{s:[O,O]}", "allOf", a, b);
}

static bool has_text(const json_t *array, const json_t *text)
{
    for (size_t i = 0; i < json_array_size(array); i++)
        if (json_equal(json_array_get(array, i), text)) return true;
    return false;
}

/* Both arrays' elements once each, or (common) those of both. */
static json_t *lists(const json_t *a, const json_t *b, bool common)
{
    json_t *out = json_array();

    for (size_t i = 0; i < json_array_size(a); i++) {
        json_t *x = json_array_get(a, i);
        if ((!common || has_text(b, x)) && !has_text(out, x)) json_array_append(out, x);
    }
    for (size_t i = 0; !common && i < json_array_size(b); i++)
        if (!has_text(out, json_array_get(b, i))) json_array_append(out, json_array_get(b, i));
    return out;
}

static json_t *as_list(const json_t *v)
{
    return json_is_array(v) ? json_incref((json_t *)v) : json_pack("[O]", v);
}

static json_t *as_lists(const json_t *a, const json_t *b)
{
    json_t *x = as_list(a), *y = as_list(b), *out = lists(x, y, false);

    json_decref(x);
    json_decref(y);
    return out;
}

static json_t *types_of_both(const json_t *a, const json_t *b)
{
    static const char *const names[] = {"null",   "boolean", "integer", "number",
                                        "string", "array",   "object"};
    const unsigned types = schema_types(a) & schema_types(b);
    json_t *out = json_array();

    for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
        if (types >> i & 1 && !((types & TYPE_NUMBER) && 1u << i == TYPE_INTEGER))
            json_array_append_new(out, json_string(names[i]));
    return out;
}

/* What `o` says of a member that it does not name: a schema (new), or NULL: nothing. */
static json_t *rest_for(const json_t *o, const char *name)
{
    json_t *add = json_object_get(o, "additionalProperties");

    return json_object_get(json_object_get(o, "properties"), name) ? NULL : json_incref(add);
}

/* Members of a; where b says something of them, too, of both. */
static void add_members(json_t *out, const json_t *a, const json_t *b, bool skip_known)
{
    const char *name;
    json_t *v;

    json_object_foreach(json_object_get(a, "properties"), name, v) {
        json_t *other = json_object_get(json_object_get(b, "properties"), name);
        json_t *rest = rest_for(b, name);
        if (other && skip_known) continue;
        if (other)
            json_object_set_new(out, name, both_of(v, other));
        else if (rest)
            json_object_set_new(out, name, both_of(v, rest));
        else
            json_object_set(out, name, v);
        json_decref(rest);
    }
}

/* Elements at the same place. */
static json_t *tuples(const json_t *a, const json_t *b)
{
    const json_t *x = json_object_get(a, "prefixItems"), *y = json_object_get(b, "prefixItems");
    const json_t *rest_x = json_object_get(a, "items"), *rest_y = json_object_get(b, "items");
    json_t *out = json_array();

    for (size_t i = 0; i < json_array_size(x) || i < json_array_size(y); i++) {
        const json_t *p = i < json_array_size(x) ? json_array_get(x, i) : rest_x;
        const json_t *q = i < json_array_size(y) ? json_array_get(y, i) : rest_y;
        json_array_append_new(out, !p   ? json_incref((json_t *)q)
                                   : !q ? json_incref((json_t *)p)
                                        : both_of(p, q));
    }
    return out;
}

/* A word that both have. New reference, NULL: they cannot be one. */
static json_t *merge_word(const char *key, const json_t *x, const json_t *y)
{
    const double a = json_number_value(x), b = json_number_value(y);

    if (json_equal(x, y)) return json_incref((json_t *)x);
    if (strncmp(key, "max", 3) == 0 || strcmp(key, "exclusiveMaximum") == 0)
        return json_incref((json_t *)(a < b ? x : y));
    if (strncmp(key, "min", 3) == 0 || strcmp(key, "exclusiveMinimum") == 0)
        return json_incref((json_t *)(a > b ? x : y));
    if (strcmp(key, "enum") == 0) return lists(x, y, true);
    if (strcmp(key, "required") == 0) return lists(x, y, false);
    if (strcmp(key, "pattern") == 0 || strcmp(key, "format") == 0) return as_lists(x, y);
    if (strcmp(key, "uniqueItems") == 0) return json_true();
    if (strcmp(key, "items") == 0 || strcmp(key, "additionalProperties") == 0 ||
        strcmp(key, "propertyNames") == 0)
        return both_of(x, y);
    if (strcmp(key, "multipleOf") == 0 && json_is_integer(x) && json_is_integer(y)) {
        json_int_t p = json_integer_value(x), q = json_integer_value(y);
        const json_int_t product = p * q;
        if (p < 1 || q < 1 || p > 1 << 20 || q > 1 << 20) return NULL;
        while (q) {
            const json_int_t t = p % q;
            p = q;
            q = t;
        }
        return json_integer(product / p);
    }
    return NULL;
}

static int merge_words(struct schema *s, json_t *out, const json_t *b, const struct where *at)
{
    const char *key;
    json_t *v;

    json_object_foreach((json_t *)b, key, v) {
        const json_t *own = json_object_get(out, key);
        if (strcmp(key, "properties") == 0 || strcmp(key, "prefixItems") == 0 ||
            strcmp(key, "type") == 0)
            continue; /* done */
        json_t *one = own ? merge_word(key, own, v) : json_incref(v);
        if (!one)
            return schema_fail(s, at, -ENOTSUP, "two different '%.40s' at once are not supported",
                               key);
        json_object_set_new(out, key, one);
    }
    return 0;
}

/* What meets a and b, both variants. Kept. */
static int merge(struct schema *s, const json_t *a, const json_t *b, const struct where *at,
                 const json_t **ret)
{
    const bool patterns =
        json_object_get(a, "patternProperties") || json_object_get(b, "patternProperties");
    const size_t mine = json_array_size(json_object_get(a, "required")) +
                        json_array_size(json_object_get(a, "enum")) + json_object_size(a);
    const size_t more = json_array_size(json_object_get(b, "required")) +
                        json_array_size(json_object_get(b, "enum")) + json_object_size(b);
    json_t *out;

    if (!schema_says(a) || !schema_says(b)) {
        *ret = schema_says(a) ? a : b;
        return 0;
    }
    if (schema_spend(s, at,
                     mine * (mine + more) + more * more +
                         json_object_size(json_object_get(a, "properties")) +
                         json_object_size(json_object_get(b, "properties"))) < 0)
        return -ERANGE;
    if (patterns)
        return schema_fail(s, at, -ENOTSUP,
                           "'patternProperties' of combined schemas are not supported");
    out = keep(s, json_copy((json_t *)a));
    if (!out) return -ENOMEM;
    if (json_object_get(a, "type") || json_object_get(b, "type"))
        json_object_set_new(out, "type", types_of_both(a, b));
    if (json_object_get(a, "properties") || json_object_get(b, "properties")) {
        json_t *members = json_object();
        add_members(members, a, b, false);
        add_members(members, b, a, true);
        json_object_set_new(out, "properties", members);
    }
    if (json_object_get(a, "prefixItems") || json_object_get(b, "prefixItems"))
        json_object_set_new(out, "prefixItems", tuples(a, b));
    *ret = out;
    return merge_words(s, out, b, at);
}

/* ---- variants ---- */

static bool combines(const char *key)
{
    return strcmp(key, "allOf") == 0 || strcmp(key, "anyOf") == 0 || strcmp(key, "oneOf") == 0 ||
           strcmp(key, "$ref") == 0;
}

/* The words of a schema that do not combine, in a new object. A const is an enum of one. */
static json_t *plain_words(const json_t *schema)
{
    json_t *out = json_object(), *v;
    const json_t *only = json_object_get(schema, "const");
    const char *key;

    json_object_foreach((json_t *)schema, key, v)
        if (!combines(key)) json_object_set(out, key, v);
    if (only) {
        json_t *one = json_pack("[O]", only), *all = json_object_get(out, "enum");
        json_object_del(out, "const");
        json_object_set_new(out, "enum", all ? lists(one, all, true) : json_incref(one));
        json_decref(one);
    }
    return out;
}

/* Every one of `with` with every one of `all`, which is replaced. */
static int multiply(struct schema *s, const struct where *at, const json_t *with, json_t **all)
{
    json_t *out = json_array();
    int rc = 0;

    if (json_array_size(*all) * json_array_size(with) > SCHEMA_VARIANTS_MAX)
        rc = schema_fail(s, at, -ERANGE, "there are more than %d ways to choose from its parts",
                         SCHEMA_VARIANTS_MAX);
    for (size_t i = 0; rc == 0 && i < json_array_size(*all); i++)
        for (size_t k = 0; rc == 0 && k < json_array_size(with); k++) {
            const json_t *one = NULL;
            rc = merge(s, json_array_get(*all, i), json_array_get(with, k), at, &one);
            if (rc == 0) json_array_append(out, (json_t *)one);
        }
    json_decref(*all);
    *all = out;
    return rc;
}

/* No variants of two different parts may have a value in common. */
static int check_apart(struct schema *s, const json_t *const *part, size_t n,
                       const struct where *at)
{
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < i * json_array_size(part[i]); k++) {
            const json_t *mine = json_array_get(part[i], k / i), *other = part[k % i];
            for (size_t x = 0; x < json_array_size(other); x++) {
                const int rc = schema_apart(s, mine, json_array_get(other, x), at);
                if (rc < 0) return rc;
                if (rc == 0)
                    return schema_fail(s, at, -ENOTSUP,
                                       "'oneOf': nothing tells the schemas %zu and %zu apart; "
                                       "use 'anyOf'",
                                       k % i, i);
            }
        }
    return 0;
}

static int multiply_choice(struct schema *s, const json_t *parts, bool one, const struct where *at,
                           json_t **all)
{
    const json_t *variants[SCHEMA_VARIANTS_MAX];
    const size_t n = json_array_size(parts);
    json_t *any = json_array();
    int rc = 0;

    if (n > SCHEMA_VARIANTS_MAX)
        rc = schema_fail(s, at, -ERANGE, "there are more than %d schemas to choose from",
                         SCHEMA_VARIANTS_MAX);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        rc = schema_variants(s, json_array_get(parts, i), at, &variants[i]);
        if (rc == 0) json_array_extend(any, (json_t *)variants[i]);
    }
    if (rc == 0 && one) rc = check_apart(s, variants, n, at);
    if (rc == 0) rc = multiply(s, at, any, all);
    json_decref(any);
    return rc;
}

static int add_parts(struct schema *s, const json_t *schema, const struct where *at, json_t **all)
{
    static const char *const choices[] = {"anyOf", "oneOf"};
    const json_t *x = NULL, *v;
    int rc = 0;

    if (json_object_get(schema, "$ref")) {
        rc = schema_resolve(s, schema, at, &v);
        if (rc == 0) rc = schema_variants(s, v, at, &x);
        if (rc == 0) rc = multiply(s, at, x, all);
    }
    v = json_object_get(schema, "allOf");
    for (size_t i = 0; rc == 0 && i < json_array_size(v); i++) {
        rc = schema_variants(s, json_array_get(v, i), at, &x);
        if (rc == 0) rc = multiply(s, at, x, all);
    }
    for (size_t i = 0; rc == 0 && i < 2; i++) {
        v = json_object_get(schema, choices[i]);
        if (v) rc = multiply_choice(s, v, i == 1, at, all);
    }
    return rc;
}

/* Recursion: through schemas within schemas, and names; both are limited. */
int schema_variants(struct schema *s, const json_t *schema, const struct where *at,
                    const json_t **ret)
{
    json_t *all = json_array();
    int rc = 0;

    if (json_is_boolean(schema)) {
        if (json_is_true(schema)) json_array_append_new(all, json_object());
        *ret = keep(s, all);
        return *ret ? 0 : -ENOMEM;
    }
    if (s->depth > SCHEMA_NEST_MAX || json_array_size(s->made) > SCHEMA_PARTS_MAX) {
        json_decref(all);
        return schema_fail(s, at, -ERANGE,
                           "schemas are nested too deep, or name each other in a circle");
    }
    s->depth++;
    rc = schema_spend(s, at, SCHEMA_PART_WORK * (1 + json_object_size(schema)));
    if (rc == 0) rc = schema_check_words(s, schema, at);
    json_array_append_new(all, plain_words(schema));
    if (rc == 0) rc = add_parts(s, schema, at, &all);
    s->depth--;
    *ret = keep(s, all);
    return rc < 0 ? rc : *ret ? 0 : -ENOMEM;
}
