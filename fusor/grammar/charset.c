/* A set of characters as an automaton over bytes: UTF-8 sequences, and for JSON strings the
 * escapes.
 *
 * Ranges are cut until each is a sequence of ranges of digits (UTF-8's bytes, or hexadecimal
 * digits), which go into a trie. Cut that way two of them are equal or disjoint at every node, so
 * the trie is deterministic. Then states without an end are taken out and equal ones become one. */
#include "fusor/grammar/grammar_int.h"

#include "base/fnv.h"

#include <assert.h>
#include <string.h>

enum { NODES_MAX = 1 << 16 };
struct trie_edge {
    uint32_t to, next; /* next edge of the same node, 0: none; to: TRIE_END */
    uint8_t lo, hi;
};
struct trie {
    struct buf edge; /* of struct trie_edge; [0] is none */
    struct buf head; /* of uint32_t: first edge of a node */
    int status;
};
enum { TRIE_END = UINT32_MAX };

static uint32_t trie_node(struct trie *t)
{
    const uint32_t none = 0;
    const size_t n = GRAM_COUNT(t->head, uint32_t);

    if (n >= NODES_MAX && t->status == 0) t->status = -ERANGE;
    if (t->status == 0) t->status = buf_add(&t->head, &none, sizeof none);
    return t->status == 0 ? (uint32_t)n : 0;
}

static void trie_edge(struct trie *t, uint32_t from, uint8_t lo, uint8_t hi, uint32_t to)
{
    struct trie_edge e = {.to = to, .lo = lo, .hi = hi};
    const size_t n = GRAM_COUNT(t->edge, struct trie_edge);

    if (t->status < 0) return;
    e.next = GRAM_AT(t->head, uint32_t, from);
    t->status = buf_add(&t->edge, &e, sizeof e);
    if (t->status == 0) GRAM_AT(t->head, uint32_t, from) = (uint32_t)n;
}

/* The node behind an edge of these bytes; found says whether it was there. */
static uint32_t trie_child(struct trie *t, uint32_t from, uint8_t lo, uint8_t hi, bool *found)
{
    *found = false;
    if (t->status < 0) return 0;
    for (uint32_t i = GRAM_AT(t->head, uint32_t, from); i;
         i = GRAM_AT(t->edge, struct trie_edge, i).next) {
        const struct trie_edge *e = &GRAM_AT(t->edge, struct trie_edge, i);
        if (e->lo == lo && e->hi == hi) {
            *found = true;
            return e->to;
        }
    }
    const uint32_t to = trie_node(t);
    trie_edge(t, from, lo, hi, to);
    return to;
}

static uint32_t trie_step(struct trie *t, uint32_t from, uint8_t lo, uint8_t hi)
{
    bool found;

    return trie_child(t, from, lo, hi, &found);
}

/* ---- UTF-8 ---- */

static unsigned utf8_put(uint32_t c, uint8_t out[4])
{
    static const uint8_t lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    const unsigned n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;

    for (unsigned i = n; i-- > 1; c >>= 6)
        out[i] = (uint8_t)(0x80 | (c & 0x3F));
    out[0] = (uint8_t)(lead[n] | c); /* lead[1] is not used: c < 0x80 is itself */
    return n;
}

/* Characters of one length whose bytes have the ranges of the first and the last one's. */
static void add_utf8_block(struct trie *t, uint32_t at, uint32_t lo, uint32_t hi)
{
    uint8_t a[4], b[4];
    const unsigned n = utf8_put(lo, a);

    (void)utf8_put(hi, b);
    for (unsigned i = 0; i + 1 < n; i++)
        at = trie_step(t, at, a[i], b[i]);
    trie_edge(t, at, a[n - 1], b[n - 1], TRIE_END);
}

/* Recursion: at most once per byte of a character and side. */
static void add_utf8(struct trie *t, uint32_t at, uint32_t lo, uint32_t hi)
{
    static const uint32_t last[] = {0x7F, 0x7FF, 0xFFFF};

    for (unsigned i = 0; i < 3; i++)
        if (lo <= last[i] && hi > last[i]) {
            add_utf8(t, at, lo, last[i]);
            add_utf8(t, at, last[i] + 1, hi);
            return;
        }
    for (unsigned i = 1; lo >= 0x80 && i < 4; i++) {
        const uint32_t tail = (1u << (6 * i)) - 1;
        if ((lo | tail) >= hi) break;
        if (lo & tail) {
            add_utf8(t, at, lo, lo | tail);
            add_utf8(t, at, (lo | tail) + 1, hi);
            return;
        }
        if ((hi & tail) != tail) {
            add_utf8(t, at, lo, (hi & ~tail) - 1);
            add_utf8(t, at, hi & ~tail, hi);
            return;
        }
    }
    add_utf8_block(t, at, lo, hi);
}

/* ---- hexadecimal escapes ---- */

/* The node behind a digit of [lo, hi], or (end) the end of the character. */
static uint32_t hex_step(struct trie *t, uint32_t at, unsigned lo, unsigned hi, bool end)
{
    const uint8_t a = (uint8_t)(lo < 10 ? '0' + lo : 'a' + lo - 10);
    const uint8_t b = (uint8_t)(hi < 10 ? '0' + hi : lo < 10 ? '9' : 'a' + hi - 10);
    const unsigned la = lo < 10 ? 0 : lo - 10, lb = hi - 10; /* letters, if hi >= 10 */
    bool found = false;
    uint32_t to = TRIE_END;

    if (end)
        trie_edge(t, at, a, b, to);
    else
        to = trie_child(t, at, a, b, &found);
    if (found || hi < 10) return to;
    if (lo < 10) trie_edge(t, at, (uint8_t)('a' + la), (uint8_t)('a' + lb), to);
    trie_edge(t, at, (uint8_t)('A' + la), (uint8_t)('A' + lb), to);
    return to;
}

static void add_hex(struct trie *t, uint32_t at, uint32_t lo, uint32_t hi)
{
    for (unsigned i = 1; i < 4; i++) {
        const uint32_t tail = (1u << (4 * i)) - 1;
        if ((lo | tail) >= hi) break;
        if (lo & tail) {
            add_hex(t, at, lo, lo | tail);
            add_hex(t, at, (lo | tail) + 1, hi);
            return;
        }
        if ((hi & tail) != tail) {
            add_hex(t, at, lo, (hi & ~tail) - 1);
            add_hex(t, at, hi & ~tail, hi);
            return;
        }
    }
    for (unsigned i = 4; i-- > 0;)
        at = hex_step(t, at, (lo >> (4 * i)) & 15, (hi >> (4 * i)) & 15, i == 0);
}

/* All pairs of surrogates: characters above U+FFFF. `at`: behind "\u". */
static void add_pairs(struct trie *t, uint32_t at)
{
    at = hex_step(t, at, 13, 13, false);
    at = hex_step(t, at, 8, 11, false);
    at = hex_step(t, at, 0, 15, false);
    at = hex_step(t, at, 0, 15, false);
    at = trie_step(t, at, '\\', '\\');
    at = trie_step(t, at, 'u', 'u');
    at = hex_step(t, at, 13, 13, false);
    at = hex_step(t, at, 12, 15, false);
    at = hex_step(t, at, 0, 15, false);
    (void)hex_step(t, at, 0, 15, true);
}

/* ---- JSON ---- */

/* `put` for what the ranges [lo, hi] have in common with [from, to]. */
static void add_part(struct trie *t, uint32_t at, const struct gram_range *r, uint32_t from,
                     uint32_t to, void (*put)(struct trie *, uint32_t, uint32_t, uint32_t))
{
    const uint32_t lo = r->lo > from ? r->lo : from, hi = r->hi < to ? r->hi : to;

    if (lo <= hi) put(t, at, lo, hi);
}

/* Printable ASCII is written as itself only: nobody spells it in hexadecimal but a model at a loss,
 * and a set of a few letters would else be open to every "\". */
static void add_json(struct trie *t, const struct gram_range *r)
{
    static const struct {
        char is, as;
    } brief[] = {{'"', '"'},  {'\\', '\\'}, {'/', '/'},  {'\b', 'b'},
                 {'\f', 'f'}, {'\n', 'n'},  {'\r', 'r'}, {'\t', 't'}};

    add_part(t, 0, r, 0x20, '"' - 1, add_utf8);
    add_part(t, 0, r, '"' + 1, '\\' - 1, add_utf8);
    add_part(t, 0, r, '\\' + 1, GRAM_CHAR_MAX, add_utf8);
    const uint32_t escape = trie_step(t, 0, '\\', '\\');
    for (size_t i = 0; i < sizeof brief / sizeof *brief; i++)
        if (r->lo <= (uint8_t)brief[i].is && (uint8_t)brief[i].is <= r->hi)
            trie_edge(t, escape, (uint8_t)brief[i].as, (uint8_t)brief[i].as, TRIE_END);
    const uint32_t hex = trie_step(t, escape, 'u', 'u');
    add_part(t, hex, r, 0, 0x1F, add_hex);
    add_part(t, hex, r, 0x7F, 0xFFFF, add_hex);
    if (r->lo <= 0x10000 && r->hi >= GRAM_CHAR_MAX) add_pairs(t, hex);
}

/* ---- the automaton ---- */

struct shrink { /* from trie nodes to states, from the leaves up */
    const struct trie *t;
    const bool *byte;
    uint16_t *state_of; /* [nodes]; SET_DEAD: leads nowhere */
    uint16_t *slot;     /* [SLOTS] a state plus 1, by hash of its edges */
    struct buf edge;    /* of struct byte_edge */
    struct buf first;   /* of uint32_t: [n_state + 1] */
    uint32_t n_state;
};
enum { SLOTS = 1 << 13 };
static_assert(SLOTS > 2 * (int)CHARSET_STATES_MAX, "a free slot ends each search");

/* Append a node's edges in order, where there are bytes for them and they lead somewhere. */
static int add_live_edges(struct shrink *s, uint32_t node)
{
    struct byte_edge out[256];
    uint16_t to[256];
    uint32_t n = 0;

    for (unsigned c = 0; c < 256; c++)
        to[c] = SET_DEAD;
    for (uint32_t i = GRAM_AT(s->t->head, uint32_t, node), next; i; i = next) {
        const struct trie_edge *e = &GRAM_AT(s->t->edge, struct trie_edge, i);
        next = e->next;
        for (unsigned c = e->lo; c <= e->hi; c++)
            if (s->byte[c]) to[c] = e->to == TRIE_END ? CHARSET_END : s->state_of[e->to];
    }
    for (unsigned c = 0; c < 256; c++) {
        if (to[c] == SET_DEAD) continue;
        if (n > 0 && out[n - 1].to == to[c] && out[n - 1].hi + 1u == c)
            out[n - 1].hi = (uint8_t)c;
        else
            out[n++] = (struct byte_edge){(uint8_t)c, (uint8_t)c, to[c]};
    }
    return buf_add(&s->edge, out, n * sizeof *out);
}

/* The state whose edges are those behind the last state's; they are dropped where it is there. */
static int find_state(struct shrink *s, uint16_t *ret)
{
    const uint32_t *first = GRAM_ALL(s->first, uint32_t);
    const uint32_t end = (uint32_t)GRAM_COUNT(s->edge, struct byte_edge);
    const uint32_t own = first[s->n_state], n = end - own;
    const struct byte_edge *edge = GRAM_ALL(s->edge, struct byte_edge);
    uint64_t at;

    *ret = SET_DEAD;
    if (n == 0) return 0;
    for (at = fnv_add(FNV_START, edge + own, n * sizeof *edge);; at++) {
        const uint16_t i = s->slot[at % SLOTS];
        if (i == 0) break;
        if (first[i] - first[i - 1] != n) continue;
        if (memcmp(edge + first[i - 1], edge + own, n * sizeof *edge) != 0) continue;
        s->edge.len = own * sizeof *edge;
        *ret = i - 1;
        return 0;
    }
    if (s->n_state >= CHARSET_STATES_MAX) return -ERANGE;
    *ret = (uint16_t)s->n_state++;
    s->slot[at % SLOTS] = *ret + 1;
    return buf_add(&s->first, &end, sizeof end);
}

/* States are found from the leaves up, so the first one has the highest number: it becomes 0. */
static int turn_round(const struct shrink *s, struct charset *ret)
{
    const uint32_t n = s->n_state, *first = GRAM_ALL(s->first, uint32_t);
    struct charset c = {.n = n};
    uint32_t at = 0;

    c.edge = mem_alloc(s->edge.len);
    c.first = mem_alloc((n + 1) * sizeof *c.first);
    if (!c.edge || !c.first) {
        charset_fini(&c);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < n; i++) {
        c.first[i] = at;
        for (uint32_t k = first[n - 1 - i]; k < first[n - i]; k++) {
            struct byte_edge e = GRAM_AT(s->edge, struct byte_edge, k);
            if (e.to != CHARSET_END) e.to = (uint16_t)(n - 1 - e.to);
            c.edge[at++] = e;
        }
    }
    c.first[n] = at;
    *ret = c;
    return 0;
}

static int shrink(const struct trie *t, const bool byte[256], struct charset *ret)
{
    const uint32_t nodes = (uint32_t)GRAM_COUNT(t->head, uint32_t), zero = 0;
    struct shrink s = {.t = t, .byte = byte};
    int rc = buf_add(&s.first, &zero, sizeof zero);

    s.state_of = mem_alloc(nodes * sizeof *s.state_of);
    s.slot = mem_zalloc(SLOTS * sizeof *s.slot);
    if (!s.state_of || !s.slot) rc = -ENOMEM;
    for (uint32_t i = nodes; rc == 0 && i-- > 0;) {
        rc = add_live_edges(&s, i);
        if (rc == 0) rc = find_state(&s, &s.state_of[i]);
    }
    if (rc == 0 && s.state_of[0] != SET_DEAD)
        rc = turn_round(&s, ret);
    else if (rc == 0)
        *ret = (struct charset){0};
    mem_free(s.state_of);
    mem_free(s.slot);
    buf_fini(&s.edge);
    buf_fini(&s.first);
    return rc;
}

int charset_create(const struct gram_range *r, size_t n, enum gram_spelling how,
                   const bool byte[256], struct charset *ret)
{
    const struct trie_edge none = {0};
    struct trie t = {0};
    int rc = buf_add(&t.edge, &none, sizeof none);

    if (rc == 0) t.status = rc;
    if (rc == 0) (void)trie_node(&t);
    for (size_t i = 0; rc == 0 && i < n && t.status == 0; i++) {
        if (how == GRAM_JSON)
            add_json(&t, &r[i]);
        else
            add_utf8(&t, 0, r[i].lo, r[i].hi);
    }
    if (rc == 0) rc = t.status;
    if (rc == 0) rc = shrink(&t, byte, ret);
    buf_fini(&t.edge);
    buf_fini(&t.head);
    return rc;
}

void charset_fini(struct charset *c)
{
    mem_free(c->edge);
    mem_free(c->first);
    *c = (struct charset){0};
}
