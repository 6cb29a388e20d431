/* Texts under a grammar. Design: a state is the set of places that the program can be at, each with
 * the set of stacks (run_int.h) that it can have there. States are made when they are met and
 * numbered; a table of state × class of byte remembers where each goes, so that on the way through
 * the vocabulary's trie a byte that was met before costs one look. A set of tokens belongs to a
 * state, and is kept with it.
 *
 * Rejected: sets of tokens by top of stack alone, with the tokens that reach below it checked each
 * time (what others do): here few tokens are left to walk for once prose is known, and the states
 * of a text repeat. */
#include "fusor/grammar/run.h"

#include "base/assert.h"
#include "base/fnv.h"
#include "fusor/grammar/run_int.h"
#include "fusor/grammar/vocab_int.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    STATE_UNKNOWN,
    STATE_DEAD,
    STATE_DONE, /* complete, and the token that ends it was taken */
    STATE_FIRST
};
enum {
    BUDGET_BYTES = 16 << 20, /* chosen: of states and stacks, before they are forgotten */
    HARD_BYTES = 64 << 20,   /* within one call */
    WORK_MAX = 1 << 23,      /* places looked at within one call; chosen: 0.1 s */
    WORK_MEAN = 1 << 14,     /* of many calls, and as much as 16 of the largest besides */
    ITEMS_MAX = 1 << 13,     /* of a state */
    SETS = 128,              /* of tokens that are kept */
    CHAR_SHIFT = 18          /* an item's place: instruction, and state within a character */
};
static_assert((int)GRAM_CODE_MAX <= 1 << CHAR_SHIFT,
              "an instruction fits below the character's state");
static_assert((int)CHARSET_STATES_MAX < 1 << (32 - CHAR_SHIFT), "and that above it");

struct item {
    uint32_t place;
    stack_id stack;
};
struct state {
    uint32_t first, n;     /* of items */
    uint32_t set;          /* of tokens, where set_of says so */
    bool complete, closed; /* the text may end here; it must */
};
struct run_text {
    uint32_t state;
    bool begun;
};
struct gram_run {
    const struct gram *g;
    const struct gram_vocab *v;
    struct stacks stacks;
    struct buf state; /* of struct state */
    struct buf item;  /* of struct item */
    struct buf next;  /* of uint32_t [states, n_classes] */
    uint32_t *slot;   /* state by hash */
    uint32_t n_slots;
    /* the state that is being made */
    stack_id *at;          /* [n_code] */
    struct buf touched;    /* of uint32_t: where `at` is set */
    struct buf todo;       /* of uint32_t: places whose followers are to be added */
    struct buf fresh;      /* of struct item */
    uint64_t work, spent;  /* of this call; by all before, above the mean */
    uint64_t *composed;    /* [n_words] the set that was asked for last */
    uint64_t *sets;        /* [SETS, n_words] */
    uint32_t set_of[SETS]; /* the state, or 0 */
    unsigned n_sets, hand; /* hand: the next to be replaced */
    uint32_t start;        /* state */
    unsigned n_texts;
    struct run_text *text; /* [n_texts] */
};

static struct state *state_at(const struct gram_run *r, uint32_t s)
{
    return &GRAM_AT(r->state, struct state, s);
}

/* ---- closing over what needs no byte ---- */

static int add_place(struct gram_run *r, uint32_t pc, stack_id stack)
{
    const struct gram *g = r->g;
    stack_id both = stack;

    if (g->need[pc] == NEVER || g->need[pc] + stack_at(&r->stacks, stack)->depth > GRAM_DEPTH_MAX)
        return 0;
    if (++r->work > WORK_MAX) return -E2BIG;
    if (r->at[pc] != STACK_NONE) {
        const int rc = stacks_union(&r->stacks, r->at[pc], stack, &both);
        if (rc < 0 || both == r->at[pc]) return rc;
    } else if (buf_add(&r->touched, &pc, sizeof pc) < 0) {
        return -ENOMEM;
    }
    r->at[pc] = both;
    return buf_add(&r->todo, &pc, sizeof pc);
}

static int follow_return(struct gram_run *r, stack_id stack)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < stack_at(&r->stacks, stack)->n; i++) {
        const struct stack_node *n = stack_at(&r->stacks, stack);
        const struct stack_entry e = GRAM_AT(r->stacks.entry, struct stack_entry, n->first + i);
        rc = add_place(r, e.place, e.below == STACK_NONE ? STACK_LOWEST : e.below);
    }
    return rc;
}

static int follow(struct gram_run *r, uint32_t pc)
{
    const struct instr in = r->g->code[pc];
    const stack_id stack = r->at[pc];
    struct stack_entry e = {pc + 1, stack};
    stack_id pushed;
    int rc;

    switch ((enum op)in.op) {
    case OP_JUMP:
        return add_place(r, in.a, stack);
    case OP_SPLIT:
        rc = add_place(r, in.a, stack);
        return rc < 0 ? rc : add_place(r, in.b, stack);
    case OP_CALL:
        rc = stacks_find(&r->stacks, &e, 1, &pushed);
        return rc < 0 ? rc : add_place(r, in.a, pushed);
    case OP_RETURN:
        return follow_return(r, stack);
    case OP_END:
    case OP_BYTE:
    case OP_CHAR:
        break;
    }
    return 0;
}

static int close_over(struct gram_run *r)
{
    int rc = 0;

    while (rc == 0 && r->todo.len > 0) {
        r->todo.len -= sizeof(uint32_t);
        rc = follow(r, GRAM_AT(r->todo, uint32_t, r->todo.len / sizeof(uint32_t)));
    }
    return rc;
}

/* ---- states ---- */

static int item_order(const void *a, const void *b)
{
    const struct item *x = a, *y = b;

    return x->place < y->place ? -1 : x->place > y->place;
}

/* Where a byte is waited for, or the end is: into `fresh`, beside what waits within a character. */
static int gather_items(struct gram_run *r)
{
    int rc = 0;

    for (size_t i = 0; i < GRAM_COUNT(r->touched, uint32_t); i++) {
        const uint32_t pc = GRAM_AT(r->touched, uint32_t, i), op = r->g->code[pc].op;
        struct item it = {pc, r->at[pc]};
        r->at[pc] = STACK_NONE;
        if (rc == 0 && (op == OP_END || op == OP_BYTE || op == OP_CHAR))
            rc = buf_add(&r->fresh, &it, sizeof it);
    }
    r->touched.len = r->todo.len = 0;
    return rc;
}

/* In order, each place once. */
static int sort_items(struct gram_run *r)
{
    struct item *it = GRAM_ALL(r->fresh, struct item);
    const size_t n = GRAM_COUNT(r->fresh, struct item);
    size_t out = 0;
    int rc = 0;

    if (n > ITEMS_MAX) return -E2BIG;
    if (n > 1) qsort(it, n, sizeof *it, item_order);
    for (size_t i = 0; i < n && rc == 0; i++) {
        if (out > 0 && it[out - 1].place == it[i].place)
            rc = stacks_union(&r->stacks, it[out - 1].stack, it[i].stack, &it[out - 1].stack);
        else
            it[out++] = it[i];
    }
    r->fresh.len = out * sizeof *it;
    return rc;
}

static int grow_slots(struct gram_run *r)
{
    const uint32_t n = 2 * r->n_slots;
    uint32_t *slot = mem_zalloc(n * sizeof *slot);

    if (!slot) return -ENOMEM;
    for (uint32_t i = STATE_FIRST; i < GRAM_COUNT(r->state, struct state); i++) {
        const struct state *s = state_at(r, i);
        uint64_t at = fnv_add(FNV_START, &GRAM_AT(r->item, struct item, s->first),
                              s->n * sizeof(struct item));
        while (slot[at % n])
            at++;
        slot[at % n] = i;
    }
    mem_free(r->slot);
    r->slot = slot;
    r->n_slots = n;
    return 0;
}

static size_t states_bytes(const struct gram_run *r)
{
    return r->state.len + r->item.len + r->next.len + r->n_slots * sizeof *r->slot +
           stacks_bytes(&r->stacks);
}

static int add_state(struct gram_run *r, uint32_t *ret)
{
    const struct item *it = GRAM_ALL(r->fresh, struct item);
    const uint32_t id = (uint32_t)GRAM_COUNT(r->state, struct state);
    struct state s = {.first = (uint32_t)GRAM_COUNT(r->item, struct item),
                      .n = (uint32_t)GRAM_COUNT(r->fresh, struct item)};
    const size_t row = r->g->n_classes * sizeof(uint32_t);

    if (states_bytes(r) > HARD_BYTES) return -E2BIG;
    s.complete = s.n > 0 && it[0].place == 0;
    s.closed = s.complete && s.n == 1;
    if (buf_add(&r->item, it, s.n * sizeof *it) < 0 || buf_reserve(&r->next, row) < 0 ||
        buf_add(&r->state, &s, sizeof s) < 0)
        return -ENOMEM;
    memset(r->next.data + r->next.len, 0, row);
    r->next.len += row;
    *ret = id;
    return 0;
}

/* The state of the items in `fresh`. */
static int find_state(struct gram_run *r, uint32_t *ret)
{
    const struct item *it = GRAM_ALL(r->fresh, struct item);
    const size_t n = GRAM_COUNT(r->fresh, struct item);
    uint64_t at;
    int rc;

    if (n == 0) {
        *ret = STATE_DEAD;
        return 0;
    }
    if (2 * GRAM_COUNT(r->state, struct state) > r->n_slots && grow_slots(r) < 0) return -ENOMEM;
    for (at = fnv_add(FNV_START, it, n * sizeof *it);; at++) {
        const uint32_t id = r->slot[at % r->n_slots];
        if (id == 0) break;
        const struct state *s = state_at(r, id);
        if (s->n != n || memcmp(&GRAM_AT(r->item, struct item, s->first), it, n * sizeof *it) != 0)
            continue;
        *ret = id;
        return 0;
    }
    rc = add_state(r, ret);
    if (rc == 0) r->slot[at % r->n_slots] = *ret;
    return rc;
}

/* From what was added with add_place() and put into `fresh`. Leaves both empty, whatever comes. */
static int finish_state(struct gram_run *r, int rc, uint32_t *ret)
{
    if (rc == 0) rc = close_over(r);
    const int gathered = gather_items(r);
    if (rc == 0) rc = gathered;
    if (rc == 0) rc = sort_items(r);
    if (rc == 0) rc = find_state(r, ret);
    r->fresh.len = 0;
    return rc;
}

static int step_item(struct gram_run *r, struct item it, unsigned class)
{
    const struct gram *g = r->g;
    const uint32_t pc = it.place & ((1u << CHAR_SHIFT) - 1), within = it.place >> CHAR_SHIFT;
    const struct instr *in = &g->code[pc];

    if (in->op == OP_BYTE) return in->a == g->byte_of[class] ? add_place(r, pc + 1, it.stack) : 0;
    if (in->op != OP_CHAR) return 0;
    const uint16_t to = g->set[in->a].next[within * g->n_classes + class];
    if (to == SET_DEAD) return 0;
    if (to == CHARSET_END) return add_place(r, pc + 1, it.stack);
    it.place = pc | (uint32_t)to << CHAR_SHIFT;
    return buf_add(&r->fresh, &it, sizeof it);
}

/* Where a state goes with a byte of the class: computed once. */
static int step_state(struct gram_run *r, uint32_t from, unsigned class, uint32_t *ret)
{
    const struct state s = *state_at(r, from);
    uint32_t to = STATE_DEAD;
    int rc = 0;

    r->work += s.n;
    for (uint32_t i = 0; rc == 0 && i < s.n; i++)
        rc = step_item(r, GRAM_AT(r->item, struct item, s.first + i), class);
    rc = finish_state(r, rc, &to);
    if (rc < 0) return rc;
    GRAM_AT(r->next, uint32_t, from * r->g->n_classes + class) = to;
    *ret = to;
    return 0;
}

static inline uint32_t next_of(const struct gram_run *r, uint32_t from, unsigned class)
{
    return GRAM_AT(r->next, uint32_t, from * r->g->n_classes + class);
}

/* ---- sets of tokens ---- */

/* `skip`: no token that begins with this byte (-1: all). */
static int walk(struct gram_run *r, const struct vocab_trie *t, uint32_t from, int skip,
                uint64_t *set)
{
    const int32_t *same = r->v->same;
    uint32_t path[VOCAB_TOKEN_MAX + 1] = {from};

    for (uint32_t i = 0; i < t->n;) {
        const struct trie_node n = t->node[i];
        const unsigned class = r->g->class_of[n.byte];
        uint32_t to = next_of(r, path[n.depth - 1], class);
        if (to == STATE_UNKNOWN) {
            const int rc = step_state(r, path[n.depth - 1], class, &to);
            if (rc < 0) return rc;
        }
        if (to == STATE_DEAD || (n.depth == 1 && n.byte == skip)) {
            i = n.end;
            continue;
        }
        path[n.depth] = to;
        for (int32_t id = n.token == VOCAB_NO_TOKEN ? -1 : (int32_t)n.token; id >= 0; id = same[id])
            set[id / 64] |= 1ull << (id % 64);
        i++;
    }
    return 0;
}

/* As many characters of prose as may follow, whichever they are. */
static uint32_t prose_room(const struct gram_run *r, uint32_t state)
{
    const struct state *s = state_at(r, state);
    uint32_t room = 0;

    for (uint32_t i = 0; i < s->n; i++) {
        const uint32_t place = GRAM_AT(r->item, struct item, s->first + i).place;
        if (place >= 1u << CHAR_SHIFT) continue; /* within a character */
        const struct instr *in = &r->g->code[place];
        if (in->op == OP_CHAR && r->g->set[in->a].prose && in->b > room) room = in->b;
    }
    return room;
}

static void add_prose(const struct gram_vocab *v, uint32_t room, const uint64_t *others,
                      uint64_t *ret)
{
    const uint32_t upto = room < VOCAB_SHORT ? room : VOCAB_SHORT - 1;
    const uint64_t *prose = v->prose_upto + upto * v->n_words;

    for (size_t i = 0; i < v->n_words; i++)
        ret[i] = prose[i] | others[i];
    for (size_t i = 0; i < v->n_prose_long && v->prose_long[i].chars <= room; i++)
        ret[v->prose_long[i].token / 64] |= 1ull << (v->prose_long[i].token % 64);
}

/* Where so much room is left that no token can use it up, more makes no difference: the state with
 * just that much. `prose`: how many characters of it fit is known apart. */
static int least_room(struct gram_run *r, uint32_t state, bool prose, uint32_t *ret)
{
    const struct state s = *state_at(r, state);
    bool moved = false;
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < s.n; i++) {
        struct item it = GRAM_AT(r->item, struct item, s.first + i);
        const struct instr *in = &r->g->code[it.place & ((1u << CHAR_SHIFT) - 1)];
        const struct gram_set *set = in->op == OP_CHAR ? &r->g->set[in->a] : NULL;
        const uint32_t most =
            set && set->prose && prose ? r->v->chars_max[set->controls] : VOCAB_TOKEN_MAX + 1;
        if (set && in->chain && in->b > most) {
            it.place += 2 * (in->b - most);
            moved = true;
        }
        rc = buf_add(&r->fresh, &it, sizeof it);
    }
    *ret = state;
    if (rc == 0 && moved) rc = sort_items(r);
    if (rc == 0 && moved) rc = find_state(r, ret);
    r->fresh.len = 0;
    return rc;
}

/* Tokens that may follow, but for those that are known to be prose. */
static int fill_set(struct gram_run *r, uint32_t state, bool prose, int skip, uint64_t *set)
{
    const struct gram_vocab *v = r->v;
    int rc = 0;

    memset(set, 0, v->n_words * sizeof *set);
    if (!prose) rc = walk(r, &v->prose, state, skip, set);
    if (rc == 0) rc = walk(r, &v->other, state, skip, set);
    for (size_t i = 0; rc == 0 && state_at(r, state)->complete && i < v->n_words; i++)
        set[i] |= v->ends[i];
    return rc;
}

static bool is_empty(const uint64_t *set, size_t n_words)
{
    for (size_t i = 0; i < n_words; i++)
        if (set[i]) return false;
    return true;
}

/* Room for one more set: of a state that has lost it, if need be. */
static int take_set(struct gram_run *r, uint32_t *ret)
{
    const size_t n = r->v->n_words;

    if (r->n_sets < SETS) {
        uint64_t *more = mem_realloc(r->sets, (r->n_sets + 1) * n * sizeof *more);
        if (!more) return -ENOMEM;
        r->sets = more;
        *ret = r->n_sets++;
        return 0;
    }
    *ret = r->hand;
    r->hand = (r->hand + 1) % SETS;
    return 0;
}

/* ---- forgetting ---- */

struct moved { /* the live part of old stacks, in new ones */
    struct stacks from;
    stack_id *to; /* [nodes] 0: not wanted; before the move: 1 wanted */
};

static int move_stacks(struct gram_run *r, struct moved *m)
{
    const size_t n = GRAM_COUNT(m->from.node, struct stack_node);
    struct buf e = BUF_INIT;
    int rc = 0;

    for (size_t id = n; id-- > 1;) { /* what lies below was made before */
        const struct stack_node *s = stack_at(&m->from, (stack_id)id);
        for (uint32_t i = 0; m->to[id] && i < s->n; i++)
            m->to[GRAM_AT(m->from.entry, struct stack_entry, s->first + i).below] = 1;
    }
    m->to[STACK_NONE] = STACK_NONE;
    for (size_t id = 1; rc == 0 && id < n; id++) {
        const struct stack_node *s = stack_at(&m->from, (stack_id)id);
        if (!m->to[id]) continue;
        e.len = 0;
        rc = buf_add(&e, &GRAM_AT(m->from.entry, struct stack_entry, s->first),
                     s->n * sizeof(struct stack_entry));
        for (uint32_t i = 0; rc == 0 && i < s->n; i++)
            GRAM_AT(e, struct stack_entry, i).below =
                m->to[GRAM_AT(e, struct stack_entry, i).below];
        if (rc == 0)
            rc = stacks_find(&r->stacks, GRAM_ALL(e, struct stack_entry), s->n, &m->to[id]);
    }
    buf_fini(&e);
    return rc;
}

static int clear_states(struct gram_run *r)
{
    const struct state none = {0};
    const size_t row = r->g->n_classes * sizeof(uint32_t);

    r->state.len = r->item.len = r->next.len = 0;
    memset(r->slot, 0, r->n_slots * sizeof *r->slot);
    memset(r->set_of, 0, sizeof r->set_of);
    for (int i = 0; i < STATE_FIRST; i++)
        if (buf_add(&r->state, &none, sizeof none) < 0) return -ENOMEM;
    if (buf_reserve(&r->next, STATE_FIRST * row) < 0) return -ENOMEM;
    memset(r->next.data, 0, STATE_FIRST * row);
    r->next.len = STATE_FIRST * row;
    return 0;
}

/* A state of the old ones, again. */
static int move_state(struct gram_run *r, const struct moved *m, const struct item *it, uint32_t n,
                      uint32_t *ret)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        const struct item x = {it[i].place, m->to[it[i].stack]};
        rc = buf_add(&r->fresh, &x, sizeof x);
    }
    if (rc == 0) rc = find_state(r, ret);
    r->fresh.len = 0;
    return rc;
}

/* Only the texts' own states stay, and the first. */
static int forget(struct gram_run *r)
{
    struct moved m = {.from = r->stacks};
    const struct buf item = r->item, state = r->state;
    int rc = stacks_init(&r->stacks);

    r->item = r->state = (struct buf)BUF_INIT;
    m.to = mem_zalloc(GRAM_COUNT(m.from.node, struct stack_node) * sizeof *m.to);
    if (!m.to) rc = -ENOMEM;
    for (unsigned t = 0; rc == 0 && t <= r->n_texts; t++) {
        const uint32_t id = t < r->n_texts ? r->text[t].state : r->start;
        const struct state *s = &GRAM_AT(state, struct state, id);
        for (uint32_t i = 0; i < s->n; i++)
            m.to[GRAM_AT(item, struct item, s->first + i).stack] = 1;
    }
    if (rc == 0) rc = move_stacks(r, &m);
    if (rc == 0) rc = clear_states(r);
    for (unsigned t = 0; rc == 0 && t <= r->n_texts; t++) {
        uint32_t *id = t < r->n_texts ? &r->text[t].state : &r->start;
        const struct state *s = &GRAM_AT(state, struct state, *id);
        if (*id >= STATE_FIRST)
            rc = move_state(r, &m, &GRAM_AT(item, struct item, s->first), s->n, id);
    }
    stacks_fini(&m.from);
    mem_free(m.to);
    buf_fini((struct buf *)&item);
    buf_fini((struct buf *)&state);
    return rc;
}

/* ---- calls ---- */

static int begin_call(struct gram_run *r)
{
    r->spent += r->work;
    r->spent -= r->spent < WORK_MEAN ? r->spent : WORK_MEAN;
    r->work = 0;
    if (r->spent > 16ull * WORK_MAX) return -E2BIG;
    return states_bytes(r) > BUDGET_BYTES ? forget(r) : 0;
}

/* A space that the first token begins with is dropped: tokens with one count without it. */
static int first_set(struct gram_run *r, uint32_t state, const uint64_t **ret)
{
    int rc = fill_set(r, state, false, ' ', r->composed);

    if (rc == 0) rc = walk(r, &r->v->first, state, -1, r->composed);
    if (rc == 0 && is_empty(r->composed, r->v->n_words)) rc = -EINVAL;
    if (rc == 0) *ret = r->composed;
    return rc;
}

/* The set of a state that was walked, from where it is kept, or anew. */
static int kept_set(struct gram_run *r, uint32_t state, bool prose, const uint64_t **ret)
{
    uint32_t set = state_at(r, state)->set;
    int rc = 0;

    if (set >= r->n_sets || r->set_of[set] != state) {
        rc = take_set(r, &set);
        if (rc < 0) return rc;
        r->set_of[set] = 0;
        rc = fill_set(r, state, prose, -1, r->sets + set * r->v->n_words);
        if (rc < 0) return rc;
        r->set_of[set] = state;
        state_at(r, state)->set = set;
    }
    *ret = r->sets + set * r->v->n_words;
    return 0;
}

int gram_run_allowed(struct gram_run *r, unsigned text, const uint64_t **ret)
{
    int rc = begin_call(r);
    const struct run_text t = r->text[text];
    const uint64_t *set = NULL;
    uint32_t state = t.state;

    if (rc < 0) return rc;
    if (t.state == STATE_DONE || state_at(r, t.state)->closed) {
        *ret = r->v->ends;
        return 0;
    }
    if (!t.begun && r->v->first.n > 0) return first_set(r, t.state, ret);
    const uint32_t room = prose_room(r, t.state);
    rc = least_room(r, t.state, room > 0, &state);
    if (rc == 0) rc = kept_set(r, state, room > 0, &set);
    if (rc < 0) return rc;
    if (room > 0) add_prose(r->v, room, set, r->composed);
    *ret = room > 0 ? r->composed : set;
    return 0;
}

static int take_bytes(struct gram_run *r, struct run_text *t, const unsigned char *p, size_t n)
{
    uint32_t state = t->state;

    for (size_t i = 0; i < n; i++) {
        const unsigned class = r->g->class_of[p[i]];
        uint32_t to = next_of(r, state, class);
        const int rc = to == STATE_UNKNOWN ? step_state(r, state, class, &to) : 0;
        if (rc < 0) return rc;
        if (to == STATE_DEAD) return -EINVAL;
        state = to;
    }
    t->state = state;
    t->begun = true;
    return state_at(r, state)->closed;
}

int gram_run_take(struct gram_run *r, unsigned text, int32_t id)
{
    const struct gram_vocab *v = r->v;
    struct run_text *t = &r->text[text];
    int rc = begin_call(r);

    if (rc < 0) return rc;
    if (id < 0 || (size_t)id >= v->n_tokens || t->state == STATE_DONE) return -EINVAL;
    if (v->ends[id / 64] >> (id % 64) & 1) {
        if (!state_at(r, t->state)->complete) return -EINVAL;
        t->state = STATE_DONE;
        return 1;
    }
    const unsigned char *p = (const unsigned char *)v->bytes + v->at[id];
    const size_t n = v->at[id + 1] - v->at[id];
    const size_t drop = !t->begun && v->first.n > 0 && n > 0 && p[0] == ' ';
    return n > drop ? take_bytes(r, t, p + drop, n - drop) : -EINVAL;
}

void gram_run_again(struct gram_run *r, unsigned text)
{
    r->text[text].state = r->start;
    r->text[text].begun = true;
}

static int start(struct gram_run *r)
{
    const struct stack_entry end = {0, STACK_NONE};
    stack_id lowest = STACK_NONE;
    int rc = stacks_init(&r->stacks);

    if (rc == 0) rc = clear_states(r);
    if (rc == 0) rc = stacks_find(&r->stacks, &end, 1, &lowest);
    ASSERT(rc < 0 || lowest == STACK_LOWEST);
    if (rc == 0) rc = finish_state(r, add_place(r, r->g->start, lowest), &r->start);
    for (unsigned i = 0; rc == 0 && i < r->n_texts; i++)
        r->text[i].state = r->start;
    return rc;
}

int gram_run_create(const struct gram *g, unsigned n_texts, struct gram_run **ret)
{
    struct gram_run *r = mem_zalloc(sizeof *r);
    int rc = -ENOMEM;

    if (!r) return -ENOMEM;
    r->g = g;
    r->v = g->vocab;
    r->n_slots = 256;
    r->n_texts = n_texts;
    r->slot = mem_zalloc(r->n_slots * sizeof *r->slot);
    r->at = mem_zalloc(g->n_code * sizeof *r->at);
    r->text = mem_zalloc((n_texts + 1) * sizeof *r->text);
    r->composed = mem_alloc((r->v->n_words + 1) * sizeof *r->composed);
    if (r->slot && r->at && r->text && r->composed) rc = start(r);
    if (rc < 0) {
        gram_run_destroy(r);
        return rc;
    }
    *ret = r;
    return 0;
}

void gram_run_destroy(struct gram_run *r)
{
    if (!r) return;
    stacks_fini(&r->stacks);
    buf_fini(&r->state);
    buf_fini(&r->item);
    buf_fini(&r->next);
    buf_fini(&r->touched);
    buf_fini(&r->todo);
    buf_fini(&r->fresh);
    mem_free(r->slot);
    mem_free(r->at);
    mem_free(r->sets);
    mem_free(r->composed);
    mem_free(r->text);
    mem_free(r);
}
