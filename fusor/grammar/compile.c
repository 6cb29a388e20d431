/* From nodes to a program: rules that are reachable, one after the other, each a stretch of code
 * that falls through from part to part. A rule in the last place of another is jumped to, not
 * called, so that loops written as rules (states of an automaton, optional members) cost no stack.
 * Texts of all sets and literals cut the bytes into classes that no part of the grammar tells
 * apart. */
#include "fusor/grammar/grammar_int.h"
#include "fusor/grammar/vocab.h"

#include <string.h>

enum { SET_STATES_MAX = 1 << 15 }; /* of all sets; chosen: 16 MiB of tables at most */

struct emit {
    struct gram_builder *b;
    struct buf code;   /* of struct instr */
    struct buf queue;  /* of uint32_t: rules, in the order in which they are met */
    uint32_t *rule_at; /* [rules] their first instruction; NO_PC */
    bool *queued;
    struct instr nowhere; /* what is written to once something failed */
    int status;
};
enum { NO_PC = UINT32_MAX };
/* While code is emitted, a target that is a rule has this bit. */
#define RULE_BIT 0x80000000u

static uint32_t here(const struct emit *e)
{
    return (uint32_t)GRAM_COUNT(e->code, struct instr);
}

static uint32_t emit_op(struct emit *e, enum op op, uint32_t a, uint32_t b)
{
    const struct instr i = {.op = (uint8_t)op, .a = a, .b = b};
    const uint32_t at = here(e);

    if (e->status == 0 && at >= GRAM_CODE_MAX) e->status = -ERANGE;
    if (e->status == 0) e->status = buf_add(&e->code, &i, sizeof i);
    return at;
}

static struct instr *code_at(struct emit *e, uint32_t pc)
{
    return e->status == 0 ? &GRAM_AT(e->code, struct instr, pc) : &e->nowhere;
}

static uint32_t rule_target(struct emit *e, uint32_t rule)
{
    if (!e->queued[rule]) {
        e->queued[rule] = true;
        if (e->status == 0) e->status = buf_add(&e->queue, &rule, sizeof rule);
    }
    return rule | RULE_BIT;
}

static void emit_node(struct emit *e, gram_node at, bool last, uint32_t room);

/* `last`: what is emitted returns. */
static void emit_alt(struct emit *e, const struct node *n, bool last, uint32_t room)
{
    uint32_t done = NO_PC; /* jumps to the end, each to the one before */

    if (n->b == 0) { /* no way on */
        emit_op(e, OP_JUMP, here(e), 0);
        return;
    }
    for (uint32_t i = 0; i < n->b; i++) {
        const bool more = i + 1 < n->b;
        const uint32_t split = more ? emit_op(e, OP_SPLIT, here(e) + 1, 0) : NO_PC;
        emit_node(e, GRAM_AT(e->b->kid, gram_node, n->a + i), last, room);
        if (more && !last) done = emit_op(e, OP_JUMP, done, 0);
        if (more) code_at(e, split)->b = here(e);
    }
    while (done != NO_PC && e->status == 0) {
        const uint32_t before = code_at(e, done)->a;
        code_at(e, done)->a = here(e);
        done = before;
    }
}

static void emit_repeat(struct emit *e, const struct node *n)
{
    const bool no_end = n->c == GRAM_NO_END;
    uint32_t out = NO_PC;

    for (uint32_t i = 0; i < n->b && e->status == 0; i++)
        emit_node(e, n->a, false, no_end ? GRAM_NO_END : n->c - i);
    if (no_end) {
        const uint32_t top = emit_op(e, OP_SPLIT, here(e) + 1, 0);
        emit_node(e, n->a, false, GRAM_NO_END);
        emit_op(e, OP_JUMP, top, 0);
        code_at(e, top)->b = here(e);
        return;
    }
    for (uint32_t i = n->b; i < n->c && e->status == 0; i++) {
        out = emit_op(e, OP_SPLIT, here(e) + 1, out);
        emit_node(e, n->a, false, n->c - i);
        code_at(e, out + 1)->chain = code_at(e, out + 1)->op == OP_CHAR && here(e) == out + 2;
    }
    while (out != NO_PC && e->status == 0) {
        const uint32_t before = code_at(e, out)->b;
        code_at(e, out)->b = here(e);
        out = before;
    }
}

/* room: how many of it may follow each other, if it is a set. Recursion: GRAM_NEST_MAX. */
static void emit_node(struct emit *e, gram_node at, bool last, uint32_t room)
{
    const struct node n = GRAM_AT(e->b->node, struct node, at);

    if (e->status < 0) return;
    switch ((enum node_kind)n.kind) {
    case NODE_LIT:
        for (uint32_t i = 0; i < n.b; i++)
            emit_op(e, OP_BYTE, (uint8_t)e->b->text.data[n.a + i], 0);
        break;
    case NODE_SET:
        emit_op(e, OP_CHAR, n.a, room);
        break;
    case NODE_SEQ:
        for (uint32_t i = 0; i < n.b; i++)
            emit_node(e, GRAM_AT(e->b->kid, gram_node, n.a + i), last && i + 1 == n.b, 1);
        if (last && n.b > 0) return;
        break;
    case NODE_ALT:
        emit_alt(e, &n, last, room);
        return;
    case NODE_REPEAT:
        emit_repeat(e, &n);
        break;
    case NODE_RULE:
        emit_op(e, last ? OP_JUMP : OP_CALL, rule_target(e, n.a), 0);
        if (last) return;
        break;
    }
    if (last) emit_op(e, OP_RETURN, 0, 0);
}

/* The program; instruction 0 is the end. */
static void emit_all(struct emit *e, gram_node start)
{
    emit_op(e, OP_END, 0, 0);
    emit_node(e, start, true, 1);
    for (size_t i = 0; e->status == 0 && i < GRAM_COUNT(e->queue, uint32_t); i++) {
        const uint32_t rule = GRAM_AT(e->queue, uint32_t, i);
        const gram_node what = GRAM_AT(e->b->rule, struct rule, rule).what;
        e->rule_at[rule] = here(e);
        if (what == GRAM_NONE)
            emit_op(e, OP_JUMP, here(e), 0);
        else
            emit_node(e, what, true, 1);
    }
    for (uint32_t pc = 0; e->status == 0 && pc < here(e); pc++) {
        struct instr *in = code_at(e, pc);
        if ((in->op == OP_JUMP || in->op == OP_CALL) && (in->a & RULE_BIT))
            in->a = e->rule_at[in->a & ~RULE_BIT];
    }
}

/* ---- sets ---- */

static bool holds_prose(const struct gram_builder *b, const struct set *s)
{
    const struct gram_range *r = &GRAM_AT(b->range, struct gram_range, s->first);
    static const struct gram_range prose[] = {
        {0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0xD7FF}, {0xE000, GRAM_CHAR_MAX}};
    size_t k = 0;

    for (uint32_t i = 0; i < s->n && k < 4; i++)
        while (k < 4 && r[i].lo <= prose[k].lo && r[i].hi >= prose[k].hi)
            k++;
    return k == 4;
}

/* Sets keep the builder's numbers; those that no code uses stay empty. */
static int make_charsets(const struct gram_builder *b, const struct gram *g, struct charset *ret)
{
    bool byte[256];
    uint32_t states = 0;
    int rc = 0;

    gram_vocab_bytes(g->vocab, byte);
    for (uint32_t pc = 0; rc == 0 && pc < g->n_code; pc++) {
        const struct instr *in = &g->code[pc];
        if (in->op != OP_CHAR || ret[in->a].first) continue;
        const struct set *s = &GRAM_AT(b->set, struct set, in->a);
        rc = charset_create(&GRAM_AT(b->range, struct gram_range, s->first), s->n, s->how, byte,
                            &ret[in->a]);
        g->set[in->a].prose = holds_prose(b, s);
        for (uint32_t k = 0; rc == 0 && ret[in->a].n > 0 && k < ret[in->a].first[ret[in->a].n]; k++)
            g->set[in->a].controls |= ret[in->a].edge[k].lo < 0x20;
        states += ret[in->a].n;
        if (rc == 0 && states > SET_STATES_MAX) rc = -ERANGE;
    }
    return rc;
}

static void cut_bytes(struct gram *g, const struct charset *c)
{
    bool cut[257] = {true};

    for (uint32_t pc = 0; pc < g->n_code; pc++)
        if (g->code[pc].op == OP_BYTE) cut[g->code[pc].a] = cut[g->code[pc].a + 1] = true;
    for (uint32_t i = 0; i < g->n_sets; i++)
        for (uint32_t k = 0; c[i].n > 0 && k < c[i].first[c[i].n]; k++)
            cut[c[i].edge[k].lo] = cut[c[i].edge[k].hi + 1] = true;
    for (unsigned x = 0; x < 256; x++) {
        if (cut[x]) g->byte_of[g->n_classes++] = (uint8_t)x;
        g->class_of[x] = (uint8_t)(g->n_classes - 1);
    }
}

static int fill_table(const struct gram *g, const struct charset *c, struct gram_set *ret)
{
    const size_t n = (size_t)c->n * g->n_classes;

    if (n == 0) return 0;
    ret->next = mem_alloc(n * sizeof *ret->next);
    if (!ret->next) return -ENOMEM;
    for (size_t i = 0; i < n; i++)
        ret->next[i] = SET_DEAD;
    for (uint32_t s = 0; s < c->n; s++)
        for (uint32_t k = c->first[s]; k < c->first[s + 1]; k++) {
            const unsigned hi = g->class_of[c->edge[k].hi];
            for (unsigned x = g->class_of[c->edge[k].lo]; x <= hi; x++)
                ret->next[s * g->n_classes + x] = c->edge[k].to;
        }
    return 0;
}

static int make_sets(const struct gram_builder *b, struct gram *g)
{
    struct charset *c;
    int rc;

    g->n_sets = (uint32_t)GRAM_COUNT(b->set, struct set);
    g->set = mem_zalloc((g->n_sets + 1) * sizeof *g->set);
    c = mem_zalloc((g->n_sets + 1) * sizeof *c);
    rc = g->set && c ? make_charsets(b, g, c) : -ENOMEM;
    if (rc == 0) cut_bytes(g, c);
    for (uint32_t i = 0; rc == 0 && i < g->n_sets; i++)
        rc = fill_table(g, &c[i], &g->set[i]);
    for (uint32_t i = 0; c && i < g->n_sets; i++)
        charset_fini(&c[i]);
    mem_free(c);
    return rc;
}

/* ---- all of it ---- */

static int label_rules(const struct emit *e, const char ***ret)
{
    const char **label = mem_zalloc(here(e) * sizeof *label);

    if (!label) return -ENOMEM;
    for (size_t i = 0; i < GRAM_COUNT(e->queue, uint32_t); i++) {
        const uint32_t rule = GRAM_AT(e->queue, uint32_t, i);
        label[e->rule_at[rule]] = GRAM_AT(e->b->rule, struct rule, rule).label;
    }
    *ret = label;
    return 0;
}

static int make(struct emit *e, gram_node start, struct gram *g, struct err *err)
{
    const char **label = NULL;
    int rc;

    if (e->b->status == 0) emit_all(e, start);
    if (e->status < 0) gram_builder_fail(e->b, e->status);
    if (e->b->status < 0) return gram_builder_why(e->b, err);
    rc = label_rules(e, &label);
    g->n_code = here(e);
    g->code = (struct instr *)(void *)buf_take(&e->code, NULL);
    g->start = 1;
    if (rc == 0) rc = make_sets(e->b, g);
    if (rc == -ERANGE) rc = err_set(err, rc, "its sets of characters are too large");
    if (rc == 0) rc = gram_check(g, label, err);
    mem_free(label);
    return rc;
}

int gram_compile(struct gram_builder *b, gram_node start, const struct gram_vocab *v,
                 struct gram **ret, struct err *err)
{
    const size_t n_rules = GRAM_COUNT(b->rule, struct rule);
    struct emit e = {.b = b};
    struct gram *g = mem_zalloc(sizeof *g);
    int rc = -ENOMEM;

    e.rule_at = mem_alloc((n_rules + 1) * sizeof *e.rule_at);
    e.queued = mem_zalloc(n_rules + 1);
    if (g && e.rule_at && e.queued) {
        g->vocab = v;
        rc = make(&e, start, g, err);
    }
    mem_free(e.rule_at);
    mem_free(e.queued);
    buf_fini(&e.code);
    buf_fini(&e.queue);
    if (rc < 0) {
        gram_destroy(g);
        return rc == -ENOMEM ? err_set(err, rc, "out of memory") : rc;
    }
    *ret = g;
    return 0;
}

void gram_destroy(struct gram *g)
{
    if (!g) return;
    for (uint32_t i = 0; i < g->n_sets && g->set; i++)
        mem_free(g->set[i].next);
    mem_free(g->set);
    mem_free(g->code);
    mem_free(g->need);
    mem_free(g);
}

size_t gram_size(const struct gram *g)
{
    return g->n_code;
}
