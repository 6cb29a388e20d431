/* Automata over characters: by subset construction from nodes, products, complements. */
#include "fusor/grammar/dfa.h"

#include "base/fnv.h"
#include "fusor/grammar/grammar_int.h"
#include "fusor/text/unicode.h"

#include <stdlib.h>
#include <string.h>

struct dfa_edge { /* ascending within a state, with gaps where there is no way */
    uint32_t lo, hi, to;
};
struct dfa {          /* state 0 is the first */
    struct buf edge;  /* of struct dfa_edge */
    struct buf first; /* of uint32_t [states + 1] */
    struct buf ends;  /* of bool [states]: a text may end here */
};

static uint32_t n_states(const struct dfa *x)
{
    return (uint32_t)x->ends.len;
}

static uint32_t first_edge(const struct dfa *x, uint32_t s)
{
    return GRAM_AT(x->first, uint32_t, s);
}

static const struct dfa_edge *edge_at(const struct dfa *x, uint32_t i)
{
    return &GRAM_AT(x->edge, struct dfa_edge, i);
}

static struct dfa *dfa_new(void)
{
    const uint32_t zero = 0;
    struct dfa *x = mem_zalloc(sizeof *x);

    if (x && buf_add(&x->first, &zero, sizeof zero) == 0) return x;
    dfa_free(x);
    return NULL;
}

void dfa_free(struct dfa *x)
{
    if (!x) return;
    buf_fini(&x->edge);
    buf_fini(&x->first);
    buf_fini(&x->ends);
    mem_free(x);
}

/* States are added in order: their edges, then this. */
static int add_state(struct dfa *x, bool ends)
{
    const uint32_t end = (uint32_t)GRAM_COUNT(x->edge, struct dfa_edge);

    if (x->ends.len >= DFA_STATES_MAX || end > DFA_EDGES_MAX) return -ERANGE;
    if (buf_add(&x->ends, &ends, sizeof ends) < 0) return -ENOMEM;
    return buf_add(&x->first, &end, sizeof end);
}

/* Joined with the last one of this state, where they meet. */
static int add_edge(struct dfa *x, uint32_t lo, uint32_t hi, uint32_t to)
{
    const size_t n = GRAM_COUNT(x->edge, struct dfa_edge);
    const struct dfa_edge e = {lo, hi, to};

    if (n > first_edge(x, n_states(x))) {
        struct dfa_edge *last = &GRAM_AT(x->edge, struct dfa_edge, n - 1);
        if (last->to == to && last->hi + 1 == lo) {
            last->hi = hi;
            return 0;
        }
    }
    return buf_add(&x->edge, &e, sizeof e);
}

/* ---- numbering: lists of numbers that stand for states ---- */

struct names {
    struct buf list; /* of uint32_t, of all names */
    struct buf at;   /* of uint32_t [n + 1] */
    uint32_t *slot;  /* [SLOTS] a name plus 1 */
};
enum { SLOTS = 2 * DFA_STATES_MAX };

static int names_init(struct names *n)
{
    const uint32_t zero = 0;

    *n = (struct names){.slot = mem_zalloc(SLOTS * sizeof(uint32_t))};
    return n->slot ? buf_add(&n->at, &zero, sizeof zero) : -ENOMEM;
}

static void names_fini(struct names *n)
{
    buf_fini(&n->list);
    buf_fini(&n->at);
    mem_free(n->slot);
}

static uint32_t names_count(const struct names *n)
{
    return (uint32_t)GRAM_COUNT(n->at, uint32_t) - 1;
}

static const uint32_t *name_of(const struct names *n, uint32_t i, uint32_t *ret_len)
{
    const uint32_t from = GRAM_AT(n->at, uint32_t, i);

    *ret_len = GRAM_AT(n->at, uint32_t, i + 1) - from;
    return &GRAM_AT(n->list, uint32_t, from);
}

static int names_find(struct names *n, const uint32_t *list, uint32_t len, uint32_t *ret)
{
    uint64_t at;

    for (at = fnv_add(FNV_START, list, len * sizeof *list); n->slot[at % SLOTS]; at++) {
        const uint32_t i = n->slot[at % SLOTS] - 1;
        uint32_t k;
        const uint32_t *own = name_of(n, i, &k);
        if (k != len || memcmp(own, list, len * sizeof *list) != 0) continue;
        *ret = i;
        return 0;
    }
    if (names_count(n) >= DFA_STATES_MAX || n->list.len > 16 * DFA_EDGES_MAX) return -ERANGE;
    *ret = names_count(n);
    if (buf_add(&n->list, list, len * sizeof *list) < 0) return -ENOMEM;
    const uint32_t end = (uint32_t)GRAM_COUNT(n->list, uint32_t);
    if (buf_add(&n->at, &end, sizeof end) < 0) return -ENOMEM;
    n->slot[at % SLOTS] = *ret + 1;
    return 0;
}

/* ---- from nodes: first places that wait for a character, then sets of them ---- */

struct place {
    uint32_t set;  /* NO_SET: goes on to both at once; ENDS: the text may end */
    uint32_t a, b; /* a: behind the character */
};
enum { NO_SET = UINT32_MAX, ENDS = UINT32_MAX - 1 };
struct nfa {
    struct gram_builder *b;
    struct buf place;
    unsigned depth;
    int status;
};

static uint32_t add_place(struct nfa *n, struct place p)
{
    const size_t at = GRAM_COUNT(n->place, struct place);

    if (n->status == 0 && at >= DFA_PLACES_MAX) n->status = -ERANGE;
    if (n->status == 0) n->status = buf_add(&n->place, &p, sizeof p);
    return (uint32_t)at;
}

static uint32_t place_node(struct nfa *n, gram_node at, uint32_t next);

static uint32_t place_repeat(struct nfa *n, const struct node *r, uint32_t next)
{
    uint32_t at = next;

    if (r->c == GRAM_NO_END) {
        at = add_place(n, (struct place){NO_SET, next, next});
        const uint32_t body = place_node(n, r->a, at);
        if (n->status == 0) GRAM_AT(n->place, struct place, at).a = body;
    }
    for (uint32_t i = r->b; r->c != GRAM_NO_END && i < r->c && n->status == 0; i++)
        at = add_place(n, (struct place){NO_SET, place_node(n, r->a, at), next});
    for (uint32_t i = 0; i < r->b && n->status == 0; i++)
        at = place_node(n, r->a, at);
    return at;
}

/* Where the node's texts begin, which go on at `next`. Recursion: GRAM_NEST_MAX, rules included. */
static uint32_t place_node(struct nfa *n, gram_node at, uint32_t next)
{
    const struct node *x = &GRAM_AT(n->b->node, struct node, at);
    uint32_t any;

    if (++n->depth > GRAM_NEST_MAX && n->status == 0) n->status = -ERANGE;
    switch (n->status == 0 ? x->kind : NODE_LIT) {
    case NODE_LIT:
        if (x->b > 0 && n->status == 0) n->status = -EINVAL;
        break;
    case NODE_SET:
        next = add_place(n, (struct place){x->a, next, 0});
        break;
    case NODE_SEQ:
        for (uint32_t i = x->b; i-- > 0;)
            next = place_node(n, GRAM_AT(n->b->kid, gram_node, x->a + i), next);
        break;
    case NODE_ALT:
        any = add_place(n, (struct place){GRAM_SETS_MAX, 0, 0}); /* a set that nothing is of */
        for (uint32_t i = 0; i < x->b; i++)
            any = add_place(
                n, (struct place){
                       NO_SET, place_node(n, GRAM_AT(n->b->kid, gram_node, x->a + i), next), any});
        next = any;
        break;
    case NODE_REPEAT:
        next = place_repeat(n, x, next);
        break;
    case NODE_RULE:
        next = place_node(n, GRAM_AT(n->b->rule, struct rule, x->a).what, next);
        break;
    }
    n->depth--;
    return next;
}

struct subset {
    const struct nfa *n;
    struct names names;
    struct buf set;  /* of uint32_t: places of the set that is being made, ascending at the end */
    struct buf todo; /* of uint32_t */
    struct buf cut;  /* of uint32_t: where ranges begin, or the one before has ended */
    bool *in;        /* [places] */
};

static int subset_add(struct subset *s, uint32_t place)
{
    int rc = buf_add(&s->todo, &place, sizeof place);

    while (rc == 0 && s->todo.len > 0) {
        s->todo.len -= sizeof place;
        place = GRAM_AT(s->todo, uint32_t, s->todo.len / sizeof place);
        const struct place *p = &GRAM_AT(s->n->place, struct place, place);
        if (s->in[place]) continue;
        s->in[place] = true;
        rc = buf_add(&s->set, &place, sizeof place);
        if (rc == 0 && p->set == NO_SET) rc = buf_add(&s->todo, &p->a, sizeof p->a);
        if (rc == 0 && p->set == NO_SET) rc = buf_add(&s->todo, &p->b, sizeof p->b);
    }
    return rc;
}

static int number_order(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

/* The state of the set that was added up; of no place, DEAD. */
enum { DEAD = UINT32_MAX, STATE_WORK = 128 /* measured: of one with a single edge */ };
static int subset_finish(struct subset *s, uint32_t *ret)
{
    uint32_t *p = GRAM_ALL(s->set, uint32_t);
    const uint32_t n = (uint32_t)GRAM_COUNT(s->set, uint32_t);

    *ret = DEAD;
    if (n == 0) return 0;
    for (uint32_t i = 0; i < n; i++)
        s->in[p[i]] = false;
    qsort(p, n, sizeof *p, number_order);
    const int rc = names_find(&s->names, p, n, ret);
    s->set.len = 0;
    return rc;
}

static const struct gram_range *ranges_of(const struct subset *s, uint32_t place, uint32_t *ret_n)
{
    const struct gram_builder *b = s->n->b;
    const struct place *p = &GRAM_AT(s->n->place, struct place, place);

    *ret_n = 0;
    if (p->set >= GRAM_COUNT(b->set, struct set)) return NULL;
    const struct set *set = &GRAM_AT(b->set, struct set, p->set);
    *ret_n = set->n;
    return &GRAM_AT(b->range, struct gram_range, set->first);
}

/* Where the state's ranges begin and end, in order. */
static int find_cuts(struct subset *s, uint32_t state)
{
    uint32_t n, k;
    int rc = 0;

    s->cut.len = 0;
    for (uint32_t i = 0; rc == 0; i++) {
        const uint32_t *own = name_of(&s->names, state, &n);
        if (i >= n) break;
        const struct gram_range *r = ranges_of(s, own[i], &k);
        for (uint32_t j = 0; rc == 0 && j < k; j++) {
            const uint32_t two[] = {r[j].lo, r[j].hi + 1};
            rc = buf_add(&s->cut, two, sizeof two);
        }
    }
    if (s->cut.len > 0)
        qsort(s->cut.data, GRAM_COUNT(s->cut, uint32_t), sizeof(uint32_t), number_order);
    return rc;
}

static bool has_char(const struct gram_range *r, uint32_t n, uint32_t c)
{
    uint32_t lo = 0, hi = n;

    while (lo < hi) { /* the first range that does not end before c */
        const uint32_t mid = lo + (hi - lo) / 2;
        if (r[mid].hi < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < n && r[lo].lo <= c;
}

static int step_subset(struct subset *s, uint32_t state, uint32_t c, uint32_t *ret)
{
    uint32_t n, k;
    int rc = 0;

    for (uint32_t i = 0; rc == 0; i++) {
        const uint32_t *own = name_of(&s->names, state, &n);
        if (i >= n) break;
        const struct place *p = &GRAM_AT(s->n->place, struct place, own[i]);
        const struct gram_range *r = ranges_of(s, own[i], &k);
        if (has_char(r, k, c)) rc = subset_add(s, p->a);
    }
    return rc < 0 ? rc : subset_finish(s, ret);
}

static int add_subset_state(struct subset *s, uint32_t state, struct dfa *x)
{
    uint32_t n, to;
    bool ends = false;
    int rc = find_cuts(s, state);

    (void)name_of(&s->names, state, &n);
    if (rc == 0) rc = gram_spend(s->n->b, STATE_WORK + (size_t)n * GRAM_COUNT(s->cut, uint32_t));
    for (size_t i = 0; rc == 0 && i + 1 < GRAM_COUNT(s->cut, uint32_t); i++) {
        const uint32_t lo = GRAM_AT(s->cut, uint32_t, i), next = GRAM_AT(s->cut, uint32_t, i + 1);
        if (lo == next) continue;
        rc = step_subset(s, state, lo, &to);
        if (rc == 0 && to != DEAD) rc = add_edge(x, lo, next - 1, to);
    }
    const uint32_t *own = name_of(&s->names, state, &n);
    for (uint32_t i = 0; i < n; i++)
        ends |= GRAM_AT(s->n->place, struct place, own[i]).set == ENDS;
    return rc < 0 ? rc : add_state(x, ends);
}

static int determinise(const struct nfa *n, uint32_t start, struct dfa *x)
{
    struct subset s = {.n = n};
    uint32_t first;
    int rc = names_init(&s.names);

    s.in = mem_zalloc(GRAM_COUNT(n->place, struct place) + 1);
    if (!s.in) rc = -ENOMEM;
    if (rc == 0) rc = subset_add(&s, start);
    if (rc == 0) rc = subset_finish(&s, &first);
    for (uint32_t i = 0; rc == 0 && i < names_count(&s.names); i++)
        rc = add_subset_state(&s, i, x);
    names_fini(&s.names);
    buf_fini(&s.set);
    buf_fini(&s.todo);
    buf_fini(&s.cut);
    mem_free(s.in);
    return rc;
}

static int give(struct dfa *x, int rc, struct dfa **ret)
{
    if (rc == 0)
        *ret = x;
    else
        dfa_free(x);
    return rc;
}

int dfa_of(struct gram_builder *b, gram_node node, struct dfa **ret)
{
    struct nfa n = {.b = b, .status = b->status};
    struct dfa *x = dfa_new();
    const uint32_t end = add_place(&n, (struct place){ENDS, 0, 0});
    const uint32_t start = place_node(&n, node, end);
    const int rc = !x ? -ENOMEM : n.status < 0 ? n.status : determinise(&n, start, x);

    buf_fini(&n.place);
    return give(x, rc, ret);
}

/* ---- others ---- */

int dfa_of_lengths(uint32_t min, uint32_t max, struct dfa **ret)
{
    const uint32_t last = max == GRAM_NO_END ? min : max;
    struct dfa *x = dfa_new();
    int rc = x ? 0 : -ENOMEM;

    if (last >= DFA_STATES_MAX) rc = -ERANGE;
    for (uint32_t i = 0; rc == 0 && i <= last; i++) {
        const uint32_t to = i < last ? i + 1 : i;
        if (i < last || max == GRAM_NO_END) rc = add_edge(x, 0, GRAM_CHAR_MAX, to);
        if (rc == 0) rc = add_state(x, i >= min);
    }
    return give(x, rc, ret);
}

/* Edges of a pair of states: where both have one. */
static int add_pair(struct dfa *p, struct names *names, const struct dfa *const of[2],
                    const uint32_t state[2])
{
    uint32_t i = first_edge(of[0], state[0]), k = first_edge(of[1], state[1]);
    const uint32_t n = first_edge(of[0], state[0] + 1), m = first_edge(of[1], state[1] + 1);
    int rc = 0;

    while (rc == 0 && i < n && k < m) {
        const struct dfa_edge *a = edge_at(of[0], i), *b = edge_at(of[1], k);
        const uint32_t lo = a->lo > b->lo ? a->lo : b->lo, hi = a->hi < b->hi ? a->hi : b->hi;
        const uint32_t both[2] = {a->to, b->to};
        uint32_t to;
        if (lo <= hi) rc = names_find(names, both, 2, &to);
        if (rc == 0 && lo <= hi) rc = add_edge(p, lo, hi, to);
        if (a->hi <= b->hi) i++;
        if (b->hi <= a->hi) k++; /* a and b are where they were */
    }
    const bool *x = GRAM_ALL(of[0]->ends, bool), *y = GRAM_ALL(of[1]->ends, bool);
    return rc < 0 ? rc : add_state(p, x[state[0]] && y[state[1]]);
}

int dfa_both(const struct dfa *x, const struct dfa *y, struct dfa **ret)
{
    const struct dfa *const of[2] = {x, y};
    const uint32_t start[2] = {0, 0};
    struct dfa *p = dfa_new();
    struct names names;
    uint32_t n;
    int rc = names_init(&names);

    if (rc == 0) rc = p ? names_find(&names, start, 2, &n) : -ENOMEM;
    for (uint32_t i = 0; rc == 0 && i < names_count(&names); i++) {
        uint32_t pair[2];
        memcpy(pair, name_of(&names, i, &n), sizeof pair);
        rc = add_pair(p, &names, of, pair);
    }
    names_fini(&names);
    return give(p, rc, ret);
}

int dfa_others(const struct dfa *x, struct dfa **ret)
{
    const uint32_t sink = n_states(x);
    struct dfa *o = dfa_new();
    int rc = o ? 0 : -ENOMEM;

    for (uint32_t s = 0; rc == 0 && s < sink; s++) {
        uint32_t from = 0;
        for (uint32_t i = first_edge(x, s); rc == 0 && i < first_edge(x, s + 1); i++) {
            const struct dfa_edge e = *edge_at(x, i);
            if (e.lo > from) rc = add_edge(o, from, e.lo - 1, sink);
            if (rc == 0) rc = add_edge(o, e.lo, e.hi, e.to);
            from = e.hi + 1;
        }
        if (rc == 0 && from <= GRAM_CHAR_MAX) rc = add_edge(o, from, GRAM_CHAR_MAX, sink);
        if (rc == 0) rc = add_state(o, !GRAM_AT(x->ends, bool, s));
    }
    if (rc == 0) rc = add_edge(o, 0, GRAM_CHAR_MAX, sink);
    if (rc == 0) rc = add_state(o, true);
    return give(o, rc, ret);
}

bool dfa_takes(const struct dfa *x, const char *s, size_t len)
{
    uint32_t state = 0;
    unsigned n;

    for (size_t i = 0; i < len; i += n) {
        const uint32_t c = uni_decode((const uint8_t *)s + i, len - i, &n);
        uint32_t e = first_edge(x, state);
        while (e < first_edge(x, state + 1) && edge_at(x, e)->hi < c)
            e++;
        if (c == UNI_BAD || e >= first_edge(x, state + 1) || edge_at(x, e)->lo > c) return false;
        state = edge_at(x, e)->to;
    }
    return GRAM_AT(x->ends, bool, state);
}

/* ---- to nodes: a rule for each state ---- */

/* The state's ways to `to` as one set; those before from[0] are done. */
static gram_node ways_to(struct gram_builder *b, const struct dfa *x, uint32_t s, uint32_t to,
                         enum gram_spelling how)
{
    struct buf r = BUF_INIT;
    gram_node n = GRAM_NONE;

    for (uint32_t i = first_edge(x, s); i < first_edge(x, s + 1); i++) {
        const struct gram_range range = {edge_at(x, i)->lo, edge_at(x, i)->hi};
        if (edge_at(x, i)->to == to && buf_add(&r, &range, sizeof range) < 0)
            gram_builder_fail(b, -ENOMEM);
    }
    n = gram_chars(b, GRAM_ALL(r, struct gram_range), GRAM_COUNT(r, struct gram_range), how);
    buf_fini(&r);
    return n;
}

static void define_state(struct gram_builder *b, const struct dfa *x, uint32_t s,
                         const gram_node *rule, enum gram_spelling how)
{
    const uint32_t from = first_edge(x, s), to = first_edge(x, s + 1);
    const bool ends = GRAM_AT(x->ends, bool, s);
    struct buf part = BUF_INIT;
    gram_node n;

    if (ends && to == from + 1 && edge_at(x, from)->to == s) { /* a loop of its own kind */
        n = gram_repeat(b, ways_to(b, x, s, s, how), 0, GRAM_NO_END);
        gram_define(b, rule[s], n);
        return;
    }
    for (uint32_t i = from; i < to; i++) {
        const uint32_t next = edge_at(x, i)->to;
        bool done = false;
        for (uint32_t k = from; k < i && !done; k++)
            done = edge_at(x, k)->to == next;
        if (done) continue;
        n = GRAM_SEQ(b, ways_to(b, x, s, next, how), rule[next]);
        if (buf_add(&part, &n, sizeof n) < 0) gram_builder_fail(b, -ENOMEM);
    }
    n = gram_str(b, "");
    if (ends && buf_add(&part, &n, sizeof n) < 0) gram_builder_fail(b, -ENOMEM);
    n = gram_alt(b, GRAM_ALL(part, gram_node), GRAM_COUNT(part, gram_node));
    gram_define(b, rule[s], n);
    buf_fini(&part);
}

gram_node dfa_node(struct gram_builder *b, const struct dfa *x, enum gram_spelling how)
{
    const uint32_t n = n_states(x);
    gram_node *rule = mem_alloc(n * sizeof *rule), first = GRAM_NONE;

    if (!rule) {
        gram_builder_fail(b, -ENOMEM);
        return GRAM_NONE;
    }
    for (uint32_t s = 0; s < n; s++)
        rule[s] = gram_rule(b, NULL);
    for (uint32_t s = 0; s < n && gram_builder_status(b) == 0; s++)
        define_state(b, x, s, rule, how);
    first = rule[0];
    mem_free(rule);
    return first;
}
