/* run_int: states of texts under a grammar, for run.c and stacks.c. Thread: as run.h. */
#ifndef FUSOR_GRAMMAR_RUN_INT_H
#define FUSOR_GRAMMAR_RUN_INT_H

#include "base/buf.h"
#include "fusor/grammar/grammar_int.h"

/* A set of stacks of return addresses, as a graph that all sets share: an entry says where to
 * return to, and the set of stacks below. Each address at most once, ascending; equal sets are one
 * node. So a text that can be read in many ways takes no more room than the places it can be at. */
struct stack_entry {
    uint32_t place; /* 0: the end */
    uint32_t below; /* STACK_NONE there */
};
struct stack_node {
    uint32_t first, n; /* of entries */
    uint32_t depth;
};
typedef uint32_t stack_id;
/* The lowest has one entry, the end; it is the first that is made, and what all others lead to. */
enum { STACK_NONE = 0, STACK_LOWEST = 1 };
struct stacks {
    struct buf node;  /* of struct stack_node; [0] is STACK_NONE */
    struct buf entry; /* of struct stack_entry */
    uint32_t *slot;   /* node, by hash of its entries; 0: free */
    uint32_t n_slots;
    struct stack_union {
        stack_id a, b, both;
    } * memo; /* direct-mapped */
};
int stacks_init(struct stacks *s);
void stacks_fini(struct stacks *s);
/* The set with these entries, ascending by place. -ENOMEM, -E2BIG: too many in all. */
int stacks_find(struct stacks *s, const struct stack_entry *e, uint32_t n, stack_id *ret);
int stacks_union(struct stacks *s, stack_id a, stack_id b, stack_id *ret);
static inline const struct stack_node *stack_at(const struct stacks *s, stack_id id)
{
    return &GRAM_AT(s->node, struct stack_node, id);
}
size_t stacks_bytes(const struct stacks *s);

#endif
