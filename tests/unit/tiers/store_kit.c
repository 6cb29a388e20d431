#include "tests/unit/tiers/store_kit.h"

#include "tests/test.h"

#include <sched.h>

const struct tier_ident kit_small = {
    .model = {1, 2}, .tokenizer = {3, 4}, .dtype = KN_F32, .sink_token = 1, .L = 3, .G = 2, .K = 4};
const struct tier_ident kit_large = {.model = {1, 2},
                                     .tokenizer = {3, 4},
                                     .dtype = KN_F32,
                                     .sink_token = 1,
                                     .L = KIT_LARGE_LAYERS,
                                     .G = 8,
                                     .K = 64};

struct store *kit_store(const struct tier_ident *id, uint64_t ram_bytes, const struct kit_tiers *t)
{
    struct store_opts o = {.ram_bytes = ram_bytes, .ident = *id, .convert = kn_convert};
    struct store *s = NULL;
    struct err err = {0};
    if (t) o.side_layer = t->side_layer;
    if (t) o.auth_key = t->auth_key;
    if (t && t->finite) o.finite = kn_finite;
    o.check_ahead = t && t->check_ahead;
    for (size_t i = 0; t && i < t->n; i++)
        o.tier[o.n_tiers++] = (struct store_tier_opts){&t->mock[i]->tier, t->q8[i]};
    ASSERT_OK(store_create(&o, &s, &err));
    s->touch_every_ns = 0; /* every use counts */
    return s;
}

size_t kit_tokens(const struct tier_ident *id, int chunk, int32_t *ret_tok)
{
    size_t n = id->L == KIT_LARGE_LAYERS ? KIT_LARGE_TOKENS : KIT_SMALL_TOKENS;
    for (size_t i = 0; i < n; i++)
        ret_tok[i] = chunk * 1000 + (int32_t)i;
    return n;
}

const char *kit_ns(int chunk)
{
    return chunk % 2 ? "b" : "a";
}

struct tier_key kit_key(const struct tier_ident *id, int chunk)
{
    int32_t tok[KIT_LARGE_TOKENS];
    size_t n = kit_tokens(id, chunk, tok);
    return tier_key_chunk(id, kit_ns(chunk), tok, n);
}

static size_t rows(const struct tier_ident *id)
{
    size_t n = id->L == KIT_LARGE_LAYERS ? KIT_LARGE_TOKENS : KIT_SMALL_TOKENS;
    return n * id->G * id->K;
}

static float row_of(int chunk, unsigned layer, int v, size_t i)
{
    return (float)(chunk % 7 * 8000 + /* within what 8 bits with an f16 take */
                   (int)layer * 2000 + v * 1000 + (int)(i % 997));
}

int kit_claim(struct store *s, int chunk, struct store_writer **ret)
{
    int32_t tok[KIT_LARGE_TOKENS];
    size_t n = kit_tokens(&s->ident, chunk, tok);
    struct tier_key k = kit_key(&s->ident, chunk);
    return store_claim(s, &(struct store_new){TIER_CHUNK, k, kit_ns(chunk), tok, n}, ret);
}

void kit_fill(struct store *s, struct store_writer *w, int chunk)
{
    for (unsigned l = 1; l < s->ident.L; l++) {
        void *p[2];
        store_writer_layer(w, l, &p[0], &p[1]);
        for (int v = 0; v < 2; v++)
            for (size_t i = 0; i < rows(&s->ident); i++)
                ((float *)p[v])[i] = row_of(chunk, l, v, i);
    }
}

int kit_put(struct store *s, int chunk)
{
    struct store_writer *w;
    int r = kit_claim(s, chunk, &w);
    if (r <= 0) return r;
    kit_fill(s, w, chunk);
    ASSERT_OK(store_commit(w));
    return 1;
}

int kit_ask(struct store *s, int chunk, double worth_ms, struct store_pin **ret,
            enum store_miss *why)
{
    static _Thread_local int32_t tok[KIT_LARGE_TOKENS]; /* until it has settled */
    size_t n = kit_tokens(&s->ident, chunk, tok);
    struct store_ask a = {
        .key = kit_key(&s->ident, chunk), .tok = tok, .n = n, .worth_ms = worth_ms};
    return store_ask(s, &a, ret, why);
}

int kit_look(struct store *s, int chunk, struct store_pin **ret, enum store_miss *why)
{
    int r = kit_ask(s, chunk, 0, ret, why);
    return r == STORE_ASKING ? store_pin_settle(*ret, 0, why) : r;
}

/* 0: these rows are the chunk's in that form, else 1. */
static int check_rows(struct store *s, const void *got, enum kn_dtype t, int chunk, unsigned layer,
                      int v)
{
    const size_t n = rows(&s->ident), K = s->ident.K, bytes = kn_row_bytes(t, n / K, K);
    float *want = malloc(n * sizeof *want); /* not a failing allocation of the test's */
    void *form = malloc(bytes);
    for (size_t i = 0; i < n; i++)
        want[i] = row_of(chunk, layer, v, i);
    ASSERT_OK(kn_convert(want, KN_F32, n, K, t, form));
    int r = memcmp(got, form, bytes) != 0;
    free(want);
    free(form);
    return r;
}

int kit_check_layer(struct store *s, struct store_pin *p, int chunk, unsigned layer)
{
    const void *row[2];
    int r = store_pin_layer(p, layer, &row[0], &row[1]);
    for (int v = 0; v < 2 && r == 0; v++)
        r = check_rows(s, row[v], store_pin_dtype(p), chunk, layer, v);
    return r;
}

int kit_check_side(struct store *s, struct store_pin *p, int chunk, unsigned layer)
{
    const void *k;
    enum kn_dtype t;
    if (store_pin_side(p, layer, &k, &t) == 0) return 1;
    return check_rows(s, k, t, chunk, layer, 0) ? -EBADMSG : 0;
}

int kit_check(struct store *s, struct store_pin *p, int chunk)
{
    for (unsigned l = 1; l < s->ident.L; l++) {
        int r = kit_check_layer(s, p, chunk, l);
        if (r != 0) return r;
    }
    return 0;
}

struct store_stats kit_stats(struct store *s)
{
    struct store_stats st;
    store_get_stats(s, &st);
    ASSERT_TRUE(st.used_bytes <= st.budget_bytes);
    return st;
}

void kit_flush(struct store *s)
{
    while (kit_stats(s).inflight > 0)
        sched_yield(); /* a load may have something to write when it ends */
    ASSERT_OK(store_flush(s, clock_ns() + 60000000000ull));
}

void kit_checked(struct store *s)
{
    uint64_t until = clock_ns() + 60000000000ull;
    bool done = false;
    while (!done) {
        ASSERT_TRUE(clock_ns() < until);
        sched_yield();
        pthread_mutex_lock(&s->m);
        done = link_alone(&s->checks.queue);
        pthread_mutex_unlock(&s->m);
    }
}

void kit_empty(struct store *s)
{
    uint64_t until = clock_ns() + 60000000000ull;
    while (kit_stats(s).used_bytes > s->fixed_bytes && clock_ns() < until)
        sched_yield();
    ASSERT_EQ(kit_stats(s).used_bytes, s->fixed_bytes);
    ASSERT_EQ(s->pool.used_bytes, 0);
    pthread_mutex_lock(&s->m);
    uint64_t held = 0, loading = 0;
    for (int i = 0; i < SHARDS; i++)
        held += s->shard[i].held_bytes + s->shard[i].held_parts + s->shard[i].index.n;
    for (size_t i = 0; i < s->n_tiers; i++)
        loading += s->tier[i].inflight_bytes;
    uint64_t left = s->leaving_bytes + s->n_queued + s->n_writes + s->stats.pinned_bytes;
    uint64_t charged = s->quota.rest_bytes;
    for (size_t i = 0; i < QUOTA_NAMESPACES_MAX; i++)
        charged += s->quota.cell[i].used_bytes;
    pthread_mutex_unlock(&s->m);
    ASSERT_EQ(held, 0);
    ASSERT_EQ(loading, 0);
    ASSERT_EQ(left, 0);
    ASSERT_EQ(charged, 0);
}

int kit_why(struct store *s, int chunk)
{
    struct store_pin *p;
    enum store_miss why;
    if (kit_look(s, chunk, &p, &why) != 1) return (int)why;
    ASSERT_EQ(kit_check(s, p, chunk), 0);
    store_pin_release(p);
    return -1;
}
