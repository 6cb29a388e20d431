/* Every policy against a slow, obvious model of it: arrays of ids, searched from end to end. */
#include "base/mem.h"
#include "tests/test.h"
#include "tiers/evict.c" /* NOLINT: its lists against the model's */

enum { IDS = 64, NONE = -1 };
static const uint64_t capacity_bytes = 300;

/* ---- the model ---- */

struct ids { /* oldest first */
    int id[4 * IDS];
    int n;
};
struct model {
    enum evict_policy policy;
    uint64_t cap, target;
    size_t n_ghosts;
    struct ids list[2], ghost[2];
    const struct evict_node *node; /* sizes by id */
    bool learnt[IDS];
};

static int ids_find(const struct ids *l, int id)
{
    for (int i = 0; i < l->n; i++)
        if (l->id[i] == id) return i;
    return NONE;
}

static void ids_add(struct ids *l, int id)
{
    l->id[l->n++] = id;
}

static bool ids_remove(struct ids *l, int id)
{
    int at = ids_find(l, id);
    if (at == NONE) return false;
    l->n--;
    for (int i = at; i < l->n; i++)
        l->id[i] = l->id[i + 1];
    return true;
}

static uint64_t ids_bytes(const struct model *m, const struct ids *l)
{
    uint64_t sum = 0;
    for (int i = 0; i < l->n; i++)
        sum += m->node[l->id[i]].size_bytes;
    return sum;
}

static void model_trim(struct model *m)
{
    if (m->policy != EVICT_ARC) return;
    while (m->ghost[0].n && ids_bytes(m, &m->list[0]) + ids_bytes(m, &m->ghost[0]) > m->cap)
        ids_remove(&m->ghost[0], m->ghost[0].id[0]);
    while (m->ghost[1].n && ids_bytes(m, &m->list[0]) + ids_bytes(m, &m->ghost[0]) +
                                    ids_bytes(m, &m->list[1]) + ids_bytes(m, &m->ghost[1]) >
                                2 * m->cap)
        ids_remove(&m->ghost[1], m->ghost[1].id[0]);
}

static void model_ghost(struct model *m, int list, int id)
{
    if (m->n_ghosts == 0) return;
    if ((size_t)(m->ghost[0].n + m->ghost[1].n) == m->n_ghosts) {
        struct ids *longer = &m->ghost[m->ghost[1].n > m->ghost[0].n];
        ids_remove(longer, longer->id[0]);
    }
    ids_add(&m->ghost[list], id);
    m->learnt[id] = false;
    model_trim(m);
}

static void model_learn(struct model *m, int id)
{
    if (m->learnt[id]) return;
    m->learnt[id] = true;
    int64_t b1 = (int64_t)ids_bytes(m, &m->ghost[0]), b2 = (int64_t)ids_bytes(m, &m->ghost[1]);
    int64_t size = (int64_t)m->node[id].size_bytes, p = (int64_t)m->target;
    if (ids_find(&m->ghost[0], id) != NONE)
        p += size * (b1 >= b2 ? 1 : b2 / b1);
    else
        p -= size * (b2 >= b1 ? 1 : b1 / b2);
    m->target = p < 0 ? 0 : p > (int64_t)m->cap ? m->cap : (uint64_t)p;
}

static void model_insert(struct model *m, int id)
{
    int to = 0;
    if (m->policy == EVICT_ARC)
        for (int i = 0; i < 2; i++)
            if (ids_find(&m->ghost[i], id) != NONE) model_learn(m, id);
    if (ids_remove(&m->ghost[0], id) || ids_remove(&m->ghost[1], id)) to = 1;
    ids_add(&m->list[to], id);
    model_trim(m);
}

static void model_hit(struct model *m, int id)
{
    if (!ids_remove(&m->list[0], id)) ids_remove(&m->list[1], id);
    ids_add(&m->list[m->policy == EVICT_ARC], id);
}

static void model_remove(struct model *m, int id, bool evicted)
{
    int from = ids_find(&m->list[0], id) == NONE;
    ids_remove(&m->list[from], id);
    if (evicted && m->policy == EVICT_ARC) model_ghost(m, from, id);
}

static int model_first(const struct ids *l, const bool *held)
{
    for (int i = 0; i < l->n; i++)
        if (!held[l->id[i]]) return l->id[i];
    return NONE;
}

static int model_arc(struct model *m, int incoming, const bool *held)
{
    bool in_b2 = incoming != NONE && ids_find(&m->ghost[1], incoming) != NONE;
    if (in_b2 || (incoming != NONE && ids_find(&m->ghost[0], incoming) != NONE))
        model_learn(m, incoming);
    uint64_t t1 = ids_bytes(m, &m->list[0]);
    int first = t1 > m->target || (in_b2 && t1 == m->target) ? 0 : 1;
    int id = model_first(&m->list[first], held);
    return id == NONE ? model_first(&m->list[!first], held) : id;
}

static int model_victim(struct model *m, int incoming, const bool *held)
{
    return m->policy == EVICT_ARC ? model_arc(m, incoming, held) : model_first(&m->list[0], held);
}

/* ---- both side by side ---- */

struct pair {
    struct evict *e;
    struct model m;
    struct evict_node node[IDS];
    bool in[IDS], held[IDS];
    uint64_t used_bytes, rand;
};

static bool may(void *ctx, const struct evict_node *n)
{
    const struct pair *p = ctx;
    ASSERT_TRUE(n->list != 0);
    return !p->held[n->key.lo];
}

static void pair_init(struct pair *p, enum evict_policy policy, uint64_t seed, size_t n_ghosts)
{
    *p = (struct pair){.rand = seed};
    for (int i = 0; i < IDS; i++) {
        p->node[i].key.lo = (uint64_t)i;
        p->node[i].size_bytes = 1 + test_rand(&p->rand) % 30;
    }
    p->m = (struct model){
        .policy = policy, .cap = capacity_bytes, .n_ghosts = n_ghosts, .node = p->node};
    ASSERT_OK(evict_create(policy, capacity_bytes, n_ghosts, &p->e));
}

static void pair_remove(struct pair *p, int id, bool evicted)
{
    evict_remove(p->e, &p->node[id], evicted);
    model_remove(&p->m, id, evicted);
    p->in[id] = false;
    p->used_bytes -= p->node[id].size_bytes;
}

/* False: nothing may go. Asks twice, since the answer must not depend on having been asked. */
static bool pair_evict(struct pair *p, int incoming)
{
    const struct tier_key *key = incoming == NONE ? NULL : &p->node[incoming].key;
    struct evict_node *n = evict_victim(p->e, key, may, p, 0);
    int id = model_victim(&p->m, incoming, p->held);
    ASSERT_EQ(n ? (int)n->key.lo : NONE, id);
    ASSERT_TRUE(evict_victim(p->e, key, may, p, 0) == n);
    if (!n) {
        for (int i = 0; i < IDS; i++)
            ASSERT_TRUE(!p->in[i] || p->held[i]);
        return false;
    }
    pair_remove(p, id, true);
    return true;
}

static void check(struct pair *p)
{
    const struct list *ghosts = &p->e->list[B1];
    ASSERT_TRUE(ghosts[0].n + ghosts[1].n <= p->m.n_ghosts);
    for (int l = 0; l < 2; l++) {
        ASSERT_EQ(ghosts[l].n, p->m.ghost[l].n);
        ASSERT_EQ(ghosts[l].bytes, ids_bytes(&p->m, &p->m.ghost[l]));
        const struct evict_node *n = ghosts[l].tail;
        for (int i = 0; i < p->m.ghost[l].n; i++, n = n->prev)
            ASSERT_EQ(n->key.lo, p->m.ghost[l].id[i]);
    }
    ASSERT_EQ(p->e->list[0].bytes + p->e->list[1].bytes, p->used_bytes);
    ASSERT_EQ(p->e->target_bytes, p->m.target);
    for (int l = 0; l < 2; l++) {
        const struct evict_node *n = p->e->list[l].tail;
        for (int i = 0; i < p->m.list[l].n; i++, n = n->prev)
            ASSERT_EQ(n->key.lo, p->m.list[l].id[i]);
        ASSERT_TRUE(!n);
    }
}

static void pair_access(struct pair *p, int id)
{
    if (p->in[id]) {
        evict_hit(p->e, &p->node[id]);
        model_hit(&p->m, id);
        return;
    }
    while (p->used_bytes + p->node[id].size_bytes > p->m.cap)
        if (!pair_evict(p, id)) return;
    evict_insert(p->e, &p->node[id]);
    model_insert(&p->m, id);
    p->in[id] = true;
    p->used_bytes += p->node[id].size_bytes;
}

static void pair_resize(struct pair *p)
{
    p->m.cap = capacity_bytes / 2 + test_rand(&p->rand) % capacity_bytes;
    evict_resize(p->e, p->m.cap);
    if (p->m.target > p->m.cap) p->m.target = p->m.cap;
    model_trim(&p->m);
    while (p->used_bytes > p->m.cap && pair_evict(p, NONE)) {
    }
}

static void pair_step(struct pair *p)
{
    uint64_t r = test_rand(&p->rand);
    int hot = (int)((r >> 8) % 12), any = (int)((r >> 16) % IDS);
    int id = r % 3 ? any : hot;
    switch (r >> 32 & 63) {
    case 0:
        if (p->in[id]) pair_remove(p, id, false);
        break;
    case 1:
        pair_resize(p);
        break;
    case 2:
    case 3:
        p->held[id] = !p->held[id] && (r >> 40) % 3;
        break;
    case 4: /* a request that pins a lot, and lets go */
        for (int i = 0; i < IDS; i++)
            p->held[i] = (r >> 40) % 2 ? i % 2 : false;
        break;
    default:
        pair_access(p, id);
    }
}

TEST(every_policy_does_what_its_model_does)
{
    for (unsigned policy = 0; policy < EVICT_POLICY_COUNT; policy++) {
        for (uint64_t seed = 1; seed <= 24; seed++) {
            struct pair p;
            pair_init(&p, (enum evict_policy)policy, seed, seed % 4 == 0 ? 5 : IDS);
            for (int step = 0; step < 1500; step++) {
                pair_step(&p);
                if (step % 16 == 0) check(&p);
            }
            memset(p.held, 0, sizeof p.held);
            while (pair_evict(&p, NONE))
                check(&p);
            ASSERT_EQ(p.used_bytes, 0); /* every node was found */
            evict_destroy(p.e);
        }
    }
}

static bool only_last(void *ctx, const struct evict_node *n)
{
    return n == *(const struct evict_node **)ctx;
}

TEST(a_victim_is_found_if_any_is_allowed)
{
    for (unsigned policy = 0; policy < EVICT_POLICY_COUNT; policy++) {
        for (int want = 0; want < IDS; want++) {
            struct pair p;
            pair_init(&p, (enum evict_policy)policy, 7, IDS);
            evict_resize(p.e, 1 << 20);
            for (int i = 0; i < IDS; i++)
                evict_insert(p.e, &p.node[i]);
            for (int i = 0; i < 3 * IDS; i++)
                evict_hit(p.e, &p.node[(i * 7) % (IDS - 9)]);
            const struct evict_node *allowed = &p.node[want];
            ASSERT_TRUE(evict_victim(p.e, NULL, only_last, &allowed, 0) == allowed);
            evict_destroy(p.e);
        }
    }
}

static bool never(void *ctx, const struct evict_node *n)
{
    (void)n;
    ++*(int *)ctx;
    return false;
}

TEST(tries_bound_the_search)
{
    for (unsigned policy = 0; policy < EVICT_POLICY_COUNT; policy++) {
        struct pair p;
        pair_init(&p, (enum evict_policy)policy, 3, IDS);
        ASSERT_TRUE(!evict_victim(p.e, NULL, NULL, NULL, 0));
        for (int i = 0; i < IDS; i++)
            evict_insert(p.e, &p.node[i]);
        const struct evict_node *first = evict_victim(p.e, NULL, NULL, NULL, 1);
        ASSERT_TRUE(first);
        for (size_t tries = 1; tries < 8; tries++) {
            int asked = 0;
            ASSERT_TRUE(!evict_victim(p.e, NULL, never, &asked, tries));
            ASSERT_EQ(asked, tries);
        }
        /* Being passed over has cost nobody its place. */
        ASSERT_TRUE(evict_victim(p.e, NULL, NULL, NULL, 1) == first);
        evict_destroy(p.e);
    }
}

/* ---- behaviour ---- */

/* A working set used again and again, and in between a scan of one-off records through the cache:
 * the share of the working set's uses that hit. */
static double hot_share_under_scans(enum evict_policy policy)
{
    enum { CAP = 100, HOT = 40, SCAN = 150, ROUNDS = 60 };
    static struct evict_node node[HOT + SCAN * ROUNDS];
    static bool in[HOT + SCAN * ROUNDS];
    memset(node, 0, sizeof node);
    memset(in, 0, sizeof in);
    struct evict *e;
    ASSERT_OK(evict_create(policy, CAP, CAP, &e));
    int used = 0, hits = 0, uses = 0;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < 3 * HOT + SCAN; i++) {
            int id = i < 3 * HOT ? i % HOT : HOT + round * SCAN + i - 3 * HOT;
            uses += i < HOT;
            hits += i < HOT && in[id];
            struct evict_node *n = &node[id];
            if (in[id]) {
                evict_hit(e, n);
                continue;
            }
            n->key.lo = (uint64_t)id;
            n->size_bytes = 1;
            for (; used >= CAP; used--) {
                struct evict_node *v = evict_victim(e, &n->key, NULL, NULL, 0);
                evict_remove(e, v, true);
                in[v->key.lo] = false;
            }
            evict_insert(e, n);
            in[id] = true;
            used++;
        }
    }
    evict_destroy(e);
    return (double)hits / uses;
}

TEST(scans_do_not_flush_arc)
{
    ASSERT_NEAR(hot_share_under_scans(EVICT_LRU), 0, 0);
    ASSERT_TRUE(hot_share_under_scans(EVICT_ARC) > 0.9);
}

TEST(changing_the_policy_keeps_the_order)
{
    struct pair p;
    struct evict *to;
    pair_init(&p, EVICT_LRU, 5, 0);
    ASSERT_OK(evict_create(EVICT_ARC, capacity_bytes, 0, &to));
    for (int i = 0; i < IDS; i++)
        evict_insert(p.e, &p.node[i]);
    for (int i = 0; i < IDS; i += 2)
        evict_hit(p.e, &p.node[i]);
    for (struct evict_node *n; (n = evict_victim(p.e, NULL, NULL, NULL, 0));) {
        evict_remove(p.e, n, false);
        evict_insert(to, n);
    }
    for (int i = 0; i < IDS; i++) {
        struct evict_node *n = evict_victim(to, NULL, NULL, NULL, 0);
        ASSERT_EQ(n->key.lo, i < IDS / 2 ? 2 * i + 1 : 2 * (i - IDS / 2));
        evict_remove(to, n, false);
    }
    evict_destroy(to);
    evict_destroy(p.e);
}

TEST(names_parse_and_print)
{
    enum evict_policy p = EVICT_LRU;
    for (unsigned i = 0; i < EVICT_POLICY_COUNT; i++) {
        ASSERT_TRUE(evict_policy_parse(evict_policy_name((enum evict_policy)i), &p));
        ASSERT_EQ(p, i);
    }
    ASSERT_TRUE(!evict_policy_parse("LRU", &p));
    ASSERT_TRUE(!evict_policy_parse("clock", &p));
    ASSERT_TRUE(!evict_policy_parse("", &p));
    ASSERT_EQ(p, EVICT_POLICY_COUNT - 1);
}

TEST(memory_is_counted_and_refused)
{
    struct evict *lru, *arc, *e = NULL;
    ASSERT_OK(evict_create(EVICT_LRU, 100, 1000, &lru));
    ASSERT_OK(evict_create(EVICT_ARC, 100, 1000, &arc));
    ASSERT_TRUE(evict_memory_bytes(lru) < 1024); /* has no ghosts */
    ASSERT_TRUE(evict_memory_bytes(arc) >= 1000 * sizeof(struct ghost));
    evict_destroy(lru);
    evict_destroy(arc);
    evict_destroy(NULL);
    ASSERT_ERR(evict_create(EVICT_POLICY_COUNT, 100, 0, &e), -EINVAL);
    for (unsigned n = 1;; n++) {
        mem_fail_nth(n);
        int r = evict_create(EVICT_ARC, 100, 10, &e);
        bool fired = mem_fail_fired();
        mem_fail_nth(0);
        if (!fired) {
            ASSERT_OK(r);
            ASSERT_EQ(n, 4);
            break;
        }
        ASSERT_ERR(r, -ENOMEM);
        ASSERT_TRUE(!e);
    }
    evict_destroy(e);
}
