#include "tiers/index.h"

#include "base/assert.h"
#include "base/mem.h"

int ghost_init(struct ghost_table *g, uint64_t n_sets)
{
    ASSERT(n_sets && (n_sets & (n_sets - 1)) == 0);
    g->cell = mem_zalloc(n_sets * GHOST_WAYS * sizeof *g->cell);
    if (!g->cell) return -ENOMEM;
    g->mask = n_sets - 1;
    g->clock = 0;
    return 0;
}

void ghost_fini(struct ghost_table *g)
{
    mem_free(g->cell);
    g->cell = NULL;
}

static struct ghost *ghost_set(const struct ghost_table *g, const struct tier_key *k)
{
    return &g->cell[(k->lo & g->mask) * GHOST_WAYS];
}

void ghost_add(struct ghost_table *g, const struct tier_key *k, enum store_miss why, uint32_t now_s)
{
    struct ghost *set = ghost_set(g, k), *to = set;
    for (int i = 0; i < GHOST_WAYS; i++) {
        if (set[i].stamp && tier_key_same(&set[i].key, k)) {
            to = &set[i];
            break;
        }
        if (set[i].stamp < to->stamp) to = &set[i];
    }
    *to = (struct ghost){*k, ++g->clock, now_s, why};
}

void ghost_remove(struct ghost_table *g, const struct tier_key *k)
{
    struct ghost *set = ghost_set(g, k);
    for (int i = 0; i < GHOST_WAYS; i++)
        if (set[i].stamp && tier_key_same(&set[i].key, k)) set[i] = (struct ghost){0};
}

static const struct ghost *ghost_find(const struct ghost_table *g, const struct tier_key *k)
{
    const struct ghost *set = ghost_set(g, k);
    for (int i = 0; i < GHOST_WAYS; i++)
        if (set[i].stamp && tier_key_same(&set[i].key, k)) return &set[i];
    return NULL;
}

enum store_miss ghost_why(const struct ghost_table *g, const struct tier_key *k)
{
    const struct ghost *c = ghost_find(g, k);
    return c ? c->why : STORE_MISS_NEVER;
}

bool ghost_recent(const struct ghost_table *g, const struct tier_key *k, uint32_t now_s,
                  uint32_t within_s)
{
    const struct ghost *c = ghost_find(g, k);
    return c && now_s - c->at_s < within_s;
}
