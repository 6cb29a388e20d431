/* Eviction: the interface, LRU, and the lists that the policies share. */
#include "tiers/evict.h"

#include "base/assert.h"
#include "base/mem.h"
#include "tiers/evict_int.h"

#include <string.h>

static const char *const policy_name[] = {"lru", "arc"};
_Static_assert(sizeof policy_name / sizeof *policy_name == EVICT_POLICY_COUNT, "a name per policy");

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

/* ---- lists ---- */

void evict_list_push(struct evict *e, unsigned i, struct evict_node *n)
{
    struct evict_list *l = &e->list[i];
    n->list = (uint8_t)(i + 1);
    n->prev = NULL;
    n->next = l->head;
    *(l->head ? &l->head->prev : &l->tail) = n;
    l->head = n;
    l->bytes += n->size_bytes;
}

void evict_list_remove(struct evict *e, struct evict_node *n)
{
    struct evict_list *l = &e->list[evict_list_of(n)];
    ASSERT(l->bytes >= n->size_bytes);
    *(n->prev ? &n->prev->next : &l->head) = n->next;
    *(n->next ? &n->next->prev : &l->tail) = n->prev;
    l->bytes -= n->size_bytes;
    n->prev = n->next = NULL;
    n->list = 0;
}

int evict_ask_may(struct evict_ask *a, const struct evict_node *n)
{
    if (a->tries == 0) return -1;
    if (a->tries != SIZE_MAX) a->tries--;
    return !a->may || a->may(a->ctx, n);
}

struct evict_node *evict_list_victim(struct evict *e, unsigned i, struct evict_ask *a)
{
    for (struct evict_node *n = e->list[i].tail; n; n = n->prev) {
        int r = evict_ask_may(a, n);
        if (r != 0) return r > 0 ? n : NULL;
    }
    return NULL;
}

/* ---- LRU ---- */

static void lru_insert(struct evict *e, struct evict_node *n)
{
    evict_list_push(e, 0, n);
}

static void lru_hit(struct evict *e, struct evict_node *n)
{
    evict_list_remove(e, n);
    evict_list_push(e, 0, n);
}

static void lru_remove(struct evict *e, struct evict_node *n, bool evicted)
{
    (void)evicted;
    evict_list_remove(e, n);
}

static struct evict_node *lru_victim(struct evict *e, struct evict_ask *a)
{
    return evict_list_victim(e, 0, a);
}

static const struct evict_ops lru_ops = {lru_insert, lru_hit, lru_remove, lru_victim, NULL, false};

/* ---- interface ---- */

static const struct evict_ops *const policy_ops[EVICT_POLICY_COUNT] = {
    [EVICT_LRU] = &lru_ops,
    [EVICT_ARC] = &evict_arc_ops,
};

int evict_create(enum evict_policy p, uint64_t capacity_bytes, size_t n_ghosts, struct evict **ret)
{
    if ((unsigned)p >= EVICT_POLICY_COUNT) return -EINVAL;
    struct evict *e = mem_zalloc(sizeof *e);
    if (!e) return -ENOMEM;
    e->ops = policy_ops[p];
    e->capacity_bytes = capacity_bytes;
    int r = evict_ghosts_init(&e->ghosts, e->ops->ghosts ? n_ghosts : 0);
    if (r < 0) {
        mem_free(e);
        return r;
    }
    *ret = e;
    return 0;
}

void evict_destroy(struct evict *e)
{
    if (!e) return;
    evict_ghosts_fini(&e->ghosts);
    mem_free(e);
}

void evict_resize(struct evict *e, uint64_t capacity_bytes)
{
    e->capacity_bytes = capacity_bytes;
    if (e->ops->resized) e->ops->resized(e);
}

void evict_insert(struct evict *e, struct evict_node *n)
{
    ASSERT(n->list == 0);
    ASSERT(n->size_bytes > 0);
    n->prev = n->next = NULL;
    e->ops->insert(e, n);
}

void evict_hit(struct evict *e, struct evict_node *n)
{
    ASSERT(n->list != 0);
    e->ops->hit(e, n);
}

void evict_remove(struct evict *e, struct evict_node *n, bool evicted)
{
    ASSERT(n->list != 0);
    e->ops->remove(e, n, evicted);
}

struct evict_node *evict_victim(struct evict *e, const struct tier_key *incoming, evict_may_fn may,
                                void *ctx, size_t tries)
{
    struct evict_ask a = {incoming, may, ctx, tries ? tries : SIZE_MAX};
    return e->ops->victim(e, &a);
}

uint64_t evict_memory_bytes(const struct evict *e)
{
    return sizeof *e + evict_ghosts_memory_bytes(&e->ghosts);
}
