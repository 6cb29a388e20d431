/* Tokens to a tree, by recursive descent in jinja2's order of precedence. Recursion is bounded by
 * JJ_TREE_DEPTH_MAX, and so is the depth of the tree, which a long sum or chain of filters deepens
 * without it. A name that is not in the subset is an error here, not when it is reached. */
#include "base/buf.h"
#include "base/jsonscan.h"
#include "fusor/text/jinja_word.h"

#include <stdlib.h>
#include <string.h>

struct parse {
    struct jinja *t;
    const struct jj_tok *tok;
    struct err *err;
    unsigned depth, loops, macros;
    int status; /* the first failure; from then on every token is the last one */
    struct jj_tok end;
};

static void *refuse(struct parse *p, const char *why, const char *name, size_t len)
{
    if (p->status == 0)
        p->status =
            err_set(p->err, -ENOTSUP, "line %u: %s%s%.*s%s", p->tok->line, why, name ? " '" : "",
                    name ? (int)(len < 40 ? len : 40) : 0, name ? name : "", name ? "'" : "");
    p->end = (struct jj_tok){.type = JJ_T_END, .line = p->tok->line, .p = ""};
    p->tok = &p->end;
    return NULL;
}

static void *unexpected(struct parse *p)
{
    return p->tok->type == JJ_T_END ? refuse(p, "the template ends too early", NULL, 0)
                                    : refuse(p, "unexpected", p->tok->p, p->tok->len);
}

static void *alloc(struct parse *p, size_t size)
{
    void *m = p->status ? NULL : arena_alloc(&p->t->arena, size);
    if (!m && p->status == 0) p->status = err_set(p->err, -ENOMEM, "out of memory");
    return m;
}

static bool deeper(struct parse *p)
{
    if (++p->depth <= JJ_TREE_DEPTH_MAX) return p->status == 0;
    (void)refuse(p, "the template is nested too deeply", NULL, 0);
    return false;
}

/* ---- tokens ---- */
static bool is(const struct parse *p, enum jj_tok_type type, const char *s)
{
    return p->tok->type == type && strlen(s) == p->tok->len &&
           memcmp(p->tok->p, s, p->tok->len) == 0;
}

static void next(struct parse *p)
{
    if (p->tok->type != JJ_T_END) p->tok++;
}

static bool take(struct parse *p, const char *op)
{
    if (!is(p, JJ_T_OP, op)) return false;
    next(p);
    return true;
}

static bool take_word(struct parse *p, const char *word)
{
    if (!is(p, JJ_T_NAME, word)) return false;
    next(p);
    return true;
}

static void expect(struct parse *p, const char *op)
{
    if (!take(p, op)) (void)unexpected(p);
}

static void expect_type(struct parse *p, enum jj_tok_type type)
{
    if (p->tok->type == type)
        next(p);
    else
        (void)unexpected(p);
}

/* ---- names and nodes ---- */
static const struct jj_name *intern(struct parse *p, const char *s, size_t len)
{
    const struct jj_name *n = jj_intern(p->t, s, len);
    if (!n && p->status == 0) p->status = err_set(p->err, -ENOMEM, "out of memory");
    return n;
}

static const struct jj_name *take_name(struct parse *p)
{
    if (p->tok->type != JJ_T_NAME) return unexpected(p);
    const struct jj_name *n = intern(p, p->tok->p, p->tok->len);
    next(p);
    return n;
}

static void contain(struct parse *p, struct jj_node *n, const struct jj_node *child)
{
    if (!n || !child || child->depth < n->depth) return;
    n->depth = child->depth + 1;
    if (n->depth > JJ_TREE_DEPTH_MAX) (void)refuse(p, "an expression is too long", NULL, 0);
}

static struct jj_node *node(struct parse *p, enum jj_kind kind, struct jj_node *a,
                            struct jj_node *b)
{
    struct jj_node *n = alloc(p, sizeof *n);
    if (!n) return NULL;
    n->kind = kind;
    n->line = p->tok->line;
    n->a = a;
    n->b = b;
    contain(p, n, a);
    contain(p, n, b);
    return n;
}

static struct jj_node *op_node(struct parse *p, enum jj_kind kind, enum jj_op op, struct jj_node *a,
                               struct jj_node *b)
{
    struct jj_node *n = node(p, kind, a, b);
    if (n) n->op = op;
    return n;
}

static struct jj_arg *add_arg(struct parse *p, struct jj_node *n, const struct jj_name *name,
                              struct jj_node *value)
{
    if (!n || p->status) return NULL;
    if ((n->n_args & (n->n_args - 1)) == 0) {
        struct jj_arg *more = alloc(p, (n->n_args ? 2 * n->n_args : 1) * sizeof *more);
        if (!more) return NULL;
        if (n->n_args) memcpy(more, n->args, n->n_args * sizeof *more);
        n->args = more;
    }
    contain(p, n, value);
    struct jj_arg *a = &n->args[n->n_args++];
    *a = (struct jj_arg){.name = name, .node = value};
    return a;
}

static struct jj_node *constant(struct parse *p, struct jinja_val v)
{
    struct jj_node *n = node(p, JJ_CONST, NULL, NULL);
    if (n) n->val = v;
    return n;
}

/* The string's text must stay where it is. */
static struct jj_node *string(struct parse *p, const char *s, size_t len)
{
    struct jj_node *n = node(p, JJ_CONST, NULL, NULL);
    struct {
        struct jinja_str str;
        struct jinja_seg seg;
    } *both = alloc(p, sizeof *both);
    if (!n || !both) return NULL;
    both->seg = (struct jinja_seg){s, (uint32_t)len, JINJA_TEMPLATE};
    both->str = (struct jinja_str){.seg = &both->seg, .n = len > 0, .len = len};
    n->val = jj_of_str(&both->str);
    n->next = p->t->strings;
    p->t->strings = n;
    return n;
}

/* ---- expressions ---- */
static struct jj_node *expression(struct parse *p);
static struct jj_node *unary(struct parse *p, bool filters);
static struct jj_node *or_test(struct parse *p);

static struct jj_node *tuple(struct parse *p, bool cond)
{
    struct jj_node *first = cond ? expression(p) : or_test(p);
    if (!is(p, JJ_T_OP, ",")) return first;
    struct jj_node *n = node(p, JJ_LIST, NULL, NULL);
    if (n) n->op = 1;
    (void)add_arg(p, n, NULL, first);
    while (p->status == 0 && take(p, ",")) {
        if (is(p, JJ_T_OP, ")") || p->tok->type == JJ_T_BLOCK_END || p->tok->type == JJ_T_VAR_END)
            break;
        (void)add_arg(p, n, NULL, cond ? expression(p) : or_test(p));
    }
    return n;
}

static struct jj_node *round_brackets(struct parse *p)
{
    if (take(p, ")")) {
        struct jj_node *n = node(p, JJ_LIST, NULL, NULL);
        if (n) n->op = 1;
        return n;
    }
    struct jj_node *n = tuple(p, true);
    expect(p, ")");
    return n;
}

static struct jj_node *list(struct parse *p)
{
    struct jj_node *n = node(p, JJ_LIST, NULL, NULL);
    while (p->status == 0 && !take(p, "]")) {
        (void)add_arg(p, n, NULL, expression(p));
        if (!is(p, JJ_T_OP, "]")) expect(p, ",");
    }
    return n;
}

static struct jj_node *dict(struct parse *p)
{
    struct jj_node *n = node(p, JJ_DICT, NULL, NULL);
    while (p->status == 0 && !take(p, "}")) {
        (void)add_arg(p, n, NULL, expression(p));
        expect(p, ":");
        (void)add_arg(p, n, NULL, expression(p));
        if (!is(p, JJ_T_OP, "}")) expect(p, ",");
    }
    return n;
}

static struct jj_node *number_literal(struct parse *p)
{
    char s[64];
    size_t n = 0;
    for (size_t i = 0; i < p->tok->len; i++) {
        if (p->tok->p[i] == '_') continue;
        if (n + 1 == sizeof s) return refuse(p, "a number is too long", NULL, 0);
        s[n++] = p->tok->p[i];
    }
    s[n] = 0;
    struct jinja_val v = {.type = p->tok->type == JJ_T_INT ? JINJA_INT : JINJA_FLOAT};
    errno = 0;
    if (v.type == JINJA_INT)
        v.i = strtoll(s, NULL, 10);
    else
        v.f = strtod(s, NULL);
    if (errno) return refuse(p, "a number is too large", s, n);
    next(p);
    return constant(p, v);
}

static struct jj_node *strings(struct parse *p)
{
    const char *s = p->tok->p;
    size_t len = p->tok->len;
    struct buf b = BUF_INIT;
    next(p);
    if (p->tok->type == JJ_T_STR) { /* neighbours are one */
        (void)buf_add(&b, s, len);
        for (; p->tok->type == JJ_T_STR; next(p))
            (void)buf_add(&b, p->tok->p, p->tok->len);
        len = b.len;
        s = buf_status(&b) < 0 ? NULL : arena_strndup(&p->t->arena, b.data ? b.data : "", len);
        if (!s && p->status == 0) p->status = err_set(p->err, -ENOMEM, "out of memory");
        buf_fini(&b);
    }
    return s ? string(p, s, len) : NULL;
}

static struct jj_node *word(struct parse *p)
{
    static const char *const consts[] = {"true", "True", "false", "False", "none", "None"};
    static const char *const not_here[] = {"cycler", "joiner", "lipsum", "self", "super"};
    for (size_t i = 0; i < sizeof consts / sizeof *consts; i++)
        if (take_word(p, consts[i])) return constant(p, i < 4 ? jinja_bool(i < 2) : jj_none);
    for (size_t i = 0; i < sizeof not_here / sizeof *not_here; i++)
        if (is(p, JJ_T_NAME, not_here[i]))
            return refuse(p, "not in the subset:", p->tok->p, p->tok->len);
    bool in_call =
        is(p, JJ_T_NAME, "caller") || is(p, JJ_T_NAME, "varargs") || is(p, JJ_T_NAME, "kwargs");
    if (p->macros && in_call) return refuse(p, "not in the subset:", p->tok->p, p->tok->len);
    struct jj_node *n = node(p, JJ_NAME, NULL, NULL);
    const struct jj_name *name = take_name(p);
    if (n) n->name = name;
    return n;
}

static struct jj_node *primary(struct parse *p)
{
    if (p->tok->type == JJ_T_STR) return strings(p);
    if (p->tok->type == JJ_T_INT || p->tok->type == JJ_T_FLOAT) return number_literal(p);
    if (take(p, "(")) return round_brackets(p);
    if (take(p, "[")) return list(p);
    if (take(p, "{")) return dict(p);
    if (p->tok->type == JJ_T_NAME) return word(p);
    return unexpected(p);
}

/* Behind the opening bracket. */
static void call_args(struct parse *p, struct jj_node *n)
{
    bool named = false;
    while (p->status == 0 && !take(p, ")")) {
        const struct jj_name *name = NULL;
        if (p->tok->type == JJ_T_NAME && p->tok[1].type == JJ_T_OP && p->tok[1].len == 1 &&
            p->tok[1].p[0] == '=') {
            name = take_name(p);
            next(p);
            named = true;
        } else if (named || is(p, JJ_T_OP, "*") || is(p, JJ_T_OP, "**")) {
            (void)unexpected(p);
        }
        (void)add_arg(p, n, name, expression(p));
        if (!is(p, JJ_T_OP, ")")) expect(p, ",");
    }
}

static bool some_method(const struct jj_name *name)
{
    for (enum jinja_type t = JINJA_UNDEFINED; t <= JINJA_METHOD; t++)
        if (jj_method(t, name->s, name->len)) return true;
    return false;
}

static struct jj_node *call(struct parse *p, struct jj_node *what)
{
    if (what && what->kind == JJ_ATTR) {
        if (!some_method(what->name))
            return refuse(p, "not in the subset: method", what->name->s, what->name->len);
        what->kind = JJ_METHOD;
        call_args(p, what);
        return what;
    }
    struct jj_node *n = node(p, JJ_CALL, what, NULL);
    call_args(p, n);
    return n;
}

/* Behind the opening bracket: an index, or up to three parts between colons. */
static struct jj_node *subscript(struct parse *p, struct jj_node *of)
{
    struct jj_node *part[3] = {0};
    unsigned n = 0;
    while (p->status == 0 && !is(p, JJ_T_OP, "]")) {
        if (!is(p, JJ_T_OP, ":")) part[n] = expression(p);
        if (is(p, JJ_T_OP, "]")) break;
        expect(p, ":");
        if (++n > 2) (void)unexpected(p);
        if (p->status) return NULL;
    }
    if (n == 0 && !part[0]) (void)unexpected(p);
    expect(p, "]");
    if (n == 0) return node(p, JJ_ITEM, of, part[0]);
    struct jj_node *s = node(p, JJ_SLICE, of, NULL);
    for (unsigned i = 0; i < 3; i++)
        (void)add_arg(p, s, NULL, part[i]);
    return s;
}

static struct jj_node *postfix(struct parse *p, struct jj_node *n)
{
    while (p->status == 0) {
        if (take(p, ".")) {
            if (p->tok->type == JJ_T_INT) {
                n = node(p, JJ_ITEM, n, number_literal(p));
                continue;
            }
            n = node(p, JJ_ATTR, n, NULL);
            const struct jj_name *name = take_name(p);
            if (n) n->name = name;
        } else if (take(p, "[")) {
            n = subscript(p, n);
        } else if (take(p, "(")) {
            n = call(p, n);
        } else {
            break;
        }
    }
    return n;
}

static struct jj_node *filter(struct parse *p, struct jj_node *of)
{
    struct jj_node *n = node(p, JJ_FILTER, of, NULL);
    if (p->tok->type != JJ_T_NAME) return unexpected(p);
    const struct jj_word *w = jj_filter(p->tok->p, p->tok->len);
    if (!w) return refuse(p, "not in the subset: filter", p->tok->p, p->tok->len);
    next(p);
    if (n) n->word = w;
    if (take(p, "(")) call_args(p, n);
    return n;
}

/* Behind `is`. One argument may stand without brackets. */
static struct jj_node *test(struct parse *p, struct jj_node *of)
{
    struct jj_node *n = op_node(p, JJ_TEST, take_word(p, "not"), of, NULL);
    const struct jj_word *w = jj_test(p->tok->p, p->tok->len);
    if (p->tok->type != JJ_T_NAME && !is(p, JJ_T_NAME, "in")) return unexpected(p);
    if (!w) return refuse(p, "not in the subset: test", p->tok->p, p->tok->len);
    next(p);
    if (n) n->word = w;
    if (take(p, "("))
        call_args(p, n);
    else if (w->places > 0)
        (void)add_arg(p, n, NULL, postfix(p, primary(p)));
    return n;
}

static struct jj_node *filters(struct parse *p, struct jj_node *n)
{
    while (p->status == 0) {
        if (take(p, "|"))
            n = filter(p, n);
        else if (take_word(p, "is"))
            n = test(p, n);
        else if (take(p, "("))
            n = call(p, n);
        else
            break;
    }
    return n;
}

static struct jj_node *unary(struct parse *p, bool with_filters)
{
    struct jj_node *n = NULL;
    if (deeper(p)) {
        if (take(p, "-"))
            n = op_node(p, JJ_UNARY, JJ_NEG, unary(p, false), NULL);
        else if (take(p, "+"))
            n = op_node(p, JJ_UNARY, JJ_POS, unary(p, false), NULL);
        else
            n = primary(p);
        n = postfix(p, n);
        if (with_filters) n = filters(p, n);
    }
    p->depth--;
    return n;
}

static const struct level {
    struct {
        const char *s;
        enum jj_op op;
    } ops[5];
} levels[] = {{{{"+", JJ_ADD}, {"-", JJ_SUB}}},
              {{{"~", JJ_CONCAT}}},
              {{{"*", JJ_MUL}, {"/", JJ_DIV}, {"//", JJ_FLOORDIV}, {"%", JJ_MOD}}},
              {{{"**", JJ_POW}}}};

static struct jj_node *binary(struct parse *p, unsigned level)
{
    if (level == sizeof levels / sizeof *levels) return unary(p, true);
    struct jj_node *n = binary(p, level + 1);
    for (unsigned i = 0; p->status == 0 && levels[level].ops[i].s;) {
        if (!take(p, levels[level].ops[i].s)) {
            i++;
            continue;
        }
        n = op_node(p, JJ_BINARY, levels[level].ops[i].op, n, binary(p, level + 1));
        i = 0;
    }
    return n;
}

static bool comparison(struct parse *p, enum jj_op *ret)
{
    static const struct {
        const char *s;
        enum jj_op op;
    } ops[] = {{"==", JJ_EQ}, {"!=", JJ_NE}, {"<", JJ_LT},
               {"<=", JJ_LE}, {">", JJ_GT},  {">=", JJ_GE}};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        if (!take(p, ops[i].s)) continue;
        *ret = ops[i].op;
        return true;
    }
    if (take_word(p, "in")) {
        *ret = JJ_IN;
        return true;
    }
    if (!is(p, JJ_T_NAME, "not") || p->tok[1].type != JJ_T_NAME || p->tok[1].len != 2 ||
        memcmp(p->tok[1].p, "in", 2) != 0)
        return false;
    next(p);
    next(p);
    *ret = JJ_NOT_IN;
    return true;
}

static struct jj_node *compare(struct parse *p)
{
    struct jj_node *first = binary(p, 0), *n = NULL;
    enum jj_op op;
    while (p->status == 0 && comparison(p, &op)) {
        if (!n) n = node(p, JJ_CHAIN, first, NULL);
        struct jj_arg *a = add_arg(p, n, NULL, binary(p, 0));
        if (a) a->op = op;
    }
    return n ? n : first;
}

static struct jj_node *not_test(struct parse *p)
{
    struct jj_node *n = NULL;
    if (deeper(p)) {
        if (take_word(p, "not"))
            n = op_node(p, JJ_UNARY, JJ_NOT, not_test(p), NULL);
        else
            n = compare(p);
    }
    p->depth--;
    return n;
}

static struct jj_node *and_test(struct parse *p)
{
    struct jj_node *n = not_test(p);
    while (p->status == 0 && take_word(p, "and"))
        n = op_node(p, JJ_BINARY, JJ_AND, n, not_test(p));
    return n;
}

static struct jj_node *or_test(struct parse *p)
{
    struct jj_node *n = and_test(p);
    while (p->status == 0 && take_word(p, "or"))
        n = op_node(p, JJ_BINARY, JJ_OR, n, and_test(p));
    return n;
}

static struct jj_node *expression(struct parse *p)
{
    struct jj_node *n = NULL;
    if (deeper(p)) n = or_test(p);
    while (p->status == 0 && take_word(p, "if")) {
        struct jj_node *cond = node(p, JJ_COND, or_test(p), n);
        struct jj_node *other = take_word(p, "else") ? expression(p) : NULL;
        if (cond) cond->c = other;
        contain(p, cond, other);
        n = cond;
    }
    p->depth--;
    return n;
}

/* ---- statements ---- */
static struct jj_node *statements(struct parse *p, const char *const *ends);

/* A body up to one of the words, which is left to be read: NULL-terminated. */
static struct jj_node *body(struct parse *p, const char *const *ends)
{
    expect_type(p, JJ_T_BLOCK_END);
    return statements(p, ends);
}

/* One whose text is caught: no loop around it can be left from within. */
static struct jj_node *caught_body(struct parse *p, const char *const *ends)
{
    const unsigned loops = p->loops;
    p->loops = 0;
    struct jj_node *n = body(p, ends);
    p->loops = loops;
    return n;
}

static void end(struct parse *p, const char *word)
{
    if (!take_word(p, word)) (void)unexpected(p);
    expect_type(p, JJ_T_BLOCK_END);
}

static void hold(struct parse *p, struct jj_node *n, struct jj_node *inner)
{
    for (; inner && p->status == 0; inner = inner->next)
        contain(p, n, inner);
}

static struct jj_node *if_statement(struct parse *p)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL}, *const last[] = {"endif",
                                                                                        NULL};
    struct jj_node *first = NULL, **at = &first;
    do { /* a chain of elifs is a list, not a tower: jinja_run.c walks it in a loop */
        struct jj_node *n = node(p, JJ_IF, NULL, NULL);
        struct jj_node *cond = tuple(p, false), *then = body(p, ends);
        if (!n || p->status) return NULL;
        contain(p, n, cond);
        hold(p, n, then);
        n->a = cond;
        n->body = then;
        *at = n;
        at = &n->other;
        contain(p, first, n->body);
    } while (take_word(p, "elif"));
    if (take_word(p, "else")) {
        struct jj_node *n = node(p, JJ_IF, NULL, NULL);
        struct jj_node *other = body(p, last);
        hold(p, n, other);
        if (n) n->body = other;
        *at = n;
    }
    end(p, "endif");
    for (struct jj_node *n = first; n; n = n->other)
        if (n->depth > first->depth) first->depth = n->depth;
    return first;
}

/* a, or (a, b), or a, b; a.b where `attrs`. */
static struct jj_node *target(struct parse *p, bool attrs)
{
    const bool brackets = take(p, "(");
    struct jj_node *n = node(p, JJ_LIST, NULL, NULL);
    do {
        struct jj_node *one = node(p, JJ_NAME, NULL, NULL);
        const struct jj_name *name = take_name(p);
        if (one) one->name = name;
        if (attrs && take(p, ".")) {
            one = node(p, JJ_ATTR, one, NULL);
            name = take_name(p);
            if (one) one->name = name;
        }
        (void)add_arg(p, n, NULL, one);
    } while (p->status == 0 && take(p, ","));
    if (brackets) expect(p, ")");
    return n && n->n_args == 1 ? n->args[0].node : n;
}

static struct jj_node *for_statement(struct parse *p)
{
    static const char *const ends[] = {"else", "endfor", NULL}, *const last[] = {"endfor", NULL};
    struct jj_node *n = node(p, JJ_FOR, NULL, NULL), *to = target(p, false);
    if (!take_word(p, "in")) (void)unexpected(p);
    struct jj_node *in = tuple(p, false), *only = NULL;
    if (take_word(p, "if")) only = expression(p);
    if (is(p, JJ_T_NAME, "recursive")) return refuse(p, "not in the subset:", "recursive", 9);
    p->loops++;
    struct jj_node *inner = body(p, ends), *other = NULL;
    p->loops--;
    if (take_word(p, "else")) other = body(p, last);
    end(p, "endfor");
    if (!n || p->status) return NULL;
    n->target = to;
    n->a = in;
    n->b = only;
    n->body = inner;
    n->other = other;
    contain(p, n, in);
    contain(p, n, only);
    hold(p, n, inner);
    hold(p, n, other);
    return n;
}

/* What a block wrote, to its filter: a variable that nobody can name. */
static struct jj_node *captured(struct parse *p)
{
    struct jj_node *n = node(p, JJ_NAME, NULL, NULL);
    if (n) n->name = intern(p, "", 0);
    return n;
}

static struct jj_node *set_statement(struct parse *p)
{
    static const char *const ends[] = {"endset", NULL};
    struct jj_node *n = node(p, JJ_SET, NULL, NULL), *to = target(p, true);
    if (!n || p->status) return NULL;
    n->target = to;
    if (take(p, "=")) {
        n->a = tuple(p, true);
        contain(p, n, n->a);
        expect_type(p, JJ_T_BLOCK_END);
        return n;
    }
    n->b = is(p, JJ_T_OP, "|") ? filters(p, captured(p)) : NULL;
    n->body = caught_body(p, ends);
    end(p, "endset");
    contain(p, n, n->b);
    hold(p, n, n->body);
    return n;
}

static struct jj_node *macro(struct parse *p)
{
    static const char *const ends[] = {"endmacro", NULL};
    struct jj_node *n = node(p, JJ_MACRO, NULL, NULL);
    const struct jj_name *name = take_name(p);
    if (n) n->name = name;
    expect(p, "(");
    while (p->status == 0 && !take(p, ")")) {
        const struct jj_name *param = take_name(p);
        (void)add_arg(p, n, param, take(p, "=") ? expression(p) : NULL);
        if (!is(p, JJ_T_OP, ")")) expect(p, ",");
    }
    p->macros++;
    struct jj_node *inner = caught_body(p, ends);
    p->macros--;
    end(p, "endmacro");
    if (n) n->body = inner;
    hold(p, n, inner);
    return n;
}

static struct jj_node *wrap(struct parse *p, bool filtered)
{
    static const char *const filter_end[] = {"endfilter", NULL}, *const generation_end[] = {
                                                                     "endgeneration", NULL};
    struct jj_node *n = node(p, JJ_WRAP, NULL, NULL);
    struct jj_node *through = filtered ? filters(p, filter(p, captured(p))) : NULL;
    struct jj_node *inner = filtered ? caught_body(p, filter_end) : body(p, generation_end);
    end(p, filtered ? "endfilter" : "endgeneration");
    if (!n || p->status) return NULL;
    n->a = through;
    n->body = inner;
    contain(p, n, through);
    hold(p, n, inner);
    return n;
}

static struct jj_node *jump(struct parse *p, enum jj_kind kind)
{
    if (p->loops == 0) return refuse(p, "outside of a loop: break or continue", NULL, 0);
    struct jj_node *n = node(p, kind, NULL, NULL);
    expect_type(p, JJ_T_BLOCK_END);
    return n;
}

static struct jj_node *block(struct parse *p)
{
    if (p->tok->type != JJ_T_NAME) return unexpected(p);
    if (take_word(p, "if")) return if_statement(p);
    if (take_word(p, "for")) return for_statement(p);
    if (take_word(p, "set")) return set_statement(p);
    if (take_word(p, "macro")) return macro(p);
    if (take_word(p, "break")) return jump(p, JJ_BREAK);
    if (take_word(p, "continue")) return jump(p, JJ_CONTINUE);
    if (take_word(p, "filter")) return wrap(p, true);
    if (take_word(p, "generation")) return wrap(p, false);
    return refuse(p, "not in the subset: tag", p->tok->p, p->tok->len);
}

static bool at_end(const struct parse *p, const char *const *ends)
{
    for (size_t i = 0; ends && ends[i]; i++)
        if (is(p, JJ_T_NAME, ends[i])) return true;
    return false;
}

static struct jj_node *statements(struct parse *p, const char *const *ends)
{
    struct jj_node *first = NULL, **tail = &first;
    const bool ok = deeper(p);
    while (ok && p->status == 0) {
        struct jj_node *n = NULL;
        if (p->tok->type == JJ_T_DATA) {
            n = string(p, p->tok->p, p->tok->len);
            if (!n) break;
            struct jj_node *data = node(p, JJ_DATA, n, NULL);
            n = data;
            next(p);
        } else if (p->tok->type == JJ_T_VAR) {
            next(p);
            n = node(p, JJ_PRINT, tuple(p, true), NULL);
            expect_type(p, JJ_T_VAR_END);
        } else if (p->tok->type == JJ_T_BLOCK) {
            next(p);
            if (at_end(p, ends)) break;
            n = block(p);
        } else {
            if (ends || p->tok->type != JJ_T_END) (void)unexpected(p);
            break;
        }
        if (!n) break;
        *tail = n;
        tail = &n->next;
    }
    p->depth--;
    return first;
}

/* ---- entry points ---- */

/* A copy with one kind of line end, without the last one. NULL: no memory. */
static char *copy_source(struct jinja *t, const char *src, size_t *len)
{
    char *s = arena_alloc(&t->arena, *len + 1);
    size_t n = 0;
    for (size_t i = 0; s && i < *len; i++) {
        if (src[i] == '\r' && i + 1 < *len && src[i + 1] == '\n') continue;
        s[n++] = src[i] == '\r' ? '\n' : src[i];
    }
    if (s && n && s[n - 1] == '\n') s[--n] = 0;
    *len = n;
    return s;
}

static bool is_utf8(const char *s, size_t len)
{
    for (size_t i = 0, n; i < len; i += n)
        if ((n = json_utf8_len(s + i, len - i)) == 0) return false;
    return true;
}

int jinja_open(const char *src, size_t len, struct jinja **ret, struct err *err)
{
    if (len > JJ_SOURCE_MAX)
        return err_set(err, -ERANGE, "it has %zu bytes, at most %d are read", len, JJ_SOURCE_MAX);
    if (!is_utf8(src, len)) return err_set(err, -ENOTSUP, "it is not UTF-8");
    struct jinja *t = mem_zalloc(sizeof *t);
    if (!t) return err_set(err, -ENOMEM, "out of memory");
    arena_init(&t->arena);
    struct parse p = {.t = t, .err = err};
    struct jj_tok *tok = NULL;
    const char *copy = copy_source(t, src, &len);
    int r = copy ? jj_lex(&t->arena, copy, len, &tok, err) : err_set(err, -ENOMEM, "out of memory");
    p.tok = tok;
    if (r == 0) t->body = statements(&p, NULL);
    if (r == 0) r = p.status;
    if (r == 0)
        *ret = t;
    else
        jinja_close(t);
    return r;
}
