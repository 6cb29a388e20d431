#include "base/mem.h"
#include "tests/test.h"
#include "tiers/store_admin.h"
#include "tiers/store_write.h"
#include "tiers/store_entry.h"

enum { L = 3, G = 2, K = 4 };

static struct tier_ident ident_of(enum kn_dtype t)
{
    return (struct tier_ident){
        .model = {1, 2}, .tokenizer = {3, 4}, .dtype = t, .sink_token = 1, .L = L, .G = G, .K = K};
}

static struct store *open_store(uint64_t ram_bytes)
{
    struct store_opts o = {.ram_bytes = ram_bytes, .ident = ident_of(KN_F32)};
    struct store *s = NULL;
    struct err err = {0};
    ASSERT_OK(store_create(&o, &s, &err));
    s->touch_every_ns = 0; /* exact order */
    s->pin_share_max = 1;
    return s;
}

/* Chunk number `id`: its tokens and rows are functions of the number. */
static size_t tokens_of(int id, int32_t *tok)
{
    size_t n = 3 + (size_t)(id % 5) * 40;
    for (size_t i = 0; i < n; i++)
        tok[i] = id * 1000 + (int32_t)i;
    return n;
}

static struct tier_key key_of(int id)
{
    int32_t tok[256];
    struct tier_ident ident = ident_of(KN_F32);
    size_t n = tokens_of(id, tok);
    return tier_key_chunk(&ident, "t", tok, n);
}

static float row_of(int id, unsigned layer, int v, size_t i)
{
    return (float)(id * 100000 + (int)layer * 10000 + v * 5000 + (int)i);
}

static int claim(struct store *s, int id, struct store_writer **ret)
{
    int32_t tok[256];
    size_t n = tokens_of(id, tok);
    struct tier_key k = key_of(id);
    return store_claim(s, &(struct store_new){TIER_CHUNK, k, "t", tok, n}, ret);
}

static void fill(struct store_writer *w, int id)
{
    int32_t tok[256];
    size_t n = tokens_of(id, tok);
    for (unsigned l = 1; l < L; l++) {
        void *p[2];
        store_writer_layer(w, l, &p[0], &p[1]);
        for (int v = 0; v < 2; v++)
            for (size_t i = 0; i < n * G * K; i++)
                ((float *)p[v])[i] = row_of(id, l, v, i);
    }
}

static int put(struct store *s, int id)
{
    struct store_writer *w;
    int r = claim(s, id, &w);
    if (r <= 0) return r;
    fill(w, id);
    ASSERT_OK(store_commit(w));
    return 1;
}

static int look(struct store *s, int id, struct store_pin **ret, enum store_miss *why)
{
    int32_t tok[256];
    size_t n = tokens_of(id, tok);
    struct tier_key k = key_of(id);
    return store_lookup(s, &k, tok, n, ret, why);
}

/* Every layer of a pin holds exactly what was written, or says that it is damaged. */
static int check_pin(struct store_pin *p, int id)
{
    int32_t tok[256];
    size_t n = tokens_of(id, tok);
    for (unsigned l = 1; l < L; l++) {
        const void *row[2];
        int r = store_pin_layer(p, l, &row[0], &row[1]);
        if (r < 0) return r;
        for (int v = 0; v < 2; v++)
            for (size_t i = 0; i < n * G * K; i++)
                if (((const float *)row[v])[i] != row_of(id, l, v, i)) return 1;
    }
    return 0;
}

static struct store_stats stats_of(struct store *s)
{
    struct store_stats st;
    store_get_stats(s, &st);
    ASSERT_TRUE(st.used_bytes <= st.budget_bytes);
    return st;
}

TEST(put_look_read)
{
    struct store *s = open_store(1 << 20);
    struct store_pin *p = NULL;
    enum store_miss why;
    ASSERT_EQ(look(s, 1, &p, &why), 0);
    ASSERT_EQ(why, STORE_MISS_NEVER);
    ASSERT_EQ(put(s, 1), 1);
    ASSERT_EQ(put(s, 1), 0);
    ASSERT_EQ(look(s, 1, &p, &why), 1);
    ASSERT_EQ(check_pin(p, 1), 0);
    const void *k, *v;
    ASSERT_ERR(store_pin_layer(p, 0, &k, &v), -EINVAL);
    ASSERT_ERR(store_pin_layer(p, L, &k, &v), -EINVAL);
    ASSERT_STREQ(store_pin_tier(p), "ram");
    struct tier_key key = key_of(1);
    ASSERT_TRUE(store_probe(s, &key));
    ASSERT_ERR(store_evict(s, &key, NULL), -EBUSY);
    store_pin_release(p);
    ASSERT_EQ(store_evict(s, &key, NULL), 1);
    ASSERT_EQ(store_evict(s, &key, NULL), 0);
    ASSERT_TRUE(!store_probe(s, &key));
    ASSERT_EQ(look(s, 1, &p, &why), 0);
    ASSERT_EQ(why, STORE_MISS_EVICTED);
    struct store_stats st = stats_of(s);
    ASSERT_EQ(st.n_records, 0);
    ASSERT_EQ(st.hits, 1);
    ASSERT_EQ(st.puts, 1);
    store_destroy(s);
}

TEST(other_tokens_under_the_same_key_miss)
{
    struct store *s = open_store(1 << 20);
    struct store_pin *p = NULL;
    enum store_miss why;
    int32_t tok[256];
    size_t n = tokens_of(2, tok);
    struct tier_key k = key_of(2);
    ASSERT_EQ(put(s, 2), 1);
    tok[n - 1]++;
    ASSERT_EQ(store_lookup(s, &k, tok, n, &p, &why), 0);
    ASSERT_EQ(why, STORE_MISS_TOKENS);
    tok[n - 1]--;
    ASSERT_EQ(store_lookup(s, &k, tok, n - 1, &p, &why), 0);
    ASSERT_EQ(why, STORE_MISS_TOKENS);
    ASSERT_EQ(store_lookup(s, &k, tok, n, &p, &why), 1);
    store_pin_release(p);
    store_destroy(s);
}

TEST(claims_are_single_flight)
{
    struct store *s = open_store(1 << 20);
    struct store_writer *w, *w2 = NULL;
    struct store_pin *p;
    enum store_miss why;
    ASSERT_EQ(claim(s, 3, &w), 1);
    ASSERT_EQ(claim(s, 3, &w2), 0);
    ASSERT_EQ(look(s, 3, &p, &why), 0);
    ASSERT_EQ(why, STORE_MISS_BUILDING);
    struct tier_key k = key_of(3);
    ASSERT_ERR(store_evict(s, &k, NULL), -EBUSY);
    uint64_t used = stats_of(s).used_bytes;
    store_abort(w);
    ASSERT_TRUE(stats_of(s).used_bytes < used);
    ASSERT_EQ(claim(s, 3, &w2), 1);
    ASSERT_EQ(store_clear(s, NULL, NULL, true), 0); /* what is being built stays */
    fill(w2, 3);
    ASSERT_OK(store_commit(w2));
    ASSERT_EQ(look(s, 3, &p, &why), 1);
    ASSERT_EQ(check_pin(p, 3), 0);
    ASSERT_EQ(store_clear(s, NULL, NULL, false), 1); /* dropped, yet the holder's bytes stay */
    ASSERT_EQ(check_pin(p, 3), 0);
    ASSERT_EQ(look(s, 3, &(struct store_pin *){NULL}, &why), 0);
    store_pin_release(p);
    store_destroy(s);
}

TEST(lru_order_and_refusal_without_eviction)
{
    struct store *s = open_store(70 << 10); /* room for four of the smallest records */
    struct store_pin *p[8];
    enum store_miss why;
    int n = 0;
    while (stats_of(s).evictions == 0)
        ASSERT_EQ(put(s, 5 * n++), 1);
    ASSERT_TRUE(n >= 4);
    struct tier_key k = key_of(0);
    ASSERT_TRUE(!store_probe(s, &k)); /* the oldest went */
    ASSERT_EQ(look(s, 5, &p[0], &why), 1);
    store_pin_release(p[0]); /* number 1 is now the newest */
    ASSERT_EQ(put(s, 5 * n++), 1);
    k = key_of(5);
    ASSERT_TRUE(store_probe(s, &k));
    k = key_of(10);
    ASSERT_TRUE(!store_probe(s, &k));
    /* Hold everything: a claim is refused and nothing is lost. */
    int held = 0;
    for (int i = 0; i < n; i++)
        held += look(s, 5 * i, &p[held], &why);
    struct store_stats before = stats_of(s);
    struct store_writer *w;
    ASSERT_ERR(claim(s, 5 * n, &w), -ENOSPC);
    struct store_stats after = stats_of(s);
    ASSERT_EQ(after.evictions, before.evictions);
    ASSERT_EQ(after.used_bytes, before.used_bytes);
    ASSERT_EQ(after.n_records, before.n_records);
    ASSERT_EQ(after.put_refused, before.put_refused + 1);
    for (int i = 0; i < held; i++)
        store_pin_release(p[i]);
    /* An administrator's pin holds as well. */
    k = key_of(5);
    ASSERT_EQ(store_set_pinned(s, &k, true), 1);
    ASSERT_EQ(stats_of(s).n_pinned, 1);
    for (int i = 100; i < 140; i++)
        ASSERT_EQ(put(s, 5 * i), 1);
    ASSERT_TRUE(store_probe(s, &k));
    ASSERT_ERR(store_evict(s, &k, NULL), -EBUSY);
    store_clear(s, NULL, NULL, false);
    ASSERT_EQ(stats_of(s).n_records, 1);
    ASSERT_EQ(store_clear(s, NULL, NULL, true), 1);
    ASSERT_EQ(stats_of(s).n_pinned, 0);
    store_destroy(s);
}

TEST(a_record_larger_than_the_budget_is_refused)
{
    struct store *s = open_store(64 << 10);
    struct store_writer *w;
    static int32_t tok[4096];
    struct tier_key k = {1, 2};
    ASSERT_EQ(put(s, 0), 1);
    ASSERT_ERR(store_claim(s, &(struct store_new){TIER_CHUNK, k, "t", tok, 4096}, &w), -ENOSPC);
    ASSERT_ERR(store_claim(s, &(struct store_new){TIER_CHUNK, k, "t", tok, 0}, &w), -EINVAL);
    ASSERT_ERR(store_claim(s, &(struct store_new){TIER_CHUNK, k, "t", tok, SIZE_MAX}, &w), -ERANGE);
    ASSERT_EQ(stats_of(s).evictions, 0);
    ASSERT_EQ(stats_of(s).n_records, 1);
    store_destroy(s);
    struct store_opts o = {.ram_bytes = 100, .ident = ident_of(KN_F32)};
    struct err err = {0};
    ASSERT_ERR(store_create(&o, &s, &err), -EINVAL);
    ASSERT_TRUE(strlen(err.msg) > 10);
}

static uint8_t *byte_at(const struct entry *e, uint64_t at)
{
    uint32_t i = 0;
    while (at >= record_part_off(&e->layout, i) + record_part_bytes(&e->layout, i))
        i++;
    return e->part[i] + (at - record_part_off(&e->layout, i));
}

/* Store chunk `id` and flip one bit of the record before anybody has read it. */
static void put_damaged(struct store *s, int id, uint64_t at)
{
    struct store_writer *w;
    ASSERT_EQ(claim(s, id, &w), 1);
    fill(w, id);
    uint8_t *b = byte_at(((struct entry *)w), at);
    ASSERT_OK(store_commit(w));
    *b ^= 0x10;
}

/* One flipped bit anywhere that matters: a miss or -EBADMSG, never other data. */
TEST(corruption_of_every_region_is_a_miss)
{
    struct store *s = open_store(1 << 20);
    struct store_writer *w;
    struct store_pin *p;
    enum store_miss why;
    int id = 1;
    uint64_t bad = 0;
    ASSERT_EQ(claim(s, id, &w), 1);
    struct record_layout l = ((struct entry *)w)->layout;
    store_abort(w);
    for (uint64_t at = 0; at < l.header_bytes; at++) {
        put_damaged(s, id, at);
        ASSERT_EQ(look(s, id, &p, &why), 0);
        ASSERT_TRUE(why == STORE_MISS_CORRUPT || why == STORE_MISS_STALE);
        bad += why == STORE_MISS_CORRUPT;
        ASSERT_EQ(look(s, id, &p, &why), 0); /* the reason stays known */
        ASSERT_TRUE(why == STORE_MISS_CORRUPT || why == STORE_MISS_STALE);
    }
    for (uint32_t g = 0; g < l.n_groups; g++)
        for (uint64_t i = 0; i < l.group_bytes; i += 7) {
            put_damaged(s, id,
                        record_part_off(&l, record_part_of(&l, g)) +
                            g % l.groups_per_part * l.group_stride + i);
            ASSERT_EQ(look(s, id, &p, &why), 1);
            ASSERT_EQ(check_pin(p, id), -EBADMSG);
            struct tier_key k = key_of(id);
            ASSERT_TRUE(!store_probe(s, &k));
            ASSERT_EQ(check_pin(p, id), -EBADMSG);
            store_pin_release(p);
            bad++;
        }
    ASSERT_EQ(stats_of(s).corrupt, bad);
    ASSERT_EQ(stats_of(s).n_records, 0);
    ASSERT_EQ(put(s, id), 1);
    ASSERT_EQ(look(s, id, &p, &why), 1);
    ASSERT_EQ(check_pin(p, id), 0);
    store_pin_release(p);
    store_destroy(s);
}

static int count_info(void *ctx, const struct store_info *i)
{
    unsigned *n = ctx;
    n[0]++;
    n[1] += i->pinned;
    n[2] += i->building;
    return n[0] == n[3];
}

TEST(visit_sees_everything_and_stops)
{
    struct store *s = open_store(1 << 20);
    struct store_writer *w;
    struct tier_key k = key_of(2);
    for (int i = 0; i < 5; i++)
        ASSERT_EQ(put(s, i), 1);
    ASSERT_EQ(claim(s, 9, &w), 1);
    ASSERT_EQ(store_set_pinned(s, &k, true), 1);
    unsigned n[4] = {0};
    ASSERT_EQ(store_visit(s, NULL, count_info, n), 0);
    ASSERT_EQ(n[0], 6);
    ASSERT_EQ(n[1], 1);
    ASSERT_EQ(n[2], 1);
    unsigned stop[4] = {0, 0, 0, 2};
    ASSERT_EQ(store_visit(s, NULL, count_info, stop), 1);
    ASSERT_EQ(stop[0], 2);
    store_abort(w);
    store_destroy(s);
}

TEST(every_failed_allocation_changes_nothing)
{
    struct store_opts o = {.ram_bytes = 1 << 20, .ident = ident_of(KN_F32)};
    struct store *s = NULL;
    struct err err;
    for (unsigned n = 1;; n++) {
        mem_fail_nth(n);
        int r = store_create(&o, &s, &err);
        bool fired = mem_fail_fired();
        mem_fail_nth(0);
        if (!fired) {
            ASSERT_OK(r);
            break;
        }
        ASSERT_EQ(r, -ENOMEM);
    }
    for (unsigned n = 1;; n++) {
        struct store_stats before = stats_of(s), after;
        mem_fail_nth(n);
        int r = put(s, 1);
        bool fired = mem_fail_fired();
        mem_fail_nth(0);
        if (!fired) {
            ASSERT_EQ(r, 1);
            break;
        }
        ASSERT_EQ(r, -ENOMEM);
        after = stats_of(s);
        ASSERT_MEMEQ(&before, &after, sizeof after);
    }
    unsigned count[4] = {0};
    mem_fail_nth(1);
    ASSERT_ERR(store_visit(s, NULL, count_info, count), -ENOMEM);
    mem_fail_nth(0);
    store_destroy(s);
}

/* ---- property: the store against a model that is an array ---- */

enum { IDS = 24, PINS = 6 };
struct model {
    bool have[IDS], admin[IDS];
    uint64_t cost[IDS], used[IDS]; /* `used`: when it last became evictable */
    int refs[IDS];
    struct store_pin *pin[PINS];
    int pin_id[PINS];
    uint64_t clock, base, meta;
    bool uniform; /* records of one size alone */
};

static bool model_evictable(const struct model *m, int i)
{
    return m->have[i] && !m->refs[i] && !m->admin[i];
}

/* The `n` evictable records that were used longest ago have gone, and nobody else. */
static void model_evicted(struct store *s, struct model *m)
{
    uint64_t newest_gone = 0, oldest_left = UINT64_MAX;
    for (int i = 0; i < IDS; i++) {
        struct tier_key k = key_of(i);
        if (!m->have[i]) continue;
        bool here = store_probe(s, &k);
        if (!model_evictable(m, i)) {
            ASSERT_TRUE(here);
        } else if (here) {
            oldest_left = m->used[i] < oldest_left ? m->used[i] : oldest_left;
        } else {
            newest_gone = m->used[i] > newest_gone ? m->used[i] : newest_gone;
            m->have[i] = false;
        }
    }
    ASSERT_TRUE(newest_gone < oldest_left);
}

/* What the naive store would do for a claim: evict the oldest, all or nothing; how many. */
static int model_make_room(const struct model *m, const struct store *s, uint64_t total,
                           uint64_t need, uint64_t parts)
{
    uint64_t budget = s->stats.budget_bytes, pages = s->pool.size_bytes,
             in_use = s->pool.used_bytes;
    bool have[IDS];
    int n = 0;
    memcpy(have, m->have, sizeof have);
    while (total + need > budget || in_use + parts > pages) {
        int oldest = -1;
        for (int i = 0; i < IDS; i++)
            if (have[i] && model_evictable(m, i) && (oldest < 0 || m->used[i] < m->used[oldest]))
                oldest = i;
        if (oldest < 0) return -1;
        have[oldest] = false;
        total -= m->cost[oldest];
        in_use -= m->cost[oldest] - m->meta;
        n++;
    }
    return n;
}

/* Records of one size leave no fragments: then the naive store is right to the record. Else one
 * more may have to go, in the same order, and a claim may fail once all went. */
static void model_put(struct store *s, struct model *m, int id)
{
    struct store_stats st = stats_of(s);
    struct store_info info;
    struct tier_key k = key_of(id);
    bool had = m->have[id];
    int n = 0, left = 0,
        room = had ? 0 : model_make_room(m, s, st.used_bytes, m->cost[id], m->cost[id] - m->meta);
    int r = put(s, id);
    for (int i = 0; i < IDS; i++)
        n += m->have[i];
    model_evicted(s, m);
    for (int i = 0; i < IDS; i++) {
        n -= m->have[i];
        left += model_evictable(m, i);
    }
    if (room < 0 || m->uniform || had) {
        ASSERT_EQ(r, had ? 0 : room >= 0 ? 1 : -ENOSPC);
        ASSERT_EQ(n, room >= 0 ? room : 0);
    } else {
        ASSERT_TRUE(n >= room);
        ASSERT_TRUE(r == 1 || (r == -ENOSPC && left == 0));
    }
    if (r != 1) return;
    ASSERT_EQ(store_get_info(s, &k, &info), 1);
    ASSERT_EQ(info.size_bytes, m->cost[id]);
    m->have[id] = true;
    m->admin[id] = false;
    m->used[id] = ++m->clock;
}

static void model_pin(struct store *s, struct model *m, int id, int slot)
{
    enum store_miss why;
    if (m->pin[slot]) {
        int old = m->pin_id[slot];
        ASSERT_EQ(check_pin(m->pin[slot], old), 0);
        store_pin_release(m->pin[slot]);
        m->pin[slot] = NULL;
        if (--m->refs[old] == 0) m->used[old] = ++m->clock;
        return;
    }
    ASSERT_EQ(look(s, id, &m->pin[slot], &why), m->have[id]);
    if (!m->have[id]) return;
    m->pin_id[slot] = id;
    m->refs[id]++;
}

static void model_admin(struct store *s, struct model *m, int id, int op)
{
    struct tier_key k = key_of(id);
    if (op == 0) {
        int want = !m->have[id] ? 0 : m->refs[id] || m->admin[id] ? -EBUSY : 1;
        ASSERT_EQ(store_evict(s, &k, NULL), want);
        if (want == 1) m->have[id] = false;
        return;
    }
    bool on = op == 1;
    ASSERT_EQ(store_set_pinned(s, &k, on), m->have[id]);
    if (!m->have[id] || m->admin[id] == on) return;
    m->admin[id] = on;
    if (!on) m->used[id] = ++m->clock;
}

static void model_compare(struct store *s, const struct model *m)
{
    struct store_stats st = stats_of(s);
    uint64_t n = 0, pinned = 0, bytes = m->base;
    for (int i = 0; i < IDS; i++) {
        struct tier_key k = key_of(i);
        ASSERT_EQ(store_probe(s, &k), m->have[i]);
        n += m->have[i];
        pinned += m->have[i] && m->admin[i];
        bytes += m->have[i] ? m->cost[i] : 0;
    }
    ASSERT_EQ(st.n_records, n);
    ASSERT_EQ(st.n_pinned, pinned);
    ASSERT_EQ(st.used_bytes, bytes);
}

static void run_model(uint64_t seed, bool uniform)
{
    struct model m = {.uniform = uniform};
    struct store *big = open_store(16 << 20), *s = open_store(120 << 10);
    for (int i = 0; i < IDS; i++) {
        struct store_info info;
        struct tier_key k = key_of(i);
        ASSERT_EQ(put(big, i), 1);
        ASSERT_EQ(store_get_info(big, &k, &info), 1);
        m.cost[i] = info.size_bytes;
        m.meta = info.size_bytes % POOL_PAGE_BYTES; /* alike for all: they have as many layers */
    }
    store_destroy(big);
    m.base = stats_of(s).used_bytes;
    for (int step = 0; step < 3000; step++) {
        uint64_t r = test_rand(&seed);
        int id = (int)((r >> 8) % IDS);
        if (uniform) id -= id % 5;
        switch (r % 8) {
        case 0 ... 3:
            model_put(s, &m, id);
            break;
        case 4 ... 6:
            model_pin(s, &m, id, (int)((r >> 40) % PINS));
            break;
        default:
            model_admin(s, &m, id, (int)((r >> 40) % 3));
        }
        model_compare(s, &m);
    }
    for (int i = 0; i < PINS; i++)
        store_pin_release(m.pin[i]);
    store_destroy(s);
}

TEST(property_against_a_naive_model)
{
    for (uint64_t seed = 1; seed <= 8; seed++) {
        printf("# seed %llu\n", (unsigned long long)seed);
        run_model(seed, true);
        run_model(seed, false);
    }
}

/* ---- threads ---- */

struct race {
    struct store *s;
    pthread_barrier_t barrier;
    _Atomic int builders, wrong, hits;
    int rounds;
};

static void *claim_race(void *arg)
{
    struct race *c = arg;
    for (int i = 0; i < c->rounds; i++) {
        struct store_writer *w;
        pthread_barrier_wait(&c->barrier);
        if (claim(c->s, i, &w) == 1) {
            c->builders++;
            fill(w, i);
            if (store_commit(w) < 0) c->wrong++;
        }
    }
    return NULL;
}

static void run_threads(struct race *c, void *(*fn)(void *), unsigned n)
{
    pthread_t t[8];
    ASSERT_EQ(pthread_barrier_init(&c->barrier, NULL, n), 0);
    for (unsigned i = 0; i < n; i++)
        ASSERT_EQ(pthread_create(&t[i], NULL, fn, c), 0);
    for (unsigned i = 0; i < n; i++)
        ASSERT_EQ(pthread_join(t[i], NULL), 0);
    pthread_barrier_destroy(&c->barrier);
}

TEST(a_claim_race_has_one_builder)
{
    struct race c = {.s = open_store(64 << 20), .rounds = 200};
    run_threads(&c, claim_race, 4);
    ASSERT_EQ(c.builders, c.rounds);
    ASSERT_EQ(c.wrong, 0);
    ASSERT_EQ(stats_of(c.s).n_records, c.rounds);
    store_destroy(c.s);
}

/* A version with the same rows. */
static void revise(struct store *s, int id)
{
    struct tier_key k = key_of(id);
    struct store_writer *w;
    if (store_revise(s, &k, &w) != 1) return;
    store_writer_behind(w, store_writer_desc(w)->n_contexts + 1, 400);
    (void)store_commit(w); /* it may have been removed, or be built anew */
}

/* Readers, builders and an administrator at once over a budget that holds a few records only. */
static void *mixed_load(void *arg)
{
    struct race *c = arg;
    static _Atomic uint64_t next_seed = 77;
    uint64_t rng = next_seed++;
    float score[256] = {0};
    pthread_barrier_wait(&c->barrier);
    for (int i = 0; i < c->rounds; i++) {
        uint64_t r = test_rand(&rng);
        int id = (int)((r >> 8) % IDS);
        struct tier_key k = key_of(id);
        struct store_pin *p;
        enum store_miss why;
        if (look(c->s, id, &p, &why) == 1) {
            c->hits++;
            if (check_pin(p, id) != 0) c->wrong++;
            (void)store_pin_scores(p, score);
            store_pin_release(p);
        } else {
            (void)put(c->s, id); /* may find no room while the others hold everything */
        }
        if (r % 7 == 0) (void)store_evict(c->s, &k, NULL);
        if (r % 11 == 0) revise(c->s, id);
        if (r % 501 == 0) store_clear(c->s, NULL, NULL, true);
    }
    return NULL;
}

TEST(readers_while_evicting)
{
    struct race c = {.s = open_store(160 << 10), .rounds = 3000};
    c.s->checks.every_ns = 0; /* the maintenance thread reads along */
    run_threads(&c, mixed_load, 4);
    ASSERT_EQ(c.wrong, 0);
    ASSERT_TRUE(c.hits > 0);
    struct store_stats st = stats_of(c.s);
    ASSERT_EQ(st.corrupt, 0);
    ASSERT_TRUE(st.evictions > 0);
    store_clear(c.s, NULL, NULL, true);
    ASSERT_EQ(stats_of(c.s).n_records, 0);
    store_destroy(c.s);
}
