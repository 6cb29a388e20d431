/* Lists, dictionaries, and what is the same for values of every type: truth, equality, order. */
#include "base/jsonscan.h"
#include "fusor/text/jinja_int.h"

#include <string.h>

const struct jinja_val jj_none = {.type = JINJA_NONE}, jj_undefined = {.type = JINJA_UNDEFINED};

/* ---- lists and dictionaries ---- */
struct jinja_list *jj_new_list(struct jinja_run *x, size_t n)
{
    struct jinja_list *l = jj_alloc(x, 1, sizeof *l);
    if (!l) return NULL;
    l->v = n ? jj_alloc(x, n, sizeof *l->v) : NULL;
    l->n = n;
    return x->status ? NULL : l;
}

struct jinja_val jj_of_list(const struct jinja_list *l)
{
    return l ? (struct jinja_val){.type = JINJA_LIST, .list = l} : jj_undefined;
}

struct jinja_val jj_pair(struct jinja_run *x, struct jinja_val a, struct jinja_val b)
{
    struct jinja_list *l = jj_new_list(x, 2);
    if (!l) return jj_undefined;
    l->v[0] = a;
    l->v[1] = b;
    l->tuple = true;
    return jj_of_list(l);
}

struct jinja_val jinja_list(struct jinja_run *x, size_t n, struct jinja_val **ret_items)
{
    struct jinja_list *l = jj_new_list(x, n);
    if (l) *ret_items = l->v;
    return jj_of_list(l);
}

struct jinja_val jinja_dict(struct jinja_run *x)
{
    struct jinja_dict *d = jj_alloc(x, 1, sizeof *d);
    return d ? (struct jinja_val){.type = JINJA_DICT, .dict = d} : jj_undefined;
}

static size_t find(struct jinja_run *x, const struct jinja_dict *d, struct jinja_val key)
{
    size_t i = 0;
    while (i < d->n && !jj_equal(x, d->key[i], key))
        i++;
    return i;
}

int jj_get(struct jinja_run *x, const struct jinja_dict *d, struct jinja_val key,
           struct jinja_val *ret)
{
    size_t i = find(x, d, key);
    if (i == d->n) return 0;
    *ret = d->val[i];
    return 1;
}

static void append(struct jinja_run *x, struct jinja_dict *d, struct jinja_val key,
                   struct jinja_val v)
{
    if (d->n == d->cap) {
        const size_t cap = d->cap ? 2 * d->cap : 4;
        struct jinja_val *both = jj_alloc(x, 2 * cap, sizeof *both);
        if (!both) return;
        if (d->n) memcpy(both, d->key, d->n * sizeof *both);
        if (d->n) memcpy(both + cap, d->val, d->n * sizeof *both);
        d->key = both;
        d->val = both + cap;
        d->cap = cap;
    }
    d->key[d->n] = key;
    d->val[d->n++] = v;
}

void jj_set(struct jinja_run *x, struct jinja_dict *d, struct jinja_val key, struct jinja_val v)
{
    size_t i = find(x, d, key);
    if (i < d->n)
        d->val[i] = v;
    else
        append(x, d, key, v);
}

void jinja_put(struct jinja_run *x, struct jinja_val dict, const char *key, struct jinja_val v)
{
    struct jinja_val k = jinja_text(x, key, strlen(key), JINJA_TEMPLATE);
    if (x->status == 0) jj_set(x, dict.dict, k, v);
}

static struct jinja_val from_json(struct jinja_run *x, const json_t *json, unsigned depth)
{
    struct jinja_val v = jj_none;
    const char *key;
    json_t *item;
    if (depth > JSON_DEPTH_MAX)
        return jj_fail(x, -ERANGE, "JSON of more than %d levels", JSON_DEPTH_MAX);
    switch (json ? json_typeof(json) : JSON_NULL) {
    case JSON_OBJECT:
        v = jinja_dict(x);
        json_object_foreach((json_t *)json, key, item) /* its keys are distinct */
        {
            if (x->status) break;
            append(x, v.dict, jinja_text(x, key, strlen(key), JINJA_INPUT),
                   from_json(x, item, depth + 1));
        }
        return v;
    case JSON_ARRAY: {
        struct jinja_list *l = jj_new_list(x, json_array_size(json));
        for (size_t i = 0; l && i < l->n && x->status == 0; i++)
            l->v[i] = from_json(x, json_array_get(json, i), depth + 1);
        return jj_of_list(l);
    }
    case JSON_STRING:
        return jinja_text(x, json_string_value(json), json_string_length(json), JINJA_INPUT);
    case JSON_INTEGER:
        return jj_int(json_integer_value(json));
    case JSON_REAL:
        v.type = JINJA_FLOAT;
        v.f = json_real_value(json);
        return v;
    case JSON_TRUE:
    case JSON_FALSE:
        return jinja_bool(json_is_true(json));
    default:
        return v;
    }
}

struct jinja_val jinja_json(struct jinja_run *x, const json_t *json)
{
    return from_json(x, json, 0);
}

/* ---- of every type ---- */
struct jinja_val jinja_bool(bool b)
{
    return (struct jinja_val){.type = JINJA_BOOL, .b = b};
}

struct jinja_val jj_int(int64_t i)
{
    return (struct jinja_val){.type = JINJA_INT, .i = i};
}

const char *jj_type_name(struct jinja_val v)
{
    static const char *const names[] = {
        [JINJA_UNDEFINED] = "undefined", [JINJA_NONE] = "None",
        [JINJA_BOOL] = "bool",           [JINJA_INT] = "int",
        [JINJA_FLOAT] = "float",         [JINJA_STR] = "str",
        [JINJA_LIST] = "list",           [JINJA_DICT] = "dict",
        [JINJA_NAMESPACE] = "namespace", [JINJA_LOOP] = "loop",
        [JINJA_MACRO] = "macro",         [JINJA_FUNCTION] = "function",
        [JINJA_METHOD] = "method"};
    return names[v.type];
}

bool jj_true(struct jinja_val v)
{
    switch (v.type) {
    case JINJA_UNDEFINED:
    case JINJA_NONE:
        return false;
    case JINJA_BOOL:
        return v.b;
    case JINJA_INT:
        return v.i != 0;
    case JINJA_FLOAT:
        return v.f != 0;
    case JINJA_STR:
        return v.s->len > 0;
    case JINJA_LIST:
        return v.list->n > 0;
    case JINJA_DICT:
        return v.dict->n > 0;
    default:
        return true;
    }
}

bool jj_number(struct jinja_val v, double *ret)
{
    if (v.type == JINJA_FLOAT)
        *ret = v.f;
    else if (v.type == JINJA_INT || v.type == JINJA_BOOL)
        *ret = v.type == JINJA_INT ? (double)v.i : v.b;
    else
        return false;
    return true;
}

bool jj_enter(struct jinja_run *x)
{
    jj_cost(x, 0);
    if (x->depth >= JJ_DEPTH_MAX)
        (void)jj_fail(x, -ERANGE, "it nests deeper than %d levels", JJ_DEPTH_MAX);
    if (x->status) return false;
    x->depth++;
    return true;
}

void jj_leave(struct jinja_run *x)
{
    x->depth--;
}

static bool equal_inside(struct jinja_run *x, struct jinja_val a, struct jinja_val b)
{
    if (a.type == JINJA_LIST) {
        bool same = a.list->n == b.list->n && a.list->tuple == b.list->tuple;
        for (size_t i = 0; same && i < a.list->n; i++)
            same = jj_equal(x, a.list->v[i], b.list->v[i]);
        return same;
    }
    bool same = a.dict->n == b.dict->n;
    for (size_t i = 0; same && i < a.dict->n; i++) {
        struct jinja_val other;
        same = jj_get(x, b.dict, a.dict->key[i], &other) && jj_equal(x, a.dict->val[i], other);
    }
    return same;
}

bool jj_equal(struct jinja_run *x, struct jinja_val a, struct jinja_val b)
{
    double u, v;
    jj_cost(x, 0);
    if (x->status) return false;
    if (a.type == JINJA_INT && b.type == JINJA_INT) return a.i == b.i;
    if (jj_number(a, &u) && jj_number(b, &v)) return u == v;
    if (a.type != b.type) return false;
    switch (a.type) {
    case JINJA_UNDEFINED:
    case JINJA_NONE:
        return true;
    case JINJA_STR:
        return a.s->len == b.s->len && jj_str_compare(x, a.s, b.s) == 0;
    case JINJA_LIST:
    case JINJA_DICT: {
        if (!jj_enter(x)) return false;
        bool same = equal_inside(x, a, b);
        jj_leave(x);
        return same;
    }
    case JINJA_NAMESPACE:
        return a.dict == b.dict;
    default:
        return a.macro == b.macro;
    }
}

int jj_compare(struct jinja_run *x, struct jinja_val a, struct jinja_val b)
{
    double u, v;
    if (a.type == JINJA_INT && b.type == JINJA_INT) return a.i < b.i ? -1 : a.i > b.i;
    if (jj_number(a, &u) && jj_number(b, &v)) return u < v ? -1 : u > v;
    if (a.type == JINJA_STR && b.type == JINJA_STR) return jj_str_compare(x, a.s, b.s);
    if (a.type == JINJA_LIST && b.type == JINJA_LIST && jj_enter(x)) {
        int d = 0;
        for (size_t i = 0; d == 0 && i < a.list->n && i < b.list->n && x->status == 0; i++)
            d = jj_equal(x, a.list->v[i], b.list->v[i]) ? 0
                                                        : jj_compare(x, a.list->v[i], b.list->v[i]);
        jj_leave(x);
        return d ? d : a.list->n < b.list->n ? -1 : a.list->n > b.list->n;
    }
    (void)jj_fail(x, -EINVAL, "no order between %s and %s (line %u)", jj_type_name(a),
                  jj_type_name(b), x->line);
    return 0;
}

bool jj_contains(struct jinja_run *x, struct jinja_val in, struct jinja_val what)
{
    struct jinja_val ignored;
    if (in.type == JINJA_UNDEFINED) return false;
    if (in.type == JINJA_DICT) return jj_get(x, in.dict, what, &ignored) == 1;
    if (in.type == JINJA_STR && what.type == JINJA_STR) {
        const char *h = jj_flat(x, in.s), *n = jj_flat(x, what.s);
        return h && n && memmem(h, in.s->len, n, what.s->len) != NULL;
    }
    if (in.type == JINJA_LIST) {
        bool found = false;
        for (size_t i = 0; !found && i < in.list->n && x->status == 0; i++)
            found = jj_equal(x, in.list->v[i], what);
        return found;
    }
    (void)jj_fail(x, -EINVAL, "%s cannot be in %s (line %u)", jj_type_name(what), jj_type_name(in),
                  x->line);
    return false;
}

/* Of a string: its characters. */
static const struct jinja_list *characters(struct jinja_run *x, const struct jinja_str *s)
{
    struct jinja_list *l = jj_new_list(x, jj_chars(x, s));
    size_t n = 0, at = 0;
    for (size_t k = 0; l && k < s->n && x->status == 0; k++) {
        const struct jinja_seg *seg = &s->seg[k];
        for (size_t b = 0, e; b < seg->len; b = e, at++) {
            for (e = b + 1; e < seg->len && ((unsigned char)seg->p[e] & 0xC0) == 0x80;)
                e++;
            if (n < l->n) l->v[n++] = jinja_text(x, seg->p + b, e - b, seg->mark);
        }
    }
    return x->status ? NULL : l;
}

const struct jinja_list *jj_items(struct jinja_run *x, struct jinja_val v)
{
    if (v.type == JINJA_LIST) return v.list;
    if (v.type == JINJA_STR) return characters(x, v.s);
    if (v.type == JINJA_UNDEFINED) return jj_new_list(x, 0);
    if (v.type != JINJA_DICT) {
        (void)jj_fail(x, -EINVAL, "%s cannot be looped over (line %u)", jj_type_name(v), x->line);
        return NULL;
    }
    struct jinja_list *l = jj_new_list(x, v.dict->n);
    for (size_t i = 0; l && i < l->n; i++)
        l->v[i] = v.dict->key[i];
    return l;
}

/* ---- order ---- */

/* Merges the sorted runs [0, n) and [n, n + m) of `from` into `to`. */
static void merge(struct jinja_run *x, const struct jinja_val *v, const size_t *from, size_t n,
                  size_t m, size_t *to)
{
    size_t i = 0, k = 0;
    while (i < n || k < m) {
        jj_cost(x, 0);
        const bool first = k == m || (i < n && jj_compare(x, v[from[i]], v[from[n + k]]) <= 0);
        *to++ = first ? from[i++] : from[n + k++];
    }
}

size_t *jj_order(struct jinja_run *x, const struct jinja_val *v, size_t n)
{
    size_t *a = jj_alloc(x, n + 1, sizeof *a), *b = jj_alloc(x, n + 1, sizeof *b);
    if (!a || !b) return NULL;
    for (size_t i = 0; i < n; i++)
        a[i] = i;
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t at = 0; at < n; at += 2 * width) {
            const size_t left = n - at < width ? n - at : width;
            const size_t right = n - at - left < width ? n - at - left : width;
            merge(x, v, a + at, left, right, b + at);
        }
        size_t *swap = a;
        a = b;
        b = swap;
    }
    return x->status ? NULL : a;
}
