/* Ghosts: keys of nodes that were evicted, for ARC. A pool of cells of fixed size in a
 * hash table; a cell is free, or in one of two lists by age. */
#include "base/assert.h"
#include "base/mem.h"
#include "tiers/evict_int.h"

int evict_ghosts_init(struct evict_ghosts *g, size_t n_cells)
{
    *g = (struct evict_ghosts){.free = EVICT_NO_CELL};
    for (unsigned i = 0; i < 2; i++)
        g->list[i].head = g->list[i].tail = EVICT_NO_CELL;
    if (n_cells == 0) return 0;
    if (n_cells > UINT32_MAX / 2) return -ERANGE;
    g->n_cells = (uint32_t)n_cells;
    uint32_t n_buckets = 1;
    while (n_buckets < g->n_cells)
        n_buckets *= 2;
    g->mask = n_buckets - 1;
    g->cell = mem_zalloc(n_cells * sizeof *g->cell);
    g->bucket = mem_alloc(n_buckets * sizeof *g->bucket);
    if (!g->cell || !g->bucket) {
        evict_ghosts_fini(g);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < n_buckets; i++)
        g->bucket[i] = EVICT_NO_CELL;
    for (uint32_t i = g->n_cells; i-- > 0;) {
        g->cell[i].chain = g->free;
        g->free = i;
    }
    return 0;
}

void evict_ghosts_fini(struct evict_ghosts *g)
{
    mem_free(g->cell);
    mem_free(g->bucket);
    *g = (struct evict_ghosts){0};
}

/* Keys are hashes already, but a caller may number them: mixed all the same. */
static uint32_t *bucket_of(const struct evict_ghosts *g, const struct tier_key *k)
{
    return &g->bucket[(uint32_t)(((k->lo ^ k->hi) * 0x9E3779B97F4A7C15u) >> 32) & g->mask];
}

struct evict_ghost *evict_ghosts_find(struct evict_ghosts *g, const struct tier_key *k)
{
    if (g->n_cells == 0) return NULL;
    for (uint32_t i = *bucket_of(g, k); i != EVICT_NO_CELL; i = g->cell[i].chain)
        if (tier_key_same(&g->cell[i].key, k)) return &g->cell[i];
    return NULL;
}

void evict_ghosts_remove(struct evict_ghosts *g, struct evict_ghost *gone)
{
    uint32_t at = (uint32_t)(gone - g->cell), *link = bucket_of(g, &gone->key);
    while (*link != at)
        link = &g->cell[*link].chain;
    *link = gone->chain;
    unsigned l = gone->list;
    *(gone->prev != EVICT_NO_CELL ? &g->cell[gone->prev].next : &g->list[l].head) = gone->next;
    *(gone->next != EVICT_NO_CELL ? &g->cell[gone->next].prev : &g->list[l].tail) = gone->prev;
    ASSERT(g->list[l].n > 0 && g->list[l].bytes >= gone->size_bytes);
    g->list[l].n--;
    g->list[l].bytes -= gone->size_bytes;
    gone->chain = g->free;
    g->free = at;
}

void evict_ghosts_drop_oldest(struct evict_ghosts *g, unsigned i)
{
    if (g->list[i].n > 0) evict_ghosts_remove(g, &g->cell[g->list[i].tail]);
}

void evict_ghosts_push(struct evict_ghosts *g, unsigned i, const struct evict_node *n)
{
    if (g->n_cells == 0) return;
    struct evict_ghost *old = evict_ghosts_find(g, &n->key);
    if (old) evict_ghosts_remove(g, old);
    if (g->free == EVICT_NO_CELL) evict_ghosts_drop_oldest(g, g->list[1].n > g->list[0].n);
    uint32_t at = g->free, *bucket = bucket_of(g, &n->key), head = g->list[i].head;
    struct evict_ghost *c = &g->cell[at];
    g->free = c->chain;
    *c = (struct evict_ghost){.key = n->key,
                              .size_bytes = n->size_bytes,
                              .prev = EVICT_NO_CELL,
                              .next = head,
                              .chain = *bucket,
                              .list = (uint8_t)i};
    *bucket = at;
    *(head != EVICT_NO_CELL ? &g->cell[head].prev : &g->list[i].tail) = at;
    g->list[i].head = at;
    g->list[i].n++;
    g->list[i].bytes += n->size_bytes;
}

uint64_t evict_ghosts_memory_bytes(const struct evict_ghosts *g)
{
    if (g->n_cells == 0) return 0;
    return g->n_cells * sizeof *g->cell + ((uint64_t)g->mask + 1) * sizeof *g->bucket;
}
