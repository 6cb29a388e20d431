/* The records of the sample stand in the order of their last look-ups in `slot`, under a Fenwick
 * tree of their bytes: what stands behind a record is its distance. Look-ups take the next slot;
 * when there is none left, the slots are closed up, at most once in sample_max sampled look-ups.
 * A heap has the record on top whose hash is the highest, which is the next to go. */
#include "tiers/mrc.h"

#include "base/assert.h"
#include "base/mem.h"
#include "base/rng.h"
#include "tiers/map.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>

enum {
    STEPS = 16, /* chosen: of distances per factor of two; the curve is a line within one */
    BUCKETS = 50 * STEPS, /* up to 2^50 bytes */
};

struct followed {
    struct key_node map;
    uint64_t hash, bytes;
    uint32_t slot;
};
struct mrc {
    pthread_mutex_t m;
    /* guarded by m */
    uint64_t threshold; /* of hashes that are followed: below it */
    uint32_t sample_max, n, n_slots, next_slot;
    struct key_map map;
    struct followed *pool;  /* [sample_max + 1] */
    struct followed **heap; /* [sample_max + 1]; from n on: of the pool, what is free */
    struct followed **slot; /* [n_slots] */
    uint64_t *tree;         /* [n_slots + 1] */
    uint64_t total_bytes;   /* of the sample */
    uint64_t look_ups, half_life, until_half;
    uint32_t old_slot;        /* records before it have not been looked up since the last halving */
    double tokens, estimated; /* looked up: all, and by the sample */
    double found[BUCKETS];    /* tokens by distance, estimated */
};

/* ---- the tree ---- */

static void tree_add(struct mrc *m, uint32_t slot, uint64_t bytes) /* modulo 2^64: also less */
{
    for (uint32_t i = slot + 1; i <= m->n_slots; i += i & -i)
        m->tree[i] += bytes;
}

static uint64_t tree_sum(const struct mrc *m, uint32_t slot) /* up to it, itself included */
{
    uint64_t sum = 0;
    for (uint32_t i = slot + 1; i > 0; i -= i & -i)
        sum += m->tree[i];
    return sum;
}

static void close_up(struct mrc *m)
{
    uint32_t n = 0, old = 0;
    for (uint32_t i = 0; i < m->next_slot; i++) {
        struct followed *f = m->slot[i];
        if (i == m->old_slot) old = n;
        m->slot[i] = NULL;
        if (!f) continue;
        m->slot[n] = f;
        f->slot = n++;
    }
    m->old_slot = m->old_slot < m->next_slot ? old : n;
    m->next_slot = n;
    for (uint32_t i = 1; i <= m->n_slots; i++) /* each node of its own, then of its children */
        m->tree[i] = i <= n ? m->slot[i - 1]->bytes : 0;
    for (uint32_t i = 1; i <= m->n_slots; i++)
        if (i + (i & -i) <= m->n_slots) m->tree[i + (i & -i)] += m->tree[i];
}

static void leave_slot(struct mrc *m, struct followed *f)
{
    tree_add(m, f->slot, -f->bytes);
    m->total_bytes -= f->bytes;
    m->slot[f->slot] = NULL;
}

static void take_slot(struct mrc *m, struct followed *f)
{
    if (m->next_slot == m->n_slots) close_up(m);
    f->slot = m->next_slot++;
    m->slot[f->slot] = f;
    m->total_bytes += f->bytes;
    tree_add(m, f->slot, f->bytes);
}

/* ---- the heap ---- */

static void swap(struct mrc *m, uint32_t i, uint32_t k)
{
    struct followed *f = m->heap[i];
    m->heap[i] = m->heap[k];
    m->heap[k] = f;
}

static void sift_down(struct mrc *m, uint32_t i)
{
    for (uint32_t k; (k = 2 * i + 1) < m->n; i = k) {
        if (k + 1 < m->n && m->heap[k + 1]->hash > m->heap[k]->hash) k++;
        if (m->heap[i]->hash >= m->heap[k]->hash) return;
        swap(m, i, k);
    }
}

static void push(struct mrc *m) /* heap[n], which was taken from the pool */
{
    for (uint32_t i = m->n++; i > 0 && m->heap[i]->hash > m->heap[(i - 1) / 2]->hash;
         i = (i - 1) / 2)
        swap(m, i, (i - 1) / 2);
}

static void forget_at(struct mrc *m, uint32_t i) /* the heap's order is the caller's to restore */
{
    struct followed *f = m->heap[i];
    leave_slot(m, f);
    key_map_remove(&m->map, &f->map);
    swap(m, i, --m->n);
}

static void lower_threshold(struct mrc *m)
{
    m->threshold = m->heap[0]->hash;
    while (m->n > 0 && m->heap[0]->hash >= m->threshold) {
        forget_at(m, 0);
        sift_down(m, 0);
    }
}

/* ---- the curve ---- */

static double rate_of(const struct mrc *m)
{
    return m->threshold == UINT64_MAX ? 1 : (double)m->threshold * 0x1p-64;
}

static double place_of(double bytes) /* in buckets */
{
    const double at = bytes < 1 ? 0 : log2(bytes) * STEPS;
    return at < BUCKETS - 1 ? at : BUCKETS - 1;
}

static double share_at(const struct mrc *m, double bytes)
{
    const double at = place_of(bytes);
    const unsigned whole = (unsigned)at;
    double sum = m->found[whole] * (at - whole);
    for (unsigned i = 0; i < whole; i++)
        sum += m->found[i];
    if (sum <= 0) return 0;
    const double share = (sum + m->tokens - m->estimated) / m->tokens;
    return share < 0 ? 0 : share > 1 ? 1 : share;
}

/* Half of what was counted goes, and who was not looked up since this was done last. Where that
 * leaves room in the sample, more records are followed from now on. */
static void halve(struct mrc *m)
{
    m->until_half = m->half_life;
    m->tokens /= 2;
    m->estimated /= 2;
    for (unsigned i = 0; i < BUCKETS; i++)
        m->found[i] /= 2;
    for (uint32_t i = m->n; i-- > 0;)
        if (m->heap[i]->slot < m->old_slot) forget_at(m, i);
    for (uint32_t i = m->n / 2; i-- > 0;)
        sift_down(m, i);
    m->old_slot = m->next_slot;
    if (m->n < m->sample_max / 2)
        m->threshold = m->threshold < UINT64_MAX / 2 ? m->threshold * 2 : UINT64_MAX;
}

/* ---- look-ups ---- */

static void sample(struct mrc *m, const struct tier_key *key, uint64_t hash, uint32_t n_tok,
                   uint64_t bytes)
{
    struct followed *f = (struct followed *)key_map_find(&m->map, key);
    const double rate = rate_of(m), tokens = n_tok / rate;
    m->estimated += tokens;
    if (f) {
        const uint64_t behind = m->total_bytes - tree_sum(m, f->slot);
        m->found[(unsigned)place_of((double)behind / rate + (double)bytes)] += tokens;
        leave_slot(m, f);
        f->bytes = bytes;
        take_slot(m, f);
        return;
    }
    f = m->heap[m->n];
    *f = (struct followed){.map.key = *key, .hash = hash, .bytes = bytes};
    key_map_insert(&m->map, &f->map);
    take_slot(m, f);
    push(m);
    if (m->n > m->sample_max) lower_threshold(m);
}

void mrc_look_up(struct mrc *m, const struct tier_key *key, uint32_t n_tok, uint64_t bytes)
{
    struct rng mix = {key->lo ^ key->hi}; /* a caller may number its keys */
    const uint64_t hash = rng_next(&mix);
    (void)pthread_mutex_lock(&m->m);
    m->look_ups++;
    m->tokens += n_tok;
    if (hash < m->threshold) sample(m, key, hash, n_tok, bytes);
    if (m->half_life && --m->until_half == 0) halve(m);
    (void)pthread_mutex_unlock(&m->m);
}

double mrc_found(struct mrc *m, uint64_t bytes)
{
    (void)pthread_mutex_lock(&m->m);
    const double share = share_at(m, (double)bytes);
    (void)pthread_mutex_unlock(&m->m);
    return share;
}

void mrc_get_stats(struct mrc *m, struct mrc_stats *ret)
{
    (void)pthread_mutex_lock(&m->m);
    *ret = (struct mrc_stats){m->look_ups, m->tokens, rate_of(m), m->n,
                              (double)m->total_bytes / rate_of(m)};
    (void)pthread_mutex_unlock(&m->m);
}

int mrc_create(uint32_t sample_max, uint64_t half_life, struct mrc **ret)
{
    ASSERT(sample_max > 0 && sample_max <= 1u << 24);
    struct mrc *m = mem_zalloc(sizeof *m);
    if (!m) return -ENOMEM;
    (void)pthread_mutex_init(&m->m, NULL);
    m->threshold = UINT64_MAX;
    m->sample_max = sample_max;
    m->n_slots = 2 * sample_max + 2;
    m->half_life = m->until_half = half_life;
    m->pool = mem_zalloc((sample_max + 1) * sizeof *m->pool);
    m->heap = mem_zalloc((sample_max + 1) * sizeof(struct followed *));
    m->slot = mem_zalloc(m->n_slots * sizeof(struct followed *));
    m->tree = mem_zalloc((m->n_slots + 1) * sizeof *m->tree);
    if (key_map_init(&m->map, sample_max) < 0 || !m->pool || !m->heap || !m->slot || !m->tree) {
        mrc_destroy(m);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i <= sample_max; i++)
        m->heap[i] = &m->pool[i];
    *ret = m;
    return 0;
}

void mrc_destroy(struct mrc *m)
{
    if (!m) return;
    key_map_fini(&m->map);
    mem_free(m->pool);
    mem_free(m->heap);
    mem_free(m->slot);
    mem_free(m->tree);
    (void)pthread_mutex_destroy(&m->m);
    mem_free(m);
}

uint64_t mrc_size_next(uint64_t bytes)
{
    return bytes + ((bytes & (bytes - 1)) == 0 ? bytes / 2 : bytes / 3);
}

uint64_t mrc_size_first(struct mrc *m)
{
    struct mrc_stats s;
    uint64_t bytes = 1 << 20;
    mrc_get_stats(m, &s);
    while (mrc_found(m, 2 * bytes) <= 0 && 2 * (double)bytes <= s.distinct_bytes)
        bytes *= 2;
    return bytes;
}
