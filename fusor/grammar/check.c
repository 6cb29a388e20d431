/* What must hold of a program before it may run: every place has a way to its end, or is marked as
 * having none; no rule begins with itself.
 *
 * `need` is Knuth's generalisation of Dijkstra's algorithm: a place's need is the least of its
 * ways, a call's the greater of what it calls, plus one, and what follows. Places are settled in
 * ascending order, so each edge is looked at once. The same walk without bytes says what may be
 * empty. */
#include "fusor/grammar/grammar_int.h"
#include "fusor/grammar/vocab.h"

#include <string.h>

struct edges { /* of places, turned round: who goes on where */
    uint32_t *first, *from;
};
struct solve {
    const struct gram *g;
    const struct edges *e;
    bool byte[256];
    bool empty; /* only ways without a byte */
    uint16_t *need;
    uint32_t *now, *later; /* settled at this need, and at the next one */
    uint32_t n_now, n_later;
};

/* The places that pc leads to, at most two. */
static unsigned ways(const struct instr *code, uint32_t pc, uint32_t to[2])
{
    const struct instr *in = &code[pc];

    switch ((enum op)in->op) {
    case OP_BYTE:
    case OP_CHAR:
        to[0] = pc + 1;
        return 1;
    case OP_JUMP:
        to[0] = in->a;
        return 1;
    case OP_SPLIT:
        to[0] = in->a;
        to[1] = in->b;
        return 2;
    case OP_CALL:
        to[0] = in->a;
        to[1] = pc + 1;
        return 2;
    case OP_END:
    case OP_RETURN:
        break;
    }
    return 0;
}

static int turn_edges(const struct gram *g, struct edges *ret)
{
    struct edges e = {mem_zalloc((g->n_code + 2) * sizeof(uint32_t)),
                      mem_alloc(2 * (size_t)g->n_code * sizeof(uint32_t))};
    uint32_t to[2];

    *ret = e;
    if (!e.first || !e.from) return -ENOMEM;
    for (uint32_t pc = 0; pc < g->n_code; pc++)
        for (unsigned i = ways(g->code, pc, to); i-- > 0;)
            e.first[to[i] + 2]++;
    for (uint32_t pc = 0; pc < g->n_code; pc++)
        e.first[pc + 2] += e.first[pc + 1];
    for (uint32_t pc = 0; pc < g->n_code; pc++)
        for (unsigned i = ways(g->code, pc, to); i-- > 0;)
            e.from[e.first[to[i] + 1]++] = pc;
    return 0;
}

static bool passes(const struct solve *s, const struct instr *in)
{
    if (in->op == OP_BYTE) return !s->empty && s->byte[in->a];
    if (in->op == OP_CHAR) return !s->empty && s->g->set[in->a].next;
    return true;
}

/* pc is not settled, and something that it leads to was at `level`. */
static void settle(struct solve *s, uint32_t pc, uint16_t level)
{
    const struct instr *in = &s->g->code[pc];
    unsigned need = level;

    if (!passes(s, in)) return;
    if (in->op == OP_CALL) {
        const uint16_t callee = s->need[in->a], rest = s->need[pc + 1];
        if (callee == NEVER || rest == NEVER) return;
        need = callee + 1u > rest ? callee + 1u : rest;
        if (need > GRAM_DEPTH_MAX) return;
    }
    s->need[pc] = (uint16_t)need;
    if (need == level)
        s->now[s->n_now++] = pc;
    else
        s->later[s->n_later++] = pc;
}

static void solve(struct solve *s)
{
    s->n_now = s->n_later = 0;
    for (uint32_t pc = 0; pc < s->g->n_code; pc++) {
        const bool end = s->g->code[pc].op == OP_RETURN || s->g->code[pc].op == OP_END;
        s->need[pc] = end ? 0 : NEVER;
        if (end) s->now[s->n_now++] = pc;
    }
    for (uint16_t level = 0; s->n_now > 0; level++) {
        while (s->n_now > 0) {
            const uint32_t pc = s->now[--s->n_now];
            for (uint32_t i = s->e->first[pc]; i < s->e->first[pc + 1]; i++)
                if (s->need[s->e->from[i]] == NEVER) settle(s, s->e->from[i], level);
        }
        uint32_t *t = s->now;
        s->now = s->later;
        s->later = t;
        s->n_now = s->n_later;
        s->n_later = 0;
    }
}

/* ---- rules that begin with themselves ---- */

struct scc { /* Tarjan's strongly connected components, with a stack of our own */
    const struct gram *g;
    const uint16_t *need, *empty;
    uint32_t *order, *low, *stack, *path,
        *way; /* order 0: not seen; low SCC_DONE: its component is complete */
    uint32_t n_stack, n_path, n_seen;
};
enum { SCC_DONE = UINT32_MAX };

/* Where pc goes on without a byte. */
static unsigned silent_ways(const struct scc *s, uint32_t pc, uint32_t to[2])
{
    const struct instr *in = &s->g->code[pc];

    if (s->need[pc] == NEVER || in->op == OP_BYTE || in->op == OP_CHAR) return 0;
    unsigned n = ways(s->g->code, pc, to);
    if (in->op == OP_CALL && s->empty[in->a] == NEVER) n = 1;
    return n;
}

static void scc_enter(struct scc *s, uint32_t pc)
{
    s->order[pc] = s->low[pc] = ++s->n_seen;
    s->way[pc] = 0;
    s->stack[s->n_stack++] = pc;
    s->path[s->n_path++] = pc;
}

/* pc is done. The component that it closes may have no call into itself: -EINVAL, *ret: of what. */
static int scc_leave(struct scc *s, uint32_t pc, uint32_t *ret)
{
    const uint32_t end = s->n_stack;
    int rc = 0;

    if (--s->n_path > 0 && s->low[pc] < s->low[s->path[s->n_path - 1]])
        s->low[s->path[s->n_path - 1]] = s->low[pc];
    if (s->low[pc] != s->order[pc]) return 0;
    while (s->stack[--s->n_stack] != pc)
        ;
    for (uint32_t i = s->n_stack; i < end; i++) {
        const struct instr *in = &s->g->code[s->stack[i]];
        if (in->op != OP_CALL || s->need[s->stack[i]] == NEVER) continue;
        if (s->low[in->a] == SCC_DONE || s->order[in->a] < s->order[pc]) continue;
        *ret = in->a;
        rc = -EINVAL;
    }
    for (uint32_t i = s->n_stack; i < end; i++)
        s->low[s->stack[i]] = SCC_DONE;
    return rc;
}

static int scc_from(struct scc *s, uint32_t root, uint32_t *ret)
{
    uint32_t to[2];

    scc_enter(s, root);
    while (s->n_path > 0) {
        const uint32_t pc = s->path[s->n_path - 1];
        const unsigned n = silent_ways(s, pc, to);
        if (s->way[pc] == n) {
            const int rc = scc_leave(s, pc, ret);
            if (rc < 0) return rc;
            continue;
        }
        const uint32_t next = to[s->way[pc]++];
        if (s->order[next] == 0)
            scc_enter(s, next);
        else if (s->low[next] != SCC_DONE && s->order[next] < s->low[pc])
            s->low[pc] = s->order[next];
    }
    return 0;
}

static int find_left_recursion(const struct gram *g, const uint16_t *empty, uint32_t *ret)
{
    const size_t n = g->n_code;
    struct scc s = {.g = g, .need = g->need, .empty = empty};
    uint32_t *room = mem_zalloc(5 * n * sizeof *room);
    int rc = 0;

    if (!room) return -ENOMEM;
    s.order = room;
    s.low = room + n;
    s.stack = room + 2 * n;
    s.path = room + 3 * n;
    s.way = room + 4 * n;
    for (uint32_t pc = 0; rc == 0 && pc < n; pc++)
        if (s.order[pc] == 0) rc = scc_from(&s, pc, ret);
    mem_free(room);
    return rc;
}

/* ---- the verdict ---- */

/* The innermost label that cannot be met: labels are paths, so the longest of them. */
static const char *unmet(const struct gram *g, const char *const *label)
{
    const char *longest = NULL;

    for (uint32_t pc = 0; pc < g->n_code; pc++)
        if (label[pc] && g->need[pc] == NEVER && (!longest || strlen(label[pc]) > strlen(longest)))
            longest = label[pc];
    return longest;
}

static int refuse(struct solve *s, const char *const *label, struct err *err)
{
    const struct gram *g = s->g;
    const char *part = unmet(g, label);

    memset(s->byte, true, sizeof s->byte); /* is it the vocabulary? */
    solve(s);
    if (s->need[g->start] != NEVER)
        return err_set(err, -EINVAL, "it needs bytes for which this model has no token");
    if (part) return err_set(err, -EINVAL, "nothing can meet the part '%.120s'", part);
    return err_set(err, -EINVAL, "nothing can meet it");
}

static int check(struct solve *s, const char *const *label, struct err *err)
{
    const struct gram *g = s->g;
    uint16_t *const need = s->need, *const empty = need + g->n_code;
    uint32_t at = 0;

    solve(s);
    if (need[g->start] == NEVER) return refuse(s, label, err);
    s->need = empty;
    s->empty = true;
    solve(s);
    const int rc = find_left_recursion(g, empty, &at);
    if (rc == -EINVAL)
        return err_set(err, rc, "the rule '%.120s' begins with itself",
                       label[at] ? label[at] : "?");
    return rc;
}

int gram_check(struct gram *g, const char *const *label_of, struct err *err)
{
    struct edges e = {0};
    struct solve s = {.g = g, .e = &e};
    int rc = turn_edges(g, &e);

    gram_vocab_bytes(g->vocab, s.byte);
    g->need =
        mem_alloc(2 * (size_t)g->n_code * sizeof *g->need); /* the half behind: what is empty */
    s.need = g->need;
    uint32_t *lists = mem_alloc(2 * (size_t)g->n_code * sizeof *lists);
    if (!g->need || !lists) rc = -ENOMEM;
    s.now = lists;
    s.later = lists ? lists + g->n_code : NULL;
    if (rc == 0) rc = check(&s, label_of, err);
    mem_free(lists);
    mem_free(e.first);
    mem_free(e.from);
    return rc;
}
