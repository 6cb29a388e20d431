/* Statements, and the life of a run. What is written goes to x->out, which macros and blocks that
 * capture their text replace for a while. A loop's body, a macro and a captured block have a scope
 * of their own: what they set is not seen outside, which is why templates use namespaces. */
#include "base/assert.h"
#include "fusor/text/jinja_eval.h"

#include <string.h>

enum flow { GO_ON, BREAK, CONTINUE };

static enum flow exec(struct jinja_run *x, const struct jj_node *n);

static struct jinja_val captured(struct jinja_run *x, const struct jj_node *body)
{
    struct jj_sb text = {.x = x}, *out = x->out;
    x->out = &text;
    (void)exec(x, body); /* a captured block has no loop of its own to leave */
    x->out = out;
    return jj_of_str(jj_sb_done(&text));
}

static struct jj_scope *push_scope(struct jinja_run *x, struct jj_scope *up)
{
    struct jj_scope *s = jj_alloc(x, 1, sizeof *s);
    if (s) s->up = up;
    return s;
}

/* ---- set ---- */
static void set_one(struct jinja_run *x, const struct jj_node *to, struct jinja_val v)
{
    if (to->kind == JJ_NAME) {
        jj_assign(x, x->scope, to->name, v);
        return;
    }
    struct jinja_val ns = jj_eval(x, to->a);
    if (x->status) return;
    if (ns.type != JINJA_NAMESPACE)
        (void)jj_fail(x, -EINVAL, "only a namespace's fields can be set (line %u)", x->line);
    else
        jj_set(x, ns.dict, jinja_text(x, to->name->s, to->name->len, JINJA_TEMPLATE), v);
}

static void set(struct jinja_run *x, const struct jj_node *to, struct jinja_val v)
{
    if (x->status) return;
    if (to->kind != JJ_LIST) {
        set_one(x, to, v);
        return;
    }
    const struct jinja_list *l = jj_items(x, v);
    if (l && l->n != to->n_args)
        (void)jj_fail(x, -EINVAL, "%zu values for %u names (line %u)", l->n, to->n_args, x->line);
    for (uint32_t i = 0; l && i < to->n_args && x->status == 0; i++)
        set_one(x, to->args[i].node, l->v[i]);
}

/* The body's text, through a filter that knows it as "". */
static struct jinja_val through(struct jinja_run *x, const struct jj_node *body,
                                const struct jj_node *filter)
{
    struct jj_scope *up = x->scope, *s = push_scope(x, up);
    if (!s) return jj_undefined;
    x->scope = s;
    struct jinja_val v = captured(x, body);
    if (filter) {
        jj_assign(x, s, jj_known(x->t, "", 0), v);
        v = jj_eval(x, filter);
    }
    x->scope = up;
    return x->status ? jj_undefined : v;
}

/* ---- for ---- */
static const struct jinja_list *chosen(struct jinja_run *x, const struct jj_node *n,
                                       const struct jinja_list *all, struct jj_scope *s)
{
    struct jinja_list *l = jj_new_list(x, all->n);
    size_t k = 0;
    for (size_t i = 0; l && i < all->n && x->status == 0; i++) {
        s->n = 0;
        set(x, n->target, all->v[i]);
        if (jj_true(jj_eval(x, n->b))) l->v[k++] = all->v[i];
    }
    if (l) l->n = k;
    return x->status ? NULL : l;
}

static enum flow loop(struct jinja_run *x, const struct jj_node *n)
{
    struct jinja_val over = jj_eval(x, n->a);
    const struct jinja_list *l = x->status ? NULL : jj_items(x, over);
    struct jj_scope *up = x->scope, *s = push_scope(x, up);
    if (!l || !s) return GO_ON;
    x->scope = s;
    if (n->b) l = chosen(x, n, l, s);
    struct jinja_loop *state = jj_alloc(x, 1, sizeof *state);
    const struct jj_name *name = jj_known(x->t, "loop", 4);
    enum flow flow = GO_ON;
    for (size_t i = 0; l && state && i < l->n && flow != BREAK && x->status == 0; i++) {
        *state = (struct jinja_loop){l, i, x->loops + 1};
        s->n = 0; /* nothing of the last round is left */
        if (name) jj_assign(x, s, name, (struct jinja_val){.type = JINJA_LOOP, .loop = state});
        set(x, n->target, l->v[i]);
        x->loops++;
        flow = exec(x, n->body);
        x->loops--;
    }
    x->scope = up;
    return l && l->n == 0 ? exec(x, n->other) : GO_ON;
}

/* ---- macros ---- */
static void bind_params(struct jinja_run *x, const struct jj_node *def,
                        const struct jinja_val *args, const struct jj_node *call)
{
    if (call->n_args > def->n_args) {
        (void)jj_fail(x, -EINVAL, "macro %.40s takes %u arguments (line %u)", def->name->s,
                      def->n_args, x->line);
        return;
    }
    for (uint32_t i = 0; i < call->n_args; i++) {
        const struct jj_name *name = call->args[i].name;
        uint32_t at = i;
        jj_cost(x, name ? 64 * (size_t)def->n_args : 0); /* a step each */
        for (at = name ? 0 : i; name && at < def->n_args && def->args[at].name != name;)
            at++;
        if (at == def->n_args) {
            (void)jj_fail(x, -EINVAL, "macro %.40s takes no '%.40s' (line %u)", def->name->s,
                          name->s, x->line);
            return;
        }
        jj_assign(x, x->scope, def->args[at].name, args[i]);
    }
    for (uint32_t i = 0; i < def->n_args && x->status == 0; i++) {
        const struct jj_arg *p = &def->args[i];
        if (jj_find_var(x->scope, p->name)) continue;
        struct jinja_val missing = {.type = JINJA_UNDEFINED, .name = p->name->s};
        jj_assign(x, x->scope, p->name, p->node ? jj_eval(x, p->node) : missing);
    }
}

struct jinja_val jj_call_macro(struct jinja_run *x, const struct jinja_macro *m,
                               const struct jinja_val *args, const struct jj_node *call)
{
    struct jj_scope *here = x->scope, *s = push_scope(x, m->scope);
    const unsigned loops = x->loops;
    struct jinja_val v = jj_undefined;
    if (!s || !jj_enter(x)) return v;
    x->scope = s;
    x->loops = 0;
    bind_params(x, m->def, args, call);
    if (x->status == 0) v = captured(x, m->def->body);
    x->loops = loops;
    x->scope = here;
    jj_leave(x);
    return v;
}

static void define(struct jinja_run *x, const struct jj_node *n)
{
    struct jinja_macro *m = jj_alloc(x, 1, sizeof *m);
    if (!m) return;
    *m = (struct jinja_macro){n, x->scope};
    jj_assign(x, x->scope, n->name, (struct jinja_val){.type = JINJA_MACRO, .macro = m});
}

/* ---- statements ---- */
static enum flow if_chain(struct jinja_run *x, const struct jj_node *n)
{
    for (; n && x->status == 0; n = n->other)
        if (!n->a || jj_true(jj_eval(x, n->a))) return exec(x, n->body);
    return GO_ON;
}

static enum flow wrapped(struct jinja_run *x, const struct jj_node *n)
{
    if (n->a) {
        jj_sb_str(x->out, jj_show(x, through(x, n->body, n->a)));
        return GO_ON;
    }
    struct jj_scope *up = x->scope, *s = push_scope(x, up);
    if (!s) return GO_ON;
    x->scope = s;
    enum flow flow = exec(x, n->body);
    x->scope = up;
    return flow;
}

static enum flow one(struct jinja_run *x, const struct jj_node *n)
{
    x->line = n->line;
    switch (n->kind) {
    case JJ_DATA:
        jj_sb_str(x->out, n->a->val.s);
        return GO_ON;
    case JJ_PRINT: {
        struct jinja_val v = jj_eval(x, n->a);
        if (x->status == 0) jj_sb_str(x->out, jj_show(x, v));
        return GO_ON;
    }
    case JJ_IF:
        return if_chain(x, n);
    case JJ_FOR:
        return loop(x, n);
    case JJ_SET:
        set(x, n->target, n->a ? jj_eval(x, n->a) : through(x, n->body, n->b));
        return GO_ON;
    case JJ_MACRO:
        define(x, n);
        return GO_ON;
    case JJ_WRAP:
        return wrapped(x, n);
    case JJ_BREAK:
        return BREAK;
    default:
        ASSERT(n->kind == JJ_CONTINUE);
        return CONTINUE;
    }
}

static enum flow exec(struct jinja_run *x, const struct jj_node *n)
{
    enum flow flow = GO_ON;
    if (!jj_enter(x)) return GO_ON;
    for (; n && flow == GO_ON && x->status == 0; n = n->next) {
        jj_cost(x, 0);
        flow = one(x, n);
    }
    jj_leave(x);
    return flow;
}

/* ---- the run ---- */
struct jinja_run *jinja_begin(const struct jinja *t, size_t input_bytes, int64_t now_s)
{
    enum { MEMORY = 64 << 20, PER_BYTE = 8 }; /* chosen: templates copy an input a few times */
    struct jinja_run *x = mem_zalloc(sizeof *x);
    if (!x) return NULL;
    arena_init(&x->arena);
    x->t = t;
    x->now_s = now_s;
    x->steps_left = JJ_STEPS_MAX;
    x->memory_max = x->memory_left = x->output_left =
        input_bytes > (SIZE_MAX - MEMORY) / PER_BYTE ? SIZE_MAX : MEMORY + PER_BYTE * input_bytes;
    x->scope = &x->root;
    return x;
}

void jinja_end(struct jinja_run *x)
{
    if (!x) return;
    arena_fini(&x->arena);
    mem_free(x);
}

void jinja_bind(struct jinja_run *x, const char *name, struct jinja_val v)
{
    const struct jj_name *n = jj_known(x->t, name, strlen(name));
    if (n) jj_assign(x, &x->root, n, v); /* else the template does not ask for it */
}

int jinja_render(struct jinja_run *x, const struct jinja_seg **ret, size_t *ret_n, struct err *err)
{
    struct jj_sb out = {.x = x};
    x->out = &out;
    if (x->status == 0) (void)exec(x, x->t->body);
    const struct jinja_str *s = jj_sb_done(&out);
    if (x->status) {
        if (err) *err = x->err;
        return x->status;
    }
    *ret = s->seg;
    *ret_n = s->n;
    return 0;
}
