/* GDSF (Cherkasova 1998): rank = age + uses * cost / size; the lowest rank goes first and its rank
 * becomes the age, so that what was used often long ago is overtaken by what is used now.
 *
 * Cost per byte is taken relative to the mean of what was inserted, so that a rank is in "uses",
 * and a node of unknown cost counts as an average one; with all of them unknown or alike it is aged
 * LFU. An intrusive pairing heap: child is the first child, next the next sibling, prev the sibling
 * before or, of a first child, the parent. Equal ranks are frequent (all new nodes between two
 * evictions); the one used longer ago goes first. Nodes that the owner does not let go are taken
 * off the top and put back with their ranks: O(log n) each, fine for the few that are pinned. */
#include "tiers/evict_int.h"

enum { IN_HEAP = 1, FREQ_MAX = 255, MEAN_OF = 1024 /* chosen: follows a new model within hours */ };

static bool before(const struct evict_node *a, const struct evict_node *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->order < b->order;
}

/* ---- heap ---- */

static struct evict_node *meld(struct evict_node *a, struct evict_node *b)
{
    if (!a || !b) return a ? a : b;
    if (before(b, a)) {
        struct evict_node *t = a;
        a = b;
        b = t;
    }
    b->prev = a;
    b->next = a->child;
    if (a->child) a->child->prev = b;
    a->child = b;
    a->prev = a->next = NULL;
    return a;
}

/* Two passes over the siblings: meld pairs left to right, then all of them right to left. */
static struct evict_node *meld_siblings(struct evict_node *n)
{
    struct evict_node *pairs = NULL, *all = NULL;
    while (n) {
        struct evict_node *a = n, *b = n->next;
        n = b ? b->next : NULL;
        a->prev = a->next = NULL;
        if (b) b->prev = b->next = NULL;
        a = meld(a, b);
        a->next = pairs;
        pairs = a;
    }
    while (pairs) {
        struct evict_node *rest = pairs->next;
        pairs->next = NULL;
        all = meld(all, pairs);
        pairs = rest;
    }
    return all;
}

static void heap_remove(struct evict *e, struct evict_node *n)
{
    struct evict_node *below = meld_siblings(n->child);
    if (n == e->root) {
        e->root = below;
    } else {
        *(n->prev->child == n ? &n->prev->child : &n->prev->next) = n->next;
        if (n->next) n->next->prev = n->prev;
        e->root = meld(e->root, below);
    }
    n->prev = n->next = n->child = NULL;
}

/* ---- policy ---- */

static double relative_cost(const struct evict *e, const struct evict_node *n)
{
    if (!(n->cost_ms > 0) || e->n_costs == 0) return 1;
    return (double)n->cost_ms / (double)n->size_bytes / e->cost_mean;
}

static void place(struct evict *e, struct evict_node *n)
{
    n->rank = e->age + n->freq * relative_cost(e, n);
    n->order = e->clock++;
    e->root = meld(e->root, n);
}

static void gdsf_insert(struct evict *e, struct evict_node *n)
{
    if (n->cost_ms > 0) {
        if (e->n_costs < MEAN_OF) e->n_costs++;
        double cost = (double)n->cost_ms / (double)n->size_bytes;
        e->cost_mean += (cost - e->cost_mean) / (double)e->n_costs;
    }
    n->list = IN_HEAP;
    n->freq = 1;
    place(e, n);
}

static void gdsf_hit(struct evict *e, struct evict_node *n)
{
    heap_remove(e, n);
    if (n->freq < FREQ_MAX) n->freq++;
    place(e, n);
}

static void gdsf_remove(struct evict *e, struct evict_node *n, bool evicted)
{
    heap_remove(e, n);
    n->list = 0;
    if (evicted && n->rank > e->age) e->age = n->rank;
}

static struct evict_node *gdsf_victim(struct evict *e, struct evict_ask *a)
{
    struct evict_node *found = NULL, *passed = NULL;
    while (e->root) {
        struct evict_node *n = e->root;
        int r = evict_ask_may(a, n);
        if (r > 0) found = n;
        if (r != 0) break;
        heap_remove(e, n);
        n->next = passed;
        passed = n;
    }
    while (passed) {
        struct evict_node *n = passed;
        passed = n->next;
        n->next = NULL;
        e->root = meld(e->root, n);
    }
    return found;
}

const struct evict_ops evict_gdsf_ops = {gdsf_insert, gdsf_hit, gdsf_remove,
                                         gdsf_victim, NULL,     false};
