/* Sets of stacks: hash-consing and union; see run_int.h. */
#include "fusor/grammar/run_int.h"

#include "base/fnv.h"

#include <string.h>

enum {
    NODES_MAX = 1 << 20,
    ENTRIES_MAX = 1 << 22,
    MEMO = 1 << 10,     /* chosen: unions of one step that meet again */
    WIDTH_MAX = 1 << 12 /* entries of a node */
};

int stacks_init(struct stacks *s)
{
    const struct stack_node none = {0};

    *s = (struct stacks){.n_slots = 256};
    s->slot = mem_zalloc(s->n_slots * sizeof *s->slot);
    s->memo = mem_zalloc(MEMO * sizeof *s->memo);
    if (!s->slot || !s->memo || buf_add(&s->node, &none, sizeof none) < 0) {
        stacks_fini(s);
        return -ENOMEM;
    }
    return 0;
}

void stacks_fini(struct stacks *s)
{
    buf_fini(&s->node);
    buf_fini(&s->entry);
    mem_free(s->slot);
    mem_free(s->memo);
    *s = (struct stacks){0};
}

size_t stacks_bytes(const struct stacks *s)
{
    return s->node.len + s->entry.len + s->n_slots * sizeof *s->slot;
}

static uint64_t hash_of(const struct stack_entry *e, uint32_t n)
{
    uint64_t h = FNV_START;

    for (uint32_t i = 0; i < n; i++)
        h = (h ^ (((uint64_t)e[i].place << 32) | e[i].below)) * 0x9E3779B97F4A7C15ull;
    return h ^ (h >> 29);
}

static const struct stack_entry *entries_of(const struct stacks *s, stack_id id)
{
    return &GRAM_AT(s->entry, struct stack_entry, stack_at(s, id)->first);
}

static int grow(struct stacks *s)
{
    const uint32_t n = 2 * s->n_slots;
    uint32_t *slot = mem_zalloc(n * sizeof *slot);

    if (!slot) return -ENOMEM;
    for (uint32_t i = 1; i < GRAM_COUNT(s->node, struct stack_node); i++) {
        uint64_t at = hash_of(entries_of(s, i), stack_at(s, i)->n);
        while (slot[at % n])
            at++;
        slot[at % n] = i;
    }
    mem_free(s->slot);
    s->slot = slot;
    s->n_slots = n;
    return 0;
}

static int add_node(struct stacks *s, const struct stack_entry *e, uint32_t n, stack_id *ret)
{
    const size_t id = GRAM_COUNT(s->node, struct stack_node);
    struct stack_node node = {(uint32_t)GRAM_COUNT(s->entry, struct stack_entry), n, 0};

    if (id >= NODES_MAX || node.first + n > ENTRIES_MAX || n > WIDTH_MAX) return -E2BIG;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t below = e[i].below ? stack_at(s, e[i].below)->depth + 1 : 0;
        if (below > node.depth) node.depth = below;
    }
    if (buf_add(&s->entry, e, n * sizeof *e) < 0) return -ENOMEM;
    if (buf_add(&s->node, &node, sizeof node) < 0) return -ENOMEM;
    *ret = (stack_id)id;
    return 0;
}

int stacks_find(struct stacks *s, const struct stack_entry *e, uint32_t n, stack_id *ret)
{
    uint64_t at;

    if (2 * GRAM_COUNT(s->node, struct stack_node) > s->n_slots && grow(s) < 0) return -ENOMEM;
    for (at = hash_of(e, n);; at++) {
        const stack_id id = s->slot[at % s->n_slots];
        if (id == STACK_NONE) break;
        if (stack_at(s, id)->n != n || memcmp(entries_of(s, id), e, n * sizeof *e) != 0) continue;
        *ret = id;
        return 0;
    }
    const int rc = add_node(s, e, n, ret);
    if (rc == 0) s->slot[at % s->n_slots] = *ret;
    return rc;
}

/* Recursion: both go down by one each time, GRAM_DEPTH_MAX at most. */
int stacks_union(struct stacks *s, stack_id a, stack_id b, stack_id *ret)
{
    struct buf out = BUF_INIT;
    uint32_t i = 0, k = 0;
    int rc = 0;

    if (a == b || b == STACK_NONE || a == STACK_NONE) {
        *ret = a == STACK_NONE ? b : a;
        return 0;
    }
    if (a > b) {
        const stack_id t = a;
        a = b;
        b = t;
    }
    struct stack_union *memo = &s->memo[(a * 31u + b) % MEMO];
    if (memo->a == a && memo->b == b) {
        *ret = memo->both;
        return 0;
    }
    const uint32_t na = stack_at(s, a)->n, nb = stack_at(s, b)->n;
    while (rc == 0 && (i < na || k < nb)) { /* the arrays may move: read again each time */
        const struct stack_entry none = {UINT32_MAX, STACK_NONE};
        const struct stack_entry x = i < na ? entries_of(s, a)[i] : none;
        const struct stack_entry y = k < nb ? entries_of(s, b)[k] : none;
        struct stack_entry e = x.place <= y.place ? x : y;
        if (x.place == y.place) rc = stacks_union(s, x.below, y.below, &e.below);
        if (rc == 0) rc = buf_add(&out, &e, sizeof e);
        i += x.place <= y.place;
        k += y.place <= x.place;
    }
    if (rc == 0)
        rc = stacks_find(s, GRAM_ALL(out, struct stack_entry),
                         (uint32_t)GRAM_COUNT(out, struct stack_entry), ret);
    if (rc == 0) *memo = (struct stack_union){a, b, *ret};
    buf_fini(&out);
    return rc;
}
