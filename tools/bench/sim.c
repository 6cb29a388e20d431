#include "tools/bench/sim.h"

#include "base/clock.h"
#include "base/mem.h"

uint64_t sim_total_bytes(const struct trace *t)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < t->n_records; i++)
        sum += t->record[i].size_bytes;
    return sum;
}

/* ---- replay ---- */

struct sim {
    struct evict *e;
    struct evict_node *node; /* [n_records] */
    uint64_t capacity, used;
    struct sim_result res;
};

static void touch(struct sim *s, struct evict_node *n)
{
    if (n->list != 0) {
        evict_hit(s->e, n);
        return;
    }
    if (n->size_bytes > s->capacity) return;
    while (s->used > s->capacity - n->size_bytes) {
        struct evict_node *v = evict_victim(s->e, &n->key, NULL, NULL, 0);
        evict_remove(s->e, v, true);
        s->used -= v->size_bytes;
        s->res.evictions++;
    }
    evict_insert(s->e, n);
    s->used += n->size_bytes;
}

static void replay(struct sim *s, const struct trace *t)
{
    for (size_t q = 0; q < t->n_requests; q++) {
        uint64_t begin = t->request[q], end = t->request[q + 1];
        for (uint64_t i = begin; i < end; i++) {
            uint64_t tokens = t->record[t->access[i]].n_tokens;
            bool hit = s->node[t->access[i]].list != 0;
            s->res.hits += hit;
            s->res.hit_tokens += hit ? tokens : 0;
            s->res.tokens += tokens;
        }
        for (uint64_t i = end; i-- > begin;)
            touch(s, &s->node[t->access[i]]);
    }
    s->res.accesses = t->n_accesses;
}

int sim_run(const struct trace *t, const struct sim_opts *o, struct sim_result *ret)
{
    struct sim s = {0};
    uint64_t total = o->bytes ? sim_total_bytes(t) : t->n_records;
    s.capacity = o->capacity < total ? o->capacity : total;
    /* As many ghosts as records would fit. */
    size_t n_ghosts = (size_t)((double)s.capacity / (double)total * (double)t->n_records) + 1;
    s.node = mem_zalloc(t->n_records * sizeof *s.node);
    if (!s.node) return -ENOMEM;
    for (size_t i = 0; i < t->n_records; i++) {
        s.node[i].key = t->record[i].key;
        s.node[i].size_bytes = o->bytes ? t->record[i].size_bytes : 1;
    }
    int r = evict_create(o->policy, s.capacity, n_ghosts, &s.e);
    if (r == 0) {
        uint64_t t0 = clock_ns();
        replay(&s, t);
        s.res.ns_per_access = (double)(clock_ns() - t0) / (double)t->n_accesses;
        *ret = s.res;
    }
    evict_destroy(s.e);
    mem_free(s.node);
    return r;
}

/* ---- LRU at every size at once ---- */

/* Mattson's stack distances: a record is hit by every LRU cache that holds at least as many records
 * as were touched since it was. A Fenwick tree over the touches marks each record's last one. */
struct marks {
    uint32_t *sum; /* [n + 1] */
    size_t n;
};

static void mark(struct marks *m, size_t at, uint32_t add)
{
    for (size_t i = at + 1; i <= m->n; i += i & (~i + 1))
        m->sum[i] += add; /* modulo 2^32: adding UINT32_MAX takes one away */
}

static uint32_t marks_before(const struct marks *m, size_t at)
{
    uint32_t sum = 0;
    for (size_t i = at; i > 0; i -= i & (~i + 1))
        sum += m->sum[i];
    return sum;
}

static void count_distances(const struct trace *t, struct marks *m, size_t *last, uint64_t *hits)
{
    uint32_t n_seen = 0;
    size_t now = 0;
    for (size_t q = 0; q < t->n_requests; q++) {
        uint64_t begin = t->request[q], end = t->request[q + 1];
        for (uint64_t i = begin; i < end; i++) {
            size_t at = last[t->access[i]];
            if (at > 0) hits[n_seen - marks_before(m, at - 1) - 1]++;
        }
        for (uint64_t i = end; i-- > begin;) {
            size_t *at = &last[t->access[i]]; /* 1 + its touch; 0 = never */
            if (*at > 0)
                mark(m, *at - 1, UINT32_MAX);
            else
                n_seen++;
            mark(m, now, 1);
            *at = ++now;
        }
    }
}

int sim_lru_curve(const struct trace *t, uint64_t *ret_hits)
{
    struct marks m = {mem_zalloc((t->n_accesses + 1) * sizeof *m.sum), t->n_accesses};
    size_t *last = mem_zalloc(t->n_records * sizeof *last);
    int r = m.sum && last ? 0 : -ENOMEM;
    if (r == 0) {
        for (size_t i = 0; i < t->n_records; i++)
            ret_hits[i] = 0;
        count_distances(t, &m, last, ret_hits);
        for (size_t i = 1; i < t->n_records; i++)
            ret_hits[i] += ret_hits[i - 1];
    }
    mem_free(m.sum);
    mem_free(last);
    return r;
}
