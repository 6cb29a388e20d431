#include "tools/bench/rag.h"

#include "base/mem.h"
#include "base/rng.h"

#include <errno.h>
#include <float.h>
#include <string.h>

enum { BUCKETS = 1 << 18, STABLE_BLOCKS = 2 };

/* Of ContextPilot's index: a request (a leaf), or what the requests below it begin with. Nodes
 * stand behind their parents; 0 is the root, and also: none. */
struct pilot_node {
    uint32_t doc[RAG_PARTS_MAX], n;
    uint32_t parent, child, sibling;
    struct tier_key key; /* of a leaf: the record of its last passage */
    bool alive;
};
struct rag_cache {
    struct rag_cache_opts o;
    struct key_map map; /* of struct evict_node, each allocated; sizes are tokens */
    struct evict *order;
    uint64_t used;
    struct buf todo;    /* struct evict_node: what the request keeps once it is looked up */
    struct buf pilot;   /* RAG_PILOT: struct pilot_node */
    struct buf earlier; /* RAG_BOUND: struct rag_request */
};

/* ---- records ---- */

static struct tier_key key_add(struct tier_key k, uint64_t v)
{
    struct rng mix = {k.hi ^ v};
    const uint64_t hi = rng_next(&mix);
    return (struct tier_key){hi, k.lo * RNG_STEP + v + hi};
}

/* The key of n parts behind what `k` stands for. */
static struct tier_key key_of(struct tier_key k, const struct rag_part *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        k = key_add(k, (uint64_t)p[i].kind << 32 | p[i].id);
    return k;
}

static bool has(const struct rag_cache *c, const struct tier_key *k)
{
    return key_map_find(&c->map, k) != NULL;
}

static void drop(struct rag_cache *c, struct evict_node *n)
{
    evict_remove(c->order, n, true);
    key_map_remove(&c->map, &n->map);
    c->used -= n->size_bytes;
    mem_free(n);
}

static int keep(struct rag_cache *c, const struct evict_node *new)
{
    struct evict_node *n = (struct evict_node *)key_map_find(&c->map, &new->key);
    if (n) evict_hit(c->order, n);
    if (n || new->size_bytes > c->o.room_tokens) return 0;
    while (c->used + new->size_bytes > c->o.room_tokens)
        drop(c, evict_victim(c->order, &new->key, NULL, NULL, 0));
    if (!(n = mem_alloc(sizeof *n))) return -ENOMEM;
    *n = *new;
    key_map_insert(&c->map, &n->map);
    evict_insert(c->order, n);
    c->used += n->size_bytes;
    return 0;
}

static void later(struct rag_cache *c, struct tier_key key, uint32_t n_tok)
{
    const struct evict_node n = {.key = key, .size_bytes = n_tok};
    (void)buf_add(&c->todo, &n, sizeof n);
}

static int keep_all(struct rag_cache *c)
{
    const struct evict_node *n = (const void *)c->todo.data;
    int r = buf_status(&c->todo);
    for (size_t i = c->todo.len / sizeof *n; r == 0 && i-- > 0;)
        r = keep(c, &n[i]);
    buf_clear(&c->todo);
    return r;
}

/* ---- passages in another order: place [n] of them ---- */

static struct pilot_node *node_at(const struct rag_cache *c, size_t i)
{
    return (struct pilot_node *)(void *)c->pilot.data + i;
}

/* Requests whose KV has gone leave the index, and so does what nothing stands below any more. */
static void pilot_prune(struct rag_cache *c)
{
    for (size_t i = c->pilot.len / sizeof(struct pilot_node); i-- > 1;) {
        struct pilot_node *at = node_at(c, i);
        at->alive = at->child == 0 && at->alive && has(c, &at->key);
        for (uint32_t k = at->child; k; k = node_at(c, k)->sibling)
            at->alive |= node_at(c, k)->alive;
    }
}

static size_t index_of(const uint32_t *doc, size_t n, uint32_t id)
{
    size_t i = 0;
    while (i < n && doc[i] != id)
        i++;
    return i;
}

/* The share that is not common, and a thousandth of how far apart the common ones stand; as there a
 * float, which decides between equals. FLT_MAX: nothing is common. */
static float pilot_distance(const struct pilot_node *a, const uint32_t *doc, size_t n)
{
    size_t both = 0, apart = 0;
    for (size_t i = 0; i < n; i++) {
        const size_t at = index_of(a->doc, a->n, doc[i]);
        if (at == a->n) continue;
        both++;
        apart += at > i ? at - i : i - at;
    }
    if (both == 0) return FLT_MAX;
    return (float)(1 - (double)both / (double)(n > a->n ? n : a->n) +
                   0.001 * ((double)apart / (double)both));
}

/* Down to the nearest child, as long as the request has the passage that it begins with. */
static uint32_t pilot_search(const struct rag_cache *c, const uint32_t *doc, size_t n)
{
    uint32_t at, best = 0;
    do {
        float nearest = FLT_MAX;
        at = best;
        for (uint32_t k = node_at(c, at)->child; k; k = node_at(c, k)->sibling) {
            const float d = node_at(c, k)->alive ? pilot_distance(node_at(c, k), doc, n) : FLT_MAX;
            if (d >= nearest) continue;
            nearest = d;
            best = k;
        }
    } while (best != at && index_of(doc, n, node_at(c, best)->doc[0]) < n);
    return best;
}

static int pilot_add(struct rag_cache *c, struct pilot_node new)
{
    const uint32_t i = (uint32_t)(c->pilot.len / sizeof new);
    if (buf_add(&c->pilot, &new, sizeof new) < 0) return -ENOMEM;
    uint32_t *end = i > 0 ? &node_at(c, new.parent)->child : NULL;
    while (end && *end)
        end = &node_at(c, *end)->sibling;
    if (end) *end = i;
    return 0;
}

/* The passages of the nearest node first, in its order. The request becomes a leaf: beside a node
 * that begins otherwise, else below it; a leaf gives its place to what both begin with. */
static int pilot_place(struct rag_cache *c, const struct rag_part *p, size_t n, size_t place[])
{
    struct pilot_node new = {.alive = true}, old;
    uint32_t doc[RAG_PARTS_MAX], n_doc = 0, same = 0;
    uint64_t taken = 0;
    int r = 0;
    for (size_t i = 0; i < n; i++) /* once each: what comes again goes to the end */
        if (index_of(doc, n_doc, p[i].id) == n_doc) doc[n_doc++] = p[i].id;
    if (c->o.room_tokens < UINT64_MAX) pilot_prune(c);
    new.parent = pilot_search(c, doc, n_doc);
    old = *node_at(c, new.parent);
    for (uint32_t i = 0; i < old.n; i++)
        if (index_of(doc, n_doc, old.doc[i]) < n_doc) new.doc[new.n++] = old.doc[i];
    for (uint32_t i = 0; i < n_doc; i++)
        if (index_of(new.doc, new.n, doc[i]) == new.n) new.doc[new.n++] = doc[i];
    while (same < new.n && same < old.n &&new.doc[same] == old.doc[same])
        same++;
    const bool leaf = old.n > 0 && old.child == 0;
    if (old.n > 0 && (same == 0 || (leaf && same == old.n && same == new.n))) {
        new.parent = old.parent;
    } else if (leaf) {
        node_at(c, new.parent)->n = same;
        old.parent = new.parent;
        old.sibling = 0;
        r = pilot_add(c, old);
    }
    if (r == 0) r = pilot_add(c, new);
    for (size_t d = 0, k = 0; d <= n_doc; d++)
        for (size_t i = 0; i < n; i++) {
            if (taken >> i & 1 || (d < n_doc && p[i].id != new.doc[d])) continue;
            taken |= 1ull << i;
            place[k++] = i;
            if (d < n_doc) break;
        }
    return r;
}

/* The first of the longest paths, in tokens, that are cached behind `key`; the others as sent. */
static void search_place(const struct rag_cache *c, struct tier_key key, const struct rag_part *p,
                         size_t n, size_t place[])
{
    size_t path[RAG_PARTS_MAX], next[RAG_PARTS_MAX + 1] = {0}, depth = 0, n_place = 0;
    uint64_t taken = 0, tok[RAG_PARTS_MAX + 1] = {0}, best_tok = 0;
    struct tier_key at[RAG_PARTS_MAX + 1] = {key};
    while (next[0] < n || depth > 0) {
        const size_t i = next[depth]++;
        if (i >= n) taken &= ~(1ull << path[--depth]);
        if (i >= n || taken >> i & 1) continue;
        at[depth + 1] = key_of(at[depth], &p[i], 1);
        if (!has(c, &at[depth + 1])) continue;
        path[depth] = i;
        tok[depth + 1] = tok[depth] + p[i].n_tok;
        taken |= 1ull << i;
        next[++depth] = 0;
        if (tok[depth] <= best_tok) continue;
        best_tok = tok[depth];
        memcpy(place, path, (n_place = depth) * sizeof *path);
    }
    for (size_t i = 0; i < n_place; i++)
        taken |= 1ull << place[i];
    for (size_t i = 0; i < n; i++)
        if (!(taken >> i & 1)) place[n_place++] = i;
}

/* ---- requests ---- */

static size_t count_of(const struct rag_request *q, enum rag_kind kind)
{
    size_t n = 0;
    for (size_t i = 0; i < q->n_parts; i++)
        n += q->part[i].kind == kind;
    return n;
}

static int ask_prefix(struct rag_cache *c, const struct rag_request *q, uint32_t *found)
{
    const size_t s = count_of(q, RAG_SYSTEM), p = count_of(q, RAG_PASSAGE);
    const size_t head = c->o.way == RAG_PREFIX || s < STABLE_BLOCKS ? s : STABLE_BLOCKS;
    size_t place[RAG_PARTS_MAX];
    struct tier_key key = key_of((struct tier_key){0}, q->part, head);
    bool there = true;
    int r = 0;
    for (size_t i = 0; i < p; i++)
        place[i] = i;
    if (c->o.way == RAG_PILOT && p > 0) r = pilot_place(c, q->part + s, p, place);
    if (c->o.way == RAG_SEARCH) search_place(c, key, q->part + s, p, place);
    key = (struct tier_key){0};
    for (size_t i = 0; r == 0 && i < q->n_parts; i++) {
        const size_t at = i < head ? i : i < head + p ? s + place[i - head] : i < s + p ? i - p : i;
        key = key_of(key, &q->part[at], 1);
        there = there && has(c, &key);
        found[at] = there ? q->part[at].n_tok : 0;
        later(c, key, q->part[at].n_tok);
        if (c->o.way == RAG_PILOT && p > 0 && i + 1 == head + p)
            node_at(c, c->pilot.len / sizeof(struct pilot_node) - 1)->key = key;
    }
    return r;
}

/* Of the tokens from `offset` in part p on. */
static struct tier_key window_key(const struct rag_part *p, uint32_t offset, uint32_t n_tok)
{
    struct tier_key k = key_add((struct tier_key){0}, offset);
    for (uint32_t left = offset + n_tok; left > p->n_tok; p++) {
        k = key_of(k, p, 1);
        left -= p->n_tok;
    }
    return key_of(k, p, 1);
}

static void ask_grid(struct rag_cache *c, const struct rag_request *q, uint32_t *found)
{
    const uint32_t w = c->o.window;
    uint32_t begin[RAG_PARTS_MAX + 1] = {0};
    for (size_t i = 0; i < q->n_parts; i++)
        begin[i + 1] = begin[i] + q->part[i].n_tok;
    for (uint32_t t = 0, i = 0, step; t + w <= begin[q->n_parts]; t += step) {
        while (t >= begin[i + 1])
            i++;
        const struct tier_key k = window_key(&q->part[i], t - begin[i], w);
        step = has(c, &k) ? w : 1;
        if (step == 1) continue;
        later(c, k, w);
        for (size_t j = i; j < q->n_parts && begin[j] < t + w; j++)
            found[j] +=
                (begin[j + 1] < t + w ? begin[j + 1] : t + w) - (begin[j] > t ? begin[j] : t);
    }
    for (uint32_t t = 0, i = 0; t + w <= begin[q->n_parts]; t += w) {
        while (t >= begin[i + 1])
            i++;
        later(c, window_key(&q->part[i], t - begin[i], w), w);
    }
}

static void ask_parts(struct rag_cache *c, const struct rag_request *q, uint32_t *found)
{
    for (size_t i = 0; i < q->n_parts; i++) {
        const struct tier_key k = key_of((struct tier_key){0}, &q->part[i], 1);
        if (c->o.way == RAG_PASSAGES && q->part[i].kind != RAG_PASSAGE) continue;
        found[i] = has(c, &k) ? q->part[i].n_tok : 0;
        later(c, k, q->part[i].n_tok);
    }
}

static bool names(const struct rag_request *q, const struct rag_part *p)
{
    size_t i = 0;
    while (i < q->n_parts && (q->part[i].kind != p->kind || q->part[i].id != p->id))
        i++;
    return i < q->n_parts;
}

static struct tier_key head_of(const struct rag_request *q)
{
    return key_of((struct tier_key){0}, q->part,
                  q->n_parts < STABLE_BLOCKS ? q->n_parts : STABLE_BLOCKS);
}

static int ask_bound(struct rag_cache *c, const struct rag_request *q, uint32_t *found)
{
    const struct rag_request *e = (const void *)c->earlier.data;
    const struct tier_key head = head_of(q);
    uint64_t most = 0;
    for (size_t i = 0; i < c->earlier.len / sizeof *e; i++) {
        const struct tier_key other = head_of(&e[i]);
        uint32_t both[RAG_PARTS_MAX] = {0};
        uint64_t sum = 0;
        for (size_t j = 0; tier_key_same(&head, &other) && j < q->n_parts; j++) {
            if (q->part[j].kind != RAG_PASSAGE || !names(&e[i], &q->part[j])) continue;
            sum += both[j] = q->part[j].n_tok;
        }
        if (sum > most) memcpy(found, both, q->n_parts * sizeof *both);
        if (sum > most) most = sum;
    }
    return buf_add(&c->earlier, q, sizeof *q);
}

int rag_cache_ask(struct rag_cache *c, const struct rag_request *q, uint32_t *found)
{
    int r = 0;
    memset(found, 0, q->n_parts * sizeof *found);
    if (c->o.way == RAG_BOUND)
        r = ask_bound(c, q, found);
    else if (c->o.way < RAG_BOUND)
        r = ask_prefix(c, q, found);
    else if (c->o.way == RAG_GRID)
        ask_grid(c, q, found);
    else
        ask_parts(c, q, found);
    return r == 0 ? keep_all(c) : r;
}

int rag_cache_create(const struct rag_cache_opts *o, struct rag_cache **ret)
{
    struct rag_cache *c = mem_zalloc(sizeof *c);
    const size_t n_ghosts = o->room_tokens / 16 + 1024; /* more than the records that fit */
    if (!c) return -ENOMEM;
    c->o = *o;
    if (o->room_tokens == 0) c->o.room_tokens = UINT64_MAX;
    int r = key_map_init(&c->map, BUCKETS);
    if (r == 0) r = evict_create(o->policy, c->o.room_tokens, n_ghosts, &c->order);
    if (r == 0) r = pilot_add(c, (struct pilot_node){.alive = true});
    if (r == 0)
        *ret = c;
    else
        rag_cache_destroy(c);
    return r;
}

void rag_cache_destroy(struct rag_cache *c)
{
    if (!c) return;
    for (struct evict_node *n; c->order && (n = evict_victim(c->order, NULL, NULL, NULL, 0));)
        drop(c, n);
    key_map_fini(&c->map);
    evict_destroy(c->order);
    buf_fini(&c->todo);
    buf_fini(&c->pilot);
    buf_fini(&c->earlier);
    mem_free(c);
}
