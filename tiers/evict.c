/* Eviction orders: LRU, and ARC (Megiddo and Modha, FAST'03) in bytes.
 *
 * LRU is one list. ARC keeps in T1 what was used once and in T2 what was used again; ghosts of what
 * left either one (B1, B2) say which of the two deserved more room: a miss on a ghost of B1 lets
 * T1's target grow, one of B2 lets it shrink.
 * Differences from the paper follow from the owner keeping the records: the target moves when room
 * is made for the incoming key (once per ghost), the insert comes later, and the ghost lists are
 * trimmed after each step, which gives the paper's bounds: T1+B1 <= c and all four <= 2c.
 * Patent: as far as we know the one on ARC, US 6,996,676, has expired (2024). */
#include "tiers/evict.h"

#include "base/assert.h"
#include "base/mem.h"

#include <errno.h>
#include <string.h>

static const char *const policy_name[] = {"lru", "arc"};
_Static_assert(sizeof policy_name / sizeof *policy_name == EVICT_POLICY_COUNT, "a name per policy");

enum { T1, T2, B1, B2, LISTS }; /* LRU: T1 alone */
struct list {                   /* nodes enter at the head, victims are taken from the tail */
    struct evict_node *head, *tail;
    uint64_t bytes, n;
};
struct ghost {              /* key and size of a node that was evicted */
    struct evict_node node; /* first */
    bool learnt;            /* the target has moved for this one */
};
struct evict {
    bool arc;
    uint64_t capacity_bytes;
    struct list list[LISTS];
    uint64_t target_bytes; /* the share of the capacity that T1 should have */
    struct ghost *cell;    /* [n_cells] */
    struct key_node *free;
    struct key_map ghosts;
    size_t n_cells;
};
struct ask { /* one search for a victim */
    bool (*may)(void *ctx, const struct evict_node *n);
    void *ctx;
    size_t tries; /* left */
};

const char *evict_policy_name(enum evict_policy p)
{
    return (unsigned)p < EVICT_POLICY_COUNT ? policy_name[p] : "?";
}

bool evict_policy_parse(const char *name, enum evict_policy *ret)
{
    for (unsigned i = 0; i < EVICT_POLICY_COUNT; i++) {
        if (strcmp(name, policy_name[i]) != 0) continue;
        *ret = (enum evict_policy)i;
        return true;
    }
    return false;
}

/* ---- lists; a node knows its own ---- */

static void list_push(struct evict *e, unsigned i, struct evict_node *n)
{
    struct list *l = &e->list[i];
    n->list = (uint8_t)(i + 1);
    n->prev = NULL;
    n->next = l->head;
    *(l->head ? &l->head->prev : &l->tail) = n;
    l->head = n;
    l->bytes += n->size_bytes;
    l->n++;
}

static void list_remove(struct evict *e, struct evict_node *n)
{
    struct list *l = &e->list[n->list - 1];
    ASSERT(l->n > 0 && l->bytes >= n->size_bytes);
    *(n->prev ? &n->prev->next : &l->head) = n->next;
    *(n->next ? &n->next->prev : &l->tail) = n->prev;
    l->bytes -= n->size_bytes;
    l->n--;
    n->prev = n->next = NULL;
    n->list = 0;
}

static struct evict_node *list_victim(const struct evict *e, unsigned i, struct ask *a)
{
    for (struct evict_node *n = e->list[i].tail; n && a->tries > 0; n = n->prev, a->tries--)
        if (!a->may || a->may(a->ctx, n)) return n;
    return NULL;
}

/* ---- ghosts: a fixed pool of cells; the oldest of the longer list makes way ---- */

static int ghosts_create(struct evict *e, size_t n_cells)
{
    if (n_cells == 0) return 0;
    if (n_cells > UINT32_MAX / 2) return -ERANGE;
    e->n_cells = n_cells;
    e->cell = mem_zalloc(n_cells * sizeof *e->cell);
    if (!e->cell || key_map_init(&e->ghosts, n_cells) < 0) return -ENOMEM;
    for (size_t i = n_cells; i-- > 0;) {
        e->cell[i].node.map.chain = e->free;
        e->free = &e->cell[i].node.map;
    }
    return 0;
}

static struct ghost *ghost_find(const struct evict *e, const struct tier_key *k)
{
    return (struct ghost *)key_map_find(&e->ghosts, k);
}

static void ghost_remove(struct evict *e, struct ghost *g)
{
    key_map_remove(&e->ghosts, &g->node.map);
    list_remove(e, &g->node);
    g->node.map.chain = e->free;
    e->free = &g->node.map;
}

static void ghost_drop_oldest(struct evict *e, unsigned i)
{
    if (e->list[i].tail) ghost_remove(e, (struct ghost *)e->list[i].tail);
}

static void ghost_push(struct evict *e, unsigned i, const struct evict_node *n)
{
    if (e->n_cells == 0) return;
    struct ghost *g = ghost_find(e, &n->key);
    if (g) ghost_remove(e, g);
    if (!e->free) ghost_drop_oldest(e, e->list[B1].n >= e->list[B2].n ? B1 : B2);
    g = (struct ghost *)e->free;
    e->free = e->free->chain;
    *g = (struct ghost){.node = {.key = n->key, .size_bytes = n->size_bytes}};
    key_map_insert(&e->ghosts, &g->node.map);
    list_push(e, i, &g->node);
}

/* ---- ARC ---- */

static void trim_ghosts(struct evict *e)
{
    const struct list *l = e->list;
    uint64_t c = e->capacity_bytes;
    while (l[B1].n > 0 && l[T1].bytes + l[B1].bytes > c)
        ghost_drop_oldest(e, B1);
    while (l[B2].n > 0 && l[T1].bytes + l[T2].bytes + l[B1].bytes + l[B2].bytes > 2 * c)
        ghost_drop_oldest(e, B2);
}

/* Learn from a miss on a ghost: the smaller of the two ghost lists gives the larger steps. Whole
 * ratios, as in most implementations; measured on the Mooncake conversation trace, 10k blocks: 22.5
 * % hits, with fractions 22.3 %. */
static void learn(struct evict *e, struct ghost *g)
{
    if (g->learnt) return;
    g->learnt = true;
    uint64_t b1 = e->list[B1].bytes, b2 = e->list[B2].bytes;
    uint64_t room = e->capacity_bytes - e->target_bytes;
    if (g->node.list == B1 + 1) {
        uint64_t step = g->node.size_bytes * (b2 > b1 ? b2 / b1 : 1);
        e->target_bytes += step < room ? step : room;
    } else {
        uint64_t step = g->node.size_bytes * (b1 > b2 ? b1 / b2 : 1);
        e->target_bytes -= step < e->target_bytes ? step : e->target_bytes;
    }
}

/* ---- interface ---- */

int evict_create(enum evict_policy p, uint64_t capacity_bytes, size_t n_ghosts, struct evict **ret)
{
    if ((unsigned)p >= EVICT_POLICY_COUNT) return -EINVAL;
    struct evict *e = mem_zalloc(sizeof *e);
    if (!e) return -ENOMEM;
    e->arc = p == EVICT_ARC;
    e->capacity_bytes = capacity_bytes;
    int r = ghosts_create(e, e->arc ? n_ghosts : 0);
    if (r < 0) {
        evict_destroy(e);
        return r;
    }
    *ret = e;
    return 0;
}

void evict_destroy(struct evict *e)
{
    if (!e) return;
    mem_free(e->cell);
    key_map_fini(&e->ghosts);
    mem_free(e);
}

void evict_resize(struct evict *e, uint64_t capacity_bytes)
{
    e->capacity_bytes = capacity_bytes;
    if (e->target_bytes > capacity_bytes) e->target_bytes = capacity_bytes;
    trim_ghosts(e);
}

void evict_insert(struct evict *e, struct evict_node *n)
{
    ASSERT(n->list == 0);
    ASSERT(n->size_bytes > 0);
    struct ghost *g = ghost_find(e, &n->key);
    if (g) {
        learn(e, g);
        ghost_remove(e, g);
    }
    list_push(e, g ? T2 : T1, n);
    trim_ghosts(e);
}

void evict_hit(struct evict *e, struct evict_node *n)
{
    ASSERT(n->list != 0);
    list_remove(e, n);
    list_push(e, e->arc ? T2 : T1, n);
}

void evict_remove(struct evict *e, struct evict_node *n, bool evicted)
{
    ASSERT(n->list != 0);
    unsigned ghosts = n->list - 1 == T1 ? B1 : B2;
    list_remove(e, n);
    if (!evicted) return;
    ghost_push(e, ghosts, n);
    trim_ghosts(e);
}

struct evict_node *evict_victim(struct evict *e, const struct tier_key *incoming,
                                bool (*may)(void *ctx, const struct evict_node *n), void *ctx,
                                size_t tries)
{
    struct ask a = {may, ctx, tries ? tries : SIZE_MAX};
    struct ghost *g = incoming ? ghost_find(e, incoming) : NULL;
    if (g) learn(e, g);
    uint64_t once = e->list[T1].bytes;
    bool from_once =
        once > e->target_bytes || (once == e->target_bytes && g && g->node.list == B2 + 1);
    struct evict_node *n = list_victim(e, from_once ? T1 : T2, &a);
    return n ? n : list_victim(e, from_once ? T2 : T1, &a);
}

void evict_move(struct evict *from, struct evict *to)
{
    for (struct evict_node *n; (n = evict_victim(from, NULL, NULL, NULL, 0)) != NULL;) {
        evict_remove(from, n, false);
        evict_insert(to, n);
    }
}

uint64_t evict_memory_bytes(const struct evict *e)
{
    if (e->n_cells == 0) return sizeof *e;
    uint64_t n_buckets = e->ghosts.mask + 1;
    return sizeof *e + e->n_cells * sizeof *e->cell + n_buckets * sizeof *e->ghosts.bucket;
}
