/* The directory has one node per text and holder, all of them in one array: hash chains by text, a
 * list by age. To forget a target is to count its generation up: its nodes are then as good as
 * free, and become so when they are met or have grown oldest. */
#include "gateway/fleet/residency.h"

#include "base/mem.h"

#include <errno.h>
#include <pthread.h>

enum { NODES_MIN = 64 };
#define NONE UINT32_MAX

struct node {
    uint64_t text_id;
    uint32_t chain;        /* next of its bucket */
    uint32_t older, newer; /* by age */
    uint32_t tokens, generation;
    uint16_t target;
    float worth; /* 1 - cost */
};
struct gw_directory {
    pthread_mutex_t m;
    struct node *node;
    uint32_t *bucket;
    uint32_t n_nodes, mask, n_fresh; /* n_fresh: nodes that were never used stand behind it */
    uint32_t newest, oldest, free;   /* free: linked by `chain` */
    uint32_t generation[GW_TARGETS_MAX];
    size_t n_of[GW_TARGETS_MAX], n;
};

static bool stale(const struct gw_directory *d, const struct node *x)
{
    return x->generation != d->generation[x->target];
}

static uint32_t *text_bucket(struct gw_directory *d, uint64_t text_id)
{
    return &d->bucket[(text_id ^ text_id >> 32) & d->mask];
}

static void age_unlink(struct gw_directory *d, uint32_t i)
{
    struct node *x = &d->node[i];
    if (x->newer == NONE)
        d->newest = x->older;
    else
        d->node[x->newer].older = x->older;
    if (x->older == NONE)
        d->oldest = x->newer;
    else
        d->node[x->older].newer = x->newer;
}

static void age_newest(struct gw_directory *d, uint32_t i)
{
    struct node *x = &d->node[i];
    x->newer = NONE;
    x->older = d->newest;
    if (d->newest != NONE) d->node[d->newest].newer = i;
    d->newest = i;
    if (d->oldest == NONE) d->oldest = i;
}

static void seen(struct gw_directory *d, uint32_t i)
{
    if (d->newest == i) return;
    age_unlink(d, i);
    age_newest(d, i);
}

static void count_off(struct gw_directory *d, const struct node *x)
{
    if (stale(d, x)) return; /* when its target was forgotten */
    d->n_of[x->target]--;
    d->n--;
}

/* *at: the link that leads to the node. */
static void node_free(struct gw_directory *d, uint32_t *at)
{
    uint32_t i = *at;
    struct node *x = &d->node[i];
    *at = x->chain;
    count_off(d, x);
    age_unlink(d, i);
    x->chain = d->free;
    d->free = i;
}

static void free_oldest(struct gw_directory *d)
{
    uint32_t i = d->oldest, *at = text_bucket(d, d->node[i].text_id);
    while (*at != i)
        at = &d->node[*at].chain;
    node_free(d, at);
}

/* The link that leads to the target's node of the text, or to NONE at the end of its bucket. */
static uint32_t *find_holder(struct gw_directory *d, unsigned target, uint64_t text_id)
{
    uint32_t *at = text_bucket(d, text_id);
    while (*at != NONE) {
        const struct node *x = &d->node[*at];
        if (stale(d, x))
            node_free(d, at);
        else if (x->text_id == text_id && x->target == target)
            return at;
        else
            at = &d->node[*at].chain;
    }
    return at;
}

int gw_directory_create(size_t budget_bytes, struct gw_directory **ret)
{
    size_t n = budget_bytes / (sizeof(struct node) + 2 * sizeof(uint32_t)), n_buckets = 1;
    struct gw_directory *d = mem_zalloc(sizeof *d);
    if (!d) return -ENOMEM;
    n = n < NODES_MIN ? NODES_MIN : n > NONE / 2 ? NONE / 2 : n;
    while (2 * n_buckets <= n)
        n_buckets *= 2;
    d->n_nodes = (uint32_t)n;
    d->mask = (uint32_t)n_buckets - 1;
    d->newest = d->oldest = d->free = NONE;
    d->node = mem_alloc(n * sizeof *d->node);
    d->bucket = mem_alloc(n_buckets * sizeof *d->bucket);
    (void)pthread_mutex_init(&d->m, NULL);
    if (!d->node || !d->bucket) {
        gw_directory_destroy(d);
        return -ENOMEM;
    }
    for (size_t i = 0; i < n_buckets; i++)
        d->bucket[i] = NONE;
    *ret = d;
    return 0;
}

void gw_directory_destroy(struct gw_directory *d)
{
    if (!d) return;
    (void)pthread_mutex_destroy(&d->m);
    mem_free(d->node);
    mem_free(d->bucket);
    mem_free(d);
}

static uint32_t node_take(struct gw_directory *d)
{
    if (d->free == NONE && d->n_fresh < d->n_nodes) return d->n_fresh++;
    if (d->free == NONE) free_oldest(d);
    uint32_t i = d->free;
    d->free = d->node[i].chain;
    return i;
}

int gw_directory_put(struct gw_directory *d, unsigned target, uint64_t text_id, uint32_t tokens,
                     double cost)
{
    if (target >= GW_TARGETS_MAX) return -ERANGE;
    float worth = cost >= 0 && cost <= 1 ? (float)(1 - cost) : cost < 0 ? 1 : 0;
    (void)pthread_mutex_lock(&d->m);
    uint32_t i = *find_holder(d, target, text_id);
    if (i == NONE) {
        i = node_take(d);
        uint32_t *head = text_bucket(d, text_id);
        d->node[i] = (struct node){.text_id = text_id,
                                   .chain = *head,
                                   .generation = d->generation[target],
                                   .target = (uint16_t)target};
        *head = i;
        age_newest(d, i);
        d->n_of[target]++;
        d->n++;
    }
    d->node[i].tokens = tokens;
    d->node[i].worth = worth;
    seen(d, i);
    (void)pthread_mutex_unlock(&d->m);
    return 0;
}

void gw_directory_drop(struct gw_directory *d, unsigned target, uint64_t text_id)
{
    (void)pthread_mutex_lock(&d->m);
    uint32_t *at = find_holder(d, target, text_id);
    if (*at != NONE) node_free(d, at);
    (void)pthread_mutex_unlock(&d->m);
}

void gw_directory_forget(struct gw_directory *d, unsigned target)
{
    (void)pthread_mutex_lock(&d->m);
    d->generation[target]++;
    d->n -= d->n_of[target];
    d->n_of[target] = 0;
    (void)pthread_mutex_unlock(&d->m);
}

void gw_directory_resident(struct gw_directory *d, const uint64_t *text_id, size_t n_texts,
                           uint64_t *ret_tokens, size_t n_targets)
{
    for (size_t i = 0; i < n_targets; i++)
        ret_tokens[i] = 0;
    (void)pthread_mutex_lock(&d->m);
    for (size_t k = 0; k < n_texts && d->n > 0; k++) {
        for (uint32_t i = *text_bucket(d, text_id[k]); i != NONE; i = d->node[i].chain) {
            const struct node *x = &d->node[i];
            if (x->text_id != text_id[k] || x->target >= n_targets || stale(d, x)) continue;
            ret_tokens[x->target] += (uint64_t)((double)x->tokens * (double)x->worth);
            seen(d, i);
        }
    }
    (void)pthread_mutex_unlock(&d->m);
}

size_t gw_directory_count(struct gw_directory *d)
{
    (void)pthread_mutex_lock(&d->m);
    size_t n = d->n;
    (void)pthread_mutex_unlock(&d->m);
    return n;
}
