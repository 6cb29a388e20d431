#include "tiers/map.h"

#include "base/assert.h"
#include "base/mem.h"

#include <errno.h>

int key_map_init(struct key_map *m, uint64_t n_buckets)
{
    uint64_t n = 1;
    while (n < n_buckets)
        n *= 2;
    *m = (struct key_map){.bucket = mem_zalloc(n * sizeof(struct key_node *)), .mask = n - 1};
    return m->bucket ? 0 : -ENOMEM;
}

void key_map_fini(struct key_map *m)
{
    mem_free(m->bucket);
    *m = (struct key_map){0};
}

/* Keys are hashes already, but a caller may number them: mixed all the same. */
static struct key_node **bucket_for(const struct key_map *m, const struct tier_key *k)
{
    return &m->bucket[((k->lo ^ k->hi) * 0x9E3779B97F4A7C15u) >> 32 & m->mask];
}

struct key_node *key_map_find(const struct key_map *m, const struct tier_key *k)
{
    if (m->n == 0) return NULL;
    struct key_node *n = *bucket_for(m, k);
    while (n && !tier_key_same(&n->key, k))
        n = n->chain;
    return n;
}

void key_map_insert(struct key_map *m, struct key_node *n)
{
    struct key_node **at = bucket_for(m, &n->key);
    DEBUG_ASSERT(!key_map_find(m, &n->key));
    n->chain = *at;
    *at = n;
    m->n++;
}

void key_map_remove(struct key_map *m, struct key_node *n)
{
    struct key_node **at = bucket_for(m, &n->key);
    while (*at && *at != n)
        at = &(*at)->chain;
    ASSERT(*at == n);
    *at = n->chain;
    n->chain = NULL;
    m->n--;
}
