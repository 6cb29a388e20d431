/* Expressions. Operators follow Python's rules for the types that a template sees; whole numbers
 * that 64 bits do not hold are an error. */
#include "fusor/text/jinja_eval.h"

#include <math.h>
#include <string.h>

static struct jinja_val undefined(const struct jj_name *name)
{
    return (struct jinja_val){.type = JINJA_UNDEFINED, .name = name ? name->s : NULL};
}

static struct jinja_val is_undefined(struct jinja_run *x, struct jinja_val v)
{
    return jj_fail(x, -EINVAL, "'%.60s' is undefined (line %u)", v.name ? v.name : "a value",
                   x->line);
}

/* ---- variables ---- */
struct jj_var *jj_find_var(const struct jj_scope *s, const struct jj_name *name)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->var[i].name == name) return &s->var[i];
    return NULL;
}

void jj_assign(struct jinja_run *x, struct jj_scope *s, const struct jj_name *name,
               struct jinja_val v)
{
    struct jj_var *var = jj_find_var(s, name);
    if (var) {
        var->val = v;
        return;
    }
    if (s->n == s->cap) {
        const size_t cap = s->cap ? 2 * s->cap : 4;
        struct jj_var *more = jj_alloc(x, cap, sizeof *more);
        if (!more) return;
        if (s->n) memcpy(more, s->var, s->n * sizeof *more);
        s->var = more;
        s->cap = cap;
    }
    s->var[s->n++] = (struct jj_var){name, v};
}

static struct jinja_val lookup(struct jinja_run *x, const struct jj_name *name)
{
    for (const struct jj_scope *s = x->scope; s; s = s->up) {
        const struct jj_var *var = jj_find_var(s, name);
        if (var) return var->val;
        jj_cost(x, s->n);
    }
    if (jj_function(name->s, name->len) || strcmp(name->s, "namespace") == 0 ||
        strcmp(name->s, "dict") == 0)
        return (struct jinja_val){.type = JINJA_FUNCTION, .name = name->s};
    return undefined(name);
}

/* ---- parts of a value ---- */
static struct jinja_val loop_attr(struct jinja_run *x, const struct jinja_loop *l, const char *name)
{
    const int64_t i = (int64_t)l->i, n = (int64_t)l->items->n;
    const struct {
        const char *name;
        struct jinja_val v;
    } all[] = {{"index", jj_int(i + 1)},
               {"index0", jj_int(i)},
               {"first", jinja_bool(i == 0)},
               {"last", jinja_bool(i + 1 == n)},
               {"length", jj_int(n)},
               {"revindex", jj_int(n - i)},
               {"revindex0", jj_int(n - i - 1)},
               {"depth", jj_int(l->depth)},
               {"depth0", jj_int(l->depth - 1)},
               {"previtem", i ? l->items->v[i - 1] : jj_undefined},
               {"nextitem", i + 1 < n ? l->items->v[i + 1] : jj_undefined}};
    (void)x;
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        if (strcmp(all[k].name, name) == 0) return all[k].v;
    return jj_undefined;
}

static struct jinja_val attr(struct jinja_run *x, struct jinja_val v, const struct jj_name *name)
{
    struct jinja_val found = undefined(name);
    if (v.type == JINJA_UNDEFINED) return is_undefined(x, v);
    if (v.type == JINJA_LOOP) return loop_attr(x, v.loop, name->s);
    if (v.type != JINJA_NAMESPACE && jj_method(v.type, name->s, name->len))
        return (struct jinja_val){.type = JINJA_METHOD, .name = name->s};
    if (v.type == JINJA_DICT || v.type == JINJA_NAMESPACE) {
        struct jinja_seg seg = {name->s, (uint32_t)name->len, JINJA_TEMPLATE};
        const struct jinja_str key = {.seg = &seg, .n = 1, .len = name->len};
        (void)jj_get(x, v.dict, jj_of_str(&key), &found);
    }
    return found;
}

/* Python's index: from the end where negative; false: outside. */
static bool place(struct jinja_val at, size_t n, size_t *ret)
{
    int64_t i = at.type == JINJA_BOOL ? at.b : at.i;
    if (i < 0) i += (int64_t)n;
    *ret = (size_t)i;
    return i >= 0 && (size_t)i < n;
}

struct jinja_val jj_item(struct jinja_run *x, struct jinja_val v, struct jinja_val at)
{
    struct jinja_val found = jj_undefined;
    size_t i;
    if (v.type == JINJA_UNDEFINED) return is_undefined(x, v);
    if (v.type == JINJA_DICT || v.type == JINJA_NAMESPACE) {
        if (jj_get(x, v.dict, at, &found)) return found;
    } else if (at.type == JINJA_INT || at.type == JINJA_BOOL) {
        if (v.type == JINJA_LIST && place(at, v.list->n, &i)) return v.list->v[i];
        if (v.type == JINJA_STR && place(at, jj_chars(x, v.s), &i))
            return jj_of_str(jj_sub(x, v.s, jj_char_at(x, v.s, i), jj_char_at(x, v.s, i + 1)));
        return found;
    }
    if (at.type != JINJA_STR || v.type == JINJA_NAMESPACE) return found;
    const char *p = jj_flat(x, at.s);
    const struct jj_word *w = p ? jj_method(v.type, p, at.s->len) : NULL;
    if (w) /* where there is no such key */
        return (struct jinja_val){.type = JINJA_METHOD, .name = w->name};
    return p ? undefined(jj_known(x->t, p, at.s->len)) : found;
}

/* A bound of a slice, within [low, high]. */
static int64_t bound(struct jinja_run *x, const struct jj_arg *a, int64_t n, int64_t low,
                     int64_t otherwise)
{
    struct jinja_val v = a->node ? jj_eval(x, a->node) : jj_none;
    if (v.type == JINJA_NONE) return otherwise;
    if (v.type != JINJA_INT) {
        (void)jj_fail(x, -EINVAL, "a slice takes whole numbers (line %u)", x->line);
        return low;
    }
    int64_t i = v.i;
    if (i < 0) i = i < -n ? low : i + n;
    if (i < 0) i = low;
    const int64_t high = low + n;
    return i > high ? high : i;
}

static struct jinja_val slice(struct jinja_run *x, const struct jj_node *n)
{
    struct jinja_val v = jj_eval(x, n->a), by = jj_none;
    if (n->args[2].node) by = jj_eval(x, n->args[2].node);
    const int64_t step = by.type == JINJA_INT ? by.i : 1;
    if (x->status) return jj_undefined;
    if (v.type == JINJA_UNDEFINED) return is_undefined(x, v);
    if (v.type != JINJA_LIST && v.type != JINJA_STR) return jj_undefined;
    if ((by.type != JINJA_NONE && by.type != JINJA_INT) || step == 0 || step == INT64_MIN)
        return jj_fail(x, -EINVAL, "a slice takes whole numbers but 0 (line %u)", x->line);
    const int64_t len = (int64_t)(v.type == JINJA_LIST ? v.list->n : jj_chars(x, v.s));
    const int64_t low = step > 0 ? 0 : -1;
    const int64_t from = bound(x, &n->args[0], len, low, step > 0 ? 0 : len - 1);
    const int64_t to = bound(x, &n->args[1], len, low, step > 0 ? len : -1);
    if (x->status) return jj_undefined;
    if (v.type == JINJA_STR && step == 1)
        return jj_of_str(from >= to ? jj_sub(x, v.s, 0, 0)
                                    : jj_sub(x, v.s, jj_char_at(x, v.s, (size_t)from),
                                             jj_char_at(x, v.s, (size_t)to)));
    const struct jinja_list *all = jj_items(x, v);
    const int64_t span = step > 0 ? to - from : from - to, each = step > 0 ? step : -step;
    struct jinja_list *l =
        all ? jj_new_list(x, span > 0 ? (size_t)((span - 1) / each + 1) : 0) : NULL;
    for (size_t i = 0; l && i < l->n; i++)
        l->v[i] = all->v[from + (int64_t)i * step];
    if (l && v.type == JINJA_LIST) l->tuple = v.list->tuple;
    static const struct jinja_str empty;
    return v.type == JINJA_LIST || !l ? jj_of_list(l) : jj_join_list(x, jj_of_list(l), &empty);
}

/* ---- operators ---- */
static const char *const op_names[] = {
    [JJ_ADD] = "+",       [JJ_SUB] = "-", [JJ_MUL] = "*", [JJ_DIV] = "/",
    [JJ_FLOORDIV] = "//", [JJ_MOD] = "%", [JJ_POW] = "**"};

static struct jinja_val cannot(struct jinja_run *x, enum jj_op op, struct jinja_val a,
                               struct jinja_val b)
{
    if (a.type == JINJA_UNDEFINED) return is_undefined(x, a);
    if (b.type == JINJA_UNDEFINED) return is_undefined(x, b);
    return jj_fail(x, -EINVAL, "no %s %s %s (line %u)", jj_type_name(a), op_names[op],
                   jj_type_name(b), x->line);
}

static struct jinja_val too_large(struct jinja_run *x)
{
    return jj_fail(x, -EINVAL, "a number is too large (line %u)", x->line);
}

static struct jinja_val power(struct jinja_run *x, int64_t a, int64_t b)
{
    int64_t r = 1;
    for (int64_t i = 0; i < b && r != 0 && a != 1; i++)
        if (a == -1 && b - i > 2)
            i = b - 2 - (b - i) % 2; /* only whether it is even counts */
        else if (__builtin_mul_overflow(r, a, &r))
            return too_large(x);
    return jj_int(r);
}

static struct jinja_val of_ints(struct jinja_run *x, enum jj_op op, int64_t a, int64_t b)
{
    int64_t r = 0;
    bool over = false;
    switch (op) {
    case JJ_ADD:
        over = __builtin_add_overflow(a, b, &r);
        break;
    case JJ_SUB:
        over = __builtin_sub_overflow(a, b, &r);
        break;
    case JJ_MUL:
        over = __builtin_mul_overflow(a, b, &r);
        break;
    case JJ_POW:
        return power(x, a, b);
    default: /* rounded down, as Python does */
        if (b == 0) return jj_fail(x, -EINVAL, "division by zero (line %u)", x->line);
        if (a == INT64_MIN && b == -1) return too_large(x);
        r = a / b - (a % b != 0 && (a < 0) != (b < 0));
        if (op == JJ_MOD) r = a - r * b;
    }
    return over ? too_large(x) : jj_int(r);
}

static struct jinja_val of_numbers(struct jinja_run *x, enum jj_op op, double a, double b)
{
    struct jinja_val v = {.type = JINJA_FLOAT};
    if ((op == JJ_DIV || op == JJ_FLOORDIV || op == JJ_MOD) && b == 0)
        return jj_fail(x, -EINVAL, "division by zero (line %u)", x->line);
    switch (op) {
    case JJ_ADD:
        v.f = a + b;
        break;
    case JJ_SUB:
        v.f = a - b;
        break;
    case JJ_MUL:
        v.f = a * b;
        break;
    case JJ_DIV:
        v.f = a / b;
        break;
    case JJ_FLOORDIV:
        v.f = floor(a / b);
        break;
    case JJ_MOD:
        v.f = a - b * floor(a / b);
        break;
    default:
        v.f = pow(a, b);
    }
    return v;
}

static struct jinja_val joined(struct jinja_run *x, const struct jinja_list *a,
                               const struct jinja_list *b)
{
    struct jinja_list *l = jj_new_list(x, a->n + b->n);
    if (!l) return jj_undefined;
    if (a->n) memcpy(l->v, a->v, a->n * sizeof *l->v);
    if (b->n) memcpy(l->v + a->n, b->v, b->n * sizeof *l->v);
    jj_cost(x, l->n * sizeof *l->v);
    l->tuple = a->tuple;
    return jj_of_list(l);
}

static struct jinja_val repeated(struct jinja_run *x, struct jinja_val v, int64_t times)
{
    struct jj_sb sb = {.x = x};
    if (v.type == JINJA_LIST) {
        const size_t n = v.list->n;
        size_t total;
        if (!size_mul(n, times > 0 ? (size_t)times : 0, &total)) total = SIZE_MAX;
        struct jinja_list *l = jj_new_list(x, total);
        for (size_t i = 0; l && i < total; i++)
            l->v[i] = v.list->v[i % n];
        if (l) l->tuple = v.list->tuple;
        return jj_of_list(l);
    }
    for (int64_t i = 0; v.s->n > 0 && i < times && x->status == 0; i++)
        jj_sb_str(&sb, v.s);
    return jj_of_str(jj_sb_done(&sb));
}

static struct jinja_val arithmetic(struct jinja_run *x, enum jj_op op, struct jinja_val a,
                                   struct jinja_val b)
{
    double u, v;
    if (x->status) return jj_undefined;
    if (jj_number(a, &u) && jj_number(b, &v)) {
        const bool whole = a.type != JINJA_FLOAT && b.type != JINJA_FLOAT;
        if (whole && op != JJ_DIV && !(op == JJ_POW && v < 0))
            return of_ints(x, op, a.type == JINJA_BOOL ? a.b : a.i,
                           b.type == JINJA_BOOL ? b.b : b.i);
        return of_numbers(x, op, u, v);
    }
    if (op == JJ_ADD && a.type == JINJA_STR && b.type == JINJA_STR)
        return jj_of_str(jj_join(x, a.s, b.s));
    if (op == JJ_ADD && a.type == JINJA_LIST && b.type == JINJA_LIST)
        return joined(x, a.list, b.list);
    const bool left = a.type == JINJA_STR || a.type == JINJA_LIST;
    const struct jinja_val what = left ? a : b, times = left ? b : a;
    if (op == JJ_MUL && (what.type == JINJA_STR || what.type == JINJA_LIST) &&
        (times.type == JINJA_INT || times.type == JINJA_BOOL))
        return repeated(x, what, times.type == JINJA_INT ? times.i : times.b);
    return cannot(x, op, a, b);
}

static struct jinja_val binary(struct jinja_run *x, const struct jj_node *n)
{
    struct jinja_val a = jj_eval(x, n->a);
    if (n->op == JJ_AND) return x->status || !jj_true(a) ? a : jj_eval(x, n->b);
    if (n->op == JJ_OR) return x->status || jj_true(a) ? a : jj_eval(x, n->b);
    struct jinja_val b = jj_eval(x, n->b);
    if (n->op == JJ_CONCAT) return jj_of_str(jj_join(x, jj_show(x, a), jj_show(x, b)));
    return arithmetic(x, n->op, a, b);
}

static bool relation(struct jinja_run *x, enum jj_op op, struct jinja_val a, struct jinja_val b)
{
    const bool order = op == JJ_LT || op == JJ_LE || op == JJ_GT || op == JJ_GE;
    if (order && (a.type == JINJA_UNDEFINED || b.type == JINJA_UNDEFINED)) {
        (void)is_undefined(x, a.type == JINJA_UNDEFINED ? a : b);
        return false;
    }
    switch (op) {
    case JJ_EQ:
        return jj_equal(x, a, b);
    case JJ_NE:
        return !jj_equal(x, a, b);
    case JJ_LT:
        return jj_compare(x, a, b) < 0;
    case JJ_LE:
        return jj_compare(x, a, b) <= 0;
    case JJ_GT:
        return jj_compare(x, a, b) > 0;
    case JJ_GE:
        return jj_compare(x, a, b) >= 0;
    case JJ_IN:
        return jj_contains(x, b, a);
    default:
        return !jj_contains(x, b, a);
    }
}

static struct jinja_val chain(struct jinja_run *x, const struct jj_node *n)
{
    struct jinja_val a = jj_eval(x, n->a);
    bool holds = true;
    for (uint32_t i = 0; holds && i < n->n_args && x->status == 0; i++) {
        struct jinja_val b = jj_eval(x, n->args[i].node);
        if (x->status == 0) holds = relation(x, n->args[i].op, a, b);
        a = b;
    }
    return jinja_bool(holds);
}

static struct jinja_val unary(struct jinja_run *x, const struct jj_node *n)
{
    struct jinja_val v = jj_eval(x, n->a);
    if (n->op == JJ_NOT) return jinja_bool(!jj_true(v));
    if (x->status) return jj_undefined;
    if (v.type == JINJA_FLOAT) v.f = n->op == JJ_NEG ? -v.f : v.f; /* zero has a sign */
    return v.type == JINJA_FLOAT ? v
                                 : arithmetic(x, n->op == JJ_NEG ? JJ_SUB : JJ_ADD, jj_int(0), v);
}

/* ---- literals and calls ---- */
static struct jinja_val list(struct jinja_run *x, const struct jj_node *n)
{
    struct jinja_list *l = jj_new_list(x, n->n_args);
    for (uint32_t i = 0; l && i < n->n_args && x->status == 0; i++)
        l->v[i] = jj_eval(x, n->args[i].node);
    if (l) l->tuple = n->op;
    return jj_of_list(l);
}

static struct jinja_val dict(struct jinja_run *x, const struct jj_node *n)
{
    struct jinja_val d = jinja_dict(x);
    for (uint32_t i = 0; i + 1 < n->n_args && x->status == 0; i += 2) {
        struct jinja_val key = jj_eval(x, n->args[i].node);
        jj_set(x, d.dict, key, jj_eval(x, n->args[i + 1].node));
    }
    return d;
}

/* namespace(a=1) and dict(a=1): whatever the names; both also take a dictionary to start from. */
static struct jinja_val fields(struct jinja_run *x, const struct jinja_val *args,
                               const struct jj_node *call, enum jinja_type type)
{
    struct jinja_val d = jinja_dict(x);
    for (uint32_t i = 0; i < call->n_args && x->status == 0; i++) {
        const struct jj_name *name = call->args[i].name;
        if (name) {
            jj_set(x, d.dict, jinja_text(x, name->s, name->len, JINJA_TEMPLATE), args[i]);
        } else if (args[i].type == JINJA_DICT) {
            for (size_t k = 0; k < args[i].dict->n && x->status == 0; k++)
                jj_set(x, d.dict, args[i].dict->key[k], args[i].dict->val[k]);
        } else {
            return jj_fail(x, -EINVAL, "%s takes names and dictionaries (line %u)",
                           type == JINJA_DICT ? "dict" : "namespace", x->line);
        }
    }
    if (x->status) return jj_undefined;
    d.type = type;
    return d;
}

static struct jinja_val *arguments(struct jinja_run *x, const struct jj_node *n)
{
    struct jinja_val *v = jj_alloc(x, n->n_args + 1, sizeof *v);
    for (uint32_t i = 0; v && i < n->n_args && x->status == 0; i++)
        v[i] = jj_eval(x, n->args[i].node);
    return x->status ? NULL : v;
}

static struct jinja_val call(struct jinja_run *x, const struct jj_node *n)
{
    struct jinja_val f = jj_eval(x, n->a), *args = arguments(x, n);
    if (!args) return jj_undefined;
    x->line = n->line;
    if (f.type == JINJA_UNDEFINED) return is_undefined(x, f);
    if (f.type == JINJA_MACRO) return jj_call_macro(x, f.macro, args, n);
    if (f.type != JINJA_FUNCTION)
        return jj_fail(x, -EINVAL, "%s cannot be called (line %u)", jj_type_name(f), x->line);
    const struct jj_word *w = jj_function(f.name, strlen(f.name));
    if (w) return jj_apply(x, w, jj_none, args, n);
    return fields(x, args, n, strcmp(f.name, "dict") == 0 ? JINJA_DICT : JINJA_NAMESPACE);
}

struct jinja_val jj_apply(struct jinja_run *x, const struct jj_word *w, struct jinja_val self,
                          const struct jinja_val *args, const struct jj_node *n)
{
    struct jinja_val arg[JJ_PARAMS_MAX] = {0};
    uint32_t given = 0;
    for (uint32_t i = 0; i < n->n_args; i++) {
        const struct jj_name *name = n->args[i].name;
        uint32_t at = i;
        if (name)
            for (at = 0; at < JJ_PARAMS_MAX; at++)
                if (w->param[at] && strcmp(w->param[at], name->s) == 0) break;
        if (at >= (name ? JJ_PARAMS_MAX : w->places))
            return jj_fail(x, -EINVAL, "%s takes no such argument (line %u)", w->name, x->line);
        arg[at] = args[i];
        given += at < w->need;
    }
    if (given < w->need)
        return jj_fail(x, -EINVAL, "%s needs %u arguments (line %u)", w->name, w->need, x->line);
    return w->fn(x, self, arg);
}

static struct jinja_val method(struct jinja_run *x, const struct jj_node *n)
{
    struct jinja_val self = jj_eval(x, n->a), *args = arguments(x, n);
    if (!args) return jj_undefined;
    x->line = n->line;
    if (self.type == JINJA_UNDEFINED) return is_undefined(x, self);
    const struct jj_word *w = jj_method(self.type, n->name->s, n->name->len);
    if (w) return jj_apply(x, w, self, args, n);
    return jj_fail(x, -EINVAL, "%s has no method %.40s (line %u)", jj_type_name(self), n->name->s,
                   x->line);
}

static struct jinja_val filtered(struct jinja_run *x, const struct jj_node *n)
{
    struct jinja_val self = jj_eval(x, n->a), *args = arguments(x, n);
    if (!args) return jj_undefined;
    x->line = n->line;
    struct jinja_val v = jj_apply(x, n->word, self, args, n);
    if (n->kind == JJ_TEST && x->status == 0) return jinja_bool(jj_true(v) != (n->op != 0));
    return v;
}

static struct jinja_val eval(struct jinja_run *x, const struct jj_node *n)
{
    switch (n->kind) {
    case JJ_CONST:
        return n->val;
    case JJ_NAME:
        return lookup(x, n->name);
    case JJ_LIST:
        return list(x, n);
    case JJ_DICT:
        return dict(x, n);
    case JJ_ATTR: {
        struct jinja_val v = jj_eval(x, n->a);
        x->line = n->line;
        return x->status ? jj_undefined : attr(x, v, n->name);
    }
    case JJ_ITEM: {
        struct jinja_val v = jj_eval(x, n->a), at = jj_eval(x, n->b);
        x->line = n->line;
        return x->status ? jj_undefined : jj_item(x, v, at);
    }
    case JJ_SLICE:
        return slice(x, n);
    case JJ_CALL:
        return call(x, n);
    case JJ_METHOD:
        return method(x, n);
    case JJ_FILTER:
    case JJ_TEST:
        return filtered(x, n);
    case JJ_UNARY:
        return unary(x, n);
    case JJ_BINARY:
        return binary(x, n);
    case JJ_CHAIN:
        return chain(x, n);
    default: { /* JJ_COND */
        struct jinja_val v = jj_eval(x, n->a);
        if (x->status) return jj_undefined;
        return jj_true(v) ? jj_eval(x, n->b) : n->c ? jj_eval(x, n->c) : jj_undefined;
    }
    }
}

struct jinja_val jj_eval(struct jinja_run *x, const struct jj_node *n)
{
    if (n->kind == JJ_CONST) return n->val;
    if (!jj_enter(x)) return jj_undefined;
    struct jinja_val v = eval(x, n);
    jj_leave(x);
    return x->status ? jj_undefined : v;
}
